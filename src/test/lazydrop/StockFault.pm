# Copyright (c) 2026, LazyDrop developers

=pod

=head1 NAME

StockFault - show that stock PostgreSQL has a fault and the fork does not

=head1 DESCRIPTION

Each of the tests 060 to 079 is about one fault, which doc/upstream describes.  It runs
the fault's scenario on the fork, with the lazy drop on and off, which must succeed.  If
the environment variable LAZYDROP_STOCK names an installation of stock PostgreSQL, it also
runs the scenario there, and must observe the fault.  If the fault does not occur any
more, upstream has fixed it, and the fork's patch can be removed.

=cut

package StockFault;

use strict;
use warnings FATAL => 'all';

use Carp;
use Exporter 'import';
use Fcntl qw(F_WRLCK F_UNLCK);
use IPC::Run;
use LazyDropUtils qw(wait_until);
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

our @EXPORT_OK =
  qw(check_fault new_node configure start_primary start_standby kind_is use_fork_modules
  log_has begin_removal interrupt_removal finish_removal can_lease begin_copy
  end_lease);

# "stock", "fork", or "fork with lazydrop.enabled = off"
my $kind;
my $count = 0;

=pod

=over

=item check_fault($title, $scenario [, fork_only => 1])

Call the function $scenario once for each kind of server.  It returns an error message, or
an empty string, and creates its servers with new_node().  Servers that are still running
are stopped after the call.  With "fork_only", stock is skipped, because the fault could
be a consequence of the fix of another one.

=cut

sub check_fault
{
	my ($title, $scenario, %options) = @_;
	my @kinds = ('fork', 'fork with lazydrop.enabled = off');
	push @kinds, 'stock' if $ENV{LAZYDROP_STOCK} && !$options{fork_only};
	note 'LAZYDROP_STOCK names no installation, so stock is left out'
	  if !$ENV{LAZYDROP_STOCK};
	foreach my $next (@kinds)
	{
		$kind = $next;
		$count++;
		my $wrong = $scenario->();
		stop_nodes();
		note "$title, $kind: $wrong" if $wrong ne '';
		if ($kind eq 'stock')
		{
			isnt($wrong, '', "$title: stock has the fault");
		}
		else
		{
			is($wrong, '', "$title: $kind");
		}
	}
	return;
}

=pod

=item new_node($name [, $stock])

Returns a PostgreSQL::Test::Cluster of the kind under test, or of stock, which is not
initialized yet.  Call configure($node, %settings) after init or init_from_backup.

=cut

my @nodes;

sub new_node
{
	my ($name, $stock) = @_;
	croak 'new_node outside of check_fault' if !defined $kind;
	$stock ||= $kind eq 'stock';
	my $node = PostgreSQL::Test::Cluster->new("${name}_$count",
		$stock ? (install_path => $ENV{LAZYDROP_STOCK}) : ());
	push @nodes, $node;
	return $node;
}

=pod

=item configure($node, %settings)

Append settings to a node's configuration file, including those that its kind needs.

=cut

sub configure
{
	my ($node, %settings) = @_;
	my $text = join('', map { "$_ = $settings{$_}\n" } sort keys %settings);
	$text .= "lazydrop.enabled = off\n" if $kind =~ /off$/;
	$node->append_conf('postgresql.conf', $text);
	return;
}

=pod

=item start_primary(%settings)

Start a node "primary" that can have standbys, with autovacuum off.

=item start_standby($primary [, node => new_node(...)], %settings)

Start a standby, which is called "standby" unless a node is given, with the primary's
settings and the given ones.  It is made from a backup that is taken now.  A second
standby is made from the same backup.

=cut

sub start_primary
{
	my (%settings) = @_;
	my $node = new_node('primary');
	$node->init(allows_streaming => 1);
	configure($node, 'autovacuum' => 'off', %settings);
	$node->start;
	return $node;
}

sub start_standby
{
	my ($primary, %settings) = @_;
	my $node = delete $settings{node} // new_node('standby');
	$primary->backup('backup') if !-d $primary->backup_dir . '/backup';
	$node->init_from_backup($primary, 'backup', has_streaming => 1);
	configure($node, %settings);
	$node->start;
	return $node;
}

=pod

=item kind_is($name)

Returns whether this kind is under test: "stock", "fork", or "fork with lazydrop.enabled =
off".

=cut

sub kind_is
{
	my ($name) = @_;
	return $kind eq $name;
}

=pod

=item use_fork_modules($node)

Allow a server of stock to load modules that only the fork's installation has, such as
injection_points.  This works because both have the same ABI.

=cut

sub use_fork_modules
{
	my ($node) = @_;
	return if $kind ne 'stock';
	my ($lib) = run_command([ 'pg_config', '--pkglibdir' ]);
	my ($share) = run_command([ 'pg_config', '--sharedir' ]);
	$node->append_conf('postgresql.conf',
			"dynamic_library_path = '\$libdir:$lib'\n"
		  . "extension_control_path = '\$system:$share'\n");
	return;
}

