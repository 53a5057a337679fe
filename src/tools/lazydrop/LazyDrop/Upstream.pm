# Copyright (c) 2026, LazyDrop developers

=pod

=head1 NAME

LazyDrop::Upstream - find, fetch, verify and unpack PostgreSQL's source

=head1 DESCRIPTION

Upstream's source comes from one of three places:

=over

=item archive

The orig tarball of a Debian source package.  The ordinary apt client fetches
it, with a configuration of its own: sources derived from those that the
machine already trusts, lists and cache below .pg/apt.  The machine's own
configuration, lists and cache are only read.  apt checks the signatures, and
the digest of what it fetched against the signed index.

=item tarball

A file that the user named.

=item directory

A source tree that the user named; it is copied, never written to.

=back

=cut

package LazyDrop::Upstream;

use strict;
use warnings FATAL => 'all';

use Exporter 'import';
use File::Basename qw(basename);
use File::Find;
use Cwd qw(abs_path);
use File::Spec;

use LazyDrop::Common;

our @EXPORT_OK = qw(locate_upstream unpack_upstream record_upstream release_of
  derive_sources pinned);

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

# Release that a source tree says it is, from its configure script, or undef.
sub release_of
{
	my ($dir) = @_;
	return undef unless -f "$dir/configure";
	return slurp("$dir/configure") =~ /^PACKAGE_VERSION='([^']*)'/m
	  ? $1
	  : undef;
}

=pod

=over

=item locate_upstream($argument)

Decide where upstream's source comes from, fetching it if need be, and return
a hash reference: kind (tarball or dir), path, id (what identifies the
contents: a digest), what (for messages).  $argument is the user's
--with-upstream, or undef: then what the last prepare used, else the archive.
Nothing is unpacked and nothing is recorded here.

=cut

