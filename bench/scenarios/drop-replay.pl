
# Copyright (c) 2026, LazyDrop developers

# Source: pgsql-hackers, and operators' reports of standbys that fall behind.
#
# Asks: how long does one standby take to replay 1,000 DROP TABLE, 1,000 TRUNCATE and 100
# DROP DATABASE that it has received before?  And 1,000 DROP TABLE of four relations each,
# with an index, a TOAST table and its index; and how many system calls does the startup
# process make for one of these?  strace counts them in a separate case, because it slows
# the process down.  How long does replay of one transaction take that drops 25,000
# relations?
#
# Expected: stock takes 19, 21 and 1.5 s at 16 GB (on a machine with slower memory than
# the machine of the results); the fork at most 1.15 times its own time at 128 MB, and a
# hundredth of stock's time for DROP TABLE.  Four relations took 140 to 190 us when each
# fork and segment was looked up, and should take half of that.

use strict;
use warnings FATAL => 'all';

use LazyDropBench;
use LazyDropUtils qw(stats);
use List::Util    qw(sum);
use PostgreSQL::Test::Utils;
use Time::HiRes qw(time);

# Create a table, an index, a TOAST table and its index, with one block each.
sub create_four_relations
{
	my ($primary, $tables) = @_;
	$primary->safe_psql(
		'postgres',
		join(
			'',
			map {
				qq{
			BEGIN;
			CREATE TABLE f$_ (a int PRIMARY KEY, b text);
			ALTER TABLE f$_ ALTER b SET STORAGE external;
			INSERT INTO f$_ VALUES (1, repeat('x', 3000));
			COMMIT;
			}
			} 1 .. $tables));
	return;
}

# Count the system calls of a process with strace while a function runs.  Returns a hash
# of counts by name.
sub system_calls
{
	my ($pid, $function) = @_;
	my $out = in_scratch('strace');
	my $err = '';
	my $strace = start_program([ 'strace', '-c', '-p' => $pid, '-o' => $out ],
		'2>' => \$err);
	until ($err =~ /attached/)
	{
		die "strace does not attach: $err\n" unless $strace->pumpable;
		$strace->pump;
	}
	$function->();
	$strace->signal('INT');
	$strace->finish;
	my $text = slurp_file($out);
	my %calls;
	$calls{$2} = $1
	  while $text =~ /^ *[\d.]+ +[\d.]+ +\d+ +(\d+) +(?:\d+ +)?(\w+)$/gm;
	delete $calls{total};
	die "unexpected output of strace: $text\n" unless %calls;
	unlink $out;
	return %calls;
}

sub system_calls_case
{
	my ($case) = @_;
	my $primary =
	  make_primary($case->{server}, shared_buffers => $case->{size});
	my $standby = make_standby($primary, $case->{server});
	my $tables = n(1000);
	create_four_relations($primary, $tables);
	my ($end) =
	  hold_and_run($primary, $standby, map { "DROP TABLE f$_" } 1 .. $tables);
	my $pid = $standby->safe_psql('postgres',
		q{SELECT pid FROM pg_stat_activity WHERE backend_type = 'startup'});
	my %calls =
	  system_calls($pid, sub { time_resumed_replay($standby, $end) });
	record('system calls of a drop in replay',
		'calls', sum(values %calls) / $tables);

	# Record only calls that depend on the number of drops.
	foreach my $name (sort keys %calls)
	{
		record("$name of a drop in replay", 'calls', $calls{$name} / $tables)
		  if $calls{$name} >= $tables / 4;
	}
	discard($standby, $primary);
	return;
}

# All settings but the number of locks have their defaults.
sub one_transaction_case
{
	my ($case) = @_;
	my $tables = n(6250);
	my $primary = make_primary(
		$case->{server},
		shared_buffers => $case->{size},
		max_locks_per_transaction => 1024);
	my $standby = make_standby($primary, $case->{server});
	create_four_relations($primary, $tables);
	my ($end, $dropped_in) = hold_and_run($primary, $standby, 'BEGIN',
		(map { "DROP TABLE f$_" } 1 .. $tables), 'COMMIT');
	record('primary', 's', $dropped_in);
	record('replay', 's', time_resumed_replay($standby, $end));
	if ($case->{server} eq 'on')
	{
		record(
			'dropped as in stock',
			'relations',
			stats($primary)->{sync_fallbacks} +
			  stats($standby)->{sync_fallbacks});
	}
	discard($standby, $primary);
	return;
}

my $strace = system('strace -c -o /dev/null true >/dev/null 2>&1') == 0;

scenario 'drop-replay' => (
	seconds => sub {
		return
			$_[0]{case}                                     ? 10
		  : $_[0]{server} ne 'on' && $_[0]{size} ne '128MB' ? 50
		  :                                                   18;
	},
	disk => 6,
	groups => sub {
		my @sizes = sizes('128MB');
		return (
			(map { cases(\@servers, size => $_) } @sizes),
			cases(
				[qw(stock on)],
				size => $sizes[-1],
				case => '25000 relations in one transaction',
				run_case => \&one_transaction_case),
			(   $strace
				? cases(
					[qw(stock on)],
					size => $sizes[0],
					case => 'system calls',
					run_case => \&system_calls_case)
				: ()));
	},
	setup => sub {
		left_out('system calls', 'strace is not there or does not work')
		  unless $strace;
	},
	run => sub {
		my ($case) = @_;
		return $case->{run_case}->($case) if $case->{run_case};
		my $primary =
		  make_primary($case->{server}, shared_buffers => $case->{size});
		my $standby = make_standby($primary, $case->{server});
		my ($tables, $databases) = (n(1000), n(100));
		$primary->safe_psql(
			'postgres',
			join(
				'',
				map {
					"CREATE TABLE d$_ AS SELECT 1 AS a;\nCREATE TABLE t$_ AS SELECT 1 AS a;\n"
				} 1 .. $tables));
		$primary->safe_psql(
			'postgres',
			join('',
				map { "CREATE DATABASE db$_ STRATEGY file_copy;\n" }
				  1 .. $databases));
		create_four_relations($primary, $tables);
		foreach my $storm (
			[ "$tables DROP TABLE", map { "DROP TABLE d$_" } 1 .. $tables ],
			[ "$tables TRUNCATE", map { "TRUNCATE t$_" } 1 .. $tables ],
			[
				"$databases DROP DATABASE",
				map { "DROP DATABASE db$_" } 1 .. $databases
			],
			# This is the last case, because files that were just removed slow down the
			# creation of others.
			[
				"$tables DROP TABLE of four relations",
				map { "DROP TABLE f$_" } 1 .. $tables
			])
		{
			my ($what, @statements) = @$storm;
			my ($end, $dropped_in) =
			  hold_and_run($primary, $standby, @statements);
			record('primary', 's', $dropped_in, $what);
			my $began = time;
			my $took = time_resumed_replay($standby, $end);
			record('replay', 's', $took, $what);
			record(
				'one of them in replay', 'us',
				1e6 * $took / @statements, $what) if $what =~ /four/;
			wait_for_nothing_left($standby);
			record('until nothing is left on the standby',
				's', time - $began, $what);
		}
		discard($standby, $primary);
	});
