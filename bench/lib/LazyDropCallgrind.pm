
# Copyright (c) 2026, LazyDrop developers

=pod

=head1 NAME

LazyDropCallgrind - counts of valgrind's callgrind

=head1 SYNOPSIS

  use LazyDropCallgrind;

  return unless have_valgrind('my-scenario');
  my ($file, $stdout, $stderr) =
    count_single_user($node, ['--toggle-collect=FlushBuffer*'], "CHECKPOINT;\n");
  my $instructions = instructions_in($file);

  my $out = start_counted($node, ['--toggle-collect=FlushBuffer*']);
  my $locks = calls_below("$out.$pid", qr/^LazyDrop/, qr/^LWLock\w*Acquire/);

=head1 DESCRIPTION

These counts do not depend on other load on the machine.  Each function takes options of
callgrind, which determine the code that is counted.

=cut

package LazyDropCallgrind;

use strict;
use warnings FATAL => 'all';

use Exporter 'import';
use List::Util qw(sum0);
use LazyDropBench;
use PostgreSQL::Test::Utils;

our @EXPORT = qw(have_valgrind count_single_user start_counted instructions_in
  calls_below entries_in atomics_in);

my @valgrind = qw(valgrind --quiet --tool=callgrind);

=pod

=head1 FUNCTIONS

=over

=item have_valgrind($scenario)

Returns whether valgrind is installed.  If not, reports that the scenario is skipped.

=cut

sub have_valgrind
{
	my ($scenario) = @_;
	return 1 if system('valgrind --version >/dev/null 2>&1') == 0;
	left_out($scenario, 'there is no valgrind');
	return 0;
}

=pod

=item count_single_user($node, \@options, $sql)

Run commands in a single-user server on the data directory of a node that is not running.
Returns the file that callgrind has written, and the output of the server.

=cut

sub count_single_user
{
	my ($node, $options, $sql) = @_;
	my $file = in_scratch('callgrind.single');
	my ($out, $err) = ('', '');
	run_program(
		[
			@valgrind, @$options,
			"--callgrind-out-file=$file",
			$node->installed_command('postgres'),
			'--single',
			'-D' => $node->data_dir,
			'postgres'
		],
		'<' => \$sql,
		'>' => \$out,
		'2>' => \$err) or die "valgrind failed: $err\n";
	return ($file, $out, $err);
}

=pod

=item start_counted($node, \@options)

Start a node with all its processes under callgrind.  Returns the prefix of the names of
the files that they write at exit; it is followed by a dot and the process ID.

=cut

