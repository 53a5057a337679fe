/*-------------------------------------------------------------------------
 *
 * simulate.c
 *	  Compare replacement policies for a buffer pool, on traces.
 *
 * The question is how many of the accesses to a pool of N buffers find their
 * page, or how much of a hot set is left, under the server's policy and under
 * others.  The server's policy and stock's clock sweep are the code of the
 * advisor's simulated pool, src/backend/storage/advisor, which shares the
 * decisions with the server; competitors.c has the others.  A workload is made
 * once, as a sequence of pins, and replayed for each policy, so that misses
 * under one policy do not change the accesses that another one sees.
 *
 * Not simulated: the cost of I/O, dirty pages, pins that last, contention
 * (hands move in steps of one, no search collides with another one), rings, and
 * index pages.  Counts and classes change in the order of the trace; in the
 * server, sessions overlap.  OPT knows the future.  It is a bound for all
 * accesses of a trace together, not for one part of them.
 *
 * simulate [OPTION...] [WORKLOAD...]
 *
 *	idle		a hot set that is not used while a table is scanned
 *	live		a hot set that is used while a table is scanned
 *	oltp		OLTP loads, alone and beside scans
 *	shift		a working set that moves at once
 *	drift		a working set that moves gradually
 *	join		an inner table that is used while a hot set is idle
 *	replay		pages that a standby replays without looking them up
 *	variants	cells in which the policy's constants matter, for LazyDrop only
 *
 * Without a workload, all but the last.
 *
 *	--buffers=N	size of the pool, 16384 by default, or 2048 with --quick
 *	--seed=N	other random numbers
 *	--quick		a small pool, and one case of each kind
 *	--counted	pages found without a lookup count as used (see replay)
 *	--row=TEXT	print a single row of "variants", with this text in front
 *
 * Copyright (c) 2026, LazyDrop developers
 *
 * IDENTIFICATION
 *	  bench/simulator/simulate.c
 *
 *-------------------------------------------------------------------------
 */
#include "simulator.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>


/* All cases in a list; with --quick, only the one in the middle. */
#define FOREACH_CASE(i, list) \
	for (int i = quick ? lengthof(list) / 2 : 0; \
		 i < (quick ? lengthof(list) / 2 + 1 : lengthof(list)); i++)

#define DEFAULT_BUFFERS		16384
#define QUICK_BUFFERS		2048
#define MIN_BUFFERS			2000	/* so that the main hand never goes round */
#define MAX_BUFFERS			4000000 /* page numbers have 28 bits */

/* options */
static int32 nbuffers;
static uint64 seed = 1;
static bool quick = false;
static bool counted = false;
static const char *row_label = NULL;

static const Policy *const policies[] = {
	&LazyDropPolicy,
	&StockPolicy,
	&SecondChancePolicy,
	&CoolingPolicy,
	&TwoQueuesPolicy,
	&S3FifoPolicy,
	&OptimumPolicy,
};

/* ----------------------------------------------------------------
 *		Memory and random numbers
 * ----------------------------------------------------------------
 */

static void
Fail(const char *message, const char *detail)
{
	fprintf(stderr, "simulate: %s%s\n", message, detail);
	exit(1);
}

static void *
Allocate(Size size)
{
	void	   *memory = calloc(1, size);

	if (memory == NULL)
		Fail("out of memory", "");
	return memory;
}

#define MAX_CHUNKS		16

static void *chunks[MAX_CHUNKS];
static int	nchunks = 0;

/*
 * Allocate zeroed memory for a pool.  It is freed by FreePool().
 */
void *
PoolAlloc(Size size)
{
	if (nchunks >= MAX_CHUNKS)
		Fail("too many chunks of memory for a pool", "");
	return chunks[nchunks++] = Allocate(size);
}

static void
FreePool(void)
{
	while (nchunks > 0)
		free(chunks[--nchunks]);
}

/*
 * The finalizer of splitmix64: a hash of a number.
 */
static inline uint64
Mix(uint64 x)
{
	x = (x ^ (x >> 30)) * UINT64CONST(0xbf58476d1ce4e5b9);
	x = (x ^ (x >> 27)) * UINT64CONST(0x94d049bb133111eb);
	return x ^ (x >> 31);
}

/* state of the generator, splitmix64; each trace starts with the seed */
static uint64 random_state;

static inline uint64
Random(void)
{
	random_state += UINT64CONST(0x9e3779b97f4a7c15);
	return Mix(random_state);
}

/*
 * Convert a random number into one below 1.
 */
static inline double
Fraction(uint64 random)
{
	return (random >> 11) / 9007199254740992.0;
}

