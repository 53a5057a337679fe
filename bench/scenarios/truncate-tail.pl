
# Copyright (c) 2026, LazyDrop developers

# Source: DropRelationBuffers' own comment: without the sizes that recovery knows, a
# truncation of some blocks looks at all headers.
#
# Asks: how long does VACUUM take that gives back the tails of 1,000 tables?
#
# Expected: stock looks at all headers for each; the fork at 16 GB takes as long as at
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

		# They must have been truncated, or it is not what was to be measured.
		my $blocks = $node->safe_psql('postgres',
			q{SELECT max(pg_relation_size(oid)) / 8192 FROM pg_class WHERE relname ~ '^t\d'}
		);
		die "VACUUM left $blocks blocks\n" if $blocks > 1;
		discard($node);
	});
