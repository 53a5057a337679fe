-- contrib/pg_lazydrop/lazydrop_check.sql
--
-- Prints OK, WARNING, CRITICAL or UNKNOWN, and what is pending.  The limits are in seconds.
-- Run it as: psql -XAtq -v ON_ERROR_STOP=1 -v warning=60 -v critical=600 -f lazydrop_check.sql
--
-- Copyright (c) 2026, LazyDrop developers

-- The owner of the database may have created operators and functions of these names.
SELECT pg_catalog.set_config('search_path', 'pg_catalog, pg_temp', false) AS search_path \gset
\if :{?warning} \else \set warning 60 \endif
\if :{?critical} \else \set critical 600 \endif
WITH stats AS MATERIALIZED (
  SELECT current_setting('lazydrop.stats', true)::jsonb AS s
), pending AS (
  SELECT s,
         coalesce((s ->> 'oldest_age_ms')::numeric, 0) / 1000 AS age,
         s ->> 'worker_pid' IS NOT NULL AS has_worker,
         (s ->> 'pending_relations')::int +
         (s ->> 'pending_databases')::int AS entries,
         (s ->> 'pending_bytes')::bigint AS bytes
    FROM stats
)
SELECT CASE WHEN s IS NULL THEN 'UNKNOWN'
            WHEN age >= :critical THEN 'CRITICAL'
            WHEN age >= :warning OR NOT has_worker THEN 'WARNING'
            ELSE 'OK' END ||
       CASE WHEN s IS NULL THEN ' - this is not a LazyDrop server'
            ELSE format(' - %s pending, %s of files, oldest %s s%s',
                        entries, pg_size_pretty(bytes), round(age, 1),
                        CASE WHEN NOT has_worker THEN ', no worker' END)
       END
  FROM pending;
