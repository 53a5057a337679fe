/*-------------------------------------------------------------------------
 *
 * lazydrop_cache_policy.h
 *	  Decisions of the buffer cache's policy: 2Q with clocks.
 *
 * The decisions are written here, once, as functions of a buffer's class and
 * usage count.  The server (lazydrop_cache.c), the advisor's miniatures
 * (lazydrop_advisor_pool.c) and with them the simulator in bench/simulator
 * differ only in how they find the buffer.  Rules C1-C9, and the effect of each
 * constant, are in src/backend/storage/buffer/README.lazydrop.
 *
 * Nothing here has a side effect, and c.h is all that it needs.
 *
 * Copyright (c) 2026, LazyDrop developers
 *
 * src/include/storage/lazydrop_cache_policy.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef LAZYDROP_CACHE_POLICY_H
#define LAZYDROP_CACHE_POLICY_H

/*
 * A buffer's class.  Zero, as in new shared memory, is on probation, not
 * visited since the load.
 */
#define CLASS_MAIN			0x01
#define CLASS_RING			0x02	/* loaded by a process with a ring */
#define CLASS_ONCE			0x04	/* loaded with lazydrop.read_once */
#define CLASS_LAP			0x08	/* spared in one lap of the hand ... */
#define CLASS_LAPS			0x18	/* ... or two */

/* C2: probation has about 1 / PROBATION_SHARE of a pool that is full */
#define PROBATION_SHARE		5

/* C3: usage count that spares a page at the hand's first visit */
#define SPARED_USAGE		2

/* C3: maximum number of buffers that one search spares */
#define SPARED_STEPS		16

/* C3: maximum number of buffers that one search promotes, if main has room */
#define PROMOTED_STEPS		1024

/*
 * C3: number of pinned buffers after which a search ends.  What earlier
 * searches of the process have not used is added, up to the second number.
 */
#define PINNED_STEPS		64
#define PINNED_STEPS_SAVED	1024

/* C4: buffers of main that are looked at for one page, at most */
#define MAIN_STEPS			10

/* C4: the same, for buffers of both classes */
#define MAIN_POSITIONS		64

/* C4: usage count of a page that has displaced another one from main */
#define ENTRY_USAGE			1

/* C5: the ghost remembers 1 / GHOST_SHARE as many pages as there are buffers */
#define GHOST_SHARE			2

/* The fate of a buffer on probation that the hand has reached. */
typedef enum LazyDropVerdict
{
	LAZYDROP_EVICT,				/* the page is the victim */
	LAZYDROP_SPARE,				/* set its count to 0, and its class as below */
	LAZYDROP_PROMOTE,			/* put it into main, with its count */
	LAZYDROP_REPLACE,			/* put it into main if one of main can leave,
								 * once in a search; otherwise, set its count
								 * to 0 */
} LazyDropVerdict;

/*
 * Return the number of buffers from which on main is full.
 */
static inline int
LazyDropMainLimit(int nbuffers)
{
	return nbuffers - nbuffers / PROBATION_SHARE;
}

/*
 * Rule C3: return what happens to an unpinned buffer on probation that the
 * hand has reached.
 */
static inline LazyDropVerdict
LazyDropVisit(uint8 buf_class, uint32 usage_count, bool main_is_full)
{
	if (buf_class & CLASS_ONCE)
		return LAZYDROP_EVICT;
	if ((buf_class & CLASS_LAPS) == 0)
	{
		if (usage_count < SPARED_USAGE)
			return LAZYDROP_EVICT;
		return main_is_full ? LAZYDROP_SPARE : LAZYDROP_PROMOTE;
	}
	if (usage_count == 0)
		return LAZYDROP_EVICT;
	return (buf_class & CLASS_LAPS) < 2 * CLASS_LAP ? LAZYDROP_SPARE : LAZYDROP_REPLACE;
}

/*
 * Rule C3: return whether a search takes the least used of the buffers that it
 * has spared or, if there is none, the next buffer on probation.
 */
static inline bool
LazyDropSearchedEnough(int spared, int promoted)
{
	return spared >= SPARED_STEPS || promoted >= PROMOTED_STEPS;
}

/*
 * Return the class of a buffer on probation that is spared.
 */
static inline uint8
LazyDropSparedClass(uint8 buf_class)
{
	return (buf_class & CLASS_LAPS) < 2 * CLASS_LAP ? buf_class + CLASS_LAP : buf_class;
}

/*
 * Rule C4: return whether an unpinned buffer of main leaves it, because the
 * main hand has reached it and a page wants its place.  Otherwise the hand
 * lowers its usage count by 1.
 */
static inline bool
LazyDropLeavesMain(uint32 usage_count)
{
	return usage_count == 0;
}

/*
 * Rule C5: return whether the ghost remembers a page that is evicted.
 */
static inline bool
LazyDropIsRemembered(uint8 buf_class)
{
	return (buf_class & (CLASS_RING | CLASS_ONCE)) == 0;
}

/*
 * Rule C8: return whether a ring may reuse a buffer: a ring has loaded the
 * page, and it is not in main, nor on its way there.
 */
static inline bool
LazyDropIsOfRing(uint8 buf_class)
{
	return (buf_class & (CLASS_RING | CLASS_MAIN | CLASS_LAPS)) == CLASS_RING;
}

#endif							/* LAZYDROP_CACHE_POLICY_H */
