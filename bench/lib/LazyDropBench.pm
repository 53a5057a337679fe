
# Copyright (c) 2026, LazyDrop developers

=pod

=head1 NAME

LazyDropBench - functions that the scenarios of bench/run share

=head1 SYNOPSIS

  use LazyDropBench;

  scenario 'drop-loop' => (
	seconds => 12,
	groups => sub { return [ map { +{ server => $_, size => '8MB' } } @servers ] },
	run => sub {
		my ($case) = @_;
		my $node = make_primary($case->{server}, shared_buffers => $case->{size});
		record('throughput', 'tps', pgbench($node, $script, '-T', $opt{seconds}));
		discard($node);
	});

=head1 DESCRIPTION

A scenario is a list of groups of cases.  The cases of a group are compared with each
other.  They therefore run one after the other, in an order that changes from run to run,
so that changes on the machine affect all of them.  A case is a hash reference with
"server" (stock; on or off, which is the fork with that value of lazydrop.enabled; or
another name), "size" (shared_buffers) and other properties that the scenario defines.  A
case with "runs" is not run more often than that.

=cut

package LazyDropBench;

use strict;
use warnings FATAL => 'all';

use Carp;
use Exporter 'import';
use File::Path;
use IPC::Run;
use LazyDropUtils qw(hold_replay);
use List::Util    qw(max min);
use POSIX;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Time::HiRes qw(time usleep);

our @EXPORT =
  qw(%opt @servers %without_standbys scenario n sizes cases record note left_out
  in_scratch write_file megabytes meminfo free_gigabytes
  new_node configure make_primary make_standby discard
  start_program run_program end_program command sync_disk stop_everything
  memory_group start_limited
  pgbench pgbench_start pgbench_finish pgbench_init percentiles loop_script
  hold_and_run time_resumed_replay time_promotion wait_for_nothing_left
  table_path add_gigabytes is_left wait_for_no_file wait_for_end cpu_seconds);

# If a module bails out, only the case ends, not the run.
{
	no warnings 'redefine';
	*Test::Builder::BAIL_OUT = sub { die "$_[1]\n" };
}

# Options of bench/run, set before a scenario is loaded.
our %opt;

our @servers = qw(stock on off);

our (%scenario, @nodes, @programs, @values, %now);

# Functions set by bench/run: print a line for the user; print a line that is rewritten on
# a terminal.
our ($say, $show) = (sub { }, sub { });

# Settings of every server.  fsync is off unless the scenario turns it on, so that the
# server is measured, not the disk.
our %common = (
	autovacuum => 'off',
	checkpoint_timeout => '1h',
	fsync => 'off',
	huge_pages => 'off',
	log_checkpoints => 'off',
	log_statement => 'none',
	max_wal_size => '8GB',
	wal_keep_size => '2GB');

# Settings of a server without standbys, for large tables: a table that is created and
# filled in the same transaction writes no WAL.
our %without_standbys = (
	wal_level => 'minimal',
	max_wal_senders => '0',
	wal_keep_size => '0');

=pod

=head1 SCENARIOS AND RESULTS

=over

=item scenario($name, %properties)

Define a scenario.  "groups" is a function that returns array references of cases.  "run"
is a function that is called with each case.  "seconds" is the approximate duration of a
case, a number or a function of the case.  The others are optional: "runs", the maximum
number of runs; "disk", the required gigabytes; "setup" and "teardown", functions that are
called before and after the scenario.

=cut

sub scenario
{
	my ($name, %properties) = @_;
	$scenario{$name} = \%properties;
	return;
}

=pod

=item n($count)

Returns a number of tables or other objects, which is reduced in a smoke run.

=cut

sub n
{
	my ($count) = @_;
	return $opt{quick} ? max(2, int($count / 50)) : $count;
}

=pod

=item sizes(@sizes)

Returns the values in a list of shared_buffers that are smaller than --large, and --large
itself.

=cut

sub sizes
{
	my @sizes =
	  grep { megabytes($_) < megabytes($opt{large}) } @_;
	@sizes = @sizes[ 0 .. 0 ] if $opt{quick} && @sizes;
	return (@sizes, $opt{large});
}

=pod

=item cases(\@servers, %rest)

Returns a group: a case for each server, with otherwise equal properties.

