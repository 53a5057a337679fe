
# Copyright (c) 2026, LazyDrop developers

# Source: operators' reports of standbys that stand still while they replay DROP TABLE of
# a table of many gigabytes; truncating a segment of 1 GB takes 0.2 to 0.3 s.
#
# Asks: how long is the session held that drops a table of 8 GB, how long the startup
# process that replays it, and when is the space given back?
#
# Expected: stock truncates and unlinks the files there and then, 1.5 to 2.5 s; the fork
# holds either for at most 10 ms.

use strict;
use warnings FATAL => 'all';

use LazyDropBench;
use LazyDropUtils qw(hold_replay);
use Time::HiRes   qw(time);

scenario 'large-file' => (
	seconds => 45,
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
		wait_for_no_file("$path.1");
		record('space free after', 's', time - $began);

		# The servers must not remove their files at the same time.
		$began = time;
		record('replay held', 's',
			time_resumed_replay($standby, $primary->lsn('flush')));
		wait_for_no_file("$copy.1");
		record('space free on the standby after', 's', time - $began);
		discard($standby, $primary);
	});
