# Copyright (c) 2026, LazyDrop developers

# Commands copy, remove or need a directory in which files are still waiting for their
# removal: commands on tablespaces, copies and moves of databases, backups, promotion and
# pg_rewind (rules R10 and R16).  The worker is held on both servers.

use strict;
use warnings FATAL => 'all';

use File::Basename qw(dirname);
use File::Copy;
use FindBin;
use lib "$FindBin::RealBin/..";
use LazyDropFiles
  qw(minimum_recovery_point relation_files add_segments database_directories);
use LazyDropPair
  qw(start_pair on_primary catch_up hold_workers workers_are_at release_workers);
use LazyDropUtils
  qw(stats wait_for_nothing hold_at release need_injection_points
  stop_with_clean_log);
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::RecursiveCopy;
use PostgreSQL::Test::Utils;
use Test::More;

need_injection_points();

use constant MB => 1024 * 1024;

my ($primary, $standby) = start_pair(
	'fsync' => 'on',
	'log_checkpoints' => 'on',
	'wal_log_hints' => 'on',
	'wal_keep_size' => '1GB');
my @nodes = ($primary, $standby);

# The injection point at which the workers wait when they have found a drop.
my $held = 'lazydrop-removal';

sub path_of
{
	my ($database, $name) = @_;
	return $primary->safe_psql($database,
		"SELECT pg_relation_filepath('$name')");
}

# --- tablespaces ------------------------------------------------------------

{
	hold_workers($held);
	on_primary(
		q{CREATE TABLESPACE ts LOCATION ''},
		'CREATE TABLE t TABLESPACE ts AS SELECT generate_series(1, 1000) AS a',
		'CREATE DATABASE d TABLESPACE ts');
	my $oid = $primary->safe_psql('postgres',
		q{SELECT oid FROM pg_tablespace WHERE spcname = 'ts'});
	my $path = path_of('postgres', 't');
	$primary->safe_psql('postgres', 'DROP TABLE t');
	workers_are_at($held);
	$primary->safe_psql('postgres', 'DROP DATABASE d');
	catch_up();
	cmp_ok(scalar(relation_files($_, $path)),
		'>', 0, 'files of a table are pending on ' . $_->name)
	  foreach @nodes;
	my $offset = -s $standby->logfile;
	$primary->safe_psql('postgres', 'DROP TABLESPACE ts');
	pass('DROP TABLESPACE right after its last table');
	catch_up();
	ok( !-e $_->data_dir . "/pg_tblspc/$oid",
		'the directory is gone on ' . $_->name) foreach @nodes;
	unlike(
		slurp_file($standby->logfile, $offset),
		qr/could not remove|could not be removed/,
		'without a complaint in replay');
	release_workers($held);

	# The database leaves no files for which a checkpoint would be needed.
	on_primary(
		q{CREATE TABLESPACE ts LOCATION ''},
		'CREATE DATABASE d TABLESPACE ts');
	hold_workers($held);
	$primary->safe_psql('postgres', 'DROP DATABASE d');
	$offset = -s $primary->logfile;
	$primary->safe_psql('postgres', 'DROP TABLESPACE ts');
	unlike(
		slurp_file($primary->logfile, $offset),
		qr/checkpoint starting/,
		'DROP TABLESPACE right after its last database, without a checkpoint'
	);
	release_workers($held);
}

