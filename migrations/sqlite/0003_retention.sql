-- The way in which retention finds what has outlived its time; claims in use are in the first index only.
CREATE INDEX idempotent_record_created ON idempotent_record (created_at) WHERE expired_at IS NULL;
CREATE INDEX idempotent_record_expired ON idempotent_record (expired_at) WHERE expired_at IS NOT NULL;

-- How many rows of a table retention has removed. Those that are gone were concluded no later than
-- `removed_through`, so that what such a claim has written is not taken for something without one.
CREATE TABLE retention (
    name             TEXT    NOT NULL PRIMARY KEY,
    removed          INTEGER NOT NULL,
    removed_through  INTEGER NOT NULL
) STRICT;
