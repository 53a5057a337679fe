# Copyright (c) 2026, LazyDrop developers

# version() and the log tell the fork, also where the program's version line is Debian's.
execute_after_dh_auto_configure:
	sed -i 's/^\(#define PG_VERSION_STR .*\)"$$/\1, LazyDrop @LAZYDROP@"/' build/src/include/pg_config.h
	grep -q '^#define PG_VERSION_STR .*LazyDrop' build/src/include/pg_config.h
