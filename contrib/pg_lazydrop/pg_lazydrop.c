/*-------------------------------------------------------------------------
 *
 * pg_lazydrop.c
 *	  SQL functions that monitor the lazy drop.
 *
 * The module calls the server's routines through a rendezvous variable, so
 * that a stock server can load it too; it then reports an error.
 *
 * Copyright (c) 2026, LazyDrop developers
 *
 * IDENTIFICATION
 *	  contrib/pg_lazydrop/pg_lazydrop.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include <math.h>

#include "access/htup_details.h"
#include "fmgr.h"
#include "funcapi.h"
#include "miscadmin.h"
#include "storage/lazydrop_advisor.h"
#include "storage/lazydrop_compat.h"
#include "storage/lazydrop_stats.h"
#include "utils/builtins.h"
#include "utils/guc.h"
#include "utils/timestamp.h"
#include "utils/tuplestore.h"

PG_MODULE_MAGIC_EXT(
					.name = "pg_lazydrop",
					.version = LAZYDROP_VERSION
);

PG_FUNCTION_INFO_V1(pg_stat_get_lazydrop);
PG_FUNCTION_INFO_V1(pg_stat_get_lazydrop_cache);
PG_FUNCTION_INFO_V1(pg_lazydrop_get_pending);
PG_FUNCTION_INFO_V1(pg_lazydrop_drain);
PG_FUNCTION_INFO_V1(pg_stat_lazydrop_reset);
PG_FUNCTION_INFO_V1(pg_lazydrop_advice_reset);
PG_FUNCTION_INFO_V1(pg_lazydrop_get_advice);
PG_FUNCTION_INFO_V1(pg_lazydrop_advice_reads);
PG_FUNCTION_INFO_V1(pg_lazydrop_advice_range);
PG_FUNCTION_INFO_V1(pg_lazydrop_advice_plot);
PG_FUNCTION_INFO_V1(pg_lazydrop_advise);

#define NUM_STAT_COLUMNS	28
#define NUM_STAT_COLUMNS_1_0	25
#define NUM_CACHE_COLUMNS	14
#define NUM_CACHE_COLUMNS_1_0	15
#define NUM_PENDING_COLUMNS	13
#define NUM_PENDING_COLUMNS_1_0	9
#define NUM_ADVICE_COLUMNS	19
#define NUM_RANGE_COLUMNS	5
#define NUM_VERDICT_COLUMNS	13

/* of pg_lazydrop_advice_plot, in characters */
#define MAX_PLOT_WIDTH		1000

/*
 * Return the server's routines.  Fail if it has none, or if they belong to
 * another release of LazyDrop.
 */
static const LazyDropRoutines *
GetRoutines(void)
{
	const LazyDropRoutines *routines = *find_rendezvous_variable(LAZYDROP_RENDEZVOUS);

	if (routines == NULL)
		ereport(ERROR,
				(errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
				 errmsg("extension \"%s\" requires a LazyDrop server", "pg_lazydrop"),
				 errdetail("This server is PostgreSQL %s.",
						   GetConfigOption("server_version", false, false))));
	if (routines->version != LAZYDROP_ROUTINES_VERSION)
		ereport(ERROR,
				(errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
				 errmsg("library \"%s\" does not belong to this server", "pg_lazydrop"),
				 errhint("Install the one that was built with it.")));
	return routines;
}

/*
 * Fail early in a stock server.  Libraries in shared_preload_libraries are
 * loaded before the lazy drop has been initialized.
 */
void
_PG_init(void)
{
	if (!process_shared_preload_libraries_in_progress)
		(void) GetRoutines();
}

/*
 * Return a time, or null for 0.
 */
static Datum
TimeDatum(TimestampTz time, bool *is_null)
{
	*is_null = time == 0;
	return TimestampTzGetDatum(time);
}

static Datum
CounterDatum(const LazyDropStats *stats, LazyDropCounter counter)
{
	return LAZYDROP_COUNTER_IS_TIME(counter) ?
		Float8GetDatum(stats->counters[counter] / 1000.0) :
		Int64GetDatum(stats->counters[counter]);
}

