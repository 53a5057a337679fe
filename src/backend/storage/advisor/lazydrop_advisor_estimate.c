/*-------------------------------------------------------------------------
 *
 * lazydrop_advisor_estimate.c
 *	  Miniature pools of all sizes, and what is concluded from them.
 *
 * Like lazydrop_advisor_pool.c, this needs nothing of the server but its names for
 * types.  Rules A8 and A9 are in README.
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
 * A8: sampled misses below which what really happened tells little about how
 * representative the sample is; and how far that may take the estimate.
 */
#define LITTLE_SAMPLED		16
#define MAX_CORRECTION		2

/*
 * Frames of the pool that stands for one of size factor.
 */
static int32
FramesOf(int32 frames, double factor)
{
	return Max(1, (int32) (frames * factor + 0.5));
}

/*
 * Memory that the pools need behind their struct, when the one that is as large as the
 * server's has so many frames.
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
 * How many frames fit into so much memory: at least one, and not more than there are
 * buffers.
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
 * Make empty pools in so much memory, aligned for an int64.  The caller sets the model,
 * then and later, but for the rate.
 */
void
LazyDropAdvisorPoolsInit(LazyDropAdvisorPools *pools, int32 frames, int32 buffers,
						 void *memory)
{
	memset(&pools->model, 0, sizeof(LazyDropAdvisorModel));
	memset(pools->bulkreads, 0, sizeof(pools->bulkreads));
	pools->model.rate = (double) frames / buffers;
	pools->model.loaders = 1;
	for (int i = 0; i < LAZYDROP_ADVISOR_SIZES; i++)
	{
		int32		n = FramesOf(frames, LazyDropAdvisorFactors[i]);

		LazyDropAdvisorPoolInit(&pools->pool[i], &pools->model, n,
								buffers * LazyDropAdvisorFactors[i], memory);
		memory = (char *) memory + LazyDropAdvisorPoolSize(n);
	}
}

/*
 * How large the relation is of a page that is read with a ring.  A parallel worker may
 * not know; then it is as large as another process has said, or as has been read of it.
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
 * Let all pools know of a sample, and add to the sums what they say.
 *
 * Until a pool has been filled, it may not know a page because the advisor is young.
 * What the server has found then, a pool of the same size or a larger one would have
 * had as well, and of a smaller one little can be said: none counts a miss.
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

	if ((sample->access & ~LAZYDROP_ADVISOR_MISSED) == LAZYDROP_ADVISOR_BULKREAD)
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
 * Add to sums, after these have been multiplied by decay.
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
 * Estimate how many pages would have been read at each size.
 *
 * A sampled miss stands for as many as make the pool of the server's size read what was
 * really read: that takes out most of what chance has put into the sample (rule A8).
 * For a smaller pool, it does so the less, the nearer it comes to reading all that is
 * looked up: there, the sample cannot be as wrong.  What this leaves of the difference,
 * because too little was sampled, is taken for the same at all sizes; but at a larger one
 * only as far as it misses something as well.
 *
 * Nothing makes a larger pool read less than a smaller one: neither policy is one of
 * those of which that can be said.
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
