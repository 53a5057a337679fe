/*-------------------------------------------------------------------------
 *
 * lazydrop_worker.c
 *	  The lazy drop worker.
 *
 * This background worker waits until something is buried, removes its files,
 * lets drops gather for lazydrop.pass_delay, and then invalidates the buffers
 * of all of them in one pass.  Files are not kept waiting: a pass is cheaper
 * for many drops, but their removal is not, and their space is needed.  If the
 * removal takes long, one pass is made meanwhile, and another one when the
 * files are gone (rule R5).
 *
 * The worker starts with the postmaster, so that it is there in recovery, and
 * is restarted when it exits.  It is only a convenience: no process relies on
 * it (rule R6).
 *
 * It has no procsignal slot.  It has no descriptor of a relation's file, no
 * snapshot and no transaction, so no barrier or signal concerns it.  It is in
 * the process array only so that pg_stat_activity shows its wait events.
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
#include "postmaster/bgworker_internals.h"
#include "postmaster/interrupt.h"
#include "storage/ipc.h"
#include "storage/latch.h"
#include "storage/lazydrop.h"
#include "storage/lazydrop_advisor.h"
#include "storage/lazydrop_internal.h"
#include "storage/pmsignal.h"
#include "storage/proc.h"
#include "utils/backend_status.h"
#include "utils/guc.h"
#include "utils/memutils.h"
#include "utils/wait_event.h"

/*
 * Time after which a removal of files is suspended for a pass, and interval
 * between checks for another one after that, in milliseconds.
 */
#define REMOVAL_PATIENCE_MS	10000
#define LOOK_INTERVAL_MS	20

/*
 * Maximum time to wait for a dropper to hand over its files, so that one pass
 * is enough, in milliseconds.
 */
#define RELEASE_PATIENCE_MS	100

/*
 * Delay before entries with a pinned buffer are tried again, in milliseconds.
 * It is doubled as long as passes settle nothing.
 */
#define RETRY_MS			1000
#define MAX_RETRY_MS		10000

/* Interval between checks for the advisor's worker, in milliseconds. */
#define ADVISOR_RETRY_MS	1000

/*
 * Interval between checks of entries that wait for other processes, in
 * milliseconds.  It is doubled after each check, up to MAX_WAITING_MS.
 */
#define WAITING_MS			10
#define MAX_WAITING_MS		1000

/* Seconds until the worker is restarted after it has exited. */
#define RESTART_SECONDS		1

int			lazydrop_pass_delay = 1000;

/* time of the next pass for entries with a pinned buffer */
static int64 retry_at = 0;
static int	retry_ms = RETRY_MS;

/* time at which a removal checks again whether to make a pass */
static int64 next_look = 0;

/* the tablespace in which files are being removed */
static Oid	removing_spcoid = InvalidOid;

/*
 * Register the worker.  Called after extensions have registered their workers,
 * which therefore take precedence if max_worker_processes is small.
 */
void
LazyDropRegisterWorker(void)
{
	BackgroundWorker worker;
	void	   *first = BackgroundWorkerList.head.next;

	memset(&worker, 0, sizeof(worker));
	worker.bgw_flags = BGWORKER_SHMEM_ACCESS;
	worker.bgw_start_time = BgWorkerStart_PostmasterStart;
	worker.bgw_restart_time = RESTART_SECONDS;
	snprintf(worker.bgw_library_name, MAXPGPATH, "postgres");
	snprintf(worker.bgw_function_name, BGW_MAXLEN, "LazyDropWorkerMain");
	snprintf(worker.bgw_name, BGW_MAXLEN, "lazy drop worker");
	snprintf(worker.bgw_type, BGW_MAXLEN, "lazy drop worker");
	RegisterBackgroundWorker(&worker);

	/* Registration fails if there are too many workers. */
	lazydrop_worker_registered = BackgroundWorkerList.head.next != first;
}

