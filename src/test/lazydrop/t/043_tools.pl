# Copyright (c) 2026, LazyDrop developers

# Tools that copy or replace a data directory during a storm of drops.  Files of dropped
# relations still exist then, and shared buffers hold pages of them that are never
# written.  The tools are pg_basebackup (full and incremental, plain and tar, of a primary
# and of a standby), pg_verifybackup, pg_combinebackup, pg_rewind and, where available,
# pg_upgrade from an older major version and pgBackRest.  Each result is recovered to a
# known point and compared with the source.  pg_amcheck and pg_checksums must succeed, and
# no orphaned file may be left.
#
# The test searches for older versions of PostgreSQL, which may include older versions of
# the fork, in LAZYDROP_OLD_BINDIR (a list of directories separated by colons), in
# LAZYDROP_TOOLS, which src/tools/lazydrop/fetch-tools fills, and where Debian installs
# them.  It searches for pgBackRest in LAZYDROP_PGBACKREST, LAZYDROP_TOOLS and PATH.

use strict;
use warnings FATAL => 'all';

use Cwd            qw(getcwd);
use File::Basename qw(dirname);
use FindBin;
use lib "$FindBin::RealBin/..";
use IPC::Run;
use JSON::PP;
use LazyDropUtils
  qw(stats wait_for_stats wait_for_nothing hold_at release wait_for_wait wait_until
  relation_files add_segments orphaned_files contents need_test_extra start_quiet_node pg_major init_with_checksums);
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

need_test_extra();
plan skip_all => 'pgBackRest and signals to tools are not for Windows'
  if $windows_os;

use constant MB => 1024 * 1024;

