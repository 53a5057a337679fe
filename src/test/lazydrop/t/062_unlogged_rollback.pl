# Copyright (c) 2026, LazyDrop developers

# CREATE UNLOGGED TABLE is rolled back, and the server crashes before the abort record is
# flushed.  The init fork has been removed then, and replay creates it again.  An empty
# file is left of the main fork, until a checkpoint would remove it.  That file must not
# prevent the server from starting.
#
# See doc/upstream/unlogged-rollback.md.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/..";
use PostgreSQL::Test::Utils;
use StockFault qw(check_fault new_node configure log_has);
use Test::More;

plan skip_all => 'needs signals' if $windows_os;

# Returns a description of the errors of a server after such a crash.  It starts as a
# standby and is promoted if "promote" is set.
sub crash
{
	my ($promote) = @_;
	my $node = new_node('primary');
	$node->init(allows_streaming => $promote);
	configure($node, autovacuum => 'off');
	$node->start;
	$node->safe_psql(
		'postgres', q{
		CREATE UNLOGGED TABLE kept (i int PRIMARY KEY, t text);
		INSERT INTO kept SELECT g, g FROM generate_series(1, 100) g;
		CHECKPOINT});

	# Only the WAL writer flushes the abort record.
	my $pid = $node->safe_psql('postgres',
		"SELECT pid FROM pg_stat_activity WHERE backend_type = 'walwriter'");
	kill('STOP', $pid);
	$node->safe_psql(
		'postgres', q{
		BEGIN;
		CREATE UNLOGGED TABLE gone (i int PRIMARY KEY, t text);
		INSERT INTO gone VALUES (1);
		SELECT pg_logical_emit_message(false, '', '', true);
		ROLLBACK});
	kill('KILL', $pid);
	$node->stop('immediate', fail_ok => 1);

	$node->set_standby_mode if $promote;
	$node->start(fail_ok => 1);
	$node->psql('postgres', 'SELECT pg_promote(true, 30)') if $promote;
	my $error = log_has($node, qr/FATAL: .*File exists/);
	return $error if $error;

	$node->safe_psql(
		'postgres', q{
		INSERT INTO kept VALUES (1, 'new');
		BEGIN;
		CREATE UNLOGGED TABLE next (i int PRIMARY KEY);
		INSERT INTO next VALUES (1);
		COMMIT;
		CHECKPOINT});
	my $kept = $node->safe_psql('postgres', 'SELECT * FROM kept, next');
	return $kept eq '1|new|1' ? '' : "the tables have $kept";
}

check_fault('start after the crash', sub { crash(0) });
check_fault('promotion after the crash', sub { crash(1) });

done_testing();
