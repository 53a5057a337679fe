# Copyright (c) 2026, LazyDrop developers

# The patch series: reads it, verifies it, turns it into commits, and writes it.
#
# patches/series lists the patches, one per line, in the order in which they are applied,
# as in quilt.  A patch consists of a header with DEP-3 fields, an empty line, and unified
# diffs of files that upstream has.  New files belong to the overlay.
#
# This is the series of the default major version, and of the other ones as far as it
# applies to them.  Differences of another major version are in patches/MAJOR/NAME.patch,
# whose diffs replace the diffs of the same files in NAME.patch.  A diff without hunks
# leaves the file alone.  A patch that becomes empty is omitted.
#
# git makes the diffs and applies them.  Hunks have as little context as possible, so that
# little of upstream's source is repeated here: one line on each side, and more only where
# a hunk would otherwise fit in two places.  git apply and patch do not reject a hunk that
# fits in two places, but use the nearest.  This module therefore verifies each hunk on
# the file as the earlier hunks have left it.

package LazyDrop::Series;

use strict;
use warnings FATAL => 'all';

use Exporter 'import';

use LazyDrop::Common;

our @EXPORT = qw(read_series series_digest parse_patch header_problems
  commit_upstream commit_series write_series);

# Fields that are required in a patch's header (DEP-3).
my @required_fields = qw(Description Author Forwarded Last-Update);

