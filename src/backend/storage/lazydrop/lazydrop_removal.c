/*-------------------------------------------------------------------------
 *
 * lazydrop_removal.c
 *	  Removal of files (rules R5 and R14).
 *
 * Truncating and unlinking a file of 1 GB takes a file system some hundred
 * milliseconds.  So the dropper leaves that to the lazy drop worker, which
 * does it in steps and, with lazydrop.removal_rate, slowly.  A process that
 * needs the space, or needs the entry gone, removes the files itself, at full
 * speed and without waiting for the worker.  It may be about to create storage
 * under the name (R3), or to remove a tablespace (R10), or it has found no
 * space (R15, lazydrop_space.c).
 *
 * Several processes may work on the same files, so each step tolerates that a
 * file is gone already.  But no process may sleep between two steps while the
 * entry is deleted and the name is reused, and then wake up and continue (R5).
 * So an entry is not deleted while a process is in a step, and each step
 * begins with a check that the entry is still the same.  A step is one or two
 * system calls, or the hiding of an entry's files.  The entry is marked during
 * a step, but no lock is held, so no other process ever waits for the disk
 * because of it.
 *
 * Copyright (c) 2026, LazyDrop developers
 *
 * IDENTIFICATION
 *	  src/backend/storage/lazydrop/lazydrop_removal.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include <dirent.h>
#include <sys/stat.h>
#include <unistd.h>

#include "miscadmin.h"
#include "nodes/pg_list.h"
#include "storage/fd.h"
#include "storage/lazydrop.h"
#include "storage/lazydrop_internal.h"
#include "storage/proc.h"

int			lazydrop_removal_rate = 0;

/*
 * A file is shrunk in steps of this many bytes, which is a multiple of any
 * block size (rule R14).  Other processes wait for the file system's journal
 * during a step, so commits would wait longer if steps were larger.  If they
 * were smaller, the removal would take longer, because each step has a cost of
 * its own.
 */
#define STEP_BYTES				((uint64) 4 * 1024 * 1024)

/* bytes freed by this process since it began to look for space (rule R15) */
uint64		lazydrop_freed_bytes = 0;

/*
 * Level of messages that a file cannot be removed, as in md.c, because any
 * process may report this.  A session that only looks for space may hold
 * locks, so its client is not told (LOG_SERVER_ONLY).  0 means no message, for
 * cases in which another process finds and reports the same.
 */
int			lazydrop_complaint_level = WARNING;

/* ---------------------------------------------------------------------
 * Files
 * ---------------------------------------------------------------------
 */

/*
 * Count freed bytes, for processes that wait for space.  Bytes may be counted
 * twice but are never missed (LazyDropFreeSpace).
 */
void
LazyDropCountFreed(uint64 bytes)
{
	lazydrop_freed_bytes += bytes;
	pg_atomic_fetch_add_u64(&LazyDropCtl->bytes_freed, bytes);
}

static bool
Pause(LazyDropPause pause, uint64 bytes)
{
	return pause == NULL || pause(bytes);
}

/*
 * Truncate a file, unless another process has truncated it further.  Returns 0
 * or errno.
 */
static int
Shrink(const char *path, uint64 new_size)
{
	struct stat st;

	if (stat(path, &st) < 0)
		return errno;
	if ((uint64) st.st_size > new_size && pg_truncate(path, new_size) < 0)
		return errno;
	return 0;
}

/*
 * Report that a file or a directory could not be removed.  Attempts between
 * the first and the last are reported at DEBUG1.  "format" contains
 * placeholders for the path and for the error (%m).
 */
static void
Complain(const LazyDropJob *job, const char *format, const char *path,
		 int save_errno)
{
	bool		last = job->nfailures >= LAZYDROP_MAX_FAILURES;
	int			level = lazydrop_complaint_level;

	if (level == 0)
		return;
	if (job->nfailures > 0 && !last)
		level = DEBUG1;
	errno = save_errno;
	ereport(level,
			(errcode_for_file_access(),
			 errmsg(format, path),
			 last ? errdetail("It is left behind.") :
			 errdetail("It will be tried again.")));
}

/*
 * Truncate a file in steps and, unless "keep" is set, unlink it.  Other
 * processes may have it open, which would keep its space from being freed, so
 * it is truncated first, as in md.c.  "size" is its size in bytes; a file of
 * size 0 is not truncated.
 *
 * Returns false if nothing is left to do for this job, or to stop.  Sets
 * "failed" if the file still exists but should not, or has bytes but should be
 * empty.  The caller holds no lock.  No errors are raised, except by "pause".
 */
