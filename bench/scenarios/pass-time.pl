
# Copyright (c) 2026, LazyDrop developers

# Asks: what does a pass of the worker cost, with 1,000 entries pending, against stock's own
# scan of the headers?  Stock's is the time of a DROP TABLE with much shared_buffers, less
# that with little; the pass tells its time itself.
#
# Expected: at most 1.3 times as much, because both wait for memory.

use strict;
use warnings FATAL => 'all';

use LazyDropBench;
use LazyDropUtils qw(stats wait_for_stats);
use PostgreSQL::Test::Utils;
use Time::HiRes qw(time);

# Have everything settled that waits, and let drops gather again afterwards.
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
			'lazydrop.pass_delay' => '1min');
		my $tables = n(1000);
		$node->safe_psql('postgres',
			join('', map { "CREATE TABLE d$_ (a int);\n" } 1 .. $tables));

		# The worker's first pass ever maps the memory of the headers.
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
