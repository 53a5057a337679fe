/*-------------------------------------------------------------------------
 *
 * lazydrop_advisor_estimate.c
 *	  Miniature pools of all sizes, and the estimates made from them.
 *
 * Like lazydrop_advisor_pool.c, this file uses nothing of the server but its
 * type names.  Rules A8 to A10 are in README.
 *
 * Copyright (c) 2026, LazyDrop developers
 *
 * IDENTIFICATION
 *	  src/backend/storage/advisor/lazydrop_advisor_estimate.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include <math.h>

#include "storage/lazydrop_advisor_internal.h"

#define SIZES		LAZYDROP_ADVISOR_SIZES
#define REAL		LAZYDROP_ADVISOR_REAL
#define POLICIES	LAZYDROP_ADVISOR_POLICIES
#define QUARTERS	LAZYDROP_ADVISOR_QUARTERS

const double LazyDropAdvisorFactors[SIZES] = {
	0.25, 0.5, 0.75, 1, 1.5, 2, 3, 4
};

/* A10: frames that are searched for dropped relations, for each sample */
#define FRAMES_PER_SAMPLE	1000

/* 97.5 % quantile of Student's distribution with QUARTERS - 1 degrees */
#define QUANTILE	3.18

/* what has not been seen in a sample occurs up to so often, 95 times of 100 */
#define UNSEEN		3

/*
 * Return the number of frames of a miniature of a pool of size factor, where
 * the miniature of the server's size has this number of frames.
 */
static int32
FramesOf(int32 frames, double factor)
{
	return Max(1, (int32) (frames * factor + 0.5));
}

/*
 * Return the memory that the pools need behind their struct.
 */
Size
LazyDropAdvisorPoolsSize(int32 frames)
{
	Size		size = 0;

	for (int i = 0; i < SIZES; i++)
		size += LazyDropAdvisorPoolSize(FramesOf(frames, LazyDropAdvisorFactors[i]));
	return size * POLICIES * QUARTERS;
}

/*
 * Return the number of frames of a miniature of the server's size: as many as
 * fit into the memory, at least one, and no more than its share of the buffers.
 */
int32
LazyDropAdvisorFrames(Size memory, int32 buffers)
{
	int32		low = 1;
	int32		high = Max(1, Min((Size) buffers / QUARTERS,
								  memory / sizeof(LazyDropAdvisorFrame)));

	while (low < high)
	{
		int32		middle = low + (high - low + 1) / 2;

		if (LazyDropAdvisorPoolsSize(middle) <= memory)
			low = middle;
		else
			high = middle - 1;
	}

	/* a quarter of it should be a quarter */
	return low < 4 ? low : low - low % 4;
}

/*
 * Create empty pools in memory that is aligned for an int64.  The caller sets
 * what the models have of rings, then and later.
 */
void
LazyDropAdvisorPoolsInit(LazyDropAdvisorPools *pools, int32 frames, int32 buffers,
						 void *memory)
{
	memset(pools, 0, sizeof(LazyDropAdvisorPools));
	for (int policy = 0; policy < POLICIES; policy++)
	{
		pools->model[policy].rate = (double) frames / buffers;
		pools->model[policy].two_classes = policy > 0;
	}
	for (int i = 0; i < SIZES; i++)
	{
		int32		n = FramesOf(frames, LazyDropAdvisorFactors[i]);

		for (int j = 0; j < POLICIES * QUARTERS; j++)
		{
			LazyDropAdvisorPoolInit(&pools->pool[i][j / QUARTERS][j % QUARTERS],
									&pools->model[j / QUARTERS], n,
									buffers * LazyDropAdvisorFactors[i], memory);
			pools->nframes += n;
			memory = (char *) memory + LazyDropAdvisorPoolSize(n);
		}
	}
}

/*
 * Return the part of the frames of a size that are used, from 0 to 1: that of
 * the pool with the smallest part.  It is 1 if they have been full.
 */
double
LazyDropAdvisorFilled(const LazyDropAdvisorPools *pools, int size)
{
	double		least = 1;

	for (int j = 0; j < POLICIES * QUARTERS; j++)
	{
		const LazyDropAdvisorPool *pool = &pools->pool[size][j / QUARTERS][j % QUARTERS];

		if (!pool->filled)
			least = Min(least, (double) pool->nused / (pool->nframes + 1));
	}
	return least;
}

/*
 * Return the size of a relation that is read with a ring.  A parallel worker
 * may not know it.  Then use the size that another process has reported, or
 * the part that has been read.
 */
