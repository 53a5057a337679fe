# Copyright (c) 2026, LazyDrop developers

=pod

=head1 NAME

LazyDropSteps - what bench/patroni/run does to a cluster under Patroni

=head1 DESCRIPTION

There is one cluster at a time.  Its leader changes in several ways, with stock and with
the fork, and its members are swapped from one to the other.  LazyDropObserver tells what
is seen of it.

=cut

package LazyDropSteps;

use strict;
use warnings FATAL => 'all';

use Exporter 'import';
use JSON::PP;
use LazyDropObserver;
use LazyDropTimeline;
use Time::HiRes qw(time);

our @EXPORT = qw(begin_steps leader_changes swap_all);

my ($cluster, $pending, $quick, $serial);

=pod

=over

=item begin_steps($cluster, pending => $n, quick => $flag)

Begin to work on a cluster.  Before the leader changes, a number of gigabytes is made
pending.  With "quick", there are fewer and smaller steps.

=cut

sub begin_steps
{
	($cluster, my %options) = @_;
	($pending, $quick) = @options{qw(pending quick)};
	$serial = 0;
	return;
}

# --- changes of the leader --------------------------------------------------

# Sparse files of a table that are only there on the standbys, and maybe on the leader, and
# are dropped.  Nothing else is pending then.
sub make_pending
{
	my ($kind, $with_leader) = @_;
	my $table = 'pending' . $serial++;
	my $what = "$pending GB pending";
	my $leader = $cluster->wait_until_whole($what);
	$cluster->sql($leader, "CREATE TABLE $table AS SELECT 1 AS a", must => 1);
	my $path = $cluster->sql($leader, "SELECT pg_relation_filepath('$table')",
		must => 1);
	$cluster->wait_until_whole($what);
	my @where = ($cluster->others($leader), $with_leader ? $leader : ());

	foreach my $name (@where)
	{
		my $file = $cluster->member($name)->{data} . "/$path";
		foreach my $segment (map { "$file.$_" } 1 .. $pending)
		{
			open(my $fh, '>', $segment)
			  or die "could not create \"$segment\": $!\n";
			truncate($fh, 1024**3)
			  or die "could not extend \"$segment\": $!\n";
			close($fh);
		}
	}

	# A pass takes all that is pending when the oldest is old enough.
	if ($kind eq 'fork')
	{
		$cluster->drain($_) foreach @{ $cluster->{names} };
	}
	$cluster->sql($leader, "DROP TABLE $table", must => 1);
	$cluster->wait_until_whole($what);
	return if $kind eq 'stock';
	foreach my $name (@where)
	{
		my $bytes = $cluster->pending_on($name);

		# The worker has begun to remove them, at lazydrop.removal_rate.
		die "too little is pending on $name: $bytes bytes\n"
		  if $bytes < 0.99 * $pending * 1024**3;
	}
	return;
}

# The leader changes.  Returns the old one and the new one.
sub change_leader
{
	my ($kind, $what, $do, $with_leader) = @_;
	make_pending($kind, $with_leader) if $pending && defined $kind;
	my $old = $cluster->wait_until_whole($what);
	wait_for_write($old, $what);
	event($what, "$what: $old leads");
	my $since = time;
	$do->($old);
	my $new = $cluster->wait_for_leader($what, $old);
	wait_for_write($new, $what);
	my $gap = time_without_leader(acknowledged(), $since)
	  // die "$what: the writer has seen no change\n";
	say_line(sprintf '%s: %s leads, after %.2f s without a leader',
		$what, $new, $gap);
	record($kind, $what, 'without a leader', 's', $gap) if defined $kind;
	count_change();
	return ($old, $new);
}

# The others are back.
sub wait_for_members
{
	my ($kind, $what) = @_;
	my $since = last_event();
	$cluster->wait_until_whole($what);
	my $took = time - $since;
	say_line(sprintf '%s: all members are back after %.1f s', $what, $took);
	say_status();
	record($kind, $what, 'all members back', 's', $took) if defined $kind;
	return;
}

