/*-------------------------------------------------------------------------
 *
 * lazydrop_checkpoint.c
 *	  Checkpoints and restartpoints (rule R8).
 *
 * A checkpoint that completes over files whose drop is not replayed after it would leave
 * them for ever if the server crashed.  So it hides them before; a shutdown, which nothing
 * follows, removes them.
 *
 * Copyright (c) 2026, LazyDrop developers
 *
 * IDENTIFICATION
 *	  src/backend/storage/lazydrop/lazydrop_checkpoint.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/xlog.h"
#include "miscadmin.h"
#include "postmaster/bgwriter.h"
#include "storage/ipc.h"
#include "storage/latch.h"
#include "storage/lazydrop.h"
#include "storage/lazydrop_internal.h"
#include "storage/pmsignal.h"
#include "storage/proc.h"
#include "storage/procsignal.h"
#include "utils/wait_event.h"

/*
 * A checkpoint goes on with its duties: it takes note of new settings and shares them,
 * switches WAL segments, absorbs sync requests, takes part in barriers, and ends with the
 * postmaster.  A negative progress asks upstream's function for just that; the latch keeps
 * it from sleeping.
 */
static bool
CheckPointPause(uint64 bytes)
{
	if (IsUnderPostmaster && !PostmasterIsAlive())
		proc_exit(1);
	SetLatch(MyLatch);
	CheckpointWriteDelay(0, -1);
	LAZYDROP_INJECTION_POINT("lazydrop-checkpoint-step");
	return true;
}

/*
 * The same in a shutdown, when no WAL may be written any more.
 */
static bool
ShutdownPause(uint64 bytes)
{
	if (IsUnderPostmaster && !PostmasterIsAlive())
		proc_exit(1);
	AbsorbSyncRequests();
	if (ProcSignalBarrierPending)
		ProcessProcSignalBarrier();
	LAZYDROP_INJECTION_POINT("lazydrop-checkpoint-step");
	return true;
}

/*
 * Find the first entry, not older than "first_serial" and not newer than "last_serial", with
 * files for a checkpoint to hide, or to remove in a shutdown.  If there is none, "others_at"
 * is the serial number of one that has files which its dropper has not released yet, or which
 * another process is hiding, and may fail to; or 0.  One look tells both, or an entry could
 * slip through between two.  A dropper that has ended, as the startup process may in a
 * shutdown, is not waited for.
 */
static bool
FindCheckPointJob(bool shutdown, uint64 first_serial, uint64 last_serial,
				  LazyDropJob *job, uint64 *others_at)
{
	dlist_head *lists[] = {&LazyDropCtl->hidden_removals, &LazyDropCtl->removals};
	int64		now = LazyDropNow();
	bool		found = false;
	dlist_iter	iter;

	*others_at = 0;
	LWLockAcquire(&LazyDropCtl->lock, LW_SHARED);
	for (int i = shutdown ? 0 : 1; i < lengthof(lists) && !found; i++)
	{
		dlist_foreach(iter, lists[i])
		{
			LazyDropEntry *entry = dlist_container(LazyDropEntry, files_node,
												   iter.cur);

			if (entry->serial > last_serial)
				continue;
			if (entry->hiding ||
				(entry->files == LAZYDROP_FILES_BURIED &&
				 GetPGProcByNumber(entry->dropper)->pid != 0))
			{
				if (*others_at == 0)
					*others_at = entry->serial;
				continue;
			}
			if (entry->files >= LAZYDROP_FILES_FORGOTTEN &&
				entry->serial >= first_serial &&
				(!shutdown || now >= entry->retry_at_ns))
			{
				LazyDropSetJob(job, entry);
				found = true;
				break;
			}
		}
	}
	LWLockRelease(&LazyDropCtl->lock);
	return found;
}

/*
 * Called by a checkpoint or restartpoint when it has written and synced what is
 * dirty, and before its record or the control file says so: hides the files of
 * everything that is buried now, or removes them in a shutdown (rule R8).  Buffers do not
 * matter: those of what is buried are never written.
 */
void
LazyDropCheckPoint(int flags)
{
	bool		shutdown = (flags & CHECKPOINT_IS_SHUTDOWN) != 0;
	LazyDropPause pause = shutdown ? ShutdownPause : CheckPointPause;
	uint64		first_serial = 0;
	uint64		last_serial;
	uint64		others_at;
	uint64		again_at = 0;
	int64		began;
	bool		waited = false;

	if (LazyDropCtl == NULL || LazyDropNothingPending())
		return;
	LAZYDROP_INJECTION_POINT("lazydrop-checkpoint");
	LWLockAcquire(&LazyDropCtl->lock, LW_EXCLUSIVE);
	last_serial = LazyDropCtl->last_serial;
	LazyDropCtl->hurry_serial = LazyDropCtl->checkpoint_serial;
	LazyDropCtl->checkpoint_serial = last_serial;
	LWLockRelease(&LazyDropCtl->lock);
	began = LazyDropNow();
	LazyDropTakeLargeSteps(shutdown);

	for (;;)
	{
		LazyDropJob job;

		if (FindCheckPointJob(shutdown, first_serial, last_serial, &job,
							  &others_at))
		{
			waited = true;

			/*
			 * An older one that is not ready may become so before the next look,
			 * and must not be left out (rule R8).
			 */
			if (others_at != 0 && (again_at == 0 || others_at < again_at))
				again_at = others_at;

			if (shutdown)
			{
				/*
				 * Hidden ones are not in order.  What could not be removed is
				 * left out for a while.
				 */
				LazyDropRemoveFiles(&job, pause);
			}
			else if (LazyDropHideOrRemove(&job, pause))
			{
				/* one attempt */
				first_serial = job.serial + 1;
			}
			(void) pause(0);
		}
		else if (others_at != 0)
		{
			/* as CreateCheckPoint waits for transactions that delay it */
			waited = true;
			first_serial = again_at != 0 ? Min(again_at, others_at) : others_at;
			again_at = 0;
			(void) pause(0);
			pgstat_report_wait_start(LazyDropCtl->wait_event_checkpoint);
			pg_usleep(10000L);
			pgstat_report_wait_end();
		}
		else if (again_at != 0)
		{
			first_serial = again_at;
			again_at = 0;
		}
		else if (shutdown)
		{
			/* what could not be removed for a moment, the next start does */
			shutdown = false;
			first_serial = 0;
		}
		else
			break;
	}
	LazyDropTakeLargeSteps(false);
	LazyDropWakeWorker();

	if (waited)
	{
		pg_atomic_fetch_add_u64(&LazyDropCtl->checkpoint_waits, 1);
		pg_atomic_fetch_add_u64(&LazyDropCtl->checkpoint_wait_us,
								(LazyDropNow() - began) / 1000);
	}
	LAZYDROP_INJECTION_POINT("lazydrop-checkpoint-end");
}
