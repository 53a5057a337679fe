/*-------------------------------------------------------------------------
 *
 * competitors.c
 *	  The replacement policies that the simulator compares.
 *
 * The server's policy and stock's clock sweep are not written again here: the
 * functions at the top of this file call the advisor's simulated pool, which
 * shares the decisions with the server.  The other policies are written as
 * their authors describe them, and every pin is an access to all of them.
 *
 * A page is loaded into a free buffer while there is one.  Nothing is freed
 * here: the memory of a pool is freed when its replay has ended.
 *
 * Copyright (c) 2026, LazyDrop developers
 *
 * IDENTIFICATION
 *	  bench/simulator/competitors.c
 *
 *-------------------------------------------------------------------------
 */
#include "simulator.h"

#include "storage/lazydrop_advisor_internal.h"

/* ----------------------------------------------------------------
 *		LazyDrop, and the clock sweep of stock
 * ----------------------------------------------------------------
 */

typedef struct ServerPool
{
	LazyDropAdvisorModel model;
	LazyDropAdvisorPool pool;
	uint32		npages;
	bool	   *resident;		/* by page ... */
	bool		resident_valid; /* ... if nothing has been loaded since */
} ServerPool;

Positions	positions;

static ServerPool *
CreateServerPool(const Trace *trace, int32 nbuffers, bool two_classes)
{
	ServerPool *server = PoolAlloc(sizeof(ServerPool));

	server->model.rate = 1;
	server->model.two_classes = two_classes;
	server->model.pinners = 1;
	LazyDropAdvisorPoolInit(&server->pool, &server->model, nbuffers, nbuffers,
							PoolAlloc(LazyDropAdvisorPoolSize(nbuffers)));
	server->npages = trace->npages;
	server->resident = PoolAlloc(trace->npages * sizeof(bool));
	return server;
}

static void *
CreateLazyDrop(const Trace *trace, int32 nbuffers)
{
	return CreateServerPool(trace, nbuffers, true);
}

static void *
CreateStock(const Trace *trace, int32 nbuffers)
{
	return CreateServerPool(trace, nbuffers, false);
}

/*
 * Count the positions that the hands have passed during a load.  A probation
 * hand that is where it was has looked at the whole pool.  The main hand never
 * passes that many.
 */
static void
CountPositions(const LazyDropAdvisorPool *pool, int32 hand, int32 main_hand)
{
	int32		passed = (pool->hand - hand + pool->nframes) % pool->nframes;

	if (passed == 0)
		passed = pool->nframes;
	passed += (pool->main_hand - main_hand + pool->nframes) % pool->nframes;

	positions.loads++;
	positions.total += passed;
	positions.most = Max(positions.most, passed);
}

static bool
AccessServerPool(ServerPool *server, uint32 page, LazyDropAdvisorKind kind)
{
	LazyDropAdvisorSample sample = {
		.block = page,
		.lookups = 1,
		.kind = kind,
		.access = LAZYDROP_ADVISOR_NORMAL,
	};
	int32		hand = server->pool.hand;
	int32		main_hand = server->pool.main_hand;

	switch (LazyDropAdvisorPoolLookup(&server->pool, &sample, LazyDropAdvisorPage(&sample)))
	{
		case LAZYDROP_ADVISOR_HIT:
			return true;
		case LAZYDROP_ADVISOR_MISS:
			if (server->model.two_classes)
				CountPositions(&server->pool, hand, main_hand);
			break;
		case LAZYDROP_ADVISOR_COLD:
			break;
	}
	server->resident_valid = false;
	return false;
}

static bool
ServerPoolAccess(void *pool, uint32 page)
{
	return AccessServerPool(pool, page, LAZYDROP_ADVISOR_LOOKUP);
}

static bool
ServerPoolRecent(void *pool, uint32 page)
{
	return AccessServerPool(pool, page, LAZYDROP_ADVISOR_RECENT);
}

static bool
ServerPoolResident(void *pool, uint32 page)
{
	ServerPool *server = pool;

	if (!server->resident_valid)
	{
		memset(server->resident, 0, server->npages * sizeof(bool));
		for (int32 i = 0; i < server->pool.nframes; i++)
		{
			if (server->pool.frames[i].used)
				server->resident[LazyDropAdvisorBlockOf(server->pool.frames[i].page)] = true;
		}
		server->resident_valid = true;
	}
	return server->resident[page];
}

