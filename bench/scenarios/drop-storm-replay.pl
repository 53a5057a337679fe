
# Copyright (c) 2026, LazyDrop developers

# Source: pgsql-hackers and operators' reports of standbys that fall behind when many
# tables, partitions or databases are dropped.
#
# Asks: how far do two standbys, one cascading from the other, fall behind while a client
# drops 1,000 tables, indexes and partitions, truncates 1,000 tables and drops 100
# databases?  And how long does the client take?
#
# A primary that scans all headers for each drop is as slow as its standbys, and takes
# processor time from them if all run on one machine, so they seem to keep up.  In
# practice, sessions of a primary drop on many processors, while replay is a single
# process.  Therefore there are also standbys of stock, and of the fork with lazydrop off,
# below a primary that has it on: "on>stock" and "on>off".
#
# Expected: the time of stock's client increases in proportion to shared_buffers, and the
# fork's does not.  Standbys of stock below a fast primary fall behind by seconds at 16
# GB; the fork's are never more than a second behind.

use strict;
use warnings FATAL => 'all';

use LazyDropBench;
use LazyDropLag;
use List::Util  qw(max);
use Time::HiRes qw(time);

scenario 'drop-storm-replay' => (
	seconds => sub {
		return $_[0]{size} eq '128MB' ? 30 : $_[0]{server} eq 'on' ? 55 : 95;
	},
	runs => 3,
	disk => 8,
	groups => sub {
		my ($small) = sizes('128MB');
		return (
			(   $opt{quick} || $small eq $opt{large}
				? ()
				: cases([qw(stock on)], size => $small)),
			cases([qw(stock on on>stock on>off)], size => $opt{large}));
	},
	setup => \&begin_curves,
	teardown => \&end_curves,
	run => sub {
		my ($case) = @_;
		my ($first, $second) = $case->{server} =~ /^(\w+)>?(\w*)$/;
		$second ||= $first;
		my $primary = make_primary($first, shared_buffers => $case->{size});
		my $standby = make_standby($primary, $second);
		my $cascade = make_standby($standby, $second, $primary);
		my ($tables, $databases) = (n(1000), n(100));
		$primary->safe_psql(
			'postgres',
			join(
				'',
				"CREATE TABLE heartbeat AS SELECT clock_timestamp() AS at;\n",
				"CREATE TABLE parted (a int) PARTITION BY LIST (a);\n",
				map {
					qq{
					CREATE TABLE d$_ AS SELECT 1 AS a;
					CREATE TABLE t$_ AS SELECT 1 AS a;
					CREATE INDEX i$_ ON t$_ (a);
					CREATE TABLE p$_ PARTITION OF parted FOR VALUES IN ($_);
					INSERT INTO p$_ VALUES ($_);
				}
				} 1 .. $tables));
		$primary->safe_psql(
			'postgres',
			join('',
				map { "CREATE DATABASE v$_ STRATEGY file_copy;\n" }
				  1 .. $databases));
		my @nodes = ($primary, $standby, $cascade);
		my $settle = sub {
			$primary->wait_for_replay_catchup($standby);
			$standby->wait_for_replay_catchup($cascade, $primary);
			wait_for_nothing_left(@nodes);
		};
		$settle->();
		sync_disk();

		my $samples = start_samples(@nodes);
		my @storms;
		foreach my $storm (
			[ "$tables DROP TABLE", map { "DROP TABLE d$_" } 1 .. $tables ],
			[ "$tables DROP INDEX", map { "DROP INDEX i$_" } 1 .. $tables ],
			[ "$tables TRUNCATE", map { "TRUNCATE t$_" } 1 .. $tables ],
			[
				"$tables DROP of a partition",
				map { "DROP TABLE p$_" } 1 .. $tables
			],
			[
				"$databases DROP DATABASE",
				map { "DROP DATABASE v$_" } 1 .. $databases
			])
		{
			my ($what, @statements) = @$storm;
			my $began = time;
			$primary->safe_psql('postgres', join(";\n", @statements));
			record('primary', 's', time - $began, $what);
			my $position = $primary->safe_psql('postgres',
				q{SELECT pg_current_wal_flush_lsn() - '0/0'});
			$settle->();
			push @storms, [ $what, $began, time, $position ];
		}

		my ($of_primary, @of_standbys) = stop_samples($samples);
		foreach my $storm (@storms)
		{
			my ($what, $began, undef, $position) = @$storm;
			record(
				'until both standbys have it',
				's',
				max(map { time_of_replay($_, $position) } @of_standbys) -
				  $began,
				$what);
		}
		foreach my $i (0, 1)
		{
			my $name = (qw(standby cascade))[$i];
			foreach my $storm (@storms)
			{
				my ($what, $began, $ended) = @$storm;
				record(
					"largest lag of the $name",
					's',
					max(map { $_->[1] } lag_of(
							$of_primary, $of_standbys[$i], $began, $ended)),
					$what);
			}
			next
			  unless $case->{size} eq $opt{large}
			  && $LazyDropBench::now{run} == 1;
			add_curve(
				$name,
				[
					lag_of(
						$of_primary, $of_standbys[$i],
						$storms[0][1], $storms[-1][2])
				],
				\@storms);
		}
		discard($cascade, $standby, $primary);
	});
