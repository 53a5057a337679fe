/*-------------------------------------------------------------------------
 *
 * lazydrop_cache.c
 *	  A replacement policy that no scan can flush: a clock with two classes.
 *
 * Rules C1-C9 are in README.lazydrop.  What a function does to a buffer's class can
 * make a worse victim, never a wrong page: no process relies on a class to find out
 * what a buffer holds or whether it may be reused.
 *
 * The parts are known from the literature: a probation queue with a memory of what
 * was evicted from it (2Q, Johnson and Shasha 1994; S3-FIFO, Yang et al. 2023),
 * correlated references (LRU-K, O'Neil et al. 1993), two hands on one ring of buffers
 * (CLOCK-Pro, Jiang et al. 2005).
 *
 * Copyright (c) 2026, LazyDrop developers
 *
 * IDENTIFICATION
 *	  src/backend/storage/buffer/lazydrop_cache.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/xact.h"
#include "catalog/pg_type_d.h"
#include "lib/stringinfo.h"
#include "miscadmin.h"
#include "port/atomics.h"
#include "storage/ipc.h"
#include "storage/lazydrop_cache.h"
#include "storage/proc.h"
#include "storage/shmem.h"
#include "utils/datetime.h"
#include "utils/guc.h"
#include "utils/json.h"
#include "utils/memutils.h"
#include "utils/timestamp.h"

int			lazydrop_scan_resistance = LAZYDROP_SCAN_RESISTANCE_OFF;

/*
 * A buffer's class, and of one on probation how it came there.  A byte of zero is on
 * probation, loaded by a transaction that reads little.
 */
#define CLASS_MAIN			0x01
#define CLASS_RING			0x02	/* loaded by a process with a ring */
#define CLASS_BULK			0x04	/* loaded by a transaction that reads much */
#define CLASS_TOUCH_SHIFT	3	/* of CLASS_BULK: touches so far */

#define CLASS_TOUCHES(class)	((class) >> CLASS_TOUCH_SHIFT)

/* C2: probation's share of the buffers is at least 1 / PROBATION_SHARE */
#define PROBATION_SHARE		5

/* C3: usage count at which a buffer on probation is still a victim */
#define EVICTABLE_USAGE		1

/* C4: buffers of main that one search looks at, at most */
#define DEMOTION_STEPS		64

/* C3: promotions in one search, at most */
#define PROMOTION_STEPS		256

/* C6: loads after which a buffer's usage count is set back, at most ... */
#define MAX_RECENT_LOADS	64

/* ... and 1 / RECENT_SHARE of the buffers, for all processes together */
#define RECENT_SHARE		8

/* C7: a transaction reads much when it has loaded 1 / BULK_SHARE of the buffers */
#define BULK_SHARE			16

/* C7: touches that promote a page that such a transaction has loaded */
#define BULK_TOUCHES		5

/* positions that a process takes from a hand at a time, at most */
#define CLAIM				64

/* What is counted, each process for itself at first. */
typedef enum CacheCounter
{
	COUNT_LOADS,
	COUNT_RING_LOADS,
	COUNT_FREE_LOADS,
	COUNT_BULK_LOADS,
	COUNT_GHOST_HITS,
	COUNT_PROMOTIONS,
	COUNT_DEMOTIONS,
	COUNT_RESETS,
	COUNT_EVICTIONS,
	COUNT_FALLBACKS,
} CacheCounter;

#define NUM_CACHE_COUNTERS	(COUNT_FALLBACKS + 1)

/* events after which a process adds its counters to those of all */
#define EVENTS_PER_FLUSH	64

/* alone in its cache line: what processes change, or read at each load */
typedef union PaddedCounter
{
	pg_atomic_uint64 value;
	char		pad[PG_CACHE_LINE_SIZE];
} PaddedCounter;

typedef struct LazyDropCacheShared
{
	PaddedCounter nmain;		/* buffers in the main class */
	PaddedCounter main_hand;	/* not reduced modulo NBuffers */
	pg_atomic_uint64 counters[NUM_CACHE_COUNTERS];
	pg_atomic_uint64 stats_reset;	/* a TimestampTz */
} LazyDropCacheShared;

static LazyDropCacheShared *CacheCtl;
static uint8 *Classes;			/* one for each buffer */

/* Positions of a hand that this process has taken. */
typedef struct Claim
{
	uint64		next;			/* not reduced modulo NBuffers */
	uint32		left;
} Claim;

