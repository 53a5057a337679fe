
# Copyright (c) 2026, LazyDrop developers

# Source: the loop of drop-loop, and an operator's question: how much does a drop cost the
# whole machine, with shared_buffers as large as on today's servers?
#
# Asks, from 8 MB to a terabyte: how fast is the loop?  With 2 and 100 drops per second, how
# long does a drop take, and how much CPU time do all processes use for it?  How long do
# replay of 1,000 DROP TABLE, 100 DROP DATABASE, a promotion and the start of the server
# take, and how much memory do empty shared_buffers need?
#
# Only the buffer headers and the look-up table are touched, 2.1% of shared_buffers.  So
# these servers run on a small machine if the kernel does not count untouched memory
# (sysctl vm.overcommit_memory=1).  Sizes that do not fit are left out.
#
# The background writer looks at the whole pool every two minutes while buffers are
# allocated, in stock and in the fork, so its CPU time is also shown apart.
#
# Expected: with the fork, all processes together use at most 1.15 times the CPU time of
# 128 MB for a drop; the loop with 512 GB has at least 0.95 of its rate with 8 MB; replay is
# flat within 1.1.  With 512 GB, stock makes 2 drops per second.

use strict;
use warnings FATAL => 'all';

use LazyDropBench;
use List::Util qw(sum0);
use PostgreSQL::Test::Utils;
use Time::HiRes qw(time usleep);

# Sizes with which only the loop is run, and those with which everything is.
my @small = qw(8MB 32MB 1GB);
my @large = qw(128MB 16GB 128GB 512GB 1024GB);

# Returns why a size cannot be run, or undef.
sub does_not_fit
{
	my ($size) = @_;
	my $need = 0.022 * megabytes($size) + 1024;
	return 'too little memory' if $need > meminfo('MemAvailable');
	return 'vm.overcommit_memory is not 1'
	  if megabytes($size) > 0.8 * meminfo('MemTotal')
	  && slurp_file('/proc/sys/vm/overcommit_memory') !~ /^1$/;
	return;
}

sub fitting
{
	return $opt{quick} ? qw(128MB 256MB) : grep { !does_not_fit($_) } @_;
}

# Stock takes half a second for each drop with 512 GB.
sub is_slow
{
	my ($case) = @_;
	return $case->{server} ne 'on' && megabytes($case->{size}) > 16 * 1024;
}

# Returns the nanoseconds of CPU time that each of these processes has used, except those
# that have exited.
sub cpu_of
{
	my %cpu;
	foreach my $pid (@_)
	{
		my $text = eval { slurp_file("/proc/$pid/schedstat") };
		$cpu{$pid} = ($text =~ /^(\d+)/)[0] if defined $text;
	}
	return %cpu;
}

sub all_processes
{
	my ($node) = @_;
	my ($postmaster) =
	  slurp_file($node->data_dir . '/postmaster.pid') =~ /^(\d+)/;
	return ($postmaster,
		split ' ', slurp_file("/proc/$postmaster/task/$postmaster/children"));
}

# Run the loop at a rate.  Each transaction uses one number, so they can be counted without
# statistics.  The session of pgbench exists before and after the measurement.
sub at_rate
{
	my ($node, $rate) = @_;

	# Long enough for a drop, in a smoke run, too: pgbench's intervals are random.
	my $seconds = $opt{quick} ? ($rate < 10 ? 4 : 1) : $rate < 10 ? 15 : 5;
	my $prefix = in_scratch('latency');
	my $job = pgbench_start(
		$node, loop_script(), '-c', 1,
		'-R', $rate, '-T', $seconds + 2,
		'-l', '--log-prefix', $prefix);
	my $session = $node->background_psql('postgres');
	my $number = 'SELECT pg_snapshot_xmax(pg_current_snapshot())::text';
	$session->query_safe($number);
	my $writer = $session->query_safe(
		q{SELECT pid FROM pg_stat_activity WHERE backend_type = 'background writer'}
	);
	usleep(1_000_000);
	my $from = $session->query_safe($number);
	my %before = cpu_of(all_processes($node));
	usleep($seconds * 1_000_000);
	my %after = cpu_of(keys %before);
	my $cpu = sum0(map { $after{$_} - $before{$_} } keys %after);
	my $of_writer = $after{$writer} - $before{$writer};
	my $drops = $session->query_safe($number) - $from;
	pgbench_finish($job);
	$session->quit;
	my $what = "$rate drops per second";

	if ($drops)
	{
		record('CPU of all processes for each drop',
			'ms', $cpu / 1e6 / $drops, $what);
		record(
			'the same without the background writer', 'ms',
			($cpu - $of_writer) / 1e6 / $drops, $what);
	}
	my ($median) = percentiles($prefix, 50);
	record('latency', 'ms', $median, $what);
	return;
}

