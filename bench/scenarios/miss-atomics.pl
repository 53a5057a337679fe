
# Copyright (c) 2026, LazyDrop developers

# Asks: what is the cost of finding a victim for a page that is not in shared_buffers, and
# of noting the page that is loaded?  Instructions, atomic instructions among them, and
# LWLocks are counted by callgrind in all processes of a server: with one session that
# looks up rows of twice shared_buffers at random, and with 64.
#
# Expected: with lazydrop.scan_resistance on, no more atomic instructions than stock,
# because hands are moved by many positions at once; the same number of locks; no more
# with 64 sessions than with one.

use strict;
use warnings FATAL => 'all';

use LazyDropBench;
use LazyDropCache;
use LazyDropCallgrind;
use PostgreSQL::Test::Utils;

# GetVictimBuffer also calls the function that notes an eviction.
my @collect = (
	'--dump-instr=yes', '--compress-pos=no',
	map { "--toggle-collect=$_" } qw(GetVictimBuffer* LazyDropCacheNoteLoad*)
);

# Returns the processes that served a user's sessions, according to the log.  The user
# distinguishes them from the session that has filled shared_buffers, which may end some
# time after it was closed.
sub processes_of
{
	my ($user, $log) = @_;
	return $log =~ / \[(\d+)\] .*LOG:  disconnection: .* user=$user /g;
}

scenario 'miss-atomics' => (
	seconds => 150,
	runs => 1,
	disk => 5,
	groups => sub {
		return cases(\@servers, size => $opt{quick} ? '8MB' : '512MB');
	},
	run => sub {
		my ($case) = @_;
		return unless have_valgrind('miss-atomics');
		my $node = make_primary(
			$case->{server},
			cache_settings($case->{server}),
			shared_buffers => $case->{size},
			enable_seqscan => 'off',
			enable_bitmapscan => 'off',
			log_disconnections => 'on',
			max_connections => 100,
			jit => 'off');
		my $rows = make_rows($node, 't', 2 * megabytes($case->{size}));
		$node->safe_psql('postgres',
			'CREATE UNIQUE INDEX ON t (id); CREATE EXTENSION pg_prewarm; VACUUM (FREEZE, ANALYZE) t'
		);
		my @clients = (1, $opt{quick} ? 8 : 64);
		$node->safe_psql('postgres', "CREATE ROLE user$_ SUPERUSER LOGIN")
		  foreach @clients;
		$node->stop;

		my $out = start_counted($node, \@collect);
		$node->safe_psql('postgres',
			q{SELECT pg_prewarm('t_id_idx'), pg_prewarm('t')});
		foreach my $clients (@clients)
		{
			pgbench(
				$node,
				"\\set id random(1, $rows)\nSELECT count(f) FROM t WHERE id = :id;\n",
				'-U' => "user$clients",
				'-c' => $clients,
				'-j' => $clients > 1 ? 2 : 1,
				'-t' => ($opt{quick} ? 1280 : 12800) / $clients);
		}
		$node->stop('fast', timeout => 600);

		my $program = $node->installed_command('postgres');
		my $log = slurp_file($node->logfile);
		foreach my $clients (@clients)
		{
			my @files =
			  map { "$out.$_" } processes_of("user$clients", $log);
			die "fewer than $clients sessions\n" if @files < $clients;
			my ($misses, %n) = (0);
			foreach my $file (@files)
			{
				$misses += entries_in($file, $program, qr/^GetVictimBuffer/);
				$n{instructions} += instructions_in($file);
				$n{locks} +=
				  entries_in($file, $program,
					qr/^LWLock(?:Conditional)?Acquire$/);
				my $atomics = atomics_in($file, $program);
				$n{atomics} += $atomics if defined $atomics;
			}
			die "only $misses pages were read by $clients sessions\n"
			  if $misses < ($opt{quick} ? 100 : 1000);
			record(
				'page that is not in a buffer',
				$_,
				$n{$_} / $misses,
				"$clients sessions") foreach sort keys %n;
		}
		unlink glob("'$out'.*");
		discard($node);
	});
