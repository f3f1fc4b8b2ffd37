-- The chained ledger. One hash chain per writer; a row holds the bytes that were hashed
-- (`canonical`) beside the columns that were read out of them. Partitioned by the month of the
-- attempt's opening, which every entry of an attempt repeats, so that uniqueness holds per attempt.

-- One line per writer: how far its records have been applied. `position` numbers all records of a
-- spool (opens too), `seq` the entries of the chain.
CREATE TABLE chain (
    writer     text PRIMARY KEY,
    replica    text NOT NULL,
    position   bigint NOT NULL DEFAULT 0,
    seq        bigint NOT NULL DEFAULT 0,
    hash       bytea NOT NULL CHECK (octet_length(hash) = 32),
    started_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    moved_at   timestamptz NOT NULL DEFAULT clock_timestamp(),
    sealed_at  timestamptz
) WITH (fillfactor = 50);

-- Entries that a chain has and the ledger has not: a record that the database refused (dead
-- letter), a damaged spool, a database that was set back. Verification names them.
CREATE TABLE chain_gap (
    writer     text NOT NULL,
    after_seq  bigint NOT NULL,
    before_seq bigint NOT NULL,
    hash       bytea NOT NULL,          -- of the entry before before_seq
    reason     text NOT NULL,
    created_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (writer, after_seq)
);

CREATE TABLE ledger_entry (
    -- The old ledger's sequence, so that one cursor pages through both.
    entry_id              bigint NOT NULL DEFAULT nextval('ledger_entry_id_seq'),
    opened_at             timestamptz NOT NULL,
    kind                  text NOT NULL
        CHECK (kind IN ('attempt', 'unknown', 'correction', 'decision', 'rerating')),
    late                  boolean NOT NULL DEFAULT false,  -- came after another close: counts 0
    writer                text NOT NULL,
    seq                   bigint NOT NULL,
    previous_hash         bytea NOT NULL,
    hash                  bytea NOT NULL,
    canonical             text NOT NULL,
    revision              integer NOT NULL DEFAULT 0,
    attempt_id            text,
    request_id            text,
    trace_id              text,
    incarnation_id        bigint,
    replica               text NOT NULL,
    org                   text,
    team                  text,
    user_name             text,
    app                   text,
    key_id                text,
    key_name              text,
    surface               text,
    model                 text,
    deployment            text,
    provider              text,
    purpose               text,
    clamped               text,
    price_version         text,
    policy_version        bigint,
    reserved_micro_usd    bigint,
    reserved_input_tokens bigint,
    reserved_output_tokens bigint,
    outcome               text,
    usage_source          text,
    input_tokens          bigint NOT NULL DEFAULT 0,       -- signed in corrections, as what follows
    output_tokens         bigint NOT NULL DEFAULT 0,
    cache_read_tokens     bigint NOT NULL DEFAULT 0,
    cache_write_tokens    bigint NOT NULL DEFAULT 0,
    cache_write_1h_tokens bigint NOT NULL DEFAULT 0,       -- part of cache_write_tokens
    images                bigint NOT NULL DEFAULT 0,       -- in the request; 0 in corrections
    amount_micro_usd      bigint NOT NULL DEFAULT 0,
    latency_ms            bigint,
    first_byte_ms         bigint,
    upstream_request_id   text,
    charges               jsonb NOT NULL DEFAULT '[]',     -- [[counter_id, dimension, amount], ...]
    decision              text,
    reason                text,
    detail                jsonb,
    replaces              text,          -- 'writer:seq' of the late entry that a correction answers
    actor                 text,
    closed_at             timestamptz,
    created_at            timestamptz NOT NULL DEFAULT clock_timestamp(),
    CHECK (kind = 'decision' OR attempt_id IS NOT NULL),
    CHECK (kind IN ('correction', 'rerating') OR revision = 0),
    CHECK (kind IN ('correction', 'rerating')
           OR (amount_micro_usd >= 0 AND input_tokens >= 0 AND output_tokens >= 0
               AND cache_read_tokens >= 0 AND cache_write_tokens >= 0 AND images >= 0)),
    CHECK (octet_length(previous_hash) = 32 AND octet_length(hash) = 32)
) PARTITION BY RANGE (opened_at);

-- An attempt is closed once, by what was learnt or as unknown.
CREATE UNIQUE INDEX ledger_entry_close ON ledger_entry (attempt_id, opened_at)
    WHERE kind IN ('attempt', 'unknown') AND NOT late;
CREATE UNIQUE INDEX ledger_entry_further ON ledger_entry (attempt_id, kind, revision, opened_at)
    WHERE kind IN ('correction', 'rerating');
CREATE INDEX ledger_entry_chain ON ledger_entry (writer, seq);
CREATE INDEX ledger_entry_key ON ledger_entry (key_id, entry_id);
CREATE INDEX ledger_entry_page ON ledger_entry (entry_id);
CREATE INDEX ledger_entry_late ON ledger_entry (writer, seq) WHERE late OR replaces IS NOT NULL;

CREATE TABLE ledger_entry_other PARTITION OF ledger_entry DEFAULT;

