/*-------------------------------------------------------------------------
 *
 * lazydrop_settle.c
 *	  Processes that need what is pending gone (rules R3, R10 and R16).
 *
 * Settling an entry means that its buffers are invalidated, its files removed, and it is
 * deleted.  A process that is about to create storage under a pending name settles its
 * entry; others need only the files gone or hidden; and a user may wait for everything.
 *
 * Copyright (c) 2026, LazyDrop developers
 *
 * IDENTIFICATION
 *	  src/backend/storage/lazydrop/lazydrop_settle.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include <sys/stat.h>

#include "access/xlog.h"
#include "miscadmin.h"
#include "postmaster/startup.h"
#include "storage/lazydrop.h"
#include "storage/lazydrop_internal.h"
#include "storage/procsignal.h"

/*
 * How long a process that is about to create storage under a pending name waits for an
 * owner of its entry that does not get on before it takes the entry (rules R5 and R6).
 */
#define CREATOR_PATIENCE_MS		1000

/* How many entries that must be gone are looked for at once. */
#define SETTLE_BATCH			100

/* ---------------------------------------------------------------------
 * Which entries
 * ---------------------------------------------------------------------
 */

static bool
MatchesAll(const RelFileLocator *entry, const void *arg)
{
	return true;
}

static bool
MatchesRelation(const RelFileLocator *entry, const void *arg)
{
	const RelFileLocator *relation = arg;

	return entry->dbOid == relation->dbOid &&
		entry->spcOid == relation->spcOid &&
		(entry->relNumber == relation->relNumber ||
		 !RelFileNumberIsValid(entry->relNumber));
}

static bool
MatchesDatabase(const RelFileLocator *entry, const void *arg)
{
	return entry->dbOid == *(const Oid *) arg;
}

static bool
MatchesDirectory(const RelFileLocator *entry, const void *arg)
{
	const RelFileLocator *directory = arg;

	return entry->dbOid == directory->dbOid &&
		entry->spcOid == directory->spcOid;
}

static bool
MatchesTablespace(const RelFileLocator *entry, const void *arg)
{
	return entry->spcOid == *(const Oid *) arg;
}

/* ---------------------------------------------------------------------
 * The work
 * ---------------------------------------------------------------------
 */

static bool
SettlePause(uint64 bytes)
{
	if (AmStartupProcess())
		ProcessStartupProcInterrupts();
	else
		CHECK_FOR_INTERRUPTS();
	return true;
}

/*
 * Settle the entries that match, of whichever owner, for a process that is about to create
 * something under their names.  The caller holds no LWLock and is in no critical section; it
 * may have seen ("seen") an entry that matches before.  Returns whether there were any.
 */
static bool
SettleMatching(LazyDropMatch matches, const void *arg, bool seen)
{
	bool		settled = seen;

	Assert(CritSectionCount == 0);
	Assert(!LWLockHeldByMe(&LazyDropCtl->lock));

	for (;;)
	{
		LazyDropFilter filter = {
			.least = LAZYDROP_FILES_READY,
			.matches = matches,
			.arg = arg,
		};
		LazyDropJob jobs[SETTLE_BATCH];
		int			njobs;
		int64		steal_before;
		bool		can_own;

		(void) LazyDropAdvanceWaiting();

		/*
		 * Files are removed by the process that needs them gone, at full
		 * speed. What matches is found by looking at all entries, so not for
		 * each anew.
		 */
		njobs = LazyDropFindJobs(&filter, jobs, lengthof(jobs));
		for (int i = 0; i < njobs; i++)
			LazyDropRemoveFiles(&jobs[i], SettlePause);
		if (njobs > 0)
		{
			settled = true;
			continue;
		}

		/*
		 * Wait a while for a pass that is at it.  It may be stuck, and
		 * waiting for it is never the only way on (rule R6).
		 */
		steal_before = LazyDropNow() - CREATOR_PATIENCE_MS * INT64CONST(1000000);

		if (!LazyDropFindPending(matches, arg, steal_before, &can_own))
			break;
		settled = true;

		/*
		 * What is left after a pass has a buffer that is still pinned, or has
		 * been taken by another creator: be patient again; in replay, a pin
		 * is a conflict.  Or its dropper is not through yet, or it waits for
		 * other processes, or a process is in the middle of a system call on
		 * a file, or a directory is to be read once more.
		 */
		if (!can_own || !(LazyDropPass(steal_before, matches, arg) ||
						  LazyDropConflictWithPin()))
		{
			/* our own pass has broadcast, so prepare only now */
			ConditionVariablePrepareToSleep(&LazyDropCtl->settled_cv);
			(void) ConditionVariableTimedSleep(&LazyDropCtl->settled_cv, 100,
											   LazyDropCtl->wait_event_reuse);
			(void) SettlePause(0);
		}
	}
	ConditionVariableCancelSleep();

	/*
	 * Processes that do not read sinval messages may have a descriptor of the
	 * old file, and would write what is the new one's into it.  A caller that
	 * holds interrupts must not wait, because it would wait for itself; there
	 * is none in core.
	 */
	if (settled && IsUnderPostmaster)
	{
		uint64		generation = EmitProcSignalBarrier(PROCSIGNAL_BARRIER_SMGRRELEASE);

		Assert(INTERRUPTS_CAN_BE_PROCESSED());
		if (INTERRUPTS_CAN_BE_PROCESSED())
			WaitForProcSignalBarrier(generation);
	}
	return settled;
}

