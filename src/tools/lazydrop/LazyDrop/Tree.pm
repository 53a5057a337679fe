# Copyright (c) 2026, LazyDrop developers

# The prepared tree, .pg/tree: make it, keep it up to date, export it, move it to
# another release.
#
# It is a git work tree.  Its branch "lazydrop" has upstream's source as its root
# and a commit for each patch; our own files are relative symbolic links, which git
# is told to ignore.  Directories are real: neither upstream's VPATH builds nor Meson
# follow linked ones.
#
# A tree is only built when .pg/tree.key, what it was made from, fits.  When it does
# not, the history is made anew beside the old one, and git moves the branch: it
# replaces the files that differ, and no other, so that a build continues from its
# object files.  Edits that are not committed, and commits that are not in the
# series, are never overwritten.  The key is removed before the first file is
# replaced and written after the last one, so that a tree left half way by a crash
# is completed by the next run.

package LazyDrop::Tree;

use strict;
use warnings FATAL => 'all';

use Exporter 'import';
use File::Basename qw(dirname);
use File::Find;

use LazyDrop::Common;
use LazyDrop::Meson;
use LazyDrop::Series qw(read_series series_digest commit_upstream
  commit_series write_series);
use LazyDrop::Upstream qw(locate_upstream locate_release unpack_upstream
  record_upstream move_pin pinned);

our @EXPORT_OK = qw(prepare prepared_release overlay_files upstream_commit
  init_repository tree_inputs import_tree export_tree rebase_tree);

my $repository = "$tree_dir/.git";
my $key_file = "$state_dir/tree.key";

# Makefiles include this one; its time stamp is that of the last change.
my $stamp_file = "$state_dir/prepared.mk";

# In the repository: the commit that the tree is being moved to; the digest of the
# series that it has; that a user works in it, whom git expects to own it.
my $next_file = "$repository/lazydrop-next";
my $record_file = "$repository/lazydrop-series";
my $imported_file = "$repository/lazydrop-imported";

# Upstream's commit, and the last commit that the series is known to hold.
my $base_tag = 'lazydrop/upstream';
my $series_tag = 'lazydrop/series';

