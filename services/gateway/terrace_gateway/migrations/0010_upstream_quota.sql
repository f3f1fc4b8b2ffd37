-- Quotas of the providers themselves, as quota_sync read them, and the caps that come of them; and
-- leases, by which services that run twice agree on who works.

ALTER TABLE cap DROP CONSTRAINT cap_origin_check;
ALTER TABLE cap ADD CONSTRAINT cap_origin_check
    CHECK (origin IN ('runtime', 'declared', 'upstream'));

-- Leases -----------------------------------------------------------------------------------------

CREATE TABLE service_lease (
    name       text PRIMARY KEY,
    holder     text NOT NULL,
    fence      bigint NOT NULL,           -- grows with every new holder, and with every gap
    expires_at timestamptz NOT NULL
);

-- Take or renew. Who was late, be it by a moment, is a new holder: it may have missed another's time.
CREATE FUNCTION take_lease(
    p_name text, p_holder text, p_seconds double precision,
    OUT held boolean, OUT fence bigint, OUT holder text, OUT seconds_left double precision
) LANGUAGE plpgsql AS $$
DECLARE
    v_now timestamptz;
BEGIN
    LOOP
        -- The row first, then the time: whoever waited for the row has an old time.
        SELECT l.fence, l.holder INTO fence, holder FROM service_lease l
            WHERE l.name = p_name FOR UPDATE;
        EXIT WHEN FOUND;
        INSERT INTO service_lease AS l VALUES (p_name, '', 0, '-infinity')
            ON CONFLICT (name) DO NOTHING;
    END LOOP;
    v_now := clock_timestamp();
    UPDATE service_lease l SET
        fence = CASE WHEN l.holder = p_holder AND l.expires_at > v_now THEN l.fence
                     ELSE l.fence + 1 END,
        holder = p_holder,
        expires_at = v_now + make_interval(secs => p_seconds)
        WHERE l.name = p_name AND (l.holder = p_holder OR l.expires_at <= v_now)
        RETURNING l.fence, l.holder INTO fence, holder;
    held := FOUND;
    SELECT l.fence, l.holder, greatest(0, extract(epoch FROM l.expires_at - v_now))
        INTO fence, holder, seconds_left FROM service_lease l WHERE l.name = p_name;
END $$;

-- Upstream quotas --------------------------------------------------------------------------------

CREATE TABLE upstream_pool (
    pool       text PRIMARY KEY,          -- region/model as it is called: terrace_common.governance.upstream_pools
    region     text NOT NULL,
    access     text NOT NULL CHECK (access IN ('available', 'denied', 'unknown')),
    leads_to   text[] NOT NULL,           -- ARNs of the models behind an inference profile
    findings   text[] NOT NULL,
    read_at    timestamptz NOT NULL,
    retired_at timestamptz                -- no model of the catalogue draws on it
);

CREATE TABLE upstream_quota (
    pool                text NOT NULL REFERENCES upstream_pool,
    dimension           text NOT NULL CHECK (dimension IN ('requests', 'total_tokens')),
    window_seconds      integer NOT NULL CHECK (window_seconds > 0),
    quota_code          text NOT NULL,
    quota_name          text NOT NULL,
    quota_value         double precision NOT NULL CHECK (quota_value >= 0),
    source              text NOT NULL CHECK (source IN ('applied', 'default')),
    amount              bigint NOT NULL CHECK (amount >= 0),  -- our share while it is fresh
    vanished_at         timestamptz,       -- AWS has stopped naming it; its last value is kept
    read_at             timestamptz NOT NULL,
    stale_after_seconds integer NOT NULL CHECK (stale_after_seconds > 0),
    stale_percent       integer NOT NULL CHECK (stale_percent BETWEEN 0 AND 100),
    degraded_at         timestamptz,       -- since when the lower share holds
    fence               bigint NOT NULL,
    PRIMARY KEY (pool, dimension, window_seconds)
);

-- Lower the share of what nobody has read for too long. Every guard calls it, so it needs no sync to
-- be alive; whoever does it first answers the rows.
CREATE FUNCTION degrade_stale_upstream()
RETURNS TABLE (pool text, dimension text, window_seconds integer, amount bigint,
               age_seconds double precision)
LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
    v_due upstream_quota;
    v_now timestamptz := clock_timestamp();
    v_lower bigint;
BEGIN
    PERFORM FROM upstream_quota q JOIN upstream_pool p USING (pool)
        WHERE p.retired_at IS NULL AND q.degraded_at IS NULL
          AND q.read_at + make_interval(secs => q.stale_after_seconds) <= v_now LIMIT 1;
    IF NOT FOUND THEN
        RETURN;
    END IF;
    PERFORM FROM policy_head FOR UPDATE;
    FOR v_due IN
        UPDATE upstream_quota q SET degraded_at = v_now
            FROM upstream_pool p
            WHERE p.pool = q.pool AND p.retired_at IS NULL AND q.degraded_at IS NULL
              AND q.read_at + make_interval(secs => q.stale_after_seconds) <= v_now
            RETURNING q.*
    LOOP
        v_lower := div(v_due.amount::numeric * v_due.stale_percent, 100);
        UPDATE cap c SET amount = v_lower
            WHERE c.origin = 'upstream' AND c.scope = 'model' AND c.scope_id = v_due.pool
              AND c.dimension = v_due.dimension AND c.window_kind = 'fixed'
              AND c.window_seconds = v_due.window_seconds AND c.retired_at IS NULL;
        INSERT INTO audit (actor, action, subject, reason, detail)
            VALUES ('guard', 'upstream_quota.degrade', v_due.pool, 'nobody has read it for too long',
                    jsonb_build_object('dimension', v_due.dimension,
                        'window_seconds', v_due.window_seconds, 'amount', v_lower,
                        'share', v_due.amount, 'quota_name', v_due.quota_name));
        pool := v_due.pool;
        dimension := v_due.dimension;
        window_seconds := v_due.window_seconds;
        amount := v_lower;
        age_seconds := extract(epoch FROM v_now - v_due.read_at);
        RETURN NEXT;
    END LOOP;
END $$;
