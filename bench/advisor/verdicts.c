/*-------------------------------------------------------------------------
 *
 * verdicts.c
 *	  Whether what the advisor says is right, on many loads, at each moment.
 *
 * A warm server of full size is simulated at all sizes, which is the truth.  Then the
 * advisor begins, with empty miniatures, and is asked again and again.  The code of both is
 * that of the server, src/backend/storage/advisor.  A verdict is wrong
 * - if it says to increase, and another size that fits reads less than 1 / SLACK of what the
 *   advised one reads, or the present one does not read more;
 * - if it says that a size would do, and it reads more than SLACK times as much as now;
 * - if it says to keep the present size, or that no size helps, and one does.
 * What is less than one page in a second, a hundredth of what is read now, or one in 10,000
 * lookups, is as none.
 *
 * verdicts [BUFFERS [KILOBYTES]]: shared_buffers, 16384 (128 MB) by default, and the memory
 * for the miniatures; by default as much as the server would use.
 *
 * Copyright (c) 2026, LazyDrop developers
 *
 * IDENTIFICATION
 *	  bench/advisor/verdicts.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "random.h"

#define SIZES		LAZYDROP_ADVISOR_SIZES
#define REAL		LAZYDROP_ADVISOR_REAL
#define POLICIES	LAZYDROP_ADVISOR_POLICIES
#define QUARTERS	LAZYDROP_ADVISOR_QUARTERS

#define LOOKUPS_PER_SECOND	20000
#define WARM_UP		10			/* lookups, in times the buffers */
#define LENGTH		400
#define SLACK		1.2

/* the server's default, as in lazydrop_advisor_sample.c, without the queue */
#define DEFAULT_KILOBYTES(buffers) \
	(0.75 * Min(4096, Max(128, (buffers) * 8 / 200)))

typedef struct Load
{
	const char *name;
	double		loop;			/* part of the lookups; then size, in pools */
	double		loop_size;
	double		uniform;
	double		uniform_size;
	double		hot;
	double		hot_pages;		/* pages, not pools */
	double		zipf_size;		/* what remains */
	double		exponent;
	double		night;			/* the loop only, in this part of each period */
	double		grows;			/* the uniform part doubles, this number of
								 * times */
} Load;

static const Load loads[] = {
	{.name = "uniform, 0.3",.uniform = 1,.uniform_size = 0.3},
	{.name = "uniform, 0.9",.uniform = 1,.uniform_size = 0.9},
	{.name = "uniform, 1.1",.uniform = 1,.uniform_size = 1.1},
	{.name = "uniform, 1.8",.uniform = 1,.uniform_size = 1.8},
	{.name = "uniform, 3.5",.uniform = 1,.uniform_size = 3.5},
	{.name = "uniform, 8",.uniform = 1,.uniform_size = 8},
	{.name = "loop, 0.2",.loop = 1,.loop_size = 0.2},
	{.name = "loop, 0.7",.loop = 1,.loop_size = 0.7},
	{.name = "loop, 0.97",.loop = 1,.loop_size = 0.97},
	{.name = "loop, 1.03",.loop = 1,.loop_size = 1.03},
	{.name = "loop, 1.4",.loop = 1,.loop_size = 1.4},
	{.name = "loop, 1.6",.loop = 1,.loop_size = 1.6},
	{.name = "loop, 3.8",.loop = 1,.loop_size = 3.8},
	{.name = "loop, 7",.loop = 1,.loop_size = 7},
	{.name = "98 % in 107 pages, others of 1.75",.hot = 0.98,.hot_pages = 107,.uniform = 0.02,.uniform_size = 1.75},
	{.name = "98 % in 107 pages, others of 6",.hot = 0.98,.hot_pages = 107,.uniform = 0.02,.uniform_size = 6},
	{.name = "a root and uniform, 1.8",.hot = 0.5,.hot_pages = 1,.uniform = 0.5,.uniform_size = 1.8},
	{.name = "a root and a loop of 1.2",.hot = 0.5,.hot_pages = 1,.loop = 0.5,.loop_size = 1.2},
	{.name = "Zipf 0.8 of 4",.zipf_size = 4,.exponent = 0.8},
	{.name = "Zipf 1.1 of 4",.zipf_size = 4,.exponent = 1.1},
	{.name = "Zipf 1.4 of 8",.zipf_size = 8,.exponent = 1.4},
	{.name = "Zipf 0.9 of 2",.zipf_size = 2,.exponent = 0.9},
	{.name = "Zipf 0.8 of 2 and a loop of 1.5",.loop = 0.4,.loop_size = 1.5,.zipf_size = 2,.exponent = 0.8},
	{.name = "Zipf 1.1 of 1 and a loop of 6",.loop = 0.3,.loop_size = 6,.zipf_size = 1,.exponent = 1.1},
	{.name = "90 % uniform of 0.6, a loop of 2.5",.uniform = 0.9,.uniform_size = 0.6,.loop = 0.1,.loop_size = 2.5},
	{.name = "day: Zipf 1.1 of 0.8; night: loop of 1.8",.loop_size = 1.8,.zipf_size = 0.8,.exponent = 1.1,.night = 0.3},
	{.name = "uniform, doubles 4 times from 0.25",.uniform = 1,.uniform_size = 0.25,.grows = 4},
};

