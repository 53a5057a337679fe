
# Copyright (c) 2026, LazyDrop developers

# Source: the same complaints as for scan-resistance, as observed in a service: a report
# runs beside the OLTP load, and the hit ratio of the load decreases.
#
# Asks: what is the hit ratio of a table of four times shared_buffers that is read by key,
# with a Zipfian distribution of exponent 0.8, 1.0 or 1.1, and how many reads are made per
# second: alone, and beside repeated index scans of twice shared_buffers, with 20 or 81 rows
# in a page, each somewhere within 0.06 times as many pages as there are buffers?  The same
# for pgbench's TPC-B-like transactions, and for a mixture: four reads by key (0.8) for each
# TPC-B-like transaction.  And for exponent 0.8 with little memory: the kernel's cache and
# shared_buffers have 1.7 times shared_buffers together, so most misses are reads of the
# disk.
#
# Each row of the table has a page of its own, so a page is as popular as its key.  Only
# the table's own blocks are counted for the hit ratio (pg_statio_user_tables), not the
# blocks of its index and of the other table.  pgbench's table has an index of two thirds
# of shared_buffers, whose pages are used more often than the table's.  Therefore, what
# a transaction reads of table and index together is recorded, too; and the CPU time of
# a transaction in the server, which depends less than the rate on other processes.  pgbench's random_zipfian() accepts no exponent below 1.001.
# Therefore, key k with a probability proportional to k^-s is computed by the inverse of
# the continuous distribution function, with u from 0 to 1 and n keys:
#
#	k = floor((1 + u * ((n + 1)^(1 - s) - 1))^(1 / (1 - s)))
#
# (and 1.0001 instead of 1.0).  The row is k multiplied by a prime modulo n.  Numbers of the same
# distribution are drawn in SQL beforehand, eight for each page, and pgbench runs as long
# as it does later, so that a steady state is measured.  The scan reads 64 MB per second
# with 20 rows in a page, and 32 MB with 81, in transactions of 1 MB.  That is less than its
# share of one processor, so it is the same load for all servers, which the recorded rate
# must show.  If a server makes fewer reads by key, it has more of the scan for each of
# them.
#
# Pages that are not in shared_buffers come from the kernel's cache if there is enough
# memory.  There, the rate shows less clearly than the hit ratio how much a disk would have
# to do.
#
# Expected, from the simulation (bench/simulator) for exponent 0.8: a hit ratio of 64 % for
# stock and 69 % with lazydrop.scan_resistance on; beside the scans, 50 % and 67 %.

use strict;
use warnings FATAL => 'all';

use LazyDropBench;
use LazyDropCache;
use POSIX;
use PostgreSQL::Test::Utils;

my $shared_buffers = $opt{quick} ? '16MB' : '256MB';
my $n = 128 * megabytes($shared_buffers);
my $pages = 4 * $n;

# Rows in a page of the other tables, which have 2 N pages; megabytes of them that are
# scanned each second; and pages in which a row may be.
my @rows = (20, 81);
my %scanned = (20 => 64, 81 => 32);
my $span = int(0.06 * $n);

sub key_script
{
	my ($s) = @_;
	return zipf_pgbench($s == 1 ? 1.0001 : $s, $pages)
	  . "SELECT balance FROM account WHERE id = :id;\n";
}

# A transaction of 128 pages, which is a megabyte.
sub scan_script
{
	my ($rows) = @_;
	return sprintf(
		q{
\set from :at * %d
\set to (:at + 1) * %d
\set at (:at + 1) %% %d
SELECT count(f) FROM scanned%d WHERE %s > :from AND %s <= :to;
}, 128 * $rows, 128 * $rows, 2 * $n / 128, $rows, (scan_key($rows)) x 2);
}

sub scan_key
{
	my ($rows) = @_;
	return '(id + mod(r & 2147483647, ' . $span * $rows . '))';
}

my $node;

# One data directory, which all servers use in turns.
sub prepare_loads
{
	$node = make_primary(
		'stock',
		%without_standbys,
		shared_buffers => $shared_buffers,
		maintenance_work_mem => '256MB',
		max_wal_size => '4GB',
		%by_index);
	foreach my $rows (@rows)
	{
		my $all = 2 * $n * $rows;
		my $length = filler($rows);
		my $key = scan_key($rows);
		$node->safe_psql(
			'postgres', qq{
			CREATE TABLE scanned$rows (id int, n int, r int, f text STORAGE plain);
			INSERT INTO scanned$rows SELECT i, i, hashint4(i), repeat('x', $length) FROM generate_series(1, $all) AS i;
			VACUUM (FREEZE, ANALYZE) scanned$rows;
			CREATE INDEX ON scanned$rows ($key)});
		expect_plan(
			$node,
			'',
			"SELECT count(f) FROM scanned$rows WHERE $key > 0 AND $key <= 768",
			qr/^ *->  Index Scan using scanned${rows}_/m);
	}
	pgbench_init($node, int($pages / 1640));
	$node->safe_psql(
		'postgres', qq{
		CREATE TABLE account (id int PRIMARY KEY, balance int, filler text);
		ALTER TABLE account ALTER filler SET STORAGE plain;
		INSERT INTO account SELECT i, 0, repeat('x', 5000) FROM generate_series(1, $pages) AS i;
		VACUUM (FREEZE, ANALYZE) account;
		CHECKPOINT});
	my $size = $node->safe_psql('postgres',
		q{SELECT pg_relation_size('account') / 8192});
	die "the table has $size pages, not $pages\n" if $size != $pages;
	return;
}

