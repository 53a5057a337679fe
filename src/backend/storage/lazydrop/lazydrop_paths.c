/*-------------------------------------------------------------------------
 *
 * lazydrop_paths.c
 *	  Names and sizes of files to be removed.
 *
 * A relation has segments under their own names or, once they are hidden,
 * under names of temporary files.  A database has a directory in each of its
 * tablespaces, which is hidden as a whole if possible.
 *
 * A hidden file has one of two names, both in the tablespace in which it was
 * (for files of pg_global, in pg_default):
 *
 *		pgsql_tmp/pgsql_tmp.lazydrop.N.M	a temporary file
 *		0/tN_M					a file of a temporary relation, in the
 *								directory of a database that cannot exist
 *
 * N is the serial number of the entry's first burial, which no other start of
 * the server has used, and M counts its files.  The second name is for files
 * that cannot be renamed to the first one, for example because pgsql_tmp is on
 * another file system.  Stock's postmaster removes files with either name when
 * it starts.  Ours leaves them to the worker (lazydrop_leftover.c).
 *
 * Copyright (c) 2026, LazyDrop developers
 *
 * IDENTIFICATION
 *	  src/backend/storage/lazydrop/lazydrop_paths.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include <dirent.h>
#include <sys/stat.h>
#include <unistd.h>
#include <utime.h>

#include "catalog/pg_tablespace_d.h"
#include "common/file_utils.h"
#include "miscadmin.h"
#include "storage/fd.h"
#include "storage/lazydrop.h"
#include "storage/lazydrop_internal.h"

#define HIDDEN_PREFIX			PG_TEMP_FILE_PREFIX ".lazydrop."

/* Set the path of a segment of the fork whose first segment is "first". */
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
 * Set the path of the directory that contains a tablespace's databases.
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
 * Set the path of one of the LAZYDROP_HIDDEN_DIRECTORIES directories that a
 * tablespace has for hidden files.
 */
void
LazyDropHiddenDirectory(LazyDropPath *path, Oid spcoid, int which)
{
	LazyDropTablespacePath(path, spcoid == GLOBALTABLESPACE_OID ?
						   DEFAULTTABLESPACE_OID : spcoid);
	strlcat(path->str, which == 0 ? "/" PG_TEMP_FILES_DIR : "/" LAZYDROP_NO_DATABASE,
			sizeof(path->str));
}

/*
 * Set the path of a hidden file in one of these directories.  The second name
 * contains the number of the segment, for pg_checksums.
 */
static void
HiddenPath(LazyDropPath *path, const LazyDropJob *job, int n, int which,
		   uint64 segno)
{
	LazyDropPath dir;

	LazyDropHiddenDirectory(&dir, job->locator.spcOid, which);
	if (which == 0)
		snprintf(path->str, sizeof(path->str),
				 "%s/" HIDDEN_PREFIX UINT64_FORMAT ".%d",
				 dir.str, job->first_serial, n);
	else if (segno == 0)
		snprintf(path->str, sizeof(path->str), "%s/t" UINT64_FORMAT "_%d",
				 dir.str, job->first_serial, n);
	else
		snprintf(path->str, sizeof(path->str),
				 "%s/t" UINT64_FORMAT "_%d." UINT64_FORMAT,
				 dir.str, job->first_serial, n, segno);
}

/*
 * Return the segment number of a file.
 */
static uint64
SegmentOf(const char *path)
{
	const char *dot = strrchr(path, '.');

	return dot == NULL || strchr(dot, '/') != NULL ? 0 : strtoull(dot + 1, NULL, 10);
}

/*
 * Set the path of an entry's nth hidden file, in either directory.  If the
 * file has a second name, its segment number is not known, so the directory is
 * searched.
 */
