# Copyright (c) 2026, LazyDrop developers

=pod

=head1 NAME

TortureOperations - the operations of the torture's sessions

=head1 DESCRIPTION

A session draws its operations: transactions with changes of LazyDropModel, which may be
prepared, commands that cannot be in a transaction, and changes of databases and
tablespaces.  LazyDropTorture runs them and keeps the session's model.  A reader only
reads.

=cut

package TortureOperations;

use strict;
use warnings FATAL => 'all';

use Exporter 'import';
use JSON::PP;
use LazyDropModel
  qw(chance draw write_file epoch tables_of is_plain tablespace_clause matview_of
  %changes);
use LazyDropTorture
  qw(is_harmless is_gone run_sql fail_session inside settle attempt remember);
use PostgreSQL::Test::Utils;
use Storable    qw(dclone);
use Time::HiRes qw(usleep time);

our @EXPORT_OK = qw(run_session run_reader);

# --- transactions -----------------------------------------------------------

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

# --- databases and tablespaces ----------------------------------------------

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
	  if !is_gone($err)
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

# --- sessions ---------------------------------------------------------------

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
	  if !$done && !is_gone($err) && !is_harmless($session, $err);
	fail_session($session, "temporary table has $1", "$rows rows")
	  if $out =~ /^(\d+)\|/m && $1 != $rows;
	return;
}

=pod

=over

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
			usleep(100_000) if !$done && is_gone($err);
		}
		1;
	} or fail_session($session, "reader died: $@");
	write_file("$session->{dir}/session.$session->{id}",
		encode_json({ map { $_ => $session->{$_} } qw(id ops failures) }));
	return;
}

=pod

=back

=cut

1;
