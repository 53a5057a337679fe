
# Copyright (c) 2026, LazyDrop developers

# Source: Franck Pachot's matrix of shared_buffers against working set: tuples per second
# and blocks read.
#
# Asks: how many tuples per second are read at random, or half read and half updated, from
# a working set of fixed size, with shared_buffers from a third of it to twice its size?
# A control group limits the server's memory to shared_buffers, a third of the working
# set, and the memory of the processes, so the kernel's cache has no more than that third.
# Stock and the fork are measured as they are.
#
# Expected: no difference between stock and fork.  The rate increases until the working
# set fits into shared_buffers, and not further.

use strict;
use warnings FATAL => 'all';

use File::Path;
use LazyDropBench;
use PostgreSQL::Test::Utils;

my $working_set = $opt{quick} ? 24 : 600;
my $batch = 100;

# Each page has three rows and free space, so an update stays in its page.
my $rows = $working_set * 128 * 3;

# The numbers are drawn in a separate query, because a volatile function cannot be looked
# up in an index.
my $read = q{
SELECT sum(length(filler)) FROM w
JOIN (SELECT 1 + (random() * %d)::int AS id FROM generate_series(1, %d)) AS r USING (id);
};
my $update = q{
UPDATE w SET n = n + 1
WHERE id = ANY (ARRAY(SELECT 1 + (random() * %d)::int FROM generate_series(1, %d)));
};
my %script = (
	'reads' => sprintf($read, $rows - 1, $batch),
	'50% updates' => sprintf($read, $rows - 1, $batch / 2)
	  . sprintf($update, $rows - 1, $batch / 2));

my %prepared;

scenario 'shared-buffers-sizing' => (
	seconds => 6 + $opt{seconds},
	runs => 3,
	disk => 12,
	groups => sub {
		my @compared = qw(stock on);
		my @groups;
		foreach
		  my $factor ($opt{quick} ? (1 / 3, 2) : (1 / 3, 2 / 3, 1, 4 / 3, 2))
		{
			push @groups,
			  cases(
				\@compared,
				size => int($factor * $working_set) . 'MB',
				case => $_) foreach sort keys %script;
		}
		return @groups;
	},
	setup => sub {
		left_out('limit of memory',
			'no control group that this user can change')
		  unless memory_group();
		foreach my $server (qw(stock on))
		{
			my $node = make_primary(
				$server,
				shared_buffers => '256MB',
				enable_hashjoin => 'off',
				enable_mergejoin => 'off',
				%without_standbys);
			$node->safe_psql(
				'postgres', qq{
				CREATE EXTENSION pg_prewarm;
				CREATE TABLE w (id int PRIMARY KEY, n int, filler text)
					WITH (fillfactor = 70);
				ALTER TABLE w ALTER filler SET STORAGE plain;
				INSERT INTO w SELECT i, 0, repeat('x', 1750) FROM generate_series(1, $rows) AS i;
				VACUUM (FREEZE, ANALYZE) w});
			$node->stop;
			$prepared{$server} = $node;
		}
	},
	run => sub {
		my ($case) = @_;
		my $original = $prepared{ $case->{server} };
		my $node = new_node($case->{server});

		# Use a copy, because updates change it, and keep it out of the kernel's cache,
		# where its pages would not count as the server's.
		mkdir $node->basedir;
		command('cp', '-R', $original->data_dir, $node->data_dir);
		$node->append_conf('postgresql.conf',
				'port = '
			  . $node->port
			  . "\nshared_buffers = $case->{size}\nunix_socket_directories = '"
			  . $node->host
			  . "'\n");
		sync_disk();
		command(
			'sh',
			'-c',
			'find "$1" -type f -exec dd if={} iflag=nocache count=0 status=none \;',
			'sh',
			$node->data_dir);
		memory_group()
		  ? start_limited($node,
			1.05 * megabytes($case->{size}) + $working_set / 3 + 100)
		  : $node->start;
		$node->safe_psql('postgres',
			q{SELECT pg_prewarm('w_pkey'), pg_prewarm('w')});
		my @load = ($script{ $case->{case} }, '-c', 2, '-j', 2);
		pgbench($node, @load, '-T', $opt{quick} ? 1 : 2);
		my $counters =
		  q{SELECT blks_read, blks_hit FROM pg_stat_database WHERE datname = 'postgres'};
		$node->safe_psql('postgres', 'SELECT pg_stat_force_next_flush()');
		my ($read) = split /\|/, $node->safe_psql('postgres', $counters);
		my $tuples = $batch * pgbench($node, @load, '-T', $opt{seconds});
		$node->safe_psql('postgres', 'SELECT pg_stat_force_next_flush()');
		my ($read_then) = split /\|/, $node->safe_psql('postgres', $counters);
		record('tuples', 'tuples/s', $tuples);
		record(
			'blocks read',
			'blocks per 1000 tuples',
			1000 * ($read_then - $read) / ($tuples * $opt{seconds}));
		record(
			'table in the end',
			'MB',
			$node->safe_psql(
				'postgres', q{SELECT pg_relation_size('w') / 1048576}));
		discard($node);
	},
	teardown => sub {
		discard(values %prepared);
		%prepared = ();
	});
