/*-------------------------------------------------------------------------
 *
 * lazydrop_find.c
 *	  Searches in the set of pending drops.
 *
 * Other files ask here whether an entry prevents something, or which entry to
 * work on next.  An answer may be out of date as soon as the lock is released.
 * So before a process acts on a job, it checks that the entry is still the same
 * (LazyDropBeginStep, LazyDropBeginHiding).
 *
 * Nothing here changes an entry, or waits for anything but the set's lock.
 *
 * Copyright (c) 2026, LazyDrop developers
 *
 * IDENTIFICATION
 *	  src/backend/storage/lazydrop/lazydrop_find.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "miscadmin.h"
#include "storage/lazydrop.h"
#include "storage/lazydrop_internal.h"
#include "storage/lazydrop_stats.h"
#include "storage/proc.h"
#include "utils/timestamp.h"

int			lazydrop_lookup_limit = -1;

/* ---------------------------------------------------------------------
 * Entries that are pending
 * ---------------------------------------------------------------------
 */

/*
 * Return the entry that covers a relation: its own entry, the entry of its
 * database in its tablespace, or NULL.  The caller holds the lock.
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
 * Return whether a relation is buried.  The caller does not hold the lock.
 */
bool
LazyDropIsBuried(const RelFileLocator *locator)
{
	bool		result;

	if (LazyDropBucketIsEmpty(LazyDropRelationBucket(locator)) &&
		LazyDropBucketIsEmpty(LazyDropDatabaseBucket(locator)))
		return false;
	Assert(!LWLockHeldByMe(&LazyDropCtl->lock));
	LWLockAcquire(&LazyDropCtl->lock, LW_SHARED);
	result = LazyDropFindBurial(locator) != NULL;
	LWLockRelease(&LazyDropCtl->lock);
	return result;
}

/*
 * Return whether a relation with this relfilenumber is pending, so that the
 * number must not be chosen (rule R3).  The entry of its database does not
 * count, because it covers all relfilenumbers.
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
 * Return whether a database with this OID, or one of its relations, is pending.
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
 * Return whether an entry matches.  Sets "can_own" if a pass can become the
 * owner of a matching entry (LazyDropCanOwn).
 */
bool
LazyDropFindPending(LazyDropMatch matches, const void *arg,
					int64 steal_before, bool *can_own)
{
	bool		found = false;
	dlist_iter	iter;

	*can_own = false;
	LWLockAcquire(&LazyDropCtl->lock, LW_SHARED);
	dlist_foreach(iter, &LazyDropCtl->pending)
	{
		LazyDropEntry *entry = dlist_container(LazyDropEntry, node, iter.cur);

		if (!matches(&entry->locator, arg))
			continue;
		found = true;
		if (LazyDropCanOwn(entry, steal_before))
		{
			*can_own = true;
			break;
		}
	}
	LWLockRelease(&LazyDropCtl->lock);
	return found;
}

/*
 * Request that the worker ignores lazydrop.pass_delay for all entries that are
 * pending now.  Returns the last serial number.  The caller wakes the worker.
 */
uint64
LazyDropAskForDrain(void)
{
	uint64		last_serial;

	LWLockAcquire(&LazyDropCtl->lock, LW_EXCLUSIVE);
	last_serial = LazyDropCtl->last_serial;
	LazyDropCtl->drain_serial = last_serial;
	LWLockRelease(&LazyDropCtl->lock);
	return last_serial;
}

/*
 * Return whether a drop with a serial number up to "last_serial" is pending.
 * If an identity has been buried again, its first serial number counts.  The
 * list is sorted by it.
 */
bool
LazyDropPendingUpTo(uint64 last_serial)
{
	bool		result;

	LWLockAcquire(&LazyDropCtl->lock, LW_SHARED);
	result = !dlist_is_empty(&LazyDropCtl->pending) &&
		dlist_head_element(LazyDropEntry, node,
						   &LazyDropCtl->pending)->first_serial <= last_serial;
	LWLockRelease(&LazyDropCtl->lock);
	return result;
}

/*
 * Return the serial number of the last burial.
 */
uint64
LazyDropLastSerial(void)
{
	uint64		result;

	LWLockAcquire(&LazyDropCtl->lock, LW_SHARED);
	result = LazyDropCtl->last_serial;
	LWLockRelease(&LazyDropCtl->lock);
	return result;
}

/*
 * Return the number of blocks from which a pass costs less than to look them
 * up.
 */
