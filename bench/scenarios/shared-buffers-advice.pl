
# Copyright (c) 2026, LazyDrop developers

# Source: if drops no longer limit it, how large should shared_buffers be?
# lazydrop.advisor should answer this without a restart.
#
# Asks: how far is the advisor's estimate of the hit ratio for a size from the real hit
# ratio of a server with that size?  The advice is taken at one size; then the server is
# restarted at each of the other seven, and the same load is run.  How often is the error
# larger than the one that is given?  How far is the estimate for the other value of
# lazydrop.scan_resistance from a server that has it?  And with the size that
# pg_lazydrop_advise() recommends, how many pages are read, compared with the best size?
#
# Each row of the tables has a page of its own.  The loads are: keys chosen uniformly from
# twice shared_buffers; by a Zipfian distribution of exponent 0.8 or 1.1 from four times
# (see oltp-beside-scan); pgbench's TPC-B-like load at twice; repeated index scans of 1.1
# times shared_buffers; and exponent 0.8 beside an index scan of twice shared_buffers,
# with one page of it for every four reads by key.  The number of transactions is fixed,
# not the time, so that all servers do the same work.
#
# Expected, from a simulation of traces: a mean error of less than 1 point, with the
# largest errors where the working set just fits.

use strict;
use warnings FATAL => 'all';

use LazyDropBench;
use LazyDropCache;
use List::Util qw(max sum0);

my $shared_buffers = $opt{quick} ? '32MB' : '256MB';
my $buffers = 128 * megabytes($shared_buffers);
my $pages = 4 * $buffers;
my @factors = (0.25, 0.5, 0.75, 1, 1.5, 2, 3, 4);
my $clients = 2;

# Expressions of pgbench for a key of a table with a number of rows.
sub uniform
{
	my ($rows) = @_;
	return "\\set id random(1, $rows)\n";
}

my $read = "SELECT balance FROM account WHERE id = :id;\n";

# Read a hundred pages at a time, in the order of the table.
sub round_of
{
	my ($rows) = @_;
	my $steps = int($rows / 100);
	return qq{\\set from :at * 100
\\set at (:at + 1) % $steps
SELECT count(balance) FROM account WHERE id > :from AND id <= :from + 100;
};
}

# For each load: the script of a client, the average number of pages of the table that a
# transaction reads, the rows that are read at all, and whether there is only one client.
my %load = (
	'uniform; 2 times' => [
		uniform(2 * $buffers) . $read, 1, "account WHERE id <= 2 * $buffers"
	],
	'exponent 0.8; 4 times' =>
	  [ zipf_pgbench(0.8, $pages) . $read, 1, 'account WHERE id > 0' ],
	'exponent 1.1; 4 times' =>
	  [ zipf_pgbench(1.1, $pages) . $read, 1, 'account WHERE id > 0' ],
	'TPC-B-like; 2 times' => [ undef, 4, 'pgbench_accounts WHERE aid > 0' ],
	'loop; 1.1 times' => [
		round_of(1.1 * $buffers), 100,
		"account WHERE id <= 1.1 * $buffers", 'alone'
	],
	'exponent 0.8 beside a scan' => [
		(zipf_pgbench(0.8, $pages) . $read) x 4
		  . qq{\\set scanned 1 + :at
\\set at (:at + 1) % @{[ 2 * $buffers ]}
SELECT balance FROM other WHERE id = :scanned;
}, 4,
		'(SELECT filler FROM other WHERE id > 0 UNION ALL SELECT filler FROM account WHERE id > 0)'
	]);

my $node;

sub run_load
{
	my ($name, $rounds) = @_;
	my ($script, $reads, undef, $alone) = @{ $load{$name} };
	my $each = int($rounds * $pages / $reads / ($alone ? 1 : $clients)) || 1;
	my @options = (
		'-M' => 'prepared',
		'-c' => $alone ? 1 : $clients,
		'-j' => $alone ? 1 : $clients,
		'-t' => $each);
	return pgbench(
		$node, $script, @options,
		'-D' => 'at=0',
		defined $script ? () : ('-b' => 'tpcb-like'));
}

# All rows that a load reads are read once before it, so later reads are of pages that
# have been in the pool and were evicted.
sub start_with
{
	my ($server, $factor, $name) = @_;
	restart_as(
		$node, $server,
		'shared_buffers' => $buffers * $factor * 8 . 'kB',
		'lazydrop.advisor' => $factor == 1 ? 'on' : 'off');
	$node->safe_psql('postgres', "SELECT count(filler) FROM $load{$name}[2]");
	return;
}

# Returns the hit ratio in per cent, and the rate of transactions.  pg_stat_io is not
# reset, because the advisor would ignore the second in which this happens.
sub measure
{
	my ($name) = @_;
	run_load($name, 2);
	wait_for_sessions($node);
	my ($hits_before, $reads_before) = blocks_so_far($node);
	my $rate = run_load($name, 2);
	wait_for_sessions($node);
	my ($hits, $reads) = blocks_so_far($node);
	$hits  -= $hits_before;
	$reads -= $reads_before;
	return (100 * $hits / ($hits + $reads), $rate);
}

# Estimates and real hit ratios of this run, for each load and server.
my %seen;

