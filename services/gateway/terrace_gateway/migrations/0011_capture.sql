-- Prompts and answers that a policy asks to keep: redacted and encrypted before they come here, apart
-- from the ledger, in partitions by the day on which they end, so that forgetting is dropping a table.
CREATE TABLE capture (
    request_id  text NOT NULL,
    expires_on  date NOT NULL,
    captured_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    key_id      text NOT NULL,
    org         text,
    team        text NOT NULL,
    "user"      text,
    app         text,
    surface     text NOT NULL,
    model       text NOT NULL,
    kek         text NOT NULL,              -- name of the key-encryption key
    wrapped_key bytea NOT NULL,             -- the data key, encrypted with it
    nonce       bytea NOT NULL CHECK (octet_length(nonce) = 12),
    sealed      bytea NOT NULL,             -- AES-256-GCM; request, end and caller are authenticated
    PRIMARY KEY (expires_on, request_id)
) PARTITION BY RANGE (expires_on);
CREATE INDEX capture_request ON capture (request_id);

-- The day on which a capture of now ends, with room for it. Idempotent; one maker at a time.
CREATE FUNCTION capture_day(p_retention_days integer) RETURNS date LANGUAGE plpgsql AS $$
DECLARE
    v_day  date := (clock_timestamp() AT TIME ZONE 'UTC')::date + p_retention_days + 1;
    v_name text := 'capture_p' || to_char(v_day, 'YYYYMMDD');
BEGIN
    IF p_retention_days NOT BETWEEN 0 AND 3660 THEN
        RAISE EXCEPTION 'retention of % days', p_retention_days USING ERRCODE = 'check_violation';
    END IF;
    IF to_regclass(v_name) IS NULL THEN
        PERFORM pg_advisory_xact_lock(hashtext('terrace.capture'));
        -- Not to_regclass again: without a new look at the catalogue it repeats its first answer.
        IF NOT EXISTS (SELECT FROM pg_class WHERE oid IN
                       (SELECT inhrelid FROM pg_inherits WHERE inhparent = 'capture'::regclass)
                       AND relname = v_name) THEN
            EXECUTE format('CREATE TABLE %I PARTITION OF capture FOR VALUES FROM (%L) TO (%L)',
                           v_name, v_day, v_day + 1);
        END IF;
    END IF;
    RETURN v_day;
END $$;

-- Drop what has ended: a partition of day d holds captures that end before d. Returns how many went.
CREATE FUNCTION drop_ended_captures() RETURNS integer LANGUAGE plpgsql AS $$
DECLARE
    v_today date := (clock_timestamp() AT TIME ZONE 'UTC')::date;
    v_name  text;
    v_count integer := 0;
BEGIN
    PERFORM set_config('lock_timeout', '1000', true);
    PERFORM pg_advisory_xact_lock(hashtext('terrace.capture'));
    FOR v_name IN
        SELECT c.relname FROM pg_inherits i JOIN pg_class c ON c.oid = i.inhrelid
        WHERE i.inhparent = 'capture'::regclass AND c.relname ~ '^capture_p\d{8}$'
          AND to_date(substr(c.relname, 10), 'YYYYMMDD') <= v_today
        ORDER BY 1
    LOOP
        EXECUTE format('DROP TABLE %I', v_name);
        v_count := v_count + 1;
    END LOOP;
    RETURN v_count;
END $$;
