# Copyright (c) 2026, LazyDrop developers

# ALTER SEQUENCE replaces the file of a sequence while a cursor has its page pinned.  On a
# standby, the cursor must not delay replay for longer than max_standby_streaming_delay.
# On a primary, the process that waits for the cursor must not consume a whole CPU.
#
# See doc/upstream/pinned-sequence.md.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/..";
use POSIX ();
use PostgreSQL::Test::Utils;
use LazyDropUtils qw(wait_until);
use StockFault    qw(check_fault start_primary start_standby);
use Test::More;
use Time::HiRes qw(time usleep);

plan skip_all => 'needs /proc' if !-r '/proc/self/stat';

# Returns the CPU time of a process in hundredths of a second.
sub cpu_time
{
	my ($pid) = @_;
	my ($rest) = slurp_file("/proc/$pid/stat") =~ /\) (.*)/s;
	my @fields = split / /, $rest;
	return $fields[11] + $fields[12];
}

# Watch a process until $done returns true, or for at most $limit seconds.  Returns the
# result of $done, and the share of a CPU that the process has used.
sub watch
{
	my ($pid, $limit, $done) = @_;
	my ($began, $before) = (time(), cpu_time($pid));
	my $is_done;
	until ($is_done = $done->() or time() > $began + $limit)
	{
		usleep(20_000);
	}
	my $took = time() - $began;
	return $is_done, (cpu_time($pid) - $before) / 100 / $took;
}

sub start_with_sequence
{
	my $node = start_primary();
	$node->safe_psql('postgres', 'CREATE SEQUENCE s');
	return $node;
}

# Open a session with a cursor on the sequence.
sub open_cursor
{
	my ($node) = @_;
	my $session = $node->background_psql('postgres', on_error_stop => 0);
	$session->query_safe('BEGIN; DECLARE c CURSOR FOR SELECT * FROM s');
	$session->query_safe('FETCH c');
	return $session;
}

check_fault(
	'standby',
	sub {
		my $primary = start_with_sequence();
		my $standby =
		  start_standby($primary, max_standby_streaming_delay => '500ms');
		$primary->wait_for_replay_catchup($standby);

		my $session = open_cursor($standby);
		$primary->safe_psql('postgres', 'ALTER SEQUENCE s INCREMENT 2');
		my $lsn =
		  $primary->safe_psql('postgres', 'SELECT pg_current_wal_lsn()');
		my $pid = $standby->safe_psql('postgres',
			"SELECT pid FROM pg_stat_activity WHERE backend_type = 'startup'"
		);
		my ($done, $load) = watch(
			$pid, 3,
			sub {
				return $standby->safe_psql('postgres',
					"SELECT pg_last_wal_replay_lsn() >= '$lsn'") eq 't';
			});
		note sprintf('replay uses %.2f of a CPU', $load);
		return $done ? '' : sprintf('replay waits with %.2f of a CPU', $load);
	});

check_fault(
	'primary',
	sub {
		my $node = start_with_sequence();
		my $session = open_cursor($node);
		my $alter = $node->background_psql('postgres');
		my $pid = $alter->query_safe('SELECT pg_backend_pid()');
		$alter->query_until(qr/start/,
			"\\echo start\nALTER SEQUENCE s INCREMENT 2;\n");
		my $is = 'SELECT seqincrement = 2 FROM pg_sequence';
		wait_until(sub { $node->safe_psql('postgres', $is) eq 't' })
		  or return 'ALTER SEQUENCE does not commit';
		# Stock uses as much as it gets.  On a busy machine, that is as much as another
		# process gets that does nothing else.
		my $other = fork() // die "could not fork: $!";
		if ($other == 0)
		{
			1 while getppid() != 1;
			POSIX::_exit(0);
		}
		my $before = cpu_time($other);
		my (undef, $load) = watch($pid, 1, sub { 0 });
		my $possible = cpu_time($other) - $before;
		kill 'KILL', $other;
		waitpid($other, 0);
		$load *= 100 / $possible if $possible > 0;
		$session->query_safe('COMMIT');
		$alter->query_safe('SELECT 1');
		$_->quit foreach $session, $alter;
		return $load < 0.4
		  ? ''
		  : sprintf('ALTER SEQUENCE uses %.2f of what it can', $load);
	});

done_testing();
