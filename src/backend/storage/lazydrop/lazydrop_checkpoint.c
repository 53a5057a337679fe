/*-------------------------------------------------------------------------
 *
 * lazydrop_checkpoint.c
 *	  Checkpoints and restartpoints (rule R8).
 *
 * A checkpoint that completes over files whose drop is not replayed after it
 * would leave them for ever if the server crashed.  So it hides them before.
 * A shutdown does the same, and leaves them to the next start's worker.
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
 * Called by a checkpoint or restartpoint when it has written and synced what is
 * dirty, and before its record or the control file says so: hides the files of
 * everything that is buried now (rule R8).  Buffers do not matter: those of what
 * is buried are never written.
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
			 * An older one that is not ready may become so before the next
			 * look, and must not be left out (rule R8).
			 */
			if (others_at != 0 && (again_at == 0 || others_at < again_at))
				again_at = others_at;

			/* one attempt */
			if (LazyDropHideOrRemove(&job, pause))
				first_serial = job.serial + 1;
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
