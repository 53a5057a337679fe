# Copyright (c) 2026, LazyDrop developers

# Torture test.  Sessions run random DDL and DML, and each has a model of the expected
# contents.  Meanwhile servers are checkpointed, restarted and killed, in whole or in
# part, standbys are built from backups and promoted, and the old primary is rewound.  At
# the end, the models, the primary and two standbys must agree, and no file of a dropped
# relation may be left.
#
# A run is a series of rounds.  Each round is a new installation and has a seed, from
# which its settings and the operations of its sessions are drawn.
#
#   LAZYDROP_TORTURE_SECONDS  duration of the run (default 80)
#   LAZYDROP_TEST_SEED        seed of the first round; the second has the next number
#
# The time decides which operation a fault hits.  A seed therefore reproduces the
# settings, and the operations until the first fault, but not always a failure.
#
# The test avoids situations that stock PostgreSQL does not survive:
#
# * A base backup cannot be recovered if, while it was taken, a database was copied by
#   file copy, or moved, and its source was then dropped.  The same is true if pg_rewind
#   must replay such operations (doc/upstream/moved-database.md).  Backups and pg_rewind
#   therefore begin with a restartpoint, and sessions do not run these operations
#   meanwhile ("moves" below).
# * pg_rewind requires full_page_writes.
# * REINDEX TABLE CONCURRENTLY omits values of dead rows from the index of the TOAST
#   table.  CLUSTER looks for them when a standby's feedback keeps these rows, and does
#   not find them (doc/upstream/reindex-concurrently-toast.md).
# * When INSERT or UPDATE follows ALTER TABLE SET TABLESPACE in one transaction, a
#   rollback leaves index entries behind (doc/upstream/set-tablespace-rollback.md).
# * A crash in the middle of a drop leaves the files if a checkpoint began and ended
#   during the drop (doc/upstream/files-left-behind.md).  The test accepts files that are
#   left only if the session was interrupted in the transaction that drops them, and WAL
#   has such a checkpoint.
# * A session that waits for a read which never completes, because the postmaster and the
#   I/O workers are gone, fails an assertion while it exits
#   (doc/upstream/request-queue.md).

use strict;
use warnings FATAL => 'all';

use Cwd        qw(abs_path);
use Fcntl      qw(:flock);
use File::Copy qw(copy);
use File::Path ();
use File::Temp ();
use FindBin;
use lib "$FindBin::RealBin/..";
use JSON::PP;
use LazyDropModel qw(chance draw read_file write_file);
use LazyDropTorture
  qw(psql run_session run_reader differences set_up_sql dump_database);
use LazyDropUtils
  qw(can_mount need_test_extra wait_for_nothing wait_for_stats wait_until evict_query hidden_files pg_major);
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use POSIX ();
use Test::More;
use Time::HiRes qw(usleep time);

my $can_mount;

BEGIN
{
	need_test_extra();
	plan skip_all => 'needs /proc' if !-r '/proc/self/stat';
	$can_mount = can_mount();
}

# strace is used to make system calls slow.
my $strace = system('strace -V >/dev/null 2>&1') == 0;

my $length = $ENV{LAZYDROP_TORTURE_SECONDS} || 80;
my $seed = $ENV{LAZYDROP_TEST_SEED} || int(rand(1_000_000_000));
my $began = time();

my ($pg_config) = run_command([ 'pg_config', '--configure' ]);
my @io_methods = pg_major() < 18 ? () : qw(sync worker);
push @io_methods, 'io_uring'
  if @io_methods && $pg_config =~ /with-liburing/;

# State of the round: its servers, their settings, and the faults until now.
my ($round, $dir, $primary, $standby, $cascade,
	$small_disks, %disks, %conf, %faults, %gates, $crashes, $copies);

# --- settings ---------------------------------------------------------------

