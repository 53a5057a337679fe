/*-------------------------------------------------------------------------
 *
 * lazydrop_advisor_worker.c
 *	  The advisor's worker: takes samples from the queue, passes them to the
 *	  miniature pools, and sums up the results.
 *
 * The lazy drop worker starts it while lazydrop.advisor is on, also again when
 * it has ended.  It exits when the setting is off, so that it takes a slot of
 * max_worker_processes only while it is on.  Its pools are in private memory;
 * without a worker, samples are dropped (rule A4).
 *
 * Like the lazy drop worker, it takes no procsignal slot: it has no file open,
 * no snapshot and no transaction.
 *
 * Copyright (c) 2026, LazyDrop developers
 *
 * IDENTIFICATION
 *	  src/backend/storage/advisor/lazydrop_advisor_worker.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include <math.h>

#include "miscadmin.h"
#include "pgstat.h"
#include "postmaster/bgworker.h"
#include "postmaster/interrupt.h"
#include "storage/bufmgr.h"
#include "storage/ipc.h"
#include "storage/latch.h"
#include "storage/lazydrop_advisor.h"
#include "storage/lazydrop_advisor_shared.h"
#include "storage/lazydrop_cache.h"
#include "storage/lazydrop_common.h"
#include "storage/pmsignal.h"
#include "storage/proc.h"
#include "utils/backend_status.h"
#include "utils/guc.h"
#include "utils/memutils.h"
#include "utils/timestamp.h"
#include "utils/wait_event.h"

/* time to sleep, in milliseconds; shorter while there is work */
#define MIN_SLEEP_MS		50
#define MAX_SLEEP_MS		1000

/* interval of reading pg_stat_io, in milliseconds; it is not updated sooner */
#define IO_INTERVAL_MS		1000

/* A9: the first epoch, in milliseconds; each other is as long as all before it */
#define FIRST_EPOCH_MS		10000

/* A8: samples from which on pg_stat_io must agree with them, within this factor */
#define LAG_SAMPLES			16
#define LAG_FACTOR			2

/*
 * least time between two starts of a worker, in milliseconds, so that errors
 * do not flood the log
 */
#define START_INTERVAL_MS	1000

#define NS_PER_MS			INT64CONST(1000000)

/* values of pg_stat_io when it was last read */
typedef struct IOTotals
{
	double		hits;
	double		reads;
	double		read_time;
	TimestampTz reset;
} IOTotals;

static LazyDropAdvisorPools *pools;
static LazyDropAdvisorSums interval;	/* since they were last published */
static LazyDropAdvisorSums unpublished; /* the same, or since they began anew */
static LazyDropAdvisorSums total_of_epoch;
static LazyDropAdvisorSums recent_of_epoch;
static TimestampTz reset_seen;
static bool discard;			/* the interval */
static IOTotals io_before;
static IOTotals early;			/* what had no samples; hits: all lookups */
static uint64 recent_hits_before;
static uint64 dropped_before;

/* times, as LazyDropNow has them */
static int64 began;
static int64 epoch_end;
static int64 io_read_at;
static int64 published_at;

/*
 * Start the worker, if it should run and there is none.  The lazy drop worker
 * calls this whenever it wakes up.  Returns how long it may sleep before it
 * calls this again, in milliseconds: "timeout_ms" (-1 means no limit), or less
 * if there was no room for a worker, or it is not yet known whether it runs.
 *
 * The postmaster does not restart the worker.  A worker that waits for that
 * looks like an ended one, so each error would add another worker.
 */
long
LazyDropAdvisorStartWorker(long timeout_ms)
{
	static bool warned = false;
	static int64 last_start = 0;
	static BackgroundWorkerHandle *handle = NULL;
	int64		now = LazyDropNow();
	pid_t		pid;
	BackgroundWorker worker;
	MemoryContext old_context;
	long		retry_ms = timeout_ms < 0 ? START_INTERVAL_MS : Min(timeout_ms, START_INTERVAL_MS);

	if (!lazydrop_advisor || LazyDropAdvisorCtl == NULL)
	{
		warned = false;
		return timeout_ms;
	}
	if (pg_atomic_read_u32(&LazyDropAdvisorCtl->worker) != (uint32) INVALID_PROC_NUMBER)
		return timeout_ms;

	/* It may be starting or ending. */
	if (handle != NULL && GetBackgroundWorkerPid(handle, &pid) != BGWH_STOPPED)
		return retry_ms;
	if (last_start != 0 && now - last_start < START_INTERVAL_MS * NS_PER_MS)
		return retry_ms;
	if (handle != NULL)
		pfree(handle);
	handle = NULL;

	memset(&worker, 0, sizeof(worker));
	worker.bgw_flags = BGWORKER_SHMEM_ACCESS;
	worker.bgw_start_time = BgWorkerStart_PostmasterStart;
	worker.bgw_restart_time = BGW_NEVER_RESTART;
	snprintf(worker.bgw_library_name, MAXPGPATH, "postgres");
	snprintf(worker.bgw_function_name, BGW_MAXLEN, "LazyDropAdvisorMain");
	snprintf(worker.bgw_name, BGW_MAXLEN, "lazy drop advisor");
	snprintf(worker.bgw_type, BGW_MAXLEN, "lazy drop advisor");
	old_context = MemoryContextSwitchTo(TopMemoryContext);
	if (RegisterDynamicBackgroundWorker(&worker, &handle))
	{
		last_start = now;
		warned = false;
	}
	else if (!warned)
	{
		ereport(WARNING,
				(errcode(ERRCODE_CONFIGURATION_LIMIT_EXCEEDED),
				 errmsg("could not start the worker of \"%s\"", "lazydrop.advisor"),
				 errhint("You might need to increase \"%s\".", "max_worker_processes")));
		warned = true;
	}
	MemoryContextSwitchTo(old_context);
	return retry_ms;
}

