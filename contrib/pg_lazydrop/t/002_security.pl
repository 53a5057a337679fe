# Copyright (c) 2026, LazyDrop developers

# The owner of a database may create operators and functions in it that match the types of
# an expression better than the ones in pg_catalog, and may put their schema before
# pg_catalog in search_path.  Test that nothing of the extension, and none of the queries
# for monitoring systems, uses them, as the superuser or the monitoring role who runs it.
#
# Test also that the grants that the manual describes are sufficient, and necessary.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/../../../src/test/lazydrop";
use LazyDropUtils qw(start_quiet_node);
use ManualQueries qw(monitoring_queries);
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = start_quiet_node('main', 'lazydrop.advisor' => 'on');
my %query = monitoring_queries();

# Everything that might be meant: names before a parenthesis, and operators.
my $sql = join "\n", values %query,
  map { slurp_file($_) } glob("'$FindBin::RealBin'/../*.sql");
my %names = map { $_ => 1 } $sql =~ /\b([a-z_0-9]+)\(/g;
my $names = join ',', map { "'$_'" } sort keys %names;
my $operators = join ',',
  map { "('$_')" } qw(-> ->> = <> < > <= >= + - * / % ^ || @> ~);

my $plant = qq{
CREATE FUNCTION attempt(command text) RETURNS integer LANGUAGE plpgsql AS \$\$
BEGIN
	EXECUTE command;
	RETURN 1;
EXCEPTION WHEN OTHERS THEN
	-- not all names can be used for everything
	RETURN 0;
END \$\$;

CREATE TEMPORARY TABLE type AS
	SELECT unnest('{bool,"char",int2,int4,int8,float4,float8,numeric,text,varchar,name,json,jsonb,timestamptz,interval,oid}'::regtype[]) AS t;
CREATE TEMPORARY TABLE planted AS
WITH operator AS MATERIALIZED (
	SELECT attempt(format('CREATE FUNCTION public.trap(%1\$s, %2\$s) RETURNS %1\$s LANGUAGE plpgsql AS \$_\$
		BEGIN RAISE EXCEPTION \$m\$planted: %1\$s, %2\$s\$m\$; END \$_\$', l.t, r.t))
		+ (SELECT sum(attempt(format('CREATE OPERATOR public.%s (LEFTARG = %s, RIGHTARG = %s, FUNCTION = public.trap)', o, l.t, r.t)))
		   FROM (VALUES $operators) AS v(o)) AS n
	FROM type AS l, type AS r
), same_signature AS MATERIALIZED (
	SELECT attempt(format('CREATE FUNCTION public.%I(%s) RETURNS %s LANGUAGE plpgsql AS \$_\$
		BEGIN RAISE EXCEPTION \$m\$planted: %s\$m\$; END \$_\$',
		proname, pg_get_function_identity_arguments(oid), pg_get_function_result(oid), proname)) AS n
	FROM pg_proc WHERE pronamespace = 'pg_catalog'::regnamespace AND proname IN ($names)
), other_signature AS MATERIALIZED (
	SELECT attempt(format('CREATE FUNCTION public.%I(%s) RETURNS text LANGUAGE plpgsql AS \$_\$
		BEGIN RAISE EXCEPTION \$m\$planted: %s\$m\$; END \$_\$', proname, a.arguments, proname)) AS n
	FROM (SELECT DISTINCT proname FROM pg_proc
		  WHERE pronamespace = 'pg_catalog'::regnamespace AND proname IN ($names)) AS p,
		(SELECT t::text FROM type UNION ALL SELECT concat(l.t, ',', r.t) FROM type AS l, type AS r
		 UNION ALL SELECT concat('text,', t, ',text,', t) FROM type) AS a(arguments)
)
SELECT (SELECT sum(n) FROM operator) AS operators,
	(SELECT sum(n) FROM same_signature) AS same_functions,
	(SELECT sum(n) FROM other_signature) AS functions;
SELECT operators, same_functions, functions FROM planted;
};

$node->safe_psql('postgres',
	'CREATE ROLE bob LOGIN; CREATE ROLE watcher LOGIN IN ROLE pg_monitor; CREATE ROLE reader LOGIN'
);

# A call of each function of the extension.
my %call = (
	'pg_lazydrop_advise(bigint)' => '(NULL)',
	'pg_lazydrop_advice_range(bigint)' => '(9223372036854775807)',
	'pg_lazydrop_advice_reads(bigint)' => '(0)',
	'pg_lazydrop_advice_plot(integer)' => '(10)',
	'pg_lazydrop_advise(double precision)' => '(0.1)',
	'pg_lazydrop_drain(interval)' => '(NULL)');

sub use_everything
{
	my ($database, $role, $what) = @_;
	my @objects = split /\n/, $node->safe_psql(
		$database, q{
		SELECT objid::regclass::text FROM pg_catalog.pg_depend
		WHERE classid OPERATOR(pg_catalog.=) 'pg_catalog.pg_class'::regclass::oid
			AND deptype OPERATOR(pg_catalog.=) 'e'::"char"
		UNION ALL
		SELECT objid::regprocedure::text FROM pg_catalog.pg_depend
		WHERE classid OPERATOR(pg_catalog.=) 'pg_catalog.pg_proc'::regclass::oid
			AND deptype OPERATOR(pg_catalog.=) 'e'::"char"
			AND refclassid OPERATOR(pg_catalog.=) 'pg_catalog.pg_extension'::regclass::oid
			AND refobjid OPERATOR(pg_catalog.=)
				(SELECT oid FROM pg_catalog.pg_extension WHERE extname OPERATOR(pg_catalog.=) 'pg_lazydrop'::name)}
	);
	my $used = 0;
	foreach my $object (grep { /lazydrop/ } @objects)
	{
		# These are for superusers.
		next if $role ne '' && $object =~ /drain|reset/;
		my $call = $object =~ s/^public\.//r;
		if ($call =~ /\(.+\)/)
		{
			die "no call of $object" unless exists $call{$call};
			$call =~ s/\(.*/$call{$call}/;
		}
		my ($status, undef, $error) =
		  $node->psql($database, "${role}SELECT * FROM public.$call");
		is("$status $error", '0 ', "$what: $object");
		$used++;
	}
	cmp_ok($used, '>=', 12, "$what: all of them");
	return;
}

# Where the schema is, compared with pg_catalog.
foreach my $case (
	[ behind => '' ],
	[
		before => 'ALTER DATABASE before SET search_path = public, pg_catalog'
	])
{
	my ($database, $command) = @$case;
	$node->safe_psql('postgres', "CREATE DATABASE $database OWNER bob");
	my @planted = split /\|/,
	  $node->safe_psql($database, $plant,
		extra_params => [ '--username' => 'bob' ]);
	note "planted: @planted";
	ok($planted[0] > 2000 && $planted[1] >= 5 && $planted[2] > 1000,
		"$database: planted");
	$node->safe_psql($database, $command,
		extra_params => [ '--username' => 'bob' ]);
	my (undef, undef, $error) =
	  $node->psql($database, q{SELECT 1::float8 = 1::int4});
	like($error, qr/planted/, "$database: what is planted is used");

	$node->safe_psql($database, 'CREATE EXTENSION pg_lazydrop');
	use_everything($database, '', "$database, superuser");
	use_everything($database, 'SET ROLE watcher; ', "$database, pg_monitor");

	$node->safe_psql($database,
		q{DROP EXTENSION pg_lazydrop; CREATE EXTENSION pg_lazydrop VERSION '1.0'}
	);
	use_everything($database, '', "$database, 1.0");
	$node->safe_psql($database, 'ALTER EXTENSION pg_lazydrop UPDATE');
	use_everything($database, '', "$database, updated");

	foreach my $name (sort keys %query)
	{
		my ($status, $output, $error) = $node->psql($database, $query{$name},
			extra_params => [ '--username' => 'watcher' ]);
		is("$status $error", '0 ', "$database: $name");
		like($output, qr/OK/, "$database: the check is content")
		  if $name =~ /check/;
	}
}

# --- privileges -----------------------------------------------------------------------

$node->safe_psql('postgres', 'CREATE EXTENSION pg_lazydrop');

sub as_reader
{
	my ($query) = @_;
	my (undef, undef, $error) = $node->psql('postgres', $query,
		extra_params => [ '--username' => 'reader' ]);
	return $error =~ /permission denied/ ? 'denied' : $error;
}

my %function_of = (
	pg_stat_lazydrop => 'pg_stat_get_lazydrop()',
	pg_stat_lazydrop_cache => 'pg_stat_get_lazydrop_cache()',
	pg_lazydrop_pending => 'pg_lazydrop_get_pending()',
	pg_lazydrop_advice => 'pg_lazydrop_get_advice()');
is( $node->safe_psql(
		'postgres', q{
		SELECT count(*) FROM pg_depend
		WHERE classid = 'pg_rewrite'::regclass AND refclassid = 'pg_proc'::regclass
			AND refobjid IN (SELECT oid FROM pg_proc WHERE proname LIKE '%lazydrop%')}
	),
	scalar(keys %function_of),
	'each view has its function');
foreach my $view (sort keys %function_of)
{
	my $function = $function_of{$view};
	is(as_reader("SELECT * FROM $view"), 'denied', "$view: denied");
	$node->safe_psql('postgres', "GRANT SELECT ON $view TO reader");
	is(as_reader("SELECT * FROM $view"),
		'denied', "$view: denied without EXECUTE");
	$node->safe_psql('postgres',
		"GRANT EXECUTE ON FUNCTION $function TO reader");
	is(as_reader("SELECT * FROM $view"), '', "$view: granted");
}
foreach my $function (
	split /\n/,
	$node->safe_psql(
		'postgres', q{
		SELECT oid::regprocedure::text FROM pg_proc
		WHERE proname LIKE '%lazydrop%' AND NOT has_function_privilege('reader', oid, 'EXECUTE')}
	))
{
	my $call = $function;
	$call =~ s/\(.*/$call{$function}/ if exists $call{$function};
	is(as_reader("SELECT * FROM $call"), 'denied', "$function: denied");
	$node->safe_psql('postgres',
		"GRANT EXECUTE ON FUNCTION $function TO reader");
	is(as_reader("SELECT * FROM $call"), '', "$function: granted");
}

$node->stop;
done_testing();
