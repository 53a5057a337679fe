/*-------------------------------------------------------------------------
 *
 * lazydrop_worker.c
 *	  The lazy drop worker.
 *
 * A background worker that waits until something is buried, lets more of it
 * gather for lazydrop.pass_delay, and settles all of it in one pass.  It starts
 * with the postmaster, so that it is there in recovery, and is restarted when it
 * ends.  It is no more than a convenience: nobody relies on it (rule R6).
 *
 * It takes no procsignal slot: it has no descriptor of a relation's file, no
 * snapshot and no transaction, so no barrier or signal concerns it.  It belongs to
 * the process array only so that pg_stat_activity shows what it waits for.
 *
 * Copyright (c) 2026, LazyDrop developers
 *
 * IDENTIFICATION
 *	  src/backend/storage/lazydrop/lazydrop_worker.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "miscadmin.h"
#include "pgstat.h"
#include "postmaster/bgworker.h"
#include "postmaster/interrupt.h"
#include "storage/ipc.h"
#include "storage/latch.h"
#include "storage/lazydrop.h"
#include "storage/lazydrop_internal.h"
#include "storage/proc.h"
#include "utils/backend_status.h"
#include "utils/guc.h"
#include "utils/injection_point.h"
#include "utils/memutils.h"
#include "utils/wait_event.h"

/* Seconds until a worker that has ended is started again. */
#define RESTART_SECONDS		1

bool		am_lazydrop_worker = false;

/*
 * Whether there is a worker that will settle what is buried.
 */
bool
LazyDropHaveWorker(void)
{
	return (ProcNumber) pg_atomic_read_u32(&LazyDropCtl->worker) != INVALID_PROC_NUMBER;
}

/*
 * Wake the worker, if there is one.  The caller has completed its entries before
 * (rule R7); a worker that starts now looks for entries first.
 */
void
LazyDropWakeWorker(void)
{
	ProcNumber	worker;

	pg_memory_barrier();
	worker = (ProcNumber) pg_atomic_read_u32(&LazyDropCtl->worker);
	if (worker != INVALID_PROC_NUMBER)
		SetLatch(&GetPGProcByNumber(worker)->procLatch);
}

/*
 * Ask the postmaster for the worker.  Called after extensions have registered
 * theirs, which so have precedence when max_worker_processes is small.
 */
void
LazyDropRegisterWorker(void)
{
	BackgroundWorker worker;

	memset(&worker, 0, sizeof(worker));
	worker.bgw_flags = BGWORKER_SHMEM_ACCESS;
	worker.bgw_start_time = BgWorkerStart_PostmasterStart;
	worker.bgw_restart_time = RESTART_SECONDS;
	snprintf(worker.bgw_library_name, MAXPGPATH, "postgres");
	snprintf(worker.bgw_function_name, BGW_MAXLEN, "LazyDropWorkerMain");
	snprintf(worker.bgw_name, BGW_MAXLEN, "lazy drop worker");
	snprintf(worker.bgw_type, BGW_MAXLEN, "lazy drop worker");
	RegisterBackgroundWorker(&worker);
}

static void
WorkerExit(int code, Datum arg)
{
	pg_atomic_write_u32(&LazyDropCtl->worker, (uint32) INVALID_PROC_NUMBER);
}

/*
 * How many milliseconds to wait before the next pass: 0 for none, -1 when there
 * is nothing to do.
 */
static long
TimeToNextPass(void)
{
	int64		oldest = 0;
	int			nunowned = 0;
	bool		any = false;
	int64		elapsed;
	dlist_iter	iter;

	LWLockAcquire(&LazyDropCtl->lock, LW_SHARED);
	dlist_foreach(iter, &LazyDropCtl->pending)
	{
		LazyDropEntry *entry = dlist_container(LazyDropEntry, node, iter.cur);

		any = true;
		if (entry->owner != 0)
			continue;
		if (nunowned++ == 0)
			oldest = entry->buried_at_ns;
	}
	LWLockRelease(&LazyDropCtl->lock);

	/* What others own, they settle; but look again, they may give it up. */
	if (nunowned == 0)
		return any ? 1000 : -1;
	if (nunowned >= LazyDropCtl->capacity / 2)
		return 0;
	elapsed = (LazyDropNow() - oldest) / 1000000;
	return Max(lazydrop_pass_delay - elapsed, 0);
}

/*
 * Entry point of the worker.
 */
void
LazyDropWorkerMain(Datum arg)
{
	bool		stuck = false;

	am_lazydrop_worker = true;
	pqsignal(SIGHUP, SignalHandlerForConfigReload);
	pqsignal(SIGTERM, SignalHandlerForShutdownRequest);
	BackgroundWorkerUnblockSignals();

	/* a row in pg_stat_activity, without a database or a role */
	InitProcessPhase2();
	pgstat_beinit();
	pgstat_bestart_initial();
	pgstat_report_appname("");

	before_shmem_exit(WorkerExit, (Datum) 0);
	pg_atomic_write_u32(&LazyDropCtl->worker, (uint32) MyProcNumber);
	pg_memory_barrier();

	for (;;)
	{
		long		timeout;

		ResetLatch(MyLatch);

		/* Status 1, because the postmaster would not restart us after 0. */
		if (ShutdownRequestPending)
			proc_exit(1);
		if (ConfigReloadPending)
		{
			ConfigReloadPending = false;
			ProcessConfigFile(PGC_SIGHUP);
		}

		timeout = TimeToNextPass();
		if (timeout == 0 && !stuck)
		{
			pgstat_report_activity(STATE_RUNNING,
								   "invalidating buffers of dropped relations");
			INJECTION_POINT("lazydrop-worker", NULL);
			stuck = !LazyDropPass(0, NULL, NULL, false);
			continue;
		}

		/* A buffer that somebody does not let go, or all taken by others. */
		if (timeout == 0)
			timeout = 1000;
		stuck = false;

		pgstat_report_activity(STATE_IDLE,
							   timeout < 0 ? NULL : "waiting for more drops");
		(void) WaitLatch(MyLatch,
						 WL_LATCH_SET | WL_EXIT_ON_PM_DEATH |
						 (timeout < 0 ? 0 : WL_TIMEOUT),
						 timeout,
						 timeout < 0 ? LazyDropCtl->wait_event_main :
						 LazyDropCtl->wait_event_gather);
	}
}
