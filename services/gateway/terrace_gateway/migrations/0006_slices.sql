-- Slices: Postgres grants parts of a counter to incarnations of guards, which sub-allocate them in
-- memory. The protocol and its reasons: docs/gateway/slices.md.
--
-- What counts against a cap: counter.settled + counter.outstanding (guards of the release before)
-- + counter.sliced. counter.sliced = sum of (granted - returned - released) of the counter's slices.
-- Only grants, returns and overruns touch counter rows; settlement touches the holder's own slices.
-- Lock order: holder, incarnation, then counters by (scope, scope_id, dimension, window_seconds,
-- window_key, window_start), as the functions of the release before have it.

-- Incarnations -----------------------------------------------------------------------------------

ALTER TABLE incarnation
    ADD COLUMN lease_until          timestamptz,       -- NULL: a guard of the release before
    ADD COLUMN stream_limit_seconds integer NOT NULL DEFAULT 0,
    ADD COLUMN declared_timeline    text,
    ADD COLUMN closed_at            timestamptz,
    ADD COLUMN gauges_freed_at      timestamptz;
CREATE INDEX incarnation_open ON incarnation (lease_until)
    WHERE lease_until IS NOT NULL AND gauges_freed_at IS NULL;

-- Its own row, because heartbeats lock the incarnation's.
CREATE TABLE slice_holder (
    incarnation_id bigint PRIMARY KEY REFERENCES incarnation,
    sequence       bigint NOT NULL DEFAULT 0           -- of the last message that was executed
) WITH (fillfactor = 50);

-- Caps -------------------------------------------------------------------------------------------

ALTER TABLE cap DROP CONSTRAINT cap_pkey;
ALTER TABLE cap DROP CONSTRAINT cap_scope_check;
ALTER TABLE cap DROP CONSTRAINT cap_dimension_check;
ALTER TABLE cap DROP CONSTRAINT cap_window_seconds_check;
ALTER TABLE cap
    ADD COLUMN cap_id      bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    ADD COLUMN window_kind text,
    ADD COLUMN window_unit text,
    ADD COLUMN window_zone text NOT NULL DEFAULT 'UTC',
    ADD COLUMN window_key  text NOT NULL DEFAULT '',
    ADD COLUMN mode        text NOT NULL DEFAULT 'block' CHECK (mode IN ('block', 'audit')),
    ADD COLUMN thresholds  integer[] NOT NULL DEFAULT '{}',
    ADD COLUMN retired_at  timestamptz,
    ADD CHECK (scope IN ('org', 'team', 'user', 'app', 'key', 'model', 'provider')),
    ADD CHECK (dimension IN ('requests', 'input_tokens', 'output_tokens', 'total_tokens',
                             'micro_usd', 'concurrency'));
UPDATE cap SET window_kind = CASE window_seconds WHEN 0 THEN 'lifetime' ELSE 'fixed' END;
ALTER TABLE cap
    ALTER COLUMN window_kind SET NOT NULL,
    ADD CHECK (CASE window_kind
        WHEN 'lifetime' THEN window_seconds = 0
        WHEN 'fixed' THEN window_seconds > 0
        WHEN 'rolling' THEN window_seconds < 0
        WHEN 'calendar' THEN window_seconds < 0
            AND window_unit IN ('minute', 'hour', 'day', 'week', 'month')
        ELSE false END),
    ADD CHECK (dimension <> 'concurrency' OR window_kind = 'lifetime');
-- One row per scope, dimension and window for ever: a cap that comes back finds its count.
CREATE UNIQUE INDEX cap_identity
    ON cap (scope, scope_id, dimension, window_seconds, window_key);

-- Writers give the window as it is; windows that guards of the release before do not know get
-- negative seconds, so that their joins on window_seconds never meet them.
CREATE FUNCTION normalise_cap() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    NEW.window_kind := coalesce(NEW.window_kind,
                                CASE NEW.window_seconds WHEN 0 THEN 'lifetime' ELSE 'fixed' END);
    NEW.window_zone := coalesce(NEW.window_zone, 'UTC');
    IF NEW.window_kind = 'calendar' THEN
        PERFORM clock_timestamp() AT TIME ZONE NEW.window_zone;   -- an unknown zone is refused here
        NEW.window_seconds := -CASE NEW.window_unit
            WHEN 'minute' THEN 60 WHEN 'hour' THEN 3600 WHEN 'day' THEN 86400
            WHEN 'week' THEN 604800 ELSE 2592000 END;
        NEW.window_key := 'calendar ' || coalesce(NEW.window_unit, '?') || ' ' || NEW.window_zone;
    ELSIF NEW.window_kind = 'rolling' THEN
        NEW.window_seconds := -abs(NEW.window_seconds);
        NEW.window_key := 'rolling';
    ELSE
        NEW.window_key := '';
    END IF;
    RETURN NEW;
END $$;
CREATE TRIGGER cap_normalise BEFORE INSERT OR UPDATE ON cap
    FOR EACH ROW EXECUTE FUNCTION normalise_cap();

-- Counters and slices ----------------------------------------------------------------------------