uint64
LazyDropLookUpLimit(void)
{
	return lazydrop_lookup_limit < 0 ?
		NBuffers / LAZYDROP_LOOK_UP_DIVISOR : lazydrop_lookup_limit;
}

/*
 * Return the number of blocks that the files of a relation had.  The caller
 * holds the set's lock.
 */
uint64
LazyDropBlocksOf(const LazyDropEntry *entry)
{
	uint64		total = 0;

	Assert(LWLockHeldByMe(&LazyDropCtl->lock));
	Assert(entry->sized);
	for (ForkNumber forknum = 0; forknum <= MAX_FORKNUM; forknum++)
		total += entry->nblocks[forknum];
	return total;
}

/*
 * Return whether the blocks of an entry are to be looked up: its files are
 * gone, it is known how many blocks they had, and these are few (rule R18).
 * The caller holds the set's lock.
 */
bool
LazyDropCanLookUp(const LazyDropEntry *entry)
{
	Assert(LWLockHeldByMe(&LazyDropCtl->lock));
	return entry->look_up && entry->sized &&
		RelFileNumberIsValid(entry->locator.relNumber) &&
		LazyDropFilesAreGone(entry) &&
		LazyDropBlocksOf(entry) < LazyDropLookUpLimit();
}

/*
 * Return whether there is an entry that needs a pass or, with
 * LAZYDROP_WORK_LOOK_UP, an entry whose blocks are to be looked up.  For the
 * other arguments, see LazyDropOwn; if "matches" is not NULL, the entry must
 * match.
 */
bool
LazyDropHasWork(LazyDropWork work, int64 steal_before, LazyDropMatch matches,
				const void *arg, bool patient)
{
	bool		found = false;
	dlist_iter	iter;

	LWLockAcquire(&LazyDropCtl->lock, LW_SHARED);
	dlist_foreach(iter, &LazyDropCtl->pending)
	{
		LazyDropEntry *entry = dlist_container(LazyDropEntry, node, iter.cur);

		if (LazyDropCanOwn(entry, steal_before) &&
			(patient || !entry->pinned) &&
			LazyDropCanLookUp(entry) == (work == LAZYDROP_WORK_LOOK_UP) &&
			(matches == NULL || matches(&entry->locator, arg)))
		{
			found = true;
			break;
		}
	}
	LWLockRelease(&LazyDropCtl->lock);
	return found;
}

/*
 * Return whether the worker should make a pass: buffers have been pending for
 * "delay_ms" and the schedule allows it, a process is waiting for them, or half
 * of the set is in use.  If not, return whether it should look up buffers.  It
 * may miss some that are to be looked up, until the next pass.
 *
 * Entries with a pinned buffer are ignored for some time.  Entries whose files
 * have not been released are ignored until they are, so that one pass is
 * enough for all that is being dropped.
 *
 * If no pass is due, "timeout_ms" is reduced to the time until one may be.
 */
LazyDropWork
LazyDropFindBuffers(int64 delay_ms, const LazyDropSchedule *schedule,
					long *timeout_ms)
{
	int64		now = LazyDropNow();
	int			crowd = Max(LazyDropCtl->capacity / 2, 1);
	bool		crowded = pg_atomic_read_u32(&LazyDropCtl->nburied.value) >= crowd;
	LazyDropWork work = LAZYDROP_WORK_NONE;
	int			npassable = 0;
	dlist_iter	iter;

	LWLockAcquire(&LazyDropCtl->lock, LW_SHARED);
	dlist_foreach(iter, &LazyDropCtl->pending)
	{
		LazyDropEntry *entry = dlist_container(LazyDropEntry, node, iter.cur);
		int64		due_at;
		int64		retry_at;
		bool		can_look_up;

		if (!LazyDropCanOwn(entry, 0) ||
			entry->files == LAZYDROP_FILES_BURIED ||
			entry->files == LAZYDROP_FILES_FORGOTTEN)
			continue;
		can_look_up = LazyDropCanLookUp(entry);
		due_at = Max(entry->buried_at_ns + delay_ms * 1000000, schedule->pass_at);
		retry_at = can_look_up ? schedule->retry_lookup_at : schedule->retry_pass_at;
		if (entry->pinned && now < retry_at)
		{
			/* Wait for the pin, but check other entries. */
			*timeout_ms = Min(*timeout_ms, (retry_at - now) / 1000000 + 1);
		}
		else if (can_look_up)
			work = LAZYDROP_WORK_LOOK_UP;
		else if (entry->first_serial <= LazyDropCtl->drain_serial ||
				 now >= due_at || ++npassable >= crowd)
		{
			work = LAZYDROP_WORK_PASS;
			break;
		}
		else
		{
			/* The entries are sorted by age, so the others wait longer. */
			*timeout_ms = Min(*timeout_ms, (due_at - now) / 1000000 + 1);
			if (!crowded)
				break;
		}
	}
	LWLockRelease(&LazyDropCtl->lock);
	return work;
}

