
# Copyright (c) 2026, LazyDrop developers

=pod

=head1 NAME

LazyDropReport - summary, bars and plots of bench/run's results

=head1 DESCRIPTION

Reads the CSV files that bench/run writes: comment lines that tell what was run where, a
line of names, and one line for each value.  Medians are those of all runs.  A ratio of two
servers is that of each run, in which they ran one after the other; of these again the
median, and the smallest and the largest, which is its spread.

=cut

package LazyDropReport;

use strict;
use warnings FATAL => 'all';

use Exporter 'import';
use List::Util qw(max min uniq);

our @EXPORT = qw(write_report text_summary compare_results);

our @columns = qw(scenario run server shared_buffers case measure unit value);

# ---------------------------------------------------------------------------
# Results
# ---------------------------------------------------------------------------

=pod

=head1 FUNCTIONS

=over

=item read_results($directory [, @scenarios])

Results of those scenarios, by default all, as a hash reference: head, scenario to a hash of
what the comment lines tell; keys, all that was measured, in that order, "scenario,
shared_buffers, case, measure, unit"; values, of key, server, and run.

=cut

sub read_results
{
	my ($directory, @scenarios) = @_;
	@scenarios = map { m{([^/]+)\.csv$} } sort glob("$directory/*.csv")
	  unless @scenarios;
	my %results = (head => {}, keys => [], values => {});
	foreach my $name (@scenarios)
	{
		my $file = "$directory/$name.csv";
		next if $name =~ /-replay-lag$/ || !-e $file;
		open(my $fh, '<', $file) or die "could not open \"$file\": $!\n";
		my $names;
		while (my $line = <$fh>)
		{
			chomp $line;
			if ($line =~ /^# ([^:]+): (.*)/)
			{
				push @{ $results{head}{$name}{$1} }, $2;
				next;
			}
			if (!$names)
			{
				$names = $line;
				next if $names eq join(',', @columns);
				warn "\"$file\" is not of bench/run, or of an older one\n";
				last;
			}
			my %row;
			@row{@columns} = split /,/, $line, -1;
			my $key =
			  join(',', @row{qw(scenario shared_buffers case measure unit)});
			push @{ $results{keys} }, $key unless $results{values}{$key};
			die "\"$file\" has two values of run $row{run} of $key\n"
			  if exists $results{values}{$key}{ $row{server} }{ $row{run} };
			$results{values}{$key}{ $row{server} }{ $row{run} } =
			  $row{value};
		}
		close($fh);
	}
	return \%results;
}

sub median
{
	my @sorted = sort { $a <=> $b } @_;
	my $n = @sorted;
	return $n % 2
	  ? $sorted[ $n / 2 ]
	  : ($sorted[ $n / 2 - 1 ] + $sorted[ $n / 2 ]) / 2;
}

sub by_size
{
	my %unit = (MB => 1, GB => 1024);
	my ($x, $y) =
	  map { /^([\d.]+)(MB|GB)$/ ? $1 * $unit{$2} : 0 } @_;
	return $x <=> $y;
}

# Three digits that count; plain numbers, no exponents.
sub number
{
	my ($value) = @_;
	return '0' if $value == 0;
	my $digits =
	  max(0, 2 - int(log(abs($value)) / log(10) + 1e-9 - (abs($value) < 1)));
	return sprintf("%.${digits}f", $value);
}

sub spread
{
	my @values = @_;
	return number($values[0]) if @values == 1;
	return sprintf('%s (%s-%s)',
		map { number($_) } median(@values),
		min(@values), max(@values));
}

# Ratios of each run that both have.
sub ratios
{
	my ($above, $below) = @_;
	return map { $above->{$_} / $below->{$_} }
	  grep { exists $below->{$_} && $below->{$_} != 0 } sort keys %$above;
}

# Servers in the order in which tables and plots have them.
sub in_order
{
	my %rank = (
		stock => 1,
		on => 2,
		off => 3,
		'on>stock' => 4,
		'on>off' => 5,
		mariadb => 6);
	return
	  sort { ($rank{$a} // 9) <=> ($rank{$b} // 9) || $a cmp $b } uniq(@_);
}

sub keys_of
{
	my ($results, $scenario) = @_;
	return grep { /^\Q$scenario\E,/ } @{ $results->{keys} };
}

sub scenarios_of
{
	my ($results) = @_;
	return uniq(map { /^([^,]+)/ } @{ $results->{keys} });
}

# ---------------------------------------------------------------------------
# Bars
# ---------------------------------------------------------------------------

# What was asked of the fork before it was measured.  "of", and "by" for a ratio: server,
# shared_buffers (large is --large), case as a pattern, measure as a pattern; "less" for a
# difference.  The median counts, or what "which" says.
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
		} ('select-only', 'tpcb-like', 'evictions')));

