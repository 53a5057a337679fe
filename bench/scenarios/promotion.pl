
# Copyright (c) 2026, LazyDrop developers

# Source: operators' question about the cost of a failover right after a large drop,
# because a cluster has no primary while its standby is promoted.
#
# Asks: how long does it take from "pg_ctl promote" until the server is no longer in
# recovery, with 100 files of 1 GB pending (sparse files, so that there can be that many),
# with 20 GB of real ones (in the first run only), and with nothing?
# lazydrop.removal_rate keeps them pending.
#
# Expected: at most 1.2 times as long as with nothing pending.

use strict;
use warnings FATAL => 'all';

use LazyDropBench;
use LazyDropFiles qw(add_segments);
use LazyDropUtils qw(stats);

# Only the standby has the files of a table that is dropped.
my $segments = 10;

# In a smoke run, real files have only 16 MB.
my $gigabytes = 20;
my $fits = free_gigabytes() > ($opt{quick} ? 2 : $gigabytes + 4);

scenario 'promotion' => (
	seconds => sub { $_[0]{real} ? 120 : 6 },
	groups => sub {
		my %common = (size => '128MB', tables => 0);
		return [
			{ %common, server => 'stock', case => 'nothing pending' },
			{ %common, server => 'on', case => 'nothing pending' },
			{
				%common,
				server => 'on',
				case => '100 files of 1 GB pending',
				tables => 100 / $segments
			},
			(   $fits
				? {
					%common,
					server => 'on',
					case => "$gigabytes GB pending",
					tables => $gigabytes / $segments,
					real => 1,
					runs => 1
				  }
				: ())
		];
	},
	setup => sub {
		left_out("$gigabytes GB pending", 'too little space on the disk')
		  unless $fits;
	},
	run => sub {
		my ($case) = @_;
		my $primary = make_primary(
			$case->{server},
			shared_buffers => $case->{size},
			'lazydrop.lookup_limit' => '0',
			'lazydrop.pass_delay' => '60s',
			'lazydrop.removal_rate' => '1MB');
		my $standby = make_standby($primary, $case->{server});

		# Also with nothing pending, the promotion must have to copy the last WAL segment.
		my @tables = map { "t$_" } 1 .. ($case->{tables} || 10);
		$primary->safe_psql('postgres',
			join('', map { "CREATE TABLE $_ AS SELECT 1 AS a;\n" } @tables));
		@tables = () if !$case->{tables};
		$primary->wait_for_replay_catchup($standby);
		foreach my $table (@tables)
		{
			my ($path) = table_path($primary, $table) =~ m{/(base/\d+/\d+)$};
			$case->{real}
			  ? add_gigabytes($standby->data_dir . "/$path", $segments)
			  : add_segments($standby, $path, $segments, 1024**3);
		}
		$primary->safe_psql('postgres',
			join('', map { "DROP TABLE $_;\n" } @tables));
		$primary->wait_for_replay_catchup($standby);
		sync_disk();
		die "too little is pending\n"
		  if @tables && stats($standby)->{pending_relations} < @tables;

		record('promotion', 's', time_promotion($standby));
		discard($standby, $primary);
	});
