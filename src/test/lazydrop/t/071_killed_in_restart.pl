# Copyright (c) 2026, LazyDrop developers

# A process crashes, and another one does so while the postmaster restarts the server.
# The postmaster of stock PostgreSQL ignores that.  If it was the startup process, the
# postmaster waits for it for ever.  If it was another process, shared memory stays as
# that process has left it, and replay waits for ever for it to take part in a barrier.
#
# That of PostgreSQL 17 logs nothing, either, but kills what is left after five seconds, so
# it has the fault only if the restart ends before that, which this one does not.
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

# A restore command that holds the startup process before it replays anything: it says
# so, and waits for a lock.
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

# The child of a server's postmaster with this title, or none.
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

# The same, which may have to set its title first, as with EXEC_BACKEND.
sub child
{
	my ($postmaster, $title) = @_;
	my $pid;
	wait_until(sub { $pid = find_child($postmaster, $title) })
	  or die "there is no $title";
	return $pid;
}

# A standby that restarts after a crash, and replays DROP DATABASE again, when "title" is
# killed.
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

	# One crash, and when the server starts again, another.
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
		# The postmaster has reacted, if it does, when it has looked at a connection.
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