CREATE TRIGGER ledger_entry_append_only BEFORE UPDATE OR DELETE ON ledger_entry
    FOR EACH ROW EXECUTE FUNCTION refuse_change();
CREATE TRIGGER ledger_entry_no_truncate BEFORE TRUNCATE ON ledger_entry
    FOR EACH STATEMENT EXECUTE FUNCTION refuse_change();
CREATE TRIGGER chain_gap_append_only BEFORE UPDATE OR DELETE ON chain_gap
    FOR EACH ROW EXECUTE FUNCTION refuse_change();
CREATE TRIGGER ledger_entry_other_no_truncate BEFORE TRUNCATE ON ledger_entry_other
    FOR EACH STATEMENT EXECUTE FUNCTION refuse_change();
REVOKE UPDATE, DELETE, TRUNCATE ON ledger_entry, ledger_entry_other, chain_gap
    FROM PUBLIC, CURRENT_USER;

-- Attempts without a final close. `free`: the provider refused and we counted nothing; its log has
-- the last word. `not_billed`: its log had no such call; it is looked at again for a day.
CREATE TABLE open_attempt (
    attempt_id         text PRIMARY KEY,
    state              text NOT NULL DEFAULT 'open'
        CHECK (state IN ('open', 'unknown', 'free', 'not_billed')),
    opened_at          timestamptz NOT NULL,
    writer             text NOT NULL,
    incarnation_id     bigint NOT NULL,
    provider           text NOT NULL,
    hard_limit_seconds integer NOT NULL,
    upstream_request_id text,
    record             jsonb NOT NULL,
    shipped_at         timestamptz NOT NULL DEFAULT clock_timestamp()
) WITH (fillfactor = 80);
CREATE INDEX open_attempt_state ON open_attempt (state, opened_at);
CREATE INDEX open_attempt_incarnation ON open_attempt (incarnation_id) WHERE state = 'open';

-- Sums per day (UTC, of the opening) and all that spend is asked by. Decisions are not in it.
CREATE TABLE spend_daily (
    day                date NOT NULL,
    org                text NOT NULL DEFAULT '',
    team               text NOT NULL,
    user_name          text NOT NULL DEFAULT '',
    app                text NOT NULL DEFAULT '',
    key_id             text NOT NULL,
    provider           text NOT NULL,
    model              text NOT NULL,
    requests           bigint NOT NULL DEFAULT 0,
    input_tokens       bigint NOT NULL DEFAULT 0,
    output_tokens      bigint NOT NULL DEFAULT 0,
    cache_read_tokens  bigint NOT NULL DEFAULT 0,
    cache_write_tokens bigint NOT NULL DEFAULT 0,
    amount_micro_usd   bigint NOT NULL DEFAULT 0,
    PRIMARY KEY (day, org, team, user_name, app, key_id, provider, model)
) WITH (fillfactor = 70);

-- Signed heads, as they were put outside of the database as well.
CREATE TABLE anchor (
    writer      text NOT NULL,
    seq         bigint NOT NULL,
    hash        bytea NOT NULL,
    sealed      boolean NOT NULL,
    document    text NOT NULL,
    stored_at   timestamptz NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (writer, seq, sealed)
);
CREATE TRIGGER anchor_append_only BEFORE UPDATE OR DELETE ON anchor
    FOR EACH ROW EXECUTE FUNCTION refuse_change();

-- What has been exported: a month may be dropped only when all of its rows are here.
CREATE TABLE ledger_export (
    partition_name text NOT NULL,
    day            date NOT NULL,
    rows           bigint NOT NULL,
    last_entry_id  bigint NOT NULL,
    location       text NOT NULL,
    digest         text NOT NULL,
    exported_at    timestamptz NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (partition_name, day)
);

-- Make the partitions of this month and of `p_ahead` more. Returns what was made.
CREATE FUNCTION ensure_ledger_partitions(p_ahead integer) RETURNS text[]
LANGUAGE plpgsql AS $$
DECLARE
    v_month timestamptz;
    v_name  text;
    v_made  text[] := '{}';
BEGIN
    FOR i IN -1 .. p_ahead LOOP
        v_month := date_trunc('month', clock_timestamp() AT TIME ZONE 'UTC') AT TIME ZONE 'UTC';
        v_month := ((v_month AT TIME ZONE 'UTC') + make_interval(months => i)) AT TIME ZONE 'UTC';
        v_name := 'ledger_entry_' || to_char(v_month AT TIME ZONE 'UTC', 'YYYYMM');
        CONTINUE WHEN to_regclass(v_name) IS NOT NULL;
        PERFORM pg_advisory_xact_lock(x'7E44ACE2'::bigint);
        CONTINUE WHEN to_regclass(v_name) IS NOT NULL;
        -- Attached rather than made in place, so that readers and writers are not locked out.
        EXECUTE format('CREATE TABLE %I (LIKE ledger_entry INCLUDING DEFAULTS INCLUDING CONSTRAINTS)',
                       v_name);
        EXECUTE format('ALTER TABLE ledger_entry ATTACH PARTITION %I FOR VALUES FROM (%L) TO (%L)',
                       v_name, v_month,
                       ((v_month AT TIME ZONE 'UTC') + interval '1 month') AT TIME ZONE 'UTC');
        EXECUTE format('CREATE TRIGGER no_truncate BEFORE TRUNCATE ON %I'
                       ' FOR EACH STATEMENT EXECUTE FUNCTION refuse_change()', v_name);
        EXECUTE format('REVOKE UPDATE, DELETE, TRUNCATE ON %I FROM PUBLIC, CURRENT_USER', v_name);
        v_made := v_made || v_name;
    END LOOP;
    RETURN v_made;