/*
 * Set the fields of "stats" that describe pending drops.  The caller holds the
 * lock.
 */
void
LazyDropSumPending(LazyDropStats *stats)
{
	int64		oldest = 0;
	dlist_iter	iter;

	Assert(LWLockHeldByMe(&LazyDropCtl->lock));
	stats->pending_databases = LazyDropCtl->ndatabases;
	stats->pending_relations =
		pg_atomic_read_u32(&LazyDropCtl->npending) - LazyDropCtl->ndatabases;
	if (!dlist_is_empty(&LazyDropCtl->pending))
		oldest = dlist_head_element(LazyDropEntry, node,
									&LazyDropCtl->pending)->buried_at_ns;
	dlist_foreach(iter, &LazyDropCtl->pending)
	{
		LazyDropEntry *entry = dlist_container(LazyDropEntry, node, iter.cur);

		stats->pending_files += entry->nfiles;
		stats->pending_bytes += entry->bytes;
		/* Leftovers have files, but are not a pending drop. */
		if (LazyDropIsForLeftovers(&entry->locator))
			stats->pending_relations--;
	}
	stats->oldest_age_ms = oldest == 0 ? -1 : (LazyDropNow() - oldest) / 1000000;
}

/*
 * Find the reason why an entry is pending, and the process that it waits for, if
 * there is one.  The caller holds the lock.
 */
static void
FindWait(const LazyDropEntry *entry, int64 now_ns, int64 delay_ms,
		 LazyDropPending *pending)
{
	ProcNumber	process = INVALID_PROC_NUMBER;

	Assert(LWLockHeldByMe(&LazyDropCtl->lock));
	if (entry->files == LAZYDROP_FILES_BURIED ||
		(entry->files == LAZYDROP_FILES_FORGOTTEN && entry->barrier == 0))
	{
		pending->wait = LAZYDROP_WAIT_DROPPER;
		process = entry->dropper;
	}
	else if (entry->names == LAZYDROP_NAMES_CHANGING)
		pending->wait = LAZYDROP_WAIT_HIDING;
	else if (entry->nbusy > 0)
		pending->wait = LAZYDROP_WAIT_REMOVAL;
	else if (entry->barrier != 0)
		pending->wait = LAZYDROP_WAIT_PROCESSES;
	else if (entry->files != LAZYDROP_FILES_NONE && entry->retry_at_ns > now_ns)
		pending->wait = LAZYDROP_WAIT_RETRY;
	else if (entry->owner != 0)
	{
		pending->wait = LAZYDROP_WAIT_PASS;
		process = entry->owner_proc;
	}
	else if (!LazyDropHaveWorker())
		pending->wait = LAZYDROP_WAIT_NO_WORKER;
	else if (entry->files == LAZYDROP_FILES_NONE && entry->pinned)
		pending->wait = LAZYDROP_WAIT_PIN;
	else if (entry->files == LAZYDROP_FILES_NONE && !LazyDropCanLookUp(entry) &&
			 now_ns - entry->buried_at_ns < delay_ms * 1000000)
		pending->wait = LAZYDROP_WAIT_DELAY;
	else
		pending->wait = LAZYDROP_WAIT_WORKER;

	if (process != INVALID_PROC_NUMBER)
		pending->pid = GetPGProcByNumber(process)->pid;
}

/*
 * Describe an entry.  "delay_ms" is lazydrop.pass_delay.  The caller holds the
 * lock.
 */
static void
DescribeEntry(const LazyDropEntry *entry, int64 now_ns, TimestampTz now,
			  int64 delay_ms, LazyDropPending *pending)
{
	memset(pending, 0, sizeof(LazyDropPending));
	pending->locator = entry->locator;
	pending->since = now - (now_ns - entry->buried_at_ns) / 1000;
	pending->buffers_done = entry->buffers != LAZYDROP_BUFFERS_BURIED;
	pending->files_done = entry->files == LAZYDROP_FILES_NONE;
	pending->files = entry->nfiles;
	pending->bytes = entry->bytes;
	pending->failures = entry->nfailures;
	if (entry->files != LAZYDROP_FILES_NONE && entry->retry_at_ns > now_ns)
		pending->next_attempt = now + (entry->retry_at_ns - now_ns) / 1000;
	FindWait(entry, now_ns, delay_ms, pending);
}

