/*-------------------------------------------------------------------------
 *
 * lazydrop.c
 *	  The set of buried relations and databases.
 *
 * Stock PostgreSQL gets rid of the buffers of something that is dropped by
 * looking at every buffer header, in the process that drops it.  Here the
 * dropper buries the identity, that is, puts an entry into a small set in
 * shared memory, and goes on; a background worker invalidates the buffers of
 * all entries in one pass over the headers (lazydrop_pass.c).
 *
 * Until then there are buffers, possibly dirty, of something whose files are
 * gone.  What makes that harmless are the rules in README: nobody writes such a
 * buffer (R1), nobody creates storage under a buried name before the entry is
 * settled (R3), a name that lives on is never buried (R4), only the owner of an
 * entry deletes it (R5), and a drop that does not fit into the set is done as
 * stock does it (R6).
 *
 * Copyright (c) 2026, LazyDrop developers
 *
 * IDENTIFICATION
 *	  src/backend/storage/lazydrop/lazydrop.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/heapam.h"
#include "access/htup_details.h"
#include "access/table.h"
#include "access/xlog.h"
#include "catalog/pg_tablespace.h"
#include "catalog/pg_tablespace_d.h"
#include "common/hashfn.h"
#include "miscadmin.h"
#include "pgstat.h"
#include "portability/instr_time.h"
#include "storage/aio_internal.h"
#include "storage/aio_subsys.h"
#include "storage/buf_internals.h"
#include "storage/bufmgr.h"
#include "storage/bufpage.h"
#include "storage/lazydrop.h"
#include "storage/lazydrop_internal.h"
#include "storage/proc.h"
#include "storage/procsignal.h"
#include "storage/sync.h"
#include "utils/injection_point.h"
#include "utils/memutils.h"
#include "utils/wait_event.h"

/*
 * How long an owner is waited for before the entries are taken from it: by
 * somebody who is about to create storage under the name, and by a dropper that
 * finds the set full.  Longer than a pass takes with any ordinary setting of
 * shared_buffers; when it is not, buffers are looked at twice and no harm is
 * done (rule R5).
 */
#define CREATOR_PATIENCE_MS		1000
#define DROPPER_PATIENCE_MS		10000

/* How many entries are deleted before the lock is let go for a moment. */
#define DELETE_BATCH			256

/* Below that many drops, comparing one by one is cheaper than bsearch. */
#define BSEARCH_THRESHOLD		8

/*
 * Of the relations handed to LazyDropBuryRelations, those that were buried, for
 * the call of DropRelationsAllBuffers that follows at once.
 */
static RelFileLocator *just_buried = NULL;
static int	njust_buried = 0;

/* whether the last FlushBuffer of this process did not write */
static bool write_was_skipped = false;

/* the truncation under way in this process, for rule R12 */
static bool truncating = false;
static RelFileLocatorBackend truncating_rlocator;
static BlockNumber truncate_sizes[MAX_FORKNUM + 1];

static bool SettleMatching(LazyDropMatch matches, const void *arg,
						   bool seen, bool for_creator);


/* ---------------------------------------------------------------------
 * The set
 * ---------------------------------------------------------------------
 */

static inline int *
BucketOf(const RelFileLocator *locator)
{
	uint32		hash;

	hash = hash_combine(hash_combine(murmurhash32(locator->relNumber),
									 murmurhash32(locator->dbOid)),
						murmurhash32(locator->spcOid));
	return &LazyDropCtl->buckets[hash & (LazyDropCtl->nbuckets - 1)];
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
static LazyDropEntry *
FindBurial(const RelFileLocator *locator)
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

	LWLockAcquire(&LazyDropCtl->lock, LW_SHARED);
	result = FindBurial(locator) != NULL;
	LWLockRelease(&LazyDropCtl->lock);
	return result;
}

/*
 * Add an entry, unless it is there.  The caller holds the lock in exclusive
 * mode.  Returns false when the set is full.
 */
