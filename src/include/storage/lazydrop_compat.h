/*-------------------------------------------------------------------------
 *
 * lazydrop_compat.h
 *	  Differences between PostgreSQL 17, 18 and 19.
 *
 * The code is written for 18.  No other file depends on the version, except for
 * whole functions about a feature that a major version lacks
 * (LAZYDROP_HAVE_AIO).
 *
 * If another major version lacks a definition, it is made here as in 18.  If
 * the definition differs, there is a name with our prefix for all versions,
 * because PostgreSQL's own files include this header, too.
 *
 * Portions Copyright (c) 2026, LazyDrop developers
 * Portions Copyright (c) 1996-2025, PostgreSQL Global Development Group
 * Portions Copyright (c) 1994, Regents of the University of California
 *
 * src/include/storage/lazydrop_compat.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef LAZYDROP_COMPAT_H
#define LAZYDROP_COMPAT_H

#include "catalog/pg_tablespace_d.h"
#include "common/relpath.h"
#include "miscadmin.h"
#include "pgstat.h"
#include "storage/buf_internals.h"
#include "storage/latch.h"
#include "storage/lwlock.h"
#include "storage/proc.h"
#include "utils/backend_status.h"
#include "utils/injection_point.h"

#if PG_VERSION_NUM < 170000 || PG_VERSION_NUM >= 200000
#error "LazyDrop is for PostgreSQL 17, 18 and 19"
#endif

/* ---------------------------------------------------------------------
 * Names
 * ---------------------------------------------------------------------
 */

#if PG_VERSION_NUM < 180000
#define PG_TBLSPC_DIR "pg_tblspc"
#define PG_MODULE_MAGIC_EXT(...) PG_MODULE_MAGIC
#define ProcessStartupProcInterrupts() HandleStartupProcInterrupts()
#endif

#if PG_VERSION_NUM >= 190000
#define CHECKPOINT_IMMEDIATE CHECKPOINT_FAST
#endif

/* Injection points have an argument in 18 and later, which we do not use. */
#if PG_VERSION_NUM < 180000
#define LAZYDROP_INJECTION_POINT(name) INJECTION_POINT(name)
#else
#define LAZYDROP_INJECTION_POINT(name) INJECTION_POINT(name, NULL)
#endif

/* In 17, all reads are synchronous, and are not waited for (rule R1). */
#if PG_VERSION_NUM >= 180000
#define LAZYDROP_HAVE_AIO
#endif

/* Pages read, from pg_stat_io: 17 counts pages, and 18 bytes. */
#if PG_VERSION_NUM < 180000
#define LazyDropPagesRead(stats, object, context) \
	((stats)->counts[object][context][IOOP_READ])
#else
#define LazyDropPagesRead(stats, object, context) \
	((stats)->bytes[object][context][IOOP_READ] / BLCKSZ)
#endif

/* Size of a bulk read's ring beyond 256 kB: 18 and later read ahead. */
#if PG_VERSION_NUM < 180000
#define LazyDropRingReadAhead() 0
#else
#define LazyDropRingReadAhead() (io_combine_limit * effective_io_concurrency)
#endif

/* ---------------------------------------------------------------------
 * Paths
 * ---------------------------------------------------------------------
 */

/*
 * Path of a relation's fork.  17 allocates it with palloc, which a process that
 * looks for space in a critical section may not do (rule R15).
 */
#if PG_VERSION_NUM < 180000
typedef struct RelPathStr
{
	char		str[128];		/* the longest has 77 */
} RelPathStr;

static inline RelPathStr
LazyDropRelPath(RelFileLocatorBackend rlocator, ForkNumber forknum)
{
	RelFileLocator locator = rlocator.locator;
	bool		main_fork = forknum == MAIN_FORKNUM;
	RelPathStr	path;
	int			n;

	if (locator.spcOid == GLOBALTABLESPACE_OID)
		n = snprintf(path.str, sizeof(path.str), "global/");
	else if (locator.spcOid == DEFAULTTABLESPACE_OID)
		n = snprintf(path.str, sizeof(path.str), "base/%u/", locator.dbOid);
	else
		n = snprintf(path.str, sizeof(path.str), "%s/%u/%s/%u/", PG_TBLSPC_DIR,
					 locator.spcOid, TABLESPACE_VERSION_DIRECTORY, locator.dbOid);
	if (rlocator.backend != INVALID_PROC_NUMBER)
		n += snprintf(path.str + n, sizeof(path.str) - n, "t%d_", rlocator.backend);
	snprintf(path.str + n, sizeof(path.str) - n, "%u%s%s", locator.relNumber,
			 main_fork ? "" : "_", main_fork ? "" : forkNames[forknum]);

#ifdef USE_ASSERT_CHECKING
	if (CritSectionCount == 0)
	{
		char	   *same = relpath(rlocator, forknum);

		Assert(strcmp(path.str, same) == 0);
		pfree(same);
	}
#endif
	return path;
}
#else
#define LazyDropRelPath(rlocator, forknum) relpath(rlocator, forknum)
#endif

/* the same for a permanent relation */
static inline RelPathStr
LazyDropRelPathPerm(RelFileLocator locator, ForkNumber forknum)
{
	RelFileLocatorBackend rlocator = {locator, INVALID_PROC_NUMBER};

	return LazyDropRelPath(rlocator, forknum);
}

