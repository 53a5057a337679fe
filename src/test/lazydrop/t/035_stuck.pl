# Copyright (c) 2026, LazyDrop developers

# The worker is stuck in a system call on a file that it removes.  The only processes that
# wait for it are those that create a file with the same name (rules R5, R6, R16).

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/..";
use LazyDropFiles qw(relation_files add_segments database_directories);
use LazyDropPair  qw(start_pair on_primary catch_up workers_are_at);
use LazyDropUtils
  qw(stats wait_for_nothing hold_at release need_injection_points
  stop_with_clean_log);
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

need_injection_points();

use constant MB => 1024 * 1024;

my ($primary, $standby) = start_pair(
	'fsync' => 'on',
	'wal_keep_size' => '1GB');
my @nodes = ($primary, $standby);

# --- a set without a free entry ---------------------------------------------

# Replay of a copy of a database needs no entry, even if the directory exists.
$standby->append_conf('postgresql.conf', 'lazydrop.max_pending = 1');
$standby->restart;
hold_at($standby, 'lazydrop-step');
on_primary('CREATE TABLE t AS SELECT 1 AS a', 'DROP TABLE t');
catch_up();
$standby->wait_for_event('lazy drop worker', 'lazydrop-step');
on_primary('CHECKPOINT');
catch_up();
$standby->safe_psql('postgres', 'CHECKPOINT');
is(stats($standby)->{pending_relations},
	1, 'the only entry is one that the worker is at');
mkdir $standby->data_dir . '/base/90000'
  or die "could not make a directory: $!";
on_primary('CREATE DATABASE copied OID 90000 STRATEGY file_copy');
catch_up();
is($standby->safe_psql('copied', 'SELECT 1'),
	1, 'and replay of a copy over a directory does not wait for it');
release($standby, 'lazydrop-step');
$standby->append_conf('postgresql.conf', 'lazydrop.max_pending = 16384');
$standby->restart;

# --- a table ----------------------------------------------------------------

on_primary(q{CREATE TABLESPACE ts LOCATION ''},
	'CREATE TABLE t TABLESPACE ts AS SELECT generate_series(1, 1000) AS a');
my $path =
  $primary->safe_psql('postgres', q{SELECT pg_relation_filepath('t')});
catch_up();
foreach my $node (@nodes)
{
	add_segments($node, $path, 2, 40 * MB);
	hold_at($node, 'lazydrop-step');
}
on_primary('DROP TABLE t');
workers_are_at('lazydrop-step');

# --- on the primary ---------------------------------------------------------

on_primary('CHECKPOINT');
is_deeply([ relation_files($primary, $path) ],
	[], 'a checkpoint leaves no name of what the worker is at');
on_primary('DROP TABLESPACE ts');
pass('so does DROP TABLESPACE');
catch_up();
is_deeply([ relation_files($standby, $path) ], [], 'and its replay');
is(stats($primary)->{pending_relations},
	1, 'the entry stays, and keeps the name from coming back');
release($primary, 'lazydrop-step');
wait_for_nothing($primary);

# A session creates a database with an OID whose directory the worker is removing.
{
	on_primary('CREATE DATABASE d');
	my $oid = $primary->safe_psql('postgres',
		q{SELECT oid FROM pg_database WHERE datname = 'd'});
	hold_at($primary, 'lazydrop-step');
	on_primary('DROP DATABASE d');
	$primary->wait_for_event('lazy drop worker', 'lazydrop-step');
	my $creator = $primary->background_psql('postgres');
	$creator->query_until(qr/begun/,
		"\\echo begun\nCREATE DATABASE e OID $oid;\n\\echo done\n");
	$primary->wait_for_event('client backend', 'LazyDropReuse');
	is_deeply([ database_directories($primary, $oid) ],
		[], 'a creator removes the rest, and then waits for the worker');
	release($primary, 'lazydrop-step');
	$creator->query_until(qr/done/, "\n");
	$creator->quit;
	$primary->safe_psql('e', 'CREATE TABLE t AS SELECT 1 AS a');
	$primary->restart;
	is($primary->safe_psql('e', 'SELECT a FROM t'),
		1, 'what it has created is there');
}

# Between two steps, the worker blocks no other process.  By the time it continues, its
# entry has been settled, the name is in use again, and another name has taken the entry.
{
	on_primary('CREATE DATABASE g');
	my $oid = $primary->safe_psql('postgres',
		q{SELECT oid FROM pg_database WHERE datname = 'g'});
	hold_at($primary, 'lazydrop-removal-step');
	on_primary('DROP DATABASE g');
	$primary->wait_for_event('lazy drop worker', 'lazydrop-removal-step');
	on_primary("CREATE DATABASE g OID $oid");
	$primary->safe_psql('g', 'CREATE TABLE t AS SELECT 1 AS a');
	on_primary('CREATE TABLE x AS SELECT 1 AS a', 'DROP TABLE x');
	is(stats($primary)->{pending_relations}, 1, 'another entry is pending');
	release($primary, 'lazydrop-removal-step');
	wait_for_nothing($primary);
	$primary->restart;
	is($primary->safe_psql('g', 'SELECT a FROM t'),
		1, 'the worker leaves what has come back alone');
}

# --- promotion --------------------------------------------------------------

catch_up();
on_primary('CREATE UNLOGGED TABLE u AS SELECT 1 AS a', 'CREATE DATABASE f');
my $oid = $primary->safe_psql('postgres',
	q{SELECT oid FROM pg_database WHERE datname = 'f'});
on_primary('DROP DATABASE f');
catch_up();
$standby->promote;
is_deeply([ database_directories($standby, $oid) ],
	[], 'promotion does not wait for the worker');
is($standby->safe_psql('postgres', 'SELECT count(*) FROM u'),
	0, 'and resets unlogged tables');
release($standby, 'lazydrop-step');
wait_for_nothing($standby);

stop_with_clean_log($_) foreach @nodes;

done_testing();
