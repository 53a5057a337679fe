# Copyright (c) 2026, LazyDrop developers

=pod

=head1 NAME

RecycledDatabases - the databases of 041_recycled_numbers.pl

=head1 DESCRIPTION

The sessions work in the databases "postgres" and "other".  Three more are dropped and
created with the same OID: "again1" and "again2" with a given OID, and "counted", which
gets its OID from the counter at the beginning of each round.  They are copies of one of
two templates, whose tables have the same numbers, but different rows.

=cut

package RecycledDatabases;

use strict;
use warnings FATAL => 'all';

use Exporter 'import';
use FindBin;
use LazyDropModel qw(chance draw);
use PostgreSQL::Test::Utils;

our @EXPORT_OK =
  qw(create_databases all_databases create_database drop_database database_cycle
  database_reuses);

my $primary;

my %databases =
  map { $_->[0] => { name => $_->[0], oid => $_->[1], exists => 0 } }
  ([ 'again1', 90001 ], [ 'again2', 90002 ], [ 'counted', undef ]);

# How often each OID was used.
my %oids;
my $reuses = 0;

=pod

=over

=item create_databases($node)

Create a tablespace, the databases in which sessions work, and the templates on this
primary, which the other functions work on as well.

=cut

sub create_databases
{
	($primary) = @_;
	my $schema = slurp_file("$FindBin::RealBin/../recycled_numbers.sql");
	my ($share) = run_command([ 'pg_config', '--sharedir' ]);
	my $amcheck = -e "$share/extension/amcheck.control";

	$primary->safe_psql('postgres',
		"CREATE EXTENSION pg_buffercache;\nCREATE TABLESPACE there LOCATION ''"
	);
	$primary->safe_psql('postgres', "CREATE DATABASE $_")
	  foreach qw(other template_a);

	# No two databases may have the same tags.
	my $tags = 0;
	foreach my $database (qw(postgres other template_a))
	{
		$primary->safe_psql($database,
			$schema =~ s/%d/++$tags . '0000000'/er);
		$primary->safe_psql($database, 'CREATE EXTENSION amcheck')
		  if $amcheck;
	}

	$primary->safe_psql('template_a',
		q{SELECT setseed(0.5); SELECT make(('t' || g)::name, true) FROM generate_series(1, 8) AS g}
	);
	$primary->safe_psql('postgres',
		'CREATE DATABASE template_b TEMPLATE template_a');
	$primary->safe_psql(
		'template_b', q{
		ALTER SEQUENCE tags RESTART 90000000;
		DO $$
		DECLARE
			m model;
		BEGIN
			FOR m IN SELECT * FROM model LOOP
				EXECUTE format('DELETE FROM %I', m.name);
				PERFORM fill(m.name, m.long);
			END LOOP;
		END $$});
	return;
}

=pod

=item all_databases()

Returns the names of the databases that exist, except the templates.

=cut

sub all_databases
{
	return ('postgres', 'other',
		grep { $databases{$_}{exists} } sort keys %databases);
}

=pod

=item create_database($name), drop_database($name)

Create one of the three databases; drop it if it exists.

=cut

sub create_database
{
	my ($name) = @_;
	my $database = $databases{$name};
	my $template = draw(qw(template_a template_b));
	@$database{qw(space other)} =
	  chance(0.5) ? qw(pg_default there) : qw(there pg_default);
	$primary->safe_psql('postgres',
			"CREATE DATABASE $name TEMPLATE $template"
		  . (defined $database->{oid} ? " OID $database->{oid}" : '')
		  . ' STRATEGY '
		  . draw(qw(wal_log file_copy))
		  . " TABLESPACE $database->{space}");
	$database->{exists} = 1;
	my $oid = $primary->safe_psql('postgres',
		"SELECT oid FROM pg_database WHERE datname = '$name'");
	$reuses++ if $oids{$oid}++;
	return;
}

sub drop_database
{
	my ($name) = @_;
	my $database = $databases{$name};
	return unless $database->{exists};
	$primary->safe_psql('postgres', "DROP DATABASE $name");
	$database->{exists} = 0;
	return;
}

=pod

=item database_cycle($round, $upgraded)

Drop one of the databases with a given OID, perhaps after other changes, and create it
again.  In binary-upgrade mode there are no such changes.  Returns whether it was moved.

=cut

sub storm_in_database
{
	my ($name, $ops, $round) = @_;
	$primary->safe_psql($name,
		'SELECT setseed(' . rand() . "); CALL storm('t', $ops, 10, $round)");
	return;
}

sub database_cycle
{
	my ($round, $upgraded) = @_;
	my $name = draw(qw(again1 again2));
	my $database = $databases{$name};
	my $moved = 0;
	if ($database->{exists})
	{
		# Move the database, and move a table back.
		if (!$upgraded && chance(0.3))
		{
			my ($from, $to) = @$database{qw(space other)};
			$primary->safe_psql(
				$name, qq{
				ALTER TABLE ALL IN TABLESPACE $to SET TABLESPACE $from;
				ALTER INDEX ALL IN TABLESPACE $to SET TABLESPACE $from});
			$primary->safe_psql('postgres',
				"ALTER DATABASE $name SET TABLESPACE $to");
			@$database{qw(space other)} = ($to, $from);
			$moved = 1;
			$primary->safe_psql($name,
				qq{SELECT make('t100', true); ALTER TABLE t100 SET TABLESPACE $from}
			) if chance(0.5);
		}
		storm_in_database($name, 8, $round) if !$upgraded && chance(0.5);
		drop_database($name);
	}
	create_database($name);
	storm_in_database($name, 6, $round) if !$upgraded && chance(0.5);
	return $moved;
}

=pod

=item database_reuses()

Returns how often an OID came back.

=cut

sub database_reuses
{
	return $reuses;
}

=pod

=back

=cut

1;
