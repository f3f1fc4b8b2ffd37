-- A month goes only when nobody needs it any more, and what was recorded of its export is stored.

-- Digest of the manifest that was found in the store, with all of its parts. Another than `digest`,
-- or none: it was recorded by the release before, which did not look.
ALTER TABLE ledger_export ADD COLUMN stored_digest text;

-- Why a month must stay although it is exported; NULL: nothing. Either attempts of it are in
-- open_attempt (reconcile could correct them no more, and a close of theirs would count as a first
-- one), or attempts of it were given up by the reaper whose guard's spool was not shipped to its end
-- (it may have their closes; close_lost_incarnation says that it will not come).
CREATE FUNCTION why_ledger_month_is_needed(p_name text) RETURNS text LANGUAGE plpgsql AS $$
DECLARE
    v_from  timestamp := to_date(right(p_name, 6), 'YYYYMM')::timestamp;
    v_until timestamp := v_from + interval '1 month';
    v_why   text;
BEGIN
    SELECT 'attempts of it have no final close: '
           || string_agg(s.n || ' ' || s.state, ', ' ORDER BY s.state) INTO v_why
        FROM (SELECT state, count(*) AS n FROM open_attempt
              WHERE opened_at >= v_from AT TIME ZONE 'UTC'
                AND opened_at < v_until AT TIME ZONE 'UTC'
              GROUP BY state) s;
    IF v_why IS NULL THEN
        EXECUTE format(
            'SELECT ''closes of it may be in spools that were not shipped to their end, of the''
                    '' incarnations '' || string_agg(DISTINCT i.incarnation_id::text, '', '')
             FROM %I e JOIN incarnation i USING (incarnation_id)
             WHERE e.writer = ''reaper'' AND i.closed_at IS NULL', p_name) INTO v_why;
    END IF;
    RETURN v_why;
END $$;

-- As in 0007, but it refuses a month that is needed, and one of which a day is not known to be
-- stored. It is for one at a time. The lock that stops readers and writers is asked for in short
-- waits (who waits for one stops all that come behind), and after the chain of audit records, as
-- everybody takes them who writes one: the caller's own record may follow in the same transaction.
-- A guard of the release before is told of all this as of a month that is not exported. Of a chain's
-- entries it keeps none in memory: one process start may have written the whole month.
CREATE OR REPLACE FUNCTION drop_ledger_partition(p_name text) RETURNS bigint LANGUAGE plpgsql
SET lock_timeout = '2s' AS $$
DECLARE
    v_why  text;
    v_rows bigint;
    v_now  bigint;
BEGIN
    IF p_name !~ '^ledger_entry_\d{6}$' OR NOT EXISTS (
            SELECT FROM pg_inherits i JOIN pg_class c ON c.oid = i.inhrelid
            WHERE i.inhparent = 'ledger_entry'::regclass AND c.relname = p_name) THEN
        RAISE EXCEPTION '% is no month of the ledger', p_name USING ERRCODE = 'undefined_table';
    END IF;
    IF NOT pg_try_advisory_xact_lock(x'7E44ACE4'::bigint) THEN
        RAISE EXCEPTION 'another guard is dropping a month'
            USING ERRCODE = 'lock_not_available';
    END IF;
    v_why := why_ledger_month_is_needed(p_name);
    IF v_why IS NOT NULL THEN
        RAISE EXCEPTION '%', v_why USING ERRCODE = 'check_violation';
    END IF;
    EXECUTE format(
        'SELECT string_agg(d.day::text, '', '' ORDER BY d.day)
                    FILTER (WHERE x.rows IS DISTINCT FROM d.n
                            OR x.last_entry_id IS DISTINCT FROM d.last
                            OR x.stored_digest IS DISTINCT FROM x.digest),
                coalesce(sum(d.n), 0) FROM (
             SELECT (opened_at AT TIME ZONE ''UTC'')::date AS day, count(*) AS n,
                    max(entry_id) AS last FROM %I GROUP BY 1) d
         LEFT JOIN ledger_export x ON x.partition_name = %L AND x.day = d.day',
        p_name, p_name) INTO v_why, v_rows;
    IF v_why IS NOT NULL THEN
        RAISE EXCEPTION 'not exported, or changed since: %', v_why
            USING ERRCODE = 'check_violation';
    END IF;
    EXECUTE format(
        'INSERT INTO chain_gap (writer, after_seq, before_seq, hash, reason)
         SELECT i.writer, i.first - 1, i.last + 1, e.hash, ''exported: '' || %L
         FROM (SELECT t.writer, min(t.seq) AS first, max(t.seq) AS last
               FROM (SELECT writer, seq, seq - row_number() OVER (PARTITION BY writer ORDER BY seq)
                            AS island FROM %I) t
               GROUP BY t.writer, t.island) i
         JOIN %I e ON e.writer = i.writer AND e.seq = i.last
         ON CONFLICT DO NOTHING', p_name, p_name, p_name);
    PERFORM set_config('lock_timeout', '500ms', true);
    FOR i IN 1 .. 10 LOOP
        BEGIN
            PERFORM FROM chain WHERE writer = 'admin' FOR UPDATE;
            EXECUTE format('ALTER TABLE ledger_entry DETACH PARTITION %I', p_name);
            EXIT;
        EXCEPTION WHEN lock_not_available THEN
            IF i = 10 THEN
                RAISE;
            END IF;
            PERFORM pg_sleep(0.2);
        END;
    END LOOP;
    EXECUTE format('SELECT count(*) FROM %I', p_name) INTO v_now;
    IF v_now <> v_rows THEN
        RAISE EXCEPTION 'changed while it was looked at: % rows, then %', v_rows, v_now
            USING ERRCODE = 'check_violation';
    END IF;
    EXECUTE format('DROP TABLE %I', p_name);
    RETURN v_rows;
END $$;
