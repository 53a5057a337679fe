# Copyright (c) 2026, LazyDrop developers

# Let upstream's Meson build run as a subdirectory of ours.
#
# Meson takes project options, test names and counts from the one project that
# it is set up for, so our meson.build makes the project() call and enters the
# prepared tree with subdir().  There upstream's own project() call must not be
# run, and "the source root" and "the build root" must mean the tree.
#
# The change is mechanical and reversible: rewrite() adds whole lines that are
# marked, and replaces words one for one; restore() takes both back.  It is a filter
# of the prepared tree's git: the files are rewritten in the work tree, while
# commits and the patch series have them as upstream does.

package LazyDrop::Meson;

use strict;
use warnings FATAL => 'all';

use Exporter 'import';

use LazyDrop::Common;

our @EXPORT_OK = qw(rewrite restore);

my $mark = '# added by prepare';

# Upstream's words, and what they become.
my %word = (
	'meson.source_root()' => 'lazydrop_source_root',
	'meson.build_root()' => 'lazydrop_build_root',);
my %back = reverse %word;

# The same in strings, where Meson itself puts in the directory.
my $root = qr/\@(?:SOURCE|BUILD)_ROOT\@/;
my $subdir = '/.pg/tree';

# Other ways to say the same: none of upstream's files has one today, and one
# that appears must not be missed.
my $unknown = qr/meson\.(?:project_source_root|project_build_root|
	global_source_root|global_build_root)\b/x;

# Rewrite the text of the meson.build at a path of the tree.
sub rewrite
{
	my ($path, $text) = @_;
	fail("\"$path\" uses \"$&\", which prepare does not know how to rewrite")
	  if $text =~ $unknown;
	fail("\"$path\" has been rewritten already")
	  if $text =~ /\Q$mark\E|lazydrop_(?:source|build)_root|$root\Q$subdir\E/;
	$text =~ s/(meson\.(?:source|build)_root\(\))/$word{$1}/g;
	$text =~ s/($root)/$1$subdir/g;
	return $text if $path ne 'meson.build';

	$text =~ s{^(project\(.*?^\)\n)}{
		"if false $mark\n$1endif $mark\n"
		  . "lazydrop_source_root = meson.current_source_dir() $mark\n"
		  . "lazydrop_build_root = meson.current_build_dir() $mark\n"
	}mse
	  or fail("could not find the project() call in \"$path\"");
	return $text;
}

# The inverse.
sub restore
{
	my ($text) = @_;
	$text =~ s/^[^\n]*\Q$mark\E\n//mg;
	$text =~ s/\b(lazydrop_(?:source|build)_root)\b/$back{$1}/g;
	$text =~ s/($root)\Q$subdir\E/$1/g;
	return $text;
}

1;
