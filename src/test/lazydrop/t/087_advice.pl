
# Copyright (c) 2026, LazyDrop developers

# Test what the advisor on shared_buffers says: pg_lazydrop_advise() must not name a wrong
# size at any time, for loads whose best size is known; it must say so when it does not
# know, and why.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/..";
use LazyDropUtils qw(start_quiet_node reload_with log_is_clean);
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

# All pages are sampled in such a small pool.
my $buffers = 2048;
my $node = start_quiet_node(
	'primary',
	'shared_buffers' => $buffers * 8 . 'kB',
	'lazydrop.advisor_memory' => '4MB',
	'max_parallel_workers_per_gather' => 0,
	'enable_seqscan' => 'off',
	'enable_bitmapscan' => 'off',
	'enable_hashjoin' => 'off',
	'enable_mergejoin' => 'off',
	'enable_memoize' => 'off',
	'max_locks_per_transaction' => 500,
	'jit' => 'off');

# Returns the verdict, and the size in times the buffers, for the policy of the server.
sub advice
{
	my ($memory) = @_;
	$memory //= 'NULL';
	return $node->safe_psql(
		'postgres', qq{
		SELECT concat_ws(' ', verdict, shared_buffers / 8192.0::float8 / $buffers)
		FROM pg_lazydrop_advise($memory)
		WHERE period = 'all' AND scan_resistance = current_setting('lazydrop.scan_resistance')}
	);
}

sub wait_for
{
	my ($condition) = @_;
	$node->poll_query_until(
		'postgres', qq{
		SELECT bool_and($condition) FROM pg_lazydrop_advise()
		WHERE period = 'all' AND scan_resistance = current_setting('lazydrop.scan_resistance')}
	  )
	  or die "timed out waiting for $condition: "
	  . $node->safe_psql('postgres', 'SELECT * FROM pg_lazydrop_advise()');
	return;
}

# A session has handed over its samples and its statistics when it has ended.  The worker
# sums them up once a second.
sub wait_for_sums
{
	$node->poll_query_until('postgres',
		q{SELECT count(*) = 1 FROM pg_stat_activity WHERE backend_type = 'client backend'}
	) or die 'a session does not end';
	my $seen = $node->safe_psql('postgres',
		q{SELECT max(seconds) FROM pg_lazydrop_advise() WHERE period = 'all'}
	);
	wait_for("seconds > $seen + 1.5");
	return;
}

# Run a load again and again until the verdict is one of those that are right.  Others than
# these, "unknown" and "waiting" are wrong.
sub is_right
{
	my ($load, $right, $name) = @_;
	my ($said, @wrong) = ('');
	foreach my $round (1 .. 300)
	{
		$node->safe_psql('postgres', $load);
		$said = advice();
		last if $said =~ /^(?:$right)$/;
		push @wrong, $said if $said !~ /^(?:unknown|waiting)$/;
	}
	like($said, qr/^(?:$right)$/, "$name: is known in the end");
	is("@wrong", '', "$name: and nothing else is said before");
	return;
}

# Fill all pools, then run the load, until they have what they can have of it.  Then sums
# begin anew.
sub begin_with
{
	my ($load) = @_;
	$node->safe_psql('postgres', $_) foreach (loop(5.5), ($load) x 3);
	wait_for_sums();
	$node->safe_psql('postgres', 'SELECT pg_lazydrop_advice_reset()');
	return;
}

sub loop
{
	my ($part) = @_;
	my $pages = int($part * $buffers);
	return "SELECT count(f) FROM wide WHERE id <= $pages;\n";
}

my $pages = int(5.5 * $buffers);
$node->safe_psql(
	'postgres', qq{
	CREATE EXTENSION pg_lazydrop;
	CREATE TABLE wide WITH (fillfactor = 10) AS
		SELECT i AS id, repeat('x', 950) AS f FROM generate_series(1, $pages) AS i;
	CREATE INDEX ON wide (id);
	VACUUM (FREEZE, ANALYZE) wide});

# Nothing has been seen, or nothing can be seen.
is(advice(), 'off', 'it says that it is off');
is( $node->safe_psql(
		'postgres',
		q{SELECT string_agg(concat_ws(' ', period, scan_resistance), ', ') FROM pg_lazydrop_advise()}
	),
	'all off, all on, recent off, recent on',
	'there is a verdict for each period and policy');
$node->append_conf('postgresql.conf', 'lazydrop.advisor = on');
my $workers = $node->safe_psql('postgres', 'SHOW max_worker_processes');
$node->append_conf('postgresql.conf', 'max_worker_processes = 0');
$node->restart;
$node->safe_psql('postgres', loop(1.2));
is(advice(), 'no worker', 'and that it has no worker');
$node->append_conf('postgresql.conf', "max_worker_processes = $workers");
$node->restart;
wait_for(q{verdict <> 'no worker'});
is(advice(), 'unknown', 'and that it has seen nothing');

