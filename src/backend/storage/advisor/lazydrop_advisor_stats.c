/*-------------------------------------------------------------------------
 *
 * lazydrop_advisor_stats.c
 *	  Results of the advisor.
 *
 * Copyright (c) 2026, LazyDrop developers
 *
 * IDENTIFICATION
 *	  src/backend/storage/advisor/lazydrop_advisor_stats.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "lib/stringinfo.h"
#include "storage/bufmgr.h"
#include "storage/lazydrop_advisor.h"
#include "storage/lazydrop_advisor_shared.h"
#include "storage/lazydrop_cache.h"
#include "storage/lazydrop_common.h"
#include "storage/proc.h"
#include "utils/timestamp.h"

/*
 * Return the hit ratio for this number of reads, or -1 without lookups.
 */
static double
HitRatio(const LazyDropAdvisorSums *sums, double reads)
{
	double		all = sums->hits + sums->reads;

	return all > 0 ? 1 - reads / all : -1;
}

/*
 * Return the results since the last reset.  Takes no lock but a spinlock.
 */
void
LazyDropAdvisorGetStats(LazyDropAdviceStats *stats)
{
	LazyDropAdvisorShared *ctl = LazyDropAdvisorCtl;
	LazyDropAdvisorSums total;
	LazyDropAdvisorSums recent;
	uint64		dropped;
	uint32		worker;
	double		reads[LAZYDROP_ADVISOR_SIZES];
	double		recent_reads[LAZYDROP_ADVISOR_SIZES];
	double		read_time;

	memset(stats, 0, sizeof(LazyDropAdviceStats));
	dropped = pg_atomic_read_u64(&ctl->dropped);
	SpinLockAcquire(&ctl->mutex);
	total = ctl->total;
	recent = ctl->recent;
	dropped -= Min(dropped, ctl->dropped_before);
	stats->stats_reset = ctl->stats_reset;
	SpinLockRelease(&ctl->mutex);

	stats->enabled = lazydrop_advisor;
	stats->two_classes = lazydrop_scan_resistance;
	worker = pg_atomic_read_u32(&ctl->worker);
	if (worker != (uint32) INVALID_PROC_NUMBER)
		stats->worker_pid = GetPGProcByNumber((ProcNumber) worker)->pid;
	stats->frames = ctl->frames;
	stats->rate = (double) ctl->frames / NBuffers;
	stats->samples = total.lookups;
	stats->dropped = dropped;
	stats->hits = total.hits;
	stats->reads = total.reads;
	stats->seconds = total.seconds;

	LazyDropAdvisorEstimate(&total, stats->rate, reads);
	LazyDropAdvisorEstimate(&recent, stats->rate, recent_reads);
	read_time = total.reads > 0 ? total.read_time / total.reads : 0;
	for (int i = 0; i < LAZYDROP_ADVISOR_SIZES; i++)
	{
		LazyDropAdvice *size = &stats->sizes[i];

		size->factor = LazyDropAdvisorFactors[i];
		size->buffers = (int64) (NBuffers * size->factor + 0.5);
		size->hit_ratio = HitRatio(&total, reads[i]);
		size->reads = reads[i];
		size->reads_per_second = total.seconds > 0 ? reads[i] / total.seconds : 0;
		size->read_time_ms = reads[i] * read_time;
		size->time_saved_ms = (total.reads - reads[i]) * read_time;
		if (total.misses[i] > 0)
			size->cold_reads = reads[i] * total.cold[i] / total.misses[i];
		size->recent_hit_ratio = HitRatio(&recent, recent_reads[i]);
		if (recent.seconds > 0)
			size->recent_reads_per_second = recent_reads[i] / recent.seconds;
	}
}

/*
 * Reset the results.  The pools keep their pages, so that they need not warm
 * up again.
 */
void
LazyDropAdvisorReset(void)
{
	LazyDropAdvisorShared *ctl = LazyDropAdvisorCtl;
	TimestampTz now = GetCurrentTimestamp();
	uint64		dropped = pg_atomic_read_u64(&ctl->dropped);

	SpinLockAcquire(&ctl->mutex);
	memset(&ctl->total, 0, sizeof(LazyDropAdvisorSums));
	memset(&ctl->recent, 0, sizeof(LazyDropAdvisorSums));
	ctl->dropped_before = dropped;
	ctl->stats_reset = now;
	SpinLockRelease(&ctl->mutex);
}

static void
AppendRatio(StringInfo buf, const char *name, double ratio)
{
	if (ratio < 0)
		appendStringInfo(buf, ", \"%s\": null", name);
	else
		appendStringInfo(buf, ", \"%s\": %.4f", name, ratio);
}

/*
 * Show hook of lazydrop.advice.
 */
const char *
LazyDropAdvisorShow(void)
{
	static StringInfoData buf;
	LazyDropAdviceStats stats;

	if (LazyDropAdvisorCtl == NULL)
		return "";
	LazyDropAdvisorGetStats(&stats);

	LazyDropBeginShow(&buf);

	appendStringInfoString(&buf, "{\"sizes\": [");
	for (int i = 0; i < LAZYDROP_ADVICE_SIZES; i++)
	{
		LazyDropAdvice *size = &stats.sizes[i];

		appendStringInfo(&buf, "%s{\"factor\": %g, \"shared_buffers\": " INT64_FORMAT,
						 i > 0 ? ", " : "", size->factor, size->buffers * BLCKSZ);
		AppendRatio(&buf, "hit_ratio", size->hit_ratio);
		appendStringInfo(&buf, ", \"reads\": %.0f, \"reads_per_second\": %.1f",
						 size->reads, size->reads_per_second);
		appendStringInfo(&buf, ", \"read_time_ms\": %.3f, \"time_saved_ms\": %.3f",
						 size->read_time_ms, size->time_saved_ms);
		appendStringInfo(&buf, ", \"cold_reads\": %.0f", size->cold_reads);
		AppendRatio(&buf, "recent_hit_ratio", size->recent_hit_ratio);
		appendStringInfo(&buf, ", \"recent_reads_per_second\": %.1f}",
						 size->recent_reads_per_second);
	}
	appendStringInfo(&buf, "], \"enabled\": %s, \"policy\": \"%s\"",
					 stats.enabled ? "true" : "false",
					 stats.two_classes ? "two classes" : "clock sweep");
	if (stats.worker_pid != 0)
		appendStringInfo(&buf, ", \"worker_pid\": %d", stats.worker_pid);
	else
		appendStringInfoString(&buf, ", \"worker_pid\": null");
	appendStringInfo(&buf, ", \"frames\": %d, \"rate\": %.9g", stats.frames, stats.rate);
	appendStringInfo(&buf, ", \"samples\": %.0f, \"samples_dropped\": " INT64_FORMAT,
					 stats.samples, stats.dropped);
	appendStringInfo(&buf, ", \"hits\": %.0f, \"reads\": %.0f, \"seconds\": %.1f",
					 stats.hits, stats.reads, stats.seconds);
	LazyDropShowTimestamp(&buf, "stats_reset", stats.stats_reset);
	appendStringInfoChar(&buf, '}');
	return buf.data;
}
