# Copyright (c) 2026, LazyDrop developers

=pod

=head1 NAME

LazyDropUtils - functions to observe and delay the drops of a server

=head1 DESCRIPTION

Functions that the tests and the demonstration share.  Nodes are PostgreSQL::Test::Cluster
objects.

=cut

package LazyDropUtils;

use strict;
use warnings FATAL => 'all';

use Carp;
use Cwd qw(abs_path);
use Exporter 'import';
use File::Basename qw(dirname);
use IPC::Run;
use JSON::PP;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(usleep);

our @EXPORT_OK = qw(dbase_drop_records create_replay_timer hold_replay
  wait_for_receipt time_replay database_directories stats wait_for_stats hold_at release
  wait_until minimum_recovery_point relation_files add_segments hidden_files
  orphaned_files nothing_is_left contents need_injection_points need_test_extra can_mount need_mounts
  reload_with stop_process continue_process start_quiet_node log_is_clean
  stop_with_clean_log start_quiet_pair start_binary_upgrade wait_for_nothing start_as
  manual_queries monitoring_queries pg_major evict evict_query init_with_checksums);

=pod

=over

=item pg_major()

Returns the major version of the PostgreSQL under test.

=cut

sub pg_major
{
	my ($version) = run_command([ 'pg_config', '--version' ]);
	return ($version =~ /^PostgreSQL (\d+)/)[0];
}

=pod

=item init_with_checksums($node, ...)

Calls init of PostgreSQL::Test::Cluster, and makes sure that the data directory has
checksums, which are the default only since PostgreSQL 18.

=cut

sub init_with_checksums
{
	my ($node, @params) = @_;
	$node->init(@params);
	system_or_bail('pg_checksums', '--enable', '--no-sync', $node->data_dir)
	  if pg_major() < 18;
	return;
}

=pod

=item evict($node, $database [, $table])

Write out the dirty buffers of a database cluster, or of a table only, and evict all of
them that are not pinned.  The database must have the extension pg_buffercache.

=item evict_query([$table])

Returns the query that evict() runs.

=cut

sub evict
{
	my ($node, $database, $table) = @_;
	$node->safe_psql($database, evict_query($table));
	return;
}

sub evict_query
{
	my ($table) = @_;
	my $which =
	  defined $table
	  ? "= pg_relation_filenode('$table')"
	  : 'IS NOT NULL';
	return
	  "SELECT count(pg_buffercache_evict(bufferid)) FROM pg_buffercache WHERE relfilenode $which";
}

=pod

=item dbase_drop_records($node, $start, $end)

Returns the XLOG_DBASE_DROP records between two LSNs in a node's own pg_wal, as pg_waldump
shows them: a list of hash references with lsn, prev (the start of the preceding record)
and pairs (a list of "tablespace/database").

=cut

sub dbase_drop_records
{
	my ($node, $start, $end) = @_;
	my ($out, $err) = ('', '');
	IPC::Run::run(
		[
			$node->installed_command('pg_waldump'),
			'--path' => $node->data_dir . '/pg_wal',
			'--rmgr' => 'Database',
			'--start' => $start,
			'--end' => $end
		],
		'>' => \$out,
		'2>' => \$err) or croak "pg_waldump failed: $err";

	my @records;
	foreach my $line (split /\n/, $out)
	{
		my ($lsn, $prev, $desc) =
		  $line =~
		  m{lsn: ([0-9A-F]+/[0-9A-F]+), prev ([0-9A-F]+/[0-9A-F]+), desc: (.*)$}
		  or croak "unexpected line of pg_waldump: $line";
		next unless $desc =~ /^DROP dir (.*)$/;
		push @records,
		  { lsn => $lsn, prev => $prev, pairs => [ split ' ', $1 ] };
	}
	return @records;
}

=pod

=item create_replay_timer($primary)

Create the function that time_replay() calls on standbys.

Polling takes a few microseconds, which is about the precision of the result.  The
position that the standby reports is the end of the last replayed record.  A page boundary
boundary may separate it from the start of the next record.  A record therefore counts as
replayed when the position is beyond the record's start; the position is not compared with
the record's end.

