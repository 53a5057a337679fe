/*-------------------------------------------------------------------------
 *
 * lazydrop_internal.h
 *	  Declarations shared by the files of src/backend/storage/lazydrop.
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
#include "storage/lazydrop_common.h"
#include "storage/lazydrop_compat.h"
#include "storage/lazydrop_stats.h"
#include "storage/lwlock.h"
#include "storage/procnumber.h"
#include "storage/relfilelocator.h"
#include "storage/sync.h"

/*
 * State of the files of an entry.  A process that must not wait, such as a
 * checkpoint, hides or removes them from LAZYDROP_FILES_FORGOTTEN on, any other
 * one only if they are LAZYDROP_FILES_READY.
 */
typedef enum LazyDropFiles
{
	/* There are none, or another process removes them as stock does. */
	LAZYDROP_FILES_NONE,
	/* The dropper has not forgotten their sync requests yet. */
	LAZYDROP_FILES_BURIED,
	/* The dropper waits for reads, or the entry for other processes. */
	LAZYDROP_FILES_FORGOTTEN,
	/* Any process may remove them. */
	LAZYDROP_FILES_READY,
} LazyDropFiles;

/*
 * State of the buffers of an entry.
 */
typedef enum LazyDropBuffers
{
	/* There are none. */
	LAZYDROP_BUFFERS_NONE,
	/* There may be some. */
	LAZYDROP_BUFFERS_BURIED,

	/*
	 * A pass has invalidated them while the entry had files.  More may have
	 * been read since, so another pass is needed when the files are gone
	 * (rule R5).
	 */
	LAZYDROP_BUFFERS_PASSED,
} LazyDropBuffers;

/*
 * Names under which the files of an entry are found (rule R8).
 */
typedef enum LazyDropNames
{
	/* Some or all files have their own names. */
	LAZYDROP_NAMES_OWN,
	/* A process is renaming them.  No step may begin. */
	LAZYDROP_NAMES_CHANGING,
	/* All have been renamed. */
	LAZYDROP_NAMES_HIDDEN,
} LazyDropNames;

/*
 * A buried identity.  All forks of a relation share its entry.  An entry
 * without a relNumber stands for everything that a database has in a
 * tablespace; one without a dbOid, too, stands for the files that earlier runs
 * of the server have hidden there.  An entry is deleted when its buffers are
 * invalidated, its files are removed, no process is in a step, and it does not
 * wait for other processes.
 *
 * Protected by LazyDropShared->lock.  Only lazydrop_set.c changes an entry,
 * with the lock in exclusive mode, except where noted.
 */
typedef struct LazyDropEntry
{
	dlist_node	node;			/* in ->pending or ->unused */
	dlist_node	files_node;		/* in ->removals or ->hidden_removals, unless
								 * files is LAZYDROP_FILES_NONE */
	int			next;			/* next entry of the bucket, or -1 */
	RelFileLocator locator;

	/*
	 * Serial number of the last burial, or 0 if the entry is not in use.  The
	 * identity may be buried again while the entry is pending.
	 */
	uint64		serial;

	/* Serial number of the first burial, and its time (LazyDropNow). */
	uint64		first_serial;
	int64		buried_at_ns;

	/* End of the WAL record of the drop, or invalid in recovery. */
	XLogRecPtr	lsn;

	LazyDropBuffers buffers;

	/*
	 * Number of the pass that owns the entry, or 0, and its process.  A pass
	 * invalidates buffers of the entry only while it is the owner (rule R5).
	 */
	uint32		owner;
	ProcNumber	owner_proc;

	/* Did the entry have files when the owner took it? */
	bool		had_files;

	/* Has the identity been buried again since the owner took the entry? */
	bool		buried_again;

	/*
	 * The current owner, or the last one, found one of the buffers pinned.
	 * The owner sets this with the lock in shared mode.
	 */
	bool		pinned;

	LazyDropFiles files;

	/*
	 * Process that dropped it.  It advances "files" up to
	 * LAZYDROP_FILES_READY, unless "barrier" is set.
	 */
	ProcNumber	dropper;

	/*
	 * A database's entry waits until all processes have absorbed this
	 * generation of barriers, and the checkpointer has absorbed sync requests
	 * this many times (rule R11).  Both are 0 if the entry does not wait.
	 */
	uint64		barrier;
	uint64		absorptions;

	/*
	 * If set, the first segment of the main fork is only truncated, and is
	 * unlinked after the next checkpoint.
	 */
	bool		keep_first;

	/*
	 * If set, segments behind a missing one are looked for.  A base backup
	 * may have copied some of the segments only (rule R14).
	 */
	bool		gaps;

	/* State of the names, and number of renamed files (rule R8). */
	LazyDropNames names;
	int			nhidden;

	/*
	 * Has a process tried in vain to rename and to remove all files, since
	 * LazyDropRetryHiding?
	 */
	bool		hide_failed;

	/* Number of processes that are in a system call on a file (rule R5). */
	int			nbusy;

	/* Number of failed removals, and time of the next one, or 0. */
	int			nfailures;
	int64		retry_at_ns;

	/*
	 * Number of blocks of each fork before any file has been touched, if
	 * known.  Blocks of an earlier burial may be others, so if the identity
	 * has been buried again, they are not looked up (rule R18).
	 */
	bool		sized;
	bool		look_up;
	BlockNumber nblocks[MAX_FORKNUM + 1];

	/* Number and total size of the files that are left, once measured. */
	bool		measured;
	int			nfiles;
	uint64		bytes;
} LazyDropEntry;

