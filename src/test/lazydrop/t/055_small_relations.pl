# Copyright (c) 2026, LazyDrop developers

# Commands that visit all buffer headers in stock look up the blocks of a small relation
# instead (rule R18): when a temporary table is dropped or truncated, when a table is moved
# to another tablespace, and at commit with wal_level = minimal.  A page that they miss is
# lost, or is written to a file that does not exist any more.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/..";
use LazyDropUtils qw(log_is_clean);
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = PostgreSQL::Test::Cluster->new('node');
$node->init;
$node->append_conf(
	'postgresql.conf', q{
shared_buffers = 512MB
temp_buffers = 256MB
wal_level = minimal
max_wal_senders = 0
wal_skip_threshold = 0
checkpoint_timeout = 1h
bgwriter_lru_maxpages = 0
autovacuum = off
max_prepared_transactions = 0
max_locks_per_transaction = 256
});
$node->start;

# Rows of ordinary width, some with values that are stored out of line, and some deleted,
# so that there are free space and visibility maps.
my $rows = q{SELECT i AS a, md5(i::text) AS b,
	CASE WHEN i % 500 = 0 THEN (SELECT string_agg(md5((i + j)::text), '')
		FROM generate_series(1, 200) AS j) END AS c
	FROM generate_series(1, 5000) AS i};

sub contents
{
	my ($table) = @_;
	return $node->safe_psql('postgres',
		"SET enable_seqscan = off; SELECT count(*), md5(string_agg(t::text, ',' ORDER BY a)) FROM $table AS t WHERE a > 0"
	);
}

# --- commit with wal_level = minimal ----------------------------------------

{
	my @tables = map { "t$_" } 1 .. 5;
	$node->safe_psql(
		'postgres',
		join "\n",
		map {
			"BEGIN; CREATE TABLE $_ AS $rows; ALTER TABLE $_ ADD PRIMARY KEY (a); DELETE FROM $_ WHERE a % 3 = 0; COMMIT;"
		} @tables);
	my @before = map { contents($_) } @tables;
	$node->stop('immediate');
	$node->start;
	is_deeply([ map { contents($_) } @tables ],
		\@before, 'all pages are on disk at commit');
}

# --- ALTER TABLE SET TABLESPACE ---------------------------------------------

{
	$node->safe_psql('postgres', 'VACUUM t1');
	$node->safe_psql('postgres', q{UPDATE t1 SET b = 'new' WHERE a % 7 = 0});
	my $before = contents('t1');
	$node->safe_psql('postgres',
		q{SET allow_in_place_tablespaces = on; CREATE TABLESPACE space LOCATION ''}
	);
	$node->safe_psql('postgres',
		'ALTER TABLE t1 SET TABLESPACE space; ALTER INDEX t1_pkey SET TABLESPACE space'
	);
	is(contents('t1'), $before, 'a table that is moved keeps its changes');
	$node->stop('immediate');
	$node->start;
	is(contents('t1'), $before, 'also after a crash');
}

# --- temporary tables -------------------------------------------------------

# At the end, all local buffers are used for another table, so that each dirty page that
# has been forgotten is written.
{
	my $fill = q{
		CREATE TEMP TABLE fill (a text);
		ALTER TABLE fill ALTER a SET STORAGE PLAIN;
		INSERT INTO fill SELECT repeat('x', 7000) FROM generate_series(1, 33000);
		DROP TABLE fill;};
	my $make = qq{
		CREATE TEMP TABLE t AS $rows;
		CREATE INDEX ON t (a);
		DELETE FROM t WHERE a % 3 = 0;
		VACUUM t;
		UPDATE t SET b = 'new' WHERE a % 7 = 0;};
	my ($out, $err);

	foreach my $drop (
		'DROP TABLE t;',
		'BEGIN; DROP TABLE t; COMMIT;',
		'TRUNCATE t; DROP TABLE t;',
		'BEGIN; CREATE TEMP TABLE u AS SELECT * FROM t; SAVEPOINT s; CREATE TEMP TABLE v AS SELECT * FROM t; ROLLBACK TO s; ROLLBACK; DROP TABLE t;',
		'DELETE FROM t WHERE a > 100; VACUUM t; DROP TABLE t;',
		'DISCARD TEMP;')
	{
		is($node->psql('postgres', "$make $drop $fill", stderr => \$err),
			0, "no page of a temporary table is left: $drop")
		  or diag $err;
	}

	# Each transaction must see the table empty in the beginning, and its own rows then.
	my $again = join '', map {
		"BEGIN; SELECT count(*) FROM d; INSERT INTO d SELECT i, md5(i::text), NULL FROM generate_series(1, $_ * 100) AS i; SELECT count(*), sum(a) FROM d WHERE a > 0; COMMIT;\n"
	} 1 .. 20;
	$out = $node->safe_psql('postgres',
		"CREATE TEMP TABLE d (a int PRIMARY KEY, b text, c text) ON COMMIT DELETE ROWS;\n$again SELECT count(*) FROM d;$fill"
	);
	my $expected = join '',
	  map { my $n = $_ * 100; "0\n$n|" . $n * ($n + 1) / 2 . "\n" } 1 .. 20;
	is($out, $expected . '0', 'ON COMMIT DELETE ROWS');
}

# A temporary table is truncated in a critical section, where nothing may be allocated,
# however many relations the session has opened: a hash table grows at some numbers.
{
	$node->safe_psql('postgres',
		join "\n", map { "CREATE TABLE many$_ (a int);" } 1 .. 600);
	my $out = $node->safe_psql(
		'postgres',
		join "\n",
		'CREATE TEMP TABLE d (a int) ON COMMIT DELETE ROWS;',
		map {
			"BEGIN; SELECT count(*) FROM many$_; INSERT INTO d VALUES ($_); COMMIT;"
		} 1 .. 600);
	is( $out,
		join("\n", (0) x 600),
		'ON COMMIT DELETE ROWS with many relations');
}

$node->stop;
log_is_clean($node);

done_testing();
