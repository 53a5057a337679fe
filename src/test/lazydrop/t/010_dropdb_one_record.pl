# Copyright (c) 2026, LazyDrop developers

# Each removal of a database's directories writes one XLOG_DBASE_DROP record that lists
# all tablespaces.  If there was one record for each tablespace, replay would scan the
# buffer headers for each of them.  This applies to DROP DATABASE, to the cleanup after a
# failed CREATE DATABASE, and to ALTER DATABASE SET TABLESPACE.  pg_waldump and
# pg_walinspect must agree on the record, on the primary, on a standby, and on a cascading
# standby.
#
# The replay of each record is timed on each standby, and the times are printed.  The test
# checks only how often buffer headers are visited, not these times.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/..";
use LazyDropFiles qw(dbase_drop_records database_directories);
use LazyDropUtils qw(hold_replay stats wait_for_stats);
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $ntablespaces = 12;
my $tempdir = PostgreSQL::Test::Utils::tempdir_short();

# Create directories for the tablespaces of one server; returns number => path.
sub tablespace_dirs
{
	my ($name) = @_;
	mkdir("$tempdir/$name") or die "could not create directory: $!";
	return map { $_ => "$tempdir/$name/ts$_" } 1 .. $ntablespaces;
}

my $primary = PostgreSQL::Test::Cluster->new('primary');
$primary->init(allows_streaming => 1);
$primary->append_conf(
	'postgresql.conf', q{
autovacuum = off
lazydrop.max_pending = 1024
lazydrop.pass_delay = 100ms
});
$primary->start;
$primary->safe_psql('postgres', 'CREATE EXTENSION pg_walinspect');

# Polling takes a few microseconds, so the result is not more precise than that.  The
# position that a standby reports is the end of the last replayed record.  A page boundary
# may separate it from the start of the next record.  A record therefore counts as
# replayed when the position is beyond the record's start; the position is not compared
# with the record's end.
$primary->safe_psql(
	'postgres', q{
	CREATE FUNCTION time_replay(prev pg_lsn, record pg_lsn)
	RETURNS double precision LANGUAGE plpgsql AS $$
	DECLARE
		began timestamptz;
	BEGIN
		PERFORM pg_wal_replay_resume();
		WHILE pg_last_wal_replay_lsn() <= prev LOOP
		END LOOP;
		began := clock_timestamp();
		WHILE pg_last_wal_replay_lsn() <= record LOOP
		END LOOP;
		RETURN extract(epoch FROM clock_timestamp() - began) * 1000;
	END $$});

my %primary_dir = tablespace_dirs('p');
foreach my $i (1 .. $ntablespaces)
{
	mkdir($primary_dir{$i}) or die "could not create directory: $!";
	$primary->safe_psql('postgres',
		"CREATE TABLESPACE ts$i LOCATION '$primary_dir{$i}'");
}
my %oid = map { split /\|/ } split /\n/,
  $primary->safe_psql('postgres',
	q{SELECT substr(spcname, 3), oid FROM pg_tablespace WHERE spcname ~ '^ts'}
  );

# Create a standby of a server, with its tablespaces in separate directories.
sub make_standby
{
	my ($name, $from, $from_dir) = @_;
	my %backup_dir = tablespace_dirs("$name-backup");
	my %dir = tablespace_dirs($name);
	$from->backup(
		$name,
		backup_options => [
			map {
				('--tablespace-mapping' => "$from_dir->{$_}=$backup_dir{$_}")
			} 1 .. $ntablespaces
		]);
	my $node = PostgreSQL::Test::Cluster->new($name);
	$node->init_from_backup(
		$from, $name,
		has_streaming => 1,
		tablespace_map => { map { $oid{$_} => $dir{$_} } 1 .. $ntablespaces }
	);
	$node->start;
	return ($node, \%dir);
}

my ($standby, $standby_dir) =
  make_standby('standby', $primary, \%primary_dir);
$primary->wait_for_replay_catchup($standby);
my ($cascade, $cascade_dir) = make_standby('cascade', $standby, $standby_dir);
my @standbys = ($standby, $cascade);
my @nodes = ($primary, @standbys);
my %dirs_of = (
	primary => \%primary_dir,
	standby => $standby_dir,
	cascade => $cascade_dir);

sub catch_up
{
	$primary->wait_for_replay_catchup($standby);
	$standby->wait_for_replay_catchup($cascade, $primary);
	return;
}

