# Copyright (c) 2026, LazyDrop developers

# A file system is full, or becomes read-only.  If LAZYDROP_STOCK is an installation of
# stock PostgreSQL, the test also shows where stock behaves in the same way.  (Simpler
# cases are in 034_space.pl.)
#
# The file systems are mounted in a user namespace.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/..";
use LazyDropFiles qw(relation_files database_directories orphaned_files);
use LazyDropUtils
  qw(stats hold_at release wait_until need_injection_points need_mounts
  start_quiet_node wait_for_nothing);
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

use constant MB => 1024 * 1024;

BEGIN
{
	need_injection_points();
	need_mounts();
}

my $stock = $ENV{LAZYDROP_STOCK};
$stock = undef unless defined $stock && -x "$stock/bin/postgres";
note 'LAZYDROP_STOCK names no installation, so nothing is compared with stock'
  unless defined $stock;

my %mounted;
my @nodes_there;

sub mount
{
	my ($target, @arguments) = @_;
	system_or_bail('mount', @arguments, $target);
	push @{ $mounted{$target} }, 1;
	return;
}

sub unmount
{
	foreach my $target (@_)
	{
		system_or_bail('umount', $target) foreach @{ $mounted{$target} };
		delete $mounted{$target};
	}
	return;
}

# A mounted file system would prevent the removal of the directory; and a server whose
# directory is hidden by a mount could not be stopped.
END
{
	my $status = $?;
	foreach my $node (@nodes_there)
	{
		$node->teardown_node(fail_ok => 1);
	}
	foreach my $target (keys %mounted)
	{
		system('umount', '--lazy', $target) foreach @{ $mounted{$target} };
	}
	$? = $status;
}

# From now on, no file in these directories can be opened for writing.  Exceptions are the
# top directory, which is the server's working directory, and files that the server has
# open.
sub make_read_only
{
	my (@directories) = @_;
	foreach my $directory (@directories)
	{
		mount($directory, '--bind', $directory);
		system_or_bail('mount', '-o', 'remount,bind,ro', $directory);
	}
	return;
}

sub new_node
{
	my ($name, $install) = @_;
	my $node = PostgreSQL::Test::Cluster->new($name,
		$install eq 'stock' ? (install_path => $stock) : ());
	$node->init;
	$node->append_conf(
		'postgresql.conf', q{
		allow_in_place_tablespaces = on
		autovacuum = off
		checkpoint_timeout = 1h
		lazydrop.lookup_limit = 0
		lazydrop.pass_delay = 1min});
	push @nodes_there, $node;
	$node->start;
	$node->safe_psql('postgres', 'CREATE EXTENSION injection_points')
	  if $install ne 'stock';
	return $node;
}

# --- everything is read-only at shutdown ------------------------------------

# The shutdown fails, as in stock, but the server stops.  The next start removes the files
# of dropped relations.
foreach
  my $case ([ 'LazyDrop', 'all' ], [ 'LazyDrop', 'base' ], [ 'stock', 'all' ])
{
	my ($install, $which) = @$case;
	my $what = "read-only at shutdown, $install, $which";
  SKIP:
	{
		skip 'no installation of stock PostgreSQL', 5
		  if $install eq 'stock' && !defined $stock;
		my $node = new_node("read_only_${which}_$install", $install);
		$node->safe_psql(
			'postgres', q{
			CREATE TABLE kept AS SELECT generate_series(1, 1000) AS a;
			CREATE TABLE t (a int PRIMARY KEY);
			INSERT INTO t SELECT generate_series(1, 1000);
			CREATE DATABASE d;
			CHECKPOINT;
			INSERT INTO t SELECT generate_series(1001, 2000);
			INSERT INTO kept SELECT generate_series(1001, 2000)});
		my $oid = $node->safe_psql('postgres',
			q{SELECT oid FROM pg_database WHERE datname = 'd'});
		my $path =
		  $node->safe_psql('postgres', q{SELECT pg_relation_filepath('t')});
		hold_at($node, 'lazydrop-removal') if $install ne 'stock';
		$node->safe_psql('postgres', "DROP TABLE t;\nDROP DATABASE d");
		cmp_ok(-s $node->data_dir . "/$path",
			'>', 0, "$what: files are pending")
		  if $install ne 'stock';
		my @directories =
		  grep { -d }
		  glob(
			"'@{[ $node->data_dir ]}'/" . ($which eq 'all' ? '*' : $which));
		my $session = $node->background_psql('postgres');
		make_read_only(@directories);
		my $offset = -s $node->logfile;
		$session->query_safe(
			q{SELECT injection_points_detach('lazydrop-removal');
			SELECT injection_points_wakeup('lazydrop-removal')})
		  if $install ne 'stock';
		$session->quit;
		ok($node->stop('fast', fail_ok => 1), "$what: it stops");
		like(
			slurp_file($node->logfile, $offset),
			qr/(PANIC|FATAL|ERROR): .*Read-only file system/,
			"$what: with an error");
		unmount(@directories);
		$node->start;
		like(
			slurp_file($node->logfile, $offset),
			qr/automatic recovery in progress/,
			"$what: the next start recovers");
		is( $node->safe_psql(
				'postgres', "CHECKPOINT;\nSELECT count(*) FROM kept"),
			2000,
			"$what: rows are there");
		is_deeply(
			[ orphaned_files($node), database_directories($node, $oid) ],
			[], "$what: and no file is left");
		$node->stop;
	}
}

