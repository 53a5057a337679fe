# Copyright (c) 2026, LazyDrop developers

# Functions that the tools share: paths in a checkout, messages in PostgreSQL's style,
# atomic writes of files, running of programs, especially git, and the lock that prevents
# two of the tools from working on the same prepared tree.

package LazyDrop::Common;

use strict;
use warnings FATAL => 'all';

use Cwd         qw(abs_path);
use Digest::SHA qw(sha256_hex);
use Exporter 'import';
use Fcntl          qw(:flock);
use File::Basename qw(basename dirname);
use File::Path     qw(make_path remove_tree);
use File::Temp     qw(tempdir);
use Getopt::Long   ();
use IPC::Open3     qw(open3);

our @EXPORT = qw($top $cache_dir $quiet $major $state_dir $tree $tree_dir
  $repository $next_file $key_file $stamp_file
  choose_major default_major majors fail notice slurp spew write_if_changed sha256_hex
  read_conf run capture git lines_of get_options take_lock scratch_dir
  make_path remove_tree basename dirname);

# The checkout that contains this file.
our $top = abs_path(dirname(abs_path(__FILE__)) . '/../../../..');
our $cache_dir = $ENV{LAZYDROP_CACHE} || "$top/.pg/cache";

# The major version of PostgreSQL for which the tools work, and the files that they create
# for it in the checkout, which git ignores.  $tree is $tree_dir relative to the top of
# the checkout.  Files of the tree are: the repository; a file in it with the commit to
# which the tree is being moved; the key, which describes the tree's sources; and a file
# that makefiles include, with the time of its last change.
our ($major, $state_dir, $tree, $tree_dir);
our ($repository, $next_file, $key_file, $stamp_file);

# Do not print notices.
our $quiet = 0;

# git sets variables for the programs that it runs, for example if a tool is called by a
# hook.  Here they would refer to another repository.  The user's settings must not change
# the files that the tools write, and the tree may belong to an unprivileged user or to
# root.
delete @ENV{
	grep { /^GIT_/ && !/^GIT_(?:AUTHOR|COMMITTER|EDITOR)/ }
	  keys %ENV
};
@ENV{qw(GIT_CONFIG_GLOBAL GIT_CONFIG_SYSTEM)} = ('/dev/null') x 2;
$ENV{GIT_CONFIG_COUNT} = 3;
@ENV{ map { ("GIT_CONFIG_KEY_$_", "GIT_CONFIG_VALUE_$_") } 0 .. 2 } =
  qw(safe.directory * core.fsync none core.looseCompression 0);

my $progname = basename($0);
my $lock_handle;

# Report an error in the style of PostgreSQL's client programs, with hints below it, and
# exit with status 1.  Within an eval, throw it instead.
sub fail
{
	my ($message, @hints) = @_;
	die join("\n", $message, map { "  $_" } @hints) . "\n" if $^S;
	print STDERR "$progname: error: $message\n";
	print STDERR "$progname: hint: $_\n" foreach @hints;
	exit 1;
}

# Print a line about the progress to stderr; stdout is reserved for results.
sub notice
{
	my ($message) = @_;
	print STDERR "$progname: $message\n" unless $quiet;
	return;
}

# Returns the supported major versions, according to upstream.conf, or the version that is
# built by default.
sub majors
{
	return
	  sort { $a <=> $b } slurp("$top/upstream.conf") =~ /^release_(\d+) = /mg;
}

sub default_major
{
	return read_conf("$top/upstream.conf")->{default};
}