sub locate_upstream
{
	my ($argument) = @_;
	my $record = "$state_dir/upstream";
	my $last = -f $record ? read_conf($record) : undef;

	if (!defined $argument)
	{
		return from_archive($last) if !$last || $last->{kind} eq 'archive';

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

# Remember what the prepared tree was made from.
sub record_upstream
{
	my ($up) = @_;
	write_if_changed("$state_dir/upstream",
		join('', map { "$_ = $up->{$_}\n" } qw(kind path id stamp)));
	return;
}

# Size and time stamp, to see cheaply that a file is the one already hashed.
sub file_stamp
{
	my ($path) = @_;
	my @st = stat($path) or fail("could not stat \"$path\": $!");
	return "$st[7]-$st[9]";
}

# Names under which the pinned release's tarball is known, Debian's and
# PostgreSQL's own; the contents are the same.
sub is_pinned_name
{
	my ($path) = @_;
	my $pin = pinned();
	my $name = basename($path);
	return $name eq "$pin->{package}_$pin->{release}.orig.tar.bz2"
	  || $name eq "postgresql-$pin->{release}.tar.bz2";
}

sub from_tarball
{
	my ($path, $last) = @_;
	my $stamp = file_stamp($path);
	my $id =
	    $last
	  && $last->{path} eq $path
	  && $last->{stamp} eq $stamp ? $last->{id} : sha256_file($path);
	if (is_pinned_name($path) && $id ne pinned()->{sha256})
	{
		fail( "file \"$path\" has the name of the pinned release but not its contents",
			"Expected SHA-256 " . pinned()->{sha256},
			"Found SHA-256    $id");
	}
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
		fail( "source tree \"$path\" has been configured in place (it has \"$made\")",
			"Run \"make distclean\" there, or name a pristine tree or a tarball."
		) if -e "$path/$made";
	}
	my @all;
	find(
		{
			no_chdir => 1,
			wanted => sub {
				if ($File::Find::name eq "$path/.git")
				{
					$File::Find::prune = 1;
					return;
				}
				my @st = lstat($File::Find::name);
				return if !@st || -d _;
				push @all, "$File::Find::name $st[2] $st[7] $st[9]";
			}
		},
		$path);
	my $id = sha256_data(join("\n", sort @all));
	return {
		kind => 'dir',
		path => $path,
		id => $id,
		stamp => $release,
		what => "directory \"$path\""
	};
}

=pod

=item unpack_upstream($upstream, $directory)

Fill an empty directory with upstream's pristine source, and check that it is
an 18.x without any of our patches.  Returns the release.  On an error nothing
is cleaned up here: the directory is the caller's scratch.

=cut

sub unpack_upstream
{
	my ($up, $dir) = @_;
	my $pin = pinned();

	if ($up->{missing})
	{
		fail( "$up->{what}, which the last prepare used, is gone",
			"Name another one with --with-upstream=, or remove \"$state_dir/upstream\" to use the archive's."
		) if $up->{kind} ne 'archive';
		%$up = %{ from_archive(undef) };
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
		if ($status != 0)
		{
			my ($reason) = grep { /\S/ } split /\n/, $out;
			fail(
				"could not unpack $up->{what}: "
				  . ($reason // "status $status"),
				$up->{kind} eq 'archive'
				? "Remove the file; it will be fetched again."
				: "The file may be truncated or not a tarball; get it again.");
		}
	}

	my $release = release_of($dir)
	  // fail("$up->{what} does not hold a PostgreSQL source tree");
	fail( "$up->{what} is PostgreSQL $release, but LazyDrop needs release 18.x",
		"The series was made on release $pin->{release}.")
	  unless $release =~ /^18\.\d+$/;
	if ($release ne $pin->{release})
	{
		my $tested = grep { $_ eq $release } split ' ', $pin->{tested};
		notice("using PostgreSQL $release; the series was made on "
			  . "$pin->{release}"
			  . ($tested ? "" : " and has not been tested with $release"));
	}
	return $release;
}

# ---------------------------------------------------------------------------
# The machine's archive
# ---------------------------------------------------------------------------

# Suites to try after the machine's own, oldest first.  Aliases, so that no
# code name has to be kept up to date here.
my @newer_suites = qw(stable testing unstable);

=pod

=item derive_sources($etc_apt, $codename)

Read the sources.list and sources.list.d of an apt configuration directory and
return the stanzas (deb822 text) with which source packages can be fetched, as
array references of stanzas in the order in which to try them: the machine's
own suites, then each newer suite.  Only entries of component main whose suite
is one of Debian's names are taken; whether the archive is Debian's is seen when
apt has its Release file.  Options that turn signature checks off are dropped.

=cut

sub derive_sources
{
	my ($etc, $codename) = @_;
	my @entries;

	my @lists = ("$etc/sources.list", sort glob("'$etc'/sources.list.d/*"));
	foreach my $file (@lists)
	{
		next unless -f $file && -r $file;
		push @entries, $file =~ /\.sources$/
		  ? parse_deb822(slurp($file))
		  : $file =~ /\.list$/ ? parse_one_line(slurp($file))
		  : ();
	}

	my %known = map { $_ => 1 } @newer_suites, 'oldstable', 'sid', $codename;
	my (@own, %newer);
	foreach my $entry (@entries)
	{
		next unless grep { $_ eq 'main' } @{ $entry->{components} };
		foreach my $suite (@{ $entry->{suites} })
		{
			(my $base = $suite) =~ s{(?:-updates|-security|/updates)$}{};
			next unless $known{$base};
			push @own, stanza($entry, $suite);
			next if $base ne $suite;
			$newer{$_}{ stanza($entry, $_) } = 1 foreach @newer_suites;
		}
	}
	return ([@own], map { [ sort keys %{ $newer{$_} } ] } @newer_suites);
}

sub stanza
{
	my ($entry, $suite) = @_;
	return join('',
		"Types: deb-src\n",
		"URIs: @{ $entry->{uris} }\n",
		"Suites: $suite\n",
		"Components: main\n",
		map { "$_:$entry->{fields}{$_}\n" }
		  sort keys %{ $entry->{fields} });
}

# Fields of an entry that are carried over.
my %kept_field =
  map { lc($_) => $_ } qw(Signed-By Check-Valid-Until Check-Date By-Hash
  Date-Max-Future Snapshot);

sub parse_deb822
{
	my ($text) = @_;
	my @entries;
	$text =~ s/^#.*\n//mg;
	foreach my $block (split /\n(?:[ \t]*\n)+/, $text)
	{
		my %field;
		$field{ lc $1 } = $2
		  while $block =~ /^([A-Za-z0-9-]+):(.*(?:\n[ \t].*)*)/mg;
		next if ($field{enabled} // '') =~ /^\s*(?:no|false|off|0)\s*$/i;
		next unless $field{uris} && $field{suites};
		push @entries,
		  {
			uris => [ split ' ', $field{uris} ],
			suites => [ split ' ', $field{suites} ],
			components => [ split ' ', $field{components} // '' ],
			fields => {
				map { $kept_field{$_} => $field{$_} }
				grep { $kept_field{$_} } keys %field
			}
		  };
	}
	return @entries;
}

sub parse_one_line
{
	my ($text) = @_;
	my @entries;
	foreach my $line (split /\n/, $text)
	{
		$line =~ s/#.*//;
		$line =~ /^\s*deb(?:-src)?\s+(?:\[([^]]*)\]\s+)?(\S+)\s+(\S+)\s*(.*)$/
		  or next;
		my ($options, $uri, $suite, $components) = ($1 // '', $2, $3, $4);
		my %fields;
		foreach my $option (split ' ', $options)
		{
			my ($name, $value) = split /=/, $option, 2;
			my $kept = $kept_field{ lc $name } or next;
			($fields{$kept} = " $value") =~ s/,/ /g;
		}
		push @entries,
		  {
			uris => [$uri],
			suites => [$suite],
			components => [ split ' ', $components ],
			fields => \%fields
		  };
	}
	return @entries;
}

# What to do when there is no source to be had.
sub no_source
{
	my ($message, @details) = @_;
	my $pin = pinned();
	fail(
		$message,
		@details,
		"Get PostgreSQL $pin->{release}'s source on another machine, as "
		  . "$pin->{package}_$pin->{release}.orig.tar.bz2 from Debian or "
		  . "postgresql-$pin->{release}.tar.bz2 from PostgreSQL, and say "
		  . "--with-upstream=FILE (with make: UPSTREAM=FILE).");
}

# Tarball of the machine's archive: from the cache, or what the last prepare took
# from there, or fetched into it.
sub from_archive
{
	my ($last) = @_;
	my $pin = pinned();
	make_path($cache_dir);

	# Of what is cached the pinned release is preferred, then the newest.
	my @cached = sort {
			 ($b->[1] eq $pin->{release}) <=> ($a->[1] eq $pin->{release})
		  || ($b->[1] =~ /(\d+)$/)[0] <=> ($a->[1] =~ /(\d+)$/)[0]
	  }
	  map { /_(18\.\d+)\.orig\.tar\.\w+$/ ? [ $_, $1 ] : () }
	  glob("'$cache_dir'/$pin->{package}_*.orig.tar.*");
	return { %$last, missing => 1, what => "the archive's tarball" }
	  if !@cached && $last;
	my $path = @cached ? $cached[0][0] : fetch();
	my $up = from_tarball($path, $last);
	$up->{kind} = 'archive';
	return $up;
}

# Fetch the orig tarball into the cache with apt.  Returns its path.
sub fetch
{
	my $pin = pinned();
	my ($have_apt) = capture({}, 'sh', '-c', 'command -v apt-get');
	no_source("there is no upstream source, and this system has no apt-get")
	  if $have_apt != 0;

	my $apt = "$state_dir/apt";
	make_path("$apt/lists/partial", "$apt/cache/archives/partial",
		"$apt/sources");

	# Read after the machine's configuration, and only by these commands.
	# The hooks are the machine's own and concern its own lists.
	my $user = $> == 0 ? 'APT::Sandbox::User "root";' : '';
	spew("$apt/apt.conf", <<"EOF");
#clear APT::Update::Pre-Invoke;
#clear APT::Update::Post-Invoke;
#clear APT::Update::Post-Invoke-Success;
Dir::Etc::sourcelist "/dev/null";
Dir::Etc::sourceparts "$apt/sources";
Dir::State::lists "$apt/lists";
Dir::Cache "$apt/cache";
Acquire::Languages "none";
Acquire::Retries "2";
Acquire::AllowInsecureRepositories "false";
Acquire::AllowWeakRepositories "false";
Acquire::AllowDowngradeToInsecureRepositories "false";
APT::Get::AllowUnauthenticated "false";
$user
EOF
	my @conf = ('-c', "$apt/apt.conf");

	my $os_release = -f '/etc/os-release' ? slurp('/etc/os-release') : '';
	my ($codename) = $os_release =~ /^VERSION_CODENAME="?(\w+)/m;
	my (undef, $etc) = capture({}, 'apt-config', 'shell', 'ETC', 'Dir::Etc/d');
	($etc) = ($etc // '') =~ /ETC='([^']*)'/;
	my @tries = derive_sources($etc // '/etc/apt', $codename // 'none');
	no_source("could not find Debian's archive in this machine's apt sources")
	  unless grep { @$_ } @tries;

	my (@stanzas, @problems);
	foreach my $try (@tries)
	{
		next unless @$try;
		my @suites = map { /^Suites: (.*)$/m } @$try;
		notice("looking for $pin->{package} in @suites");
		push @stanzas, @$try;
		write_sources($apt, @stanzas);
		my ($status, $out) = capture({}, 'apt-get', @conf, '-q', 'update');
		foreach my $line (grep { /^(?:E|W|Err)/ } split /\n/, $out)
		{
			push @problems, $line unless grep { $_ eq $line } @problems;
		}

		# Others than Debian have suites of the same names.
		@stanzas = of_debian(\@conf, @stanzas);
		write_sources($apt, @stanzas);
		my ($version, $release, $sha) = newest_source(\@conf, $pin);
		next unless $version;

		notice("fetching the source of PostgreSQL $release");
		my $into = scratch_dir('fetch');
		($status, $out) =
		  capture({ dir => $into }, 'apt-get', @conf, '-q', 'source',
			'--download-only', '--tar-only', "$pin->{package}=$version");
		my ($file) = glob("'$into'/*.orig.tar.*");
		no_source("could not fetch the source package $pin->{package}",
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
	no_source("could not find $pin->{package} in this machine's archive",
		@problems > 3 ? @problems[ 0 .. 2 ] : @problems);
	return;
}

sub write_sources
{
	my ($apt, @stanzas) = @_;
	spew("$apt/sources/lazydrop.sources", join("\n", @stanzas));
	return;
}

# Those stanzas whose Release file, which apt has verified, names Debian as the
# origin.
sub of_debian
{
	my ($conf, @stanzas) = @_;
	my (undef, $out) = capture(
		{ stderr => 'none' }, 'apt-get', @$conf,
		'indextargets', '--format',
		'$(REPO_URI) $(RELEASE) $(ORIGIN)',
		'Created-By: Sources');
	my %debian;
	foreach my $line (split /\n/, $out)
	{
		my ($uri, $suite, $origin) = split / /, $line, 3;
		next unless ($origin // '') eq 'Debian';
		$uri =~ s{/*$}{};
		$debian{"$uri $suite"} = 1;
	}
	return grep {
		my ($uris) = /^URIs: (.*)$/m;
		my ($suite) = /^Suites: (.*)$/m;
		!grep { my $uri = $_; $uri =~ s{/*$}{}; !$debian{"$uri $suite"} }
		  split ' ', $uris;
	} @stanzas;
}

# The source package's version to fetch, its upstream release and its
# tarball's digest, from the lists that apt verified; empty when none is 18.x.
sub newest_source
{
	my ($conf, $pin) = @_;
	my (undef, $out) =
	  capture({ stderr => 'none' }, 'apt-cache', @$conf, 'showsrc',
		'--only-source', $pin->{package});
	my @found;
	foreach my $stanza (split /\n\n+/, $out)
	{
		next unless $stanza =~ /^Package: \Q$pin->{package}\E$/m;
		my ($version) = $stanza =~ /^Version: (\S+)$/m or next;
		my ($sha, $release) =
		  $stanza =~ /^ ([0-9a-f]{64}) \d+ \S+_(18\.\d+)\.orig\.tar\.\w+$/m
		  or next;
		push @found, [ $version, $release, $sha ];
	}
	@found = sort {
			 ($b->[1] eq $pin->{release}) <=> ($a->[1] eq $pin->{release})
		  || ($b->[1] =~ /(\d+)$/)[0] <=> ($a->[1] =~ /(\d+)$/)[0]
	} @found;
	return @found ? @{ $found[0] } : ();
}

=pod

=back

=cut

1;
