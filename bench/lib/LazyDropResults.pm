# Copyright (c) 2026, LazyDrop developers

=pod

=head1 NAME

LazyDropResults - read the results of bench/run

=head1 DESCRIPTION

Reads the CSV files that bench/run writes.  They have comment lines, which describe the
run and the machine, a line with the names of the columns, and one line for each value.

=cut

package LazyDropResults;

use strict;
use warnings FATAL => 'all';

use Exporter 'import';
use List::Util qw(max min uniq);

our @EXPORT_OK =
  qw(read_results median by_size number spread ratios in_order keys_of
  scenarios_of);

our @columns = qw(scenario run server shared_buffers case measure unit value);

=pod

=head1 FUNCTIONS

=over

=item read_results($directory [, @scenarios])

Returns the results of the given scenarios, by default of all, as a hash reference: "head"
maps a scenario to a hash of its comment lines; "keys" has all measurements, in the order
of the file, as "scenario, shared_buffers, case, measure, unit"; "values" are by key,
server, and run.

=cut

sub read_results
{
	my ($directory, @scenarios) = @_;
	@scenarios = map { m{([^/]+)\.csv$} } sort glob("$directory/*.csv")
	  unless @scenarios;
	my %results = (head => {}, keys => [], values => {});
	foreach my $name (@scenarios)
	{
		my $file = "$directory/$name.csv";
		next if $name =~ /^(?:demo|.*-replay)-lag$/ || !-e $file;
		open(my $fh, '<', $file) or die "could not open \"$file\": $!\n";
		my $names;
		while (my $line = <$fh>)
		{
			chomp $line;
			if ($line =~ /^# ([^:]+): (.*)/)
			{
				push @{ $results{head}{$name}{$1} }, $2;
				next;
			}
			if (!$names)
			{
				$names = $line;
				next if $names eq join(',', @columns);
				warn "\"$file\" is not of bench/run, or of an older one\n";
				last;
			}
			my %row;
			@row{@columns} = split /,/, $line, -1;
			my $key =
			  join(',', @row{qw(scenario shared_buffers case measure unit)});
			push @{ $results{keys} }, $key unless $results{values}{$key};
			die "\"$file\" has two values of run $row{run} of $key\n"
			  if exists $results{values}{$key}{ $row{server} }{ $row{run} };
			$results{values}{$key}{ $row{server} }{ $row{run} } =
			  $row{value};
		}
		close($fh);
	}
	return \%results;
}

sub median
{
	my @sorted = sort { $a <=> $b } @_;
	my $n = @sorted;
	return $n % 2
	  ? $sorted[ $n / 2 ]
	  : ($sorted[ $n / 2 - 1 ] + $sorted[ $n / 2 ]) / 2;
}

sub by_size
{
	my %unit = (MB => 1, GB => 1024);
	my ($x, $y) =
	  map { /^([\d.]+)(MB|GB)$/ ? $1 * $unit{$2} : 0 } @_;
	return $x <=> $y;
}

# Format a number with three significant digits, without an exponent.
sub number
{
	my ($value) = @_;
	return '0' if $value == 0;
	my $digits =
	  max(0, 2 - int(log(abs($value)) / log(10) + 1e-9 - (abs($value) < 1)));
	return sprintf("%.${digits}f", $value);
}

sub spread
{
	my @values = @_;
	return number($values[0]) if @values == 1;
	return sprintf('%s (%s-%s)',
		map { number($_) } median(@values),
		min(@values), max(@values));
}

# Returns the ratios of the runs that both have.
sub ratios
{
	my ($above, $below) = @_;
	return map { $above->{$_} / $below->{$_} }
	  grep { exists $below->{$_} && $below->{$_} != 0 } sort keys %$above;
}

# Returns the servers in the order of tables and plots.
sub in_order
{
	my %rank = (
		stock => 1,
		on => 2,
		off => 3,
		'on>stock' => 4,
		'on>off' => 5,
		mariadb => 6);
	return
	  sort { ($rank{$a} // 9) <=> ($rank{$b} // 9) || $a cmp $b } uniq(@_);
}

sub keys_of
{
	my ($results, $scenario) = @_;
	return grep { /^\Q$scenario\E,/ } @{ $results->{keys} };
}

sub scenarios_of
{
	my ($results) = @_;
	return uniq(map { /^([^,]+)/ } @{ $results->{keys} });
}

=pod

=back

=cut

1;
