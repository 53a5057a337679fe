
# Copyright (c) 2026, LazyDrop developers

=pod

=head1 NAME

LazyDropReport - summary of bench/run's results

=head1 DESCRIPTION

A median is taken over all runs.  A ratio of two servers is computed for each run, in
which the servers ran one after the other.  The report has the median of these ratios, and
their spread, which is the smallest and the largest one.

=cut

package LazyDropReport;

use strict;
use warnings FATAL => 'all';

use Exporter 'import';
use LazyDropPlot qw(plot);
use LazyDropResults
  qw(read_results median number spread ratios in_order keys_of scenarios_of);
use List::Util qw(max min);

our @EXPORT = qw(write_report text_summary compare_results);

=pod

=head1 FUNCTIONS

=over

=cut

# ---------------------------------------------------------------------------
# Bars
# ---------------------------------------------------------------------------

# Requirements for the fork that were set before it was measured.  "of", and "by" for a
# ratio: server, shared_buffers (large is --large), case as a pattern, measure as a
# pattern; "less" for a difference; "every" for all matches instead of the first.  The
# median must meet the requirement, or the value that "which" selects.
my @bars = (
	{
		scenario => 'drop-loop',
		what =>
		  'create/insert/drop loop, fork: tps with much : 8 MB of shared_buffers',
		of => [ 'on', 'large', '', 'throughput' ],
		by => [ 'on', '8MB', '', 'throughput' ],
		least => 0.95
	},
	{
		scenario => 'drop-loop',
		what => 'CPU of the worker during that loop, % of a processor',
		of => [ 'on', 'large', '', 'CPU' ],
		most => 5
	},
	{
		scenario => 'drop-loop',
		what => 'passes for 1,000 drops of that loop',
		of => [ 'on', 'large', '', 'passes' ],
		most => 10
	},
	(   map {
			+{
				scenario => 'drop-loop',
				what =>
				  "create/insert/drop loop, $_ of shared_buffers: tps of fork : stock",
				of => [ 'on', $_, '', 'throughput' ],
				by => [ 'stock', $_, '', 'throughput' ],
				least => 0.98
			}
		} ('8MB', '32MB', '128MB')),
	{
		scenario => 'terabyte',
		what => 'create/insert/drop loop, fork: tps with 512 GB : 8 MB',
		of => [ 'on', '512GB', 'loop', 'throughput' ],
		by => [ 'on', '8MB', 'loop', 'throughput' ],
		least => 0.95
	},
	(   map {
			my $rate = $_;
			map {
				+{
					scenario => 'terabyte',
					what =>
					  "CPU of all processes for a drop, $rate per second, fork$_->[1]: ms with 512 GB : 128 MB",
					of => [ 'on', '512GB', "^$rate drops", $_->[0] ],
					by => [ 'on', '128MB', "^$rate drops", $_->[0] ],
					most => 1.15
				}
			} ( [ '^CPU', '' ],
				[ '^the same', ', without the background writer' ])
		} (2, 100)),
	{
		scenario => 'terabyte',
		what => 'replay of a DROP TABLE, fork: us with 512 GB : 128 MB',
		of => [ 'on', '512GB', 'DROP TABLE', 'replay' ],
		by => [ 'on', '128MB', 'DROP TABLE', 'replay' ],
		most => 1.1
	},
	(   map {
			+{
				scenario => 'other-scans',
				what =>
				  "temporary tables, fork, $_: tps with 1 GB : 8 MB of temp_buffers",
				of => [ 'on', '128MB', "of 1GB; $_\$", 'throughput' ],
				by => [ 'on', '128MB', "of 8MB; $_\$", 'throughput' ],
				least => 0.9
			}
		} ('DELETE ROWS of 1', 'DELETE ROWS of 50', 'create and drop')),
	(   map {
			+{
				scenario => 'other-scans',
				what => "$_, fork: ms with much : 128 MB of shared_buffers",
				of => [ 'on', 'large', $_, 'duration' ],
				by => [ 'on', '128MB', $_, 'duration' ],
				most => 1.15
			}
		} ('SET TABLESPACE', 'COMMIT')),
	{
		scenario => 'drop-replay',
		what =>
		  'replay of 25,000 relations in one transaction: s of fork : stock',
		of => [ 'on', 'large', 'one transaction', '^replay' ],
		by => [ 'stock', 'large', 'one transaction', '^replay' ],
		most => 0.05
	},
	{
		scenario => 'drop-replay',
		what => 'relations of these that are dropped as in stock',
		of => [ 'on', 'large', 'one transaction', '^dropped' ],
		most => 0
	},
	(   map {
			+{
				scenario => 'drop-replay',
				what =>
				  "replay of many $_, fork: s with much : 128 MB of shared_buffers",
				of => [ 'on', 'large', "$_\$", '^replay' ],
				by => [ 'on', '128MB', "$_\$", '^replay' ],
				most => 1.15
			}
		} ('DROP TABLE', 'TRUNCATE', 'DROP DATABASE')),
	{
		scenario => 'drop-replay',
		what =>
		  'replay of 1,000 DROP TABLE, much shared_buffers: s of stock : fork',
		of => [ 'stock', 'large', 'DROP TABLE$', '^replay' ],
		by => [ 'on', 'large', 'DROP TABLE$', '^replay' ],
		least => 100
	},
	(   map {
			+{
				scenario => 'drop-replay',
				what =>
				  "replay of a DROP TABLE of four relations, fork, $_->[1], us",
				of => [ 'on', $_->[0], 'four relations', 'one of them' ],
				most => 82
			}
		} ([ '128MB', '128 MB' ], [ 'large', 'much shared_buffers' ])),
	{
		scenario => 'drop-replay',
		what =>
		  '100 DROP DATABASE on the primary, fork, much shared_buffers, s',
		of => [ 'on', 'large', 'DROP DATABASE', 'primary' ],
		most => 0.4
	},
	{
		scenario => 'drop-lag',
		what =>
		  'loop at full speed, fork: largest lag of two standbys in any run, s',
		of => [ 'on', 'large', 'full speed', 'lag' ],
		most => 1,
		which => 'max'
	},
	{
		scenario => 'drop-filled',
		what => '1,000 DROP TABLE, fork: s with 72% : 15% of the pool filled',
		of => [ 'on', '.', '72%', 'DROP TABLE' ],
		by => [ 'on', '.', '15%', 'DROP TABLE' ],
		most => 1.15
	},
	{
		scenario => 'dropdb-redo',
		what =>
		  'redo of DROP DATABASE over 1,000 tablespaces, fork, much shared_buffers, s',
		of => [ 'on', 'large', '', 'redo' ],
		most => 0.5
	},
	(   map {
			+{
				scenario => 'large-file',
				what => "table of 8 GB, fork: $_ held, s",
				of => [ 'on', '.', '', $_ ],
				most => 0.01
			}
		} ('session', 'replay')),
	(   map {
			+{
				scenario => 'large-file',
				what =>
				  "table of 8 GB: $_, less pass_delay, s of fork : stock",
				of => [ 'on', '.', '', "^$_ less" ],
				by => [ 'stock', '.', '', "^$_ less" ],
				most => 1.15
			}
		} ('space free after', 'space free on the standby after')),
	{
		scenario => 'large-file',
		what =>
		  'clean shutdown with 8 GB pending, s of fork : DROP of 8 GB, s of stock',
		of => [ 'on', '.', '', 'shutdown' ],
		by => [ 'stock', '.', '', 'session' ],
		most => 1.15
	},
	(   map {
			+{
				scenario => 'promotion',
				what => "promotion, fork: s with $_ : nothing pending",
				of => [ 'on', '.', "^$_ pending", 'promotion' ],
				by => [ 'on', '.', '^nothing', 'promotion' ],
				most => 1.2
			}
		} ('100 files of 1 GB', '20 GB')),
	(   map {
			+{
				scenario => 'createdb-replay',
				what =>
				  "replay of 100 CREATE DATABASE by file copy, $_->[1]: s of fork : stock",
				of => [ 'on', $_->[0], '', '^replay' ],
				by => [ 'stock', $_->[0], '', '^replay' ],
				most => 1
			}
		} ([ '128MB', '128 MB' ], [ 'large', 'much shared_buffers' ])),
	{
		scenario => 'createdb-replay',
		what => 'passes for that',
		of => [ 'on', 'large', '', 'passes' ],
		most => 0
	},
	{
		scenario => 'flush-instructions',
		what =>
		  'write of a buffer, fork: instructions with 10,000 entries pending, less those with none',
		of => [ 'on', '.', '; 10000 pending', 'write of a buffer' ],
		less => [ 'on', '.', '; 0 pending', 'write of a buffer' ],
		most => 20
	},
	{
		scenario => 'flush-instructions',
		what => 'locks of the fork for that write',
		of => [ 'on', '.', '; 10000 pending', 'locks' ],
		most => 0.05
	},
	{
		scenario => 'oltp-during-drops',
		what =>
		  'OLTP with remote_apply, fork: p99 with 1 GB dropped each second : without drops',
		of => [ 'on', 'large', 'remote_apply; 1 GB', 'p99$' ],
		by => [ 'on', 'large', 'remote_apply; 0/s', 'p99$' ],
		most => 1.2
	},
	{
		scenario => 'dropdb-dirty',
		what => 'DROP DATABASE with 4 GB of other buffers dirty, fork, s',
		of => [ 'on', '.', '4 GB', 'DROP DATABASE' ],
		most => 0.075
	},
	{
		scenario => 'pass-time',
		what => 'pass for 1,000 drops, fork : scan for one, stock',
		of => [ 'on', 'large', '', 'headers' ],
		by => [ 'stock', 'large', '', 'headers' ],
		most => 1.3
	},
	(   map {
			+{
				scenario => 'overhead',
				what => "nothing dropped, $_: tps of fork : stock",
				of => [ 'on', '.', $_, 'throughput' ],
				by => [ 'stock', '.', $_, 'throughput' ],
				least => 0.99
			}
		} ('select-only', 'tpcb-like', 'evictions')),
	(   map {
			+{
				scenario => 'access-paths',
				what => "hot table left after once or twice, on: $_, %",
				of => [ 'on', '.', "^\Q$_\E;", 'hot table left' ],
				every => 1,
				least => 90,
				which => 'min'
			}
		} ( 'sequential scan',
			'parallel sequential scan',
			'VACUUM',
			'pg_dump',
			'index scan in order',
			'index scan almost in order',
			'random index scan; read_once',
			'nested loop',
			'hash join of index scans',
			'index scan almost in order by four sessions',
			'pg_dump of TOAST',
			'index-only scan',
			'bitmap scan',
			'many small tables',
			'CREATE INDEX',
			'UPDATE in one statement',
			'UPDATE in 1000 statements',
			'COPY in',
			'INSERT ... SELECT')),
	(   map {
			my $rows = $_;
			my $beside = "beside a scan of $rows rows";
			(   (   map {
						my ($exponent, $least) = @$_;
						+{
							scenario => 'oltp-beside-scan',
							what =>
							  "hit ratio, exponent $exponent, $beside: on, less stock, points",
							of => [
								'on', '.', "$exponent; $beside", 'hit ratio'
							],
							less => [
								'stock', '.',
								"$exponent; $beside", 'hit ratio'
							],
							least => $least
						}
					} ([ 0.8, 5 ], [ 1.1, 0 ])),
				(   map {
						+{
							scenario => 'oltp-beside-scan',
							what =>
							  "hit ratio, exponent $_, on: $beside, less alone, points",
							of => [ 'on', '.', "$_; $beside", 'hit ratio' ],
							less => [ 'on', '.', "$_; alone", 'hit ratio' ],
							least => -2
						}
					} (0.8, 1.1)))
		} (20, 81)),
	(   map {
			(   {
					scenario => 'oltp-beside-scan',
					what =>
					  "hit ratio, exponent $_, alone: on, less stock, points",
					of => [ 'on', '.', "$_; alone", 'hit ratio' ],
					less => [ 'stock', '.', "$_; alone", 'hit ratio' ],
					least => 0
				},
				{
					scenario => 'oltp-beside-scan',
					what =>
					  "reads by key, exponent $_, alone: tps of on : stock",
					of => [ 'on', '.', "$_; alone", 'throughput' ],
					by => [ 'stock', '.', "$_; alone", 'throughput' ],
					least => 0.99
				})
		} (0.8, 1.1)),
	{
		scenario => 'free-buffers',
		what => 'blocks read by the second scan of what fits, on',
		of => [ 'on', 'large', '', 'by the second' ],
		most => 0,
		which => 'max'
	},
	{
		scenario => 'free-buffers',
		what => 'hot table left after two such scans, on, %',
		of => [ 'on', 'large', '', 'hot table left' ],
		least => 99,
		which => 'min'
	},
	(   map {
			my $server = $_;
			(   (   map {
						+{
							scenario => 'scan-resistance-cost',
							what =>
							  "no scan to resist, $_: rate of $server : stock",
							of => [ $server, '.', "^\Q$_\E\$", 'throughput' ],
							by => [ 'stock', '.', "^\Q$_\E\$", 'throughput' ],
							least => 0.99
						}
					} ( 'select-only; cached',
						'tpcb-like; cached',
						'select-only; 4 times',
						'tpcb-like; 4 times',
						'lookups by key; exponent 0.8',
						'lookups by key; exponent 1.1',
						'count(*); half',
						'count(*); twice',
						'VACUUM; half',
						'VACUUM; twice',
						'CREATE INDEX')),
				{
					scenario => 'scan-resistance-cost',
					what => "pgbench -i, s of $server : stock",
					of => [ $server, '.', '^pgbench -i', 'duration' ],
					by => [ 'stock', '.', '^pgbench -i', 'duration' ],
					most => 1.01
				})
		} qw(on off advisor)),
	(   map {
			my $server = $_;
			+{
				scenario => 'scan-resistance-cost',
				what =>
				  "page found in a buffer: instructions of $server, less stock's",
				of => [ $server, '.', '', 'found in a buffer' ],
				less => [ 'stock', '.', '', 'found in a buffer' ],
				most => 3
			}
		} qw(on off)),
	(   map {
			my $server = $_;
			map {
				+{
					scenario => 'scan-resistance-cost',
					what => "instructions of $_, $server : stock",
					of => [ $server, '.', 'of statements', "^\Q$_\E\$" ],
					by => [ 'stock', '.', 'of statements', "^\Q$_\E\$" ],
					most => 1.01
				}
			} ( 'count(*); half',
				'count(*); twice',
				'VACUUM; half',
				'VACUUM; twice',
				'CREATE INDEX',
				'lookups; twice')
		} qw(on off)),
	(   map {
			my $server = $_;
			(   {
					scenario => 'shared-buffers-advice',
					what =>
					  "advisor, $server: mean error of each load, points",
					of => [ $server, '.', '', '^mean error$' ],
					every => 1,
					most => 1,
					which => 'max'
				},
				{
					scenario => 'shared-buffers-advice',
					what =>
					  "advisor, $server: largest error, but of a loop, points",
					of => [ $server, '.', '^(?!loop)', '^largest error$' ],
					every => 1,
					most => 2,
					which => 'max'
				},
				{
					scenario => 'shared-buffers-advice',
					what =>
					  "advisor, $server: sizes whose error exceeds the given one",
					of => [ $server, '.', '', '^errors larger than given$' ],
					every => 1,
					most => 1,
					which => 'max'
				},
				{
					scenario => 'shared-buffers-advice',
					what =>
					  "advisor, $server: reads at the size it names, times those at the best",
					of => [ $server, '.', '', '^reads there' ],
					every => 1,
					most => 1.1,
					which => 'max'
				})
		} qw(on off)));

