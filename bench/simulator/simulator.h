/*-------------------------------------------------------------------------
 *
 * simulator.h
 *	  Declarations that the files of the simulator share.
 *
 * Copyright (c) 2026, LazyDrop developers
 *
 * bench/simulator/simulator.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef SIMULATOR_H
#define SIMULATOR_H

#include "postgres.h"

/* Hits are counted for each group of accesses.  The workload chooses groups. */
typedef enum Group
{
	MEASURED,
	SCAN,
	QUERIES,
	OTHERS,
} Group;

#define NUM_GROUPS		(OTHERS + 1)

/* One pin of a page. */
typedef struct Access
{
	uint32		page:28;
	uint32		group:3;		/* a Group */
	uint32		recent:1;		/* found without a lookup, if it is resident */
} Access;

#define MAX_PHASES		32

/*
 * A workload.  Pages have numbers from 0 on; those below "hot" are the hot set,
 * if there is one.  The trace is divided into phases.
 */
typedef struct Trace
{
	Access	   *accesses;
	Size		length;
	Size		allocated;
	uint32		npages;
	uint32		hot;
	bool		idle;			/* the hot set is not used after phase 0 */
	int			nphases;
	Size		phase_end[MAX_PHASES];
} Trace;

/*
 * A replacement policy.  A page that is accessed is resident afterward.  The
 * trace is given to create() for its size; only the optimum looks at more.
 */
typedef struct Policy
{
	const char *name;
	void	   *(*create) (const Trace *trace, int32 nbuffers);

	/* Look up a page, and load it if it is missing.  Return true for a hit. */
	bool		(*access) (void *pool, uint32 page);

	/*
	 * The same for a page that is found without a lookup, if it is resident.
	 * NULL if that does not change anything.
	 */
	bool		(*recent) (void *pool, uint32 page);

	bool		(*resident) (void *pool, uint32 page);
} Policy;

/* Positions of both hands at which the loads of the server's policy looked. */
typedef struct Positions
{
	uint64		loads;			/* into a pool without free buffers */
	uint64		total;
	int32		most;			/* for one load */
} Positions;

extern Positions positions;

/* in competitors.c */
extern const Policy LazyDropPolicy;
extern const Policy StockPolicy;
extern const Policy SecondChancePolicy;
extern const Policy CoolingPolicy;
extern const Policy TwoQueuesPolicy;
extern const Policy S3FifoPolicy;
extern const Policy OptimumPolicy;

/* in simulate.c */
extern void *PoolAlloc(Size size);

#endif							/* SIMULATOR_H */