=pod

=item log_has($node, $pattern)

Returns the first matching line of a node's log, or an empty string.

=cut

sub log_has
{
	my ($node, $pattern) = @_;
	foreach my $line (split /\n/, slurp_file($node->logfile))
	{
		return $line if $line =~ $pattern;
	}
	return '';
}

=pod

=item begin_removal($node, $path, $statement)

Run a statement that removes a directory, and make it wait in the middle.  The server
reports each file that it cannot remove to the client.  A directory with many such files
is put there, which cannot be written to, and the client does not read the messages.  (The
names of the files have the maximum length that a base backup accepts.)  Returns a hash
reference; "pid" is the process.  The test must not run as root.

=item interrupt_removal($node, $removal, $how)

Interrupt the statement: with "crash", kill the process, and wait until the server has
restarted; with "terminate", terminate the session.

=item finish_removal($removal)

Let the statement continue, and wait until it has ended.

=cut

use constant STUCK_FILES => 4000;

sub begin_removal
{
	my ($node, $path, $statement) = @_;
	my $stuck = "$path/stuck";
	mkdir $stuck or croak "could not create $stuck: $!";
	append_to_file(sprintf('%s/%s%04d', $stuck, 'x' x 70, $_), '')
	  foreach 1 .. STUCK_FILES;
	chmod(0500, $stuck) or croak "could not change mode of $stuck: $!";

	pipe(my $unread, my $stderr) or croak "could not create a pipe: $!";
	my $psql = IPC::Run::start(
		[
			'psql', '-X',
			'-d' => $node->connstr('postgres'),
			'-c' => $statement
		],
		'>' => '/dev/null',
		'2>' => $stderr);
	close($stderr);
	$node->wait_for_event('client backend', 'ClientWrite');
	my $pid = $node->safe_psql('postgres',
		q{SELECT pid FROM pg_stat_activity WHERE wait_event = 'ClientWrite'});
	chmod(0700, $stuck) or croak "could not change mode of $stuck: $!";
	return { psql => $psql, unread => $unread, pid => $pid };
}

sub interrupt_removal
{
	my ($node, $removal, $how) = @_;
	if ($how eq 'crash')
	{
		my $offset = -s $node->logfile;
		kill('KILL', $removal->{pid});
		$node->wait_for_log(
			qr/database system is ready to accept connections/, $offset);
	}
	else
	{
		$node->safe_psql('postgres',
			"SELECT pg_terminate_backend($removal->{pid}, 180000)");
	}
	close($removal->{unread});
	$removal->{psql}->finish;
	return;
}

sub finish_removal
{
	my ($removal) = @_;
	my $unread = $removal->{unread};
	1 while <$unread>;
	$removal->{psql}->finish;
	return;
}

=pod

=item can_lease()

Returns whether a file can be leased (see fcntl(2)).  A process that opens a leased file
has to wait.

=item begin_copy($node, $source, $file, $statement)

Lease a file of the database $source, and run a statement that copies it, which has to
wait when it reaches that file.  Returns the session, its PID, and the lease.

=item end_lease($lease)

Let the statement continue.

=cut

use constant F_SETLEASE => 1024;

# Set when a process has tried to open a leased file.
my $asked;

sub lease
{
	my ($file) = @_;
	open(my $handle, '+<', $file) or croak "could not open $file: $!";
	return fcntl($handle, F_SETLEASE, F_WRLCK) ? $handle : undef;
}

sub can_lease
{
	return 0 if $^O ne 'linux';
	my $file = PostgreSQL::Test::Utils::tempdir() . '/leased';
	append_to_file($file, '');
	return defined lease($file);
}

sub begin_copy
{
	my ($node, $source, $file, $statement) = @_;
	my $oid = $node->safe_psql('postgres',
		"SELECT oid FROM pg_database WHERE datname = '$source'");
	$asked = 0;
	$SIG{IO} = sub { $asked = 1 };
	my $lease = lease($node->data_dir . "/base/$oid/$file")
	  or croak "could not lease $file: $!";
	my $session = $node->background_psql('postgres', on_error_stop => 0);
	my $pid = $session->query_safe('SELECT pg_backend_pid()');
	$session->query_until(qr/begun/, "\\echo begun\n$statement;\n");
	wait_until(sub { $asked }) or croak "$file of $source is not read";
	return ($session, $pid, $lease);
}

sub end_lease
{
	my ($lease) = @_;
	fcntl($lease, F_SETLEASE, F_UNLCK) or croak "could not end a lease: $!";
	close($lease);
	return;
}

sub stop_nodes
{
	foreach my $node (reverse @nodes)
	{
		$node->stop('immediate', fail_ok => 1);
	}
	@nodes = ();
	return;
}

=pod

=back

=cut

1;
