# Copyright (c) 2026, LazyDrop developers

=pod

=head1 NAME

RecycledSessions - the sessions of 041_recycled_numbers.pl

=head1 DESCRIPTION

A session runs procedures of recycled_numbers.sql on the primary in the background, which
report each operation that they have committed.  It is a hash: "name", "database", "ops",
the number of operations, "before", the number of those of earlier rounds, and "process".

=cut

package RecycledSessions;

use strict;
use warnings FATAL => 'all';

use Exporter 'import';
use IPC::Run;
use LazyDropUtils qw(wait_until);
use PostgreSQL::Test::Utils;

our @EXPORT_OK =
  qw(start_sessions start_upgrade_sessions done_by acknowledged errors_of
  wait_for_progress last_noted);

=pod

=over

=item start_sessions($primary, $round, $ops)

Start the sessions of a round, which create, fill and drop tables of two databases.

=item start_upgrade_sessions($primary, $round, $ops, $crashes)

Start sessions that choose numbers in binary-upgrade mode.  A number cannot be given if
one of the crashes until now has left a file with that number.

=cut

# Start a session that runs a script.
sub start_session
{
	my ($primary, $name, $database, $ops, $script) = @_;
	my $base = $PostgreSQL::Test::Utils::tmp_check . "/session_$name";
	unlink map { "$base.$_" } qw(sql out err);
	append_to_file("$base.sql", $script);
	my %session = (
		primary => $primary,
		name => $name,
		database => $database,
		ops => $ops,
		err => "$base.err",);
	$session{before} = done_by(\%session);
	$session{process} = IPC::Run::start(
		[
			$primary->installed_command('psql'),
			'--no-psqlrc', '--quiet', '--tuples-only', '--no-align',
			'--set' => 'ON_ERROR_STOP=1',
			'--dbname' => $primary->connstr($database),
			'--file' => "$base.sql"
		],
		'<' => \'',
		'>' => "$base.out",
		'2>' => "$base.err",
		IPC::Run::timeout(20 * $PostgreSQL::Test::Utils::timeout_default));
	return \%session;
}

sub start_sessions
{
	my ($primary, $round, $ops) = @_;
	return map {
		my ($name, $database, $share) = @$_;
		my $half = int($ops * $share / 2);
		start_session(
			$primary, $name, $database, 2 * $half, qq{
			SELECT setseed(@{[ rand() ]});
			CALL storm('$name', $half, 16, $round);
			SELECT format('VACUUM (%s) %I',
				CASE WHEN random() < 0.5 THEN 'FULL' ELSE 'ANALYZE' END, name)
				FROM model WHERE name ~ '^$name' AND random() < 0.5 \\gexec
			SELECT count(note(name, $round)) FROM model WHERE name ~ '^$name';
			CALL storm('$name', $half, 16, $round);})
	} ([ 'a', 'postgres', 1 ], [ 'b', 'postgres', 1 ],
		[ 'c', 'other', 0.3 ]);
}

sub start_upgrade_sessions
{
	my ($primary, $round, $ops, $crashes) = @_;
	return map {
		my ($name, $base) = @$_;
		my $pool = $base + 1000 + 100 * $crashes;
		start_session(
			$primary, $name,
			'postgres',
			$ops,
			qq{
			SELECT setseed(@{[ rand() ]});
			CALL upgrade_storm('$name', $base, $pool, $ops, 8, $round);}
		)
	} ([ 'u', 700000 ], [ 'v', 800000 ]);
}

=pod

=item done_by($session)

Returns the total number of operations that a session has committed.

=item acknowledged($session)

Returns the number of operations whose commit was reported to the session.

=item errors_of($session)

Returns the messages of a session, except these reports.

=item wait_for_progress($fraction, @sessions)

Wait until a fraction of all operations is done, or one of the sessions has failed.

=cut

sub done_by
{
	my ($session) = @_;
	return $session->{primary}->safe_psql($session->{database},
		"SELECT coalesce((SELECT done FROM progress WHERE session = '$session->{name}'), 0)"
	);
}

sub acknowledged
{
	my ($session) = @_;
	my @done = -e $session->{err}
	  && slurp_file($session->{err}) =~ /NOTICE:  done ([0-9]+)$/mg;
	return @done ? $done[-1] : $session->{before};
}

sub errors_of
{
	my ($session) = @_;
	return slurp_file($session->{err}) =~ s/.*NOTICE:.*\n//gr;
}

sub wait_for_progress
{
	my ($fraction, @sessions) = @_;
	wait_until(
		sub {
			my $done = 0;
			my $ops = 0;
			foreach my $session (@sessions)
			{
				$done += acknowledged($session) - $session->{before};
				$ops  += $session->{ops};
				return 1
				  if -e $session->{err}
				  && slurp_file($session->{err}) =~ /ERROR|FATAL/;
			}
			return $done >= $fraction * $ops;
		}) or die 'sessions do not get on';
	return;
}

=pod

=item last_noted($session, $round, $base)

Returns the position of the counter, which began at "base", when a session last recorded a
number.  Anything that the session was about to create when it was interrupted has a later
number.

=cut

sub last_noted
{
	my ($session, $round, $base) = @_;
	return $session->{primary}->safe_psql(
		$session->{database}, qq{
		SELECT coalesce(max((num::bigint - $base + 4294967296) % 4294967296), 0)
		FROM seen WHERE round = $round AND name ~ '^$session->{name}'});
}

=pod

=back

=cut

1;
