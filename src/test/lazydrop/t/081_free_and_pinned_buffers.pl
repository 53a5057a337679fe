# Copyright (c) 2026, LazyDrop developers

# lazydrop.scan_resistance in extreme situations.  While there are free buffers, a scan
# with a ring uses them, up to half of all, and a table that fits is read from disk once.
# If all of probation is pinned, few victims come from main.  If all buffers are pinned,
# the error is the same as in stock PostgreSQL, and nothing hangs.  The test also checks
# the counters of lazydrop.cache_stats, and values that are not allowed.  (Rules C2, C3 and
# C8, and others below.)

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/..";
use HotSet
  qw(start_cache_node buffers create_table use_often warm is_still_hot cached cache_stats classes_add_up);
use LazyDropUtils qw(reload_with wait_for_nothing evict stop_with_clean_log);
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = start_cache_node('node');
my $pool = buffers($node);
my $file = PostgreSQL::Test::Utils::tempdir() . '/middle.copy';
my $block = $node->safe_psql('postgres', 'SHOW block_size');
create_table($node, 'hot', int($pool * 0.4));
create_table($node, 'middle', int($pool / 3));
create_table($node, 'big', $pool * 2);
$node->safe_psql('postgres',
	"CREATE INDEX big_id ON big (id); CREATE TABLE target (LIKE middle); COPY middle TO '$file'"
);

# Returns the number of blocks that a query reads from files.
sub blocks_read
{
	my ($query) = @_;
	my $plan = $node->safe_psql('postgres',
		"EXPLAIN (ANALYZE, BUFFERS, COSTS OFF, TIMING OFF, SUMMARY OFF) $query"
	);
	return $plan =~ /^ *Buffers: shared.* read=(\d+)/m ? $1 : 0;
}

# Restart, so that all buffers are free except the buffers of the hot table.
sub restart_with
{
	my ($mode) = @_;
	$node->append_conf('postgresql.conf', "lazydrop.scan_resistance = $mode");
	$node->restart;
	use_often($node);
	return;
}

my $scan = 'SELECT count(f) FROM middle';
my $index_scan =
  'SET enable_seqscan = off; SET enable_bitmapscan = off; SELECT count(f) FROM big WHERE id > 0';
my $pages =
  $node->safe_psql('postgres', "SELECT pg_relation_size('middle') / $block");
cmp_ok($pages, '>', $pool / 4, 'a table for which a scan has a ring');

# --- free buffers -----------------------------------------------------------

restart_with('off');
is(blocks_read($scan), $pages, 'off: a table is read');
cmp_ok(blocks_read($scan), '>', $pages / 2, 'off: and read again');

restart_with('on');
my $before = cache_stats($node);
is(blocks_read($scan), $pages, 'on: a table is read');
is(blocks_read($scan), 0, 'on: and is there');
is_still_hot($node, 'on, after that');
my $after = cache_stats($node);
cmp_ok($after->{free_loads} - $before->{free_loads},
	'>=', $pages, 'on: into free buffers');
cmp_ok($after->{ring_loads} - $before->{ring_loads},
	'>=', $pages, 'on: as by a ring');
is($after->{evictions}, $before->{evictions}, 'on: without a victim');

# The table's pages are the first to be evicted.
$node->safe_psql('postgres', $index_scan);
cmp_ok(cached($node, 'middle'),
	'<', $pages / 2, 'on: it makes room for others');
is_still_hot($node, 'on, after an index scan');

restart_with('on');
$node->safe_psql('postgres', "COPY target FROM '$file'");
my $new =
  $node->safe_psql('postgres', "SELECT pg_relation_size('target') / $block");
cmp_ok($new, '>', $pool / 8, 'on: more than the ring of a bulk write');
cmp_ok(cached($node, 'target'),
	'<=', $pool / 8, 'on: COPY keeps to its ring');
is_still_hot($node, 'on, after COPY');
$node->safe_psql('postgres', 'TRUNCATE target');
wait_for_nothing($node);

# Use a ring of 32 buffers.
restart_with('on');
$node->safe_psql('postgres',
	q{VACUUM (DISABLE_PAGE_SKIPPING, BUFFER_USAGE_LIMIT '256kB', INDEX_CLEANUP off) big}
);
cmp_ok(cached($node, 'big'), '<=', 64, 'on: VACUUM keeps to its ring');

