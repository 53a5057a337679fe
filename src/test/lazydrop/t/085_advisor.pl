
# Copyright (c) 2026, LazyDrop developers

# Test the advisor on shared_buffers.  While it is off, it has no effect.  Its advice must
# be right for loads with a known result: a loop that is a little larger than the pool,
# and a table that is scanned with a ring because it is larger than a quarter of the pool.
# Then the advisor's worker is terminated, stopped and killed.  Finally, test restarts, a
# standby, wrong values, and permissions.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/..";
use JSON::PP;
use LazyDropUtils
  qw(start_quiet_node reload_with log_is_clean stop_process continue_process);
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

# All pages are sampled in such a small pool.  The queue has room for all that a statement
# reads, even if the worker has to wait for a busy machine.
my $buffers = 2048;
my $node = start_quiet_node(
	'primary',
	'shared_buffers' => $buffers * 8 . 'kB',
	'lazydrop.advisor_memory' => '4MB',
	'max_parallel_workers_per_gather' => 0,
	'wal_keep_size' => '1GB');

sub advice
{
	my ($on) = @_;
	return decode_json($on->safe_psql('postgres', 'SHOW lazydrop.advice'));
}

sub wait_for_advice
{
	my ($on, $condition) = @_;
	$on->poll_query_until('postgres',
		"SELECT $condition FROM (SELECT current_setting('lazydrop.advice')::jsonb) AS x(s)"
	  )
	  or die "timed out waiting for $condition: "
	  . $on->safe_psql('postgres', 'SHOW lazydrop.advice');
	return;
}

# Returns, for each size, the fraction of the pages of a table that a set of statements
# finds in the pool.  The statements are first executed until pools of all sizes have all
# the pages that they can hold.  They must not read anything but the table.
sub parts_found
{
	my ($statements, $pages) = @_;
	$node->safe_psql('postgres', $statements x 3);
	wait_for_sums();
	$node->safe_psql('postgres', 'SELECT pg_lazydrop_advice_reset()');
	$node->safe_psql('postgres', $statements x 5);
	wait_for_sums();
	my $after = advice($node);
	my %found;

	foreach my $size (@{ $after->{sizes} })
	{
		$found{ $size->{factor} } = 1 - $size->{reads} / (5 * $pages);
	}
	note "found with $_ of the pool: $found{$_}" foreach (sort keys %found);
	return \%found;
}

# A session has handed over its samples and its statistics when it has ended (A2).  The worker
# sums them up once a second, so it has certainly seen them after two seconds.
sub wait_for_sums
{
	$node->poll_query_until('postgres',
		q{SELECT count(*) = 1 FROM pg_stat_activity WHERE backend_type = 'client backend'}
	) or die 'a session does not end';
	my $seconds = advice($node)->{seconds};
	wait_for_advice($node, "(s->>'seconds')::numeric > $seconds + 1.5");
	return;
}

sub worker
{
	my ($on) = @_;
	return $on->safe_psql('postgres',
		q{SELECT coalesce(string_agg(pid::text, ' '), 'none') FROM pg_stat_activity WHERE backend_type = 'lazy drop advisor'}
	);
}

# The advisor is off.
my $advice = advice($node);
is(scalar @{ $advice->{sizes} }, 8, 'there are eight sizes');
is_deeply(
	[ map { $_->{factor} * $buffers * 8192 } @{ $advice->{sizes} } ],
	[ map { $_->{shared_buffers} } @{ $advice->{sizes} } ],
	'which are told in bytes');
is_deeply(
	[ map { $_->{hit_ratio} } @{ $advice->{sizes} } ],
	[ (undef) x 8 ],
	'nothing is said before it is on');
ok(!$advice->{enabled}, 'it is off by default');
is(worker($node), 'none', 'and has no worker then');

# Each page has three rows.  The loop reads the pages one by one, without a ring.
my $loop_pages = int(1.2 * $buffers);
my $scan_pages = int(0.6 * $buffers);
my $few_pages = int(0.4 * $buffers);
my $wide_pages = 4 * $buffers;
$node->safe_psql(
	'postgres', qq{
	CREATE TABLE loop WITH (fillfactor = 45) AS
		SELECT i AS id, repeat('x', 950) AS f FROM generate_series(1, 3 * $loop_pages) AS i;
	CREATE INDEX ON loop (id);
	CREATE TABLE scan WITH (fillfactor = 45) AS
		SELECT i AS id, repeat('x', 950) AS f FROM generate_series(1, 3 * $scan_pages) AS i;
	CREATE TABLE hot WITH (fillfactor = 45) AS
		SELECT i AS id, repeat('x', 950) AS f FROM generate_series(1, 3 * $few_pages) AS i;
	CREATE INDEX ON hot (id);
	CREATE TABLE wide WITH (fillfactor = 10) AS
		SELECT i AS id, repeat('x', 950) AS f FROM generate_series(1, $wide_pages) AS i;
	CREATE INDEX ON wide (id);
	VACUUM (FREEZE, ANALYZE) loop, scan, hot, wide});
