
# Copyright (c) 2026, LazyDrop developers

# Source: the same complaints as for scan-resistance, as observed in a service: a report
# runs beside the OLTP load, and the hit ratio of the load decreases.
#
# Asks: what is the hit ratio of a table of four times shared_buffers that is read by key,
# with a Zipfian distribution of exponent 0.8 or 1.1, and how many reads are made per
# second: alone, and beside a repeated index scan of twice shared_buffers?
#
# Each row of the table has a page of its own, so a page is as popular as its key.  Only
# the table's own blocks are counted (pg_statio_user_tables), not the blocks of its index
# and of the other table.  pgbench's random_zipfian() accepts no exponent below 1.001.
# Therefore, key k with a probability proportional to k^-s is computed by the inverse of
# the continuous distribution function, with u from 0 to 1 and n keys:
#
#	k = floor((1 + u * ((n + 1)^(1 - s) - 1))^(1 / (1 - s)))
#
# for either exponent.  The row is k multiplied by a prime modulo n.  Numbers of the same
# distribution are drawn in SQL beforehand, eight for each page, and pgbench runs as long
# as it does later, so that a steady state is measured.  The scan reads 128 MB per second,
# in transactions of 1 MB, so it is the same load for all servers.  If a server makes
# fewer reads by key, it has more of the scan for each of them.  The number of reads for
# each page of the scan is therefore recorded, too (the simulation had four).
#
# Pages that are not in shared_buffers come from the kernel's cache if there is enough
# memory.  The rate therefore shows less clearly than the hit ratio how much a disk would
# have to do.
#
# Expected, from a simulation of the policy for exponent 0.8: a hit ratio of 65 % for
# stock and 68 % with lazydrop.scan_resistance on; beside the scan, 58 % and 67.5 %.

use strict;
use warnings FATAL => 'all';

use LazyDropBench;
use LazyDropCache;

my $shared_buffers = $opt{quick} ? '16MB' : '256MB';
my $pages = 4 * 128 * megabytes($shared_buffers);

# Megabytes and rows of the other table, which has three rows in each page.
my $scanned = 2 * megabytes($shared_buffers);
my $step = 3 * 128;

sub key_script
{
	my ($s) = @_;
	return zipf_pgbench($s, $pages)
	  . "SELECT balance FROM account WHERE id = :id;\n";
}

my $scan = sprintf(
	q{
\set from :at * %d
\set to (:at + 1) * %d
\set at (:at + 1) %% %d
SELECT count(f) FROM scanned WHERE id > :from AND id <= :to;
}, $step, $step, $scanned);

my %node;

# Stock's data directory, and the fork's, with tables but without a running server.
sub prepare_loads
{
	my ($server) = @_;
	my $node = make_primary(
		$server,
		cache_settings($server),
		%without_standbys,
		shared_buffers => $shared_buffers,
		max_wal_size => '1GB',
		max_parallel_workers_per_gather => '0',
		enable_seqscan => 'off',
		enable_bitmapscan => 'off',
		enable_hashjoin => 'off',
		enable_mergejoin => 'off',
		enable_memoize => 'off');
	make_rows($node, 'scanned', $scanned);
	$node->safe_psql(
		'postgres', qq{
		CREATE UNIQUE INDEX ON scanned (id);
		CREATE TABLE account (id int PRIMARY KEY, balance int, filler text);
		ALTER TABLE account ALTER filler SET STORAGE plain;
		INSERT INTO account SELECT i, 0, repeat('x', 5000) FROM generate_series(1, $pages) AS i;
		VACUUM (FREEZE, ANALYZE) account;
		CHECKPOINT});
	my $size = $node->safe_psql('postgres',
		q{SELECT pg_relation_size('account') / 8192});
	die "the table has $size pages, not $pages\n" if $size != $pages;
	expect_plan(
		$node, '',
		'SELECT count(f) FROM scanned WHERE id > 384 AND id <= 768',
		qr/^ *->  Index Scan using scanned_id_idx /m);
	return $node;
}

# Make a number of reads by key in one statement.
sub warm_up
{
	my ($node, $s, $reads) = @_;
	my $id = zipf_sql($s, $pages);
	my $query = qq{
		SELECT count(balance) FROM (
			SELECT $id AS id
			FROM generate_series(1, $reads) OFFSET 0) AS k
		JOIN account USING (id)};
	expect_plan($node, '', $query,
		qr/Nested Loop.*Index Scan using account_pkey /s);
	my $found = $node->safe_psql('postgres', $query);
	die "$found keys of $reads were found\n" if $found != $reads;
	return;
}

# Returns the numbers of blocks of the table found and read, after all clients have sent
# their counts, which they do before they disappear.
sub counters
{
	my ($node) = @_;
	$node->poll_query_until(
		'postgres', q{
		SELECT NOT EXISTS (SELECT FROM pg_stat_activity WHERE application_name = 'lookups')}
	) or die "pgbench's sessions do not end\n";
	return split /\|/, $node->safe_psql(
		'postgres', q{
		SELECT heap_blks_hit, heap_blks_read
		FROM pg_statio_user_tables WHERE relname = 'account'});
}

sub read_by_key
{
	my ($node, $s) = @_;
	local $ENV{PGAPPNAME} = 'lookups';
	return pgbench(
		$node, key_script($s),
		'-M' => 'prepared',
		'-c' => 2,
		'-j' => 2,
		'-T' => 2 * $opt{seconds});
}

scenario 'oltp-beside-scan' => (
	seconds => 10 + 4 * $opt{seconds},
	disk => 6,
	groups => sub {
		my @groups;
		foreach my $s (0.8, 1.1)
		{
			push @groups,
			  cases(
				\@servers,
				size => $shared_buffers,
				exponent => $s,
				beside => $_,
				case => "exponent $s; " . ($_ ? 'beside a scan' : 'alone')
			  ) foreach (0, 1);
		}
		return @groups;
	},
	setup => sub {
		foreach my $server (qw(stock on))
		{
			my $node = prepare_loads($server);
			$node->stop;
			$node{$_} = $node
			  foreach $server eq 'stock' ? ('stock') : qw(on off);
		}
	},
	run => sub {
		my ($case) = @_;
		my $node = $node{ $case->{server} };
		my $s = $case->{exponent};
		restart_as($node, $case->{server});
		warm_up($node, $s, 8 * $pages);
		my $job;
		$job = pgbench_start(
			$node, $scan,
			'-M' => 'prepared',
			'-D' => 'at=0',
			'-c' => 1,
			'-R' => 128,
			'-T' => 4 * $opt{seconds} + 3) if $case->{beside};
		read_by_key($node, $s);
		my ($hit, $read) = counters($node);
		my $rate = read_by_key($node, $s);
		my ($hit_then, $read_then) = counters($node);

		if ($job)
		{
			my $scan_rate = pgbench_finish($job);
			record('scan beside it', 'MB/s', $scan_rate);
			record('reads by key for a page of the scan',
				'reads', $rate / (128 * $scan_rate));
		}
		$node->stop;
		($hit, $read) = ($hit_then - $hit, $read_then - $read);
		record('hit ratio', '%', 100 * $hit / ($hit + $read));
		record('throughput', 'tps', $rate);
	},
	teardown => sub {
		discard(@node{qw(stock on)});
		%node = ();
	});
