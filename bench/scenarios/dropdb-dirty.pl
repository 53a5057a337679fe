
# Copyright (c) 2026, LazyDrop developers

# Source: reports of DROP DATABASE that takes 10 s or more for a few megabytes on a busy
# primary, because it forces a checkpoint of the whole cluster.
#
# Asks: how long does it take if 0, 1 and 4 GB of other databases' buffers are dirty, and
# fsync is on?
#
# Expected: stock writes all of them; the fork takes at most 75 ms, regardless of the
# number of dirty buffers.

use strict;
use warnings FATAL => 'all';

use LazyDropBench;
use Time::HiRes qw(time);

scenario 'dropdb-dirty' => (
	seconds => sub { 3 + 5 * $_[0]{gigabytes} },
	disk => 14,
	groups => sub {
		# The pages are in the kernel's cache as well.
		my $fits = meminfo('MemTotal') > 12 * 1024;
		my $size = $opt{quick} ? '256MB' : $fits ? '6GB' : '2GB';
		return map {
			cases(
				\@servers,
				size => $size,
				gigabytes => $_,
				case => "$_ GB dirty")
		} (0, 1, $fits ? 4 : ());
	},
	run => sub {
		my ($case) = @_;
		my $node = make_primary(
			$case->{server},
			shared_buffers => $case->{size},
			fsync => 'on',
			wal_keep_size => '0',
			wal_level => 'replica',
			bgwriter_lru_maxpages => '0',
			max_wal_size => '20GB');
		my $rows = n(131072 * $case->{gigabytes});
		$node->safe_psql('postgres', 'CREATE DATABASE small');
		$node->safe_psql('small',
			'CREATE TABLE t AS SELECT generate_series(1, 10000) AS a');

		# Each page has one row.
		$node->safe_psql(
			'postgres', qq{
			CREATE TABLE dirty (a text);
			ALTER TABLE dirty ALTER a SET STORAGE plain;
			CHECKPOINT;
			INSERT INTO dirty SELECT repeat('x', 7500) FROM generate_series(1, $rows)}
		) if $case->{gigabytes} > 0;
		sync_disk();
		my $session = $node->background_psql('postgres');
		$session->query_safe('SELECT 1');
		my $began = time;
		$session->query_safe('DROP DATABASE small');
		record('DROP DATABASE', 's', time - $began);
		$session->quit;
		discard($node);
	});
