/*-------------------------------------------------------------------------
 *
 * lazydrop_bury.c
 *	  Burial: adding dropped relations and databases to the set.
 *
 * These functions are shared by the droppers of relations
 * (lazydrop_relation.c) and of databases (lazydrop_database.c).  They decide
 * whether to bury and how files are removed, add entries to the set, and send
 * requests to the checkpointer.  The next step is to wait for writes and reads
 * in progress, which is in lazydrop_write.c.
 *
 * Copyright (c) 2026, LazyDrop developers
 *
 * IDENTIFICATION
 *	  src/backend/storage/lazydrop/lazydrop_bury.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/xlog.h"
#include "access/xlogrecovery.h"
#include "catalog/pg_control.h"
#include "common/controldata_utils.h"
#include "miscadmin.h"
#include "storage/lazydrop_internal.h"

bool		lazydrop_enabled = true;
bool		lazydrop_defer_files = true;

/*
 * Time without progress after which a dropper that finds the set full takes
 * over the entries of an owner (rules R5 and R6).
 */
#define DROPPER_PATIENCE_MS		10000

/* Interval between reports that drops are not deferred, in nanoseconds. */
#define REPORT_NS				(UINT64CONST(60) * 1000 * 1000 * 1000)

/*
 * Return whether to bury.  Without a worker, this may count "n" fallbacks.
 *
 * Only droppers read lazydrop.enabled (rule R13).  Without a worker, entries
 * stay until the set is full, so a running primary does the same as stock.  In
 * recovery they are buried anyway: one pass settles a full set, and the end of
 * recovery makes one for the rest (rules R6 and R16).
 */
bool
LazyDropMayBury(int n)
{
	if (!lazydrop_enabled || LazyDropCtl == NULL || !IsUnderPostmaster)
		return false;
	if (LazyDropHaveWorker() || RecoveryInProgress())
		return true;
	LazyDropFallBack(n, false);
	return false;
}

/*
 * Count "n" drops that are done as in stock, because there is no worker or, if
 * "is_full" is set, no room in the set.  Report that at most once a minute.
 */
void
LazyDropFallBack(int n, bool is_full)
{
	uint64		last = pg_atomic_read_u64(&LazyDropCtl->reported_fallback_ns);
	uint64		now = LazyDropNow();

	LazyDropCount(LAZYDROP_SYNC_FALLBACKS, n);
	if ((last != 0 && now - last < REPORT_NS) ||
		!pg_atomic_compare_exchange_u64(&LazyDropCtl->reported_fallback_ns,
										&last, now))
		return;
	/* The client might not read it, and checkpoints may wait for us. */
	if (is_full)
		ereport(LOG_SERVER_ONLY,
				(errmsg("drop of %d relations or databases was not deferred, because too many are pending",
						n),
				 errdetail("%u of %d entries are in use.",
						   pg_atomic_read_u32(&LazyDropCtl->npending),
						   LazyDropCtl->capacity),
				 errhint("Consider increasing the configuration parameter \"%s\".",
						 "lazydrop.max_pending")));
	else
		ereport(LOG_SERVER_ONLY,
				(errmsg("drop of %d relations or databases was not deferred, because there is no lazy drop worker",
						n),
				 errhint("You might need to increase \"%s\".",
						 "max_worker_processes")));
}

/*
 * Return the initial state of the files of a burial.  Their removal is
 * deferred only if the record that drops them is durable, as all are in
 * recovery (rule R9), if there is a worker, and if their file systems have
 * enough free space (rule R15).
 */
LazyDropFiles
LazyDropFilesOfBurial(const RelFileLocator *locators, int n, XLogRecPtr durable)
{
	if (!lazydrop_defer_files || !LazyDropHaveWorker() ||
		(XLogRecPtrIsInvalid(durable) && !RecoveryInProgress()))
		return LAZYDROP_FILES_NONE;
	for (int i = 0; i < n; i++)
	{
		if ((i == 0 || locators[i].spcOid != locators[i - 1].spcOid) &&
			LazyDropSpaceIsShort(locators[i].spcOid))
		{
			LazyDropCount(LAZYDROP_UNDEFERRED_REMOVALS, n);
			return LAZYDROP_FILES_NONE;
		}
	}
	return LAZYDROP_FILES_BURIED;
}

/*
 * Return whether this process replays drops that happened during a base
 * backup, which may have copied only some of the segments.  (Other crash
 * recovery finds no gaps, because files are removed in the order of rule R14.)
 */
static bool
MayHaveGaps(void)
{
	static bool known = false;
	static bool from_backup = false;

	if (!AmStartupProcess() || reachedConsistency)
		return false;
	if (!known)
	{
		bool		crc_ok;
		ControlFileData *control = get_controlfile(DataDir, &crc_ok);

		from_backup = crc_ok && !XLogRecPtrIsInvalid(control->backupStartPoint);
		known = true;
		pfree(control);
	}
	return from_backup;
}

/*
 * Make room for n entries in a full set: look up buffers or, if that does not
 * suffice, make a pass.  This includes entries whose owner has made no progress
 * for so long that it must be stuck.
 */
static void
MakeRoom(int n)
{
	int64		steal_before = LazyDropNow() - DROPPER_PATIENCE_MS * INT64CONST(1000000);

	(void) LazyDropLookUp(steal_before, NULL, NULL, false);
	if (!LazyDropHasRoom(n))
		(void) LazyDropPass(steal_before, NULL, NULL);
}

/*
 * Add entries to the set, all or none (rule R6), and wake the worker if
 * needed.  "files" is the state of the files of the first nfiles of them.  The
 * files of the others are not deferred.  Returns whether there was room.
 *
 * The worker is woken before LazyDropWaitForIO, since that can be interrupted.
 * The entries are complete (rule R7), and none is settled too early, because a
 * buffer that is being written or read is pinned.
 */
bool
LazyDropAddEntries(const RelFileLocator *locators, int n, LazyDropFiles files,
				   int nfiles, XLogRecPtr lsn)
{
	bool		wake;
	bool		fits;

	Assert(n > 0 && nfiles <= n);
	Assert(files != LAZYDROP_FILES_READY);
	if (n > LazyDropCtl->capacity)
		return false;
	if (!LazyDropHasRoom(n))
		MakeRoom(n);
	fits = LazyDropAddAll(locators, n, files, nfiles, lsn, MayHaveGaps(),
						  &wake);
	if (wake)
		LazyDropWakeWorker();
	return fits;
}

/*
 * Send the checkpointer a request to forget the sync requests for a file or a
 * directory, or to unlink a file after the next checkpoint.
 */
void
LazyDropRequestForFile(SyncRequestType type, const RelFileLocator *locator,
					   ForkNumber forknum, uint64 segno)
{
	FileTag		tag;

	memset(&tag, 0, sizeof(tag));
	tag.handler = SYNC_HANDLER_MD;
	tag.forknum = forknum;
	tag.rlocator = *locator;
	tag.segno = segno;
	RegisterSyncRequest(&tag, type, true);
}
