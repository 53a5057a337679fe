/*-------------------------------------------------------------------------
 *
 * lazydrop_stats.c
 *	  What the lazy drop tells of itself.
 *
 * One function, LazyDropGetStats, collects what lazydrop.stats shows as JSON and the
 * extension pg_lazydrop as a view.  The setting needs no catalog object, and so can be
 * read on a standby whose primary is a stock server.
 *
 * Copyright (c) 2026, LazyDrop developers
 *
 * IDENTIFICATION
 *	  src/backend/storage/lazydrop/lazydrop_stats.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "catalog/pg_type_d.h"
#include "fmgr.h"
#include "lib/stringinfo.h"
#include "storage/bufmgr.h"
#include "storage/lazydrop.h"
#include "storage/lazydrop_advisor.h"
#include "storage/lazydrop_cache.h"
#include "storage/lazydrop_internal.h"
#include "storage/lazydrop_stats.h"
#include "storage/proc.h"
#include "utils/datetime.h"
#include "utils/json.h"
#include "utils/memutils.h"
#include "utils/timestamp.h"

/*
 * Tell what is pending now, and what has been counted since the last reset.  What
 * is changed under the lock belongs together: what is pending, passes, a reset.  Other
 * counters go on meanwhile.  The caller holds no LWLock.
 */
void
LazyDropGetStats(LazyDropStats *stats)
{
	int64		oldest = 0;
	ProcNumber	worker;
	dlist_iter	iter;

	memset(stats, 0, sizeof(LazyDropStats));
	LazyDropMeasureAll();

	LWLockAcquire(&LazyDropCtl->lock, LW_SHARED);
	stats->pending_databases = LazyDropCtl->ndatabases;
	stats->pending_relations =
		pg_atomic_read_u32(&LazyDropCtl->npending) - LazyDropCtl->ndatabases;
	if (!dlist_is_empty(&LazyDropCtl->pending))
		oldest = dlist_head_element(LazyDropEntry, node,
									&LazyDropCtl->pending)->buried_at_ns;
	dlist_foreach(iter, &LazyDropCtl->pending)
	{
		LazyDropEntry *entry = dlist_container(LazyDropEntry, node, iter.cur);

		stats->pending_files += entry->nfiles;
		stats->pending_bytes += entry->bytes;
		/* It has files, but is none of what has been dropped. */
		if (LazyDropIsForLeftovers(&entry->locator))
			stats->pending_relations--;
	}
	stats->last_pass = LazyDropCtl->last_pass;
	stats->last_pass_ms = LazyDropCtl->last_pass_us / 1000.0;
	stats->last_pass_buffers = LazyDropCtl->last_pass_buffers;
	stats->stats_reset = LazyDropCtl->stats_reset;

	stats->deferred_relations = pg_atomic_read_u64(&LazyDropCtl->deferred_relations);
	stats->deferred_databases = pg_atomic_read_u64(&LazyDropCtl->deferred_databases);
	stats->passes = pg_atomic_read_u64(&LazyDropCtl->passes);
	stats->buffers_invalidated = pg_atomic_read_u64(&LazyDropCtl->buffers_invalidated);
	stats->writes_skipped = pg_atomic_read_u64(&LazyDropCtl->writes_skipped);
	stats->sync_fallbacks = pg_atomic_read_u64(&LazyDropCtl->sync_fallbacks);
	stats->reuse_waits = pg_atomic_read_u64(&LazyDropCtl->reuse_waits);
	stats->files_removed = pg_atomic_read_u64(&LazyDropCtl->files_removed);
	stats->bytes_removed = pg_atomic_read_u64(&LazyDropCtl->bytes_removed);
	stats->checkpoint_waits = pg_atomic_read_u64(&LazyDropCtl->checkpoint_waits);
	stats->checkpoint_wait_ms =
		pg_atomic_read_u64(&LazyDropCtl->checkpoint_wait_us) / 1000.0;
	stats->hide_failures = pg_atomic_read_u64(&LazyDropCtl->hide_failures);
	stats->undeferred_removals =
		pg_atomic_read_u64(&LazyDropCtl->undeferred_removals);
	LWLockRelease(&LazyDropCtl->lock);

	/* a pass that is counted has visited all of them */
	stats->headers_visited = stats->passes * NBuffers;
	stats->last_pass_headers = stats->last_pass != 0 ? NBuffers : 0;

	stats->version = LAZYDROP_VERSION;
	stats->max_pending = LazyDropCtl->capacity;
	stats->oldest_age_ms = oldest == 0 ? -1 : (LazyDropNow() - oldest) / 1000000;
	worker = (ProcNumber) pg_atomic_read_u32(&LazyDropCtl->worker);
	if (worker != INVALID_PROC_NUMBER)
		stats->worker_pid = GetPGProcByNumber(worker)->pid;
}

