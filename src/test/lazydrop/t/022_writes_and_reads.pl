# Copyright (c) 2026, LazyDrop developers

# No process writes to the files of a buried relation once its burial has returned, and
# none reads them when any process may remove them (rule R1).  There are two races.  In the
# first, a process that writes a buffer has checked whether the relation is buried, and has
# not written the buffer yet, when the relation is dropped.  In the second, a canceled scan
# has left reads in flight.  The dropper waits for both before it leaves the files to the
# worker.

use strict;
use warnings FATAL => 'all';

use Cwd qw(abs_path);
use FindBin;
use lib "$FindBin::RealBin/..";
use LazyDropUtils
  qw(stats wait_for_stats hold_at release wait_until need_injection_points
  start_quiet_node stop_with_clean_log pg_major);
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

need_injection_points();

my $have_aio = pg_major() >= 18;
# With fsync, a sync request that is sent after the dropper has had it forgotten would be
# noticed (rule R2).
my $node = start_quiet_node('node', 'fsync' => 'on',
	$have_aio ? ('io_method' => 'worker', 'io_workers' => '1') : ());
$node->safe_psql('postgres', 'CREATE EXTENSION injection_points');
$node->safe_psql('postgres', 'CREATE EXTENSION pg_buffercache');

# Let a session write and evict the first page of a table ("t") of a database.
sub start_writer
{
	my ($database, $table) = @_;
	$table //= 't';
	my $filenode =
	  $node->safe_psql($database, "SELECT pg_relation_filenode('$table')");
	my $writer = $node->background_psql('postgres', on_error_stop => 0);
	$writer->query_until(
		qr/begun/, "\\echo begun
		SELECT pg_buffercache_evict(bufferid) FROM pg_buffercache
		WHERE relfilenode = $filenode AND relforknumber = 0 AND relblocknumber = 0;\n"
	);
	return $writer;
}

# --- a write that has not been announced yet --------------------------------

# The writer has found that the relation is not buried.  Then it is buried, and its file
# is removed.  The writer must check again.
{
	$node->safe_psql('postgres',
		'CREATE TABLE t AS SELECT generate_series(1, 1000) AS a');
	my $path = $node->data_dir . '/'
	  . $node->safe_psql('postgres', q{SELECT pg_relation_filepath('t')});
	hold_at($node, 'lazydrop-announce');
	my $writer = start_writer('postgres');
	$node->wait_for_event('client backend', 'lazydrop-announce');
	$node->safe_psql('postgres', 'DROP TABLE t');
	ok(wait_until(sub { !-s $path }),
		'DROP TABLE does not wait for a write that is not announced');
	my $skipped = stats($node)->{writes_skipped};
	release($node, 'lazydrop-announce');
	$writer->quit;
	is(stats($node)->{writes_skipped},
		$skipped + 1, 'which is then not done');
	ok(!-s $path, 'and the file does not come back');
	wait_for_stats($node, q{s->>'pending_relations' = '0'});
}

# --- a write that fails -----------------------------------------------------

# The announcement must end, or the next dropper would wait indefinitely.
{
	$node->safe_psql('postgres',
		'CREATE TABLE t AS SELECT generate_series(1, 1000) AS a');
	$node->safe_psql('postgres',
		q{SELECT injection_points_attach('lazydrop-announced', 'error')});
	my $writer = start_writer('postgres');
	$writer->query_until(qr/failed/, "\\echo failed\n");
	$node->safe_psql('postgres',
		q{SELECT injection_points_detach('lazydrop-announced')});
	$node->wait_for_log(
		qr/error triggered for injection point lazydrop-announced/);
	$node->safe_psql('postgres', 'DROP TABLE t');
	pass('DROP TABLE after a write that failed');
	$writer->quit;
	wait_for_stats($node, q{s->>'pending_relations' = '0'});
}

# --- an announced write -----------------------------------------------------