/* ---------------------------------------------------------------------
 * Buffer headers
 * ---------------------------------------------------------------------
 */

/*
 * Type of a buffer header's state.  A smaller type would silently lose the
 * upper half.
 */
#if PG_VERSION_NUM < 190000
typedef uint32 LazyDropBufState;
#else
typedef uint64 LazyDropBufState;
#endif
StaticAssertDecl(sizeof(((BufferDesc *) NULL)->state) == sizeof(LazyDropBufState),
				 "LazyDropBufState must be the state of a buffer header");
StaticAssertDecl(sizeof(LockBufHdr((BufferDesc *) NULL)) == sizeof(LazyDropBufState),
				 "LazyDropBufState must be what LockBufHdr returns");

static inline LazyDropBufState
LazyDropReadBufState(BufferDesc *buf)
{
#if PG_VERSION_NUM < 190000
	return pg_atomic_read_u32(&buf->state);
#else
	return pg_atomic_read_u64(&buf->state);
#endif
}

/* compare and exchange, without the header's lock */
static inline bool
LazyDropExchangeBufState(BufferDesc *buf, LazyDropBufState *expected,
						 LazyDropBufState state)
{
#if PG_VERSION_NUM < 190000
	return pg_atomic_compare_exchange_u32(&buf->state, expected, state);
#else
	return pg_atomic_compare_exchange_u64(&buf->state, expected, state);
#endif
}

/*
 * Add 1 to a usage count, which is less than the maximum.  The caller holds
 * the header's lock.
 */
static inline void
LazyDropRaiseUsage(BufferDesc *buf)
{
#if PG_VERSION_NUM < 190000
	pg_atomic_fetch_add_u32(&buf->state, BUF_USAGECOUNT_ONE);
#else
	pg_atomic_fetch_add_u64(&buf->state, BUF_USAGECOUNT_ONE);
#endif
}

/*
 * Unlock a header and write its state, in which the caller has changed only
 * flags and the usage count.  "old" is the state that LockBufHdr has returned.
 * Up to 18, UnlockBufHdr writes the given state.  In 19, it writes none.
 */
#if PG_VERSION_NUM < 190000
#define LAZYDROP_UNLOCK_TYPE void (BufferDesc *, uint32)
#else
#define LAZYDROP_UNLOCK_TYPE void (BufferDesc *)
#endif
#if defined(HAVE__BUILTIN_TYPES_COMPATIBLE_P) && !defined(__cplusplus)
StaticAssertDecl(__builtin_types_compatible_p(__typeof__(UnlockBufHdr), LAZYDROP_UNLOCK_TYPE),
				 "LazyDropUnlockBufHdr must know what UnlockBufHdr does");
#endif

static inline void
LazyDropUnlockBufHdr(BufferDesc *buf, LazyDropBufState old, LazyDropBufState state)
{
#if PG_VERSION_NUM < 190000
	UnlockBufHdr(buf, state);
#else
	/* Other processes may take or release content locks meanwhile. */
	UnlockBufHdrExt(buf, old, state & ~old, old & ~state, 0);
#endif
}

/*
 * Make a buffer available.  19 has no freelist; the clock sweep finds it.
 */
#if PG_VERSION_NUM < 190000
#define LazyDropFreeBuffer(buf) StrategyFreeBuffer(buf)
#define LazyDropHaveFreeBuffer() have_free_buffer()
#else
#define LazyDropFreeBuffer(buf) ((void) (buf))
#define LazyDropHaveFreeBuffer() false
#endif

/* ---------------------------------------------------------------------
 * Processes
 * ---------------------------------------------------------------------
 */

/*
 * Allocate an LWLock tranche, or name a tranche that another process has
 * allocated.
 */
static inline int
LazyDropNewTranche(const char *name)
{
#if PG_VERSION_NUM < 190000
	int			id = LWLockNewTrancheId();

	LWLockRegisterTranche(id, name);
	return id;
#else
	return LWLockNewTrancheId(name);
#endif
}

static inline void
LazyDropNameTranche(int id, const char *name)
{
#if PG_VERSION_NUM < 190000
	LWLockRegisterTranche(id, name);
#endif
}

/*
 * Set the checkpointer's latch, if there is one.
 */
static inline void
LazyDropWakeCheckpointer(void)
{
#if PG_VERSION_NUM < 180000
	if (ProcGlobal->checkpointerLatch)
		SetLatch(ProcGlobal->checkpointerLatch);
#else
	ProcNumber	checkpointer = ProcGlobal->checkpointerProc;

	if (checkpointer != INVALID_PROC_NUMBER)
		SetLatch(&GetPGProcByNumber(checkpointer)->procLatch);
#endif
}

/*
 * Show a background worker without a database and a role in pg_stat_activity.
 */
static inline void
LazyDropShowActivity(void)
{
	pgstat_beinit();
#if PG_VERSION_NUM < 180000
	/* It requires a role, which a worker without a database does not have. */
	InitializeSessionUserIdStandalone();
	pgstat_bestart();
	PGSTAT_BEGIN_WRITE_ACTIVITY(MyBEEntry);
	MyBEEntry->st_userid = InvalidOid;
	PGSTAT_END_WRITE_ACTIVITY(MyBEEntry);
#else
	pgstat_bestart_initial();
#endif
}

#endif							/* LAZYDROP_COMPAT_H */
