# Copyright (c) 2026, LazyDrop developers

=pod

=head1 NAME

LazyDropModel - the model of a torture session, and the changes to it

=head1 DESCRIPTION

A model describes the rows that a session's tables must have.  It is a hash:

tables: "database/name" => { db, name, tag, gen, width, ranges, unlogged, parts },
dbs: name => { tainted } (a move of it has failed once),
spcs: name => epoch in which it was created.

"ranges" is a list of [first, last] of the ids.

=cut

package LazyDropModel;

use strict;
use warnings FATAL => 'all';

use Carp;
use Exporter 'import';
use Storable qw(dclone);

our @EXPORT_OK =
  qw(chance draw read_file write_file epoch expected tables_of is_plain
  tablespace_clause matview_of %changes);

# Number of ids for each partition; the number of the partition gives the first one.
use constant PARTITION => 50;

=pod

=over

=item chance($p), draw(@list)

Returns true with that probability; returns a random element of a list.

=cut

sub chance
{
	return rand() < $_[0];
}

sub draw
{
	return $_[ int(rand(scalar @_)) ];
}

=pod

=item read_file($name), write_file($name, $contents)

Read or write a small file that several processes use.  It is replaced as a whole.

=cut

sub read_file
{
	my ($name) = @_;
	open(my $file, '<', $name) or croak "could not open $name: $!";
	local $/ = undef;
	return <$file>;
}

sub write_file
{
	my ($name, $contents) = @_;
	open(my $file, '>', "$name.$$") or croak "could not create $name: $!";
	print $file $contents;
	close($file) or croak "could not write $name: $!";
	rename("$name.$$", $name) or croak "could not rename $name: $!";
	return;
}

=pod

=item epoch($session)

Returns the number of crashes and restarts that the test has caused until now.

=cut

sub epoch
{
	my ($session) = @_;
	return read_file("$session->{dir}/epoch");
}

=pod

=item expected($table)

Returns the state that torture_state reports for a table, see LazyDropTorture.

=cut

sub expected
{
	my ($table) = @_;
	my ($count, $sum, $min, $max) = (0, 0, undef, undef);
	foreach my $range (@{ $table->{ranges} })
	{
		my ($first, $last) = @$range;
		next if $first > $last;
		my $n = $last - $first + 1;
		$count += $n;
		$sum   += $n * ($first + $last) / 2;
		$min = $first if !defined $min || $first < $min;
		$max = $last if !defined $max || $last > $max;
	}
	return '0' if $count == 0;
	my $length = 32 * $table->{width};
	return join(' ',
		$count, $count, $sum, $min,
		$max, $table->{gen}, $table->{gen}, $table->{tag},
		$table->{tag}, $length, $length, 0);
}

# Returns SQL that generates rows of a table.
sub rows_sql
{
	my ($table, $first, $last) = @_;
	return
	  "SELECT i, $table->{gen}, '$table->{tag}', repeat(md5(concat_ws(':', i, $table->{gen}, '$table->{tag}')), $table->{width}) FROM generate_series($first, $last) i";
}

=pod

=item tables_of($model, $db [, $want])

Returns the tables of a database, or those for which a function returns true.

=item is_plain($table)

Returns whether a table is neither partitioned nor a materialized view.

=cut

sub tables_of
{
	my ($model, $db, $want) = @_;
	return grep { $_->{db} eq $db && (!$want || $want->($_)) }
	  map { $model->{tables}{$_} } sort keys %{ $model->{tables} };
}

sub is_plain
{
	return !$_[0]{parts} && !$_[0]{matview};
}

sub some_rows
{
	my ($session) = @_;
	return 0 if chance(0.1);
	return 1 + int(rand(10)) if chance(0.3);
	return $session->{large} if chance(0.05);
	return 20 + int(rand(300));
}

=pod

=item tablespace_clause($session, $model)

Returns the clause with the tablespace for a new object.

=cut

sub tablespace_clause
{
	my ($session, $model) = @_;
	return '' if chance(0.6);
	return ' TABLESPACE '
	  . draw(@{ $session->{tablespaces} }, sort keys %{ $model->{spcs} });
}

=pod

=item %changes

Changes in a transaction.  Each function takes the session, the model, which it changes,
and the name of the database.  It returns SQL, or nothing if no change is possible.

=cut

