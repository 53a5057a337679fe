# Copyright (c) 2026, LazyDrop developers

# A promotion waits neither for the files of dropped relations nor for buffers that a
# session has pinned.  No file is left after a crash of the new primary, or on the old
# primary when pg_rewind has copied from the new one (rule R16).

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/..";
use LazyDropFiles
  qw(add_segments hidden_files orphaned_files nothing_is_left);
use LazyDropUtils
  qw(stats wait_for_stats wait_for_nothing hold_at need_injection_points
  start_quiet_pair stop_with_clean_log);
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(time);

need_injection_points();

use constant MB => 1024 * 1024;
use constant GB => 1024 * MB;

# Large relations get this number of sparse segments without blocks on the disk.  They are
# small on the server that pg_rewind copies from, so that a failure cannot fill a disk.
use constant SEGMENTS => 20;
my %segment_size = ('standby_1' => GB, 'standby_2' => 8 * MB);

my ($primary, $standby) = start_quiet_pair(
	'fsync' => 'on',
	'lazydrop.lookup_limit' => '0',
	'lazydrop.pass_delay' => '60s',
	'wal_log_hints' => 'on',
	'wal_keep_size' => '1GB');

sub start_standby
{
	my ($name) = @_;
	my $node = PostgreSQL::Test::Cluster->new($name);
	$node->init_from_backup($primary, 'backup', has_streaming => 1);
	$node->start;
	return $node;
}

sub control_data
{
	my ($node, $name) = @_;
	my ($out, $err) =
	  run_command([ 'pg_controldata', '--pgdata' => $node->data_dir ]);
	$out =~ /^\Q$name\E: *(\S+)$/m
	  or die "unexpected output of pg_controldata: $out$err";
	return $1;
}

# Let the worker settle new drops immediately; with "later", from the next start on.
sub settle_at_once
{
	my ($node, $later) = @_;
	$node->append_conf('postgresql.conf', 'lazydrop.pass_delay = 0');
	$node->reload unless $later;
	return;
}

# --- a pinned buffer --------------------------------------------------------

# No lock of ALTER SEQUENCE reaches a standby, so a session there can keep a page of the
# old file pinned for any length of time.
{
	$primary->safe_psql('postgres', 'CREATE SEQUENCE s');
	$primary->wait_for_replay_catchup($standby);
	my $session = $standby->background_psql('postgres');
	$session->query_safe('BEGIN; DECLARE c CURSOR FOR SELECT * FROM s');
	like($session->query_safe('FETCH c'),
		qr/^1\|0\|f$/, 'a cursor on a sequence');
	$primary->safe_psql('postgres', 'ALTER SEQUENCE s INCREMENT 2');
	$primary->wait_for_replay_catchup($standby);
	is(stats($standby)->{pending_relations}, 1, 'its old file is pending');

	my $began = time();
	is($standby->safe_psql('postgres', 'SELECT pg_promote(true, 30)'),
		't', 'a promotion does not wait for the session');
	note sprintf('which took %.3f s', time() - $began);
	is($session->query_safe('SELECT name FROM pg_cursors'),
		'c', 'the session still has its cursor');
  SKIP:
	{
		skip 'still in recovery', 2
		  if $standby->safe_psql('postgres', 'SELECT pg_is_in_recovery()') eq
		  't';
		$standby->safe_psql('postgres', 'CHECKPOINT');
		pass('a checkpoint does not wait for it');
		$standby->safe_psql('postgres', q{SELECT nextval('s')});
		$standby->safe_psql('postgres', 'ALTER SEQUENCE s INCREMENT 3');
		$standby->safe_psql('postgres', 'CHECKPOINT');
		pass('nor does anything else');
	}
	is($session->query_safe('FETCH c'), '', 'and can go on with it');
	$session->query_safe('COMMIT');
	$session->quit;

	# If the promotion has waited for the pin, it completes now.
	$standby->poll_query_until('postgres', 'SELECT NOT pg_is_in_recovery()');
	settle_at_once($standby);
	wait_for_nothing($standby);
	$standby->safe_psql('postgres', 'CHECKPOINT');
	is_deeply([ hidden_files($standby), orphaned_files($standby) ],
		[], 'and nothing is left');
	stop_with_clean_log($standby);
}

# --- two standbys with many files pending -----------------------------------

my @standbys = map { start_standby($_) } qw(standby_1 standby_2);

