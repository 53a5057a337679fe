/*-------------------------------------------------------------------------
 *
 * lazydrop_advisor_pool.c
 *	  A miniature of a buffer pool of some size.
 *
 * It receives the sampled pages, and follows the server's policy: the clock
 * sweep of freelist.c, or the policy of lazydrop_cache.c.
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

/*
 * A page is identified by a hash of its relation and block, without collisions:
 * each step is reversible.
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

/*
 * The inverse of HashPage: return the relation in the upper, and the block in
 * the lower half.
 */
static inline uint64
UnhashPage(uint64 h)
{
	h ^= h >> 33;
	h *= UINT64CONST(0x9cb4b2f8129337db);
	h ^= h >> 33;
	h *= UINT64CONST(0x4f74430c22a54005);
	h ^= h >> 33;
	return h;
}

/*
 * Return what identifies the page of a sample in the pools.
 */
uint64
LazyDropAdvisorPage(const LazyDropAdvisorSample *sample)
{
	return HashPage(sample->rel, sample->block);
}

/*
 * Return the relation of a page, or its block.
 */
uint32
LazyDropAdvisorRelOf(uint64 page)
{
	return UnhashPage(page) >> 32;
}

uint32
LazyDropAdvisorBlockOf(uint64 page)
{
	return (uint32) UnhashPage(page);
}

/*
 * Return which of the samples a page belongs to, by bits of its hash that
 * neither the buckets nor the ghost's sets use.
 */