void
LazyDropFindHidden(LazyDropPath *path, const LazyDropJob *job, int n)
{
	LazyDropPath dirpath;
	DIR		   *dir;
	struct dirent *de;

	HiddenPath(path, job, n, 0, 0);
	if (access(path->str, F_OK) == 0)
		return;
	HiddenPath(path, job, n, 1, 0);
	if (access(path->str, F_OK) == 0)
		return;
	LazyDropHiddenDirectory(&dirpath, job->locator.spcOid, 1);
	dir = opendir(dirpath.str);
	while (dir != NULL && (de = readdir(dir)) != NULL)
	{
		uint64		serial;
		int			m;

		if (LazyDropParseHidden(de->d_name, &serial, &m) &&
			serial == job->first_serial && m == n)
		{
			snprintf(path->str, sizeof(path->str), "%s/%s", dirpath.str, de->d_name);
			break;
		}
	}
	if (dir != NULL)
		closedir(dir);
}

/*
 * Return whether this is the name of a hidden file.  Sets the serial number
 * and the file's own number.  No temporary relation has such a large number.
 */
bool
LazyDropParseHidden(const char *name, uint64 *serial, int *n)
{
	uint64		segno;
	int			end = 0;

	if (sscanf(name, HIDDEN_PREFIX UINT64_FORMAT ".%d%n", serial, n, &end) == 2)
		return name[end] == '\0';
	if (sscanf(name, "t" UINT64_FORMAT "_%d%n", serial, n, &end) != 2 ||
		*serial <= PG_UINT32_MAX)
		return false;
	if (name[end] != '\0' &&
		sscanf(name, "t" UINT64_FORMAT "_%d." UINT64_FORMAT "%n",
			   serial, n, &segno, &end) != 3)
		return false;
	return name[end] == '\0';
}

/*
 * Called when a data directory is synced before recovery.  Returns whether
 * this is the name of a file that the lazy drop has hidden.
 */
bool
LazyDropIsHidden(const char *name)
{
	uint64		serial;
	int			n;

	return LazyDropParseHidden(name, &serial, &n);
}

/*
 * Return whether an earlier run of the server has hidden a file of this name.
 */
bool
LazyDropIsLeftover(const char *name)
{
	uint64		serial;
	int			n;

	return LazyDropParseHidden(name, &serial, &n) &&
		serial <= LazyDropCtl->start_serial;
}

/*
 * Set the path of a database's directory.
 */
void
LazyDropDirectoryPath(LazyDropPath *path, const LazyDropJob *job)
{
	LazyDropPath tablespace;

	LazyDropTablespacePath(&tablespace, job->locator.spcOid);
	snprintf(path->str, sizeof(path->str), "%s/%u", tablespace.str,
			 job->locator.dbOid);
}

/*
 * Return the number of segments of the fork whose first segment is "first".
 * There are no gaps, unless "gaps" is set; then, return the number of the last
 * segment plus one.  A segment that cannot be looked up is counted, because it
 * may be possible to remove it, and so are those behind it.  Nothing is
 * allocated, and fd.c is not used.
 */
uint64
LazyDropCountSegments(const RelPathStr *first, bool gaps)
{
	uint64		nsegments = 0;
	LazyDropPath path;
	char	   *name;
	DIR		   *dir;
	struct dirent *de;

	for (;; nsegments++)
	{
		struct stat st;

		LazyDropSegmentPath(&path, first, nsegments);
		if (stat(path.str, &st) < 0)
		{
			if (errno != ENOENT)
			{
				nsegments++;
				gaps = true;
			}
			break;
		}
	}
	if (!gaps)
		return nsegments;

	LazyDropSegmentPath(&path, first, 0);
	name = last_dir_separator(path.str);
	*name++ = '\0';
	dir = opendir(path.str);
	while (dir != NULL && (de = readdir(dir)) != NULL)
	{
		size_t		len = strlen(name);
		uint64		segno;
		int			end;

		if (strncmp(de->d_name, name, len) == 0 &&
			sscanf(de->d_name + len, "." UINT64_FORMAT "%n", &segno, &end) == 1 &&
			de->d_name[len + end] == '\0' &&
			segno <= MaxBlockNumber / RELSEG_SIZE)
			nsegments = Max(nsegments, segno + 1);
	}
	if (dir != NULL)
		closedir(dir);
	return nsegments;
}

