# Copyright (c) 2026, LazyDrop developers

# If a file system has little free space, a drop frees its space before it returns, as in
# stock (rule R15).  The space is then available to the next command, and to files that
# the lazy drop does not know.  Files of earlier runs of the server are removed before it
# starts.  Each server has a small file system of its own, in a user namespace.

use strict;
use warnings FATAL => 'all';

use Cwd qw(abs_path);
use FindBin;
use lib "$FindBin::RealBin/..";
use LazyDropFiles qw(hidden_files relation_files);
use LazyDropUtils
  qw(stats hold_at wait_for_nothing wait_until need_injection_points
  need_mounts reload_with log_is_clean);
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

use constant MB => 1024 * 1024;

BEGIN
{
	need_injection_points();
	need_mounts();
}

my (@mounted, @servers);

# A mounted file system would prevent the removal of the directory.
END
{
	my $status = $?;
	$_->teardown_node(fail_ok => 1) foreach @servers;
	system('umount', '--lazy', $_) foreach @mounted;
	$? = $status;
}

# Create a server whose data directory is on a file system of this size.  The settings
# have their defaults, except those that keep the worker from doing anything unexpected.
sub small_server
{
	my ($name, $size, $backup_of) = @_;
	my $node = PostgreSQL::Test::Cluster->new($name);
	my $place = dirname($node->data_dir);
	mkdir $place;
	system_or_bail('mount', '-t', 'tmpfs', '-o', "size=$size", 'tmpfs',
		$place);
	push @mounted, $place;
	push @servers, $node;
	if (defined $backup_of)
	{
		$node->init_from_backup($backup_of, 'backup', has_streaming => 1);
	}
	else
	{
		$node->init(allows_streaming => 1);
		$node->append_conf(
			'postgresql.conf', q{
			autovacuum = off
			checkpoint_timeout = 1h
			max_wal_size = 64MB
			min_wal_size = 32MB
			max_prepared_transactions = 2
			lazydrop.removal_rate = 1MB
			lazydrop.min_free_space = 1GB});
	}
	return $node;
}

sub dirname
{
	my ($path) = @_;
	return $path =~ s{/[^/]*$}{}r;
}

sub free_space
{
	my ($node) = @_;
	my ($out) = run_command(
		[ 'df', '--output=avail', '-B1', $node->data_dir ]);
	my ($bytes) = $out =~ /([0-9]+)\s*$/;
	return $bytes;
}

# Fill a file system, except for this number of bytes.
sub fill
{
	my ($node, $but) = @_;
	my $name = dirname($node->data_dir) . '/fill';
	open(my $file, '>>', $name) or die "could not open $name: $!";
	my $todo = free_space($node) - $but;
	while ($todo > 0)
	{
		my $written = syswrite($file, "\0" x ($todo < MB ? $todo : MB));
		last unless defined $written;
		$todo -= $written;
	}
	close($file);
	return;
}

sub make_room
{
	my ($node) = @_;
	unlink dirname($node->data_dir) . '/fill';
	return;
}

sub create_large_table
{
	my ($node, $name) = @_;
	$name //= 'large';
	$node->safe_psql('postgres', "CREATE TABLE $name AS SELECT 1 AS a");
	my $path =
	  $node->safe_psql('postgres', "SELECT pg_relation_filepath('$name')");
	open(my $file, '>>', $node->data_dir . "/$path")
	  or die "could not open $path: $!";
	print $file "\0" x MB foreach 1 .. 60;
	close($file) or die "could not write $path: $!";
	$node->safe_psql('postgres', 'CHECKPOINT') foreach 1, 2;
	return $path;
}

# If nothing was left to the worker, it is not waiting, so ignore an error.
sub release_worker
{
	my ($node) = @_;
	$node->safe_psql('postgres',
		q{SELECT injection_points_detach('lazydrop-removal')});
	$node->psql('postgres',
		q{SELECT injection_points_wakeup('lazydrop-removal')});
	return;
}

# --- a full file system -----------------------------------------------------

my $node = small_server('node', '400m');
$node->start;
$node->safe_psql('postgres',
	'CREATE EXTENSION injection_points; CREATE TABLE tiny AS SELECT 1 AS a');

# The worker is held, so any files that the drop left to it would still exist.
foreach my $case (
	[ 'a checkpoint', 'CHECKPOINT' ],
	[ 'a database', 'CREATE DATABASE d' ],
	[ 'a copy of files', 'CREATE DATABASE d STRATEGY file_copy' ],
	[
		'a replication slot',
		q{SELECT pg_create_physical_replication_slot('s', true)}
	],
	[
		'a prepared transaction',
		q{BEGIN; INSERT INTO tiny VALUES (2); PREPARE TRANSACTION 'p'; CHECKPOINT}
	])
{
	my ($what, $sql) = @$case;
	my $path = create_large_table($node);
	hold_at($node, 'lazydrop-removal');
	my $session = $node->background_psql('postgres', on_error_stop => 0);
	fill($node, 0);
	is(free_space($node), 0, "$what: there is no space");
	$session->query('DROP TABLE large');
	cmp_ok(free_space($node), '>', 50 * MB,
		'the drop has given some back when it returns');
	$session->query($_) foreach split /; /, $sql;
	is($session->{stderr}, '', 'which is enough');
	$session->quit;
	make_room($node);
	release_worker($node);
	is(scalar(grep { -s $node->data_dir . "/$_" }
			  relation_files($node, $path)),
		0, 'and no file is left');
	$node->safe_psql('postgres', 'DROP DATABASE IF EXISTS d');
	$node->safe_psql('postgres',
		q{SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots}
	);
	$node->safe_psql('postgres', q{ROLLBACK PREPARED 'p'})
	  if $sql =~ /PREPARE/;
	wait_for_nothing($node);
}

