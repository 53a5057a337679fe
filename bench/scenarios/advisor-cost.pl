
# Copyright (c) 2026, LazyDrop developers

# Asks: what does lazydrop.advisor cost?  The loads are: pgbench select-only with all data in
# shared_buffers; Zipfian lookups, exponent 0.8, in a table of twice shared_buffers, in one
# statement; and count(*) of a table of half of shared_buffers.  All processes share one
# processor, if bench runs on one, so the worker's time counts.  The two servers take turns
# of a second each; the median of a server's turns is its rate in a run.  Also: how much
# processor time does the advisor's worker need for these loads, which is less noisy, and for
# each of 100,000 dropped relations?
#
# Expected: at least 0.99 of the rate without it, for count(*) 0.95.

use strict;
use warnings FATAL => 'all';

use LazyDropBench;
use LazyDropCache;
use LazyDropResults qw(median);
use List::Util      qw(max shuffle);
use Time::HiRes     qw(time);
use PostgreSQL::Test::Utils;

my @sizes = $opt{quick} ? ('16MB') : ('128MB', '1GB');
my @kinds = qw(off advisor);
my $drops = $opt{quick} ? 1000 : 100_000;
my %node;

# For each load: the unit, and a function of a node and a size that loads it for a second
# and returns a rate.
my %load = (
	'select-only' => [
		'tps',
		sub {
			my ($node) = @_;
			return pgbench(
				$node, undef,
				'-M' => 'prepared',
				'-b' => 'select-only',
				'-c' => 2,
				'-j' => 2,
				'-T' => 1);
		}
	],
	'lookups by key' => [
		'lookups/s',
		sub {
			my ($node, $size) = @_;
			my $pages = 128 * 2 * megabytes($size);
			my $query = sprintf(
				'SELECT count(f) FROM (SELECT 3 * %s AS id FROM generate_series(1, 50000) OFFSET 0) AS k JOIN twice USING (id)',
				zipf_sql(0.8, $pages));
			return repeat_statement($node, $query, 50000);
		}
	],
	'count(*)' => [
		'MB/s',
		sub {
			my ($node, $size) = @_;
			return repeat_statement(
				$node,
				'SELECT count(*) FROM half',
				megabytes($size) / 2);
		}
	]);

sub measure_in_turns
{
	my ($size, $name) = @_;
	my ($unit, $run) = @{ $load{$name} };
	my %turns;
	my ($worker, $seconds) = (0, 0);
	foreach my $turn (0 .. ($opt{quick} ? 1 : 3 * $opt{seconds}))
	{
		foreach my $server (shuffle @kinds)
		{
			my $node = $node{$server}{$size};
			my $before = $server eq 'advisor' ? worker_seconds($node) : 0;
			my $began = time;
			my $rate = $run->($node, $size);

			# The first turn is a warm-up.
			next if $turn == 0;
			push @{ $turns{$server} }, $rate;
			next if $server ne 'advisor';
			$seconds += time - $began;
			$worker  += worker_seconds($node) - $before;
		}
	}
	record("rate with $_", $unit, median(@{ $turns{$_} }), $name)
	  foreach @kinds;
	record('advisor : off',
		'times',
		median(@{ $turns{advisor} }) / median(@{ $turns{off} }), $name);
	record('worker', '% of a processor', 100 * $worker / $seconds, $name);
	return;
}

sub worker_seconds
{
	my ($node) = @_;
	my $pid = $node->safe_psql('postgres',
		q{SELECT pid FROM pg_stat_activity WHERE backend_type = 'lazy drop advisor'}
	);
	my @stat = split / /, slurp_file("/proc/$pid/stat") =~ s/^.*\) //r;
	return ($stat[11] + $stat[12]) / 100;
}

# Drop many small relations, a thousand in each transaction.
sub measure_drops
{
	my ($size) = @_;
	my $node = $node{advisor}{$size};
	my $seconds = 0;
	foreach my $round (1 .. $drops / 1000)
	{
		foreach my $sql (
			q{EXECUTE format('CREATE TABLE small_%s AS SELECT 1 AS i', i)},
			q{EXECUTE format('DROP TABLE small_%s', i)})
		{
			my $before = worker_seconds($node);
			$node->safe_psql('postgres',
				"DO \$\$BEGIN FOR i IN 1 .. 1000 LOOP $sql; END LOOP; END\$\$"
			);
			$seconds += worker_seconds($node) - $before if $sql =~ /DROP/;
		}
	}
	record(
		'worker', 'us',
		1e6 * $seconds / $drops,
		'for each dropped relation');
	return;
}

scenario 'advisor-cost' => (
	seconds => 120,
	runs => 3,
	disk => 8,
	groups => sub {
		return map { cases(['off'], size => $_) } @sizes;
	},
	setup => sub {
		foreach my $server (@kinds)
		{
			foreach my $size (@sizes)
			{
				my $node = make_primary(
					'off',
					cache_settings('off'),
					%by_index,
					shared_buffers => $size,
					max_wal_size => '4GB',
					wal_keep_size => '0',
					max_locks_per_transaction => 500,
					max_parallel_workers_per_gather => '0',
					'lazydrop.advisor' => $server eq 'advisor' ? 'on' : 'off'
				);
				pgbench_init($node, max(1, int(megabytes($size) / 30)));
				make_rows($node, 'half', megabytes($size) / 2);
				make_rows($node, 'twice', 2 * megabytes($size));
				$node->safe_psql('postgres',
					'CREATE UNIQUE INDEX ON twice (id); VACUUM (FREEZE, ANALYZE) half, twice'
				);
				$node{$server}{$size} = $node;
			}
		}
	},
	run => sub {
		my ($case) = @_;
		measure_in_turns($case->{size}, $_) foreach sort keys %load;
		measure_drops($case->{size}) if $case->{size} eq $sizes[0];
	},
	teardown => sub {
		discard(map { values %$_ } values %node);
		%node = ();
	});
