/*-------------------------------------------------------------------------
 *
 * lazydrop.c
 *	  The set of buried relations and databases.
 *
 * Stock PostgreSQL gets rid of the buffers of something that is dropped by
 * looking at every buffer header, in the process that drops it, and then of its
 * files.  Here the dropper buries the identity, that is, puts an entry into a
 * small set in shared memory, and goes on; a background worker invalidates the
 * buffers of all entries in one pass over the headers (lazydrop_pass.c) and
 * removes the files (lazydrop_files.c).
 *
 * Until then there are buffers, possibly dirty, and files of something that is
 * not there any more.  What makes that harmless are the rules in README: nobody
 * writes such a buffer (R1), nobody creates storage under a buried name before
 * the entry is settled (R3), a name that lives on is never buried (R4), nobody
 * deletes an entry that somebody else is at (R5), a drop that does not fit into
 * the set is done as stock does it (R6), and no checkpoint completes over files
 * that are to be removed (R8).
 *
 * Copyright (c) 2026, LazyDrop developers
 *
 * IDENTIFICATION
 *	  src/backend/storage/lazydrop/lazydrop.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include <sys/stat.h>

#include "access/heapam.h"
#include "access/htup_details.h"
#include "access/table.h"
#include "access/xlog.h"
#include "access/xlog_internal.h"
#include "access/xloginsert.h"
#include "access/xlogrecovery.h"
#include "catalog/pg_tablespace.h"
#include "catalog/pg_tablespace_d.h"
#include "commands/dbcommands_xlog.h"
#include "common/hashfn.h"
#include "miscadmin.h"
#include "pgstat.h"
#include "portability/instr_time.h"
#include "postmaster/bgwriter.h"
#include "postmaster/startup.h"
#include "storage/aio_internal.h"
#include "storage/aio_subsys.h"
#include "storage/buf_internals.h"
#include "storage/bufmgr.h"
#include "storage/ipc.h"
#include "storage/lazydrop.h"
#include "storage/lazydrop_internal.h"
#include "storage/md.h"
#include "storage/proc.h"
#include "storage/procsignal.h"
#include "storage/sync.h"
#include "utils/injection_point.h"
#include "utils/memutils.h"
#include "utils/wait_event.h"

/*
 * How long an owner that does not get on is waited for before the entries are taken
 * from it: by a process that is about to create storage under the name, and by a
 * dropper that finds the set full (rules R5 and R6).
 */
#define CREATOR_PATIENCE_MS		1000
#define DROPPER_PATIENCE_MS		10000

/* How many entries that must be gone are looked for at once. */
#define SETTLE_BATCH			100

/*
 * With a small pool, a drop of at most so many relations, of at most so many bytes
 * together, is done as stock does it (IsCheapToDrop).
 */
#define SCAN_MAX_RELATIONS		16
#define SMALL_DROP				(16 * 1024 * 1024)

/* Below that many drops, comparing one by one is cheaper than bsearch. */
#define BSEARCH_THRESHOLD		8

/*
 * The relations that this process has just buried, sorted, or NULL: for the calls of
 * DropRelationsAllBuffers and, when their files are deferred, smgr_unlink that follow at
 * once.
 */
static RelFileLocator *just_buried = NULL;
static int	njust_buried = 0;
static bool buffers_to_omit = false;
static XLogRecPtr just_buried_lsn;

/* whether the removal of the database's directories that are dropped is deferred */
static bool redo_deferred = false;

/* end of the last file copy that was replayed (LazyDropRestartAfterFileCopy) */
static XLogRecPtr last_file_copy = InvalidXLogRecPtr;

/*
 * how many relations, or directories of a database, this process has buried whose
 * files it has not released yet
 */
static int	nburying = 0;

/* what LazyDropAllowBurial has said */
static bool burial_allowed = false;
static XLogRecPtr allowed_durable;

/* the database that this process creates, and its first record, for rule R11 */
static Oid	created_dboid = InvalidOid;
static XLogRecPtr created_lsn;

/* whether the last FlushBuffer of this process did not write */
static bool write_was_skipped = false;

/* the truncation under way in this process, for rule R12 */
static bool truncating = false;
static RelFileLocatorBackend truncating_rlocator;
static BlockNumber truncate_sizes[MAX_FORKNUM + 1];

static bool
MatchesAll(const RelFileLocator *entry, const void *arg)
{
	return true;
}


/* ---------------------------------------------------------------------
 * The set
 * ---------------------------------------------------------------------
 */

/*
 * Where an entry would be that buries a relation, and where one that buries its database
 * in its tablespace.  Multiplicative hashing: the high bits are good.  Of both kinds there
 * are many more buckets than entries, so that an empty one, which a writer finds without
 * the lock, is what there is to be seen (rule R1).
 */
static inline uint32
HashOfDatabase(const RelFileLocator *locator)
{
	return locator->dbOid * (uint32) 0x9E3779B1 +
		locator->spcOid * (uint32) 0x85EBCA6B;
}

static inline int *
DatabaseBucket(const RelFileLocator *locator)
{
	return &LazyDropCtl->database_buckets[HashOfDatabase(locator) >>
										  LazyDropCtl->database_shift];
}

static inline int *
RelationBucket(const RelFileLocator *locator)
{
	return &LazyDropCtl->relation_buckets[(HashOfDatabase(locator) +
										   locator->relNumber * (uint32) 0xC2B2AE3D) >>
										  LazyDropCtl->relation_shift];
}

static inline int *
BucketOf(const RelFileLocator *locator)
{
	return RelFileNumberIsValid(locator->relNumber) ?
		RelationBucket(locator) : DatabaseBucket(locator);
}

/* Whether a bucket has an entry, read without the lock. */
static inline bool
IsEmpty(const int *bucket)
{
	return *(const volatile int *) bucket < 0;
}

/*
 * The entry with exactly this locator, or NULL.  The caller holds the lock.
 */
LazyDropEntry *
LazyDropFindEntry(const RelFileLocator *locator)
{
	int			i;

	Assert(LWLockHeldByMe(&LazyDropCtl->lock));

	for (i = *BucketOf(locator); i >= 0; i = LazyDropCtl->entries[i].next)
	{
		LazyDropEntry *entry = &LazyDropCtl->entries[i];

		if (RelFileLocatorEquals(entry->locator, *locator))
			return entry;
	}
	return NULL;
}

/*
 * The entry that buries a relation: its own, or that of the whole database in
 * its tablespace; or NULL.  The caller holds the lock.
 */
LazyDropEntry *
LazyDropFindBurial(const RelFileLocator *locator)
{
	LazyDropEntry *entry = LazyDropFindEntry(locator);

	if (entry == NULL && LazyDropCtl->ndatabases > 0)
	{
		RelFileLocator whole = *locator;

		whole.relNumber = InvalidRelFileNumber;
		entry = LazyDropFindEntry(&whole);
	}
	return entry;
}

/*
 * Whether a relation is buried.
 */
static bool
IsBuried(const RelFileLocator *locator)
{
	bool		result;

	if (IsEmpty(RelationBucket(locator)) && IsEmpty(DatabaseBucket(locator)))
		return false;
	LWLockAcquire(&LazyDropCtl->lock, LW_SHARED);
	result = LazyDropFindBurial(locator) != NULL;
	LWLockRelease(&LazyDropCtl->lock);
	return result;
}

/*
 * Set whether there may be buffers of an entry.  The caller holds the lock in exclusive
 * mode.
 */
void
LazyDropSetBuffers(LazyDropEntry *entry, bool buffers)
{
	if (entry->buffers == buffers)
		return;
	entry->buffers = buffers;
	pg_atomic_write_u32(&LazyDropCtl->nburied.value,
						pg_atomic_read_u32(&LazyDropCtl->nburied.value) +
						(buffers ? 1 : -1));
}

/*
 * Set what is left to do about the files of an entry.  The caller holds the lock in
 * exclusive mode.
 */
void
LazyDropSetFiles(LazyDropEntry *entry, LazyDropFiles files)
{
	if (entry->files == LAZYDROP_FILES_NONE && files != LAZYDROP_FILES_NONE)
		dlist_push_tail(&LazyDropCtl->removals, &entry->files_node);
	else if (entry->files != LAZYDROP_FILES_NONE && files == LAZYDROP_FILES_NONE)
		dlist_delete(&entry->files_node);
	entry->files = files;
}

/*
 * Add an entry, unless it is there.  The caller holds the lock in exclusive
 * mode.  Returns false when the set is full.
 */
