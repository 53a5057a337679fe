# Copyright (c) 2026, LazyDrop developers

# Thousands of names are used again while their burials are pending (rules R3, R5 and R8).
#
# In each round, the counter of relfilenumbers and OIDs covers the same small range:
# between two rounds the primary is stopped, and the next OID in its control file is set
# back.  (pg_resetwal could do that as well, but it starts new WAL, which a standby cannot
# follow.)  Sessions create, fill, truncate, rewrite, move and drop tables of two
# databases in two tablespaces, and databases are dropped and created with the same OID.
# Meanwhile the workers are slow, or are held at an injection point, or have room for a
# few entries only.  Checkpoints, restartpoints, restarts and immediate stops happen, too.
# On a standby, replay uses names again while entries from the round before are pending.
# A primary does not choose a number that is pending; one round checks this.  On a
# primary, the names are used again as OIDs of databases, and in rounds in binary-upgrade
# mode, in which the test can choose numbers.
#
# Each row has its table's tag, which is a new one each time the table is filled, and a
# text computed from the tag.  A page of another table, or of an earlier table with the
# same number, is therefore detected.  Each transaction records the contents that it
# leaves.  Both servers are compared with these records, by sequential scan and by index
# scan, from buffers and from disk.
#
# If LAZYDROP_TORTURE_SECONDS is longer than the rounds below take, further random rounds
# follow until that time is over.  LAZYDROP_TEST_SEED chooses the operations; the seed is
# printed.  (The order of operations of concurrent sessions is not reproducible.)

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/..";
use LazyDropModel qw(draw);
use LazyDropPair qw(start_pair catch_up start_binary_upgrade);
use LazyDropFiles qw(orphaned_files);
use LazyDropUtils
  qw(stats hold_at release wait_for_nothing need_test_extra
  need_injection_points evict);
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use RecycledDatabases
  qw(create_databases all_databases create_database drop_database database_cycle
  database_reuses);
use RecycledNumbers
  qw(BASE NEAR_END set_next_oid schedule random_round random_settings slow_settings);
use RecycledSessions
  qw(start_sessions start_upgrade_sessions done_by acknowledged errors_of
  wait_for_progress last_noted);
use Test::More;
use Time::HiRes qw(time);

need_test_extra();
need_injection_points();

my $seconds = $ENV{LAZYDROP_TORTURE_SECONDS} || 0;
my $seed = $ENV{LAZYDROP_TEST_SEED} || int(rand(1_000_000));
srand($seed);
note "LAZYDROP_TEST_SEED=$seed";
my $began = time();

# --- servers ----------------------------------------------------------------

my ($primary, $standby) = start_pair(
	'max_wal_size' => '1GB',
	'shared_buffers' => '16MB',
	'wal_keep_size' => '1GB',
	'wal_retrieve_retry_interval' => '100ms');
my @nodes = ($primary, $standby);
$_->append_conf('postgresql.conf', "include_if_exists = 'storm.conf'")
  foreach @nodes;

# Counters in shared memory, and their sums over restarts.
my @counted =
  qw(reuse_waits deferred_relations deferred_databases sync_fallbacks);
my %total;
foreach my $node (@nodes)
{
	$total{ $node->name }{$_} = 0 foreach @counted;
}

# The injection point at which each node's worker is held.
my %held;

sub sum_up
{
	my ($node) = @_;
	my $stats = stats($node);
	$total{ $node->name }{$_} += $stats->{$_} foreach @counted;
	return;
}

# Settings of a server for a round, which it reads at its next start or reload.
my %settings = map { $_->name => {} } @nodes;

sub configure
{
	my ($node) = @_;
	my %conf = (
		'fsync' => 'off',
		'lazydrop.max_pending' => 16384,
		'lazydrop.pass_delay' => 0,
		'lazydrop.removal_rate' => 0,
		'shared_buffers' => q{'16MB'},
		%{ $settings{ $node->name } });
	my $file = $node->data_dir . '/storm.conf';
	open(my $fh, '>', $file) or die "could not create $file: $!";
	print $fh "$_ = $conf{$_}\n" foreach sort keys %conf;
	close($fh);
	return;
}

sub release_worker
{
	my ($node) = @_;
	my $point = delete $held{ $node->name };
	release($node, $point) if defined $point;
	return;
}

# A fast shutdown would wait for a worker that is held, so release it first.
sub stop_node
{
	my ($node, $mode) = @_;
	release_worker($node) if $mode ne 'immediate';
	delete $held{ $node->name };
	sum_up($node);
	$node->stop($mode);
	return;
}

