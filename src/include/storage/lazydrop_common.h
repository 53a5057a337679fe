/*-------------------------------------------------------------------------
 *
 * lazydrop_common.h
 *	  Functions that the lazy drop, the buffer cache's policy and the advisor
 *	  share.
 *
 * Copyright (c) 2026, LazyDrop developers
 *
 * src/include/storage/lazydrop_common.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef LAZYDROP_COMMON_H
#define LAZYDROP_COMMON_H

#include "datatype/timestamp.h"
#include "lib/stringinfo.h"

/* storage/lazydrop/lazydrop_common.c */
extern int64 LazyDropNow(void);
extern void LazyDropWakeWorker(void);
extern void LazyDropBeginShow(StringInfo buf);
extern void LazyDropShowTimestamp(StringInfo buf, const char *name,
								  TimestampTz value);

#endif							/* LAZYDROP_COMMON_H */