# Returns the names of the patches in $directory/series, in order.  It is an error if a
# name occurs twice, has no file, or contains a number or a version, or if the series does
# not list a patch file.
sub read_series
{
	my ($dir) = @_;
	my (@names, %seen);
	foreach my $line (slurp("$dir/series") =~ /^(?!\s*(?:#|$))(.*)$/mg)
	{
		$line =~ /^([a-z]+(?:-[a-z]+)*)\.patch$/
		  or fail("\"$line\" in \"$dir/series\" cannot be a patch's name");
		push @names, $1;
		fail("patch \"$line\" is listed twice in \"$dir/series\"")
		  if $seen{$line}++;
		-f "$dir/$line"
		  or
		  fail("patch \"$line\" is listed in \"series\" but does not exist");
	}
	foreach my $file (map { basename($_) } glob("'$dir'/*.patch"))
	{
		fail("patch \"$file\" is not listed in \"$dir/series\"")
		  unless $seen{$file};
	}
	foreach my $file (own_patches($dir))
	{
		fail("patch \"$file\" has no counterpart in \"$dir/series\"")
		  unless $seen{ basename($file) };
	}
	return @names;
}

# Returns the patch files that are specific to the major version.
sub own_patches
{
	my ($dir) = @_;
	return $major eq default_major() ? () : glob("'$dir'/$major/*.patch");
}

# Returns a digest of the whole series, which shows whether the series has changed.
sub series_digest
{
	my ($dir) = @_;
	my @files = ('series', map { "$_.patch" } read_series($dir));
	return sha256_hex(
		(map { "$_\n" . slurp("$dir/$_") . "\n" } @files),
		(map { basename($_) . "\n" . slurp($_) } own_patches($dir)));
}

# Returns a patch for the major version: its name, its header (the text up to the first
# diff), and its files.  Files with a diff that is specific to the major version are
# marked.
sub parse_patch
{
	my ($dir, $name) = @_;
	my $patch = { name => $name, parse_file("$dir/$name.patch") };
	my ($own) = grep { basename($_) eq "$name.patch" } own_patches($dir);
	return $patch unless $own;

	my %own = parse_file($own);
	my %replaced = map { $_->{path} => 1 } @{ $own{files} };
	$_->{own} = 1 foreach @{ $own{files} };
	return {
		%$patch,
		header => $own{header},
		files => [
			@{ $own{files} },
			grep { !$replaced{ $_->{path} } } @{ $patch->{files} }
		]
	};
}

sub parse_file
{
	my ($path) = @_;
	my ($header, @diffs) = split m{^(?=--- a/.*\n\+\+\+ b/)}m, slurp($path);
	return (
		header => $header =~ s/\n+\z//r,
		files => [ map { parse_diff($_) } @diffs ]);
}

# The inverse of parse_diff.
sub render_diff
{
	my ($path, @hunks) = @_;
	return "--- a/$path\n+++ b/$path\n" . join '',
	  map { $_->{head} . $_->{body} } @hunks;
}

# Parse the diff of one file into its path and hunks.  A hunk has a head, a body, its
# first line in the old and in the new file, and its old and new lines.
sub parse_diff
{
	my ($files, @hunks) = split /^(?=\@\@ )/m, $_[0];
	my ($path) = $files =~ m{^\+\+\+ b/(.*)$}m;
	foreach my $hunk (@hunks)
	{
		my ($head, $body) = split /^/, $hunk, 2;
		my ($old, $new) = $head =~ /^\@\@ -(\d+)[\d,]* \+(\d+)[\d,]* \@\@/
		  or fail("malformed hunk header \"$head\"");
		$hunk = {
			head => $head,
			body => $body,
			old_start => $old,
			new_start => $new,
			old => join('', $body =~ /^[ -](.*\n)/mg),
			new => join('', $body =~ /^[ +](.*\n)/mg)
		};
	}
	return { path => $path, hunks => \@hunks };
}

# Returns errors in a patch's header, as a list of messages.
sub header_problems
{
	my ($header) = @_;
	return (
		(   map  { "has no \"$_:\" field" }
			grep { $header !~ /^\Q$_\E:\s*\S/m } @required_fields),
		$header =~ /^Last-Update: (?!\d{4}-\d\d-\d\d$)/m
		? 'has a "Last-Update:" that is not a date'
		: ());
}

# Returns, for each hunk of a file, the line numbers at which its old lines occur in the
# text that the preceding hunks have left.  The last element is the text after all hunks.
sub places
{
	my ($text, @hunks) = @_;
	my @places;
	foreach my $hunk (@hunks)
	{
		my %at;
		while ($text =~ /^(?=\Q$hunk->{old}\E)/mg)
		{
			$at{ 1 + (substr($text, 0, $-[0]) =~ tr/\n//) } = $-[0];
		}
		push @places, [ sort { $a <=> $b } keys %at ];
		my $offset = $at{ $hunk->{new_start} } // (values %at)[0] // next;
		substr($text, $offset, length($hunk->{old})) = $hunk->{new};
	}
	return (@places, $text);
}

# Verify that each hunk of a patch fits in exactly one place of the files in the index
# and, if $exact is set, at its line.  Hunks that are not specific to the major version
# have the line numbers of the default one.
sub verify_patch
{
	my ($git_dir, $patch, $exact) = @_;
	foreach my $file (@{ $patch->{files} })
	{
		my $where = "patch \"$patch->{name}.patch\", file \"$file->{path}\"";
		my @hunks = @{ $file->{hunks} } or next;
		my @places = places(git($git_dir, 'show', ":$file->{path}"), @hunks);
		foreach my $hunk (@hunks)
		{
			my $here = "$where, line $hunk->{old_start}";
			my @at = @{ shift @places };
			fail("$here: the hunk does not apply") unless @at;
			my $places = @at . ' places, at lines ' . join(', ', @at);
			fail("$here: the hunk could land in $places") if @at > 1;
			fail("$here: the hunk applies at line $at[0] instead")
			  if $exact
			  && ($file->{own} || $major eq default_major())
			  && $at[0] != $hunk->{new_start};
		}
	}
	return;
}

# Commit the contents of the index.  The same contents result in the same commit.
sub commit
{
	my ($git_dir, $message, @parents) = @_;
	my @who = ('LazyDrop', 'lazydrop', '2026-01-01T00:00:00Z');
	local @ENV{ map { "GIT_AUTHOR_$_" } qw(NAME EMAIL DATE) } = @who;
	local @ENV{ map { "GIT_COMMITTER_$_" } qw(NAME EMAIL DATE) } = @who;
	my ($tree) = lines_of($git_dir, 'write-tree');
	my ($commit) = lines_of($git_dir, 'commit-tree', '-m', $message,
		(map { ('-p', $_) } @parents), $tree);
	return $commit;
}

# Create a commit without a parent from a directory with upstream's source, which is only
# read.
sub commit_upstream
{
	my ($git_dir, $source, $message) = @_;
	local $ENV{GIT_INDEX_FILE} = scratch_dir() . '/index';

	# Use -f, because upstream's list of ignored files must not hide any.
	my @no_filter =
	  qw(-c filter.lazydrop.clean= -c filter.lazydrop.required=false);
	git($source, @no_filter, "--git-dir=$git_dir", 'add', '-A', '-f', '.');
	return commit($git_dir, $message);
}

# Create a commit for each patch on top of upstream's, and verify each hunk.  The subject
# is the patch's name, and the body is its header.  With $exact, the recorded line numbers
# must match, as for the pinned release.  Returns the last commit.
sub commit_series
{
	my ($git_dir, $base, $dir, $exact) = @_;
	local $ENV{GIT_INDEX_FILE} = scratch_dir() . '/index';
	git($git_dir, 'read-tree', $base);
	my $tip = $base;
	my $file = "$ENV{GIT_INDEX_FILE}.patch";
	foreach my $patch (map { parse_patch($dir, $_) } read_series($dir))
	{
		verify_patch($git_dir, $patch, $exact);
		my @files = grep { @{ $_->{hunks} } } @{ $patch->{files} } or next;
		spew($file, join '',
			map { render_diff($_->{path}, @{ $_->{hunks} }) } @files);
		git($git_dir, 'apply', '--cached', '--whitespace=nowarn', $file);
		$tip = commit($git_dir, "$patch->{name}\n\n$patch->{header}", $tip);
	}
	return $tip;
}

# The inverse: write the commits from upstream's to the last one as a series into $dir,
# which must exist.  Comment lines at the top of an existing series file are kept.  If the
# major version is not the default, all its differences from the series, which must be in
# $dir, are written, and nothing else.  Returns the names.
sub write_series
{
	my ($git_dir, $base, $tip, $dir) = @_;
	my (@names, %seen);
	my @common = $major eq default_major() ? () : read_series($dir);
	my %headers =
	  map { $_ => parse_patch($dir, $_)->{header} } @common;
	unlink(own_patches($dir));
	make_path("$dir/$major") if @common;
	my ($merge) = lines_of($git_dir, 'log', '--merges', '--format=%h "%s"',
		"$base..$tip");
	fail("commit $merge is a merge") if $merge;

	foreach
	  my $commit (lines_of($git_dir, 'rev-list', '--reverse', "$base..$tip"))
	{
		my ($name, $header) = split /\n+/,
		  git($git_dir, 'show', '-s', '--format=%B', $commit), 2;
		my $where = 'commit ' . substr($commit, 0, 10) . " \"$name\"";
		fail(
			"$where: \"$name\" cannot be a patch's name",
			"The subject is the patch's name: lower-case words joined by hyphens, without numbers.",
			'Of a fixup: git rebase -i --autosquash lazydrop/upstream'
		) unless $name =~ /^[a-z]+(?:-[a-z]+)*$/;
		fail("two commits have the name \"$name\"") if $seen{$name}++;

		$header =~ s/\n*\z//;
		my ($problem) = header_problems($header);
		fail("$where $problem", "DEP-3 fields: @required_fields") if $problem;
		push @names, $name;
		my @paths = paths_of($git_dir, $commit, $name);
		if (@common)
		{
			fail(
				"$where: the series has no patch of that name",
				'Add it to the series of PostgreSQL ' . default_major() . '.'
			) unless grep { $_ eq $name } @common;
			write_own($git_dir, $commit, $dir, $name, $header, @paths);
			next;
		}
		spew("$dir/$name.patch", join '', "$header\n\n",
			map { render_file($git_dir, $commit, $_) } @paths);
	}
	if (@common)
	{
		my @order = grep { $seen{$_} } @common;
		fail("the commits are not in the order of the series",
			"Expected: @order")
		  if "@order" ne "@names";
		write_own($git_dir, undef, $dir, $_, $headers{$_})
		  foreach grep { !$seen{$_} } @common;
		rmdir("$dir/$major");
		return @names;
	}
	my ($comments) = slurp("$dir/series") =~ /\A((?:\s*#.*\n|\s*\n)*)/;
	spew("$dir/series", $comments . join('', map { "$_.patch\n" } @names));
	return @names;
}

# Write the differences between a commit of the major version and the series: the diffs of
# files on which the hunks of the series do not have the same effect.  If there is no
# commit, the written patch leaves all of its files alone.
sub write_own
{
	my ($git_dir, $commit, $dir, $name, $header, @paths) = @_;
	my %theirs =
	  map { $_->{path} => $_->{hunks} }
	  @{ parse_patch($dir, $name)->{files} };
	my %own = map { $_ => render_diff($_) } keys %theirs;
	foreach my $path (@paths)
	{
		my @hunks = @{ $theirs{$path} // [] };
		my (@places) =
		  places(git($git_dir, 'show', "$commit^:$path"), @hunks);
		my $text = pop @places;
		delete $own{$path};
		$own{$path} = render_file($git_dir, $commit, $path)
		  if grep({ @$_ != 1 } @places)
		  || $text ne git($git_dir, 'show', "$commit:$path");
	}
	spew("$dir/$major/$name.patch",
		join '', "$header\n\n", map { $own{$_} } sort keys %own)
	  if %own;
	return;
}

# Returns the paths of the files that a commit changes.
sub paths_of
{
	my ($git_dir, $commit, $name) = @_;
	my @diff_tree = qw(diff-tree -r --no-renames --no-commit-id);
	my @more = lines_of($git_dir, @diff_tree, '--summary', $commit);
	fail("commit \"$name\" does not only change upstream's files", @more)
	  if @more;
	my @paths = lines_of($git_dir, @diff_tree, '--name-only', $commit)
	  or fail("commit \"$name\" changes nothing");
	return @paths;
}

# Returns the diff of one file in one commit.  Each hunk has the smallest context that
# makes its place unique.
sub render_file
{
	my ($git_dir, $commit, $path) = @_;
	my $hunks_with = sub {
		my $diff = git($git_dir, 'diff', "-U$_[0]", "$commit^!", '--', $path);
		fail("\"$path\" does not end with a newline")
		  if $diff =~ /^(?:\\|\@\@.* [-+]0,0 )/m;
		return @{ parse_diff($diff)->{hunks} };
	};
	my $old = git($git_dir, 'show', "$commit^:$path");
	my @hunks = $hunks_with->(1);
	foreach my $context (2 .. 1000)
	{
		my @places = places($old, @hunks);
		pop @places;
		my @doubtful = grep { @{ shift @places } > 1 } @hunks or last;

		# A wider hunk replaces all hunks that it overlaps.
		foreach my $wider ($hunks_with->($context))
		{
			next unless grep { reaches($wider, $_) } @doubtful;
			@hunks = sort { $a->{old_start} <=> $b->{old_start} } $wider,
			  grep { !reaches($wider, $_) } @hunks;
		}
	}

	# For the reader, show the function that contains a change in C code, if there is one.
	my $outside = $path =~ /\.[ch]$/ ? qr/ \}$/ : qr/.*$/;
	$_->{head} =~ s/^(\@\@ .*? \@\@)$outside/$1/ foreach @hunks;
	return render_diff($path, @hunks);
}

sub reaches
{
	my ($wider, $hunk) = @_;
	my $begin = $hunk->{old_start} - $wider->{old_start};
	return $begin >= 0 && $begin < ($wider->{old} =~ tr/\n//);
}

1;
