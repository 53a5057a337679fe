# Copyright (c) 2026, LazyDrop developers

# The fork replaces PostgreSQL, and PostgreSQL replaces the fork.  They do so on one data
# directory, after a clean stop and after a crash with entries pending, and as standbys of
# each other, where the binaries are exchanged in the middle of replay, promotion and
# pg_rewind.
#
# LAZYDROP_STOCK is the directory above bin of an installation of PostgreSQL ("stock")
# that was built from the same source with the same options.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/..";
use LazyDropUtils
  qw(stats wait_for_stats hold_at release wait_for_wait wait_until wait_for_receipt relation_files
  need_test_extra add_segments reload_with database_directories hidden_files orphaned_files contents log_is_clean start_as init_with_checksums);
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

need_test_extra();
my $stock = $ENV{LAZYDROP_STOCK} // '';
plan skip_all =>
  'LAZYDROP_STOCK does not name an installation of PostgreSQL built from the same source'
  if $stock eq '';
die "there is no server in \"$stock/bin\"" unless -x "$stock/bin/postgres";

use constant MB => 1024 * 1024;

my $has_injection_points = ($ENV{enable_injection_points} // '') eq 'yes';
my ($stock_modules) =
  run_command([ "$stock/bin/pg_config", '--pkglibdir' ]);

# Both have the same configuration.  No checkpoint is made unless the test requests it,
# and the worker does nothing until a process needs it.
my %settings = (
	'allow_in_place_tablespaces' => 'on',
	'autovacuum' => 'off',
	'bgwriter_lru_maxpages' => '0',
	'checkpoint_timeout' => '1h',
	'dynamic_library_path' => "'\$libdir:$stock_modules'",
	'hot_standby_feedback' => 'on',
	'log_statement' => 'none',
	'max_prepared_transactions' => '5',
	'max_wal_size' => '4GB',
	'shared_buffers' => '32MB',
	'track_functions' => 'all',
	'track_io_timing' => 'on',
	'wal_keep_size' => '2GB',
	'lazydrop.enabled' => 'on',
	'lazydrop.max_pending' => '16384',
	'lazydrop.pass_delay' => "'60s'",
	'lazydrop.defer_files' => 'on',
	'lazydrop.removal_rate' => '0',
	'lazydrop.log_passes' => 'on');

# --- selection of the binaries ----------------------------------------------

sub command_of
{
	my ($kind, $command) = @_;
	return $kind eq 'stock' ? "$stock/bin/$command" : $command;
}

# --- contents of a node -----------------------------------------------------

# A prepared transaction holds a lock on a table.
sub contents_of
{
	my ($node, @except) = @_;
	return contents($node, except => [ 'prepared', @except ]);
}

# On a primary, the first segments of dropped relations remain until a checkpoint.
sub no_file_is_left
{
	my ($node, $what) = @_;
	$node->safe_psql('postgres', 'CHECKPOINT');
	is_deeply([ orphaned_files($node) ], [], "$what: no file is left");
	return;
}

# Returns the cumulative statistics of the tables in "postgres", and the reset time of
# each kind of statistics, which is the current time for a kind that was not found at the
# start.  Reading them does not change them.
sub statistics
{
	my ($node) = @_;
	return $node->safe_psql(
		'postgres', q{
		SELECT pg_stat_force_next_flush();
		SELECT t::text FROM pg_stat_user_tables AS t ORDER BY 1;
		SELECT t::text FROM pg_stat_user_indexes AS t ORDER BY 1;
		SELECT t::text FROM pg_statio_user_tables AS t ORDER BY 1;
		SELECT t::text FROM pg_stat_user_functions AS t ORDER BY 1;
		SELECT stats_reset FROM pg_stat_bgwriter;
		SELECT stats_reset FROM pg_stat_checkpointer;
		SELECT stats_reset FROM pg_stat_wal;
		SELECT stats_reset FROM pg_stat_archiver;
		SELECT max(stats_reset), count(*) FROM pg_stat_slru;
		SELECT stats_reset, count(*) FROM pg_stat_io GROUP BY 1;
		SELECT backend_type, object, context FROM pg_stat_io ORDER BY 1, 2, 3});
}

# Returns I/O statistics that only grow, and that a crash does not reset.
sub io_statistics
{
	my ($node) = @_;
	my %writes = map { split /\|/ } split /\n/, $node->safe_psql(
		'postgres', q{
		SELECT backend_type, sum(reads + writes + extends) FROM pg_stat_io
		WHERE object = 'relation' GROUP BY 1 HAVING sum(reads + writes + extends) > 0}
	);
	return \%writes;
}

# --- objects to drop --------------------------------------------------------

# Create objects that exist until the end, and are modified all the time.
sub create_what_lives
{
	my ($node) = @_;
	$node->safe_psql(
		'postgres', q{
		CREATE EXTENSION amcheck;
		CREATE TABLESPACE ts LOCATION '';
		CREATE DATABASE d;
		CREATE TABLE live (id int PRIMARY KEY, t text);
		INSERT INTO live SELECT g, md5(g::text) FROM generate_series(1, 3000) AS g;
		CREATE INDEX live_t ON live (t);
		CREATE TABLE wide (id int, t text);
		ALTER TABLE wide ALTER t SET STORAGE external;
		INSERT INTO wide SELECT g, repeat(md5(g::text), 200) FROM generate_series(1, 50) AS g;
		CREATE TABLE p (id int, t text) PARTITION BY RANGE (id);
		CREATE TABLE p0 PARTITION OF p FOR VALUES FROM (0) TO (1000) TABLESPACE ts;
		INSERT INTO p SELECT g, md5(g::text) FROM generate_series(0, 999) AS g;
		CREATE MATERIALIZED VIEW mv AS SELECT * FROM live WHERE id < 1000;
		CREATE UNLOGGED TABLE u AS SELECT generate_series(1, 1000) AS a;
		CREATE FUNCTION f() RETURNS int LANGUAGE plpgsql AS 'BEGIN RETURN 1; END';
		SELECT f();});
	$node->safe_psql('d',
		'CREATE TABLE live AS SELECT generate_series(1, 1000) AS a');
	return;
}

# Create objects for every kind of drop, write them to disk, and then make them dirty.
# Returns the paths of relations, and the OID of a database.
sub create_what_goes
{
	my ($node) = @_;
	my @tables = qw(gone gone_ts cut part shrunk prepared in_space);
	$node->safe_psql(
		'postgres', q{
		CREATE TABLE gone (id int PRIMARY KEY, t text);
		CREATE TABLE gone_ts (id int, t text) TABLESPACE ts;
		CREATE TABLE cut (id int, t text);
		CREATE TABLE part PARTITION OF p FOR VALUES FROM (1000) TO (10000);
		CREATE TABLE shrunk (id int, t text);
		CREATE TABLE prepared (id int, t text);
		CREATE TABLESPACE gone_space LOCATION '';
		CREATE TABLE in_space (id int, t text) TABLESPACE gone_space;
		CREATE DATABASE gone_db TABLESPACE ts STRATEGY file_copy;});
	my $fill = join '', map {
		"INSERT INTO $_ SELECT g, md5(g::text) FROM generate_series(1000, 2999) AS g;\n"
	} grep { $_ ne 'gone' } @tables;
	$node->safe_psql(
		'postgres', qq{
		INSERT INTO gone SELECT g, md5(g::text) FROM generate_series(1, 2000) AS g;
		$fill
		VACUUM;
		CHECKPOINT;
		INSERT INTO gone SELECT g, md5(g::text) FROM generate_series(2001, 4000) AS g;
		$fill});
	$node->safe_psql('gone_db',
		'CREATE TABLE t TABLESPACE pg_default AS SELECT generate_series(1, 1000) AS a'
	);
	my @paths = split /\n/, $node->safe_psql(
		'postgres', q{
		SELECT pg_relation_filepath(r) FROM unnest('{gone, gone_pkey, gone_ts, cut, part,
			in_space, live_t, wide, mv}'::regclass[]) AS r});
	my $oid = $node->safe_psql('postgres',
		q{SELECT oid FROM pg_database WHERE datname = 'gone_db'});
	return (\@paths, $oid);
}

# Drop them.  With the fork, DROP TABLESPACE makes a pass.  Returns the counters after it.
sub drop_what_goes
{
	my ($node, $checkpoint) = @_;
	$node->safe_psql(
		'postgres', q{
		DROP TABLE in_space;
		DROP TABLESPACE gone_space});
	my $stats = $node->install_path ? undef : stats($node);
	$node->safe_psql(
		'postgres', q{
		DROP TABLE gone;
		ALTER TABLE p DETACH PARTITION part;
		DROP TABLE part;
		} . ($checkpoint ? 'CHECKPOINT;' : '') . q{
		UPDATE live SET t = md5(t) WHERE id % 7 = 0;
		DROP TABLE gone_ts;
		TRUNCATE cut;
		INSERT INTO cut VALUES (1, 'one');
		REINDEX INDEX live_t;
		VACUUM FULL wide;
		REFRESH MATERIALIZED VIEW mv;
		DELETE FROM shrunk WHERE id > 1000;
		VACUUM shrunk;
		BEGIN;
		CREATE TABLE never AS SELECT generate_series(1, 1000) AS a;
		DROP TABLE shrunk;
		ROLLBACK;
		DROP DATABASE gone_db;
		BEGIN;
		DROP TABLE prepared;
		PREPARE TRANSACTION 'drop';
		UPDATE live SET t = md5(t) WHERE id % 11 = 0;});
	return $stats;
}

sub clean_up
{
	my ($node) = @_;
	$node->safe_psql(
		'postgres', q{
		COMMIT PREPARED 'drop';
		DROP TABLE cut, shrunk;});
	return;
}

# --- the same data directory ------------------------------------------------

# One primary, initialized by stock.
my $node = PostgreSQL::Test::Cluster->new('a', install_path => $stock);
init_with_checksums($node, allows_streaming => 1, force_initdb => 1);
$node->append_conf('postgresql.conf',
	join('', map { "$_ = $settings{$_}\n" } sort keys %settings));
start_as($node, 'stock');
my $first_lsn = $node->lsn('insert');
create_what_lives($node);
my $kind = 'stock';

# Exchange the binaries of the node, and check that its contents are the same.  Drops are
# pending when the fork is stopped.  If it crashes, the files have their own names,
# because the worker is held.  If it is shut down, the worker must be able to stop; the
# files are hidden, and are removed slowly.  "how" is the mode of pg_ctl stop.
sub swap
{
	my ($how, %params) = @_;
	my $to = $kind eq 'stock' ? 'fork' : 'stock';
	my $what =
		"$kind, "
	  . ($how eq 'fast' ? 'stopped' : 'crashed')
	  . join('', map { ", $_ $params{$_}" } sort keys %params)
	  . ", then $to";
	$node->append_conf('postgresql.conf',
		"full_page_writes = " . ($params{full_page_writes} // 'on'));
	$node->reload;
	my ($paths, $oid) = create_what_goes($node);
	my $held = $kind eq 'fork' && $how ne 'fast' && $has_injection_points;
	my $slow = $kind eq 'fork' && $how eq 'fast';
	if ($held)
	{
		$node->safe_psql('postgres',
			'CREATE EXTENSION IF NOT EXISTS injection_points');
		hold_at($node, 'lazydrop-removal');
	}
	if ($slow)
	{
		add_segments($node, $paths->[0], 2, 40 * MB);
		add_segments($node, "base/$oid/1", 2, 40 * MB);
		reload_with($node, 'lazydrop.removal_rate' => '1MB');
	}
	my $before = drop_what_goes($node, $params{checkpoint});
	my $contents = contents_of($node);

	if ($kind eq 'fork')
	{
		my $after = stats($node);
		cmp_ok($after->{pending_relations},
			'>=', 6, "$what: relations are pending");
		cmp_ok($after->{pending_databases},
			'>=', 2, "$what: a database's directories are pending");
		is($after->{passes}, $before->{passes}, "$what: and their buffers");
		cmp_ok(scalar(map { relation_files($node, $_) } @$paths),
			'>', 6, "$what: and files")
		  if $held;
		is(scalar(database_directories($node, $oid)),
			2, "$what: and directories")
		  if $held;
		cmp_ok(scalar(hidden_files($node)),
			'>=', 2, "$what: and hidden files")
		  if $slow;
	}
	my ($statistics, $io) = (statistics($node), io_statistics($node));
	$node->stop($how);
	if ($how eq 'fast')
	{
		is_deeply(
			[
				(map { relation_files($node, $_) } @$paths),
				database_directories($node, $oid)
			],
			[],
			"$what: what was dropped is gone when it has stopped");
	}

	start_as($node, $to);
	reload_with($node, 'lazydrop.removal_rate' => '0') if $slow;
	is_deeply([ hidden_files($node) ], [], "$what: which stock removes")
	  if $to eq 'stock';
	if ($how eq 'fast')
	{
		is(statistics($node), $statistics, "$what: statistics are kept");
		my $new = io_statistics($node);
		is_deeply([ grep { ($new->{$_} // 0) < $io->{$_} } keys %$io ],
			[], "$what: statistics of I/O are kept");
	}
	is_deeply([ map { relation_files($node, $_) } @$paths ],
		[], "$what: what was dropped is gone");
	is_deeply([ database_directories($node, $oid) ],
		[], "$what: and the database");
	is_deeply(contents_of($node), $contents, "$what: all else is there");
	is( $node->safe_psql('postgres', 'SELECT count(*) FROM u'),
		$how eq 'fast' ? 1000 : 0,
		"$what: and an unlogged table");
	clean_up($node);
	no_file_is_left($node, $what);
	$node->safe_psql('postgres',
		'TRUNCATE u; INSERT INTO u SELECT generate_series(1, 1000)');
	$kind = $to;
	return;
}

swap('fast') foreach 1 .. 3;
swap('immediate', full_page_writes => $_) foreach qw(on on off off);
swap('immediate', full_page_writes => 'off', checkpoint => 'in between');
swap('fast');

# --- a crash when the files of a table are partly removed -------------------

start_other('fork') unless $kind eq 'fork';

# Exchange the binaries without dropping anything.
sub start_other
{
	my ($to) = @_;
	$node->stop;
	start_as($node, $to);
	$kind = $to;
	return;
}

{
	my ($paths, undef) = create_what_goes($node);
	drop_what_goes($node);
	clean_up($node);
	$node->safe_psql('postgres',
		'CREATE TABLE gone AS SELECT generate_series(1, 1000) AS a');
	$node->safe_psql('postgres', 'CHECKPOINT');
	my $path =
	  $node->safe_psql('postgres', q{SELECT pg_relation_filepath('gone')});
	add_segments($node, $path, 4, 2 * MB);

	# Stock reads these settings, too.
	$node->safe_psql('postgres',
		q{ALTER SYSTEM SET lazydrop.removal_rate = '2MB'});
	$node->safe_psql('postgres', 'ALTER SYSTEM SET lazydrop.pass_delay = 0');
	$node->reload;
	$node->poll_query_until('postgres',
		q{SELECT current_setting('lazydrop.removal_rate') = '2MB' AND current_setting('lazydrop.pass_delay') = '0'}
	) or die 'the settings were not reloaded';
	# A file that cannot be hidden is removed under its own name.
	my @in_the_way = map { $node->data_dir . "/base/$_" } qw(pgsql_tmp 0);
	rmdir $_ foreach @in_the_way;
	append_to_file($_, "a file\n") foreach @in_the_way;
	$node->safe_psql('postgres', 'DROP TABLE gone');
	my $nfiles = scalar(relation_files($node, $path));
	wait_until(sub { relation_files($node, $path) < $nfiles })
	  or die 'no segment was removed';
	$node->stop('immediate');
	unlink @in_the_way;
	my @left = relation_files($node, $path);
	cmp_ok(scalar(@left), '>', 1,
		'the fork crashed when a table is half gone');
	note explain \@left;
	start_as($node, 'stock');
	$kind = 'stock';
	is_deeply([ relation_files($node, $path) ], [], 'stock removes the rest');
	$node->safe_psql('postgres', 'ALTER SYSTEM RESET ALL');
	is($node->safe_psql('postgres', 'SHOW lazydrop.pass_delay'),
		'0', 'stock has the setting of ALTER SYSTEM');
	$node->reload;
}

# --- a crash in the middle of DROP DATABASE ---------------------------------

# Stock must be able to recover from this state.  The record is in WAL, so its recovery
# removes the directories.  Unless the fork has committed, the row in pg_database is an
# invalid database.
SKIP:
{
	skip 'Injection points not supported by this build', 1
	  unless $has_injection_points;
	$node->stop;
	start_as($node, 'fork');
	$node->safe_psql('postgres',
		'CREATE EXTENSION IF NOT EXISTS injection_points');
	my $fpw = 'on';
	foreach my $point (
		qw(database-logged database-forgotten database-ready removal))
	{
		$fpw = $fpw eq 'on' ? 'off' : 'on';
		my $what =
		  "DROP DATABASE crashed at lazydrop-$point, full_page_writes $fpw";
		$node->append_conf('postgresql.conf', "full_page_writes = $fpw");
		$node->append_conf('postgresql.conf', 'lazydrop.pass_delay = 0')
		  if $point eq 'removal';
		$node->reload;
		$node->safe_psql('postgres', 'CREATE DATABASE dying TABLESPACE ts');
		my $oid = $node->safe_psql('postgres',
			q{SELECT oid FROM pg_database WHERE datname = 'dying'});
		$node->safe_psql(
			'dying', q{
			CREATE TABLE t (a int PRIMARY KEY) TABLESPACE pg_default;
			INSERT INTO t SELECT generate_series(1, 1000);
			CHECKPOINT;
			INSERT INTO t SELECT generate_series(1001, 3000)});
		my $contents = contents_of($node, 'pg_database');
		delete $contents->{$_} foreach grep { / in dying$/ } keys %$contents;
		hold_at($node, 'lazydrop-removal') if $point ne 'removal';
		hold_at($node, "lazydrop-$point");
		my $session = $node->background_psql('postgres', on_error_stop => 0);
		$session->query_until(qr/begun/,
			"\\echo begun\nDROP DATABASE dying;\n\\echo done\n");
		wait_for_wait($node, "lazydrop-$point");
		my $committed = $point =~ /^(database-ready|removal)$/;
		if ($committed)
		{
			$node->poll_query_until('postgres',
				q{SELECT count(*) = 0 FROM pg_database WHERE datname = 'dying'}
			) or die 'DROP DATABASE did not commit';
		}
		is(scalar(database_directories($node, $oid)),
			2, "$what: its directories are there");
		$node->stop('immediate');
		eval { $session->quit };
		eval { $session->{run}->finish };

		start_as($node, 'stock');
		is_deeply([ database_directories($node, $oid) ],
			[], "$what: they are gone after recovery by stock");
		is( $node->safe_psql(
				'postgres',
				q{SELECT count(*), min(datconnlimit) FROM pg_database WHERE datname = 'dying'}
			),
			$committed ? '0|' : '1|-2',
			"$what: " . ($committed ? 'it is gone' : 'it is invalid'));
		$node->safe_psql('postgres', 'DROP DATABASE IF EXISTS dying');
		is_deeply(contents_of($node, 'pg_database'),
			$contents, "$what: all else is there");
		no_file_is_left($node, $what);
		$node->stop;
		start_as($node, 'fork');
	}
	$node->append_conf('postgresql.conf', "lazydrop.pass_delay = '60s'");
	$kind = 'fork';
}
start_other('stock') if $kind ne 'stock';

# --- each reads the other's files -------------------------------------------

sub output_of
{
	my ($kind, $command, @args) = @_;
	my ($out, $err) = run_command([ command_of($kind, $command), @args ]);
	return "$out\n$err";
}

{
	my @args = (
		'--path' => $node->data_dir . '/pg_wal',
		'--start' => $first_lsn,
		'--end' => $node->lsn('flush'));
	push @args,
	  map { ('--rmgr' => $_) } qw(Database Storage Transaction XLOG);
	my %wal = map { $_ => output_of($_, 'pg_waldump', @args) } qw(stock fork);
	cmp_ok(scalar(() = $wal{stock} =~ /desc: DROP dir/g),
		'>=', 9, 'databases were dropped, say the records');
	is($wal{fork}, $wal{stock}, 'pg_waldump of both sees the same records');
	unlike($wal{stock}, qr/error|unknown/i, 'and knows them all');
	my %control =
	  map { $_ => output_of($_, 'pg_controldata', $node->data_dir) }
	  qw(stock fork);
	like($control{stock}, qr/in production/, 'the control file of a server');
	is($control{fork}, $control{stock}, 'is the same to both');
}

# --- standbys of each other -------------------------------------------------

my $other = PostgreSQL::Test::Cluster->new('b');
$node->backup('backup');
$other->init_from_backup($node, 'backup', has_streaming => 1);

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

sub compare_nodes
{
	my ($primary, $standby, $what) = @_;
	$primary->wait_for_replay_catchup($standby);
	is_deeply(contents_of($standby), contents_of($primary),
		"$what: the same data");
	no_file_is_left($_, "$what, " . $_->name) foreach $primary, $standby;
	return;
}

# A storm runs on the primary, which stays of one kind, while the standby's binaries
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
			wait_for_wait($standby, 'lazydrop-removal')
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
	wait_for_receipt($standby, $lsn);
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

$other->append_conf('postgresql.conf',
	"lazydrop.pass_delay = '60s'\nfull_page_writes = on");
trade_places($node, 'stock', $other, 'fork');
trade_places($other, 'fork', $node, 'stock');
start_as($other, 'fork');

# --- final checks -----------------------------------------------------------

# The primary is stock now, and the standby is the fork.
compare_nodes($node, $other, 'at the end');
foreach ($node, $other)
{
	command_ok(
		[
			command_of('stock', 'pg_amcheck'),
			'--all', '--heapallindexed',
			($_ == $node ? '--install-missing' : ()),
			'--host' => $_->host,
			'--port' => $_->port
		],
		'pg_amcheck on ' . $_->name);
	$node->wait_for_replay_catchup($other);
}
my @nodes = ($node, $other);
$_->stop foreach reverse @nodes;
foreach my $kind (qw(stock fork))
{
	command_ok([ command_of($kind, 'pg_checksums'), '--check', $_->data_dir ],
		"pg_checksums of $kind on " . $_->name)
	  foreach @nodes;
}

log_is_clean($_, crashed => 1) foreach @nodes;

done_testing();
