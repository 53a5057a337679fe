/*-------------------------------------------------------------------------
 *
 * lazydrop_advisor_pool.c
 *	  A miniature of a buffer pool of some size.
 *
 * It receives the sampled pages, and follows the server's policy: the clock
 * sweep of freelist.c, or the clock with two classes of lazydrop_cache.c.
 * Rules A5 to A7 are in README; C1 to C9 in ../buffer/README.lazydrop.
 *
 * Nothing here is shared, and no function fails.  The file uses nothing of the
 * server but its type names.
 *
 * Copyright (c) 2026, LazyDrop developers
 *
 * IDENTIFICATION
 *	  src/backend/storage/advisor/lazydrop_advisor_pool.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "storage/lazydrop_advisor_internal.h"
#include "storage/lazydrop_cache_policy.h"

/* the ghost, as in lazydrop_ghost.c: a set has an insertion count and ways */
#define GHOST_WAYS			15
#define GHOST_SET			(GHOST_WAYS + 1)

/* a bulk read has a ring if the table exceeds 1 / RING_SHARE of the pool */
#define RING_SHARE			4

/* no ring is larger than 1 / RING_LIMIT of the pool */
#define RING_LIMIT			8

/* rounded up, so that the next structure is aligned */
#define ALIGNED(size)		(((Size) (size) + 7) & ~(Size) 7)

/* ----------------------------------------------------------------
 *		Frames, by page
 * ----------------------------------------------------------------
 */

static inline uint64
HashPage(uint32 rel, uint32 block)
{
	uint64		h = ((uint64) rel << 32) | block;

	h ^= h >> 33;
	h *= UINT64CONST(0xff51afd7ed558ccd);
	h ^= h >> 33;
	h *= UINT64CONST(0xc4ceb9fe1a85ec53);
	h ^= h >> 33;
	return h;
}

static uint32
NumBuckets(int32 nframes)
{
	uint32		n = 1;

	while (n < (uint32) nframes)
		n *= 2;
	return n;
}

static uint32
NumGhostSets(int32 nframes)
{
	return nframes / GHOST_WAYS + 1;
}

/*
 * Return the memory needed behind the struct: about 25 bytes for each frame.
 */
Size
LazyDropAdvisorPoolSize(int32 nframes)
{
	return ALIGNED(sizeof(LazyDropAdvisorFrame) * nframes) +
		ALIGNED(sizeof(int32) * NumBuckets(nframes)) +
		ALIGNED(sizeof(uint32) * GHOST_SET * NumGhostSets(nframes));
}

/*
 * Create an empty pool of nframes, at least one, in memory that is aligned for
 * an int64.  It represents a pool of the given number of buffers.  The model
 * may change later.
 */
void
LazyDropAdvisorPoolInit(LazyDropAdvisorPool *pool, const LazyDropAdvisorModel *model,
						int32 nframes, double buffers, void *memory)
{
	memset(pool, 0, sizeof(LazyDropAdvisorPool));
	memset(memory, 0, LazyDropAdvisorPoolSize(nframes));
	pool->model = model;
	pool->buffers = buffers;
	pool->nframes = nframes;
	pool->nbuckets = NumBuckets(nframes);
	pool->nghost_sets = NumGhostSets(nframes);

	pool->frames = memory;
	memory = (char *) memory + ALIGNED(sizeof(LazyDropAdvisorFrame) * nframes);
	pool->buckets = memory;
	memory = (char *) memory + ALIGNED(sizeof(int32) * pool->nbuckets);
	pool->ghost = memory;

	for (uint32 i = 0; i < pool->nbuckets; i++)
		pool->buckets[i] = -1;
	for (int32 i = 0; i < nframes; i++)
		pool->frames[i].next = i + 1 < nframes ? i + 1 : -1;
	pool->free = 0;
}

static inline int32 *
BucketOf(LazyDropAdvisorPool *pool, uint32 rel, uint32 block)
{
	return &pool->buckets[HashPage(rel, block) & (pool->nbuckets - 1)];
}

/*
 * Return the frame of a page, or -1.
 */
static int32
FindPage(LazyDropAdvisorPool *pool, uint32 rel, uint32 block)
{
	int32		i = *BucketOf(pool, rel, block);

	while (i >= 0 &&
		   (pool->frames[i].block != block || pool->frames[i].rel != rel))
		i = pool->frames[i].next;
	return i;
}

