# Copyright (c) 2026, LazyDrop developers

# Torture.  Sessions run random DDL and DML, and know what must be there.  Meanwhile
# servers are checkpointed, restarted and killed, in whole or in part, standbys are
# built from backups and promoted, and the old primary is rewound.  At the end, the
# model, the primary and two standbys must agree, and nothing must be left of what was
# dropped.
#
# A run is a series of rounds.  Each round is a new installation and has a seed, from
# which its settings and the operations of its sessions are drawn.
#
#   LAZYDROP_TORTURE_SECONDS  duration of the run (default 80)
#   LAZYDROP_TEST_SEED        seed of the first round; the second has the next number
#
# Which operation a fault hits depends on the time.  A seed therefore repeats the
# settings, and the operations until the first fault, but not always a failure.
#
# The test leaves out what stock PostgreSQL does not survive:
#
# * A base backup cannot be recovered if, while it was taken, a database was copied by
#   file copy, or moved, and then its source was dropped.  The same applies to what
#   pg_rewind rewinds past that (doc/upstream/moved-database.md).  So a restartpoint
#   comes before them, and none of these operations runs meanwhile ("moves" below).
# * pg_rewind requires full_page_writes.
# * REINDEX TABLE CONCURRENTLY leaves values of dead rows out of the index of the TOAST
#   table.  CLUSTER looks for them when a standby's feedback keeps these rows, and does
#   not find them (doc/upstream/reindex-concurrently-toast.md).
# * When INSERT or UPDATE follows ALTER TABLE SET TABLESPACE in one transaction, a
#   rollback leaves index entries behind (doc/upstream/set-tablespace-rollback.md).
# * A crash in the middle of a drop leaves the files if a checkpoint began and ended
#   during the drop (doc/upstream/files-left-behind.md).  If files are left, the session
#   must have been cut off in the transaction that drops them, and WAL must have such a
#   checkpoint.
# * A session whose read is never done, because the postmaster and the I/O workers are
#   gone, fails an assertion while it exits (doc/upstream/request-queue.md).

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

# strace makes system calls slow.
my $strace = system('strace -V >/dev/null 2>&1') == 0;

my $length = $ENV{LAZYDROP_TORTURE_SECONDS} || 80;
my $seed = $ENV{LAZYDROP_TEST_SEED} || int(rand(1_000_000_000));
my $began = time();

my ($pg_config) = run_command([ 'pg_config', '--configure' ]);
my @io_methods = pg_major() < 18 ? () : qw(sync worker);
push @io_methods, 'io_uring'
  if @io_methods && $pg_config =~ /with-liburing/;

# Of the round: its servers, and what it has done to them.
my ($round, $dir, $primary, $standby, $cascade,
	$small_disks, %disks, %conf, %faults, %gates, $crashes, $copies);

# --- settings ------------------------------------------------------------------------------------

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
	# Without full page writes, a page may be found as it was left after the record
	# that is checked, when it was truncated and came back.
	$c{wal_consistency_checking} = '' if $c{full_page_writes} eq 'off';
	# those that are not the default
	my $checksums =
	  pg_major() < 18 ? '--data-checksums' : '--no-data-checksums';
	return (\%c, draw([], [$checksums]), $replicated);
}

# --- file systems --------------------------------------------------------------------------------

# Put the databases of a server that is not running on a file system of their own, which
# the test can fill.
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

# After a failure, a copy of its files stays.
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

# --- the servers --------------------------------------------------------------------------------

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

# Returns what a query has printed, or undef.
sub ask
{
	my ($node, $sql) = @_;
	my ($done, $out, $err) = psql($node->connstr('postgres'), '-c' => $sql);
	die $node->name . " hangs in \"$sql\""
	  if $err =~ /psql: IPC::Run: timeout/;
	return $done ? $out : undef;
}

# Start a server that has ended, and wait for one that recovers.
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

# Wait until the standbys have replayed what the primary has written.
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

