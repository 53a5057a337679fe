# Copyright (c) 2026, LazyDrop developers

# The fork replaces PostgreSQL, and PostgreSQL replaces the fork, on one data directory:
# after a clean stop, after a crash with entries pending, and after a crash in the middle
# of a removal or of DROP DATABASE.  Both read the same WAL and the same control file.
# (049 exchanges the binaries of standbys.)
#
# LAZYDROP_STOCK is explained in DropIn.pm.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/..";
use DropIn
  qw(need_stock start_stock command_of contents_of no_file_is_left create_what_goes
  drop_what_goes clean_up stop_and_check);
use LazyDropFiles
  qw(relation_files add_segments database_directories hidden_files);
use LazyDropUtils qw(stats hold_at wait_until reload_with start_as);
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

need_stock();

use constant MB => 1024 * 1024;

my $has_injection_points = ($ENV{enable_injection_points} // '') eq 'yes';

# --- statistics -------------------------------------------------------------

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

# --- the same data directory ------------------------------------------------

my $node = start_stock('a');
my $first_lsn = $node->lsn('insert');
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
		ok(wait_until(sub { hidden_files($node) >= 2 }),
			"$what: and hidden files")
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
		# The worker reaches these points after the session has committed.
		my $committed = $point =~ /^(database-ready|removal)$/;
		$node->wait_for_event(
			$committed ? 'lazy drop worker' : 'client backend',
			"lazydrop-$point");

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

stop_and_check($node);

done_testing();
