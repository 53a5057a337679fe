# Copyright (c) 2026, LazyDrop developers

# Find, fetch, verify and unpack PostgreSQL's source.  It comes from one of three
# places:
#
# archive    the orig tarball of a Debian source package, fetched with apt
# tarball    a file that the user named
# dir        a source tree that the user named; it is copied, never written to

package LazyDrop::Upstream;

use strict;
use warnings FATAL => 'all';

use Cwd qw(abs_path);
use Exporter 'import';
use File::Basename qw(basename);
use File::Find;
use File::Spec;

use LazyDrop::Common;

our @EXPORT_OK = qw(locate_upstream locate_release unpack_upstream
  record_upstream move_pin private_apt pinned);

# The pin: upstream.conf as a hash reference.
sub pinned
{
	my $conf = read_conf("$top/upstream.conf");
	foreach my $name (qw(package release sha256 tested))
	{
		fail("file \"$top/upstream.conf\" does not set \"$name\"")
		  unless defined $conf->{$name};
	}
	return $conf;
}

# Pin another release: the one that the series has been exported for.
sub move_pin
{
	my ($release, $sha256) = @_;
	my %new = (
		package => 'postgresql-' . major($release),
		release => $release,
		sha256 => $sha256);
	my $text = slurp("$top/upstream.conf");
	$text =~ s/^$_ = .*/$_ = $new{$_}/m foreach keys %new;
	notice("upstream.conf pins PostgreSQL $release now")
	  if write_if_changed("$top/upstream.conf", $text);
	return;
}

# 18 of 18.6, 19 of 19beta1
sub major
{
	return $_[0] =~ /^(\d+)/ ? $1 : '';
}

# Release that a source tree says it is, from its configure script, or undef.
sub release_of
{
	my ($dir) = @_;
	return undef unless -f "$dir/configure";
	return slurp("$dir/configure") =~ /^PACKAGE_VERSION='([^']*)'/m
	  ? $1
	  : undef;
}

# Decide where upstream's source comes from, fetching it if need be, and return
# a hash reference: kind, path, id (a digest that identifies the contents), what
# (for messages).  The argument is the user's --with-upstream, or undef: then what
# the last prepare used, else the archive.  Nothing is unpacked or recorded here.
sub locate_upstream
{
	my ($argument) = @_;
	my $record = "$state_dir/upstream";
	my $last = -f $record ? read_conf($record) : undef;

	if (!defined $argument)
	{
		my $pin = pinned();
		return from_archive($pin->{package}, $pin->{release}, $last)
		  if !$last || $last->{kind} eq 'archive';

		# A tree that is there already can do without its source.
		return {
			%$last,
			missing => 1,
			what => "upstream source \"$last->{path}\""
		  }
		  unless -e $last->{path};
		$argument = $last->{path};
	}

	my $path = File::Spec->rel2abs($argument);
	fail("upstream source \"$argument\" does not exist") unless -e $path;
	return from_directory($path) if -d $path;
	fail("upstream source \"$argument\" is neither a file nor a directory")
	  unless -f $path;
	return from_tarball($path, $last);
}

# The same for a release of any major version.
sub locate_release
{
	my ($release) = @_;
	my $package = 'postgresql-' . major($release);
	my $up = from_archive($package, $release, undef);
	fail("the archive has no PostgreSQL $release",
		'It offers ' . basename($up->{path}) . '; name a tarball instead.')
	  unless $up->{path} =~ /_\Q$release\E\.orig\./;
	return $up;
}

# Remember what the prepared tree was made from.
sub record_upstream
{
	my ($up) = @_;
	write_if_changed(
		"$state_dir/upstream",
		join('',
			map  { "$_ = $up->{$_}\n" }
			grep { defined $up->{$_} } qw(kind path id stamp wanted)));
	return;
}

