# Copyright (c) 2026, LazyDrop developers

=pod

=head1 NAME

ScratchCheckout - a checkout of its own for a test of the tools

=head1 DESCRIPTION

Makes a directory that has the tools of this checkout, and everything else made
up: an upstream of a few small files, an overlay of two, a series of one patch.
Nothing is fetched, and neither this checkout nor its prepared tree is touched.

=cut

package ScratchCheckout;

use strict;
use warnings FATAL => 'all';

use Carp;
use Cwd qw(abs_path);
use Digest::SHA;
use File::Basename qw(dirname);
use File::Find;
use File::Path qw(make_path remove_tree);
use FindBin;
use IPC::Run;
use PostgreSQL::Test::Utils;

# The checkout that the running test belongs to.
my $real_top = "$FindBin::RealBin/../../../..";

=pod

=over

=item ScratchCheckout->new

A checkout prepared for nothing yet.  Its fields: top, where it is; and, to be set by the
test: major, PG_MAJOR of the tools; meson, the build directory of the Meson that calls them.

=cut

sub new
{
	my ($class) = @_;
	my $base = abs_path(PostgreSQL::Test::Utils::tempdir());
	my $self = bless { base => $base, top => "$base/checkout" }, $class;

	# Settings of a user that must make no difference.
	write_file("$base/gitconfig",
		"[core]\n\tautocrlf = true\n[diff]\n\tinterHunkContext = 10\n");
	make_path("$self->{top}/src/tools", "$base/bin");
	IPC::Run::run(
		[
			'cp', '-pR',
			"$real_top/src/tools/lazydrop",
			"$self->{top}/src/tools/lazydrop"
		]) or croak "could not copy the tools";

	my $tarball = $self->tarball('18.6');
	$self->write('upstream.conf', <<"EOF");
default = 18

release_18 = 18.6
sha256_18 = @{[ Digest::SHA->new(256)->addfile($tarball)->hexdigest ]}
tested_18 = 18.6
EOF
	$self->write('src/backend/storage/lazydrop/lazydrop.c',
		"int lazydrop;\n");
	$self->write('src/backend/storage/lazydrop/README', "rules\n");
	$self->write('src/backend/storage/lazydrop/Makefile',
		"OBJS = lazydrop.o\n");
	$self->write(
		'src/backend/storage/lazydrop/meson.build',
		"backend_sources += files('lazydrop.c')\n");
	$self->write('patches/series', "# the series\nregister.patch\n");
	$self->write('patches/README.md', "# Patches\n\n## register.patch\n");
	$self->write('patches/register.patch', <<'EOF');
Description: Register the folder
Author: nobody
Forwarded: not-needed
Last-Update: 2026-01-01

--- a/src/backend/storage/Makefile
+++ b/src/backend/storage/Makefile
@@ -1,2 +1,3 @@
 SUBDIRS = aio
+SUBDIRS += lazydrop
 include common.mk
--- a/src/backend/storage/meson.build
+++ b/src/backend/storage/meson.build
@@ -1 +1,2 @@
 subdir('aio')
+subdir('lazydrop')
EOF
	return $self;
}

# The made-up upstream: path => contents.
sub upstream_files
{
	my ($release) = @_;
	return (
		'configure' => "#!/bin/sh\nPACKAGE_VERSION='$release'\n",
		'README.md' => "PostgreSQL\n",
		'meson.build' =>
		  "project('postgresql',\n  ['c'],\n  version: '$release',\n)\n\nroot = meson.source_root()\nflags = '-I\@SOURCE_ROOT\@/src -I\@BUILD_ROOT\@/src'\n",
		'meson_options.txt' => "# none\n",
		'config/prep_buildtree' => "#!/bin/sh\ntouch \"\$2/followed\"\n",
		'src/backend/storage/Makefile' =>
		  "SUBDIRS = aio\ninclude common.mk\n",
		'src/backend/storage/meson.build' => "subdir('aio')\n",
		'src/backend/main.c' => join('', map { "line $_\n\n{\n}\n" } 1 .. 8),
		'src/backend/other.c' => "unchanged\n");
}

=pod

=item $checkout->tarball($release [, %files])

Make a tarball of a made-up upstream of a release; %files replaces or adds
files.  Returns its path.

=cut

sub tarball
{
	my ($self, $release, %files) = @_;
	my $name = "postgresql-$release";
	my $path = "$self->{base}/$name.tar.bz2";
	my $dir = $self->source_dir($release, %files);
	# old, as those of a release are
	IPC::Run::run(
		[
			'tar', '-cjf', $path, '--mtime=2001-01-01',
			'-C', dirname($dir), $name
		]) or croak "could not make \"$path\"";
	return $path;
}