static bool
AddEntry(const RelFileLocator *locator, LazyDropFiles files, XLogRecPtr lsn,
		 int64 now)
{
	LazyDropEntry *entry = LazyDropFindEntry(locator);
	int		   *bucket;

	if (entry != NULL)
	{
		/*
		 * A pass that owns it may have been at some of the buffers already,
		 * so it must not be the last one for this entry.
		 */
		if (entry->owner != 0)
			entry->again = true;
	}
	else
	{
		if (dlist_is_empty(&LazyDropCtl->unused))
			return false;

		entry = dlist_container(LazyDropEntry, node,
								dlist_pop_head_node(&LazyDropCtl->unused));
		entry->locator = *locator;
		entry->buffers = false;
		entry->owner = 0;
		entry->again = false;
		entry->pinned = false;
		entry->files = LAZYDROP_FILES_NONE;
		entry->nhidden = 0;
		entry->hidden = false;
		entry->hiding = false;
		entry->nbusy = 0;
		entry->first_serial = LazyDropCtl->last_serial + 1;
		entry->buried_at_ns = now;

		bucket = BucketOf(locator);
		entry->next = *bucket;
		*bucket = (int) (entry - LazyDropCtl->entries);
		dlist_push_tail(&LazyDropCtl->pending, &entry->node);
		if (!RelFileNumberIsValid(locator->relNumber))
			LazyDropCtl->ndatabases++;
		pg_atomic_write_u32(&LazyDropCtl->npending,
							pg_atomic_read_u32(&LazyDropCtl->npending) + 1);
	}

	LazyDropSetBuffers(entry, true);
	entry->passed = false;

	/*
	 * A new burial, for whoever is at the files of an old one: there may be
	 * others now.  It does not take back that there are files to be removed.
	 */
	if (files != LAZYDROP_FILES_NONE || entry->files == LAZYDROP_FILES_NONE)
	{
		entry->serial = ++LazyDropCtl->last_serial;
		/* at the end of the removals, which are in order */
		LazyDropSetFiles(entry, LAZYDROP_FILES_NONE);
		LazyDropSetFiles(entry, files);
		entry->keep_first = false;
		entry->dropper = MyProcNumber;
		entry->lsn = lsn;
		/* there may be files under their own names again */
		entry->hidden = false;
		entry->nfailures = 0;
		entry->retry_at_ns = 0;
		entry->measured = false;
		entry->nfiles = 0;
		entry->bytes = 0;
	}
	return true;
}

/*
 * Delete an entry for which nothing is left to do, and tell whether that was so.  The
 * caller holds the lock in exclusive mode, and broadcasts settled_cv after that.
 */
bool
LazyDropDeleteIfDone(LazyDropEntry *entry)
{
	int			index = (int) (entry - LazyDropCtl->entries);
	int		   *link = BucketOf(&entry->locator);

	if (entry->buffers || entry->files != LAZYDROP_FILES_NONE ||
		entry->nbusy > 0)
		return false;

	while (*link != index)
		link = &LazyDropCtl->entries[*link].next;
	*link = entry->next;

	dlist_delete(&entry->node);
	dlist_push_head(&LazyDropCtl->unused, &entry->node);
	entry->serial = 0;
	if (!RelFileNumberIsValid(entry->locator.relNumber))
		LazyDropCtl->ndatabases--;
	pg_atomic_write_u32(&LazyDropCtl->npending,
						pg_atomic_read_u32(&LazyDropCtl->npending) - 1);
	return true;
}

/*
 * Tell how far the dropper of so many entries has come with their files.
 */
static void
AdvanceFiles(const RelFileLocator *locators, int n, LazyDropFiles files)
{
	bool		wake = false;

	LWLockAcquire(&LazyDropCtl->lock, LW_EXCLUSIVE);
	for (int i = 0; i < n; i++)
	{
		LazyDropEntry *entry = LazyDropFindEntry(&locators[i]);

		/* They may be gone already. */
		if (entry == NULL || entry->files == LAZYDROP_FILES_NONE ||
			entry->dropper != MyProcNumber)
			continue;
		LazyDropSetFiles(entry, files);
		if (entry->passed)
			wake = true;
	}
	LWLockRelease(&LazyDropCtl->lock);
	ConditionVariableBroadcast(&LazyDropCtl->settled_cv);
	if (wake)
		LazyDropWakeWorker();
}

/*
 * Time that is not set back with the clock, in nanoseconds.
 */
int64
LazyDropNow(void)
{
	instr_time	now;

	INSTR_TIME_SET_CURRENT(now);
	return INSTR_TIME_GET_NANOSEC(now);
}

/*
 * Order of locators, for qsort and bsearch: as good as any.
 */
int
LazyDropCompareLocators(const void *a, const void *b)
{
	const RelFileLocator *l = a;
	const RelFileLocator *r = b;

	if (l->relNumber != r->relNumber)
		return l->relNumber < r->relNumber ? -1 : 1;
	if (l->dbOid != r->dbOid)
		return l->dbOid < r->dbOid ? -1 : 1;
	if (l->spcOid != r->spcOid)
		return l->spcOid < r->spcOid ? -1 : 1;
	return 0;
}

/*
 * Whether a sorted array of buried identities, all of them relations or all of
 * them databases, has the one that buries a relation.
 */
static bool
IsAmong(const RelFileLocator *relation,
		const RelFileLocator *sorted, int n)
{
	RelFileLocator key = *relation;

	if (!RelFileNumberIsValid(sorted[0].relNumber))
		key.relNumber = InvalidRelFileNumber;

	if (n < BSEARCH_THRESHOLD)
	{
		for (int i = 0; i < n; i++)
		{
			if (RelFileLocatorEquals(sorted[i], key))
				return true;
		}
		return false;
	}
	return bsearch(&key, sorted, n, sizeof(RelFileLocator),
				   LazyDropCompareLocators) != NULL;
}


/* ---------------------------------------------------------------------
 * Droppers
 * ---------------------------------------------------------------------
 */

/*
 * Whether to bury at all; "n" is how many fallbacks there are when it cannot be.
 *
 * Only droppers read lazydrop.enabled (rule R13).  Without a worker, entries
 * would stay until the set is full, so on a running primary we do as stock does;
 * in recovery we bury nevertheless, because a full set is settled by one pass
 * for all of it, and the end of recovery makes one for the rest (rules R6 and R16).
 */
static bool
MayBury(int n)
{
	if (!lazydrop_enabled || LazyDropCtl == NULL || !IsUnderPostmaster)
		return false;
	if (LazyDropHaveWorker() || RecoveryInProgress())
		return true;
	pg_atomic_fetch_add_u64(&LazyDropCtl->sync_fallbacks, n);
	return false;
}

/*
 * What to do about the files of something that is buried now.  They are removed in
 * the background only when a record that drops it is durable, as any is in recovery
 * (rule R9), and when there is a worker that will come to it soon.
 */
static LazyDropFiles
FilesOfBurial(XLogRecPtr durable)
{
	return lazydrop_defer_files && LazyDropHaveWorker() &&
		(!XLogRecPtrIsInvalid(durable) || RecoveryInProgress()) ?
		LAZYDROP_FILES_BURIED : LAZYDROP_FILES_NONE;
}

/*
 * Wait until nobody is writing a buffer of the buried identities any more who
 * announced the write before it could see the burial (rule R1).
 *
 * A writer stores its announcement and then, after a full fence, looks into the
 * set; we have put our entry into the set and then, after a full fence, read the
 * announcements.  So either it sees the entry or we see the announcement.  An
 * announcement that changes while we read it is that of somebody who has begun
 * another write since then, and who therefore sees the entry.
 *
 * Our own announcement is left out: we may be called from an error callback of
 * our own write.
 */
static void
WaitForWriters(const RelFileLocator *sorted, int n)
{
	for (int i = 0; i < LazyDropCtl->nannouncements; i++)
	{
		LazyDropAnnouncement *them;
		uint32		generation;
		RelFileLocator locator;
		int			tries = 0;

		if (i == MyProcNumber)
			continue;
		them = &LazyDropCtl->announcements[i].announcement;
		generation = pg_atomic_read_u32(&them->generation);
		if ((generation & 1) == 0)
			continue;
		pg_read_barrier();
		locator = them->locator;
		if (!IsAmong(&locator, sorted, n))
			continue;

		/*
		 * A write takes some microseconds, but the disk may be slow.  Stock
		 * waits for the same write, in WaitIO.
		 */
		while (pg_atomic_read_u32(&them->generation) == generation)
		{
			CHECK_FOR_INTERRUPTS();
			pgstat_report_wait_start(LazyDropCtl->wait_event_write);
			pg_usleep(tries++ < 100 ? 10L : 1000L);
			pgstat_report_wait_end();
		}
	}
}

