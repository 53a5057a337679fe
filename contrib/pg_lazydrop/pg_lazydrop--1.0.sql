/* contrib/pg_lazydrop/pg_lazydrop--1.0.sql */

-- complain if script is sourced in psql, rather than via CREATE EXTENSION
\echo Use "CREATE EXTENSION pg_lazydrop" to load this file. \quit

-- First, because it is a short one that the error in a stock server shows.
CREATE FUNCTION pg_stat_lazydrop_reset()
RETURNS void
AS 'MODULE_PATHNAME', 'pg_stat_lazydrop_reset'
LANGUAGE C STRICT VOLATILE PARALLEL SAFE;

CREATE FUNCTION pg_stat_get_lazydrop(
	OUT version text,
	OUT pending_relations integer,
	OUT pending_databases integer,
	OUT max_pending integer,
	OUT pending_files bigint,
	OUT pending_bytes bigint,
	OUT oldest_age interval,
	OUT worker_pid integer,
	OUT deferred_relations bigint,
	OUT deferred_databases bigint,
	OUT passes bigint,
	OUT headers_visited bigint,
	OUT buffers_invalidated bigint,
	OUT writes_skipped bigint,
	OUT sync_fallbacks bigint,
	OUT reuse_waits bigint,
	OUT files_removed bigint,
	OUT bytes_removed bigint,
	OUT checkpoint_waits bigint,
	OUT checkpoint_wait_time double precision,
	OUT last_pass timestamp with time zone,
	OUT last_pass_time double precision,
	OUT last_pass_headers bigint,
	OUT last_pass_buffers bigint,
	OUT stats_reset timestamp with time zone)
RETURNS record
AS 'MODULE_PATHNAME', 'pg_stat_get_lazydrop'
LANGUAGE C STRICT VOLATILE PARALLEL SAFE;

-- A module that shared_preload_libraries names is loaded already, and fails only now.
SELECT pg_stat_get_lazydrop();

CREATE VIEW pg_stat_lazydrop AS
	SELECT * FROM pg_stat_get_lazydrop();

CREATE FUNCTION pg_stat_get_lazydrop_cache(
	OUT scan_resistance text,
	OUT buffers bigint,
	OUT main bigint,
	OUT probation bigint,
	OUT loads bigint,
	OUT ring_loads bigint,
	OUT free_loads bigint,
	OUT bulk_loads bigint,
	OUT ghost_hits bigint,
	OUT promotions bigint,
	OUT demotions bigint,
	OUT resets bigint,
	OUT evictions bigint,
	OUT fallbacks bigint,
	OUT stats_reset timestamp with time zone)
RETURNS record
AS 'MODULE_PATHNAME', 'pg_stat_get_lazydrop_cache'
LANGUAGE C STRICT VOLATILE PARALLEL SAFE;

CREATE VIEW pg_stat_lazydrop_cache AS
	SELECT * FROM pg_stat_get_lazydrop_cache();

CREATE FUNCTION pg_lazydrop_get_pending(
	OUT tablespace oid,
	OUT database oid,
	OUT relfilenumber oid,
	OUT kind text,
	OUT since timestamp with time zone,
	OUT buffers_done boolean,
	OUT files_done boolean,
	OUT files integer,
	OUT bytes bigint)
RETURNS SETOF record
AS 'MODULE_PATHNAME', 'pg_lazydrop_get_pending'
LANGUAGE C STRICT VOLATILE PARALLEL SAFE;

CREATE VIEW pg_lazydrop_pending AS
	SELECT * FROM pg_lazydrop_get_pending();

CREATE FUNCTION pg_lazydrop_drain(timeout interval DEFAULT NULL)
RETURNS void
AS 'MODULE_PATHNAME', 'pg_lazydrop_drain'
LANGUAGE C VOLATILE PARALLEL RESTRICTED;

-- What the adviser on shared_buffers says (lazydrop.advice).
CREATE VIEW pg_lazydrop_advice AS
	SELECT s.factor, s.shared_buffers, s.hit_ratio,
		s.reads, s.reads_per_second,
		s.read_time_ms AS read_time, s.time_saved_ms AS time_saved, s.cold_reads,
		s.recent_hit_ratio, s.recent_reads_per_second,
		(a ->> 'samples')::numeric::bigint AS samples,
		(a ->> 'samples_dropped')::bigint AS samples_dropped,
		(a ->> 'stats_reset')::timestamp with time zone AS since
	FROM (SELECT current_setting('lazydrop.advice')::jsonb AS a OFFSET 0) AS setting,
		jsonb_to_recordset(a -> 'sizes') AS s(
			factor double precision,
			shared_buffers bigint,
			hit_ratio double precision,
			reads bigint,
			reads_per_second double precision,
			read_time_ms double precision,
			time_saved_ms double precision,
			cold_reads bigint,
			recent_hit_ratio double precision,
			recent_reads_per_second double precision)
	ORDER BY s.factor;

