/*-------------------------------------------------------------------------
 *
 * lazydrop_pass.c
 *	  A pass over the buffer headers, for all buried relations and databases.
 *
 * A pass becomes the owner of the entries that are in the set when it begins,
 * visits each header once, invalidates the buffers that belong to an entry,
 * and deletes the entries that had no files when it began.  A relation that
 * had some is left to a pass that begins when they are gone, because buffers
 * may be read in until then; a database is not (rule R5).  The worker makes
 * passes.  A process that cannot wait for it does so, too, if it is about to
 * create storage under a buried name, or is a dropper that finds the set full.
 *
 * Most headers do not belong to an entry, and a pass should cost little more
 * than reading them.  So each header is first compared with a bitmap that has
 * a bit for each buried relfilenumber, hashed, and is small enough for the
 * first-level cache.  Another bitmap does the same for buried databases.
 *
 * Portions Copyright (c) 2026, LazyDrop developers
 * Portions Copyright (c) 1996-2025, PostgreSQL Global Development Group
 * Portions Copyright (c) 1994, Regents of the University of California
 *
 * IDENTIFICATION
 *	  src/backend/storage/lazydrop/lazydrop_pass.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/xlogutils.h"
#include "miscadmin.h"
#include "pgstat.h"
#include "portability/instr_time.h"
#include "postmaster/interrupt.h"
#include "storage/buf_internals.h"
#include "storage/bufmgr.h"
#include "storage/ipc.h"
#include "storage/lazydrop.h"
#include "storage/lazydrop_cache.h"
#include "storage/lazydrop_internal.h"
#include "storage/proc.h"
#include "utils/timestamp.h"

bool		lazydrop_log_passes = false;

/* Each bitmap has 8 kB, so both stay in a first-level cache of 32 kB. */
#define FILTER_BITS		16
#define FILTER_WORDS	(1 << (FILTER_BITS - 6))

/*
 * Number of times that a pass revisits pinned buffers, a millisecond apart.
 * If a buffer stays pinned for longer, its entry is left to a later pass, so
 * that others need not wait for it (rules R6 and R7).
 */
#define PINNED_ROUNDS		100

/* Maximum number of these buffers.  The entry of any other is left at once. */
#define MAX_PINNED			1024

/* Maximum number of relations whose blocks are looked up at a time. */
#define LOOK_UP_BATCH		128

/* Number of headers between two checks for a stop, about 0.1 ms. */
#define HEADERS_PER_CHECK	(16 * 1024)

/*
 * State of a pass.  Nothing is allocated, because a dropper makes a pass at
 * the end of a transaction.
 */
typedef struct PassState
{
	/* number of the pass, or 0 if it is for a directory and no entries */
	uint32		owner;
	const RelFileLocator *directory;
	bool		any_database;

	/* pinned buffers, to be revisited */
	int			pinned[MAX_PINNED];
	int			npinned;

	/* entries that the caller needs */
	LazyDropMatch matches;
	const void *arg;

	int64		invalidated;
	int64		took_us;

	/* entries that have lost their buffers, if this was their first pass */
	int			nrelations;
	int			ndatabases;
	/* whether any entry has lost its buffers */
	bool		settled;

	/* relations whose blocks are looked up, instead of a pass */
	struct
	{
		RelFileLocator locator;
		BlockNumber nblocks[MAX_FORKNUM + 1];
	}			lookups[LOOK_UP_BATCH];
	int			nlookups;
	uint64		nblocks;		/* of these and of earlier batches */
	uint64		last_serial;

	uint64		relation_filter[FILTER_WORDS];
	uint64		database_filter[FILTER_WORDS];
} PassState;

typedef enum InvalidateResult
{
	INVALIDATE_DONE,			/* gone, or not a buffer of our entries */
	INVALIDATE_PINNED,			/* to be revisited */
	INVALIDATE_GIVEN_UP,		/* still pinned, and its entry is marked */
} InvalidateResult;

/* 24 kB, so not on the stack */
static PassState pass_state;

