-- Months of the ledger one by one, and with the rows that came before them; re-ratings by what an
-- attempt would have cost, not by a difference that somebody worked out before; and grants that look
-- at the clock once they have their counters. The release before goes on with its own calls.

-- Months -----------------------------------------------------------------------------------------

-- Months that should have a partition and have none: the last one, this one and p_ahead more, and
-- those since the first that is here whose rows are in the default partition. Not those that were
-- exported and dropped. Looks at 20,000 rows of the default partition at most.
CREATE FUNCTION ledger_months_due(p_ahead integer) RETURNS TABLE (month date, name text)
LANGUAGE sql STABLE SET lock_timeout = '500ms' AS $$
    WITH known AS (
        SELECT c.relname::text AS name FROM pg_inherits i JOIN pg_class c ON c.oid = i.inhrelid
        WHERE i.inhparent = 'ledger_entry'::regclass),
    present AS (SELECT date_trunc('month', clock_timestamp() AT TIME ZONE 'UTC') AS month),
    wanted AS (
        SELECT p.month + make_interval(months => n) AS month, true AS always
        FROM present p, generate_series(-1, p_ahead) n
        UNION
        SELECT date_trunc('month', r.opened_at AT TIME ZONE 'UTC'), false
        FROM (SELECT opened_at FROM ledger_entry_other LIMIT 20000) r),
    named AS (
        SELECT w.month::date AS month, 'ledger_entry_' || to_char(w.month, 'YYYYMM') AS name,
               bool_or(w.always) AS always
        FROM wanted w GROUP BY 1, 2)
    SELECT n.month, n.name FROM named n, present p
    WHERE n.name NOT IN (SELECT k.name FROM known k)
      AND (n.always OR n.month <= p.month AND n.name >= (
           SELECT coalesce(min(k.name), '') FROM known k WHERE k.name ~ '^ledger_entry_\d{6}$'))
      AND NOT EXISTS (SELECT FROM ledger_export x WHERE x.partition_name = n.name)
    ORDER BY n.month
$$;

-- Makes a month's partition and moves its rows out of the default partition, all or nothing: nobody
-- sees an entry twice or not at all. Returns how many were moved; NULL: the month is there. Raises
-- object_not_in_prerequisite_state if they are more than p_rows (everybody waits while they are
-- moved), or were exported as rows of the default partition (a second export would have them twice),
-- or if the default partition has more than 16 kB for each of p_rows: everybody waits while it is
-- read whole, whatever month is attached.
-- Locks that are not to be had soon are given up: who waits for one stops all that come behind.
CREATE FUNCTION make_ledger_month(p_month date, p_rows bigint) RETURNS bigint LANGUAGE plpgsql
SET lock_timeout = '500ms' AS $$
DECLARE
    v_first timestamp := date_trunc('month', p_month::timestamp);
    v_from  timestamptz := v_first AT TIME ZONE 'UTC';
    v_until timestamptz := (v_first + interval '1 month') AT TIME ZONE 'UTC';
    v_name  text := 'ledger_entry_' || to_char(v_first, 'YYYYMM');
    v_rows  bigint;
    v_moved bigint := 0;
