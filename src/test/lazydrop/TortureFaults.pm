# Copyright (c) 2026, LazyDrop developers

=pod

=head1 NAME

TortureFaults - what the torture does to the servers while sessions use them

=head1 DESCRIPTION

A fault is a checkpoint, a restart, a crash, a failover or the like.  It works on the
round of TortureServers, and when it has been inflicted, all servers accept connections
again.

=cut

package TortureFaults;

use strict;
use warnings FATAL => 'all';

use Cwd qw(abs_path);
use Exporter 'import';
use File::Copy qw(copy);
use File::Path ();
use IPC::Run;
use LazyDropModel qw(chance draw);
use LazyDropUtils qw(wait_until);
use PostgreSQL::Test::Utils;
use Time::HiRes qw(usleep);
use TortureServers
  qw(%round remove_node postmaster ask ensure_up nodes standbys catch_up hold let_go
  advance_epoch tell_servers with_restartpoint make_standby check_log);

our @EXPORT_OK = qw(possible_faults inflict count_faults);

=pod

=over

=item possible_faults()

Returns the names of the faults that are possible in this round.  Frequent ones are listed
more than once.

=item inflict($name)

Inflict a fault, and count it.

=item count_faults()

Returns the number of faults that were inflicted in this round.

=cut

sub possible_faults
{
	my @faults = (
		qw(checkpoint checkpoint checkpoint evict drain reload stop_worker
		  hurt_primary hurt_primary hurt_primary restart_primary));
	push @faults,
	  qw(hurt_standby hurt_standby restart_standby backup failover)
	  if standbys();
	push @faults, qw(fill_disk fill_disk fill_disk) if $round{small_disks};

	# strace is used to make system calls slow.
	push @faults, qw(slow_fsyncs slow_fsyncs)
	  if $round{conf}{fsync} eq 'on'
	  && system('strace -V >/dev/null 2>&1') == 0;
	return @faults;
}

# The functions that inflict faults.  They return 0 if there was no process to apply the
# fault to.
my %fault;

sub inflict
{
	my ($name) = @_;
	my $done = $fault{$name}->();
	$round{faults}{$name}++ if !defined $done || $done ne '0';
	ensure_up(nodes());
	return;
}

# "faults" also has the kinds of a fault.
sub count_faults
{
	my $count = 0;
	$count += $round{faults}{$_}
	  foreach grep { defined $fault{$_} } keys %{ $round{faults} };
	return $count;
}

# --- crashes ----------------------------------------------------------------

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
	$round{faults}{"kill $kind"}++;
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
	$round{crashes}++;
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
		$round{faults}{'kill postmaster'}++;
		my $pid = postmaster($node);
		kill('KILL', $pid) if $pid;
		advance_epoch();
	}
	else
	{
		$round{faults}{'immediate shutdown'}++;
		$node->stop('immediate', fail_ok => 1);
		advance_epoch();
	}
	return;
}

