/*-------------------------------------------------------------------------
 *
 * lazydrop.h
 *	  Functions of the lazy drop that the rest of the server calls.
 *
 * See src/backend/storage/lazydrop/README, which has the rules R1-R18 that
 * comments cite.
 *
 * Copyright (c) 2026, LazyDrop developers
 *
 * src/include/storage/lazydrop.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef LAZYDROP_H
#define LAZYDROP_H

#include "access/xlogdefs.h"
#include "storage/relfilelocator.h"
#include "storage/smgr.h"

struct buftag;
struct XLogReaderState;

/* "postgres --help" asks for bug reports, which must not be sent to upstream. */
#define LAZYDROP_BUGREPORT "LazyDrop's issue tracker"

/* startup: settings and worker, then shared memory */
extern void LazyDropInit(void);
extern Size LazyDropShmemSize(void);
extern void LazyDropShmemInit(void);
extern void LazyDropWorkerMain(Datum arg);

/* droppers */
extern void LazyDropBuryRelations(SMgrRelation *rels, int nrels,
								  XLogRecPtr durable);
extern void LazyDropAllowBurial(XLogRecPtr durable);
extern void LazyDropBuryIfAllowed(SMgrRelation *rels, int nrels);
extern void LazyDropExcludeBuried(SMgrRelation **rels, int *nrels);
extern bool LazyDropDeferUnlink(RelFileLocatorBackend rlocator, bool isRedo);
extern bool LazyDropDropDatabase(Oid dboid);
extern XLogRecPtr LazyDropLogOldDirectory(Oid dboid, Oid spcoid);
extern void LazyDropDirectoryLogged(Oid dboid);
extern void LazyDropRelmapLogged(Oid dboid);
extern bool LazyDropBuryDatabaseRedo(Oid dboid, int ntablespaces,
									 const Oid *tablespaces, XLogRecPtr lsn);
extern void LazyDropForgetSyncRequests(Oid dboid, int ntablespaces,
									   const Oid *tablespaces);
extern bool LazyDropDeferDirectories(Oid dboid, int ntablespaces,
									 const Oid *tablespaces);

/* writers of shared buffers */
extern bool LazyDropCanSkipWrite(const struct buftag *tag);
extern bool LazyDropAnnounceWrite(const struct buftag *tag);
extern void LazyDropEndWrite(void);
extern bool LazyDropWriteWasSkipped(void);

/* processes that create or choose names */
extern void LazyDropSettleRelation(SMgrRelation reln);
extern void LazyDropSettleDatabase(Oid dboid);
extern void LazyDropSettleDirectory(Oid spcoid, Oid dboid);
extern bool LazyDropRelationIsPending(RelFileLocatorBackend rlocator);
extern bool LazyDropDatabaseIsPending(Oid dboid);
extern void LazyDropInvalidateDatabase(Oid spcoid, Oid dboid);

/* replay of file copies, and of later records */
extern PGDLLIMPORT int lazydrop_copied_databases;
extern void LazyDropFileCopyReplayed(Oid dboid, XLogRecPtr end);
extern void LazyDropCheckPointReplayed(XLogRecPtr redo);
extern void LazyDropBeforeChange(struct XLogReaderState *record);
extern void LazyDropEndFileCopies(void);
extern void LazyDropCheckPointFailed(void);

/* Called before each record is replayed. */
static inline void
LazyDropBeforeReplay(struct XLogReaderState *record)
{
	if (unlikely(lazydrop_copied_databases > 0))
		LazyDropBeforeChange(record);
}

/* processes that need files removed, or space */
extern void LazyDropCheckPoint(int flags);
extern void LazyDropHideDatabase(Oid dboid);
extern void LazyDropClearTablespace(Oid spcoid, XLogRecPtr lsn);
extern void LazyDropEndRecovery(void);
extern bool LazyDropDrain(int64 timeout_ms);
extern bool LazyDropFreeSpace(int error, int temp_fd);

/* removal of temporary files and sync of the data directory, at startup */
extern bool LazyDropIsHidden(const char *name);
extern bool LazyDropLeavesToWorker(const char *dir, const char *name);

/* the checkpointer, after it has absorbed sync requests */
extern void LazyDropRequestsAbsorbed(void);

/* checkpointer.c: what it does between two writes of a checkpoint */
extern void LazyDropCheckPointDuties(void);

/* procsignal.c: last barrier that all processes have absorbed */
extern uint64 LazyDropBarrierTaken(void);

/* commands that visit all headers of a pool, of which few may matter */
typedef struct LazyDropBlocks
{
	/* whether the blocks are few, so that they are looked up */
	bool		few;

	/* relations, and the range of their forks */
	SMgrRelation *rels;
	int			nrels;
	ForkNumber	first_fork;
	ForkNumber	last_fork;
	BlockNumber first_block;

	/* position, and size of the fork */
	int			rel;
	ForkNumber	forknum;
	BlockNumber block;
	BlockNumber nblocks;
} LazyDropBlocks;

extern void LazyDropBeginBlocks(LazyDropBlocks *blocks, SMgrRelation *rels,
								int nrels, ForkNumber forknum,
								BlockNumber first_block, int nheaders);
extern bool LazyDropNextBlock(LazyDropBlocks *blocks, struct buftag *tag);
extern int	LazyDropNextBuffer(LazyDropBlocks *blocks, int previous);

/* partial truncation */
extern void LazyDropBeginTruncate(SMgrRelation reln, const ForkNumber *forknum,
								  int nforks, const BlockNumber *old_nblocks);
extern BlockNumber LazyDropTruncateSize(SMgrRelation reln, ForkNumber forknum);
extern void LazyDropEndTruncate(void);

#endif							/* LAZYDROP_H */
