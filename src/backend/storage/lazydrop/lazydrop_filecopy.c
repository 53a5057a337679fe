/*-------------------------------------------------------------------------
 *
 * lazydrop_filecopy.c
 *	  Replay of database copies, and restartpoints after them (rule R17).
 *
 * The record of a copy (XLOG_DBASE_CREATE_FILE_COPY) only names a directory.
 * If the server crashes, and its last restartpoint is before the record,
 * replay copies the directory again, with the contents that it has then.  So
 * after replay has copied a database, it does not change the database before a
 * restartpoint has passed the copy.  See doc/upstream/moved-database.md.
 *
 * It would be enough to make that restartpoint at once and wait for it, but
 * that would write all dirty buffers for each copy.  Most sources do not
 * change soon, because they are templates.  So replay requests a restartpoint,
 * which takes its time, and continues.  It waits before a record that changes
 * a source.
 *
 * All variables are local to the startup process.
 *
 * Copyright (c) 2026, LazyDrop developers
 *
 * IDENTIFICATION
 *	  src/backend/storage/lazydrop/lazydrop_filecopy.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/rmgr.h"
#include "access/xact.h"
#include "access/xlog.h"
#include "access/xlog_internal.h"
#include "access/xlogreader.h"
#include "access/xlogrecovery.h"
#include "catalog/storage_xlog.h"
#include "commands/dbcommands_xlog.h"
#include "commands/tablespace.h"
#include "miscadmin.h"
#include "postmaster/bgwriter.h"
#include "postmaster/startup.h"
#include "storage/latch.h"
#include "storage/lazydrop.h"
#include "storage/lazydrop_internal.h"
#include "utils/relmapper.h"

/*
 * A database whose files have been copied.
 */
typedef struct CopiedDatabase
{
	Oid			dboid;			/* or ANY_DATABASE */
	XLogRecPtr	end;			/* end of the record of the last copy */
} CopiedDatabase;

/*
 * Maximum number of databases to remember.  Usually, these are a few
 * templates.  If the last element is needed, it stands for all databases.
 */
#define MAX_COPIED_DATABASES	16
#define ANY_DATABASE			InvalidOid

/* Replay continues after this many failed restartpoints, one per second. */
#define MAX_FAILURES			10

int			lazydrop_copied_databases = 0;
static CopiedDatabase copied[MAX_COPIED_DATABASES];

/*
 * Redo pointers of the last checkpoint from which a restartpoint can be made,
 * and of the last one from which one has been requested.  Only checkpoints
 * that are replayed while there are copied databases count.
 */
static XLogRecPtr possible_redo = InvalidXLogRecPtr;
static XLogRecPtr requested_redo = InvalidXLogRecPtr;

/* Return where replay would begin after a crash. */
static XLogRecPtr
RestartPoint(void)
{
	XLogRecPtr	redo;
	TimeLineID	tli;

	GetOldestRestartPoint(&redo, &tli);
	return redo;
}

/*
 * Forget copies that end at or before "redo", which are not replayed again.
 */
static void
ForgetCopies(XLogRecPtr redo)
{
	int			n = 0;

	for (int i = 0; i < lazydrop_copied_databases; i++)
	{
		if (copied[i].end > redo)
			copied[n++] = copied[i];
	}
	lazydrop_copied_databases = n;
}

/*
 * Called when replay of a record that ends at "end" has copied a database.
 *
 * Without archive recovery there is no restartpoint, and the transaction that
 * made the copy has not committed: the primary makes a checkpoint before.
 */
void
LazyDropFileCopyReplayed(Oid dboid, XLogRecPtr end)
{
	int			i = 0;

	if (!ArchiveRecoveryRequested || !IsUnderPostmaster)
		return;
	while (i < lazydrop_copied_databases &&
		   copied[i].dboid != dboid && copied[i].dboid != ANY_DATABASE)
		i++;
	if (i == lazydrop_copied_databases)
	{
		Assert(i < MAX_COPIED_DATABASES);
		copied[i].dboid = i < MAX_COPIED_DATABASES - 1 ? dboid : ANY_DATABASE;
		lazydrop_copied_databases++;
	}
	copied[i].end = end;
}