# A scan takes no more than half of all buffers from the free list, and parallel workers
# take none.
create_table($node, 'most', int($pool * 0.55));
my $of_most = 'SELECT count(f) FROM most';
restart_with('on');
$before = cache_stats($node);
blocks_read($of_most);
my $taken = cache_stats($node)->{free_loads} - $before->{free_loads};
cmp_ok($taken, '<=', $pool / 2, 'on: a scan leaves half of the free buffers');
cmp_ok($taken, '>', 0.4 * $pool, 'and no more');
restart_with('on');
$before = cache_stats($node);
my $parallel = q{
	SET max_parallel_workers_per_gather = 2; SET parallel_setup_cost = 0;
	SET parallel_tuple_cost = 0; SET min_parallel_table_scan_size = 0;
	SET parallel_leader_participation = off;};
like(
	$node->safe_psql(
		'postgres',
		"$parallel EXPLAIN (ANALYZE, COSTS OFF, TIMING OFF) $of_most"),
	qr/Workers Launched: [12]/,
	'on: a parallel scan');
is(cache_stats($node)->{free_loads},
	$before->{free_loads}, 'on: its workers keep to their rings');

# Nor do two scans of one session that take turns.  The first one has taken some when the
# second begins.
restart_with('on');
$before = cache_stats($node);
$node->safe_psql(
	'postgres', qq{
	SET synchronize_seqscans = off; SET cursor_tuple_fraction = 1;
	BEGIN;
	DECLARE c1 CURSOR FOR SELECT f FROM most;
	DECLARE c2 CURSOR FOR SELECT f FROM big;
	DO \$\$
	BEGIN
		FOR i IN 1 .. ($pool * 4) / 100 LOOP
			EXECUTE 'MOVE 100 FROM c1';
			EXECUTE 'MOVE 100 FROM c2';
		END LOOP;
	END \$\$;
	COMMIT});
$taken = cache_stats($node)->{free_loads} - $before->{free_loads};
cmp_ok($taken, '<=', 0.55 * $pool, 'on: scans in turns leave as much');
cmp_ok(cache_stats($node)->{ring_loads} - $before->{ring_loads},
	'>', $pool, 'and have read more');

# --- the counters -----------------------------------------------------------

# Returns the increase of the counters since the last call.
my $last = cache_stats($node);

sub growth
{
	my $now = cache_stats($node);
	my %growth = map { $_ => $now->{$_} - $last->{$_} }
	  grep { $now->{$_} =~ /^\d+$/ } keys %$now;
	$last = $now;
	return \%growth;
}

reload_with($node, 'lazydrop.scan_resistance' => 'on');
create_table($node, 'other', int($pool * 0.6));
create_table($node, 'small', int($pool * 0.2));
warm($node);
growth();
$node->safe_psql('postgres', $index_scan);
my $growth = growth();
my $hot_pages =
  $node->safe_psql('postgres', "SELECT pg_relation_size('hot') / $block");
my $big_pages =
  $node->safe_psql('postgres', "SELECT pg_relation_size('big') / $block");
cmp_ok($growth->{loads}, '>=', $big_pages, 'an index scan loads pages');
cmp_ok(
	$growth->{evictions}, '>=',
	$big_pages - $pool,
	'for which others are evicted');
cmp_ok(
	$growth->{promotions}, '>=',
	0.9 * $hot_pages,
	'those of the hot table are promoted');
cmp_ok($last->{main}, '>=', 0.9 * $hot_pages, 'and are in main');
cmp_ok($growth->{promotions}, '<', 1.5 * $hot_pages, 'few others are');
classes_add_up($node, 'after the scan');

# "small" is smaller than a quarter of the pool, so the scan has no ring.  Its pages are
# evicted, and the ghost knows them (C5).
$node->safe_psql('postgres', 'SELECT count(f) FROM small');
is( cached($node, 'small'),
	$node->safe_psql('postgres', "SELECT pg_relation_size('small') / $block"),
	'a small table is read');
$node->safe_psql('postgres', q{SELECT pg_prewarm('other', 'buffer')});
cmp_ok(cached($node, 'small'), '<', 0.1 * $pool, 'another one displaces it');
growth();
$node->safe_psql('postgres', 'SELECT count(f) FROM small');
$growth = growth();
cmp_ok($growth->{ghost_hits}, '>', 100, 'it is known when it comes back');

# Pages of the hot table are not used any more; all pages of "other" and "middle" are (C4).
$node->safe_psql(
	'postgres', q{
	SELECT count(pg_prewarm('other', 'buffer')) + count(pg_prewarm('middle', 'buffer'))
	FROM generate_series(1, 20)});
