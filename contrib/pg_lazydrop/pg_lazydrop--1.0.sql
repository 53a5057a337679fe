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

-- The output of the advisor on shared_buffers (lazydrop.advice).  No operators without a
-- schema are used here, because the owner of the database may have created others.
CREATE VIEW pg_lazydrop_advice AS
	SELECT s.factor, s.shared_buffers, s.hit_ratio,
		s.reads, s.reads_per_second,
		s.read_time_ms AS read_time, s.time_saved_ms AS time_saved, s.cold_reads,
		s.recent_hit_ratio, s.recent_reads_per_second,
		a.samples, a.samples_dropped, a.stats_reset AS since
	FROM pg_catalog.jsonb_to_record(pg_catalog.current_setting('lazydrop.advice'::text)::jsonb) AS a(
			samples bigint,
			samples_dropped bigint,
			stats_reset timestamp with time zone,
			sizes jsonb),
		pg_catalog.jsonb_to_recordset(a.sizes) AS s(
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

CREATE FUNCTION pg_lazydrop_advice_reads(bytes bigint)
RETURNS double precision
AS 'MODULE_PATHNAME', 'pg_lazydrop_advice_reads'
LANGUAGE C STABLE PARALLEL SAFE;

CREATE FUNCTION pg_lazydrop_advice_range(
	memory bigint,
	OUT factor double precision,
	OUT shared_buffers bigint,
	OUT reads_per_second double precision,
	OUT disk_reads_min double precision,
	OUT disk_reads_max double precision)
RETURNS SETOF record
AS 'MODULE_PATHNAME', 'pg_lazydrop_advice_range'
LANGUAGE C STABLE PARALLEL SAFE STRICT;

-- Version 1.1 has another one.
CREATE FUNCTION pg_lazydrop_advise(gain double precision DEFAULT 0.005)
RETURNS text
LANGUAGE sql STABLE PARALLEL SAFE STRICT
RETURN 'Use version 1.1 of the extension.'::text;

CREATE FUNCTION pg_lazydrop_advice_plot(width integer DEFAULT 50)
RETURNS SETOF text
AS 'MODULE_PATHNAME', 'pg_lazydrop_advice_plot'
LANGUAGE C STABLE PARALLEL SAFE STRICT;

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
