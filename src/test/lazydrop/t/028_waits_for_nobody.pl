# Copyright (c) 2026, LazyDrop developers

# DROP DATABASE and its replay wait for no other process (rules R2, R3 and R11).  Replay
# does not wait for entries that it does not need to settle, or for a session's pin (R3,
# R7).  A checkpoint does not wait for a read (R1).  A stopped process takes part in no
# barrier and absorbs no request, like a checkpointer in its fsync phase.  A session in a
# system call, here for COPY, takes part in no barrier either, like an extension's worker
# that never does.
#
# The dropped directory must stay, and its OID must not be used again, until that process
# has done its part.  Otherwise, the process might write pages of the next database to a
# file of this one, or unlink a file of the next one.

use strict;
use warnings FATAL => 'all';

use Fcntl qw(O_RDONLY O_NONBLOCK F_SETFL);
use FindBin;
use lib "$FindBin::RealBin/..";
use LazyDropFiles qw(database_directories hidden_files);
use LazyDropUtils
  qw(stats wait_for_stats hold_at release wait_until stop_process
  continue_process need_injection_points start_quiet_pair wait_for_nothing
  stop_with_clean_log pg_major reload_with);
use RecycledNumbers qw(set_next_oid);
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use POSIX qw(mkfifo);
use Test::More;

need_injection_points();
plan skip_all => 'no SIGSTOP on this platform' if $windows_os;

my ($primary, $standby) = start_quiet_pair('log_checkpoints' => 'on');
my @nodes = ($primary, $standby);
my $limit = "SET statement_timeout = '${PostgreSQL::Test::Utils::timeout_default}s'";

sub on_primary
{
	$primary->safe_psql('postgres', $_) foreach @_;
	return;
}

sub catch_up
{
	$primary->wait_for_replay_catchup($standby);
	return;
}

# Stop a process of a given type.
sub stop_type
{
	my ($node, $type) = @_;
	return stop_process(
		$node->safe_psql('postgres',
			"SELECT pid FROM pg_stat_activity WHERE backend_type = '$type'"));
}

# Keep a process of a server from taking part in barriers.  Returns a function that lets
# the process continue.
sub get_stuck
{
	my ($node, $type) = @_;
	if ($type ne 'session')
	{
		my $pid = stop_type($node, $type);
		return sub { continue_process($pid) };
	}

	# COPY writes more than fits into a pipe.
	my $pipe = PostgreSQL::Test::Utils::tempdir() . '/pipe';
	mkfifo($pipe, 0600) or die "could not create $pipe: $!";
	sysopen(my $end, $pipe, O_RDONLY | O_NONBLOCK)
	  or die "could not open $pipe: $!";
	my $session = $node->background_psql('postgres');
	$session->query_until(qr/begun/,
		"\\echo begun\nCOPY (SELECT repeat('x', 1000000)) TO '$pipe';\n");
	wait_until(sub { sysread($end, my $byte, 1) })
	  or die 'COPY writes nothing';
	return sub {
		fcntl($end, F_SETFL, 0) or die $!;
		while (sysread($end, my $bytes, 65536)) { }
		$session->quit;
	};
}

# Start a command, and return when it waits for an event.
sub begin_and_wait
{
	my ($node, $sql, $event) = @_;
	my $session = $node->background_psql('postgres');
	$session->query_until(qr/begun/, "\\echo begun\n$sql;\n");
	$node->wait_for_event('client backend', $event);
	return $session;
}

my $again = 'CREATE DATABASE again OID 90000 TEMPLATE model';
on_primary('CREATE DATABASE model');
$primary->safe_psql('model', 'CREATE TABLE t AS SELECT 1 AS a');
my $path =
  $primary->safe_psql('model', q{SELECT pg_relation_filepath('t')});

# --- a process that does not take part in barriers --------------------------