static void
AdvisorExit(int code, Datum arg)
{
	uint32		self = (uint32) MyProcNumber;

	pg_atomic_compare_exchange_u32(&LazyDropAdvisorCtl->worker, &self,
								   (uint32) INVALID_PROC_NUMBER);

	/* the setting may have been switched on again */
	LazyDropWakeWorker();
}

/*
 * Set the model from the settings that the policy depends on.
 */
static void
SetModel(void)
{
	int			blocks_per_kb = BLCKSZ / 1024;

	for (int policy = 0; policy < LAZYDROP_ADVISOR_POLICIES; policy++)
	{
		LazyDropAdvisorModel *model = &pools->model[policy];

		/* as in GetAccessStrategy, with GetPinLimit for each size */
		model->ring_least = 256 / blocks_per_kb;
		model->ring_blocks[LAZYDROP_ADVISOR_BULKREAD] =
			model->ring_least + LazyDropRingReadAhead();
		model->pinners = MaxBackends + NUM_AUXILIARY_PROCS;
		model->ring_blocks[LAZYDROP_ADVISOR_BULKWRITE] = 16 * 1024 / blocks_per_kb;
		model->ring_blocks[LAZYDROP_ADVISOR_VACUUM] =
			VacuumBufferUsageLimit > 0 ? VacuumBufferUsageLimit / blocks_per_kb : NBuffers;
	}
}

/*
 * Reset the results, because the pools are new or the server's policy is, and
 * discard what has not been published.
 */
static void
BeginAnew(void)
{
	LazyDropAdvisorShared *ctl = LazyDropAdvisorCtl;

	LazyDropAdvisorReset();
	SpinLockAcquire(&ctl->mutex);
	ctl->two_classes = lazydrop_scan_resistance != LAZYDROP_SCAN_RESISTANCE_OFF;
	ctl->waiting = false;
	SpinLockRelease(&ctl->mutex);
	discard = true;
}

static void
ProcessAdvisorInterrupts(void)
{
	if (ShutdownRequestPending || !PostmasterIsAlive())
		proc_exit(1);
	if (ConfigReloadPending)
	{
		int			policy = lazydrop_scan_resistance;

		ConfigReloadPending = false;
		ProcessConfigFile(PGC_SIGHUP);
		if (lazydrop_scan_resistance != policy)
			BeginAnew();
		if (!lazydrop_advisor)
			proc_exit(0);
		SetModel();
	}
}

/*
 * Pass the samples in the queue to the pools, but no more batches than the
 * queue has room for: the worker has other work, even if the queue is never
 * empty.  Return the number of batches.
 */
static uint32
TakeSamples(void)
{
	uint32		n = 0;
	LazyDropAdvisorBatch *batch;

	while (n < LazyDropAdvisorCtl->nbatches &&
		   (batch = LazyDropAdvisorNextBatch()) != NULL)
	{
		for (int i = 0; i < batch->nsamples; i++)
			LazyDropAdvisorFeed(pools, &batch->samples[i],
								&interval, &unpublished);
		LazyDropAdvisorBatchTaken(batch);
		n++;
		ProcessAdvisorInterrupts();
	}
	return n;
}

/*
 * Read from pg_stat_io the number of pages in shared buffers that were found,
 * and that were read.
 */
static void
ReadIO(IOTotals *totals)
{
	PgStat_IO  *io;

	pgstat_clear_snapshot();
	io = pgstat_fetch_stat_io();
	memset(totals, 0, sizeof(IOTotals));
	for (int type = 0; type < BACKEND_NUM_TYPES; type++)
	{
		for (int context = 0; context < IOCONTEXT_NUM_TYPES; context++)
		{
			PgStat_BktypeIO *stats = &io->stats[type];

			totals->hits += stats->counts[IOOBJECT_RELATION][context][IOOP_HIT];
			totals->reads += LazyDropPagesRead(stats, IOOBJECT_RELATION, context);
			totals->read_time += stats->times[IOOBJECT_RELATION][context][IOOP_READ] / 1000.0;
		}
	}
	totals->reset = io->stat_reset_timestamp;
	pgstat_clear_snapshot();
}