sub record_errors
{
	my ($measure, $estimated, $error, $real) = @_;
	my @differences = map { abs($estimated->{$_} - $real->{$_}) } @factors;
	record("mean error$measure", 'points', sum0(@differences) / @factors);
	record("largest error$measure", 'points', max(@differences));
	record(
		"errors larger than given$measure",
		'sizes',
		scalar
		  grep { abs($estimated->{$_} - $real->{$_}) > $error->{$_} + 0.05 }
		  @factors);
	return;
}

scenario 'shared-buffers-advice' => (
	seconds => 60,
	runs => 1,
	disk => 6,
	groups => sub {
		return
		  map { cases([qw(off on)], size => $shared_buffers, case => $_) }
		  sort keys %load;
	},
	setup => sub {
		$node = make_primary(
			'off',
			cache_settings('off'),
			%without_standbys,
			shared_buffers => $shared_buffers,
			autovacuum => 'off',
			max_wal_size => '2GB',
			max_parallel_workers_per_gather => '0',
			enable_seqscan => 'off',
			enable_bitmapscan => 'off');
		foreach my $table ([ account => $pages ], [ other => 2 * $buffers ])
		{
			my ($name, $rows) = @$table;
			$node->safe_psql(
				'postgres', qq{
				CREATE TABLE $name (id int PRIMARY KEY, balance int, filler text);
				ALTER TABLE $name ALTER filler SET STORAGE plain;
				INSERT INTO $name SELECT i, 0, repeat('x', 5000) FROM generate_series(1, $rows) AS i;
				VACUUM (FREEZE, ANALYZE) $name});
		}
		$node->safe_psql('postgres', 'CREATE EXTENSION pg_lazydrop');
		# Each unit of the scale has 15 MB, including the indexes.
		pgbench_init($node, max(1, int(2 * megabytes($shared_buffers) / 15)));
	},
	run => sub {
		my ($case) = @_;
		my ($server, $name) = @$case{qw(server case)};
		my %real;

		start_with($server, 1, $name);
		run_load($name, 2);
		wait_for_sessions($node);
		$node->safe_psql('postgres', 'SELECT pg_lazydrop_advice_reset()');
		($real{1}) = measure($name);

		# Wait until the advisor has summed up.
		my $seen = $node->safe_psql('postgres',
			q{SELECT (current_setting('lazydrop.advice')::jsonb ->> 'seconds')::numeric}
		);
		$node->poll_query_until('postgres',
			qq{SELECT (current_setting('lazydrop.advice')::jsonb ->> 'seconds')::numeric > $seen + 1.5}
		) or die "the advisor does not sum up\n";
		my (%estimated, %error);
		foreach my $policy (qw(off on))
		{
			foreach my $row (
				split /\n/,
				$node->safe_psql(
					'postgres', qq{
				SELECT factor, 100 * (1 - ${policy}_reads_per_second / lookups), 100 * ${policy}_error / lookups
				FROM pg_lazydrop_advice,
					(SELECT ((a ->> 'hits')::float8 + (a ->> 'reads')::float8) / (a ->> 'seconds')::float8 AS lookups
					 FROM (SELECT current_setting('lazydrop.advice')::jsonb AS a OFFSET 0) AS setting) AS l}
				))
			{
				my ($factor, $percent, $points) = split /\|/, $row;
				$estimated{$policy}{$factor} = $percent;
				$error{$policy}{$factor} = $points;
			}
		}
		record(
			'samples dropped',
			'samples',
			$node->safe_psql(
				'postgres',
				'SELECT max(samples_dropped) FROM pg_lazydrop_advice'));
		my ($verdict, $advised) = split /\|/, $node->safe_psql(
			'postgres', qq{
			SELECT verdict, shared_buffers / 8192.0 / $buffers FROM pg_lazydrop_advise()
			WHERE period = 'all' AND scan_resistance = '$server'});
		note("$server; $name: $verdict $advised");

		foreach my $factor (grep { $_ != 1 } @factors)
		{
			start_with($server, $factor, $name);
			($real{$factor}) = measure($name);
		}
		foreach my $factor (@factors)
		{
			record("estimated at $factor", '%', $estimated{$server}{$factor});
			record("real at $factor", '%', $real{$factor});
		}
		record_errors('', $estimated{$server}, $error{$server}, \%real);

		# The other server has run in another case of the same run.
		my $run = $LazyDropBench::now{run};
		my $other = $server eq 'on' ? 'off' : 'on';
		$seen{$run}{$name}{$server} =
		  { estimated => \%estimated, error => \%error, real => \%real };
		if (my $there = $seen{$run}{$name}{$other})
		{
			record_errors(" of $other with $server",
				$estimated{$other}, $error{$other}, $there->{real});
			record_errors(
				" of $server with $other",
				$there->{estimated}{$server},
				$there->{error}{$server}, \%real);
		}

		if ($verdict ne 'unknown')
		{
			my ($factor) =
			  sort { abs($a - $advised) <=> abs($b - $advised) } @factors;
			my $best = max(values %real);
			record('size that is advised', 'times', $factor);
			record('reads there of those at the best size',
				'times', (100 - $real{$factor}) / max(100 - $best, 0.01));
		}
		$node->stop;
	},
	teardown => sub {
		discard($node);
	});
