-- What an operator's repair has changed: written in the transaction that changed it, never changed
-- afterwards. `subject` is what it was about, as in idempotent_record; role and key are those of a
-- parked event.
CREATE TABLE repair (
    id       INTEGER PRIMARY KEY AUTOINCREMENT,
    at       INTEGER NOT NULL,
    actor    TEXT    NOT NULL,
    what     TEXT    NOT NULL,
    subject  TEXT    NOT NULL,
    role     TEXT,
    key      TEXT,
    before   TEXT    NOT NULL,
    after    TEXT    NOT NULL
) STRICT;

CREATE INDEX repair_subject ON repair (subject);
