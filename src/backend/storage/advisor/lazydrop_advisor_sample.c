/*-------------------------------------------------------------------------
 *
 * lazydrop_advisor_sample.c
 *	  Sampling of page accesses, and their transfer to the advisor's worker.
 *
 * Rules A1 to A4 are in README.  No function here takes a lock, waits,
 * allocates memory or fails.
 *
 * Copyright (c) 2026, LazyDrop developers
 *
 * IDENTIFICATION
 *	  src/backend/storage/advisor/lazydrop_advisor_sample.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "common/hashfn.h"
#include "miscadmin.h"
#include "storage/ipc.h"
#include "storage/latch.h"
#include "storage/lazydrop_advisor.h"
#include "storage/lazydrop_advisor_shared.h"
#include "storage/lazydrop_cache.h"
#include "storage/lazydrop_common.h"
#include "storage/proc.h"
#include "storage/shmem.h"
#include "utils/guc.h"
#include "utils/timestamp.h"
#include "utils/wait_event.h"

StaticAssertDecl(MAX_FORKNUM <= LAZYDROP_ADVISOR_FORK_MASK,
				 "a fork should fit into the lowest bits of a relation's hash");
StaticAssertDecl(LAZYDROP_ADVISOR_MAX_USAGE == BM_MAX_USAGE_COUNT,
				 "usage counts should be simulated as they are");
StaticAssertDecl((int) LAZYDROP_ADVISOR_SIZES == (int) LAZYDROP_ADVICE_SIZES,
				 "what is simulated should be what is shown");

/*
 * default of lazydrop.advisor_memory: this part of shared_buffers, but no less
 * and no more than these numbers of kilobytes
 */
#define MEMORY_SHARE 200
#define MEMORY_LEAST 128
#define MEMORY_MOST 4096

/* the queue has at most 1 / QUEUE_SHARE of lazydrop.advisor_memory */
#define QUEUE_SHARE			4

/* A3: time after which the worker no longer waits for a batch, in milliseconds */
#define ABANDONED_MS		10000

/* A2: lookups of sampled pages after which a batch is handed over */
#define MAX_LOOKUPS			64

/* A1: pages found without a lookup after which their number is handed over */
#define MAX_RECENT			4096

bool		lazydrop_advisor = false;
int			lazydrop_advisor_memory = -1;
int			lazydrop_advisor_decay = 3600;

uint32		lazydrop_advisor_threshold = 0;

LazyDropAdvisorShared *LazyDropAdvisorCtl = NULL;

static char *lazydrop_advice;

/* samples that this process has not yet handed over */
static LazyDropAdvisorSample samples[LAZYDROP_ADVISOR_BATCH];
static int	nsamples;
static int	nlookups;
static int	nrecent;			/* found without a lookup, sampled or not */
static LazyDropAdvisorSample *last_lookup;
static bool initialized = false;

/* ----------------------------------------------------------------
 *		Start-up
 * ----------------------------------------------------------------
 */

static void
SetThreshold(bool on)
{
	lazydrop_advisor_threshold = on && LazyDropAdvisorCtl != NULL &&
		IsPostmasterEnvironment ? LazyDropAdvisorCtl->threshold : 0;
}

static void
AssignAdvisor(bool newval, void *extra)
{
	SetThreshold(newval);
}

static bool
CheckMemory(int *newval, void **extra, GucSource source)
{
	if (*newval != -1 && *newval < MEMORY_LEAST)
	{
		GUC_check_errdetail("\"%s\" must be -1 or at least %d kB.",
							"lazydrop.advisor_memory", MEMORY_LEAST);
		return false;
	}
	return true;
}

/*
 * Return the memory for samples and pools, in bytes.
 */
static Size
AdvisorMemory(void)
{
	int			kilobytes = lazydrop_advisor_memory;

	if (kilobytes < 0)
		kilobytes = Min(MEMORY_MOST,
						Max(MEMORY_LEAST, NBuffers * (BLCKSZ / 1024.0) / MEMORY_SHARE));
	return (Size) kilobytes * 1024;
}

/*
 * Define the settings.
 */
