# Copyright (c) 2026, LazyDrop developers

# A transaction that removes files at its end waits for room in the checkpointer's queue,
# which is short when shared_buffers is small.  When the postmaster is killed meanwhile,
# the process exits, and in stock PostgreSQL aborts its transaction on the way out: one
# that has been committed, which is a PANIC; or one that has been aborted, which is a
# second abort record, or a failed assertion.  See doc/upstream/request-queue.md.

use strict;
use warnings FATAL => 'all';

use Cwd qw(abs_path);
use FindBin;
use lib "$FindBin::RealBin/..";
use LazyDropUtils qw(wait_until);
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use StockFault qw(check_fault new_node configure log_has);
use Test::More;

plan skip_all => 'needs /proc' if !-r '/proc/self/stat';

# More than the queue of 16 has room for.
my $tables = 20;

# Run SQL, and then a statement that removes files; kill the postmaster in that.
sub play
{
	my ($sql, $statement) = @_;
	my $node = new_node('node');
	$node->init;
	configure(
		$node,
		autovacuum => 'off',
		bgwriter_lru_maxpages => 0,
		shared_buffers => '128kB');
	$node->start;
	$node->safe_psql('postgres',
		join('', map { "CREATE TABLE old$_ ();\n" } 1 .. $tables));
	$node->safe_psql('postgres', 'CHECKPOINT');
	my $checkpointer = $node->safe_psql('postgres',
		q{SELECT pid FROM pg_stat_activity WHERE backend_type = 'checkpointer'}
	);

	my $session = $node->background_psql('postgres');
	$session->query_safe("BEGIN; $sql");
	kill('STOP', $checkpointer);
	$session->query_until(qr/begun/, "\\echo begun\n$statement;\n");
	$node->poll_query_until('postgres',
		q{SELECT count(*) = 1 FROM pg_stat_activity WHERE wait_event = 'RegisterSyncRequest'}
	) or die 'no session waits for the queue';
	my $data = abs_path($node->data_dir);
	my $postmaster = $node->{_pid};
	$node->kill9;
	my $left = sub {
		return
		  grep { (readlink($_) // '') eq $data } glob('/proc/[0-9]*/cwd');
	};
	wait_until(sub { $left->() <= 1 }) or die 'a session does not end';
	kill('KILL', $checkpointer);
	wait_until(sub { !$left->() && !-e "/proc/$postmaster" })
	  or die 'the checkpointer does not end';
	eval { $session->quit };

	my $wrong = log_has($node, qr/PANIC|TRAP/);
	$node->start;
	is( $node->safe_psql(
			'postgres',
			q{SELECT count(*) FROM pg_class WHERE relname ~ '^(old|new)\d+$'}
		),
		$statement eq 'COMMIT' ? 0 : $tables,
		'the transaction has its outcome');
	return $wrong;
}

sub each_table
{
	my ($format) = @_;
	return join('; ', map { sprintf($format, $_) } 1 .. $tables);
}

check_fault(
	'a commit that waits for room in the queue',
	sub { play(each_table('DROP TABLE old%d'), 'COMMIT') });
check_fault('a rollback that waits for room in the queue',
	sub { play(each_table('CREATE TABLE new%d ()'), 'ROLLBACK') });

done_testing();
