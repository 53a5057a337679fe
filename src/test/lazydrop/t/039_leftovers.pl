# Copyright (c) 2026, LazyDrop developers

# When the server ends, hidden files lose their entry.  A start does not wait for their
# removal: the worker finds them by their names, also after a crash that does not end the
# postmaster, and they are pending again (rule R8).  Stock removes them when it starts.
# The test also has files that cannot be hidden or removed for a moment.

use strict;
use warnings FATAL => 'all';

use File::Basename qw(basename);
use FindBin;
use lib "$FindBin::RealBin/..";
use LazyDropFiles
  qw(relation_files add_segments hidden_files nothing_is_left);
use LazyDropUtils
  qw(stats wait_for_nothing wait_for_stats hold_at release wait_until
  reload_with need_injection_points start_quiet_node start_as);
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::RecursiveCopy;
use PostgreSQL::Test::Utils;
use Test::More;

need_injection_points();

use constant MB => 1024 * 1024;

my $stock = $ENV{LAZYDROP_STOCK};
$stock = undef unless defined $stock && -x "$stock/bin/postgres";

my $node = start_quiet_node('node',
	'lazydrop.removal_rate' => '1MB',
	'restart_after_crash' => 'on');
$node->safe_psql('postgres', 'CREATE EXTENSION injection_points');
my $data = $node->data_dir;

sub run
{
	$node->safe_psql('postgres', $_) foreach @_;
	return;
}

