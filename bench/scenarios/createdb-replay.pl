
# Copyright (c) 2026, LazyDrop developers

# Source: replay of CREATE DATABASE with STRATEGY file_copy scans all headers for pages of
# the source, in stock as well.  The fork must also make sure that no page of an earlier
# owner of the target's name is left.
#
# Asks: how long does a standby take to replay 100 of these records that it has received
# before, and how many passes does it make for them?
#
# Expected: no longer than stock, and no pass, because the target's directory does not
# exist.

use strict;
use warnings FATAL => 'all';

use LazyDropBench;
use LazyDropUtils qw(hold_replay stats);
use Time::HiRes   qw(time);

scenario 'createdb-replay' => (
	seconds => 15,
	disk => 6,
	groups => sub {
		return map { cases([qw(stock on)], size => $_) } sizes('128MB');
	},
	run => sub {
		my ($case) = @_;
		my $primary =
		  make_primary($case->{server}, shared_buffers => $case->{size});
		my $standby = make_standby($primary, $case->{server});
		my $databases = n(100);
		my $what = "$databases CREATE DATABASE";
		hold_replay($standby);
		my $began = time;
		$primary->safe_psql(
			'postgres',
			join('',
				map { "CREATE DATABASE db$_ STRATEGY file_copy;\n" }
				  1 .. $databases));
		record('primary', 's', time - $began, $what);
		sync_disk();
		my $before = $case->{server} eq 'on' ? stats($standby) : undef;
		record('replay', 's',
			time_resumed_replay($standby, $primary->lsn('flush')), $what);
		record('passes for it',
			'passes', stats($standby)->{passes} - $before->{passes}, $what)
		  if $before;

		# The databases must exist, or the measurement is not valid.
		my $seen = $standby->safe_psql('postgres',
			q{SELECT count(*) FROM pg_database WHERE datname ~ '^db\d'});
		die "replay has made $seen databases\n" if $seen != $databases;
		discard($standby, $primary);
	});
