/*-------------------------------------------------------------------------
 *
 * lazydrop_database.c
 *	  DROP DATABASE, and replay of it (rules R2, R10 and R11).
 *
 * A database is buried as a whole, with an entry for each of its tablespaces.  DROP
 * DATABASE writes its record before anything is removed, and so needs no checkpoint.
 * It does not wait until the directories can be removed: their entries do.
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

/* the database that this process creates, and its first record, for rule R11 */
static Oid	created_dboid = InvalidOid;
static XLogRecPtr created_lsn;

/* whether this process has buried directories whose files it has not released yet */
static bool burying = false;

/* whether the removal of the directories that are dropped in replay is deferred */
static bool redo_deferred = false;

/* the directories of a database that is dropped, and the end of the record */
typedef struct Directories
{
	RelFileLocator *locators;
	int			n;
	XLogRecPtr	lsn;
} Directories;

/* ---------------------------------------------------------------------
 * Relation maps, of which replay needs the directory (rule R11)
 * ---------------------------------------------------------------------
 */

/*
 * Called right after the record that creates the directory of a new database, when
 * there is one.
 */
void
LazyDropDirectoryLogged(Oid dboid)
{
	created_dboid = dboid;
	created_lsn = ProcLastRecPtr;
	LAZYDROP_INJECTION_POINT("lazydrop-directory-logged");
}

/*
 * Called right after a record of a relation map, by the process that has inserted it,
 * in a critical section: notes it for DROP DATABASE (rule R11), unless it is that of a
 * new database and replay meets the record that creates the directory, too.
 */
void
LazyDropRelmapLogged(Oid dboid)
{
	bool		replay_creates;

	if (LazyDropCtl == NULL || !OidIsValid(dboid))
		return;

	/*
	 * To insert the record, we have brought our copy of the redo pointer up
	 * to date.  A redo pointer that is newer than both records does no harm.
	 */
	replay_creates = dboid == created_dboid && GetRedoRecPtr() <= created_lsn;
	created_dboid = InvalidOid;
	if (!replay_creates)
		(void) pg_atomic_monotonic_advance_u64(&LazyDropCtl->last_relmap_record,
											   ProcLastRecPtr);
}

/*
 * Whether replay, if the server crashed now, might begin between what creates the
 * directory of a database and a record of its relation map (rule R11).  No session
 * uses the database.  Records of other databases count as well: they are rare, and a
 * checkpoint that is not needed does no harm.  (What has been replayed is where recovery ended, or 0 when there was
 * none.)
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
 * The checkpointer takes note (rule R11)
 * ---------------------------------------------------------------------
 */

/*
 * Called by the checkpointer when it has taken note of the requests that were in the
 * queue when it began to absorb them.
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
 * The number of absorptions after which the checkpointer has taken note of all
 * requests that this process has sent until now (rule R11).  An absorption that
 * is under way may have emptied the queue before, so one more is needed.
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
 * Bury a database in so many tablespaces, or in none when they do not all fit
 * (rule R6).  "files" is what is to be done about the first ndirs directories.
 * Returns whether it is buried.  The caller goes on with LazyDropWaitForIO.
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
 * Find the directories of a database that DROP DATABASE drops.  Returns an array of
 * locators, one for each tablespace but the global one: it may have buffers even
 * where its directory has been lost.  Those that have a directory come first.
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
 * Write and flush the record that a database's directories are dropped.  Returns
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
 * The same for the directory that ALTER DATABASE SET TABLESPACE leaves.
 */
XLogRecPtr
LazyDropLogOldDirectory(Oid dboid, Oid spcoid)
{
	RelFileLocator directory = {spcoid, dboid, InvalidRelFileNumber};

	return LogDatabaseDrop(dboid, &directory, 1);
}

/*
 * Leave directories that this process has buried, and whose sync requests it
 * has forgotten, to others.  Their entries wait until the checkpointer has
 * taken note of that, and all processes have closed their files; this process
 * does not.  A checkpoint that comes meanwhile hides the files.
 */
static void
LeaveDirectories(const RelFileLocator *locators, int n)
{
	uint64		enough = EnoughAbsorptions();
	uint64		barrier = EmitProcSignalBarrier(PROCSIGNAL_BARRIER_SMGRRELEASE);

	LazyDropRequestsForgotten(locators, n, false, barrier, enough);
}

/*
 * Remove directories that are not left to others.
 *
 * A base backup that has begun meanwhile may have part of them, and replays
 * from after the record.  So the record is written once more.
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
 * Do what DROP DATABASE does with buffers, files and WAL, without a checkpoint
 * (rule R11).  The database has been marked invalid, durably; no session uses it
 * or can begin to.  Returns false, and has done nothing, when the caller must
 * do as stock does.
 *
 * The record comes first, and so replay forgives references to what is missing,
 * however far the removal has come when the server crashes.  From the record to the
 * burial, no checkpoint may begin, or it could complete without having seen that
 * there are files to remove whose record will not be replayed.
 *
 * What replay does not forgive is a relation map whose directory is missing.  When it
 * might meet one, which is rare, there is a checkpoint after all.
 *
 * From the record on, the directories are gone, on standbys as well.  So we
 * cannot be interrupted until the directories are left to others.  If their
 * removal is not deferred, an interrupt ends the wait, and they are removed all
 * the same.  Then the transaction is rolled back, and leaves an invalid
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
		/* as stock, so that what is wrong with its files is no obstacle */
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
	 * When there is no room for the request, it is not compacted in a
	 * critical section, which takes memory, but waited for.
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

			/* The checkpointer takes note, and others close their files. */
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
 * Forget what DROP DATABASE has left when it fails.
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
 * The directories that a record names.
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
 * Bury a database in replay, for exactly the tablespaces that the record names: when
 * it comes from ALTER DATABASE SET TABLESPACE, the database lives on in another
 * (rule R4).  Returns false when the caller must drop its buffers as stock does.
 *
 * "lsn" is the end of the record: the minimum recovery point must be past it before
 * files go (rule R10).
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
 * Called in replay of a database's removal when the sync requests have been
 * forgotten, before the barrier.  If the removal of its directories is deferred,
 * leave it and the barrier to others, and return true.
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
 * Forget the sync requests for files that a database has in one tablespace.
 */
void
LazyDropForgetDirectorySyncRequests(Oid spcoid, Oid dboid)
{
	RelFileLocator locator = {spcoid, dboid, InvalidRelFileNumber};

	LazyDropRequestForFile(SYNC_FILTER_REQUEST, &locator, InvalidForkNumber,
						   InvalidBlockNumber);
}

/*
 * In replay of the removal of a database's directories, forget the sync requests
 * for files in them, and for no others (rule R2): stock goes by the database
 * alone, and so forgets to sync files that live on in third tablespaces when a
 * database is moved.  A database that is dropped has no others, and may have very
 * many of these, so then stock's one request does.
 */
void
LazyDropForgetSyncRequests(Oid dboid, int ntablespaces, const Oid *tablespaces)
{
	if (ntablespaces == 1)
		LazyDropForgetDirectorySyncRequests(tablespaces[0], dboid);
	else
		ForgetDatabaseSyncRequests(dboid);
}
