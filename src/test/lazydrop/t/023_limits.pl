# Copyright (c) 2026, LazyDrop developers

# The set of buried relations has a fixed capacity, and progress never depends on the
# worker alone (rule R6).  The test has drops that do not fit into the set, a worker that
# is stopped or has never been started, and a server that is shutting down.

use strict;
use warnings FATAL => 'all';

use File::Path;
use FindBin;
use lib "$FindBin::RealBin/..";
use LazyDropUtils
  qw(stats wait_for_stats start_quiet_node stop_with_clean_log);
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = start_quiet_node(
	'node',
	'lazydrop.max_pending' => '16',
	'lazydrop.pass_delay' => '1min',
	'max_locks_per_transaction' => '128');

sub create_tables
{
	my ($n) = @_;
	$node->safe_psql(
		'postgres',
		join(
			'',
			map {
				"CREATE TABLE t$_ AS SELECT generate_series(1, 1000) AS a;\n"
			} 1 .. $n));
	return;
}

sub drop_tables
{
	my ($n) = @_;
	$node->safe_psql('postgres',
		'DROP TABLE ' . join(', ', map { "t$_" } 1 .. $n));
	return;
}

# Nothing that was dropped is written, and everything else is.
sub is_intact
{
	my ($what) = @_;
	$node->safe_psql('postgres', 'CHECKPOINT');
	is($node->safe_psql('postgres', 'SELECT count(*), sum(a) FROM kept'),
		'1000|500500', "$what: a table that was kept is intact");
	return;
}
$node->safe_psql('postgres',
	'CREATE TABLE kept AS SELECT generate_series(1, 1000) AS a');

# --- a full set -------------------------------------------------------------

# The worker waits a minute for more drops, but it wakes up when the set is half full.
my $before = stats($node);
create_tables(60);
foreach my $i (1 .. 60)
{
	$node->safe_psql('postgres', "DROP TABLE t$i");
}
my $after = stats($node);
is($after->{deferred_relations} - $before->{deferred_relations},
	60, '60 drops through a set of 16');
is( $after->{sync_fallbacks},
	$before->{sync_fallbacks},
	'none of them at once');
cmp_ok($after->{passes} - $before->{passes}, '<=', 30, 'in batches');
is_intact('small drops');

# Drop more relations in one transaction than the set can hold.
create_tables(100);
$before = stats($node);
drop_tables(100);
$after = stats($node);
cmp_ok($after->{sync_fallbacks} - $before->{sync_fallbacks},
	'>=', 84, 'what does not fit is dropped at once');
cmp_ok($after->{pending_relations}, '<=', 16, 'the set is never over-full');
is_intact('a large drop');

# Drop a database in more tablespaces than there is room for.
$node->safe_psql('postgres',
	join('', map { "CREATE TABLESPACE ts$_ LOCATION '';\n" } 1 .. 20));
$node->safe_psql('postgres', 'CREATE DATABASE d');
$node->safe_psql(
	'd',
	join('',
		map { "CREATE TABLE t$_ TABLESPACE ts$_ AS SELECT 1 AS a;\n" }
		  1 .. 20));
$before = stats($node);
$node->safe_psql('postgres', 'DROP DATABASE d');
$after = stats($node);
is( $after->{deferred_databases},
	$before->{deferred_databases},
	'a database that does not fit is not buried in part');
is( $after->{sync_fallbacks},
	$before->{sync_fallbacks} + 1,
	'but dropped at once');
like(
	slurp_file($node->logfile),
	qr/drop of \d+ relations or databases was not deferred, because too many are pending/,
	'which the log tells');
is_intact('a large database');

# --- a lost directory -------------------------------------------------------

# Checkpoints fail, because they have pages to write there.  Dropping the database solves
# this, because its pages are then forgotten in all tablespaces.
$node->safe_psql('postgres', 'CREATE DATABASE d');
$node->safe_psql('d',
	'CREATE TABLE t TABLESPACE ts1 AS SELECT generate_series(1, 1000) AS a');
# This makes the drop begin with a checkpoint.
$node->safe_psql('d', 'VACUUM FULL pg_class');
my $lost = $node->data_dir . '/'
  . $node->safe_psql('d', q{SELECT pg_relation_filepath('t')}) =~ s{/\d+$}{}r;
rmtree($lost);
my ($status) = $node->psql('postgres', 'CHECKPOINT');
isnt($status, 0, 'a checkpoint cannot write to a directory that is lost');
my $offset = -s $node->logfile;
$node->safe_psql('postgres', 'DROP DATABASE d');
is_intact('a lost directory');

# If all directories are lost, there is nothing to remove.
$node->safe_psql('postgres', 'CREATE DATABASE d');
rmtree( $node->data_dir . '/base/'
	  . $node->safe_psql('postgres',
		q{SELECT oid FROM pg_database WHERE datname = 'd'}));
$node->safe_psql('postgres', 'DROP DATABASE d');
is_intact('no directory is left');

# --- a stopped worker -------------------------------------------------------

SKIP:
{
	skip 'no SIGSTOP on this platform', 4 if $windows_os;

	wait_for_stats($node, q{(s->>'worker_pid') IS NOT NULL});
	my $pid = stats($node)->{worker_pid};
	kill('STOP', $pid);
	create_tables(60);
	$before = stats($node);
	foreach my $i (1 .. 60)
	{
		$node->safe_psql('postgres', "DROP TABLE t$i");
	}
	$after = stats($node);
	is( $after->{deferred_relations} -
		  $before->{deferred_relations} +
		  $after->{sync_fallbacks} -
		  $before->{sync_fallbacks},
		60,
		'60 drops with the worker stopped');
	is_intact('a stopped worker');
	$node->safe_psql('postgres', 'CREATE DATABASE d OID 90000');
	$node->safe_psql('postgres', 'DROP DATABASE d');
	$node->safe_psql('postgres', 'CREATE DATABASE d OID 90000');
	pass('a database OID comes back with the worker stopped');
	kill('CONT', $pid);
	$node->safe_psql('postgres', 'DROP DATABASE d');
	is_intact('a worker that goes on');
}

