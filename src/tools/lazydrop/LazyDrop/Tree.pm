# Copyright (c) 2026, LazyDrop developers

# The prepared tree, .pg/tree, or .pg/MAJOR/tree if the major version is not the default.
# This module creates it, keeps it up to date, exports it, and moves it to another
# release.
#
# The tree is a git work tree.  Its branch "lazydrop" has upstream's source as its root
# and a commit for each patch.  Our own files are relative symbolic links, which git is
# told to ignore.  Directories are real, because neither upstream's VPATH builds nor Meson
# follow linked ones.
#
# A tree is built only if .pg/tree.key, which describes its sources, matches.  Otherwise,
# the history is created again beside the old one, and git moves the branch.  git replaces
# only the files that differ, so a build continues with its object files.  Uncommitted
# edits, and commits that are not in the series, are never overwritten.  While files are
# being replaced, a file in the repository says so, and the next run completes a tree that
# a crash has left half way.

package LazyDrop::Tree;

use strict;
use warnings FATAL => 'all';

use Exporter 'import';

use LazyDrop::Common;
use LazyDrop::Series;
use LazyDrop::Upstream;

our @EXPORT = qw(prepare source_of overlay_files upstream_commit
  init_repository import_tree export_tree rebase_tree choose_major_of_build);

# Upstream's commit, and the last commit that is known to be in the series.
my $base_tag = 'lazydrop/upstream';
my $series_tag = 'lazydrop/series';

# Paths of our own files in the tree, relative to the checkout and to the tree alike:
# everything below src, contrib and doc, except the tools that make the tree, files that a
# manual test run has left, and files that git would not track.
sub overlay_files
{
	my @roots = grep { -d "$top/$_" } qw(src contrib doc);
	my @which = qw{( -path src/tools/lazydrop -o -name tmp_check ) -prune -o
	  ! -type d ! -name .gitignore -print};
	return sort split /\n/, run('env', '-C', $top, 'find', @roots, @which);
}

# Our tools: if they change, the tree that they make may change, too.
my @tools = glob("'$top'/src/tools/lazydrop/{meson-filter,LazyDrop/*.pm}");

# Returns the relative path from the tree to the top of the checkout.
sub to_top
{
	return '../' x (1 + ($tree =~ tr{/}{}));
}

# Create a repository as .git of a directory, or update the configuration of an older one.
# Returns its path.
sub init_repository
{
	my ($dir) = @_;
	git($dir, '-c', 'init.defaultBranch=lazydrop', 'init', '-q');
	my $filter = to_top() . 'src/tools/lazydrop/meson-filter';
	my %config = (
		'filter.lazydrop.clean' => "$filter clean $tree",
		'filter.lazydrop.smudge' => "$filter smudge $tree",
		'filter.lazydrop.required' => 'true',

		# Show the function that contains a hunk, or the end of the preceding one.
		'diff.lazydrop.xfuncname' =>
		  '^(\}|[A-Za-z_][A-Za-z0-9_]*\(.*[^;[:space:]])[[:space:]]*$',

		# A file that was given to another user has not changed.
		'core.checkStat' => 'minimal',
		'core.trustctime' => 'false',

		# Run nothing in the background, because the folder may be moved or given away.
		'gc.auto' => '0',
		'maintenance.auto' => 'false');
	git($dir, 'config', $_, $config{$_}) foreach sort keys %config;

	# Upstream's own attributes must not change a byte.
	make_path("$dir/.git/info");
	spew("$dir/.git/info/attributes",
		"* -text -filter -ident\n*.[ch] diff=lazydrop\nmeson.build filter=lazydrop\n"
	);
	return "$dir/.git";
}

# Returns the source of a commit of upstream's code, from the commit's message.
sub source_of
{
	my ($git_dir, $commit) = @_;
	return { git($git_dir, 'show', '-s', '--format=%B', $commit) =~
		  /^(\w+) = (.*)$/mg };
}

# Create a commit of upstream's source unless the repository has it.  Verify that our
# files can be added to it, and return it with its release.
sub upstream_commit
{
	my ($git_dir, $up, $any) = @_;
	my ($base) = lines_of($git_dir, 'log', '--all', '--format=%H', '--grep',
		"^id = $up->{id}\$");
	if (!$base)
	{
		my ($source, $release) = unpack_upstream($up, $any);
		$base = commit_upstream($git_dir, $source,
			"PostgreSQL $release\n\nrelease = $release\n" . source_text($up));
	}
	my %theirs = map { $_ => 1 }
	  lines_of($git_dir, 'ls-tree', '-r', '--name-only', $base);
	my ($both) = grep { $theirs{$_} } overlay_files();
	fail("\"$up->{path}\" already has the file \"$both\" that LazyDrop adds")
	  if $both;
	return ($base, source_of($git_dir, $base)->{release});
}