sub run_on_primary
{
	my ($database, @sql) = @_;
	$primary->safe_psql($database, $_) foreach @sql;
	return;
}

sub wait_for_standbys
{
	$primary->wait_for_replay_catchup($_) foreach @standbys;
	return;
}

my @spaces = qw(pg_default ts1 ts2);

# Tables of each database: "kept" and the unlogged "kept_u" are kept, the others are
# dropped.
run_on_primary('postgres',
	map { "CREATE TABLESPACE $_ LOCATION ''" } @spaces[ 1, 2 ]);
run_on_primary('postgres', map { "CREATE DATABASE $_" } qw(d early_d));
my %path;
foreach my $database ('postgres', 'd', 'early_d')
{
	my $sql = '';
	foreach
	  my $name (qw(early late last kept old early_u late_u last_u kept_u))
	{
		my $unlogged = $name =~ /_u$/ ? 'UNLOGGED' : '';
		$sql .= qq{
			CREATE $unlogged TABLE ${name}_$_ (a int PRIMARY KEY, b text) TABLESPACE $_;
			CREATE INDEX ON ${name}_$_ (b) TABLESPACE $_;
			INSERT INTO ${name}_$_ SELECT i, i FROM generate_series(1, 1000) AS i;}
		  foreach @spaces;
	}
	run_on_primary($database, $sql);
	my %paths = map { split /\|/ }
	  split /\n/,
	  $primary->safe_psql($database,
		q{SELECT relname, pg_relation_filepath(oid) FROM pg_class WHERE relkind = 'r' AND oid >= 16384}
	  );
	$path{$database} = \%paths;
}
my @large = (
	map {
		my $name = $_;
		map { $path{postgres}{"${name}_$_"} } @spaces
	} qw(early late last));
my @large_in_databases =
  ($path{d}{late_pg_default}, $path{d}{late_ts1}, $path{early_d}{early_ts2});
run_on_primary('postgres', 'CHECKPOINT');
wait_for_standbys();
foreach my $node (@standbys)
{
	$node->safe_psql('postgres', 'CHECKPOINT');
	add_segments($node, $_, SEGMENTS, $segment_size{ $node->name })
	  foreach (@large, @large_in_databases);
	hold_at($node, 'lazydrop-removal');
}

sub drop_tables
{
	foreach my $prefix (@_)
	{
		run_on_primary('postgres',
			'DROP TABLE ' . join(', ', map { "${prefix}_$_" } @spaces));
	}
	return;
}

# Drop objects before the last common checkpoint, once with a restartpoint of the standbys
# and once without, and then after it.  The first checkpoint of a new primary has many
# dirty pages to write, so it takes some time.
drop_tables('early', 'early_u');
run_on_primary('postgres', 'DROP DATABASE early_d', 'CHECKPOINT');
wait_for_standbys();
$_->safe_psql('postgres', 'CHECKPOINT') foreach @standbys;
my $lsn = $primary->lsn('insert');
drop_tables('late', 'late_u');
run_on_primary('postgres', 'DROP DATABASE d', 'CHECKPOINT');
drop_tables('last', 'last_u');
run_on_primary('postgres',
	'INSERT INTO kept_pg_default SELECT i, i FROM generate_series(1001, 20000) AS i'
);
wait_for_standbys();

foreach my $node (@standbys)
{
	my $redo = control_data($node, "Latest checkpoint's REDO location");
	is($primary->safe_psql('postgres', "SELECT '$redo'::pg_lsn <= '$lsn'"),
		't', 'the last restartpoint of ' . $node->name);
}

# The size of files in directories of databases is not included, because it is not known
# until they are removed.
foreach my $node (@standbys)
{
	my $bytes = 6 * SEGMENTS * $segment_size{ $node->name };
	wait_for_stats($node, "(s->>'pending_bytes')::bigint >= $bytes");
}

