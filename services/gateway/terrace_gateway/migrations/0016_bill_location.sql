-- Where the logs of Bedrock's invocations were read, and from when on. A missing line says nothing
-- of an attempt that was made before its log was: it may be in the one of before.
CREATE TABLE bill_location (
    location text NOT NULL,
    since    timestamptz NOT NULL PRIMARY KEY
);
