/*-------------------------------------------------------------------------
 *
 * lazydrop_init.c
 *	  Settings and shared memory of the lazy drop.
 *
 * The settings are custom ones.  Their names contain a dot, so a
 * postgresql.conf that has them also starts a stock server.  As with settings
 * of extensions, an invalid value causes a warning when the server starts, and
 * the default is used.
 *
 * Copyright (c) 2026, LazyDrop developers
 *
 * IDENTIFICATION
 *	  src/backend/storage/lazydrop/lazydrop_init.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/twophase.h"
#include "miscadmin.h"
#include "port/pg_bitutils.h"
#include "storage/lazydrop.h"
#include "storage/lazydrop_advisor.h"
#include "storage/lazydrop_cache.h"
#include "storage/lazydrop_internal.h"
#include "storage/lazydrop_stats.h"
#include "storage/lock.h"
#include "storage/proc.h"
#include "storage/shmem.h"
#include "utils/guc.h"
#include "utils/timestamp.h"
#include "utils/wait_event.h"

/* range of the default of lazydrop.max_pending, which takes 5 to 40 MB */
#define MIN_CAPACITY		16384
#define MAX_CAPACITY		131072

int			lazydrop_max_pending = 0;
static char *lazydrop_stats;

/*
 * Define the settings and register the worker.  Called after the libraries in
 * shared_preload_libraries have been loaded, which do the same.
 */
void
LazyDropInit(void)
{
	DefineCustomBoolVariable("lazydrop.enabled",
							 "Invalidates the buffers of dropped relations in the background.",
							 "If this is off, later drops invalidate them immediately.",
							 &lazydrop_enabled,
							 true,
							 PGC_SIGHUP,
							 0,
							 NULL, NULL, NULL);

	DefineCustomIntVariable("lazydrop.max_pending",
							"Sets the maximum number of dropped relations and database directories that are pending.",
							"0 means as many as can be locked, but at least 16384 and at most 131072.",
							&lazydrop_max_pending,
							0, 0, 1024 * 1024,
							PGC_POSTMASTER,
							0,
							NULL, NULL, NULL);

	DefineCustomIntVariable("lazydrop.pass_delay",
							"Sets the time for which the lazy drop worker waits for more drops before it invalidates buffers.",
							NULL,
							&lazydrop_pass_delay,
							1000, 0, 60 * 1000,
							PGC_SIGHUP,
							GUC_UNIT_MS,
							NULL, NULL, NULL);

	DefineCustomBoolVariable("lazydrop.log_passes",
							 "Logs each pass over the buffers.",
							 NULL,
							 &lazydrop_log_passes,
							 false,
							 PGC_SIGHUP,
							 0,
							 NULL, NULL, NULL);

	DefineCustomBoolVariable("lazydrop.defer_files",
							 "Removes the files of dropped relations in the background.",
							 "If this or lazydrop.enabled is off, later drops remove them immediately.",
							 &lazydrop_defer_files,
							 true,
							 PGC_SIGHUP,
							 0,
							 NULL, NULL, NULL);

	DefineCustomIntVariable("lazydrop.removal_rate",
							"Sets the maximum rate at which the lazy drop worker removes files of dropped relations.",
							"Zero means no limit.  The rate is per second, and does not apply where free space is short.",
							&lazydrop_removal_rate,
							0, 0, 1024 * 1024,
							PGC_SIGHUP,
							GUC_UNIT_MB,
							NULL, NULL, NULL);

	DefineCustomIntVariable("lazydrop.min_free_space",
							"Sets the free space of a file system below which drops remove files immediately.",
							"At most 5 percent of the file system are required.  Zero disables this.",
							&lazydrop_min_free_space,
							1024, 0, INT_MAX,
							PGC_SIGHUP,
							GUC_UNIT_MB,
							NULL, NULL, NULL);

	DefineCustomIntVariable("lazydrop.lookup_limit",
							"Sets the maximum size of a dropped relation whose buffers are looked up one by one.",
							"-1 means a 32nd of shared_buffers.",
							&lazydrop_lookup_limit,
							-1, -1, INT_MAX / 2,
							PGC_SIGHUP,
							GUC_UNIT_BLOCKS,
							NULL, NULL, NULL);

	DefineCustomStringVariable("lazydrop.stats",
							   "Shows statistics of the lazy drop as JSON.",
							   NULL,
							   &lazydrop_stats,
							   "",
							   PGC_INTERNAL,
							   GUC_NO_SHOW_ALL | GUC_NO_RESET_ALL |
							   GUC_NOT_IN_SAMPLE | GUC_DISALLOW_IN_FILE |
							   GUC_SUPERUSER_ONLY,
							   NULL, NULL, LazyDropShowStats);

	LazyDropCacheInit();
	LazyDropAdvisorDefineSettings();
	MarkGUCPrefixReserved("lazydrop");
	RegisterXactCallback(LazyDropRelationXactCallback, NULL);
	RegisterXactCallback(LazyDropDatabaseXactCallback, NULL);
	LazyDropPublishRoutines();
	LazyDropRegisterWorker();
}

