
# Copyright (c) 2026, LazyDrop developers

# Source: Luke Lonergan and others on pgsql-hackers, March 2007 ("buffer cache is not scan
# resistant"): SELECT count(*) and VACUUM of tables that do not fit; a scan evicted pages
# that others used.  Rings for sequential scans, VACUUM and bulk writes have been added
# since.
#
# Asks: a hot table of 0.4 times shared_buffers is used often and then idle.  How much of
# it is left after a table of twice shared_buffers was read or written once, and twice, by
# each access path?  With io_method worker and sync.  (For index scans of tables of other
# sizes, and hot sets that are in use, see scan-resistance.)
#
# Each case starts with empty buffers.  The hot table is loaded and used six times by
# pg_prewarm, and its remaining pages are counted with pg_buffercache.  The other table
# has 20 rows in each page.  The index that is almost in its order has each row within
# 200 pages of its place; the covering index, for the index-only scan, is as large as the
# table.  EXPLAIN shows beforehand whether the planner uses the intended path.
#
# Expected: stock keeps the hot set in sequential scans and VACUUM, and loses half of it
# or all of it in index scans, bitmap scans and updates.  With lazydrop.scan_resistance
# on, at least 90 % are left on every path, twice, except in the random index scan; there,
# if the session has set lazydrop.read_once.

use strict;
use warnings FATAL => 'all';

use LazyDropBench;
use LazyDropCache;
use LazyDropUtils qw(pg_major);

my $shared_buffers = $opt{quick} ? '16MB' : '256MB';
my $large = 2 * megabytes($shared_buffers);
my $tables = 20;
my $per_page = 20;
my ($node, $rows);

