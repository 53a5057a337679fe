/*-------------------------------------------------------------------------
 *
 * lazydrop_files.c
 *	  Removal of the files of what is buried.
 *
 * Truncating and unlinking a file of a gigabyte takes a file system some
 * hundred milliseconds.  So the dropper leaves that to the lazy drop worker,
 * which does it in steps and, if it is told to, slowly.  Whoever needs the files
 * gone removes them himself, at full speed and without waiting for the worker: a
 * checkpoint (rule R8), a process about to create storage under the name (R3), or
 * one that finds no space (R15).
 *
 * Several processes may be at the same files, so each step tolerates that
 * something is gone already.  What must not happen is that one sleeps between two
 * steps, the entry is deleted, the name comes back, and it wakes up and goes on
 * (R5).  So an entry is not deleted while somebody is in a step, and a step begins
 * with a look whether the entry is still the same.  A step is a system call or
 * two; no lock is held over it but that mark, so that nobody else ever waits for the
 * disk because of it.
 *
 * Copyright (c) 2026, LazyDrop developers
 *
 * IDENTIFICATION
 *	  src/backend/storage/lazydrop/lazydrop_files.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include <dirent.h>
#include <sys/stat.h>
#include <unistd.h>

#include "catalog/pg_tablespace_d.h"
#include "common/relpath.h"
#include "miscadmin.h"
#include "nodes/pg_list.h"
#include "pgstat.h"
#include "postmaster/bgwriter.h"
#include "storage/fd.h"
#include "storage/ipc.h"
#include "storage/lazydrop.h"
#include "storage/lazydrop_internal.h"
#include "storage/pmsignal.h"
#include "storage/proc.h"
#include "storage/procsignal.h"
#include "utils/injection_point.h"
#include "utils/wait_event.h"

/*
 * A file is shrunk by this much at a time, in bytes.  Small, because others wait for
 * the file system's journal meanwhile: with 16 MB at a time, the slowest of those who
 * wrote took 200 ms, with 1 MB, which takes 0.3 ms, what they take without a removal.
 * A multiple of any block size (rule R14).
 */
#define STEP_BYTES				(1024 * 1024)

/* How much a process that finds no space frees before it tries again. */
#define FREE_SPACE_BYTES		(64 * 1024 * 1024)

/* room for a relation's path and a segment number */
typedef struct SegmentPath
{
	char		str[sizeof(RelPathStr) + 24];
} SegmentPath;

/* bytes freed by this process since it began to look for space */
static uint64 freed_bytes = 0;

/*
 * A file that cannot be removed is warned of, as in md.c: we may be anybody.  Not the
 * client of a session that only looks for space, because that may hold locks; and
 * nobody (0) when it is left to others, who will find that, too.
 */
static int	complaint_level = WARNING;


/* ---------------------------------------------------------------------
 * Steps
 * ---------------------------------------------------------------------
 */

/*
 * Find entries whose files are to be removed, the oldest ones first: those that are at
 * least in the given state, have a serial number from first_serial to last_serial, and
 * match, if "matches" is given.  Returns how many there are, up to njobs.
 */
int
LazyDropFindJobs(LazyDropFiles least, uint64 first_serial, uint64 last_serial,
				 LazyDropMatch matches, const void *arg,
				 LazyDropJob *jobs, int njobs)
{
	int			found = 0;
	dlist_iter	iter;

	LWLockAcquire(&LazyDropCtl->lock, LW_SHARED);
	dlist_foreach(iter, &LazyDropCtl->removals)
	{
		LazyDropEntry *entry = dlist_container(LazyDropEntry, files_node,
											   iter.cur);

		if (entry->files < least || entry->serial < first_serial ||
			entry->serial > last_serial ||
			(matches != NULL && !matches(&entry->locator, arg)))
			continue;

		jobs[found].entry = entry;
		jobs[found].serial = entry->serial;
		jobs[found].locator = entry->locator;
		jobs[found].keep_first = entry->keep_first;
		if (++found == njobs)
			break;
	}
	LWLockRelease(&LazyDropCtl->lock);
	return found;
}

/*
 * Begin a step.  Returns false when there is nothing left to do.  Otherwise the
 * entry stays until EndStep, which the caller sees to, whatever happens in between.
 */
static bool
BeginStep(const LazyDropJob *job)
{
	LazyDropEntry *entry = job->entry;
	bool		result;

	LWLockAcquire(&LazyDropCtl->lock, LW_EXCLUSIVE);
	result = entry->serial == job->serial &&
		entry->files >= LAZYDROP_FILES_FORGOTTEN;
	if (result)
		entry->nbusy++;
	LWLockRelease(&LazyDropCtl->lock);
	if (result && am_lazydrop_worker)
		INJECTION_POINT("lazydrop-step", NULL);
	return result;
}

