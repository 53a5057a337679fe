# Copyright (c) 2026, LazyDrop developers

# The series moves to another release: where lines have moved by itself, where they
# have changed with git's own means to go on, and to another major version.  Until it
# has moved, and when it is not to be, everything is as it was.

use strict;
use warnings FATAL => 'all';

use Digest::SHA;
use FindBin;
use lib $FindBin::RealBin;
use PostgreSQL::Test::Utils;
use ScratchCheckout;
use Test::More;

my $checkout = ScratchCheckout->new;
my $top = $checkout->{top};
my $main = "$top/.pg/tree/src/backend/main.c";
my ($status, $out);

# A commit to move, in text that releases change, beside the one in makefiles.
$checkout->run('prepare', '--with-upstream=' . $checkout->tarball('18.6'));
my $text = slurp_file($main);
ScratchCheckout::write_file($main,
	$text =~ s/^line 4$/line 4\nour_call();/mr);
$checkout->git('commit', '-q', '-a', '-m',
	"our-topic\n\nDescription: A topic\nAuthor: nobody\nForwarded: not-needed\nLast-Update: 2026-01-01\n"
);
($status, $out) = $checkout->run('rebase', $checkout->tarball('18.7'));
is($status, 1, 'commits that have not been exported are not moved');
like($out, qr/hint: \w+ our-topic/, 'they are named');
$checkout->run('export');
$checkout->write('patches/README.md',
	"# Patches\n\n## register.patch\n\n## our-topic.patch\n");

sub digest
{
	return Digest::SHA->new(256)->addfile($_[0])->hexdigest;
}

# What must not change, or must be as it was again.
sub state_of_series
{
	return join "\n", ScratchCheckout::fingerprint("$top/patches"),
	  $checkout->read('upstream.conf'),
	  $checkout->git('rev-parse', 'lazydrop/upstream', 'lazydrop/series');
}

# What holds when it has moved.
sub has_moved
{
	my ($release, $tarball, $hunk) = @_;
	is( $checkout->git('log', '--format=%s'),
		"our-topic\nregister\nPostgreSQL $release\n",
		"$release: the commits are on it");
	like($checkout->read('patches/our-topic.patch'),
		$hunk, "$release: the patch has its lines");
	my $major = $release =~ s/\..*//r;
	like(
		$checkout->read('upstream.conf'),
		qr/^package = postgresql-$major\nrelease = \Q$release\E\nsha256 = @{[ digest($tarball) ]}\n/m,
		"$release: is pinned");
	($status, $out) = $checkout->run('check');
	is($status, 0, "$release: check passes");
	like(
		$out,
		qr/^ok - the series applies, .* at its line$/m,
		"$release: with exact lines");
	($status, $out) = $checkout->run('prepare', '--print-release');
	is($out, "$release\n", "$release: the tree has it");
	($status, $out) = $checkout->run('prepare');
	is($out, '', "$release: and is up to date");
	like($checkout->read('.pg/tree/meson.build'),
		qr/lazydrop_source_root/, "$release: Meson's files are rewritten");
	is($checkout->git('status', '--porcelain'),
		'', "$release: and nothing is modified");
	return;
}

# --- lines have moved ---------------------------------------------------------------

my $moved = $checkout->tarball(
	'18.7',
	'src/backend/main.c' => "new line\n$text",
	'src/backend/storage/Makefile' =>
	  "# new\nSUBDIRS = aio\ninclude common.mk\n");
($status, $out) = $checkout->run('rebase', $moved);
is($status, 0, 'rebase to a release where lines have moved');
has_moved('18.7', $moved, qr/^\@\@ -14,2 \+14,3 \@\@/m);
like(
	slurp_file($main),
	qr/^new line\n(?s:.*)^our_call\(\);$/m,
	'the tree has both changes');

($status, $out) = $checkout->run('rebase', $moved);
is($status, 1, 'rebase to the same release is refused');
like($out, qr/error: the series is on PostgreSQL 18\.7 already/,
	'it says so');
($status, $out) = $checkout->run('rebase', 'nonsense');
like(
	$out,
	qr/error: "nonsense" is neither a file nor a release/,
	'so is what is no release');

# --- a conflict, in another major version -------------------------------------------

my $changed = $checkout->tarball('19.1',
	'src/backend/main.c' => "new line\n" . $text =~
	  s/^line 4\n\n/line four\nand more\n/mr);
