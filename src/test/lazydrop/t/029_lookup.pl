# Copyright (c) 2026, LazyDrop developers

# The buffers of small relations are looked up, block by block, when their files are gone,
# so that no pass is needed (rule R18).  The test checks that nothing is left in
# shared_buffers: of all forks and kinds of relations, and of pages that are read late.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/..";
use LazyDropFiles qw(relation_files add_segments);
use LazyDropUtils
  qw(stats wait_for_stats wait_for_nothing hold_at release evict reload_with
  need_injection_points start_quiet_node start_quiet_pair);
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

need_injection_points();

use constant MB => 1024 * 1024;

# A pass would not come before the test is over.
my $node = start_quiet_node(
	'node',
	'shared_buffers' => '128MB',
	'lazydrop.lookup_limit' => -1,
	'lazydrop.pass_delay' => q{'60s'});
$node->safe_psql('postgres', "CREATE EXTENSION $_")
  foreach qw(injection_points pg_buffercache);

# Returns the number of buffers of relations that do not exist.
sub strays
{
	return $node->safe_psql(
		'postgres', q{
		SELECT count(*) FROM pg_buffercache
		WHERE reldatabase = (SELECT oid FROM pg_database WHERE datname = 'postgres')
		AND relfilenode NOT IN
			(SELECT pg_relation_filenode(oid) FROM pg_class
			 WHERE pg_relation_filenode(oid) IS NOT NULL)});
}

sub blocks
{
	my ($path) = @_;
	my $sum = 0;
	$sum += (-s $node->data_dir . "/$_") / 8192
	  foreach relation_files($node, $path);
	return $sum;
}

# Run a command that drops relations, and check how many blocks were looked up.
sub check
{
	my ($command, $blocks, $what) = @_;
	my $before = stats($node);
	$node->safe_psql('postgres', $command);
	wait_for_nothing($node);
	my $after = stats($node);
	is($after->{passes}, $before->{passes}, "$what: no pass");
	is($after->{blocks_looked_up} - $before->{blocks_looked_up},
		$blocks, "$what: as many blocks are looked up as there are")
	  if defined $blocks;
	is(strays(), 0, "$what: no buffer is left");
	return;
}

# --- forks and kinds of relations -------------------------------------------

foreach my $kind ('', 'UNLOGGED')
{
	$node->safe_psql(
		'postgres', qq{
		CREATE $kind TABLE t (a int PRIMARY KEY, b text);
		INSERT INTO t SELECT i, repeat(md5(i::text), 100) FROM generate_series(1, 2000) AS i;
		DELETE FROM t WHERE a % 3 = 0});
	$node->safe_psql('postgres', 'VACUUM t');
	my @paths = split /\n/, $node->safe_psql(
		'postgres', q{
		SELECT pg_relation_filepath(c) FROM (SELECT 't'::regclass
			UNION SELECT 't_pkey' UNION SELECT reltoastrelid FROM pg_class WHERE relname = 't'
			UNION SELECT indexrelid FROM pg_index, pg_class
				WHERE indrelid = reltoastrelid AND relname = 't') AS c(c)});
	is(scalar(@paths), 4, 'a table, its TOAST table, and their indexes');
	my $blocks = 0;
	$blocks += blocks($_) foreach @paths;
	check('DROP TABLE t', $blocks, "$kind table");
}
$node->safe_psql('postgres',
	'CREATE TABLE t AS SELECT generate_series(1, 1000) AS a');
check('TRUNCATE t', undef, 'TRUNCATE');
check('VACUUM FULL t', undef, 'VACUUM FULL');
check('DROP TABLE t', undef, 'an empty table');
check('BEGIN; CREATE TABLE t AS SELECT 1 AS a; ROLLBACK',
	1, 'a table that was never committed');

# --- two segments -----------------------------------------------------------

# A page of the second one is dirty.
{
	$node->safe_psql('postgres', 'CREATE TABLE t AS SELECT 1 AS a');
	my $path =
	  $node->safe_psql('postgres', q{SELECT pg_relation_filepath('t')});
	$node->safe_psql('postgres', 'CHECKPOINT');
	evict($node, 'postgres');
	truncate($node->data_dir . "/$path", 1024 * MB)
	  or die "could not extend $path: $!";
	add_segments($node, $path, 1, 8192);
	$node->safe_psql('postgres', 'INSERT INTO t VALUES (-1)');
	reload_with($node, 'lazydrop.lookup_limit' => '2GB');
	check('DROP TABLE t', 131073, 'two segments');
	reload_with($node, 'lazydrop.lookup_limit' => -1);
}