BEGIN
    PERFORM set_config('lock_timeout', '4s', true);        -- another that makes months
    PERFORM pg_advisory_xact_lock(x'7E44ACE2'::bigint);
    PERFORM set_config('lock_timeout', '500ms', true);
    -- Not to_regclass: without a new look at the catalogue it repeats what it knew before the wait.
    IF EXISTS (SELECT FROM pg_inherits i JOIN pg_class c ON c.oid = i.inhrelid
               WHERE i.inhparent = 'ledger_entry'::regclass AND c.relname = v_name) THEN
        RETURN NULL;
    END IF;
    IF pg_relation_size('ledger_entry_other') / 16384 > p_rows THEN
        RAISE EXCEPTION 'ledger_entry_other is too large to be read while all wait: % MB',
            pg_relation_size('ledger_entry_other') / 1048576
            USING ERRCODE = 'object_not_in_prerequisite_state';
    END IF;
    SELECT count(*) INTO v_rows FROM (
        SELECT FROM ledger_entry_other WHERE opened_at >= v_from AND opened_at < v_until
        LIMIT p_rows + 1) r;
    IF v_rows > p_rows THEN
        RAISE EXCEPTION 'more than % rows of % are in ledger_entry_other', p_rows, v_name
            USING ERRCODE = 'object_not_in_prerequisite_state';
    END IF;
    IF EXISTS (SELECT FROM ledger_export
               WHERE partition_name = v_name
                  OR (v_rows > 0 AND partition_name = 'ledger_entry_other'
                      AND day >= v_first::date AND day < (v_first + interval '1 month')::date)) THEN
        RAISE EXCEPTION 'days of % have been exported', v_name
            USING ERRCODE = 'object_not_in_prerequisite_state';
    END IF;
    EXECUTE format('CREATE TABLE %I (LIKE ledger_entry INCLUDING DEFAULTS INCLUDING CONSTRAINTS)',
                   v_name);
    IF v_rows > 0 OR v_from <= clock_timestamp() THEN
        -- A row that waits for the default partition is refused once its month is there, and what
        -- it is part of with it: so all wait in front of the table itself. In one step, because
        -- a transaction that has read the ledger and is to write it has locks of both.
        GRANT DELETE ON ledger_entry, ledger_entry_other TO CURRENT_USER;
        LOCK TABLE ONLY ledger_entry IN ACCESS EXCLUSIVE MODE;
        ALTER TABLE ledger_entry_other DISABLE TRIGGER ledger_entry_append_only;
        EXECUTE format(
            'WITH moved AS (DELETE FROM ledger_entry_other
                            WHERE opened_at >= %L AND opened_at < %L RETURNING *)
             INSERT INTO %I SELECT * FROM moved', v_from, v_until, v_name);
        GET DIAGNOSTICS v_moved = ROW_COUNT;
        ALTER TABLE ledger_entry_other ENABLE TRIGGER ledger_entry_append_only;
        REVOKE DELETE ON ledger_entry, ledger_entry_other FROM CURRENT_USER;
        IF v_moved > p_rows THEN
            RAISE EXCEPTION 'more than % rows of % are in ledger_entry_other', p_rows, v_name
                USING ERRCODE = 'object_not_in_prerequisite_state';
        END IF;
    END IF;
    EXECUTE format('ALTER TABLE ledger_entry ATTACH PARTITION %I FOR VALUES FROM (%L) TO (%L)',
                   v_name, v_from, v_until);
    EXECUTE format('CREATE TRIGGER no_truncate BEFORE TRUNCATE ON %I'
                   ' FOR EACH STATEMENT EXECUTE FUNCTION refuse_change()', v_name);
    EXECUTE format('REVOKE UPDATE, DELETE, TRUNCATE ON %I FROM PUBLIC, CURRENT_USER', v_name);
    RETURN v_moved;
END $$;

-- For guards of the release before, which ask for all months at once: one that cannot be made does
-- not keep those behind it.
CREATE OR REPLACE FUNCTION ensure_ledger_partitions(p_ahead integer) RETURNS text[]
LANGUAGE plpgsql AS $$
DECLARE
    v_due  date[];
    v_made text[] := '{}';
BEGIN
    -- All first: nothing may look at the ledger's partitions while they are changed.
    SELECT coalesce(array_agg(d.month ORDER BY d.month), '{}') INTO v_due
        FROM ledger_months_due(p_ahead) d;
    FOR i IN 1 .. coalesce(array_length(v_due, 1), 0) LOOP
        BEGIN
            IF make_ledger_month(v_due[i], 20000) IS NOT NULL THEN
                v_made := v_made || ('ledger_entry_' || to_char(v_due[i], 'YYYYMM'));
            END IF;
        EXCEPTION WHEN OTHERS THEN
            RAISE WARNING 'the ledger''s month % was not made: %', v_due[i], SQLERRM;
        END;
    END LOOP;
    RETURN v_made;
END $$;

-- Re-ratings -------------------------------------------------------------------------------------

-- Until the end of the transaction nobody else adds to these attempts what changes their sums.
CREATE FUNCTION lock_attempts(p_attempts text[]) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    v_attempt text;
BEGIN
    FOR v_attempt IN SELECT DISTINCT a FROM unnest(p_attempts) a ORDER BY a LOOP
        PERFORM pg_advisory_xact_lock(x'7E44'::integer, hashtext(v_attempt));
    END LOOP;
END $$;

-- Makes the sum of an attempt's entries what it would have cost at another price version, by an
-- entry of the difference. It moves no counter. Returns the difference; 0: that is its sum already,
-- and no entry was written; NULL: there is no such attempt.
CREATE FUNCTION rerate_entry_to(
    p_writer text, p_replica text, p_attempt_id text, p_opened_at timestamptz, p_amount bigint,
    p_price_version text, p_actor text, p_reason text
) RETURNS bigint LANGUAGE plpgsql AS $$
DECLARE
    f       ledger_entry;
    v_sum   bigint;
    v_rev   integer;