/*
 * Called when replay of a checkpoint record, with this redo pointer, has noted
 * that a restartpoint can be made from it.  Requests that if it is the first
 * one past a copy.  It is not immediate, since that would write all dirty
 * buffers while replay reads and writes, and the next copy would wait, in its
 * barrier, for the restartpoint's syncs.
 */
void
LazyDropCheckPointReplayed(XLogRecPtr redo)
{
	bool		request = false;

	if (lazydrop_copied_databases == 0)
		return;
	ForgetCopies(RestartPoint());
	if (lazydrop_copied_databases == 0)
		return;
	possible_redo = redo;
	for (int i = 0; i < lazydrop_copied_databases; i++)
	{
		if (copied[i].end > requested_redo && copied[i].end <= redo)
			request = true;
	}
	if (request && InArchiveRecovery)
	{
		RequestCheckpoint(0);
		requested_redo = redo;
	}
}

/*
 * Return whether a commit or an abort drops relations of a database.
 */
static bool
DropsRelationsOf(XLogReaderState *record, Oid dboid)
{
	uint8		info = XLogRecGetInfo(record) & XLOG_XACT_OPMASK;
	xl_xact_parsed_commit commit;
	xl_xact_parsed_abort abort;
	RelFileLocator *locators;
	int			n;

	if (info == XLOG_XACT_COMMIT || info == XLOG_XACT_COMMIT_PREPARED)
	{
		ParseCommitRecord(XLogRecGetInfo(record),
						  (xl_xact_commit *) XLogRecGetData(record), &commit);
		locators = commit.xlocators;
		n = commit.nrels;
	}
	else if (info == XLOG_XACT_ABORT || info == XLOG_XACT_ABORT_PREPARED)
	{
		ParseAbortRecord(XLogRecGetInfo(record),
						 (xl_xact_abort *) XLogRecGetData(record), &abort);
		locators = abort.xlocators;
		n = abort.nrels;
	}
	else
		return false;
	for (int i = 0; i < n; i++)
	{
		if (dboid == ANY_DATABASE || locators[i].dbOid == dboid)
			return true;
	}
	return false;
}

/*
 * Return whether replay of a record may change files of a database.
 *
 * A record that changes pages of a relation refers to at least one of its
 * blocks.  Resource managers that are not handled here do nothing else to
 * databases.  Those from extensions and later major versions may do anything.
 */
static bool
Changes(XLogReaderState *record, Oid dboid)
{
	uint8		info = XLogRecGetInfo(record) & ~XLR_INFO_MASK;
	char	   *data = XLogRecGetData(record);
	Oid			changed = InvalidOid;

	if (XLogRecGetRmid(record) > RM_LOGICALMSG_ID)
		return true;
	switch (XLogRecGetRmid(record))
	{
		case RM_XACT_ID:
			return DropsRelationsOf(record, dboid);

		case RM_SMGR_ID:
			if (info == XLOG_SMGR_CREATE)
				changed = ((xl_smgr_create *) data)->rlocator.dbOid;
			else
			{
				Assert(info == XLOG_SMGR_TRUNCATE);
				changed = ((xl_smgr_truncate *) data)->rlocator.dbOid;
			}
			break;

		case RM_DBASE_ID:
			/* the target of a copy, not its source */
			if (info == XLOG_DBASE_CREATE_FILE_COPY)
				changed = ((xl_dbase_create_file_copy_rec *) data)->db_id;
			else if (info == XLOG_DBASE_CREATE_WAL_LOG)
				changed = ((xl_dbase_create_wal_log_rec *) data)->db_id;
			else
			{
				Assert(info == XLOG_DBASE_DROP);
				changed = ((xl_dbase_drop_rec *) data)->db_id;
			}
			break;

		case RM_RELMAP_ID:
			changed = ((xl_relmap_update *) data)->dbid;
			break;

		case RM_TBLSPC_ID:
			/* any database may have a directory there */
			return info == XLOG_TBLSPC_DROP;
	}
	if (OidIsValid(changed) && (dboid == ANY_DATABASE || changed == dboid))
		return true;

	for (int i = 0; i <= XLogRecMaxBlockId(record); i++)
	{
		RelFileLocator locator;

		if (!XLogRecGetBlockTagExtended(record, i, &locator, NULL, NULL, NULL))
			continue;
		if (dboid == ANY_DATABASE ?
			OidIsValid(locator.dbOid) : locator.dbOid == dboid)
			return true;
	}
	return false;
}

