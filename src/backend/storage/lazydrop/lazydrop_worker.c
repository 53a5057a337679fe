/*-------------------------------------------------------------------------
 *
 * lazydrop_worker.c
 *	  The lazy drop worker.
 *
 * A background worker that waits until something is buried, removes its files,
 * lets drops gather for lazydrop.pass_delay, and then invalidates the buffers of
 * all of them in one pass.  Files are not kept waiting: a pass is cheaper for
 * many drops, but their removal is not, and their space is wanted.  When files
 * take long to remove, there is a pass before, and another one when they are
 * gone (rule R5).
 *
 * It starts with the postmaster, so that it is there in recovery, and is
 * restarted when it ends.  It is no more than a convenience: no process relies
 * on it (rule R6).
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
 * How long files are removed before a pass is made meanwhile, and how often to look
 * whether one is needed after that, in milliseconds.
 */
#define REMOVAL_PATIENCE_MS	10000
#define LOOK_INTERVAL_MS	20

/*
 * How long a dropper that has not handed over its files yet is waited for, so that one
 * pass does, in milliseconds.
 */
#define RELEASE_PATIENCE_MS	100

/*
 * When to try again to invalidate a buffer that stays pinned: this is doubled as long
 * as passes settle nothing.
 */
#define RETRY_MS			1000
#define MAX_RETRY_MS		10000

/* When to look again whether the advisor's worker is there, in milliseconds. */
#define ADVISOR_RETRY_MS	1000

/*
 * How often to look whether an entry that waits for other processes can go on,
 * in milliseconds.  This is doubled after each look, up to MAX_WAITING_MS.
 */
#define WAITING_MS			10
#define MAX_WAITING_MS		1000

/* Seconds until a worker that has ended is started again. */
#define RESTART_SECONDS		1

int			lazydrop_pass_delay = 1000;

/* when entries with a buffer that stays pinned are tried again */
static int64 retry_at = 0;
static int	retry_ms = RETRY_MS;

/* when a removal looks whether to make a pass */
static int64 next_look = 0;

/* the tablespace in which files are being removed */
static Oid	removing_spcoid = InvalidOid;

/*
 * Ask the postmaster for the worker.  Called after extensions have registered
 * theirs, which so have precedence when max_worker_processes is small.
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

	/* It is not when there are too many of them. */
	lazydrop_worker_registered = BackgroundWorkerList.head.next != first;
}

static void
WorkerExit(int code, Datum arg)
{
	pg_atomic_write_u32(&LazyDropCtl->worker, (uint32) INVALID_PROC_NUMBER);
}

/*
 * Tell what there is to do.  Returns the milliseconds until that may change, or
 * -1 when nothing is pending.
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
	 * Look at files last: a relation that seems to need a pass because its
	 * files have just been released must not get one before they are removed.
	 */
	*buffers = LazyDropFindBuffers(now, lazydrop_pass_delay, RELEASE_PATIENCE_MS,
								   retry_at, &timeout);
	*files = LazyDropFindFiles(now, &timeout);
	return timeout;
}

/*
 * What has to be done every now and then.
 */
static void
ProcessWorkerInterrupts(void)
{
	/*
	 * Status 1, because the postmaster would not restart us after 0.  While
	 * there is always something to remove, we do not sleep, and a new
	 * postmaster must not wait for us.
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
 * Make a pass over the headers.
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
 * backup that copies a file which shrinks slowly would report an error; if it
 * finds the file gone, it does not, as in stock (rule R14).
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
 * Called between two steps of a removal: keeps to lazydrop.removal_rate, and makes
 * a pass when the removal takes long.
 */
static bool
WorkerPause(uint64 bytes)
{
	static int64 next_step = 0;
	int64		now = LazyDropNow();

	Assert(am_lazydrop_worker);
	LAZYDROP_INJECTION_POINT("lazydrop-removal-step");

	/* Where space is short, it is not slowed down (rule R15). */
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

		/* Not at each of very many small files: looking takes time, too. */
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

		/* A new rate takes effect at once, but for the step that it follows. */
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
 * Entry point of the worker.
 */
void
LazyDropWorkerMain(Datum arg)
{
	bool		leftovers_found = false;

	am_lazydrop_worker = true;
	pqsignal(SIGHUP, SignalHandlerForConfigReload);
	pqsignal(SIGTERM, SignalHandlerForShutdownRequest);
	BackgroundWorkerUnblockSignals();

	/* a row in pg_stat_activity, without a database or a role */
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

		/* once, and again as long as there is no room for them in the set */
		if (!leftovers_found)
			leftovers_found = LazyDropFindLeftovers();

		/* Files first, so that what has small ones needs one pass only. */
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
