# Copyright (c) 2026, LazyDrop developers

# A server whose worker cannot start, because other workers have taken all of
# max_worker_processes.  A primary drops relations like stock.  A standby buries them, so
# that its startup process makes one pass for many drops, and removes the files
# immediately.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/..";
use LazyDropFiles qw(add_segments relation_files database_directories);
use LazyDropPair
  qw(start_pair on_primary catch_up all_stats changed kept_rows keep_rows is_intact storm
  restart_with);
use LazyDropUtils qw(stats log_is_clean need_injection_points);
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

need_injection_points();

use constant MB => 1024 * 1024;

my ($primary, $standby) =
  start_pair('lazydrop.lookup_limit' => '0', 'log_checkpoints' => 'on');
my @nodes = ($primary, $standby);
my $what = 'no worker';
keep_rows(1000);

my %offset = map { $_->name => -s $_->logfile } @nodes;
restart_with("max_worker_processes = 1\nlazydrop.max_pending = 64", 'fast');
foreach my $node (@nodes)
{
	is(stats($node)->{worker_pid}, undef, "$what on " . $node->name);
	like(
		slurp_file($node->logfile, $offset{ $node->name }),
		qr/too many background workers/,
		"$what: as the log says on " . $node->name);
}
my $before = all_stats();
my $max_pending = 0;
foreach my $round (1 .. 10)
{
	storm(2, 25, "$what, round $round");
	my $pending = stats($standby)->{pending_relations};
	$max_pending = $pending if $max_pending < $pending;
}
is(changed($before, $primary, 'sync_fallbacks'),
	500, "$what: drops are done as in stock on the primary");
is(stats($primary)->{pending_relations}, 0, "$what: nothing is pending");
is(changed($before, $standby, 'deferred_relations'),
	500, "$what: drops are buried on the standby");
is(changed($before, $standby, 'sync_fallbacks'), 0, "$what: all of them");
cmp_ok($max_pending, '<=', 64, "$what: no more than there is room for");
cmp_ok($max_pending, '>', 25, "$what: which is used");
my $passes = changed($before, $standby, 'passes');
ok($passes >= 6 && $passes <= 8, "$what: one pass for each 64")
  or diag $passes;

# Test the space of dropped files.
on_primary('CREATE TABLE large AS SELECT 1 AS a');
my $path =
  $primary->safe_psql('postgres', q{SELECT pg_relation_filepath('large')});
catch_up();
add_segments($_, $path, 2, 20 * MB) foreach @nodes;
on_primary(
	'CREATE DATABASE again OID 90000',
	'DROP TABLE large',
	'DROP DATABASE again');
catch_up();
is_deeply(
	[
		(map { database_directories($_, 90000) } @nodes),
		relation_files($standby, $path)
	],
	[],
	"$what: files go at once");
is_deeply(
	[
		map { [ $_, -s $primary->data_dir . "/$_" ] }
		  relation_files($primary, $path)
	],
	[ [ $path, 0 ] ],
	"$what: but for an empty one until the next checkpoint, as in stock");
on_primary('CREATE DATABASE again OID 90000');
$primary->safe_psql('again', 'CREATE TABLE t AS SELECT 1 AS a');
catch_up();
is($standby->safe_psql('again', 'SELECT a FROM t'),
	1, "$what: a name comes back");
is_intact($what, 1);

# Test crash recovery and promotion.
storm(1, 10, $what);
cmp_ok(stats($standby)->{pending_relations},
	'>', 0, "$what: something is pending on the standby");
$_->stop('immediate') foreach @nodes;
$_->start foreach @nodes;
storm(1, 10, "$what, after a crash");
is_intact("$what, after a crash", 1);
cmp_ok(stats($standby)->{pending_relations},
	'>', 0, "$what: something is pending before promotion");
$primary->stop;
$standby->promote;
is(stats($standby)->{pending_relations}, 0, "$what: and nothing is after it");
$standby->safe_psql('postgres',
	"CREATE TABLE t AS SELECT 1 AS a;\nDROP TABLE t");
is(stats($standby)->{pending_relations}, 0, "$what: nor is it later on");
is($standby->safe_psql('postgres', 'SELECT count(*) FROM kept'),
	kept_rows(), "$what: rows are there");
$standby->stop;
log_is_clean($_) foreach $primary, $standby;

done_testing();
