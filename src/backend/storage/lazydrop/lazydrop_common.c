/*-------------------------------------------------------------------------
 *
 * lazydrop_common.c
 *	  Small functions that several files need.
 *
 * Copyright (c) 2026, LazyDrop developers
 *
 * IDENTIFICATION
 *	  src/backend/storage/lazydrop/lazydrop_common.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "catalog/pg_type_d.h"
#include "portability/instr_time.h"
#include "storage/buf_internals.h"
#include "storage/latch.h"
#include "storage/lazydrop_internal.h"
#include "storage/proc.h"
#include "utils/datetime.h"
#include "utils/json.h"
#include "utils/memutils.h"

/* For fewer drops than this, a linear search is cheaper than bsearch. */
#define BSEARCH_THRESHOLD		8

bool		am_lazydrop_worker = false;

/*
 * Return the time in nanoseconds, by a clock that is never set back.
 */
int64
LazyDropNow(void)
{
	instr_time	now;

	INSTR_TIME_SET_CURRENT(now);
	return INSTR_TIME_GET_NANOSEC(now);
}

/*
 * Compare locators, for qsort and bsearch.  Any order would do.
 */
int
LazyDropCompareLocators(const void *a, const void *b)
{
	const RelFileLocator *l = a;
	const RelFileLocator *r = b;

	if (l->relNumber != r->relNumber)
		return l->relNumber < r->relNumber ? -1 : 1;
	if (l->dbOid != r->dbOid)
		return l->dbOid < r->dbOid ? -1 : 1;
	if (l->spcOid != r->spcOid)
		return l->spcOid < r->spcOid ? -1 : 1;
	return 0;
}

/*
 * Return whether a sorted array of buried identities covers a relation.  The
 * elements are either all relations or all databases.
 */
bool
LazyDropIsAmong(const RelFileLocator *relation,
				const RelFileLocator *sorted, int n)
{
	RelFileLocator key = *relation;

	Assert(n > 0);
	if (!RelFileNumberIsValid(sorted[0].relNumber))
		key.relNumber = InvalidRelFileNumber;

	if (n < BSEARCH_THRESHOLD)
	{
		for (int i = 0; i < n; i++)
		{
			if (RelFileLocatorEquals(sorted[i], key))
				return true;
		}
		return false;
	}
	return bsearch(&key, sorted, n, sizeof(RelFileLocator),
				   LazyDropCompareLocators) != NULL;
}

/*
 * Return the number of the buffer that contains a page, or -1.  It may be used
 * for another page by now.
 */
int
LazyDropLookUpBuffer(const BufferTag *tag)
{
	BufferTag	key = *tag;
	uint32		hash = BufTableHashCode(&key);
	LWLock	   *partition_lock = BufMappingPartitionLock(hash);
	int			buf_id;

	LWLockAcquire(partition_lock, LW_SHARED);
	buf_id = BufTableLookup(&key, hash);
	LWLockRelease(partition_lock);
	return buf_id;
}

/*
 * Return whether the lazy drop worker is running.
 */
bool
LazyDropHaveWorker(void)
{
	return (ProcNumber) pg_atomic_read_u32(&LazyDropCtl->worker) != INVALID_PROC_NUMBER;
}

/*
 * Wake the worker, if it is running.  The caller has completed its entries
 * before (rule R7).  A worker that is just starting looks for entries first.
 */
void
LazyDropWakeWorker(void)
{
	ProcNumber	worker;

	pg_memory_barrier();
	worker = (ProcNumber) pg_atomic_read_u32(&LazyDropCtl->worker);
	if (worker != INVALID_PROC_NUMBER)
		SetLatch(&GetPGProcByNumber(worker)->procLatch);
}

/*
 * Prepare a static buffer for the value of a setting, which stays there until
 * the next call for it.
 */
void
LazyDropBeginShow(StringInfo buf)
{
	if (buf->data == NULL)
	{
		MemoryContext old_context = MemoryContextSwitchTo(TopMemoryContext);

		initStringInfo(buf);
		MemoryContextSwitchTo(old_context);
	}
	resetStringInfo(buf);
}

/*
 * Append a member of a JSON object, after others.
 */
void
LazyDropShowTimestamp(StringInfo buf, const char *name, TimestampTz value)
{
	char		encoded[MAXDATELEN + 1];

	appendStringInfo(buf, ", \"%s\": \"%s\"", name,
					 JsonEncodeDateTime(encoded, TimestampTzGetDatum(value),
										TIMESTAMPTZOID, NULL));
}
