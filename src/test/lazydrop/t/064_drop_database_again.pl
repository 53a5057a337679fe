# Copyright (c) 2026, LazyDrop developers

# If DROP DATABASE is interrupted after it has removed directories, and before the record
# of the removal is flushed, it leaves an invalid database.  When the command is repeated,
# standbys must remove their directories as well, whether or not the primary has any left.
#
# One standby is the server under test.  Another one is stock, which must be able to read
# the record.
#
# See doc/upstream/drop-database-again.md.

use strict;
use warnings FATAL => 'all';

use File::Path qw(rmtree);
use FindBin;
use lib "$FindBin::RealBin/..";
use LazyDropFiles qw(database_directories);
use LazyDropUtils qw(wait_for_nothing reload_with);
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use StockFault
  qw(check_fault new_node start_primary start_standby kind_is begin_removal
  interrupt_removal);
use Test::More;

plan skip_all => 'needs directories that cannot be written to'
  if $windows_os || $> == 0;

sub scenario
{
	my $primary = start_primary(
		'allow_in_place_tablespaces' => 'on',
		'checkpoint_timeout' => '1h',
		'log_min_messages' => 'error',
		'restart_after_crash' => 'on');
	my @standbys = (start_standby($primary));
	push @standbys, start_standby($primary, node => new_node('stock', 1))
	  if $ENV{LAZYDROP_STOCK} && !kind_is('stock');
	# On all servers, the database has no files in the second tablespace.
	$primary->safe_psql('postgres', "CREATE TABLESPACE $_ LOCATION ''")
	  foreach qw(ts unused);

	my @wrong;
	foreach my $how ('terminate', 'crash')
	{
		# The interrupted command is the same as in stock.
		reload_with($primary, 'lazydrop.enabled' => 'off')
		  if kind_is('fork');
		$primary->safe_psql('postgres', 'CREATE DATABASE d');
		$primary->safe_psql('d', 'CREATE TABLE t (a int) TABLESPACE ts');
		my $oid = $primary->safe_psql('postgres',
			q{SELECT oid FROM pg_database WHERE datname = 'd'});
		$primary->wait_for_replay_catchup($_) foreach @standbys;
		my ($base, $path) =
		  map { $primary->data_dir . "/$_" }
		  database_directories($primary, $oid);
		interrupt_removal($primary,
			begin_removal($primary, $path, 'DROP DATABASE d'), $how);
		die "$base is there, or $path is not" if -e $base || !-e $path;
		# Remove the rest, which the interrupted command would have done a moment later.
		rmtree($path) if $how eq 'crash';

		reload_with($primary, 'lazydrop.enabled' => 'on')
		  if kind_is('fork');
		$primary->safe_psql('postgres', 'DROP DATABASE d');
		$primary->wait_for_replay_catchup($_) foreach @standbys;
		if (!kind_is('stock'))
		{
			wait_for_nothing($primary, $standbys[0]);
		}
		foreach my $node ($primary, @standbys)
		{
			my @left = database_directories($node, $oid);
			push @wrong, "$how: @left left on " . $node->name if @left;
		}
	}
	return join('; ', @wrong);
}

check_fault('DROP DATABASE that is repeated', \&scenario);

done_testing();
