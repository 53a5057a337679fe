# Copyright (c) 2026, LazyDrop developers

# Torture test.  Sessions run random DDL and DML, and each has a model of the expected
# contents.  Meanwhile servers are checkpointed, restarted and killed, in whole or in
# part, standbys are built from backups and promoted, and the old primary is rewound.  At
# the end, the models, the primary and two standbys must agree, and no file of a dropped
# relation may be left.
#
# A run is a series of rounds.  Each round is a new installation and has a seed, from
# which its settings and the operations of its sessions are drawn.
#
#   LAZYDROP_TORTURE_SECONDS  duration of the run (default 80)
#   LAZYDROP_TEST_SEED        seed of the first round; the second has the next number
#
# The time decides which operation a fault hits.  A seed therefore reproduces the
# settings, and the operations until the first fault, but not always a failure.
#
# The test avoids situations that stock PostgreSQL does not survive:
#
# * A base backup cannot be recovered if, while it was taken, a database was copied by
#   file copy, or moved, and its source was then dropped.  The same is true if pg_rewind
#   must replay such operations (doc/upstream/moved-database.md).  Backups and pg_rewind
#   therefore begin with a restartpoint, and sessions do not run these operations
#   meanwhile ("moves" below).
# * pg_rewind requires full_page_writes.
# * REINDEX TABLE CONCURRENTLY omits values of dead rows from the index of the TOAST
#   table.  CLUSTER looks for them when a standby's feedback keeps these rows, and does
#   not find them (doc/upstream/reindex-concurrently-toast.md).
# * When INSERT or UPDATE follows ALTER TABLE SET TABLESPACE in one transaction, a
#   rollback leaves index entries behind (doc/upstream/set-tablespace-rollback.md).
# * A crash in the middle of a drop leaves the files if a checkpoint began and ended
#   during the drop (doc/upstream/files-left-behind.md).  The test accepts files that are
#   left only if the session was interrupted in the transaction that drops them, and WAL
#   has such a checkpoint.
# * A session that waits for a read which never completes, because the postmaster and the
#   I/O workers are gone, fails an assertion while it exits
#   (doc/upstream/request-queue.md).

use strict;
use warnings FATAL => 'all';

use File::Path ();
use File::Temp ();
use FindBin;
use lib "$FindBin::RealBin/..";
use JSON::PP;
use LazyDropModel   qw(chance draw read_file write_file);
use LazyDropTorture qw(differences set_up_sql dump_database);
use LazyDropFiles qw(hidden_files);
use LazyDropUtils
  qw(can_mount need_test_extra wait_for_nothing wait_for_stats wait_until);
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use POSIX ();
use Test::More;
use Time::HiRes       qw(usleep time);
use TortureFaults     qw(possible_faults inflict count_faults);
use TortureOperations qw(run_session run_reader);
use TortureServers
  qw(%round draw_settings mount_disk remove_node ensure_up nodes standbys catch_up let_go
  tell_servers make_standby check_log);

my $can_mount;

BEGIN
{
	need_test_extra();
	plan skip_all => 'needs /proc' if !-r '/proc/self/stat';
	$can_mount = can_mount();
}

my $length = $ENV{LAZYDROP_TORTURE_SECONDS} || 80;
my $seed = $ENV{LAZYDROP_TEST_SEED} || int(rand(1_000_000_000));
my $began = time();

# --- verification -----------------------------------------------------------

# Returns the contents of all tables of all databases.
sub dump_all
{
	my ($node) = @_;
	my %dump;
	foreach my $db (
		split /\n/,
		$node->safe_psql(
			'postgres',
			'SELECT datname FROM pg_database WHERE datallowconn AND datconnlimit <> -2 ORDER BY 1'
		))
	{
		$dump{$db} = dump_database($node, $db);
	}
	return \%dump;
}

# Returns the paths of all relations, without the suffixes of forks and segments.
sub live_paths
{
	my %live;
	foreach my $db (
		split /\n/,
		$round{primary}->safe_psql(
			'postgres', 'SELECT datname FROM pg_database WHERE datallowconn'))
	{
		$live{$_} = 1
		  foreach split /\n/,
		  $round{primary}->safe_psql($db,
			'SELECT pg_relation_filepath(oid) FROM pg_class WHERE pg_relation_filepath(oid) IS NOT NULL'
		  );
	}
	return \%live;
}