/*
 * End a step that has removed so much.  With "done", it was the last one.
 */
static void
EndStep(const LazyDropJob *job, int nfiles, uint64 bytes, bool done)
{
	LazyDropEntry *entry = job->entry;
	bool		wake;

	LWLockAcquire(&LazyDropCtl->lock, LW_EXCLUSIVE);
	Assert(entry->nbusy > 0);
	entry->nbusy--;

	/* unless it has been buried once more */
	if (entry->serial == job->serial)
	{
		/*
		 * Others may have seen the same bytes go.  How much is in a directory
		 * is not known.
		 */
		if (RelFileNumberIsValid(entry->locator.relNumber))
			bytes = Min(bytes, entry->bytes);
		entry->bytes -= Min(bytes, entry->bytes);
		entry->nfiles -= Min(nfiles, entry->nfiles);
		pg_atomic_fetch_add_u64(&LazyDropCtl->files_removed, nfiles);
		pg_atomic_fetch_add_u64(&LazyDropCtl->bytes_removed, bytes);
		if (done)
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

/*
 * There is so much more space now.  Others who look for some are told at once, and
 * more often than it is true rather than less (LazyDropFreeSpace).
 */
static void
CountFreed(uint64 bytes)
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
 * Truncate a file, unless somebody else has truncated it further meanwhile.  Returns
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

	while (size > STEP_BYTES && truncate_errno == 0)
	{
		uint64		new_size = (size - 1) / STEP_BYTES * STEP_BYTES;

		if (!BeginStep(job))
			return false;
		truncate_errno = Shrink(path, new_size);
		if (truncate_errno == 0)
			CountFreed(size - new_size);
		EndStep(job, 0, truncate_errno == 0 ? size - new_size : 0, false);
		if (truncate_errno == 0)
		{
			if (!Pause(pause, size - new_size))
				return false;
			size = new_size;
		}
	}

	if (!BeginStep(job))
		return false;
	if (truncate_errno == 0 && size > 0)
		truncate_errno = Shrink(path, 0);
	if (!keep && truncate_errno != ENOENT && unlink(path) < 0)
		unlink_errno = errno;

	/* A file system that has no space may unlink what it cannot truncate. */
	freed = truncate_errno == 0 ||
		(truncate_errno != ENOENT && !keep && unlink_errno == 0) ? size : 0;
	CountFreed(freed);
	EndStep(job, truncate_errno == ENOENT || unlink_errno != 0 ? 0 : 1,
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

/*
 * That was all: the files of the entry are gone, or cannot be removed.
 */
static void
Finish(const LazyDropJob *job)
{
	if (BeginStep(job))
		EndStep(job, 0, 0, true);
}


/* ---------------------------------------------------------------------
 * Relations
 * ---------------------------------------------------------------------
 */

static void
MakeSegmentPath(SegmentPath *path, const RelPathStr *first, uint64 segno)
{
	if (segno == 0)
		strlcpy(path->str, first->str, sizeof(path->str));
	else
		snprintf(path->str, sizeof(path->str), "%s." UINT64_FORMAT,
				 first->str, segno);
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
	RelPathStr	first = relpathperm(job->locator, forknum);
	SegmentPath path;
	struct stat st;
	uint64		nsegments = 0;
	bool		failed = false;

	for (;;)
	{
		MakeSegmentPath(&path, &first, nsegments);
		if (stat(path.str, &st) < 0)
		{
			/* Something that we cannot look at, we can try to remove. */
			if (errno != ENOENT)
				nsegments++;
			break;
		}
		nsegments++;
	}

	while (nsegments > 0 && !failed)
	{
		bool		keep;

		nsegments--;
		keep = nsegments == 0 && forknum == MAIN_FORKNUM && job->keep_first;
		MakeSegmentPath(&path, &first, nsegments);
		if (stat(path.str, &st) < 0)
			st.st_size = 0;
		if (!RemoveFile(job, path.str, st.st_size, keep, pause, &failed))
			return false;
	}
	return true;
}


/* ---------------------------------------------------------------------
 * Directories of databases
 * ---------------------------------------------------------------------
 */

/*
 * Remove a database's directory and the files in it.  There are no directories in it,
 * unless somebody has made them; then it stays, with them.  Returns false when we are
 * to stop.
 */
static bool
RemoveDirectory(const LazyDropJob *job, LazyDropPause pause)
{
	char	   *path = GetDatabasePath(job->locator.dbOid, job->locator.spcOid);
	struct stat st;
	List	   *names = NIL;
	DIR		   *dir;
	struct dirent *de;
	bool		any_failed = false;
	bool		go_on = true;
	int			rmdir_errno = 0;

	/* It is not safe to remove files while one reads the directory. */
	dir = AllocateDir(path);
	if (dir == NULL)
	{
		if (errno == ENOENT)
		{
			pfree(path);
			return true;
		}
		any_failed = true;
		ereport(WARNING,
				(errcode_for_file_access(),
				 errmsg("could not open directory \"%s\": %m", path)));
	}
	else
	{
		while ((de = ReadDirExtended(dir, path, WARNING)) != NULL)
		{
			if (strcmp(de->d_name, ".") != 0 && strcmp(de->d_name, "..") != 0)
				names = lappend(names, psprintf("%s/%s", path, de->d_name));
		}
		FreeDir(dir);
	}

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

	if (go_on)
	{
		if (BeginStep(job))
		{
			if (rmdir(path) < 0)
				rmdir_errno = errno;
			EndStep(job, 0, 0, false);
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
	}
	pfree(path);
	return go_on;
}

/*
 * Remove a database's directory at once, when that is not deferred.
 */
void
LazyDropRemoveDirectory(Oid spcoid, Oid dboid)
{
	char	   *path = GetDatabasePath(dboid, spcoid);

	if (!rmtree(path, true))
		ereport(WARNING,
				(errmsg("some useless files may be left behind in old database directory \"%s\"",
						path)));
	pfree(path);
}

/*
 * Remove the files of an entry, or what others have left of them, and delete the
 * entry if that was all that was left to do for it.  "pause", if it is not NULL, is
 * called between steps.
 *
 * The caller holds no lock on the set.  No errors, other than from "pause" and, for
 * a directory, when there is no memory; those leave an entry that others go on with.
 * A file that cannot be removed is warned of, once, and does not keep the entry.
 */
void
LazyDropRemoveFiles(const LazyDropJob *job, LazyDropPause pause)
{
	bool		go_on = true;

	if (!RelFileNumberIsValid(job->locator.relNumber))
		go_on = RemoveDirectory(job, pause);
	else
	{
		/* The main fork last: its first segment protects the number. */
		for (ForkNumber forknum = MAX_FORKNUM; forknum >= 0 && go_on; forknum--)
			go_on = RemoveFork(job, forknum, pause);
	}
	if (go_on)
		Finish(job);
}


/* ---------------------------------------------------------------------
 * Who needs the files gone, or their space
 * ---------------------------------------------------------------------
 */

/*
 * A checkpoint does not keep others waiting: for room in the queue of sync requests,
 * for its part in a barrier, or, when the postmaster is dead, for a new one.
 */
static bool
CheckPointPause(uint64 bytes)
{
	if (IsUnderPostmaster && !PostmasterIsAlive())
		proc_exit(1);
	AbsorbSyncRequests();
	if (ProcSignalBarrierPending)
		ProcessProcSignalBarrier();
	INJECTION_POINT("lazydrop-checkpoint-step", NULL);
	return true;
}

/*
 * Whether an entry that is not newer than "last_serial" has files that its dropper
 * has not released yet.  One that has ended, as the startup process may in a shutdown,
 * does not.
 */
static bool
DropperIsAtIt(uint64 last_serial)
{
	bool		found = false;
	dlist_iter	iter;

	LWLockAcquire(&LazyDropCtl->lock, LW_SHARED);
	dlist_foreach(iter, &LazyDropCtl->removals)
	{
		LazyDropEntry *entry = dlist_container(LazyDropEntry, files_node,
											   iter.cur);

		if (entry->files == LAZYDROP_FILES_BURIED &&
			entry->serial <= last_serial &&
			GetPGProcByNumber(entry->dropper)->pid != 0)
		{
			found = true;
			break;
		}
	}
	LWLockRelease(&LazyDropCtl->lock);
	return found;
}

/*
 * Called by a checkpoint or restartpoint when it has written and synced what is
 * dirty, and before its record or the control file says so: removes the files of
 * everything that is buried now (rule R8).  Buffers do not matter: those of what is
 * buried are never written.
 */
void
LazyDropCheckPoint(void)
{
	uint64		last_serial;
	int64		began;
	bool		waited = false;

	if (LazyDropCtl == NULL || LazyDropNothingPending())
		return;
	INJECTION_POINT("lazydrop-checkpoint", NULL);
	LWLockAcquire(&LazyDropCtl->lock, LW_SHARED);
	last_serial = LazyDropCtl->last_serial;
	LWLockRelease(&LazyDropCtl->lock);
	began = LazyDropNow();

	for (;;)
	{
		LazyDropJob job;

		if (LazyDropFindJobs(LAZYDROP_FILES_FORGOTTEN, 0, last_serial,
							 NULL, NULL, &job, 1) > 0)
		{
			waited = true;
			LazyDropRemoveFiles(&job, CheckPointPause);
		}
		else if (DropperIsAtIt(last_serial))
		{
			/* as CreateCheckPoint waits for those who delay it */
			waited = true;
			(void) CheckPointPause(0);
			pgstat_report_wait_start(LazyDropCtl->wait_event_checkpoint);
			pg_usleep(10000L);
			pgstat_report_wait_end();
		}
		else
			break;
	}

	if (waited)
	{
		pg_atomic_fetch_add_u64(&LazyDropCtl->checkpoint_waits, 1);
		pg_atomic_fetch_add_u64(&LazyDropCtl->checkpoint_wait_us,
								(LazyDropNow() - began) / 1000);
	}
	INJECTION_POINT("lazydrop-checkpoint-end", NULL);
}

static bool
FreeSpacePause(uint64 bytes)
{
	return freed_bytes < FREE_SPACE_BYTES;
}

/*
 * Remove files in a database's directory, and leave the directory and whatever else
 * there is to others.  Not with palloc, and not with a file of fd.c's, for which that
 * might close another.
 */
static void
FreeDirectory(const LazyDropJob *job)
{
	char		path[MAXPGPATH];
	char		file[MAXPGPATH * 2];
	DIR		   *dir;
	struct dirent *de;
	int			save_level = complaint_level;

	if (job->locator.spcOid == DEFAULTTABLESPACE_OID)
		snprintf(path, sizeof(path), "base/%u", job->locator.dbOid);
	else
		snprintf(path, sizeof(path), "%s/%u/%s/%u", PG_TBLSPC_DIR,
				 job->locator.spcOid, TABLESPACE_VERSION_DIRECTORY,
				 job->locator.dbOid);
	dir = opendir(path);
	if (dir == NULL)
		return;
	complaint_level = 0;
	while ((de = readdir(dir)) != NULL)
	{
		struct stat st;
		bool		failed;

		snprintf(file, sizeof(file), "%s/%s", path, de->d_name);
		if (lstat(file, &st) == 0 && S_ISREG(st.st_mode) &&
			st.st_nlink == 1 && st.st_size > 0 &&
			!RemoveFile(job, file, st.st_size, false, FreeSpacePause, &failed))
			break;
	}
	complaint_level = save_level;
	closedir(dir);
}

/*
 * Called when a write to a file has failed with that errno.  When that means that
 * there is no space, and there may be some now because files have been removed, by us
 * or meanwhile by others, return true: the caller tries again, for as long as that is
 * so, or until it is cancelled (rule R15).  Otherwise errno is as given.  Who answers an
 * error with a PANIC is not cancelled: a critical section, and the WAL receiver.
 *
 * The caller may hold locks or be in a critical section: nobody is waited for, nothing
 * is sent, palloc is not called, and no error is raised.
 */
bool
LazyDropFreeSpace(int error)
{
	/* what had been freed by all when this was called last */
	static uint64 last_bytes_freed = 0;

	uint64		bytes_freed;
	LazyDropJob job;
	uint64		tried = 0;
	bool		freed = false;

	if ((error == ENOSPC
#ifdef EDQUOT
		 || error == EDQUOT
#endif
		 ) && LazyDropCtl != NULL && MyProc != NULL &&
		(CritSectionCount > 0 || AmWalReceiverProcess() ||
		 !(QueryCancelPending || ProcDiePending)))
	{
		/* to wait there takes memory */
		if (CritSectionCount == 0)
			INJECTION_POINT("lazydrop-free-space", NULL);

		/* A message about a file must not let us be interrupted. */
		HOLD_INTERRUPTS();
		complaint_level = LOG_SERVER_ONLY;
		freed_bytes = 0;

		/* until one has something */
		while (freed_bytes == 0 && !LazyDropNothingPending() &&
			   LazyDropFindJobs(LAZYDROP_FILES_FORGOTTEN, tried + 1,
								PG_UINT64_MAX, NULL, NULL, &job, 1) > 0)
		{
			if (RelFileNumberIsValid(job.locator.relNumber))
				LazyDropRemoveFiles(&job, FreeSpacePause);
			else
				FreeDirectory(&job);
			tried = job.serial;
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
