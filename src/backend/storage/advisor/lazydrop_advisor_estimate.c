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
	return low;
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
		sums->lookups[quarter] += sample->lookups;
		if (sample->access & LAZYDROP_ADVISOR_MISSED)
			sums->real[quarter]++;
	}
}

/*
 * A pool of a size has become full.  If it is the last one, the sums for the
 * size begin anew (rule A9).
 */
static void
NoteFull(LazyDropAdvisorPools *pools, int size, LazyDropAdvisorSums *sums)
{
	for (int j = 0; j < POLICIES * QUARTERS; j++)
	{
		if (!pools->pool[size][j / QUARTERS][j % QUARTERS].filled)
			return;
	}
	pools->full[size] = true;
	memset(sums, 0, sizeof(LazyDropAdvisorSums));
}

/*
 * Pass a sample to the pools of its quarter, and add the results to the sums
 * for each size.  "all" has what does not depend on the size.
 */
void
LazyDropAdvisorFeed(LazyDropAdvisorPools *pools, const LazyDropAdvisorSample *sample,
					LazyDropAdvisorSums *all, LazyDropAdvisorSums sums[SIZES])
{
	int			quarter = LazyDropAdvisorQuarter(sample->rel, sample->block);
	bool		missed = (sample->access & LAZYDROP_ADVISOR_MISSED) != 0;
	bool		reads = false;
	LazyDropAdvisorSample with_size = *sample;

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
	CountSample(sample, quarter, all);
	for (int i = 0; i < SIZES; i++)
	{
		CountSample(sample, quarter, &sums[i]);
		for (int policy = 0; policy < POLICIES; policy++)
		{
			LazyDropAdvisorPool *pool = &pools->pool[i][policy][quarter];
			LazyDropAdvisorOutcome outcome;
			int			miss = 1;
			bool		filled = pool->filled;

			outcome = LazyDropAdvisorPoolLookup(pool, &with_size);
			if (pool->filled && !filled)
				NoteFull(pools, i, &sums[i]);
			if (outcome == LAZYDROP_ADVISOR_HIT || !reads)
				continue;
			if (outcome == LAZYDROP_ADVISOR_COLD)
				miss = ColdMiss(i, missed);
			if (miss < 0)
				sums[i].cold[policy]++;
			if (miss > 0 || (miss < 0 && missed))
				sums[i].misses[policy][quarter]++;
		}
	}
}

/*
 * Add to the sums for a size what the server has done meanwhile.  Those for all
 * samples have it; if the size began later, it gets the part that its samples
 * are of theirs.
 */
void
LazyDropAdvisorAddIO(LazyDropAdvisorSums *sums, const LazyDropAdvisorSums *all)
{
	double		lookups[2] = {0};
	double		real[2] = {0};
	double		part;

	if (all->samples == 0 || sums->samples == all->samples)
	{
		sums->hits = all->hits;
		sums->reads = all->reads;
		sums->read_time = all->read_time;
		sums->seconds = all->seconds;
		sums->dropped = all->dropped;
		return;
	}
	for (int quarter = 0; quarter < QUARTERS; quarter++)
	{
		lookups[0] += sums->lookups[quarter];
		lookups[1] += all->lookups[quarter];
		real[0] += sums->real[quarter];
		real[1] += all->real[quarter];
	}
	part = real[1] > 0 ? real[0] / real[1] : 0;
	sums->reads = all->reads * part;
	sums->read_time = all->read_time * part;
	sums->hits = lookups[1] > 0 ? all->hits * lookups[0] / lookups[1] : 0;
	part = sums->samples / all->samples;
	sums->seconds = all->seconds * part;
	sums->dropped = all->dropped * part;
}

/*
 * Multiply the sums by decay, and add more to them.
 */