our %changes = (
	create => sub {
		my ($session, $model, $db) = @_;
		return if tables_of($model, $db) >= 12;
		my $name = "$session->{prefix}t" . $session->{next}++;
		my $rows = some_rows($session);
		my $table = {
			db => $db,
			name => $name,
			tag => "$db.$name",
			gen => 0,
			width => draw(1, 1, 8, 60, 100),
			ranges => [ [ 1, $rows ] ],
			unlogged => chance(0.15) ? 1 : 0,
			epoch => epoch($session)
		};
		$model->{tables}{"$db/$name"} = $table;
		my $where = tablespace_clause($session, $model);
		my @sql =
		  (     'CREATE '
			  . ($table->{unlogged} ? 'UNLOGGED ' : '')
			  . "TABLE $name (id int, gen int, tag text, pad text)"
			  . (chance(0.2) ? ' WITH (fillfactor = 30)' : '')
			  . $where);
		push @sql, "ALTER TABLE $name ALTER pad SET STORAGE EXTERNAL"
		  if $table->{width} == 100;
		push @sql, "CREATE INDEX ${name}_i ON $name (id)$where"
		  if chance(0.5);
		push @sql, "INSERT INTO $name " . rows_sql($table, 1, $rows);
		push @sql, "CREATE UNIQUE INDEX ${name}_u ON $name (id, gen)"
		  if chance(0.3);
		# Drop a relation in the transaction that has created it.
		push @sql, "TRUNCATE $name",
		  "INSERT INTO $name " . rows_sql($table, 1, $rows)
		  if chance(0.1);
		return @sql;
	},
	drop => sub {
		my ($session, $model, $db) = @_;
		my %has_view = map { $_->{matview} => 1 }
		  tables_of($model, $db, sub { $_[0]{matview} });
		my @tables = tables_of($model, $db, sub { !$has_view{ $_[0]{name} } })
		  or return;
		my $table = draw(@tables);
		delete $model->{tables}{"$db/$table->{name}"};
		return
			'DROP '
		  . ($table->{matview} ? 'MATERIALIZED VIEW' : 'TABLE')
		  . " $table->{name}";
	},
	insert => sub {
		my ($session, $model, $db) = @_;
		my @tables =
		  tables_of($model, $db, sub { is_plain(@_) && !$_[0]{moved} })
		  or return;
		my $table = draw(@tables);
		my $range = $table->{ranges}[0];
		my $first = $range->[1] + 1;
		my $last = $range->[1] + some_rows($session);
		return if $last < $first || $last > 20000;
		$range->[1] = $last;
		return "INSERT INTO $table->{name} "
		  . rows_sql($table, $first, $last);
	},
	delete_tail => sub {
		my ($session, $model, $db) = @_;
		my @tables = tables_of($model, $db, \&is_plain) or return;
		my $table = draw(@tables);
		my $range = $table->{ranges}[0];
		my $last =
		  $range->[0] + int(rand($range->[1] - $range->[0] + 1)) - 1;
		$range->[1] = $last;
		return "DELETE FROM $table->{name} WHERE id > $last";
	},
	delete_head => sub {
		my ($session, $model, $db) = @_;
		my @tables = tables_of($model, $db, \&is_plain) or return;
		my $table = draw(@tables);
		my $range = $table->{ranges}[0];
		$range->[0] += int(rand(($range->[1] - $range->[0] + 1) / 2));
		return "DELETE FROM $table->{name} WHERE id < $range->[0]";
	},
	update => sub {
		my ($session, $model, $db) = @_;
		my @tables =
		  tables_of($model, $db, sub { is_plain(@_) && !$_[0]{moved} })
		  or return;
		my $table = draw(@tables);
		$table->{gen}++;
		return
		  "UPDATE $table->{name} SET gen = gen + 1, pad = repeat(md5(concat_ws(':', id, gen + 1, tag)), $table->{width})";
	},
	truncate => sub {
		my ($session, $model, $db) = @_;
		my @tables = tables_of($model, $db, \&is_plain) or return;
		my @chosen = chance(0.3) ? @tables : draw(@tables);
		my @sql = ('TRUNCATE ' . join(', ', map { $_->{name} } @chosen));
		foreach my $table (@chosen)
		{
			my $rows = chance(0.5) ? 0 : 5;
			$table->{ranges} = [ [ 1, $rows ] ];
			delete $table->{moved};
			push @sql,
			  "INSERT INTO $table->{name} " . rows_sql($table, 1, $rows)
			  if $rows;
		}
		return @sql;
	},
	rewrite => sub {
		my ($session, $model, $db) = @_;
		my @tables = tables_of($model, $db, \&is_plain) or return;
		my $table = draw(@tables);
		my $name = $table->{name};
		if (chance(0.17))
		{
			# Do not add rows in the same transaction.  A rollback would leave their index
			# entries behind.
			$table->{moved} = 1;
			return "ALTER TABLE $name SET TABLESPACE "
			  . draw('pg_default', @{ $session->{tablespaces} });
		}
		return draw(
			"REINDEX TABLE $name",
			"ALTER TABLE $name ALTER id TYPE int USING id + 0",
			"CREATE INDEX IF NOT EXISTS ${name}_i ON $name (id); CLUSTER $name USING ${name}_i",
			"DROP INDEX IF EXISTS ${name}_i",
			"CREATE INDEX IF NOT EXISTS ${name}_i ON $name (id)");
	},
	set_logged => sub {
		my ($session, $model, $db) = @_;
		my @tables =
		  tables_of($model, $db, sub { is_plain(@_) && !$_[0]{unlogged} })
		  or return;
		my $table = draw(@tables);
		# Change it twice, which creates and removes an init fork.
		return (
			"ALTER TABLE $table->{name} SET UNLOGGED",
			"ALTER TABLE $table->{name} SET LOGGED");
	},
	matview => sub {
		my ($session, $model, $db) = @_;
		my @views = tables_of($model, $db, sub { $_[0]{matview} });
		if (@views && chance(0.7))
		{
			my $view = draw(@views);
			my $base = $model->{tables}{"$db/$view->{matview}"};
			$view->{$_} = dclone([ $base->{$_} ])->[0] foreach qw(ranges gen);
			return "REFRESH MATERIALIZED VIEW $view->{name}";
		}
		return;
	},
	partitioned => sub {
		my ($session, $model, $db) = @_;
		my @tables = tables_of($model, $db, sub { $_[0]{parts} });
		if (!@tables)
		{
			my $name = "$session->{prefix}p" . $session->{next}++;
			my $table = {
				db => $db,
				name => $name,
				tag => "$db.$name",
				gen => 0,
				width => draw(1, 8),
				ranges => [],
				parts => {},
				unlogged => 0
			};
			$model->{tables}{"$db/$name"} = $table;
			my @sql = (
				"CREATE TABLE $name (id int, gen int, tag text, pad text) PARTITION BY RANGE (id)",
				"CREATE INDEX ${name}_i ON $name (id)");
			push @sql, add_partition($table, $_) foreach 0 .. int(rand(8));
			return @sql;
		}
		my $table = draw(@tables);
		my @there = sort { $a <=> $b } keys %{ $table->{parts} };
		my $free = 0;
		$free++ while $table->{parts}{$free};
		return add_partition($table, $free) if !@there || chance(0.4);
		my $part = draw(@there);
		my $partname = "$table->{name}_$part";
		my ($from, $to) = bounds($part);

		if (chance(0.3))
		{
			return (
				"ALTER TABLE $table->{name} DETACH PARTITION $partname",
				"ALTER TABLE $table->{name} ATTACH PARTITION $partname FOR VALUES FROM ($from) TO ($to)"
			);
		}
		if (chance(0.3))
		{
			set_part($table, $part, [ $from, $from + 9 ]);
			return (
				"TRUNCATE $partname",
				"INSERT INTO $table->{name} "
				  . rows_sql($table, $from, $from + 9));
		}
		delete $table->{parts}{$part};
		set_part($table, $part);
		return (
			(   chance(0.5)
				? "ALTER TABLE $table->{name} DETACH PARTITION $partname"
				: ()),
			"DROP TABLE $partname");
	},
	scratch => sub {
		my ($session) = @_;
		# The model does not contain these tables.
		my $name = "$session->{prefix}x" . $session->{next}++;
		my $n = draw(1, 1, 3, 40);
		my $kind = draw('', '', 'UNLOGGED ', 'TEMP ');
		return map {
			(   "CREATE ${kind}TABLE ${name}_$_ AS SELECT i, 'x' AS x FROM generate_series(1, "
				  . int(rand(2000 / $n)) . ") i",
				(chance(0.3) ? "TRUNCATE ${name}_$_" : ()),
				"DROP TABLE ${name}_$_")
		} 1 .. $n;
	});

