# Copyright (c) 2026, LazyDrop developers

# A checkpoint hides the files of dropped relations, which takes no time, and the
# checkpointer continues with its duties meanwhile (rule R8).  The worker is held.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/..";
use LazyDropFiles
  qw(relation_files add_segments hidden_files orphaned_files nothing_is_left
  database_directories);
use LazyDropUtils
  qw(stats wait_for_nothing hold_at release wait_until need_injection_points
  reload_with start_quiet_node);
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(time);

need_injection_points();

use constant MB => 1024 * 1024;
use constant GB => 1024 * MB;

# Only the session that asks for it waits for the standby, which does not exist.
my $node = start_quiet_node(
	'node',
	'fsync' => 'on',
	'synchronous_commit' => 'local',
	'synchronous_standby_names' => 'nowhere');
$node->safe_psql('postgres', 'CREATE EXTENSION injection_points');
my $data = $node->data_dir;

sub run
{
	$node->safe_psql('postgres', $_) foreach @_;
	return;
}

# Create a table with one page, and sparse segments without blocks on the disk.  Returns
# its path.
sub create_table
{
	my ($name, $n, $size, $options) = @_;
	run("CREATE TABLE $name " . ($options // '') . ' AS SELECT 1 AS a');
	my $path =
	  $node->safe_psql('postgres', "SELECT pg_relation_filepath('$name')");
	add_segments($node, $path, $n, $size);
	return $path;
}

# Run commands that drop something, and wait until the worker is held before the removal
# of the files.
sub drop_and_hold
{
	hold_at($node, 'lazydrop-removal');
	run(@_);
	$node->wait_for_event('lazy drop worker', 'lazydrop-removal');
	return;
}

sub begin_checkpoint
{
	my $session = $node->background_psql('postgres', on_error_stop => 0);
	$session->query_until(qr/begun/, "\\echo begun\nCHECKPOINT;\n");
	return $session;
}

# Returns the files in a directory, if it exists.
sub glob_files
{
	my ($directory) = @_;
	my @files = glob("'$directory'/*");
	return @files;
}

# --- a checkpoint's duties --------------------------------------------------

# A checkpoint hides the files of many relations, one step at a time.  Meanwhile the
# configuration changes, a commit stops waiting, and WAL is switched.
{
	my @tables = map { "t$_" } 1 .. 100;
	run(join(';', map { "CREATE TABLE $_ AS SELECT 1 AS a" } @tables));
	foreach my $path (
		split /\n/,
		$node->safe_psql(
			'postgres',
			q{SELECT pg_relation_filepath(oid) FROM pg_class WHERE relname ~ '^t[0-9]+$'}
		))
	{
		add_segments($node, $path, 20, 2 * MB);
	}
	drop_and_hold('DROP TABLE ' . join(', ', @tables));

	my $session = $node->background_psql('postgres');
	$session->query_safe('SET synchronous_commit = on');
	$session->query_until(qr/begun/,
		"\\echo begun\nCREATE TABLE committed ();\n\\echo committed\n");
	$node->wait_for_event('client backend', 'SyncRep');
	pass('a commit waits for a standby');

	hold_at($node, 'lazydrop-checkpoint-step');
	my $checkpoints = $node->safe_psql('postgres',
		'SELECT num_requested FROM pg_stat_checkpointer');
	my $checkpoint = begin_checkpoint();
	$node->wait_for_event('checkpointer', 'lazydrop-checkpoint-step');
	my $segment = $node->safe_psql('postgres',
		'SELECT pg_walfile_name(pg_current_wal_lsn())');
	$node->append_conf('postgresql.conf',
		"synchronous_standby_names = ''\narchive_timeout = 1");
	my $began = time();
	$node->reload;

	# Let the checkpoint take a step; returns whether it is still hiding files.
	my $steps = 0;
	my $step = sub {
		$steps++;

		# The wakeup fails if the checkpointer has already left the injection point.
		$node->psql('postgres',
			q{SELECT injection_points_wakeup('lazydrop-checkpoint-step')});
		my $state;
		wait_until(
			sub {
				$state = $node->safe_psql(
					'postgres', q{
					SELECT CASE WHEN wait_event = 'lazydrop-checkpoint-step' THEN 'held'
					  WHEN wait_event = 'CheckpointerMain' THEN 'done' END
					FROM pg_stat_activity WHERE backend_type = 'checkpointer'});
				return $state ne '';
			}) or die 'the checkpointer is lost';
		return $state eq 'held';
	};
	my %shown = (
		'a commit that waited is released' => q{
			SELECT count(*) = 0 FROM pg_stat_activity WHERE wait_event = 'SyncRep'},
		'WAL is switched for archive_timeout' =>
		  "SELECT pg_walfile_name(pg_current_wal_lsn()) > '$segment'",
		'statistics are reported' =>
		  "SELECT num_requested > $checkpoints FROM pg_stat_checkpointer");
	my %seen;
	my $at_it = 1;
	while ($at_it && keys %seen < keys %shown && $steps < 100)
	{
		$at_it = $step->();
		foreach my $what (grep { !$seen{$_} } keys %shown)
		{
			$seen{$what} = time() - $began
			  if $node->safe_psql('postgres', $shown{$what}) eq 't';
		}
	}
	ok($at_it, 'the checkpoint is still at the files');
	foreach my $what (sort keys %shown)
	{
		cmp_ok($seen{$what} // 'inf', '<', 30, "$what meanwhile");
		note sprintf('after %.3f s', $seen{$what}) if $seen{$what};
	}
	note "$steps steps";

	release($node, 'lazydrop-checkpoint-step');
	$session->query_until(qr/committed/, "\n");
	$_->quit foreach ($session, $checkpoint);
	release($node, 'lazydrop-removal');
	$node->append_conf('postgresql.conf', 'archive_timeout = 0');
	$node->reload;
	nothing_is_left($node, 'when the worker has removed the rest');
}

# --- 200 GB -----------------------------------------------------------------

foreach my $end ('worker', 'crash', 'shutdown')
{
	my $path = create_table('t', 200, GB);
	my ($small) = create_table('small', 0);
	run('CREATE DATABASE d');
	my $oid = $node->safe_psql('postgres',
		q{SELECT oid FROM pg_database WHERE datname = 'd'});
	add_segments($node, "base/$oid/1", 1, GB);
	my $inode = (stat("$data/base/$oid/PG_VERSION"))[1];

	drop_and_hold('DROP TABLE t, small', 'DROP DATABASE d');
	my $before = stats($node);
	my $began = time();
	run('CHECKPOINT');
	note sprintf('a checkpoint took %.3f s', time() - $began);
	my $stats = stats($node);
	is_deeply(
		[
			(map { relation_files($node, $_) } $path, $small),
			database_directories($node, $oid)
		],
		[],
		'a checkpoint leaves no file under its name');
	cmp_ok($stats->{pending_bytes}, '>=', 200 * GB, 'they are still pending');
	cmp_ok($stats->{bytes_removed} - $before->{bytes_removed},
		'<', GB, 'and not removed');
	my @hidden = hidden_files($node);
	is(scalar(grep { -f "$data/$_" } @hidden), 202, 'files are hidden');
	is( scalar(
			grep { ((stat("$data/$_/PG_VERSION"))[1] // 0) == $inode }
			  @hidden),
		1,
		'and the directory of a database');
	is(scalar(@hidden), 203, 'and nothing else');

	# The next checkpoint has nothing to do.
	run('CHECKPOINT');
	is_deeply([ hidden_files($node) ],
		\@hidden, 'the next checkpoint leaves them alone');

	if ($end eq 'worker')
	{
		release($node, 'lazydrop-removal');
		nothing_is_left($node, 'when the worker has removed them');
		is_deeply([ glob("'$data'/base/pgsql_tmp/*") ],
			[], 'and the directory is empty');
	}
	else
	{
		# A worker that is held cannot stop.  Release it, but make it slow.
		$node->append_conf('postgresql.conf', 'lazydrop.removal_rate = 1');
		$node->reload;
		$node->poll_query_until('postgres',
			q{SELECT current_setting('lazydrop.removal_rate') = '1MB'});
		release($node, 'lazydrop-removal') if $end ne 'crash';
		$node->stop($end eq 'crash' ? 'immediate' : 'fast');
		cmp_ok(scalar(hidden_files($node)), '>', 190, 'much is still hidden');
		$began = time();
		$node->start;
		note sprintf('a start took %.3f s', time() - $began);
		cmp_ok(scalar(hidden_files($node)),
			'>', 190, 'a start does not wait for its removal');
		$node->append_conf('postgresql.conf', 'lazydrop.removal_rate = 0');
		$node->reload;
		nothing_is_left($node, "after a $end");
	}
}

# --- files hidden in a different order --------------------------------------

# CREATE DATABASE hides the pending files in the database that it copies.  Its checkpoint
# then hides files that were dropped earlier.  The worker is held meanwhile, and removes
# both.
{
	create_table('t', 2, 40 * MB);
	run('CREATE DATABASE source');
	$node->safe_psql('source', 'CREATE TABLE u AS SELECT 1 AS a');
	my $path =
	  $node->safe_psql('source', q{SELECT pg_relation_filepath('u')});
	add_segments($node, $path, 2, 40 * MB);
	drop_and_hold('DROP TABLE t');
	$node->safe_psql('source', 'DROP TABLE u');
	run('CREATE DATABASE copy TEMPLATE source STRATEGY file_copy');
	is(scalar(hidden_files($node)), 6, 'files of both are hidden');
	release($node, 'lazydrop-removal');
	wait_for_nothing($node);
	is_deeply([ hidden_files($node) ],
		[], 'all are removed, whichever was hidden first');
	run('DROP DATABASE source', 'DROP DATABASE copy');
	nothing_is_left($node, 'in the end');
}

# --- not ready at first -----------------------------------------------------

# When a checkpoint looks for files, a dropper has buried its relation but has not
# released the files yet.  The dropper releases them by the time the checkpoint has hidden
# the files of a relation that was dropped later.
{
	my %path = map { $_ => create_table($_, 2, 40 * MB) } qw(t u v);
	drop_and_hold('DROP TABLE v');
	hold_at($node, 'lazydrop-checkpoint');
	my $checkpoint = begin_checkpoint();
	$node->wait_for_event('checkpointer', 'lazydrop-checkpoint');

	hold_at($node, 'lazydrop-forgotten');
	my $session = $node->background_psql('postgres');
	$session->query_until(qr/begun/, "\\echo begun\nDROP TABLE t;\n");
	$node->wait_for_event('client backend', 'lazydrop-forgotten');
	run(q{SELECT injection_points_detach('lazydrop-forgotten')},
		'DROP TABLE u');
	# The checkpoint hides "v" first, and then takes one more step.
	hold_at($node, 'lazydrop-checkpoint-step');
	release($node, 'lazydrop-checkpoint');
	$node->wait_for_event('checkpointer', 'lazydrop-checkpoint-step');
	run(q{SELECT injection_points_wakeup('lazydrop-checkpoint-step')});
	wait_until(sub { !-e "$data/$path{u}.1" })
	  or die 'the checkpoint does not go on';
	$node->wait_for_event('checkpointer', 'lazydrop-checkpoint-step');
	is( scalar(grep { -e "$data/$path{u}.$_" } 1, 2),
		0, 'a checkpoint hides what is ready');
	is( scalar(grep { -e "$data/$path{t}.$_" } 1, 2),
		2, 'and not what is not');
	run(q{SELECT injection_points_wakeup('lazydrop-forgotten')});
	$session->query_safe('SELECT 1');
	release($node, 'lazydrop-checkpoint-step');
	$checkpoint->query_safe('SELECT 1');
	is( scalar(grep { -e "$data/$path{t}.$_" } 1, 2),
		0, 'but that, too, before it ends');
	$_->quit foreach $checkpoint, $session;
	release($node, 'lazydrop-removal');
	nothing_is_left($node, 'in the end');
}

# --- the first segment ------------------------------------------------------

# The first segment keeps its name until a checkpoint that follows the drop has unlinked
# it.  For "t", this is the checkpoint that hides the other segments.  "u" is dropped
# during that checkpoint, so its first segment is unlinked by the next one.
{
	hold_at($node, 'lazydrop-checkpoint');
	hold_at($node, 'lazydrop-checkpoint-end');
	my %path = map { $_ => create_table($_, 2, 40 * MB) } qw(t u);
	truncate("$data/$_", 40 * MB) foreach values %path;
	drop_and_hold('DROP TABLE t');
	my $checkpoint = begin_checkpoint();
	$node->wait_for_event('checkpointer', 'lazydrop-checkpoint');
	run('DROP TABLE u');
	release($node, 'lazydrop-checkpoint');
	$node->wait_for_event('checkpointer', 'lazydrop-checkpoint-end');

	foreach my $name (qw(t u))
	{
		is_deeply(
			[ relation_files($node, $path{$name}) ],
			[ $path{$name} ],
			"a checkpoint keeps the first segment of $name");
		is(-s "$data/$path{$name}", 0, 'and it is empty');
	}
	is(scalar(hidden_files($node)), 6, 'all of them are hidden');
	release($node, 'lazydrop-checkpoint-end');
	$checkpoint->quit;
	is_deeply(
		[ map { relation_files($node, $path{$_}) } qw(t u) ],
		[ $path{u} ],
		'one that was dropped before the checkpoint is unlinked');
	run('CHECKPOINT');
	is_deeply([ relation_files($node, $path{u}) ],
		[], 'the other one by the next');
	is(scalar(hidden_files($node)), 6, 'and no hidden file');
	release($node, 'lazydrop-removal');
	nothing_is_left($node, 'when the worker has removed the hidden files');
}

# --- DROP TABLESPACE --------------------------------------------------------

# DROP TABLESPACE requests a checkpoint while it holds a lock.  It waits only for the
# files in its own tablespace.
{
	run(map { "CREATE TABLESPACE $_ LOCATION ''" } qw(ts1 ts2));
	my %oid = map {
		$_ => $node->safe_psql('postgres',
			"SELECT oid FROM pg_tablespace WHERE spcname = '$_'")
	} qw(ts1 ts2);
	my $path = create_table('t', 200, GB, 'TABLESPACE ts1');
	create_table('u', 2, 40 * MB, 'TABLESPACE ts2');
	drop_and_hold('DROP TABLE t');
	run('DROP TABLE u');
	my $before = stats($node);
	cmp_ok($before->{pending_bytes}, '>=', 200 * GB, '200 GB are pending');
	my $began = time();
	run('DROP TABLESPACE ts2');
	note sprintf('DROP TABLESPACE took %.3f s', time() - $began);
	my $after = stats($node);
	cmp_ok($after->{pending_bytes},
		'>=', 200 * GB,
		'DROP TABLESPACE does not wait for files of another one');
	cmp_ok($after->{bytes_removed} - $before->{bytes_removed},
		'<', GB, 'nor removes them');
	ok(!-e "$data/pg_tblspc/$oid{ts2}", 'and its own are gone');

	# Hidden files in its tablespace also count.
	run('CHECKPOINT');
	run('DROP TABLESPACE ts1');
	ok(!-e "$data/pg_tblspc/$oid{ts1}",
		'it removes what is hidden in its tablespace');
	is(stats($node)->{pending_bytes}, 0, 'and nothing is pending');
	release($node, 'lazydrop-removal');
	nothing_is_left($node, 'in the end');
}

# --- a backup ---------------------------------------------------------------

{
	run(q{CREATE TABLESPACE ts LOCATION ''}, 'CREATE DATABASE d');
	create_table('t', 2, 8 * MB);
	create_table('u', 2, 8 * MB, 'TABLESPACE ts');
	drop_and_hold('DROP TABLE t, u', 'DROP DATABASE d');
	$node->backup('backup');
	is(scalar(hidden_files($node)), 7, 'a backup is taken of hidden files');
	my $restored = PostgreSQL::Test::Cluster->new('restored');
	$restored->init_from_backup($node, 'backup');
	is_deeply([ hidden_files($restored) ], [], 'which it does not contain');
	$restored->start;
	is_deeply([ orphaned_files($restored) ], [], 'nor any others');
	$restored->stop;
	release($node, 'lazydrop-removal');
	nothing_is_left($node, 'when the server has removed them');
	run('DROP TABLESPACE ts');
}

# --- files that cannot be hidden --------------------------------------------

# If files cannot be renamed to temporary files, they are renamed to files of temporary
# relations.  If that is not possible either, they are removed immediately.
foreach my $both (0, 1)
{
	my @in_the_way =
	  map { "$data/base/$_" } ('pgsql_tmp', $both ? '0' : ());
	rmdir $_ foreach @in_the_way;
	append_to_file($_, "a file\n") foreach @in_the_way;
	my $path = create_table('t', 2, 8 * MB);
	run('CREATE DATABASE d');
	my $oid = $node->safe_psql('postgres',
		q{SELECT oid FROM pg_database WHERE datname = 'd'});
	# All files except PG_VERSION and similar ones.
	my $files = grep { m{/[0-9][^/]*$} } glob_files("$data/base/$oid");
	$files += 3;
	my $offset = -s $node->logfile;
	drop_and_hold('DROP TABLE t', 'DROP DATABASE d');
	run('CHECKPOINT');
	is_deeply(
		[ relation_files($node, $path), database_directories($node, $oid) ],
		[], 'what is dropped has lost its names');
	if ($both)
	{
		is(stats($node)->{pending_bytes}, 0, 'and is not pending any more');
		ok( $node->log_contains(
				qr/WARNING:  could not rename files of dropped relations in tablespace 1663: Not a directory/,
				$offset),
			'with a warning');
	}
	else
	{
		is(scalar(glob_files("$data/base/0")),
			$files, 'and is hidden elsewhere');
		cmp_ok(stats($node)->{pending_bytes},
			'>', 16 * MB, 'and still pending');
	}
	is(slurp_file("$data/base/pgsql_tmp"),
		"a file\n", 'and what is in the way is left alone');
	unlink @in_the_way;
	if (!$both)
	{
		$node->append_conf('postgresql.conf', 'lazydrop.removal_rate = 1');
		$node->stop('immediate');
		$node->start;
		cmp_ok(scalar(glob_files("$data/base/0")),
			'>', 2, 'a start leaves it to the worker');
		$node->append_conf('postgresql.conf', 'lazydrop.removal_rate = 0');
		$node->reload;
	}
	else
	{
		release($node, 'lazydrop-removal');
	}
	nothing_is_left($node, 'in the end');
	is(scalar(glob_files("$data/base/0")), 0, 'there, too');
}

# --- files that only the worker has failed to rename -------------------------

# The worker cannot rename the files of the last of many tables, and removes them slowly,
# while a checkpoint is at the first ones.  The checkpoint tries all by itself.
{
	my @in_the_way = map { "$data/base/$_" } qw(pgsql_tmp 0);
	rmdir $_ foreach @in_the_way;
	append_to_file($_, "a file\n") foreach @in_the_way;
	run(map { "CREATE TABLE empty_$_ ()" } 1 .. 150);
	my $path = create_table('t', 3, 40 * MB);
	run('CHECKPOINT');
	reload_with($node, 'lazydrop.removal_rate' => '1MB');
	drop_and_hold(
		'DROP TABLE t, ' . join(', ', map { "empty_$_" } 1 .. 150));
	hold_at($node, 'lazydrop-checkpoint-step');
	my $checkpoint = begin_checkpoint();
	$node->wait_for_event('checkpointer', 'lazydrop-checkpoint-step');
	release($node, 'lazydrop-removal');
	$node->wait_for_event('lazy drop worker', 'LazyDropThrottle');
	release($node, 'lazydrop-checkpoint-step');
	$checkpoint->quit;
	is_deeply([ grep { -s "$data/$_" } relation_files($node, $path) ],
		[], 'a checkpoint leaves none of its files');
	$node->stop('immediate');
	unlink @in_the_way;
	$node->start;
	reload_with($node, 'lazydrop.removal_rate' => 0);
	nothing_is_left($node, 'after a crash');
}

$node->stop;
unlike(
	slurp_file($node->logfile),
	qr/PANIC|TRAP|could not (open|read|fsync|write) file|invalid page/,
	'the log is clean');

done_testing();