/*
 * Wait until no asynchronous read of the buried identities is in flight (rule
 * R1).  A scan that was cancelled leaves them, and stock would find them on the
 * buffers; after this the files may go.
 *
 * A read that was started under a lock which conflicted with ours, and which has
 * been released, is in its process's list of IOs in flight by now.  What is read
 * without such a lock later is dealt with by the last pass (rule R5).  That
 * list's length tells cheaply that there is nothing to look at.
 */
static void
WaitForReads(const RelFileLocator *sorted, int n)
{
	/* upstream leaves pgaio_ctl->backend_state_count at zero */
	int			nbackends = pgaio_ctl->io_handle_count / io_max_concurrency;

	for (int i = 0; i < nbackends; i++)
	{
		PgAioBackend *backend = &pgaio_ctl->backend_state[i];

		if (*(volatile uint32 *) &backend->in_flight_ios.count == 0)
			continue;

		for (int j = 0; j < io_max_concurrency; j++)
		{
			uint32		id = backend->io_handle_off + j;
			volatile PgAioHandle *ioh = &pgaio_ctl->io_handles[id];
			uint64		generation;
			uint8		state;
			bool		ours;
			PgAioWaitRef iow;

			/*
			 * The handle may be reused while we look at it, in which case its
			 * generation changes.
			 */
			generation = ioh->generation;
			pg_read_barrier();
			state = ioh->state;
			pg_read_barrier();
			ours = false;
			if ((state == PGAIO_HS_SUBMITTED ||
				 state == PGAIO_HS_COMPLETED_IO) &&
				ioh->target == PGAIO_TID_SMGR &&
				!ioh->target_data.smgr.is_temp)
			{
				RelFileLocator locator;

				locator.spcOid = ioh->target_data.smgr.rlocator.spcOid;
				locator.dbOid = ioh->target_data.smgr.rlocator.dbOid;
				locator.relNumber = ioh->target_data.smgr.rlocator.relNumber;
				ours = IsAmong(&locator, sorted, n);
			}
			pg_read_barrier();
			if (!ours || ioh->generation != generation)
				continue;

			iow.aio_index = id;
			iow.generation_upper = (uint32) (generation >> 32);
			iow.generation_lower = (uint32) generation;
			pgaio_wref_wait(&iow);
		}
	}
}

/*
 * What follows once the entries are in the set.
 */
static void
FinishBurial(const RelFileLocator *sorted, int n)
{
	INJECTION_POINT("lazydrop-buried", NULL);
	pg_memory_barrier();
	WaitForWriters(sorted, n);
	WaitForReads(sorted, n);
}

static bool
HasRoom(int n)
{
	return pg_atomic_read_u32(&LazyDropCtl->npending) + n <=
		LazyDropCtl->capacity;
}

/*
 * Make room in a full set: settle what has no owner, or one that has not got on for
 * so long that it must be stuck.
 */
static void
MakeRoom(void)
{
	if (!LazyDropNothingBuried())
		(void) LazyDropPass(LazyDropNow() - DROPPER_PATIENCE_MS * INT64CONST(1000000),
							NULL, NULL);
}

/*
 * Put entries into the set, all of them or none (rule R6), and wake the worker.
 * "files" is what is to be done about the files of the first nfiles of them; nothing
 * is about those of the others.  Returns whether they are there.
 *
 * The worker is woken before FinishBurial, because that can be interrupted.  The
 * entries are complete (rule R7), and it settles none too early: a write or a read
 * that is under way has its buffer pinned.
 */
static bool
AddEntries(const RelFileLocator *locators, int n, LazyDropFiles files,
		   int nfiles, XLogRecPtr lsn)
{
	bool		wake;
	bool		fits;
	int64		now;

	if (n > LazyDropCtl->capacity)
		return false;
	if (!HasRoom(n))
		MakeRoom();

	now = LazyDropNow();
	LWLockAcquire(&LazyDropCtl->lock, LW_EXCLUSIVE);
	wake = LazyDropNothingBuried();
	fits = HasRoom(n);
	for (int i = 0; fits && i < n; i++)
	{
		if (!AddEntry(&locators[i],
					  i < nfiles ? files : LAZYDROP_FILES_NONE, lsn, now))
			elog(PANIC, "lazy drop set is full");
	}
	wake |= pg_atomic_read_u32(&LazyDropCtl->npending) >=
		LazyDropCtl->capacity / 2;
	LWLockRelease(&LazyDropCtl->lock);

	if (fits && wake)
		LazyDropWakeWorker();
	return fits;
}

/*
 * Whether to have a drop done as stock does it, because that costs less: a small pool is
 * looked through sooner than a burial is written down, another process woken and its work
 * done, and small files are removed at once.  Looks at each file's size, so not for many.
 * Not in replay, nor when a buffer is pinned: a session may hold a pin for long without a
 * lock that conflicts with the drop (rules R1 and R7).
 */
static bool
IsCheapToDrop(SMgrRelation *rels, int nrels)
{
	uint64		bytes = 0;

	if (NBuffers > lazydrop_scan_limit || nrels > SCAN_MAX_RELATIONS ||
		RecoveryInProgress())
		return false;
	for (int i = 0; i < nrels; i++)
	{
		RelPathStr	path = relpath(rels[i]->smgr_rlocator, MAIN_FORKNUM);
		struct stat st;

		if (stat(path.str, &st) == 0)
			bytes += st.st_size;
	}
	if (bytes > SMALL_DROP)
		return false;

	/* Stock waits for a pin, and so would we; as a hint, without locks. */
	for (int i = 0; i < NBuffers; i++)
	{
		BufferDesc *buf = GetBufferDescriptor(i);

		if (BUF_STATE_GET_REFCOUNT(pg_atomic_read_u32(&buf->state)) == 0)
			continue;
		for (int j = 0; j < nrels; j++)
		{
			if (BufTagMatchesRelFileLocator(&buf->tag,
											&rels[j]->smgr_rlocator.locator))
				return false;
		}
	}
	return true;
}

/*
 * Bury relations that are about to be unlinked, as far as there is room, and
 * remember which for the call of DropRelationsAllBuffers that follows.
 *
 * Only for callers that know that the relations are gone for good: the end of a
 * transaction, COMMIT PREPARED, and their replay (rule R4).  Relations of a
 * backend (temporary ones) are left alone: their number may also be that of a
 * permanent relation.
 *
 * "durable" is the end of the WAL record that drops them, which has been flushed,
 * or InvalidXLogRecPtr when there is none (rule R9) and in recovery.
 *
 * When this returns, no process writes to the files of those relations any more and
 * no read of them is in flight (rule R1), so that the caller may forget their
 * sync requests (rule R2) and remove their files, or have LazyDropDeferUnlink see
 * to that.
 */
void
LazyDropBuryRelations(SMgrRelation *rels, int nrels, XLogRecPtr durable)
{
	RelFileLocator *locators;
	LazyDropFiles files;
	int			n = 0;

	just_buried = NULL;
	buffers_to_omit = false;

	for (int i = 0; i < nrels; i++)
	{
		if (!RelFileLocatorBackendIsTemp(rels[i]->smgr_rlocator))
			n++;
	}
	if (n == 0 || !MayBury(n) || IsCheapToDrop(rels, nrels))
		return;

	INJECTION_POINT("lazydrop-bury", NULL);
	files = FilesOfBurial(durable);
	locators = palloc_array(RelFileLocator, n);
	n = 0;
	for (int i = 0; i < nrels; i++)
	{
		if (!RelFileLocatorBackendIsTemp(rels[i]->smgr_rlocator))
			locators[n++] = rels[i]->smgr_rlocator.locator;
	}

	/*
	 * All or none: when one has to be looked for in all of the headers, the
	 * others cost nothing more, and the set has room for other droppers.
	 */
	if (!AddEntries(locators, n, files, n, durable))
	{
		pg_atomic_fetch_add_u64(&LazyDropCtl->sync_fallbacks, n);
		pfree(locators);
		return;
	}
	pg_atomic_fetch_add_u64(&LazyDropCtl->buried_relations, n);
	if (files != LAZYDROP_FILES_NONE)
		nburying = n;

	qsort(locators, n, sizeof(RelFileLocator), LazyDropCompareLocators);
	FinishBurial(locators, n);
	just_buried = locators;
	njust_buried = n;
	just_buried_lsn = durable;
	buffers_to_omit = true;
}

/*
 * Called by COMMIT PREPARED, ROLLBACK PREPARED and replay of commits and aborts before
 * DropRelationFiles, which others may call as well, for relations that live on or that
 * must be gone when it returns (rule R4).  "durable" is that of LazyDropBuryRelations.
 */