# Return whether a fast shutdown of a standby will end.  In stock, it does not while its
# own standby has more WAL than it has replayed since it was started: the walsender waits
# until both have the same.
sub may_stop
{
	my ($node) = @_;
	return 1 if !$round{cascade} || $node != $round{standby};
	my $received =
	  ask($round{cascade}, 'SELECT pg_last_wal_receive_lsn()') || '0/0';
	my $there = ask($node, "SELECT pg_last_wal_replay_lsn() >= '$received'");
	return ($there // '') eq 't';
}

# --- disks ------------------------------------------------------------------

# Run code while the file system of a server has only "free" bytes free.
sub fill_disk
{
	my ($node, $free, $code) = @_;
	my $ballast = "$round{disks}{$node->name}/ballast";
	my ($size) = (
		run_command(
			[ 'df', '--output=avail', '-B1', $round{disks}{ $node->name } ])
	)[0] =~ /(\d+)/;
	if ($size > $free)
	{
		# This fails if other processes have used the space meanwhile.
		system('fallocate', '-l', $size - $free, $ballast) == 0
		  or $round{faults}{'could not fill a disk'}++;
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
	my @calls = (
		'-e', 'trace=fsync,fdatasync',
		'-e', 'inject=fsync,fdatasync:delay_enter=' . 1000 * $milliseconds);
	my $trace = IPC::Run::start(
		[ 'strace', '-qq', '-o', '/dev/null', @calls, '-p', $checkpointer ],
		'>' => \my $out,
		'2>' => \my $err);
	my $checkpoint = IPC::Run::start(
		[
			'psql', '-XAtq',
			'-d', $node->connstr('postgres'),
			'-c', 'CHECKPOINT'
		],
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

# --- the faults -------------------------------------------------------------

%fault = (
	checkpoint => sub {
		my $node = shift // draw(nodes());
		ask($node, 'CHECKPOINT');
	},
	evict => sub {
		ask(draw(nodes()),
			'SELECT count(pg_buffercache_evict(bufferid)) FROM pg_buffercache WHERE relfilenode IS NOT NULL'
		);
	},
	# It may time out if the worker is busy with something that takes longer.
	drain => sub {
		ask(shift // draw(nodes()),
			q{SELECT count(*), sum(bytes) FROM pg_lazydrop_pending; SELECT pg_lazydrop_drain('5 s')}
		);
	},
	hurt_primary => sub { hurt($round{primary}) },
	hurt_standby => sub {
		my $node = draw(standbys()) or return 0;
		hurt($node);
	},
	restart_primary => sub {
		# A fast shutdown terminates all sessions.  A smart shutdown waits for them, so no
		# new session may connect.
		my $mode = draw('fast', 'fast', 'smart');
		hold('gate') if $mode eq 'smart';
		$round{faults}{"restart $mode"}++;
		advance_epoch();
		$round{primary}->stop($mode, fail_ok => 1);
		ensure_up($round{primary});
		let_go('gate') if $mode eq 'smart';
	},
	restart_standby => sub {
		my $node = draw(standbys()) or return 0;
		return 0 if !may_stop($node);
		$node->stop('fast', fail_ok => 1);
		ensure_up($node);
	},
	fill_disk => sub {
		my $node = draw(nodes());
		my $what = draw(qw(wait wait checkpoint drain hurt));
		my $free = draw(0, 0, 10, 40, 200);
		$round{faults}{"$free MB free: $what"}++;
		fill_disk(
			$node,
			$free * 1024 * 1024,
			sub {
				usleep(int(rand(3_000_000)));
				$fault{$what}->($node) if $what =~ /checkpoint|drain/;
				hurt_processes($node) if $what eq 'hurt';
			});
		# A standby or a server in crash recovery stops when the disk is full.
		ensure_up(nodes());
	},
	slow_fsyncs => sub {
		return slow_fsyncs(
			draw(nodes()),
			draw(10, 50, 200),
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
				'lazydrop.scan_resistance' => draw('off', 'on', 'on'),
				'lazydrop.advisor' => draw('on', 'off'),
				'bgwriter_lru_maxpages' => draw(0, 100, 1000));
			$node->append_conf('postgresql.conf',
				join('', map { "$_ = $new{$_}\n" } sort keys %new));
			$node->reload;
		}
	},
	backup => sub {
		return 0 if !$round{cascade};
		with_restartpoint(
			sub {
				# A standby cannot provide a backup without full_page_writes.
				my $from =
				  $round{conf}{full_page_writes} eq 'on'
				  ? draw($round{primary}, $round{standby})
				  : $round{primary};
				my $name = 'backup' . ++$round{copies};
				$from->backup($name,
					backup_options =>
					  [ '--checkpoint' => 'fast', '--no-sync' ]);
				my $old = $round{cascade};
				$round{cascade} = make_standby($from, $name, $round{standby});
				tell_servers();
				$old->stop('immediate', fail_ok => 1);
				check_log($old);
				remove_node($old);
				File::Path::rmtree($from->backup_dir . "/$name");
			});
	},
	failover => sub {
		return 0
		  if !$round{standby} || $round{conf}{full_page_writes} eq 'off';
		ensure_up(nodes());
		hold('gate');
		with_restartpoint(\&fail_over);
		let_go('gate');
	});

# Promote the standby.  The old primary continues on its own for a while, and is rewound.
sub fail_over
{
	$round{cascade}->append_conf('postgresql.conf',
			"primary_conninfo = '"
		  . $round{standby}->connstr
		  . " application_name="
		  . $round{cascade}->name
		  . "'");
	$round{cascade}->reload;
	catch_up();

	my ($old, $new) = ($round{primary}, $round{standby});
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
		$round{crashes}++;
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
	copy($conf, "$round{dir}/postgresql.conf")
	  or die "could not copy $conf: $!";
	my @command = (
		'pg_rewind', '--no-sync',
		'--target-pgdata' => $old->data_dir,
		'--source-server' => $new->connstr('postgres'));
	my ($out, $err) = ('', '');
	IPC::Run::run(\@command, '>' => \$out, '2>' => \$err)
	  or die "pg_rewind failed: $err";
	copy("$round{dir}/postgresql.conf", $conf)
	  or die "could not copy $conf: $!";
	$old->enable_streaming($new);
	($round{primary}, $round{standby}) = ($new, $old);
	tell_servers();
	$round{faults}{"failover, old primary: $stop"}++;
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

=pod

=back

=cut

1;
