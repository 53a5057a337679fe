
# Copyright (c) 2026, LazyDrop developers

# Source: the comment of DropRelationBuffers: without the sizes that recovery knows, the
# truncation of some blocks scans all headers.
#
# Asks: how long does a VACUUM take that truncates the ends of 1,000 tables?
#
# Expected: stock scans all headers for each table; the fork takes as long at 16 GB as at
# 128 MB.

use strict;
use warnings FATAL => 'all';

use LazyDropBench;
use Time::HiRes qw(time);

scenario 'truncate-tail' => (
	seconds => 14,
	groups => sub {
		return map { cases(\@servers, size => $_) } sizes('128MB');
	},
	run => sub {
		my ($case) = @_;
		my $node = make_primary(
			$case->{server},
			shared_buffers => $case->{size},
			synchronous_commit => 'off');
		my $tables = n(1000);
		$node->safe_psql(
			'postgres',
			join(
				'',
				map {
					"CREATE TABLE t$_ AS SELECT generate_series(1, 5000) AS a;\nDELETE FROM t$_ WHERE a > 10;\n"
				} 1 .. $tables));
		$node->safe_psql('postgres', 'CHECKPOINT');
		sync_disk();
		my $began = time;
		$node->safe_psql('postgres',
			join('', map { "VACUUM t$_;\n" } 1 .. $tables));
		record("$tables VACUUM", 's', time - $began);

		# The tables must have been truncated, or the measurement is not valid.
		my $blocks = $node->safe_psql('postgres',
			q{SELECT max(pg_relation_size(oid)) / 8192 FROM pg_class WHERE relname ~ '^t\d'}
		);
		die "VACUUM left $blocks blocks\n" if $blocks > 1;
		discard($node);
	});
