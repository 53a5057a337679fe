/*-------------------------------------------------------------------------
 *
 * accuracy.c
 *	  How far the advisor's estimates are from the truth, on traces.
 *
 * Pools of full size and miniatures are simulated by the same code, that of the server,
 * src/backend/storage/advisor.  What is compared is the hit ratio at each size in the second
 * half of a trace: that of the full pools, and the estimate of three miniatures, each with
 * another sample.  So this measures what sampling costs, not how well the code follows
 * the server's policy; the scenario shared-buffers-advice does.
 *
 * accuracy [BUFFERS [KILOBYTES]]: shared_buffers, 131072 (1 GB) by default, and the memory
 * for the miniatures, 768.
 *
 * Copyright (c) 2026, LazyDrop developers
 *
 * IDENTIFICATION
 *	  bench/advisor/accuracy.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "random.h"

#define SAMPLES		3
#define LENGTH		24			/* of a trace, in times the buffers */
#define SIZES		LAZYDROP_ADVISOR_SIZES
#define REAL		LAZYDROP_ADVISOR_REAL
#define POLICIES	LAZYDROP_ADVISOR_POLICIES

typedef enum Trace
{
	UNIFORM_2,
	ZIPF_08,
	ZIPF_11,
	TPC_B,
	LOOP_11,
	OLTP_AND_SCAN,
	LOOP_AND_ZIPF,
	RING_AND_ZIPF,
	UNIFORM_09,
	LOOP_AND_ROOT,
	ZIPF_AND_ROOT,
} Trace;

static const char *const trace_name[] = {
	"uniform, 2 times the pool",
	"Zipf 0.8, 4 times",
	"Zipf 1.1, 4 times",
	"like TPC-B, 2 times",
	"a loop of 1.1 times",
	"Zipf 0.8 and an index scan",
	"Zipf 0.8 and a loop of 1.5 times",
	"Zipf 0.8 and a ring scan of 0.4 times",
	"uniform, 0.9 times",
	"a loop of 1.1 times, and a root",
	"Zipf 0.8, 4 times, and a root",
};

/* the page of each rank of Zipf's distribution */
static uint32 *zipf_page;

static uint32
Uniform(double pages)
{
	return RandomBits() % (uint32) pages;
}

/*
 * Make Zipf's distribution, of which the pages have no order.
 */
static void
MakeZipfPages(uint32 pages, double exponent)
{
	MakeZipf(pages, exponent);
	zipf_page = Allocate(pages * sizeof(uint32));
	for (uint32 i = 0; i < pages; i++)
		zipf_page[i] = i;
	for (uint32 i = pages - 1; i > 0; i--)
	{
		uint32		j = RandomBits() % (i + 1);
		uint32		page = zipf_page[i];

		zipf_page[i] = zipf_page[j];
		zipf_page[j] = page;
	}
}

/*
 * The n-th page that is looked up, of n = 0, 1, ...
 */
