# Copyright (c) 2026, LazyDrop developers

# A process crashes, and another process crashes while the postmaster restarts the server.
# The postmaster of stock PostgreSQL ignores the second crash.  If it was the startup
# process that crashed, the postmaster waits for it indefinitely.  If it was another
# process, shared memory stays as that process has left it, and replay waits indefinitely
# for the process to take part in a barrier.
#
# The postmaster of PostgreSQL 17 logs nothing, either, but it kills the remaining
# processes after five seconds.  It has the fault only if the restart takes less time than
# that, which is not the case here.
#
# See doc/upstream/killed-in-restart.md.

use strict;
use warnings FATAL => 'all';

use Fcntl qw(:flock);
use FindBin;
use lib "$FindBin::RealBin/..";
use LazyDropTorture qw(psql);
use LazyDropUtils   qw(wait_until pg_major);
use POSIX           qw(mkfifo);
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use StockFault qw(check_fault start_primary start_standby log_has);
use Test::More;

plan skip_all => 'needs /proc' if !-r '/proc/self/stat';

# This restore command holds the startup process before it replays anything.  It reports
# that it has been called, and waits for a lock.
my $dir = PostgreSQL::Test::Utils::tempdir;
mkfifo("$dir/held", 0600) or die "could not create fifo: $!";
append_to_file("$dir/restore", <<'EOS');
use Fcntl qw(:flock);
my ($dir) = @ARGV;
exit 1 if !-e "$dir/hold";
open(my $held, '>', "$dir/held") or die $!;
close($held);
open(my $lock, '>>', "$dir/lock") or die $!;
flock($lock, LOCK_EX) or die $!;
exit 1;
EOS

# Returns the child process with this title, if the postmaster has one.
sub find_child
{
	my ($postmaster, $title) = @_;
	foreach my $pid (map { m{(\d+)/stat$} } glob('/proc/[0-9]*/stat'))
	{
		open(my $stat, '<', "/proc/$pid/stat") or next;
		next unless (<$stat> // '') =~ /\) \S $postmaster /;
		open(my $cmdline, '<', "/proc/$pid/cmdline") or next;
		return $pid if (<$cmdline> // '') =~ /^postgres: \S+: $title/;
	}
	return;
}

# Like find_child(), but wait until the process has set its title, as with EXEC_BACKEND.
sub child
{
	my ($postmaster, $title) = @_;
	my $pid;
	wait_until(sub { $pid = find_child($postmaster, $title) })
	  or die "there is no $title";
	return $pid;
}

# A standby restarts after a crash, and replays DROP DATABASE again.  The process with
# this title is killed meanwhile.
sub play
{
	my ($title) = @_;
	my $primary = start_primary();
	$primary->safe_psql('postgres', 'CREATE DATABASE d');
	my $standby = start_standby(
		$primary,
		restart_after_crash => 'on',
		restore_command => "'$^X $dir/restore $dir'");
	$primary->safe_psql('postgres', 'DROP DATABASE d');
	$primary->wait_for_replay_catchup($standby);
	my ($postmaster) =
	  slurp_file($standby->data_dir . '/postmaster.pid') =~ /^(\d+)/;

	# Cause one crash, and another one when the server starts again.
	open(my $lock, '>>', "$dir/lock") or die $!;
	flock($lock, LOCK_EX) or die $!;
	append_to_file("$dir/hold", '');
	my $session = $standby->background_psql('postgres');
	kill('KILL', $session->query_safe('SELECT pg_backend_pid()'));
	local $SIG{ALRM} = sub { die 'no restore command is run' };
	alarm($PostgreSQL::Test::Utils::timeout_default);
	open(my $held, '<', "$dir/held") or die $!;
	alarm(0);
	unlink("$dir/hold");
	my $offset = -s $standby->logfile;
	my $pid = child($postmaster, $title);
	kill('KILL', $pid);
	wait_until(sub { !-e "/proc/$pid" }) or die "$title is not reaped";
	close($lock);
	eval { $session->quit };

	my $log = sub { return slurp_file($standby->logfile, $offset) };
	if ($title eq 'startup')
	{
		# If the postmaster reacts at all, it has done so after it has processed a
		# connection.
		psql($standby->connstr('postgres'), '-c' => 'SELECT 1');
		return 'the postmaster takes no notice'
		  if $log->() !~ /startup process .* was terminated by signal 9/;
		wait_until(sub { !-e $standby->data_dir . '/postmaster.pid' })
		  or return 'the server does not end';
		$standby->{_pid} = undef;
		$standby->start;
	}
	my $lsn = $primary->lsn('flush');
	wait_until(
		sub {
			my (undef, $done) = psql($standby->connstr('postgres'),
				'-c' => "SELECT pg_last_wal_replay_lsn() >= '$lsn'");
			return 1 if $done eq 't';
			return log_has($standby, qr/still waiting for backend with PID/);
		}) or return 'the server does not come up';
	return log_has($standby, qr/still waiting for backend with PID/);
}

foreach my $title ('background writer', 'startup')
{
	check_fault(
		"$title killed in a restart",
		sub { play($title) },
		fork_only => pg_major() < 18);
}

done_testing();
