# Copyright (c) 2026, LazyDrop developers

=pod

=head1 NAME

LazyDropClients - processes that use a cluster of LazyDropPatroni while it changes

=head1 DESCRIPTION

Each client is a process with one psql.  It connects again when its server is gone, and
writes its observations to a file, one per line, each of which begins with the time.

=cut

package LazyDropClients;

use strict;
use warnings FATAL => 'all';

use Exporter 'import';
use IPC::Open3;
use POSIX       ();
use Time::HiRes qw(time usleep);

our @EXPORT = qw(start_writer start_dropper start_sampler check_clients
  end_clients read_notes);

my %running;

# A handle that clients close; see bench/patroni/run.
our $leash;

# Fork a client, which works in its own folder below the cluster's.
sub start_client
{
	my ($cluster, $name, $code) = @_;
	my $folder = "$cluster->{directory}/clients";
	mkdir $folder;
	my $file = "$cluster->{log}/$name.txt";
	my $pid = fork() // die "could not fork: $!\n";
	if ($pid)
	{
		$running{$pid} = $name;
		return $file;
	}
	eval {
		$SIG{$_} = 'DEFAULT' foreach qw(HUP INT TERM __DIE__);
		$SIG{PIPE} = 'IGNORE';
		close($leash) if $leash;
		POSIX::setsid();
		chdir($folder) or die "could not change to \"$folder\": $!\n";
		open(STDERR, '>>', "$cluster->{log}/$name.log")
		  or die "could not open a log: $!\n";
		open(my $notes, '>>', $file) or die "could not open \"$file\": $!\n";
		my %environment = $cluster->environment;
		@ENV{ keys %environment } = values %environment;
		$code->(
			sub {
				my $line = join(' ', sprintf('%.3f', time), @_) . "\n";
				syswrite($notes, $line) == length($line)
				  or die "could not write to \"$file\": $!\n";
			});
	};
	print STDERR $@;
	POSIX::_exit(1);
}

# --- psql -------------------------------------------------------------------

sub connect_psql
{
	my ($cluster, $connstr, @options) = @_;
	my %psql = (rest => '');
	open(my $log, '>&', \*STDERR) or die "$!\n";
	$psql{pid} = open3(
		$psql{in}, $psql{out},
		'>&' . fileno($log),
		$cluster->psql_command($connstr, @options));
	$psql{in}->autoflush(1);
	return \%psql;
}

sub end_psql
{
	my ($psql) = @_;
	kill 'KILL', $psql->{pid};
	close($_) foreach @$psql{qw(in out)};
	waitpid($psql->{pid}, 0);
	return;
}

# Returns the next line of psql, or undef if psql has ended, or if there is no line within
# a number of seconds.
sub next_line
{
	my ($psql, $seconds) = @_;
	my $give_up = time + $seconds;
	while ($psql->{rest} !~ /\n/)
	{
		my $left = $give_up - time;
		return undef if $left <= 0;
		my $bits = '';
		vec($bits, fileno($psql->{out}), 1) = 1;
		next unless select($bits, undef, undef, $left) > 0;
		sysread($psql->{out}, $psql->{rest}, 65536, length($psql->{rest}))
		  or return undef;
	}
	$psql->{rest} =~ s/^(.*)\n//;
	return $1;
}

=pod

=over

=item start_writer($cluster)

Insert increasing numbers, each in a transaction of its own, through any member that
accepts writes, about a hundred per second.  Notes each acknowledged number with the port
of the server.  If the outcome of a number is unknown, it is not used again.

psql does not print a row before the server has reported that the transaction is
committed.

=cut

sub start_writer
{
	my ($cluster) = @_;
	my $connstr =
	  $cluster->connstr(@{ $cluster->{names} }) . ' dbname=postgres';
	return start_client(
		$cluster, 'writer',
		sub {
			my ($note) = @_;
			my ($n, $psql) = (0);
			while (1)
			{
				$psql //= connect_psql($cluster, $connstr, '-q');
				my $began = time;
				$n++;
				print { $psql->{in} }
				  "INSERT INTO numbers VALUES ($n) RETURNING n, inet_server_port();\n";
				my $line = next_line($psql, 60);
				if (defined $line && $line =~ /^(\d+)\|(\d+)$/ && $1 == $n)
				{
					$note->($n, $2);
					my $left = $began + 0.01 - time;
					usleep(1e6 * $left) if $left > 0;
					next;
				}
				end_psql($psql);
				$psql = undef;

				# There may be no server for some seconds.
				usleep(20_000);
			}
		});
}

=pod

=item start_dropper($cluster, $rate)