-- Reads each second with a pool of this size, on a line between the sizes next to it, or as
-- with the smallest or the largest size.
CREATE FUNCTION pg_lazydrop_advice_reads(bytes bigint)
RETURNS double precision
LANGUAGE sql STABLE PARALLEL SAFE
BEGIN ATOMIC
	SELECT CASE WHEN l.shared_buffers IS NULL THEN h.reads_per_second
				WHEN h.shared_buffers IS NULL THEN l.reads_per_second
				WHEN h.shared_buffers = l.shared_buffers THEN l.reads_per_second
				ELSE l.reads_per_second +
					(h.reads_per_second - l.reads_per_second) *
					(bytes - l.shared_buffers) / (h.shared_buffers - l.shared_buffers) END
	FROM (SELECT) AS one
		LEFT JOIN (SELECT shared_buffers, reads_per_second FROM pg_lazydrop_advice
				   WHERE shared_buffers <= bytes
				   ORDER BY shared_buffers DESC LIMIT 1) AS l ON true
		LEFT JOIN (SELECT shared_buffers, reads_per_second FROM pg_lazydrop_advice
				   WHERE shared_buffers >= bytes
				   ORDER BY shared_buffers LIMIT 1) AS h ON true;
END;

-- Of these reads, those that the file-system cache cannot serve.  It has the memory that
-- shared_buffers does not take.  At best, the two have different pages, and together what
-- one pool of all the memory would have; at worst, the smaller has nothing that the larger
-- does not have.
CREATE FUNCTION pg_lazydrop_advice_range(
	memory bigint,
	OUT factor double precision,
	OUT shared_buffers bigint,
	OUT reads_per_second double precision,
	OUT disk_reads_min double precision,
	OUT disk_reads_max double precision)
RETURNS SETOF record
LANGUAGE sql STABLE PARALLEL SAFE STRICT
BEGIN ATOMIC
	SELECT a.factor, a.shared_buffers, a.reads_per_second,
		CASE WHEN memory > max(a.shared_buffers) OVER () THEN 0
			 ELSE least(a.reads_per_second,
						pg_lazydrop_advice_reads(memory)) END,
		least(a.reads_per_second,
			  pg_lazydrop_advice_reads(greatest(a.shared_buffers,
												memory - a.shared_buffers)))
	FROM pg_lazydrop_advice AS a
	WHERE a.shared_buffers <= memory
	ORDER BY a.factor;
END;

-- What to do, in words: the smallest size beyond which doubling it adds less than so much
-- to the hit ratio, wherever that is done.
CREATE FUNCTION pg_lazydrop_advise(gain double precision DEFAULT 0.005)
RETURNS text
LANGUAGE sql STABLE PARALLEL SAFE STRICT
BEGIN ATOMIC
	WITH size AS MATERIALIZED (
		SELECT *
		FROM pg_lazydrop_advice
	), doubled AS (
		SELECT s.factor, max(d.hit_ratio) - s.hit_ratio AS adds
		FROM size AS s JOIN size AS d
			ON d.factor >= s.factor AND d.factor <= 2 * s.factor
		GROUP BY s.factor, s.hit_ratio
	), chosen AS (
		SELECT * FROM size AS s
		WHERE NOT EXISTS (SELECT FROM doubled AS d
						  WHERE d.factor >= s.factor AND d.adds > 0 AND d.adds >= gain)
		ORDER BY s.factor LIMIT 1
	), now AS (
		SELECT * FROM size WHERE factor = 1
	), whole AS (
		SELECT max(hit_ratio) - min(hit_ratio) AS span, max(factor) AS largest,
			max(cold_reads * (1 - hit_ratio) / nullif(reads, 0))
				FILTER (WHERE factor > 1) AS unknown
		FROM size
	)
	SELECT CASE
		WHEN n.hit_ratio IS NULL OR n.samples < 10000 THEN
			'Not seen enough yet: ' || n.samples || ' of 10000 lookups'
			|| CASE WHEN current_setting('lazydrop.advisor')::boolean THEN '.'
					ELSE ', and lazydrop.advisor is off.' END
		WHEN n.samples_dropped > n.samples / 10 THEN
			'Not seen enough: ' || n.samples_dropped || ' samples have been dropped.'
		WHEN w.span < gain THEN
			format('It does not matter: the hit ratio is %s %%, and about that with any size from %s to %s.',
				round(100 * n.hit_ratio::numeric, 1),
				(SELECT pg_size_pretty(min(shared_buffers)) FROM size),
				(SELECT pg_size_pretty(max(shared_buffers)) FROM size))
		WHEN w.unknown >= greatest(gain, w.span / 10) AND c.factor >= 1 THEN
			format('Not seen enough yet: %s %% of the lookups were of pages that larger sizes may have had.',
				round(100 * w.unknown::numeric, 1))
		WHEN c.factor = w.largest THEN
			format('Set shared_buffers to %s, and look again: the hit ratio would be %s instead of %s %%, and still rises.',
				pg_size_pretty(c.shared_buffers),
				round(100 * c.hit_ratio::numeric, 1), round(100 * n.hit_ratio::numeric, 1))
		WHEN c.factor = 1 THEN
			format('Leave shared_buffers at %s: the hit ratio is %s %%, and doubling adds less than %s points.',
				pg_size_pretty(c.shared_buffers),
				round(100 * n.hit_ratio::numeric, 1), round(100 * gain::numeric, 2))
		ELSE
			format('Set shared_buffers to %s: the hit ratio would be %s instead of %s %%, and doubling adds less than %s points.',
				pg_size_pretty(c.shared_buffers),
				round(100 * c.hit_ratio::numeric, 1), round(100 * n.hit_ratio::numeric, 1),
				round(100 * gain::numeric, 2))
		END
	FROM now AS n, whole AS w LEFT JOIN chosen AS c ON true;
