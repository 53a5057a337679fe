# Copyright (c) 2026, LazyDrop developers

# If space is needed, files of dropped relations are removed before an error is reported
# (rule R15).  The test mounts a small file system in a user namespace.

use strict;
use warnings FATAL => 'all';

use Cwd qw(abs_path);
use FindBin;
use lib "$FindBin::RealBin/..";
use LazyDropUtils qw(stats wait_for_stats hold_at release wait_for_nothing
  need_injection_points need_mounts start_quiet_node);
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

use constant MB => 1024 * 1024;

BEGIN
{
	need_injection_points();
	need_mounts();
}

my $disk = abs_path(PostgreSQL::Test::Utils::tempdir());
system_or_bail('mount', '-t', 'tmpfs', '-o', 'size=200m', 'tmpfs', $disk);

# A mounted file system would prevent the removal of the directory.
END
{
	my $status = $?;
	system('umount', '--lazy', $disk) if defined $disk;
	$? = $status;
}

# Create a table that leaves less than 40 MB free on the disk, without much WAL.  Drop it,
# and leave its files.
sub drop_large_table
{
	my ($node, $megabytes) = @_;
	$node->safe_psql(
		'postgres', qq{
		CREATE TABLE large (a text) TABLESPACE ts;
		ALTER TABLE large ALTER a SET STORAGE plain});
	my $path =
	  $node->safe_psql('postgres', q{SELECT pg_relation_filepath('large')});
	$path = $node->data_dir . "/$path";
	foreach my $segno (1, 2)
	{
		open(my $file, '>', "$path.$segno")
		  or die "could not create $path.$segno: $!";
		print $file 'x' x MB foreach 1 .. $megabytes / 2;
		close($file) or die "could not write $path.$segno: $!";
	}
	$node->safe_psql('postgres', 'DROP TABLE large');
	$node->wait_for_event('lazy drop worker', 'lazydrop-removal');
	ok(-e "$path.2", 'its files are there');
	return $path;
}

# --- relations and temporary files ------------------------------------------

mkdir "$disk/ts" or die "could not create $disk/ts: $!";
my $node = start_quiet_node(
	'node',
	'fsync' => 'off',
	'max_wal_size' => '4GB',
	'temp_tablespaces' => 'ts',
	'work_mem' => '64kB');
$node->safe_psql('postgres', 'CREATE EXTENSION injection_points');
$node->safe_psql('postgres', "CREATE TABLESPACE ts LOCATION '$disk/ts'");
foreach my $case (
	[
		'a large table',
		q{CREATE TABLE t TABLESPACE ts AS SELECT repeat('x', 1000) AS a FROM generate_series(1, 70000)}
	],
	[
		'single blocks',
		q{CREATE TABLE t (a text) TABLESPACE ts; ALTER TABLE t ALTER a SET STORAGE plain;
		DO $$ BEGIN FOR i IN 1 .. 10000 LOOP INSERT INTO t VALUES (repeat('x', 7000)); END LOOP; END $$}
	],
	[
		'an index',
		q{CREATE TABLE t AS SELECT a FROM generate_series(1, 3500000) AS a;
		CREATE INDEX ON t (a) TABLESPACE ts}
	],
	[
		'a temporary file',
		q{SELECT count(*) FROM (SELECT a FROM generate_series(1, 4000000) AS a ORDER BY hashint4(a) OFFSET 1) AS s}
	])
{
	my ($what, $sql) = @$case;
	hold_at($node, 'lazydrop-removal');
	drop_large_table($node, 170);
	is($node->psql('postgres', $sql, on_error_die => 0),
		0, "there is space for $what");
	my $stats = stats($node);
	cmp_ok($stats->{pending_bytes},
		'<', 170 * MB, 'since some of the files have been removed');
	release($node, 'lazydrop-removal');
	$node->safe_psql('postgres', 'DROP TABLE IF EXISTS t');
	wait_for_stats($node, q{s->>'pending_relations' = '0'});
	$node->safe_psql('postgres', 'CHECKPOINT');
}