# Replay waits for the barrier that precedes the removal of the directory.
SKIP:
{
	skip 'no SIGSTOP on this platform', 1 if $windows_os;
	$primary->safe_psql('postgres', q{CREATE TABLESPACE ts LOCATION ''});
	catch_up();
	my $session = $standby->background_psql('postgres');
	my $pid = $session->query_safe('SELECT pg_backend_pid()');
	kill('STOP', $pid) == 1 or die "could not stop $pid: $!";
	my $start = $primary->lsn('insert');
	$primary->safe_psql('postgres', 'DROP TABLESPACE ts');
	$standby->wait_for_event('startup', 'ProcSignalBarrier');
	my $minimum = minimum_recovery_point($standby);
	kill('CONT', $pid);
	$session->quit;

	my ($dump, $err) = run_command(
		[
			'pg_waldump',
			'--path' => $primary->data_dir . '/pg_wal',
			'--rmgr' => 'Tablespace',
			'--start' => $start,
			'--end' => $primary->lsn('flush')
		]);
	my ($record) = $dump =~ m{lsn: ([0-9A-F]+/[0-9A-F]+), .* desc: DROP}
	  or die "no record in: $dump$err";
	is( $primary->safe_psql(
			'postgres', "SELECT '$minimum'::pg_lsn > '$record'::pg_lsn"),
		't',
		'the minimum recovery point is past the record before the directory goes'
	);
	catch_up();
}

# Two processes may remove the same directory.  The second one finds it gone, and must not
# create anything in the tablespace, which may be about to be dropped.
{
	on_primary(
		q{CREATE TABLESPACE ts LOCATION ''},
		'CREATE DATABASE d TABLESPACE ts');
	my $directory =
	  $primary->data_dir . '/'
	  . $primary->safe_psql('d',
		q{SELECT regexp_replace(pg_relation_filepath('pg_class'), '/\d+$', '')}
	  );
	hold_at($primary, $held);
	$primary->safe_psql('postgres', 'DROP DATABASE d');
	$primary->wait_for_event('lazy drop worker', $held);
	unlink(glob("'$directory'/*"));
	hold_at($primary, 'lazydrop-step');
	release($primary, $held);
	$primary->wait_for_event('lazy drop worker', 'lazydrop-step');
	rmdir($directory) or die "could not remove directory $directory: $!";
	release($primary, 'lazydrop-step');
	wait_for_nothing($primary);
	is_deeply([ glob("'" . dirname($directory) . "'/*") ],
		[], 'a directory that another process removes leaves nothing');
	$primary->safe_psql('postgres', 'DROP TABLESPACE ts');
	catch_up();
}

# --- copies of databases ----------------------------------------------------

# Files of a relation that was dropped in a template are not copied, on either server.
{
	$primary->safe_psql('postgres', 'CREATE DATABASE source');
	$primary->safe_psql('source',
		'CREATE TABLE t AS SELECT generate_series(1, 1000) AS a');
	$primary->safe_psql('source', 'CREATE TABLE u AS SELECT 1 AS a');
	catch_up();
	hold_workers($held);
	my $path = path_of('source', 't');
	add_segments($_, $path, 2, MB) foreach @nodes;
	$primary->safe_psql('source', 'DROP TABLE t');
	workers_are_at($held);
	$primary->safe_psql('postgres',
		'CREATE DATABASE copy TEMPLATE source STRATEGY file_copy');
	catch_up();
	my $oid = $primary->safe_psql('postgres',
		q{SELECT oid FROM pg_database WHERE datname = 'copy'});
	my $copy = $path =~ s{^base/[0-9]+}{base/$oid}r;

	foreach my $node (@nodes)
	{
		is_deeply([ relation_files($node, $copy) ],
			[], 'a dropped table is not copied on ' . $node->name);
		is($node->safe_psql('copy', 'SELECT a FROM u'),
			1, 'one that lives is on ' . $node->name);
	}
	release_workers($held);
}

sub has_all_rows
{
	my ($node, $what) = @_;
	is( $node->safe_psql(
			'moving', q{SELECT string_agg(a::text, ' ' ORDER BY a) FROM u}),
		'0 1 2 3 4',
		$what);
	return;
}