/*
 * Convert a random number into one below a limit.
 */
static inline uint32
Below(uint64 random, uint32 limit)
{
	return ((random >> 32) * limit) >> 32;
}

static inline uint32
Uniform(uint32 limit)
{
	return Below(Random(), limit);
}

/*
 * Return a page number below a limit; small ones are more frequent.
 */
static uint32
Skewed(uint32 limit, double exponent)
{
	return limit * pow(Fraction(Random()), exponent);
}

/*
 * Return a number of pages that is given as a multiple of the pool.
 */
static uint32
Pages(double pools)
{
	return pools * nbuffers + 0.5;
}

/*
 * Zipf distributions.  The page of rank n, from 0 on, is n; no policy depends
 * on numbers of pages.
 */
typedef struct Zipf
{
	double		pools;
	double		exponent;
	uint32		npages;
	double	   *sum;			/* of the probabilities up to this rank */
	uint32	   *guide;			/* rank at which to start, by probability */
} Zipf;

static Zipf *
MakeZipf(double pools, double exponent)
{
	static Zipf made[8];
	Zipf	   *zipf = made;
	double		sum = 0;

	for (; zipf->npages != 0; zipf++)
	{
		if (zipf->pools == pools && zipf->exponent == exponent)
			return zipf;
	}
	if (zipf == &made[lengthof(made) - 1])
		Fail("too many distributions", "");

	zipf->pools = pools;
	zipf->exponent = exponent;
	zipf->npages = Pages(pools);
	zipf->sum = Allocate(zipf->npages * sizeof(double));
	zipf->guide = Allocate(zipf->npages * sizeof(uint32));
	for (uint32 i = 0; i < zipf->npages; i++)
		zipf->sum[i] = sum += pow(i + 1, -exponent);
	for (uint32 i = 0; i < zipf->npages; i++)
		zipf->sum[i] /= sum;
	for (uint32 i = 0, rank = 0; i < zipf->npages; i++)
	{
		while (zipf->sum[rank] < (double) i / zipf->npages)
			rank++;
		zipf->guide[i] = rank;
	}
	return zipf;
}

static uint32
NextZipf(const Zipf *zipf)
{
	double		wanted = Fraction(Random());
	uint32		rank = zipf->guide[(uint32) (wanted * zipf->npages)];

	while (rank < zipf->npages - 1 && zipf->sum[rank] < wanted)
		rank++;
	return rank;
}

/* ----------------------------------------------------------------
 *		Traces
 * ----------------------------------------------------------------
 */

static Trace trace;

/*
 * Begin a new trace, with a hot set of pages 0 to hot - 1.
 */
static void
StartTrace(uint32 hot)
{
	trace.length = 0;
	trace.npages = Max(hot, 1);
	trace.hot = hot;
	trace.idle = false;
	trace.nphases = 0;
	random_state = Mix(seed);
}

static void
AddAccess(uint32 page, Group group, bool recent)
{
	Access	   *access;

	if (trace.length == trace.allocated)
	{
		trace.allocated = trace.allocated * 2 + 1024 * 1024;
		trace.accesses = realloc(trace.accesses, trace.allocated * sizeof(Access));
		if (trace.accesses == NULL)
			Fail("out of memory", "");
	}
	access = &trace.accesses[trace.length++];
	access->page = page;
	access->group = group;
	access->recent = recent;
	trace.npages = Max(trace.npages, page + 1);
}

static inline void
Add(uint32 page, Group group)
{
	AddAccess(page, group, false);
}

static void
EndPhase(void)
{
	if (trace.nphases >= MAX_PHASES)
		Fail("too many phases", "");
	trace.phase_end[trace.nphases++] = trace.length;
}

/* results of a replay */
typedef struct Phase
{
	uint32		uses[NUM_GROUPS];
	uint32		hits[NUM_GROUPS];
	double		left;			/* of the hot set at the end, in per cent */
} Phase;

static Phase phases[MAX_PHASES];

static bool
ReplayAccess(const Policy *policy, void *pool, Access access)
{
	if (access.recent && !counted)
	{
		if (policy->recent != NULL)
			return policy->recent(pool, access.page);
		if (policy->resident(pool, access.page))
			return true;
	}
	return policy->access(pool, access.page);
}

/*
 * Replay the trace.  If all of an idle hot set has been lost, nothing brings it
 * back, and the rest of the trace is omitted.
 */
