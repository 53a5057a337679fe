# Copyright (c) 2026, LazyDrop developers

# A checkpoint writes the state file of a prepared transaction, and then fails.  Recovery
# begins at the previous checkpoint, for which that transaction is in the future or not
# prepared yet.  Recovery must remove the file, or recover the transaction exactly once,
# and must not lose it.  The same applies to a base backup that contains such a file of a
# later checkpoint.
#
# See doc/upstream/future-transaction.md.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/..";
use PostgreSQL::Test::RecursiveCopy;
use PostgreSQL::Test::Utils;
use StockFault
  qw(check_fault new_node configure start_primary start_standby log_has);
use Test::More;

sub start_with_table
{
	my $node = start_primary(max_prepared_transactions => 10);
	$node->safe_psql('postgres', 'CREATE TABLE t (i int); CHECKPOINT');
	return $node;
}

# Prepare transaction $gid, which inserts $i, after a few other transactions.
sub prepare
{
	my ($node, $gid, $i) = @_;
	$node->safe_psql('postgres', "INSERT INTO t VALUES (0)") foreach 1 .. 3;
	$node->safe_psql('postgres',
		"BEGIN; INSERT INTO t VALUES ($i); PREPARE TRANSACTION '$gid'");
	return;
}

# Returns the path of the state file of transaction $gid.
sub state_file
{
	my ($primary, $gid) = @_;
	return 'pg_twophase/'
	  . $primary->safe_psql('postgres',
		"SELECT lpad(upper(to_hex(transaction::text::int8)), 16, '0') FROM pg_prepared_xacts WHERE gid = '$gid'"
	  );
}

# Returns a description of errors in the prepared transactions of a server.
sub verify
{
	my ($node, @gids) = @_;
	my $is = $node->safe_psql('postgres',
		'SELECT gid FROM pg_prepared_xacts ORDER BY gid');
	return 'prepared transactions: ' . join(' ', split /\n/, $is)
	  if $is ne join("\n", @gids);
	$node->safe_psql('postgres', "COMMIT PREPARED '$_'") foreach @gids;
	my $count =
	  $node->safe_psql('postgres', 'SELECT count(*) FROM t WHERE i > 0');
	return $count == @gids ? '' : "$count rows";
}

# Start a server, and return the error if that fails.
sub start_error
{
	my ($node) = @_;
	return '' if $node->start(fail_ok => 1);
	return log_has($node, qr/TRAP|FATAL/) || 'does not start';
}

# A directory in place of the second state file makes a checkpoint fail after it has
# written the first one.
sub hinder_checkpoint
{
	my ($node, $file) = @_;
	mkdir $node->data_dir . "/$file" or die "could not create $file: $!";
	my ($status) = $node->psql('postgres', 'CHECKPOINT');
	isnt($status, 0, 'a checkpoint fails');
	return;
}

check_fault(
	'crash of a primary',
	sub {
		my $node = start_with_table();
		prepare($node, 'a', 1);
		prepare($node, 'b', 2);
		my @files = map { state_file($node, $_) } qw(a b);
		hinder_checkpoint($node, $files[1]);
		ok(-f $node->data_dir . "/$files[0]", 'and leaves a state file');
		$node->stop('immediate');
		rmdir $node->data_dir . "/$files[1]";
		return start_error($node) || verify($node, 'a', 'b');
	});