$growth = growth();
cmp_ok($growth->{demotions}, '>', 100, 'what is not used is demoted');
my $used = $node->safe_psql('postgres',
	"SELECT (pg_relation_size('other') + pg_relation_size('middle')) / $block"
);
cmp_ok(
	cached($node, 'other') + cached($node, 'middle'),
	'>=', 0.9 * $used,
	'for what is');
cmp_ok(
	$last->{main}, '<=',
	$pool - int($pool / 5) + 64,
	'probation keeps its share');
classes_add_up($node, 'after a change of what is hot');

# With lazydrop.read_once, evicted pages are not remembered (C7).
my $once = 'SET lazydrop.read_once = on;';
warm($node);
$node->safe_psql('postgres', "$once SELECT count(f) FROM small");
$node->safe_psql('postgres', "$once $index_scan");
cmp_ok(cached($node, 'small'), '<', 0.1 * $pool, 'a small table is evicted');
growth();
$node->safe_psql('postgres', 'SELECT count(f) FROM small');
cmp_ok(growth()->{ghost_hits}, '<', 20, 'and not known when it comes back');
$node->safe_psql('postgres',
	"CREATE ROLE reporter LOGIN; ALTER ROLE reporter SET lazydrop.read_once = on"
);
is( $node->safe_psql(
		'postgres',
		'SHOW lazydrop.read_once',
		connstr => $node->connstr('postgres') . ' user=reporter'),
	'on',
	'read_once can be set for a role');

# Pages that pg_prewarm has loaded twice have been used (C3).
evict($node, 'postgres');
$node->safe_psql('postgres', q{SELECT pg_prewarm('hot')}) foreach 1, 2;
$node->safe_psql('postgres', $index_scan);
is_still_hot($node, 'loaded by pg_prewarm twice');

# --- all of probation pinned ------------------------------------------------

# Each cursor has a page pinned.  Scan from the other end of the table.
warm($node);
$node->safe_psql('postgres', $index_scan);
my $pinned = int($pool * 0.3);
my $holder = $node->background_psql('postgres');
$holder->query_safe(
	qq{
	SET enable_seqscan = off; SET enable_bitmapscan = off; BEGIN;
	DO \$\$
	BEGIN
		FOR i IN 1 .. $pinned LOOP
			EXECUTE format('DECLARE c%s CURSOR FOR SELECT f FROM big WHERE id >= %s', i, i * 4);
			EXECUTE format('MOVE c%s', i);
		END LOOP;
	END \$\$});
growth();
my $first = int($pool * 0.6) * 4;
$node->safe_psql('postgres', "$index_scan AND id > $first");
$growth = growth();
note "beside $pinned pinned pages: "
  . join(' ', map { "$_ $growth->{$_}" } sort keys %$growth);
cmp_ok($growth->{fallbacks}, '>', 0, 'some victims come from main');
cmp_ok(
	$growth->{fallbacks}, '<',
	0.1 * $growth->{loads},
	'but few, when probation has other pages');
is_still_hot($node, 'beside pinned pages');
$holder->query_safe('ROLLBACK');
$holder->quit;
classes_add_up($node, 'after that');

# --- values that are not allowed --------------------------------------------

my ($status, $out, $err) = $node->psql('postgres',
	'ALTER SYSTEM SET lazydrop.scan_resistance = maybe');
like(
	$err,
	qr/ERROR:  invalid value for parameter "lazydrop.scan_resistance": "maybe"\n.*HINT:  Available values: off, on\./s,
	'a wrong value is refused');
($status, $out, $err) =
  $node->psql('postgres', 'SET lazydrop.scan_resistance = on');
like(
	$err,
	qr/parameter "lazydrop.scan_resistance" cannot be changed now/,
	'a session cannot set it');
($status, $out, $err) =
  $node->psql('postgres', q{SET lazydrop.cache_stats = '{}'});
like(
	$err,
	qr/parameter "lazydrop.cache_stats" cannot be changed/,
	'what is shown cannot be set');
my $offset = -s $node->logfile;
reload_with($node, 'lazydrop.scan_resistance' => 'maybe');
ok( $node->log_contains(
		qr/invalid value for parameter "lazydrop.scan_resistance": "maybe"/,
		$offset),
	'a reload with a wrong value tells so');
is($node->safe_psql('postgres', 'SHOW lazydrop.scan_resistance'),
	'on', 'and keeps the old one');

