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
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

our @EXPORT_OK =
  qw(check_fault new_node configure kind_is use_fork_modules log_has);

# "stock", "fork", or "fork with lazydrop.enabled = off"
my $kind;
my $count = 0;

=pod

=over

=item check_fault($title, $scenario)

Call the function $scenario, which returns what went wrong, or an empty string, once for
each kind of server, as subtests.  It makes its servers with new_node.  They are stopped
at its end, if they still run.

=cut

sub check_fault
{
	my ($title, $scenario) = @_;
	my @kinds = ('fork', 'fork with lazydrop.enabled = off');
	push @kinds, 'stock' if $ENV{LAZYDROP_STOCK};
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
