-- Copyright (c) 2026, LazyDrop developers

-- What the sessions of t/041_recycled_numbers.pl do, in each of its databases, which puts
-- a number of the database's own in, so that no tag comes twice.

CREATE TABLE model (name name PRIMARY KEY, tag bigint NOT NULL, n int NOT NULL,
	unlogged boolean NOT NULL, long boolean NOT NULL);
CREATE TABLE progress (session text PRIMARY KEY, done int NOT NULL);
-- numbers that relations have had: the last owner, the round in which it came to it,
-- and how many owners there were before
CREATE TABLE seen (num oid, spc oid, name name, owner text, round int,
	reuses int DEFAULT 0, PRIMARY KEY (num, spc));
CREATE TABLE temporary (num oid, living boolean, dropped boolean);
CREATE SEQUENCE tags START %d;

CREATE FUNCTION payload(tag bigint, id int, long boolean) RETURNS text
IMMUTABLE LANGUAGE sql RETURN
	repeat(md5(tag || ' ' || id), CASE WHEN long AND id % 20 = 0 THEN 100 ELSE 8 END);

CREATE FUNCTION fill(v_name name, v_long boolean) RETURNS model LANGUAGE plpgsql AS $$
DECLARE
	m model;
BEGIN
	m.name := v_name;
	m.tag := nextval('tags');
	m.n := CASE WHEN random() < 0.03 THEN 800 ELSE floor(random() * 70) END;
	m.long := v_long;
	m.unlogged := relpersistence = 'u' FROM pg_class
		WHERE oid = v_name::regclass;
	EXECUTE format('INSERT INTO %I SELECT $1, g, payload($1, g, $3)
		FROM generate_series(1, $2) AS g', v_name) USING m.tag, m.n, m.long;
	INSERT INTO model SELECT m.*
		ON CONFLICT (name) DO UPDATE SET tag = m.tag, n = m.n,
			unlogged = m.unlogged, long = m.long;
	RETURN m;
END $$;

-- Note the numbers of a table and what belongs to it.
CREATE FUNCTION note(v_name name, v_round int) RETURNS void LANGUAGE sql AS $$
	WITH heaps AS (
		SELECT unnest(ARRAY[oid, reltoastrelid]) AS heap FROM pg_class
			WHERE oid = v_name::regclass),
	rels AS (
		SELECT heap AS rel FROM heaps
		UNION ALL
		SELECT indexrelid FROM pg_index JOIN heaps ON indrelid = heap)
	INSERT INTO seen SELECT relfilenode, reltablespace, v_name,
			concat_ws(' ', oid, relname), v_round
		FROM pg_class JOIN rels ON oid = rel
		ON CONFLICT (num, spc) DO UPDATE SET name = v_name,
			owner = excluded.owner, round = v_round, reuses = seen.reuses + 1
			WHERE seen.owner <> excluded.owner
$$;

CREATE FUNCTION make(v_name name, v_plain boolean) RETURNS void
LANGUAGE plpgsql AS $$
DECLARE
	long boolean := NOT v_plain AND random() < 0.15;
	space text := CASE WHEN NOT v_plain AND random() < 0.2
		THEN 'TABLESPACE there' ELSE '' END;
BEGIN
	EXECUTE format('CREATE %s TABLE %I (tag bigint, id int, pad %s) %s',
		CASE WHEN random() < 0.2 THEN 'UNLOGGED' ELSE '' END, v_name,
		CASE WHEN long THEN 'text STORAGE EXTERNAL' ELSE 'varchar(256)' END, space);
	PERFORM fill(v_name, long);
	EXECUTE format('CREATE INDEX %I ON %I (tag, id) %s', v_name || '_i', v_name, space);
END $$;

CREATE PROCEDURE finish(v_session text) LANGUAGE plpgsql AS $$
DECLARE
	v_done int;
BEGIN
	INSERT INTO progress VALUES (v_session, 1)
		ON CONFLICT (session) DO UPDATE SET done = progress.done + 1
		RETURNING done INTO v_done;
	COMMIT;
	RAISE NOTICE 'done %', v_done;
END $$;

-- A temporary table gets many numbers, which other relations may have as well.
CREATE PROCEDURE use_temporary(v_times int) LANGUAGE plpgsql AS $$
DECLARE
	v_num oid;
	v_tag bigint;
BEGIN
	CREATE TEMPORARY TABLE IF NOT EXISTS scratch (tag bigint, id int);
	FOR i IN 1 .. v_times LOOP
		COMMIT;
		ASSERT (SELECT count(*) = max(id) OR count(*) = 0 FROM scratch),
			'rows of a temporary table are lost';
		ASSERT (SELECT count(DISTINCT tag) <= 1 FROM scratch),
			'a temporary table has rows of another one';
		v_tag := nextval('tags');
		TRUNCATE scratch;
		INSERT INTO scratch SELECT v_tag, g FROM generate_series(1, 400) AS g;
		v_num := pg_relation_filenode('scratch');
		INSERT INTO temporary SELECT v_num,
			EXISTS (SELECT FROM pg_class
				WHERE relfilenode = v_num AND reltablespace = 0
				AND relpersistence <> 't'),
			EXISTS (SELECT FROM seen WHERE num = v_num AND spc = 0);
	END LOOP;
	IF random() < 0.3 THEN
		DROP TABLE scratch;
	END IF;
END $$;

-- Do something to one of the session's tables, many times.
CREATE PROCEDURE storm(v_session text, v_ops int, v_width int, v_round int)
LANGUAGE plpgsql AS $$
DECLARE
	v_name name;
	v_dice float8;
	v_text text;
	m model;
BEGIN
	FOR i IN 1 .. v_ops LOOP
		v_name := v_session || (1 + floor(random() * v_width))::int;
		v_dice := random();
		SELECT * INTO m FROM model WHERE name = v_name;
		IF v_dice < 0.06 THEN
			CALL use_temporary(6);
		ELSIF v_dice < 0.10 THEN
			PERFORM make('rolled', false);
			IF m.name IS NOT NULL THEN
				EXECUTE format('TRUNCATE %I', v_name);
				PERFORM fill(v_name, m.long);
			END IF;
			ROLLBACK;
		ELSIF v_dice < 0.13 THEN
			BEGIN
				PERFORM make('rolled', false);
				IF m.name IS NOT NULL THEN
					EXECUTE format('DROP TABLE %I', v_name);
				END IF;
				RAISE EXCEPTION USING errcode = 'LD001';
			EXCEPTION WHEN SQLSTATE 'LD001' THEN
				NULL;
			END;
		ELSIF m.name IS NULL THEN
			PERFORM make(v_name, false);
			PERFORM note(v_name, v_round);
		ELSIF v_dice < 0.23 THEN
			EXECUTE (SELECT 'TRUNCATE ' || string_agg(quote_ident(name), ', ')
				FROM model WHERE name ~ ('^' || v_session));
			PERFORM fill(name, long), note(name, v_round) FROM model
				WHERE name ~ ('^' || v_session);
		ELSIF v_dice < 0.37 THEN
			EXECUTE format('DROP TABLE %I', v_name);
			DELETE FROM model WHERE name = v_name;
		ELSIF v_dice < 0.52 THEN
			EXECUTE format('TRUNCATE %I', v_name);
			PERFORM fill(v_name, m.long);
			PERFORM note(v_name, v_round);
		ELSIF v_dice < 0.60 THEN
			EXECUTE format('CLUSTER %I USING %I', v_name, v_name || '_i');
			PERFORM note(v_name, v_round);
		ELSIF v_dice < 0.68 THEN
			EXECUTE format('REINDEX TABLE %I', v_name);
			PERFORM note(v_name, v_round);
		ELSIF v_dice < 0.76 THEN
			v_text := CASE WHEN reltablespace = 0 THEN 'there' ELSE 'pg_default' END
				FROM pg_class WHERE oid = v_name::regclass;
			EXECUTE format('ALTER TABLE %I SET TABLESPACE %s', v_name, v_text);
			IF random() < 0.5 THEN
				EXECUTE format('ALTER INDEX %I SET TABLESPACE %s', v_name || '_i', v_text);
			END IF;
			PERFORM note(v_name, v_round);
		ELSIF v_dice < 0.82 THEN
			EXECUTE format('ALTER TABLE %I SET %s', v_name,
				CASE WHEN m.unlogged THEN 'LOGGED' ELSE 'UNLOGGED' END);
			UPDATE model SET unlogged = NOT unlogged WHERE name = v_name;
			PERFORM note(v_name, v_round);
		ELSIF v_dice < 0.92 THEN
			EXECUTE format('DROP TABLE %I', v_name);
			PERFORM make(v_name, false);
			PERFORM note(v_name, v_round);
		ELSE
			v_text := nextval('tags');
			EXECUTE format('UPDATE %I SET tag = $1, pad = payload($1, id, $2)', v_name)
				USING v_text::bigint, m.long;
			UPDATE model SET tag = v_text::bigint WHERE name = v_name;
			PERFORM note(v_name, v_round);
		END IF;
		CALL finish(v_session);
	END LOOP;
END $$;

-- For binary-upgrade mode: all numbers are given, those that a DROP TABLE has just
-- left.  (A TRUNCATE removes files there without telling WAL, so there is none.)
CREATE PROCEDURE upgrade_storm(v_session text, v_base bigint, v_pool bigint,
	v_ops int, v_width int, v_round int)
LANGUAGE plpgsql AS $$
DECLARE
	v_slot int;
	v_name name;
	v_oid bigint;
	v_free oid[];
	m model;
BEGIN
	FOR i IN 1 .. v_ops LOOP
		v_slot := 1 + floor(random() * v_width);
		v_name := v_session || v_slot;
		v_oid := v_base + 10 * v_slot;
		SELECT array_agg(num::oid ORDER BY random()) INTO v_free
			FROM generate_series(v_pool, v_pool + 2 * v_width) AS num
			WHERE NOT EXISTS (SELECT FROM pg_class WHERE relfilenode = num);
		PERFORM binary_upgrade_set_next_heap_relfilenode(v_free[1]),
			binary_upgrade_set_next_index_relfilenode(v_free[2]);
		SELECT * INTO m FROM model WHERE name = v_name;
		IF m.name IS NULL THEN
			PERFORM binary_upgrade_set_next_heap_pg_class_oid(v_oid::oid),
				binary_upgrade_set_next_index_pg_class_oid((v_oid + 1)::oid),
				binary_upgrade_set_next_pg_type_oid((v_oid + 2)::oid),
				binary_upgrade_set_next_array_pg_type_oid((v_oid + 3)::oid);
			PERFORM make(v_name, true);
			PERFORM note(v_name, v_round);
		ELSE
			EXECUTE format('DROP TABLE %I', v_name);
			DELETE FROM model WHERE name = v_name;
		END IF;
		CALL finish(v_session);
	END LOOP;
END $$;

-- Go on until the counter, which began at v_base, has passed a number.  Returns the
-- numbers given.
CREATE PROCEDURE pass(v_base bigint, v_number bigint, INOUT v_given oid[])
LANGUAGE plpgsql AS $$
BEGIN
	CREATE TABLE passing ();
	v_given := '{}';
	LOOP
		COMMIT;
		TRUNCATE passing;
		v_given := v_given || pg_relation_filenode('passing')::oid;
		EXIT WHEN (v_given[cardinality(v_given)]::bigint - v_base + 4294967296)
			% 4294967296 > v_number - v_base;
	END LOOP;
	DROP TABLE passing;
END $$;

-- Compare everything with what must be there.
CREATE FUNCTION check_all(OUT checked int, OUT wrong text) LANGUAGE plpgsql AS $$
DECLARE
	m model;
	s record;
	v_how text;
	v_list text;
BEGIN
	checked := 0;
	FOR m IN SELECT * FROM model
		WHERE NOT (unlogged AND pg_is_in_recovery()) ORDER BY name
	LOOP
		checked := checked + 1;
		BEGIN
			FOREACH v_how IN ARRAY ARRAY['seqscan', 'indexscan', 'indexonlyscan'] LOOP
				PERFORM set_config('enable_' || h, (h = v_how)::text, true)
					FROM unnest(ARRAY['seqscan', 'bitmapscan', 'indexscan',
						'indexonlyscan']) AS h;
				EXECUTE format('SELECT count(*) AS n, coalesce(sum(id), 0) AS sum,
					count(*) FILTER (WHERE tag IS DISTINCT FROM $1 OR %s) AS bad
					FROM %I WHERE %s',
					CASE v_how WHEN 'indexonlyscan' THEN 'false'
						ELSE 'pad IS DISTINCT FROM payload($1, id, $2)' END,
					m.name,
					CASE v_how WHEN 'seqscan' THEN 'true' ELSE 'tag = $1' END)
					INTO s USING m.tag, m.long;
				IF s.n <> m.n OR s.bad <> 0 OR s.sum <> m.n::bigint * (m.n + 1) / 2 THEN
					wrong := concat_ws(E'\n', wrong, format(
						'%s of table %s (file %s, tag %s): %s rows, of them %s wrong, sum %s, expected %s',
						v_how, m.name, pg_relation_filepath(m.name::regclass), m.tag,
						s.n, s.bad, s.sum, m.n));
				END IF;
			END LOOP;
			IF EXISTS (SELECT FROM pg_extension WHERE extname = 'amcheck') THEN
				PERFORM bt_index_check((m.name || '_i')::regclass, true);
			END IF;
		EXCEPTION WHEN OTHERS THEN
			wrong := concat_ws(E'\n', wrong,
				format('table %s: %s', m.name, SQLERRM));
		END;
	END LOOP;
	SELECT string_agg(relname, ' ') INTO v_list FROM pg_class
		WHERE relkind = 'r' AND relname ~ '^([a-z][0-9]+|rolled)$'
		AND NOT EXISTS (SELECT FROM model WHERE name = relname);
	IF v_list IS NOT NULL THEN
		wrong := concat_ws(E'\n', wrong, 'tables that should not be there: ' || v_list);
	END IF;
END $$;