void
LazyDropAdvisorDefineSettings(void)
{
	DefineCustomBoolVariable("lazydrop.advisor",
							 "Enables finding out what other sizes of shared_buffers would do.",
							 "The result is shown by lazydrop.advice.",
							 &lazydrop_advisor,
							 false,
							 PGC_SIGHUP,
							 0,
							 NULL, AssignAdvisor, NULL);

	DefineCustomIntVariable("lazydrop.advisor_memory",
							"Sets the memory for samples and simulated pools of lazydrop.advisor.",
							"-1 means 0.5% of \"shared_buffers\", from 128kB to 4MB. A quarter of it, at most, is shared memory; the rest is used while lazydrop.advisor is on.",
							&lazydrop_advisor_memory,
							-1, -1, 64 * 1024,
							PGC_POSTMASTER,
							GUC_UNIT_KB,
							CheckMemory, NULL, NULL);

	DefineCustomIntVariable("lazydrop.advisor_decay",
							"Sets the time in which the weight of what lazydrop.advisor has seen falls to 1/e.",
							NULL,
							&lazydrop_advisor_decay,
							3600, 1, 30 * 24 * 3600,
							PGC_SIGHUP,
							GUC_UNIT_S,
							NULL, NULL, NULL);

	DefineCustomStringVariable("lazydrop.advice",
							   "Shows what other sizes of shared_buffers would do, as JSON.",
							   NULL,
							   &lazydrop_advice,
							   "",
							   PGC_INTERNAL,
							   GUC_NO_SHOW_ALL | GUC_NO_RESET_ALL |
							   GUC_NOT_IN_SAMPLE | GUC_DISALLOW_IN_FILE |
							   GUC_SUPERUSER_ONLY,
							   NULL, NULL, LazyDropAdvisorShow);
}

static uint32
NumBatches(void)
{
	Size		room = AdvisorMemory() / QUEUE_SHARE;
	uint32		n = 1;

	while (n * 2 * sizeof(LazyDropAdvisorBatch) <= room)
		n *= 2;
	return n;
}

/*
 * Return the memory that the queue leaves to the pools.
 */
Size
LazyDropAdvisorPoolsMemory(void)
{
	return AdvisorMemory() - NumBatches() * sizeof(LazyDropAdvisorBatch);
}

/*
 * Return the size of shared memory.  It is allocated even if the advisor is
 * off, so that it can be switched on.
 */
Size
LazyDropAdvisorShmemSize(void)
{
	return add_size(sizeof(LazyDropAdvisorShared) + 2 * PG_CACHE_LINE_SIZE,
					mul_size(NumBatches(), sizeof(LazyDropAdvisorBatch)));
}

/*
 * Return the slot for a position in the queue.
 */
static LazyDropAdvisorBatch *
BatchAt(uint64 position)
{
	LazyDropAdvisorShared *ctl = LazyDropAdvisorCtl;
	LazyDropAdvisorBatch *batches = (LazyDropAdvisorBatch *)
		TYPEALIGN(PG_CACHE_LINE_SIZE, (char *) ctl + sizeof(LazyDropAdvisorShared));

	return &batches[position & (ctl->nbatches - 1)];
}

/*
 * Allocate and initialize shared memory, or attach to it.
 */
void
LazyDropAdvisorShmemInit(void)
{
	LazyDropAdvisorShared *ctl;
	bool		found;
	char	   *start;

	start = ShmemInitStruct("Lazy Drop Advisor", LazyDropAdvisorShmemSize(), &found);
	ctl = (LazyDropAdvisorShared *) TYPEALIGN(PG_CACHE_LINE_SIZE, start);
	LazyDropAdvisorCtl = ctl;
	if (!found)
	{
		memset(ctl, 0, sizeof(LazyDropAdvisorShared));
		pg_atomic_init_u64(&ctl->put.value, 0);
		pg_atomic_init_u64(&ctl->taken.value, 0);
		pg_atomic_init_u64(&ctl->dropped, 0);
		pg_atomic_init_u64(&ctl->recent_hits, 0);
		pg_atomic_init_u32(&ctl->worker, (uint32) INVALID_PROC_NUMBER);
		ctl->frames = LazyDropAdvisorFrames(LazyDropAdvisorPoolsMemory(), NBuffers);
		ctl->threshold = (uint32) Min((double) ctl->frames * LAZYDROP_ADVISOR_QUARTERS /
									  NBuffers * PG_UINT32_MAX, PG_UINT32_MAX);
		ctl->nbatches = NumBatches();
		ctl->wait_event = WaitEventExtensionNew("LazyDropAdvisor");
		SpinLockInit(&ctl->mutex);
		ctl->stats_reset = GetCurrentTimestamp();
		for (uint32 i = 0; i < ctl->nbatches; i++)
			pg_atomic_init_u64(&BatchAt(i)->state, i);
	}
	SetThreshold(lazydrop_advisor);
}

