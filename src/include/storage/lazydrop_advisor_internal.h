/*-------------------------------------------------------------------------
 *
 * lazydrop_advisor_internal.h
 *	  Declarations that the files of the advisor share.
 *
 * See src/backend/storage/advisor/README.  The part about pools uses nothing
 * of the server but its type names, so that bench/advisor can use it alone.
 *
 * Copyright (c) 2026, LazyDrop developers
 *
 * src/include/storage/lazydrop_advisor_internal.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef LAZYDROP_ADVISOR_INTERNAL_H
#define LAZYDROP_ADVISOR_INTERNAL_H

/* How a page was accessed: without a ring, or with one of these. */
typedef enum LazyDropAdvisorAccess
{
	LAZYDROP_ADVISOR_NORMAL,
	LAZYDROP_ADVISOR_BULKREAD,
	LAZYDROP_ADVISOR_BULKWRITE,
	LAZYDROP_ADVISOR_VACUUM,
} LazyDropAdvisorAccess;

#define LAZYDROP_ADVISOR_NUM_ACCESSES	(LAZYDROP_ADVISOR_VACUUM + 1)

/* Kind of a sample. */
typedef enum LazyDropAdvisorKind
{
	LAZYDROP_ADVISOR_LOOKUP,	/* a page was looked up */
	LAZYDROP_ADVISOR_RECENT,	/* a page was found without looking it up */
	LAZYDROP_ADVISOR_ZEROED,	/* the same, but not read if missing */
	LAZYDROP_ADVISOR_EXTEND,	/* a page was added to a relation */
	LAZYDROP_ADVISOR_FORGET,	/* a page lost its buffer, not needed */
	LAZYDROP_ADVISOR_TRUNCATE,	/* so did all of the fork from this page on */
	LAZYDROP_ADVISOR_DROP,		/* so did all forks of the relation */
} LazyDropAdvisorKind;

/*
 * A sampled page.  A relation is identified by a hash of its names, except for
 * the lowest bits, which are the fork: two relations with the same hash share
 * their pages.
 */
#define LAZYDROP_ADVISOR_FORK_MASK	3

typedef struct LazyDropAdvisorSample
{
	uint32		rel;
	uint32		block;
	uint32		rel_blocks;		/* size of a bulk read's fork, or 0 */
	uint16		lookups;		/* by one process in a row, or almost so */
	uint8		kind;			/* a LazyDropAdvisorKind */
	uint8		access;			/* a LazyDropAdvisorAccess ... */
} LazyDropAdvisorSample;

/* ... to which these are added when a lookup found no buffer, and when the
 * process has set lazydrop.read_once */
#define LAZYDROP_ADVISOR_MISSED		0x80
#define LAZYDROP_ADVISOR_ONCE		0x40
#define LAZYDROP_ADVISOR_ACCESS_MASK	0x3f

/* ----------------------------------------------------------------
 *		Simulated pools, lazydrop_advisor_pool.c
 * ----------------------------------------------------------------
 */

/* The policy that a pool follows, and the size of its sample. */
typedef struct LazyDropAdvisorModel
{
	double		rate;			/* part of the pages that it receives */
	bool		two_classes;	/* that of lazydrop.scan_resistance */
	int			ring_blocks[LAZYDROP_ADVISOR_NUM_ACCESSES];
	int			ring_least;		/* of a bulk read that may pin no more */
	int			pinners;		/* processes that share the buffers for pins */
} LazyDropAdvisorModel;

/* as BM_MAX_USAGE_COUNT */
#define LAZYDROP_ADVISOR_MAX_USAGE	5

typedef struct LazyDropAdvisorFrame
{
	uint64		page;			/* LazyDropAdvisorPage */
	int32		next;			/* in the chain, or of the free ones; or -1 */
	uint8		usage;
	uint8		class;
	bool		used;
} LazyDropAdvisorFrame;

/* a slot of a ring */
typedef struct LazyDropAdvisorSlot
{
	uint64		page;
	bool		used;
} LazyDropAdvisorSlot;

#define LAZYDROP_ADVISOR_MAX_RING	32

