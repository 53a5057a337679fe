# Copyright (c) 2026, LazyDrop developers

# The patch series: read, verify, apply, make commits of it, write it.
#
# patches/series lists the patches, one a line, in the order in which they are
# applied, as quilt does.  A patch is a header of DEP-3 fields, an empty line,
# and unified diffs of files that upstream has; new files are the overlay's.
#
# Hunks carry as little context as possible, so that as little as possible of
# upstream is repeated here: one line on each side, and more only where a hunk
# would otherwise fit in two places.  Neither git apply nor patch refuses a hunk
# that fits in two places, they take the nearest; so that is verified here, hunk
# by hunk, on the file as the earlier hunks have left it.

package LazyDrop::Series;

use strict;
use warnings FATAL => 'all';

use Exporter 'import';
use File::Basename qw(dirname);

use LazyDrop::Common;

our @EXPORT_OK = qw(read_series series_digest parse_patch patch_size
  header_problems commit_upstream commit_series write_series);

# Fields that a patch's header must have (DEP-3).
my @required_fields = qw(Description Author Forwarded Last-Update);

# Names of the patches in $directory/series, in order.  A name that occurs twice,
# has no file, or carries a number or a version is an error, as is a patch file
# that the series does not list.
sub read_series
{
	my ($dir) = @_;
	my (@names, %seen);
	foreach my $line (split /\n/, slurp("$dir/series"))
	{
		next if $line =~ /^\s*(?:#|$)/;
		$line =~ /^([a-z]+(?:-[a-z]+)*)\.patch$/
		  or fail(
			"bad line in \"$dir/series\": \"$line\"",
			"A line is the name of one patch: lower-case words joined by hyphens, without numbers, and \".patch\"."
		  );
		fail("patch \"$line\" is listed twice in \"$dir/series\"")
		  if $seen{$line}++;
		fail(
			"patch \"$line\" is listed in \"$dir/series\" but does not exist")
		  unless -f "$dir/$line";
		push @names, $1;
	}
	foreach my $file (glob("'$dir'/*.patch"))
	{
		my ($name) = $file =~ m{([^/]*)$};
		fail("patch \"$name\" is not listed in \"$dir/series\"")
		  unless $seen{$name};
	}
	return @names;
}

# Digest of the whole series, to see whether it has changed.
sub series_digest
{
	my ($dir) = @_;
	return sha256_data(map { "$_\n" . slurp("$dir/$_") . "\n" } 'series',
		map { "$_.patch" } read_series($dir));
}

# Returns a hash reference: header (text up to the first diff), files: a list of
# { path, hunks => [ { old_start, new_start, old => [lines], new => [lines],
# lines => [ as in the patch ], added, removed, context } ] }.  Anything that is
# not a change of an existing file's lines is an error.
sub parse_patch
{
	my ($dir, $name) = @_;
	my $where = "patch \"$name.patch\"";
	my @lines = split /\n/, slurp("$dir/$name.patch"), -1;
	fail("$where does not end with a newline") if pop(@lines) ne '';

	my @header;
	push @header, shift @lines while @lines && $lines[0] !~ /^--- /;
	my $patch = { name => $name, header => join("\n", @header), files => [] };

	while (@lines)
	{
		my ($minus, $plus) = splice(@lines, 0, 2);
		my ($path) = $minus =~ m{^--- a/(\S+)$};
		fail(
			"$where: expected a pair of \"--- a/FILE\" and \"+++ b/FILE\", found \"$minus\"",
			"The series changes files that upstream has; new files are laid over it from src/, contrib/ and doc/."
		) unless defined $path && ($plus // '') eq "+++ b/$path";
		my $file = { path => $path, hunks => [] };
		push @{ $patch->{files} }, $file;

		while (@lines && $lines[0] =~ /^\@\@/)
		{
			my $at = shift @lines;
			my ($os, $ol, $ns, $nl) =
			  $at =~
			  /^\@\@ -(\d+)(?:,(\d+))? \+(\d+)(?:,(\d+))? \@\@(?: .*)?$/
			  or fail("$where: malformed hunk header \"$at\"");
			my %hunk = (
				old_start => $os,
				new_start => $ns,
				old => [],
				new => [],
				lines => [],
				added => 0,
				removed => 0,
				context => 0);
			$ol //= 1;
			$nl //= 1;
			while (@{ $hunk{old} } < $ol || @{ $hunk{new} } < $nl)
			{
				my $line = shift @lines;
				fail("$where: the hunk \"$at\" ends too early")
				  unless defined $line && $line =~ /^([ +-])(.*)$/s;
				my ($kind, $text) = ($1, $2);
				push @{ $hunk{lines} }, $line;
				push @{ $hunk{old} }, $text if $kind ne '+';
				push @{ $hunk{new} }, $text if $kind ne '-';
				$hunk{ { ' ' => 'context', '+' => 'added', '-' => 'removed' }
					->{$kind} }++;
			}
			push @{ $file->{hunks} }, \%hunk;
		}
		fail("$where changes nothing in \"$path\"")
		  unless @{ $file->{hunks} };
	}
	fail("$where holds no diff") unless @{ $patch->{files} };
	return $patch;
}

# What is wrong with a patch's header, as a list of messages.
sub header_problems
{
	my ($header) = @_;
	my @problems;
	foreach my $field (@required_fields)
	{
		push @problems, "has no \"$field:\" field"
		  unless $header =~ /^\Q$field\E:\s*\S/m;
	}
	push @problems, "has a \"Last-Update:\" that is not a date"
	  if $header =~ /^Last-Update:/m
	  && $header !~ /^Last-Update: \d{4}-\d\d-\d\d$/m;
	return @problems;
}

# Lines added, removed, and repeated from upstream by a parsed patch.
sub patch_size
{
	my ($patch) = @_;
	my ($added, $removed, $context) = (0, 0, 0);
	foreach my $hunk (map { @{ $_->{hunks} } } @{ $patch->{files} })
	{
		$added   += $hunk->{added};
		$removed += $hunk->{removed};
		$context += $hunk->{context};
	}
	return ($added, $removed, $context);
}

# Indexes at which a run of lines occurs in an image.
sub places
{
	my ($image, $old) = @_;
	my @found;
	my $last = @$image - @$old;
  START:
	for (my $i = 0; $i <= $last; $i++)
	{
		for (my $j = 0; $j < @$old; $j++)
		{
			next START if $image->[ $i + $j ] ne $old->[$j];
		}
		push @found, $i;
	}
	return @found;
}

# Verify that each hunk of a parsed patch fits in exactly one place of the file
# in $tree, at the recorded line when $exact.  Returns a hash of path => the
# contents that the file must have afterwards; changes nothing.
sub verify_patch
{
	my ($patch, $tree, $exact) = @_;
	my %result;
	foreach my $file (@{ $patch->{files} })
	{
		my $path = $file->{path};
		my $where = "patch \"$patch->{name}.patch\", file \"$path\"";
		fail("$where: upstream has no such file") unless -f "$tree/$path";
		my @image = split /\n/, slurp("$tree/$path"), -1;
		fail("$where: the file does not end with a newline")
		  if !@image || pop(@image) ne '';
		my $offset = 0;
		foreach my $hunk (@{ $file->{hunks} })
		{
			my @old = @{ $hunk->{old} };
			my $here = "$where, line $hunk->{old_start}";
			fail("$here: the hunk has no context", "Run export.")
			  unless @old;
			my @at = places(\@image, \@old);
			fail("$here: the hunk does not apply") unless @at;
			fail(
				"$here: the hunk could land in "
				  . @at
				  . " places, at lines "
				  . join(', ', map { $_ + 1 } @at),
				"export writes each hunk with enough context.") if @at > 1;
			fail(   "$here: the hunk applies at line "
				  . ($at[0] + 1 - $offset)
				  . " instead")
			  if $exact && $at[0] + 1 != $hunk->{old_start} + $offset;
			fail(
				"$here: the hunk's header has line $hunk->{new_start} of the new file instead of "
				  . ($at[0] + 1))
			  if $exact && $at[0] + 1 != $hunk->{new_start};
			splice(@image, $at[0], scalar(@old), @{ $hunk->{new} });
			$offset += @{ $hunk->{new} } - @old;
		}
		$result{$path} = join("\n", @image, '');
	}
	return \%result;
}

# Apply one patch.  verify_patch knows what the files become, so there is nothing
# left to do for git apply, which takes the nearest of several places, depends on
# the user's settings, and does nothing at all, successfully, inside an ignored
# folder of another checkout.
sub apply_patch
{
	my ($patch, $tree, $exact) = @_;
	my $result = verify_patch($patch, $tree, $exact);
	foreach my $path (sort keys %$result)
	{
		spew("$tree/$path", $result->{$path},
			(stat("$tree/$path"))[2] & 07777);
	}
	return;
}

# Where to run git so that a commit is made of another directory than the
# repository's own work tree, with an index of its own, and without the filters of
# the repository.
sub beside
{
	my ($git_dir, $work, $index) = @_;
	return (
		{
			dir => $work,
			env => {
				GIT_DIR => $git_dir,
				GIT_WORK_TREE => $work,
				GIT_INDEX_FILE => $index,

				# The same contents are the same commit.
				(   map { ("GIT_${_}_NAME" => 'LazyDrop') }
					  qw(AUTHOR COMMITTER)),
				(   map { ("GIT_${_}_EMAIL" => 'lazydrop') }
					  qw(AUTHOR COMMITTER)),
				(   map { ("GIT_${_}_DATE" => '2026-01-01T00:00:00Z') }
					  qw(AUTHOR COMMITTER))
			}
		},
		'-c',
		'filter.lazydrop.clean=',
		'-c',
		'filter.lazydrop.smudge=',
		'-c',
		'filter.lazydrop.required=false');
}

sub commit
{
	my ($in, $message, @parents) = @_;
	my ($tree) = lines_of(@$in, 'write-tree');
	my ($commit) = lines_of(@$in, 'commit-tree', '-m', $message,
		(map { ('-p', $_) } @parents), $tree);
	return $commit;
}

# Make a commit without a parent of a directory with upstream's source.
sub commit_upstream
{
	my ($git_dir, $source, $message) = @_;
	my $scratch = scratch_dir('index');
	my @in = beside($git_dir, $source, "$scratch/index");

	# -f, because upstream's list of ignored files must not hide one.
	git(@in, 'add', '-A', '-f', '.');
	return commit(\@in, $message);
}

# Make a commit of each patch on top of upstream's, each hunk verified: the
# subject is the patch's name and the body its header.  $exact demands the recorded
# line numbers, as for the pinned release.  Returns the last one.
sub commit_series
{
	my ($git_dir, $base, $dir, $exact) = @_;
	my $scratch = scratch_dir('series');
	my $work = "$scratch/work";
	make_path($work);
	my @in = beside($git_dir, $work, "$scratch/index");
	my @patches = map { parse_patch($dir, $_) } read_series($dir);
	my %known =
	  map { $_ => 1 } lines_of(@in, 'ls-tree', '-r', '--name-only', $base);
	my %touched = map { $_->{path} => 1 } map { @{ $_->{files} } } @patches;
	my @files = grep { $known{$_} } sort keys %touched;

	git(@in, 'read-tree', $base);
	git(@in, 'checkout-index', '--', @files) if @files;
	my $tip = $base;
	foreach my $patch (@patches)
	{
		apply_patch($patch, $work, $exact);
		git(@in, 'update-index', '--',
			map { $_->{path} } @{ $patch->{files} });
		$tip = commit(\@in, "$patch->{name}\n\n$patch->{header}", $tip);
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
	foreach
	  my $commit (lines_of($git_dir, 'rev-list', '--reverse', "$base..$tip"))
	{
		my $message = git($git_dir, 'show', '-s', '--format=%B', $commit);
		my ($name, $header) = $message =~ /\A([^\n]*)\n\n?(.*)\z/s;
		my $short = substr($commit, 0, 10);
		$header //= '';
		$header =~ s/\n*\z//;

		fail("commit $short \"$name\" is a fixup",
			"Run: git rebase -i --autosquash lazydrop/upstream")
		  if $name =~ /^(?:fixup|squash|amend)! /;
		fail(
			"commit $short: \"$name\" cannot be a patch's name",
			"The subject is the patch's name: lower-case words joined by hyphens, without numbers."
		) unless $name =~ /^[a-z]+(?:-[a-z]+)*$/;
		fail(
			"two commits have the name \"$name\"",
			"Run: git rebase -i lazydrop/upstream") if $seen{$name}++;
		fail("commit $short \"$name\" is a merge")
		  if git($git_dir, 'rev-list', '--parents', '-n', '1', $commit) =~
		  /^\S+ \S+ \S+/;

		if (my @problems = header_problems($header))
		{
			fail(
				"commit $short \"$name\" $problems[0]",
				"The commit's body is the patch's header, in DEP-3 fields: @required_fields."
			);
		}
		spew("$dir/$name.patch",
			"$header\n\n" . render_commit($git_dir, $commit, $name));
		push @names, $name;
	}
	my ($comments) =
	  (-f "$dir/series" ? slurp("$dir/series") : '') =~
	  /\A((?:\s*#.*\n|\s*\n)*)/;
	spew("$dir/series", $comments . join('', map { "$_.patch\n" } @names));
	return @names;
}

# The diffs of one commit, as text.
sub render_commit
{
	my ($git_dir, $commit, $name) = @_;
	my $out = '';
	my @changed = lines_of($git_dir, 'diff-tree', '-r', '--no-renames',
		'--no-commit-id', $commit);
	fail("commit \"$name\" changes nothing") unless @changed;
	foreach my $entry (@changed)
	{
		my ($old_mode, $new_mode, $status, $path) =
		  $entry =~ /^:(\d+) (\d+) \w+ \w+ (\w)\t(.*)$/;
		fail(
			"commit \"$name\" adds file \"$path\"",
			"The series only changes upstream's files: put new ones into the checkout, at the same path."
		) if $status eq 'A';
		fail("commit \"$name\" removes file \"$path\"") if $status eq 'D';
		fail("commit \"$name\" changes mode or type of \"$path\"")
		  if $status ne 'M' || $old_mode ne $new_mode;
		$out .= render_file($git_dir, $commit, $path);
	}
	return $out;
}

# The diff of one file in one commit: hunks with the smallest context that
# places them without doubt.
sub render_file
{
	my ($git_dir, $commit, $path) = @_;
	my @old = split /\n/, git($git_dir, 'show', "$commit^:$path"), -1;
	my @new = split /\n/, git($git_dir, 'show', "$commit:$path"), -1;
	fail("\"$path\" does not end with a newline")
	  if (pop(@old) // 'none') ne '' || (pop(@new) // 'none') ne '';

	# The changes without context, in lines counted from zero: [old start, old end,
	# new start, new end], the ends not included.
	my @changes;
	my $diff = git(
		$git_dir, 'diff',
		'-U0', '--inter-hunk-context=0',
		'--no-color', '--no-ext-diff',
		'--no-renames', '--diff-algorithm=myers',
		'--indent-heuristic', "$commit^",
		$commit, '--',
		$path);
	while ($diff =~ /^\@\@ -(\d+)(?:,(\d+))? \+(\d+)(?:,(\d+))? \@\@/mg)
	{
		my ($os, $ol, $ns, $nl) = ($1, $2 // 1, $3, $4 // 1);
		$os-- if $ol;
		$ns-- if $nl;
		push @changes, [ $os, $os + $ol, $ns, $ns + $nl ];
	}

	my @hunks;
	foreach my $change (@changes)
	{
		my ($context, $hunk) = (1);
		until (
			is_unique(
				$hunk = widen($change, $context, \@old, \@hunks),
				\@old, \@new))
		{
			$context++;
		}

		# A hunk that reaches into the one before it is joined with it.
		pop @hunks while @hunks && $hunks[-1]{old_end} > $hunk->{old_begin};
		push @hunks, $hunk;
	}

	my $out = "--- a/$path\n+++ b/$path\n";
	foreach my $hunk (@hunks)
	{
		my @lines;
		my $at = $hunk->{old_begin};
		foreach my $change (@{ $hunk->{changes} })
		{
			my ($os, $oe, $ns, $ne) = @$change;
			push @lines, map { " $_" } @old[ $at .. $os - 1 ];
			push @lines, map { "-$_" } @old[ $os .. $oe - 1 ];
			push @lines, map { "+$_" } @new[ $ns .. $ne - 1 ];
			$at = $oe;
		}
		push @lines, map { " $_" } @old[ $at .. $hunk->{old_end} - 1 ];
		$out .= sprintf(
			"\@\@ -%s +%s \@\@%s\n",
			range($hunk->{old_begin}, $hunk->{old_end}),
			range($hunk->{new_begin}, $hunk->{new_end}),
			function_above($path, \@old, $hunk->{changes}[0][0]));
		$out .= join('', map { "$_\n" } @lines);
	}
	return $out;
}

sub range
{
	my ($begin, $end) = @_;
	my $length = $end - $begin;
	return $length == 1
	  ? $begin + 1
	  : ($begin + ($length ? 1 : 0)) . ",$length";
}

# The function that a change of C code is in, for the reader.
sub function_above
{
	my ($path, $old, $line) = @_;
	return '' unless $path =~ /\.[ch]$/;
	while (--$line >= 0)
	{
		last if $old->[$line] =~ /^\}/;
		return " $1" if $old->[$line] =~ /^([A-Za-z_]\w*\(.*[^;\s])\s*$/;
	}
	return '';
}

# A change with so many lines of context on each side, as a hunk; joined with
# the hunks before it that it then touches.
sub widen
{
	my ($change, $context, $old, $hunks) = @_;
	my ($os, $oe, $ns, $ne) = @$change;
	my $begin = $os - $context < 0 ? 0 : $os - $context;
	my $end = $oe + $context > @$old ? @$old : $oe + $context;
	my %hunk = (
		old_begin => $begin,
		old_end => $end,
		new_begin => $ns - ($os - $begin),
		new_end => $ne + ($end - $oe),
		changes => [$change]);
	foreach my $before (reverse @$hunks)
	{
		last if $before->{old_end} < $hunk{old_begin};
		if ($before->{old_begin} <= $hunk{old_begin})
		{
			@hunk{qw(old_begin new_begin)} =
			  @$before{qw(old_begin new_begin)};
		}
		if ($before->{old_end} > $hunk{old_end})
		{
			$hunk{new_end} += $before->{old_end} - $hunk{old_end};
			$hunk{old_end} = $before->{old_end};
		}
		unshift @{ $hunk{changes} }, @{ $before->{changes} };
	}
	return \%hunk;
}

# Whether a hunk's old lines occur once in the file as the hunks before it
# leave it: new lines above it, old ones from it on.
sub is_unique
{
	my ($hunk, $old, $new) = @_;
	my @image = (
		@{$new}[ 0 .. $hunk->{new_begin} - 1 ],
		@{$old}[ $hunk->{old_begin} .. $#$old ]);
	my @want = @{$old}[ $hunk->{old_begin} .. $hunk->{old_end} - 1 ];
	return 1 if $hunk->{old_begin} == 0 && $hunk->{old_end} == @$old;
	return @want && places(\@image, \@want) == 1;
}

1;
