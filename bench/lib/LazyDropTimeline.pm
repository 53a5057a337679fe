# Copyright (c) 2026, LazyDrop developers

=pod

=head1 NAME

LazyDropTimeline - analyze and draw the observations of LazyDropClients

=head1 DESCRIPTION

The lag is measured from outside, as in LazyDropLag: at each sample of a standby, it is
the age of the oldest WAL that it has not replayed, which is the time since a primary was
first observed beyond its position.

=cut

package LazyDropTimeline;

use strict;
use warnings FATAL => 'all';

use Exporter 'import';
use LazyDropPlot qw(quote compact_svg);
use List::Util   qw(max min);

our @EXPORT = qw(time_without_leader lag_of_members largest_lag states
  write_timeline draw_timeline);

=pod

=over

=item time_without_leader(\@acknowledged, $since)

Returns, from the notes of the writer, the seconds between the last number that one leader
has acknowledged and the first number that another server has acknowledged, at the first
such change after a time.  Returns undef if there is none.

=cut

sub time_without_leader
{
	my ($acknowledged, $since) = @_;
	my $last;
	foreach my $ack (@$acknowledged)
	{
		my ($at, undef, $port) = @$ack;
		return $at - $last->[0]
		  if $last && $port != $last->[2] && $at > $since;
		$last = $ack;
	}
	return undef;
}

=pod

=item lag_of_members(\%samples)

Takes samples by member.  Returns an array of [ time, lag ] for each, at times when it was
a standby.

=item largest_lag(\%lag, $from, $to)

Returns the largest lag of any member in an interval.

=cut

sub lag_of_members
{
	my ($samples) = @_;
	my %lag = map { $_ => [] } keys %$samples;

	# Positions of the primary over time.  A new primary may begin before the end of an
	# old one, whose last WAL is lost then.  While there is no primary, the lag does not
	# grow.
	my (@primary, $seen);
	foreach my $sample (
		sort { $a->[1][0] <=> $b->[1][0] }
		map {
			my $name = $_;
			map { [ $name, $_ ] } @{ $samples->{$name} }
		} keys %$samples)
	{
		my ($name, $note) = @$sample;
		my ($at, $role, $position) = @$note;
		if ($role eq 'primary')
		{
			$seen = $at;
			pop @primary while @primary && $primary[-1][1] > $position;
			push @primary, [ $at, $position ]
			  if !@primary || $primary[-1][1] < $position;
		}
		elsif ($role eq 'standby')
		{
			# Find the first position beyond it.
			my ($low, $high) = (0, scalar @primary);
			while ($low < $high)
			{
				my $middle = int(($low + $high) / 2);
				if ($primary[$middle][1] > $position)
				{
					$high = $middle;
				}
				else
				{
					$low = $middle + 1;
				}
			}
			push @{ $lag{$name} },
			  [ $at, $low < @primary ? $seen - $primary[$low][0] : 0 ];
		}
	}
	return \%lag;
}

sub largest_lag
{
	my ($lag, $from, $to) = @_;
	return max(0,
		map  { $_->[1] }
		grep { $_->[0] >= $from && $_->[0] <= $to }
		map  { @$_ } values %$lag);
}

=pod

=item states(\@samples)

Returns the intervals in which a member's state did not change: [ from, to, role, program
].

=cut

sub states
{
	my ($samples) = @_;
	my @states;
	foreach my $sample (@$samples)
	{
		my ($at, $role, $kind) = @$sample[ 0, 1, 4 ];
		if (@states && $states[-1][2] eq $role && $states[-1][3] eq $kind)
		{
			$states[-1][1] = $at;
			next;
		}
		$states[-1][1] = $at if @states;
		push @states, [ $at, $at, $role, $kind ];
	}
	return @states;
}

=pod

=item write_timeline($file, %seen)

Write the input of draw_timeline as CSV: "zero", the time that is 0; "samples" by member;
"lag" by member; "drops", the dropper's notes; "acknowledged", the writer's; "events", [
time, text ].

