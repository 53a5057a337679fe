/*-------------------------------------------------------------------------
 *
 * lazydrop_advisor_verdict.c
 *	  Which size of shared_buffers to have.
 *
 * Like lazydrop_advisor_pool.c, this file uses nothing of the server but its
 * type names.  Rule A11 is in README.
 *
 * Copyright (c) 2026, LazyDrop developers
 *
 * IDENTIFICATION
 *	  src/backend/storage/advisor/lazydrop_advisor_verdict.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include <math.h>

#include "storage/lazydrop_advisor_internal.h"

#define SIZES		LAZYDROP_ADVISOR_SIZES
#define REAL		LAZYDROP_ADVISOR_REAL

/* a size is as good as another one if it reads this part more, at most */
#define TOLERANCE			0.1

/*
 * Reads make no difference if they are fewer per second than this, or a smaller
 * part of the present ones, or of the lookups.
 */
#define NEGLIGIBLE_READS	1.0
#define NEGLIGIBLE_PART		0.01
#define NEGLIGIBLE_RATIO	0.0001

/* shared_buffers may have this part of the memory, at most */
#define MEMORY_SHARE		0.75

/* much is read if it is more than this part of the lookups */
#define MANY_READS			0.1

/* least number of samples, and greatest part of them that may be lost */
#define ENOUGH_SAMPLES		1000
#define LOST_SAMPLES		0.1

/*
 * Filling a pool takes longer than it has taken so far, because the pages that
 * it does not have yet are used more rarely.  This factor suffices for 98 % of
 * pages that are used equally often.
 */
#define SLOWER				4.0

/* An error is estimated from few numbers, and may be this factor larger. */
#define UNCERTAIN			4.0

/*
 * Return the largest number of reads that is as good as this one.
 */
static double
AsGoodAs(const LazyDropAdvisorEvidence *evidence, double reads)
{
	double		negligible = NEGLIGIBLE_READS;

	negligible = Max(negligible, NEGLIGIBLE_PART * evidence->curve[REAL].reads);
	negligible = Max(negligible, NEGLIGIBLE_RATIO * evidence->lookups);
	return reads + Max(reads * TOLERANCE, negligible);
}

/*
 * Return the largest number of reads that a size may have, and the smallest.
 */
static double
AtMost(const LazyDropAdvisorEvidence *evidence, int i)
{
	return evidence->curve[i].reads + evidence->curve[i].error;
}

static double
AtLeast(const LazyDropAdvisorEvidence *evidence, int i)
{
	return Max(0, evidence->curve[i].reads - evidence->curve[i].error);
}

/*
 * Return the number of pages that a pool of some size reads per second: on a
 * line between the sizes next to it, or that of the smallest or the largest.
 * sign is that of the error, or 0.
 */
static double
ReadsAt(const LazyDropAdvisorEvidence *evidence, double buffers, int sign)
{
	double		factor = buffers / evidence->buffers;
	double		reads = 0;

	for (int i = 0; i < SIZES; i++)
	{
		const LazyDropAdvisorEstimate *size = &evidence->curve[i];
		double		at_size = Max(0, size->reads + sign * size->error);

		if (i > 0 && factor <= LazyDropAdvisorFactors[i])
		{
			double		part = (factor - LazyDropAdvisorFactors[i - 1]) /
				(LazyDropAdvisorFactors[i] - LazyDropAdvisorFactors[i - 1]);

			return reads + Max(0, part) * (at_size - reads);
		}
		reads = at_size;
	}
	return reads;
}

/*
 * Return whether a size fits: it is not larger than the present one, or it fits
 * into memory, and the disk would not have more to do.  The file-system cache
 * has the memory that shared_buffers does not take.  At worst, the smaller of
 * the two has nothing that the larger does not have.
 *
 * Errors count against it if it must be certain, and for it otherwise.
 */
