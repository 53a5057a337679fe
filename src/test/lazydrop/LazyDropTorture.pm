# Copyright (c) 2026, LazyDrop developers

=pod

=head1 NAME

LazyDropTorture - sessions with a model of the expected contents

=head1 DESCRIPTION

A session is a process that runs random DDL and DML (TortureOperations) on its own tables
and databases with psql, and maintains a model of their contents (LazyDropModel).  The
server may become unavailable at any time.  If a transaction was in progress then, the
session has two models, and one of them must match when the server is back.

Each row contains the name of its table and a digest of the row, so that a page of another
table is detected.

=cut

package LazyDropTorture;

use strict;
use warnings FATAL => 'all';

use Carp;
use Exporter 'import';
use Fcntl qw(:flock);
use IPC::Run;
use LazyDropModel qw(draw read_file write_file epoch expected tables_of);
use PostgreSQL::Test::Utils;
use Storable    qw(dclone);
use Time::HiRes qw(usleep time);

our @EXPORT_OK =
  qw(set_up_sql is_harmless is_gone psql run_sql fail_session inside differences settle
  attempt remember dump_database);

=pod

=over

=item set_up_sql()

Returns SQL that defines functions for the sessions in template1.  torture_state returns
the contents of tables, and torture_paths returns the paths of their files, including
indexes and TOAST tables.

=cut

sub set_up_sql
{
	return q{
CREATE FUNCTION torture_state(prefix text, OUT name text, OUT state text)
RETURNS SETOF record LANGUAGE plpgsql AS $$
DECLARE
	r record;
BEGIN
	FOR r IN SELECT oid::regclass AS rel, relname FROM pg_class
		WHERE relnamespace = 'public'::regnamespace AND NOT relispartition
		AND relkind IN ('r', 'p', 'm') AND starts_with(relname, prefix)
		ORDER BY relname
	LOOP
		name := r.relname;
		EXECUTE format(
			$q$SELECT CASE WHEN count(*) = 0 THEN '0' ELSE concat_ws(' ', count(*),
				count(DISTINCT id), sum(id), min(id), max(id), min(gen), max(gen),
				min(tag), max(tag), min(length(pad)), max(length(pad)),
				count(*) FILTER (WHERE pad IS DISTINCT FROM
					repeat(md5(concat_ws(':', id, gen, tag)), length(pad) / 32))) END
			FROM %s$q$, r.rel) INTO state;
		RETURN NEXT;
	END LOOP;
END $$;
CREATE FUNCTION torture_paths(prefix text)
RETURNS SETOF text LANGUAGE sql AS $$
	WITH own AS (SELECT oid, reltoastrelid FROM pg_class
			WHERE relnamespace = 'public'::regnamespace AND starts_with(relname, prefix)),
		toast AS (SELECT reltoastrelid AS oid FROM own WHERE reltoastrelid <> 0)
	SELECT path FROM (SELECT pg_relation_filepath(oid) AS path FROM own
		UNION ALL SELECT pg_relation_filepath(oid) FROM toast
		UNION ALL SELECT pg_relation_filepath(indexrelid) FROM pg_index
			WHERE indrelid IN (SELECT oid FROM toast)) p
	WHERE path IS NOT NULL
$$;
};
}

# --- communication with the server ------------------------------------------

my $gone =
  qr/server closed the connection|connection to server|database system is|terminating connection|no connection to the server|could not receive data|could not send/;

# Errors that are not faults of the lazy drop.  "starting batch": if CREATE DATABASE fails
# because there is no unpinned buffer while it has begun to read several, its cleanup,
# which scans pg_tablespace, fails as well, in stock PostgreSQL.
my $harmless =
  qr/no unpinned buffers|starting batch while batch already in progress|deadlock detected|being accessed by other users|canceling statement|too many clients|remaining connection slots|is not currently accepting connections|no empty local buffer|column used by a view/;

# Messages of a server whose file system the test has filled.  "is pinned": if CREATE
# DATABASE finds no space to write a page of the new database that it evicts, its cleanup
# finds this page pinned by itself, and fails, in stock PostgreSQL.  "request": a session,
# for example with CREATE DATABASE, has waited for a checkpoint that found no space.
my $full =
  qr/No space left on device|wrote only \d+ of \d+ bytes|buffer is pinned in InvalidateBuffer|checkpoint request failed/;