# Select a major version: a supported one, or one to which a rebase has begun to move, or,
# with "new", any.  If it was derived from a source, "what" describes the source, and the
# version must be supported.  Each major version has its own tree and builds: the default
# in .pg, and others in .pg/MAJOR.
sub choose_major
{
	my ($chosen, %opt) = @_;
	my $dir = $chosen eq default_major() ? '.pg' : ".pg/$chosen";
	fail(
		($opt{what} // "PostgreSQL $chosen") . ' is not served',
		'LazyDrop serves PostgreSQL ' . join(', ', majors()) . '.')
	  unless $opt{new}
	  || grep({ $_ eq $chosen } majors())
	  || (!$opt{what} && -d "$top/$dir/tree/.git");
	$major = $chosen;
	$tree = "$dir/tree";
	$state_dir = "$top/$dir";
	$tree_dir = "$top/$tree";
	$repository = "$tree_dir/.git";
	$next_file = "$repository/lazydrop-next";
	$key_file = "$tree_dir.key";
	$stamp_file = "$state_dir/prepared.mk";
	undef $lock_handle;
	return;
}

# Returns the contents of a file, as bytes.
sub slurp
{
	my ($path) = @_;
	open(my $fh, '<:raw', $path)
	  or fail("could not open file \"$path\": $!");
	local $/ = undef;
	return scalar(<$fh>) // '';
}

# Write a file atomically.
sub spew
{
	my ($path, $data) = @_;
	my $temp = "$path.tmp.$$";
	open(my $fh, '>:raw', $temp)
	  or fail("could not create file \"$temp\": $!");
	(print $fh $data) && close($fh) && rename($temp, $path)
	  or fail("could not write file \"$path\": $!");
	return;
}

# Write a file only if its contents change, so that its time stamp is kept otherwise.
sub write_if_changed
{
	my ($path, $data) = @_;
	return 0 if -f $path && slurp($path) eq $data;
	spew($path, $data);
	return 1;
}

# Read a file of "name = value" lines, with "#" comments.  Returns a hash reference.
sub read_conf
{
	my ($path) = @_;
	return { slurp($path) =~ /^(\w+) = (.*)$/mg };
}

# Run a command that must succeed; returns its output.
sub run
{
	my (@cmd) = @_;
	open(my $fh, '-|', @cmd) or fail("could not run \"$cmd[0]\": $!");
	binmode($fh);
	local $/ = undef;
	my $out = <$fh> // '';
	close($fh) or fail('command failed with status ' . ($? >> 8) . ": @cmd");
	return $out;
}

# Run a command, and return its exit status (256 if it was killed by a signal) and its
# output, including errors.
sub capture
{
	my (@cmd) = @_;
	my $pid = open3(my $in, my $fh, undef, @cmd);
	close($in);
	local $/ = undef;
	my $out = <$fh> // '';
	waitpid($pid, 0);
	return ($? & 127 ? 256 : $? >> 8, $out);
}

# Run git in a directory.
sub git
{
	return run('git', '-C', @_);
}

# Returns the output of git as a list of lines.
sub lines_of
{
	return split /\n/, git(@_);
}

# Call Getopt::Long with a hash, and report its errors in our style.  --help prints the
# comment at the top of the program.  After the options, there must be the given number of
# arguments.  Then select the major version that the environment variable names.
sub get_options
{
	my ($arguments, $opt, @spec) = @_;
	my @try = "Try \"$progname --help\" for more information.";
	local $SIG{__WARN__} = sub { fail(lcfirst($_[0]) =~ s/\n//r, @try); };
	Getopt::Long::GetOptions($opt, @spec, 'help|h');
	if ($opt->{help})
	{
		my ($comment) = slurp($0) =~ /developers\n\n((?:#.*\n)+)/;
		print $comment =~ s/^# ?//gmr;
		exit 0;
	}
	fail('wrong number of command-line arguments', @try)
	  if @ARGV != $arguments;
	choose_major($ENV{PG_MAJOR} || default_major());
	return;
}

# Only one of the tools at a time may work on the prepared tree.
sub take_lock
{
	return if $lock_handle;
	make_path($state_dir);
	open($lock_handle, '>>', "$state_dir/lock")
	  or fail("could not open file \"$state_dir/lock\": $!",
		"Is it another user's?  Remove it, or run this as that user.");
	flock($lock_handle, LOCK_EX | LOCK_NB)
	  or notice('waiting for another prepare to finish')
	  or flock($lock_handle, LOCK_EX)
	  or fail("could not lock: $!");

	# While we hold the lock, any scratch directory was left by a killed run.
	remove_tree(glob("'$state_dir'/scratch-*"));
	return;
}

# Create an empty directory below .pg that is removed when the program ends for any
# reason.
sub scratch_dir
{
	return tempdir('scratch-XXXXXX', DIR => $state_dir, CLEANUP => 1);
}

$SIG{$_} = sub { exit 130 }
  foreach qw(HUP INT TERM);

1;
