# Copyright (c) 2026, LazyDrop developers

# A server of the fork loads modules that were built for stock PostgreSQL.  Each module of
# contrib is used with entries pending and after a crash.  Then stock PostgreSQL reads the
# files that the modules have left on disk.
#
# LAZYDROP_STOCK is the directory above bin of an installation of PostgreSQL ("stock")
# that was built from the same source with the same options.  If LAZYDROP_STOCK_BUILD is
# the directory in which it was built, contrib's own regression tests are run, too.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/..";
use IPC::Run;
use LazyDropFiles qw(orphaned_files contents);
use LazyDropUtils qw(stats log_is_clean start_as pg_major);
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $stock = $ENV{LAZYDROP_STOCK} // '';
plan skip_all =>
  'LAZYDROP_STOCK does not name an installation of PostgreSQL built from the same source'
  if $stock eq '';
die "there is no server in \"$stock/bin\"" unless -x "$stock/bin/postgres";

my ($stock_modules, $stock_share) =
  map { (run_command([ "$stock/bin/pg_config", "--$_" ]))[0] }
  qw(pkglibdir sharedir);

# With these settings, a server of the fork finds the modules of stock and no others.
# PostgreSQL 17 has no extension_control_path.  There, the server runs from an
# installation that has the programs of the fork, and everything else from stock.
my %settings;
my $installation;
if (pg_major() >= 18)
{
	%settings = (
		'dynamic_library_path' => "'$stock_modules'",
		'extension_control_path' => "'$stock_share'");
}
else
{
	my ($programs) = run_command([ 'pg_config', '--bindir' ]);
	$installation = PostgreSQL::Test::Utils::tempdir();
	system_or_bail('cp', '-R', $programs, "$installation/bin");
	symlink("$stock/$_", "$installation/$_")
	  or die "could not make a symbolic link: $!"
	  foreach qw(lib share);
}

sub start_with_stock_modules
{
	my ($name, %more) = @_;
	my $node = PostgreSQL::Test::Cluster->new($name);
	$node->init(allows_streaming => 'logical');
	my %all = (%more, %settings);
	$node->append_conf('postgresql.conf',
		join('', map { "$_ = $all{$_}\n" } sort keys %all));
	start_as($node, 'fork', $installation);
	return $node;
}

my $modules = start_with_stock_modules(
	'modules',
	'autovacuum' => 'off',
	'bgwriter_lru_maxpages' => '0',
	'checkpoint_timeout' => '1h',
	'max_prepared_transactions' => '5',
	'shared_buffers' => '32MB',
	'track_functions' => 'all',
	'track_io_timing' => 'on',
	'lazydrop.lookup_limit' => '0',
	'lazydrop.pass_delay' => "'60s'",
	'auto_explain.log_min_duration' => '0',
	'auto_explain.log_analyze' => 'on',
	'pg_prewarm.autoprewarm_interval' => '0',
	'shared_preload_libraries' =>
	  "'pg_stat_statements, auto_explain, pg_prewarm'");

# Create all extensions of stock.  CREATE FUNCTION loads the library and looks up the
# function.
my @extensions = split /\n/,
  $modules->safe_psql('postgres', 'SELECT name FROM pg_available_extensions');
$modules->safe_psql(
	'postgres',
	join('',
		map { qq{CREATE EXTENSION IF NOT EXISTS "$_" CASCADE;\n} }
		sort @extensions));
cmp_ok(scalar(@extensions), '>=', 40, 'extensions of stock are created');