/*
 * Return one row, with pending drops and counters.  Version 1.0 of the
 * extension has all columns but the last three.
 */
Datum
pg_stat_get_lazydrop(PG_FUNCTION_ARGS)
{
	LazyDropStats stats;
	TupleDesc	tupdesc;
	Datum		values[NUM_STAT_COLUMNS];
	bool		nulls[NUM_STAT_COLUMNS] = {0};
	int			i = 0;

	if (get_call_result_type(fcinfo, NULL, &tupdesc) != TYPEFUNC_COMPOSITE ||
		(tupdesc->natts != NUM_STAT_COLUMNS &&
		 tupdesc->natts != NUM_STAT_COLUMNS_1_0))
		elog(ERROR, "unexpected result type of pg_stat_get_lazydrop");
	GetRoutines()->get_stats(&stats);

	values[i++] = CStringGetTextDatum(stats.version);
	values[i++] = Int32GetDatum(stats.pending_relations);
	values[i++] = Int32GetDatum(stats.pending_databases);
	values[i++] = Int32GetDatum(stats.max_pending);
	values[i++] = Int64GetDatum(stats.pending_files);
	values[i++] = Int64GetDatum(stats.pending_bytes);
	if (stats.oldest_age_ms >= 0)
	{
		Interval   *age = palloc0_object(Interval);

		age->time = stats.oldest_age_ms * 1000;
		values[i++] = IntervalPGetDatum(age);
	}
	else
		nulls[i++] = true;
	if (stats.worker_pid != 0)
		values[i++] = Int32GetDatum(stats.worker_pid);
	else
		nulls[i++] = true;
	for (int j = 0; j < LAZYDROP_HIDE_FAILURES; j++)
		values[i++] = CounterDatum(&stats, j);
	if (stats.last_pass != 0)
	{
		values[i++] = TimestampTzGetDatum(stats.last_pass);
		values[i++] = Float8GetDatum(stats.last_pass_ms);
		values[i++] = Int64GetDatum(stats.last_pass_headers);
		values[i++] = Int64GetDatum(stats.last_pass_buffers);
	}
	else
	{
		for (int j = 0; j < 4; j++)
			nulls[i++] = true;
	}
	values[i++] = TimestampTzGetDatum(stats.stats_reset);
	Assert(i == NUM_STAT_COLUMNS_1_0);
	for (int j = LAZYDROP_HIDE_FAILURES; j < LAZYDROP_NUM_COUNTERS; j++)
		values[i++] = CounterDatum(&stats, j);
	Assert(i == NUM_STAT_COLUMNS);

	PG_RETURN_DATUM(HeapTupleGetDatum(heap_form_tuple(tupdesc, values, nulls)));
}

/*
 * Return one row, with the classes and counters of the buffer cache's policy.
 * Version 1.0 of the extension has two columns of a policy that is no more,
 * and not the refusals.
 */
Datum
pg_stat_get_lazydrop_cache(PG_FUNCTION_ARGS)
{
	LazyDropCacheStats stats;
	TupleDesc	tupdesc;
	Datum		values[NUM_CACHE_COLUMNS_1_0];
	bool		nulls[NUM_CACHE_COLUMNS_1_0] = {0};
	bool		is_1_0;
	int			i = 0;

	if (get_call_result_type(fcinfo, NULL, &tupdesc) != TYPEFUNC_COMPOSITE ||
		(tupdesc->natts != NUM_CACHE_COLUMNS &&
		 tupdesc->natts != NUM_CACHE_COLUMNS_1_0))
		elog(ERROR, "unexpected result type of pg_stat_get_lazydrop_cache");
	is_1_0 = tupdesc->natts == NUM_CACHE_COLUMNS_1_0;
	GetRoutines()->get_cache_stats(&stats);

	values[i++] = CStringGetTextDatum(stats.scan_resistance ? "on" : "off");
	values[i++] = Int64GetDatum(stats.buffers);
	values[i++] = Int64GetDatum(stats.main);
	values[i++] = Int64GetDatum(stats.probation);
	values[i++] = Int64GetDatum(stats.loads);
	values[i++] = Int64GetDatum(stats.ring_loads);
	values[i++] = Int64GetDatum(stats.free_loads);
	if (is_1_0)
		values[i++] = Int64GetDatum(0); /* bulk_loads */
	values[i++] = Int64GetDatum(stats.ghost_hits);
	values[i++] = Int64GetDatum(stats.promotions);
	values[i++] = Int64GetDatum(stats.demotions);
	values[i++] = Int64GetDatum(is_1_0 ? 0 : stats.refusals);	/* or resets */
	values[i++] = Int64GetDatum(stats.evictions);
	values[i++] = Int64GetDatum(stats.fallbacks);
	values[i++] = TimestampTzGetDatum(stats.stats_reset);
	Assert(i == tupdesc->natts);

	PG_RETURN_DATUM(HeapTupleGetDatum(heap_form_tuple(tupdesc, values, nulls)));
}