int
LazyDropAdvisorQuarter(uint64 page)
{
	return (page >> 30) % LAZYDROP_ADVISOR_QUARTERS;
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
	return nframes / GHOST_SHARE / GHOST_WAYS + 1;
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
BucketOf(LazyDropAdvisorPool *pool, uint64 page)
{
	return &pool->buckets[page & (pool->nbuckets - 1)];
}

/*
 * Return the frame of a page, or -1.
 */
static inline int32
FindPage(LazyDropAdvisorPool *pool, uint64 page)
{
	int32		i = *BucketOf(pool, page);

	while (i >= 0 && pool->frames[i].page != page)
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
	int32	   *link = BucketOf(pool, frame->page);

	while (*link != i)
		link = &pool->frames[*link].next;
	*link = frame->next;
	SetClass(pool, i, 0);
	pool->nused--;
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
GhostSetOf(LazyDropAdvisorPool *pool, uint64 page)
{
	return &pool->ghost[((page >> 32) * pool->nghost_sets >> 32) * GHOST_SET];
}

static void
GhostInsert(LazyDropAdvisorPool *pool, uint64 page)
{
	uint32	   *set = GhostSetOf(pool, page);

	set[1 + set[0] % GHOST_WAYS] = (uint32) page | 1;
	set[0]++;
}

static bool
GhostRemove(LazyDropAdvisorPool *pool, uint64 page)
{
	uint32	   *set = GhostSetOf(pool, page);

	for (int way = 1; way <= GHOST_WAYS; way++)
	{
		if (set[way] == ((uint32) page | 1))
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

/*
 * A page wants a place in main (rule C4).  Return whether there is one.
 */
static bool
TakePlaceInMain(LazyDropAdvisorPool *pool)
{
	int			limit = LazyDropMainLimit(pool->nframes);
	int			steps = 0;

	for (int looked = 0; pool->nmain >= limit; looked++)
	{
		int32		i;

		if (looked >= MAIN_POSITIONS || steps >= MAIN_STEPS)
			return false;
		i = NextPosition(pool, &pool->main_hand);
		if (!(pool->frames[i].class & CLASS_MAIN))
			continue;
		steps++;
		if (LazyDropLeavesMain(pool->frames[i].usage))
			SetClass(pool, i, 0);
		else
			pool->frames[i].usage--;
	}
	return true;
}

/*
 * Find a victim on probation (rule C3).  All frames are used.  Return -1 if
 * there is none, which a very small pool may have.
 */
static int32
ProbationVictim(LazyDropAdvisorPool *pool)
{
	int32		spare = -1;
	uint8		spare_usage = 0;
	int			spared = 0;
	int			promoted = 0;
	bool		asked = false;	/* for a place in main */

	for (int32 looked = 0; looked < pool->nframes; looked++)
	{
		int32		i;
		LazyDropAdvisorFrame *frame;
		uint8		usage;
		bool		enough = LazyDropSearchedEnough(spared, promoted);

		if (enough && spare >= 0)
			return spare;
		i = NextPosition(pool, &pool->hand);
		frame = &pool->frames[i];
		usage = frame->usage;
		if (frame->class & CLASS_MAIN)
			continue;
		if (enough)
			return i;
		switch (LazyDropVisit(frame->class, usage,
							  pool->nmain >= LazyDropMainLimit(pool->nframes)))
		{
			case LAZYDROP_EVICT:
				return i;

			case LAZYDROP_PROMOTE:
				SetClass(pool, i, CLASS_MAIN);
				promoted++;
				continue;

			case LAZYDROP_SPARE:
				SetClass(pool, i, LazyDropSparedClass(frame->class));
				break;

			case LAZYDROP_REPLACE:
				if (!asked)
				{
					asked = true;
					if (TakePlaceInMain(pool))
					{
						SetClass(pool, i, CLASS_MAIN);
						frame->usage = ENTRY_USAGE;
						spared++;
						continue;
					}
				}
				break;
		}
		frame->usage = 0;
		spared++;
		if (spare < 0 || usage < spare_usage)
		{
			spare = i;
			spare_usage = usage;
		}
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
			if (LazyDropIsRemembered(frame->class))
				GhostInsert(pool, frame->page);
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
 * Return the next slot of the ring for all rings of this kind.
 */
static LazyDropAdvisorSlot *
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
GetRingFrame(LazyDropAdvisorPool *pool, uint64 page, LazyDropAdvisorAccess access)
{
	LazyDropAdvisorSlot *slot;
	int32		i;

	/* Rule C8: a bulk read takes free frames. */
	if (pool->model->two_classes && access == LAZYDROP_ADVISOR_BULKREAD &&
		pool->free >= 0)
		return GetFrame(pool);

	slot = NextRingSlot(pool, access);
	i = !slot->used ? -1 : FindPage(pool, slot->page);
	if (i >= 0 && pool->frames[i].usage <= 1 &&
		(!pool->model->two_classes || LazyDropIsOfRing(pool->frames[i].class)))
		RemovePage(pool, i);
	else
		i = GetFrame(pool);
	slot->page = page;
	slot->used = true;
	return i;
}

/*
 * Look up the page of a sample (LazyDropAdvisorPage), or add it.  Return whether
 * the pool had it; it has it now.
 */
LazyDropAdvisorOutcome
LazyDropAdvisorPoolLookup(LazyDropAdvisorPool *pool, const LazyDropAdvisorSample *sample,
						  uint64 page)
{
	LazyDropAdvisorAccess access = sample->access & LAZYDROP_ADVISOR_ACCESS_MASK;
	bool		ring = HasRing(pool, sample, access);
	bool		cold = !pool->filled && pool->free >= 0;
	LazyDropAdvisorFrame *frame;
	int32	   *bucket;
	uint8		class = 0;
	int32		i;

	i = FindPage(pool, page);
	if (i >= 0)
	{
		/* as in PinBuffer; PinBuffer_Locked does not change the count */
		frame = &pool->frames[i];
		if (sample->kind == LAZYDROP_ADVISOR_RECENT && !pool->model->two_classes)
			return LAZYDROP_ADVISOR_HIT;
		if (ring)
			frame->usage = Max(frame->usage, 1);
		else
			frame->usage = Min(frame->usage + sample->lookups, LAZYDROP_ADVISOR_MAX_USAGE);
		return LAZYDROP_ADVISOR_HIT;
	}

	i = ring ? GetRingFrame(pool, page, access) : GetFrame(pool);
	frame = &pool->frames[i];
	bucket = BucketOf(pool, page);
	frame->page = page;
	frame->usage = ring ? 1 : Max(1, Min(sample->lookups, LAZYDROP_ADVISOR_MAX_USAGE));
	frame->used = true;
	pool->nused++;
	frame->next = *bucket;
	*bucket = i;

	if (pool->model->two_classes)
	{
		if (ring)
			class = CLASS_RING;
		if (sample->access & LAZYDROP_ADVISOR_ONCE)
			class |= CLASS_ONCE;
		if (class == 0 && sample->kind != LAZYDROP_ADVISOR_EXTEND &&
			GhostRemove(pool, page) &&
			TakePlaceInMain(pool))
			class = CLASS_MAIN;
		SetClass(pool, i, class);
	}
	return cold ? LAZYDROP_ADVISOR_COLD : LAZYDROP_ADVISOR_MISS;
}

/*
 * Free the frame of a page, or of all pages of a fork from this one on.
 */
void
LazyDropAdvisorPoolForget(LazyDropAdvisorPool *pool, const LazyDropAdvisorSample *sample)
{
	if (sample->kind == LAZYDROP_ADVISOR_FORGET)
	{
		int32		i = FindPage(pool, LazyDropAdvisorPage(sample));

		if (i >= 0)
			FreeFrame(pool, i);
		return;
	}

	for (int32 i = 0; i < pool->nframes; i++)
	{
		uint64		page = pool->frames[i].page;

		if (pool->frames[i].used && LazyDropAdvisorRelOf(page) == sample->rel &&
			LazyDropAdvisorBlockOf(page) >= sample->block)
			FreeFrame(pool, i);
	}
}

/* ----------------------------------------------------------------
 *		Dropped relations
 * ----------------------------------------------------------------
 */

/*
 * Return the slot of a relation, or the one where it would be.  A slot has the
 * names of all forks, and is not 0 if it is used.
 */
static inline uint32
DropSlot(const LazyDropAdvisorDrops *drops, uint32 rel)
{
	uint32		i = HashPage(rel, 0) % lengthof(drops->rel);

	while (drops->rel[i] != 0 && drops->rel[i] != rel)
		i = (i + 1) % lengthof(drops->rel);
	return i;
}

/*
 * Add a relation, by the name of any fork.  There must be room.
 */
void
LazyDropAdvisorAddDrop(LazyDropAdvisorDrops *drops, uint32 rel)
{
	uint32		i = DropSlot(drops, rel | LAZYDROP_ADVISOR_FORK_MASK);

	if (drops->rel[i] == 0)
		drops->n++;
	drops->rel[i] = rel | LAZYDROP_ADVISOR_FORK_MASK;
}

/*
 * Free the frames of all pages of these relations.
 */
void
LazyDropAdvisorPoolForgetDropped(LazyDropAdvisorPool *pool,
								 const LazyDropAdvisorDrops *drops)
{
	for (int32 i = 0; i < pool->nframes; i++)
	{
		uint32		rel = LazyDropAdvisorRelOf(pool->frames[i].page) | LAZYDROP_ADVISOR_FORK_MASK;

		if (pool->frames[i].used && drops->rel[DropSlot(drops, rel)] == rel)
			FreeFrame(pool, i);
	}
}
