/*-------------------------------------------------------------------------
 *
 * lazydrop_write.c
 *	  Writers of shared buffers, and droppers that wait for them (rule R1).
 *
 * A process that writes a shared buffer announces it and then looks whether the relation
 * is buried.  A dropper puts its entry into the set and then looks at the announcements.
 * With a full fence between the two, one of them sees the other.
 *
 * Copyright (c) 2026, LazyDrop developers
 *
 * IDENTIFICATION
 *	  src/backend/storage/lazydrop/lazydrop_write.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include <unistd.h>

#include "miscadmin.h"
#include "storage/buf_internals.h"
#include "storage/ipc.h"
#include "storage/lazydrop.h"
#include "storage/lazydrop_internal.h"
#include "storage/pmsignal.h"
#include "utils/wait_event.h"

#ifdef LAZYDROP_HAVE_AIO
#include "storage/aio_internal.h"
#endif

/* whether the last FlushBuffer of this process did not write */
static bool write_was_skipped = false;

/* where entries would be that bury the buffer which this process is about to write */
static const int *watched_relation;
static const int *watched_database;

/* ---------------------------------------------------------------------
 * Writers
 * ---------------------------------------------------------------------
 */

static void
CountSkippedWrite(void)
{
	write_was_skipped = true;
	LazyDropCount(LAZYDROP_WRITES_SKIPPED, 1);
}

/*
 * Whether there is no point in writing a buffer, nor in flushing WAL for it,
 * because its relation is buried.  When it is not now, it may be later on: this
 * only saves the work.
 *
 * The caller has the buffer pinned and its I/O started, and has cleared
 * BM_JUST_DIRTIED, so that it can leave the buffer clean.  It goes on with
 * LazyDropAnnounceWrite for the same buffer.
 */
bool
LazyDropCanSkipWrite(const BufferTag *tag)
{
	RelFileLocator locator = BufTagGetRelFileLocator(tag);

	Assert(RelFileNumberIsValid(locator.relNumber));
	write_was_skipped = false;
	watched_relation = LazyDropRelationBucket(&locator);
	watched_database = LazyDropDatabaseBucket(&locator);
	if (likely(LazyDropBucketIsEmpty(watched_relation) && LazyDropBucketIsEmpty(watched_database)))
		return false;
	if (!LazyDropIsBuried(&locator))
		return false;
	CountSkippedWrite();
	return true;
}

/*
 * Announce a write.  Returns true when the relation is buried, and then the
 * caller must not write and nothing is announced.  Otherwise it ends its write,
 * after it has left a sync request, with LazyDropEndWrite.
 *
 * Takes no lock, unless an entry shares a bucket with the relation or its database.
 */
bool
LazyDropAnnounceWrite(const BufferTag *tag)
{
	LazyDropAnnouncement *mine;
	RelFileLocator locator = BufTagGetRelFileLocator(tag);

	LAZYDROP_INJECTION_POINT("lazydrop-announce");
	Assert(MyProcNumber >= 0 && MyProcNumber < LazyDropCtl->nannouncements);
	Assert(watched_relation == LazyDropRelationBucket(&locator));
	Assert(watched_database == LazyDropDatabaseBucket(&locator));
	mine = &LazyDropCtl->announcements[MyProcNumber].announcement;
	mine->locator = locator;
	pg_write_barrier();
	pg_atomic_write_u32(&mine->generation,
						(pg_atomic_read_u32(&mine->generation) + 2) | 1);

	/*
	 * The fence, and only then the buckets.  The other way round, a relation
	 * buried between the two would find no announcement and be written to.
	 */
	pg_memory_barrier();
	LAZYDROP_INJECTION_POINT("lazydrop-announced");
	if (likely(LazyDropBucketIsEmpty(watched_relation) && LazyDropBucketIsEmpty(watched_database)))
		return false;
	if (!LazyDropIsBuried(&locator))
		return false;

	LazyDropEndWrite();
	CountSkippedWrite();
	return true;
}

/*
 * End the announcement of a write, if there is one.  Also called when the write
 * has failed.
 */
void
LazyDropEndWrite(void)
{
	LazyDropAnnouncement *mine;
	uint32		generation;

	mine = &LazyDropCtl->announcements[MyProcNumber].announcement;
	generation = pg_atomic_read_u32(&mine->generation);
	if (generation & 1)
	{
		pg_write_barrier();
		pg_atomic_write_u32(&mine->generation, generation + 1);
	}
}

/*
 * Whether the last buffer that this process flushed was not written because its
 * relation is buried: then it is no part of any budget, and there is nothing to
 * write back.  Tells it once.
 */
bool
LazyDropWriteWasSkipped(void)
{
	bool		result = write_was_skipped;

	write_was_skipped = false;
	return result;
}

/* ---------------------------------------------------------------------
 * Droppers
 * ---------------------------------------------------------------------
 */

/*
 * Sleep in a loop that waits for another process, which may have been killed: without a
 * postmaster, the server does not restart for that, so exit.  A transaction that is over
 * must not be aborted on the way out.
 */
