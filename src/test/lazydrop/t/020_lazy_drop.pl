# Copyright (c) 2026, LazyDrop developers

# Every command that drops storage buries it.  The dropper does not scan the buffer
# headers, and one pass of the worker is enough for many drops, on the primary and in
# replay.  While the worker is held, a checkpoint finds dirty pages of dropped relations,
# and must not write them.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/..";
use LazyDropUtils
  qw(stats wait_for_stats hold_at release need_injection_points
  start_quiet_node stop_with_clean_log);
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

need_injection_points();

my $primary = start_quiet_node(
	'primary',
	'shared_buffers' => '64MB',
	'max_prepared_transactions' => '2',
	'lazydrop.lookup_limit' => '0',
	'lazydrop.log_passes' => 'on');
$primary->safe_psql('postgres', 'CREATE EXTENSION injection_points');
$primary->backup('backup');
my $standby = PostgreSQL::Test::Cluster->new('standby');
$standby->init_from_backup($primary, 'backup', has_streaming => 1);
$standby->start;
my @nodes = ($primary, $standby);

# --- settings, worker, statistics -------------------------------------------

foreach my $node (@nodes)
{
	my $name = $node->name;
	is( $node->safe_psql(
			'postgres',
			q{SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'lazy drop worker'}
		),
		'1',
		"the worker is in pg_stat_activity on $name");
	my $pid = $node->safe_psql(
		'postgres',
		q{SELECT pid FROM pg_stat_activity
		  WHERE backend_type = 'lazy drop worker' AND usesysid IS NULL AND datid IS NULL}
	);
	is(stats($node)->{worker_pid},
		$pid, "without a role, and in lazydrop.stats, on $name");
}
$primary->safe_psql('postgres',
	'CREATE ROLE watcher LOGIN; GRANT pg_monitor TO watcher; CREATE ROLE nobody LOGIN'
);
$primary->wait_for_replay_catchup($standby);
foreach my $node (@nodes)
{
	my $name = $node->name;
	like(
		$node->safe_psql(
			'postgres',
			'SHOW lazydrop.stats',
			extra_params => [ '-U' => 'watcher' ]),
		qr/^\{"version": "\d+\.\d+", "pending_relations": 0, .*\}$/,
		"pg_monitor may read lazydrop.stats on $name");
	my (undef, undef, $stderr) = $node->psql(
		'postgres',
		'SHOW lazydrop.stats',
		extra_params => [ '-U' => 'nobody' ]);
	like(
		$stderr,
		qr/permission denied to examine "lazydrop\.stats"/,
		"others may not on $name");
}
my (undef, undef, $stderr) =
  $primary->psql('postgres', 'ALTER SYSTEM SET lazydrop.pass_delay = -1');
like(
	$stderr,
	qr/-1 ms is outside the valid range for parameter "lazydrop\.pass_delay"/,
	'a wrong value gets the ordinary error');
(undef, undef, $stderr) =
  $primary->psql('postgres', 'SET lazydrop.enabled = off');
like(
	$stderr,
	qr/parameter "lazydrop\.enabled" cannot be changed now/,
	'a session cannot change it');
(undef, undef, $stderr) =
  $primary->psql('postgres', 'SET lazydrop.nonsense = 1');
like(
	$stderr,
	qr/invalid configuration parameter name "lazydrop\.nonsense"/,
	'an unknown name is refused');

# --- every command that drops storage ---------------------------------------