# Create the tree, or bring it up to date.  Options: the command's options, and "exported"
# (the source for which the series has just been exported; the tree has it).  Returns
# whether anything was changed.
sub prepare
{
	my (%opt) = @_;
	take_lock();
	my $up = $opt{exported} || locate_upstream($opt{'with-upstream'});
	my %overlay = map { $_ => sha256_hex(slurp("$top/$_")) } overlay_files();
	my $have = -f $key_file ? read_conf($key_file) : {};
	my %want = (
		series => series_digest("$top/patches"),
		tools => sha256_hex(map { slurp($_) } @tools),
		overlay => sha256_hex(map { "$_ $overlay{$_}\n" } sort keys %overlay)
	);
	my $fits =
		 -d $repository
	  && !-f $next_file
	  && ($have->{id} // '') eq $up->{id}
	  && $have->{series} eq $want{series}
	  && $have->{tools} eq $want{tools};
	my $changed = 0;

	if (!$opt{exported} && ($opt{force} || !$fits))
	{
		require_exported() if -d $repository;
		my $same_tools = ($have->{tools} // '') eq $want{tools};
		replace_tree($up, $opt{force}, $same_tools);
		$changed = 1;
	}
	$changed |= link_overlay(\%overlay);

	# Compute the key after the tree was replaced: if the source was missing and has been
	# fetched again, it may be a different one.
	my $key =
	  source_text($up) . join('', map { "$_ = $want{$_}\n" } sort keys %want);
	$changed |= write_if_changed($key_file, $key);

	spew($stamp_file, "# Written by prepare; its time stamp is the tree's.\n")
	  if $changed || !-f $stamp_file;

	# A VPATH build folder has the same folders as the tree and a link to each Makefile.
	my $dir = $opt{'build-tree'};
	if ($dir && -d $dir && write_if_changed("$dir/.lazydrop_tree", $key))
	{
		run('sh', "$tree_dir/config/prep_buildtree", $tree_dir, $dir);
	}
	return $changed;
}

# Select the major version for which one of Meson's build directories was set up, because
# Meson calls us repeatedly, or record it.  Also make Meson find its option file.
sub choose_major_of_build
{
	my ($dir) = @_;
	my $note = "$dir/lazydrop_major";
	my $was = -f $note ? slurp($note) : $major;
	choose_major($was) unless $ENV{PG_MAJOR};
	fail("\"$dir\" has been set up for PostgreSQL $was")
	  if $was ne $major;
	spew($note, $major);

	my $options = "$top/.pg/meson_options.txt";
	my $target = "$tree/meson_options.txt" =~ s{^\.pg/}{}r;
	if ((readlink($options) // '') ne $target)
	{
		make_path("$top/.pg");
		unlink($options);
		symlink($target, $options)
		  or fail("could not create symbolic link \"$options\": $!");
	}
	return;
}

# Fail if the branch has work that the series does not have.
sub require_exported
{
	return if -f $next_file;
	my @unexported =
	  lines_of($tree_dir, 'log', '--format=%h %s', "$series_tag...HEAD");
	fail(
		"the prepared tree has commits that have not been exported, or lacks some",
		@unexported,
		"Run export, or discard that with: src/tools/lazydrop/import --force"
	) if @unexported;
	return;
}

# Create the history, and let git move the tree to it.
sub replace_tree
{
	my ($up, $force, $same_tools) = @_;
	my $stage = -d $repository ? undef : scratch_dir();
	my $git_dir = init_repository($stage // $tree_dir);
	my ($base, $release) = upstream_commit($git_dir, $up);
	my $tip = commit_series($git_dir, $base, "$top/patches",
		$release eq pinned()->{release});
	notice("the series applies to PostgreSQL $release");

	# This also covers a tree that has lost its history: its files must match this one.
	if ($stage)
	{
		spew("$git_dir/lazydrop-next", "$tip\n");
		git($stage, 'update-ref', 'refs/heads/lazydrop', $tip);
		git($stage, 'read-tree', $tip);
		make_path($tree_dir);
		rename($git_dir, $repository)
		  or fail("could not rename \"$git_dir\" into \"$tree_dir\": $!");
	}
	capture('git', '-C', $tree_dir, 'update-index', '-q', '--refresh');

	# Find out which edits would be lost before the first file is touched.  An interrupted
	# run has left some files in their old state, and others in their new state.
	my @good = 'HEAD';
	push @good, slurp($next_file) =~ /(\w+)/,
	  lines_of($tree_dir, 'tag', '--list', $series_tag)
	  if -f $next_file;
	my %changes;
	$changes{$_}++ foreach map {
		lines_of($tree_dir, 'diff', '--name-only', '--no-renames',
			'--diff-filter=d', $_)
	} @good;
	my @edited = grep { $changes{$_} == @good } sort keys %changes;
	fail(
		"the prepared tree has edits that the series does not hold",
		(map { "edited: $tree/$_" } @edited),
		"Keep them as a commit and export it, or discard them with: src/tools/lazydrop/prepare --force"
	) if @edited && !$force;

	spew($next_file, "$tip\n");
	unlink("$repository/index.lock");

	# The output of meson-filter may have changed.
	unlink(map { "$tree_dir/$_" }
		  lines_of($tree_dir, 'ls-files', '*meson.build'))
	  unless $same_tools;
	git($tree_dir, 'checkout', '-q', '-f', '-B', 'lazydrop', $tip);
	mark_series($base, $tip);
	unlink($next_file);
	return;
}

# Record that the series and the commits are the same.
sub mark_series
{
	my ($base, $tip) = @_;
	git($tree_dir, 'tag', '-f', @$_)
	  foreach [ $base_tag, $base ], [ $series_tag, $tip ];
	return;
}

# Link our files into the tree, and remove links to files that no longer exist.  Returns
# whether anything changed.
sub link_overlay
{
	my ($overlay) = @_;
	my $changed = 0;
	my $stamp = (stat($stamp_file))[9] // 0;

	# The files that git has been told to ignore: path => digest of the contents.
	my $exclude = "$repository/info/exclude";
	my %before = reverse slurp($exclude) =~ m{^# (\w+)\n/(.*)$}mg;

	foreach my $path (sort keys %$overlay)
	{
		my $file = "$tree_dir/$path";
		my $target = to_top() . '../' x ($path =~ tr{/}{}) . $path;
		if ((readlink($file) // '') ne $target)
		{
			# Some editors, and "sed -i", replace a link by a file.
			fail(
				"\"$tree/$path\" is no link to our \"$path\", and differs from it",
				"Edits of upstream's files are patches.  If it was a link, copy what is to be kept, and remove it."
			  )
			  if !-l $file
			  && -e $file
			  && sha256_hex(slurp($file)) ne $overlay->{$path};
			unlink($file);
			make_path(dirname($file));
			symlink($target, $file)
			  or fail("could not create symbolic link \"$file\": $!");
			$changed = 1;
		}

		# If contents changed and the time stamp is old (after a restored backup, or a
		# copy that keeps times), object files would be stale.
		if (   ($before{$path} // $overlay->{$path}) ne $overlay->{$path}
			&& (stat("$top/$path"))[9] <= $stamp)
		{
			utime(undef, undef, "$top/$path");
		}
	}

	# If a file is gone, remove the folders that it leaves empty.
	foreach my $path (grep { !exists $overlay->{$_} } keys %before)
	{
		next unless -l "$tree_dir/$path" && unlink("$tree_dir/$path");
		do { $path = dirname($path) } while rmdir("$tree_dir/$path");
		$changed = 1;
	}
	write_if_changed(
		$exclude,
		join('',
			"# our own files are links: edit and commit them in the checkout\n",
			map { "# $overlay->{$_}\n/$_\n" } sort keys %$overlay));
	return $changed;
}

# Prepare the tree for commits in it.  Edits and branches are kept.
sub import_tree
{
	my ($force) = @_;
	if ($force && -d $repository)
	{
		git($tree_dir, 'symbolic-ref', 'HEAD', 'refs/heads/lazydrop');
		git($tree_dir, 'reset', '-q', '--keep', $series_tag);
	}
	prepare();
	require_exported();

	# git accepts a repository of the same user only, unless it is told otherwise; and
	# root gives the tree to the user that runs the tests.
	delete local $ENV{GIT_CONFIG_GLOBAL};
	run(qw(git config --global --replace-all safe.directory),
		$tree_dir, "^\Q$tree_dir\E\$")
	  if $> == 0;
	notice("edit and commit in $tree, then run: src/tools/lazydrop/export");
	return;
}

# Fail unless the tree is in a state in which it can be exported or moved.
sub require_committed
{
	fail("there is no prepared tree", "Run: src/tools/lazydrop/import")
	  unless -d $repository;
	my @dirty =
	  lines_of($tree_dir, 'status', '--porcelain', '--untracked-files=no');
	fail("the prepared tree has edits that have not been committed", @dirty)
	  if @dirty;

	# During a rebase, HEAD is detached.
	fail(
		"the prepared tree is not on its branch \"lazydrop\"",
		"Finish the rebase, or check the branch out.")
	  if git($tree_dir, 'rev-parse', '--abbrev-ref', 'HEAD') ne "lazydrop\n";
	return;
}

# Write the commits of the tree as the series.
sub export_tree
{
	my ($force) = @_;
	take_lock();
	require_committed();
	my $default = $major eq default_major();
	fail(
		"patches/ has changed since the tree was imported",
		"Bring the change into the tree by hand and export with --force, or discard the tree's commits with: src/tools/lazydrop/import --force"
	  )
	  if !$force
	  && read_conf($key_file)->{series} ne series_digest("$top/patches");

	# Write and verify the series in a separate directory before patches/ is touched.
	init_repository($tree_dir);
	my ($base) = lines_of($tree_dir, 'rev-list', '--max-parents=0', 'HEAD');
	my ($tip) = lines_of($tree_dir, 'rev-parse', 'HEAD');
	my $scratch = scratch_dir();
	run('cp', '-R', "$top/patches/.", $scratch);
	unlink(glob("'$scratch'/*.patch")) if $default;
	my @names = write_series($tree_dir, $base, $tip, $scratch);
	my $again = commit_series($repository, $base, $scratch, 1);
	fail("the series does not reproduce the tree")
	  if git($tree_dir, 'diff', '--raw', $tip, $again) ne '';

	my $own = $default ? '' : "$major/";
	my @files = glob("'$scratch'/$own*.patch");
	make_path("$top/patches/$own");
	write_if_changed("$top/patches/$own" . basename($_), slurp($_))
	  foreach @files, $default ? "$scratch/series" : ();
	unlink(grep { !-e "$scratch/$own" . basename($_) }
		  glob("'$top'/patches/$own*.patch"));
	mark_series($base, $tip);

	# The recorded line numbers are those in the release on which the commits are based.
	my $source = source_of($tree_dir, $base);
	move_pin($source->{release},
		$source->{kind} eq 'dir' ? 'unknown' : $source->{id})
	  if $source->{release} ne pinned()->{release};
	prepare(exported => $source);
	notice('the series has ' . @names . ' patches');
	return;
}

# Move the commits with git rebase to another release, which is a version in the archive
# or a tarball, and export them.  A major version that is not supported yet starts with
# the patches of the default one.
sub rebase_tree
{
	my ($argument) = @_;
	fail("\"$argument\" is neither a file nor a release")
	  unless -e $argument || $argument =~ /^\d+(?:\.\d+|beta\d+|rc\d+)$/;
	my $target =
	  major_of(-e $argument ? release_in($argument) // '' : $argument)
	  // fail("\"$argument\" is not PostgreSQL's source");
	my $known = grep { $_ eq $target } majors();
	choose_major($known ? $target : default_major());
	prepare();
	require_committed();
	require_exported();
	begin_major($target) unless $known;
	my $up =
	  -e $argument ? locate_upstream($argument) : from_archive($argument, {});
	fail("the archive has no PostgreSQL $argument", "It offers $up->{path}.")
	  unless -e $argument || $up->{path} =~ /_\Q$argument\E\.orig\./;
	my ($old) = lines_of($tree_dir, 'rev-parse', "$base_tag^{commit}");
	my ($new, $release) = upstream_commit($repository, $up, 1);
	fail("the series is on PostgreSQL $release already") if $new eq $old;

	notice("moving the series to PostgreSQL $release");
	my @me = qw(-c user.name=LazyDrop -c user.email=lazydrop);
	system(
		'git', '-C', $tree_dir, @me, 'rebase',
		'--onto', $new, $old, 'lazydrop') == 0
	  or fail(
		"git rebase has stopped",
		"In $tree, edit the files in conflict, then: git add FILE, git rebase --continue; or go back: git rebase --abort.",
		"When it has finished, run: PG_MAJOR=$target src/tools/lazydrop/export"
	  );
	export_tree();
	return;
}

# Start a new major version: its tree is a copy of the default one's, and is moved from
# there.
sub begin_major
{
	my ($new) = @_;
	my $from = $repository;
	choose_major($new, new => 1);
	take_lock();
	fail(
		"$tree has a move to PostgreSQL $new that has not been exported",
		"Finish it with PG_MAJOR=$new src/tools/lazydrop/export, or remove $tree."
	  )
	  if -d $repository
	  && git($tree_dir, 'rev-parse', 'HEAD') ne
	  git($tree_dir, 'rev-parse', "$series_tag^{commit}");
	remove_tree($tree_dir);
	make_path($tree_dir);
	init_repository($tree_dir);
	git($tree_dir, 'fetch', '-q', $from, 'refs/heads/lazydrop',
		'refs/tags/lazydrop/*:refs/tags/lazydrop/*');
	git($tree_dir, 'checkout', '-q', '-B', 'lazydrop', $series_tag);
	spew($key_file, 'series = ' . series_digest("$top/patches") . "\n");
	return;
}

1;
