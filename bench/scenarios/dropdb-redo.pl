
# Copyright (c) 2026, LazyDrop developers

# Source: pgsql-hackers, 2018 and 2019, on DROP DATABASE with many tablespaces: a database
# in 1,000 tablespaces, with one table in each; base backup; drop; immediate shutdown;
# archive recovery.  It took 8 to 10 s with 16 GB of shared_buffers before all tablespaces
# were put into one record, and less than 1 s afterwards, as in stock 18.
#
# Asks: how long does redo take?  All servers recover from the same backup, made by stock.
#
# Expected: stock takes less than 1 s, most of it for removing 1,001 directories.  The
# fork takes less, because the files are removed later: at the end of recovery, before
# connections are accepted.  Therefore the whole time from the start of redo until the
# server accepts connections is measured as well; it must not be longer than stock's.

use strict;
use warnings FATAL => 'all';

use File::Path;
use LazyDropBench;
use PostgreSQL::Test::Utils;

my $primary;

scenario 'dropdb-redo' => (
	seconds => 5,
	groups => sub {
		return map { cases(\@servers, size => $_) } sizes('128MB');
	},
	setup => sub {
		my $tablespaces = n(1000);
		$primary = make_primary(
			'stock',
			initialize => { has_archiving => 1 },
			shared_buffers => '128MB',
			allow_in_place_tablespaces => 'on');
		$primary->safe_psql(
			'postgres',
			join('',
				map { "CREATE TABLESPACE ts$_ LOCATION '';\n" }
				  1 .. $tablespaces));
		$primary->safe_psql('postgres', 'CREATE DATABASE victim');
		$primary->safe_psql(
			'victim',
			join(
				'',
				map { "CREATE TABLE t$_ TABLESPACE ts$_ AS SELECT 1 AS a;\n" }
				  1 .. $tablespaces));
		$primary->backup('before');
		$primary->safe_psql('postgres', 'DROP DATABASE victim');
		my $file = $primary->safe_psql('postgres',
			'SELECT pg_walfile_name(pg_current_wal_lsn())');
		$primary->safe_psql('postgres', 'SELECT pg_switch_wal()');
		$primary->poll_query_until('postgres',
			"SELECT last_archived_wal >= '$file' FROM pg_stat_archiver")
		  or die "WAL was not archived\n";
		$primary->stop('immediate');
	},
	run => sub {
		my ($case) = @_;
		my $node = new_node($case->{server});
		$node->init_from_backup(
			$primary, 'before',
			has_restoring => 1,
			standby => 0);
		configure($node, $case->{server}, shared_buffers => $case->{size});
		sync_disk();
		$node->start;
		$node->poll_query_until('postgres', 'SELECT NOT pg_is_in_recovery()')
		  or die "recovery did not end\n";
		my ($took) =
		  slurp_file($node->logfile) =~ /redo done at .* elapsed: ([\d.]+) s/
		  or die "the log does not tell how long redo took\n";
		my $left = $node->safe_psql('postgres',
			q{SELECT count(*) FROM pg_database WHERE datname = 'victim'});
		die "the drop was not replayed\n" if $left != 0;
		record('redo', 's', $took);
		my @at = map {
			my ($h, $m, $s) =
			  slurp_file($node->logfile) =~
			  /^\S+ (\d+):(\d+):([\d.]+) .*LOG:  $_/m
			  or die "the log does not tell when: $_\n";
			3600 * $h + 60 * $m + $s;
		} ('redo starts', 'database system is ready to accept connections');
		record('from redo until open', 's', $at[1] - $at[0])
		  if $at[1] >= $at[0];
		discard($node);
	},
	teardown => sub {
		File::Path::remove_tree($primary->backup_dir);
		discard($primary);
	});
