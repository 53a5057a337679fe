CREATE EXTENSION pg_lazydrop VERSION '1.0';
SELECT count(*) FROM pg_stat_lazydrop;
ALTER EXTENSION pg_lazydrop UPDATE;

\dx+ pg_lazydrop
\d+ pg_stat_lazydrop
\d+ pg_stat_lazydrop_cache
\d+ pg_lazydrop_pending

-- One row, and what SHOW lazydrop.stats shows: nothing happens meanwhile.
SELECT pg_lazydrop_drain();
PREPARE differences AS
WITH setting AS (
    SELECT current_setting('lazydrop.stats')::jsonb AS s
), view AS (
    SELECT to_jsonb(v) AS v FROM pg_stat_lazydrop AS v
)
SELECT key, s.value AS setting, v.value AS view
FROM setting, LATERAL jsonb_each(s) AS s
  FULL JOIN (SELECT key, value FROM view, LATERAL jsonb_each(v)) AS v USING (key)
WHERE s.value IS DISTINCT FROM v.value
  AND NOT (s.value IS NULL AND key IN ('oldest_age', 'checkpoint_wait_time', 'last_pass_time'))
  AND NOT (v.value IS NULL AND key IN ('oldest_age_ms', 'checkpoint_wait_ms', 'last_pass_ms'));
PREPARE others AS
SELECT checkpoint_wait_time = (s->>'checkpoint_wait_ms')::float8 AS checkpoint_wait,
       last_pass_time IS NOT DISTINCT FROM (s->>'last_pass_ms')::float8 AS last_pass,
       oldest_age IS NULL AND s->'oldest_age_ms' = 'null' AS oldest_age
FROM pg_stat_lazydrop, (SELECT current_setting('lazydrop.stats')::jsonb AS s) AS s;
EXECUTE differences;
EXECUTE others;

-- The buffer cache's, which are not counted while lazydrop.scan_resistance is off.
-- A server with assertions also counts the classes.
SELECT key, s.value AS setting, v.value AS view
FROM jsonb_each(current_setting('lazydrop.cache_stats')::jsonb) AS s
  FULL JOIN (SELECT key, value
             FROM pg_stat_lazydrop_cache AS c, LATERAL jsonb_each(to_jsonb(c))) AS v USING (key)
WHERE s.value IS DISTINCT FROM v.value AND key <> 'main_classes';
SELECT scan_resistance, buffers = (SELECT setting::int8 FROM pg_settings WHERE name = 'shared_buffers') AS buffers,
       main, probation = buffers AS probation, loads, evictions
FROM pg_stat_lazydrop_cache;

-- Counters start anew.
SELECT stats_reset AS reset_before FROM pg_stat_lazydrop \gset
SELECT pg_stat_lazydrop_reset();
SELECT stats_reset > :'reset_before' AS reset_cache FROM pg_stat_lazydrop_cache;
SELECT stats_reset > :'reset_before' AS reset, deferred_relations, passes, headers_visited,
       last_pass, last_pass_time, last_pass_headers, last_pass_buffers
FROM pg_stat_lazydrop;

-- The files of what has been dropped are removed; its buffers wait for lazydrop.pass_delay.
CREATE PROCEDURE wait_for_files() LANGUAGE plpgsql AS $$
BEGIN
    WHILE EXISTS (SELECT FROM pg_lazydrop_pending WHERE NOT files_done) LOOP
        PERFORM pg_sleep(0.01);
    END LOOP;
END $$;
CREATE TABLE dropped AS SELECT generate_series(1, 1000) AS a;
SELECT pg_relation_filenode('dropped') AS number,
       pg_relation_size('dropped') / current_setting('block_size')::int AS blocks \gset
SELECT now() AS before \gset
DROP TABLE dropped;
CALL wait_for_files();
SELECT tablespace = (SELECT dattablespace FROM pg_database WHERE datname = current_database()) AS tablespace,
       database = (SELECT oid FROM pg_database WHERE datname = current_database()) AS database,
       relfilenumber = :number AS relfilenumber,
       kind,
       since BETWEEN :'before' AND clock_timestamp() AS since,
       buffers_done, files_done, files > 0 AS files, bytes >= 0 AS bytes
FROM pg_lazydrop_pending;
SELECT pending_relations, pending_databases, oldest_age < '1 min' AS oldest_age, deferred_relations
FROM pg_stat_lazydrop;

-- A database has an entry for each tablespace.
CREATE TABLESPACE regress_lazydrop LOCATION '';
CREATE DATABASE regression_lazydrop;
SELECT oid AS database FROM pg_database WHERE datname = 'regression_lazydrop' \gset
DROP DATABASE regression_lazydrop;
CALL wait_for_files();
SELECT spcname, relfilenumber, kind, files_done
FROM pg_lazydrop_pending LEFT JOIN pg_tablespace AS t ON t.oid = tablespace
WHERE database = :database
ORDER BY spcname;

-- Not what has been dropped in the transaction itself.
BEGIN;
CREATE TABLE dropped AS SELECT 1 AS a;
SELECT pg_relation_filenode('dropped') AS number \gset
DROP TABLE dropped;
SELECT pg_lazydrop_drain('1 min');
SELECT count(*) FROM pg_lazydrop_pending;
COMMIT;
SELECT count(*) FROM pg_lazydrop_pending WHERE relfilenumber = :number;