static LazyDropAdvisorSample
NextLookup(Trace trace, uint64 n, double buffers)
{
	static uint32 scanned;
	LazyDropAdvisorSample sample = {.rel = 4,.lookups = 1};

	if (n == 0)
		scanned = 0;
	switch (trace)
	{
		case UNIFORM_2:
			sample.block = Uniform(2 * buffers);
			break;
		case UNIFORM_09:
			sample.block = Uniform(0.9 * buffers);
			break;
		case ZIPF_08:
		case ZIPF_11:
			sample.block = zipf_page[ZipfRank()];
			break;
		case LOOP_11:
			sample.block = n % (uint32) (1.1 * buffers);
			break;
		case TPC_B:
			/* two small tables, an index, the accounts, and the history */
			sample.rel = 8 + 4 * (n % 5);
			if (n % 5 < 2)
				sample.block = Uniform(15);
			else if (n % 5 == 2)
				sample.block = Uniform(0.3 * buffers);
			else if (n % 5 == 3)
			{
				sample.block = Uniform(2 * buffers);
				sample.lookups = 2;
			}
			else
				sample.block = n / 500;
			break;
		case LOOP_AND_ROOT:
			if (n % 16 == 0)
				sample.rel = 8;
			else
				sample.block = (n - n / 16) % (uint32) (1.1 * buffers);
			break;
		case ZIPF_AND_ROOT:
			if (n % 3 == 0)
				sample.rel = 8;
			else
				sample.block = zipf_page[ZipfRank()];
			break;
		case OLTP_AND_SCAN:
		case LOOP_AND_ZIPF:
		case RING_AND_ZIPF:
			if (n % (trace == OLTP_AND_SCAN ? 5 : trace == LOOP_AND_ZIPF ? 2 : 3) != 0)
			{
				sample.block = zipf_page[ZipfRank()];
				break;
			}
			sample.rel = 8;
			if (trace == OLTP_AND_SCAN)
				sample.block = scanned++ % (uint32) (8 * buffers);
			else if (trace == LOOP_AND_ZIPF)
				sample.block = scanned++ % (uint32) (1.5 * buffers);
			else
			{
				sample.rel_blocks = 0.4 * buffers;
				sample.block = scanned++ % sample.rel_blocks;
				sample.access = LAZYDROP_ADVISOR_BULKREAD;
			}
			break;
	}
	return sample;
}

static LazyDropAdvisorPools *
MakePools(int32 frames, int32 buffers)
{
	LazyDropAdvisorPools *pools = Allocate(sizeof(LazyDropAdvisorPools));

	LazyDropAdvisorPoolsInit(pools, frames, buffers,
							 Allocate(LazyDropAdvisorPoolsSize(frames)));
	for (int policy = 0; policy < LAZYDROP_ADVISOR_POLICIES; policy++)
	{
		pools->model[policy].ring_blocks[LAZYDROP_ADVISOR_BULKREAD] = 288;
		pools->model[policy].ring_least = 32;
		pools->model[policy].pinners = 1;
	}
	return pools;
}

static void
FreePools(LazyDropAdvisorPools *pools)
{
	free(pools->pool[0][0][0].frames);	/* begins the memory of all */
	free(pools);
}

/*
 * Print the truth and the estimates for a policy, where the server has another one or the
 * same.
 */
static void
Print(Trace trace, int policy, int server, double lookups, const double *truth,
	  LazyDropAdvisorPools *const *mini, const LazyDropAdvisorSums *sums)
{
	static const char *const policy_name[] = {"clock sweep", "two classes"};
	double		sum = 0;
	double		largest = 0;
	double		bars = 0;
	int			outside = 0;

	printf("%s on a server with %s, %s\n%10s", policy_name[policy], policy_name[server],
		   trace_name[trace], "real");
	for (int size = 0; size < SIZES; size++)
		printf(" %13.2f", 100 * (1 - truth[size] / lookups));
	printf("\n");
	for (int i = 0; i < SAMPLES; i++)
	{
		LazyDropAdvisorEstimate estimates[SIZES];

		/* the time is one second */
		LazyDropAdvisorGetCurve(&sums[i], mini[i]->model[0].rate * LAZYDROP_ADVISOR_QUARTERS,
								policy, server, estimates);
		printf("%10s", "estimated");
		for (int size = 0; size < SIZES; size++)
		{
			double		error = 100 * fabs(estimates[size].reads - truth[size]) / lookups;
			double		bar = 100 * estimates[size].error / lookups;

			sum += error;
			bars += bar;
			largest = Max(largest, error);
			outside += error > bar;
			printf(" %6.2f +-%5.2f", 100 * (1 - estimates[size].reads / lookups), bar);
		}
		printf("\n");
	}
	printf("     error mean %.2f, largest %.2f; given: mean %.2f, exceeded %d times of %d\n",
		   sum / SIZES / SAMPLES, largest, bars / SIZES / SAMPLES, outside, SIZES * SAMPLES);
	fflush(stdout);
}