is( $node->safe_psql(
		'postgres',
		q{SELECT count(DISTINCT split_part(ctid::text, ',', 1)) FROM loop}),
	$loop_pages,
	'the loop is as long as it should be');
is(advice($node)->{samples}, 0, 'nothing was sampled');

# The advisor is on.
reload_with($node, 'lazydrop.advisor' => 'on');
wait_for_advice($node, q{s->>'worker_pid' IS NOT NULL});
is( worker($node),
	advice($node)->{worker_pid},
	'there is a worker when it is on');

# All pools become full, so that the results do not depend on what is not known yet.
$node->safe_psql(
	'postgres', q{
	CREATE EXTENSION pg_lazydrop;
	SET enable_seqscan = off; SET enable_bitmapscan = off;
	SELECT count(f) FROM wide WHERE id > 0;
	SELECT count(f) FROM loop WHERE id > 0});
wait_for_advice($node,
	q{(SELECT bool_and((size->>'filled')::float8 = 1) FROM jsonb_array_elements(s->'sizes') AS size)}
);
my $loop = q{
	SET enable_seqscan = off; SET enable_bitmapscan = off;
	SELECT count(f) FROM loop WHERE id > 0;
};
my $found = parts_found($loop, $loop_pages);
cmp_ok($found->{$_}, '<', 0.1,
	"nothing is found of a loop of 1.2 times the pool with $_ of it")
  foreach (0.25, 0.5, 0.75, 1);
cmp_ok($found->{$_}, '>', 0.97, "and all of it with $_")
  foreach (1.5, 2, 3, 4);

# What to do.
is( $node->safe_psql(
		'postgres',
		q{SELECT string_agg(concat_ws(' ', period, verdict, pg_size_pretty(shared_buffers), reads_then < 0.1 * reads_now, wait), ', ' ORDER BY period)
		  FROM pg_lazydrop_advise() WHERE scan_resistance = 'off'}),
	'all increase 24 MB t, recent increase 24 MB t',
	'the advice is the smallest size that holds the loop');

# A scan with a ring finds some of the pages that were read last, until their buffers are
# needed for other pages (A6).  The table is larger than a quarter of twice the pool, and
# smaller than a quarter of three times the pool.
$found = parts_found(q{SELECT count(f) FROM scan;}, $scan_pages);
cmp_ok($found->{$_}, '<', 0.3,
	"little is found by a scan with a ring with $_ of the pool")
  foreach (1, 1.5, 2);
cmp_ok($found->{$_}, '>', 0.97, "and all by one without, with $_ of it")
  foreach (3, 4);

# Test the other replacement policy (A5).
reload_with($node, 'lazydrop.scan_resistance' => 'on');
is(advice($node)->{policy}, 'two classes', 'it follows the policy');
$found = parts_found($loop, $loop_pages);
cmp_ok($found->{$_}, '>', 0.8,
	"a loop of 1.2 times the pool fits into $_ of it")
  foreach (1.5, 2, 3, 4);
cmp_ok($found->{0.25}, '<', 0.25 / 1.2,
	'and a quarter of it finds no more than it holds');

# Frequently used pages stay in the pool while many others are read.  The clock sweep
# keeps both parts in shared_buffers, where its hand makes fewer than five rounds
# meanwhile, but not in a pool of half that size.  The three rows of a page are one use (A7).
my ($hot, $cold) = map { int($_ * $buffers) } (0.2, 2);
my $hot_and_cold = qq{
	SET enable_seqscan = off; SET enable_bitmapscan = off;
}
  . qq{SELECT count(f) FROM hot WHERE id <= 3 * $hot;\n} x 6
  . qq{SELECT count(f) FROM wide WHERE id <= $cold;};
my $hot_part = $hot / ($hot + $cold);
$found = parts_found($hot_and_cold, $hot + $cold);
cmp_ok(
	$found->{1} - $found->{0.5},
	'<',
	0.4 * $hot_part,
	'what is used often stays in half of the pool with two classes');
