# Copyright (c) 2026, LazyDrop developers

# lazydrop.scan_resistance: frequently used pages stay in shared_buffers while a table of
# twice that size is read or written once, and then once more, by each access path.  The
# pages that are left are counted with pg_buffercache.  With "off", an index scan leaves
# nothing, as in stock, which shows that the test can fail.  (Rules C2, C3 and, in an index
# scan of several rows a page, C6.)

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/..";
use HotSet
  qw(start_cache_node buffers create_table warm share_left is_still_hot cache_stats classes_add_up);
use LazyDropUtils qw(reload_with wait_for_nothing stop_with_clean_log);
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = start_cache_node('node');
my $pool = buffers($node);
my $file = PostgreSQL::Test::Utils::tempdir() . '/big.copy';

create_table($node, 'hot', int($pool * 0.4));
create_table($node, 'big', $pool * 2);
$node->safe_psql(
	'postgres', qq{
	CREATE INDEX big_id ON big (id);
	CREATE INDEX big_r ON big (r);
	-- a row is up to 40 pages from its place in this order
	CREATE INDEX big_near ON big ((id + r % 160));
	CREATE TABLE target (LIKE big);
	-- an index of twice the pool by itself
	CREATE TABLE wide (id int, f text);
	ALTER TABLE wide ALTER f SET STORAGE EXTERNAL;
	INSERT INTO wide SELECT i, repeat('w', 950) FROM generate_series(1, $pool * 8) AS i;
	CREATE INDEX wide_id ON wide (id) INCLUDE (f) WITH (fillfactor = 50);
	VACUUM (ANALYZE) wide;
	ANALYZE big;
	COPY big TO '$file'});
foreach my $i (1 .. 16)
{
	# From a quarter of shared_buffers on, a sequential scan uses a ring.
	create_table($node, "small_$i", int($pool / 8));
}
my $relations = $node->safe_psql(
	'postgres', q{
	SELECT string_agg(relname || ' ' || pg_relation_size(oid) / 8192, ', ')
	FROM pg_class WHERE relname IN ('hot', 'big', 'wide_id', 'small_1')});
note "$pool buffers, $relations pages";

# --- access paths -----------------------------------------------------------

my $no_seq = 'SET enable_seqscan = off; SET enable_bitmapscan = off;';
my $parallel = q{
	SET max_parallel_workers_per_gather = 2; SET parallel_setup_cost = 0;
	SET parallel_tuple_cost = 0; SET min_parallel_table_scan_size = 0;
	SET min_parallel_index_scan_size = 0;};
my $pieces = 200;

# Each entry has a query and a pattern that its plan must match, or commands.
my @paths = (
	{
		name => 'sequential scan',
		query => 'SELECT count(f) FROM big',
		plan => qr/^ *-> *Seq Scan on big/m
	},
	{
		name => 'parallel sequential scan',
		set => $parallel,
		query => 'SELECT count(f) FROM big',
		plan => qr/Parallel Seq Scan on big/
	},
	{
		name => 'VACUUM',
		commands => 'VACUUM (DISABLE_PAGE_SKIPPING) big'
	},
	{
		name => 'index scan in order',
		set => $no_seq,
		query => 'SELECT count(f) FROM big WHERE id > 0',
		plan => qr/Index Scan using big_id/
	},
	{
		name => 'parallel index scan',
		set => $no_seq . $parallel,
		query => 'SELECT count(f) FROM big WHERE id > 0',
		plan => qr/Parallel Index Scan using big_id/
	},
	{
		name => 'index scan in almost the order of the table',
		set => $no_seq,
		query => 'SELECT count(f) FROM big WHERE id + r % 160 > 0',
		plan => qr/Index Scan using big_near/
	},
	{
		name => 'index-only scan',
		set => $no_seq,
		query => 'SELECT count(f) FROM wide WHERE id > 0',
		plan => qr/Index Only Scan using wide_id/
	},
	{
		name => 'random index scan',
		set => $no_seq,
		query => 'SELECT count(f) FROM big WHERE r >= 0',
		plan => qr/Index Scan using big_r/,
		strict_only => 1
	},
	{
		name => 'bitmap scan',
		set => 'SET enable_seqscan = off; SET enable_indexscan = off;',
		query => 'SELECT count(f) FROM big WHERE r >= 0',
		plan => qr/Bitmap Heap Scan on big/
	},
	{
		name => 'UPDATE of all rows',
		commands => q{UPDATE big SET f = repeat('u', 950)}
	},
	{
		name => 'UPDATE of all rows in small statements',
		commands => qq{
		DO \$\$
		DECLARE
			last int := $pool * 8;
		BEGIN
			FOR i IN 0 .. $pieces - 1 LOOP
				UPDATE big SET f = repeat('v', 950)
				WHERE id > i * last / $pieces AND id <= (i + 1) * last / $pieces;
				COMMIT;
			END LOOP;
		END \$\$}
	},
	{
		name => 'CREATE INDEX',
		commands => 'CREATE INDEX big_f ON big (f, id); DROP INDEX big_f'
	},
	{
		name => 'COPY FROM',
		commands => "COPY target FROM '$file'",
		after => 'TRUNCATE target'
	},
	{
		name => 'INSERT ... SELECT',
		commands => 'INSERT INTO target SELECT * FROM big',
		after => 'TRUNCATE target'
	},
	{
		name => 'many small tables',
		commands =>
		  join('; ', map { "SELECT count(f) FROM small_$_" } 1 .. 16)
	},
	{
		name => 'pg_dump',
		program => [
			'pg_dump', '--table=big',
			'--file=/dev/null', '--dbname=' . $node->connstr('postgres')
		]
	});