/*
 * A page that is looked up; "part" is the part of the run that has passed.
 */
static LazyDropAdvisorSample
NextLookup(const Load *load, double part, double buffers)
{
	static uint32 position;
	LazyDropAdvisorSample sample = {.lookups = 1};
	double		kind = RandomPart();
	bool		night = load->night > 0 && fmod(part * 5, 1) < load->night;
	double		uniform_size = load->uniform_size;

	if (load->grows > 0)
		uniform_size *= exp2(floor(Max(part, 0) * (load->grows + 0.999)));
	if (night || kind < load->loop)
	{
		sample.rel = 4;
		sample.block = position++ % (uint32) (load->loop_size * buffers);
	}
	else if (kind < load->loop + load->uniform)
	{
		sample.rel = 8;
		sample.block = RandomPart() * uniform_size * buffers;
	}
	else if (kind < load->loop + load->uniform + load->hot)
	{
		sample.rel = 12;
		sample.block = RandomPart() * load->hot_pages;
	}
	else
	{
		sample.rel = 16;
		sample.block = ZipfRank();
	}
	return sample;
}

/*
 * Return whether a verdict is wrong; truth is the number of reads at each size, in so
 * many seconds.
 */
static bool
IsWrong(const LazyDropAdvisorDecision *decision, const double *truth, double seconds)
{
	double		now = truth[REAL];
	double		none = Max(Max(seconds, now / 100), seconds * LOOKUPS_PER_SECOND / 10000);
	double		then = truth[decision->size];
	double		best = now;

	for (int i = 0; i < SIZES; i++)
		best = Min(best, truth[i]);
	switch (decision->verdict)
	{
		case LAZYDROP_ADVISOR_UNKNOWN:
			return false;
		case LAZYDROP_ADVISOR_INCREASE:
			return then >= now || then > SLACK * best + none;
		case LAZYDROP_ADVISOR_REDUCIBLE:
			return then > SLACK * now + none || now > SLACK * best + none;
		case LAZYDROP_ADVISOR_KEEP:
		case LAZYDROP_ADVISOR_BEYOND:
			return now > SLACK * best + none;
	}
	return true;
}

typedef struct Result
{
	int			asked;
	int			unknown;
	int			wrong;
	int			old;			/* wrong for the whole time */
	int			late;			/* not known after the time that was named */
	double		known;			/* seconds until it was first known, or -1 */
	double		named;			/* latest time that was named before */
	LazyDropAdvisorDecision last;
} Result;

