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

#include <sys/resource.h>

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
 * Time for which something that makes a pass of little use delays it, in
 * milliseconds: a removal of files, after which another pass is needed, or a
 * buffer that stays pinned.  If it were shorter, a large shared_buffers would
 * be scanned again and again during a long removal or for a pin.  If it were
 * longer, the set would fill up meanwhile.
 */
#define PATIENCE_MS			5000

/*
 * After a pass, the worker makes no other one for this many times the
 * processor time that the pass has taken, unless a process waits for one or
 * the set is half full.  If it were smaller, drops of large relations would
 * use more of a processor on a server with terabytes of shared_buffers.  If it
 * were larger, their buffers would be free later.
 */
#define PASS_REST			19

/*
 * Interval between checks of entries that wait for other processes, in
 * milliseconds.  If it were shorter, a process that is stuck would keep the
 * worker busy.  If it were longer, DROP DATABASE would free its space late.
 */
#define POLL_MS				100

/*
 * Age from which on an entry that waits for other processes is reported, beside
 * lazydrop.pass_delay, and interval of these reports, in milliseconds.
 */
#define STUCK_MS			60000

/*
 * Seconds until the worker is restarted after it has exited.  Meanwhile, drops
 * are done as in stock.  A worker that cannot start must not be started all
 * the time.
 */
#define RESTART_SECONDS		1

int			lazydrop_pass_delay = 1000;

static LazyDropSchedule schedule;

/* time at which to look, during a removal, whether a pass is due */
static int64 next_look_at = 0;

/* time of the next step of a removal, and its tablespace */
static int64 next_step_at = 0;
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
 * Report, once a minute, the oldest entry that has been waiting for another
 * process for long.
 */
static void
ReportStuck(void)
{
	static int64 report_at = 0;
	int64		now = LazyDropNow();
	LazyDropPending pending;
	int			seconds;

	if (now < report_at)
		return;
	report_at = now + PATIENCE_MS * INT64CONST(1000000);
	if (!LazyDropFindStuck((int64) STUCK_MS + lazydrop_pass_delay, &pending))
		return;
	report_at = now + STUCK_MS * INT64CONST(1000000);
	seconds = (GetCurrentTimestamp() - pending.since) / USECS_PER_SEC;
	ereport(LOG,
			(RelFileNumberIsValid(pending.locator.relNumber) ?
			 errmsg("lazy drop of relation \"%s\" has been pending for %d seconds",
					LazyDropRelPathPerm(pending.locator, MAIN_FORKNUM).str, seconds) :
			 errmsg("lazy drop of database %u in tablespace %u has been pending for %d seconds",
					pending.locator.dbOid, pending.locator.spcOid, seconds),
			 pending.wait == LAZYDROP_WAIT_PIN ?
			 errdetail("One of its buffers was pinned when it was last looked at.") :
			 pending.wait == LAZYDROP_WAIT_PASS ?
			 errdetail("The process with PID %d is invalidating its buffers.", pending.pid) :
			 pending.wait == LAZYDROP_WAIT_DROPPER && pending.pid == 0 ?
			 errdetail("The process that dropped it has not finished.") :
			 pending.wait == LAZYDROP_WAIT_DROPPER ?
			 errdetail("The process with PID %d, which dropped it, has not finished.", pending.pid) :
			 errdetail("Other processes have not closed its files yet, or the checkpointer has not processed requests for them.")));
}

/*
 * Find out whether a pass is due, or buffers are to be looked up.  Returns the
 * number of milliseconds until that may change, or files may have to be
 * removed, without a wakeup, or -1 if nothing is pending.
 */
static long
LookForBuffers(LazyDropWork *work)
{
	long		timeout = LAZYDROP_RETRY_MS;

	*work = LAZYDROP_WORK_NONE;
	if (LazyDropNothingPending())
		return -1;
	if (LazyDropAdvanceWaiting())
		timeout = POLL_MS;
	ReportStuck();
	*work = LazyDropFindBuffers(lazydrop_pass_delay, &schedule, &timeout);
	return timeout;
}

/*
 * Exit or reload the configuration, if requested.  Returns whether it has been
 * reloaded.
 */
static bool
ProcessWorkerInterrupts(void)
{
	/*
	 * Exit with status 1, because the postmaster would not restart us after
	 * 0.  Check that it is alive, because we do not sleep while there are
	 * files to remove, and a new postmaster must not wait for us.
	 */
	if (ShutdownRequestPending || !PostmasterIsAlive())
		proc_exit(1);
	if (!ConfigReloadPending)
		return false;
	ConfigReloadPending = false;
	ProcessConfigFile(PGC_SIGHUP);
	return true;
}

/*
 * Return the processor time that this process has used, in microseconds.
 */
static int64
ProcessorTime(void)
{
	struct rusage usage;

	getrusage(RUSAGE_SELF, &usage);
	return (usage.ru_utime.tv_sec + usage.ru_stime.tv_sec) * INT64CONST(1000000) +
		usage.ru_utime.tv_usec + usage.ru_stime.tv_usec;
}

/*
 * Look up the buffers of small relations whose files are gone.
 */
static void
LookUp(void)
{
	bool		patient = LazyDropNow() >= schedule.retry_lookup_at;

	if (!LazyDropHasWork(LAZYDROP_WORK_LOOK_UP, 0, NULL, NULL, patient))
		return;
	LAZYDROP_INJECTION_POINT("lazydrop-worker");
	(void) LazyDropLookUp(0, NULL, NULL, patient);
	if (patient)
		schedule.retry_lookup_at = LazyDropNow() + PATIENCE_MS * INT64CONST(1000000);
}

/*
 * Report the activity of the worker, with the present time as its start.
 */
