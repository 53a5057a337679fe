/*-------------------------------------------------------------------------
 *
 * lazydrop_space.c
 *	  Space in file systems (rule R15).
 *
 * A drop gives space back a moment later than in stock.  That must not make
 * anything fail.  So files are not left to the worker where a file system has
 * little free space, and a process that finds none removes pending files
 * itself, and tries again.
 *
 * The first is for everything that needs space, also files that no code of
 * ours knows of.  The second is for what happens in between: much is pending
 * when a file system fills up.
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
 * The free space that is wanted is at most this part of a file system: a
 * small one would else never have enough.
 */
#define MIN_FREE_DIVISOR		20

/* How long a process relies on an answer of a file system, in nanoseconds. */
#define SPACE_CHECK_NS			(INT64CONST(100) * 1000 * 1000)

/* How much a process that finds no space frees before it tries again. */
#define FREE_SPACE_BYTES		(64 * 1024 * 1024)

/* ---------------------------------------------------------------------
 * File systems with little free space
 * ---------------------------------------------------------------------
 */

/*
 * Whether the file system of a directory has less free space than
 * lazydrop.min_free_space, or 5 % of its size if that is less.  If it cannot
 * tell, it has enough.  No errors; nothing is allocated.
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
 * The same for the file system of a tablespace.
 *
 * It is asked at most ten times a second by each process, because an answer
 * may have to come through a network.
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
 * else in it to others.  With "leftovers", only what earlier runs of the
 * server have hidden there.  Not with palloc, and not with a file of fd.c's,
 * for which that might close another.
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
 * The same for an entry of a database, or of leftovers.
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
 * Called when a write to a file has failed with that errno.  When that means
 * that there is no space, and there may be some now because files have been
 * removed, by us or meanwhile by others, return true: the caller tries again,
 * for as long as that is so, or until it is cancelled (rule R15).  Otherwise
 * errno is as given.  A caller that answers an error with a PANIC is not
 * cancelled: a critical section, and the WAL receiver.
 *
 * "temp_fd" is the descriptor of a temporary file, with which any user can
 * fill a file system: then only files on the same device are removed.  It is
 * -1 for all others, which may share space with another device.
 *
 * The caller may hold locks or be in a critical section: nothing is waited for
 * or sent, palloc is not called, and no error is raised.
 */
bool
LazyDropFreeSpace(int error, int temp_fd)
{
	/* bytes freed by all processes when this was called last */
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
		/* to wait there takes memory */
		if (CritSectionCount == 0)
			LAZYDROP_INJECTION_POINT("lazydrop-free-space");

		/* A message about a file must not let us be interrupted. */
		HOLD_INTERRUPTS();
		lazydrop_complaint_level = LOG_SERVER_ONLY;
		lazydrop_freed_bytes = 0;

		/* until one has something */
		while (lazydrop_freed_bytes == 0 && !LazyDropNothingPending() &&
			   LazyDropFindOldestJob(&filter, &job))
		{
			filter.first_serial = job.serial + 1;
			if (temp_fd >= 0 && !IsOnDevice(&job, st.st_dev))
				continue;
			if (RelFileNumberIsValid(job.locator.relNumber))
				LazyDropRemoveFiles(&job, FreeSpacePause);
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
