# Copyright (c) 2026, LazyDrop developers

=pod

=head1 NAME

LazyDropFiles - functions to look at what a server has on disk

=head1 DESCRIPTION

Functions for the files of relations and databases, for the rows in them, for WAL and for
the control file.  Nodes are PostgreSQL::Test::Cluster objects.  Paths are relative to the
data directory, like the result of pg_relation_filepath.

=cut

package LazyDropFiles;

use strict;
use warnings FATAL => 'all';

use Carp;
use Exporter 'import';
use IPC::Run;
use LazyDropUtils qw(wait_for_nothing wait_until);
use PostgreSQL::Test::Utils;
use Test::More;

our @EXPORT_OK = qw(database_directories relation_files add_segments
  hidden_files orphaned_files nothing_is_left contents dbase_drop_records
  minimum_recovery_point);

=pod

=over

=item database_directories($node, $oid)

Returns the directories of a database on a node, in all tablespaces.

=cut

sub database_directories
{
	my ($node, $oid) = @_;
	my $data = $node->data_dir;
	return map { substr($_, length($data) + 1) }
	  grep { -d } ("$data/base/$oid", glob("'$data'/pg_tblspc/*/*/$oid"));
}

=pod

=item relation_files($node, $path)

Returns the sorted list of a relation's files on a node, of all forks and segments.

=cut

sub relation_files
{
	my ($node, $path) = @_;
	my $data = $node->data_dir;
	my @files = sort grep { m{^\Q$path\E(_(fsm|vm|init))?(\.[0-9]+)?$} }
	  map { substr($_, length($data) + 1) } glob("'$data/$path'*");
	return @files;
}

=pod

=item add_segments($node, $path, $n, $size)

Add $n segments of $size bytes each to a relation that will be dropped.  The files are
sparse, and have no blocks on the disk.

=cut

sub add_segments
{
	my ($node, $path, $n, $size) = @_;
	foreach my $segno (1 .. $n)
	{
		my $name = $node->data_dir . "/$path.$segno";
		open(my $file, '>', $name) or croak "could not create $name: $!";
		truncate($file, $size) or croak "could not extend $name: $!";
		close($file);
	}
	return;
}

=pod

=item hidden_files($node)

Returns the files and directories that a node has hidden and not yet removed, sorted.

=cut

sub hidden_files
{
	my ($node) = @_;
	my $data = $node->data_dir;
	my $name = 'pgsql_tmp/pgsql_tmp.lazydrop.*';
	my @files = sort map { substr($_, length($data) + 1) }
	  glob("'$data'/base/$name '$data'/pg_tblspc/*/*/$name");
	return @files;
}

=pod

=item orphaned_files($node [, crashed => 1])

Returns the directories of databases and tablespaces that are not in a node's catalogs,
and the files in directories of known databases that are not in pg_class, sorted.
Databases that do not allow connections are not searched.  On a primary, call this after a
checkpoint, which unlinks the first segments of dropped relations.

A server that has crashed, or that is a copy of another one, may have empty first
segments: stock PostgreSQL leaves them when a checkpoint happens between a commit and the
request to unlink them.  They are ignored if "crashed" is set.

=cut

sub orphaned_files
{
	my ($node, %options) = @_;
	my $data = $node->data_dir;
	my $major = $node->pg_version->major;
	my (%databases, %known);
	foreach my $line (
		split /\n/,
		$node->safe_psql(
			'postgres', q{
			SELECT oid, datallowconn AND datconnlimit <> -2, datname
			FROM pg_database}))
	{
		my ($oid, $can_connect, $name) = split /\|/, $line, 3;
		$databases{$oid} = $can_connect eq 't';
		next if !$databases{$oid};
		$known{$_} = 1 foreach split /\n/, $node->safe_psql(
			$name, q{
			SELECT pg_relation_filepath(oid) FROM pg_class
			WHERE pg_relation_filepath(oid) IS NOT NULL});
	}
	my %tablespaces = map { $_ => 1 } split /\n/,
	  $node->safe_psql('postgres', 'SELECT oid FROM pg_tablespace');

	my @orphans =
	  grep { m{/([0-9]+)$} && !$tablespaces{$1} }
	  map { substr($_, length($data) + 1) } glob("'$data'/pg_tblspc/*");
	foreach my $directory (
		map { substr($_, length($data) + 1) } glob(
			"'$data'/global '$data'/base/* '$data'/pg_tblspc/*/PG_${major}_*/*"
		))
	{
		if ($directory =~ m{/([0-9]+)$} && !$databases{$1})
		{
			push @orphans, $directory if !exists $databases{$1};
			next;
		}
		next unless $directory =~ m{^global$|/[0-9]+$};
		foreach my $file (slurp_dir("$data/$directory"))
		{
			next
			  if $file =~
			  /^(\.\.?|PG_VERSION|pg_filenode\.map(\.tmp)?|pg_internal\.init.*)$/;
			my ($number, $rest) = $file =~ /^((?:t[0-9]+_)?[0-9]+)(.*)$/;
			if (!defined $number)
			{
				push @orphans, "$directory/$file" if $directory ne 'global';
				next;
			}
			next
			  if $known{"$directory/$number"}
			  && $rest =~ /^(_(fsm|vm|init))?(\.[0-9]+)?$/;
			next
			  if $options{crashed}
			  && $rest eq ''
			  && -z "$data/$directory/$file";
			push @orphans, "$directory/$file";
		}
	}
	@orphans = sort @orphans;
	return @orphans;
}