void
LazyDropSleepForOther(long microseconds)
{
	pg_usleep(microseconds);
	if (likely(PostmasterIsAlive()))
		return;
	if (IsTransactionState())
		proc_exit(1);
	LWLockReleaseAll();
	_exit(1);
}

/*
 * Wait until no process writes a buffer of the buried identities any more that
 * announced the write before it could see the burial (rule R1).
 *
 * A writer stores its announcement and then, after a full fence, looks into the
 * set; we have put our entry into the set and then, after a full fence, read the
 * announcements.  So either it sees the entry or we see the announcement.  An
 * announcement that changes while we read it is that of a process that has begun
 * another write since then, and therefore sees the entry.
 *
 * Our own announcement is left out: we may be called from an error callback of
 * our own write.
 */
void
LazyDropWaitForWriters(const RelFileLocator *sorted, int n)
{
	Assert(!LWLockHeldByMe(&LazyDropCtl->lock));
	LAZYDROP_INJECTION_POINT("lazydrop-buried");
	pg_memory_barrier();
	for (int i = 0; i < LazyDropCtl->nannouncements; i++)
	{
		LazyDropAnnouncement *them;
		uint32		generation;
		RelFileLocator locator;
		int			tries = 0;

		if (i == MyProcNumber)
			continue;
		them = &LazyDropCtl->announcements[i].announcement;
		generation = pg_atomic_read_u32(&them->generation);
		if ((generation & 1) == 0)
			continue;
		pg_read_barrier();
		locator = them->locator;
		if (!LazyDropIsAmong(&locator, sorted, n))
			continue;

		/*
		 * A write takes some microseconds, but the disk may be slow.  Stock
		 * waits for the same write, in WaitIO.
		 */
		while (pg_atomic_read_u32(&them->generation) == generation)
		{
			CHECK_FOR_INTERRUPTS();
			pgstat_report_wait_start(LazyDropCtl->wait_event_write);
			LazyDropSleepForOther(tries++ < 100 ? 10L : 1000L);
			pgstat_report_wait_end();
		}
	}
}

/*
 * Wait until no asynchronous read of the buried identities is in flight (rule
 * R1).  A scan that was cancelled leaves them, and stock would find them on the
 * buffers; after this the files may go.
 *
 * A read that was started under a lock which conflicted with ours, and which has
 * been released, is in its process's list of IOs in flight by now.  What is read
 * without such a lock later is dealt with by the last pass (rule R5).  That
 * list's length tells cheaply that there is nothing to look at.
 */
#ifdef LAZYDROP_HAVE_AIO
void
LazyDropWaitForReads(const RelFileLocator *sorted, int n)
{
	/* upstream leaves pgaio_ctl->backend_state_count at zero */
	int			nbackends = pgaio_ctl->io_handle_count / io_max_concurrency;

	Assert(!LWLockHeldByMe(&LazyDropCtl->lock));
	for (int i = 0; i < nbackends; i++)
	{
		PgAioBackend *backend = &pgaio_ctl->backend_state[i];

		if (*(volatile uint32 *) &backend->in_flight_ios.count == 0)
			continue;

		for (int j = 0; j < io_max_concurrency; j++)
		{
			uint32		id = backend->io_handle_off + j;
			volatile PgAioHandle *ioh = &pgaio_ctl->io_handles[id];
			uint64		generation;
			uint8		state;
			bool		ours;
			PgAioWaitRef iow;

			/*
			 * The handle may be reused while we look at it, in which case its
			 * generation changes.
			 */
			generation = ioh->generation;
			pg_read_barrier();
			state = ioh->state;
			pg_read_barrier();
			ours = false;
			if ((state == PGAIO_HS_SUBMITTED ||
				 state == PGAIO_HS_COMPLETED_IO) &&
				ioh->target == PGAIO_TID_SMGR &&
				!ioh->target_data.smgr.is_temp)
			{
				RelFileLocator locator;

				locator.spcOid = ioh->target_data.smgr.rlocator.spcOid;
				locator.dbOid = ioh->target_data.smgr.rlocator.dbOid;
				locator.relNumber = ioh->target_data.smgr.rlocator.relNumber;
				ours = LazyDropIsAmong(&locator, sorted, n);
			}
			pg_read_barrier();
			if (!ours || ioh->generation != generation)
				continue;

			iow.aio_index = id;
			iow.generation_upper = (uint32) (generation >> 32);
			iow.generation_lower = (uint32) generation;
			pgaio_wref_wait(&iow);
		}
	}
}
#else
void
LazyDropWaitForReads(const RelFileLocator *sorted, int n)
{
	/* A process that reads has the buffer pinned, and R5's last pass comes. */
}
#endif

/*
 * Both.
 */
void
LazyDropWaitForIO(const RelFileLocator *sorted, int n)
{
	LazyDropWaitForWriters(sorted, n);
	LazyDropWaitForReads(sorted, n);
}