# A transaction has read much, and its statistics arrive when it ends (A8).
my $session = $node->background_psql('postgres');
$session->query_safe('BEGIN');
$session->query_safe(loop(1.2) x 5);
wait_for(q{verdict = 'waiting'});
is( $node->safe_psql(
		'postgres',
		q{SELECT count(*) FROM pg_lazydrop_advise() WHERE shared_buffers IS NOT NULL OR reads_now > 0}
	),
	0,
	'nothing is said while the statistics of a transaction are missing');
$session->query_safe('COMMIT');
$session->quit;
wait_for(q{verdict <> 'waiting' AND reads_now > 0});

# The statistics of a transaction arrive after a reset, and its samples came before: they
# disagree, which is an error of all estimates.  Without it, the rest looks like little.
sub advice_after_late_reads
{
	my $late = $node->background_psql('postgres');
	$late->query_safe('BEGIN');
	$late->query_safe(loop(5.5) x 3);
	wait_for(q{verdict = 'waiting'});
	$node->safe_psql('postgres', 'SELECT pg_lazydrop_advice_reset()');
	wait_for(q{verdict <> 'waiting'});
	$late->query_safe('COMMIT');
	$late->quit;
	$node->safe_psql('postgres', loop(0.9) x 20);
	wait_for_sums();
	return advice();
}
begin_with(loop(0.9));
like(
	advice_after_late_reads(),
	qr/^(?:unknown|keep 1)$/,
	'nothing is said of reads without samples');

# Loops have cliffs (A11).
begin_with(loop(1.2));
is_right(loop(1.2), 'increase 1.5', 'a loop of 1.2 times');
is( $node->safe_psql(
		'postgres', q{
		SELECT string_agg(CASE WHEN reads_then + error < 0.05 * reads_now AND hit_ratio_now < 0.3
				AND hit_ratio_then > 0.9 AND wait IS NULL THEN 't' ELSE a::text END, ' ')
		FROM pg_lazydrop_advise() AS a WHERE scan_resistance = 'off'}),
	't t',
	'the verdict has numbers');

# The larger size does not fit into this memory: 1.5 times are more than three quarters.
is(advice(int($buffers * 8192 * 1.9)),
	'beyond 0.25', 'no size is advised that does not fit');
is(advice(int($buffers * 8192 * 2.1)), 'increase 1.5', 'but one that does');
foreach my $memory (-1, $buffers * 8192 - 1)
{
	my ($ret, $out, $err) =
	  $node->psql('postgres', "SELECT * FROM pg_lazydrop_advise($memory)");
	like(
		$err,
		qr/"memory" must not be less than "shared_buffers"/,
		"memory cannot be $memory");
}

# A new worker begins with empty pools, and knows nothing (A9).
my $pid = $node->safe_psql('postgres',
	q{SELECT pid FROM pg_stat_activity WHERE backend_type = 'lazy drop advisor'}
);
$node->safe_psql('postgres', "SELECT pg_terminate_backend($pid)");
$node->poll_query_until('postgres',
	qq{SELECT count(*) = 1 FROM pg_stat_activity WHERE backend_type = 'lazy drop advisor' AND pid <> $pid}
) or die 'no new worker';
wait_for(q{verdict = 'unknown'});

# So does one whose server has changed its policy.
begin_with(loop(1.2));
is_right(loop(1.2), 'increase 1.5', 'a loop of 1.2 times, with a new worker');
reload_with($node, 'lazydrop.scan_resistance' => 'on');
wait_for(q{verdict = 'unknown'});
reload_with($node, 'lazydrop.scan_resistance' => 'off');

begin_with(loop(5));
is_right(loop(5), 'beyond 0.25', 'a loop of 5 times');
# (A quarter of a loop of 0.4 times may not fit into that of the pages of 0.5 times.)
begin_with(loop(0.3));
is_right(loop(0.3), 'reducible 0.5', 'a loop of 0.3 times');

# Nearly all lookups are of a few pages; the others are flat in hit ratio, but steep in
# reads.
my $cold = int(1.8 * $buffers);
my $hot_and_cold = qq{
	SELECT count(f) FROM (
		SELECT 1 + floor(random() * CASE WHEN random() < 0.98 THEN 50 ELSE $cold END)::int AS id
		FROM generate_series(1, 50000) OFFSET 0) AS k
	JOIN wide USING (id);
};
begin_with($hot_and_cold x 3);
is_right($hot_and_cold, 'increase (?:2|3)', '98 % of lookups in few pages');
is( $node->safe_psql(
		'postgres', q{
		SELECT bool_and(hit_ratio > 0.97) AND max(reads_per_second) > 3 * min(reads_per_second)
		FROM pg_lazydrop_advice}),
	't',
	'though the hit ratio is high with any size');

