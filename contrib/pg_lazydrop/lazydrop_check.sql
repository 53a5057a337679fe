-- contrib/pg_lazydrop/lazydrop_check.sql
--
-- Prints OK, WARNING, CRITICAL or UNKNOWN, the reasons, and performance data as plugins of
-- Nagios do.  The limits are ages in seconds, and a number of drops done as in stock.
-- Run it as: psql -XAtq -v ON_ERROR_STOP=1 -v warning=60 -v critical=600 -v fallbacks=0 -f lazydrop_check.sql
-- lazydrop_check.sh does that, and sets the exit status.
--
-- Copyright (c) 2026, LazyDrop developers

-- The owner of the database may have created operators and functions of these names.
SELECT pg_catalog.set_config('search_path', 'pg_catalog, pg_temp', false) AS search_path,
       pg_catalog.set_config('statement_timeout', '30s', false) AS timeout \gset
\if :{?warning} \else \set warning 60 \endif
\if :{?critical} \else \set critical 600 \endif
\if :{?fallbacks} \else \set fallbacks 0 \endif
WITH stats AS MATERIALIZED (
  SELECT current_setting('lazydrop.stats', true)::jsonb AS s
), pending AS (
  SELECT s,
         coalesce((s ->> 'oldest_age_ms')::numeric, 0) / 1000 AS age,
         s ->> 'worker_pid' IS NOT NULL AS has_worker,
         (s ->> 'pending_relations')::int +
         (s ->> 'pending_databases')::int AS entries,
         (s ->> 'max_pending')::int AS max_entries,
         (s ->> 'pending_bytes')::bigint AS bytes,
         (s ->> 'sync_fallbacks')::bigint AS fallbacks
    FROM stats
)
SELECT CASE WHEN s IS NULL THEN 'UNKNOWN - this is not a LazyDrop server'
       ELSE
         CASE WHEN age > :critical THEN 'CRITICAL'
              WHEN age > :warning OR NOT has_worker OR
                   entries >= 0.8 * max_entries OR fallbacks > :fallbacks THEN 'WARNING'
              ELSE 'OK' END ||
         format(' - %s pending, %s of files, oldest %s s%s%s%s',
                entries, pg_size_pretty(bytes), round(age, 1),
                CASE WHEN NOT has_worker THEN ', no worker' END,
                CASE WHEN entries >= 0.8 * max_entries THEN
                          format(', room for %s', max_entries) END,
                CASE WHEN fallbacks > :fallbacks THEN
                          format(', %s drops done as in stock since %s',
                                 fallbacks, s ->> 'stats_reset') END) ||
         format('|pending=%s;%s;;0;%s bytes=%sB age=%ss;%s;%s;0 fallbacks=%sc',
                entries, ceil(0.8 * max_entries) - 1, max_entries, bytes, round(age, 1),
                :warning, :critical, fallbacks)
       END
  FROM pending;
