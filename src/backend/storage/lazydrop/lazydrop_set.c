/*-------------------------------------------------------------------------
 *
 * lazydrop_set.c
 *	  The set of what is dropped and not yet done with.
 *
 * An entry is an identity whose buffers are not invalidated yet, or whose files are not
 * removed.  The set has a hash table of entries, of which writers look at the heads of
 * two buckets without a lock (rule R1), lists of those that are pending and of those that
 * have files, and counters.  All of it is in shared memory, and all but reading the heads
 * and the counters is done under the set's lock.
 *
 * Nothing here waits for anything but that lock.  No function of the other files is
 * called from here.
 *
 * Copyright (c) 2026, LazyDrop developers
 *
 * IDENTIFICATION
 *	  src/backend/storage/lazydrop/lazydrop_set.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "miscadmin.h"
#include "portability/instr_time.h"
#include "storage/latch.h"
#include "storage/lazydrop.h"
#include "storage/lazydrop_internal.h"
#include "storage/proc.h"

LazyDropShared *LazyDropCtl = NULL;
bool		am_lazydrop_worker = false;

/* Below that many drops, comparing one by one is cheaper than bsearch. */
#define BSEARCH_THRESHOLD		8

/* ---------------------------------------------------------------------
 * Entries
 * ---------------------------------------------------------------------
 */

/*
 * The entry with exactly this locator, or NULL.  The caller holds the lock.
 */
