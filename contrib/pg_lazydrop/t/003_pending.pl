# Copyright (c) 2026, LazyDrop developers

# Test the reasons in pg_lazydrop_pending why an entry is pending, and the size of a dropped
# database, and that the worker is idle in pg_stat_activity while lazydrop.removal_rate
# makes it wait.  The log reports an entry that is stuck.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/../../../src/test/lazydrop";
use LazyDropUtils
  qw(stats start_quiet_node reload_with need_injection_points hold_at release wait_until
  wait_for_nothing stop_process continue_process);
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

need_injection_points();

my $node = start_quiet_node('main', 'lazydrop.lookup_limit' => '0');
$node->safe_psql('postgres',
	'CREATE EXTENSION pg_lazydrop; CREATE EXTENSION injection_points');
my $worker = stats($node)->{worker_pid};

# Another server, whose entry stays until it is a minute old.
my $stuck = start_quiet_node('stuck');
$stuck->safe_psql('postgres', 'CREATE SEQUENCE s');
my $path = $stuck->safe_psql('postgres', q{SELECT pg_relation_filepath('s')});
my $pin = $stuck->background_psql('postgres');
$pin->query_safe('BEGIN; DECLARE c CURSOR FOR SELECT * FROM s; FETCH c');
$stuck->safe_psql('postgres', 'ALTER SEQUENCE s RESTART');

my $monitor = $node->background_psql('postgres');
$_->set_query_timer_restart() foreach $pin, $monitor;

# The directory of the server must be one that can be removed.
my $protected;
END { chmod 0700, $protected if defined $protected; }

# Wait until the only entry has the expected row, and test it.
sub waits_for
{
	my ($columns, $expected, $test) = @_;
	my $row;
	wait_until(
		sub {
			$row = $monitor->query_safe(
				"SELECT $columns FROM pg_lazydrop_pending");
			return $row eq $expected;
		});
	is($row, $expected, $test);
	return;
}

sub drop_table
{
	$node->safe_psql('postgres', 'CREATE TABLE t AS SELECT 1 AS a');
	$node->safe_psql('postgres', 'DROP TABLE t');
	return;
}

# --- a pass ---------------------------------------------------------------------------

reload_with($node, 'lazydrop.pass_delay' => '60s');
drop_table();
waits_for('waits_for, pid IS NULL, files_done', 'delay|t|t', 'pass_delay');
hold_at($node, 'lazydrop-pass-step');
my $drain = $node->background_psql('postgres');
$drain->query_until(qr/begun/, "\\echo begun\nSELECT pg_lazydrop_drain();\n");
waits_for('waits_for, pid', "pass|$worker", 'a pass of the worker');
release($node, 'lazydrop-pass-step');
$drain->quit;
wait_for_nothing($node);
reload_with($node, 'lazydrop.pass_delay' => '0');

# --- a pin ----------------------------------------------------------------------------

$node->safe_psql('postgres', 'CREATE SEQUENCE s');
my $cursor = $node->background_psql('postgres');
$cursor->query_safe('BEGIN; DECLARE c CURSOR FOR SELECT * FROM s; FETCH c');
$node->safe_psql('postgres', 'ALTER SEQUENCE s RESTART');
waits_for('waits_for, files_done, buffers_done', 'pin|t|f', 'a pin');
$cursor->query_safe('COMMIT');
wait_for_nothing($node);
$cursor->quit;

# --- the dropper ----------------------------------------------------------------------

$node->safe_psql('postgres', 'CREATE TABLE t AS SELECT 1 AS a');
my $dropper = $node->background_psql('postgres');
my $pid = $dropper->query_safe('SELECT pg_backend_pid()');
hold_at($node, 'lazydrop-buried');
$dropper->query_until(qr/begun/, "\\echo begun\nDROP TABLE t;\n");
waits_for('waits_for, pid', "dropper|$pid", 'the dropper');
release($node, 'lazydrop-buried');
$dropper->quit;
wait_for_nothing($node);

# --- files ----------------------------------------------------------------------------

hold_at($node, 'lazydrop-removal');
drop_table();
waits_for(
	'waits_for, files, bytes',
	'worker|1|8192',
	'the worker, which has not begun to remove files');
hold_at($node, 'lazydrop-step');
release($node, 'lazydrop-removal');
waits_for('waits_for', 'removal', 'a step of a removal');
release($node, 'lazydrop-step');
wait_for_nothing($node);