# Each case has the statements before the drop, the statement that drops, the number of
# relations that it buries (including indexes and TOAST tables), and the statements after
# the drop.  The counters are read immediately before and after the statement that drops.
my @commands = (
	[ 'DROP TABLE', '', 'DROP TABLE t', 1, '' ],
	[
		'DROP INDEX', 'CREATE INDEX i ON t (a)',
		'DROP INDEX i', 1, 'DROP TABLE t'
	],
	[
		'DROP SCHEMA',
		'CREATE SCHEMA s; CREATE INDEX i ON t (a); ALTER TABLE t SET SCHEMA s',
		'DROP SCHEMA s CASCADE',
		2,
		''
	],
	[
		'TRUNCATE', 'CREATE INDEX i ON t (a)', 'TRUNCATE t', 2,
		'DROP TABLE t'
	],
	[
		'CLUSTER',
		'CREATE INDEX i ON t (a)',
		'CLUSTER t USING i',
		2, 'DROP TABLE t'
	],
	[ 'VACUUM FULL', '', 'VACUUM FULL t', 1, 'DROP TABLE t' ],
	[
		'REFRESH MATERIALIZED VIEW',
		'CREATE MATERIALIZED VIEW m AS SELECT * FROM t',
		'REFRESH MATERIALIZED VIEW m',
		1, 'DROP TABLE t CASCADE'
	],
	[
		'ROLLBACK', '', 'BEGIN; CREATE TABLE r AS TABLE t; ROLLBACK',
		1, 'DROP TABLE t'
	],
	[
		'ROLLBACK TO SAVEPOINT',
		'',
		'BEGIN; SAVEPOINT p; CREATE TABLE r AS TABLE t; ROLLBACK TO p; COMMIT',
		1,
		'DROP TABLE t'
	],
	[
		'COMMIT PREPARED',
		"BEGIN; DROP TABLE t; PREPARE TRANSACTION 'x'",
		"COMMIT PREPARED 'x'",
		1, ''
	],
	[
		'ROLLBACK PREPARED',
		"BEGIN; CREATE TABLE r AS TABLE t; PREPARE TRANSACTION 'x'",
		"ROLLBACK PREPARED 'x'",
		1, 'DROP TABLE t'
	],
	[
		'dropped partition',
		'CREATE TABLE part (a int) PARTITION BY RANGE (a); ALTER TABLE part ATTACH PARTITION t FOR VALUES FROM (0) TO (100000); ALTER TABLE part DETACH PARTITION t',
		'DROP TABLE t',
		1,
		'DROP TABLE part'
	],
	[
		'DROP DATABASE',
		'CREATE DATABASE d',
		'DROP DATABASE d',
		1,
		'DROP TABLE t'
	]);
foreach my $entry (@commands)
{
	my ($what, $prepare, $drop, $count, $clean) = @$entry;
	my $counter =
	  $what eq 'DROP DATABASE' ? 'deferred_databases' : 'deferred_relations';
	$primary->safe_psql(
		'postgres',
		join(";\n",
			'CREATE TABLE t AS SELECT generate_series(1, 1000) AS a',
			split /; /, $prepare));
	$primary->wait_for_replay_catchup($standby);
	my %before = map { $_->name => stats($_) } @nodes;
	$primary->safe_psql('postgres', join(";\n", split /; /, $drop));

	# The record of an abort is not flushed until another record is.
	$primary->safe_psql('postgres',
		q{SELECT pg_logical_emit_message(true, '', '')});
	$primary->wait_for_replay_catchup($standby);
	foreach my $node (@nodes)
	{
		my $name = $node->name;
		my $after = stats($node);
		is($after->{$counter} - $before{$name}{$counter},
			$count, "$what: $count buried on $name");
		is( $after->{sync_fallbacks},
			$before{$name}{sync_fallbacks},
			"$what: no fallback on $name");
	}
	$primary->safe_psql('postgres', join(";\n", split /; /, $clean))
	  if $clean ne '';
}
foreach my $node (@nodes)
{
	wait_for_stats($node,
		q{s->>'pending_relations' = '0' AND s->>'pending_databases' = '0'});
	pass('everything is settled on ' . $node->name);
}
$primary->wait_for_log(qr/lazy drop pass complete:/);
pass('passes are logged');

# --- many drops, one pass; a checkpoint meanwhile ---------------------------

foreach my $node (@nodes)
{
	hold_at($node, 'lazydrop-worker');
}
$primary->safe_psql(
	'postgres', q{
	CREATE TABLE survivor AS SELECT generate_series(1, 1000) AS a;
	DO $$ BEGIN
		FOR i IN 1 .. 200 LOOP
			EXECUTE format('CREATE TABLE t%s AS SELECT generate_series(1, 1000) AS a', i);
		END LOOP;
	END $$;});
my %before = map { $_->name => stats($_) } @nodes;
$primary->safe_psql('postgres',
	join('', map { "DROP TABLE t$_;\n" } 1 .. 200));
