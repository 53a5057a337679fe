# Copyright (c) 2026, LazyDrop developers

# Finds, fetches, verifies and unpacks PostgreSQL's source, which comes from one of three
# places:
#
# archive    the orig tarball of a Debian source package, fetched with apt
# tarball    a file that the user has named
# dir        a source tree that the user has named; it is only read

package LazyDrop::Upstream;

use strict;
use warnings FATAL => 'all';

use Exporter 'import';
use File::Spec;

use LazyDrop::Common;

our @EXPORT = qw(locate_upstream from_archive unpack_upstream at_hand
  choose_major_of release_in major_of @suites source_text move_pin private_apt versions pinned);

# Returns the pin of the major version, as a hash reference: release, sha256, tested.
sub pinned
{
	my $conf = read_conf("$top/upstream.conf");
	return { map { $_ => $conf->{"${_}_$major"} // '' }
		  qw(release sha256 tested) };
}

# Pin another release, for which the series has been exported.
sub move_pin
{
	my ($release, $sha256) = @_;
	my $text = slurp("$top/upstream.conf");
	$text .= "\nrelease_$major = \nsha256_$major = \ntested_$major = \n"
	  if $text !~ /^release_$major = /m;
	$text =~ s/^(release_$major =).*/$1 $release/m;
	$text =~ s/^(sha256_$major =).*/$1 $sha256/m;
	notice("upstream.conf pins PostgreSQL $release now")
	  if write_if_changed("$top/upstream.conf", $text);
	return;
}

# Returns the major version of a release: 18 for both 18.6 and 18beta1.
sub major_of
{
	return ($_[0] =~ /^(\d+)/)[0];
}

# Returns the name of Debian's source package for a release.
sub package_of
{
	return 'postgresql-' . major_of($_[0]);
}

# Returns the release of a source, which is a tarball or a directory, according to its
# configure script; or undef.  Errors are reported when it is unpacked.
sub release_in
{
	my ($path) = @_;
	my $text = '';
	$text = slurp("$path/configure") if -f "$path/configure";
	(undef, $text) =
	  capture('tar', '-xOf', $path, '--wildcards',
		'--occurrence=1', '*/configure')
	  if -f $path;
	return ($text =~ /^PACKAGE_VERSION='([^']*)'/m)[0];
}

# Select the major version of a source that the user has named.
sub choose_major_of
{
	my ($path) = @_;
	my $release = release_in($path) // return;
	my $its_major = major_of($release);
	fail("\"$path\" is PostgreSQL $release, but PG_MAJOR is $ENV{PG_MAJOR}")
	  if ($ENV{PG_MAJOR} || $its_major) ne $its_major;
	choose_major($its_major,
		what => "\"$path\" is PostgreSQL $release, which");
	return;
}

# Returns the release of a directory, which must have one.
sub release_of
{
	my ($dir, $path) = @_;
	return release_in($dir)
	  // fail("\"$path\" is not a PostgreSQL source tree");
}

