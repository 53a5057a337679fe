# Copyright (c) 2026, LazyDrop developers

# Replay of ALTER DATABASE SET TABLESPACE ends with the removal of the old directory.
# Stock PostgreSQL then forgets the sync requests for all files of the database, including
# files in other tablespaces, which still exist.  The next restartpoint does not sync
# them, so their contents can be lost if the operating system crashes.
#
# See doc/upstream/sync-requests.md.

use strict;
use warnings FATAL => 'all';

use FindBin;
use List::Util qw(sum);
use lib "$FindBin::RealBin/..";
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use StockFault qw(check_fault start_primary start_standby);
use Test::More;

my $tables = 50;

# Make a restartpoint, and return the number of files that it has synced, together with a
# restartpoint that replay may make before it.
sub restartpoint
{
	my ($primary, $standby) = @_;
	my $offset = -s $standby->logfile;
	$primary->safe_psql('postgres', 'CHECKPOINT');
	$primary->wait_for_replay_catchup($standby);
	$standby->safe_psql('postgres', 'CHECKPOINT');
	my @files =
	  slurp_file($standby->logfile, $offset) =~
	  /restartpoint complete: .*sync files=(\d+)/g
	  or die 'there was no restartpoint';
	return sum(@files);
}

sub fill
{
	my ($primary, $sql) = @_;
	$primary->safe_psql('d',
		join('', map { sprintf("$sql;\n", $_) } 1 .. $tables));
	return;
}

check_fault(
	'sync requests of a database that is moved',
	sub {
		my $primary = start_primary(
			allow_in_place_tablespaces => 'on',
			log_checkpoints => 'on');
		$primary->safe_psql('postgres', $_)
		  foreach (
			"CREATE TABLESPACE there LOCATION ''",
			"CREATE TABLESPACE third LOCATION ''",
			'CREATE DATABASE d');
		my $standby = start_standby($primary, fsync => 'on');
		restartpoint($primary, $standby);

		# Replay of the copy writes all dirty pages of the database, in any tablespace.
		# The fork makes a restartpoint before the old directory is removed, which would
		# sync these files.  Let that restartpoint fail.
		fill($primary, 'CREATE TABLE t%d TABLESPACE third AS SELECT 1 AS a');
		my $mappings = $standby->data_dir . '/pg_logical/mappings';
		rename($mappings, "$mappings.away") or die $!;
		$primary->safe_psql('postgres',
			'ALTER DATABASE d SET TABLESPACE there');
		$primary->wait_for_replay_catchup($standby);
		rename("$mappings.away", $mappings) or die $!;
		my $files = restartpoint($primary, $standby);
		return "a restartpoint has synced $files files, not $tables or more"
		  if $files < $tables;

		# If a database is dropped, none of its files still exists.
		fill($primary, 'INSERT INTO t%d VALUES (2)');
		$primary->safe_psql('postgres', 'DROP DATABASE d');
		$files = restartpoint($primary, $standby);
		return "a restartpoint has synced $files files of what was dropped"
		  if $files >= $tables;
		return '';
	});

done_testing();
