-- Alerts of budgets: once per cap, window and threshold, whoever looks, and told until it is heard.
-- A counter knows the use from which somebody must look at it, so what moves counters compares two
-- numbers, and who looks reads only what has passed a threshold.
-- Lock order: counter, then rows of this migration. Administrative changes only append.

ALTER TABLE counter ADD COLUMN alert_above bigint;     -- NULL: no threshold is left above its use

CREATE TABLE budget_due (
    counter_id bigint PRIMARY KEY          -- its use has reached alert_above
);

-- A cap whose amount, thresholds or mode changed.
CREATE TABLE budget_recheck (
    recheck_id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    cap_id     bigint NOT NULL,
    amount     bigint,                     -- the new one
    used       bigint,                     -- when it changed; NULL: nothing was counted
    seen       xid8                        -- of who looked first
);

CREATE TABLE budget_alert (
    alert_id       bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    uid            uuid NOT NULL DEFAULT gen_random_uuid(),   -- what receivers know it by
    cap_id         bigint NOT NULL,
    scope          text NOT NULL,
    scope_id       text NOT NULL,
    dimension      text NOT NULL,
    window_kind    text NOT NULL,
    window_seconds integer NOT NULL,       -- 0: lifetime, calendar
    window_unit    text,
    window_zone    text NOT NULL,
    window_start   timestamptz NOT NULL,   -- 'epoch': lifetime, rolling
    window_ends    timestamptz,            -- NULL: lifetime, rolling
    mode           text NOT NULL,
    percent        integer NOT NULL,
    amount         bigint NOT NULL,
    used           bigint NOT NULL,        -- when it was raised
    raised_at      timestamptz NOT NULL DEFAULT clock_timestamp(),
    rearm_at       timestamptz,            -- not before; NULL: only by a raised amount
    rearmed_at     timestamptz,            -- the threshold may be passed again
    claimed_until  timestamptz NOT NULL DEFAULT '-infinity',
    recorded_at    timestamptz,            -- in the journal of recorded_by, and with webhooks
    recorded_by    text
);
CREATE UNIQUE INDEX budget_alert_once ON budget_alert (cap_id, window_start, percent)
    WHERE rearmed_at IS NULL;
CREATE INDEX budget_alert_unrecorded ON budget_alert (claimed_until) WHERE recorded_at IS NULL;
CREATE INDEX budget_alert_rearm ON budget_alert (rearm_at)
    WHERE rearmed_at IS NULL AND rearm_at IS NOT NULL;
CREATE INDEX budget_alert_age ON budget_alert (raised_at);

CREATE TABLE budget_delivery (
    alert_id     bigint NOT NULL REFERENCES budget_alert ON DELETE CASCADE,
    webhook      text NOT NULL,
    attempts     integer NOT NULL DEFAULT 0,
    next_at      timestamptz NOT NULL DEFAULT clock_timestamp(),
    delivered_at timestamptz,
    gave_up_at   timestamptz,
    last_error   text,
    PRIMARY KEY (alert_id, webhook)
);
CREATE INDEX budget_delivery_due ON budget_delivery (webhook, next_at)
    WHERE delivered_at IS NULL AND gave_up_at IS NULL;

-- Caps whose use is a metric.
CREATE INDEX cap_shown ON cap (cap_id)
    WHERE scope IN ('org', 'team', 'model', 'provider') AND retired_at IS NULL AND amount > 0;

-- Arithmetic -------------------------------------------------------------------------------------

-- The least use that has reached a threshold: used * 100 >= percent * amount.
CREATE FUNCTION alert_level(p_amount bigint, p_percent integer) RETURNS bigint
LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
    SELECT least(div(p_amount::numeric * p_percent + 99, 100), 9223372036854775807)::bigint
$$;

-- A cap that only audits is told when it is passed, whatever its thresholds are: it refuses nobody.
CREATE FUNCTION alert_percents(p_thresholds integer[], p_mode text) RETURNS integer[]
LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
    SELECT coalesce(array_agg(DISTINCT p ORDER BY p), '{}')
    FROM unnest(p_thresholds || CASE p_mode WHEN 'audit' THEN '{100}' ELSE '{}' END::integer[]) p
    WHERE p >= 1
$$;

-- Marking ----------------------------------------------------------------------------------------

CREATE FUNCTION first_alert_level() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    SELECT min(alert_level(k.amount, p)) INTO NEW.alert_above
        FROM cap k, unnest(alert_percents(k.thresholds, k.mode)) p
        WHERE k.scope = NEW.scope AND k.scope_id = NEW.scope_id AND k.dimension = NEW.dimension
          AND k.window_seconds = NEW.window_seconds AND k.window_key = NEW.window_key
          AND k.retired_at IS NULL AND k.amount IS NOT NULL;
    RETURN NEW;
