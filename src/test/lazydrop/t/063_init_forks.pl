# Copyright (c) 2026, LazyDrop developers

# With wal_level = minimal, the init fork of a copy of an unlogged relation must survive a
# crash.  CREATE DATABASE with STRATEGY wal_log leaves its pages only in shared buffers.
# ALTER INDEX SET TABLESPACE writes them, but does not sync them before a checkpoint.
#
# See doc/upstream/init-forks.md.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/..";
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use StockFault qw(check_fault new_node configure);
use Test::More;

sub start_node
{
	my $node = new_node('node');
	$node->init;
	configure(
		$node,
		'allow_in_place_tablespaces' => 'on',
		'autovacuum' => 'off',
		'bgwriter_lru_maxpages' => 0,
		'checkpoint_timeout' => '1h',
		'max_wal_senders' => 0,
		'wal_level' => 'minimal');
	$node->start;
	return $node;
}

# Returns the errors of inserting into the tables of a database.
sub try_tables
{
	my ($node, $database, @tables) = @_;
	my @wrong;
	foreach my $table (@tables)
	{
		my ($ret, $out, $err) =
		  $node->psql($database, "INSERT INTO $table VALUES (1)");
		push @wrong, $err if $ret != 0;
	}
	return join('; ', @wrong);
}

sub create_database
{
	my $node = start_node();
	$node->safe_psql('postgres', 'CREATE DATABASE origin');
	$node->safe_psql(
		'origin', q{
		CREATE UNLOGGED TABLE t (a int);
		CREATE INDEX t_a ON t (a);
		CREATE UNLOGGED TABLE u (a int);
		CREATE INDEX u_a ON u USING hash (a);
		CREATE UNLOGGED SEQUENCE s START 42;
		SELECT nextval('s');});
	$node->safe_psql('postgres',
		'CREATE DATABASE d TEMPLATE origin STRATEGY wal_log');
	$node->stop('immediate');
	$node->start;
	my $wrong = try_tables($node, 'd', qw(t u));
	return $wrong if $wrong ne '';
	my ($ret, $out, $err) = $node->psql('d', q{SELECT nextval('s')});
	return $err if $ret != 0;
	return $out eq '42' ? '' : "the sequence is at $out";
}

check_fault('CREATE DATABASE by WAL', \&create_database);

# Data that was not synced is lost.
sub set_tablespace
{
	my $node = start_node();
	$node->safe_psql('postgres', q{CREATE TABLESPACE ts LOCATION ''});
	$node->safe_psql(
		'postgres', q{
		CREATE UNLOGGED TABLE t (a int);
		CREATE INDEX t_a ON t (a);
		CHECKPOINT;
		ALTER INDEX t_a SET TABLESPACE ts;});
	my $path = $node->data_dir . '/'
	  . $node->safe_psql('postgres', q{SELECT pg_relation_filepath('t_a')});
	$node->stop('immediate');
	truncate("${path}_init", 0) or die $!;
	$node->start;
	return try_tables($node, 'postgres', 't');
}

check_fault('ALTER INDEX SET TABLESPACE', \&set_tablespace);

done_testing();
