/*-------------------------------------------------------------------------
 *
 * lazydrop_relation.c
 *	  Relations that are dropped at the end of a transaction.
 *
 * Stock drops the buffers of a relation (DropRelationsAllBuffers) and unlinks
 * its files (smgr_unlink) in two consecutive calls.  Relations are buried
 * before the first call, which then leaves them out.  The second call leaves
 * their files to other processes.
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

/*
 * The smallest free space map has three blocks, one for each level.  It can
 * have more segments than the main fork only if a segment has less than about
 * this many blocks.
 */
#define MIN_FORK_BLOCKS			16

/*
 * The drop under way in this process.  It extends over several calls that
 * follow each other immediately: LazyDropAllowBurial, LazyDropBuryRelations,
 * DropRelationsAllBuffers and, if files are deferred, smgr_unlink for each
 * relation.
 */
typedef struct Burial
{
	/* LazyDropAllowBurial has been called, with this position. */
	bool		allowed;
	XLogRecPtr	allowed_durable;

	/* Relations that have just been buried, sorted, or NULL. */
	RelFileLocator *relations;
	int			nrelations;

	/* End of the WAL record that drops them, or invalid. */
	XLogRecPtr	durable;

	/* DropRelationsAllBuffers has not been called yet. */
	bool		exclude;

	/* Number of relations that have not been unlinked yet, if deferred. */
	int			nleft;
} Burial;

static Burial burial;

/* ---------------------------------------------------------------------
 * Burial
 * ---------------------------------------------------------------------
 */

/*
 * Bury relations that are about to be unlinked, if there is room for all, and
 * remember them for the call of DropRelationsAllBuffers that follows.
 *
 * Only for callers that know that the relations are gone for good: the end of
 * a transaction, COMMIT or ROLLBACK PREPARED, and their replay (rule R4).
 * Temporary relations, which belong to a backend, are left alone, because a
 * permanent relation may have the same number.
 *
 * "durable" is the end of the WAL record that drops them, which has been
 * flushed, or InvalidXLogRecPtr if there is none (rule R9) or in recovery.
 *
 * When this returns, no process writes to the files of these relations any
 * more (rule R1).  If files are not deferred, no process reads them either, and
 * the caller forgets their sync requests (rule R2) and removes the files.  If
 * they are, LazyDropDeferUnlink forgets the requests, waits for reads, and
 * leaves the files to others.
 */
void
LazyDropBuryRelations(SMgrRelation *rels, int nrels, XLogRecPtr durable)
{
	RelFileLocator *locators;
	LazyDropFiles files;
	int			n = 0;

	Assert(burial.nleft == 0);
	burial.relations = NULL;
	burial.exclude = false;

	for (int i = 0; i < nrels; i++)
	{
		if (!RelFileLocatorBackendIsTemp(rels[i]->smgr_rlocator))
			n++;
	}
	if (n == 0 || !LazyDropMayBury(n))
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
	 * Bury all or none.  If one of them requires a scan of all headers, the
	 * others add no cost, and the set has room for other droppers.
	 */
	if (!LazyDropAddEntries(locators, n, files, n, durable))
	{
		LazyDropFallBack(n, true);
		pfree(locators);
		return;
	}
	LazyDropCount(LAZYDROP_DEFERRED_RELATIONS, n);
	if (files != LAZYDROP_FILES_NONE)
		burial.nleft = n;

	qsort(locators, n, sizeof(RelFileLocator), LazyDropCompareLocators);
	LazyDropWaitForWriters(locators, n);
	if (files == LAZYDROP_FILES_NONE)
		LazyDropWaitForReads(locators, n);

	/*
	 * This process removes the files, but no other process has seen relations
	 * that it has created, so none of their pages is read until then (rule
	 * R18).
	 */
	for (int i = 0; i < n && XLogRecPtrIsInvalid(durable) && !RecoveryInProgress(); i++)
		LazyDropMeasureBlocks(&locators[i], 0);
	burial.relations = locators;
	burial.nrelations = n;
	burial.durable = durable;
	burial.exclude = true;
}

/*
 * Called before DropRelationFiles by COMMIT PREPARED, ROLLBACK PREPARED and
 * replay of commits and aborts.  Other callers may keep the relations, or need
 * them gone on return (rule R4).  For "durable", see LazyDropBuryRelations.
 */
