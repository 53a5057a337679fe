/*-------------------------------------------------------------------------
 *
 * lazydrop_compat.h
 *	  What differs between PostgreSQL 17, 18 and 19.
 *
 * The code is written for 18.  No other file looks at the version, but for whole
 * functions about something that a major does not have (LAZYDROP_HAVE_AIO).
 *
 * What another major lacks is defined as 18 has it.  What it has, but in another way,
 * has a name of ours for all of them: PostgreSQL's own files see this header, too.
 *
 * Copyright (c) 2026, LazyDrop developers
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

/* Injection points have an argument since 18; none of ours uses it. */
#if PG_VERSION_NUM < 180000
#define LAZYDROP_INJECTION_POINT(name) INJECTION_POINT(name)
#else
#define LAZYDROP_INJECTION_POINT(name) INJECTION_POINT(name, NULL)
#endif

/* On 17 all reads are synchronous: there is none to wait for (rule R1). */
#if PG_VERSION_NUM >= 180000
#define LAZYDROP_HAVE_AIO
#endif

/* Pages read, in what pg_stat_io has: 17 counts these, and 18 bytes. */
#if PG_VERSION_NUM < 180000
#define LazyDropPagesRead(stats, object, context) \
	((stats)->counts[object][context][IOOP_READ])
#else
#define LazyDropPagesRead(stats, object, context) \
	((stats)->bytes[object][context][IOOP_READ] / BLCKSZ)
#endif

/* What the ring of a bulk read has beyond 256 kB: since 18, room for reading ahead. */
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
 * The path of a relation's fork.  That of 17 is palloc'd, which a process that looks for
 * space in a critical section may not do (rule R15).
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

/* the same of a relation that is not a temporary one */
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
 * The state of a buffer header.  In a variable that is too small for it, the upper half
 * would be lost without a word.
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
 * Unlock a header, and write its state, of which the caller has changed flags and the
 * usage count at most; "old" is what LockBufHdr has returned.  Up to 18, UnlockBufHdr
 * writes the state that it is given.  That of 19 writes none.
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
	/* others may take or release content locks meanwhile */
	UnlockBufHdrExt(buf, old, state & ~old, old & ~state, 0);
#endif
}

/*
 * Free buffers.  19 has no list of them: the clock sweep finds them.
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
 * Take a tranche of LWLocks, or name one that another process has taken.
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
	/* It wants a role, which is none of a worker without a database. */
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
