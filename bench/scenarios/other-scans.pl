
# Copyright (c) 2026, LazyDrop developers

# Source: reports of applications with many temporary tables; the source code, for other
# commands that visit all headers of a pool.
#
# Asks: with much temp_buffers, how long does a transaction take that empties temporary tables
# at its end (ON COMMIT DELETE ROWS), and how long does it take to create and drop one?  With
# much shared_buffers, how long do ALTER TABLE SET TABLESPACE of a small table, and COMMIT of
# a new table of 5 MB with wal_level = minimal, take?
#
# Expected: with 1 GB of temp_buffers, transactions have at least 0.9 of their rate with 8 MB;
# the others take at most 1.15 times as long with much as with 128 MB.

use strict;
use warnings FATAL => 'all';

use LazyDropBench;

my @temp = ('8MB', '256MB', '1GB', '4GB');

# Run a transaction n times in one session, after some other commands and once before.
# Returns the average duration in milliseconds.
sub repeat
{
	my ($node, $n, $before, @transactions) = @_;
	my @all = map { $transactions[ $_ % @transactions ] } 1 .. $n;
	my $out = $node->safe_psql('postgres',
		"$before\n$transactions[0]\nSELECT clock_timestamp() AS began \\gset\n"
		  . join("\n", @all)
		  . "\nSELECT extract(epoch FROM clock_timestamp() - :'began'::timestamptz)"
	);
	return 1000 * (split /\n/, $out)[-1] / $n;
}

sub run_temporary
{
	my ($case) = @_;
	my $node = make_primary($case->{server}, shared_buffers => $case->{size});
	my $tables = $case->{tables};
	my $before = "SET temp_buffers = '$case->{temp}';";
	$before .= "CREATE TEMP TABLE t$_ (a int) ON COMMIT DELETE ROWS;\n"
	  foreach 1 .. $tables;
	record(
		'throughput',
		'tps',
		1000 / repeat(
			$node,
			n($tables > 1 ? 300 : 2000),
			$before,
			$tables
			? 'INSERT INTO t1 VALUES (1);'
			: 'CREATE TEMP TABLE x AS SELECT 1 AS a; DROP TABLE x;'));
	return discard($node);
}

sub run_tablespace
{
	my ($case) = @_;
	my $node = make_primary(
		$case->{server},
		shared_buffers => $case->{size},
		allow_in_place_tablespaces => 'on');
	$node->safe_psql('postgres', "CREATE TABLESPACE there LOCATION ''");
	record(
		'duration',
		'ms',
		repeat(
			$node,
			n(200),
			'CREATE TABLE t AS SELECT generate_series(1, 1000) AS a;',
			'ALTER TABLE t SET TABLESPACE there;',
			'ALTER TABLE t SET TABLESPACE pg_default;'));
	return discard($node);
}

# The time of COMMIT alone.
sub run_minimal
{
	my ($case) = @_;
	my $node = make_primary(
		$case->{server},
		shared_buffers => $case->{size},
		%without_standbys);
	my $n = n(50);
	my $out = $node->safe_psql(
		'postgres',
		join "\n",
		map {
			"BEGIN; CREATE TABLE t$_ AS SELECT repeat('x', 1000) AS a FROM generate_series(1, 4500);
			SELECT clock_timestamp() AS began \\gset
			COMMIT;
			SELECT 'took', extract(epoch FROM clock_timestamp() - :'began'::timestamptz);"
		} 1 .. $n);
	my $sum = 0;
	$sum += $_ foreach $out =~ /^took\|([\d.]+)/mg;
	record('duration', 'ms', 1000 * $sum / $n);
	return discard($node);
}

scenario 'other-scans' => (
	seconds => 5,
	groups => sub {
		my @groups;
		foreach my $tables (1, 50, 0)
		{
			push @groups, map {
				cases(
					[qw(stock on)],
					size => '128MB',
					case => "temp_buffers of $_; "
					  . (
						$tables
						? "DELETE ROWS of $tables"
						: 'create and drop'),
					temp => $_,
					tables => $tables,
					how => \&run_temporary)
			} $opt{quick} ? @temp[ 0, 1 ] : @temp;
		}
		foreach my $size (sizes('128MB'))
		{
			push @groups,
			  cases(
				[qw(stock on)],
				size => $size,
				case => 'SET TABLESPACE',
				how => \&run_tablespace),
			  cases(
				[qw(stock on)],
				size => $size,
				case => 'COMMIT with wal_level = minimal',
				how => \&run_minimal);
		}
		return @groups;
	},
	run => sub { return $_[0]{how}->($_[0]) });
