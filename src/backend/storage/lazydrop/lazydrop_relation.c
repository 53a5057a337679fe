/*-------------------------------------------------------------------------
 *
 * lazydrop_relation.c
 *	  Relations that are dropped at the end of a transaction.
 *
 * Stock drops the buffers of a relation (DropRelationsAllBuffers) and unlinks its files
 * (smgr_unlink) in two calls, one after the other.  The relations are buried before the
 * first one, which then leaves them out; the second one leaves their files to others.
 *
 * Copyright (c) 2026, LazyDrop developers
 *
 * IDENTIFICATION
 *	  src/backend/storage/lazydrop/lazydrop_relation.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include <sys/stat.h>

#include "access/xlog.h"
#include "miscadmin.h"
#include "storage/buf_internals.h"
#include "storage/bufmgr.h"
#include "storage/lazydrop.h"
#include "storage/lazydrop_internal.h"
#include "utils/memutils.h"

int			lazydrop_scan_limit = 32 * (1024 * 1024 / BLCKSZ);

/*
 * With a small pool, a drop of at most so many relations, of at most so many bytes
 * together, is done as stock does it (IsCheapToDrop).
 */
#define SCAN_MAX_RELATIONS		16
#define SMALL_DROP				(16 * 1024 * 1024)

/*
 * The smallest free space map has three blocks, one for each level.  Only where
 * a segment has less than about as many can it have more segments than the main
 * fork.
 */
#define MIN_FORK_BLOCKS			16

/*
 * The relations that this process has just buried, sorted, or NULL: for the calls of
 * DropRelationsAllBuffers and, when their files are deferred, smgr_unlink that follow at
 * once.
 */
static RelFileLocator *just_buried = NULL;
static int	njust_buried = 0;
static bool buffers_to_exclude = false;
static XLogRecPtr just_buried_lsn;

/* how many of them it has not unlinked yet, when their files are deferred */
static int	nburying = 0;

/* what LazyDropAllowBurial has said */
static bool burial_allowed = false;
static XLogRecPtr allowed_durable;

/* ---------------------------------------------------------------------
 * Burial
 * ---------------------------------------------------------------------
 */

/*
 * Whether to have a drop done as stock does it, because that costs less: a small pool is
 * looked through sooner than a burial is written down, another process woken and its work
 * done, and small files are removed at once.  Looks at each file's size, so not for many.
 * Not in replay, nor when a buffer is pinned: a session may hold a pin for long without a
 * lock that conflicts with the drop (rules R1 and R7).
 */
static bool
IsCheapToDrop(SMgrRelation *rels, int nrels)
{
	uint64		bytes = 0;

	if (NBuffers > lazydrop_scan_limit || nrels > SCAN_MAX_RELATIONS ||
		RecoveryInProgress())
		return false;
	for (int i = 0; i < nrels; i++)
	{
		RelPathStr	path = LazyDropRelPath(rels[i]->smgr_rlocator, MAIN_FORKNUM);
		struct stat st;

		if (stat(path.str, &st) == 0)
			bytes += st.st_size;
	}
	if (bytes > SMALL_DROP)
		return false;

	/* Stock waits for a pin, and so would we; as a hint, without locks. */
	for (int i = 0; i < NBuffers; i++)
	{
		BufferDesc *buf = GetBufferDescriptor(i);

		if (BUF_STATE_GET_REFCOUNT(LazyDropReadBufState(buf)) == 0)
			continue;
		for (int j = 0; j < nrels; j++)
		{
			if (BufTagMatchesRelFileLocator(&buf->tag,
											&rels[j]->smgr_rlocator.locator))
				return false;
		}
	}
	return true;
}

/*
 * Bury relations that are about to be unlinked, as far as there is room, and
 * remember which for the call of DropRelationsAllBuffers that follows.
 *
 * Only for callers that know that the relations are gone for good: the end of a
 * transaction, COMMIT PREPARED, and their replay (rule R4).  Relations of a
 * backend (temporary ones) are left alone: their number may also be that of a
 * permanent relation.
 *
 * "durable" is the end of the WAL record that drops them, which has been flushed,
 * or InvalidXLogRecPtr when there is none (rule R9) and in recovery.
 *
 * When this returns, no process writes to the files of those relations any
 * more (rule R1), so that the caller may forget their sync requests (rule R2).
 * Nor is a read of them in flight, so that it may remove the files, unless
 * LazyDropDeferUnlink sees to both.
 */