# Name; the allowed plan types; the statement; its plan; and the statement for EXPLAIN, if
# that is a different one.  A function instead of the statement runs a program.  "clean"
# restores the table.
my $count = 'SELECT count(f) FROM big';
my @path = (
	{
		name => 'sequential scan',
		set => only('seqscan'),
		sql => $count,
		plan => qr/^ *->  Seq Scan on big/m
	},
	{
		name => 'parallel sequential scan',
		set => only('seqscan')
		  . 'SET max_parallel_workers_per_gather = 2; SET min_parallel_table_scan_size = 0;'
		  . 'SET parallel_setup_cost = 0; SET parallel_tuple_cost = 0;',
		sql => $count,
		plan => qr/Parallel Seq Scan on big/
	},
	{
		name => 'VACUUM',
		sql => 'VACUUM (DISABLE_PAGE_SKIPPING) big'
	},
	{
		name => 'pg_dump',
		sql => sub {
			my ($node) = @_;
			local %ENV = $node->_get_env();
			run_program(
				[
					$node->installed_command('pg_dump'),
					'-t' => 'big',
					'-f' => '/dev/null',
					'postgres'
				],
				'>' => \*STDERR,
				'2>&1') or die "pg_dump failed\n";
		}
	},
	{
		name => 'index scan in order',
		set => only('indexscan'),
		sql => "$count WHERE id > 0",
		plan => qr/^ *->  Index Scan using big_id /m
	},
	{
		name => 'index scan almost in order',
		set => only('indexscan'),
		sql => "$count WHERE id + (r & 4095) > 0",
		plan => qr/^ *->  Index Scan using big_almost /m
	},
	{
		name => 'random index scan',
		set => only('indexscan'),
		sql => "$count WHERE r > -2147483648",
		plan => qr/^ *->  Index Scan using big_r /m
	},
	{
		name => 'random index scan; read_once',
		set => only('indexscan') . 'SET lazydrop.read_once = on;',
		sql => "$count WHERE r > -2147483648",
		plan => qr/^ *->  Index Scan using big_r /m
	},
	{
		name => 'nested loop',
		set => only('indexscan')
		  . 'SET enable_hashjoin = off; SET enable_mergejoin = off; SET enable_memoize = off;',
		sql =>
		  'SELECT count(b.f) FROM (SELECT id + (r & 4095) AS id FROM big WHERE id > 0 OFFSET 0) AS o JOIN big AS b USING (id)',
		plan =>
		  qr/Nested Loop.*Index Scan using big_id .*Index Scan using big_id /s
	},
	{
		name => 'hash join of index scans',
		set => only('indexscan')
		  . 'SET enable_nestloop = off; SET enable_mergejoin = off;',
		sql =>
		  'SELECT count(b.f) FROM big AS a JOIN big AS b ON b.id = a.r WHERE a.id > 0 AND b.id > 0',
		plan =>
		  qr/Hash Join.*Index Scan using big_id .*Index Scan using big_id /s
	},
	{
		name => 'index scan almost in order by four sessions',
		sql => sub {
			my ($node) = @_;
			my @sessions = map { $node->background_psql('postgres') } 1 .. 4;
			$_->{stdin} .=
			  only('indexscan') . "$count WHERE id + (r & 4095) > 0;\n"
			  foreach @sessions;
			$_->quit foreach @sessions;
		},
		set => only('indexscan'),
		explain => "$count WHERE id + (r & 4095) > 0",
		plan => qr/^ *->  Index Scan using big_almost /m
	},
	{
		name => 'pg_dump of TOAST',
		sql => sub {
			my ($node) = @_;
			local %ENV = $node->_get_env();
			run_program(
				[
					$node->installed_command('pg_dump'),
					'-t' => 'toasted',
					'-f' => '/dev/null',
					'postgres'
				],
				'>' => \*STDERR,
				'2>&1') or die "pg_dump failed\n";
		}
	},
	{
		name => 'index-only scan',
		set => only('indexscan', 'indexonlyscan')
		  . 'SET random_page_cost = 0.1;',
		sql => "$count WHERE id > 0",
		plan => qr/^ *->  Index Only Scan using big_covering /m
	},
	{
		name => 'bitmap scan',
		set => only('bitmapscan'),
		sql => "$count WHERE r > -2147483648",
		plan => qr/^ *->  Bitmap Heap Scan on big/m
	},
	{
		name => 'many small tables',
		set => only('seqscan'),
		sql =>
		  join('', map { "SELECT count(f) FROM small$_;\n" } 1 .. $tables),
		explain => 'SELECT count(f) FROM small1',
		plan => qr/^ *->  Seq Scan on small1/m
	},
	{
		name => 'CREATE INDEX',
		sql => 'CREATE INDEX ON big (n, id)',
		clean => 'DROP INDEX big_n_id_idx, big_n_id_idx1'
	},
	{
		name => 'UPDATE in one statement',
		set => only('seqscan'),
		sql => 'UPDATE big SET n = n + 1',
		plan => qr/^ *->  Seq Scan on big/m,
		clean => 'VACUUM (FREEZE) big'
	},
	{
		name => 'UPDATE in 1000 statements',
		set => only('indexscan'),
		sql => sub {
			my ($node) = @_;
			my $step = int(($rows + 999) / 1000);
			$node->safe_psql(
				'postgres',
				only('indexscan') . qq{
				DO \$\$
				BEGIN
					FOR i IN 0 .. 999 LOOP
						UPDATE big SET n = n + 1 WHERE id > i * $step AND id <= (i + 1) * $step;
						COMMIT;
					END LOOP;
				END \$\$});
		},
		explain => 'UPDATE big SET n = n + 1 WHERE id > 0 AND id <= 700',
		plan => qr/^ *->  Index Scan using big_id /m,
		clean => 'VACUUM (FREEZE) big'
	},
	{
		name => 'COPY in',
		before => 'CREATE TABLE copied (LIKE big) WITH (fillfactor = 45)',
		sql => "COPY copied FROM '" . in_scratch('big.copy') . q{'},
		clean => 'DROP TABLE copied'
	},
	{
		name => 'INSERT ... SELECT',
		before => 'CREATE TABLE copied (LIKE big) WITH (fillfactor = 45)',
		set => only('seqscan'),
		sql => 'INSERT INTO copied SELECT * FROM big',
		plan => qr/^ *->  Seq Scan on big/m,
		clean => 'DROP TABLE copied'
	});

# All servers use one data directory in turns.
sub prepare_tables
{
	$node = make_primary(
		'stock',
		%without_standbys,
		shared_buffers => $shared_buffers,
		max_wal_size => '1GB',
		maintenance_work_mem => '256MB',
		max_parallel_workers_per_gather => '0');

	# Each page has 8 rows.
	my $hot = int(0.4 * 128 * megabytes($shared_buffers)) * 8;
	$node->safe_psql(
		'postgres', qq{
		CREATE EXTENSION pg_buffercache;
		CREATE EXTENSION pg_prewarm;
		CREATE TABLE hot AS SELECT i AS id, repeat('x', 950) AS f FROM generate_series(1, $hot) AS i;
		VACUUM (FREEZE, ANALYZE) hot});
	$rows = make_rows($node, 'big', $large, $per_page);
	my $slice = int($rows / $tables);
	$node->safe_psql(
		'postgres',
		qq{
		CREATE INDEX big_id ON big (id);
		CREATE INDEX big_r ON big (r);
		CREATE INDEX big_almost ON big ((id + (r & 4095)));
		ALTER TABLE big ALTER f SET STORAGE plain;
		CREATE INDEX big_covering ON big (id) INCLUDE (f) WITH (fillfactor = 38);
		-- incompressible values of 100 kB
		CREATE TABLE toasted AS
			SELECT i, (SELECT string_agg(encode(sha512((i * 3000 + j)::text::bytea), 'base64'), '') FROM generate_series(1, 1100) AS j) AS t
			FROM generate_series(1, $large * 10) AS i;
		VACUUM (FREEZE) toasted;
		ANALYZE big;}
		  . join(
			'',
			map {
				"CREATE TABLE small$_ WITH (fillfactor = 45) AS SELECT * FROM big WHERE id > "
				  . ($_ - 1) * $slice
				  . " AND id <= "
				  . $_ * $slice
				  . ";\nVACUUM (FREEZE, ANALYZE) small$_;\n"
			} 1 .. $tables)
		  . "COPY big TO '"
		  . in_scratch('big.copy') . q{';
		CHECKPOINT});
	my ($pages, $index_pages) = split /\|/, $node->safe_psql(
		'postgres', q{
		SELECT pg_relation_size('big') / 8192, pg_relation_size('big_covering') / 8192}
	);
	die "the covering index has $index_pages pages, and the table $pages\n"
	  if $index_pages < 0.9 * $pages;
	return;
}

scenario 'access-paths' => (
	seconds => 15,
	runs => 3,
	disk => 8,
	groups => sub {
		my @methods =
			pg_major("$opt{fork}/bin") < 18 ? 'sync'
		  : $opt{quick}                     ? 'worker'
		  :                                   qw(worker sync);
		my @groups;
		foreach my $server (qw(stock on))
		{
			my @cases;
			foreach my $path (@path)
			{
				push @cases,
				  {
					server => $server,
					size => $shared_buffers,
					path => $path->{name},
					method => $_,
					case => "$path->{name}; $_"
				  }
				  foreach @methods;
			}
			push @groups, \@cases;
		}
		return @groups;
	},
	setup => sub {
		prepare_tables();
		$node->stop;
	},
	run => sub {
		my ($case) = @_;
		my ($path) = grep { $_->{name} eq $case->{path} } @path;
		my $set = $path->{set} // '';
		start_as($node, $case->{server},
			pg_major("$opt{fork}/bin") < 18
			? ()
			: (io_method => $case->{method}));
		$node->safe_psql('postgres', $path->{before}) if $path->{before};
		expect_plan($node, $set, $path->{explain} // $path->{sql},
			$path->{plan})
		  if $path->{plan};
		touch_hot($node, 'hot');

		foreach my $times (qw(once twice))
		{
			ref $path->{sql}
			  ? $path->{sql}->($node)
			  : $node->safe_psql('postgres', $set . $path->{sql});
			record(
				'hot table left',
				'%',
				hot_left($node, 'hot'),
				"$case->{case}; $times");
		}
		$node->safe_psql('postgres', $path->{clean}) if $path->{clean};
		$node->stop;
	},
	teardown => sub {
		discard($node) if $node;
		unlink in_scratch('big.copy');
		undef $node;
	});
