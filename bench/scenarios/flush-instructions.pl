
# Copyright (c) 2026, LazyDrop developers

# Asks: how many instructions does it take to write a buffer when nothing is pending?
# Counted by callgrind in a single-user server, which writes what a table's creation left
# dirty; so it does not depend on the machine's other work.
#
# Expected: some tens more than stock, of some ten thousand.

use strict;
use warnings FATAL => 'all';

use LazyDropBench;
use PostgreSQL::Test::Utils;

scenario 'flush-instructions' => (
	seconds => 45,
	runs => 1,
	groups => sub { return cases([qw(stock on off)], size => '128MB') },
	run => sub {
		my ($case) = @_;
		if (system('valgrind --version >/dev/null 2>&1') != 0)
		{
			left_out('flush-instructions', 'there is no valgrind');
			return;
		}
		my $rows = n(300000);
		my $node = new_node($case->{server});
		$node->init;
		configure(
			$node, $case->{server},
			wal_level => 'replica',
			shared_buffers => $case->{size},
			log_checkpoints => 'on');
		my $out = in_scratch("callgrind.$case->{server}");
		my $sql =
		  "CREATE TABLE t AS SELECT generate_series(1, $rows) AS a;\nCHECKPOINT;\n";
		my $err = '';
		run_program(
			[
				'valgrind',
				'--quiet',
				'--tool=callgrind',
				'--toggle-collect=FlushBuffer*',
				"--callgrind-out-file=$out",
				$node->installed_command('postgres'),
				'--single',
				'-D' => $node->data_dir,
				'postgres'
			],
			'<' => \$sql,
			'>' => '/dev/null',
			'2>' => \$err) or die "valgrind failed: $err\n";
		my ($instructions) = slurp_file($out) =~ /^(?:totals|summary): (\d+)/m
		  or die "no total in $out\n";
		unlink $out;
		my $writes = 0;
		$writes += $1 while $err =~ /complete: wrote (\d+) buffers/g;
		die "no checkpoint in: $err\n" if $writes == 0;
		record('write of a buffer', 'instructions', $instructions / $writes);
		discard($node);
	});
