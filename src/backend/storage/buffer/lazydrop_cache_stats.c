/*-------------------------------------------------------------------------
 *
 * lazydrop_cache_stats.c
 *	  Settings of the buffer cache's policy, and statistics as JSON.
 *
 * The setting lazydrop.cache_stats needs no catalog object, so it also works on
 * a standby whose primary is a stock server.
 *
 * Copyright (c) 2026, LazyDrop developers
 *
 * IDENTIFICATION
 *	  src/backend/storage/buffer/lazydrop_cache_stats.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "storage/lazydrop_cache.h"
#include "storage/lazydrop_common.h"
#include "storage/proc.h"
#include "utils/guc.h"

static char *cache_stats;

/* There was a "strict" policy in 1.0. */
static const struct config_enum_entry scan_resistance_options[] = {
	{"off", LAZYDROP_SCAN_RESISTANCE_OFF, false},
	{"on", LAZYDROP_SCAN_RESISTANCE_ON, false},
	{"strict", LAZYDROP_SCAN_RESISTANCE_ON, true},
	{"true", LAZYDROP_SCAN_RESISTANCE_ON, true},
	{"false", LAZYDROP_SCAN_RESISTANCE_OFF, true},
	{"yes", LAZYDROP_SCAN_RESISTANCE_ON, true},
	{"no", LAZYDROP_SCAN_RESISTANCE_OFF, true},
	{"1", LAZYDROP_SCAN_RESISTANCE_ON, true},
	{"0", LAZYDROP_SCAN_RESISTANCE_OFF, true},
	{NULL, 0, false}
};

/*
 * Show hook of lazydrop.cache_stats.
 */
static const char *
ShowStats(void)
{
	static StringInfoData buf;
	LazyDropCacheStats stats;

	if (MyProc == NULL)
		return "";
	LazyDropCacheGetStats(&stats);

	LazyDropBeginShow(&buf);

	appendStringInfo(&buf, "{\"scan_resistance\": \"%s\"",
					 stats.scan_resistance ? "on" : "off");
#define NUMBER(name) \
	appendStringInfo(&buf, ", \"" #name "\": " INT64_FORMAT, stats.name)
	NUMBER(buffers);
	NUMBER(main);
#ifdef USE_ASSERT_CHECKING
	NUMBER(main_classes);
#endif
	NUMBER(probation);
	NUMBER(loads);
	NUMBER(ring_loads);
	NUMBER(free_loads);
	NUMBER(ghost_hits);
	NUMBER(promotions);
	NUMBER(demotions);
	NUMBER(refusals);
	NUMBER(evictions);
	NUMBER(fallbacks);
#undef NUMBER
	LazyDropShowTimestamp(&buf, "stats_reset", stats.stats_reset);
	appendStringInfoChar(&buf, '}');
	return buf.data;
}

/*
 * Define the settings.  Called in each process that has settings.
 */
void
LazyDropCacheInit(void)
{
	DefineCustomEnumVariable("lazydrop.scan_resistance",
							 "Keeps frequently used pages in shared_buffers during scans.",
							 NULL,
							 &lazydrop_scan_resistance,
							 LAZYDROP_SCAN_RESISTANCE_OFF,
							 scan_resistance_options,
							 PGC_SIGHUP,
							 0,
							 NULL, NULL, NULL);

	DefineCustomBoolVariable("lazydrop.read_once",
							 "The session is not expected to read pages again.",
							 "With lazydrop.scan_resistance, pages that it loads are evicted first.",
							 &lazydrop_read_once,
							 false,
							 PGC_USERSET,
							 0,
							 NULL, NULL, NULL);

	DefineCustomStringVariable("lazydrop.cache_stats",
							   "Shows statistics of scan resistance as JSON.",
							   NULL,
							   &cache_stats,
							   "",
							   PGC_INTERNAL,
							   GUC_NO_SHOW_ALL | GUC_NO_RESET_ALL |
							   GUC_NOT_IN_SAMPLE | GUC_DISALLOW_IN_FILE |
							   GUC_SUPERUSER_ONLY,
							   NULL, NULL, ShowStats);
}
