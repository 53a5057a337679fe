/*-------------------------------------------------------------------------
 *
 * lazydrop_pass.c
 *	  One pass over the buffer headers for everything that is buried.
 *
 * A pass becomes the owner of the entries that are in the set when it begins,
 * visits each header once, invalidates the buffers that belong to one of them,
 * and deletes the entries that have no files to be removed.  The worker runs passes;
 * so does whoever cannot wait for it: a process about to create storage under a
 * buried name, and a dropper that finds the set full.
 *
 * Most headers belong to nobody buried, and a pass is to cost little more than
 * reading them.  So a header is first compared with a bitmap, small enough for
 * the first-level cache, that has a bit for each buried relfilenumber, hashed,
 * and another one for each buried database.
 *
 * Copyright (c) 2026, LazyDrop developers
 *
 * IDENTIFICATION
 *	  src/backend/storage/lazydrop/lazydrop_pass.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "common/hashfn.h"
#include "miscadmin.h"
#include "pgstat.h"
#include "port/pg_bitutils.h"
#include "portability/instr_time.h"
#include "postmaster/interrupt.h"
#include "storage/aio.h"
#include "storage/buf_internals.h"
#include "storage/ipc.h"
#include "storage/lazydrop.h"
#include "storage/lazydrop_internal.h"
#include "storage/shmem.h"
#include "utils/injection_point.h"
#include "utils/memutils.h"
#include "utils/timestamp.h"

/* 8 kB for each bitmap: both stay in a first-level cache of 32 kB. */
#define FILTER_BITS		16
#define FILTER_WORDS	(1 << (FILTER_BITS - 6))

/*
 * How often a pass comes back to buffers that are pinned, a millisecond apart.  One
 * that is pinned for longer is left, with its entry, to a later pass, so that others
 * need not wait for it (rules R6 and R7).
 */
#define PINNED_ROUNDS		100

/* Of how many of them it keeps account; the entry of another one is left at once. */
#define MAX_PINNED			1024

/* Headers between two looks at whether to stop. */
#define HEADERS_PER_CHECK	(64 * 1024)

/*
 * What a pass needs, in one piece of memory: a dropper at the end of a transaction
 * must be able to do without it, when there is none.
 */
typedef struct PassState
{
	uint32		owner;
	RelFileLocator *locators;
	bool	   *stuck;			/* has a buffer that stays pinned */
	int			nlocators;
	int			ndatabases;

	/* open addressing; 0 is free, otherwise an index into locators, plus 1 */
	uint32	   *table;
	uint32		table_size;

	/* buffers to come back to */
	int			pinned[MAX_PINNED];
	int			npinned;

	int64		invalidated;
	int64		took_us;

	uint64		relation_filter[FILTER_WORDS];
	uint64		database_filter[FILTER_WORDS];
} PassState;

typedef enum InvalidateResult
{
	INVALIDATE_DONE,			/* it is gone, or was not what we look for */
	INVALIDATE_PINNED,			/* come back */
} InvalidateResult;

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

static inline uint32
TableHash(const RelFileLocator *locator)
{
	return hash_combine(murmurhash32(locator->relNumber),
						murmurhash32(locator->dbOid) ^ locator->spcOid);
}

/*
 * Allocate what a pass for up to "room" entries needs.  Returns NULL when there is
 * no memory, if no_oom.
 */
static PassState *
AllocatePass(int room, bool no_oom)
{
	uint32		table_size = pg_nextpower2_32(Max(room, 8)) * 2;
	Size		size;
	PassState  *pass;
	char	   *next;

	size = MAXALIGN(sizeof(PassState));
	size = add_size(size, MAXALIGN(mul_size(room, sizeof(RelFileLocator))));
	size = add_size(size, MAXALIGN(mul_size(table_size, sizeof(uint32))));
	size = add_size(size, mul_size(room, sizeof(bool)));
	pass = MemoryContextAllocExtended(CurrentMemoryContext, size,
									  MCXT_ALLOC_ZERO | MCXT_ALLOC_HUGE |
									  (no_oom ? MCXT_ALLOC_NO_OOM : 0));
	if (pass == NULL)
		return NULL;

	next = (char *) pass + MAXALIGN(sizeof(PassState));
	pass->locators = (RelFileLocator *) next;
	next += MAXALIGN(room * sizeof(RelFileLocator));
	pass->table = (uint32 *) next;
	pass->table_size = table_size;
	next += MAXALIGN(table_size * sizeof(uint32));
	pass->stuck = (bool *) next;
	return pass;
}

/*
 * Make the filters and the look-up table.
 */
static void
PreparePass(PassState *pass)
{
	for (int i = 0; i < pass->nlocators; i++)
	{
		RelFileLocator *locator = &pass->locators[i];
		uint32		slot = TableHash(locator) & (pass->table_size - 1);

		while (pass->table[slot] != 0)
			slot = (slot + 1) & (pass->table_size - 1);
		pass->table[slot] = i + 1;

		if (RelFileNumberIsValid(locator->relNumber))
			FilterAdd(pass->relation_filter, locator->relNumber);
		else
		{
			FilterAdd(pass->database_filter, locator->dbOid);
			pass->ndatabases++;
		}
	}
}

