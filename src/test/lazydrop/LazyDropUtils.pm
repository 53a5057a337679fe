# Copyright (c) 2026, LazyDrop developers

=pod

=head1 NAME

LazyDropUtils - functions to start a server, and to observe and delay its drops

=head1 DESCRIPTION

Functions that the tests and bench/ share.  Nodes are PostgreSQL::Test::Cluster
objects.

=cut

package LazyDropUtils;

use strict;
use warnings FATAL => 'all';

use Carp;
use Cwd qw(abs_path);
use Exporter 'import';
use JSON::PP;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(usleep);

our @EXPORT_OK = qw(pg_major need_injection_points need_test_extra can_mount
  need_mounts init_with_checksums start_quiet_node start_quiet_pair start_as
  reload_with log_is_clean stop_with_clean_log stats wait_for_stats
  wait_for_nothing wait_until hold_at release hold_replay stop_process
  continue_process evict);

=pod

=over

=item pg_major([$bindir])

Returns the major version of the PostgreSQL under test, or of the one whose programs are
in that directory.

=cut

sub pg_major
{
	my ($bindir) = @_;
	my $program = defined $bindir ? "$bindir/pg_config" : 'pg_config';
	my ($version) = run_command([ $program, '--version' ]);
	return ($version =~ /^PostgreSQL (\d+)/)[0];
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

=item evict($node, $database [, $table])

Write out the dirty buffers of a database cluster, or of a table only, and evict all of
them that are not pinned.  The database must have the extension pg_buffercache.

=cut

sub evict
{
	my ($node, $database, $table) = @_;
	my $which =
	  defined $table
	  ? "= pg_relation_filenode('$table')"
	  : 'IS NOT NULL';
	$node->safe_psql($database,
		"SELECT count(pg_buffercache_evict(bufferid)) FROM pg_buffercache WHERE relfilenode $which"
	);
	return;
}

=pod

=back

=cut

1;