/*
 * A buffer that the last pass of this process has found pinned, of an entry
 * that its caller needs.
 */
static Buffer in_the_way = InvalidBuffer;
static BufferTag in_the_way_tag;

/* multiplicative hashing: the high bits are good */
static inline uint32
FilterHash(Oid value)
{
	return (value * (uint32) 0x9E3779B1) >> (32 - FILTER_BITS);
}

static inline void
FilterAdd(uint64 *filter, Oid value)
{
	uint32		hash = FilterHash(value);

	filter[hash >> 6] |= UINT64CONST(1) << (hash & 63);
}

static inline bool
FilterHas(const uint64 *filter, Oid value)
{
	uint32		hash = FilterHash(value);

	return (filter[hash >> 6] >> (hash & 63)) & 1;
}

/*
 * Note that we make progress, so that no process takes our entries (rule R5).
 */
static void
Beat(void)
{
	pg_atomic_write_u64(&LazyDropCtl->announcements[MyProcNumber].announcement.heartbeat,
						LazyDropNow());
}

/*
 * Return whether a pass waits for pins.  A pass of a dropper does not, or else
 * each drop would wait while the set is full of entries with pinned buffers.
 */
static bool
IsPatient(LazyDropMatch matches)
{
	return am_lazydrop_worker || matches != NULL;
}

/*
 * Add an entry that a pass owns, or its directory, to the bitmaps.
 */
static void
AddToFilters(PassState *pass, const RelFileLocator *locator)
{
	if (RelFileNumberIsValid(locator->relNumber))
		FilterAdd(pass->relation_filter, locator->relNumber);
	else
	{
		FilterAdd(pass->database_filter, locator->dbOid);
		pass->any_database = true;
	}
}

/*
 * Add any other entry to a pass.
 */
static bool
NoteOwned(LazyDropEntry *entry, void *arg)
{
	if (LazyDropCanLookUp(entry))
		return false;
	AddToFilters((PassState *) arg, &entry->locator);
	return true;
}

/*
 * Add an entry to those whose blocks are looked up, if that is so.  All of them
 * together must not cost more than a pass does, which would be enough for all.
 */
static bool
NoteLookUp(LazyDropEntry *entry, void *arg)
{
	PassState  *pass = arg;

	Assert(pass->nlookups < LOOK_UP_BATCH);
	if (entry->first_serial <= pass->last_serial ||
		(pass->matches != NULL && !pass->matches(&entry->locator, pass->arg)) ||
		!LazyDropCanLookUp(entry))
		return false;
	if (pass->nblocks + LazyDropBlocksOf(entry) >= LazyDropLookUpLimit())
	{
		LazyDropLeaveToPass(entry);
		return false;
	}
	pass->nblocks += LazyDropBlocksOf(entry);
	pass->lookups[pass->nlookups].locator = entry->locator;
	memcpy(pass->lookups[pass->nlookups].nblocks, entry->nblocks,
		   sizeof(entry->nblocks));
	pass->nlookups++;
	pass->last_serial = entry->first_serial;
	return true;
}

/*
 * Return whether a buffer belongs to this pass.  Sets "entry", unless the pass
 * is for a directory.  If there is an entry, the set's lock is held in shared
 * mode.
 *
 * While a relation has an entry of its own, its buffers belong to that entry,
 * and not to the entry of its database.
 */
static bool
Belongs(const PassState *pass, const RelFileLocator *locator,
		LazyDropEntry **entry)
{
	*entry = NULL;
	if (pass->directory != NULL)
		return locator->dbOid == pass->directory->dbOid &&
			locator->spcOid == pass->directory->spcOid;

	LWLockAcquire(&LazyDropCtl->lock, LW_SHARED);
	*entry = LazyDropFindBurial(locator);
	if (*entry != NULL && (*entry)->owner == pass->owner)
		return true;
	LWLockRelease(&LazyDropCtl->lock);
	return false;
}

/*
 * Note that a buffer of this pass stays pinned.
 */