END $$;
SELECT ensure_ledger_partitions(2);

CREATE FUNCTION genesis_hash(p_writer text) RETURNS bytea LANGUAGE sql IMMUTABLE AS $$
    SELECT sha256(convert_to('terrace ledger ' || p_writer, 'UTF8'))
$$;

-- An entry as its canonical bytes say it. The composite type is the table's own row.
CREATE FUNCTION entry_of(p_text text, p_seq bigint, p_previous bytea, p_hash bytea)
RETURNS ledger_entry LANGUAGE plpgsql AS $$
DECLARE
    r ledger_entry;
    j jsonb := p_text::jsonb;
BEGIN
    r := jsonb_populate_record(NULL::ledger_entry, j - 'entry_id' - 'created_at' - 'late');
    r.seq := p_seq;
    r.previous_hash := p_previous;
    r.hash := p_hash;
    r.canonical := p_text;
    r.late := false;
    r.revision := coalesce(r.revision, 0);
    r.input_tokens := coalesce(r.input_tokens, 0);
    r.output_tokens := coalesce(r.output_tokens, 0);
    r.cache_read_tokens := coalesce(r.cache_read_tokens, 0);
    r.cache_write_tokens := coalesce(r.cache_write_tokens, 0);
    r.cache_write_1h_tokens := coalesce(r.cache_write_1h_tokens, 0);
    r.images := coalesce(r.images, 0);
    r.amount_micro_usd := coalesce(r.amount_micro_usd, 0);
    r.charges := coalesce(r.charges, '[]');
    r.created_at := clock_timestamp();
    r.entry_id := nextval('ledger_entry_id_seq');
    RETURN r;
END $$;

CREATE FUNCTION add_spend(p_entries ledger_entry[]) RETURNS void LANGUAGE sql AS $$
    INSERT INTO spend_daily AS s (day, org, team, user_name, app, key_id, provider, model,
            requests, input_tokens, output_tokens, cache_read_tokens, cache_write_tokens,
            amount_micro_usd)
        SELECT (e.opened_at AT TIME ZONE 'UTC')::date, coalesce(e.org, ''), coalesce(e.team, ''),
               coalesce(e.user_name, ''), coalesce(e.app, ''), coalesce(e.key_id, ''),
               coalesce(e.provider, ''), coalesce(e.model, ''),
               count(*) FILTER (WHERE e.kind IN ('attempt', 'unknown')),
               sum(e.input_tokens), sum(e.output_tokens), sum(e.cache_read_tokens),
               sum(e.cache_write_tokens), sum(e.amount_micro_usd)
        FROM unnest(p_entries) e WHERE e.kind <> 'decision' AND NOT e.late
        GROUP BY 1, 2, 3, 4, 5, 6, 7, 8
        ORDER BY 1, 2, 3, 4, 5, 6, 7, 8          -- one lock order for all shippers
    ON CONFLICT (day, org, team, user_name, app, key_id, provider, model) DO UPDATE SET
        requests = s.requests + excluded.requests,
        input_tokens = s.input_tokens + excluded.input_tokens,
        output_tokens = s.output_tokens + excluded.output_tokens,
        cache_read_tokens = s.cache_read_tokens + excluded.cache_read_tokens,
        cache_write_tokens = s.cache_write_tokens + excluded.cache_write_tokens,
        amount_micro_usd = s.amount_micro_usd + excluded.amount_micro_usd
$$;

-- Slice rows of entries that were new. Concurrency is a gauge of the guard and never in an entry.
CREATE FUNCTION settle_entries(p_entries ledger_entry[]) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    s              record;
    v_incarnations bigint[];
    v_counters     bigint[];
    v_amounts      bigint[];
BEGIN
    SELECT array_agg(t.incarnation_id), array_agg(t.counter_id), array_agg(t.amount)
        INTO v_incarnations, v_counters, v_amounts
        FROM (SELECT e.incarnation_id, (c ->> 0)::bigint AS counter_id,
                     sum((c ->> 2)::bigint)::bigint AS amount
              FROM unnest(p_entries) e, jsonb_array_elements(e.charges) c
              WHERE e.kind IN ('attempt', 'unknown') AND NOT e.late AND c ->> 1 <> 'concurrency'
              GROUP BY 1, 2) t;
    PERFORM lock_settled_counters(v_incarnations, v_counters, v_amounts);
    FOR s IN
        SELECT incarnation_id, array_agg(counter_id ORDER BY counter_id) AS counters,
               array_agg(amount ORDER BY counter_id) AS amounts
        FROM unnest(v_incarnations, v_counters, v_amounts) t (incarnation_id, counter_id, amount)
        GROUP BY incarnation_id ORDER BY incarnation_id
    LOOP
        PERFORM settle_slices(s.incarnation_id, s.counters, s.amounts);
    END LOOP;
