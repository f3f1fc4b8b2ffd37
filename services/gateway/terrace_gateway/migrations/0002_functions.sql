-- Each function is one transaction of the money path, so that it costs one round trip.
-- Lock order everywhere: the attempt first (if any), then counters sorted by
-- (scope, scope_id, dimension, window_seconds). One attempt per transaction.

CREATE FUNCTION reserve_attempt(
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
        WHERE (cap.scope = 'key' AND cap.scope_id = k.key_id)
           OR (cap.scope = 'team' AND cap.scope_id = k.team)
        ORDER BY cap.scope, cap.scope_id, cap.dimension, cap.window_seconds
    LOOP
        v_need := CASE c.dimension WHEN 'micro_usd' THEN p_reserved ELSE 1 END;
        v_start := CASE c.window_seconds WHEN 0 THEN 'epoch'::timestamptz
            ELSE date_bin(make_interval(secs => c.window_seconds), v_now, 'epoch'::timestamptz) END;
        SELECT t.counter_id, t.settled + t.outstanding INTO v_id, v_used FROM counter t
            WHERE t.scope = c.scope AND t.scope_id = c.scope_id AND t.dimension = c.dimension
              AND t.window_seconds = c.window_seconds AND t.window_start = v_start
            FOR UPDATE;
        IF NOT FOUND THEN
            INSERT INTO counter (scope, scope_id, dimension, window_seconds, window_start)
                VALUES (c.scope, c.scope_id, c.dimension, c.window_seconds, v_start)
                ON CONFLICT DO NOTHING;
            SELECT t.counter_id, t.settled + t.outstanding INTO STRICT v_id, v_used FROM counter t
                WHERE t.scope = c.scope AND t.scope_id = c.scope_id AND t.dimension = c.dimension
                  AND t.window_seconds = c.window_seconds AND t.window_start = v_start
                FOR UPDATE;
        END IF;
        IF c.amount IS NOT NULL AND v_used + v_need > c.amount THEN
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

CREATE FUNCTION append_entry(
    a attempt, p_kind text, p_revision integer, p_input bigint, p_output bigint, p_amount bigint,
    p_source text, p_outcome text, p_replica text
) RETURNS boolean LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO ledger (attempt_id, kind, revision, request_id, trace_id, key_id, team, model,
            deployment, provider, surface, input_tokens, output_tokens, amount_micro_usd,
            reserved_micro_usd, usage_source, outcome, price_version, replica)
        VALUES (a.attempt_id, p_kind, p_revision, a.request_id, a.trace_id, a.key_id, a.team,
            a.model, a.deployment, a.provider, a.surface, p_input, p_output, p_amount,
            a.reserved_micro_usd, p_source, p_outcome, a.price_version, p_replica)
        ON CONFLICT DO NOTHING;
    RETURN FOUND;
END $$;

-- Moves what an attempt holds from outstanding to settled. A request that was provably not sent
-- gives its place in the request caps back.
CREATE FUNCTION close_attempt(
    a attempt, p_kind text, p_input bigint, p_output bigint, p_amount bigint,
    p_source text, p_outcome text, p_replica text
) RETURNS boolean LANGUAGE plpgsql AS $$
BEGIN
    IF NOT append_entry(a, p_kind, 0, p_input, p_output, p_amount, p_source, p_outcome, p_replica)
    THEN
        RETURN false;
    END IF;
    FOR i IN 1 .. coalesce(array_length(a.held_counters, 1), 0) LOOP
        UPDATE counter SET
            outstanding = outstanding - a.held_amounts[i],
            settled = settled + CASE
                WHEN dimension = 'micro_usd' THEN p_amount
                WHEN p_outcome = 'not_sent' THEN 0
                ELSE a.held_amounts[i] END
            WHERE counter_id = a.held_counters[i];
    END LOOP;
    UPDATE attempt SET outcome = p_outcome, closed_at = clock_timestamp(),
            state = CASE p_kind WHEN 'unknown' THEN 'unknown' ELSE 'settled' END
        WHERE attempt_id = a.attempt_id;
    RETURN true;
END $$;

-- Makes the sum of a closed attempt's entries equal to the target. No difference, no entry.
CREATE FUNCTION correct_attempt(
    a attempt, p_input bigint, p_output bigint, p_amount bigint,
    p_source text, p_outcome text, p_replica text, p_state text
) RETURNS boolean LANGUAGE plpgsql AS $$
DECLARE
    s record;
BEGIN
    SELECT sum(amount_micro_usd) AS amount, sum(input_tokens) AS input,
           sum(output_tokens) AS output, count(*) FILTER (WHERE kind = 'correction') AS corrections
        INTO s FROM ledger WHERE ledger.attempt_id = a.attempt_id;
    UPDATE attempt SET state = p_state, outcome = p_outcome WHERE attempt_id = a.attempt_id;
    IF s.amount = p_amount AND s.input = p_input AND s.output = p_output THEN
        RETURN false;
    END IF;
    IF NOT append_entry(a, 'correction', (s.corrections + 1)::integer, (p_input - s.input)::bigint,
                        (p_output - s.output)::bigint, (p_amount - s.amount)::bigint,
                        p_source, p_outcome, p_replica) THEN
        RETURN false;
    END IF;
    FOR i IN 1 .. coalesce(array_length(a.held_counters, 1), 0) LOOP
        UPDATE counter SET settled = settled + (p_amount - s.amount)
            WHERE counter_id = a.held_counters[i] AND dimension = 'micro_usd';
    END LOOP;
    RETURN true;
END $$;

-- 'settled' | 'corrected' (it had been given up as unknown) | 'already' | 'no_attempt'
CREATE FUNCTION settle_attempt(
    p_attempt_id text, p_kind text, p_input bigint, p_output bigint, p_amount bigint,
    p_source text, p_outcome text, p_replica text
) RETURNS text LANGUAGE plpgsql AS $$
DECLARE
    a attempt;
BEGIN
    SELECT * INTO a FROM attempt WHERE attempt.attempt_id = p_attempt_id FOR UPDATE;
    IF NOT FOUND THEN
        RETURN 'no_attempt';
    END IF;
    IF a.state = 'open' THEN
        IF p_kind = 'unknown' THEN
            p_amount := a.reserved_micro_usd;
        END IF;
        PERFORM close_attempt(a, p_kind, p_input, p_output, p_amount, p_source, p_outcome,
                              p_replica);
        RETURN 'settled';
    END IF;
    IF a.state = 'unknown' AND p_kind = 'attempt' THEN
        PERFORM correct_attempt(a, p_input, p_output, p_amount, p_source, p_outcome, p_replica,
                                'settled');
        RETURN 'corrected';
    END IF;
    RETURN 'already';
END $$;

-- Gives up an open attempt: it counts as its reservation until the provider's log is read.
CREATE FUNCTION give_up_attempt(p_attempt_id text, p_replica text) RETURNS boolean
LANGUAGE plpgsql AS $$
DECLARE
    a attempt;
BEGIN
    SELECT * INTO a FROM attempt
        WHERE attempt.attempt_id = p_attempt_id AND state = 'open' FOR UPDATE;
    IF NOT FOUND THEN
        RETURN false;
    END IF;
    RETURN close_attempt(a, 'unknown', 0, 0, a.reserved_micro_usd, 'reservation', 'unknown',
                         p_replica);
END $$;

-- The provider's own log says what a closed attempt cost. True if an entry was written.
CREATE FUNCTION reconcile_attempt(
    p_attempt_id text, p_input bigint, p_output bigint, p_amount bigint, p_outcome text,
    p_replica text
) RETURNS boolean LANGUAGE plpgsql AS $$
DECLARE
    a attempt;
BEGIN
    SELECT * INTO a FROM attempt
        WHERE attempt.attempt_id = p_attempt_id AND state <> 'open' FOR UPDATE;
    IF NOT FOUND THEN
        RETURN false;
    END IF;
    RETURN correct_attempt(a, p_input, p_output, p_amount, 'provider_log', p_outcome, p_replica,
                           'reconciled');
END $$;