/*
 * Announcement of a write.  Each PGPROC has one, also in auxiliary processes.
 * Only its owner writes it.  Droppers read it without a lock (rule R1).
 */
typedef struct LazyDropAnnouncement
{
	/* Odd during a write.  It differs from one write to the next. */
	pg_atomic_uint32 generation;
	RelFileLocator locator;

	/*
	 * Time at which a pass of this process last made progress (LazyDropNow).
	 * Other processes read it before they take over its entries (rule R5).
	 */
	pg_atomic_uint64 heartbeat;
} LazyDropAnnouncement;

typedef union LazyDropAnnouncementPadded
{
	LazyDropAnnouncement announcement;
	char		pad[PG_CACHE_LINE_SIZE];
} LazyDropAnnouncementPadded;

typedef struct LazyDropShared
{
	/*
	 * Number of entries that may have buffers.  Changed with the lock held in
	 * exclusive mode, and read without it.
	 */
	union
	{
		pg_atomic_uint32 value;
		char		pad[PG_CACHE_LINE_SIZE];
	}			nburied;

	/* Number of entries, and of those with a barrier.  The same applies. */
	pg_atomic_uint32 npending;
	pg_atomic_uint32 nwaiting;

	/* Protects all entries, the buckets, and the fields up to stats_reset. */
	LWLock		lock;
	int			tranche_id;

	dlist_head	pending;		/* all entries, by first_serial */
	dlist_head	removals;		/* entries with files, by serial */
	dlist_head	hidden_removals;	/* the same, if names are hidden */
	dlist_head	unused;
	int			ndatabases;		/* number of pending databases */
	uint32		last_owner;
	uint64		last_serial;
	uint64		drain_serial;	/* entries up to this one do not wait for
								 * lazydrop.pass_delay */

	/* End, duration and result of the last complete pass, or 0. */
	TimestampTz last_pass;
	int64		last_pass_us;
	int64		last_pass_buffers;

	TimestampTz stats_reset;

	/*
	 * Constant after startup.  start_serial is the last serial number before
	 * this start of the server.  Names of hidden files contain serial
	 * numbers, so no start may use the numbers of an earlier one (rule R8).
	 */
	uint64		start_serial;
	int			capacity;
	int			relation_shift;
	int			database_shift;
	int			nannouncements;
	LazyDropEntry *entries;

	/*
	 * First entry of each bucket, or -1.  Changed with the lock held, and
	 * read without it by writers, who look up a relation and its database.
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

	/* Number of the worker's PGPROC, or INVALID_PROC_NUMBER. */
	pg_atomic_uint32 worker;

	/* Number of times the checkpointer has absorbed sync requests. */
	pg_atomic_uint64 absorptions;
	ConditionVariable absorbed_cv;

	/* Number of failed checkpoints and restartpoints (rule R17). */
	pg_atomic_uint64 failed_checkpoints;

	/*
	 * Position of the last record of a relation map that replay might find
	 * without the directory of its database (rule R11).
	 */
	pg_atomic_uint64 last_relmap_record;

	/* Broadcast when an entry has changed in a way that others wait for. */
	ConditionVariable settled_cv;

	/*
	 * Number of bytes that removals have freed, for processes that wait for
	 * space.  Bytes may be counted twice but are never missed.
	 */
	pg_atomic_uint64 bytes_freed;

	/*
	 * Time of the last report that a drop was not deferred (LazyDropNow), or
	 * 0.
	 */
	pg_atomic_uint64 reported_fallback_ns;

	/* For lazydrop.stats.  Set to zero with the lock held. */
	pg_atomic_uint64 counters[LAZYDROP_NUM_COUNTERS];
} LazyDropShared;