# Files are found regardless of the order in which they were hidden.  CREATE DATABASE
# hides pending files of the database that it copies.  Its checkpoint then hides files
# that were dropped earlier, here on the full file system.
{
	$node->safe_psql('postgres', 'CREATE DATABASE source');
	$node->safe_psql('source',
		'CREATE TABLE elsewhere AS SELECT generate_series(1, 100000) AS a');
	hold_at($node, 'lazydrop-removal');
	my $path = drop_large_table($node, 170);
	$node->safe_psql('source', 'DROP TABLE elsewhere');
	$node->safe_psql('postgres',
		'CREATE DATABASE copy TEMPLATE source STRATEGY file_copy');
	ok(!-e "$path.2", 'its files are hidden, those of another table before');
	is( $node->psql(
			'postgres',
			q{SELECT count(*) FROM (SELECT a FROM generate_series(1, 4000000) AS a ORDER BY hashint4(a) OFFSET 1) AS s},
			on_error_die => 0),
		0,
		'there is space for a temporary file');
	release($node, 'lazydrop-removal');
	$node->safe_psql('postgres', "DROP DATABASE $_") foreach qw(source copy);
	wait_for_nothing($node);
	$node->safe_psql('postgres', 'CHECKPOINT');
}

# A temporary file does not cause files on another file system to be removed.
{
	hold_at($node, 'lazydrop-removal');
	$node->safe_psql('postgres',
		'CREATE TABLE elsewhere AS SELECT generate_series(1, 100000) AS a');
	$node->safe_psql('postgres', 'DROP TABLE elsewhere');
	$node->wait_for_event('lazy drop worker', 'lazydrop-removal');
	my $before = stats($node)->{pending_bytes};
	cmp_ok($before, '>', MB, 'files are pending on another file system');
	my ($out, $err) = ('', '');
	isnt(
		$node->psql(
			'postgres',
			q{SELECT count(*) FROM (SELECT a FROM generate_series(1, 20000000) AS a ORDER BY hashint4(a) OFFSET 1) AS s},
			stderr => \$err),
		0,
		'a temporary file is too large');
	like($err, qr/No space left on device/, 'for its file system');
	is(stats($node)->{pending_bytes}, $before, 'and they still are');
	release($node, 'lazydrop-removal');
	wait_for_stats($node, q{s->>'pending_relations' = '0'});
}

# Create a database with a file of the given size.  Drop it, and leave its files.  Returns
# its directory.
sub drop_large_database
{
	my ($megabytes) = @_;
	$node->safe_psql('postgres', 'CREATE DATABASE d TABLESPACE ts');
	my ($directory) = glob(
		"$disk/ts/PG_*/"
		  . $node->safe_psql(
			'postgres', q{SELECT oid FROM pg_database WHERE datname = 'd'}));
	open(my $file, '>', "$directory/999999")
	  or die "could not create a file: $!";
	print $file 'x' x MB foreach 1 .. $megabytes;
	close($file) or die "could not write a file: $!";
	$node->safe_psql('postgres', 'DROP DATABASE d');
	$node->wait_for_event('lazy drop worker', 'lazydrop-removal');
	return $directory;
}

# Test the files of a database.
{
	hold_at($node, 'lazydrop-removal');
	my $directory = drop_large_database(160);
	is( $node->psql(
			'postgres',
			q{CREATE TABLE t TABLESPACE ts AS SELECT repeat('x', 1000) AS a FROM generate_series(1, 70000)}
		),
		0,
		'there is space that a dropped database has');
	release($node, 'lazydrop-removal');
	wait_for_stats($node, q{s->>'pending_databases' = '0'});
	is_deeply([ glob("$directory*") ], [], 'and its directory goes');
	$node->safe_psql('postgres', 'DROP TABLE t; CHECKPOINT' =~ s/; /;\n/r);
}

# Other processes remove all pending files while a session looks for space.  Before that,
# the session found nothing to remove.
sub others_make_space
{
	my ($what, $drop, $others) = @_;
	my $session = $node->background_psql('postgres', on_error_stop => 0);
	$session->query(
		q{CREATE TABLE t TABLESPACE ts AS SELECT repeat('x', 1000) AS a FROM generate_series(1, 300000)}
	);
	like(
		$session->{stderr},
		qr/No space left on device/,
		"$what: there was no space");
	$session->{stderr} = '';
	wait_for_stats($node, q{s->>'pending_relations' = '0'});

	hold_at($node, 'lazydrop-removal');
	my $rows = $drop->();
	$session->query(
		q{SELECT injection_points_set_local();
		SELECT injection_points_attach('lazydrop-free-space', 'wait');});
	$session->query_until(
		qr/begun/, qq{\\echo begun
		CREATE TABLE t TABLESPACE ts AS SELECT repeat('x', 1000) AS a FROM generate_series(1, $rows);
	});
	$node->wait_for_event('client backend', 'lazydrop-free-space');
	$others->();
	release($node, 'lazydrop-free-space');
	is($session->query('SELECT count(*) FROM t'),
		$rows, "$what: space that others make is found");
	$session->quit;
	$node->safe_psql('postgres', 'DROP TABLE t');
	wait_for_nothing($node);
	$node->safe_psql('postgres', 'CHECKPOINT');
	return;
}