static void
ShowActivity(BackendState state, const char *activity)
{
	SetCurrentStatementStartTimestamp();
	pgstat_report_activity(state, activity);
}

/*
 * Make a pass over the buffer headers.
 */
static void
MakePass(void)
{
	int64		began = ProcessorTime();
	int64		now;

	Assert(am_lazydrop_worker);
	ShowActivity(STATE_RUNNING, "invalidating buffers of dropped relations");
	LAZYDROP_INJECTION_POINT("lazydrop-worker");
	(void) LazyDropPass(0, NULL, NULL);
	now = LazyDropNow();
	schedule.pass_at = now + (ProcessorTime() - began) * 1000 * PASS_REST;
	schedule.retry_lookup_at = now + PATIENCE_MS * INT64CONST(1000000);
	schedule.retry_pass_at = schedule.retry_lookup_at;
}

/*
 * Show that files are being removed, and look for a pass only after some time.
 */
static void
BeginRemoving(void)
{
	ShowActivity(STATE_RUNNING, "removing files of dropped relations");
	next_look_at = LazyDropNow() + PATIENCE_MS * INT64CONST(1000000);
}

/*
 * Wait until the next step of a removal may begin (lazydrop.removal_rate).  If
 * the removal takes long, make a pass if one is due.  The removal is not
 * interrupted for that: it would try again each time to remove files that
 * cannot be removed.  Returns false to stop it because settings have changed.
 */
static bool
WaitForStep(void)
{
	for (;;)
	{
		int64		now;

		ResetLatch(MyLatch);
		if (ProcessWorkerInterrupts())
		{
			next_step_at = 0;
			return false;
		}
		if (LazyDropNow() >= next_look_at)
		{
			LazyDropWork work;
			long		timeout = LookForBuffers(&work);

			if (work == LAZYDROP_WORK_PASS)
				MakePass();
			else if (work == LAZYDROP_WORK_LOOK_UP)
				LookUp();
			(void) LazyDropAdvisorStartWorker(timeout);
			BeginRemoving();
		}

		/* Do not slow down where space is short (rule R15). */
		now = LazyDropNow();
		if (now < next_step_at && LazyDropSpaceIsShort(removing_spcoid))
			next_step_at = now;
		if (now >= next_step_at)
		{
			ShowActivity(STATE_RUNNING, "removing files of dropped relations");
			return true;
		}

		/* Otherwise it would look like a statement that runs for hours. */
		ShowActivity(STATE_IDLE, "waiting for the next file to remove");
		(void) WaitLatch(MyLatch,
						 WL_LATCH_SET | WL_EXIT_ON_PM_DEATH | WL_TIMEOUT,
						 Max(Min(next_step_at, next_look_at) - now, 0) / 1000000 + 1,
						 LazyDropCtl->wait_event_throttle);
	}
}

/*
 * Called between two steps of a removal.
 */
static bool
WorkerPause(uint64 bytes)
{
	int64		now = LazyDropNow();

	Assert(am_lazydrop_worker);
	LAZYDROP_INJECTION_POINT("lazydrop-removal-step");
	next_step_at = Max(next_step_at, now);
	if (lazydrop_removal_rate > 0)
		next_step_at += (int64) (bytes * 1e9 / (lazydrop_removal_rate * 1024.0 * 1024.0));
	return WaitForStep();
}

/*
 * Remove the files of all entries that are ready.  Returns whether there were
 * any.
 *
 * With lazydrop.removal_rate, first hide them.  A backup that copies a slowly
 * shrinking file would report an error, but a missing file is no error, as in
 * stock (rule R14).
 */
static bool
RemoveFiles(void)
{
	LazyDropFilter filter = {.least = LAZYDROP_FILES_READY};
	LazyDropJob job;

	if (LazyDropFindJobs(&filter, &job, 1) == 0)
		return false;
	BeginRemoving();
	LAZYDROP_INJECTION_POINT("lazydrop-removal");
	while (LazyDropFindJobs(&filter, &job, 1) > 0)
	{
		removing_spcoid = job.locator.spcOid;
		if (lazydrop_removal_rate > 0 && !job.hidden && LazyDropHideFiles(&job))
		{
			(void) WaitForStep();
			continue;
		}
		(void) LazyDropRemoveFiles(&job, WorkerPause);
	}
	LAZYDROP_INJECTION_POINT("lazydrop-removal-end");
	return true;
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
		LazyDropWork work;
		int64		last_pass;
		bool		removed;
		long		timeout;
		long		sleep;

		ResetLatch(MyLatch);
		(void) ProcessWorkerInterrupts();

		/* Find leftovers once, but try again while the set has no room. */
		if (!leftovers_found)
			leftovers_found = LazyDropFindLeftovers();

		/*
		 * Remove files before the pass, so that entries with small files need
		 * only one.  Look for both in the opposite order: an entry may seem
		 * to need a pass because its files have just been released.  A long
		 * removal has made the pass.
		 */
		timeout = LookForBuffers(&work);
		last_pass = schedule.pass_at;
		removed = RemoveFiles();
		if (work == LAZYDROP_WORK_PASS && schedule.pass_at == last_pass)
			MakePass();
		else if (removed || work == LAZYDROP_WORK_LOOK_UP)
			LookUp();
		sleep = LazyDropAdvisorStartWorker(timeout);
		if (removed || work != LAZYDROP_WORK_NONE)
			continue;

		ShowActivity(STATE_IDLE, timeout < 0 ? "" : "waiting for more drops");
		(void) WaitLatch(MyLatch,
						 WL_LATCH_SET | WL_EXIT_ON_PM_DEATH |
						 (sleep < 0 ? 0 : WL_TIMEOUT),
						 sleep,
						 timeout < 0 ? LazyDropCtl->wait_event_main :
						 LazyDropCtl->wait_event_gather);
	}
}
