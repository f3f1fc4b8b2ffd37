-- Governance versions, keys with owners and rotated secrets, kill switches, and one epoch that
-- every change of the policy moves. Whoever changes a policy row holds the row lock of policy_head
-- until the commit, so epochs commit in order and "changed_epoch > known" finds everything. The
-- stamp is a trigger's work, so that a guard of the release before moves the epoch as well.

CREATE TABLE policy_head (
    only_one boolean PRIMARY KEY DEFAULT true CHECK (only_one),
    epoch    bigint NOT NULL
);
INSERT INTO policy_head (epoch) VALUES (1);

-- The epoch of this transaction's changes; the first call takes the lock and tells the listeners.
CREATE FUNCTION policy_change() RETURNS bigint LANGUAGE plpgsql AS $$
DECLARE
    v_known text := current_setting('terrace.policy_change', true);
    v_mine  text := pg_current_xact_id()::text;
    v_epoch bigint;
BEGIN
    IF split_part(coalesce(v_known, ''), ':', 1) = v_mine THEN
        RETURN split_part(v_known, ':', 2)::bigint;
    END IF;
    UPDATE policy_head SET epoch = epoch + 1 RETURNING epoch INTO STRICT v_epoch;
    PERFORM set_config('terrace.policy_change', v_mine || ':' || v_epoch, true);
    PERFORM pg_notify('terrace_policy', v_epoch::text);
    RETURN v_epoch;
END $$;

CREATE FUNCTION stamp_policy_epoch() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    NEW.changed_epoch := policy_change();
    RETURN NEW;
END $$;

ALTER TABLE virtual_key
    ADD COLUMN declared      text,       -- name of the declared key whose secret this is
    ADD COLUMN app           text,
    ADD COLUMN user_name     text,
    ADD COLUMN policies      text[],
    ADD COLUMN surfaces      text[],     -- NULL: all
    ADD COLUMN features      text[],     -- NULL: all
    ADD COLUMN rotated_at    timestamptz,
    ADD COLUMN revoked_reason text,
    ADD COLUMN changed_epoch bigint NOT NULL DEFAULT 0;
CREATE INDEX virtual_key_changed ON virtual_key (changed_epoch);
CREATE INDEX virtual_key_page ON virtual_key (created_at, key_id);
-- One live secret-holder per declared key; its budget is the declaration's, not the secret's.
CREATE UNIQUE INDEX virtual_key_declared ON virtual_key (declared)
    WHERE declared IS NOT NULL AND revoked_at IS NULL;
CREATE TRIGGER virtual_key_made BEFORE INSERT ON virtual_key
    FOR EACH ROW EXECUTE FUNCTION stamp_policy_epoch();
-- Not for last_used_at, which is no policy.
CREATE TRIGGER virtual_key_changed BEFORE UPDATE OF key_hash, team, name, models, expires_at,
        revoked_at, declared, app, user_name, policies, surfaces, features, rotated_at
    ON virtual_key FOR EACH ROW EXECUTE FUNCTION stamp_policy_epoch();

-- The secrets a key had before its last rotations; valid until their overlap ends.
CREATE TABLE rotated_secret (
    key_hash      bytea PRIMARY KEY CHECK (octet_length(key_hash) = 32),
    key_id        text NOT NULL REFERENCES virtual_key,
    valid_until   timestamptz NOT NULL,
    changed_epoch bigint NOT NULL DEFAULT 0
);
CREATE INDEX rotated_secret_changed ON rotated_secret (changed_epoch);
CREATE INDEX rotated_secret_key ON rotated_secret (key_id);
CREATE TRIGGER rotated_secret_changed BEFORE INSERT OR UPDATE ON rotated_secret
    FOR EACH ROW EXECUTE FUNCTION stamp_policy_epoch();

ALTER TABLE cap
    ADD COLUMN origin text NOT NULL DEFAULT 'runtime' CHECK (origin IN ('runtime', 'declared')),
    ADD COLUMN changed_epoch bigint NOT NULL DEFAULT 0;
CREATE INDEX cap_changed ON cap (changed_epoch);
CREATE TRIGGER cap_changed BEFORE INSERT OR UPDATE ON cap
    FOR EACH ROW EXECUTE FUNCTION stamp_policy_epoch();

CREATE TABLE kill_switch (
    kind          text NOT NULL CHECK (kind IN
        ('key', 'team', 'org', 'user', 'app', 'model', 'provider', 'all')),
    target        text NOT NULL,         -- '' for all
    reason        text NOT NULL,
    actor         text NOT NULL,
    killed_at     timestamptz NOT NULL DEFAULT clock_timestamp(),
    lifted_at     timestamptz,
    changed_epoch bigint NOT NULL DEFAULT 0,
    PRIMARY KEY (kind, target)
);
CREATE TRIGGER kill_switch_changed BEFORE INSERT OR UPDATE ON kill_switch
    FOR EACH ROW EXECUTE FUNCTION stamp_policy_epoch();

CREATE TABLE governance_version (
    version       bigint PRIMARY KEY,    -- 1, 2, 3 ...: given under the lock of policy_head
    text          text NOT NULL,
    digest        text NOT NULL,         -- SHA-256 of the text, hex
    actor         text NOT NULL,
    reason        text,
    source        text NOT NULL CHECK (source IN ('api', 'deployment', 'rollback')),
    rollback_of   bigint REFERENCES governance_version,
    plan          jsonb NOT NULL,
    applied_at    timestamptz NOT NULL DEFAULT clock_timestamp(),
    changed_epoch bigint NOT NULL DEFAULT 0
);
CREATE INDEX governance_version_digest ON governance_version (digest);
CREATE TRIGGER governance_version_made BEFORE INSERT ON governance_version
    FOR EACH ROW EXECUTE FUNCTION stamp_policy_epoch();
CREATE TRIGGER governance_version_append_only BEFORE UPDATE OR DELETE ON governance_version
    FOR EACH ROW EXECUTE FUNCTION refuse_change();
CREATE TRIGGER governance_version_no_truncate BEFORE TRUNCATE ON governance_version
    FOR EACH STATEMENT EXECUTE FUNCTION refuse_change();

-- Last uses, gathered in memory and written in batches. A row that somebody holds is skipped: the
-- next batch of whoever used the key says it again.
CREATE FUNCTION note_key_use(p_keys text[], p_used timestamptz[]) RETURNS void
LANGUAGE sql AS $$
    UPDATE virtual_key k SET last_used_at = used.moment
    FROM (SELECT v.key_id, u.moment
          FROM virtual_key v JOIN unnest(p_keys, p_used) AS u (key_id, moment) USING (key_id)
          WHERE v.last_used_at IS NULL OR v.last_used_at < u.moment
          ORDER BY v.key_id FOR UPDATE OF v SKIP LOCKED) used
    WHERE k.key_id = used.key_id;
$$;