extern PGDLLIMPORT LazyDropShared *LazyDropCtl;

/* Returns whether the caller wants this entry. */
typedef bool (*LazyDropMatch) (const RelFileLocator *locator, const void *arg);

/*
 * Called with the lock held for each entry that a pass may become the owner of.
 * Returns whether it does.
 */
typedef bool (*LazyDropOwned) (LazyDropEntry *entry, void *arg);

/* Work that the worker has to do for buffers. */
typedef enum LazyDropWork
{
	LAZYDROP_WORK_NONE,
	LAZYDROP_WORK_LOOK_UP,
	LAZYDROP_WORK_PASS,			/* which includes to look up buffers */
} LazyDropWork;

/* When the worker may do that at the earliest (LazyDropNow). */
typedef struct LazyDropSchedule
{
	/* next pass, which depends on the cost of the last one */
	int64		pass_at;

	/* next attempt for entries with a pinned buffer */
	int64		retry_pass_at;
	int64		retry_lookup_at;
} LazyDropSchedule;

/*
 * Copy of the fields of an entry that a process needs to remove its files
 * without the lock.
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
	bool		sized;
	int			nfailures;
	bool		hidden;
	int			nhidden;
} LazyDropJob;

/*
 * Conditions for a search of entries with files.
 */
typedef struct LazyDropFilter
{
	/* Files must have reached this state. */
	LazyDropFiles least;

	/*
	 * If set, search only for files to be hidden: those with their own names,
	 * unless hide_failed is set.  Also those whose removal has failed and
	 * will be tried again later.
	 */
	bool		to_hide;

	/* Range of serial numbers.  Without last_serial, there is no upper limit. */
	uint64		first_serial;
	uint64		last_serial;

	/* Additional condition, or NULL. */
	LazyDropMatch matches;
	const void *arg;
} LazyDropFilter;

/*
 * The blocks of a relation are looked up if there are fewer than one for so
 * many headers.  Otherwise, a pass over all headers costs less.  To determine
 * the size of a fork takes as long as to look up LAZYDROP_BLOCKS_PER_FORK
 * blocks.
 */
#define LAZYDROP_LOOK_UP_DIVISOR	32
#define LAZYDROP_BLOCKS_PER_FORK	64

/* Number of entries with files that are looked up at once. */
#define LAZYDROP_BATCH			100

/*
 * Time after which the worker looks again at what is pending, and tries again
 * to remove files that could not be removed, in milliseconds.  A removal is
 * tried LAZYDROP_MAX_FAILURES times.  If the product were smaller, a temporary
 * error of a file system would leave files behind.  If it were larger, an entry
 * whose files can never be removed would keep its name and its place in the set
 * for longer.
 */
#define LAZYDROP_RETRY_MS		1000
#define LAZYDROP_MAX_FAILURES	10

/*
 * Called between two steps of a removal, without locks, with the number of
 * bytes that the last step has freed.  Returns false to stop.
 */
typedef bool (*LazyDropPause) (uint64 bytes);

/* Path of a relation's segment, or of a hidden file. */
typedef struct LazyDropPath
{
	char		str[sizeof(RelPathStr) + 96];
} LazyDropPath;

/*
 * Number of directories for hidden files in a tablespace, and name of the
 * second one, which no database can have (lazydrop_paths.c).
 */
#define LAZYDROP_HIDDEN_DIRECTORIES	2
#define LAZYDROP_NO_DATABASE	"0"

/*
 * Functions, by file.  Each file calls only functions of files listed before
 * it.
 */

/* lazydrop_common.c */
extern PGDLLIMPORT bool am_lazydrop_worker;
extern int	LazyDropCompareLocators(const void *a, const void *b);
extern bool LazyDropIsAmong(const RelFileLocator *relation,
							const RelFileLocator *sorted, int n);
extern bool LazyDropHaveWorker(void);
struct buftag;
extern int	LazyDropLookUpBuffer(const struct buftag *tag);

/* lazydrop_set.c */
extern LazyDropEntry *LazyDropFindEntry(const RelFileLocator *locator);
extern bool LazyDropAddAll(const RelFileLocator *locators, int n,
						   LazyDropFiles files, int nfiles, XLogRecPtr lsn,
						   bool gaps, bool *wake);
