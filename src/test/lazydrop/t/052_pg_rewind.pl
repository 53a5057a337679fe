# Copyright (c) 2026, LazyDrop developers

# pg_rewind after a failover in the middle of a storm of drops.  The standby is promoted
# while it has drops pending.  Then a storm runs on each of the two servers, so that each
# has drops pending that the other does not know of when the former primary is made a
# standby of the new one.  Both must have the same contents then.  pg_amcheck and
# pg_checksums must succeed, and no orphaned file may be left.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/..";
use DropStorm
  qw(need_storms have_points start_source start_standby create_schema start_storm
  stop_storm forget_storm hold_worker release_worker check_stopped);
use LazyDropFiles qw(relation_files add_segments orphaned_files contents);

use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

need_storms();

use constant MB => 1024 * 1024;

my $primary = start_source(
	'primary',
	'summarize_wal' => 'on',
	'wal_keep_size' => '4GB');
create_schema($primary);
my $standby = start_standby($primary);

# Promote "new", and rewind "old".  "from" tells where pg_rewind reads the source, and
# "mode" how the target is stopped.
sub rewind
{
	my ($old, $new, $from, $mode) = @_;
	my $what = "pg_rewind, source $from, target stopped $mode";
	hold_worker($_, 'lazydrop-removal') foreach $old, $new;
	start_storm($old);
	$old->safe_psql(
		'postgres', qq{
		CREATE TABLE early_$mode$from AS SELECT i AS a, repeat('e', 500) AS b FROM generate_series(1, 1000) AS i;
		CREATE TABLE returns_$mode$from AS SELECT i AS a, repeat('r', 500) AS b FROM generate_series(1, 1000) AS i;
		CREATE TABLE leaves_$mode$from AS SELECT i AS a, repeat('l', 500) AS b FROM generate_series(1, 1000) AS i}
	);
	my ($early, $returns, $leaves) = map {
		$old->safe_psql('postgres',
			"SELECT pg_relation_filepath('${_}_$mode$from')")
	} qw(early returns leaves);

	# Files that a transaction has created which is in progress when a standby is promoted
	# are left behind, in stock PostgreSQL as well.
	stop_storm($old);
	$old->wait_for_replay_catchup($new);
	add_segments($old, $returns, 2, MB);
	add_segments($_, $leaves, 2, MB) foreach $old, $new;
	add_segments($new, $early, 2, MB);
	$old->safe_psql('postgres', "DROP TABLE early_$mode$from");
	$old->wait_for_replay_catchup($new);
	cmp_ok(scalar(relation_files($new, $early)),
		'>=', 3, "$what: files are pending at the promotion")
	  if have_points();
	$new->promote;
	is(scalar(relation_files($new, $early)), 0, "$what: and gone after it");
	start_storm($_, 'file_copy', 'tablespace') foreach $old, $new;
	$new->safe_psql('postgres', 'CHECKPOINT');
	$old->safe_psql('postgres',
		"UPDATE live SET n = -1; DROP TABLE returns_$mode$from");
	$new->safe_psql('postgres',
		"UPDATE live SET n = -2 WHERE a % 2 = 0; DROP TABLE leaves_$mode$from"
	);

	foreach (have_points() ? ([ $old, $returns ], [ $new, $leaves ]) : ())
	{
		my ($node, $path) = @$_;
		cmp_ok(
			scalar(
				grep { -s $node->data_dir . "/$_" }
				  relation_files($node, $path)),
			'>=', 3,
			"$what: files are pending on " . $node->name);
	}

	# Pending files are removed, or hidden by the shutdown.  After an immediate stop they
	# are left, and are removed by the recovery in single-user mode that pg_rewind
	# performs.
	release_worker($old, 'lazydrop-removal') if $mode eq 'fast';
	$old->stop($mode);
	forget_storm($old);
	is( scalar(
			grep { -s $old->data_dir . "/$_" } relation_files($old, $returns)
		),
		$mode eq 'fast' ? 0 : 3,
		"$what: files after the target has stopped"
	) if $mode eq 'fast' || have_points();
	if ($from eq 'directory')
	{
		stop_storm($new);
		release_worker($new, 'lazydrop-removal');
		$new->stop;
	}
	command_ok(
		[
			'pg_rewind', '--no-sync',
			'--target-pgdata' => $old->data_dir,
			$from eq 'server'
			? ('--source-server' => $new->connstr('postgres'))
			: ('--source-pgdata' => $new->data_dir)
		],
		$what);

	# The settings have been copied with the data.
	$new->start if $from eq 'directory';
	$old->append_conf('postgresql.conf', 'port = ' . $old->port);
	$old->enable_streaming($new);
	$old->start;
	stop_storm($new) if $from eq 'server';
	release_worker($new, 'lazydrop-removal') if $from eq 'server';
	$new->wait_for_replay_catchup($old);
	is_deeply(contents($old), contents($new),
		"$what: the contents are the same");
	is( $old->safe_psql(
			'postgres',
			"SELECT count(*), sum(length(b)) FROM returns_$mode$from"),
		'1000|500000',
		"$what: a table that had been dropped is back");
	$_->safe_psql('postgres', 'CHECKPOINT') foreach $new, $old;
	is_deeply([ map { relation_files($_, $leaves) } $old, $new ],
		[], "$what: what the source has dropped is gone");
	is_deeply([ orphaned_files($_, crashed => 1) ],
		[], "$what: no files that belong to nothing on " . $_->name)
	  foreach $old, $new;
	return;
}

rewind($primary, $standby, 'server', 'fast');
rewind($standby, $primary, 'directory', 'immediate');
rewind($primary, $standby, 'server', 'immediate');
$standby->command_ok([ 'pg_amcheck', '--all', '--install-missing' ],
	'after pg_rewind: pg_amcheck');
foreach my $node ($primary, $standby)
{
	check_stopped($node, 'after pg_rewind, ' . $node->name);
	$node->clean_node;
}

done_testing();