sub statements
{
	my ($statement, $n) = @_;
	return map { $statement =~ s/%/$_/gr } 1 .. $n;
}

sub run_all
{
	my ($case, $node) = @_;
	at_rate($node, $_) foreach 2, 100;

	my $databases = is_slow($case) ? 5 : n(100);
	$node->safe_psql(
		'postgres',
		join(";\n",
			statements('CREATE DATABASE db% STRATEGY file_copy', $databases))
	);
	my $began = time;
	$node->safe_psql('postgres',
		join(";\n", statements('DROP DATABASE db%', $databases)));
	record(
		'session', 'ms',
		1000 * (time - $began) / $databases,
		'DROP DATABASE');
	discard($node);
	return;
}

# The primary is small, because two servers of this size do not fit.  The tables are older
# than the startup process: stock's replay knows the sizes of those that it has seen grow,
# until it closes its files, and then it need not scan for them.
sub run_replay
{
	my ($case) = @_;
	my $primary = make_primary($case->{server}, shared_buffers => '128MB');
	my $standby = make_standby($primary, $case->{server});
	my $tables = is_slow($case) ? 20 : n(1000);
	$primary->safe_psql('postgres',
		join(";\n", statements('CREATE TABLE t% AS SELECT 1 AS a', $tables)));
	$primary->safe_psql('postgres', 'CHECKPOINT');
	$primary->wait_for_replay_catchup($standby);
	$standby->safe_psql('postgres', 'CHECKPOINT');
	my $before = meminfo('MemAvailable');
	$standby->stop;
	$standby->append_conf('postgresql.conf',
		"shared_buffers = $case->{size}");
	my $began = time;
	$standby->start;
	record('start', 's', time - $began, 'start');
	record('memory', 'GB', ($before - meminfo('MemAvailable')) / 1024,
		'start');

	my ($end) =
	  hold_and_run($primary, $standby, statements('DROP TABLE t%', $tables));
	record('replay', 'us',
		1e6 * time_resumed_replay($standby, $end) / $tables,
		'DROP TABLE');

	record('promotion', 's', time_promotion($standby), 'promotion');
	discard($standby, $primary);
	return;
}

scenario 'terabyte' => (
	runs => 3,
	seconds => sub { return megabytes($_[0]{size}) > 16 * 1024 ? 120 : 45 },
	groups => sub {
		return
		  map { cases(\@servers, size => $_) } ($opt{quick} ? () : @small),
		  fitting(@large);
	},
	setup => sub {
		return if $opt{quick};
		foreach my $size (@large)
		{
			my $why = does_not_fit($size);
			left_out($size, $why) if defined $why;
		}
	},
	run => sub {
		my ($case) = @_;
		my $all = !grep { $_ eq $case->{size} } @small;
		my $node = make_primary(
			$case->{server},
			shared_buffers => $case->{size},
			synchronous_commit => 'off');
		record('throughput', 'tps',
			pgbench($node, loop_script(), '-c', 1, '-T', $opt{seconds}),
			'loop');
		return discard($node) unless $all;
		run_all($case, $node);
		run_replay($case);
	});