ALTER TABLE counter DROP CONSTRAINT counter_scope_scope_id_dimension_window_seconds_window_star_key;
ALTER TABLE counter
    ADD COLUMN sliced       bigint NOT NULL DEFAULT 0,
    ADD COLUMN window_key   text NOT NULL DEFAULT '',
    ADD COLUMN window_end   timestamptz,               -- NULL: no end, or one of the release before
    ADD COLUMN wanted_until timestamptz,               -- a holder was refused: others give back
    ADD UNIQUE (scope, scope_id, dimension, window_seconds, window_key, window_start);
CREATE INDEX counter_wanted ON counter (wanted_until) WHERE wanted_until IS NOT NULL;
CREATE INDEX counter_ended ON counter (window_end) WHERE window_end IS NOT NULL;

-- All columns are running totals, so messages carry absolute state and repeats do nothing.
CREATE TABLE slice (
    incarnation_id bigint NOT NULL REFERENCES incarnation,
    counter_id     bigint NOT NULL REFERENCES counter ON DELETE CASCADE,
    granted        bigint NOT NULL DEFAULT 0,
    returned       bigint NOT NULL DEFAULT 0,          -- by its holder, never used
    settled        bigint NOT NULL DEFAULT 0,          -- by entries of the ledger
    released       bigint NOT NULL DEFAULT 0,          -- left a rolling window, or corrected (signed)
    recalled_at    timestamptz,                        -- its holder has given back what was idle
    PRIMARY KEY (incarnation_id, counter_id)
) WITH (fillfactor = 70);
CREATE INDEX slice_counter ON slice (counter_id);

-- What was settled when, for rolling windows. A row is one holder's own.
CREATE TABLE rolling_bucket (
    counter_id     bigint NOT NULL REFERENCES counter ON DELETE CASCADE,
    bucket_start   timestamptz NOT NULL,
    incarnation_id bigint NOT NULL,
    amount         bigint NOT NULL,
    PRIMARY KEY (counter_id, bucket_start, incarnation_id)
);

-- Guards of the release before delete counters of old fixed windows; not while slices count there.
CREATE FUNCTION keep_sliced_counter() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF OLD.sliced <> 0 AND coalesce(OLD.window_end, 'infinity') > clock_timestamp() - interval '1 day'
    THEN
        RETURN NULL;
    END IF;
    RETURN OLD;
END $$;
CREATE TRIGGER counter_keep_sliced BEFORE DELETE ON counter
    FOR EACH ROW EXECUTE FUNCTION keep_sliced_counter();

-- A cap that was lowered recalls what is idle.
CREATE FUNCTION recall_lowered_cap() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF NEW.amount < coalesce(OLD.amount, 9223372036854775807) THEN
        UPDATE counter SET wanted_until = clock_timestamp() + interval '5 seconds'
            WHERE scope = NEW.scope AND scope_id = NEW.scope_id AND dimension = NEW.dimension
              AND window_seconds = NEW.window_seconds AND window_key = NEW.window_key
              AND sliced > 0 AND (window_end IS NULL OR window_end > clock_timestamp());
    END IF;
    RETURN NULL;
END $$;
CREATE TRIGGER cap_lowered AFTER UPDATE OF amount ON cap
    FOR EACH ROW EXECUTE FUNCTION recall_lowered_cap();

-- The window of a cap at a moment: begin (which names its counter) and end (NULL: none).
CREATE FUNCTION cap_window(
    p_kind text, p_seconds integer, p_unit text, p_zone text, p_now timestamptz,
    OUT window_start timestamptz, OUT window_end timestamptz
) LANGUAGE plpgsql STABLE AS $$
DECLARE
    v_local timestamp;
BEGIN
    window_start := 'epoch';
    IF p_kind = 'fixed' THEN
        window_start := date_bin(make_interval(secs => p_seconds), p_now, 'epoch'::timestamptz);
        window_end := window_start + make_interval(secs => p_seconds);
    ELSIF p_kind = 'calendar' AND p_unit IN ('minute', 'hour') THEN
        -- Elapsed time, not the wall's: an hour that a clock shows twice is two windows.
        window_start := date_trunc(p_unit, p_now, p_zone);
        window_end := window_start + ('1 ' || p_unit)::interval;
    ELSIF p_kind = 'calendar' THEN
        v_local := date_trunc(p_unit, p_now AT TIME ZONE p_zone);
        window_start := v_local AT TIME ZONE p_zone;
        window_end := (v_local + ('1 ' || p_unit)::interval) AT TIME ZONE p_zone;
    END IF;
END $$;

-- Time line --------------------------------------------------------------------------------------

CREATE TABLE slice_authority (
    only_one        boolean PRIMARY KEY DEFAULT true CHECK (only_one),
    timeline        text NOT NULL,
    suspended_until timestamptz NOT NULL DEFAULT 'epoch'
);

-- Changes when another server took over. A service that hides it has storage that all servers
-- share, so there nothing can be lost by a failover.
CREATE FUNCTION database_timeline() RETURNS text LANGUAGE plpgsql AS $$
BEGIN
    RETURN left(pg_walfile_name(pg_current_wal_lsn()), 8);
EXCEPTION WHEN insufficient_privilege OR feature_not_supported OR undefined_function
        OR object_not_in_prerequisite_state THEN
    RETURN 'hidden';