# Is the primary in binary-upgrade mode?
my $upgraded = 0;

sub start_primary
{
	if ($upgraded)
	{
		start_binary_upgrade($primary);
	}
	else
	{
		$primary->start;
	}
	return;
}

create_databases($primary);

my $round = 0;

# How often each action was done.
my %done = (move => 0);

# --- comparisons ------------------------------------------------------------

my $checked = 0;

sub contents_are_right
{
	my ($what, @databases) = @_;
	catch_up();
	foreach my $node (@nodes)
	{
		my $wrong = '';
		foreach my $database (all_databases(), @databases)
		{
			my ($ret, $out, $err) =
			  $node->psql($database, 'SELECT * FROM check_all()');
			my ($n, $text) = ($out // '') =~ /^([0-9]+)\|(.*)$/s;
			$checked += $n // 0;
			$wrong .= "$database: " . ($text // '') . "$err\n"
			  if $ret != 0 || $text ne '';
		}
		is($wrong, '',
			"round $round, $what: contents are right on " . $node->name);
	}
	return;
}

sub evict_everywhere
{
	evict($_, 'postgres') foreach @nodes;
	return;
}

# Files that an unfinished transaction had created when the primary crashed are never
# removed, as in stock PostgreSQL.
my %excused;

sub number_of
{
	my ($path) = @_;
	return $path =~ s/(_[a-z]+)?(\.[0-9]+)?$//r;
}

sub no_files_stay
{
	my ($what) = @_;
	foreach my $node (@nodes)
	{
		is( join("\n",
				grep { !$excused{ number_of($_) } } orphaned_files($node)),
			'',
			"round $round, $what: no file of what was dropped stays on "
			  . $node->name);
	}
	return;
}

# Let the workers complete all entries, and check everything.
sub drain
{
	foreach my $node (@nodes)
	{
		delete @{ $settings{ $node->name } }{ keys %{ slow_settings() } };
		configure($node);
		$node->reload;
		release_worker($node);
	}
	restartpoint();
	wait_for_nothing(@nodes);
	evict_everywhere();
	contents_are_right('nothing pending, from disk',
		'template_a', 'template_b');
	no_files_stay('nothing pending');
	return;
}

# --- actions while the sessions run -----------------------------------------

# After a crash, unlogged tables are empty.
sub primary_is_back
{
	my ($crashed) = @_;
	start_primary();
	return unless $crashed;
	$primary->safe_psql($_, 'UPDATE model SET n = 0 WHERE unlogged')
	  foreach (all_databases(), qw(template_a template_b));
	return;
}

# Set fsync, which is off in TAP tests to save time.  A checkpoint and a restartpoint come
# first, so that all files written while it was on have been synced when it is turned off.
sub set_fsync
{
	my ($value) = @_;
	restartpoint();
	foreach my $node (@nodes)
	{
		$settings{ $node->name }{fsync} = $value;
		configure($node);
		$node->reload;
		$node->poll_query_until('postgres',
			"SELECT current_setting('fsync') = '$value'");
	}
	return;
}

sub restartpoint
{
	$primary->safe_psql('postgres', 'CHECKPOINT');
	catch_up();
	$standby->safe_psql('postgres', 'CHECKPOINT');
	return;
}

my %actions = (
	checkpoint => sub { $primary->safe_psql('postgres', 'CHECKPOINT') },
	restartpoint => \&restartpoint,
	evict => \&evict_everywhere,
	database => sub { $done{move} += database_cycle($round, $upgraded) },
	fsync_on => sub { set_fsync('on') },
	fsync_off => sub { set_fsync('off') },
	release_primary => sub { release_worker($primary) },
	release_standby => sub { release_worker($standby) },
	standby_fast => sub {
		stop_node($standby, 'fast');
		$standby->start;
	},
	standby_immediate => sub {
		stop_node($standby, 'immediate');
		$standby->start;
	},

	# These end the round.
	primary_fast => sub { stop_node($primary, 'fast') },
	primary_immediate => sub { stop_node($primary, 'immediate') },);

# --- a round ----------------------------------------------------------------

my $numbers_skipped = 0;
my %temporary = (all => 0, living => 0, dropped => 0);

# Returns the settings of a round as text.
sub describe
{
	my ($what) = @_;
	return
		'{'
	  . join(', ', map { "$_ " . describe($what->{$_}) } sort keys %$what)
	  . '}'
	  if ref $what eq 'HASH';
	return '(' . join(' ', map { describe($_) } @$what) . ')'
	  if ref $what eq 'ARRAY';
	return $what;
}

# Returns the numbers of a session's permanent tables and of their indexes.
sub numbers_of
{
	my ($session) = @_;
	return split /\n/, $primary->safe_psql(
		'postgres', qq{
		SELECT relfilenode FROM pg_class
		WHERE relname ~ '^$session\[0-9]+(_i)?\$' AND reltablespace = 0
		ORDER BY 1});
}

# Returns the number just before the range with the most numbers in use.
sub before_living_numbers
{
	my @numbers = map { numbers_of($_) } qw(a b);
	my ($best, $most) = (BASE, 0);
	foreach my $from (@numbers)
	{
		my $n = grep { $_ >= $from && $_ < $from + 150 } @numbers;
		($best, $most) = ($from, $n) if $n > $most;
	}
	return $best - 10;
}

# Create a table whose drop lets the workers reach the injection point.
sub create_to_hold
{
	$primary->safe_psql('postgres', 'CREATE TABLE IF NOT EXISTS to_hold ()');
	return;
}

# Stop the primary, set the counter back, and start it with other settings.  Then give the
# standby other settings.  The standby's worker is not released before that: it may be
# held, and accumulate work, over several rounds.
sub begin_round
{
	my ($r) = @_;
	create_to_hold() unless $upgraded;
	drop_counted() unless $r->{skip};
	catch_up();
	$r->{base} = before_living_numbers() if $r->{temporary};
	note "round $round: " . describe($r);

	stop_node($primary, 'fast');
	set_next_oid($primary, $r->{base});
	$settings{primary} = { %{ $r->{primary} // {} } };
	configure($primary);
	$upgraded = $r->{upgrade} // 0;
	start_primary();
	if (!$upgraded && !$r->{skip})
	{
		create_database('counted');
		create_to_hold();
	}

	my %hold;
	foreach my $node (@nodes)
	{
		my $point = $r->{ 'hold_' . $node->name } or next;
		next if $point eq ($held{ $node->name } // '');
		hold_at($node, $point);
		$hold{ $node->name } = $point;
	}
	if ($r->{standby})
	{
		$settings{standby} = { %{ $r->{standby} } };
		configure($standby);
		$standby->reload;
		release_worker($standby)
		  unless ($r->{hold_standby} // '') eq ($held{standby} // '');
	}
	if (%hold)
	{
		%held = (%held, %hold);
		$primary->safe_psql('postgres', 'DROP TABLE to_hold');
		catch_up();
		$_->wait_for_event('lazy drop worker', $held{ $_->name })
		  foreach grep { $hold{ $_->name } } @nodes;
	}
	return;
}

# An OID is also in use as long as a dead row of pg_database has it.
sub drop_counted
{
	drop_database('counted');
	$primary->safe_psql('postgres', 'VACUUM pg_database');
	return;
}

# Leave the numbers of relations without files, and the OID of a database, pending just
# after the position of the counter.
sub drop_for_skip
{
	my $oid_of = sub {
		return $primary->safe_psql('postgres',
			"SELECT oid FROM pg_database WHERE datname = '$_[0]'");
	};
	my $pending = $oid_of->('counted');
	drop_counted();
	$primary->safe_psql('postgres', 'CHECKPOINT');
	create_database('counted');
	is( $oid_of->('counted'),
		$pending + 1,
		"round $round: the OID of a database that is pending is not chosen");

	my @numbers = map { numbers_of($_) } qw(a b);
	$primary->safe_psql('postgres', "DROP TABLE $_")
	  foreach (
		split /\n/,
		$primary->safe_psql(
			'postgres',
			q{DELETE FROM model WHERE name ~ '^[ab]' RETURNING name}));
	$primary->safe_psql('postgres', 'CHECKPOINT');
	my $oid = $oid_of->('postgres');
	is(scalar(grep { -e $primary->data_dir . "/base/$oid/$_" } @numbers),
		0, "round $round: files of what is pending are gone");
	cmp_ok(stats($primary)->{pending_relations},
		'>=', @numbers, "round $round: but relations are pending");
	return @numbers;
}

# Advance the counter beyond the pending numbers, and check that it has skipped them.
sub pending_was_skipped
{
	my ($base, @numbers) = @_;
	@numbers = sort { $a <=> $b } grep { $_ > $base } @numbers;
	my $given =
	  $primary->safe_psql('postgres', "CALL pass($base, $numbers[-1], NULL)");
	my %taken = map { $_ => 1 } $given =~ /[0-9]+/g, split /\n/,
	  $primary->safe_psql('postgres',
		"SELECT num FROM seen WHERE round = $round AND spc = 0");
	cmp_ok(scalar(grep { $taken{ $_ - 1 } || $taken{ $_ + 1 } } @numbers),
		'>', 0, "round $round: numbers next to pending ones were chosen");
	is(join(' ', grep { $taken{$_} } @numbers),
		'', "round $round: no number that is pending was chosen");
	$numbers_skipped += @numbers;
	return;
}


# Continue with a primary that has been stopped.  After a crash, only files that these
# sessions were about to create may be left.  There is one exception, as in stock
# PostgreSQL: if a commit just before the redo pointer has dropped a relation, and the
# request to unlink its first segment came after the redo pointer, the segment may be
# left, empty.
sub go_on
{
	my ($base, $crashed, @sessions) = @_;
	primary_is_back($crashed);
	$primary->safe_psql('postgres', 'CHECKPOINT');
	my @paths = grep { !$excused{ number_of($_) } } orphaned_files($primary);
	if ($crashed)
	{
		my %full = map { number_of($_) => 1 }
		  grep { $_ ne number_of($_) || -s $primary->data_dir . "/$_" }
		  @paths;
		my @empty = grep { !$full{$_} } @paths;
		note "round $round: empty files: " . join(' ', @empty);
		cmp_ok(scalar(@empty), '<=', 200,
			"round $round: not many empty files stay");
		@excused{@empty} = map { 1 } @empty;
	}
	my %stray = map { number_of($_) => 1 }
	  grep { !$excused{ number_of($_) } } @paths;

	my ($since) =
	  sort { $a <=> $b } map { last_noted($_, $round, $base) } @sessions;
	my @wrong = grep {
		my ($number) = /([0-9]+)$/;
		!@sessions || !$upgraded && ($number - $base) % 4294967296 < $since
	} sort keys %stray;
	is(join("\n", @wrong),
		'', "round $round: files stay only of what was being created");

	# In binary-upgrade mode, a table and its index; otherwise, a table of each slot with
	# all its files.
	cmp_ok(
		scalar(keys %stray),
		'<=',
		@sessions * ($upgraded ? 2 : 100),
		"round $round: and not too many");
	%excused = (%excused, %stray);
	return;
}

# Count the numbers that have been assigned in this round and before.
sub count_numbers
{
	foreach my $database (qw(postgres other))
	{
		# Include the numbers of an interrupted session.
		$primary->safe_psql($database,
			'SELECT count(note(name, 0)) FROM model');
		my @counts = split /\|/, $primary->safe_psql(
			$database, q{
			SELECT count(*), count(*) FILTER (WHERE living),
				count(*) FILTER (WHERE dropped) FROM temporary});
		$temporary{$_} += shift @counts foreach qw(all living dropped);
		$primary->safe_psql($database, 'DELETE FROM temporary');

		# Autovacuum is off.
		$primary->safe_psql($database,
			$round % 20
			? 'VACUUM model, progress, seen, temporary'
			: 'VACUUM');
	}
	return;
}

# Returns how often a name that was created, or whose creation was replayed, was pending.
sub reuse_waits
{
	return
	  map { $total{ $_->name }{reuse_waits} + stats($_)->{reuse_waits} }
	  @nodes;
}

sub run_round
{
	my (%r) = @_;
	my $at = time();
	$round++;
	$r{base} //= BASE;
	$r{ops}  //= $r{upgrade} ? 300 : 60;
	my @waits = reuse_waits();
	begin_round(\%r);

	my @skipped = $r{skip} ? drop_for_skip() : ();
	$primary->safe_psql('postgres',
			"CREATE TEMPORARY TABLE scratch (tag bigint, id int);\n"
		  . "CALL use_temporary(160)")
	  if $r{temporary};

	my @sessions =
	  $upgraded
	  ? start_upgrade_sessions($primary, $round, $r{ops},
		$done{primary_immediate} // 0)
	  : start_sessions($primary, $round, $r{ops});
	my $stopped;
	foreach my $event (@{ $r{events} })
	{
		my ($fraction, $action) = @$event;
		wait_for_progress($fraction, @sessions);
		$actions{$action}->();
		$done{$action}++;
		$stopped = $action if $action =~ /^primary_/;
	}
	foreach my $session (@sessions)
	{
		my $ok = $session->{process}->finish;
		ok($ok, "round $round: session $session->{name} has done its work")
		  or diag errors_of($session)
		  unless $stopped;
	}

	# No session is running any more.
	if ($r{crash})
	{
		stop_node($_, 'immediate') foreach @nodes;
		$standby->start;
		$done{crash}++;
	}
	my $crashed = $r{crash} || ($stopped // '') eq 'primary_immediate';
	go_on($r{base}, $crashed, $stopped && $crashed ? @sessions : ())
	  if $crashed || $stopped;

	foreach my $session (@sessions)
	{
		cmp_ok(done_by($session), '>=', acknowledged($session),
			"round $round: nothing is lost that session $session->{name} has committed"
		);
	}
	pending_was_skipped($r{base}, @skipped) if $r{skip};
	contents_are_right('as it is');
	count_numbers();
	drain() if $r{drain};

	my @new_waits = reuse_waits();
	note sprintf(
		'round %d took %.1f s; names that came back while pending: %s',
		$round,
		time() - $at,
		join(' and ', map { $new_waits[$_] - $waits[$_] } 0 .. $#waits));
	return;
}

# --- the schedule -----------------------------------------------------------

# Additional rounds in binary-upgrade mode in which the workers are slow, and which
# nothing ends early.
my $quiet_upgrades = 0;

run_round(%$_) foreach schedule();

# Each iteration has one round in which anything may happen, and three rounds in which the
# standby's worker does not complete the entries whose names are used again.
my $bursts = 0;
while (time() - $began < $seconds)
{
	my %random = random_round($upgraded, keys %actions);
	$quiet_upgrades++ if $random{quiet_upgrade};
	run_round(%random);

	my %burst = (
		ops => 40 + int(rand(80)),
		base => draw(BASE, NEAR_END),
		primary => random_settings());
	run_round(%burst, standby => slow_settings());
	run_round(%burst,
		events => [ [ 0.5, draw(qw(evict checkpoint database)) ] ])
	  foreach 1 .. 2;
	$bursts++;
}

# Everything is on disk after a restart.
$round++;
begin_round({ base => BASE, standby => {} });
drain();
foreach my $node (@nodes)
{
	stop_node($node, 'fast');
	$node->start;
}
contents_are_right('after a restart', 'template_a', 'template_b');

# --- was it tested at all? --------------------------------------------------

my ($on_primary, $on_standby) = reuse_waits();
my $number_reuses = 0;
$number_reuses += $primary->safe_psql($_, 'SELECT sum(reuses) FROM seen')
  foreach qw(postgres other);
note sprintf('%d rounds in %.0f s', $round, time() - $began);
note
  "reuses while pending: $on_primary on the primary, $on_standby on the standby";
note "numbers that had a relation before: $number_reuses";
note "numbers that were pending and not chosen: $numbers_skipped";
note 'numbers of temporary relations: '
  . "$temporary{all}, of them a living one's: $temporary{living}, of a dropped one: $temporary{dropped}";
note 'database OIDs that came back: ' . database_reuses();
note "contents of relations compared: $checked";
note 'done: ' . describe(\%done);
note 'counted: ' . describe(\%total);
cmp_ok(
	$on_primary, '>=',
	500 + 50 * $quiet_upgrades,
	'names came back while they were pending on the primary');
cmp_ok($on_standby, '>=', 800 + 50 * $bursts, 'and on the standby');
cmp_ok($number_reuses, '>=', 2000, 'numbers came back');
cmp_ok(database_reuses(), '>=', 12, 'OIDs of databases came back');
cmp_ok($numbers_skipped, '>=', 20, 'numbers that were pending were passed');
cmp_ok($temporary{living}, '>=', 10,
	'temporary relations had numbers of permanent ones');
cmp_ok($temporary{dropped}, '>=', 50, 'and of dropped ones');

foreach my $node (@nodes)
{
	$node->stop;
	my $log = slurp_file($node->logfile);
	ok($log =~ /(?:check|restart)point complete:.* sync files=[1-9]/,
		'files were synced on ' . $node->name);
	is( join(
			"\n",
			grep {
				/PANIC|TRAP|invalid page|inconsistent page|could not (?:open|create|read|write|truncate|remove|fsync) (?:file|block)|was terminated by signal/
			} split /\n/,
			$log),
		'',
		'the log is clean on ' . $node->name);
}

done_testing();
