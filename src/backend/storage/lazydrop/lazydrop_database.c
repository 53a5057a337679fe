/*-------------------------------------------------------------------------
 *
 * lazydrop_database.c
 *	  DROP DATABASE and its replay (rules R2, R10 and R11).
 *
 * A database is buried as a whole, with an entry for each of its tablespaces.
 * DROP DATABASE writes its record before it removes anything, so it needs no
 * checkpoint.  It does not wait until the directories can be removed: their
 * entries do.
 *
 * Copyright (c) 2026, LazyDrop developers
 *
 * IDENTIFICATION
 *	  src/backend/storage/lazydrop/lazydrop_database.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include <sys/stat.h>

#include "access/heapam.h"
#include "access/htup_details.h"
#include "access/table.h"
#include "access/xlog.h"
#include "access/xlog_internal.h"
#include "access/xloginsert.h"
#include "access/xlogrecovery.h"
#include "catalog/pg_tablespace.h"
#include "commands/dbcommands_xlog.h"
#include "miscadmin.h"
#include "postmaster/bgwriter.h"
#include "storage/bufmgr.h"
#include "storage/ipc.h"
#include "storage/lazydrop.h"
#include "storage/lazydrop_internal.h"
#include "storage/md.h"
#include "storage/proc.h"
#include "storage/procsignal.h"

/* database that this process creates, and its first record (rule R11) */
static Oid	created_dboid = InvalidOid;
static XLogRecPtr created_lsn;

/* whether this process has buried directories and not released their files */
static bool burying = false;

/* whether replay of a drop defers the removal of its directories */
static bool redo_deferred = false;

/* the directories of a dropped database, and the end of the record */
typedef struct Directories
{
	RelFileLocator *locators;
	int			n;
	XLogRecPtr	lsn;
} Directories;

/* ---------------------------------------------------------------------
 * Relation maps, whose replay needs the directory (rule R11)
 * ---------------------------------------------------------------------
 */

/*
 * Called right after the insertion of a record, if there is one, that creates
 * the directory of a new database.
 */
void
LazyDropDirectoryLogged(Oid dboid)
{
	created_dboid = dboid;
	created_lsn = ProcLastRecPtr;
	LAZYDROP_INJECTION_POINT("lazydrop-directory-logged");
}

/*
 * Called in a critical section by a process that has just inserted a record of
 * a relation map.  Notes it for DROP DATABASE (rule R11), unless the database
 * is new and replay also meets the record that creates its directory.
 */
void
LazyDropRelmapLogged(Oid dboid)
{
	bool		replay_creates;

	if (LazyDropCtl == NULL || !OidIsValid(dboid))
		return;

	/*
	 * Inserting the record has updated our copy of the redo pointer.  A redo
	 * pointer that is newer than both records does no harm.
	 */
	replay_creates = dboid == created_dboid && GetRedoRecPtr() <= created_lsn;
	created_dboid = InvalidOid;
	if (!replay_creates)
		(void) pg_atomic_monotonic_advance_u64(&LazyDropCtl->last_relmap_record,
											   ProcLastRecPtr);
}

/*
 * Return whether replay, if the server crashed now, might begin between the
 * creation of a database's directory and a record of its relation map (rule
 * R11).  No session uses the database.  Records of other databases count as
 * well: they are rare, and an unneeded checkpoint does no harm.
 * (GetXLogReplayRecPtr returns where recovery ended, or 0 if there was none.)
 */
static bool
ReplayNeedsDirectory(void)
{
	XLogRecPtr	redo;
	TimeLineID	tli;

	GetOldestRestartPoint(&redo, &tli);
	return pg_atomic_read_membarrier_u64(&LazyDropCtl->last_relmap_record) >= redo ||
		GetXLogReplayRecPtr(NULL) > redo;
}

/* ---------------------------------------------------------------------
 * Sync requests that the checkpointer absorbs (rule R11)
 * ---------------------------------------------------------------------
 */

/*
 * Called by the checkpointer after it has absorbed the requests that were in
 * the queue when it began.
 */
void
LazyDropRequestsAbsorbed(void)
{
	if (LazyDropCtl == NULL)
		return;
	pg_atomic_fetch_add_u64(&LazyDropCtl->absorptions, 1);
	ConditionVariableBroadcast(&LazyDropCtl->absorbed_cv);
}

/*
 * Return the number of absorptions after which the checkpointer has absorbed
 * all requests that this process has sent until now (rule R11).  An absorption
 * in progress may have emptied the queue before, so one more is needed.
 */