/* ----------------------------------------------------------------
 *		The queue (rule A3)
 * ----------------------------------------------------------------
 */

/*
 * Hand over the samples, or drop them if there is no room.
 */
static void
PutBatch(void)
{
	LazyDropAdvisorShared *ctl = LazyDropAdvisorCtl;
	uint64		position = pg_atomic_read_u64(&ctl->put.value);
	uint64		ready;
	LazyDropAdvisorBatch *batch;
	uint32		worker;

	for (;;)
	{
		uint64		state;

		batch = BatchAt(position);
		state = pg_atomic_read_u64(&batch->state);
		if (state == position)
		{
			if (pg_atomic_compare_exchange_u64(&ctl->put.value, &position, position + 1))
				break;
		}
		else if ((int64) (state - position) < 0)
		{
			/* the batch of the previous round has not been taken */
			pg_atomic_fetch_add_u64(&ctl->dropped, nsamples);
			nsamples = nlookups = 0;
			last_lookup = NULL;
			return;
		}
		else
			position = pg_atomic_read_u64(&ctl->put.value);
	}

	/* an injection point would attach to shared memory, too late at exit */
	if (!proc_exit_inprogress)
		LAZYDROP_INJECTION_POINT("lazydrop-advisor-claimed");

	batch->nsamples = nsamples;
	memcpy(batch->samples, samples, nsamples * sizeof(LazyDropAdvisorSample));
	ready = position;
	if (!pg_atomic_compare_exchange_u64(&batch->state, &ready, position + 1))
		pg_atomic_fetch_add_u64(&ctl->dropped, nsamples);	/* it was skipped */
	nsamples = nlookups = 0;
	last_lookup = NULL;

	/* The worker checks by itself, but too rarely for a burst. */
	if (position % Max(ctl->nbatches / 4, 1) == 0)
	{
		worker = pg_atomic_read_u32(&ctl->worker);
		if (worker != (uint32) INVALID_PROC_NUMBER)
			SetLatch(&GetPGProcByNumber((ProcNumber) worker)->procLatch);
	}
}

/*
 * Return the next batch, or NULL.  Only the worker may call this.
 */
LazyDropAdvisorBatch *
LazyDropAdvisorNextBatch(void)
{
	LazyDropAdvisorShared *ctl = LazyDropAdvisorCtl;
	uint64		position = pg_atomic_read_u64(&ctl->taken.value);
	LazyDropAdvisorBatch *batch = BatchAt(position);

	if (pg_atomic_read_u64(&batch->state) != position + 1)
		return NULL;
	pg_read_barrier();
	return batch;
}

/*
 * Release a batch that the worker has processed.
 */
void
LazyDropAdvisorBatchTaken(LazyDropAdvisorBatch *batch)
{
	LazyDropAdvisorShared *ctl = LazyDropAdvisorCtl;
	uint64		position = pg_atomic_read_u64(&ctl->taken.value);

	pg_atomic_write_u64(&ctl->taken.value, position + 1);
	pg_memory_barrier();
	pg_atomic_write_u64(&batch->state, position + ctl->nbatches);
}

/*
 * Skip the next slot if a process claimed it ABANDONED_MS ago, and has put no
 * batch there.  "now" is from LazyDropNow.  Only the worker may call this,
 * again and again while there is no next batch.
 */
