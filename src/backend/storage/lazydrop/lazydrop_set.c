/*-------------------------------------------------------------------------
 *
 * lazydrop_set.c
 *	  The set of pending drops, in shared memory.
 *
 * The set contains an entry for each relation or database that has been
 * dropped, until its buffers have been invalidated and its files have been
 * removed.  There is a hash table, a list of all entries, and lists of those
 * with files.  All of them are protected by one lock.  Writers look at the
 * heads of two buckets of the hash table without it (rule R1).
 *
 * Only this file changes an entry.  Its functions are the transitions of the
 * state diagram in the README.  They wait for nothing but the lock.
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
#include "storage/lazydrop.h"
#include "storage/lazydrop_internal.h"
#include "storage/proc.h"

LazyDropShared *LazyDropCtl = NULL;

/*
 * First serial number of the newest entry that the pass of this process owns.
 * The list of all entries is sorted by it.
 */
static uint64 newest_owned = 0;

/* ---------------------------------------------------------------------
 * Entries
 * ---------------------------------------------------------------------
 */

/*
 * An entry may be changed only with the lock held in exclusive mode.
 */
static inline void
AssertLocked(void)
{
	Assert(LWLockHeldByMeInMode(&LazyDropCtl->lock, LW_EXCLUSIVE));
}

/*
 * Check an entry before or after a transition.
 */
static inline void
AssertEntryIsSound(const LazyDropEntry *entry)
{
	AssertLocked();
	Assert(entry->serial > LazyDropCtl->start_serial);
	Assert(entry->serial <= LazyDropCtl->last_serial);
	Assert(entry->first_serial <= entry->serial);

	/* A pass owns an entry only because of its buffers (rule R5). */
	Assert(entry->owner == 0 || entry->buffers != LAZYDROP_BUFFERS_NONE);

	/* Without files, there is nothing to count. */
	Assert(entry->files != LAZYDROP_FILES_NONE ||
		   (entry->nfiles == 0 && entry->bytes == 0));
	Assert(entry->nbusy >= 0);
	Assert(entry->names != LAZYDROP_NAMES_CHANGING || entry->nbusy > 0);
	Assert(entry->nhidden >= 0);

	/* Only the entry of a database waits for other processes (rule R11). */
	Assert(entry->barrier == 0 || !RelFileNumberIsValid(entry->locator.relNumber));
	Assert(entry->barrier == 0 || entry->files != LAZYDROP_FILES_READY);
	Assert(entry->barrier != 0 || entry->absorptions == 0);

	/* Only a relation has a first segment to keep (rule R14). */
	Assert(!entry->keep_first || RelFileNumberIsValid(entry->locator.relNumber));

	/* Leftovers are hidden, and have no buffers. */
	Assert(!LazyDropIsForLeftovers(&entry->locator) ||
		   (entry->buffers == LAZYDROP_BUFFERS_NONE &&
			(entry->names == LAZYDROP_NAMES_HIDDEN ||
			 entry->files == LAZYDROP_FILES_NONE)));
}

/*
 * Return the entry of a relation or a database, or NULL.  The caller holds the
 * lock.
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
 * Change the state of the buffers of an entry.
 */
static void
SetBuffers(LazyDropEntry *entry, LazyDropBuffers buffers)
{
	AssertLocked();
	pg_atomic_write_u32(&LazyDropCtl->nburied.value,
						pg_atomic_read_u32(&LazyDropCtl->nburied.value) +
						(buffers != LAZYDROP_BUFFERS_NONE) -
						(entry->buffers != LAZYDROP_BUFFERS_NONE));
	entry->buffers = buffers;
}

/*
 * Change the state of the files of an entry.  Only the newest entry can get
 * files, so the list remains sorted.
 */
static void
SetFiles(LazyDropEntry *entry, LazyDropFiles files)
{
	AssertLocked();
	if (entry->files == LAZYDROP_FILES_NONE && files != LAZYDROP_FILES_NONE)
	{
		Assert(entry->serial == LazyDropCtl->last_serial);
		dlist_push_tail(&LazyDropCtl->removals, &entry->files_node);
	}
	else if (entry->files != LAZYDROP_FILES_NONE && files == LAZYDROP_FILES_NONE)
	{
		dlist_delete(&entry->files_node);
		entry->nfiles = 0;
		entry->bytes = 0;
	}
	entry->files = files;
}