END $$;
INSERT INTO slice_authority (timeline) SELECT database_timeline();

-- Whether grants are suspended: after a change of the timeline, until every holder whose lease may
-- still run has declared what it holds.
CREATE FUNCTION grants_suspended() RETURNS boolean LANGUAGE plpgsql AS $$
DECLARE
    a slice_authority;
BEGIN
    SELECT * INTO STRICT a FROM slice_authority;
    IF a.timeline <> database_timeline() THEN
        RETURN true;
    END IF;
    IF a.suspended_until <= clock_timestamp() THEN
        RETURN false;
    END IF;
    RETURN EXISTS (SELECT FROM incarnation WHERE lease_until > clock_timestamp()
        AND closed_at IS NULL AND declared_timeline IS DISTINCT FROM a.timeline);
END $$;

-- Life of an incarnation -------------------------------------------------------------------------

CREATE FUNCTION begin_incarnation(
    p_replica text, p_lease_seconds integer, p_stream_limit_seconds integer
) RETURNS bigint LANGUAGE plpgsql AS $$
DECLARE
    v_id bigint;
BEGIN
    INSERT INTO incarnation (replica, lease_until, stream_limit_seconds, declared_timeline)
        VALUES (p_replica, clock_timestamp() + make_interval(secs => p_lease_seconds),
                p_stream_limit_seconds, database_timeline())
        RETURNING incarnation_id INTO v_id;
    INSERT INTO slice_holder (incarnation_id) VALUES (v_id);
    RETURN v_id;
END $$;

-- Renews the lease. state 'ended': the lease ended or the incarnation is closed or unknown; its
-- process needs a new one.
CREATE FUNCTION heartbeat(
    p_incarnation bigint, p_lease_seconds integer,
    OUT state text, OUT database_time timestamptz, OUT timeline text, OUT suspended boolean,
    OUT declared boolean, OUT policy_epoch bigint, OUT wanted bigint[]
) LANGUAGE plpgsql AS $$
DECLARE
    v_declared text;
BEGIN
    timeline := database_timeline();
    UPDATE incarnation SET heartbeat_at = clock_timestamp(),
            lease_until = clock_timestamp() + make_interval(secs => p_lease_seconds)
        WHERE incarnation_id = p_incarnation AND closed_at IS NULL AND ended_at IS NULL
          AND lease_until > clock_timestamp()
        RETURNING declared_timeline INTO v_declared;
    state := CASE WHEN FOUND THEN 'live' ELSE 'ended' END;
    declared := v_declared IS NOT DISTINCT FROM timeline;
    -- The longest lease that the lost tail of the log can hold began just before it.
    UPDATE slice_authority a SET timeline = heartbeat.timeline,
            suspended_until = clock_timestamp() + make_interval(secs => p_lease_seconds)
        WHERE a.timeline <> heartbeat.timeline;
    suspended := grants_suspended();
    IF to_regclass('policy_head') IS NOT NULL THEN
        SELECT h.epoch INTO policy_epoch FROM policy_head h;
    END IF;
    policy_epoch := coalesce(policy_epoch, 0);
    SELECT coalesce(array_agg(c.counter_id), '{}') INTO wanted
        FROM counter c JOIN slice s USING (counter_id)
        WHERE c.wanted_until > clock_timestamp() AND s.incarnation_id = p_incarnation
          AND s.granted - s.returned > s.settled;
    database_time := clock_timestamp();
END $$;

-- The lock on its row keeps grants out (they hold it FOR KEY SHARE).
CREATE FUNCTION fold_incarnation(p_incarnation bigint, p_give_back boolean, p_gauges boolean)
RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    s record;
BEGIN
    FOR s IN
        SELECT sl.*, c.dimension, c.window_key FROM counter c JOIN slice sl USING (counter_id)
        WHERE sl.incarnation_id = p_incarnation AND (p_gauges OR c.dimension <> 'concurrency')
        ORDER BY c.scope, c.scope_id, c.dimension, c.window_seconds, c.window_key, c.window_start
        FOR UPDATE OF c, sl
    LOOP
        UPDATE counter SET sliced = sliced - (s.granted - s.returned - s.released),
                settled = settled + CASE
                    WHEN s.dimension = 'concurrency' THEN 0
                    WHEN p_give_back THEN s.settled - s.released
                    ELSE s.granted - s.returned - s.released END
            WHERE counter_id = s.counter_id;
        IF s.window_key = 'rolling' AND NOT p_give_back THEN  -- the forfeit leaves the window too
            INSERT INTO rolling_bucket (counter_id, bucket_start, incarnation_id, amount)
                VALUES (s.counter_id, clock_timestamp(), -p_incarnation,
                        greatest(0, s.granted - s.returned - s.settled));
        END IF;
        DELETE FROM slice
            WHERE incarnation_id = p_incarnation AND counter_id = s.counter_id;
    END LOOP;
END $$;

