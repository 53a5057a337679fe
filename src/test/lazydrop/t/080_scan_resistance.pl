# Copyright (c) 2026, LazyDrop developers

# lazydrop.scan_resistance: frequently used pages stay in shared_buffers while a table of
# twice that size is read or written once, and then once more, by each access path.  So
# they do beside index scans of tables of other sizes, with 20 rows in a page, in an order
# in which each row is somewhere within a tenth of shared_buffers: there, each page is used
# up to 20 times in a short time, as a page that is used often.  The pages that are left are
# counted with pg_buffercache.  With "off", an index scan leaves nothing, as in stock, which
# shows that the test can fail.  (Rules C2, C3, C4 and C7.)

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
		read_once => 1
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
	my $set = $path->{set} // '';
	$set .= 'SET lazydrop.read_once = on;' if $path->{read_once};
	return $node->safe_psql('postgres', $set . $commands);
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

reload_with($node, 'lazydrop.scan_resistance' => 'on');
check_paths('on', @paths);

# --- tables of ordinary width -----------------------------------------------

my $rows = 20;
create_table($node, 'narrow', $pool * 2, $rows);
my %index = (
	narrow_near => 'id + r %% ' . int($pool * 0.1) * $rows,
	narrow_id => 'id');
$node->safe_psql(
	'postgres',
	join(';',
		map { sprintf "CREATE INDEX $_ ON narrow (($index{$_}))" }
		sort keys %index)
	  . '; ANALYZE narrow');
foreach my $size (0.3, 0.5, 0.9, 1.2, 2)
{
	# The second pass of 0.5 to 1.2 times the pool may be taken for use.
	my $passes = $size == 0.3 || $size == 2 ? 2 : 1;
	foreach my $name (sort keys %index)
	{
		my $key = sprintf $index{$name};
		my $last = int($size * $pool) * $rows;
		my $query =
		  "SELECT count(f) FROM narrow WHERE $key > 0 AND $key <= $last";
		like(
			$node->safe_psql(
				'postgres', "$no_seq EXPLAIN (COSTS OFF) $query"),
			qr/Index Scan using $name/,
			"$name is used");
		my @left =
		  left_after({ name => $name, set => $no_seq, query => $query });
		note "$name, $size: @left";
		is((grep { $_ >= 90 } @left[ 0 .. $passes - 1 ]),
			$passes, "$passes scans of $size times the pool by $name");
	}
}
my $nested =
  q{SELECT count(n.f) FROM (SELECT id FROM big WHERE id > 0 OFFSET 0) AS b
	JOIN narrow AS n ON n.id = b.id};
my $loop =
  'SET enable_hashjoin = off; SET enable_mergejoin = off; SET enable_memoize = off;';
like(
	$node->safe_psql('postgres', "$no_seq $loop EXPLAIN (COSTS OFF) $nested"),
	qr/Nested Loop.*using big_id.*Index Scan using narrow_id/s,
	'a join looks up rows');
my @left =
  left_after({ name => 'a join', set => "$no_seq $loop", query => $nested });
note "join: @left";
is((grep { $_ >= 90 } @left), 2, 'two joins');

# Four sessions scan the table at the same time.
warm($node);
my @sessions = map { $node->background_psql('postgres') } 1 .. 4;
$_->{stdin} .= "$no_seq SELECT count(f) FROM narrow WHERE id > 0;\n"
  foreach @sessions;
$_->quit foreach @sessions;
is_still_hot($node, 'after four scans at the same time');
classes_add_up($node, 'after all of that');

# --- cases without protection -----------------------------------------------

my %path = map { $_->{name} => $_ } @paths;
note 'random index scan without read_once: '
  . join(' ',
	left_after({ %{ $path{'random index scan'} }, read_once => 0 }));

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
		"io_method = $method\nlazydrop.scan_resistance = on");
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
		"on with $method",
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
