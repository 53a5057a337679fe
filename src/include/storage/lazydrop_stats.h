/*-------------------------------------------------------------------------
 *
 * lazydrop_stats.h
 *	  What the lazy drop tells of itself, and the door for contrib/pg_lazydrop.
 *
 * The extension is a module that must be loadable into a stock server as well, to
 * say there that it is of no use.  So it links to none of our symbols, but asks for
 * the rendezvous variable LAZYDROP_RENDEZVOUS, which points to a LazyDropRoutines.
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

/* configure, meson.build and src/tools/lazydrop/deb read it as well */
#define LAZYDROP_VERSION	"1.0"

/*
 * All that lazydrop.stats and pg_stat_lazydrop show.
 */
typedef struct LazyDropStats
{
	const char *version;		/* LAZYDROP_VERSION of the server */

	/* what is pending now */
	int			pending_relations;
	int			pending_databases;
	int			max_pending;
	int64		pending_files;	/* as far as it is known */
	int64		pending_bytes;
	int64		oldest_age_ms;	/* -1 when nothing is pending */
	int			worker_pid;		/* 0 when there is none */

	/* since stats_reset */
	int64		deferred_relations;
	int64		deferred_databases;
	int64		passes;
	int64		headers_visited;
	int64		buffers_invalidated;
	int64		writes_skipped;
	int64		sync_fallbacks;
	int64		reuse_waits;
	int64		files_removed;
	int64		bytes_removed;
	int64		checkpoint_waits;
	double		checkpoint_wait_ms;
	int64		hide_failures;
	int64		undeferred_removals;

	/* the last pass; last_pass is when it ended, or 0 */
	TimestampTz last_pass;
	double		last_pass_ms;
	int64		last_pass_headers;
	int64		last_pass_buffers;

	TimestampTz stats_reset;
} LazyDropStats;

/*
 * What the buffer cache's policy has and has done (see lazydrop_cache.h): all that
 * lazydrop.cache_stats and pg_stat_lazydrop_cache show.
 */
typedef struct LazyDropCacheStats
{
	const char *scan_resistance;	/* the setting, in this process */
	int64		buffers;		/* shared_buffers */
	int64		main;			/* of these, in the main class */
	int64		probation;		/* all others, free ones among them */
	int64		loads;			/* pages put into a buffer, without a ring */
	int64		ring_loads;		/* the same, with one */
	int64		free_loads;		/* of these, into a free buffer instead of the
								 * ring */
	int64		bulk_loads;		/* of loads, by transactions that read much */
	int64		ghost_hits;		/* loads of what had been evicted recently */
	int64		promotions;		/* from probation to main */
	int64		demotions;		/* from main to probation */
	int64		resets;			/* usage counts set back after a burst of pins */
	int64		evictions;		/* victims that the policy has chosen */
	int64		fallbacks;		/* searches that it left to the clock sweep */
	TimestampTz stats_reset;
} LazyDropCacheStats;

/*
 * An entry, as pg_lazydrop_pending shows it.
 */
typedef struct LazyDropPending
{
	/* without a relNumber: all that a database has in the tablespace */
	RelFileLocator locator;
	TimestampTz since;
	bool		buffers_done;
	bool		files_done;
	int			files;			/* what is left, as far as it is known */
	int64		bytes;
} LazyDropPending;

#define LAZYDROP_RENDEZVOUS	"LazyDrop"

/* to be raised when one of the structs changes, or what a function does */
#define LAZYDROP_ROUTINES_VERSION	4

typedef struct LazyDropRoutines
{
	int			version;
	void		(*get_stats) (LazyDropStats *stats);
	void		(*get_cache_stats) (LazyDropCacheStats *stats);
	LazyDropPending *(*get_pending) (int *npending);
	bool		(*drain) (int64 timeout_ms);
	void		(*reset_stats) (void);
	void		(*reset_advice) (void);
} LazyDropRoutines;

extern void LazyDropGetStats(LazyDropStats *stats);
extern LazyDropPending *LazyDropGetPending(int *npending);
extern void LazyDropResetStats(void);
extern const char *LazyDropShowStats(void);
extern const char *LazyDropShowCacheStats(void);
extern void LazyDropPublishRoutines(void);

#endif							/* LAZYDROP_STATS_H */