static uint64
EnoughAbsorptions(void)
{
	return pg_atomic_read_membarrier_u64(&LazyDropCtl->absorptions) + 2;
}

static void
WaitForAbsorption(void)
{
	uint64		enough = EnoughAbsorptions();

	ConditionVariablePrepareToSleep(&LazyDropCtl->absorbed_cv);
	while (pg_atomic_read_u64(&LazyDropCtl->absorptions) < enough)
	{
		LazyDropWakeCheckpointer();
		(void) ConditionVariableTimedSleep(&LazyDropCtl->absorbed_cv, 10,
										   LazyDropCtl->wait_event_forget);
	}
	ConditionVariableCancelSleep();
}

/* ---------------------------------------------------------------------
 * DROP DATABASE
 * ---------------------------------------------------------------------
 */

/*
 * Bury a database in all these tablespaces, or in none if not all fit (rule
 * R6).  "files" is the state of the files in the first ndirs directories.
 * Returns whether it is buried.  If so, LazyDropWaitForIO must follow.
 */
static bool
BuryDatabase(const RelFileLocator *locators, int n, LazyDropFiles files,
			 int ndirs, XLogRecPtr lsn)
{
	bool		fits = LazyDropAddEntries(locators, n, files, ndirs, lsn);

	if (fits)
		LazyDropCount(LAZYDROP_DEFERRED_DATABASES, 1);
	else
		LazyDropFallBack(1, true);
	return fits;
}

/*
 * Find the directories of a database that DROP DATABASE drops.  Returns an
 * array of locators, one for each tablespace but the global one: there may be
 * buffers even if a directory has been lost.  Existing directories come first.
 */
static RelFileLocator *
DatabaseDirectories(Oid dboid, int *nlocators, int *ndirectories)
{
	Relation	rel;
	TableScanDesc scan;
	HeapTuple	tuple;
	RelFileLocator *locators = NULL;
	int			n = 0;
	int			ndirs = 0;
	int			room = 16;

	locators = palloc_array(RelFileLocator, room);
	rel = table_open(TableSpaceRelationId, AccessShareLock);
	scan = table_beginscan_catalog(rel, 0, NULL);
	while ((tuple = heap_getnext(scan, ForwardScanDirection)) != NULL)
	{
		Oid			spcoid = ((Form_pg_tablespace) GETSTRUCT(tuple))->oid;
		RelFileLocator locator = {spcoid, dboid, InvalidRelFileNumber};
		char	   *path;
		struct stat st;

		if (spcoid == GLOBALTABLESPACE_OID)
			continue;
		if (n == room)
		{
			room *= 2;
			locators = repalloc_array(locators, RelFileLocator, room);
		}
		path = GetDatabasePath(dboid, spcoid);
		if (lstat(path, &st) == 0 && S_ISDIR(st.st_mode))
		{
			locators[n++] = locators[ndirs];
			locators[ndirs++] = locator;
		}
		else
			locators[n++] = locator;
		pfree(path);
	}
	table_endscan(scan);
	table_close(rel, AccessShareLock);

	*nlocators = n;
	*ndirectories = ndirs;
	return locators;
}

/*
 * Insert and flush the record that drops directories of a database.  Returns
 * its end.
 */
static XLogRecPtr
LogDatabaseDrop(Oid dboid, const RelFileLocator *directories, int n)
{
	xl_dbase_drop_rec xlrec;
	XLogRecPtr	lsn;
	Oid		   *tablespaces = palloc_array(Oid, n);

	for (int i = 0; i < n; i++)
		tablespaces[i] = directories[i].spcOid;

	xlrec.db_id = dboid;
	xlrec.ntablespaces = n;
	XLogBeginInsert();
	XLogRegisterData((char *) &xlrec, MinSizeOfDbaseDropRec);
	XLogRegisterData((char *) tablespaces, n * sizeof(Oid));
	lsn = XLogInsert(RM_DBASE_ID, XLOG_DBASE_DROP | XLR_SPECIAL_REL_UPDATE);
	XLogFlush(lsn);
	pfree(tablespaces);
	return lsn;
}

/*
 * Do the same for the old directory in ALTER DATABASE SET TABLESPACE.
 */
XLogRecPtr
LazyDropLogOldDirectory(Oid dboid, Oid spcoid)
{
	RelFileLocator directory = {spcoid, dboid, InvalidRelFileNumber};

	return LogDatabaseDrop(dboid, &directory, 1);
}

/*
 * Leave directories to other processes.  This process has buried them and has
 * forgotten their sync requests.  It does not wait until the checkpointer has
 * absorbed that, and all processes have closed their files; the entries do.  A
 * checkpoint that begins meanwhile hides the files.
 */
