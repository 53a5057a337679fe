# Copyright (c) 2026, LazyDrop developers

# TRUNCATE empties files in place if a rollback will discard them anyway.  ALTER TABLE SET
# TABLESPACE gives the table a new file, but the indexes keep their files.  A rollback
# restores the rows of the table, and must not leave the indexes empty.
#
# See doc/upstream/truncate-rollback.md.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/..";
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use StockFault qw(check_fault new_node configure);
use Test::More;

# Statements that change table t in a transaction that is rolled back, or partly rolled
# back.
my %moves = (
	'a table' =>
	  'BEGIN; ALTER TABLE t SET TABLESPACE other; TRUNCATE t; ROLLBACK',
	'a partition' =>
	  'BEGIN; ALTER TABLE part SET TABLESPACE other; TRUNCATE t; ROLLBACK',
	'an index that keeps its file' =>
	  'BEGIN; ALTER TABLE t SET TABLESPACE other; ALTER TABLE t ALTER b TYPE varchar(20);'
	  . ' TRUNCATE t; ROLLBACK',
	'a subtransaction' => 'BEGIN; CREATE TABLE t2 (LIKE t INCLUDING ALL);'
	  . ' INSERT INTO t2 SELECT * FROM t; SAVEPOINT s;'
	  . ' ALTER TABLE t2 SET TABLESPACE other; TRUNCATE t2; ROLLBACK TO s;'
	  . ' DROP TABLE t; ALTER TABLE t2 RENAME TO t; COMMIT',
	'all indexes but one' =>
	  'BEGIN; ALTER TABLE t SET TABLESPACE other; REINDEX INDEX t_pkey; TRUNCATE t; ROLLBACK',
	'a TOAST table' =>
	  'BEGIN; ALTER TABLE t SET TABLESPACE other; ALTER INDEX t_pkey SET TABLESPACE other;'
	  . ' ALTER INDEX t_b_idx SET TABLESPACE other; TRUNCATE t; ROLLBACK',);

# If all files are new, the truncation is still done in place.
my %in_place = (
	'a new table' => 'CREATE TABLE n (a int PRIMARY KEY, c text)',
	'a rewritten table' => 'TRUNCATE old');

check_fault(
	'rollback of TRUNCATE',
	sub {
		my $node = new_node('truncate');
		$node->init;
		configure(
			$node,
			allow_in_place_tablespaces => 'on',
			autovacuum => 'off',
			fsync => 'off');
		$node->start;
		$node->safe_psql('postgres', "CREATE TABLESPACE other LOCATION ''");
		my @wrong;

		foreach my $name (sort keys %moves)
		{
			my $partitioned = $moves{$name} =~ /part/;
			$node->safe_psql(
				'postgres',
				'CREATE TABLE t (a int PRIMARY KEY, b varchar(10), c text)'
				  . (
					$partitioned
					? ' PARTITION BY RANGE (a);'
					  . ' CREATE TABLE part PARTITION OF t DEFAULT;'
					: ';')
				  . q{
				CREATE INDEX t_b_idx ON t (b);
				ALTER TABLE t ALTER c SET STORAGE EXTERNAL;
				INSERT INTO t SELECT g, g, repeat('x', 3000) FROM generate_series(1, 100) g;
				});
			$node->safe_psql('postgres', $moves{$name});
			# Count the rows by a scan of the table, by each index, and by the values in
			# the TOAST table.
			my $found = $node->safe_psql(
				'postgres', q{
				SELECT count(*) FROM t WHERE a + 0 > 0;
				SET enable_seqscan = off;
				SELECT count(*) FROM t WHERE a > 0;
				SELECT count(*) FROM t WHERE b >= '';
				SELECT coalesce(sum(length(c)), 0) / 3000 FROM t WHERE a + 0 > 0;
				DROP TABLE t;
				});
			push @wrong, "$name: " . join(' ', split(/\n/, $found))
			  if $found ne "100\n100\n100\n100";
		}

		$node->safe_psql('postgres',
			'CREATE TABLE old (a int PRIMARY KEY, c text)');
		foreach my $name (sort keys %in_place)
		{
			my ($table) = $in_place{$name} =~ /TABLE n/ ? 'n' : 'old';
			my $same = $node->safe_psql(
				'postgres', qq{
				BEGIN;
				$in_place{$name};
				CREATE TEMP TABLE before AS
					SELECT oid, relfilenode FROM pg_class;
				TRUNCATE $table;
				SELECT count(*) FROM pg_class c JOIN before b USING (oid)
					WHERE b.relfilenode <> c.relfilenode;
				ROLLBACK;
				});
			push @wrong, "$name is not truncated in place" if $same ne '0';
		}
		return join('; ', @wrong);
	});

done_testing();
