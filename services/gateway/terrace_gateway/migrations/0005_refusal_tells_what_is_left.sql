-- A refusal of a budget tells what is left of it. A new name, because the OUT parameters of
-- reserve_attempt cannot change while guards of the release before still call it.

CREATE FUNCTION reserve_attempt_v2(
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
        SELECT greatest(0, c.amount - t.settled - t.outstanding) INTO remaining
            FROM cap c
            JOIN counter t ON t.scope = c.scope AND t.scope_id = c.scope_id
                AND t.dimension = c.dimension AND t.window_seconds = 0
            WHERE c.scope = cap_scope AND c.scope_id = v_scope_id
                AND c.dimension = cap_dimension AND c.window_seconds = 0;
    END IF;
END $$;
