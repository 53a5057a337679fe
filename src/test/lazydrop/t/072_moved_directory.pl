# Copyright (c) 2026, LazyDrop developers

# The server crashes while ALTER DATABASE SET TABLESPACE removes the old directory.
# Standbys must remove their directories as well, including a standby made from a base
# backup that began meanwhile.  With wal_level = minimal, recovery must not remove files
# that have been created in the directory since.
#
# See doc/upstream/moved-directory.md.

use strict;
use warnings FATAL => 'all';

use File::Path qw(rmtree);
use FindBin;
use lib "$FindBin::RealBin/..";
use LazyDropFiles qw(database_directories);
use LazyDropUtils qw(wait_for_nothing);
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use StockFault
  qw(check_fault new_node configure start_primary start_standby kind_is begin_removal
  interrupt_removal finish_removal);
use Test::More;

plan skip_all => 'needs directories that cannot be written to'
  if $windows_os || $> == 0;

# Start to move a database.  Returns the result of begin_removal, the database's OID and
# its directory.
sub begin_move
{
	my ($primary, $database) = @_;
	$primary->safe_psql('postgres', "CREATE DATABASE $database");
	my $oid = $primary->safe_psql('postgres',
		"SELECT oid FROM pg_database WHERE datname = '$database'");
	my $path = $primary->data_dir . "/base/$oid";
	my $removal = begin_removal($primary, $path,
		"ALTER DATABASE $database SET TABLESPACE ts");
	return ($removal, $oid, $path);
}

sub left_behind
{
	my ($oid, @nodes) = @_;
	my @wrong;
	foreach my $node (@nodes)
	{
		my @directories = database_directories($node, $oid);
		push @wrong, "@directories on " . $node->name
		  if @directories != 1 || $directories[0] =~ /^base/;
	}
	return @wrong;
}

sub scenario
{
	my $primary = start_primary(
		'allow_in_place_tablespaces' => 'on',
		'checkpoint_timeout' => '1h',
		'log_min_messages' => 'error',
		'restart_after_crash' => 'on',
		'wal_writer_delay' => '10s');
	my $standby = start_standby($primary);
	$primary->safe_psql('postgres', q{CREATE TABLESPACE ts LOCATION ''});

	my ($removal, $oid, $path) = begin_move($primary, 'd');
	interrupt_removal($primary, $removal, 'crash');

	# Remove the rest, which the interrupted command would have done a moment later.
	rmtree($path);
	$primary->safe_psql('postgres', 'CREATE TABLE after_it (a int)');
	$primary->wait_for_replay_catchup($standby);
	wait_for_nothing($primary, $standby) if !kind_is('stock');
	my @wrong = left_behind($oid, $primary, $standby);

	# Stock writes this record last, so it does not have this case.
	if (!kind_is('stock'))
	{
		($removal, $oid, $path) = begin_move($primary, 'e');
		$primary->backup('later');
		finish_removal($removal);
		rmtree($path);
		my $later = new_node('later');
		$later->init_from_backup($primary, 'later', has_streaming => 1);
		$later->start;
		$primary->wait_for_replay_catchup($later);
		wait_for_nothing($later);
		push @wrong, left_behind($oid, $primary, $later);
	}
	return join('; ', @wrong);
}

sub minimal
{
	my $node = new_node('minimal');
	$node->init;
	configure(
		$node,
		'allow_in_place_tablespaces' => 'on',
		'autovacuum' => 'off',
		'checkpoint_timeout' => '1h',
		'max_wal_senders' => '0',
		'wal_level' => 'minimal',
		'wal_skip_threshold' => '0');
	$node->start;
	$node->safe_psql('postgres', $_)
	  foreach (
		q{CREATE TABLESPACE ts LOCATION ''},
		'CREATE DATABASE d',
		'ALTER DATABASE d SET TABLESPACE ts');
	$node->safe_psql('d',
		'CREATE TABLE t TABLESPACE pg_default AS SELECT generate_series(1, 1000)'
	);
	$node->stop('immediate');
	$node->start;
	my $rows = $node->safe_psql('d', 'SELECT count(*) FROM t');
	return $rows eq '1000' ? '' : "$rows rows of 1000";
}

check_fault('ALTER DATABASE SET TABLESPACE that crashes', \&scenario);
check_fault('a table in the old directory', \&minimal);

done_testing();