BEGIN
    PERFORM lock_attempts(ARRAY[p_attempt_id]);
    SELECT * INTO f FROM ledger_entry WHERE attempt_id = p_attempt_id AND opened_at = p_opened_at
        AND kind IN ('attempt', 'unknown') AND NOT late;
    IF NOT FOUND THEN
        RETURN NULL;
    END IF;
    SELECT f.amount_micro_usd + coalesce(sum(amount_micro_usd), 0),
           coalesce(max(revision) FILTER (WHERE kind = 'rerating'), 0) + 1
        INTO v_sum, v_rev FROM ledger_entry
        WHERE attempt_id = p_attempt_id AND opened_at = p_opened_at AND NOT late
          AND kind IN ('correction', 'rerating');
    IF v_sum = p_amount THEN
        RETURN 0;
    END IF;
    PERFORM append_chained(p_writer, p_replica, identity_of(f) || jsonb_build_object(
        'kind', 'rerating', 'revision', v_rev, 'amount_micro_usd', p_amount - v_sum,
        'price_version', p_price_version, 'outcome', f.outcome, 'usage_source', f.usage_source,
        'actor', p_actor, 'reason', p_reason, 'closed_at', clock_timestamp()));
    RETURN p_amount - v_sum;
END $$;

-- Grants -----------------------------------------------------------------------------------------

-- As in 0006, but for the clock: a grant may have waited for its counters for as long as a refusal
-- asks others to give back, or until its window ended. Holders take a grant of a window that has
-- ended for what it is, and ask again.
CREATE OR REPLACE FUNCTION grant_slices(
    p_incarnation bigint, p_sequence bigint, p_caps bigint[], p_requests jsonb
) RETURNS jsonb LANGUAGE plpgsql AS $$
DECLARE
    c          record;
    r          jsonb;
    item       jsonb;
    v_began    timestamptz;                        -- says whose windows' counters are locked
    v_now      timestamptz;
    v_state    text := 'done';
    v_n        integer := 0;
    v_at       integer;
    v_caps     bigint[] := '{}';
    v_counters bigint[] := '{}';
    v_limits   bigint[] := '{}';
    v_hard     boolean[] := '{}';                  -- refuses
    v_soft     boolean[] := '{}';                  -- audited only
    v_retry    integer[] := '{}';
    v_used     bigint[] := '{}';
    v_granted  bigint[] := '{}';
    v_returned bigint[] := '{}';
    v_known    bigint[] := '{}';
    v_wanted   boolean[] := '{}';
    v_largest  bigint[] := '{}';
    v_wish     bigint[] := '{}';
    v_more     bigint[] := '{}';
    v_back     bigint[] := '{}';
    v_refused  boolean[] := '{}';
    v_ends     double precision[] := '{}';
    v_plan     bigint[];
    v_over     bigint[];
    v_counter  counter;
    v_slice    slice;
    v_delta    bigint;
    v_want     bigint;
    v_take     bigint;
    v_left     bigint;
    v_verdict  jsonb;
    v_verdicts jsonb := '[]';
    v_slices   jsonb := '[]';
