
# Copyright (c) 2026, LazyDrop developers

# Source: most tables are dropped because of a retention policy.  TimescaleDB's
# drop_chunks and pg_partman's drop_partition_time, which its maintenance calls, drop
# tables that are too old.
#
# Asks: how long does a session take to drop 1,000 chunks of a hypertable, or 1,000
# partitions, in one transaction and one by one, and how long does a standby take to
# replay that?
#
# Stock scans shared_buffers once for each transaction, at commit.  It does not have to if
# it knows the sizes of all dropped relations, as the process does that has created them.
# Therefore there is a checkpoint in between, and another session drops the tables.
#
# The extensions must be available in both installations, in the places of Debian's
# packages postgresql-NN-timescaledb and postgresql-NN-partman ("make bench-packages").
# Extensions that are not available are skipped.
#
# Expected: one by one at 16 GB, a session is several times as fast as with stock, and
# replay is more than ten times as fast; in one transaction, both are as fast as stock.

use strict;
use warnings FATAL => 'all';

use LazyDropBench;
use Time::HiRes qw(time);

my $chunks = n(1000);

# The newest chunk is of today, and is kept.
my $rows = qq{
	INSERT INTO m SELECT now() - i * interval '1 day', i, 'x'
	FROM generate_series(0, $chunks) AS i};

# For each extension: the library that is loaded at the start, the commands that create
# the chunks of a table, and the commands that drop all chunks that end before the same
# time, a number of days ago.
my %extension = (
	timescaledb => {
		name => 'TimescaleDB',
		preload => 'timescaledb',
		create => qq{
			CREATE EXTENSION timescaledb;
			CREATE TABLE m (at timestamptz NOT NULL, i int, t text);
			SELECT create_hypertable('m', 'at', chunk_time_interval => interval '1 day');
			$rows},
		drop => sub {
			return
			  "SELECT count(*) FROM drop_chunks('m', older_than => now() - interval '$_[0] days')";
		},
		left =>
		  q{SELECT count(*) FROM timescaledb_information.chunks WHERE hypertable_name = 'm'},
	},
	pg_partman => {
		name => 'pg_partman',
		create => qq{
			CREATE SCHEMA partman;
			CREATE EXTENSION pg_partman SCHEMA partman;
			CREATE TABLE m (at timestamptz NOT NULL, i int, t text) PARTITION BY RANGE (at);
			CREATE INDEX ON m (at);
			SELECT coalesce(to_regproc('partman.create_partition'),
				to_regproc('partman.create_parent')) AS make \\gset
			SELECT :make('public.m', 'at', '1 day', p_premake => 1,
				p_default_table => false,
				p_start_partition => (now() - interval '$chunks days')::text);
			$rows},
		drop => sub {
			return
			  "SELECT partman.drop_partition_time('public.m', interval '$_[0] days', p_keep_table => false)";
		},
		left =>
		  q{SELECT count(*) FROM pg_inherits WHERE inhparent = 'm'::regclass},
	});

my %ways = (
	'one transaction' => sub { return 0 },
	'one by one' => sub { return reverse 0 .. $chunks - 1 });

sub has_extension
{
	my ($server, $name) = @_;
	my $prefix = LazyDropBench::prefix($server);
	my $directory = '';
	IPC::Run::run([ "$prefix/bin/pg_config", '--sharedir' ],
		'>' => \$directory)
	  or die "pg_config failed\n";
	chomp $directory;
	return -f "$directory/extension/$name.control";
}

scenario 'retention' => (
	seconds => sub { return $_[0]{size} eq '128MB' ? 60 : 120 },
	disk => 6,
	groups => sub {
		my @groups;
		foreach my $extension (sort keys %extension)
		{
			my $name = $extension{$extension}{name};
			if (grep { !has_extension($_, $extension) } qw(stock on))
			{
				note("retention: left out: $name is not installed in both");
				next;
			}
			foreach my $size (sizes('128MB'))
			{
				push @groups, map {
					cases(
						[qw(stock on)],
						size => $size,
						case => "$name; $_",
						extension => $extension,
						way => $_)
				} sort keys %ways;
			}
		}
		return @groups;
	},
	run => sub {
		my ($case) = @_;
		my ($server, $extension) =
		  ($case->{server}, $extension{ $case->{extension} });
		my $primary = make_primary(
			$server,
			shared_buffers => $case->{size},
			max_locks_per_transaction => '2048',
			shared_preload_libraries => q{'}
			  . ($extension->{preload} // '') . q{'});
		my $standby = make_standby($primary, $server);
		$primary->safe_psql('postgres', $extension->{create});
		my $before = $primary->safe_psql('postgres', $extension->{left});
		die "$before chunks, not more than $chunks\n" if $before <= $chunks;
		$primary->safe_psql('postgres', 'CHECKPOINT');
		$primary->wait_for_replay_catchup($standby);
		$standby->safe_psql('postgres', 'CHECKPOINT');

		my @days = $ways{ $case->{way} }->();
		my ($end, $took) = hold_and_run($primary, $standby,
			map { $extension->{drop}->($_) } @days);
		record('session', 's', $took);
		my $left = $primary->safe_psql('postgres', $extension->{left});
		die "$left of $before chunks are left\n"
		  if $left > $before - $chunks;
		record('dropped', 'chunks', $before - $left);
		record('replay', 's', time_resumed_replay($standby, $end));
		discard($standby, $primary);
	});
