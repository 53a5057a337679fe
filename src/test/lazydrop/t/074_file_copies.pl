# Copyright (c) 2026, LazyDrop developers

# A standby has replayed a copy of a database's files and continues.  Then the source
# changes.  If the standby crashed after that, and before a restartpoint later than the
# copy, it would copy the changed source.  Replay of the change therefore waits for the
# restartpoint, which is held here, and nothing else waits (rule R17).  The standby is
# killed before and after the restartpoint, and must have the same contents as the
# primary.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/..";
use LazyDropFiles qw(contents);
use LazyDropUtils
  qw(hold_at release need_injection_points start_quiet_pair wait_until);
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use StockFault qw(can_lease begin_copy end_lease);
use Test::More;

need_injection_points();

my $point = 'create-restart-point';
my $event = 'LazyDropRestartpoint';
my ($primary, $standby) =
  start_quiet_pair('wal_retrieve_retry_interval' => '100ms');

sub on_primary
{
	my ($database, @sql) = @_;
	$primary->safe_psql($database, $_) foreach @sql;
	return;
}

# Make a restartpoint later than all records; after a crash, replay begins there.
sub restartpoint
{
	on_primary('postgres', 'CHECKPOINT');
	$primary->wait_for_replay_catchup($standby);
	$standby->safe_psql('postgres', 'CHECKPOINT');
	return;
}

sub caught_up
{
	my $lsn = $primary->lsn('flush');
	return $standby->safe_psql('postgres',
		"SELECT pg_last_wal_replay_lsn() >= '$lsn'") eq 't';
}

sub replay_waits
{
	return $standby->safe_psql('postgres',
		"SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'startup' AND wait_event = '$event'"
	) eq '1';
}

# Returns whether replay waits before it has reached the end of WAL.
sub waits_before_end
{
	wait_until(sub { replay_waits() || caught_up() })
	  or die 'replay neither waits nor goes on';
	return !caught_up();
}

sub is_like_primary
{
	my ($what) = @_;
	$primary->wait_for_replay_catchup($standby);
	is_deeply(
		contents($standby, except => ['s']),
		contents($primary, except => ['s']), $what);
	return;
}

sub crash
{
	$standby->stop('immediate');
	$standby->start;
	return;
}

on_primary('postgres',
	map { "CREATE TABLESPACE $_ LOCATION ''" } qw(there elsewhere unused));

# --- changes to a source ----------------------------------------------------

# Each change is made to a database with a table "t", right after a copy of it.
my @changes = (
	[ 'a row is inserted', sub { on_primary($_[0], 'INSERT INTO t VALUES (0)') } ],
	[ 'a sequence goes on', sub { on_primary($_[0], q{SELECT nextval('s')}) } ],
	[ 'a table is created', sub { on_primary($_[0], 'CREATE TABLE u ()') } ],
	[ 'a table is truncated', sub { on_primary($_[0], 'TRUNCATE t') } ],
	[
		'a table is emptied',
		sub { on_primary($_[0], 'DELETE FROM t', 'VACUUM t') }
	],
	[ 'a table is dropped', sub { on_primary($_[0], 'DROP TABLE t') } ],
	[
		'a mapped catalog is rewritten',
		sub { on_primary($_[0], 'VACUUM FULL pg_class') }
	],
	[
		'a table is moved',
		sub { on_primary($_[0], 'ALTER TABLE t SET TABLESPACE elsewhere') }
	],
	[
		'the database is dropped',
		sub { on_primary('postgres', "DROP DATABASE $_[0]") }
	],
	[
		'the database is moved',
		sub {
			on_primary('postgres', "ALTER DATABASE $_[0] SET TABLESPACE there");
		}
	],
	[
		'the database is dropped and another one is copied',
		sub {
			on_primary('postgres',
				"DROP DATABASE $_[0]",
				'CREATE DATABASE other STRATEGY file_copy');
		}
	],
	[
		'a tablespace is dropped',
		sub { on_primary('postgres', 'DROP TABLESPACE unused') }
	]);