$offset = -s $node->logfile;
$node->restart;
ok( $node->log_contains(
		qr/WARNING:  invalid value for parameter "lazydrop.scan_resistance": "maybe"/,
		$offset),
	'a start with a wrong value tells so');
is($node->safe_psql('postgres', 'SHOW lazydrop.scan_resistance'),
	'off', 'and takes the default');

# 1.0 had "strict".
foreach my $pair ([ 'true', 'on' ], [ 'no', 'off' ], [ 'strict', 'on' ])
{
	reload_with($node, 'lazydrop.scan_resistance' => $pair->[0]);
	is($node->safe_psql('postgres', 'SHOW lazydrop.scan_resistance'),
		$pair->[1], "$pair->[0] is $pair->[1]");
}
$node->safe_psql('postgres', 'CREATE ROLE reader');
($status, $out, $err) =
  $node->psql('postgres', 'SET ROLE reader; SHOW lazydrop.cache_stats');
like(
	$err,
	qr/permission denied to examine "lazydrop.cache_stats"/,
	'not each role can read the counters');
$node->safe_psql('postgres',
	'GRANT pg_monitor TO reader; SET ROLE reader; SHOW lazydrop.cache_stats');
stop_with_clean_log($node);

# --- all buffers pinned -----------------------------------------------------

# Use the smallest possible pool.  Each cursor has one page pinned.
my $tiny = PostgreSQL::Test::Cluster->new('tiny');
$tiny->init;
$tiny->append_conf(
	'postgresql.conf', q{
	autovacuum = off
	shared_buffers = 128kB
	});
$tiny->start;
is(buffers($tiny), 16, 'a server with 16 buffers');
my $many = 40;
$tiny->safe_psql(
	'postgres', qq{
	SELECT format('CREATE TABLE t%s AS SELECT generate_series(1, 10) AS a', i)
	FROM generate_series(1, $many) AS i \\gexec
	VACUUM ANALYZE});

# Open cursors until that fails.  Returns their number and the error.
sub pin_all
{
	my $session = $tiny->background_psql('postgres', on_error_stop => 0);
	$session->query_safe(
		join("\n", map { "SELECT count(*) FROM t$_;" } 1 .. $many));
	$session->query_safe('BEGIN');
	my $cursors = 0;
	foreach my $i (1 .. $many)
	{
		$session->query(
			"DECLARE c$i CURSOR FOR SELECT * FROM t$i; FETCH 1 FROM c$i;");
		last if $session->{stderr} ne '';
		$cursors++;
	}
	my $error = $session->{stderr};
	$session->{stderr} = '';
	$session->query_safe('ROLLBACK');
	is($session->query_safe("SELECT count(*) FROM t1"),
		10, 'the session goes on');
	$session->quit;
	return ($cursors, $error);
}

# A page that has been used twice must not end a search with nothing, in a pool where a
# whole round spares fewer pages than a search may.
reload_with($tiny, 'lazydrop.scan_resistance' => 'on');
$before = cache_stats($tiny);
$tiny->safe_psql(
	'postgres',
	join('',
		map { "SELECT count(*) FROM t$_; SELECT count(*) FROM t$_;\n" }
		  1 .. $many) x 5);
my $after_them = cache_stats($tiny);
my ($evictions, $fallbacks) =
  map { $after_them->{$_} - $before->{$_} } qw(evictions fallbacks);
note "tiny: $evictions victims of probation, $fallbacks of main";
cmp_ok(
	$fallbacks, '<',
	0.05 * $evictions,
	'a search in a tiny pool finds a victim on probation');

my $most;
foreach my $mode ('off', 'on')
{
	reload_with($tiny, 'lazydrop.scan_resistance' => $mode);
	my $main = cache_stats($tiny)->{main};
	cmp_ok($main, '>', 0, "$mode: some buffers are in main")
	  if $mode ne 'off';
	my ($cursors, $error) = pin_all();
	note "$mode: $cursors cursors";
	like(
		$error,
		qr/ERROR:  no unpinned buffers available/,
		"$mode: all buffers are pinned");
	$most //= $cursors;
	is($cursors, $most, "$mode: by as many cursors as in stock's code");
	next if $mode eq 'off';
	cmp_ok(cache_stats($tiny)->{fallbacks},
		'>', 0, "$mode: probation had none to give");
	classes_add_up($tiny, $mode);
}
stop_with_clean_log($tiny);

done_testing();