static Claim victim_claim;
static Claim main_claim;

/* the buffer that this process took last from the probation hand */
static int	last_victim = -1;

/* C6: what this process has loaded last, in a ring, and how much it may remember */
typedef struct RecentLoad
{
	int			buf_id;
	BufferTag	tag;
} RecentLoad;

static RecentLoad recent_loads[MAX_RECENT_LOADS];
static int	next_recent_load;
static int	num_recent_loads;
static int	recent_window = 1;

/* C7: what the current transaction has loaded, and when that was last halved */
static int64 xact_loads;
static uint64 xact_loads_halved;

/* what this process has counted and not yet added */
static uint64 pending_counts[NUM_CACHE_COUNTERS];
static int	pending_events;

static char *lazydrop_cache_stats;

static const struct config_enum_entry scan_resistance_options[] = {
	{"off", LAZYDROP_SCAN_RESISTANCE_OFF, false},
	{"on", LAZYDROP_SCAN_RESISTANCE_ON, false},
	{"strict", LAZYDROP_SCAN_RESISTANCE_STRICT, false},
	{"true", LAZYDROP_SCAN_RESISTANCE_ON, true},
	{"false", LAZYDROP_SCAN_RESISTANCE_OFF, true},
	{"yes", LAZYDROP_SCAN_RESISTANCE_ON, true},
	{"no", LAZYDROP_SCAN_RESISTANCE_OFF, true},
	{"1", LAZYDROP_SCAN_RESISTANCE_ON, true},
	{"0", LAZYDROP_SCAN_RESISTANCE_OFF, true},
	{NULL, 0, false}
};

/* ----------------------------------------------------------------
 *		Counters
 * ----------------------------------------------------------------
 */

static void
FlushCounts(int code, Datum arg)
{
	static uint64 last_loads = 0;
	uint64		loads;
	uint64		own;

	/*
	 * Of the last loads of all processes, so many as RECENT_SHARE allows may
	 * be remembered; so many of these are ours.
	 */
	own = pending_counts[COUNT_LOADS];
	if (own > 0)
	{
		loads = pg_atomic_read_u64(&CacheCtl->counters[COUNT_LOADS]) + own;
		recent_window = Max(1, Min(MAX_RECENT_LOADS,
								   NBuffers / RECENT_SHARE * own /
								   Max(loads - last_loads, own)));
		last_loads = loads;
	}

	for (int i = 0; i < NUM_CACHE_COUNTERS; i++)
	{
		if (pending_counts[i] != 0)
			pg_atomic_fetch_add_u64(&CacheCtl->counters[i], pending_counts[i]);
		pending_counts[i] = 0;
	}
	pending_events = 0;
}

/*
 * Count an event.  No lock is needed, and a spinlock may be held.
 */
static inline void
Count(CacheCounter counter)
{
	pending_counts[counter]++;
	pending_events++;
}

/*
 * Add what was counted, if that is worth it.  No spinlock may be held.
 */
static inline void
MaybeFlushCounts(void)
{
	static bool registered = false;

	if (unlikely(!registered))
	{
		before_shmem_exit(FlushCounts, 0);
		registered = true;
	}
	if (pending_events >= EVENTS_PER_FLUSH)
		FlushCounts(0, 0);
}

/* ----------------------------------------------------------------
 *		Classes
 * ----------------------------------------------------------------
 */

/*
 * Change a buffer's class.  The caller may do so by rule C1.
 */
static void
SetClass(int buf_id, uint8 class)
{
	uint8		old = Classes[buf_id];

	uint64		nmain PG_USED_FOR_ASSERTS_ONLY;

#ifdef USE_ASSERT_CHECKING
	uint32		state = pg_atomic_read_u32(&GetBufferDescriptor(buf_id)->state);

	Assert((state & BM_LOCKED) || BUF_STATE_GET_REFCOUNT(state) > 0);
#endif

	Classes[buf_id] = class;
	if ((class & CLASS_MAIN) && !(old & CLASS_MAIN))
	{
		nmain = pg_atomic_fetch_add_u64(&CacheCtl->nmain.value, 1);
		Assert(nmain < NBuffers);
	}
	else if (!(class & CLASS_MAIN) && (old & CLASS_MAIN))
	{
		nmain = pg_atomic_fetch_sub_u64(&CacheCtl->nmain.value, 1);
		Assert(nmain > 0);
	}
}