reload_with($node, 'lazydrop.scan_resistance' => 'off');
$found = parts_found($hot_and_cold, $hot + $cold);
cmp_ok(
	$found->{1} - $found->{0.5},
	'>',
	0.6 * $hot_part,
	'and not with the clock sweep');
my ($half) = grep { $_->{factor} == 0.5 } @{ advice($node)->{sizes} };
cmp_ok(
	$half->{on_reads_per_second},
	'<',
	0.96 * $half->{off_reads_per_second},
	'which is told while the policy is the other one');

# A scan by parallel workers, none of which has asked for the size of the table.
$node->safe_psql('postgres',
	'CREATE TABLE scan_2 WITH (fillfactor = 45) AS SELECT * FROM scan');
$found = parts_found(
	q{SET max_parallel_workers_per_gather = 2; SET parallel_leader_participation = off;
	  SET min_parallel_table_scan_size = 0; SET parallel_setup_cost = 0;
	  SET parallel_tuple_cost = 0;
	  SELECT count(f) FROM scan_2;}, $scan_pages);
cmp_ok($found->{$_}, '>', 0.97,
	"all is found by a parallel scan without a ring, with $_ of the pool")
  foreach (3, 4);

# Buffers that a drop has freed do not make a small pool look as if it had not been full
# yet (A10).  Pages that did not fit into it count as misses.
$found = parts_found(
	qq{CREATE TABLE dropped (f text);
	   INSERT INTO dropped SELECT repeat('x', 1900) FROM generate_series(1, 1200);
	   DROP TABLE dropped;
	   SET enable_seqscan = off; SET enable_bitmapscan = off;
	   SELECT count(f) FROM hot WHERE id > 0;}, $few_pages);
cmp_ok($found->{0.25}, '<', 0.1,
	'what is larger than a pool is not found in it, though it has free frames'
);
cmp_ok($found->{0.75}, '>', 0.8, 'and it is found where there is room');

my $seen = advice($node);
cmp_ok(
	$seen->{samples_dropped},
	'<',
	0.01 * $seen->{samples},
	'hardly a sample was lost');

# The worker is stopped: no process waits for it, and samples that do not fit into the
# queue are counted (A3).
my $pid = stop_process(worker($node));
$node->safe_psql('postgres', $loop x 30);
cmp_ok(advice($node)->{samples_dropped}, '>', 0,
	'a full queue drops samples');
continue_process($pid);
wait_for_sums();
is(worker($node), $pid, 'and the worker goes on');

# The worker is terminated, and is started again.
$node->safe_psql('postgres', "SELECT pg_terminate_backend($pid)");
wait_for_advice($node, "s->>'worker_pid' <> '$pid'");
isnt(worker($node), 'none', 'a worker that was ended is started again');