/*
 * Make an entry wait for a barrier and for absorptions.  Zeroes end the wait.
 */
static void
SetWaiting(LazyDropEntry *entry, uint64 barrier, uint64 absorptions)
{
	AssertLocked();
	Assert((barrier != 0) || (absorptions == 0));
	pg_atomic_write_u32(&LazyDropCtl->nwaiting,
						pg_atomic_read_u32(&LazyDropCtl->nwaiting) +
						(barrier != 0) - (entry->barrier != 0));
	entry->barrier = barrier;
	entry->absorptions = absorptions;
}

/*
 * Note that all files of an entry have been renamed, and move it to the list of
 * hidden files.  "nhidden" is the number of names that have been used.
 *
 * The list is sorted by serial number.  Entries are nearly always hidden in
 * that order, so start at its end.
 */
static void
SetHidden(LazyDropEntry *entry, int nhidden)
{
	dlist_iter	iter;

	AssertLocked();
	entry->names = LAZYDROP_NAMES_HIDDEN;
	entry->nhidden = nhidden;
	if (entry->files == LAZYDROP_FILES_NONE)
		return;

	dlist_delete(&entry->files_node);
	dlist_reverse_foreach(iter, &LazyDropCtl->hidden_removals)
	{
		if (dlist_container(LazyDropEntry, files_node, iter.cur)->serial < entry->serial)
		{
			dlist_insert_after(iter.cur, &entry->files_node);
			return;
		}
	}
	dlist_push_head(&LazyDropCtl->hidden_removals, &entry->files_node);
}

/*
 * Add an entry.  If the identity is buried already, bury it again.  Returns
 * NULL if the set is full.
 */