$modules->safe_psql(
	'postgres', q{
	CREATE TABLE live (id int PRIMARY KEY, t text, a int[]);
	INSERT INTO live SELECT g, md5(g::text), ARRAY[g, g + 1] FROM generate_series(1, 3000) AS g;
	CREATE INDEX live_bloom ON live USING bloom (id, t);
	CREATE INDEX live_trgm ON live USING gin (t gin_trgm_ops);
	CREATE INDEX live_array ON live USING gist (a gist__intbig_ops);
	CREATE INDEX live_gist ON live USING gist (id);
	VACUUM ANALYZE live;
	CREATE TABLE gone AS SELECT * FROM live;
	CREATE INDEX gone_bloom ON gone USING bloom (id, t);
	SELECT 'init' FROM pg_create_logical_replication_slot('slot', 'test_decoding');
	CREATE DATABASE gone_db;
	CREATE SERVER self FOREIGN DATA WRAPPER postgres_fdw OPTIONS (dbname 'postgres', host '}
	  . $modules->host . q{', port '} . $modules->port . q{');
	CREATE USER MAPPING FOR CURRENT_USER SERVER self;
	CREATE FOREIGN TABLE live_far (id int, t text) SERVER self OPTIONS (table_name 'live');
	CREATE SERVER files FOREIGN DATA WRAPPER file_fdw;
	CREATE FOREIGN TABLE file (line text) SERVER files OPTIONS (filename 'PG_VERSION');
	CHECKPOINT;
	UPDATE gone SET t = md5(t);});
my $gone = $modules->safe_psql('postgres',
	q{SELECT pg_relation_filenode('gone') || ', ' || pg_relation_filenode('gone_bloom')}
);
my $before_drop = $modules->lsn('insert');
my %before_drop = %{ stats($modules) };
$modules->safe_psql('postgres', $_)
  foreach 'DROP TABLE gone', 'DROP DATABASE gone_db';

# Queries and their results, first with entries pending, and then with none.
my $self =
	q{'dbname=postgres host=}
  . $modules->host
  . ' port='
  . $modules->port . q{'};
my @uses = (
	[
		amcheck => q{SELECT bt_index_parent_check('live_pkey', true, true)},
		''
	],
	pg_major() < 18
	? ()
	: ( [ amcheck => q{SELECT gin_index_check('live_trgm')}, '' ],
		[
			pg_overexplain =>
			  q{LOAD 'pg_overexplain'; EXPLAIN (DEBUG, RANGE_TABLE, COSTS off) SELECT},
			qr/PlannedStmt/
		]),
	[ amcheck => q{SELECT count(*) FROM verify_heapam('live')}, 0 ],
	[
		bloom =>
		  q{SET enable_seqscan = off; SET enable_indexscan = off; SELECT count(*) FROM live WHERE id = 77 AND t = md5('77')},
		1
	],
	[
		btree_gist => q{SELECT id FROM live ORDER BY id <-> 1000 LIMIT 1},
		1000
	],
	[ citext => q{SELECT 'A'::citext = 'a'}, 't' ],
	[ cube => q{SELECT cube(1, 2) @> '(1.5)'}, 't' ],
	[
		dblink =>
		  qq{SELECT * FROM dblink($self, 'SELECT count(*) FROM live') AS r(n int)},
		3000
	],
	[
		dblink =>
		  qq{SELECT dblink_exec($self, 'CREATE TABLE t AS SELECT 1; DROP TABLE t')},
		'DROP TABLE'
	],
	[ file_fdw => q{SELECT line FROM file}, pg_major() ],
	[ fuzzystrmatch => q{SELECT levenshtein('kitten', 'sitting')}, 3 ],
	[ hstore => q{SELECT ('a=>1, b=>2'::hstore -> 'b')}, 2 ],
	[
		intarray =>
		  q{SET enable_seqscan = off; SELECT id FROM live WHERE a @> '{99, 100}'},
		99
	],
	[ ltree => q{SELECT 'a.b.c'::ltree <@ 'a.b'}, 't' ],
	[
		pageinspect =>
		  q{SELECT lower > 0 FROM page_header(get_raw_page('live', 0))},
		't'
	],
	[ pageinspect => q{SELECT magic FROM bt_metap('live_pkey')}, 340322 ],
	[
		pg_buffercache =>
		  q{SELECT count(*) > 0 FROM pg_buffercache WHERE relfilenode = pg_relation_filenode('live')},
		't'
	],
	[
		pg_buffercache =>
		  q{SELECT buffers_used > 0 FROM pg_buffercache_summary()},
		't'
	],
	[
		pg_freespacemap => q{SELECT count(*) > 10 FROM pg_freespace('live')},
		't'
	],
	[ pg_prewarm => q{SELECT pg_prewarm('live', 'read') > 10}, 't' ],
	[ pg_prewarm => q{SELECT pg_prewarm('live_bloom', 'buffer') > 5}, 't' ],
	[ pg_prewarm => q{SELECT autoprewarm_dump_now() > 100}, 't' ],
	[
		pg_stat_statements =>
		  q{SELECT count(*) > 10 FROM pg_stat_statements WHERE calls > 0},
		't'
	],
	[
		pg_surgery =>
		  q{BEGIN; SELECT heap_force_freeze('live', '{"(0,7)"}'); ROLLBACK},
		''
	],
	[
		pg_trgm =>
		  q{SET enable_seqscan = off; SELECT count(*) FROM live WHERE t LIKE '%' || md5('5') || '%'},
		1
	],
	[ pg_visibility => q{SELECT count(*) FROM pg_check_visible('live')}, 0 ],
	[ pg_visibility => q{SELECT pg_truncate_visibility_map('live')}, '' ],
	[
		pg_visibility =>
		  q{SELECT all_visible FROM pg_visibility_map_summary('live')},
		0
	],
	[
		pg_walinspect =>
		  qq{SELECT count(*) FROM pg_get_wal_records_info('$before_drop', pg_current_wal_lsn()) WHERE resource_manager = 'Database' AND record_type = 'DROP'},
		1
	],
	[
		pgcrypto => q{SELECT encode(digest('a', 'md5'), 'hex') = md5('a')},
		't'
	],
	[
		pgrowlocks =>
		  q{BEGIN; SELECT FROM live WHERE id = 1 FOR UPDATE; SELECT modes FROM pgrowlocks('live'); COMMIT},
		qr/For Update/
	],
	[ pgstattuple => q{SELECT tuple_count FROM pgstattuple('live')}, 3000 ],
	[
		pgstattuple => q{SELECT leaf_pages > 1 FROM pgstatindex('live_pkey')},
		't'
	],
	[
		postgres_fdw =>
		  q{SELECT count(*), min(t) = min(md5('1')) FROM live_far WHERE id = 1},
		'1|t'
	],
	[
		postgres_fdw =>
		  q{UPDATE live_far SET t = t WHERE id = 1 RETURNING id},
		1
	],
	[ tablefunc => q{SELECT count(*) FROM normal_rand(10, 0, 1)}, 10 ],
	[
		test_decoding =>
		  q{SELECT count(*) > 0 FROM pg_logical_slot_peek_changes('slot', NULL, NULL) WHERE data LIKE '%UPDATE%'},
		't'
	],
	[
		tsm_system_rows =>
		  q{SELECT count(*) FROM live TABLESAMPLE system_rows(100)},
		100
	],
	[ unaccent => q{SELECT unaccent('é')}, 'e' ]);

sub use_modules
{
	my ($what) = @_;
	foreach my $use (@uses)
	{
		my ($module, $query, $expected) = @$use;
		my ($status, $out, $err) = $modules->psql('postgres', $query);
		my $name = "$module, $what: $query";
		if (ref $expected)
		{
			like("$out$err", $expected, $name);
		}
		else
		{
			$out =~ s/^\n+//;
			is("$status: $out$err", "0: $expected", $name);
		}
	}
	return;
}

use_modules('entries pending');

# The list that autoprewarm has written contains blocks of dropped relations.
my ($any_gone) = split /, /, $gone;
my $blocks = slurp_file($modules->data_dir . '/autoprewarm.blocks');
like(
	$blocks,
	qr/^[0-9]+,[0-9]+,$any_gone,/m,
	'pg_prewarm sees what is pending');

# pg_buffercache shows their buffers, and evicts them without a write.
my $in_buffers =
  "SELECT count(*) FROM pg_buffercache WHERE relfilenode IN ($gone)";
cmp_ok($modules->safe_psql('postgres', $in_buffers),
	'>', 50, 'pg_buffercache sees what is pending');
is( $modules->safe_psql(
		'postgres', qq{
		SELECT bool_and(done) AND bool_or(isdirty)
		FROM pg_buffercache, pg_buffercache_evict(bufferid) AS evicted(done)
		WHERE relfilenode IN ($gone)}
	),
	't',
	'and evicts it');
is($modules->safe_psql('postgres', $in_buffers), 0, 'all of it');
my $stats = stats($modules);
cmp_ok(
	$stats->{writes_skipped},
	'>',
	$before_drop{writes_skipped},
	'without a write');
is($stats->{passes}, $before_drop{passes}, 'no pass was made until then');
cmp_ok($stats->{pending_relations}, '>=', 2, 'so all is pending');

SKIP:
{
	# Check which libraries a session has mapped after using them.
	my $session = $modules->background_psql('postgres');
	my $pid = $session->query_safe('SELECT pg_backend_pid()');
	skip 'there is no /proc to look at', 1 unless -r "/proc/$pid/maps";
	$session->query_safe($_)
	  foreach q{SELECT ('a=>1'::hstore -> 'a')},
	  q{SELECT pg_prewarm('live')},
	  q{DO 'BEGIN END'};
	my %mapped = map { m{(/\S+/([^/]+)\.so)$} ? ($2 => $1) : () }
	  split /\n/, slurp_file("/proc/$pid/maps");
	my @expected =
	  qw(auto_explain hstore pg_prewarm pg_stat_statements plpgsql);
	is_deeply(
		[ @mapped{@expected} ],
		[ map { "$stock_modules/$_.so" } @expected ],
		'modules are those of stock');
	$session->quit;
}

# Crash, and let autoprewarm run.
$modules->stop('immediate');
my $offset = -s $modules->logfile;
start_as($modules, 'fork', $installation);
$modules->wait_for_log(
	qr/autoprewarm successfully prewarmed [1-9][0-9]* of [0-9]+ previously-loaded blocks/,
	$offset);

# Replay has read pages of relations that it has dropped later.  The worker removes them
# from the buffers.
$modules->append_conf('postgresql.conf', 'lazydrop.pass_delay = 0');
$modules->reload;
$modules->poll_query_until('postgres', "SELECT ($in_buffers) = 0")
  or die 'something that was dropped stays in the buffers';
pass('autoprewarm does not bring back what was dropped');
like(slurp_file($modules->logfile, $offset),
	qr/Query Text/, 'auto_explain writes into the log');
ok(defined stats($modules)->{worker_pid}, 'there is a worker beside them');
use_modules('after a crash');

# Check the data that modules keep on disk.
my $kept = q{
	SELECT calls, rows FROM pg_stat_statements WHERE query = 'SELECT $1 AS kept';
	SELECT data FROM pg_logical_slot_peek_changes('slot', NULL, NULL);};
$modules->safe_psql('postgres', q{SELECT 'this' AS kept}) foreach 1 .. 7;
my $before = $modules->safe_psql('postgres', $kept);
like($before, qr/^7\|7\nBEGIN/, 'statements are counted');
my $contents = contents($modules);
$modules->stop;
start_as($modules, 'stock');
is($modules->safe_psql('postgres', $kept),
	$before, 'stock finds counts and a replication slot');
is_deeply(contents($modules), $contents, 'and all else');
$modules->safe_psql('postgres', 'CHECKPOINT');
is_deeply([ orphaned_files($modules) ], [], 'and no file is left');
$modules->stop;
log_is_clean($modules, crashed => 1);

# --- contrib's own tests ----------------------------------------------------

SKIP:
{
	my $build = $ENV{LAZYDROP_STOCK_BUILD} // '';
	skip
	  'LAZYDROP_STOCK_BUILD does not name the directory in which stock was built',
	  1
	  if $build eq '';

	# These settings are taken from the configurations of the tests.
	my $server = start_with_stock_modules(
		'contrib',
		'archive_mode' => 'on',
		'archive_library' => "'basic_archive'",
		'autovacuum_naptime' => '1d',
		'basic_archive.archive_directory' => "'.'",
		'compute_query_id' => 'regress',
		'lazydrop.lookup_limit' => '0',
	'lazydrop.pass_delay' => "'60s'",
		'logical_decoding_work_mem' => '64kB',
		'max_connections' => '50',
		'max_prepared_transactions' => '5',
		'max_replication_slots' => '4',
		'shared_buffers' => '128MB',
		'shared_preload_libraries' => "'pg_stat_statements'");
	my $log =
	  $PostgreSQL::Test::Utils::log_path . '/048_stock_modules_contrib_make';
	my $ok;
	{
		local %ENV = $server->_get_env(
			LD_LIBRARY_PATH => "$stock/lib",
			MAKEFLAGS => undef,
			MAKELEVEL => undef,
			MFLAGS => undef,
			PGAPPNAME => undef);

		# Skip tests that start their own servers, because they would start stock's.
		$ok = IPC::Run::run(
			[
				'make', '-k',
				'-C', "$build/contrib",
				'installcheck', 'enable_tap_tests=no',
				'NO_INSTALLCHECK='
			],
			'<' => \'',
			'>&' => $log);
	}
	my $output = slurp_file($log);
	ok($ok, q{contrib's tests}) or diag $output =~ /^(not ok .*)$/mg;
	my $ntests = 0;
	$ntests += $1 while $output =~ /^# All ([0-9]+) tests passed/mg;
	cmp_ok($ntests, '>=', 150, "$ntests of them");
	cmp_ok(stats($server)->{deferred_relations}, '>', 500,
		'which drop a lot');
	$server->stop;
	log_is_clean($server);
}

done_testing();
