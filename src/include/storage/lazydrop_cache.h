/*-------------------------------------------------------------------------
 *
 * lazydrop_cache.h
 *	  The replacement policy that protects frequently used pages from scans.
 *
 * See src/backend/storage/buffer/README.lazydrop.  With
 * lazydrop.scan_resistance off, each call below is one comparison.
 *
 * Copyright (c) 2026, LazyDrop developers
 *
 * src/include/storage/lazydrop_cache.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef LAZYDROP_CACHE_H
#define LAZYDROP_CACHE_H

#include "storage/buf_internals.h"
#include "storage/bufmgr.h"
#include "storage/lazydrop_compat.h"
#include "storage/lazydrop_stats.h"

/* values of lazydrop.scan_resistance, in the order of its options */
typedef enum LazyDropScanResistance
{
	LAZYDROP_SCAN_RESISTANCE_OFF,
	LAZYDROP_SCAN_RESISTANCE_ON,
}			LazyDropScanResistance;

/* settings */
extern PGDLLIMPORT int lazydrop_scan_resistance;
extern PGDLLIMPORT bool lazydrop_read_once;

/* startup: settings, then shared memory */
extern void LazyDropCacheInit(void);
extern Size LazyDropCacheShmemSize(void);
extern void LazyDropCacheShmemInit(void);

/* the ghost, lazydrop_ghost.c */
extern Size LazyDropGhostShmemSize(void);
extern void LazyDropGhostShmemInit(void *start);
extern void LazyDropGhostInsert(const BufferTag *tag, uint32 hash);
extern bool LazyDropGhostRemove(const BufferTag *tag, uint32 hash);

/* statistics */
extern void LazyDropCacheGetStats(LazyDropCacheStats *stats);
extern void LazyDropCacheResetStats(void);

/* called by the functions below */
extern BufferDesc *LazyDropCacheGetVictim(uint32 (*claim) (uint32 n),
										  LazyDropBufState *buf_state);
extern void LazyDropCacheNoteLoad(BufferDesc *buf, const uint32 *hash, bool ring);
extern void LazyDropCacheNoteEviction(int buf_id, const BufferTag *tag,
									  uint32 hash);
extern void LazyDropCacheNoteFree(int buf_id);
extern bool LazyDropCacheIsOfRing(int buf_id);
extern bool LazyDropCacheIsVictim(int buf_id, uint32 usage_count);
extern bool LazyDropCacheTakesFree(BufferAccessStrategy strategy, bool unused);

/*
 * Return whether a scan that has a ring should take a free buffer instead.
 * unused: no buffer of the ring has been used so far.  VACUUM keeps to its
 * ring, because an administrator may have set its size, and bulk writes keep
 * to theirs, so that they write their own pages.
 */
static inline bool
LazyDropCacheLeavesRing(BufferAccessStrategy strategy,
						BufferAccessStrategyType btype, bool unused)
{
	return lazydrop_scan_resistance && btype == BAS_BULKREAD &&
		LazyDropCacheTakesFree(strategy, unused);
}

/*
 * Return whether a ring may continue to use a buffer that has no pin, and a
 * usage count of at most 1.
 */
static inline bool
LazyDropCacheMayRecycle(int buf_id)
{
	return !lazydrop_scan_resistance ||
		LazyDropCacheIsOfRing(buf_id);
}

/*
 * Return whether a buffer with this usage count would be a victim when the
 * hand reaches it, if it has no pin, and if the search has not seen enough.
 */
static inline bool
LazyDropCacheIsReusable(int buf_id, uint32 usage_count)
{
	if (!lazydrop_scan_resistance)
		return usage_count == 0;
	return LazyDropCacheIsVictim(buf_id, usage_count);
}

/*
 * A page has been loaded into a buffer, which the caller still has pinned.
 * hash is the hash of the page's tag, or NULL if the page is new.
 */
static inline void
LazyDropCacheLoaded(BufferDesc *buf, const uint32 *hash,
					BufferAccessStrategy strategy)
{
	if (lazydrop_scan_resistance)
		LazyDropCacheNoteLoad(buf, hash, strategy != NULL);
}

/*
 * A page with this tag and hash has lost its buffer.  The buffer has no tag
 * now, and no pin but the caller's.
 */
static inline void
LazyDropCacheEvicted(int buf_id, const BufferTag *tag, uint32 hash)
{
	if (lazydrop_scan_resistance)
		LazyDropCacheNoteEviction(buf_id, tag, hash);
}

/*
 * A buffer becomes free.  The caller holds its header's lock, and it has no
 * pin.
 */
static inline void
LazyDropCacheFreed(int buf_id)
{
	if (lazydrop_scan_resistance)
		LazyDropCacheNoteFree(buf_id);
}

/*
 * A page was found without a lookup, which does not count as a use in stock:
 * replay finds most of its pages so.  The caller holds the header's lock.
 */
static inline void
LazyDropCacheFound(BufferDesc *buf)
{
	if (lazydrop_scan_resistance &&
		BUF_STATE_GET_USAGECOUNT(LazyDropReadBufState(buf)) < BM_MAX_USAGE_COUNT)
		LazyDropRaiseUsage(buf);
}

#endif							/* LAZYDROP_CACHE_H */