static LazyDropEntry *
AddEntry(const RelFileLocator *locator, LazyDropFiles files, XLogRecPtr lsn,
		 int64 now)
{
	LazyDropEntry *entry = LazyDropFindEntry(locator);
	int		   *bucket;

	AssertLocked();
	if (entry != NULL)
	{
		AssertEntryIsSound(entry);

		/*
		 * A pass that owns the entry may have skipped buffers that are in use
		 * now, so another pass is needed (rule R5).
		 */
		if (entry->owner != 0)
			entry->buried_again = true;
		entry->look_up = false;
	}
	else
	{
		if (dlist_is_empty(&LazyDropCtl->unused))
			return NULL;

		entry = dlist_container(LazyDropEntry, node,
								dlist_pop_head_node(&LazyDropCtl->unused));
		entry->locator = *locator;
		entry->buffers = LAZYDROP_BUFFERS_NONE;
		entry->owner = 0;
		entry->buried_again = false;
		entry->pinned = false;
		entry->sized = false;
		entry->look_up = true;
		entry->files = LAZYDROP_FILES_NONE;
		entry->gaps = false;
		entry->nhidden = 0;
		entry->names = LAZYDROP_NAMES_OWN;
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

	SetBuffers(entry, LAZYDROP_BUFFERS_BURIED);

	/*
	 * A new serial number tells processes that work on the old files to stop.
	 * If the files of this burial are not deferred but the old ones are, the
	 * old ones must still be removed.
	 */
	if (files != LAZYDROP_FILES_NONE || entry->files == LAZYDROP_FILES_NONE)
	{
		entry->serial = ++LazyDropCtl->last_serial;
		/* move it to the end of the list */
		SetFiles(entry, LAZYDROP_FILES_NONE);
		SetFiles(entry, files);
		entry->keep_first = false;
		entry->dropper = MyProcNumber;
		entry->lsn = lsn;
		/* There may be files with their own names again. */
		if (entry->names == LAZYDROP_NAMES_HIDDEN)
			entry->names = LAZYDROP_NAMES_OWN;
		entry->nfailures = 0;
		entry->hide_failed = false;
		entry->retry_at_ns = 0;
		entry->measured = false;
		entry->nfiles = 0;
		entry->bytes = 0;
	}
	return entry;
}

/*
 * Delete an entry if nothing is left to do.  Returns whether it was deleted.
 * After releasing the lock, the caller broadcasts settled_cv.
 */
static bool
DeleteIfDone(LazyDropEntry *entry)
{
	int			index = (int) (entry - LazyDropCtl->entries);
	int		   *link = LazyDropBucketOf(&entry->locator);

	AssertEntryIsSound(entry);
	if (entry->buffers != LAZYDROP_BUFFERS_NONE ||
		entry->files != LAZYDROP_FILES_NONE ||
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
 * Leave an entry to a pass for good, because its blocks are too many to look
 * them up, with others, or because their number is not certain (rule R18).
 */
void
LazyDropLeaveToPass(LazyDropEntry *entry)
{
	AssertEntryIsSound(entry);
	entry->look_up = false;
}

/*
 * Leave all relations of a database to passes.  Its dropper may remove their
 * files before anybody has counted the blocks.
 */
static void
LeaveDatabaseToPass(Oid dboid)
{
	dlist_iter	iter;

	dlist_foreach(iter, &LazyDropCtl->pending)
	{
		LazyDropEntry *entry = dlist_container(LazyDropEntry, node, iter.cur);

		if (entry->locator.dbOid == dboid)
			LazyDropLeaveToPass(entry);
	}
}

/* ---------------------------------------------------------------------
 * Burial
 * ---------------------------------------------------------------------
 */

/*
 * Add entries to the set, either all of them or none (rule R6).
 *
 * "files" is the state of the files of the first nfiles of them.  The files of
 * the others are not deferred.  "lsn" is the end of the WAL record of the drop,
 * or invalid.  If "gaps" is set, segments behind a missing one are looked for.
 *
 * Returns whether the entries were added.  Sets "wake" if the worker should be
 * woken.
 */
bool
LazyDropAddAll(const RelFileLocator *locators, int n, LazyDropFiles files,
			   int nfiles, XLogRecPtr lsn, bool gaps, bool *wake)
{
	int64		now = LazyDropNow();
	bool		fits;

	Assert(nfiles <= n);
	LWLockAcquire(&LazyDropCtl->lock, LW_EXCLUSIVE);
	*wake = LazyDropNothingBuried();
	fits = LazyDropHasRoom(n);
	for (int i = 0; fits && i < n; i++)
	{
		LazyDropEntry *entry = AddEntry(&locators[i],
										i < nfiles ? files : LAZYDROP_FILES_NONE,
										lsn, now);

		if (entry == NULL)
			elog(PANIC, "lazy drop set is full");
		if (gaps)
			entry->gaps = true;
		AssertEntryIsSound(entry);
	}
	if (fits && !RelFileNumberIsValid(locators[0].relNumber))
		LeaveDatabaseToPass(locators[0].dbOid);
	*wake |= pg_atomic_read_u32(&LazyDropCtl->npending) >=
		LazyDropCtl->capacity / 2;
	*wake &= fits;
	LWLockRelease(&LazyDropCtl->lock);
	return fits;
}

/*
 * Add an entry for files that earlier runs of the server have hidden in a
 * tablespace, unless there is one.  Returns false if the set is full.
 */
bool
LazyDropAddLeftovers(Oid spcoid, int nfiles, uint64 bytes)
{
	RelFileLocator locator = {spcoid, InvalidOid, InvalidRelFileNumber};
	LazyDropEntry *entry;
	bool		is_new = false;

	LWLockAcquire(&LazyDropCtl->lock, LW_EXCLUSIVE);
	entry = LazyDropFindEntry(&locator);
	if (entry == NULL || entry->files == LAZYDROP_FILES_NONE)
	{
		entry = AddEntry(&locator, LAZYDROP_FILES_READY, InvalidXLogRecPtr,
						 LazyDropNow());
		is_new = entry != NULL;
	}
	if (is_new)
	{
		SetBuffers(entry, LAZYDROP_BUFFERS_NONE);
		SetHidden(entry, 0);
		entry->nfiles = nfiles;
		entry->bytes = bytes;
		entry->measured = true;
		AssertEntryIsSound(entry);
	}
	LWLockRelease(&LazyDropCtl->lock);
	return entry != NULL;
}

/*
 * Note that this process, which has dropped these entries, has forgotten their
 * sync requests (rule R2).  Processes that must not wait may hide or remove
 * the files now.  Others may do so after LazyDropReadsDone or, with a barrier,
 * after LazyDropAdvanceWaiting.
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
		 * The entry is gone if a process that was hiding the files of an
		 * earlier burial has found none.
		 */
		if (entry == NULL || entry->dropper != MyProcNumber)
			continue;
		entry->keep_first = keep_first;
		SetWaiting(entry, barrier, absorptions);
		if (entry->files == LAZYDROP_FILES_BURIED)
			SetFiles(entry, LAZYDROP_FILES_FORGOTTEN);
	}
	LWLockRelease(&LazyDropCtl->lock);
	ConditionVariableBroadcast(&LazyDropCtl->settled_cv);
	if (barrier != 0)
		LazyDropWakeWorker();
}

/*
 * Note that this process, which has dropped these entries, has waited for reads
 * of them.  Any process may remove the files now.
 */
void
LazyDropReadsDone(const RelFileLocator *locators, int n)
{
	LWLockAcquire(&LazyDropCtl->lock, LW_EXCLUSIVE);
	for (int i = 0; i < n; i++)
	{
		LazyDropEntry *entry = LazyDropFindEntry(&locators[i]);

		/* A checkpoint may have removed them already. */
		if (entry != NULL && entry->files == LAZYDROP_FILES_FORGOTTEN &&
			entry->dropper == MyProcNumber)
			SetFiles(entry, LAZYDROP_FILES_READY);
	}
	LWLockRelease(&LazyDropCtl->lock);
	ConditionVariableBroadcast(&LazyDropCtl->settled_cv);
	LazyDropWakeWorker();
	elog(DEBUG2, "files of %d dropped relations are left to the lazy drop worker: %u/%u/%u",
		 n, locators[0].spcOid, locators[0].dbOid, locators[0].relNumber);
}

/*
 * End the wait of entries whose barrier has been absorbed by all processes, and
 * whose sync requests have been absorbed by the checkpointer (rule R11).  Wakes
 * the checkpointer if entries wait for it.
 *
 * Returns whether entries are still waiting.  No process is woken when the wait
 * of an entry could end, so processes that need the entry poll.
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

	/* Read both before looking at entries, which may be newer. */
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
			SetFiles(entry, LAZYDROP_FILES_READY);
		(void) DeleteIfDone(entry);
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
 * Release the files of entries that this process has dropped in a transaction
 * that is aborted after all.  This happens only when COMMIT PREPARED or DROP
 * DATABASE runs out of memory.
 *
 * If there may still be sync requests, the files stay, those of a database
 * until it is dropped again.  But no process may wait for this one any longer.
 */
void
LazyDropGiveUpFiles(void)
{
	dlist_mutable_iter iter;

	LWLockAcquire(&LazyDropCtl->lock, LW_EXCLUSIVE);
	dlist_foreach_modify(iter, &LazyDropCtl->pending)
	{
		LazyDropEntry *entry = dlist_container(LazyDropEntry, node, iter.cur);

		if (entry->dropper != MyProcNumber)
			continue;
		if (entry->files == LAZYDROP_FILES_BURIED)
		{
			SetFiles(entry, LAZYDROP_FILES_NONE);
			(void) DeleteIfDone(entry);
		}
		else if (entry->files == LAZYDROP_FILES_FORGOTTEN &&
				 entry->barrier == 0)
			SetFiles(entry, LAZYDROP_FILES_READY);
	}
	LWLockRelease(&LazyDropCtl->lock);
	ConditionVariableBroadcast(&LazyDropCtl->settled_cv);
	LazyDropWakeWorker();
}

/* ---------------------------------------------------------------------
 * Passes (rule R5)
 * ---------------------------------------------------------------------
 */

/*
 * Return whether a pass can become the owner of an entry.  It can if there are
 * buffers to invalidate, and the entry has no owner or its owner has made no
 * progress since "steal_before".  The caller holds the lock.
 */
bool
LazyDropCanOwn(const LazyDropEntry *entry, int64 steal_before)
{
	LazyDropAnnouncement *owner;

	Assert(LWLockHeldByMe(&LazyDropCtl->lock));

	if (entry->buffers == LAZYDROP_BUFFERS_NONE ||
		(entry->buffers == LAZYDROP_BUFFERS_PASSED &&
		 !LazyDropFilesAreGone(entry)))
		return false;
	if (entry->owner == 0)
		return true;
	owner = &LazyDropCtl->announcements[entry->owner_proc].announcement;
	return (int64) pg_atomic_read_u64(&owner->heartbeat) < steal_before;
}

/*
 * Start a pass or a lookup: make this process the owner of up to "max" entries
 * that need one and have no owner, oldest first.  Entries of another owner that
 * has made no progress since "steal_before" are taken over if they match, or if
 * "matches" is NULL.  Unless "patient" is set, entries with a pinned buffer are
 * left out.
 *
 * Calls "owned" for each such entry, which may decline it, and sets "ntaken"
 * to the number of entries that were taken over.  Returns the number of the
 * pass, or 0 if there is no such entry.  The caller must make sure that
 * LazyDropDisown or LazyDropFinishPass is called, and no error may be raised
 * before.
 */
uint32
LazyDropOwn(int64 steal_before, LazyDropMatch matches, const void *arg,
			bool patient, LazyDropOwned owned, void *owned_arg, int max,
			int *ntaken)
{
	uint32		owner = 0;
	int			n = 0;
	dlist_iter	iter;

	*ntaken = 0;
	newest_owned = 0;
	LWLockAcquire(&LazyDropCtl->lock, LW_EXCLUSIVE);
	dlist_foreach(iter, &LazyDropCtl->pending)
	{
		LazyDropEntry *entry = dlist_container(LazyDropEntry, node, iter.cur);

		if (!LazyDropCanOwn(entry, steal_before) ||
			(entry->owner != 0 && matches != NULL &&
			 !matches(&entry->locator, arg)) ||
			(entry->pinned && !patient) ||
			!owned(entry, owned_arg))
			continue;
		if (owner == 0)
		{
			/* 0 is no owner */
			if (++LazyDropCtl->last_owner == 0)
				++LazyDropCtl->last_owner;
			owner = LazyDropCtl->last_owner;
		}
		*ntaken += entry->owner != 0;
		entry->owner = owner;
		entry->owner_proc = MyProcNumber;
		entry->had_files = !LazyDropFilesAreGone(entry);
		entry->buried_again = false;
		entry->pinned = false;
		AssertEntryIsSound(entry);
		newest_owned = entry->first_serial;
		if (++n == max)
			break;
	}
	LWLockRelease(&LazyDropCtl->lock);
	return owner;
}

/*
 * Abort a pass: give up the entries that it still owns.
 */
void
LazyDropDisown(uint32 owner)
{
	dlist_iter	iter;

	Assert(owner != 0);
	LWLockAcquire(&LazyDropCtl->lock, LW_EXCLUSIVE);
	dlist_foreach(iter, &LazyDropCtl->pending)
	{
		LazyDropEntry *entry = dlist_container(LazyDropEntry, node, iter.cur);

		if (entry->first_serial > newest_owned)
			break;
		if (entry->owner == owner)
			entry->owner = 0;
	}
	LWLockRelease(&LazyDropCtl->lock);
	ConditionVariableBroadcast(&LazyDropCtl->settled_cv);
}

/*
 * Note that a buffer of an entry is pinned.  The caller owns the entry, and
 * holds the lock in shared mode, which is enough because only the owner does
 * this.
 */
void
LazyDropMarkPinned(LazyDropEntry *entry)
{
	Assert(LWLockHeldByMe(&LazyDropCtl->lock));
	Assert(entry->owner != 0 && entry->owner_proc == MyProcNumber);
	entry->pinned = true;
}

/*
 * End a pass that has looked at all buffers.  Entries that have been buried
 * again or have a pinned buffer need another pass.  All other entries that the
 * pass still owns have no buffers now; those without files are deleted.
 *
 * Returns whether there were such entries.  Sets the numbers of relations and
 * of databases for which this is the first pass.
 */
bool
LazyDropFinishPass(uint32 owner, int *nrelations, int *ndatabases)
{
	bool		settled = false;
	bool		wake = false;
	dlist_mutable_iter iter;

	Assert(owner != 0);
	*nrelations = *ndatabases = 0;
	LWLockAcquire(&LazyDropCtl->lock, LW_EXCLUSIVE);
	dlist_foreach_modify(iter, &LazyDropCtl->pending)
	{
		LazyDropEntry *entry = dlist_container(LazyDropEntry, node, iter.cur);

		if (entry->first_serial > newest_owned)
			break;
		if (entry->owner != owner)
			continue;
		AssertEntryIsSound(entry);
		entry->owner = 0;
		if (entry->buried_again || entry->pinned)
			continue;

		settled = true;
		if (entry->buffers != LAZYDROP_BUFFERS_PASSED)
		{
			if (RelFileNumberIsValid(entry->locator.relNumber))
				(*nrelations)++;
			else
				(*ndatabases)++;
		}

		/*
		 * More buffers may be read from files that still exist.  No session
		 * uses a dropped database, so its files do not matter.
		 */
		if (entry->had_files && RelFileNumberIsValid(entry->locator.relNumber))
		{
			SetBuffers(entry, LAZYDROP_BUFFERS_PASSED);
			/* The files may have been removed during the pass. */
			wake |= LazyDropFilesAreGone(entry);
		}
		else
		{
			SetBuffers(entry, LAZYDROP_BUFFERS_NONE);
			(void) DeleteIfDone(entry);
		}
	}
	LWLockRelease(&LazyDropCtl->lock);
	ConditionVariableBroadcast(&LazyDropCtl->settled_cv);
	if (wake && !am_lazydrop_worker)
		LazyDropWakeWorker();
	return settled;
}

/* ---------------------------------------------------------------------
 * Removal and hiding of files (rules R5 and R8)
 * ---------------------------------------------------------------------
 */

/*
 * Return whether a job is up to date, and no process is renaming the files.
 */
static bool
MayTouchFiles(const LazyDropJob *job)
{
	const LazyDropEntry *entry = job->entry;

	AssertLocked();
	return entry->serial == job->serial &&
		entry->files >= LAZYDROP_FILES_FORGOTTEN &&
		entry->names != LAZYDROP_NAMES_CHANGING &&
		entry->nhidden == job->nhidden;
}

/*
 * Begin a step of a removal.  Until LazyDropEndStep, which must be called even
 * after an error, the entry is not deleted, so the name is not reused.
 *
 * Returns false if the job is out of date.  Then the caller looks for jobs
 * again.
 */
bool
LazyDropBeginStep(const LazyDropJob *job)
{
	bool		result;

	LWLockAcquire(&LazyDropCtl->lock, LW_EXCLUSIVE);
	result = MayTouchFiles(job);
	if (result)
		job->entry->nbusy++;
	LWLockRelease(&LazyDropCtl->lock);
	if (result && am_lazydrop_worker)
		LAZYDROP_INJECTION_POINT("lazydrop-step");
	return result;
}

/*
 * End a step that has removed "nfiles" files and "bytes" bytes.  If "done" is
 * set, there are no more files.
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
		LazyDropCount(LAZYDROP_FILES_REMOVED, nfiles);
		LazyDropCount(LAZYDROP_BYTES_REMOVED, bytes);
		/* a process that is hiding files says so in LazyDropEndHiding */
		if (done && entry->names != LAZYDROP_NAMES_CHANGING)
			SetFiles(entry, LAZYDROP_FILES_NONE);
	}
	/* if there is one more pass to be made */
	wake = entry->buffers == LAZYDROP_BUFFERS_PASSED &&
		LazyDropFilesAreGone(entry);
	done |= DeleteIfDone(entry) || wake;
	LWLockRelease(&LazyDropCtl->lock);
	if (done)
		ConditionVariableBroadcast(&LazyDropCtl->settled_cv);
	if (wake && !am_lazydrop_worker)
		LazyDropWakeWorker();
}