static uint32
BulkReadSize(LazyDropAdvisorPools *pools, const LazyDropAdvisorSample *sample)
{
	LazyDropAdvisorBulkRead *known;

	known = &pools->bulkreads[sample->rel / (LAZYDROP_ADVISOR_FORK_MASK + 1) %
							  LAZYDROP_ADVISOR_NUM_BULKREADS];
	if (known->rel != sample->rel)
	{
		known->rel = sample->rel;
		known->blocks = 0;
	}
	if (sample->rel_blocks > 0)
		known->blocks = sample->rel_blocks;
	known->blocks = Max(known->blocks, sample->block + 1);
	return known->blocks;
}

/*
 * Rule A10: all pools forget the relations that were dropped.  That is done for
 * many at once, because all frames are searched.
 */
void
LazyDropAdvisorForgetDropped(LazyDropAdvisorPools *pools)
{
	if (pools->drops.n == 0)
		return;
	for (int i = 0; i < SIZES; i++)
	{
		for (int j = 0; j < POLICIES * QUARTERS; j++)
			LazyDropAdvisorPoolForgetDropped(&pools->pool[i][j / QUARTERS][j % QUARTERS],
											 &pools->drops);
	}
	memset(&pools->drops, 0, sizeof(LazyDropAdvisorDrops));
}

/*
 * Return whether a page that a pool of this size did not have is a miss (1),
 * not one (0), or not known to be one (-1), because the pool has not been
 * filled, and the advisor may not have seen the page before (rule A9).
 *
 * If the server had the page, a pool of its size or a larger one would have had
 * it as well.  If the server had to read it, so would a smaller one.
 */
static int
ColdMiss(int size, bool server_missed)
{
	if (server_missed)
		return size <= REAL ? 1 : -1;
	return size >= REAL ? 0 : -1;
}

/*
 * Count a sample, without the results of the pools.
 */
static void
CountSample(const LazyDropAdvisorSample *sample, int quarter, LazyDropAdvisorSums *sums)
{
	sums->samples++;
	if (sample->kind == LAZYDROP_ADVISOR_LOOKUP || sample->kind == LAZYDROP_ADVISOR_RECENT)
	{
		sums->lookups[quarter]++;
		if (sample->access & LAZYDROP_ADVISOR_MISSED)
			sums->real[quarter]++;
	}
}

/*
 * A pool of a size has become full.  Return whether it is the last one of that
 * size; then, all sums begin anew (rule A9).
 */
static bool
NoteFull(LazyDropAdvisorPools *pools, int size)
{
	for (int j = 0; j < POLICIES * QUARTERS; j++)
	{
		if (!pools->pool[size][j / QUARTERS][j % QUARTERS].filled)
			return false;
	}
	pools->full[size] = true;
	pools->anew = true;
	return true;
}

/*
 * Pass a sample to the pools of its quarter, and add the results to the sums.
 * "interval" has what does not depend on the pools, and does not begin anew.
 */