my $before = state_of_series();
($status, $out) = $checkout->run('rebase', $changed);
is($status, 1, 'a conflict stops it');
like(
	$out,
	qr{CONFLICT \(content\): .* src/backend/main\.c},
	'git says which file');
like(
	$out,
	qr/hint: .*git rebase --continue.*git rebase --abort/,
	'it says how to go on');
like(
	slurp_file($main),
	qr/^<<<<<<< (?s:.*)^our_call\(\);$/m,
	'the file has both sides');
is(state_of_series(), $before, 'the series is as it was');

foreach my $tool (qw(export rebase))
{
	($status, $out) =
	  $checkout->run($tool, $tool eq 'rebase' ? $changed : ());
	is($status, 1, "$tool meanwhile is refused");
}

# Back.
$checkout->git('rebase', '--abort');
is(state_of_series(), $before, 'after git rebase --abort all is as it was');
($status, $out) = $checkout->run('check');
is($status, 0, 'and check passes');
($status, $out) = $checkout->run('prepare', '--force');
is( $checkout->git('log', '-1', '--format=%s', 'lazydrop/upstream'),
	"PostgreSQL 18.7\n",
	'the tree is of the release before');

# Again, and on.
($status, $out) = $checkout->run('rebase', $changed);
is($status, 1, 'the same conflict');
ScratchCheckout::write_file($main,
	"new line\n" . $text =~
	  s/^line 4\n\n/line four\nour_call();\nand more\n/mr);
$checkout->git('add', 'src/backend/main.c');
$checkout->git('-c', 'core.editor=true', 'rebase', '--continue');
($status, $out) = $checkout->run('export');
is($status, 0, 'export after git rebase --continue');
has_moved('19.1', $changed, qr/^ line four\n\+our_call\(\);\n and more$/m);

# --- what cannot be moved to ---------------------------------------------------------

$before = state_of_series();
($status, $out) = $checkout->run(
	'rebase',
	$checkout->tarball(
		'19.2', 'src/backend/storage/lazydrop/README' => "theirs\n"));
is($status, 1, 'a release that has a file of ours is refused');
like($out, qr{already has the file "src/backend/storage/lazydrop/README"},
	'it is named');
append_to_file($main, "edit\n");
($status, $out) = $checkout->run('rebase', $moved);
is($status, 1, 'so is a tree with edits');
like($out, qr{hint:\s+M src/backend/main\.c}, 'they are named');
$checkout->git('checkout', '-q', 'src/backend/main.c');
is(state_of_series(), $before, 'and nothing has changed');

# --- a version of the archive's ------------------------------------------------------

# Let it offer a release, whose tarball is returned.
sub offer
{
	my ($release, %files) = @_;
	my $tarball = $checkout->tarball($release, %files);
	$checkout->program('apt-cache', <<"EOF");
#!/bin/sh
echo 'postgresql-17 | $release-1 | http://archive.example/debian stable/main Sources'
EOF
	$checkout->program('apt-get', <<"EOF");
#!/bin/sh
case "\$*" in
	*indextargets*) echo http://archive.example/debian/ stable main ;;
	*source*) cp "$tarball" postgresql-17_$release.orig.tar.bz2 ;;
esac
EOF
	return $tarball;
}

my $offered = offer('17.9');
($status, $out) = $checkout->run('rebase', '17.8');
is($status, 1, 'a version that the archive does not offer');
like(
	$out,
	qr/error: the archive has no PostgreSQL 17\.8.*17\.9/s,
	'it says what is offered');
is(state_of_series(), $before, 'nothing has changed');
($status, $out) = $checkout->run('rebase', '17.9');
is($status, 1, 'one that it does: with the same conflict, the other way');
ScratchCheckout::write_file($main,
	$text =~ s/^line 4$/line 4\nour_call();/mr);
$checkout->git('add', 'src/backend/main.c');
$checkout->git('-c', 'core.editor=true', 'rebase', '--continue');
($status, $out) = $checkout->run('export');
has_moved('17.9', $offered, qr/^\@\@ -13,2 \+13,3 \@\@/m);

$offered = offer('17.10', 'src/backend/main.c' => "// 17.10\n$text");
($status, $out) = $checkout->run('rebase', '17.10');
is($status, 0, 'the next one is fetched, too');
has_moved('17.10', $offered, qr/^\@\@ -14,2 \+14,3 \@\@/m);

done_testing();
