/*-------------------------------------------------------------------------
 *
 * lazydrop_advisor_shared.h
 *	  Shared memory of the advisor.
 *
 * Copyright (c) 2026, LazyDrop developers
 *
 * src/include/storage/lazydrop_advisor_shared.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef LAZYDROP_ADVISOR_SHARED_H
#define LAZYDROP_ADVISOR_SHARED_H

#include "datatype/timestamp.h"
#include "port/atomics.h"
#include "storage/lazydrop_advisor_internal.h"
#include "storage/spin.h"

/*
 * The samples that a process hands over at a time.  The state shows for what
 * the slot is ready (rule A3): the position in the queue of the batch to be
 * put here, or that number + 1 when it has been put.
 */
#define LAZYDROP_ADVISOR_BATCH	15

typedef struct LazyDropAdvisorBatch
{
	pg_atomic_uint64 state;
	int32		nsamples;
	LazyDropAdvisorSample samples[LAZYDROP_ADVISOR_BATCH];
} LazyDropAdvisorBatch;

/* simulated atomics are larger */
#ifndef PG_HAVE_ATOMIC_U64_SIMULATION
StaticAssertDecl(sizeof(LazyDropAdvisorBatch) == 256,
				 "a batch should begin and end with a cache line");
#endif

typedef union LazyDropAdvisorPosition
{
	pg_atomic_uint64 value;
	char		pad[PG_CACHE_LINE_SIZE];
} LazyDropAdvisorPosition;

typedef struct LazyDropAdvisorShared
{
	LazyDropAdvisorPosition put;	/* of the next batch that is put */
	LazyDropAdvisorPosition taken;	/* that is taken; changed by the worker */
	pg_atomic_uint64 dropped;	/* samples for which there was no room */
	pg_atomic_uint64 recent_hits;	/* pages found without a lookup */
	pg_atomic_uint32 worker;	/* its ProcNumber, or INVALID_PROC_NUMBER */

	/* do not change after start-up */
	int32		frames;			/* of a miniature of the server's size */
	uint32		threshold;
	uint32		nbatches;		/* a power of two */
	uint32		wait_event;

	slock_t		mutex;			/* protects the fields below */
	LazyDropAdvisorSums seen;	/* without pools, since stats_reset */
	LazyDropAdvisorSums total;	/* since they began anew: see README, A9 */
	LazyDropAdvisorSums recent; /* the same, decaying */
	double		filled[LAZYDROP_ADVISOR_SIZES]; /* part of the pools */
	bool		two_classes;	/* the server's policy, since they began */
	double		elapsed;		/* since the worker's start, in seconds */
	bool		waiting;		/* for pg_stat_io */
	uint64		dropped_before; /* dropped at the last reset */
	TimestampTz stats_reset;
	TimestampTz seen_until;		/* 0 if nothing was seen */

	/* the batches follow, from the next cache line on */
} LazyDropAdvisorShared;

extern LazyDropAdvisorShared *LazyDropAdvisorCtl;

extern Size LazyDropAdvisorPoolsMemory(void);
extern LazyDropAdvisorBatch *LazyDropAdvisorNextBatch(void);
extern void LazyDropAdvisorBatchTaken(LazyDropAdvisorBatch *batch);
extern void LazyDropAdvisorSkipAbandoned(int64 now);

#endif							/* LAZYDROP_ADVISOR_SHARED_H */