# An entry that waits for this process does not block anything else.
foreach my $node (@nodes)
{
	# On a standby, the snapshot of a session could conflict with replay.
	foreach my $type ('checkpointer', 'background writer',
		$node == $primary ? 'session' : ())
	{
		my $what = "$type stuck on " . $node->name;
		on_primary($again);
		catch_up();
		wait_for_nothing(@nodes);
		my $go_on = get_stuck($node, $type);
		on_primary("$limit;\nDROP DATABASE again");
		catch_up();
		pass("$what: DROP DATABASE or its replay goes on");

		on_primary('CREATE TABLE u AS SELECT 1 AS a', 'DROP TABLE u');
		catch_up();
		wait_for_stats($node,
			q{s->>'pending_relations' = '0' AND s->>'pending_databases' <> '0'}
		);
		pass("$what: the worker goes on with other entries");
		is(scalar(database_directories($node, 90000)),
			1, "$what: the directory stays");

		if ($node == $primary)
		{
			my $session = begin_and_wait($primary, $again, 'LazyDropReuse');
			pass("$what: its OID is not used again");
			$go_on->();
			ok($session->quit, "$what: until that process goes on");
			is($primary->safe_psql('again', 'SELECT a FROM t'),
				1, "$what: the new database is there");
			on_primary('DROP DATABASE again');
		}
		else
		{
			# Replay is a single process, and waits until it can use the name.
			on_primary($again);
			$standby->wait_for_event('startup', 'LazyDropReuse');
			pass("$what: its OID is not used again");
			$go_on->();
			catch_up();
			is($standby->safe_psql('again', 'SELECT a FROM t'),
				1, "$what: until that process goes on");
			on_primary('DROP DATABASE again');
			catch_up();
		}
		wait_for_nothing(@nodes);
		is_deeply([ database_directories($node, 90000) ],
			[], "$what: then the directory goes");
	}
}

# --- no process depends on the worker (rule R6) -----------------------------

{
	my $what = 'both the worker and a process stopped';
	on_primary(q{CREATE TABLESPACE ts LOCATION ''}, "$again TABLESPACE ts");
	wait_for_nothing($primary);
	my $worker = stop_process(stats($primary)->{worker_pid});
	my $pid = stop_type($primary, 'background writer');
	on_primary("$limit;\nDROP DATABASE again");
	my $session = begin_and_wait($primary, $again, 'LazyDropReuse');
	my $dropper =
	  begin_and_wait($primary, 'DROP TABLESPACE ts', 'LazyDropSettle');
	is(scalar(database_directories($primary, 90000)),
		1, "$what: CREATE DATABASE and DROP TABLESPACE wait");
	continue_process($pid);
	ok($session->quit, "$what: a creator goes on without the worker");
	ok($dropper->quit, "$what: so does DROP TABLESPACE");
	continue_process($worker);
	on_primary('DROP DATABASE again');
	catch_up();
	wait_for_nothing(@nodes);
}

# --- requests to unlink -----------------------------------------------------

# The checkpointer has a request to unlink a file of the dropped database.  It must not
# unlink a file of the next one.
{
	on_primary($again);
	$primary->safe_psql('again', 'DROP TABLE t');
	my $pid = stop_type($primary, 'checkpointer');
	on_primary("$limit;\nDROP DATABASE again");
	my $session = begin_and_wait($primary, $again, 'LazyDropReuse');
	continue_process($pid);
	$session->quit;
	on_primary('CHECKPOINT');
	is($primary->safe_psql('again', 'SELECT a FROM t'),
		1, 'a file of the new database is not unlinked');
	on_primary('DROP DATABASE again');
	catch_up();
	wait_for_nothing(@nodes);
}

# --- a checkpoint, a crash, a shutdown, a promotion -------------------------

{
	my $what = 'a checkpoint while an entry waits';
	on_primary($again, 'CHECKPOINT');
	catch_up();
	foreach my $node (@nodes)
	{
		my $pid = stop_type($node, 'background writer');
		on_primary("$limit;\nDROP DATABASE again", 'CHECKPOINT')
		  if $node == $primary;
		catch_up();
		$node->safe_psql('postgres', "$limit;\nCHECKPOINT");
		is_deeply([ database_directories($node, 90000) ],
			[], "$what: no directory has its name on " . $node->name);
		isnt(stats($node)->{pending_databases},
			0, "$what: but it is pending")
		  if $node == $primary;
		continue_process($pid);
	}
	wait_for_nothing(@nodes);
	is_deeply([ map { hidden_files($_) } @nodes ],
		[], "$what: and then it is gone");
}