# --- pages that are pinned, or read while files are removed -----------------

# ALTER SEQUENCE takes a lock that does not prevent others from reading the old file.
$node->safe_psql('postgres', 'CREATE SEQUENCE s');
$node->safe_psql('postgres', 'CHECKPOINT');
{
	my $reader = $node->background_psql('postgres');
	$reader->query_safe(
		q{BEGIN; DECLARE w CURSOR FOR SELECT * FROM s; FETCH w; CLOSE w; COMMIT}
	);
	$reader->query_safe(q{BEGIN; DECLARE c CURSOR FOR SELECT * FROM s});
	hold_at($node, 'lazydrop-removal');
	my $passes = stats($node)->{passes};
	$node->safe_psql('postgres', 'ALTER SEQUENCE s INCREMENT 2');
	$node->wait_for_event('lazy drop worker', 'lazydrop-removal');
	evict($node, 'postgres');
	$reader->query_safe(q{FETCH c});
	release($node, 'lazydrop-removal');
	wait_for_stats($node,
		q{s->>'pending_files' = '0' AND s->>'pending_relations' = '1'});
	is(strays(), 1, 'a page that is read late and pinned stays');
	$reader->query_safe('COMMIT');
	wait_for_nothing($node);
	is(strays(), 0, 'until it is not pinned any more');
	is(stats($node)->{passes}, $passes, 'without a pass');
	$reader->quit;
}

# --- relations that need a pass ----------------------------------------------

{
	reload_with($node, 'lazydrop.pass_delay' => 0);
	my $before = stats($node);
	$node->safe_psql('postgres',
		'CREATE TABLE t AS SELECT generate_series(1, 200000) AS a');
	$node->safe_psql('postgres', 'DROP TABLE t');
	wait_for_nothing($node);
	my $after = stats($node);
	is( $after->{passes},
		$before->{passes} + 1,
		'a large relation is left to a pass');
	is( $after->{blocks_looked_up},
		$before->{blocks_looked_up},
		'and not looked up');

	# Somebody has removed the file, so its size is not known.
	$node->safe_psql('postgres', 'CREATE TABLE t AS SELECT 1 AS a');
	my $path =
	  $node->safe_psql('postgres', q{SELECT pg_relation_filepath('t')});
	unlink($node->data_dir . "/$path") or die "could not unlink $path: $!";
	$node->safe_psql('postgres', 'DROP TABLE t');
	wait_for_nothing($node);
	is( stats($node)->{passes},
		$after->{passes} + 1,
		'so is a relation whose main fork is missing');
	is(strays(), 0, 'no buffer is left');
	# All lookups together must not cost more than a pass.
	$before = stats($node);
	my @tables = map { "t$_" } 1 .. 40;
	$node->safe_psql(
		'postgres',
		join "\n",
		map { "CREATE TABLE $_ AS SELECT generate_series(1, 8000) AS a;" }
		  @tables);
	$node->safe_psql('postgres', 'DROP TABLE ' . join(', ', @tables));
	wait_for_nothing($node);
	$after = stats($node);
	is( $after->{passes},
		$before->{passes} + 1,
		'many small relations are left to a pass');
	cmp_ok($after->{blocks_looked_up} - $before->{blocks_looked_up},
		'<=', 16384 / 32, 'apart from a few');
	is(strays(), 0, 'no buffer is left');

	# DROP DATABASE that is not deferred may remove files before they are measured.
	$node->safe_psql('postgres', 'CREATE DATABASE d');
	$node->safe_psql('d', 'CREATE TABLE t AS SELECT 1 AS a');
	hold_at($node, 'lazydrop-removal');
	$before = stats($node);
	$node->safe_psql('d', 'DROP TABLE t');
	$node->wait_for_event('lazy drop worker', 'lazydrop-removal');

	# The checkpoint hides and measures them, so that only the drop of the database makes
	# the difference.
	$node->safe_psql('postgres', 'CHECKPOINT');
	reload_with($node, 'lazydrop.defer_files' => 'off');
	$node->safe_psql('postgres', 'DROP DATABASE d');
	release($node, 'lazydrop-removal');
	wait_for_nothing($node);
	is( stats($node)->{blocks_looked_up},
		$before->{blocks_looked_up},
		'relations of a dropped database are left to a pass');
	reload_with($node, 'lazydrop.pass_delay' => q{'60s'});
}

$node->stop;
unlike(slurp_file($node->logfile), qr/PANIC|TRAP/, 'the log is clean');

done_testing();
