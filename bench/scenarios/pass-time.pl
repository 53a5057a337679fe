
# Copyright (c) 2026, LazyDrop developers

# Asks: how long does a pass of the worker take with 1,000 entries pending, compared with
# stock's own scan of the headers?  Stock's scan is the time of a DROP TABLE with a large
# shared_buffers minus the time with a small one; the pass reports its own time.
#
# Expected: at most 1.3 times as long, because both wait for memory.

use strict;
use warnings FATAL => 'all';

use LazyDropBench;
use LazyDropUtils qw(stats wait_for_stats);
use PostgreSQL::Test::Utils;
use Time::HiRes qw(time);

# Settle all pending entries, and then let the worker wait for more drops again.
sub settle
{
	my ($node) = @_;
	foreach my $delay ('0', '1min')
	{
		$node->safe_psql('postgres',
			"ALTER SYSTEM SET lazydrop.pass_delay = '$delay'");
		$node->reload;
		$node->poll_query_until('postgres',
			"SELECT current_setting('lazydrop.pass_delay') = '$delay'")
		  or die "the setting was not reloaded\n";
		wait_for_stats($node, q{s->>'pending_relations' = '0'});
	}
	return;
}

sub time_of_scan
{
	my ($size) = @_;
	my $node = make_primary(
		'stock',
		shared_buffers => $size,
		synchronous_commit => 'off');
	my $tables = n(200);
	$node->safe_psql('postgres',
		join('', map { "CREATE TABLE d$_ (a int);\n" } 1 .. $tables));
	my $began = time;
	$node->safe_psql('postgres',
		join('', map { "DROP TABLE d$_;\n" } 1 .. $tables));
	my $took = 1000 * (time - $began) / $tables;
	discard($node);
	return $took;
}

scenario 'pass-time' => (
	seconds => 5,
	groups => sub { return cases([qw(stock on)], size => $opt{large}) },
	run => sub {
		my ($case) = @_;
		if ($case->{server} eq 'stock')
		{
			record('looking at all headers',
				'ms', time_of_scan($opt{large}) - time_of_scan('8MB'));
			return;
		}
		my $node = make_primary(
			'on',
			shared_buffers => $opt{large},
			synchronous_commit => 'off',
			'lazydrop.log_passes' => 'on',
			'lazydrop.lookup_limit' => '0',
			'lazydrop.pass_delay' => '1min');
		my $tables = n(1000);
		$node->safe_psql('postgres',
			join('', map { "CREATE TABLE d$_ (a int);\n" } 1 .. $tables));

		# The very first pass of the worker maps the memory of the headers.
		$node->safe_psql('postgres', 'CREATE TABLE d (a int)');
		$node->safe_psql('postgres', 'DROP TABLE d');
		settle($node);
		$node->safe_psql('postgres',
			join('', map { "DROP TABLE d$_;\n" } 1 .. $tables));
		die "a pass came too early\n"
		  if stats($node)->{pending_relations} < $tables;
		settle($node);
		my ($took) =
		  slurp_file($node->logfile) =~
		  /pass complete: $tables relations.* in ([\d.]+) ms/
		  or die "no pass for $tables drops was logged\n";
		record('looking at all headers', 'ms', $took);
		discard($node);
	});
