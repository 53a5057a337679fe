/*-------------------------------------------------------------------------
 *
 * lazydrop_bury.c
 *	  Burial: putting what is dropped into the set.
 *
 * What droppers of relations (lazydrop_relation.c) and of databases (lazydrop_database.c)
 * have in common, in the order in which they use it: whether to bury, what becomes of the
 * files, the entries, and what happens when the transaction aborts after that.  The wait
 * for writes and reads under way, which follows, is in lazydrop_write.c.
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
 * How long a dropper that finds the set full waits for an owner that does not get on
 * before it takes the entries from it (rules R5 and R6).
 */
#define DROPPER_PATIENCE_MS		10000

/* How often it is reported that drops are not deferred, in nanoseconds. */
#define REPORT_NS				(UINT64CONST(60) * 1000 * 1000 * 1000)

/*
 * Whether to bury at all; "n" is how many fallbacks there are when it cannot be.
 *
 * Only droppers read lazydrop.enabled (rule R13).  Without a worker, entries
 * would stay until the set is full, so on a running primary we do as stock does;
 * in recovery we bury nevertheless, because a full set is settled by one pass
 * for all of it, and the end of recovery makes one for the rest (rules R6 and R16).
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
 * Count n drops that are done as stock does them, because there is no worker or,
 * with "is_full", no room in the set; and report it, once a minute.
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
 * Return the state of files that are buried now.  They are removed in the
 * background only when a record that drops them is durable, as any is in
 * recovery (rule R9), when there is a worker, and when their file systems have
 * enough free space (R15).
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
 * Whether this process replays drops that happened during a base backup, which
 * may have copied some of the segments only.  (Other crash recovery
 * finds no gaps: files are removed in the order of rule R14.)
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
 * Make room in a full set: settle what has no owner, or one that has not got on for
 * so long that it must be stuck.
 */
static void
MakeRoom(void)
{
	if (!LazyDropNothingBuried())
		(void) LazyDropPass(LazyDropNow() - DROPPER_PATIENCE_MS * INT64CONST(1000000),
							NULL, NULL);
}

/*
 * Put entries into the set, all of them or none (rule R6), and wake the worker.
 * "files" is what is to be done about the files of the first nfiles of them; nothing
 * is about those of the others.  Returns whether they are there.
 *
 * The worker is woken before LazyDropWaitForIO, because that can be interrupted.  The
 * entries are complete (rule R7), and it settles none too early: a write or a read
 * that is under way has its buffer pinned.
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
		MakeRoom();
	fits = LazyDropAddAll(locators, n, files, nfiles, lsn, MayHaveGaps(),
						  &wake);
	if (wake)
		LazyDropWakeWorker();
	return fits;
}

/*
 * Forget the sync requests for one file, or have it unlinked after the next
 * checkpoint.
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