/*
 * Let processes try to hide all files that are there now, even if that has
 * failed before.  Returns the serial number of the last burial.
 */
uint64
LazyDropRetryHiding(void)
{
	uint64		last_serial;
	dlist_iter	iter;

	LWLockAcquire(&LazyDropCtl->lock, LW_EXCLUSIVE);
	last_serial = LazyDropCtl->last_serial;
	dlist_foreach(iter, &LazyDropCtl->removals)
		dlist_container(LazyDropEntry, files_node, iter.cur)->hide_failed = false;
	LWLockRelease(&LazyDropCtl->lock);
	return last_serial;
}

/*
 * Note that this process has tried in vain to rename and to remove all files of
 * an entry.
 */
void
LazyDropHidingFailed(const LazyDropJob *job)
{
	LWLockAcquire(&LazyDropCtl->lock, LW_EXCLUSIVE);
	if (job->entry->serial == job->serial)
		job->entry->hide_failed = true;
	LWLockRelease(&LazyDropCtl->lock);
}

/*
 * Begin to rename the files of an entry.  Until LazyDropEndHiding, no step can
 * begin, and the entry is not deleted.  The caller must not raise an error, and
 * holds off interrupts.
 *
 * Returns false if the job is out of date, or if the files are hidden.
 */
bool
LazyDropBeginHiding(const LazyDropJob *job)
{
	LazyDropEntry *entry = job->entry;
	bool		result;

	Assert(!INTERRUPTS_CAN_BE_PROCESSED());
	LWLockAcquire(&LazyDropCtl->lock, LW_EXCLUSIVE);
	result = MayTouchFiles(job) && entry->names == LAZYDROP_NAMES_OWN;
	if (result)
	{
		entry->names = LAZYDROP_NAMES_CHANGING;
		entry->nbusy++;
		AssertEntryIsSound(entry);
	}
	LWLockRelease(&LazyDropCtl->lock);
	return result;
}