void
LazyDropAdvisorFeed(LazyDropAdvisorPools *pools, const LazyDropAdvisorSample *sample,
					LazyDropAdvisorSums *interval, LazyDropAdvisorSums *sums)
{
	uint64		page = LazyDropAdvisorPage(sample);
	int			quarter = LazyDropAdvisorQuarter(page);
	bool		missed = (sample->access & LAZYDROP_ADVISOR_MISSED) != 0;
	bool		reads = false;
	bool		anew = false;
	LazyDropAdvisorSample with_size = *sample;

	CountSample(sample, quarter, interval);
	CountSample(sample, quarter, sums);
	if (pools->drops.n > 0 &&
		(pools->drops.n == LAZYDROP_ADVISOR_MAX_DROPS ||
		 pools->drops.samples++ >= pools->nframes / FRAMES_PER_SAMPLE))
		LazyDropAdvisorForgetDropped(pools);

	switch ((LazyDropAdvisorKind) sample->kind)
	{
		case LAZYDROP_ADVISOR_LOOKUP:
		case LAZYDROP_ADVISOR_RECENT:
			reads = true;
			break;
		case LAZYDROP_ADVISOR_ZEROED:
		case LAZYDROP_ADVISOR_EXTEND:
			break;
		case LAZYDROP_ADVISOR_DROP:
			LazyDropAdvisorAddDrop(&pools->drops, sample->rel);
			return;
		case LAZYDROP_ADVISOR_TRUNCATE:
			for (int i = 0; i < SIZES; i++)
			{
				for (int j = 0; j < POLICIES * QUARTERS; j++)
					LazyDropAdvisorPoolForget(&pools->pool[i][j / QUARTERS][j % QUARTERS],
											  sample);
			}
			return;
		case LAZYDROP_ADVISOR_FORGET:
			for (int i = 0; i < SIZES; i++)
			{
				for (int policy = 0; policy < POLICIES; policy++)
					LazyDropAdvisorPoolForget(&pools->pool[i][policy][quarter], sample);
			}
			return;
	}

	if ((sample->access & LAZYDROP_ADVISOR_ACCESS_MASK) == LAZYDROP_ADVISOR_BULKREAD)
		with_size.rel_blocks = BulkReadSize(pools, sample);
	for (int i = 0; i < SIZES; i++)
	{
		for (int policy = 0; policy < POLICIES; policy++)
		{
			LazyDropAdvisorPool *pool = &pools->pool[i][policy][quarter];
			LazyDropAdvisorOutcome outcome;
			int			miss = 1;
			bool		filled = pool->filled;

			outcome = LazyDropAdvisorPoolLookup(pool, &with_size, page);
			if (pool->filled && !filled)
				anew = NoteFull(pools, i) || anew;
			if (outcome == LAZYDROP_ADVISOR_HIT || !reads)
				continue;
			if (outcome == LAZYDROP_ADVISOR_COLD)
				miss = ColdMiss(i, missed);
			if (miss < 0)
				sums->cold[i][policy]++;
			if (miss > 0 || (miss < 0 && missed))
				sums->misses[i][policy][quarter]++;
		}
	}
	if (anew)
		memset(sums, 0, sizeof(LazyDropAdvisorSums));
}

/*
 * Add to the sums of an interval what the server has done meanwhile.  If the
 * sums have begun anew in the interval, it is the part that their samples are of
 * those of the interval.
 */
void
LazyDropAdvisorAddIO(LazyDropAdvisorSums *sums, const LazyDropAdvisorSums *interval)
{
	double		lookups[2] = {0};
	double		real[2] = {0};
	double		part;

	if (sums->samples == interval->samples)
	{
		sums->hits = interval->hits;
		sums->reads = interval->reads;
		sums->read_time = interval->read_time;
		sums->seconds = interval->seconds;
		sums->dropped = interval->dropped;
		return;
	}
	for (int quarter = 0; quarter < QUARTERS; quarter++)
	{
		lookups[0] += sums->lookups[quarter];
		lookups[1] += interval->lookups[quarter];
		real[0] += sums->real[quarter];
		real[1] += interval->real[quarter];
	}
	part = real[1] > 0 ? real[0] / real[1] : 0;
	sums->reads = interval->reads * part;
	sums->read_time = interval->read_time * part;
	sums->hits = lookups[1] > 0 ? interval->hits * lookups[0] / lookups[1] : 0;
	part = sums->samples / interval->samples;
	sums->seconds = interval->seconds * part;
	sums->dropped = interval->dropped * part;
}

/*
 * Multiply the sums by decay, and add more to them.
 */
void
LazyDropAdvisorAdd(LazyDropAdvisorSums *sums, const LazyDropAdvisorSums *more,
				   double decay)
{
	double	   *sum = (double *) sums;
	const double *one = (const double *) more;

	for (Size i = 0; i < sizeof(LazyDropAdvisorSums) / sizeof(double); i++)
		sum[i] = sum[i] * decay + one[i];
}

/*
 * Return how many pages a pool would have read, where the server has read
 * "reads".  Of the sampled part of the pages, the pool has missed "misses", and
 * the server "real".
 *
 * If the pool misses less than the server, that is a part of what the server
 * reads.  If it misses more, what it misses in addition is a number of pages of
 * its own.
 */
static double
EstimateReads(double reads, double misses, double real, double rate)
{
	if (misses < real)
		return reads * misses / real;
	return reads + (misses - real) / rate;
}

/*
 * Estimate the reads of pools of a size (rule A8), in all of the time.  The rate
 * is that of all quarters.
 *
 * The error is that of a jackknife: how much the result differs without one of
 * the quarters.
 */