static void
GiveUp(PassState *pass, LazyDropEntry *entry, BufferDesc *buf,
	   const BufferTag *tag)
{
	if (entry != NULL)
		LazyDropMarkPinned(entry);
	if (entry == NULL ||
		(pass->matches != NULL && pass->matches(&entry->locator, pass->arg)))
	{
		in_the_way = BufferDescriptorGetBuffer(buf);
		in_the_way_tag = *tag;
	}
}

/*
 * Invalidate a buffer if it belongs to this pass.
 *
 * This is like InvalidateBuffer in bufmgr.c, but never waits for a pin or an
 * I/O (rule R7).  It holds the set's lock in shared mode, so that the entry
 * can neither be deleted nor change its owner meanwhile (rule R5).  If
 * "last_try" is set, a pinned buffer marks its entry, which then stays.
 */
static InvalidateResult
Invalidate(PassState *pass, BufferDesc *buf, bool last_try)
{
	BufferTag	tag = buf->tag;
	RelFileLocator locator = BufTagGetRelFileLocator(&tag);
	uint32		hash;
	LWLock	   *partition_lock;
	LazyDropBufState old;
	LazyDropBufState state;
	LazyDropBufState flags;
	LazyDropEntry *entry;

	if (!Belongs(pass, &locator, &entry))
		return INVALIDATE_DONE;
	hash = BufTableHashCode(&tag);
	partition_lock = BufMappingPartitionLock(hash);
	LWLockAcquire(partition_lock, LW_EXCLUSIVE);
	state = old = LockBufHdr(buf);
	if (!BufferTagsEqual(&buf->tag, &tag) || BUF_STATE_GET_REFCOUNT(state) != 0)
	{
		InvalidateResult result = INVALIDATE_DONE;

		if (BufferTagsEqual(&buf->tag, &tag))
			result = last_try ? INVALIDATE_GIVEN_UP : INVALIDATE_PINNED;
		LazyDropUnlockBufHdr(buf, old, state);
		LWLockRelease(partition_lock);
		if (result == INVALIDATE_GIVEN_UP)
			GiveUp(pass, entry, buf, &tag);
		if (entry != NULL)
			LWLockRelease(&LazyDropCtl->lock);
		return result;
	}

	flags = state & BUF_FLAG_MASK;
	ClearBufferTag(&buf->tag);
	state &= ~(BUF_FLAG_MASK | BUF_USAGECOUNT_MASK);
	LazyDropCacheFreed(buf->buf_id);
	LazyDropUnlockBufHdr(buf, old, state);
	if (flags & BM_TAG_VALID)
		BufTableDelete(&tag, hash);
	LWLockRelease(partition_lock);
	if (entry != NULL)
		LWLockRelease(&LazyDropCtl->lock);

	LazyDropFreeBuffer(buf);
	pass->invalidated++;
	return INVALIDATE_DONE;
}

/*
 * Return whether a header may belong to an entry of this pass.
 *
 * As in DropRelationBuffers, the tag may be read without the header's lock.
 * It may change while we look, but not to a buried relation: that is read into
 * a buffer only while it has files, and then another pass follows.  The tag of
 * an unused buffer contains zeroes.
 */
static inline bool
MayBelong(const uint64 *relation_filter, const uint64 *database_filter,
		  bool any_database, const BufferTag *tag)
{
	return (FilterHas(relation_filter, tag->relNumber) ||
			(any_database && FilterHas(database_filter, tag->dbOid))) &&
		RelFileNumberIsValid(tag->relNumber);
}

/*
 * Visit a header that may belong to an entry of this pass.
 */
static void
VisitHeader(PassState *pass, int buf_id)
{
	bool		full = pass->npinned == MAX_PINNED;

	Assert(pass->npinned <= MAX_PINNED);
	Assert(buf_id >= 0 && buf_id < NBuffers);
	if (Invalidate(pass, GetBufferDescriptor(buf_id), full) == INVALIDATE_PINNED)
		pass->pinned[pass->npinned++] = buf_id;
}

