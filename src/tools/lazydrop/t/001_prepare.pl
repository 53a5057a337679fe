# Copyright (c) 2026, LazyDrop developers

# A stale or incomplete source tree must never be built, and an edit in it must never be
# lost.  If the offered source has a fault, one clear error must report it, and nothing
# may be left behind.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib $FindBin::RealBin;
use Fcntl qw(:flock);
use IPC::Run;
use PostgreSQL::Test::Utils;
use ScratchCheckout;
use Test::More;

my $old_time = time - 1000000;

sub mtime
{
	my ($path) = @_;
	return (stat($path))[9];
}

# --- a tree from the user's tarball -----------------------------------------

my $checkout = ScratchCheckout->new;
my $top = $checkout->{top};
my $tarball = $checkout->tarball('18.6');
my $before = ScratchCheckout::fingerprint($tarball);
my ($status, $out) = $checkout->run('prepare', "--with-upstream=$tarball");
is($status, 0, 'prepare from a tarball');
is(ScratchCheckout::fingerprint($tarball),
	$before, 'the tarball is not modified');
is( readlink("$top/.pg/tree/src/backend/storage/lazydrop/lazydrop.c"),
	'../../../../../../src/backend/storage/lazydrop/lazydrop.c',
	'our file is a relative link');
is( $checkout->read('.pg/tree/src/backend/storage/lazydrop/lazydrop.c'),
	"int lazydrop;\n",
	'which leads to it');
ok(!-l "$top/.pg/tree/src/backend/storage/lazydrop", 'folders are not links');
ok( !-e "$top/.pg/tree/src/tools/lazydrop",
	'the tools are not laid over the tree');
like(
	$checkout->read('.pg/tree/src/backend/storage/Makefile'),
	qr/^SUBDIRS \+= lazydrop$/m,
	'the series is applied');
