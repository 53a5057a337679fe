# Copyright (c) 2026, LazyDrop developers

=pod

=head1 NAME

StockFault - show a fault of stock PostgreSQL, and that the fork does not have it

=head1 DESCRIPTION

Each of the tests 060 to 079 is about one fault that doc/upstream describes.  It plays
the fault's scenario on the fork, with the lazy drop on and off, where nothing may go
wrong; and on stock, if the environment variable LAZYDROP_STOCK names an installation
of it, where the fault must show.  When it does not show there any more, upstream has
mended it, and the fork's patch can go.

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

Call the function $scenario, which returns what went wrong, or an empty string, once for
each kind of server.  It makes its servers with new_node.  They are stopped at its end, if
they still run.  With "fork_only", stock is left out: the fault could come from what mends
another one.

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

Returns a PostgreSQL::Test::Cluster of the kind that is being tried, or of stock, which is
not initialized yet.  Call configure($node, %settings) after init or init_from_backup.

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

Append settings to a node's configuration file, and what its kind needs.

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

Start a node "primary" that can have standbys, without autovacuum.

=item start_standby($primary [, node => new_node(...)], %settings)

Start a standby: "standby", or that node, with the primary's settings and these.  It begins
at a backup that is taken now; the next one, if there is one, at the same.

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

Whether this kind is being tried: "stock", "fork", or "fork with lazydrop.enabled = off".

=cut

sub kind_is
{
	my ($name) = @_;
	return $kind eq $name;
}

=pod

=item use_fork_modules($node)

Let a server of stock load modules that only the fork's installation has, such as
injection_points.  They fit, as both have the same ABI.

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

Returns the first line of a node's log that matches, or an empty string.

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

Run a statement that removes a directory, and have it wait in the middle: of each file that
cannot be removed the client is told, which does not read that, and a directory that cannot
be written to is put there with many of them.  (Their names are as long as a base backup
takes.)  Returns a hash reference; "pid" is the process.  The test must not run as root.

=item interrupt_removal($node, $removal, $how)

Interrupt it: with "crash", by killing the process, and waiting until the server has started
again; with "terminate", by ending the session.

=item finish_removal($removal)

Let it go on, until it has ended.

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
	my $waits = q{FROM pg_stat_activity WHERE wait_event = 'ClientWrite'};
	$node->poll_query_until('postgres', "SELECT count(*) > 0 $waits")
	  or croak "$statement does not wait for its client";
	my $pid = $node->safe_psql('postgres', "SELECT pid $waits");
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

Whether a file can be leased (see fcntl(2)): the process that opens it is held then.

=item begin_copy($node, $source, $file, $statement)

Lease a file of the database $source, and run a statement that copies it, which is held
when it comes to that file.  Returns the session, its PID, and the lease.

=item end_lease($lease)

Let it go on.

=cut

use constant F_SETLEASE => 1024;

# Whether a process has come to a leased file.
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
