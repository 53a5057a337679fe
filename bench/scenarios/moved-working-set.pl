
# Copyright (c) 2026, LazyDrop developers

# Source: a policy that keeps its pages must also let them go: a nightly job ends, another
# tenant wakes up, or last month's partition is no longer used.
#
# Asks: how many accesses does it take until what is used now is in shared_buffers (N
# buffers)?  Rows are read by key, one row in each page:
#
#	shift	at random out of 0.8 N pages, or out of 2 N with a Zipfian distribution of
#			exponent 1.0; then the same of other pages
#	drift	at random out of 0.5 or 0.8 N pages, by one page further each 10 accesses
#	join	at random out of 0.5 N pages, while 0.8 N that were used before are idle
#
# The result is the part of the accesses found in shared_buffers: before, and for each N
# accesses.  One session does it all, so that a case has the same result each time, but for
# a percent.
#
# Expected, from the simulation (bench/simulator): with lazydrop.scan_resistance on, the
# shifts take 1.5 to 3 times as long as in stock, and the drift has 7 to 9 points fewer hits.

use strict;
use warnings FATAL => 'all';

use LazyDropBench;
use LazyDropCache;

my $shared_buffers = $opt{quick} ? '16MB' : '256MB';
my $n = 128 * megabytes($shared_buffers);
my $pages = 4 * $n;
my $steps = $opt{quick} ? 2 : 12;

# These return functions of the number of accesses so far, which return an SQL expression
# for the page of the next one.
sub uniform
{
	my ($part, $first) = @_;
	my $count = int($part * $n);
	return sub { return "$first + floor(random() * $count)::int" };
}

sub zipfian
{
	my ($first) = @_;
	my $key = zipf_sql(1.0001, 2 * $n);
	return sub { return "$first + $key" };
}

# "i" is the number of the access.
sub drifting
{
	my ($part) = @_;
	my $count = int($part * $n);
	return sub {
		my ($done) = @_;
		return "1 + floor(random() * $count)::int + ($done + i) / 10";
	};
}

# What is done before, and what is measured.
my %load = (
	'shift; uniform over 0.8 N' =>
	  [ uniform(0.8, 1), uniform(0.8, 1 + int(0.8 * $n)) ],
	'shift; exponent 1.0 over 2 N' => [ zipfian(0), zipfian(2 * $n) ],
	'drift; 0.5 N' => [ uniform(0.5, 1), drifting(0.5) ],
	'drift; 0.8 N' => [ uniform(0.8, 1), drifting(0.8) ],
	'join; 0.8 N idle' => [ uniform(0.8, 1), uniform(0.5, 2 * $n) ]);

my $node;

# Make N accesses to the pages that an expression yields, and return the part of them that
# was found, in percent.
sub found
{
	my ($expression) = @_;
	my $read = blocks_read(
		$node, '', qq{
		SELECT count(f) FROM (SELECT $expression AS id
			FROM generate_series(1, $n) AS i OFFSET 0) AS k
		JOIN page USING (id)});
	return 100 * (1 - $read / $n);
}

scenario 'moved-working-set' => (
	seconds => 10,
	runs => 1,
	disk => 3,
	groups => sub {
		return
		  map { cases([qw(stock on)], size => $shared_buffers, case => $_) }
		  sort keys %load;
	},
	setup => sub {
		$node = make_primary(
			'stock',
			%without_standbys,
			shared_buffers => $shared_buffers,
			%by_index);
		$node->safe_psql(
			'postgres', qq{
			CREATE TABLE page (id int PRIMARY KEY, f text STORAGE plain);
			INSERT INTO page SELECT i, repeat('x', 5000) FROM generate_series(1, $pages) AS i;
			VACUUM (FREEZE, ANALYZE) page});
		expect_plan(
			$node,
			'',
			"SELECT count(f) FROM (SELECT i AS id FROM generate_series(1, 9) AS i OFFSET 0) AS k JOIN page USING (id)",
			qr/Nested Loop.*Index Scan using page_pkey /s);
		$node->stop;
	},
	run => sub {
		my ($case) = @_;
		my ($before, $now) = @{ $load{ $case->{case} } };
		start_as($node, $case->{server});
		my $part = 0;
		$part = found($before->($_ * $n)) foreach 0 .. 11;
		record('found', '%', $part, "$case->{case}; before");
		foreach my $step (1 .. $steps)
		{
			record(
				'found', '%',
				found($now->(($step - 1) * $n)),
				"$case->{case}; after $step N");
		}
		$node->stop;
	},
	teardown => sub {
		discard($node) if $node;
		undef $node;
	});