# Tables that were not dropped must have their rows; unlogged ones must be empty.
sub nothing_is_lost
{
	my ($node, $what) = @_;
	foreach my $space (@spaces)
	{
		my $n = $space eq 'pg_default' ? 20000 : 1000;
		is( $node->safe_psql(
				'postgres', qq{
				SELECT count(*), count(DISTINCT b) FROM kept_$space;
				SET enable_seqscan = off;
				SELECT count(*) FROM kept_$space WHERE a > 0}),
			"$n|$n\n$n",
			"$what: a table in $space has its rows");

		# psql exits at the first error.
		is( $node->safe_psql(
				'postgres', qq{
				SELECT count(*) FROM kept_u_$space;
				INSERT INTO kept_u_$space SELECT i, i FROM generate_series(1, 100) AS i;
				SET enable_seqscan = off;
				SELECT count(*) FROM kept_u_$space WHERE a > 0;
				SELECT count(*) FROM kept_u_$space WHERE b = '7'}),
			"0\n100\n1",
			"$what: an unlogged one in $space is empty, and can be used");
	}
	return;
}

# Check that no large file has been removed.  Small ones may have been.
sub large_files_are_pending
{
	my ($node, $before, $what) = @_;
	my $after = stats($node);
	my $size = $segment_size{ $node->name };
	cmp_ok(
		$after->{pending_bytes},
		'>',
		$before->{pending_bytes} - $size,
		"$what: files are still pending");
	cmp_ok($after->{bytes_removed} - $before->{bytes_removed},
		'<', $size, "$what: and not removed");
	return;
}

sub promote
{
	my ($node) = @_;
	my $what = 'promotion of ' . $node->name;
	my $before = stats($node);
	my $began = time();
	$node->promote;
	note sprintf('%s took %.3f s', $what, time() - $began);
	large_files_are_pending($node, $before, $what);
	is_deeply([ orphaned_files($node) ],
		[], "$what: nor are they there under their names");
	is(control_data($node, "Latest checkpoint's TimeLineID"),
		1, "$what: it has not made a checkpoint");
	return;
}

# --- a crash right after a promotion ----------------------------------------

{
	my $node = $standbys[0];
	promote($node);
	settle_at_once($node, 1);
	$node->stop('immediate');
	my $offset = -s $node->logfile;
	$node->start;
	nothing_is_left($node, 'crash after a promotion');
	nothing_is_lost($node, 'crash after a promotion');
	stop_with_clean_log($node, $offset);
}

# --- pg_rewind right after a promotion --------------------------------------

# The old primary continues for a while, and then crashes with files pending.
{
	my $node = $standbys[1];
	add_segments($primary, $path{postgres}{"old_$_"}, SEGMENTS, 2 * MB)
	  foreach @spaces;
	promote($node);
	nothing_is_lost($node, 'promotion');
	drop_tables('old');
	run_on_primary('postgres', 'CHECKPOINT',
		'INSERT INTO kept_ts1 SELECT i, i FROM generate_series(1001, 1100) AS i'
	);
	$primary->stop('immediate');
	command_ok(
		[
			'pg_rewind',
			'--source-server' => $node->connstr('postgres'),
			'--target-pgdata' => $primary->data_dir
		],
		'pg_rewind');
	is(control_data($node, "Latest checkpoint's TimeLineID"),
		1, 'from a server that has not made a checkpoint');
	is_deeply([ hidden_files($primary) ], [], 'copies no hidden files');
	$primary->set_standby_mode();
	$primary->enable_streaming($node);
	$primary->append_conf('postgresql.conf', 'port = ' . $primary->port);
	settle_at_once($primary, 1);
	my $offset = -s $primary->logfile;
	$primary->start;
	$node->wait_for_replay_catchup($primary);
	wait_for_nothing($primary);
	is_deeply([ hidden_files($primary), orphaned_files($primary) ],
		[], 'nor any that no relation has');

	foreach my $space (@spaces)
	{
		is( $primary->safe_psql(
				'postgres', "SELECT count(*) FROM old_$space, kept_ts1"),
			1000 * 1000,
			"and brings back what only the old primary has dropped in $space"
		);
	}
	stop_with_clean_log($primary, $offset);
}

# --- a crash after the first checkpoint -------------------------------------

{
	my $node = $standbys[1];
	my $before = stats($node);
	$node->safe_psql('postgres', 'CHECKPOINT');
	large_files_are_pending($node, $before, 'the first checkpoint');
	settle_at_once($node, 1);
	$node->stop('immediate');
	my $offset = -s $node->logfile;
	$node->start;
	is_deeply([ orphaned_files($node) ],
		[], 'crash after the first checkpoint: no file has its name');
	nothing_is_lost($node, 'crash after the first checkpoint');
	nothing_is_left($node, 'after a while');
	stop_with_clean_log($node, $offset);
}

done_testing();
