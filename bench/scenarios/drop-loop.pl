
# Copyright (c) 2026, LazyDrop developers

# Source: Cybertec's blog on the effect of shared_buffers on DROP TABLE: a loop of CREATE,
# INSERT one row, DROP in one transaction, synchronous_commit off, one client: 1390, 1341,
# 1193, 532 and 104 transactions per second at 8 MB, 32 MB, 128 MB, 1 GB and 8 GB.
#
# Asks: does the loop depend on shared_buffers?  How much CPU time does the worker use for
# it?
#
# Expected before it was run: stock slows down as in the source; the fork at 16 GB has at
# least 0.95 of its own rate at 8 MB, less than 5% of a processor for the worker, and at
# most 10 passes for 1,000 drops.  At 8, 32 and 128 MB it has at least 0.98 of stock's
# rate.

use strict;
use warnings FATAL => 'all';

use LazyDropBench;
use LazyDropUtils qw(stats);
use List::Util    qw(max);
use Time::HiRes   qw(time);

scenario 'drop-loop' => (
	seconds => 2 + $opt{seconds},
	groups => sub {
		return
		  map { cases(\@servers, size => $_) }
		  sizes(qw(8MB 32MB 128MB 1GB 8GB));
	},
	run => sub {
		my ($case) = @_;
		my $node = make_primary(
			$case->{server},
			shared_buffers => $case->{size},
			synchronous_commit => 'off');
		my ($before, $cpu);
		if ($case->{server} eq 'on')
		{
			$before = stats($node);
			$cpu = cpu_seconds($before->{worker_pid});
		}
		my $began = time;
		record('throughput', 'tps',
			pgbench($node, loop_script(), '-c', 1, '-T', $opt{seconds}));
		if ($before)
		{
			my $took = time - $began;
			my $after = stats($node);
			record(
				'CPU of the worker',
				'% of a processor',
				100 * (cpu_seconds($after->{worker_pid}) - $cpu) / $took);
			record(
				'passes per 1000 drops',
				'passes',
				1000 * ($after->{passes} - $before->{passes}) / max(
					$after->{deferred_relations} - $before->{deferred_relations},
					1));
		}
		discard($node);
	});