foreach my $how ('DROP TABLE', 'DROP DATABASE', 'DROP DATABASE, cancelled')
{
	my $database = 'postgres';
	if ($how =~ /DATABASE/)
	{
		$node->safe_psql('postgres', 'CREATE DATABASE d');
		$database = 'd';
	}
	$node->safe_psql('postgres', 'CHECKPOINT');
	$node->safe_psql($database,
		'CREATE TABLE t AS SELECT generate_series(1, 1000) AS a');

	my $path = $node->data_dir . '/'
	  . $node->safe_psql($database, q{SELECT pg_relation_filepath('t')});

	# A process announces that it writes a page of the table, and is held there.
	hold_at($node, 'lazydrop-announced');
	my $writer = start_writer($database);
	$node->wait_for_event('client backend', 'lazydrop-announced');

	my $drop = $node->background_psql('postgres', on_error_stop => 0);
	$drop->query_until(qr/begun/,
			"\\echo begun\n"
		  . ($how eq 'DROP TABLE' ? 'DROP TABLE t;' : 'DROP DATABASE d;')
		  . "\n\\echo dropped\n");
	$node->wait_for_event('client backend', 'LazyDropWrite');
	pass("$how waits for the write that was announced");
	ok(-s $path, "$how has not removed the file meanwhile");

	if ($how =~ /cancelled/)
	{
		# The record has been written, so it is too late to cancel the command.
		$node->safe_psql('postgres',
			q{SELECT pg_cancel_backend(pid) FROM pg_stat_activity WHERE wait_event = 'LazyDropWrite' AND backend_type = 'client backend'}
		);
	}
	release($node, 'lazydrop-announced');
	$drop->query_until(qr/dropped/, "\n");
	$drop->quit;
	$writer->quit;
	$node->safe_psql('postgres', 'CHECKPOINT');
	ok(wait_until(sub { !-s $path }), "$how removes it then");
	is( $node->safe_psql(
			'postgres', q{SELECT count(*) FROM pg_database WHERE datname = 'd'}),
		0,
		"$how: the database is gone") if $how =~ /DATABASE/;
}