# Returns the values by run of the measurement that a requirement names: of the first
# match or of every match; undef if it was not measured.
sub lookup
{
	my ($results, $scenario, $which, $every) = @_;
	my ($server, $size, $case, $measure) = @$which;
	my ($large) =
	  ($results->{head}{$scenario}{options}[0] // '') =~ /large=(\S+)/;
	$size = $size eq 'large' ? $large : $size;
	my %found;
	foreach my $key (keys_of($results, $scenario))
	{
		my @field = split /,/, $key, -1;
		my $values = $results->{values}{$key}{$server};
		next
		  unless ($size eq '.' || $field[1] eq $size)
		  && $field[2] =~ /(?:$case)/
		  && $field[3] =~ /$measure/
		  && $values;
		return $values unless $every;
		$found{"$_,$key"} = $values->{$_} foreach keys %$values;
	}
	return %found ? \%found : undef;
}

=pod

=item bars($results)

Returns a list of array references: the requirement, the bar, the result, and "met" or
"SHORT".

=cut

sub bars
{
	my ($results) = @_;
	my @list;
	foreach my $bar (@bars)
	{
		my $options = $results->{head}{ $bar->{scenario} }{options}[0] // '';
		next if $options =~ /quick/;
		my $of = lookup($results, $bar->{scenario}, $bar->{of}, $bar->{every})
		  or next;
		my @seen = values %$of;
		if ($bar->{by})
		{
			my $by = lookup($results, $bar->{scenario}, $bar->{by}) or next;

			# Servers that did not run in the same group have runs in common, too.
			@seen = ratios($of, $by) or next;
		}
		if ($bar->{less})
		{
			my $less = lookup($results, $bar->{scenario}, $bar->{less})
			  or next;
			@seen = map { $of->{$_} - $less->{$_} }
			  grep { exists $less->{$_} } sort keys %$of
			  or next;
		}
		my $which = $bar->{which} // '';
		my $counts =
			$which eq 'max' ? max(@seen)
		  : $which eq 'min' ? min(@seen)
		  :                   median(@seen);
		my $met =
		  defined $bar->{least}
		  ? $counts >= $bar->{least}
		  : $counts <= $bar->{most};
		push @list,
		  [
			$bar->{what},
			defined $bar->{least}
			? "at least $bar->{least}"
			: "at most $bar->{most}",
			spread(@seen),
			$met ? 'met' : 'SHORT'
		  ];
	}
	return @list;
}

# ---------------------------------------------------------------------------
# Summary
# ---------------------------------------------------------------------------

# Returns a table of the values of which a plot shows a part as a heatmap: for each case and
# measure a line for each server, which has a column for each of the heatmap's columns.
sub table_of_cells
{
	my ($results, $panel, $servers, @keys) = @_;
	my (@lines, %of, %columns, %stripes);
	foreach my $key (@keys)
	{
		my (undef, $size, $case, $measure, $unit) = split /,/, $key, -1;
		next unless $case =~ /$panel->{cell}/;
		my ($column, $stripe, $name) = ($3, $4, substr($case, 0, $-[3]));
		$name =~ s/[; ]+$//;
		$columns{$column} = $stripes{$stripe} = 1;
		foreach my $server (@$servers)
		{
			my $values = $results->{values}{$key}{$server} or next;
			my $line = "$size | $name | $measure ($unit) | $server";
			push @lines, $line unless $of{$line};
			$of{$line}{$column}{$stripe} =
			  sprintf('%.0f', median(values %$values));
		}
	}
	my @columns = sort { $a <=> $b } keys %columns;
	my @stripes = sort { $a <=> $b } keys %stripes;
	my $text =
		"Columns: $panel->{xlabel}.  In each cell: $panel->{stripe} "
	  . join(', ', @stripes)
	  . ".\n\n| shared_buffers | case | measure | server | "
	  . join(' | ', @columns) . " |\n"
	  . '|---' x (4 + @columns) . "|\n";
	foreach my $line (@lines)
	{
		$text .= '| ' . join(
			' | ', $line,
			map {
				my $cell = $of{$line}{$_};
				$cell ? join(', ', map { $cell->{$_} // '-' } @stripes) : ''
			} @columns) . " |\n";
	}
	return $text;
}

# Returns all results of a directory.  If it has SCENARIO-VERSION.csv beside SCENARIO.csv,
# for an earlier version of the fork, server "on" of that file is a server with the
# version as its name.
sub read_all
{
	my ($directory) = @_;
	my @files = map { m{([^/]+)\.csv$} } sort glob("'$directory'/*.csv");
	my %version;
	foreach my $file (@files)
	{
		$version{$file} = $2
		  if $file =~ /^(.+)-(\d[\d.]*)$/ && -e "$directory/$1.csv";
	}
	my $results = read_results($directory, grep { !$version{$_} } @files);
	foreach my $file (sort keys %version)
	{
		my $earlier = read_results($directory, $file);
		foreach my $key (@{ $earlier->{keys} })
		{
			my $values = $earlier->{values}{$key}{on} or next;
			push @{ $results->{keys} }, $key unless $results->{values}{$key};
			$results->{values}{$key}{ $version{$file} } = $values;
		}
	}
	return $results;
}

=pod

=item write_report($directory)

Write summary.md and a plot for each scenario beside the results.  Without gnuplot, omit
the plots.

=cut

sub write_report
{
	my ($directory) = @_;
	my $results = read_all($directory);
	my $text =
	  "# Summary\n\nWritten by bench/report from the files here, which also draws plots of them.  Medians of all
runs, with the smallest and the largest; the last columns are ratios of each run, of these again
the median and the spread.\n\n";
	my @bars = bars($results);
	if (@bars)
	{
		$text .=
		  "## What was asked\n\n| | asked | seen | |\n|---|---|---|---|\n";
		$text .= '| ' . join(' | ', @$_) . " |\n" foreach @bars;
	}
	foreach my $scenario (scenarios_of($results))
	{
		my $head = $results->{head}{$scenario};
		my @keys = keys_of($results, $scenario);
		my @servers =
		  in_order(map { keys %{ $results->{values}{$_} } } @keys);
		my @over = grep {
			my $s = $_;
			$s ne 'stock' && grep { $s eq $_ } @servers
		} qw(on off);
		@over = () unless grep { $_ eq 'stock' } @servers;
		my $runs = max(
			map { scalar keys %$_ }
			map { values %{ $results->{values}{$_} } } @keys);
		$text .= "\n## $scenario\n\n";
		$text .= "$head->{date}[0], commit $head->{commit}[0], $runs run"
		  . ($runs == 1 ? '' : 's') . ".\n\n";
		$text .= "A smoke run: its figures mean nothing.\n\n"
		  if ($head->{options}[0] // '') =~ /quick/;
		$text .= "Left out: $_.\n\n" foreach @{ $head->{'left out'} // [] };
		my $panel = ($LazyDropPlot::plots{$scenario} // [])->[0] // {};

		if (($panel->{kind} // '') eq 'heatmap')
		{
			$text .= table_of_cells($results, $panel, \@servers, @keys);
			next;
		}
		$text .=
			'| shared_buffers | case | measure | '
		  . join(' | ', @servers, map { "$_ / stock" } @over) . " |\n"
		  . '|---' x (3 + @servers + @over) . "|\n";

		foreach my $key (@keys)
		{
			my (undef, $size, $case, $measure, $unit) = split /,/, $key, -1;
			my $values = $results->{values}{$key};
			$text .= '| ' . join(
				' | ', $size, $case,
				"$measure ($unit)",
				(   map {
						$values->{$_}
						  ? spread(values %{ $values->{$_} })
						  : ''
					} @servers),
				(   map {
						my @r =
						  $values->{$_} && $values->{stock}
						  ? ratios($values->{$_}, $values->{stock})
						  : ();
						@r ? spread(@r) : '';
					} @over)) . " |\n";
		}
	}
	my $file = "$directory/summary.md";
	open(my $fh, '>', $file) or die "could not create \"$file\": $!\n";
	print $fh $text;
	close($fh) or die "could not write \"$file\": $!\n";
	plot($directory, $results);
	return $file;
}

=pod

=item text_summary($directory, @scenarios)

Returns the same summary of some scenarios as text for a terminal.

=cut

sub text_summary
{
	my ($directory, @scenarios) = @_;
	my $results = read_results($directory, @scenarios);
	my $text = sprintf("%-26s %-7s %-32s %-8s %10s %10s %10s\n",
		qw(case buffers measure server median min max));
	my $scenario = '';
	foreach my $key (@{ $results->{keys} })
	{
		my ($name, $size, $case, $measure, $unit) = split /,/, $key, -1;
		my $values = $results->{values}{$key};
		$text .= "$name\n" if $name ne $scenario;
		$scenario = $name;
		foreach my $server (in_order(keys %$values))
		{
			my @v = values %{ $values->{$server} };
			$text .= sprintf(
				"  %-24s %-7s %-32s %-8s %10s %10s %10s\n",
				$case, $size, "$measure ($unit)",
				$server, map { number($_) } median(@v),
				min(@v), max(@v));
		}
	}
	my @bars = bars($results);
	$text .= sprintf("\n%-80s %-14s %s\n", 'what was asked', 'bar', 'seen')
	  if @bars;
	$text .= sprintf("%-80s %-14s %-22s %s\n", @$_) foreach @bars;
	return $text;
}

=pod

=item compare_results($directory, $other)

Compare two series: for each ratio to stock that both have, report the median and spread
of each.  They agree if each median lies within the other's spread, overlap if the spreads
do, and differ otherwise.  Returns a text, and the number of ratios with each verdict.

=cut

sub compare_results
{
	my @results = map { read_all($_) } @_;
	my (%count, $text);
	$text =
	  sprintf("%-60s %-6s %-22s %-22s\n", '', 'ratio', 'first', 'second');
	foreach my $key (@{ $results[0]{keys} })
	{
		foreach my $server (qw(on off))
		{
			my @of = map {
				my $v = $_->{values}{$key} // {};
				[
					$v->{$server} && $v->{stock}
					? ratios($v->{$server}, $v->{stock})
					: ()
				]
			} @results;
			next if grep { !@$_ } @of;
			my @range = map { [ min(@$_), median(@$_), max(@$_) ] } @of;
			my $within =
				 $range[0][1] >= $range[1][0]
			  && $range[0][1] <= $range[1][2]
			  && $range[1][1] >= $range[0][0]
			  && $range[1][1] <= $range[0][2];
			my $overlap =
			  $range[0][0] <= $range[1][2] && $range[1][0] <= $range[0][2];
			my $verdict = $within ? 'agree' : $overlap ? 'overlap' : 'differ';
			$count{$verdict}++;
			my ($name, $size, $case, $measure) = split /,/, $key, -1;
			$text .= sprintf(
				"%-60s %-6s %-22s %-22s %s\n",
				join(' ', grep { $_ ne '' } $name, $size, $case, $measure),
				$server, (map { spread(@$_) } @of), $verdict);
		}
	}
	return ($text, \%count);
}

=pod

=back

=cut

1;