void
LazyDropAllowBurial(XLogRecPtr durable)
{
	burial_allowed = true;
	allowed_durable = durable;
}

/*
 * Called by DropRelationFiles: LazyDropBuryRelations, if that has been allowed for this
 * call.
 */
void
LazyDropBuryIfAllowed(SMgrRelation *rels, int nrels)
{
	if (burial_allowed)
		LazyDropBuryRelations(rels, nrels, allowed_durable);
	burial_allowed = false;
}

/*
 * Take those relations out of an array whose buffers need not be dropped now,
 * because LazyDropBuryRelations has just buried them: all but temporary ones.  Then
 * the array is replaced by another one, which belongs to us; the startup process
 * calls this for ever in one memory context.
 */
void
LazyDropOmitBuried(SMgrRelation **rels, int *nrels)
{
	static SMgrRelation *rest = NULL;
	static int	max_rest = 0;
	int			nrest = 0;

	if (!buffers_to_omit)
		return;
	buffers_to_omit = false;

	for (int i = 0; i < *nrels; i++)
	{
		SMgrRelation rel = (*rels)[i];

		if (!RelFileLocatorBackendIsTemp(rel->smgr_rlocator) &&
			IsAmong(&rel->smgr_rlocator.locator, just_buried, njust_buried))
			continue;
		if (nrest == max_rest)
		{
			int			new_max = Max(16, 2 * max_rest);

			rest = rest == NULL ?
				MemoryContextAlloc(TopMemoryContext,
								   new_max * sizeof(SMgrRelation)) :
				repalloc(rest, new_max * sizeof(SMgrRelation));
			max_rest = new_max;
		}
		rest[nrest++] = rel;
	}
	*rels = rest;
	*nrels = nrest;
	if (nburying == 0)
	{
		pfree(just_buried);
		just_buried = NULL;
	}
}

/*
 * Forget the sync requests for one file, or have it unlinked after the next
 * checkpoint.
 */
static void
RequestForFile(SyncRequestType type, const RelFileLocator *locator,
			   ForkNumber forknum, uint64 segno)
{
	FileTag		tag;

	memset(&tag, 0, sizeof(tag));
	tag.handler = SYNC_HANDLER_MD;
	tag.forknum = forknum;
	tag.rlocator = *locator;
	tag.segno = segno;
	RegisterSyncRequest(&tag, type, true);
}

/*
 * Forget the sync requests for a relation's files, as mdunlink does.  The
 * zero-length first segment that stays until the next checkpoint, if
 * one does, is asked for here, so that it goes when it does in stock (rule R14).
 *
 * A request for a file that is not there does no harm, so only further segments are
 * looked for; and those of other forks only when the main fork has some, because it
 * is larger than they are by orders of magnitude, and a fork that has been truncated
 * keeps its segments.
 */
static void
ForgetRelationSyncRequests(const RelFileLocator *locator, bool keep_first)
{
	bool		large = true;

	if (keep_first)
		RequestForFile(SYNC_UNLINK_REQUEST, locator, MAIN_FORKNUM, 0);

	for (ForkNumber forknum = MAIN_FORKNUM; forknum <= MAX_FORKNUM; forknum++)
	{
		RelPathStr	path = relpathperm(*locator, forknum);

		RequestForFile(SYNC_FORGET_REQUEST, locator, forknum, 0);
		for (uint64 segno = 1; large; segno++)
		{
			char		segpath[sizeof(path.str) + 24];
			struct stat st;

			snprintf(segpath, sizeof(segpath), "%s." UINT64_FORMAT,
					 path.str, segno);
			if (stat(segpath, &st) < 0)
			{
				if (segno == 1 && forknum == MAIN_FORKNUM)
					large = false;
				break;
			}
			RequestForFile(SYNC_FORGET_REQUEST, locator, forknum, segno);
		}
	}
}

/*
 * The relations that this process has buried have their sync requests forgotten: let others
 * remove the files.
 *
 * A checkpoint that has begun after our commit record may have looked for files before it
 * could see ours, and a crash would leave them for ever (rule R8).  One that begins from
 * now on sees them.
 */
static void
ReleaseFiles(const RelFileLocator *locators, int n, bool keep_first,
			 XLogRecPtr lsn)
{
	LazyDropJob job;
	bool		wake = false;

	LWLockAcquire(&LazyDropCtl->lock, LW_EXCLUSIVE);
	for (int i = 0; i < n; i++)
	{
		LazyDropEntry *entry = LazyDropFindEntry(&locators[i]);

		/* no other process advances the entry, or deletes it, until then */
		Assert(entry->files == LAZYDROP_FILES_BURIED &&
			   entry->dropper == MyProcNumber);
		entry->keep_first = keep_first;
		LazyDropSetFiles(entry, LAZYDROP_FILES_READY);
		wake |= entry->passed;
	}
	LWLockRelease(&LazyDropCtl->lock);
	ConditionVariableBroadcast(&LazyDropCtl->settled_cv);
	if (wake)
		LazyDropWakeWorker();

	if (XLogRecPtrIsInvalid(lsn) || lsn > GetRedoRecPtr())
		return;
	for (int i = 0; i < n; i++)
	{
		while (LazyDropFindJob(&locators[i], &job) &&
			   !LazyDropHideOrRemove(&job, NULL))
			pg_usleep(1000L);
	}
	LazyDropWakeWorker();
}

/*
 * Called where the files of a relation are unlinked that the caller drops.  When
 * this process has just buried it, and the removal of its files is deferred, then
 * see to everything that has to be done before they go, let others remove them,
 * when it is the last one that has been buried with it, and return true.  "isRedo" is
 * that of smgr_unlink.
 */
bool
LazyDropDeferUnlink(RelFileLocatorBackend rlocator, bool isRedo)
{
	bool		keep_first = !isRedo && !IsBinaryUpgrade;

	if (just_buried == NULL || RelFileLocatorBackendIsTemp(rlocator) ||
		!IsAmong(&rlocator.locator, just_buried, njust_buried))
		return false;

	ForgetRelationSyncRequests(&rlocator.locator, keep_first);
	INJECTION_POINT("lazydrop-forgotten", NULL);
	if (--nburying == 0)
	{
		ReleaseFiles(just_buried, njust_buried, keep_first, just_buried_lsn);
		pfree(just_buried);
		just_buried = NULL;
		INJECTION_POINT("lazydrop-ready", NULL);
	}
	return true;
}

/*
 * A transaction that has buried relations, or a database, is aborted after all, as
 * COMMIT PREPARED and DROP DATABASE may be when they run out of memory.  Files may be
 * left behind, those of a database until it is dropped again; but nobody must wait for
 * us to release them.
 */
void
LazyDropXactCallback(XactEvent event, void *arg)
{
	dlist_mutable_iter iter;

	if (event != XACT_EVENT_ABORT)
		return;
	just_buried = NULL;
	buffers_to_omit = false;
	burial_allowed = false;
	if (nburying == 0)
		return;
	nburying = 0;
	LWLockAcquire(&LazyDropCtl->lock, LW_EXCLUSIVE);
	dlist_foreach_modify(iter, &LazyDropCtl->removals)
	{
		LazyDropEntry *entry = dlist_container(LazyDropEntry, files_node,
											   iter.cur);

		if (entry->files == LAZYDROP_FILES_BURIED &&
			entry->dropper == MyProcNumber)
		{
			LazyDropSetFiles(entry, LAZYDROP_FILES_NONE);
			LazyDropDeleteIfDone(entry);
		}
	}
	LWLockRelease(&LazyDropCtl->lock);
	ConditionVariableBroadcast(&LazyDropCtl->settled_cv);
	LazyDropWakeWorker();
}

/*
 * Bury a database in so many tablespaces, or in none when they do not all fit
 * (rule R6).  "files" is what is to be done about the first ndirs directories.
 * Returns whether it is buried.  The caller goes on with FinishBurial.
 */
static bool
BuryDatabase(const RelFileLocator *locators, int n, LazyDropFiles files,
			 int ndirs, XLogRecPtr lsn)
{
	bool		fits = AddEntries(locators, n, files, ndirs, lsn);

	pg_atomic_fetch_add_u64(fits ? &LazyDropCtl->buried_databases :
							&LazyDropCtl->sync_fallbacks, 1);
	return fits;
}

/*
 * Find the directories of a database that DROP DATABASE drops.  Returns an array of
 * locators, one for each tablespace but the global one: it may have buffers even
 * where its directory has been lost.  Those that have a directory come first.
 */