/* by LazyDropWait */
static const char *const wait_names[] = {
	"delay",
	"pass",
	"pin",
	"dropper",
	"processes",
	"hiding",
	"removal",
	"retry",
	"worker",
	"no worker",
};

StaticAssertDecl(lengthof(wait_names) == LAZYDROP_NUM_WAITS,
				 "wait_names must have a name for each LazyDropWait");

/*
 * Return one row for each pending relation, or directory of a database.  Version
 * 1.0 of the extension has all columns but the last four.
 */
Datum
pg_lazydrop_get_pending(PG_FUNCTION_ARGS)
{
	ReturnSetInfo *rsinfo = (ReturnSetInfo *) fcinfo->resultinfo;
	LazyDropPending *pending;
	int			npending;
	Datum		kinds[2];

	InitMaterializedSRF(fcinfo, 0);
	if (rsinfo->setDesc->natts != NUM_PENDING_COLUMNS &&
		rsinfo->setDesc->natts != NUM_PENDING_COLUMNS_1_0)
		elog(ERROR, "unexpected result type of pg_lazydrop_get_pending");
	pending = GetRoutines()->get_pending(&npending);
	kinds[false] = CStringGetTextDatum("relation");
	kinds[true] = CStringGetTextDatum("database");

	for (int n = 0; n < npending; n++)
	{
		const LazyDropPending *entry = &pending[n];
		bool		is_database = !RelFileNumberIsValid(entry->locator.relNumber);
		Datum		values[NUM_PENDING_COLUMNS];
		bool		nulls[NUM_PENDING_COLUMNS] = {0};
		int			i = 0;

		CHECK_FOR_INTERRUPTS();
		values[i++] = ObjectIdGetDatum(entry->locator.spcOid);
		values[i++] = ObjectIdGetDatum(entry->locator.dbOid);
		nulls[i] = is_database;
		values[i++] = ObjectIdGetDatum(entry->locator.relNumber);
		values[i++] = kinds[is_database];
		values[i++] = TimestampTzGetDatum(entry->since);
		values[i++] = BoolGetDatum(entry->buffers_done);
		values[i++] = BoolGetDatum(entry->files_done);
		values[i++] = Int32GetDatum(entry->files);
		values[i++] = Int64GetDatum(entry->bytes);
		Assert(i == NUM_PENDING_COLUMNS_1_0);
		values[i++] = CStringGetTextDatum(wait_names[entry->wait]);
		nulls[i] = entry->pid == 0;
		values[i++] = Int32GetDatum(entry->pid);
		values[i++] = Int32GetDatum(entry->failures);
		values[i] = TimeDatum(entry->next_attempt, &nulls[i]);
		i++;
		Assert(i == NUM_PENDING_COLUMNS);
		tuplestore_putvalues(rsinfo->setResult, rsinfo->setDesc, values, nulls);
	}
	return (Datum) 0;
}

/*
 * Wait until all drops that are pending now are completed.  The argument is
 * the maximum time to wait; null means no limit.
 */
