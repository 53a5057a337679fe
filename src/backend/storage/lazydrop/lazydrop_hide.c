/*-------------------------------------------------------------------------
 *
 * lazydrop_hide.c
 *	  Hiding of files, for processes that need their names gone (rule R8).
 *
 * A checkpoint needs the names of dropped files gone (rule R8), and so do the
 * end of recovery (R16) and a copy of a database (R10).  They do not remove
 * the files, but hide them, because a rename takes a few microseconds for any
 * size.  The names are in lazydrop_paths.c.  The worker removes hidden files,
 * also after the next start.
 *
 * Copyright (c) 2026, LazyDrop developers
 *
 * IDENTIFICATION
 *	  src/backend/storage/lazydrop/lazydrop_hide.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include <ctype.h>
#include <dirent.h>
#include <fcntl.h>
#include <unistd.h>

#include "miscadmin.h"
#include "storage/fd.h"
#include "storage/lazydrop_internal.h"

/* interval between reports that files cannot be hidden, in nanoseconds */
#define COMPLAINT_NS			(INT64CONST(60) * 1000 * 1000 * 1000)

/*
 * Create an empty file under the name of a file that has just been hidden.  If
 * that fails, give the hidden file its name back, and truncate it.
 */
static bool
KeepName(const LazyDropJob *job, const char *path, int *nhidden)
{
	int			fd;

	LAZYDROP_INJECTION_POINT("lazydrop-keep-name");
	fd = BasicOpenFile(path, O_CREAT | O_EXCL | O_RDWR | PG_BINARY);
	if (fd >= 0)
	{
		close(fd);
		return true;
	}
	return LazyDropUnhideFile(job, path, nhidden) && pg_truncate(path, 0) == 0;
}

/*
 * Hide the files of a relation's fork, the highest segment first (rule R14).
 * If the first segment is to be kept, an empty file takes its name; until that
 * exists, the entry protects the number.  Other empty files are unlinked.
 * Returns false and sets errno if some could not be hidden.
 */
static bool
HideFork(const LazyDropJob *job, ForkNumber forknum, int *nhidden)
{
	RelPathStr	first = LazyDropRelPathPerm(job->locator, forknum);
	bool		gaps = job->gaps || job->nfailures > 0;

	for (uint64 segno = LazyDropCountSegments(&first, gaps); segno-- > 0;)
	{
		bool		keep = segno == 0 && forknum == MAIN_FORKNUM && job->keep_first;
		int			before = *nhidden;
		LazyDropPath path;

		LazyDropSegmentPath(&path, &first, segno);
		if (LazyDropFileSize(&path) == 0)
		{
			/* An empty file needs no slow removal. */
			if (!keep && unlink(path.str) < 0 && errno != ENOENT)
				return false;
			continue;
		}
		if (!LazyDropHideFile(job, path.str, nhidden))
			return false;
		if (keep && *nhidden > before && !KeepName(job, path.str, nhidden))
			return false;
	}
	return true;
}

/*
 * Hide the files in a directory that cannot be renamed itself, and remove it.
 * Returns false and sets errno on failure.  Nothing is allocated, and fd.c is
 * not used, because an error would leave the entry marked.  So the directory
 * changes while it is read, and is read until nothing is found.
 */
static bool
HideFilesIn(const LazyDropJob *job, const char *path, int *nhidden)
{
	for (;;)
	{
		DIR		   *dir = opendir(path);
		struct dirent *de;
		int			before = *nhidden;

		if (dir == NULL)
			return errno == ENOENT;
		while ((de = readdir(dir)) != NULL)
		{
			LazyDropPath file;

			if (strcmp(de->d_name, ".") == 0 || strcmp(de->d_name, "..") == 0)
				continue;
			snprintf(file.str, sizeof(file.str), "%s/%s", path, de->d_name);

			/*
			 * Files that do not belong to a relation are small, and must not
			 * get the name of a temporary relation's file.  Unlink them.
			 */
			if (!isdigit((unsigned char) de->d_name[0]) && unlink(file.str) == 0)
				continue;
			if (!LazyDropHideFile(job, file.str, nhidden))
			{
				int			save_errno = errno;

				closedir(dir);
				errno = save_errno;
				return false;
			}
		}
		closedir(dir);
		if (rmdir(path) == 0 || errno == ENOENT)
			return true;
		if (*nhidden == before)
			return false;
	}
}

/*
 * Hide a database's directory.  Returns false and sets errno on failure.
 */
static bool
HideDirectory(const LazyDropJob *job, int *nhidden)
{
	LazyDropPath path;

	LazyDropDirectoryPath(&path, job);
	return LazyDropHideFile(job, path.str, nhidden) ||
		HideFilesIn(job, path.str, nhidden);
}