# --- a tablespace is read-only ----------------------------------------------

# Files there cannot be removed and are left behind; the log has their names.  This does
# not prevent a clean shutdown of the server.  In stock, the drop causes a PANIC.
foreach my $case (
	[ 'LazyDrop', 'at shutdown' ],
	[ 'LazyDrop', 'at the drop' ],
	[ 'stock', 'at the drop' ])
{
	my ($install, $when) = @$case;
	my $what = "a tablespace that is read-only $when, $install";
  SKIP:
	{
		skip 'no installation of stock PostgreSQL', 1
		  if $install eq 'stock' && !defined $stock;
		my $node =
		  new_node('tablespace_' . $when =~ s/ /_/gr . "_$install", $install);
		$node->safe_psql('postgres', $_)
		  foreach (
			q{CREATE TABLESPACE ts LOCATION ''},
			'CREATE TABLE t TABLESPACE ts AS SELECT generate_series(1, 1000) AS a',
			'VACUUM t',
			'CHECKPOINT');
		my $path =
		  $node->safe_psql('postgres', q{SELECT pg_relation_filepath('t')});
		my $directory = $node->data_dir . '/pg_tblspc';
		my @files = relation_files($node, $path);
		make_read_only($directory) if $when eq 'at the drop';
		if ($install eq 'stock')
		{
			$node->psql('postgres', 'DROP TABLE t');
			$node->wait_for_log(
				qr/PANIC:  cannot abort transaction \d+, it was already committed/
			);
			pass("$what: PANIC");
			wait_until(sub { !-e $node->data_dir . '/postmaster.pid' });
			$node->_update_pid(0);
			unmount($directory);
			next;
		}
		cmp_ok(scalar(@files), '>=', 3, "$what: a table with files");
		hold_at($node, 'lazydrop-removal');
		$node->safe_psql('postgres', 'DROP TABLE t');
		make_read_only($directory) if $when eq 'at shutdown';
		release($node, 'lazydrop-removal');
		ok($node->stop('fast', fail_ok => 1), "$what: the server stops");
		my $log = slurp_file($node->logfile);
		unlike(
			$log,
			qr/PANIC|abnormal database system shutdown/,
			"$what: with a clean shutdown");
		is_deeply([ relation_files($node, $path) ],
			\@files, "$what: files stay");
		my @unnamed =
		  grep { $log !~ /could not (remove|truncate) file "\Q$_\E"/ } @files;
		is_deeply(\@unnamed, [], "$what: and the log has their names");
		unmount($directory);
	}
}

# --- a full disk ------------------------------------------------------------

# Move a directory to a small file system.
sub onto_small_disk
{
	my ($directory, $megabytes) = @_;
	my $new = PostgreSQL::Test::Utils::tempdir();
	mount($new, '-t', 'tmpfs', '-o', "size=${megabytes}m,mode=0700", 'tmpfs');
	system_or_bail('cp', '-a', "$directory/.", $new);
	mount($directory, '--bind', $new);
	return;
}

