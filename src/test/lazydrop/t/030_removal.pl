# Copyright (c) 2026, LazyDrop developers

# Files of dropped relations are removed in the background.  The test checks which ones
# are removed, in what order, at which rate, and by which processes that cannot wait
# (rules R8, R9, R14).

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/..";
use LazyDropFiles qw(relation_files add_segments hidden_files);
use LazyDropUtils
  qw(stats wait_for_stats wait_for_nothing hold_at release wait_until
  need_injection_points reload_with start_quiet_node evict);
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(time usleep);

need_injection_points();

use constant MB => 1024 * 1024;

my $node = start_quiet_node(
	'node',
	'fsync' => 'on',
	'max_prepared_transactions' => '5');
$node->safe_psql('postgres',
	'CREATE EXTENSION injection_points; CREATE EXTENSION pg_buffercache');

# Create a table with an index, all forks, and dirty pages.  Returns the paths.
sub create_table
{
	my ($name, $options) = @_;
	$node->safe_psql(
		'postgres', qq{
		CREATE TABLE $name (a int PRIMARY KEY) } . ($options // '') . qq{;
		INSERT INTO $name SELECT generate_series(1, 1000);
		VACUUM $name});
	return map {
		$node->safe_psql('postgres', "SELECT pg_relation_filepath('$_')")
	} ($name, "${name}_pkey");
}

sub all_files
{
	return map { relation_files($node, $_) } @_;
}

# --- the worker removes them ------------------------------------------------

{
	my @paths = create_table('t');
	add_segments($node, $paths[0], 3, 40 * MB);
	my @files = all_files(@paths);
	cmp_ok(scalar(@files), '>=', 7, 'a table with all forks and segments');

	hold_at($node, 'lazydrop-removal');
	$node->safe_psql('postgres', 'DROP TABLE t');
	$node->wait_for_event('lazy drop worker', 'lazydrop-removal');
	is_deeply([ all_files(@paths) ], \@files, 'DROP TABLE leaves the files');
	my $stats = stats($node);
	is($stats->{pending_relations}, 2, 'two relations are pending');
	is($stats->{pending_files}, scalar(@files), 'and so many files');
	cmp_ok($stats->{pending_bytes}, '>', 120 * MB, 'and their bytes');

	release($node, 'lazydrop-removal');
	wait_for_nothing($node);
	is_deeply([ all_files(@paths) ],
		\@paths, 'the first segments stay until the next checkpoint');
	is(-s $node->data_dir . "/$_", 0, 'and are empty') foreach @paths;
	$stats = stats($node);
	is("$stats->{pending_files} $stats->{pending_bytes}",
		'0 0', 'no files are pending');
	is($stats->{files_removed}, scalar(@files), 'files removed');
	cmp_ok($stats->{bytes_removed}, '>', 120 * MB, 'bytes removed');
	$node->safe_psql('postgres', 'CHECKPOINT');
	is_deeply([ all_files(@paths) ], [], 'a checkpoint unlinks them');
	is(stats($node)->{checkpoint_waits}, 0, 'and need not wait');
}

# --- the order --------------------------------------------------------------