-- Once everything that it spooled is in the ledger: what was granted and not settled comes back.
-- Its gauges come back when its last stream must have ended. False: it is closed already.
CREATE FUNCTION close_incarnation(p_incarnation bigint) RETURNS boolean LANGUAGE plpgsql AS $$
BEGIN
    PERFORM 1 FROM incarnation
        WHERE incarnation_id = p_incarnation AND closed_at IS NULL FOR UPDATE;
    IF NOT FOUND THEN
        RETURN false;
    END IF;
    PERFORM fold_incarnation(p_incarnation, true, false);
    UPDATE incarnation SET closed_at = clock_timestamp(),
            ended_at = coalesce(ended_at, clock_timestamp())
        WHERE incarnation_id = p_incarnation;
    RETURN true;
END $$;

-- For an operator whose replica's volume is lost. What was not accounted for counts as spent for
-- good, unless the operator knows better. 'closed' | 'already' | 'lease_running'
CREATE FUNCTION close_lost_incarnation(
    p_incarnation bigint, p_actor text, p_reason text, p_give_back boolean
) RETURNS text LANGUAGE plpgsql AS $$
DECLARE
    i         incarnation;
    v_forfeit jsonb;
BEGIN
    SELECT * INTO i FROM incarnation
        WHERE incarnation_id = p_incarnation AND closed_at IS NULL FOR UPDATE;
    IF NOT FOUND THEN
        RETURN 'already';
    END IF;
    IF i.lease_until > clock_timestamp() THEN
        RETURN 'lease_running';
    END IF;
    SELECT coalesce(jsonb_agg(jsonb_build_object('counter_id', counter_id,
                'amount', greatest(0, granted - returned - settled)) ORDER BY counter_id), '[]')
        INTO v_forfeit FROM slice WHERE incarnation_id = p_incarnation;
    PERFORM fold_incarnation(p_incarnation, p_give_back, false);
    UPDATE incarnation SET closed_at = clock_timestamp(),
            ended_at = coalesce(ended_at, clock_timestamp())
        WHERE incarnation_id = p_incarnation;
    INSERT INTO audit (actor, action, subject, reason, detail)
        VALUES (p_actor, 'incarnation.close_lost', p_incarnation::text, p_reason,
                jsonb_build_object('replica', i.replica, 'gave_back', p_give_back,
                                   'forfeited', v_forfeit));
    RETURN 'closed';
END $$;

-- Gauges of holders that are gone, once their last stream must have ended. Returns how many
-- incarnations were freed.
CREATE FUNCTION free_gauges() RETURNS integer LANGUAGE plpgsql AS $$
DECLARE
    v_id   bigint;
    v_done integer := 0;
BEGIN
    FOR v_id IN
        SELECT incarnation_id FROM incarnation
        WHERE lease_until IS NOT NULL AND gauges_freed_at IS NULL
          AND least(lease_until, closed_at) + make_interval(secs => stream_limit_seconds)
              < clock_timestamp()
        ORDER BY incarnation_id LIMIT 20 FOR UPDATE SKIP LOCKED
    LOOP
        PERFORM 1 FROM counter WHERE counter_id IN (
                SELECT s.counter_id FROM slice s WHERE s.incarnation_id = v_id)
              AND dimension = 'concurrency'
            ORDER BY scope, scope_id, dimension, window_seconds, window_key, window_start
            FOR UPDATE;
        WITH freed AS (
            DELETE FROM slice s USING counter c
            WHERE s.incarnation_id = v_id AND c.counter_id = s.counter_id
              AND c.dimension = 'concurrency'
            RETURNING s.counter_id, s.granted - s.returned - s.released AS held)
        UPDATE counter c SET sliced = c.sliced - freed.held
            FROM freed WHERE c.counter_id = freed.counter_id;
        UPDATE incarnation SET gauges_freed_at = clock_timestamp() WHERE incarnation_id = v_id;
        v_done := v_done + 1;
    END LOOP;
    RETURN v_done;
END $$;

-- Counters of windows that ended a day ago, with their slices.
CREATE FUNCTION drop_ended_counters(p_limit integer) RETURNS integer LANGUAGE plpgsql AS $$
DECLARE
    v_done integer;
BEGIN
    DELETE FROM counter WHERE counter_id IN (
        SELECT counter_id FROM counter
        WHERE window_end < clock_timestamp() - interval '1 day' AND outstanding = 0
        LIMIT p_limit FOR UPDATE SKIP LOCKED);
    GET DIAGNOSTICS v_done = ROW_COUNT;
    UPDATE counter SET wanted_until = NULL WHERE counter_id IN (
        SELECT counter_id FROM counter WHERE wanted_until < clock_timestamp() - interval '10 seconds'
        LIMIT p_limit FOR UPDATE SKIP LOCKED);
    RETURN v_done;
END $$;

-- Grants and returns -----------------------------------------------------------------------------

-- Settled amounts that have left a rolling window stop counting. The counter is locked.
CREATE FUNCTION release_expired(p_counter bigint, p_seconds integer) RETURNS void
LANGUAGE plpgsql AS $$
DECLARE
    b       record;
    v_width interval := make_interval(secs => rolling_width(p_seconds));
