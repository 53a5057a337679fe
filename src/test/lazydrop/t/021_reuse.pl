# Copyright (c) 2026, LazyDrop developers

# A name may be used again while its burial is pending.  It may be the same relfilenumber
# (if the counter wraps around, or binary upgrade chooses it), the same database OID, or a
# directory that a database has left.  A process that creates storage under the name
# settles the burial first (rule R3).  Otherwise, the worker would discard dirty pages of
# the new relation when it continues.  A worker that is processing the entry at that time
# must notice that it has lost the entry (rule R5).  A database that still exists in
# another tablespace must not be mistaken for a dropped one (rule R4).
#
# The worker is held on the primary and on the standby: before it owns the entries, after
# that, and after it has removed a file.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/..";
use LazyDropPair
  qw(start_pair catch_up hold_workers release_workers start_binary_upgrade);
use LazyDropUtils qw(stats need_injection_points stop_with_clean_log);
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

need_injection_points();

my ($primary, $standby) = start_pair();
$primary->safe_psql('postgres', 'CREATE EXTENSION pg_buffercache');
my @nodes = ($primary, $standby);

# A query must have the same result on both servers.  The pages are also read from disk,
# so a page that was lost was lost in the buffers.
sub same_everywhere
{
	my ($database, $query, $result, $what) = @_;
	catch_up();
	foreach my $node (@nodes)
	{
		is($node->safe_psql($database, $query),
			$result, "$what on " . $node->name);
	}
	return;
}

my %how = (
	'lazydrop-worker' => 'waiting worker',
	'lazydrop-pass' => 'worker in its pass',
	'lazydrop-removal-step' => 'worker in its removal');
foreach my $point (sort keys %how)
{
	my $how = $how{$point};

	# --- the same database OID ----------------------------------------------

	my $create = 'CREATE DATABASE again OID 90000 STRATEGY %s';
	foreach my $strategy (qw(wal_log file_copy))
	{
		$primary->safe_psql('postgres', sprintf($create, $strategy));
		$primary->safe_psql('again',
			'CREATE TABLE t AS SELECT generate_series(1, 1000) AS a');
		hold_workers($point,
			sub { $primary->safe_psql('postgres', 'DROP DATABASE again') });
		my %waits = map { $_->name => stats($_)->{reuse_waits} } @nodes;
		$primary->safe_psql('postgres', sprintf($create, $strategy));
		$primary->safe_psql('again',
			'CREATE TABLE t AS SELECT generate_series(1, 2000) AS a');
		catch_up();
		foreach my $node (@nodes)
		{
			cmp_ok(stats($node)->{reuse_waits}, '>', $waits{ $node->name },
				"$how, same database OID, $strategy: settled on "
				  . $node->name);
		}
		release_workers($point);
		same_everywhere('again', 'SELECT count(*), sum(a) FROM t',
			'2000|2001000',
			"$how, same database OID, $strategy: rows are there");
		$primary->safe_psql('postgres', 'DROP DATABASE again');
		catch_up();
	}

	# --- a database that is moved back and forth ----------------------------

	$primary->safe_psql('postgres', "CREATE TABLESPACE there LOCATION ''");
	$primary->safe_psql('postgres', 'CREATE DATABASE moved');
	$primary->safe_psql('moved',
		'CREATE TABLE t AS SELECT generate_series(1, 1000) AS a');
	hold_workers(
		$point,
		sub {
			# Give the primary's worker something to do, because a move does not need it.
			$primary->safe_psql('postgres',
				'CREATE TABLE x (); DROP TABLE x');
			$primary->safe_psql('postgres',
				'ALTER DATABASE moved SET TABLESPACE there');
		});
	$primary->safe_psql('moved',
		'INSERT INTO t SELECT generate_series(1001, 2000)');

	# Create a table in the directory that is buried on the standby.
	$primary->safe_psql('moved',
		'CREATE TABLE back TABLESPACE pg_default AS SELECT generate_series(1, 500) AS a'
	);
	same_everywhere('moved', 'SELECT count(*), sum(a) FROM back',
		'500|125250',
		"$how, table in a directory that was left: rows are there");
	$primary->safe_psql('moved', 'ALTER TABLE back SET TABLESPACE there');
	release_workers($point);
	same_everywhere(
		'moved', 'SELECT count(*), sum(a) FROM t',
		'2000|2001000', "$how, moved database: rows are there");

	hold_workers(
		$point,
		sub {
			$primary->safe_psql('postgres',
				'CREATE TABLE x (); DROP TABLE x');
			$primary->safe_psql('postgres',
				'ALTER DATABASE moved SET TABLESPACE pg_default');
		});
	$primary->safe_psql('moved',
		'INSERT INTO t SELECT generate_series(2001, 3000)');
	$primary->safe_psql('postgres',
		'ALTER DATABASE moved SET TABLESPACE there');
	$primary->safe_psql('moved',
		'INSERT INTO t SELECT generate_series(3001, 4000)');
	release_workers($point);
	same_everywhere(
		'moved', 'SELECT count(*), sum(a) FROM t',
		'4000|8002000', "$how, moved there and back: rows are there");
	$primary->safe_psql('postgres', 'DROP DATABASE moved');
	$primary->safe_psql('postgres', 'DROP TABLESPACE there');
}