# A size and a time stamp tell cheaply that a file is the one already hashed.
sub from_tarball
{
	my ($path, $last) = @_;
	my $pin = pinned();
	my @st = stat($path) or fail("could not stat \"$path\": $!");
	my $stamp = "$st[7]-$st[9]";
	my $id =
		 $last
	  && $last->{path} eq $path
	  && $last->{stamp} eq $stamp ? $last->{id} : sha256_file($path);

	# Debian's name of it and PostgreSQL's own; the contents are the same.
	fail(
		"file \"$path\" has the name of the pinned release but not its contents",
		"Expected SHA-256 $pin->{sha256}",
		"Found SHA-256    $id")
	  if $id ne $pin->{sha256}
	  && grep { basename($path) eq $_ }
	  "$pin->{package}_$pin->{release}.orig.tar.bz2",
	  "postgresql-$pin->{release}.tar.bz2";
	return {
		kind => 'tarball',
		path => $path,
		id => $id,
		stamp => $stamp,
		what => "tarball \"$path\""
	};
}

# A directory is identified by names, sizes, times and modes, not contents:
# this runs at every make.
sub from_directory
{
	my ($path) = @_;
	$path = abs_path($path);
	my $release = release_of($path)
	  // fail("directory \"$path\" is not a PostgreSQL source tree");
	foreach my $made (qw(config.status GNUmakefile src/include/pg_config.h))
	{
		fail(
			"source tree \"$path\" has been configured in place (it has \"$made\")",
			"Run \"make distclean\" there, or name a pristine tree or a tarball."
		) if -e "$path/$made";
	}
	my @all;
	find(
		{
			no_chdir => 1,
			wanted => sub {
				$File::Find::prune = 1, return
				  if $File::Find::name eq "$path/.git";
				my @st = lstat($File::Find::name);
				push @all, "$File::Find::name $st[2] $st[7] $st[9]"
				  if @st && !-d _;
			}
		},
		$path);
	return {
		kind => 'dir',
		path => $path,
		id => sha256_data(join("\n", sort @all)),
		stamp => $release,
		what => "directory \"$path\""
	};
}

# Fill an empty directory, the caller's scratch, with upstream's pristine source.
# Returns the release, which must be of the pinned major version unless $any.
sub unpack_upstream
{
	my ($up, $dir, $any) = @_;
	my $pin = pinned();

	if ($up->{missing})
	{
		fail(
			"$up->{what}, which the last prepare used, is gone",
			"Name another one with --with-upstream=, or remove \"$state_dir/upstream\" to use the archive's."
		) if $up->{kind} ne 'archive';
		%$up = %{ from_archive($pin->{package}, $pin->{release}, undef) };
	}

	if ($up->{kind} eq 'dir')
	{
		run({}, 'cp', '-a', "$up->{path}/.", $dir);
		run({}, 'chmod', '-R', 'u+w', $dir);
		remove_tree("$dir/.git");
	}
	else
	{
		my ($status, $out) = capture({}, 'tar', '-xf', $up->{path},
			'--no-same-owner', '-C', $dir, '--strip-components=1');
		my ($reason) = grep { /\S/ } split(/\n/, $out), "status $status";
		fail(
			"could not unpack $up->{what}: $reason",
			$up->{kind} eq 'archive'
			? "Remove the file; it will be fetched again."
			: "The file may be truncated or not a tarball; get it again."
		) if $status != 0;
	}

	my $release = release_of($dir)
	  // fail("$up->{what} does not hold a PostgreSQL source tree");
	return $release if $any;
	my $major = major($pin->{release});
	fail(
		"$up->{what} is PostgreSQL $release, but LazyDrop needs release $major.x",
		"The series was made on release $pin->{release}; to move it: src/tools/lazydrop/rebase."
	) unless $release =~ /^\Q$major\E\.\d+$/;
	if ($release ne $pin->{release})
	{
		my $tested = grep { $_ eq $release } split ' ', $pin->{tested};
		notice( "using PostgreSQL $release; the series was made on "
			  . "$pin->{release}"
			  . ($tested ? "" : " and has not been tested with $release"));
	}
	return $release;
}