static void
LeaveDirectories(const RelFileLocator *locators, int n)
{
	uint64		enough = EnoughAbsorptions();
	uint64		barrier = EmitProcSignalBarrier(PROCSIGNAL_BARRIER_SMGRRELEASE);

	LazyDropRequestsForgotten(locators, n, false, barrier, enough);
}

/*
 * Remove directories whose removal is not deferred.
 *
 * A base backup that has begun meanwhile may contain part of them, and is
 * replayed from after the record.  If so, the record is written again.
 */
static void
RemoveDirectories(const Directories *dirs)
{
	for (int i = 0; i < dirs->n; i++)
		LazyDropRemoveDatabaseDirectory(dirs->locators[i].spcOid,
										dirs->locators[i].dbOid);
	if (dirs->n > 0 && GetRedoRecPtr() >= dirs->lsn)
		(void) LogDatabaseDrop(dirs->locators[0].dbOid, dirs->locators, dirs->n);
}

static void
RemoveDirectoriesOnExit(int code, Datum arg)
{
	LWLockReleaseAll();
	RemoveDirectories((const Directories *) DatumGetPointer(arg));
}

/*
 * Do DROP DATABASE's work on buffers, files and WAL, without a checkpoint
 * (rule R11).  The database has been durably marked invalid, and no session
 * uses it or can begin to.  Returns false, having done nothing, if the caller
 * must do the same as stock.
 *
 * The record comes first.  So replay forgives references to missing files,
 * however far the removal has come when the server crashes.  From the record
 * to the burial, no checkpoint may begin.  It could complete without having
 * seen that there are files to remove whose record will not be replayed.
 *
 * Replay does not forgive a relation map whose directory is missing.  In the
 * rare case that it might meet one, a checkpoint is made after all.
 *
 * Once the record is written, the directories are gone, also on standbys.  So
 * interrupts are held off until they have been left to others.  If their
 * removal is not deferred, an interrupt ends the wait, and they are still
 * removed.  Then the transaction is rolled back, and leaves an invalid
 * database, which can only be dropped again, as in stock.
 */
bool
LazyDropDropDatabase(Oid dboid)
{
	RelFileLocator *locators;
	LazyDropFiles files;
	int			nlocators;
	Directories dirs;
	bool		buried = false;

	if (!lazydrop_enabled || LazyDropCtl == NULL || !IsUnderPostmaster)
		return false;
	if (ReplayNeedsDirectory())
	{
		/* As in stock, so that a problem with its files is no obstacle. */
		DropDatabaseBuffers(dboid);
		ForgetDatabaseSyncRequests(dboid);
		RequestCheckpoint(CHECKPOINT_IMMEDIATE | CHECKPOINT_FORCE |
						  CHECKPOINT_WAIT);
	}

	locators = DatabaseDirectories(dboid, &nlocators, &dirs.n);
	dirs.locators = palloc_array(RelFileLocator, Max(dirs.n, 1));
	memcpy(dirs.locators, locators, dirs.n * sizeof(RelFileLocator));
	dirs.lsn = InvalidXLogRecPtr;

	Assert((MyProc->delayChkptFlags & DELAY_CHKPT_START) == 0);
	HOLD_INTERRUPTS();
	MyProc->delayChkptFlags |= DELAY_CHKPT_START;
	if (dirs.n > 0)
		dirs.lsn = LogDatabaseDrop(dboid, locators, dirs.n);
	LAZYDROP_INJECTION_POINT("lazydrop-database-logged");
	files = LazyDropFilesOfBurial(locators, dirs.n, dirs.lsn);
	if (LazyDropMayBury(1))
		buried = BuryDatabase(locators, nlocators, files, dirs.n, dirs.lsn);
	burying = buried && files != LAZYDROP_FILES_NONE;
	MyProc->delayChkptFlags &= ~DELAY_CHKPT_START;

	if (buried)
	{
		qsort(locators, nlocators, sizeof(RelFileLocator),
			  LazyDropCompareLocators);
		LazyDropWaitForIO(locators, nlocators);
	}
	else
		DropDatabaseBuffers(dboid);

	/*
	 * If there is no room for the request, a process in a critical section
	 * waits, and does not compact the queue, which needs memory.
	 */
	START_CRIT_SECTION();
	ForgetDatabaseSyncRequests(dboid);
	END_CRIT_SECTION();
	if (burying)
	{
		LeaveDirectories(dirs.locators, dirs.n);
		burying = false;
		RESUME_INTERRUPTS();
		LAZYDROP_INJECTION_POINT("lazydrop-database-forgotten");
	}
	else
	{
		PG_ENSURE_ERROR_CLEANUP(RemoveDirectoriesOnExit, PointerGetDatum(&dirs));
		{
			RESUME_INTERRUPTS();
			LAZYDROP_INJECTION_POINT("lazydrop-database-forgotten");

			/* Wait for the checkpointer, and for others to close files. */
			WaitForAbsorption();
			WaitForProcSignalBarrier(EmitProcSignalBarrier(PROCSIGNAL_BARRIER_SMGRRELEASE));
		}
		PG_END_ENSURE_ERROR_CLEANUP(RemoveDirectoriesOnExit, PointerGetDatum(&dirs));
		RemoveDirectories(&dirs);
	}

	pfree(dirs.locators);
	pfree(locators);
	return true;
}

