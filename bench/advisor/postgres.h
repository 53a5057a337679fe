/*
 * What the advisor's simulation needs of PostgreSQL's header of this name, so that it
 * can be compiled without a server.
 *
 * Copyright (c) 2026, LazyDrop developers
 */
#ifndef POSTGRES_H
#define POSTGRES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

typedef uint8_t uint8;
typedef uint16_t uint16;
typedef uint32_t uint32;
typedef uint64_t uint64;
typedef int32_t int32;
typedef int64_t int64;
typedef size_t Size;

#define Min(x, y)		((x) < (y) ? (x) : (y))
#define Max(x, y)		((x) > (y) ? (x) : (y))
#define lengthof(array)	((int) (sizeof(array) / sizeof((array)[0])))
#define UINT64CONST(x)	UINT64_C(x)

#endif							/* POSTGRES_H */
