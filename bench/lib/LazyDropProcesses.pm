# Copyright (c) 2026, LazyDrop developers

=pod

=head1 NAME

LazyDropProcesses - processes that are found by the folder in which they work

=head1 DESCRIPTION

A process group does not include all processes that a program has started: Patroni starts
its postmaster in a session of its own.  These functions therefore find processes by their
working directory.

=cut

package LazyDropProcesses;

use strict;
use warnings FATAL => 'all';

use Exporter 'import';
use POSIX       ();
use Time::HiRes qw(time usleep);

our @EXPORT_OK = qw(processes_in kill_all_in end_all_in start_program);

=pod

=over

=item processes_in($folder)

Returns the processes that work below a folder, except zombies.

=item kill_all_in($folder, $seconds)

Send SIGKILL to them until there are none; returns whether that succeeded in time.

=cut

sub processes_in
{
	my ($folder) = @_;
	my @found;
	opendir(my $proc, '/proc') or die "could not open \"/proc\": $!\n";
	foreach my $pid (grep { /^\d+$/ && $_ != $$ } readdir($proc))
	{
		# Processes of other users, and processes that have exited, cannot be read.
		my $where = readlink("/proc/$pid/cwd") // next;
		push @found, $pid if "$where/" =~ m{^\Q$folder\E/};
	}
	closedir($proc);
	return @found;
}

sub kill_all_in
{
	my ($folder, $seconds) = @_;
	my $give_up = time + $seconds;
	while (my @pids = processes_in($folder))
	{
		kill 'KILL', @pids;
		return 0 if time > $give_up;
		usleep(20_000);
	}
	return 1;
}

=pod

=item end_all_in($folder)

End all processes that work below a cluster's folder.  Servers are stopped by an immediate
shutdown, because killed servers would leave shared memory behind.

=item start_program($folder, $log, @command)

Start a program there, in a session of its own, so that it does not receive Ctrl-C.
Returns its process ID.

=cut

sub end_all_in
{
	my ($folder) = @_;
	my (%server, %data);
	foreach my $pid (processes_in($folder))
	{
		my $where = readlink("/proc/$pid/cwd") // next;
		next unless -e "$where/postmaster.pid";
		$server{$pid} = 1;
		$data{$where} = 1;
	}
	kill 'KILL', grep { !$server{$_} } processes_in($folder);
	kill 'CONT', keys %server;
	foreach my $where (keys %data)
	{
		open(my $fh, '<', "$where/postmaster.pid") or next;
		my ($pid) = (<$fh> // '') =~ /^(\d+)$/;
		kill 'QUIT', $pid if $pid && $server{$pid};
	}
	my $give_up = time + 10;
	usleep(20_000) while processes_in($folder) && time < $give_up;
	return kill_all_in($folder, 60);
}

sub start_program
{
	my ($folder, $log, @command) = @_;
	my $pid = fork() // die "could not fork: $!\n";
	return $pid if $pid;
	my $done = eval {
		$SIG{$_} = 'DEFAULT' foreach qw(HUP INT TERM PIPE __DIE__);
		POSIX::setsid();
		chdir($folder) or die "could not change to \"$folder\": $!\n";
		open(STDIN, '<', '/dev/null') or die "$!\n";
		open(STDOUT, '>>', $log) or die "could not open \"$log\": $!\n";
		open(STDERR, '>&', \*STDOUT) or die "$!\n";
		no warnings 'exec';
		exec { $command[0] } @command
		  or die "could not run \"$command[0]\": $!\n";
	};
	print STDERR $@;
	POSIX::_exit(127);
}

=pod

=back

=cut

1;
