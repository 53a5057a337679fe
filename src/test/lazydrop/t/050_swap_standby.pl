# Copyright (c) 2026, LazyDrop developers

# The steps that README and the manual recommend to an operator: start the fork on a
# standby whose primary is stock PostgreSQL, check without any extension that it works and
# how far behind it is, and return to stock.  The queries are taken from the manual.  The
# test also loads pg_lazydrop in a stock server, which must reject it with a message.
#
# LAZYDROP_STOCK is explained in DropIn.pm.

use strict;
use warnings FATAL => 'all';

use File::Spec::Functions qw(devnull);
use FindBin;
use lib "$FindBin::RealBin/..";
use LazyDropUtils qw(stats wait_for_stats wait_for_nothing start_as pg_major);
use ManualQueries qw(manual_queries monitoring_queries);
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $stock = $ENV{LAZYDROP_STOCK} // '';
plan skip_all =>
  'LAZYDROP_STOCK does not name an installation of PostgreSQL built from the same source'
  if $stock eq '';

my $tables = 500;
my $stats_query = q{SELECT current_setting('lazydrop.stats', true)};

# --- a stock primary with a stock standby -----------------------------------

my $primary =
  PostgreSQL::Test::Cluster->new('primary', install_path => $stock);
$primary->init(allows_streaming => 1, force_initdb => 1);
$primary->append_conf(
	'postgresql.conf', q{
autovacuum = off
shared_buffers = 64MB
# for the standby, when it is the fork: stock takes no notice
lazydrop.lookup_limit = 0
lazydrop.pass_delay = 60s
lazydrop.log_passes = on
});
start_as($primary, 'stock');
$primary->backup('backup');
my $standby =
  PostgreSQL::Test::Cluster->new('standby', install_path => $stock);
$standby->init_from_backup($primary, 'backup', has_streaming => 1);
start_as($standby, 'stock');
$primary->safe_psql('postgres', 'CREATE TABLE stays AS SELECT 1 AS a');
$primary->wait_for_replay_catchup($standby);

# The check, which a monitoring system runs on all servers.
my %query = (manual_queries('lazydrop.sgml'), monitoring_queries());
my $check = $query{'lazydrop_check.sql'};