static void
SetClass(LazyDropAdvisorPool *pool, int32 i, uint8 class)
{
	pool->nmain += (class & CLASS_MAIN) - (pool->frames[i].class & CLASS_MAIN);
	pool->frames[i].class = class;
}

/*
 * Remove the page from a frame.
 */
static void
RemovePage(LazyDropAdvisorPool *pool, int32 i)
{
	LazyDropAdvisorFrame *frame = &pool->frames[i];
	int32	   *link = BucketOf(pool, frame->rel, frame->block);

	while (*link != i)
		link = &pool->frames[*link].next;
	*link = frame->next;
	SetClass(pool, i, 0);
	frame->used = false;
	frame->usage = 0;
}

static void
FreeFrame(LazyDropAdvisorPool *pool, int32 i)
{
	RemovePage(pool, i);
	pool->frames[i].next = pool->free;
	pool->free = i;
}

/* ----------------------------------------------------------------
 *		The ghost
 * ----------------------------------------------------------------
 */

static inline uint32 *
GhostSetOf(LazyDropAdvisorPool *pool, uint64 hash)
{
	return &pool->ghost[((hash >> 32) * pool->nghost_sets >> 32) * GHOST_SET];
}

static void
GhostInsert(LazyDropAdvisorPool *pool, uint32 rel, uint32 block)
{
	uint64		hash = HashPage(rel, block);
	uint32	   *set = GhostSetOf(pool, hash);

	set[1 + set[0] % GHOST_WAYS] = (uint32) hash | 1;
	set[0]++;
}

static bool
GhostRemove(LazyDropAdvisorPool *pool, uint32 rel, uint32 block)
{
	uint64		hash = HashPage(rel, block);
	uint32	   *set = GhostSetOf(pool, hash);

	for (int way = 1; way <= GHOST_WAYS; way++)
	{
		if (set[way] == ((uint32) hash | 1))
		{
			set[way] = 0;
			return true;
		}
	}
	return false;
}

/* ----------------------------------------------------------------
 *		Victims
 * ----------------------------------------------------------------
 */

static inline int32
NextPosition(LazyDropAdvisorPool *pool, int32 *hand)
{
	int32		i = *hand;

	*hand = i + 1 < pool->nframes ? i + 1 : 0;
	return i;
}

/*
 * The clock sweep of stock.  All frames are used.
 */
static int32
SweepVictim(LazyDropAdvisorPool *pool)
{
	for (;;)
	{
		int32		i = NextPosition(pool, &pool->hand);

		if (pool->frames[i].usage == 0)
			return i;
		pool->frames[i].usage--;
	}
}

static inline bool
ProbationIsShort(LazyDropAdvisorPool *pool)
{
	return pool->nmain > pool->nframes - pool->nframes / PROBATION_SHARE;
}

/*
 * Move the main hand (rule C4).
 */
static void
Demote(LazyDropAdvisorPool *pool)
{
	int			looked = 0;

	for (int32 n = 0; n < pool->nframes && looked < DEMOTION_STEPS; n++)
	{
		int32		i = NextPosition(pool, &pool->main_hand);
		LazyDropAdvisorFrame *frame = &pool->frames[i];

		if (!ProbationIsShort(pool))
			return;
		if (!(frame->class & CLASS_MAIN))
			continue;
		looked++;
		if (frame->usage > 0)
			frame->usage--;
		else
		{
			SetClass(pool, i, 0);
			frame->usage = 1;
		}
	}
}

/*
 * Find a victim on probation (rules C2 and C3).  All frames are used.  Return
 * -1 if the clock sweep should look.
 */
static int32
ProbationVictim(LazyDropAdvisorPool *pool)
{
	int32		spare = -1;
	uint8		spare_usage = 0;
	int			passed_over = 0;

	if (ProbationIsShort(pool))
		Demote(pool);
	for (int32 looked = 0; looked / 2 < pool->nframes && passed_over < PASSED_OVER_STEPS; looked++)
	{
		int32		i;
		LazyDropAdvisorFrame *frame;

		if (pool->nmain > pool->nframes - pool->nframes / PROBATION_LEAST)
			break;
		i = NextPosition(pool, &pool->hand);
		frame = &pool->frames[i];
		if (frame->class & CLASS_MAIN)
			continue;
		if (frame->usage <= EVICTABLE_USAGE)
			return i;

		if (spare < 0 || frame->usage < spare_usage)
		{
			spare = i;
			spare_usage = frame->usage;
		}
		if (!(frame->class & CLASS_SECOND_LAP) && frame->usage < LAZYDROP_ADVISOR_MAX_USAGE)
		{
			SetClass(pool, i, frame->class | CLASS_SECOND_LAP);
			frame->usage -= Min(FIRST_LAP_USAGE, frame->usage);
		}
		else
			SetClass(pool, i, CLASS_MAIN);
		passed_over++;
		if (ProbationIsShort(pool))
			Demote(pool);
	}
	return spare;
}

