# Copyright (c) 2026, LazyDrop developers

# The worker is stopped (SIGSTOP) in its pass, in a removal, between two steps of a
# removal, or while it is idle; and a dropper is stopped after its commit, before it hands
# over its files.  The test does this on a primary and on a standby.  If the server waits,
# the test shows the reason.  If LAZYDROP_STOCK is an installation of stock PostgreSQL,
# the test also shows where stock waits.
#
# If LAZYDROP_TORTURE_SECONDS is longer than two rounds take, the idle worker stays
# stopped for half of that time.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/..";
use LazyDropFiles qw(database_directories);
use LazyDropPair
  qw(start_pair on_primary catch_up checkpoints all_stats changed workers_are_at keep_rows
  kept_rows is_intact storm);
use LazyDropUtils
  qw(stats wait_for_stats hold_at release wait_until stop_process
  continue_process need_injection_points wait_for_nothing evict);
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(time usleep);

need_injection_points();
plan skip_all => 'no SIGSTOP on this platform' if $windows_os;

my $seconds = ($ENV{LAZYDROP_TORTURE_SECONDS} || 0) / 2;
my $held = 'lazydrop-worker';
my $stock = $ENV{LAZYDROP_STOCK};
note 'LAZYDROP_STOCK names no installation, so nothing is compared with stock'
  unless defined $stock;

my ($primary, $standby) = start_pair(
	'lazydrop.lookup_limit' => '0',
	'lazydrop.max_pending' => '64',
	'log_checkpoints' => 'on');
my @nodes = ($primary, $standby);
keep_rows(1000);

# --- a worker stopped in the middle of its pass -----------------------------

# The worker owns all entries of a full set, on both servers.  A process that creates
# storage under such a name takes the entry over after one second, and a dropper takes
# entries over after ten.  Until then, droppers do the same as stock.
{
	my $what = 'stopped in a pass';
	on_primary(
		q{CREATE TABLESPACE ts LOCATION ''},
		'CREATE DATABASE again OID 90000 TABLESPACE ts',
		"BEGIN;\n"
		  . join('', map { "CREATE TABLE small$_ (a int);\n" } 1 .. 61)
		  . 'COMMIT');
	catch_up();
	hold_at($_, $held) foreach @nodes;
	on_primary('DROP DATABASE again',
		'DROP TABLE ' . join(', ', map { "small$_" } 1 .. 61));
	workers_are_at($held);

	# The primary buries the database in each tablespace in which it may have buffers.
	is(stats($primary)->{pending_databases},
		2, "$what: two directories on the primary");
	is(stats($standby)->{pending_databases},
		1, "$what: of which the standby had one");
	on_primary('CREATE TABLE small62 AS SELECT 1', 'DROP TABLE small62');
	catch_up();
	hold_at($_, 'lazydrop-pass') foreach @nodes;
	my $owned_after = time();
	release($_, $held) foreach @nodes;
	workers_are_at('lazydrop-pass');
	my @workers = map { stop_process(stats($_)->{worker_pid}) } @nodes;
	release($_, 'lazydrop-pass') foreach @nodes;

	my $fallbacks = all_stats();
	storm(1, 10, $what);
	foreach my $node (@nodes)
	{
		my $n = changed($fallbacks, $node, 'sync_fallbacks');
		if (time() - $owned_after < 10)
		{
			cmp_ok($n, '>=', 9,
				"$what: drops are done as in stock on " . $node->name);
		}
		else
		{
			note "too late to see drops done as in stock: $n";
		}
	}
	checkpoints($what);

	on_primary('CREATE DATABASE again OID 90000 TABLESPACE ts');
	$primary->safe_psql('again',
		'CREATE TABLE t AS SELECT generate_series(1, 1000) AS a');
	catch_up();
	pass("$what: a name comes back");

	# The creator has made room for two entries, so single drops can use these.  There is
	# no room for 60 until droppers take over the rest.
	my $buried = all_stats();
	my $tries = 0;
	my $taken_over = sub {
		return !grep { changed($buried, $_, 'deferred_relations') < 60 }
		  @nodes;
	};
	while (!$taken_over->()
		&& $tries++ < 2 * $PostgreSQL::Test::Utils::timeout_default)
	{
		on_primary(
			"BEGIN;\n"
			  . join('', map { "CREATE TABLE small$_ (a int);\n" } 1 .. 60)
			  . 'COMMIT',
			'DROP TABLE ' . join(', ', map { "small$_" } 1 .. 60));
		catch_up();
		usleep(500_000);
	}
	ok($taken_over->(), "$what: droppers take over, after a while");
	cmp_ok(time() - $owned_after, '>=', 10, "$what: but not before");
	checkpoints("$what, and taken over");

	continue_process($_) foreach @workers;
	wait_for_nothing(@nodes);
	is_intact("$what, and continued", 1);
	foreach my $node (@nodes)
	{
		$node->safe_psql('again',
			'CREATE EXTENSION IF NOT EXISTS pg_buffercache')
		  if $node == $primary;
		catch_up();
		evict($node, 'again', 't');
		is($node->safe_psql('again', 'SELECT count(*), sum(a) FROM t'),
			'1000|500500',
			"$what: what came back is intact on " . $node->name);
	}
	on_primary('DROP DATABASE again', 'DROP TABLESPACE ts');
	wait_for_nothing(@nodes);
}

