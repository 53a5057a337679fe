/*-------------------------------------------------------------------------
 *
 * lazydrop_stats.c
 *	  Statistics of the lazy drop.
 *
 * LazyDropGetStats collects everything that the setting lazydrop.stats shows as
 * JSON, and the extension pg_lazydrop as a view.  The setting needs no catalog
 * object, so it also works on a standby whose primary is a stock server.
 *
 * Copyright (c) 2026, LazyDrop developers
 *
 * IDENTIFICATION
 *	  src/backend/storage/lazydrop/lazydrop_stats.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "fmgr.h"
#include "lib/stringinfo.h"
#include "storage/bufmgr.h"
#include "storage/lazydrop.h"
#include "storage/lazydrop_advisor.h"
#include "storage/lazydrop_cache.h"
#include "storage/lazydrop_internal.h"
#include "storage/lazydrop_stats.h"
#include "storage/proc.h"
#include "utils/timestamp.h"

/*
 * Keys of the counters in lazydrop.stats, in the order of LazyDropCounter.
 */
static const char *const counter_names[] = {
	"deferred_relations",
	"deferred_databases",
	"passes",
	"headers_visited",
	"buffers_invalidated",
	"writes_skipped",
	"sync_fallbacks",
	"reuse_waits",
	"files_removed",
	"bytes_removed",
	"checkpoint_waits",
	"checkpoint_wait_ms",
	"hide_failures",
	"undeferred_removals",
	"blocks_looked_up",
};

StaticAssertDecl(lengthof(counter_names) == LAZYDROP_NUM_COUNTERS,
				 "counter_names must have the counters of LazyDropCounter");

/*
 * Return the statistics.  The pending drops, the passes and the time of the
 * last reset are consistent, because they change only with the lock held.
 * Other counters may change meanwhile.  The caller holds no LWLock.
 */
void
LazyDropGetStats(LazyDropStats *stats)
{
	ProcNumber	worker;

	memset(stats, 0, sizeof(LazyDropStats));
	LazyDropMeasureAll();

	LWLockAcquire(&LazyDropCtl->lock, LW_SHARED);
	LazyDropSumPending(stats);
	stats->last_pass = LazyDropCtl->last_pass;
	stats->last_pass_ms = LazyDropCtl->last_pass_us / 1000.0;
	stats->last_pass_buffers = LazyDropCtl->last_pass_buffers;
	stats->stats_reset = LazyDropCtl->stats_reset;

	for (int i = 0; i < LAZYDROP_NUM_COUNTERS; i++)
		stats->counters[i] = pg_atomic_read_u64(&LazyDropCtl->counters[i]);
	LWLockRelease(&LazyDropCtl->lock);

	/* A pass is counted only when it has visited all headers. */
	stats->last_pass_headers = stats->last_pass != 0 ? NBuffers : 0;

	stats->version = LAZYDROP_VERSION;
	stats->max_pending = LazyDropCtl->capacity;
	worker = (ProcNumber) pg_atomic_read_u32(&LazyDropCtl->worker);
	if (worker != INVALID_PROC_NUMBER)
		stats->worker_pid = GetPGProcByNumber(worker)->pid;
}

/*
 * Return an array of all pending drops, oldest first, allocated in the current
 * memory context.  The caller holds no LWLock.
 *
 * The array is filled at once with the lock held, because an entry could be
 * deleted while the caller continues behind it.
 */
LazyDropPending *
LazyDropGetPending(int *npending)
{
	LazyDropPending *result;
	int			room;

	LazyDropMeasureAll();

	/*
	 * Drops that are added after this may be left out.  Touch the memory now,
	 * because the first access takes time, and droppers wait for the lock.
	 */
	room = pg_atomic_read_u32(&LazyDropCtl->npending);
	result = palloc_extended(mul_size(Max(room, 1), sizeof(LazyDropPending)),
							 MCXT_ALLOC_HUGE | MCXT_ALLOC_ZERO);
	*npending = LazyDropListPending(result, room, lazydrop_pass_delay);
	return result;
}