=cut

sub write_timeline
{
	my ($file, %seen) = @_;
	my $zero = $seen{zero};
	open(my $fh, '>', "$file.part")
	  or die "could not create \"$file.part\": $!\n";
	print $fh "what,member,seconds,until,value\n";
	my $print = sub {
		my ($what, $member, $from, $to, $value) = @_;
		printf $fh "%s,%s,%.2f,%s,%s\n", $what, $member, $from - $zero,
		  defined $to ? sprintf('%.2f', $to - $zero) : '', $value;
	};
	$print->('event', '', $_->[0], undef, $_->[1]) foreach @{ $seen{events} };
	foreach my $name (sort keys %{ $seen{samples} })
	{
		$print->($_->[2], $name, $_->[0], $_->[1], $_->[3])
		  foreach states($seen{samples}{$name});
	}
	foreach my $name (sort keys %{ $seen{lag} })
	{
		# Use the maximum of each second.
		my %most;
		foreach my $lag (@{ $seen{lag}{$name} })
		{
			my $second = int($lag->[0] - $zero);
			$most{$second} = max($most{$second} // 0, $lag->[1]);
		}
		$print->('lag', $name, $zero + $_, undef, sprintf('%.2f', $most{$_}))
		  foreach sort { $a <=> $b } keys %most;
	}
	my ($tables, $databases) = (0, 0);
	foreach my $drop (@{ $seen{drops} })
	{
		$tables    += $drop->[1];
		$databases += $drop->[2];
		$print->('tables dropped', '', $drop->[0], undef, $tables);
		$print->('databases dropped', '', $drop->[0], undef, $databases);
	}
	my %writes;
	$writes{ int($_->[0] - $zero) }++ foreach @{ $seen{acknowledged} };
	my $last = max(keys %writes) // 0;
	$print->('acknowledged', '', $zero + $_, undef, $writes{$_} // 0)
	  foreach 0 .. $last;
	close($fh) or die "could not write \"$file.part\": $!\n";
	rename("$file.part", $file)
	  or die "could not rename \"$file.part\": $!\n";
	return;
}

=pod

=item draw_timeline($csv, $svg, $title)

Draw the timeline with gnuplot: which member was leader; the lag of each; the numbers of
writes and drops.  Returns whether it did; without gnuplot, it does not.

=cut

my %colour = (stock => '#d95f02', fork => '#1b9e77');
my @of_member = ('#1f78b4', '#6a3d9a', '#b15928');

sub draw_timeline
{
	my ($csv, $svg, $title) = @_;
	return 0 if system('gnuplot --version >/dev/null 2>&1') != 0;
	open(my $fh, '<', $csv) or die "could not open \"$csv\": $!\n";
	my (%row, $end);
	while (my $line = <$fh>)
	{
		chomp $line;
		my ($what, $member, $from, $to, $value) = split /,/, $line, 5;
		next if $what eq 'what';
		push @{ $row{$what} },
		  {
			member => $member,
			from => $from,
			to => $to,
			value => $value
		  };
		$end = max($end // 0, $to ne '' ? $to : $from);
	}
	close($fh);
	my %seen = map { $_->{member} => 1 }
	  map { @{ $row{$_} // [] } } qw(primary standby lag);
	my @members = sort keys %seen;
	my %y = map { $members[$_] => @members - $_ } 0 .. $#members;

	my $block = sub {
		my ($name, @lines) = @_;
		return "\$$name << EOD\n" . join('', map { "$_\n" } @lines) . "EOD\n";
	};
	my ($data, @plots) = ('');
	foreach my $role (qw(standby primary))
	{
		foreach my $kind (qw(stock fork))
		{
			my @of =
			  grep { $_->{value} eq $kind } @{ $row{$role} // [] };
			next unless @of;
			$data .= $block->(
				"${role}_$kind",
				map {
					join(' ',
						$_->{from},
						$y{ $_->{member} },
						$_->{to} - $_->{from}, 0)
				} @of);
			push @plots,
			  sprintf(
				"\$%s_%s using 1:2:3:4 with vectors nohead lw %d lc rgb '%s' title '%s'",
				$role,
				$kind,
				$role eq 'primary' ? 14 : 3,
				$colour{$kind},
				($role eq 'primary'   ? 'leader'  : 'standby')
				  . ($kind eq 'stock' ? ', stock' : ', LazyDrop'));
		}
	}
	my @lag;
	foreach my $i (0 .. $#members)
	{
		my @of =
		  grep { $_->{member} eq $members[$i] } @{ $row{lag} // [] };
		next unless @of;

		# Interrupt the line while there is no lag.
		my ($last, @lines);
		foreach my $lag (@of)
		{
			push @lines, '' if defined $last && $lag->{from} > $last + 1.5;
			push @lines, "$lag->{from} $lag->{value}";
			$last = $lag->{from};
		}
		$data .= $block->("lag_$i", @lines);
		push @lag,
		  "\$lag_$i with lines lw 2 lc rgb '$of_member[$i % @of_member]' title "
		  . quote($members[$i]);
	}
	my $series = sub {
		my ($name, $what) = @_;
		my @of = @{ $row{$what} // [] };
		$data .= $block->($name, map { "$_->{from} $_->{value}" } @of);
		return scalar @of;
	};
	$series->('writes', 'acknowledged');
	$series->('tables', 'tables dropped');
	my ($marks, $labels) = ('', '');
	foreach my $event (@{ $row{event} // [] })
	{
		$marks .=
		  "set arrow from $event->{from}, graph 0 to $event->{from}, graph 1 nohead lw 0.5 dt 3 lc rgb '#808080'\n";
		$labels .=
			'set label '
		  . quote($event->{value})
		  . " at $event->{from}, graph 1.03 left rotate by 60 font ',9' tc rgb '#404040'\n";
	}

	open(my $gnuplot, '|-', 'gnuplot')
	  or die "could not run gnuplot: $!\n";
	print $gnuplot
	  "set terminal svg size 1200,860 noenhanced font 'sans-serif,12' background 'white'\n",
	  'set output ', quote($svg), "\n", $data,
	  "set border 3\nset tics nomirror\nset grid ytics lc rgb '#d0d0d0'\n",
	  "set xrange [0:$end]\nset lmargin 10\nset rmargin 12\n",
	  "set multiplot\n",
	  'set label ', quote($title), " at screen 0.5, screen 0.98 center\n",
	  $marks, $labels,
	  "set size 1, 0.48\nset origin 0, 0.5\nset tmargin 10\nset bmargin 2\n",
	  "set key horizontal at screen 0.5, screen 0.955 center samplen 2\n",
	  'set yrange [0.5:', @members + 0.5, "]\nset ytics (",
	  join(', ', map { quote($_) . " $y{$_}" } @members), ")\n",
	  'plot ', join(', ', @plots), "\n",
	  "unset label\nset tmargin 2\nset key tmargin center horizontal samplen 2\n",
	  "set size 1, 0.25\nset origin 0, 0.25\nset ytics auto\nset ylabel 's behind'\n",
	  'set yrange [0:',
	  max(0.1, map { 1.05 * $_->{value} } @{ $row{lag} // [] }), "]\n",
	  'plot ', join(', ', @lag), "\n",
	  "set origin 0, 0\nset bmargin 3\nset xlabel 'seconds'\nset ylabel 'writes/s'\n",
	  "set yrange [0:*]\nset y2label 'dropped'\nset y2tics\nset y2range [0:*]\n",
	  "plot \$writes with steps lw 1.5 lc rgb '#404040' title 'acknowledged writes', ",
	  "\$tables axes x1y2 with lines lw 2 lc rgb '#1f78b4' title 'tables dropped'\n",
	  "unset multiplot\n";
	close($gnuplot) or die "gnuplot could not draw \"$svg\"\n";
	compact_svg($svg);
	return 1;
}

=pod

=back

=cut

1;
