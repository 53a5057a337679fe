
# Copyright (c) 2026, LazyDrop developers

=pod

=head1 NAME

LazyDropCache - functions for the scenarios about lazydrop.scan_resistance

=head1 SYNOPSIS

  use LazyDropCache;

  my $node = make_primary('on', cache_settings('on'), shared_buffers => '1GB');
  make_rows($node, 'big', 2048);
  restart_as($node, 'off', io_method => 'sync');
  touch_hot($node, 'hot');
  expect_plan($node, only('indexscan'), 'SELECT count(f) FROM big WHERE id > 0', qr/^Index Scan/m);
  record('hot set left', '%', hot_left($node, 'hot'));

=head1 DESCRIPTION

In these scenarios, a case's server, if it is not stock, is a value of
lazydrop.scan_resistance: off or on; or "advisor", which is off with
lazydrop.advisor on.  lazydrop.enabled is on with all of these, so one data directory of
the fork can be used for all of them.

=cut

package LazyDropCache;

use strict;
use warnings FATAL => 'all';

use Exporter 'import';
use LazyDropBench;
use LazyDropUtils qw(pg_major);
use Time::HiRes   qw(time);

our @EXPORT =
  qw(%by_index cache_settings restart_as start_as make_rows filler only expect_plan
  touch_hot hot_left blocks_read wait_for_sessions blocks_so_far zipf_pgbench zipf_sql repeat_statement);

our %by_index = (
	max_parallel_workers_per_gather => '0',
	max_parallel_maintenance_workers => '0',
	enable_seqscan => 'off',
	enable_bitmapscan => 'off',
	enable_hashjoin => 'off',
	enable_mergejoin => 'off',
	enable_memoize => 'off',
	jit => 'off');

# Multiplication by this prime separates popular keys from each other.
use constant PRIME => 611953;

=pod

=head1 FUNCTIONS

=over

=item %by_index

Settings with which rows are looked up one by one, by an index, also in a join.

=item cache_settings($server)

Returns settings for a server, for make_primary or restart_as.  Stock ignores them,
because it does not know them.

=item restart_as($node, $server, %settings)

Restart a node as another one of the fork's servers, or with other settings.  Its buffers
are empty then.

=item start_as($node, $server, %settings)

Start a node, which is not running, as another server, which may be stock.

=cut

sub cache_settings
{
	my ($server) = @_;
	return (
		'lazydrop.enabled' => 'on',
		'lazydrop.scan_resistance' => $server eq 'on' ? 'on' : 'off',
		'lazydrop.advisor' => $server eq 'advisor' ? 'on' : 'off');
}

sub restart_as
{
	my ($node, $server, %settings) = @_;
	%settings = (cache_settings($server), %settings);
	$node->append_conf('postgresql.conf',
		join('', map { "$_ = $settings{$_}\n" } sort keys %settings));
	$node->restart;
	return;
}

sub start_as
{
	my ($node, $server, %settings) = @_;
	%settings = (cache_settings($server), %settings);
	$node->{_install_path} = LazyDropBench::prefix($server);
	$node->append_conf('postgresql.conf',
		join('', map { "$_ = $settings{$_}\n" } sort keys %settings));
	$node->start;
	return;
}

=pod

=item repeat_statement($node, $statement, $each)

Execute a statement again and again in one session, for a second.  Returns the number of
executions per second, times $each.

=cut

sub repeat_statement
{
	my ($node, $statement, $each) = @_;
	my $session = $node->background_psql('postgres');
	$session->query_safe('SELECT 1');
	my ($began, $times) = (time, 0);
	do
	{
		$session->query_safe($statement);
		$times++;
	} while (time - $began < 1);
	my $rate = $times * $each / (time - $began);
	$session->quit;
	return $rate;
}

=pod

=item make_rows($node, $name, $megabytes [, $rows])

Create a table with this number of rows in each page, three by default, and free space for
a new version of each: id is a sequence, r is in no order, n is 0.  Returns the number of
rows.

=cut

sub make_rows
{
	my ($node, $name, $megabytes, $per_page) = @_;
	$per_page //= 3;
	my $rows = $per_page * int(128 * $megabytes);
	my $length = $per_page == 3 ? 950 : int(3680 / $per_page) - 48;
	$node->safe_psql(
		'postgres', qq{
		CREATE TABLE $name WITH (fillfactor = 45) AS
			SELECT i AS id, hashint4(i) AS r, 0 AS n, repeat('x', $length) AS f
			FROM generate_series(1, $rows) AS i;
		VACUUM (FREEZE, ANALYZE) $name});
	return $rows;
}

=pod

=item filler($rows)

