/*-------------------------------------------------------------------------
 *
 * lazydrop_cache_policy.h
 *	  Constants of the clock with two classes.
 *
 * They are shared by lazydrop_cache.c, which follows the policy, and by the
 * advisor, which simulates it (lazydrop_advisor_pool.c).  Rules C1-C9 are in
 * src/backend/storage/buffer/README.lazydrop.
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
 * A buffer's class, and how a buffer on probation was loaded.  A byte of zero
 * is on probation, loaded by a transaction that reads little.
 */
#define CLASS_MAIN			0x01
#define CLASS_RING			0x02	/* loaded by a process with a ring */
#define CLASS_BULK			0x04	/* loaded by a transaction reading much */
#define CLASS_TOUCH_SHIFT	3	/* of CLASS_BULK: number of touches, 3 bits */
#define CLASS_SECOND_LAP	0x40	/* the hand has spared it once */

/*
 * C2: main demotes if probation has less than 1 / PROBATION_SHARE of buffers
 */
#define PROBATION_SHARE		5

/* C3: without 1 / PROBATION_LEAST of the buffers, probation is not searched */
#define PROBATION_LEAST		16

/* C3: usage count at which a buffer on probation is still a victim */
#define EVICTABLE_USAGE		1

/* C3: reduction of a count below the largest in the hand's first lap */
#define FIRST_LAP_USAGE		3

/* C3: maximum number of buffers in use that one search skips */
#define PASSED_OVER_STEPS	256

/* C4: maximum number of buffers of main that one search looks at */
#define DEMOTION_STEPS		64

/* C6: loads after which a buffer's usage count is reset, at most ... */
#define MAX_RECENT_LOADS	64

/* ... and 1 / RECENT_SHARE of the buffers, for all processes together */
#define RECENT_SHARE		8

/* ... and at most 1 / RECENT_AGE of the buffers, in loads of all processes */
#define RECENT_AGE			2

#endif							/* LAZYDROP_CACHE_POLICY_H */