typedef struct LazyDropAdvisorPool
{
	const LazyDropAdvisorModel *model;
	double		buffers;		/* of the pool that this is a miniature of */
	int32		nframes;
	bool		filled;			/* there have been no free frames */
	uint32		nbuckets;		/* a power of two */
	int32		free;			/* first of a chain, or -1 */
	int32		nused;			/* frames that have a page */
	int32		nmain;			/* frames of the main class */
	int32		hand;
	int32		main_hand;
	LazyDropAdvisorFrame *frames;
	int32	   *buckets;
	uint32	   *ghost;
	uint32		nghost_sets;

	LazyDropAdvisorSlot rings[LAZYDROP_ADVISOR_NUM_ACCESSES][LAZYDROP_ADVISOR_MAX_RING];
	int			ring_next[LAZYDROP_ADVISOR_NUM_ACCESSES];
} LazyDropAdvisorPool;

typedef enum LazyDropAdvisorOutcome
{
	LAZYDROP_ADVISOR_HIT,
	LAZYDROP_ADVISOR_MISS,
	LAZYDROP_ADVISOR_COLD,		/* a miss, before the pool was filled */
} LazyDropAdvisorOutcome;

extern Size LazyDropAdvisorPoolSize(int32 nframes);
extern void LazyDropAdvisorPoolInit(LazyDropAdvisorPool *pool,
									const LazyDropAdvisorModel *model,
									int32 nframes, double buffers, void *memory);
extern LazyDropAdvisorOutcome LazyDropAdvisorPoolLookup(LazyDropAdvisorPool *pool,
														const LazyDropAdvisorSample *sample,
														uint64 page);
extern void LazyDropAdvisorPoolForget(LazyDropAdvisorPool *pool,
									  const LazyDropAdvisorSample *sample);

/*
 * Relations that were dropped, and whose pages the pools still have.  It is a
 * hash table that is never more than half full.
 */
#define LAZYDROP_ADVISOR_MAX_DROPS	1024

typedef struct LazyDropAdvisorDrops
{
	int			n;
	int			samples;		/* since the pools were searched */
	uint32		rel[2 * LAZYDROP_ADVISOR_MAX_DROPS];	/* or 0 */
} LazyDropAdvisorDrops;

extern void LazyDropAdvisorPoolForgetDropped(LazyDropAdvisorPool *pool,
											 const LazyDropAdvisorDrops *drops);
extern void LazyDropAdvisorAddDrop(LazyDropAdvisorDrops *drops, uint32 rel);
extern uint64 LazyDropAdvisorPage(const LazyDropAdvisorSample *sample);
extern uint32 LazyDropAdvisorRelOf(uint64 page);
extern uint32 LazyDropAdvisorBlockOf(uint64 page);
extern int	LazyDropAdvisorQuarter(uint64 page);

/* ----------------------------------------------------------------
 *		All pools, and the estimates, lazydrop_advisor_estimate.c
 * ----------------------------------------------------------------
 */

#define LAZYDROP_ADVISOR_SIZES	8

/* sizes as parts of shared_buffers; one of them is 1 */
extern const double LazyDropAdvisorFactors[LAZYDROP_ADVISOR_SIZES];

#define LAZYDROP_ADVISOR_REAL	3	/* index of that one */

/* the two policies: that of the clock sweep, and that of two classes */
#define LAZYDROP_ADVISOR_POLICIES	2

/* independent samples, each with a pool of its own */
#define LAZYDROP_ADVISOR_QUARTERS	4

/*
 * Sums of a time.  They are doubles, because some of them decay, and nothing
 * else may be here (LazyDropAdvisorAdd).
 */
typedef struct LazyDropAdvisorSums
{
	/* of the sample */
	double		misses[LAZYDROP_ADVISOR_SIZES][LAZYDROP_ADVISOR_POLICIES][LAZYDROP_ADVISOR_QUARTERS];
	double		cold[LAZYDROP_ADVISOR_SIZES][LAZYDROP_ADVISOR_POLICIES];	/* see README, A9 */
	double		real[LAZYDROP_ADVISOR_QUARTERS];	/* misses of the server */
	double		lookups[LAZYDROP_ADVISOR_QUARTERS]; /* repeats count once */
	double		samples;		/* that were taken from the queue */
	double		dropped;		/* for which there was no room */

	/* of all pages, from pg_stat_io */
	double		hits;
	double		reads;			/* in pages */
	double		read_time;		/* in milliseconds */
	double		seconds;
} LazyDropAdvisorSums;