# A database is moved back and forth, with drops in it and dirty pages.
{
	$primary->safe_psql('postgres', q{CREATE TABLESPACE ts LOCATION ''});
	$primary->safe_psql('postgres', 'CREATE DATABASE moving');
	hold_workers($held);
	$primary->safe_psql('moving', 'CREATE TABLE u AS SELECT 0 AS a');
	foreach my $round (1 .. 3)
	{
		$primary->safe_psql(
			'moving', qq{
			CREATE TABLE t AS SELECT generate_series(1, 1000) AS a;
			DROP TABLE t;
			INSERT INTO u VALUES ($round)});
		$primary->safe_psql('postgres',
			'ALTER DATABASE moving SET TABLESPACE '
			  . ($round % 2 ? 'ts' : 'pg_default'));
	}
	$primary->safe_psql('moving', 'INSERT INTO u VALUES (4)');

	# A table is moved back into the directory that is to be removed.
	$primary->safe_psql('moving', 'ALTER TABLE u SET TABLESPACE pg_default');
	catch_up();
	has_all_rows($_, 'a database moved there and back on ' . $_->name)
	  foreach @nodes;
	release_workers($held);
	$primary->safe_psql('postgres', 'CHECKPOINT');
	catch_up();
	$_->restart foreach @nodes;
	catch_up();
	has_all_rows($_, 'and after a restart of ' . $_->name) foreach @nodes;
}

# --- a backup while files are pending ---------------------------------------

# A backup taken while files are pending contains them, and its recovery removes them, no
# matter on which server it was taken.
foreach my $node (@nodes)
{
	my $name = $node->name;
	$primary->safe_psql('postgres',
		'CREATE TABLE t AS SELECT generate_series(1, 1000) AS a');
	$primary->safe_psql('postgres', 'CREATE DATABASE d');
	$primary->safe_psql('postgres', 'CHECKPOINT');
	catch_up();
	$standby->safe_psql('postgres', 'CHECKPOINT');
	my $path = path_of('postgres', 't');
	my $oid = $primary->safe_psql('postgres',
		q{SELECT oid FROM pg_database WHERE datname = 'd'});
	add_segments($node, $path, 2, MB);
	hold_workers($held);
	my $session = $node->background_psql('postgres');
	$session->query_safe(q{SELECT pg_backup_start('in the middle', true)});
	$primary->safe_psql('postgres', 'DROP TABLE t');
	workers_are_at($held);
	$primary->safe_psql('postgres', 'DROP DATABASE d');
	catch_up();
	my $backup = "middle_$name";
	my $to = $primary->backup_dir . "/$backup";
	mkdir $primary->backup_dir;
	PostgreSQL::Test::RecursiveCopy::copypath(
		$node->data_dir,
		$to,
		filterfn => sub {
			return $_[0] !~ m{^(postmaster\.(pid|opts)|log|pg_replslot/.+)$};
		});
	copy($node->data_dir . '/global/pg_control', "$to/global/pg_control");
	my $label = $session->query_safe(
		q{SELECT labelfile FROM pg_backup_stop(wait_for_archive => false)});
	$session->quit;
	append_to_file("$to/backup_label", "$label\n");
	cmp_ok(scalar(grep { -e "$to/$_" } relation_files($node, $path)),
		'>', 0, "a backup of $name has the files");
	release_workers($held);

	my $restored = PostgreSQL::Test::Cluster->new("restored_from_$name");
	$restored->init_from_backup($primary, $backup, has_streaming => 1);
	$restored->start;
	$primary->wait_for_replay_catchup($restored);
	$restored->promote;
	is_deeply(
		[
			relation_files($restored, $path),
			database_directories($restored, $oid)
		],
		[],
		"they are gone after recovery from a backup of $name");
	stop_with_clean_log($restored);
}

# --- promotion, and pg_rewind -----------------------------------------------