static bool
AddEntry(const RelFileLocator *locator, int64 now)
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
		return true;
	}

	if (dlist_is_empty(&LazyDropCtl->unused))
		return false;

	entry = dlist_container(LazyDropEntry, node,
							dlist_pop_head_node(&LazyDropCtl->unused));
	entry->locator = *locator;
	entry->owner = 0;
	entry->again = false;
	entry->buried_at_ns = now;
	entry->owned_at_ns = 0;

	bucket = BucketOf(locator);
	entry->next = *bucket;
	*bucket = (int) (entry - LazyDropCtl->entries);
	dlist_push_tail(&LazyDropCtl->pending, &entry->node);
	if (!RelFileNumberIsValid(locator->relNumber))
		LazyDropCtl->ndatabases++;
	pg_atomic_write_u32(&LazyDropCtl->npending.value,
						pg_atomic_read_u32(&LazyDropCtl->npending.value) + 1);
	return true;
}

static void
DeleteEntry(LazyDropEntry *entry)
{
	int			index = (int) (entry - LazyDropCtl->entries);
	int		   *link = BucketOf(&entry->locator);

	while (*link != index)
		link = &LazyDropCtl->entries[*link].next;
	*link = entry->next;

	dlist_delete(&entry->node);
	dlist_push_head(&LazyDropCtl->unused, &entry->node);
	if (!RelFileNumberIsValid(entry->locator.relNumber))
		LazyDropCtl->ndatabases--;
	pg_atomic_write_u32(&LazyDropCtl->npending.value,
						pg_atomic_read_u32(&LazyDropCtl->npending.value) - 1);
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
 * Become the owner of every entry that nobody owns, and of those that match, if
 * "matches" is given, and that somebody has owned since before "steal_before" (0
 * for nobody), as LazyDropNow has it.
 *
 * Returns the new owner's number, and up to "room" locators in the caller's array;
 * 0 when there is nothing to own.  Allocates nothing.  The caller must see to it
 * that LazyDropDisownEntries is called however it ends (rule R5).
 */
uint32
LazyDropOwnEntries(int64 steal_before, LazyDropMatch matches, const void *arg,
				   RelFileLocator *locators, int room, int *nlocators)
{
	int			n = 0;
	uint32		owner = 0;
	int64		now = LazyDropNow();
	dlist_iter	iter;

	LWLockAcquire(&LazyDropCtl->lock, LW_EXCLUSIVE);
	dlist_foreach(iter, &LazyDropCtl->pending)
	{
		LazyDropEntry *entry = dlist_container(LazyDropEntry, node, iter.cur);

		if (n >= room)
			break;
		if (entry->owner != 0 &&
			(entry->owned_at_ns >= steal_before ||
			 (matches != NULL && !matches(&entry->locator, arg))))
			continue;
		if (owner == 0)
		{
			/* 0 is nobody */
			if (++LazyDropCtl->last_owner == 0)
				++LazyDropCtl->last_owner;
			owner = LazyDropCtl->last_owner;
		}
		entry->owner = owner;
		entry->again = false;
		entry->owned_at_ns = now;
		locators[n++] = entry->locator;
	}
	LWLockRelease(&LazyDropCtl->lock);

	*nlocators = n;
	return owner;
}

/*
 * Give up whatever entries an owner still has, so that others can settle them.
 */
void
LazyDropDisownEntries(uint32 owner)
{
	dlist_iter	iter;
	bool		any = false;

	LWLockAcquire(&LazyDropCtl->lock, LW_EXCLUSIVE);
	dlist_foreach(iter, &LazyDropCtl->pending)
	{
		LazyDropEntry *entry = dlist_container(LazyDropEntry, node, iter.cur);

		if (entry->owner == owner)
		{
			entry->owner = 0;
			entry->again = false;
			any = true;
		}
	}
	LWLockRelease(&LazyDropCtl->lock);
	if (any)
		ConditionVariableBroadcast(&LazyDropCtl->settled_cv);
}

/*
 * Delete entries whose buffers are all gone, as far as they are still the
 * owner's and have not been buried once more.  Tells how many of each kind.
 */
void
LazyDropDeleteEntries(uint32 owner, const RelFileLocator *locators,
					  int nlocators, int *nrelations, int *ndatabases)
{
	*nrelations = *ndatabases = 0;

	LWLockAcquire(&LazyDropCtl->lock, LW_EXCLUSIVE);
	for (int i = 0; i < nlocators; i++)
	{
		LazyDropEntry *entry;

		/* Let writers in: there may be very many. */
		if (i % DELETE_BATCH == DELETE_BATCH - 1)
		{
			LWLockRelease(&LazyDropCtl->lock);
			LWLockAcquire(&LazyDropCtl->lock, LW_EXCLUSIVE);
		}

		entry = LazyDropFindEntry(&locators[i]);
		if (entry == NULL || entry->owner != owner)
			continue;
		if (entry->again)
		{
			entry->owner = 0;
			entry->again = false;
		}
		else
		{
			if (RelFileNumberIsValid(entry->locator.relNumber))
				(*nrelations)++;
			else
				(*ndatabases)++;
			DeleteEntry(entry);
		}
	}
	LWLockRelease(&LazyDropCtl->lock);
	ConditionVariableBroadcast(&LazyDropCtl->settled_cv);
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
 * for all of it, and the end of recovery settles the rest (rule R6).
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
			pgstat_report_wait_start(WAIT_EVENT_BUFFER_IO);
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
 * Whoever started such a read did so under a lock that conflicted with ours and
 * has been released, so the read is in its list of IOs in flight by now.  That
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

/*
 * Make room in a full set: settle what nobody owns, or has owned for so long that
 * its owner must be stuck.  We may be at the end of a transaction, where running
 * out of memory must not be an error; then there is no room.
 */
static void
MakeRoom(void)
{
	(void) LazyDropPass(LazyDropNow() - DROPPER_PATIENCE_MS * INT64CONST(1000000),
						NULL, NULL, true);
}

/*
 * Put entries into the set, all of them or none (rule R6), and wake the worker.
 * Returns whether they are there.
 *
 * The worker is woken before FinishBurial, because that can be interrupted.  The
 * entries are complete (rule R7), and it settles none too early: a write or a read
 * that is under way has its buffer pinned.
 */
static bool
AddEntries(const RelFileLocator *locators, int n)
{
	bool		wake;
	bool		fits;
	int64		now;

	if (n > LazyDropCtl->capacity)
		return false;
	if (pg_atomic_read_u32(&LazyDropCtl->npending.value) + n >
		LazyDropCtl->capacity)
		MakeRoom();

	now = LazyDropNow();
	LWLockAcquire(&LazyDropCtl->lock, LW_EXCLUSIVE);
	wake = dlist_is_empty(&LazyDropCtl->pending);
	fits = pg_atomic_read_u32(&LazyDropCtl->npending.value) + n <=
		LazyDropCtl->capacity;
	for (int i = 0; fits && i < n; i++)
	{
		if (!AddEntry(&locators[i], now))
			elog(PANIC, "lazy drop set is full");
	}
	wake |= pg_atomic_read_u32(&LazyDropCtl->npending.value) >=
		LazyDropCtl->capacity / 2;
	LWLockRelease(&LazyDropCtl->lock);

	if (fits && wake)
		LazyDropWakeWorker();
	return fits;
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
 * When this returns, nobody writes to the files of those relations any more and
 * no read of them is in flight (rule R1), so that the caller may forget their
 * sync requests (rule R2) and remove their files.
 */
void
LazyDropBuryRelations(SMgrRelation *rels, int nrels)
{
	RelFileLocator *locators;
	int			n = 0;

	just_buried = NULL;
	njust_buried = 0;

	for (int i = 0; i < nrels; i++)
	{
		if (!RelFileLocatorBackendIsTemp(rels[i]->smgr_rlocator))
			n++;
	}
	if (n == 0 || !MayBury(n))
		return;

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
	if (!AddEntries(locators, n))
	{
		pg_atomic_fetch_add_u64(&LazyDropCtl->sync_fallbacks, n);
		pfree(locators);
		return;
	}
	pg_atomic_fetch_add_u64(&LazyDropCtl->buried_relations, n);

	qsort(locators, n, sizeof(RelFileLocator), LazyDropCompareLocators);
	FinishBurial(locators, n);
	just_buried = locators;
	njust_buried = n;
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
	RelFileLocator *buried = just_buried;
	int			nburied = njust_buried;

	if (buried == NULL)
		return;
	just_buried = NULL;
	njust_buried = 0;

	for (int i = 0; i < *nrels; i++)
	{
		SMgrRelation rel = (*rels)[i];

		if (!RelFileLocatorBackendIsTemp(rel->smgr_rlocator) &&
			IsAmong(&rel->smgr_rlocator.locator, buried, nburied))
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
	pfree(buried);
}

/*
 * Bury a database in so many tablespaces: in all of them or, when they do not
 * all fit, in none (rule R6).  Returns whether it is buried.
 */
static bool
BuryDatabase(Oid dboid, int ntablespaces, const Oid *tablespaces)
{
	RelFileLocator *locators;
	bool		fits;

	locators = palloc_array(RelFileLocator, ntablespaces);
	for (int i = 0; i < ntablespaces; i++)
	{
		locators[i].spcOid = tablespaces[i];
		locators[i].dbOid = dboid;
		locators[i].relNumber = InvalidRelFileNumber;
	}

	fits = AddEntries(locators, ntablespaces);
	if (fits)
	{
		pg_atomic_fetch_add_u64(&LazyDropCtl->buried_databases, 1);
		qsort(locators, ntablespaces, sizeof(RelFileLocator),
			  LazyDropCompareLocators);
		FinishBurial(locators, ntablespaces);
	}
	else
		pg_atomic_fetch_add_u64(&LazyDropCtl->sync_fallbacks, 1);
	pfree(locators);
	return fits;
}

/*
 * Bury a database that DROP DATABASE drops, in every tablespace there is: it may
 * have buffers even where its directory has been lost.  The caller has made sure
 * that nobody uses it and nobody can begin to.  Returns false when the caller must
 * drop its buffers as stock does.
 */
bool
LazyDropBuryDatabase(Oid dboid)
{
	Relation	rel;
	TableScanDesc scan;
	HeapTuple	tuple;
	List	   *tablespaces = NIL;
	Oid		   *array;
	int			n = 0;
	bool		result;

	if (!MayBury(1))
		return false;

	rel = table_open(TableSpaceRelationId, AccessShareLock);
	scan = table_beginscan_catalog(rel, 0, NULL);
	while ((tuple = heap_getnext(scan, ForwardScanDirection)) != NULL)
	{
		Oid			spcoid = ((Form_pg_tablespace) GETSTRUCT(tuple))->oid;

		if (spcoid != GLOBALTABLESPACE_OID)
			tablespaces = lappend_oid(tablespaces, spcoid);
	}
	table_endscan(scan);
	table_close(rel, AccessShareLock);

	array = palloc_array(Oid, list_length(tablespaces));
	foreach_oid(spcoid, tablespaces)
		array[n++] = spcoid;
	result = BuryDatabase(dboid, n, array);
	pfree(array);
	list_free(tablespaces);
	return result;
}

/*
 * The same in replay, for exactly the tablespaces that the record names: when it
 * comes from ALTER DATABASE SET TABLESPACE, the database lives on in another
 * (rule R4).
 */
bool
LazyDropBuryDatabaseRedo(Oid dboid, int ntablespaces, const Oid *tablespaces)
{
	if (ntablespaces == 0 || !MayBury(1))
		return false;
	return BuryDatabase(dboid, ntablespaces, tablespaces);
}

/*
 * Forget the sync requests for files that a database has in one tablespace.
 */
static void
ForgetDirectorySyncRequests(Oid spcoid, Oid dboid)
{
	FileTag		tag;

	memset(&tag, 0, sizeof(tag));
	tag.handler = SYNC_HANDLER_MD;
	tag.forknum = InvalidForkNumber;
	tag.segno = InvalidBlockNumber;
	tag.rlocator.spcOid = spcoid;
	tag.rlocator.dbOid = dboid;
	RegisterSyncRequest(&tag, SYNC_FILTER_REQUEST, true);
}

/*
 * In replay of the removal of a database's directories, forget the sync requests
 * for files in them, and for no others (rule R2): stock goes by the database
 * alone, and so forgets to sync files that live on in third tablespaces when a
 * database is moved.  A database that is dropped has no others, and may have very
 * many of these, so then stock's one request does.  Returns whether it was done
 * here.
 */
bool
LazyDropForgetSyncRequests(Oid dboid, int ntablespaces, const Oid *tablespaces)
{
	if (!lazydrop_enabled || ntablespaces != 1)
		return false;
	ForgetDirectorySyncRequests(tablespaces[0], dboid);
	return true;
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

/*
 * Whether there is no point in writing a buffer, nor in flushing WAL for it,
 * because its relation is buried.  When it is not now, it may be later on: this
 * only saves the work.
 *
 * The caller has the buffer pinned and its I/O started, and has cleared
 * BM_JUST_DIRTIED, so that it can leave the buffer clean.
 */
bool
LazyDropWriteIsVain(const BufferTag *tag)
{
	RelFileLocator locator;

	write_was_skipped = false;
	if (LazyDropNothingPending())
		return false;
	locator = BufTagGetRelFileLocator(tag);
	if (!IsBuried(&locator))
		return false;
	CountSkippedWrite();
	return true;
}

/*
 * Announce a write.  Returns true when the relation is buried, and then the
 * caller must not write and nothing is announced.  Otherwise it ends its write,
 * after it has left a sync request, with LazyDropEndWrite.
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
	 * The fence, and only then the counter.  The other way round, a relation
	 * buried between the two would find no announcement and be written to.
	 */
	pg_memory_barrier();
	INJECTION_POINT("lazydrop-announced", NULL);
	if (LazyDropNothingPending() || !IsBuried(&locator))
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
MatchesAll(const RelFileLocator *entry, const void *arg)
{
	return true;
}

static bool
MatchesDatabase(const RelFileLocator *entry, const void *arg)
{
	return entry->dbOid == *(const Oid *) arg;
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

/*
 * Settle the entries that match, whoever owns them.  The caller holds no LWLock
 * and is in no critical section; it may have seen ("seen") an entry that matches
 * before.  Returns whether there were any.
 */
static bool
SettleMatching(LazyDropMatch matches, const void *arg, bool seen,
			   bool for_creator)
{
	bool		settled = seen;

	Assert(CritSectionCount == 0);

	for (;;)
	{
		bool		found = false;
		bool		can_own = false;
		int64		steal_before;
		dlist_iter	iter;

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
			if (entry->owner == 0 || entry->owned_at_ns < steal_before)
				can_own = true;
		}
		LWLockRelease(&LazyDropCtl->lock);
		if (!found)
			break;
		settled = true;

		/*
		 * What is left after a pass has a buffer that somebody does not let
		 * go, or has been taken by another creator: be patient again.
		 */
		if (!can_own || !LazyDropPass(steal_before, matches, arg, false))
			(void) ConditionVariableTimedSleep(&LazyDropCtl->settled_cv, 100,
											   LazyDropCtl->wait_event_settle);
	}
	ConditionVariableCancelSleep();

	/*
	 * Processes that do not read sinval messages may have a descriptor of the
	 * old file, and would write what is the new one's into it.  A caller that
	 * holds interrupts must not wait, because it would wait for itself; there
	 * is none in core.
	 */
	if (settled && for_creator && IsUnderPostmaster)
	{
		uint64		generation = EmitProcSignalBarrier(PROCSIGNAL_BARRIER_SMGRRELEASE);

		Assert(INTERRUPTS_CAN_BE_PROCESSED());
		if (INTERRUPTS_CAN_BE_PROCESSED())
			WaitForProcSignalBarrier(generation);
	}
	return settled;
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
 * or interrupts.
 *
 * Replay calls this for every record that refers to a relation; a file that is open
 * there belongs to nothing that is buried.
 */
void
LazyDropSettleRelation(SMgrRelation reln, ForkNumber forknum, bool isRedo)
{
	RelFileLocator locator = reln->smgr_rlocator.locator;

	if (LazyDropNothingPending() ||
		SmgrIsTemp(reln) ||
		(isRedo && reln->md_num_open_segs[forknum] > 0) ||
		!IsBuried(&locator))
		return;
	CountReuseWait(SettleMatching(MatchesRelation, &locator, true, true));
}

/*
 * Called before a database, or a directory of it, is created: settles every entry
 * of the database, those of its relations included.
 */
void
LazyDropSettleDatabase(Oid dboid)
{
	if (!LazyDropNothingPending())
		CountReuseWait(SettleMatching(MatchesDatabase, &dboid, false, true));
}

/*
 * Settle everything that is pending now, at the end of recovery.  No barrier: a name
 * that lives by now came back, if ever, when it was created, and promotion should
 * not wait for whoever is slow to take part in a barrier.
 */
void
LazyDropSettleAll(void)
{
	if (!LazyDropNothingPending())
		(void) SettleMatching(MatchesAll, NULL, false, false);
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
 * by one.  Normally there is nothing of that name.  But the primary may have crashed
 * with files there that nobody knows, and a standby has their pages and requests.
 */
void
LazyDropInvalidateDatabase(Oid spcoid, Oid dboid)
{
	RelFileLocator locator = {spcoid, dboid, InvalidRelFileNumber};

	LazyDropSettleDatabase(dboid);
	for (;;)
	{
		bool		added;

		LWLockAcquire(&LazyDropCtl->lock, LW_EXCLUSIVE);
		added = AddEntry(&locator, LazyDropNow());
		LWLockRelease(&LazyDropCtl->lock);
		if (added)
			break;
		(void) SettleMatching(MatchesAll, NULL, false, false);
	}
	FinishBurial(&locator, 1);
	(void) SettleMatching(MatchesDatabase, &dboid, true, true);
	ForgetDirectorySyncRequests(spcoid, dboid);
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
 * The buffers have been dropped.  With assertions, verify that by looking at all
 * of them.  A buffer that is not valid may be left by an extension that failed;
 * nobody writes it.  Nor a clean empty page, which zero_damaged_pages makes.
 */
void
LazyDropEndTruncate(SMgrRelation reln, const ForkNumber *forknum, int nforks,
					const BlockNumber *nblocks)
{
#ifdef USE_ASSERT_CHECKING
	if (truncating)
	{
		for (int i = 0; i < NBuffers; i++)
		{
			BufferDesc *buf = GetBufferDescriptor(i);
			BufferTag	tag;
			uint32		state;

			if (!BufTagMatchesRelFileLocator(&buf->tag,
											 &reln->smgr_rlocator.locator))
				continue;
			state = LockBufHdr(buf);
			tag = buf->tag;
			UnlockBufHdr(buf, state);
			if (!BufTagMatchesRelFileLocator(&tag,
											 &reln->smgr_rlocator.locator))
				continue;
			for (int j = 0; j < nforks; j++)
				Assert(BufTagGetForkNum(&tag) != forknum[j] ||
					   tag.blockNum < nblocks[j] ||
					   !(state & BM_VALID) ||
					   (!(state & BM_DIRTY) &&
						PageIsNew(BufferGetPage(BufferDescriptorGetBuffer(buf)))));
		}
	}
#endif
	truncating = false;
}