BEGIN
    PERFORM set_config('lock_timeout', '2000', true);
    UPDATE slice_holder SET sequence = p_sequence
        WHERE incarnation_id = p_incarnation AND sequence < p_sequence;
    IF NOT FOUND THEN
        v_state := 'repeat';
    END IF;
    PERFORM 1 FROM incarnation
        WHERE incarnation_id = p_incarnation AND closed_at IS NULL AND ended_at IS NULL
          AND lease_until > clock_timestamp()
        FOR KEY SHARE;
    IF NOT FOUND THEN
        RETURN jsonb_build_object('state', 'ended');
    END IF;
    IF grants_suspended() THEN
        RETURN jsonb_build_object('state', 'suspended');
    END IF;

    v_began := clock_timestamp();
    v_now := v_began;
    FOR c IN
        SELECT k.*, w.window_start, w.window_end FROM cap k
            CROSS JOIN LATERAL cap_window(k.window_kind, abs(k.window_seconds), k.window_unit,
                                          k.window_zone, v_began) w
        WHERE k.cap_id = ANY (p_caps)
        ORDER BY k.scope, k.scope_id, k.dimension, k.window_seconds, k.window_key
    LOOP
        LOOP
            SELECT * INTO v_counter FROM counter t
                WHERE t.scope = c.scope AND t.scope_id = c.scope_id AND t.dimension = c.dimension
                  AND t.window_seconds = c.window_seconds AND t.window_key = c.window_key
                  AND t.window_start = c.window_start
                FOR UPDATE;
            EXIT WHEN FOUND;
            INSERT INTO counter (scope, scope_id, dimension, window_seconds, window_key,
                    window_start, window_end)
                VALUES (c.scope, c.scope_id, c.dimension, c.window_seconds, c.window_key,
                    c.window_start, c.window_end)
                ON CONFLICT DO NOTHING;
        END LOOP;
        v_now := clock_timestamp();
        IF v_counter.window_end IS DISTINCT FROM c.window_end THEN  -- made by the release before
            UPDATE counter SET window_end = c.window_end WHERE counter_id = v_counter.counter_id;
        END IF;
        IF c.window_kind = 'rolling' THEN
            PERFORM release_expired(v_counter.counter_id, abs(c.window_seconds));
            SELECT * INTO STRICT v_counter FROM counter WHERE counter_id = v_counter.counter_id;
        END IF;
        v_slice := NULL;
        SELECT * INTO v_slice FROM slice
            WHERE incarnation_id = p_incarnation AND counter_id = v_counter.counter_id;
        v_n := v_n + 1;
        v_caps[v_n] := c.cap_id;
        v_counters[v_n] := v_counter.counter_id;
        v_hard[v_n] := c.mode = 'block' AND c.retired_at IS NULL AND c.amount IS NOT NULL;
        v_soft[v_n] := c.mode = 'audit' AND c.retired_at IS NULL AND c.amount IS NOT NULL;
        v_retry[v_n] := CASE
            WHEN c.window_kind = 'rolling' THEN rolling_width(abs(c.window_seconds))
            WHEN c.window_end IS NOT NULL
            THEN greatest(1, ceil(extract(epoch FROM c.window_end - v_now))::integer) END;
        v_limits[v_n] := coalesce(c.amount, 0);
        v_used[v_n] := v_counter.settled + v_counter.outstanding + v_counter.sliced;
        v_granted[v_n] := coalesce(v_slice.granted, 0);
        v_returned[v_n] := coalesce(v_slice.returned, 0);
        v_wanted[v_n] := coalesce(v_counter.wanted_until > v_now, false);
        v_known[v_n] := NULL;
        v_largest[v_n] := 0;
        v_wish[v_n] := 0;
        v_more[v_n] := 0;
        v_back[v_n] := 0;
        v_refused[v_n] := false;
        v_ends[v_n] := extract(epoch FROM c.window_end - clock_timestamp());
    END LOOP;

    IF v_state = 'done' THEN
        FOR r IN SELECT value FROM jsonb_array_elements(p_requests) LOOP
            v_verdict := NULL;
            v_plan := '{}';
            v_over := '{}';
            FOR item IN SELECT value FROM jsonb_array_elements(r->'asks') LOOP
                v_at := array_position(v_caps, (item->>0)::bigint);
                IF v_at IS NULL THEN
                    v_verdict := jsonb_build_object('granted', false, 'unknown_cap', item->0);
                    EXIT;
                END IF;
                v_take := (item->>3)::bigint;
                v_want := (item->>4)::bigint;
                v_largest[v_at] := greatest(v_largest[v_at], v_take + v_want);
                IF (item->>1)::bigint <> v_counters[v_at] THEN
                    -- Another window: what was set aside of the old one is of no use here.
                    v_want := v_want + v_take;
                    v_take := 0;
                END IF;
                v_delta := v_want;
                IF v_want > 0 THEN
                    -- Granted beyond what the holder knows of (an overrun was settled): comes first.
                    v_known[v_at] := coalesce(v_known[v_at], CASE
                        WHEN (item->>1)::bigint = v_counters[v_at] THEN (item->>2)::bigint
                        ELSE v_granted[v_at] END);
                    v_delta := greatest(0, v_want - (v_granted[v_at] - v_known[v_at]));
                END IF;
                v_plan := v_plan || v_at::bigint || v_delta || v_want || (item->>5)::bigint;
                IF v_delta > 0 AND v_hard[v_at]
                        AND v_used[v_at] + v_more[v_at] - v_back[v_at] + v_delta > v_limits[v_at] THEN
                    v_verdict := jsonb_build_object(
                        'granted', false, 'cap', v_caps[v_at],
                        'remaining', greatest(0, v_limits[v_at] - v_used[v_at] - v_more[v_at]
                                                 + v_back[v_at] + v_take),
                        'retry_after', v_retry[v_at],
                        'at', extract(epoch FROM v_now),
                        -- Holders that have not said since then that nothing is idle with them.
                        'idle_elsewhere', EXISTS (
                            SELECT FROM slice s JOIN incarnation i USING (incarnation_id)
                            WHERE s.counter_id = v_counters[v_at]
                              AND s.incarnation_id <> p_incarnation
                              AND s.granted - s.returned > s.settled
                              AND i.lease_until > v_now AND i.closed_at IS NULL
                              AND coalesce(s.recalled_at, '-infinity')
                                  <= coalesce(to_timestamp((r->>'since')::double precision),
                                             v_now)));
                    v_refused[v_at] := true;
                    EXIT;
                END IF;
            END LOOP;
            IF v_verdict IS NULL THEN
                FOR i IN 1 .. coalesce(array_length(v_plan, 1), 0) BY 4 LOOP
                    v_at := v_plan[i];
                    v_more[v_at] := v_more[v_at] + v_plan[i + 1];
                    IF v_known[v_at] IS NOT NULL THEN
                        v_known[v_at] := least(v_granted[v_at],
                                               v_known[v_at] + v_plan[i + 2] - v_plan[i + 1]);
                    END IF;
                    IF v_plan[i + 2] > 0 THEN
                        v_wish[v_at] := v_wish[v_at] + v_plan[i + 3];
                    END IF;
                    IF v_soft[v_at] AND v_used[v_at] + v_more[v_at] > v_limits[v_at] THEN
                        v_over := v_over || v_caps[v_at];
                    END IF;
                END LOOP;
                v_verdict := jsonb_build_object('granted', true, 'over', to_jsonb(v_over));
            ELSE
                FOR item IN SELECT value FROM jsonb_array_elements(r->'asks') LOOP
                    v_at := array_position(v_caps, (item->>0)::bigint);
                    IF v_at IS NOT NULL AND (item->>4)::bigint > 0
                            AND (item->>1)::bigint = v_counters[v_at] THEN
                        v_back[v_at] := v_back[v_at] + (item->>3)::bigint;
                    END IF;
                END LOOP;
            END IF;
            v_verdicts := v_verdicts || v_verdict;
        END LOOP;
    END IF;

    FOR n IN 1 .. v_n LOOP
        IF v_wish[n] > 0 AND NOT v_wanted[n] AND NOT v_refused[n] THEN
            IF v_hard[n] OR (v_soft[n] AND v_used[n] + v_more[n] <= v_limits[n]) THEN
                -- A share of what is left; near the cap nothing beyond what is needed.
                v_left := v_limits[n] - v_used[n] - v_more[n] + v_back[n];
                v_delta := least(v_wish[n], v_left / 8);
                IF v_delta < v_largest[n] THEN
                    v_delta := 0;
                END IF;
            ELSE
                v_delta := v_wish[n];
            END IF;
            v_more[n] := v_more[n] + v_delta;
        END IF;
        IF v_more[n] <> 0 OR v_back[n] <> 0 THEN
            v_granted[n] := v_granted[n] + v_more[n];
            v_returned[n] := v_returned[n] + v_back[n];
            INSERT INTO slice (incarnation_id, counter_id, granted, returned)
                VALUES (p_incarnation, v_counters[n], v_granted[n], v_returned[n])
                ON CONFLICT (incarnation_id, counter_id) DO UPDATE
                SET granted = EXCLUDED.granted, returned = EXCLUDED.returned;
        END IF;
        IF v_more[n] <> v_back[n] OR v_refused[n] THEN
            UPDATE counter SET sliced = sliced + v_more[n] - v_back[n],
                    wanted_until = CASE WHEN v_refused[n] THEN v_now + interval '2 seconds'
                                   ELSE wanted_until END
                WHERE counter_id = v_counters[n];
        END IF;
        v_slices := v_slices || jsonb_build_array(jsonb_build_array(
            v_caps[n], v_counters[n], v_granted[n], v_returned[n], v_ends[n]));
    END LOOP;
    RETURN jsonb_build_object('state', v_state, 'verdicts', v_verdicts, 'slices', v_slices);
END $$;