# After a crash has begun and before it is over, so that what a session sees after it
# is of another epoch than what it has seen before.
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

# Keep copies of databases' files out of what will be replayed after a backup or
# pg_rewind, while this is done.
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

# --- faults --------------------------------------------------------------------------------------

# Children of a postmaster, by what they are.
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
		# again, perhaps while it recovers
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

# Leave "free" bytes free on the file system of a server while code runs.
sub fill_disk
{
	my ($node, $free, $code) = @_;
	my $ballast = "$disks{$node->name}/ballast";
	my ($size) =
	  (run_command([ 'df', '--output=avail', '-B1', $disks{ $node->name } ]))[0]
	  =~ /(\d+)/;
	if ($size > $free)
	{
		# Others write, too.
		system('fallocate', '-l', $size - $free, $ballast);
	}
	my $done = eval { $code->(); 1 };
	my $error = $@;
	unlink($ballast);
	die $error if !$done;
	return;
}

# Make each fsync of a server's checkpointer slow, while it makes a checkpoint.
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
	# may not be allowed
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
	# It may be at something that takes longer.
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
		# A fast shutdown ends all sessions.  A smart one waits for them, so none
		# must come back.
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
		# A standby, or a server that recovers, cannot go on then.
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
				# A standby gives none without full page writes.
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

# The standby is promoted, the old primary goes on for a while by itself, and is rewound.
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

	# What is done here must come undone.
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
		# pg_rewind takes a process for alive until its parent has waited for it.
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

# Whether a process is left of a server whose postmaster was killed.
# The postmaster and its children work in the data directory.
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

# --- verification --------------------------------------------------------------------------------

# Every table of every database.
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

# Paths of all relations, without the suffixes of forks and segments.
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

# All files of relations that a server has: path without suffixes => list of [name, size].
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
		  # replay, once more, of a drop of directories, perhaps beside the worker
		  && !
		  /could not (open directory|remove directory|remove file|stat file) .*: No such file or directory/
		  # the test has filled the file system
		  && !( $small_disks
			&& !/PANIC/
			&& /No space left on device|wrote only \d+ of \d+ bytes/)
		  # a read that will never end (doc/upstream/request-queue.md)
		  && !( $faults{'kill postmaster'}
			&& ($conf{io_method} // '') eq 'worker'
			&& /TRAP: .*!IsTransactionOrTransactionBlock.*pgstat\.c/)
	} split /\n/, $log;
	is(join("\n", @bad[ 0 .. ($#bad > 9 ? 9 : $#bad) ]),
		'', 'round ' . $round . ': the log of ' . $node->name . ' is clean')
	  or diag(join("\n", $log =~ /^.*(?:PANIC|TRAP).*\n(?:.*\n){0,20}/mg));
	return;
}

# Whether the primary crashed in the middle of the drop of a relation: by its WAL, one
# checkpoint began and ended after the drop's record, and the next one is that of a recovery
# or a shutdown.
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

# Without a worker, replay leaves buffers until the set is full, but no files.
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

	# The model.
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

	# The standbys.
	if ($standby)
	{
		catch_up();
		# What reads it there is not to be cancelled.
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

	# Nothing is left.
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
				# A crash after a checkpoint's record and before it unlinks leaves the
				# empty first segment, in stock PostgreSQL, too.
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

	# Tools that look at all of it.
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

# --- a round ---------------------------------------------------------------------------------------

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

	# Few buffers can be pinned by few sessions only.
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
			# not the end of the test
			POSIX::_exit($@ ? 1 : 0);
		}
		push @pids, $pid;
	}

	# What is more frequent is there more than once.
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
			# 0 when there was no process to do that to
			$faults{$name}++ if !defined $done || $done ne '0';
			ensure_up(nodes());
		}
		1;
	} or $broken = $@;
	write_file("$dir/stop", '');
	let_go($_) foreach keys %gates;
	# When a server does not come back, nothing can be found out any more.
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
