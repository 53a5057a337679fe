/*-------------------------------------------------------------------------
 *
 * lazydrop_files.c
 *	  Removal of the files of what is buried.
 *
 * Truncating and unlinking a file of a gigabyte takes a file system some
 * hundred milliseconds.  So the dropper leaves that to the lazy drop worker,
 * which does it in steps and, if it is told to, slowly.  A process that needs the
 * names gone, a checkpoint (rule R8) or the end of recovery (R16), does not remove
 * the files but hides them: a rename into the tablespace's directory of temporary
 * files takes some microseconds, and that directory is emptied by the postmaster
 * when it starts and left out by backups.  A process that needs the space, or the
 * entry gone, removes the files itself, at full speed and without waiting for the
 * worker: one about to create storage under the name (R3), a shutdown, or one that
 * finds no space (R15).
 *
 * Several processes may be at the same files, so each step tolerates that
 * something is gone already.  What must not happen is that one sleeps between two
 * steps, the entry is deleted, the name comes back, and it wakes up and goes on
 * (R5).  So an entry is not deleted while a process is in a step, and a step begins
 * with a look whether the entry is still the same.  A step is a system call or
 * two (or the hiding of an entry's files); no lock is held over it but that mark, so
 * that no other process ever waits for the disk because of it.
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

#include "access/xlog.h"
#include "catalog/pg_tablespace_d.h"
#include "common/file_utils.h"
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
#include "storage/shmem.h"
#include "utils/injection_point.h"
#include "utils/wait_event.h"

/*
 * A file is shrunk in steps, because other processes wait for the file system's journal
 * meanwhile: so much at a time, in bytes, that a step takes about as long as this, in
 * nanoseconds, going by what the last one took.  Processes that wait for it take large
 * ones: MAX_STEP_BYTES, and in a shutdown a segment.  Powers of two, and multiples of
 * any block size (rule R14).
 */
#define MIN_STEP_BYTES			((uint64) 1024 * 1024)
#define MAX_STEP_BYTES			((uint64) 64 * 1024 * 1024)
#define STEP_TARGET_NS			INT64CONST(2000000)

/* With lazydrop.removal_rate, a step is at most what goes in so many seconds. */
#define STEP_RATE_SECONDS		0.05

/* A file up to this size is removed rather than hidden. */
#define SMALL_FILE				MIN_STEP_BYTES

/* When a directory could not be read, it is tried again after so long. */
#define RETRY_NS				INT64CONST(1000000000)
#define MAX_FAILURES			10

/* How much a process that finds no space frees before it tries again. */
#define FREE_SPACE_BYTES		(64 * 1024 * 1024)

/* room for a relation's path and a segment number, or that of a hidden file */
typedef struct SegmentPath
{
	char		str[sizeof(RelPathStr) + 96];
} SegmentPath;

/* bytes freed by this process since it began to look for space */
static uint64 freed_bytes = 0;

/* what a step removes, in bytes */
static uint64 step_bytes = MIN_STEP_BYTES;

/* what a shutdown removes in one, or 0 */
static uint64 large_step_bytes = 0;

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
 * What is to be known of an entry, for its removal.  The caller holds the lock.
 */
static void
SetJob(LazyDropJob *job, LazyDropEntry *entry)
{
	job->entry = entry;
	job->serial = entry->serial;
	job->locator = entry->locator;
	job->first_serial = entry->first_serial;
	job->keep_first = entry->keep_first;
	job->measured = entry->measured;
	job->nfailures = entry->nfailures;
	job->hidden = entry->hidden;
	job->nhidden = entry->nhidden;
}

/*
 * Find entries whose files are to be removed, the oldest ones first: those that are at
 * least in the given state, have a serial number from first_serial to last_serial, and
 * match, if "matches" is given; with "visible", only those that have files under their
 * own names.  Returns how many there are, up to njobs.
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
			SetJob(&jobs[found], entry);
			if (++found == njobs)
				break;
		}
	}
	LWLockRelease(&LazyDropCtl->lock);
	return found;
}

/*
 * The same for one entry, if there is one with files to be removed.
 */
