# Copyright (c) 2026, LazyDrop developers

=pod

=head1 NAME

LazyDropTorture - sessions with a model of the expected contents

=head1 DESCRIPTION

A session is a process that runs random DDL and DML on its own tables and databases with
psql, and maintains a model of their contents.  The server may become unavailable at any
time.  If a transaction was in progress then, the session has two models, and one of them
must match when the server is back.

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
use JSON::PP;
use LazyDropModel
  qw(chance draw read_file write_file epoch expected tables_of is_plain
  tablespace_clause matview_of %changes);
use PostgreSQL::Test::Utils;
use Storable    qw(dclone);
use Time::HiRes qw(usleep time);

our @EXPORT_OK =
  qw(psql run_session run_reader differences set_up_sql dump_database);

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

# Messages of a server whose file system the test has filled.
my $full = qr/No space left on device|wrote only \d+ of \d+ bytes/;

# Messages that a server must not report otherwise.
my $harmful =
  qr{could not (open|read|write|fsync|extend|stat|truncate|access|create) [^\n]*"?(base|global|pg_tblspc)/|invalid page|page verification failed|unexpected zero page|could not read blocks};

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

# Run SQL.  Returns whether all of it succeeded, the output, and the error.
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
	$seen =~ s/could not [^\n]*$full//g if $session->{small_disks};
	$seen =~
	  s/could not (open directory|stat file) "pg_tblspc[^\n]*No such file or directory//g
	  if $sql =~ /^DROP TABLESPACE/;
	fail_session($session, $err, $sql)
	  if $seen =~ $harmful || $seen =~ /psql: IPC::Run: timeout/;
	return ($done, $out, $err);
}