/*
 * Reset all counters, including those of the buffer cache, and forget the last
 * pass.
 */
void
LazyDropResetStats(void)
{
	LWLockAcquire(&LazyDropCtl->lock, LW_EXCLUSIVE);
	for (int i = 0; i < LAZYDROP_NUM_COUNTERS; i++)
		pg_atomic_write_u64(&LazyDropCtl->counters[i], 0);
	LazyDropCtl->last_pass = 0;
	LazyDropCtl->last_pass_us = 0;
	LazyDropCtl->last_pass_buffers = 0;
	LazyDropCtl->stats_reset = GetCurrentTimestamp();
	LWLockRelease(&LazyDropCtl->lock);
	LazyDropCacheResetStats();
}

/*
 * Show hook of lazydrop.stats.
 */
const char *
LazyDropShowStats(void)
{
	static StringInfoData buf;
	LazyDropStats stats;

	if (LazyDropCtl == NULL)
		return "";
	LazyDropGetStats(&stats);

	LazyDropBeginShow(&buf);

	appendStringInfo(&buf, "{\"version\": \"%s\", \"pending_relations\": %d, \"pending_databases\": %d, \"max_pending\": %d",
					 stats.version, stats.pending_relations, stats.pending_databases,
					 stats.max_pending);
	appendStringInfo(&buf, ", \"pending_files\": " INT64_FORMAT ", \"pending_bytes\": " INT64_FORMAT,
					 stats.pending_files, stats.pending_bytes);
	if (stats.oldest_age_ms >= 0)
		appendStringInfo(&buf, ", \"oldest_age_ms\": " INT64_FORMAT, stats.oldest_age_ms);
	else
		appendStringInfoString(&buf, ", \"oldest_age_ms\": null");
	if (stats.worker_pid != 0)
		appendStringInfo(&buf, ", \"worker_pid\": %d", stats.worker_pid);
	else
		appendStringInfoString(&buf, ", \"worker_pid\": null");

	for (int i = 0; i < LAZYDROP_NUM_COUNTERS; i++)
	{
		appendStringInfo(&buf, ", \"%s\": ", counter_names[i]);
		if (LAZYDROP_COUNTER_IS_TIME(i))
			appendStringInfo(&buf, "%.3f", stats.counters[i] / 1000.0);
		else
			appendStringInfo(&buf, INT64_FORMAT, stats.counters[i]);
	}
	if (stats.last_pass != 0)
	{
		LazyDropShowTimestamp(&buf, "last_pass", stats.last_pass);
		appendStringInfo(&buf, ", \"last_pass_ms\": %.3f", stats.last_pass_ms);
		appendStringInfo(&buf, ", \"last_pass_headers\": " INT64_FORMAT
						 ", \"last_pass_buffers\": " INT64_FORMAT,
						 stats.last_pass_headers, stats.last_pass_buffers);
	}
	else
		appendStringInfoString(&buf, ", \"last_pass\": null, \"last_pass_ms\": null"
							   ", \"last_pass_headers\": null, \"last_pass_buffers\": null");
	LazyDropShowTimestamp(&buf, "stats_reset", stats.stats_reset);
	appendStringInfoChar(&buf, '}');
	return buf.data;
}

static const LazyDropRoutines routines = {
	.version = LAZYDROP_ROUTINES_VERSION,
	.get_stats = LazyDropGetStats,
	.get_cache_stats = LazyDropCacheGetStats,
	.get_pending = LazyDropGetPending,
	.drain = LazyDropDrain,
	.reset_stats = LazyDropResetStats,
	.reset_advice = LazyDropAdvisorReset,
	.get_memory = LazyDropAdvisorMemory,
	.get_verdicts = LazyDropAdvisorGetVerdicts,
	.get_advice = LazyDropAdvisorGetStats,
};

/*
 * Make our functions available to contrib/pg_lazydrop.  Called in each process
 * that has settings.
 */
void
LazyDropPublishRoutines(void)
{
	*find_rendezvous_variable(LAZYDROP_RENDEZVOUS) = unconstify(LazyDropRoutines *, &routines);
}
