
# Copyright (c) 2026, LazyDrop developers

# Source: Robert Haas on pgsql-hackers, 2011, and others since: a sequential scan of more
# than a quarter of shared_buffers uses only its ring of 256 kB even if all other buffers
# are free, so a table that would fit is read again and again.
#
# Asks: shared_buffers is empty except for a hot table of a sixteenth of its size.  A
# table of three eighths is scanned twice.  How many blocks does each scan read, how long
# does it take, and how much of the hot table is left?
#
# Expected: stock reads all blocks twice.  With lazydrop.scan_resistance on, the second
# scan reads none, and the hot table is left.

use strict;
use warnings FATAL => 'all';

use LazyDropBench;
use LazyDropCache;
use Time::HiRes qw(time);

scenario 'free-buffers' => (
	seconds => 60,
	runs => 3,
	disk => int(0.5 * megabytes($opt{large}) / 1024 + 1),
	groups => sub {
		return cases(\@servers, size => $opt{large});
	},
	run => sub {
		my ($case) = @_;
		my $large = megabytes($opt{large});
		my $node = make_primary(
			$case->{server},
			cache_settings($case->{server}),
			%without_standbys,
			shared_buffers => $opt{large},
			max_parallel_workers_per_gather => '0');
		$node->safe_psql('postgres',
			'CREATE EXTENSION pg_buffercache; CREATE EXTENSION pg_prewarm');
		make_rows($node, 'hot', $large / 16);
		make_rows($node, 'scanned', $large * 3 / 8);
		restart_as($node, $case->{server});
		touch_hot($node, 'hot');

		foreach my $scan ('first scan', 'second scan')
		{
			my $began = time;
			record("blocks read by the $scan",
				'blocks',
				blocks_read($node, '', 'SELECT count(f) FROM scanned'));
			record($scan, 's', time - $began);
		}
		record('hot table left', '%', hot_left($node, 'hot'));
		record(
			'table that was scanned',
			'blocks',
			$node->safe_psql(
				'postgres', q{SELECT pg_relation_size('scanned') / 8192}));
		discard($node);
	});
