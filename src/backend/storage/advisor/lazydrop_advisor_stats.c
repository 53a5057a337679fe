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

/* What is published, as it was at one time. */
typedef struct Published
{
	LazyDropAdvisorSums seen;
	LazyDropAdvisorSums total;
	LazyDropAdvisorSums recent;
	double		filled[LAZYDROP_ADVISOR_SIZES];
	bool		two_classes;	/* the server's policy */
	double		elapsed;
	bool		waiting;
	int64		dropped;
	int			worker_pid;
	double		rate;			/* part of the pages that is sampled */
	TimestampTz stats_reset;
	TimestampTz seen_until;
} Published;

static void
GetPublished(Published *published)
{
	LazyDropAdvisorShared *ctl = LazyDropAdvisorCtl;
	uint64		dropped = pg_atomic_read_u64(&ctl->dropped);
	uint32		worker;

	SpinLockAcquire(&ctl->mutex);
	published->seen = ctl->seen;
	published->total = ctl->total;
	published->recent = ctl->recent;
	memcpy(published->filled, ctl->filled, sizeof(ctl->filled));
	published->two_classes = ctl->two_classes;
	published->elapsed = ctl->elapsed;
	published->waiting = ctl->waiting;
	published->dropped = dropped - Min(dropped, ctl->dropped_before);
	published->stats_reset = ctl->stats_reset;
	published->seen_until = ctl->seen_until;
	SpinLockRelease(&ctl->mutex);

	worker = pg_atomic_read_u32(&ctl->worker);
	published->worker_pid = worker == (uint32) INVALID_PROC_NUMBER ? 0 :
		GetPGProcByNumber((ProcNumber) worker)->pid;
	published->rate = (double) ctl->frames * LAZYDROP_ADVISOR_QUARTERS / NBuffers;
}

/*
 * Return lookups per second.
 */
static double
Lookups(const LazyDropAdvisorSums *sums)
{
	return sums->seconds > 0 ? (sums->hits + sums->reads) / sums->seconds : 0;
}

/*
 * Return the hit ratio for this number of reads, or -1 without lookups.
 */
static double
HitRatio(double lookups, double reads)
{
	return lookups > 0 ? Max(0, 1 - reads / lookups) : -1;
}

/*
 * Return the results since the last reset.  Takes no lock but a spinlock.
 */
void
LazyDropAdvisorGetStats(LazyDropAdviceStats *stats)
{
	Published	published;
	LazyDropAdvisorEstimate curve[LAZYDROP_ADVISOR_POLICIES][LAZYDROP_ADVISOR_SIZES];
	LazyDropAdvisorEstimate recent[LAZYDROP_ADVISOR_SIZES];
	int			own;
	double		seconds;
	double		read_time = 0;

	memset(stats, 0, sizeof(LazyDropAdviceStats));
	GetPublished(&published);
	own = published.two_classes;
	stats->enabled = lazydrop_advisor;
	stats->two_classes = lazydrop_scan_resistance != LAZYDROP_SCAN_RESISTANCE_OFF;
	stats->worker_pid = published.worker_pid;
	stats->frames = LazyDropAdvisorCtl->frames * LAZYDROP_ADVISOR_QUARTERS;
	stats->rate = published.rate;
	stats->samples = published.seen.samples;
	stats->dropped = published.dropped;
	stats->hits = published.seen.hits;
	stats->reads = published.seen.reads;
	stats->seconds = published.seen.seconds;
	stats->stats_reset = published.stats_reset;
	stats->seen_until = published.seen_until;

	for (int policy = 0; policy < LAZYDROP_ADVISOR_POLICIES; policy++)
		LazyDropAdvisorGetCurve(&published.total, published.rate, policy, own,
								curve[policy]);
	LazyDropAdvisorGetCurve(&published.recent, published.rate, own, own, recent);
	seconds = published.total.seconds;
	if (published.total.reads > 0)
		read_time = published.total.read_time / published.total.reads;
	for (int i = 0; i < LAZYDROP_ADVISOR_SIZES; i++)
	{
		LazyDropAdvice *size = &stats->sizes[i];

		size->factor = LazyDropAdvisorFactors[i];
		size->buffers = (int64) (NBuffers * size->factor + 0.5);
		size->reads_per_second = curve[own][i].reads;
		size->hit_ratio = HitRatio(Lookups(&published.total), size->reads_per_second);
		size->reads = size->reads_per_second * seconds;
		size->read_time_ms = size->reads * read_time;
		size->time_saved_ms = (curve[own][LAZYDROP_ADVISOR_REAL].reads -
							   size->reads_per_second) * seconds * read_time;
		size->cold_reads = published.total.cold[i][own] / published.rate;
		size->filled = published.filled[i];
		for (int policy = 0; policy < LAZYDROP_ADVISOR_POLICIES; policy++)
		{
			size->policy_reads[policy] = curve[policy][i].reads;
			size->policy_error[policy] = curve[policy][i].error;
		}
		size->recent_reads_per_second = recent[i].reads;
		size->recent_hit_ratio = HitRatio(Lookups(&published.recent), recent[i].reads);
	}
}