sub start_counted
{
	my ($node, $options) = @_;
	my $out = in_scratch('callgrind.server');
	my @quoted = map { "'$_'" } @$options;
	my $command = write_file(
		'counted-postgres',
		join("\n",
			'#!/bin/sh',
			"exec @valgrind @quoted --vgdb=no '--callgrind-out-file=$out.%p' \\",
			"\t'" . $node->installed_command('postgres') . q{' "$@"},
			''));
	chmod 0755, $command or die "could not change \"$command\": $!\n";
	local %ENV = $node->_get_env(PGAPPNAME => undef);
	run_program(
		[
			$node->installed_command('pg_ctl'),
			'-D' => $node->data_dir,
			'-l' => $node->logfile,
			'-p' => $command,
			'-t' => $PostgreSQL::Test::Utils::timeout_default,
			'start'
		],
		'>' => \*STDERR,
		'2>&1') or die "valgrind does not start the server\n";
	$node->_update_pid(1);
	return $out;
}

=pod

=item instructions_in($file)

Returns the number of all counted instructions.

=cut

sub instructions_in
{
	my ($file) = @_;
	my ($instructions) = slurp_file($file) =~ /^(?:totals|summary): (\d+)/m
	  or die "no total in $file\n";
	return $instructions;
}

# Read a file.  Returns the calls by caller and callee; the number of executions of the
# instruction at each address, by object, if the options were --dump-instr=yes
# --compress-pos=no; and the names of functions.
sub read_callgrind
{
	my ($file) = @_;
	my (%name, %object, %calls, %executed, $caller, $callee, $in, $is_call);
	foreach my $line (split /\n/, slurp_file($file))
	{
		# A name is written only where it occurs first.
		if ($line =~ /^(c?)fn=\((\d+)\)(?: (.*))?$/)
		{
			$name{$2} = $3 if defined $3;
			($1 ? $callee : $caller) = $name{$2};
		}
		elsif ($line =~ /^(c?)ob=\((\d+)\)(?: (.*))?$/)
		{
			$object{$2} = $3 if defined $3;
			$in = $object{$2} unless $1;
		}
		elsif ($line =~ /^calls=(\d+)/)
		{
			$calls{$caller}{$callee} += $1;

			# The next line has the cost of the called function.
			$is_call = 1;
		}
		elsif ($line =~ /^0x([0-9a-f]+) \d+ (\d+)$/)
		{
			$executed{$in}{ hex $1 } += $2 unless $is_call;
			$is_call = 0;
		}
	}
	return (\%calls, \%executed, [ values %name ]);
}

=pod

=item calls_below($file, $callers, $function)

Returns the number of calls of functions whose names match a pattern, by functions that
match another one and by the functions that these call, directly or indirectly.  All calls
are included, even those made while collection was off.

=cut

sub calls_below
{
	my ($file, $callers, $function) = @_;
	my ($calls, undef, $names) = read_callgrind($file);
	my @look = grep { /$callers/ } sort @$names;
	die "$file has no function of \"$callers\"\n" unless @look;
	my %seen = map { $_ => 1 } @look;
	my $n = 0;
	while (defined(my $caller = shift @look))
	{
		foreach my $called (sort keys %{ $calls->{$caller} })
		{
			if ($called =~ /$function/)
			{
				$n += $calls->{$caller}{$called};
			}
			elsif (!$seen{$called}++)
			{
				push @look, $called;
			}
		}
	}
	return $n;
}

=pod

=item entries_in($file, $program, $function)

Returns how often functions of a program whose names match a pattern were entered.

=item atomics_in($file, $program)

Returns the number of atomic read-modify-write instructions of a program that were
executed, or undef if this is not known for the machine's processor.

Both functions count only collected instructions, and need the options --dump-instr=yes
and --compress-pos=no.

=cut

my %code;

# Returns the addresses of a program's functions, by name, and of its atomic instructions.
sub code_of
{
	my ($program) = @_;
	return $code{$program} if $code{$program};
	my (%entry, @atomics);
	open my $code, '-|', 'objdump', '-d', '--no-show-raw-insn', $program
	  or die "could not run objdump: $!\n";
	while (my $line = <$code>)
	{
		if ($line =~ /^([0-9a-f]+) <(.+)>:$/)
		{
			$entry{$2} = hex $1;
		}

		# An exchange with memory is atomic without a prefix.
		elsif ($line =~ /^\s+([0-9a-f]+):\s+(?:lock |xchg\s.*\()/)
		{
			push @atomics, hex $1;
		}
	}
	close $code or die "objdump does not read \"$program\"\n";
	return $code{$program} = { entry => \%entry, atomics => \@atomics };
}

sub executed_at
{
	my ($file, $program, @addresses) = @_;
	my (undef, $executed) = read_callgrind($file);
	return sum0(map { $executed->{$program}{$_} // 0 } @addresses);
}

sub entries_in
{
	my ($file, $program, $function) = @_;
	my $entry = code_of($program)->{entry};
	my @names = grep { /$function/ } keys %$entry
	  or die "$program has no function of \"$function\"\n";
	return executed_at($file, $program, @$entry{@names});
}

sub atomics_in
{
	my ($file, $program) = @_;
	return unless `uname -m` =~ /^x86_64$/;
	return executed_at($file, $program, @{ code_of($program)->{atomics} });
}

=pod

=back

=cut

1;