-- Wait for it, the number of the first one included.
SELECT pg_lazydrop_drain(timeout => '30 s');
SELECT count(*) FROM pg_lazydrop_pending;
SELECT pending_relations, pending_databases, pending_files, pending_bytes, oldest_age,
       deferred_relations >= 2 AS deferred_relations, deferred_databases,
       passes > 0 AS passes, headers_visited >= last_pass_headers AS headers_visited,
       buffers_invalidated >= :blocks AS buffers_invalidated,
       files_removed > 0 AS files_removed,
       last_pass BETWEEN stats_reset AND clock_timestamp() AS last_pass,
       last_pass_time > 0 AS last_pass_time,
       last_pass_headers = (SELECT setting::int8 FROM pg_settings WHERE name = 'shared_buffers') AS last_pass_headers,
       last_pass_buffers >= 0 AS last_pass_buffers
FROM pg_stat_lazydrop;
-- The same when there was a pass.
EXECUTE differences;
EXECUTE others;
SELECT pg_lazydrop_drain('0');
SELECT pg_lazydrop_drain('infinity');
DROP TABLESPACE regress_lazydrop;

-- Bad input.
SELECT pg_lazydrop_drain('-1 ms');
SELECT pg_lazydrop_drain('-infinity');
SELECT pg_lazydrop_drain('1 day -25 hours');

-- Who may do what.
CREATE ROLE regress_lazydrop_nobody;
CREATE ROLE regress_lazydrop_monitor;
GRANT pg_monitor TO regress_lazydrop_monitor;
CREATE ROLE regress_lazydrop_operator;
GRANT EXECUTE ON FUNCTION pg_lazydrop_drain, pg_stat_lazydrop_reset TO regress_lazydrop_operator;
SET ROLE regress_lazydrop_nobody;
SELECT count(*) FROM pg_stat_lazydrop;
SELECT count(*) FROM pg_stat_lazydrop_cache;
SELECT count(*) FROM pg_lazydrop_pending;
SELECT pg_stat_get_lazydrop();
SELECT pg_stat_get_lazydrop_cache();
SELECT pg_lazydrop_get_pending();
SELECT pg_lazydrop_drain();
SELECT pg_stat_lazydrop_reset();
SET ROLE regress_lazydrop_monitor;
SELECT count(*) FROM pg_stat_lazydrop;
SELECT count(*) FROM pg_stat_lazydrop_cache;
SELECT count(*) FROM pg_lazydrop_pending;
SELECT pg_lazydrop_drain();
SELECT pg_stat_lazydrop_reset();
SET ROLE regress_lazydrop_operator;
SELECT pg_lazydrop_drain();
SELECT pg_stat_lazydrop_reset();
SELECT count(*) FROM pg_stat_lazydrop;
RESET ROLE;
REVOKE ALL ON FUNCTION pg_lazydrop_drain, pg_stat_lazydrop_reset FROM regress_lazydrop_operator;
DROP ROLE regress_lazydrop_nobody, regress_lazydrop_monitor, regress_lazydrop_operator;

-- The adviser on shared_buffers is off, and has seen nothing.
\d+ pg_lazydrop_advice
SELECT factor, shared_buffers = factor * pg_size_bytes(current_setting('shared_buffers')) AS shared_buffers,
       hit_ratio, reads, read_time, recent_hit_ratio, samples, samples_dropped
FROM pg_lazydrop_advice;
SELECT * FROM pg_lazydrop_advise();
SELECT period, scan_resistance, verdict FROM pg_lazydrop_advise(NULL);
SELECT verdict FROM pg_lazydrop_advise(1);
SELECT verdict FROM pg_lazydrop_advise(-9223372036854775808);
SELECT regexp_replace(plot, '^ *\S+ .B', 'size') AS plot FROM pg_lazydrop_advice_plot(5) AS plot;
SELECT width, count(*), min(length(plot)) AS from, max(length(plot)) AS to
FROM unnest('{-2147483648, 0, 1, 80, 2147483647, NULL}'::integer[]) AS width, pg_lazydrop_advice_plot(width) AS plot
GROUP BY width ORDER BY width;
SELECT memory, count(*) AS rows, pg_lazydrop_advice_reads(memory) AS reads
FROM unnest('{-9223372036854775808, -1, 0, 9223372036854775807, NULL}'::bigint[]) AS memory LEFT JOIN pg_lazydrop_advice_range(memory) ON true
GROUP BY memory ORDER BY memory;
SELECT DISTINCT memory, verdict
FROM unnest('{1099511627776, 9223372036854775807}'::bigint[]) AS memory, pg_lazydrop_advise(memory)
ORDER BY memory;
SELECT factor, disk_reads_min, disk_reads_max
FROM pg_lazydrop_advice_range(pg_size_bytes(current_setting('shared_buffers')));
SELECT since AS reset_before FROM pg_lazydrop_advice LIMIT 1 \gset
SELECT pg_lazydrop_advice_reset();
SELECT DISTINCT since > :'reset_before' AS reset FROM pg_lazydrop_advice;
CREATE ROLE regress_lazydrop_advised IN ROLE pg_monitor;
CREATE ROLE regress_lazydrop_nobody;
SET ROLE regress_lazydrop_advised;
SELECT count(*) FROM pg_lazydrop_advise();
SELECT count(*) FROM pg_lazydrop_advice_range(1::bigint << 40);
SELECT pg_lazydrop_advice_reset();
SET ROLE regress_lazydrop_nobody;
SELECT count(*) FROM pg_lazydrop_advise();
SELECT count(*) FROM pg_lazydrop_advice;
SHOW lazydrop.advice;
RESET ROLE;
DROP ROLE regress_lazydrop_advised, regress_lazydrop_nobody;

-- All wait events of the lazy drop are known, with names of their own.
SELECT type, name FROM pg_wait_events WHERE name LIKE 'LazyDrop%' ORDER BY name COLLATE "C";

-- Settings, as the manual has them.
SELECT name, setting, unit, context, vartype, boot_val, min_val, max_val
FROM pg_settings WHERE name LIKE 'lazydrop.%' ORDER BY name COLLATE "C";

DROP EXTENSION pg_lazydrop;
