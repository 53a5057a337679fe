/*-------------------------------------------------------------------------
 *
 * lazydrop_advisor_estimate.c
 *	  Miniature pools of all sizes, and the estimates made from them.
 *
 * Like lazydrop_advisor_pool.c, this file uses nothing of the server but its
 * type names.  Rules A8 and A9 are in README.
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

const double LazyDropAdvisorFactors[LAZYDROP_ADVISOR_SIZES] = {
	0.25, 0.5, 0.75, 1, 1.5, 2, 3, 4
};

/*
 * A8: below LITTLE_SAMPLED misses, the real reads show little about how
 * representative the sample is.  MAX_CORRECTION limits the correction.
 */
#define LITTLE_SAMPLED		16
#define MAX_CORRECTION		2

/*
 * Return the number of frames of the miniature of a pool of size factor.
 */
static int32
FramesOf(int32 frames, double factor)
{
	return Max(1, (int32) (frames * factor + 0.5));
}

/*
 * Return the memory that the pools need behind their struct, if the miniature
 * of the server's size has this number of frames.
 */
Size
LazyDropAdvisorPoolsSize(int32 frames)
{
	Size		size = 0;

	for (int i = 0; i < LAZYDROP_ADVISOR_SIZES; i++)
		size += LazyDropAdvisorPoolSize(FramesOf(frames, LazyDropAdvisorFactors[i]));
	return size;
}

/*
 * Return the number of frames that fit into the memory: at least one, and no
 * more than there are buffers.
 */
int32
LazyDropAdvisorFrames(Size memory, int32 buffers)
{
	int32		low = 1;
	int32		high = Max(1, Min((Size) buffers, memory / sizeof(LazyDropAdvisorFrame)));

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
 * the model, except for the rate, then and later.
 */
void
LazyDropAdvisorPoolsInit(LazyDropAdvisorPools *pools, int32 frames, int32 buffers,
						 void *memory)
{
	memset(&pools->model, 0, sizeof(LazyDropAdvisorModel));
	memset(pools->bulkreads, 0, sizeof(pools->bulkreads));
	pools->model.rate = (double) frames / buffers;
	for (int i = 0; i < LAZYDROP_ADVISOR_SIZES; i++)
	{
		int32		n = FramesOf(frames, LazyDropAdvisorFactors[i]);

		LazyDropAdvisorPoolInit(&pools->pool[i], &pools->model, n,
								buffers * LazyDropAdvisorFactors[i], memory);
		memory = (char *) memory + LazyDropAdvisorPoolSize(n);
	}
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
 * Pass a sample to all pools, and add the results to the sums.
 *
 * Until a pool has been filled, a page may be missing only because the advisor
 * has not seen it.  If the server had the page, a pool of the same size or a
 * larger one would have had it as well, and for a smaller one the result is
 * uncertain: no miss is counted.
 */
void
LazyDropAdvisorFeed(LazyDropAdvisorPools *pools, const LazyDropAdvisorSample *sample,
					LazyDropAdvisorSums *sums)
{
	bool		missed = (sample->access & LAZYDROP_ADVISOR_MISSED) != 0;
	bool		reads = false;
	LazyDropAdvisorSample with_size = *sample;

	switch ((LazyDropAdvisorKind) sample->kind)
	{
		case LAZYDROP_ADVISOR_LOOKUP:
		case LAZYDROP_ADVISOR_RECENT:
			sums->lookups += sample->lookups;
			reads = true;
			break;
		case LAZYDROP_ADVISOR_ZEROED:
			sums->lookups += sample->lookups;
			break;
		case LAZYDROP_ADVISOR_EXTEND:
			break;
		case LAZYDROP_ADVISOR_FORGET:
		case LAZYDROP_ADVISOR_TRUNCATE:
		case LAZYDROP_ADVISOR_DROP:
			for (int i = 0; i < LAZYDROP_ADVISOR_SIZES; i++)
				LazyDropAdvisorPoolForget(&pools->pool[i], sample);
			return;
	}

	if ((sample->access & LAZYDROP_ADVISOR_ACCESS_MASK) == LAZYDROP_ADVISOR_BULKREAD)
		with_size.rel_blocks = BulkReadSize(pools, sample);
	for (int i = 0; i < LAZYDROP_ADVISOR_SIZES; i++)
	{
		LazyDropAdvisorOutcome outcome;

		outcome = LazyDropAdvisorPoolLookup(&pools->pool[i], &with_size);
		if (outcome == LAZYDROP_ADVISOR_HIT || !reads)
			continue;
		if (outcome == LAZYDROP_ADVISOR_COLD)
		{
			if (!missed)
				continue;
			sums->cold[i]++;
		}
		sums->misses[i]++;
	}
}

/*
 * Multiply the sums by decay, and add more to them.
 */
void
LazyDropAdvisorAdd(LazyDropAdvisorSums *sums, const LazyDropAdvisorSums *more,
				   double decay)
{
#define ADD(field) (sums->field = sums->field * decay + more->field)
	ADD(lookups);
	for (int i = 0; i < LAZYDROP_ADVISOR_SIZES; i++)
	{
		ADD(misses[i]);
		ADD(cold[i]);
	}
	ADD(hits);
	ADD(reads);
	ADD(read_time);
	ADD(seconds);
#undef ADD
}

/*
 * Estimate the number of pages that would have been read at each size.
 *
 * Misses are scaled so that the pool of the server's size has as many reads as
 * the server had.  This removes most of the sampling error (rule A8).  The
 * closer a smaller pool comes to reading every page that is looked up, the
 * weaker is the correction: there, the sample cannot be as wrong.  If a
 * difference remains, because too little was sampled, it is added at all
 * sizes; but at a larger size, at most as much as that misses.
 *
 * A larger pool is not forced to read less than a smaller one, since neither
 * policy guarantees that.
 */
void
LazyDropAdvisorEstimate(const LazyDropAdvisorSums *sums, double rate, double *reads)
{
	double		all = sums->hits + sums->reads;
	double		real = sums->misses[LAZYDROP_ADVISOR_REAL];
	double		correction;
	double		rest;

	correction = (sums->reads * rate + LITTLE_SAMPLED) / (real + LITTLE_SAMPLED);
	correction = Max(correction, 1.0 / MAX_CORRECTION);
	correction = Min(correction, MAX_CORRECTION);
	rest = sums->reads - real / rate * correction;

	for (int i = 0; i < LAZYDROP_ADVISOR_SIZES; i++)
	{
		double		misses = sums->misses[i];
		double		trust = 1;
		double		part = 1;

		if (misses > real)
		{
			trust = (all * rate - misses) / Max(all * rate - real, 1);
			trust = sqrt(Max(0, Min(1, trust)));
		}
		else
			part = (misses + LITTLE_SAMPLED) / (real + LITTLE_SAMPLED);
		reads[i] = misses / rate * pow(correction, trust) + rest * part;
		reads[i] = Max(0, Min(reads[i], all));
	}
	reads[LAZYDROP_ADVISOR_REAL] = sums->reads;
}
