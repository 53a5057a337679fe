/*-------------------------------------------------------------------------
 *
 * lazydrop_paths.c
 *	  Names and sizes of files that are to be removed.
 *
 * A relation has its segments under their own names, or, once they are hidden, under names
 * of temporary files.  A database has a directory in each of its tablespaces, which is
 * hidden as a whole.
 *
 * Copyright (c) 2026, LazyDrop developers
 *
 * IDENTIFICATION
 *	  src/backend/storage/lazydrop/lazydrop_paths.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include <sys/stat.h>
#include <unistd.h>

#include "catalog/pg_tablespace_d.h"
#include "common/file_utils.h"
#include "storage/fd.h"
#include "storage/lazydrop_internal.h"

void
LazyDropSegmentPath(LazyDropPath *path, const RelPathStr *first, uint64 segno)
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
void
LazyDropTablespacePath(LazyDropPath *path, Oid spcoid)
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
void
LazyDropHiddenPath(LazyDropPath *path, const LazyDropJob *job, int n)
{
	LazyDropPath tablespace;

	LazyDropTablespacePath(&tablespace, job->locator.spcOid);
	snprintf(path->str, sizeof(path->str), "%s/%s/%s.lazydrop." UINT64_FORMAT ".%d",
			 tablespace.str, PG_TEMP_FILES_DIR, PG_TEMP_FILE_PREFIX,
			 job->first_serial, n);
}

void
LazyDropDirectoryPath(LazyDropPath *path, const LazyDropJob *job)
{
	LazyDropPath tablespace;

	LazyDropTablespacePath(&tablespace, job->locator.spcOid);
	snprintf(path->str, sizeof(path->str), "%s/%u", tablespace.str,
			 job->locator.dbOid);
}

/*
 * How many segments a fork has: they are numbered without a gap.  Something that
 * cannot be looked at is counted, because it may be possible to remove it.
 */
uint64
LazyDropCountSegments(const RelPathStr *first)
{
	for (uint64 n = 0;; n++)
	{
		LazyDropPath path;
		struct stat st;

		LazyDropSegmentPath(&path, first, n);
		if (stat(path.str, &st) < 0)
			return errno == ENOENT ? n : n + 1;
	}
}

uint64
LazyDropFileSize(const LazyDropPath *path)
{
	struct stat st;

	return stat(path->str, &st) < 0 ? 0 : st.st_size;
}

/*
 * Give a file or a directory the next name of the hidden ones.  Returns false when that
 * fails; a file that is not there is no failure, and is not counted.
 */
bool
LazyDropHideFile(const LazyDropJob *job, const char *path, int *nhidden)
{
	LazyDropPath to;

	LazyDropHiddenPath(&to, job, *nhidden);
	if (rename(path, to.str) < 0)
	{
		LazyDropPath dir;

		if (errno != ENOENT)
			return false;

		/* If it is the file that is missing, make nothing in the tablespace. */
		if (access(path, F_OK) < 0)
			return errno == ENOENT;
		LazyDropTablespacePath(&dir, job->locator.spcOid);
		strlcat(dir.str, "/" PG_TEMP_FILES_DIR, sizeof(dir.str));
		(void) MakePGDirectory(dir.str);
		if (rename(path, to.str) < 0)
			return access(path, F_OK) < 0 && errno == ENOENT;
	}
	(*nhidden)++;
	return true;
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
		RelPathStr	first = LazyDropRelPathPerm(job->locator, forknum);
		uint64		nsegments = LazyDropCountSegments(&first);
		LazyDropPath path;

		for (uint64 segno = 0; segno < nsegments; segno++)
		{
			LazyDropSegmentPath(&path, &first, segno);
			bytes += LazyDropFileSize(&path);
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