const Policy LazyDropPolicy = {
	"LazyDrop", CreateLazyDrop, ServerPoolAccess, ServerPoolRecent, ServerPoolResident
};

const Policy StockPolicy = {
	"stock", CreateStock, ServerPoolAccess, ServerPoolRecent, ServerPoolResident
};

/* ----------------------------------------------------------------
 *		A clock with one bit for each buffer
 * ----------------------------------------------------------------
 */

typedef struct Clock
{
	int32		nbuffers;
	int32		nused;
	int32		hand;
	uint32	   *page;			/* by buffer */
	bool	   *referenced;		/* by buffer */
	int32	   *buffer;			/* by page: number of the buffer + 1, or 0 */
} Clock;

static void
InitClock(Clock *clock, const Trace *trace, int32 nbuffers)
{
	clock->nbuffers = nbuffers;
	clock->page = PoolAlloc(nbuffers * sizeof(uint32));
	clock->referenced = PoolAlloc(nbuffers * sizeof(bool));
	clock->buffer = PoolAlloc(trace->npages * sizeof(int32));
}

static int32
AdvanceHand(Clock *clock)
{
	int32		i = clock->hand;

	clock->hand = i + 1 < clock->nbuffers ? i + 1 : 0;
	return i;
}

/*
 * Put a page into a buffer, which may have another page, or none.
 */
static void
FillBuffer(Clock *clock, int32 i, uint32 page)
{
	if (i < clock->nused)
		clock->buffer[clock->page[i]] = 0;
	else
		clock->nused++;
	clock->page[i] = page;
	clock->buffer[page] = i + 1;
	clock->referenced[i] = false;
}

/*
 * Second chance, as proposed on pgsql-hackers in 2026 instead of usage counts:
 * a page is loaded with the bit cleared, a hit sets it, and the hand clears it.
 */
static void *
CreateSecondChance(const Trace *trace, int32 nbuffers)
{
	Clock	   *clock = PoolAlloc(sizeof(Clock));

	InitClock(clock, trace, nbuffers);
	return clock;
}

static bool
SecondChanceAccess(void *pool, uint32 page)
{
	Clock	   *clock = pool;
	int32		i = clock->buffer[page] - 1;

	if (i >= 0)
	{
		clock->referenced[i] = true;
		return true;
	}

	i = clock->nused;
	if (i >= clock->nbuffers)
	{
		while (clock->referenced[i = AdvanceHand(clock)])
			clock->referenced[i] = false;
	}
	FillBuffer(clock, i, page);
	return false;
}

static bool
SecondChanceResident(void *pool, uint32 page)
{
	return ((Clock *) pool)->buffer[page] != 0;
}

const Policy SecondChancePolicy = {
	"second chance", CreateSecondChance, SecondChanceAccess, NULL, SecondChanceResident
};

/* ----------------------------------------------------------------
 *		Lists of pages
 * ----------------------------------------------------------------
 */

#define NUM_LISTS	3

/*
 * Circular lists, numbered from 1.  Each has an element of its own, which is
 * not a page: number npages plus its own number.
 */
typedef struct Lists
{
	uint32		npages;
	uint32	   *next;			/* by page, toward the tail */
	uint32	   *prev;
	uint8	   *list;			/* by page: the list that it is in, or 0 */
	int32		length[NUM_LISTS + 1];
} Lists;

static void
InitLists(Lists *lists, uint32 npages)
{
	Size		size = (npages + NUM_LISTS + 1) * sizeof(uint32);

	lists->npages = npages;
	lists->next = PoolAlloc(size);
	lists->prev = PoolAlloc(size);
	lists->list = PoolAlloc(npages);
	for (int list = 1; list <= NUM_LISTS; list++)
		lists->next[npages + list] = lists->prev[npages + list] = npages + list;
}

static void
RemoveFromList(Lists *lists, uint32 page)
{
	lists->next[lists->prev[page]] = lists->next[page];
	lists->prev[lists->next[page]] = lists->prev[page];
	lists->length[lists->list[page]]--;
	lists->list[page] = 0;
}