static void
Replay(const Policy *policy)
{
	void	   *pool = policy->create(&trace, nbuffers);
	Size		i = 0;

	memset(phases, 0, sizeof(phases));
	for (int n = 0; n < trace.nphases; n++)
	{
		Phase	   *phase = &phases[n];
		uint32		left = 0;

		for (; i < trace.phase_end[n]; i++)
		{
			Access		access = trace.accesses[i];

			phase->uses[access.group]++;
			phase->hits[access.group] += ReplayAccess(policy, pool, access);
		}
		for (uint32 page = 0; page < trace.hot; page++)
			left += policy->resident(pool, page);
		phase->left = 100.0 * left / Max(trace.hot, 1);
		if (trace.idle && left == 0)
			break;
	}
	FreePool();
}

/* ----------------------------------------------------------------
 *		Tables
 * ----------------------------------------------------------------
 */

/* number of policies in the table: some have no use for the optimum */
static int	ncolumns;

static void
StartTable(const char *title, const char *cases, bool with_optimum)
{
	ncolumns = lengthof(policies) - !with_optimum;
	printf("\n%s\n\n| %s |", title, cases);
	for (int i = 0; i < ncolumns; i++)
		printf(" %s |", policies[i]->name);
	printf("\n|---|");
	for (int i = 0; i < ncolumns; i++)
		printf("---|");
	printf("\n");
	memset(&positions, 0, sizeof(positions));
}

static void
PrintRow(const char *label, void (*print) (void))
{
	printf("| %s |", label);
	for (int i = 0; i < ncolumns; i++)
	{
		Replay(policies[i]);
		printf(" ");
		print();
		printf(" |");
		fflush(stdout);
	}
	printf("\n");
}

static void
EndTable(void)
{
	printf("\nLazyDrop: positions that a load looked at: %.1f on average, %d at most.\n",
		   (double) positions.total / Max(positions.loads, 1), (int) positions.most);
}

/*
 * What cells show of the last replay.  In all of these, phase 0 is not shown.
 */
static double
HitRatio(int phase, Group group)
{
	return 100.0 * phases[phase].hits[group] / Max(phases[phase].uses[group], 1);
}

static void
PrintBefore(void)
{
	printf("%.0f", phases[0].left);
}

static void
PrintLeft(void)
{
	for (int i = 1; i < trace.nphases; i++)
		printf("%s%.0f", i > 1 ? "/" : "", phases[i].left);
}

static void
PrintLiveHits(void)
{
	for (int i = 1; i < trace.nphases; i++)
		printf("%s%.0f", i > 1 ? "/" : "", HitRatio(i, MEASURED));
}

static void
PrintHits(void)
{
	for (int i = 1; i < trace.nphases; i++)
		printf("%s%.1f", i > 1 ? " " : "", HitRatio(i, MEASURED));
}

static void
PrintQueryHits(void)
{
	printf("%.1f, %.1f", HitRatio(1, MEASURED), HitRatio(1, QUERIES));
}

/*
 * Print the hit ratio before a shift, and after it until it has returned.
 */
static void
PrintShift(void)
{
	double		before = HitRatio(1, MEASURED);

	printf("%.1f:", before);
	for (int i = 2; i < trace.nphases; i++)
	{
		printf(" %.0f", HitRatio(i, MEASURED));
		if (HitRatio(i, MEASURED) >= before - 1)
			return;
	}
	printf(" ...");
}

/*
 * The same in short: after how many times N accesses it has returned, and the
 * mean of the first four phases.
 */
static void
PrintShiftTime(void)
{
	double		mean = 0;
	int			i = 2;

	while (i < trace.nphases && HitRatio(i, MEASURED) < HitRatio(1, MEASURED) - 1)
		i++;
	for (int phase = 2; phase < 6; phase++)
		mean += HitRatio(phase, MEASURED) / 4;
	printf("%s%d, %.1f", i < trace.nphases ? "" : ">", Min(i, trace.nphases - 1) - 1, mean);
}

/* ----------------------------------------------------------------
 *		Parts of workloads
 * ----------------------------------------------------------------
 */

#define RANDOM_ORDER	(-1.0)
#define HOT_SET			0.34
#define SCANNED			2.0		/* size of the table, beside OLTP */

/*
 * A scan of all rows of a table in the order of an index.  This is the order of
 * the table, but each row is on a page that is up to half of the spread before
 * or after that; or a random order.
 */
typedef struct Table
{
	uint32		base;			/* its first page */
	uint32		npages;
	int			rows;			/* of a page */
	double		spread;			/* in pages, or RANDOM_ORDER */
	uint32		page;			/* of the next row, in the table's order ... */
	int			row;			/* ... and its number on the page */
	uint64		seed;			/* of the order */
} Table;

