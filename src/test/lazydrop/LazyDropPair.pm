# Copyright (c) 2026, LazyDrop developers

=pod

=head1 NAME

LazyDropPair - a primary and a standby that a test treats in the same way

=head1 DESCRIPTION

Replay repeats the drops of a primary on its standby.  Tests therefore run commands on the
primary and check both servers.  A test has one pair, which start_pair() creates; the
other functions work on it.

=cut

package LazyDropPair;

use strict;
use warnings FATAL => 'all';

use Carp;
use Exporter 'import';
use LazyDropFiles qw(orphaned_files);
use LazyDropUtils qw(start_quiet_pair stats hold_at wait_until evict);
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

our @EXPORT_OK = qw(start_pair on_primary catch_up restart_with
  start_binary_upgrade checkpoints
  all_stats changed have_changed
  hold_workers workers_are_at release_workers
  keep_rows kept_rows is_intact storm);

my ($primary, $standby);

=pod

=over

=item start_pair(%settings)

Start both servers with start_quiet_pair().  Returns them.

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

Run each statement in a transaction of its own, in the database "postgres".

=cut

sub on_primary
{
	$primary->safe_psql('postgres', $_) foreach @_;
	return;
}

=pod

=item catch_up()

Wait until the standby has replayed all records of the primary.

=cut

sub catch_up
{
	$primary->wait_for_replay_catchup($standby);
	return;
}

=pod

=item restart_with($settings, $mode)

Append settings to both configurations, and restart both servers.  The primary is first,
because some settings of a standby must not be lower than the primary's.

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

=item start_binary_upgrade($node)

Start a server in binary-upgrade mode, which allows the test to choose OIDs and
relfilenumbers.

=cut

sub start_binary_upgrade
{
	my ($node) = @_;
	system_or_bail(
		'pg_ctl', '--wait',
		'--pgdata' => $node->data_dir,
		'--log' => $node->logfile,
		'--options' => '-b',
		'start');
	$node->_update_pid(1);
	return;
}

=pod

=item checkpoints($what)

Make a checkpoint and a restartpoint, which must complete.

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

Returns the counters of both servers, for changed() and have_changed().

=item changed($before, $node, $counter)

Returns the change of a counter since all_stats().

=item have_changed($before, $changes, $what)

Check the changes of counters on both servers.  They are given as a hash with the names of
the counters.

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

Let both workers wait at an injection point from now on.  If a function is given that
drops something, call it, and wait until both workers wait.

=item workers_are_at($point)

Wait until both workers wait there.

=item release_workers($point)

Release the workers, and wait until nothing is pending.  A worker without work has not
reached the point, so it is woken only if it waits there.

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
	$_->wait_for_event('lazy drop worker', $point) foreach $primary, $standby;
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

Insert a number of rows into the table "kept", which is created if necessary.  These rows
must not be lost.

=item kept_rows()

Returns the number of rows that must be there.

=item is_intact($what [, $orphans])

Check that a checkpoint and a restartpoint complete, that the rows are there when they are
read from disk, and, with $orphans, that there are no orphaned files.

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

Run sessions that repeatedly create, fill and drop a table each, and keep a row each time.

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
