/*-------------------------------------------------------------------------
 *
 * lazydrop_write.c
 *	  Writers of shared buffers, and droppers that wait for them (rule R1).
 *
 * A process that writes a shared buffer announces the write, and then checks
 * whether the relation is buried.  A dropper adds its entry to the set, and
 * then reads the announcements.  Both issue a full fence in between, so at
 * least one of them sees the other.
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

/* whether the last FlushBuffer of this process skipped the write */
static bool write_was_skipped = false;

/* buckets for entries that would bury the buffer that is written next */
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
 * Return whether writing a buffer, and flushing WAL for it, would be useless,
 * because its relation is buried.  If not, it may be buried a moment later; the
 * check only saves work.
 *
 * The caller has pinned the buffer, started its I/O, and cleared
 * BM_JUST_DIRTIED, so that it can leave the buffer clean.  If this returns
 * false, it continues with LazyDropAnnounceWrite for the same buffer.
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
 * Announce a write.  Returns true if the relation is buried.  Then nothing is
 * announced, and the caller must not write.  Otherwise it calls
 * LazyDropEndWrite after it has written and registered a sync request.
 *
 * Takes no lock, unless an entry is in the bucket of the relation or database.
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
	 * The fence comes first.  If the buckets were read before it, a dropper
	 * in between would miss the announcement, and we would write.
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
 * End the announcement of a write, if there is one.  Also called after a
 * failed write.
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
 * Return whether the last buffer flushed by this process was not written
 * because its relation is buried.  Then it is not charged to any budget, and
 * there is nothing to write back.  The next call returns false.
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
 * Sleep in a loop that waits for another process.  It may have been killed,
 * and without a postmaster, the server does not restart after that, so exit.
 * A transaction that has ended must not be aborted on exit.
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
 * Wait until no process writes a buffer of the buried identities that
 * announced the write before it could see the burial (rule R1).
 *
 * A writer stores its announcement, issues a full fence, and looks into the
 * set.  We have added our entry to the set, issue a full fence, and read the
 * announcements.  So either it sees the entry, or we see the announcement.  If
 * an announcement changes while we read it, its process has begun another
 * write since then, and therefore sees the entry.
 *
 * Our own announcement is left out, because an error callback during our own
 * write may have called us.
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
		 * A write takes a few microseconds, unless the disk is slow.  Stock
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
 * Wait until no asynchronous read of the buried identities is in progress
 * (rule R1).  A scan that was cancelled leaves such reads behind, and stock
 * would find them on the buffers.  After this, the files may be removed.
 *
 * If a read was started under a lock that conflicted with ours and has been
 * released, it is in its process's list of IOs in flight by now.  The last
 * pass deals with pages that are read later without such a lock (rule R5).
 * The length of the list is a cheap way to see that there is nothing to check.
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
	/* A buffer is pinned while it is read, and rule R5's last pass follows. */
}
#endif

/*
 * Wait for both writes and reads.
 */
void
LazyDropWaitForIO(const RelFileLocator *sorted, int n)
{
	LazyDropWaitForWriters(sorted, n);
	LazyDropWaitForReads(sorted, n);
}
