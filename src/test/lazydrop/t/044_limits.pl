# Copyright (c) 2026, LazyDrop developers

# What happens at each limit, on a primary and on a standby (see "Limits" in
# the manual): very many relations in one transaction, a set of a hundred thousand
# entries, a set that stays full, a worker that is stopped (SIGSTOP) or cannot start,
# many databases at once, a file system that is full or becomes read-only.  Where the
# server waits, it is shown for what; where stock PostgreSQL does the same, that is
# shown, too, if LAZYDROP_STOCK names an installation of it.
#
# 023_limits.pl, 034_space.pl and 035_stuck.pl have the simpler cases.
#
# LAZYDROP_TORTURE_SECONDS is how long, in all, the set stays full and the worker
# stopped, if that is longer than one round of each takes.  File systems are mounted in a
# user namespace; without one, that part is skipped.

use strict;
use warnings FATAL => 'all';

use Cwd;
use FindBin;
use lib "$FindBin::RealBin/..";
use LazyDropUtils
  qw(stats wait_for_stats hold_at release wait_for_wait wait_until relation_files
  add_segments database_directories dbase_drop_records need_injection_points
  start_quiet_node start_quiet_pair wait_for_nothing);
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(time usleep);

use constant MB => 1024 * 1024;

BEGIN
{
	need_injection_points();
	plan skip_all => 'no SIGSTOP on this platform' if $windows_os;

	# Run this again where file systems can be mounted.
	if (!defined $ENV{LAZYDROP_LIMITS_MOUNT})
	{
		my @unshare = (
			'unshare', '--user',
			'--map-current-user', '--mount',
			'--keep-caps');
		my $directory = Cwd::abs_path(PostgreSQL::Test::Utils::tempdir());
		my $try = 'mount -t tmpfs tmpfs "$0" && mount --bind "$0" "$0"';
		$ENV{LAZYDROP_LIMITS_MOUNT} =
		  system("@unshare sh -c '$try' '$directory' >/dev/null 2>&1") == 0;
		exec(@unshare, $^X, (map { "-I$_" } @INC), $0)
		  if $ENV{LAZYDROP_LIMITS_MOUNT};
	}
}

my $stock = $ENV{LAZYDROP_STOCK};
$stock = undef unless defined $stock && -x "$stock/bin/postgres";
note 'LAZYDROP_STOCK names no installation, so nothing is compared with stock'
  unless defined $stock;

my $seconds = ($ENV{LAZYDROP_TORTURE_SECONDS} || 0) / 2;
my $held = 'lazydrop-worker';

# Processes that are stopped do not stay so when the test ends.
my %stopped;

sub stop_process
{
	my ($pid) = @_;
	kill('STOP', $pid) == 1 or die "could not stop $pid";
	$stopped{$pid} = 1;
	return $pid;
}

sub continue_process
{
	my ($pid) = @_;
	delete $stopped{$pid};
	kill('CONT', $pid) == 1 or die "could not continue $pid";
	return;
}

END
{
	kill('CONT', keys %stopped) if %stopped;
}

my ($primary, $standby) = start_quiet_pair(
	'lazydrop.max_pending' => '100000',
	'log_checkpoints' => 'on',
	'max_connections' => '50',
	'max_locks_per_transaction' => '512',
	'max_prepared_transactions' => '4',
	'max_wal_size' => '8GB');
my @nodes = ($primary, $standby);

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

# Checkpoints and restartpoints that complete.
sub checkpoints
{
	my ($what) = @_;
	foreach my $node (@nodes)
	{
		my $offset = -s $node->logfile;
		catch_up() if $node == $standby;
		$node->safe_psql('postgres', 'CHECKPOINT');
		like(
			slurp_file($node->logfile, $offset),
			qr/(checkpoint|restartpoint) complete/,
			"$what: a checkpoint completes on " . $node->name);
	}
	return;
}

# Counters of all nodes, and how they have changed since.
sub all_stats
{
	return { map { $_->name => stats($_) } @nodes };
}

sub changed
{
	my ($before, $node, $counter) = @_;
	return stats($node)->{$counter} - $before->{ $node->name }{$counter};
}

sub have_changed
{
	my ($before, $changes, $what) = @_;
	foreach my $node (@nodes)
	{
		my $after = stats($node);
		my %got = map { $_ => $after->{$_} - $before->{ $node->name }{$_} }
		  keys %$changes;
		is_deeply(\%got, $changes, "$what: the counters of " . $node->name)
		  or diag explain \%got;
	}
	return;
}

# Both workers come to an injection point, and stop there.
sub workers_are_at
{
	my ($point) = @_;
	catch_up();
	wait_for_wait($_, $point, 'lazy drop worker') foreach @nodes;
	return;
}

# Rows that must stay, read from the disk; and files that belong to nothing.
my $rows = 0;

sub keep_rows
{
	my ($n) = @_;
	on_primary("INSERT INTO kept SELECT generate_series(1, $n)");
	$rows += $n;
	return;
}

