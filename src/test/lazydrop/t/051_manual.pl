# Copyright (c) 2026, LazyDrop developers

# Compare the manual with the server.  The manual must describe every setting with its
# default, every key of lazydrop.stats and lazydrop.cache_stats, every column of the views
# and every wait event, and none that does not exist.  ("make docs" validates the markup.)
# The targets of its cross-references, the settings that README names, and the files that
# Markdown files link to must exist.  lazydrop_exporter.yml must describe every metric
# that its queries return.

use strict;
use warnings FATAL => 'all';

use File::Basename qw(basename dirname);
use FindBin;
use lib "$FindBin::RealBin/..";
use JSON::PP;
use LazyDropUtils qw(start_quiet_node);
use ManualQueries qw(manual_queries monitoring_queries);
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $top = "$FindBin::RealBin/../../../..";
my $chapter = slurp_file("$top/doc/src/sgml/lazydrop.sgml");
my $page = slurp_file("$top/doc/src/sgml/pglazydrop.sgml");
my $readme = slurp_file("$top/README.md");

my $node = start_quiet_node('node');
$node->safe_psql('postgres', 'CREATE EXTENSION pg_lazydrop');

sub lines
{
	my ($query) = @_;
	return split /\n/, $node->safe_psql('postgres', $query);
}

# Check that two lists have the same elements.
sub is_same_set
{
	my ($got, $expected, $what) = @_;
	my %count;
	$count{$_} += 1 foreach @$got;
	$count{$_} += 2 foreach @$expected;
	is_deeply(
		{ map { $_ => $count{$_} } grep { $count{$_} != 3 } keys %count },
		{}, $what);
	return;
}

# --- settings ---------------------------------------------------------------

my @settings = lines(
	q{SELECT name FROM pg_settings WHERE name LIKE 'lazydrop.%' ORDER BY name}
);
# pg_settings does not show these.
my @shown = ('lazydrop.stats', 'lazydrop.cache_stats', 'lazydrop.advice');
is_same_set(
	[ $chapter =~ /<varlistentry id="guc-\S+" xreflabel="([^"]+)">/g ],
	[ @settings, @shown ],
	'settings in the manual');