/*
 * Hide the files of an entry: rename them, so that only an empty first segment
 * may remain under the original names.  The worker will remove the files.
 *
 * Waits only for the file system, and raises no error.  Returns false if files
 * still have their names, because they cannot be renamed (then errno is set),
 * or because another process is renaming them or the job is out of date (then
 * it is 0).
 */
bool
LazyDropHideFiles(const LazyDropJob *job)
{
	int			nhidden = job->nhidden;
	int			save_errno;
	bool		all = true;

	Assert(!LWLockHeldByMe(&LazyDropCtl->lock));
	if (job->hidden)
		return true;
	if (!job->sized && !job->gaps)
		LazyDropMeasureBlocks(&job->locator, job->serial);

	/*
	 * From here on, no other process begins a step.  An interrupt, which a
	 * message about descriptors might process, would leave the entry marked.
	 */
	HOLD_INTERRUPTS();
	if (!LazyDropBeginHiding(job))
	{
		RESUME_INTERRUPTS();
		errno = 0;
		return false;
	}

	if (!RelFileNumberIsValid(job->locator.relNumber))
		all = HideDirectory(job, &nhidden);
	else
	{
		for (ForkNumber forknum = MAX_FORKNUM; forknum >= 0 && all; forknum--)
			all = HideFork(job, forknum, &nhidden);
	}
	save_errno = errno;

	LazyDropEndHiding(job, nhidden, all);
	elog(DEBUG2, "hid %d files of %u/%u/%u%s", nhidden - job->nhidden,
		 job->locator.spcOid, job->locator.dbOid, job->locator.relNumber,
		 all ? "" : ", not all");
	RESUME_INTERRUPTS();
	errno = save_errno;
	return all;
}

/*
 * Hide the files of an entry, or remove them if that is not possible, which is
 * counted, and reported once a minute.  Returns true if none has its own name
 * any more, or else if all that could be renamed or removed has been.  Returns
 * false if another process is working on them, in which case the caller tries
 * again later.  The caller wakes the worker after the last entry.
 */
bool
LazyDropHideOrRemove(LazyDropJob *job, LazyDropPause pause)
{
	static int64 complained_ns = 0;
	bool		hiding;
	int			save_errno = 0;
	int64		now;

	/* If other processes have hidden some meanwhile, try to hide the rest. */
	while (save_errno == 0)
	{
		if (LazyDropHideFiles(job))
			return true;
		save_errno = errno;

		/* Some may be hidden by now, or all of them by another process. */
		if (!LazyDropLookAgain(job, &hiding))
			return true;
		if (hiding)
			return false;
	}

	LazyDropCount(LAZYDROP_HIDE_FAILURES, 1);
	now = LazyDropNow();
	if (complained_ns == 0 || now - complained_ns > COMPLAINT_NS)
	{
		complained_ns = now;
		errno = save_errno;
		ereport(WARNING,
				(errcode_for_file_access(),
				 errmsg("could not rename files of dropped relations in tablespace %u: %m",
						job->locator.spcOid),
				 errdetail("They are removed at once, which may take long.")));
	}
	if (!LazyDropRemoveFiles(job, pause))
		return false;
	LazyDropHidingFailed(job);
	return true;
}

/*
 * Hide the files of all entries that match and are present now, or remove them
 * if that is not possible.  Files for which neither is possible are tried once
 * (hide_failed).  "matches" may be NULL.
 *
 * Waits for droppers that have not released their files yet, and for other
 * processes that are renaming files, with this wait event.  "pause" is called
 * again and again.  Returns whether there was anything to do.  The caller holds
 * no LWLock.
 */
bool
LazyDropHideAll(LazyDropMatch matches, const void *arg, LazyDropPause pause,
				uint32 wait_event)
{
	LazyDropFilter filter = {
		.least = LAZYDROP_FILES_FORGOTTEN,
		.to_hide = true,
		.last_serial = LazyDropRetryHiding(),
		.matches = matches,
		.arg = arg,
	};
	bool		result = false;

	Assert(!LWLockHeldByMe(&LazyDropCtl->lock));
	for (;;)
	{
		LazyDropJob jobs[LAZYDROP_BATCH];
		int			njobs = LazyDropFindJobs(&filter, jobs, lengthof(jobs));

		for (int i = 0; i < njobs; i++)
		{
			(void) LazyDropHideOrRemove(&jobs[i], pause);
			(void) pause(0);
		}
		if (njobs == 0)
		{
			/* An entry that has become ready meanwhile is left, too. */
			if (!LazyDropFilesAreLeft(&filter))
				break;
			ConditionVariablePrepareToSleep(&LazyDropCtl->settled_cv);
			(void) ConditionVariableTimedSleep(&LazyDropCtl->settled_cv, 10,
											   wait_event);
			(void) pause(0);
		}
		result = true;
	}
	ConditionVariableCancelSleep();
	LazyDropWakeWorker();
	return result;
}