void
LazyDropAdvisorAdd(LazyDropAdvisorSums *sums, const LazyDropAdvisorSums *more,
				   double decay)
{
#define ADD(field) (sums->field = sums->field * decay + more->field)
	for (int quarter = 0; quarter < QUARTERS; quarter++)
	{
		for (int policy = 0; policy < POLICIES; policy++)
			ADD(misses[policy][quarter]);
		ADD(real[quarter]);
		ADD(lookups[quarter]);
	}
	for (int policy = 0; policy < POLICIES; policy++)
		ADD(cold[policy]);
	ADD(samples);
	ADD(dropped);
	ADD(hits);
	ADD(reads);
	ADD(read_time);
	ADD(seconds);
#undef ADD
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
 * Estimate the reads of pools of a size (rule A8).  The rate is that of all
 * quarters.
 *
 * The error is that of a jackknife: how much the result differs without one of
 * the quarters.
 */
static LazyDropAdvisorEstimate
EstimateSize(const LazyDropAdvisorSums *sums, double rate, int policy)
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
		misses += sums->misses[policy][quarter];
		real += sums->real[quarter];
	}
	for (int quarter = 0; quarter < QUARTERS; quarter++)
	{
		without[quarter] = EstimateReads(sums->reads,
										 misses - sums->misses[policy][quarter],
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
		sums->cold[policy] / rate;
	result.error = Min(result.error, all);
	return result;
}

/*
 * Estimate the number of pages that would have been read at each size with a
 * policy.  The server has real_policy.
 */
void
LazyDropAdvisorGetEstimates(const LazyDropAdvisorSums sums[SIZES], double rate,
							int policy, int real_policy,
							LazyDropAdvisorEstimate estimates[SIZES])
{
	LazyDropAdvisorEstimate simulated = EstimateSize(&sums[REAL], rate, real_policy);
	double		known = sums[REAL].reads;
	double		bias;

	/*
	 * If the miniatures of the server's size and policy read another number
	 * of pages than the server, and that is not due to the sample, those of
	 * other sizes may be as wrong.
	 */
	bias = Max(0, fabs(simulated.reads - known) - simulated.error);
	for (int i = 0; i < SIZES; i++)
	{
		estimates[i] = EstimateSize(&sums[i], rate, policy);
		estimates[i].error += estimates[i].reads < known ?
			bias * estimates[i].reads / known : bias;
	}
	if (policy == real_policy)
	{
		estimates[REAL].reads = known;
		estimates[REAL].error = 0;
	}
}

/*
 * Turn the estimates into pages per second, and make them fall with size where
 * the errors allow it.  "all" has the real lookups and reads, which do not begin
 * anew as the sums for a size do: those of a size only tell the difference.
 */
void
LazyDropAdvisorGetCurve(const LazyDropAdvisorSums *all,
						const LazyDropAdvisorSums sums[SIZES],
						const LazyDropAdvisorEstimate estimates[SIZES],
						LazyDropAdvisorEstimate curve[SIZES])
{
	double		lookups = all->hits + all->reads;
	double		seconds = Max(all->seconds, 1e-9);
	double		now = all->reads / seconds;

	for (int i = 0; i < SIZES; i++)
	{
		double		own_lookups = sums[i].hits + sums[i].reads;
		double		scale;

		if (own_lookups <= 0)
		{
			curve[i].reads = now;
			curve[i].error = lookups / seconds;
			continue;
		}
		scale = lookups / own_lookups / seconds;
		if (estimates[i].reads < sums[i].reads)
			curve[i].reads = now * estimates[i].reads / sums[i].reads;
		else
			curve[i].reads = now + (estimates[i].reads - sums[i].reads) * scale;

		/* as far as other lookups were not like its own, nothing is known */
		curve[i].error = estimates[i].error * scale +
			fabs(now - sums[i].reads * scale) * Max(0, 1 - own_lookups / lookups);
	}

	for (int i = REAL + 1; i < SIZES; i++)
	{
		if (curve[i].reads > curve[i - 1].reads &&
			curve[i].reads - curve[i - 1].reads <= curve[i].error + curve[i - 1].error)
			curve[i].reads = curve[i - 1].reads;
	}
	for (int i = REAL - 1; i >= 0; i--)
	{
		if (curve[i].reads < curve[i + 1].reads &&
			curve[i + 1].reads - curve[i].reads <= curve[i].error + curve[i + 1].error)
			curve[i].reads = curve[i + 1].reads;
	}
}
