/*-------------------------------------------------------------------------
 *
 * lazydrop_cache.c
 *	  A replacement policy that protects frequently used pages from scans.
 *
 * Rules C1-C9 are in README.lazydrop, and the decisions themselves in
 * lazydrop_cache_policy.h.  A wrong class can cause a worse victim, never a
 * wrong page: no process relies on a class to determine the contents of a
 * buffer or whether it may be reused.
 *
 * The policy is 2Q (Johnson and Shasha 1994), with clocks instead of lists:
 * new pages are on probation, pages evicted from there are remembered, and one
 * that returns goes to main.  Two clock hands on one ring of buffers are known
 * from CLOCK-Pro (Jiang et al. 2005).
 *
 * Copyright (c) 2026, LazyDrop developers
 *
 * IDENTIFICATION
 *	  src/backend/storage/buffer/lazydrop_cache.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/parallel.h"
#include "miscadmin.h"
#include "port/atomics.h"
#include "storage/ipc.h"
#include "storage/lazydrop_cache.h"
#include "storage/lazydrop_cache_policy.h"
#include "storage/shmem.h"
#include "utils/timestamp.h"

int			lazydrop_scan_resistance = LAZYDROP_SCAN_RESISTANCE_OFF;
bool		lazydrop_read_once = false;

/* maximum number of positions that a process takes from a hand at a time */
#define CLAIM				64

/* positions are discarded after loads of 1 / CLAIM_AGE of the buffers */
#define CLAIM_AGE			8

/* C8: maximum part of the buffers that one scan takes from the free list */
#define FREE_SHARE			2

/* Counters.  Each process first counts in private memory. */
typedef enum CacheCounter
{
	COUNT_LOADS,
	COUNT_RING_LOADS,
	COUNT_FREE_LOADS,
	COUNT_GHOST_HITS,
	COUNT_PROMOTIONS,
	COUNT_DEMOTIONS,
	COUNT_REFUSALS,
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
	PaddedCounter clock;		/* loads by all processes */

	/* since server start; the views show the difference to bases */
	pg_atomic_uint64 counters[NUM_CACHE_COUNTERS];
	pg_atomic_uint64 bases[NUM_CACHE_COUNTERS];
	pg_atomic_uint64 stats_reset;	/* a TimestampTz */
} LazyDropCacheShared;

static LazyDropCacheShared *CacheCtl;
static uint8 *Classes;			/* one for each buffer */
static int	main_limit;			/* LazyDropMainLimit(NBuffers) */

/*
 * Positions of a hand that this process has taken.  Their number grows with
 * its demand.
 */
typedef struct Claim
{
	uint32		next;			/* less than NBuffers */
	uint32		left;
	uint32		size;
	uint64		clock;			/* LoadClock when they were taken */
} Claim;

static Claim victim_claim;
static Claim main_claim;

/* the buffer that this process took last from the probation hand */
static int	last_victim = -1;

/* pinned buffers that this process may still pass */
static int	pinned_left = PINNED_STEPS_SAVED;

/* counts that this process has not yet added */
static uint64 pending_counts[NUM_CACHE_COUNTERS];
static int	pending_events;
static bool initialized = false;

/* a scan left its ring for the free list, which may have become empty */
static bool left_ring = false;

/* the ring that was left last, which may no longer exist, and how often */
static BufferAccessStrategy counted_ring = NULL;
static int	free_blocks = 0;

/* ----------------------------------------------------------------
 *		Counters
 * ----------------------------------------------------------------
 */

/*
 * Return the clock of the policy.  It lags by the loads that processes have
 * not yet added.
 */
static inline uint64
LoadClock(void)
{
	return pg_atomic_read_u64(&CacheCtl->clock.value);
}

/*
 * Add the counts of this process to the shared counters.
 */
