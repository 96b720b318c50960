-- What payment providers said by HTTP, as it came: kept for whoever investigates, never changed, and removed
-- after a while. `subject` is the order that it is about, or empty; `key` that of its claim.
CREATE TABLE callback (
    id           INTEGER PRIMARY KEY AUTOINCREMENT,
    provider     TEXT    NOT NULL,
    verdict      TEXT    NOT NULL CHECK (verdict IN ('ACCEPTED', 'IGNORED', 'REFUSED')),
    detail       TEXT    NOT NULL,
    subject      TEXT    NOT NULL,
    key          TEXT    NOT NULL,
    headers      TEXT    NOT NULL,
    body         BLOB    NOT NULL,
    remote       TEXT    NOT NULL,
    received_at  INTEGER NOT NULL
) STRICT;

CREATE INDEX callback_subject ON callback (subject, id) WHERE subject <> '';
CREATE INDEX callback_received ON callback (received_at);
