# Copyright (c) 2026, LazyDrop developers

=pod

=head1 NAME

RecycledNumbers - the rounds of 041_recycled_numbers.pl

=head1 DESCRIPTION

A round is a hash.  "base" is the start of the counter.  "primary" and "standby" have
settings.  "hold_primary" and "hold_standby" name an injection point.  "ops" is the number
of operations.  "events" is a list of times and actions.  "upgrade", "skip", "temporary",
"crash" and "drain" tell whether the round is of that kind.

=cut

package RecycledNumbers;

use strict;
use warnings FATAL => 'all';

use Exporter 'import';
use LazyDropModel qw(chance draw);
use LazyDropUtils qw(pg_major);
use PostgreSQL::Test::Utils;

our @EXPORT_OK =
  qw(BASE NEAR_END set_next_oid schedule random_round random_settings slow_settings);

# The counter starts with one of these numbers in each round.
use constant BASE => 1_000_000;
use constant NEAR_END => 4294967295 - 60;

# Offset of the next OID in the control file; see pg_control.h.
use constant NEXT_OID_OFFSET => 72;

# Settings that make a worker slow, and others.
my %slow = (
	'lazydrop.lookup_limit' => '0',
	'lazydrop.pass_delay' => q{'60s'},
	'lazydrop.removal_rate' => q{'1MB'});
my %tiny = ('lazydrop.max_pending' => 16);
my %small = ('shared_buffers' => q{'1MB'});

# Let the background writer keep files open.  This is used only where no name is used
# again that the worker, or a checkpoint in binary-upgrade mode, has settled: in these
# cases, as in stock, the background writer is not told to close the files.
my %bgwriter = (
	'bgwriter_delay' => q{'10ms'},
	'bgwriter_lru_maxpages' => 1000,
	'bgwriter_lru_multiplier' => 10);

=pod

=over

=item slow_settings()

Returns the settings for a slow worker.

=cut

sub slow_settings
{
	return {%slow};
}

=pod

=item set_next_oid($node, $oid)

Set the next OID of a server that has been shut down.

=cut

my @crc_table = map {
	my $value = $_;
	$value = $value & 1 ? ($value >> 1) ^ 0x82F63B78 : $value >> 1
	  foreach 1 .. 8;
	$value;
} 0 .. 255;

sub crc32c
{
	my ($data) = @_;
	my $crc = 0xFFFFFFFF;
	$crc = ($crc >> 8) ^ $crc_table[ ($crc ^ $_) & 0xFF ]
	  foreach unpack('C*', $data);
	return $crc ^ 0xFFFFFFFF;
}

sub set_next_oid
{
	my ($node, $oid) = @_;
	my $name = $node->data_dir . '/global/pg_control';
	open(my $file, '+<:raw', $name) or die "could not open $name: $!";
	my $control;
	read($file, $control, 512) == 512 or die "could not read $name: $!";

	my ($shown) = run_command([ 'pg_controldata', $node->data_dir ]);
	die "the server was not shut down:\n$shown"
	  unless $shown =~ /^Database cluster state: +shut down$/m;
	my ($old) = $shown =~ /NextOID: +([0-9]+)$/m;
	die "the next OID is not where it is expected in $name"
	  unless unpack('L', substr($control, NEXT_OID_OFFSET, 4)) == $old;

	# The checksum is the value that matches the bytes before it.
	my ($crc_at) = grep {
		crc32c(substr($control, 0, $_)) ==
		  unpack('L', substr($control, $_, 4))
	} map { $_ * 4 } 64 .. 126;
	die "no checksum in $name" unless defined $crc_at;
	substr($control, NEXT_OID_OFFSET, 4) = pack('L', $oid);
	substr($control, $crc_at, 4) =
	  pack('L', crc32c(substr($control, 0, $crc_at)));
	seek($file, 0, 0) or die "could not seek in $name: $!";
	print $file $control;
	close($file) or die "could not write $name: $!";
	return;
}

=pod

=item schedule()

Returns the rounds that are always run.

=cut

