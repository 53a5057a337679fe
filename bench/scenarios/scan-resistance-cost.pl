
# Copyright (c) 2026, LazyDrop developers

# Asks: what is the cost of lazydrop.scan_resistance where it has no benefit, and what is
# the cost of lazydrop.advisor?  The loads are: pgbench select-only and TPC-B-like with
# all data in shared_buffers; both with a table of four times shared_buffers; select-only
# with that table, with most lookups in a sixteenth of it, so that 50, 90, 99 or 99.9 % of
# the pages are found in shared_buffers; Zipfian lookups in that table by two sessions,
# each a single statement, so that no client is waited for; count(*) and VACUUM of tables
# of half and twice shared_buffers; CREATE INDEX; pgbench -i.  Each load begins with a new
# server whose shared_buffers is full of pgbench's accounts.  The servers take turns of one
# second each, in an order that changes, because the speed of a machine changes.  The
# median of a server's turns is its rate in a run.  Also: how many instructions does it
# take to find a page in a buffer?  They are counted by callgrind in a single-user server
# in which a join looks up rows by an index.  The result is the difference of two joins,
# one of which makes twice as many lookups, so that only hits are counted.  In the same
# way: how many instructions do statements take for a page, or for a lookup, when little or
# nothing of it is in shared_buffers?  That does not depend on other load on the machine,
# but does not include the kernel's share.
#
# Expected: on, off, and "advisor", which is off with the advisor on, have at least 0.99
# of stock's rate.  A hit takes as many instructions as in stock; up to three more with
# the advisor's code, which is one comparison, and more if the advisor is on.

use strict;
use warnings FATAL => 'all';

use LazyDropBench;
use LazyDropCache;
use LazyDropCallgrind;
use LazyDropResults qw(median);
use List::Util      qw(shuffle);
use PostgreSQL::Test::Utils;
use Time::HiRes qw(time);

# pgbench's tables have 15 MB for each unit of its scale.
my $scale = $opt{quick} ? 1 : 17;
my ($small, $cached) = $opt{quick} ? ('4MB', '64MB') : ('64MB', '512MB');
my %table = (half => megabytes($small) / 2, twice => 2 * megabytes($small));

my @kinds = (@servers, 'advisor');
my %node;

# Functions of a node that load it for a second, and return a rate, or a duration.
sub builtin_load
{
	my ($builtin) = @_;
	return sub {
		my ($node) = @_;
		return pgbench(
			$node, undef,
			'-M' => 'prepared',
			'-b' => $builtin,
			'-c' => 2,
			'-j' => 2,
			'-T' => 1);
	};
}

# Single lookups: this number of 10,000 in the whole table, the others in its first part.
sub select_load
{
	my ($cold) = @_;
	my $all = ($opt{quick} ? 1 : $scale) * 100_000;
	my $hot = int($all / 16);
	my $script = qq{
\\set kind random(1, 10000)
\\set aid random(1, case when :kind <= $cold then $all else $hot end)
SELECT abalance FROM pgbench_accounts WHERE aid = :aid;
};
	return sub {
		my ($node) = @_;
		return pgbench(
			$node, $script,
			'-M' => 'prepared',
			'-c' => 2,
			'-j' => 2,
			'-T' => 1);
	};
}

# Zipfian lookups per second, one for each page of the table.
sub zipf_load
{
	my ($s) = @_;
	my $pages = 4 * 128 * megabytes($small);
	my $rows = int($scale * 100_000 / $pages);
	my $lookups = $opt{quick} ? 10_000 : 250_000;
	my $query = sprintf(
		'SELECT count(abalance) FROM (SELECT %d * %s AS aid FROM generate_series(1, %d) OFFSET 0) AS k JOIN pgbench_accounts USING (aid);',
		$rows, zipf_sql($s, $pages), $lookups);
	return sub {
		my ($node) = @_;
		expect_plan($node, '', $query,
			qr/Nested Loop.*Index Scan using pgbench_accounts_pkey /s);
		return $lookups *
		  pgbench($node, $query, '-c' => 2, '-j' => 2, '-t' => 1);
	};
}

sub statement_load
{
	my ($statement, $each) = @_;
	return sub { return repeat_statement($_[0], $statement, $each); };
}

sub time_pgbench_init
{
	my ($node) = @_;
	my $began = time;
	pgbench_init($node, $scale);
	return time - $began;
}

# Returns the instructions in ReadBufferExtended, and the pages that it found and read,
# for a number of lookups.
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
		%by_index);
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

# Statements whose instructions are counted, each with its number of pages or lookups.
my %statement = (
	(   map {
			(   "count(*); $_" =>
				  [ $table{$_} * 128, "SELECT count(*) FROM $_" ],
				"VACUUM; $_" =>
				  [ $table{$_} * 128, "VACUUM (DISABLE_PAGE_SKIPPING) $_" ])
		} keys %table),
	'CREATE INDEX' => [
		$table{twice} * 128,
		'CREATE INDEX again ON twice (r)',
		'DROP INDEX again'
	],
	'lookups; twice' => [
		200 * $table{twice},
		'SET enable_seqscan = off',
		sprintf(
			'SELECT count(f) FROM (SELECT 1 + (hashint4(i) & 2147483647) %% %d AS id'
			  . ' FROM generate_series(1, %d) AS i OFFSET 0) AS k JOIN twice USING (id)',
			3 * 128 * $table{twice},
			200 * $table{twice})
	]);

