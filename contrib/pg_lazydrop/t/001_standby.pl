# Copyright (c) 2026, LazyDrop developers

# Test pg_lazydrop on a standby, where its views and functions show the standby itself.
# Test pg_lazydrop_drain with a short timeout, when it is canceled, and without a worker.
# Also test the dump and the update of the extension.

use strict;
use warnings FATAL => 'all';

use File::Spec;
use FindBin;
use lib "$FindBin::RealBin/../../../src/test/lazydrop";
use LazyDropUtils
  qw(stats start_quiet_node need_injection_points hold_at release wait_until
  pg_major);
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

need_injection_points();

# A drain must not wait for this delay, because its time limit is half of it.
my $primary = start_quiet_node(
	'primary',
	'lazydrop.lookup_limit' => '0',
	'lazydrop.pass_delay' => '60s');
$primary->safe_psql('postgres',
	'CREATE EXTENSION pg_lazydrop; CREATE EXTENSION injection_points');
$primary->backup('backup');
my $standby = PostgreSQL::Test::Cluster->new('standby');
$standby->init_from_backup($primary, 'backup', has_streaming => 1);
$standby->start;

# Drop a table of 1,000 rows; returns its relfilenumber.
sub drop_table
{
	$primary->safe_psql('postgres',
		'CREATE TABLE t AS SELECT generate_series(1, 1000) AS a');
	my $number =
	  $primary->safe_psql('postgres', q{SELECT pg_relation_filenode('t')});
	$primary->safe_psql('postgres', 'DROP TABLE t');
	$primary->wait_for_replay_catchup($standby);
	return $number;
}

sub pending
{
	my ($node) = @_;
	return $node->safe_psql('postgres',
		'SELECT relfilenumber, kind, buffers_done, files_done FROM pg_lazydrop_pending'
	);
}

