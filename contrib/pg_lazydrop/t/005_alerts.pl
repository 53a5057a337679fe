# Copyright (c) 2026, LazyDrop developers

# Test the alerts for Prometheus: they are about metrics that lazydrop_exporter.yml has, and
# fire and end with these.  The second part needs promtool, from LAZYDROP_TOOLS, which
# src/tools/lazydrop/fetch-tools fills, or in PATH.

use strict;
use warnings FATAL => 'all';

use FindBin;
use PostgreSQL::Test::Utils;
use Test::More;

my $source = "$FindBin::RealBin/..";
my $rules = slurp_file("$source/lazydrop_alerts.yml");
my $exporter = slurp_file("$source/lazydrop_exporter.yml");

my %metrics;
foreach my $part (split /^(?=\w)/m, $exporter)
{
	my ($name) = $part =~ /^(\w+):/ or next;
	$metrics{"${name}_$_"} = 1 foreach $part =~ /^ {4}- (\w+):/mg;
}
my @expressions = $rules =~ /^ +expr: (.*)/mg;
my %used =
  map { $_ => 1 } join("\n", @expressions) =~ /\b(pg_lazydrop_[a-z_]+)/g;
cmp_ok(scalar(keys %used), '>=', scalar(@expressions), 'metrics are found');
ok($metrics{$_}, "$_ is a metric") foreach sort keys %used;

my ($promtool) = grep { -x } map { "$_/promtool" } (
	defined $ENV{LAZYDROP_TOOLS}
	? "$ENV{LAZYDROP_TOOLS}/prometheus/usr/bin"
	: ()),
  split(/:/, $ENV{PATH});
SKIP:
{
	skip 'no promtool (LAZYDROP_TOOLS, PATH)', 6 unless defined $promtool;

	my $file = PostgreSQL::Test::Utils::tempdir() . '/alerts_test.yml';
	append_to_file($file,
		slurp_file("$FindBin::RealBin/alerts_test.yml") =~
		  s{RULES}{$source/lazydrop_alerts.yml}r);
	command_like(
		[ $promtool, 'check', 'rules', "$source/lazydrop_alerts.yml" ],
		qr/SUCCESS: @{[scalar @expressions]} rules found/,
		'the rules are valid');
	command_like([ $promtool, 'test', 'rules', $file ],
		qr/SUCCESS/, 'each alert fires and ends');
}

done_testing();
