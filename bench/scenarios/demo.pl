
# Copyright (c) 2026, LazyDrop developers

# Demonstrates the purpose of LazyDrop: "make demo".
#
# Asks: how expensive is a drop for the session, on the primary alone?  And how far do two
# standbys, one cascading from the other, fall behind while their primary drops tables,
# truncates, drops databases and drops one large table, with lazydrop.enabled off, which
# is the way of stock, and on?
#
# Three servers share this machine.  A primary that scans all buffer headers for each drop
# is as slow as standbys that do the same, so they seem to keep up.  In practice, sessions
# of a primary drop on many processors, while replay is a single process.  Therefore the
# primary has lazydrop on in both rounds, the same drops arrive at the same times, and
# only the standbys' setting differs.
#
# Expected: with a large shared_buffers, standbys with lazydrop off fall behind by
# seconds; with it on, never by more than a fraction of a second.

use strict;
use warnings FATAL => 'all';

use LazyDropBench;
use LazyDropLag;
use List::Util  qw(max min);
use Time::HiRes qw(time usleep);

my $tables = n(1000);
my $databases = n(60);
my $gigabytes = $opt{quick} ? 1 : 2;

# For each phase: the objects to drop, their number, the rate, and the minimum duration.
# Drops arrive according to a schedule that does not wait for them.
my @phases = (
	[ "$tables DROP TABLE", 'DROP TABLE d:n', $tables, 400, 9 ],
	[ "$tables TRUNCATE", 'TRUNCATE t:n', $tables, 400, 9 ],
	[ "$databases DROP DATABASE", 'DROP DATABASE v:n', $databases, 60, 7 ],
	[ "a table of $gigabytes GB", 'DROP TABLE large', 1, 0, 8 ]);

# For each round: the start times of the phases, relative to the start of the round; and
# the lag of the standby.
my (%start, %curve);

# Change the primary's setting.
sub set_lazydrop
{
	my ($node, $setting) = @_;
	$node->append_conf('postgresql.conf', "lazydrop.enabled = $setting");
	$node->reload;
	$node->poll_query_until('postgres',
		"SELECT current_setting('lazydrop.enabled') = '$setting'")
	  or die "the setting was not reloaded\n";
	return;
}

# Create the objects to drop.  "large" gets its gigabytes as further segments with blocks
# on the disk, on each server.
sub create_victims
{
	my ($tables, $databases, $gigabytes, $primary, @standbys) = @_;
	$primary->safe_psql(
		'postgres',
		join('',
			map { "CREATE TABLE $_ AS SELECT 1 AS a;\n" } 'large',
			map { ("d$_", "t$_") } 1 .. $tables));
	$primary->safe_psql(
		'postgres',
		join('',
			map { "CREATE DATABASE v$_ STRATEGY file_copy;\n" }
			  1 .. $databases));
	catch_up($primary, @standbys);
	add_gigabytes(table_path($_, 'large'), $gigabytes)
	  foreach $primary, @standbys;
	foreach my $node ($primary, @standbys)
	{
		$node->safe_psql('postgres', 'CHECKPOINT');
		catch_up($primary, @standbys);
	}
	sync_disk();
	return;
}

sub catch_up
{
	my ($primary, $standby, $cascade) = @_;
	return unless $standby;
	$primary->wait_for_replay_catchup($standby);
	$standby->wait_for_replay_catchup($cascade, $primary);
	return;
}

# Measure the primary alone: medians of the times that psql reports.
sub time_drops
{
	my ($primary) = @_;
	create_victims(100, 10, 1, $primary);
	foreach my $drop (
		[ 'DROP TABLE', map { "DROP TABLE d$_" } 1 .. 100 ],
		[ 'TRUNCATE', map { "TRUNCATE t$_" } 1 .. 100 ],
		[ 'DROP DATABASE', map { "DROP DATABASE v$_" } 1 .. 10 ],
		[ 'a table of 1 GB', 'DROP TABLE large' ])
	{
		my ($what, @statements) = @$drop;
		my (undef, @times) =
		  $primary->safe_psql('postgres',
			join(";\n", "\\timing on\nSELECT", @statements) . ';') =~
		  /^Time: ([\d.]+) ms/mg;
		die "unexpected output of psql\n" if @times != @statements;
		record(
			'in the session that drops', 'ms',
			(sort { $a <=> $b } @times)[ @times / 2 ], $what);
		wait_for_nothing_left($primary);
	}
	$primary->safe_psql('postgres',
		join('', map { "DROP TABLE t$_;\n" } 1 .. 100));
	return;
}