like(
	$checkout->read('.pg/tree/meson.build'),
	qr/^if false [^\n]*\nproject\(.*^endif /ms,
	'the project() call is taken out of meson.build');
like(
	$checkout->read('.pg/tree/meson.build'),
	qr/^root = lazydrop_source_root$/m,
	'uses of the source root are rewritten');
like(
	$checkout->read('.pg/tree/meson.build'),
	qr{-I\@SOURCE_ROOT\@/\.pg/tree/src -I\@BUILD_ROOT\@/\.pg/tree/src},
	'in strings as well');
my $state = ScratchCheckout::fingerprint("$top/.pg");

($status, $out) = $checkout->run('prepare');
is($status, 0, 'prepare again');
is($out, '', 'nothing to say');
is(ScratchCheckout::fingerprint("$top/.pg"), $state, 'nothing is touched');
($status, $out) = $checkout->run('prepare', '--print-release');
is($out, "18.6\n", 'the release is known');

# --- changes to our own files -----------------------------------------------

my $stamp = "$top/.pg/prepared.mk";
$checkout->write('contrib/pg_new/deep/new.c', "new\n");
utime($old_time, $old_time, $stamp);
($status, $out) = $checkout->run('prepare');
is($checkout->read('.pg/tree/contrib/pg_new/deep/new.c'),
	"new\n", 'a new file is linked');
ok(mtime($stamp) > $old_time, 'the stamp tells make');

# The contents change while the time stamp goes back, as if restored from a backup.
my $ours = "$top/src/backend/storage/lazydrop/lazydrop.c";
$checkout->write('src/backend/storage/lazydrop/lazydrop.c', "int changed;\n");
utime($old_time, $old_time, $ours);
($status, $out) = $checkout->run('prepare');
ok(mtime($ours) > $old_time,
	'changed contents with an old time get a fresh one');

$checkout->remove('contrib');
($status, $out) = $checkout->run('prepare');
ok( !-l "$top/.pg/tree/contrib/pg_new/deep/new.c"
	  && !-e "$top/.pg/tree/contrib",
	'a file that is gone goes from the tree, with its folders');

mkdir("$top/b") or die "could not create directory: $!";
($status, $out) = $checkout->run('prepare', "--build-tree=$top/b");
ok(-e "$top/b/followed", 'a build folder follows the tree');
unlink("$top/b/followed");
($status, $out) = $checkout->run('prepare', "--build-tree=$top/b");
ok(!-e "$top/b/followed", 'and is left alone when it has');

# One of our files has the name of an upstream file, which would be an edit without a
# patch.
$checkout->write('src/backend/other.c', "ours\n");
($status, $out) = $checkout->run('prepare');
is($status, 1, 'a file of ours that upstream has is refused');
like($out, qr{error: "\.pg/tree/src/backend/other\.c" is no link},
	'it is named');
$checkout->remove('src/backend/other.c');
is($checkout->read('.pg/tree/src/backend/other.c'),
	"unchanged\n", 'upstream\'s is left alone');

# An editor replaces the link by a file.
my $link = "$top/.pg/tree/src/backend/storage/lazydrop/README";
unlink($link);
ScratchCheckout::write_file($link, "edited\n");
($status, $out) = $checkout->run('prepare');
is($status, 1, 'a link that was replaced by an edited file is an error');
like(
	$out,
	qr{error: "\.pg/tree/src/backend/storage/lazydrop/README" is no link},
	'it says which');
is(slurp_file($link), "edited\n", 'and leaves the edit alone');
unlink($link);
($status, $out) = $checkout->run('prepare');
is($status, 0, 'a link that is missing is made again');

# --- changes to the series --------------------------------------------------

my $patch = $checkout->read('patches/register.patch');
my $header = $patch =~ s/^---.*//msr;
my $main_patch = "$header--- a/src/backend/main.c\n+++ b/src/backend/main.c\n"
  . "\@\@ -5,2 +5,3 \@\@\n line 2\n+added\n \n";
$checkout->write('patches/main.patch', $main_patch);
$checkout->write('patches/series', "register.patch\nmain.patch\n");
my @files =
  map { "$top/.pg/tree/src/backend/$_" } qw(main.c other.c storage/Makefile);
utime($old_time, $old_time, @files, $stamp);
($status, $out) = $checkout->run('prepare');
is($status, 0, 'prepare with another series');
like(slurp_file($files[0]), qr/^line 2\nadded\n/m,
	'the new patch is applied');
ok(mtime($files[0]) > $old_time, 'the changed file has a fresh time');
is(mtime($files[1]), $old_time, 'an unchanged file keeps its time');
is(mtime($files[2]), $old_time, 'so does one that is patched as before');
ok(mtime($stamp) > $old_time, 'the stamp tells make');

# Both at once: our contents have an older time stamp, and the series has changed.
$checkout->write('src/backend/storage/lazydrop/lazydrop.c', "int again;\n");
utime($old_time, $old_time, $ours);
$checkout->write('patches/series',
	"# a comment\nregister.patch\nmain.patch\n");
($status, $out) = $checkout->run('prepare');
ok(mtime($ours) > $old_time,
	'a fresh time, also when the series has changed');

# The tree has an edit that the series does not have.
append_to_file($files[1], "edit\n");
$checkout->write('patches/series', "register.patch\n");
rename("$top/patches/main.patch", "$top/main.patch");
($status, $out) = $checkout->run('prepare');
is($status, 1, 'an edit of the tree is not overwritten');
like($out, qr{edited: \.pg/tree/src/backend/other\.c}, 'it is named');
is(slurp_file($files[1]), "unchanged\nedit\n", 'it is still there');
like(slurp_file($files[0]), qr/^added$/m, 'and nothing else was replaced');
($status, $out) = $checkout->run('prepare', '--force');
is($status, 0, 'prepare --force');
is(slurp_file($files[1]), "unchanged\n", 'discards it');
ok(mtime($files[0]) > $old_time,
	'a file that is as upstream has it again has a fresh time, too');

# A run fails between the first replaced file and the last, because a folder cannot be
# written to.
$checkout->write('patches/main.patch',
		$main_patch
	  . "--- a/src/backend/storage/meson.build\n+++ b/src/backend/storage/meson.build\n"
	  . "\@\@ -1,2 +1,3 \@\@\n subdir('aio')\n+# added\n subdir('lazydrop')\n"
);
$checkout->write('patches/series', "register.patch\nmain.patch\n");
chmod(0555, "$top/.pg/tree/src/backend/storage") or die "chmod: $!";
SKIP:
{
	skip 'root can write everywhere', 3 if $> == 0;
	($status, $out) = $checkout->run('prepare');
	isnt($status, 0, 'a run that fails half way');
	ok(-e "$top/.pg/tree/.git/lazydrop-next",
		'leaves a note, so that it does not pass for a whole tree');
	like(slurp_file($files[0]), qr/^added$/m, 'one file has been replaced');
}
chmod(0755, "$top/.pg/tree/src/backend/storage") or die "chmod: $!";

# The files that it has replaced do not count as edits, whichever command comes next.
$checkout->write('patches/series', "register.patch\n");
unlink("$top/patches/main.patch");
($status, $out) = $checkout->run('prepare');
is($status, 0, 'the next run completes the tree');
is( $checkout->read('.pg/tree/src/backend/main.c'),
	{ ScratchCheckout::upstream_files('18.6') }->{'src/backend/main.c'},
	'as the series is now');

# A run was killed between the first replaced file and the last.
ScratchCheckout::write_file("$top/.pg/tree/.git/lazydrop-next",
	$checkout->git('rev-parse', 'lazydrop/series'));
unlink($files[0]);
mkdir("$top/.pg/scratch-stage1") or die "could not create directory: $!";
($status, $out) = $checkout->run('prepare');
is($status, 0, 'a tree that was left half way is completed');
ok(-f $files[0], 'the missing file is there');
is( join(' ', $checkout->state),
	'prepared.mk tree tree.key',
	'no scratch is left');

# If two run at once, the second one waits.
{
	open(my $lock, '>>', "$top/.pg/lock") or die "could not open lock: $!";
	flock($lock, LOCK_EX) or die "could not lock: $!";
	my $said = '';
	delete local @ENV{qw(LAZYDROP_CACHE PG_MAJOR MESON_BUILD_ROOT)};
	my $other = IPC::Run::start(
		["$top/src/tools/lazydrop/prepare"],
		'>&' => \$said,
		IPC::Run::timeout($PostgreSQL::Test::Utils::timeout_default));
	pump $other until $said =~ /waiting for another prepare to finish/;
	pass('a second prepare waits for the first');
	close($lock);
	ok($other->finish, 'and then goes on');
}

# The source is not needed as long as the tree is up to date.
rename($tarball, "$tarball.gone") or die "could not rename: $!";
($status, $out) = $checkout->run('prepare');
is($status, 0, 'a tree that is up to date needs no source');
$checkout->write('patches/series', "# changed\nregister.patch\n");
($status, $out) = $checkout->run('prepare');
is($status, 0, 'nor does another series: git has what it was');
rename("$top/.pg/tree/.git", "$top/.pg/git") or die "could not rename: $!";
($status, $out) = $checkout->run('prepare');
is($status, 1, 'a tree without history does');
like($out,
	qr/error: upstream source .*, which the last prepare used, is gone/,
	'it says so');
rename("$tarball.gone", $tarball) or die "could not rename: $!";
$state = ScratchCheckout::fingerprint("$top/.pg/tree/src");
($status, $out) = $checkout->run('prepare');
is($status, 0, 'and gets another one');
is($checkout->git('status', '--porcelain'), '', 'of its files');
is(ScratchCheckout::fingerprint("$top/.pg/tree/src"),
	$state, 'which are not touched');
$checkout->remove('.pg/git');

# The file has the same name but different contents.
$checkout->tarball('18.6', 'src/backend/other.c' => "other contents\n");
my $renamed = "$checkout->{base}/mine.tar.bz2";
rename($tarball, $renamed) or die "could not rename: $!";
$checkout->run('prepare', "--with-upstream=$renamed");
is(slurp_file($files[1]), "other contents\n", 'another tarball');
$checkout->tarball('18.6', 'src/backend/other.c' => "yet other contents\n");
rename($tarball, $renamed) or die "could not rename: $!";
$checkout->run('prepare');
is( slurp_file($files[1]),
	"yet other contents\n",
	'a tarball that changes under its name');
$checkout->tarball('18.6');

# --- a directory, and another release ---------------------------------------

my $dir = $checkout->source_dir('18.9');
$before = ScratchCheckout::fingerprint($dir);
($status, $out) = $checkout->run('prepare', "--with-upstream=$dir");
is($status, 0, 'prepare from a directory, of another 18.x');
is(ScratchCheckout::fingerprint($dir),
	$before, 'the directory is not modified');
is(scalar(() = $out =~ /18\.9; the series was made on 18\.6/g),
	1, 'one notice about the release');
symlink($dir, "$checkout->{base}/current") or die "could not link: $!";
$checkout->run('prepare', "--with-upstream=$checkout->{base}/current");
append_to_file("$dir/src/backend/other.c", "more\n");
($status, $out) = $checkout->run('prepare');
like(slurp_file($files[1]),
	qr/^more$/m, 'the tree follows an edit of the directory');

# --- rejected sources -------------------------------------------------------

# Each case is tested on a checkout without a tree, which must have none afterwards, and
# on one with a tree, which must not change.
my $fresh = ScratchCheckout->new;
my $kept = ScratchCheckout->new;
$kept->run('prepare', '--with-upstream=' . $kept->tarball('18.6'));

sub refused
{
	my ($what, $upstream, $message) = @_;
	my ($status, $out) = $fresh->run('prepare', "--with-upstream=$upstream");
	is($status, 1, "$what: refused");
	like($out, qr/^prepare: error: $message/m, "$what: says why");
	is(scalar(() = $out =~ /: error: /g), 1, "$what: one error");
	is(join(' ', $fresh->state), '', "$what: nothing is left");

	my $before = ScratchCheckout::fingerprint("$kept->{top}/.pg/tree");
	my $key = $kept->read('.pg/tree.key');
	($status, $out) = $kept->run('prepare', "--with-upstream=$upstream");
	is($status, 1, "$what: refused where there is a tree");
	is(ScratchCheckout::fingerprint("$kept->{top}/.pg/tree"),
		$before, "$what: the tree stays");
	is($kept->read('.pg/tree.key'), $key, "$what: and so does the choice");
	return;
}

refused(
	'a missing file',
	"$top/none.tar.bz2",
	qr/upstream source .* does not exist/);
refused(
	'release 17',
	$checkout->tarball('17.6'),
	qr/.* is PostgreSQL 17\.6, which is not served/);
refused(
	'release 19',
	$checkout->source_dir('19beta1'),
	qr/.* is PostgreSQL 19beta1, which is not served/);
refused(
	'a tree that has our files',
	$checkout->source_dir(
		'18.6',
		'src/backend/storage/lazydrop/lazydrop.c' => "int lazydrop;\n"),
	qr/.* already has the file "src\/backend\/storage\/lazydrop\/lazydrop\.c"/
);
refused(
	'a tree that has our patches',
	$checkout->source_dir(
		'18.6',
		'src/backend/storage/Makefile' =>
		  "SUBDIRS = aio\nSUBDIRS += lazydrop\ninclude common.mk\n"),
	qr/patch "register\.patch", file "src\/backend\/storage\/Makefile".* does not apply/
);
refused('a prepared tree', "$top/.pg/tree", qr/.* already has the file/);
refused(
	'a release that the series does not fit',
	$checkout->tarball(
		'18.3', 'src/backend/storage/Makefile' => "SUBDIRS = other\n"),
	qr/patch "register\.patch", .*the hunk does not apply/);
refused(
	'a release where a hunk fits in two places',
	$checkout->tarball(
		'18.4',
		'src/backend/storage/meson.build' => "subdir('aio')\nsubdir('aio')\n"
	),
	qr/patch "register\.patch", .*could land in 2 places, at lines 1, 2/);
refused(
	'a tree that was configured in place',
	$checkout->source_dir('18.6', 'config.status' => "x\n"),
	qr/source tree .* has been configured in place/);
refused(
	'a directory that is no source tree',
	"$top/src",
	qr/.* is not a PostgreSQL source tree/);

my $good = slurp_file($tarball);
my $other = "$checkout->{base}/renamed.tar.bz2";
ScratchCheckout::write_file($other, substr($good, 0, length($good) - 100));
($status, $out) = $fresh->run('prepare', '--no-such-option');
like(
	$out,
	qr/^prepare: error: unknown option: no-such-option\nprepare: hint: Try/,
	'an unknown option');
refused('a truncated tarball', $other, qr/could not unpack/);
ScratchCheckout::write_file($other, "this is no tarball\n");
refused('a file that is no tarball', $other, qr/could not unpack/);
ScratchCheckout::write_file(
	"$checkout->{base}/postgresql-18_18.6.orig.tar.bz2",
	"$good ");
refused(
	'wrong contents under the pinned name',
	"$checkout->{base}/postgresql-18_18.6.orig.tar.bz2",
	qr/file .* has the name of the pinned release but not its contents/);

# --- this machine's archive -------------------------------------------------

my $archive = ScratchCheckout->new;
my $original = "$archive->{base}/postgresql-18.6.tar.bz2";

# Set up a fake archive, in which only the suite "unstable" has the package.
sub offer
{
	my ($condition) = @_;
	$archive->program('apt-cache', <<"EOF");
#!/bin/sh
$condition || exit 100
cat <<END
postgresql-18 |     18.6-1 | http://archive.example/debian stable/main Sources
END
EOF
	return;
}
my $entries = <<'EOF';
		echo "http://archive.example/debian/ stable main"
		echo "http://archive.example/debian/ stable contrib"
		echo "http://archive.example/debian-security/ stable-security main"
EOF
offer(qq{test -f "$archive->{top}"/.pg/apt/sources/unstable.list});
$archive->program('apt-get', <<"EOF");
#!/bin/sh
case "\$*" in
	*indextargets*)