foreach my $path (grep { $_->{plan} } @paths)
{
	like(
		$node->safe_psql(
			'postgres',
			($path->{set} // '') . " EXPLAIN (COSTS OFF) $path->{query}"),
		$path->{plan},
		"$path->{name} is planned as one");
}

sub run_path
{
	my ($path) = @_;
	return $node->command_ok($path->{program}, "$path->{name} runs")
	  if $path->{program};
	my $commands = $path->{query} // $path->{commands};
	return $node->safe_psql('postgres', ($path->{set} // '') . $commands);
}

# Warm the hot table, run an access path twice, and return the share of it that is left
# after each run.
sub left_after
{
	my ($path) = @_;
	warm($node);
	is(share_left($node), 100, "before $path->{name}: all of it is there");
	my @left;
	foreach my $round (1, 2)
	{
		run_path($path);
		push @left, share_left($node);
	}
	if ($path->{after})
	{
		$node->safe_psql('postgres', $path->{after});
		wait_for_nothing($node);
	}
	return @left;
}

sub check_paths
{
	my ($what, @some) = @_;
	foreach my $path (@some)
	{
		my @left = left_after($path);
		note "$what, $path->{name}: @left";
		is((grep { $_ >= 90 } @left),
			2, "$what, $path->{name}: it is left after one, and two");
	}
	classes_add_up($node, $what);
	return;
}

foreach my $mode ('on', 'strict')
{
	reload_with($node, 'lazydrop.scan_resistance' => $mode);
	check_paths($mode,
		grep { $mode eq 'strict' || !$_->{strict_only} } @paths);
}

# --- cases without protection -----------------------------------------------

my %path = map { $_->{name} => $_ } @paths;
reload_with($node, 'lazydrop.scan_resistance' => 'on');
note 'on, random index scan: '
  . join(' ', left_after($path{'random index scan'}));

reload_with($node, 'lazydrop.scan_resistance' => 'off');
my $before = cache_stats($node);
foreach my $name ('index scan in order', 'bitmap scan', 'UPDATE of all rows')
{
	my @left = left_after($path{$name});
	cmp_ok($left[1], '<', 50, "off, $name: the hot table is flushed");
	note "off, $name: @left";
}
my $after = cache_stats($node);
is_deeply(
	[ @$after{qw(scan_resistance loads promotions evictions)} ],
	[ 'off', @$before{qw(loads promotions evictions)} ],
	'nothing is counted');

# --- other I/O methods ------------------------------------------------------

my $methods = $node->safe_psql(
	'postgres', q{
	SELECT array_to_string(enumvals, ' ') FROM pg_settings WHERE name = 'io_method'}
);
foreach my $method (grep { $_ ne 'worker' } split / /, $methods)
{
	$node->append_conf('postgresql.conf',
		"io_method = $method\nlazydrop.scan_resistance = strict");
	$node->stop;
	if (!$node->start(fail_ok => 1))
	{
		# A container may not permit io_uring.
		note "$method cannot be used here";
		next;
	}
	is($node->safe_psql('postgres', 'SHOW io_method'),
		$method, "io_method = $method");
	check_paths(
		"strict with $method",
		@path{
			'sequential scan',
			'parallel sequential scan',
			'VACUUM',
			'index scan in order',
			'random index scan',
			'bitmap scan'
		});
}

stop_with_clean_log($node) if $node->{_pid};
done_testing();