# The highest segment is removed first, and a large one in several steps.  If the server
# is killed in the middle, there is no gap at which stock's replay would stop.  A step is
# four megabytes.  A file that cannot be hidden shrinks under its own name.
{
	my @in_the_way = map { $node->data_dir . "/base/$_" } qw(pgsql_tmp 0);
	rmdir $_ foreach @in_the_way;
	append_to_file($_, "a file\n") foreach @in_the_way;
	$node->append_conf('postgresql.conf', 'lazydrop.removal_rate = 20MB');
	$node->reload;
	$node->poll_query_until('postgres',
		q{SELECT current_setting('lazydrop.removal_rate') = '20MB'});
	my @paths = create_table('t');
	add_segments($node, $paths[0], 3, 12 * MB);
	$node->safe_psql('postgres', 'CHECKPOINT');
	hold_at($node, 'lazydrop-removal-step');
	$node->safe_psql('postgres', 'DROP TABLE t');
	my @seen;
	my $sizes = sub {
		return join ' ',
		  map { my $s = -s $node->data_dir . "/$_"; "$_=" . ($s // '-') }
		  all_files(@paths);
	};
	my $last = '';
	while (!@seen || $seen[-1] ne '12 - -')
	{
		# Each step changes a size.
		wait_until(sub { $sizes->() ne $last })
		  or die "no step was taken: $last";
		$node->wait_for_event('lazy drop worker', 'lazydrop-removal-step');
		$last = $sizes->();
		push @seen, join ' ', map {
			my $s = -s $node->data_dir . "/$paths[0].$_";
			defined $s ? $s / MB : '-'
		} 1 .. 3;
		$node->safe_psql('postgres',
			q{SELECT injection_points_wakeup('lazydrop-removal-step')})
		  if $seen[-1] ne '12 - -';
	}
	my %seen = map { $_ => 1 } @seen;
	ok($seen{'12 12 8'} && $seen{'12 12 4'} && $seen{'12 12 -'},
		'the third segment is removed in steps')
	  or diag explain \@seen;
	ok($seen{'12 8 -'} && $seen{'12 - -'}, 'then the second one');
	ok(-e $node->data_dir . "/$paths[0]", 'the first one is there');

	$node->stop('immediate');
	unlink @in_the_way;
	$node->start;
	is_deeply([ all_files(@paths) ],
		[], 'replay after a crash in the middle removes the rest');
}

# --- the rate ---------------------------------------------------------------

# A table has 1,000 sparse segments of a gigabyte, without blocks on the disk.  At this
# rate, the removal takes a quarter of an hour.  The names of the files are free
# immediately.  A fast shutdown in the middle does not wait for the rest, which the worker
# removes after the next start.
{
	my @paths = create_table('t');
	add_segments($node, $paths[0], 1000, 1024 * MB);
	$node->append_conf('postgresql.conf', "lazydrop.removal_rate = 1GB");
	$node->reload;
	$node->poll_query_until('postgres',
		q{SELECT current_setting('lazydrop.removal_rate') = '1GB'});
	my $began = time();
	my $before = stats($node)->{bytes_removed};
	$node->safe_psql('postgres', 'DROP TABLE t');
	wait_for_stats($node,
		"(s->>'bytes_removed')::bigint > $before + 4096::bigint * 1024 * 1024"
	);
	my $stats = stats($node);
	my $seconds = time() - $began;
	cmp_ok(($stats->{bytes_removed} - $before) / MB / $seconds,
		'<=', 1024 * 1.3, 'the rate is kept');
	cmp_ok($stats->{pending_bytes}, '>', 900_000 * MB, 'much is left');
	is_deeply([ grep { -s $node->data_dir . "/$_" } all_files($paths[0]) ],
		[], 'but not under its name');
	$node->wait_for_event('lazy drop worker', 'LazyDropThrottle');

	# The worker makes passes meanwhile, and no other process has to wait.
	my $passes = $stats->{passes};
	create_table('u');
	$node->safe_psql('postgres', 'DROP TABLE u');
	wait_for_stats($node, "(s->>'passes')::int > $passes");
	pass('the worker makes passes while it removes files');

	$began = time();
	$node->stop('fast');
	$seconds = time() - $began;
	note "fast shutdown took $seconds s";
	is_deeply([ all_files(@paths) ],
		[], 'a fast shutdown leaves no file under its name');
	cmp_ok(scalar(hidden_files($node)),
		'>', 900, 'and the rest to the next start');
	my $offset = -s $node->logfile;
	$node->start;
	$node->wait_for_event('lazy drop worker', 'LazyDropThrottle');
	like(
		slurp_file($node->logfile, $offset),
		qr/LOG:  found (?:9|10)[0-9]{2} files of dropped relations in tablespace 1663, [0-9]{6,} MB/,
		'which logs how much there is');
	cmp_ok(stats($node)->{pending_bytes},
		'>', 900_000 * MB, 'it is pending again');
	is(stats($node)->{pending_relations} + stats($node)->{pending_databases},
		0, 'though not as a relation or a database');
	$node->append_conf('postgresql.conf', 'lazydrop.removal_rate = 0');
	$node->reload;
	wait_for_stats($node, q{s->>'pending_files' = '0'});
	is_deeply([ hidden_files($node) ], [], 'and is removed in the end');
}

# The worker looks whether a pass is due after five seconds of a removal.  It is held up
# until then, in the middle of its wait for the next step, and goes on.
{
	my ($path) = create_table('t');
	add_segments($node, $path, 1, 16 * MB);
	reload_with($node, 'lazydrop.removal_rate' => '1MB');
	$node->safe_psql('postgres', 'CHECKPOINT; DROP TABLE t');
	my $began = time();
	$node->wait_for_event('lazy drop worker', 'LazyDropThrottle');
	hold_at($node, 'lazydrop-removal-step');
	$node->wait_for_event('lazy drop worker', 'lazydrop-removal-step');
	note sprintf('%.1f s', time() - $began);
	usleep(100_000) while time() < $began + 6;
	my $removed = stats($node)->{bytes_removed};
	release($node, 'lazydrop-removal-step');
	wait_for_stats($node, "(s->>'bytes_removed')::bigint > $removed");
	pass('a removal goes on after it was held up');
	reload_with($node, 'lazydrop.removal_rate' => '0');
	wait_for_nothing($node);
}

# Without a limit on the rate, the worker never sleeps.  Nevertheless it exits when the
# postmaster dies, and does not prevent another postmaster from starting.
SKIP:
{
	skip 'no SIGKILL on this platform', 3 if $windows_os;
	my @paths = create_table('t');
	add_segments($node, $paths[0], 1000, 1024 * MB);
	hold_at($node, 'lazydrop-removal');
	$node->safe_psql('postgres', 'DROP TABLE t');
	$node->wait_for_event('lazy drop worker', 'lazydrop-removal');
	my $stats = stats($node);
	my $worker = $stats->{worker_pid};
	my $postmaster = $node->{_pid};
	release($node, 'lazydrop-removal');
	wait_for_stats($node,
		"(s->>'bytes_removed')::bigint > $stats->{bytes_removed}");
	$node->kill9;
	ok(wait_until(sub { !kill(0, $worker) && !kill(0, $postmaster) }),
		'the worker ends with the postmaster');
	cmp_ok(scalar(all_files(@paths)), '>', 10, 'in the middle of its work');

	# Other processes may take some time to exit.
	ok(wait_until(sub { $node->start(fail_ok => 1) }),
		'the server starts again');
	wait_for_nothing($node);
}

# --- processes that cannot wait ---------------------------------------------

{
	hold_at($node, 'lazydrop-removal');
	my @paths = create_table('t');
	add_segments($node, $paths[0], 2, 40 * MB);
	$node->safe_psql('postgres', 'DROP TABLE t');
	$node->wait_for_event('lazy drop worker', 'lazydrop-removal');
	my @files = all_files(@paths);
	$node->safe_psql('postgres', 'CHECKPOINT');
	is_deeply([ all_files(@paths) ], [], 'a checkpoint leaves none of them');
	my $stats = stats($node);
	is($stats->{checkpoint_waits}, 1, 'and counts that');
	cmp_ok($stats->{checkpoint_wait_ms}, '>', 0, 'and the time');
	is($stats->{pending_files}, scalar(@files), 'they are pending');
	is(scalar(hidden_files($node)), scalar(@files), 'and hidden');
	release($node, 'lazydrop-removal');
}

# If a checkpoint begins after the commit record, and looks for files before the dropper
# has buried them, it leaves them to the dropper.
{
	hold_at($node, 'lazydrop-removal');
	my @paths = create_table('t');
	hold_at($node, 'lazydrop-bury');
	my $session = $node->background_psql('postgres');
	$session->query_until(qr/begun/, "\\echo begun\nDROP TABLE t;\n");
	$node->wait_for_event('client backend', 'lazydrop-bury');
	$node->safe_psql('postgres', 'CHECKPOINT');
	cmp_ok(scalar(all_files(@paths)), '>', 0, 'files after a checkpoint');
	release($node, 'lazydrop-bury');
	$session->quit;
	is_deeply([ grep { -s $node->data_dir . "/$_" } all_files(@paths) ],
		[], 'are gone at once, by the dropper');
	$node->stop('immediate');
	$node->start;
	is_deeply([ grep { -s $node->data_dir . "/$_" } all_files(@paths) ],
		[], 'since replay would not know of them');
}

# --- drops that are not deferred --------------------------------------------

{
	hold_at($node, 'lazydrop-removal');
	my $session = $node->background_psql('postgres');
	$session->query_safe(
		'BEGIN; CREATE TABLE t AS SELECT generate_series(1, 1000) AS a');
	my $path = $session->query_safe(q{SELECT pg_relation_filepath('t')});
	cmp_ok(scalar(all_files($path)), '>=', 1, 'a table in a transaction');
	$session->query_safe('ROLLBACK');
	is_deeply([ grep { -s $node->data_dir . "/$_" } all_files($path) ],
		[], 'ROLLBACK removes it at once');
	$session->quit;

	foreach my $setting ('lazydrop.enabled', 'lazydrop.defer_files')
	{
		my @paths = create_table('t');
		$node->append_conf('postgresql.conf', "$setting = off");
		$node->reload;
		$node->poll_query_until('postgres',
			"SELECT current_setting('$setting') = 'off'");
		$node->safe_psql('postgres', 'DROP TABLE t');
		is_deeply([ grep { -s $node->data_dir . "/$_" } all_files(@paths) ],
			[], "$setting = off: DROP TABLE removes it at once");
		$node->append_conf('postgresql.conf', "$setting = on");
		$node->reload;
		$node->poll_query_until('postgres',
			"SELECT current_setting('$setting') = 'on'");
	}

	# The drop does not wait for a pin, although stock would do so here.
	$node->safe_psql('postgres', 'CREATE SEQUENCE s');
	my $reader = $node->background_psql('postgres');
	$reader->query_safe(
		'BEGIN; DECLARE c CURSOR FOR SELECT * FROM s; FETCH c');
	my $timed_out;
	$node->psql(
		'postgres', 'ALTER SEQUENCE s INCREMENT 2',
		timeout => $PostgreSQL::Test::Utils::timeout_default,
		timed_out => \$timed_out);
	ok(!$timed_out,
		'a page that is pinned holds up no drop');
	$reader->quit;

	# The end of a prepared transaction is durable, whether it is a commit or a rollback.
	foreach my $end ('COMMIT', 'ROLLBACK')
	{
		my @paths = create_table('t') if $end eq 'COMMIT';
		$node->safe_psql(
			'postgres',
			'BEGIN; '
			  . (
				$end eq 'COMMIT'
				? 'DROP TABLE t'
				: 'CREATE TABLE u AS SELECT 1')
			  . "; PREPARE TRANSACTION 'p'");
		my $before = stats($node)->{pending_relations};
		$node->safe_psql('postgres', "$end PREPARED 'p'");
		cmp_ok(stats($node)->{pending_relations},
			'>', $before, "$end PREPARED leaves files to the worker");
	}
	release($node, 'lazydrop-removal');
	wait_for_nothing($node);
}

# --- sync requests of a second segment (rule R2) ----------------------------

# A page of the segment has been written and not synced when the table is dropped.
{
	$node->safe_psql('postgres', 'CREATE TABLE t AS SELECT 1 AS a');
	my $path =
	  $node->safe_psql('postgres', q{SELECT pg_relation_filepath('t')});
	my $first = $node->data_dir . "/$path";
	$node->safe_psql('postgres', 'CHECKPOINT');
	evict($node, 'postgres');
	truncate($first, 1024 * MB) or die "could not extend $first: $!";
	add_segments($node, $path, 1, 8192);
	$node->safe_psql('postgres', 'INSERT INTO t VALUES (-1)');
	is($node->safe_psql('postgres', 'SELECT ctid FROM t WHERE a = -1'),
		'(131072,1)', 'a row in the second segment');
	evict($node, 'postgres');
	$node->safe_psql('postgres', 'DROP TABLE t');
	wait_for_nothing($node);
	is_deeply([ grep { $_ ne $path } all_files($path) ],
		[], 'is removed before it is synced');
	$node->safe_psql('postgres', 'CHECKPOINT');
	pass('the checkpointer does not look for it');
}

# --- links (as rmtree) ------------------------------------------------------

# A link in a database's directory is removed, but the file that it refers to is not
# emptied.
SKIP:
{
	skip 'no links on Windows', 2 if $windows_os;
	$node->safe_psql('postgres', 'CREATE DATABASE d');
	my $oid = $node->safe_psql('postgres',
		q{SELECT oid FROM pg_database WHERE datname = 'd'});
	my $directory = $node->data_dir . "/base/$oid";
	my $elsewhere = PostgreSQL::Test::Utils::tempdir();
	link("$directory/PG_VERSION", "$elsewhere/hard")
	  or die "could not make a link: $!";
	append_to_file("$elsewhere/soft", 'text');
	symlink("$elsewhere/soft", "$directory/999999")
	  or die "could not make a symbolic link: $!";
	$node->safe_psql('postgres', 'DROP DATABASE d');
	wait_for_nothing($node);
	ok(!-e $directory, 'a directory with links is removed');
	is((-s "$elsewhere/hard") . ' ' . (-s "$elsewhere/soft"),
		'3 4', 'and what they lead to is left alone');
}

# --- an extraneous directory ------------------------------------------------

# It is removed with the database's directory, like rmtree does.
{
	$node->safe_psql('postgres', 'CREATE DATABASE d');
	my $oid = $node->safe_psql('postgres',
		q{SELECT oid FROM pg_database WHERE datname = 'd'});
	my $directory = $node->data_dir . "/base/$oid";
	mkdir "$directory/mine" or die "could not make a directory: $!";
	append_to_file("$directory/mine/file", 'text');
	my $removed = stats($node)->{bytes_removed};
	$node->safe_psql('postgres', 'DROP DATABASE d');
	wait_for_nothing($node);
	ok(!-e $directory, 'a directory with another one is removed');
	is_deeply([ hidden_files($node) ], [], 'and not hidden');
	cmp_ok(stats($node)->{bytes_removed} - $removed,
		'>', MB, 'the bytes of a database are counted when they go');
}

# --- a dropper that fails after its commit ----------------------------------

# No process waits for this dropper, and its files are left behind, as in stock.
{
	my ($path) = create_table('t');
	$node->safe_psql('postgres',
		q{BEGIN; DROP TABLE t; PREPARE TRANSACTION 'p'});
	$node->safe_psql('postgres',
		q{SELECT injection_points_attach('lazydrop-forgotten', 'error')});
	my ($ret, $out, $err) = $node->psql('postgres', q{COMMIT PREPARED 'p'});
	like(
		$err,
		qr/error triggered for injection point/,
		'a dropper fails after the commit');
	$node->safe_psql('postgres',
		q{SELECT injection_points_detach('lazydrop-forgotten')});
	wait_for_nothing($node);
	$node->safe_psql('postgres', 'CHECKPOINT');
	pass('and no process waits for it');
	$node->restart;
}

# --- files that cannot be removed -------------------------------------------

SKIP:
{
	skip 'permissions of directories are different on Windows', 9
	  if $windows_os;
	$node->safe_psql('postgres', q{CREATE TABLESPACE ts LOCATION ''});
	my ($path) = create_table('t', 'TABLESPACE ts');
	my ($directory) = ($node->data_dir . "/$path") =~ m{^(.*)/[0-9]+$};
	my $offset = -s $node->logfile;
	chmod 0500, $directory or die "could not change $directory: $!";
	$node->safe_psql('postgres', 'DROP TABLE t');
	wait_for_nothing($node);
	my $log = slurp_file($node->logfile, $offset);
	like(
		$log,
		qr/WARNING:  could not remove file "\Q${path}\E_fsm": Permission denied/,
		'a file that cannot be removed is warned of');
	is( scalar(
			() = $log =~ /WARNING:  could not remove file "\Q${path}\E_fsm"/g
		),
		2,
		'the first and the last time');
	is(-s $node->data_dir . "/${path}_fsm", 0, 'its space is given back');
	$node->safe_psql('postgres', 'CHECKPOINT');
	pass('a checkpoint goes on');

	# Repeat this with a directory, whose removal takes several looks for a pass.
	$node->safe_psql('postgres', 'CREATE DATABASE d TABLESPACE ts');
	my $oid = $node->safe_psql('postgres',
		q{SELECT oid FROM pg_database WHERE datname = 'd'});
	my $database = $directory =~ s{[0-9]+$}{$oid}r;
	add_segments($node, ($path =~ s{[0-9]+/[0-9]+$}{$oid/1}r), 1, 12 * MB);
	reload_with($node, 'lazydrop.removal_rate' => '1MB');
	chmod 0500, $database or die "could not change $database: $!";
	$offset = -s $node->logfile;
	$node->safe_psql('postgres', 'DROP DATABASE d');
	wait_for_nothing($node);
	$log = slurp_file($node->logfile, $offset);
	like(
		$log,
		qr/WARNING:  could not remove file "[^"]*PG_VERSION": Permission denied/,
		'the same for a file of a database');
	like(
		$log,
		qr/DETAIL:  It will be tried again\..*DETAIL:  It is left behind\./s,
		'which is tried again, and then left');
	is( scalar(
			() = $log =~ /WARNING:  could not remove file "[^"]*PG_VERSION"/g),
		2,
		'which is said twice');
	reload_with($node, 'lazydrop.removal_rate' => 0);
	$node->safe_psql('postgres', 'CHECKPOINT');
	$node->restart;
	chmod 0700, $directory, $database;
	unlink glob("$database/*"), glob("$directory/*");
	pass('the server stops and starts');
	$node->safe_psql('postgres', 'DROP TABLESPACE ts');
}

my $log = slurp_file($node->logfile);
unlike(
	$log,
	qr/PANIC|TRAP|could not fsync|could not open/,
	'the log is clean');
$node->stop;

done_testing();