# Returns all files of relations on a server: path without suffixes => list of [name,
# size].
sub files_of
{
	my ($node) = @_;
	my %files;
	my $data = $node->data_dir;
	foreach my $directory (glob("'$data'/base/* '$data'/pg_tblspc/*/*/*"))
	{
		opendir(my $handle, $directory) or next;
		foreach my $name (readdir $handle)
		{
			next unless $name =~ /^(\d+)(_(fsm|vm|init))?(\.\d+)?$/;
			my $path = substr("$directory/$1", length($data) + 1);
			push @{ $files{$path} }, [ $name, -s "$directory/$name" ];
		}
	}
	return \%files;
}

# Returns whether the primary crashed in the middle of the drop of a relation.  This is
# the case if, in WAL, one checkpoint began and ended after the drop's record, and the
# next checkpoint was made by recovery or by a shutdown.
sub crashed_in_drop
{
	my ($path) = @_;
	my $wal = $round{primary}->data_dir . '/pg_wal';
	my %segments;
	foreach my $segment (sort map { /\/([0-9A-F]{24})$/ ? $1 : () }
		glob("'$wal'/*"))
	{
		push @{ $segments{ substr($segment, 0, 8) } }, $segment;
	}
	foreach my $timeline (sort keys %segments)
	{
		my ($dropped, $checkpoint);
		my ($records) = run_command(
			[
				'pg_waldump',
				'--path' => $wal,
				'--rmgr' => 'Transaction',
				'--rmgr' => 'XLOG',
				$segments{$timeline}[0], $segments{$timeline}[-1]
			]);
		foreach my $record (split /\n/, $records)
		{
			if (   $record =~ / COMMIT.* rels:.* \Q$path\E[; ]/
				|| $record =~ / COMMIT.* rels:.* \Q$path\E$/)
			{
				($dropped) = $record =~ / lsn: ([0-9A-F\/]+)/;
			}
			next if !defined $dropped;
			return 1
			  if $checkpoint
			  && $record =~ / (CHECKPOINT_SHUTDOWN|END_OF_RECOVERY)/;
			if (my ($redo) =
				$record =~ / CHECKPOINT_ONLINE redo ([0-9A-F\/]+)/)
			{
				last if $checkpoint;
				$checkpoint = position($redo) > position($dropped);
			}
		}
	}
	return 0;
}

sub position
{
	my ($lsn) = @_;
	my ($high, $low) = split m{/}, $lsn;
	return (hex($high) << 32) + hex($low);
}

# Without a worker, replay removes the files, but leaves the buffers until the set is
# full.
sub wait_for_removal
{
	return wait_for_nothing(nodes())
	  if $round{conf}{max_worker_processes} > 0;
	wait_for_stats($_, q{s->>'pending_files' = '0'}) foreach nodes();
	return;
}

