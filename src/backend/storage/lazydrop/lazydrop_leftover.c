/*-------------------------------------------------------------------------
 *
 * lazydrop_leftover.c
 *	  Hidden files of earlier runs of the server (rule R8).
 *
 * When the server stops or crashes, the set is lost, but not the names of the
 * files that have been hidden, which contain all that has to be known.
 * Stock's postmaster removes such files before it accepts connections.  That
 * may take minutes, so ours leaves them to the worker, which adds an entry for
 * each tablespace that has some.  From then on they are pending like others.
 *
 * Copyright (c) 2026, LazyDrop developers
 *
 * IDENTIFICATION
 *	  src/backend/storage/lazydrop/lazydrop_leftover.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include <dirent.h>
#include <sys/stat.h>

#include "miscadmin.h"
#include "storage/fd.h"
#include "storage/lazydrop.h"
#include "storage/lazydrop_internal.h"
#include "utils/timestamp.h"

/* in the postmaster: whether there will be a worker */
bool		lazydrop_worker_registered = false;

/*
 * Called by the postmaster for each temporary file, and each file of a
 * temporary relation, that it is about to remove before it starts other
 * processes.  Returns whether to leave the file to the worker: the lazy drop
 * has hidden it, there will be a worker, and the file system of "dir", where it
 * is, has space.
 */
bool
LazyDropLeavesToWorker(const char *dir, const char *name)
{
	uint64		serial;
	int			n;

	/* If the clock has been set back, the worker would not know this one. */
	return LazyDropParseHidden(name, &serial, &n) &&
		serial <= (uint64) GetCurrentTimestamp() &&
		lazydrop_worker_registered && !LazyDropDirectoryIsFull(dir);
}

/*
 * Count the leftovers in a directory for hidden files.  With "all", the
 * directory is a leftover itself, and all files in it are counted.
 */
static void
CountLeftovers(const char *path, bool all, int *nfiles, uint64 *bytes)
{
	DIR		   *dir = AllocateDir(path);
	struct dirent *de;

	if (dir == NULL && errno == ENOENT)
		return;
	while ((de = ReadDirExtended(dir, path, LOG)) != NULL)
	{
		LazyDropPath file;
		struct stat st;

		if (strcmp(de->d_name, ".") == 0 || strcmp(de->d_name, "..") == 0 ||
			(!all && !LazyDropIsLeftover(de->d_name)))
			continue;
		snprintf(file.str, sizeof(file.str), "%s/%s", path, de->d_name);
		if (lstat(file.str, &st) < 0)
			continue;

		/* A directory counts, too: it may be empty. */
		(*nfiles)++;
		if (!S_ISDIR(st.st_mode))
			*bytes += st.st_size;
		else if (!all)
			CountLeftovers(file.str, true, nfiles, bytes);
	}
	FreeDir(dir);
}

/*
 * Add an entry for what earlier runs of the server have hidden in a
 * tablespace, if there is something.  Returns false if there is no room for
 * it.  The caller holds no LWLock.
 */
bool
LazyDropFindLeftoversIn(Oid spcoid)
{
	RelFileLocator locator = {spcoid, InvalidOid, InvalidRelFileNumber};
	LazyDropJob job;
	int			nfiles = 0;
	uint64		bytes = 0;
	bool		added;

	/* There may be an entry, if other tablespaces had no room for theirs. */
	if (LazyDropFindJob(&locator, &job))
		return true;

	for (int i = 0; i < LAZYDROP_HIDDEN_DIRECTORIES; i++)
	{
		LazyDropPath path;

		LazyDropHiddenDirectory(&path, spcoid, i);
		CountLeftovers(path.str, false, &nfiles, &bytes);
	}
	if (nfiles == 0)
		return true;

	added = LazyDropAddLeftovers(spcoid, nfiles, bytes);
	if (added)
		ereport(LOG,
				(errmsg("found %d files of dropped relations in tablespace %u, %llu MB",
						nfiles, spcoid, (unsigned long long) bytes / (1024 * 1024)),
				 errdetail("They are removed in the background.")));
	return added;
}

/*
 * The same for all tablespaces.  Called by the worker when it starts.  Returns
 * false if it has to be called again, since there was no room for all.
 */
bool
LazyDropFindLeftovers(void)
{
	bool		result = LazyDropFindLeftoversIn(DEFAULTTABLESPACE_OID);
	DIR		   *dir = AllocateDir(PG_TBLSPC_DIR);
	struct dirent *de;

	while ((de = ReadDirExtended(dir, PG_TBLSPC_DIR, LOG)) != NULL)
	{
		Oid			spcoid = (Oid) strtoul(de->d_name, NULL, 10);

		if (OidIsValid(spcoid))
			result &= LazyDropFindLeftoversIn(spcoid);
	}
	FreeDir(dir);
	return result;
}
