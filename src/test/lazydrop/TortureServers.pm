# Copyright (c) 2026, LazyDrop developers

=pod

=head1 NAME

TortureServers - the servers of a round of the torture

=head1 DESCRIPTION

A round is a hash, which the test sets and its modules share:

number;
dir, the directory of the files that all processes of the round share;
primary, standby, cascade: the servers; the standbys are undefined if there are none;
conf, the settings of the servers;
small_disks, whether databases are on file systems of their own, and disks, these file
systems by the names of the servers;
gates, the handles of the files that let sessions wait;
faults, how often each one was inflicted;
crashes, how many of them were crashes;
copies, the number of backups and standbys that were made.

=cut

package TortureServers;

use strict;
use warnings FATAL => 'all';

use Exporter 'import';
use Fcntl           qw(:flock);
use File::Path      ();
use LazyDropModel   qw(chance draw read_file write_file);
use LazyDropTorture qw(psql);
use LazyDropUtils   qw(pg_major);
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(usleep time);

our @EXPORT_OK =
  qw(%round draw_settings mount_disk remove_node postmaster ask ensure_up nodes standbys
  catch_up hold let_go advance_epoch tell_servers with_restartpoint make_standby
  check_log);

our %round;

=pod

=over

=item draw_settings()

Returns random settings as a hash, options of initdb, and whether there are standbys.

=cut

sub draw_settings
{
	my $replicated = chance(0.85);
	my ($pg_config) = run_command([ 'pg_config', '--configure' ]);
	my @io_methods = pg_major() < 18 ? () : qw(sync worker);
	push @io_methods, 'io_uring'
	  if @io_methods && $pg_config =~ /with-liburing/;
	my %c = (
		shared_buffers =>
		  draw('128kB', '128kB', '1MB', '8MB', '64MB', '256MB', '1GB'),
		wal_level => $replicated ? draw('replica', 'logical') : 'minimal',
		max_wal_senders => $replicated ? 10 : 0,
		full_page_writes => draw('on', 'on', 'on', 'off'),
		wal_log_hints => 'on',
		fsync => draw('off', 'on'),
		@io_methods
		? ( io_method => draw(@io_methods),
			io_workers => draw(1, 3),
			file_copy_method => 'copy')
		: (),
		autovacuum => draw('on', 'off'),
		autovacuum_naptime => '1s',
		bgwriter_delay => draw('10ms', '200ms'),
		bgwriter_lru_maxpages => draw(0, 100, 1000),
		checkpoint_timeout => draw('30s', '5min'),
		max_wal_size => draw('32MB', '1GB'),
		min_wal_size => '32MB',
		wal_skip_threshold => draw('0', '64kB', '2MB'),
		wal_compression => draw('off', 'lz4'),
		wal_consistency_checking => draw('', '', '', 'all'),
		wal_keep_size => $replicated ? '8GB' : 0,
		recovery_prefetch => draw('try', 'off'),
		hot_standby_feedback => draw('on', 'off'),
		max_standby_streaming_delay => draw('100ms', '2s'),
		max_prepared_transactions => 20,
		max_worker_processes => draw(0, 2, 8, 8, 8),
		restart_after_crash => 'on',
		allow_in_place_tablespaces => 'on',
		log_statement => 'ddl',
		log_checkpoints => 'on',
		'lazydrop.enabled' => draw('on', 'on', 'on', 'on', 'off'),
		'lazydrop.max_pending' => draw(1, 3, 16, 100, 1000, 16384, 100000),
		'lazydrop.pass_delay' => draw(0, '50ms', '1s', '30s'),
		'lazydrop.lookup_limit' => draw(0, -1, -1, '64kB'),
		'lazydrop.defer_files' => draw('on', 'on', 'on', 'off'),
		'lazydrop.removal_rate' => draw(0, 0, '1MB', '100MB'),
		'lazydrop.scan_resistance' => draw('off', 'on', 'on'),
		'lazydrop.read_once' => draw('on', 'off', 'off'),
		'lazydrop.advisor' => draw('on', 'on', 'off'),
		'lazydrop.advisor_memory' => draw('128kB', '1MB', '16MB'),
		'remove_temp_files_after_crash' => draw('on', 'off'));
	# Without full-page images, a page may have its contents from after the record that is
	# checked, if the page was truncated away and created again.
	$c{wal_consistency_checking} = '' if $c{full_page_writes} eq 'off';
	# Use the setting that is not the default.
	my $checksums =
	  pg_major() < 18 ? '--data-checksums' : '--no-data-checksums';
	return (\%c, draw([], [$checksums]), $replicated);
}