sub switch_over
{
	my ($kind, $what, $to, $with_leader) = @_;
	my (undef, $new) = change_leader(
		$kind, $what,
		sub {
			my ($old) = @_;
			$cluster->post($old, 'switchover',
				{ leader => $old, candidate => $to });
		},
		$with_leader);
	die "$what: $new leads, instead of $to\n" if $new ne $to;
	return;
}

# --- members that are lost --------------------------------------------------

# The old leader must have WAL that no other member has, so that it has to be rewound: what
# would send it is stopped before.
sub lose_machine
{
	my ($kind) = @_;
	my $what = 'machine killed';
	my $table = 'only_here' . $serial++;
	my $rewound = 0;
	my ($old) = change_leader(
		$kind, $what,
		sub {
			my ($old) = @_;
			kill 'STOP', split /\n/,
			  $cluster->sql($old, 'SELECT pid FROM pg_stat_replication',
				must => 1);
			$cluster->sql(
				$old, "CREATE TABLE $table AS SELECT 1 AS a",
				must => 1,
				local => 1);
			$cluster->kill_machine($old);
			$rewound = count_rewound($old);
		});
	$cluster->start_member($old);
	wait_for_members($kind, $what);
	$rewound = count_rewound($old) - $rewound;
	foreach my $name (@{ $cluster->{names} })
	{
		die "$what: $name has a table that the new leader never had\n"
		  if $cluster->sql($name, "SELECT to_regclass('$table') IS NOT NULL",
			must => 1) ne 'f';
	}
	die "$what: $old was not rewound\n" if $rewound < 1;
	say_line("$what: $old was rewound");
	return;
}

# How often pg_rewind has succeeded there, in Patroni's log.
sub count_rewound
{
	my ($name) = @_;
	return scalar grep { /pg_rewind exit code=0/ } $cluster->log_of($name);
}

sub reinitialize
{
	my ($kind) = @_;
	my $what = 'reinit';
	my $leader = $cluster->wait_until_whole($what);
	my ($name) = $cluster->others($leader);
	my $mark = $cluster->member($name)->{data} . '/not_reinitialized';
	open(my $fh, '>', $mark) or die "could not create \"$mark\": $!\n";
	close($fh);
	event($what, "$what: $name");
	$cluster->post($name, 'reinitialize', { force => JSON::PP::true });
	$cluster->wait_for("$what: the old data directory is gone",
		sub { !-e $mark });
	wait_for_members($kind, $what);
	return;
}

# --- storms -----------------------------------------------------------------

# Create the objects that a storm drops.  Returns the leader, the prefix of the names of
# the tables, a script that drops, and a description.
sub prepare_storm
{
	my ($what) = @_;
	my ($tables, $databases) = $quick ? (100, 2) : (1000, 10);
	my $prefix = 'storm' . $serial++ . '_';
	my $leader = $cluster->wait_until_whole($what);
	my @create = map { "CREATE DATABASE $prefix$_;\n" } 1 .. $databases;
	push @create,
	  "DO \$\$ BEGIN FOR i IN $_ * 100 + 1 .. $_ * 100 + 100 LOOP "
	  . "EXECUTE format('CREATE TABLE $prefix%s AS SELECT 1 AS a', i); END LOOP; END \$\$;\n"
	  foreach 0 .. $tables / 100 - 1;
	$cluster->psql($leader, [ '-f', write_script('create', @create) ],
		must => 1);
	$cluster->wait_until_whole($what);
	my $script = write_script(
		'drop',
		(map { "DROP DATABASE $prefix$_;\n" } 1 .. $databases),
		(map { "DROP TABLE $prefix$_;\n" } 1 .. $tables));
	return ($leader, $prefix, $script,
		"$tables DROP TABLE, $databases DROP DATABASE");
}