/*
 * Return the number of entries.  A transaction locks what it drops, so by
 * default there is room for all that one transaction can drop.
 */
static int
Capacity(void)
{
	int64		nlocks = (int64) max_locks_per_xact * (MaxBackends + max_prepared_xacts);

	if (lazydrop_max_pending > 0)
		return lazydrop_max_pending;
	return (int) Min(Max(nlocks, MIN_CAPACITY), MAX_CAPACITY);
}

static int
NumAnnouncements(void)
{
	/* like InitProcGlobal, but without the dummies of prepared transactions */
	return MaxBackends + NUM_AUXILIARY_PROCS;
}

/*
 * Return powers of two that exceed the number of entries far enough that a
 * writer rarely finds an entry of another relation in its bucket.
 */
static uint32
NumRelationBuckets(void)
{
	return pg_nextpower2_32(Capacity()) * 16;
}

static uint32
NumDatabaseBuckets(void)
{
	return pg_nextpower2_32(Capacity()) * 4;
}

static Size
SetSize(void)
{
	Size		size;

	size = MAXALIGN(sizeof(LazyDropShared));
	size = add_size(size, MAXALIGN(mul_size(Capacity(),
											sizeof(LazyDropEntry))));
	size = add_size(size, MAXALIGN(mul_size(NumRelationBuckets() + NumDatabaseBuckets(),
											sizeof(int))));
	size = add_size(size, mul_size(NumAnnouncements() + 1,
								   sizeof(LazyDropAnnouncementPadded)));
	return size;
}

/*
 * Return the size of the shared memory that is needed, including the buffer
 * cache's policy and the advisor.
 */
Size
LazyDropShmemSize(void)
{
	Size		size = SetSize();

	size = add_size(size, LazyDropCacheShmemSize());
	return add_size(size, LazyDropAdvisorShmemSize());
}

/*
 * Allocate and initialize shared memory, or attach to it.
 */
