# Copyright (c) 2026, LazyDrop developers

=pod

=head1 NAME

LazyDropLag - the lag of standbys, for scenarios of bench/run

=head1 DESCRIPTION

The lag is measured from outside.  A psql on each server records every 20 ms the position
to which WAL has been flushed (primary) or replayed (standbys).  The lag is the age of the
oldest WAL that has not been replayed: the time since the primary was first observed
beyond the standby's position.  Its uncertainty is the interval between two samples.

=over

=cut

package LazyDropLag;

use strict;
use warnings FATAL => 'all';

use Exporter 'import';
use LazyDropBench;
use List::Util qw(max);
use PostgreSQL::Test::Utils;
use Time::HiRes qw(time);

our @EXPORT = qw(start_samples read_samples stop_samples lag_of time_of_replay
  begin_curves add_curve end_curves);

=pod

=item start_samples($primary, @standbys)

Start sampling.  The primary must have a table "heartbeat" with a column "at", which is
updated meanwhile so that there is always something to replay.

=cut

sub start_samples
{
	my ($primary, @standbys) = @_;
	my @watches;
	foreach my $node ($primary, @standbys)
	{
		my $name = $node->name;
		my $sql = $node == $primary
		  ? q{UPDATE heartbeat SET at = clock_timestamp()
			RETURNING extract(epoch FROM at), pg_current_wal_flush_lsn() - '0/0'}
		  : q{SELECT extract(epoch FROM clock_timestamp()), pg_last_wal_replay_lsn() - '0/0'};
		my $file = in_scratch("$name.samples");
		my $handle = start_program(
			[
				$node->installed_command('psql'),
				'-XAtq',
				'-v' => 'ON_ERROR_STOP=1',
				'-F' => ',',
				'-d' => $node->connstr('postgres'),
				'-f' => write_file("$name.sql", "$sql \\watch i=0.02\n")
			],
			'>' => $file,
			'2>' => \*STDERR);
		push @watches,
		  { handle => $handle, file => $file, rest => '', list => [] };
	}
	return { watches => \@watches, primary => $primary };
}

=pod

=item read_samples($samples), stop_samples($samples)

Returns the samples so far: an array reference for each server, with the time and position
of each.  stop_samples() also stops the sampling.

=cut

sub read_samples
{
	my ($samples) = @_;
	foreach my $watch (@{ $samples->{watches} })
	{
		die "a psql that samples has ended\n"
		  unless $watch->{handle}->pumpable;
		open($watch->{fh}, '<', $watch->{file})
		  or die "could not open \"$watch->{file}\": $!\n"
		  unless $watch->{fh};
		seek($watch->{fh}, 0, 1);
		local $/ = undef;
		$watch->{rest} .= readline($watch->{fh}) // '';

		# The last line may be incomplete.
		push @{ $watch->{list} }, [ $1, $2 ]
		  while $watch->{rest} =~ s/^([\d.]+),(\d+)\n//;
	}
	return map { $_->{list} } @{ $samples->{watches} };
}

sub stop_samples
{
	my ($samples) = @_;

	# Wait for a sample of the primary that is later than all samples that will be used.
	my $now = time;
	$samples->{primary}->poll_query_until('postgres',
		"SELECT extract(epoch FROM at) > $now + 0.2 FROM heartbeat")
	  or die "no heartbeat\n";
	my @lists = read_samples($samples);
	foreach my $watch (@{ $samples->{watches} })
	{
		end_program($watch->{handle});
		close($watch->{fh});
		unlink $watch->{file};
	}
	return @lists;
}

=pod

=item lag_of($primary, $standby [, $from, $to])

Returns the time and the lag at each sample of a standby, computed from the samples of
both servers, optionally only for an interval.

=item time_of_replay($standby, $position)

Returns the time at which a standby was first observed to have replayed up to a position,
or undef.

=cut

sub lag_of
{
	my ($primary, $standby, $from, $to) = @_;
	my ($i, @lag) = (0);
	foreach my $sample (@$standby)
	{
		my ($at, $position) = @$sample;
		next if defined $from && $at < $from;
		last if $primary->[-1][0] < $at || (defined $to && $at > $to);
		$i++ while $i < $#$primary && $primary->[$i][1] <= $position;
		push @lag,
		  [
			$at,
			$primary->[$i][1] <= $position
			? 0
			: max(0, $at - $primary->[$i][0])
		  ];
	}
	return @lag;
}

sub time_of_replay
{
	my ($standby, $position) = @_;
	foreach my $sample (@$standby)
	{
		return $sample->[0] if $sample->[1] >= $position;
	}
	return undef;
}

=pod

=item begin_curves(), add_curve($standby, \@lag, \@storms), end_curves()

Write the lag over time for the plot, with the maximum of each quarter of a second, to the
file SCENARIO-lag.csv beside the results.  A storm is [ what, when it began ]; the first
one begins at 0.

=cut

my $curves;

sub curves_file
{
	return
	  "$LazyDropBench::now{directory}/$LazyDropBench::now{scenario}-lag.csv";
}

sub begin_curves
{
	my $file = curves_file() . '.part';
	open($curves, '>', $file) or die "could not create \"$file\": $!\n";
	print $curves
	  "# lag of the standbys in the first run at $opt{large}: the largest of each quarter of a second\n",
	  "servers,standby,storm,seconds,lag\n";
	return;
}

sub add_curve
{
	my ($standby, $lag, $storms) = @_;
	my $zero = $storms->[0][1];
	my %bin;
	foreach my $sample (grep { $_->[0] >= $zero } @$lag)
	{
		my $slot = int(4 * ($sample->[0] - $zero));
		$bin{$slot} = max($bin{$slot} // 0, $sample->[1]);
	}
	foreach my $slot (sort { $a <=> $b } keys %bin)
	{
		my ($storm) =
		  grep { $_->[1] - $zero <= $slot / 4 + 0.25 } reverse @$storms;
		printf $curves "%s,%s,%s,%.2f,%.2f\n",
		  $LazyDropBench::now{case}{server}, $standby, $storm->[0], $slot / 4,
		  $bin{$slot};
	}
	return;
}

sub end_curves
{
	my $file = curves_file();
	close($curves) or die "could not write \"$file.part\": $!\n";
	rename("$file.part", $file)
	  or die "could not rename \"$file.part\": $!\n";
	return;
}

=pod

=back

=cut

1;