/*
 * Finish renaming the files of an entry.  "nhidden" is the number of names
 * that have been used.  If "all" is set, no file has its own name any more.
 */
void
LazyDropEndHiding(const LazyDropJob *job, int nhidden, bool all)
{
	LazyDropEntry *entry = job->entry;

	LWLockAcquire(&LazyDropCtl->lock, LW_EXCLUSIVE);
	Assert(entry->names == LAZYDROP_NAMES_CHANGING);
	Assert(nhidden >= entry->nhidden);
	AssertEntryIsSound(entry);
	entry->names = LAZYDROP_NAMES_OWN;
	entry->nhidden = nhidden;
	entry->nbusy--;
	/* empty files have been created or unlinked */
	entry->measured = false;
	/* unless it has been buried once more */
	if (all && entry->serial == job->serial)
	{
		SetHidden(entry, nhidden);
		if (nhidden == 0)
			SetFiles(entry, LAZYDROP_FILES_NONE);
	}
	(void) DeleteIfDone(entry);
	LWLockRelease(&LazyDropCtl->lock);
	ConditionVariableBroadcast(&LazyDropCtl->settled_cv);
}

/*
 * Note that a file of an entry could not be removed.  For "delay_ns"
 * nanoseconds, processes only try to hide it; failures of that do not count.
 */