# Many drops at once; the lag is looked at later.
sub storm
{
	my ($kind) = @_;
	my $what = 'storm';
	my ($leader, $prefix, $script, $drops) = prepare_storm($what);
	event($what, "$what: $drops on $leader");
	my $began = time;
	$cluster->psql($leader, [ '-f', $script ], must => 1);
	my $took = time - $began;
	$cluster->wait_until_whole($what);
	record($kind, $what, 'the leader took', 's', $took);
	say_line(sprintf '%s: the leader took %.1f s', $what, $took);
	say_status();
	return [ $kind, $what, $began, time ];
}

# The leader is lost in the middle of one, when half of the tables are dropped.
sub lose_leader_in_storm
{
	my ($kind) = @_;
	my $what = 'leader lost in a storm';
	my ($leader, $prefix, $script) = prepare_storm($what);
	my $count =
	  "SELECT count(*) FROM pg_class WHERE relkind = 'r' AND starts_with(relname, '$prefix')";
	my $half = $cluster->sql($leader, $count, must => 1) / 2;
	my (undef, $new) = change_leader(
		$kind, $what,
		sub {
			my ($old) = @_;
			$cluster->start_psql($old, '-f', $script);
			$cluster->wait_for("$what: half of the tables are dropped",
				sub { ($cluster->sql($old, $count) // $half + 1) <= $half });
			$cluster->kill_postmaster($old);
		});
	wait_for_members($kind, $what);
	$cluster->psql(
		$new,
		[
			'-f',
			write_script(
				'rest',
				"SELECT format('DROP TABLE %I;', relname) FROM pg_class WHERE relkind = 'r' AND starts_with(relname, '$prefix') \\gexec\n",
				"SELECT format('DROP DATABASE %I;', datname) FROM pg_database WHERE starts_with(datname, '$prefix') \\gexec\n"
			)
		],
		must => 1);
	return;
}

sub write_script
{
	my ($name, @lines) = @_;
	my $file = "$cluster->{directory}/$name.sql";
	open(my $fh, '>', $file) or die "could not create \"$file\": $!\n";
	print $fh @lines;
	close($fh) or die "could not write \"$file\": $!\n";
	return $file;
}

=pod

=item leader_changes($kind)

Take all steps in which the leader changes, or members are lost, with stock or the fork.
Returns the time of the storm, for its lag, as an array of kind, name, beginning and end.

=item swap_all($to)

Give one member after the other the other program: first the standbys.

=back

=cut

sub leader_changes
{
	my ($kind) = @_;
	my $windows = storm($kind);
	foreach my $with_leader ((0) x ($quick ? 1 : 3), $pending ? 1 : ())
	{
		# to each of them: always to the next one
		my $leader = $cluster->wait_until_whole('switchover');
		my @names = @{ $cluster->{names} };
		push @names, shift @names while $names[0] ne $leader;
		my $what =
		  $with_leader
		  ? 'switchover with all pending'
		  : "switchover to $names[1]";
		switch_over($kind, $what, $names[1], $with_leader);
		wait_for_members(undef, $what);
	}
	change_leader(
		$kind,
		'postmaster killed',
		sub { $cluster->kill_postmaster($_[0]) });
	wait_for_members($kind, 'postmaster killed');
	lose_leader_in_storm($kind);
	lose_machine($kind);
	reinitialize($kind);
	return $windows;
}

sub swap_all
{
	my ($to) = @_;
	my $leader = $cluster->wait_until_whole('swap to ' . label($to));
	foreach my $name ($cluster->others($leader), $leader)
	{
		my $what = "$name to $to";
		if ($name eq $leader)
		{
			my ($next) = $cluster->others($leader);
			switch_over(undef, "switchover to $next", $next);
			$cluster->wait_until_whole($what);
		}
		event($what, "$name is swapped to " . label($to));
		$cluster->stop_member($name);
		my $stopped = time - last_event();
		$cluster->start_member($name, $to);
		wait_for_members($to, "swap of $name");
		record($to, "swap of $name", 'other program stopped', 's', $stopped);
	}
	say_line('all members run ' . label($to));
	return;
}

1;