/*
 * Return whether pg_stat_io has far fewer lookups, or reads, than the samples
 * stand for (rule A8).  A page that is looked up very often, such as the root of
 * an index, is in one quarter of the sample; so the smallest one counts.
 *
 * Samples may also be late, when they have been waiting in the queue: lookups of
 * the previous interval that had no samples are added.
 */
static bool
StatisticsLag(void)
{
	double		rate = pools->model[0].rate;
	double		lookups = interval.lookups[0];
	double		misses = interval.real[0];
	double		all = interval.hits + interval.reads;
	bool		lag;

	for (int quarter = 1; quarter < LAZYDROP_ADVISOR_QUARTERS; quarter++)
	{
		lookups = Min(lookups, interval.lookups[quarter]);
		misses = Min(misses, interval.real[quarter]);
	}
	lag = (lookups >= LAG_SAMPLES &&
		   lookups / rate > LAG_FACTOR * (all + early.hits)) ||
		(misses >= LAG_SAMPLES &&
		 misses / rate > LAG_FACTOR * (interval.reads + early.reads));
	if (!lag)
	{
		early.hits = Max(0, all - lookups / rate);
		early.reads = Max(0, interval.reads - misses / rate);
	}
	return lag;
}

/*
 * Add the sums to the published ones, or begin anew (rule A9).  The caller holds
 * the spinlock.
 */
static void
PublishSums(bool new_epoch, double decay)
{
	LazyDropAdvisorShared *ctl = LazyDropAdvisorCtl;

	LazyDropAdvisorAdd(&ctl->seen, &interval, 1);
	if (pools->anew)
	{
		memset(&ctl->total, 0, sizeof(LazyDropAdvisorSums));
		memset(&ctl->recent, 0, sizeof(LazyDropAdvisorSums));
		memset(&total_of_epoch, 0, sizeof(LazyDropAdvisorSums));
		memset(&recent_of_epoch, 0, sizeof(LazyDropAdvisorSums));
	}
	LazyDropAdvisorAdd(&ctl->total, &unpublished, 1);
	LazyDropAdvisorAdd(&ctl->recent, &unpublished, decay);
	LazyDropAdvisorAdd(&total_of_epoch, &unpublished, 1);
	LazyDropAdvisorAdd(&recent_of_epoch, &unpublished, decay);
	if (new_epoch)
	{
		/* forget what was before this epoch */
		ctl->total = total_of_epoch;
		ctl->recent = recent_of_epoch;
		memset(&total_of_epoch, 0, sizeof(LazyDropAdvisorSums));
		memset(&recent_of_epoch, 0, sizeof(LazyDropAdvisorSums));
	}
}

/*
 * Publish the sums since the last call, with the values of pg_stat_io; or keep
 * them until pg_stat_io has what the samples stand for.
 *
 * Skip the interval if the policy has changed, if pg_stat_io has been reset, or
 * if the startup process has restored its values from before the restart.
 * During a reset, the time of the reset and the numbers may not be of the same
 * reset.
 */