END $$;
CREATE TRIGGER counter_alert_level BEFORE INSERT ON counter
    FOR EACH ROW EXECUTE FUNCTION first_alert_level();

CREATE FUNCTION mark_budget_due() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO budget_due (counter_id) VALUES (NEW.counter_id) ON CONFLICT DO NOTHING;
    RETURN NULL;
END $$;
CREATE TRIGGER counter_budget_due AFTER INSERT OR UPDATE ON counter
    FOR EACH ROW WHEN (NEW.settled + NEW.outstanding + NEW.sliced >= NEW.alert_above)
    EXECUTE FUNCTION mark_budget_due();

CREATE FUNCTION mark_budget_recheck() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
    v_used bigint;
BEGIN
    SELECT t.settled + t.outstanding + t.sliced INTO v_used
        FROM cap_window(NEW.window_kind, abs(NEW.window_seconds), NEW.window_unit, NEW.window_zone,
                        clock_timestamp()) w
            JOIN counter t ON t.scope = NEW.scope AND t.scope_id = NEW.scope_id
                AND t.dimension = NEW.dimension AND t.window_seconds = NEW.window_seconds
                AND t.window_key = NEW.window_key AND t.window_start = w.window_start;
    IF TG_OP = 'UPDATE' OR v_used IS NOT NULL THEN
        INSERT INTO budget_recheck (cap_id, amount, used) VALUES (NEW.cap_id, NEW.amount, v_used);
    END IF;
    RETURN NULL;
END $$;
CREATE TRIGGER cap_budget_new AFTER INSERT ON cap
    FOR EACH ROW WHEN (NEW.thresholds <> '{}' OR NEW.mode = 'audit')
    EXECUTE FUNCTION mark_budget_recheck();
CREATE TRIGGER cap_budget_changed AFTER UPDATE ON cap
    FOR EACH ROW WHEN (
        (NEW.thresholds <> '{}' OR NEW.mode = 'audit' OR OLD.thresholds <> '{}' OR OLD.mode = 'audit')
        AND (NEW.amount, NEW.thresholds, NEW.mode, NEW.retired_at)
            IS DISTINCT FROM (OLD.amount, OLD.thresholds, OLD.mode, OLD.retired_at))
    EXECUTE FUNCTION mark_budget_recheck();

INSERT INTO budget_recheck (cap_id, amount)
    SELECT cap_id, amount FROM cap WHERE thresholds <> '{}' OR mode = 'audit';

-- Looking ----------------------------------------------------------------------------------------

-- What a counter has passed becomes alerts; those that are there already stay. Returns how many are
-- new. Of a window that ended while nobody looked they are raised for some minutes yet.
CREATE FUNCTION raise_budget_alerts(p_counter bigint) RETURNS integer LANGUAGE plpgsql AS $$
DECLARE
    c         counter;
    k         cap;
    v_percent integer;
    v_level   bigint;
    v_next    bigint;
    v_used    bigint;
    v_new     integer := 0;
BEGIN
    PERFORM set_config('lock_timeout', '2000', true);
    SELECT * INTO c FROM counter WHERE counter_id = p_counter FOR UPDATE;
    IF NOT FOUND THEN
        DELETE FROM budget_due WHERE counter_id = p_counter;
        RETURN 0;
    END IF;
    SELECT * INTO k FROM cap
        WHERE scope = c.scope AND scope_id = c.scope_id AND dimension = c.dimension
          AND window_seconds = c.window_seconds AND window_key = c.window_key
          AND retired_at IS NULL AND amount IS NOT NULL;
    IF FOUND AND coalesce(c.window_end, 'infinity') > clock_timestamp() - interval '5 minutes' THEN
        IF k.window_kind = 'rolling' THEN
            PERFORM release_expired(p_counter, abs(k.window_seconds));
            SELECT * INTO STRICT c FROM counter WHERE counter_id = p_counter;
        END IF;
        v_used := c.settled + c.outstanding + c.sliced;
        FOREACH v_percent IN ARRAY alert_percents(k.thresholds, k.mode) LOOP
            v_level := alert_level(k.amount, v_percent);
            IF v_used < v_level THEN
                v_next := least(v_next, v_level);
                CONTINUE;
            END IF;
            INSERT INTO budget_alert (cap_id, scope, scope_id, dimension, window_kind,
                    window_seconds, window_unit, window_zone, window_start, window_ends, mode,
                    percent, amount, used, rearm_at)
                VALUES (k.cap_id, k.scope, k.scope_id, k.dimension, k.window_kind,
                    CASE k.window_kind WHEN 'calendar' THEN 0 ELSE abs(k.window_seconds) END,
                    k.window_unit, k.window_zone, c.window_start,
                    CASE k.window_kind
                        WHEN 'fixed' THEN c.window_start + make_interval(secs => k.window_seconds)
                        ELSE c.window_end END,
                    k.mode, v_percent, k.amount, v_used,
                    CASE WHEN k.window_kind = 'rolling'
                         THEN clock_timestamp() + make_interval(secs => abs(k.window_seconds))
                         WHEN k.dimension = 'concurrency'
                         THEN clock_timestamp() + interval '15 minutes' END)
                ON CONFLICT (cap_id, window_start, percent) WHERE rearmed_at IS NULL DO NOTHING;
            IF FOUND THEN
                v_new := v_new + 1;
            END IF;
        END LOOP;
    END IF;
    UPDATE counter SET alert_above = v_next
        WHERE counter_id = p_counter AND alert_above IS DISTINCT FROM v_next;
    DELETE FROM budget_due WHERE counter_id = p_counter;
    RETURN v_new;
