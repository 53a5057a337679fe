# Copyright (c) 2026, LazyDrop developers

# The series moves to another release.  If only line numbers have changed, this is
# automatic; if lines have changed, the user continues with git's own commands.  Another
# major version is added beside the default one, with its differences.  Until the series
# has moved, or if it cannot be moved, nothing changes.

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

# Besides the commit in makefiles, create a commit in text that differs between releases.
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

# Returns the state that must not change, or must be restored.
sub state_of_series
{
	return join "\n", ScratchCheckout::fingerprint("$top/patches"),
	  $checkout->read('upstream.conf'),
	  $checkout->git('rev-parse', 'lazydrop/upstream', 'lazydrop/series');
}

# Check the state after a successful move.
sub has_moved
{
	my ($release, $tarball, $patch, $hunk) = @_;
	is( $checkout->git('log', '--format=%s'),
		"our-topic\nregister\nPostgreSQL $release\n",
		"$release: the commits are on it");
	like($checkout->read("patches/$patch"),
		$hunk, "$release: the patch has its lines");
	my $major = $release =~ s/\..*//r;
	like(
		$checkout->read('upstream.conf'),
		qr/^release_$major = \Q$release\E\nsha256_$major = @{[ digest($tarball) ]}\n/m,
		"$release: is pinned");
	($status, $out) = $checkout->run('check-series');
	is($status, 0, "$release: check-series passes");
	like(
		$out,
		qr/^ok - PostgreSQL $major: the series applies, .* at its line$/m,
		"$release: with exact lines");
	($status, $out) = $checkout->run('prepare', '--print-release');
	is($out, "$release\n", "$release: the tree has it");
	($status, $out) = $checkout->run('prepare');
	is($out, '', "$release: and is up to date");
	my $tree = $checkout->{major} ? ".pg/$major/tree" : '.pg/tree';
	like(
		$checkout->read("$tree/meson.build"),
		qr{lazydrop_source_root.*/\Q$tree\E/src}s,
		"$release: Meson's files are rewritten");
	is($checkout->read("$tree/src/backend/storage/lazydrop/README"),
		"rules\n", "$release: our files are linked");
	is($checkout->git('status', '--porcelain'),
		'', "$release: and nothing is modified");
	return;
}

# --- lines have moved -------------------------------------------------------

my $moved = $checkout->tarball(
	'18.7',
	'src/backend/main.c' => "new line\n$text",
	'src/backend/storage/Makefile' =>
	  "# new\nSUBDIRS = aio\ninclude common.mk\n");
($status, $out) = $checkout->run('rebase', $moved);
is($status, 0, 'rebase to a release where lines have moved');
has_moved('18.7', $moved, 'our-topic.patch', qr/^\@\@ -14,2 \+14,3 \@\@/m);
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

# --- a conflict -------------------------------------------------------------

