# Copyright (c) 2026, LazyDrop developers

=pod

=head1 NAME

LazyDropPatroni - three members under Patroni, and etcd, for bench/patroni/run

=head1 DESCRIPTION

A member is a "machine": a folder with a data directory, in which one Patroni and its
child processes run.  All processes of a machine, and no others, have their working
directory in that folder, so LazyDropProcesses finds them by it.  In the same way, all
processes of a cluster are found by the folder of the cluster.

=cut

package LazyDropPatroni;

use strict;
use warnings FATAL => 'all';

use Cwd        qw(abs_path);
use File::Path qw(make_path remove_tree);
use HTTP::Tiny;
use IO::Handle;
use IO::Socket::INET;
use IPC::Open3;
use JSON::PP;
use LazyDropProcesses qw(processes_in kill_all_in start_program);
use POSIX             ();
use Time::HiRes       qw(time usleep);

my $host = '127.0.0.1';
my $superuser = 'postgres';
my $replicator = 'replicator';

=pod

=over

=item find_program($name, $tools)

Returns the path of "patroni" or "etcd": in a folder that src/tools/lazydrop/fetch-tools
has filled, or in the place where packages install it.  If it is not found, dies with a
message and, in a second line, a hint with the name of the package.

=cut

my %package = (patroni => 'patroni', etcd => 'etcd-server');

