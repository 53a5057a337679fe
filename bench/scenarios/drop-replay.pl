
# Copyright (c) 2026, LazyDrop developers

# Source: pgsql-hackers, and operators' reports of standbys that fall behind.
#
# Asks: how long does one standby take to replay 1,000 DROP TABLE, 1,000 TRUNCATE and 100
# DROP DATABASE that it has received before?
#
# Expected: stock takes 19, 21 and 1.5 s at 16 GB (on a machine with slower memory than the
# one of the results); the fork at most 1.15 times what it takes at 128 MB, and a hundredth
# of stock's time for DROP TABLE.

use strict;
use warnings FATAL => 'all';

use LazyDropBench;
use LazyDropUtils qw(hold_replay);
use Time::HiRes   qw(time);

scenario 'drop-replay' => (
	seconds =>
	  sub { $_[0]{server} ne 'on' && $_[0]{size} ne '128MB' ? 35 : 14 },
	disk => 6,
	groups => sub {
		return map { cases(\@servers, size => $_) } sizes('128MB');
	},
	run => sub {
		my ($case) = @_;
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
		foreach my $storm (
			[ "$tables DROP TABLE", map { "DROP TABLE d$_" } 1 .. $tables ],
			[ "$tables TRUNCATE", map { "TRUNCATE t$_" } 1 .. $tables ],
			[
				"$databases DROP DATABASE",
				map { "DROP DATABASE db$_" } 1 .. $databases
			])
		{
			my ($what, @statements) = @$storm;
			$primary->wait_for_replay_catchup($standby);
			hold_replay($standby);

			# What the kernel still has to write of what was created is no part
			# of this.
			sync_disk();
			my $began = time;
			$primary->safe_psql('postgres', join(";\n", @statements));
			record('primary', 's', time - $began, $what);
			wait_for_nothing_left($primary);
			$began = time;
			record('replay', 's',
				time_resumed_replay($standby, $primary->lsn('flush')), $what);
			wait_for_nothing_left($standby);
			record('until nothing is left on the standby',
				's', time - $began, $what);
		}
		discard($standby, $primary);
	});
