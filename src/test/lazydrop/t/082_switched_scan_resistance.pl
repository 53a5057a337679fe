# Copyright (c) 2026, LazyDrop developers

# lazydrop.scan_resistance is switched repeatedly under load.  No page may be lost or
# torn, which is checked with the sums of pgbench, with amcheck, and by a comparison
# before and after a crash.  On a standby with the setting on, neither the writes of
# replay nor a scan may evict a hot set, also after its promotion.  The background writer
# must write dirty buffers before they are needed.  A pass of the lazy drop must remove
# the buffers that it invalidates from their classes.  (Rules C1, C2, C9.)

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/..";
use HotSet
  qw(start_cache_node buffers create_table use_often warm is_still_hot cached cache_stats classes_add_up);
use IPC::Run;
use LazyDropFiles qw(contents);
use LazyDropUtils
  qw(hold_replay reload_with wait_for_nothing evict log_is_clean stop_with_clean_log);
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = start_cache_node(
	'node',
	'bgwriter_delay' => '10ms',
	'bgwriter_lru_maxpages' => '1000',
	'bgwriter_lru_multiplier' => '10',
	'shared_buffers' => '16MB');
my $pool = buffers($node);
my $block = $node->safe_psql('postgres', 'SHOW block_size');
$node->safe_psql('postgres', 'CREATE EXTENSION amcheck');
$node->command_ok([ 'pgbench', '--initialize', '--scale=3', '--quiet' ],
	'pgbench has its tables');

# --- switching under load ---------------------------------------------------

my $scans = PostgreSQL::Test::Utils::tempdir() . '/scans.sql';
append_to_file(
	$scans, q{
\set i random(1, 4)
\if :i = 1
SELECT sum(abalance) FROM pgbench_accounts;
\elif :i = 2
SET enable_seqscan = off;
SELECT sum(abalance) FROM pgbench_accounts WHERE aid > 0;
RESET enable_seqscan;
\elif :i = 3
VACUUM pgbench_accounts;
\else
CREATE TABLE t:client_id AS SELECT * FROM pgbench_accounts LIMIT 20000;
DROP TABLE t:client_id;
\endif
});
my $min_switches = 24;
my @modes = qw(on off);
my $switches = 0;
while ($switches < $min_switches)
{
	my ($out, $err) = ('', '');
	my @pgbench = (
		'pgbench', '--no-vacuum',
		'--builtin' => 'tpcb-like@20',
		'--file' => "$scans\@1",
		'--client' => 6,
		'--transactions' => 300);
	local %ENV = $node->_get_env();
	my $load = IPC::Run::start([ @pgbench, 'postgres' ],
		'<', \'', '>', \$out, '2>', \$err);
	# Switch at least once in each run, no matter how short it is.
	do
	{
		reload_with($node,
			'lazydrop.scan_resistance' => $modes[ $switches++ % @modes ]);
		$load->pump_nb;
	} while ($load->pumpable);
	ok($load->finish, "pgbench ran, up to switch $switches")
	  or diag $err;
}
classes_add_up($node, 'after the load');
my $stats = cache_stats($node);
cmp_ok($stats->{evictions}, '>', $pool, 'the policy has found victims');
note join(', ', map { "$_ $stats->{$_}" } sort keys %$stats);

sub check_pages
{
	my ($server, $what) = @_;
	is( $server->safe_psql(
			'postgres', q{
			SELECT count(DISTINCT sum) FROM (
				SELECT sum(abalance) FROM pgbench_accounts
				UNION ALL SELECT sum(bbalance) FROM pgbench_branches
				UNION ALL SELECT sum(tbalance) FROM pgbench_tellers
				UNION ALL SELECT sum(delta) FROM pgbench_history) AS sums}),
		1,
		"$what: the sums of pgbench agree");
	is( $server->safe_psql(
			'postgres', q{
			SELECT v.* FROM pg_class AS c, LATERAL verify_heapam(c.oid) AS v
			WHERE c.relkind = 'r' AND c.relpersistence = 'p'}),
		'',
		"$what: amcheck finds nothing in tables");
	my ($status, $out, $err) = $server->psql(
		'postgres', q{
		SELECT count(bt_index_check(c.oid, true)) > 0
		FROM pg_class AS c JOIN pg_am AS a ON a.oid = c.relam
		WHERE c.relkind = 'i' AND a.amname = 'btree' AND c.relpersistence = 'p'});
	is("$status $out $err", '0 t ', "$what: nor in indexes");
	return;
}

check_pages($node, 'after the load');

# --- a crash ----------------------------------------------------------------

reload_with($node, 'lazydrop.scan_resistance' => 'on');
my $before = contents($node);
cmp_ok(scalar(keys %$before), '>', 4, 'there are tables to compare');
$node->stop('immediate');
$node->start;
is_deeply(contents($node), $before, 'nothing is lost in a crash');
check_pages($node, 'after a crash');
classes_add_up($node, 'after a crash');

# --- the background writer --------------------------------------------------