sub is_intact
{
	my ($what, $orphans) = @_;
	checkpoints($what);
	foreach my $node (@nodes)
	{
		$node->safe_psql('postgres',
			q{SELECT pg_buffercache_evict_relation('kept')});
		is($node->safe_psql('postgres', 'SELECT count(*) FROM kept'),
			$rows, "$what: rows that were kept on " . $node->name);
		is_deeply([ orphans($node) ],
			[], "$what: no file is left on " . $node->name)
		  if $orphans;
	}
	return;
}

# Files in the directory of the database "postgres" that belong to no relation.
sub orphans
{
	my ($node) = @_;
	my ($oid, @live) = split /\n/, $node->safe_psql(
		'postgres', q{
		SELECT oid FROM pg_database WHERE datname = current_database();
		SELECT pg_relation_filenode(oid) FROM pg_class
		WHERE pg_relation_filenode(oid) IS NOT NULL});
	my %live = map { $_ => 1 } @live;
	opendir(my $dir, $node->data_dir . "/base/$oid")
	  or die "could not open directory: $!";
	my @orphans = grep { /^(\d+)/ && !$live{$1} } readdir($dir);
	closedir($dir);
	return sort @orphans;
}

# Sessions that create, fill and drop a table each, so many times, and keep a row.
my $storm = PostgreSQL::Test::Utils::tempdir() . '/storm.sql';
append_to_file(
	$storm, q{
	CREATE TABLE s:client_id AS SELECT generate_series(1, 100) AS a;
	INSERT INTO kept VALUES (0);
	DROP TABLE s:client_id;
});

sub storm
{
	my ($clients, $n, $what) = @_;
	$primary->command_ok(
		[
			'pgbench', '--no-vacuum',
			'--client' => $clients,
			'--jobs' => 2,
			'--transactions' => $n,
			'--file' => $storm,
			'postgres'
		],
		"$what: sessions go on");
	$rows += $clients * $n;
	catch_up();
	pass("$what: replay goes on");
	return;
}

sub restart_with
{
	my ($settings, $mode) = @_;
	foreach my $node (@nodes)
	{
		# first the primary: a standby must not have fewer of some things
		$node->append_conf('postgresql.conf', "$settings\n");
		$node->stop($mode);
		$node->start;
		catch_up() if $node == $primary && $mode eq 'fast';
	}
	catch_up();
	return;
}

on_primary('CREATE EXTENSION pg_buffercache', 'CREATE TABLE kept (a int)');
keep_rows(1000);

# --- 10,000 relations in one transaction, and a set of 100,000 -------------------------

use constant MANY => 10_000;

sub names
{
	my ($prefix) = @_;
	return join ', ', map { "$prefix$_" } 1 .. MANY;
}

# Some of them with dirty pages.
sub fill_tables
{
	my ($prefix) = @_;
	on_primary(
		qq{DO \$\$ BEGIN
		FOR i IN 1 .. 500 LOOP
			EXECUTE format('INSERT INTO $prefix%s VALUES (1)', i);
		END LOOP;
		END \$\$});
	return;
}

foreach my $prefix ('many', 'other')
{
	on_primary(
		qq{DO \$\$ BEGIN
		FOR i IN 1 .. 10000 LOOP
			EXECUTE format('CREATE TABLE $prefix%s (a int)', i);
			IF i % 1000 = 0 THEN COMMIT; END IF;
		END LOOP;
		END \$\$});
}