my $changed = $checkout->tarball('18.8',
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

# Abort the rebase.
$checkout->git('rebase', '--abort');
is(state_of_series(), $before, 'after git rebase --abort all is as it was');
($status, $out) = $checkout->run('check-series');
is($status, 0, 'and check-series passes');
($status, $out) = $checkout->run('prepare', '--force');
is( $checkout->git('log', '-1', '--format=%s', 'lazydrop/upstream'),
	"PostgreSQL 18.7\n",
	'the tree is of the release before');

# Repeat it, and continue.
sub go_on
{
	my ($file, $contents) = @_;
	ScratchCheckout::write_file($file, $contents);
	$checkout->git('add', 'src/backend/main.c');
	$checkout->git('-c', 'core.editor=true', 'rebase', '--continue');
	($status, $out) = $checkout->run('export');
	is($status, 0, 'export after git rebase --continue');
	return;
}
($status, $out) = $checkout->run('rebase', $changed);
is($status, 1, 'the same conflict');
go_on($main,
	"new line\n" . $text =~
	  s/^line 4\n\n/line four\nour_call();\nand more\n/mr);
has_moved('18.8', $changed, 'our-topic.patch',
	qr/^ line four\n\+our_call\(\);\n and more$/m);

# --- releases that are rejected ---------------------------------------------

$before = state_of_series();
($status, $out) = $checkout->run(
	'rebase',
	$checkout->tarball(
		'18.9', 'src/backend/storage/lazydrop/README' => "theirs\n"));
is($status, 1, 'a release that has a file of ours is refused');
like($out, qr{already has the file "src/backend/storage/lazydrop/README"},
	'it is named');
append_to_file($main, "edit\n");
($status, $out) = $checkout->run('rebase', $moved);
is($status, 1, 'so is a tree with edits');
like($out, qr{hint:\s+M src/backend/main\.c}, 'they are named');
$checkout->git('checkout', '-q', 'src/backend/main.c');
is(state_of_series(), $before, 'and nothing has changed');

# --- another major version, from the archive --------------------------------

# Let the archive offer a release.  Returns its tarball.
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

# Its main.c is the same as in 18.6, so the hunk there does not fit, but the others do.
my $offered = offer('17.9');
($status, $out) = $checkout->run('rebase', '17.8');
is($status, 1, 'a version that the archive does not offer');
like(
	$out,
	qr/error: the archive has no PostgreSQL 17\.8.*17\.9/s,
	'it says what is offered');
is(state_of_series(), $before, 'nothing has changed');
($status, $out) = $checkout->run('prepare', "--with-upstream=$offered");
like(
	$out,
	qr/error: .* is PostgreSQL 17\.9, which is not served/,
	'nor can it be built');
($status, $out) = $checkout->run('rebase', '17.9');
is($status, 1, 'one that it does: with a conflict');
like(
	$out,
	qr{In \.pg/17/tree, edit.*run: PG_MAJOR=17 .*export}s,
	'it says where to go on');
is(state_of_series(), $before, 'nothing has changed');
($status, $out) = $checkout->run('rebase', '17.9');
is($status, 1, 'not from the beginning');
like(
	$out,
	qr{error: \.pg/17/tree has a move to PostgreSQL 17 that has not been exported},
	'so that no work is lost');

{
	local $checkout->{major} = 17;
	($status, $out) = $checkout->run('prepare');
	is( $out,
		"prepare: error: PostgreSQL 17 is not served before it is exported\n",
		'nor is it built yet');
	go_on(
		"$top/.pg/17/tree/src/backend/main.c",
		$text =~ s/^line 4$/line 4\nour_call();/mr);
	has_moved('17.9', $offered, '17/our-topic.patch',
		qr/^\@\@ -13,2 \+13,3 \@\@/m);
	is(join(' ', grep { !/^\./ } slurp_dir("$top/patches/17")),
		'our-topic.patch', 'of what fits there is no copy');
}
like(
	$checkout->read('upstream.conf'),
	qr/^default = 18\n(?s:.*)^release_18 = 18\.8\n/m,
	'the default is what it was');
($status, $out) = $checkout->run('check-series');
is($status, 0, 'check-series passes for both');
like(
	$out,
	qr/^ok - PostgreSQL $_: the series applies, .* at its line$/m,
	"with PostgreSQL $_") foreach 17, 18;
like(
	$out,
	qr/^series on 17\.9: 2 patches, 3 upstream files, 3 hunks, 1 of its own,/m,
	'what is its own is counted');
$checkout->remove('.pg/cache', '.pg/17', '.pg/17.key');
($status, $out) = $checkout->run('check-series');
is($status, 0, 'check-series passes without its source');
like($out, qr/^PostgreSQL 17 is not checked: its source is not at hand$/m,
	'and says so');
like($out, qr/^7 passed, 0 failed$/m, 'PostgreSQL 18 is checked');

# Its differences move to the next release with it.
$offered = offer('17.9');
my $next = $checkout->tarball('17.10', 'src/backend/main.c' => "// x\n$text");
{
	local $checkout->{major} = 17;
	($status, $out) = $checkout->run('rebase', $next);
	is($status, 0, 'the next one');
	has_moved('17.10', $next, '17/our-topic.patch',
		qr/^\@\@ -14,2 \+14,3 \@\@/m);
}

done_testing();
