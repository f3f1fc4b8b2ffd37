-- "Not billed" is the one word of a provider's log that a later fact can belie: a request that was
-- still on its way (a frozen guard or translator) may be billed after the log was read. Facts that
-- come later only ever raise such an attempt, whoever brings them. Its mark is the pair
-- (state reconciled, outcome upstream_error) with a sum of zero.

CREATE INDEX attempt_not_billed ON attempt (opened_at)
    WHERE state = 'reconciled' AND outcome = 'upstream_error';

CREATE OR REPLACE FUNCTION settle_attempt(
    p_attempt_id text, p_kind text, p_input bigint, p_output bigint, p_amount bigint,
    p_source text, p_outcome text, p_replica text
) RETURNS text LANGUAGE plpgsql AS $$
DECLARE
    a       attempt;
    v_known bigint;
BEGIN
    SELECT * INTO a FROM attempt WHERE attempt.attempt_id = p_attempt_id FOR UPDATE;
    IF NOT FOUND THEN
        RETURN 'no_attempt';
    END IF;
    IF p_kind = 'unknown' THEN
        p_amount := a.reserved_micro_usd;
    END IF;
    IF a.state = 'open' THEN
        PERFORM close_attempt(a, p_kind, p_input, p_output, p_amount, p_source, p_outcome,
                              p_replica);
        RETURN 'settled';
    END IF;
    IF a.state = 'unknown' AND p_kind = 'attempt' THEN
        PERFORM correct_attempt(a, p_input, p_output, p_amount, p_source, p_outcome, p_replica,
                                'settled');
        RETURN 'corrected';
    END IF;
    IF a.state = 'reconciled' AND a.outcome = 'upstream_error' THEN
        SELECT sum(amount_micro_usd) INTO v_known FROM ledger
            WHERE ledger.attempt_id = p_attempt_id;
        IF v_known = 0 AND p_amount > 0 THEN
            PERFORM correct_attempt(a, p_input, p_output, p_amount, p_source, p_outcome, p_replica,
                                    CASE p_kind WHEN 'unknown' THEN 'unknown' ELSE 'settled' END);
            RETURN 'corrected';
        END IF;
    END IF;
    RETURN 'already';
END $$;

CREATE OR REPLACE FUNCTION reconcile_attempt(
    p_attempt_id text, p_input bigint, p_output bigint, p_amount bigint, p_outcome text,
    p_replica text
) RETURNS boolean LANGUAGE plpgsql AS $$
DECLARE
    a       attempt;
    v_known bigint;
BEGIN
    SELECT * INTO a FROM attempt
        WHERE attempt.attempt_id = p_attempt_id AND state <> 'open' FOR UPDATE;
    IF NOT FOUND THEN
        RETURN false;
    END IF;
    IF p_outcome = 'upstream_error' AND p_amount = 0 AND a.state <> 'unknown' THEN
        -- The log was read before somebody else learnt more.
        SELECT sum(amount_micro_usd) INTO v_known FROM ledger
            WHERE ledger.attempt_id = p_attempt_id;
        IF v_known > 0 THEN
            RETURN false;
        END IF;
    END IF;
    RETURN correct_attempt(a, p_input, p_output, p_amount, 'provider_log', p_outcome, p_replica,
                           'reconciled');
END $$;