static RelFileLocator *
DatabaseDirectories(Oid dboid, int *nlocators, int *ndirectories)
{
	Relation	rel;
	TableScanDesc scan;
	HeapTuple	tuple;
	RelFileLocator *locators = NULL;
	int			n = 0;
	int			ndirs = 0;
	int			room = 16;

	locators = palloc_array(RelFileLocator, room);
	rel = table_open(TableSpaceRelationId, AccessShareLock);
	scan = table_beginscan_catalog(rel, 0, NULL);
	while ((tuple = heap_getnext(scan, ForwardScanDirection)) != NULL)
	{
		Oid			spcoid = ((Form_pg_tablespace) GETSTRUCT(tuple))->oid;
		RelFileLocator locator = {spcoid, dboid, InvalidRelFileNumber};
		char	   *path;
		struct stat st;

		if (spcoid == GLOBALTABLESPACE_OID)
			continue;
		if (n == room)
		{
			room *= 2;
			locators = repalloc_array(locators, RelFileLocator, room);
		}
		path = GetDatabasePath(dboid, spcoid);
		if (lstat(path, &st) == 0 && S_ISDIR(st.st_mode))
		{
			locators[n++] = locators[ndirs];
			locators[ndirs++] = locator;
		}
		else
			locators[n++] = locator;
		pfree(path);
	}
	table_endscan(scan);
	table_close(rel, AccessShareLock);

	*nlocators = n;
	*ndirectories = ndirs;
	return locators;
}

/*
 * Write and flush the record that a database's directories are dropped.  Returns
 * its end.
 */
static XLogRecPtr
LogDatabaseDrop(Oid dboid, const RelFileLocator *directories, int n)
{
	xl_dbase_drop_rec xlrec;
	XLogRecPtr	lsn;
	Oid		   *tablespaces = palloc_array(Oid, n);

	for (int i = 0; i < n; i++)
		tablespaces[i] = directories[i].spcOid;

	xlrec.db_id = dboid;
	xlrec.ntablespaces = n;
	XLogBeginInsert();
	XLogRegisterData(&xlrec, MinSizeOfDbaseDropRec);
	XLogRegisterData(tablespaces, n * sizeof(Oid));
	lsn = XLogInsert(RM_DBASE_ID, XLOG_DBASE_DROP | XLR_SPECIAL_REL_UPDATE);
	XLogFlush(lsn);
	pfree(tablespaces);
	return lsn;
}

/*
 * Called right after the record that creates the directory of a new database, when
 * there is one.
 */
void
LazyDropDirectoryLogged(Oid dboid)
{
	created_dboid = dboid;
	created_lsn = ProcLastRecPtr;
	INJECTION_POINT("lazydrop-directory-logged", NULL);
}

static pg_atomic_uint64 *
RelmapRecord(Oid dboid)
{
	return &LazyDropCtl->relmap_records[dboid & (LAZYDROP_RELMAP_SLOTS - 1)];
}

/*
 * Called right after a record of a relation map, by the process that has inserted it,
 * in a critical section: notes it for DROP DATABASE (rule R11), unless it is that of a
 * new database and replay meets the record that creates the directory, too.
 */
void
LazyDropRelmapLogged(Oid dboid)
{
	XLogRecPtr	lsn = ProcLastRecPtr;
	pg_atomic_uint64 *record;
	uint64		old;
	bool		replay_creates;

	if (LazyDropCtl == NULL || !OidIsValid(dboid))
		return;

	/*
	 * To insert the record, we have brought our copy of the redo pointer up
	 * to date.  A redo pointer that is newer than both records does no harm.
	 */
	replay_creates = dboid == created_dboid && GetRedoRecPtr() <= created_lsn;
	created_dboid = InvalidOid;
	if (replay_creates)
		return;

	record = RelmapRecord(dboid);
	old = pg_atomic_read_u64(record);
	while (old < lsn && !pg_atomic_compare_exchange_u64(record, &old, lsn))
		;
}

/*
 * Whether replay, if the server crashed now, might begin between what creates the
 * directory of a database and a record of its relation map (rule R11).  Nobody uses
 * the database.  (What has been replayed is where recovery ended, or 0 when there was
 * none.)
 */
static bool
ReplayNeedsDirectory(Oid dboid)
{
	XLogRecPtr	redo;
	TimeLineID	tli;

	GetOldestRestartPoint(&redo, &tli);
	return pg_atomic_read_u64(RelmapRecord(dboid)) >= redo ||
		GetXLogReplayRecPtr(NULL) > redo;
}

/*
 * Called by the checkpointer when it has taken note of the requests that were in the
 * queue when it began to absorb them.
 */
void
LazyDropRequestsAbsorbed(void)
{
	if (LazyDropCtl == NULL)
		return;
	pg_atomic_fetch_add_u64(&LazyDropCtl->absorptions, 1);
	ConditionVariableBroadcast(&LazyDropCtl->absorbed_cv);
}

/*
 * Wait until the checkpointer has taken note of what this process has sent to it
 * (rule R11).  An absorption that is under way may have emptied the queue before we
 * sent it, so wait for the one after it.
 */
static void
WaitForAbsorption(void)
{
	uint64		enough = pg_atomic_read_membarrier_u64(&LazyDropCtl->absorptions) + 2;

	ConditionVariablePrepareToSleep(&LazyDropCtl->absorbed_cv);
	while (pg_atomic_read_u64(&LazyDropCtl->absorptions) < enough)
	{
		ProcNumber	checkpointer = ProcGlobal->checkpointerProc;

		if (checkpointer != INVALID_PROC_NUMBER)
			SetLatch(&GetPGProcByNumber(checkpointer)->procLatch);
		(void) ConditionVariableTimedSleep(&LazyDropCtl->absorbed_cv, 10,
										   LazyDropCtl->wait_event_forget);
	}
	ConditionVariableCancelSleep();
}

/* the directories of a database that is dropped */
typedef struct Directories
{
	RelFileLocator *locators;
	int			n;
	bool		deferred;		/* others remove them */
} Directories;

/*
 * Remove the directories, or let others do it.
 */
static void
ReleaseDirectories(const Directories *dirs)
{
	if (dirs->deferred)
		AdvanceFiles(dirs->locators, dirs->n, LAZYDROP_FILES_READY);
	else
	{
		for (int i = 0; i < dirs->n; i++)
			LazyDropRemoveDirectory(dirs->locators[i].spcOid,
									dirs->locators[i].dbOid);
	}
}

static void
DirectoriesOnExit(int code, Datum arg)
{
	const Directories *dirs = (const Directories *) DatumGetPointer(arg);

	LWLockReleaseAll();
	ReleaseDirectories(dirs);
}

/*
 * Do what DROP DATABASE does with buffers, files and WAL, without a checkpoint
 * (rule R11).  The database has been marked invalid, durably; nobody uses it and
 * nobody can begin to.  Returns false, and has done nothing, when the caller must
 * do as stock does.
 *
 * The record comes first, and so replay forgives references to what is missing,
 * however far the removal has come when the server crashes.  From the record to the
 * burial, no checkpoint may begin, or it could complete without having seen that
 * there are files to remove whose record will not be replayed.
 *
 * What replay does not forgive is a relation map whose directory is missing.  When it
 * might meet one, which is rare, there is a checkpoint after all.
 *
 * From the record on, the directories are gone, on standbys as well.  We cannot be
 * interrupted until they can be removed, and when we are after that, they are all the
 * same; the transaction is rolled back then, and leaves an invalid database, which can
 * only be dropped again, as in stock.
 */
