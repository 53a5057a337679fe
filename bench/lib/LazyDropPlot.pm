# Copyright (c) 2026, LazyDrop developers

=pod

=head1 NAME

LazyDropPlot - plots of the results of bench/run

=head1 DESCRIPTION

Draws one SVG for each scenario, with gnuplot.

=cut

package LazyDropPlot;

use strict;
use warnings FATAL => 'all';

use Exporter 'import';
use LazyDropResults qw(median by_size in_order keys_of scenarios_of);
use List::Util      qw(max min sum uniq);

our @EXPORT_OK = qw(plot quote compact_svg);

=pod

=head1 FUNCTIONS

=over

=cut

# Panels of each scenario's plot: lines over shared_buffers or over a number in the case;
# a curve over a number in the measure, with a line for the estimate and points for the
# real values; bars by case and shared_buffers; or a heatmap.  "case" and "measure" are
# patterns.
#
# A heatmap shows per cent, in a block for each server.  The groups of the pattern "cell"
# find a number for a group of rows, a row, a number for a column, and a number for a
# stripe in a cell.  "missing" is the value of a case that has only other measures.
our %plots = (
	'drop-loop' => [
		{
			kind => 'lines',
			measure => 'throughput',
			title => 'CREATE, INSERT, DROP in a loop, one client',
			y => 'transactions per second'
		}
	],
	'terabyte' => [
		{
			kind => 'lines',
			case => '^loop$',
			measure => 'throughput',
			log => 1,
			title => 'CREATE, INSERT, DROP in a loop, one client',
			y => 'transactions per second'
		},
		{
			kind => 'lines',
			case => '^2 drops',
			measure => '^the same',
			log => 1,
			title =>
			  'all processes but the background writer, 2 drops per second',
			y => 'ms of CPU time for each drop'
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
		map { +{ kind => 'lag', servers => $_ } }
		  qw(stock on on>stock on>off)
	],
	'demo' => [ map { +{ kind => 'lag', servers => $_ } } qw(off on) ],
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
	'access-paths' => [
		map {
			my ($title, @paths) = @$_;
			+{
				kind => 'bars',
				case => '^(?:' . join('|', @paths) . '); worker; twice',
				measure => 'hot table left',
				strip => '; worker; twice',
				title => "hot table left after twice, $title",
				y => '%'
			}
		} ( [
				'whole tables',
				'sequential scan',
				'parallel sequential scan',
				'VACUUM',
				'pg_dump',
				'many small tables'
			],
			[ 'by an index', '.*index scan.*', 'index-only scan' ],
			[ 'other reads', 'bitmap scan', 'CREATE INDEX' ],
			[ 'writes', 'UPDATE.*', 'COPY in', 'INSERT.*' ])
	],
	'scan-resistance' => [
		map {
			+{
				kind => 'heatmap',
				cell => '(\d+) rows; ([^;]+); ([\d.]+) N; pass (\d+)$',
				group => '%s rows/page',
				row => 'order of the index',
				xlabel =>
				  'size of the table that is read, in N (number of buffers)',
				stripe => 'pass',
				%$_
			}
		} ( {
				case => '^empty; idle; ',
				measure => '^hot set left$',
				title => 'idle hot set: % of it left after each pass'
			},
			{
				case => '^empty; live 0\.5; ',
				measure => '^hits of the hot set$',

				# Nothing was loaded, so nothing was used.
				missing => 100,
				title =>
				  'live hot set, each page used once in 0.5 N loads: % hits in each pass'
			})
	],
	'shared-buffers-advice' => [
		map {
			+{
				kind => 'curve',
				case => "^\Q$_\E\$",
				measure => '^(?:estimated|real) at ',
				xlabel => 'times shared_buffers',
				title => $_,
				y => 'hit ratio, %'
			}
		} ( 'uniform; 2 times',
			'loop; 1.1 times',
			'exponent 0.8; 4 times',
			'exponent 1.1; 4 times',
			'TPC-B-like; 2 times',
			'exponent 0.8 beside a scan')
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

# Shades of a heatmap: least value, its colour, and the colour of a value printed on it.
# Those below the last one are darker the smaller they are, and warm; the last one is
# cold.  So they differ for people who do not see red and green as different, too.
my @shades = (
	[ 0, '#2d0b59', 'white' ],
	[ 10, '#7a1d6d', 'white' ],
	[ 30, '#bf3952', 'white' ],
	[ 50, '#ee7426', 'black' ],
	[ 70, '#fbc02d', 'black' ],
	[ 90, '#b9e3dc', 'black' ]);

sub quote
{
	my ($text) = @_;
	$text =~ s/'/''/g;
	return "'$text'";
}

# Returns the keys for a panel.  (The groups are needed because an empty pattern would
# stand for the last successful one.)
sub selected
{
	my ($results, $scenario, $panel) = @_;
	my $case = $panel->{case} // '';
	return grep {
		my @field = split /,/, $_, -1;
		$field[2] =~ /(?:$case)/ && $field[3] =~ /$panel->{measure}/
	} keys_of($results, $scenario);
}

# Returns the values of a heatmap, by server, group, row, column and stripe, and the rows in
# the order of the results.
sub cells_of
{
	my ($results, $scenario, $panel) = @_;
	my (%cells, @rows);
	foreach my $key (keys_of($results, $scenario))
	{
		my (undef, undef, $case, $measure) = split /,/, $key, -1;
		next unless $case =~ /(?:$panel->{case})/;
		my ($group, $row, $column, $stripe) = $case =~ /$panel->{cell}/
		  or next;
		my $shown = $measure =~ /$panel->{measure}/;
		next unless $shown || defined $panel->{missing};
		push @rows, $row;
		foreach my $server (keys %{ $results->{values}{$key} })
		{
			my $cell = $cells{$server}{$group}{$row}{$column} //= {};
			$cell->{$stripe} //= $panel->{missing};
			$cell->{$stripe} =
			  median(values %{ $results->{values}{$key}{$server} })
			  if $shown;
		}
	}
	return (\%cells, uniq(@rows));
}

# Add a cell of a heatmap to the boxes of each shade, and to the numbers.  Adjacent stripes
# have one box if their shade is the same, and one number if that is the same, too.
sub add_cell
{
	my ($boxes, $numbers, $x, $y, @stripes) = @_;
	my ($last_shade, $last_number) = (-1, '');
	foreach my $value (@stripes)
	{
		my ($shade, $number) = (-1, '');
		if (defined $value)
		{
			$shade = max(0, grep { $value >= $shades[$_][0] } 0 .. $#shades);

			# Do not round it to a value of the last shade.
			$number = min($shades[-1][0] - 1, sprintf('%.0f', $value))
			  if $shade < $#shades;
			push @{ $boxes->[$shade] }, [ $x, $x, $y ]
			  if $shade != $last_shade;
			$boxes->[$shade][-1][1]++;
		}
		if ($number ne '')
		{
			push @{ $numbers->{ $shades[$shade][2] } },
			  [ $x, $x, $y, $number ]
			  if $number ne $last_number;
			$numbers->{ $shades[$shade][2] }[-1][1]++;
		}
		($last_shade, $last_number) = ($shade, $number);
		$x++;
	}
	return;
}

# Returns gnuplot's commands for a heatmap, and the width and height of the panel.
sub heatmap_commands
{
	my ($results, $scenario, $panel, $block) = @_;
	selected($results, $scenario, $panel) or return;
	my ($cells, @rows) = cells_of($results, $scenario, $panel);

	# An earlier version follows stock.
	my %rank = map { $_ => $_ eq 'stock' ? 0 : /^\d/ ? 1 : 2 } keys %$cells;
	my @servers = sort { $rank{$a} <=> $rank{$b} } in_order(keys %$cells);
	my @groups = sort { $a <=> $b } uniq(map { keys %$_ } values %$cells);
	my @lines = map { values %$_ } map { values %$_ } values %$cells;
	my @columns = sort { $a <=> $b } uniq(map { keys %$_ } @lines);
	my @stripes =
	  sort { $a <=> $b } uniq(map { keys %$_ } map { values %$_ } @lines);

	# The unit of x is a stripe, and the unit of y is a row.
	my $cell_width = @stripes + 0.25;
	my $block_width = @columns * $cell_width + 1;
	my $x_end = @servers * $block_width - 1.25;
	my ($left, $right) = (175, 10);
	my $width =
	  max(640, min(1000, int($left + 24 * $x_end + $right)));
	my $font = min(9, int(0.6 * ($width - $left - $right) / $x_end));
	my $y = 0;
	my (@boxes, %numbers, @x_tics, @y_tics);
	my $out =
	  'set title ' . quote($panel->{title}) . " offset 0, 0.8 font ',13'\n";
	my $label = sub {
		my ($text, $at) = @_;
		$out .= 'set label ' . quote($text) . " at $at\n";
	};
	foreach my $group (@groups)
	{
		my $begin = $y;
		foreach my $row (@rows)
		{
			next unless grep { $_->{$group}{$row} } values %$cells;
			push @y_tics, quote($row) . ' ' . ($y + 0.5);
			foreach my $s (0 .. $#servers)
			{
				my $line = $cells->{ $servers[$s] }{$group}{$row} or next;
				foreach my $c (0 .. $#columns)
				{
					my $cell = $line->{ $columns[$c] } or next;
					add_cell(\@boxes, \%numbers,
						$s * $block_width + $c * $cell_width,
						$y, @$cell{@stripes});
				}
			}
			$y++;
		}
		$label->(
			sprintf($panel->{group}, $group),
			'screen 0.01, first ' . ($begin + $y) / 2 . " font ',10'");
		$y += 0.5;
	}
	$y -= 0.5;
	foreach my $s (0 .. $#servers)
	{
		my $name = $servers[$s];
		$name =
			$name eq 'on'  ? 'LazyDrop'
		  : $name =~ /^\d/ ? "LazyDrop $name"
		  :                  $label{$name} // $name;
		$label->(
			$name,
			'first '
			  . ($s * $block_width + (@columns * $cell_width) / 2)
			  . ", graph 1 offset 0, 0.6 center");
		push @x_tics, map {
			quote($columns[$_]) . ' '
			  . ($s * $block_width + $_ * $cell_width + @stripes / 2)
		} 0 .. $#columns;
	}
	$label->(
		$panel->{row}, "graph 0, graph 1 offset -1, 0.6 right font ',10'");

	my @plots;
	foreach my $i (0 .. $#shades)
	{
		next unless $boxes[$i];
		my $data = "\$${block}_box$i";
		$out .= "$data << EOD\n";
		$out .= join(' ', @$_) . "\n" foreach @{ $boxes[$i] };
		$out .= "EOD\n";
		push @plots,
		  "$data using 1:3:1:2:(\$3+0.03):(\$3+0.97) with boxxyerror fs solid noborder lc rgb '$shades[$i][1]'";
	}
	foreach my $colour (sort keys %numbers)
	{
		my $data = "\$${block}_$colour";
		$out .= "$data << EOD\n";
		$out .= join(' ', @$_) . "\n" foreach @{ $numbers{$colour} };
		$out .= "EOD\n";
		push @plots,
		  "$data using ((\$1+\$2)/2):(\$3+0.5):4 with labels font ',$font' tc rgb '$colour'";
	}
	$out .=
	  'set xlabel '
	  . quote("$panel->{xlabel}; in each cell, $panel->{stripe} "
		  . join(', ', @stripes))
	  . " offset 0, 0.6\nset border 0\nset tics scale 0\nset xtics ("
	  . join(', ', @x_tics)
	  . ") font ',10' offset 0, 0.4\nset ytics ("
	  . join(', ', @y_tics)
	  . ") font ',10' offset 0.5, 0\nunset key\nunset grid\n"
	  . sprintf(
		"set lmargin at screen %g\nset rmargin at screen %g\nset xrange [0:%g]\nset yrange [%g:0]\n",
		$left / $width,
		1 - $right / $width,
		$x_end, $y);
	$out .= 'plot ' . join(", \\\n  ", @plots) . "\nunset label\n";
	return ($out, $width, 16 * $y);
}

# The same for all heatmaps of a scenario, one below the other, with a legend.
sub heatmaps
{
	my ($directory, $results, $scenario) = @_;
	my $number = 0;
	my @panels = grep { @$_ }
	  map { [ heatmap_commands($results, $scenario, $_, 'd' . $number++) ] }
	  @{ $plots{$scenario} }
	  or return;
	my ($above, $below) = (50, 64);
	my $width = max(map { $_->[1] } @panels);
	my $height = 72 + sum(map { $above + $_->[2] + $below } @panels);
	my $out = '';
	foreach my $i (0 .. $#shades)
	{
		my ($least, $colour, $on) = @{ $shades[$i] };
		my $x = $width / 2 + 80 * ($i - @shades / 2);
		$out .= sprintf(
			"set object rectangle from screen %g, screen %g to screen %g, screen %g fs solid noborder fc rgb '$colour'\n",
			$x / $width,
			1 - 38 / $height,
			($x + 80) / $width,
			1 - 54 / $height);
		$out .= sprintf(
			"set label %s at screen %g, screen %g center front font ',10' tc rgb '$on'\n",
			quote(
				  $i == 0        ? "below $shades[1][0] %"
				: $i == $#shades ? "$least % or more"
				:                  "$least to $shades[$i + 1][0] %"),
			($x + 40) / $width,
			1 - 46 / $height);
	}
	my $y = 72;
	foreach my $panel (@panels)
	{
		$y += $above;
		$out .= sprintf(
			"set tmargin at screen %g\nset bmargin at screen %g\n",
			1 - $y / $height,
			1 - ($y + $panel->[2]) / $height) . "$panel->[0]unset object\n";
		$y += $panel->[2] + $below;
	}
	return ($width, $height, '', $out);
}

# Returns gnuplot's commands for a panel; $block is a name for its data.
sub panel_commands
{
	my ($directory, $results, $scenario, $panel, $block) = @_;
	my $out = 'set title ' . quote($panel->{title} // '') . "\n";
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

			# All panels have the same scale.
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
		# Use equal steps, because sizes that double are equidistant on a logarithmic
		# axis.
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
	elsif ($panel->{kind} eq 'curve')
	{
		$out .=
			'set xlabel '
		  . quote($panel->{xlabel})
		  . "\nset bmargin 4\nset yrange [*:100]\nset xrange [0:*]\n";
		foreach my $server (@servers)
		{
			foreach my $word ('estimated', 'real')
			{
				my %at;
				foreach my $key (@keys)
				{
					my ($x) = $key =~ /,$word at ([\d.]+),/ or next;
					my $values = $results->{values}{$key}{$server} or next;
					$at{$x} = median(values %$values);
				}
				my $data = "\$${block}_" . scalar @plots;
				$out .= "$data << EOD\n";
				$out .= "$_ $at{$_}\n" foreach sort { $a <=> $b } keys %at;
				$out .= "EOD\n";
				@tics = map { "'$_' $_" } sort { $a <=> $b } keys %at;
				push @plots,
				  "$data using 1:2 with "
				  . (
					$word eq 'real'
					? 'points pt 6 ps 0.8'
					: 'lines lw 2')
				  . " lc rgb '$colour{$server}' title "
				  . quote("$server, $word");
			}
		}
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

=pod

=item compact_svg($file)

Remove everything without effect from a file of gnuplot: empty groups, unused marks,
attributes that each group repeats, and the second decimal.  Adjacent polygons become one
path, and adjacent texts become one group, if their attributes are the same.  This halves
the file's size.

=cut

sub round
{
	my ($text) = @_;
	return $text if $text !~ /^(?:[ML]|translate)/;
	$text =~ s/(\d+\.\d+)/sprintf('%.1f', $1) =~ s{\.0$}{}r/ge;
	return $text =~ s/\s+$//r;
}

# Returns one path for polygons, without their attributes.
sub path_of
{
	my ($fill, $polygons) = @_;
	my @points = $polygons =~ /points = '([^']*?) *'/g;
	return "<path fill='$fill' d='M" . join('zM', @points) . "z'/>\n";
}

# Returns one group for texts, each of which has a group of its own.
sub group_of
{
	my ($attributes, $groups) = @_;
	return "<g$attributes>\n"
	  . ($groups =~
		  s{<g [^(]*\(([^,]*),([^)]*)\)[^>]*>\n<text>(.*)\n</g>}{<text x="$1" y="$2">$3}gr
	  ) . "</g>\n";
}

sub compact_svg
{
	my ($file) = @_;
	open(my $fh, '<', $file) or die "could not open \"$file\": $!\n";
	my $text = do { local $/; <$fh> };
	close($fh);
	$text =~ s{<(title|desc)>[^<]*</\1>}{}g;
	$text =~ s{<filter .*?</filter>}{}gs;
	$text =~ s{ class="gridline"}{}g;

	# Attributes of the outermost group also apply to the groups in it.
	my $common =
	  'fill="none" stroke="currentColor" stroke-linecap="butt" stroke-linejoin="miter"';
	my @also = (
		'color="black"', 'stroke-width="1.00"',
		'font-family="sans-serif"', 'font-size="12.00"');
	$text =~ s{ +$_}{}g foreach @also;
	$common = join(' ', $common, @also);
	$text =~ s{<g id="gnuplot_canvas">}{<g $common>};
	$text =~ s{<rect (?=x="0")}{<rect stroke="none" };
	$text =~
	  s{<g fill="none"( color="[^"]*")? stroke="([^"]*)"( stroke-width="[^"]*")? stroke-linecap="butt" stroke-linejoin="miter">}
	  {'<g' . ($1 // '') . ($2 eq 'currentColor' ? '' : qq{ stroke="$2"}) . ($3 // '') . '>'}ge;
	$text =~
	  s{(<polygon fill = '([^']*)' points = '[^']*'/>\s*(?:<polygon fill = '\2' points = '[^']*'/>\s*)*)}
	  {path_of($2, $1)}ge;
	$text =~ s{(?<==)(["'])([^"']*)\1}{$1 . round($2) . $1}ge;
	$text =~ s{<path [^<>]* d='M[^ LMz]*'/>}{}g;
	$text =~ s{\s*\n\s*}{\n}g;
	1 while $text =~ s{<g\b[^<>]*>\n?</g>\n?}{}g;
	my $single =
	  qr{<g transform="translate\([^()]*\)"([^<>]*)>\n<text>[^<>]*</text>\n</g>\n};
	$text =~
	  s{($single(?:<g transform="translate\([^()]*\)"\2>\n<text>[^<>]*</text>\n</g>\n)+)}
	  {group_of($2, $1)}ge;

	# Start with the last one, because they refer to each other.
	foreach my $id (reverse $text =~ /id='(gpPt\d+|gpDot)'/g)
	{
		$text =~ s{<\w+ [^<>]*id='$id'[^<>]*/>\n?}{}
		  if $text !~ /#$id\b/;
	}
	$text =~ s{<defs>\s*</defs>\n?}{};
	open($fh, '>', $file) or die "could not create \"$file\": $!\n";
	print $fh $text;
	close($fh) or die "could not write \"$file\": $!\n";
	return;
}

# Returns width and height of all panels, a layout for them, and gnuplot's commands.
sub panels
{
	my ($directory, $results, $scenario) = @_;
	my $number = 0;
	my @panels = grep { defined }
	  map {
		panel_commands($directory, $results, $scenario, $_, 'd' . $number++)
	  } @{ $plots{$scenario} }
	  or return;
	my $across = min(2, scalar @panels);
	my $down = int((@panels + $across - 1) / $across);
	return (
		$across == 1 ? 640 : 1000,
		60 + 340 * $down,
		"layout $down,$across",
		join('', @panels));
}

=pod

=item plot($directory, $results)

Draw plots of results that read_results has returned.  Without gnuplot, do nothing.

=cut

sub plot
{
	my ($directory, $results) = @_;
	return if system('gnuplot --version >/dev/null 2>&1') != 0;
	foreach my $scenario (grep { $plots{$_} } scenarios_of($results))
	{
		my $draw =
		  $plots{$scenario}[0]{kind} eq 'heatmap' ? \&heatmaps : \&panels;
		my ($width, $height, $layout, $commands) =
		  $draw->($directory, $results, $scenario)
		  or next;
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
		  $width, $height, quote("$directory/$scenario.svg");
		print $gnuplot
		  "set border 3\nset tics nomirror\nset grid ytics lc rgb '#d0d0d0'\n",
		  "set key tmargin center horizontal samplen 2\n";
		print $gnuplot "set multiplot $layout title ", quote($about), "\n",
		  $commands, "unset multiplot\n";
		close($gnuplot) or die "gnuplot could not plot $scenario\n";
		compact_svg("$directory/$scenario.svg");
	}
	return;
}

=pod

=back

=cut

1;