static Table
MakeTable(uint32 base, double pools, int rows, double spread)
{
	Table		table = {
		.base = base,
		.npages = Pages(pools),
		.rows = rows,
		.spread = spread == RANDOM_ORDER ? spread : spread * nbuffers,
		.seed = Mix(seed),
	};

	return table;
}

/*
 * Return the page that the scan goes to next.  After the last row, the scan
 * begins again, in the same order.
 */
static uint32
NextRow(Table *table)
{
	uint64		noise = Mix(((uint64) table->page << 32 | table->row) ^ table->seed);
	double		page;

	if (table->spread == RANDOM_ORDER)
		page = Below(noise, table->npages);
	else
		page = table->page + floor(table->spread * (Fraction(noise) - 0.5) + 0.5);

	if (++table->row == table->rows)
	{
		table->row = 0;
		if (++table->page == table->npages)
			table->page = 0;
	}
	return table->base + (uint32) Max(0, Min(page, table->npages - 1));
}

/*
 * Add three passes of a scan, or one of a large table.  If interval is not 0,
 * each page of the hot set is meanwhile used at random, about once while the
 * scan goes to this many pages.  In random order, each row is on another page.
 */
static void
AddPasses(Table *table, double interval)
{
	double		pages_per_row = table->spread == RANDOM_ORDER ? 1 : 1.0 / table->rows;
	double		rate = 0;
	double		due = 0;
	int			passes = table->npages > Pages(4) ? 1 : 3;

	if (interval > 0)
		rate = trace.hot * pages_per_row / Pages(interval);
	trace.idle = interval == 0;
	for (int pass = 0; pass < passes; pass++)
	{
		for (uint64 row = (uint64) table->npages * table->rows; row > 0; row--)
		{
			Add(NextRow(table), SCAN);
			for (due += rate; due >= 1; due--)
				Add(Uniform(trace.hot), MEASURED);
		}
		EndPhase();
	}
}

/*
 * Use the hot set, page after page, in an empty pool.
 */
static void
AddEmptyWarmUp(int uses)
{
	for (int i = 0; i < uses; i++)
	{
		for (uint32 page = 0; page < trace.hot; page++)
			Add(page, OTHERS);
	}
	EndPhase();
}

/*
 * Fill a pool with an OLTP load on other pages, and then use the hot set, in
 * random order, beside half as many accesses of that load.
 */
static void
AddBusyWarmUp(int uses)
{
	Zipf	   *zipf = MakeZipf(4, 0.8);

	for (uint32 i = 0; i < Pages(12); i++)
		Add(trace.hot + NextZipf(zipf), OTHERS);
	for (uint32 i = 0; i < trace.hot * uses; i++)
	{
		Add(Uniform(trace.hot), OTHERS);
		if (i % 2 == 0)
			Add(trace.hot + NextZipf(zipf), OTHERS);
	}
	EndPhase();
}

#define EMPTY_USES		6
#define BUSY_USES		12

/*
 * Begin a trace in which a hot set is used before it is measured.
 */
static void
StartWarmTrace(bool busy, int uses)
{
	StartTrace(Pages(HOT_SET));
	if (busy)
		AddBusyWarmUp(uses);
	else
		AddEmptyWarmUp(uses);
}

/*
 * Make a trace of scans of a table, after a hot set has been used.
 */
static void
MakeScans(bool busy, int uses, double interval, double pools, int rows, double spread)
{
	Table		table;

	StartWarmTrace(busy, uses);
	table = MakeTable(trace.hot + Pages(4), pools, rows, spread);
	AddPasses(&table, interval);
}

/* the tables that are scanned */
static const double table_pools[] = {0.3, 0.5, 0.9, 1.2, 2, 8};
static const int table_rows[] = {3, 20, 80};
static const double table_spreads[] = {0, 0.006, 0.06, 0.1, 0.2, RANDOM_ORDER};

static const char *
OrderName(double spread)
{
	static char name[32];

	if (spread == RANDOM_ORDER)
		return "random";
	if (spread == 0)
		return "in order";
	snprintf(name, sizeof(name), "spread %g N", spread);
	return name;
}

/* ----------------------------------------------------------------
 *		Workloads
 * ----------------------------------------------------------------
 */