static void
FlushCounts(void)
{
	pg_atomic_fetch_add_u64(&CacheCtl->clock.value,
							pending_counts[COUNT_LOADS] + pending_counts[COUNT_RING_LOADS]);
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

static void
CacheShmemExit(int code, Datum arg)
{
	FlushCounts();
}

/*
 * Called when no spinlock and no relation extension lock is held.
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
 * Change a buffer's class.  Rule C1 must allow the caller to do so.  If the
 * buffer enters or leaves main, the caller also changes the number of buffers
 * in main, if possible when it has released the header's lock.
 */
static inline void
SetClass(int buf_id, uint8 class)
{
	LazyDropBufState state PG_USED_FOR_ASSERTS_ONLY;

	state = LazyDropReadBufState(GetBufferDescriptor(buf_id));
	Assert((state & BM_LOCKED) || BUF_STATE_GET_REFCOUNT(state) > 0);

	if (Classes[buf_id] != class)
		Classes[buf_id] = class;
}

static inline void
AddToMain(void)
{
	pg_atomic_fetch_add_u64(&CacheCtl->nmain.value, 1);
}

static inline void
SubtractFromMain(void)
{
	pg_atomic_fetch_sub_u64(&CacheCtl->nmain.value, 1);
}

static inline bool
IsMain(int buf_id)
{
	return (Classes[buf_id] & CLASS_MAIN) != 0;
}

/*
 * Return the number of buffers in main.  It may be wrong by one for each
 * process that is changing a class, and even negative.
 */
static inline int64
NumMain(void)
{
	return (int64) pg_atomic_read_u64(&CacheCtl->nmain.value);
}

static inline bool
MainIsFull(void)
{
	return NumMain() >= main_limit;
}

/*
 * Return whether a ring may continue to use a buffer.  The answer may be
 * outdated at once.
 */
bool
LazyDropCacheIsOfRing(int buf_id)
{
	return LazyDropIsOfRing(Classes[buf_id]);
}

/*
 * Return whether the probation hand would take a buffer with this usage count,
 * if it has no pin.  The answer may be outdated at once.
 */
bool
LazyDropCacheIsVictim(int buf_id, uint32 usage_count)
{
	uint8		class = Classes[buf_id];

	return !(class & CLASS_MAIN) &&
		LazyDropVisit(class, usage_count, true) == LAZYDROP_EVICT;
}

/* ----------------------------------------------------------------
 *		Main (rule C4)
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

	if (clock - claim->clock > (uint64) NBuffers / CLAIM_AGE)
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
 * Return the next position of a claim that is not used up.
 */
static inline int
NextPosition(Claim *claim)
{
	uint32		position = claim->next;

	Assert(claim->left > 0 && position < NBuffers);
	claim->left--;
	claim->next = position + 1 < NBuffers ? position + 1 : 0;
	return position;
}

/*
 * Move the main hand by one position.  Return whether the buffer there has
 * left main; *steps counts the buffers of main.
 */
static bool
MainHandStep(int *steps)
{
	int			buf_id;
	BufferDesc *buf;
	LazyDropBufState old;
	LazyDropBufState state;
	bool		leaves = false;

	if (main_claim.left == 0)
	{
		uint32		n = NextClaim(&main_claim);

		main_claim.next = pg_atomic_fetch_add_u64(&CacheCtl->main_hand.value, n) % NBuffers;
	}
	buf_id = NextPosition(&main_claim);
	if (!IsMain(buf_id))
		return false;
	(*steps)++;

	buf = GetBufferDescriptor(buf_id);
	state = LazyDropReadBufState(buf);
	if ((state & BM_LOCKED) || BUF_STATE_GET_REFCOUNT(state) != 0)
		return false;
	if (!LazyDropLeavesMain(BUF_STATE_GET_USAGECOUNT(state)))
	{
		/* if this fails, the buffer is being used, so keep its count */
		(void) LazyDropExchangeBufState(buf, &state,
										state - BUF_USAGECOUNT_ONE);
		return false;
	}

	state = old = LockBufHdr(buf);
	if (BUF_STATE_GET_REFCOUNT(state) == 0 && IsMain(buf_id) &&
		LazyDropLeavesMain(BUF_STATE_GET_USAGECOUNT(state)))
	{
		SetClass(buf_id, 0);
		leaves = true;
	}
	LazyDropUnlockBufHdr(buf, old, state);
	return leaves;
}

/*
 * A page wants a place in main.  Return whether it gets one: main is not full,
 * or the main hand finds a page that has not been used.  No header's lock may
 * be held.
 *
 * The number of buffers in main includes the place: if the caller does not use
 * it, it must call SubtractFromMain.
 */
static bool
TakePlaceInMain(void)
{
	int			steps = 0;

	if (!MainIsFull())
	{
		AddToMain();
		return true;
	}

	CheckClaim(&main_claim);
	for (int looked = 0; looked < MAIN_POSITIONS && steps < MAIN_STEPS; looked++)
	{
		if (!MainHandStep(&steps))
			continue;
		Count(COUNT_DEMOTIONS);

		/* the place is the caller's, unless main has more than it may have */
		if (NumMain() <= main_limit)
			return true;
		SubtractFromMain();
	}
	Count(COUNT_REFUSALS);
	return false;
}

/* ----------------------------------------------------------------
 *		Victims (rules C2 and C3)
 * ----------------------------------------------------------------
 */

/*
 * A page on probation was used in several laps of the hand.  Put it into main,
 * if it gets a place.  The caller has seen this class, and set the usage count
 * to 0.  Return whether the page is in main.
 */
static bool
ReplaceInMain(int buf_id, uint8 class)
{
	BufferDesc *buf = GetBufferDescriptor(buf_id);
	LazyDropBufState old;
	LazyDropBufState state;
	bool		done = false;

	if (!TakePlaceInMain())
		return false;
	state = old = LockBufHdr(buf);
	if (BUF_STATE_GET_REFCOUNT(state) == 0 && Classes[buf_id] == class)
	{
		SetClass(buf_id, CLASS_MAIN);
		done = true;
		if (BUF_STATE_GET_USAGECOUNT(state) < ENTRY_USAGE)
			state += BUF_USAGECOUNT_ONE * ENTRY_USAGE;
	}
	LazyDropUnlockBufHdr(buf, old, state);
	if (done)
		Count(COUNT_PROMOTIONS);
	else
		SubtractFromMain();
	return done;
}

/*
 * Find a victim on probation.  claim takes n positions from the probation
 * hand, which is the clock sweep's, and returns the first of them.
 *
 * Return a buffer that has no pin, with its header locked and the state in
 * *buf_state, as StrategyGetBuffer does.  Return NULL if so many buffers on
 * probation are pinned, or so few are there, that the clock sweep should scan
 * all buffers; it also reports that there is no victim.
 */
BufferDesc *
LazyDropCacheGetVictim(uint32 (*claim) (uint32 n), LazyDropBufState *buf_state)
{
	int			spare = -1;		/* the least used buffer that was spared */
	uint32		spare_usage = 0;
	int			spared = 0;
	int			promoted = 0;
	bool		asked = false;	/* for a place in main */

	left_ring = false;
	MaybeFlushCounts();
	CheckClaim(&victim_claim);
	pinned_left = Min(pinned_left + PINNED_STEPS, PINNED_STEPS_SAVED);

	for (int looked = 0;; looked++)
	{
		int			buf_id;
		BufferDesc *buf;
		LazyDropBufState old;
		LazyDropBufState state;
		uint32		usage;
		uint8		class;
		bool		full;
		bool		ended = looked >= NBuffers || pinned_left <= 0;
		bool		enough = ended || LazyDropSearchedEnough(spared, promoted);
		LazyDropVerdict verdict;

		if (enough && spare >= 0)
		{
			buf_id = spare;
			spare = -1;
		}
		else if (ended)
			break;
		else
		{
			if (victim_claim.left == 0)
				victim_claim.next = claim(NextClaim(&victim_claim));
			buf_id = NextPosition(&victim_claim);
		}

		if (IsMain(buf_id))
			continue;
		buf = GetBufferDescriptor(buf_id);
		if (BUF_STATE_GET_REFCOUNT(LazyDropReadBufState(buf)) != 0)
		{
			pinned_left--;
			continue;
		}

		full = MainIsFull();
		state = old = LockBufHdr(buf);
		usage = BUF_STATE_GET_USAGECOUNT(state);
		class = Classes[buf_id];
		if (BUF_STATE_GET_REFCOUNT(state) != 0 || (class & CLASS_MAIN))
		{
			LazyDropUnlockBufHdr(buf, old, state);
			continue;
		}
		verdict = enough ? LAZYDROP_EVICT : LazyDropVisit(class, usage, full);
		switch (verdict)
		{
			case LAZYDROP_EVICT:
				Count(COUNT_EVICTIONS);
				last_victim = buf_id;
				*buf_state = state;
				return buf;

			case LAZYDROP_PROMOTE:
				SetClass(buf_id, CLASS_MAIN);
				LazyDropUnlockBufHdr(buf, old, state);
				AddToMain();
				Count(COUNT_PROMOTIONS);
				promoted++;
				continue;

			case LAZYDROP_SPARE:
				SetClass(buf_id, LazyDropSparedClass(class));
				LazyDropUnlockBufHdr(buf, old, state & ~BUF_USAGECOUNT_MASK);
				spared++;
				break;

			case LAZYDROP_REPLACE:
				LazyDropUnlockBufHdr(buf, old, state & ~BUF_USAGECOUNT_MASK);
				spared++;
				if (!asked)
				{
					asked = true;
					if (ReplaceInMain(buf_id, class))
						continue;
				}
				break;
		}
		if (spare < 0 || usage < spare_usage)
		{
			spare = buf_id;
			spare_usage = usage;
		}
	}

	/* Probation seems to have only pinned buffers, or none. */
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

	if (buf_id == last_victim && LazyDropIsRemembered(class))
		LazyDropGhostInsert(tag, hash);
	last_victim = -1;
	SetClass(buf_id, 0);
	if (class & CLASS_MAIN)
		SubtractFromMain();
}

/*
 * A buffer becomes free.  The caller holds its header's lock, and it has no
 * pin.
 */
void
LazyDropCacheNoteFree(int buf_id)
{
	bool		was_main = IsMain(buf_id);

	SetClass(buf_id, 0);
	if (was_main)
		SubtractFromMain();
}

/* ----------------------------------------------------------------
 *		Loads (rules C5 to C8)
 * ----------------------------------------------------------------
 */

/*
 * A page has been loaded into a buffer, which the caller still has pinned.
 * hash is the hash of the page's tag, or NULL if the page is new; then the
 * caller may hold the relation extension lock.  No spinlock may be held.
 */
void
LazyDropCacheNoteLoad(BufferDesc *buf, const uint32 *hash, bool ring)
{
	uint8		class = 0;

	last_victim = -1;			/* it has been evicted, or had no page */
	if (ring)
	{
		class = CLASS_RING;
		Count(COUNT_RING_LOADS);
		if (left_ring)
			Count(COUNT_FREE_LOADS);
		left_ring = false;
	}
	else
		Count(COUNT_LOADS);
	if (lazydrop_read_once)
		class |= CLASS_ONCE;

	if (hash != NULL)
	{
		MaybeFlushCounts();
		if (class == 0 && LazyDropGhostRemove(&buf->tag, *hash))
		{
			Count(COUNT_GHOST_HITS);
			if (TakePlaceInMain())
				class = CLASS_MAIN;
		}
	}

	/* evicted by a process that had the setting off (rule C9) */
	if (unlikely(IsMain(buf->buf_id)))
		SubtractFromMain();
	SetClass(buf->buf_id, class);
}

/*
 * Return whether a scan should take a free buffer instead of its ring's next
 * one.  A ring is counted until the answer is no, or until another one of the
 * process is counted.  unused: no buffer of the ring has been used so far.
 */
bool
LazyDropCacheTakesFree(BufferAccessStrategy strategy, bool unused)
{
	left_ring = false;
	if (unused)
	{
		counted_ring = strategy;
		free_blocks = 0;
	}
	if (strategy != counted_ring)
		return false;
	left_ring = LazyDropHaveFreeBuffer() && !IsParallelWorker() &&
		free_blocks++ < NBuffers / FREE_SHARE;
	if (!left_ring)
		counted_ring = NULL;
	return left_ring;
}

/* ----------------------------------------------------------------
 *		Start-up and statistics
 * ----------------------------------------------------------------
 */

/*
 * Return the size of shared memory: about 3.1 bytes for each buffer.  It is
 * reserved even if the policy is off, so that it can be switched on.
 */
Size
LazyDropCacheShmemSize(void)
{
	Size		size = PG_CACHE_LINE_SIZE;

	size = add_size(size, TYPEALIGN(PG_CACHE_LINE_SIZE, sizeof(LazyDropCacheShared)));
	size = add_size(size, LazyDropGhostShmemSize());
	size = add_size(size, NBuffers);
	return size;
}

/*
 * Allocate and initialize shared memory, or attach to it.
 *
 * New shared memory is zero, and so are the classes of an empty pool.  They
 * are not written here, nor is the ghost, so that the kernel provides memory
 * for them only when the policy is used.
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
	LazyDropGhostShmemInit(start);
	start += LazyDropGhostShmemSize();
	Classes = (uint8 *) start;
	main_limit = LazyDropMainLimit(NBuffers);
	if (found)
		return;

#ifdef USE_ASSERT_CHECKING
	for (Size i = 0; i < NBuffers; i++)
		Assert(Classes[i] == 0);
#endif
	pg_atomic_init_u64(&CacheCtl->nmain.value, 0);
	pg_atomic_init_u64(&CacheCtl->main_hand.value, 0);
	pg_atomic_init_u64(&CacheCtl->clock.value, 0);
	for (int i = 0; i < NUM_CACHE_COUNTERS; i++)
	{
		pg_atomic_init_u64(&CacheCtl->counters[i], 0);
		pg_atomic_init_u64(&CacheCtl->bases[i], 0);
	}
	pg_atomic_init_u64(&CacheCtl->stats_reset, (uint64) GetCurrentTimestamp());
}

/*
 * Return a counter since the last reset.  If it is reset meanwhile, the result
 * must not be negative, so read the base first.
 */
static uint64
ReadCounter(CacheCounter counter)
{
	uint64		base = pg_atomic_read_u64(&CacheCtl->bases[counter]);

	pg_read_barrier();
	return pg_atomic_read_u64(&CacheCtl->counters[counter]) - base;
}

/*
 * Return the current sizes of the classes, and the counters since the last
 * reset.  A process adds its counts after EVENTS_PER_FLUSH events, or at exit.
 */
void
LazyDropCacheGetStats(LazyDropCacheStats *stats)
{
	FlushCounts();
	stats->scan_resistance = lazydrop_scan_resistance != LAZYDROP_SCAN_RESISTANCE_OFF;
	stats->buffers = NBuffers;
	stats->main = Max(0, NumMain());
	stats->probation = NBuffers - stats->main;
	stats->main_classes = 0;
#ifdef USE_ASSERT_CHECKING
	for (int i = 0; i < NBuffers; i++)
		stats->main_classes += IsMain(i);
#endif

	stats->loads = ReadCounter(COUNT_LOADS);
	stats->ring_loads = ReadCounter(COUNT_RING_LOADS);
	stats->free_loads = ReadCounter(COUNT_FREE_LOADS);
	stats->ghost_hits = ReadCounter(COUNT_GHOST_HITS);
	stats->promotions = ReadCounter(COUNT_PROMOTIONS);
	stats->demotions = ReadCounter(COUNT_DEMOTIONS);
	stats->refusals = ReadCounter(COUNT_REFUSALS);
	stats->evictions = ReadCounter(COUNT_EVICTIONS);
	stats->fallbacks = ReadCounter(COUNT_FALLBACKS);
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
