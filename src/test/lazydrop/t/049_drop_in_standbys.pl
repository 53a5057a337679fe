# Copyright (c) 2026, LazyDrop developers

# The fork and PostgreSQL as standbys of each other, during a storm of drops.  The
# standby's binaries are exchanged in the middle of replay, after a clean stop and after a
# crash.  Then the standby, which is of the other kind, is promoted, and pg_rewind makes the
# old primary its standby.
#
# LAZYDROP_STOCK is explained in DropIn.pm.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/..";
use DropIn
  qw(need_stock start_stock command_of contents_of no_file_is_left create_what_goes
  drop_what_goes clean_up stop_and_check);
use IPC::Run;
use LazyDropUtils
  qw(stats wait_for_stats hold_at release start_as);
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

need_stock();

my $has_injection_points = ($ENV{enable_injection_points} // '') eq 'yes';

my $node = start_stock('a');
if ($has_injection_points)
{
	# Stock may not have this extension.
	$node->stop;
	start_as($node, 'fork');
	$node->safe_psql('postgres', 'CREATE EXTENSION injection_points');
	$node->stop;
	start_as($node, 'stock');
}
my $other = PostgreSQL::Test::Cluster->new('b');
$node->backup('backup');
$other->init_from_backup($node, 'backup', has_streaming => 1);

# --- a storm ----------------------------------------------------------------

# Drops of all kinds, by four sessions that do nothing else.  Only few of them copy
# databases, because these copies take most of the time when a server has to replay them
# again.
my %storm = (
	tables => [
		15, q{
		DROP TABLE IF EXISTS s_:client_id;
		CREATE TABLE s_:client_id (id int PRIMARY KEY, t text);
		INSERT INTO s_:client_id SELECT g, md5(g::text) FROM generate_series(1, 300) AS g;
		UPDATE live SET t = md5(t) WHERE id = 1 + random(0, 2999);
		BEGIN;
		CREATE TABLE r_:client_id AS SELECT generate_series(1, 300) AS a;
		DROP TABLE s_:client_id;
		ROLLBACK;
		DROP TABLE s_:client_id;
		}
	],
	truncate => [
		6, q{
		CREATE TABLE IF NOT EXISTS t_:client_id (id int PRIMARY KEY, t text);
		TRUNCATE t_:client_id;
		INSERT INTO t_:client_id SELECT g, md5(g::text) FROM generate_series(1, 300) AS g;
		BEGIN;
		TRUNCATE t_:client_id;
		INSERT INTO t_:client_id VALUES (random(), 'one');
		COMMIT;
		INSERT INTO t_:client_id SELECT g, md5(g::text) FROM generate_series(-300, -1) AS g;
		DELETE FROM t_:client_id WHERE id < 0 AND id > -250;
		VACUUM t_:client_id;
		}
	],
	partitions => [
		6, q{
		\set low (:client_id + 10) * 1000
		\set high (:client_id + 11) * 1000
		DROP TABLE IF EXISTS p_:client_id;
		CREATE TABLE p_:client_id (id int, t text) TABLESPACE ts;
		INSERT INTO p_:client_id SELECT g, md5(g::text) FROM generate_series(:low, :high - 1) AS g;
		ALTER TABLE p ATTACH PARTITION p_:client_id FOR VALUES FROM (:low) TO (:high);
		ALTER TABLE p_:client_id SET TABLESPACE pg_default;
		ALTER TABLE p DETACH PARTITION p_:client_id;
		DROP TABLE p_:client_id;
		}
	],
	databases => [
		1, q{
		DROP DATABASE IF EXISTS d_:client_id;
		CREATE DATABASE d_:client_id TEMPLATE template0 TABLESPACE ts;
		DROP DATABASE d_:client_id;
		CREATE DATABASE d_:client_id TEMPLATE template0 STRATEGY file_copy;
		ALTER DATABASE d_:client_id SET TABLESPACE ts;
		}
	],
	tablespaces => [
		2, q{
		DROP TABLE IF EXISTS in_ts_:client_id;
		DROP TABLESPACE IF EXISTS ts_:client_id;
		CREATE TABLESPACE ts_:client_id LOCATION '';
		CREATE TABLE in_ts_:client_id TABLESPACE ts_:client_id AS SELECT generate_series(1, 300) AS a;
		}
	]);
my $storm_dir = PostgreSQL::Test::Utils::tempdir();
foreach my $name (keys %storm)
{
	append_to_file("$storm_dir/$name", $storm{$name}[1]);
}

sub start_storm
{
	my ($primary) = @_;
	local %ENV =
	  $primary->_get_env(PGOPTIONS => '-c client_min_messages=warning');
	my $storm = { log => "$storm_dir/log", primary => $primary };
	$storm->{run} = IPC::Run::start(
		[
			$primary->installed_command('pgbench'),
			'--no-vacuum',
			'--client' => 4,
			'--rate' => 8,
			'--transactions' => 1_000_000,
			(   map { ('--file' => "$storm_dir/$_\@$storm{$_}[0]") }
				sort keys %storm),
			'postgres'
		],
		'<' => '/dev/null',
		'>&' => $storm->{log});
	return $storm;
}

sub end_storm
{
	my ($storm, $what) = @_;
	my $primary = $storm->{primary};
	ok($storm->{run}->pumpable, "$what: the storm has gone on");
	$storm->{run}->signal('TERM');
	eval { $storm->{run}->finish };
	unlike(slurp_file($storm->{log}),
		qr/error|abort/i, "$what: without a failure");
	$primary->poll_query_until(
		'postgres', q{
		SELECT count(*) = 0 FROM pg_stat_activity
		WHERE backend_type = 'client backend' AND pid <> pg_backend_pid()}
	) or die 'the storm does not end';
	return;
}

sub wait_for_pending
{
	my ($node) = @_;
	wait_for_stats($node, q{(s->>'pending_relations')::int > 20});
	return;
}

# --- places are traded ------------------------------------------------------

sub compare_nodes
{
	my ($primary, $standby, $what) = @_;
	$primary->wait_for_replay_catchup($standby);
	is_deeply(contents_of($standby), contents_of($primary),
		"$what: the same data");
	no_file_is_left($_, "$what, " . $_->name) foreach $primary, $standby;
	return;
}

# The storm runs on the primary, which stays of one kind, while the standby's binaries
# alternate between both kinds.  Then the standby, which is of the other kind, is
# promoted, and the old primary becomes its standby.
sub trade_places
{
	my ($primary, $primary_kind, $standby, $standby_kind) = @_;
	my $what = "$primary_kind as primary";
	my $storm = start_storm($primary);
	my @steps = (
		[ $primary_kind, 'immediate' ],
		[ $standby_kind, 'immediate' ],
		[ $primary_kind, 'fast' ],
		[ $standby_kind, '' ]);
	foreach my $step (@steps)
	{
		my ($kind, $how) = @$step;
		start_as($standby, $kind);
		$primary->wait_for_replay_catchup($standby);
		if ($kind eq 'fork')
		{
			# Make a restartpoint, and wait until more is pending.  Replay of file copies
			# requests restartpoints, too, so another one may hide the files.
			hold_at($standby, 'lazydrop-removal') if $has_injection_points;
			my $waits = stats($standby)->{checkpoint_waits};
			wait_for_pending($standby);
			$standby->wait_for_event('lazy drop worker', 'lazydrop-removal')
			  if $has_injection_points;
			$primary->safe_psql('postgres', 'CHECKPOINT');
			$primary->wait_for_replay_catchup($standby);
			$standby->safe_psql('postgres', 'CHECKPOINT');
			cmp_ok(stats($standby)->{checkpoint_waits},
				'>', $waits, "$what: a restartpoint has files to hide")
			  if $has_injection_points;
			release($standby, 'lazydrop-removal') if $has_injection_points;
			wait_for_pending($standby);
		}
		$primary->wait_for_replay_catchup($standby);
		$standby->stop($how) if $how ne '';
	}

	# When the standby is promoted, it has received WAL that it has not replayed.
	$standby->safe_psql('postgres', 'SELECT pg_wal_replay_pause()');
	my $lsn = $primary->lsn('insert');
	$primary->poll_query_until('postgres',
		"SELECT pg_current_wal_insert_lsn() > '$lsn'::pg_lsn + 1000000")
	  or die 'there is no storm';
	end_storm($storm, $what);
	my $contents = contents_of($primary);
	$lsn = $primary->lsn('flush');
	$primary->wait_for_catchup($standby, 'flush', $lsn);
	ok( $standby->safe_psql(
			'postgres', "SELECT pg_last_wal_replay_lsn() < '$lsn'"),
		"$what: not all is replayed when the standby is promoted");
	$standby->promote;
	is_deeply(contents_of($standby), $contents,
		"$what: promotion loses nothing");
	no_file_is_left($standby, "$what, after promotion");

	# Both servers continue.  The old primary crashes; if it is the fork, entries are
	# pending.
	foreach ($primary, $standby)
	{
		create_what_goes($_);
		drop_what_goes($_);
	}
	clean_up($standby);
	if ($primary_kind eq 'fork')
	{
		cmp_ok(stats($primary)->{pending_relations},
			'>', 0, "$what: entries are pending when it crashes");
	}
	$primary->stop('immediate');
	command_ok(
		[
			command_of($primary_kind, 'pg_rewind'),
			'--source-server' => $standby->connstr('postgres'),
			'--target-pgdata' => $primary->data_dir
		],
		"$what: pg_rewind");
	$primary->set_standby_mode();
	$primary->enable_streaming($standby);
	$primary->append_conf('postgresql.conf', 'port = ' . $primary->port);
	start_as($primary, $primary_kind);
	compare_nodes($standby, $primary, "$what, then as standby");
	$primary->stop;
	return;
}

trade_places($node, 'stock', $other, 'fork');
trade_places($other, 'fork', $node, 'stock');
start_as($other, 'fork');

# --- final checks -----------------------------------------------------------

# The primary is stock now, and the standby is the fork.
compare_nodes($node, $other, 'at the end');
stop_and_check($node, $other);

done_testing();
