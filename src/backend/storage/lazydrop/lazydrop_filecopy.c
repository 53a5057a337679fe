/*-------------------------------------------------------------------------
 *
 * lazydrop_filecopy.c
 *	  Replay of copies of databases, and restartpoints after them (rule R17).
 *
 * The record of a copy (XLOG_DBASE_CREATE_FILE_COPY) names a directory.  A
 * server that crashes replays it again if the last restartpoint is before it,
 * and copies what the directory has then.  So when replay has copied a
 * database, it does not change it before a restartpoint has passed the copy.
 * See doc/upstream/moved-database.md.
 *
 * To make that restartpoint at once and wait for it would be enough, but costs
 * a write of everything that is dirty for each copy.  Most sources do not
 * change soon: they are templates.  So replay asks for a restartpoint, which
 * takes its time, and goes on.  It waits before a record that changes a source.
 *
 * All variables are the startup process's own.
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
 * A database of which files have been copied.
 */
typedef struct CopiedDatabase
{
	Oid			dboid;			/* or ANY_DATABASE */
	XLogRecPtr	end;			/* end of the record of the last copy */
} CopiedDatabase;

/*
 * Databases that are remembered; usually, they are a few templates.  When the
 * last element is needed, it stands for all databases.
 */
#define MAX_COPIED_DATABASES	16
#define ANY_DATABASE			InvalidOid

/* Replay goes on when this many restartpoints have failed, one each second. */
#define MAX_FAILURES			10

int			lazydrop_copied_databases = 0;
static CopiedDatabase copied[MAX_COPIED_DATABASES];

/*
 * Redo pointers of the last checkpoint from which a restartpoint can be made,
 * and of the last one from which one has been asked for.  Only checkpoints that
 * are replayed while there are copied databases count.
 */
static XLogRecPtr possible_redo = InvalidXLogRecPtr;
static XLogRecPtr requested_redo = InvalidXLogRecPtr;

/* where replay would begin after a crash */
static XLogRecPtr
RestartPoint(void)
{
	XLogRecPtr	redo;
	TimeLineID	tli;

	GetOldestRestartPoint(&redo, &tli);
	return redo;
}

/*
 * Forget copies that end at "redo" or before, and will not be replayed again.
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
 * Replay has copied files of a database; "end" is the end of the record.
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
 * Replay of a checkpoint record, with this redo pointer, has noted that a
 * restartpoint can be made from it.  Ask for that if it is the first one past a
 * copy.  It is not an immediate one.  That would write all dirty buffers while
 * replay reads and writes, and the next copy would wait, in its barrier, for the
 * restartpoint's syncs.
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
 * Whether a commit or an abort drops relations of a database.
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
 * Whether replay of a record may change files of a database.
 *
 * A record that changes pages of a relation refers to at least one of its
 * blocks.  The resource managers that are not named here do nothing else to
 * databases.  Those of extensions and of later major versions may do anything.
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
			/* the directory of any database may be there */
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
 * If restartpoints fail again and again, because of a disk with errors, say,
 * replay goes on, as it does in stock.  A standby that stands still would be of
 * no use for a failover.  The next checkpoint record is the next chance.
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

	/* A restartpoint that is under way makes haste, too. */
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
 * Before a record is replayed while there are copied databases: if it changes
 * one of them, wait until replay cannot begin before the copy again (rule R17).
 *
 * If no checkpoint record past the copy has been replayed, a restartpoint from
 * the last possible one passes earlier copies of that database.  For this copy
 * there is nothing to wait for: its transaction has not committed, or replay
 * has not been consistent yet.
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
 * Recovery ends.  A promoted server makes its first checkpoint while sessions
 * may change any database, so wait as for a change of all of them.  Otherwise a
 * checkpoint comes before any session.
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
 * The checkpointer has failed to make a checkpoint or a restartpoint.
 */
void
LazyDropCheckPointFailed(void)
{
	pg_atomic_fetch_add_u64(&LazyDropCtl->failed_checkpoints, 1);
}