SKIP:
{
	skip 'PostgreSQL 17 has no asynchronous reads', 1 if !$have_aio;

	# --- reads in flight ----------------------------------------------------

	# The I/O worker has taken a read, and is held before it performs it.
	$node->safe_psql('postgres',
		'CREATE TABLE t AS SELECT generate_series(1, 100000) AS a');
	$node->safe_psql('postgres', 'CHECKPOINT');
	$node->restart;
	$node->safe_psql('postgres', 'SET max_parallel_workers_per_gather = 0');
	my $path = $node->data_dir . '/'
	  . $node->safe_psql('postgres', q{SELECT pg_relation_filepath('t')});
	hold_at($node, 'aio-worker-after-reopen');
	my $scan = $node->background_psql('postgres', on_error_stop => 0);
	$scan->query_until(qr/begun/,
		"SET max_parallel_workers_per_gather = 0; SET application_name = 'scan';\n\\echo begun\nSELECT count(*) FROM t;\n"
	);
	$node->wait_for_event('io worker', 'aio-worker-after-reopen');
	$node->safe_psql('postgres',
		q{SELECT pg_cancel_backend(pid) FROM pg_stat_activity WHERE application_name = 'scan'}
	);
	$node->poll_query_until('postgres',
		q{SELECT state = 'idle' FROM pg_stat_activity WHERE application_name = 'scan'}
	) or die 'the scan was not cancelled';

	my $drop = $node->background_psql('postgres');
	$drop->query_until(qr/begun/,
		"SET application_name = 'drop';\n\\echo begun\nDROP TABLE t;\n\\echo dropped\n"
	);
	$node->poll_query_until('postgres',
		q{SELECT wait_event = 'AioIoCompletion' FROM pg_stat_activity WHERE application_name = 'drop'}
	  )
	  or die 'the drop does not wait: '
	  . $node->safe_psql(
		'postgres',
		q{SELECT pid, application_name, backend_type, wait_event_type, wait_event, state, query FROM pg_stat_activity}
	  );
	pass('DROP TABLE waits for the read in flight');
	ok(-s $path, 'and has not removed the file meanwhile');
	release($node, 'aio-worker-after-reopen');
	$drop->query_until(qr/dropped/, "\n");
	$drop->quit;
	$scan->quit;
	ok(wait_until(sub { !-s $path }), 'it removes the file then');
	wait_for_stats($node, q{s->>'pending_relations' = '0'});

	# --- a descriptor of the old file ---------------------------------------

	# A process that creates storage under a buried name waits until no other process has
	# a descriptor of the old file.  Here, it waits for an I/O worker that has just opened
	# one.
	$node->safe_psql('postgres', 'CREATE DATABASE d OID 90000');
	$node->safe_psql('postgres',
		'CREATE TABLE t AS SELECT generate_series(1, 100000) AS a');
	$node->restart;
	hold_at($node, 'lazydrop-worker');
	$node->safe_psql('postgres', 'DROP DATABASE d');
	$node->wait_for_event('lazy drop worker', 'lazydrop-worker');
	hold_at($node, 'aio-worker-after-reopen');
	$scan = $node->background_psql('postgres', on_error_stop => 0);
	$scan->query_until(qr/begun/,
		"SET max_parallel_workers_per_gather = 0;\n\\echo begun\nSELECT count(*) FROM t;\n"
	);
	$node->wait_for_event('io worker', 'aio-worker-after-reopen');
	my $create = $node->background_psql('postgres');
	$create->query_until(qr/begun/,
		"\\echo begun\nCREATE DATABASE d OID 90000;\n\\echo created\n");
	$node->wait_for_event('client backend', 'ProcSignalBarrier');
	pass(
		'a name is not used again while a descriptor of the old file may be open'
	);
	release($node, 'aio-worker-after-reopen');
	$create->query_until(qr/created/, "\n");
	$create->quit;
	$scan->quit;
	release($node, 'lazydrop-worker');
	$node->safe_psql('postgres', "DROP DATABASE d;\nDROP TABLE t");
	wait_for_stats($node,
		q{s->>'pending_relations' = '0' AND s->>'pending_databases' = '0'});

	# --- reads in flight, with each I/O method ------------------------------

	# A scan fails, and leaves the reads that it has started in advance.  Its session does
	# nothing more, so with io_uring only the dropper completes these reads.
	foreach my $method ('sync', 'worker', 'io_uring')
	{
	  SKIP:
		{
			$node->append_conf('postgresql.conf', "io_method = $method");
			$node->stop;
			if (!$node->start(fail_ok => 1))
			{
				skip "io_method = $method is not available", 2;
			}
			$node->safe_psql('postgres',
				'CREATE TABLE t AS SELECT generate_series(1, 200000) AS a');
			$node->restart;
			my $reader =
			  $node->background_psql('postgres', on_error_stop => 0);
			$reader->query_until(
				qr/ended/, "SET max_parallel_workers_per_gather = 0;
				SELECT count(1 / (a - 100000)) FROM t;\n\\echo ended\n");
			my $in_flight =
			  q{SELECT count(*) FROM pg_aios WHERE state = 'SUBMITTED'};
			cmp_ok($node->safe_psql('postgres', $in_flight),
				'>', 0, "io_method = $method: reads are in flight")
			  if $method eq 'io_uring';
			$node->safe_psql('postgres', 'DROP TABLE t');
			is($node->safe_psql('postgres', $in_flight),
				'0',
				"io_method = $method: DROP TABLE has waited for all reads");
			wait_for_stats($node, q{s->>'pending_relations' = '0'});
			$reader->quit;
		}
	}
}

# --- a pass that fails ------------------------------------------------------

# The next pass settles the entries that the failed pass owned, immediately.
$node->append_conf('postgresql.conf', 'io_method = worker') if $have_aio;
$node->restart;
foreach my $point ('lazydrop-pass', 'lazydrop-pass-end')
{
	$node->safe_psql('postgres',
		"SELECT injection_points_attach('$point', 'error')");
	my $worker = stats($node)->{worker_pid};
	$node->safe_psql('postgres',
		"CREATE TABLE t AS SELECT generate_series(1, 1000) AS a;\nDROP TABLE t"
	);
	$node->wait_for_log(qr/error triggered for injection point $point$/m);
	is(stats($node)->{pending_relations},
		1, "$point: the entry is still there");
	$node->safe_psql('postgres', "SELECT injection_points_detach('$point')");
	wait_for_stats($node, q{s->>'pending_relations' = '0'});
	isnt(stats($node)->{worker_pid},
		$worker, "$point: another worker has settled it");
}

stop_with_clean_log($node);

# --- a writer that is killed after the postmaster ---------------------------

# The server does not restart in this case, so the dropper must exit by itself.
if (-r '/proc/self/stat')
{
	$node->start;
	$node->safe_psql('postgres',
		'CREATE TABLE killed AS SELECT generate_series(1, 1000) AS a');
	hold_at($node, 'lazydrop-announced');
	my $writer = start_writer('postgres', 'killed');
	$node->wait_for_event('client backend', 'lazydrop-announced');
	my $pid = $node->safe_psql('postgres',
		q{SELECT pid FROM pg_stat_activity WHERE wait_event = 'lazydrop-announced'}
	);
	my $dropper = $node->background_psql('postgres', on_error_stop => 0);
	$dropper->query_until(qr/begun/, "\\echo begun\nDROP TABLE killed;\n");
	$node->wait_for_event('client backend', 'LazyDropWrite');

	my $data = abs_path($node->data_dir);
	my $postmaster = $node->{_pid};
	kill('STOP', $pid);
	$node->kill9;
	kill('KILL', $pid);
	ok( wait_until(
			sub {
				!-e "/proc/$postmaster"
				  && !grep { (readlink($_) // '') eq $data }
				  glob('/proc/[0-9]*/cwd');
			}),
		'DROP TABLE ends with the postmaster');
	eval { $_->quit } foreach $writer, $dropper;
	$node->start;
	is( $node->safe_psql(
			'postgres',
			q{SELECT count(*) FROM pg_class WHERE relname = 'killed'}),
		0,
		'and has been committed');
}

done_testing();