$entries
		;;
	*source*)
		cp "$original" postgresql-18_18.6.orig.tar.bz2
		;;
esac
EOF
($status, $out) = $archive->run('prepare');
is($status, 0, 'prepare from the archive');
like(
	$out,
	qr/\(own\)\n.*\(stable\)\n.*\(testing\)\n.*\(unstable\)\n/s,
	'suites: the machine\'s own, then newer ones up to unstable');
ok(-f "$archive->{top}/.pg/cache/postgresql-18_18.6.orig.tar.bz2",
	'the download is cached outside of the tree');
my $signed =
  'deb-src [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg]';
is( $archive->read('.pg/apt/sources/own.list'),
	"$signed http://archive.example/debian-security/ stable-security main\n"
	  . "$signed http://archive.example/debian/ stable main\n",
	'sources of the machine\'s own suites, which Debian must have signed');
is( $archive->read('.pg/apt/sources/testing.list'),
	"$signed http://archive.example/debian/ testing main\n",
	'a newer suite of the same archive');

foreach my $name ('Acquire::AllowInsecureRepositories',
	'APT::Get::AllowUnauthenticated')
{
	like(
		$archive->read('.pg/apt/apt.conf'),
		qr/^$name "false";$/m,
		"$name is off, also where the machine has it");
}