/* An estimated number of reads per second, of pages. */
typedef struct LazyDropAdvisorEstimate
{
	double		reads;
	double		error;			/* of this, up or down, 95 times of 100 */
} LazyDropAdvisorEstimate;

/* known sizes of the relations that were last read with a ring */
#define LAZYDROP_ADVISOR_NUM_BULKREADS	64

typedef struct LazyDropAdvisorBulkRead
{
	uint32		rel;
	uint32		blocks;
} LazyDropAdvisorBulkRead;

typedef struct LazyDropAdvisorPools
{
	LazyDropAdvisorModel model[LAZYDROP_ADVISOR_POLICIES];
	/* by hash */
	LazyDropAdvisorBulkRead bulkreads[LAZYDROP_ADVISOR_NUM_BULKREADS];
	LazyDropAdvisorDrops drops;
	int32		nframes;		/* of all pools */
	bool		full[LAZYDROP_ADVISOR_SIZES];	/* all pools have been */
	bool		anew;			/* sums begin anew, since one has become so */
	LazyDropAdvisorPool pool[LAZYDROP_ADVISOR_SIZES][LAZYDROP_ADVISOR_POLICIES][LAZYDROP_ADVISOR_QUARTERS];
} LazyDropAdvisorPools;

extern int32 LazyDropAdvisorFrames(Size memory, int32 buffers);
extern Size LazyDropAdvisorPoolsSize(int32 frames);
extern void LazyDropAdvisorPoolsInit(LazyDropAdvisorPools *pools, int32 frames,
									 int32 buffers, void *memory);
extern void LazyDropAdvisorFeed(LazyDropAdvisorPools *pools,
								const LazyDropAdvisorSample *sample,
								LazyDropAdvisorSums *interval,
								LazyDropAdvisorSums *sums);
extern void LazyDropAdvisorForgetDropped(LazyDropAdvisorPools *pools);
extern double LazyDropAdvisorFilled(const LazyDropAdvisorPools *pools, int size);
extern void LazyDropAdvisorAddIO(LazyDropAdvisorSums *sums,
								 const LazyDropAdvisorSums *interval);
extern void LazyDropAdvisorAdd(LazyDropAdvisorSums *sums,
							   const LazyDropAdvisorSums *more, double decay);
extern void LazyDropAdvisorGetCurve(const LazyDropAdvisorSums *sums, double rate,
									int policy, int real_policy,
									LazyDropAdvisorEstimate curve[LAZYDROP_ADVISOR_SIZES]);

/* ----------------------------------------------------------------
 *		What to do, lazydrop_advisor_verdict.c
 * ----------------------------------------------------------------
 */

typedef enum LazyDropAdvisorVerdict
{
	LAZYDROP_ADVISOR_UNKNOWN,	/* not enough has been seen */
	LAZYDROP_ADVISOR_KEEP,		/* the present size is the one to have */
	LAZYDROP_ADVISOR_INCREASE,	/* a larger one reads less */
	LAZYDROP_ADVISOR_REDUCIBLE, /* a smaller one would do */
	LAZYDROP_ADVISOR_BEYOND,	/* no size that fits helps, and much is read */
} LazyDropAdvisorVerdict;

/* What is known of a policy, to decide by. */
typedef struct LazyDropAdvisorEvidence
{
	LazyDropAdvisorEstimate curve[LAZYDROP_ADVISOR_SIZES];	/* per second */
	double		lookups;		/* per second, of all pages */
	double		rate;			/* part of the pages that is sampled */
	double		samples;
	double		dropped;
	double		seconds;		/* of the sums */
	double		filled[LAZYDROP_ADVISOR_SIZES]; /* part of the pools, to 1 */
	double		elapsed;		/* since they were empty */
	double		buffers;		/* of the server */
	double		memory;			/* of the machine, in buffers */
} LazyDropAdvisorEvidence;

typedef struct LazyDropAdvisorDecision
{
	LazyDropAdvisorVerdict verdict;
	int			size;			/* the one to have */
	double		wait;			/* seconds until enough has been seen, at
								 * most, or -1 if that is not known */
} LazyDropAdvisorDecision;

extern LazyDropAdvisorDecision LazyDropAdvisorDecide(const LazyDropAdvisorEvidence *evidence);

#endif							/* LAZYDROP_ADVISOR_INTERNAL_H */
