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

#include "access/xact.h"
#include "access/xlogdefs.h"
#include "common/relpath.h"
#include "datatype/timestamp.h"
#include "lib/ilist.h"
#include "port/atomics.h"
#include "storage/condition_variable.h"
#include "storage/lazydrop_compat.h"
#include "storage/lwlock.h"
#include "storage/procnumber.h"
#include "storage/relfilelocator.h"
#include "storage/sync.h"

/*
 * What is left to do about the files of an entry.
 */
typedef enum LazyDropFiles
{
	/* nothing: they are gone, or their removal is not ours */
	LAZYDROP_FILES_NONE,
	/* the dropper is about to forget their sync requests: leave them alone */
	LAZYDROP_FILES_BURIED,

	/*
	 * the dropper waits for reads, or the entry for other processes: only a
	 * process that must not wait hides or removes them
	 */
	LAZYDROP_FILES_FORGOTTEN,
	/* to be removed by any process */
	LAZYDROP_FILES_READY,
} LazyDropFiles;

/*
 * A buried identity.  All forks of a relation share its entry.  An entry whose
 * relNumber is InvalidRelFileNumber stands for everything that a database has
 * in a tablespace.  The entry stays until its buffers are invalidated, its files
 * are removed as far as that is deferred, and no process is at them.
 *
 * Protected by LazyDropShared->lock; changed under it in exclusive mode only.
 */
typedef struct LazyDropEntry
{
	dlist_node	node;			/* in ->pending or ->unused */
	int			next;			/* next entry of the bucket, or -1 */
	RelFileLocator locator;

	/* different for each burial; 0 when the entry is not in use */
	uint64		serial;

	/*
	 * that of the first burial, and when that was, as LazyDropNow has it: the
	 * entry may have been buried again since then, while it was pending
	 */
	uint64		first_serial;
	int64		buried_at_ns;

	/* there may be buffers */
	bool		buffers;

	/*
	 * A pass has invalidated its buffers while it had files, from which there
	 * may be others by now: one more pass when the files are gone (rule R5).
	 */
	bool		passed;

	/*
	 * The pass that owns the entry, or 0, and its process.  A pass acts on
	 * buffers of the entry only while it finds itself its owner (rule R5).
	 */
	uint32		owner;
	ProcNumber	owner_proc;

	/* it had files when its owner took it */
	bool		had_files;

	/* buried once more since its owner took it */
	bool		buried_again;

	/*
	 * A buffer of it stays pinned, the owner has found, or the last one has.
	 * The owner sets this with the lock in shared mode.
	 */
	bool		pinned;

	LazyDropFiles files;
	/* in ->removals or ->hidden_removals, while there is something */
	dlist_node	files_node;

	/*
	 * the first segment of the main fork is shrunk, but unlinked by a
	 * checkpoint
	 */
	bool		keep_first;

	/*
	 * Hidden files (rule R8).  nhidden: number of names given so far.
	 * hidden: all files have such names.  hiding: a process is renaming them;
	 * while set, no step may begin.
	 */
	int			nhidden;
	bool		hidden;
	bool		hiding;

	/*
	 * A base backup may have left out segments in the middle, so those behind
	 * a gap are looked for (rule R14).
	 */
	bool		gaps;

	/* number of attempts that have failed, and when to try again, or 0 */
	int			nfailures;
	int64		retry_at_ns;

	/* processes that are in a system call on one of the files (rule R5) */
	int			nbusy;

	/* the process that is to advance "files", unless "barrier" is set */
	ProcNumber	dropper;

	/*
	 * A database's entry waits (rule R11) until all processes have taken part
	 * in this generation of barriers, and the checkpointer has absorbed sync
	 * requests this many times.  Until then, it is not deleted, and its files
	 * are not LAZYDROP_FILES_READY.  Both are 0 if it waits for nothing.
	 */
	uint64		barrier;
	uint64		absorptions;

	/* end of the WAL record that drops it, or invalid in recovery */
	XLogRecPtr	lsn;

	/* what is left, when that has been looked at */
	bool		measured;
	int			nfiles;
	uint64		bytes;
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

	/*
	 * when a pass of this process has got on last, as LazyDropNow has it;
	 * read by processes that would take entries from it (rule R5)
	 */
	pg_atomic_uint64 heartbeat;
} LazyDropAnnouncement;