# Create a table with two sparse segments of 40 MB, without blocks on the disk.  Returns
# its path.
sub create_table
{
	my ($name, $options) = @_;
	run("CREATE TABLE $name " . ($options // '') . ' AS SELECT 1 AS a');
	my $path =
	  $node->safe_psql('postgres', "SELECT pg_relation_filepath('$name')");
	add_segments($node, $path, 2, 40 * MB);
	run('CHECKPOINT');
	return $path;
}

# Drop the table, and wait until its files are hidden and files are being removed slowly.
sub drop_slowly
{
	my ($name) = @_;
	run("DROP TABLE $name");
	run('CHECKPOINT');
	$node->wait_for_event('lazy drop worker', 'LazyDropThrottle');
	cmp_ok(scalar(hidden_files($node)), '>=', 2, "$name: files are hidden");
	return;
}

sub wait_for_leftovers
{
	wait_for_stats($node, q{(s->>'pending_bytes')::bigint > 40 * 1024 * 1024});
	return;
}

sub finish
{
	my ($what) = @_;
	reload_with($node, 'lazydrop.removal_rate' => '0');
	nothing_is_left($node, $what);
	reload_with($node, 'lazydrop.removal_rate' => '1MB');
	return;
}

# --- a crash that the postmaster survives -----------------------------------

# This must also work with remove_temp_files_after_crash = off.  Files that are hidden
# later must have different names.
foreach my $setting ('on', 'off')
{
	my $what = "remove_temp_files_after_crash = $setting";
	reload_with($node, 'remove_temp_files_after_crash' => $setting);
	create_table('t');
	drop_slowly('t');
	my @before = hidden_files($node);
	my $victim = $node->background_psql('postgres', on_error_stop => 0);
	my $pid = $victim->query_safe('SELECT pg_backend_pid()');
	kill 'KILL', $pid;
	eval { $victim->quit };
	eval { $victim->{run}->finish };
	$node->poll_query_until('postgres', 'SELECT true')
	  or die 'the server does not restart';
	wait_for_leftovers();
	is_deeply(
		[ stats($node)->{pending_relations}, stats($node)->{pending_files} ],
		[ 0, 2 ],
		"$what: after a crash, files are pending, and no relation");
	is($node->safe_psql('postgres', 'SELECT count(*) FROM pg_ls_tmpdir()'),
		2, 'as pg_ls_tmpdir() shows');
	create_table('u');
	run('DROP TABLE u', 'CHECKPOINT');
	my @after = hidden_files($node);
	is(scalar(@after), 5, 'what is dropped then has names of its own')
	  or diag explain [ \@before, \@after ];
	finish($what);
}
reload_with($node, 'remove_temp_files_after_crash' => 'on');

# --- a drain, and DROP TABLESPACE -------------------------------------------

{
	run(q{CREATE TABLESPACE ts LOCATION ''});
	create_table('t');
	create_table('u', 'TABLESPACE ts');
	drop_slowly($_) foreach qw(t u);
	$node->stop('immediate');

	# Simulate a crash after the last file of a directory was removed, and before the
	# directory itself was.
	my ($spcoid) = map { m{pg_tblspc/([0-9]+)/} ? $1 : () } hidden_files($node);
	my ($dir) = glob("'$data'/pg_tblspc/$spcoid/*/pgsql_tmp");
	mkdir "$dir/pgsql_tmp.lazydrop.1.0";
	$node->start;
	wait_for_leftovers();
	my $began = stats($node)->{pending_files};
	run('DROP TABLESPACE ts');
	cmp_ok(stats($node)->{pending_files}, '<', $began,
		'DROP TABLESPACE removes what an earlier start has hidden there');
	cmp_ok(stats($node)->{pending_files}, '>', 0, 'and nothing else');
	finish('in the end');
}

# --- no worker --------------------------------------------------------------

{
	create_table('t');
	drop_slowly('t');
	$node->stop('immediate');
	$node->append_conf('postgresql.conf', 'max_worker_processes = 0');
	$node->start;
	is_deeply([ hidden_files($node) ],
		[], 'a server without a worker removes them when it starts');
	$node->append_conf('postgresql.conf', 'max_worker_processes = 8');
	$node->restart;
}

# --- both kinds of names, and stock -----------------------------------------

# Files cannot be created in pgsql_tmp, so a table and a database get names of the second
# kind.
foreach my $to ('the fork', 'stock')
{
  SKIP:
	{
		skip 'no installation of stock PostgreSQL', 5
		  if $to eq 'stock' && !defined $stock;
		rmdir "$data/base/pgsql_tmp";
		append_to_file("$data/base/pgsql_tmp", "a file\n");
		create_table('t');
		run('CREATE DATABASE d');
		my $oid = $node->safe_psql('postgres',
			q{SELECT oid FROM pg_database WHERE datname = 'd'});
		add_segments($node, "base/$oid/1", 1, 40 * MB);

		# A backup may have hard links to the files.
		my $backup = PostgreSQL::Test::Utils::tempdir();
		my @copies = map { "$backup/$_" } qw(1.1 1259 PG_VERSION);
		foreach my $copy (@copies)
		{
			link("$data/base/$oid/" . basename($copy), $copy)
			  or die "could not make a link: $!";
		}
		my @sizes = map { -s $_ } @copies;
		run('DROP TABLE t', 'DROP DATABASE d', 'CHECKPOINT');
		wait_until(sub { !-e "$data/base/$oid" })
		  or die 'the directory is still there';
		$node->wait_for_event('lazy drop worker', 'LazyDropThrottle');
		$node->stop('fast');
		unlink "$data/base/pgsql_tmp";
		my @left = glob("'$data'/base/0/*");
		cmp_ok(scalar(@left), '>=', 2, "then $to: files in another directory");
		is(scalar(grep { !m{/t[0-9]+_[0-9]+(\.[0-9]+)?$} } @left),
			0, 'have names of temporary relations');
		$node->command_ok([ 'pg_checksums', '--check', $data ],
			'which pg_checksums can read');
		if ($to eq 'stock')
		{
			start_as($node, 'stock');
			is_deeply([ glob("'$data'/base/0/*"), hidden_files($node) ],
				[], 'stock removes them when it starts');
			$node->stop;
			start_as($node, 'fork');
			rmdir "$data/base/0";
		}
		else
		{
			$node->start;
			wait_for_leftovers();
			my @still = glob("'$data'/base/0/*");
			cmp_ok(scalar(@still), '>', 0,
				'the fork leaves them to the worker');
		}
		finish("then $to");
		ok(!-e "$data/base/0", 'nor is the directory');
		is_deeply([ map { -s $_ } @copies ],
			\@sizes, 'files with another name were not truncated');
	}
}

# --- a clock that was set back ----------------------------------------------

# The worker would not recognize these as files of an earlier start, so they are removed
# at the start.
{
	$node->stop;
	my $later = 10_000_000_000_000_000;
	mkdir "$data/base/$_" foreach qw(0 pgsql_tmp);
	append_to_file("$data/base/0/t${later}_0", 'a file');
	append_to_file("$data/base/pgsql_tmp/pgsql_tmp.lazydrop.$later.0",
		'a file');
	$node->start;
	is_deeply([ glob("'$data'/base/0/*"), hidden_files($node) ],
		[], 'files from the future are removed by the start');
	rmdir "$data/base/0";
}

# --- a name that cannot be kept ---------------------------------------------

# A checkpoint has hidden the first segment, and cannot create the empty file that keeps
# its name, because another file has the name.  The segment gets its name back, and is
# emptied.
{
	my $path = create_table('t');
	hold_at($node, 'lazydrop-removal');
	run('DROP TABLE t');
	$node->wait_for_event('lazy drop worker', 'lazydrop-removal');
	hold_at($node, 'lazydrop-keep-name');
	hold_at($node, 'lazydrop-checkpoint-end');
	my $session = $node->background_psql('postgres', on_error_stop => 0);
	$session->query_until(qr/begun/, "\\echo begun\nCHECKPOINT;\n");
	$node->wait_for_event('checkpointer', 'lazydrop-keep-name');
	ok(!-e "$data/$path", 'the first segment is hidden');
	append_to_file("$data/$path", 'in the way');
	release($node, 'lazydrop-keep-name');
	$node->wait_for_event('checkpointer', 'lazydrop-checkpoint-end');
	is(-s "$data/$path", 0, 'it has its name back, without a byte');
	is(scalar(hidden_files($node)), 2, 'the others are hidden');
	release($node, 'lazydrop-checkpoint-end');
	$session->quit;
	ok(!-e "$data/$path", 'and the checkpoint has unlinked it');
	release($node, 'lazydrop-removal');
	finish('a name that could not be kept');
}

# --- a file system that fails temporarily -----------------------------------

# The removal of files is retried if it fails.
SKIP:
{
	skip 'permissions of directories are different on Windows', 3
	  if $windows_os;
	run(q{CREATE TABLESPACE ts LOCATION ''});
	my $path = create_table('t', 'TABLESPACE ts');
	reload_with($node, 'lazydrop.removal_rate' => '0');
	my ($directory) = "$data/$path" =~ m{^(.*)/[0-9]+$};
	my $offset = -s $node->logfile;
	chmod 0500, $directory or die "could not change $directory: $!";
	run('DROP TABLE t');
	$node->wait_for_log(qr/could not remove file.*\n.*It will be tried again/,
		$offset);
	run('CHECKPOINT');
	cmp_ok(scalar(relation_files($node, $path)),
		'>=', 2, 'files that cannot be removed outlive a checkpoint');
	is(stats($node)->{pending_relations}, 1, 'but are still pending');
	chmod 0700, $directory;
	wait_for_nothing($node);
	is_deeply([ relation_files($node, $path) ],
		[$path], 'they go when they can be removed');
	is(-s "$data/$path", 0,
		'but for the first segment, which the checkpoint could not unlink');
	unlink "$data/$path";
	run('DROP TABLESPACE ts');
}

# --- a gap left by a backup (rule R14) --------------------------------------

# A table is dropped while it is copied: after the copy of its third segment, and before
# the copy of its second.  Stock never removes the third one.
{
	my $path = create_table('t');
	my $session = $node->background_psql('postgres');
	$session->query_safe('SET client_min_messages = warning');
	$session->query_safe(q{SELECT pg_backup_start('gap', true)});
	my $backup = $node->backup_dir . '/gap';
	mkdir $node->backup_dir;
	PostgreSQL::Test::RecursiveCopy::copypath(
		$data, $backup,
		filterfn => sub {
			return $_[0] !~ m{^(postmaster\.|pg_wal/0|\Q$path\E\.1$)};
		});
	run('DROP TABLE t');
	my $label = $session->query_safe('SELECT labelfile FROM pg_backup_stop()');
	$session->quit;
	append_to_file("$backup/backup_label", "$label\n");
	my $restored = PostgreSQL::Test::Cluster->new('restored');
	$restored->init_from_backup($node, 'gap', has_streaming => 1);
	ok( -e $restored->data_dir . "/$path.2"
		  && !-e $restored->data_dir . "/$path.1",
		'a backup has the third segment, and not the second');
	$restored->append_conf('postgresql.conf', 'lazydrop.removal_rate = 0');
	$restored->start;
	$node->wait_for_replay_catchup($restored);
	wait_for_nothing($restored);
	is_deeply([ glob("'" . $restored->data_dir . "/$path'*") ],
		[], 'replay of the drop leaves neither');
	$restored->stop;
	finish('in the end');
}

# --- time stamps ------------------------------------------------------------

# Tools that monitor temporary files must not see a file that is a year old.
{
	my $path = create_table('t');
	reload_with($node, 'lazydrop.removal_rate' => '1MB');
	my $then = time() - 400 * 86400;
	utime($then, $then, map { "$data/$_" } relation_files($node, $path));
	drop_slowly('t');
	is( $node->safe_psql(
			'postgres',
			q{SELECT bool_and(modification > now() - interval '1 hour') FROM pg_ls_tmpdir()}
		),
		't',
		'hidden files have a new time');
	finish('in the end');
}

$node->stop;
unlike(
	slurp_file($node->logfile),
	qr/PANIC|TRAP|could not (open|read|fsync|write) file|invalid page/,
	'the log is clean');

done_testing();
