/*-------------------------------------------------------------------------
 *
 * lazydrop_ghost.c
 *	  What was evicted a short while ago (rule C5 of README.lazydrop).
 *
 * A lossy table of fingerprints: it may forget a page, and take one for
 * another.  It has no lock.
 *
 * Copyright (c) 2026, LazyDrop developers
 *
 * IDENTIFICATION
 *	  src/backend/storage/buffer/lazydrop_ghost.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "common/hashfn.h"
#include "port/atomics.h"
#include "storage/lazydrop_cache.h"
#include "storage/shmem.h"

/*
 * An array of sets, each as large as a cache line: fingerprints of what was
 * evicted last, used in turn, and how many have been put there.
 */
#define GHOST_WAYS			15

typedef struct GhostSet
{
	pg_atomic_uint32 next;
	pg_atomic_uint32 prints[GHOST_WAYS];
} GhostSet;

/*
 * A fingerprint is a hash of the tag, but for its lowest bits, which tell what
 * the page was when it was evicted.
 */
#define PRINT_KIND_MASK		7
#define PRINT_KIND(print)	((print) & PRINT_KIND_MASK)

/* of the ways, those whose pages of much reading are remembered */
#define GHOST_BULK_WAYS		4

static GhostSet *Ghost;

static uint32
NumSets(void)
{
	/* as many fingerprints as there are buffers */
	return NBuffers / GHOST_WAYS + 1;
}

/*
 * Shared memory that is needed, a multiple of the cache line's size.
 */
Size
LazyDropGhostShmemSize(void)
{
	return TYPEALIGN(PG_CACHE_LINE_SIZE, mul_size(NumSets(), sizeof(GhostSet)));
}

/*
 * Take the memory, which begins with a cache line, and unless it is that of a
 * running server, initialize it.
 */
void
LazyDropGhostShmemInit(void *start, bool found)
{
	Ghost = start;
	if (found)
		return;
	for (uint32 i = 0; i < NumSets(); i++)
	{
		pg_atomic_init_u32(&Ghost[i].next, 0);
		for (int way = 0; way < GHOST_WAYS; way++)
			pg_atomic_init_u32(&Ghost[i].prints[way], 0);
	}
}

/*
 * The set of a page, by its hash in the buffer table.
 */
static inline GhostSet *
GhostSetOf(uint32 hash)
{
	return &Ghost[((uint64) hash * NumSets()) >> 32];
}

/*
 * The fingerprint of a page, with no kind.  It is another hash than that of
 * the buffer table, of which a large pool's sets leave few bits to tell pages
 * apart.
 */
static inline uint32
Fingerprint(const BufferTag *tag)
{
	uint64		hash;

	hash = murmurhash64(((uint64) tag->relNumber << 32) | tag->blockNum);
	hash ^= ((uint64) tag->dbOid << 32) | tag->spcOid;
	return (uint32) murmurhash64(hash + tag->forkNum) & ~PRINT_KIND_MASK;
}

/*
 * Remember a page that is evicted, by its tag and the hash of that; kind is
 * LAZYDROP_GHOST_NORMAL, or LAZYDROP_GHOST_BULK and the touches added.  Two
 * processes that come to a set at the same time may lose one of their
 * fingerprints.
 */
void
LazyDropGhostInsert(const BufferTag *tag, uint32 hash, uint32 kind)
{
	GhostSet   *set = GhostSetOf(hash);
	uint32		next = pg_atomic_read_u32(&set->next);

	pg_atomic_write_u32(&set->prints[next % GHOST_WAYS],
						Fingerprint(tag) | kind);
	pg_atomic_write_u32(&set->next, next + 1);
}

/*
 * Tell what a page was when it was evicted, and forget it, or 0 if it is not
 * known.  How many were evicted after it is estimated by those of its set.
 */
uint32
LazyDropGhostRemove(const BufferTag *tag, uint32 hash, bool bulk)
{
	GhostSet   *set = GhostSetOf(hash);
	uint32		next = pg_atomic_read_u32(&set->next);
	uint32		wanted = Fingerprint(tag);

	for (uint32 age = 1; age <= (bulk ? GHOST_BULK_WAYS : GHOST_WAYS); age++)
	{
		pg_atomic_uint32 *slot = &set->prints[(next + GHOST_WAYS - age) % GHOST_WAYS];
		uint32		print = pg_atomic_read_u32(slot);

		if ((print & ~PRINT_KIND_MASK) != wanted ||
			PRINT_KIND(print) == 0 ||
			(PRINT_KIND(print) >= LAZYDROP_GHOST_BULK) != bulk)
			continue;
		pg_atomic_write_u32(slot, 0);
		return PRINT_KIND(print);
	}
	return 0;
}
