# Copyright (c) 2026, LazyDrop developers

# Several major versions in one checkout.  Each has a tree of its own, which the other
# one's commands never touch, and its own differences.  A major version that is not
# supported is rejected with its name, no matter how it is requested.

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
my ($status, $out);

# PostgreSQL 17 has a different Makefile.
my $tarball_18 = $checkout->tarball('18.6');
my $tarball_17 = $checkout->tarball('17.9',
	'src/backend/storage/Makefile' => "SUBDIRS = none\n# end\n");
append_to_file("$top/upstream.conf",
		"\nrelease_17 = 17.9\nsha256_17 = "
	  . Digest::SHA->new(256)->addfile($tarball_17)->hexdigest
	  . "\ntested_17 =\n");
my $header = $checkout->read('patches/register.patch') =~ s/^---.*//msr;
my $own = "$header--- a/src/backend/storage/Makefile
+++ b/src/backend/storage/Makefile
\@\@ -1,2 +1,3 \@\@
 SUBDIRS = none
+SUBDIRS += lazydrop
 # end
";

# --- a tree for each major version ------------------------------------------

($status, $out) = $checkout->run('prepare', "--with-upstream=$tarball_17");
is($status, 1, 'a major version that the series does not fit');
like($out, qr/Makefile", line 1: the hunk does not apply/, 'is refused');

# A file that only the default major version has is left alone.
$checkout->write('patches/17/register.patch',
	"$own--- a/src/gone.c\n+++ b/src/gone.c\n");
($status, $out) = $checkout->run(
	'env', 'PG_MAJOR=',
	"$top/src/tools/lazydrop/prepare", "--with-upstream=$tarball_17");
is($status, 0, 'with what it has otherwise, it is prepared');
like(
	$checkout->read('.pg/17/tree/src/backend/storage/Makefile'),
	qr/^SUBDIRS = none\nSUBDIRS \+= lazydrop\n/,
	'its own diff is applied');
like($checkout->read('.pg/17/tree/src/backend/storage/meson.build'),
	qr/^subdir\('lazydrop'\)$/m, 'and of the others the common one');
is($checkout->read('.pg/17/tree/src/backend/storage/lazydrop/README'),
	"rules\n", 'our files are linked');
ok(!-e "$top/.pg/tree", 'the default one has no tree yet');

($status, $out) = $checkout->run('prepare', "--with-upstream=$tarball_18");
is($status, 0, 'the default one is prepared');
is( $checkout->read('.pg/tree/src/backend/storage/Makefile'),
	"SUBDIRS = aio\nSUBDIRS += lazydrop\ninclude common.mk\n",
	'without what is the other one\'s');
my $state = ScratchCheckout::fingerprint("$top/.pg");
($status, $out) = $checkout->run('prepare', '--print-release');
is($out, "18.6\n", 'the default one is up to date');
($status, $out) = $checkout->run('prepare', '--print-major');
is($out, "18 .pg/tree\n", 'and tells what it is');
{
	local $checkout->{major} = 17;
	($status, $out) = $checkout->run('prepare', '--print-release');
	is($out, "17.9\n", 'so is the one that PG_MAJOR chooses');
	($status, $out) = $checkout->run('prepare', '--print-major');
	is($out, "17 .pg/17/tree\n", 'and tells what it is');
}
is(ScratchCheckout::fingerprint("$top/.pg"), $state, 'nothing is touched');

# Differences of one major version do not affect the default one.
$checkout->write('patches/17/register.patch', $own =~ s/# end/# END/r);
($status, $out) = $checkout->run('prepare');
is($out, '', 'a change for one is none for the other');
{
	local $checkout->{major} = 17;
	($status, $out) = $checkout->run('prepare');
	is($status, 1, 'but one for itself');
	like($out, qr/the hunk does not apply/, 'which does not fit');
	$checkout->write('patches/17/register.patch', $own);
	($status, $out) = $checkout->run('prepare');
	is($status, 0, 'and one that does');
}

# --- rejected versions ------------------------------------------------------

foreach my $major (16, '018', 'x')
{
	local $checkout->{major} = $major;
	foreach my $tool (qw(prepare check-series import export))
	{
		($status, $out) = $checkout->run($tool);
		is($status, 1, "PG_MAJOR=$major $tool is refused");
		is( $out,
			"$tool: error: PostgreSQL $major is not served\n"
			  . "$tool: hint: LazyDrop serves PostgreSQL 17, 18.\n",
			'with those that are served');
	}
}
($status, $out) =
  $checkout->run('prepare', '--with-upstream=' . $checkout->tarball('16.1'));
like(
	$out,
	qr/error: .* is PostgreSQL 16\.1, which is not served\n.*PostgreSQL 17, 18\./,
	'so is the source of another one');
{
	local $checkout->{major} = 17;
	($status, $out) =
	  $checkout->run('prepare', "--with-upstream=$tarball_18");
	is($status, 1, 'a source that is not of PG_MAJOR is refused');
	like($out, qr/error: .* is PostgreSQL 18\.6, but PG_MAJOR is 17$/m,
		'it says so');
}
$checkout->write('patches/17/other.patch', $own);
($status, $out) = $checkout->run('check-series');
like(
	$out,
	qr/"\S+other\.patch" has no counterpart in/,
	'a patch of one alone is refused');
$checkout->remove('patches/17/other.patch');

# --- Meson ------------------------------------------------------------------

# Meson calls prepare repeatedly for each build directory, in any environment.
mkdir("$top/m") or die "could not create directory: $!";
{
	local $checkout->{meson} = "$top/m";
	{
		local $checkout->{major} = 17;
		($status, $out) = $checkout->run('prepare', '--print-release');
	}
	is($out, "17.9\n", 'a build directory of Meson\'s');
	is(readlink("$top/.pg/meson_options.txt"),
		'17/tree/meson_options.txt', 'finds its options');
	($status, $out) = $checkout->run('prepare', '--print-release');
	is($out, "17.9\n", 'and stays what it is');
	local $checkout->{major} = 18;
	($status, $out) = $checkout->run('prepare');
	like(
		$out,
		qr/error: .*m" has been set up for PostgreSQL 17$/m,
		'it cannot become another one\'s');
}

# --- export -----------------------------------------------------------------

# If the major version is not the default, only its differences are written.
my $common = ScratchCheckout::fingerprint("$top/patches");
$checkout->{major} = 17;
($status, $out) = $checkout->run('import');
is($status, 0, 'import');
($status, $out) = $checkout->run('export');
is($status, 0, 'export');
is(ScratchCheckout::fingerprint("$top/patches"),
	$common, 'what was imported is exported, not even touched');

sub change
{
	my ($file, $from, $to) = @_;
	my $path = "$top/.pg/17/tree/$file";
	my $text = slurp_file($path);
	ScratchCheckout::write_file($path, $text =~ s/$from/$to/r);
	$checkout->git('commit', '-q', '-a', '--amend', '--no-edit');
	($status, $out) = $checkout->run('export');
	is($status, 0, "export of a change in $file");
	return;
}
my $series = $checkout->read('patches/register.patch');
change('src/backend/main.c', qr/^line 4$/m, "line 4\nonly_here();");
like($checkout->read('patches/17/register.patch'),
	qr/^\+only_here\(\);$/m, 'a further file is among what it has otherwise');
change('src/backend/main.c', qr/only_here\(\);\n/, '');
is($checkout->read('patches/17/register.patch'),
	$own, 'and is not when it is not changed any more');
is($checkout->read('patches/register.patch'),
	$series, 'the series stays as it is');

# A patch that becomes empty.
$checkout->git('reset', '-q', '--hard', 'HEAD~1');
($status, $out) = $checkout->run('export');
is($status, 0, 'export without a commit');
is( $checkout->read('patches/17/register.patch'),
	$header
	  . join(
		'',
		map { "--- a/src/backend/storage/$_\n+++ b/src/backend/storage/$_\n" }
		  qw(Makefile meson.build)),
	'leaves the patch out');
$checkout->remove('.pg/17');
($status, $out) = $checkout->run('prepare', "--with-upstream=$tarball_17");
is( $checkout->git('log', '--format=%s'),
	"PostgreSQL 17.9\n",
	'and so does prepare');
($status, $out) = $checkout->run('check-series');
like($out, qr/^series on 17\.9: 0 patches, /m, 'and check-series');

done_testing();