static inline bool
IsMain(int buf_id)
{
	return (Classes[buf_id] & CLASS_MAIN) != 0;
}

/*
 * Whether probation has less than its share.
 */
static inline bool
ProbationIsShort(void)
{
	return pg_atomic_read_u64(&CacheCtl->nmain.value) >
		(uint64) (NBuffers - NBuffers / PROBATION_SHARE);
}

/*
 * Whether a ring may go on using a buffer, or a hand find it.  The caller need not
 * hold a lock: the answer may be outdated at once.
 */
bool
LazyDropCacheOnProbation(int buf_id)
{
	return !IsMain(buf_id);
}

/*
 * Usage count up to which a buffer on probation is a victim.
 */
static inline uint32
EvictableUsage(uint8 class)
{
	return (class & CLASS_BULK) ? 0 : EVICTABLE_USAGE;
}

/* ----------------------------------------------------------------
 *		Victims (rules C2 to C4)
 * ----------------------------------------------------------------
 */

/*
 * The next position of the main hand.
 */
static inline int
NextMainPosition(void)
{
	if (main_claim.left == 0)
	{
		main_claim.left = Min(CLAIM, NBuffers);
		main_claim.next = pg_atomic_fetch_add_u64(&CacheCtl->main_hand.value,
												  main_claim.left);
	}
	main_claim.left--;
	return main_claim.next++ % NBuffers;
}

/*
 * Move the main hand until probation has its share, but not far: each load that
 * takes a victim goes on.  A buffer that has not been used since the last rounds is
 * demoted.
 */
static void
Demote(void)
{
	int			steps = 0;

	for (int looked = 0; looked < DEMOTION_STEPS * 4 && steps < DEMOTION_STEPS; looked++)
	{
		int			buf_id;
		BufferDesc *buf;
		uint32		state;

		if (!ProbationIsShort())
			return;
		buf_id = NextMainPosition();
		if (!IsMain(buf_id))
			continue;
		steps++;

		buf = GetBufferDescriptor(buf_id);
		state = pg_atomic_read_u32(&buf->state);
		if ((state & BM_LOCKED) || BUF_STATE_GET_REFCOUNT(state) != 0)
			continue;
		if (BUF_STATE_GET_USAGECOUNT(state) != 0)
		{
			/* when that fails, the buffer is being used: so much the better */
			(void) pg_atomic_compare_exchange_u32(&buf->state, &state,
												  state - BUF_USAGECOUNT_ONE);
			continue;
		}

		state = LockBufHdr(buf);
		if (BUF_STATE_GET_REFCOUNT(state) == 0 &&
			BUF_STATE_GET_USAGECOUNT(state) == 0 && IsMain(buf_id))
		{
			SetClass(buf_id, 0);
			Count(COUNT_DEMOTIONS);
			state += BUF_USAGECOUNT_ONE;
		}
		UnlockBufHdr(buf, state);
	}
}

/*
 * The probation hand has come to a buffer that was used while it was on probation.
 * The caller holds the header's lock, and the buffer has no pin.  Returns what is to
 * become of its state.
 */
static uint32
Promote(int buf_id, uint32 state)
{
	uint8		class = Classes[buf_id];

	if (class & CLASS_BULK)
	{
		uint32		touches;

		touches = CLASS_TOUCHES(class) + BUF_STATE_GET_USAGECOUNT(state);
		state &= ~BUF_USAGECOUNT_MASK;
		if (touches < BULK_TOUCHES)
		{
			SetClass(buf_id, CLASS_BULK | (touches << CLASS_TOUCH_SHIFT));
			return state;
		}
		state += BUF_USAGECOUNT_ONE;
	}
	SetClass(buf_id, CLASS_MAIN);
	Count(COUNT_PROMOTIONS);
	return state;
}

/*
 * Find a victim on probation.  claim takes so many positions from the probation hand,
 * which is that of the clock sweep, and returns the first of them.
 *
 * Returns a buffer that has no pin, with its header locked and the state in *buf_state,
 * as StrategyGetBuffer does; or NULL when there is none to be had on probation,
 * because all of it is pinned: then the clock sweep may find one in main, or say that
 * there is none.
 */