Datum
pg_lazydrop_drain(PG_FUNCTION_ARGS)
{
	const LazyDropRoutines *routines = GetRoutines();
	int64		timeout_ms = -1;

	if (!PG_ARGISNULL(0))
	{
		Interval   *timeout = PG_GETARG_INTERVAL_P(0);
		double		ms;

		ms = timeout->time / 1000.0 +
			(timeout->day + timeout->month * (double) DAYS_PER_MONTH) * SECS_PER_DAY * 1000.0;
		if (INTERVAL_IS_NOBEGIN(timeout) ||
			(!INTERVAL_IS_NOEND(timeout) && ms < 0))
			ereport(ERROR,
					(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
					 errmsg("\"%s\" must not be negative", "timeout")));
		if (!INTERVAL_IS_NOEND(timeout) && ms < (double) PG_INT64_MAX)
			timeout_ms = (int64) ceil(ms);
	}

	if (!routines->drain(timeout_ms))
		ereport(ERROR,
				(errcode(ERRCODE_QUERY_CANCELED),
				 errmsg("timed out while waiting for lazy drop")));
	PG_RETURN_VOID();
}

/*
 * Set the counters to zero.
 */
Datum
pg_stat_lazydrop_reset(PG_FUNCTION_ARGS)
{
	GetRoutines()->reset_stats();
	PG_RETURN_VOID();
}

/*
 * Reset the results of the advisor on shared_buffers.
 */
Datum
pg_lazydrop_advice_reset(PG_FUNCTION_ARGS)
{
	GetRoutines()->reset_advice();
	PG_RETURN_VOID();
}

/*
 * Return a ratio, or null if the server has none.
 */
static Datum
RatioDatum(double ratio, bool *is_null)
{
	*is_null = ratio < 0;
	return Float8GetDatum(ratio);
}

/*
 * Return one row for each size of shared_buffers.
 */
Datum
pg_lazydrop_get_advice(PG_FUNCTION_ARGS)
{
	ReturnSetInfo *rsinfo = (ReturnSetInfo *) fcinfo->resultinfo;
	LazyDropAdviceStats stats;

	InitMaterializedSRF(fcinfo, 0);
	if (rsinfo->setDesc->natts != NUM_ADVICE_COLUMNS)
		elog(ERROR, "unexpected result type of pg_lazydrop_get_advice");
	GetRoutines()->get_advice(&stats);

	for (int n = 0; n < LAZYDROP_ADVICE_SIZES; n++)
	{
		const LazyDropAdvice *size = &stats.sizes[n];
		Datum		values[NUM_ADVICE_COLUMNS];
		bool		nulls[NUM_ADVICE_COLUMNS] = {0};
		int			i = 0;

		values[i++] = Float8GetDatum(size->factor);
		values[i++] = Int64GetDatum(size->buffers * BLCKSZ);
		values[i] = RatioDatum(size->hit_ratio, &nulls[i]);
		i++;
		values[i++] = Int64GetDatum((int64) rint(size->reads));
		values[i++] = Float8GetDatum(size->reads_per_second);
		values[i++] = Float8GetDatum(size->read_time_ms);
		values[i++] = Float8GetDatum(size->time_saved_ms);
		values[i++] = Int64GetDatum((int64) rint(size->cold_reads));
		values[i] = RatioDatum(size->recent_hit_ratio, &nulls[i]);
		i++;
		values[i++] = Float8GetDatum(size->recent_reads_per_second);
		values[i++] = Int64GetDatum((int64) rint(stats.samples));
		values[i++] = Int64GetDatum(stats.dropped);
		values[i++] = TimestampTzGetDatum(stats.stats_reset);
		values[i] = TimeDatum(stats.seen_until, &nulls[i]);
		i++;
		values[i++] = Float8GetDatum(size->filled);
		for (int policy = 0; policy < 2; policy++)
		{
			values[i++] = Float8GetDatum(size->policy_reads[policy]);
			values[i++] = Float8GetDatum(size->policy_error[policy]);
		}
		Assert(i == NUM_ADVICE_COLUMNS);
		tuplestore_putvalues(rsinfo->setResult, rsinfo->setDesc, values, nulls);
	}
	return (Datum) 0;
}

/*
 * Return the number of reads per second with a pool of this number of bytes: on
 * a line between the sizes next to it, or as with the smallest or the largest.
 */