/*
 * List what is pending, in the order in which it was dropped, in memory of the
 * current context.  The caller holds no LWLock.
 *
 * The list is copied in one go, because an entry may be gone when one would go on
 * behind it.  Droppers wait meanwhile.
 */
LazyDropPending *
LazyDropGetPending(int *npending)
{
	LazyDropPending *result;
	int			room;
	int			n = 0;
	int64		now_ns;
	TimestampTz now;
	dlist_iter	iter;

	LazyDropMeasureAll();

	/*
	 * What is dropped between the two looks may be left out.  Zeroed, because
	 * memory that is used for the first time takes time under the lock.
	 */
	room = pg_atomic_read_u32(&LazyDropCtl->npending);
	result = palloc_extended(mul_size(Max(room, 1), sizeof(LazyDropPending)),
							 MCXT_ALLOC_HUGE | MCXT_ALLOC_ZERO);
	now_ns = LazyDropNow();
	now = GetCurrentTimestamp();

	LWLockAcquire(&LazyDropCtl->lock, LW_SHARED);
	dlist_foreach(iter, &LazyDropCtl->pending)
	{
		LazyDropEntry *entry = dlist_container(LazyDropEntry, node, iter.cur);
		LazyDropPending *pending = &result[n];

		if (n == room)
			break;
		if (LazyDropIsForLeftovers(&entry->locator))
			continue;
		pending->locator = entry->locator;
		pending->since = now - (now_ns - entry->buried_at_ns) / 1000;
		pending->buffers_done = !entry->buffers || entry->passed;
		pending->files_done = entry->files == LAZYDROP_FILES_NONE;
		pending->files = entry->nfiles;
		pending->bytes = entry->bytes;
		n++;
	}
	LWLockRelease(&LazyDropCtl->lock);
	*npending = n;
	return result;
}

/*
 * Set all counters to zero, the buffer cache's among them, and forget the last pass.
 * What is pending stays.
 */
void
LazyDropResetStats(void)
{
	LWLockAcquire(&LazyDropCtl->lock, LW_EXCLUSIVE);
	pg_atomic_write_u64(&LazyDropCtl->deferred_relations, 0);
	pg_atomic_write_u64(&LazyDropCtl->deferred_databases, 0);
	pg_atomic_write_u64(&LazyDropCtl->passes, 0);
	pg_atomic_write_u64(&LazyDropCtl->buffers_invalidated, 0);
	pg_atomic_write_u64(&LazyDropCtl->writes_skipped, 0);
	pg_atomic_write_u64(&LazyDropCtl->sync_fallbacks, 0);
	pg_atomic_write_u64(&LazyDropCtl->reuse_waits, 0);
	pg_atomic_write_u64(&LazyDropCtl->files_removed, 0);
	pg_atomic_write_u64(&LazyDropCtl->bytes_removed, 0);
	pg_atomic_write_u64(&LazyDropCtl->checkpoint_waits, 0);
	pg_atomic_write_u64(&LazyDropCtl->checkpoint_wait_us, 0);
	pg_atomic_write_u64(&LazyDropCtl->hide_failures, 0);
	pg_atomic_write_u64(&LazyDropCtl->undeferred_removals, 0);
	LazyDropCtl->last_pass = 0;
	LazyDropCtl->last_pass_us = 0;
	LazyDropCtl->last_pass_buffers = 0;
	LazyDropCtl->stats_reset = GetCurrentTimestamp();
	LWLockRelease(&LazyDropCtl->lock);
	LazyDropCacheResetStats();
}