BufferDesc *
LazyDropCacheGetVictim(uint32 (*claim) (uint32 n), uint32 *buf_state)
{
	int			spare = -1;		/* the least used that was promoted */
	uint32		spare_usage = 0;
	int			promotions = 0;
	uint32		claim_size = Max(1, Min(CLAIM, NBuffers / 1024));

	if (ProbationIsShort())
		Demote();

	for (int64 looked = 0; looked < (int64) NBuffers * 2 && promotions < PROMOTION_STEPS; looked++)
	{
		int			buf_id;
		BufferDesc *buf;
		uint32		state;
		uint32		usage;

		if (victim_claim.left == 0)
		{
			victim_claim.next = claim(claim_size);
			victim_claim.left = claim_size;
		}
		victim_claim.left--;
		buf_id = victim_claim.next++ % NBuffers;

		if (IsMain(buf_id))
			continue;
		buf = GetBufferDescriptor(buf_id);
		if (BUF_STATE_GET_REFCOUNT(pg_atomic_read_u32(&buf->state)) != 0)
			continue;

		state = LockBufHdr(buf);
		usage = BUF_STATE_GET_USAGECOUNT(state);
		if (BUF_STATE_GET_REFCOUNT(state) != 0 || IsMain(buf_id))
		{
			UnlockBufHdr(buf, state);
			continue;
		}
		if (usage <= EvictableUsage(Classes[buf_id]))
		{
			Count(COUNT_EVICTIONS);
			last_victim = buf_id;
			*buf_state = state;
			return buf;
		}

		UnlockBufHdr(buf, Promote(buf_id, state));
		promotions++;
		if (spare < 0 || usage < spare_usage)
		{
			spare = buf_id;
			spare_usage = usage;
		}
		if (ProbationIsShort())
			Demote();
	}

	/* All of probation is in use, it seems: so the least used, if it is free. */
	if (spare >= 0)
	{
		BufferDesc *buf = GetBufferDescriptor(spare);
		uint32		state = LockBufHdr(buf);

		if (BUF_STATE_GET_REFCOUNT(state) == 0)
		{
			Count(COUNT_EVICTIONS);
			last_victim = spare;
			*buf_state = state;
			return buf;
		}
		UnlockBufHdr(buf, state);
	}
	Count(COUNT_FALLBACKS);
	return NULL;
}

/*
 * A page has lost its buffer, which has no tag now, and no pin but the caller's.
 * The ghost remembers it, if it was taken by the probation hand, and not by a ring
 * or because a command asked for it.
 */
void
LazyDropCacheNoteEviction(int buf_id, uint32 hash)
{
	uint8		class = Classes[buf_id];

	if (buf_id == last_victim && !(class & CLASS_RING))
		LazyDropGhostInsert(hash, (class & CLASS_BULK) ?
							LAZYDROP_GHOST_BULK + CLASS_TOUCHES(class) : LAZYDROP_GHOST_NORMAL);
	last_victim = -1;
	SetClass(buf_id, 0);
}

/*
 * A buffer becomes a free one.  The caller holds its header's lock, and it has no pin.
 */
void
LazyDropCacheNoteFree(int buf_id)
{
	SetClass(buf_id, 0);
}

/* ----------------------------------------------------------------
 *		Loads (rules C5 to C7)
 * ----------------------------------------------------------------
 */

/*
 * Set back the usage count of what this process loaded some loads ago: what it did
 * with the page until now was one use.  No spinlock may be held.
 */
static void
ResetUsage(const RecentLoad *load)
{
	BufferDesc *buf = GetBufferDescriptor(load->buf_id);
	uint32		state = pg_atomic_read_u32(&buf->state);

	if (BUF_STATE_GET_USAGECOUNT(state) <= EvictableUsage(Classes[load->buf_id]))
		return;

	state = LockBufHdr(buf);
	if ((state & BM_TAG_VALID) && BufferTagsEqual(&buf->tag, &load->tag))
	{
		uint32		usage = EvictableUsage(Classes[load->buf_id]);

		if (BUF_STATE_GET_USAGECOUNT(state) > usage)
		{
			state &= ~BUF_USAGECOUNT_MASK;
			state += usage * BUF_USAGECOUNT_ONE;
			Count(COUNT_RESETS);
		}
	}
	UnlockBufHdr(buf, state);
}

/*
 * Remember a load, and forget what there is no room for any more.
 */