/*
 * Move a page, which may be in a list, to the head of one.
 */
static void
MoveToHead(Lists *lists, uint32 page, uint8 list)
{
	uint32		head = lists->npages + list;

	if (lists->list[page] != 0)
		RemoveFromList(lists, page);
	lists->list[page] = list;
	lists->length[list]++;
	lists->prev[page] = head;
	lists->next[page] = lists->next[head];
	lists->prev[lists->next[head]] = page;
	lists->next[head] = page;
}

/*
 * Return the last page of a list that is not empty.
 */
static uint32
Tail(const Lists *lists, uint8 list)
{
	return lists->prev[lists->npages + list];
}

/* ----------------------------------------------------------------
 *		Cooling stage
 * ----------------------------------------------------------------
 */

#define COOLING_SHARE	10

enum
{
	COOLING = 1,				/* a resident page that is in no list is hot */
};

/*
 * As proposed on pgsql-hackers in 2026, after LeanStore: the hand moves hot
 * pages that have not been used since it passed into a queue, so that the queue
 * has a tenth of the pool.  Victims come from its end.  A page that is used
 * while it is there is hot again.
 */
typedef struct CoolingPool
{
	Clock		clock;
	Lists		lists;
} CoolingPool;

static void *
CreateCooling(const Trace *trace, int32 nbuffers)
{
	CoolingPool *cooling = PoolAlloc(sizeof(CoolingPool));

	InitClock(&cooling->clock, trace, nbuffers);
	InitLists(&cooling->lists, trace->npages);
	return cooling;
}

static int32
CoolingVictim(CoolingPool *cooling)
{
	Clock	   *clock = &cooling->clock;
	Lists	   *lists = &cooling->lists;
	uint32		victim;

	while (lists->length[COOLING] < Max(1, clock->nbuffers / COOLING_SHARE))
	{
		int32		i = AdvanceHand(clock);

		if (clock->referenced[i])
			clock->referenced[i] = false;
		else if (lists->list[clock->page[i]] != COOLING)
			MoveToHead(lists, clock->page[i], COOLING);
	}
	victim = Tail(lists, COOLING);
	RemoveFromList(lists, victim);
	return clock->buffer[victim] - 1;
}

static bool
CoolingAccess(void *pool, uint32 page)
{
	CoolingPool *cooling = pool;
	Clock	   *clock = &cooling->clock;
	int32		i = clock->buffer[page] - 1;

	if (i >= 0)
	{
		clock->referenced[i] = true;
		if (cooling->lists.list[page] == COOLING)
			RemoveFromList(&cooling->lists, page);
		return true;
	}
	i = clock->nused < clock->nbuffers ? clock->nused : CoolingVictim(cooling);
	FillBuffer(clock, i, page);
	return false;
}

static bool
CoolingResident(void *pool, uint32 page)
{
	return ((CoolingPool *) pool)->clock.buffer[page] != 0;
}

const Policy CoolingPolicy = {
	"cooling", CreateCooling, CoolingAccess, NULL, CoolingResident
};

/* ----------------------------------------------------------------
 *		2Q
 * ----------------------------------------------------------------
 */

#define KIN_SHARE		4
#define KOUT_SHARE		2

enum
{
	A1IN = 1,					/* a queue */
	AM,							/* by time of the last use */
	A1OUT,						/* not resident */
};

/*
 * Johnson and Shasha, "2Q: A Low Overhead High Performance Buffer Management
 * Replacement Algorithm", 1994: the full version.
 */
typedef struct TwoQueues
{
	int32		nbuffers;
	Lists		lists;
} TwoQueues;

static void *
CreateTwoQueues(const Trace *trace, int32 nbuffers)
{
	TwoQueues  *queues = PoolAlloc(sizeof(TwoQueues));

	queues->nbuffers = nbuffers;
	InitLists(&queues->lists, trace->npages);
	return queues;
}

static bool
TwoQueuesResident(void *pool, uint32 page)
{
	uint8		list = ((TwoQueues *) pool)->lists.list[page];

	return list == A1IN || list == AM;
}