bool
LazyDropDropDatabase(Oid dboid)
{
	RelFileLocator *locators;
	LazyDropFiles files;
	int			nlocators;
	Directories dirs;
	XLogRecPtr	lsn = InvalidXLogRecPtr;
	bool		buried = false;

	if (!lazydrop_enabled || LazyDropCtl == NULL || !IsUnderPostmaster)
		return false;
	if (ReplayNeedsDirectory(dboid))
	{
		/* as stock, so that what is wrong with its files is no obstacle */
		DropDatabaseBuffers(dboid);
		ForgetDatabaseSyncRequests(dboid);
		RequestCheckpoint(CHECKPOINT_IMMEDIATE | CHECKPOINT_FORCE |
						  CHECKPOINT_WAIT);
	}

	locators = DatabaseDirectories(dboid, &nlocators, &dirs.n);
	dirs.locators = palloc_array(RelFileLocator, Max(dirs.n, 1));
	memcpy(dirs.locators, locators, dirs.n * sizeof(RelFileLocator));

	Assert((MyProc->delayChkptFlags & DELAY_CHKPT_START) == 0);
	HOLD_INTERRUPTS();
	MyProc->delayChkptFlags |= DELAY_CHKPT_START;
	if (dirs.n > 0)
		lsn = LogDatabaseDrop(dboid, locators, dirs.n);
	INJECTION_POINT("lazydrop-database-logged", NULL);
	files = FilesOfBurial(lsn);
	if (MayBury(1))
		buried = BuryDatabase(locators, nlocators, files, dirs.n, lsn);
	dirs.deferred = buried && files != LAZYDROP_FILES_NONE;
	if (dirs.deferred)
		nburying = dirs.n;
	MyProc->delayChkptFlags &= ~DELAY_CHKPT_START;

	if (buried)
	{
		qsort(locators, nlocators, sizeof(RelFileLocator),
			  LazyDropCompareLocators);
		FinishBurial(locators, nlocators);
	}
	else
		DropDatabaseBuffers(dboid);

	/*
	 * When there is no room for the request, it is not compacted in a
	 * critical section, which takes memory, but waited for.
	 */
	START_CRIT_SECTION();
	ForgetDatabaseSyncRequests(dboid);
	END_CRIT_SECTION();
	if (dirs.deferred)
		AdvanceFiles(dirs.locators, dirs.n, LAZYDROP_FILES_FORGOTTEN);
	nburying = 0;

	PG_ENSURE_ERROR_CLEANUP(DirectoriesOnExit, PointerGetDatum(&dirs));
	{
		RESUME_INTERRUPTS();
		INJECTION_POINT("lazydrop-database-forgotten", NULL);

		/*
		 * Make sure that the checkpointer has taken note of what to forget,
		 * and have others close their files.  No process needs to wait for us
		 * meanwhile: a checkpoint that comes hides the files itself.
		 */
		WaitForAbsorption();
		WaitForProcSignalBarrier(EmitProcSignalBarrier(PROCSIGNAL_BARRIER_SMGRRELEASE));
	}
	PG_END_ENSURE_ERROR_CLEANUP(DirectoriesOnExit, PointerGetDatum(&dirs));

	ReleaseDirectories(&dirs);
	INJECTION_POINT("lazydrop-database-ready", NULL);

	pfree(dirs.locators);
	pfree(locators);
	return true;
}

/*
 * Bury a database in replay, for exactly the tablespaces that the record names: when
 * it comes from ALTER DATABASE SET TABLESPACE, the database lives on in another
 * (rule R4).  Returns false when the caller must drop its buffers as stock does.
 *
 * "lsn" is the end of the record: the minimum recovery point must be past it before
 * files go (rule R10).
 */
bool
LazyDropBuryDatabaseRedo(Oid dboid, int ntablespaces, const Oid *tablespaces,
						 XLogRecPtr lsn)
{
	RelFileLocator *locators;
	LazyDropFiles files;
	bool		buried;

	redo_deferred = false;
	XLogFlush(lsn);
	if (ntablespaces == 0 || !MayBury(1))
		return false;

	files = FilesOfBurial(InvalidXLogRecPtr);
	locators = palloc_array(RelFileLocator, ntablespaces);
	for (int i = 0; i < ntablespaces; i++)
	{
		locators[i].spcOid = tablespaces[i];
		locators[i].dbOid = dboid;
		locators[i].relNumber = InvalidRelFileNumber;
	}
	buried = BuryDatabase(locators, ntablespaces, files, ntablespaces,
						  InvalidXLogRecPtr);
	if (buried)
	{
		redo_deferred = files != LAZYDROP_FILES_NONE;
		qsort(locators, ntablespaces, sizeof(RelFileLocator),
			  LazyDropCompareLocators);
		FinishBurial(locators, ntablespaces);
	}
	pfree(locators);
	return buried;
}

/*
 * Called in replay where a database's directory is removed, after its sync requests
 * have been forgotten and the barrier.  When its removal is deferred, let others do
 * it and return true.
 */
bool
LazyDropDeferRmtree(Oid dboid, Oid spcoid)
{
	RelFileLocator locator = {spcoid, dboid, InvalidRelFileNumber};

	if (redo_deferred)
		AdvanceFiles(&locator, 1, LAZYDROP_FILES_READY);
	return redo_deferred;
}

/*
 * Forget the sync requests for files that a database has in one tablespace.
 */
static void
ForgetDirectorySyncRequests(Oid spcoid, Oid dboid)
{
	RelFileLocator locator = {spcoid, dboid, InvalidRelFileNumber};

	RequestForFile(SYNC_FILTER_REQUEST, &locator, InvalidForkNumber,
				   InvalidBlockNumber);
}

/*
 * In replay of the removal of a database's directories, forget the sync requests
 * for files in them, and for no others (rule R2): stock goes by the database
 * alone, and so forgets to sync files that live on in third tablespaces when a
 * database is moved.  A database that is dropped has no others, and may have very
 * many of these, so then stock's one request does.  From then on, a process that
 * cannot wait for the barrier may remove the files that were buried.
 */
void
LazyDropForgetSyncRequests(Oid dboid, int ntablespaces, const Oid *tablespaces)
{
	if (ntablespaces == 1)
		ForgetDirectorySyncRequests(tablespaces[0], dboid);
	else
		ForgetDatabaseSyncRequests(dboid);
	for (int i = 0; redo_deferred && i < ntablespaces; i++)
	{
		RelFileLocator locator = {tablespaces[i], dboid, InvalidRelFileNumber};

		AdvanceFiles(&locator, 1, LAZYDROP_FILES_FORGOTTEN);
	}
}


/* ---------------------------------------------------------------------
 * Writers of shared buffers (rule R1)
 * ---------------------------------------------------------------------
 */

static void
CountSkippedWrite(void)
{
	write_was_skipped = true;
	pg_atomic_fetch_add_u64(&LazyDropCtl->writes_skipped, 1);
}

/* where entries would be that bury the buffer which this process is about to write */
static const int *watched_relation;
static const int *watched_database;

/*
 * Whether there is no point in writing a buffer, nor in flushing WAL for it,
 * because its relation is buried.  When it is not now, it may be later on: this
 * only saves the work.
 *
 * The caller has the buffer pinned and its I/O started, and has cleared
 * BM_JUST_DIRTIED, so that it can leave the buffer clean.  It goes on with
 * LazyDropAnnounceWrite for the same buffer.
 */
bool
LazyDropWriteIsVain(const BufferTag *tag)
{
	RelFileLocator locator = BufTagGetRelFileLocator(tag);

	write_was_skipped = false;
	watched_relation = RelationBucket(&locator);
	watched_database = DatabaseBucket(&locator);
	if (likely(IsEmpty(watched_relation) && IsEmpty(watched_database)))
		return false;
	if (!IsBuried(&locator))
		return false;
	CountSkippedWrite();
	return true;
}

/*
 * Announce a write.  Returns true when the relation is buried, and then the
 * caller must not write and nothing is announced.  Otherwise it ends its write,
 * after it has left a sync request, with LazyDropEndWrite.
 *
 * Takes no lock, unless an entry shares a bucket with the relation or its database.
 */
bool
LazyDropAnnounceWrite(const BufferTag *tag)
{
	LazyDropAnnouncement *mine;
	RelFileLocator locator = BufTagGetRelFileLocator(tag);

	INJECTION_POINT("lazydrop-announce", NULL);
	mine = &LazyDropCtl->announcements[MyProcNumber].announcement;
	mine->locator = locator;
	pg_write_barrier();
	pg_atomic_write_u32(&mine->generation,
						(pg_atomic_read_u32(&mine->generation) + 2) | 1);

	/*
	 * The fence, and only then the buckets.  The other way round, a relation
	 * buried between the two would find no announcement and be written to.
	 */
	pg_memory_barrier();
	INJECTION_POINT("lazydrop-announced", NULL);
	if (likely(IsEmpty(watched_relation) && IsEmpty(watched_database)))
		return false;
	if (!IsBuried(&locator))
		return false;

	LazyDropEndWrite();
	CountSkippedWrite();
	return true;
}

/*
 * End the announcement of a write, if there is one.  Also called when the write
 * has failed.
 */
void
LazyDropEndWrite(void)
{
	LazyDropAnnouncement *mine;
	uint32		generation;

	mine = &LazyDropCtl->announcements[MyProcNumber].announcement;
	generation = pg_atomic_read_u32(&mine->generation);
	if (generation & 1)
	{
		pg_write_barrier();
		pg_atomic_write_u32(&mine->generation, generation + 1);
	}
}

/*
 * Whether the last buffer that this process flushed was not written because its
 * relation is buried: then it is no part of any budget, and there is nothing to
 * write back.  Tells it once.
 */
bool
LazyDropWriteWasSkipped(void)
{
	bool		result = write_was_skipped;

	write_was_skipped = false;
	return result;
}