static void
RememberLoad(BufferDesc *buf)
{
	RecentLoad *load = &recent_loads[next_recent_load];

	while (num_recent_loads >= recent_window)
	{
		int			oldest = next_recent_load + MAX_RECENT_LOADS - num_recent_loads;

		ResetUsage(&recent_loads[oldest % MAX_RECENT_LOADS]);
		num_recent_loads--;
	}

	load->buf_id = buf->buf_id;
	load->tag = buf->tag;		/* stays, because the caller has a pin */
	next_recent_load = (next_recent_load + 1) % MAX_RECENT_LOADS;
	num_recent_loads++;
}

/*
 * Whether the current transaction reads so much that what it loads has to show that
 * it is needed.  Replay must be as quick as it can be, and has no transaction.
 */
static bool
ReadsMuch(void)
{
	uint64		all;

	if (lazydrop_scan_resistance != LAZYDROP_SCAN_RESISTANCE_STRICT)
		return false;

	xact_loads++;
	all = pg_atomic_read_u64(&CacheCtl->counters[COUNT_LOADS]);
	if (all - xact_loads_halved > (uint64) NBuffers)
	{
		xact_loads /= 2;
		xact_loads_halved = all;
	}
	return xact_loads > NBuffers / BULK_SHARE && !have_free_buffer() &&
		!AmStartupProcess();
}

/*
 * Take the first use of a page that is being loaded from its usage count.
 */
static void
ClearUsage(BufferDesc *buf)
{
	uint32		state = LockBufHdr(buf);

	UnlockBufHdr(buf, state & ~BUF_USAGECOUNT_MASK);
}

/*
 * A page has been given a buffer, which the caller still has pinned.  The hash is that
 * of the page's tag; NULL says that the page is new.  No spinlock may be held.
 */
void
LazyDropCacheNoteLoad(BufferDesc *buf, const uint32 *hash, bool ring)
{
	uint8		class = 0;
	uint32		kind = 0;

	MaybeFlushCounts();
	if (ring)
	{
		Count(COUNT_RING_LOADS);
		SetClass(buf->buf_id, CLASS_RING);
		return;
	}

	Count(COUNT_LOADS);
	if (ReadsMuch())
	{
		uint32		touches = 0;

		Count(COUNT_BULK_LOADS);
		if (hash && (kind = LazyDropGhostRemove(*hash, true)) != 0)
			touches = kind - LAZYDROP_GHOST_BULK + 1;
		if (touches >= BULK_TOUCHES)
			class = CLASS_MAIN;
		else
		{
			class = CLASS_BULK | (touches << CLASS_TOUCH_SHIFT);
			ClearUsage(buf);
		}
	}
	else if (hash && (kind = LazyDropGhostRemove(*hash, false)) != 0)
		class = CLASS_MAIN;

	if (kind != 0)
		Count(COUNT_GHOST_HITS);
	SetClass(buf->buf_id, class);
	RememberLoad(buf);
}

void
LazyDropCacheCountFreeLoad(void)
{
	Count(COUNT_FREE_LOADS);
}

/*
 * A transaction ends.
 */
static void
CacheXactCallback(XactEvent event, void *arg)
{
	if (event != XACT_EVENT_PRE_COMMIT &&
		event != XACT_EVENT_PARALLEL_PRE_COMMIT &&
		event != XACT_EVENT_PRE_PREPARE)
		xact_loads = 0;
}

/* ----------------------------------------------------------------
 *		Start-up, and what is seen
 * ----------------------------------------------------------------
 */

static const char *ShowCacheStats(void);

static Size
ClassesSize(void)
{
	return MAXALIGN(NBuffers);
}

/*
 * Shared memory that is needed: about 5.3 bytes a buffer.  It is there when the policy
 * is off, too, so that it can be switched on.
 */
Size
LazyDropCacheShmemSize(void)
{
	Size		size = PG_CACHE_LINE_SIZE;

	size = add_size(size, TYPEALIGN(PG_CACHE_LINE_SIZE, sizeof(LazyDropCacheShared)));
	size = add_size(size, LazyDropGhostShmemSize());
	size = add_size(size, ClassesSize());
	return size;
}

/*
 * Allocate and initialize it, or find it.
 */
