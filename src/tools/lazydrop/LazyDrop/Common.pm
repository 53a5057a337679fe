# Copyright (c) 2026, LazyDrop developers

# What the tools share: where things lie in a checkout, error messages in
# PostgreSQL's style, atomic file writes, running other programs, and the lock that
# keeps two of the tools from working on one prepared tree.

package LazyDrop::Common;

use strict;
use warnings FATAL => 'all';

use Cwd qw(abs_path);
use Digest::SHA;
use Exporter 'import';
use Fcntl          qw(:flock);
use File::Basename qw(basename dirname);
use File::Path     qw(make_path remove_tree);
use Getopt::Long   ();
use POSIX          ();

our @EXPORT = qw($top $state_dir $tree_dir $cache_dir
  fail notice set_quiet slurp spew sha256_file sha256_data read_conf
  run capture git lines_of git_settings get_options take_lock scratch_dir
  make_path remove_tree write_if_changed);

# The checkout that this file is in, whatever the current directory is.
our $top = abs_path(dirname(abs_path(__FILE__)) . '/../../../..');

# Everything made by the tools lies here, git-ignored.
our $state_dir = "$top/.pg";
our $tree_dir = "$state_dir/tree";
our $cache_dir = $ENV{LAZYDROP_CACHE} || "$state_dir/cache";

# While this is set, an error is thrown instead of ending the program.
our $throw_errors = 0;

# git hands these to the programs that it runs, as when a tool is called from a
# hook; here they would lead to another repository.
delete @ENV{
	grep { /^GIT_/ && !/^GIT_(?:AUTHOR|COMMITTER|CONFIG|EDITOR)/ }
	  keys %ENV
};

my $progname = basename($0);
my $quiet = 0;
my $lock_handle;
my @scratch;

# Report an error in the style of PostgreSQL's client programs, with hint
# lines below it, and exit with status 1.
sub fail
{
	my ($message, @hints) = @_;
	die join("\n", $message, map { "  $_" } @hints) . "\n" if $throw_errors;
	print STDERR "$progname: error: $message\n";
	print STDERR "$progname: hint: $_\n" foreach @hints;
	exit 1;
}

# One line about what is being done; goes to stderr, so that stdout stays
# free for results.
sub notice
{
	my ($message) = @_;
	print STDERR "$progname: $message\n" unless $quiet;
	return;
}

sub set_quiet
{
	($quiet) = @_;
	return;
}

# Contents of a file, as bytes.
sub slurp
{
	my ($path) = @_;
	open(my $fh, '<:raw', $path)
	  or fail("could not open file \"$path\": $!");
	local $/ = undef;
	return scalar(<$fh>) // '';
}

# Write a file so that it is there whole or not at all.  Mode is optional.
sub spew
{
	my ($path, $data, $mode) = @_;
	my $temp = "$path.tmp.$$";
	open(my $fh, '>:raw', $temp)
	  or fail("could not create file \"$temp\": $!");
	(print $fh $data) && close($fh)
	  or fail("could not write file \"$temp\": $!");
	!defined $mode || chmod($mode, $temp)
	  or fail("could not set mode of \"$temp\": $!");
	rename($temp, $path)
	  or fail("could not rename file \"$temp\" to \"$path\": $!");
	return;
}

# Write a file only when that changes it, so that its time stamp stays.
sub write_if_changed
{
	my ($path, $data) = @_;
	return 0 if -f $path && slurp($path) eq $data;
	spew($path, $data);
	return 1;
}

sub sha256_file
{
	my ($path) = @_;
	my $digest = eval { Digest::SHA->new(256)->addfile($path, 'b') }
	  or fail("could not read file \"$path\": $!");
	return $digest->hexdigest;
}

sub sha256_data
{
	return Digest::SHA::sha256_hex(@_);
}