/*
 * Stop in the middle of a pass, if requested.  The worker's SIGTERM handler
 * sets a flag, and a fast shutdown must not wait for the pass.  No other
 * process may exit here, because it may be in the middle of a commit.
 */
static void
CheckForStop(void)
{
	if (am_lazydrop_worker && ShutdownRequestPending)
		proc_exit(1);
	CHECK_FOR_INTERRUPTS();
}

/*
 * Visit all headers.
 */
static void
VisitHeaders(PassState *pass)
{
	const uint64 *relation_filter = pass->relation_filter;
	const uint64 *database_filter = pass->database_filter;
	bool		any_database = pass->any_database;

	Assert((pass->owner != 0) != (pass->directory != NULL));
	for (int start = 0; start < NBuffers; start += HEADERS_PER_CHECK)
	{
		int			end = Min(start + HEADERS_PER_CHECK, NBuffers);

		CheckForStop();
		Beat();
		if (am_lazydrop_worker)
			LAZYDROP_INJECTION_POINT("lazydrop-pass-step");
		for (int i = start; i < end; i++)
		{
			if (MayBelong(relation_filter, database_filter, any_database,
						  &GetBufferDescriptor(i)->tag))
				VisitHeader(pass, i);
		}
	}
}

/*
 * Look up the blocks of all relations of a batch, and visit their buffers.
 * Returns the number of blocks.
 */
static uint64
LookUpBlocks(PassState *pass)
{
	uint64		total = 0;

	for (int i = 0; i < pass->nlookups; i++)
	{
		for (ForkNumber forknum = 0; forknum <= MAX_FORKNUM; forknum++)
		{
			for (BlockNumber blocknum = 0;
				 blocknum < pass->lookups[i].nblocks[forknum]; blocknum++)
			{
				BufferTag	tag;
				int			buf_id;

				if (total++ % HEADERS_PER_CHECK == 0)
				{
					CheckForStop();
					Beat();
				}
				InitBufferTag(&tag, &pass->lookups[i].locator, forknum, blocknum);
				buf_id = LazyDropLookUpBuffer(&tag);

				/* It may be of another page by now, which VisitHeader sees. */
				if (buf_id >= 0)
					VisitHeader(pass, buf_id);
			}
		}
	}
	return total;
}

/*
 * Revisit buffers that were pinned by a read, or by a process about to find
 * that it need not write.  (The dropper waits for reads itself, by AIO
 * reference, which also reaps them.)  Buffers that stay pinned mark their
 * entries.
 */
static void
RevisitPinned(PassState *pass, int rounds)
{
	for (int round = 0; round < rounds && pass->npinned > 0; round++)
	{
		int			n = pass->npinned;

		CheckForStop();
		Beat();
		pass->npinned = 0;
		for (int i = 0; i < n; i++)
		{
			/* This overwrites only elements that have been read. */
			VisitHeader(pass, pass->pinned[i]);
		}
		if (pass->npinned > 0)
			pg_usleep(1000L);
	}

	for (int i = 0; i < pass->npinned; i++)
		(void) Invalidate(pass, GetBufferDescriptor(pass->pinned[i]), true);
}

#ifdef USE_ASSERT_CHECKING
/*
 * Check that a pass would find no page of the relations of a batch.  An
 * extension that has failed may leave a buffer that is not valid.
 */
static void
AssertNothingLeft(const PassState *pass)
{
	for (int i = 0; i < NBuffers; i++)
	{
		BufferDesc *buf = GetBufferDescriptor(i);
		RelFileLocator locator = BufTagGetRelFileLocator(&buf->tag);
		LazyDropEntry *entry;

		if (!RelFileNumberIsValid(locator.relNumber))
			continue;
		LWLockAcquire(&LazyDropCtl->lock, LW_SHARED);
		entry = LazyDropFindEntry(&locator);
		Assert(entry == NULL || entry->owner != pass->owner ||
			   entry->pinned || entry->buried_again ||
			   !BufTagMatchesRelFileLocator(&buf->tag, &locator) ||
			   (LazyDropReadBufState(buf) & BM_VALID) == 0);
		LWLockRelease(&LazyDropCtl->lock);
	}
}
#endif

