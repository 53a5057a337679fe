# Copyright (c) 2026, LazyDrop developers

# The patch series: read, verify, make commits of it, write it.
#
# patches/series lists the patches, one a line, in the order in which they are
# applied, as quilt does.  A patch is a header of DEP-3 fields, an empty line,
# and unified diffs of files that upstream has; new files are the overlay's.
#
# git makes the diffs, and applies them.  Hunks carry as little context as possible, so
# that as little as possible of upstream is repeated here: one line on each side, and
# more only where a hunk would otherwise fit in two places.  Neither git apply nor patch
# refuses a hunk that fits in two places, they take the nearest; so that is verified
# here, hunk by hunk, on the file as the earlier hunks have left it.

package LazyDrop::Series;

use strict;
use warnings FATAL => 'all';

use Exporter 'import';

use LazyDrop::Common;

our @EXPORT = qw(read_series series_digest parse_patch header_problems
  commit_upstream commit_series write_series);

# Fields that a patch's header must have (DEP-3).
my @required_fields = qw(Description Author Forwarded Last-Update);

# Names of the patches in $directory/series, in order.  A name that occurs twice,
# has no file, or carries a number or a version is an error, as is a patch file
# that the series does not list.
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
	return @names;
}

# Digest of the whole series, to see whether it has changed.
sub series_digest
{
	my ($dir) = @_;
	return sha256_hex(map { "$_\n" . slurp("$dir/$_") . "\n" } 'series',
		map { "$_.patch" } read_series($dir));
}

# A patch: its name, its header (the text up to the first diff), and its files.
sub parse_patch
{
	my ($dir, $name) = @_;
	my ($header, @diffs) = split m{^(?=--- a/.*\n\+\+\+ b/)}m,
	  slurp("$dir/$name.patch");
	return {
		name => $name,
		header => $header =~ s/\n+\z//r,
		files => [ map { parse_diff($_) } @diffs ]
	};
}

# The diff of one file: its path and hunks.  A hunk has a head, a body, its first line in
# the old and the new file, and its old and new lines.
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

# What is wrong with a patch's header, as a list of messages.
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

# For each hunk of a file, the lines at which its old lines are, on the text as the hunks
# before it leave it.
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
	return @places;
}

# Verify that each hunk of a patch fits in exactly one place of the files in the index
# and, if $exact, at its line.
sub verify_patch
{
	my ($git_dir, $patch, $exact) = @_;
	foreach my $file (@{ $patch->{files} })
	{
		my $where = "patch \"$patch->{name}.patch\", file \"$file->{path}\"";
		my @hunks = @{ $file->{hunks} };
		my @places = places(git($git_dir, 'show', ":$file->{path}"), @hunks);
		foreach my $hunk (@hunks)
		{
			my $here = "$where, line $hunk->{old_start}";
			my @at = @{ shift @places };
			fail("$here: the hunk does not apply") unless @at;
			my $places = @at . ' places, at lines ' . join(', ', @at);
			fail("$here: the hunk could land in $places") if @at > 1;
			fail("$here: the hunk applies at line $at[0] instead")
			  if $exact && $at[0] != $hunk->{new_start};
		}
	}
	return;
}

# Commit what the index holds.  The same contents are the same commit.
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

# Make a commit without a parent of a directory with upstream's source, which is
# only read.
sub commit_upstream
{
	my ($git_dir, $source, $message) = @_;
	local $ENV{GIT_INDEX_FILE} = scratch_dir() . '/index';

	# -f, because upstream's list of ignored files must not hide one.
	my @no_filter =
	  qw(-c filter.lazydrop.clean= -c filter.lazydrop.required=false);
	git($source, @no_filter, "--git-dir=$git_dir", 'add', '-A', '-f', '.');
	return commit($git_dir, $message);
}

# Make a commit of each patch on top of upstream's, each hunk verified: the
# subject is the patch's name and the body its header.  $exact demands the recorded
# line numbers, as for the pinned release.  Returns the last one.
sub commit_series
{
	my ($git_dir, $base, $dir, $exact) = @_;
	local $ENV{GIT_INDEX_FILE} = scratch_dir() . '/index';
	git($git_dir, 'read-tree', $base);
	my $tip = $base;
	foreach my $patch (map { parse_patch($dir, $_) } read_series($dir))
	{
		verify_patch($git_dir, $patch, $exact);
		git($git_dir, 'apply', '--cached', '--whitespace=nowarn',
			"$dir/$patch->{name}.patch");
		$tip = commit($git_dir, "$patch->{name}\n\n$patch->{header}", $tip);
	}
	return $tip;
}

# The inverse: write the commits from upstream's to the last one as a series into
# $dir, which must exist.  Comment lines at the top of an existing series file stay.
# Returns the names.
sub write_series
{
	my ($git_dir, $base, $tip, $dir) = @_;
	my (@names, %seen);
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
		spew("$dir/$name.patch",
			"$header\n\n" . render_commit($git_dir, $commit, $name));
		push @names, $name;
	}
	my ($comments) = slurp("$dir/series") =~ /\A((?:\s*#.*\n|\s*\n)*)/;
	spew("$dir/series", $comments . join('', map { "$_.patch\n" } @names));
	return @names;
}

# The diffs of one commit, as text.
sub render_commit
{
	my ($git_dir, $commit, $name) = @_;
	my @diff_tree = qw(diff-tree -r --no-renames --no-commit-id);
	my @more = lines_of($git_dir, @diff_tree, '--summary', $commit);
	fail("commit \"$name\" does not only change upstream's files", @more)
	  if @more;
	my @paths = lines_of($git_dir, @diff_tree, '--name-only', $commit)
	  or fail("commit \"$name\" changes nothing");
	return join '', map { render_file($git_dir, $commit, $_) } @paths;
}

# The diff of one file in one commit, each hunk with the smallest context that places
# it without doubt.
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
		my @doubtful = grep { @{ shift @places } > 1 } @hunks or last;

		# A wider hunk takes the place of all that it reaches.
		foreach my $wider ($hunks_with->($context))
		{
			next unless grep { reaches($wider, $_) } @doubtful;
			@hunks = sort { $a->{old_start} <=> $b->{old_start} } $wider,
			  grep { !reaches($wider, $_) } @hunks;
		}
	}

	# For the reader, the function that a change of C code is in, if it is in one.
	my $outside = $path =~ /\.[ch]$/ ? qr/ \}$/ : qr/.*$/;
	return "--- a/$path\n+++ b/$path\n"
	  . join('',
		map { $_->{head} =~ s/^(\@\@ .*? \@\@)$outside/$1/r . $_->{body} }
		  @hunks);
}

sub reaches
{
	my ($wider, $hunk) = @_;
	my $begin = $hunk->{old_start} - $wider->{old_start};
	return $begin >= 0 && $begin < ($wider->{old} =~ tr/\n//);
}

1;