# Read a file of "name = value" lines, with "#" comments.  Returns a hash
# reference; a line of any other form is an error.
sub read_conf
{
	my ($path) = @_;
	my %conf;
	foreach my $line (split /\n/, slurp($path))
	{
		next if $line =~ /^\s*(?:#|$)/;
		$line =~ /^\s*(\w+)\s*=\s*(.*?)\s*$/
		  or fail("syntax error in file \"$path\": \"$line\"");
		$conf{$1} = $2;
	}
	return \%conf;
}

# Run a command and return its exit status (256 when it died from a signal) and
# everything that it printed.  Options: dir, env, stderr: 'merged' (the default),
# 'none', or 'apart' (leave it where it goes).
sub capture
{
	my ($opt, @cmd) = @_;
	my $pid = open(my $fh, '-|') // fail("could not fork: $!");
	if ($pid == 0)
	{
		# No END block may run in the child: use POSIX::_exit.
		if ($opt->{dir} && !chdir($opt->{dir}))
		{
			print STDERR
			  "could not change directory to \"$opt->{dir}\": $!\n";
			POSIX::_exit(127);
		}
		$ENV{$_} = $opt->{env}{$_} foreach keys %{ $opt->{env} || {} };
		open(STDIN, '<', '/dev/null');
		my $stderr = $opt->{stderr} // 'merged';
		open(STDERR, '>&', \*STDOUT) if $stderr eq 'merged';
		open(STDERR, '>', '/dev/null') if $stderr eq 'none';
		{ no warnings; exec { $cmd[0] } @cmd; }
		print STDERR "could not run \"$cmd[0]\": $!\n";
		POSIX::_exit(127);
	}
	binmode($fh);
	local $/ = undef;
	my $out = <$fh>;
	close($fh);
	return ($? & 127 ? 256 : $? >> 8, $out // '');
}

# Run a command that must succeed; returns what it printed.
sub run
{
	my ($opt, @cmd) = @_;
	my ($status, $out) = capture($opt, @cmd);
	fail("command failed with status $status: @cmd", split /\n/, $out)
	  if $status != 0;
	return $out;
}

# Run git, independent of the user's settings where these could change what the
# tools write, and also when the directory is another user's (a tree prepared by an
# unprivileged user and looked at by root).  The place is a directory, or options as
# those of capture().
sub git
{
	my ($place, @args) = @_;
	$place = { dir => $place } unless ref $place;
	return run(
		{ stderr => 'apart', %$place }, 'git',
		git_settings($place->{dir}), @args);
}

sub git_settings
{
	my ($dir) = @_;
	return map { ('-c', $_) } (
		"safe.directory=$dir", 'core.autocrlf=false',
		'core.quotepath=false', 'core.fileMode=true',
		'core.fsmonitor=false', 'core.hooksPath=/dev/null',
		'core.fsync=none', 'core.looseCompression=0',
		'commit.gpgSign=false', 'gc.auto=0',
		'advice.detachedHead=false');
}

# What git prints, in lines.
sub lines_of
{
	return split /\n/, git(@_);
}

# Getopt::Long, with its complaints in our style; --help prints the text.
sub get_options
{
	my ($help_text, %spec) = @_;
	my ($help, @complaints);
	local $SIG{__WARN__} = sub { push @complaints, lcfirst $_[0]; };
	my $ok = Getopt::Long::GetOptions('help|h' => \$help, %spec);
	chomp @complaints;
	fail($complaints[0], "Try \"$progname --help\" for more information.")
	  unless $ok;
	return unless $help;
	print $help_text;
	exit 0;
}

# Only one of the tools at a time may work on the prepared tree.
sub take_lock
{
	return if $lock_handle;
	make_path($state_dir, { error => \my $errors });
	fail("could not create directory \"$state_dir\": "
		  . (values %{ $errors->[0] })[0])
	  if @$errors;
	open($lock_handle, '>>', "$state_dir/lock")
	  or fail(
		"could not open file \"$state_dir/lock\": $!",
		"The directory belongs to another user; remove it, or run this as that user."
	  );
	if (!flock($lock_handle, LOCK_EX | LOCK_NB))
	{
		notice("waiting for another prepare to finish");
		flock($lock_handle, LOCK_EX)
		  or fail("could not lock file \"$state_dir/lock\": $!");
	}

	# Under the lock, scratch that is there was left by a killed run.
	remove_tree(glob("'$state_dir'/scratch-*"));
	return;
}

# A new empty directory below .pg that is removed when the program ends,
# however it ends.
sub scratch_dir
{
	my ($name) = @_;
	my $dir = "$state_dir/scratch-$name.$$";
	remove_tree($dir);
	make_path($dir);
	push @scratch, [ $$, $dir ];
	return $dir;
}

$SIG{$_} = sub { exit 130 }
  foreach qw(HUP INT TERM);

END
{
	my $status = $?;
	foreach my $entry (@scratch)
	{
		remove_tree($entry->[1]) if $entry->[0] == $$ && -e $entry->[1];
	}
	$? = $status;
}

1;