# --- a worker stopped between two steps of a removal, and within a step -----

# Between two steps, no process waits for the worker.  Within a step, only a process that
# creates storage under the name waits.  If this is replay, which is a single process, all
# later records wait, too.  A checkpoint does not wait.
foreach my $point ('lazydrop-removal-step', 'lazydrop-step')
{
	my $what = "stopped at $point";
	my $within = $point eq 'lazydrop-step';
	on_primary(q{CREATE TABLESPACE ts LOCATION ''},
		'CREATE DATABASE again OID 90000 TABLESPACE ts');
	catch_up();
	my @where = $within ? ($standby) : @nodes;
	hold_at($_, $point) foreach @where;
	on_primary('DROP DATABASE again');
	catch_up();
	$_->wait_for_event('lazy drop worker', $point) foreach @where;
	my @workers = map { stop_process(stats($_)->{worker_pid}) } @where;
	release($_, $point) foreach @where;

	on_primary('CREATE TABLE t AS SELECT 1 AS a', 'DROP TABLE t');
	catch_up();
	checkpoints($what);
	is_deeply([ map { database_directories($_, 90000) } @nodes ],
		[], "$what: checkpoints leave no name of what it was at");
	on_primary('CHECKPOINT', 'CREATE TABLE t AS SELECT 1 AS a',
		'DROP TABLE t');
	on_primary('CREATE DATABASE again OID 90000 TABLESPACE ts');
	$primary->safe_psql('again',
		'CREATE TABLE t AS SELECT generate_series(1, 1000) AS a');
	keep_rows(1);

	if ($within)
	{
		$standby->wait_for_event('startup', 'LazyDropReuse');
		is( $standby->safe_psql('postgres', 'SELECT count(*) FROM kept'),
			kept_rows() - 1,
			"$what: replay waits to create the database");
		my $offset = -s $standby->logfile;
		$standby->safe_psql('postgres', 'CHECKPOINT');
		like(
			slurp_file($standby->logfile, $offset),
			qr/restartpoint complete/,
			"$what: which a restartpoint does not");
	}
	else
	{
		catch_up();
		pass("$what: a name comes back");
	}
	continue_process($_) foreach @workers;
	catch_up();
	wait_for_nothing(@nodes);
	is_intact("$what, and continued", 1);
	is($_->safe_psql('again', 'SELECT count(*), sum(a) FROM t'),
		'1000|500500', "$what: what came back is intact on " . $_->name)
	  foreach @nodes;
	on_primary('DROP DATABASE again', 'DROP TABLESPACE ts');
	wait_for_nothing(@nodes);
}

