# Copyright (c) 2026, LazyDrop developers

=pod

=head1 NAME

HotSet - a frequently used table, and its pages in shared_buffers

=head1 DESCRIPTION

Functions for the tests of lazydrop.scan_resistance, 080 to 082.  The table is called
"hot".

=cut

package HotSet;

use strict;
use warnings FATAL => 'all';

use Carp;
use Exporter 'import';
use JSON::PP;
use LazyDropUtils qw(start_quiet_node evict);
use Test::More;

our @EXPORT_OK =
  qw(start_cache_node buffers create_table use_often warm share_left is_still_hot
  cached cache_stats classes_add_up);

=pod

=over

=item start_cache_node($name, %settings)

Start a server with the necessary extensions, which writes no page before it must.

=cut

sub start_cache_node
{
	my ($name, %settings) = @_;
	my $node = start_quiet_node(
		$name,
		'lazydrop.scan_resistance' => 'off',
		'max_parallel_workers_per_gather' => '0',
		'max_wal_size' => '4GB',
		%settings);
	$node->safe_psql('postgres', "CREATE EXTENSION $_")
	  foreach qw(pg_buffercache pg_prewarm);
	return $node;
}

=pod

=item buffers($node)

Returns the number of buffers.

=cut

sub buffers
{
	my ($node) = @_;
	return $node->safe_psql('postgres',
		q{SELECT setting FROM pg_settings WHERE name = 'shared_buffers'});
}

=pod

=item create_table($node, $name, $pages [, $rows])

Create a table of about this number of pages, with the columns id, in the order of the
table, r, a random number, and f.  A page has this number of rows, 4 by default, and half
of it is free.

=cut

sub create_table
{
	my ($node, $name, $pages, $per_page) = @_;
	$per_page //= 4;
	my $rows = $pages * $per_page;
	my $length = int(4000 / $per_page) - 50;
	$node->safe_psql(
		'postgres', qq{
		CREATE TABLE $name (id int, r int, f text) WITH (fillfactor = 55);
		INSERT INTO $name SELECT i, (random() * 1e9)::int, repeat('f', $length)
			FROM generate_series(1, $rows) AS i;
		VACUUM (ANALYZE) $name});
	return;
}

=pod

=item use_often($node [, $table])

Use the hot table, or another one, in six sessions.  Consecutive accesses of one session
count as one use.

=item warm($node)

Evict all pages from shared_buffers, and use the hot table.  The evicted buffers are not
put on the free list.

=cut

sub use_often
{
	my ($node, $table) = @_;
	$table //= 'hot';
	$node->safe_psql('postgres', "SELECT pg_prewarm('$table', 'buffer')")
	  foreach 1 .. 6;
	return;
}

sub warm
{
	my ($node) = @_;
	evict($node, 'postgres');
	use_often($node);
	return;
}

=pod

=item cached($node, $table)

Returns the number of pages of a table that are in shared_buffers.

=item share_left($node), is_still_hot($node, $what)

Returns the part of the hot table that is there, in per cent; check that it is 90 or more.

=cut

sub cached
{
	my ($node, $table) = @_;
	return $node->safe_psql(
		'postgres', qq{
		SELECT count(*) FROM pg_buffercache
		WHERE relfilenode = pg_relation_filenode('$table') AND relforknumber = 0
			AND reldatabase = (SELECT oid FROM pg_database WHERE datname = current_database())}
	);
}

sub share_left
{
	my ($node) = @_;
	my $pages = $node->safe_psql('postgres',
		q{SELECT pg_relation_size('hot') / current_setting('block_size')::int}
	);
	return int(1000 * cached($node, 'hot') / $pages) / 10;
}

sub is_still_hot
{
	my ($node, $what) = @_;
	return cmp_ok(share_left($node), '>=', 90,
		"$what: the hot table is left");
}

=pod

=item cache_stats($node)

Returns the counters of lazydrop.cache_stats, as a hash reference.

=item classes_add_up($node, $what)

Check that the number of buffers in the main class is right.  No process may be changing
a class.

=cut

sub cache_stats
{
	my ($node) = @_;
	return decode_json(
		$node->safe_psql('postgres', 'SHOW lazydrop.cache_stats'));
}

sub classes_add_up
{
	my ($node, $what) = @_;
	my $stats = cache_stats($node);
	return is_deeply(
		[ $stats->{main}, $stats->{main} + $stats->{probation} ],
		[ $stats->{main_classes} // $stats->{main}, buffers($node) ],
		"$what: the classes have been counted");
}

=pod

=back

=cut

1;
