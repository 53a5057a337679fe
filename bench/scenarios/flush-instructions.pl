
# Copyright (c) 2026, LazyDrop developers

# Asks: how many instructions does it take to write a buffer when nothing is pending?
# They are counted by callgrind in a single-user server that writes the pages that the
# creation of a table has left dirty, so the result does not depend on other load on the
# machine.  And how many instructions, and how many of our locks, does it take when 10,000
# entries are pending?  These are counted in the checkpointer of a standby.  All of the
# standby runs under callgrind, because replay of a drop takes only a small part of the
# drop's instructions.  Its worker is stopped meanwhile.
#
# Expected: some tens more than stock, of about ten thousand; with 10,000 entries within
# 20 of the count with none, and no lock except for the few relations that share a bucket
# with an entry.

use strict;
use warnings FATAL => 'all';

use LazyDropBench;
use LazyDropCallgrind;
use LazyDropUtils qw(stats wait_for_stats);
use PostgreSQL::Test::Utils;

# Number of pages of each table that is written.
my $pages = 100;

my @collect = ('--toggle-collect=FlushBuffer*');

sub buffers_written
{
	my ($log) = @_;
	my $writes = 0;
	$writes += $1 while $log =~ /complete: wrote (\d+) buffers/g;
	die "no checkpoint in: $log\n" if $writes == 0;
	return $writes;
}

# Drop tables, make other buffers dirty, and let a restartpoint write them.  The dropped
# tables stay pending meanwhile, or are settled before.
sub drop_and_write
{
	my ($primary, $standby, $pending, $tables, $others) = @_;
	$primary->safe_psql(
		'postgres', qq{
		DO \$\$
		BEGIN
			FOR i IN 1 .. $tables LOOP
				EXECUTE 'DROP TABLE d' || i;
			END LOOP;
		END \$\$});
	$primary->wait_for_replay_catchup($standby);
	wait_for_nothing_left($standby) unless $pending;

	# Each page has one row.
	$primary->safe_psql(
		'postgres',
		join(
			'',
			map {
				"INSERT INTO w$_ SELECT repeat('x', 7500) FROM generate_series(1, $pages);\n"
			} 1 .. $others)
		  . 'CHECKPOINT');
	$primary->wait_for_replay_catchup($standby);
	$standby->safe_psql('postgres', 'CHECKPOINT');
	die "too little is pending\n"
	  if $pending && stats($standby)->{pending_relations} < $tables;
	return;
}

# There are many small relations to write, so that it does not matter much whether one of
# them shares a bucket with an entry.
sub server_case
{
	my ($case) = @_;
	my ($tables, $others) = (n(10000), n(100));
	my $primary = make_primary(
		$case->{server},
		shared_buffers => $case->{size},
		bgwriter_lru_maxpages => '0',
		log_checkpoints => 'on',
		max_locks_per_transaction => '4096',
		'lazydrop.defer_files' => 'off',
		'lazydrop.max_pending' => '65536',
		'lazydrop.lookup_limit' => '0',
		'lazydrop.pass_delay' => $case->{pending} ? '60s' : '0');
	$primary->safe_psql(
		'postgres',
		join(
			'',
			(map { "CREATE TABLE d$_ (a int);\n" } 1 .. $tables),
			map {
				"CREATE TABLE w$_ (a text);\nALTER TABLE w$_ ALTER a SET STORAGE plain;\n"
			} 1 .. $others));
	my $standby = make_standby($primary, $case->{server});
	$standby->stop;

	my $offset = -s $standby->logfile;
	my $out = start_counted($standby, \@collect);
	my $checkpointer = $standby->safe_psql('postgres',
		q{SELECT pid FROM pg_stat_activity WHERE backend_type = 'checkpointer'}
	);
	my $worker;
	if ($case->{pending})
	{
		wait_for_stats($standby, q{s->>'worker_pid' IS NOT NULL});
		$worker = stats($standby)->{worker_pid};
		kill 'STOP', $worker or die "could not stop the worker: $!\n";
	}
	my $done = eval {
		drop_and_write($primary, $standby, $case->{pending}, $tables,
			$others);
		1;
	};
	my $error = $@;
	kill 'CONT', $worker if defined $worker;
	die $error unless $done;
	$standby->stop('fast', timeout => 600);

	my $file = "$out.$checkpointer";
	my $writes = buffers_written(slurp_file($standby->logfile, $offset));
	die "only $writes buffers were written\n" if $writes < $pages * $others;
	record('write of a buffer',
		'instructions', instructions_in($file) / $writes);
	record(
		'own locks for it',
		'locks',
		calls_below($file, qr/^LazyDrop/, qr/^LWLock(?:Conditional)?Acquire/)
		  / $writes) if $case->{server} eq 'on';
	unlink glob("'$out'.*");
	discard($standby, $primary);
	return;
}

scenario 'flush-instructions' => (
	seconds => 45,
	runs => 1,
	groups => sub {
		my $pending = n(10000);
		return (
			cases([qw(stock on off)], size => '128MB'),
			[
				(   map {
						+{
							server => $_,
							size => '128MB',
							case => 'checkpointer; 0 pending'
						}
					} qw(stock on)),
				{
					server => 'on',
					size => '128MB',
					case => "checkpointer; $pending pending",
					pending => 1
				}
			]);
	},
	run => sub {
		my ($case) = @_;
		return unless have_valgrind('flush-instructions');
		if ($case->{case})
		{
			server_case($case);
			return;
		}
		my $rows = n(300000);
		my $node = new_node($case->{server});
		$node->init;
		configure(
			$node, $case->{server},
			wal_level => 'replica',
			shared_buffers => $case->{size},
			log_checkpoints => 'on');
		my ($file, undef, $log) = count_single_user($node, \@collect,
			"CREATE TABLE t AS SELECT generate_series(1, $rows) AS a;\nCHECKPOINT;\n"
		);
		record('write of a buffer',
			'instructions', instructions_in($file) / buffers_written($log));
		unlink $file;
		discard($node);
	});
