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
 * with the postmaster.
 */
static bool
CheckPointPause(uint64 bytes)
{
	if (IsUnderPostmaster && !PostmasterIsAlive())
		proc_exit(1);
	LazyDropCheckPointDuties();
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
	int64		began = LazyDropNow();

	if (LazyDropCtl == NULL || LazyDropNothingPending())
		return;
	Assert(CritSectionCount == 0);
	LAZYDROP_INJECTION_POINT("lazydrop-checkpoint");
	if (LazyDropHideAll(NULL, NULL, pause, LazyDropCtl->wait_event_checkpoint))
	{
		LazyDropCount(LAZYDROP_CHECKPOINT_WAITS, 1);
		LazyDropCount(LAZYDROP_CHECKPOINT_WAIT_TIME, (LazyDropNow() - began) / 1000);
	}
	LAZYDROP_INJECTION_POINT("lazydrop-checkpoint-end");
}