=pod

=item mount_disk($node)

Mount a separate file system for the databases of a stopped server, so that the test can
fill it.

=item remove_node($node)

Remove a stopped server.

=cut

use constant DISK => 1024 * 1024 * 1024;

sub mount_disk
{
	my ($node) = @_;
	return if !$round{small_disks};
	my $base = $node->data_dir . '/base';
	rename($base, "$base.moved") or die "could not rename $base: $!";
	mkdir($base, 0700) or die "could not create $base: $!";
	system_or_bail('mount', '-t', 'tmpfs', '-o', 'mode=700,size=' . DISK,
		'tmpfs', $base);
	system_or_bail('cp', '-a', "$base.moved/.", $base);
	File::Path::rmtree("$base.moved");
	$round{disks}{ $node->name } = $base;
	return;
}

# Keep a copy of the files after a failure.
sub unmount_disk
{
	my ($node) = @_;
	my $base = delete $round{disks}{ $node->name } // return;
	system('cp', '-a', $base, "$base.kept")
	  if !Test::More->builder->is_passing;
	system_or_bail('umount', '--lazy', $base);
	return;
}

sub remove_node
{
	my ($node) = @_;
	unmount_disk($node);
	$node->clean_node;
	return;
}

END
{
	my $status = $?;
	foreach my $node (nodes())
	{
		$node->teardown_node(fail_ok => 1) if $round{disks}{ $node->name };
		unmount_disk($node);
	}
	$? = $status;
}

=pod

=item postmaster($node)

Returns the process ID of a running postmaster, or 0.

=item ask($node, $sql)

Returns the output of a query, or undef if it failed.

=item ensure_up(@nodes)

Start the servers that have ended, and wait until servers in recovery accept connections.

=item nodes(), standbys()

Return the servers that there are.

=item catch_up()

Wait until the standbys have replayed all WAL that the primary has written.

=cut