void
LazyDropCacheShmemInit(void)
{
	bool		found;
	char	   *start;

	start = ShmemInitStruct("Lazy Drop Cache", LazyDropCacheShmemSize(), &found);
	start = (char *) TYPEALIGN(PG_CACHE_LINE_SIZE, start);
	CacheCtl = (LazyDropCacheShared *) start;
	start += TYPEALIGN(PG_CACHE_LINE_SIZE, sizeof(LazyDropCacheShared));
	LazyDropGhostShmemInit(start, found);
	start += LazyDropGhostShmemSize();
	Classes = (uint8 *) start;
	if (found)
		return;

	pg_atomic_init_u64(&CacheCtl->nmain.value, 0);
	pg_atomic_init_u64(&CacheCtl->main_hand.value, 0);
	for (int i = 0; i < NUM_CACHE_COUNTERS; i++)
		pg_atomic_init_u64(&CacheCtl->counters[i], 0);
	pg_atomic_init_u64(&CacheCtl->stats_reset, (uint64) GetCurrentTimestamp());
	memset(Classes, 0, ClassesSize());
}

/*
 * Define the settings.  Called once in each process that has settings.
 */
void
LazyDropCacheDefineSettings(void)
{
	DefineCustomEnumVariable("lazydrop.scan_resistance",
							 "Keeps scans from evicting what is used often from shared_buffers.",
							 "\"strict\" also makes what a transaction that reads much loads prove its use.",
							 &lazydrop_scan_resistance,
							 LAZYDROP_SCAN_RESISTANCE_OFF,
							 scan_resistance_options,
							 PGC_SIGHUP,
							 0,
							 NULL, NULL, NULL);

	DefineCustomStringVariable("lazydrop.cache_stats",
							   "Shows what scan resistance has done, as JSON.",
							   NULL,
							   &lazydrop_cache_stats,
							   "",
							   PGC_INTERNAL,
							   GUC_NO_SHOW_ALL | GUC_NO_RESET_ALL |
							   GUC_NOT_IN_SAMPLE | GUC_DISALLOW_IN_FILE |
							   GUC_SUPERUSER_ONLY,
							   NULL, NULL, ShowCacheStats);

	RegisterXactCallback(CacheXactCallback, NULL);
}

/*
 * Tell what the classes are now, and what has been counted since the last reset.
 * What a process has counted is added after EVENTS_PER_FLUSH events, or at its end.
 */
void
LazyDropCacheGetStats(LazyDropCacheStats *stats)
{
	FlushCounts(0, 0);
	stats->scan_resistance = scan_resistance_options[lazydrop_scan_resistance].name;
	stats->buffers = NBuffers;
	stats->main = 0;
	for (int i = 0; i < NBuffers; i++)
		stats->main += IsMain(i);
	stats->probation = NBuffers - stats->main;

#define READ(counter) pg_atomic_read_u64(&CacheCtl->counters[counter])
	stats->loads = READ(COUNT_LOADS);
	stats->ring_loads = READ(COUNT_RING_LOADS);
	stats->free_loads = READ(COUNT_FREE_LOADS);
	stats->bulk_loads = READ(COUNT_BULK_LOADS);
	stats->ghost_hits = READ(COUNT_GHOST_HITS);
	stats->promotions = READ(COUNT_PROMOTIONS);
	stats->demotions = READ(COUNT_DEMOTIONS);
	stats->resets = READ(COUNT_RESETS);
	stats->evictions = READ(COUNT_EVICTIONS);
	stats->fallbacks = READ(COUNT_FALLBACKS);
#undef READ
	stats->stats_reset = (TimestampTz) pg_atomic_read_u64(&CacheCtl->stats_reset);
}

/*
 * Set the counters to zero.  Classes and the ghost stay.
 */
void
LazyDropCacheResetStats(void)
{
	FlushCounts(0, 0);
	for (int i = 0; i < NUM_CACHE_COUNTERS; i++)
		pg_atomic_write_u64(&CacheCtl->counters[i], 0);
	pg_atomic_write_u64(&CacheCtl->stats_reset, (uint64) GetCurrentTimestamp());
}

/*
 * Value of lazydrop.cache_stats.
 */
static const char *
ShowCacheStats(void)
{
	static StringInfoData buf;
	LazyDropCacheStats stats;
	char		encoded[MAXDATELEN + 1];

	if (CacheCtl == NULL)
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
	appendStringInfo(&buf, ", \"stats_reset\": \"%s\"}",
					 JsonEncodeDateTime(encoded, TimestampTzGetDatum(stats.stats_reset),
										TIMESTAMPTZOID, NULL));
	return buf.data;
}