static const char *const verdict_name[] = {"unknown", "keep", "increase", "reducible", "beyond"};
static int	total_wrong;
static int	total_old;
static int	total_late;

static void
Ask(LazyDropAdvisorPools *pools, const LazyDropAdvisorSums *sums, double elapsed, int server,
	int32 buffers, const double *truth, const double *all_truth, Result *result)
{
	LazyDropAdvisorEvidence evidence = {
		.samples = sums->samples,
		.lookups = (sums->hits + sums->reads) / sums->seconds,
		.rate = pools->model[0].rate * QUARTERS,
		.seconds = sums->seconds,
		.elapsed = elapsed,
		.buffers = buffers,
		.memory = 1e12,
	};
	LazyDropAdvisorDecision decision;

	for (int i = 0; i < SIZES; i++)
		evidence.filled[i] = LazyDropAdvisorFilled(pools, i);
	LazyDropAdvisorGetCurve(sums, evidence.rate, server, server, evidence.curve);
	decision = LazyDropAdvisorDecide(&evidence);

	result->asked++;
	if (decision.verdict == LAZYDROP_ADVISOR_UNKNOWN)
	{
		result->unknown++;
		if (result->named > 0 && elapsed > result->named)
			result->late++;
		else if (decision.wait >= 0)
			result->named = Max(result->named, elapsed + decision.wait);
	}
	else if (result->known < 0)
		result->known = elapsed;
	result->old += IsWrong(&decision, all_truth, elapsed);
	if (IsWrong(&decision, truth, sums->seconds))
	{
		result->wrong++;
		if (getenv("VERBOSE"))
		{
			printf("      wrong after %.0f s, about %.0f s: %s %g;", elapsed, sums->seconds,
				   verdict_name[decision.verdict], LazyDropAdvisorFactors[decision.size]);
			for (int i = 0; i < SIZES; i++)
				printf(" %.0f (%.0f+-%.0f)", truth[i] / sums->seconds,
					   evidence.curve[i].reads, evidence.curve[i].error);
			printf("\n");
		}
	}
	result->last = decision;
}