Create and drop a number of tables each second through the leader, and a database after
each hundred of them.  Notes how many tables and databases have been dropped.

=cut

sub start_dropper
{
	my ($cluster, $rate) = @_;
	my $connstr =
	  $cluster->connstr(@{ $cluster->{names} }) . ' dbname=postgres';
	return start_client(
		$cluster,
		'dropper',
		sub {
			my ($note) = @_;
			my ($i, $psql, $left_over) = (0, undef, '');
			while (1)
			{
				$psql //= connect_psql($cluster, $connstr);
				my $began = time;
				$i++;
				my @names = map { "d${i}_$_" } 1 .. 10;
				my $sql = "$left_over\\echo begin\n";
				my $rest =
				  join('', map { "DROP TABLE IF EXISTS $_;\n" } @names);
				$sql .= "CREATE TABLE $_ AS SELECT 1 AS a;\n" foreach @names;
				$sql .= "DROP TABLE $_;\n"                    foreach @names;

				if ($i % 10 == 0)
				{
					$sql  .= "CREATE DATABASE d$i;\nDROP DATABASE d$i;\n";
					$rest .= "DROP DATABASE IF EXISTS d$i;\n";
				}
				print { $psql->{in} } "$sql\\echo done\n";
				my ($tables, $databases, $begun, $done) = (0) x 4;
				while (defined(my $line = next_line($psql, 120)))
				{
					$begun ||= $line eq 'begin';
					next unless $begun;
					$tables++ if $line eq 'DROP TABLE';
					$databases++ if $line eq 'DROP DATABASE';
					last if $done = $line eq 'done';
				}
				$note->($tables, $databases) if $begun;
				if (!$done)
				{
					# Objects that may be left are dropped first when there is a server
					# again.
					$left_over = $begun ? $rest : $left_over;
					end_psql($psql);
					$psql = undef;
					usleep(100_000);
					next;
				}
				$left_over = '';
				my $left = $began + @names / $rate - time;
				usleep(1e6 * $left) if $left > 0;
			}
		});
}

=pod

=item start_sampler($cluster, $name)

Note ten times per second whether a member is a primary or a standby, the position to
which it has flushed or replayed WAL, the number of bytes of pending files, and whether it
runs the fork; or that it is down.

=cut

sub start_sampler
{
	my ($cluster, $name) = @_;
	my $sql = q{SELECT CASE WHEN r THEN 'standby' ELSE 'primary' END,
		coalesce(CASE WHEN r THEN pg_last_wal_replay_lsn() ELSE pg_current_wal_flush_lsn() END - '0/0', 0),
		coalesce(s::json->>'pending_bytes', '0'),
		CASE WHEN s IS NULL THEN 'stock' ELSE 'fork' END
		FROM (SELECT pg_is_in_recovery(), nullif(current_setting('lazydrop.stats', true), ''))
		AS x(r, s);};
	$sql =~ s/\s+/ /g;
	return start_client(
		$cluster,
		"sampler-$name",
		sub {
			my ($note) = @_;
			my $psql;
			while (1)
			{
				my $began = time;
				$psql //=
				  connect_psql($cluster,
					$cluster->connstr($name) . ' dbname=postgres', '-q');
				print { $psql->{in} } "$sql\n";
				my $line = next_line($psql, 10);
				if (defined $line)
				{
					$note->(split /\|/, $line);
				}
				else
				{
					$note->('down', 0, 0, '-');
					end_psql($psql);
					$psql = undef;
				}
				my $left = $began + 0.1 - time;
				usleep(1e6 * $left) if $left > 0;
			}
		});
}

=pod

=item check_clients(), end_clients()

Die if one of the clients has ended; end the clients.

=item read_notes($file)

Returns the notes of a client, as an array of words for each line.

=cut

sub check_clients
{
	foreach my $pid (keys %running)
	{
		next if waitpid($pid, POSIX::WNOHANG()) == 0;
		my $name = delete $running{$pid};
		die "the client \"$name\" has ended\n";
	}
	return;
}

# The client's psql receives an end of file on its input.
sub end_clients
{
	foreach my $pid (keys %running)
	{
		kill 'KILL', $pid;
		waitpid($pid, 0);
		delete $running{$pid};
	}
	return;
}

sub read_notes
{
	my ($file) = @_;
	my @notes;
	open(my $fh, '<', $file) or die "could not open \"$file\": $!\n";
	while (my $line = <$fh>)
	{
		# The last line may be incomplete.
		push @notes, [ split ' ', $line ] if $line =~ /\n\z/;
	}
	close($fh);
	return @notes;
}

=pod

=back

=cut

1;