$primary->wait_for_replay_catchup($standby);
foreach my $node (@nodes)
{
	my $name = $node->name;
	$node->wait_for_event('lazy drop worker', 'lazydrop-worker');
	is(stats($node)->{pending_relations},
		200, "200 relations are pending on $name");
	is( stats($node)->{headers_visited},
		$before{$name}{headers_visited},
		"and no header has been visited on $name");
}
$primary->safe_psql('postgres', 'CHECKPOINT');
$primary->wait_for_replay_catchup($standby);
$standby->safe_psql('postgres', 'CHECKPOINT');
foreach my $node (@nodes)
{
	my $name = $node->name;
	# Each table has four pages if alignment is to 4 bytes.
	cmp_ok(stats($node)->{writes_skipped},
		'>=', 800, "the checkpoint skipped their dirty pages on $name");
	release($node, 'lazydrop-worker');
	wait_for_stats($node, q{s->>'pending_relations' = '0'});
	my $after = stats($node);
	cmp_ok($after->{passes} - $before{$name}{passes},
		'<=', 2, "one pass, or two, settled all of them on $name");
	cmp_ok(
		$after->{buffers_invalidated} - $before{$name}{buffers_invalidated},
		'>=', 800, "and invalidated their buffers on $name");
}
is($primary->safe_psql('postgres', 'SELECT count(*) FROM survivor'),
	'1000', 'a table that was not dropped is there');

# --- off is stock; pending entries are still completed (rule R13) -----------

hold_at($primary, 'lazydrop-worker');
$primary->safe_psql('postgres',
	'CREATE TABLE t AS SELECT generate_series(1, 1000) AS a');
$primary->safe_psql('postgres', 'CREATE DATABASE again OID 90000');
$primary->safe_psql('postgres', 'DROP TABLE t');
$primary->wait_for_event('lazy drop worker', 'lazydrop-worker');
$primary->safe_psql('postgres', 'DROP DATABASE again');
$primary->safe_psql('postgres', "ALTER SYSTEM SET lazydrop.enabled = off");
$primary->reload;
$primary->poll_query_until('postgres',
	"SELECT current_setting('lazydrop.enabled') = 'off'")
  or die 'the setting was not reloaded';
my $pending = stats($primary)->{pending_relations};
my $buried = stats($primary)->{deferred_relations};
$primary->safe_psql('postgres',
	'CREATE TABLE t AS SELECT generate_series(1, 1000) AS a');
$primary->safe_psql('postgres', 'DROP TABLE t');
is(stats($primary)->{deferred_relations}, $buried, 'off: nothing is buried');
is(stats($primary)->{pending_relations},
	$pending, 'off: what is pending stays pending');
my $stats = stats($primary);
$primary->safe_psql('postgres', 'CHECKPOINT');
cmp_ok(stats($primary)->{writes_skipped},
	'>', $stats->{writes_skipped}, 'off: pending pages are not written');
$primary->safe_psql('postgres', 'CREATE DATABASE again OID 90000');
is( stats($primary)->{reuse_waits},
	$stats->{reuse_waits} + 1,
	'off: a creator settles what is pending under its name');
$primary->safe_psql('postgres', 'DROP DATABASE again');
release($primary, 'lazydrop-worker');
wait_for_stats($primary, q{s->>'pending_relations' = '0'});
pass('off: what was pending drains');

# --- the worker is restarted ------------------------------------------------

$primary->safe_psql('postgres', "ALTER SYSTEM RESET lazydrop.enabled");
$primary->reload;
my $pid = stats($primary)->{worker_pid};
$primary->safe_psql('postgres', "SELECT pg_terminate_backend($pid)");
wait_for_stats($primary, "coalesce((s->>'worker_pid')::int, $pid) <> $pid");
pass('a terminated worker is started again');

# Promotion does not wait for the worker.  It leaves the pending entries to the worker,
# except for the names of their files, because unlogged relations are reset.  (036 has
# more cases.)
$primary->safe_psql('postgres',
	'CREATE UNLOGGED TABLE unlogged AS SELECT generate_series(1, 100) AS a; CREATE UNLOGGED TABLE dropped AS SELECT 1 AS a'
);
hold_at($standby, 'lazydrop-worker');
$primary->safe_psql('postgres', 'DROP TABLE dropped');
$primary->wait_for_replay_catchup($standby);
$standby->wait_for_event('lazy drop worker', 'lazydrop-worker');
is(stats($standby)->{pending_relations}, 1, 'a drop is pending');
$standby->promote;
is(stats($standby)->{pending_relations}, 1, 'and still is after promotion');
is($standby->safe_psql('postgres', 'SELECT count(*) FROM unlogged'),
	'0', 'an unlogged relation is there, and empty');
release($standby, 'lazydrop-worker');
wait_for_stats($standby, q{s->>'pending_relations' = '0'});
pass('the worker goes on after promotion');

stop_with_clean_log($_) foreach @nodes;

command_like(
	[ 'postgres', '--help' ],
	qr/^Report bugs to <LazyDrop/m,
	'reports of bugs are not sent to upstream');

done_testing();
