
# Copyright (c) 2026, LazyDrop developers

# Source: operators' reports of standbys that stop while they replay DROP TABLE of a table
# of many gigabytes; the truncation of a segment of 1 GB takes 0.2 to 0.3 s.
#
# Asks: how long does DROP TABLE of 8 GB hold up the session, and how long the startup
# process that replays it?  When is the space available again?  And how long does a clean
# shutdown take that begins right after such a drop, while its files still exist?
#
# Expected: stock truncates and unlinks the files immediately, in 1.5 to 2.5 s; the fork
# holds up either process for at most 10 ms.  Its space is available after at most 1.15
# times stock's time, and the shutdown does not wait for the removal.

use strict;
use warnings FATAL => 'all';

use LazyDropBench;
use LazyDropUtils qw(hold_replay stats);
use Time::HiRes   qw(time);

# Record the time until the space of a file is available again.
sub record_space
{
	my ($file, $began, $what) = @_;
	wait_for_no_file($file);
	record($what, 's', time - $began);
	return;
}

# Shut down right after a drop whose files the worker removes slowly.
sub shutdown_case
{
	my ($node, $gigabytes) = @_;
	$node->safe_psql('postgres',
		"ALTER SYSTEM SET lazydrop.removal_rate = '1MB'");
	$node->reload;
	$node->poll_query_until('postgres',
		q{SELECT current_setting('lazydrop.removal_rate') = '1MB'})
	  or die "the setting was not reloaded\n";
	$node->safe_psql('postgres', 'CREATE TABLE u AS SELECT 1 AS a');
	my $path = table_path($node, 'u');
	add_gigabytes($path, $gigabytes);
	sync_disk();
	$node->safe_psql('postgres', 'DROP TABLE u');
	die "nothing is pending\n" unless stats($node)->{pending_bytes} > 1024**2;
	my $began = time;
	run_program(
		[
			$node->installed_command('pg_ctl'),
			'-D' => $node->data_dir,
			'-m' => 'fast',
			'--no-wait', 'stop'
		],
		'>' => \*STDERR,
		'2>&1') or die "pg_ctl stop failed\n";
	wait_for_end($node);
	record('clean shutdown with its files pending', 's', time - $began);
	die "the shutdown has left a file its name\n" if -e "$path.1";
	return;
}

scenario 'large-file' => (
	seconds => sub { $_[0]{server} eq 'stock' ? 45 : 65 },
	runs => 5,
	disk => 20,
	groups => sub {
		return cases([qw(stock on)], size => '128MB');
	},
	run => sub {
		my ($case) = @_;
		my $gigabytes = 8;
		my $primary =
		  make_primary($case->{server}, shared_buffers => $case->{size});
		my $standby = make_standby($primary, $case->{server});
		$primary->safe_psql('postgres', 'CREATE TABLE t AS SELECT 1 AS a');
		$primary->wait_for_replay_catchup($standby);
		my $path = table_path($primary, 't');
		my $copy = $standby->data_dir . ($path =~ m{(/base/\d+/\d+)$})[0];
		add_gigabytes($_, $gigabytes) foreach ($path, $copy);
		sync_disk();
		hold_replay($standby);

		my $session = $primary->background_psql('postgres');
		$session->query_safe('SELECT 1');
		my $began = time;
		$session->query_safe('DROP TABLE t');
		record('session held', 's', time - $began);
		$session->quit;
		record_space("$path.1", $began, 'space free after');

		# The servers must not remove their files at the same time.
		$began = time;
		record('replay held', 's',
			time_resumed_replay($standby, $primary->lsn('flush')));
		record_space("$copy.1", $began, 'space free on the standby after');

		# Remove the standby, because a shutdown would wait for it.
		discard($standby);
		shutdown_case($primary, $gigabytes) if $case->{server} ne 'stock';
		discard($primary);
	});