void
LazyDropAllowBurial(XLogRecPtr durable)
{
	burial.allowed = true;
	burial.allowed_durable = durable;
}

/*
 * Called by DropRelationFiles.  Calls LazyDropBuryRelations, if that has been
 * allowed for this call.
 */
void
LazyDropBuryIfAllowed(SMgrRelation *rels, int nrels)
{
	if (burial.allowed)
		LazyDropBuryRelations(rels, nrels, burial.allowed_durable);
	burial.allowed = false;
}

/*
 * Remove relations from an array whose buffers need not be dropped now,
 * because LazyDropBuryRelations has just buried them: all but temporary ones.
 * The array is replaced by an array that this function owns and reuses, since
 * the startup process calls it forever in one memory context.
 */
void
LazyDropExcludeBuried(SMgrRelation **rels, int *nrels)
{
	static SMgrRelation *rest = NULL;
	static int	max_rest = 0;
	int			nrest = 0;

	if (!burial.exclude)
		return;
	Assert(burial.relations != NULL);
	burial.exclude = false;

	for (int i = 0; i < *nrels; i++)
	{
		SMgrRelation rel = (*rels)[i];

		if (!RelFileLocatorBackendIsTemp(rel->smgr_rlocator) &&
			LazyDropIsAmong(&rel->smgr_rlocator.locator, burial.relations, burial.nrelations))
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
	if (burial.nleft == 0)
	{
		pfree(burial.relations);
		burial.relations = NULL;
	}
}

/* ---------------------------------------------------------------------
 * Files
 * ---------------------------------------------------------------------
 */

/*
 * Forget the sync requests for a relation's files, as mdunlink does.  If the
 * empty first segment is kept until the next checkpoint, request its removal
 * here, so that it is removed at the same time as in stock (rule R14).
 *
 * A request for a missing file does no harm, so only further segments are
 * looked for.  In other forks, that is done only if the main fork has some,
 * because it is larger by orders of magnitude, and a truncated fork keeps its
 * segments.
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

			/* The file may exist nevertheless, as the removal assumes. */
			if (!seen)
				break;
		}
	}
}

/*
 * Let others remove the files of relations that this process has buried, and
 * whose sync requests it has forgotten.
 *
 * If a checkpoint has begun after our commit record, it may have looked for
 * files before it could see ours, and a crash would leave them forever (rule
 * R8).  A checkpoint that begins later sees them.  So hide the files before
 * waiting for reads, which may be stuck.
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
 * Called when the files of a dropped relation are unlinked.  If this process
 * has just buried it and the removal of its files is deferred, do everything
 * that must be done before they are removed, and return true.  With the last
 * relation of the burial, let others remove the files of all.  "isRedo" is the
 * argument of smgr_unlink.
 */
bool
LazyDropDeferUnlink(RelFileLocatorBackend rlocator, bool isRedo)
{
	bool		keep_first = !isRedo && !IsBinaryUpgrade;

	if (burial.relations == NULL || RelFileLocatorBackendIsTemp(rlocator) ||
		!LazyDropIsAmong(&rlocator.locator, burial.relations, burial.nrelations))
		return false;

	Assert(burial.nleft > 0);
	ForgetRelationSyncRequests(&rlocator.locator, keep_first);
	LAZYDROP_INJECTION_POINT("lazydrop-forgotten");
	if (burial.nleft > 1)
		burial.nleft--;
	else
	{
		/* If this fails, the files are given up. */
		ReleaseFiles(burial.relations, burial.nrelations, keep_first, burial.durable);
		burial.nleft = 0;
		pfree(burial.relations);
		burial.relations = NULL;
		LAZYDROP_INJECTION_POINT("lazydrop-ready");
	}
	return true;
}

/*
 * Reset the state of this file, and give up files, if a transaction aborts.
 */
void
LazyDropRelationXactCallback(XactEvent event, void *arg)
{
	if (event != XACT_EVENT_ABORT)
		return;
	if (burial.nleft > 0)
		LazyDropGiveUpFiles();
	memset(&burial, 0, sizeof(burial));
	LazyDropEndTruncate();
}
