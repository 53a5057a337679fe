/*-------------------------------------------------------------------------
 *
 * lazydrop_cache.c
 *	  A replacement policy that no scan can flush: a clock with two classes.
 *
 * Rules C1-C9 are in README.lazydrop.  A wrong class can cause a worse victim,
 * never a wrong page: no process relies on a class to determine the contents
 * of a buffer or whether it may be reused.
 *
 * The parts are known from the literature: a probation queue that remembers
 * evicted pages (2Q, Johnson and Shasha 1994; S3-FIFO, Yang et al. 2023),
 * correlated references (LRU-K, O'Neil et al. 1993), two hands on one ring of
 * buffers (CLOCK-Pro, Jiang et al. 2005).
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

/* C6: number of loading processes that a new process assumes */
#define GUESSED_LOADERS		32

/* C7: a transaction reads much if it has loaded 1 / BULK_SHARE of buffers */
#define BULK_SHARE			16

/* C7: touches that promote a page that such a transaction has loaded */
#define BULK_TOUCHES		5

/* maximum number of positions that a process takes from a hand at a time */
#define CLAIM				64

/* Counters.  Each process first counts in private memory. */
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

/* events after which a process adds its counts to the shared counters */
#define EVENTS_PER_FLUSH	64

/* in a cache line of its own, because processes use it at each load */
typedef union PaddedCounter
{
	pg_atomic_uint64 value;
	char		pad[PG_CACHE_LINE_SIZE];
} PaddedCounter;

typedef struct LazyDropCacheShared
{
	PaddedCounter nmain;		/* buffers in the main class */
	PaddedCounter main_hand;	/* not reduced modulo NBuffers */

	/* since server start; the views show the difference to bases */
	pg_atomic_uint64 counters[NUM_CACHE_COUNTERS];
	pg_atomic_uint64 bases[NUM_CACHE_COUNTERS];
	pg_atomic_uint64 stats_reset;	/* a TimestampTz */
} LazyDropCacheShared;

static LazyDropCacheShared *CacheCtl;
static uint8 *Classes;			/* one for each buffer */

/*
 * Positions of a hand that this process has taken.  Their number grows with
 * its demand.
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

/*
 * C6: the last loads of this process, in a ring, and how many it may remember
 */
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

/* C7: loads of the current transaction, and the time of their last halving */
static int64 xact_loads;
static uint64 xact_loads_halved;

/* counts that this process has not yet added */
static uint64 pending_counts[NUM_CACHE_COUNTERS];
static int	pending_events;
static uint64 last_flush;		/* LoadClock then */
static bool initialized = false;

/* a scan left its ring for the free list, which may have become empty */
static bool left_ring = false;

static void ForgetLoad(void);

/* ----------------------------------------------------------------
 *		Counters
 * ----------------------------------------------------------------
 */

/*
 * Return the clock of the policy: loads without a ring, by all processes,
 * since server start.  It lags by the counts that processes have not yet
 * added.
 */
static inline uint64
LoadClock(void)
{
	return pg_atomic_read_u64(&CacheCtl->counters[COUNT_LOADS]);
}

/*
 * Add the counts of this process to the shared counters.
 *
 * RECENT_SHARE limits how many of the last loads of all processes may be
 * remembered (rule C6).  The share of this process is its part of the loads
 * since the last call.
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
 * At process exit, the last loads count as one use, too.
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
 * The callback is registered with on_shmem_exit, because
 * PG_ENSURE_ERROR_CLEANUP requires its own callback to be the last one of
 * before_shmem_exit.
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
 * Change a buffer's class.  Rule C1 must allow the caller to do so.
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
 * Return whether probation has less than its share.
 */
static inline bool
ProbationIsShort(void)
{
	return pg_atomic_read_u64(&CacheCtl->nmain.value) >
		(uint64) (NBuffers - NBuffers / PROBATION_SHARE);
}

/*
 * Return whether main has nearly all of the pool, so that a search for buffers
 * on probation is not worthwhile.
 */
static inline bool
ProbationIsGone(void)
{
	return pg_atomic_read_u64(&CacheCtl->nmain.value) >
		(uint64) (NBuffers - NBuffers / PROBATION_LEAST);
}

