# Copyright (c) 2026, LazyDrop developers

# A transaction that removes files at its end waits for room in the checkpointer's queue,
# which is short if shared_buffers is small.  If the postmaster is killed meanwhile, the
# process exits.  In stock PostgreSQL it aborts its transaction while it exits.  For a
# committed transaction, this is a PANIC; for an aborted one, a second abort record or a
# failed assertion.  A transaction that is still in progress must be aborted, because a
# checkpoint may wait for it.
#
# See doc/upstream/request-queue.md.

use strict;
use warnings FATAL => 'all';

use Cwd qw(abs_path);
use FindBin;
use lib "$FindBin::RealBin/..";
use LazyDropUtils qw(wait_until);
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use StockFault qw(check_fault new_node configure log_has);
use Test::More;

plan skip_all => 'needs /proc' if !-r '/proc/self/stat';

# More than the queue's 16 slots.
my $tables = 20;

# Run SQL, and then a statement that removes files.  Kill the postmaster during that
# statement.
sub play
{
	my ($sql, $statement) = @_;
	my $node = new_node('node');
	$node->init;
	configure(
		$node,
		autovacuum => 'off',
		bgwriter_lru_maxpages => 0,
		shared_buffers => '128kB');
	$node->start;
	$node->safe_psql('postgres',
		join('', map { "CREATE TABLE old$_ ();\n" } 1 .. $tables));
	$node->safe_psql('postgres', 'CHECKPOINT');
	my $checkpointer = $node->safe_psql('postgres',
		q{SELECT pid FROM pg_stat_activity WHERE backend_type = 'checkpointer'}
	);

	my $session = $node->background_psql('postgres');
	$session->query_safe("BEGIN; $sql");
	kill('STOP', $checkpointer);
	$session->query_until(qr/begun/, "\\echo begun\n$statement;\n");
	$node->wait_for_event('client backend', 'RegisterSyncRequest');
	my $data = abs_path($node->data_dir);
	my $postmaster = $node->{_pid};
	$node->kill9;
	my $left = sub {
		return
		  grep { (readlink($_) // '') eq $data } glob('/proc/[0-9]*/cwd');
	};
	wait_until(sub { $left->() <= 1 }) or die 'a session does not end';
	kill('KILL', $checkpointer);
	wait_until(sub { !$left->() && !-e "/proc/$postmaster" })
	  or die 'the checkpointer does not end';
	eval { $session->quit };

	my $wrong = log_has($node, qr/PANIC|TRAP/);
	$node->start;
	is( $node->safe_psql(
			'postgres',
			q{SELECT count(*) FROM pg_class WHERE relname ~ '^(old|new)\d+$'}
		),
		$statement eq 'COMMIT' ? 0 : $tables,
		'the transaction has its outcome');
	return $wrong;
}

sub each_table
{
	my ($format) = @_;
	return join('; ', map { sprintf($format, $_) } 1 .. $tables);
}

check_fault(
	'a commit that waits for room in the queue',
	sub { play(each_table('DROP TABLE old%d'), 'COMMIT') });
check_fault('a rollback that waits for room in the queue',
	sub { play(each_table('CREATE TABLE new%d ()'), 'ROLLBACK') });

# When VACUUM truncates pg_multixact, it prevents checkpoints from starting while it waits
# for room.  A checkpointer that waits for VACUUM must not do so indefinitely.  Stock has
# no fault here.
{
	my $node = PostgreSQL::Test::Cluster->new('vacuum');
	$node->init;
	$node->append_conf('postgresql.conf',
		"autovacuum = off\nbgwriter_lru_maxpages = 0\nshared_buffers = 128kB\n"
	);
	# There are a hundred segments of members, none of which exists, and the first page of
	# the next one.
	command_ok(
		[
			'pg_resetwal',
			'--multixact-ids' => '10,1',
			'--multixact-offset' => 1636 * 32 * 100,
			$node->data_dir
		],
		'pg_resetwal');
	$node->start;
	my $process = sub {
		my ($type) = @_;
		return $node->safe_psql('postgres',
			"SELECT pid FROM pg_stat_activity WHERE backend_type = '$type'");
	};
	my $waits = sub {
		my ($pid, $event) = @_;
		$node->poll_query_until('postgres',
			"SELECT wait_event = '$event' FROM pg_stat_activity WHERE pid = $pid"
		) or die "no process waits for $event";
	};
	$node->safe_psql('postgres',
		'ALTER DATABASE template0 ALLOW_CONNECTIONS true');
	$node->safe_psql($_, 'VACUUM (FREEZE)') foreach qw(template0 template1);
	$node->safe_psql('postgres', 'CHECKPOINT');
	my $checkpointer = $process->('checkpointer');
	my $vacuum = $node->background_psql('postgres');
	my $pid = $vacuum->query_safe('SELECT pg_backend_pid()');
	kill('STOP', $checkpointer);
	$vacuum->query_until(qr/begun/, "\\echo begun\nVACUUM (FREEZE);\n");
	$waits->($pid, 'RegisterSyncRequest');

	# A checkpoint empties the queue, and then waits for VACUUM, which fills it again.
	kill('STOP', $pid);
	my $checkpoint = $node->background_psql('postgres');
	$checkpoint->query_until(qr/begun/, "\\echo begun\nCHECKPOINT;\n");
	kill('CONT', $checkpointer);
	$waits->($checkpointer, 'CheckpointDelayStart');
	kill('STOP', $checkpointer);
	$node->kill9;
	kill('CONT', $pid);
	ok(wait_until(sub { !-e "/proc/$pid" }), 'VACUUM ends');
	kill('CONT', $checkpointer);
	ok(wait_until(sub { !-e "/proc/$checkpointer" }),
		'and so does the checkpointer')
	  or kill('KILL', $checkpointer);
	eval { $_->quit } foreach $vacuum, $checkpoint;
}

done_testing();