static void
Compare(Trace trace, int32 buffers, int32 frames)
{
	LazyDropAdvisorModel model[POLICIES];
	LazyDropAdvisorPool full[POLICIES][SIZES];
	double		truth[POLICIES][SIZES] = {0};
	double		lookups = 0;
	LazyDropAdvisorPools *mini[POLICIES][SAMPLES];
	static LazyDropAdvisorSums sums[POLICIES][SAMPLES];
	LazyDropAdvisorSums interval = {0}; /* not used */

	for (int policy = 0; policy < POLICIES; policy++)
	{
		for (int i = 0; i < SAMPLES; i++)
			mini[policy][i] = MakePools(frames, buffers);
		model[policy] = mini[policy][0]->model[policy];
		model[policy].rate = 1;
		for (int size = 0; size < SIZES; size++)
		{
			int32		n = buffers * LazyDropAdvisorFactors[size];

			LazyDropAdvisorPoolInit(&full[policy][size], &model[policy], n, n,
									Allocate(LazyDropAdvisorPoolSize(n)));
		}
	}

	for (uint64 n = 0; n < (uint64) LENGTH * buffers; n++)
	{
		LazyDropAdvisorSample sample = NextLookup(trace, n, buffers);
		uint64		page = LazyDropAdvisorPage(&sample);
		uint8		access = sample.access;
		bool		missed[POLICIES];

		if (n == (uint64) LENGTH * buffers / 2)
		{
			memset(truth, 0, sizeof(truth));
			memset(sums, 0, sizeof(sums));
			lookups = 0;
		}
		lookups += sample.lookups;
		for (int policy = 0; policy < POLICIES; policy++)
		{
			for (int size = 0; size < SIZES; size++)
			{
				bool		miss = LazyDropAdvisorPoolLookup(&full[policy][size],
															 &sample, page) != LAZYDROP_ADVISOR_HIT;

				truth[policy][size] += miss;
				if (size == REAL)
					missed[policy] = miss;
			}
		}
		for (int server = 0; server < POLICIES; server++)
		{
			sample.access = access | (missed[server] ? LAZYDROP_ADVISOR_MISSED : 0);
			for (int i = 0; i < SAMPLES; i++)
			{
				if (IsSampled(&sample, i, mini[server][i]->model[0].rate *
							  LAZYDROP_ADVISOR_QUARTERS))
					LazyDropAdvisorFeed(mini[server][i], &sample, &interval, &sums[server][i]);
			}
		}
	}

	for (int server = 0; server < POLICIES; server++)
	{
		for (int i = 0; i < SAMPLES; i++)
		{
			sums[server][i].reads = truth[server][REAL];
			sums[server][i].hits = lookups - truth[server][REAL];
			sums[server][i].seconds = 1;
		}
		for (int policy = 0; policy < POLICIES; policy++)
			Print(trace, policy, server, lookups, truth[policy], mini[server], sums[server]);
	}
	for (int policy = 0; policy < POLICIES; policy++)
	{
		for (int i = 0; i < SAMPLES; i++)
			FreePools(mini[policy][i]);
		for (int size = 0; size < SIZES; size++)
			free(full[policy][size].frames);
	}
}

int
main(int argc, char **argv)
{
	int32		buffers = argc > 1 ? atoi(argv[1]) : 131072;
	int32		frames = LazyDropAdvisorFrames((argc > 2 ? atoi(argv[2]) : 3072) * (Size) 1024,
											   buffers);

	printf("%d buffers, of which %d are sampled; hit ratio in %% at", buffers,
		   frames * LAZYDROP_ADVISOR_QUARTERS);
	for (int size = 0; size < SIZES; size++)
		printf(" %g", LazyDropAdvisorFactors[size]);
	printf(" times\n");

	for (Trace trace = UNIFORM_2; trace <= ZIPF_AND_ROOT; trace++)
	{
		StartRandom();
		if (trace == ZIPF_11 || trace == ZIPF_08 || trace >= OLTP_AND_SCAN)
			MakeZipfPages(4 * buffers, trace == ZIPF_11 ? 1.1 : 0.8);
		Compare(trace, buffers, frames);
		free(zipf_sum);
		free(zipf_page);
		zipf_sum = NULL;
		zipf_page = NULL;
	}
	return 0;
}
