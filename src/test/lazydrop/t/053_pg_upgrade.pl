# Copyright (c) 2026, LazyDrop developers

# pg_upgrade from older major versions.  In the new server, drops are pending whose names
# come back as databases and as relations.  A storm of drops and a crash follow.
# pg_amcheck and pg_checksums must succeed, and no orphaned file may be left.
#
# The test searches for older versions of PostgreSQL, which may include older versions of
# the fork, in LAZYDROP_OLD_BINDIR (a list of directories separated by colons), in
# LAZYDROP_TOOLS, which src/tools/lazydrop/fetch-tools fills, and where Debian installs
# them.

use strict;
use warnings FATAL => 'all';

use Cwd            qw(getcwd);
use File::Basename qw(dirname);
use FindBin;
use lib "$FindBin::RealBin/..";
use DropStorm
  qw(need_storms create_schema start_storm stop_storm check_server check_stopped
  bad_lines);
use LazyDropFiles qw(contents);
use LazyDropUtils qw(stats pg_major init_with_checksums);
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

need_storms();

my $scratch = PostgreSQL::Test::Utils::tempdir();

# --- older servers ----------------------------------------------------------

# Directories with the binaries of older versions.
my @candidates = split /:/, $ENV{LAZYDROP_OLD_BINDIR} // '';
push @candidates,
  glob("'$ENV{LAZYDROP_TOOLS}'/postgresql/usr/lib/postgresql/*/bin")
  if defined $ENV{LAZYDROP_TOOLS};
push @candidates, '/usr/lib/postgresql/15/bin' if !@candidates;
my @old_bindirs = grep { -x "$_/postgres" && -x "$_/pg_ctl" } @candidates;
plan skip_all =>
  "no older PostgreSQL (LAZYDROP_OLD_BINDIR, LAZYDROP_TOOLS) in @candidates"
  if !@old_bindirs;

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

# --- an upgrade -------------------------------------------------------------

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
		lazydrop.lookup_limit = 0
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

# --- all upgrades -----------------------------------------------------------

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
		"autovacuum = off\nlazydrop.lookup_limit = 0\nlazydrop.pass_delay = 60s");
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

done_testing();