# --- the machine's archive --------------------------------------------------------

# Suites to try after the machine's own, oldest first.  Aliases, so that no
# code name has to be kept up to date here.
my @newer_suites = qw(stable testing unstable);

# The only key that is trusted.
my $keyring = '/usr/share/keyrings/debian-archive-keyring.gpg';

# An apt client of our own below a directory: entries derived from the machine's,
# with lists and downloads there.  The machine's configuration is read, but not
# written to.  Returns the options for apt's commands, and a function that adds the
# entries of a suite, or of the machine's own ones ("own"), and fetches their lists;
# it returns what apt complained about.
sub private_apt
{
	my ($dir, $type, @settings) = @_;
	remove_tree("$dir/sources");
	make_path("$dir/lists/partial", "$dir/cache/archives/partial",
		"$dir/sources");

	# What the archive entries of this machine are, as apt reads them.
	my (undef, $out) = capture(
		{ stderr => 'none' }, 'apt-get',
		'indextargets', '--no-release-info',
		'--format', '$(REPO_URI) $(RELEASE) $(COMPONENT)',
		'Created-By: Packages');
	my (%own, %main);
	foreach (split /\n/, $out)
	{
		my ($uri, $suite, $component) = split / /;
		next unless ($component // '') eq 'main';
		$own{"$uri $suite"} = 1;
		$main{$uri} = 1 unless $suite =~ m{[-/]|^nodistro$};
	}

	# Read after the machine's configuration.  The hooks are the machine's own and
	# concern its own lists.
	spew(
		"$dir/apt.conf",
		join('',
			map { "$_;\n" } '#clear APT::Update::Pre-Invoke',
			'#clear APT::Update::Post-Invoke',
			'#clear APT::Update::Post-Invoke-Success',
			'Dir::Etc::sourcelist "/dev/null"',
			"Dir::Etc::sourceparts \"$dir/sources\"",
			"Dir::State::lists \"$dir/lists\"",
			"Dir::Cache \"$dir/cache\"",
			'Acquire::Languages "none"',
			'Acquire::IndexTargets::deb::DEP-11::DefaultEnabled "false"',
			'Acquire::Retries "2"',
			'Acquire::AllowInsecureRepositories "false"',
			'Acquire::AllowWeakRepositories "false"',
			'Acquire::AllowDowngradeToInsecureRepositories "false"',
			'APT::Get::AllowUnauthenticated "false"',
			($> == 0 ? 'APT::Sandbox::User "root"' : ()),
			@settings));
	my @conf = ('-c', "$dir/apt.conf");
	my $add = sub {
		my ($suite) = @_;
		my @entries = $suite eq 'own' ? sort keys %own : map { "$_ $suite" }
		  sort keys %main;
		return () unless @entries;
		spew("$dir/sources/$suite.list",
			join('', map { "$type [signed-by=$keyring] $_ main\n" } @entries)
		);
		my (undef, $said) = capture({}, 'apt-get', @conf, '-q', 'update');
		return grep { /^(?:E|W|Err)/ } split /\n/, $said;
	};
	return (\@conf, $add, scalar(keys %own));
}

# What to do when there is no source to be had.
sub no_source
{
	my ($message, @details) = @_;
	my $pin = pinned();
	fail($message, @details,
			"Get PostgreSQL $pin->{release}'s source on another machine, as "
		  . "$pin->{package}_$pin->{release}.orig.tar.bz2 from Debian or "
		  . "postgresql-$pin->{release}.tar.bz2 from PostgreSQL, and say "
		  . "--with-upstream=FILE (with make: UPSTREAM=FILE).");
}

# Of [ what, release ] the wanted release is preferred, then the newest.
sub best
{
	my ($release, @found) = @_;
	my ($best) = sort {
			 ($b->[1] eq $release) <=> ($a->[1] eq $release)
		  || ($b->[1] =~ /(\d+)$/)[0] <=> ($a->[1] =~ /(\d+)$/)[0]
	} @found;
	return $best;
}

# Tarball of the machine's archive: the wanted release from the cache, or fetched into
# it; another one that is cached when that is what the last prepare got for it as well,
# or when none can be fetched.
sub from_archive
{
	my ($package, $release, $last) = @_;
	make_path($cache_dir);
	my $cached = best(
		$release,
		map {
			/_([\d.]+(?:beta\d+|rc\d+)?)\.orig\.tar\.\w+$/ ? [ $_, $1 ] : ()
		} glob("'$cache_dir'/${package}_*.orig.tar.*"));
	my $as_before =
		 $last
	  && $last->{path} =~ m{/\Q$package\E_}
	  && ($last->{wanted} // $release) eq $release;
	return { %$last, missing => 1, what => "the archive's tarball" }
	  if $as_before && !$cached;
	my $path = $cached ? $cached->[0] : '';
	if (!$cached || ($cached->[1] ne $release && !$as_before))
	{
		local $LazyDrop::Common::throw_errors = $cached ? 1 : 0;
		$path = eval { fetch($package, $release) } // $path;
	}
	return {
		%{ from_tarball($path, $last) },
		kind => 'archive',
		wanted => $release
	};
}

# Fetch the orig tarball into the cache with apt.  apt verifies the archive's
# signature; the digest in the signed index is compared here.
sub fetch
{
	my ($package, $release) = @_;
	my ($have_apt) = capture({}, 'sh', '-c', 'command -v apt-get');
	no_source("there is no upstream source, and this system has no apt-get")
	  if $have_apt != 0;
	my ($conf, $add, $entries) = private_apt("$state_dir/apt", 'deb-src');
	no_source("could not find Debian's archive in this machine's apt sources")
	  unless $entries;

	my %problems;
	foreach my $suite ('own', @newer_suites)
	{
		notice("looking for $package in "
			  . ($suite eq 'own' ? "this machine's suites" : $suite));
		$problems{$_} = 1 foreach $add->($suite);
		my $source = newest_source($conf, $package, $release) or next;
		my ($version, $found, $sha) = @$source;

		notice("fetching the source of PostgreSQL $found");
		my $into = scratch_dir('fetch');
		my ($status, $out) = capture({ dir => $into },
			'apt-get', @$conf, '-q', 'source',
			'--download-only', '--tar-only', "$package=$version");
		my ($file) = glob("'$into'/*.orig.tar.*");
		no_source("could not fetch the source package $package",
			grep { /^(?:E|W|Err)/ } split /\n/, $out)
		  if $status != 0 || !$file;
		fail("the tarball that apt fetched is not the one in its index")
		  unless sha256_file($file) eq $sha;
		my $path = "$cache_dir/" . basename($file);
		run({}, 'cp', $file, "$path.tmp.$$");
		rename("$path.tmp.$$", $path)
		  or fail("could not rename file \"$path.tmp.$$\" to \"$path\": $!");
		return $path;
	}
	no_source(
		"could not find $package in this machine's archive",
		(sort keys %problems)
		  [ 0 .. (keys %problems > 3 ? 2 : keys(%problems) - 1) ]);
	return;
}

# The source package's version to fetch, its upstream release and its
# tarball's digest, from the lists that apt verified, if there is any.
sub newest_source
{
	my ($conf, $package, $release) = @_;
	my (undef, $out) = capture({ stderr => 'none' },
		'apt-cache', @$conf, 'showsrc', '--only-source', $package);
	my @found;
	foreach my $stanza (split /\n\n+/, $out)
	{
		next unless $stanza =~ /^Package: \Q$package\E$/m;
		my ($version) = $stanza =~ /^Version: (\S+)$/m or next;
		push @found, [ $version, $2, $1 ]
		  if $stanza =~
		  /^ ([0-9a-f]{64}) \d+ \S+_([\d.~a-z]+)\.orig\.tar\.\w+$/m;
	}
	return best($release, @found);
}

1;
