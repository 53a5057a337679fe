# Copyright (c) 2026, LazyDrop developers

# Very many drops at once, on a primary and on a standby: 10,000 relations in one
# transaction, a set of 100,000 entries, a set that stays full, and 32 databases.
# (Simpler cases are in 023_limits.pl.)
#
# If LAZYDROP_TORTURE_SECONDS is longer than two rounds take, the set stays full for half
# of that time.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/..";
use LazyDropFiles qw(add_segments database_directories dbase_drop_records);
use LazyDropPair
  qw(start_pair on_primary catch_up all_stats changed have_changed workers_are_at keep_rows
  is_intact storm restart_with);
use LazyDropUtils
  qw(stats hold_at release need_injection_points wait_for_nothing);
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(time);

need_injection_points();

use constant MB => 1024 * 1024;

my $seconds = ($ENV{LAZYDROP_TORTURE_SECONDS} || 0) / 2;
my $held = 'lazydrop-worker';
my ($primary, $standby) = start_pair(
	'lazydrop.lookup_limit' => '0',
	'lazydrop.max_pending' => '100000',
	'log_checkpoints' => 'on',
	'max_connections' => '50',
	'max_locks_per_transaction' => '512',
	'max_prepared_transactions' => '4',
	'max_wal_size' => '8GB');
my @nodes = ($primary, $standby);
keep_rows(1000);

# --- 10,000 relations in one transaction, and a set of 100,000 --------------

use constant MANY => 10_000;

sub names
{
	my ($prefix) = @_;
	return join ', ', map { "$prefix$_" } 1 .. MANY;
}

# Give some of the tables dirty pages.
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

# Each TRUNCATE drops the former files of all tables in one transaction.  (The worker
# removes nothing meanwhile, because some file systems create files slowly just after many
# have been removed.)
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
				deferred_relations => $round * MANY,
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
			deferred_relations => 100_000,
			sync_fallbacks => 0,
			passes => 0
		},
		"$what, full");

	# Processes that write buffers recognize buried relations; and a checkpoint frees
	# their file names without the worker.
	is_intact("$what, full", 1);
	foreach my $node (@nodes)
	{
		cmp_ok(changed($before, $node, 'writes_skipped'), '>=', 500,
			"$what: pages of what is buried were not written on "
			  . $node->name);
		my $stats = stats($node);
		is( "$stats->{pending_relations} $stats->{pending_files}",
			'100000 500',
			"$what: buffers are pending, and files of those that have some");
	}

	# One more drop makes one pass for all entries, which leaves the entries that have
	# files.  The worker then makes the pass that it is about to make, and another one
	# after it has removed the files.
	on_primary('CREATE TABLE more AS SELECT 1 AS a', 'DROP TABLE more');
	catch_up();
	have_changed(
		$before,
		{
			pending_relations => 501,
			deferred_relations => 100_001,
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

# Crash right after 10,000 relations have been dropped.
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

# Drop more relations in one transaction than the set has room for, and crash again.
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
			deferred_relations => 0,
			sync_fallbacks => 10_000
		},
		$what);
	$_->stop('immediate') foreach @nodes;
	$_->start foreach @nodes;
	is_intact("$what, and a crash", 1);
}

# --- a set that stays full --------------------------------------------------

# Fill the set with large files, because only the worker removes these.
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
			deferred_relations => 0,
			sync_fallbacks => 2000
		},
		$what);
	is(scalar(grep { -e $standby->data_dir . "/$_.1" } @paths),
		64, "$what: it is full on the standby");
	is(stats($_)->{pending_relations},
		64, "$what: and has no room on " . $_->name)
	  foreach @nodes;

	# A checkpoint hides the files.  There is room only after the worker has removed them.
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
		{ deferred_relations => 200, sync_fallbacks => 0 },
		"$what, before");
	wait_for_nothing(@nodes);
} while (time() < $until);

# --- 32 databases at once ---------------------------------------------------

{
	my $what = '32 databases at once';
	my $n = 32;
	restart_with('lazydrop.max_pending = 16384', 'fast');
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
			deferred_databases => $n,
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

done_testing();
