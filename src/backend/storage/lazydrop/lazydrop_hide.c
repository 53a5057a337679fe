/*-------------------------------------------------------------------------
 *
 * lazydrop_hide.c
 *	  Hiding of files, for processes that need their names gone (rule R8).
 *
 * A process that needs the names gone, a checkpoint (rule R8) or the end of recovery (R16),
 * does not remove the files but hides them: a rename into the tablespace's directory of
 * temporary files takes some microseconds.  The postmaster empties that directory when it
 * starts, and backups leave it out.  The worker removes the files from there.
 *
 * Copyright (c) 2026, LazyDrop developers
 *
 * IDENTIFICATION
 *	  src/backend/storage/lazydrop/lazydrop_hide.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include <fcntl.h>
#include <unistd.h>

#include "catalog/pg_tablespace_d.h"
#include "storage/fd.h"
#include "storage/lazydrop_internal.h"

/* A file up to this size is removed rather than hidden. */
#define SMALL_FILE				LAZYDROP_MIN_STEP_BYTES

typedef struct HideResult
{
	int			nhidden;
	uint64		hidden_bytes;
	int			nremoved;
	uint64		removed_bytes;
} HideResult;

/*
 * Hide the files of a relation's fork, the highest segment first (rule R14), and remove
 * small ones.  Of a first segment that is to be kept the name is left, empty; while there
 * is none, the entry protects the number.
 */
static bool
HideFork(const LazyDropJob *job, ForkNumber forknum, HideResult *result)
{
	RelPathStr	first = LazyDropRelPathPerm(job->locator, forknum);

	for (uint64 segno = LazyDropCountSegments(&first); segno-- > 0;)
	{
		bool		keep = segno == 0 && forknum == MAIN_FORKNUM && job->keep_first;
		LazyDropPath path;
		uint64		size;
		int			rc = 0;

		LazyDropSegmentPath(&path, &first, segno);
		size = LazyDropFileSize(&path);
		if (size > SMALL_FILE)
		{
			if (!LazyDropHideFile(job, path.str, &result->nhidden))
				return false;
			result->hidden_bytes += size;
			if (keep)
			{
				int			fd = BasicOpenFile(path.str, O_CREAT | O_EXCL | O_RDWR | PG_BINARY);

				if (fd >= 0)
					close(fd);
			}
			continue;
		}

		/* as RemoveFile */
		if (size > 0)
			rc = pg_truncate(path.str, 0);
		if (!keep)
			rc = unlink(path.str);
		if (rc < 0 && errno != ENOENT)
			return false;
		result->nremoved++;
		result->removed_bytes += size;
	}
	return true;
}

/*
 * Hide the files of an entry: rename what is large, so that nothing is left under the names
 * that it has had, but an empty first segment.  They are still to be removed, by the worker.
 * If the server crashes before, or is stopped, the postmaster removes them when it starts,
 * also stock's.
 *
 * Waits for nothing but the file system, and raises no error.  Returns false, when some have
 * their names still, because they could not be renamed or because another process is at it.
 */
bool
LazyDropHideFiles(const LazyDropJob *job)
{
	LazyDropEntry *entry = job->entry;
	HideResult	result = {0};
	bool		all;

	if (job->hidden)
		return true;
	if (job->locator.spcOid == GLOBALTABLESPACE_OID)
		return false;

	/* From here on, no other process begins a step. */
	LWLockAcquire(&LazyDropCtl->lock, LW_EXCLUSIVE);
	all = entry->serial == job->serial &&
		entry->files >= LAZYDROP_FILES_FORGOTTEN &&
		!entry->hiding && entry->nhidden == job->nhidden;
	if (all)
	{
		entry->hiding = true;
		entry->nbusy++;
	}
	LWLockRelease(&LazyDropCtl->lock);
	if (!all)
		return false;
	result.nhidden = job->nhidden;

	if (!RelFileNumberIsValid(job->locator.relNumber))
	{
		LazyDropPath path;

		LazyDropDirectoryPath(&path, job);
		all = LazyDropHideFile(job, path.str, &result.nhidden);
	}
	else
	{
		for (ForkNumber forknum = MAX_FORKNUM; forknum >= 0 && all; forknum--)
			all = HideFork(job, forknum, &result);
	}
	LazyDropCountFreed(result.removed_bytes);

	LWLockAcquire(&LazyDropCtl->lock, LW_EXCLUSIVE);
	entry->hiding = false;
	entry->hidden = all;
	entry->nhidden = result.nhidden;
	entry->nbusy--;
	if (all && RelFileNumberIsValid(job->locator.relNumber))
	{
		entry->nfiles = result.nhidden;
		entry->bytes = result.hidden_bytes;
		entry->measured = true;
	}
	if (all && entry->files != LAZYDROP_FILES_NONE)
	{
		dlist_delete(&entry->files_node);
		dlist_push_tail(&LazyDropCtl->hidden_removals, &entry->files_node);
	}
	pg_atomic_fetch_add_u64(&LazyDropCtl->files_removed, result.nremoved);
	pg_atomic_fetch_add_u64(&LazyDropCtl->bytes_removed, result.removed_bytes);
	if (result.nhidden == 0 && all)
		LazyDropSetFiles(entry, LAZYDROP_FILES_NONE);
	(void) LazyDropDeleteIfDone(entry);
	LWLockRelease(&LazyDropCtl->lock);
	ConditionVariableBroadcast(&LazyDropCtl->settled_cv);
	return all;
}

/*
 * Hide the files of an entry, or remove them where that is not possible.  Returns false
 * when another process is hiding them: then it has to be seen what comes of that.  The
 * caller wakes the worker after the last one.
 */
bool
LazyDropHideOrRemove(LazyDropJob *job, LazyDropPause pause)
{
	bool		others;
	bool		left;

	if (LazyDropHideFiles(job))
		return true;

	/* some of them may be hidden by now, and by another process all */
	LWLockAcquire(&LazyDropCtl->lock, LW_SHARED);
	left = job->entry->serial == job->serial && !job->entry->hidden;
	others = left && job->entry->hiding;
	if (left)
		LazyDropSetJob(job, job->entry);
	LWLockRelease(&LazyDropCtl->lock);
	if (left && !others)
		LazyDropRemoveFiles(job, pause);
	return !others;
}