static bool
Fits(const LazyDropAdvisorEvidence *evidence, int i, bool certain)
{
	double		buffers = evidence->buffers * LazyDropAdvisorFactors[i];
	double		largest = evidence->buffers * LazyDropAdvisorFactors[SIZES - 1];
	double		now;
	double		then;

	if (i <= REAL)
		return true;
	if (buffers > evidence->memory * MEMORY_SHARE)
		return false;
	now = Min(largest, Max(evidence->buffers, evidence->memory - evidence->buffers));
	then = Min(largest, Max(buffers, evidence->memory - buffers));
	if (then >= now)
		return true;
	return ReadsAt(evidence, then, certain ? 1 : -1) <=
		AsGoodAs(evidence, ReadsAt(evidence, now, certain ? -1 : 1));
}

/*
 * Return how long it will be, at most, until the error of a size has fallen to
 * the limit, in seconds; -1 if that is not known.
 */
static double
TimeUntilKnown(const LazyDropAdvisorEvidence *evidence, int i, double limit)
{
	double		filled = evidence->filled[i];
	double		seconds = Max(evidence->seconds, 1);
	double		ratio = evidence->curve[i].error / limit;
	double		of_time;

	if (filled < 1)
		return filled > 0 ? SLOWER * evidence->elapsed * (1 - filled) / filled : -1;

	/*
	 * A number of events has an error that is inversely proportional to the
	 * root of the time.  That of the choice of pages remains.
	 */
	of_time = sqrt(UNCERTAIN * Max(evidence->curve[i].reads * seconds, 1) / evidence->rate) /
		seconds;
	if (evidence->curve[i].error > UNCERTAIN * of_time)
		return -1;
	return seconds * Max(UNCERTAIN * ratio * ratio - 1, 1);
}

/*
 * Decide which size is the one to have: the smallest that is certainly as good
 * as the best one that fits (rule A11).
 */
LazyDropAdvisorDecision
LazyDropAdvisorDecide(const LazyDropAdvisorEvidence *evidence)
{
	LazyDropAdvisorDecision result = {LAZYDROP_ADVISOR_UNKNOWN, REAL, -1};
	double		now = evidence->curve[REAL].reads;
	double		best = AtMost(evidence, REAL);
	double		most;
	bool		known = true;

	if (evidence->dropped > LOST_SAMPLES * evidence->samples)
		return result;
	if (evidence->samples < ENOUGH_SAMPLES)
	{
		if (evidence->samples > 0)
			result.wait = UNCERTAIN * evidence->seconds * ENOUGH_SAMPLES / evidence->samples;
		return result;
	}

	for (int i = 0; i < SIZES; i++)
	{
		if (Fits(evidence, i, true))
			best = Min(best, AtMost(evidence, i));
	}
	for (int i = SIZES - 1; i >= 0; i--)
	{
		if (Fits(evidence, i, true) && AtMost(evidence, i) <= AsGoodAs(evidence, best))
			result.size = i;
	}

	/*
	 * Might a larger one be better?  Or, if it is larger than the present
	 * one, might that be as good as the best?  (It has an error if it is
	 * about the policy that the server does not have.)
	 */
	most = AtMost(evidence, result.size);
	result.wait = 0;
	for (int i = Min(result.size, REAL); i < SIZES; i++)
	{
		double		least = AtLeast(evidence, i);
		double		wait;

		if (i > result.size)
		{
			if (!Fits(evidence, i, false) || most <= AsGoodAs(evidence, least))
				continue;
		}
		else if (i == result.size || i > REAL || least > AsGoodAs(evidence, best))
			continue;
		known = false;
		wait = TimeUntilKnown(evidence, i, AsGoodAs(evidence, now) - now);
		result.wait = wait < 0 || result.wait < 0 ? -1 : Max(wait, result.wait);
	}
	if (!known)
		return result;

	if (result.size > REAL)
		result.verdict = LAZYDROP_ADVISOR_INCREASE;
	else if (best > MANY_READS * evidence->lookups)
		result.verdict = LAZYDROP_ADVISOR_BEYOND;
	else if (result.size < REAL)
		result.verdict = LAZYDROP_ADVISOR_REDUCIBLE;
	else
		result.verdict = LAZYDROP_ADVISOR_KEEP;
	return result;
}
