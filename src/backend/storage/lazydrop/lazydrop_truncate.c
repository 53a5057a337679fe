/*-------------------------------------------------------------------------
 *
 * lazydrop_truncate.c
 *	  Partial truncation (rule R12).
 *
 * VACUUM, and TRUNCATE of a table made in the same transaction, keep the relation, so that
 * it cannot be buried.  What they know of its size saves the scan all the same.
 *
 * Copyright (c) 2026, LazyDrop developers
 *
 * IDENTIFICATION
 *	  src/backend/storage/lazydrop/lazydrop_truncate.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "storage/lazydrop.h"
#include "storage/lazydrop_internal.h"
#include "storage/smgr.h"

/* the truncation under way in this process, for rule R12 */
static bool truncating = false;
static RelFileLocatorBackend truncating_rlocator;
static BlockNumber truncate_sizes[MAX_FORKNUM + 1];

/*
 * Remember the sizes that the forks of a relation have before it is truncated.
 * The caller has determined them under AccessExclusiveLock, so they are exact,
 * and DropRelationBuffers can look the blocks up when they are few, as it does in
 * recovery.  May be in a critical section.
 */
void
LazyDropBeginTruncate(SMgrRelation reln, const ForkNumber *forknum, int nforks,
					  const BlockNumber *old_nblocks)
{
	truncating = false;
	if (!lazydrop_enabled || SmgrIsTemp(reln))
		return;
	for (int i = 0; i <= MAX_FORKNUM; i++)
		truncate_sizes[i] = InvalidBlockNumber;
	for (int i = 0; i < nforks; i++)
		truncate_sizes[forknum[i]] = old_nblocks[i];
	truncating_rlocator = reln->smgr_rlocator;
	truncating = true;
}

/*
 * The size of a fork of the relation that is being truncated, or
 * InvalidBlockNumber when it is not known.
 */
BlockNumber
LazyDropTruncateSize(SMgrRelation reln, ForkNumber forknum)
{
	if (!truncating ||
		!RelFileLocatorBackendEquals(truncating_rlocator, reln->smgr_rlocator))
		return InvalidBlockNumber;
	return truncate_sizes[forknum];
}

/*
 * The buffers have been dropped.
 */
void
LazyDropEndTruncate(void)
{
	truncating = false;
}
