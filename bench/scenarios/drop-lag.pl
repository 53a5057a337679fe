
# Copyright (c) 2026, LazyDrop developers

# Source: operators' reports of standbys that fall behind.
#
# Asks: how far behind are two standbys while a client drops tables in a loop?  Three
# servers that share two processors compete for them.  Therefore there is also a loop at a
# rate that leaves some processor time unused, and that stock cannot reach.
#
# Expected: with a large shared_buffers, stock is slow even on the primary.  The fork is
# as fast as stock with a small one, and its standbys are never more than 1 s behind.

use strict;
use warnings FATAL => 'all';

use LazyDropBench;
use LazyDropLag;
use List::Util  qw(max);
use Time::HiRes qw(time);

scenario 'drop-lag' => (
	seconds => 7 + 3 * $opt{seconds},
	groups => sub {
		my ($small) = sizes('128MB');
		return [
			{ server => 'stock', size => $opt{large}, case => 'full speed' },
			{ server => 'on', size => $opt{large}, case => 'full speed' },
			(   $small eq $opt{large}
				? ()
				: { server => 'stock', size => $small, case => 'full speed' }
			),
			{
				server => 'on',
				size => $opt{large},
				case => '400/s',
				options => [ '-R', 400 ]
			}
		];
	},
	run => sub {
		my ($case) = @_;
		my $server = $case->{server};
		my $primary = make_primary($server, shared_buffers => $case->{size});
		my @standbys = map { make_standby($primary, $server) } 1 .. 2;
		$primary->safe_psql('postgres',
			'CREATE TABLE heartbeat AS SELECT clock_timestamp() AS at');
		$primary->wait_for_replay_catchup($_) foreach @standbys;
		my $samples = start_samples($primary, @standbys);
		my $began = time;
		my $tps = pgbench(
			$primary, loop_script(), '-c', 1, '-T',
			3 * $opt{seconds},
			@{ $case->{options} // [] });
		$primary->wait_for_replay_catchup($_) foreach @standbys;
		my $ended = time;
		my ($of_primary, @of_standbys) = stop_samples($samples);
		record('throughput', 'tps', $tps);
		record(
			'largest lag',
			's',
			max(map   { $_->[1] }
				  map { lag_of($of_primary, $_, $began, $ended) }
				  @of_standbys));
		discard(@standbys, $primary);
	});