static double
ReadsAt(const LazyDropAdviceStats *stats, int64 bytes)
{
	double		buffers = (double) bytes / BLCKSZ;
	const LazyDropAdvice *low = &stats->sizes[0];

	for (int n = 0; n < LAZYDROP_ADVICE_SIZES; n++)
	{
		const LazyDropAdvice *size = &stats->sizes[n];

		/* in a very small pool, sizes may be equal */
		if (size->buffers >= buffers)
			return size->buffers == low->buffers ? size->reads_per_second :
				low->reads_per_second +
				(size->reads_per_second - low->reads_per_second) *
				(buffers - low->buffers) / (size->buffers - low->buffers);
		low = size;
	}
	return low->reads_per_second;
}

/*
 * The same as an SQL function; null for null.
 */
Datum
pg_lazydrop_advice_reads(PG_FUNCTION_ARGS)
{
	LazyDropAdviceStats stats;

	if (PG_ARGISNULL(0))
		PG_RETURN_NULL();
	GetRoutines()->get_advice(&stats);
	PG_RETURN_FLOAT8(ReadsAt(&stats, PG_GETARG_INT64(0)));
}

/*
 * Return one row for each size that fits into a number of bytes of memory, with
 * the reads that the file-system cache cannot serve.  It has the memory that
 * shared_buffers does not take.  At best, the two have different pages, and
 * together what one pool of all the memory would have; at worst, the smaller has
 * nothing that the larger does not have.
 */
Datum
pg_lazydrop_advice_range(PG_FUNCTION_ARGS)
{
	ReturnSetInfo *rsinfo = (ReturnSetInfo *) fcinfo->resultinfo;
	int64		memory = PG_GETARG_INT64(0);
	LazyDropAdviceStats stats;
	double		least = 0;

	InitMaterializedSRF(fcinfo, 0);
	if (rsinfo->setDesc->natts != NUM_RANGE_COLUMNS)
		elog(ERROR, "unexpected result type of pg_lazydrop_advice_range");
	GetRoutines()->get_advice(&stats);

	/* nothing is read if all that is simulated fits */
	if (memory <= stats.sizes[LAZYDROP_ADVICE_SIZES - 1].buffers * BLCKSZ)
		least = ReadsAt(&stats, memory);
	for (int n = 0; n < LAZYDROP_ADVICE_SIZES; n++)
	{
		const LazyDropAdvice *size = &stats.sizes[n];
		int64		bytes = size->buffers * BLCKSZ;
		double		most;
		Datum		values[NUM_RANGE_COLUMNS];
		bool		nulls[NUM_RANGE_COLUMNS] = {0};
		int			i = 0;

		if (bytes > memory)
			break;
		most = ReadsAt(&stats, Max(bytes, memory - bytes));
		values[i++] = Float8GetDatum(size->factor);
		values[i++] = Int64GetDatum(bytes);
		values[i++] = Float8GetDatum(size->reads_per_second);
		values[i++] = Float8GetDatum(Min(size->reads_per_second, least));
		values[i++] = Float8GetDatum(Min(size->reads_per_second, most));
		Assert(i == NUM_RANGE_COLUMNS);
		tuplestore_putvalues(rsinfo->setResult, rsinfo->setDesc, values, nulls);
	}
	return (Datum) 0;
}

/*
 * Return the hit ratios as a plot for a terminal, one line for each size.
 */