/*
 * Wait until a restartpoint has this redo pointer or a later one.  The
 * checkpointer needs nothing that the startup process holds.
 *
 * If restartpoints fail repeatedly, for example because of disk errors, replay
 * continues, as in stock.  A standby that does not replay would be useless for
 * a failover.  The next checkpoint record is the next chance.
 */
static void
WaitForRestartPoint(XLogRecPtr redo)
{
	uint64		failed = pg_atomic_read_u64(&LazyDropCtl->failed_checkpoints);
	int			nfailures = 0;

	if (RestartPoint() >= redo)
		return;
	ereport(LOG,
			(errmsg("recovery waits for a restartpoint at %X/%X or later",
					LSN_FORMAT_ARGS(redo)),
			 errdetail("Files of a database have been copied, and must not be copied again when it has changed.")));

	/* This also speeds up a restartpoint that is in progress. */
	RequestCheckpoint(CHECKPOINT_IMMEDIATE);
	while (RestartPoint() < redo)
	{
		uint64		failed_now = pg_atomic_read_u64(&LazyDropCtl->failed_checkpoints);

		ProcessStartupProcInterrupts();
		if (failed_now != failed)
		{
			if (++nfailures == MAX_FAILURES)
			{
				ereport(WARNING,
						(errmsg("recovery continues without a restartpoint at %X/%X or later",
								LSN_FORMAT_ARGS(redo)),
						 errdetail("If the server crashes before the next restartpoint, recovery copies the files of a changed database."),
						 errhint("Consult recent messages in the server log for details.")));
				possible_redo = requested_redo = InvalidXLogRecPtr;
				return;
			}
			failed = failed_now;
			RequestCheckpoint(CHECKPOINT_IMMEDIATE);
		}
		(void) WaitLatch(NULL, WL_TIMEOUT | WL_EXIT_ON_PM_DEATH, 10,
						 LazyDropCtl->wait_event_restartpoint);
	}
}

/*
 * Called before replay of a record while there are copied databases.  If it
 * changes one, wait until replay cannot begin before the copy again (rule
 * R17).
 *
 * If no checkpoint record past the copy has been replayed, a restartpoint from
 * the last possible one passes earlier copies of that database.  This copy
 * needs no wait: its transaction has not committed, or replay is not
 * consistent yet.
 */
void
LazyDropBeforeChange(XLogReaderState *record)
{
	XLogRecPtr	end = InvalidXLogRecPtr;

	if (!InArchiveRecovery)
		return;
	for (int i = 0; i < lazydrop_copied_databases; i++)
	{
		if (copied[i].end > end && Changes(record, copied[i].dboid))
			end = copied[i].end;
	}
	if (XLogRecPtrIsInvalid(end))
		return;
	WaitForRestartPoint(Min(end, possible_redo));
	ForgetCopies(RestartPoint());
}

/*
 * Called at the end of recovery.  A promoted server makes its first checkpoint
 * while sessions may change any database, so wait as before a change to all of
 * them.  Otherwise, there is a checkpoint before any session.
 */
void
LazyDropEndFileCopies(void)
{
	XLogRecPtr	end = InvalidXLogRecPtr;

	if (!PromoteIsTriggered())
		return;
	for (int i = 0; i < lazydrop_copied_databases; i++)
		end = Max(end, copied[i].end);
	WaitForRestartPoint(Min(end, possible_redo));
}

/*
 * Called by the checkpointer when a checkpoint or a restartpoint has failed.
 */
void
LazyDropCheckPointFailed(void)
{
	pg_atomic_fetch_add_u64(&LazyDropCtl->failed_checkpoints, 1);
}