void
LazyDropShmemInit(void)
{
	bool		found;
	char	   *next;

	LazyDropCacheShmemInit();
	LazyDropAdvisorShmemInit();

	LazyDropCtl = ShmemInitStruct("Lazy Drop", SetSize(), &found);
	if (found)
	{
		LazyDropNameTranche(LazyDropCtl->tranche_id, "LazyDrop");
		return;
	}

	memset(LazyDropCtl, 0, SetSize());
	pg_atomic_init_u32(&LazyDropCtl->nburied.value, 0);
	pg_atomic_init_u32(&LazyDropCtl->npending, 0);
	pg_atomic_init_u32(&LazyDropCtl->nwaiting, 0);

	/* A built-in tranche would change the numbers of extensions' tranches. */
	LazyDropCtl->tranche_id = LazyDropNewTranche("LazyDrop");
	LWLockInitialize(&LazyDropCtl->lock, LazyDropCtl->tranche_id);

	dlist_init(&LazyDropCtl->pending);
	dlist_init(&LazyDropCtl->removals);
	dlist_init(&LazyDropCtl->hidden_removals);
	dlist_init(&LazyDropCtl->unused);

	/*
	 * This number of microseconds since 2000 exceeds any serial number of an
	 * earlier start, because there were less than a million drops a second.
	 */
	LazyDropCtl->start_serial = GetCurrentTimestamp();
	LazyDropCtl->last_serial = LazyDropCtl->start_serial;
	LazyDropCtl->capacity = Capacity();
	LazyDropCtl->relation_shift = 32 - pg_leftmost_one_pos32(NumRelationBuckets());
	LazyDropCtl->database_shift = 32 - pg_leftmost_one_pos32(NumDatabaseBuckets());
	LazyDropCtl->nannouncements = NumAnnouncements();

	next = (char *) LazyDropCtl + MAXALIGN(sizeof(LazyDropShared));
	LazyDropCtl->entries = (LazyDropEntry *) next;
	for (int i = 0; i < LazyDropCtl->capacity; i++)
		dlist_push_tail(&LazyDropCtl->unused, &LazyDropCtl->entries[i].node);

	next += MAXALIGN(LazyDropCtl->capacity * sizeof(LazyDropEntry));
	LazyDropCtl->relation_buckets = (int *) next;
	LazyDropCtl->database_buckets = LazyDropCtl->relation_buckets + NumRelationBuckets();
	for (uint32 i = 0; i < NumRelationBuckets() + NumDatabaseBuckets(); i++)
		LazyDropCtl->relation_buckets[i] = -1;

	next += MAXALIGN((NumRelationBuckets() + NumDatabaseBuckets()) * sizeof(int));
	next = (char *) TYPEALIGN(PG_CACHE_LINE_SIZE, next);
	LazyDropCtl->announcements = (LazyDropAnnouncementPadded *) next;
	for (int i = 0; i < LazyDropCtl->nannouncements; i++)
	{
		LazyDropAnnouncement *announcement;

		announcement = &LazyDropCtl->announcements[i].announcement;
		pg_atomic_init_u32(&announcement->generation, 0);
		pg_atomic_init_u64(&announcement->heartbeat, 0);
	}

	/* Do this here, so that no session gets the error if none are left. */
	LazyDropCtl->wait_event_main = WaitEventExtensionNew("LazyDropMain");
	LazyDropCtl->wait_event_gather = WaitEventExtensionNew("LazyDropGather");
	LazyDropCtl->wait_event_throttle = WaitEventExtensionNew("LazyDropThrottle");
	LazyDropCtl->wait_event_write = WaitEventExtensionNew("LazyDropWrite");
	LazyDropCtl->wait_event_forget = WaitEventExtensionNew("LazyDropForget");
	LazyDropCtl->wait_event_reuse = WaitEventExtensionNew("LazyDropReuse");
	LazyDropCtl->wait_event_checkpoint = WaitEventExtensionNew("LazyDropCheckpoint");
	LazyDropCtl->wait_event_settle = WaitEventExtensionNew("LazyDropSettle");
	LazyDropCtl->wait_event_drain = WaitEventExtensionNew("LazyDropDrain");
	LazyDropCtl->wait_event_restartpoint = WaitEventExtensionNew("LazyDropRestartpoint");

	pg_atomic_init_u32(&LazyDropCtl->worker, (uint32) INVALID_PROC_NUMBER);
	ConditionVariableInit(&LazyDropCtl->settled_cv);
	pg_atomic_init_u64(&LazyDropCtl->absorptions, 0);
	ConditionVariableInit(&LazyDropCtl->absorbed_cv);
	pg_atomic_init_u64(&LazyDropCtl->failed_checkpoints, 0);
	pg_atomic_init_u64(&LazyDropCtl->last_relmap_record, 0);
	LazyDropCtl->stats_reset = GetCurrentTimestamp();
	pg_atomic_init_u64(&LazyDropCtl->reported_fallback_ns, 0);
	for (int i = 0; i < LAZYDROP_NUM_COUNTERS; i++)
		pg_atomic_init_u64(&LazyDropCtl->counters[i], 0);
	pg_atomic_init_u64(&LazyDropCtl->bytes_freed, 0);
}