bool
LazyDropFindJob(const RelFileLocator *locator, LazyDropJob *job)
{
	LazyDropEntry *entry;
	bool		found;

	LWLockAcquire(&LazyDropCtl->lock, LW_SHARED);
	entry = LazyDropFindEntry(locator);
	found = entry != NULL && entry->files == LAZYDROP_FILES_READY;
	if (found)
		SetJob(job, entry);
	LWLockRelease(&LazyDropCtl->lock);
	return found;
}

/*
 * Begin a step.  Returns false when there is nothing left to do, or when the files have
 * been hidden meanwhile: then the caller looks for jobs again.  Otherwise the entry stays
 * until EndStep, which the caller sees to, also on an error.
 */
static bool
BeginStep(const LazyDropJob *job)
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
		limit = Min(limit, Max(rate, 1) * MIN_STEP_BYTES);
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
		step_bytes = Max(step_bytes / 2, MIN_STEP_BYTES);
	else if (took_ns < STEP_TARGET_NS / 2 && bytes >= step_bytes)
		step_bytes = Min(step_bytes * 2, MAX_STEP_BYTES);
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

		if (!BeginStep(job))
			return false;
		truncate_errno = Shrink(path, new_size);
		if (truncate_errno == 0)
			CountFreed(size - new_size);
		EndStep(job, 0, truncate_errno == 0 ? size - new_size : 0, false);
		if (truncate_errno == 0)
		{
			AdaptStep(size - new_size, LazyDropNow() - began);
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
 * Paths
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
 * The directory in which a tablespace has its databases'.
 */
static void
MakeTablespacePath(SegmentPath *path, Oid spcoid)
{
	if (spcoid == GLOBALTABLESPACE_OID)
		strlcpy(path->str, "global", sizeof(path->str));
	else if (spcoid == DEFAULTTABLESPACE_OID)
		strlcpy(path->str, "base", sizeof(path->str));
	else
		snprintf(path->str, sizeof(path->str), "%s/%u/%s", PG_TBLSPC_DIR,
				 spcoid, TABLESPACE_VERSION_DIRECTORY);
}

/*
 * The name that one of the hidden files of an entry has.  (Names of an earlier run of the
 * server may be the same, where remove_temp_files_after_crash is off.  They were dropped as
 * well.)
 */
static void
MakeHiddenPath(SegmentPath *path, const LazyDropJob *job, int n)
{
	SegmentPath tablespace;

	MakeTablespacePath(&tablespace, job->locator.spcOid);
	snprintf(path->str, sizeof(path->str), "%s/%s/%s.lazydrop." UINT64_FORMAT ".%d",
			 tablespace.str, PG_TEMP_FILES_DIR, PG_TEMP_FILE_PREFIX,
			 job->first_serial, n);
}

static void
MakeDirectoryPath(SegmentPath *path, const LazyDropJob *job)
{
	SegmentPath tablespace;

	MakeTablespacePath(&tablespace, job->locator.spcOid);
	snprintf(path->str, sizeof(path->str), "%s/%u", tablespace.str,
			 job->locator.dbOid);
}

/*
 * How many segments a fork has: they are numbered without a gap.  Something that
 * cannot be looked at is counted, because it may be possible to remove it.
 */
static uint64
CountSegments(const RelPathStr *first)
{
	for (uint64 n = 0;; n++)
	{
		SegmentPath path;
		struct stat st;

		MakeSegmentPath(&path, first, n);
		if (stat(path.str, &st) < 0)
			return errno == ENOENT ? n : n + 1;
	}
}

static uint64
SizeOfFile(const SegmentPath *path)
{
	struct stat st;

	return stat(path->str, &st) < 0 ? 0 : st.st_size;
}

/*
 * Remember how many files a relation has, and how large they are, unless that is known or
 * the entry is another one by now.  What a database's directory has is never known.  The
 * caller holds no lock.
 */
void
LazyDropMeasure(const LazyDropJob *job)
{
	int			nfiles = 0;
	uint64		bytes = 0;

	if (job->measured || job->nhidden > 0 ||
		!RelFileNumberIsValid(job->locator.relNumber))
		return;
	for (ForkNumber forknum = 0; forknum <= MAX_FORKNUM; forknum++)
	{
		RelPathStr	first = relpathperm(job->locator, forknum);
		uint64		nsegments = CountSegments(&first);
		SegmentPath path;

		for (uint64 segno = 0; segno < nsegments; segno++)
		{
			MakeSegmentPath(&path, &first, segno);
			bytes += SizeOfFile(&path);
			nfiles++;
		}
	}

	LWLockAcquire(&LazyDropCtl->lock, LW_EXCLUSIVE);
	if (job->entry->serial == job->serial && !job->entry->measured)
	{
		job->entry->nfiles = nfiles;
		job->entry->bytes = bytes;
		job->entry->measured = true;
	}
	LWLockRelease(&LazyDropCtl->lock);
}


/*
 * The same for all entries, for a process that wants to know what is pending: neither
 * droppers nor replay look at files for that.  The caller holds no LWLock.
 */
void
LazyDropMeasureAll(void)
{
	int			room = pg_atomic_read_u32(&LazyDropCtl->npending);
	LazyDropJob *jobs;
	int			njobs;

	if (room == 0)
		return;
	jobs = palloc_extended(mul_size(room, sizeof(LazyDropJob)), MCXT_ALLOC_HUGE);
	njobs = LazyDropFindJobs(LAZYDROP_FILES_FORGOTTEN, true, 0, PG_UINT64_MAX,
							 NULL, NULL, jobs, room);
	for (int i = 0; i < njobs; i++)
		LazyDropMeasure(&jobs[i]);
	pfree(jobs);
}


/* ---------------------------------------------------------------------
 * Hiding
 * ---------------------------------------------------------------------
 */

typedef struct HideResult
{
	int			nhidden;
	uint64		hidden_bytes;
	int			nremoved;
	uint64		removed_bytes;
} HideResult;

/*
 * Give a file or a directory the next name of the hidden ones.  Returns false when that
 * fails; a file that is not there is no failure, and is not counted.
 */
static bool
Hide(const LazyDropJob *job, const char *path, int *nhidden)
{
	SegmentPath to;

	MakeHiddenPath(&to, job, *nhidden);
	if (rename(path, to.str) < 0)
	{
		SegmentPath dir;

		if (errno != ENOENT)
			return false;
		MakeTablespacePath(&dir, job->locator.spcOid);
		strlcat(dir.str, "/" PG_TEMP_FILES_DIR, sizeof(dir.str));
		(void) MakePGDirectory(dir.str);
		if (rename(path, to.str) < 0)
			return access(path, F_OK) < 0 && errno == ENOENT;
	}
	(*nhidden)++;
	return true;
}

/*
 * Hide the files of a relation's fork, the highest segment first (rule R14), and remove
 * small ones.  Of a first segment that is to be kept the name is left, empty; while there
 * is none, the entry protects the number.
 */
static bool
HideFork(const LazyDropJob *job, ForkNumber forknum, HideResult *result)
{
	RelPathStr	first = relpathperm(job->locator, forknum);

	for (uint64 segno = CountSegments(&first); segno-- > 0;)
	{
		bool		keep = segno == 0 && forknum == MAIN_FORKNUM && job->keep_first;
		SegmentPath path;
		uint64		size;
		int			rc = 0;

		MakeSegmentPath(&path, &first, segno);
		size = SizeOfFile(&path);
		if (size > SMALL_FILE)
		{
			if (!Hide(job, path.str, &result->nhidden))
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
		SegmentPath path;

		MakeDirectoryPath(&path, job);
		all = Hide(job, path.str, &result.nhidden);
	}
	else
	{
		for (ForkNumber forknum = MAX_FORKNUM; forknum >= 0 && all; forknum--)
			all = HideFork(job, forknum, &result);
	}
	CountFreed(result.removed_bytes);

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
		SetJob(job, job->entry);
	LWLockRelease(&LazyDropCtl->lock);
	if (left && !others)
		LazyDropRemoveFiles(job, pause);
	return !others;
}


/* ---------------------------------------------------------------------
 * Removal
 * ---------------------------------------------------------------------
 */

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
	bool		failed = false;

	for (uint64 segno = CountSegments(&first); segno-- > 0 && !failed;)
	{
		bool		keep = segno == 0 && forknum == MAIN_FORKNUM && job->keep_first;
		SegmentPath path;

		MakeSegmentPath(&path, &first, segno);
		if (!RemoveFile(job, path.str, SizeOfFile(&path), keep, pause, &failed))
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
RemoveDirectory(const LazyDropJob *job, const char *path, LazyDropPause pause)
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

	if (BeginStep(job))
	{
		if (rmdir(path) < 0)
		{
			int			nhidden = job->nhidden;

			/* a directory in it, which the next start removes with it */
			rmdir_errno = errno;
			if (nhidden == 0)
				(void) Hide(job, path, &nhidden);
		}
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
	return true;
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
	SegmentPath path;

	LazyDropMeasure(job);
	if (!job->hidden && !is_relation)
	{
		MakeDirectoryPath(&path, job);
		go_on = RemoveDirectory(job, path.str, pause);
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

		MakeHiddenPath(&path, job, n);
		if (is_relation)
			go_on = RemoveFile(job, path.str, SizeOfFile(&path), false, pause,
							   &failed);
		else
			go_on = RemoveDirectory(job, path.str, pause);
	}
	if (go_on)
		Finish(job);
}


/* ---------------------------------------------------------------------
 * Who needs the files gone, or their space
 * ---------------------------------------------------------------------
 */

/*
 * A checkpoint goes on with its duties: it takes note of new settings and shares them,
 * switches WAL segments, absorbs sync requests, takes part in barriers, and ends with the
 * postmaster.  A negative progress asks upstream's function for just that; the latch keeps
 * it from sleeping.
 */
static bool
CheckPointPause(uint64 bytes)
{
	if (IsUnderPostmaster && !PostmasterIsAlive())
		proc_exit(1);
	SetLatch(MyLatch);
	CheckpointWriteDelay(0, -1);
	INJECTION_POINT("lazydrop-checkpoint-step", NULL);
	return true;
}

/*
 * The same in a shutdown, when no WAL may be written any more.
 */
static bool
ShutdownPause(uint64 bytes)
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
 * Find the first entry, not older than "first_serial" and not newer than "last_serial", with
 * files for a checkpoint to hide, or to remove in a shutdown.  If there is none, "others_at"
 * is the serial number of one that has files which its dropper has not released yet, or which
 * another process is hiding, and may fail to; or 0.  One look tells both, or an entry could
 * slip through between two.  A dropper that has ended, as the startup process may in a
 * shutdown, is not waited for.
 */
static bool
FindCheckPointJob(bool shutdown, uint64 first_serial, uint64 last_serial,
				  LazyDropJob *job, uint64 *others_at)
{
	dlist_head *lists[] = {&LazyDropCtl->hidden_removals, &LazyDropCtl->removals};
	int64		now = LazyDropNow();
	bool		found = false;
	dlist_iter	iter;

	*others_at = 0;
	LWLockAcquire(&LazyDropCtl->lock, LW_SHARED);
	for (int i = shutdown ? 0 : 1; i < lengthof(lists) && !found; i++)
	{
		dlist_foreach(iter, lists[i])
		{
			LazyDropEntry *entry = dlist_container(LazyDropEntry, files_node,
												   iter.cur);

			if (entry->serial > last_serial)
				continue;
			if (entry->hiding ||
				(entry->files == LAZYDROP_FILES_BURIED &&
				 GetPGProcByNumber(entry->dropper)->pid != 0))
			{
				if (*others_at == 0)
					*others_at = entry->serial;
				continue;
			}
			if (entry->files >= LAZYDROP_FILES_FORGOTTEN &&
				entry->serial >= first_serial &&
				(!shutdown || now >= entry->retry_at_ns))
			{
				SetJob(job, entry);
				found = true;
				break;
			}
		}
	}
	LWLockRelease(&LazyDropCtl->lock);
	return found;
}

/*
 * Called by a checkpoint or restartpoint when it has written and synced what is
 * dirty, and before its record or the control file says so: hides the files of
 * everything that is buried now, or removes them in a shutdown (rule R8).  Buffers do not
 * matter: those of what is buried are never written.
 */
void
LazyDropCheckPoint(int flags)
{
	bool		shutdown = (flags & CHECKPOINT_IS_SHUTDOWN) != 0;
	LazyDropPause pause = shutdown ? ShutdownPause : CheckPointPause;
	uint64		first_serial = 0;
	uint64		last_serial;
	uint64		others_at;
	int64		began;
	bool		waited = false;

	if (LazyDropCtl == NULL || LazyDropNothingPending())
		return;
	INJECTION_POINT("lazydrop-checkpoint", NULL);
	LWLockAcquire(&LazyDropCtl->lock, LW_EXCLUSIVE);
	last_serial = LazyDropCtl->last_serial;
	LazyDropCtl->hurry_serial = LazyDropCtl->checkpoint_serial;
	LazyDropCtl->checkpoint_serial = last_serial;
	LWLockRelease(&LazyDropCtl->lock);
	began = LazyDropNow();
	large_step_bytes = shutdown ? (uint64) RELSEG_SIZE * BLCKSZ : 0;

	for (;;)
	{
		LazyDropJob job;

		if (FindCheckPointJob(shutdown, first_serial, last_serial, &job,
							  &others_at))
		{
			waited = true;
			if (shutdown)
				LazyDropRemoveFiles(&job, pause);
			else if (!LazyDropHideOrRemove(&job, pause))
				continue;
			/* one attempt */
			first_serial = job.serial + 1;
			(void) pause(0);
		}
		else if (others_at != 0)
		{
			/* as CreateCheckPoint waits for those who delay it */
			waited = true;
			first_serial = others_at;
			(void) pause(0);
			pgstat_report_wait_start(LazyDropCtl->wait_event_checkpoint);
			pg_usleep(10000L);
			pgstat_report_wait_end();
		}
		else if (shutdown)
		{
			/* what could not be removed for a moment, the next start does */
			shutdown = false;
			first_serial = 0;
		}
		else
			break;
	}
	large_step_bytes = 0;
	LazyDropWakeWorker();

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
	SegmentPath path;
	char		file[MAXPGPATH * 2];
	int			save_level = complaint_level;

	complaint_level = 0;
	for (int n = job->hidden ? 0 : -1; n < job->nhidden && freed_bytes == 0; n++)
	{
		DIR		   *dir;
		struct dirent *de;

		if (n < 0)
			MakeDirectoryPath(&path, job);
		else
			MakeHiddenPath(&path, job, n);
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
	SegmentPath path;
	struct stat st;

	MakeTablespacePath(&path, job->locator.spcOid);
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
			INJECTION_POINT("lazydrop-free-space", NULL);

		/* A message about a file must not let us be interrupted. */
		HOLD_INTERRUPTS();
		complaint_level = LOG_SERVER_ONLY;
		freed_bytes = 0;

		/* until one has something */
		while (freed_bytes == 0 && !LazyDropNothingPending() &&
			   LazyDropFindJobs(LAZYDROP_FILES_FORGOTTEN, false, tried + 1,
								PG_UINT64_MAX, NULL, NULL, &job, 1) > 0)
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