# Pending entries of the standby are kept from one round to the next, until it gets other
# settings.
sub schedule
{
	return (
		{
			standby => { %slow, %small },
			events => [ [ 0.2, 'database' ] ]
		},
		{
			primary => { %small, %bgwriter },
			events => [
				[ 0.1, 'database' ],
				[ 0.5, 'evict' ],
				[ 0.7, 'database' ],
				[ 0.9, 'checkpoint' ]
			]
		},
		{
			hold_primary => 'lazydrop-worker',
			skip => 1,
			events => [ [ 0.5, 'evict' ], [ 0.7, 'standby_fast' ] ]
		},
		{
			upgrade => 1,
			primary => { %small, %bgwriter },
			hold_primary => 'lazydrop-worker',
			events => [ [ 0.5, 'evict' ] ]
		},
		{
			primary => {%slow},
			standby => { %small, %bgwriter },
			hold_standby => 'lazydrop-worker',
			events => [ [ 0.2, 'database' ], [ 0.7, 'checkpoint' ] ]
		},
		{
			hold_primary => 'lazydrop-removal-step',
			standby => {},
			hold_standby => 'lazydrop-pass',
			events => [
				[ 0.1, 'database' ],
				[ 0.3, 'checkpoint' ],
				[ 0.8, 'release_primary' ]
			],
			drain => 1
		},
		{
			base => NEAR_END,
			primary => { %tiny, %slow, %small },
			standby => {},
			hold_standby => 'lazydrop-removal-step',
			events => [ [ 0.2, 'database' ], [ 0.6, 'evict' ] ]
		},
		{
			base => NEAR_END,
			hold_primary => 'lazydrop-pass',
			events => [
				[ 0.2, 'database' ],
				[ 0.5, 'standby_immediate' ],
				[ 0.6, 'release_primary' ]
			]
		},
		{
			upgrade => 1,
			standby => { %tiny, %slow },
			hold_primary => 'lazydrop-removal-step',
			events => [
				[ 0.1, 'standby_fast' ],
				[ 0.3, 'checkpoint' ],
				[ 0.5, 'restartpoint' ],
				[ 0.6, 'primary_immediate' ]
			]
		},
		{
			primary => {%slow},
			standby => {%slow},
			events => [
				[ 0.1, 'fsync_on' ],
				[ 0.6, 'fsync_off' ],
				[ 0.7, 'standby_fast' ],
				[ 0.8, 'primary_fast' ]
			]
		},
		{ temporary => 1, ops => 20, primary => {%slow} },
		{
			primary => {%slow},
			events => [ [ 0.3, 'database' ], [ 0.6, 'primary_immediate' ] ]
		},
		{
			primary => {%slow},
			events => [ [ 0.3, 'database' ] ],
			crash => 1,
			drain => 1
		},);
}

=pod

=item random_settings()

Returns random settings for a server.

=cut

# full_page_writes and wal_consistency_checking are not changed.  If replay begins before
# a name is used again, it finds pages of the new owner, which stock does not survive
# either.
my %extra = (
	pg_major() < 18 ? () : ('io_method' => [ 'worker', 'sync' ]),
	'lazydrop.defer_files' => [ 'on', 'on', 'on', 'off' ],
	'lazydrop.enabled' => [ 'on', 'on', 'on', 'off' ],
	'lazydrop.lookup_limit' => [ -1, 0, 0 ],
	'lazydrop.max_pending' => [ 16, 500, 16384, 16384 ],
	'lazydrop.pass_delay' => [ 0, q{'20ms'}, map { q{'60s'} } 1 .. 4 ],
	'lazydrop.removal_rate' => [ 0, q{'1MB'} ],
	'shared_buffers' => [ q{'1MB'}, q{'16MB'}, q{'256MB'} ]);

sub random_settings
{
	return {
		map  { $_ => draw(@{ $extra{$_} }) }
		grep { chance(0.5) || /pass_delay/ } sort keys %extra
	};
}

=pod

=item random_round($upgraded, @actions)

Returns a round in which anything may happen.  "quiet_upgrade" is set for a round in
binary-upgrade mode in which the worker is slow and that nothing ends early.

=cut

sub random_round
{
	my ($upgraded, @actions) = @_;
	my %r = (
		base => chance(0.3) ? NEAR_END : BASE,
		primary => random_settings(),
		upgrade => !$upgraded && chance(0.25),
		drain => chance(0.3));
	my @points =
	  qw(lazydrop-worker lazydrop-pass lazydrop-pass-end lazydrop-removal lazydrop-removal-step);
	if (chance(0.3))
	{
		# The standby does not read these settings between two records.
		$r{standby} = random_settings();
		delete $r{standby}{"lazydrop.$_"} foreach qw(enabled defer_files);
	}

	# Names must be used again while they are pending.
	$r{ops} = 40 + int(rand(80));
	if ($r{upgrade})
	{
		$r{ops} *= 4;
		delete $r{primary}{"lazydrop.$_"}
		  foreach qw(enabled defer_files max_pending);
		$r{primary} = { %{ $r{primary} }, %slow };
	}

	# A worker reaches such a point only if it has work to do.
	foreach my $name (qw(primary standby))
	{
		next unless chance(0.25);
		$r{"hold_$name"} = draw(@points);
		$r{$name} //= {};
		delete $r{$name}{"lazydrop.$_"}
		  foreach qw(enabled defer_files pass_delay);
	}
	$r{temporary} = 1 if !$r{upgrade} && chance(0.2);

	my @can = grep { !/^primary_|fsync/ } sort @actions;
	push @can, qw(database restartpoint);
	$r{events} = [
		map { [ sprintf('%.2f', $_), draw(@can) ] }
		sort { $a <=> $b } map { rand() * 0.9 } 1 .. 1 + int(rand(6))
	];
	if (chance(0.3))
	{
		push @{ $r{events} },
		  [ 0.95, draw(qw(primary_fast primary_immediate)) ];
	}
	else
	{
		$r{crash} = chance(0.2);
		$r{quiet_upgrade} = $r{upgrade} && !$r{hold_primary};
	}
	return %r;
}

=pod

=back

=cut

1;