my %setting = map { $_ => 1 } @settings, @shown;
my %named = map { $_ => 1 } $readme =~ /`(lazydrop\.\w+)/g;
cmp_ok(scalar(keys %named), '>=', 2, 'README names settings');
is_deeply([ sort grep { !$setting{$_} } keys %named ],
	[], 'and none that is not there');

# An image that git ignores would be missing in a clone.
my (@links, @dead);
foreach my $file (
	glob(
		"'$top'/*.md '$top'/{bench,bench/patroni,doc/upstream,patches}/*.md"))
{
	my @of_file = grep { !/^\w+:/ } slurp_file($file) =~ /\]\(([^)#]+)/g;
	push @links, @of_file;
	push @dead, map { basename($file) . ": $_" }
	  grep { !-e dirname($file) . "/$_" } @of_file;
}
cmp_ok(scalar(@links), '>=', 50, 'Markdown files link to files');
is_deeply(\@dead, [], 'and to none that is not there');

# Tests are run in the prepared tree, which has the manual of this major version.
my %id = map { $_ => 1 }
  map { slurp_file($_) =~ /\bid="([^"]+)"/g }
  glob('../../../doc/src/sgml/{,ref/}*.sgml');
my @targets = "$chapter$page" =~ /\blinkend="([^"]+)"/g;
cmp_ok(scalar(@targets), '>=', 50, 'the manual refers to other parts of it');
is_deeply([ grep { !$id{$_} } @targets ], [], 'which this major version has');

foreach my $name (@settings)
{
	my ($default, $when) = split /\|/, $node->safe_psql(
		'postgres', qq{
		SELECT CASE WHEN unit = 'ms' THEN boot_val::int / 1000 || 's'
			WHEN unit = 'MB' AND boot_val <> '0' THEN boot_val::int / 1024 || 'GB'
			WHEN unit = 'kB' AND boot_val <> '-1' THEN boot_val::int / 1024 || 'MB'
			ELSE boot_val END,
			CASE context WHEN 'sighup' THEN 'reload' WHEN 'postmaster' THEN 'restart' ELSE context END
		FROM pg_settings WHERE name = '$name'});
	my ($entry) = $chapter =~ m{xreflabel="\Q$name\E">(.*?)</varlistentry>}s;
	my $text = $entry =~ s/<[^>]*>//gr;
	$text =~ s/\s+/ /g;
	$default =~ s/^(\d+)s$/($1s|$1 seconds?|@{[ $1 * 1000 ]} milliseconds)/;
	like($text, qr/default is $default/, "default of $name in the manual");
	next if $when eq 'user';
	like(
		$text,
		$when eq 'restart'
		? qr/can only be set at server start/
		: qr/can only be set in the postgresql\.conf file or on the server command line/,
		"and when it takes effect");
}

# --- lazydrop.stats and lazydrop.cache_stats --------------------------------

my @keys =
  keys %{ decode_json($node->safe_psql('postgres', 'SHOW lazydrop.stats')) };
# The keys are the columns of the view, except those for which the manual has another
# name.
my %instead = $chapter =~
  m{<literal>(\w+)</literal>\s+(?:stands\s+)?for\s+<structfield>(\w+)</structfield>}g;
cmp_ok(scalar(keys %instead), '>=', 1, 'some have other names');
is_same_set(
	[ map { $instead{$_} // $_ } @keys ],
	[
		lines(
			q{SELECT attname FROM pg_attribute
			  WHERE attrelid = 'pg_stat_lazydrop'::regclass AND attnum > 0})
	],
	'keys of lazydrop.stats are the columns of pg_stat_lazydrop');
# "main_classes" is there only with assertions.
my @cache_keys =
  grep { $_ ne 'main_classes' }
  keys
  %{ decode_json($node->safe_psql('postgres', 'SHOW lazydrop.cache_stats')) };
is_same_set(
	\@cache_keys,
	[
		lines(
			q{SELECT attname FROM pg_attribute
			  WHERE attrelid = 'pg_stat_lazydrop_cache'::regclass AND attnum > 0})
	],
	'keys of lazydrop.cache_stats are the columns of pg_stat_lazydrop_cache');

# --- views ------------------------------------------------------------------

foreach my $view (
	'pg_stat_lazydrop', 'pg_stat_lazydrop_cache',
	'pg_lazydrop_pending', 'pg_lazydrop_advice')
{
	my @columns = lines(
		qq{SELECT attname || ' ' || format_type(atttypid, NULL) FROM pg_attribute
		   WHERE attrelid = '$view'::regclass AND attnum > 0});
	s/ with time zone// foreach @columns;
	my ($table) = $page =~
	  m{<title><structname>$view</structname> Columns</title>(.*?)</table>}s;
	ok(defined $table, "$view has a table in the manual") or next;
	my @described;
	push @described, "$1 $2"
	  while $table =~
	  m{role="column_definition">\s*<structfield>(\w+)</structfield>\s+<type>([^<]+)</type>}g;
	my %type = (
		'int4' => 'integer',
		'int8' => 'bigint',
		'float8' => 'double precision',
		'bool' => 'boolean',
		'timestamptz' => 'timestamp',
		'timestamp with time zone' => 'timestamp');
	s{ (.*)$}{" " . ($type{$1} // $1)}e foreach @described;
	is_deeply(\@described, \@columns, "columns of $view, in order");
}
my %functions = map { $_ => 1 } $page =~ m{<function>(\w*lazydrop\w*)}g;
is_same_set(
	[ keys %functions ],
	[
		lines(
			q{SELECT proname FROM pg_proc JOIN pg_depend ON objid = pg_proc.oid
		  WHERE classid = 'pg_proc'::regclass AND deptype = 'e'
		  AND refobjid = (SELECT oid FROM pg_extension WHERE extname = 'pg_lazydrop')}
		)
	],
	'functions in the manual');

# --- wait events ------------------------------------------------------------

is_same_set(
	[ $chapter =~ m{<entry><literal>(LazyDrop\w+)</literal></entry>}g ],
	[
		lines(
			q{SELECT name FROM pg_wait_events WHERE name LIKE 'LazyDrop_%'})
	],
	'wait events in the manual');

# --- queries ----------------------------------------------------------------

# Run the queries on a primary; 050_swap_standby.pl runs them on a standby.
my %query =
  (manual_queries('lazydrop.sgml'), manual_queries('pglazydrop.sgml'));
my @offered =
  grep { /\bSELECT\b/ }
  "$chapter$page" =~ m{<programlisting>(.*?)</programlisting>}gs;
is(scalar(keys %query), scalar(@offered), 'all of them are found');
%query = (%query, monitoring_queries());
cmp_ok(scalar(@offered), '>=', 4, 'and there are some');
foreach my $id (sort keys %query)
{
	my ($status, $out, $err) = $node->psql('postgres', $query{$id});
	is("$status $err", '0 ', "$id runs");
	note $out;
}

# --- metrics ----------------------------------------------------------------

# Everything that a query of the exporter returns must have a description.
my $exporter = slurp_file("$top/contrib/pg_lazydrop/lazydrop_exporter.yml");
my %metrics;
foreach my $part (split /^(?=\w)/m, $exporter)
{
	my ($name) = $part =~ /^(\w+):/ or next;
	$metrics{$name} = [ $part =~ /^ {4}- (\w+):/mg ];
	my $query = $query{"lazydrop_exporter.yml $name"};
	ok(defined $query, "there is a query for $name") or next;
	is_same_set(
		$metrics{$name},
		[
			lines(
				"SELECT DISTINCT key FROM ($query) AS q, LATERAL json_each(to_json(q))"
			)
		],
		"metrics of $name are what its query returns");
}
is_same_set(
	$metrics{pg_lazydrop_cache},
	[
		map  { /^(?:scan_resistance|main)$/ ? $_ : "${_}_total" }
		grep { !/^(?:stats_reset|buffers|probation)$/ } @cache_keys
	],
	'and those of the buffer cache are the keys of lazydrop.cache_stats');

# --- rules -------------------------------------------------------------------------------------------

# The README of the tests has each rule with the tests that cite it.
my %cited;
foreach my $test (grep { !/040_torture/ } glob("'$FindBin::RealBin'/*.pl"))
{
	my ($number) = basename($test) =~ /^(\d+)/;
	my %rules = map { $_ => 1 } slurp_file($test) =~ /\b([RCA][0-9]+)\b/g;
	push @{ $cited{$_} }, $number foreach keys %rules;
}
my @rules =
  map { slurp_file("$top/src/backend/storage/$_") =~ /^([RCA]\d+)\./mg }
  qw(lazydrop/README buffer/README.lazydrop advisor/README);
my %table =
  slurp_file("$FindBin::RealBin/../README") =~
  /^([RCA]\d+) +((?:\d{3} ?)+)$/mg;
is_same_set([ keys %table ], \@rules,
	'each rule has its tests in the README');
is($table{$_}, join(' ', sort @{ $cited{$_} // [] }), "tests that cite $_")
  foreach @rules;

$node->stop;
done_testing();