static LazyDropAdvisorEstimate
EstimateSize(const LazyDropAdvisorSums *sums, double rate, int size, int policy)
{
	LazyDropAdvisorEstimate result;
	double		all = sums->hits + sums->reads;
	double		misses = 0;
	double		real = 0;
	double		without[QUARTERS];
	double		mean = 0;
	double		variance = 0;

	/* what was lost in the queue was not sampled */
	if (sums->samples > 0)
		rate *= sums->samples / (sums->samples + sums->dropped);

	for (int quarter = 0; quarter < QUARTERS; quarter++)
	{
		misses += sums->misses[size][policy][quarter];
		real += sums->real[quarter];
	}
	for (int quarter = 0; quarter < QUARTERS; quarter++)
	{
		without[quarter] = EstimateReads(sums->reads,
										 misses - sums->misses[size][policy][quarter],
										 real - sums->real[quarter],
										 rate * (QUARTERS - 1) / QUARTERS);
		without[quarter] = Min(without[quarter], all);
		mean += without[quarter] / QUARTERS;
	}
	for (int quarter = 0; quarter < QUARTERS; quarter++)
		variance += (without[quarter] - mean) * (without[quarter] - mean);
	variance *= (QUARTERS - 1.0) / QUARTERS;

	result.reads = Min(EstimateReads(sums->reads, misses, real, rate), all);
	result.error = Max(QUANTILE * sqrt(variance), UNSEEN / rate) +
		sums->cold[size][policy] / rate;
	result.error = Min(result.error, all);
	return result;
}

/*
 * Return by how many reads the server's, from pg_stat_io, differ from those that
 * the samples stand for, beyond the error of the sample.  Reads may be counted
 * late, when a transaction ends, and their samples may be of another time.
 */
static double
Disagreement(const LazyDropAdvisorSums *sums, double rate)
{
	double		real = 0;
	double		variance = 0;
	double		error;

	if (sums->samples > 0)
		rate *= sums->samples / (sums->samples + sums->dropped);
	for (int quarter = 0; quarter < QUARTERS; quarter++)
		real += sums->real[quarter];
	for (int quarter = 0; quarter < QUARTERS; quarter++)
	{
		double		difference = sums->real[quarter] - real / QUARTERS;

		variance += difference * difference * QUARTERS / (QUARTERS - 1);
	}
	error = Max(QUANTILE * sqrt(variance), UNSEEN);
	return Max(0, fabs(sums->reads - real / rate) - error / rate);
}

/*
 * Move the reads of a size to those of the next one, if the errors permit.
 * What they are moved by is added to the error.
 */
static void
MoveTo(LazyDropAdvisorEstimate *estimate, const LazyDropAdvisorEstimate *next)
{
	double		difference = fabs(estimate->reads - next->reads);

	if (difference <= estimate->error + next->error)
	{
		estimate->reads = next->reads;
		estimate->error += difference;
	}
}

/*
 * Estimate the number of pages that would be read per second at each size with
 * a policy.  The server has real_policy.
 */
void
LazyDropAdvisorGetCurve(const LazyDropAdvisorSums *sums, double rate, int policy,
						int real_policy, LazyDropAdvisorEstimate curve[SIZES])
{
	LazyDropAdvisorEstimate simulated = EstimateSize(sums, rate, REAL, real_policy);
	double		seconds = Max(sums->seconds, 1e-9);
	double		disagreement = Disagreement(sums, rate);
	double		bias;

	/*
	 * If the miniatures of the server's size and policy read another number
	 * of pages than the server, and that is not due to the sample, those of
	 * other sizes may be as wrong.
	 */
	bias = Max(0, fabs(simulated.reads - sums->reads) - simulated.error);
	for (int i = 0; i < SIZES; i++)
	{
		curve[i] = EstimateSize(sums, rate, i, policy);
		curve[i].error += disagreement + (curve[i].reads < simulated.reads ?
										  bias * curve[i].reads / simulated.reads : bias);
	}
	if (policy == real_policy)
	{
		curve[REAL].reads = sums->reads;
		curve[REAL].error = 0;
	}
	for (int i = 0; i < SIZES; i++)
	{
		curve[i].reads /= seconds;
		curve[i].error /= seconds;
	}

	/* it falls with size, as far as the errors permit */
	for (int i = REAL + 1; i < SIZES; i++)
	{
		if (curve[i].reads > curve[i - 1].reads)
			MoveTo(&curve[i], &curve[i - 1]);
	}
	for (int i = REAL - 1; i >= 0; i--)
	{
		if (curve[i].reads < curve[i + 1].reads)
			MoveTo(&curve[i], &curve[i + 1]);
	}
}