/*
 * Count the pass, before any process can see that its entries are done.
 */
static void
CountPass(PassState *pass, instr_time began)
{
	instr_time	took;

	INSTR_TIME_SET_CURRENT(took);
	INSTR_TIME_SUBTRACT(took, began);
	pass->took_us = INSTR_TIME_GET_MICROSEC(took);

	LWLockAcquire(&LazyDropCtl->lock, LW_EXCLUSIVE);
	LazyDropCount(LAZYDROP_PASSES, 1);
	LazyDropCount(LAZYDROP_HEADERS_VISITED, NBuffers);
	LazyDropCount(LAZYDROP_BUFFERS_INVALIDATED, pass->invalidated);
	LazyDropCtl->last_pass = GetCurrentTimestamp();
	LazyDropCtl->last_pass_us = pass->took_us;
	LazyDropCtl->last_pass_buffers = pass->invalidated;
	LWLockRelease(&LazyDropCtl->lock);
}

static void
DisownOnError(int code, Datum arg)
{
	/* An error has not released locks yet.  All that are held are our own. */
	LWLockReleaseAll();
	LazyDropDisown(DatumGetUInt32(arg));
}

/*
 * Look up the buffers of small relations whose files are gone (rule R18), and
 * invalidate them.  If "matches" is not NULL, an entry must match.  Unless
 * "patient" is set, entries with a pinned buffer are left out.  Relations that
 * would make it cost more than a pass are left to one.
 *
 * Returns whether any entry has lost its buffers.  For what the caller holds,
 * and for interrupts, see LazyDropPass.
 */
bool
LazyDropLookUp(int64 steal_before, LazyDropMatch matches, const void *arg,
			   bool patient)
{
	PassState  *pass = &pass_state;
	bool		settled = false;
	uint64		last_serial = 0;
	uint64		nblocks = 0;

	Assert(!LWLockHeldByMe(&LazyDropCtl->lock));
	while (!LazyDropNothingBuried())
	{
		int			ntaken;

		memset(pass, 0, offsetof(PassState, relation_filter));
		pass->matches = matches;
		pass->arg = arg;
		pass->last_serial = last_serial;
		pass->nblocks = nblocks;
		Beat();
		pass->owner = LazyDropOwn(steal_before, matches, arg, patient,
								  NoteLookUp, pass, LOOK_UP_BATCH, &ntaken);
		if (pass->owner == 0)
			break;

		PG_ENSURE_ERROR_CLEANUP(DisownOnError, UInt32GetDatum(pass->owner));
		{
			if (am_lazydrop_worker)
				LAZYDROP_INJECTION_POINT("lazydrop-pass");
			LazyDropCount(LAZYDROP_BLOCKS_LOOKED_UP, LookUpBlocks(pass));
			RevisitPinned(pass, IsPatient(matches) ? PINNED_ROUNDS : 0);
			if (am_lazydrop_worker)
				LAZYDROP_INJECTION_POINT("lazydrop-pass-end");
			LazyDropCount(LAZYDROP_BUFFERS_INVALIDATED, pass->invalidated);
#ifdef USE_ASSERT_CHECKING
			AssertNothingLeft(pass);
#endif
			settled |= LazyDropFinishPass(pass->owner, &pass->nrelations,
										  &pass->ndatabases);
		}
		PG_END_ENSURE_ERROR_CLEANUP(DisownOnError, UInt32GetDatum(pass->owner));
		last_serial = pass->last_serial;
		nblocks = pass->nblocks;
	}
	return settled;
}

/*
 * Invalidate the buffers of all entries that need a pass and have no owner,
 * and of entries that LazyDropOwn may take over.  Returns whether any entry
 * has lost its buffers.
 *
 * The caller holds no LWLock.  It may hold off interrupts.  If it does not and
 * is interrupted, the entries stay, without an owner.  Nothing is allocated.
 */
