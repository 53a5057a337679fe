
# Copyright (c) 2026, LazyDrop developers

# Asks: what does lazydrop.scan_resistance cost where it gains nothing?  pgbench select-only and
# TPC-B-like with all in shared_buffers; both with a table of four times shared_buffers;
# count(*) and VACUUM of tables of half and twice shared_buffers; CREATE INDEX; pgbench -i.  Each
# begins with a new server, and shared_buffers full of pgbench's accounts.  And how many
# instructions does it take to find a page in a buffer?  Counted by callgrind
# in a single-user server, in which a join looks up rows by an index: the difference of
# two joins, one of which makes twice as many lookups, so that only what hits is counted.
#
# Expected: on and off at least 0.99 of stock's rate; as many instructions for a hit.

use strict;
use warnings FATAL => 'all';

use LazyDropBench;
use LazyDropCache;
use LazyDropCallgrind;
use PostgreSQL::Test::Utils;
use Time::HiRes qw(time);

# pgbench's tables have 15 MB for each unit of its scale.
my $scale = $opt{quick} ? 1 : 17;
my ($small, $cached) = $opt{quick} ? ('4MB', '64MB') : ('64MB', '512MB');
my %table = (half => megabytes($small) / 2, twice => 2 * megabytes($small));

my %node;

sub builtin_load
{
	my ($builtin) = @_;
	return sub {
		my ($node) = @_;
		my @load = (undef, '-b' => $builtin, '-c' => 2, '-j' => 2, '-T');
		pgbench($node, @load, $opt{quick} ? 1 : 2);
		record('throughput', 'tps', pgbench($node, @load, 2 * $opt{seconds}));
	};
}

# How often each second, or how many megabytes, a statement is run again and again.
sub repeat_statement
{
	my ($statement, $unit, $each) = @_;
	return sub {
		my ($node) = @_;
		my $session = $node->background_psql('postgres');
		$session->query_safe($statement);
		my ($began, $times) = (time, 0);
		do
		{
			$session->query_safe($statement);
			$times++;
		} while (time - $began < $opt{seconds});
		record('throughput', $unit, $times * $each / (time - $began));
		$session->quit;
	};
}

sub time_pgbench_init
{
	my ($node) = @_;
	my $began = time;
	pgbench_init($node, $scale);
	record('duration', 's', time - $began);
	return;
}

# Instructions in ReadBufferExtended, and the pages that it found and read, of so many
# lookups.
sub count_lookups
{
	my ($node, $n) = @_;
	my ($file, $explained) = count_single_user(
		$node,
		['--toggle-collect=ReadBufferExtended'],
		"EXPLAIN (ANALYZE, TIMING off, COSTS off, BUFFERS) SELECT count(a) FROM (SELECT 1 + i % 1000 AS id FROM generate_series(1, $n) AS i OFFSET 0) AS k JOIN t USING (id);\n"
	);
	my $instructions = instructions_in($file);
	unlink $file;
	my ($hits, $reads) =
	  $explained =~ /Buffers: shared hit=(\d+)(?: read=(\d+))?/
	  or die "no count of buffers in: $explained\n";
	die "not the plan that is to be measured: $explained\n"
	  unless $explained =~ /Nested Loop.*Index Scan using t_pkey /s;
	return ($instructions, $hits, $reads // 0);
}

sub instructions_case
{
	my ($case) = @_;
	return unless have_valgrind('instructions');
	my $node = make_primary(
		$case->{server},
		cache_settings($case->{server}),
		shared_buffers => $case->{size},
		enable_seqscan => 'off',
		enable_bitmapscan => 'off',
		enable_hashjoin => 'off',
		enable_mergejoin => 'off',
		enable_memoize => 'off',
		jit => 'off');
	$node->safe_psql(
		'postgres', q{
		CREATE TABLE t (id int PRIMARY KEY, a int) WITH (fillfactor = 10);
		INSERT INTO t SELECT i, i FROM generate_series(1, 1000) AS i;
		VACUUM (FREEZE, ANALYZE) t});
	$node->stop;
	my $n = $opt{quick} ? 2000 : 50000;
	my @once = count_lookups($node, $n);
	my @twice = count_lookups($node, 2 * $n);
	die "pages read: $once[2] and $twice[2]\n" if $once[2] != $twice[2];
	record('page found in a buffer',
		'instructions', ($twice[0] - $once[0]) / ($twice[1] - $once[1]));
	discard($node);
	return;
}

my @cases = (
	[ 'select-only; cached', $cached, builtin_load('select-only') ],
	[ 'tpcb-like; cached', $cached, builtin_load('tpcb-like') ],
	[ 'select-only; 4 times', $small, builtin_load('select-only') ],
	[ 'tpcb-like; 4 times', $small, builtin_load('tpcb-like') ],
	(   map {
			(   [
					"count(*); $_",
					$small,
					repeat_statement(
						"SELECT count(*) FROM $_",
						'MB/s', $table{$_})
				],
				[
					"VACUUM; $_",
					$small,
					repeat_statement(
						"VACUUM (DISABLE_PAGE_SKIPPING) $_", 'MB/s',
						$table{$_})
				])
		} qw(half twice)),
	[
		'CREATE INDEX',
		$small,
		repeat_statement(
			'CREATE INDEX again ON pgbench_accounts (bid, aid); DROP INDEX again;',
			'1/s',
			1)
	],
	[ 'pgbench -i', $small, \&time_pgbench_init ]);

scenario 'scan-resistance-cost' => (
	seconds => sub {
		return $_[0]{runs} ? 60 : 5 + 2 * $opt{seconds};
	},
	disk => 10,
	groups => sub {
		return (
			(   map { cases(\@servers, size => $_->[1], case => $_->[0]) }
				  @cases),
			cases(
				\@servers,
				size => $cached,
				case => 'instructions',
				runs => 1));
	},
	setup => sub {
		foreach my $server (@servers)
		{
			foreach my $size ($small, $cached)
			{
				my $node = make_primary(
					$server,
					cache_settings($server),
					shared_buffers => $size,
					max_wal_size => '2GB',
					wal_keep_size => '0',
					max_parallel_workers_per_gather => '0',
					max_parallel_maintenance_workers => '0');
				pgbench_init($node, $scale);
				$node->safe_psql('postgres', 'CREATE EXTENSION pg_prewarm');
				$node{$server}{$size} = $node;
				next if $size eq $cached;
				make_rows($node, $_, $table{$_}) foreach sort keys %table;
			}
		}
	},
	run => sub {
		my ($case) = @_;
		if ($case->{runs})
		{
			instructions_case($case);
			return;
		}
		my $node = $node{ $case->{server} }{ $case->{size} };
		my ($what) = grep { $_->[0] eq $case->{case} } @cases;
		restart_as($node, $case->{server});
		sync_disk();
		$node->safe_psql('postgres',
			q{SELECT pg_prewarm('pgbench_accounts_pkey'), pg_prewarm('pgbench_accounts')}
		);
		$what->[2]->($node);
	},
	teardown => sub {
		discard(map { values %$_ } values %node);
		%node = ();
	});