END $$;

-- After a change of a cap. A raised amount re-arms the thresholds that it lifted above the use.
-- Looked at twice: once at once, and once when every transaction that may have made a counter by
-- the old cap has ended.
CREATE FUNCTION recheck_budget(p_recheck bigint) RETURNS integer LANGUAGE plpgsql AS $$
DECLARE
    r         budget_recheck;
    v_counter bigint;
    v_start   timestamptz;
    v_new     integer := 0;
BEGIN
    PERFORM set_config('lock_timeout', '2000', true);
    SELECT t.counter_id, t.window_start INTO v_counter, v_start
        FROM budget_recheck b JOIN cap k USING (cap_id)
            CROSS JOIN LATERAL cap_window(k.window_kind, abs(k.window_seconds), k.window_unit,
                                          k.window_zone, clock_timestamp()) w
            JOIN counter t ON t.scope = k.scope AND t.scope_id = k.scope_id
                AND t.dimension = k.dimension AND t.window_seconds = k.window_seconds
                AND t.window_key = k.window_key AND t.window_start = w.window_start
        WHERE b.recheck_id = p_recheck;
    IF v_counter IS NOT NULL THEN
        PERFORM 1 FROM counter WHERE counter_id = v_counter FOR UPDATE;
    END IF;
    SELECT * INTO r FROM budget_recheck WHERE recheck_id = p_recheck FOR UPDATE;
    IF NOT FOUND THEN
        RETURN 0;
    END IF;
    IF v_counter IS NOT NULL THEN
        IF r.seen IS NULL THEN
            UPDATE budget_alert SET rearmed_at = clock_timestamp()
                WHERE cap_id = r.cap_id AND window_start = v_start AND rearmed_at IS NULL
                  AND amount < r.amount AND alert_level(r.amount, percent) > r.used;
        END IF;
        v_new := raise_budget_alerts(v_counter);
    END IF;
    IF r.seen IS NULL THEN
        UPDATE budget_recheck SET seen = pg_current_xact_id() WHERE recheck_id = p_recheck;
    ELSE
        DELETE FROM budget_recheck WHERE recheck_id = p_recheck;
    END IF;
    RETURN v_new;
END $$;

-- Rolling windows and gauges have no next window: a threshold is armed again once the use was below
-- it, and not before a window's length (15 minutes for gauges) after it was told.
CREATE FUNCTION rearm_budget_alert(p_alert bigint) RETURNS boolean LANGUAGE plpgsql AS $$
DECLARE
    a      budget_alert;
    k      cap;
    c      counter;
    v_used bigint := 0;
BEGIN
    PERFORM set_config('lock_timeout', '2000', true);
    SELECT * INTO a FROM budget_alert WHERE alert_id = p_alert;
    SELECT * INTO k FROM cap WHERE cap_id = a.cap_id;
    SELECT * INTO c FROM counter
        WHERE scope = k.scope AND scope_id = k.scope_id AND dimension = k.dimension
          AND window_seconds = k.window_seconds AND window_key = k.window_key
          AND window_start = a.window_start
        FOR UPDATE;
    IF FOUND THEN
        IF k.window_kind = 'rolling' THEN
            PERFORM release_expired(c.counter_id, abs(k.window_seconds));
            SELECT * INTO STRICT c FROM counter WHERE counter_id = c.counter_id;
        END IF;
        v_used := c.settled + c.outstanding + c.sliced;
    END IF;
    IF v_used >= alert_level(coalesce(k.amount, a.amount), a.percent) THEN
        UPDATE budget_alert SET rearm_at = clock_timestamp()
                + make_interval(secs => greatest(10, a.window_seconds / 60))
            WHERE alert_id = p_alert;
        RETURN false;
    END IF;
    UPDATE budget_alert SET rearmed_at = clock_timestamp()
        WHERE alert_id = p_alert AND rearmed_at IS NULL;
    IF c.counter_id IS NOT NULL THEN
        PERFORM raise_budget_alerts(c.counter_id);
    END IF;
    RETURN true;
END $$;
