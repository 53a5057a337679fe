/* contrib/pg_lazydrop/pg_lazydrop--1.0--1.1.sql */

-- complain if script is sourced in psql, rather than via ALTER EXTENSION
\echo Use "ALTER EXTENSION pg_lazydrop UPDATE TO '1.1'" to load this file. \quit

-- More counters.
DROP VIEW pg_stat_lazydrop;
DROP FUNCTION pg_stat_get_lazydrop();

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
	OUT stats_reset timestamp with time zone,
	OUT hide_failures bigint,
	OUT undeferred_removals bigint,
	OUT blocks_looked_up bigint)
RETURNS record
AS 'MODULE_PATHNAME', 'pg_stat_get_lazydrop'
LANGUAGE C STRICT VOLATILE PARALLEL SAFE;

CREATE VIEW pg_stat_lazydrop AS
	SELECT * FROM pg_stat_get_lazydrop();

REVOKE ALL ON FUNCTION pg_stat_get_lazydrop() FROM PUBLIC;
REVOKE ALL ON pg_stat_lazydrop FROM PUBLIC;
GRANT EXECUTE ON FUNCTION pg_stat_get_lazydrop() TO pg_monitor;
GRANT SELECT ON pg_stat_lazydrop TO pg_monitor;

-- The policy of the buffer cache has changed.
DROP VIEW pg_stat_lazydrop_cache;
DROP FUNCTION pg_stat_get_lazydrop_cache();

CREATE FUNCTION pg_stat_get_lazydrop_cache(
	OUT scan_resistance text,
	OUT buffers bigint,
	OUT main bigint,
	OUT probation bigint,
	OUT loads bigint,
	OUT ring_loads bigint,
	OUT free_loads bigint,
	OUT ghost_hits bigint,
	OUT promotions bigint,
	OUT demotions bigint,
	OUT refusals bigint,
	OUT evictions bigint,
	OUT fallbacks bigint,
	OUT stats_reset timestamp with time zone)
RETURNS record
AS 'MODULE_PATHNAME', 'pg_stat_get_lazydrop_cache'
LANGUAGE C STRICT VOLATILE PARALLEL SAFE;

CREATE VIEW pg_stat_lazydrop_cache AS
	SELECT * FROM pg_stat_get_lazydrop_cache();

REVOKE ALL ON FUNCTION pg_stat_get_lazydrop_cache() FROM PUBLIC;
REVOKE ALL ON pg_stat_lazydrop_cache FROM PUBLIC;
GRANT EXECUTE ON FUNCTION pg_stat_get_lazydrop_cache() TO pg_monitor;
GRANT SELECT ON pg_stat_lazydrop_cache TO pg_monitor;

-- Reasons why an entry is still pending.
DROP VIEW pg_lazydrop_pending;
DROP FUNCTION pg_lazydrop_get_pending();

CREATE FUNCTION pg_lazydrop_get_pending(
	OUT tablespace oid,
	OUT database oid,
	OUT relfilenumber oid,
	OUT kind text,
	OUT since timestamp with time zone,
	OUT buffers_done boolean,
	OUT files_done boolean,
	OUT files integer,
	OUT bytes bigint,
	OUT waits_for text,
	OUT pid integer,
	OUT failures integer,
	OUT next_attempt timestamp with time zone)
RETURNS SETOF record
AS 'MODULE_PATHNAME', 'pg_lazydrop_get_pending'
LANGUAGE C STRICT VOLATILE PARALLEL SAFE;

CREATE VIEW pg_lazydrop_pending AS
	SELECT * FROM pg_lazydrop_get_pending();

REVOKE ALL ON FUNCTION pg_lazydrop_get_pending() FROM PUBLIC;
REVOKE ALL ON pg_lazydrop_pending FROM PUBLIC;
GRANT EXECUTE ON FUNCTION pg_lazydrop_get_pending() TO pg_monitor;
GRANT SELECT ON pg_lazydrop_pending TO pg_monitor;

-- What the advisor on shared_buffers says.  The functions that use the view keep doing so.
CREATE FUNCTION pg_lazydrop_get_advice(
	OUT factor double precision,
	OUT shared_buffers bigint,
	OUT hit_ratio double precision,
	OUT reads bigint,
	OUT reads_per_second double precision,
	OUT read_time double precision,
	OUT time_saved double precision,
	OUT cold_reads bigint,
	OUT recent_hit_ratio double precision,
	OUT recent_reads_per_second double precision,
	OUT samples bigint,
	OUT samples_dropped bigint,
	OUT since timestamp with time zone,
	OUT until timestamp with time zone,
	OUT filled double precision,
	OUT off_reads_per_second double precision,
	OUT off_error double precision,
	OUT on_reads_per_second double precision,
	OUT on_error double precision)
RETURNS SETOF record
AS 'MODULE_PATHNAME', 'pg_lazydrop_get_advice'
LANGUAGE C STRICT VOLATILE PARALLEL SAFE;

CREATE OR REPLACE VIEW pg_lazydrop_advice AS
	SELECT * FROM pg_lazydrop_get_advice() ORDER BY factor;

-- These were SQL functions, whose operators might be others that the database's owner
-- had created.
CREATE OR REPLACE FUNCTION pg_lazydrop_advice_reads(bytes bigint)
RETURNS double precision
AS 'MODULE_PATHNAME', 'pg_lazydrop_advice_reads'
LANGUAGE C STABLE PARALLEL SAFE;

CREATE OR REPLACE FUNCTION pg_lazydrop_advice_range(
	memory bigint,
	OUT factor double precision,
	OUT shared_buffers bigint,
	OUT reads_per_second double precision,
	OUT disk_reads_min double precision,
	OUT disk_reads_max double precision)
RETURNS SETOF record
AS 'MODULE_PATHNAME', 'pg_lazydrop_advice_range'
LANGUAGE C STABLE PARALLEL SAFE STRICT;

CREATE OR REPLACE FUNCTION pg_lazydrop_advice_plot(width integer DEFAULT 50)
RETURNS SETOF text
AS 'MODULE_PATHNAME', 'pg_lazydrop_advice_plot'
LANGUAGE C STABLE PARALLEL SAFE STRICT;

DROP FUNCTION pg_lazydrop_advise(double precision);

CREATE FUNCTION pg_lazydrop_advise(
	memory bigint DEFAULT NULL,
	OUT period text,
	OUT scan_resistance text,
	OUT verdict text,
	OUT shared_buffers bigint,
	OUT reads_now double precision,
	OUT reads_then double precision,
	OUT error double precision,
	OUT hit_ratio_now double precision,
	OUT hit_ratio_then double precision,
	OUT read_time double precision,
	OUT seconds double precision,
	OUT until timestamp with time zone,
	OUT wait interval)
RETURNS SETOF record
AS 'MODULE_PATHNAME', 'pg_lazydrop_advise'
LANGUAGE C VOLATILE PARALLEL SAFE;

REVOKE ALL ON FUNCTION pg_lazydrop_get_advice() FROM PUBLIC;
REVOKE ALL ON FUNCTION pg_lazydrop_advise(bigint) FROM PUBLIC;
GRANT EXECUTE ON FUNCTION pg_lazydrop_get_advice() TO pg_monitor;
GRANT EXECUTE ON FUNCTION pg_lazydrop_advise(bigint) TO pg_monitor;