# Promotion leaves the files to the worker, but none has its own name any more.  The old
# primary also has files pending, of a drop that no other server has seen.  Then it is
# rewound.
{
	on_primary(
		'CREATE TABLE t AS SELECT generate_series(1, 1000) AS a',
		'CREATE UNLOGGED TABLE u AS SELECT generate_series(1, 1000) AS a',
		'CREATE TABLE v AS SELECT generate_series(1, 1000) AS a',
		'CREATE UNLOGGED TABLE w AS SELECT 1 AS a',
		'CREATE DATABASE d');
	my $oid = $primary->safe_psql('postgres',
		q{SELECT oid FROM pg_database WHERE datname = 'd'});
	my %path = map { $_ => path_of('postgres', $_) } qw(t u v);
	catch_up();
	add_segments($standby, $path{t}, 2, 40 * MB);
	hold_workers($held);
	$primary->safe_psql('postgres', 'DROP TABLE t, u');
	workers_are_at($held);
	$primary->safe_psql('postgres', 'DROP DATABASE d');
	catch_up();
	$standby->promote;
	is_deeply(
		[
			(map { relation_files($standby, $path{$_}) } qw(t u)),
			database_directories($standby, $oid)
		],
		[],
		'promotion leaves no name of what is pending');
	release($standby, $held);
	is($standby->safe_psql('postgres', 'SELECT count(*) FROM w'),
		0, 'and resets the unlogged table that lives');
	is($standby->safe_psql('postgres', 'SELECT count(*) FROM v'),
		1000, 'a table that will be rewound');

	# A worker that is held at an injection point would delay the shutdown, so make it
	# slow instead.
	add_segments($primary, $path{v}, 3, 64 * MB);
	$primary->append_conf('postgresql.conf', 'lazydrop.removal_rate = 1');
	$primary->reload;
	$primary->poll_query_until('postgres',
		q{SELECT current_setting('lazydrop.removal_rate') = '1MB'});
	release($primary, $held);
	$primary->safe_psql('postgres', 'DROP TABLE v');
	$primary->stop('fast');
	is_deeply([ map { relation_files($primary, $_) } values %path ],
		[], 'shutdown leaves no name of what is pending');
	$standby->safe_psql('postgres', 'CHECKPOINT');
	command_ok(
		[
			'pg_rewind',
			'--source-server' => $standby->connstr('postgres'),
			'--target-pgdata' => $primary->data_dir
		],
		'pg_rewind');
	$primary->set_standby_mode();
	$primary->enable_streaming($standby);
	$primary->append_conf('postgresql.conf', 'port = ' . $primary->port);
	$primary->start;
	$standby->wait_for_replay_catchup($primary);
	is($primary->safe_psql('postgres', 'SELECT count(*) FROM v'),
		1000, 'brings the table back');
	is_deeply([ map { relation_files($primary, $path{$_}) } qw(t u) ],
		[], 'and no files of the others');
}

stop_with_clean_log($_) foreach @nodes;

# --- a directory that is unreadable for a moment ----------------------------

SKIP:
{
	my $node = $standby;
	skip 'root reads any directory', 3 if $> == 0;
	$node->start;
	$node->safe_psql('postgres', 'CREATE DATABASE d');
	my $oid = $node->safe_psql('postgres',
		q{SELECT oid FROM pg_database WHERE datname = 'd'});
	hold_at($node, $held);
	$node->safe_psql('postgres', 'DROP DATABASE d');
	$node->wait_for_event('lazy drop worker', $held);
	my $directory = $node->data_dir . "/base/$oid";
	chmod 0, $directory or die "could not change mode of $directory: $!";
	my $offset = -s $node->logfile;
	release($node, $held);
	$node->wait_for_log(qr/WARNING: .*could not read directory/, $offset);
	$node->safe_psql('postgres', 'CHECKPOINT');
	ok(-e $directory, 'a directory that cannot be read is there');
	is(stats($node)->{pending_databases}, 1, 'and its entry');
	chmod 0700, $directory or die "could not change mode of $directory: $!";
	wait_for_nothing($node);
	ok(!-e $directory, 'it is removed as soon as it can be');
}

done_testing();