sub bounds
{
	my ($part) = @_;
	return (1 + $part * PARTITION, 1 + ($part + 1) * PARTITION);
}

# A partition has all of its ids, a range that starts with the first one, or none.
sub set_part
{
	my ($table, $part, $range) = @_;
	my ($from, $to) = bounds($part);
	$table->{ranges} =
	  [ grep { $_->[0] < $from || $_->[0] >= $to } @{ $table->{ranges} } ];
	push @{ $table->{ranges} }, $range if $range;
	return;
}

sub add_partition
{
	my ($table, $part) = @_;
	my ($from, $to) = bounds($part);
	$table->{parts}{$part} = 1;
	set_part($table, $part, [ $from, $to - 1 ]);
	my $partname = "$table->{name}_$part";
	my $rows = rows_sql($table, $from, $to - 1);
	return (
		"CREATE TABLE $partname (LIKE $table->{name})",
		"INSERT INTO $partname $rows",
		"ALTER TABLE $table->{name} ATTACH PARTITION $partname FOR VALUES FROM ($from) TO ($to)"
	) if chance(0.5);
	return (
		"CREATE TABLE $partname PARTITION OF $table->{name} FOR VALUES FROM ($from) TO ($to)",
		"INSERT INTO $table->{name} $rows");
}

=pod

=item matview_of($session, $model, $db)

Another change: a materialized view is created by itself, because it needs an existing
table.

=cut

sub matview_of
{
	my ($session, $model, $db) = @_;
	my @bases =
	  tables_of($model, $db, sub { is_plain(@_) && !$_[0]{unlogged} })
	  or return;
	my $base = draw(@bases);
	return if grep { $_->{matview} } tables_of($model, $db);
	my $name = "$session->{prefix}m" . $session->{next}++;
	my $view = dclone($base);
	$view->{name} = $name;
	$view->{matview} = $base->{name};
	$model->{tables}{"$db/$name"} = $view;
	return "CREATE MATERIALIZED VIEW $name AS SELECT * FROM $base->{name}";
}

=pod

=back

=cut

1;