typedef union LazyDropAnnouncementPadded
{
	LazyDropAnnouncement announcement;
	char		pad[PG_CACHE_LINE_SIZE];
} LazyDropAnnouncementPadded;

/* Databases share these slots; a power of two. */
#define LAZYDROP_RELMAP_SLOTS	64

typedef struct LazyDropShared
{
	/*
	 * Number of entries that may have buffers.  Changed under the lock, read
	 * without it by every pass and by each dropper that makes room.
	 */
	union
	{
		pg_atomic_uint32 value;
		char		pad[PG_CACHE_LINE_SIZE];
	}			nburied;

	/*
	 * number of all entries, and of those with a barrier; changed under the
	 * lock, read without it
	 */
	pg_atomic_uint32 npending;
	pg_atomic_uint32 nwaiting;

	LWLock		lock;
	int			tranche_id;

	/* protected by the lock */
	dlist_head	pending;		/* in the order of their first burial */
	dlist_head	removals;		/* those with files, by serial number, */
	dlist_head	hidden_removals;	/* but for hidden ones (rule R8), which
									 * are in no order */
	dlist_head	unused;
	int			ndatabases;		/* of the pending ones */
	uint32		last_owner;
	uint64		last_serial;
	/* entries up to this one do not wait for lazydrop.pass_delay */
	uint64		drain_serial;

	/* the last pass that was complete, and when it was so, or 0 */
	TimestampTz last_pass;
	int64		last_pass_us;
	int64		last_pass_buffers;

	TimestampTz stats_reset;

	/*
	 * Constant after start-up.  start_serial is the last serial number before
	 * this start of the server: later ones are different from those of other
	 * starts, because hidden files have them in their names (rule R8).
	 */
	uint64		start_serial;
	int			capacity;
	int			relation_shift;
	int			database_shift;
	int			nannouncements;
	LazyDropEntry *entries;

	/*
	 * The first entry of each bucket, or -1.  Changed under the lock, read
	 * without it by writers.  Those of databases are apart, because each
	 * writer looks at that of its own.
	 */
	int		   *relation_buckets;
	int		   *database_buckets;
	LazyDropAnnouncementPadded *announcements;

	uint32		wait_event_main;
	uint32		wait_event_gather;
	uint32		wait_event_throttle;
	uint32		wait_event_write;
	uint32		wait_event_forget;
	uint32		wait_event_reuse;
	uint32		wait_event_checkpoint;
	uint32		wait_event_settle;
	uint32		wait_event_drain;
	uint32		wait_event_restartpoint;

	/* the worker's proc number, or INVALID_PROC_NUMBER */
	pg_atomic_uint32 worker;

	/*
	 * how often the checkpointer has absorbed sync requests, and its
	 * broadcast
	 */
	pg_atomic_uint64 absorptions;
	ConditionVariable absorbed_cv;

	/* number of checkpoints and restartpoints that have failed (rule R17) */
	pg_atomic_uint64 failed_checkpoints;

	/*
	 * For rule R11: the last record of a relation map that replay might meet
	 * before one that makes the database's directory, by database OID, some
	 * of them together
	 */
	pg_atomic_uint64 relmap_records[LAZYDROP_RELMAP_SLOTS];

	/* broadcast when something about an entry has been done or given up */
	ConditionVariable settled_cv;

	/*
	 * bytes that removals have freed, for processes that look for space; some
	 * may be counted twice
	 */
	pg_atomic_uint64 bytes_freed;

	/* counters, for lazydrop.stats: set to zero under the lock */
	pg_atomic_uint64 passes;
	pg_atomic_uint64 buffers_invalidated;
	pg_atomic_uint64 writes_skipped;
	pg_atomic_uint64 sync_fallbacks;
	pg_atomic_uint64 reuse_waits;
	pg_atomic_uint64 deferred_relations;
	pg_atomic_uint64 deferred_databases;
	pg_atomic_uint64 files_removed;
	pg_atomic_uint64 bytes_removed;
	pg_atomic_uint64 checkpoint_waits;
	pg_atomic_uint64 checkpoint_wait_us;
	pg_atomic_uint64 hide_failures;
	pg_atomic_uint64 undeferred_removals;
} LazyDropShared;