/*
 * Return the size of a file in bytes, or 0 if there is none.
 */
uint64
LazyDropFileSize(const LazyDropPath *path)
{
	struct stat st;

	return stat(path->str, &st) < 0 ? 0 : st.st_size;
}

/*
 * Return the number of blocks of a fork, whose segments have no gaps.  If it
 * is not known, because a file cannot be looked up or a main fork is missing,
 * return InvalidBlockNumber.
 */
BlockNumber
LazyDropCountBlocks(RelFileLocatorBackend rlocator, ForkNumber forknum)
{
	RelPathStr	first = LazyDropRelPath(rlocator, forknum);
	BlockNumber nblocks = forknum == MAIN_FORKNUM ? InvalidBlockNumber : 0;

	for (uint64 segno = 0;; segno++)
	{
		LazyDropPath path;
		struct stat st;

		LazyDropSegmentPath(&path, &first, segno);
		if (stat(path.str, &st) < 0)
			return errno == ENOENT ? nblocks : InvalidBlockNumber;
		nblocks = segno * RELSEG_SIZE + (st.st_size + BLCKSZ - 1) / BLCKSZ;
	}
}

/*
 * Rename a file or a directory to the next name for an entry's hidden files,
 * and count it in "nhidden".  Returns false and sets errno on failure.  A
 * missing file is not a failure, and is not counted.
 *
 * The modification time is set to now, because a file that is years old would
 * alarm a monitor of temporary files.
 */
bool
LazyDropHideFile(const LazyDropJob *job, const char *path, int *nhidden)
{
	LazyDropPath to;
	LazyDropPath dir;
	struct stat st;
	int			rc = -1;
	int			save_errno = 0;

	for (int which = 0; which < LAZYDROP_HIDDEN_DIRECTORIES && rc < 0; which++)
	{
		/*
		 * Stock could not remove a directory with the second name.  If both
		 * renames fail, report the first error.
		 */
		if (which > 0 && (lstat(path, &st) < 0 || S_ISDIR(st.st_mode)))
			break;
		HiddenPath(&to, job, *nhidden, which, SegmentOf(path));
		rc = rename(path, to.str);
		if (rc < 0 && errno == ENOENT)
		{
			/* If the file is missing, create nothing in the tablespace. */
			if (lstat(path, &st) < 0)
				return errno == ENOENT;
			LazyDropHiddenDirectory(&dir, job->locator.spcOid, which);
			(void) MakePGDirectory(dir.str);
			rc = rename(path, to.str);
		}
		if (rc < 0 && which == 0)
			save_errno = errno;
	}
	if (rc < 0)
	{
		errno = save_errno;
		return false;
	}
	(void) utime(to.str, NULL);
	(*nhidden)++;
	return true;
}

/*
 * Give the last file that LazyDropHideFile has hidden its original name back.
 * Returns false on failure.
 */
bool
LazyDropUnhideFile(const LazyDropJob *job, const char *path, int *nhidden)
{
	LazyDropPath from;

	LazyDropFindHidden(&from, job, *nhidden - 1);
	if (rename(from.str, path) < 0)
		return false;
	(*nhidden)--;
	return true;
}

/*
 * Note the number of blocks of each fork of a relation, unless that is known
 * (rule R18).  For "serial", see LazyDropSetBlocks.  Called before this process
 * touches a file.  The caller holds no lock.
 */
void
LazyDropMeasureBlocks(const RelFileLocator *locator, uint64 serial)
{
	RelFileLocatorBackend rlocator = {*locator, INVALID_PROC_NUMBER};
	BlockNumber nblocks[MAX_FORKNUM + 1];

	if (!RelFileNumberIsValid(locator->relNumber))
		return;
	for (ForkNumber forknum = 0; forknum <= MAX_FORKNUM; forknum++)
		nblocks[forknum] = LazyDropCountBlocks(rlocator, forknum);
	LazyDropSetBlocks(locator, serial, nblocks);
}