static const RelFileLocator *
LookUp(const PassState *pass, const RelFileLocator *locator)
{
	uint32		slot = TableHash(locator) & (pass->table_size - 1);

	while (pass->table[slot] != 0)
	{
		const RelFileLocator *found = &pass->locators[pass->table[slot] - 1];

		if (RelFileLocatorEquals(*found, *locator))
			return found;
		slot = (slot + 1) & (pass->table_size - 1);
	}
	return NULL;
}

/*
 * The identity of this pass that a relation belongs to, or NULL.
 */
static const RelFileLocator *
BelongsTo(const PassState *pass, const RelFileLocator *relation)
{
	const RelFileLocator *found = LookUp(pass, relation);

	if (found == NULL && pass->ndatabases > 0)
	{
		RelFileLocator whole = *relation;

		whole.relNumber = InvalidRelFileNumber;
		found = LookUp(pass, &whole);
	}
	return found;
}

/*
 * Invalidate one buffer if it belongs to the identity and if we own that.
 *
 * Like bufmgr.c's InvalidateBuffer, but it never waits for a pin or an I/O (rule
 * R7), and it holds the set's lock, in shared mode, so that the entry can neither
 * be deleted nor change hands meanwhile (rule R5).
 */
static InvalidateResult
Invalidate(PassState *pass, BufferDesc *buf, const RelFileLocator *identity)
{
	BufferTag	tag;
	uint32		hash;
	LWLock	   *partition_lock;
	uint32		state;
	uint32		flags;
	LazyDropEntry *entry;

	LWLockAcquire(&LazyDropCtl->lock, LW_SHARED);
	entry = LazyDropFindEntry(identity);
	if (entry == NULL || entry->owner != pass->owner)
	{
		LWLockRelease(&LazyDropCtl->lock);
		return INVALIDATE_DONE;
	}

	state = LockBufHdr(buf);
	tag = buf->tag;
	UnlockBufHdr(buf, state);
	if (!(tag.dbOid == identity->dbOid && tag.spcOid == identity->spcOid &&
		  (BufTagGetRelNumber(&tag) == identity->relNumber ||
		   !RelFileNumberIsValid(identity->relNumber))))
	{
		LWLockRelease(&LazyDropCtl->lock);
		return INVALIDATE_DONE;
	}

	hash = BufTableHashCode(&tag);
	partition_lock = BufMappingPartitionLock(hash);
	LWLockAcquire(partition_lock, LW_EXCLUSIVE);
	state = LockBufHdr(buf);
	if (!BufferTagsEqual(&buf->tag, &tag) || BUF_STATE_GET_REFCOUNT(state) != 0)
	{
		bool		pinned = BufferTagsEqual(&buf->tag, &tag);

		UnlockBufHdr(buf, state);
		LWLockRelease(partition_lock);
		LWLockRelease(&LazyDropCtl->lock);
		return pinned ? INVALIDATE_PINNED : INVALIDATE_DONE;
	}

	flags = state & BUF_FLAG_MASK;
	ClearBufferTag(&buf->tag);
	state &= ~(BUF_FLAG_MASK | BUF_USAGECOUNT_MASK);
	UnlockBufHdr(buf, state);
	if (flags & BM_TAG_VALID)
		BufTableDelete(&tag, hash);
	LWLockRelease(partition_lock);
	LWLockRelease(&LazyDropCtl->lock);

	StrategyFreeBuffer(buf);
	pass->invalidated++;
	return INVALIDATE_DONE;
}

/*
 * Whether a header may belong to something of this pass.
 *
 * As in DropRelationBuffers, the tag may be read without the header's lock: it
 * may change while we look, but not to one that we care about, because nobody
 * reads a buried relation into a buffer.  A buffer that is not in use has zeroes.
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
 * Look at a header that may belong to something of this pass.
 */
static void
VisitHeader(PassState *pass, int buf_id)
{
	BufferDesc *buf = GetBufferDescriptor(buf_id);
	RelFileLocator locator;
	const RelFileLocator *identity;

	locator = BufTagGetRelFileLocator(&buf->tag);
	identity = BelongsTo(pass, &locator);
	if (identity == NULL)
		return;

	if (Invalidate(pass, buf, identity) == INVALIDATE_PINNED)
	{
		if (pass->npinned < MAX_PINNED)
			pass->pinned[pass->npinned++] = buf_id;
		else
			pass->stuck[identity - pass->locators] = true;
	}
}

/*
 * Stop in the middle of a pass, if we are asked to.  The worker's SIGTERM handler
 * sets a flag; it must not be the one who keeps a fast shutdown waiting.  Nobody
 * else may leave here: he may be in the middle of a commit.
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
	bool		any_database = pass->ndatabases > 0;

	for (int start = 0; start < NBuffers; start += HEADERS_PER_CHECK)
	{
		int			end = Min(start + HEADERS_PER_CHECK, NBuffers);

		CheckForStop();
		for (int i = start; i < end; i++)
		{
			if (MayBelong(relation_filter, database_filter, any_database,
						  &GetBufferDescriptor(i)->tag))
				VisitHeader(pass, i);
		}
	}
}

/*
 * Come back to buffers that were pinned: by somebody who is about to find that
 * there is nothing to write, or by a read.  (The dropper waits for reads itself, by
 * their AIO references, which has them reaped.)  What stays pinned marks its entry.
 */