SKIP:
{
	skip 'permissions of directories are different on Windows', 1
	  if $windows_os;
	$node->safe_psql('postgres', q{CREATE TABLESPACE ts LOCATION ''});

	# The main fork is only truncated.  The free space map is to be removed.
	$node->safe_psql('postgres',
		'CREATE TABLE t TABLESPACE ts AS SELECT generate_series(1, 1000) AS a; VACUUM t'
	);
	my ($directory) =
	  (     $node->data_dir . '/'
		  . $node->safe_psql('postgres', q{SELECT pg_relation_filepath('t')}))
	  =~ m{^(.*)/[0-9]+$};
	$protected = $directory;
	chmod 0500, $directory or die "could not change $directory: $!";
	$node->safe_psql('postgres', 'DROP TABLE t');
	waits_for(
		'waits_for, failures > 0, next_attempt > clock_timestamp()',
		'retry|t|t',
		'another attempt to remove a file');
	chmod 0700, $directory or die "could not change $directory: $!";
	wait_for_nothing($node);
	$node->safe_psql('postgres', 'DROP TABLESPACE ts');
}

# --- a database -----------------------------------------------------------------------

SKIP:
{
	skip 'no SIGSTOP on this platform', 2 if $windows_os;

	$node->safe_psql('postgres', 'CREATE DATABASE d');
	my $size = $node->safe_psql('postgres', q{SELECT pg_database_size('d')});
	my $session = $node->background_psql('postgres');
	my $stopped = $session->query_safe('SELECT pg_backend_pid()');
	stop_process($stopped);
	$node->safe_psql('postgres', 'DROP DATABASE d');
	waits_for(
		'kind, waits_for, bytes, files > 100',
		"database|processes|$size|t",
		'processes that have not closed the files of a database');
	is(stats($node)->{pending_bytes}, $size, 'lazydrop.stats has its size');
	continue_process($stopped);
	wait_for_nothing($node);
	$session->quit;
}

# --- lazydrop.removal_rate ------------------------------------------------------------

reload_with($node, 'lazydrop.removal_rate' => '1MB');
$node->safe_psql('postgres',
	q{CREATE TABLE t AS SELECT repeat('x', 1000) FROM generate_series(1, 100000)}
);
my $size =
  $node->safe_psql('postgres', q{SELECT pg_total_relation_size('t')});
$node->safe_psql('postgres', 'DROP TABLE t');
my $activity =
  "FROM pg_stat_activity WHERE pid = $worker AND wait_event = 'LazyDropThrottle'";
my $started;
ok( wait_until(
		sub {
			$started = $monitor->query_safe(
				"SELECT query_start $activity AND state = 'idle'");
			return $started ne '';
		}),
	'the worker is idle while it waits');
my $left = $monitor->query_safe('SELECT sum(bytes) FROM pg_lazydrop_pending');
ok( wait_until(
		sub {
			return $monitor->query_safe(
				"SELECT query_start > '$started' AND
					(SELECT sum(bytes) < $left FROM pg_lazydrop_pending)
				$activity AND state = 'idle'") eq 't';
		}),
	'and a new step has another start');
is( $monitor->query_safe(
		"SELECT sum(bytes) BETWEEN 1 AND $size - 1 FROM pg_lazydrop_pending"),
	't',
	'some of its bytes are left');
reload_with($node, 'lazydrop.removal_rate' => '0');
wait_for_nothing($node);

# --- no worker ------------------------------------------------------------------------

SKIP:
{
	skip 'no SIGSTOP on this platform', 1 if $windows_os;

	reload_with($node, 'lazydrop.pass_delay' => '60s');
	drop_table();
	waits_for('waits_for, files_done', 'delay|t', 'pass_delay');
	my $postmaster = stop_process(
		(split /\n/, slurp_file($node->data_dir . '/postmaster.pid'))[0]);
	kill('TERM', $worker) == 1 or die "could not terminate the worker: $!";
	waits_for('waits_for', 'no worker', 'a worker');
	continue_process($postmaster);
}

$monitor->quit;
$node->stop;

# --- the log --------------------------------------------------------------------------

$stuck->wait_for_log(
	qr/LOG:  lazy drop of relation "\Q$path\E" has been pending for \d+ seconds\n.*DETAIL:  One of its buffers was pinned when it was last looked at\./
);
pass('an entry that waits for a pin is reported after a minute');
$pin->query_safe('COMMIT');
wait_for_nothing($stuck);
$pin->quit;
$stuck->stop;
done_testing();