/*
 * Return a free frame, or evict a page, which the ghost may then remember.
 */
static int32
GetFrame(LazyDropAdvisorPool *pool)
{
	int32		i = pool->free;
	LazyDropAdvisorFrame *frame;

	if (i >= 0)
	{
		pool->free = pool->frames[i].next;
		return i;
	}

	pool->filled = true;
	if (pool->model->two_classes)
	{
		i = ProbationVictim(pool);
		if (i >= 0)
		{
			frame = &pool->frames[i];
			if (!(frame->class & CLASS_RING))
				GhostInsert(pool, frame->rel, frame->block);
			RemovePage(pool, i);
			return i;
		}
	}
	i = SweepVictim(pool);
	RemovePage(pool, i);
	return i;
}

/* ----------------------------------------------------------------
 *		Loads
 * ----------------------------------------------------------------
 */

/*
 * Remember a load (rule C6): all uses of a page shortly after it was loaded
 * count as one.  Each process of the server remembers its own loads.  Here,
 * one queue has the loads of all, and its length is reduced like the sample.
 */
static void
RememberLoad(LazyDropAdvisorPool *pool, uint32 rel, uint32 block)
{
	double		wanted;
	int			window;
	LazyDropAdvisorLoad *load;

	wanted = MAX_RECENT_LOADS * pool->model->loaders * pool->model->rate;
	wanted = Min(wanted, (double) pool->nframes / RECENT_SHARE);
	window = Max(1, (int) Min(wanted + 0.5, (double) LAZYDROP_ADVISOR_MAX_LOADS));

	while (pool->nloads >= window)
	{
		int32		i;

		load = &pool->loads[pool->first_load];
		pool->first_load = (pool->first_load + 1) % LAZYDROP_ADVISOR_MAX_LOADS;
		pool->nloads--;
		if (pool->clock - load->clock > (uint64) pool->nframes / RECENT_AGE)
			continue;
		i = FindPage(pool, load->rel, load->block);
		if (i >= 0 && pool->frames[i].usage > EVICTABLE_USAGE)
			pool->frames[i].usage = EVICTABLE_USAGE;
	}

	load = &pool->loads[(pool->first_load + pool->nloads) % LAZYDROP_ADVISOR_MAX_LOADS];
	load->rel = rel;
	load->block = block;
	load->clock = pool->clock++;
	pool->nloads++;
}

/*
 * Return the next slot of the ring for all rings of this kind.
 */
static LazyDropAdvisorLoad *
NextRingSlot(LazyDropAdvisorPool *pool, LazyDropAdvisorAccess access)
{
	double		blocks;
	int			nslots;
	int			slot;

	blocks = pool->model->ring_blocks[access];
	if (access == LAZYDROP_ADVISOR_BULKREAD)
		blocks = Min(blocks, Max((double) pool->model->ring_least,
								 pool->buffers / pool->model->pinners));
	blocks = Min(blocks, pool->buffers / RING_LIMIT);
	blocks *= pool->model->rate;
	nslots = Max(1, (int) Min(blocks + 0.5, (double) LAZYDROP_ADVISOR_MAX_RING));
	slot = (pool->ring_next[access] + 1) % nslots;
	pool->ring_next[access] = slot;
	return &pool->rings[access][slot];
}

/*
 * Return whether an access with a ring in the server has one in a pool of this
 * size (rule A6).
 */
static bool
HasRing(LazyDropAdvisorPool *pool, const LazyDropAdvisorSample *sample,
		LazyDropAdvisorAccess access)
{
	if (access == LAZYDROP_ADVISOR_NORMAL)
		return false;
	return access != LAZYDROP_ADVISOR_BULKREAD ||
		sample->rel_blocks > pool->buffers / RING_SHARE;
}