# --- the limit --------------------------------------------------------------

# 20 MB are 5 % of the file system.
foreach my $case (
	[ 10 * MB, '1GB', 0 ],
	[ 30 * MB, '1GB', 1 ],
	[ 10 * MB, '5MB', 1 ],
	[ 3 * MB, '5MB', 0 ],
	[ 3 * MB, '0', 1 ])
{
	my ($free, $setting, $deferred) = @$case;
	reload_with($node, 'lazydrop.min_free_space' => $setting);
	create_large_table($node);
	hold_at($node, 'lazydrop-removal');
	my $session = $node->background_psql('postgres');
	fill($node, $free);
	my $undeferred = stats($node)->{undeferred_removals};
	$session->query_safe('DROP TABLE large');
	my $now = free_space($node);
	make_room($node);
	$undeferred = stats($node)->{undeferred_removals} - $undeferred;
	my $what = "lazydrop.min_free_space = $setting, " . $free / MB . ' MB free';
	if ($deferred)
	{
		cmp_ok($now, '<', 40 * MB, "$what: files are left to the worker");
		is($undeferred, 0, 'and not counted');
	}
	else
	{
		cmp_ok($now, '>', 50 * MB, "$what: they are removed at once");
		cmp_ok($undeferred, '>', 0, 'and counted');
	}
	$session->quit;
	release_worker($node);
	reload_with($node, 'lazydrop.removal_rate' => '0');
	wait_for_nothing($node);
	reload_with($node, 'lazydrop.removal_rate' => '1MB');
}
reload_with($node, 'lazydrop.min_free_space' => '1GB');

# --- a database -------------------------------------------------------------

{
	$node->safe_psql('postgres', 'CREATE DATABASE d');
	my $oid = $node->safe_psql('postgres',
		q{SELECT oid FROM pg_database WHERE datname = 'd'});
	hold_at($node, 'lazydrop-removal');
	my $session = $node->background_psql('postgres');
	fill($node, 2 * MB);
	$session->query_safe('DROP DATABASE d');
	make_room($node);
	ok(!-e $node->data_dir . "/base/$oid",
		'the directory of a database is removed at once');
	$session->quit;
	release_worker($node);
	wait_for_nothing($node);
}

# --- a file system that fills up while files are pending --------------------

# The worker respects lazydrop.removal_rate only while there is space.
{
	create_large_table($node);
	$node->safe_psql('postgres', 'DROP TABLE large');
	$node->wait_for_event('lazy drop worker', 'LazyDropThrottle');
	cmp_ok(stats($node)->{pending_bytes}, '>', 40 * MB, 'much is pending');
	fill($node, 2 * MB);
	wait_for_nothing($node);
	cmp_ok(free_space($node), '>', 40 * MB,
		'the worker does not keep to its rate when space is short');
	make_room($node);
}

# --- files left by earlier runs ---------------------------------------------

# If there is space, they are left to the worker.  Otherwise they are removed before the
# server starts.  A process that finds no space later removes them as well.
foreach my $case ('space', 'no space', 'no space later')
{
	reload_with($node, 'lazydrop.min_free_space' => '0')
	  if $case eq 'no space later';
	create_large_table($node);
	$node->safe_psql('postgres', 'DROP TABLE large');
	$node->wait_for_event('lazy drop worker', 'LazyDropThrottle');
	$node->stop('immediate');
	cmp_ok(scalar(hidden_files($node)), '>', 0, "$case: hidden files are left");
	fill($node, 2 * MB) if $case eq 'no space';
	$node->start;
	my @left = hidden_files($node);
	if ($case eq 'space')
	{
		cmp_ok(scalar(@left), '>', 0, 'and not removed before the start');
		wait_until(sub { stats($node)->{pending_bytes} > 0 })
		  or die 'the worker has not found them';
	}
	elsif ($case eq 'no space')
	{
		is(scalar(@left), 0, 'and removed before the start');
		make_room($node);
	}
	else
	{
		wait_until(sub { stats($node)->{pending_bytes} > 0 })
		  or die 'the worker has not found them';
		fill($node, 0);
		is( $node->psql('postgres',
				q{INSERT INTO tiny SELECT generate_series(1, 100000)}),
			0,
			'and removed by a process that needs the space');
		make_room($node);
	}
	reload_with($node,
		'lazydrop.removal_rate' => '0', 'lazydrop.min_free_space' => '1GB');
	wait_for_nothing($node);
	reload_with($node, 'lazydrop.removal_rate' => '1MB');
}

# --- a standby --------------------------------------------------------------

# The file system of the standby is full, while the primary has space.
{
	create_large_table($node);
	$node->backup('backup');
	my $standby = small_server('standby', '400m', $node);
	$standby->start;
	# The current WAL file has enough room for the next records.
	$node->safe_psql('postgres', 'INSERT INTO tiny VALUES (3)');
	$node->wait_for_replay_catchup($standby);
	hold_at($node, 'lazydrop-removal');
	$standby->safe_psql('postgres', 'CHECKPOINT');
	fill($standby, 0);
	is(free_space($standby), 0, 'there is no space on a standby');
	$node->safe_psql('postgres', 'DROP TABLE large');
	$node->wait_for_replay_catchup($standby);
	cmp_ok(free_space($standby), '>', 50 * MB,
		'replay of a drop has given some back');
	$node->safe_psql('postgres', $_)
	  foreach 'CREATE DATABASE d', 'CHECKPOINT';
	$node->wait_for_replay_catchup($standby);
	$standby->safe_psql('postgres', 'CHECKPOINT');
	pass('and replay and restartpoints go on');
	make_room($standby);
	release_worker($node);
	$standby->stop;
	log_is_clean($standby);
}

$node->stop;
log_is_clean($node);

done_testing();
