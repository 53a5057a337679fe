# Copyright (c) 2026, LazyDrop developers

# A primary crashes while a transaction has a table in a directory of its database.  The
# operator removes the rest of the directory, because it prevents the database from being
# moved there.  A standby keeps the directory, and has pages and sync requests for its
# files.  Then the database is moved.  Replay of the copy removes the old files, but in
# stock PostgreSQL the pages and the requests stay.  If the pages are dirty, replay fails
# at each start.  If they have been written, the next restartpoint ends with a PANIC.
#
# See doc/upstream/create-over-leftovers.md.

use strict;
use warnings FATAL => 'all';

use File::Path qw(rmtree);
use FindBin;
use lib "$FindBin::RealBin/..";
use LazyDropTorture qw(psql);
use LazyDropUtils   qw(wait_until evict);
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use StockFault qw(check_fault start_primary start_standby log_has);
use Test::More;

# If "written" is set, the standby has written the pages, which leaves a request to sync
# the file.  Otherwise they are dirty.
sub play
{
	my ($written) = @_;
	my $primary = start_primary(
		allow_in_place_tablespaces => 'on',
		bgwriter_lru_maxpages => 0);
	$primary->safe_psql('postgres', $_)
	  foreach (
		"CREATE TABLESPACE there LOCATION ''",
		'CREATE EXTENSION pg_buffercache',
		'CREATE DATABASE d');
	my $standby = start_standby(
		$primary,
		fsync => 'on',
		restart_after_crash => 'off');

	my $session = $primary->background_psql('d');
	my $path = $session->query_safe(
		q{BEGIN; CREATE TABLE x TABLESPACE there AS SELECT 1 AS a; SELECT pg_relation_filepath('x')}
	);
	$primary->safe_psql('postgres',
		q{SELECT pg_logical_emit_message(true, '', '')});
	$primary->wait_for_replay_catchup($standby);
	evict($standby, 'postgres') if $written;
	$primary->stop('immediate');
	eval { $session->quit };
	$primary->start;

	# The file belongs to no relation, and ALTER DATABASE refuses to move the database
	# into its directory.
	my $directory = $path =~ s{/\d+$}{}r;
	my ($failed, $out, $err) =
	  $primary->psql('postgres', 'ALTER DATABASE d SET TABLESPACE there');
	like(
		$err,
		qr/are already in tablespace/,
		'what the crash has left is in the way');
	rmtree($primary->data_dir . "/$directory");

	# The record of the removal of the old directory follows the commit.  In stock
	# PostgreSQL, its replay would forget the requests for the new directory, too.  A
	# standby that waits there, which may happen, has the fault.
	$standby->append_conf('postgresql.conf',
		"recovery_min_apply_delay = '1h'\n");
	$standby->reload;
	$primary->safe_psql('postgres', 'ALTER DATABASE d SET TABLESPACE there');
	wait_until(
		sub {
			my ($up, $waits) = psql($standby->connstr('postgres'),
				'-c' =>
				  q{SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'RecoveryApplyDelay'}
			);
			return !$up || $waits;
		}) or die 'replay does not wait';
	my ($succeeds) =
	  psql($standby->connstr('postgres'), '-c' => 'CHECKPOINT');
	return '' if $succeeds;

	# A restart of the server does not help if it fails again in the same way.
	my $wrong = log_has($standby, qr/PANIC|FATAL:  could not open file/);
	if (!$written)
	{
		$standby->stop('immediate', fail_ok => 1);
		$wrong .= '; and again at the next start'
		  if !$standby->start(fail_ok => 1);
	}
	return $wrong;
}

foreach my $written (1, 0)
{
	check_fault(
		'a directory that is made anew, its old files being '
		  . ($written ? 'written' : 'dirty'),
		sub { play($written) });
}

done_testing();
