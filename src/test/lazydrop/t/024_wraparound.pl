# Copyright (c) 2026, LazyDrop developers

# The counter of relfilenumbers and OIDs wraps around.  A number whose burial is pending
# is considered in use, even if its file is gone (rule R3).  It would be correct to choose
# it, because a process that creates storage settles it first, but that process would have
# to wait.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/..";
use LazyDropUtils
  qw(stats wait_for_stats hold_at release need_injection_points
  start_quiet_node stop_with_clean_log);
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

need_injection_points();

my $node = start_quiet_node('node');
$node->safe_psql('postgres', 'CREATE EXTENSION injection_points');
$node->safe_psql('postgres', 'CREATE TABLE t (a int)');

# The relations and databases to be dropped have low numbers, in this order.
$node->safe_psql('postgres',
	join('', map { "CREATE TABLE old$_ (a int);\n" } 1 .. 5));
$node->safe_psql('postgres',
	join('', map { "CREATE DATABASE old$_;\n" } 1 .. 5));
my @numbers = split /\n/,
  $node->safe_psql('postgres',
	q{SELECT pg_relation_filenode(oid) FROM pg_class WHERE relname ~ '^old' ORDER BY 1}
  );
my @oids = split /\n/,
  $node->safe_psql('postgres',
	q{SELECT oid FROM pg_database WHERE datname ~ '^old' ORDER BY 1});

# Set the counter close to the wraparound.
$node->stop;
command_ok(
	[
		'pg_resetwal',
		'--next-oid' => 4294967290,
		'--pgdata' => $node->data_dir
	],
	'the counter is near its end');
$node->start;

hold_at($node, 'lazydrop-worker');
$node->safe_psql('postgres',
	join('', map { "DROP TABLE old$_;\nDROP DATABASE old$_;\n" } 1 .. 5));
$node->wait_for_event('lazy drop worker', 'lazydrop-worker');
$node->safe_psql('postgres', 'CHECKPOINT');

# An OID is also in use as long as a dead row of pg_database has it.
$node->safe_psql('postgres', 'VACUUM pg_database');
is(scalar(grep { -e $node->data_dir . "/base/5/$_" } @numbers),
	0, 'the files of what was dropped are gone');
is(stats($node)->{pending_relations}, 5, 'but relations are pending');
is(stats($node)->{pending_databases}, 5, 'and databases');
my $waits = stats($node)->{reuse_waits};

# TRUNCATE assigns one number and no OID.
my %chosen;
my $last = 0;
for (
	my $i = 0;
	$i < 2000 && ($last > 4000000000 || $last < $oids[0] - 1);
	$i++)
{
	$last = $node->safe_psql('postgres',
		q{TRUNCATE t; SELECT pg_relation_filenode('t')});
	$chosen{$last} = 1;
}
is($last, $oids[0] - 1, 'the counter has wrapped');
is(scalar(grep { $chosen{ $_ - 1 } || $chosen{ $_ + 1 } } @numbers),
	5, 'and has passed the numbers that are pending');
is(scalar(grep { $chosen{$_} } @numbers), 0, 'which were not chosen');

$node->safe_psql('postgres', 'CREATE DATABASE new');
my $oid = $node->safe_psql('postgres',
	q{SELECT oid FROM pg_database WHERE datname = 'new'});
is($oid, $oids[-1] + 1, 'nor is the OID of a database that is pending');
is(stats($node)->{reuse_waits}, $waits, 'so no process had to settle');

release($node, 'lazydrop-worker');
wait_for_stats($node,
	q{s->>'pending_relations' = '0' AND s->>'pending_databases' = '0'});
stop_with_clean_log($node);

done_testing();