bool
LazyDropRemoveFile(const LazyDropJob *job, const char *path, uint64 size,
				   bool keep, LazyDropPause pause, bool *failed)
{
	int			truncate_errno = 0;
	int			unlink_errno = 0;
	uint64		freed;

	while (size > STEP_BYTES && truncate_errno == 0)
	{
		uint64		new_size = (size - 1) / STEP_BYTES * STEP_BYTES;

		if (!LazyDropBeginStep(job))
			return false;
		truncate_errno = Shrink(path, new_size);
		if (truncate_errno == 0)
			LazyDropCountFreed(size - new_size);
		LazyDropEndStep(job, 0, truncate_errno == 0 ? size - new_size : 0, false);
		if (truncate_errno == 0)
		{
			if (!Pause(pause, size - new_size))
				return false;
			size = new_size;
		}
	}

	if (!LazyDropBeginStep(job))
		return false;
	if (truncate_errno == 0 && size > 0)
		truncate_errno = Shrink(path, 0);
	if (!keep && truncate_errno != ENOENT && unlink(path) < 0)
		unlink_errno = errno;

	/* It may be possible to unlink a file that cannot be truncated. */
	freed = truncate_errno == 0 ||
		(truncate_errno != ENOENT && !keep && unlink_errno == 0) ? size : 0;
	LazyDropCountFreed(freed);
	LazyDropEndStep(job, truncate_errno == ENOENT || unlink_errno != 0 ? 0 : 1,
					freed, false);

	if (truncate_errno != 0 && truncate_errno != ENOENT &&
		(keep || unlink_errno != 0))
	{
		*failed = true;
		Complain(job, gettext_noop("could not truncate file \"%s\": %m"), path,
				 truncate_errno);
	}
	if (unlink_errno != 0 && unlink_errno != ENOENT)
	{
		*failed = true;
		Complain(job, gettext_noop("could not remove file \"%s\": %m"), path,
				 unlink_errno);
	}
	return Pause(pause, freed);
}

/* ---------------------------------------------------------------------
 * Entries
 * ---------------------------------------------------------------------
 */

/*
 * Remove the files of a relation's fork, the highest segment first.  Stock's
 * replay ascends and stops at the first missing segment, so it would leave
 * segments behind a gap forever (rule R14).  As in md.c, an error ends the
 * removal.  Returns false to stop.
 */
static bool
RemoveFork(const LazyDropJob *job, ForkNumber forknum, LazyDropPause pause,
		   bool *failed)
{
	RelPathStr	first = LazyDropRelPathPerm(job->locator, forknum);
	bool		fork_failed = false;

	for (uint64 segno = LazyDropCountSegments(&first, job->gaps || job->nfailures > 0);
		 segno-- > 0 && !fork_failed;)
	{
		bool		keep = segno == 0 && forknum == MAIN_FORKNUM && job->keep_first;
		LazyDropPath path;

		LazyDropSegmentPath(&path, &first, segno);
		if (!LazyDropRemoveFile(job, path.str, LazyDropFileSize(&path), keep,
								pause, &fork_failed))
			return false;
	}
	*failed |= fork_failed;
	return true;
}

/*
 * Return the names in a directory, as paths, allocated in the current context.
 * (It is not safe to remove files while reading a directory.)  Returns NIL if
 * there is no directory.  Sets "failed" if it cannot be read, perhaps for lack
 * of memory or descriptors.
 */
static List *
ReadNames(const LazyDropJob *job, const char *path, bool *failed)
{
	List	   *names = NIL;
	DIR		   *dir;
	struct dirent *de;

	dir = AllocateDir(path);
	if (dir == NULL && (errno == ENOENT || errno == ENOTDIR))
		return NIL;
	if (dir != NULL)
	{
		while (errno = 0, (de = ReadDirExtended(dir, path, DEBUG1)) != NULL)
		{
			if (strcmp(de->d_name, ".") != 0 && strcmp(de->d_name, "..") != 0)
				names = lappend(names, psprintf("%s/%s", path, de->d_name));
		}
	}
	if (errno != 0)
	{
		*failed = true;
		Complain(job, gettext_noop("could not read directory \"%s\": %m"), path,
				 errno);
		list_free_deep(names);
		names = NIL;
	}
	if (dir != NULL)
		FreeDir(dir);
	return names;
}

/*
 * Return whether a file may be truncated before it is unlinked.  In a
 * database, and in leftovers, which may be from one, a file behind a link or
 * with another name is left alone, as in rmtree: it may belong to a backup.
 */
bool
LazyDropMayTruncate(const LazyDropJob *job, const struct stat *st)
{
	return S_ISREG(st->st_mode) &&
		(st->st_nlink == 1 || RelFileNumberIsValid(job->locator.relNumber));
}

/*
 * Remove a database's directory, hidden or not, with all of its contents, as
 * rmtree does.  Returns false to stop.
 */
static bool
RemoveDirectory(const LazyDropJob *job, const char *path, LazyDropPause pause,
				bool *failed)
{
	bool		any_failed = false;
	bool		go_on = true;
	List	   *names = ReadNames(job, path, &any_failed);

	foreach_ptr(char, file, names)
	{
		struct stat st;

		if (lstat(file, &st) < 0)
			continue;
		if (S_ISDIR(st.st_mode))
			go_on = RemoveDirectory(job, file, pause, &any_failed);
		else
		{
			if (!LazyDropMayTruncate(job, &st))
				st.st_size = 0;
			go_on = LazyDropRemoveFile(job, file, st.st_size, false, pause,
									   &any_failed);
		}
		if (!go_on)
			break;
	}
	list_free_deep(names);
	*failed |= any_failed;
	if (!go_on)
		return false;

	if (!any_failed)
	{
		int			rmdir_errno;

		if (!LazyDropBeginStep(job))
			return false;
		rmdir_errno = rmdir(path) < 0 ? errno : 0;
		LazyDropEndStep(job, 0, 0, false);
		if (rmdir_errno != 0 && rmdir_errno != ENOENT)
		{
			*failed = true;
			Complain(job, gettext_noop("could not remove directory \"%s\": %m"),
					 path, rmdir_errno);
		}
	}
	return true;
}