BEGIN
    FOR b IN
        WITH gone AS (
            DELETE FROM rolling_bucket WHERE counter_id = p_counter
              AND bucket_start + v_width <= clock_timestamp() - make_interval(secs => p_seconds)
            RETURNING incarnation_id, amount)
        SELECT incarnation_id, sum(amount)::bigint AS amount FROM gone GROUP BY 1 ORDER BY 1
    LOOP
        UPDATE slice SET released = released + b.amount
            WHERE incarnation_id = b.incarnation_id AND counter_id = p_counter;
        IF FOUND THEN
            UPDATE counter SET sliced = sliced - b.amount WHERE counter_id = p_counter;
        ELSE
            UPDATE counter SET settled = greatest(0, settled - b.amount)
                WHERE counter_id = p_counter;
        END IF;
    END LOOP;
END $$;

-- Seconds of a bucket: a sixtieth of the window.
CREATE FUNCTION rolling_width(p_seconds integer) RETURNS integer LANGUAGE sql IMMUTABLE AS
$$ SELECT greatest(1, ceil(p_seconds / 60.0)::integer) $$;

-- One message of a holder. p_requests: a list of requests; a request is {"since": s | null, "asks":
--   [[cap_id, counter_id, granted, take, short, wish], ...]}
-- since: the "at" of its first refusal, if it is asked again;
-- counter_id, granted: the slice as the holder knows it (0, 0: it has none); take: what the holder
-- has set aside of it; short: what is missing; wish: what it would like besides.
-- Every request gets all it needs or nothing. A refused one gives back what it had set aside of the
-- counters that did not suffice, in this transaction.
-- Answer: {"state": "done" | "repeat" | "ended" | "suspended",
--   "verdicts": per request {"granted": true, "over": [cap_id of audited caps]}
--             | {"granted": false, "cap": cap_id, "remaining": n, "retry_after": s | null,
--                "idle_elsewhere": bool, "at": s} | {"granted": false, "unknown_cap": cap_id},
--   "slices": [cap_id, counter_id, granted, returned, seconds to the window's end | null]}
-- "repeat": the sequence was executed before; nothing is granted, the slices say what holds.
CREATE FUNCTION grant_slices(
    p_incarnation bigint, p_sequence bigint, p_caps bigint[], p_requests jsonb
) RETURNS jsonb LANGUAGE plpgsql AS $$
DECLARE
    c          record;
    r          jsonb;
    item       jsonb;
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

    v_now := clock_timestamp();
    FOR c IN
        SELECT k.*, w.window_start, w.window_end FROM cap k
            CROSS JOIN LATERAL cap_window(k.window_kind, abs(k.window_seconds), k.window_unit,
                                          k.window_zone, v_now) w
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

-- A holder gives back what is idle. p_returned are running totals. It is also the word of the holder
-- that it looked after p_as_of (the database's time of its last beat) and that nothing is idle.
CREATE FUNCTION return_slices(
    p_incarnation bigint, p_counters bigint[], p_returned bigint[], p_as_of timestamptz
) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    c record;
BEGIN
    PERFORM set_config('lock_timeout', '2000', true);
    PERFORM 1 FROM incarnation WHERE incarnation_id = p_incarnation AND closed_at IS NULL
        FOR KEY SHARE;
    IF NOT FOUND THEN
        RETURN;
    END IF;
    FOR c IN
        SELECT t.counter_id, s.returned AS before, greatest(s.returned, p.returned) AS after
        FROM unnest(p_counters, p_returned) p (counter_id, returned)
            JOIN counter t USING (counter_id) JOIN slice s USING (counter_id)
        WHERE s.incarnation_id = p_incarnation
        ORDER BY t.scope, t.scope_id, t.dimension, t.window_seconds, t.window_key, t.window_start
        FOR UPDATE OF t
    LOOP
        UPDATE slice SET returned = c.after, recalled_at = greatest(recalled_at, p_as_of)
            WHERE incarnation_id = p_incarnation AND counter_id = c.counter_id;
        IF c.after > c.before THEN
            UPDATE counter SET sliced = sliced - (c.after - c.before)
                WHERE counter_id = c.counter_id;
        END IF;
    END LOOP;
END $$;

-- Everything that a holder holds, in absolute state: after a failover the database may have lost
-- its last grants. Slices that are not listed are released down to what was settled.
CREATE FUNCTION declare_slices(
    p_incarnation bigint, p_counters bigint[], p_granted bigint[], p_returned bigint[]
) RETURNS boolean LANGUAGE plpgsql AS $$
DECLARE
    c      record;
    v_held bigint;
BEGIN
    PERFORM 1 FROM incarnation WHERE incarnation_id = p_incarnation AND closed_at IS NULL
        AND ended_at IS NULL AND lease_until > clock_timestamp() FOR NO KEY UPDATE;
    IF NOT FOUND THEN
        RETURN false;
    END IF;
    FOR c IN
        SELECT t.counter_id, p.counter_id IS NOT NULL AS listed, p.granted AS p_granted,
            p.returned AS p_returned, coalesce(s.granted, 0) AS granted,
            coalesce(s.returned, 0) AS returned, coalesce(s.settled, 0) AS settled
        FROM counter t
            LEFT JOIN unnest(p_counters, p_granted, p_returned) p (counter_id, granted, returned)
                ON p.counter_id = t.counter_id
            LEFT JOIN slice s ON s.counter_id = t.counter_id AND s.incarnation_id = p_incarnation
        WHERE p.counter_id IS NOT NULL OR s.counter_id IS NOT NULL
        ORDER BY t.scope, t.scope_id, t.dimension, t.window_seconds, t.window_key, t.window_start
        FOR UPDATE OF t
    LOOP
        IF NOT c.listed THEN
            c.p_granted := c.granted;
            c.p_returned := greatest(c.returned, c.granted - c.settled);
        END IF;
        c.p_granted := greatest(c.granted, c.p_granted);
        c.p_returned := greatest(c.returned, c.p_returned);
        v_held := (c.p_granted - c.p_returned) - (c.granted - c.returned);
        INSERT INTO slice (incarnation_id, counter_id, granted, returned)
            VALUES (p_incarnation, c.counter_id, c.p_granted, c.p_returned)
            ON CONFLICT (incarnation_id, counter_id) DO UPDATE
            SET granted = EXCLUDED.granted, returned = EXCLUDED.returned;
        UPDATE counter SET sliced = sliced + v_held
            WHERE counter_id = c.counter_id AND v_held <> 0;
    END LOOP;
    UPDATE incarnation SET declared_timeline = database_timeline()
        WHERE incarnation_id = p_incarnation;
    RETURN true;
END $$;

-- Settlement -------------------------------------------------------------------------------------

-- Grants and returns lock counters, then slices. What a settlement needs of counters (an overrun, a
-- holder that is closed, a new rolling bucket, whose key refers to its counter) is locked in that
-- order too, before the first slice of the transaction; most need nothing. A return that commits
-- between this look and the settlement can make an overrun yet: both are tried again.
CREATE FUNCTION lock_settled_counters(
    p_incarnations bigint[], p_counters bigint[], p_amounts bigint[]
) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    IF EXISTS (
        SELECT FROM (SELECT q.incarnation_id, q.counter_id, sum(q.amount) AS amount
                     FROM unnest(p_incarnations, p_counters, p_amounts)
                         q (incarnation_id, counter_id, amount)
                     GROUP BY 1, 2 HAVING sum(q.amount) > 0) q
            LEFT JOIN slice s USING (incarnation_id, counter_id)
        WHERE s.counter_id IS NULL OR s.settled + q.amount > s.granted - s.returned
    ) THEN
        PERFORM 1 FROM counter t WHERE t.counter_id = ANY (p_counters)
            ORDER BY t.scope, t.scope_id, t.dimension, t.window_seconds, t.window_key,
                     t.window_start
            FOR NO KEY UPDATE;
    ELSIF EXISTS (SELECT FROM counter t
                  WHERE t.counter_id = ANY (p_counters) AND t.window_key = 'rolling') THEN
        PERFORM 1 FROM counter t WHERE t.counter_id = ANY (p_counters)
            ORDER BY t.scope, t.scope_id, t.dimension, t.window_seconds, t.window_key,
                     t.window_start
            FOR KEY SHARE;
    END IF;
END $$;

-- In the transaction of the ledger entries that were new. For a holder that is gone this makes its
-- forfeit smaller; beyond what was granted (an overrun, or a closed holder) the counter takes it.
CREATE FUNCTION settle_slices(p_incarnation bigint, p_counters bigint[], p_amounts bigint[])
RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    p        record;
    s        slice;
    v_excess bigint;
    v_width  integer;
BEGIN
    FOR p IN
        SELECT t.counter_id, t.window_key, t.window_seconds, sum(q.amount)::bigint AS amount
        FROM unnest(p_counters, p_amounts) q (counter_id, amount) JOIN counter t USING (counter_id)
        WHERE t.dimension <> 'concurrency'
        GROUP BY t.counter_id HAVING sum(q.amount) > 0
        ORDER BY t.scope, t.scope_id, t.dimension, t.window_seconds, t.window_key, t.window_start
    LOOP
        IF p.window_key = 'rolling' THEN
            v_width := rolling_width(abs(p.window_seconds));
            INSERT INTO rolling_bucket AS b (counter_id, bucket_start, incarnation_id, amount)
                VALUES (p.counter_id, date_bin(make_interval(secs => v_width), clock_timestamp(),
                        'epoch'::timestamptz), p_incarnation, p.amount)
                ON CONFLICT (counter_id, bucket_start, incarnation_id) DO UPDATE
                SET amount = b.amount + EXCLUDED.amount;
        END IF;
        UPDATE slice SET settled = settled + p.amount
            WHERE incarnation_id = p_incarnation AND counter_id = p.counter_id
            RETURNING * INTO s;
        IF NOT FOUND THEN
            UPDATE counter SET settled = settled + p.amount WHERE counter_id = p.counter_id;
            CONTINUE;
        END IF;
        v_excess := s.settled - (s.granted - s.returned);
        IF v_excess > 0 THEN
            UPDATE slice SET granted = granted + v_excess
                WHERE incarnation_id = p_incarnation AND counter_id = p.counter_id;
            UPDATE counter SET sliced = sliced + v_excess WHERE counter_id = p.counter_id;
        END IF;
    END LOOP;
END $$;

-- Late facts, signed. Holders do not know of them, so the counter moves and their totals do not.
-- A rolling window takes no credit: what it was charged leaves it soon, and once.
CREATE FUNCTION correct_counters(p_incarnation bigint, p_counters bigint[], p_deltas bigint[])
RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    p       record;
    v_width integer;
BEGIN
    FOR p IN
        SELECT t.counter_id, t.window_key, t.window_seconds, sum(q.delta)::bigint AS delta
        FROM unnest(p_counters, p_deltas) q (counter_id, delta) JOIN counter t USING (counter_id)
        WHERE t.dimension <> 'concurrency'
        GROUP BY t.counter_id HAVING sum(q.delta) <> 0
        ORDER BY t.scope, t.scope_id, t.dimension, t.window_seconds, t.window_key, t.window_start
    LOOP
        IF p.window_key = 'rolling' THEN
            CONTINUE WHEN p.delta < 0;
            v_width := rolling_width(abs(p.window_seconds));
            INSERT INTO rolling_bucket AS b (counter_id, bucket_start, incarnation_id, amount)
                VALUES (p.counter_id, date_bin(make_interval(secs => v_width), clock_timestamp(),
                        'epoch'::timestamptz), p_incarnation, p.delta)
                ON CONFLICT (counter_id, bucket_start, incarnation_id) DO UPDATE
                SET amount = b.amount + EXCLUDED.amount;
        END IF;
        PERFORM 1 FROM counter WHERE counter_id = p.counter_id FOR UPDATE;
        UPDATE slice SET released = released - p.delta
            WHERE incarnation_id = p_incarnation AND counter_id = p.counter_id;
        IF FOUND THEN
            UPDATE counter SET sliced = sliced + p.delta WHERE counter_id = p.counter_id;
        ELSE
            UPDATE counter SET settled = settled + p.delta WHERE counter_id = p.counter_id;
        END IF;
    END LOOP;
END $$;

-- What every cap's present window has used. settled: entries of the ledger. outstanding: all that
-- counts besides: running calls, idle slices, forfeits.
CREATE FUNCTION cap_spend() RETURNS TABLE (
    cap_id bigint, scope text, scope_id text, dimension text, window_kind text,
    window_seconds integer, window_unit text, window_zone text, settled bigint, outstanding bigint
) LANGUAGE sql STABLE AS $$
    SELECT k.cap_id, k.scope, k.scope_id, k.dimension, k.window_kind,
        CASE k.window_kind WHEN 'calendar' THEN 0 ELSE abs(k.window_seconds) END,
        k.window_unit, k.window_zone,
        coalesce(t.settled + s.settled, 0)::bigint,
        coalesce(t.outstanding + t.sliced - s.settled, 0)::bigint
    FROM cap k
        CROSS JOIN LATERAL cap_window(k.window_kind, abs(k.window_seconds), k.window_unit,
                                      k.window_zone, clock_timestamp()) w
        LEFT JOIN counter t ON t.scope = k.scope AND t.scope_id = k.scope_id
            AND t.dimension = k.dimension AND t.window_seconds = k.window_seconds
            AND t.window_key = k.window_key AND t.window_start = w.window_start
        LEFT JOIN LATERAL (SELECT coalesce(sum(x.settled - x.released), 0) AS settled
                           FROM slice x WHERE x.counter_id = t.counter_id) s ON true
    WHERE k.retired_at IS NULL
$$;

-- The release before -----------------------------------------------------------------------------

-- Its functions see slices, and only the caps that it knows: those of keys and teams, on money and
-- requests, in lifetime and fixed windows. A refusal of it asks holders for what is idle.
CREATE OR REPLACE FUNCTION reserve_attempt(
    p_key_hash bytea, p_attempt_id text, p_request_id text, p_trace_id text,
    p_incarnation bigint, p_replica text,
    p_model text, p_deployment text, p_provider text, p_surface text,
    p_reserved bigint, p_price_version text, p_hard_limit integer,
    OUT verdict text, OUT key_id text, OUT team text,
    OUT cap_scope text, OUT cap_dimension text, OUT retry_after integer
) LANGUAGE plpgsql AS $$
DECLARE
    k        virtual_key;
    c        record;
    v_now    timestamptz;
    v_id     bigint;
    v_used   bigint;
    v_need   bigint;
    v_start  timestamptz;
    v_ids    bigint[] := '{}';
    v_needs  bigint[] := '{}';
BEGIN
    SELECT * INTO k FROM virtual_key WHERE virtual_key.key_hash = p_key_hash;
    v_now := clock_timestamp();
    IF NOT FOUND OR k.revoked_at IS NOT NULL OR k.expires_at <= v_now THEN
        verdict := 'invalid_key';
        RETURN;
    END IF;
    key_id := k.key_id;
    team := k.team;
    IF k.models IS NOT NULL AND NOT p_model = ANY (k.models) THEN
        verdict := 'model_not_allowed';
        RETURN;
    END IF;
    FOR c IN
        SELECT * FROM cap
        WHERE ((cap.scope = 'key' AND cap.scope_id = k.key_id)
               OR (cap.scope = 'team' AND cap.scope_id = k.team))
          AND cap.dimension IN ('micro_usd', 'requests')
          AND cap.window_kind IN ('lifetime', 'fixed') AND cap.retired_at IS NULL
        ORDER BY cap.scope, cap.scope_id, cap.dimension, cap.window_seconds
    LOOP
        v_need := CASE c.dimension WHEN 'micro_usd' THEN p_reserved ELSE 1 END;
        v_start := CASE c.window_seconds WHEN 0 THEN 'epoch'::timestamptz
            ELSE date_bin(make_interval(secs => c.window_seconds), v_now, 'epoch'::timestamptz) END;
        SELECT t.counter_id, t.settled + t.outstanding + t.sliced INTO v_id, v_used FROM counter t
            WHERE t.scope = c.scope AND t.scope_id = c.scope_id AND t.dimension = c.dimension
              AND t.window_seconds = c.window_seconds AND t.window_key = ''
              AND t.window_start = v_start
            FOR UPDATE;
        IF NOT FOUND THEN
            INSERT INTO counter (scope, scope_id, dimension, window_seconds, window_start)
                VALUES (c.scope, c.scope_id, c.dimension, c.window_seconds, v_start)
                ON CONFLICT DO NOTHING;
            SELECT t.counter_id, t.settled + t.outstanding + t.sliced INTO STRICT v_id, v_used
                FROM counter t
                WHERE t.scope = c.scope AND t.scope_id = c.scope_id AND t.dimension = c.dimension
                  AND t.window_seconds = c.window_seconds AND t.window_key = ''
                  AND t.window_start = v_start
                FOR UPDATE;
        END IF;
        IF c.mode = 'block' AND c.amount IS NOT NULL AND v_used + v_need > c.amount THEN
            UPDATE counter SET wanted_until = v_now + interval '2 seconds'
                WHERE counter_id = v_id AND sliced > 0;
            verdict := 'cap';
            cap_scope := c.scope;
            cap_dimension := c.dimension;
            IF c.window_seconds > 0 THEN
                retry_after := greatest(1, ceil(c.window_seconds
                    - extract(epoch FROM clock_timestamp() - v_start))::integer);
            END IF;
            RETURN;
        END IF;
        v_ids := v_ids || v_id;
        v_needs := v_needs || v_need;
    END LOOP;
    -- A revocation that committed while we waited for the counters holds as well.
    PERFORM 1 FROM virtual_key v WHERE v.key_id = k.key_id AND v.revoked_at IS NULL;
    IF NOT FOUND THEN
        verdict := 'invalid_key';
        RETURN;
    END IF;
    FOR i IN 1 .. coalesce(array_length(v_ids, 1), 0) LOOP
        UPDATE counter SET outstanding = outstanding + v_needs[i] WHERE counter_id = v_ids[i];
    END LOOP;
    INSERT INTO attempt (attempt_id, request_id, trace_id, incarnation_id, replica, key_id, team,
            model, deployment, provider, surface, reserved_micro_usd, price_version,
            hard_limit_seconds, held_counters, held_amounts)
        VALUES (p_attempt_id, p_request_id, p_trace_id, p_incarnation, p_replica, k.key_id, k.team,
            p_model, p_deployment, p_provider, p_surface, p_reserved, p_price_version,
            p_hard_limit, v_ids, v_needs);
    -- Coarse on purpose: one more row version per key and ten seconds, not per request.
    UPDATE virtual_key v SET last_used_at = v_now
        WHERE v.key_id = k.key_id
          AND (v.last_used_at IS NULL OR v.last_used_at < v_now - interval '10 seconds');
    verdict := 'granted';
END $$;

CREATE OR REPLACE FUNCTION reserve_attempt_v2(
    p_key_hash bytea, p_attempt_id text, p_request_id text, p_trace_id text,
    p_incarnation bigint, p_replica text,
    p_model text, p_deployment text, p_provider text, p_surface text,
    p_reserved bigint, p_price_version text, p_hard_limit integer,
    OUT verdict text, OUT key_id text, OUT team text,
    OUT cap_scope text, OUT cap_dimension text, OUT retry_after integer, OUT remaining bigint
) LANGUAGE plpgsql AS $$
DECLARE
    v_scope_id text;
BEGIN
    SELECT r.verdict, r.key_id, r.team, r.cap_scope, r.cap_dimension, r.retry_after
        INTO verdict, key_id, team, cap_scope, cap_dimension, retry_after
        FROM reserve_attempt(
            p_key_hash, p_attempt_id, p_request_id, p_trace_id, p_incarnation, p_replica,
            p_model, p_deployment, p_provider, p_surface, p_reserved, p_price_version,
            p_hard_limit) r;
    IF verdict = 'cap' AND retry_after IS NULL THEN  -- a cap without a window
        v_scope_id := CASE cap_scope WHEN 'key' THEN key_id ELSE team END;
        -- Its counter is still locked by the refusal, so this is what the refusal saw.
        SELECT greatest(0, c.amount - t.settled - t.outstanding - t.sliced) INTO remaining
            FROM cap c
            JOIN counter t ON t.scope = c.scope AND t.scope_id = c.scope_id
                AND t.dimension = c.dimension AND t.window_seconds = 0 AND t.window_key = ''
            WHERE c.scope = cap_scope AND c.scope_id = v_scope_id
                AND c.dimension = cap_dimension AND c.window_seconds = 0;
    END IF;
END $$;
