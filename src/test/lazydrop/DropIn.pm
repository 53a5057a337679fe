# Copyright (c) 2026, LazyDrop developers

=pod

=head1 NAME

DropIn - data directories that stock PostgreSQL and the fork both use

=head1 DESCRIPTION

LAZYDROP_STOCK is the directory above bin of an installation of PostgreSQL ("stock") that
was built from the same source as the fork with the same options.  A server is initialized
by stock, and start_as() of LazyDropUtils starts it with either's binaries.  It has objects
that live until the end, and are modified all the time, and objects for every kind of
drop, which are created and dropped again and again.

=cut

package DropIn;

use strict;
use warnings FATAL => 'all';

use Exporter 'import';
use LazyDropFiles qw(orphaned_files contents);
use LazyDropUtils
  qw(stats need_test_extra log_is_clean start_as init_with_checksums);
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

our @EXPORT_OK =
  qw(need_stock start_stock command_of contents_of no_file_is_left create_what_goes
  drop_what_goes clean_up stop_and_check);

my $stock = $ENV{LAZYDROP_STOCK} // '';

=pod

=over

=item need_stock()

Skip the whole test unless tests that take minutes are enabled, and without stock.

=cut

sub need_stock
{
	need_test_extra();
	plan skip_all =>
	  'LAZYDROP_STOCK does not name an installation of PostgreSQL built from the same source'
	  if $stock eq '';
	die "there is no server in \"$stock/bin\""
	  unless -x "$stock/bin/postgres";
	return;
}

=pod

=item start_stock($name)

Returns a primary that stock has initialized and started, with the objects that live.

=cut

# Both have the same configuration.  No checkpoint is made unless the test requests it,
# and the worker does nothing until a process needs it.
my %settings = (
	'allow_in_place_tablespaces' => 'on',
	'autovacuum' => 'off',
	'bgwriter_lru_maxpages' => '0',
	'checkpoint_timeout' => '1h',
	'hot_standby_feedback' => 'on',
	'log_statement' => 'none',
	'max_prepared_transactions' => '5',
	'max_wal_size' => '4GB',
	'shared_buffers' => '32MB',
	'track_functions' => 'all',
	'track_io_timing' => 'on',
	'wal_keep_size' => '2GB',
	'lazydrop.enabled' => 'on',
	'lazydrop.lookup_limit' => '0',
	'lazydrop.max_pending' => '16384',
	'lazydrop.pass_delay' => "'60s'",
	'lazydrop.defer_files' => 'on',
	'lazydrop.removal_rate' => '0',
	'lazydrop.log_passes' => 'on');

sub start_stock
{
	my ($name) = @_;
	my ($modules) =
	  run_command([ "$stock/bin/pg_config", '--pkglibdir' ]);
	my $node = PostgreSQL::Test::Cluster->new($name, install_path => $stock);
	init_with_checksums($node, allows_streaming => 1, force_initdb => 1);
	$node->append_conf('postgresql.conf',
		join('', map { "$_ = $settings{$_}\n" } sort keys %settings));
	$node->append_conf('postgresql.conf',
		"dynamic_library_path = '\$libdir:$modules'");
	start_as($node, 'stock');
	create_what_lives($node);
	return $node;
}

=pod

=item command_of($kind, $command)

Returns a program of stock or of the fork.

=cut

sub command_of
{
	my ($kind, $command) = @_;
	return $kind eq 'stock' ? "$stock/bin/$command" : $command;
}

=pod

=item contents_of($node, @except)

Returns the contents of a server, see contents() of LazyDropUtils.  A prepared transaction
may hold a lock on a table, which is left out.

=item no_file_is_left($node, $what)

Check that there are no orphaned files.  On a primary, the first segments of dropped
relations remain until a checkpoint.

=cut

sub contents_of
{
	my ($node, @except) = @_;
	return contents($node, except => [ 'prepared', @except ]);
}

sub no_file_is_left
{
	my ($node, $what) = @_;
	$node->safe_psql('postgres', 'CHECKPOINT');
	is_deeply([ orphaned_files($node) ], [], "$what: no file is left");
	return;
}

=pod

=item create_what_goes($node)

Create objects for every kind of drop, write them to disk, and then make them dirty.
Returns the paths of relations, and the OID of a database.

=item drop_what_goes($node [, $checkpoint])

Drop them, and prepare a drop.  With the fork, DROP TABLESPACE makes a pass.  Returns the
counters after it.  With "checkpoint", make one in between.

=item clean_up($node)

Commit the prepared drop, and drop what the others have left.

=cut