static void
AppendTimestamp(StringInfo buf, const char *name, TimestampTz value)
{
	char		encoded[MAXDATELEN + 1];

	appendStringInfo(buf, ", \"%s\": \"%s\"", name,
					 JsonEncodeDateTime(encoded, TimestampTzGetDatum(value),
										TIMESTAMPTZOID, NULL));
}

/*
 * Value of lazydrop.stats.
 */
const char *
LazyDropShowStats(void)
{
	static StringInfoData buf;
	LazyDropStats stats;

	if (LazyDropCtl == NULL)
		return "";
	LazyDropGetStats(&stats);

	if (buf.data == NULL)
	{
		MemoryContext old_context = MemoryContextSwitchTo(TopMemoryContext);

		initStringInfo(&buf);
		MemoryContextSwitchTo(old_context);
	}
	resetStringInfo(&buf);

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

#define COUNTER(name) \
	appendStringInfo(&buf, ", \"" #name "\": " INT64_FORMAT, stats.name)
	COUNTER(deferred_relations);
	COUNTER(deferred_databases);
	COUNTER(passes);
	COUNTER(headers_visited);
	COUNTER(buffers_invalidated);
	COUNTER(writes_skipped);
	COUNTER(sync_fallbacks);
	COUNTER(reuse_waits);
	COUNTER(files_removed);
	COUNTER(bytes_removed);
	COUNTER(checkpoint_waits);
	appendStringInfo(&buf, ", \"checkpoint_wait_ms\": %.3f", stats.checkpoint_wait_ms);
	COUNTER(hide_failures);
	COUNTER(undeferred_removals);
	if (stats.last_pass != 0)
	{
		AppendTimestamp(&buf, "last_pass", stats.last_pass);
		appendStringInfo(&buf, ", \"last_pass_ms\": %.3f", stats.last_pass_ms);
		COUNTER(last_pass_headers);
		COUNTER(last_pass_buffers);
	}
	else
		appendStringInfoString(&buf, ", \"last_pass\": null, \"last_pass_ms\": null"
							   ", \"last_pass_headers\": null, \"last_pass_buffers\": null");
#undef COUNTER
	AppendTimestamp(&buf, "stats_reset", stats.stats_reset);
	appendStringInfoChar(&buf, '}');
	return buf.data;
}

/*
 * Value of lazydrop.cache_stats.
 */
const char *
LazyDropShowCacheStats(void)
{
	static StringInfoData buf;
	LazyDropCacheStats stats;

	if (LazyDropCtl == NULL)
		return "";
	LazyDropCacheGetStats(&stats);

	if (buf.data == NULL)
	{
		MemoryContext old_context = MemoryContextSwitchTo(TopMemoryContext);

		initStringInfo(&buf);
		MemoryContextSwitchTo(old_context);
	}
	resetStringInfo(&buf);

	appendStringInfo(&buf, "{\"scan_resistance\": \"%s\"", stats.scan_resistance);
#define NUMBER(name) \
	appendStringInfo(&buf, ", \"" #name "\": " INT64_FORMAT, stats.name)
	NUMBER(buffers);
	NUMBER(main);
	NUMBER(probation);
	NUMBER(loads);
	NUMBER(ring_loads);
	NUMBER(free_loads);
	NUMBER(bulk_loads);
	NUMBER(ghost_hits);
	NUMBER(promotions);
	NUMBER(demotions);
	NUMBER(resets);
	NUMBER(evictions);
	NUMBER(fallbacks);
#undef NUMBER
	AppendTimestamp(&buf, "stats_reset", stats.stats_reset);
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
};

/*
 * Let contrib/pg_lazydrop find us.  Called in each process that has settings.
 */
void
LazyDropPublishRoutines(void)
{
	*find_rendezvous_variable(LAZYDROP_RENDEZVOUS) = unconstify(LazyDropRoutines *, &routines);
}
