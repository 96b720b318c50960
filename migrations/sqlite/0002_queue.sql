-- The embedded queue. A message that was delivered is invisible until its lease ends; `fence`
-- grows with every delivery, and only the holder of the newest may settle it.
CREATE TABLE queue_message (
    id          INTEGER PRIMARY KEY AUTOINCREMENT,
    queue       TEXT    NOT NULL,
    message_id  TEXT    NOT NULL,
    message     BLOB    NOT NULL,
    headers     TEXT    NOT NULL,
    attempt     INTEGER NOT NULL DEFAULT 0,
    deliveries  INTEGER NOT NULL DEFAULT 0,
    unsettled   INTEGER NOT NULL DEFAULT 0,
    fence       INTEGER NOT NULL DEFAULT 0,
    visible_at  INTEGER NOT NULL,
    leased      INTEGER NOT NULL DEFAULT 0 CHECK (leased IN (0, 1)),
    acked_at    INTEGER
) STRICT;

CREATE INDEX queue_message_visible ON queue_message (queue, visible_at, id) WHERE acked_at IS NULL;