void
LazyDropBuryRelations(SMgrRelation *rels, int nrels, XLogRecPtr durable)
{
	RelFileLocator *locators;
	LazyDropFiles files;
	int			n = 0;

	Assert(nburying == 0);
	just_buried = NULL;
	buffers_to_exclude = false;

	for (int i = 0; i < nrels; i++)
	{
		if (!RelFileLocatorBackendIsTemp(rels[i]->smgr_rlocator))
			n++;
	}
	if (n == 0 || !LazyDropMayBury(n) || IsCheapToDrop(rels, nrels))
		return;

	LAZYDROP_INJECTION_POINT("lazydrop-bury");
	locators = palloc_array(RelFileLocator, n);
	n = 0;
	for (int i = 0; i < nrels; i++)
	{
		if (!RelFileLocatorBackendIsTemp(rels[i]->smgr_rlocator))
			locators[n++] = rels[i]->smgr_rlocator.locator;
	}
	files = LazyDropFilesOfBurial(locators, n, durable);

	/*
	 * All or none: when one has to be looked for in all of the headers, the
	 * others cost nothing more, and the set has room for other droppers.
	 */
	if (!LazyDropAddEntries(locators, n, files, n, durable))
	{
		LazyDropFallBack(n, true);
		pfree(locators);
		return;
	}
	LazyDropCount(LAZYDROP_DEFERRED_RELATIONS, n);
	if (files != LAZYDROP_FILES_NONE)
		nburying = n;

	qsort(locators, n, sizeof(RelFileLocator), LazyDropCompareLocators);
	LazyDropWaitForWriters(locators, n);
	if (files == LAZYDROP_FILES_NONE)
		LazyDropWaitForReads(locators, n);
	just_buried = locators;
	njust_buried = n;
	just_buried_lsn = durable;
	buffers_to_exclude = true;
}

/*
 * Called by COMMIT PREPARED, ROLLBACK PREPARED and replay of commits and aborts before
 * DropRelationFiles, which others may call as well, for relations that live on or that
 * must be gone when it returns (rule R4).  "durable" is that of LazyDropBuryRelations.
 */
void
LazyDropAllowBurial(XLogRecPtr durable)
{
	burial_allowed = true;
	allowed_durable = durable;
}

/*
 * Called by DropRelationFiles: LazyDropBuryRelations, if that has been allowed for this
 * call.
 */
void
LazyDropBuryIfAllowed(SMgrRelation *rels, int nrels)
{
	if (burial_allowed)
		LazyDropBuryRelations(rels, nrels, allowed_durable);
	burial_allowed = false;
}

/*
 * Take those relations out of an array whose buffers need not be dropped now,
 * because LazyDropBuryRelations has just buried them: all but temporary ones.  Then
 * the array is replaced by another one, which belongs to us; the startup process
 * calls this for ever in one memory context.
 */
void
LazyDropExcludeBuried(SMgrRelation **rels, int *nrels)
{
	static SMgrRelation *rest = NULL;
	static int	max_rest = 0;
	int			nrest = 0;

	if (!buffers_to_exclude)
		return;
	Assert(just_buried != NULL);
	buffers_to_exclude = false;

	for (int i = 0; i < *nrels; i++)
	{
		SMgrRelation rel = (*rels)[i];

		if (!RelFileLocatorBackendIsTemp(rel->smgr_rlocator) &&
			LazyDropIsAmong(&rel->smgr_rlocator.locator, just_buried, njust_buried))
			continue;
		if (nrest == max_rest)
		{
			int			new_max = Max(16, 2 * max_rest);

			rest = rest == NULL ?
				MemoryContextAlloc(TopMemoryContext,
								   new_max * sizeof(SMgrRelation)) :
				repalloc(rest, new_max * sizeof(SMgrRelation));
			max_rest = new_max;
		}
		rest[nrest++] = rel;
	}
	*rels = rest;
	*nrels = nrest;
	if (nburying == 0)
	{
		pfree(just_buried);
		just_buried = NULL;
	}
}

/* ---------------------------------------------------------------------
 * Files
 * ---------------------------------------------------------------------
 */