# --- a stopped dropper ------------------------------------------------------

# A checkpoint waits for a session or startup process that is between its commit and the
# time at which it hands over its files.  DROP TABLESPACE waits, too.  No other process
# does.
foreach my $node (@nodes)
{
	my $what = 'a dropper that is stopped on ' . $node->name;
	on_primary(q{CREATE TABLESPACE ts LOCATION ''},
		'CREATE TABLE t TABLESPACE ts AS SELECT 1 AS a');
	checkpoints($what);
	on_primary('CHECKPOINT');
	catch_up();
	hold_at($node, 'lazydrop-buried');
	my $session = $primary->background_psql('postgres');
	$session->query_until(qr/begun/, "\\echo begun\nDROP TABLE t;\n");
	$node->wait_for_event($node == $primary ? 'client backend' : 'startup',
		'lazydrop-buried');
	my $pid = stop_process(
		$node->safe_psql(
			'postgres',
			q{SELECT pid FROM pg_stat_activity WHERE wait_event = 'lazydrop-buried'}
		));
	release($node, 'lazydrop-buried');
	my $checkpoint = $node->background_psql('postgres');
	$checkpoint->query_until(qr/begun/, "\\echo begun\nCHECKPOINT;\n");
	$node->wait_for_event('checkpointer', 'LazyDropCheckpoint');
	pass("$what: a checkpoint waits");
	my $settler;

	if ($node == $primary)
	{
		$settler = $primary->background_psql('postgres');
		$settler->query_until(qr/begun/,
			"\\echo begun\nDROP TABLESPACE ts;\n");
		$primary->wait_for_event('client backend', 'LazyDropSettle');
		pass("$what: DROP TABLESPACE waits");
	}
	on_primary('CREATE TABLE u AS SELECT 1 AS a', 'DROP TABLE u');
	pass("$what: others do not");
	continue_process($pid);
	ok($_->quit, "$what: and then goes on")
	  foreach ($session, $checkpoint, $settler // ());
	on_primary('DROP TABLESPACE ts') unless $settler;
	catch_up();
	wait_for_nothing(@nodes);
}

# --- a stopped worker, and a shutdown ---------------------------------------

# A fast shutdown waits for any stopped process.
sub shutdown_waits_for
{
	my ($node, $pid, $what) = @_;
	my $offset = -s $node->logfile;
	stop_process($pid);
	$node->command_ok(
		[
			'pg_ctl', '--no-wait',
			'--mode' => 'fast',
			'--pgdata' => $node->data_dir,
			'stop'
		],
		"$what begins");
	$node->wait_for_log(qr/aborting any active transactions/, $offset);
	my $shutting_down = 0;
	for (my $i = 0; $i < 100 && !$shutting_down; $i++)
	{
		usleep(10_000);
		$shutting_down =
		  slurp_file($node->logfile, $offset) =~ /LOG:  shutting down/;
	}
	ok(!$shutting_down, "$what waits for it");
	continue_process($pid);
	ok(wait_until(sub { !-e $node->data_dir . '/postmaster.pid' }),
		"$what ends when it goes on");
	$node->_update_pid(0);
	$node->wait_for_log(qr/database system is shut down/, $offset);
	pass("$what is complete then");
	return;
}

# If DROP DATABASE or its replay finds the set full, it removes the directory itself.  It
# then waits for any stopped process that takes part in barriers.  (Otherwise, see t/028.)
# The worker does not take part.
sub drop_waits_for_bgwriter
{
	my ($node, $sql_node, $type, $what) = @_;
	my $pid = stop_process(
		$node->safe_psql(
			'postgres',
			q{SELECT pid FROM pg_stat_activity WHERE backend_type = 'background writer'}
		));
	$sql_node->safe_psql('postgres',
		"CREATE TABLE x AS SELECT 1 AS a;\nDROP TABLE x");
	$sql_node->wait_for_replay_catchup($node) if $node != $sql_node;
	my $session = $sql_node->background_psql('postgres');
	$session->query_until(qr/begun/, "\\echo begun\nDROP DATABASE d;\n");
	$node->wait_for_event($type, 'ProcSignalBarrier');
	pass(
		"$what waits for a background writer that is stopped, and DROP TABLE does not"
	);
	continue_process($pid);
	ok($session->quit, "$what goes on when that does");
	return;
}

{
	my $what = 'stopped when idle';
	wait_for_stats($_, q{(s->>'worker_pid') IS NOT NULL}) foreach @nodes;
	my @workers = map { stop_process(stats($_)->{worker_pid}) } @nodes;
	my $until = time() + $seconds;
	do
	{
		my $before = all_stats();
		storm(2, 200, $what);
		foreach my $node (@nodes)
		{
			is( changed($before, $node, 'deferred_relations') +
				  changed($before, $node, 'sync_fallbacks'),
				400,
				"$what: drops are counted on " . $node->name);
			cmp_ok(stats($node)->{pending_relations},
				'<=', 64,
				"$what: not too many are pending on " . $node->name);
		}
		is_intact($what, 1);
	} while (time() < $until);
	on_primary(
		q{CREATE TABLESPACE ts LOCATION ''},
		'CREATE TABLE t TABLESPACE ts AS SELECT 1 AS a',
		'CREATE DATABASE d TABLESPACE ts',
		'DROP TABLE t',
		'DROP DATABASE d',
		'DROP TABLESPACE ts',
		'CREATE DATABASE d');
	catch_up();
	pass("$what: DROP DATABASE and DROP TABLESPACE go on, also in replay");

	foreach my $node (@nodes)
	{
		drop_waits_for_bgwriter(
			$node, $primary,
			$node == $primary ? 'client backend' : 'startup',
			'DROP DATABASE on ' . $node->name);
		catch_up();
		on_primary('CREATE DATABASE d');
		catch_up();
	}
	is_intact($what, 1);

	continue_process($_) foreach @workers;
	wait_for_nothing(@nodes);
	stop_process(stats($_)->{worker_pid}) foreach @nodes;
	on_primary(
		'CREATE TABLE t AS SELECT 1 AS a',
		'DROP TABLE t',
		'DROP DATABASE d');
	catch_up();
	is(stats($_)->{pending_relations}, 1, "$what: pending on " . $_->name)
	  foreach @nodes;
	shutdown_waits_for(
		$_,
		stats($_)->{worker_pid},
		"$what: a fast shutdown of " . $_->name) foreach reverse @nodes;

	foreach my $node (@nodes)
	{
		$node->append_conf('postgresql.conf', 'lazydrop.max_pending = 16384');
		$node->start;
	}
	is_intact("$what, and restarted", 1);

	# An immediate shutdown ends stopped processes, too.
	stop_process(stats($primary)->{worker_pid});
	on_primary('CREATE TABLE t AS SELECT 1 AS a', 'DROP TABLE t');
	$primary->stop('immediate');
	$primary->start;
	is_intact("$what, and an immediate shutdown", 1);
}

# Check that stock waits in the same places.
SKIP:
{
	skip 'no installation of stock PostgreSQL', 6 unless defined $stock;
	my $node =
	  PostgreSQL::Test::Cluster->new('stock', install_path => $stock);
	$node->init;
	$node->start;
	$node->safe_psql('postgres', 'CREATE DATABASE d');
	drop_waits_for_bgwriter(
		$node, $node,
		'client backend',
		'DROP DATABASE in stock');
	shutdown_waits_for(
		$node,
		$node->safe_psql(
			'postgres',
			q{SELECT pid FROM pg_stat_activity WHERE backend_type = 'logical replication launcher'}
		),
		'stopped when idle: a fast shutdown of stock');
}

done_testing();
