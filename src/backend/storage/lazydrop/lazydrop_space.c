/*-------------------------------------------------------------------------
 *
 * lazydrop_space.c
 *	  Free space in file systems (rule R15).
 *
 * A drop gives space back a moment later than in stock.  That must not cause
 * anything to fail.  So files are not left to the worker where a file system
 * has little free space, and a process that finds no space removes pending
 * files itself, and tries again.
 *
 * The first measure serves everything that needs space, including files that
 * our code does not know.  The second one serves file systems that fill up
 * while many drops are pending.
 *
 * Copyright (c) 2026, LazyDrop developers
 *
 * IDENTIFICATION
 *	  src/backend/storage/lazydrop/lazydrop_space.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include <dirent.h>
#include <sys/stat.h>
#include <sys/statvfs.h>

#include "miscadmin.h"
#include "storage/fd.h"
#include "storage/lazydrop.h"
#include "storage/lazydrop_internal.h"
#include "storage/proc.h"

int			lazydrop_min_free_space = 1024;

/*
 * The required free space is at most this fraction of a file system.
 * Otherwise, a small one would never have enough.
 */
#define MIN_FREE_DIVISOR		20

/* How long a process relies on a file system's answer, in nanoseconds. */
#define SPACE_CHECK_NS			(INT64CONST(100) * 1000 * 1000)

/* Bytes that a process without space frees before it tries again. */
#define FREE_SPACE_BYTES		(64 * 1024 * 1024)

/* ---------------------------------------------------------------------
 * File systems with little free space
 * ---------------------------------------------------------------------
 */

/*
 * Return whether the file system of a directory has less free space than
 * lazydrop.min_free_space, or 5 % of its size if that is less.  If this cannot
 * be determined, return false.  Raises no error, and allocates nothing.
 */
bool
LazyDropDirectoryIsFull(const char *path)
{
	struct statvfs fs;
	uint64		enough = (uint64) lazydrop_min_free_space * 1024 * 1024;

	if (enough == 0 || statvfs(path, &fs) < 0)
		return false;
	enough = Min(enough, (uint64) fs.f_blocks * fs.f_frsize / MIN_FREE_DIVISOR);
	return (uint64) fs.f_bavail * fs.f_frsize < enough;
}

/*
 * Do the same for the file system of a tablespace.
 *
 * Each process asks it at most ten times a second, because an answer may have
 * to come over a network.
 */
bool
LazyDropSpaceIsShort(Oid spcoid)
{
	static struct
	{
		Oid			spcoid;
		int64		checked_ns;
		bool		is_short;
	}			seen[8];
	int			slot = spcoid % lengthof(seen);
	int64		now = LazyDropNow();
	LazyDropPath path;

	if (seen[slot].spcoid == spcoid &&
		now - seen[slot].checked_ns < SPACE_CHECK_NS)
		return seen[slot].is_short;

	seen[slot].spcoid = spcoid;
	seen[slot].checked_ns = now;
	LazyDropTablespacePath(&path, spcoid);
	seen[slot].is_short = LazyDropDirectoryIsFull(path.str);
	return seen[slot].is_short;
}

/* ---------------------------------------------------------------------
 * Processes that find no space
 * ---------------------------------------------------------------------
 */

static bool
FreeSpacePause(uint64 bytes)
{
	return lazydrop_freed_bytes < FREE_SPACE_BYTES;
}

/*
 * Remove files in a directory of an entry, and leave the directory and all
 * else in it to others.  With "leftovers", remove only files that earlier runs
 * of the server have hidden there.  Neither calls palloc nor opens a directory
 * through fd.c, which might close another file for that.
 */
