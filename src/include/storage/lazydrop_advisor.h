/*-------------------------------------------------------------------------
 *
 * lazydrop_advisor.h
 *	  Interface of the advisor on the size of shared_buffers.
 *
 * See src/backend/storage/advisor/README.  With lazydrop.advisor off, or for a
 * page that is not sampled, each call with a hash is one comparison.
 *
 * Copyright (c) 2026, LazyDrop developers
 *
 * src/include/storage/lazydrop_advisor.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef LAZYDROP_ADVISOR_H
#define LAZYDROP_ADVISOR_H

#include "datatype/timestamp.h"
#include "pgstat.h"
#include "storage/buf_internals.h"
#include "storage/smgr.h"

/*
 * This process samples pages whose hash is less than this; none if it is 0.
 * The lowest bits of the hash select the partition of the buffer table, so all
 * partitions are sampled.
 */
extern PGDLLIMPORT uint32 lazydrop_advisor_threshold;

extern PGDLLIMPORT bool lazydrop_advisor;
extern PGDLLIMPORT int lazydrop_advisor_memory;
extern PGDLLIMPORT int lazydrop_advisor_decay;

#define LAZYDROP_ADVICE_SIZES	8

/*
 * Results for a size.  The first block of numbers covers the time since the
 * last reset, the second about the last lazydrop.advisor_decay.  A ratio is -1
 * if there were no lookups.
 */
typedef struct LazyDropAdvice
{
	double		factor;			/* of shared_buffers */
	int64		buffers;
	double		hit_ratio;
	double		reads;			/* pages */
	double		reads_per_second;
	double		read_time_ms;	/* 0 without track_io_timing */
	double		time_saved_ms;	/* compared with the real size */
	double		cold_reads;		/* reads that may be hits, or the reverse */
	double		filled;			/* part of the miniatures that is used */

	/* reads per second with each policy: the clock sweep, two classes */
	double		policy_reads[2];
	double		policy_error[2];

	double		recent_hit_ratio;
	double		recent_reads_per_second;
} LazyDropAdvice;

typedef struct LazyDropAdviceStats
{
	bool		enabled;
	bool		two_classes;	/* the server's policy */
	int			worker_pid;		/* 0 when there is none */
	int			frames;			/* of miniatures of the real size and a policy */
	double		rate;			/* part of the pages that is sampled */
	double		samples;		/* that the worker has seen */
	int64		dropped;		/* those for which there was no room */
	double		hits;			/* all, as pg_stat_io and replay count */
	double		reads;
	double		seconds;		/* how long the advisor was on */
	TimestampTz stats_reset;
	TimestampTz seen_until;		/* 0 if nothing was seen */
	LazyDropAdvice sizes[LAZYDROP_ADVICE_SIZES];
} LazyDropAdviceStats;

/* What to do, for a period and a policy. */
#define LAZYDROP_ADVICE_VERDICTS	4

typedef struct LazyDropAdviceVerdict
{
	bool		recent;			/* about the last lazydrop.advisor_decay */
	bool		two_classes;	/* with scan resistance */
	const char *verdict;
	int64		bytes;			/* the size to have, or 0 */
	double		reads_now;		/* pages per second, with the present size */
	double		reads_then;		/* with that one; and how wrong that may be */
	double		error;
	double		hit_ratio_now;
	double		hit_ratio_then;
	double		read_time_ms;	/* of a page; 0 without track_io_timing */
	double		seconds;		/* that the verdict is based on */
	TimestampTz until;			/* end of that time; 0 if nothing was seen */
	double		wait;			/* seconds until it is known, or -1 */
} LazyDropAdviceVerdict;

/* start-up */
extern void LazyDropAdvisorDefineSettings(void);
extern Size LazyDropAdvisorShmemSize(void);
extern void LazyDropAdvisorShmemInit(void);
extern long LazyDropAdvisorStartWorker(long timeout_ms);
extern void LazyDropAdvisorMain(Datum arg);

/* statistics */
extern void LazyDropAdvisorGetStats(LazyDropAdviceStats *stats);
extern void LazyDropAdvisorGetVerdicts(int64 memory, LazyDropAdviceVerdict *verdicts);
extern int64 LazyDropAdvisorMemory(void);
extern void LazyDropAdvisorReset(void);
extern const char *LazyDropAdvisorShow(void);

/* droppers; may be in a critical section */
extern void LazyDropAdvisorDropped(SMgrRelation *rels, int nrels);
extern void LazyDropAdvisorTruncated(SMgrRelation rel, const ForkNumber *forknum,
									 int nforks, const BlockNumber *nblocks);

/* called by the functions below */
extern void LazyDropAdvisorNoteLookup(const BufferTag *tag, SMgrRelation smgr,
									  IOContext io_context);
extern void LazyDropAdvisorNoteMiss(const BufferTag *tag);
extern void LazyDropAdvisorNoteRecent(BufferTag *tag);
extern void LazyDropAdvisorNoteZeroed(SMgrRelation smgr, ForkNumber forknum,
									  BlockNumber block);
extern void LazyDropAdvisorNoteExtend(BufferTag *tag, IOContext io_context);
extern void LazyDropAdvisorNoteForget(const BufferTag *tag);

/*
 * A page is looked up; hash is the hash of its tag.
 */
static inline void
LazyDropAdvisorLookup(const BufferTag *tag, uint32 hash, SMgrRelation smgr,
					  IOContext io_context)
{
	if (unlikely(hash < lazydrop_advisor_threshold))
		LazyDropAdvisorNoteLookup(tag, smgr, io_context);
}

/*
 * The page that this process has looked up last had no buffer.
 */
static inline void
LazyDropAdvisorMiss(const BufferTag *tag, uint32 hash)
{
	if (unlikely(hash < lazydrop_advisor_threshold))
		LazyDropAdvisorNoteMiss(tag);
}

/*
 * A page was found without looking it up.
 */
static inline void
LazyDropAdvisorRecent(BufferTag *tag)
{
	if (unlikely(lazydrop_advisor_threshold != 0))
		LazyDropAdvisorNoteRecent(tag);
}

/*
 * The page that this process has looked up last is not to be read.
 */
static inline void
LazyDropAdvisorZeroed(SMgrRelation smgr, ForkNumber forknum, BlockNumber block)
{
	if (unlikely(lazydrop_advisor_threshold != 0))
		LazyDropAdvisorNoteZeroed(smgr, forknum, block);
}

/*
 * A page was added to a relation, whose extension lock has been released.
 */
static inline void
LazyDropAdvisorExtended(BufferTag *tag, IOContext io_context)
{
	if (unlikely(lazydrop_advisor_threshold != 0))
		LazyDropAdvisorNoteExtend(tag, io_context);
}

/*
 * A page that is no longer needed has lost its buffer.
 */
static inline void
LazyDropAdvisorForget(const BufferTag *tag, uint32 hash)
{
	if (unlikely(hash < lazydrop_advisor_threshold))
		LazyDropAdvisorNoteForget(tag);
}

#endif							/* LAZYDROP_ADVISOR_H */