# Determine the location of upstream's source, and fetch it if necessary.  Returns a hash
# reference: kind, path, id (a digest that identifies the contents), wanted (the release
# that was requested from the archive).  The argument is the user's --with-upstream, or
# undef.  In the latter case, use the source of the last prepare, or else the archive.
# Nothing is unpacked or recorded here.
sub locate_upstream
{
	my ($argument) = @_;
	my $last = -f $key_file ? read_conf($key_file) : {};
	if (!defined $argument)
	{
		my $release = pinned()->{release}
		  || fail("PostgreSQL $major is not served before it is exported");
		return from_archive($release, $last)
		  if ($last->{kind} // 'archive') eq 'archive';
		$argument = $last->{path};
		return { %$last, missing => 1 } unless -e $argument;
	}
	fail("upstream source \"$argument\" does not exist") unless -e $argument;
	my $path = File::Spec->rel2abs($argument);
	return -d $path ? from_directory($path) : from_tarball($path);
}

# Returns whether the source of the major version is available without fetching it.
sub at_hand
{
	my $release = pinned()->{release};
	my $package = package_of($release);
	return -f $key_file
	  || defined((glob("'$cache_dir'/${package}_$release.orig.tar.*"))[0]);
}

# Returns the description of a source as "name = value" lines, for the key of the tree
# that is made from it, and for its commit.
sub source_text
{
	my ($up) = @_;
	return join '', map { "$_ = $up->{$_}\n" }
	  grep { defined $up->{$_} } qw(kind path id wanted);
}

# The pinned release may have Debian's name or PostgreSQL's own; the contents are the
# same.
sub from_tarball
{
	my ($path) = @_;
	my $pin = pinned();
	my $id = sha256_hex(slurp($path));
	fail(
		"file \"$path\" has the name of the pinned release but not its contents",
		"Expected SHA-256 $pin->{sha256}",
		"Found SHA-256    $id")
	  if $id ne $pin->{sha256}
	  && basename($path) =~
	  /^postgresql-(?:\d+_)?\Q$pin->{release}\E(?:\.orig)?\.tar\.bz2$/;
	return { kind => 'tarball', path => $path, id => $id };
}

# A directory is identified by names, sizes, times and modes, not by contents, because
# this function is called in every run of make.
sub from_directory
{
	my ($path) = @_;
	release_of($path, $path);
	fail(
		"source tree \"$path\" has been configured in place",
		"Run \"make distclean\" there, or name a pristine tree or a tarball."
	) if -e "$path/config.status";
	my @files = qw(-name .git -prune -o ! -type d -printf);
	my $list = run('find', "$path/", @files, '%P %m %s %T@\n');
	my $id = sha256_hex(sort split /^/, $list);
	return { kind => 'dir', path => $path, id => $id };
}

# Provide upstream's pristine source in a directory, which is a scratch directory unless
# the source is a directory already.  Returns the directory and the release, which must be
# of the pinned major version unless $any is set.
sub unpack_upstream
{
	my ($up, $any) = @_;
	my $pin = pinned();
	if ($up->{missing})
	{
		fail(
			"upstream source \"$up->{path}\", which the last prepare used, is gone",
			"Name another one with --with-upstream=, or remove \"$key_file\" to use the archive's."
		) if $up->{kind} ne 'archive';
		%$up = %{ from_archive($pin->{release}, {}) };
	}

	my $path = $up->{path};
	my $dir = $path;
	if ($up->{kind} ne 'dir')
	{
		notice("unpacking \"$path\"");
		$dir = scratch_dir();
		my ($status, $out) = capture('tar', '-xf', $path, '--no-same-owner',
			'-C', $dir, '--strip-components=1');
		fail(
			"could not unpack \"$path\"",
			split(/\n/, $out),
			'The file may be truncated or not a tarball; remove it, or get it again.'
		) if $status != 0;
	}

	my $release = release_of($dir, $path);
	return ($dir, $release) if $any;
	fail(
		"\"$path\" is PostgreSQL $release, but a release $major.x is needed",
		"The series was made on release $pin->{release}; to move it: src/tools/lazydrop/rebase."
	) unless $release =~ /^\Q$major\E\.\d+$/;
	my $tested = " $pin->{tested} " =~ / \Q$release\E /;
	notice("using PostgreSQL $release; the series was made on $pin->{release}"
		  . ($tested ? '' : " and has not been tested with $release"))
	  if $release ne $pin->{release};
	return ($dir, $release);
}

# The suites of this machine, and the suites to try after them, oldest first.  These are
# aliases, so that no code name has to be kept up to date here.
our @suites = qw(own stable testing unstable);

# The only trusted key.
my $keyring = '/usr/share/keyrings/debian-archive-keyring.gpg';

# Set up a private apt client below a directory: its entries are derived from this
# machine's, and its lists and downloads are stored there.  This machine's configuration
# is read, but not changed.  $types is "deb", "deb-src", or both separated by a space.
# Returns the options for apt's commands, and a function that adds the entries of a suite,
# or of this machine ("own"), to $dir/sources and fetches their lists.  That function
# returns the errors reported by apt.
sub private_apt
{
	my ($dir, $types, @settings) = @_;
	my @types = split / /, $types;
	remove_tree("$dir/sources");
	make_path("$dir/lists/partial", "$dir/cache/archives/partial",
		"$dir/sources");

	# The archive entries of this machine, as apt reads them.
	my $format = '$(REPO_URI) $(RELEASE) $(COMPONENT)';
	my (undef, $out) = capture(qw(apt-get indextargets --no-release-info),
		'--format', $format, 'Created-By: Packages');
	my (%own, %main);
	while ($out =~ /^(\S+) (\S+) main$/mg)
	{
		my ($uri, $suite) = ($1, $2);
		$own{"$uri $suite"} = 1;
		$main{$uri} = 1 unless $suite =~ m{[-/]|^nodistro$};
	}

	# This file is read after this machine's configuration.  The hooks belong to this
	# machine and concern its own lists.
	spew("$dir/apt.conf", <<"END" . join('', map { "$_;\n" } @settings));
#clear APT::Update::Pre-Invoke;
#clear APT::Update::Post-Invoke;
#clear APT::Update::Post-Invoke-Success;
Dir::Etc::sourcelist "/dev/null";
Dir::Etc::sourceparts "$dir/sources";
Dir::State::lists "$dir/lists";
Dir::Cache "$dir/cache";
Acquire::Languages "none";
Acquire::IndexTargets::deb::DEP-11::DefaultEnabled "false";
Acquire::Retries "2";
Acquire::AllowInsecureRepositories "false";
Acquire::AllowWeakRepositories "false";
Acquire::AllowDowngradeToInsecureRepositories "false";
APT::Get::AllowUnauthenticated "false";
APT::Sandbox::User "root";
END
	my @conf = ('-c', "$dir/apt.conf");
	my $add = sub {
		my ($suite) = @_;
		notice("reading the lists of packages ($suite)");
		my @entries =
		  map { "[signed-by=$keyring] $_ main\n" }
		  sort($suite eq 'own' ? keys %own : map { "$_ $suite" } keys %main);
		spew("$dir/sources/$suite.list",
			join('', map { my $type = $_; map { "$type $_" } @entries } @types));
		return complaints((capture('apt-get', @conf, '-q', 'update'))[1]);
	};
	return (\@conf, $add);
}

# Returns the first few different errors in the output of apt.
sub complaints
{
	my %seen;
	my @all = grep { /^(?:E|W|Err)/ && !$seen{$_}++ } split /\n/, $_[0];
	return splice(@all, 0, 3);
}

# Returns the versions of a package in apt's lists.
sub versions
{
	my ($conf, $package) = @_;
	my (undef, $out) = capture('apt-cache', @$conf, 'madison', $package);
	return $out =~ /^\s*\Q$package\E \| *(\S+) \|/mg;
}

# Explain how to proceed if no source is available.
sub no_source
{
	my ($message, @details) = @_;
	my $release = pinned()->{release};
	my $package = package_of($release);
	fail($message, @details,
		"Get PostgreSQL ${release}'s source on another machine, as ${package}_$release.orig.tar.bz2 from Debian or postgresql-$release.tar.bz2 from PostgreSQL, and say --with-upstream=FILE (with make: UPSTREAM=FILE)."
	);
}

# Returns the version of a package that belongs to the release, or else the newest
# version.
sub best
{
	my ($release, @versions) = @_;
	my $minor = sub { $_[0] =~ /(\d+)-/ ? $1 : 0 };
	my @newest = sort { $minor->($b) <=> $minor->($a) } @versions;
	return (grep({ /^\Q$release\E-/ } @versions), @newest)[0];
}

# Returns the tarball from this machine's archive: the requested release in the cache, or
# the file that the last prepare has used for it; otherwise fetch it into the cache.
sub from_archive
{
	my ($release, $last) = @_;
	make_path($cache_dir);
	my $package = package_of($release);
	my ($path) = glob("'$cache_dir'/${package}_$release.orig.tar.*");
	$path //= $last->{path} if ($last->{wanted} // '') eq $release;
	return { %$last, missing => 1 } if $path && !-e $path;
	$path //= fetch($package, $release);
	my $up = from_tarball($path);
	return { %$up, kind => 'archive', wanted => $release };
}

# Fetch the orig tarball into the cache with apt, which verifies it with the archive's
# signature.  The digest of the pinned release is also known here.
sub fetch
{
	my ($package, $release) = @_;
	no_source("there is no upstream source, and this system has no apt-get")
	  unless grep { -x "$_/apt-get" } File::Spec->path;
	my ($conf, $add) = private_apt("$state_dir/apt", 'deb-src');
	my @problems;
	foreach my $suite (@suites)
	{
		push @problems, $add->($suite);
		my $version = best($release, versions($conf, $package)) // next;

		notice("fetching the source of $package $version");
		my $into = scratch_dir();
		my ($status, $out) =
		  capture('env', '-C', $into, 'apt-get', @$conf,
			qw(-q source --download-only --tar-only),
			"$package=$version");
		my ($file) = glob("'$into'/*.orig.tar.*");
		no_source("could not fetch the source package $package",
			complaints($out))
		  if $status != 0 || !$file;
		from_tarball($file);
		my $path = "$cache_dir/" . basename($file);
		spew($path, slurp($file));
		return $path;
	}
	no_source("could not find $package in this machine's archive",
		complaints(join "\n", @problems));
	return;
}

1;