/*
 * Return the usage count up to which a buffer on probation is a victim.
 */
static inline uint32
EvictableUsage(uint8 class)
{
	return (class & CLASS_BULK) ? 0 : EVICTABLE_USAGE;
}

/*
 * Return whether a ring may continue to use a buffer.  It may not if others
 * use the page, which is then in main, or have loaded it without a ring.  The
 * answer may be outdated at once.
 */
bool
LazyDropCacheIsOfRing(int buf_id)
{
	return (Classes[buf_id] & (CLASS_RING | CLASS_MAIN)) == CLASS_RING;
}

/*
 * Return whether the probation hand would take a buffer with this usage count,
 * if it has no pin.  The answer may be outdated at once.
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
 * Begin a search with the remaining positions of a claim.  Discard them if the
 * hand has advanced far since: they would be the newest pages by now.
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
 * Return the number of positions to take next: one if the process rarely loads
 * a page, at most CLAIM if it loads continuously.
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
 * Return the next position of the main hand.
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
 * Move the main hand until probation has its share, but not far: each load
 * that takes a victim continues.  Demote buffers that have not been used since
 * the last rounds.
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
			/* if this fails, the buffer is being used, so keep its count */
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
 * The probation hand has reached a buffer that was used while on probation.
 * Promote it, if it has the largest usage count, or the hand has spared it
 * before: then it was used in both laps.  Sessions that read the same pages at
 * about the same time use them in one lap.
 *
 * The caller holds the header's lock, and the buffer has no pin.  Return the
 * new state.
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
 * Find a victim on probation.  claim takes n positions from the probation
 * hand, which is the clock sweep's, and returns the first of them.
 *
 * Return a buffer that has no pin, with its header locked and the state in
 * *buf_state, as StrategyGetBuffer does.  Return NULL if there is hardly a
 * buffer on probation, or all of them are pinned: then the clock sweep scans
 * all buffers, lowers the usage counts of main as well, or reports that there
 * is no victim.
 */
BufferDesc *
LazyDropCacheGetVictim(uint32 (*claim) (uint32 n), LazyDropBufState *buf_state)
{
	int			spare = -1;		/* the least used skipped buffer */
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

	/*
	 * All of probation seems to be in use.  Take the least used, if unpinned.
	 */
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
 * A page has lost its buffer, which has no tag now, and no pin but the
 * caller's.  The ghost remembers the page if the probation hand evicted it,
 * and not a ring or a command.
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
 * A buffer becomes free.  The caller holds its header's lock, and it has no
 * pin.
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
 * Reset the usage count of a page that this process loaded some loads ago: all
 * its uses until now count as one.  No spinlock may be held.
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
 * Forget the oldest remembered load.  If all processes have loaded much since
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
 * Remember a load, and forget older ones to make room.
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
 * Return whether the current transaction reads so much that its pages must be
 * used again before they are kept.  Replay must be as fast as possible, and
 * has no transaction.
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
 * Remove the first use of a page that is being loaded from its usage count.
 */
static void
ClearUsage(BufferDesc *buf)
{
	LazyDropBufState state = LockBufHdr(buf);

	LazyDropUnlockBufHdr(buf, state, state & ~BUF_USAGECOUNT_MASK);
}

/*
 * A page has been loaded into a buffer, which the caller still has pinned.
 * hash is the hash of the page's tag, or NULL if the page is new.  No spinlock
 * may be held.
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
 * Return whether a scan that has a ring should take a free buffer instead.
 */
bool
LazyDropCacheTakesFree(void)
{
	left_ring = LazyDropHaveFreeBuffer();
	return left_ring;
}

/*
 * Forget the loads of a transaction that ends.
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
 *		Start-up and statistics
 * ----------------------------------------------------------------
 */

static Size
ClassesSize(void)
{
	return MAXALIGN(NBuffers);
}

/*
 * Return the size of shared memory: about 5.3 bytes for each buffer.  It is
 * allocated even if the policy is off, so that it can be switched on.
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
 * Allocate and initialize shared memory, or attach to it.
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
 * Return the current sizes of the classes, and the counters since the last
 * reset.  A process adds its counts after EVENTS_PER_FLUSH events, or at exit.
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