END;

-- The curve, for a terminal: lines of 1 to 1000 characters at most, so that no value fails.
CREATE FUNCTION pg_lazydrop_advice_plot(width integer DEFAULT 50)
RETURNS SETOF text
LANGUAGE sql STABLE PARALLEL SAFE STRICT
BEGIN ATOMIC
	SELECT lpad(pg_size_pretty(shared_buffers), 10)
		|| CASE WHEN factor = 1 THEN ' > ' ELSE ' | ' END
		|| rpad(repeat('#', round(coalesce(hit_ratio, 0) * w.columns)::integer), w.columns)
		|| coalesce(to_char(100 * hit_ratio, ' 990.9') || ' %', ' unknown')
	FROM pg_lazydrop_advice, greatest(1, least(width, 1000)) AS w(columns)
	ORDER BY factor;
END;

CREATE FUNCTION pg_lazydrop_advice_reset()
RETURNS void
AS 'MODULE_PATHNAME', 'pg_lazydrop_advice_reset'
LANGUAGE C STRICT VOLATILE PARALLEL SAFE;

-- What is pending tells what others have dropped: it is for monitoring.
REVOKE ALL ON FUNCTION pg_stat_get_lazydrop() FROM PUBLIC;
REVOKE ALL ON FUNCTION pg_stat_get_lazydrop_cache() FROM PUBLIC;
REVOKE ALL ON FUNCTION pg_lazydrop_get_pending() FROM PUBLIC;
REVOKE ALL ON pg_stat_lazydrop FROM PUBLIC;
REVOKE ALL ON pg_stat_lazydrop_cache FROM PUBLIC;
REVOKE ALL ON pg_lazydrop_pending FROM PUBLIC;
REVOKE ALL ON FUNCTION pg_lazydrop_advice_reads(bigint) FROM PUBLIC;
REVOKE ALL ON FUNCTION pg_lazydrop_advice_range(bigint) FROM PUBLIC;
REVOKE ALL ON FUNCTION pg_lazydrop_advise(double precision) FROM PUBLIC;
REVOKE ALL ON FUNCTION pg_lazydrop_advice_plot(integer) FROM PUBLIC;
REVOKE ALL ON pg_lazydrop_advice FROM PUBLIC;
GRANT EXECUTE ON FUNCTION pg_stat_get_lazydrop() TO pg_monitor;
GRANT EXECUTE ON FUNCTION pg_stat_get_lazydrop_cache() TO pg_monitor;
GRANT EXECUTE ON FUNCTION pg_lazydrop_get_pending() TO pg_monitor;
GRANT SELECT ON pg_stat_lazydrop TO pg_monitor;
GRANT SELECT ON pg_stat_lazydrop_cache TO pg_monitor;
GRANT SELECT ON pg_lazydrop_pending TO pg_monitor;
GRANT EXECUTE ON FUNCTION pg_lazydrop_advice_reads(bigint) TO pg_monitor;
GRANT EXECUTE ON FUNCTION pg_lazydrop_advice_range(bigint) TO pg_monitor;
GRANT EXECUTE ON FUNCTION pg_lazydrop_advise(double precision) TO pg_monitor;
GRANT EXECUTE ON FUNCTION pg_lazydrop_advice_plot(integer) TO pg_monitor;
GRANT SELECT ON pg_lazydrop_advice TO pg_monitor;

-- These act on the whole server.
REVOKE ALL ON FUNCTION pg_lazydrop_drain(interval) FROM PUBLIC;
REVOKE ALL ON FUNCTION pg_stat_lazydrop_reset() FROM PUBLIC;
REVOKE ALL ON FUNCTION pg_lazydrop_advice_reset() FROM PUBLIC;