extern bool LazyDropAddLeftovers(Oid spcoid, int nfiles, uint64 bytes);
extern void LazyDropRequestsForgotten(const RelFileLocator *locators, int n,
									  bool keep_first, uint64 barrier,
									  uint64 absorptions);
extern void LazyDropReadsDone(const RelFileLocator *locators, int n);
extern bool LazyDropAdvanceWaiting(void);
extern void LazyDropGiveUpFiles(void);
extern bool LazyDropCanOwn(const LazyDropEntry *entry, int64 steal_before);
extern uint32 LazyDropOwn(int64 steal_before, LazyDropMatch matches,
						  const void *arg, bool patient, LazyDropOwned owned,
						  void *owned_arg, int max, int *ntaken);
extern void LazyDropLeaveToPass(LazyDropEntry *entry);
extern void LazyDropDisown(uint32 owner);
extern void LazyDropMarkPinned(LazyDropEntry *entry);
extern bool LazyDropFinishPass(uint32 owner, int *nrelations, int *ndatabases);
extern bool LazyDropBeginStep(const LazyDropJob *job);
extern void LazyDropEndStep(const LazyDropJob *job, int nfiles, uint64 bytes,
							bool done);
extern uint64 LazyDropRetryHiding(void);
extern void LazyDropHidingFailed(const LazyDropJob *job);
extern bool LazyDropBeginHiding(const LazyDropJob *job);
extern void LazyDropEndHiding(const LazyDropJob *job, int nhidden, bool all);
extern void LazyDropTryLater(const LazyDropJob *job, int64 delay_ns);
extern void LazyDropSetBlocks(const RelFileLocator *locator, uint64 serial,
							  const BlockNumber *nblocks);
extern void LazyDropSetSize(const LazyDropJob *job, int nfiles, uint64 bytes);

/* lazydrop_find.c */
extern LazyDropEntry *LazyDropFindBurial(const RelFileLocator *locator);
extern bool LazyDropIsBuried(const RelFileLocator *locator);
extern bool LazyDropFindPending(LazyDropMatch matches, const void *arg,
								int64 steal_before, bool *can_own);
extern uint64 LazyDropAskForDrain(void);
extern bool LazyDropPendingUpTo(uint64 last_serial);
extern uint64 LazyDropLastSerial(void);
extern PGDLLIMPORT int lazydrop_lookup_limit;
extern uint64 LazyDropLookUpLimit(void);
extern uint64 LazyDropBlocksOf(const LazyDropEntry *entry);
extern bool LazyDropCanLookUp(const LazyDropEntry *entry);
extern bool LazyDropHasWork(LazyDropWork work, int64 steal_before,
							LazyDropMatch matches, const void *arg,
							bool patient);
extern LazyDropWork LazyDropFindBuffers(int64 delay_ms,
										const LazyDropSchedule *schedule,
										long *timeout_ms);
extern void LazyDropSumPending(LazyDropStats *stats);
extern int	LazyDropListPending(LazyDropPending *result, int room, int64 delay_ms);
extern bool LazyDropFindStuck(int64 age_ms, LazyDropPending *pending);
extern int	LazyDropFindJobs(const LazyDropFilter *filter, LazyDropJob *jobs,
							 int njobs);
extern bool LazyDropFindOldestJob(const LazyDropFilter *filter,
								  LazyDropJob *job);
extern bool LazyDropFindJob(const RelFileLocator *locator, LazyDropJob *job);
extern bool LazyDropLookAgain(LazyDropJob *job, bool *hiding);
extern bool LazyDropFilesAreLeft(const LazyDropFilter *filter);

/* lazydrop_write.c */
extern void LazyDropSleepForOther(long microseconds);
extern void LazyDropWaitForWriters(const RelFileLocator *sorted, int n);
extern void LazyDropWaitForReads(const RelFileLocator *sorted, int n);
extern void LazyDropWaitForIO(const RelFileLocator *sorted, int n);

/* lazydrop_pass.c */
extern PGDLLIMPORT bool lazydrop_log_passes;
extern bool LazyDropPass(int64 steal_before, LazyDropMatch matches,
						 const void *arg);
extern bool LazyDropLookUp(int64 steal_before, LazyDropMatch matches,
						   const void *arg, bool patient);
extern bool LazyDropPassForDirectory(const RelFileLocator *directory);
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
extern BlockNumber LazyDropCountBlocks(RelFileLocatorBackend rlocator,
									   ForkNumber forknum);
