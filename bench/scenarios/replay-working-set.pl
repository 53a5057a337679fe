
# Copyright (c) 2026, LazyDrop developers

# Source: a standby whose shared_buffers is smaller than what the primary changes.  Replay
# finds most pages by the prefetcher, which does not count as a use in stock: a page that
# replay changes all the time is evicted as early as one that it changes once.
#
# Asks: of the pages that replay needs, how many does it find in shared_buffers, and how
# long does it take?  The primary updates rows by key, with a Zipfian distribution of
# exponent 0.8, in a table of four times shared_buffers that has a row in each page: alone,
# and beside a job that updates a table of twice shared_buffers, 20 rows in a page, row by
# row in an order that is off by up to 0.06 times shared_buffers; five of these rows for
# each key.  The same number of updates comes before, to fill the standby's buffers.
#
# The primary writes no full pages, because replay does not read a page that is in WAL.
# Hits are counted by pg_stat_recovery_prefetch: blocks that were found, of these and those
# that were prefetched.  Several references to a page in a short time count once.  Pages
# come from the kernel's cache, so the duration shows less clearly than the hits how much a
# disk would have to do.
#
# Expected: with lazydrop.scan_resistance on, more hits than with off and stock in both
# cases; off is the same as stock.

use strict;
use warnings FATAL => 'all';

use LazyDropBench;
use LazyDropCache;

my $shared_buffers = $opt{quick} ? '4MB' : '64MB';
my $buffers = 128 * megabytes($shared_buffers);

# Pages of the tables, and updates by key.
my %pages = (account => 4 * $buffers, job => 2 * $buffers);
my %updates = (alone => 8 * $buffers * 4, 'beside a job' => 8 * $buffers);
my $rows = 20;

# Statements that make a number of updates by key, and five times as many of the job if
# there is one.  Transactions are short, so that replay is that of an OLTP load.
sub updates
{
	my ($case) = @_;
	my $key = zipf_sql(0.8, $pages{account});
	my $all = $rows * $pages{job};
	my $span = int(0.06 * $buffers) * $rows;
	my $job = $case->{case} eq 'alone' ? '' : qq{
		FOR j IN 5 * i .. 5 * i + 4 LOOP
			k := 1 + mod(j + mod(hashint4(j) & 2147483647, $span), $all);
			UPDATE job SET n = n + 1 WHERE id = k;
		END LOOP;};
	return qq{
DO \$\$ DECLARE k int; BEGIN
	FOR i IN 1 .. $updates{ $case->{case} } LOOP
		k := $key;
		UPDATE account SET n = n + 1 WHERE id = k;$job
		IF i % 10 = 0 THEN
			COMMIT;
		END IF;
	END LOOP;
END \$\$};
}

# The number of blocks that replay has found, and that it has prefetched.
sub prefetched
{
	my ($standby) = @_;
	return split /\|/,
	  $standby->safe_psql('postgres',
		'SELECT hit, prefetch FROM pg_stat_recovery_prefetch');
}

scenario 'replay-working-set' => (
	seconds => 60,
	runs => 3,
	disk => 8,
	groups => sub {
		return map { cases(\@servers, size => $shared_buffers, case => $_) }
		  sort keys %updates;
	},
	run => sub {
		my ($case) = @_;
		my $primary = make_primary(
			$case->{server},
			cache_settings($case->{server}),
			shared_buffers => $shared_buffers,
			full_page_writes => 'off');

		# A page has room for more versions of its rows, so that no index is changed.
		foreach my $table (
			[ 'account', 10, 700, $pages{account} ],
			[ 'job', 80, 280, $rows * $pages{job} ])
		{
			my ($name, $fill, $length, $count) = @$table;
			$primary->safe_psql(
				'postgres', qq{
				CREATE TABLE $name (id int, n int, f text STORAGE plain)
					WITH (fillfactor = $fill);
				INSERT INTO $name SELECT i, 0, repeat('x', $length)
				FROM generate_series(1, $count) AS i;
				ALTER TABLE $name ADD PRIMARY KEY (id);
				VACUUM (FREEZE, ANALYZE) $name});
			my $size = $primary->safe_psql('postgres',
				"SELECT pg_relation_size('$name') / 8192");
			die "$name has $size pages, not $pages{$name}\n"
			  if $size != $pages{$name};
		}
		my $standby = make_standby($primary, $case->{server});
		foreach my $measured (0, 1)
		{
			my ($end) = hold_and_run($primary, $standby, updates($case));
			my ($hit, $read) = prefetched($standby);
			my $took = time_resumed_replay($standby, $end);
			next unless $measured;
			my ($hit_then, $read_then) = prefetched($standby);
			my $all = $hit_then + $read_then - $hit - $read;
			record('found in shared_buffers',
				'%', 100 * ($hit_then - $hit) / $all);
			record('pages that replay needed', 'pages', $all);
			record('replay', 's', $took);
		}
		discard($standby, $primary);
	});