static void
RunIdle(void)
{
	for (int busy = 0; busy < 2; busy++)
	{
		int			uses = busy ? BUSY_USES : EMPTY_USES;
		char		label[200];

		snprintf(label, sizeof(label),
				 "## idle: a hot set of %g N, used %d times in %s pool: "
				 "%% left after 1/2/3 scans of a table",
				 HOT_SET, uses, busy ? "a busy" : "an empty");
		StartTable(label, "table", false);
		StartWarmTrace(busy, uses);
		PrintRow("(before)", PrintBefore);
		FOREACH_CASE(size, table_pools)
		{
			FOREACH_CASE(rows, table_rows)
			{
				FOREACH_CASE(order, table_spreads)
				{
					MakeScans(busy, uses, 0, table_pools[size], table_rows[rows],
							  table_spreads[order]);
					snprintf(label, sizeof(label), "%g N, %d rows, %s", table_pools[size],
							 table_rows[rows], OrderName(table_spreads[order]));
					PrintRow(label, PrintLeft);
				}
			}
		}
		EndTable();
	}
}

static void
RunLive(void)
{
	static const double intervals[] = {0.25, 0.5, 1};
	static const double pools[] = {0.9, 2};
	static const double spreads[] = {0, 0.06, 0.2, RANDOM_ORDER};

	StartTable("## live: a hot set of 0.34 N in a busy pool, each page used once while the "
			   "scan goes to that many pages: its hits in % during scans 1/2/3",
			   "use; table", true);
	FOREACH_CASE(interval, intervals)
	{
		FOREACH_CASE(size, pools)
		{
			FOREACH_CASE(rows, table_rows)
			{
				FOREACH_CASE(order, spreads)
				{
					char		label[100];

					MakeScans(true, BUSY_USES, intervals[interval],
							  pools[size], table_rows[rows], spreads[order]);
					snprintf(label, sizeof(label), "once in %g N; %g N, %d rows, %s",
							 intervals[interval], pools[size], table_rows[rows],
							 OrderName(spreads[order]));
					PrintRow(label, PrintLiveHits);
				}
			}
		}
	}
	EndTable();
}

/*
 * Make a trace of a Zipf load, with a scan beside it if rows is not 0.  For
 * four accesses of the load, the scan goes to one page.
 */
static void
MakeZipfLoad(double pools, double exponent, int rows, double spread)
{
	Zipf	   *zipf = MakeZipf(pools, exponent);
	Table		table = MakeTable(zipf->npages, SCANNED, rows, spread);
	uint32		pins = spread == RANDOM_ORDER ? 1 : rows;	/* of one page */

	StartTrace(0);
	for (uint32 i = 0; i < Pages(20); i++)
		Add(NextZipf(zipf), OTHERS);
	EndPhase();
	for (uint32 i = 0; i < Pages(24); i++)
	{
		Add(NextZipf(zipf), MEASURED);
		for (uint32 pin = pins * (i % 4) / 4; pin < pins * (i % 4 + 1) / 4; pin++)
			Add(NextRow(&table), SCAN);
	}
	EndPhase();
}

/*
 * Make a trace that is like TPC-B: branches and tellers, an index, accounts,
 * which are pinned twice, and the end of the history.
 */
static void
MakeTpcB(void)
{
	uint32		accounts = Pages(0.3);
	uint32		branches = accounts + Pages(2);
	uint32		history = branches + 30;

	StartTrace(0);
	for (uint32 i = 0; i < Pages(24); i++)
	{
		Group		group = i < Pages(12) ? OTHERS : MEASURED;
		uint32		account = accounts + Uniform(Pages(2));

		if (i == Pages(12))
			EndPhase();
		Add(branches + Uniform(30), group);
		Add(branches + Uniform(30), group);
		Add(Uniform(Pages(0.3)), group);
		Add(account, group);
		Add(account, group);
		Add(history + i / 100, group);
	}
	EndPhase();
}

/*
 * Make a trace that is like TPC-C, of 100 warehouses: warehouses and districts
 * are hot; customers and items are warm, stock has 4 N pages, and orders are
 * added in each warehouse.  Beside it there may be a scan of two pages for each
 * transaction.
 */
static void
MakeTpcC(bool scan)
{
	const uint32 nwarehouses = 100;
	uint32		districts = nwarehouses;
	uint32		customers = districts + nwarehouses;
	uint32		items = customers + nwarehouses * Pages(0.01);
	uint32		stock = items + Pages(0.2);
	uint32		orders = stock + nwarehouses * Pages(0.04);
	Table		table = MakeTable(orders + nwarehouses * Pages(0.02), SCANNED, 20, 0.06);

	StartTrace(0);
	for (uint32 i = 0; i < Pages(8); i++)
	{
		Group		group = i < Pages(4) ? OTHERS : MEASURED;
		uint32		warehouse = Uniform(nwarehouses);
		uint32		order = i / 6000;	/* page of orders, in each warehouse */

		if (i == Pages(4))
			EndPhase();
		Add(warehouse, group);
		Add(districts + warehouse, group);
		Add(customers + warehouse * Pages(0.01) + Skewed(Pages(0.01), 3), group);
		for (int item = 0; item < 10; item++)
		{
			Add(items + Skewed(Pages(0.2), 2), group);
			Add(stock + warehouse * Pages(0.04) + Skewed(Pages(0.04), 2), group);
		}
		for (int pin = 0; pin < 3; pin++)
			Add(orders + warehouse * Pages(0.02) + order, group);
		if (i % 10 == 0)
			Add(orders + warehouse * Pages(0.02) + order - Uniform(Min(4, order + 1)), group);
		for (int row = 0; scan && row < 2 * table.rows; row++)
			Add(NextRow(&table), SCAN);
	}
	EndPhase();
}