sub draw_settings
{
	my $replicated = chance(0.85);
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
		'lazydrop.scan_limit' => draw(0, '32MB'),
		'lazydrop.defer_files' => draw('on', 'on', 'on', 'off'),
		'lazydrop.removal_rate' => draw(0, 0, '1MB', '100MB'),
		'lazydrop.scan_resistance' => draw('off', 'on', 'strict'),
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

# --- file systems -----------------------------------------------------------

# Mount a separate file system for the databases of a stopped server, so that the test can
# fill it.
use constant DISK => 1024 * 1024 * 1024;

sub mount_disk
{
	my ($node) = @_;
	return if !$small_disks;
	my $base = $node->data_dir . '/base';
	rename($base, "$base.moved") or die "could not rename $base: $!";
	mkdir($base, 0700) or die "could not create $base: $!";
	system_or_bail('mount', '-t', 'tmpfs', '-o', 'mode=700,size=' . DISK,
		'tmpfs', $base);
	system_or_bail('cp', '-a', "$base.moved/.", $base);
	File::Path::rmtree("$base.moved");
	$disks{ $node->name } = $base;
	return;
}

# Keep a copy of the files after a failure.
sub unmount_disk
{
	my ($node) = @_;
	my $base = delete $disks{ $node->name } // return;
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
		$node->teardown_node(fail_ok => 1) if $disks{ $node->name };
		unmount_disk($node);
	}
	$? = $status;
}

# --- the servers ------------------------------------------------------------

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

# Returns the output of a query, or undef if it failed.
sub ask
{
	my ($node, $sql) = @_;
	my ($done, $out, $err) = psql($node->connstr('postgres'), '-c' => $sql);
	die $node->name . " hangs in \"$sql\""
	  if $err =~ /psql: IPC::Run: timeout/;
	return $done ? $out : undef;
}

# Start the servers that have ended, and wait until servers in recovery accept
# connections.
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
	return grep { defined } ($primary, $standby, $cascade);
}

sub standbys
{
	return grep { defined } ($standby, $cascade);
}

# Wait until the standbys have replayed all WAL that the primary has written.
sub catch_up
{
	ensure_up(nodes());
	my $lsn = $primary->safe_psql('postgres',
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
			ask($primary, 'SELECT pg_switch_wal()');
			usleep(50_000);
		}
	}
	return;
}

sub hold
{
	my ($gate) = @_;
	write_file("$dir/$gate.held", '');
	open($gates{$gate}, '>>', "$dir/$gate") or die $!;
	flock($gates{$gate}, LOCK_EX) or die $!;
	return;
}

sub let_go
{
	my ($gate) = @_;
	unlink("$dir/$gate.held");
	close(delete $gates{$gate});
	return;
}

# Advance the epoch after a crash has begun and before it is over.  The observations of a
# session after the crash then belong to another epoch than those before it.
sub advance_epoch
{
	write_file("$dir/epoch", read_file("$dir/epoch") + 1);
	return;
}

sub tell_servers
{
	write_file("$dir/primary", $primary->connstr);
	write_file("$dir/standby", $standby->connstr) if $standby;
	write_file("$dir/cascade", $cascade->connstr) if $cascade;
	return;
}

# Run code that makes a backup or rewinds a server.  No copies of databases' files are
# made meanwhile or have to be replayed afterwards.
sub with_restartpoint
{
	my ($code) = @_;
	ensure_up(nodes());
	hold('moves');
	catch_up();
	$primary->safe_psql('postgres', 'CHECKPOINT');
	catch_up();
	$_->safe_psql('postgres', 'CHECKPOINT') foreach standbys();
	$code->();
	ensure_up(nodes());
	catch_up();
	let_go('moves');
	return;
}

# --- faults -----------------------------------------------------------------

# Returns the child processes of a postmaster, by type.
sub processes
{
	my ($node) = @_;
	my $postmaster = postmaster($node) or return {};
	my %processes;
	foreach my $stat (glob('/proc/[0-9]*/stat'))
	{
		open(my $file, '<', $stat) or next;
		my $line = <$file> // '';
		next unless $line =~ /^(\d+) \(.*\) \S (\d+) / && $2 == $postmaster;
		my $pid = $1;
		open(my $title, '<', "/proc/$pid/cmdline") or next;
		my $name = <$title> // '';
		$name =~ s/\0.*//s;
		my ($what) = $name =~ /^postgres: \S+: (.*?) *$/ or next;
		$what =~ s/ (\d|recovering|waiting).*//;
		$what = 'backend' if $what =~ /postgres|idle|\[local\]/;
		push @{ $processes{$what} }, $pid;
	}
	return \%processes;
}