# Let a session wait for a drain, and then print the number of pending entries.
sub begin_drain
{
	my ($node, $session) = @_;
	$session->query_until(
		qr/begun/, "\\echo begun
		SELECT pg_lazydrop_drain();
		SELECT 'left: ' || count(*) FROM pg_lazydrop_pending;
		\\echo ended\n");
	$node->wait_for_event('client backend', 'LazyDropDrain');
	return;
}

# --- a standby has its own entries ------------------------------------------

my $number = drop_table();
$standby->wait_for_event('lazy drop worker', 'LazyDropGather');
is(pending($standby), "$number|relation|f|t",
	'pending on the standby, but for its files');
is($primary->safe_psql('postgres', q{SELECT pg_lazydrop_drain('30 s')}),
	'', 'the primary is drained');
is(pending($primary), '', 'nothing is pending there');
is(pending($standby), "$number|relation|f|t", 'but still on the standby');
is($standby->safe_psql('postgres', q{SELECT pg_lazydrop_drain('30 s')}),
	'', 'the standby is drained');
is(pending($standby), '', 'nothing is pending there');
$standby->wait_for_event('lazy drop worker', 'LazyDropMain');
is( $standby->safe_psql(
		'postgres',
		'SELECT deferred_relations, buffers_invalidated > 0, files_removed > 0, passes FROM pg_stat_lazydrop'
	),
	'1|t|t|1',
	'what the standby has counted');
$standby->safe_psql('postgres', 'SELECT pg_stat_lazydrop_reset()');
is( $standby->safe_psql(
		'postgres', 'SELECT deferred_relations, passes FROM pg_stat_lazydrop'
	),
	'0|0',
	'reset on the standby');
is( $primary->safe_psql(
		'postgres', 'SELECT deferred_relations, passes FROM pg_stat_lazydrop'
	),
	'1|1',
	'not on the primary');

# --- a timeout, and a canceled query ----------------------------------------

hold_at($standby, 'lazydrop-removal');
$number = drop_table();
my ($status, $out, $err) =
  $standby->psql('postgres', q{SELECT pg_lazydrop_drain('100 ms')});
is($status, 3, 'no time');
like($err, qr/ERROR:  timed out while waiting for lazy drop/, 'is told');
($status, $out, $err) =
  $standby->psql('postgres', q{SELECT pg_lazydrop_drain('0')});
like(
	$err,
	qr/ERROR:  timed out while waiting for lazy drop/,
	'no time at all');
is(pending($standby), "$number|relation|f|f", 'it is still pending');

my $cancelled = $standby->background_psql('postgres', on_error_stop => 0);
$cancelled->query_until(qr/begun/,
	"\\echo begun\nSELECT pg_lazydrop_drain();\n\\echo ended\n");
my $drain = $standby->background_psql('postgres');
$standby->wait_for_event('client backend', 'LazyDropDrain');
$standby->safe_psql('postgres',
	q{SELECT pg_cancel_backend(pid) FROM pg_stat_activity WHERE wait_event = 'LazyDropDrain'}
);
$cancelled->query_until(qr/ended/, "\n");
like(
	$cancelled->{stderr},
	qr/canceling statement due to user request/,
	'a drain is cancelled');
$cancelled->quit;

# The worker is woken immediately, and does not wait for lazydrop.pass_delay.  The drain
# also waits for the buffers, but not for relations that are dropped meanwhile.
$standby->wait_for_event('lazy drop worker', 'lazydrop-removal');
begin_drain($standby, $drain);
hold_at($standby, 'lazydrop-worker');
release($standby, 'lazydrop-removal');
$standby->wait_for_event('lazy drop worker', 'lazydrop-worker');
is(pending($standby), "$number|relation|f|t", 'the files are removed');
$standby->wait_for_event('client backend', 'LazyDropDrain');
my $later = drop_table();
release($standby, 'lazydrop-worker');
like($drain->query_until(qr/ended/, "\n"),
	qr/left: 1\n/, 'a drain ends with the pass');
$standby->poll_query_until('postgres',
	'SELECT bool_and(files_done) FROM pg_lazydrop_pending')
  or die 'files are not removed';
is(pending($standby), "$later|relation|t|t",
	'and leaves what was dropped meanwhile, but for its buffers');
$drain->quit;

# --- buried again -----------------------------------------------------------

# DROP DATABASE is canceled after it has released its files, and is repeated.  Replay of
# the second record finds the entry of the first, and the earlier drain waits for its
# files.
$primary->safe_psql('postgres', 'CREATE DATABASE d');
my $database = $primary->safe_psql('postgres',
	q{SELECT oid FROM pg_database WHERE datname = 'd'});
$primary->wait_for_replay_catchup($standby);
$standby->safe_psql('postgres', q{SELECT pg_lazydrop_drain('30 s')});
hold_at($standby, 'lazydrop-removal');
hold_at($primary, 'lazydrop-database-forgotten');
my $dropper = $primary->background_psql('postgres', on_error_stop => 0);
$dropper->query_until(qr/begun/, "\\echo begun\nDROP DATABASE d;\n");
$primary->wait_for_event('client backend', 'lazydrop-database-forgotten');
$primary->safe_psql('postgres',
	q{SELECT pg_cancel_backend(pid) FROM pg_stat_activity WHERE wait_event = 'lazydrop-database-forgotten'}
);
$dropper->quit;
$primary->safe_psql('postgres',
	q{SELECT injection_points_detach('lazydrop-database-forgotten')});
$primary->wait_for_replay_catchup($standby);
is(pending($standby), '|database|f|f', 'a database is pending');
my $files = $standby->data_dir . "/base/$database";
$drain = $standby->background_psql('postgres');
begin_drain($standby, $drain);
$standby->wait_for_event('lazy drop worker', 'lazydrop-removal');
my $before = $standby->safe_psql('postgres', 'SELECT clock_timestamp()');
$primary->safe_psql('postgres', 'DROP DATABASE d');
$primary->wait_for_replay_catchup($standby);
is( $standby->safe_psql(
		'postgres',
		"SELECT count(*), bool_and(since < '$before') FROM pg_lazydrop_pending"
	),
	'1|t',
	'it is the same entry, and as old as it was');
ok(-d $files, 'with its files');
release($standby, 'lazydrop-removal');
like($drain->query_until(qr/ended/, "\n"),
	qr/left: 0\n/, 'a drain waits for what is buried again');
ok(!-d $files, 'and for its files');
$drain->quit;

# --- while there is no worker -----------------------------------------------

# A drain waits until there is a worker again.  No connection can be made while the
# postmaster is stopped.
SKIP:
{
	skip 'no signals', 3 if $windows_os;
	my $monitor = $primary->background_psql('postgres');
	$drain = $primary->background_psql('postgres');
	$dropper = $primary->background_psql('postgres');
	my $ask = sub {
		my ($query, $expected) = @_;
		return wait_until(sub { $monitor->query_safe($query) eq $expected });
	};

	$primary->safe_psql('postgres', 'CREATE TABLE t AS SELECT 1 AS a');
	hold_at($primary, 'lazydrop-buried');
	$dropper->query_until(qr/begun/, "\\echo begun\nDROP TABLE t;\n");
	$primary->wait_for_event('client backend', 'lazydrop-buried');
	my $worker = stats($primary)->{worker_pid};
	my $postmaster =
	  (split /\n/, slurp_file($primary->data_dir . '/postmaster.pid'))[0];
	kill('STOP', $postmaster);
	eval {
		kill('TERM', $worker);
		ok($ask->('SELECT worker_pid IS NULL FROM pg_stat_lazydrop', 't'),
			'there is no worker');
		$drain->query_until(qr/begun/,
			"\\echo begun\nSELECT pg_lazydrop_drain();\n\\echo ended\n");
		ok( $ask->(
				q{SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'LazyDropDrain'},
				'1'),
			'a drain waits, asleep');
		$monitor->query_safe(
			q{SELECT injection_points_detach('lazydrop-buried');
			  SELECT injection_points_wakeup('lazydrop-buried')});
	};
	my $error = $@;
	kill('CONT', $postmaster);
	die $error if $error;
	$drain->query_until(qr/ended/, "\n");
	is($monitor->query_safe('SELECT count(*) FROM pg_lazydrop_pending'),
		'0', 'and ends when a new worker has done the work');
	$_->quit foreach $monitor, $drain, $dropper;
}
wait_until(sub { defined stats($primary)->{worker_pid} })
  or die 'there is no new worker';
$primary->wait_for_event('lazy drop worker', 'LazyDropMain');

# --- dump -------------------------------------------------------------------

$primary->safe_psql(
	'postgres', q{
	CREATE ROLE operator;
	GRANT EXECUTE ON FUNCTION pg_lazydrop_drain(interval) TO operator;
	CREATE VIEW mine AS SELECT pending_relations FROM pg_stat_lazydrop;
	CREATE DATABASE copy});
my $acls = q{
	SELECT p.oid::regprocedure::text, p.proacl FROM pg_proc AS p WHERE p.proname LIKE 'pg_%lazydrop%'
	UNION ALL
	SELECT c.relname::text, c.relacl FROM pg_class AS c WHERE c.relname ~ 'lazydrop'
	ORDER BY 1};
my $dump = $primary->basedir . '/dump.sql';
$primary->command_ok(
	[
		'pg_dump',
		'--file' => $dump,
		'--dbname' => $primary->connstr('postgres')
	],
	'pg_dump');
my $text = slurp_file($dump);
like(
	$text,
	qr/CREATE EXTENSION IF NOT EXISTS pg_lazydrop /,
	'creates the extension');
unlike(
	$text,
	qr/CREATE (VIEW|FUNCTION) \S*(pg_lazydrop|pg_stat)/,
	'and not what belongs to it');
$primary->command_ok(
	[
		'psql', '--no-psqlrc', '--quiet',
		'--set' => 'ON_ERROR_STOP=1',
		'--file' => $dump,
		'--dbname' => $primary->connstr('copy')
	],
	'restored');
is( $primary->safe_psql('copy', $acls),
	$primary->safe_psql('postgres', $acls),
	'with its privileges');
is($primary->safe_psql('copy', 'SELECT pending_relations >= 0 FROM mine'),
	't', 'and a view that uses it');

# --- update -----------------------------------------------------------------

SKIP:
{
	skip 'PostgreSQL 17 has no extension_control_path', 1 if pg_major() < 18;

	# The latest version is installed, so create a newer one here.
	my $directory = PostgreSQL::Test::Utils::tempdir();
	my $source = "$FindBin::RealBin/..";
	mkdir "$directory/extension" or die "could not create directory: $!";
	my $control = slurp_file("$source/pg_lazydrop.control");
	$control =~ s/^default_version = .*$/default_version = '99.0'/m;
	append_to_file("$directory/extension/pg_lazydrop.control", $control);
	append_to_file("$directory/extension/$_", slurp_file("$source/$_"))
	  foreach qw(pg_lazydrop--1.0.sql pg_lazydrop--1.0--1.1.sql);
	append_to_file("$directory/extension/pg_lazydrop--1.1--99.0.sql",
		<<'END');
/* contrib/pg_lazydrop/pg_lazydrop--1.1--99.0.sql */
\echo Use "ALTER EXTENSION pg_lazydrop UPDATE TO '99.0'" to load this file. \quit
DROP VIEW pg_stat_lazydrop;
CREATE VIEW pg_stat_lazydrop AS
	SELECT *, pending_relations + pending_databases AS pending FROM pg_stat_get_lazydrop();
REVOKE ALL ON pg_stat_lazydrop FROM PUBLIC;
GRANT SELECT ON pg_stat_lazydrop TO pg_monitor;
END
	my $separator = $windows_os ? ';' : ':';
	$directory =~ s{\\}{\\\\}g if $windows_os;
	$primary->append_conf('postgresql.conf',
		"extension_control_path = '$directory$separator\$system'");
	$primary->reload;
	$primary->poll_query_until('postgres',
		q{SELECT default_version = '99.0' FROM pg_available_extensions WHERE name = 'pg_lazydrop'}
	) or die 'no new version';
	$primary->safe_psql('postgres',
		'DROP VIEW mine; ALTER EXTENSION pg_lazydrop UPDATE');
	is( $primary->safe_psql(
			'postgres',
			'SELECT extversion, pending >= 0 FROM pg_extension, pg_stat_lazydrop WHERE extname = $$pg_lazydrop$$'
		),
		'99.0|t',
		'updated');
}

# --- no worker --------------------------------------------------------------

# A standby's setting must not be lower than the value that it knows of its primary.
foreach my $node ($primary, $standby)
{
	$node->append_conf('postgresql.conf', 'max_worker_processes = 0');
	$node->restart;
	$primary->wait_for_replay_catchup($standby);
}
is( $standby->safe_psql(
		'postgres', 'SELECT worker_pid IS NULL FROM pg_stat_lazydrop'),
	't',
	'there is no worker');
$number = drop_table();
is(pending($standby), "$number|relation|f|t",
	'buffers are pending all the same');
my (undef, undef, $stderr) =
  $standby->psql('postgres', q{SELECT pg_lazydrop_drain('100 ms')});
like(
	$stderr,
	qr/timed out while waiting for lazy drop/,
	'a drain waits for a worker, up to its limit');

# --- psql -------------------------------------------------------------------

SKIP:
{
	skip 'IO::Pty is needed', 2 unless eval { require IO::Pty };
	skip 'psql has no readline', 2
	  unless ($ENV{with_readline} // '') eq 'yes';
	local $ENV{TERM} = 'xterm';
	local $ENV{INPUTRC} = File::Spec->devnull;
	my $psql = $primary->interactive_psql('postgres');
	like(
		$psql->query_until(
			qr/lazydrop\.pass_delay /,
			"ALTER SYSTEM SET lazydrop.pa\t"),
		qr/lazydrop\.pass_delay/,
		'tab completes the name of a setting');
	$psql->query_until(qr/postgres=# /, "\025\n");
	like($psql->query_until(qr/lazydrop\.enabled /, "SHOW lazydrop.en\t"),
		qr/lazydrop\.enabled/, 'for SHOW as well');
	$psql->query_until(qr/postgres=# /, "\025\n");
	$psql->quit;
}

$standby->stop;
$primary->stop;
done_testing();
