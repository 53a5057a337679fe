# Copyright (c) 2026, LazyDrop developers

# Base backups during a storm of drops.  Files of dropped relations still exist then, and
# shared buffers hold pages of them that are never written.  pg_basebackup makes full and
# incremental backups, plain and tar, of a primary and of a standby; pg_verifybackup and
# pg_combinebackup read them.  Each result is recovered to a known point and compared with
# the source.  pg_amcheck and pg_checksums must succeed, and no orphaned file may be left.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/..";
use DropStorm
  qw(need_storms start_source start_standby create_schema drop_tablespaces start_storm
  stop_storm result_of hold_worker worker_is_held release_worker check_server
  check_stopped create_victim drop_table drop_database files_below);
use IPC::Run;
use LazyDropFiles qw(contents);
use LazyDropUtils qw(wait_for_stats wait_until pg_major);
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

need_storms();

my $tar = $ENV{TAR} || 'tar';

my $primary = start_source(
	'primary',
	'summarize_wal' => 'on',
	'wal_keep_size' => '4GB');
create_schema($primary);
my $standby = start_standby($primary);

# --- backups ----------------------------------------------------------------

# Returns the files of a victim in a tar file.
sub files_in_tar
{
	my ($file, $victim) = @_;
	my ($list) = run_command([ $tar, '-tf' => $file ]);
	my $any = join '|', (map { "$_([_.].*)?\$" } @{ $victim->{paths} }),
	  "base/$victim->{oid}/.";
	return grep { m{^(?:\./)?(?:$any)} } split /\n/, $list;
}

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

	# A restartpoint that replay has requested after copies of databases would
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
		drop_tablespaces($primary);
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

done_testing();
