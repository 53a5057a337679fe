# Copyright (c) 2026, LazyDrop developers

=pod

=head1 NAME

LazyDropUtils - look at what a server drops, and hold it up

=head1 DESCRIPTION

What the tests and the demonstration share.  Nodes are those of
PostgreSQL::Test::Cluster.

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
  wait_for_wait wait_until minimum_recovery_point relation_files add_segments hidden_files
  orphaned_files nothing_is_left contents need_injection_points need_test_extra can_mount need_mounts
  reload_with stop_process continue_process start_quiet_node log_is_clean
  stop_with_clean_log start_quiet_pair start_binary_upgrade wait_for_nothing start_as
  manual_queries monitoring_queries pg_major evict evict_query init_with_checksums);

=pod

=over

=item pg_major()

Major version of PostgreSQL that is tested.

=cut

sub pg_major
{
	my ($version) = run_command([ 'pg_config', '--version' ]);
	return ($version =~ /^PostgreSQL (\d+)/)[0];
}

=pod

=item init_with_checksums($node, ...)

init of PostgreSQL::Test::Cluster, for a data directory with checksums, as it has them by
default since PostgreSQL 18.

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

Write out what is dirty in the buffers, of all or of a table, and empty them, as far as
none is pinned.  The database has the extension pg_buffercache.

=item evict_query([$table])

The query with which it does that.

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

Records of type XLOG_DBASE_DROP in the WAL that a node has in its own pg_wal,
between two LSNs, as pg_waldump shows them.  Returns a list of hash references:
lsn, prev (start of the record before it), pairs (a list of "tablespace/database").

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

Create the function that time_replay calls on standbys.

Polling takes a few microseconds, so the time is good to about that.  The
position that the standby reports is the end of the last record replayed, which
a page boundary may separate from the start of the next one; so a record is
replayed when the position is beyond its start, and not when it is at its end.

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

Wait until a standby has received WAL up to there, which it need not have replayed.

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

Wait until a standby whose replay is held has received the WAL up to $end, let
replay go on, and return how long replay of one record took, in milliseconds.
The record is one that dbase_drop_records returned.

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

Directories that a node has for a database, in all tablespaces, as paths
relative to its data directory.

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

Files that a node has of a relation, all forks and segments, sorted.  The path is
relative to the data directory, as pg_relation_filepath has it; and so are they.

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

Give a relation that will be dropped so many segments more, of so many bytes: files
without blocks on the disk.

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

Files and directories that a node has hidden until they are removed, sorted, relative to
its data directory.

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

Directories of databases and of tablespaces that a node does not know, and files in the
former that pg_class of the database does not know, sorted, relative to its data directory.
Databases that cannot be connected to are not looked into.  On a primary, a checkpoint must
have unlinked the first segments of what has been dropped.

A server that has crashed, or is a copy of another one, may have first segments without a
byte: stock leaves them when a checkpoint falls between a commit and the request to unlink
them.  They are not counted with "crashed".

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

When nothing is pending any more, and a checkpoint has been made, no file of what has been
dropped may be there, under its name or hidden.

=cut

sub nothing_is_left
{
	my ($node, $what) = @_;
	wait_for_nothing($node);
	$node->safe_psql('postgres', 'CHECKPOINT');
	# The worker may still have to find some of an earlier start.
	wait_until(sub { !hidden_files($node) });
	is_deeply([ hidden_files($node), orphaned_files($node) ],
		[], "$what: nothing is left");
	return;
}

=pod

=item contents($node [, users_only => 1, except => \@names])

For each table, materialized view and sequence that is permanent, of each database, how many
rows it has, and a checksum, as a hash reference.  Of the catalogs, those that tell which
relations there are, or none.

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

Skip the whole test when the build has none.

=cut

sub need_injection_points
{
	plan skip_all => 'Injection points not supported by this build'
	  if ($ENV{enable_injection_points} // '') ne 'yes';
	return;
}

=pod

=item need_test_extra()

Skip the whole test, which takes minutes, unless PG_TEST_EXTRA has "lazydrop_long".

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

Run the test again in a user namespace, in which it can mount file systems.  Returns whether it
can; to be called in a BEGIN block.

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

The same, for a test that is skipped otherwise.

=cut

sub need_mounts
{
	plan skip_all => 'cannot mount file systems here' if !can_mount();
	return;
}

=pod

=item start_quiet_node($name, %settings)

Initialize and start a server that can have standbys, on which nothing drops or
writes but what the test has do so, and whose worker does not wait for more drops;
unless the settings say otherwise.

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

Append settings to a node's configuration file, and wait until its postmaster has read them.

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

Start a node with the binaries of "stock", which are those of the environment variable
LAZYDROP_STOCK, or of the "fork", or of another installation of it; also what is called on its
behalf from now on.

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

The queries that a file of the manual offers: a hash of their texts, for psql, by the
section that they are in and a number.

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

Those of the files of contrib/pg_lazydrop for monitoring systems, by the file's name, and
those of lazydrop_exporter.yml also by the name of their metrics.

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

Start a server in binary-upgrade mode, in which OIDs and relfilenumbers can be given.

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

Such a server, with injection points, and a standby of it.  Returns both.

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

The log of a server, from the offset on, must show nothing that a page written to a file
that is gone, or lost, would have left there.  A server that has crashed may replay DROP
DATABASE whose directory is gone; it says so, in stock as well.

=item stop_with_clean_log($node [, $offset])

Stop a server, whose log must be clean.

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

The counters of lazydrop.stats, as a hash reference.

=cut

sub stats
{
	my ($node) = @_;
	return decode_json($node->safe_psql('postgres', 'SHOW lazydrop.stats'));
}

=pod

=item wait_for_stats($node, $condition)

Wait until a condition holds, an SQL expression over the JSON document "s".

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

Let every process that comes to an injection point wait there, until it is
released.

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

SIGSTOP and SIGCONT.  A process that is still stopped when the test ends goes on then.

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

# before the servers are stopped: PostgreSQL::Test::Cluster is loaded earlier
END
{
	kill('CONT', keys %stopped) if %stopped;
}

=pod

=item minimum_recovery_point($node)

The minimum recovery point of a standby, as its control file has it.

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

Wait until a function returns true.  Returns whether it did in time.

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

=item wait_for_wait($node, $event [, $backend_type])

Wait until a process waits for an event.

=cut

sub wait_for_wait
{
	my ($node, $event, $type) = @_;
	$node->poll_query_until(
		'postgres', "
		SELECT count(*) > 0 FROM pg_stat_activity WHERE wait_event = '$event'"
		  . (defined $type ? " AND backend_type = '$type'" : '')
	) or croak "no process waits for $event on " . $node->name;
	return;
}

=pod

=back

=cut

1;