# --- a stop with entries pending, in each mode ------------------------------

foreach my $mode ('fast', 'immediate')
{
	create_tables(5);
	drop_tables(5);
	$node->stop($mode);
	$node->start;
	wait_for_stats($node, q{s->>'pending_relations' = '0'});
	is_intact($mode);
}

# --- a killed worker --------------------------------------------------------

# This causes an ordinary crash restart.
SKIP:
{
	skip 'no SIGKILL on this platform', 2 if $windows_os;

	$node->append_conf('postgresql.conf', 'restart_after_crash = on');
	$node->reload;
	create_tables(5);
	drop_tables(5);
	my $pid = stats($node)->{worker_pid};
	my $offset = -s $node->logfile;
	kill('KILL', $pid);
	$node->wait_for_log(
		qr/all server processes terminated; reinitializing/, $offset);

	# Send no query: a psql that cannot connect does not read it, and the attempt to
	# write it would fail.
	$node->poll_query_until('postgres', undef, '');
	wait_for_stats($node, "(s->>'worker_pid')::int <> $pid");
	wait_for_stats($node, q{s->>'pending_relations' = '0'});
	pass('nothing stays pending after a crash of the worker');
	is_intact('a killed worker');
}

# --- no worker --------------------------------------------------------------

$node->append_conf('postgresql.conf', 'max_worker_processes = 0');
$node->restart;
is(stats($node)->{worker_pid}, undef, 'no worker process, no worker');
create_tables(5);
drop_tables(5);
is(stats($node)->{pending_relations}, 0, 'drops are done at once');
is(stats($node)->{sync_fallbacks}, 5, 'which the counters tell');
like(
	slurp_file($node->logfile),
	qr/drop of 5 relations or databases was not deferred, because there is no lazy drop worker/,
	'and the log');
$node->safe_psql('postgres',
	"CREATE TEMPORARY TABLE t AS SELECT 1 AS a;\nDROP TABLE t");
is(stats($node)->{sync_fallbacks}, 5, 'and not of temporary tables');
is_intact('no worker');
create_tables(5);
drop_tables(5);
$node->stop('immediate');
$node->start;
cmp_ok(stats($node)->{deferred_relations},
	'>=', 5, 'crash recovery buries, also without a worker');
is(stats($node)->{pending_relations}, 0, 'and settles everything at its end');
is_intact('crash recovery without a worker');

# --- single-user mode -------------------------------------------------------

$node->safe_psql('postgres',
	'CREATE TABLE t AS SELECT generate_series(1, 1000) AS a');
$node->stop;
command_ok(
	[
		'sh',
		'-c',
		"echo 'DROP TABLE t' | postgres --single -D '@{[ $node->data_dir ]}' postgres"
	],
	'a drop in single-user mode');
$node->start;
is_intact('single-user mode');

# --- a wrong value in postgresql.conf ---------------------------------------

# The setting has its default value then, like an extension's setting.
$node->append_conf('postgresql.conf', 'lazydrop.max_pending = -1');
my $log_offset = -s $node->logfile;
$node->restart;
is($node->safe_psql('postgres', 'SHOW lazydrop.max_pending'),
	'0', 'a wrong value is not used');
like(
	slurp_file($node->logfile, $log_offset),
	qr/WARNING:  -1 is outside the valid range for parameter "lazydrop\.max_pending"/,
	'and the log says why');
is(stats($node)->{max_pending}, 16384,
	'by default, there is room for 16384 entries');
$node->append_conf('postgresql.conf', 'max_locks_per_transaction = 1024');
$node->restart;
cmp_ok(stats($node)->{max_pending},
	'>=', 1024 * 20, 'or for as many as can be locked');
$node->stop;

# --- the smallest possible set ----------------------------------------------

$node->append_conf('postgresql.conf',
	"lazydrop.max_pending = 1\nmax_worker_processes = 8");
$node->start;
wait_for_stats($node, q{(s->>'worker_pid') IS NOT NULL});
create_tables(22);
$before = stats($node);
my $most = 0;
foreach my $i (1 .. 20)
{
	$node->safe_psql('postgres', "DROP TABLE t$i");
	my $pending = stats($node)->{pending_relations};
	$most = $pending if $most < $pending;
}
$after = stats($node);
cmp_ok($most, '<=', 1, 'a set of one: never more than that is pending');
is( $after->{deferred_relations} -
	  $before->{deferred_relations} +
	  $after->{sync_fallbacks} -
	  $before->{sync_fallbacks},
	20,
	'each drop is buried or done at once');
cmp_ok(
	$after->{deferred_relations},
	'>',
	$before->{deferred_relations},
	'and some are buried');
$before = $after;
$node->safe_psql('postgres', 'DROP TABLE t21, t22');
is( stats($node)->{sync_fallbacks},
	$before->{sync_fallbacks} + 2,
	'two in one transaction never fit');
is_intact('a set of one');
wait_for_stats($node, q{(s->>'pending_relations')::int = 0});

stop_with_clean_log($node, $offset);

done_testing();