=pod

=item nothing_is_left($node, $what)

Wait until nothing is pending, make a checkpoint, and check that no file of a dropped
relation is left, neither under its own name nor hidden.

=cut

sub nothing_is_left
{
	my ($node, $what) = @_;
	wait_for_nothing($node);
	$node->safe_psql('postgres', 'CHECKPOINT');
	# The worker may still be searching for files that were hidden before a restart.
	wait_until(sub { !hidden_files($node) });
	is_deeply([ hidden_files($node), orphaned_files($node) ],
		[], "$what: nothing is left");
	return;
}

=pod

=item contents($node [, users_only => 1, except => \@names])

Returns a hash reference with the number of rows and a checksum of each permanent table,
materialized view and sequence of each database.  Catalogs are left out, except those that
list the relations and databases; with "users_only", these are left out, too.

=cut

sub contents
{
	my ($node, %options) = @_;
	my $catalogs =
	  $options{users_only}
	  ? 'false'
	  : q{c.relname IN ('pg_class', 'pg_attribute', 'pg_database', 'pg_tablespace')};
	my $except = join(', ', map { "'$_'" } '', @{ $options{except} // [] });
	my %contents;
	foreach my $database (
		split /\n/,
		$node->safe_psql(
			'postgres', q{
			SELECT datname FROM pg_database
			WHERE datallowconn AND datconnlimit <> -2}))
	{
		my $lines = $node->safe_psql(
			$database, qq{
			SELECT format('SELECT %L, count(*), sum(hashtextextended(t::text, 0)::numeric) FROM %s AS t',
				c.oid::regclass, c.oid::regclass)
			FROM pg_class AS c JOIN pg_namespace AS n ON n.oid = c.relnamespace
			WHERE c.relkind IN ('r', 'm', 'S') AND c.relpersistence = 'p'
				AND c.relname NOT IN ($except)
				AND (c.oid >= 16384 AND n.nspname NOT LIKE 'pg\\_%' OR $catalogs) \\gexec}
		);
		$contents{"$1 in $database"} = $2
		  while $lines =~ /^([^|]+)\|(\d+\|.*)$/mg;
	}
	return \%contents;
}

=pod

=item dbase_drop_records($node, $start, $end)

Returns the XLOG_DBASE_DROP records between two LSNs in a node's own pg_wal, as pg_waldump
shows them: a list of hash references with lsn, prev (the start of the preceding record)
and pairs (a list of "tablespace/database").

=cut

sub dbase_drop_records
{
	my ($node, $start, $end) = @_;
	my ($out, $err) = ('', '');
	IPC::Run::run(
		[
			$node->installed_command('pg_waldump'),
			'--path' => $node->data_dir . '/pg_wal',
			'--rmgr' => 'Database',
			'--start' => $start,
			'--end' => $end
		],
		'>' => \$out,
		'2>' => \$err) or croak "pg_waldump failed: $err";

	my @records;
	foreach my $line (split /\n/, $out)
	{
		my ($lsn, $prev, $desc) =
		  $line =~
		  m{lsn: ([0-9A-F]+/[0-9A-F]+), prev ([0-9A-F]+/[0-9A-F]+), desc: (.*)$}
		  or croak "unexpected line of pg_waldump: $line";
		next unless $desc =~ /^DROP dir (.*)$/;
		push @records,
		  { lsn => $lsn, prev => $prev, pairs => [ split ' ', $1 ] };
	}
	return @records;
}

=pod

=item minimum_recovery_point($node)

Returns the minimum recovery point in the control file of a standby.

=cut

sub minimum_recovery_point
{
	my ($node) = @_;
	my ($out, $err) =
	  run_command([ 'pg_controldata', '--pgdata' => $node->data_dir ]);
	$out =~ /Minimum recovery ending location: *([0-9A-F\/]+)/
	  or croak "unexpected output of pg_controldata: $out$err";
	return $1;
}

=pod

=back

=cut

1;