/* ---------------------------------------------------------------------
 * Creators (rule R3)
 * ---------------------------------------------------------------------
 */

static bool
MatchesDatabase(const RelFileLocator *entry, const void *arg)
{
	return entry->dbOid == *(const Oid *) arg;
}

static bool
MatchesTablespace(const RelFileLocator *entry, const void *arg)
{
	return entry->spcOid == *(const Oid *) arg;
}

static bool
MatchesRelation(const RelFileLocator *entry, const void *arg)
{
	const RelFileLocator *relation = arg;

	return entry->dbOid == relation->dbOid &&
		entry->spcOid == relation->spcOid &&
		(entry->relNumber == relation->relNumber ||
		 !RelFileNumberIsValid(entry->relNumber));
}

static bool
SettlePause(uint64 bytes)
{
	if (AmStartupProcess())
		ProcessStartupProcInterrupts();
	else
		CHECK_FOR_INTERRUPTS();
	return true;
}

/*
 * Settle the entries that match, of whichever owner, for a process that is about to create
 * something under their names.  The caller holds no LWLock and is in no critical section; it
 * may have seen ("seen") an entry that matches before.  Returns whether there were any.
 */
static bool
SettleMatching(LazyDropMatch matches, const void *arg, bool seen)
{
	bool		settled = seen;

	Assert(CritSectionCount == 0);

	for (;;)
	{
		bool		found = false;
		bool		can_own = false;
		int64		steal_before;
		LazyDropJob jobs[SETTLE_BATCH];
		int			njobs;
		dlist_iter	iter;

		/*
		 * Files are removed by the process that needs them gone, at full
		 * speed. What matches is found by looking at all entries, so not for
		 * each anew.
		 */
		njobs = LazyDropFindJobs(LAZYDROP_FILES_READY, false, 0, PG_UINT64_MAX,
								 matches, arg, jobs, lengthof(jobs));
		for (int i = 0; i < njobs; i++)
			LazyDropRemoveFiles(&jobs[i], SettlePause);
		if (njobs > 0)
		{
			settled = true;
			continue;
		}

		/*
		 * Wait a while for a pass that is at it.  It may be stuck, and
		 * waiting for it is never the only way on (rule R6).
		 */
		steal_before = LazyDropNow() - CREATOR_PATIENCE_MS * INT64CONST(1000000);

		LWLockAcquire(&LazyDropCtl->lock, LW_SHARED);
		dlist_foreach(iter, &LazyDropCtl->pending)
		{
			LazyDropEntry *entry = dlist_container(LazyDropEntry, node,
												   iter.cur);

			if (!matches(&entry->locator, arg))
				continue;
			found = true;
			if (LazyDropCanOwn(entry, steal_before))
			{
				can_own = true;
				break;
			}
		}
		LWLockRelease(&LazyDropCtl->lock);
		if (!found)
			break;
		settled = true;

		/*
		 * What is left after a pass has a buffer that is still pinned, or has
		 * been taken by another creator: be patient again.  Or its dropper is
		 * not through yet, or a process is in the middle of a system call on
		 * a file, or a directory is to be read once more.
		 */
		if (!can_own || !LazyDropPass(steal_before, matches, arg))
		{
			/* our own pass has broadcast, so prepare only now */
			ConditionVariablePrepareToSleep(&LazyDropCtl->settled_cv);
			(void) ConditionVariableTimedSleep(&LazyDropCtl->settled_cv, 100,
											   LazyDropCtl->wait_event_reuse);
			(void) SettlePause(0);
		}
	}
	ConditionVariableCancelSleep();

	/*
	 * Processes that do not read sinval messages may have a descriptor of the
	 * old file, and would write what is the new one's into it.  A caller that
	 * holds interrupts must not wait, because it would wait for itself; there
	 * is none in core.
	 */
	if (settled && IsUnderPostmaster)
	{
		uint64		generation = EmitProcSignalBarrier(PROCSIGNAL_BARRIER_SMGRRELEASE);

		Assert(INTERRUPTS_CAN_BE_PROCESSED());
		if (INTERRUPTS_CAN_BE_PROCESSED())
			WaitForProcSignalBarrier(generation);
	}
	return settled;
}

/*
 * See to it that entries which match, and are not newer than "last_serial", have no files
 * under their own names, or, without "hide", none at all.  Buffers do not matter.  The
 * caller holds no LWLock.
 */
static void
ClearFiles(LazyDropMatch matches, const void *arg, uint64 last_serial, bool hide)
{
	uint64		first_serial = 0;

	for (;;)
	{
		bool		found = false;
		LazyDropJob jobs[SETTLE_BATCH];
		int			njobs;
		dlist_head *lists[] = {&LazyDropCtl->removals, &LazyDropCtl->hidden_removals};
		dlist_iter	iter;

		njobs = LazyDropFindJobs(LAZYDROP_FILES_READY, hide,
								 hide ? first_serial : 0, last_serial,
								 matches, arg, jobs, lengthof(jobs));
		for (int i = 0; i < njobs; i++)
		{
			if (hide)
				(void) LazyDropHideOrRemove(&jobs[i], SettlePause);
			else
				LazyDropRemoveFiles(&jobs[i], SettlePause);
			first_serial = jobs[i].serial + 1;
		}
		if (njobs == lengthof(jobs))
			continue;

		/*
		 * A dropper is not through yet, or another process is hiding files;
		 * or a directory could not be read, and is to be removed.  To hide
		 * one that cannot even be renamed is tried once.
		 */
		first_serial = 0;
		LWLockAcquire(&LazyDropCtl->lock, LW_SHARED);
		for (int i = 0; i < (hide ? 1 : lengthof(lists)) && !found; i++)
		{
			dlist_foreach(iter, lists[i])
			{
				LazyDropEntry *entry = dlist_container(LazyDropEntry, files_node,
													   iter.cur);

				if (entry->serial <= last_serial &&
					!(hide && entry->nfailures > 0 && !entry->hiding) &&
					matches(&entry->locator, arg))
				{
					found = true;
					break;
				}
			}
		}
		LWLockRelease(&LazyDropCtl->lock);
		if (!found)
			break;
		ConditionVariablePrepareToSleep(&LazyDropCtl->settled_cv);
		(void) ConditionVariableTimedSleep(&LazyDropCtl->settled_cv, 10,
										   LazyDropCtl->wait_event_settle);
		(void) SettlePause(0);
	}
	ConditionVariableCancelSleep();
	LazyDropWakeWorker();
}

static void
CountReuseWait(bool waited)
{
	if (waited)
		pg_atomic_fetch_add_u64(&LazyDropCtl->reuse_waits, 1);
}

/*
 * Called before storage is created under a name that may be buried, by itself or
 * because its database is in that tablespace.  The caller must not hold an LWLock
 * or interrupts.  Replay calls this for every record that refers to a relation.
 */
void
LazyDropSettleRelation(SMgrRelation reln)
{
	RelFileLocator locator = reln->smgr_rlocator.locator;

	if (LazyDropNothingPending() || SmgrIsTemp(reln) || !IsBuried(&locator))
		return;
	CountReuseWait(SettleMatching(MatchesRelation, &locator, true));
}

/*
 * Called before a database, or a directory of it, is created: settles every entry of the
 * database, those of its relations included.
 */
void
LazyDropSettleDatabase(Oid dboid)
{
	if (!LazyDropNothingPending())
		CountReuseWait(SettleMatching(MatchesDatabase, &dboid, false));
}

/*
 * Called before the directories of a database are copied: what has been dropped is not to
 * be copied with the rest (rule R10).
 */
void
LazyDropHideDatabase(Oid dboid)
{
	if (!LazyDropNothingPending())
		ClearFiles(MatchesDatabase, &dboid, PG_UINT64_MAX, true);
}

/*
 * Called before a tablespace is dropped: removes the files that are pending in it now.
 * In replay, "lsn" is the end of the record, and the minimum recovery point is moved
 * past it (rule R10).
 */
void
LazyDropClearTablespace(Oid spcoid, XLogRecPtr lsn)
{
	uint64		last_serial;

	if (!XLogRecPtrIsInvalid(lsn))
		XLogFlush(lsn);
	if (LazyDropNothingPending())
		return;
	LWLockAcquire(&LazyDropCtl->lock, LW_SHARED);
	last_serial = LazyDropCtl->last_serial;
	LWLockRelease(&LazyDropCtl->lock);
	ClearFiles(MatchesTablespace, &spcoid, last_serial, false);
}

/*
 * Called at the end of recovery, before unlogged relations are reset: hides the files of
 * what is pending, which stays so (rule R16).  Without a worker, there is
 * one pass.
 */