static void
FreeDirectory(const LazyDropJob *job, const char *path, bool leftovers)
{
	DIR		   *dir;
	struct dirent *de;

	dir = opendir(path);
	if (dir == NULL)
		return;
	while (FreeSpacePause(0) && (de = readdir(dir)) != NULL)
	{
		LazyDropPath file;
		struct stat st;
		bool		failed = false;

		if (strlen(path) + strlen(de->d_name) + 2 > sizeof(file.str) ||
			(leftovers && !LazyDropIsLeftover(de->d_name)))
			continue;
		snprintf(file.str, sizeof(file.str), "%s/%s", path, de->d_name);
		if (lstat(file.str, &st) < 0)
			continue;
		if (leftovers && S_ISDIR(st.st_mode))
			FreeDirectory(job, file.str, false);
		else if (LazyDropMayTruncate(job, &st) && st.st_size > 0 &&
				 !LazyDropRemoveFile(job, file.str, st.st_size, false,
									 FreeSpacePause, &failed))
			break;
	}
	closedir(dir);
}

/*
 * Do the same for an entry of a database, or of leftovers.
 */
static void
FreeDirectories(const LazyDropJob *job)
{
	LazyDropPath path;
	struct stat st;
	int			save_level = lazydrop_complaint_level;

	lazydrop_complaint_level = 0;
	if (LazyDropIsForLeftovers(&job->locator))
	{
		for (int i = 0; i < LAZYDROP_HIDDEN_DIRECTORIES; i++)
		{
			LazyDropHiddenDirectory(&path, job->locator.spcOid, i);
			FreeDirectory(job, path.str, true);
		}
	}
	else if (!job->hidden)
	{
		LazyDropDirectoryPath(&path, job);
		FreeDirectory(job, path.str, false);
	}
	for (int n = 0; n < job->nhidden && FreeSpacePause(0); n++)
	{
		bool		failed = false;

		LazyDropFindHidden(&path, job, n);
		if (lstat(path.str, &st) == 0 && !S_ISDIR(st.st_mode))
		{
			if (LazyDropMayTruncate(job, &st))
				(void) LazyDropRemoveFile(job, path.str, st.st_size, false,
										  FreeSpacePause, &failed);
		}
		else
			FreeDirectory(job, path.str, false);
	}
	lazydrop_complaint_level = save_level;
}

/*
 * Return whether the files of an entry are on a device.
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
 * Called when a write to a file has failed with this errno.  If there was no
 * space, and there may be some now because this process or others have removed
 * files, return true.  Then the caller tries again, for as long as this is so,
 * or until it is cancelled (rule R15).  Callers that answer an error with a
 * PANIC are not cancelled: critical sections and the WAL receiver.  In any
 * case, errno is set to "error" again.
 *
 * "temp_fd" is the descriptor of a temporary file, or -1.  With temporary
 * files, any user can fill a file system, so only files on the same device are
 * removed.  All other files may share space with another device.
 *
 * The caller may hold locks or be in a critical section: this waits for
 * nothing, sends nothing, does not call palloc, and raises no error.
 */
bool
LazyDropFreeSpace(int error, int temp_fd)
{
	/* bytes that all processes had freed at the end of the last call */
	static uint64 last_bytes_freed = 0;

	uint64		bytes_freed;
	LazyDropJob job;
	LazyDropFilter filter = {.least = LAZYDROP_FILES_FORGOTTEN};
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
		/* Waiting at an injection point allocates memory. */
		if (CritSectionCount == 0)
			LAZYDROP_INJECTION_POINT("lazydrop-free-space");

		/* A message about a file must not let interrupts be processed. */
		HOLD_INTERRUPTS();
		lazydrop_complaint_level = LOG_SERVER_ONLY;
		lazydrop_freed_bytes = 0;

		/* until one frees something */
		while (lazydrop_freed_bytes == 0 && !LazyDropNothingPending() &&
			   LazyDropFindOldestJob(&filter, &job))
		{
			filter.first_serial = job.serial + 1;
			if (temp_fd >= 0 && !IsOnDevice(&job, st.st_dev))
				continue;
			if (RelFileNumberIsValid(job.locator.relNumber))
				(void) LazyDropRemoveFiles(&job, FreeSpacePause);
			else
				FreeDirectories(&job);
		}

		bytes_freed = pg_atomic_read_u64(&LazyDropCtl->bytes_freed);
		freed = bytes_freed != last_bytes_freed;
		last_bytes_freed = bytes_freed;
		lazydrop_complaint_level = WARNING;
		RESUME_INTERRUPTS();
	}
	errno = error;
	return freed;
}