/*
 * Forget the sync requests for a relation's files, as mdunlink does.  The
 * zero-length first segment that stays until the next checkpoint, if
 * one does, is asked for here, so that it goes when it does in stock (rule R14).
 *
 * A request for a file that is not there does no harm, so only further segments are
 * looked for; and those of other forks only when the main fork has some, because it
 * is larger than they are by orders of magnitude, and a fork that has been truncated
 * keeps its segments.
 */
static void
ForgetRelationSyncRequests(const RelFileLocator *locator, bool keep_first)
{
	bool		large = true;

	if (keep_first)
		LazyDropRequestForFile(SYNC_UNLINK_REQUEST, locator, MAIN_FORKNUM, 0);

	for (ForkNumber forknum = MAIN_FORKNUM; forknum <= MAX_FORKNUM; forknum++)
	{
		RelPathStr	path = LazyDropRelPathPerm(*locator, forknum);

		LazyDropRequestForFile(SYNC_FORGET_REQUEST, locator, forknum, 0);
		for (uint64 segno = 1; large; segno++)
		{
			char		segpath[sizeof(path.str) + 24];
			struct stat st;
			bool		seen;

			snprintf(segpath, sizeof(segpath), "%s." UINT64_FORMAT,
					 path.str, segno);
			seen = stat(segpath, &st) == 0;
			if (!seen && errno == ENOENT)
			{
				if (segno == 1 && forknum == MAIN_FORKNUM)
					large = RELSEG_SIZE < MIN_FORK_BLOCKS;
				break;
			}
			LazyDropRequestForFile(SYNC_FORGET_REQUEST, locator, forknum, segno);

			/* What cannot be looked at may be there, as the removal takes it. */
			if (!seen)
				break;
		}
	}
}

/*
 * The relations that this process has buried have their sync requests
 * forgotten: let others remove the files.
 *
 * A checkpoint that has begun after our commit record may have looked for
 * files before it could see ours, and a crash would leave them for ever (rule
 * R8).  One that begins from now on sees them.  So the files are hidden before
 * reads are waited for, which may be stuck.
 */
static void
ReleaseFiles(const RelFileLocator *locators, int n, bool keep_first,
			 XLogRecPtr lsn)
{
	LazyDropJob job;

	Assert(n > 0);
	LazyDropRequestsForgotten(locators, n, keep_first, 0, 0);
	if (!XLogRecPtrIsInvalid(lsn) && lsn <= GetRedoRecPtr())
	{
		for (int i = 0; i < n; i++)
		{
			while (LazyDropFindJob(&locators[i], &job) &&
				   !LazyDropHideOrRemove(&job, NULL))
				LazyDropSleepForOther(1000L);
		}
	}
	LazyDropWaitForReads(locators, n);
	LazyDropReadsDone(locators, n);
}

/*
 * Called where the files of a relation are unlinked that the caller drops.  When
 * this process has just buried it, and the removal of its files is deferred, then
 * see to everything that has to be done before they go, let others remove them,
 * when it is the last one that has been buried with it, and return true.  "isRedo" is
 * that of smgr_unlink.
 */
bool
LazyDropDeferUnlink(RelFileLocatorBackend rlocator, bool isRedo)
{
	bool		keep_first = !isRedo && !IsBinaryUpgrade;

	if (just_buried == NULL || RelFileLocatorBackendIsTemp(rlocator) ||
		!LazyDropIsAmong(&rlocator.locator, just_buried, njust_buried))
		return false;

	Assert(nburying > 0);
	ForgetRelationSyncRequests(&rlocator.locator, keep_first);
	LAZYDROP_INJECTION_POINT("lazydrop-forgotten");
	if (--nburying == 0)
	{
		ReleaseFiles(just_buried, njust_buried, keep_first, just_buried_lsn);
		pfree(just_buried);
		just_buried = NULL;
		LAZYDROP_INJECTION_POINT("lazydrop-ready");
	}
	return true;
}

/*
 * Forget what the end of a transaction has left when it fails.
 */
void
LazyDropRelationXactCallback(XactEvent event, void *arg)
{
	if (event != XACT_EVENT_ABORT)
		return;
	just_buried = NULL;
	buffers_to_exclude = false;
	burial_allowed = false;
	if (nburying > 0)
		LazyDropGiveUpFiles();
	nburying = 0;
}
