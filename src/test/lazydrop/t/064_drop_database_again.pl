# Copyright (c) 2026, LazyDrop developers

# DROP DATABASE that ends after it has removed directories, and before the record of
# that is flushed, leaves an invalid database.  When it is repeated, standbys must lose
# their directories, too, whether this server has any left or not.
#
# The standbys are of the kind that is tried, and of stock, which must read what is
# written.

use strict;
use warnings FATAL => 'all';

use File::Path qw(rmtree);
use FindBin;
use lib "$FindBin::RealBin/..";
use IPC::Run;
use LazyDropUtils qw(database_directories wait_for_nothing);
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use StockFault qw(check_fault new_node configure kind_is);
use Test::More;

plan skip_all => 'needs directories that cannot be written to'
  if $windows_os || $> == 0;

# Of each warning that a file cannot be removed, a client is told; and DROP DATABASE waits
# for one that does not read that, in the middle.
use constant FILES => 2000;

sub drop_and_be_interrupted
{
	my ($primary, $path, $kill) = @_;
	my $stuck = "$path/stuck";
	mkdir $stuck or die $!;
	foreach my $i (1 .. FILES)
	{
		open(my $file, '>', sprintf('%s/%s%04d', $stuck, 'x' x 200, $i))
		  or die $!;
		close($file);
	}
	chmod(0500, $stuck) or die $!;

	pipe(my $unread, my $stderr) or die $!;
	my $psql = IPC::Run::start(
		[
			'psql', '-X',
			'-d' => $primary->connstr('postgres'),
			'-c' => 'DROP DATABASE d'
		],
		'>' => '/dev/null',
		'2>' => $stderr);
	close($stderr);
	$primary->poll_query_until('postgres',
		q{SELECT count(*) > 0 FROM pg_stat_activity WHERE wait_event = 'ClientWrite'}
	) or die 'DROP DATABASE does not wait for its client';
	my $pid = $primary->safe_psql('postgres',
		q{SELECT pid FROM pg_stat_activity WHERE wait_event = 'ClientWrite'});
	chmod(0700, $stuck) or die $!;

	if ($kill)
	{
		my $offset = -s $primary->logfile;
		kill('KILL', $pid);
		$primary->wait_for_log(
			qr/database system is ready to accept connections/, $offset);
	}
	else
	{
		$primary->safe_psql('postgres',
			"SELECT pg_terminate_backend($pid, 180000)");
	}
	close($unread);
	$psql->finish;
	return;
}

sub scenario
{
	my $primary = new_node('primary');
	$primary->init(allows_streaming => 1);
	configure(
		$primary,
		'allow_in_place_tablespaces' => 'on',
		'autovacuum' => 'off',
		'checkpoint_timeout' => '1h',
		'log_min_messages' => 'error',
		'restart_after_crash' => 'on');
	$primary->start;
	$primary->backup('backup');
	my @standbys = (new_node('standby'));
	push @standbys, new_node('stock', 1)
	  if $ENV{LAZYDROP_STOCK} && !kind_is('stock');
	foreach my $standby (@standbys)
	{
		$standby->init_from_backup($primary, 'backup', has_streaming => 1);
		$standby->start;
	}
	# The database has nothing in the second one, on any server.
	$primary->safe_psql('postgres', "CREATE TABLESPACE $_ LOCATION ''")
	  foreach qw(ts unused);

	my @wrong;
	foreach my $case ('a session that ends', 'a crash')
	{
		# What is interrupted is as in stock.
		set_enabled($primary, 'off') if kind_is('fork');
		$primary->safe_psql('postgres', 'CREATE DATABASE d');
		$primary->safe_psql('d', 'CREATE TABLE t (a int) TABLESPACE ts');
		my $oid = $primary->safe_psql('postgres',
			q{SELECT oid FROM pg_database WHERE datname = 'd'});
		$primary->wait_for_replay_catchup($_) foreach @standbys;
		my ($base, $path) =
		  map { $primary->data_dir . "/$_" }
		  database_directories($primary, $oid);
		drop_and_be_interrupted($primary, $path, $case eq 'a crash');
		die "$base is there, or $path is not" if -e $base || !-e $path;
		# as a moment later
		rmtree($path) if $case eq 'a crash';

		set_enabled($primary, 'on') if kind_is('fork');
		$primary->safe_psql('postgres', 'DROP DATABASE d');
		$primary->wait_for_replay_catchup($_) foreach @standbys;
		if (!kind_is('stock'))
		{
			wait_for_nothing($primary, $standbys[0]);
		}
		foreach my $node ($primary, @standbys)
		{
			my @left = database_directories($node, $oid);
			push @wrong, "after $case, @left left on " . $node->name if @left;
		}
	}
	return join('; ', @wrong);
}

sub set_enabled
{
	my ($node, $value) = @_;
	$node->append_conf('postgresql.conf', "lazydrop.enabled = $value\n");
	$node->reload;
	$node->poll_query_until('postgres',
		"SELECT current_setting('lazydrop.enabled') = '$value'");
	return;
}

check_fault('DROP DATABASE that is repeated', \&scenario);

done_testing();