static void
RunOltp(void)
{
	static const double pools[] = {4, 20};
	static const double exponents[] = {0.8, 1.0, 1.1};
	static const struct
	{
		int			rows;
		double		spread;
		const char *name;
	}			scans[] = {
		{0, 0, "alone"},
		{20, RANDOM_ORDER, "random"},
		{20, 0.06, "20 rows, spread 0.06 N"},
		{80, 0.06, "80 rows, spread 0.06 N"},
	};

	StartTable("## oltp: an OLTP load, alone or beside scans of a table of 2 N: its hits in %",
			   "load, scan", true);
	FOREACH_CASE(size, pools)
	{
		FOREACH_CASE(exponent, exponents)
		{
			FOREACH_CASE(scan, scans)
			{
				char		label[100];

				MakeZipfLoad(pools[size], exponents[exponent],
							 scans[scan].rows, scans[scan].spread);
				snprintf(label, sizeof(label), "Zipf %.1f over %g N, %s",
						 exponents[exponent], pools[size], scans[scan].name);
				PrintRow(label, PrintHits);
			}
		}
	}
	MakeTpcB();
	PrintRow("like TPC-B, alone", PrintHits);
	MakeTpcC(false);
	PrintRow("like TPC-C, alone", PrintHits);
	MakeTpcC(true);
	PrintRow("like TPC-C, 20 rows, spread 0.06 N", PrintHits);
	EndTable();
}

#define AFTER_SHIFT		16		/* phases */

static void
MakeZipfShift(void)
{
	Zipf	   *zipf = MakeZipf(2, 1.0);

	StartTrace(0);
	for (int phase = 0; phase < 2 + AFTER_SHIFT; phase++)
	{
		for (uint32 i = 0; i < Pages(phase < 2 ? 10 : 1); i++)
			Add(NextZipf(zipf) + (phase < 2 ? 0 : zipf->npages), MEASURED);
		EndPhase();
	}
}

static void
MakeUniformShift(void)
{
	StartTrace(0);
	for (int phase = 0; phase < 2 + AFTER_SHIFT; phase++)
	{
		for (uint32 i = 0; i < Pages(phase < 2 ? 5 : 1); i++)
			Add(Uniform(Pages(0.8)) + (phase < 2 ? 0 : Pages(0.8)), MEASURED);
		EndPhase();
	}
}

static void
RunShift(void)
{
	StartTable("## shift: a load that moves at once to other pages: its hits in % before; "
			   "then for each N accesses, until within 1 point of that",
			   "load", true);
	MakeZipfShift();
	PrintRow("Zipf 1.0 over 2 N", PrintShift);
	MakeUniformShift();
	PrintRow("uniform over 0.8 N", PrintShift);
	EndTable();
}

/*
 * Make a trace of accesses in a window that moves by one page in this number of
 * accesses.
 */
static void
MakeDrift(double window, int accesses)
{
	StartTrace(0);
	for (uint32 i = 0; i < Pages(60); i++)
	{
		if (i == Pages(20))
			EndPhase();
		Add(i / accesses + Uniform(Pages(window)), i < Pages(20) ? OTHERS : MEASURED);
	}
	EndPhase();
}

static void
RunDrift(void)
{
	static const double windows[] = {0.5, 0.8, 1.5};
	static const int accesses[] = {10, 40};

	StartTable("## drift: a load, uniform in a window that moves: its hits in %",
			   "window, moves by a page in", true);
	FOREACH_CASE(window, windows)
	{
		FOREACH_CASE(time, accesses)
		{
			char		label[100];

			MakeDrift(windows[window], accesses[time]);
			snprintf(label, sizeof(label), "%g N, %d accesses", windows[window], accesses[time]);
			PrintRow(label, PrintHits);
		}
	}
	EndTable();
}

/*
 * Make a trace of a join: each page of the outer table, which is read once, has
 * 20 rows, which are looked up in an inner table.
 */