sub verify
{
	my (@results) = @_;
	ensure_up(nodes());

	# Compare the models.
	my (%ops, %dropped, %interrupted, %dropped_dbs);
	foreach my $result (@results)
	{
		$ops{$_} += $result->{ops}{$_} foreach keys %{ $result->{ops} };
		is( join("\n",
				map { "$_->{time}: $_->{what}\nin: $_->{sql}" }
				  @{ $result->{failures} }),
			'',
			"round $round{number}: session $result->{id} has seen what it should"
		);
		next if !$result->{model};
		my $differences = differences($result, $result->{model});
		is_deeply($differences, [],
			"round $round{number}: the model of session $result->{id} at the end"
		);
		$dropped{$_} = 1 foreach @{ $result->{dropped} };
		$interrupted{$_} = 1 foreach @{ $result->{interrupted} };
		$dropped_dbs{$_} = 1 foreach @{ $result->{dropped_dbs} };
	}
	note "round $round{number} operations: "
	  . join(', ', map { "$_ $ops{$_}" } sort keys %ops);
	note "round $round{number} faults: "
	  . join(', ',
		map { "$_ $round{faults}{$_}" } sort keys %{ $round{faults} });
	note "round $round{number} dropped: " . keys(%dropped) . ' relations, ' .
	  keys(%dropped_dbs) . ' databases';

	# Compare the standbys with the primary.
	if ($round{standby})
	{
		catch_up();
		# Queries on the standbys must not be canceled.
		foreach my $node (standbys())
		{
			$node->append_conf('postgresql.conf',
				"max_standby_streaming_delay = -1\n");
			$node->reload;
		}
		my $expected = dump_all($round{primary});
		foreach my $node (standbys())
		{
			is_deeply(dump_all($node), $expected,
					"round $round{number}: "
				  . $node->name
				  . ' has what the primary has');
		}
	}

	# Check that no files are left.
	$round{primary}->safe_psql('postgres', 'CHECKPOINT');
	catch_up() if $round{standby};
	wait_for_removal();
	$round{primary}->safe_psql('postgres', 'CHECKPOINT');
	catch_up() if $round{standby};
	$_->safe_psql('postgres', 'CHECKPOINT') foreach standbys();
	wait_for_removal();
	my $live = live_paths();
	my %live_dbs = map { $_ => 1 } split /\n/,
	  $round{primary}->safe_psql('postgres', 'SELECT oid FROM pg_database');

	foreach my $node (nodes())
	{
		my $files = files_of($node);
		my @left;
		foreach my $path (sort grep { !$live->{$_} } keys %dropped)
		{
			foreach my $file (@{ $files->{$path} // [] })
			{
				# A crash after a checkpoint's record, but before the checkpoint unlinks
				# files, leaves the empty first segment, in stock PostgreSQL as well.
				next
				  if $round{crashes}
				  && $file->[1] == 0
				  && $file->[0] =~ /^\d+$/;
				next
				  if $round{crashes}
				  && $interrupted{$path}
				  && crashed_in_drop($path);
				push @left, "$path: $file->[0], $file->[1] bytes";
			}
		}
		is( join("\n", @left),
			'',
			"round $round{number}: no file of what was dropped is left on "
			  . $node->name);
		my $data = $node->data_dir;
		my $hidden = sub {
			return (hidden_files($node), glob("'$data'/base/0/*"));
		};
		wait_until(sub { !$hidden->() });
		is( join(' ', $hidden->()),
			'',
			"round $round{number}: no hidden file is left on " . $node->name);
		is( join(' ',
				grep { -d }
				map  { ("$data/base/$_", glob("'$data'/pg_tblspc/*/*/$_")) }
				grep { !$live_dbs{$_} } sort keys %dropped_dbs),
			'',
			"round $round{number}: nor a directory of a database on "
			  . $node->name);
	}

	# Run tools that check the whole database cluster.
	foreach my $node ($round{primary}, $round{standby} // ())
	{
		$node->command_ok(
			[
				'pg_amcheck', '--all', '--heapallindexed',
				($node == $round{primary} ? '--install-missing' : ())
			],
			"round $round{number}: pg_amcheck of " . $node->name);
		catch_up() if $round{standby};
	}
	foreach my $node (reverse nodes())
	{
		$node->stop;
		check_log($node);
		my ($checksums) =
		  run_command([ 'pg_controldata', '--pgdata' => $node->data_dir ]);
		next if $checksums !~ /checksum version: +1/;
		command_ok(
			[ 'pg_checksums', '--check', '--pgdata' => $node->data_dir ],
			"round $round{number}: pg_checksums of " . $node->name);
	}
	return \%ops;
}

# --- a round ----------------------------------------------------------------

sub run_round
{
	my ($number, $load) = @_;
	srand($seed + $number);
	my ($conf, $initdb, $replicated) = draw_settings();
	note "round $number: LAZYDROP_TEST_SEED="
	  . ($seed + $number)
	  . " LAZYDROP_TORTURE_SECONDS=$load, initdb @$initdb, "
	  . join(', ', map { "$_ = $conf->{$_}" } sort keys %$conf);

	my $dir = PostgreSQL::Test::Utils::tempdir("torture");
	%round = (
		number => $number,
		dir => $dir,
		conf => $conf,
		disks => {},
		gates => {},
		faults => {},
		crashes => 0,
		copies => 0);
	write_file("$dir/epoch", 0);
	my $primary = $round{primary} =
	  PostgreSQL::Test::Cluster->new("node${number}_0");
	$primary->init(
		allows_streaming => $replicated ? 1 : 0,
		extra => $initdb);
	$primary->append_conf('postgresql.conf',
		join('', map { "$_ = '$conf->{$_}'\n" } sort keys %$conf));

	$round{small_disks} = $can_mount && chance(0.4);
	note "round $number: databases are on file systems of their own"
	  if $round{small_disks};
	mount_disk($primary);

	# Files cannot be renamed to temporary files on another file system.
	my $elsewhere;
	if (chance(0.3) && -w '/dev/shm')
	{
		$elsewhere = File::Temp->newdir(DIR => '/dev/shm');
		symlink("$elsewhere", $primary->data_dir . '/base/pgsql_tmp')
		  or die "could not make a symbolic link: $!";
		note "round $number: pgsql_tmp is in $elsewhere";
	}
	$primary->start;
	my @tablespaces = map { "torture$_" } (1, 2);

	foreach my $db ('template1', 'postgres')
	{
		$primary->safe_psql($db, set_up_sql());
	}
	$primary->safe_psql('postgres',
		'CREATE EXTENSION pg_buffercache; CREATE EXTENSION pg_lazydrop');
	$primary->safe_psql('postgres', "CREATE TABLESPACE $_ LOCATION ''")
	  foreach @tablespaces;
	if ($replicated)
	{
		$primary->backup('backup',
			backup_options => [ '--checkpoint' => 'fast', '--no-sync' ]);
		$round{standby} = make_standby($primary, 'backup', $primary);
		$round{cascade} = make_standby($primary, 'backup', $round{standby});
		File::Path::rmtree($primary->backup_dir . '/backup');
	}
	tell_servers();

	# A small buffer pool allows only few pins, so use few sessions.
	my $sessions = { '128kB' => 2, '1MB' => 3 }->{ $conf->{shared_buffers} }
	  // 4;
	my %common = (
		dir => $dir,
		tablespaces => \@tablespaces,
		large => draw(2000, 5000, 20000),
		small_disks => $round{small_disks} ? 1 : 0,
		servers => [ 'primary', $replicated ? ('standby', 'cascade') : () ]);
	my @pids;
	foreach my $id (1 .. $sessions + 1)
	{
		my $pid = fork() // die "could not fork: $!";
		if ($pid == 0)
		{
			my %args =
			  (%common, id => $id, seed => 1000 * ($seed + $number) + $id);
			eval {
				$id <= $sessions ? run_session(%args) : run_reader(%args);
			};
			# Exit without running the test's END blocks.
			POSIX::_exit($@ ? 1 : 0);
		}
		push @pids, $pid;
	}

	my @faults = possible_faults();
	my $until = time() + $load;
	my $broken;
	eval {
		while (time() < $until && !-e "$dir/failed")
		{
			usleep(int(rand(chance(0.2) ? 6_000_000 : 2_000_000)));
			inflict(draw(@faults));
		}
		1;
	} or $broken = $@;
	write_file("$dir/stop", '');
	let_go($_) foreach keys %{ $round{gates} };
	# If a server does not come back, nothing can be verified.
	kill('KILL', @pids) if $broken;
	waitpid($_, 0) foreach @pids;
	die $broken if $broken;
	my @results = map { decode_json(read_file($_)) }
	  sort grep { -e } map { "$dir/session.$_" } 1 .. $sessions + 1;
	is( scalar(@results),
		$sessions + 1,
		"round $number: all sessions have come to their end");
	return verify(@results);
}

my %total;
for (my $number = 0; $number == 0 || time() - $began < $length; $number++)
{
	my $left = $length - (time() - $began);
	srand($seed + $number);
	my $load = 20 + int(rand(40));
	$load = int($left) if $load > $left;
	my $ops = eval { run_round($number, $load) };
	if (!$ops)
	{
		fail("round $number: $@");
		last;
	}
	$total{$_} += $ops->{$_} foreach keys %$ops;
	$total{faults} += count_faults();
	$total{rounds}++;
	last if !Test::More->builder->is_passing;
	remove_node($_) foreach nodes();
}
note "$total{rounds} rounds, $total{all} operations, $total{faults} faults";

done_testing();