/*
 * Give up the files of a database if DROP DATABASE fails.
 */
void
LazyDropDatabaseXactCallback(XactEvent event, void *arg)
{
	if (event == XACT_EVENT_ABORT && burying)
	{
		burying = false;
		LazyDropGiveUpFiles();
	}
}

/* ---------------------------------------------------------------------
 * Replay
 * ---------------------------------------------------------------------
 */

/*
 * Return the directories that a record names, as locators.
 */
static RelFileLocator *
Locators(Oid dboid, int ntablespaces, const Oid *tablespaces)
{
	RelFileLocator *locators = palloc_array(RelFileLocator, ntablespaces);

	for (int i = 0; i < ntablespaces; i++)
	{
		locators[i].spcOid = tablespaces[i];
		locators[i].dbOid = dboid;
		locators[i].relNumber = InvalidRelFileNumber;
	}
	return locators;
}

/*
 * Bury a database in replay, in exactly the tablespaces that the record names:
 * after ALTER DATABASE SET TABLESPACE, the database lives on in another one
 * (rule R4).  Returns false if the caller must drop its buffers as in stock.
 *
 * "lsn" is the end of the record.  The minimum recovery point must be past it
 * before files are removed (rule R10).
 */
bool
LazyDropBuryDatabaseRedo(Oid dboid, int ntablespaces, const Oid *tablespaces,
						 XLogRecPtr lsn)
{
	RelFileLocator *locators;
	LazyDropFiles files;
	bool		buried;

	redo_deferred = false;
	XLogFlush(lsn);
	if (ntablespaces == 0 || !LazyDropMayBury(1))
		return false;

	locators = Locators(dboid, ntablespaces, tablespaces);
	files = LazyDropFilesOfBurial(locators, ntablespaces, InvalidXLogRecPtr);
	buried = BuryDatabase(locators, ntablespaces, files, ntablespaces,
						  InvalidXLogRecPtr);
	if (buried)
	{
		redo_deferred = files != LAZYDROP_FILES_NONE;
		qsort(locators, ntablespaces, sizeof(RelFileLocator),
			  LazyDropCompareLocators);
		LazyDropWaitForIO(locators, ntablespaces);
	}
	pfree(locators);
	return buried;
}

/*
 * Called in replay of the removal of a database's directories, after their
 * sync requests have been forgotten and before the barrier.  If the removal is
 * deferred, leave it and the barrier to other processes, and return true.
 */
bool
LazyDropDeferDirectories(Oid dboid, int ntablespaces, const Oid *tablespaces)
{
	RelFileLocator *locators;

	if (!redo_deferred)
		return false;
	locators = Locators(dboid, ntablespaces, tablespaces);
	LeaveDirectories(locators, ntablespaces);
	pfree(locators);
	return true;
}

/*
 * Forget the sync requests for the files of a database in one tablespace.
 */
void
LazyDropForgetDirectorySyncRequests(Oid spcoid, Oid dboid)
{
	RelFileLocator locator = {spcoid, dboid, InvalidRelFileNumber};

	LazyDropRequestForFile(SYNC_FILTER_REQUEST, &locator, InvalidForkNumber,
						   InvalidBlockNumber);
}

/*
 * In replay of the removal of a database's directories, forget the sync
 * requests for files in these only (rule R2).  Stock forgets all of the
 * database's requests, so if it is moved, files that live on in third
 * tablespaces are not synced.  A dropped database has no other files, and may
 * have very many directories, so stock's single request is used.
 */
void
LazyDropForgetSyncRequests(Oid dboid, int ntablespaces, const Oid *tablespaces)
{
	if (ntablespaces == 1)
		LazyDropForgetDirectorySyncRequests(tablespaces[0], dboid);
	else
		ForgetDatabaseSyncRequests(dboid);
}
