/*-------------------------------------------------------------------------
 *
 * lazydrop_settle.c
 *	  Processes that need pending drops completed (rules R3, R10 and R16).
 *
 * To settle an entry means to invalidate its buffers, to remove its files, and
 * to delete it.  A process that is about to create storage under a pending
 * name settles the entry.  Others only need the files removed or hidden.  A
 * user may wait until everything that is pending has been settled.
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
 * Time without progress after which a process that is about to create storage
 * under a pending name takes over its entry (rules R5 and R6).
 */
#define CREATOR_PATIENCE_MS		1000

/* ---------------------------------------------------------------------
 * Conditions on entries
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
 * Settling entries and clearing files
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
 * Make other processes close files that have been removed.
 *
 * Processes that do not read sinval messages may have a descriptor of an old
 * file, and would write pages of the new one to it.  A caller that holds off
 * interrupts must not wait, because it would wait for itself.  There is no such
 * caller in core.
 */
static void
CloseFiles(void)
{
	uint64		generation = EmitProcSignalBarrier(PROCSIGNAL_BARRIER_SMGRRELEASE);

	Assert(INTERRUPTS_CAN_BE_PROCESSED());
	if (INTERRUPTS_CAN_BE_PROCESSED())
		WaitForProcSignalBarrier(generation);
}

/*
 * Settle all entries that match, even with an owner, for a caller that will
 * create storage under their names.  It holds no LWLock, is in no critical
 * section, and has seen a match if "seen" is set.  Returns whether there were
 * any.
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
		LazyDropJob jobs[LAZYDROP_BATCH];
		int			njobs;
		int64		steal_before;
		bool		can_own;

		(void) LazyDropAdvanceWaiting();

		/*
		 * Remove the files in this process, which needs them gone, at full
		 * speed.  The search looks at all entries, so it is not repeated for
		 * each entry.
		 */
		njobs = LazyDropFindJobs(&filter, jobs, lengthof(jobs));
		for (int i = 0; i < njobs; i++)
			(void) LazyDropRemoveFiles(&jobs[i], SettlePause);
		if (njobs > 0)
		{
			settled = true;
			continue;
		}

		/*
		 * Give a pass that is in progress some time.  It may be stuck, so it
		 * must not be the only way to make progress (rule R6).
		 */
		steal_before = LazyDropNow() - CREATOR_PATIENCE_MS * INT64CONST(1000000);

		if (!LazyDropFindPending(matches, arg, steal_before, &can_own))
			break;
		settled = true;

		/*
		 * If our pass leaves an entry, a buffer is still pinned or another
		 * creator has taken it over: be patient again.  In replay, a pin is a
		 * recovery conflict.  Otherwise, its dropper is not done yet, it
		 * waits for other processes, a process is in a system call on a file,
		 * or a directory must be read again.
		 */
		if (!can_own || !(LazyDropPass(steal_before, matches, arg) ||
						  LazyDropConflictWithPin()))
		{
			/* Prepare only now, because our own pass has broadcast. */
			ConditionVariablePrepareToSleep(&LazyDropCtl->settled_cv);
			(void) ConditionVariableTimedSleep(&LazyDropCtl->settled_cv, 100,
											   LazyDropCtl->wait_event_reuse);
			(void) SettlePause(0);
		}
	}
	ConditionVariableCancelSleep();
	if (settled && IsUnderPostmaster)
		CloseFiles();
	return settled;
}

/*
 * Remove the files of all entries that match and are not newer than
 * "last_serial".  Buffers do not matter.  The caller holds no LWLock.
 */