Datum
pg_lazydrop_advice_plot(PG_FUNCTION_ARGS)
{
	ReturnSetInfo *rsinfo = (ReturnSetInfo *) fcinfo->resultinfo;
	int			width = Max(1, Min(PG_GETARG_INT32(0), MAX_PLOT_WIDTH));
	LazyDropAdviceStats stats;

	InitMaterializedSRF(fcinfo, MAT_SRF_USE_EXPECTED_DESC);
	GetRoutines()->get_advice(&stats);
	for (int n = 0; n < LAZYDROP_ADVICE_SIZES; n++)
	{
		const LazyDropAdvice *size = &stats.sizes[n];
		int			columns = (int) rint(Max(size->hit_ratio, 0) * width);
		StringInfoData line;
		Datum		value;
		bool		is_null = false;

		initStringInfo(&line);
		appendStringInfo(&line, "%10s %c ",
						 text_to_cstring(DatumGetTextPP(DirectFunctionCall1(pg_size_pretty,
																			Int64GetDatum(size->buffers * BLCKSZ)))),
						 size->factor == 1 ? '>' : '|');
		for (int i = 0; i < width; i++)
			appendStringInfoChar(&line, i < columns ? '#' : ' ');
		if (size->hit_ratio < 0)
			appendStringInfoString(&line, " unknown");
		else
			appendStringInfo(&line, " %6.1f %%", 100 * size->hit_ratio);
		value = CStringGetTextDatum(line.data);
		tuplestore_putvalues(rsinfo->setResult, rsinfo->setDesc, &value, &is_null);
		pfree(line.data);
	}
	return (Datum) 0;
}

/*
 * Return what to do about shared_buffers, in a row for each period and policy.
 * The argument is the memory for shared_buffers and the file-system cache, in
 * bytes; null means that of the machine, or of the control group.
 */
Datum
pg_lazydrop_advise(PG_FUNCTION_ARGS)
{
	const LazyDropRoutines *routines = GetRoutines();
	ReturnSetInfo *rsinfo = (ReturnSetInfo *) fcinfo->resultinfo;
	LazyDropAdviceVerdict verdicts[LAZYDROP_ADVICE_VERDICTS];
	int64		memory;

	if (PG_ARGISNULL(0))
		memory = routines->get_memory();
	else
	{
		memory = PG_GETARG_INT64(0);
		if (memory < (int64) NBuffers * BLCKSZ)
			ereport(ERROR,
					(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
					 errmsg("\"%s\" must not be less than \"%s\"",
							"memory", "shared_buffers")));
	}

	InitMaterializedSRF(fcinfo, 0);
	if (rsinfo->setDesc->natts != NUM_VERDICT_COLUMNS)
		elog(ERROR, "unexpected result type of pg_lazydrop_advise");
	routines->get_verdicts(memory, verdicts);

	for (int n = 0; n < LAZYDROP_ADVICE_VERDICTS; n++)
	{
		const LazyDropAdviceVerdict *verdict = &verdicts[n];
		Datum		values[NUM_VERDICT_COLUMNS];
		bool		nulls[NUM_VERDICT_COLUMNS] = {0};
		bool		undecided = verdict->bytes == 0;
		int			i = 0;

		values[i++] = CStringGetTextDatum(verdict->recent ? "recent" : "all");
		values[i++] = CStringGetTextDatum(verdict->two_classes ? "on" : "off");
		values[i++] = CStringGetTextDatum(verdict->verdict);
		nulls[i] = undecided;
		values[i++] = Int64GetDatum(verdict->bytes);
		values[i++] = Float8GetDatum(verdict->reads_now);
		nulls[i] = undecided;
		values[i++] = Float8GetDatum(verdict->reads_then);
		nulls[i] = undecided;
		values[i++] = Float8GetDatum(verdict->error);
		values[i] = RatioDatum(verdict->hit_ratio_now, &nulls[i]);
		i++;
		values[i] = RatioDatum(verdict->hit_ratio_then, &nulls[i]);
		nulls[i] |= undecided;
		i++;
		nulls[i] = verdict->read_time_ms == 0;
		values[i++] = Float8GetDatum(verdict->read_time_ms);
		values[i++] = Float8GetDatum(verdict->seconds);
		values[i] = TimeDatum(verdict->until, &nulls[i]);
		i++;
		if (undecided && verdict->wait >= 0)
		{
			Interval   *wait = palloc0_object(Interval);

			wait->time = (TimeOffset) (Min(ceil(verdict->wait), 1e9) * USECS_PER_SEC);
			values[i++] = IntervalPGetDatum(wait);
		}
		else
			nulls[i++] = true;
		Assert(i == NUM_VERDICT_COLUMNS);
		tuplestore_putvalues(rsinfo->setResult, rsinfo->setDesc, values, nulls);
	}
	return (Datum) 0;
}