# The worker fails repeatedly, immediately after its start.  There is never more than one
# (A4).
if (($ENV{enable_injection_points} // '') eq 'yes')
{
	reload_with($node, 'log_min_messages' => 'debug1');
	my $log_offset = -s $node->logfile;
	$pid = worker($node);
	$node->safe_psql(
		'postgres', qq{
		CREATE EXTENSION injection_points;
		SELECT injection_points_attach('lazydrop-advisor-begin', 'error');
		SELECT pg_terminate_backend($pid)});
	my $errors =
	  qr/error triggered for injection point lazydrop-advisor-begin/;
	$node->wait_for_log(qr/(?:$errors.*){3}/s, $log_offset);
	$node->safe_psql(
		'postgres', q{
		SELECT injection_points_detach('lazydrop-advisor-begin');
		DROP EXTENSION injection_points});
	wait_for_advice($node, q{s->>'worker_pid' IS NOT NULL});
	my $log = slurp_file($node->logfile, $log_offset);
	my $begun = () =
	  $log =~ /\bregistering background worker "lazy drop advisor"/g;
	my $ended = () =
	  $log =~ /\bunregistering background worker "lazy drop advisor"/g;
	cmp_ok($ended, '>=', 4, 'workers that fail have ended');
	is($begun, $ended, 'and as many have been started');
	reload_with($node, 'log_min_messages' => 'warning');
}

# Turn the advisor off and on.
reload_with($node, 'lazydrop.advisor' => 'off');
wait_for_advice($node, q{s->>'worker_pid' IS NULL});
my ($samples, $dropped) = @{ advice($node) }{qw(samples samples_dropped)};
$node->safe_psql('postgres', $loop x 30);
is(advice($node)->{samples}, $samples, 'what was seen stays when it is off');
is(advice($node)->{samples_dropped},
	$dropped, 'and nothing is put into the queue');
reload_with($node, 'lazydrop.advisor' => 'on');
wait_for_advice($node, q{s->>'worker_pid' IS NOT NULL});

# Counters that are reset to zero do not count as a negative difference (A8).
$node->safe_psql('postgres', $loop x 3);
wait_for_sums();
my $before = advice($node);
$node->safe_psql('postgres', q{SELECT pg_stat_reset_shared('io')});
wait_for_sums();
cmp_ok(advice($node)->{$_},
	'>=', $before->{$_}, "$_ do not fall when pg_stat_io is reset")
  foreach (qw(hits reads));

# The advisor starts from zero after a restart, although pg_stat_io does not.
cmp_ok(advice($node)->{reads}, '>', 2 * $loop_pages, 'much was read');
$node->restart;
wait_for_advice($node, q{s->>'worker_pid' IS NOT NULL});
wait_for_sums();
cmp_ok(advice($node)->{reads}, '<', $loop_pages, 'which a restart forgets');

# Pages that the advisor has not seen before (A9).  A miss of the server counts as one of a
# larger pool, too, but only once.  A hit of the server is not a miss of a larger pool.

# Returns the reads of the server, those of a pool of four times its size, and how many of
# these are uncertain.  All of these are parts of the pages that were looked up.
sub larger_pool
{
	my ($statements, $pages) = @_;
	$node->safe_psql('postgres', 'SELECT pg_lazydrop_advice_reset()');
	wait_for_sums();
	$node->safe_psql('postgres', $statements);
	wait_for_sums();
	my $advice = advice($node);
	return map { $_ / $pages } (
		$advice->{sizes}[3]{reads},
		$advice->{sizes}[-1]{reads},
		$advice->{sizes}[-1]{cold_reads});
}
my ($real_reads, $reads, $cold_reads) = larger_pool($loop, $loop_pages);
cmp_ok($reads, '>', 0.9 * $real_reads, 'a larger pool would be cold as well');
cmp_ok($cold_reads, '>', 0.9 * $real_reads, 'which is said');
($real_reads, $reads, $cold_reads) = larger_pool($loop, $loop_pages);
cmp_ok($real_reads, '>', 0.9, 'the server reads all again');
cmp_ok($cold_reads, '<', 0.1, 'and a page is cold only once');
my $few = 'SET enable_seqscan = off; SELECT count(f) FROM hot WHERE id > 0;';
$node->safe_psql('postgres', $few x 3);
reload_with($node, 'lazydrop.advisor' => 'off');
$node->poll_query_until('postgres',
	q{SELECT count(*) = 0 FROM pg_stat_activity WHERE backend_type = 'lazy drop advisor'}
) or die 'the worker does not end';
reload_with($node, 'lazydrop.advisor' => 'on');
wait_for_advice($node, q{s->>'worker_pid' IS NOT NULL});
($real_reads, $reads, $cold_reads) = larger_pool($few, $few_pages);
cmp_ok($reads, '<', 0.1, 'what the server has is no miss of a larger pool');

# The worker is killed: the server restarts, as after any crash.
reload_with($node, 'restart_after_crash' => 'on');
my $offset = -s $node->logfile;
$node->safe_psql('postgres', $loop x 3);
wait_for_sums();
$samples = advice($node)->{samples};
$pid = worker($node);
kill 'KILL', $pid;
$node->wait_for_log(qr/all server processes terminated; reinitializing/,
	$offset);
$node->poll_query_until('postgres', 'SELECT true');
wait_for_advice($node, "s->>'worker_pid' <> '$pid'");
cmp_ok(advice($node)->{samples},
	'<', $samples, 'after a crash it begins anew');

# The worker is started while the lazy drop worker removes files, which may take a long
# time.
reload_with(
	$node,
	'lazydrop.advisor' => 'off',
	'lazydrop.removal_rate' => '1MB');
wait_for_advice($node, q{s->>'worker_pid' IS NULL});
$node->safe_psql('postgres', 'DROP TABLE wide; CHECKPOINT');
my $is_removing =
  q{SELECT count(*) = 1 FROM pg_stat_activity WHERE backend_type = 'lazy drop worker' AND wait_event = 'LazyDropThrottle'};
$node->poll_query_until('postgres', $is_removing)
  or die 'nothing is removed';
reload_with($node, 'lazydrop.advisor' => 'on');
wait_for_advice($node, q{s->>'worker_pid' IS NOT NULL});
is($node->safe_psql('postgres', $is_removing),
	't', 'it is started while files are removed');
reload_with($node, 'lazydrop.removal_rate' => 0);

# A standby has its own advisor, which needs no object in the catalogs.
$node->backup('backup');
my $standby = PostgreSQL::Test::Cluster->new('standby');
$standby->init_from_backup($node, 'backup', has_streaming => 1);
$standby->start;
wait_for_advice($standby, q{s->>'worker_pid' IS NOT NULL});
$node->safe_psql(
	'postgres', qq{
	CREATE TABLE other WITH (fillfactor = 10) AS
		SELECT i AS id, repeat('x', 950) AS f FROM generate_series(1, $wide_pages) AS i;
	CREATE INDEX ON other (id)});
$node->wait_for_replay_catchup($standby);
$standby->safe_psql('postgres',
	$loop . $loop . 'SELECT count(f) FROM other WHERE id > 0');
wait_for_advice($standby,
	"(s->>'samples')::numeric > $loop_pages AND (s->>'reads')::numeric > 0");
ok(defined advice($standby)->{sizes}[3]{hit_ratio}, 'a standby has advice');

# When replay has fallen behind, it finds most pages without a lookup, because it has
# prefetched them, and it replaces other pages without reading them (A1).  The updated
# table has more pages than half of shared_buffers.
sub replay_updates
{
	my ($times, $before_each) = @_;
	$node->safe_psql('postgres', 'CHECKPOINT');
	my $update = "$before_each; UPDATE scan SET id = id + 1;\n";
	$node->safe_psql('postgres', $update);
	$node->wait_for_replay_catchup($standby);

	# A reset does not exclude reads of the last second.
	my $seen = advice($standby)->{seconds};
	wait_for_advice($standby, "(s->>'seconds')::numeric > $seen + 1.5");
	$standby->safe_psql('postgres',
		'SELECT pg_lazydrop_advice_reset(), pg_wal_replay_pause()');
	$node->safe_psql('postgres', $update x $times);
	$node->wait_for_catchup($standby, 'write');
	$standby->safe_psql('postgres', 'SELECT pg_wal_replay_resume()');
	$node->wait_for_replay_catchup($standby);
	wait_for_advice($standby, "(s->>'seconds')::numeric > 2.5");
	return map { $_->{reads} } @{ advice($standby)->{sizes} };
}
my @reads = replay_updates(4, '');
note "reads: @reads";
cmp_ok($reads[3], '<', $scan_pages / 2, 'replay reads little');
cmp_ok(
	$reads[1], '>',
	3.8 * $scan_pages,
	'and would with half of shared_buffers have read all again and again');
@reads = replay_updates(4, 'CHECKPOINT');
cmp_ok($reads[1], '<', $scan_pages / 2, 'but not what WAL has images of');
$standby->promote;
$standby->safe_psql('postgres', 'DROP TABLE loop');
$standby->stop;
log_is_clean($standby);

# Test wrong values and permissions.
my ($ret, $out, $err) = $node->psql('postgres', 'SET lazydrop.advisor = off');
like($err, qr/cannot be changed now/, 'a session cannot change it');
($ret, $out, $err) =
  $node->psql('postgres', q{ALTER SYSTEM SET lazydrop.advisor = 'maybe'});
like($err, qr/requires a Boolean value/, 'it is on or off');
($ret, $out, $err) =
  $node->psql('postgres', 'ALTER SYSTEM SET lazydrop.advisor_memory = 1');
like($err, qr/must be -1 or at least 128 kB/, 'it needs some memory');
($ret, $out, $err) = $node->psql('postgres', q{SET lazydrop.advice = ''});
like($err, qr/cannot be changed/, 'advice is not a value to set');
$node->safe_psql('postgres',
	'CREATE ROLE other LOGIN; CREATE ROLE monitor LOGIN IN ROLE pg_monitor');
($ret, $out, $err) =
  $node->psql('postgres', 'SET ROLE other; SHOW lazydrop.advice');
like($err, qr/permission denied to examine/, 'not everyone may read it');
($ret, $out, $err) =
  $node->psql('postgres', 'SET ROLE monitor; SHOW lazydrop.advice');
like($out, qr/"sizes"/, 'pg_monitor may');

$node->stop;
log_is_clean($node);
done_testing();
