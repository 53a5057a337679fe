# Copyright (c) 2026, LazyDrop developers

=pod

=head1 NAME

LazyDrop::Tree - the prepared tree: make it, keep it up to date, import

=head1 DESCRIPTION

The prepared tree, .pg/tree, is upstream's source with patches/series applied
and a relative symbolic link for each of our own files.  Directories are real:
neither upstream's VPATH builds nor Meson follow linked ones.

Beside the tree lie tree.key, what the tree was made from, and tree.manifest,
every file of it but the links, with a digest.  A tree is only built when its
key fits; when it does not, a new one is staged next to it and only the files
that differ are replaced, each with a fresh time stamp, so that a build
continues from its object files.  An edit that somebody made in the tree and
that is not in the series is never overwritten.

The key is removed before the first file is replaced and written after the
last one, so that a tree left half way by a crash is completed by the next run.

=cut

package LazyDrop::Tree;

use strict;
use warnings FATAL => 'all';

use Exporter 'import';
use File::Basename qw(dirname);
use File::Find;

use LazyDrop::Common;
use LazyDrop::Meson;
use LazyDrop::Series qw(read_series series_digest apply_series commit_series
  write_series verify_series $series_tag);
use LazyDrop::Upstream qw(locate_upstream unpack_upstream record_upstream
  pinned);

our @EXPORT_OK = qw(prepare prepared_release overlay_files stage_upstream
  tree_inputs import_tree export_tree);

my $key_file = "$state_dir/tree.key";
my $manifest_file = "$state_dir/tree.manifest";

# That of the tree that is being put in place of another.
my $next_manifest_file = "$manifest_file.next";

# Makefiles include this one; its time stamp is that of the last change.
my $stamp_file = "$state_dir/prepared.mk";

=pod

=over

=item overlay_files()

Paths, relative to the checkout and to the tree alike, of our own files that
belong into the tree: everything below src, contrib and doc, except the tools
that make the tree, and what a test that was run by hand left.

=cut

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
					return;
				}
				return if -d $File::Find::name;

				# what editors and failed merges leave
				return if $path =~ m{(?:~|\.sw[a-p]|\.orig|\.rej|/\.?#[^/]*)$};
				push @files, $path;
			}
		},
		grep { -d } map { "$top/$_" } qw(src contrib doc));
	return @files;
}

# The link that stands for one of our files in the tree.
sub link_target
{
	my ($path) = @_;
	my $depth = 2 + ($path =~ tr{/}{});
	return ('../' x $depth) . $path;
}

# Our tools: when these change, so may the tree that they make.
sub tools
{
	return sort glob("'$top'/src/tools/lazydrop/LazyDrop/*.pm");
}

=pod

=item tree_inputs()

Paths, relative to the checkout, of our files that the tree is made from and
that are not linked into it.

=cut

sub tree_inputs
{
	return ('upstream.conf', 'patches/series',
		(map { "patches/$_.patch" } read_series("$top/patches")),
		map { substr($_, length("$top/")) } tools());
}

sub read_manifest
{
	my ($file) = @_;
	$file //= $manifest_file;
	my %manifest;
	return \%manifest unless -f $file;
	foreach my $line (split /\n/, slurp($file))
	{
		my ($digest, $mode, $path) = $line =~ /^(\w+) (\d+) (.*)$/
		  or fail("file \"$file\" is damaged",
			"Remove \"$state_dir\" and prepare again.");
		$manifest{$path} = [ $digest, $mode ];
	}
	return \%manifest;
}

sub scan_tree
{
	my ($dir) = @_;
	my %found;
	find(
		{
			no_chdir => 1,
			wanted => sub {
				my @st = lstat($File::Find::name);
				return if -d _;
				my $path = substr($File::Find::name, length($dir) + 1);
				my $digest =
				  -l _
				  ? sha256_data(readlink($File::Find::name))
				  : sha256_file($File::Find::name);
				$found{$path} = [ $digest, $st[2] & 0777 ];
			}
		},
		$dir);
	return \%found;
}

=pod

=item stage_upstream($upstream, $directory)

Unpack pristine upstream source into an empty scratch directory and verify
that it can take our files.  Returns the release.

=cut

sub stage_upstream
{
	my ($up, $dir) = @_;
	my $release = unpack_upstream($up, $dir);
	foreach my $path (overlay_files())
	{
		next unless -e "$dir/$path" || -l "$dir/$path";
		fail( "$up->{what} already has the file \"$path\" that LazyDrop adds",
			"It must be PostgreSQL's own source, without LazyDrop's patches; a prepared tree cannot be prepared again."
		);
	}
	return $release;
}