Returns the length of the last column, an uncompressed text, with which exactly this
number of rows fits into a page: 3, 20 or 81 rows with three integers and that column.

=cut

sub filler
{
	my ($rows) = @_;
	return int((8168 / $rows - 4) / 8) * 8 - 24 - 12 - 4;
}

=pod

=item only(@methods)

Returns SET commands that allow the planner only the given methods out of seqscan,
indexscan, indexonlyscan and bitmapscan.

=item expect_plan($node, $set, $query, $pattern)

Die unless a query's plan, after these commands, matches a pattern.

=cut

sub only
{
	my @methods = @_;
	return join(
		'',
		map {
			my $method = $_;
			"SET enable_$method = "
			  . ((grep { $_ eq $method } @methods) ? 'on' : 'off') . ";\n"
		} qw(seqscan indexscan indexonlyscan bitmapscan));
}

sub expect_plan
{
	my ($node, $set, $query, $pattern) = @_;
	my $plan =
	  $node->safe_psql('postgres', "${set}EXPLAIN (COSTS off) $query");
	die "not the plan that is to be measured: $plan\n"
	  unless $plan =~ $pattern;
	return;
}

=pod

=item touch_hot($node, $table), hot_left($node, $table)

Use each page of a table often enough for the maximum usage count; return the percentage
of the table that is in shared_buffers.

=cut

sub touch_hot
{
	my ($node, $table) = @_;
	$node->safe_psql('postgres',
		"SELECT pg_prewarm('$table', 'buffer');\n" x 6);
	my $left = hot_left($node, $table);
	die "only $left% of \"$table\" are in shared_buffers\n" if $left < 99.9;
	return;
}

sub hot_left
{
	my ($node, $table) = @_;
	return $node->safe_psql(
		'postgres', qq{
		SELECT 100.0 * count(*) / (pg_relation_size('$table') / 8192)
		FROM pg_buffercache
		WHERE relfilenode = pg_relation_filenode('$table') AND relforknumber = 0
			AND reldatabase = (SELECT oid FROM pg_database WHERE datname = 'postgres')}
	);
}

=pod

=item blocks_read($node, $set, $query)

Run a query, and return the number of blocks that were not in shared_buffers.

=cut

sub blocks_read
{
	my ($node, $set, $query) = @_;
	my $plan = $node->safe_psql('postgres',
		"${set}EXPLAIN (ANALYZE, BUFFERS, TIMING off, FORMAT json) $query");

	# This is the topmost plan node, whose counts include all others.
	my ($blocks) = $plan =~ /"Shared Read Blocks": (\d+)/
	  or die "no count of blocks in: $plan\n";
	return $blocks;
}

=pod

=item wait_for_sessions($node), blocks_so_far($node)

Wait until all other sessions have ended, and have sent their statistics; return the
numbers of pages that have been found and read so far, according to pg_stat_io.

=cut

sub wait_for_sessions
{
	my ($node) = @_;
	$node->poll_query_until('postgres',
		q{SELECT count(*) = 1 FROM pg_stat_activity WHERE backend_type = 'client backend'}
	) or die "sessions do not end\n";
	return;
}

sub blocks_so_far
{
	my ($node) = @_;
	my $reads =
	  pg_major("$opt{fork}/bin") < 18
	  ? 'sum(reads)'
	  : 'sum(read_bytes) / 8192';
	return split /\|/, $node->safe_psql(
		'postgres', qq{
		SELECT sum(hits)::bigint, coalesce($reads, 0)::bigint
		FROM pg_stat_io WHERE object = 'relation'});
}

=pod

=item zipf_pgbench($s, $n), zipf_sql($s, $n)

Draw a key from 1 to $n from a Zipfian distribution with exponent $s, which must not be 1,
and multiply it by a prime modulo $n: as lines of a pgbench script that set C<:id>, and as
an SQL expression.  The formula is in F<oltp-beside-scan.pl>.

=cut

sub zipf_constants
{
	my ($s, $n) = @_;
	return
	  map { sprintf('(%.15f)', $_) } (($n + 1)**(1 - $s) - 1, 1 / (1 - $s));
}

sub zipf_pgbench
{
	my ($s, $n) = @_;
	my ($factor, $power) = zipf_constants($s, $n);
	return qq{\\set u random(0, 999999999) / 1000000000.0
\\set k least(int(pow(1.0 + :u * $factor, $power)), $n)
\\set id 1 + :k * @{[PRIME]} % $n
};
}

sub zipf_sql
{
	my ($s, $n) = @_;
	my ($factor, $power) = zipf_constants($s, $n);
	return
	  "(1 + least(floor(power(1 + random() * $factor, $power)), $n)::bigint * @{[PRIME]} % $n)::int";
}

=pod

=back

=cut

1;
