# Copyright (c) 2026, LazyDrop developers

# import and export are inverse to each other, byte for byte, and neither of them loses
# work.  check-series rejects a series or an overlay that could silently go wrong,
# especially a hunk that fits in two places, which neither git apply nor patch rejects.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib $FindBin::RealBin;
use PostgreSQL::Test::Utils;
use ScratchCheckout;
use Test::More;

my $checkout = ScratchCheckout->new;
my $top = $checkout->{top};
my $main = "$top/.pg/tree/src/backend/main.c";
my ($status, $out) = $checkout->run('export');
is($status, 1, 'export without a tree is refused');
like($out, qr/error: there is no prepared tree/, 'it says so');
$checkout->run('prepare', '--with-upstream=' . $checkout->tarball('18.6'));

my $trailer =
  "Description: A topic\nAuthor: nobody\nForwarded: not-needed\nLast-Update: 2026-01-01\n";

sub commit
{
	my ($message) = @_;
	$checkout->git('commit', '-q', '-a', '-m', $message);
	return;
}

sub patches
{
	return ScratchCheckout::fingerprint("$top/patches");
}

# --- import and export ------------------------------------------------------

my $before = patches();
($status, $out) = $checkout->run('import');
is($status, 0, 'import');
is( $checkout->git('status', '--porcelain'),
	'',
	'nothing is modified and nothing untracked: links and rewritten files are hidden'
);
is( $checkout->git('log', '--format=%s'),
	"register\nPostgreSQL 18.6\n",
	'one commit for each patch');
like($checkout->git('show', 'HEAD:meson.build'),
	qr/meson\.source_root\(\)/, 'history has upstream\'s own text');
like($checkout->read('.pg/tree/meson.build'),
	qr/lazydrop_source_root/, 'the tree has the rewritten one');
($status, $out) = $checkout->run('export');
is($status, 0, 'export');
is(patches(), $before, 'what was imported is exported, not even touched');

# Make an edit like a developer.
my $text = slurp_file($main);
ScratchCheckout::write_file($main,
	$text =~ s/^line 4$/line 4\nour_call();/mr);
($status, $out) = $checkout->run('export');
is($status, 1, 'an edit that is not committed is refused');
like($out, qr{hint:\s+M src/backend/main\.c}, 'it is named');
commit("our-topic\n\n$trailer");
($status, $out) = $checkout->run('import');
is($status, 1, 'import does not discard a commit that was not exported');
like($out, qr/hint: \w+ our-topic/, 'it is named');
my $series = $checkout->read('patches/series');
$checkout->write('patches/series', "# pulled\n$series");

foreach my $options ([], ['--force'])
{
	($status, $out) = $checkout->run('prepare', @$options);
	is($status, 1, "nor does prepare @$options, when the series has changed");
	is($checkout->git('log', '-1', '--format=%s'),
		"our-topic\n", 'it is still there');
}
$checkout->write('patches/series', $series);

# Branches are not lost, either.
$checkout->git('branch', 'mine');
$checkout->git('reset', '-q', '--hard', 'lazydrop/series');
($status, $out) = $checkout->run('import');
is($checkout->git('log', '-1', '--format=%s', 'mine'),
	"our-topic\n", 'import keeps a branch');
$checkout->git('reset', '-q', '--hard', 'mine');
$checkout->git('branch', '-D', '-q', 'mine');

