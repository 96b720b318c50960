-- The way in which retention finds what has outlived its time; claims in use are in the first index only.
-- New claims go to its end.
CREATE INDEX idempotent_record_created ON idempotent_record (created_at) WHERE expired_at IS NULL;
CREATE INDEX idempotent_record_expired ON idempotent_record (expired_at) WHERE expired_at IS NOT NULL;

-- How many rows of a table retention has removed. Those that are gone were concluded no later than
-- `removed_through`, so that what such a claim has written is not taken for something without one.
CREATE TABLE retention (
    name             TEXT COLLATE "C"  NOT NULL PRIMARY KEY,
    removed          BIGINT            NOT NULL,
    removed_through  BIGINT            NOT NULL
) WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 100);