extern PGDLLIMPORT LazyDropShared *LazyDropCtl;

/* whether an entry is one that the caller is after */
typedef bool (*LazyDropMatch) (const RelFileLocator *locator, const void *arg);

/*
 * What a process needs to know of an entry whose files it removes.
 */
typedef struct LazyDropJob
{
	LazyDropEntry *entry;
	uint64		serial;
	uint64		first_serial;
	RelFileLocator locator;
	bool		keep_first;
	bool		gaps;
	bool		measured;
	int			nfailures;
	bool		hidden;
	int			nhidden;
} LazyDropJob;

/*
 * Called between two steps of a removal, without locks, with the bytes that the
 * last one gave back.  Returns false to stop.
 */
typedef bool (*LazyDropPause) (uint64 bytes);

/* room for a relation's path and a segment number, or that of a hidden file */
typedef struct LazyDropPath
{
	char		str[sizeof(RelPathStr) + 96];
} LazyDropPath;

/* A file is shrunk in steps of at least this many bytes (rule R14). */
#define LAZYDROP_MIN_STEP_BYTES	((uint64) 1024 * 1024)

/*
 * The directories in which a tablespace has hidden files, and the name of the
 * second one, where no database can be (lazydrop_paths.c).
 */
#define LAZYDROP_HIDDEN_DIRECTORIES	2
#define LAZYDROP_NO_DATABASE	"0"

/*
 * The files of src/backend/storage/lazydrop, from the bottom up: each calls only those
 * before it.
 */

/* lazydrop_set.c */
extern PGDLLIMPORT bool am_lazydrop_worker;
extern LazyDropEntry *LazyDropFindEntry(const RelFileLocator *locator);
extern LazyDropEntry *LazyDropFindBurial(const RelFileLocator *locator);
extern bool LazyDropIsBuried(const RelFileLocator *locator);
extern void LazyDropSetBuffers(LazyDropEntry *entry, bool buffers);
extern void LazyDropSetFiles(LazyDropEntry *entry, LazyDropFiles files);
extern void LazyDropSetHidden(LazyDropEntry *entry, int nhidden);
extern bool LazyDropAddEntry(const RelFileLocator *locator, LazyDropFiles files,
							 XLogRecPtr lsn, int64 now);
extern bool LazyDropDeleteIfDone(LazyDropEntry *entry);
extern void LazyDropRequestsForgotten(const RelFileLocator *locators, int n,
									  bool keep_first, uint64 barrier,
									  uint64 absorptions);
extern void LazyDropReadsDone(const RelFileLocator *locators, int n);
extern bool LazyDropAdvanceWaiting(void);
extern void LazyDropSetJob(LazyDropJob *job, LazyDropEntry *entry);
extern int	LazyDropFindJobs(LazyDropFiles least, bool visible,
							 uint64 first_serial, uint64 last_serial,
							 LazyDropMatch matches, const void *arg,
							 LazyDropJob *jobs, int njobs);
extern bool LazyDropFindOldestJob(uint64 first_serial, LazyDropJob *job);
extern bool LazyDropFindJob(const RelFileLocator *locator, LazyDropJob *job);
extern bool LazyDropBeginStep(const LazyDropJob *job);
extern void LazyDropEndStep(const LazyDropJob *job, int nfiles, uint64 bytes,
							bool done);