# --- a pass that has lost its entries, which have been buried again ---------

# The worker has visited all headers and is about to delete the entry.  Meanwhile the
# database is created again and dropped again.  This is another burial, for which no
# header has been visited.
$primary->safe_psql('postgres', 'CREATE DATABASE again OID 90000');
hold_workers('lazydrop-pass-end',
	sub { $primary->safe_psql('postgres', 'DROP DATABASE again') });
$primary->safe_psql('postgres', 'CREATE DATABASE again OID 90000');
$primary->safe_psql('again',
	'CREATE TABLE t AS SELECT generate_series(1, 1000) AS a');
$primary->safe_psql('postgres', 'DROP DATABASE again');
release_workers('lazydrop-pass-end');
same_everywhere('postgres',
	'SELECT count(*) FROM pg_buffercache WHERE reldatabase = 90000',
	'0', 'dropped twice: no buffer is left');

# --- a tablespace, right after the drop of its contents ---------------------

# DROP TABLESPACE removes the files that are still there by itself.
$primary->safe_psql('postgres', "CREATE TABLESPACE there LOCATION ''");
$primary->safe_psql('postgres', 'CREATE DATABASE again TABLESPACE there');
$primary->safe_psql('postgres',
	'CREATE TABLE x TABLESPACE there AS SELECT 1 AS a');
hold_workers(
	'lazydrop-worker',
	sub {
		$primary->safe_psql('postgres', "DROP DATABASE again;\nDROP TABLE x");
		$primary->safe_psql('postgres', 'DROP TABLESPACE there');
	});
same_everywhere('postgres',
	q{SELECT count(*) FROM pg_tablespace WHERE spcname = 'there'},
	'0', 'DROP TABLESPACE does not wait for the worker');

# --- a template with pending entries ----------------------------------------

$primary->safe_psql('postgres', 'CREATE DATABASE template');
$primary->safe_psql('template',
	'CREATE TABLE kept AS SELECT generate_series(1, 1000) AS a; CREATE TABLE x AS TABLE kept'
	  =~ s/; /;\n/r);
$primary->safe_psql('template', 'DROP TABLE x');
$primary->safe_psql('postgres',
	'CREATE DATABASE copy TEMPLATE template STRATEGY file_copy');
release_workers('lazydrop-worker');
same_everywhere(
	'copy', 'SELECT count(*), sum(a) FROM kept',
	'1000|500500', 'file copy of a template with something pending');
$primary->safe_psql('postgres',
	"DROP DATABASE copy;\nDROP DATABASE template");

# --- the same relfilenumber, as pg_upgrade chooses it -----------------------

# Returns SQL that makes the same choices as pg_upgrade for a table without a TOAST table.
sub create_as
{
	my ($name, $oid, $relfilenumber) = @_;
	return qq{
		SELECT binary_upgrade_set_next_pg_type_oid('@{[ $oid + 1 ]}');
		SELECT binary_upgrade_set_next_array_pg_type_oid('@{[ $oid + 2 ]}');
		SELECT binary_upgrade_set_next_heap_pg_class_oid('$oid');
		SELECT binary_upgrade_set_next_heap_relfilenode('$relfilenumber');
		CREATE TABLE $name (a int);};
}