extern bool LazyDropHideFile(const LazyDropJob *job, const char *path, int *nhidden);
extern bool LazyDropUnhideFile(const LazyDropJob *job, const char *path, int *nhidden);
extern void LazyDropMeasure(const LazyDropJob *job);
extern void LazyDropMeasureBlocks(const RelFileLocator *locator, uint64 serial);
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
extern bool LazyDropRemoveFiles(const LazyDropJob *job, LazyDropPause pause);

/* lazydrop_space.c */
extern PGDLLIMPORT int lazydrop_min_free_space;
extern bool LazyDropDirectoryIsFull(const char *path);
extern bool LazyDropSpaceIsShort(Oid spcoid);

/* lazydrop_hide.c */
extern bool LazyDropHideFiles(const LazyDropJob *job);
extern bool LazyDropHideOrRemove(LazyDropJob *job, LazyDropPause pause);
extern bool LazyDropHideAll(LazyDropMatch matches, const void *arg,
							LazyDropPause pause, uint32 wait_event);

/* lazydrop_leftover.c */
extern PGDLLIMPORT bool lazydrop_worker_registered;
extern bool LazyDropFindLeftoversIn(Oid spcoid);
extern bool LazyDropFindLeftovers(void);

/* lazydrop_bury.c */
extern PGDLLIMPORT bool lazydrop_enabled;
extern PGDLLIMPORT bool lazydrop_defer_files;
extern bool LazyDropMayBury(int n);
extern void LazyDropFallBack(int n, bool is_full);
extern LazyDropFiles LazyDropFilesOfBurial(const RelFileLocator *locators, int n,
										   XLogRecPtr durable);
extern bool LazyDropAddEntries(const RelFileLocator *locators, int n,
							   LazyDropFiles files, int nfiles, XLogRecPtr lsn);
extern void LazyDropRequestForFile(SyncRequestType type, const RelFileLocator *locator,
								   ForkNumber forknum, uint64 segno);

/* lazydrop_relation.c, lazydrop_database.c */
extern void LazyDropRelationXactCallback(XactEvent event, void *arg);
extern void LazyDropDatabaseXactCallback(XactEvent event, void *arg);
extern void LazyDropForgetDirectorySyncRequests(Oid spcoid, Oid dboid);

/* lazydrop_worker.c, lazydrop_init.c */
extern PGDLLIMPORT int lazydrop_pass_delay;
extern PGDLLIMPORT int lazydrop_max_pending;
extern void LazyDropRegisterWorker(void);

/*
 * Buckets of the hash table, for a relation and for its database.  They are
 * chosen by multiplicative hashing, whose high bits are good.  There are many
 * more buckets than entries, so a writer usually finds both empty, and needs no
 * lock (rule R1).
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
 * Return whether an entry is for files that earlier runs of the server have
 * hidden in a tablespace.  Such an entry has no buffers.
 */
static inline bool
LazyDropIsForLeftovers(const RelFileLocator *locator)
{
	return !OidIsValid(locator->dbOid) && !RelFileNumberIsValid(locator->relNumber);
}

/*
 * Return whether a bucket is empty, without the lock.
 */
static inline bool
LazyDropBucketIsEmpty(const int *bucket)
{
	return *(const volatile int *) bucket < 0;
}

/*
 * Return whether an entry's files are gone, so that no more buffers can be read
 * from them.  The caller holds the lock.
 */
static inline bool
LazyDropFilesAreGone(const LazyDropEntry *entry)
{
	return entry->files == LAZYDROP_FILES_NONE && entry->nbusy == 0;
}

/*
 * Increase a counter.
 */
static inline void
LazyDropCount(LazyDropCounter counter, int64 n)
{
	Assert(n >= 0);
	pg_atomic_fetch_add_u64(&LazyDropCtl->counters[counter], n);
}

/*
 * Return whether nothing is pending.  This and the following may be out of date
 * immediately.
 */
static inline bool
LazyDropNothingPending(void)
{
	return pg_atomic_read_u32(&LazyDropCtl->npending) == 0;
}

/*
 * Return whether the set has room for n entries.
 */
static inline bool
LazyDropHasRoom(int n)
{
	return pg_atomic_read_u32(&LazyDropCtl->npending) + n <=
		LazyDropCtl->capacity;
}

/*
 * Return whether no entry has buffers.
 */
static inline bool
LazyDropNothingBuried(void)
{
	return pg_atomic_read_u32(&LazyDropCtl->nburied.value) == 0;
}

#endif							/* LAZYDROP_INTERNAL_H */
