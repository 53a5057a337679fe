/*-------------------------------------------------------------------------
 *
 * lazydrop_blocks.c
 *	  Buffers of relations that are few, for scans of all buffer headers.
 *
 * Some commands visit all headers of a pool to find the buffers of one
 * relation.  If the relation has few blocks, it costs less to look up each of
 * them.  A caller replaces its loop over all headers by a loop over those that
 * LazyDropNextBuffer returns, which are all headers if the blocks are many, and
 * still checks each tag.
 *
 * The caller must have a lock that keeps others from extending the relations.
 * Then no valid page is beyond the end of a file, as rule R18 argues.
 *
 * Copyright (c) 2026, LazyDrop developers
 *
 * IDENTIFICATION
 *	  src/backend/storage/lazydrop/lazydrop_blocks.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "miscadmin.h"
#include "storage/buf_internals.h"
#include "storage/lazydrop.h"
#include "storage/lazydrop_internal.h"

/*
 * Go to the next fork, or to the next relation, and determine its size.
 * Returns false if there is none.
 */
static bool
NextFork(LazyDropBlocks *blocks)
{
	blocks->forknum++;
	if (blocks->forknum > blocks->last_fork)
	{
		blocks->rel++;
		blocks->forknum = blocks->first_fork;
	}
	if (blocks->rel >= blocks->nrels)
		return false;
	blocks->nblocks = LazyDropCountBlocks(blocks->rels[blocks->rel]->smgr_rlocator,
										  blocks->forknum);
	blocks->block = blocks->first_block;
	return true;
}

static void
Rewind(LazyDropBlocks *blocks)
{
	blocks->rel = 0;
	blocks->forknum = blocks->first_fork - 1;
	blocks->block = blocks->nblocks = 0;
}

/*
 * Begin to look for buffers of relations, among "nheaders" headers.  "forknum"
 * is one of their forks, or InvalidForkNumber for all.  Blocks before
 * "first_block" are left out.  The arrays must stay until the end.
 *
 * Nothing is allocated, and no errors are raised.
 */
void
LazyDropBeginBlocks(LazyDropBlocks *blocks, SMgrRelation *rels, int nrels,
					ForkNumber forknum, BlockNumber first_block, int nheaders)
{
	uint64		room = nheaders / LAZYDROP_LOOK_UP_DIVISOR;
	uint64		nforks;
	uint64		total;

	Assert(nrels > 0);
	blocks->rels = rels;
	blocks->nrels = nrels;
	blocks->first_fork = forknum == InvalidForkNumber ? 0 : forknum;
	blocks->last_fork = forknum == InvalidForkNumber ? MAX_FORKNUM : forknum;
	blocks->first_block = first_block;
	nforks = (uint64) nrels * (blocks->last_fork - blocks->first_fork + 1);
	total = nforks * LAZYDROP_BLOCKS_PER_FORK;

	blocks->few = lazydrop_enabled && total < room;
	Rewind(blocks);
	while (blocks->few && NextFork(blocks))
	{
		if (blocks->nblocks > first_block)
			total += blocks->nblocks - first_block;
		blocks->few = total < room;
	}
	Rewind(blocks);
}

/*
 * Set the tag of the next block.  Returns false if there is none, or if a size
 * cannot be determined any more.  Then "few" is not set any longer, and the
 * caller begins again, with all headers.
 */
bool
LazyDropNextBlock(LazyDropBlocks *blocks, BufferTag *tag)
{
	Assert(blocks->few);
	while (blocks->block >= blocks->nblocks)
	{
		if (!NextFork(blocks))
			return false;
		if (blocks->nblocks == InvalidBlockNumber)
		{
			blocks->few = false;
			return false;
		}
	}
	InitBufferTag(tag, &blocks->rels[blocks->rel]->smgr_rlocator.locator,
				  blocks->forknum, blocks->block++);
	return true;
}

/*
 * Return the number of the next header in shared_buffers, after "previous",
 * which is -1 in the beginning, or NBuffers if there is none.  The buffer may
 * belong to another page by now.
 */
int
LazyDropNextBuffer(LazyDropBlocks *blocks, int previous)
{
	BufferTag	tag;

	if (!blocks->few)
		return previous + 1;
	while (LazyDropNextBlock(blocks, &tag))
	{
		int			buf_id = LazyDropLookUpBuffer(&tag);

		if (buf_id >= 0)
			return buf_id;
	}
	return blocks->few ? NBuffers : 0;
}