END $$;

-- Appends to a chain that the database itself writes (reaper, reconcile, re-rating). Returns the
-- row. The caller holds whatever makes the entry right (the attempt's lock).
CREATE FUNCTION append_chained(p_writer text, p_replica text, p_fields jsonb)
RETURNS ledger_entry LANGUAGE plpgsql AS $$
DECLARE
    c      chain;
    e      ledger_entry;
    v_text text;
    v_hash bytea;
BEGIN
    INSERT INTO chain (writer, replica, hash) VALUES (p_writer, p_replica, genesis_hash(p_writer))
        ON CONFLICT DO NOTHING;
    SELECT * INTO STRICT c FROM chain WHERE writer = p_writer FOR UPDATE;
    v_text := (jsonb_strip_nulls(p_fields)
               || jsonb_build_object('writer', p_writer, 'seq', c.seq + 1, 'replica', p_replica)
              )::text;
    v_hash := sha256(c.hash || convert_to(v_text, 'UTF8'));
    e := entry_of(v_text, c.seq + 1, c.hash, v_hash);
    INSERT INTO ledger_entry SELECT (e).*;
    UPDATE chain SET seq = e.seq, hash = e.hash, moved_at = clock_timestamp()
        WHERE writer = p_writer;
    PERFORM add_spend(ARRAY[e]);
    RETURN e;
END $$;

-- What all further entries of an attempt repeat of its first one.
CREATE FUNCTION identity_of(e ledger_entry) RETURNS jsonb LANGUAGE sql IMMUTABLE AS $$
    SELECT jsonb_build_object(
        'opened_at', e.opened_at, 'attempt_id', e.attempt_id, 'request_id', e.request_id,
        'trace_id', e.trace_id, 'incarnation_id', e.incarnation_id, 'org', e.org, 'team', e.team,
        'user_name', e.user_name, 'app', e.app, 'key_id', e.key_id, 'key_name', e.key_name,
        'surface', e.surface, 'model', e.model, 'deployment', e.deployment,
        'provider', e.provider, 'purpose', e.purpose, 'price_version', e.price_version,
        'policy_version', e.policy_version, 'reserved_micro_usd', e.reserved_micro_usd)
$$;

-- Makes the sum of a closed attempt's entries equal to the target, by an entry of the chain
-- p_writer, and moves its counters by the difference. No difference and nothing late to answer:
-- no entry. True if one was written. p_target: input_tokens, output_tokens, cache_read_tokens,
-- cache_write_tokens, amount_micro_usd, usage_source, outcome, upstream_request_id, replaces.
CREATE FUNCTION correct_entry(
    p_writer text, p_replica text, p_attempt_id text, p_opened_at timestamptz, p_target jsonb
) RETURNS boolean LANGUAGE plpgsql AS $$
DECLARE
    f          ledger_entry;
    s          record;
    v_counters bigint[];
    v_deltas   bigint[];
    v_charges  jsonb;
    v_amount   bigint := (p_target ->> 'amount_micro_usd')::bigint;
    v_input    bigint := (p_target ->> 'input_tokens')::bigint;
    v_output   bigint := (p_target ->> 'output_tokens')::bigint;
    v_read     bigint := coalesce((p_target ->> 'cache_read_tokens')::bigint, 0);
    v_write    bigint := coalesce((p_target ->> 'cache_write_tokens')::bigint, 0);
BEGIN
    -- Corrections of one attempt come one after the other, whoever writes them.
    PERFORM pg_advisory_xact_lock(x'7E44'::integer, hashtext(p_attempt_id));
    SELECT * INTO f FROM ledger_entry WHERE attempt_id = p_attempt_id AND opened_at = p_opened_at
        AND kind IN ('attempt', 'unknown') AND NOT late;
    IF NOT FOUND THEN
        RETURN false;
    END IF;
    SELECT sum(amount_micro_usd)::bigint AS amount, sum(input_tokens)::bigint AS input,
           sum(output_tokens)::bigint AS output, sum(cache_read_tokens)::bigint AS cache_read,
           sum(cache_write_tokens)::bigint AS cache_write,
           coalesce(max(revision) FILTER (WHERE kind = 'correction'), 0) + 1 AS revision
        INTO s FROM ledger_entry
        WHERE attempt_id = p_attempt_id AND opened_at = p_opened_at AND NOT late
          AND kind IN ('attempt', 'unknown', 'correction');
    IF (s.amount, s.input, s.output, s.cache_read, s.cache_write)
       = (v_amount, v_input, v_output, v_read, v_write) AND p_target ->> 'replaces' IS NULL THEN
        RETURN false;
    END IF;
    SELECT jsonb_agg(jsonb_build_array(counter_id, dimension, delta) ORDER BY counter_id),
           array_agg(counter_id ORDER BY counter_id), array_agg(delta ORDER BY counter_id)
        INTO v_charges, v_counters, v_deltas
        FROM (SELECT counter_id, dimension,
                     CASE dimension WHEN 'micro_usd' THEN v_amount
                         WHEN 'input_tokens' THEN v_input + v_read + v_write
                         WHEN 'output_tokens' THEN v_output
                         WHEN 'total_tokens' THEN v_input + v_read + v_write + v_output END
                     - charged AS delta
              FROM (SELECT (c ->> 0)::bigint AS counter_id, c ->> 1 AS dimension,
                           sum((c ->> 2)::bigint)::bigint AS charged
                    FROM ledger_entry e, jsonb_array_elements(e.charges) c
                    WHERE e.attempt_id = p_attempt_id AND e.opened_at = p_opened_at AND NOT e.late
                    GROUP BY 1, 2) t) d
        WHERE delta <> 0;     -- NULL for requests and concurrency: they stay as they are
    PERFORM append_chained(p_writer, p_replica, identity_of(f) || jsonb_build_object(
        'kind', 'correction', 'revision', s.revision,
        'input_tokens', v_input - s.input, 'output_tokens', v_output - s.output,
        'cache_read_tokens', v_read - s.cache_read, 'cache_write_tokens', v_write - s.cache_write,
        'amount_micro_usd', v_amount - s.amount, 'usage_source', p_target -> 'usage_source',
        'outcome', p_target -> 'outcome', 'charges', coalesce(v_charges, '[]'::jsonb),
        'upstream_request_id', p_target -> 'upstream_request_id',
        'replaces', p_target -> 'replaces', 'reason', p_target -> 'reason',
        'closed_at', clock_timestamp()));
    IF v_counters IS NOT NULL THEN
        PERFORM correct_counters(f.incarnation_id, v_counters, v_deltas);
    END IF;
    RETURN true;
END $$;

-- What a late close changes. It had been given up, or the provider's log has been read since: the
-- log stands, except "not billed", which a later fact can belie (see 0004).
CREATE FUNCTION answer_late(p_entry ledger_entry) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    v_state  text;
    v_target jsonb;
    v_now    jsonb;
BEGIN
    SELECT state INTO v_state FROM open_attempt WHERE attempt_id = p_entry.attempt_id FOR UPDATE;
    SELECT jsonb_build_object('input_tokens', sum(input_tokens),
            'output_tokens', sum(output_tokens), 'cache_read_tokens', sum(cache_read_tokens),
            'cache_write_tokens', sum(cache_write_tokens),
            'amount_micro_usd', sum(amount_micro_usd))
        INTO v_now FROM ledger_entry
        WHERE attempt_id = p_entry.attempt_id AND opened_at = p_entry.opened_at AND NOT late
          AND kind IN ('attempt', 'unknown', 'correction');
    v_target := jsonb_build_object('input_tokens', p_entry.input_tokens,
        'output_tokens', p_entry.output_tokens, 'cache_read_tokens', p_entry.cache_read_tokens,
        'cache_write_tokens', p_entry.cache_write_tokens,
        'amount_micro_usd', p_entry.amount_micro_usd);
    IF (v_state = 'unknown' AND p_entry.kind = 'attempt')
       OR ((v_state IN ('not_billed', 'free')) AND p_entry.amount_micro_usd > 0
           AND (v_now ->> 'amount_micro_usd')::bigint = 0) THEN
        IF p_entry.kind = 'unknown' THEN
            UPDATE open_attempt SET state = 'unknown' WHERE attempt_id = p_entry.attempt_id;
        ELSIF p_entry.outcome = 'upstream_error' AND p_entry.amount_micro_usd = 0 THEN
            UPDATE open_attempt SET state = 'free' WHERE attempt_id = p_entry.attempt_id;
        ELSE
            DELETE FROM open_attempt WHERE attempt_id = p_entry.attempt_id;
        END IF;
    ELSE
        v_target := v_now;
    END IF;
    PERFORM correct_entry('late-facts', p_entry.replica, p_entry.attempt_id, p_entry.opened_at,
        v_target || jsonb_build_object('usage_source', p_entry.usage_source,
            'outcome', p_entry.outcome, 'upstream_request_id', p_entry.upstream_request_id,
            'replaces', p_entry.writer || ':' || p_entry.seq, 'reason', 'late_close'));
END $$;

-- Applies records of one spool, in order, in one transaction. Records at or before the chain's
-- position have been applied: sent again, they change nothing.
--   p_numbers: record numbers, ascending. p_types: 'O' open record, 'E' entry, 'P' an entry that
--   was refused before (its text is the reason), 'S' the chain is sealed, '-' nothing.
-- Returns {"entries", "opens", "skipped", "late"}. Raises data_exception for a broken chain.
CREATE FUNCTION ship_batch(
    p_writer text, p_replica text, p_numbers bigint[], p_types text[], p_texts text[],
    p_seqs bigint[], p_previous bytea[], p_hashes bytea[]
) RETURNS jsonb LANGUAGE plpgsql AS $$
DECLARE
    c         chain;
    e         ledger_entry;
    v_entries ledger_entry[] := '{}';
    v_late    ledger_entry[] := '{}';
    v_attempts text[];
    v_opens   integer := 0;
    v_skipped integer := 0;
    v_first   integer;
    v_count   integer := coalesce(array_length(p_numbers, 1), 0);
    v_sealed  boolean := false;
BEGIN
    INSERT INTO chain (writer, replica, hash) VALUES (p_writer, p_replica, genesis_hash(p_writer))
        ON CONFLICT DO NOTHING;
    SELECT * INTO STRICT c FROM chain WHERE writer = p_writer FOR UPDATE;
    SELECT count(*) INTO v_skipped FROM unnest(p_numbers) n WHERE n <= c.position;
    v_first := v_skipped + 1;
    IF v_first > v_count THEN
        RETURN jsonb_build_object('entries', 0, 'opens', 0, 'skipped', v_skipped, 'late', 0);
    END IF;
    INSERT INTO open_attempt (attempt_id, opened_at, writer, incarnation_id, provider,
            hard_limit_seconds, record)
        SELECT j ->> 'attempt_id', (j ->> 'opened_at')::timestamptz, p_writer,
               (j ->> 'incarnation_id')::bigint, j ->> 'provider',
               (j ->> 'hard_limit_seconds')::integer, j
        FROM (SELECT p_texts[i]::jsonb AS j FROM generate_series(v_first, v_count) i
              WHERE p_types[i] = 'O') o
        ORDER BY 1
        ON CONFLICT DO NOTHING;
    GET DIAGNOSTICS v_opens = ROW_COUNT;
    FOR i IN v_first .. v_count LOOP
        IF p_types[i] IN ('E', 'P') THEN
            IF p_previous[i] <> c.hash OR p_seqs[i] <> c.seq + 1 THEN
                IF p_seqs[i] <= c.seq + 1 THEN
                    RAISE EXCEPTION 'chain % is at entry %, and entry % does not follow it',
                        p_writer, c.seq, p_seqs[i] USING ERRCODE = 'data_exception';
                END IF;
                INSERT INTO chain_gap (writer, after_seq, before_seq, hash, reason)
                    VALUES (p_writer, c.seq, p_seqs[i], p_previous[i], 'records are missing')
                    ON CONFLICT DO NOTHING;
            END IF;
            IF p_types[i] = 'P' THEN
                INSERT INTO chain_gap (writer, after_seq, before_seq, hash, reason)
                    VALUES (p_writer, p_seqs[i] - 1, p_seqs[i] + 1, p_hashes[i], p_texts[i])
                    ON CONFLICT DO NOTHING;
            ELSE
                IF sha256(p_previous[i] || convert_to(p_texts[i], 'UTF8')) <> p_hashes[i] THEN
                    RAISE EXCEPTION 'entry % of chain % has another hash than it says',
                        p_seqs[i], p_writer USING ERRCODE = 'data_exception';
                END IF;
                v_entries := v_entries
                    || entry_of(p_texts[i], p_seqs[i], p_previous[i], p_hashes[i]);
            END IF;
            c.seq := p_seqs[i];
            c.hash := p_hashes[i];
        ELSIF p_types[i] = 'S' THEN
            v_sealed := true;
        END IF;
    END LOOP;
    SELECT array_agg(a.attempt_id ORDER BY a.attempt_id) INTO v_attempts FROM unnest(v_entries) a
        WHERE a.kind IN ('attempt', 'unknown');
    -- The reaper and reconcile take these rows too: what they wrote is visible from here on.
    PERFORM 1 FROM open_attempt WHERE attempt_id = ANY (v_attempts) ORDER BY attempt_id FOR UPDATE;
    SELECT array_agg(x) INTO v_late FROM unnest(v_entries) x
        WHERE x.kind IN ('attempt', 'unknown') AND EXISTS (
            SELECT FROM ledger_entry l WHERE l.attempt_id = x.attempt_id
                AND l.opened_at = x.opened_at AND l.kind IN ('attempt', 'unknown') AND NOT l.late);
    IF v_late IS NOT NULL THEN
        FOR i IN 1 .. array_length(v_entries, 1) LOOP
            e := v_entries[i];
            IF EXISTS (SELECT FROM unnest(v_late) l WHERE l.seq = e.seq) THEN
                e.late := true;
                v_entries[i] := e;
            END IF;
        END LOOP;
    END IF;
    INSERT INTO ledger_entry SELECT x.* FROM unnest(v_entries) x;
    PERFORM add_spend(v_entries);
    UPDATE open_attempt o SET
            state = CASE x.kind WHEN 'unknown' THEN 'unknown' ELSE 'free' END,
            upstream_request_id = x.upstream_request_id
        FROM unnest(v_entries) x
        WHERE o.attempt_id = x.attempt_id AND NOT x.late
          AND (x.kind = 'unknown' OR (x.kind = 'attempt' AND x.outcome = 'upstream_error'
                                      AND x.amount_micro_usd = 0));
    DELETE FROM open_attempt o USING unnest(v_entries) x
        WHERE o.attempt_id = x.attempt_id AND NOT x.late AND x.kind = 'attempt'
          AND NOT (x.outcome = 'upstream_error' AND x.amount_micro_usd = 0);
    FOR e IN SELECT x.* FROM unnest(v_late) x ORDER BY x.attempt_id LOOP
        PERFORM answer_late(e);
    END LOOP;
    UPDATE chain SET position = p_numbers[v_count], seq = c.seq, hash = c.hash,
            moved_at = clock_timestamp(),
            sealed_at = CASE WHEN v_sealed THEN clock_timestamp() ELSE sealed_at END
        WHERE writer = p_writer;
    PERFORM settle_entries(v_entries);
    RETURN jsonb_build_object('entries', coalesce(array_length(v_entries, 1), 0), 'opens', v_opens,
        'skipped', v_skipped, 'late', coalesce(array_length(v_late, 1), 0));
END $$;

-- Gives up an open attempt whose guard is gone: an `unknown` entry of the reaper's chain that
-- counts as the reservation. False: it has been closed meanwhile.
CREATE FUNCTION give_up_open_attempt(p_attempt_id text, p_writer text, p_replica text)
RETURNS boolean LANGUAGE plpgsql AS $$
DECLARE
    o open_attempt;
    e ledger_entry;
BEGIN
    SELECT * INTO o FROM open_attempt WHERE attempt_id = p_attempt_id AND state = 'open'
        FOR UPDATE SKIP LOCKED;
    IF NOT FOUND THEN
        RETURN false;
    END IF;
    UPDATE open_attempt SET state = 'unknown' WHERE attempt_id = p_attempt_id;
    e := append_chained(p_writer, p_replica,
        (o.record - 'hard_limit_seconds') || jsonb_build_object(
            'kind', 'unknown', 'outcome', 'unknown', 'usage_source', 'reservation',
            'amount_micro_usd', o.record -> 'reserved_micro_usd', 'closed_at', clock_timestamp()));
    PERFORM settle_entries(ARRAY[e]);
    RETURN true;
END $$;

-- The provider's own log says what an attempt cost. p_billed as p_target of correct_entry;
-- 'calls' 0: the log has no such call. 'written' | 'same' | 'open' (still running) | 'kept' (the
-- log was read before somebody else learnt more) | 'no_attempt'.
CREATE FUNCTION reconcile_entry(
    p_writer text, p_replica text, p_attempt_id text, p_opened_at timestamptz, p_billed jsonb
) RETURNS text LANGUAGE plpgsql AS $$
DECLARE
    o       open_attempt;
    v_known bigint;
    v_none  boolean := (p_billed ->> 'calls')::bigint = 0;
BEGIN
    SELECT * INTO o FROM open_attempt WHERE attempt_id = p_attempt_id FOR UPDATE;
    IF o.state = 'open' THEN
        RETURN 'open';
    END IF;
    SELECT sum(amount_micro_usd) INTO v_known FROM ledger_entry
        WHERE attempt_id = p_attempt_id AND opened_at = p_opened_at AND NOT late
          AND kind IN ('attempt', 'unknown', 'correction');
    IF v_known IS NULL THEN
        RETURN 'no_attempt';
    END IF;
    IF v_none AND v_known > 0 AND o.state IS DISTINCT FROM 'unknown' THEN
        RETURN 'kept';
    END IF;
    IF o.attempt_id IS NOT NULL THEN
        IF v_none THEN
            UPDATE open_attempt SET state = 'not_billed' WHERE attempt_id = p_attempt_id;
        ELSE
            DELETE FROM open_attempt WHERE attempt_id = p_attempt_id;
        END IF;
    END IF;
    RETURN CASE WHEN correct_entry(p_writer, p_replica, p_attempt_id, p_opened_at,
                                   p_billed || '{"usage_source": "provider_log"}')
        THEN 'written' ELSE 'same' END;
END $$;

-- A re-rating: what the attempt would cost at another price version, as a difference. It moves no
-- counter. False: it has been written before.
CREATE FUNCTION rerate_entry(
    p_writer text, p_replica text, p_attempt_id text, p_opened_at timestamptz, p_delta bigint,
    p_price_version text, p_actor text, p_reason text
) RETURNS boolean LANGUAGE plpgsql AS $$
DECLARE
    f     ledger_entry;
    v_rev integer;
BEGIN
    PERFORM pg_advisory_xact_lock(x'7E44'::integer, hashtext(p_attempt_id));
    SELECT * INTO f FROM ledger_entry WHERE attempt_id = p_attempt_id AND opened_at = p_opened_at
        AND kind IN ('attempt', 'unknown') AND NOT late;
    IF NOT FOUND OR EXISTS (
        SELECT FROM ledger_entry WHERE attempt_id = p_attempt_id AND opened_at = p_opened_at
            AND kind = 'rerating' AND price_version = p_price_version) THEN
        RETURN false;
    END IF;
    SELECT coalesce(max(revision), 0) + 1 INTO v_rev FROM ledger_entry
        WHERE attempt_id = p_attempt_id AND opened_at = p_opened_at AND kind = 'rerating';
    PERFORM append_chained(p_writer, p_replica, identity_of(f) || jsonb_build_object(
        'kind', 'rerating', 'revision', v_rev, 'amount_micro_usd', p_delta,
        'price_version', p_price_version, 'outcome', f.outcome, 'usage_source', f.usage_source,
        'actor', p_actor, 'reason', p_reason, 'closed_at', clock_timestamp()));
    RETURN true;
END $$;

-- All entries of both ledgers that count, with the columns of the old one and the most asked of
-- the new.
CREATE VIEW ledger_all AS
    SELECT entry_id, attempt_id, kind, revision, request_id, trace_id, key_id, team, model,
           deployment, provider, surface, input_tokens, output_tokens, amount_micro_usd,
           reserved_micro_usd, usage_source, outcome, price_version, replica, created_at,
           NULL::text AS org, NULL::text AS user_name, NULL::text AS app, NULL::text AS key_name,
           0::bigint AS cache_read_tokens, 0::bigint AS cache_write_tokens,
           0::bigint AS cache_write_1h_tokens, 'call' AS purpose,
           NULL::bigint AS policy_version, NULL::bigint AS latency_ms,
           NULL::bigint AS first_byte_ms, NULL::text AS upstream_request_id,
           NULL::text AS decision, NULL::text AS reason, NULL::jsonb AS detail,
           NULL::text AS actor, NULL::text AS writer, NULL::bigint AS seq, created_at AS opened_at,
           NULL::text AS clamped, 0::bigint AS images
    FROM ledger
    UNION ALL
    SELECT entry_id, attempt_id, kind, revision, request_id, trace_id, key_id, team, model,
           deployment, provider, surface, input_tokens, output_tokens, amount_micro_usd,
           reserved_micro_usd, usage_source, outcome, price_version, replica, created_at,
           org, user_name, app, key_name, cache_read_tokens, cache_write_tokens,
           cache_write_1h_tokens, purpose, policy_version, latency_ms, first_byte_ms, upstream_request_id, decision, reason,
           detail, actor, writer, seq, opened_at, clamped, images
    FROM ledger_entry WHERE NOT late;

-- Administrative changes are part of a chain too, whoever inserts the audit record.
CREATE FUNCTION chain_audit() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    PERFORM append_chained('admin', 'database', jsonb_build_object(
        'kind', 'decision', 'decision', 'admin_change', 'actor', NEW.actor, 'reason', NEW.action,
        'opened_at', NEW.created_at, 'closed_at', NEW.created_at,
        'detail', jsonb_build_object('audit_id', NEW.audit_id, 'subject', NEW.subject,
                                     'reason', NEW.reason, 'detail', NEW.detail)));
    RETURN NULL;
END $$;
CREATE TRIGGER audit_chained AFTER INSERT ON audit
    FOR EACH ROW EXECUTE FUNCTION chain_audit();

-- Drops a month of the ledger that has been exported whole. The chains' gaps are written down with
-- where the rows are. Raises if a day of it was not exported, or has grown since.
-- All that takes long is done before the lock that stops readers and writers; behind it rows are
-- only counted, for one may have been added meanwhile. Who waits for that lock stops all that come
-- behind: so it is given up after 2 s.
CREATE FUNCTION drop_ledger_partition(p_name text) RETURNS bigint LANGUAGE plpgsql
SET lock_timeout = '2s' AS $$
DECLARE
    v_missing text;
    v_rows    bigint;
    v_now     bigint;
BEGIN
    IF NOT EXISTS (SELECT FROM pg_inherits WHERE inhparent = 'ledger_entry'::regclass
                   AND inhrelid = to_regclass(p_name)) OR p_name = 'ledger_entry_other' THEN
        RAISE EXCEPTION '% is no month of the ledger', p_name USING ERRCODE = 'undefined_table';
    END IF;
    EXECUTE format(
        'SELECT string_agg(d.day::text, '', '' ORDER BY d.day)
                    FILTER (WHERE x.rows IS DISTINCT FROM d.n
                            OR x.last_entry_id IS DISTINCT FROM d.last),
                coalesce(sum(d.n), 0) FROM (
             SELECT (opened_at AT TIME ZONE ''UTC'')::date AS day, count(*) AS n,
                    max(entry_id) AS last FROM %I GROUP BY 1) d
         LEFT JOIN ledger_export x ON x.partition_name = %L AND x.day = d.day',
        p_name, p_name) INTO v_missing, v_rows;
    IF v_missing IS NOT NULL THEN
        RAISE EXCEPTION 'not exported, or changed since: %', v_missing
            USING ERRCODE = 'check_violation';
    END IF;
    EXECUTE format(
        'INSERT INTO chain_gap (writer, after_seq, before_seq, hash, reason)
         SELECT writer, min(seq) - 1, max(seq) + 1,
                (array_agg(hash ORDER BY seq DESC))[1], ''exported: '' || %L
         FROM (SELECT writer, seq, hash, seq - row_number() OVER (PARTITION BY writer ORDER BY seq)
                      AS island FROM %I) t
         GROUP BY writer, island ON CONFLICT DO NOTHING', p_name, p_name);
    EXECUTE format('ALTER TABLE ledger_entry DETACH PARTITION %I', p_name);
    EXECUTE format('SELECT count(*) FROM %I', p_name) INTO v_now;
    IF v_now <> v_rows THEN
        RAISE EXCEPTION 'changed while it was looked at: % rows, then %', v_rows, v_now
            USING ERRCODE = 'check_violation';
    END IF;
    EXECUTE format('DROP TABLE %I', p_name);
    RETURN v_rows;
END $$;
