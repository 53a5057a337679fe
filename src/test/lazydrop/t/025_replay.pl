# Copyright (c) 2026, LazyDrop developers

# Cases that occur only in replay: it forgets the sync requests of the directories that a
# record names, and of no others (rule R2); it copies a database into a directory that
# already exists (rule R3); and it does all of this in a single process that runs
# indefinitely.

use strict;
use warnings FATAL => 'all';

use File::Path;
use FindBin;
use lib "$FindBin::RealBin/..";
use LazyDropUtils
  qw(stats wait_for_nothing start_quiet_node stop_with_clean_log evict);
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $primary = start_quiet_node(
	'primary',
	'log_checkpoints' => 'on',
	'max_wal_size' => '4GB');
$primary->safe_psql('postgres', 'CREATE EXTENSION pg_buffercache');
$primary->safe_psql('postgres',
	q{CREATE TABLESPACE there LOCATION ''; CREATE TABLESPACE third LOCATION ''}
	  =~ s/; /;\n/r);
$primary->backup('backup');
my $standby = PostgreSQL::Test::Cluster->new('standby');
$standby->init_from_backup($primary, 'backup', has_streaming => 1);

# Sync requests are kept only if fsync is on.
$standby->append_conf('postgresql.conf', 'fsync = on');
$standby->start;

sub restartpoint
{
	$primary->safe_psql('postgres', 'CHECKPOINT');
	$primary->wait_for_replay_catchup($standby);
	my $offset = -s $standby->logfile;
	$standby->safe_psql('postgres', 'CHECKPOINT');
	return slurp_file($standby->logfile, $offset);
}

# --- sync requests ----------------------------------------------------------

# Move a database with tables in a third tablespace.  (066 shows that its sync requests
# are not forgotten.)
$primary->safe_psql('postgres', 'CREATE DATABASE d');
$primary->safe_psql(
	'd',
	join('',
		map { "CREATE TABLE t$_ TABLESPACE third AS SELECT 1 AS a;\n" }
		  1 .. 50));
$primary->safe_psql('postgres', 'ALTER DATABASE d SET TABLESPACE there');
restartpoint();

# A dropped database has no sync requests.
$primary->safe_psql('d',
	join('', map { "INSERT INTO t$_ VALUES (2);\n" } 1 .. 50));
$primary->wait_for_replay_catchup($standby);
evict($standby, 'postgres');
$primary->safe_psql('postgres', 'DROP DATABASE d');
my $log = restartpoint();
my ($files) = $log =~ /restartpoint complete: .*sync files=(\d+)/;
cmp_ok($files // 50, '<', 50, 'replay of DROP DATABASE forgets all of them');

# --- a copy into an existing directory --------------------------------------

# The primary crashes while a transaction has a table in a directory of its database.  The
# standby keeps the directory and its pages.  Then the directory is created again.
$primary->safe_psql('postgres', 'CREATE DATABASE d');
my $session = $primary->background_psql('d');
my $path = $session->query_safe(
	q{BEGIN; CREATE TABLE x TABLESPACE there AS SELECT generate_series(1, 1000) AS a; SELECT pg_relation_filepath('x')}
);
$primary->safe_psql('postgres',
	q{SELECT pg_logical_emit_message(true, '', '')});
$primary->wait_for_replay_catchup($standby);
$primary->stop('immediate');
eval { $session->quit };
my ($number) = $path =~ /(\d+)$/;
my $cached = qq{
	SELECT count(*) FROM pg_buffercache
	WHERE relfilenode = $number AND reltablespace =
		(SELECT oid FROM pg_tablespace WHERE spcname = 'there')};
cmp_ok($standby->safe_psql('postgres', $cached),
	'>', 0, 'the standby has pages of a table that is nowhere else');
$primary->start;
rmtree($primary->data_dir . '/' . ($path =~ s{/\d+$}{}r));
$primary->safe_psql('postgres', 'ALTER DATABASE d SET TABLESPACE there');
$primary->wait_for_replay_catchup($standby);
is($standby->safe_psql('postgres', $cached),
	'0', 'and not when the directory has been made anew');

# Without a directory there are no pages, so replay does not search for any.  (The record
# of the removal of the old directory is written after the commit, and is not flushed.)
$primary->wait_for_catchup($standby, 'replay', $primary->lsn('insert'));
wait_for_nothing($standby);
my $passes = stats($standby)->{passes};
$primary->safe_psql('postgres', "CREATE DATABASE copy$_ STRATEGY file_copy")
  foreach 1 .. 10;
$primary->wait_for_replay_catchup($standby);
is($standby->safe_psql('copy10', 'SELECT 1'), 1, 'ten databases are copied');
is(stats($standby)->{passes}, $passes, 'without a pass');

# --- memory of the startup process ------------------------------------------

# Returns the number of bytes used in the context that exists as long as the process.
sub startup_memory
{
	my $offset = -s $standby->logfile;
	$standby->safe_psql('postgres',
		q{SELECT pg_log_backend_memory_contexts(pid) FROM pg_stat_activity WHERE backend_type = 'startup'}
	);

	# The process handles the request when it is woken.
	$primary->safe_psql('postgres',
		q{SELECT pg_logical_emit_message(true, '', '')});
	$standby->wait_for_log(qr/Grand total: \d+ bytes/, $offset);
	my ($used) = slurp_file($standby->logfile, $offset) =~
	  /TopMemoryContext: .* (\d+) used/;
	return $used;
}

sub drop_many
{
	my ($n) = @_;
	$primary->safe_psql(
		'postgres', qq{
		SET synchronous_commit = off;
		DO \$\$ BEGIN
			FOR i IN 1 .. $n LOOP
				CREATE TABLE t (a int);
				COMMIT;
				DROP TABLE t;
				COMMIT;
			END LOOP;
		END \$\$;
		CREATE TABLE flush AS SELECT 1;
		DROP TABLE flush;});
	$primary->wait_for_replay_catchup($standby);
	return;
}
drop_many(100);
my $before = startup_memory();
my $buried = stats($standby)->{deferred_relations};
drop_many(1000);
is(stats($standby)->{deferred_relations} - $buried,
	1001, '1001 drops have been replayed');
is(startup_memory() - $before, 0, 'and have left nothing in memory');

stop_with_clean_log($_) foreach ($primary, $standby);

done_testing();
