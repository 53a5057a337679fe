# Copyright (c) 2026, LazyDrop developers

# A standby that has replayed a copy of a database's files, and then what happened to the
# source, crashes.  It must not begin again before the copy: the source is gone, or is
# not what it was.
#
# See doc/upstream/moved-database.md.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/..";
use LazyDropUtils qw(wait_until);
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use StockFault qw(check_fault new_node configure);
use Test::More;

# Of each source, where its copy is, and what is done on the primary.
my %copies = (
	moved => {
		copy => 'moved',
		sql => ['ALTER DATABASE moved SET TABLESPACE other']
	},
	dropped => {
		copy => 'copy1',
		sql => [
			'CREATE DATABASE copy1 TEMPLATE dropped STRATEGY file_copy',
			'DROP DATABASE dropped'
		]
	},
	changed => {
		copy => 'copy2',
		sql => ['CREATE DATABASE copy2 TEMPLATE changed STRATEGY file_copy'],
		sql_there => 'DROP TABLE t'
	});

check_fault(
	'crash after the source of a copy has changed',
	sub {
		my $primary = new_node('primary');
		$primary->init(allows_streaming => 1);
		configure(
			$primary,
			allow_in_place_tablespaces => 'on',
			autovacuum => 'off',
			checkpoint_timeout => '1h',
			fsync => 'off');
		$primary->start;
		$primary->safe_psql('postgres',
			"CREATE TABLESPACE other LOCATION ''");
		my %files;
		foreach my $source (sort keys %copies)
		{
			$primary->safe_psql('postgres', "CREATE DATABASE $source");
			$files{$source} = $primary->safe_psql(
				$source, q{
				CREATE TABLE t AS SELECT generate_series(1, 1000) AS i;
				SELECT pg_relation_filepath('t');
				});
		}

		# Replay begins after the sources have been made.
		$primary->backup('backup');
		my $standby = new_node('standby');
		$standby->init_from_backup($primary, 'backup', has_streaming => 1);
		$standby->start;

		foreach my $source (sort keys %copies)
		{
			$primary->safe_psql('postgres', $_)
			  foreach @{ $copies{$source}{sql} };
			$primary->safe_psql($source, $copies{$source}{sql_there})
			  if $copies{$source}{sql_there};
		}
		$primary->wait_for_replay_catchup($standby);

		# The fork may remove them later.
		foreach my $file (values %files)
		{
			wait_until(sub { !-e $standby->data_dir . "/$file" })
			  or die "$file has not been removed";
		}

		$standby->stop('immediate');
		return 'the standby does not start'
		  if !$standby->start(fail_ok => 1);
		$primary->wait_for_replay_catchup($standby);
		my @wrong;
		foreach my $source (sort keys %copies)
		{
			my ($result, $out, $err) =
			  $standby->psql($copies{$source}{copy},
				'SELECT count(*) FROM t');
			push @wrong, "$source: $out$err" if $out ne '1000';
		}
		return join('; ', @wrong);
	});

done_testing();