# Sizes between the simulated ones are on a line; the rest of the memory is the file-system
# cache's.  Several calls may see different seconds.
my $all_agree = q{
	WITH size AS MATERIALIZED (
		SELECT *, lead(shared_buffers) OVER w AS next, lead(reads_per_second) OVER w AS next_reads
		FROM pg_lazydrop_advice WINDOW w AS (ORDER BY factor)
	), checks AS (
		SELECT pg_lazydrop_advice_reads((shared_buffers + next) / 2) AS result,
			(reads_per_second + next_reads) / 2 AS should_be
		FROM size WHERE next IS NOT NULL
		UNION ALL
		SELECT pg_lazydrop_advice_reads(bytes), reads_per_second
		FROM size, LATERAL (SELECT CASE factor WHEN 0.25 THEN 1 WHEN 4 THEN shared_buffers * 2
								   ELSE shared_buffers END) AS v(bytes)
		UNION ALL
		SELECT CASE i WHEN 1 THEN disk_reads_min ELSE disk_reads_max END,
			CASE i WHEN 1 THEN CASE WHEN memory > most THEN 0
									ELSE least(reads_per_second, pg_lazydrop_advice_reads(memory)) END
				   ELSE least(reads_per_second,
							  pg_lazydrop_advice_reads(greatest(shared_buffers, memory - shared_buffers))) END
		FROM (SELECT max(shared_buffers) AS most FROM size) AS m,
			LATERAL unnest(ARRAY[most / 3, most, most + 8192, most * 2]) AS memory,
			pg_lazydrop_advice_range(memory), generate_series(1, 2) AS i
	)
	SELECT count(*) > 40 AND count(DISTINCT should_be) > 5 AND bool_and(abs(result - should_be) < 1e-6 * (1 + should_be))
	FROM checks};
$node->poll_query_until('postgres', $all_agree)
  or die "other sizes are estimated in another way\n";
pass('sizes between these are on a line');

# The same server, warm, with an advisor that has seen nothing.
foreach my $load (
	[ $hot_and_cold, 'increase (?:2|3)', '98 % again' ],
	[ loop(0.9), 'keep 1', 'a loop of 0.9 times' ])
{
	my ($statements, $right, $name) = @$load;
	$node->safe_psql('postgres', $statements) foreach 1 .. 3;
	reload_with($node, 'lazydrop.advisor' => 'off');
	$node->poll_query_until('postgres',
		q{SELECT count(*) = 0 FROM pg_stat_activity WHERE backend_type = 'lazy drop advisor'}
	) or die 'the worker does not end';
	$node->restart;
	$node->safe_psql('postgres', $statements) foreach 1 .. 3;
	reload_with($node, 'lazydrop.advisor' => 'on');
	wait_for(q{verdict = 'unknown'});
	is_right($statements, $right, "$name, on a warm server");
}

# More relations are dropped at once than are remembered at a time (A10).
sub for_small_tables
{
	my ($command) = @_;
	$node->safe_psql(
		'postgres', qq{
		DO \$\$BEGIN
			FOR i IN 1 .. 1500 LOOP EXECUTE format('$command', i); END LOOP;
		END\$\$});
	return;
}
for_small_tables('CREATE TABLE small_%s AS SELECT 1 AS i');
my $seconds = $node->safe_psql('postgres',
	q{SELECT max(seconds) FROM pg_lazydrop_advise()});
for_small_tables('DROP TABLE small_%s');
$node->poll_query_until('postgres',
	"SELECT max(seconds) > $seconds + 1 FROM pg_lazydrop_advise()")
  or die 'the advisor does not go on';
is( $node->safe_psql(
		'postgres', 'SELECT max(samples_dropped) FROM pg_lazydrop_advice'),
	0,
	'no sample is lost to 1,500 drops');

# Permissions.
$node->safe_psql('postgres',
	'CREATE ROLE other LOGIN; CREATE ROLE monitor LOGIN IN ROLE pg_monitor');
my ($ret, $out, $err) = $node->psql('postgres',
	'SET ROLE other; SELECT * FROM pg_lazydrop_advise()');
like($err, qr/permission denied for function/, 'not everyone may ask');
($ret, $out, $err) = $node->psql('postgres',
	'SET ROLE monitor; SELECT verdict FROM pg_lazydrop_advise(); SELECT factor FROM pg_lazydrop_advice'
);
is($ret, 0, 'pg_monitor may');
$node->safe_psql('postgres',
	'GRANT SELECT ON pg_lazydrop_advice TO other; GRANT EXECUTE ON FUNCTION pg_lazydrop_get_advice() TO other'
);
is( $node->safe_psql(
		'postgres', 'SET ROLE other; SELECT count(*) FROM pg_lazydrop_advice'
	),
	8,
	'and others to whom it is granted');

$node->stop;
log_is_clean($node);
done_testing();
