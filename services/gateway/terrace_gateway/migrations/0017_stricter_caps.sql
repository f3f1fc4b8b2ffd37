-- A cap that becomes stricter in any way recalls what is idle, not only one whose amount is lowered:
-- while it was in mode audit or retired, holders were granted all that they wished for beyond it. A
-- cap with another window is another row, whose counter begins with nothing granted.
CREATE OR REPLACE FUNCTION recall_lowered_cap() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
    c_unlimited CONSTANT bigint := 9223372036854775807;
    v_before bigint := CASE WHEN OLD.retired_at IS NULL AND OLD.mode = 'block'
                            THEN coalesce(OLD.amount, c_unlimited) ELSE c_unlimited END;
    v_after  bigint := CASE WHEN NEW.retired_at IS NULL AND NEW.mode = 'block'
                            THEN coalesce(NEW.amount, c_unlimited) ELSE c_unlimited END;
BEGIN
    IF v_after < v_before THEN
        UPDATE counter SET wanted_until = clock_timestamp() + interval '5 seconds'
            WHERE scope = NEW.scope AND scope_id = NEW.scope_id AND dimension = NEW.dimension
              AND window_seconds = NEW.window_seconds AND window_key = NEW.window_key
              AND sliced > 0 AND (window_end IS NULL OR window_end > clock_timestamp());
    END IF;
    RETURN NULL;
END $$;

-- Beside the one on amount. Both firing for one change write the same twice.
CREATE TRIGGER cap_stricter AFTER UPDATE OF mode, retired_at ON cap
    FOR EACH ROW EXECUTE FUNCTION recall_lowered_cap();

-- As cap_spend() of caps in force: what a cap that comes back would go on from, where that is more
-- than nothing.
CREATE FUNCTION retired_cap_spend() RETURNS TABLE (
    cap_id bigint, scope text, scope_id text, dimension text, window_kind text,
    window_seconds integer, window_unit text, window_zone text, settled bigint, outstanding bigint
) LANGUAGE sql STABLE AS $$
    SELECT k.cap_id, k.scope, k.scope_id, k.dimension, k.window_kind,
        CASE k.window_kind WHEN 'calendar' THEN 0 ELSE abs(k.window_seconds) END,
        k.window_unit, k.window_zone,
        (t.settled + s.settled)::bigint, (t.outstanding + t.sliced - s.settled)::bigint
    FROM cap k
        CROSS JOIN LATERAL cap_window(k.window_kind, abs(k.window_seconds), k.window_unit,
                                      k.window_zone, clock_timestamp()) w
        JOIN counter t ON t.scope = k.scope AND t.scope_id = k.scope_id
            AND t.dimension = k.dimension AND t.window_seconds = k.window_seconds
            AND t.window_key = k.window_key AND t.window_start = w.window_start
        CROSS JOIN LATERAL (SELECT coalesce(sum(x.settled - x.released), 0) AS settled
                            FROM slice x WHERE x.counter_id = t.counter_id) s
    WHERE k.retired_at IS NOT NULL AND t.settled + t.outstanding + t.sliced > 0
$$;