static void
MakeJoin(double hot_set)
{
	uint32		outer;

	StartTrace(Pages(hot_set));
	AddEmptyWarmUp(EMPTY_USES);
	outer = trace.hot + Pages(0.5);
	for (uint32 page = 0; page < Pages(3); page++)
	{
		Add(outer + page, SCAN);
		for (int row = 0; row < 20; row++)
			Add(trace.hot + Uniform(Pages(0.5)), MEASURED);
		if ((page + 1) % Pages(0.5) == 0)
			EndPhase();
	}
}

static void
RunJoin(void)
{
	static const double hot_sets[] = {0, 0.4, 0.8};

	StartTable("## join: random probes of an inner table of 0.5 N: its hits in % "
			   "for each 10 N of them",
			   "idle hot set", true);
	FOREACH_CASE(i, hot_sets)
	{
		char		label[100];

		MakeJoin(hot_sets[i]);
		snprintf(label, sizeof(label), "%g N", hot_sets[i]);
		PrintRow(label, PrintHits);
	}
	EndTable();
}

/*
 * Make a trace of a standby's replay, with queries of other pages beside it.
 */
static void
MakeReplay(bool queries)
{
	Zipf	   *zipf = MakeZipf(4, 0.8);

	StartTrace(0);
	for (uint32 i = 0; i < Pages(40); i++)
	{
		if (i == Pages(20))
			EndPhase();
		AddAccess(NextZipf(zipf), MEASURED, true);
		if (queries)
			Add(zipf->npages + NextZipf(zipf), QUERIES);
	}
	EndPhase();
}

static void
RunReplay(void)
{
	char		title[200];

	snprintf(title, sizeof(title),
			 "## replay: Zipf 0.8 over 4 N, found without a lookup, %scounted as used%s; "
			 "as much by queries of other pages: hits in %%",
			 counted ? "" : "not ", counted ? "" : " except by LazyDrop and OPT");
	StartTable(title, "", true);
	MakeReplay(false);
	PrintRow("replay alone", PrintHits);
	MakeReplay(true);
	PrintRow("replay, queries", PrintQueryHits);
	EndTable();
}

/* ----------------------------------------------------------------
 *		Variants of the policy
 * ----------------------------------------------------------------
 */

/* Each line of the table is printed by the same calls. */
static enum
{
	TITLES,
	RULE,
	CELLS,
}			line;

/*
 * Begin a cell.  Return whether its contents are to be made.
 */
static bool
StartCell(const char *title)
{
	if (line == TITLES)
		printf(" %s |", title);
	else if (line == RULE)
		printf("---|");
	return line == CELLS;
}

static void
PrintCell(void (*print) (void))
{
	printf(" ");
	Replay(&LazyDropPolicy);
	print();
	printf(" |");
	fflush(stdout);
}

static void
PrintBeforeAndLeft(void)
{
	PrintBefore();
	printf(": ");
	PrintLeft();
}

static void
PrintCells(void)
{
	static const struct
	{
		bool		busy;
		int			uses;
		double		interval;
		double		pools;
		int			rows;
		double		spread;
		const char *title;
	}			scans[] = {
		{false, EMPTY_USES, 0, 1.2, 20, 0.06, "idle, 1.2 N, 20 rows, 0.06 N, empty pool"},
		{true, BUSY_USES, 0, 0.9, 20, 0.06, "0.9 N, 20 rows, 0.06 N, busy pool"},
		{true, BUSY_USES, 0, 1.2, 80, 0.1, "1.2 N, 80 rows, 0.1 N"},
		{true, BUSY_USES, 0, 2, 20, 0.2, "2 N, 20 rows, 0.2 N"},
		{true, BUSY_USES, 0, 1.2, 3, RANDOM_ORDER, "1.2 N, 3 rows, random"},
		{true, 3, 0, 2, 20, 0.06, "used 3 times, 2 N, 20 rows, 0.06 N"},
		{true, BUSY_USES, 0.5, 2, 20, 0.06, "live 0.5 N, 2 N, 20 rows, 0.06 N"},
		{true, BUSY_USES, 1, 0.9, 80, 0.2, "live 1 N, 0.9 N, 80 rows, 0.2 N"},
	};

	for (int i = 0; i < lengthof(scans); i++)
	{
		if (StartCell(scans[i].title))
		{
			MakeScans(scans[i].busy, scans[i].uses, scans[i].interval, scans[i].pools,
					  scans[i].rows, scans[i].spread);
			PrintCell(scans[i].interval > 0 ? PrintLiveHits : PrintBeforeAndLeft);
		}
	}
	if (StartCell("Zipf 0.8 over 4 N"))
	{
		MakeZipfLoad(4, 0.8, 0, 0);
		PrintCell(PrintHits);
	}
	if (StartCell("beside 80 rows, 0.06 N"))
	{
		MakeZipfLoad(4, 0.8, 80, 0.06);
		PrintCell(PrintHits);
	}
	if (StartCell("TPC-C beside 20 rows, 0.06 N"))
	{
		MakeTpcC(true);
		PrintCell(PrintHits);
	}
	if (StartCell("shift, Zipf 1.0 over 2 N: time in N, first 4 N"))
	{
		MakeZipfShift();
		PrintCell(PrintShiftTime);
	}
	if (StartCell("shift, uniform over 0.8 N"))
	{
		MakeUniformShift();
		PrintCell(PrintShiftTime);
	}
	if (StartCell("drift, 0.8 N in 10"))
	{
		MakeDrift(0.8, 10);
		PrintCell(PrintHits);
	}
	if (StartCell("join, idle set of 0.8 N"))
	{
		MakeJoin(0.8);
		PrintCell(PrintHits);
	}
	if (StartCell("positions: mean, most"))
		printf(" %.1f, %d |", (double) positions.total / Max(positions.loads, 1),
			   (int) positions.most);
	printf("\n");
}