sub statements_case
{
	my ($case) = @_;
	return unless have_valgrind('instructions of statements');
	my $node = make_primary(
		$case->{server},
		cache_settings($case->{server}),
		shared_buffers => $case->{size},
		max_parallel_workers_per_gather => '0',
		max_parallel_maintenance_workers => '0',
		enable_bitmapscan => 'off',
		enable_indexonlyscan => 'off',
		enable_hashjoin => 'off',
		enable_mergejoin => 'off',
		enable_memoize => 'off',
		jit => 'off');
	make_rows($node, $_, $table{$_}) foreach sort keys %table;
	make_rows($node, 'filler', $table{twice});
	$node->safe_psql(
		'postgres', q{
		CREATE UNIQUE INDEX ON twice (id);
		CREATE EXTENSION pg_prewarm});
	$node->stop;
	foreach my $name (sort keys %statement)
	{
		my ($each, @sql) = @{ $statement{$name} };
		my @instructions = map {
			my ($file) = count_single_user($node, [],
				join("\n", q{SELECT pg_prewarm('filler')}, (@sql) x $_, ''));
			my $instructions = instructions_in($file);
			unlink $file;
			$instructions
		} (2, 4);
		record($name, 'instructions',
			($instructions[1] - $instructions[0]) / 2 / $each);
	}
	discard($node);
	return;
}

# Name, shared_buffers, measure, unit, and load.
my @cases = (
	(   map {
			my $load = builtin_load($_);
			(   [ "$_; cached", $cached, 'throughput', 'tps', $load ],
				[ "$_; 4 times", $small, 'throughput', 'tps', $load ])
		} qw(select-only tpcb-like)),
	(   map {
			[
				"select-only; $_->[0] % hits", $small,
				'throughput', 'tps',
				select_load($_->[1])
			]
		} ([ 50, 5400 ], [ 90, 1230 ], [ 99, 123 ], [ 99.9, 12 ])),
	(   map {
			[
				"lookups by key; exponent $_", $small,
				'throughput', 'lookups/s',
				zipf_load($_)
			]
		} (0.8, 1.1)),
	(   map {
			my ($name, $megabytes) = ($_, $table{$_});
			map {
				[
					"$_->[0]; $name", $small,
					'throughput', 'MB/s',
					statement_load("$_->[1] $name", $megabytes)
				]
			} ( [ 'count(*)', 'SELECT count(*) FROM' ],
				[ 'VACUUM', 'VACUUM (DISABLE_PAGE_SKIPPING)' ])
		} qw(half twice)),
	[
		'CREATE INDEX',
		$small,
		'throughput',
		'1/s',
		statement_load(
			'CREATE INDEX again ON pgbench_accounts (bid, aid); DROP INDEX again;',
			1)
	],
	[ 'pgbench -i', $small, 'duration', 's', \&time_pgbench_init ]);

# The results of a run for each server.  All are measured in the first case of the run.
my %shown;

sub measure_in_turns
{
	my ($name, $size, $load) = @_;
	my %turns;
	foreach my $server (@kinds)
	{
		my $of_server = $node{$server}{$size};
		restart_as($of_server, $server);
		$of_server->safe_psql('postgres',
			q{SELECT pg_prewarm('pgbench_accounts_pkey'), pg_prewarm('pgbench_accounts')}
		);
	}
	sync_disk();
	foreach my $turn (0 .. ($opt{quick} ? 1 : 2 * $opt{seconds}))
	{
		foreach my $server (shuffle @kinds)
		{
			my $seen = $load->($node{$server}{$size});

			# The first turn is a warm-up.
			push @{ $turns{$server} }, $seen if $turn > 0;
		}
	}
	$shown{$name} = {
		run => $LazyDropBench::now{run},
		map { $_ => median(@{ $turns{$_} }) } @kinds
	};
	return;
}

scenario 'scan-resistance-cost' => (
	seconds => sub {
		return $_[0]{runs} ? 60 : 3 + 3 * $opt{seconds};
	},
	disk => 10,
	groups => sub {
		return (
			(map { cases(\@kinds, size => $_->[1], case => $_->[0]) } @cases),
			cases(
				\@kinds,
				size => $cached,
				case => 'instructions',
				runs => 1),
			cases(
				\@servers,
				size => $small,
				case => 'instructions of statements',
				runs => 1));
	},
	setup => sub {
		foreach my $server (@kinds)
		{
			foreach my $size ($small, $cached)
			{
				my $node = make_primary(
					$server,
					cache_settings($server),
					shared_buffers => $size,
					max_wal_size => '2GB',
					wal_keep_size => '0',
					enable_hashjoin => 'off',
					enable_mergejoin => 'off',
					enable_memoize => 'off',
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
			$case->{size} eq $small
			  ? statements_case($case)
			  : instructions_case($case);
			return;
		}
		my ($name, $size, $measure, $unit, $load) =
		  @{ (grep { $_->[0] eq $case->{case} } @cases)[0] };
		measure_in_turns($name, $size, $load)
		  if ($shown{$name}{run} // 0) != $LazyDropBench::now{run};
		record($measure, $unit, $shown{$name}{ $case->{server} });
	},
	teardown => sub {
		discard(map { values %$_ } values %node);
		%node = ();
	});
