# Copyright (c) 2026, LazyDrop developers

=pod

=head1 NAME

DropStorm - a storm of drops, and servers that are made from one in the middle of it

=head1 DESCRIPTION

During a storm, files of dropped relations still exist, and shared buffers hold pages of
them that are never written.  Tests let a tool copy or replace a data directory meanwhile,
recover the result to a known point, and compare it with its source.  To tell a certain
drop from those of the storm, a test creates a victim and drops it.

=cut

package DropStorm;

use strict;
use warnings FATAL => 'all';

use Exporter 'import';
use IPC::Run;
use LazyDropFiles qw(add_segments orphaned_files contents);
use LazyDropUtils
  qw(stats wait_for_stats wait_for_nothing hold_at release need_test_extra
  start_quiet_node);
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

our @EXPORT_OK =
  qw(need_storms have_points start_source start_standby create_schema drop_tablespaces
  start_storm stop_storm forget_storm result_of hold_worker worker_is_held release_worker
  check_server check_stopped bad_lines create_victim drop_table drop_database
  files_below);

use constant MB => 1024 * 1024;

my $have_points = ($ENV{enable_injection_points} // '') eq 'yes';

# In a build without injection points, a long lazydrop.pass_delay must be enough to hold
# the worker.
my $pass_delay = $have_points ? '0' : '60s';

my $clients = 3;

=pod

=over

=item need_storms()

Skip the whole test unless tests that take minutes are enabled, and on Windows, where
programs cannot be stopped by signals.

=item have_points()

Returns whether the build supports injection points.

=cut

sub need_storms
{
	need_test_extra();
	plan skip_all => 'signals to tools are not for Windows' if $windows_os;
	return;
}

sub have_points
{
	return $have_points;
}

=pod

=item start_source($name, %settings)

Start a server whose worker can be held, with the given settings.

=item start_standby($source)

Start a standby of that server.

=cut

sub start_source
{
	my ($name, %settings) = @_;
	my $node = start_quiet_node(
		$name,
		'lazydrop.lookup_limit' => $have_points ? '-1' : '0',
		'lazydrop.pass_delay' => $pass_delay,
		'max_connections' => 20,
		'max_wal_size' => '4GB',
		%settings);
	$node->safe_psql('postgres', 'CREATE EXTENSION injection_points')
	  if $have_points;
	return $node;
}

sub start_standby
{
	my ($source) = @_;
	$source->backup('first');
	my $standby = PostgreSQL::Test::Cluster->new('standby');
	$standby->init_from_backup($source, 'first', has_streaming => 1);
	$standby->start;
	return $standby;
}

=pod

=item create_schema($node)

Create the objects that the storm needs, and those that survive it.

=item drop_tablespaces($node)

Drop the tablespaces that storms have left.

=cut

# There is one script for each kind of drop.  Each client has its own objects, so that no
# statement fails.  Objects that a terminated client has left are dropped by the next one.
my %script = (
	'table' => q{
		DROP TABLE IF EXISTS t:client_id;
		CREATE TABLE t:client_id (a int PRIMARY KEY, b text);
		INSERT INTO t:client_id SELECT i, repeat('x', 100) FROM generate_series(1, 300) AS i;
		CREATE INDEX i:client_id ON t:client_id (b);
		UPDATE live SET n = n + 1 WHERE a = 17 + :client_id;
		DROP INDEX i:client_id;
		DROP TABLE t:client_id;
	},
	'unlogged' => q{
		DROP TABLE IF EXISTS u:client_id;
		CREATE UNLOGGED TABLE u:client_id AS SELECT generate_series(1, 1000) AS a;
		DROP TABLE u:client_id;
	},
	'rewrite' => q{
		TRUNCATE keep:client_id;
		INSERT INTO keep:client_id SELECT i, repeat('y', 100) FROM generate_series(1, 300) AS i;
		UPDATE keep:client_id SET b = 'z' WHERE a % 2 = 0;
		VACUUM FULL keep:client_id;
		REINDEX TABLE keep:client_id;
		UPDATE live SET n = n + 1 WHERE a = 170 + :client_id;
	},
	'partition' => q{
		DROP TABLE IF EXISTS p:client_id;
		CREATE TABLE p:client_id PARTITION OF parts:client_id FOR VALUES IN (1);
		INSERT INTO parts:client_id SELECT 1, i FROM generate_series(1, 300) AS i;
		ALTER TABLE parts:client_id DETACH PARTITION p:client_id;
		DROP TABLE p:client_id;
	},
	'tablespace' => q{
		DROP TABLE IF EXISTS s:client_id;
		DROP TABLESPACE IF EXISTS ts:client_id;
		CREATE TABLESPACE ts:client_id LOCATION '';
		CREATE TABLE s:client_id TABLESPACE ts:client_id AS SELECT generate_series(1, 1000) AS a;
		DROP TABLE s:client_id;
		DROP TABLESPACE ts:client_id;
	},
	'wal_log' => q{
		DROP DATABASE IF EXISTS d:client_id;
		CREATE DATABASE d:client_id TEMPLATE template0 STRATEGY wal_log;
		DROP DATABASE d:client_id;
	},
	'file_copy' => q{
		DROP DATABASE IF EXISTS d:client_id;
		CREATE DATABASE d:client_id TEMPLATE template0 STRATEGY file_copy;
		DROP DATABASE d:client_id;
	});

# The directory of the scripts.
my $scratch;

sub write_scripts
{
	return if defined $scratch;
	$scratch = PostgreSQL::Test::Utils::tempdir();
	foreach my $name (keys %script)
	{
		append_to_file("$scratch/$name.sql", $script{$name} =~ s/^\s+//mgr);
	}
	return;
}

sub create_schema
{
	my ($node) = @_;
	$node->safe_psql(
		'postgres', q{
		CREATE TABLE live (a int PRIMARY KEY, n int, filler text);
		INSERT INTO live SELECT i, 0, repeat('f', 200) FROM generate_series(1, 20000) AS i;
		CREATE TABLE empty (a int)});
	foreach my $client (0 .. $clients - 1)
	{
		$node->safe_psql(
			'postgres', qq{
			CREATE TABLE keep$client (a int PRIMARY KEY, b text);
			CREATE TABLE parts$client (a int, b int) PARTITION BY LIST (a)});
	}
	$node->safe_psql('postgres', 'CREATE DATABASE other');
	$node->safe_psql('other',
		'CREATE TABLE live AS SELECT generate_series(1, 1000) AS a');
	return;
}

sub drop_tablespaces
{
	my ($node) = @_;
	$node->safe_psql('postgres', $_)
	  foreach
	  map { ("DROP TABLE IF EXISTS s$_", "DROP TABLESPACE IF EXISTS ts$_") }
	  0 .. $clients - 1;
	return;
}

=pod

=item start_storm($node, @without)

Start a storm of all kinds of drops except those given, and wait until it has made a
number of drops.

=item stop_storm($node)

Stop the storm, and check that it has not ended by itself.  Wait until the last statements
of its sessions are complete.

=item forget_storm($node)

Forget a storm that has ended with its server.

=item result_of($program)

Returns the exit status of a finished program, followed by its error output.  "run" and
"err" of the hash are its IPC::Run handle and that output.

=cut

my %storm;

sub result_of
{
	my ($program) = @_;
	return ($program->{run}->full_result || 0) . $program->{err};
}

sub start_storm
{
	my ($node, @without) = @_;
	my %weight = map { $_ => 32 } keys %script;
	$weight{$_} = 1 foreach qw(tablespace wal_log file_copy);    # slow
	delete @weight{@without};
	write_scripts();
	my $before = stats($node)->{deferred_relations};
	my $storm = $storm{ $node->name } = { out => '', err => '' };
	local $ENV{PGOPTIONS} = '-c client_min_messages=warning';
	local $ENV{PGAPPNAME} = 'storm';
	$storm->{run} = IPC::Run::start(
		[
			$node->installed_command('pgbench'),
			'--no-vacuum',
			'--client' => $clients,
			'--rate' => 30,
			'--time' => 86400,
			'--host' => $node->host,
			'--port' => $node->port,
			(   map { ('--file' => "$scratch/$_.sql\@$weight{$_}") }
				sort keys %weight),
			'postgres'
		],
		'<' => \undef,
		'>' => \$storm->{out},
		'2>' => \$storm->{err});
	wait_for_stats($node, "(s->>'deferred_relations')::int > $before + 20");
	return;
}

sub stop_storm
{
	my ($node) = @_;
	my $storm = delete $storm{ $node->name };
	$storm->{run}->signal('TERM');
	$storm->{run}->finish;
	is(result_of($storm), 15,
		'the storm has blown until now on ' . $node->name);
	$node->poll_query_until('postgres',
		q{SELECT count(*) = 0 FROM pg_stat_activity WHERE application_name = 'storm'}
	) or die 'sessions of the storm go on';
	return;
}

sub forget_storm
{
	my ($node) = @_;
	my $storm = delete $storm{ $node->name };
	$storm->{run}->finish;
	return;
}

END
{
	local $?;
	$_->{run}->kill_kill foreach grep { $_->{run} } values %storm;
}

=pod

=item hold_worker($node, $point), worker_is_held($node, $point), release_worker($node, $point)

Hold the worker before it makes its pass ("lazydrop-worker"), or between the pass and the
removal of files ("lazydrop-removal"); wait until it is there; release it.

=cut

sub hold_worker
{
	my ($node, $point) = @_;
	hold_at($node, $point) if $have_points;
	return;
}

sub worker_is_held
{
	my ($node, $point) = @_;
	$node->wait_for_event('lazy drop worker', $point) if $have_points;
	return;
}

sub release_worker
{
	my ($node, $point) = @_;
	release($node, $point) if $have_points;
	return;
}

=pod

=item check_server($node, $contents, $what)

Final checks of a server that has been made from another one.

=item bad_lines($log)

Returns the lines of a log that would result from writing a page to a lost or removed
file.  Two messages are allowed, because stock PostgreSQL logs them as well: replay of a
DROP DATABASE whose directory is gone, and a start from a backup taken while DROP
TABLESPACE had removed the tablespace's directory but not yet its link (reinit.c).

=item check_stopped($node, $what)

Stop a server, and check its log and its checksums.

=cut

sub check_server
{
	my ($node, $contents, $what) = @_;
	is_deeply(contents($node), $contents,
		"$what: has the contents of its source");
	wait_for_nothing($node);
	$node->safe_psql('postgres', 'CHECKPOINT');
	is_deeply([ orphaned_files($node, crashed => 1) ],
		[], "$what: has no files that belong to nothing");
	$node->command_ok(
		[ 'pg_amcheck', '--all', '--install-missing', '--jobs' => 2 ],
		"$what: pg_amcheck");
	return;
}

sub bad_lines
{
	my ($log) = @_;
	return [
		grep {
				 /PANIC|could not (open|read|fsync|write)|invalid page|TRAP/
			  && !/WARNING:  could not open directory "[^"]*": No such file/
			  && !
			  m{LOG:  could not open directory "pg_tblspc/\d+/PG_\w+": No such file}
		} split /\n/,
		$log
	];
}

sub check_stopped
{
	my ($node, $what) = @_;
	$node->stop;
	is_deeply(bad_lines(slurp_file($node->logfile)),
		[], "$what: the log is clean");
	command_ok([ 'pg_checksums', '--check', '--pgdata' => $node->data_dir ],
		"$what: pg_checksums");
	return;
}

=pod

=item create_victim($primary, $name, @copies)

Create a table with an index, additional segments and dirty pages, and a database.  The
copies are standbys, which get the segments, too.  Returns a hash with the table's name,
the paths of table and index, and the OID of the database.

=item drop_table($primary, $victim, @copies), drop_database($primary, $victim, @copies)

Drop the table, or the database, and wait until standbys have replayed it.

=item files_below($directory, $victim)

Returns the non-empty files of a victim below a directory.

=cut

sub create_victim
{
	my ($primary, $name, @copies) = @_;
	$primary->safe_psql(
		'postgres', qq{
		CREATE TABLE $name (a int PRIMARY KEY, b text);
		INSERT INTO $name SELECT i, repeat('v', 500) FROM generate_series(1, 1000) AS i}
	);
	my @paths =
	  map {
		$primary->safe_psql('postgres', "SELECT pg_relation_filepath('$_')")
	  } ($name, "${name}_pkey");
	$primary->safe_psql('postgres',
		"CREATE DATABASE db_$name STRATEGY file_copy");
	my $oid = $primary->safe_psql('postgres',
		"SELECT oid FROM pg_database WHERE datname = 'db_$name'");
	$primary->wait_for_replay_catchup($_) foreach @copies;
	add_segments($_, $paths[0], 2, MB) foreach $primary, @copies;
	return { name => $name, paths => \@paths, oid => $oid };
}

sub drop_table
{
	my ($primary, $victim, @copies) = @_;
	$primary->safe_psql('postgres', "DROP TABLE $victim->{name}");
	$primary->wait_for_replay_catchup($_) foreach @copies;
	return;
}

sub drop_database
{
	my ($primary, $victim, @copies) = @_;
	$primary->safe_psql('postgres', "DROP DATABASE db_$victim->{name}");
	$primary->wait_for_replay_catchup($_) foreach @copies;
	return;
}

sub files_below
{
	my ($directory, $victim) = @_;
	my @files = map { glob("'$directory/$_'{,_*,.*}") } @{ $victim->{paths} };
	push @files, glob("'$directory/base/$victim->{oid}/'*");
	return map { substr($_, length($directory) + 1) } grep { -s $_ } @files;
}

=pod

=back

=cut

1;