/*
 * Remove a hidden file or directory.  Returns false to stop.
 */
static bool
RemoveHidden(const LazyDropJob *job, const char *path, LazyDropPause pause,
			 bool *failed)
{
	struct stat st;

	if (lstat(path, &st) < 0)
		return true;
	if (S_ISDIR(st.st_mode))
		return RemoveDirectory(job, path, pause, failed);
	if (!LazyDropMayTruncate(job, &st))
		st.st_size = 0;
	return LazyDropRemoveFile(job, path, st.st_size, false, pause, failed);
}

/*
 * Remove the files that earlier runs of the server have hidden in a
 * tablespace.  Returns false to stop.
 */
static bool
RemoveLeftovers(const LazyDropJob *job, LazyDropPause pause, bool *failed)
{
	bool		go_on = true;

	for (int i = 0; i < LAZYDROP_HIDDEN_DIRECTORIES && go_on; i++)
	{
		LazyDropPath dir;
		List	   *names;

		LazyDropHiddenDirectory(&dir, job->locator.spcOid, i);
		names = ReadNames(job, dir.str, failed);
		foreach_ptr(char, file, names)
		{
			if (!LazyDropIsLeftover(last_dir_separator(file) + 1))
				continue;
			go_on = RemoveHidden(job, file, pause, failed);
			if (!go_on)
				break;
		}
		list_free_deep(names);
	}
	return go_on;
}

/*
 * Remove a database's directory at once, if its removal is not deferred.
 */
void
LazyDropRemoveDatabaseDirectory(Oid spcoid, Oid dboid)
{
	char	   *path = GetDatabasePath(dboid, spcoid);

	if (!rmtree(path, true))
		ereport(WARNING,
				(errmsg("some useless files may be left behind in old database directory \"%s\"",
						path)));
	pfree(path);
}

/*
 * Note that the files of an entry are gone or cannot be removed.
 */
static void
EndRemoval(const LazyDropJob *job)
{
	if (LazyDropBeginStep(job))
		LazyDropEndStep(job, 0, 0, true);
}

/*
 * Remove the files of an entry, hidden or not, that others have not removed
 * yet.  Delete the entry if nothing else is left to do for it.  "pause", if
 * not NULL, is called between steps.
 *
 * Returns false if the removal has been stopped: by "pause", or because the job
 * is out of date, or because another process is renaming the files.
 *
 * The caller does not hold the set's lock.  No errors are raised, except by
 * "pause" and, for a directory, if memory runs out.  After an error, others
 * can continue with the entry.  If a file cannot be removed, this is reported
 * and tried again later, and does not keep the entry forever (rule R14).
 */
bool
LazyDropRemoveFiles(const LazyDropJob *job, LazyDropPause pause)
{
	bool		is_relation = RelFileNumberIsValid(job->locator.relNumber);
	bool		go_on = true;
	bool		failed = false;
	LazyDropPath path;

	Assert(!LWLockHeldByMe(&LazyDropCtl->lock));
	LazyDropMeasure(job);
	if (!job->sized && !job->gaps)
		LazyDropMeasureBlocks(&job->locator, job->serial);
	if (LazyDropIsForLeftovers(&job->locator))
		go_on = RemoveLeftovers(job, pause, &failed);
	else if (!job->hidden && !is_relation)
	{
		LazyDropDirectoryPath(&path, job);
		go_on = RemoveDirectory(job, path.str, pause, &failed);
	}
	else if (!job->hidden)
	{
		/* Main fork last, because its first segment protects the number. */
		for (ForkNumber forknum = MAX_FORKNUM; forknum >= 0 && go_on; forknum--)
			go_on = RemoveFork(job, forknum, pause, &failed);
	}

	for (int n = job->nhidden; n-- > 0 && go_on;)
	{
		LazyDropFindHidden(&path, job, n);
		go_on = RemoveHidden(job, path.str, pause, &failed);
	}
	if (!go_on)
		return false;

	/* The second directory was created only for hidden files. */
	if (job->hidden)
	{
		LazyDropHiddenDirectory(&path, job->locator.spcOid, 1);
		(void) rmdir(path.str);
	}
	if (lazydrop_complaint_level == WARNING)
		elog(DEBUG2, "removed files of %u/%u/%u%s",
			 job->locator.spcOid, job->locator.dbOid, job->locator.relNumber,
			 failed ? ", not all" : "");
	if (failed && job->nfailures < LAZYDROP_MAX_FAILURES)
		LazyDropTryLater(job, LAZYDROP_RETRY_MS * INT64CONST(1000000));
	else
		EndRemoval(job);
	return true;
}