# Each TRUNCATE drops, in one transaction, what the tables had.  (Nothing is removed
# meanwhile: some file systems are slow to create files just after many have gone.)
{
	my $before = all_stats();
	my $truncate = 'TRUNCATE ' . names('many');
	my %end = (
		1 => 'COMMIT',
		2 => "PREPARE TRANSACTION 'p';\nCOMMIT PREPARED 'p'");
	my $began = time();
	hold_at($_, $held) foreach @nodes;
	foreach my $round (1 .. 10)
	{
		if ($round == 10)
		{
			fill_tables('many');
			keep_rows(1000);
		}
		on_primary("BEGIN;\n$truncate;\n" . ($end{$round} // 'COMMIT'));
		next unless defined $end{$round};
		workers_are_at($held);
		have_changed(
			$before,
			{
				pending_relations => $round * MANY,
				buried_relations => $round * MANY,
				sync_fallbacks => 0,
				passes => 0
			},
			'10,000 relations in one transaction');
	}

	my $what = 'a set of 100,000';
	catch_up();
	note sprintf('100,000 entries took %.1f s', time() - $began);
	have_changed(
		$before,
		{
			pending_relations => 100_000,
			buried_relations => 100_000,
			sync_fallbacks => 0,
			passes => 0
		},
		"$what, full");

	# Writers tell what is buried from what is not; and nobody needs the worker to have
	# the files gone.
	is_intact("$what, full", 1);
	foreach my $node (@nodes)
	{
		cmp_ok(changed($before, $node, 'writes_skipped'), '>=', 500,
			"$what: pages of what is buried were not written on "
			  . $node->name);
		my $stats = stats($node);
		is( "$stats->{pending_relations} $stats->{pending_files}",
			'100000 0',
			"$what: buffers are pending, and no files");
	}

	# One drop more makes a pass, one for all of them; the worker then makes the one that
	# it is about to make, and one when the files of that drop are gone.
	on_primary('CREATE TABLE more AS SELECT 1 AS a', 'DROP TABLE more');
	catch_up();
	have_changed(
		$before,
		{
			pending_relations => 1,
			buried_relations => 100_001,
			sync_fallbacks => 0,
			passes => 1
		},
		"$what, and one more");
	release($_, $held) foreach @nodes;
	wait_for_nothing(@nodes);
	have_changed(
		$before,
		{ pending_relations => 0, passes => 3 },
		"$what, in the end");
}

# A crash right after 10,000 relations have been dropped.
{
	my $what = '10,000 relations and a crash';
	fill_tables('many');
	hold_at($_, $held) foreach @nodes;
	on_primary("BEGIN;\nDROP TABLE " . names('many') . ";\nCOMMIT");
	keep_rows(1);
	workers_are_at($held);
	is(stats($_)->{pending_relations},
		10_000, "$what: pending on " . $_->name)
	  foreach @nodes;
	restart_with('lazydrop.max_pending = 64', 'immediate');
	wait_for_nothing(@nodes);
	is_intact($what, 1);
}

# More in one transaction than there is room for, and another crash.
{
	my $what = '10,000 relations in a set of 64';
	my $before = all_stats();
	fill_tables('other');
	on_primary("BEGIN;\nDROP TABLE "
		  . names('other')
		  . ";\nPREPARE TRANSACTION 'p';\nCOMMIT PREPARED 'p'");
	keep_rows(1);
	catch_up();
	have_changed(
		$before,
		{
			pending_relations => 0,
			buried_relations => 0,
			sync_fallbacks => 10_000
		},
		$what);
	$_->stop('immediate') foreach @nodes;
	$_->start foreach @nodes;
	is_intact("$what, and a crash", 1);
}

# --- a set that stays full -------------------------------------------------------------------

# Fill it with large files: only the worker removes those.
sub fill_with_files
{
	my @large = map { "large$_" } 1 .. 64;
	on_primary("BEGIN;\n"
		  . join('', map { "CREATE TABLE $_ AS SELECT 1 AS a;\n" } @large)
		  . 'COMMIT');
	my @paths = split /\n/,
	  $primary->safe_psql('postgres',
		q{SELECT pg_relation_filepath(oid) FROM pg_class WHERE relname ~ '^large\d'}
	  );
	catch_up();
	foreach my $node (@nodes)
	{
		hold_at($node, 'lazydrop-removal');
		add_segments($node, $_, 1, 20 * MB) foreach @paths;
	}
	on_primary('DROP TABLE ' . join(', ', @large));
	workers_are_at('lazydrop-removal');
	return @paths;
}

my $until = time() + $seconds;
do
{
	my $what = 'a set full of files';
	my @paths = fill_with_files();
	my $before = all_stats();
	storm(4, 500, $what);
	have_changed(
		$before,
		{
			pending_relations => 0,
			pending_files => 0,
			buried_relations => 0,
			sync_fallbacks => 2000
		},
		$what);
	is(scalar(grep { -e $standby->data_dir . "/$_.1" } @paths),
		64, "$what: it is full on the standby");
	is(stats($_)->{pending_relations},
		64, "$what: and has no room on " . $_->name)
	  foreach @nodes;

	# A checkpoint hides the files; there is room when the worker has removed them.
	is_intact($what, 1);
	is(stats($_)->{pending_relations},
		64, "$what: nor after a checkpoint on " . $_->name)
	  foreach @nodes;
	release($_, 'lazydrop-removal') foreach @nodes;
	wait_for_nothing(@nodes);
	$before = all_stats();
	storm(1, 200, "$what, before");
	have_changed(
		$before,
		{ buried_relations => 200, sync_fallbacks => 0 },
		"$what, before");
	wait_for_nothing(@nodes);
} while (time() < $until);

# --- a worker that is stopped in the middle of its pass -----------------------------------

# It owns all that is in a full set, on both servers.  Whoever is about to create
# something under such a name takes it over after a second, and droppers do after ten.
# Until then they do as stock does.
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

	# The primary buries the database wherever it may have buffers.
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

	# The creator has made room for two entries, so that single drops go on with
	# these; but there is no room for 60 before droppers take the rest over.
	my $buried = all_stats();
	my $tries = 0;
	my $taken_over = sub {
		return !grep { changed($buried, $_, 'buried_relations') < 60 } @nodes;
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
		$node->safe_psql('again',
			q{SELECT pg_buffercache_evict_relation('t')});
		is($node->safe_psql('again', 'SELECT count(*), sum(a) FROM t'),
			'1000|500500',
			"$what: what came back is intact on " . $node->name);
	}
	on_primary('DROP DATABASE again', 'DROP TABLESPACE ts');
	wait_for_nothing(@nodes);
}

# --- a worker that is stopped between two steps of a removal, and within one ------------

# Between two steps, it is in nobody's way.  Within one, the name does not come back, and
# nothing else waits; but replay is one process, and so all that comes after that waits.
# A checkpoint is not held up.
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
	wait_for_wait($_, $point, 'lazy drop worker') foreach @where;
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
		wait_for_wait($standby, 'LazyDropReuse', 'startup');
		is($standby->safe_psql('postgres', 'SELECT count(*) FROM kept'),
			$rows - 1, "$what: replay waits to create the database");
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

# --- a dropper that is stopped -----------------------------------------------------------

# Between its commit and the moment when it hands its files over, a checkpoint waits for
# it: for a session, or the startup process.  So does who drops the tablespace.  Nobody
# else does.
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
	wait_for_wait($node, 'lazydrop-buried');
	my $pid = stop_process(
		$node->safe_psql(
			'postgres',
			q{SELECT pid FROM pg_stat_activity WHERE wait_event = 'lazydrop-buried'}
		));
	release($node, 'lazydrop-buried');
	my $checkpoint = $node->background_psql('postgres');
	$checkpoint->query_until(qr/begun/, "\\echo begun\nCHECKPOINT;\n");
	wait_for_wait($node, 'LazyDropCheckpoint', 'checkpointer');
	pass("$what: a checkpoint waits");
	my $settler;

	if ($node == $primary)
	{
		$settler = $primary->background_psql('postgres');
		$settler->query_until(qr/begun/,
			"\\echo begun\nDROP TABLESPACE ts;\n");
		wait_for_wait($primary, 'LazyDropSettle', 'client backend');
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

# --- a worker that is stopped, and a shutdown ----------------------------------------------

# A fast shutdown waits for any process that is stopped.
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

# DROP DATABASE, and its replay, waits for any process that takes part in barriers; the
# worker does not.
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
	wait_for_wait($node, 'ProcSignalBarrier', $type);
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
	$until = time() + $seconds;
	do
	{
		my $before = all_stats();
		storm(2, 200, $what);
		foreach my $node (@nodes)
		{
			is( changed($before, $node, 'buried_relations') +
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

	# So does who creates something under a name that is pending.
	on_primary(
		'CREATE DATABASE again OID 90000',
		'DROP DATABASE again',
		'CREATE TABLE t AS SELECT 1 AS a');
	my $pid = stop_process(
		$primary->safe_psql(
			'postgres',
			q{SELECT pid FROM pg_stat_activity WHERE backend_type = 'background writer'}
		));
	my $session = $primary->background_psql('postgres');
	$session->query_until(qr/begun/,
		"\\echo begun\nCREATE DATABASE again OID 90000;\n");
	wait_for_wait($primary, 'ProcSignalBarrier', 'client backend');
	pass(
		"$what: CREATE DATABASE of a pending OID waits for a background writer"
	);
	continue_process($pid);
	ok($session->quit, "$what: and goes on when that does");
	on_primary('DROP DATABASE again', 'DROP TABLE t');
	catch_up();
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

	# An immediate one ends what is stopped, too.
	stop_process(stats($primary)->{worker_pid});
	on_primary('CREATE TABLE t AS SELECT 1 AS a', 'DROP TABLE t');
	$primary->stop('immediate');
	$primary->start;
	is_intact("$what, and an immediate shutdown", 1);
}

# The same with stock, for what is said above to be as in stock.
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

# --- 32 databases at once ----------------------------------------------------------------------

{
	my $what = '32 databases at once';
	my $n = 32;
	on_primary((map { "CREATE TABLESPACE ts$_ LOCATION ''" } 1 .. 3),
		'CREATE DATABASE template');
	$primary->safe_psql(
		'template',
		join(
			'',
			map {
				"CREATE TABLE t$_ TABLESPACE ts$_ AS SELECT generate_series(1, 100) AS a;\n"
			} 1 .. 3));
	on_primary(map { "CREATE DATABASE d$_ TEMPLATE template" } 0 .. $n - 1);
	my %name = map { reverse split /\|/ } split /\n/,
	  $primary->safe_psql('postgres',
		q{SELECT oid, datname FROM pg_database WHERE datname ~ '^d\d'});
	my @oids = values %name;
	catch_up();
	wait_for_nothing(@nodes);
	my $before = all_stats();
	hold_at($_, 'lazydrop-removal') foreach @nodes;
	my $script = PostgreSQL::Test::Utils::tempdir() . '/drop.sql';
	append_to_file($script, 'DROP DATABASE d:client_id;');
	my $offset = -s $primary->logfile;
	my $start = $primary->lsn('insert');
	$primary->command_ok(
		[
			'pgbench', '--no-vacuum',
			'--client' => $n,
			'--transactions' => 1,
			'--file' => $script,
			'postgres'
		],
		"$what: they are dropped");
	workers_are_at('lazydrop-removal');
	have_changed(
		$before,
		{
			pending_databases => 4 * $n,
			buried_databases => $n,
			sync_fallbacks => 0,
			passes => 0
		},
		$what);
	my @records =
	  dbase_drop_records($primary, $start, $primary->lsn('flush'));
	is_deeply(
		[ map { scalar(@{ $_->{pairs} }) } @records ],
		[ (4) x $n ],
		"$what: one record each, with four directories");
	unlike(
		slurp_file($primary->logfile, $offset),
		qr/checkpoint starting/,
		"$what: no checkpoint");

	foreach my $node (@nodes)
	{
		is(scalar(map { database_directories($node, $_) } @oids),
			4 * $n, "$what: all directories are there on " . $node->name);
	}
	release($_, 'lazydrop-removal') foreach @nodes;
	wait_for_nothing(@nodes);
	have_changed($before, { passes => 1, sync_fallbacks => 0 }, $what);
	foreach my $node (@nodes)
	{
		is(scalar(map { database_directories($node, $_) } @oids),
			0, "$what: and then they are gone on " . $node->name);
	}
	on_primary('DROP DATABASE template',
		map { "DROP TABLESPACE ts$_" } 1 .. 3);
	is_intact($what, 1);
}

# --- no worker: others have taken what max_worker_processes allows ------------------------------

# A primary drops as stock does.  A standby buries, so that its startup process makes one
# pass for many drops, and removes the files at once.
{
	my $what = 'no worker';
	my %offset = map { $_->name => -s $_->logfile } @nodes;
	restart_with("max_worker_processes = 1\nlazydrop.max_pending = 64",
		'fast');
	foreach my $node (@nodes)
	{
		is(stats($node)->{worker_pid}, undef, "$what on " . $node->name);
		like(
			slurp_file($node->logfile, $offset{ $node->name }),
			qr/too many background workers/,
			"$what: as the log says on " . $node->name);
	}
	my $before = all_stats();
	my $max_pending = 0;
	foreach my $round (1 .. 10)
	{
		storm(2, 25, "$what, round $round");
		my $pending = stats($standby)->{pending_relations};
		$max_pending = $pending if $max_pending < $pending;
	}
	is(changed($before, $primary, 'sync_fallbacks'),
		500, "$what: drops are done as in stock on the primary");
	is(stats($primary)->{pending_relations}, 0, "$what: nothing is pending");
	is(changed($before, $standby, 'buried_relations'),
		500, "$what: drops are buried on the standby");
	is(changed($before, $standby, 'sync_fallbacks'), 0, "$what: all of them");
	cmp_ok($max_pending, '<=', 64, "$what: no more than there is room for");
	cmp_ok($max_pending, '>', 25, "$what: which is used");
	my $passes = changed($before, $standby, 'passes');
	ok($passes >= 6 && $passes <= 8, "$what: one pass for each 64")
	  or diag $passes;

	# Space.
	on_primary('CREATE TABLE large AS SELECT 1 AS a');
	my $path = $primary->safe_psql('postgres',
		q{SELECT pg_relation_filepath('large')});
	catch_up();
	add_segments($_, $path, 2, 20 * MB) foreach @nodes;
	on_primary(
		'CREATE DATABASE again OID 90000',
		'DROP TABLE large',
		'DROP DATABASE again');
	catch_up();
	is_deeply(
		[
			(map { database_directories($_, 90000) } @nodes),
			relation_files($standby, $path)
		],
		[],
		"$what: files go at once");
	is_deeply(
		[
			map { [ $_, -s $primary->data_dir . "/$_" ] }
			  relation_files($primary, $path)
		],
		[ [ $path, 0 ] ],
		"$what: but for an empty one until the next checkpoint, as in stock");
	on_primary('CREATE DATABASE again OID 90000');
	$primary->safe_psql('again', 'CREATE TABLE t AS SELECT 1 AS a');
	catch_up();
	is($standby->safe_psql('again', 'SELECT a FROM t'),
		1, "$what: a name comes back");
	is_intact($what, 1);

	# Crash recovery and promotion.
	storm(1, 10, $what);
	cmp_ok(stats($standby)->{pending_relations},
		'>', 0, "$what: something is pending on the standby");
	$_->stop('immediate') foreach @nodes;
	$_->start foreach @nodes;
	storm(1, 10, "$what, after a crash");
	is_intact("$what, after a crash", 1);
	cmp_ok(stats($standby)->{pending_relations},
		'>', 0, "$what: something is pending before promotion");
	$primary->stop;
	$standby->promote;
	is(stats($standby)->{pending_relations},
		0, "$what: and nothing is after it");
	@nodes = ($standby);
	$standby->safe_psql('postgres',
		"CREATE TABLE t AS SELECT 1 AS a;\nDROP TABLE t");
	is(stats($standby)->{pending_relations}, 0, "$what: nor is it later on");
	is($standby->safe_psql('postgres', 'SELECT count(*) FROM kept'),
		$rows, "$what: rows are there");
	$standby->stop;
	unlike(
		slurp_file($_->logfile),
		qr/PANIC|could not (open file|read|fsync|write)|invalid page|TRAP/,
		'the log is clean on ' . $_->name) foreach ($primary, $standby);
}

# --- file systems ----------------------------------------------------------------------------

if (!$ENV{LAZYDROP_LIMITS_MOUNT})
{
  SKIP:
	{
		skip 'cannot mount file systems here', 1;
	}
	done_testing();
	exit;
}

my %mounted;
my @nodes_there;

sub mount
{
	my ($target, @arguments) = @_;
	system_or_bail('mount', @arguments, $target);
	push @{ $mounted{$target} }, 1;
	return;
}

sub unmount
{
	foreach my $target (@_)
	{
		system_or_bail('umount', $target) foreach @{ $mounted{$target} };
		delete $mounted{$target};
	}
	return;
}

# What remains would keep the directory from being removed; and a server whose directory
# is hidden could not be stopped.
END
{
	my $status = $?;
	foreach my $node (@nodes_there)
	{
		$node->teardown_node(fail_ok => 1);
	}
	foreach my $target (keys %mounted)
	{
		system('umount', '--lazy', $target) foreach @{ $mounted{$target} };
	}
	$? = $status;
}

# Whatever is opened from now on for writing cannot be: but for the top directory, in
# which the server is, and for files that it has open.
sub make_read_only
{
	my (@directories) = @_;
	foreach my $directory (@directories)
	{
		mount($directory, '--bind', $directory);
		system_or_bail('mount', '-o', 'remount,bind,ro', $directory);
	}
	return;
}

sub new_node
{
	my ($name, $install) = @_;
	my $node = PostgreSQL::Test::Cluster->new($name,
		$install eq 'stock' ? (install_path => $stock) : ());
	$node->init;
	$node->append_conf(
		'postgresql.conf', q{
		allow_in_place_tablespaces = on
		autovacuum = off
		checkpoint_timeout = 1h
		lazydrop.pass_delay = 1min});
	push @nodes_there, $node;
	$node->start;
	return $node;
}

# --- everything is read-only at shutdown --------------------------------------------------------

# Which fails, as in stock, but ends; and the next start removes what was dropped.
foreach
  my $case ([ 'LazyDrop', 'all' ], [ 'LazyDrop', 'base' ], [ 'stock', 'all' ])
{
	my ($install, $which) = @$case;
	my $what = "read-only at shutdown, $install, $which";
  SKIP:
	{
		skip 'no installation of stock PostgreSQL', 5
		  if $install eq 'stock' && !defined $stock;
		my $node = new_node("read_only_${which}_$install", $install);
		$node->safe_psql(
			'postgres', q{
			CREATE TABLE kept AS SELECT generate_series(1, 1000) AS a;
			CREATE TABLE t (a int PRIMARY KEY);
			INSERT INTO t SELECT generate_series(1, 1000);
			CREATE DATABASE d;
			CHECKPOINT;
			INSERT INTO t SELECT generate_series(1001, 2000);
			INSERT INTO kept SELECT generate_series(1001, 2000)});
		my $oid = $node->safe_psql('postgres',
			q{SELECT oid FROM pg_database WHERE datname = 'd'});
		my $path =
		  $node->safe_psql('postgres', q{SELECT pg_relation_filepath('t')});
		$node->safe_psql('postgres', "DROP TABLE t;\nDROP DATABASE d");
		cmp_ok(-s $node->data_dir . "/$path",
			'>', 0, "$what: files are pending")
		  if $install ne 'stock';
		my @directories =
		  grep { -d }
		  glob(
			"'@{[ $node->data_dir ]}'/" . ($which eq 'all' ? '*' : $which));
		make_read_only(@directories);
		my $offset = -s $node->logfile;
		ok($node->stop('fast', fail_ok => 1), "$what: it stops");
		like(
			slurp_file($node->logfile, $offset),
			qr/(PANIC|FATAL|ERROR): .*Read-only file system/,
			"$what: with an error");
		unmount(@directories);
		$node->start;
		like(
			slurp_file($node->logfile, $offset),
			qr/automatic recovery in progress/,
			"$what: the next start recovers");
		is( $node->safe_psql(
				'postgres', "CHECKPOINT;\nSELECT count(*) FROM kept"),
			2000,
			"$what: rows are there");
		is_deeply([ orphans($node), database_directories($node, $oid) ],
			[], "$what: and no file is left");
		$node->stop;
	}
}

# --- a tablespace is read-only -----------------------------------------------------------------

# Files there cannot be removed, and stay; the log has their names.  That does not keep
# the server from a clean shutdown.  In stock, the drop is a PANIC.
foreach my $case (
	[ 'LazyDrop', 'at shutdown' ],
	[ 'LazyDrop', 'at the drop' ],
	[ 'stock', 'at the drop' ])
{
	my ($install, $when) = @$case;
	my $what = "a tablespace that is read-only $when, $install";
  SKIP:
	{
		skip 'no installation of stock PostgreSQL', 1
		  if $install eq 'stock' && !defined $stock;
		my $node =
		  new_node('tablespace_' . $when =~ s/ /_/gr . "_$install", $install);
		$node->safe_psql('postgres', $_)
		  foreach (
			q{CREATE TABLESPACE ts LOCATION ''},
			'CREATE TABLE t TABLESPACE ts AS SELECT generate_series(1, 1000) AS a',
			'VACUUM t',
			'CHECKPOINT');
		my $path =
		  $node->safe_psql('postgres', q{SELECT pg_relation_filepath('t')});
		my $directory = $node->data_dir . '/pg_tblspc';
		my @files = relation_files($node, $path);
		make_read_only($directory) if $when eq 'at the drop';
		if ($install eq 'stock')
		{
			$node->psql('postgres', 'DROP TABLE t');
			$node->wait_for_log(
				qr/PANIC:  cannot abort transaction \d+, it was already committed/
			);
			pass("$what: PANIC");
			wait_until(sub { !-e $node->data_dir . '/postmaster.pid' });
			$node->_update_pid(0);
			unmount($directory);
			next;
		}
		cmp_ok(scalar(@files), '>=', 3, "$what: a table with files");
		$node->safe_psql('postgres', 'DROP TABLE t');
		make_read_only($directory) if $when eq 'at shutdown';
		ok($node->stop('fast', fail_ok => 1), "$what: the server stops");
		my $log = slurp_file($node->logfile);
		unlike(
			$log,
			qr/PANIC|abnormal database system shutdown/,
			"$what: with a clean shutdown");
		is_deeply([ relation_files($node, $path) ],
			\@files, "$what: files stay");
		my @unnamed =
		  grep { $log !~ /could not (remove|truncate) file "\Q$_\E"/ } @files;
		is_deeply(\@unnamed, [], "$what: and the log has their names");
		unmount($directory);
	}
}

# --- a disk that is full ---------------------------------------------------------------------

# Have a directory on a small file system of its own.
sub onto_small_disk
{
	my ($directory, $megabytes) = @_;
	my $new = PostgreSQL::Test::Utils::tempdir();
	mount($new, '-t', 'tmpfs', '-o', "size=${megabytes}m,mode=0700", 'tmpfs');
	system_or_bail('cp', '-a', "$directory/.", $new);
	mount($directory, '--bind', $new);
	return;
}

# Use all of its space but so many megabytes.
sub fill_disk
{
	my ($directory, $megabytes) = @_;
	my $name = "$directory/filler";
	open(my $file, '>', $name) or die "could not create $name: $!";
	$file->autoflush(1);
	my $block = "\0" x 65536;
	while (print $file $block) { }
	my $size = -s $name;
	close($file);
	truncate($name, $size - $megabytes * MB)
	  or die "could not truncate $name: $!";
	return;
}

sub empty_disk
{
	my ($directory) = @_;
	unlink("$directory/filler") == 1 or die "could not remove filler: $!";
	return;
}

{
	my $source = start_quiet_node(
		'source',
		'max_wal_size' => '4GB',
		'wal_keep_size' => '1GB',
		'wal_recycle' => 'off');
	$source->safe_psql('postgres', 'CREATE EXTENSION injection_points');
	$source->backup('backup');
	my $full = PostgreSQL::Test::Cluster->new('full');
	$full->init_from_backup($source, 'backup', has_streaming => 1);
	my $disk = $full->data_dir;
	# WAL finds no space when it is written, not when its file is made.
	$full->append_conf('postgresql.conf',
		"wal_keep_size = 0\nwal_init_zero = off\n");
	onto_small_disk($disk, 400);
	push @nodes_there, $full;
	$full->start;
	my $log_is = sub {
		my ($pattern, $what, $offset) = @_;
		unlike(slurp_file($full->logfile, $offset), $pattern, $what);
		return;
	};

	# Something large that is dropped, and is there.
	my $drop_large = sub {
		my ($node, $megabytes) = @_;
		$node->safe_psql('postgres', 'CREATE TABLE large (a int)');
		my $path = $node->safe_psql('postgres',
			q{SELECT pg_relation_filepath('large')});
		$source->wait_for_replay_catchup($full) if $node == $source;
		hold_at($full, 'lazydrop-removal');
		open(my $file, '>', "$disk/$path.1")
		  or die "could not create a file: $!";
		print $file 'x' x MB foreach 1 .. $megabytes;
		close($file) or die "could not write a file: $!";
		$node->safe_psql('postgres', 'DROP TABLE large');
		$source->wait_for_replay_catchup($full) if $node == $source;
		wait_for_wait($full, 'lazydrop-removal', 'lazy drop worker');
		return "$disk/$path.1";
	};
	my $rows = sub {
		my ($n) = @_;
		return qq{SELECT repeat('x', 1000) AS a FROM generate_series(1, $n)};
	};

	# WAL that is received: replay is held up meanwhile.
	my $what = 'a full disk on a standby';
	$drop_large->($source, 180);
	fill_disk($disk, 4);
	my $offset = -s $full->logfile;
	my $pending = stats($full)->{pending_bytes};
	cmp_ok($pending, '>=', 180 * MB, "$what: files are pending");
	$full->safe_psql('postgres', 'SELECT pg_wal_replay_pause()');
	$source->safe_psql('postgres', 'CREATE TABLE t AS ' . $rows->(60000));
	my $end = $source->lsn('flush');
	$full->poll_query_until('postgres',
		"SELECT pg_last_wal_receive_lsn() >= '$end'")
	  or die 'WAL was not received';
	my $left = stats($full)->{pending_bytes};
	cmp_ok(
		$left, '<=',
		$pending - 40 * MB,
		"$what: WAL that is received takes their space");

	# Blocks that are replayed.
	fill_disk($disk, 4);
	$full->safe_psql('postgres', 'SELECT pg_wal_replay_resume()');
	$source->wait_for_replay_catchup($full);
	cmp_ok(
		stats($full)->{pending_bytes},
		'<=',
		$left - 40 * MB,
		"$what: and so does replay");
	is($full->safe_psql('postgres', 'SELECT count(*) FROM t'),
		60000, "$what: which goes on");
	$log_is->(
		qr/PANIC|FATAL|ERROR|WARNING|No space/,
		"$what: the log is clean", $offset);
	release($full, 'lazydrop-removal');
	wait_for_nothing($full);

	# A database that is copied.
	empty_disk($disk);
	$source->safe_psql('postgres', 'CHECKPOINT');
	$source->wait_for_replay_catchup($full);
	$full->safe_psql('postgres', 'CHECKPOINT');
	$source->safe_psql('postgres', 'CREATE DATABASE template');
	$source->safe_psql('template', 'CREATE TABLE t AS ' . $rows->(20000));
	$drop_large->($source, 60);
	fill_disk($disk, 1);
	$source->safe_psql('postgres',
		'CREATE DATABASE copy TEMPLATE template STRATEGY file_copy');
	$end = $source->lsn('flush');
	my $replayed;
	wait_until(
		sub {
			$replayed = '';
			$full->psql(
				'postgres',
				"SELECT pg_last_wal_replay_lsn() >= '$end'",
				stdout => \$replayed);
			return $replayed eq 't' || !-e "$disk/postmaster.pid";
		});
	is($replayed, 't', "$what: so does replay of a copy");
	empty_disk($disk);
	release($full, 'lazydrop-removal');
	$source->wait_for_replay_catchup($full);
	is($full->safe_psql('copy', 'SELECT count(*) FROM t'),
		20000, "$what: the copy is there");
	wait_for_nothing($full);

	# When there is no more, replay ends, and with it the server, as in stock.  It goes
	# on when there is space.
	$full->safe_psql('postgres', 'SELECT pg_wal_replay_pause()');
	$source->safe_psql('postgres', 'CREATE TABLE u AS ' . $rows->(20000));
	$end = $source->lsn('flush');
	$full->poll_query_until('postgres',
		"SELECT pg_last_wal_receive_lsn() >= '$end'")
	  or die 'WAL was not received';
	fill_disk($disk, 0);
	$offset = -s $full->logfile;
	$full->psql('postgres', 'SELECT pg_wal_replay_resume()');
	ok( wait_until(sub { !-e "$disk/postmaster.pid" }),
		"$what: the server stops when nothing is left to remove");
	$full->_update_pid(0);
	like(
		slurp_file($full->logfile, $offset),
		qr/FATAL: .*could not extend file .*No space left on device/,
		"$what: which the log tells");
	empty_disk($disk);
	$full->start;
	$source->wait_for_replay_catchup($full);
	is($full->safe_psql('postgres', 'SELECT count(*) FROM u'),
		20000, "$what: and goes on when there is space");

	# Promotion.
	$what = 'promotion on a full disk';
	my $file = $drop_large->($source, 60);
	fill_disk($disk, 0);
	$offset = -s $full->logfile;
	$full->promote;
	ok(!-e $file, "$what: what is pending is removed");
	is($full->safe_psql('postgres', 'SELECT count(*) FROM u'),
		20000, "$what: rows are there");
	release($full, 'lazydrop-removal');
	wait_for_nothing($full);
	$source->stop;

	# Crash recovery.  Little is needed before it removes anything.
	$what = 'crash recovery on a full disk';
	empty_disk($disk);
	$full->safe_psql('postgres', 'CHECKPOINT');
	$full->safe_psql('postgres', 'CREATE TABLE v AS ' . $rows->(20000));
	$file = $drop_large->($full, 60);
	fill_disk($disk, 1);
	$full->stop('immediate');
	$full->start;
	wait_for_nothing($full);
	ok(!-e $file, "$what: what was pending is removed");
	is($full->safe_psql('postgres', 'SELECT count(*) FROM v'),
		20000, "$what: rows are there");
	empty_disk($disk);
	$full->safe_psql('postgres', 'CHECKPOINT');
	is_deeply([ orphans($full) ], [], "$what: no file is left");
	$log_is->(qr/PANIC|TRAP|WARNING/, "$what: the log is clean", $offset);

	# WAL that has no space set aside.
	$what = 'a full disk and wal_init_zero = off';
	$full->restart;
	$drop_large->($full, 60);
	fill_disk($disk, 4);
	my ($ret, $out, $err) = $full->psql('postgres',
		q{SELECT count(pg_logical_emit_message(false, 'x', repeat('x', 1000000))) FROM generate_series(1, 40)}
	);
	is($ret, 0, "$what: there is space for WAL");
	release($full, 'lazydrop-removal');
	$full->stop;
	unmount($disk);
}

done_testing();