sub check
{
	my ($node, $settings) = @_;
	my $result = $node->safe_psql('postgres', ($settings // '') . $check);
	return ($result =~ /(OK|WARNING|CRITICAL|UNKNOWN)/)[0] // $result;
}

is(check($standby), 'UNKNOWN', 'the check knows stock');

# --- swap -------------------------------------------------------------------

$standby->stop;
start_as($standby, 'fork');
like($standby->safe_psql('postgres', 'SHOW server_version'),
	qr/\(LazyDrop \d/, 'the standby is LazyDrop');
is( $standby->safe_psql('postgres', 'SHOW server_version_num'),
	$primary->safe_psql('postgres', 'SHOW server_version_num'),
	'of the same version');
ok( $standby->poll_query_until(
		'postgres',
		q{SELECT count(*) = 1 FROM pg_stat_activity
		  WHERE backend_type = 'lazy drop worker'
		  AND pid = (current_setting('lazydrop.stats')::jsonb->>'worker_pid')::int}
	),
	'its worker is there');
is(check($standby), 'OK', 'the check is content');

# --- a storm of drops -------------------------------------------------------

$primary->safe_psql(
	'postgres', qq{
	SELECT format('CREATE TABLE t%s AS SELECT 1 AS a', i) FROM generate_series(1, $tables) AS i \\gexec
	CREATE DATABASE d});
my $filepaths = $primary->safe_psql(
	'postgres', q{
	SELECT pg_relation_filepath(oid) FROM pg_class WHERE relname ~ '^t\d+$'});
$primary->safe_psql(
	'postgres', qq{
	SELECT format('DROP TABLE t%s', i) FROM generate_series(1, $tables) AS i \\gexec
	DROP DATABASE d});
$primary->wait_for_replay_catchup($standby);
my $stats = stats($standby);
is($stats->{pending_relations}, $tables,
	'the drops are replayed and pending');
is($stats->{pending_databases}, 1, 'and the database');
is($stats->{sync_fallbacks}, 0, 'nothing was done as in stock');
cmp_ok($stats->{bytes_removed} + $stats->{pending_bytes},
	'>', 0, 'their files are being removed');
is($stats->{passes}, 0, 'without a pass');

is(check($standby, "\\set warning 0\n"), 'WARNING', 'the check warns');
is(check($standby, "\\set critical 0\n"), 'CRITICAL', 'or says more');

# The queries in the manual and in the files for monitoring run here, without the
# extension.
foreach my $id (sort keys %query)
{
	my ($status, $out, $err) = $standby->psql('postgres', $query{$id});
	is("$status $err", '0 ', "$id runs on the standby");
	note $out;
}
my ($status, $out, $err) =
  $standby->psql('postgres', 'CREATE EXTENSION pg_lazydrop');
like($err, qr/read-only transaction/, 'there is no extension on a standby');

# According to the manual, a reload is enough to shorten the delay.
$standby->safe_psql('postgres',
	q{ALTER SYSTEM SET lazydrop.pass_delay = '0'});
$standby->reload;
wait_for_nothing($standby);
$stats = stats($standby);
is($stats->{deferred_relations}, $tables, 'all were dropped lazily');
cmp_ok($stats->{passes}, '<=', 10, 'in few passes');
like(
	slurp_file($standby->logfile),
	qr/LOG:  lazy drop pass complete: \d+ relations and 1 database directories/,
	'lazydrop.log_passes tells');
is_deeply([ grep { -e $standby->data_dir . "/$_" } split /\n/, $filepaths ],
	[], 'files are gone');
is(check($standby), 'OK', 'the check is content again');

# --- and back to stock ------------------------------------------------------

# Something is pending, so that there is an entry to forget.
$standby->safe_psql('postgres', 'ALTER SYSTEM RESET lazydrop.pass_delay');
$standby->reload;
$primary->safe_psql('postgres',
	'CREATE TABLE last AS SELECT 1 AS a; DROP TABLE last');
$primary->wait_for_replay_catchup($standby);
wait_for_stats($standby, q{s->>'pending_relations' = '1'});
$standby->stop;
start_as($standby, 'stock');
unlike($standby->safe_psql('postgres', 'SELECT version()'),
	qr/LazyDrop/, 'the standby is stock PostgreSQL');
is($standby->safe_psql('postgres', $stats_query),
	'', 'there is no lazydrop.stats');
is(check($standby), 'UNKNOWN', 'and the check knows');
$primary->safe_psql('postgres', 'INSERT INTO stays VALUES (2)');
$primary->wait_for_replay_catchup($standby);
is($standby->safe_psql('postgres', 'SELECT sum(a) FROM stays'),
	'3', 'it goes on as a standby');

# --- the extension in a stock server ----------------------------------------

# This is like an operator copying the fork's files into stock's directories.
my ($fork_libdir) = run_command([ 'pg_config', '--pkglibdir' ]);
my ($fork_share) = run_command([ 'pg_config', '--sharedir' ]);
my ($version) = run_command([ "$stock/bin/postgres", '--version' ]);
$version =~ s/^.* (\S+)$/$1/;
# PostgreSQL 17 has no extension_control_path, so only the library is tested there.
my $has_path = pg_major() >= 18;
my $load = $has_path ? 'CREATE EXTENSION pg_lazydrop' : q{LOAD 'pg_lazydrop'};
SKIP:
{
	skip 'pg_lazydrop is not installed', 3
	  unless -e "$fork_share/extension/pg_lazydrop.control";
	my $separator = $windows_os ? ';' : ':';
	$primary->append_conf('postgresql.conf',
		"dynamic_library_path = '\$libdir$separator$fork_libdir'");
	$primary->append_conf('postgresql.conf',
		"extension_control_path = '$fork_share$separator\$system'")
	  if $has_path;
	$primary->restart;
	($status, $out, $err) = $primary->psql('postgres', $load);
	like(
		$err,
		qr/\A\S* ERROR:  extension "pg_lazydrop" requires a LazyDrop server\nDETAIL:  This server is PostgreSQL \Q$version\E\.(?:\nCONTEXT: (?:(?!ERROR).)*)?\z/s,
		"$load in stock fails with one clear message");
	($status, $out, $err) = $primary->psql('postgres', q{LOAD 'pg_lazydrop'});
	like($err, qr/requires a LazyDrop server/, 'LOAD says the same');
	is($primary->safe_psql('postgres', 'SELECT count(*) FROM stays'),
		'2', 'the server goes on');
}

$standby->stop;
$primary->stop;

# Load the library at the start of the server, when the lazy drop may not exist yet.
SKIP:
{
	skip 'PostgreSQL 17 has no extension_control_path', 1 if !$has_path;
	skip 'pg_lazydrop is not installed', 1
	  unless -e "$fork_share/extension/pg_lazydrop.control";
	$primary->append_conf('postgresql.conf',
		q{shared_preload_libraries = 'pg_lazydrop'});
	start_as($primary, 'stock');
	($status, $out, $err) =
	  $primary->psql('postgres', 'CREATE EXTENSION pg_lazydrop');
	like(
		$err,
		qr/requires a LazyDrop server/,
		'CREATE EXTENSION fails when the library is loaded already');
	$primary->stop;
}

# A database with the extension is opened by a stock server that does not have it.
my $node = PostgreSQL::Test::Cluster->new('node');
$node->init;
start_as($node, 'fork');
$node->safe_psql('postgres', 'CREATE EXTENSION pg_lazydrop');
$node->stop;
start_as($node, 'stock');
($status, $out, $err) =
  $node->psql('postgres', 'SELECT * FROM pg_stat_lazydrop');
like(
	$err,
	qr/could not access file "(\$libdir\/)?pg_lazydrop"/,
	'views of the extension fail in stock');
$node->command_ok(
	[ 'pg_dump', '--file' => devnull(), $node->connstr('postgres') ],
	'the database can be dumped there');
$node->safe_psql('postgres', 'DROP EXTENSION pg_lazydrop');
is( $node->safe_psql(
		'postgres',
		q{SELECT count(*) FROM pg_class WHERE relname ~ 'lazydrop'}),
	'0',
	'and the extension be dropped');
$node->stop;
done_testing();