others_make_space(
	'a worker',
	sub {
		drop_large_table($node, 170);
		return 70000;
	},
	sub {
		release($node, 'lazydrop-removal');
		wait_for_nothing($node);
	});
$node->safe_psql('postgres',
	'CREATE TABLE other (a text) TABLESPACE ts; ALTER TABLE other ALTER a SET STORAGE plain'
);
others_make_space(
	'another process that needs some',
	sub {
		# The database is small enough to be removed in one step.
		drop_large_database(50);
		return 140000;
	},
	sub {
		$node->safe_psql('postgres',
			q{INSERT INTO other SELECT repeat('x', 7000) FROM generate_series(1, 500)}
		);
		release($node, 'lazydrop-removal');
	});
$node->safe_psql('postgres', 'DROP TABLE other');
wait_for_nothing($node);

# A process that looks for space may hold locks, so it does not report files that cannot
# be removed to its client.
{
	hold_at($node, 'lazydrop-removal');
	my $path = drop_large_table($node, 60);
	unlink($path) or die "could not remove $path: $!";
	mkdir($path) or die "could not create $path: $!";
	my $offset = -s $node->logfile;
	my ($ret, $out, $err) = $node->psql('postgres',
		q{CREATE TABLE t TABLESPACE ts AS SELECT repeat('x', 1000) AS a FROM generate_series(1, 130000)}
	);
	is($ret, 0, 'there is space behind a file that cannot be removed');
	is($err, '', 'of which the client is not told');
	ok( $node->log_contains(
			qr/LOG:  could not truncate file "[^"]*": Is a directory/,
			$offset),
		'but the log');
	rmdir($path) or die "could not remove $path: $!";
	release($node, 'lazydrop-removal');
	$node->safe_psql('postgres', 'DROP TABLE t');
	wait_for_stats($node, q{s->>'pending_relations' = '0'});
}

# If there is nothing left to remove, the usual error is reported.
{
	hold_at($node, 'lazydrop-removal');
	drop_large_table($node, 100);
	my ($ret, $out, $err) = $node->psql('postgres',
		q{CREATE TABLE t TABLESPACE ts AS SELECT repeat('x', 1000) AS a FROM generate_series(1, 300000)}
	);
	isnt($ret, 0, 'there is no space for a table that is too large');
	like(
		$err,
		qr/could not extend file .*No space left on device/,
		'which is an error');
	is(stats($node)->{pending_bytes}, 0, 'after all files have been removed');
	release($node, 'lazydrop-removal');
}
$node->stop;
unlike(slurp_file($node->logfile), qr/PANIC|TRAP/, 'the log is clean');

# --- WAL --------------------------------------------------------------------

# Without space for WAL, the server would PANIC.
{
	mkdir "$disk/ts2" or die "could not create $disk/ts2: $!";
	my $wal = PostgreSQL::Test::Cluster->new('wal');
	$wal->init(
		extra => [ '--waldir' => "$disk/wal", '--wal-segsize' => '1' ]);
	$wal->append_conf(
		'postgresql.conf', q{
		autovacuum = off
		checkpoint_timeout = 1h
		max_wal_size = 10GB
		lazydrop.pass_delay = 0
		wal_level = replica});
	$wal->start;
	$wal->safe_psql('postgres', 'CREATE EXTENSION injection_points');
	$wal->safe_psql('postgres', "CREATE TABLESPACE ts LOCATION '$disk/ts2'");
	hold_at($wal, 'lazydrop-removal');
	drop_large_table($wal, 150);
	my $start = $wal->lsn('insert');
	$wal->psql('postgres',
		q{SELECT count(pg_logical_emit_message(false, 'x', repeat('x', 1000000))) FROM generate_series(1, 100)}
	);
	is( $wal->safe_psql(
			'postgres', "SELECT pg_current_wal_lsn() - '$start' > 95000000"),
		't',
		'there is space for WAL');
	release($wal, 'lazydrop-removal');
	$wal->stop;
	unlike(slurp_file($wal->logfile),
		qr/PANIC|TRAP|ERROR/, 'the log is clean');
}

done_testing();
