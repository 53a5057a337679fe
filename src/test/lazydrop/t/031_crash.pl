# Copyright (c) 2026, LazyDrop developers

# The server crashes at each step of the removal of files: of a table with several
# segments, and of a database.  After recovery, everything that was dropped is gone, and
# everything else is there (rules R8, R11, R14, R16).
#
# LAZYDROP_TEST_SEED chooses which process is killed and how; the seed is printed.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/..";
use LazyDropFiles qw(relation_files add_segments database_directories);
use LazyDropUtils qw(wait_for_nothing hold_at wait_until need_injection_points
  start_quiet_pair);
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

need_injection_points();

use constant MB => 1024 * 1024;

my $seed = $ENV{LAZYDROP_TEST_SEED} || int(rand(1_000_000));
srand($seed);
note "LAZYDROP_TEST_SEED=$seed";

my ($primary, $standby) = start_quiet_pair(
	'fsync' => 'on',
	'max_wal_size' => '4GB',
	'restart_after_crash' => 'on');
$primary->safe_psql('postgres', q{CREATE TABLESPACE ts LOCATION ''});

# The process that reaches each point.  A table and a database are dropped, so that the
# dropper reaches each of its points.  For the checkpointer's points, the worker is held.
my %dropper = (
	'lazydrop-bury' => 'DROP TABLE t',
	'lazydrop-buried' => 'DROP TABLE t',
	'lazydrop-forgotten' => 'DROP TABLE t',
	'lazydrop-ready' => 'DROP TABLE t',
	'lazydrop-database-logged' => 'DROP DATABASE d',
	'lazydrop-database-forgotten' => 'DROP DATABASE d');
my @worker = map { "lazydrop-$_" }
  qw(database-ready worker pass pass-end removal removal-step removal-end);
my @checkpointer = map { "lazydrop-checkpoint$_" } ('', '-step', '-end');

# Crash a node: either all processes at once, or one process and then the others.  With
# restart_after_crash, the server restarts by itself.
sub let_die
{
	my ($node, $type) = @_;
	my @faults = ('immediate', $type, 'checkpointer', 'lazy drop worker');
	push @faults, 'startup' if $node == $standby;
	my $fault = $faults[ int(rand(@faults)) ];

	if ($fault eq 'immediate')
	{
		$node->stop('immediate');
		$node->start;
		return $fault;
	}

	# The dropper is the only client backend that waits.
	my $pid = $node->safe_psql(
		'postgres',
		"SELECT pid FROM pg_stat_activity WHERE backend_type = '$fault'"
		  . (
			$fault eq 'client backend'
			? " AND wait_event LIKE 'lazydrop-%'"
			: ''));
	my $offset = -s $node->logfile;
	kill('KILL', $pid) == 1 or die "could not kill $fault $pid: $!";
	if ($fault eq 'startup')
	{
		# If the startup process is killed, the server stops.
		wait_until(sub { !-e $node->data_dir . '/postmaster.pid' })
		  or die 'the server did not stop';
		$node->_update_pid(0);
		$node->start;
	}
	else
	{
		$node->wait_for_log(
			qr/all server processes terminated; reinitializing/, $offset);

		# Send no query: a psql that cannot connect does not read it, and the attempt to
		# write it would fail.
		$node->poll_query_until('postgres', undef, '');
	}
	return "kill -9 of $fault";
}

my $round = 0;