extern int64 LazyDropNow(void);
extern int	LazyDropCompareLocators(const void *a, const void *b);
extern bool LazyDropIsAmong(const RelFileLocator *relation,
							const RelFileLocator *sorted, int n);
extern bool LazyDropHaveWorker(void);
extern void LazyDropWakeWorker(void);

/* lazydrop_write.c */
extern void LazyDropSleepForOther(long microseconds);
extern void LazyDropWaitForWriters(const RelFileLocator *sorted, int n);
extern void LazyDropWaitForReads(const RelFileLocator *sorted, int n);
extern void LazyDropWaitForIO(const RelFileLocator *sorted, int n);

/* lazydrop_pass.c */
extern PGDLLIMPORT bool lazydrop_log_passes;
extern bool LazyDropPass(int64 steal_before, LazyDropMatch matches,
						 const void *arg);
extern bool LazyDropConflictWithPin(void);

/* lazydrop_paths.c */
extern void LazyDropSegmentPath(LazyDropPath *path, const RelPathStr *first,
								uint64 segno);
extern void LazyDropTablespacePath(LazyDropPath *path, Oid spcoid);
extern void LazyDropHiddenDirectory(LazyDropPath *path, Oid spcoid, int which);
extern void LazyDropFindHidden(LazyDropPath *path, const LazyDropJob *job, int n);
extern bool LazyDropParseHidden(const char *name, uint64 *serial, int *n);
extern bool LazyDropIsLeftover(const char *name);
extern void LazyDropDirectoryPath(LazyDropPath *path, const LazyDropJob *job);
extern uint64 LazyDropCountSegments(const RelPathStr *first, bool gaps);
extern uint64 LazyDropFileSize(const LazyDropPath *path);
extern bool LazyDropHideFile(const LazyDropJob *job, const char *path, int *nhidden);
extern bool LazyDropUnhideFile(const LazyDropJob *job, const char *path, int *nhidden);
extern void LazyDropMeasure(const LazyDropJob *job);
extern void LazyDropMeasureAll(void);

/* lazydrop_removal.c */
extern PGDLLIMPORT int lazydrop_removal_rate;
extern PGDLLIMPORT uint64 lazydrop_freed_bytes;
extern PGDLLIMPORT int lazydrop_complaint_level;
extern void LazyDropCountFreed(uint64 bytes);
struct stat;
extern bool LazyDropMayTruncate(const LazyDropJob *job, const struct stat *st);
extern bool LazyDropRemoveFile(const LazyDropJob *job, const char *path, uint64 size,
							   bool keep, LazyDropPause pause, bool *failed);
extern void LazyDropRemoveDatabaseDirectory(Oid spcoid, Oid dboid);
extern void LazyDropRemoveFiles(const LazyDropJob *job, LazyDropPause pause);

/* lazydrop_space.c */
extern PGDLLIMPORT int lazydrop_min_free_space;
extern bool LazyDropDirectoryIsFull(const char *path);
extern bool LazyDropSpaceIsShort(Oid spcoid);

/* lazydrop_hide.c */
extern bool LazyDropHideFiles(const LazyDropJob *job);
extern bool LazyDropHideOrRemove(LazyDropJob *job, LazyDropPause pause);

/* lazydrop_leftover.c */
extern PGDLLIMPORT bool lazydrop_worker_registered;
extern bool LazyDropFindLeftoversIn(Oid spcoid);
extern bool LazyDropFindLeftovers(void);

/* lazydrop_bury.c */
extern PGDLLIMPORT bool lazydrop_enabled;
extern PGDLLIMPORT bool lazydrop_defer_files;
extern bool LazyDropMayBury(int n);
extern LazyDropFiles LazyDropFilesOfBurial(const RelFileLocator *locators, int n,
										   XLogRecPtr durable);
extern bool LazyDropAddEntries(const RelFileLocator *locators, int n,
							   LazyDropFiles files, int nfiles, XLogRecPtr lsn);
