
# Copyright (c) 2026, LazyDrop developers

# Source: Percona's blog, 2011, on DROP TABLE with innodb_lazy_drop_table: 1,000 tables
# that fill 15%, 36% and 72% of a buffer pool of 144 GB took 310, 776 and 1635 s to drop
# one by one with InnoDB, and 95, 210 and 466 s with its lazy drop.
#
# Asks: how does the time depend on the fill?  Also with MariaDB from Debian's packages
# and a pool of the same size.  No server syncs; each starts with its tables in its pool,
# clean.
#
# Expected: stock's time depends on the pool, and a little on the fill because files are
# larger; the fork's time depends on neither.  Later releases of MariaDB are lazy as well,
# and take as long as the removal of the files.

use strict;
use warnings FATAL => 'all';

use File::Path;
use IPC::Run;
use LazyDropBench;
use PostgreSQL::Test::Utils;
use Time::HiRes qw(time usleep);

my @mariadb = grep { -x } '/usr/sbin/mariadbd', '/usr/local/sbin/mariadbd';
@mariadb = ()
  if grep { system("command -v $_ >/dev/null 2>&1") != 0 }
  qw(mariadb mariadb-install-db);

sub postgres_case
{
	my ($case, $tables, $mb) = @_;
	my $node = make_primary(
		$case->{server},
		shared_buffers => $case->{size},
		%without_standbys,
		synchronous_commit => 'off');

	# Each page has one row.
	my $rows = int(128 * $mb / $tables);
	$node->safe_psql('postgres', 'CREATE EXTENSION pg_prewarm');
	$node->safe_psql(
		'postgres',
		qq{
		CREATE TABLE pattern (a text);
		ALTER TABLE pattern ALTER a SET STORAGE plain;
		} . join( '',
			map {
				qq{
		BEGIN;
		CREATE TABLE t$_ (LIKE pattern INCLUDING STORAGE);
		INSERT INTO t$_ SELECT repeat('x', 7500) FROM generate_series(1, $rows);
		COMMIT;
		}
			} 1 .. $tables));
	$node->safe_psql('postgres', 'CHECKPOINT');
	my $pages = $node->safe_psql('postgres',
		q{SELECT sum(pg_prewarm(oid)) FROM pg_class WHERE relname ~ '^t\d'});
	die "$pages pages instead of " . $rows * $tables . "\n"
	  if $pages != $rows * $tables;
	sync_disk();
	my $began = time;
	$node->safe_psql('postgres',
		join('', map { "DROP TABLE t$_;\n" } 1 .. $tables));
	record("$tables DROP TABLE", 's', time - $began);
	wait_for_nothing_left($node);
	record('until nothing is left', 's', time - $began);
	discard($node);
	return;
}

sub mariadb_case
{
	my ($case, $tables, $mb) = @_;
	my $data = in_scratch('mariadb');
	my $socket = "$data.sock";
	File::Path::remove_tree($data);
	run_program(
		[
			'mariadb-install-db', '--no-defaults',
			"--datadir=$data", '--auth-root-authentication-method=normal',
			'--skip-test-db'
		],
		'>' => \*STDERR,
		'2>&1') or die "mariadb-install-db failed\n";
	my $server = start_program(
		[
			$mariadb[0],
			'--no-defaults',
			"--datadir=$data",
			"--socket=$socket",
			"--pid-file=$data.pid",
			'--skip-networking',
			'--skip-log-bin',
			'--debug-no-sync=1',
			"--innodb-buffer-pool-size=$case->{size}" =~ s/B$//r,
			'--innodb-log-file-size=2G',
			'--innodb-flush-log-at-trx-commit=0',
			'--innodb-doublewrite=0',
			'--innodb-io-capacity=20000',
			'--innodb-io-capacity-max=40000'
		],
		'>' => in_scratch('log/mariadb.log'),
		'2>&1');
	my $sql = sub {
		my ($text) = @_;
		my ($out, $err) = ('', '');
		run_program(
			[
				'mariadb', '--no-defaults', '-u', 'root',
				'-S', $socket, '-N', '-B',
				'mysql'
			],
			'<' => \$text,
			'>' => \$out,
			'2>' => \$err) or return;
		chomp $out;
		return $out;
	};
	my $give_up = time + $PostgreSQL::Test::Utils::timeout_default;

	# If a client finds no server, it exits before it has read anything.
	until (defined eval { $sql->('SELECT 1') })
	{
		die "MariaDB does not start\n"
		  if !$server->pumpable || time > $give_up;
		usleep(100_000);
	}

	# MariaDB's pages have 16 kB, and two of these rows.
	my $rows = int(128 * $mb / $tables);
	$sql->(
		join(
			'',
			map {
				qq{CREATE TABLE t$_ (a varchar(8000) CHARACTER SET latin1) ENGINE=InnoDB;
				INSERT INTO t$_ SELECT repeat('x', 7500) FROM seq_1_to_$rows;
				}
			} 1 .. $tables)) // die "MariaDB could not create the tables\n";

	# No page may be dirty, so that a drop has no work left from the creation.
	$sql->('SET GLOBAL innodb_max_dirty_pages_pct = 0')
	  // die "MariaDB does not know how to write its pages\n";
	$give_up = time + $PostgreSQL::Test::Utils::timeout_default;
	my $status = sub {
		my ($name) = @_;
		return $sql->(
			"SELECT variable_value FROM information_schema.global_status WHERE variable_name = '$name'"
		);
	};
	while ($status->('Innodb_buffer_pool_pages_dirty') > 100)
	{
		die "MariaDB does not write its pages\n" if time > $give_up;
		usleep(100_000);
	}
	my $filled =
	  $status->('Innodb_buffer_pool_pages_data') /
	  $status->('Innodb_buffer_pool_pages_total');
	sync_disk();
	my $began = time;
	$sql->(join('', map { "DROP TABLE t$_;\n" } 1 .. $tables))
	  // die "MariaDB could not drop the tables\n";
	record("$tables DROP TABLE", 's', time - $began);
	record('share of the pool that was filled', '%', 100 * $filled);
	$sql->('SHUTDOWN');
	$server->finish or die "MariaDB failed\n";
	File::Path::remove_tree($data);
	return;
}

scenario 'drop-filled' => (
	seconds =>
	  sub { 4 + $_[0]{percent} / ($_[0]{server} eq 'mariadb' ? 2 : 4) },
	runs => 3,
	disk => 16,
	setup => sub {
		left_out('MariaDB', 'it is not installed') unless @mariadb;
	},
	groups => sub {
		my @compared = ('stock', 'on', @mariadb ? 'mariadb' : ());
		return map {
			cases(
				\@compared,
				size => $opt{pool},
				percent => $_,
				case => "$_%")
		} (15, 36, 72);
	},
	run => sub {
		my ($case) = @_;
		my $mb = megabytes($opt{pool}) * $case->{percent} / 100;
		my $function =
		  $case->{server} eq 'mariadb' ? \&mariadb_case : \&postgres_case;
		$function->($case, n(1000), $mb);
	});
