# Copyright (c) 2026, LazyDrop developers

# What the tools share: where things lie in a checkout, messages in PostgreSQL's style,
# files that are there whole or not at all, running programs, git above all, and the
# lock that keeps two of the tools from working on one prepared tree.

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

# The checkout that this file is in.
our $top = abs_path(dirname(abs_path(__FILE__)) . '/../../../..');
our $cache_dir = $ENV{LAZYDROP_CACHE} || "$top/.pg/cache";

# The major version of PostgreSQL that the tools work for, and what they make for it in
# the checkout, git-ignored; $tree is $tree_dir, as seen from the top of the checkout.
# Of the tree: the repository, and a file there with the commit that it is being moved to;
# what it was made from; and a file that makefiles include, with the time of its last change.
our ($major, $state_dir, $tree, $tree_dir);
our ($repository, $next_file, $key_file, $stamp_file);

# No notices.
our $quiet = 0;

# git hands its variables to the programs that it runs, as when a tool is called from a
# hook; here they would lead to another repository.  And the user's settings must not
# change what the tools write, nor whose the tree is: an unprivileged user's, or root's.
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

# Report an error in the style of PostgreSQL's client programs, with hints below it,
# and exit with status 1; in an eval, throw it.
sub fail
{
	my ($message, @hints) = @_;
	die join("\n", $message, map { "  $_" } @hints) . "\n" if $^S;
	print STDERR "$progname: error: $message\n";
	print STDERR "$progname: hint: $_\n" foreach @hints;
	exit 1;
}

# One line about what is being done; stdout stays free for results.
sub notice
{
	my ($message) = @_;
	print STDERR "$progname: $message\n" unless $quiet;
	return;
}

# Major versions that are served, by upstream.conf, and the one that is built unless
# another one is chosen.
sub majors
{
	return
	  sort { $a <=> $b } slurp("$top/upstream.conf") =~ /^release_(\d+) = /mg;
}

sub default_major
{
	return read_conf("$top/upstream.conf")->{default};
}

# Work for a major version: one that is served, or that rebase has begun to move to, or,
# with "new", any.  For a source, "what" says what it is, and that must be served.  Each has
# a tree and builds of its own: those of the default in .pg, those of others in .pg/MAJOR.
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

# Contents of a file, as bytes.
sub slurp
{
	my ($path) = @_;
	open(my $fh, '<:raw', $path)
	  or fail("could not open file \"$path\": $!");
	local $/ = undef;
	return scalar(<$fh>) // '';
}

# Write a file so that it is there whole or not at all.
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

# Write a file only when that changes it, so that its time stamp stays.
sub write_if_changed
{
	my ($path, $data) = @_;
	return 0 if -f $path && slurp($path) eq $data;
	spew($path, $data);
	return 1;
}

# A file of "name = value" lines, with "#" comments, as a hash reference.
sub read_conf
{
	my ($path) = @_;
	return { slurp($path) =~ /^(\w+) = (.*)$/mg };
}

# Run a command that must succeed; returns what it printed.
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

# Run a command, and return its exit status (256 when it died from a signal) and
# what it printed, errors included.
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

# git in a directory.
sub git
{
	return run('git', '-C', @_);
}

# What git prints, in lines.
sub lines_of
{
	return split /\n/, git(@_);
}

# Getopt::Long into a hash, with its complaints in our style; --help prints the comment
# at the top of the program.  Then this number of arguments must be left.  And work for
# the major version that the environment says.
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

	# Under the lock, scratch that is there was left by a killed run.
	remove_tree(glob("'$state_dir'/scratch-*"));
	return;
}

# A new empty directory below .pg that is removed when the program ends,
# however it ends.
sub scratch_dir
{
	return tempdir('scratch-XXXXXX', DIR => $state_dir, CLEANUP => 1);
}

$SIG{$_} = sub { exit 130 }
  foreach qw(HUP INT TERM);

1;