foreach my $mode ('immediate', 'fast')
{
	foreach my $node (@nodes)
	{
		my $what = "$mode shutdown of " . $node->name;
		on_primary($again);
		catch_up();
		wait_for_nothing(@nodes);
		my $pid = stop_type($node, 'background writer');
		on_primary("$limit;\nDROP DATABASE again");
		catch_up();

		# A shutdown waits for a stopped process.
		my $offset = -s $node->logfile;
		$node->command_ok(
			[
				'pg_ctl', '--no-wait',
				'--mode' => $mode,
				'--pgdata' => $node->data_dir,
				'stop'
			],
			"$what begins");
		$node->wait_for_log(qr/received $mode shutdown request/, $offset);
		continue_process($pid) if $mode eq 'fast';
		ok(wait_until(sub { !-e $node->data_dir . '/postmaster.pid' }),
			"$what ends");
		$node->_update_pid(0);
		is_deeply([ database_directories($node, 90000) ],
			[], "$what: no directory has its name")
		  if $mode eq 'fast';
		$node->start;
		wait_for_nothing($node);
		is_deeply(
			[ database_directories($node, 90000), hidden_files($node) ],
			[], "$what: after the next start, nothing is left");
		catch_up();
	}
}

# --- replay of ALTER DATABASE SET TABLESPACE --------------------------------

# A session on a standby has a page of a sequence pinned that ALTER SEQUENCE has replaced.
# The page belongs to the directory that the database leaves, so replay of the copy does
# not wait for the session, and replay of the removal terminates it.
{
	my $what = 'a moved database';
	on_primary(q{CREATE TABLESPACE move LOCATION ''}, $again);
	$primary->safe_psql('again', 'CREATE SEQUENCE s');
	catch_up();
	my $session = $standby->background_psql('again', on_error_stop => 0);
	$session->query_safe('BEGIN; DECLARE c CURSOR FOR SELECT * FROM s');
	$session->query_safe('FETCH c');
	$primary->safe_psql('again', 'ALTER SEQUENCE s INCREMENT 2');
	catch_up();
	is(stats($standby)->{pending_relations}, 1, "$what: a page is pinned");
	on_primary('ALTER DATABASE again SET TABLESPACE move');
	catch_up();
	is($standby->safe_psql('again', 'SELECT a FROM t'),
		1, "$what: replay does not wait for it");

	# Move the database back into the directory of the pinned page.
	on_primary('ALTER DATABASE again SET TABLESPACE pg_default');
	catch_up();
	is($_->safe_psql('again', 'SELECT increment_by FROM pg_sequences'),
		2, "$what: it is intact on " . $_->name)
	  foreach @nodes;
	eval { $session->quit };
	on_primary('DROP DATABASE again', 'DROP TABLESPACE move');
	catch_up();
	wait_for_nothing(@nodes);
}

# --- a number that is used again --------------------------------------------

# If replay needs the name of the pinned file, it conflicts with the session as usual.
{
	my $what = 'a number that comes back';
	reload_with($standby, 'max_standby_streaming_delay' => '100ms');
	on_primary('CREATE SEQUENCE s', 'CREATE TABLE v (a int)');
	catch_up();
	my $number = $primary->safe_psql('postgres',
		q{SELECT pg_relation_filenode('s')});
	my $session = $standby->background_psql('postgres', on_error_stop => 0);
	$session->query_safe('BEGIN; DECLARE c CURSOR FOR SELECT * FROM s');
	$session->query_safe('FETCH c');
	on_primary('ALTER SEQUENCE s INCREMENT 2', 'CHECKPOINT');
	catch_up();
	is(stats($standby)->{pending_relations}, 1, "$what: a page is pinned");

	wait_for_nothing($primary);
	$primary->stop;
	set_next_oid($primary, $number);
	$primary->start;
	my $offset = -s $standby->logfile;
	on_primary('TRUNCATE v', 'INSERT INTO v VALUES (1)');
	is( $primary->safe_psql('postgres', q{SELECT pg_relation_filenode('v')}),
		$number,
		"$what: it is that one");
	catch_up();
	is($standby->safe_psql('postgres', 'SELECT a FROM v'),
		1, "$what: replay does not wait for the session");
	ok( $standby->log_contains(
			qr/User was holding shared buffer pin for too long/, $offset),
		"$what: which is a recovery conflict");
	eval { $session->quit };
	wait_for_nothing(@nodes);
}