/*
 * Fill an array of "room" elements with pending drops, oldest first.  Returns
 * the number of elements.  "delay_ms" is lazydrop.pass_delay.  The lock is held
 * all the time, so droppers wait.
 */
int
LazyDropListPending(LazyDropPending *result, int room, int64 delay_ms)
{
	int64		now_ns = LazyDropNow();
	TimestampTz now = GetCurrentTimestamp();
	int			n = 0;
	dlist_iter	iter;

	LWLockAcquire(&LazyDropCtl->lock, LW_SHARED);
	dlist_foreach(iter, &LazyDropCtl->pending)
	{
		LazyDropEntry *entry = dlist_container(LazyDropEntry, node, iter.cur);

		if (n == room)
			break;
		if (!LazyDropIsForLeftovers(&entry->locator))
			DescribeEntry(entry, now_ns, now, delay_ms, &result[n++]);
	}
	LWLockRelease(&LazyDropCtl->lock);
	return n;
}

/*
 * Find the oldest entry that is older than this, and for which the worker can do
 * nothing until another process has done something.  Returns false if there is
 * none.
 */
bool
LazyDropFindStuck(int64 age_ms, LazyDropPending *pending)
{
	int64		now_ns = LazyDropNow();
	TimestampTz now = GetCurrentTimestamp();
	bool		found = false;
	dlist_iter	iter;

	LWLockAcquire(&LazyDropCtl->lock, LW_SHARED);
	dlist_foreach(iter, &LazyDropCtl->pending)
	{
		LazyDropEntry *entry = dlist_container(LazyDropEntry, node, iter.cur);

		if (now_ns - entry->buried_at_ns < age_ms * 1000000)
			break;
		if (LazyDropIsForLeftovers(&entry->locator))
			continue;
		DescribeEntry(entry, now_ns, now, age_ms, pending);
		found = pending->wait == LAZYDROP_WAIT_PIN ||
			pending->wait == LAZYDROP_WAIT_DROPPER ||
			pending->wait == LAZYDROP_WAIT_PROCESSES ||
			(pending->wait == LAZYDROP_WAIT_PASS && pending->pid != MyProcPid);
		if (found)
			break;
	}
	LWLockRelease(&LazyDropCtl->lock);
	return found;
}

/* ---------------------------------------------------------------------
 * Entries with files
 * ---------------------------------------------------------------------
 */

/*
 * Copy the fields of an entry into a job.
 */
static void
SetJob(LazyDropJob *job, LazyDropEntry *entry)
{
	Assert(LWLockHeldByMe(&LazyDropCtl->lock));
	Assert(entry->files != LAZYDROP_FILES_NONE);
	job->entry = entry;
	job->serial = entry->serial;
	job->locator = entry->locator;
	job->first_serial = entry->first_serial;
	job->keep_first = entry->keep_first;
	job->gaps = entry->gaps;
	job->measured = entry->measured;
	job->sized = entry->sized;
	job->nfailures = entry->nfailures;
	job->hidden = entry->names == LAZYDROP_NAMES_HIDDEN;
	job->nhidden = entry->nhidden;
}

/*
 * Return whether an entry, and all that follow it in its list, are newer than a
 * filter requires.
 */
static bool
IsTooNew(const LazyDropFilter *filter, const LazyDropEntry *entry)
{
	return filter->last_serial != 0 && entry->serial > filter->last_serial;
}

/*
 * Return whether any other entry meets the conditions of a filter.
 */
static bool
MeetsFilter(const LazyDropFilter *filter, const LazyDropEntry *entry)
{
	return entry->files >= filter->least &&
		entry->serial >= filter->first_serial &&
		!(filter->to_hide && entry->hide_failed &&
		  entry->names != LAZYDROP_NAMES_CHANGING) &&
		(filter->matches == NULL || filter->matches(&entry->locator, filter->arg));
}

/*
 * Return whether a process may work on the files of such an entry now.
 */
static bool
IsReady(const LazyDropFilter *filter, const LazyDropEntry *entry, int64 now)
{
	return MeetsFilter(filter, entry) &&
		entry->names != LAZYDROP_NAMES_CHANGING &&
		(filter->to_hide || now >= entry->retry_at_ns);
}

/*
 * Find entries whose files should be hidden or removed.  Entries with hidden
 * files come first, and older ones before newer ones.  Returns the number of
 * jobs, up to njobs.
 */
