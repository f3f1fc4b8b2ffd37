-- Keys, caps, counters, attempts, ledger, audit. Money is micro-USD in bigint; times are the
-- database's clock, because it is the only one that all guards share.

CREATE TABLE incarnation (
    incarnation_id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    replica        text NOT NULL,
    started_at     timestamptz NOT NULL DEFAULT clock_timestamp(),
    heartbeat_at   timestamptz NOT NULL DEFAULT clock_timestamp(),
    ended_at       timestamptz
);

CREATE TABLE virtual_key (
    key_id       text PRIMARY KEY,
    key_hash     bytea NOT NULL UNIQUE CHECK (octet_length(key_hash) = 32),
    team         text NOT NULL,
    name         text,
    models       text[],             -- NULL: every model of the catalogue
    created_at   timestamptz NOT NULL DEFAULT clock_timestamp(),
    expires_at   timestamptz,
    revoked_at   timestamptz,
    last_used_at timestamptz
);
CREATE INDEX virtual_key_team ON virtual_key (team, created_at);

-- A cap is (scope, dimension, window). window_seconds 0 is the lifetime of the scope.
CREATE TABLE cap (
    scope          text NOT NULL CHECK (scope IN ('key', 'team')),
    scope_id       text NOT NULL,
    dimension      text NOT NULL CHECK (dimension IN ('micro_usd', 'requests')),
    window_seconds integer NOT NULL CHECK (window_seconds >= 0),
    amount         bigint CHECK (amount >= 0),   -- NULL: counted, not capped
    PRIMARY KEY (scope, scope_id, dimension, window_seconds)
);

CREATE TABLE counter (
    counter_id     bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    scope          text NOT NULL,
    scope_id       text NOT NULL,
    dimension      text NOT NULL,
    window_seconds integer NOT NULL,
    window_start   timestamptz NOT NULL,          -- 'epoch' for a lifetime
    settled        bigint NOT NULL DEFAULT 0,
    outstanding    bigint NOT NULL DEFAULT 0 CHECK (outstanding >= 0),
    UNIQUE (scope, scope_id, dimension, window_seconds, window_start)
) WITH (fillfactor = 50);                         -- room for HOT updates of hot rows

-- The open record of a call to a provider, durable before its first byte goes upstream.
CREATE TABLE attempt (
    attempt_id         text PRIMARY KEY,
    request_id         text NOT NULL,
    trace_id           text NOT NULL,
    incarnation_id     bigint NOT NULL REFERENCES incarnation,
    replica            text NOT NULL,
    key_id             text NOT NULL REFERENCES virtual_key,
    team               text NOT NULL,
    model              text NOT NULL,
    deployment         text NOT NULL,
    provider           text NOT NULL,
    surface            text NOT NULL,
    reserved_micro_usd bigint NOT NULL CHECK (reserved_micro_usd >= 0),
    price_version      text NOT NULL,
    hard_limit_seconds integer NOT NULL,
    held_counters      bigint[] NOT NULL,         -- in lock order
    held_amounts       bigint[] NOT NULL,
    state              text NOT NULL DEFAULT 'open'
        CHECK (state IN ('open', 'settled', 'unknown', 'reconciled')),
    outcome            text,
    opened_at          timestamptz NOT NULL DEFAULT clock_timestamp(),
    closed_at          timestamptz
) WITH (fillfactor = 80);
CREATE INDEX attempt_unfinished ON attempt (opened_at) WHERE state IN ('open', 'unknown');
CREATE INDEX attempt_key ON attempt (key_id, opened_at);

CREATE TABLE ledger (
    entry_id           bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    attempt_id         text NOT NULL REFERENCES attempt,
    kind               text NOT NULL CHECK (kind IN ('attempt', 'unknown', 'correction')),
    revision           integer NOT NULL DEFAULT 0,
    request_id         text NOT NULL,
    trace_id           text NOT NULL,
    key_id             text NOT NULL,
    team               text NOT NULL,
    model              text NOT NULL,
    deployment         text NOT NULL,
    provider           text NOT NULL,
    surface            text NOT NULL,
    input_tokens       bigint NOT NULL,           -- signed in corrections, like the amount
    output_tokens      bigint NOT NULL,
    amount_micro_usd   bigint NOT NULL,
    reserved_micro_usd bigint NOT NULL,
    usage_source       text NOT NULL
        CHECK (usage_source IN ('response', 'stream', 'reservation', 'provider_log', 'none')),
    outcome            text NOT NULL
        CHECK (outcome IN ('ok', 'client_cancelled', 'upstream_error', 'unknown', 'not_sent')),
    price_version      text NOT NULL,
    replica            text NOT NULL,
    created_at         timestamptz NOT NULL DEFAULT clock_timestamp(),
    UNIQUE (attempt_id, kind, revision),
    CHECK (kind = 'correction' OR revision = 0),
    CHECK (kind = 'correction'
           OR (amount_micro_usd >= 0 AND input_tokens >= 0 AND output_tokens >= 0))
);
-- An attempt is closed once: by what was learnt or as unknown, never by both.
CREATE UNIQUE INDEX ledger_one_close ON ledger (attempt_id) WHERE kind <> 'correction';
CREATE INDEX ledger_key ON ledger (key_id, entry_id);

CREATE TABLE audit (
    audit_id   bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    actor      text NOT NULL,
    action     text NOT NULL,
    subject    text NOT NULL,
    reason     text,
    detail     jsonb NOT NULL DEFAULT '{}',
    created_at timestamptz NOT NULL DEFAULT clock_timestamp()
);

CREATE FUNCTION refuse_change() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION 'table % is append-only', TG_TABLE_NAME USING ERRCODE = 'restrict_violation';
END $$;
CREATE TRIGGER ledger_append_only BEFORE UPDATE OR DELETE ON ledger
    FOR EACH ROW EXECUTE FUNCTION refuse_change();
CREATE TRIGGER ledger_no_truncate BEFORE TRUNCATE ON ledger
    FOR EACH STATEMENT EXECUTE FUNCTION refuse_change();
CREATE TRIGGER audit_append_only BEFORE UPDATE OR DELETE ON audit
    FOR EACH ROW EXECUTE FUNCTION refuse_change();
CREATE TRIGGER audit_no_truncate BEFORE TRUNCATE ON audit
    FOR EACH STATEMENT EXECUTE FUNCTION refuse_change();
REVOKE UPDATE, DELETE, TRUNCATE ON ledger, audit FROM PUBLIC, CURRENT_USER;