# The same as a directory.
sub source_dir
{
	my ($self, $release, %files) = @_;
	my $dir = "$self->{base}/unpacked/postgresql-$release";
	remove_tree($dir);
	my %all = (upstream_files($release), %files);
	foreach my $path (keys %all)
	{
		make_path(dirname("$dir/$path"));
		write_file("$dir/$path", $all{$path});
	}
	chmod(0755, "$dir/configure", "$dir/config/prep_buildtree");
	return $dir;
}

sub write_file
{
	my ($path, $text) = @_;
	unlink($path);
	open(my $fh, '>', $path) or croak "could not create \"$path\": $!";
	print $fh $text;
	close($fh) or croak "could not write \"$path\": $!";
	return;
}

=pod

=item $checkout->write($path, $text), $checkout->read($path)

Write and read a file of the checkout.

=cut

sub write
{
	my ($self, $path, $text) = @_;
	make_path(dirname("$self->{top}/$path"));
	write_file("$self->{top}/$path", $text);
	return;
}

sub read
{
	my ($self, $path) = @_;
	return slurp_file("$self->{top}/$path");
}

sub remove
{
	my ($self, @paths) = @_;
	remove_tree(map { "$self->{top}/$_" } @paths);
	return;
}

=pod

=item $checkout->program($name, $script)

Put a program in front of the search path of what run() runs.

=cut

sub program
{
	my ($self, $name, $script) = @_;
	write_file("$self->{base}/bin/$name", $script);
	chmod(0755, "$self->{base}/bin/$name") or croak "chmod: $!";
	return;
}

=pod

=item $checkout->run($tool, @arguments)

Run one of the tools, and return its exit status and what it printed.

=cut

sub run
{
	my ($self, $tool, @args) = @_;
	local $ENV{PATH} = "$self->{base}/bin:" . ($self->{path} // $ENV{PATH});
	local @ENV{qw(GIT_AUTHOR_NAME GIT_COMMITTER_NAME)} = ('test', 'test');
	local $ENV{GIT_CONFIG_GLOBAL} = "$self->{base}/gitconfig";
	local @ENV{qw(GIT_AUTHOR_EMAIL GIT_COMMITTER_EMAIL)} = ('test', 'test');
	delete local @ENV{qw(LAZYDROP_CACHE PG_MAJOR MESON_BUILD_ROOT)};
	local $ENV{MESON_BUILD_ROOT} = $self->{meson} if $self->{meson};
	local $ENV{PG_MAJOR} = $self->{major} if $self->{major};
	my $out = '';
	my @command =
		$tool =~ m{^/|^(?:git|env)$}
	  ? $tool
	  : "$self->{top}/src/tools/lazydrop/$tool";
	IPC::Run::run([ @command, @args ], '<' => \undef, '>&' => \$out);
	print "# $tool @args: status ", $? >> 8, "\n$out";
	return ($? == 0 ? 0 : ($? >> 8 || 256), $out);
}

# git in the prepared tree
sub git
{
	my ($self, @args) = @_;
	my $dir = $self->{major} ? ".pg/$self->{major}/tree" : '.pg/tree';
	my ($status, $out) = $self->run('git', '-C', "$self->{top}/$dir", @args);
	croak "git @args failed: $out" if $status != 0;
	return $out;
}

=pod

=item $checkout->state

Names of what lies below .pg, other than the lock, downloads and apt's lists.

=cut

sub state
{
	my ($self) = @_;
	opendir(my $dh, "$self->{top}/.pg") or return ();
	return sort grep { !/^(?:\.\.?|lock|cache|apt)$/ } readdir($dh);
}

=pod

=item fingerprint($path)

A text that changes with names, contents, modes or times of anything at or below
a path, other than a git repository.

=cut

sub fingerprint
{
	my ($path) = @_;
	my @all;
	find(
		{
			no_chdir => 1,
			wanted => sub {
				return $File::Find::prune = 1 if /\/\.git$/;
				my @st = lstat($File::Find::name);
				my $contents =
					-l _ ? readlink($File::Find::name)
				  : -f _ ? slurp_file($File::Find::name)
				  :        '';
				push @all,
				  join(' ',
					$File::Find::name, $st[2], $st[9],
					Digest::SHA::sha256_hex($contents));
			}
		},
		$path);
	return join("\n", sort @all);
}

=pod

=back

=cut

1;