sub kill_process
{
	my ($node) = @_;
	my $processes = processes($node);
	my @kinds = sort keys %$processes or return;
	my $kind = draw(@kinds, grep { /lazy drop|checkpointer|startup/ } @kinds);
	kill('KILL', draw(@{ $processes->{$kind} }));
	advance_epoch();
	$faults{"kill $kind"}++;
	return;
}

sub hurt
{
	my ($node) = @_;
	hurt_processes($node);
	ensure_up($node);
	return;
}

sub hurt_processes
{
	my ($node) = @_;
	$crashes++;
	my $dice = rand();
	if ($dice < 0.6)
	{
		kill_process($node);
		# Do it again, perhaps during crash recovery.
		if (chance(0.3))
		{
			usleep(int(rand(500_000)));
			kill_process($node);
		}
	}
	elsif ($dice < 0.75)
	{
		$faults{'kill postmaster'}++;
		my $pid = postmaster($node);
		kill('KILL', $pid) if $pid;
		advance_epoch();
	}
	else
	{
		$faults{'immediate shutdown'}++;
		$node->stop('immediate', fail_ok => 1);
		advance_epoch();
	}
	return;
}

# Run code while the file system of a server has only "free" bytes free.
sub fill_disk
{
	my ($node, $free, $code) = @_;
	my $ballast = "$disks{$node->name}/ballast";
	my ($size) =
	  (run_command([ 'df', '--output=avail', '-B1', $disks{ $node->name } ]))[0]
	  =~ /(\d+)/;
	if ($size > $free)
	{
		# This fails if other processes have used the space meanwhile.
		system('fallocate', '-l', $size - $free, $ballast) == 0
		  or $faults{'could not fill a disk'}++;
	}
	my $done = eval { $code->(); 1 };
	my $error = $@;
	unlink($ballast);
	die $error if !$done;
	return;
}

