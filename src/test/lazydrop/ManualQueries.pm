# Copyright (c) 2026, LazyDrop developers

=pod

=head1 NAME

ManualQueries - the queries that users find in the manual and beside pg_lazydrop

=head1 DESCRIPTION

051 runs these queries on a primary, and 050 on a standby.

=cut

package ManualQueries;

use strict;
use warnings FATAL => 'all';

use Carp;
use Exporter 'import';
use File::Basename qw(dirname);
use PostgreSQL::Test::Utils;

our @EXPORT_OK = qw(manual_queries monitoring_queries);

=pod

=over

=item manual_queries($file)

Returns the queries in a file of the manual, as a hash of their texts for psql.  The key
is the id of the section and a number.

=cut

sub manual_queries
{
	my ($file) = @_;
	my $text = slurp_file(dirname(__FILE__) . "/../../../doc/src/sgml/$file");
	my %queries;
	my $section = $file;
	while ($text =~
		m{<sect\d id="([^"]+)">|<programlisting>(?:<!\[CDATA\[)?(.*?)(?:\]\]>)?</programlisting>}gs
	  )
	{
		if (defined $1)
		{
			$section = $1;
			next;
		}
		my $query = $2;
		next unless $query =~ /^\s*(?:SELECT|WITH|\\if|\\set)\b/;
		$query =~ s/&lt;/</g;
		$query =~ s/&gt;/>/g;
		$query =~ s/&amp;/&/g;
		my $number = 1;
		$number++ while exists $queries{"$section $number"};
		$queries{"$section $number"} = $query;
	}
	return %queries;
}

=pod

=item monitoring_queries()

Returns the queries that contrib/pg_lazydrop has for monitoring systems.  The key is the
name of the file; for lazydrop_exporter.yml, it is followed by the name of the metric.

=cut

sub monitoring_queries
{
	my $directory = dirname(__FILE__) . '/../../../contrib/pg_lazydrop';
	my $exporter = slurp_file("$directory/lazydrop_exporter.yml");
	my %queries =
	  ('lazydrop_check.sql' => slurp_file("$directory/lazydrop_check.sql"));
	$queries{"lazydrop_exporter.yml $1"} = $2
	  while $exporter =~
	  /^(\w+):\n(?: {2}\w.*\n)*? +query: \|\n((?: {4}.*\n)+)/mg;
	croak 'there is no query in lazydrop_exporter.yml' if keys %queries < 2;
	return %queries;
}

=pod

=back

=cut

1;