void
LazyDropAdvisorSkipAbandoned(int64 now)
{
	static uint64 waits_for = 0;
	static int64 waits_since = 0;
	LazyDropAdvisorShared *ctl = LazyDropAdvisorCtl;
	uint64		position = pg_atomic_read_u64(&ctl->taken.value);
	uint64		ready = position;

	if (pg_atomic_read_u64(&ctl->put.value) == position)
		waits_since = 0;
	else if (waits_since == 0 || waits_for != position)
	{
		waits_for = position;
		waits_since = now;
	}
	else if (now - waits_since >= ABANDONED_MS * INT64CONST(1000000) &&
			 pg_atomic_compare_exchange_u64(&BatchAt(position)->state, &ready,
											position + ctl->nbatches))
		pg_atomic_write_u64(&ctl->taken.value, position + 1);
}

/* ----------------------------------------------------------------
 *		Samples (rules A1 and A2)
 * ----------------------------------------------------------------
 */

static void
AddRecentHits(void)
{
	pg_atomic_fetch_add_u64(&LazyDropAdvisorCtl->recent_hits, nrecent);
	nrecent = 0;
}

static void
AdvisorShmemExit(int code, Datum arg)
{
	if (nsamples > 0)
		PutBatch();
	if (nrecent > 0)
		AddRecentHits();
	lazydrop_advisor_threshold = 0;
	initialized = false;
}

static uint32
HashRelation(RelFileLocator rlocator, ForkNumber forknum)
{
	uint64		hash;

	hash = murmurhash64(((uint64) rlocator.relNumber << 32) | rlocator.dbOid);
	hash = murmurhash64(hash + rlocator.spcOid);
	return ((uint32) hash & ~LAZYDROP_ADVISOR_FORK_MASK) | (uint32) forknum;
}

/*
 * Return a new sample, and hand over the batch first if it is full.
 */
static LazyDropAdvisorSample *
NewSample(uint32 rel, BlockNumber block, LazyDropAdvisorKind kind)
{
	LazyDropAdvisorSample *sample;

	if (unlikely(!initialized))
	{
		on_shmem_exit(AdvisorShmemExit, 0);
		initialized = true;
	}
	if (nsamples == LAZYDROP_ADVISOR_BATCH)
		PutBatch();
	sample = &samples[nsamples++];
	memset(sample, 0, sizeof(LazyDropAdvisorSample));
	sample->rel = rel;
	sample->block = block;
	sample->kind = kind;
	return sample;
}

static uint8
AccessOf(IOContext io_context)
{
	uint8		once = lazydrop_read_once ? LAZYDROP_ADVISOR_ONCE : 0;

	switch (io_context)
	{
		case IOCONTEXT_BULKREAD:
			return LAZYDROP_ADVISOR_BULKREAD | once;
		case IOCONTEXT_BULKWRITE:
			return LAZYDROP_ADVISOR_BULKWRITE | once;
		case IOCONTEXT_VACUUM:
			return LAZYDROP_ADVISOR_VACUUM | once;
		default:
			return LAZYDROP_ADVISOR_NORMAL | once;
	}
}

/*
 * Return the last sample of a page that has not been handed over, or NULL.
 */
static LazyDropAdvisorSample *
FindSample(uint32 rel, BlockNumber block)
{
	for (int i = nsamples - 1; i >= 0; i--)
	{
		if (samples[i].block == block && samples[i].rel == rel)
			return &samples[i];
	}
	return NULL;
}

/*
 * A sampled page is looked up.  If this process has looked it up recently,
 * only count the lookup.  Otherwise an index's root, if sampled, would fill
 * the queue.
 */
void
LazyDropAdvisorNoteLookup(const BufferTag *tag, SMgrRelation smgr, IOContext io_context)
{
	uint32		rel = HashRelation(BufTagGetRelFileLocator(tag), BufTagGetForkNum(tag));
	uint8		access = AccessOf(io_context);

	if (++nlookups > MAX_LOOKUPS && nsamples > 0)
		PutBatch();

	/* do not count across another event for the page */
	last_lookup = FindSample(rel, tag->blockNum);
	if (last_lookup != NULL && last_lookup->kind == LAZYDROP_ADVISOR_LOOKUP &&
		(last_lookup->access & ~LAZYDROP_ADVISOR_MISSED) == access)
	{
		last_lookup->lookups++;
		return;
	}

	last_lookup = NewSample(rel, tag->blockNum, LAZYDROP_ADVISOR_LOOKUP);
	last_lookup->lookups = 1;
	last_lookup->access = access;
	if ((access & LAZYDROP_ADVISOR_ACCESS_MASK) == LAZYDROP_ADVISOR_BULKREAD)
	{
		BlockNumber nblocks = smgr->smgr_cached_nblocks[BufTagGetForkNum(tag)];

		if (nblocks != InvalidBlockNumber)
			last_lookup->rel_blocks = nblocks;
	}
}

