/*
 * Random numbers, Zipf's distribution and a sample, for accuracy.c and verdicts.c.
 *
 * Copyright (c) 2026, LazyDrop developers
 */
#ifndef RANDOM_H
#define RANDOM_H

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "storage/lazydrop_advisor_internal.h"

#define TWO_TO_53	9007199254740992.0

static uint64 state;

/* sums of probabilities, by rank */
static double *zipf_sum;
static uint32 zipf_pages;

/*
 * Begin the sequence that is always the same.
 */
static void
StartRandom(void)
{
	state = UINT64CONST(88172645463325252);
}

/*
 * Return 64 random bits (xorshift).
 */
static uint64
RandomBits(void)
{
	state ^= state << 13;
	state ^= state >> 7;
	state ^= state << 17;
	return state;
}

/*
 * Return a number from 0 to less than 1.
 */
static double
RandomPart(void)
{
	return (RandomBits() >> 11) / TWO_TO_53;
}

static void *
Allocate(Size size)
{
	void	   *memory = malloc(size);

	if (memory == NULL)
	{
		fprintf(stderr, "out of memory\n");
		exit(1);
	}
	return memory;
}

static void
MakeZipf(uint32 pages, double exponent)
{
	double		sum = 0;

	zipf_pages = pages;
	zipf_sum = Allocate(pages * sizeof(double));
	for (uint32 i = 0; i < pages; i++)
		zipf_sum[i] = sum += pow(i + 1, -exponent);
}

/*
 * Return a rank, from 0, of Zipf's distribution.
 */
static uint32
ZipfRank(void)
{
	double		wanted = RandomPart() * zipf_sum[zipf_pages - 1];
	uint32		low = 0;
	uint32		high = zipf_pages - 1;

	while (low < high)
	{
		uint32		middle = low + (high - low) / 2;

		if (zipf_sum[middle] < wanted)
			low = middle + 1;
		else
			high = middle;
	}
	return low;
}

/*
 * Return whether a page is in a sample with this part of the pages.  The hash is
 * splitmix64's, so that it is not the one that the pools use.
 */
static bool
IsSampled(const LazyDropAdvisorSample *sample, int seed, double rate)
{
	uint64		hash = ((uint64) sample->rel << 32 | sample->block) + seed;

	hash += UINT64CONST(0x9e3779b97f4a7c15) * (seed + 1);
	hash = (hash ^ (hash >> 30)) * UINT64CONST(0xbf58476d1ce4e5b9);
	hash = (hash ^ (hash >> 27)) * UINT64CONST(0x94d049bb133111eb);
	return (hash ^ (hash >> 31)) >> 11 < rate * TWO_TO_53;
}

#endif							/* RANDOM_H */
