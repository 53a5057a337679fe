# Copyright (c) 2026, LazyDrop developers

# DROP DATABASE makes no checkpoint (rule R11), and a checkpoint may happen in the middle
# of it.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/..";
use LazyDropFiles qw(minimum_recovery_point add_segments database_directories
  dbase_drop_records);
use LazyDropUtils
  qw(stats wait_for_stats wait_for_nothing reload_with hold_at release
  need_injection_points start_quiet_pair stop_with_clean_log);
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

need_injection_points();

my ($primary, $standby) = start_quiet_pair(
	'fsync' => 'on',
	'lazydrop.max_pending' => '16',
	'log_checkpoints' => 'on',
	'wal_keep_size' => '1GB');

# Create a database "d" with dirty pages.  Returns its OID.
sub create_database
{
	my ($options) = @_;
	$primary->safe_psql('postgres', 'CREATE DATABASE d ' . ($options // ''));
	$primary->safe_psql('d',
		'CREATE TABLE t AS SELECT generate_series(1, 1000) AS a');
	return $primary->safe_psql('postgres',
		q{SELECT oid FROM pg_database WHERE datname = 'd'});
}

sub count_checkpoints
{
	my ($offset, $node) = @_;
	my $log = slurp_file(($node // $primary)->logfile, $offset);
	return scalar(() = $log =~ /checkpoint starting/g);
}

# --- no checkpoint ----------------------------------------------------------

foreach my $case (
	[ '', 0 ],
	[ 'lazydrop.defer_files = off', 0 ],
	[ 'lazydrop.enabled = off', 1 ])
{
	my ($setting, $expected) = @$case;
	my $what = $setting eq '' ? 'by default' : "with $setting";
	$primary->append_conf('postgresql.conf', "$setting\n");
	$primary->reload;
	$primary->poll_query_until('postgres',
			q{SELECT current_setting('}
		  . ($setting =~ /^(\S+)/)[0]
		  . q{') = 'off'})
	  if $setting ne '';
	my $oid = create_database();
	my $offset = -s $primary->logfile;
	my $start = $primary->lsn('insert');
	$primary->safe_psql('postgres', 'DROP DATABASE d');
	is(count_checkpoints($offset),
		$expected, "DROP DATABASE $what: so many checkpoints");
	my @records =
	  dbase_drop_records($primary, $start, $primary->lsn('flush'));
	is_deeply([ map { @{ $_->{pairs} } } @records ],
		["1663/$oid"], "$what: one record, of one directory");
	is_deeply([ database_directories($primary, $oid) ],
		[], "$what: the directory is gone")
	  if $setting ne '';
	wait_for_nothing($primary);
	is_deeply([ database_directories($primary, $oid) ],
		[], "$what: and stays so");

	if ($setting ne '')
	{
		my $name = ($setting =~ /^(\S+)/)[0];
		$primary->append_conf('postgresql.conf', "$name = on\n");
		$primary->reload;
		$primary->poll_query_until('postgres',
			"SELECT current_setting('$name') = 'on'");
	}
}

# The drop of a database that does not fit into the set makes no checkpoint either, and
# defers nothing.
{
	my @spaces = map { "ts$_" } 1 .. 17;
	$primary->safe_psql('postgres', "CREATE TABLESPACE $_ LOCATION ''")
	  foreach @spaces;
	my $oid = create_database();
	$primary->safe_psql('d', "CREATE TABLE $_ (a int) TABLESPACE $_")
	  foreach @spaces;
	my $offset = -s $primary->logfile;
	my $before = stats($primary);
	$primary->safe_psql('postgres', 'DROP DATABASE d');
	is(count_checkpoints($offset), 0, 'many tablespaces: no checkpoint');
	is_deeply([ database_directories($primary, $oid) ],
		[], 'many tablespaces: the directories are gone');
	my $after = stats($primary);
	is($after->{sync_fallbacks} - $before->{sync_fallbacks},
		1, 'many tablespaces: the buffers are looked for');
	$primary->safe_psql('postgres', "DROP TABLESPACE $_") foreach @spaces;
}

# --- a checkpoint in the middle ---------------------------------------------

# In neither case may the record of the drop be before a checkpoint's redo pointer while
# the directory is left.
hold_at($primary, 'lazydrop-removal');
foreach my $point ('lazydrop-database-logged', 'lazydrop-database-forgotten')
{
	my $oid = create_database();
	hold_at($primary, $point);
	my $drop = $primary->background_psql('postgres');
	$drop->query_until(qr/begun/, "\\echo begun\nDROP DATABASE d;\n");
	$primary->wait_for_event('client backend', $point);
	my $checkpoint = $primary->background_psql('postgres');
	$checkpoint->query_until(qr/begun/,
		"\\echo begun\nCHECKPOINT;\n\\echo done\n");
	if ($point =~ /logged/)
	{
		$primary->wait_for_event('checkpointer', 'CheckpointDelayStart');
		is(scalar(database_directories($primary, $oid)),
			1, "$point: a checkpoint waits");
		release($primary, $point);
	}
	$checkpoint->query_until(qr/done/, "\n");
	is_deeply([ database_directories($primary, $oid) ],
		[], "$point: a checkpoint removes the directory");

	# A process that waits for a checkpoint takes part in no barrier.
	if ($point =~ /forgotten/)
	{
		foreach my $sql (
			q{CREATE TABLESPACE ts LOCATION ''},
			'CREATE TABLE t (a int) TABLESPACE ts',
			'DROP TABLE t',
			'DROP TABLESPACE ts')
		{
			$primary->safe_psql('postgres', $sql);
		}
		pass('DROP TABLESPACE does not wait for DROP DATABASE');
		release($primary, $point);
	}
	$checkpoint->quit;
	$drop->quit;
	is( $primary->safe_psql(
			'postgres', "SELECT count(*) FROM pg_database WHERE oid = $oid"),
		0,
		"$point: and DROP DATABASE goes on");
}
release($primary, 'lazydrop-removal');
wait_for_nothing($primary);

# --- sync requests ----------------------------------------------------------

# The checkpointer is busy, and has not absorbed the requests to forget.
{
	hold_at($primary, 'lazydrop-removal');
	$primary->safe_psql('postgres', 'CREATE TABLE u AS SELECT 1 AS a');
	my $oid = create_database();
	$primary->safe_psql('postgres', 'DROP TABLE u');
	$primary->wait_for_event('lazy drop worker', 'lazydrop-removal');
	hold_at($primary, 'lazydrop-checkpoint');
	my $checkpoint = $primary->background_psql('postgres');
	$checkpoint->query_until(qr/begun/, "\\echo begun\nCHECKPOINT;\n");
	$primary->wait_for_event('checkpointer', 'lazydrop-checkpoint');
	$primary->safe_psql('postgres', 'DROP DATABASE d');
	release($primary, 'lazydrop-removal');
	wait_for_stats($primary, q{s->>'pending_relations' = '0'});
	is(scalar(database_directories($primary, $oid)),
		1,
		'files are not removed before the checkpointer has taken note, for which DROP DATABASE does not wait'
	);
	release($primary, 'lazydrop-checkpoint');
	$checkpoint->quit;
	wait_for_nothing($primary);
	is_deeply([ database_directories($primary, $oid) ],
		[], 'and then they are');

	# DROP DATABASE waits for the checkpointer if it removes the directories itself.
	reload_with($primary, 'lazydrop.defer_files' => 'off');
	$primary->safe_psql('postgres', 'CREATE TABLE u AS SELECT 1 AS a');
	$oid = create_database();
	hold_at($primary, 'lazydrop-worker');
	$primary->safe_psql('postgres', 'DROP TABLE u');
	$primary->wait_for_event('lazy drop worker', 'lazydrop-worker');
	hold_at($primary, 'lazydrop-checkpoint');
	$checkpoint = $primary->background_psql('postgres');
	$checkpoint->query_until(qr/begun/, "\\echo begun\nCHECKPOINT;\n");
	$primary->wait_for_event('checkpointer', 'lazydrop-checkpoint');
	my $drop = $primary->background_psql('postgres');
	$drop->query_until(qr/begun/, "\\echo begun\nDROP DATABASE d;\n");
	$primary->wait_for_event('client backend', 'LazyDropForget');
	is(scalar(database_directories($primary, $oid)),
		1, 'with lazydrop.defer_files = off, it waits');
	release($primary, 'lazydrop-checkpoint');
	release($primary, 'lazydrop-worker');
	$_->quit foreach ($checkpoint, $drop);
	is_deeply([ database_directories($primary, $oid) ],
		[], 'and removes them itself');
	reload_with($primary, 'lazydrop.defer_files' => 'on');
	wait_for_nothing($primary);
}

# --- a base backup in the middle --------------------------------------------

# DROP DATABASE removes the directory itself.  A base backup that begins after its record
# and before the removal contains the directory, and is replayed from a position after the
# record.
{
	my $what = 'a base backup before the directory is removed';
	reload_with($primary, 'lazydrop.defer_files' => 'off');
	my $oid = create_database();
	hold_at($primary, 'lazydrop-database-forgotten');
	my $start = $primary->lsn('insert');
	my $drop = $primary->background_psql('postgres');
	$drop->query_until(qr/begun/, "\\echo begun\nDROP DATABASE d;\n");
	$primary->wait_for_event('client backend', 'lazydrop-database-forgotten');
	$primary->backup('meanwhile');
	ok(-d $primary->backup_dir . "/meanwhile/base/$oid",
		"$what has the directory");
	release($primary, 'lazydrop-database-forgotten');
	$drop->quit;
	my @records =
	  dbase_drop_records($primary, $start, $primary->lsn('flush'));
	is_deeply(
		[ map { @{ $_->{pairs} } } @records ],
		[ "1663/$oid", "1663/$oid" ],
		"$what: the record comes once more");
	my $restored = PostgreSQL::Test::Cluster->new('restored');
	$restored->init_from_backup($primary, 'meanwhile', has_streaming => 1);
	$restored->start;
	$primary->wait_for_replay_catchup($restored);
	wait_for_nothing($restored);
	is_deeply([ database_directories($restored, $oid) ],
		[], "$what: a server that is made of it has it not");
	$restored->stop;
	reload_with($primary, 'lazydrop.defer_files' => 'on');
}

# --- canceled ---------------------------------------------------------------

# The command is canceled after its record, which standbys have replayed.  The directory
# must therefore be removed here, too: either by the worker, or by the session.  The
# session waits for a barrier, for a process that does not take part in it because it is
# committing.
foreach my $deferred ('on', 'off')
{
	my $what = "lazydrop.defer_files = $deferred";
	my $event =
	  $deferred eq 'on'
	  ? 'lazydrop-database-forgotten'
	  : 'ProcSignalBarrier';
	my $oid = create_database();
	hold_at($primary, 'lazydrop-buried');
	$primary->safe_psql('postgres', 'CREATE TABLE u (a int)');
	my $session = $primary->background_psql('postgres');
	$session->query_until(qr/begun/, "\\echo begun\nDROP TABLE u;\n");
	$primary->wait_for_event('client backend', 'lazydrop-buried');
	$primary->safe_psql('postgres',
		q{SELECT injection_points_detach('lazydrop-buried')});
	$primary->append_conf('postgresql.conf',
		"lazydrop.defer_files = $deferred\n");
	$primary->reload;
	$primary->poll_query_until('postgres',
		"SELECT current_setting('lazydrop.defer_files') = '$deferred'");
	hold_at($primary, $event) if $deferred eq 'on';
	my $drop = $primary->background_psql('postgres', on_error_stop => 0);
	$drop->query_until(qr/begun/, "\\echo begun\nDROP DATABASE d;\n");
	$primary->wait_for_event('client backend', $event);
	is(scalar(database_directories($primary, $oid)),
		1, "$what: files are not removed before the barrier");
	my $offset = -s $primary->logfile;
	$primary->safe_psql('postgres',
		"SELECT pg_cancel_backend(pid) FROM pg_stat_activity WHERE wait_event = '$event' AND backend_type = 'client backend'"
	);
	$primary->wait_for_log(qr/canceling statement due to user request/,
		$offset);
	$primary->safe_psql('postgres',
		q{SELECT injection_points_wakeup('lazydrop-buried')});
	$primary->safe_psql('postgres',
		"SELECT injection_points_detach('$event')")
	  if $deferred eq 'on';
	$_->quit foreach ($session, $drop);
	wait_for_nothing($primary);
	is( $primary->safe_psql(
			'postgres',
			"SELECT datconnlimit FROM pg_database WHERE oid = $oid"),
		'-2',
		"$what: DROP DATABASE that is cancelled leaves an invalid database");
	is_deeply([ database_directories($primary, $oid) ],
		[], "$what: without its directory");

	$primary->safe_psql('postgres',
		q{CREATE TABLESPACE } . "invalid_$deferred" . q{ LOCATION ''});
	my ($ret, $out, $err) = $primary->psql('postgres',
		"ALTER DATABASE d SET TABLESPACE invalid_$deferred");
	like(
		$err,
		qr/cannot alter invalid database "d"/,
		"$what: which cannot be moved");
	$primary->safe_psql('postgres', 'DROP DATABASE d');
	wait_for_nothing($primary);
	is( $primary->safe_psql(
			'postgres', "SELECT count(*) FROM pg_database WHERE oid = $oid"),
		0,
		"$what: but can be dropped again");
}
$primary->append_conf('postgresql.conf', "lazydrop.defer_files = on\n");
$primary->reload;
$primary->poll_query_until('postgres',
	q{SELECT current_setting('lazydrop.defer_files') = 'on'});

# --- a set full of files ----------------------------------------------------

# Droppers leave the files of other relations to the worker.
{
	hold_at($primary, 'lazydrop-removal');
	my @tables = map { "u$_" } 1 .. 30;
	$primary->safe_psql('postgres',
		join('', map { "CREATE TABLE $_ AS SELECT 1 AS a;\n" } @tables));
	my %path = map {
		$_ =>
		  $primary->safe_psql('postgres', "SELECT pg_relation_filepath('$_')")
	} @tables;
	add_segments($primary, $path{$_}, 1, 8192) foreach @tables;
	my $before = stats($primary);
	$primary->safe_psql('postgres', "DROP TABLE $_") foreach @tables;
	my $after = stats($primary);
	is($after->{sync_fallbacks} - $before->{sync_fallbacks},
		14, '30 drops and a set of 16: what does not fit is dropped at once');
	is(scalar(grep { -e $primary->data_dir . "/$path{$_}.1" } @tables),
		16, 'and what fits is left to the worker');
	release($primary, 'lazydrop-removal');
	wait_for_nothing($primary);
	is(scalar(grep { -e $primary->data_dir . "/$path{$_}.1" } @tables),
		0, 'which removes it');
}

# --- the same OID, and the same relfilenumber -------------------------------

# The checkpointer has a request to unlink a first segment, and must forget it.
{
	$primary->safe_psql('postgres', 'CREATE DATABASE template');
	$primary->safe_psql('template', 'CREATE TABLE t AS SELECT 1 AS a');
	my $sql = 'CREATE DATABASE e TEMPLATE template';
	$primary->safe_psql('postgres', $sql);
	my $oid = $primary->safe_psql('postgres',
		q{SELECT oid FROM pg_database WHERE datname = 'e'});
	$primary->safe_psql('e', 'DROP TABLE t');
	$primary->safe_psql('postgres', 'DROP DATABASE e');
	$primary->safe_psql('postgres', "$sql OID $oid");
	$primary->safe_psql('postgres', 'CHECKPOINT');
	is($primary->safe_psql('e', 'SELECT a FROM t'),
		1, 'a file of the new database is not unlinked');
	$primary->restart;
	is($primary->safe_psql('e', 'SELECT a FROM t'), 1, 'nor lost');
}

# --- the minimum recovery point (rule R10) ----------------------------------

{
	my $oid = create_database();
	$primary->wait_for_replay_catchup($standby);
	hold_at($standby, 'lazydrop-buried');
	my $start = $primary->lsn('insert');
	$primary->safe_psql('postgres', 'DROP DATABASE d');
	my ($record) =
	  dbase_drop_records($primary, $start, $primary->lsn('flush'));
	$standby->wait_for_event('startup', 'lazydrop-buried');
	my $minimum = minimum_recovery_point($standby);
	is( $primary->safe_psql(
			'postgres',
			"SELECT '$minimum'::pg_lsn > '$record->{lsn}'::pg_lsn"),
		't',
		'the minimum recovery point is past the record before anything is removed'
	);
	release($standby, 'lazydrop-buried');
	$primary->wait_for_replay_catchup($standby);
	wait_for_nothing($standby);
	is_deeply([ database_directories($standby, $oid) ],
		[], 'then the directory goes');
}

# --- a failure before the directories are removed ---------------------------

{
	my $oid = create_database();
	my $session = $primary->background_psql('postgres', on_error_stop => 0);
	$primary->safe_psql('postgres',
		q{SELECT injection_points_attach('lazydrop-buried', 'error')});
	$session->query('DROP DATABASE d');
	like(
		$session->{stderr},
		qr/error triggered for injection point lazydrop-buried/,
		'DROP DATABASE fails after its record');
	$session->{stderr} = '';
	$primary->safe_psql('postgres',
		q{SELECT injection_points_detach('lazydrop-buried')});
	is( $primary->psql(
			'postgres',
			"SET statement_timeout = '${PostgreSQL::Test::Utils::timeout_default}s';\nCHECKPOINT;"
		),
		0,
		'a checkpoint does not wait for that session');
	wait_for_nothing($primary);
	cmp_ok(scalar(database_directories($primary, $oid)),
		'>', 0, 'the directory is still there');
	$session->query_safe('DROP DATABASE d');
	$session->quit;
	wait_for_nothing($primary);
	is_deeply([ database_directories($primary, $oid) ],
		[], 'and goes when the database is dropped again');
	$primary->wait_for_replay_catchup($standby);
}

# --- a relation map ---------------------------------------------------------

# Replay of its record requires that the directory exists.

# Drop the database, which must make the expected number of checkpoints, and crash.
sub drop_and_crash
{
	my ($expected, $what, $node) = @_;
	$node //= $primary;
	my $oid = $node->safe_psql('postgres',
		q{SELECT oid FROM pg_database WHERE datname = 'd'});
	my $offset = -s $node->logfile;
	$node->safe_psql('postgres', 'DROP DATABASE d');
	is(count_checkpoints($offset, $node),
		$expected, "$what: so many checkpoints");
	wait_for_nothing($node);
	$node->stop('immediate');
	ok($node->start(fail_ok => 1), "$what: the server recovers")
	  or die 'the server does not recover';
	is_deeply([ database_directories($node, $oid) ],
		[], "$what: nothing is left");
	return;
}

sub rewrite_mapped_index
{
	my ($before_commit, $after_commit) = @_;
	create_database();
	my $session = $primary->background_psql('d');
	$session->query_safe('BEGIN');
	$session->query_safe('REINDEX INDEX pg_class_oid_index');
	$before_commit->() if $before_commit;
	$session->query_safe('COMMIT');
	$session->quit;
	$after_commit->() if $after_commit;
	return;
}

my $checkpoint = sub { $primary->safe_psql('postgres', 'CHECKPOINT') };
rewrite_mapped_index($checkpoint);
drop_and_crash(1, 'a checkpoint before the relation map changes');

rewrite_mapped_index(undef, $checkpoint);
drop_and_crash(0, 'a checkpoint after that');

create_database();
drop_and_crash(0, 'a new database');

{
	hold_at($primary, 'lazydrop-directory-logged');
	my $session = $primary->background_psql('postgres');
	$session->query_until(qr/begun/, "\\echo begun\nCREATE DATABASE d;\n");
	$primary->wait_for_event('client backend', 'lazydrop-directory-logged');
	$primary->safe_psql('postgres', 'CHECKPOINT');
	release($primary, 'lazydrop-directory-logged');
	$session->quit;
	drop_and_crash(1, 'a checkpoint while a database is created');
}

# After a promotion, recovery may begin at the last restartpoint.  The checkpoint that
# follows the promotion has much to write, so it takes some time.
rewrite_mapped_index(
	sub {
		$primary->safe_psql('postgres', 'CHECKPOINT');
		$primary->wait_for_replay_catchup($standby);
		$standby->safe_psql('postgres', 'CHECKPOINT');
	});
$primary->safe_psql('postgres',
	'CREATE TABLE dirty AS SELECT generate_series(1, 100000) AS a');
$primary->wait_for_replay_catchup($standby);
my $offset = -s $standby->logfile;
$standby->promote;
$standby->wait_for_log(qr/checkpoint starting: force/, $offset);
drop_and_crash(1, 'a new primary', $standby);

stop_with_clean_log($primary);
stop_with_clean_log($standby);

done_testing();
