-- Price books. A book never changes; which one is in force is the last line of price_book_use. With
-- no line, or one without a version, every model has the price that the governance spec gives it.

CREATE TABLE price_book (
    version    text PRIMARY KEY,
    document   jsonb NOT NULL,
    digest     text NOT NULL,            -- SHA-256 of the document in canonical form, hex
    actor      text NOT NULL,
    created_at timestamptz NOT NULL DEFAULT clock_timestamp()
);
CREATE TRIGGER price_book_append_only BEFORE UPDATE OR DELETE ON price_book
    FOR EACH ROW EXECUTE FUNCTION refuse_change();
CREATE TRIGGER price_book_no_truncate BEFORE TRUNCATE ON price_book
    FOR EACH STATEMENT EXECUTE FUNCTION refuse_change();

CREATE TABLE price_book_use (
    use_id        bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    version       text REFERENCES price_book,  -- NULL: the spec's own prices
    actor         text NOT NULL,
    reason        text NOT NULL,
    applied_at    timestamptz NOT NULL DEFAULT clock_timestamp(),
    changed_epoch bigint NOT NULL DEFAULT 0
);
CREATE TRIGGER price_book_use_made BEFORE INSERT ON price_book_use
    FOR EACH ROW EXECUTE FUNCTION stamp_policy_epoch();
CREATE TRIGGER price_book_use_append_only BEFORE UPDATE OR DELETE ON price_book_use
    FOR EACH ROW EXECUTE FUNCTION refuse_change();
CREATE TRIGGER price_book_use_no_truncate BEFORE TRUNCATE ON price_book_use
    FOR EACH STATEMENT EXECUTE FUNCTION refuse_change();