static void
WorkerExit(int code, Datum arg)
{
	pg_atomic_write_u32(&LazyDropCtl->worker, (uint32) INVALID_PROC_NUMBER);
}

/*
 * Find out what there is to do.  Returns the number of milliseconds until this
 * may change, or -1 if nothing is pending.
 */
static long
LookForWork(bool *buffers, bool *files)
{
	static int	waiting_ms = WAITING_MS;
	int64		now = LazyDropNow();
	long		timeout = 1000;

	*buffers = *files = false;
	if (LazyDropNothingPending())
		return -1;
	if (LazyDropAdvanceWaiting())
	{
		timeout = waiting_ms;
		waiting_ms = Min(2 * waiting_ms, MAX_WAITING_MS);
	}
	else
		waiting_ms = WAITING_MS;

	/*
	 * Look at files last.  A relation may seem to need a pass because its
	 * files have just been released.  They must be removed before that pass.
	 */
	*buffers = LazyDropFindBuffers(now, lazydrop_pass_delay, RELEASE_PATIENCE_MS,
								   retry_at, &timeout);
	*files = LazyDropFindFiles(now, &timeout);
	return timeout;
}

/*
 * Exit or reload the configuration, if requested.
 */
static void
ProcessWorkerInterrupts(void)
{
	/*
	 * Exit with status 1, because the postmaster would not restart us after
	 * 0.  Check that it is alive, because we do not sleep while there are
	 * files to remove, and a new postmaster must not wait for us.
	 */
	if (ShutdownRequestPending || !PostmasterIsAlive())
		proc_exit(1);
	if (ConfigReloadPending)
	{
		ConfigReloadPending = false;
		ProcessConfigFile(PGC_SIGHUP);
	}
}

/*
 * Make a pass over the buffer headers.
 */
static void
MakePass(void)
{
	bool		settled;

	Assert(am_lazydrop_worker);
	pgstat_report_activity(STATE_RUNNING,
						   "invalidating buffers of dropped relations");
	LAZYDROP_INJECTION_POINT("lazydrop-worker");
	settled = LazyDropPass(0, NULL, NULL);
	if (settled)
		retry_ms = RETRY_MS;
	retry_at = LazyDropNow() + retry_ms * INT64CONST(1000000);
	if (!settled)
		retry_ms = Min(2 * retry_ms, MAX_RETRY_MS);
}

/*
 * With lazydrop.removal_rate, hide the files of all entries that are ready.  A
 * backup that copies a slowly shrinking file would report an error, but a
 * missing file is no error, as in stock (rule R14).
 */
static void
HideSlowFiles(void)
{
	LazyDropFilter filter = {.least = LAZYDROP_FILES_READY,.visible = true};
	LazyDropJob job;

	while (lazydrop_removal_rate > 0 && LazyDropFindJobs(&filter, &job, 1) > 0)
	{
		(void) LazyDropHideFiles(&job);
		filter.first_serial = job.serial + 1;
	}
}

/*
 * Called between two steps of a removal.  Enforces lazydrop.removal_rate, and
 * makes a pass if the removal takes long.
 */