static void
TwoQueuesEvict(TwoQueues *queues)
{
	Lists	   *lists = &queues->lists;

	if (lists->length[A1IN] + lists->length[AM] < queues->nbuffers)
		return;
	if (lists->length[A1IN] > queues->nbuffers / KIN_SHARE || lists->length[AM] == 0)
	{
		MoveToHead(lists, Tail(lists, A1IN), A1OUT);
		if (lists->length[A1OUT] > queues->nbuffers / KOUT_SHARE)
			RemoveFromList(lists, Tail(lists, A1OUT));
	}
	else
		RemoveFromList(lists, Tail(lists, AM));
}

static bool
TwoQueuesAccess(void *pool, uint32 page)
{
	TwoQueues  *queues = pool;
	uint8		list = queues->lists.list[page];

	if (list == A1IN)
		return true;
	if (list != AM)
		TwoQueuesEvict(queues);
	MoveToHead(&queues->lists, page, list == 0 ? A1IN : AM);
	return list == AM;
}

const Policy TwoQueuesPolicy = {
	"2Q", CreateTwoQueues, TwoQueuesAccess, NULL, TwoQueuesResident
};

/* ----------------------------------------------------------------
 *		S3-FIFO
 * ----------------------------------------------------------------
 */

#define SMALL_SHARE		10
#define MAX_FREQUENCY	3

enum
{
	SMALL = 1,					/* the queues */
	MAIN,
	GHOST,						/* not resident */
};

/*
 * Yang et al., "FIFO Queues Are All You Need for Cache Eviction", 2023.
 */
typedef struct S3Fifo
{
	int32		nbuffers;
	int32		nsmall;
	uint8	   *frequency;		/* by page */
	Lists		lists;
} S3Fifo;

static void *
CreateS3Fifo(const Trace *trace, int32 nbuffers)
{
	S3Fifo	   *fifo = PoolAlloc(sizeof(S3Fifo));

	fifo->nbuffers = nbuffers;
	fifo->nsmall = nbuffers / SMALL_SHARE;
	fifo->frequency = PoolAlloc(trace->npages);
	InitLists(&fifo->lists, trace->npages);
	return fifo;
}

static bool
S3FifoResident(void *pool, uint32 page)
{
	uint8		list = ((S3Fifo *) pool)->lists.list[page];

	return list == SMALL || list == MAIN;
}

static void
EvictFromMain(S3Fifo *fifo)
{
	for (;;)
	{
		uint32		page = Tail(&fifo->lists, MAIN);

		if (fifo->frequency[page] == 0)
		{
			RemoveFromList(&fifo->lists, page);
			return;
		}
		fifo->frequency[page]--;
		MoveToHead(&fifo->lists, page, MAIN);
	}
}

/*
 * Free a place by evicting a page of the small queue, or of the main queue if a
 * page that moves there makes it too long.  If neither happens, the small queue
 * is empty afterward.
 *
 * The paper's pseudocode goes on until a page of the small queue is evicted,
 * though more and more places are free by then.  That is worse if most pages
 * move.
 */
static void
EvictFromSmall(S3Fifo *fifo)
{
	Lists	   *lists = &fifo->lists;
	int32		nmain = fifo->nbuffers - fifo->nsmall;

	while (lists->length[SMALL] > 0)
	{
		uint32		page = Tail(lists, SMALL);

		if (fifo->frequency[page] <= 1)
		{
			MoveToHead(lists, page, GHOST);
			if (lists->length[GHOST] > nmain)
				RemoveFromList(lists, Tail(lists, GHOST));
			return;
		}
		fifo->frequency[page] = 0;
		MoveToHead(lists, page, MAIN);
		if (lists->length[MAIN] > nmain)
		{
			EvictFromMain(fifo);
			return;
		}
	}
}

static bool
S3FifoAccess(void *pool, uint32 page)
{
	S3Fifo	   *fifo = pool;
	Lists	   *lists = &fifo->lists;
	bool		known = lists->list[page] == GHOST;

	if (S3FifoResident(fifo, page))
	{
		fifo->frequency[page] = Min(fifo->frequency[page] + 1, MAX_FREQUENCY);
		return true;
	}

	if (known)
		RemoveFromList(lists, page);
	while (lists->length[SMALL] + lists->length[MAIN] >= fifo->nbuffers)
	{
		if (lists->length[SMALL] >= fifo->nsmall || lists->length[MAIN] == 0)
			EvictFromSmall(fifo);
		else
			EvictFromMain(fifo);
	}
	fifo->frequency[page] = 0;
	MoveToHead(lists, page, known ? MAIN : SMALL);
	return false;
}

