-- What payment providers said by HTTP, as it came: kept for whoever investigates, never changed, and removed
-- after a while. `subject` is the order that it is about, or empty; `key` that of its claim.
CREATE TABLE callback (
    id           BIGINT            GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    provider     TEXT COLLATE "C"  NOT NULL,
    verdict      TEXT COLLATE "C"  NOT NULL CHECK (verdict IN ('ACCEPTED', 'IGNORED', 'REFUSED')),
    detail       TEXT COLLATE "C"  NOT NULL,
    subject      TEXT COLLATE "C"  NOT NULL,
    key          TEXT COLLATE "C"  NOT NULL,
    headers      TEXT COLLATE "C"  NOT NULL,
    body         BYTEA             NOT NULL,
    remote       TEXT COLLATE "C"  NOT NULL,
    received_at  BIGINT            NOT NULL
);

CREATE INDEX callback_subject ON callback (subject, id) WHERE subject <> '';
CREATE INDEX callback_received ON callback (received_at);
