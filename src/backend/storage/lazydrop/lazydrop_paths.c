/*-------------------------------------------------------------------------
 *
 * lazydrop_paths.c
 *	  Names and sizes of files that are to be removed.
 *
 * A relation has its segments under their own names, or, once they are hidden,
 * under names of temporary files.  A database has a directory in each of its
 * tablespaces, which is hidden as a whole where that is possible.
 *
 * A hidden file has one of two names, both in the tablespace in which it was
 * (files of pg_global are in pg_default):
 *
 *		pgsql_tmp/pgsql_tmp.lazydrop.N.M	a temporary file
 *		0/tN_M					a file of a temporary relation, in the
 *								directory of a database that cannot exist
 *
 * N is the number of the entry's first burial, which no other start of the
 * server has given, and M counts its files.  The second name is for those that
 * cannot be renamed to the first one, because pgsql_tmp is on another file
 * system.  The postmaster of stock removes files with either name when it
 * starts; ours leaves them to the worker (lazydrop_leftover.c).
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
#include "storage/fd.h"
#include "storage/lazydrop.h"
#include "storage/lazydrop_internal.h"

#define HIDDEN_PREFIX			PG_TEMP_FILE_PREFIX ".lazydrop."

/* Set the path of a segment, of whose fork "first" is the first one. */
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
 * Set the path of the directory in which a tablespace has its databases'.
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
 * Set the path of one of the LAZYDROP_HIDDEN_DIRECTORIES directories for
 * hidden files of a tablespace.
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
 * Set the path that a hidden file has in one of these directories.  A second
 * name keeps the number of the segment, for pg_checksums.
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
 * Return the number of the segment that a file is.
 */
static uint64
SegmentOf(const char *path)
{
	const char *dot = strrchr(path, '.');

	return dot == NULL || strchr(dot, '/') != NULL ? 0 : strtoull(dot + 1, NULL, 10);
}

/*
 * Set the path of an entry's nth hidden file, wherever it is.  The number of
 * its segment, if it has a second name, is not known, so it is looked for in
 * the directory.
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
 * Whether a hidden file has this name; sets its serial number, and its own
 * number.  No temporary relation has such a large number.
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
 * Called where a data directory is synced before recovery.  Returns whether
 * the lazy drop has given the name to a file that it has hidden.
 */
bool
LazyDropIsHidden(const char *name)
{
	uint64		serial;
	int			n;

	return LazyDropParseHidden(name, &serial, &n);
}

/*
 * Whether an earlier run of the server has given the name to a hidden file.
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
 * Return how many segments a fork has, of which "first" is the first one.  They
 * are numbered without a gap, unless "gaps" says that there may be some; then
 * the number of the last one, plus one.  Something that cannot be looked at is
 * counted, because it may be possible to remove it.  Nothing is allocated, and
 * no file of fd.c's is used.
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
				nsegments++;
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
			de->d_name[len + end] == '\0')
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
 * Give a file the next name of an entry's hidden ones, or a directory, and
 * count it in "nhidden".  Returns false when that fails, with errno; a file
 * that is not there is no failure, and is not counted.
 *
 * Its modification time is set to now: a file that is years old would alarm
 * a monitor of temporary files.
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
		 * fail, report the first error.
		 */
		if (which > 0 && (lstat(path, &st) < 0 || S_ISDIR(st.st_mode)))
			break;
		HiddenPath(&to, job, *nhidden, which, SegmentOf(path));
		rc = rename(path, to.str);
		if (rc < 0 && errno == ENOENT)
		{
			/* If the file is missing, make nothing in the tablespace. */
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
 * Give a file the name back that it had before LazyDropHideFile, which has
 * hidden it last.  Returns false when that fails.
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
 * Remember how many files a relation has, and how large they are, unless that
 * is known or the entry is another one by now.  A database's directory is not
 * measured.  The caller holds no lock.
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
 * The same for all entries, for a process that wants to know what is pending: neither
 * droppers nor replay look at files for that.  The caller holds no LWLock.
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
		LazyDropMeasure(&jobs[i]);
	pfree(jobs);
}