# Show the current lag of the standbys.
sub show_lag
{
	my ($samples, $what) = @_;
	my ($of_primary, @of_standbys) = read_samples($samples);
	usleep(100_000);
	return unless @$of_primary;
	my $now = $of_primary->[-1][0];
	$LazyDropBench::show->(
		sprintf '%-16s %-20s %s',
		'standbys ' . $LazyDropBench::now{case}{server},
		$what,
		join(
			' ',
			map {
				my ($lag) =
				  map { $_->[1] } reverse lag_of($of_primary, $_, $now - 1);
				sprintf '%5.2f s |%-10s|', $lag // 0,
				  '#' x min(10, ($lag // 0) + 0.5)
			} @of_standbys));
	return;
}

# Run one phase, and wait until both standbys have replayed it, its time is up, and
# nothing has happened for a while.  Returns an array reference with its name, start time
# and position.
sub run_phase
{
	my ($primary, $samples, $phase, $at) = @_;
	my ($what, $sql, $count, $rate, $seconds) = @$phase;
	my $clients = $count > 1 ? 2 : 1;
	show_lag($samples, $what) while time < $at;
	my $began = time;
	my $job = pgbench_start(
		$primary,
		"\\set n :i + :client_id + 1\n$sql;\n\\set i :i + $clients\n",
		'--exit-on-abort',
		'-D' => 'i=0',
		'-c' => $clients,
		'-t' => $count / $clients,
		($rate ? ('-R' => $rate) : ()));
	while ($job->{handle}->pumpable)
	{
		$job->{handle}->pump_nb;
		show_lag($samples, $what);
	}
	pgbench_finish($job);
	record('primary took', 's', time - $began, $what);
	my $position = $primary->safe_psql('postgres',
		q{SELECT pg_current_wal_flush_lsn() - '0/0'});
	my $give_up = time + 180;
	my $caught_up;
	do
	{
		die "the standbys have not caught up in 180 s\n" if time > $give_up;
		show_lag($samples, $what);
		my (undef, @of_standbys) = read_samples($samples);
		my @times = map { time_of_replay($_, $position) } @of_standbys;
		$caught_up = max(@times) if 2 == grep { defined } @times;
	  } until $caught_up
	  && ($opt{quick} || time > $began + $seconds && time > $caught_up + 2);
	record('both standbys have all after', 's', $caught_up - $began, $what);
	return [ $what, $began, $position ];
}

# With lazydrop off, fill the area below the curve; with it on, draw one mark in each
# column.
sub draw
{
	my ($columns, $rows) = (70, 12);
	my @all = map { @$_ } values %curve;
	my ($end, $highest) = map {
		my $n = $_;
		max(map { $_->[$n] } @all) || 1
	} 0, 1;
	my %column = map { $_ => [ (0) x $columns ] } qw(off on);
	foreach my $setting (keys %curve)
	{
		foreach my $sample (@{ $curve{$setting} })
		{
			my $c = min($columns - 1, int($columns * $sample->[0] / $end));
			$column{$setting}[$c] = max($column{$setting}[$c], $sample->[1]);
		}
	}
	note('seconds that the standby is behind: # lazydrop off, o lazydrop on');
	foreach my $row (reverse 0 .. $rows)
	{
		my $line = sprintf('%6.2f |', $row * $highest / $rows);
		foreach my $c (0 .. $columns - 1)
		{
			my ($off, $on) =
			  map { int($column{$_}[$c] * $rows / $highest + 0.5) }
			  qw(off on);
			$line .= $row == $on ? 'o' : $row > 0 && $row <= $off ? '#' : ' ';
		}
		note($line);
	}
	my ($axis, $letter, @legend) = ('-' x $columns, 'A');
	foreach my $n (0 .. $#phases)
	{
		substr($axis, min($columns - 1, $columns * $start{off}[$n] / $end), 1)
		  = $letter;
		push @legend, $letter++ . " $phases[$n][0]";
	}
	note("       +$axis");
	note('        ' . join(', ', @legend));
	return;
}

scenario 'demo' => (
	seconds => 70,
	runs => 1,
	disk => 4 + 3 * $gigabytes,
	groups => sub { return cases([qw(off on)], size => $opt{large}); },
	setup => \&begin_curves,
	teardown => sub {
		end_curves();
		draw() if keys %curve == 2;
	},
	run => sub {
		my ($case) = @_;
		my $server = $case->{server};
		$LazyDropBench::show->(
			"lazydrop $server: the primary alone, and preparing");
		my $primary = make_primary($server, shared_buffers => $case->{size});
		time_drops($primary);
		set_lazydrop($primary, 'on');
		$primary->safe_psql('postgres',
			'CREATE TABLE heartbeat AS SELECT clock_timestamp() AS at');
		my $standby = make_standby($primary, $server);
		my $cascade = make_standby($standby, $server, $primary);
		my @nodes = ($primary, $standby, $cascade);
		create_victims($tables, $databases, $gigabytes, @nodes);

		# In the second round, everything happens at the same times as in the first.
		my $samples = start_samples(@nodes);
		my $zero = time + 2;
		my @storms = map {
			run_phase($primary, $samples, $phases[$_],
				$zero + ($start{off}[$_] // 0))
		} 0 .. $#phases;
		my ($of_primary, @of_standbys) = stop_samples($samples);
		$start{$server} = [ map { $_->[1] - $zero } @storms ];

		foreach my $i (0, 1)
		{
			my $name = (qw(standby cascade))[$i];
			my @lag = lag_of($of_primary, $of_standbys[$i]);
			foreach my $n (0 .. $#storms)
			{
				my ($what, $began) = @{ $storms[$n] };
				my $ended = $n < $#storms ? $storms[ $n + 1 ][1] : time;
				record(
					"largest lag of the $name",
					's',
					max(map  { $_->[1] }
						grep { $_->[0] >= $began && $_->[0] < $ended } @lag),
					$what);
			}
			add_curve($name, \@lag, \@storms);
			$curve{$server} = [
				map  { [ $_->[0] - $zero, $_->[1] ] }
				grep { $_->[0] >= $zero } @lag
			  ]
			  if $i == 0;
		}
		wait_for_nothing_left(@nodes);
		discard($cascade, $standby, $primary);
	});