/*
 * Print a row of a table that compares builds with other constants.
 */
static void
RunVariants(void)
{
	if (row_label == NULL)
	{
		printf("\n## variants: LazyDrop with other constants; idle: %% left before: after 1/2/3 "
			   "scans; otherwise hits in %%\n\n| |");
		line = TITLES;
		PrintCells();
		line = RULE;
		printf("|---|");
		PrintCells();
	}
	line = CELLS;
	memset(&positions, 0, sizeof(positions));
	printf("| %s |", row_label != NULL ? row_label : "as built");
	PrintCells();
}

/* ----------------------------------------------------------------
 *		Options
 * ----------------------------------------------------------------
 */

static const struct
{
	const char *name;
	void		(*run) (void);
	bool		by_default;
}			workloads[] =

{
	{"idle", RunIdle, true},
	{"live", RunLive, true},
	{"oltp", RunOltp, true},
	{"shift", RunShift, true},
	{"drift", RunDrift, true},
	{"join", RunJoin, true},
	{"replay", RunReplay, true},
	{"variants", RunVariants, false},
};

/*
 * If an argument is the option NAME=VALUE, return the value, and otherwise NULL.
 */
static const char *
OptionValue(const char *argument, const char *name)
{
	size_t		length = strlen(name);

	if (strncmp(argument, name, length) == 0 && argument[length] == '=')
		return argument + length + 1;
	return NULL;
}

static long
ParseNumber(const char *argument, const char *value, long min, long max)
{
	char	   *end;
	long		number;

	errno = 0;
	number = strtol(value, &end, 10);
	if (end == value || *end != '\0')
		Fail("not a number: ", argument);
	if (errno != 0 || number < min || number > max)
		Fail("out of range: ", argument);
	return number;
}

int
main(int argc, char **argv)
{
	bool		wanted[lengthof(workloads)] = {false};
	bool		any = false;

	for (int i = 1; i < argc; i++)
	{
		const char *value;
		int			workload = 0;

		if ((value = OptionValue(argv[i], "--buffers")) != NULL)
			nbuffers = ParseNumber(argv[i], value, MIN_BUFFERS, MAX_BUFFERS);
		else if ((value = OptionValue(argv[i], "--seed")) != NULL)
			seed = ParseNumber(argv[i], value, 0, INT32_MAX);
		else if ((value = OptionValue(argv[i], "--row")) != NULL)
			row_label = value;
		else if (strcmp(argv[i], "--quick") == 0)
			quick = true;
		else if (strcmp(argv[i], "--counted") == 0)
			counted = true;
		else if (argv[i][0] == '-')
			Fail("unknown option, see the head of simulate.c: ", argv[i]);
		else
		{
			while (workload < lengthof(workloads) &&
				   strcmp(argv[i], workloads[workload].name) != 0)
				workload++;
			if (workload == lengthof(workloads))
				Fail("unknown workload, see the head of simulate.c: ", argv[i]);
			wanted[workload] = any = true;
		}
	}
	if (nbuffers == 0)
		nbuffers = quick ? QUICK_BUFFERS : DEFAULT_BUFFERS;

	if (row_label == NULL)
		printf("N = %d buffers, seed %d\n", (int) nbuffers, (int) seed);
	for (int i = 0; i < lengthof(workloads); i++)
	{
		if (any ? wanted[i] : workloads[i].by_default)
			workloads[i].run();
	}
	return 0;
}
