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
#include "miscadmin.h"
#include "port/atomics.h"
#include "storage/ipc.h"
#include "storage/lazydrop_cache.h"
#include "storage/lazydrop_cache_policy.h"
#include "storage/proc.h"
#include "storage/shmem.h"
#include "utils/guc.h"
#include "utils/timestamp.h"

int			lazydrop_scan_resistance = LAZYDROP_SCAN_RESISTANCE_OFF;

#define CLASS_TOUCHES(class)	(((class) >> CLASS_TOUCH_SHIFT) & 7)

/* C6: processes that load, as a process assumes that has just begun */
#define GUESSED_LOADERS		32

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

	/* since the server was started; what is shown is counted from bases on */
	pg_atomic_uint64 counters[NUM_CACHE_COUNTERS];
	pg_atomic_uint64 bases[NUM_CACHE_COUNTERS];
	pg_atomic_uint64 stats_reset;	/* a TimestampTz */
} LazyDropCacheShared;

static LazyDropCacheShared *CacheCtl;
static uint8 *Classes;			/* one for each buffer */

/*
 * Positions of a hand that this process has taken: the more, the more it needs.
 */
typedef struct Claim
{
	uint64		next;			/* not reduced modulo NBuffers */
	uint32		left;
	uint32		size;
	uint64		clock;			/* LoadClock when they were taken */
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
	uint64		clock;			/* LoadClock then */
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
static uint64 last_flush;		/* LoadClock then */
static bool initialized = false;

/* whether a scan left its ring for the free list, which may have become empty */
static bool left_ring = false;

static void ForgetLoad(void);

/* ----------------------------------------------------------------
 *		Counters
 * ----------------------------------------------------------------
 */

/*
 * The clock of the policy: loads without a ring, by all processes, since the server
 * was started.  It lags behind by what each has not yet added.
 */
static inline uint64
LoadClock(void)
{
	return pg_atomic_read_u64(&CacheCtl->counters[COUNT_LOADS]);
}

/*
 * Add what was counted to the counters of all processes.
 *
 * Of the last loads of all, so many as RECENT_SHARE allows may be remembered (rule
 * C6).  This process' share is that of what was loaded since it last came here.
 */
static void
FlushCounts(void)
{
	uint64		own = pending_counts[COUNT_LOADS];

	if (own > 0)
	{
		uint64		clock = LoadClock() + own;

		recent_window = Max(1, Min(MAX_RECENT_LOADS,
								   NBuffers / RECENT_SHARE * own /
								   Max(clock - last_flush, own)));
		last_flush = clock;
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
 * This process ends: what it has loaded last was one use, too.
 */
static void
CacheShmemExit(int code, Datum arg)
{
	while (num_recent_loads > 0)
		ForgetLoad();
	FlushCounts();
}

/*
 * Called at each load, when no spinlock is held.
 *
 * The callback is one of on_shmem_exit, because PG_ENSURE_ERROR_CLEANUP wants its own
 * to be the last of before_shmem_exit.
 */
static inline void
MaybeFlushCounts(void)
{
	if (unlikely(!initialized))
	{
		on_shmem_exit(CacheShmemExit, 0);
		last_flush = LoadClock();
		recent_window = Max(1, Min(MAX_RECENT_LOADS,
								   NBuffers / RECENT_SHARE / GUESSED_LOADERS));
		initialized = true;
	}
	if (pending_events >= EVENTS_PER_FLUSH)
		FlushCounts();
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
	LazyDropBufState state PG_USED_FOR_ASSERTS_ONLY;

	state = LazyDropReadBufState(GetBufferDescriptor(buf_id));
	Assert((state & BM_LOCKED) || BUF_STATE_GET_REFCOUNT(state) > 0);

	if (class == old)
		return;
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
 * Whether main has so nearly all of the pool that looking for probation takes longer
 * than it is worth.
 */
static inline bool
ProbationIsGone(void)
{
	return pg_atomic_read_u64(&CacheCtl->nmain.value) >
		(uint64) (NBuffers - NBuffers / PROBATION_LEAST);
}

/*
 * Usage count up to which a buffer on probation is a victim.
 */
static inline uint32
EvictableUsage(uint8 class)
{
	return (class & CLASS_BULK) ? 0 : EVICTABLE_USAGE;
}

/*
 * Whether a ring may go on using a buffer: what is in main is used by others, and what
 * has been loaded without a ring is theirs.  The answer may be outdated at once.
 */
bool
LazyDropCacheIsOfRing(int buf_id)
{
	return (Classes[buf_id] & (CLASS_RING | CLASS_MAIN)) == CLASS_RING;
}

/*
 * Whether the probation hand would take a buffer with this usage count, if it has no
 * pin.  The answer may be outdated at once.
 */
bool
LazyDropCacheIsVictim(int buf_id, uint32 usage_count)
{
	uint8		class = Classes[buf_id];

	return !(class & CLASS_MAIN) && usage_count <= EvictableUsage(class);
}

/* ----------------------------------------------------------------
 *		Victims (rules C2 to C4)
 * ----------------------------------------------------------------
 */

/*
 * Begin a search with the positions that are left of a claim, or without, if the hand
 * has gone far since: those would be the newest pages by now.
 */
static inline void
CheckClaim(Claim *claim)
{
	uint64		clock = LoadClock();

	if (clock - claim->clock > (uint64) NBuffers / RECENT_SHARE)
	{
		claim->left = 0;
		claim->size = 0;
	}
}

/*
 * How many positions to take next: one by a process that loads a page now and then, at
 * most CLAIM by one that goes on.
 */
static inline uint32
NextClaim(Claim *claim)
{
	claim->size = Max(1, Min(claim->size * 2, Min(CLAIM, NBuffers / 1024)));
	claim->left = claim->size;
	claim->clock = LoadClock();
	return claim->size;
}

/*
 * The next position of the main hand.
 */
static inline int
NextMainPosition(void)
{
	if (main_claim.left == 0)
	{
		uint32		n = NextClaim(&main_claim);

		main_claim.next = pg_atomic_fetch_add_u64(&CacheCtl->main_hand.value, n);
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

	CheckClaim(&main_claim);
	for (int looked = 0; looked < DEMOTION_STEPS * 4 && steps < DEMOTION_STEPS; looked++)
	{
		int			buf_id;
		BufferDesc *buf;
		LazyDropBufState old;
		LazyDropBufState state;

		if (!ProbationIsShort())
			return;
		buf_id = NextMainPosition();
		if (!IsMain(buf_id))
			continue;
		steps++;

		buf = GetBufferDescriptor(buf_id);
		state = LazyDropReadBufState(buf);
		if ((state & BM_LOCKED) || BUF_STATE_GET_REFCOUNT(state) != 0)
			continue;
		if (BUF_STATE_GET_USAGECOUNT(state) != 0)
		{
			/* when that fails, the buffer is being used: so much the better */
			(void) LazyDropExchangeBufState(buf, &state,
											state - BUF_USAGECOUNT_ONE);
			continue;
		}

		state = old = LockBufHdr(buf);
		if (BUF_STATE_GET_REFCOUNT(state) == 0 &&
			BUF_STATE_GET_USAGECOUNT(state) == 0 && IsMain(buf_id))
		{
			SetClass(buf_id, 0);
			Count(COUNT_DEMOTIONS);
			state += BUF_USAGECOUNT_ONE;
		}
		LazyDropUnlockBufHdr(buf, old, state);
	}
}

/*
 * The probation hand has come to a buffer that was used while it was on probation.
 * Promote it, if it has the largest usage count, or the hand has spared it before:
 * then it was used in both laps.  Sessions that read the same pages at about the same
 * time use them in one.
 *
 * The caller holds the header's lock, and the buffer has no pin.  Returns what is to
 * become of its state.
 */
static LazyDropBufState
Promote(int buf_id, LazyDropBufState state)
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
	else if (!(class & CLASS_SECOND_LAP) &&
			 BUF_STATE_GET_USAGECOUNT(state) < BM_MAX_USAGE_COUNT)
	{
		SetClass(buf_id, class | CLASS_SECOND_LAP);
		return state - BUF_USAGECOUNT_ONE *
			Min(FIRST_LAP_USAGE, BUF_STATE_GET_USAGECOUNT(state));
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
 * as StrategyGetBuffer does; or NULL when there is hardly a buffer on probation, or
 * all of them are pinned: then the clock sweep goes over all buffers, lowers the usage
 * counts of main as well, or says that there is no victim.
 */
BufferDesc *
LazyDropCacheGetVictim(uint32 (*claim) (uint32 n), LazyDropBufState *buf_state)
{
	int			spare = -1;		/* the least used that was passed over */
	uint32		spare_usage = 0;
	int			passed_over = 0;

	left_ring = false;
	if (ProbationIsShort())
		Demote();
	CheckClaim(&victim_claim);

	for (int64 looked = 0; looked < (int64) NBuffers * 2 && passed_over < PASSED_OVER_STEPS; looked++)
	{
		int			buf_id;
		BufferDesc *buf;
		LazyDropBufState state;
		uint32		usage;

		if (victim_claim.left == 0)
		{
			if (ProbationIsGone())
				break;
			victim_claim.next = claim(NextClaim(&victim_claim));
		}
		victim_claim.left--;
		buf_id = victim_claim.next++ % NBuffers;

		if (IsMain(buf_id))
			continue;
		buf = GetBufferDescriptor(buf_id);
		if (BUF_STATE_GET_REFCOUNT(LazyDropReadBufState(buf)) != 0)
			continue;

		state = LockBufHdr(buf);
		usage = BUF_STATE_GET_USAGECOUNT(state);
		if (BUF_STATE_GET_REFCOUNT(state) != 0 || IsMain(buf_id))
		{
			LazyDropUnlockBufHdr(buf, state, state);
			continue;
		}
		if (usage <= EvictableUsage(Classes[buf_id]))
		{
			Count(COUNT_EVICTIONS);
			last_victim = buf_id;
			*buf_state = state;
			return buf;
		}

		LazyDropUnlockBufHdr(buf, state, Promote(buf_id, state));
		passed_over++;
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
		LazyDropBufState state = LockBufHdr(buf);

		if (BUF_STATE_GET_REFCOUNT(state) == 0)
		{
			Count(COUNT_EVICTIONS);
			last_victim = spare;
			*buf_state = state;
			return buf;
		}
		LazyDropUnlockBufHdr(buf, state, state);
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
LazyDropCacheNoteEviction(int buf_id, const BufferTag *tag, uint32 hash)
{
	uint8		class = Classes[buf_id];

	if (buf_id == last_victim && !(class & CLASS_RING))
		LazyDropGhostInsert(tag, hash, (class & CLASS_BULK) ?
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
	LazyDropBufState old;
	LazyDropBufState state = LazyDropReadBufState(buf);

	if (BUF_STATE_GET_USAGECOUNT(state) <= EvictableUsage(Classes[load->buf_id]))
		return;

	state = old = LockBufHdr(buf);
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
	LazyDropUnlockBufHdr(buf, old, state);
}

/*
 * Forget the oldest load that is remembered.  If all processes have loaded much since
 * then, the page has been used for more than a burst, and keeps its count.
 */
static void
ForgetLoad(void)
{
	int			oldest = next_recent_load + MAX_RECENT_LOADS - num_recent_loads;
	RecentLoad *load = &recent_loads[oldest % MAX_RECENT_LOADS];

	num_recent_loads--;
	if (LoadClock() - load->clock <= (uint64) NBuffers / RECENT_AGE)
		ResetUsage(load);
}

/*
 * Remember a load, and forget what there is no room for any more.
 */
static void
RememberLoad(BufferDesc *buf)
{
	RecentLoad *load = &recent_loads[next_recent_load];

	while (num_recent_loads >= recent_window)
		ForgetLoad();

	load->buf_id = buf->buf_id;
	load->tag = buf->tag;		/* stays, because the caller has a pin */
	load->clock = LoadClock();
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
	all = LoadClock();
	if (all - xact_loads_halved > (uint64) NBuffers)
	{
		xact_loads /= 2;
		xact_loads_halved = all;
	}
	return xact_loads > NBuffers / BULK_SHARE && !LazyDropHaveFreeBuffer() &&
		!AmStartupProcess();
}

/*
 * Take the first use of a page that is being loaded from its usage count.
 */
static void
ClearUsage(BufferDesc *buf)
{
	LazyDropBufState state = LockBufHdr(buf);

	LazyDropUnlockBufHdr(buf, state, state & ~BUF_USAGECOUNT_MASK);
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
		if (left_ring)
			Count(COUNT_FREE_LOADS);
		left_ring = false;
		SetClass(buf->buf_id, CLASS_RING);
		return;
	}

	Count(COUNT_LOADS);
	if (ReadsMuch())
	{
		uint32		touches = 0;

		Count(COUNT_BULK_LOADS);
		if (hash && (kind = LazyDropGhostRemove(&buf->tag, *hash, true)) != 0)
			touches = kind - LAZYDROP_GHOST_BULK + 1;
		if (touches >= BULK_TOUCHES)
			class = CLASS_MAIN;
		else
		{
			class = CLASS_BULK | (touches << CLASS_TOUCH_SHIFT);
			ClearUsage(buf);
		}
	}
	else if (hash && (kind = LazyDropGhostRemove(&buf->tag, *hash, false)) != 0)
		class = CLASS_MAIN;

	if (kind != 0)
		Count(COUNT_GHOST_HITS);
	SetClass(buf->buf_id, class);
	RememberLoad(buf);
}

/*
 * Whether a scan that has a ring should take a free buffer instead.
 */
bool
LazyDropCacheTakesFree(void)
{
	left_ring = LazyDropHaveFreeBuffer();
	return left_ring;
}

/*
 * A transaction ends.
 */
void
LazyDropCacheXactCallback(XactEvent event, void *arg)
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
	{
		pg_atomic_init_u64(&CacheCtl->counters[i], 0);
		pg_atomic_init_u64(&CacheCtl->bases[i], 0);
	}
	pg_atomic_init_u64(&CacheCtl->stats_reset, (uint64) GetCurrentTimestamp());
	memset(Classes, 0, ClassesSize());
}

/*
 * Tell what the classes are now, and what has been counted since the last reset.
 * What a process has counted is added after EVENTS_PER_FLUSH events, or at its end.
 */
void
LazyDropCacheGetStats(LazyDropCacheStats *stats)
{
	FlushCounts();
	stats->scan_resistance = GetConfigOption("lazydrop.scan_resistance", false, false);
	stats->buffers = NBuffers;
	stats->main = 0;
	for (int i = 0; i < NBuffers; i++)
		stats->main += IsMain(i);
	stats->probation = NBuffers - stats->main;

#define READ(counter) \
	(pg_atomic_read_u64(&CacheCtl->counters[counter]) - \
	 pg_atomic_read_u64(&CacheCtl->bases[counter]))
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
	FlushCounts();
	for (int i = 0; i < NUM_CACHE_COUNTERS; i++)
		pg_atomic_write_u64(&CacheCtl->bases[i],
							pg_atomic_read_u64(&CacheCtl->counters[i]));
	pg_atomic_write_u64(&CacheCtl->stats_reset, (uint64) GetCurrentTimestamp());
}
