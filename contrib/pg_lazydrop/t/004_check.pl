# Copyright (c) 2026, LazyDrop developers

# Test lazydrop_check.sh: each result, with its reason, and the exit status.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/../../../src/test/lazydrop";
use IPC::Run;
use LazyDropUtils qw(start_quiet_node need_injection_points hold_at release);
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

need_injection_points();
plan skip_all => 'no sh on this platform' if $windows_os;

# Room for five, which a test can fill.
my $node = start_quiet_node(
	'main',
	'lazydrop.lookup_limit' => '0',
	'lazydrop.max_pending' => '5',
	'lazydrop.pass_delay' => '60s');
$node->safe_psql('postgres',
	'CREATE EXTENSION pg_lazydrop; CREATE EXTENSION injection_points');

# The script and the query that it runs are used as they are installed.
my $script = PostgreSQL::Test::Utils::tempdir() . '/lazydrop_check.sh';
append_to_file($script, slurp_file("$FindBin::RealBin/../lazydrop_check.sh"));
append_to_file($script =~ s/sh$/sql/r,
	slurp_file("$FindBin::RealBin/../lazydrop_check.sql"));

sub check_is
{
	my ($options, $status, $pattern, $test) = @_;
	my ($out, $err);
	IPC::Run::run(
		[ 'sh', $script, @$options, '--', $node->connstr('postgres') ],
		'>' => \$out,
		'2>' => \$err);
	is($? >> 8, $status, "$test: exit status");
	like($out, $pattern, "$test: output");
	is($err, '', "$test: nothing on standard error");
	return;
}

sub drop_tables
{
	my ($n) = @_;
	$node->safe_psql(
		'postgres', qq{
		SELECT format('CREATE TABLE t%s (a int)', i) FROM generate_series(1, $n) AS i \\gexec
		SELECT format('DROP TABLE t%s', i) FROM generate_series(1, $n) AS i \\gexec}
	);
	return;
}

my $performance =
  qr/pending=\d+;3;;0;5 bytes=\d+B age=[\d.]+s;\d+;\d+;0 fallbacks=\d+c$/;
check_is(
	[], 0,
	qr/^OK - 0 pending, 0 bytes of files, oldest 0\.0 s\|$performance/,
	'nothing is pending');

# The worker would not wait with a list that is half full.
hold_at($node, 'lazydrop-removal');
drop_tables(1);
check_is(
	[ '-w' => 3600, '-c' => 3600 ],
	0, qr/^OK - 1 pending, .*\|$performance/,
	'a new entry');
check_is(
	[ '-w' => 0, '-c' => 3600 ],
	1, qr/^WARNING - 1 pending, [^,]*, oldest [\d.]+ s\|$performance/,
	'an old entry');
check_is(
	[ '-w' => 0, '-c' => 0 ],
	2,
	qr/^CRITICAL - 1 pending.*\|$performance/,
	'a very old entry');
drop_tables(3);
check_is(
	[ '-w' => 3600, '-c' => 3600 ],
	1,
	qr/^WARNING - 4 pending, .*, room for 5\|$performance/,
	'a list that is almost full');

# More than there is room for, in one transaction.
$node->safe_psql(
	'postgres', q{
	SELECT format('CREATE TABLE t%s (a int)', i) FROM generate_series(1, 6) AS i \gexec
	DROP TABLE t1, t2, t3, t4, t5, t6});
release($node, 'lazydrop-removal');
$node->safe_psql('postgres', 'SELECT pg_lazydrop_drain()');
check_is(
	[],
	1,
	qr/^WARNING - 0 pending, [^,]*, [^,]*, 6 drops done as in stock since \S+\|$performance/,
	'drops that were done as in stock');
check_is([ '-f' => 6 ], 0, qr/^OK - 0 pending/, 'as many as are allowed');
$node->safe_psql('postgres', 'SELECT pg_stat_lazydrop_reset()');
check_is([], 0, qr/^OK - 0 pending/, 'after a reset');

# Warnings of psql are no result.
my $passwords = PostgreSQL::Test::Utils::tempdir() . '/passwords';
append_to_file($passwords, "host:1:database:role:secret\n");
chmod 0644, $passwords or die "could not change $passwords: $!";
{
	local $ENV{PGPASSFILE} = $passwords;
	check_is([], 0, qr/^OK - 0 pending[^\n]*\n\z/, 'with a warning of psql');
}

# No worker can be registered.
$node->append_conf('postgresql.conf', 'max_worker_processes = 0');
$node->restart;
check_is([], 1,
	qr/^WARNING - 0 pending, [^,]*, [^,]*, no worker\|$performance/,
	'no worker');

$node->stop;
{
	local $ENV{PGPASSFILE} = $passwords;
	check_is([], 3, qr/^UNKNOWN - psql: error: [^\n]*\n\z/, 'no server');
}
check_is(
	[ '-w' => '1 OR true' ],
	3, qr/^UNKNOWN - "1 OR true" is not a number$/,
	'a bad limit');
check_is(['-x'], 3, qr/^UNKNOWN - usage: /, 'a bad option');

done_testing();