LazyDropEntry *
LazyDropFindEntry(const RelFileLocator *locator)
{
	int			i;

	Assert(LWLockHeldByMe(&LazyDropCtl->lock));

	for (i = *LazyDropBucketOf(locator); i >= 0; i = LazyDropCtl->entries[i].next)
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
bool
LazyDropIsBuried(const RelFileLocator *locator)
{
	bool		result;

	if (LazyDropBucketIsEmpty(LazyDropRelationBucket(locator)) && LazyDropBucketIsEmpty(LazyDropDatabaseBucket(locator)))
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
	{
		dlist_delete(&entry->files_node);
		entry->nfiles = 0;
		entry->bytes = 0;
	}
	entry->files = files;
}

/*
 * Have an entry wait for a barrier and for absorptions, or, with zeroes, for
 * nothing.  The caller holds the lock in exclusive mode.
 */
static void
SetWaiting(LazyDropEntry *entry, uint64 barrier, uint64 absorptions)
{
	Assert(LWLockHeldByMeInMode(&LazyDropCtl->lock, LW_EXCLUSIVE));

	pg_atomic_write_u32(&LazyDropCtl->nwaiting,
						pg_atomic_read_u32(&LazyDropCtl->nwaiting) +
						(barrier != 0) - (entry->barrier != 0));
	entry->barrier = barrier;
	entry->absorptions = absorptions;
}

/*
 * All files of an entry, or none, have names of hidden ones, of which it has
 * given "nhidden".  The caller holds the lock in exclusive mode.
 */
void
LazyDropSetHidden(LazyDropEntry *entry, int nhidden)
{
	entry->hidden = true;
	entry->nhidden = nhidden;
	if (entry->files != LAZYDROP_FILES_NONE)
	{
		dlist_delete(&entry->files_node);
		dlist_push_tail(&LazyDropCtl->hidden_removals, &entry->files_node);
	}
}

/*
 * Add an entry, unless it is there.  The caller holds the lock in exclusive
 * mode.  Returns false when the set is full.
 */
bool
LazyDropAddEntry(const RelFileLocator *locator, LazyDropFiles files, XLogRecPtr lsn,
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
			entry->buried_again = true;
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
		entry->buried_again = false;
		entry->pinned = false;
		entry->files = LAZYDROP_FILES_NONE;
		entry->gaps = false;
		entry->nhidden = 0;
		entry->hidden = false;
		entry->hiding = false;
		entry->nbusy = 0;
		entry->barrier = 0;
		entry->absorptions = 0;
		entry->first_serial = LazyDropCtl->last_serial + 1;
		entry->buried_at_ns = now;

		bucket = LazyDropBucketOf(locator);
		entry->next = *bucket;
		*bucket = (int) (entry - LazyDropCtl->entries);
		dlist_push_tail(&LazyDropCtl->pending, &entry->node);
		if (!RelFileNumberIsValid(locator->relNumber) &&
			!LazyDropIsForLeftovers(locator))
			LazyDropCtl->ndatabases++;
		pg_atomic_write_u32(&LazyDropCtl->npending,
							pg_atomic_read_u32(&LazyDropCtl->npending) + 1);
	}

	LazyDropSetBuffers(entry, true);
	entry->passed = false;

	/*
	 * A new burial, for a process that is at the files of an old one: there
	 * may be others now.  It does not take back that there are files to be
	 * removed.
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
	int		   *link = LazyDropBucketOf(&entry->locator);

	if (entry->buffers || entry->files != LAZYDROP_FILES_NONE ||
		entry->nbusy > 0 || entry->barrier != 0)
		return false;

	while (*link != index)
		link = &LazyDropCtl->entries[*link].next;
	*link = entry->next;

	dlist_delete(&entry->node);
	dlist_push_head(&LazyDropCtl->unused, &entry->node);
	entry->serial = 0;
	if (!RelFileNumberIsValid(entry->locator.relNumber) &&
		!LazyDropIsForLeftovers(&entry->locator))
		LazyDropCtl->ndatabases--;
	pg_atomic_write_u32(&LazyDropCtl->npending,
						pg_atomic_read_u32(&LazyDropCtl->npending) - 1);
	return true;
}

/*
 * The dropper of these entries has forgotten their sync requests.  From now on,
 * a process that must not wait may hide or remove their files.  Others may when
 * the dropper has waited for reads (LazyDropReadsDone); or, with a barrier, when
 * that and the absorptions are past (LazyDropAdvanceWaiting).
 */
void
LazyDropRequestsForgotten(const RelFileLocator *locators, int n,
						  bool keep_first, uint64 barrier, uint64 absorptions)
{
	LWLockAcquire(&LazyDropCtl->lock, LW_EXCLUSIVE);
	for (int i = 0; i < n; i++)
	{
		LazyDropEntry *entry = LazyDropFindEntry(&locators[i]);

		/*
		 * A process that was hiding the files of an earlier burial may have
		 * found that there are none.
		 */
		if (entry == NULL || entry->dropper != MyProcNumber)
			continue;
		entry->keep_first = keep_first;
		SetWaiting(entry, barrier, absorptions);
		if (entry->files == LAZYDROP_FILES_BURIED)
			LazyDropSetFiles(entry, LAZYDROP_FILES_FORGOTTEN);
	}
	LWLockRelease(&LazyDropCtl->lock);
	ConditionVariableBroadcast(&LazyDropCtl->settled_cv);
	if (barrier != 0)
		LazyDropWakeWorker();
}

/*
 * The dropper of these entries has waited for reads: any process may remove
 * their files.
 */
void
LazyDropReadsDone(const RelFileLocator *locators, int n)
{
	LWLockAcquire(&LazyDropCtl->lock, LW_EXCLUSIVE);
	for (int i = 0; i < n; i++)
	{
		LazyDropEntry *entry = LazyDropFindEntry(&locators[i]);

		/* They may be gone already. */
		if (entry != NULL && entry->files == LAZYDROP_FILES_FORGOTTEN &&
			entry->dropper == MyProcNumber)
			LazyDropSetFiles(entry, LAZYDROP_FILES_READY);
	}
	LWLockRelease(&LazyDropCtl->lock);
	ConditionVariableBroadcast(&LazyDropCtl->settled_cv);
	LazyDropWakeWorker();
}

/*
 * Let those entries go on whose barrier and absorptions are past, if there are
 * some (rule R11).  Returns whether others wait still; then the checkpointer
 * is woken if it has to absorb requests.  Any process that needs such an entry
 * calls this again and again; none is told when the time has come.
 */
bool
LazyDropAdvanceWaiting(void)
{
	uint64		taken;
	uint64		absorbed;
	bool		wake = false;
	bool		advanced = false;
	dlist_mutable_iter iter;

	if (pg_atomic_read_u32(&LazyDropCtl->nwaiting) == 0)
		return false;

	/* Read both before the entries, which may have newer ones by then. */
	taken = LazyDropBarrierTaken();
	absorbed = pg_atomic_read_membarrier_u64(&LazyDropCtl->absorptions);

	LWLockAcquire(&LazyDropCtl->lock, LW_EXCLUSIVE);
	dlist_foreach_modify(iter, &LazyDropCtl->pending)
	{
		LazyDropEntry *entry = dlist_container(LazyDropEntry, node, iter.cur);

		if (entry->barrier == 0)
			continue;
		if (entry->barrier > taken || entry->absorptions > absorbed)
		{
			wake |= entry->absorptions > absorbed;
			continue;
		}
		SetWaiting(entry, 0, 0);
		if (entry->files == LAZYDROP_FILES_FORGOTTEN)
			LazyDropSetFiles(entry, LAZYDROP_FILES_READY);
		(void) LazyDropDeleteIfDone(entry);
		advanced = true;
	}
	LWLockRelease(&LazyDropCtl->lock);

	if (advanced)
	{
		ConditionVariableBroadcast(&LazyDropCtl->settled_cv);
		if (am_lazydrop_worker)
			LAZYDROP_INJECTION_POINT("lazydrop-database-ready");
		else
			LazyDropWakeWorker();
	}
	if (wake)
		LazyDropWakeCheckpointer();
	return pg_atomic_read_u32(&LazyDropCtl->nwaiting) > 0;
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

/* ---------------------------------------------------------------------
 * Entries with files: jobs, and the steps in which they are done
 * ---------------------------------------------------------------------
 */

/*
 * What is to be known of an entry, for its removal.  The caller holds the lock.
 */
void
LazyDropSetJob(LazyDropJob *job, LazyDropEntry *entry)
{
	job->entry = entry;
	job->serial = entry->serial;
	job->locator = entry->locator;
	job->first_serial = entry->first_serial;
	job->keep_first = entry->keep_first;
	job->gaps = entry->gaps;
	job->measured = entry->measured;
	job->nfailures = entry->nfailures;
	job->hidden = entry->hidden;
	job->nhidden = entry->nhidden;
}

/*
 * Find entries whose files are to be removed: those that are at least in the given state,
 * have a serial number from first_serial to last_serial, and match, if "matches" is
 * given.  With "visible", only those that have files under their own names, the oldest
 * ones first; else hidden ones before these, in the order in which they were hidden.
 * Returns how many there are, up to njobs.
 *
 * Entries whose files are just being hidden, and those to be tried again later, are left
 * out.
 */
int
LazyDropFindJobs(LazyDropFiles least, bool visible, uint64 first_serial,
				 uint64 last_serial, LazyDropMatch matches, const void *arg,
				 LazyDropJob *jobs, int njobs)
{
	dlist_head *lists[] = {&LazyDropCtl->hidden_removals, &LazyDropCtl->removals};
	int			found = 0;
	int64		now = LazyDropNow();
	dlist_iter	iter;

	LWLockAcquire(&LazyDropCtl->lock, LW_SHARED);
	for (int i = visible ? 1 : 0; i < lengthof(lists) && found < njobs; i++)
	{
		dlist_foreach(iter, lists[i])
		{
			LazyDropEntry *entry = dlist_container(LazyDropEntry, files_node,
												   iter.cur);

			if (entry->files < least || entry->serial < first_serial ||
				entry->serial > last_serial || entry->hiding ||
				(!visible && now < entry->retry_at_ns) ||
				(matches != NULL && !matches(&entry->locator, arg)))
				continue;
			LazyDropSetJob(&jobs[found], entry);
			if (++found == njobs)
				break;
		}
	}
	LWLockRelease(&LazyDropCtl->lock);
	return found;
}

/*
 * The same for the oldest entry, hidden or not, that is not older than first_serial.  It
 * looks at all that are hidden, since those are not in the order of their serial numbers.
 */
bool
LazyDropFindOldestJob(uint64 first_serial, LazyDropJob *job)
{
	dlist_head *lists[] = {&LazyDropCtl->hidden_removals, &LazyDropCtl->removals};
	LazyDropEntry *oldest = NULL;
	int64		now = LazyDropNow();
	dlist_iter	iter;

	LWLockAcquire(&LazyDropCtl->lock, LW_SHARED);
	for (int i = 0; i < lengthof(lists); i++)
	{
		dlist_foreach(iter, lists[i])
		{
			LazyDropEntry *entry = dlist_container(LazyDropEntry, files_node,
												   iter.cur);

			if (oldest != NULL && entry->serial >= oldest->serial)
			{
				/* the others, not hidden, are newer still */
				if (i == 1)
					break;
				continue;
			}
			if (entry->files >= LAZYDROP_FILES_FORGOTTEN &&
				entry->serial >= first_serial && !entry->hiding &&
				now >= entry->retry_at_ns)
				oldest = entry;
		}
	}
	if (oldest != NULL)
		LazyDropSetJob(job, oldest);
	LWLockRelease(&LazyDropCtl->lock);
	return oldest != NULL;
}

/*
 * The same for one entry, if there is one with files that a process which must
 * not wait may remove.
 */
bool
LazyDropFindJob(const RelFileLocator *locator, LazyDropJob *job)
{
	LazyDropEntry *entry;
	bool		found;

	LWLockAcquire(&LazyDropCtl->lock, LW_SHARED);
	entry = LazyDropFindEntry(locator);
	found = entry != NULL && entry->files >= LAZYDROP_FILES_FORGOTTEN;
	if (found)
		LazyDropSetJob(job, entry);
	LWLockRelease(&LazyDropCtl->lock);
	return found;
}

/*
 * Begin a step.  Returns false when there is nothing left to do, or when the files have
 * been hidden meanwhile: then the caller looks for jobs again.  Otherwise the entry stays
 * until LazyDropEndStep, which the caller sees to, also on an error.
 */
bool
LazyDropBeginStep(const LazyDropJob *job)
{
	LazyDropEntry *entry = job->entry;
	bool		result;

	LWLockAcquire(&LazyDropCtl->lock, LW_EXCLUSIVE);
	result = entry->serial == job->serial &&
		entry->files >= LAZYDROP_FILES_FORGOTTEN &&
		!entry->hiding && entry->nhidden == job->nhidden;
	if (result)
		entry->nbusy++;
	LWLockRelease(&LazyDropCtl->lock);
	if (result && am_lazydrop_worker)
		LAZYDROP_INJECTION_POINT("lazydrop-step");
	return result;
}

/*
 * End a step that has removed so much.  With "done", it was the last one.
 */
void
LazyDropEndStep(const LazyDropJob *job, int nfiles, uint64 bytes, bool done)
{
	LazyDropEntry *entry = job->entry;
	bool		wake;

	LWLockAcquire(&LazyDropCtl->lock, LW_EXCLUSIVE);
	Assert(entry->nbusy > 0);
	entry->nbusy--;

	/* unless it has been buried once more */
	if (entry->serial == job->serial)
	{
		/* Others may have seen the same bytes go. */
		if (entry->measured)
			bytes = Min(bytes, entry->bytes);
		entry->bytes -= Min(bytes, entry->bytes);
		entry->nfiles -= Min(nfiles, entry->nfiles);
		pg_atomic_fetch_add_u64(&LazyDropCtl->files_removed, nfiles);
		pg_atomic_fetch_add_u64(&LazyDropCtl->bytes_removed, bytes);
		/* a process that is hiding some tells by itself */
		if (done && !entry->hiding)
			LazyDropSetFiles(entry, LAZYDROP_FILES_NONE);
	}
	/* if there is one more pass to be made */
	wake = entry->passed && LazyDropFilesAreGone(entry);
	done |= LazyDropDeleteIfDone(entry) || wake;
	LWLockRelease(&LazyDropCtl->lock);
	if (done)
		ConditionVariableBroadcast(&LazyDropCtl->settled_cv);
	if (wake && !am_lazydrop_worker)
		LazyDropWakeWorker();
}

/* ---------------------------------------------------------------------
 * What all of us need
 * ---------------------------------------------------------------------
 */

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
bool
LazyDropIsAmong(const RelFileLocator *relation,
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

/*
 * Whether there is a worker that will settle what is buried.
 */
bool
LazyDropHaveWorker(void)
{
	return (ProcNumber) pg_atomic_read_u32(&LazyDropCtl->worker) != INVALID_PROC_NUMBER;
}

/*
 * Wake the worker, if there is one.  The caller has completed its entries before
 * (rule R7); a worker that starts now looks for entries first.
 */
void
LazyDropWakeWorker(void)
{
	ProcNumber	worker;

	pg_memory_barrier();
	worker = (ProcNumber) pg_atomic_read_u32(&LazyDropCtl->worker);
	if (worker != INVALID_PROC_NUMBER)
		SetLatch(&GetPGProcByNumber(worker)->procLatch);
}
