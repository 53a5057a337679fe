/*-------------------------------------------------------------------------
 *
 * lazydrop_checkpoint.c
 *	  Checkpoints and restartpoints (rule R8).
 *
 * If a checkpoint completed over files whose drop is not replayed after it, a
 * crash would leave these files forever.  So it hides them first.  A shutdown
 * does the same, and leaves them to the worker of the next start.
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
 * Continue with the duties of a checkpoint: apply and share new settings,
 * switch WAL segments, absorb sync requests, take part in barriers, and exit
 * with the postmaster.  With a negative progress, CheckpointWriteDelay does
 * just that.  The latch keeps it from sleeping.
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
 * Perform the duties that remain in a shutdown, when WAL must not be written.
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
 * Called by a checkpoint or restartpoint after it has written and synced dirty
 * data, and before its record or the control file says so.  Hides the files of
 * all entries that are present now (rule R8).  Buffers do not matter, because
 * buried buffers are never written.
 */
void
LazyDropCheckPoint(int flags)
{
	LazyDropPause pause = (flags & CHECKPOINT_IS_SHUTDOWN) != 0 ?
		ShutdownPause : CheckPointPause;
	uint64		first_serial = 0;
	uint64		last_serial;
	uint64		others_at;
	uint64		again_at = 0;
	int64		began;
	bool		waited = false;

	if (LazyDropCtl == NULL || LazyDropNothingPending())
		return;
	Assert(CritSectionCount == 0);
	LAZYDROP_INJECTION_POINT("lazydrop-checkpoint");
	last_serial = LazyDropLastSerial();
	began = LazyDropNow();

	for (;;)
	{
		LazyDropJob job;

		if (LazyDropFindCheckPointJob(first_serial, last_serial, &job,
									  &others_at))
		{
			waited = true;

			/*
			 * An older entry that is not ready may become so before the next
			 * look, and must not be left out (rule R8).
			 */
			if (others_at != 0 && (again_at == 0 || others_at < again_at))
				again_at = others_at;

			/* Try each entry once. */
			if (LazyDropHideOrRemove(&job, pause))
				first_serial = job.serial + 1;
			(void) pause(0);
		}
		else if (others_at != 0)
		{
			/* As CreateCheckPoint waits for transactions that delay it. */
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
		else
			break;
	}
	LazyDropWakeWorker();

	if (waited)
	{
		LazyDropCount(LAZYDROP_CHECKPOINT_WAITS, 1);
		LazyDropCount(LAZYDROP_CHECKPOINT_WAIT_TIME, (LazyDropNow() - began) / 1000);
	}
	LAZYDROP_INJECTION_POINT("lazydrop-checkpoint-end");
}
