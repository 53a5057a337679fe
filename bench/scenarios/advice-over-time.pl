
# Copyright (c) 2026, LazyDrop developers

# Source: "Set shared_buffers to 16 MB", said a few seconds after lazydrop.advisor had been
# switched on.
#
# Asks: what does pg_lazydrop_advise() say at each moment, and is it right?  The server is
# warm, and then the advisor is switched on and asked again and again, while the load goes on
# or changes.  Servers of the other seven sizes run the same load, and count the pages that
# they read meanwhile.  A verdict is wrong if, in the time that it is about, the size that it
# names reads more than 1.2 times as much as the best one, unless the difference is
# negligible (rule A11 in src/backend/storage/advisor/README).  How long does it take until
# the answer is no longer "unknown", and was that time named?
#
# Lookups by key, 20 in a statement, 20 rows a page, in a table of 8 times shared_buffers.
# The loads are: 98 % of the lookups in 0.1 times shared_buffers and the rest in 1.5 times,
# whose hit ratios hardly differ, but whose reads do; keys chosen uniformly from 1.13 and
# from 8 times; a day with a Zipfian distribution, a night in which the table is read by its
# index, 3 times shared_buffers of it, and another day; keys from a part of the table that
# doubles four times, from 0.25 times; and nothing at all.  A step of a load has a fixed
# number of lookups, so that all servers do the same.
#
# Expected: no wrong verdict at any moment, and not always "unknown".

use strict;
use warnings FATAL => 'all';

use LazyDropBench;
use LazyDropCache;
use List::Util  qw(max min);
use Time::HiRes qw(time);

my $shared_buffers = $opt{quick} ? '16MB' : '64MB';
my $buffers = 128 * megabytes($shared_buffers);
my $per_page = 20;
my @factors = (0.25, 0.5, 0.75, 1, 1.5, 2, 3, 4);
my $present = 3;
my $warm_up = $opt{quick} ? 1 : 6;
my $steps = $opt{quick} ? 3 : 40;
my $at_once = 20;
my $clients = 2;

# How often a client executes the statement of a step, so that it takes about a second.
my $times = int(($opt{quick} ? 4 : 24) * $buffers / $at_once / $clients);

# An error of this part of the best size's reads is no wrong verdict.
my $slack = 1.2;

# SQL expressions and statements.
sub rows { return int($_[0] * $buffers * $per_page); }

sub uniform { return '1 + floor(random() * ' . rows($_[0]) . ')::int'; }

sub lookups
{
	my ($key) = @_;
	return
	  "SELECT count(f) FROM (SELECT $key AS id FROM generate_series(1, $at_once) OFFSET 0) AS k JOIN account USING (id);\n";
}

# The pages in the order of the index; a client's :at goes on in each step.
sub in_order
{
	my ($factor, $step) = @_;
	my $n = $at_once * $per_page;
	my $all = int(rows($factor) / $n);
	my $start = $step * $times * $clients;
	return qq{\\set from ($start + :client_id * $times + :at) % $all * $n
\\set at :at + 1
SELECT count(f) FROM account WHERE id > :from AND id <= :from + $n;
};
}

# The script of a step, from -$warm_up to $steps - 1; undef if there is nothing to do.
my %load = (
	'98 % in few pages' => sub {
		return lookups('CASE WHEN random() < 0.98 THEN '
			  . uniform(0.1)
			  . ' ELSE '
			  . uniform(1.5)
			  . ' END');
	},
	'uniform 1.13 times' => sub { return lookups(uniform(1.13)); },
	'uniform 8 times' => sub { return lookups(uniform(8)); },
	'day and night' => sub {
		my ($step) = @_;
		return $step >= $steps / 3 && $step < $steps / 2
		  ? in_order(3, $step)
		  : lookups(zipf_sql(1.1, rows(4)));
	},
	'doubles' => sub {
		my ($step) = @_;
		return lookups(uniform(0.25 * 2**int(max($step, 0) * 5 / $steps)));
	},
	'idle' => sub {
		my ($step) = @_;
		return $step < 0 ? lookups(uniform(0.9)) : undef;
	});

my ($node, $rows);

sub run_step
{
	my ($name, $step) = @_;
	my $script = $load{$name}->($step);
	if (defined $script)
	{
		pgbench(
			$node, $script,
			'-M' => 'prepared',
			'-D' => 'at=0',
			'-c' => $clients,
			'-j' => $clients,
			'-t' => $times);
	}
	else
	{
		# A second of an idle server.
		$node->safe_psql('postgres', 'SELECT pg_sleep(1)');
	}
	wait_for_sessions($node);
	return;
}

sub start_warm
{
	my ($server, $factor, $name) = @_;
	restart_as(
		$node, $server,
		'shared_buffers' => $buffers * $factor * 8 . 'kB',
		'lazydrop.advisor' => 'off');
	$node->safe_psql('postgres', 'SELECT count(f) FROM account WHERE id > 0');
	run_step($name, $_) foreach -$warm_up .. -1;
	return;
}

# Returns the verdict on the whole time.
sub ask
{
	my ($server) = @_;
	my %answer;
	@answer{qw(verdict bytes since until wait)} = split /\|/,
	  $node->safe_psql(
		'postgres', qq{
		SELECT verdict, shared_buffers, extract(epoch FROM until) - seconds,
			extract(epoch FROM until), extract(epoch FROM wait)
		FROM pg_lazydrop_advise()
		WHERE period = 'all' AND scan_resistance = '$server'});
	$answer{time} = time;
	return \%answer;
}

