
# Copyright (c) 2026, LazyDrop developers

# Source: Luke Lonergan and others on pgsql-hackers, March 2007 ("buffer cache is not scan
# resistant"): SELECT count(*) and VACUUM of a table that fits the cache and of one twice its
# size, at several shared_buffers; large ones made scans slower, and a scan threw out what
# others used.
#
# Asks: how fast are these scans; and how much of a hot set, nine tenths of shared_buffers,
# used once or many times, survives a scan of 0.2, 0.3 and 2 times shared_buffers, by heap scan, by
# index scan and by VACUUM?  It measures stock and the fork as they are.
#
# Expected: no difference between stock and fork.  Throughput does not fall with more
# shared_buffers.  Heap scans of a quarter of shared_buffers and more, and VACUUM, use a
# ring and cost the hot set nothing; index scans, and smaller heap scans, use all of it.

use strict;
use warnings FATAL => 'all';

use LazyDropBench;
use Time::HiRes qw(time);

# 2 kB for each row, four to a page
sub make_table
{
	my ($node, $name, $mb, $key) = @_;
	my $rows = int($mb * 512);
	$node->safe_psql(
		'postgres', qq{
		CREATE TABLE $name (id int $key, filler text);
		ALTER TABLE $name ALTER filler SET STORAGE plain;
		INSERT INTO $name SELECT i, repeat('x', 1900) FROM generate_series(1, $rows) AS i;
		VACUUM (FREEZE, ANALYZE) $name;
		CHECKPOINT});
	return;
}

# Megabytes each second of a statement that reads a table, again and again.
sub scan_rate
{
	my ($node, $statement, $mb) = @_;
	my $session = $node->background_psql('postgres');
	$session->query_safe($statement);
	my ($began, $scans) = (time, 0);
	do
	{
		$session->query_safe($statement);
		$scans++;
	} while (time - $began < $opt{seconds} / 2);
	my $rate = $scans * $mb / (time - $began);
	$session->quit;
	return $rate;
}

sub throughput_case
{
	my ($case) = @_;
	my $node = make_primary(
		$case->{server},
		shared_buffers => $case->{size},
		%without_standbys,
		max_parallel_workers_per_gather => '0');
	foreach my $factor (0.5, 2)
	{
		my $mb = $factor * megabytes($case->{size});
		make_table($node, 'scanned', $mb, '');
		my $table = $factor < 1 ? 'half the size' : 'twice the size';
		record(
			'scan', 'MB/s',
			scan_rate($node, 'SELECT count(*) FROM scanned', $mb),
			"count(*); table of $table");
		record(
			'scan', 'MB/s',
			scan_rate($node, 'VACUUM (DISABLE_PAGE_SKIPPING) scanned', $mb),
			"VACUUM; table of $table");
		$node->safe_psql('postgres', 'DROP TABLE scanned');
	}
	discard($node);
	return;
}

my $hot_size = '256MB';

sub survival_case
{
	my ($case) = @_;
	my $node = make_primary(
		$case->{server},
		shared_buffers => $case->{size},
		%without_standbys,
		bgwriter_lru_maxpages => '0',
		max_parallel_workers_per_gather => '0');
	my $mb = megabytes($case->{size});
	make_table($node, 'hot', 0.9 * $mb, 'PRIMARY KEY');
	$node->safe_psql('postgres', 'CREATE EXTENSION pg_buffercache');
	my $by_index = sub {
		return 'SET enable_seqscan = off; SET enable_bitmapscan = off;'
		  . "SELECT count(filler) FROM (SELECT filler FROM $_[0] ORDER BY id);";
	};
	my $hot = q{SELECT count(*) FROM pg_buffercache
		WHERE relfilenode IN (pg_relation_filenode('hot'), pg_relation_filenode('hot_pkey'))
		AND reldatabase = (SELECT oid FROM pg_database WHERE datname = 'postgres')};
	my %scan = (
		'heap scan' => 'SELECT count(filler) FROM cold',
		'index scan' => $by_index->('cold'),
		'VACUUM' => 'VACUUM (DISABLE_PAGE_SKIPPING) cold');
	foreach my $factor (0.2, 0.3, 2)
	{
		make_table($node, 'cold', $factor * $mb, 'PRIMARY KEY');
		foreach my $name (sort keys %scan)
		{
			foreach my $times (1, 6)
			{
				# The table must not be in the cache already.
				$node->restart;
				$node->safe_psql('postgres', $by_index->('hot') x $times);
				my $before = $node->safe_psql('postgres', $hot);
				$node->safe_psql('postgres', $scan{$name});
				record(
					'hot set that survives',
					'%',
					100 * $node->safe_psql('postgres', $hot) / $before,
					"$name of $factor times shared_buffers; hot set used "
					  . ($times == 1 ? 'once' : "$times times"));
			}
		}
		$node->safe_psql('postgres', 'DROP TABLE cold');
	}
	discard($node);
	return;
}

scenario 'scan-resistance' => (
	seconds => sub {
		return 5 + megabytes($_[0]{size}) / 100 + 2 * $opt{seconds};
	},
	runs => 3,
	disk => 8,
	groups => sub {
		my @compared = qw(stock on);
		my @throughput = $opt{quick} ? ('16MB') : qw(16MB 128MB 1GB);
		return (
			(map { cases(\@compared, size => $_) } @throughput),
			cases(
				\@compared,
				size => $opt{quick} ? '32MB' : $hot_size,
				what => 'survival'));
	},
	run => sub {
		my ($case) = @_;
		my $function = $case->{what} ? \&survival_case : \&throughput_case;
		$function->($case);
	});