my $n = 0;
foreach my $change (@changes)
{
	my ($what, $do) = @$change;
	my ($source, $copy) = map { $_ . $n } qw(source copy);
	$n++;
	on_primary('postgres', "CREATE DATABASE $source");
	on_primary($source,
		'CREATE TABLE t AS SELECT generate_series(1, 1000) AS i',
		'CREATE SEQUENCE s');
	restartpoint();

	hold_at($standby, $point);
	on_primary('postgres',
		"CREATE DATABASE $copy TEMPLATE $source STRATEGY file_copy");
	on_primary($copy, 'CREATE TABLE v AS SELECT 1 AS i',
		'INSERT INTO t VALUES (-1)');
	on_primary('postgres', "CREATE TABLE v$n AS SELECT 1 AS i");
	ok(!waits_before_end(), "$what: replay does not wait for a copy");
	$do->($source);
	ok(waits_before_end(), "$what: replay waits");
	crash();
	is_like_primary("$what: a crash before the restartpoint");
	crash();
	is_like_primary("$what: a crash after it");
	on_primary('postgres',
		map { "DROP DATABASE IF EXISTS $_" } $source, $copy, 'other');
}

# --- a move -----------------------------------------------------------------

# It ends with the removal of its source.
on_primary('postgres', 'CREATE DATABASE moved');
on_primary('moved', 'CREATE TABLE t AS SELECT generate_series(1, 1000) AS i');
restartpoint();
hold_at($standby, $point);
on_primary('postgres', 'ALTER DATABASE moved SET TABLESPACE there');
ok(waits_before_end(), 'a move: replay waits');
like(
	slurp_file($standby->logfile),
	qr/LOG:  recovery waits for a restartpoint at/,
	'a move: the log says so');
crash();
is_like_primary('a move: a crash before the restartpoint');
on_primary('moved', 'INSERT INTO t VALUES (0)');
crash();
is_like_primary('a move: a crash after it');

# --- changes that need not wait ---------------------------------------------

on_primary('postgres', 'CREATE DATABASE template');
restartpoint();
hold_at($standby, $point);
foreach my $i (1 .. 3)
{
	on_primary('postgres',
		"CREATE DATABASE clone$i TEMPLATE template STRATEGY file_copy");
	on_primary("clone$i", 'CREATE TABLE t AS SELECT 1 AS i',
		'DROP TABLE t', 'VACUUM FULL pg_class');
	on_primary('postgres', "DROP DATABASE clone$i");
}
ok(!waits_before_end(), 'replay waits for nothing that is done to copies');

# A shutdown ends the wait, although the checkpointer does not exit.
on_primary('template', 'CREATE TABLE t ()');
ok(waits_before_end(), 'replay waits');
my $pid = $standby->safe_psql('postgres',
	q{SELECT pid FROM pg_stat_activity WHERE backend_type = 'startup'});
$standby->command_ok(
	[
		'pg_ctl', 'stop',
		'--pgdata' => $standby->data_dir,
		'--mode' => 'fast',
		'--no-wait'
	],
	'a shutdown');
ok(wait_until(sub { !kill(0, $pid) }), 'ends the wait');
crash();
is_like_primary('and the next start goes on');

# --- more sources than are remembered ---------------------------------------

# 15 sources are remembered; any further one counts as all databases.
on_primary('postgres', map { "CREATE DATABASE many$_" } 1 .. 17);
restartpoint();
hold_at($standby, $point);
my @copies = map { "CREATE DATABASE of_many$_ TEMPLATE many$_ STRATEGY file_copy" } 1 .. 17;
on_primary('postgres', @copies[ 0 .. 14 ], 'CREATE TABLE many AS SELECT 1 AS i');
ok(!waits_before_end(), 'many sources: replay does not wait');
on_primary('postgres', @copies[ 15 .. 16 ], 'INSERT INTO many VALUES (2)');
ok(waits_before_end(), 'many sources: replay waits for any change');
on_primary('many17', 'CREATE TABLE t AS SELECT 1 AS i');
crash();
is_like_primary('many sources: a crash');
on_primary('postgres', map { ("DROP DATABASE of_many$_", "DROP DATABASE many$_") } 1 .. 17);

# --- failing restartpoints --------------------------------------------------

# Each restartpoint needs this directory.
my $directory = 'pg_logical/mappings';

