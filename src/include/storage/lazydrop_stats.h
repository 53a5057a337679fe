/*-------------------------------------------------------------------------
 *
 * lazydrop_stats.h
 *	  Statistics of the lazy drop, and its interface to contrib/pg_lazydrop.
 *
 * The extension is a module that must be loadable into a stock server as well,
 * to say there that it is of no use.  So it links to none of our symbols, but
 * asks for the rendezvous variable LAZYDROP_RENDEZVOUS, which points to a
 * LazyDropRoutines.
 *
 * Copyright (c) 2026, LazyDrop developers
 *
 * src/include/storage/lazydrop_stats.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef LAZYDROP_STATS_H
#define LAZYDROP_STATS_H

#include "datatype/timestamp.h"
#include "storage/relfilelocator.h"

/* configure, meson.build and src/tools/lazydrop/deb read this, too. */
#define LAZYDROP_VERSION	"1.0"

/*
 * Counters.  lazydrop_stats.c has the names under which they are shown, in the
 * same order.
 */
typedef enum LazyDropCounter
{
	LAZYDROP_DEFERRED_RELATIONS,
	LAZYDROP_DEFERRED_DATABASES,
	LAZYDROP_PASSES,
	LAZYDROP_HEADERS_VISITED,
	LAZYDROP_BUFFERS_INVALIDATED,
	LAZYDROP_WRITES_SKIPPED,
	LAZYDROP_SYNC_FALLBACKS,
	LAZYDROP_REUSE_WAITS,
	LAZYDROP_FILES_REMOVED,
	LAZYDROP_BYTES_REMOVED,
	LAZYDROP_CHECKPOINT_WAITS,
	LAZYDROP_CHECKPOINT_WAIT_TIME,
	LAZYDROP_HIDE_FAILURES,
	LAZYDROP_UNDEFERRED_REMOVALS,
	LAZYDROP_BLOCKS_LOOKED_UP,
} LazyDropCounter;

#define LAZYDROP_NUM_COUNTERS	(LAZYDROP_BLOCKS_LOOKED_UP + 1)

/* Times are counted in microseconds and shown in milliseconds. */
#define LAZYDROP_COUNTER_IS_TIME(counter) \
	((counter) == LAZYDROP_CHECKPOINT_WAIT_TIME)

/*
 * Contents of lazydrop.stats and pg_stat_lazydrop.
 */
typedef struct LazyDropStats
{
	const char *version;		/* LAZYDROP_VERSION of the server */

	/* Pending drops. */
	int			pending_relations;
	int			pending_databases;
	int			max_pending;
	int64		pending_files;	/* as far as known */
	int64		pending_bytes;
	int64		oldest_age_ms;	/* -1 when nothing is pending */
	int			worker_pid;		/* 0 when there is none */

	/* Since stats_reset. */
	int64		counters[LAZYDROP_NUM_COUNTERS];

	/* End of the last pass, or 0, and its results. */
	TimestampTz last_pass;
	double		last_pass_ms;
	int64		last_pass_headers;
	int64		last_pass_buffers;

	TimestampTz stats_reset;
} LazyDropStats;

/*
 * Contents of lazydrop.cache_stats and pg_stat_lazydrop_cache: state and
 * counters of the buffer cache's policy (see lazydrop_cache.h).
 */
typedef struct LazyDropCacheStats
{
	bool		scan_resistance;	/* the setting, in this process */
	int64		buffers;		/* shared_buffers */
	int64		main;			/* of these, in the main class */
	int64		main_classes;	/* the same, counted; with assertions only */
	int64		probation;		/* all others, free ones among them */
	int64		loads;			/* pages put into a buffer, without a ring */
	int64		ring_loads;		/* the same, with one */
	int64		free_loads;		/* of these, into a free buffer instead of the
								 * ring */
	int64		ghost_hits;		/* loads of recently evicted pages */
	int64		promotions;		/* from probation to main */
	int64		demotions;		/* from main to probation */
	int64		refusals;		/* pages that found no place in main */
	int64		evictions;		/* victims that the policy has chosen */
	int64		fallbacks;		/* searches that it left to the clock sweep */
	TimestampTz stats_reset;
} LazyDropCacheStats;

/*
 * What an entry waits for.  contrib/pg_lazydrop has the texts, in the same order.
 */
typedef enum LazyDropWait
{
	LAZYDROP_WAIT_DELAY,		/* a pass, which is not due yet */
	LAZYDROP_WAIT_PASS,			/* a pass that is under way */
	LAZYDROP_WAIT_PIN,			/* a pin of one of its buffers */
	LAZYDROP_WAIT_DROPPER,		/* the process that dropped it */
	LAZYDROP_WAIT_PROCESSES,	/* a barrier or the checkpointer (rule R11) */
	LAZYDROP_WAIT_HIDING,		/* files that are being renamed */
	LAZYDROP_WAIT_REMOVAL,		/* files that are being removed */
	LAZYDROP_WAIT_RETRY,		/* files that could not be removed */
	LAZYDROP_WAIT_WORKER,		/* the worker, which does other work */
	LAZYDROP_WAIT_NO_WORKER,	/* the worker, and there is none */
} LazyDropWait;

#define LAZYDROP_NUM_WAITS	(LAZYDROP_WAIT_NO_WORKER + 1)

/*
 * A row of pg_lazydrop_pending.
 */
typedef struct LazyDropPending
{
	/* without a relNumber, a database's directory in a tablespace */
	RelFileLocator locator;
	TimestampTz since;
	bool		buffers_done;
	bool		files_done;
	int			files;			/* files left, as far as known */
	int64		bytes;
	LazyDropWait wait;
	int			pid;			/* of the process that it waits for, or 0 */
	int			failures;		/* of removals, in a row */
	TimestampTz next_attempt;	/* or 0 */
} LazyDropPending;

#define LAZYDROP_RENDEZVOUS	"LazyDrop"

/* Increased when a struct or the behavior of a function changes. */
#define LAZYDROP_ROUTINES_VERSION	9

/* of lazydrop_advisor.h */
struct LazyDropAdviceStats;
struct LazyDropAdviceVerdict;

typedef struct LazyDropRoutines
{
	int			version;
	void		(*get_stats) (LazyDropStats *stats);
	void		(*get_cache_stats) (LazyDropCacheStats *stats);
	LazyDropPending *(*get_pending) (int *npending);
	bool		(*drain) (int64 timeout_ms);
	void		(*reset_stats) (void);
	void		(*reset_advice) (void);
	int64		(*get_memory) (void);
	void		(*get_verdicts) (int64 memory, struct LazyDropAdviceVerdict *verdicts);
	void		(*get_advice) (struct LazyDropAdviceStats *stats);
} LazyDropRoutines;

extern void LazyDropGetStats(LazyDropStats *stats);
extern LazyDropPending *LazyDropGetPending(int *npending);
extern void LazyDropResetStats(void);
extern const char *LazyDropShowStats(void);
extern void LazyDropPublishRoutines(void);

#endif							/* LAZYDROP_STATS_H */