sub create_spread_database
{
	my ($name) = @_;
	$primary->safe_psql('postgres', "CREATE DATABASE $name");
	$primary->safe_psql(
		$name,
		join('',
			map { "CREATE TABLE t$_ TABLESPACE ts$_ AS SELECT $_ AS i;\n" }
			  1 .. $ntablespaces));
	return $primary->safe_psql('postgres',
		"SELECT oid FROM pg_database WHERE datname = '$name'");
}

# Resume replay, which is paused, on a standby that has received a record.  Returns how
# long the replay of that record took, in milliseconds.
sub time_replay
{
	my ($node, $record) = @_;
	return $node->safe_psql(
		'postgres',
		"SELECT time_replay('$record->{prev}', '$record->{lsn}')",
		timeout => $PostgreSQL::Test::Utils::timeout_default);
}

# Run $action on the primary while replay is paused.  Then let each standby replay it, and
# look for its records on all servers.
sub check_one_record
{
	my ($what, $expected_pairs, $action) = @_;
	catch_up();
	hold_replay($_) foreach @standbys;
	my $start = $primary->lsn('insert');
	$action->();

	# A failed command writes no commit record, which would flush the other records.
	$primary->safe_psql('postgres', 'SELECT pg_switch_wal()');
	my $end = $primary->lsn('flush');

	my @records = dbase_drop_records($primary, $start, $end);
	is(scalar(@records), 1, "$what: one XLOG_DBASE_DROP on primary");
	my $pairs = join(' ', sort @{ $records[0]{pairs} });
	is( $pairs,
		join(' ', sort @{$expected_pairs}),
		"$what: it names every directory that goes, and no other");

	$primary->wait_for_catchup($standby, 'flush', $end);
	$standby->wait_for_catchup($cascade, 'flush', $end);
	foreach my $node (@nodes)
	{
		my $name = $node->name;
		if ($node != $primary)
		{
			note(
				sprintf(
					"%s: replayed on %s in %.3f ms",
					$what, $name, time_replay($node, $records[0])));
			$node->poll_query_until('postgres',
				"SELECT pg_last_wal_replay_lsn() >= '$end'")
			  or die "$name did not replay";
			my @seen = dbase_drop_records($node, $start, $end);
			is_deeply(\@seen, \@records,
				"$what: pg_waldump sees the same on $name");
		}
		is( $node->safe_psql(
				'postgres', qq{
				SELECT start_lsn, description
				FROM pg_get_wal_records_info('$start', '$end')
				WHERE resource_manager = 'Database' AND record_type = 'DROP'}),
			unpadded($records[0]{lsn}) . "|dir "
			  . join(' ', @{ $records[0]{pairs} }),
			"$what: pg_walinspect agrees on $name");
	}
	return;
}

# pg_waldump pads the lower half of an LSN.
sub unpadded
{
	my ($lsn) = @_;
	return $lsn =~ s{/0+(?=.)}{/}r;
}

my $nbuffers = $primary->safe_psql('postgres',
	q{SELECT setting FROM pg_settings WHERE name = 'shared_buffers'});
my $settled =
  q{s->>'pending_relations' = '0' AND s->>'pending_databases' = '0'};

# --- DROP DATABASE ----------------------------------------------------------

# With lazydrop.enabled, the worker visits the headers once for all directories, and
# replay does not visit them.
foreach my $enabled (qw(on off))
{
	my $what = "DROP DATABASE, lazydrop.enabled = $enabled";
	foreach my $node (@nodes)
	{
		$node->append_conf('postgresql.conf', "lazydrop.enabled = $enabled");
		$node->reload;
		$node->poll_query_until('postgres',
			"SELECT current_setting('lazydrop.enabled') = '$enabled'")
		  or die 'the setting was not reloaded';
	}
	my $victim = create_spread_database('victim');
	catch_up();
	my %before;
	foreach my $node (@nodes)
	{
		my $name = $node->name;
		is( scalar(database_directories($node, $victim)),
			$ntablespaces + 1,
			"$what: the database has all its directories on $name");
		wait_for_stats($node, $settled);
		$before{$name} = stats($node);
	}
	check_one_record(
		$what,
		[ "1663/$victim", map { "$oid{$_}/$victim" } 1 .. $ntablespaces ],
		sub { $primary->safe_psql('postgres', 'DROP DATABASE victim') });
	foreach my $node (@nodes)
	{
		my $name = $node->name;
		wait_for_stats($node, $settled);
		is_deeply([ database_directories($node, $victim) ],
			[], "$what: no directory is left on $name");
		my $after = stats($node);
		my $passes = $enabled eq 'on' ? 1 : 0;
		is($after->{deferred_databases} - $before{$name}{deferred_databases},
			$passes, "$what: " . ($passes ? '' : 'not ') . "buried on $name");
		is($after->{passes} - $before{$name}{passes},
			$passes, "$what: passes of the worker on $name");
		is( $after->{headers_visited} - $before{$name}{headers_visited},
			$passes * $nbuffers,
			"$what: and headers that they visited on $name");
	}
}