# Crash the server "node" when a process has reached "point".
sub try
{
	my ($node, $point, $type) = @_;
	my $name = $node->name;
	my $drop = $dropper{$point};
	my $fpw = $round++ % 2 ? 'on' : 'off';

	$primary->safe_psql('postgres',
		"ALTER SYSTEM SET full_page_writes = $fpw");
	$primary->safe_psql('postgres', 'SELECT pg_reload_conf()');
	foreach my $sql (
		'DROP TABLE IF EXISTS t',
		'DROP DATABASE IF EXISTS d',
		'CREATE TABLE t (a int PRIMARY KEY) TABLESPACE ts',
		'INSERT INTO t SELECT generate_series(1, 1000)',
		'VACUUM t',
		'CREATE DATABASE d TABLESPACE ts',
		'CHECKPOINT',
		'INSERT INTO t SELECT generate_series(1001, 2000)')
	{
		$primary->safe_psql('postgres', $sql);
	}
	my $in_d =
	  'CREATE TABLE u TABLESPACE pg_default AS SELECT generate_series(1, 1000) AS a';
	$primary->safe_psql('d', $in_d);
	my @paths =
	  map {
		$primary->safe_psql('postgres', "SELECT pg_relation_filepath('$_')")
	  } qw(t t_pkey);
	my $oid = $primary->safe_psql('postgres',
		q{SELECT oid FROM pg_database WHERE datname = 'd'});
	$primary->wait_for_replay_catchup($standby);
	wait_for_nothing($primary, $standby);
	if ($node == $standby)
	{
		$standby->safe_psql('postgres', 'CHECKPOINT');
	}
	add_segments($node, $paths[0], 2, 40 * MB);

	hold_at($node, $point);
	hold_at($node, 'lazydrop-removal') if $type eq 'checkpointer';
	my @sessions;
	foreach
	  my $sql (defined $drop ? $drop : ('DROP TABLE t', 'DROP DATABASE d'))
	{
		my $session =
		  $primary->background_psql('postgres', on_error_stop => 0);
		$session->query_until(qr/begun/, "\\echo begun\n$sql;\n");
		push @sessions, $session;
	}
	if ($type eq 'checkpointer')
	{
		# Provide files to hide, and a record from which a restartpoint can be made.
		$node->wait_for_event('lazy drop worker', 'lazydrop-removal');
		if ($node == $standby)
		{
			$primary->safe_psql('postgres', 'CHECKPOINT');
			$primary->wait_for_replay_catchup($standby);
		}
		my $session = $node->background_psql('postgres', on_error_stop => 0);
		$session->query_until(qr/begun/, "\\echo begun\nCHECKPOINT;\n");
		push @sessions, $session;
	}
	$node->wait_for_event($type, $point);
	my $fault = let_die($node, $type);
	foreach my $session (@sessions)
	{
		# The session may have lost its server, or may have completed.
		eval { $session->quit };
		eval { $session->{run}->finish };
	}

	# The files of dropped objects are gone, and objects in the catalogs are complete.
	$primary->wait_for_replay_catchup($standby);
	wait_for_nothing($primary, $standby);
	my $what = "$name at $point, $fault, full_page_writes $fpw";
	my $there = $node->safe_psql('postgres',
		q{SELECT count(*) FROM pg_class WHERE relname = 't'});
	if ($there)
	{
		is($node->safe_psql('postgres', 'SELECT count(*) FROM t'),
			2000, "$what: the table is there");
	}
	else
	{
		# On a primary, the first segments remain until a checkpoint.
		is_deeply(
			[
				grep { -s $node->data_dir . "/$_" }
				map  { relation_files($node, $_) } @paths
			],
			[],
			"$what: the table's files are gone");
	}

	# The database has been dropped, or is invalid and about to be dropped.
	my $connlimit = $node->safe_psql('postgres',
		"SELECT datconnlimit FROM pg_database WHERE oid = $oid");
	if ($connlimit eq '-1')
	{
		is($node->safe_psql('d', 'SELECT count(*) FROM u'),
			1000, "$what: the database is there");
	}
	elsif ($connlimit eq '')
	{
		is_deeply([ database_directories($node, $oid) ],
			[], "$what: the database's directories are gone");
	}
	else
	{
		$primary->safe_psql('postgres', 'DROP DATABASE d');
		$primary->wait_for_replay_catchup($standby);
		wait_for_nothing($node);
		is_deeply([ database_directories($node, $oid) ],
			[], "$what: the database can be dropped again");
	}
	$primary->safe_psql('postgres', 'CHECKPOINT');
	is_deeply([ map { relation_files($primary, $_) } @paths ],
		[], "$what: and the first segments, after a checkpoint")
	  unless $there;
	return;
}

foreach my $node ($primary, $standby)
{
	my $dropper = $node == $primary ? 'client backend' : 'startup';
	foreach my $point (sort keys %dropper)
	{
		# Replay has no separate steps for databases.
		next if $node == $standby && $point =~ /database/;
		try($node, $point, $dropper);
	}
	try($node, $_, 'lazy drop worker') foreach @worker;
	try($node, $_, 'checkpointer')     foreach @checkpointer;
}

foreach my $node ($primary, $standby)
{
	$node->stop;
	unlike(
		slurp_file($node->logfile),
		qr/PANIC|TRAP|could not (open|read|fsync|write) file|invalid page/,
		'the log is clean on ' . $node->name);
}

done_testing();
