-- The way in which retention finds what has outlived its time: claims in use stand first, in the order in
-- which they came.
CREATE INDEX idempotent_record_expired ON idempotent_record (expired_at, created_at);

-- How many rows of a table retention has removed. Those that are gone were concluded no later than
-- `removed_through`, so that what such a claim has written is not taken for something without one.
CREATE TABLE retention (
    name             VARBINARY(255)  NOT NULL,
    removed          BIGINT          NOT NULL,
    removed_through  BIGINT          NOT NULL,
    PRIMARY KEY (name)
) ENGINE = InnoDB ROW_FORMAT = DYNAMIC DEFAULT CHARSET = utf8mb4;