# --- failing CREATE DATABASE ------------------------------------------------

# The copy proceeds tablespace by tablespace, in the order of the catalog, and encounters
# a file that it cannot read in the last one.
my $template = create_spread_database('template');
my $last = $primary->safe_psql('postgres',
	q{SELECT oid FROM pg_tablespace WHERE spcname ~ '^ts' ORDER BY ctid DESC LIMIT 1}
);
my ($dir) = glob($primary->data_dir . "/pg_tblspc/$last/*/$template");
$primary->safe_psql('postgres', 'CHECKPOINT');
append_to_file("$dir/unreadable", 'x');
chmod(0, "$dir/unreadable") or die "could not change mode: $!";
my $next_oid = 900000;
check_one_record(
	'failed CREATE DATABASE',
	[ "1663/$next_oid", map { "$oid{$_}/$next_oid" } 1 .. $ntablespaces ],
	sub {
		my ($status, undef, $stderr) = $primary->psql('postgres',
			"CREATE DATABASE failed TEMPLATE template STRATEGY file_copy OID $next_oid"
		);
		isnt($status, 0, 'CREATE DATABASE fails');
		like(
			$stderr,
			qr/could not open file "[^"]*unreadable": Permission denied/,
			'because of the file that cannot be read');
	});
foreach my $node (@nodes)
{
	is_deeply([ database_directories($node, $next_oid) ],
		[], 'failed CREATE DATABASE: no directory is left on ' . $node->name);
}
unlink("$dir/unreadable") or die "could not remove file: $!";

# --- ALTER DATABASE SET TABLESPACE ------------------------------------------

# Only the directory in the default tablespace is moved.
my $moved = create_spread_database('moved');
$primary->safe_psql('moved',
	'CREATE TABLE mine AS SELECT generate_series(1, 1000) AS i');
$primary->safe_psql('moved', 'DROP TABLE t1');
catch_up();
$primary->safe_psql('postgres', 'CHECKPOINT');
check_one_record(
	'ALTER DATABASE SET TABLESPACE',
	["1663/$moved"],
	sub {
		$primary->safe_psql('postgres',
			'ALTER DATABASE moved SET TABLESPACE ts1');
	});
foreach my $node (@nodes)
{
	my $name = $node->name;
	my @left = database_directories($node, $moved);
	is(scalar(@left), $ntablespaces,
		"ALTER DATABASE SET TABLESPACE: as many directories on $name");
	ok(!-e $node->data_dir . "/base/$moved",
		"ALTER DATABASE SET TABLESPACE: the old directory is gone on $name");
	is( $node->safe_psql('moved', 'SELECT count(*), sum(i) FROM mine'),
		'1000|500500',
		"ALTER DATABASE SET TABLESPACE: the rows are there on $name");
}

# --- nothing is left --------------------------------------------------------

$primary->safe_psql('postgres', "DROP DATABASE $_")
  foreach qw(template moved);
$primary->safe_psql('postgres', "DROP TABLESPACE ts$_")
  foreach 1 .. $ntablespaces;
catch_up();
foreach my $node (@nodes)
{
	my $name = $node->name;
	is_deeply(
		[ sort { $a cmp $b } slurp_dir($node->data_dir . '/pg_tblspc') ],
		[ '.', '..' ],
		"no symbolic link is left on $name");
	my @left =
	  map { glob("'$dirs_of{$name}{$_}'/*") } 1 .. $ntablespaces;
	is_deeply(\@left, [], "no directory is left in any tablespace on $name");
}

$_->stop foreach reverse @nodes;

done_testing();
