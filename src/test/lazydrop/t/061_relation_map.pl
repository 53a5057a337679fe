# Copyright (c) 2026, LazyDrop developers

# Replay of a change of a relation map whose database no longer has a directory, because
# later WAL removes it.  Replay begins after the record that created the directory in
# three cases: a standby that has replayed the drop crashes before a restartpoint; a base
# backup is taken meanwhile; a server crashes after a failed CREATE DATABASE.
#
# See doc/upstream/relation-map.md.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/..";
use LazyDropFiles qw(database_directories);
use LazyDropUtils qw(wait_for_nothing);
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::RecursiveCopy;
use PostgreSQL::Test::Utils;
use StockFault
  qw(check_fault new_node configure start_primary start_standby kind_is log_has can_lease
  begin_copy end_lease);
use Test::More;

# Start a server, and return the error if that fails.
sub try_start
{
	my ($node, $oid) = @_;
	my $offset = -e $node->logfile ? -s $node->logfile : 0;
	if (!$node->start(fail_ok => 1))
	{
		return log_has($node, qr/FATAL|PANIC/) || 'it does not start';
	}
	$node->poll_query_until('postgres', 'SELECT NOT pg_is_in_recovery()')
	  if !-e $node->data_dir . '/standby.signal';
	return '';
}

# The index of a mapped catalog is written, then a checkpoint begins, and then the map is
# written.
sub drop_after_map
{
	my $primary = start_primary('checkpoint_timeout' => '1h');
	my $standby = start_standby($primary);

	$primary->safe_psql('postgres', 'CREATE DATABASE d');
	my $oid = $primary->safe_psql('postgres',
		q{SELECT oid FROM pg_database WHERE datname = 'd'});
	my $session = $primary->background_psql('d');
	$session->query_safe('BEGIN; REINDEX INDEX pg_class_oid_index');
	my $backup = $primary->background_psql('postgres');
	$backup->query_safe(q{SELECT pg_backup_start('second', true)});
	$primary->wait_for_replay_catchup($standby);
	$standby->safe_psql('postgres', 'CHECKPOINT');
	$session->query_safe('COMMIT');
	$session->quit;
	$primary->safe_psql('postgres', 'DROP DATABASE d');
	wait_for_nothing($primary) if !kind_is('stock');

	my $path = $primary->backup_dir . '/second';
	PostgreSQL::Test::RecursiveCopy::copypath(
		$primary->data_dir,
		$path,
		filterfn => sub {
			$_[0] !~
			  m{^(postmaster\.(pid|opts)|log|pg_wal/.+|pg_replslot/.+)$};
		});
	append_to_file(
		"$path/backup_label",
		$backup->query_safe(
			q{SELECT labelfile FROM pg_backup_stop(wait_for_archive => false)}
		  )
		  . "\n");
	$backup->quit;
	die 'the directory is in the backup' if -e "$path/base/$oid";
	my $copy = new_node('copy');
	$copy->init_from_backup($primary, 'second', has_streaming => 1);

	$primary->wait_for_replay_catchup($standby);
	wait_for_nothing($standby) if !kind_is('stock');
	$standby->stop('immediate');
	my @wrong;
	foreach my $node ($standby, $copy)
	{
		my $wrong = try_start($node);
		if ($wrong eq '')
		{
			$primary->wait_for_replay_catchup($node);
			wait_for_nothing($node) if !kind_is('stock');
			$wrong = "$_ is left" foreach database_directories($node, $oid);
		}
		push @wrong, $node->name . ": $wrong" if $wrong ne '';
	}
	return join("\n", @wrong);
}

check_fault('DROP DATABASE', \&drop_after_map);

# CREATE DATABASE is held when it has created the directory and reaches the map of its
# template, which it copies next.
sub fail_to_create
{
	my $node = new_node('node');
	$node->init;
	configure($node, 'autovacuum' => 'off', 'checkpoint_timeout' => '1h');
	$node->start;
	$node->safe_psql('postgres', 'CREATE DATABASE origin');
	my $origin = $node->safe_psql('postgres',
		q{SELECT oid FROM pg_database WHERE datname = 'origin'});

	my ($session, $pid, $lease) =
	  begin_copy($node, 'origin', 'pg_filenode.map',
		'CREATE DATABASE d TEMPLATE origin STRATEGY wal_log');
	my ($new) = grep { $_ > $origin }
	  map { m{/(\d+)$} ? $1 : 0 } glob($node->data_dir . '/base/*');
	$node->safe_psql('postgres',
		"CHECKPOINT; SELECT pg_cancel_backend($pid)");
	end_lease($lease);
	$session->quit;

	# After this, all of these records have been flushed.
	$node->safe_psql('postgres', 'CREATE TABLE t (a int)');
	die 'CREATE DATABASE did not fail' if database_directories($node, $new);
	$node->stop('immediate');
	my $wrong = try_start($node);
	$wrong = "$_ is left" foreach database_directories($node, $new);
	return $wrong;
}

if (can_lease())
{
	check_fault('CREATE DATABASE that fails', \&fail_to_create);
}
else
{
	note 'there are no leases here, so CREATE DATABASE is left out';
}

done_testing();