static void
Run(const Load *load, int server, int32 buffers, int32 frames)
{
	LazyDropAdvisorModel model = {.rate = 1,.two_classes = server > 0};
	LazyDropAdvisorPool full[SIZES];
	double		all_truth[SIZES] = {0};
	double		truth[SIZES] = {0}; /* of the time that the verdict is about */
	double		epoch_truth[SIZES] = {0};
	double		interval_truth[SIZES] = {0};
	LazyDropAdvisorPools *pools = Allocate(sizeof(LazyDropAdvisorPools));
	LazyDropAdvisorSums total = {0};
	LazyDropAdvisorSums epoch = {0};
	LazyDropAdvisorSums interval = {0};
	LazyDropAdvisorSums sums = {0};
	double		elapsed = 0;
	Result		result = {.known = -1};
	double		epoch_end = 10;
	int64		steps = (int64) (LENGTH * (double) buffers);

	LazyDropAdvisorPoolsInit(pools, frames, buffers, Allocate(LazyDropAdvisorPoolsSize(frames)));
	for (int size = 0; size < SIZES; size++)
	{
		int32		n = buffers * LazyDropAdvisorFactors[size];

		LazyDropAdvisorPoolInit(&full[size], &model, n, n, Allocate(LazyDropAdvisorPoolSize(n)));
	}

	for (int64 n = -(int64) WARM_UP * buffers; n < steps; n++)
	{
		LazyDropAdvisorSample sample = NextLookup(load, (double) n / steps, buffers);
		uint64		page = LazyDropAdvisorPage(&sample);

		for (int size = 0; size < SIZES; size++)
		{
			bool		miss = LazyDropAdvisorPoolLookup(&full[size], &sample, page) != LAZYDROP_ADVISOR_HIT;

			if (n >= 0)
			{
				all_truth[size] += miss;
				truth[size] += miss;
				epoch_truth[size] += miss;
				interval_truth[size] += miss;
			}
			if (size == REAL && miss)
				sample.access |= LAZYDROP_ADVISOR_MISSED;
			if (size == REAL && n >= 0)
			{
				interval.reads += miss;
				interval.hits += !miss;
			}
			sample.access &= miss && size == REAL ? 0xff : sample.access;
		}
		if (n < 0)
			continue;
		if (IsSampled(&sample, 0, pools->model[0].rate * QUARTERS))
			LazyDropAdvisorFeed(pools, &sample, &interval, &sums);
		if ((n + 1) % LOOKUPS_PER_SECOND != 0)
			continue;

		/* as the worker does once a second */
		elapsed++;
		interval.seconds = 1;
		LazyDropAdvisorAddIO(&sums, &interval);
		if (pools->anew)
		{
			memset(&total, 0, sizeof(total));
			memset(&epoch, 0, sizeof(epoch));
			memcpy(truth, interval_truth, sizeof(truth));
			memcpy(epoch_truth, interval_truth, sizeof(truth));
		}
		memset(interval_truth, 0, sizeof(interval_truth));
		LazyDropAdvisorAdd(&total, &sums, 1);
		LazyDropAdvisorAdd(&epoch, &sums, 1);
		if (elapsed >= epoch_end)
		{
			bool		all_full = true;

			for (int i = 0; i < SIZES; i++)
				all_full = all_full && pools->full[i];
			if (!all_full)
			{
				total = epoch;
				memset(&epoch, 0, sizeof(epoch));
				memcpy(truth, epoch_truth, sizeof(truth));
				memset(epoch_truth, 0, sizeof(epoch_truth));
			}
			epoch_end *= 2;
		}
		pools->anew = false;
		memset(&interval, 0, sizeof(interval));
		memset(&sums, 0, sizeof(sums));
		Ask(pools, &total, elapsed, server, buffers, truth, all_truth, &result);
	}

	printf("%-44s %-11s", load->name, server ? "two classes" : "clock sweep");
	for (int i = 0; i < SIZES; i++)
		printf(" %5.1f", 100 * (1 - all_truth[i] / steps));
	printf("  %s %g; known after %.0f s, named %.0f; asked %d, unknown %d, late %d, wrong %d (%d)\n",
		   verdict_name[result.last.verdict], LazyDropAdvisorFactors[result.last.size],
		   result.known, result.named, result.asked, result.unknown, result.late, result.wrong, result.old);
	fflush(stdout);
	total_wrong += result.wrong;
	total_old += result.old;
	total_late += result.late > 0;
	for (int size = 0; size < SIZES; size++)
		free(full[size].frames);
	free(pools->pool[0][0][0].frames);
	free(pools);
}

int
main(int argc, char **argv)
{
	int32		buffers = argc > 1 ? atoi(argv[1]) : 16384;
	double		kilobytes = argc > 2 ? atof(argv[2]) : DEFAULT_KILOBYTES(buffers);
	int32		frames = LazyDropAdvisorFrames(kilobytes * 1024, buffers);

	printf("%d buffers, of which %d are sampled; hit ratio in %% at the sizes, and the last verdict\n",
		   buffers, frames * QUARTERS);
	for (int i = 0; i < lengthof(loads); i++)
	{
		for (int server = 0; server < POLICIES; server++)
		{
			StartRandom();
			if (loads[i].zipf_size > 0)
				MakeZipf(loads[i].zipf_size * buffers, loads[i].exponent);
			Run(&loads[i], server, buffers, frames);
			free(zipf_sum);
			zipf_sum = NULL;
		}
	}
	printf("%d verdicts were wrong for the time that they are about, and %d for the whole time;"
		   " %d loads were not known in time\n", total_wrong, total_old, total_late);
	return total_wrong > 0;
}
