# Copyright (c) 2026, LazyDrop developers

=pod

=head1 NAME

LazyDropPair - a primary and a standby that a test treats alike

=head1 DESCRIPTION

What is dropped on a primary is dropped on its standby by replay; so tests do something
on the one, and look at both.  A test has one pair, which start_pair makes; the other
functions are about it.

=cut

package LazyDropPair;

use strict;
use warnings FATAL => 'all';

use Carp;
use Exporter 'import';
use LazyDropUtils
  qw(start_quiet_pair stats hold_at wait_for_wait wait_until orphaned_files evict);
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

our @EXPORT_OK = qw(start_pair on_primary catch_up restart_with checkpoints
  all_stats changed have_changed
  hold_workers workers_are_at release_workers
  keep_rows kept_rows is_intact storm);

my ($primary, $standby);

=pod

=over

=item start_pair(%settings)

Start both, as start_quiet_pair does.  Returns them.

=cut

sub start_pair
{
	my (%settings) = @_;
	croak 'there is a pair' if defined $primary;
	($primary, $standby) = start_quiet_pair(%settings);
	return ($primary, $standby);
}

=pod

=item on_primary(@sql)

Run each in a transaction of its own, in the database "postgres".

=cut

sub on_primary
{
	$primary->safe_psql('postgres', $_) foreach @_;
	return;
}

=pod

=item catch_up()

Wait until the standby has replayed what the primary has done.

=cut

sub catch_up
{
	$primary->wait_for_replay_catchup($standby);
	return;
}

=pod

=item restart_with($settings, $mode)

Append to both configurations, and restart both; the primary first, as a standby must not
have fewer of some things.

=cut

sub restart_with
{
	my ($settings, $mode) = @_;
	foreach my $node ($primary, $standby)
	{
		$node->append_conf('postgresql.conf', "$settings\n");
		$node->stop($mode);
		$node->start;
		catch_up() if $node == $primary && $mode eq 'fast';
	}
	catch_up();
	return;
}

=pod

=item checkpoints($what)

A checkpoint and a restartpoint must complete.

=cut

sub checkpoints
{
	my ($what) = @_;
	foreach my $node ($primary, $standby)
	{
		my $offset = -s $node->logfile;
		catch_up() if $node == $standby;
		$node->safe_psql('postgres', 'CHECKPOINT');
		like(
			slurp_file($node->logfile, $offset),
			qr/(checkpoint|restartpoint) complete/,
			"$what: a checkpoint completes on " . $node->name);
	}
	return;
}

=pod

=item all_stats()

The counters of both, for changed and have_changed.

=item changed($before, $node, $counter)

By how much a counter has changed since.

=item have_changed($before, $changes, $what)

Counters must have changed so, on both: a hash of the counters' names.

=cut

sub all_stats
{
	return { map { $_->name => stats($_) } $primary, $standby };
}

sub changed
{
	my ($before, $node, $counter) = @_;
	return stats($node)->{$counter} - $before->{ $node->name }{$counter};
}

sub have_changed
{
	my ($before, $changes, $what) = @_;
	foreach my $node ($primary, $standby)
	{
		my $after = stats($node);
		my %got = map { $_ => $after->{$_} - $before->{ $node->name }{$_} }
		  keys %$changes;
		is_deeply(\%got, $changes, "$what: the counters of " . $node->name)
		  or diag explain \%got;
	}
	return;
}

=pod

=item hold_workers($point [, $drop])

From now on both workers wait at an injection point.  With a function that drops
something, call it, and wait until they do.

=item workers_are_at($point)

Wait until both wait there.

=item release_workers($point)

Let them go on, and wait until nothing is pending.  A worker that has nothing to do has
not come to the point, so it is told to go on only when it waits.

=cut

sub hold_workers
{
	my ($point, $drop) = @_;
	hold_at($_, $point) foreach $primary, $standby;
	return if !defined $drop;
	$drop->();
	workers_are_at($point);
	return;
}

sub workers_are_at
{
	my ($point) = @_;
	catch_up();
	wait_for_wait($_, $point, 'lazy drop worker') foreach $primary, $standby;
	return;
}

sub release_workers
{
	my ($point) = @_;
	catch_up();
	foreach my $node ($primary, $standby)
	{
		$node->safe_psql('postgres',
			"SELECT injection_points_detach('$point')");
		wait_until(
			sub {
				$node->safe_psql('postgres',
					"SELECT injection_points_wakeup(wait_event) FROM pg_stat_activity WHERE wait_event = '$point'"
				);
				my $stats = stats($node);
				return $stats->{pending_relations} +
				  $stats->{pending_databases} == 0;
			}) or croak 'something stays pending on ' . $node->name;
	}
	return;
}

=pod

=item keep_rows($n)

Insert so many rows, which must stay, into the table "kept", which is created.

=item kept_rows()

How many there must be.

=item is_intact($what [, $orphans])

Checkpoints complete, the rows are there, when they are read from the disk, and, with
$orphans, no file is left that belongs to nothing.

=cut

my $rows;

sub keep_rows
{
	my ($n) = @_;
	if (!defined $rows)
	{
		on_primary('CREATE EXTENSION pg_buffercache',
			'CREATE TABLE kept (a int)');
		$rows = 0;
	}
	on_primary("INSERT INTO kept SELECT generate_series(1, $n)");
	$rows += $n;
	return;
}

sub kept_rows
{
	return $rows;
}

sub is_intact
{
	my ($what, $orphans) = @_;
	checkpoints($what);
	foreach my $node ($primary, $standby)
	{
		evict($node, 'postgres', 'kept');
		is($node->safe_psql('postgres', 'SELECT count(*) FROM kept'),
			$rows, "$what: rows that were kept on " . $node->name);
		is_deeply([ orphaned_files($node) ],
			[], "$what: no file is left on " . $node->name)
		  if $orphans;
	}
	return;
}

=pod

=item storm($clients, $n, $what)

Sessions that create, fill and drop a table each, so many times, and keep a row.

=cut

my $script;

sub storm
{
	my ($clients, $n, $what) = @_;
	if (!defined $script)
	{
		$script = PostgreSQL::Test::Utils::tempdir() . '/storm.sql';
		append_to_file(
			$script, q{
			CREATE TABLE s:client_id AS SELECT generate_series(1, 100) AS a;
			INSERT INTO kept VALUES (0);
			DROP TABLE s:client_id;
		});
	}
	$primary->command_ok(
		[
			'pgbench', '--no-vacuum',
			'--client' => $clients,
			'--jobs' => 2,
			'--transactions' => $n,
			'--file' => $script,
			'postgres'
		],
		"$what: sessions go on");
	$rows += $clients * $n;
	catch_up();
	pass("$what: replay goes on");
	return;
}

=pod

=back

=cut

1;