# Paths, relative to the checkout and to the tree alike, of our own files that
# belong into the tree: everything below src, contrib and doc, except the tools
# that make the tree (not their tests), and what a test run by hand left.
sub overlay_files
{
	my @files;
	find(
		{
			no_chdir => 1,
			preprocess => sub { sort @_ },
			wanted => sub {
				my $path = substr($File::Find::name, length("$top/"));
				if ($path eq 'src/tools/lazydrop' || $path =~ m{/tmp_check$})
				{
					$File::Find::prune = 1;
				}

				# what editors and failed merges leave, and what git would not follow
				elsif (!-d $File::Find::name
					&& $path !~
					m{(?:~|\.sw[a-p]|\.orig|\.rej|/\.?#[^/]*|/\.gitignore)$})
				{
					push @files, $path;
				}
			}
		},
		grep { -d } map { "$top/$_" } qw(src contrib doc));
	return @files;
}

# Our tools: when these change, so may the tree that they make.
sub tools
{
	return sort glob("'$top'/src/tools/lazydrop/LazyDrop/*.pm");
}

# Paths, relative to the checkout, of our files that the tree is made from and
# that are not linked into it.
sub tree_inputs
{
	return (
		'upstream.conf',
		'patches/series',
		(map { "patches/$_.patch" } read_series("$top/patches")),
		map { substr($_, length("$top/")) } tools());
}

# The release of the prepared tree, or undef when there is none.
sub prepared_release
{
	return -f $key_file ? read_conf($key_file)->{release} : undef;
}

# --- the history ------------------------------------------------------------------

# A new repository, as .git of a directory.  Returns its path.
sub init_repository
{
	my ($dir) = @_;
	git($dir, 'init', '-q', '-b', 'lazydrop');
	make_path("$dir/.git/info");
	my %config = (
		'filter.lazydrop.clean' =>
		  '../../src/tools/lazydrop/meson-filter clean',
		'filter.lazydrop.smudge' =>
		  '../../src/tools/lazydrop/meson-filter smudge %f',
		'filter.lazydrop.required' => 'true',

		# a file that was given to another user has not changed
		'core.checkStat' => 'minimal',
		'core.trustctime' => 'false',

		# nothing in the background of a folder that may be moved or given away
		'gc.auto' => '0',
		'maintenance.auto' => 'false');
	git($dir, 'config', $_, $config{$_}) foreach sort keys %config;
	set_attributes("$dir/.git");
	return "$dir/.git";
}

# Upstream's own attributes must not change a byte; LazyDrop::Meson changes some of
# its files in the work tree.
sub set_attributes
{
	my ($git_dir, @commits) = @_;
	my %filtered = map { /^\w+:(.*)$/ => 1 } map {
		my (undef, $out) = capture(
			{ dir => $git_dir, stderr => 'none' },
			'git',
			git_settings($git_dir),
			'grep',
			'-lE',
			'(source|build)_root|@(SOURCE|BUILD)_ROOT@',
			$_,
			'--',
			'*meson.build');
		"$_:meson.build", split /\n/, $out;
	} @commits;
	write_if_changed(
		"$git_dir/info/attributes",
		join('',
			"* -text -filter -ident\n",
			map { "/$_ filter=lazydrop\n" } sort keys %filtered));
	return;
}

# What a commit of upstream's was made from, as its message says: kind, path, id,
# stamp, release.
sub source_of
{
	my ($git_dir, $commit) = @_;
	my ($status, $message) = capture({ dir => $git_dir, stderr => 'none' },
		'git', git_settings($git_dir), 'show', '-s', '--format=%B', $commit);
	return { $status == 0 ? $message =~ /^(\w+) = (.*)$/mg : () };
}

# Make a commit of upstream's source, unless the repository has it, verify that it
# can take our files, and return it with its release.
sub upstream_commit
{
	my ($git_dir, $up, $any) = @_;
	my $base = $base_tag;
	if ((source_of($git_dir, $base)->{id} // '') ne $up->{id})
	{
		my $source = scratch_dir('source');
		notice("unpacking $up->{what}");
		my $release = unpack_upstream($up, $source, $any);
		$base = commit_upstream($git_dir, $source,
				"PostgreSQL $release\n\n"
			  . join('', map { "$_ = $up->{$_}\n" } qw(kind path id stamp))
			  . "release = $release\n");
		remove_tree($source);
	}
	my %theirs =
	  map { $_ => 1 }
	  lines_of($git_dir, 'ls-tree', '-r', '--name-only', $base);
	foreach my $path (grep { $theirs{$_} } overlay_files())
	{
		fail(
			"$up->{what} already has the file \"$path\" that LazyDrop adds",
			"It must be PostgreSQL's own source, without LazyDrop's patches; a prepared tree cannot be prepared again."
		);
	}
	($base) = lines_of($git_dir, 'rev-parse', "$base^{commit}");
	return ($base, source_of($git_dir, $base)->{release});
}

# Both: upstream's commit, the last one of the series, and the release.
sub make_history
{
	my ($git_dir, $up) = @_;
	my ($base, $release) = upstream_commit($git_dir, $up);
	my $tip = commit_series($git_dir, $base, "$top/patches",
		$release eq pinned()->{release});
	return ($base, $tip, $release);
}

# --- the tree ---------------------------------------------------------------------

# Make the tree, or bring it up to date.  Options: upstream (the user's
# --with-upstream), force (overwrite edits), drop_commits (that have not been
# exported), build_tree (a build folder whose folders and Makefile links are to
# follow the tree), exported (what the series has just been exported for: the tree
# has it).  Returns whether anything was changed.
sub prepare
{
	my (%opt) = @_;
	take_lock();

	my $up = $opt{exported} || locate_upstream($opt{upstream});
	my %overlay = map { $_ => sha256_file("$top/$_") } overlay_files();
	my %want = (
		upstream => $up->{id},
		series => series_digest("$top/patches"),
		tools => sha256_data(map { slurp($_) } tools()),
		overlay => sha256_data(map { "$_ $overlay{$_}\n" } sort keys %overlay)
	);
	my $have = -d $tree_dir && -f $key_file ? read_conf($key_file) : {};
	my $changed = 0;

	$want{release} = $up->{release} // $have->{release};
	if (!$opt{exported}
		&& ($opt{force}
			|| grep { ($have->{$_} // '') ne $want{$_} }
			qw(upstream series tools)))
	{
		require_exported($opt{drop_commits}) if -d $repository;
		$want{release} = replace_tree($up, $opt{force});

		# A source that was gone and has been fetched again may be another.
		$want{upstream} = $up->{id};
		$changed = 1;
	}
	$changed = 1
	  if link_overlay(\%overlay);

	my $key = join('', map { "$_ = $want{$_}\n" } sort keys %want);
	$changed = 1 if write_if_changed($key_file, $key);
	record_upstream($up);

	spew($stamp_file, "# Written by prepare; its time stamp is the tree's.\n")
	  if $changed || !-f $stamp_file;
	update_build_tree($opt{build_tree}, sha256_data($key))
	  if $opt{build_tree};
	return $changed;
}

# Refuse to go on when the branch holds work that the series does not.
sub require_exported
{
	my ($force) = @_;
	fail("the prepared tree belongs to another user",
		"Run src/tools/lazydrop/prepare as the user that has imported it.")
	  unless -w $repository;
	return if $force || -f $next_file;
	my @unexported =
	  lines_of($tree_dir, 'log', '--format=%h %s', "$series_tag..HEAD");
	my @heads =
	  lines_of($tree_dir, 'rev-parse', 'HEAD', "$series_tag^{commit}");
	fail(
		"the prepared tree has commits that have not been exported",
		@unexported,
		"Run export, or discard them with: src/tools/lazydrop/import --force"
	) if @unexported || $heads[0] ne $heads[1];
	return;
}

# Files of the tree that are not as a commit has them, and not missing.
sub changed_from
{
	my ($commit) = @_;
	return lines_of($tree_dir, 'diff', '--name-only', '--no-renames',
		'--diff-filter=d', $commit);
}

# Make the history, and have git move the tree to it.  Returns the release.
sub replace_tree
{
	my ($up, $force) = @_;
	my $stage = -d $repository ? undef : scratch_dir('stage');
	my $git_dir = $stage ? init_repository($stage) : $repository;
	my ($base, $tip, $release) = make_history($git_dir, $up);
	my $count = () = lines_of($git_dir, 'rev-list', "$base..$tip");
	notice(
		sprintf(
			"applied %d patch%s to PostgreSQL %s",
			$count, $count == 1 ? '' : 'es', $release));

	# Also of a tree that has lost its history: its files must be those of this one.
	if ($stage)
	{
		my $lost = -d $tree_dir;
		git($stage, 'update-ref', 'refs/heads/lazydrop', $tip);
		set_attributes($git_dir, $base);
		spew("$git_dir/lazydrop-next", "$tip\n");
		make_path($tree_dir);
		rename($git_dir, $repository)
		  or fail("could not rename \"$git_dir\" to \"$repository\": $!");
		git($tree_dir, 'reset', '-q', '--mixed', $tip) if $lost;
	}
	capture({ dir => $tree_dir },
		'git', git_settings($tree_dir), 'update-index', '-q', '--refresh');

	# Find out what would be lost before the first file is touched.  A run that was
	# interrupted has left some files as they were, and others as they were to be.
	my @good = 'HEAD';
	push @good, slurp($next_file) =~ /(\w+)/,
	  lines_of($tree_dir, 'tag', '--list', $series_tag)
	  if -f $next_file;
	my %changes;
	$changes{$_}++ foreach map { changed_from($_) } @good;
	my @edited = grep { $changes{$_} == @good } sort keys %changes;
	fail(
		"the prepared tree has edits that the series does not hold",
		(map { "edited: .pg/tree/$_" } @edited),
		"Keep them as a commit and export it, or discard them with: src/tools/lazydrop/prepare --force"
	) if @edited && !$force;

	spew($next_file, "$tip\n");
	unlink($key_file, "$repository/index.lock");
	set_attributes($repository, $base);
	git($tree_dir, 'checkout', '-q', '-f', '-B', 'lazydrop', $tip);
	foreach my $path (slurp("$repository/info/attributes") =~ m{^/(\S+) }mg)
	{
		# LazyDrop::Meson may have changed.
		my $text = git($tree_dir, 'show', "$tip:$path");
		write_if_changed("$tree_dir/$path",
			LazyDrop::Meson::rewrite($path, $text));
	}
	mark_series($base, $tip);
	unlink($next_file);
	return $release;
}

# Note that the series has what the commits have.
sub mark_series
{
	my ($base, $tip) = @_;
	git($tree_dir, 'tag', '-f', $base_tag, $base);
	git($tree_dir, 'tag', '-f', $series_tag, $tip);
	spew($record_file, series_digest("$top/patches") . "\n");
	return;
}

# Link our files into the tree, and take out links to files that are gone.
# Returns whether anything changed.
sub link_overlay
{
	my ($overlay) = @_;
	my $changed = 0;
	my $stamp = (stat($stamp_file))[9] // 0;

	# What was linked last time: path => digest of the contents.
	my $record = "$state_dir/tree.overlay";
	my %before =
	  map { /^(\w+) (.*)$/ ? ($2 => $1) : () }
	  -f $record ? split(/\n/, slurp($record)) : ();

	foreach my $path (sort keys %$overlay)
	{
		my $file = "$tree_dir/$path";
		my $target = '../' x (2 + ($path =~ tr{/}{})) . $path;
		if (-l $file)
		{
			unlink($file) if readlink($file) ne $target;
		}
		elsif (-e $file)
		{
			fail(
				"upstream already has the file \"$path\" that LazyDrop adds",
				"Edits to upstream's files are patches; see src/tools/lazydrop/README."
			) if git($tree_dir, 'ls-files', '--', $path) ne '';

			# Some editors, and "sed -i", replace a link by a file.
			fail(
				"\".pg/tree/$path\" is no longer a link to our \"$path\", and differs from it",
				"Copy what you want to keep to \"$path\", and remove \".pg/tree/$path\"."
			) if !-f $file || sha256_file($file) ne $overlay->{$path};
			unlink($file);
		}
		if (!-l $file)
		{
			make_path(dirname($file));
			symlink($target, $file)
			  or fail("could not create symbolic link \"$file\": $!");
			$changed = 1;
		}

		# Contents that changed under an old time stamp (a backup restored, a
		# copy that keeps times) would leave stale object files.
		if (   defined $before{$path}
			&& $before{$path} ne $overlay->{$path}
			&& (stat("$top/$path"))[9] <= $stamp)
		{
			utime(undef, undef, "$top/$path")
			  or fail("could not set the time stamp of \"$path\": $!");
		}
	}
	foreach my $path (grep { !exists $overlay->{$_} } sort keys %before)
	{
		next unless -l "$tree_dir/$path";
		unlink("$tree_dir/$path");

		# folders that held nothing else go with it
		for (my $dir = dirname($path); $dir ne '.'; $dir = dirname($dir))
		{
			rmdir("$tree_dir/$dir") or last;
		}
		$changed = 1;
	}
	write_if_changed("$repository/info/exclude",
		"# our own files are links: edit and commit them in the checkout\n"
		  . join('', map { "/$_\n" } sort keys %$overlay));
	write_if_changed($record,
		join('', map { "$overlay->{$_} $_\n" } sort keys %$overlay));
	return $changed;
}

# A VPATH build folder holds the tree's folders and a link to each Makefile.
sub update_build_tree
{
	my ($dir, $id) = @_;
	my $record = "$dir/.lazydrop_tree";
	return if !-d $dir || (-f $record && slurp($record) eq "$id\n");
	run({ dir => $dir },
		'sh', "$tree_dir/config/prep_buildtree",
		$tree_dir, '.');
	spew($record, "$id\n");
	return;
}

# --- import, export, rebase -------------------------------------------------------

# Make the tree ready for commits in it.  Edits stay, as do branches.
sub import_tree
{
	my ($force) = @_;
	prepare(drop_commits => $force);
	require_exported($force);
	if ($force)
	{
		git($tree_dir, 'symbolic-ref', 'HEAD', 'refs/heads/lazydrop');
		git($tree_dir, 'reset', '-q', '--keep', $series_tag);
	}

	# git works in a repository of the same user only, and root may have given the
	# tree to the user that runs the tests.
	if ($> == 0)
	{
		run({}, 'chown', '-R', "$>:$)" =~ s/ .*//r, $repository);
		chown($>, -1, $tree_dir);
	}
	spew($imported_file,
		"src/tools/lazydrop/unprivileged leaves it to its owner\n");
	return;
}

# Refuse when the tree is not in a state to be exported or moved.
sub require_committed
{
	fail("there is no prepared tree", "Run: src/tools/lazydrop/import")
	  unless -d $repository;
	my @dirty =
	  lines_of($tree_dir, 'status', '--porcelain', '--untracked-files=no');
	fail("the prepared tree has edits that have not been committed", @dirty)
	  if @dirty;
	my ($status, $branch) = capture({ dir => $tree_dir, stderr => 'none' },
		'git', git_settings($tree_dir), 'symbolic-ref', 'HEAD');
	fail(
		"the prepared tree is not on its branch \"lazydrop\"",
		"Finish the rebase, or check the branch out.")
	  if $status != 0
	  || $branch ne "refs/heads/lazydrop\n"
	  || grep { -e "$repository/$_" } qw(rebase-merge rebase-apply);
	return;
}

# Write the commits of the tree as the series.  Returns the names of the patches.
sub export_tree
{
	my ($force) = @_;
	take_lock();
	require_committed();
	fail(
		"patches/ has changed since the tree was imported",
		"Bring the change into the tree by hand and export with --force, or discard the tree's commits with: src/tools/lazydrop/import --force"
	  )
	  if !$force
	  && slurp($record_file) ne series_digest("$top/patches") . "\n";

	# Written apart and verified before patches/ is touched.
	my ($base) = lines_of($tree_dir, 'rev-list', '--max-parents=0', 'HEAD');
	my ($tip, $want) =
	  lines_of($tree_dir, 'rev-parse', 'HEAD', 'HEAD^{tree}');
	my $scratch = scratch_dir('export');
	spew("$scratch/series", slurp("$top/patches/series"));
	my @names = write_series($tree_dir, $base, $tip, $scratch);
	my $again = commit_series($repository, $base, $scratch, 1);
	fail("the series does not reproduce the tree")
	  if git($tree_dir, 'rev-parse', "$again^{tree}") ne "$want\n";

	write_if_changed("$top/patches/$_", slurp("$scratch/$_"))
	  foreach 'series', map { "$_.patch" } @names;
	unlink(grep { m{([^/]*)$} && !-e "$scratch/$1" }
		  glob("'$top'/patches/*.patch"));
	mark_series($base, $tip);

	# The recorded lines are those of the release that the commits are on.
	my $source = source_of($tree_dir, $base);
	$source = { %{ locate_upstream() }, release => prepared_release() }
	  unless $source->{id};
	if ($source->{kind} ne 'dir')
	{
		move_pin($source->{release}, $source->{id});
	}
	elsif ($source->{release} ne pinned()->{release})
	{
		notice(
			"the series is for PostgreSQL $source->{release} now; set upstream.conf"
		);
	}
	prepare(exported => $source);
	return scalar(@names);
}

# Move the commits to another release, a version of the archive's or a tarball, with
# git rebase, and export them.
sub rebase_tree
{
	my ($argument) = @_;
	my $path = -e $argument ? $argument : undef;
	fail("\"$argument\" is neither a file nor a release")
	  unless $path || $argument =~ /^\d+(?:\.\d+|beta\d+|rc\d+)$/;
	prepare();
	require_committed();
	require_exported(0);
	my $up = $path ? locate_upstream($path) : locate_release($argument);
	my ($old) = lines_of($tree_dir, 'rev-parse', "$base_tag^{commit}");
	my ($new, $release) = upstream_commit($repository, $up, 1);
	fail("the series is on PostgreSQL $release already") if $new eq $old;
	set_attributes($repository, $old, $new);

	notice("moving the series to PostgreSQL $release");
	my ($status, $out) = capture(
		{ dir => $tree_dir }, 'git',
		git_settings($tree_dir), '-c',
		'user.name=LazyDrop', '-c',
		'user.email=lazydrop', 'rebase',
		'--onto', $new,
		$old, 'lazydrop');
	print STDERR $out;
	fail(
		"git rebase has stopped",
		"In .pg/tree, edit the files in conflict, then: git add FILE, git rebase --continue; or go back: git rebase --abort.",
		"When it has finished, run: src/tools/lazydrop/export"
	) if $status != 0;
	return export_tree(0);
}

1;