/*
 * Add a file, or all files in a directory, to a number and a total size.
 * Returns false if that is not possible.
 */
static bool
AddFiles(const char *path, int *nfiles, uint64 *bytes)
{
	bool		result = true;
	struct stat st;
	DIR		   *dir;
	struct dirent *de;

	CHECK_FOR_INTERRUPTS();
	if (lstat(path, &st) < 0)
		return errno == ENOENT;
	if (!S_ISDIR(st.st_mode))
	{
		(*nfiles)++;
		*bytes += st.st_size;
		return true;
	}

	dir = AllocateDir(path);
	if (dir == NULL)
		return errno == ENOENT;
	while (errno = 0, (de = ReadDirExtended(dir, path, DEBUG1)) != NULL)
	{
		char		file[MAXPGPATH * 2];

		if (strcmp(de->d_name, ".") == 0 || strcmp(de->d_name, "..") == 0)
			continue;
		snprintf(file, sizeof(file), "%s/%s", path, de->d_name);
		result &= AddFiles(file, nfiles, bytes);
	}
	result &= errno == 0;
	FreeDir(dir);
	return result;
}

/*
 * The same as LazyDropMeasure, for a database's directory.
 */
static void
MeasureDatabase(const LazyDropJob *job)
{
	int			nfiles = 0;
	uint64		bytes = 0;
	bool		known = true;
	LazyDropPath path;

	if (!job->hidden)
	{
		LazyDropDirectoryPath(&path, job);
		known &= AddFiles(path.str, &nfiles, &bytes);
	}
	for (int n = 0; n < job->nhidden; n++)
	{
		LazyDropFindHidden(&path, job, n);
		known &= AddFiles(path.str, &nfiles, &bytes);
	}
	if (known)
		LazyDropSetSize(job, nfiles, bytes);
}

/*
 * Note the number and the total size of a relation's files, unless they are
 * known or the job is out of date.  The caller holds no lock.  A database's
 * directory is measured only for a process that shows the size, because that
 * takes almost as long as to remove it.
 */
void
LazyDropMeasure(const LazyDropJob *job)
{
	int			nfiles = 0;
	uint64		bytes = 0;
	LazyDropPath path;

	if (job->measured || !RelFileNumberIsValid(job->locator.relNumber))
		return;
	for (ForkNumber forknum = 0; forknum <= MAX_FORKNUM; forknum++)
	{
		RelPathStr	first = LazyDropRelPathPerm(job->locator, forknum);
		uint64		nsegments = job->hidden ? 0 : LazyDropCountSegments(&first, job->gaps);

		for (uint64 segno = 0; segno < nsegments; segno++)
		{
			LazyDropSegmentPath(&path, &first, segno);
			bytes += LazyDropFileSize(&path);
			nfiles++;
		}
	}
	for (int n = 0; n < job->nhidden; n++)
	{
		LazyDropFindHidden(&path, job, n);
		bytes += LazyDropFileSize(&path);
		nfiles++;
	}

	LazyDropSetSize(job, nfiles, bytes);
}

/*
 * Do the same for all entries, for a process that shows them, because neither
 * droppers nor replay measure files.  The caller holds no LWLock.
 */
void
LazyDropMeasureAll(void)
{
	LazyDropFilter filter = {.least = LAZYDROP_FILES_FORGOTTEN};
	int			room = pg_atomic_read_u32(&LazyDropCtl->npending);
	LazyDropJob *jobs;
	int			njobs;

	if (room == 0)
		return;
	jobs = palloc_extended(mul_size(room, sizeof(LazyDropJob)), MCXT_ALLOC_HUGE);
	njobs = LazyDropFindJobs(&filter, jobs, room);
	for (int i = 0; i < njobs; i++)
	{
		CHECK_FOR_INTERRUPTS();
		if (RelFileNumberIsValid(jobs[i].locator.relNumber))
			LazyDropMeasure(&jobs[i]);
		else if (!jobs[i].measured)
			MeasureDatabase(&jobs[i]);
	}
	pfree(jobs);
}