static void
RevisitPinned(PassState *pass)
{
	for (int round = 0; round < PINNED_ROUNDS && pass->npinned > 0; round++)
	{
		int			n = pass->npinned;

		CheckForStop();
		pass->npinned = 0;
		for (int i = 0; i < n; i++)
		{
			/* overwrites no element that is still to be read */
			VisitHeader(pass, pass->pinned[i]);
		}
		if (pass->npinned > 0)
			pg_usleep(1000L);
	}

	for (int i = 0; i < pass->npinned; i++)
	{
		BufferTag	tag = GetBufferDescriptor(pass->pinned[i])->tag;
		RelFileLocator locator = BufTagGetRelFileLocator(&tag);
		const RelFileLocator *identity = BelongsTo(pass, &locator);

		if (identity != NULL)
			pass->stuck[identity - pass->locators] = true;
	}
}

/*
 * Count the pass, before anybody can see that what it was for is done.
 */
static void
CountPass(PassState *pass, instr_time began)
{
	instr_time	took;

	INSTR_TIME_SET_CURRENT(took);
	INSTR_TIME_SUBTRACT(took, began);
	pass->took_us = INSTR_TIME_GET_MICROSEC(took);

	LWLockAcquire(&LazyDropCtl->lock, LW_EXCLUSIVE);
	pg_atomic_fetch_add_u64(&LazyDropCtl->passes, 1);
	pg_atomic_fetch_add_u64(&LazyDropCtl->buffers_invalidated,
							pass->invalidated);
	LazyDropCtl->last_pass = GetCurrentTimestamp();
	LazyDropCtl->last_pass_us = pass->took_us;
	LazyDropCtl->last_pass_buffers = pass->invalidated;
	LWLockRelease(&LazyDropCtl->lock);
}

/*
 * Mark the entries whose buffers are gone, and give up the others.  Tells how many
 * of each kind were done.
 */
static void
FinishPass(PassState *pass, int *nrelations, int *ndatabases)
{
	int			n = 0;

	for (int i = 0; i < pass->nlocators; i++)
	{
		if (!pass->stuck[i])
			pass->locators[n++] = pass->locators[i];
	}
	LazyDropBuffersAreGone(pass->owner, pass->locators, n, nrelations, ndatabases);
	if (n < pass->nlocators)
		LazyDropDisownEntries(pass->owner);
}

static void
DisownOnError(int code, Datum arg)
{
	/* An error does not release locks before we are called; all are ours. */
	LWLockReleaseAll();
	LazyDropDisownEntries(DatumGetUInt32(arg));
}

/*
 * Invalidate the buffers of every entry that nobody owns, and of those that
 * LazyDropOwnEntries may take from others.  Returns whether any entry was done.
 *
 * The caller holds no LWLock.  It may hold interrupts.  When it can be
 * interrupted and is, the entries stay, and nobody owns them.  With no_oom, nothing
 * is settled when there is no memory, and otherwise that is an error.
 */
bool
LazyDropPass(int64 steal_before, LazyDropMatch matches, const void *arg,
			 bool no_oom)
{
	PassState  *pass;
	int			room;
	instr_time	began;
	volatile int nrelations = 0;
	volatile int ndatabases = 0;

	room = pg_atomic_read_u32(&LazyDropCtl->nburied.value);
	if (room == 0)
		return false;
	pass = AllocatePass(room, no_oom);
	if (pass == NULL)
		return false;

	INSTR_TIME_SET_CURRENT(began);
	pass->owner = LazyDropOwnEntries(steal_before, matches, arg,
									 pass->locators, room, &pass->nlocators);
	if (pass->owner != 0)
	{
		PG_ENSURE_ERROR_CLEANUP(DisownOnError, UInt32GetDatum(pass->owner));
		{
			int			n_rels;
			int			n_dbs;

			PreparePass(pass);
			if (am_lazydrop_worker)
				INJECTION_POINT("lazydrop-pass", NULL);

			VisitHeaders(pass);
			RevisitPinned(pass);
			if (am_lazydrop_worker)
				INJECTION_POINT("lazydrop-pass-end", NULL);
			CountPass(pass, began);
			FinishPass(pass, &n_rels, &n_dbs);
			nrelations = n_rels;
			ndatabases = n_dbs;
		}
		PG_END_ENSURE_ERROR_CLEANUP(DisownOnError,
									UInt32GetDatum(pass->owner));

		if (lazydrop_log_passes)
			ereport(LOG,
					(errmsg("lazy drop pass complete: %d relations and %d database directories, invalidated %lld of %d buffers in %.3f ms",
							nrelations, ndatabases,
							(long long) pass->invalidated, NBuffers,
							pass->took_us / 1000.0)));
	}

	pfree(pass);
	return nrelations + ndatabases > 0;
}