/*
 * Return a frame for a page that is loaded with a ring.  Reuse the frame of an
 * older page of the ring, unless that page has been used otherwise.
 */
static int32
GetRingFrame(LazyDropAdvisorPool *pool, const LazyDropAdvisorSample *sample,
			 LazyDropAdvisorAccess access)
{
	LazyDropAdvisorLoad *slot;
	int32		i;

	/* Rule C8: a bulk read takes free frames. */
	if (pool->model->two_classes && access == LAZYDROP_ADVISOR_BULKREAD &&
		pool->free >= 0)
		return GetFrame(pool);

	slot = NextRingSlot(pool, access);
	i = slot->clock == 0 ? -1 : FindPage(pool, slot->rel, slot->block);
	if (i >= 0 && pool->frames[i].usage <= 1 &&
		(!pool->model->two_classes ||
		 (pool->frames[i].class & (CLASS_RING | CLASS_MAIN)) == CLASS_RING))
		RemovePage(pool, i);
	else
		i = GetFrame(pool);
	slot->rel = sample->rel;
	slot->block = sample->block;
	slot->clock = 1;
	return i;
}

/*
 * Look up a page, or add it.  Return whether the pool had it; it has it now.
 */
LazyDropAdvisorOutcome
LazyDropAdvisorPoolLookup(LazyDropAdvisorPool *pool, const LazyDropAdvisorSample *sample)
{
	LazyDropAdvisorAccess access = sample->access & ~LAZYDROP_ADVISOR_MISSED;
	bool		ring = HasRing(pool, sample, access);
	bool		cold = !pool->filled && pool->free >= 0;
	LazyDropAdvisorFrame *frame;
	int32	   *bucket;
	uint8		class = 0;
	int32		i;

	i = FindPage(pool, sample->rel, sample->block);
	if (i >= 0)
	{
		/* as in PinBuffer; PinBuffer_Locked does not change the count */
		frame = &pool->frames[i];
		if (sample->kind == LAZYDROP_ADVISOR_RECENT)
			return LAZYDROP_ADVISOR_HIT;
		if (ring)
			frame->usage = Max(frame->usage, 1);
		else
			frame->usage = Min(frame->usage + sample->lookups, LAZYDROP_ADVISOR_MAX_USAGE);
		return LAZYDROP_ADVISOR_HIT;
	}

	i = ring ? GetRingFrame(pool, sample, access) : GetFrame(pool);
	frame = &pool->frames[i];
	bucket = BucketOf(pool, sample->rel, sample->block);
	frame->rel = sample->rel;
	frame->block = sample->block;
	frame->usage = ring ? 1 : Max(1, Min(sample->lookups, LAZYDROP_ADVISOR_MAX_USAGE));
	frame->used = true;
	frame->next = *bucket;
	*bucket = i;

	if (pool->model->two_classes)
	{
		if (ring)
			class = CLASS_RING;
		else if (sample->kind != LAZYDROP_ADVISOR_EXTEND &&
				 GhostRemove(pool, sample->rel, sample->block))
			class = CLASS_MAIN;
		SetClass(pool, i, class);
		if (!ring)
			RememberLoad(pool, sample->rel, sample->block);
	}
	return cold ? LAZYDROP_ADVISOR_COLD : LAZYDROP_ADVISOR_MISS;
}

/*
 * Free the frame of a page, or of all pages of a fork from this one on, or of
 * all forks.
 */
void
LazyDropAdvisorPoolForget(LazyDropAdvisorPool *pool, const LazyDropAdvisorSample *sample)
{
	uint32		mask = ~(uint32) 0;

	if (sample->kind == LAZYDROP_ADVISOR_DROP)
		mask = ~(uint32) LAZYDROP_ADVISOR_FORK_MASK;
	if (sample->kind == LAZYDROP_ADVISOR_FORGET)
	{
		int32		i = FindPage(pool, sample->rel, sample->block);

		if (i >= 0)
			FreeFrame(pool, i);
		return;
	}

	for (int32 i = 0; i < pool->nframes; i++)
	{
		if (pool->frames[i].used &&
			((pool->frames[i].rel ^ sample->rel) & mask) == 0 &&
			pool->frames[i].block >= sample->block)
			FreeFrame(pool, i);
	}
}