check_fault(
	'crash of a standby',
	sub {
		my $primary = start_with_table();
		my $standby = start_standby($primary);

		# The transaction has an older XID, but is prepared later.
		my $session = $primary->background_psql('postgres');
		$session->query_safe('BEGIN; INSERT INTO t VALUES (1)');
		$primary->safe_psql('postgres', 'SELECT txid_current()');
		$primary->safe_psql('postgres', 'CHECKPOINT');
		$primary->wait_for_replay_catchup($standby);
		$standby->safe_psql('postgres', 'CHECKPOINT');
		$session->query_safe("PREPARE TRANSACTION 'a'");
		$session->quit;
		$primary->safe_psql('postgres',
			"BEGIN; SELECT txid_current(); PREPARE TRANSACTION 'b'");
		my @files = map { state_file($primary, $_) } qw(a b);
		$primary->safe_psql('postgres', 'CHECKPOINT');
		$primary->wait_for_replay_catchup($standby);
		hinder_checkpoint($standby, $files[1]);
		ok(-f $standby->data_dir . "/$files[0]", 'and leaves a state file');
		$standby->stop('immediate');
		rmdir $standby->data_dir . "/$files[1]";
		my $error = start_error($standby);
		return $error if $error;
		$standby->promote;
		$primary->safe_psql('postgres', "ROLLBACK PREPARED '$_'")
		  foreach qw(a b);
		my $is = $standby->safe_psql('postgres',
			'SELECT count(*) FROM pg_prepared_xacts');
		return $is == 2 ? '' : "$is prepared transactions";
	});

check_fault(
	'base backup',
	sub {
		my $primary = start_with_table();
		my $session = $primary->background_psql('postgres');
		$session->query_safe('SET client_min_messages = warning');
		$session->query_safe("SELECT pg_backup_start('b', true)");
		prepare($primary, 'a', 1);
		$primary->safe_psql('postgres', 'CHECKPOINT');
		my $to = $primary->backup_dir . '/b';
		PostgreSQL::Test::RecursiveCopy::copypath(
			$primary->data_dir,
			$to,
			'filterfn' => sub {
				my $src = shift;
				return $src !~ /^(postmaster\.(pid|opts)|pg_wal\/.*)$/;
			});
		append_to_file("$to/backup_label",
			$session->query_safe('SELECT labelfile FROM pg_backup_stop()')
			  . "\n");
		$session->quit;

		my $node = new_node('restored');
		$node->init_from_backup($primary, 'b', has_streaming => 1);
		configure($node);
		my $error = start_error($node);
		return $error if $error;
		$primary->wait_for_replay_catchup($node);
		$node->promote;
		return verify($node, 'a');
	});

# Start a server on which a transaction has been prepared since a checkpoint, but has an
# XID from before the checkpoint.
sub start_with_old_transaction
{
	my $node = start_with_table();
	my $session = $node->background_psql('postgres');
	$session->query_safe('BEGIN; INSERT INTO t VALUES (1)');
	$node->safe_psql('postgres', 'SELECT txid_current()');
	$node->safe_psql('postgres', 'CHECKPOINT');
	$session->query_safe("PREPARE TRANSACTION 'a'");
	$session->quit;
	return $node;
}

# Recovery reads this state file first, so a file that could not be written must not
# exist.
if (-c '/dev/full')
{
	check_fault(
		'full disk',
		sub {
			my $node = start_with_old_transaction();
			my $path = $node->data_dir . '/' . state_file($node, 'a');
			symlink('/dev/full', $path) or die "could not create $path: $!";
			$node->psql('postgres', 'CHECKPOINT');
			$node->stop('immediate');

			# This is the file that would be left on a full disk.
			if (-l $path)
			{
				unlink($path);
				append_to_file($path, '');
			}
			return start_error($node) || verify($node, 'a');
		});
}
else
{
	note 'there is no device that is full';
}

# If the file cannot be removed, the transaction must not be lost.  Stock does not have to
# remove it.  To simulate a checkpoint that fails before its end, restore the old
# pg_control.
check_fault(
	'directory that cannot be written to',
	sub {
		my $node = start_with_old_transaction();
		my $directory = $node->data_dir . '/pg_twophase';
		my $control = $node->data_dir . '/global/pg_control';
		my $before = slurp_file($control);
		$node->safe_psql('postgres', 'CHECKPOINT');
		$node->stop('immediate');
		open(my $handle, '+<:raw', $control) or die $!;
		print $handle $before;
		close($handle) or die $!;
		chmod(0500, $directory) or die "could not chmod: $!";
		my $error = start_error($node);
		chmod(0700, $directory) or die "could not chmod: $!";
		return $error || verify($node, 'a');
	},
	fork_only => 1) if !$windows_os;

done_testing();
