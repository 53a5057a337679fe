# Copyright (c) 2026, LazyDrop developers

# A standby that crashes while it replays DROP DATABASE must not reach consistency, at its
# next start, before it has replayed that record again.  Until then, records that changed
# the database do not find its files.
#
# See doc/upstream/standby-after-drop.md.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/..";
use LazyDropUtils qw(wait_until reload_with);
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use StockFault qw(check_fault start_primary start_standby log_has);
use Test::More;

sub scenario
{
	my $primary = start_primary(
		'bgwriter_lru_maxpages' => '0',
		'checkpoint_timeout' => '1h',
		'full_page_writes' => 'off');
	my $standby = start_standby($primary);
	$primary->safe_psql('postgres', 'CREATE DATABASE d');
	$primary->safe_psql('d', 'CREATE TABLE t AS SELECT 1 AS a');
	$primary->safe_psql('postgres', 'CHECKPOINT');
	$primary->wait_for_replay_catchup($standby);
	$standby->safe_psql('postgres', 'CHECKPOINT');

	# Replay stops at the commit of DROP DATABASE, which would advance the minimum
	# recovery point.
	$primary->safe_psql('d', 'INSERT INTO t VALUES (2)');
	$primary->wait_for_replay_catchup($standby);
	reload_with($standby, 'recovery_min_apply_delay' => '1h');
	my $path =
		$standby->data_dir
	  . '/base/'
	  . $primary->safe_psql('postgres',
		q{SELECT oid FROM pg_database WHERE datname = 'd'});
	$primary->safe_psql('postgres', 'DROP DATABASE d');
	wait_until(sub { !-e $path }) or die "$path is not removed";
	$standby->stop('immediate');
	$standby->append_conf('postgresql.conf', 'recovery_min_apply_delay = 0');
	return '' if $standby->start(fail_ok => 1);
	return log_has($standby, qr/PANIC/) || 'the standby does not start';
}

check_fault('a standby after DROP DATABASE', \&scenario);

done_testing();