/*
 * A page was found in the buffer where it had been before.  A smaller pool
 * would have read it, and pg_stat_io does not count it.
 */
void
LazyDropAdvisorNoteRecent(BufferTag *tag)
{
	LazyDropAdvisorSample *sample;
	uint32		rel;

	if (++nrecent >= MAX_RECENT)
		AddRecentHits();
	if (BufTableHashCode(tag) >= lazydrop_advisor_threshold)
		return;

	if (++nlookups > MAX_LOOKUPS && nsamples > 0)
		PutBatch();
	rel = HashRelation(BufTagGetRelFileLocator(tag), BufTagGetForkNum(tag));
	sample = FindSample(rel, tag->blockNum);
	if (sample != NULL && sample->kind <= LAZYDROP_ADVISOR_EXTEND)
	{
		/* with scan resistance, that counts as a use */
		if (lazydrop_scan_resistance)
			sample->lookups++;
		return;
	}
	sample = NewSample(rel, tag->blockNum, LAZYDROP_ADVISOR_RECENT);
	sample->lookups = 1;
}

/*
 * A page was looked up that would not have been read, because it is going to
 * be replaced.
 */
void
LazyDropAdvisorNoteZeroed(SMgrRelation smgr, ForkNumber forknum, BlockNumber block)
{
	if (last_lookup != NULL && last_lookup->block == block &&
		last_lookup->lookups == 1 &&
		last_lookup->rel == HashRelation(smgr->smgr_rlocator.locator, forknum))
		last_lookup->kind = LAZYDROP_ADVISOR_ZEROED;
}

/*
 * The page that was looked up last had no buffer.
 */
void
LazyDropAdvisorNoteMiss(const BufferTag *tag)
{
	if (last_lookup != NULL && last_lookup->block == tag->blockNum)
		last_lookup->access |= LAZYDROP_ADVISOR_MISSED;
}

/*
 * A page was added to a relation.
 */
void
LazyDropAdvisorNoteExtend(BufferTag *tag, IOContext io_context)
{
	LazyDropAdvisorSample *sample;

	if (BufTableHashCode(tag) >= lazydrop_advisor_threshold)
		return;
	sample = NewSample(HashRelation(BufTagGetRelFileLocator(tag), BufTagGetForkNum(tag)),
					   tag->blockNum, LAZYDROP_ADVISOR_EXTEND);
	sample->lookups = 1;
	sample->access = AccessOf(io_context);
}

/*
 * A sampled page has lost its buffer, because it is no longer needed.
 */
void
LazyDropAdvisorNoteForget(const BufferTag *tag)
{
	(void) NewSample(HashRelation(BufTagGetRelFileLocator(tag), BufTagGetForkNum(tag)),
					 tag->blockNum, LAZYDROP_ADVISOR_FORGET);
}

/*
 * Relations are dropped.  A larger pool than the server's may still have pages
 * of them.
 */
void
LazyDropAdvisorDropped(SMgrRelation *rels, int nrels)
{
	if (lazydrop_advisor_threshold == 0)
		return;
	for (int i = 0; i < nrels; i++)
	{
		if (!RelFileLocatorBackendIsTemp(rels[i]->smgr_rlocator))
			(void) NewSample(HashRelation(rels[i]->smgr_rlocator.locator, MAIN_FORKNUM),
							 0, LAZYDROP_ADVISOR_DROP);
	}
}

/*
 * Forks of a relation, which is not temporary, are truncated to nblocks.
 */
void
LazyDropAdvisorTruncated(SMgrRelation rel, const ForkNumber *forknum, int nforks,
						 const BlockNumber *nblocks)
{
	if (lazydrop_advisor_threshold == 0)
		return;
	for (int i = 0; i < nforks; i++)
		(void) NewSample(HashRelation(rel->smgr_rlocator.locator, forknum[i]),
						 nblocks[i], LAZYDROP_ADVISOR_TRUNCATE);
}