sub hide_directory
{
	my ($node) = @_;
	my $path = $node->data_dir . "/$directory";
	rename($path, "$path.away") or die "could not rename $path: $!";
	return;
}

sub show_directory
{
	my ($node) = @_;
	my $path = $node->data_dir . "/$directory";
	rename("$path.away", $path) or die "could not rename $path.away: $!";
	return;
}

my $offset = -s $standby->logfile;
hide_directory($standby);
on_primary('postgres',
	'CREATE DATABASE copy_a TEMPLATE template STRATEGY file_copy');
$primary->wait_for_replay_catchup($standby);
on_primary('template', 'CREATE TABLE a ()');
$standby->wait_for_log(qr/ERROR:  could not open directory "$directory"/,
	$offset);
ok(!caught_up(), 'replay waits when a restartpoint fails');
show_directory($standby);
$primary->wait_for_replay_catchup($standby);
pass('and goes on when the next one succeeds');
unlike(slurp_file($standby->logfile, $offset),
	qr/continues without/, 'for which it has waited');

$offset = -s $standby->logfile;
hide_directory($standby);
on_primary('postgres',
	'CREATE DATABASE copy_b TEMPLATE template STRATEGY file_copy');
$primary->wait_for_replay_catchup($standby);
on_primary('template', 'CREATE TABLE b ()');
$standby->wait_for_log(qr/WARNING:  recovery continues without a restartpoint/,
	$offset);
$primary->wait_for_replay_catchup($standby);
pass('it goes on in the end');
show_directory($standby);

# --- a copy without a checkpoint --------------------------------------------

# The primary's checkpoint after the copy fails, so there is nothing to wait for.
SKIP:
{
	skip 'no leases', 2 if !can_lease();
	restartpoint();
	my ($session, undef, $lease) = begin_copy($primary, 'template', 'PG_VERSION',
		'CREATE DATABASE failed TEMPLATE template STRATEGY file_copy');
	$offset = -s $primary->logfile;
	hide_directory($primary);
	end_lease($lease);
	$primary->wait_for_log(qr/ERROR:  checkpoint request failed/, $offset);
	show_directory($primary);
	$session->quit;
	is( $primary->safe_psql(
			'postgres',
			q{SELECT count(*) FROM pg_database WHERE datname = 'failed'}),
		'0',
		'a copy fails');
	on_primary('template', 'CREATE TABLE c ()');
	ok(!waits_before_end(), 'replay does not wait');
	is_like_primary('and has what the primary has');
}

# --- a promotion ------------------------------------------------------------

# The promotion waits for the restartpoint.  Files stay pending, so that the new primary
# can be held in its first checkpoint.
restartpoint();
hold_at($standby, 'lazydrop-removal');
on_primary('postgres', 'DROP TABLE many');
$primary->wait_for_replay_catchup($standby);
$standby->wait_for_event('lazy drop worker', 'lazydrop-removal');
hold_at($standby, $point);
on_primary('postgres',
	'CREATE DATABASE promoted TEMPLATE template STRATEGY file_copy');
$primary->wait_for_replay_catchup($standby);
$primary->stop;
$standby->safe_psql('postgres', 'SELECT pg_promote(false)');
wait_until(
	sub {
		replay_waits()
		  || $standby->safe_psql('postgres', 'SELECT pg_is_in_recovery()') eq
		  'f';
	}) or die 'a promotion neither waits nor ends';
my $waits = replay_waits();
ok($waits, 'a promotion waits');
if ($waits)
{
	$standby->wait_for_event('checkpointer', $point);
	hold_at($standby, 'lazydrop-checkpoint');
	release($standby, $point);
	$standby->poll_query_until('postgres', 'SELECT NOT pg_is_in_recovery()')
	  or die 'the promotion does not end';
	$standby->wait_for_event('checkpointer', 'lazydrop-checkpoint');
}
$standby->safe_psql('template', 'DROP TABLE a');
crash();
is( $standby->safe_psql(
		'promoted', q{SELECT count(*) FROM pg_class WHERE relname = 'a'}),
	'1',
	'a copy after a promotion, a change of its source, and a crash');
is($standby->safe_psql('promoted', 'SELECT count(*) FROM a'),
	'0', 'with its files');

done_testing();