bool
LazyDropPass(int64 steal_before, LazyDropMatch matches, const void *arg)
{
	PassState  *pass = &pass_state;
	instr_time	began;
	int			ntaken;
	bool		settled;

	in_the_way = InvalidBuffer;
	settled = LazyDropLookUp(steal_before, matches, arg, IsPatient(matches));
	if (!LazyDropHasWork(LAZYDROP_WORK_PASS, steal_before, matches, arg,
						 IsPatient(matches)))
		return settled;

	memset(pass, 0, sizeof(PassState));
	pass->matches = matches;
	pass->arg = arg;
	INSTR_TIME_SET_CURRENT(began);
	Beat();
	pass->owner = LazyDropOwn(steal_before, matches, arg, IsPatient(matches),
							  NoteOwned, pass, LazyDropCtl->capacity, &ntaken);
	if (pass->owner == 0)
		return settled;

	PG_ENSURE_ERROR_CLEANUP(DisownOnError, UInt32GetDatum(pass->owner));
	{
		if (am_lazydrop_worker)
			LAZYDROP_INJECTION_POINT("lazydrop-pass");

		VisitHeaders(pass);
		RevisitPinned(pass, IsPatient(matches) ? PINNED_ROUNDS : 0);
		if (am_lazydrop_worker)
			LAZYDROP_INJECTION_POINT("lazydrop-pass-end");
		CountPass(pass, began);
		pass->settled = LazyDropFinishPass(pass->owner, &pass->nrelations,
										   &pass->ndatabases);
	}
	PG_END_ENSURE_ERROR_CLEANUP(DisownOnError, UInt32GetDatum(pass->owner));

	if (ntaken > 0)
		elog(DEBUG1, "took over %d entries from other passes", ntaken);
	if (lazydrop_log_passes)
		ereport(LOG,
				(errmsg("lazy drop pass complete: %d relations and %d database directories, invalidated %lld of %d buffers in %.3f ms",
						pass->nrelations, pass->ndatabases,
						(long long) pass->invalidated, NBuffers,
						pass->took_us / 1000.0)));
	return settled || pass->settled;
}

/*
 * Invalidate all buffers that a database has in a tablespace, without an entry.
 * Returns false if one of them stays pinned.
 *
 * The caller holds no LWLock, and no other process creates or reads a page
 * there meanwhile.  Pages may be written, but not after they are invalidated.
 */
bool
LazyDropPassForDirectory(const RelFileLocator *directory)
{
	PassState  *pass = &pass_state;
	instr_time	began;

	Assert(!LWLockHeldByMe(&LazyDropCtl->lock));
	Assert(!RelFileNumberIsValid(directory->relNumber));
	memset(pass, 0, sizeof(PassState));
	in_the_way = InvalidBuffer;
	pass->directory = directory;
	AddToFilters(pass, directory);
	INSTR_TIME_SET_CURRENT(began);
	VisitHeaders(pass);
	RevisitPinned(pass, PINNED_ROUNDS);
	CountPass(pass, began);
	return !BufferIsValid(in_the_way);
}

/*
 * In replay on a hot standby, if the last pass of this process has found that a
 * session has a buffer of its entry or directory pinned, raise the recovery
 * conflict as replay does for a cleanup lock, and wait until the pin is gone
 * (rule R7).  Returns false if there is no such buffer.  The caller holds no
 * LWLock.
 */
bool
LazyDropConflictWithPin(void)
{
	if (!InHotStandby || !BufferIsValid(in_the_way) ||
		!ReadRecentBuffer(BufTagGetRelFileLocator(&in_the_way_tag),
						  BufTagGetForkNum(&in_the_way_tag),
						  in_the_way_tag.blockNum, in_the_way))
		return false;
	LockBufferForCleanup(in_the_way);
	UnlockReleaseBuffer(in_the_way);
	return true;
}
