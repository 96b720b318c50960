-- What an operator's repair has changed: written in the transaction that changed it, never changed
-- afterwards. `subject` is what it was about, as in idempotent_record; role and key are those of a
-- parked event.
CREATE TABLE repair (
    id       BIGINT            GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    at       BIGINT            NOT NULL,
    actor    TEXT COLLATE "C"  NOT NULL,
    what     TEXT COLLATE "C"  NOT NULL,
    subject  TEXT COLLATE "C"  NOT NULL,
    role     TEXT COLLATE "C",
    key      TEXT COLLATE "C",
    before   TEXT COLLATE "C"  NOT NULL,
    after    TEXT COLLATE "C"  NOT NULL
);

CREATE INDEX repair_subject ON repair (subject);