/*
 * See to it that entries which match, and are not newer than "last_serial", have no files
 * under their own names, or, without "hide", none at all.  Buffers do not matter.  The
 * caller holds no LWLock.
 */
static void
ClearFiles(LazyDropMatch matches, const void *arg, uint64 last_serial, bool hide)
{
	LazyDropFilter filter = {
		.least = hide ? LAZYDROP_FILES_FORGOTTEN : LAZYDROP_FILES_READY,
		.visible = hide,
		.last_serial = last_serial,
		.matches = matches,
		.arg = arg,
	};

	Assert(!LWLockHeldByMe(&LazyDropCtl->lock));
	for (;;)
	{
		LazyDropJob jobs[SETTLE_BATCH];
		int			njobs;

		/* To hide files, which takes no time, is not to wait for others. */
		if (!hide)
			(void) LazyDropAdvanceWaiting();
		njobs = LazyDropFindJobs(&filter, jobs, lengthof(jobs));
		for (int i = 0; i < njobs; i++)
		{
			if (hide)
			{
				(void) LazyDropHideOrRemove(&jobs[i], SettlePause);
				filter.first_serial = jobs[i].serial + 1;
			}
			else
				LazyDropRemoveFiles(&jobs[i], SettlePause);
		}
		if (njobs == lengthof(jobs))
			continue;

		/*
		 * A dropper is not through yet, or another process is hiding files;
		 * or a directory could not be read, and is to be removed.  To hide
		 * one that cannot even be renamed is tried once.
		 */
		filter.first_serial = 0;
		if (!LazyDropFilesAreLeft(matches, arg, last_serial, hide))
			break;
		ConditionVariablePrepareToSleep(&LazyDropCtl->settled_cv);
		(void) ConditionVariableTimedSleep(&LazyDropCtl->settled_cv, 10,
										   LazyDropCtl->wait_event_settle);
		(void) SettlePause(0);
	}
	ConditionVariableCancelSleep();
	LazyDropWakeWorker();
}

/*
 * Make room in a full set for an entry that is needed, or wait a while for
 * others to make it.  The caller holds no LWLock.
 */
static void
MakeRoom(void)
{
	if (LazyDropPass(LazyDropNow() - CREATOR_PATIENCE_MS * INT64CONST(1000000),
					 MatchesAll, NULL))
		return;

	/* Files, or a process that has stopped within a step, keep it full. */
	ClearFiles(MatchesAll, NULL, PG_UINT64_MAX, false);
	ConditionVariablePrepareToSleep(&LazyDropCtl->settled_cv);
	(void) ConditionVariableTimedSleep(&LazyDropCtl->settled_cv, 100,
									   LazyDropCtl->wait_event_reuse);
	ConditionVariableCancelSleep();
	(void) SettlePause(0);
}

/* ---------------------------------------------------------------------
 * Processes that create (rule R3)
 * ---------------------------------------------------------------------
 */

static void
CountReuseWait(bool waited)
{
	if (waited)
		LazyDropCount(LAZYDROP_REUSE_WAITS, 1);
}

/*
 * Called before storage is created under a name that may be buried, by itself or
 * because its database is in that tablespace.  The caller must not hold an LWLock
 * or interrupts.  Replay calls this for every record that refers to a relation.
 */
void
LazyDropSettleRelation(SMgrRelation reln)
{
	RelFileLocator locator = reln->smgr_rlocator.locator;

	if (LazyDropNothingPending() || SmgrIsTemp(reln) || !LazyDropIsBuried(&locator))
		return;
	CountReuseWait(SettleMatching(MatchesRelation, &locator, true));
}

/*
 * Called before a database, or a directory of it, is created: settles every entry of the
 * database, those of its relations included.
 */
void
LazyDropSettleDatabase(Oid dboid)
{
	if (!LazyDropNothingPending())
		CountReuseWait(SettleMatching(MatchesDatabase, &dboid, false));
}

/*
 * The same for one directory of a database, before the database is moved there.
 * Its entries in other tablespaces are left alone: a session may have a buffer
 * of them pinned for long.
 */
void
LazyDropSettleDirectory(Oid spcoid, Oid dboid)
{
	RelFileLocator directory = {spcoid, dboid, InvalidRelFileNumber};

	if (!LazyDropNothingPending())
		CountReuseWait(SettleMatching(MatchesDirectory, &directory, false));
}