const Policy S3FifoPolicy = {
	"S3-FIFO", CreateS3Fifo, S3FifoAccess, NULL, S3FifoResident
};

/* ----------------------------------------------------------------
 *		Optimum
 * ----------------------------------------------------------------
 */

/*
 * Belady, "A study of replacement algorithms for a virtual-storage computer",
 * 1966: the victim is the page that is needed last.  No policy has fewer misses
 * in all, but another policy may have fewer misses of one group.
 *
 * Resident pages are in a heap; its root is needed last.
 */
typedef struct Optimum
{
	int32		nbuffers;
	int32		nused;
	uint32	   *next_use;		/* by access: when that page is needed again */
	Size		now;			/* accesses until now */
	uint32	   *heap;			/* pages */
	int32	   *place;			/* by page: index in the heap + 1, or 0 */
	uint32	   *needed;			/* by page: when it is needed */
} Optimum;

static void *
CreateOptimum(const Trace *trace, int32 nbuffers)
{
	Optimum    *optimum = PoolAlloc(sizeof(Optimum));

	optimum->nbuffers = nbuffers;
	optimum->next_use = PoolAlloc(trace->length * sizeof(uint32));
	optimum->heap = PoolAlloc(nbuffers * sizeof(uint32));
	optimum->place = PoolAlloc(trace->npages * sizeof(int32));
	optimum->needed = PoolAlloc(trace->npages * sizeof(uint32));

	/* "needed" has the use that follows, while going backward; 0 if none */
	for (Size i = trace->length; i-- > 0;)
	{
		uint32	   *needed = &optimum->needed[trace->accesses[i].page];

		optimum->next_use[i] = *needed != 0 ? *needed : UINT32_MAX;
		*needed = i;
	}
	return optimum;
}

static void
PutIntoHeap(Optimum *optimum, int32 i, uint32 page)
{
	optimum->heap[i] = page;
	optimum->place[page] = i + 1;
}

/*
 * Put a page into the heap at index i, or above it.
 */
static void
SiftUp(Optimum *optimum, int32 i, uint32 page)
{
	while (i > 0)
	{
		uint32		parent = optimum->heap[(i - 1) / 2];

		if (optimum->needed[parent] >= optimum->needed[page])
			break;
		PutIntoHeap(optimum, i, parent);
		i = (i - 1) / 2;
	}
	PutIntoHeap(optimum, i, page);
}

/*
 * Remove the root of a heap that is full, and put a page in the last place.
 */
static void
ReplaceRoot(Optimum *optimum, uint32 page)
{
	int32		last = optimum->nbuffers - 1;
	uint32		moved = optimum->heap[last];
	int32		i = 0;
	int32		child;

	optimum->place[optimum->heap[0]] = 0;
	while ((child = 2 * i + 1) < last)
	{
		if (child + 1 < last &&
			optimum->needed[optimum->heap[child + 1]] > optimum->needed[optimum->heap[child]])
			child++;
		if (optimum->needed[optimum->heap[child]] <= optimum->needed[moved])
			break;
		PutIntoHeap(optimum, i, optimum->heap[child]);
		i = child;
	}
	PutIntoHeap(optimum, i, moved);
	SiftUp(optimum, last, page);
}

static bool
OptimumAccess(void *pool, uint32 page)
{
	Optimum    *optimum = pool;
	int32		i = optimum->place[page] - 1;

	optimum->needed[page] = optimum->next_use[optimum->now++];
	if (i >= 0)
		SiftUp(optimum, i, page);
	else if (optimum->nused < optimum->nbuffers)
		SiftUp(optimum, optimum->nused++, page);
	else
		ReplaceRoot(optimum, page);
	return i >= 0;
}

static bool
OptimumResident(void *pool, uint32 page)
{
	return ((Optimum *) pool)->place[page] != 0;
}

const Policy OptimumPolicy = {
	"OPT", CreateOptimum, OptimumAccess, OptimumAccess, OptimumResident
};
