/*-------------------------------------------------------------------------
 *
 * lazydrop_removal.c
 *	  Removal of files, and what finds no space (rules R5, R14 and R15).
 *
 * Truncating and unlinking a file of a gigabyte takes a file system some hundred
 * milliseconds.  So the dropper leaves that to the lazy drop worker, which does it in
 * steps and, if it is told to, slowly.  A process that needs the space, or the entry gone,
 * removes the files itself, at full speed and without waiting for the worker: one that is
 * about to create storage under the name (R3), a shutdown, or one that finds no space (R15).
 *
 * Several processes may be at the same files, so each step tolerates that something is
 * gone already.  What must not happen is that a process sleeps between two steps, the entry
 * is deleted, the name comes back, and the process wakes up and goes on (R5).  So an entry
 * is not deleted while a process is in a step, and a step begins with a look whether the
 * entry is still the same.  A step is a system call or two (or the hiding of an entry's
 * files); no lock is held over it but that mark, so that no other process ever waits for
 * the disk because of it.
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
 * A file is shrunk in steps, because other processes wait for the file system's journal
 * meanwhile: so much at a time, in bytes, that a step takes about as long as this, in
 * nanoseconds, going by what the last one took.  Processes that wait for it take large
 * ones: MAX_STEP_BYTES, and in a shutdown a segment.  Powers of two, and multiples of
 * any block size (rule R14).
 */
#define MAX_STEP_BYTES			((uint64) 64 * 1024 * 1024)
#define STEP_TARGET_NS			INT64CONST(2000000)

/* With lazydrop.removal_rate, a step is at most what goes in so many seconds. */
#define STEP_RATE_SECONDS		0.05

/* When a directory could not be read, it is tried again after so long. */
#define RETRY_NS				INT64CONST(1000000000)
#define MAX_FAILURES			10

/* How much a process that finds no space frees before it tries again. */
#define FREE_SPACE_BYTES		(64 * 1024 * 1024)

/* bytes freed by this process since it began to look for space */
static uint64 freed_bytes = 0;

/* what a step removes, in bytes */
static uint64 step_bytes = LAZYDROP_MIN_STEP_BYTES;

/* what a shutdown removes in one, or 0 */
static uint64 large_step_bytes = 0;

/*
 * A file that cannot be removed is warned of, as in md.c: any process may be here.  Not the
 * client of a session that only looks for space, because that may hold locks; and
 * not at all (0) when it is left to another process, which finds that, too.
 */
static int	complaint_level = WARNING;

/* ---------------------------------------------------------------------
 * Files
 * ---------------------------------------------------------------------
 */

/*
 * There is so much more space now.  Others that look for some are told at once, and
 * more often than it is true rather than less (LazyDropFreeSpace).
 */
void
LazyDropCountFreed(uint64 bytes)
{
	freed_bytes += bytes;
	pg_atomic_fetch_add_u64(&LazyDropCtl->bytes_freed, bytes);
}

static bool
Pause(LazyDropPause pause, uint64 bytes)
{
	return pause == NULL || pause(bytes);
}

/*
 * Truncate a file, unless another process has truncated it further meanwhile.  Returns
 * 0 or errno.
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
 * What the next step removes at most.
 */
static uint64
StepBytes(void)
{
	uint64		limit = step_bytes;

	if (!am_lazydrop_worker)
		return Max(large_step_bytes, MAX_STEP_BYTES);
	if (lazydrop_removal_rate > 0)
	{
		uint64		rate = (uint64) (lazydrop_removal_rate * STEP_RATE_SECONDS);

		/* in megabytes, so a multiple of them */
		limit = Min(limit, Max(rate, 1) * LAZYDROP_MIN_STEP_BYTES);
	}
	return limit;
}

/*
 * Choose the size of the next step by what this one took: twice as much when it was short,
 * half of it when it was long.
 */
static void
AdaptStep(uint64 bytes, int64 took_ns)
{
	if (took_ns > STEP_TARGET_NS)
		step_bytes = Max(step_bytes / 2, LAZYDROP_MIN_STEP_BYTES);
	else if (took_ns < STEP_TARGET_NS / 2 && bytes >= step_bytes)
		step_bytes = Min(step_bytes * 2, MAX_STEP_BYTES);
}

