# Copyright (c) 2026, LazyDrop developers

# pgBackRest, full and incremental, during a storm of drops.  Files of dropped relations
# still exist then, and shared buffers hold pages of them that are never written.  Each
# backup is restored, recovered to a known point and compared with the source.  pg_amcheck
# and pg_checksums must succeed, and no orphaned file may be left.
#
# The test searches for pgBackRest in LAZYDROP_PGBACKREST, in LAZYDROP_TOOLS, which
# src/tools/lazydrop/fetch-tools fills, and in PATH.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/..";
use DropStorm
  qw(need_storms start_source create_schema start_storm stop_storm forget_storm result_of
  hold_worker worker_is_held release_worker check_server check_stopped create_victim
  drop_table drop_database files_below);
use IPC::Run;
use JSON::PP;
use LazyDropFiles qw(contents);
use LazyDropUtils qw(wait_until pg_major);
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

need_storms();

my $pgbackrest = $ENV{LAZYDROP_PGBACKREST} // (
	defined $ENV{LAZYDROP_TOOLS}
	? "$ENV{LAZYDROP_TOOLS}/bin/pgbackrest"
	: 'pgbackrest');
my ($version) = eval { run_command([ $pgbackrest, 'version' ]) };
plan skip_all =>
  "no pgBackRest (LAZYDROP_PGBACKREST, LAZYDROP_TOOLS) as $pgbackrest"
  unless ($version // '') =~ /^pgBackRest ([0-9]+)\.([0-9]+)/;
plan skip_all => "$version knows no PostgreSQL " . pg_major()
  if $1 == 2 && $2 < (pg_major() < 18 ? 54 : 55);
note($version);

# --- servers ----------------------------------------------------------------

my $scratch = PostgreSQL::Test::Utils::tempdir();
my $repository = "$scratch/repository";
my $tablespace = PostgreSQL::Test::Utils::tempdir_short();
my @pgbackrest =
  ($pgbackrest, "--config=$scratch/pgbackrest.conf", '--stanza=lazydrop');
my $source = start_source(
	'source',
	'archive_mode' => 'on',
	'archive_command' => "'@pgbackrest archive-push %p'");
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
$source->safe_psql('postgres', "CREATE TABLESPACE ts LOCATION '$tablespace'");
$source->append_conf('postgresql.conf', 'default_tablespace = ts');
$source->reload;
$source->poll_query_until('postgres',
	q{SELECT current_setting('default_tablespace') = 'ts'});
create_schema($source);
command_ok([ @pgbackrest, 'stanza-create' ], 'pgBackRest stanza-create');

# --- backups ----------------------------------------------------------------

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
		my @files = glob("'$repository'/backup/lazydrop/*F/pg_data/base/*");
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
my $file =
  $source->safe_psql('postgres', 'SELECT pg_walfile_name(pg_switch_wal())');
$source->poll_query_until('postgres',
	"SELECT last_archived_wal >= '$file' FROM pg_stat_archiver")
  or die 'WAL is not archived';
$source->stop;

# --- restore ----------------------------------------------------------------

my $restored = PostgreSQL::Test::Cluster->new('restored');
mkdir $restored->data_dir, 0700;
foreach my $set ('full', 'incremental')
{
	# The second backup is restored over the files of the first one.
	my ($label) =
	  map { m{([^/]*)$} }
	  glob("'$repository'/backup/lazydrop/*" . ($set eq 'full' ? 'F' : 'I'));
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
	$restored->append_conf('postgresql.conf', 'port = ' . $restored->port);
	$restored->start;
	$restored->poll_query_until('postgres', 'SELECT NOT pg_is_in_recovery()')
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

done_testing();