sub find_program
{
	my ($name, $tools) = @_;
	my @places =
	  defined $tools
	  ? "$tools/bin"
	  : (split(/:/, $ENV{PATH} // ''), '/usr/bin', '/usr/local/bin');
	my ($found) = grep { -f && -x } map { "$_/$name" } @places;
	return $found if defined $found;
	die "there is no \"$name\" in \"$tools/bin\"\n",
	  "src/tools/lazydrop/fetch-tools --patroni puts it there.\n"
	  if defined $tools;
	die "there is no \"$name\"\n",
	  "Debian's package $package{$name} has it; without installing it: src/tools/lazydrop/fetch-tools --patroni DIRECTORY, and --tools=DIRECTORY.\n";
}

=pod

=item check_release($patroni, $release)

Die if Patroni is too old to support a release of PostgreSQL.

=cut

sub check_release
{
	my ($patroni, $release) = @_;
	open(my $fh, '-|', $patroni, '--version')
	  or die "could not run \"$patroni\": $!\n";
	my ($version) = (<$fh> // '') =~ /(\d+\.\d+\.\d+)$/
	  or die "\"$patroni\" does not tell its version\n";
	close($fh);
	my ($x, $y, $z) = split /\./, $version;
	die "Patroni $version does not know PostgreSQL $release\n",
	  "4.0.7 is the first that knows 18; src/tools/lazydrop/fetch-tools --patroni DIRECTORY has one, for --tools=DIRECTORY.\n"
	  if $release =~ /^18/ && 1e4 * $x + 100 * $y + $z < 40007;
	return;
}

=pod

=item new($class, %properties)

Properties: "directory", an empty folder, and "log", a folder that is kept longer;
"patroni" and "etcd", programs; "prefix", a hash of installations by name; "parameters", a
hash of settings of all members; "timeout", the number of seconds after which waiting
fails; "names" of the members; "check", a function that is called while waiting.

=cut

sub new
{
	my ($class, %self) = @_;
	my $self = bless {%self}, $class;
	make_path($self->{directory}, $self->{log});
	$self->{directory} = abs_path($self->{directory});
	$self->{password} =
	  join('', map { sprintf '%02x', $_ } unpack('C16', random_bytes(16)));
	$self->{http} = HTTP::Tiny->new(timeout => 10);
	$self->{patient} = HTTP::Tiny->new(timeout => $self->{timeout});
	my %taken;
	$self->{etcd_port} = free_port(\%taken);
	$self->{etcd_peer_port} = free_port(\%taken);

	foreach my $name (@{ $self->{names} })
	{
		my $folder = "$self->{directory}/$name";
		make_path($folder);
		$self->{members}{$name} = {
			name => $name,
			folder => $folder,
			data => "$folder/data",
			log => "$self->{log}/$name.log",
			port => free_port(\%taken),
			rest => free_port(\%taken)
		};
	}
	return $self;
}

sub random_bytes
{
	my ($n) = @_;
	open(my $fh, '<:raw', '/dev/urandom')
	  or die "could not open \"/dev/urandom\": $!\n";
	read($fh, my $bytes, $n) == $n
	  or die "could not read \"/dev/urandom\"\n";
	return $bytes;
}

# Choose a port below the range that the kernel uses for connections, because it must
# still be free after a member has been down.
sub free_port
{
	my ($taken) = @_;
	foreach (1 .. 1000)
	{
		my $port = 10200 + int(rand(22000));
		next if $taken->{$port}++;
		my $socket = IO::Socket::INET->new(
			LocalAddr => $host,
			LocalPort => $port,
			Proto => 'tcp',
			Listen => 1) or next;
		close($socket);
		return $port;
	}
	die "there is no free port\n";
}

sub member
{
	my ($self, $name) = @_;
	return $self->{members}{$name};
}

=pod

=back

=head1 MACHINES

=over

=item start_etcd(), start_member($name, $kind), stop_member($name)

Start etcd, and wait until it responds.  Start Patroni with the programs of an
installation.  Make Patroni stop its server, and wait until no process of that machine is
running.

=item kill_machine($name), kill_postmaster($name)

Send SIGKILL to all processes of a machine, or to the postmaster only.

=cut

sub start_etcd
{
	my ($self) = @_;
	my $folder = "$self->{directory}/etcd";
	make_path($folder);
	my ($client, $peer) =
	  map { "http://$host:$_" } @$self{qw(etcd_port etcd_peer_port)};
	$self->{etcd_log} = "$self->{log}/etcd.log";
	$self->{etcd_pid} = start_program(
		$folder,
		$self->{etcd_log},
		$self->{etcd},
		'--name' => 'e1',
		'--data-dir' => "$folder/data",
		'--listen-client-urls' => $client,
		'--advertise-client-urls' => $client,
		'--listen-peer-urls' => $peer,
		'--initial-advertise-peer-urls' => $peer,
		'--initial-cluster' => "e1=$peer");
	$self->wait_for('etcd answers',
		sub { $self->{http}->get("$client/health")->{success} });
	return;
}

sub configuration
{
	my ($self, $member) = @_;
	my $true = JSON::PP::true;
	return {
		scope => 'lazydrop',
		name => $member->{name},
		restapi => {
			listen => "$host:$member->{rest}",
			connect_address => "$host:$member->{rest}"
		},
		etcd3 => { hosts => ["$host:$self->{etcd_port}"] },
		bootstrap => {
			# The minimum of ttl is 20.
			dcs => {
				ttl => 20,
				loop_wait => 1,
				retry_timeout => 5,
				maximum_lag_on_failover => 1024**3,
				primary_start_timeout => 0,
				synchronous_mode => $true,
				synchronous_node_count => @{ $self->{names} } - 1,
				postgresql => {
					use_pg_rewind => $true,
					use_slots => $true,
					parameters => $self->{parameters}
				}
			},
			initdb =>
			  [ { encoding => 'UTF8' }, { locale => 'C' }, 'data-checksums' ]
		},
		postgresql => {
			listen => "$host:$member->{port}",
			connect_address => "$host:$member->{port}",
			data_dir => $member->{data},
			bin_dir => "$self->{prefix}{$member->{kind}}/bin",
			pgpass => "$member->{folder}/pgpass",
			authentication => {
				superuser =>
				  { username => $superuser, password => $self->{password} },
				replication =>
				  { username => $replicator, password => $self->{password} }
			},
			basebackup => [ { checkpoint => 'fast' } ],
			parameters => {
				unix_socket_directories => '',
				password_encryption => 'scram-sha-256'
			},
			pg_hba => [
				map { "host $_ $host/32 scram-sha-256" } 'all all',
				"replication $replicator"
			]
		}
	};
}

sub start_member
{
	my ($self, $name, $kind) = @_;
	my $member = $self->member($name);
	$member->{kind} = $kind if defined $kind;
	my $file = "$member->{folder}/patroni.yml";

	# JSON is valid YAML.
	my $old = umask(0077);
	open(my $fh, '>', $file) or die "could not create \"$file\": $!\n";
	print $fh JSON::PP->new->canonical->pretty->encode(
		$self->configuration($member));
	close($fh) or die "could not write \"$file\": $!\n";
	umask($old);
	$member->{pid} = start_program($member->{folder}, $member->{log},
		$self->{patroni}, $file);
	return;
}

# Returns whether no process of a machine is left.
sub gone
{
	my ($self, $member) = @_;
	if ($member->{pid} && waitpid($member->{pid}, POSIX::WNOHANG()) != 0)
	{
		$member->{pid} = undef;
	}
	return !$member->{pid} && !processes_in($member->{folder});
}

sub stop_member
{
	my ($self, $name) = @_;
	my $member = $self->member($name);
	my $pid = $member->{pid} or die "$name does not run\n";
	kill 'TERM', $pid;
	$member->{stopping} = 1;
	$self->wait_for("$name stops", sub { $self->gone($member) });
	$member->{stopping} = 0;
	return;
}

sub kill_machine
{
	my ($self, $name) = @_;
	my $member = $self->member($name);
	kill_all_in($member->{folder}, $self->{timeout})
	  or die "the processes of $name do not end\n";
	waitpid($member->{pid}, 0);
	$member->{pid} = undef;
	return;
}

sub kill_postmaster
{
	my ($self, $name) = @_;
	my $file = $self->member($name)->{data} . '/postmaster.pid';
	open(my $fh, '<', $file) or die "could not open \"$file\": $!\n";
	my ($pid) = (<$fh> // '') =~ /^(\d+)$/
	  or die "there is no process ID in \"$file\"\n";
	close($fh);
	kill('KILL', $pid) == 1 or die "could not kill $pid: $!\n";
	return;
}

=pod

=item wait_for($what, $condition [, $seconds])

Wait until a function returns true, and return its result.  Dies after the time limit, or
if a program has ended that should be running.

=cut

sub wait_for
{
	my ($self, $what, $condition, $seconds) = @_;
	my $give_up = time + ($seconds // $self->{timeout});
	while (1)
	{
		my $result = $condition->();
		return $result if $result;
		$self->check_processes;
		$self->{check}->();
		die sprintf("not within %d s: %s\n",
			$seconds // $self->{timeout}, $what)
		  if time > $give_up;
		usleep(50_000);
	}
	return;
}

sub check_processes
{
	my ($self) = @_;
	if ($self->{etcd_pid}
		&& waitpid($self->{etcd_pid}, POSIX::WNOHANG()) != 0)
	{
		$self->{etcd_pid} = undef;
		die "etcd has ended; its log is \"$self->{etcd_log}\"\n";
	}
	foreach my $member (values %{ $self->{members} })
	{
		next if !$member->{pid} || $member->{stopping};
		next if waitpid($member->{pid}, POSIX::WNOHANG()) == 0;
		$member->{pid} = undef;
		die
		  "Patroni of $member->{name} has ended; its log is \"$member->{log}\"\n";
	}
	return;
}

=pod

=back

=head1 SERVERS

=over

=item log_of($name)

Returns the lines of the log of a member, which its Patroni and its server write.

=item connstr(@names)

Returns a connection string.  For several members, it connects to a member that accepts
writes.

=item psql_command($connstr, @options), environment()

Returns the command that runs psql, and its environment variables.

=item psql($name, \@options [, %options])

Run psql on a member; returns its output, or undef if it fails.  Options: "must", die in
that case; "local", use synchronous_commit = local.

=item sql($name, $sql [, %options])

Like psql(), with an SQL command.

=item start_psql($name, @options)

Start psql on a member, and do not wait for it.

=cut

sub log_of
{
	my ($self, $name) = @_;
	open(my $fh, '<', $self->member($name)->{log}) or die "$!\n";
	my @lines = <$fh>;
	close($fh);
	return @lines;
}

sub connstr
{
	my ($self, @names) = @_;
	my @ports = map { $self->member($_)->{port} } @names;
	return
		'host='
	  . join(',', ($host) x @ports)
	  . ' port='
	  . join(',', @ports)
	  . " user=$superuser connect_timeout=5 application_name=bench"
	  . (@ports > 1 ? ' target_session_attrs=read-write' : '');
}

sub environment
{
	my ($self) = @_;
	return (PGPASSWORD => $self->{password});
}

# The psql of the fork and of stock are the same.
sub psql_command
{
	my ($self, $connstr, @options) = @_;
	my ($prefix) = map { $self->{prefix}{$_} } sort keys %{ $self->{prefix} };
	return ("$prefix/bin/psql", '-XAt', '-v', 'ON_ERROR_STOP=1',
		'-d', $connstr, @options);
}

sub psql
{
	my ($self, $name, $options, %option) = @_;
	local %ENV = (%ENV, $self->environment);
	$ENV{PGOPTIONS} = '-c synchronous_commit=local' if $option{local};
	open(my $null, '<', '/dev/null') or die "$!\n";
	open(my $log, '>>', "$self->{log}/psql.log") or die "$!\n";
	my $pid = open3(
		'<&' . fileno($null),
		my $out,
		'>&' . fileno($log),
		$self->psql_command(
			$self->connstr($name) . ' dbname=postgres',
			'-q', @$options));
	my $text = do { local $/; <$out> };
	waitpid($pid, 0);

	if ($? != 0)
	{
		die
		  "psql on $name failed (see \"$self->{log}/psql.log\"): @$options\n"
		  if $option{must};
		return undef;
	}
	$text //= '';
	chomp $text;
	return $text;
}

sub sql
{
	my ($self, $name, $sql, %option) = @_;
	return $self->psql($name, [ '-c', $sql ], %option);
}

sub start_psql
{
	my ($self, $name, @options) = @_;
	local %ENV = (%ENV, $self->environment);
	start_program(
		$self->{directory},
		"$self->{log}/psql.log",
		$self->psql_command(
			$self->connstr($name) . ' dbname=postgres',
			'-q', @options));
	return;
}

=pod

=item pending_on($name), drain($name)

Returns the number of bytes of pending files on a member that runs the fork.  Let its
worker remove them without a limit on the rate, wait for that, and wait until the limit is
in effect again.

=cut

sub stat_of
{
	my ($self, $name, $stat) = @_;
	return $self->sql(
		$name,
		"SELECT coalesce(current_setting('lazydrop.stats')::json->>'$stat', '0')",
		must => 1);
}

sub pending_on
{
	my ($self, $name) = @_;
	return $self->stat_of($name, 'pending_bytes');
}

sub drain
{
	my ($self, $name) = @_;
	my $set = sub {
		$self->psql(
			$name,
			[
				'-c' => "ALTER SYSTEM $_[0]",
				'-c' => 'SELECT pg_reload_conf()'
			],
			must => 1);
	};
	$set->('SET lazydrop.removal_rate = 0');
	$self->wait_for("$name has nothing pending",
		sub { $self->pending_on($name) < 1024**2 });
	$set->('RESET lazydrop.removal_rate');
	$self->wait_for(
		"$name is slow again",
		sub {
			($self->psql($name, [ '-c' => 'SHOW lazydrop.removal_rate' ])
				  // '') eq '1MB';
		});
	return;
}

=pod

=item leader()

Returns the name of the member that Patroni reports as leader and that runs as primary, or
undef.

=item post($name, $path, \%body)

Send a request to the REST API of a member's Patroni; returns the response.  Dies if the
request is rejected.

=cut

sub url
{
	my ($self, $name, $path) = @_;
	return "http://$host:" . $self->member($name)->{rest} . "/$path";
}

sub leader
{
	my ($self) = @_;
	my @found;
	foreach my $name (@{ $self->{names} })
	{
		next unless $self->member($name)->{pid};
		push @found, $name
		  if $self->{http}->get($self->url($name, 'primary'))->{status} ==
		  200;
	}
	return @found == 1 ? $found[0] : undef;
}

sub post
{
	my ($self, $name, $path, $body) = @_;
	my $answer = $self->{patient}->post(
		$self->url($name, $path),
		{
			content => encode_json($body),
			headers => { 'Content-Type' => 'application/json' }
		});
	die
	  "Patroni of $name refuses /$path: $answer->{status} $answer->{content}\n"
	  unless $answer->{success};
	return $answer->{content};
}

=pod

=item wait_for_leader($what, @not)

Wait for a leader other than the given ones, and return its name.

=item wait_until_whole($what)

Wait until there is a leader, and all other members are streaming, are synchronous
standbys, and have replayed all WAL that the leader had written at the beginning; each
must run its intended program.  Returns the leader's name.

=cut

sub others
{
	my ($self, $name) = @_;
	return grep { $_ ne $name } @{ $self->{names} };
}

sub wait_for_leader
{
	my ($self, $what, @not) = @_;
	return $self->wait_for(
		"$what: a leader",
		sub {
			my $leader = $self->leader // return undef;
			return (grep { $_ eq $leader } @not) ? undef : $leader;
		});
}

sub wait_until_whole
{
	my ($self, $what) = @_;
	my ($leader, $position);
	$self->wait_for(
		"$what: the cluster is whole",
		sub {
			my $now = $self->leader // return 0;
			if (!defined $leader || $leader ne $now)
			{
				$position =
				  $self->sql($now, 'SELECT pg_current_wal_flush_lsn()')
				  // return 0;
				$leader = $now;
			}
			my $names = join(' ', sort $self->others($leader));
			return (
				$self->sql(
					$leader,
					qq{SELECT coalesce(string_agg(application_name, ' ' ORDER BY application_name COLLATE "C"), '')
					FROM pg_stat_replication WHERE state = 'streaming'
					AND sync_state IN ('sync', 'quorum') AND replay_lsn >= '$position'}
				) // '') eq $names;
		});
	foreach my $name (@{ $self->{names} })
	{
		my $kind = $self->sql(
			$name,
			q{SELECT CASE WHEN coalesce(current_setting('lazydrop.stats', true), '') = ''
				THEN 'stock' ELSE 'fork' END}, must => 1);
		my $wanted = $self->member($name)->{kind};
		die "$name runs $kind, and should run $wanted\n" if $kind ne $wanted;
	}
	return $leader;
}

=pod

=back

=cut

1;
