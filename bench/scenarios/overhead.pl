
# Copyright (c) 2026, LazyDrop developers

# Asks: what is the overhead for a server that never drops anything?  Select-only,
# TPC-B-like, and random updates of a table of 16 times shared_buffers, nearly each of
# which evicts a page that must be written.
#
# Expected: no measurable overhead; fork / stock at least 0.99.

use strict;
use warnings FATAL => 'all';

use LazyDropBench;

my %node;

my $rows = $opt{quick} ? 16384 : 262144;
my $evict = qq{
\\set a random(1, $rows)
UPDATE wide SET n = n + 1 WHERE id = :a;
};

scenario 'overhead' => (
	seconds => 1 + 2 * $opt{seconds},
	disk => 10,
	groups => sub {
		return
		  map { cases(\@servers, size => '64MB', case => $_) }
		  ('select-only', 'tpcb-like', 'evictions');
	},
	setup => sub {
		foreach my $server (@servers)
		{
			$node{$server} = make_primary($server, shared_buffers => '64MB');
			pgbench_init($node{$server}, 20);
			$node{$server}->safe_psql(
				'postgres', qq{
				CREATE TABLE wide (id int PRIMARY KEY, n int, filler text)
					WITH (fillfactor = 60);
				ALTER TABLE wide ALTER filler SET STORAGE plain;
				INSERT INTO wide SELECT i, 0, repeat('x', 2200) FROM generate_series(1, $rows) AS i;
				VACUUM ANALYZE wide});
		}
	},
	run => sub {
		my ($case) = @_;
		my $node = $node{ $case->{server} };
		$node->safe_psql('postgres', 'CHECKPOINT');
		sync_disk();
		my @what =
		  $case->{case} eq 'evictions'
		  ? ($evict)
		  : (undef, '-b' => $case->{case});
		record('throughput', 'tps',
			pgbench($node, @what, '-c', 2, '-j', 2, '-T', 2 * $opt{seconds}));
	},
	teardown => sub {
		discard(values %node);
		%node = ();
	});