# --- a stuck read -----------------------------------------------------------

# A canceled scan leaves a read that does not complete.  DROP TABLE waits for it, as in
# stock; a checkpoint does not.
SKIP:
{
	skip 'reads are synchronous', 6 if pg_major() < 18;
	my $what = 'a read that is stuck';
	on_primary($again,
		'CREATE TABLE r AS SELECT generate_series(1, 100000) AS a',
		'ALTER SYSTEM SET io_method = worker');
	$primary->restart;
	my $file = $primary->data_dir . '/'
	  . $primary->safe_psql('postgres', q{SELECT pg_relation_filepath('r')});
	hold_at($primary, 'aio-worker-after-reopen');
	my $scan = $primary->background_psql('postgres', on_error_stop => 0);
	my $pid = $scan->query_safe('SELECT pg_backend_pid()');
	$scan->query_until(qr/begun/,
		"SET max_parallel_workers_per_gather = 0;\n\\echo begun\nSELECT count(*) FROM r;\n"
	);
	$primary->wait_for_event('io worker', 'aio-worker-after-reopen');
	on_primary("SELECT pg_cancel_backend($pid)");
	$primary->poll_query_until('postgres',
		"SELECT state = 'idle' FROM pg_stat_activity WHERE pid = $pid")
	  or die 'the scan was not canceled';

	my $drop = begin_and_wait($primary, 'DROP TABLE r', 'AioIoCompletion');
	ok(-s $file, "$what: DROP TABLE waits, and the file is there");

	my $offset = -s $primary->logfile;
	on_primary("$limit;\nCHECKPOINT");
	like(
		slurp_file($primary->logfile, $offset),
		qr/checkpoint complete/,
		"$what: a checkpoint completes");
	ok(!-s $file, "$what: and the file has not its name any more");

	# DROP DATABASE waits neither for the read nor for the I/O worker.
	on_primary("$limit;\nDROP DATABASE again");
	pass("$what: DROP DATABASE does not wait");

	$primary->wait_for_event('client backend', 'AioIoCompletion');
	release($primary, 'aio-worker-after-reopen');
	ok($drop->quit, "$what: DROP TABLE goes on when it ends");
	$scan->quit;
	wait_for_nothing($primary);
	is_deeply([ hidden_files($primary) ], [], "$what: and nothing is left");
	catch_up();
}

# --- a promotion ------------------------------------------------------------

{
	my $what = 'a promotion while an entry waits';
	on_primary($again);
	catch_up();
	wait_for_nothing(@nodes);
	my $pid = stop_type($standby, 'background writer');
	on_primary('DROP DATABASE again');
	catch_up();
	$standby->promote;
	$standby->poll_query_until('postgres', 'SELECT NOT pg_is_in_recovery()')
	  or die 'the standby was not promoted';
	pass("$what: it is not waited for");
	is_deeply([ database_directories($standby, 90000) ],
		[], "$what: no directory has its name");
	my $session = begin_and_wait($standby, $again, 'LazyDropReuse');
	pass("$what: its OID is not used again");
	continue_process($pid);
	ok($session->quit, "$what: until that process goes on");
	is($standby->safe_psql('again', 'SELECT a FROM t'),
		1, "$what: the new database is there");
	$standby->safe_psql('postgres', 'DROP DATABASE again');
	wait_for_nothing($standby);
	is_deeply([ hidden_files($standby) ], [], "$what: and nothing is left");
}

stop_with_clean_log($_) foreach reverse @nodes;

done_testing();