# The release of the prepared tree, or undef when there is none.
sub prepared_release
{
	return -f $key_file ? read_conf($key_file)->{release} : undef;
}

=pod

=item prepare(%options)

Make the tree, or bring it up to date.  Options: upstream (the user's
--with-upstream), force (overwrite edits), drop_commits (of an imported tree,
that have not been exported), build_tree (a build folder whose
folders and Makefile links are to follow the tree), exported (the series has
just been exported from the tree: take it as the tree's).  Returns whether
anything was changed.

=cut

sub prepare
{
	my (%opt) = @_;
	take_lock() unless $opt{exported};

	my $up = locate_upstream($opt{upstream});
	my @overlay = overlay_files();
	my %overlay = map { $_ => sha256_file("$top/$_") } @overlay;
	my %want = (
		upstream => $up->{id},
		series => series_digest("$top/patches"),
		tools => sha256_data(map { slurp($_) } tools()),
		overlay => sha256_data(map { "$_ $overlay{$_}\n" } @overlay));
	my $have = -d $tree_dir && -f $key_file ? read_conf($key_file) : {};
	my $changed = 0;

	my $stale =
	  grep { ($have->{$_} // '') ne $want{$_} } qw(upstream series tools);
	$want{release} = $have->{release};
	if ($stale || $opt{force})
	{
		# An imported tree's history follows the series.
		my $reimport = is_imported() && !$opt{exported};
		require_exported($opt{drop_commits}) if $reimport;
		$want{release} = replace_tree($up, $opt{force});

		# A source that was gone and has been fetched again may be another.
		$want{upstream} = $up->{id};
		make_history($up) if $reimport;
		$changed = 1;
	}
	$changed = 1
	  if link_overlay(\%overlay);

	my $key = join('', map { "$_ = $want{$_}\n" } sort keys %want);
	$changed = 1 if write_if_changed($key_file, $key);
	record_upstream($up);

	if ($changed || !-f $stamp_file)
	{
		spew($stamp_file,
			"# Written by prepare; its time stamp is the tree's.\n");
	}
	update_build_tree($opt{build_tree}, sha256_data($key))
	  if $opt{build_tree};
	return $changed;
}

# Stage a new tree and move it, or what of it differs, into place.
sub replace_tree
{
	my ($up, $force) = @_;
	my $stage = scratch_dir('stage');

	notice("unpacking $up->{what}");
	my $release = stage_upstream($up, $stage);
	my @patches =
	  apply_series("$top/patches", $stage, $release eq pinned()->{release});
	notice(sprintf("applied %d patch%s to PostgreSQL %s",
			scalar(@patches), @patches == 1 ? '' : 'es', $release));
	find(
		{
			no_chdir => 1,
			wanted => sub {
				return unless $File::Find::name =~ m{/meson\.build$};
				my $path = substr($File::Find::name, length($stage) + 1);
				my $text = slurp($File::Find::name);
				return unless LazyDrop::Meson::needs_rewrite($path, $text);
				spew($File::Find::name,
					LazyDrop::Meson::rewrite($path, $text));
			}
		},
		$stage);

	my $new = scan_tree($stage);
	my $old = read_manifest();
	my $started = read_manifest($next_manifest_file);
	my $manifest = join('',
		map { "$new->{$_}[0] $new->{$_}[1] $_\n" } sort keys %$new);

	if (!-d $tree_dir)
	{
		unlink($key_file, $manifest_file);
		spew($manifest_file, $manifest);
		rename($stage, $tree_dir)
		  or fail("could not rename \"$stage\" to \"$tree_dir\": $!");
		return $release;
	}

	# Find out what is to be replaced before the first file is touched.
	my (@replace, @remove, @edited);
	foreach my $path (sort keys %$new)
	{
		my $file = "$tree_dir/$path";
		my $is =
		    -l $file ? sha256_data(readlink($file))
		  : -f $file ? sha256_file($file)
		  : '';
		next
		  if $is eq $new->{$path}[0]
		  && (-l $file || ((stat($file))[2] & 0777) == $new->{$path}[1]);
		push @replace, $path;
		push @edited, $path
		  if $is ne ''
		  && $is ne $new->{$path}[0]
		  && !grep { $_->{$path} && $_->{$path}[0] eq $is } $old, $started;
	}
	foreach my $path (sort keys %{ { %$old, %$started } })
	{
		my $file = "$tree_dir/$path";
		next if $new->{$path} || -l $file || !-e $file;
		push @remove, $path;
		my $is = sha256_file($file);
		push @edited, $path
		  if !grep { $_->{$path} && $_->{$path}[0] eq $is } $old, $started;
	}
	if (@edited && !$force)
	{
		fail("the prepared tree has edits that the series does not hold",
			(map { "edited: .pg/tree/$_" } @edited),
			"Keep them as a commit and export it, or discard them with: src/tools/lazydrop/prepare --force"
		);
	}

	# Should we be interrupted, the next run must know both trees' files.
	spew($next_manifest_file, $manifest);
	unlink($key_file);
	foreach my $path (@replace)
	{
		my $file = "$tree_dir/$path";
		make_path(dirname($file));
		rename("$stage/$path", $file)
		  or fail("could not replace file \"$file\": $!");
		utime(undef, undef, $file) unless -l $file;
	}
	unlink(map { "$tree_dir/$_" } @remove);
	spew($manifest_file, $manifest);
	unlink($next_manifest_file);
	return $release;
}

# What was linked into the tree last time: path => digest of the contents.
sub read_overlay_record
{
	my %record;
	return \%record unless -f "$state_dir/tree.overlay";
	foreach my $line (split /\n/, slurp("$state_dir/tree.overlay"))
	{
		$record{$2} = $1 if $line =~ /^(\w+) (.*)$/;
	}
	return \%record;
}

# Link our files into the tree, and take out links to files that are gone.
# Returns whether anything changed.
sub link_overlay
{
	my ($overlay) = @_;
	my $changed = 0;
	my $stamp = (stat($stamp_file))[9] // 0;
	my $before = read_overlay_record();

	foreach my $path (sort keys %$overlay)
	{
		my $file = "$tree_dir/$path";
		my $target = link_target($path);
		if (-l $file)
		{
			if (readlink($file) ne $target)
			{
				unlink($file);
			}
		}
		elsif (-e $file)
		{
			fail("upstream already has the file \"$path\" that LazyDrop adds",
				"Edits to upstream's files are patches; see src/tools/lazydrop/README."
			) if read_manifest()->{$path};

			# Some editors, and "sed -i", replace a link by a file.
			fail( "\".pg/tree/$path\" is no longer a link to our \"$path\", and differs from it",
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
		if (   defined $before->{$path}
			&& $before->{$path} ne $overlay->{$path}
			&& (stat("$top/$path"))[9] <= $stamp)
		{
			utime(undef, undef, "$top/$path")
			  or fail("could not set the time stamp of \"$path\": $!");
		}
	}
	foreach my $path (sort keys %$before)
	{
		next if exists $overlay->{$path} || !-l "$tree_dir/$path";
		unlink("$tree_dir/$path");
		# folders that held nothing else go with it
		for (my $dir = dirname($path); $dir ne '.'; $dir = dirname($dir))
		{
			rmdir("$tree_dir/$dir") or last;
		}
		$changed = 1;
	}
	write_if_changed("$state_dir/tree.overlay",
		join('', map { "$overlay->{$_} $_\n" } sort keys %$overlay));
	return $changed;
}

=pod

=item import_tree($force)

Turn the prepared tree into a git work tree whose history is upstream's source
and one commit for each patch of the series.  Edits made in the tree before
stay in it, uncommitted.

=cut

sub import_tree
{
	my ($force) = @_;
	prepare(drop_commits => $force);
	require_exported($force) if is_imported();
	make_history(locate_upstream(undef));
	return;
}

sub is_imported
{
	return -d "$tree_dir/.git";
}

# Refuse to go on when an imported tree holds work that the series does not.
sub require_exported
{
	my ($force) = @_;
	fail("the imported tree belongs to another user",
		"Run src/tools/lazydrop/prepare as the user who imported it.")
	  unless -w "$tree_dir/.git";
	return if $force;
	my $unexported =
	  git($tree_dir, 'log', '--format=%h %s', "$series_tag..HEAD");
	fail("the imported tree has commits that have not been exported",
		(split /\n/, $unexported),
		"Run export, or discard them with: src/tools/lazydrop/import --force")
	  if $unexported ne ''
	  || git($tree_dir, 'rev-parse', 'HEAD') ne
	  git($tree_dir, 'rev-parse', "$series_tag^{commit}");

	# The history is made anew, and with it goes whatever else is there.
	my @others =
	  grep { !m{^refs/(?:heads/lazydrop$|tags/lazydrop/)} } split /\n/,
	  git($tree_dir, 'for-each-ref', '--format=%(refname)');
	fail("the imported tree has branches, tags or stashes of yours",
		@others,
		"Move them to another repository, or discard them with: src/tools/lazydrop/import --force"
	) if @others;
	return;
}

# Make the history and put it below the tree.
sub make_history
{
	my ($up) = @_;
	my $scratch = scratch_dir('import');
	my $release = stage_upstream($up, $scratch);
	commit_series("$top/patches", $scratch, $release,
		$release eq pinned()->{release});

	# The tree's files differ from the history's in what LazyDrop::Meson does
	# to some of them, which a filter hides.
	my @rewritten;
	foreach my $path (sort keys %{ read_manifest() })
	{
		next unless $path =~ m{(?:^|/)meson\.build$};
		my $text = LazyDrop::Meson::restore(slurp("$tree_dir/$path"));
		push @rewritten, $path
		  if LazyDrop::Meson::needs_rewrite($path, $text);
	}
	my $filter = '../../src/tools/lazydrop/meson-filter';
	git($scratch, 'config', 'filter.lazydrop.clean', "$filter clean");
	git($scratch, 'config', 'filter.lazydrop.smudge', "$filter smudge %f");
	git($scratch, 'config', 'filter.lazydrop.required', 'true');

	# nothing in the background of a folder that may be moved or given away
	git($scratch, 'config', 'gc.auto', '0');
	git($scratch, 'config', 'maintenance.auto', 'false');
	spew("$scratch/.git/info/attributes",
		"* -text -filter -ident\n"
		  . join('', map { "/$_ filter=lazydrop\n" } @rewritten));
	make_path("$scratch/.git/info");
	spew("$scratch/.git/info/exclude",
		"# our own files are links: edit and commit them in the checkout\n"
		  . join('', map { "/$_\n" } overlay_files()));
	spew("$scratch/.git/lazydrop-series",
		series_digest("$top/patches") . "\n");

	remove_tree("$tree_dir/.git");
	rename("$scratch/.git", "$tree_dir/.git")
	  or fail("could not move the history into \"$tree_dir\": $!");

	# Made anew: git takes a file for changed when the index has another size.
	unlink("$tree_dir/.git/index");
	git($tree_dir, 'reset', '-q', '--mixed');

	# git works in a directory of the same user only, and root may have given
	# the tree to the one who runs the tests.
	chown($>, -1, $tree_dir) if $> == 0;
	return;
}

=pod

=item export_tree($force)

Write the commits of an imported tree as the series.  Refuses when the tree has
uncommitted edits, or when patches/ is not what was imported.  Returns the
names of the patches.

=cut

sub export_tree
{
	my ($force) = @_;
	take_lock();
	fail("the prepared tree has not been imported",
		"Run: src/tools/lazydrop/import")
	  unless is_imported();
	my $dirty = git($tree_dir, 'status', '--porcelain',
		'--untracked-files=no');
	fail("the imported tree has edits that have not been committed",
		split /\n/, $dirty)
	  if $dirty ne '';
	my ($status, $branch) = capture({ dir => $tree_dir, stderr => 'none' },
		'git', '-c', "safe.directory=$tree_dir", 'symbolic-ref', 'HEAD');
	fail( "the imported tree is not on its branch \"lazydrop\"",
		"Finish the rebase, or check the branch out.")
	  if $status != 0
	  || $branch ne "refs/heads/lazydrop\n"
	  || grep { -e "$tree_dir/.git/$_" } qw(rebase-merge rebase-apply);
	my $record = "$tree_dir/.git/lazydrop-series";
	fail( "patches/ has changed since the tree was imported",
		"Bring the change into the tree by hand and export with --force, or discard the tree's commits with: src/tools/lazydrop/import --force"
	  )
	  if !$force
	  && slurp($record) ne series_digest("$top/patches") . "\n";

	# Written apart and verified before patches/ is touched.
	my $scratch = scratch_dir('export');
	spew("$scratch/series", slurp("$top/patches/series"));
	my @names = write_series($tree_dir, $scratch);
	verify_series($tree_dir, $scratch);

	write_if_changed("$top/patches/$_.patch", slurp("$scratch/$_.patch"))
	  foreach @names;
	write_if_changed("$top/patches/series", slurp("$scratch/series"));
	my %keep = map { $_ => 1 } @names;
	foreach my $file (glob("'$top'/patches/*.patch"))
	{
		my ($name) = $file =~ m{([^/]*)\.patch$};
		unlink($file) unless $keep{$name};
	}
	git($tree_dir, 'tag', '-f', $series_tag);
	spew($record, series_digest("$top/patches") . "\n");
	prepare(exported => 1);
	return @names;
}

# A VPATH build folder holds the tree's folders and a link to each Makefile.
sub update_build_tree
{
	my ($dir, $id) = @_;
	my $record = "$dir/.lazydrop_tree";
	return if !-d $dir || (-f $record && slurp($record) eq "$id\n");
	run({ dir => $dir }, 'sh', "$tree_dir/config/prep_buildtree",
		$tree_dir, '.');
	spew($record, "$id\n");
	return;
}

=pod

=back

=cut

1;