# Make a checkpoint in which each fsync of the server's checkpointer is slow.
sub slow_fsyncs
{
	my ($node, $milliseconds, $code) = @_;
	my ($checkpointer) = @{ processes($node)->{checkpointer} // [] }
	  or return 0;
	my @calls = ('-e', 'trace=fsync,fdatasync',
		'-e', 'inject=fsync,fdatasync:delay_enter=' . 1000 * $milliseconds);
	my $trace = IPC::Run::start(
		[ 'strace', '-qq', '-o', '/dev/null', @calls, '-p', $checkpointer ],
		'>' => \my $out,
		'2>' => \my $err);
	my $checkpoint = IPC::Run::start(
		[ 'psql', '-XAtq', '-d', $node->connstr('postgres'), '-c', 'CHECKPOINT' ],
		'>' => \my $psql_out,
		'2>' => \my $psql_err);
	my $done = eval { $code->(); 1 };
	my $error = $@;
	$trace->signal('TERM');
	$trace->finish;
	$checkpoint->finish;
	die $error if !$done;
	# Tracing may not be permitted.
	return $err eq '' ? 1 : 0;
}

my %fault;
%fault = (
	checkpoint => sub {
		my $node = shift // draw(nodes());
		ask($node, 'CHECKPOINT');
	},
	evict => sub {
		ask(draw(nodes()), evict_query());
	},
	# It may time out if the worker is busy with something that takes longer.
	drain => sub {
		ask(shift // draw(nodes()),
			q{SELECT count(*), sum(bytes) FROM pg_lazydrop_pending; SELECT pg_lazydrop_drain('5 s')}
		);
	},
	hurt_primary => sub { hurt($primary) },
	hurt_standby => sub {
		my $node = draw(standbys()) or return 0;
		hurt($node);
	},
	restart_primary => sub {
		# A fast shutdown terminates all sessions.  A smart shutdown waits for them, so no
		# new session may connect.
		my $mode = draw('fast', 'fast', 'smart');
		hold('gate') if $mode eq 'smart';
		$faults{"restart $mode"}++;
		advance_epoch();
		$primary->stop($mode, fail_ok => 1);
		ensure_up($primary);
		let_go('gate') if $mode eq 'smart';
	},
	restart_standby => sub {
		my $node = draw(standbys()) or return 0;
		$node->stop('fast', fail_ok => 1);
		ensure_up($node);
	},
	fill_disk => sub {
		my $node = draw(nodes());
		my $what = draw(qw(wait wait checkpoint drain hurt));
		my $free = draw(0, 0, 10, 40, 200);
		$faults{"$free MB free: $what"}++;
		fill_disk(
			$node,
			$free * 1024 * 1024,
			sub {
				usleep(int(rand(3_000_000)));
				$fault{$what}->($node) if $what =~ /checkpoint|drain/;
				hurt_processes($node)  if $what eq 'hurt';
			});
		# A standby or a server in crash recovery stops when the disk is full.
		ensure_up(nodes());
	},
	slow_fsyncs => sub {
		return slow_fsyncs(draw(nodes()), draw(10, 50, 200),
			sub { usleep(int(rand(4_000_000))) });
	},
	stop_worker => sub {
		my $processes = processes(draw(nodes()));
		my ($worker) = @{ $processes->{'lazy drop worker'} // [] }
		  or return 0;
		kill('STOP', $worker);
		usleep(int(rand(2_000_000)));
		kill('CONT', $worker);
	},
	reload => sub {
		foreach my $node (nodes())
		{
			my %new = (
				'lazydrop.enabled' => draw('on', 'on', 'off'),
				'lazydrop.defer_files' => draw('on', 'on', 'off'),
				'lazydrop.pass_delay' => draw(0, '100ms', '1s', '60s'),
				'lazydrop.removal_rate' => draw(0, '1MB', '50MB'),
				'lazydrop.scan_resistance' => draw('off', 'on', 'strict'),
				'lazydrop.advisor' => draw('on', 'off'),
				'bgwriter_lru_maxpages' => draw(0, 100, 1000));
			$node->append_conf('postgresql.conf',
				join('', map { "$_ = $new{$_}\n" } sort keys %new));
			$node->reload;
		}
	},
	backup => sub {
		return 0 if !$cascade;
		with_restartpoint(
			sub {
				# A standby cannot provide a backup without full_page_writes.
				my $from =
				  $conf{full_page_writes} eq 'on'
				  ? draw($primary, $standby)
				  : $primary;
				my $name = 'backup' . ++$copies;
				$from->backup($name,
					backup_options =>
					  [ '--checkpoint' => 'fast', '--no-sync' ]);
				my $old = $cascade;
				$cascade = make_standby($from, $name, $standby);
				tell_servers();
				$old->stop('immediate', fail_ok => 1);
				check_log($old);
				remove_node($old);
				File::Path::rmtree($from->backup_dir . "/$name");
			});
	},
	failover => sub {
		return 0 if !$standby || $conf{full_page_writes} eq 'off';
		ensure_up(nodes());
		hold('gate');
		with_restartpoint(\&fail_over);
		let_go('gate');
	});

# Promote the standby.  The old primary continues on its own for a while, and is rewound.
sub fail_over
{
	$cascade->append_conf('postgresql.conf',
			"primary_conninfo = '"
		  . $standby->connstr
		  . " application_name="
		  . $cascade->name
		  . "'");
	$cascade->reload;
	catch_up();

	my ($old, $new) = ($primary, $standby);
	advance_epoch();
	$new->promote;
	$new->poll_query_until('postgres', 'SELECT NOT pg_is_in_recovery()')
	  or die 'standby was not promoted';

	# pg_rewind must undo these changes.
	my @tables = split /\n/,
	  $old->safe_psql('postgres',
		q{SELECT relname FROM pg_class WHERE relkind = 'r' AND NOT relispartition AND relname ~ '^s[0-9]+_t'}
	  );
	foreach my $table (@tables)
	{
		ask($old,
			draw(
				"DROP TABLE $table CASCADE",
				"TRUNCATE $table",
				"UPDATE $table SET gen = -1",
				"VACUUM FULL $table",
				"CREATE TABLE junk_$table AS SELECT * FROM $table",
				'CHECKPOINT'));
	}
	foreach my $db (
		split /\n/,
		$old->safe_psql(
			'postgres',
			q{SELECT datname FROM pg_database WHERE datname ~ '^s[0-9]+_d'}))
	{
		ask($old, "DROP DATABASE $db") if chance(0.5);
	}

	my $stop = draw('fast', 'immediate', 'kill');
	if ($stop eq 'kill')
	{
		my $pid = postmaster($old);
		kill('KILL', $pid) if $pid;
		$crashes++;
		# pg_rewind considers a process alive until its parent has waited for it.
		wait_until(sub { !has_processes($old) && !($pid && kill(0, $pid)) })
		  or die $old->name . ' does not end';
		$old->{_pid} = undef;
	}
	else
	{
		$old->stop($stop);
	}
	my $conf = $old->data_dir . '/postgresql.conf';
	copy($conf, "$dir/postgresql.conf") or die "could not copy $conf: $!";
	my @command = (
		'pg_rewind', '--no-sync',
		'--target-pgdata' => $old->data_dir,
		'--source-server' => $new->connstr('postgres'));
	my ($out, $err) = ('', '');
	IPC::Run::run(\@command, '>' => \$out, '2>' => \$err)
	  or die "pg_rewind failed: $err";
	copy("$dir/postgresql.conf", $conf) or die "could not copy $conf: $!";
	$old->enable_streaming($new);
	($primary, $standby) = ($new, $old);
	tell_servers();
	$faults{"failover, old primary: $stop"}++;
	ensure_up($old);
	return;
}

# Returns whether processes are left of a server whose postmaster was killed.  The
# postmaster and its children have the data directory as their working directory.
sub has_processes
{
	my ($node) = @_;
	my $data = abs_path($node->data_dir);
	return
	  scalar grep { (readlink($_) // '') eq $data } glob('/proc/[0-9]*/cwd');
}

sub make_standby
{
	my ($from, $backup, $upstream) = @_;
	my $node =
	  PostgreSQL::Test::Cluster->new('node' . $round . '_' . ++$copies);
	$node->init_from_backup($from, $backup);
	$node->enable_streaming($upstream);
	mount_disk($node);
	ensure_up($node);
	return $node;
}

# --- verification -----------------------------------------------------------

# Returns the contents of all tables of all databases.
sub dump_all
{
	my ($node) = @_;
	my %dump;
	foreach my $db (
		split /\n/,
		$node->safe_psql(
			'postgres',
			'SELECT datname FROM pg_database WHERE datallowconn AND datconnlimit <> -2 ORDER BY 1'
		))
	{
		$dump{$db} = dump_database($node, $db);
	}
	return \%dump;
}

# Returns the paths of all relations, without the suffixes of forks and segments.
sub live_paths
{
	my %live;
	foreach my $db (
		split /\n/,
		$primary->safe_psql(
			'postgres', 'SELECT datname FROM pg_database WHERE datallowconn'))
	{
		$live{$_} = 1
		  foreach split /\n/,
		  $primary->safe_psql($db,
			'SELECT pg_relation_filepath(oid) FROM pg_class WHERE pg_relation_filepath(oid) IS NOT NULL'
		  );
	}
	return \%live;
}

# Returns all files of relations on a server: path without suffixes => list of [name,
# size].
sub files_of
{
	my ($node) = @_;
	my %files;
	my $data = $node->data_dir;
	foreach my $directory (glob("'$data'/base/* '$data'/pg_tblspc/*/*/*"))
	{
		opendir(my $handle, $directory) or next;
		foreach my $name (readdir $handle)
		{
			next unless $name =~ /^(\d+)(_(fsm|vm|init))?(\.\d+)?$/;
			my $path = substr("$directory/$1", length($data) + 1);
			push @{ $files{$path} }, [ $name, -s "$directory/$name" ];
		}
	}
	return \%files;
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
		  && !( $small_disks
			&& !/PANIC/
			&& /No space left on device|wrote only \d+ of \d+ bytes/)
		  # a read that never completes (doc/upstream/request-queue.md)
		  && !( $faults{'kill postmaster'}
			&& ($conf{io_method} // '') eq 'worker'
			&& /TRAP: .*!IsTransactionOrTransactionBlock.*pgstat\.c/)
	} split /\n/, $log;
	is(join("\n", @bad[ 0 .. ($#bad > 9 ? 9 : $#bad) ]),
		'', 'round ' . $round . ': the log of ' . $node->name . ' is clean')
	  or diag(join("\n", $log =~ /^.*(?:PANIC|TRAP).*\n(?:.*\n){0,20}/mg));
	return;
}

# Returns whether the primary crashed in the middle of the drop of a relation.  This is
# the case if, in WAL, one checkpoint began and ended after the drop's record, and the
# next checkpoint was made by recovery or by a shutdown.
sub crashed_in_drop
{
	my ($path) = @_;
	my $wal = $primary->data_dir . '/pg_wal';
	my %segments;
	foreach my $segment (sort map { /\/([0-9A-F]{24})$/ ? $1 : () }
		glob("'$wal'/*"))
	{
		push @{ $segments{ substr($segment, 0, 8) } }, $segment;
	}
	foreach my $timeline (sort keys %segments)
	{
		my ($dropped, $checkpoint);
		my ($records) = run_command(
			[
				'pg_waldump',
				'--path' => $wal,
				'--rmgr' => 'Transaction',
				'--rmgr' => 'XLOG',
				$segments{$timeline}[0], $segments{$timeline}[-1]
			]);
		foreach my $record (split /\n/, $records)
		{
			if (   $record =~ / COMMIT.* rels:.* \Q$path\E[; ]/
				|| $record =~ / COMMIT.* rels:.* \Q$path\E$/)
			{
				($dropped) = $record =~ / lsn: ([0-9A-F\/]+)/;
			}
			next if !defined $dropped;
			return 1
			  if $checkpoint
			  && $record =~ / (CHECKPOINT_SHUTDOWN|END_OF_RECOVERY)/;
			if (my ($redo) =
				$record =~ / CHECKPOINT_ONLINE redo ([0-9A-F\/]+)/)
			{
				last if $checkpoint;
				$checkpoint = position($redo) > position($dropped);
			}
		}
	}
	return 0;
}

sub position
{
	my ($lsn) = @_;
	my ($high, $low) = split m{/}, $lsn;
	return (hex($high) << 32) + hex($low);
}

# Without a worker, replay removes the files, but leaves the buffers until the set is
# full.
sub wait_for_removal
{
	return wait_for_nothing(nodes()) if $conf{max_worker_processes} > 0;
	wait_for_stats($_, q{s->>'pending_files' = '0'}) foreach nodes();
	return;
}

sub verify
{
	my (@results) = @_;
	ensure_up(nodes());

	# Compare the models.
	my (%ops, %dropped, %interrupted, %dropped_dbs);
	foreach my $result (@results)
	{
		$ops{$_} += $result->{ops}{$_} foreach keys %{ $result->{ops} };
		is( join("\n",
				map { "$_->{time}: $_->{what}\nin: $_->{sql}" }
				  @{ $result->{failures} }),
			'',
			"round $round: session $result->{id} has seen what it should");
		next if !$result->{model};
		my $differences = differences($result, $result->{model});
		is_deeply($differences, [],
			"round $round: the model of session $result->{id} at the end");
		$dropped{$_} = 1 foreach @{ $result->{dropped} };
		$interrupted{$_} = 1 foreach @{ $result->{interrupted} };
		$dropped_dbs{$_} = 1 foreach @{ $result->{dropped_dbs} };
	}
	note "round $round operations: "
	  . join(', ', map { "$_ $ops{$_}" } sort keys %ops);
	note "round $round faults: "
	  . join(', ', map { "$_ $faults{$_}" } sort keys %faults);
	note "round $round dropped: " . keys(%dropped) . ' relations, ' .
	  keys(%dropped_dbs) . ' databases';

	# Compare the standbys with the primary.
	if ($standby)
	{
		catch_up();
		# Queries on the standbys must not be canceled.
		foreach my $node (standbys())
		{
			$node->append_conf('postgresql.conf',
				"max_standby_streaming_delay = -1\n");
			$node->reload;
		}
		my $expected = dump_all($primary);
		foreach my $node (standbys())
		{
			is_deeply(dump_all($node), $expected,
				"round $round: " . $node->name . ' has what the primary has');
		}
	}

	# Check that no files are left.
	$primary->safe_psql('postgres', 'CHECKPOINT');
	catch_up() if $standby;
	wait_for_removal();
	$primary->safe_psql('postgres', 'CHECKPOINT');
	catch_up() if $standby;
	$_->safe_psql('postgres', 'CHECKPOINT') foreach standbys();
	wait_for_removal();
	my $live = live_paths();
	my %live_dbs = map { $_ => 1 } split /\n/,
	  $primary->safe_psql('postgres', 'SELECT oid FROM pg_database');

	foreach my $node (nodes())
	{
		my $files = files_of($node);
		my @left;
		foreach my $path (sort grep { !$live->{$_} } keys %dropped)
		{
			foreach my $file (@{ $files->{$path} // [] })
			{
				# A crash after a checkpoint's record, but before the checkpoint unlinks
				# files, leaves the empty first segment, in stock PostgreSQL as well.
				next
				  if $crashes && $file->[1] == 0 && $file->[0] =~ /^\d+$/;
				next
				  if $crashes
				  && $interrupted{$path}
				  && crashed_in_drop($path);
				push @left, "$path: $file->[0], $file->[1] bytes";
			}
		}
		is( join("\n", @left),
			'',
			"round $round: no file of what was dropped is left on "
			  . $node->name);
		my $data = $node->data_dir;
		my $hidden = sub {
			return (hidden_files($node), glob("'$data'/base/0/*"));
		};
		wait_until(sub { !$hidden->() });
		is(join(' ', $hidden->()),
			'', "round $round: no hidden file is left on " . $node->name);
		is( join(' ',
				grep { -d }
				map  { ("$data/base/$_", glob("'$data'/pg_tblspc/*/*/$_")) }
				grep { !$live_dbs{$_} } sort keys %dropped_dbs),
			'',
			"round $round: nor a directory of a database on " . $node->name);
	}

	# Run tools that check the whole database cluster.
	foreach my $node ($primary, $standby // ())
	{
		$node->command_ok(
			[
				'pg_amcheck', '--all', '--heapallindexed',
				($node == $primary ? '--install-missing' : ())
			],
			"round $round: pg_amcheck of " . $node->name);
		catch_up() if $standby;
	}
	foreach my $node (reverse nodes())
	{
		$node->stop;
		check_log($node);
		my ($checksums) =
		  run_command([ 'pg_controldata', '--pgdata' => $node->data_dir ]);
		next if $checksums !~ /checksum version: +1/;
		command_ok(
			[ 'pg_checksums', '--check', '--pgdata' => $node->data_dir ],
			"round $round: pg_checksums of " . $node->name);
	}
	return \%ops;
}

# --- a round ----------------------------------------------------------------

sub run_round
{
	my ($load) = @_;
	srand($seed + $round);
	my ($c, $initdb, $replicated) = draw_settings();
	%conf = %$c;
	%faults = ();
	$crashes = $copies = 0;
	($standby, $cascade) = ();
	note "round $round: LAZYDROP_TEST_SEED="
	  . ($seed + $round)
	  . " LAZYDROP_TORTURE_SECONDS=$load, initdb @$initdb, "
	  . join(', ', map { "$_ = $conf{$_}" } sort keys %conf);

	$dir = PostgreSQL::Test::Utils::tempdir("torture");
	write_file("$dir/epoch", 0);
	$primary = PostgreSQL::Test::Cluster->new("node${round}_0");
	$primary->init(
		allows_streaming => $replicated ? 1 : 0,
		extra => $initdb);
	$primary->append_conf('postgresql.conf',
		join('', map { "$_ = '$conf{$_}'\n" } sort keys %conf));

	$small_disks = $can_mount && chance(0.4);
	note "round $round: databases are on file systems of their own"
	  if $small_disks;
	mount_disk($primary);

	# Files cannot be renamed to temporary files on another file system.
	my $elsewhere;
	if (chance(0.3) && -w '/dev/shm')
	{
		$elsewhere = File::Temp->newdir(DIR => '/dev/shm');
		symlink("$elsewhere", $primary->data_dir . '/base/pgsql_tmp')
		  or die "could not make a symbolic link: $!";
		note "round $round: pgsql_tmp is in $elsewhere";
	}
	$primary->start;
	my @tablespaces = map { "torture$_" } (1, 2);

	foreach my $db ('template1', 'postgres')
	{
		$primary->safe_psql($db, set_up_sql());
	}
	$primary->safe_psql('postgres',
		'CREATE EXTENSION pg_buffercache; CREATE EXTENSION pg_lazydrop');
	$primary->safe_psql('postgres', "CREATE TABLESPACE $_ LOCATION ''")
	  foreach @tablespaces;
	if ($replicated)
	{
		$primary->backup('backup',
			backup_options => [ '--checkpoint' => 'fast', '--no-sync' ]);
		$standby = make_standby($primary, 'backup', $primary);
		$cascade = make_standby($primary, 'backup', $standby);
		File::Path::rmtree($primary->backup_dir . '/backup');
	}
	tell_servers();

	# A small buffer pool allows only few pins, so use few sessions.
	my $sessions = { '128kB' => 2, '1MB' => 3 }->{ $conf{shared_buffers} }
	  // 4;
	my %common = (
		dir => $dir,
		tablespaces => \@tablespaces,
		large => draw(2000, 5000, 20000),
		small_disks => $small_disks ? 1 : 0,
		servers => [ 'primary', $replicated ? ('standby', 'cascade') : () ]);
	my @pids;
	foreach my $id (1 .. $sessions + 1)
	{
		my $pid = fork() // die "could not fork: $!";
		if ($pid == 0)
		{
			my %args =
			  (%common, id => $id, seed => 1000 * ($seed + $round) + $id);
			eval {
				$id <= $sessions ? run_session(%args) : run_reader(%args);
			};
			# Exit without running the test's END blocks.
			POSIX::_exit($@ ? 1 : 0);
		}
		push @pids, $pid;
	}

	# Frequent faults are listed more than once.
	my @faults = (
		qw(checkpoint checkpoint checkpoint evict drain reload stop_worker
		  hurt_primary hurt_primary hurt_primary restart_primary));
	push @faults,
	  qw(hurt_standby hurt_standby restart_standby backup failover)
	  if $replicated;
	push @faults, qw(fill_disk fill_disk fill_disk) if $small_disks;
	push @faults, qw(slow_fsyncs slow_fsyncs)
	  if $strace && $conf{fsync} eq 'on';
	my $until = time() + $load;
	my $broken;
	eval {
		while (time() < $until && !-e "$dir/failed")
		{
			usleep(int(rand(chance(0.2) ? 6_000_000 : 2_000_000)));
			my $name = draw(@faults);
			my $done = $fault{$name}->();
			# A fault returns 0 if there was no process to apply it to.
			$faults{$name}++ if !defined $done || $done ne '0';
			ensure_up(nodes());
		}
		1;
	} or $broken = $@;
	write_file("$dir/stop", '');
	let_go($_) foreach keys %gates;
	# If a server does not come back, nothing can be verified.
	kill('KILL', @pids) if $broken;
	waitpid($_, 0) foreach @pids;
	die $broken if $broken;
	my @results = map { decode_json(read_file($_)) }
	  sort grep { -e } map { "$dir/session.$_" } 1 .. $sessions + 1;
	is( scalar(@results),
		$sessions + 1,
		"round $round: all sessions have come to their end");
	return verify(@results);
}

my %total;
for ($round = 0; $round == 0 || time() - $began < $length; $round++)
{
	my $left = $length - (time() - $began);
	srand($seed + $round);
	my $load = 20 + int(rand(40));
	$load = int($left) if $load > $left;
	my $ops = eval { run_round($load) };
	if (!$ops)
	{
		fail("round $round: $@");
		last;
	}
	$total{$_} += $ops->{$_} foreach keys %$ops;
	$total{faults} += $faults{$_}
	  foreach grep { defined $fault{$_} } keys %faults;
	$total{rounds}++;
	last if !Test::More->builder->is_passing;
	remove_node($_) foreach nodes();
}
note "$total{rounds} rounds, $total{all} operations, $total{faults} faults";

done_testing();