# Make a number of reads by key in one statement.
sub make_reads
{
	my ($table, $key, $expression, $reads) = @_;
	my $query = qq{
		SELECT count(filler) FROM (
			SELECT $expression AS $key
			FROM generate_series(1, $reads) OFFSET 0) AS k
		JOIN $table USING ($key)};
	expect_plan($node, '', $query,
		qr/Nested Loop.*Index Scan using ${table}_pkey /s);
	my $found = $node->safe_psql('postgres', $query);
	die "$found keys of $reads were found\n" if $found != $reads;
	return;
}

# Read what a load reads, in the same proportion.
sub warm_up
{
	my ($load, $reads) = @_;
	my $s = $load =~ /^\d/ ? $load : 0.8;
	my $by_key = $load eq 'tpcb' ? 0 : $load eq 'mixture' ? 0.8 : 1;
	my $accounts = $node->safe_psql('postgres',
		'SELECT 100000 * count(*) FROM pgbench_branches');
	foreach (1 .. 16)
	{
		my $part = int($reads / 16 * $by_key);
		make_reads('account', 'id', zipf_sql($s == 1 ? 1.0001 : $s, $pages),
			$part)
		  if $by_key > 0;
		make_reads(
			'pgbench_accounts', 'aid',
			"1 + floor(random() * $accounts)::int",
			int($reads / 16) - $part) if $by_key < 1;
	}
	return;
}

# Returns the numbers of blocks of the table found and read, those read of its index as
# well, and the CPU seconds of sessions that have ended, after all clients have sent their
# counts, which they do before they disappear.
sub counters
{
	my ($node) = @_;
	$node->poll_query_until(
		'postgres', q{
		SELECT NOT EXISTS (SELECT FROM pg_stat_activity WHERE application_name = 'lookups')}
	) or die "pgbench's sessions do not end\n";
	my @counters = split /\|/, $node->safe_psql(
		'postgres', q{
		SELECT sum(heap_blks_hit), sum(heap_blks_read), sum(heap_blks_read + idx_blks_read)
		FROM pg_statio_user_tables WHERE relname IN ('account', 'pgbench_accounts')}
	);
	my @stat = split / /,
	  slurp_file("/proc/$node->{_pid}/stat") =~ s/\(.*\)/x/r;
	return (@counters,
		($stat[15] + $stat[16]) / POSIX::sysconf(POSIX::_SC_CLK_TCK));
}

# Run a load, and return its rate.  Reads by key have an exponent; otherwise the load is
# TPC-B-like, or a mixture.
sub run_oltp
{
	my ($load) = @_;
	local $ENV{PGAPPNAME} = 'lookups';
	my @common = (
		'-M' => 'prepared',
		'-c' => 2,
		'-j' => 2,
		'-T' => 2 * $opt{seconds});
	return pgbench($node, key_script($load), @common) if $load =~ /^\d/;
	my @mixture =
	  ('-f' => write_file('key.sql', key_script(0.8)) . '@4');
	return pgbench(
		$node, undef, @common,
		'-b' => 'tpcb-like@1',
		$load eq 'mixture' ? @mixture : ());
}

my %load = (
	'exponent 0.8' => 0.8,
	'exponent 1.0' => 1,
	'exponent 1.1' => 1.1,
	'TPC-B-like' => 'tpcb',
	'mixture' => 'mixture');

scenario 'oltp-beside-scan' => (
	seconds => 10 + 4 * $opt{seconds},
	runs => 3,
	disk => 10,
	groups => sub {
		my @groups;
		foreach my $name (sort keys %load)
		{
			foreach my $limited ($name eq 'exponent 0.8' ? (0, 1) : (0))
			{
				push @groups,
				  cases(
					[qw(stock on)],
					size => $shared_buffers,
					load => $load{$name},
					rows => $_,
					limited => $limited,
					case => $name
					  . ($limited ? ' with little memory'       : '') . '; '
					  . ($_ ? "beside a scan of $_ rows a page" : 'alone')
				  ) foreach (0, @rows);
			}
		}
		return @groups;
	},
	setup => sub {
		prepare_loads();
		$node->stop;
	},
	run => sub {
		my ($case) = @_;
		my ($load, $rows) = @$case{qw(load rows)};
		if ($case->{limited} && !memory_group())
		{
			left_out($case->{case}, 'no control group');
			return;
		}
		start_as($node, $case->{server});
		if ($case->{limited})
		{
			$node->stop;
			start_limited($node, 1.7 * megabytes($shared_buffers));
		}

		# With little memory, that many reads would take minutes.
		warm_up($load, ($case->{limited} ? 2 : 8) * $pages);
		my $job;
		$job = pgbench_start(
			$node, scan_script($rows),
			'-M' => 'prepared',
			'-D' => 'at=0',
			'-c' => 1,
			'-R' => $case->{limited} ? 32 : $scanned{$rows},
			'-T' => 4 * $opt{seconds} + 3) if $rows;
		run_oltp($load);
		my @before = counters($node);
		my $rate = run_oltp($load);
		my @after = counters($node);
		my ($hit, $read, $all, $cpu) =
		  map { $after[$_] - $before[$_] } 0 .. $#after;
		my $transactions = $rate * 2 * $opt{seconds};

		if ($job)
		{
			my $scan_rate = pgbench_finish($job);
			record('scan beside it', 'MB/s', $scan_rate);
		}
		$node->stop;
		record('hit ratio', '%', 100 * $hit / ($hit + $read));
		record('read by a transaction', 'pages', $all / $transactions);
		record('CPU of a transaction', 'us', 1e6 * $cpu / $transactions);
		record('throughput', 'tps', $rate);
	},
	teardown => sub {
		discard($node) if $node;
		undef $node;
	});