# Test without network, and then without apt.
$archive->program('apt-get',
	"#!/bin/sh\ncase \"\$*\" in\n*indextargets*)\n$entries;;\n*) echo 'E: no network'; exit 100;;\nesac\n"
);
$archive->program('apt-cache', "#!/bin/sh\nexit 100\n");
$archive->remove('.pg/tree', '.pg/tree.key');
($status, $out) = $archive->run('prepare');
is($status, 0, 'the cached download needs no network');
$archive->remove('.pg');
($status, $out) = $archive->run('prepare');
is($status, 1, 'no network and no tarball: refused');
like(
	$out,
	qr/error: could not find postgresql-18 in this machine's archive/,
	'it says what is missing');
is(scalar(() = $out =~ /hint: E: no network/g), 1, 'what apt said, once');
like(
	$out,
	qr/hint: Get PostgreSQL 18\.6's source on another machine, as postgresql-18_18\.6\.orig\.tar\.bz2 .*--with-upstream=FILE/,
	'and what to do');
is(join(' ', $archive->state), '', 'nothing is left');

# The file that apt delivers is not the pinned one.
offer('true');
$archive->program('apt-get', <<"EOF");
#!/bin/sh
case "\$*" in
	*indextargets*) echo "http://archive.example/debian/ stable main" ;;
	*source*) echo x >postgresql-18_18.6.orig.tar.bz2 ;;
esac
EOF
($status, $out) = $archive->run('prepare');
is($status, 1, 'a download that differs from the pin: refused');
like(
	$out,
	qr/error: file .* has the name of the pinned release but not its contents/,
	'it says so');
is(join(' ', $archive->state), '', 'nothing is left');
is(join(' ', grep { !/^\./ } slurp_dir("$archive->{top}/.pg/cache")),
	'', 'and nothing is cached');

# The search path has everything that prepare needs, except apt.
my $path = "$archive->{base}/path";
mkdir($path) or die "could not create directory: $!";
unlink(map { "$archive->{base}/bin/$_" } qw(apt-get apt-cache));
foreach my $name (qw(env perl sh git tar bzip2 cp mv sed))
{
	my ($found) = grep { -x } map { "$_/$name" } split /:/, $ENV{PATH};
	symlink($found, "$path/$name") or die "could not link $name: $!";
}
$archive->{path} = $path;
($status, $out) = $archive->run('prepare');
is($status, 1, 'no apt and no tarball: refused');
like(
	$out,
	qr/error: there is no upstream source, and this system has no apt-get/,
	'it says what is missing');
like($out, qr/--with-upstream=FILE/, 'and what to do');

done_testing();
