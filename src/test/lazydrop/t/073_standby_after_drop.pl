# Copyright (c) 2026, LazyDrop developers

# A standby that crashes while it replays DROP DATABASE must not be consistent, at its
# next start, before it comes to that record again: until then, what changed the database
# finds its files gone.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/..";
use LazyDropUtils qw(wait_until);
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use StockFault qw(check_fault new_node configure log_has);
use Test::More;

sub set_delay
{
	my ($standby, $delay) = @_;
	$standby->append_conf('postgresql.conf',
		"recovery_min_apply_delay = $delay");
	$standby->reload;
	$standby->poll_query_until('postgres',
		"SELECT current_setting('recovery_min_apply_delay') = '$delay'");
	return;
}

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

	# Replay stops at the commit of DROP DATABASE, which would move the minimum recovery point.
	$primary->safe_psql('d', 'INSERT INTO t VALUES (2)');
	$primary->wait_for_replay_catchup($standby);
	set_delay($standby, '1h');
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
