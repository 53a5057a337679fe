# Copyright (c) 2026, LazyDrop developers

# A standby that crashes after it has replayed DROP DATABASE must not be consistent, at its
# next start, before it comes to that record again: until then, what changed the database
# finds its files gone.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/..";
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use StockFault qw(check_fault new_node configure log_has);
use Test::More;

sub scenario
{
	my $primary = new_node('primary');
	$primary->init(allows_streaming => 1);
	configure(
		$primary,
		'autovacuum' => 'off',
		'bgwriter_lru_maxpages' => '0',
		'checkpoint_timeout' => '1h',
		'full_page_writes' => 'off');
	$primary->start;
	$primary->backup('backup');
	my $standby = new_node('standby');
	$standby->init_from_backup($primary, 'backup', has_streaming => 1);
	$standby->start;
	$primary->safe_psql('postgres', 'CREATE DATABASE d');
	$primary->safe_psql('d', 'CREATE TABLE t AS SELECT 1 AS a');
	$primary->safe_psql('postgres', 'CHECKPOINT');
	$primary->wait_for_replay_catchup($standby);
	$standby->safe_psql('postgres', 'CHECKPOINT');

	$primary->safe_psql('d', 'INSERT INTO t VALUES (2)');
	$primary->safe_psql('postgres', 'DROP DATABASE d');
	$primary->wait_for_replay_catchup($standby);
	$standby->stop('immediate');
	return '' if $standby->start(fail_ok => 1);
	return log_has($standby, qr/PANIC/) || 'the standby does not start';
}

check_fault('a standby after DROP DATABASE', \&scenario);

done_testing();
