# Copyright (c) 2026, LazyDrop developers

# Passes over the buffer headers.  As long as a pass makes progress, no other process
# takes over its entries; if it stops making progress, another process does (rules R5 and
# R6).  A relation that still has files during a pass needs another pass (R5).  If a
# buffer stays pinned, the worker tries again every five seconds, and no other drop is
# delayed (R7).

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/..";
use LazyDropUtils qw(stats wait_for_stats wait_for_nothing hold_at release
  need_injection_points start_quiet_node stop_with_clean_log);
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(time usleep);

need_injection_points();

# With this size, a pass has eight steps.
my $node = start_quiet_node(
	'node',
	'shared_buffers' => '1GB',
	'lazydrop.lookup_limit' => '0');
$node->safe_psql('postgres', "CREATE EXTENSION $_")
  foreach qw(injection_points pg_buffercache);

# --- a slow pass, and a pass without progress -------------------------------

# Drop a database, let the worker wait at each step of its pass, and start a session that
# waits until it can use the OID again.
sub begin_slow_pass
{
	$node->safe_psql('postgres', 'CREATE DATABASE again OID 90000');
	hold_at($node, 'lazydrop-pass-step');
	my $passes = stats($node)->{passes};
	$node->safe_psql('postgres', 'DROP DATABASE again');
	$node->wait_for_event('lazy drop worker', 'lazydrop-pass-step');
	my $creator = $node->background_psql('postgres');
	$creator->query_until(qr/begun/,
		"\\echo begun\nCREATE DATABASE again OID 90000;\n\\echo done\n");
	return ($creator, $passes);
}

sub end_slow_pass
{
	my ($creator) = @_;
	release($node, 'lazydrop-pass-step');
	$creator->quit;
	wait_for_nothing($node);
	$node->safe_psql('postgres', 'DROP DATABASE again');
	wait_for_nothing($node);
	return;
}

# A creator takes over from a pass that has made no progress for a second.  Therefore take
# a step every third of a second.  Repeat the test if this machine was too slow for that.
my ($longest, $taken_over);
foreach my $try (1 .. 10)
{
	my ($creator, $passes) = begin_slow_pass();
	my $monitor = $node->background_psql('postgres');
	my $began = time();
	my $last = $began;
	$longest = 0;
	foreach my $step (2 .. 7)
	{
		usleep(330_000);
		$monitor->query_safe(
			q{SELECT injection_points_wakeup('lazydrop-pass-step')});
		$node->wait_for_event('lazy drop worker', 'lazydrop-pass-step');
		my $now = time();
		$longest = $now - $last if $longest < $now - $last;
		$last = $now;
	}
	$taken_over = $monitor->query_safe(
		"SELECT (current_setting('lazydrop.stats')::jsonb->>'passes')::int - $passes"
	);
	$monitor->quit;
	end_slow_pass($creator);
	note
	  sprintf('%.1f s, at most %.2f s for a step', $last - $began, $longest);
	last if $longest < 0.9;
}
SKIP:
{
	skip 'this machine is too slow', 1 if $longest >= 0.9;
	is($taken_over, 0, 'a pass that gets on is not taken over');
}

{
	my ($creator, $passes) = begin_slow_pass();
	$creator->query_until(qr/done/, "\n");
	is( stats($node)->{passes},
		$passes + 1,
		'a creator takes over from one that stands still');
	end_slow_pass($creator);
}

# --- a page that is read after a pass ---------------------------------------

# ALTER SEQUENCE takes a lock that does not prevent others from reading the old file.  Use
# sessions that read a sequence, with their caches already filled.
sub begin_reader
{
	my $reader = $node->background_psql('postgres');
	$reader->query_safe(
		q{BEGIN; DECLARE w CURSOR FOR SELECT * FROM s; FETCH w; CLOSE w; COMMIT}
	);
	$reader->query_safe(q{BEGIN; DECLARE c CURSOR FOR SELECT * FROM s});
	return $reader;
}
$node->safe_psql('postgres', 'CREATE SEQUENCE s');

{
	my $number =
	  $node->safe_psql('postgres', q{SELECT pg_relation_filenode('s')});
	my $cached = qq{
		SELECT count(*) FROM pg_buffercache
		WHERE relfilenode = $number AND reldatabase =
			(SELECT oid FROM pg_database WHERE datname = 'postgres')};
	my $reader = begin_reader();
	$node->safe_psql('postgres', 'CREATE DATABASE again OID 90000');
	hold_at($node, 'lazydrop-removal');
	$node->safe_psql('postgres', 'ALTER SEQUENCE s INCREMENT 2');
	$node->wait_for_event('lazy drop worker', 'lazydrop-removal');

	# A creator makes a pass meanwhile.
	$node->safe_psql('postgres', 'DROP DATABASE again');
	$node->safe_psql('postgres', 'CREATE DATABASE again OID 90000');
	is($node->safe_psql('postgres', $cached),
		0, 'a pass has invalidated the page of a sequence');
	is(stats($node)->{pending_relations},
		1, 'whose file is still to be removed');
	$reader->query_safe(q{FETCH c; CLOSE c; COMMIT});
	is($node->safe_psql('postgres', $cached),
		1, 'and which is read once more');
	release($node, 'lazydrop-removal');
	wait_for_nothing($node);
	is($node->safe_psql('postgres', $cached),
		0, 'the page goes when the file is gone');
	$reader->quit;
}

# --- a page that stays pinned -----------------------------------------------

{
	my $reader = begin_reader();
	$reader->query_safe(q{FETCH c});
	my $before = stats($node)->{passes};
	my $passes = sub {
		my ($n) = @_;
		wait_for_stats($node, "(s->>'passes')::int >= @{[ $before + $n ]}");
		return time();
	};
	$node->safe_psql('postgres', 'ALTER SEQUENCE s INCREMENT 3');
	my $first = $passes->(1);
	my $second = $passes->(2);
	cmp_ok($second - $first,
		'>=', 4.5, 'a page that stays pinned is tried again after 5 s');
	is(stats($node)->{pending_relations}, 1, 'and stays pending');

	my $began = time();
	$node->safe_psql('postgres',
		"CREATE TABLE t AS SELECT 1 AS a;\nDROP TABLE t");
	wait_for_stats($node, q{s->>'pending_relations' = '1'});
	cmp_ok(time() - $began, '<', 3.5, 'another drop does not wait for it');
	$reader->query_safe('COMMIT');
	$reader->quit;
	wait_for_nothing($node);
}

# --- number of passes for a drop --------------------------------------------

# The worker, which does not wait for more drops here, wakes up before the dropper has
# finished.
{
	$node->safe_psql('postgres',
		join('', map { "CREATE TABLE t$_ AS SELECT 1 AS a;\n" } 1 .. 20));
	my $before = stats($node)->{passes};
	foreach my $i (1 .. 20)
	{
		$node->safe_psql('postgres', "DROP TABLE t$i");
		wait_for_nothing($node);
	}
	is(stats($node)->{passes}, $before + 20, '20 drops take 20 passes');
}

stop_with_clean_log($node);

done_testing();
