/*-------------------------------------------------------------------------
 *
 * lazydrop_internal.h
 *	  What the files of the lazy drop share with each other.
 *
 * Copyright (c) 2026, LazyDrop developers
 *
 * src/include/storage/lazydrop_internal.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef LAZYDROP_INTERNAL_H
#define LAZYDROP_INTERNAL_H

#include "lib/ilist.h"
#include "port/atomics.h"
#include "storage/condition_variable.h"
#include "storage/lwlock.h"
#include "storage/procnumber.h"
#include "storage/relfilelocator.h"

/*
 * A buried identity.  All forks of a relation share its entry.  An entry whose
 * relNumber is InvalidRelFileNumber stands for everything that a database has
 * in a tablespace.
 *
 * Protected by LazyDropShared->lock; changed under it in exclusive mode only.
 */
typedef struct LazyDropEntry
{
	dlist_node	node;			/* in ->pending or ->unused */
	int			next;			/* next entry of the bucket, or -1 */
	RelFileLocator locator;

	/*
	 * The pass that owns the entry, or 0.  Only an owner may delete the
	 * entry, and a pass acts on buffers of the entry only while it finds
	 * itself its owner (rule R5).
	 */
	uint32		owner;

	/* buried once more while it was owned: the owner must not delete it */
	bool		again;

	/* as LazyDropNow has it */
	int64		buried_at_ns;
	int64		owned_at_ns;
} LazyDropEntry;

/*
 * What a process is writing.  There is one for each process that has a PGPROC,
 * auxiliary processes included.  Only its owner writes it; it is read without a
 * lock by droppers (rule R1).
 */
typedef struct LazyDropAnnouncement
{
	/* odd while a write is under way; never the same for two writes in a row */
	pg_atomic_uint32 generation;
	RelFileLocator locator;
} LazyDropAnnouncement;

typedef union LazyDropAnnouncementPadded
{
	LazyDropAnnouncement announcement;
	char		pad[PG_CACHE_LINE_SIZE];
} LazyDropAnnouncementPadded;

typedef struct LazyDropShared
{
	/*
	 * Number of entries.  Changed under the lock, read without it by every
	 * writer of a buffer: so it has a cache line of its own.
	 */
	union
	{
		pg_atomic_uint32 value;
		char		pad[PG_CACHE_LINE_SIZE];
	}			npending;

	LWLock		lock;
	int			tranche_id;

	/* protected by the lock */
	dlist_head	pending;		/* in the order of their burial */
	dlist_head	unused;
	int			ndatabases;		/* of the pending ones */
	uint32		last_owner;

	/* constant after start-up */
	int			capacity;
	int			nbuckets;		/* a power of two */
	int			nannouncements;
	LazyDropEntry *entries;
	int		   *buckets;
	LazyDropAnnouncementPadded *announcements;

	uint32		wait_event_main;
	uint32		wait_event_gather;
	uint32		wait_event_settle;

	/* the worker's proc number, or INVALID_PROC_NUMBER */
	pg_atomic_uint32 worker;

	/* broadcast when entries have been deleted or given up */
	ConditionVariable settled_cv;

	/* counters, for lazydrop.stats */
	pg_atomic_uint64 passes;
	pg_atomic_uint64 headers_visited;
	pg_atomic_uint64 buffers_invalidated;
	pg_atomic_uint64 writes_skipped;
	pg_atomic_uint64 sync_fallbacks;
	pg_atomic_uint64 reuse_waits;
	pg_atomic_uint64 buried_relations;
	pg_atomic_uint64 buried_databases;
} LazyDropShared;

extern PGDLLIMPORT LazyDropShared *LazyDropCtl;

/* whether an entry is one that the caller is after */
typedef bool (*LazyDropMatch) (const RelFileLocator *locator, const void *arg);

/* settings */
extern PGDLLIMPORT bool lazydrop_enabled;
extern PGDLLIMPORT int lazydrop_max_pending;
extern PGDLLIMPORT int lazydrop_pass_delay;
extern PGDLLIMPORT bool lazydrop_log_passes;

/* lazydrop.c */
extern LazyDropEntry *LazyDropFindEntry(const RelFileLocator *locator);
extern int64 LazyDropNow(void);
extern uint32 LazyDropOwnEntries(int64 steal_before, LazyDropMatch matches,
								 const void *arg, RelFileLocator *locators,
								 int room, int *nlocators);
extern void LazyDropDisownEntries(uint32 owner);
extern void LazyDropDeleteEntries(uint32 owner, const RelFileLocator *locators,
								  int nlocators, int *nrelations,
								  int *ndatabases);
extern int	LazyDropCompareLocators(const void *a, const void *b);

/* lazydrop_pass.c */
extern bool LazyDropPass(int64 steal_before, LazyDropMatch matches,
						 const void *arg, bool no_oom);

/* lazydrop_worker.c */
extern PGDLLIMPORT bool am_lazydrop_worker;
extern void LazyDropWakeWorker(void);
extern bool LazyDropHaveWorker(void);
extern void LazyDropRegisterWorker(void);

/* whether nothing at all is pending; may be out of date at once */
static inline bool
LazyDropNothingPending(void)
{
	return pg_atomic_read_u32(&LazyDropCtl->npending.value) == 0;
}

#endif							/* LAZYDROP_INTERNAL_H */