/*
 * Return what to do, for a period and a policy.
 */
static void
GetVerdict(const Published *published, bool recent, bool two_classes, int64 memory,
		   LazyDropAdviceVerdict *result)
{
	static const char *const verdicts[] = {
		[LAZYDROP_ADVISOR_UNKNOWN] = "unknown",
		[LAZYDROP_ADVISOR_KEEP] = "keep",
		[LAZYDROP_ADVISOR_INCREASE] = "increase",
		[LAZYDROP_ADVISOR_REDUCIBLE] = "reducible",
		[LAZYDROP_ADVISOR_BEYOND] = "beyond",
	};
	const LazyDropAdvisorSums *sums = recent ? &published->recent : &published->total;
	LazyDropAdvisorEvidence evidence;
	LazyDropAdvisorDecision decision;

	LazyDropAdvisorGetCurve(sums, published->rate, two_classes, published->two_classes,
							evidence.curve);
	evidence.lookups = Lookups(sums);
	evidence.rate = published->rate;
	evidence.samples = sums->samples;
	evidence.dropped = sums->dropped;
	evidence.seconds = sums->seconds;
	memcpy(evidence.filled, published->filled, sizeof(evidence.filled));
	evidence.elapsed = published->elapsed;
	evidence.buffers = NBuffers;
	evidence.memory = (double) memory / BLCKSZ;
	decision = LazyDropAdvisorDecide(&evidence);

	memset(result, 0, sizeof(LazyDropAdviceVerdict));
	result->recent = recent;
	result->two_classes = two_classes;
	result->verdict = verdicts[decision.verdict];
	result->wait = decision.wait;
	if (decision.verdict == LAZYDROP_ADVISOR_UNKNOWN)
	{
		if (!lazydrop_advisor && sums->samples == 0)
			result->verdict = "off";
		else if (lazydrop_advisor && published->worker_pid == 0)
			result->verdict = "no worker";
		else if (lazydrop_advisor && published->waiting)
			result->verdict = "waiting";
		if (result->verdict != verdicts[decision.verdict])
			result->wait = -1;
	}
	result->reads_now = sums->seconds > 0 ? sums->reads / sums->seconds : 0;
	result->hit_ratio_now = HitRatio(evidence.lookups, result->reads_now);
	if (decision.verdict != LAZYDROP_ADVISOR_UNKNOWN)
	{
		result->bytes = (int64) (NBuffers * LazyDropAdvisorFactors[decision.size] + 0.5) * BLCKSZ;
		result->reads_then = evidence.curve[decision.size].reads;
		result->error = evidence.curve[decision.size].error;
		result->hit_ratio_then = HitRatio(evidence.lookups, result->reads_then);
	}
	if (sums->reads > 0)
		result->read_time_ms = sums->read_time / sums->reads;
	result->seconds = sums->seconds;
	result->until = published->seen_until;
}

/*
 * Return what to do, in LAZYDROP_ADVICE_VERDICTS rows: since the last reset, and
 * recently; with scan resistance off, and on.  memory is that for shared_buffers
 * and the file-system cache, in bytes.
 */
void
LazyDropAdvisorGetVerdicts(int64 memory, LazyDropAdviceVerdict *verdicts)
{
	Published	published;

	GetPublished(&published);
	for (int i = 0; i < LAZYDROP_ADVICE_VERDICTS; i++)
		GetVerdict(&published, i / 2, i % 2, memory, &verdicts[i]);
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
	memset(&ctl->seen, 0, sizeof(ctl->seen));
	memset(&ctl->total, 0, sizeof(ctl->total));
	memset(&ctl->recent, 0, sizeof(ctl->recent));
	ctl->dropped_before = dropped;
	ctl->stats_reset = now;
	ctl->seen_until = 0;
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
		appendStringInfo(&buf, ", \"cold_reads\": %.0f, \"filled\": %.3f",
						 size->cold_reads, size->filled);
		appendStringInfo(&buf, ", \"off_reads_per_second\": %.1f, \"off_error\": %.1f",
						 size->policy_reads[0], size->policy_error[0]);
		appendStringInfo(&buf, ", \"on_reads_per_second\": %.1f, \"on_error\": %.1f",
						 size->policy_reads[1], size->policy_error[1]);
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
	if (stats.seen_until != 0)
		LazyDropShowTimestamp(&buf, "seen_until", stats.seen_until);
	appendStringInfoChar(&buf, '}');
	return buf.data;
}