# Fill the file system, except for this number of megabytes.
sub fill_disk
{
	my ($directory, $megabytes) = @_;
	my $name = "$directory/filler";
	open(my $file, '>', $name) or die "could not create $name: $!";
	$file->autoflush(1);
	my $block = "\0" x 65536;
	while (print $file $block) { }
	my $size = -s $name;
	close($file);
	truncate($name, $size - $megabytes * MB)
	  or die "could not truncate $name: $!";
	return;
}

sub empty_disk
{
	my ($directory) = @_;
	unlink("$directory/filler") == 1 or die "could not remove filler: $!";
	return;
}

{
	my $source = start_quiet_node(
		'source',
		'max_wal_size' => '4GB',
		'wal_keep_size' => '1GB',
		'wal_recycle' => 'off');
	$source->safe_psql('postgres', 'CREATE EXTENSION injection_points');
	$source->backup('backup');
	my $full = PostgreSQL::Test::Cluster->new('full');
	$full->init_from_backup($source, 'backup', has_streaming => 1);
	my $disk = $full->data_dir;
	# WAL must fail for lack of space when it is written, not when its file is created.
	$full->append_conf('postgresql.conf',
		"wal_keep_size = 0\nwal_init_zero = off\n");
	onto_small_disk($disk, 400);
	push @nodes_there, $full;
	$full->start;
	my $log_is = sub {
		my ($pattern, $what, $offset) = @_;
		unlike(slurp_file($full->logfile, $offset), $pattern, $what);
		return;
	};

	# Drop a large table whose files remain.
	my $drop_large = sub {
		my ($node, $megabytes) = @_;
		$node->safe_psql('postgres', 'CREATE TABLE large (a int)');
		my $path = $node->safe_psql('postgres',
			q{SELECT pg_relation_filepath('large')});
		$source->wait_for_replay_catchup($full) if $node == $source;
		hold_at($full, 'lazydrop-removal');
		open(my $file, '>', "$disk/$path.1")
		  or die "could not create a file: $!";
		print $file 'x' x MB foreach 1 .. $megabytes;
		close($file) or die "could not write a file: $!";
		$node->safe_psql('postgres', 'DROP TABLE large');
		$source->wait_for_replay_catchup($full) if $node == $source;
		$full->wait_for_event('lazy drop worker', 'lazydrop-removal');
		return "$disk/$path.1";
	};
	my $rows = sub {
		my ($n) = @_;
		return qq{SELECT repeat('x', 1000) AS a FROM generate_series(1, $n)};
	};

	# WAL is received while replay is paused.
	my $what = 'a full disk on a standby';
	$drop_large->($source, 180);
	fill_disk($disk, 4);
	my $offset = -s $full->logfile;
	my $pending = stats($full)->{pending_bytes};
	cmp_ok($pending, '>=', 180 * MB, "$what: files are pending");
	$full->safe_psql('postgres', 'SELECT pg_wal_replay_pause()');
	$source->safe_psql('postgres', 'CREATE TABLE t AS ' . $rows->(60000));
	my $end = $source->lsn('flush');
	$source->wait_for_catchup($full, 'flush', $end);
	my $left = stats($full)->{pending_bytes};
	cmp_ok(
		$left, '<=',
		$pending - 40 * MB,
		"$what: WAL that is received takes their space");

	# Blocks are replayed.
	fill_disk($disk, 4);
	$full->safe_psql('postgres', 'SELECT pg_wal_replay_resume()');
	$source->wait_for_replay_catchup($full);
	cmp_ok(
		stats($full)->{pending_bytes},
		'<=',
		$left - 40 * MB,
		"$what: and so does replay");
	is($full->safe_psql('postgres', 'SELECT count(*) FROM t'),
		60000, "$what: which goes on");
	$log_is->(
		qr/PANIC|FATAL|ERROR|WARNING|No space/,
		"$what: the log is clean", $offset);
	release($full, 'lazydrop-removal');
	wait_for_nothing($full);

	# A database is copied.
	empty_disk($disk);
	$source->safe_psql('postgres', 'CHECKPOINT');
	$source->wait_for_replay_catchup($full);
	$full->safe_psql('postgres', 'CHECKPOINT');
	$source->safe_psql('postgres', 'CREATE DATABASE template');
	$source->safe_psql('template', 'CREATE TABLE t AS ' . $rows->(20000));
	$drop_large->($source, 60);
	fill_disk($disk, 1);
	$source->safe_psql('postgres',
		'CREATE DATABASE copy TEMPLATE template STRATEGY file_copy');
	$end = $source->lsn('flush');
	# Ask the primary, because a connection needs space, too, with EXEC_BACKEND.
	my $replayed;
	wait_until(
		sub {
			$replayed = $source->safe_psql('postgres',
				"SELECT bool_or(replay_lsn >= '$end') FROM pg_stat_replication"
			);
			return $replayed eq 't' || !-e "$disk/postmaster.pid";
		});
	is($replayed, 't', "$what: so does replay of a copy");
	empty_disk($disk);
	release($full, 'lazydrop-removal');
	$source->wait_for_replay_catchup($full);
	is($full->safe_psql('copy', 'SELECT count(*) FROM t'),
		20000, "$what: the copy is there");
	wait_for_nothing($full);

	# If there is nothing left to remove, replay stops, and so does the server, as in
	# stock.  It continues when there is space again.  A restartpoint that is under way
	# would remove WAL.
	$full->safe_psql('postgres', 'CHECKPOINT');
	$full->safe_psql('postgres', 'SELECT pg_wal_replay_pause()');
	$source->safe_psql('postgres', 'CREATE TABLE u AS ' . $rows->(20000));
	$end = $source->lsn('flush');
	$source->wait_for_catchup($full, 'flush', $end);
	my $session = $full->background_psql('postgres');
	fill_disk($disk, 0);
	$offset = -s $full->logfile;
	$session->query_until(qr/resume/,
		"\\echo resume\nSELECT pg_wal_replay_resume();\n");
	ok( wait_until(sub { !-e "$disk/postmaster.pid" }),
		"$what: the server stops when nothing is left to remove");
	$session->{run}->finish;
	$full->_update_pid(0);
	like(
		slurp_file($full->logfile, $offset),
		qr/FATAL: .*could not extend file .*No space left on device/,
		"$what: which the log tells");
	empty_disk($disk);
	$full->start;
	$source->wait_for_replay_catchup($full);
	is($full->safe_psql('postgres', 'SELECT count(*) FROM u'),
		20000, "$what: and goes on when there is space");

	# Promotion on a full disk.
	$what = 'promotion on a full disk';
	my $file = $drop_large->($source, 60);
	fill_disk($disk, 0);
	$offset = -s $full->logfile;
	$full->promote;
	ok(!-e $file, "$what: what is pending is removed");
	is($full->safe_psql('postgres', 'SELECT count(*) FROM u'),
		20000, "$what: rows are there");
	release($full, 'lazydrop-removal');
	wait_for_nothing($full);
	$source->stop;

	# Crash recovery.  It needs little space before it removes the pending files.
	$what = 'crash recovery on a full disk';
	empty_disk($disk);
	$full->safe_psql('postgres', 'CHECKPOINT');
	$full->safe_psql('postgres', 'CREATE TABLE v AS ' . $rows->(20000));
	$file = $drop_large->($full, 60);
	fill_disk($disk, 1);
	$full->stop('immediate');
	$full->start;
	wait_for_nothing($full);
	ok(!-e $file, "$what: what was pending is removed");
	is($full->safe_psql('postgres', 'SELECT count(*) FROM v'),
		20000, "$what: rows are there");
	empty_disk($disk);
	$full->safe_psql('postgres', 'CHECKPOINT');
	is_deeply([ orphaned_files($full) ], [], "$what: no file is left");
	$log_is->(qr/PANIC|TRAP|WARNING/, "$what: the log is clean", $offset);

	# WAL for which no space has been reserved.
	$what = 'a full disk and wal_init_zero = off';
	$full->restart;
	$drop_large->($full, 60);
	fill_disk($disk, 4);
	my ($ret, $out, $err) = $full->psql('postgres',
		q{SELECT count(pg_logical_emit_message(false, 'x', repeat('x', 1000000))) FROM generate_series(1, 40)}
	);
	is($ret, 0, "$what: there is space for WAL");
	release($full, 'lazydrop-removal');
	$full->stop;
	unmount($disk);
}

done_testing();
