# Copyright (c) 2026, LazyDrop developers

# A standby has replayed a copy of a database's files, and then a change or the removal of
# the source, and crashes.  Replay must not start again at a point before the copy,
# because the source is gone or has changed.  This also applies if another copy was made
# before the primary's checkpoint after the first copy was complete (rule R17).
#
# See doc/upstream/moved-database.md.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/..";
use LazyDropUtils qw(wait_until hold_at release start_quiet_node);
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use StockFault
  qw(check_fault start_primary start_standby can_lease begin_copy end_lease);
use Test::More;

# For each source, the name of its copy, and the commands that are run on the primary.
my %copies = (
	moved => {
		copy => 'moved',
		sql => ['ALTER DATABASE moved SET TABLESPACE other']
	},
	dropped => {
		copy => 'copy1',
		sql => [
			'CREATE DATABASE copy1 TEMPLATE dropped STRATEGY file_copy',
			'DROP DATABASE dropped'
		]
	},
	changed => {
		copy => 'copy2',
		sql => ['CREATE DATABASE copy2 TEMPLATE changed STRATEGY file_copy'],
		sql_there => 'DROP TABLE t'
	});

check_fault(
	'crash after the source of a copy has changed',
	sub {
		my $primary = start_primary(
			allow_in_place_tablespaces => 'on',
			checkpoint_timeout => '1h',
			fsync => 'off');
		$primary->safe_psql('postgres',
			"CREATE TABLESPACE other LOCATION ''");
		my %files;
		foreach my $source (sort keys %copies)
		{
			$primary->safe_psql('postgres', "CREATE DATABASE $source");
			$files{$source} = $primary->safe_psql(
				$source, q{
				CREATE TABLE t AS SELECT generate_series(1, 1000) AS i;
				SELECT pg_relation_filepath('t');
				});
		}

		# Replay begins after the sources have been created.
		my $standby = start_standby($primary);

		foreach my $source (sort keys %copies)
		{
			$primary->safe_psql('postgres', $_)
			  foreach @{ $copies{$source}{sql} };
			$primary->safe_psql($source, $copies{$source}{sql_there})
			  if $copies{$source}{sql_there};
		}
		$primary->wait_for_replay_catchup($standby);

		# The fork may remove them later.
		foreach my $file (values %files)
		{
			wait_until(sub { !-e $standby->data_dir . "/$file" })
			  or die "$file has not been removed";
		}

		$standby->stop('immediate');
		return 'the standby does not start'
		  if !$standby->start(fail_ok => 1);
		$primary->wait_for_replay_catchup($standby);
		my @wrong;
		foreach my $source (sort keys %copies)
		{
			# If psql cannot connect, it does not read the query.
			my (undef, $out, $err) = eval {
				$standby->psql($copies{$source}{copy},
					'SELECT count(*) FROM t');
			};
			push @wrong, "$source: " . ($@ || $out . $err)
			  if $@ || $out ne '1000';
		}
		return join('; ', @wrong);
	});

# Start CREATE DATABASE, which is held when it reaches the first file.
sub begin_file_copy
{
	my ($node, $source, $copy) = @_;
	return begin_copy($node, $source, 'PG_VERSION',
		"CREATE DATABASE $copy TEMPLATE $source STRATEGY file_copy");
}

# The primary runs the fork, which can be held in a checkpoint while it hides files.
my $count = 0;

sub copy_twice
{
	my $primary = start_quiet_node('primary_twice_' . $count++);
	$primary->safe_psql('postgres', $_)
	  foreach (
		'CREATE EXTENSION injection_points',
		'CREATE TABLE dropped ()',
		(map { "CREATE TABLE dropped$_ ()" } 1 .. 10),
		'CREATE DATABASE one',
		'CREATE DATABASE two');
	my $file = $primary->safe_psql(
		'one', q{
		CREATE TABLE t AS SELECT generate_series(1, 1000) AS i;
		SELECT pg_relation_filepath('t');
		});
	my $standby = start_standby($primary);

	my ($one, $pid1, $lease1) = begin_file_copy($primary, 'one', 'copy1');
	my ($two, $pid2, $lease2) = begin_file_copy($primary, 'two', 'copy2');

	# The checkpoint after the first copy has begun when the second copy is made.
	hold_at($primary, 'lazydrop-removal');
	$primary->safe_psql('postgres', 'DROP TABLE dropped');
	$primary->wait_for_event('lazy drop worker', 'lazydrop-removal');
	hold_at($primary, 'lazydrop-checkpoint-step');
	end_lease($lease1);
	$primary->wait_for_event('checkpointer', 'lazydrop-checkpoint-step');
	end_lease($lease2);
	$primary->poll_query_until('postgres',
		"SELECT wait_event ~ '^Checkpoint' FROM pg_stat_activity WHERE pid = $pid2"
	) or die 'the second copy is not made';

	# This checkpoint ends.  The checkpoint after the second copy finds files to hide,
	# too, and is held.
	$primary->safe_psql('postgres', "DROP TABLE dropped$_") foreach 1 .. 10;
	my $query = 'SELECT redo_lsn FROM pg_control_checkpoint()';
	my $redo = $primary->safe_psql('postgres', $query);
	wait_until(
		sub {
			$primary->psql('postgres',
				q{SELECT injection_points_wakeup('lazydrop-checkpoint-step')}
			);
			return $primary->safe_psql('postgres', $query) ne $redo;
		}) or die 'the checkpoint does not end';
	$redo = $primary->safe_psql('postgres', $query);
	$primary->poll_query_until('postgres',
		"SELECT state = 'idle' FROM pg_stat_activity WHERE pid = $pid1")
	  or die 'the first copy does not end';
	$primary->safe_psql('one', 'DROP TABLE t');
	$primary->wait_for_replay_catchup($standby);
	wait_until(sub { !-e $standby->data_dir . "/$file" })
	  or die "$file has not been removed";
	$standby->stop('immediate');
	is($primary->safe_psql('postgres', $query),
		$redo, 'the second checkpoint goes on');
	release($primary, $_)
	  foreach qw(lazydrop-checkpoint-step lazydrop-removal);
	$_->quit foreach $one, $two;

	my $error = '';
	if ($standby->start(fail_ok => 1))
	{
		$primary->wait_for_replay_catchup($standby);
		my ($result, $out, $err) =
		  $standby->psql('copy1', 'SELECT count(*) FROM t');
		$error = "copy1: $out$err" if $out ne '1000';
	}
	else
	{
		$error = 'the standby does not start';
	}
	$primary->stop('immediate');
	return $error;
}

if (($ENV{enable_injection_points} // '') eq 'yes' && can_lease())
{
	check_fault('two copies at a time', \&copy_twice);
}
else
{
	note 'no leases or no injection points, so two copies are left out';
}

done_testing();