# An export during an unfinished rebase would write an intermediate state.
$checkout->git('checkout', '-q', 'HEAD~1');
($status, $out) = $checkout->run('export');
is($status, 1, 'export in the middle of a rebase is refused');
like($out, qr/error: the prepared tree is not on its branch/, 'it says so');
$checkout->git('checkout', '-q', 'lazydrop');
$checkout->write('src/backend/storage/lazydrop/more.c', "int more;\n");
($status, $out) = $checkout->run('prepare');
is($status, 0, 'prepare goes on in an imported tree');
is($checkout->git('log', '-1', '--format=%s'), "our-topic\n", 'and keeps it');
$checkout->remove('src/backend/storage/lazydrop/more.c');
($status, $out) = $checkout->run('export');
is($status, 0, 'export');
my $patch = $checkout->read('patches/our-topic.patch');
is( $patch, "$trailer
--- a/src/backend/main.c
+++ b/src/backend/main.c
\@\@ -13,2 +13,3 \@\@
 line 4
+our_call();
 
", 'the patch has one line of context on each side');
is( $checkout->read('patches/series'),
	"# the series\nregister.patch\nour-topic.patch\n",
	'it is in the series, whose comments stay');
($status, $out) = $checkout->run('prepare');
is($status, 0, 'prepare with the exported series');
like(slurp_file($main), qr/our_call/, 'the edit is in the tree');
is($checkout->git('status', '--porcelain'), '', 'nothing is modified');
($status, $out) = $checkout->run('import');
is($status, 0, 'import again');
$before = patches();
($status, $out) = $checkout->run('export');
is(patches(), $before, 'export again gives the same bytes');

# Where one line of context fits in several places, more lines are written.
my $lines = slurp_file($main);
ScratchCheckout::write_file($main,
	$lines =~ s/^line 6\n\n\{\n/line 6\n\n{\ninside();\n/mr);
commit("our-other\n\n$trailer");
($status, $out) = $checkout->run('export');
is($status, 0, 'export of an edit in repetitive text');
like(
	$checkout->read('patches/our-other.patch'),
	qr/^\@\@ [^\n]*\n \n \{\n\+inside\(\);\n \}\n line 7\n\z/m,
	'as much context as makes it unique');
($status, $out) = $checkout->run('import');
is($status, 0, 'which can be imported');

# Edit the first and the last line of a file, and two lines close to each other.
my %edit = (
	'^line 1$' => "line 1\nsecond();",
	'^line 2$' => 'line two',
	'^line 3$' => "line 3\nthird();");
$lines = "first();\n" . slurp_file($main);
foreach my $pattern (sort keys %edit)
{
	$lines =~ s/$pattern/$edit{$pattern}/m;
}
ScratchCheckout::write_file($main, "${lines}last();\n");
commit("edges\n\n$trailer");
($status, $out) = $checkout->run('export');
is($status, 0, 'export of edits at both ends of a file');
is(join(' ', $checkout->read('patches/edges.patch') =~ /^-(?!-)(.*)$/mg),
	'line 2', 'no line is repeated that has not changed');
$checkout->remove('.pg/tree');
($status, $out) = $checkout->run('prepare');
is($status, 0, 'a new tree from the exported series');
is(slurp_file($main), "${lines}last();\n", 'has the same text');

($status, $out) = $checkout->run('import');
is($status, 0, 'import');

# Change patches/ meanwhile, as a pull would do.
$checkout->write('patches/edges.patch',
	$checkout->read('patches/edges.patch') =~ s/^\+third\(\);$/+other();/mr);
$before = patches();
($status, $out) = $checkout->run('export');
is($status, 1, 'export refuses to overwrite patches that changed');
like($out, qr/error: patches\/ has changed since the tree was imported/,
	'it says so');
is(patches(), $before, 'they are untouched');
($status, $out) = $checkout->run('prepare');
is($status, 0, 'prepare takes the changed series over');
like(slurp_file($main), qr/^other\(\);$/m, 'into the tree');
is($checkout->git('status', '--porcelain'), '', 'and into its history');

# If a commit is dropped, its patch is removed.
$checkout->git('reset', '-q', '--hard', 'HEAD~2');
($status, $out) = $checkout->run('export');
is($status, 0, 'export after dropping commits');
ok(!-e "$top/patches/edges.patch" && !-e "$top/patches/our-other.patch",
	'their patches are gone');
is( $checkout->read('patches/series'),
	"# the series\nregister.patch\nour-topic.patch\n",
	'from the series too');

# --- rejected exports -------------------------------------------------------

sub export_refused
{
	my ($what, $message, $change) = @_;
	my $before = patches();
	$change->();
	my ($status, $out) = $checkout->run('export');
	is($status, 1, "$what: refused");
	like($out, $message, "$what: says why");
	is(patches(), $before, "$what: patches are untouched");
	$checkout->git('reset', '-q', '--hard', 'lazydrop/series');
	return;
}

export_refused(
	'a new file',
	qr/ create mode \d+ src\/backend\/new\.c$/m,
	sub {
		ScratchCheckout::write_file("$top/.pg/tree/src/backend/new.c",
			"new\n");
		$checkout->git('add', 'src/backend/new.c');
		commit("new-file\n\n$trailer");
	});
export_refused(
	'a removed file',
	qr/ delete mode \d+ src\/backend\/other\.c$/m,
	sub {
		$checkout->git('rm', '-q', 'src/backend/other.c');
		commit("removed-file\n\n$trailer");
	});
export_refused(
	'a changed mode',
	qr/ mode change 100644 => 100755 src\/backend\/other\.c$/m,
	sub {
		chmod(0755, "$top/.pg/tree/src/backend/other.c") or die "chmod: $!";
		commit("mode\n\n$trailer");
	});
export_refused(
	'a name with a number',
	qr/"topic-2" cannot be a patch's name/,
	sub {
		append_to_file($main, "x\n");
		commit("topic-2\n\n$trailer");
	});
export_refused(
	'a header without its fields',
	qr/"topic" has no "Author:" field/,
	sub {
		append_to_file($main, "x\n");
		commit("topic\n\nDescription: x\nForwarded: no\n");
	});
export_refused(
	'a fixup',
	qr/"fixup! register" cannot be a patch's name.*--autosquash/s,
	sub {
		append_to_file($main, "x\n");
		commit("fixup! register\n\n$trailer");
	});
export_refused(
	'an emptied file',
	qr/"src\/backend\/other\.c" does not end with a newline/,
	sub {
		ScratchCheckout::write_file("$top/.pg/tree/src/backend/other.c", '');
		commit("emptied\n\n$trailer");
	});
export_refused(
	'a merge',
	qr/is a merge/,
	sub {
		$checkout->git('checkout', '-q', '-b', 'side');
		append_to_file($main, "x\n");
		commit("side\n\n$trailer");
		$checkout->git('checkout', '-q', 'lazydrop');
		$checkout->git('merge', '-q', '--no-ff', '-m', 'merge', 'side');
		$checkout->git('branch', '-q', '-D', 'side');
	});
export_refused(
	'a name that is there already',
	qr/two commits have the name "register"/,
	sub {
		append_to_file($main, "x\n");
		commit("register\n\n$trailer");
	});

# --- check-series -----------------------------------------------------------

# Files that are changed for a check are restored afterwards.
sub check_finds
{
	my ($what, $message, %files) = @_;
	my %saved =
	  map { $_ => -e "$top/$_" ? $checkout->read($_) : undef } keys %files;
	foreach my $path (keys %files)
	{
		defined $files{$path}
		  ? $checkout->write($path, $files{$path})
		  : $checkout->remove($path);
	}
	my ($status, $out) = $checkout->run('check-series');
	is($status, 1, "check-series finds $what");
	like($out, $message, "check-series says about $what");
	like($out, qr/^\d+ passed, [1-9]\d* failed\n\z/m, 'closing line');
	foreach my $path (keys %files)
	{
		defined $saved{$path}
		  ? $checkout->write($path, $saved{$path})
		  : $checkout->remove($path);
	}
	return;
}

my $readme = $checkout->read('patches/README.md');
$checkout->write('patches/README.md', "$readme\n## our-topic.patch\n");
($status, $out) = $checkout->run('check-series');
is($status, 0, 'check-series passes');
like(
	$out,
	qr/^series on 18\.6: 2 patches, 3 upstream files, 3 hunks, 0 of its own, \+3 -0 lines, 5 lines of context; 4 files/m,
	'the size of the series is printed');
like($out, qr/^7 passed, 0 failed\n\z/m, 'closing line');

check_finds(
	'a patch without a section in the README',
	qr/has no section "our-topic\.patch"/,
	'patches/README.md' => $readme);
check_finds(
	'a section without a patch',
	qr/describes "gone\.patch", which is not in the series/,
	'patches/README.md' => "$readme\n## our-topic.patch\n## gone.patch\n");
check_finds(
	'a patch that is not listed',
	qr/"our-topic\.patch" is not listed/,
	'patches/series' => "register.patch\n");
check_finds(
	'a patch that is listed twice',
	qr/"register\.patch" is listed twice/,
	'patches/series' => "register.patch\nour-topic.patch\nregister.patch\n");
check_finds(
	'a patch that does not exist',
	qr/"none\.patch" is listed in .* but does not exist/,
	'patches/series' => "register.patch\nour-topic.patch\nnone.patch\n");
check_finds(
	'a patch without a description',
	qr/"our-topic\.patch" has no "Description:" field/,
	'patches/our-topic.patch' => $patch =~ s/^Description: /Descr: /r);
check_finds(
	'a hunk that fits in two places',
	qr/the hunk could land in 8 places/,
	'patches/our-topic.patch' => $patch =~
	  s/\@\@.*/\@\@ -14,2 +14,3 \@\@\n \n+our_call();\n {\n/sr);
check_finds(
	'a hunk that fits at another line',
	qr/the hunk applies at line 13 instead/,
	'patches/our-topic.patch' => $patch =~ s/-13,2 \+13,3/-12,2 +12,3/r);
check_finds(
	'a hunk that does not fit',
	qr/the hunk does not apply/,
	'patches/our-topic.patch' => $patch =~ s/^ line 4$/ line 44/mr);
check_finds(
	'more context than needed',
	qr/"our-topic\.patch" differs from what export writes/,
	'patches/our-topic.patch' => $patch =~
	  s/\@\@.*/\@\@ -13,3 +13,4 \@\@\n line 4\n+our_call();\n \n {\n/sr);
check_finds(
	'a file of ours that upstream has',
	qr/already has the file "src\/backend\/other\.c"/,
	'src/backend/other.c' => "ours\n");
check_finds(
	'a copy of an upstream file',
	qr/"doc\/copied" is upstream's "src\/backend\/main\.c"/,
	'doc/copied' => $text);
check_finds(
	'a C file that make does not know',
	qr{"src/backend/storage/lazydrop/Makefile" does not list ".*/worker\.c"},
	'src/backend/storage/lazydrop/worker.c' => "int w;\n",
	'src/backend/storage/lazydrop/meson.build' =>
	  "files('lazydrop.c', 'worker.c')\n");
check_finds(
	'a C file that Meson does not know',
	qr{"src/backend/storage/lazydrop/meson\.build" does not list ".*/worker\.c"},
	'src/backend/storage/lazydrop/worker.c' => "int w;\n",
	'src/backend/storage/lazydrop/Makefile' => "OBJS = lazydrop.o worker.o\n"
);
check_finds(
	'a TAP test that Meson does not know',
	qr{"src/backend/storage/lazydrop/meson\.build" does not list ".*/t/001_x\.pl"},
	'src/backend/storage/lazydrop/t/001_x.pl' => "1;\n");
check_finds(
	'a folder that its parents do not know',
	qr{"contrib/Makefile" does not list "contrib/pg_x/Makefile".*"contrib/meson\.build" does not list}s,
	'contrib/pg_x/Makefile' => "OBJS = x.o\n",
	'contrib/pg_x/meson.build' => "x\n");
check_finds(
	'a page that the manual does not know',
	qr{"doc/src/sgml/filelist\.sgml" does not list "doc/src/sgml/x\.sgml"},
	'doc/src/sgml/x.sgml' => "<x/>\n");

# git runs hooks with variables that refer to the repository of the commit.
{
	local $ENV{GIT_DIR} = "$top/.git";
	local $ENV{GIT_INDEX_FILE} = "$top/.git/index";
	($status, $out) = $checkout->run('check-series');
	is($status, 0, 'check-series in a hook of git');
	ok(!-e "$top/.git", 'touches no other repository');
}

# After all of these checks, the checkout is unchanged.
($status, $out) = $checkout->run('check-series');
is($status, 0, 'check-series passes again');

done_testing();
