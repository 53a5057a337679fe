# Copyright (c) 2026, LazyDrop developers

# A relation that is truncated to a part of its length still exists, so it is not buried.
# The removed blocks are looked up in the buffer pool (rule R12).  None of them may stay
# in a buffer: when the relation is extended again, these pages must be empty.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/..";
use LazyDropUtils qw(stats start_quiet_node stop_with_clean_log);
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = start_quiet_node('node', 'shared_buffers' => '128MB');
$node->safe_psql('postgres', 'CREATE EXTENSION pg_buffercache');

foreach my $enabled ('on', 'off')
{
	$node->safe_psql('postgres',
		"ALTER SYSTEM SET lazydrop.enabled = $enabled");
	$node->reload;
	$node->poll_query_until('postgres',
		"SELECT current_setting('lazydrop.enabled') = '$enabled'")
	  or die 'the setting was not reloaded';

	# Few blocks, compared with the 512 that are looked up at most, and many.
	foreach my $rows (20_000, 400_000)
	{
		my $what = "lazydrop.enabled = $enabled, $rows rows";
		$node->safe_psql(
			'postgres', qq{
			CREATE TABLE t (a int);
			INSERT INTO t SELECT generate_series(1, $rows);
			VACUUM t;
			DELETE FROM t WHERE a > 1000;});
		my $buried = stats($node)->{deferred_relations};
		$node->safe_psql('postgres', 'VACUUM (TRUNCATE) t');
		is( $node->safe_psql(
				'postgres', q{
				SELECT count(*) FROM pg_buffercache
				WHERE relfilenode = pg_relation_filenode('t')
				AND relforknumber = 0
				AND relblocknumber >= pg_relation_size('t') / 8192}),
			'0',
			"$what: no page behind the end");
		cmp_ok($node->safe_psql('postgres', q{SELECT pg_relation_size('t')}),
			'<', 10 * 8192, "$what: VACUUM gave the tail back");
		is(stats($node)->{deferred_relations},
			$buried, "$what: and buried nothing");
		$node->safe_psql('postgres',
			"INSERT INTO t SELECT generate_series(1, $rows)");
		is( $node->safe_psql('postgres', 'SELECT count(*) FROM t'),
			$rows + 1000,
			"$what: it grows again");

		# TRUNCATE of a table created in the same transaction truncates all forks.
		is( $node->safe_psql(
				'postgres', qq{
				BEGIN;
				CREATE TABLE new (a int);
				INSERT INTO new SELECT generate_series(1, $rows);
				TRUNCATE new;
				INSERT INTO new SELECT generate_series(1, 100);
				COMMIT;
				SELECT count(*) FROM new;}),
			'100',
			"$what: a table that is truncated where it was made");
		$node->safe_psql('postgres', "DROP TABLE t;\nDROP TABLE new;");
	}
}

stop_with_clean_log($node);

done_testing();
