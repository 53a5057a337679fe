/*-------------------------------------------------------------------------
 *
 * lazydrop_advisor_memory.c
 *	  The memory that shared_buffers and the file-system cache can have.
 *
 * Copyright (c) 2026, LazyDrop developers
 *
 * IDENTIFICATION
 *	  src/backend/storage/advisor/lazydrop_advisor_memory.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include <unistd.h>

#include "storage/fd.h"
#include "storage/lazydrop_advisor.h"

/*
 * Return the memory of the machine, in bytes; PG_INT64_MAX if it is not known.
 */
static int64
PhysicalMemory(void)
{
#if defined(_SC_PHYS_PAGES) && defined(_SC_PAGESIZE)
	long		pages = sysconf(_SC_PHYS_PAGES);
	long		page_size = sysconf(_SC_PAGESIZE);

	if (pages > 0 && page_size > 0)
		return (int64) pages * page_size;
#endif
	return PG_INT64_MAX;
}

#ifdef __linux__
/*
 * Return the limit that a control group's file contains, in bytes;
 * PG_INT64_MAX if there is no such file or no limit ("max", or a huge number).
 */
static int64
ReadLimit(const char *path)
{
	FILE	   *file = AllocateFile(path, "r");
	long long	limit;
	int64		result = PG_INT64_MAX;

	if (file == NULL)
		return result;
	if (fscanf(file, "%lld", &limit) == 1 && limit > 0)
		result = limit;
	FreeFile(file);
	return result;
}

/*
 * Return the lowest limit of a control group and of those that contain it.
 * Within a container, the group's path may be that outside of it, so the root
 * is looked at as well.
 */
static int64
LowestLimit(const char *root, char *group, const char *const *names)
{
	int64		lowest = PG_INT64_MAX;

	for (;;)
	{
		char	   *slash;

		for (int i = 0; names[i] != NULL; i++)
		{
			char		path[MAXPGPATH];

			snprintf(path, sizeof(path), "%s%s/%s", root, group, names[i]);
			lowest = Min(lowest, ReadLimit(path));
		}
		slash = strrchr(group, '/');
		if (slash == NULL)
			return lowest;
		*slash = '\0';
	}
}

/*
 * Return whether "memory" is one of the controllers in a list with commas.
 */
static bool
HasMemory(char *controllers)
{
	char	   *state;

	for (char *name = strtok_r(controllers, ",", &state); name != NULL;
		 name = strtok_r(NULL, ",", &state))
	{
		if (strcmp(name, "memory") == 0)
			return true;
	}
	return false;
}

/*
 * Return the limit of the control groups of this process, in bytes;
 * PG_INT64_MAX if there is none.  A line of the file is
 * hierarchy:controllers:path; the second version has no controllers there.
 */
static int64
ControlGroupLimit(void)
{
	static const char *const v1[] = {"memory.limit_in_bytes", NULL};
	static const char *const v2[] = {"memory.max", "memory.high", NULL};
	FILE	   *file = AllocateFile("/proc/self/cgroup", "r");
	char		line[MAXPGPATH];
	int64		lowest = PG_INT64_MAX;

	if (file == NULL)
		return lowest;
	while (fgets(line, sizeof(line), file) != NULL)
	{
		char	   *controllers = strchr(line, ':');
		char	   *group = controllers ? strchr(controllers + 1, ':') : NULL;
		int64		limit;

		if (group == NULL)
			continue;
		*controllers++ = '\0';
		*group++ = '\0';
		group[strcspn(group, "\n")] = '\0';
		if (controllers[0] == '\0')
			limit = LowestLimit("/sys/fs/cgroup", group, v2);
		else if (HasMemory(controllers))
			limit = LowestLimit("/sys/fs/cgroup/memory", group, v1);
		else
			continue;
		lowest = Min(lowest, limit);
	}
	FreeFile(file);
	return lowest;
}
#endif

/*
 * Return the memory that this server can have, in bytes: that of the machine,
 * or the limit of its control group.  PG_INT64_MAX if it is not known.
 */
int64
LazyDropAdvisorMemory(void)
{
	int64		memory = PhysicalMemory();

#ifdef __linux__
	memory = Min(memory, ControlGroupLimit());
#endif
	return memory;
}