=cut

sub cases
{
	my ($servers, %rest) = @_;
	return [ map { +{ server => $_, %rest } } @$servers ];
}

=pod

=item record($measure, $unit, $value [, $case])

Record a value of the current case.  The last argument distinguishes cases with the same
server and shared_buffers; the default is the case's own "case".

=cut

sub record
{
	my ($measure, $unit, $value, $case) = @_;
	my %row = (
		scenario => $now{scenario},
		run => $now{run},
		server => $now{case}{server},
		shared_buffers => $now{case}{size},
		case => $case // $now{case}{case} // '',
		measure => $measure,
		unit => $unit,
		value => 0 + sprintf('%.5g', $value));
	croak "\"$_\" cannot stand in a CSV file"
	  foreach grep { /[,"\n]/ } values %row;
	push @values, \%row;
	return;
}

=pod

=item note($text), left_out($what, $why)

Print a message for the user; left_out() also adds it to the header of the results.

=cut

sub note
{
	$say->(@_);
	return;
}

sub left_out
{
	my ($what, $why) = @_;
	push @{ $now{left_out} }, "$what: $why";
	$say->("$now{scenario}: left out: $what: $why");
	return;
}

=pod

=item in_scratch($name), write_file($name, $text)

Returns the path of a file beside the servers' directories; write_file() also writes it.

=cut

sub in_scratch
{
	return "$PostgreSQL::Test::Utils::tmp_check/$_[0]";
}

sub write_file
{
	my ($name, $text) = @_;
	my $file = in_scratch($name);
	open(my $fh, '>', $file) or die "could not create \"$file\": $!\n";
	print $fh $text;
	close($fh) or die "could not write \"$file\": $!\n";
	return $file;
}

=pod

=item megabytes($size)

Converts a size such as 16GB to megabytes.

=cut

sub megabytes
{
	my ($size) = @_;
	my ($number, $unit) = $size =~ /^(\d+)(MB|GB)$/
	  or die "bad size \"$size\": a number with MB or GB is wanted\n";
	return $number * ($unit eq 'GB' ? 1024 : 1);
}

=pod

=item meminfo($field), free_gigabytes()

Returns a field of /proc/meminfo, in megabytes; returns the free space of the file system
with the servers' directories.

=cut

sub meminfo
{
	my ($field) = @_;
	my ($kb) = slurp_file('/proc/meminfo') =~ /^$field:\s+(\d+) kB/m
	  or die "no $field in /proc/meminfo\n";
	return $kb / 1024;
}

sub free_gigabytes
{
	my $out = '';
	IPC::Run::run(
		[ 'df', '-k', '--output=avail', $PostgreSQL::Test::Utils::tmp_check ],
		'>' => \$out) or die "df failed\n";
	return (split ' ', $out)[-1] / 1024 / 1024;
}

=pod

=back

=head1 SERVERS

=over

=item new_node($server), configure($node, $server, %settings)

Create a node of a server; write its settings, including the common ones.

=cut

my $serial = 0;
my %template;

sub prefix
{
	my ($server) = @_;
	return $server eq 'stock' ? $opt{stock} : $opt{fork};
}

sub new_node
{
	my ($server) = @_;
	my $node = PostgreSQL::Test::Cluster->new("$server" . $serial++,
		install_path => prefix($server));
	push @nodes, $node;
	return $node;
}

sub configure
{
	my ($node, $server, %settings) = @_;
	%settings = (
		%common,

		# A smoke run need not wait for more drops.
		($opt{quick} ? ('lazydrop.pass_delay' => '50ms') : ()),
		'lazydrop.enabled' => $server eq 'off' ? 'off' : 'on',
		%settings);
	$node->append_conf('postgresql.conf',
		join('', map { "$_ = $settings{$_}\n" } sort keys %settings));
	return;
}

=pod

=item make_primary($server, %settings)

Start a server with WAL for standbys.  If there is a setting "initialize", it is a hash
reference with parameters for PostgreSQL::Test::Cluster's init.

=item make_standby($upstream, $server [, $primary])

Start a standby of another server, with the same settings, and wait until it has caught
up.  If the other server is a standby, too, the third argument is their primary.

=cut

# initdb takes a second or more; a copy of its result takes a few hundredths.
sub make_primary
{
	my ($server, %settings) = @_;
	my $node = new_node($server);
	my $initialize = delete $settings{initialize} // {};
	my $template = $template{ prefix($server) } //= do
	{
		my $directory = in_scratch('initdb-' . keys %template);
		run_program(
			[
				$node->installed_command('initdb'), '--no-sync',
				'-A' => 'trust',
				'-D' => $directory
			],
			'>' => \*STDERR,
			'2>&1') or die "initdb failed\n";
		$directory;
	};
	{
		local $ENV{INITDB_TEMPLATE} = $template;
		$node->init(allows_streaming => 1, %$initialize);
	}
	configure($node, $server, %settings);
	$node->start;
	return $node;
}

sub make_standby
{
	my ($upstream, $server, $primary) = @_;
	my $name = "backup$serial";
	$upstream->backup($name);
	my $node = new_node($server);
	$node->init_from_backup($upstream, $name, has_streaming => 1);

	# A backup would be kept as long as the server from which it was taken.
	File::Path::remove_tree($upstream->backup_dir . "/$name");
	$node->append_conf('postgresql.conf',
		'lazydrop.enabled = ' . ($server eq 'off' ? 'off' : 'on'));
	$node->start;
	$upstream->wait_for_replay_catchup($node, $primary // $upstream);
	return $node;
}

=pod

=item discard(@nodes)

Stop servers and remove their directories.

=cut

sub discard
{
	foreach my $node (@_)
	{
		$node->teardown_node;
		$node->clean_node;
		@nodes = grep { $_ != $node } @nodes;
	}
	return;
}

=pod

=item start_program(@arguments), run_program(@arguments), end_program($handle)

Call IPC::Run::start and IPC::Run::run with these arguments; if bench/run ends early, the
program is terminated.  run_program() returns whether it has succeeded.  end_program()
terminates it.

=item command(@command), sync_disk()

Run a short command, which must succeed.  Make the kernel write all dirty data, so that
this does not affect the next measurement.

=cut

sub start_program
{
	my $handle = IPC::Run::start(@_);
	push @programs, $handle;
	return $handle;
}

sub finish_program
{
	my ($handle) = @_;
	my $succeeded = $handle->finish;
	@programs = grep { $_ != $handle } @programs;
	return $succeeded;
}

sub run_program
{
	return finish_program(start_program(@_));
}

sub end_program
{
	my ($handle) = @_;
	$handle->kill_kill;
	@programs = grep { $_ != $handle } @programs;
	return;
}

# Perl ignores Ctrl-C while it waits in system(), but the command does not.
sub command
{
	my $status = system(@_);
	kill 'INT', $$ if ($status & 127) == POSIX::SIGINT;
	die "command failed: @_\n" if $status != 0;
	return;
}

sub sync_disk
{
	command('sync');
	return;
}

=pod

=item stop_everything()

Terminate all programs and servers, and remove their directories, if bench/run ends early.

=cut

sub stop_everything
{
	foreach my $handle (@programs)
	{
		eval { $handle->kill_kill(grace => 5) if $handle->pumpable; };
	}
	@programs = ();
	foreach my $node (@nodes)
	{
		eval { $node->teardown_node(fail_ok => 1); };
		eval { $node->clean_node; };
	}
	@nodes = ();
	File::Path::remove_tree(in_scratch('mariadb'));
	return;
}

=pod

=item memory_group()

Returns the control group in which a server's memory can be limited, which
src/tools/lazydrop/auto creates, or undef if there is none.

=item start_limited($node, $megabytes)

Start a server with limited memory.  The limit applies to shared_buffers and the kernel's
cache together.

=cut

sub memory_group
{
	my $group = $ENV{LAZYDROP_CONTROL_GROUP};
	return (defined $group && -w "$group/limited/cgroup.procs")
	  ? $group
	  : undef;
}

sub write_control
{
	my ($file, $value) = @_;
	open(my $fh, '>', $file) or die "could not open \"$file\": $!\n";
	syswrite($fh, $value) or die "could not write to \"$file\": $!\n";
	close($fh) or die "could not close \"$file\": $!\n";
	return;
}

sub start_limited
{
	my ($node, $megabytes) = @_;
	my $group = memory_group() // die "there is no control group\n";
	my $bytes = int($megabytes) * 1024 * 1024;
	my ($v1, $v2) =
	  map { "$group/limited/$_" } qw(memory.limit_in_bytes memory.max);
	write_control(-e $v1 ? $v1 : $v2, $bytes);
	write_control("$group/limited/cgroup.procs", $$);
	my $started = eval { $node->start; 1 };
	my $error = $@;
	write_control("$group/main/cgroup.procs", $$);
	die $error unless $started;
	return;
}

=pod

=back

=head1 LOAD

=over

=item loop_script()

Returns a script that creates a table, inserts one row, and drops it, in one transaction.

=cut

sub loop_script
{
	return q{
BEGIN;
CREATE TABLE x (a int);
INSERT INTO x VALUES (1);
DROP TABLE x;
COMMIT;
};
}

=pod

=item pgbench($node, $script, @options), pgbench_start(same), pgbench_finish($job)

Run pgbench with the text of a script, or undef, and options.  Returns the transactions
per second.  The other two do the same in the background.

=cut

sub pgbench_start
{
	my ($node, $script, @options) = @_;
	push @options, '-f', write_file('script' . $serial++ . '.sql', $script)
	  if defined $script;
	my $job = { out => '' };
	local %ENV = $node->_get_env();
	$job->{handle} = start_program(
		[ $node->installed_command('pgbench'), '-n', @options, 'postgres' ],
		'>' => \$job->{out},
		'2>' => \*STDERR);
	return $job;
}

sub pgbench_finish
{
	my ($job) = @_;
	finish_program($job->{handle}) or die "pgbench failed\n";
	return 0 if $job->{out} =~ /actually processed: 0$/m;
	my ($tps) = $job->{out} =~ /^tps = ([\d.]+)/m
	  or die "no tps in: $job->{out}\n";
	return $tps;
}

sub pgbench
{
	return pgbench_finish(pgbench_start(@_));
}

=pod

=item pgbench_init($node, $scale)

Create pgbench's tables.

=cut

sub pgbench_init
{
	my ($node, $scale) = @_;
	local %ENV = $node->_get_env();
	run_program(
		[
			$node->installed_command('pgbench'),
			'-i', '-q',
			'-s' => $opt{quick} ? 1 : $scale,
			'postgres'
		],
		'>' => \*STDERR,
		'2>&1') or die "pgbench -i failed\n";
	return;
}

=pod

=item percentiles($prefix, @percents)

Returns percentiles (100 is the maximum) of the latencies, in milliseconds, in pgbench's
log files (-l) with that prefix.  The files are removed.

=cut

sub percentiles
{
	my ($prefix, @percents) = @_;
	my @files = glob("$prefix.*");
	my @latency = sort { $a <=> $b }
	  map { (split / /)[2] / 1000 }
	  map { split /\n/, slurp_file($_) } @files;
	die "pgbench has logged no transaction in $prefix.*\n" unless @latency;
	unlink @files;
	return map { $latency[ int($#latency * $_ / 100 + 0.5) ] } @percents;
}

=pod

=item hold_and_run($primary, $standby, @statements)

Run statements, such as drops, in one session on the primary while replay is paused.
Returns the position up to which there is WAL to replay, and the number of seconds that
the session has taken.

=cut

sub hold_and_run
{
	my ($primary, $standby, @statements) = @_;
	$primary->wait_for_replay_catchup($standby);
	hold_replay($standby);

	# Exclude the kernel's writes of data that was created before.
	sync_disk();
	my $began = time;
	$primary->safe_psql('postgres', join(";\n", @statements));
	my $took = time - $began;
	wait_for_nothing_left($primary);
	return ($primary->lsn('flush'), $took);
}

=pod

=item time_resumed_replay($standby, $end)

Resume replay, which has been paused, and return the number of seconds until it has
reached a position that has been received.

=cut

sub time_resumed_replay
{
	my ($standby, $end) = @_;
	$standby->poll_query_until('postgres',
		"SELECT pg_last_wal_receive_lsn() >= '$end'")
	  or die "WAL was not received\n";

	# Use one session, so that a query is cheap.  A function with a loop would hold a
	# snapshot that conflicts with replay.  Even a single query may conflict, including
	# the query that resumes replay: if replay was paused for longer than
	# max_standby_streaming_delay, the query is canceled immediately.  By then replay has
	# been resumed, and the position can be queried again.  The pauses between the queries
	# leave the processor to replay, and a session may last longer than a query.
	my $session = $standby->background_psql('postgres', on_error_stop => 0);
	$session->set_query_timer_restart();
	$session->query_safe('SELECT 1');
	my $began = time;
	$session->query('SELECT pg_wal_replay_resume()');
	while (
		$session->query("SELECT pg_last_wal_replay_lsn() >= '$end'") ne 't')
	{
		usleep(1_000);
	}
	my $took = time - $began;
	$session->quit;
	return $took;
}

=pod

=item time_promotion($standby)

Promote a standby, and return the number of seconds until it is no longer in recovery.

=cut

sub time_promotion
{
	my ($standby) = @_;
	my $session = $standby->background_psql('postgres');
	$session->query_safe('SELECT 1');
	my $began = time;
	run_program(
		[
			$standby->installed_command('pg_ctl'),
			'-D' => $standby->data_dir,
			'--no-wait', 'promote'
		],
		'>' => \*STDERR,
		'2>&1') or die "pg_ctl promote failed\n";
	while ($session->query_safe('SELECT pg_is_in_recovery()') ne 'f')
	{
	}
	my $took = time - $began;
	$session->quit;
	return $took;
}

=pod

=item wait_for_nothing_left(@nodes)

Wait until the fork's workers have nothing pending, so that they do not affect the next
measurement.

=cut

sub wait_for_nothing_left
{
	foreach my $node (@_)
	{
		$node->poll_query_until(
			'postgres', q{
			SELECT s IS NULL OR (s->>'pending_relations' = '0'
				AND s->>'pending_databases' = '0' AND s->>'pending_bytes' = '0')
			FROM (SELECT current_setting('lazydrop.stats', true)::jsonb) AS x(s)}
		) or die "something stays pending on " . $node->name . "\n";
	}
	return;
}

=pod

=item table_path($node, $table), add_gigabytes($path, $n)

Returns the path of a table's first segment.  Add further segments of one gigabyte, with
blocks on the disk, to a table that will be dropped.

=item is_left($file), wait_for_no_file($file)

Returns whether a file in the default tablespace exists, under its own name or under the
name of a hidden file that waits for its removal; wait until it does not.

=item wait_for_end($node)

Wait until a server that is shutting down has ended.

=cut

sub table_path
{
	my ($node, $table) = @_;
	return $node->data_dir . '/'
	  . $node->safe_psql('postgres', "SELECT pg_relation_filepath('$table')");
}

sub add_gigabytes
{
	my ($path, $n) = @_;
	foreach my $segno (1 .. $n)
	{
		command(
			'dd', 'if=/dev/zero',
			"of=$path.$segno", 'bs=1M',
			'count=' . ($opt{quick} ? 16 : 1024), 'status=none');
	}
	return;
}

sub is_left
{
	my ($file) = @_;
	my ($tablespace) = $file =~ m{^(.*)/\d+/[^/]+$};
	return
	  scalar grep { -e } $file,
	  glob("'$tablespace/pgsql_tmp/pgsql_tmp.lazydrop.'*");
}

sub wait_for_no_file
{
	my ($file) = @_;
	my $give_up = time + $PostgreSQL::Test::Utils::timeout_default;
	while (is_left($file))
	{
		die "\"$file\" was not removed\n" if time > $give_up;
		usleep(10_000);
	}
	return;
}

sub wait_for_end
{
	my ($node) = @_;
	my $give_up = time + $PostgreSQL::Test::Utils::timeout_default;
	while (-e $node->data_dir . '/postmaster.pid')
	{
		die $node->name . " does not stop\n" if time > $give_up;
		usleep(10_000);
	}
	$node->_update_pid(0);
	return;
}

=pod

=item cpu_seconds($pid)

Returns the seconds of CPU time that a process has used.

=cut

sub cpu_seconds
{
	my ($pid) = @_;
	my @stat = split / /, slurp_file("/proc/$pid/stat") =~ s/\(.*\)/x/r;
	return ($stat[13] + $stat[14]) / POSIX::sysconf(POSIX::_SC_CLK_TCK);
}

=pod

=back

=cut

1;