void
LazyDropTryLater(const LazyDropJob *job, int64 delay_ns)
{
	int64		now = LazyDropNow();

	LWLockAcquire(&LazyDropCtl->lock, LW_EXCLUSIVE);
	if (job->entry->serial == job->serial && now >= job->entry->retry_at_ns)
	{
		job->entry->nfailures++;
		job->entry->retry_at_ns = now + delay_ns;
		AssertEntryIsSound(job->entry);
	}
	LWLockRelease(&LazyDropCtl->lock);
}

/*
 * Set the number of blocks of each fork of a relation, unless that is known or
 * its entry, with this serial number, is gone.  A dropper, which has the name
 * to itself until it has removed the files, gives 0 instead.  Every process
 * calls this before it touches a file, so the blocks are counted before any is
 * touched.
 */
void
LazyDropSetBlocks(const RelFileLocator *locator, uint64 serial,
				  const BlockNumber *nblocks)
{
	LazyDropEntry *entry;

	LWLockAcquire(&LazyDropCtl->lock, LW_EXCLUSIVE);
	entry = LazyDropFindEntry(locator);
	if (entry != NULL && (serial == 0 || entry->serial == serial) &&
		!entry->sized && !entry->gaps)
	{
		memcpy(entry->nblocks, nblocks, sizeof(entry->nblocks));
		entry->sized = true;
	}
	LWLockRelease(&LazyDropCtl->lock);
}

/*
 * Set the number of files of an entry and their total size, unless the job is
 * out of date or they are known.  The caller may have missed files that have
 * been renamed meanwhile.
 */
void
LazyDropSetSize(const LazyDropJob *job, int nfiles, uint64 bytes)
{
	LazyDropEntry *entry = job->entry;

	LWLockAcquire(&LazyDropCtl->lock, LW_EXCLUSIVE);
	if (entry->serial == job->serial && !entry->measured &&
		entry->files != LAZYDROP_FILES_NONE &&
		entry->names == (job->hidden ? LAZYDROP_NAMES_HIDDEN : LAZYDROP_NAMES_OWN) &&
		entry->nhidden == job->nhidden)
	{
		entry->nfiles = nfiles;
		entry->bytes = bytes;
		entry->measured = true;
		AssertEntryIsSound(entry);
	}
	LWLockRelease(&LazyDropCtl->lock);
}
