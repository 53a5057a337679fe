/*-------------------------------------------------------------------------
 *
 * lazydrop_truncate.c
 *	  Partial truncation (rule R12).
 *
 * VACUUM, and TRUNCATE of a table created in the same transaction, keep the
 * relation, so it cannot be buried.  But they know its size, which saves the
 * scan.
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

/*
 * The truncation in progress in this process.
 */
static struct
{
	bool		active;
	RelFileLocatorBackend rlocator;
	BlockNumber sizes[MAX_FORKNUM + 1];
}			truncation;

/*
 * Remember the sizes of a relation's forks before it is truncated.  The caller
 * has determined them under AccessExclusiveLock, so they are exact, and
 * DropRelationBuffers can look up the truncated blocks if they are few, as it
 * does in recovery.  May be called in a critical section.
 */
void
LazyDropBeginTruncate(SMgrRelation reln, const ForkNumber *forknum, int nforks,
					  const BlockNumber *old_nblocks)
{
	truncation.active = false;
	if (!lazydrop_enabled || SmgrIsTemp(reln))
		return;
	for (int i = 0; i <= MAX_FORKNUM; i++)
		truncation.sizes[i] = InvalidBlockNumber;
	for (int i = 0; i < nforks; i++)
		truncation.sizes[forknum[i]] = old_nblocks[i];
	truncation.rlocator = reln->smgr_rlocator;
	truncation.active = true;
}

/*
 * Return the size of a fork of the relation that is being truncated, or
 * InvalidBlockNumber if it is not known.
 */
BlockNumber
LazyDropTruncateSize(SMgrRelation reln, ForkNumber forknum)
{
	Assert(forknum >= 0 && forknum <= MAX_FORKNUM);
	if (!truncation.active ||
		!RelFileLocatorBackendEquals(truncation.rlocator, reln->smgr_rlocator))
		return InvalidBlockNumber;
	return truncation.sizes[forknum];
}

/*
 * Called when the buffers have been dropped, and when a transaction is aborted.
 * Forgets the sizes.
 */
void
LazyDropEndTruncate(void)
{
	truncation.active = false;
}