$primary->safe_psql('postgres', "CREATE TABLESPACE there LOCATION ''");
$primary->safe_psql('postgres', 'CREATE DATABASE moved');
$primary->stop;
start_binary_upgrade($primary);
my $oid = 700000;
foreach my $point (sort keys %how)
{
	my $how = $how{$point};
	my $number = $oid + 9;
	$primary->safe_psql('postgres', create_as('old', $oid, $number));
	$primary->safe_psql('postgres',
		'INSERT INTO old SELECT generate_series(1, 1000)');
	hold_workers($point,
		sub { $primary->safe_psql('postgres', 'DROP TABLE old') });

	my %waits = map { $_->name => stats($_)->{reuse_waits} } @nodes;
	$primary->safe_psql('postgres', create_as('new', $oid + 10, $number));
	$primary->safe_psql('postgres',
		'INSERT INTO new SELECT generate_series(1, 2000)');
	is( $primary->safe_psql(
			'postgres', q{SELECT pg_relation_filenode('new')}),
		$number,
		"$how: the relfilenumber is the same");
	catch_up();

	foreach my $node (@nodes)
	{
		cmp_ok(
			stats($node)->{reuse_waits},
			'>',
			$waits{ $node->name },
			"$how, same relfilenumber: settled on " . $node->name);
	}
	release_workers($point);
	same_everywhere(
		'postgres', 'SELECT count(*), sum(a) FROM new',
		'2000|2001000', "$how, same relfilenumber: rows are there");
	$primary->safe_psql('postgres', 'ALTER TABLE new RENAME TO new' . $oid);
	$oid += 20;
}

# --- the same relfilenumber, in a database that is elsewhere meanwhile ------

# The copy of a directory does not create relations one by one, so it would not notice
# that one of them is buried there.
$primary->safe_psql('moved', create_as('old', 750000, 750009));
$primary->safe_psql('moved',
	'INSERT INTO old SELECT generate_series(1, 1000)');
hold_workers('lazydrop-worker',
	sub { $primary->safe_psql('moved', 'DROP TABLE old') });
$primary->safe_psql('postgres', 'ALTER DATABASE moved SET TABLESPACE there');
$primary->safe_psql('moved', create_as('new', 750010, 750009));
$primary->safe_psql('postgres',
	'ALTER DATABASE moved SET TABLESPACE pg_default');
$primary->safe_psql('moved',
	'INSERT INTO new SELECT generate_series(1, 2000)');
release_workers('lazydrop-worker');
same_everywhere('moved', 'SELECT count(*), sum(a) FROM new',
	'2000|2001000',
	'same relfilenumber, in a database that was away: rows are there');

# --- a temporary relation with the number of a permanent one ----------------

# A temporary relation is never buried, and its creation settles nothing.
$primary->safe_psql('postgres', create_as('permanent', 800000, 800009));
$primary->safe_psql('postgres',
	'INSERT INTO permanent SELECT generate_series(1, 1000)');
hold_workers(
	'lazydrop-worker',
	sub {
		$primary->safe_psql('postgres', create_as('x', 801000, 801009));
		$primary->safe_psql('postgres', 'DROP TABLE x');
	});
my $waits = stats($primary)->{reuse_waits};
my $buried = stats($primary)->{deferred_relations};
my $number = 800009;
foreach my $oid (800020, 800040)
{
	my $temporary = create_as('temporary', $oid, $number);
	$temporary =~ s/CREATE TABLE/CREATE TEMPORARY TABLE/;
	like(
		$primary->safe_psql(
			'postgres',
			"$temporary
			INSERT INTO temporary SELECT generate_series(1, 10);
			SELECT count(*), pg_relation_filenode('temporary') FROM temporary;
			DROP TABLE temporary"),
		qr/^10\|$number$/m,
		'a temporary table with the number of a permanent one');

	# Use the number of a buried relation, too.
	$number = 801009;
}
is(stats($primary)->{deferred_relations},
	$buried, 'a temporary relation is not buried');
is(stats($primary)->{reuse_waits}, $waits, 'nor does it settle anything');
release_workers('lazydrop-worker');
same_everywhere(
	'postgres', 'SELECT count(*), sum(a) FROM permanent',
	'1000|500500', 'the permanent one of the same number has its rows');

# Everything is on disk as well.
$primary->stop;
$primary->start;
$standby->restart;
same_everywhere(
	'postgres',
	'SELECT (SELECT count(*) FROM new700000), (SELECT count(*) FROM new700020), (SELECT count(*) FROM permanent)',
	'2000|2000|1000',
	'rows are there after a restart');

stop_with_clean_log($_) foreach @nodes;

done_testing();