static bool
WorkerPause(uint64 bytes)
{
	static int64 next_step = 0;
	int64		now = LazyDropNow();

	Assert(am_lazydrop_worker);
	LAZYDROP_INJECTION_POINT("lazydrop-removal-step");

	/* Do not slow down where space is short (rule R15). */
	if (lazydrop_removal_rate > 0 && !LazyDropSpaceIsShort(removing_spcoid))
		next_step = Max(next_step, now) +
			(int64) (bytes * 1e9 / (lazydrop_removal_rate * 1024.0 * 1024.0));
	else
		next_step = now;

	for (;;)
	{
		long		timeout;

		ResetLatch(MyLatch);
		ProcessWorkerInterrupts();
		HideSlowFiles();

		/* Do not check at each of many small files, which takes time, too. */
		if (now >= next_look)
		{
			bool		buffers = false;
			bool		files;
			int64		pause = LOOK_INTERVAL_MS * INT64CONST(1000000);

			if (!LazyDropNothingBuried())
				(void) LookForWork(&buffers, &files);
			if (buffers)
			{
				int64		began = now;

				/* Passes must not starve the removal. */
				MakePass();
				pgstat_report_activity(STATE_RUNNING,
									   "removing files of dropped relations");
				now = LazyDropNow();
				pause = Max(pause, 10 * (now - began));
			}
			(void) LazyDropAdvisorStartWorker();
			next_look = now + pause;
		}

		/* A new rate applies after this wait, but rate 0 applies at once. */
		if (now >= next_step || lazydrop_removal_rate == 0 ||
			LazyDropSpaceIsShort(removing_spcoid))
			return true;
		timeout = Min((next_step - now) / 1000000 + 1, LOOK_INTERVAL_MS);
		(void) WaitLatch(MyLatch,
						 WL_LATCH_SET | WL_EXIT_ON_PM_DEATH | WL_TIMEOUT,
						 timeout, LazyDropCtl->wait_event_throttle);
		now = LazyDropNow();
	}
}

/*
 * Remove the files of all entries that are ready.
 */
static void
RemoveFilesOfAll(void)
{
	LazyDropFilter filter = {.least = LAZYDROP_FILES_READY};
	LazyDropJob job;

	pgstat_report_activity(STATE_RUNNING,
						   "removing files of dropped relations");
	LAZYDROP_INJECTION_POINT("lazydrop-removal");
	next_look = LazyDropNow() + REMOVAL_PATIENCE_MS * INT64CONST(1000000);
	HideSlowFiles();
	while (LazyDropFindJobs(&filter, &job, 1) > 0)
	{
		removing_spcoid = job.locator.spcOid;
		LazyDropRemoveFiles(&job, WorkerPause);
	}
	LAZYDROP_INJECTION_POINT("lazydrop-removal-end");
}

/*
 * Main entry point of the worker.
 */
void
LazyDropWorkerMain(Datum arg)
{
	bool		leftovers_found = false;

	am_lazydrop_worker = true;
	pqsignal(SIGHUP, SignalHandlerForConfigReload);
	pqsignal(SIGTERM, SignalHandlerForShutdownRequest);
	BackgroundWorkerUnblockSignals();

	/* Appear in pg_stat_activity, without a database or a role. */
	InitProcessPhase2();
	LazyDropShowActivity();
	pgstat_report_appname("");

	before_shmem_exit(WorkerExit, (Datum) 0);
	pg_atomic_write_u32(&LazyDropCtl->worker, (uint32) MyProcNumber);
	pg_memory_barrier();

	for (;;)
	{
		bool		buffers;
		bool		files;
		long		timeout;
		long		sleep;

		ResetLatch(MyLatch);
		ProcessWorkerInterrupts();

		/* Find leftovers once, but try again while the set has no room. */
		if (!leftovers_found)
			leftovers_found = LazyDropFindLeftovers();

		/* Files first, so that entries with small files need only one pass. */
		timeout = LookForWork(&buffers, &files);
		if (files)
			RemoveFilesOfAll();
		if (buffers)
			MakePass();
		if (files || buffers)
			continue;
		sleep = timeout;
		if (!LazyDropAdvisorStartWorker() && (sleep < 0 || sleep > ADVISOR_RETRY_MS))
			sleep = ADVISOR_RETRY_MS;

		pgstat_report_activity(STATE_IDLE,
							   timeout < 0 ? "" : "waiting for more drops");
		(void) WaitLatch(MyLatch,
						 WL_LATCH_SET | WL_EXIT_ON_PM_DEATH |
						 (sleep < 0 ? 0 : WL_TIMEOUT),
						 sleep,
						 timeout < 0 ? LazyDropCtl->wait_event_main :
						 LazyDropCtl->wait_event_gather);
	}
}