static void
Publish(int64 now)
{
	LazyDropAdvisorShared *ctl = LazyDropAdvisorCtl;
	IOTotals	io;
	uint64		recent_hits = pg_atomic_read_u64(&ctl->recent_hits);
	uint64		dropped = pg_atomic_read_u64(&ctl->dropped);
	TimestampTz until = GetCurrentTimestamp();
	bool		valid;
	bool		waiting = false;
	bool		all_full = true;
	bool		new_epoch;
	double		filled[LAZYDROP_ADVISOR_SIZES];
	double		seconds = (now - published_at) / (1000.0 * NS_PER_MS);
	double		decay = exp(-seconds / lazydrop_advisor_decay);

	LazyDropAdvisorForgetDropped(pools);
	io_read_at = now;
	ReadIO(&io);
	valid = io.reset == io_before.reset && io.hits >= io_before.hits &&
		io.reads >= io_before.reads && io.read_time >= io_before.read_time;
	interval.hits = io.hits - io_before.hits + (recent_hits - recent_hits_before);
	interval.reads = io.reads - io_before.reads;
	interval.read_time = io.read_time - io_before.read_time;
	interval.seconds = seconds;
	interval.dropped = dropped - dropped_before;
	if (valid)
		waiting = StatisticsLag();
	LazyDropAdvisorAddIO(&unpublished, &interval);
	for (int i = 0; i < LAZYDROP_ADVISOR_SIZES; i++)
	{
		filled[i] = LazyDropAdvisorFilled(pools, i);
		all_full = all_full && pools->full[i];
	}
	new_epoch = now >= epoch_end && !all_full;

	SpinLockAcquire(&ctl->mutex);
	if (ctl->stats_reset != reset_seen)
	{
		/* forget what was before; of this interval, only if it may be long */
		reset_seen = ctl->stats_reset;
		memset(&total_of_epoch, 0, sizeof(LazyDropAdvisorSums));
		memset(&recent_of_epoch, 0, sizeof(LazyDropAdvisorSums));
		if (ctl->waiting)
			discard = true;
	}
	if (discard || !valid)
		valid = waiting = false;
	ctl->elapsed = (now - began) / (1000.0 * NS_PER_MS);
	ctl->waiting = waiting;
	memcpy(ctl->filled, filled, sizeof(filled));
	if (valid && !waiting)
	{
		PublishSums(new_epoch, decay);
		ctl->seen_until = until;
	}
	SpinLockRelease(&ctl->mutex);

	if (waiting)
		return;
	if (valid)
	{
		if (now >= epoch_end)
			epoch_end += now - began;
		pools->anew = false;
	}
	discard = false;
	memset(&interval, 0, sizeof(interval));
	memset(&unpublished, 0, sizeof(unpublished));
	io_before = io;
	recent_hits_before = recent_hits;
	dropped_before = dropped;
	published_at = now;
}

/*
 * Create the pools, which are empty, so that the results begin anew, too.
 * Discard the batches in the queue, which are old.
 */
static void
BeginSimulation(void)
{
	int32		frames = LazyDropAdvisorCtl->frames;
	LazyDropAdvisorBatch *batch;

	pools = MemoryContextAllocZero(TopMemoryContext, sizeof(LazyDropAdvisorPools));
	LazyDropAdvisorPoolsInit(pools, frames, NBuffers,
							 MemoryContextAllocHuge(TopMemoryContext,
													LazyDropAdvisorPoolsSize(frames)));
	SetModel();
	for (uint32 i = 0; i < LazyDropAdvisorCtl->nbatches &&
		 (batch = LazyDropAdvisorNextBatch()) != NULL; i++)
		LazyDropAdvisorBatchTaken(batch);
	recent_hits_before = pg_atomic_read_u64(&LazyDropAdvisorCtl->recent_hits);
	dropped_before = pg_atomic_read_u64(&LazyDropAdvisorCtl->dropped);
	ReadIO(&io_before);
	BeginAnew();
	discard = false;
	began = io_read_at = published_at = LazyDropNow();
	epoch_end = began + FIRST_EPOCH_MS * NS_PER_MS;
}

/*
 * Entry point of the worker.
 */
void
LazyDropAdvisorMain(Datum arg)
{
	uint32		none = (uint32) INVALID_PROC_NUMBER;
	long		sleep = MIN_SLEEP_MS;

	pqsignal(SIGHUP, SignalHandlerForConfigReload);
	pqsignal(SIGTERM, SignalHandlerForShutdownRequest);
	BackgroundWorkerUnblockSignals();

	/* Another worker may have been started, if this one was late. */
	if (!lazydrop_advisor ||
		!pg_atomic_compare_exchange_u32(&LazyDropAdvisorCtl->worker, &none,
										(uint32) MyProcNumber))
		proc_exit(0);
	before_shmem_exit(AdvisorExit, (Datum) 0);

	/* a row in pg_stat_activity, without a database or a role */
	InitProcessPhase2();
	LazyDropShowActivity();
	pgstat_report_appname("");
	pgstat_report_activity(STATE_IDLE, "");

	LAZYDROP_INJECTION_POINT("lazydrop-advisor-begin");

	/* pg_stat_io only, not a snapshot of all statistics */
	SetConfigOption("stats_fetch_consistency", "none", PGC_SUSET, PGC_S_OVERRIDE);

	BeginSimulation();
	for (;;)
	{
		uint32		n;
		int64		now;

		ResetLatch(MyLatch);
		ProcessAdvisorInterrupts();
		n = TakeSamples();
		if (n > 0)
			sleep = MIN_SLEEP_MS;
		else
			sleep = Min(2 * sleep, MAX_SLEEP_MS);

		now = LazyDropNow();
		if (n == 0)
			LazyDropAdvisorSkipAbandoned(now);
		if (now - io_read_at >= IO_INTERVAL_MS * NS_PER_MS)
			Publish(now);

		(void) WaitLatch(MyLatch,
						 WL_LATCH_SET | WL_EXIT_ON_PM_DEATH | WL_TIMEOUT,
						 n < LazyDropAdvisorCtl->nbatches ? sleep : 0,
						 LazyDropAdvisorCtl->wait_event);
	}
}