create_table($node, 'hot', int($pool * 0.4));
create_table($node, 'big', $pool * 2);
create_table($node, 'gone', int($pool * 0.2));
$node->safe_psql('postgres', 'CREATE INDEX big_id ON big (id)');
my $index_scan =
  'SET enable_seqscan = off; SET enable_bitmapscan = off; SELECT count(f) FROM big WHERE id > 0';
reload_with($node, 'lazydrop.scan_resistance' => 'on');
warm($node);
my $cleaned = 'SELECT buffers_clean FROM pg_stat_bgwriter';
my $clean = $node->safe_psql('postgres', $cleaned);
$node->safe_psql('postgres', q{UPDATE big SET f = repeat('u', 950)})
  foreach 1, 2;
ok($node->poll_query_until('postgres', "SELECT ($cleaned) > $clean"),
	'the background writer writes pages');
is_still_hot($node, 'beside the background writer');

# --- a pass of the lazy drop ------------------------------------------------

my $gone =
  $node->safe_psql('postgres', "SELECT pg_relation_size('gone') / $block");
warm($node);
use_often($node, 'gone');
$node->safe_psql('postgres', $index_scan);
cmp_ok(cached($node, 'gone'), '>=', 0.9 * $gone,
	'a table that is used often');
my $main = cache_stats($node)->{main};
$node->safe_psql('postgres', 'DROP TABLE gone');
wait_for_nothing($node);
cmp_ok(
	cache_stats($node)->{main},
	'<=',
	$main - 0.9 * $gone,
	'when it is dropped, its buffers are on probation');
classes_add_up($node, 'after a pass');
is_still_hot($node, 'after a pass');
$node->safe_psql('postgres', $index_scan);
is_still_hot($node, 'with buffers that a pass has freed');

# --- a standby --------------------------------------------------------------

$node->backup('backup');
my $standby = PostgreSQL::Test::Cluster->new('standby');
$standby->init_from_backup($node, 'backup', has_streaming => 1);
$standby->append_conf('postgresql.conf', 'lazydrop.scan_resistance = on');
$standby->start;
warm($standby);
is_still_hot($standby, 'the standby, at first');
my $loads = cache_stats($standby)->{loads};

foreach my $round (1, 2)
{
	$node->safe_psql('postgres', q{UPDATE big SET f = repeat('s', 950)});
	$node->wait_for_replay_catchup($standby);
	is_still_hot($standby, "the standby, after replay of UPDATE $round");
}
cmp_ok(cache_stats($standby)->{loads} - $loads,
	'>', $pool, 'replay has loaded pages');

# Replay finds a page where it was before, without a lookup, unless it has used the page a
# few records ago.  That counts as a use if the policy is on (C6).  Each round has one
# record for each page.
my $usage = q{
	SELECT avg(usagecount) FROM pg_buffercache
	WHERE relfilenode = pg_relation_filenode('replayed') AND relforknumber = 0};
$node->safe_psql('postgres',
	q{CREATE TABLE replayed WITH (fillfactor = 10) AS SELECT i, repeat('r', 500) FROM generate_series(1, 300) AS i}
);
my $lock =
  'SELECT count(i) FROM (SELECT i FROM replayed FOR UPDATE) AS locked';
foreach my $mode ('off', 'on')
{
	reload_with($standby, 'lazydrop.scan_resistance' => $mode);
	$node->safe_psql('postgres', "CHECKPOINT; $lock");
	$node->wait_for_replay_catchup($standby);
	evict($standby, 'postgres', 'replayed');

	# Let replay read ahead.
	hold_replay($standby);
	$node->safe_psql('postgres', $lock) foreach 1 .. 4;
	$standby->safe_psql('postgres', 'SELECT pg_wal_replay_resume()');
	$node->wait_for_replay_catchup($standby);
	my $average = $standby->safe_psql('postgres', $usage);
	note "$mode: $average";
	cmp_ok($average, $mode eq 'on' ? '>' : '<', 2.5, "$mode: uses by replay");
}
$standby->safe_psql('postgres', $index_scan) foreach 1, 2;
is_still_hot($standby, 'the standby, after index scans');
classes_add_up($standby, 'the standby');
$node->command_ok(
	[
		'pgbench', '--no-vacuum',
		'--client' => 4,
		'--transactions' => 300,
		'postgres'
	],
	'the primary goes on');
$node->wait_for_replay_catchup($standby);
is_deeply(
	contents($standby, users_only => 1),
	contents($node, users_only => 1),
	'the standby has what the primary has');

warm($standby);
$standby->promote;
$standby->safe_psql('postgres', $index_scan) foreach 1, 2;
is_still_hot($standby, 'promoted, after index scans');
$standby->safe_psql('postgres', q{UPDATE big SET f = repeat('p', 950)});
is_still_hot($standby, 'promoted, after an UPDATE');
classes_add_up($standby, 'promoted');
check_pages($standby, 'promoted');

stop_with_clean_log($standby);
$node->stop;
log_is_clean($node, crashed => 1);
done_testing();