=cut

sub create_replay_timer
{
	my ($primary) = @_;
	$primary->safe_psql(
		'postgres', q{
		CREATE FUNCTION time_replay(prev pg_lsn, record pg_lsn)
		RETURNS double precision LANGUAGE plpgsql AS $$
		DECLARE
			began timestamptz;
		BEGIN
			PERFORM pg_wal_replay_resume();
			WHILE pg_last_wal_replay_lsn() <= prev LOOP
			END LOOP;
			began := clock_timestamp();
			WHILE pg_last_wal_replay_lsn() <= record LOOP
			END LOOP;
			RETURN extract(epoch FROM clock_timestamp() - began) * 1000;
		END $$});
	return;
}

=pod

=item hold_replay($standby)

Pause replay on a standby, and wait until it is paused.

=cut

sub hold_replay
{
	my ($standby) = @_;
	$standby->safe_psql('postgres', 'SELECT pg_wal_replay_pause()');
	$standby->poll_query_until('postgres',
		q{SELECT pg_get_wal_replay_pause_state() = 'paused'})
	  or croak "replay was not paused";
	return;
}

=pod

=item wait_for_receipt($standby, $lsn)

Wait until a standby has received WAL up to an LSN.  It need not have replayed it.

=cut

sub wait_for_receipt
{
	my ($standby, $lsn) = @_;
	$standby->poll_query_until('postgres',
		"SELECT pg_last_wal_receive_lsn() >= '$lsn'")
	  or croak $standby->name . ' has not received WAL';
	return;
}

=pod

=item time_replay($standby, $record, $end)

Replay must be paused on the standby.  Wait until it has received WAL up to $end, resume
replay, and return how long the replay of one record took, in milliseconds.  The record is
one of those that dbase_drop_records() returns.

=cut

sub time_replay
{
	my ($standby, $record, $end) = @_;
	wait_for_receipt($standby, $end);
	return $standby->safe_psql(
		'postgres',
		"SELECT time_replay('$record->{prev}', '$record->{lsn}')",
		timeout => $PostgreSQL::Test::Utils::timeout_default);
}

=pod

=item database_directories($node, $oid)

Returns the directories of a database on a node, in all tablespaces, as paths relative to
the data directory.

=cut

sub database_directories
{
	my ($node, $oid) = @_;
	my $data = $node->data_dir;
	return map { substr($_, length($data) + 1) }
	  grep { -d } ("$data/base/$oid", glob("'$data'/pg_tblspc/*/*/$oid"));
}

=pod

=item relation_files($node, $path)

Returns the sorted list of a relation's files on a node, of all forks and segments.  The
given path and the returned paths are relative to the data directory, like the result of
pg_relation_filepath.

=cut

sub relation_files
{
	my ($node, $path) = @_;
	my $data = $node->data_dir;
	my @files = sort grep { m{^\Q$path\E(_(fsm|vm|init))?(\.[0-9]+)?$} }
	  map { substr($_, length($data) + 1) } glob("'$data/$path'*");
	return @files;
}

=pod

=item add_segments($node, $path, $n, $size)

Add $n segments of $size bytes each to a relation that will be dropped.  The files are
sparse, and have no blocks on the disk.

=cut

sub add_segments
{
	my ($node, $path, $n, $size) = @_;
	foreach my $segno (1 .. $n)
	{
		my $name = $node->data_dir . "/$path.$segno";
		open(my $file, '>', $name) or croak "could not create $name: $!";
		truncate($file, $size) or croak "could not extend $name: $!";
		close($file);
	}
	return;
}

=pod

=item hidden_files($node)

Returns the files and directories that a node has hidden and not yet removed, sorted, as
paths relative to its data directory.

=cut

sub hidden_files
{
	my ($node) = @_;
	my $data = $node->data_dir;
	my $name = 'pgsql_tmp/pgsql_tmp.lazydrop.*';
	my @files = sort map { substr($_, length($data) + 1) }
	  glob("'$data'/base/$name '$data'/pg_tblspc/*/*/$name");
	return @files;
}