/*
 * Settle a directory of a database, as LazyDropSettleDirectory does; invalidate
 * the buffers that the database has there whether they are buried or not, and
 * forget the sync requests for its files there (rule R2).
 *
 * For replay of CREATE DATABASE by file copy, of which relations are not created one
 * by one.  Normally there is nothing of that name, and when there is no directory,
 * there are no pages but those of entries.  But the primary may have crashed with files
 * there that nothing refers to, and a standby has their pages and requests.
 */
void
LazyDropInvalidateDatabase(Oid spcoid, Oid dboid)
{
	RelFileLocator locator = {spcoid, dboid, InvalidRelFileNumber};
	char	   *path = GetDatabasePath(dboid, spcoid);
	struct stat st;
	bool		is_new = lstat(path, &st) < 0 && errno == ENOENT;
	bool		wake;

	pfree(path);
	LazyDropSettleDirectory(spcoid, dboid);
	if (is_new)
		return;
	while (!LazyDropAddAll(&locator, 1, LAZYDROP_FILES_NONE, 0,
						   InvalidXLogRecPtr, false, &wake))
		MakeRoom();
	LazyDropWaitForIO(&locator, 1);
	(void) SettleMatching(MatchesDirectory, &locator, true);
	LazyDropForgetDirectorySyncRequests(spcoid, dboid);
}

/* ---------------------------------------------------------------------
 * Processes that need files gone (rules R10 and R16)
 * ---------------------------------------------------------------------
 */

/*
 * Called before the directories of a database are copied: what has been dropped is not to
 * be copied with the rest (rule R10).
 */
void
LazyDropHideDatabase(Oid dboid)
{
	if (!LazyDropNothingPending())
		ClearFiles(MatchesDatabase, &dboid, PG_UINT64_MAX, true);
}

/*
 * Called before a tablespace is dropped: removes the files that are pending in
 * it now, and what earlier runs of the server have hidden there, which the
 * worker may not have found yet.  In replay, "lsn" is the end of the record,
 * and the minimum recovery point is moved past it (rule R10).
 */
void
LazyDropClearTablespace(Oid spcoid, XLogRecPtr lsn)
{
	if (!XLogRecPtrIsInvalid(lsn))
		XLogFlush(lsn);
	if (LazyDropCtl != NULL && IsUnderPostmaster)
	{
		while (!LazyDropFindLeftoversIn(spcoid))
			MakeRoom();
	}
	if (!LazyDropNothingPending())
		ClearFiles(MatchesTablespace, &spcoid, LazyDropLastSerial(), false);
}

/*
 * Called at the end of recovery, before unlogged relations are reset: hides the files of
 * what is pending, which stays so (rule R16).  Without a worker, there is
 * one pass.
 */
void
LazyDropEndRecovery(void)
{
	bool		worker;

	LazyDropEndFileCopies();
	if (LazyDropNothingPending())
		return;
	worker = LazyDropHaveWorker();
	ClearFiles(MatchesAll, NULL, PG_UINT64_MAX, true);
	if (!worker)
		(void) LazyDropPass(0, NULL, NULL);
}

/* ---------------------------------------------------------------------
 * Users
 * ---------------------------------------------------------------------
 */

/*
 * Wait until all that is pending now is done: its buffers are invalidated and its
 * files removed.  The worker is asked not to wait for lazydrop.pass_delay; without one,
 * others may do it (rule R6).  Returns false when "timeout_ms" milliseconds were not
 * enough; less than zero is no limit.  Can be cancelled.  Either way what has been
 * asked of the worker stays asked.
 *
 * The caller holds no LWLock.
 */
bool
LazyDropDrain(int64 timeout_ms)
{
	int64		now = LazyDropNow();
	int64		deadline = PG_INT64_MAX;
	uint64		last_serial;

	if (timeout_ms >= 0 && timeout_ms <= (PG_INT64_MAX - now) / 1000000)
		deadline = now + timeout_ms * 1000000;

	last_serial = LazyDropAskForDrain();
	LazyDropWakeWorker();

	for (;;)
	{
		/* before the look, so that what is done after it wakes us */
		ConditionVariablePrepareToSleep(&LazyDropCtl->settled_cv);
		if (!LazyDropPendingUpTo(last_serial))
			break;
		now = LazyDropNow();
		if (now >= deadline)
		{
			ConditionVariableCancelSleep();
			return false;
		}

		(void) ConditionVariableTimedSleep(&LazyDropCtl->settled_cv,
										   Min(1000, (deadline - now) / 1000000 + 1),
										   LazyDropCtl->wait_event_drain);
		CHECK_FOR_INTERRUPTS();
	}
	ConditionVariableCancelSleep();
	return true;
}