# The values by run of what a bar names; undefined if it was not measured.
sub lookup
{
	my ($results, $scenario, $which) = @_;
	my ($server, $size, $case, $measure) = @$which;
	my ($large) =
	  ($results->{head}{$scenario}{options}[0] // '') =~ /large=(\S+)/;
	$size = $size eq 'large' ? $large : $size;
	foreach my $key (keys_of($results, $scenario))
	{
		my @field = split /,/, $key, -1;
		return $results->{values}{$key}{$server}
		  if ($size eq '.' || $field[1] eq $size)
		  && $field[2] =~ /(?:$case)/
		  && $field[3] =~ /$measure/
		  && $results->{values}{$key}{$server};
	}
	return;
}

=pod

=item bars($results)

A list of array references: what was asked, the bar, what was seen, and "met" or "SHORT".

=cut

sub bars
{
	my ($results) = @_;
	my @list;
	foreach my $bar (@bars)
	{
		my $options = $results->{head}{ $bar->{scenario} }{options}[0] // '';
		next if $options =~ /quick/;
		my $of = lookup($results, $bar->{scenario}, $bar->{of}) or next;
		my @seen = values %$of;
		if ($bar->{by})
		{
			my $by = lookup($results, $bar->{scenario}, $bar->{by}) or next;

			# Such that did not run in one group have runs in common, too.
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
		my $counts =
		  ($bar->{which} // '') eq 'max' ? max(@seen) : median(@seen);
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

=pod

=item write_report($directory)

Write summary.md and a plot for each scenario beside the results.  Without gnuplot, plots
are left out.

=cut

sub write_report
{
	my ($directory) = @_;
	my $results = read_results($directory);
	my $text =
	  "# Summary\n\nWritten by bench/report from the files here.  Medians of all runs, with the smallest and
the largest; the last columns are ratios of each run, of these again the median and the spread.\n\n";
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
		$text .= "![$scenario]($scenario.svg)\n\n"
		  if exists $LazyDropReport::plots{$scenario};
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

The same of some scenarios as text for a terminal.

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

Whether two series agree: for each ratio to stock that both have, the median and spread of
either.  They agree if each median lies within the other's spread, overlap if the spreads
do, and differ if not even these.  Returns a text, and how many there are of each.

=cut

sub compare_results
{
	my @results = map { read_results($_) } @_;
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

# ---------------------------------------------------------------------------
# Plots
# ---------------------------------------------------------------------------

# Panels of each scenario's plot: lines over shared_buffers or over a number in the case,
# or bars by case and shared_buffers.  "case" and "measure" are patterns.
our %plots = (
	'drop-loop' => [
		{
			kind => 'lines',
			measure => 'throughput',
			title => 'CREATE, INSERT, DROP in a loop, one client',
			y => 'transactions per second'
		}
	],
	'drop-replay' => [
		map {
			+{
				kind => 'bars',
				case => "$_\$",
				measure => '^replay',
				log => 1,
				title => "replay of many $_",
				y => 'seconds'
			}
		} ( 'DROP TABLE', 'TRUNCATE',
			'DROP DATABASE',
			'DROP TABLE of four relations')
	],
	'createdb-replay' => [
		{
			kind => 'bars',
			measure => '^replay',
			title => 'replay of many CREATE DATABASE by file copy',
			y => 'seconds'
		}
	],
	'promotion' => [
		{
			kind => 'bars',
			measure => 'promotion',
			title => 'from pg_ctl promote until the server is a primary',
			y => 'seconds'
		}
	],
	'drop-storm-replay' => [
		(   map { +{ kind => 'lag', servers => $_, title => $_ } }
			  (qw(stock on on>stock on>off)))
	],
	'drop-filled' => [
		{
			kind => 'lines',
			x => 'case',
			xlabel => '% of the pool filled',
			measure => 'DROP TABLE',
			title => '1,000 DROP TABLE',
			y => 'seconds'
		}
	],
	'oltp-during-drops' => [
		(   map {
				+{
					kind => 'lines',
					x => 'case',
					case => "^$_;.*/s\$",
					xlabel => 'tables created and dropped each second',
					measure => 'p99$',
					log => 1,
					title => "latency, $_",
					y => 'p99, ms'
				}
			} ('local', 'remote_apply')),
		{
			kind => 'bars',
			case => 'remote_apply; (0/s|1 GB)',
			measure => '^(p50|p99|slowest)$',
			log => 1,
			title => 'none dropped, or 1 GB each second; remote_apply',
			strip => '(?:remote_apply; | each second)',
			y => 'ms'
		}
	],
	'large-file' => [
		{
			kind => 'bars',
			measure => '(?:held|after)$',
			log => 1,
			strip => '(?: on the standby)? after',
			title => 'a table of 8 GB is dropped; on the standby',
			y => 'seconds'
		}
	],
	'dropdb-dirty' => [
		{
			kind => 'bars',
			measure => '.',
			log => 1,
			title => 'DROP DATABASE beside dirty buffers of others',
			y => 'seconds'
		}
	],
	'dropdb-redo' => [
		{
			kind => 'bars',
			measure => '.',
			title => 'redo of DROP DATABASE over 1,000 tablespaces',
			y => 'seconds'
		}
	],
	'truncate-tail' => [
		{
			kind => 'bars',
			measure => '.',
			title => '1,000 VACUUM that give back a tail',
			y => 'seconds'
		}
	],
	'overhead' => [
		{
			kind => 'bars',
			measure => 'throughput',
			log => 1,
			title => 'nothing is ever dropped',
			y => 'transactions per second'
		}
	],
	'scan-resistance' => [
		(   map {
				+{
					kind => 'lines',
					case => "^$_",
					measure => 'scan',
					title => ($_ =~ s/\\//gr) . ' the size of shared_buffers',
					y => 'MB/s'
				}
			} ( 'count\(\*\); table of half',
				'count\(\*\); table of twice',
				'VACUUM; table of half',
				'VACUUM; table of twice')),
		map {
			+{
				kind => 'bars',
				case => "used $_",
				measure => 'survives',
				title =>
				  "hot set, used $_, that survives a scan (times shared_buffers)",
				strip => '(?:of | times shared_buffers.*)',
				y => '%'
			}
		} ('once', '6 times')
	],
	'shared-buffers-sizing' => [
		(   map {
				+{
					kind => 'lines',
					case => $_,
					measure => 'tuples',
					title => $_,
					y => 'tuples per second'
				}
			} ('reads', '50% updates')),
		{
			kind => 'lines',
			case => 'reads',
			measure => 'blocks read',
			title => 'reads: what was not in shared_buffers',
			y => 'blocks read for 1000 tuples'
		}
	]);

my %colour = (
	stock => '#d95f02',
	on => '#1b9e77',
	off => '#7570b3',
	'on>stock' => '#e7298a',
	'on>off' => '#66a61e',
	mariadb => '#666666');
my %label = (
	stock => 'stock',
	on => 'LazyDrop on',
	off => 'LazyDrop off',
	'on>stock' => 'stock below LazyDrop',
	'on>off' => 'LazyDrop off below on',
	mariadb => 'MariaDB');

sub quote
{
	my ($text) = @_;
	$text =~ s/'/''/g;
	return "'$text'";
}

# (An empty pattern would be the last one that has matched.)
sub selected
{
	my ($results, $scenario, $panel) = @_;
	my $case = $panel->{case} // '';
	return grep {
		my @field = split /,/, $_, -1;
		$field[2] =~ /(?:$case)/ && $field[3] =~ /$panel->{measure}/
	} keys_of($results, $scenario);
}

# gnuplot's commands for a panel; $block is a name for its data.
sub panel_commands
{
	my ($directory, $results, $scenario, $panel, $block) = @_;
	my $out = 'set title ' . quote($panel->{title}) . "\n";
	if ($panel->{kind} eq 'lag')
	{
		my $file = "$directory/$scenario-lag.csv";
		return unless -e $file;
		open(my $fh, '<', $file) or die "could not open \"$file\": $!\n";
		my (%series, %begin);
		my ($last, $most) = (0, 0);
		while (my $line = <$fh>)
		{
			my ($servers, $standby, $storm, $at, $lag) = split /,/,
			  $line =~ s/\s+$//r;
			next if $line =~ /^(#|servers,)/;

			# all panels alike
			($last, $most) = (max($last, $at), max($most, $lag));
			next if $servers ne $panel->{servers};
			push @{ $series{$standby} }, "$at $lag";
			$begin{$storm} = min($begin{$storm} // $at, $at);
		}
		close($fh);
		return unless %series;
		$out .= 'set title ' . quote($label{ $panel->{servers} }) . "\n";
		$out .=
		  "\$${block}_$_ << EOD\n" . join("\n", @{ $series{$_} }) . "\nEOD\n"
		  foreach sort keys %series;
		$out .=
		  "set ylabel 'seconds behind'\nset xlabel 'seconds'\nunset logscale\nunset label\nset xtics auto\nset bmargin 4\n";
		$out .= sprintf(
			"set yrange [0:%g]\nset xrange [0:%g]\n",
			1.3 * $most || 1,
			$last || 1);
		my $row = 0;

		foreach my $storm (sort { $begin{$a} <=> $begin{$b} } keys %begin)
		{
			my $name = $storm =~ s/ of a / /r;
			$out .=
				"set label "
			  . quote($name)
			  . " at $begin{$storm}, graph "
			  . (0.97 - 0.06 * ($row++ % 5))
			  . " left font ',9' tc rgb '#606060'\n";
		}
		$out .= 'plot ' . join(
			', ',
			map {
				"\$${block}_$_ with lines lw 2 "
				  . (
					$_ eq 'standby'
					? "lc rgb '$colour{$panel->{servers}}'"
					: "dt 2 lc rgb '#404040'")
				  . " title '$_'"
			} sort { $b cmp $a } keys %series) . "\nunset label\n";
		return $out;
	}

	my @keys = selected($results, $scenario, $panel) or return;
	my @servers = in_order(map { keys %{ $results->{values}{$_} } } @keys);
	$out .= 'set ylabel ' . quote($panel->{y}) . "\nunset logscale\n";
	$out .=
	  $panel->{log}
	  ? "set logscale y\nset yrange [*:*]\n"
	  : "set yrange [0:*]\n";
	my (@plots, %x, @tics);
	if ($panel->{kind} eq 'lines')
	{
		# Equal steps, which is what sizes that double look like on a logarithmic axis.
		my @names = uniq(
			map {
				my @field = split /,/, $_, -1;
				($panel->{x} // 'size') eq 'size'
				  ? $field[1]
				  : $field[2] =~ /(\d+)(?:%|\/s)/;
			} @keys);
		@names =
		  sort { $a =~ /B$/ ? by_size($a, $b) : $a <=> $b } @names;
		my $i = 0;
		%x = map { $_ => $i++ } @names;
		@tics = map { quote($_) . " $x{$_}" } @names;
		$out .=
			'set xlabel '
		  . quote($panel->{xlabel} // 'shared_buffers')
		  . "\nset bmargin 4\n";
		foreach my $server (@servers)
		{
			my %line;
			foreach my $key (@keys)
			{
				my @field = split /,/, $key, -1;
				my $name =
				  ($panel->{x} // 'size') eq 'size'
				  ? $field[1]
				  : ($field[2] =~ /(\d+)(?:%|\/s)/)[0];
				my $values = $results->{values}{$key}{$server} or next;
				$line{ $x{$name} } = [ values %$values ];
			}
			next unless %line;
			my $data = "\$${block}_" . scalar @plots;
			$out .= "$data << EOD\n";
			$out .= join(' ',
				$_,
				median(@{ $line{$_} }),
				min(@{ $line{$_} }),
				max(@{ $line{$_} }))
			  . "\n"
			  foreach sort { $a <=> $b } keys %line;
			$out .= "EOD\n";
			push @plots,
			  "$data using 1:2 with linespoints lw 2 pt 7 ps 0.6 lc rgb '$colour{$server}' title "
			  . quote($label{$server}),
			  "$data using 1:3:(0):(\$4-\$3) with vectors nohead lw 1.5 lc rgb '$colour{$server}' notitle";
		}
		$out .= sprintf("set xrange [-0.3:%g]\n", @names - 0.7);
	}
	else
	{
		my $width = 0.8 / @servers;
		my ($i, $lines) = (0, 1);
		my $several_sizes = uniq(map { (split /,/)[1] } @keys) > 1;
		my $several_cases = uniq(map { (split /,/, $_, -1)[2] } @keys) > 1;
		my $several_measures = uniq(map { (split /,/, $_, -1)[3] } @keys) > 1;
		foreach my $key (@keys)
		{
			my @field = split /,/, $key, -1;
			$x{$key} = $i++;
			my $name = join(' ',
				($several_cases    ? $field[2] : ()),
				($several_measures ? $field[3] : ()),
				($several_sizes    ? $field[1] : ()));
			$name =~ s/$panel->{strip}//g if $panel->{strip};
			$name =~ s/ *(?<!\d) +(?=\S)/\\n/g;
			$lines = max($lines, 1 + ($name =~ s/\\n/\\n/g || 0));
			push @tics, "\"$name\" $x{$key}";
		}
		$out .= "set xlabel ''\nset bmargin " . (1 + $lines) . "\n";
		foreach my $s (0 .. $#servers)
		{
			my $data = "\$${block}_$s";
			$out .= "$data << EOD\n";
			foreach my $key (@keys)
			{
				my $values = $results->{values}{$key}{ $servers[$s] } or next;
				my @v = values %$values;
				$out .= join(' ',
					$x{$key} + ($s - (@servers - 1) / 2) * $width,
					median(@v), min(@v), max(@v))
				  . "\n";
			}
			$out .= "EOD\n";
			push @plots,
				"$data using 1:2:("
			  . 0.9 * $width
			  . ") with boxes fs solid 0.8 noborder lc rgb '$colour{$servers[$s]}' title "
			  . quote($label{ $servers[$s] }),
			  "$data using 1:3:(0):(\$4-\$3) with vectors nohead lw 1.5 lc rgb '#303030' notitle";
		}
		$out .= sprintf("set xrange [-0.6:%g]\n", @keys - 0.4);
	}
	$out .= 'set xtics (' . join(', ', @tics) . ") font ',10'\n";
	return $out . 'plot ' . join(", \\\n  ", @plots) . "\n";
}

sub plot
{
	my ($directory, $results) = @_;
	return if system('gnuplot --version >/dev/null 2>&1') != 0;
	foreach my $scenario (grep { $plots{$_} } scenarios_of($results))
	{
		my $number = 0;
		my @panels = grep { defined }
		  map {
			panel_commands($directory, $results, $scenario, $_,
				'd' . $number++)
		  } @{ $plots{$scenario} };
		next unless @panels;
		my $across = min(2, scalar @panels);
		my $down = int((@panels + $across - 1) / $across);
		my $head = $results->{head}{$scenario};
		my ($version) = $head->{fork}[0] =~ /\) (\S+)/;
		my $about = sprintf('%s; %s; %s',
			$scenario,
			$version // '',
			substr($head->{date}[0], 0, 10));
		open(my $gnuplot, '|-', 'gnuplot')
		  or die "could not run gnuplot: $!\n";
		printf $gnuplot
		  "set terminal svg size %d,%d noenhanced font 'sans-serif,12' background 'white'\nset output %s\n",
		  $across == 1 ? 640 : 1000, 60 + 340 * $down,
		  quote("$directory/$scenario.svg");
		print $gnuplot
		  "set border 3\nset tics nomirror\nset grid ytics lc rgb '#d0d0d0'\n",
		  "set key tmargin center horizontal samplen 2\n";
		print $gnuplot "set multiplot layout $down,$across title ",
		  quote($about), "\n";
		print $gnuplot $_ foreach @panels;
		print $gnuplot "unset multiplot\n";
		close($gnuplot) or die "gnuplot could not plot $scenario\n";
	}
	return;
}

=pod

=back

=cut

1;
