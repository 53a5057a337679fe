# Copyright (c) 2026, LazyDrop developers

=pod

=head1 NAME

LazyDropObserver - what is seen of a cluster under Patroni, for bench/patroni/run

=head1 DESCRIPTION

There is one run at a time, whose cluster clients of LazyDropClients use.  These functions
follow the clients' notes, print what happens, and keep the values and failures of all
runs.

=cut

package LazyDropObserver;

use strict;
use warnings FATAL => 'all';

use Exporter 'import';
use LazyDropClients;
use LazyDropTimeline;
use List::Util  qw(sum0);
use Time::HiRes qw(time);

our @EXPORT =
  qw(begin_run watch end_watch label say_line event last_event record
  failure all_values all_failures all_events samples_of drops started_at say_status
  dropped acknowledged count_change changes wait_for_write);

my ($run, $shared_buffers, $cluster, $zero, @events, @values, @failures);
my (%file, $acks, @acknowledged, $acks_rest, $changes, $said_until);

=pod

=over

=item begin_run($number, $shared_buffers)

Begin a run, whose time is counted from now.

=item watch($cluster, $rate)

Start a writer, a dropper of a number of tables per second and a sampler of each member,
and wait until numbers are written.

=item end_watch()

Do not read the writer's notes any more.

=item started_at()

Returns when the run has begun.

=cut

sub begin_run
{
	($run, $shared_buffers) = @_;
	$zero = time;
	@events = @acknowledged = ();
	$acks_rest = '';
	$changes = 0;
	$said_until = $zero;
	return;
}

sub watch
{
	($cluster, my $rate) = @_;
	%file = (
		writer => start_writer($cluster),
		dropper => start_dropper($cluster, $rate),
		map { $_ => start_sampler($cluster, $_) } @{ $cluster->{names} });
	$cluster->wait_for('the writer begins', sub { -e $file{writer} });
	open($acks, '<', $file{writer})
	  or die "could not open \"$file{writer}\": $!\n";
	return;
}

sub end_watch
{
	close($acks);
	$acks = undef;
	return;
}

sub started_at
{
	return $zero;
}

=pod

=item label($kind)

Returns the name of "stock" or "fork" for users.

=item say_line($text)

Print a line with the seconds since the run has begun.

=item event($short [, $text])

Print that something is done now, and mark it in the plot.

=item last_event(), all_events()

Return the time of the last event, and all of this run as an array of [ time, text ].

=item record($kind, $case, $measure, $unit, $value)

Keep a value that was measured with stock or with the fork.

=item failure($text)

Print that something has failed, and keep it.

=item all_values(), all_failures()

Return what all runs have kept.

=cut

my %label = (stock => 'stock', fork => 'the fork');

sub label
{
	my ($kind) = @_;
	return $label{$kind};
}

sub say_line
{
	my ($text) = @_;
	printf "%8.1f s  %s\n", time - $zero, $text;
	return;
}

sub event
{
	my ($short, $text) = @_;
	push @events, [ time, $short ];
	say_line($text // $short);
	return;
}

sub last_event
{
	return $events[-1][0];
}

sub all_events
{
	return @events;
}

sub record
{
	my ($kind, $case, $measure, $unit, $value) = @_;
	push @values,
	  {
		scenario => 'patroni',
		run => $run,
		server => $kind eq 'fork' ? 'on' : 'stock',
		shared_buffers => $shared_buffers,
		case => $case,
		measure => $measure,
		unit => $unit,
		value => 0 + sprintf('%.5g', $value)
	  };
	return;
}

sub failure
{
	my ($text) = @_;
	push @failures, "run $run: $text";
	say_line("FAILED: $text");
	return;
}

sub all_values
{
	return @values;
}

sub all_failures
{
	return @failures;
}

=pod

=item samples_of($name), drops()

Return the notes of a member's sampler, and of the dropper.

=item say_status()

Print the largest lag of each member since the last such line, and what has been done
until now.

=item dropped()

Returns the numbers of tables and databases that the dropper has dropped.

=item acknowledged()

Returns the numbers that have been acknowledged until now, with times and ports.

=item count_change(), changes()

Count a change of the leader; return how many there were.

=item wait_for_write($name, $what)

Wait for a number that this member has acknowledged from now on.

=cut

sub samples_of
{
	my ($name) = @_;
	return read_notes($file{$name});
}

sub drops
{
	return read_notes($file{dropper});
}

sub say_status
{
	my %samples = map {
		$_ => [ grep { $_->[0] > $said_until - 60 } samples_of($_) ]
	} @{ $cluster->{names} };
	my $lag = lag_of_members(\%samples);
	my ($tables, $databases) = dropped();
	say_line(
		sprintf
		  '    lag up to %s; dropped: %d tables, %d databases; %d numbers',
		join(
			', ',
			map {
				sprintf '%s %.2f s', $_,
				  largest_lag({ $_ => $lag->{$_} }, $said_until, time)
			} sort keys %$lag),
		$tables,
		$databases,
		scalar @{ acknowledged() });
	$said_until = time;
	return;
}

sub dropped
{
	my @drops = drops();
	return map {
		my $n = $_;
		sum0(map { $_->[$n] } @drops)
	} 1, 2;
}

sub acknowledged
{
	while ($acks && sysread($acks, $acks_rest, 65536, length($acks_rest)))
	{
		push @acknowledged, [ split ' ', $1 ] while $acks_rest =~ s/^(.*)\n//;
	}
	return \@acknowledged;
}

sub count_change
{
	$changes++;
	return;
}

sub changes
{
	return $changes;
}

sub wait_for_write
{
	my ($name, $what) = @_;
	my $since = time;
	my $port = $cluster->member($name)->{port};
	$cluster->wait_for(
		"$what: $name acknowledges a number",
		sub {
			my $last = acknowledged()->[-1] // return 0;
			return $last->[0] > $since && $last->[2] == $port;
		});
	return;
}

=pod

=back

=cut

1;
