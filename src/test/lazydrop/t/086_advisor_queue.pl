
# Copyright (c) 2026, LazyDrop developers

# Test the advisor's queue (rule A3) where a process has claimed a slot and puts no batch
# there: it ends, as a background worker with the default handler of SIGTERM may, or it
# goes on when the worker no longer waits.  In both cases, what other processes put into
# the queue must arrive.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/..";
use JSON::PP;
use LazyDropUtils qw(start_quiet_node log_is_clean release);
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

plan skip_all => 'Injection points not supported by this build'
  if ($ENV{enable_injection_points} // '') ne 'yes';

my $point = 'lazydrop-advisor-claimed';
my $node = start_quiet_node(
	'node',
	'shared_buffers' => '4MB',
	'lazydrop.advisor_memory' => '1MB',
	'lazydrop.advisor' => 'on');
my $pages = 1000;
$node->safe_psql(
	'postgres', qq{
	CREATE EXTENSION injection_points;
	CREATE TABLE loop (id int, f text) WITH (fillfactor = 10);
	INSERT INTO loop SELECT i, repeat('x', 700) FROM generate_series(1, $pages) AS i;
	VACUUM (FREEZE) loop});
my $loop = 'SELECT count(f) FROM loop;';

sub advice
{
	return decode_json($node->safe_psql('postgres', 'SHOW lazydrop.advice'));
}

# Wait until more samples have been taken from the queue than it could contain before.
sub samples_arrive
{
	my ($what) = @_;
	my $wanted = advice()->{samples} + 20 * $pages;
	$node->safe_psql('postgres', $loop x 25);
	ok( $node->poll_query_until(
			'postgres',
			qq{
			SELECT (SELECT count(f) FROM loop) = $pages
				AND (current_setting('lazydrop.advice')::jsonb->>'samples')::float8 > $wanted}
		),
		$what);
	return;
}

# Start a session that waits between the claim and the batch.  Returns it, and its
# process ID.
sub claim
{
	my $session = $node->background_psql('postgres', on_error_stop => 0);
	my $pid = $session->query_safe('SELECT pg_backend_pid()');
	$session->query_safe(
		"SELECT injection_points_set_local(); SELECT injection_points_attach('$point', 'wait')"
	);
	$session->query_until(qr/begun/, "\\echo begun\n$loop\n");
	$node->wait_for_event('client backend', $point);
	return ($session, $pid);
}

samples_arrive('the advisor sees a loop');

# The session ends.  (It detaches from its own injection points first.)
my ($session, $pid) = claim();
$node->safe_psql('postgres', "SELECT pg_terminate_backend($pid)");
$node->poll_query_until('postgres',
	"SELECT NOT EXISTS (SELECT FROM pg_stat_activity WHERE pid = $pid)")
  or die 'the session does not end';
samples_arrive('when a process has ended, the worker skips its slot');
eval { $session->quit };

# The session goes on when the worker has skipped its slot.
($session, $pid) = claim();
samples_arrive('when a process is stopped, the worker skips its slot');
my $dropped = advice()->{samples_dropped};
release($node, $point);
is($session->query_safe($loop),
	"$pages\n$pages", 'the process goes on, and its query is answered');
$session->quit;
cmp_ok(advice()->{samples_dropped},
	'>', $dropped, 'its batch is counted as dropped');
samples_arrive('and nothing waits for it any more');

log_is_clean($node);
$node->stop;
done_testing();
