/*-------------------------------------------------------------------------
 *
 * lazydrop_ghost.c
 *	  Pages that were evicted a short time ago (rule C5 of README.lazydrop).
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
#include "port/pg_lfind.h"
#include "storage/lazydrop_cache.h"
#include "storage/lazydrop_cache_policy.h"
#include "storage/shmem.h"

/*
 * An array of sets, each as large as a cache line.  A set has the fingerprints
 * of its pages that were evicted last, used in turn, and the number of all
 * that have been put there.
 */
#define GHOST_WAYS			15

typedef struct GhostSet
{
	uint32		next;
	uint32		prints[GHOST_WAYS]; /* 0 if unused */
} GhostSet;

/* both fields are searched together */
#define GHOST_WORDS			(sizeof(GhostSet) / sizeof(uint32))

static GhostSet *Ghost;
static uint32 num_sets;

static uint32
NumSets(void)
{
	return NBuffers / GHOST_SHARE / GHOST_WAYS + 1;
}

/*
 * Return the size of shared memory, a multiple of the cache line's size: about
 * 2.1 bytes for each buffer.
 */
Size
LazyDropGhostShmemSize(void)
{
	return TYPEALIGN(PG_CACHE_LINE_SIZE, mul_size(NumSets(), sizeof(GhostSet)));
}

/*
 * Use memory that begins with a cache line.  New shared memory is zero, which
 * is an empty table, so it is not written here: it costs nothing until the
 * policy is used.
 */
void
LazyDropGhostShmemInit(void *start)
{
	Ghost = start;
	num_sets = NumSets();
}

/*
 * Return a page's set, by its hash in the buffer table.
 */
static inline GhostSet *
GhostSetOf(uint32 hash)
{
	return &Ghost[((uint64) hash * num_sets) >> 32];
}

/*
 * Return a page's fingerprint.  It is another hash than that of the buffer
 * table, of which a large pool's sets leave few bits to tell pages apart.
 */
static inline uint32
Fingerprint(const BufferTag *tag)
{
	uint64		hash = ((uint64) tag->relNumber << 32) | tag->blockNum;

	hash += (uint64) tag->dbOid * UINT64CONST(0x9e3779b97f4a7c15);
	hash += ((uint64) tag->spcOid << 16) + tag->forkNum;
	return (uint32) murmurhash64(hash) | 1;
}

/*
 * Remember a page that is evicted, by its tag and the hash of the tag.  Two
 * processes that change a set at the same time may lose one of their
 * fingerprints.
 */
void
LazyDropGhostInsert(const BufferTag *tag, uint32 hash)
{
	GhostSet   *set = GhostSetOf(hash);
	uint32		next = set->next;

	set->prints[next % GHOST_WAYS] = Fingerprint(tag);
	set->next = next + 1;
}

/*
 * Return whether a page is known, and forget it.
 */
bool
LazyDropGhostRemove(const BufferTag *tag, uint32 hash)
{
	GhostSet   *set = GhostSetOf(hash);
	uint32		wanted = Fingerprint(tag);
	GhostSet	copy = *set;	/* others may change the set meanwhile */

	if (!pg_lfind32(wanted, (uint32 *) &copy, GHOST_WORDS))
		return false;
	for (int way = 0; way < GHOST_WAYS; way++)
	{
		if (copy.prints[way] == wanted)
		{
			set->prints[way] = 0;
			return true;
		}
	}
	return false;				/* the number of pages looks like it */
}