void
LazyDropEndRecovery(void)
{
	bool		worker;

	if (LazyDropNothingPending())
		return;
	worker = LazyDropHaveWorker();
	ClearFiles(MatchesAll, NULL, PG_UINT64_MAX, true);
	if (!worker)
		(void) LazyDropPass(0, NULL, NULL);
}

/*
 * Wait until all that is pending now is done: its buffers are invalidated and its
 * files removed.  The worker is asked not to wait for lazydrop.pass_delay; without one,
 * others may do it (rule R6).  Returns false when "timeout_ms" milliseconds were not
 * enough; less than zero is no limit.  Can be cancelled.  Either way what has been
 * asked of the worker stays asked.
 *
 * The caller holds no LWLock.
 */
bool
LazyDropDrain(int64 timeout_ms)
{
	int64		now = LazyDropNow();
	int64		deadline = PG_INT64_MAX;
	uint64		last_serial;

	if (timeout_ms >= 0 && timeout_ms <= (PG_INT64_MAX - now) / 1000000)
		deadline = now + timeout_ms * 1000000;

	LWLockAcquire(&LazyDropCtl->lock, LW_EXCLUSIVE);
	last_serial = LazyDropCtl->last_serial;
	LazyDropCtl->drain_serial = last_serial;
	LWLockRelease(&LazyDropCtl->lock);
	LazyDropWakeWorker();

	for (;;)
	{
		bool		found = false;
		dlist_iter	iter;

		/* before the look, so that what is done after it wakes us */
		ConditionVariablePrepareToSleep(&LazyDropCtl->settled_cv);

		/* what has been buried again since then is still what it was */
		LWLockAcquire(&LazyDropCtl->lock, LW_SHARED);
		dlist_foreach(iter, &LazyDropCtl->pending)
		{
			if (dlist_container(LazyDropEntry, node, iter.cur)->first_serial <= last_serial)
			{
				found = true;
				break;
			}
		}
		LWLockRelease(&LazyDropCtl->lock);
		if (!found)
			break;
		now = LazyDropNow();
		if (now >= deadline)
		{
			ConditionVariableCancelSleep();
			return false;
		}

		(void) ConditionVariableTimedSleep(&LazyDropCtl->settled_cv,
										   Min(1000, (deadline - now) / 1000000 + 1),
										   LazyDropCtl->wait_event_drain);
		CHECK_FOR_INTERRUPTS();
	}
	ConditionVariableCancelSleep();
	return true;
}

/*
 * Whether a relfilenumber is taken by a pending entry.  The entry of a whole
 * database takes no number: it would take all of them.
 */
bool
LazyDropRelationIsPending(RelFileLocatorBackend rlocator)
{
	bool		result;

	if (LazyDropNothingPending() || RelFileLocatorBackendIsTemp(rlocator))
		return false;
	LWLockAcquire(&LazyDropCtl->lock, LW_SHARED);
	result = LazyDropFindEntry(&rlocator.locator) != NULL;
	LWLockRelease(&LazyDropCtl->lock);
	return result;
}

/*
 * Whether a database OID is taken by a pending entry.
 */
bool
LazyDropDatabaseIsPending(Oid dboid)
{
	bool		result = false;
	dlist_iter	iter;

	if (LazyDropNothingPending())
		return false;
	LWLockAcquire(&LazyDropCtl->lock, LW_SHARED);
	dlist_foreach(iter, &LazyDropCtl->pending)
	{
		LazyDropEntry *entry = dlist_container(LazyDropEntry, node, iter.cur);

		if (entry->locator.dbOid == dboid)
		{
			result = true;
			break;
		}
	}
	LWLockRelease(&LazyDropCtl->lock);
	return result;
}

/*
 * Settle every entry of a database, as LazyDropSettleDatabase does; and invalidate
 * the buffers that it has in one tablespace whether they are buried or not, and
 * forget the sync requests for its files there (rule R2).
 *
 * For replay of CREATE DATABASE by file copy, of which relations are not created one
 * by one.  Normally there is nothing of that name, and when there is no directory,
 * there are no pages but those of entries.  But the primary may have crashed with files
 * there that nobody knows, and a standby has their pages and requests.
 */
void
LazyDropInvalidateDatabase(Oid spcoid, Oid dboid)
{
	RelFileLocator locator = {spcoid, dboid, InvalidRelFileNumber};
	char	   *path = GetDatabasePath(dboid, spcoid);
	struct stat st;
	bool		is_new = lstat(path, &st) < 0 && errno == ENOENT;

	pfree(path);
	LazyDropSettleDatabase(dboid);
	if (is_new)
		return;
	for (;;)
	{
		bool		added;

		LWLockAcquire(&LazyDropCtl->lock, LW_EXCLUSIVE);
		added = AddEntry(&locator, LAZYDROP_FILES_NONE, InvalidXLogRecPtr,
						 LazyDropNow());
		LWLockRelease(&LazyDropCtl->lock);
		if (added)
			break;
		if (LazyDropPass(LazyDropNow() - CREATOR_PATIENCE_MS * INT64CONST(1000000),
						 MatchesAll, NULL))
			continue;

		/* Files, or a process that has stopped within a step, keep it full. */
		ClearFiles(MatchesAll, NULL, PG_UINT64_MAX, false);
		ConditionVariablePrepareToSleep(&LazyDropCtl->settled_cv);
		(void) ConditionVariableTimedSleep(&LazyDropCtl->settled_cv, 100,
										   LazyDropCtl->wait_event_reuse);
		ConditionVariableCancelSleep();
		(void) SettlePause(0);
	}
	FinishBurial(&locator, 1);
	(void) SettleMatching(MatchesDatabase, &dboid, true);
	ForgetDirectorySyncRequests(spcoid, dboid);
}

/*
 * Replay of CREATE DATABASE or ALTER DATABASE SET TABLESPACE has copied files; lsn is
 * the end of its record.
 */
void
LazyDropFileCopyReplayed(XLogRecPtr lsn)
{
	last_file_copy = lsn;
}

/*
 * Replay of a checkpoint record, with this redo pointer, has noted it as one from which
 * a restartpoint can be made.  Make it at once when files have been copied since the
 * last one, and wait for it.
 *
 * The record of a copy must not be replayed again when its source has changed or is gone:
 * the primary makes a checkpoint for that, so a standby makes a restartpoint before it
 * goes on (doc/upstream/moved-database.md).  If that fails, the next checkpoint record is
 * the next chance.  If the last copy is not before this checkpoint, an earlier one may be.
 */
void
LazyDropRestartAfterFileCopy(XLogRecPtr redo)
{
	MemoryContext context = CurrentMemoryContext;

	if (XLogRecPtrIsInvalid(last_file_copy) || !InArchiveRecovery ||
		!IsUnderPostmaster)
		return;
	PG_TRY();
	{
		RequestCheckpoint(CHECKPOINT_IMMEDIATE | CHECKPOINT_WAIT);
		if (last_file_copy <= redo)
			last_file_copy = InvalidXLogRecPtr;
	}
	PG_CATCH();
	{
		MemoryContextSwitchTo(context);
		FlushErrorState();
	}
	PG_END_TRY();
}


/* ---------------------------------------------------------------------
 * Partial truncation (rule R12)
 * ---------------------------------------------------------------------
 */

/*
 * Remember the sizes that the forks of a relation have before it is truncated.
 * The caller has determined them under AccessExclusiveLock, so they are exact,
 * and DropRelationBuffers can look the blocks up when they are few, as it does in
 * recovery.  May be in a critical section.
 */
void
LazyDropBeginTruncate(SMgrRelation reln, const ForkNumber *forknum, int nforks,
					  const BlockNumber *old_nblocks)
{
	truncating = false;
	if (!lazydrop_enabled || SmgrIsTemp(reln))
		return;
	for (int i = 0; i <= MAX_FORKNUM; i++)
		truncate_sizes[i] = InvalidBlockNumber;
	for (int i = 0; i < nforks; i++)
		truncate_sizes[forknum[i]] = old_nblocks[i];
	truncating_rlocator = reln->smgr_rlocator;
	truncating = true;
}

/*
 * The size of a fork of the relation that is being truncated, or
 * InvalidBlockNumber when it is not known.
 */
BlockNumber
LazyDropTruncateSize(SMgrRelation reln, ForkNumber forknum)
{
	if (!truncating ||
		!RelFileLocatorBackendEquals(truncating_rlocator, reln->smgr_rlocator))
		return InvalidBlockNumber;
	return truncate_sizes[forknum];
}

/*
 * The buffers have been dropped.
 */
void
LazyDropEndTruncate(void)
{
	truncating = false;
}