my $tar = $ENV{TAR} || 'tar';
my $have_points = ($ENV{enable_injection_points} // '') eq 'yes';
my $scratch = PostgreSQL::Test::Utils::tempdir();
my $clients = 3;

# --- the storm --------------------------------------------------------------

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
foreach my $name (keys %script)
{
	append_to_file("$scratch/$name.sql", $script{$name} =~ s/^\s+//mgr);
}

# Create the objects that the storm needs, and those that survive it.
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

my %storm;

# Returns the exit status of a finished program, followed by its error output.
sub result_of
{
	my ($program) = @_;
	return ($program->{run}->full_result || 0) . $program->{err};
}

# Start a storm of all kinds of drops except those given, and wait until it has made a
# number of drops.
sub start_storm
{
	my ($node, @without) = @_;
	my %weight = map { $_ => 32 } keys %script;
	$weight{$_} = 1 foreach qw(tablespace wal_log file_copy);    # slow
	delete @weight{@without};
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

# Stop a storm, and check that it has not ended by itself.  Wait until the last statements
# of its sessions are complete.
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

# Forget a storm that has ended with its server.
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

# --- holding the worker -----------------------------------------------------

# Hold the worker before it makes its pass, or between the pass and the removal of files.
# In a build without injection points, a long lazydrop.pass_delay must be enough.
my $pass_delay = $have_points ? '0' : '60s';

sub hold_worker
{
	my ($node, $point) = @_;
	hold_at($node, $point) if $have_points;
	return;
}

sub worker_is_held
{
	my ($node, $point) = @_;
	wait_for_wait($node, $point, 'lazy drop worker') if $have_points;
	return;
}

sub release_worker
{
	my ($node, $point) = @_;
	release($node, $point) if $have_points;
	return;
}

# --- comparisons ------------------------------------------------------------

# Final checks of a server that has been made from another one.
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

# Returns the lines of a log that would result from writing a page to a lost or removed
# file.  Two messages are allowed, because stock PostgreSQL logs them as well: replay of a
# DROP DATABASE whose directory is gone, and a start from a backup taken while DROP
# TABLESPACE had removed the tablespace's directory but not yet its link (reinit.c).
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

# --- victims ----------------------------------------------------------------

# Create a table with an index, additional segments and dirty pages, and a database.  The
# test must be able to tell their drops from the storm's.
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

# Returns the non-empty files of a victim below a directory.
sub files_below
{
	my ($directory, $victim) = @_;
	my @files = map { glob("'$directory/$_'{,_*,.*}") } @{ $victim->{paths} };
	push @files, glob("'$directory/base/$victim->{oid}/'*");
	return map { substr($_, length($directory) + 1) } grep { -s $_ } @files;
}

# Returns the files of a victim in a tar file.
sub files_in_tar
{
	my ($file, $victim) = @_;
	my ($list) = run_command([ $tar, '-tf' => $file ]);
	my $any = join '|', (map { "$_([_.].*)?\$" } @{ $victim->{paths} }),
	  "base/$victim->{oid}/.";
	return grep { m{^(?:\./)?(?:$any)} } split /\n/, $list;
}

# --- backups ----------------------------------------------------------------

my $primary = start_quiet_node(
	'primary',
	'lazydrop.pass_delay' => $pass_delay,
	'max_connections' => 20,
	'max_wal_size' => '4GB',
	'summarize_wal' => 'on',
	'wal_keep_size' => '4GB');
create_schema($primary);
$primary->safe_psql('postgres', 'CREATE EXTENSION injection_points')
  if $have_points;
$primary->backup('first');
my $standby = PostgreSQL::Test::Cluster->new('standby');
$standby->init_from_backup($primary, 'first', has_streaming => 1);
$standby->start;

my %victims;

# Take a backup of a server with pg_basebackup during a storm.  A victim has been dropped
# when the backup begins.
#
# With "held", another victim is dropped while files are copied.  To make sure of that,
# the tool is stopped meanwhile.  Its walsender then does not process barriers.  DROP
# DATABASE, DROP TABLESPACE and their replay wait for barriers, in stock PostgreSQL as
# well, so the storm must not use these two if the server is a standby.  The storm must
# not make a checkpoint in any case, because nothing would be pending after it.
#
# Each tablespace has a tar file of its own, and init_from_backup must be told where to
# extract it, even if the tablespace is in place.  There are therefore no tablespaces when
# a backup in tar format begins.
sub take_backup
{
	my ($node, $name, %params) = @_;
	my @options = @{ $params{options} // [] };
	my @copies = $node == $standby ? ($standby) : ();
	my $directory = $primary->backup_dir . "/$name";
	my $is_tar = grep { $_ eq '--format=tar' } @options;

	# A restartpoint that replay has requested after copies of databases (rule R17) would
	# hide the files of the victim.
	if ($params{held} && $node == $standby)
	{
		$primary->safe_psql('postgres', 'CHECKPOINT');
		$primary->wait_for_replay_catchup($standby);
		$standby->safe_psql('postgres', 'CHECKPOINT');
	}
	my $before = create_victim($primary, "before_$name", @copies);
	my $during =
	  $params{held}
	  ? create_victim($primary, "during_$name", @copies)
	  : undef;
	my $point = $node == $standby ? 'lazydrop-removal' : 'lazydrop-worker';

	if ($is_tar)
	{
		# An earlier storm may have left some.
		$primary->safe_psql('postgres', $_) foreach map {
			("DROP TABLE IF EXISTS s$_", "DROP TABLESPACE IF EXISTS ts$_")
		} 0 .. $clients - 1;
		$primary->wait_for_replay_catchup($_) foreach @copies;
	}
	start_storm(
		$primary,
		@{ $params{without} // [] },
		$is_tar ? 'tablespace' : ());
	hold_worker($node, $point);
	drop_table($primary, $before, @copies);
	worker_is_held($node, $point);
	drop_database($primary, $before, @copies);
	cmp_ok(scalar(files_below($node->data_dir, $before)),
		'>', 3, "$name: files are pending when it begins")
	  if $params{held};

	# A backup of a standby begins at the last restartpoint, which may be older.
	if ($node == $standby)
	{
		$primary->safe_psql('postgres', 'CHECKPOINT');
		$primary->wait_for_replay_catchup($standby);
	}

	my $backup = { err => '' };
	my $run = $backup->{run} = IPC::Run::start(
		[
			$node->installed_command('pg_basebackup'),
			'--no-sync',
			'--pgdata' => $directory,
			'--host' => $node->host,
			'--port' => $node->port,
			'--checkpoint' => 'fast',
			'--max-rate' => '32M',
			@options
		],
		'<' => \undef,
		'>' => \$backup->{out},
		'2>' => \$backup->{err});
	if ($params{held})
	{
		wait_until(
			sub { $is_tar ? -s "$directory/base.tar" : -e "$directory/base" })
		  or die "no backup has begun: $backup->{err}";
		$run->signal('STOP');
		is( $node->safe_psql(
				'postgres',
				q{SELECT count(*) FROM pg_stat_progress_basebackup WHERE phase = 'streaming database files'}
			),
			1,
			"$name: is copying files");
		drop_table($primary, $during, @copies);
		my $session = $primary->background_psql('postgres');
		$session->query_until(qr/begun/,
			"\\echo begun\nDROP DATABASE db_$during->{name};\n");
		wait_for_stats($node,
			q{(s->>'pending_relations')::int > 1 AND s->>'pending_databases' <> '0'}
		);
		$run->signal('CONT');
		$session->quit;
	}
	$run->finish;

	# A file that is being extended may end in the middle of a page.
	$backup->{err} =~
	  s/^WARNING:  could not verify checksum in file .* read buffer size .* differ\n//mg;
	is(result_of($backup), '0', "$name: pg_basebackup");
	if ($params{held})
	{
		# No process has settled the entries, so the backup contains the files.
		my @of_server = files_below($node->data_dir, $during);
		my @of_backup =
		  $is_tar
		  ? files_in_tar("$directory/base.tar", $during)
		  : files_below($directory, $during);
		cmp_ok(scalar(@of_server), '>', 3,
			"$name: files are pending when it ends");
		cmp_ok(scalar(@of_backup), '>', 3, "$name: and are in it");
	}
	is_deeply(
		[
			$is_tar
			? files_in_tar("$directory/base.tar", $before)
			: files_below($directory, $before)
		],
		[],
		"$name: has no files of what was dropped before");
	release_worker($node, $point);
	stop_storm($primary);
	$victims{$name} = [ $before, $params{held} ? $during : () ];

	# PostgreSQL 17's pg_verifybackup cannot read tar files.
	command_ok(
		[ 'pg_verifybackup', $is_tar ? '--no-parse-wal' : (), $directory ],
		"$name: pg_verifybackup")
	  if !$is_tar || pg_major() >= 18;
	return;
}

sub manifest
{
	my ($name) = @_;
	return '--incremental=' . $primary->backup_dir . "/$name/backup_manifest";
}

take_backup(
	$primary, 'full',
	held => 1,
	without => [qw(file_copy tablespace)]);
take_backup($primary, 'incremental', options => [ manifest('full') ]);
take_backup($primary, 'in_tar', options => ['--format=tar']);
take_backup(
	$standby, 'of_standby',
	held => 1,
	without => [qw(file_copy wal_log tablespace)]);
take_backup($standby, 'of_standby_in_tar', options => ['--format=tar']);
take_backup($standby, 'of_standby_incremental',
	options => [ manifest('incremental') ]);

# Recovery must end here, although WAL contains later records, too.
my $contents = contents($primary);
$primary->safe_psql('postgres', q{SELECT pg_create_restore_point('here')});
start_storm($primary, 'file_copy');
$primary->safe_psql('postgres', 'DROP TABLE empty');
stop_storm($primary);

sub restore_backup
{
	my ($name, %params) = @_;
	my $node = PostgreSQL::Test::Cluster->new("restored_$name");
	$node->init_from_backup($primary, $name, has_streaming => 1, %params);
	command_ok(
		[
			'pg_verifybackup', '--ignore=postgresql.conf',
			'--ignore=standby.signal', $node->data_dir
		],
		"$name: pg_verifybackup after pg_combinebackup"
	) if $params{combine_with_prior};
	$node->append_conf(
		'postgresql.conf', q{
		recovery_target_name = 'here'
		recovery_target_action = 'promote'
		summarize_wal = off
		lazydrop.pass_delay = 1s});
	$node->start;
	$node->poll_query_until('postgres', 'SELECT NOT pg_is_in_recovery()')
	  or die "$name does not come out of recovery";
	is_deeply(
		[ map { files_below($node->data_dir, $_) } @{ $victims{$name} } ],
		[], "$name: recovery has removed what was dropped meanwhile");
	check_server($node, $contents, $name);
	check_stopped($node, $name);
	$node->clean_node;
	return;
}

restore_backup('full');
restore_backup('incremental', combine_with_prior => ['full']);
restore_backup('in_tar', tar_program => $tar);
restore_backup('of_standby');
restore_backup('of_standby_in_tar', tar_program => $tar);
restore_backup('of_standby_incremental',
	combine_with_prior => [ 'full', 'incremental' ]);


# --- pg_rewind --------------------------------------------------------------

# The standby is promoted while it has drops of the storm pending.  Then a storm runs on
# each of the two servers, so that each has drops pending that the other does not know of
# when the former primary is made a standby of the new one.
sub rewind
{
	my ($old, $new, $from, $mode) = @_;
	my $what = "pg_rewind, source $from, target stopped $mode";
	hold_worker($_, 'lazydrop-removal') foreach $old, $new;
	start_storm($old);
	$old->safe_psql(
		'postgres', qq{
		CREATE TABLE early_$mode$from AS SELECT i AS a, repeat('e', 500) AS b FROM generate_series(1, 1000) AS i;
		CREATE TABLE returns_$mode$from AS SELECT i AS a, repeat('r', 500) AS b FROM generate_series(1, 1000) AS i;
		CREATE TABLE leaves_$mode$from AS SELECT i AS a, repeat('l', 500) AS b FROM generate_series(1, 1000) AS i}
	);
	my ($early, $returns, $leaves) = map {
		$old->safe_psql('postgres',
			"SELECT pg_relation_filepath('${_}_$mode$from')")
	} qw(early returns leaves);

	# Files that a transaction has created which is in progress when a standby is promoted
	# are left behind, in stock PostgreSQL as well.
	stop_storm($old);
	$old->wait_for_replay_catchup($new);
	add_segments($old, $returns, 2, MB);
	add_segments($_, $leaves, 2, MB) foreach $old, $new;
	add_segments($new, $early, 2, MB);
	$old->safe_psql('postgres', "DROP TABLE early_$mode$from");
	$old->wait_for_replay_catchup($new);
	cmp_ok(scalar(relation_files($new, $early)),
		'>=', 3, "$what: files are pending at the promotion")
	  if $have_points;
	$new->promote;
	is(scalar(relation_files($new, $early)), 0, "$what: and gone after it");
	start_storm($_, 'file_copy', 'tablespace') foreach $old, $new;
	$new->safe_psql('postgres', 'CHECKPOINT');
	$old->safe_psql('postgres',
		"UPDATE live SET n = -1; DROP TABLE returns_$mode$from");
	$new->safe_psql('postgres',
		"UPDATE live SET n = -2 WHERE a % 2 = 0; DROP TABLE leaves_$mode$from"
	);

	foreach ($have_points ? ([ $old, $returns ], [ $new, $leaves ]) : ())
	{
		my ($node, $path) = @$_;
		cmp_ok(
			scalar(
				grep { -s $node->data_dir . "/$_" }
				  relation_files($node, $path)),
			'>=', 3,
			"$what: files are pending on " . $node->name);
	}

	# Pending files are removed, or hidden by the shutdown.  After an immediate stop they
	# are left, and are removed by the recovery in single-user mode that pg_rewind
	# performs.
	release_worker($old, 'lazydrop-removal') if $mode eq 'fast';
	$old->stop($mode);
	forget_storm($old);
	is( scalar(
			grep { -s $old->data_dir . "/$_" } relation_files($old, $returns)
		),
		$mode eq 'fast' ? 0 : 3,
		"$what: files after the target has stopped")
	  if $mode eq 'fast' || $have_points;
	if ($from eq 'directory')
	{
		stop_storm($new);
		release_worker($new, 'lazydrop-removal');
		$new->stop;
	}
	command_ok(
		[
			'pg_rewind', '--no-sync',
			'--target-pgdata' => $old->data_dir,
			$from eq 'server'
			? ('--source-server' => $new->connstr('postgres'))
			: ('--source-pgdata' => $new->data_dir)
		],
		$what);

	# The settings have been copied with the data.
	$new->start if $from eq 'directory';
	$old->append_conf('postgresql.conf', 'port = ' . $old->port);
	$old->enable_streaming($new);
	$old->start;
	stop_storm($new) if $from eq 'server';
	release_worker($new, 'lazydrop-removal') if $from eq 'server';
	$new->wait_for_replay_catchup($old);
	is_deeply(contents($old), contents($new),
		"$what: the contents are the same");
	is( $old->safe_psql(
			'postgres',
			"SELECT count(*), sum(length(b)) FROM returns_$mode$from"),
		'1000|500000',
		"$what: a table that had been dropped is back");
	$_->safe_psql('postgres', 'CHECKPOINT') foreach $new, $old;
	is_deeply([ map { relation_files($_, $leaves) } $old, $new ],
		[], "$what: what the source has dropped is gone");
	is_deeply([ orphaned_files($_, crashed => 1) ],
		[], "$what: no files that belong to nothing on " . $_->name)
	  foreach $old, $new;
	return;
}

rewind($primary, $standby, 'server', 'fast');
rewind($standby, $primary, 'directory', 'immediate');
rewind($primary, $standby, 'server', 'immediate');
$standby->command_ok([ 'pg_amcheck', '--all', '--install-missing' ],
	'after pg_rewind: pg_amcheck');
foreach my $node ($primary, $standby)
{
	check_stopped($node, 'after pg_rewind, ' . $node->name);
	$node->clean_node;
}

# --- pg_upgrade -------------------------------------------------------------

# Directories with the binaries of older versions.
my @candidates = split /:/, $ENV{LAZYDROP_OLD_BINDIR} // '';
push @candidates,
  glob("'$ENV{LAZYDROP_TOOLS}'/postgresql/usr/lib/postgresql/*/bin")
  if defined $ENV{LAZYDROP_TOOLS};
push @candidates, '/usr/lib/postgresql/15/bin' if !@candidates;
my @old_bindirs = grep { -x "$_/postgres" && -x "$_/pg_ctl" } @candidates;

# Append the directories of the libraries that fetch-tools had to download for them.
if (defined $ENV{LAZYDROP_TOOLS})
{
	$ENV{LD_LIBRARY_PATH} = join ':',
	  grep { defined && $_ ne '' } $ENV{LD_LIBRARY_PATH},
	  glob(
		"'$ENV{LAZYDROP_TOOLS}'/postgresql/usr/lib/*-linux-* '$ENV{LAZYDROP_TOOLS}'/postgresql/lib/*-linux-*"
	  );
}

# Returns the relfilenumbers that relations of a database have been given.
sub numbers
{
	my ($node, $database) = @_;
	return split /\n/,
	  $node->safe_psql($database,
		'SELECT pg_relation_filenode(oid) FROM pg_class WHERE NOT relisshared AND pg_relation_filenode(oid) >= 16384'
	  );
}

my $copies = 0;

# Upgrade a copy of an older server's data directory.  pg_upgrade drops the databases
# template1 and postgres of the new server, creates them with their old OIDs, and then
# creates relations in them with the numbers that they had on the old server.  Before
# that, catalogs of the new server's template1 and postgres have been given numbers of the
# same range.  Names of pending entries are therefore used again, as databases and as
# relations.  The old server may have the fork's extension.
sub upgrade
{
	my ($old, $mode, $contents, $numbers, $has_extension) = @_;
	my $copy = ++$copies;
	my $directory = "$scratch/old$copy";
	my $tablespace = "$scratch/tablespace$copy";
	my ($link) = grep { /^[0-9]+$/ } slurp_dir($old->data_dir . '/pg_tblspc');
	system_or_bail('cp', '-RPp', $old->data_dir, $directory);
	system_or_bail('cp', '-RPp', $old->data_dir . "/pg_tblspc/$link/.",
		$tablespace);
	unlink "$directory/pg_tblspc/$link";
	symlink($tablespace, "$directory/pg_tblspc/$link")
	  or die "could not make a symbolic link: $!";
	my $new = PostgreSQL::Test::Cluster->new('new' . ($mode =~ tr/-/_/r));
	init_with_checksums($new);
	$new->append_conf(
		'postgresql.conf', q{
		autovacuum = off
		shared_buffers = 32MB
		lazydrop.log_passes = on
		lazydrop.pass_delay = 60s});
	$new->start;

	# The old server may be a later security release, which stores options that this
	# server does not know.
	foreach my $option (@{ $old->{lazydrop_options} })
	{
		my ($ret) = $new->psql('postgres',
			"BEGIN; CREATE TEMP TABLE t (a int); ALTER TABLE t ALTER a SET ($option)"
		);
		return 0 if $ret != 0;
	}
	foreach my $database (qw(template1 postgres))
	{
		$new->safe_psql($database, 'VACUUM FULL');
		my %numbers = map { $_ => 1 } numbers($new, $database);
		cmp_ok(scalar(grep { $numbers{$_} } @{ $numbers->{$database} }),
			'>', 0, "pg_upgrade $mode: numbers in $database come back");
	}
	$new->stop;

	# pg_upgrade leaves a script in the current directory.
	my $here = getcwd();
	chdir $scratch or die "could not change directory: $!";
	command_ok(
		[
			'pg_upgrade', '--no-sync', '--retain', '--jobs=2', $mode,
			'--old-datadir' => $directory,
			'--new-datadir' => $new->data_dir,
			'--old-bindir' => $old->{lazydrop_bindir},
			'--new-bindir' => $new->config_data('--bindir'),
			'--socketdir' => $new->host,
			'--old-port' => $old->port,
			'--new-port' => $new->port
		],
		"pg_upgrade $mode");
	chdir $here or die "could not change directory: $!";
	my ($file) =
	  glob( "'"
		  . $new->data_dir
		  . "'/pg_upgrade_output.d/*/log/pg_upgrade_server.log");
	my $log = slurp_file($file);
	foreach my $database (qw(template1 postgres))
	{
		ok( $log =~
			  / lazy drop pass complete: [0-9]+ relations and [1-9].*\n.* STATEMENT:  CREATE DATABASE "$database"/,
			"pg_upgrade $mode: who creates $database again settles it first");
	}
	is_deeply(bad_lines($log), [], "pg_upgrade $mode: its log is clean");

	$new->append_conf('postgresql.conf', 'max_connections = 20');
	$new->append_conf('postgresql.conf', 'allow_in_place_tablespaces = on');
	$new->append_conf('postgresql.conf', 'lazydrop.pass_delay = 0');
	$new->start;
	is_deeply(contents($new, users_only => 1),
		$contents, "pg_upgrade $mode: has the contents");
	is( $new->safe_psql(
			'other', 'SELECT count(pending_relations) FROM pg_stat_lazydrop'),
		1,
		"pg_upgrade $mode: has the extension") if $has_extension;
	$new->command_ok(
		[
			'vacuumdb', '--all',
			'--analyze-in-stages', '--missing-stats-only'
		],
		"pg_upgrade $mode: vacuumdb --missing-stats-only"
	) if pg_major() >= 18;
	$new->command_ok(
		[ 'vacuumdb', '--all', '--analyze-only' ],
		"pg_upgrade $mode: vacuumdb --analyze-only");

	# Drop some of the upgraded objects, among others, and crash.
	start_storm($new);
	$new->safe_psql($_, 'DROP TABLE drop_me')
	  foreach qw(template1 postgres other);
	$new->safe_psql('postgres', 'DROP DATABASE drop_me');
	stop_storm($new);
	my $after = contents($new);
	$new->stop('immediate');
	$new->start;
	check_server($new, $after, "pg_upgrade $mode");
	check_stopped($new, "pg_upgrade $mode");
	$new->clean_node;
	return 1;
}

# Test all transfer modes with the last version, and one mode with each of the others.
foreach my $old_bindir (@old_bindirs)
{
	my @modes =
		$old_bindir ne $old_bindirs[-1] ? '--link'
	  : pg_major() < 18                 ? ('--copy', '--link')
	  :                                   ('--copy', '--link', '--swap');
	my $old =
	  PostgreSQL::Test::Cluster->new('old',
		install_path => dirname($old_bindir));
	$old->{lazydrop_bindir} = $old_bindir;
	note('upgrading from ' . $old->pg_version);
	$old->init(extra => ['--data-checksums']);
	$old->append_conf('postgresql.conf',
		"autovacuum = off\nlazydrop.pass_delay = 60s");
	$old->start;
	create_schema($old);
	my $old_is_fork =
	  $old->safe_psql('postgres', 'SELECT version()') =~ /LazyDrop/;
	$old->safe_psql('other', 'CREATE EXTENSION pg_lazydrop') if $old_is_fork;
	my $tablespace = PostgreSQL::Test::Utils::tempdir_short();
	$old->safe_psql('postgres', $_)
	  foreach (
		"CREATE TABLESPACE ts LOCATION '$tablespace'",
		'CREATE DATABASE moved TABLESPACE ts',
		'CREATE DATABASE drop_me',
		'CREATE TABLE drop_me TABLESPACE ts AS SELECT generate_series(1, 1000) AS a',
		q{SELECT lo_from_bytea(0, 'large object'); VACUUM FULL pg_largeobject},
		'CREATE MATERIALIZED VIEW view AS SELECT count(*) FROM live',
		'CREATE UNLOGGED TABLE unlogged AS SELECT 1 AS a');
	$old->safe_psql('moved',
		'CREATE TABLE t AS SELECT generate_series(1, 1000) AS a');
	$old->safe_psql($_,
		'CREATE TABLE drop_me AS SELECT generate_series(1, 1000) AS a')
	  foreach qw(template1 other);

	# Create enough relations for some of their numbers to be in use on the new server,
	# too.  The numbers there are in no particular order.
	my %numbers;
	foreach my $database (qw(template1 postgres))
	{
		$old->safe_psql(
			$database, q{
			DO $$
			BEGIN
				FOR i IN 1 .. 50 LOOP
					EXECUTE format('CREATE TABLE many%s (a int, b text DEFAULT repeat(''m'', 100))', i);
					EXECUTE format('INSERT INTO many%s SELECT generate_series(1, 100)', i);
				END LOOP;
			END $$});
		$numbers{$database} = [ numbers($old, $database) ];
	}
	my $contents = contents($old, users_only => 1);
	$old->{lazydrop_options} = [
		split /\n/,
		$old->safe_psql(
			'postgres',
			q{SELECT DISTINCT unnest(attoptions) FROM pg_attribute WHERE attrelid = 'live'::regclass}
		)
	];

	# The fork stops with drops pending.
	$old->safe_psql('postgres',
		'CREATE TABLE gone AS SELECT generate_series(1, 1000) AS a');
	my $gone =
	  $old->safe_psql('postgres', q{SELECT pg_relation_filepath('gone')});
	$old->safe_psql('postgres', 'DROP TABLE gone');
	cmp_ok(stats($old)->{pending_relations},
		'>', 0, 'the old server has drops pending')
	  if $old_is_fork;
	$old->stop;
	ok(!-e $old->data_dir . "/$gone",
		'whose files are gone when the old server has stopped');

  SKIP:
	foreach my $mode (@modes)
	{
		upgrade($old, $mode, $contents, \%numbers, $old_is_fork)
		  or skip 'PostgreSQL '
		  . $old->pg_version
		  . " is too new for this one: @{ $old->{lazydrop_options} }", 1;
	}
	$old->clean_node;
}
SKIP:
{
	skip
	  "no older PostgreSQL (LAZYDROP_OLD_BINDIR, LAZYDROP_TOOLS) in @candidates",
	  1
	  if !@old_bindirs;
}

# --- pgBackRest -------------------------------------------------------------

my $pgbackrest = $ENV{LAZYDROP_PGBACKREST} // (
	defined $ENV{LAZYDROP_TOOLS}
	? "$ENV{LAZYDROP_TOOLS}/bin/pgbackrest"
	: 'pgbackrest');
my ($version) = eval { run_command([ $pgbackrest, 'version' ]) };

SKIP:
{
	skip "no pgBackRest (LAZYDROP_PGBACKREST, LAZYDROP_TOOLS) as $pgbackrest",
	  1
	  unless ($version // '') =~ /^pgBackRest ([0-9]+)\.([0-9]+)/;
	skip "$version knows no PostgreSQL " . pg_major(), 1
	  if $1 == 2 && $2 < (pg_major() < 18 ? 54 : 55);
	note($version);

	my $repository = "$scratch/repository";
	my $tablespace = PostgreSQL::Test::Utils::tempdir_short();
	my @pgbackrest = (
		$pgbackrest, "--config=$scratch/pgbackrest.conf",
		'--stanza=lazydrop');
	my $source = start_quiet_node(
		'source',
		'archive_mode' => 'on',
		'archive_command' => "'@pgbackrest archive-push %p'",
		'lazydrop.pass_delay' => $pass_delay,
		'max_connections' => 20,
		'max_wal_size' => '4GB');
	append_to_file("$scratch/pgbackrest.conf",
			"[global]\nrepo1-path=$repository\nrepo1-retention-full=2\n"
		  . "log-path=$scratch/log\nlock-path=$scratch/lock\nspool-path=$scratch/spool\n"
		  . "log-level-console=warn\nstart-fast=y\ncompress-level=1\n"
		  . "[lazydrop]\npg1-path="
		  . $source->data_dir
		  . "\npg1-socket-path="
		  . $source->host
		  . "\npg1-port="
		  . $source->port
		  . "\n");

	mkdir "$scratch/$_" foreach qw(log lock spool);

	# Create everything in a tablespace, except databases.  pgBackRest does not support
	# tablespaces in place.
	$source->safe_psql('postgres',
		"CREATE TABLESPACE ts LOCATION '$tablespace'");
	$source->safe_psql('postgres', 'CREATE EXTENSION injection_points')
	  if $have_points;
	$source->append_conf('postgresql.conf', 'default_tablespace = ts');
	$source->reload;
	$source->poll_query_until('postgres',
		q{SELECT current_setting('default_tablespace') = 'ts'});
	create_schema($source);
	command_ok([ @pgbackrest, 'stanza-create' ], 'pgBackRest stanza-create');

	# The processes of pgBackRest form a process group, so that all of them can be
	# stopped.
	my $before = create_victim($source, 'before');
	my $during = create_victim($source, 'during');
	start_storm($source, 'file_copy', 'tablespace');
	hold_worker($source, 'lazydrop-worker');
	drop_table($source, $before);
	worker_is_held($source, 'lazydrop-worker');
	drop_database($source, $before);
	cmp_ok(scalar(files_below($source->data_dir, $before)),
		'>', 3, 'pgBackRest: files are pending when it begins');
	my $backup = { err => '' };
	$backup->{run} = IPC::Run::start(
		[
			'sh', '-c', 'echo $$ >"$0.tmp" && mv "$0.tmp" "$0" && exec "$@"',
			"$scratch/pid", @pgbackrest, '--type=full', 'backup'
		],
		'init' => sub { setpgrp(0, 0) },
		'<' => \undef,
		'>' => \$backup->{err},
		'2>&1');
	wait_until(
		sub {
			my @files =
			  glob("'$repository'/backup/lazydrop/*F/pg_data/base/*");
			return @files > 0;
		}) or die "no backup has begun: $backup->{err}";
	my $pid = slurp_file("$scratch/pid") + 0;
	kill 'STOP', -$pid;
	is( $source->safe_psql(
			'postgres',
			q{SELECT count(*) FROM pg_stat_activity WHERE application_name LIKE 'pgBackRest%'}
		),
		1,
		'pgBackRest: is copying files');
	drop_table($source, $during);
	drop_database($source, $during);
	kill 'CONT', -$pid;
	$backup->{run}->finish;
	is(result_of($backup), '0', 'pgBackRest: full backup');
	cmp_ok(scalar(files_below($source->data_dir, $during)),
		'>', 3, 'pgBackRest: files are pending when it ends');
	release_worker($source, 'lazydrop-worker');
	stop_storm($source);

	start_storm($source, 'tablespace');
	my ($out, $err) =
	  run_command([ @pgbackrest, '--type=incr', 'backup' ]);
	is("$out$err", '', 'pgBackRest: incremental backup');
	stop_storm($source);
	($out) = run_command([ @pgbackrest, '--output=json', 'info' ]);
	is( join(' ',
			map { "$_->{type} " . ($_->{error} ? 'error' : 'ok') }
			  @{ decode_json($out)->[0]{backup} }),
		'full ok incr ok',
		'pgBackRest: has found no invalid pages');

	my $contents = contents($source);
	$source->safe_psql('postgres', q{SELECT pg_create_restore_point('here')});
	start_storm($source, 'file_copy', 'tablespace');
	stop_storm($source);
	my $file = $source->safe_psql('postgres',
		'SELECT pg_walfile_name(pg_switch_wal())');
	$source->poll_query_until('postgres',
		"SELECT last_archived_wal >= '$file' FROM pg_stat_archiver")
	  or die 'WAL is not archived';
	$source->stop;

	my $restored = PostgreSQL::Test::Cluster->new('restored');
	mkdir $restored->data_dir, 0700;
	foreach my $set ('full', 'incremental')
	{
		# The second backup is restored over the files of the first one.
		my ($label) =
		  map { m{([^/]*)$} }
		  glob(
			"'$repository'/backup/lazydrop/*" . ($set eq 'full' ? 'F' : 'I'));
		command_ok(
			[
				@pgbackrest,
				'--pg1-path=' . $restored->data_dir,
				"--set=$label",
				'--type=name',
				'--target=here',
				'--target-action=promote',
				'--archive-mode=off',
				"--tablespace-map=ts=$scratch/restored",
				$set eq 'full' ? () : '--delta',
				'restore'
			],
			"pgBackRest: restore, $set");
		cmp_ok(
			scalar(files_below($restored->data_dir, $during)),
			$set eq 'full' ? '>' : '==',
			0,
			"pgBackRest: files of what was dropped meanwhile, $set");
		is_deeply([ files_below($restored->data_dir, $before) ],
			[], "pgBackRest: no files of what was dropped before, $set");
		$restored->append_conf('postgresql.conf',
			'port = ' . $restored->port);
		$restored->start;
		$restored->poll_query_until('postgres',
			'SELECT NOT pg_is_in_recovery()')
		  or die 'no end of recovery';
		is_deeply([ files_below($restored->data_dir, $during) ],
			[], "pgBackRest: recovery has removed them, $set");
		check_server($restored, $contents, "pgBackRest, $set");

		if ($set eq 'full')
		{
			start_storm($restored, 'tablespace');
			$restored->stop('immediate');
			forget_storm($restored);
		}
	}
	check_stopped($restored, 'pgBackRest');
}

done_testing();