# Messages that a server must not report otherwise.
my $harmful =
  qr{could not (open|read|write|fsync|extend|stat|truncate|access|create) [^\n]*"?(base|global|pg_tblspc)/|invalid page|page verification failed|unexpected zero page|could not read blocks};

=pod

=item is_gone($err), is_harmless($session, $err)

Return whether an error of psql tells that the server is unavailable, or that it is no
fault of the lazy drop.

=cut

sub is_gone
{
	my ($err) = @_;
	return $err =~ $gone;
}

sub is_harmless
{
	my ($session, $err) = @_;
	return $err =~ $harmless || ($session->{small_disks} && $err =~ $full);
}

=pod

=item psql($connstr, @options)

Returns whether psql has succeeded, its output, and the errors.

=cut

sub psql
{
	my ($connstr, @options) = @_;
	my ($out, $err) = ('', '');
	my $done = eval {
		IPC::Run::run(
			[
				'psql', '-XAtq', '-v', 'ON_ERROR_STOP=1',
				'-d' => $connstr,
				@options
			],
			'<' => \undef,
			'>' => \$out,
			'2>' => \$err,
			IPC::Run::timeout($PostgreSQL::Test::Utils::timeout_default));
	};
	$err .= "psql: $@" if $@;
	chomp($out, $err);
	return ($done ? 1 : 0, $out, $err);
}

=pod

=item run_sql($session, $db, $sql [, $where])

Run SQL.  Returns whether all of it succeeded, the output, and the error.

=item fail_session($session, $what, $sql)

Record a failure.  The session continues until its next check.

=item inside($session, $gate, $code)

Run code that must not be run while the test holds this gate.

=cut

sub run_sql
{
	my ($session, $db, $sql, $where) = @_;
	$where //= 'primary';
	my $connstr = read_file("$session->{dir}/$where");
	# Pass it in a file, because a server that becomes unavailable breaks a pipe.
	my $script = "$session->{dir}/sql.$$";
	write_file($script, $sql);
	my ($done, $out, $err) = psql("$connstr dbname='$db'", '-f' => $script);

	# If DROP TABLESPACE has crashed when the directories were gone, it is repeated.
	my $seen = $err;
	$seen =~
	  s/could not [^\n]*$full|could not write block [^\n]*\nDETAIL:  Multiple failures//g
	  if $session->{small_disks};
	$seen =~
	  s/could not (open directory|stat file) "pg_tblspc[^\n]*No such file or directory//g
	  if $sql =~ /^DROP TABLESPACE/;
	fail_session($session, $err, $sql)
	  if $seen =~ $harmful || $seen =~ /psql: IPC::Run: timeout/;
	return ($done, $out, $err);
}

sub fail_session
{
	my ($session, $what, $sql) = @_;
	push @{ $session->{failures} },
	  { what => $what, sql => substr($sql // '', 0, 4000), time => time() };
	write_file("$session->{dir}/failed", $what);
	return;
}

sub inside
{
	my ($session, $gate, $code) = @_;
	while (-e "$session->{dir}/$gate.held")
	{
		usleep(20_000);
	}
	open(my $lock, '>>', "$session->{dir}/$gate") or croak $!;
	flock($lock, LOCK_SH) or croak $!;
	my @result = $code->();
	close($lock);
	return wantarray ? @result : $result[0];
}

=pod

=item differences($session, $model [, $where])

Compare the contents of the server with a model.  Returns a list of differences, or undef
if the server was not available.  If a crash has emptied an unlogged table, the model is
updated.

=cut

sub differences
{
	my ($session, $model, $where) = @_;
	my @differences;
	my $epoch = epoch($session);
	my ($done, $out, $err) = run_sql(
		$session,
		'postgres',
		"SELECT datname FROM pg_database WHERE starts_with(datname, '$session->{prefix}') ORDER BY 1",
		$where);
	return unanswered($session, $err) if !$done;
	my $expected = join(' ', sort keys %{ $model->{dbs} });
	my $there = join(' ', split /\n/, $out);
	push @differences, "databases: \"$there\", expected \"$expected\""
	  if $there ne $expected;

	foreach my $db ('postgres', sort keys %{ $model->{dbs} })
	{
		next if $db ne 'postgres' && $model->{dbs}{$db}{bare};
		# Query only databases that exist.
		next if $db ne 'postgres' && $there !~ /\b\Q$db\E\b/;
		my $how = draw(
			'', '',
			'SET enable_seqscan = off;',
			'SET enable_indexscan = off;');
		($done, $out, $err) = run_sql(
			$session,
			$db,
			"$how SELECT name || ' ' || state FROM torture_state('$session->{prefix}')",
			$where);
		return unanswered($session, $err) if !$done;
		my %there = map { split / /, $_, 2 } split /\n/, $out;
		foreach my $table (tables_of($model, $db))
		{
			my $state = delete $there{ $table->{name} };
			my $wanted = expected($table);
			if (!defined $state)
			{
				push @differences, "$db.$table->{name} is missing";
			}
			elsif ($table->{unlogged}
				&& $table->{epoch} != epoch($session)
				&& adopt($table, $state))
			{
				$table->{epoch} = $epoch;
			}
			elsif ($state ne $wanted)
			{
				push @differences,
				  "$db.$table->{name}: \"$state\", expected \"$wanted\"";
			}
		}
		push @differences, "$db.$_ should not be there" foreach keys %there;
	}
	return @differences ? \@differences : [];
}

# A crash has emptied an unlogged table, perhaps before later changes.  Its rows must be a
# contiguous range.
sub adopt
{
	my ($table, $state) = @_;
	my ($count, undef, undef, $min, $max, $gen) = split / /, $state;
	my $new = dclone($table);
	$new->{ranges} = [ $count ? [ $min, $max ] : [ 1, 0 ] ];
	$new->{gen} = $gen if $count;
	return 0 if expected($new) ne $state;
	%$table = %$new;
	return 1;
}

# A query that failed is repeated if that may help.
sub unanswered
{
	my ($session, $err) = @_;
	$session->{unanswered} = $err;
	return undef if $err =~ $gone || is_harmless($session, $err);
	return [$err];
}

=pod

=item settle($session, @models)

Find out which of the models matches.  The server may be unavailable for a while.

=item attempt($session, $db, \@sql, $model, %how)

Run statements that change the session's model to "model".  Record the relations that they
drop.  Returns whether they were run.

=item remember($session, \@before, \@after)

Record the paths of relations that are not there any more as dropped.

=cut

sub settle
{
	my ($session, @models) = @_;
	my $deadline = time() + 2 * $PostgreSQL::Test::Utils::timeout_default;
	my @last;
	while (time() < $deadline)
	{
		@last = ();
		my $unanswered = 0;
		foreach my $model (@models)
		{
			my $copy = dclone($model);
			my $differences = differences($session, $copy);
			if (!defined $differences)
			{
				$unanswered = 1;
				last;
			}
			if (!@$differences)
			{
				$session->{model} = $copy;
				return 1;
			}
			push @last, $differences;
		}
		last if !$unanswered;
		usleep(100_000);
	}
	fail_session(
		$session,
		'the model does not hold: '
		  . (
			@last
			? join(' OR ', map { join('; ', @$_) } @last)
			: "the server does not answer: $session->{unanswered}"));
	$session->{broken} = 1;
	return 0;
}

sub attempt
{
	my ($session, $db, $sql, $model, %how) = @_;
	my $ask = "SELECT '%s ' || torture_paths('$session->{prefix}')";
	$ask = "SELECT '%s' WHERE false"
	  if $db ne 'postgres' && $session->{model}{dbs}{$db}{bare};
	my $script =
	  join(";\n", sprintf($ask, 'before'), @$sql, sprintf($ask, 'after'), '');
	my ($done, $out, $err) = run_sql($session, $db, $script);
	$session->{ops}{statements} += @$sql;
	my %paths;
	push @{ $paths{$1} }, $2 while $out =~ /^(before|after) (.*)$/mg;

	if ($done)
	{
		$session->{model} = $model;
		remember($session, $how{before} // $paths{before}, $paths{after});
		$session->{last_paths} = $paths{before};
		return 1;
	}
	# Relations of this list that still exist in the end have not been dropped.  (If a
	# move of a database is interrupted by a crash, it may leave files.)
	remember($session, $paths{before}, []) if $db eq 'postgres';
	push @{ $session->{interrupted} }, @{ $paths{before} // [] }
	  if $err =~ $gone;
	$session->{ops}{errors}++;
	if ($err !~ $gone)
	{
		my $allowed = $how{allow};
		fail_session($session, $err, $script)
		  if !is_harmless($session, $err)
		  && !(defined $allowed && $err =~ $allowed);
	}
	if ($how{uncertain})
	{
		return 0;
	}
	settle($session, $model, $session->{model});
	return 0;
}

sub remember
{
	my ($session, $before, $after) = @_;
	my %there = map { $_ => 1 } @{ $after // [] };
	push @{ $session->{dropped} }, grep { !$there{$_} } @{ $before // [] };
	return;
}

=pod

=item dump_database($node, $db)

Returns a digest of every table of a database, except unlogged ones, as text.

=cut

sub dump_database
{
	my ($node, $db) = @_;
	return $node->safe_psql(
		$db,
		q{SELECT format('SELECT %L, count(*), coalesce(sum(hashtextextended(t::text, 0)), 0) FROM ONLY %s t', oid::regclass, oid::regclass)
			FROM pg_class WHERE relnamespace = 'public'::regnamespace
			AND relkind IN ('r', 'm') AND relpersistence = 'p' ORDER BY relname \gexec
		});
}

=pod

=back

=cut

1;