# Whether a verdict is wrong for the steps from $first to $last: $seen->{reads}[I][N] is the
# number of pages that the size I has read before the step N, and $seen->{hits}[N] that of
# pages that the present size has found.
sub is_wrong
{
	my ($answer, $seen, $first, $last) = @_;
	my @truth =
	  map { $_->[ $last + 1 ] - $_->[$first] } @{ $seen->{reads} };
	my $now = $truth[$present];
	my $best = min(@truth);
	my $hits = $seen->{hits}[ $last + 1 ] - $seen->{hits}[$first];
	my $seconds = $seen->{began}[ $last + 1 ] - $seen->{began}[$first];
	my $none = max($seconds, $now / 100, ($hits + $now) / 10000);
	my $verdict = $answer->{verdict};

	return $now > $slack * $best + $none if $verdict eq 'keep';
	my ($i) =
	  grep { abs($factors[$_] * $buffers * 8192 - $answer->{bytes}) < 65536 }
	  0 .. $#factors;
	die "a size that the advisor does not simulate: $answer->{bytes}\n"
	  unless defined $i;
	return $truth[$i] + $none >= $now || $truth[$i] > $slack * $best + $none
	  if $verdict eq 'increase';
	return $truth[$i] > $slack * $now + $none
	  || $now > $slack * $best + $none
	  if $verdict eq 'reducible'
	  || $verdict eq 'beyond';
	die "an unexpected verdict: \"$verdict\"\n";
}

# A verdict is about parts of its first and last step, and the statistics of the last second
# may be missing.  It is wrong if it is wrong for each of these times.
sub judge
{
	my ($answer, $step, $seen) = @_;
	my $began = $seen->{began};
	my ($first) =
	  grep { $began->[$_] <= $answer->{since} } reverse 0 .. $step;
	my ($last) = grep { $began->[$_] <= $answer->{until} } reverse 0 .. $step;
	$first //= 0;
	$last  //= 0;
	foreach my $from ($first, min($first + 1, $last))
	{
		foreach my $to (grep { $_ >= $from } $last - 1 .. $last)
		{
			return 0 unless is_wrong($answer, $seen, $from, $to);
		}
	}
	return 1;
}

scenario 'advice-over-time' => (
	seconds => 300,
	runs => 1,
	disk => 4,
	groups => sub {
		return
		  map { cases([qw(off on)], size => $shared_buffers, case => $_) }
		  sort keys %load;
	},
	setup => sub {
		$node = make_primary(
			'off',
			cache_settings('off'),
			%without_standbys,
			%by_index,
			shared_buffers => $shared_buffers,
			autovacuum => 'off');
		my $length = filler($per_page);
		$node->safe_psql(
			'postgres',
			sprintf(
				q{
			CREATE TABLE account AS SELECT i AS id, 0 AS n, 0 AS m, repeat('x', %d) AS f
				FROM generate_series(1, %d) AS i;
			CREATE UNIQUE INDEX ON account (id);
			VACUUM (FREEZE, ANALYZE) account;
			CREATE EXTENSION pg_lazydrop}, $length, rows(8)));
	},
	run => sub {
		my ($case) = @_;
		my ($server, $name) = @$case{qw(server case)};
		my (%seen, @answers);
		my $note = sub {
			my ($i) = @_;
			my ($hits, $reads) = blocks_so_far($node);
			push @{ $seen{reads}[$i] }, $reads;
			return if $i != $present;
			push @{ $seen{hits} }, $hits;
			push @{ $seen{began} }, time;
		};

		start_warm($server, 1, $name);
		$node->append_conf('postgresql.conf', "lazydrop.advisor = on\n");
		$node->reload;
		$node->poll_query_until('postgres',
			q{SELECT count(*) = 1 FROM pg_stat_activity WHERE backend_type = 'lazy drop advisor'}
		) or die "the advisor does not start\n";
		my $on = time;
		foreach my $step (0 .. $steps - 1)
		{
			$note->($present);
			run_step($name, $step);
			push @answers, ask($server);
		}
		$note->($present);

		foreach my $i (grep { $_ != $present } 0 .. $#factors)
		{
			start_warm($server, $factors[$i], $name);
			foreach my $step (0 .. $steps - 1)
			{
				$note->($i);
				run_step($name, $step);
			}
			$note->($i);
		}

		my ($unknown, $wrong, $known, $named) = (0, 0, undef, undef);
		foreach my $step (0 .. $steps - 1)
		{
			my $answer = $answers[$step];
			my $after = $answer->{time} - $on;
			if ($answer->{verdict} =~ /^(?:unknown|waiting)$/)
			{
				$unknown++;
				$named = max($named // 0, $after + $answer->{wait})
				  if !defined $known && length($answer->{wait} // '');
			}
			else
			{
				$known //= $after;
				if (judge($answer, $step, \%seen))
				{
					$wrong++;
					note(
						sprintf
						  '%s; %s: wrong after %.0f s: %s %d; reads at the sizes: %s',
						$server, $name, $after,
						@$answer{qw(verdict bytes)},
						join(' ',
							map { $_->[ $step + 1 ] - $_->[0] }
							  @{ $seen{reads} }));
				}
			}
		}
		my $last = $answers[-1];
		note(
			sprintf '%s; %s: at the end %s %s; reads at the sizes: %s',
			$server,
			$name,
			$last->{verdict},
			$last->{bytes} // '',
			join(' ', map { $_->[$steps] - $_->[0] } @{ $seen{reads} }));
		record('asked', 'times', $steps);
		record('unknown', 'times', $unknown);
		record('wrong', 'times', $wrong);
		record('known after', 's', $known) if defined $known;
		record('latest time named before', 's', $named) if defined $named;
		record('last verdict names',
			'times', $last->{bytes} / 8192 / $buffers)
		  if $last->{verdict} !~ /^(?:unknown|waiting)$/;
		$node->stop;
	},
	teardown => sub {
		discard($node);
	});