sub create_what_lives
{
	my ($node) = @_;
	$node->safe_psql(
		'postgres', q{
		CREATE EXTENSION amcheck;
		CREATE TABLESPACE ts LOCATION '';
		CREATE DATABASE d;
		CREATE TABLE live (id int PRIMARY KEY, t text);
		INSERT INTO live SELECT g, md5(g::text) FROM generate_series(1, 3000) AS g;
		CREATE INDEX live_t ON live (t);
		CREATE TABLE wide (id int, t text);
		ALTER TABLE wide ALTER t SET STORAGE external;
		INSERT INTO wide SELECT g, repeat(md5(g::text), 200) FROM generate_series(1, 50) AS g;
		CREATE TABLE p (id int, t text) PARTITION BY RANGE (id);
		CREATE TABLE p0 PARTITION OF p FOR VALUES FROM (0) TO (1000) TABLESPACE ts;
		INSERT INTO p SELECT g, md5(g::text) FROM generate_series(0, 999) AS g;
		CREATE MATERIALIZED VIEW mv AS SELECT * FROM live WHERE id < 1000;
		CREATE UNLOGGED TABLE u AS SELECT generate_series(1, 1000) AS a;
		CREATE FUNCTION f() RETURNS int LANGUAGE plpgsql AS 'BEGIN RETURN 1; END';
		SELECT f();});
	$node->safe_psql('d',
		'CREATE TABLE live AS SELECT generate_series(1, 1000) AS a');
	return;
}

sub create_what_goes
{
	my ($node) = @_;
	my @tables = qw(gone gone_ts cut part shrunk prepared in_space);
	$node->safe_psql(
		'postgres', q{
		CREATE TABLE gone (id int PRIMARY KEY, t text);
		CREATE TABLE gone_ts (id int, t text) TABLESPACE ts;
		CREATE TABLE cut (id int, t text);
		CREATE TABLE part PARTITION OF p FOR VALUES FROM (1000) TO (10000);
		CREATE TABLE shrunk (id int, t text);
		CREATE TABLE prepared (id int, t text);
		CREATE TABLESPACE gone_space LOCATION '';
		CREATE TABLE in_space (id int, t text) TABLESPACE gone_space;
		CREATE DATABASE gone_db TABLESPACE ts STRATEGY file_copy;});
	my $fill = join '', map {
		"INSERT INTO $_ SELECT g, md5(g::text) FROM generate_series(1000, 2999) AS g;\n"
	} grep { $_ ne 'gone' } @tables;
	$node->safe_psql(
		'postgres', qq{
		INSERT INTO gone SELECT g, md5(g::text) FROM generate_series(1, 2000) AS g;
		$fill
		VACUUM;
		CHECKPOINT;
		INSERT INTO gone SELECT g, md5(g::text) FROM generate_series(2001, 4000) AS g;
		$fill});
	$node->safe_psql('gone_db',
		'CREATE TABLE t TABLESPACE pg_default AS SELECT generate_series(1, 1000) AS a'
	);
	my @paths = split /\n/, $node->safe_psql(
		'postgres', q{
		SELECT pg_relation_filepath(r) FROM unnest('{gone, gone_pkey, gone_ts, cut, part,
			in_space, live_t, wide, mv}'::regclass[]) AS r});
	my $oid = $node->safe_psql('postgres',
		q{SELECT oid FROM pg_database WHERE datname = 'gone_db'});
	return (\@paths, $oid);
}

sub drop_what_goes
{
	my ($node, $checkpoint) = @_;
	$node->safe_psql(
		'postgres', q{
		DROP TABLE in_space;
		DROP TABLESPACE gone_space});
	my $stats = $node->install_path ? undef : stats($node);
	$node->safe_psql(
		'postgres', q{
		DROP TABLE gone;
		ALTER TABLE p DETACH PARTITION part;
		DROP TABLE part;
		} . ($checkpoint ? 'CHECKPOINT;' : '') . q{
		UPDATE live SET t = md5(t) WHERE id % 7 = 0;
		DROP TABLE gone_ts;
		TRUNCATE cut;
		INSERT INTO cut VALUES (1, 'one');
		REINDEX INDEX live_t;
		VACUUM FULL wide;
		REFRESH MATERIALIZED VIEW mv;
		DELETE FROM shrunk WHERE id > 1000;
		VACUUM shrunk;
		BEGIN;
		CREATE TABLE never AS SELECT generate_series(1, 1000) AS a;
		DROP TABLE shrunk;
		ROLLBACK;
		DROP DATABASE gone_db;
		BEGIN;
		DROP TABLE prepared;
		PREPARE TRANSACTION 'drop';
		UPDATE live SET t = md5(t) WHERE id % 11 = 0;});
	return $stats;
}

sub clean_up
{
	my ($node) = @_;
	$node->safe_psql(
		'postgres', q{
		COMMIT PREPARED 'drop';
		DROP TABLE cut, shrunk;});
	return;
}

=pod

=item stop_and_check($primary, @standbys)

Check indexes and tables, stop the servers, and check their checksums and logs.  The
primary is stock.

=cut

sub stop_and_check
{
	my (@nodes) = @_;
	my ($primary, @standbys) = @nodes;
	foreach (@nodes)
	{
		command_ok(
			[
				command_of('stock', 'pg_amcheck'),
				'--all', '--heapallindexed',
				($_ == $primary ? '--install-missing' : ()),
				'--host' => $_->host,
				'--port' => $_->port
			],
			'pg_amcheck on ' . $_->name);
		$primary->wait_for_replay_catchup($_) foreach @standbys;
	}
	$_->stop foreach reverse @nodes;
	foreach my $kind (qw(stock fork))
	{
		command_ok(
			[ command_of($kind, 'pg_checksums'), '--check', $_->data_dir ],
			"pg_checksums of $kind on " . $_->name)
		  foreach @nodes;
	}

	log_is_clean($_, crashed => 1) foreach @nodes;
	return;
}

=pod

=back

=cut

1;