extern void LazyDropGiveUpFiles(void);
extern void LazyDropRequestForFile(SyncRequestType type, const RelFileLocator *locator,
								   ForkNumber forknum, uint64 segno);

/* lazydrop_relation.c, lazydrop_database.c */
extern PGDLLIMPORT int lazydrop_scan_limit;
extern void LazyDropRelationXactCallback(XactEvent event, void *arg);
extern void LazyDropDatabaseXactCallback(XactEvent event, void *arg);
extern void LazyDropForgetDirectorySyncRequests(Oid spcoid, Oid dboid);

/* lazydrop_worker.c, lazydrop_init.c */
extern PGDLLIMPORT int lazydrop_pass_delay;
extern PGDLLIMPORT int lazydrop_max_pending;
extern void LazyDropRegisterWorker(void);

/*
 * Where an entry would be that buries a relation, and where one that buries its database
 * in its tablespace.  Multiplicative hashing: the high bits are good.  Of both kinds there
 * are many more buckets than entries, so that an empty one, which a writer finds without
 * the lock, is what there is to be seen (rule R1).
 */
static inline uint32
LazyDropHashOfDatabase(const RelFileLocator *locator)
{
	return locator->dbOid * (uint32) 0x9E3779B1 +
		locator->spcOid * (uint32) 0x85EBCA6B;
}

static inline int *
LazyDropDatabaseBucket(const RelFileLocator *locator)
{
	return &LazyDropCtl->database_buckets[LazyDropHashOfDatabase(locator) >>
										  LazyDropCtl->database_shift];
}

static inline int *
LazyDropRelationBucket(const RelFileLocator *locator)
{
	return &LazyDropCtl->relation_buckets[(LazyDropHashOfDatabase(locator) +
										   locator->relNumber * (uint32) 0xC2B2AE3D) >>
										  LazyDropCtl->relation_shift];
}

static inline int *
LazyDropBucketOf(const RelFileLocator *locator)
{
	return RelFileNumberIsValid(locator->relNumber) ?
		LazyDropRelationBucket(locator) : LazyDropDatabaseBucket(locator);
}

/*
 * Whether an entry is for what earlier runs of the server have hidden in a
 * tablespace.  It has no buffers, and is hidden.
 */
static inline bool
LazyDropIsForLeftovers(const RelFileLocator *locator)
{
	return !OidIsValid(locator->dbOid) && !RelFileNumberIsValid(locator->relNumber);
}

/* whether a bucket has no entry, read without the lock */
static inline bool
LazyDropBucketIsEmpty(const int *bucket)
{
	return *(const volatile int *) bucket < 0;
}

/*
 * Whether an entry's files are gone for good: nothing can be read into a buffer from
 * them any more.  The caller holds the lock.
 */
static inline bool
LazyDropFilesAreGone(const LazyDropEntry *entry)
{
	return entry->files == LAZYDROP_FILES_NONE && entry->nbusy == 0;
}

/*
 * Whether a pass can become the owner of an entry: there is something for it to do, and
 * the entry has no owner, or one that has not got on since "steal_before".  The caller
 * holds the lock.
 */
static inline bool
LazyDropCanOwn(const LazyDropEntry *entry, int64 steal_before)
{
	LazyDropAnnouncement *owner;

	if (!entry->buffers || (entry->passed && !LazyDropFilesAreGone(entry)))
		return false;
	if (entry->owner == 0)
		return true;
	owner = &LazyDropCtl->announcements[entry->owner_proc].announcement;
	return (int64) pg_atomic_read_u64(&owner->heartbeat) < steal_before;
}

/* whether nothing at all is pending; may be out of date at once */
static inline bool
LazyDropNothingPending(void)
{
	return pg_atomic_read_u32(&LazyDropCtl->npending) == 0;
}

/* whether there is no buffer that must not be written; the same */
static inline bool
LazyDropNothingBuried(void)
{
	return pg_atomic_read_u32(&LazyDropCtl->nburied.value) == 0;
}

#endif							/* LAZYDROP_INTERNAL_H */