sub postmaster
{
	my ($node) = @_;
	open(my $file, '<', $node->data_dir . '/postmaster.pid') or return 0;
	my $pid = <$file> // '';
	chomp $pid;
	return 0 if $pid !~ /^\d+$/;
	open(my $stat, '<', "/proc/$pid/stat") or return 0;
	return (<$stat> // '') =~ /\) Z / ? 0 : $pid;
}

sub ask
{
	my ($node, $sql) = @_;
	my ($done, $out, $err) = psql($node->connstr('postgres'), '-c' => $sql);
	die $node->name . " hangs in \"$sql\""
	  if $err =~ /psql: IPC::Run: timeout/;
	return $done ? $out : undef;
}

sub ensure_up
{
	foreach my $node (@_)
	{
		my $deadline = time() + 2 * $PostgreSQL::Test::Utils::timeout_default;
		until (postmaster($node) && defined ask($node, 'SELECT 1'))
		{
			die $node->name . ' does not come up' if time() > $deadline;
			if (!postmaster($node))
			{
				$node->{_pid} = undef;
				$node->start(fail_ok => 1);
			}
			usleep(50_000);
		}
	}
	return;
}

sub nodes
{
	return
	  grep { defined } ($round{primary}, $round{standby}, $round{cascade});
}

sub standbys
{
	return grep { defined } ($round{standby}, $round{cascade});
}

sub catch_up
{
	ensure_up(nodes());
	my $lsn = $round{primary}->safe_psql('postgres',
		'SELECT pg_log_standby_snapshot(); SELECT pg_current_wal_insert_lsn()'
	);
	$lsn = (split /\n/, $lsn)[-1];
	foreach my $node (standbys())
	{
		my $deadline = time() + 2 * $PostgreSQL::Test::Utils::timeout_default;
		while (1)
		{
			my $done =
			  ask($node, "SELECT pg_last_wal_replay_lsn() >= '$lsn'") // '';
			last if $done eq 't';
			die $node->name . " does not replay up to $lsn"
			  if time() > $deadline;
			ensure_up($node);
			# WAL that is not flushed yet is not sent.
			ask($round{primary}, 'SELECT pg_switch_wal()');
			usleep(50_000);
		}
	}
	return;
}

=pod

=item hold($gate), let_go($gate)

Let sessions wait at a gate, and let them go.

=item advance_epoch()

Advance the epoch after a crash has begun and before it is over.  The observations of a
session after the crash then belong to another epoch than those before it.

=item tell_servers()

Tell the sessions how to connect to the servers.

=item with_restartpoint($code)

Run code that makes a backup or rewinds a server.  No copies of databases' files are made
meanwhile or have to be replayed afterwards.

=cut

sub hold
{
	my ($gate) = @_;
	write_file("$round{dir}/$gate.held", '');
	open($round{gates}{$gate}, '>>', "$round{dir}/$gate") or die $!;
	flock($round{gates}{$gate}, LOCK_EX) or die $!;
	return;
}

sub let_go
{
	my ($gate) = @_;
	unlink("$round{dir}/$gate.held");
	close(delete $round{gates}{$gate});
	return;
}

sub advance_epoch
{
	write_file("$round{dir}/epoch", read_file("$round{dir}/epoch") + 1);
	return;
}

sub tell_servers
{
	write_file("$round{dir}/primary", $round{primary}->connstr);
	write_file("$round{dir}/standby", $round{standby}->connstr)
	  if $round{standby};
	write_file("$round{dir}/cascade", $round{cascade}->connstr)
	  if $round{cascade};
	return;
}

sub with_restartpoint
{
	my ($code) = @_;
	ensure_up(nodes());
	hold('moves');
	catch_up();
	$round{primary}->safe_psql('postgres', 'CHECKPOINT');
	catch_up();
	$_->safe_psql('postgres', 'CHECKPOINT') foreach standbys();
	$code->();
	ensure_up(nodes());
	catch_up();
	let_go('moves');
	return;
}

=pod

=item make_standby($from, $backup, $upstream)

Returns a new standby of "upstream", from a backup that is in the folder of "from".

=item check_log($node)

Check that a server has logged nothing that it should not.

=cut

sub make_standby
{
	my ($from, $backup, $upstream) = @_;
	my $node =
	  PostgreSQL::Test::Cluster->new(
		"node$round{number}_" . ++$round{copies});
	$node->init_from_backup($from, $backup);
	$node->enable_streaming($upstream);
	mount_disk($node);
	ensure_up($node);
	return $node;
}

sub check_log
{
	my ($node) = @_;
	my $log = slurp_file($node->logfile);
	my @bad = grep {
		m{PANIC|TRAP|could not (open|create|access|fsync|read|write|extend|truncate|remove|unlink|stat) [^\n]*"(base|global|pg_tblspc)/|invalid page|page verification failed|leak|was terminated by signal (4|6|7|8|11)|unexpected zero page|inconsistent page}i
		  # the statement of a session
		  && !/(LOG|STATEMENT): +statement:/
		  # repeated replay of a drop of directories, perhaps while the worker removes
		  # them
		  && !
		  /could not (open directory|remove directory|remove file|stat file) .*: No such file or directory/
		  # the test has filled the file system
		  && !($round{small_disks}
			&& !/PANIC/
			&& /No space left on device|wrote only \d+ of \d+ bytes/)
		  # a read that never completes (doc/upstream/request-queue.md)
		  && !($round{faults}{'kill postmaster'}
			&& ($round{conf}{io_method} // '') eq 'worker'
			&& /TRAP: .*!IsTransactionOrTransactionBlock.*pgstat\.c/)
	} split /\n/, $log;
	is(join("\n", @bad[ 0 .. ($#bad > 9 ? 9 : $#bad) ]),
		'', "round $round{number}: the log of " . $node->name . ' is clean')
	  or diag(join("\n", $log =~ /^.*(?:PANIC|TRAP).*\n(?:.*\n){0,20}/mg));
	return;
}

=pod

=back

=cut

1;