# Record a failure.  The session continues until its next check.
sub fail_session
{
	my ($session, $what, $sql) = @_;
	push @{ $session->{failures} },
	  { what => $what, sql => substr($sql // '', 0, 4000), time => time() };
	write_file("$session->{dir}/failed", $what);
	return;
}

# Run code that must not be run while the test holds this gate.
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

# Find out which of the models matches.  The server may be unavailable for a while.
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

# --- operations -------------------------------------------------------------

# Run a transaction, which may be rolled back or prepared.
sub transaction
{
	my ($session) = @_;
	my $model = dclone($session->{model});
	delete $_->{moved} foreach values %{ $model->{tables} };
	my @dbs = ('postgres') x 4;
	push @dbs, grep { !$model->{dbs}{$_}{bare} } sort keys %{ $model->{dbs} };
	my $db = draw(@dbs);
	my @sql;
	my @names = sort keys %changes;
	my @weighted = (
		@names,
		qw(create create create drop drop insert truncate partitioned rewrite)
	);

	foreach (1 .. draw(1, 1, 1, 2, 4))
	{
		my $name = draw(@weighted);
		if (chance(0.15))
		{
			my $before = dclone($model);
			my @inner = $changes{$name}->($session, $model, $db) or next;
			push @sql, 'SAVEPOINT a', @inner;
			if (chance(0.6))
			{
				push @sql, 'ROLLBACK TO a';
				%$model = %$before;
			}
			else
			{
				push @sql, 'RELEASE a';
			}
			$session->{ops}{savepoint}++;
		}
		else
		{
			push @sql, $changes{$name}->($session, $model, $db);
		}
		$session->{ops}{$name}++;
	}
	if (chance(0.05))
	{
		push @sql, matview_of($session, $model, $db);
	}
	return if !@sql;

	my $dice = rand();
	my $temporary = grep { /TEMP / } @sql;
	if ($dice < 0.12)
	{
		$session->{ops}{rollback}++;
		attempt($session, $db, [ 'BEGIN', @sql, 'ROLLBACK' ],
			$session->{model});
	}
	elsif ($dice < 0.15)
	{
		# Cancel one of the statements, at a random point.
		$session->{ops}{cancel}++;
		attempt(
			$session, $db,
			[
				'SET statement_timeout = ' . (1 + int(rand(30))),
				'BEGIN', @sql, 'SELECT pg_sleep(1)', 'COMMIT'
			],
			$session->{model});
	}
	elsif ($dice < 0.27 && !$temporary)
	{
		prepare($session, $db, \@sql, $model);
	}
	else
	{
		# A drop of files is durable even in this case.
		my $first =
		  only_drops_files($session->{model}, $db, @sql)
		  ? 'SET synchronous_commit = off; '
		  : '';
		attempt($session, $db, [ "${first}BEGIN", @sql, 'COMMIT' ], $model);
	}
	return;
}

# Returns whether all of these statements drop tables, and at least one of the tables has
# a file.  A partitioned table without partitions has none.
sub only_drops_files
{
	my ($model, $db, @sql) = @_;
	my $files = 0;
	foreach (@sql)
	{
		my ($name) = /^DROP TABLE (\w+)$/ or return 0;
		# A partition is not in the model.
		my $parts = ($model->{tables}{"$db/$name"} // {})->{parts};
		$files = 1 if !$parts || %$parts;
	}
	return $files;
}

# Run statements that change the session's model to "model".  Record the relations that
# they drop.  Returns whether they were run.
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
		  if !is_harmless($session, $err) && !(defined $allowed && $err =~ $allowed);
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

# Run a transaction with two-phase commit.
sub prepare
{
	my ($session, $db, $sql, $model) = @_;
	my $gid = $session->{prefix} . $session->{next}++;
	$session->{ops}{prepare}++;
	my $before = $session->{model};
	my $done =
	  attempt($session, $db, [ 'BEGIN', @$sql, "PREPARE TRANSACTION '$gid'" ],
		$before, uncertain => 1);
	my $paths = $done ? $session->{last_paths} : undef;
	if ($done)
	{
		# Nothing can be checked meanwhile, because the tables are locked.
		foreach (1 .. int(rand(3)))
		{
			run_sql(
				$session,
				'postgres',
				join(";\n",
					'BEGIN', $changes{scratch}->($session),
					'COMMIT', ''));
		}
	}
	my $commit = chance(0.7);
	my $sent = 0;
	my $deadline = time() + 2 * $PostgreSQL::Test::Utils::timeout_default;
	while (time() < $deadline)
	{
		my ($ok, $out) = run_sql($session, 'postgres',
			"SELECT count(*) FROM pg_prepared_xacts WHERE gid = '$gid'");
		if (!$ok)
		{
			usleep(100_000);
			next;
		}
		if ($out =~ /^0/)
		{
			# It was never prepared, or the reply was lost.
			fail_session($session, "prepared transaction \"$gid\" is lost")
			  if $done && !$sent;
			settle($session, $sent && $commit ? $model : $before);
			return;
		}
		$sent = 1;
		($ok) = run_sql($session, $db,
			$commit
			? "COMMIT PREPARED '$gid'; SELECT 'after ' || torture_paths('$session->{prefix}')"
			: "ROLLBACK PREPARED '$gid'");
		if ($ok)
		{
			settle($session, $commit ? $model : $before);
			# Compare the earlier paths with the present ones.
			if ($commit && $paths)
			{
				my ($asked, $paths_now) = run_sql($session, $db,
					"SELECT torture_paths('$session->{prefix}')");
				remember($session, $paths, [ split /\n/, $paths_now ])
				  if $asked;
			}
			return;
		}
	}
	fail_session($session, "could not finish prepared transaction \"$gid\"");
	$session->{broken} = 1;
	return;
}

# Run a command that cannot be in a transaction, and does not change the contents.
sub maintenance
{
	my ($session) = @_;
	my $model = $session->{model};
	my $db = draw('postgres',
		grep { !$model->{dbs}{$_}{bare} } sort keys %{ $model->{dbs} });
	my @tables = tables_of($model, $db, \&is_plain) or return;
	my $name = draw(@tables)->{name};
	my ($kind, $sql) = @{
		draw(
			[ 'vacuum', "VACUUM $name" ],
			[ 'vacuum', "VACUUM (FREEZE, TRUNCATE) $name" ],
			[ 'vacuum_full', "VACUUM FULL $name" ],
			[ 'reindex', "REINDEX TABLE $name" ],
			[ 'analyze', "ANALYZE $name" ],
			[
				'reindex_concurrently',
				"SELECT 'REINDEX INDEX CONCURRENTLY ' || indexrelid::regclass FROM pg_index WHERE indrelid = '$name'::regclass AND indisvalid \\gexec\n"
			])
	};
	$session->{ops}{$kind}++;
	if ($kind eq 'reindex_concurrently')
	{
		# If it fails, it leaves an invalid index with a different name.
		$sql .=
		  "DROP INDEX IF EXISTS ${name}_i_ccnew, ${name}_i_ccold, ${name}_u_ccnew, ${name}_u_ccold";
	}
	attempt($session, $db, [$sql], $model);
	return;
}

sub create_database
{
	my ($session) = @_;
	my $model = dclone($session->{model});
	return if keys %{ $model->{dbs} } >= 3;
	my $name = "$session->{prefix}d" . $session->{next}++;
	my @templates = ('template1', 'template0');
	push @templates, (sort keys %{ $model->{dbs} }) x 3;
	my $template = draw(@templates);
	my $strategy = draw('wal_log', 'file_copy');
	my $where = tablespace_clause($session, { spcs => {} });
	$model->{dbs}{$name} = {
		bare => (
			$template eq 'template0'
			  || ($model->{dbs}{$template} && $model->{dbs}{$template}{bare}))
		? 1
		: 0
	};

	foreach my $table (tables_of($model, $template))
	{
		my $copy = dclone($table);
		$copy->{db} = $name;
		$model->{tables}{"$name/$copy->{name}"} = $copy;
	}
	my $code = sub {
		attempt(
			$session,
			'postgres',
			[
				"CREATE DATABASE $name TEMPLATE $template STRATEGY $strategy$where"
			],
			$model,
			# Its template may have tables there.
			allow => qr/cannot assign new default tablespace/);
	};
	$session->{ops}{"create_database_$strategy"}++;
	return $strategy eq 'file_copy'
	  ? inside($session, 'moves', $code)
	  : $code->();
}

sub drop_database
{
	my ($session) = @_;
	my $model = dclone($session->{model});
	my @dbs = sort keys %{ $model->{dbs} } or return;
	my $name = draw(@dbs);
	my $tainted = $model->{dbs}{$name}{tainted};
	my ($done, $oid) = run_sql($session, 'postgres',
		"SELECT oid FROM pg_database WHERE datname = '$name'");
	return if !$done;
	delete $model->{dbs}{$name};
	delete $model->{tables}{$_}
	  foreach grep { /^\Q$name\E\// } keys %{ $model->{tables} };
	my $force = chance(0.7) ? ' WITH (FORCE)' : '';
	$session->{ops}{drop_database}++;

	if (attempt(
			$session, 'postgres',
			["DROP DATABASE $name$force"], $model,
			uncertain => 1))
	{
		chomp $oid;
		push @{ $session->{dropped_dbs} }, $oid if !$tainted;
		return;
	}

	# The database may exist, be gone, or be invalid.  In the last case it must be
	# dropped.
	my $deadline = time() + 2 * $PostgreSQL::Test::Utils::timeout_default;
	while (time() < $deadline)
	{
		my ($ok, $limit) = run_sql($session, 'postgres',
			"SELECT datconnlimit FROM pg_database WHERE datname = '$name'");
		if ($ok && $limit =~ /^-2/)
		{
			run_sql($session, 'postgres', "DROP DATABASE $name");
			next;
		}
		if ($ok)
		{
			chomp $oid;
			push @{ $session->{dropped_dbs} }, $oid
			  if $limit eq '' && !$tainted;
			settle($session, $limit eq '' ? $model : $session->{model});
			return;
		}
		usleep(100_000);
	}
	fail_session($session, "could not drop database \"$name\"");
	$session->{broken} = 1;
	return;
}

sub move_database
{
	my ($session) = @_;
	my @dbs = sort keys %{ $session->{model}{dbs} } or return;
	my $name = draw(@dbs);
	my $where = draw('pg_default', @{ $session->{tablespaces} });
	$session->{ops}{move_database}++;
	inside(
		$session, 'moves',
		sub {
			my $done = attempt(
				$session, 'postgres',
				["ALTER DATABASE $name SET TABLESPACE $where"],
				$session->{model},
				# There are tables of its own, or files that a failed move has left.
				allow =>
				  qr/already in tablespace|could not create directory|File exists/
			);
			# A failed move leaves a copy behind, also on standbys.
			$session->{model}{dbs}{$name}{tainted} = 1
			  if !$done && $session->{model}{dbs}{$name};
		});
	return;
}

# Create a tablespace, use it, and drop it.
sub tablespace
{
	my ($session) = @_;
	my $name = "$session->{prefix}s" . $session->{next}++;
	$session->{ops}{tablespace}++;
	my $table = "$session->{prefix}x" . $session->{next}++;
	my $model = $session->{model};
	my $old_epoch = epoch($session);
	my @steps = ("CREATE TABLESPACE $name LOCATION ''");
	push @steps,
	  "CREATE TABLE $table TABLESPACE $name AS SELECT generate_series(1, 2000)",
	  draw(
		"DROP TABLE $table",
		"BEGIN; TRUNCATE $table; DROP TABLE $table; COMMIT",
		"ALTER TABLE $table SET TABLESPACE pg_default; DROP TABLE $table");

	if (chance(0.3))
	{
		my $db = "$session->{prefix}y" . $session->{next}++;
		push @steps, "CREATE DATABASE $db TABLESPACE $name STRATEGY wal_log",
		  "DROP DATABASE $db WITH (FORCE)";
	}
	push @steps, "DROP TABLESPACE $name";
	my ($done, $out, $err) =
	  run_sql($session, 'postgres', join(";\n", @steps, ''));
	return if $done;
	$session->{ops}{errors}++;
	fail_session($session, $err, join('; ', @steps))
	  if $err !~ $gone
	  && !is_harmless($session, $err)
	  && !($err =~ /is not empty/ && epoch($session) != $old_epoch);

	# Clean up.  A crash may have left files in the tablespace, which then cannot be
	# dropped.
	my $deadline = time() + 2 * $PostgreSQL::Test::Utils::timeout_default;
	while (time() < $deadline)
	{
		my ($ok, $dbs) = run_sql($session, 'postgres',
			"DROP TABLE IF EXISTS $table; SELECT datname FROM pg_database WHERE starts_with(datname, '$session->{prefix}y')"
		);
		if ($ok && $dbs eq '')
		{
			run_sql($session, 'postgres', "DROP TABLESPACE IF EXISTS $name");
			last;
		}
		if ($ok)
		{
			run_sql($session, 'postgres', "DROP DATABASE $_ WITH (FORCE)")
			  foreach split /\n/, $dbs;
		}
		usleep(100_000);
	}
	settle($session, $model);
	return;
}

# Create temporary tables that are larger than the temporary buffers.
sub temporary
{
	my ($session) = @_;
	$session->{ops}{temporary}++;
	my $rows = draw(10, 1000, 20000);
	my ($done, $out, $err) = run_sql(
		$session, 'postgres',
		"CREATE TEMP TABLE t (id int, pad text);
		INSERT INTO t SELECT i, repeat('t', 100) FROM generate_series(1, $rows) i;
		CREATE INDEX ON t (id);"
		  . (
			chance(0.5)
			? 'DROP TABLE t;'
			: 'SELECT count(*), sum(id) FROM t;')
		  . (chance(0.3) ? 'SELECT pg_sleep(0.2);' : ''));
	fail_session($session, $err, 'temporary table')
	  if !$done && $err !~ $gone && !is_harmless($session, $err);
	fail_session($session, "temporary table has $1", "$rows rows")
	  if $out =~ /^(\d+)\|/m && $1 != $rows;
	return;
}

=pod

=item run_session(%session)

Run such operations in a process until the file "stop" exists, check the model, and write
the results to the file "session.ID".  Does not return.  Named arguments: id; dir, the
directory of the files that the processes share; seed; tablespaces, a list to choose from;
large, the number of rows of a large table; small_disks, whether file systems may be full.

=cut

sub run_session
{
	my (%session) = @_;
	my $session = \%session;
	srand($session->{seed});
	$session->{prefix} = "s$session->{id}_";
	$session->{next} = 1;
	$session->{model} = { tables => {}, dbs => {}, spcs => {} };
	$session->{$_} = [] foreach qw(failures dropped interrupted dropped_dbs);
	$session->{ops} = {};

	eval {
		while (!-e "$session->{dir}/stop" && !$session->{broken})
		{
			inside(
				$session, 'gate',
				sub {
					my $dice = rand();
					if    ($dice < 0.72) { transaction($session); }
					elsif ($dice < 0.84) { maintenance($session); }
					elsif ($dice < 0.87) { create_database($session); }
					elsif ($dice < 0.90) { drop_database($session); }
					elsif ($dice < 0.92) { move_database($session); }
					elsif ($dice < 0.94) { tablespace($session); }
					elsif ($dice < 0.97) { temporary($session); }
					else { settle($session, $session->{model}); }
					$session->{ops}{all}++;
				});
		}
		inside($session, 'gate', sub { settle($session, $session->{model}) })
		  if !$session->{broken};
		1;
	} or fail_session($session, "session died: $@");
	my %result = map { $_ => $session->{$_} }
	  qw(id prefix dir model dropped interrupted dropped_dbs ops failures);
	write_file(
		"$session->{dir}/session.$session->{id}",
		JSON::PP->new->canonical->pretty->encode(\%result));
	return;
}

=pod

=item run_reader(%session)

Read tables at random in a process, on all servers, and often stop in the middle.

=cut

sub run_reader
{
	my (%session) = @_;
	my $session = \%session;
	srand($session->{seed});
	$session->{failures} = [];
	$session->{ops} = {};
	eval {
		while (!-e "$session->{dir}/stop")
		{
			my $where = draw(@{ $session->{servers} });
			my $limit = chance(0.6) ? 1 + int(rand(40)) : 2000;
			my ($done, $out, $err) = run_sql(
				$session,
				'postgres',
				"SET statement_timeout = $limit;\n"
				  . (chance(0.3) ? "SET enable_seqscan = off;\n" : '')
				  . join(
					'',
					map {
						"SELECT format('SELECT count(*), min(id), max(length(pad)) FROM %I WHERE id >= 0', relname) FROM pg_class WHERE relkind IN ('r', 'p') AND relname ~ '^s[0-9]+_[tp]' ORDER BY random() LIMIT 1 \\gexec\n"
					} 1 .. 5),
				$where);
			$session->{ops}{reads}++;
			usleep(100_000) if !$done && $err =~ $gone;
		}
		1;
	} or fail_session($session, "reader died: $@");
	write_file("$session->{dir}/session.$session->{id}",
		encode_json({ map { $_ => $session->{$_} } qw(id ops failures) }));
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