=pod

=item orphaned_files($node [, crashed => 1])

Returns the directories of databases and tablespaces that are not in a node's catalogs,
and the files in directories of known databases that are not in pg_class, sorted, as paths
relative to the data directory.  Databases that do not allow connections are not searched.
On a primary, call this after a checkpoint, which unlinks the first segments of dropped
relations.

A server that has crashed, or that is a copy of another one, may have empty first
segments: stock PostgreSQL leaves them when a checkpoint happens between a commit and the
request to unlink them.  They are ignored if "crashed" is set.

=cut

sub orphaned_files
{
	my ($node, %options) = @_;
	my $data = $node->data_dir;
	my $major = $node->pg_version->major;
	my (%databases, %known);
	foreach my $line (
		split /\n/,
		$node->safe_psql(
			'postgres', q{
			SELECT oid, datallowconn AND datconnlimit <> -2, datname
			FROM pg_database}))
	{
		my ($oid, $can_connect, $name) = split /\|/, $line, 3;
		$databases{$oid} = $can_connect eq 't';
		next if !$databases{$oid};
		$known{$_} = 1 foreach split /\n/, $node->safe_psql(
			$name, q{
			SELECT pg_relation_filepath(oid) FROM pg_class
			WHERE pg_relation_filepath(oid) IS NOT NULL});
	}
	my %tablespaces = map { $_ => 1 } split /\n/,
	  $node->safe_psql('postgres', 'SELECT oid FROM pg_tablespace');

	my @orphans =
	  grep { m{/([0-9]+)$} && !$tablespaces{$1} }
	  map { substr($_, length($data) + 1) } glob("'$data'/pg_tblspc/*");
	foreach my $directory (
		map { substr($_, length($data) + 1) } glob(
			"'$data'/global '$data'/base/* '$data'/pg_tblspc/*/PG_${major}_*/*"
		))
	{
		if ($directory =~ m{/([0-9]+)$} && !$databases{$1})
		{
			push @orphans, $directory if !exists $databases{$1};
			next;
		}
		next unless $directory =~ m{^global$|/[0-9]+$};
		foreach my $file (slurp_dir("$data/$directory"))
		{
			next
			  if $file =~
			  /^(\.\.?|PG_VERSION|pg_filenode\.map(\.tmp)?|pg_internal\.init.*)$/;
			my ($number, $rest) = $file =~ /^((?:t[0-9]+_)?[0-9]+)(.*)$/;
			if (!defined $number)
			{
				push @orphans, "$directory/$file" if $directory ne 'global';
				next;
			}
			next
			  if $known{"$directory/$number"}
			  && $rest =~ /^(_(fsm|vm|init))?(\.[0-9]+)?$/;
			next
			  if $options{crashed}
			  && $rest eq ''
			  && -z "$data/$directory/$file";
			push @orphans, "$directory/$file";
		}
	}
	@orphans = sort @orphans;
	return @orphans;
}

=pod

=item nothing_is_left($node, $what)

Wait until nothing is pending, make a checkpoint, and check that no file of a dropped
relation is left, neither under its own name nor hidden.

=cut

sub nothing_is_left
{
	my ($node, $what) = @_;
	wait_for_nothing($node);
	$node->safe_psql('postgres', 'CHECKPOINT');
	# The worker may still be searching for files that were hidden before a restart.
	wait_until(sub { !hidden_files($node) });
	is_deeply([ hidden_files($node), orphaned_files($node) ],
		[], "$what: nothing is left");
	return;
}

=pod

=item contents($node [, users_only => 1, except => \@names])

Returns a hash reference with the number of rows and a checksum of each permanent table,
materialized view and sequence of each database.  Catalogs are left out, except those that
list the relations and databases; with "users_only", these are left out, too.

=cut