/*
 * Take steps of a segment from now on, in a shutdown, or no longer.
 */
void
LazyDropTakeLargeSteps(bool large)
{
	large_step_bytes = large ? (uint64) RELSEG_SIZE * BLCKSZ : 0;
}

/*
 * Shrink a file to nothing and unlink it, unless it is to be kept.  Others may have
 * it open, which would keep its space from being given back, so it is truncated
 * first, as in md.c; but not with size 0.
 *
 * Returns false when there is nothing left to do for this job, or when we are to
 * stop; "failed" tells that the file is still there and should not be.
 */
static bool
RemoveFile(const LazyDropJob *job, const char *path, uint64 size, bool keep,
		   LazyDropPause pause, bool *failed)
{
	int			truncate_errno = 0;
	int			unlink_errno = 0;
	uint64		freed;

	while (size > StepBytes() && truncate_errno == 0)
	{
		uint64		new_size = (size - 1) / StepBytes() * StepBytes();
		int64		began = LazyDropNow();

		if (!LazyDropBeginStep(job))
			return false;
		truncate_errno = Shrink(path, new_size);
		if (truncate_errno == 0)
			LazyDropCountFreed(size - new_size);
		LazyDropEndStep(job, 0, truncate_errno == 0 ? size - new_size : 0, false);
		if (truncate_errno == 0)
		{
			AdaptStep(size - new_size, LazyDropNow() - began);
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

	/* A file system that has no space may unlink what it cannot truncate. */
	freed = truncate_errno == 0 ||
		(truncate_errno != ENOENT && !keep && unlink_errno == 0) ? size : 0;
	LazyDropCountFreed(freed);
	LazyDropEndStep(job, truncate_errno == ENOENT || unlink_errno != 0 ? 0 : 1,
					freed, false);

	*failed = false;
	if (truncate_errno != 0 && truncate_errno != ENOENT && complaint_level > 0)
	{
		errno = truncate_errno;
		ereport(complaint_level,
				(errcode_for_file_access(),
				 errmsg("could not truncate file \"%s\": %m", path)));
	}
	if (unlink_errno != 0 && unlink_errno != ENOENT)
	{
		*failed = true;
		errno = unlink_errno;
		if (complaint_level > 0)
			ereport(complaint_level,
					(errcode_for_file_access(),
					 errmsg("could not remove file \"%s\": %m", path)));
	}
	return Pause(pause, freed);
}

/* ---------------------------------------------------------------------
 * Entries
 * ---------------------------------------------------------------------
 */

/*
 * That was all: the files of the entry are gone, or cannot be removed.
 */
static void
EndRemoval(const LazyDropJob *job)
{
	if (LazyDropBeginStep(job))
		LazyDropEndStep(job, 0, 0, true);
}

/*
 * Remove the files of a relation's fork, the highest segment first: stock's replay
 * ascends and stops at the first one that is missing, and so would leave what is
 * behind a gap for ever (rule R14).  As in md.c, an error ends it.  Returns false
 * when we are to stop.
 */
static bool
RemoveFork(const LazyDropJob *job, ForkNumber forknum, LazyDropPause pause)
{
	RelPathStr	first = LazyDropRelPathPerm(job->locator, forknum);
	bool		failed = false;

	for (uint64 segno = LazyDropCountSegments(&first); segno-- > 0 && !failed;)
	{
		bool		keep = segno == 0 && forknum == MAIN_FORKNUM && job->keep_first;
		LazyDropPath path;

		LazyDropSegmentPath(&path, &first, segno);
		if (!RemoveFile(job, path.str, LazyDropFileSize(&path), keep, pause, &failed))
			return false;
	}
	return true;
}

/*
 * A directory could not be read, perhaps for want of memory or descriptors: leave it to a
 * later attempt.
 */
static void
TryLater(const LazyDropJob *job)
{
	LWLockAcquire(&LazyDropCtl->lock, LW_EXCLUSIVE);
	if (job->entry->serial == job->serial)
	{
		job->entry->nfailures++;
		job->entry->retry_at_ns = LazyDropNow() + RETRY_NS;
	}
	LWLockRelease(&LazyDropCtl->lock);
}

/*
 * Remove a database's directory and the files in it, as rmtree does, but for
 * subdirectories, of which there are none.  Returns false when we are to stop.
 */
static bool
RemoveDatabaseDirectory(const LazyDropJob *job, const char *path, LazyDropPause pause)
{
	struct stat st;
	List	   *names = NIL;
	DIR		   *dir;
	struct dirent *de;
	bool		any_failed = false;
	bool		go_on = true;
	int			rmdir_errno = 0;

	/* It is not safe to remove files while one reads the directory. */
	dir = AllocateDir(path);
	if (dir == NULL && (errno == ENOENT || errno == ENOTDIR))
		return true;
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
		bool		give_up = job->nfailures >= MAX_FAILURES;

		ereport(job->nfailures == 0 || give_up ? WARNING : DEBUG1,
				(errcode_for_file_access(),
				 errmsg("could not read directory \"%s\": %m", path),
				 give_up ? errdetail("It is left behind.") :
				 errdetail("It will be tried again.")));
		if (dir != NULL)
			FreeDir(dir);
		list_free_deep(names);
		if (!give_up)
			TryLater(job);
		return give_up;
	}
	FreeDir(dir);

	foreach_ptr(char, file, names)
	{
		bool		failed = false;

		if (lstat(file, &st) < 0 || S_ISDIR(st.st_mode))
			continue;

		/* As rmtree, leave alone what a link leads to, or has in common. */
		if (!S_ISREG(st.st_mode) || st.st_nlink != 1)
			st.st_size = 0;
		go_on = RemoveFile(job, file, st.st_size, false, pause, &failed);
		any_failed |= failed;
		if (!go_on)
			break;
	}
	list_free_deep(names);
	if (!go_on)
		return false;

	if (LazyDropBeginStep(job))
	{
		if (rmdir(path) < 0)
		{
			int			nhidden = job->nhidden;

			/* a directory in it, which the next start removes with it */
			rmdir_errno = errno;
			if (nhidden == 0 && rmdir_errno != ENOENT)
				(void) LazyDropHideFile(job, path, &nhidden);
		}
		LazyDropEndStep(job, 0, 0, false);
	}
	if (rmdir_errno != 0 && rmdir_errno != ENOENT)
	{
		any_failed = true;
		errno = rmdir_errno;
		ereport(WARNING,
				(errcode_for_file_access(),
				 errmsg("could not remove directory \"%s\": %m", path)));
	}
	if (any_failed)
		ereport(WARNING,
				(errmsg("some useless files may be left behind in old database directory \"%s\"",
						path)));
	return true;
}

/*
 * Remove a database's directory at once, when that is not deferred.
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
 * Remove the files of an entry, hidden or not, or what others have left of them, and
 * delete the entry if that was all that was left to do for it.  "pause", if it is not
 * NULL, is called between steps.
 *
 * The caller holds no lock on the set.  No errors, other than from "pause" and, for
 * a directory, when there is no memory; those leave an entry that others go on with.
 * A file that cannot be removed is warned of, once, and does not keep the entry; a
 * directory that cannot be read does, and is tried again later.
 */
void
LazyDropRemoveFiles(const LazyDropJob *job, LazyDropPause pause)
{
	bool		is_relation = RelFileNumberIsValid(job->locator.relNumber);
	bool		go_on = true;
	LazyDropPath path;

	LazyDropMeasure(job);
	if (!job->hidden && !is_relation)
	{
		LazyDropDirectoryPath(&path, job);
		go_on = RemoveDatabaseDirectory(job, path.str, pause);
	}
	else if (!job->hidden)
	{
		/* The main fork last: its first segment protects the number. */
		for (ForkNumber forknum = MAX_FORKNUM; forknum >= 0 && go_on; forknum--)
			go_on = RemoveFork(job, forknum, pause);
	}

	for (int n = job->nhidden; n-- > 0 && go_on;)
	{
		bool		failed;

		LazyDropHiddenPath(&path, job, n);
		if (is_relation)
			go_on = RemoveFile(job, path.str, LazyDropFileSize(&path), false, pause,
							   &failed);
		else
			go_on = RemoveDatabaseDirectory(job, path.str, pause);
	}
	if (go_on)
		EndRemoval(job);
}

/* ---------------------------------------------------------------------
 * Processes that find no space (rule R15)
 * ---------------------------------------------------------------------
 */

static bool
FreeSpacePause(uint64 bytes)
{
	return freed_bytes < FREE_SPACE_BYTES;
}

/*
 * Remove files in a database's directory, and leave the directory and all else in it
 * to others.  Not with palloc, and not with a file of fd.c's, for which that
 * might close another.
 */
static void
FreeDirectory(const LazyDropJob *job)
{
	LazyDropPath path;
	char		file[MAXPGPATH * 2];
	int			save_level = complaint_level;

	complaint_level = 0;
	for (int n = job->hidden ? 0 : -1; n < job->nhidden && freed_bytes == 0; n++)
	{
		DIR		   *dir;
		struct dirent *de;

		if (n < 0)
			LazyDropDirectoryPath(&path, job);
		else
			LazyDropHiddenPath(&path, job, n);
		dir = opendir(path.str);
		if (dir == NULL)
			continue;
		while ((de = readdir(dir)) != NULL)
		{
			struct stat st;
			bool		failed;

			snprintf(file, sizeof(file), "%s/%s", path.str, de->d_name);
			if (lstat(file, &st) == 0 && S_ISREG(st.st_mode) &&
				st.st_nlink == 1 && st.st_size > 0 &&
				!RemoveFile(job, file, st.st_size, false, FreeSpacePause, &failed))
				break;
		}
		closedir(dir);
	}
	complaint_level = save_level;
}

/*
 * Whether the files of an entry are on a device.
 */
static bool
IsOnDevice(const LazyDropJob *job, dev_t device)
{
	LazyDropPath path;
	struct stat st;

	LazyDropTablespacePath(&path, job->locator.spcOid);
	return stat(path.str, &st) == 0 && st.st_dev == device;
}

/*
 * Called when a write to a file has failed with that errno.  When that means that
 * there is no space, and there may be some now because files have been removed, by us
 * or meanwhile by others, return true: the caller tries again, for as long as that is
 * so, or until it is cancelled (rule R15).  Otherwise errno is as given.  A caller that
 * answers an error with a PANIC is not cancelled: a critical section, and the WAL
 * receiver.
 *
 * "temp_fd" is the descriptor of a temporary file, which any user can fill a file system
 * with: then only what is on the same device is removed.  It is -1 for all others, which
 * may share space with what is on another device.
 *
 * The caller may hold locks or be in a critical section: nothing is waited for or sent,
 * palloc is not called, and no error is raised.
 */
bool
LazyDropFreeSpace(int error, int temp_fd)
{
	/* what had been freed by all when this was called last */
	static uint64 last_bytes_freed = 0;

	uint64		bytes_freed;
	LazyDropJob job;
	uint64		tried = 0;
	bool		freed = false;
	struct stat st;

	if ((error == ENOSPC
#ifdef EDQUOT
		 || error == EDQUOT
#endif
		 ) && LazyDropCtl != NULL && MyProc != NULL &&
		(temp_fd < 0 || fstat(temp_fd, &st) == 0) &&
		(CritSectionCount > 0 || AmWalReceiverProcess() ||
		 !(QueryCancelPending || ProcDiePending)))
	{
		/* to wait there takes memory */
		if (CritSectionCount == 0)
			LAZYDROP_INJECTION_POINT("lazydrop-free-space");

		/* A message about a file must not let us be interrupted. */
		HOLD_INTERRUPTS();
		complaint_level = LOG_SERVER_ONLY;
		freed_bytes = 0;

		/* until one has something */
		while (freed_bytes == 0 && !LazyDropNothingPending() &&
			   LazyDropFindOldestJob(tried + 1, &job))
		{
			tried = job.serial;
			if (temp_fd >= 0 && !IsOnDevice(&job, st.st_dev))
				continue;
			if (RelFileNumberIsValid(job.locator.relNumber))
				LazyDropRemoveFiles(&job, FreeSpacePause);
			else
				FreeDirectory(&job);
		}

		bytes_freed = pg_atomic_read_u64(&LazyDropCtl->bytes_freed);
		freed = bytes_freed != last_bytes_freed;
		last_bytes_freed = bytes_freed;
		complaint_level = WARNING;
		RESUME_INTERRUPTS();
	}
	errno = error;
	return freed;
}