static void
ClearFiles(LazyDropMatch matches, const void *arg, uint64 last_serial)
{
	LazyDropFilter filter = {
		.least = LAZYDROP_FILES_READY,
		.last_serial = last_serial,
		.matches = matches,
		.arg = arg,
	};

	Assert(!LWLockHeldByMe(&LazyDropCtl->lock));
	for (;;)
	{
		LazyDropJob jobs[LAZYDROP_BATCH];
		int			njobs;

		(void) LazyDropAdvanceWaiting();
		njobs = LazyDropFindJobs(&filter, jobs, lengthof(jobs));
		for (int i = 0; i < njobs; i++)
			(void) LazyDropRemoveFiles(&jobs[i], SettlePause);
		if (njobs == lengthof(jobs))
			continue;

		/* A dropper may not be done yet, or a file be tried again later. */
		if (!LazyDropFilesAreLeft(&filter))
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
 * Make room in a full set for an entry that the caller needs, or wait a moment
 * for others to make room.  The caller holds no LWLock.
 */
static void
MakeRoom(void)
{
	if (LazyDropPass(LazyDropNow() - CREATOR_PATIENCE_MS * INT64CONST(1000000),
					 MatchesAll, NULL))
		return;

	/* The set is full of files, or a process has stopped within a step. */
	ClearFiles(NULL, NULL, LazyDropLastSerial());
	ConditionVariablePrepareToSleep(&LazyDropCtl->settled_cv);
	(void) ConditionVariableTimedSleep(&LazyDropCtl->settled_cv, 100,
									   LazyDropCtl->wait_event_settle);
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
 * Called before storage is created under a name that may be buried, by itself
 * or with its database.  The caller must not hold an LWLock or hold off
 * interrupts.  Replay calls this for every record that refers to a relation.
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
 * Called before a database, or one of its directories, is created.  Settles
 * all entries of the database, including entries of its relations.
 */
void
LazyDropSettleDatabase(Oid dboid)
{
	if (!LazyDropNothingPending())
		CountReuseWait(SettleMatching(MatchesDatabase, &dboid, false));
}

/*
 * Called before a database is moved to a tablespace.  Settles its entries
 * there.  Entries in other tablespaces are left alone, because a session may
 * keep one of their buffers pinned for a long time.
 */
void
LazyDropSettleDirectory(Oid spcoid, Oid dboid)
{
	RelFileLocator directory = {spcoid, dboid, InvalidRelFileNumber};

	if (!LazyDropNothingPending())
		CountReuseWait(SettleMatching(MatchesDirectory, &directory, false));
}

/*
 * Settle a directory of a database, as LazyDropSettleDirectory does.  Also
 * invalidate all buffers that the database has there, whether buried or not,
 * and forget the sync requests for its files there (rule R2).
 *
 * Called by replay of CREATE DATABASE by file copy, which does not create
 * relations one by one.  Normally nothing has that name, and without a
 * directory, only entries have pages.  But the primary may have crashed with
 * files there that nothing refers to, whose pages and requests a standby has.
 */
void
LazyDropInvalidateDatabase(Oid spcoid, Oid dboid)
{
	RelFileLocator locator = {spcoid, dboid, InvalidRelFileNumber};
	char	   *path = GetDatabasePath(dboid, spcoid);
	struct stat st;
	bool		is_new = lstat(path, &st) < 0 && errno == ENOENT;

	pfree(path);
	LazyDropSettleDirectory(spcoid, dboid);
	if (is_new)
		return;
	while (!LazyDropPassForDirectory(&locator))
	{
		if (!LazyDropConflictWithPin())
			pg_usleep(10000L);
		(void) SettlePause(0);
	}
	CloseFiles();
	LazyDropForgetDirectorySyncRequests(spcoid, dboid);
}

/* ---------------------------------------------------------------------
 * Processes that need files gone (rules R10 and R16)
 * ---------------------------------------------------------------------
 */

/*
 * Called before the directories of a database are copied.  Hides its dropped
 * files, so that they are not copied with the rest (rule R10).
 */
void
LazyDropHideDatabase(Oid dboid)
{
	if (!LazyDropNothingPending())
		(void) LazyDropHideAll(MatchesDatabase, &dboid, SettlePause,
							   LazyDropCtl->wait_event_settle);
}

/*
 * Called before a tablespace is dropped.  Removes the files that are pending
 * in it now, and files that earlier runs of the server have hidden there,
 * which the worker may not have found yet.  In replay, "lsn" is the end of the
 * record, and the minimum recovery point is moved past it (rule R10).
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
		ClearFiles(MatchesTablespace, &spcoid, LazyDropLastSerial());
}

/*
 * Called at the end of recovery, before unlogged relations are reset.  Hides
 * the files of all entries, which remain pending (rule R16).  Without a
 * worker, makes one pass.
 */
void
LazyDropEndRecovery(void)
{
	bool		worker;

	LazyDropEndFileCopies();
	if (LazyDropNothingPending())
		return;
	worker = LazyDropHaveWorker();
	(void) LazyDropHideAll(NULL, NULL, SettlePause,
						   LazyDropCtl->wait_event_settle);
	if (!worker)
		(void) LazyDropPass(0, NULL, NULL);
}

/* ---------------------------------------------------------------------
 * Users
 * ---------------------------------------------------------------------
 */

/*
 * Wait until everything that is pending now is settled.  Requests that the
 * worker does not wait for lazydrop.pass_delay; without a worker, other
 * processes may do the work (rule R6).  Returns false after "timeout_ms"
 * milliseconds; a negative value means no limit.  The wait can be cancelled.
 * In all cases, the request to the worker stands.
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
		/* Prepare before looking, so that later changes wake us up. */
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