int
LazyDropFindJobs(const LazyDropFilter *filter, LazyDropJob *jobs, int njobs)
{
	dlist_head *lists[] = {&LazyDropCtl->hidden_removals, &LazyDropCtl->removals};
	int			found = 0;
	int64		now = LazyDropNow();
	dlist_iter	iter;

	Assert(filter->least != LAZYDROP_FILES_NONE);
	LWLockAcquire(&LazyDropCtl->lock, LW_SHARED);
	for (int i = filter->to_hide ? 1 : 0; i < lengthof(lists) && found < njobs; i++)
	{
		dlist_foreach(iter, lists[i])
		{
			LazyDropEntry *entry = dlist_container(LazyDropEntry, files_node,
												   iter.cur);

			if (IsTooNew(filter, entry))
				break;
			if (!IsReady(filter, entry, now))
				continue;
			SetJob(&jobs[found], entry);
			if (++found == njobs)
				break;
		}
	}
	LWLockRelease(&LazyDropCtl->lock);
	return found;
}

/*
 * Find the oldest such entry, hidden or not.  Returns false if there is none.
 */
bool
LazyDropFindOldestJob(const LazyDropFilter *filter, LazyDropJob *job)
{
	dlist_head *lists[] = {&LazyDropCtl->hidden_removals, &LazyDropCtl->removals};
	LazyDropEntry *oldest = NULL;
	int64		now = LazyDropNow();
	dlist_iter	iter;

	Assert(!filter->to_hide && filter->last_serial == 0);
	LWLockAcquire(&LazyDropCtl->lock, LW_SHARED);
	for (int i = 0; i < lengthof(lists); i++)
	{
		dlist_foreach(iter, lists[i])
		{
			LazyDropEntry *entry = dlist_container(LazyDropEntry, files_node,
												   iter.cur);

			/* Both lists are sorted by serial number. */
			if (oldest != NULL && entry->serial > oldest->serial)
				break;
			if (IsReady(filter, entry, now))
			{
				oldest = entry;
				break;
			}
		}
	}
	if (oldest != NULL)
		SetJob(job, oldest);
	LWLockRelease(&LazyDropCtl->lock);
	return oldest != NULL;
}

/*
 * Find the entry of a relation whose files a process that must not wait may
 * hide or remove.  Returns false if there is none.
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
		SetJob(job, entry);
	LWLockRelease(&LazyDropCtl->lock);
	return found;
}

/*
 * Update a job.  Returns false if no file has its own name any more, or if the
 * entry has been deleted or buried again.  Sets "hiding" if another process is
 * renaming the files.
 */
bool
LazyDropLookAgain(LazyDropJob *job, bool *hiding)
{
	LazyDropEntry *entry = job->entry;
	bool		left;

	LWLockAcquire(&LazyDropCtl->lock, LW_SHARED);
	left = entry->serial == job->serial &&
		entry->names != LAZYDROP_NAMES_HIDDEN &&
		entry->files != LAZYDROP_FILES_NONE;
	*hiding = left && entry->names == LAZYDROP_NAMES_CHANGING;
	if (left)
		SetJob(job, entry);
	LWLockRelease(&LazyDropCtl->lock);
	return left;
}

/*
 * Return whether entries have files that meet the conditions of a filter, or
 * may do so later: the dropper has not released them, another process is
 * renaming them and may fail, or their removal will be tried again.
 *
 * If files are to be hidden, a dropper that has exited, such as the startup
 * process at a shutdown, is not waited for (rule R8).
 */
bool
LazyDropFilesAreLeft(const LazyDropFilter *filter)
{
	LazyDropFilter later = *filter;
	dlist_head *lists[] = {&LazyDropCtl->removals, &LazyDropCtl->hidden_removals};
	bool		found = false;
	dlist_iter	iter;

	later.least = LAZYDROP_FILES_BURIED;
	LWLockAcquire(&LazyDropCtl->lock, LW_SHARED);
	for (int i = 0; i < (filter->to_hide ? 1 : lengthof(lists)) && !found; i++)
	{
		dlist_foreach(iter, lists[i])
		{
			LazyDropEntry *entry = dlist_container(LazyDropEntry, files_node,
												   iter.cur);

			if (IsTooNew(filter, entry))
				break;
			if (filter->to_hide && entry->files == LAZYDROP_FILES_BURIED &&
				GetPGProcByNumber(entry->dropper)->pid == 0)
				continue;
			if (MeetsFilter(&later, entry))
			{
				found = true;
				break;
			}
		}
	}
	LWLockRelease(&LazyDropCtl->lock);
	return found;
}