sub contents
{
	my ($node, %options) = @_;
	my $catalogs =
	  $options{users_only}
	  ? 'false'
	  : q{c.relname IN ('pg_class', 'pg_attribute', 'pg_database', 'pg_tablespace')};
	my $except = join(', ', map { "'$_'" } '', @{ $options{except} // [] });
	my %contents;
	foreach my $database (
		split /\n/,
		$node->safe_psql(
			'postgres', q{
			SELECT datname FROM pg_database
			WHERE datallowconn AND datconnlimit <> -2}))
	{
		my $lines = $node->safe_psql(
			$database, qq{
			SELECT format('SELECT %L, count(*), sum(hashtextextended(t::text, 0)::numeric) FROM %s AS t',
				c.oid::regclass, c.oid::regclass)
			FROM pg_class AS c JOIN pg_namespace AS n ON n.oid = c.relnamespace
			WHERE c.relkind IN ('r', 'm', 'S') AND c.relpersistence = 'p'
				AND c.relname NOT IN ($except)
				AND (c.oid >= 16384 AND n.nspname NOT LIKE 'pg\\_%' OR $catalogs) \\gexec}
		);
		$contents{"$1 in $database"} = $2
		  while $lines =~ /^([^|]+)\|(\d+\|.*)$/mg;
	}
	return \%contents;
}

=pod

=item need_injection_points()

Skip the whole test if the build does not support injection points.

=cut

sub need_injection_points
{
	plan skip_all => 'Injection points not supported by this build'
	  if ($ENV{enable_injection_points} // '') ne 'yes';
	return;
}

=pod

=item need_test_extra()

Skip the whole test, which takes minutes, unless PG_TEST_EXTRA contains "lazydrop_long".

=cut

sub need_test_extra
{
	plan skip_all =>
	  'takes long, and lazydrop_long is not enabled in PG_TEST_EXTRA'
	  if ($ENV{PG_TEST_EXTRA} // '') !~ /\blazydrop_long\b/;
	return;
}

=pod

=item can_mount()

Run the test again in a user namespace, in which it can mount file systems.  Returns
whether that is possible.  It must be called in a BEGIN block.

=cut

sub can_mount
{
	return 1 if $ENV{LAZYDROP_TEST_MOUNTS};
	my @unshare =
	  ('unshare', '--user', '--map-current-user', '--mount', '--keep-caps');
	my $directory = abs_path(PostgreSQL::Test::Utils::tempdir());
	my $try = 'mount -t tmpfs tmpfs "$0" && mount --bind "$0" "$0"';
	return 0
	  if system("@unshare sh -c '$try' '$directory' >/dev/null 2>&1") != 0;
	$ENV{LAZYDROP_TEST_MOUNTS} = 'yes';
	exec(@unshare, $^X, (map { "-I$_" } @INC), $0)
	  or croak "could not run unshare: $!";
}

=pod

=item need_mounts()

Like can_mount(), but skip the whole test if it cannot mount file systems.

=cut

sub need_mounts
{
	plan skip_all => 'cannot mount file systems here' if !can_mount();
	return;
}

=pod

=item start_quiet_node($name, %settings)

Initialize and start a server that can have standbys.  By default, it drops and writes
nothing unless the test makes it do so, and its worker does not wait for more drops before
it makes a pass.  The settings given override these defaults.

=cut

sub start_quiet_node
{
	my ($name, %settings) = @_;
	%settings = (
		'allow_in_place_tablespaces' => 'on',
		'autovacuum' => 'off',
		'bgwriter_lru_maxpages' => '0',
		'checkpoint_timeout' => '1h',
		'lazydrop.enabled' => 'on',
		'lazydrop.max_pending' => '16384',
		'lazydrop.pass_delay' => '0',
		'lazydrop.scan_limit' => '0',
		'shared_buffers' => '32MB',
		%settings);
	my $node = PostgreSQL::Test::Cluster->new($name);
	init_with_checksums($node, allows_streaming => 1);
	$node->append_conf('postgresql.conf',
		join('', map { "$_ = $settings{$_}\n" } sort keys %settings));
	$node->start;
	return $node;
}

=pod

=item reload_with($node, %settings)

Append settings to a node's configuration file, reload it, and wait until the postmaster
has read it.

=cut

sub reload_with
{
	my ($node, %settings) = @_;
	my $before = $node->safe_psql('postgres', 'SELECT pg_conf_load_time()');
	$node->append_conf('postgresql.conf',
		join('', map { "$_ = $settings{$_}\n" } sort keys %settings));
	$node->reload;
	$node->poll_query_until('postgres',
		"SELECT pg_conf_load_time() > '$before'")
	  or croak $node->name . ' has not read its configuration';
	return;
}

=pod

=item start_as($node, $kind [, $installation])

Start a node with the binaries of "stock", which is the installation that the environment
variable LAZYDROP_STOCK names, or of the "fork", which may be another installation of it.
Programs that are run for the node later are taken from there, too.

=cut

sub start_as
{
	my ($node, $kind, $installation) = @_;
	$node->{_install_path} =
	  $kind eq 'stock' ? $ENV{LAZYDROP_STOCK} : $installation;
	$node->start;
	my $version = $node->safe_psql('postgres', 'SELECT version()');
	croak $node->name . " is not $kind: $version"
	  if ($version =~ /LazyDrop/) != ($kind eq 'fork');
	return;
}

=pod

=item manual_queries($file)

Returns the queries in a file of the manual, as a hash of their texts for psql.  The key
is the id of the section and a number.

=cut

sub manual_queries
{
	my ($file) = @_;
	my $text = slurp_file(dirname(__FILE__) . "/../../../doc/src/sgml/$file");
	my %queries;
	my $section = $file;
	while ($text =~
		m{<sect\d id="([^"]+)">|<programlisting>(?:<!\[CDATA\[)?(.*?)(?:\]\]>)?</programlisting>}gs
	  )
	{
		if (defined $1)
		{
			$section = $1;
			next;
		}
		my $query = $2;
		next unless $query =~ /^\s*(?:SELECT|WITH|\\if|\\set)\b/;
		$query =~ s/&lt;/</g;
		$query =~ s/&gt;/>/g;
		$query =~ s/&amp;/&/g;
		my $number = 1;
		$number++ while exists $queries{"$section $number"};
		$queries{"$section $number"} = $query;
	}
	return %queries;
}

=pod

=item monitoring_queries()

Returns the queries that contrib/pg_lazydrop has for monitoring systems.  The key is the
name of the file; for lazydrop_exporter.yml, it is followed by the name of the metric.

=cut

sub monitoring_queries
{
	my $directory = dirname(__FILE__) . '/../../../contrib/pg_lazydrop';
	my $exporter = slurp_file("$directory/lazydrop_exporter.yml");
	my %queries =
	  ('lazydrop_check.sql' => slurp_file("$directory/lazydrop_check.sql"));
	$queries{"lazydrop_exporter.yml $1"} = $2
	  while $exporter =~
	  /^(\w+):\n(?: {2}\w.*\n)*? +query: \|\n((?: {4}.*\n)+)/mg;
	croak 'there is no query in lazydrop_exporter.yml' if keys %queries < 2;
	return %queries;
}

=pod

=item start_binary_upgrade($node)

Start a server in binary-upgrade mode, which allows the test to choose OIDs and
relfilenumbers.

=cut

sub start_binary_upgrade
{
	my ($node) = @_;
	system_or_bail(
		'pg_ctl', '--wait',
		'--pgdata' => $node->data_dir,
		'--log' => $node->logfile,
		'--options' => '-b',
		'start');
	$node->_update_pid(1);
	return;
}

=pod

=item start_quiet_pair(%settings)

Start a server like start_quiet_node(), with the extension injection_points, and a
standby.  Returns both.

=cut

sub start_quiet_pair
{
	my (%settings) = @_;
	my $primary = start_quiet_node('primary', %settings);
	$primary->safe_psql('postgres', 'CREATE EXTENSION injection_points');
	$primary->backup('backup');
	my $standby = PostgreSQL::Test::Cluster->new('standby');
	$standby->init_from_backup($primary, 'backup', has_streaming => 1);
	$standby->start;
	return ($primary, $standby);
}

=pod

=item wait_for_nothing(@nodes)

Wait until nothing is pending.

=cut

sub wait_for_nothing
{
	wait_for_stats(
		$_,
		q{s->>'pending_relations' = '0' AND s->>'pending_databases' = '0' AND s->>'pending_files' = '0'}
	) foreach @_;
	return;
}

=pod

=item log_is_clean($node [, offset => $offset, crashed => 1])

Check that the log of a server, from the offset on, has no message that would result from
writing a page to a lost or removed file.  A server that has crashed may replay a DROP
DATABASE whose directory has already been removed.  It then logs a warning, which stock
PostgreSQL does as well.

=item stop_with_clean_log($node [, $offset])

Stop a server, and check that its log is clean.

=cut

sub log_is_clean
{
	my ($node, %options) = @_;
	my @bad =
	  grep {
		/PANIC|TRAP|could not (open|read|fsync|write)|invalid page|corrupted statistics/
		  && !($options{crashed}
			&& /WARNING:  could not open directory "[^"]*": No such file/)
	  } split /\n/, slurp_file($node->logfile, $options{offset});
	is_deeply(\@bad, [], 'the log is clean on ' . $node->name);
	return;
}

sub stop_with_clean_log
{
	my ($node, $offset) = @_;
	$node->stop;
	log_is_clean($node, offset => $offset);
	return;
}

=pod

=item stats($node)

Returns the counters of lazydrop.stats, as a hash reference.

=cut

sub stats
{
	my ($node) = @_;
	return decode_json($node->safe_psql('postgres', 'SHOW lazydrop.stats'));
}

=pod

=item wait_for_stats($node, $condition)

Wait until a condition is true.  It is an SQL expression on the JSON document "s".

=cut

sub wait_for_stats
{
	my ($node, $condition) = @_;
	$node->poll_query_until('postgres',
		"SELECT $condition FROM (SELECT current_setting('lazydrop.stats')::jsonb) AS x(s)"
	  )
	  or croak "timed out waiting for $condition on "
	  . $node->name . ": "
	  . $node->safe_psql('postgres', 'SHOW lazydrop.stats');
	return;
}

=pod

=item hold_at($node, $point), release($node, $point)

Attach to an injection point, so that every process that reaches it waits there until it
is released.

=cut

sub hold_at
{
	my ($node, $point) = @_;
	$node->safe_psql('postgres',
		"SELECT injection_points_attach('$point', 'wait')");
	return;
}

sub release
{
	my ($node, $point) = @_;
	$node->safe_psql(
		'postgres', "
		SELECT injection_points_detach('$point');
		SELECT injection_points_wakeup('$point');");
	return;
}

=pod

=item stop_process($pid), continue_process($pid)

Send SIGSTOP and SIGCONT.  Processes that are still stopped when the test ends are
continued.

=cut

my %stopped;

sub stop_process
{
	my ($pid) = @_;
	kill('STOP', $pid) == 1 or croak "could not stop $pid: $!";
	$stopped{$pid} = 1;
	return $pid;
}

sub continue_process
{
	my ($pid) = @_;
	delete $stopped{$pid};
	kill('CONT', $pid) == 1 or croak "could not continue $pid: $!";
	return;
}

# This runs before the servers are stopped, because PostgreSQL::Test::Cluster is loaded
# earlier.
END
{
	kill('CONT', keys %stopped) if %stopped;
}

=pod

=item minimum_recovery_point($node)

Returns the minimum recovery point in the control file of a standby.

=cut

sub minimum_recovery_point
{
	my ($node) = @_;
	my ($out, $err) =
	  run_command([ 'pg_controldata', '--pgdata' => $node->data_dir ]);
	$out =~ /Minimum recovery ending location: *([0-9A-F\/]+)/
	  or croak "unexpected output of pg_controldata: $out$err";
	return $1;
}

=pod

=item wait_until($condition)

Wait until a function returns true.  Returns false if the time is over.

=cut

sub wait_until
{
	my ($condition) = @_;
	foreach (1 .. 100 * $PostgreSQL::Test::Utils::timeout_default)
	{
		return 1 if $condition->();
		usleep(10_000);
	}
	return 0;
}

=pod

=back

=cut

1;
