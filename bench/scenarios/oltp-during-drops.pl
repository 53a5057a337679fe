
# Copyright (c) 2026, LazyDrop developers

# Source: users want a stable latency, not a fast DROP; and reports of standbys that
# commits wait for, and that stop while they replay drops.
#
# Asks: how are other sessions affected when tables are created and dropped 1, 10 and 100
# times per second, or when one of 1 GB is dropped every second?  Commits wait for the
# local disk, or for replay on a standby.
#
# There are two loads, each for the whole time.  The first runs as fast as two clients
# can, for the throughput (not with tables of 1 GB, whose creation takes long).  The
# second has 200 transactions per second that arrive according to a schedule, for the
# latencies, which include the time since a transaction should have begun.
#
# Expected: stock loses throughput at 100 drops per second, and with 1 GB each second its
# p99 is a quarter of a second; the fork's p99 is at most 1.2 times its p99 without drops.

use strict;
use warnings FATAL => 'all';

use LazyDropBench;
use List::Util qw(min);

my %pair;

sub loads
{
	my ($node, $beside, $throughput) = @_;
	my $prefix = in_scratch('latency');
	$beside->(
		sub {
			record(
				'throughput',
				'tps',
				pgbench(
					$node, undef, '-b', 'simple-update',
					'-c', 2, '-T', $opt{seconds}));
		}) if $throughput;
	$beside->(
		sub {
			pgbench(
				$node, undef,
				'-b' => 'simple-update',
				'-c' => 4,
				'-R' => 200,
				'-T' => $opt{seconds},
				'-l',
				'--log-prefix' => $prefix);
		});
	my @percents = (50, 95, 99, 99.9, 100);
	my @latencies = percentiles($prefix, @percents);
	foreach my $i (0 .. $#percents)
	{
		my $name = $percents[$i] == 100 ? 'slowest' : "p$percents[$i]";
		record($name, 'ms', $latencies[$i]);
	}
	return;
}

# Create tables of 1 GB, and drop one each second.
sub drop_gigabytes
{
	my ($primary, $standby, $load) = @_;
	my $n = $opt{seconds} - 1 || 1;
	$primary->safe_psql('postgres', "CREATE TABLE g$_ AS SELECT 1 AS a")
	  foreach 1 .. $n;
	$primary->wait_for_replay_catchup($standby);
	foreach my $i (1 .. $n)
	{
		my $path = table_path($primary, "g$i");
		add_gigabytes($_, 1)
		  foreach ($path,
			$standby->data_dir . ($path =~ m{(/base/\d+/\d+)$})[0]);
	}
	sync_disk();
	my $script = write_file('drops.sql',
		join('', map { "DROP TABLE g$_;\nSELECT pg_sleep(1);\n" } 1 .. $n));
	my $dropper = start_program(
		[
			$primary->installed_command('psql'),
			'-Xq',
			'-v' => 'ON_ERROR_STOP=1',
			'-d' => $primary->connstr('postgres'),
			'-f' => $script
		],
		'>' => \*STDERR,
		'2>&1');
	$load->();
	$dropper->finish or die "psql failed\n";
	return;
}

scenario 'oltp-during-drops' => (
	seconds => sub {
		return $_[0]{gigabytes}
		  ? 10 + 8 * $opt{seconds}
		  : 1 + 2 * $opt{seconds};
	},
	disk => 8 + 2 * $opt{seconds},
	groups => sub {
		my @compared = qw(stock on);
		my @groups;
		foreach my $commit ('local', 'remote_apply')
		{
			push @groups,
			  cases(
				\@compared,
				size => $opt{large},
				commit => $commit,
				rate => $_,
				case => "$commit; $_/s"
			  ) foreach ($opt{quick} ? (0, 100) : (0, 1, 10, 100));
		}
		push @groups,
		  cases(
			\@compared,
			size => $opt{large},
			commit => 'remote_apply',
			gigabytes => 1,
			case => 'remote_apply; 1 GB each second');
		return @groups;
	},
	setup => sub {
		foreach my $server (qw(stock on))
		{
			my $primary = make_primary(
				$server,
				shared_buffers => $opt{large},
				fsync => 'on');
			pgbench_init($primary, 20);
			my $standby = make_standby($primary, $server);
			$primary->append_conf('postgresql.conf',
				q{synchronous_standby_names = '*'});
			$primary->reload;
			$pair{$server} = [ $primary, $standby ];
		}
	},
	run => sub {
		my ($case) = @_;
		my ($primary, $standby) = @{ $pair{ $case->{server} } };
		$primary->safe_psql('postgres',
			"ALTER SYSTEM SET synchronous_commit = $case->{commit}");
		$primary->reload;
		$primary->poll_query_until('postgres',
			"SELECT current_setting('synchronous_commit') = '$case->{commit}'"
		) or die "the setting was not reloaded\n";
		$primary->safe_psql('postgres', 'CHECKPOINT');
		$standby->safe_psql('postgres', 'CHECKPOINT');
		sync_disk();
		my @rates;
		loads(
			$primary,
			sub {
				my ($load) = @_;
				if ($case->{gigabytes})
				{
					drop_gigabytes($primary, $standby, $load);
				}
				elsif ($case->{rate})
				{
					my $job = pgbench_start(
						$primary, loop_script(),
						'-c' => 1,
						'-R' => $case->{rate},
						'-T' => $opt{seconds});
					$load->();
					push @rates, pgbench_finish($job);
				}
				else
				{
					$load->();
				}
			},
			!$opt{quick} && !$case->{gigabytes});

		# A server that drops more slowly has less of this load.
		record('tables dropped', '1/s', min(@rates)) if @rates;

		# No work of this case may affect the next one.
		$primary->wait_for_replay_catchup($standby);
		wait_for_nothing_left($primary, $standby);
	},
	teardown => sub {
		discard(reverse @$_) foreach values %pair;
		%pair = ();
	});
