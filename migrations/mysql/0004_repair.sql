-- What an operator's repair has changed: written in the transaction that changed it, never changed
-- afterwards. `subject` is what it was about, as in idempotent_record; role and key are those of a
-- parked event.
CREATE TABLE repair (
    id        BIGINT          NOT NULL AUTO_INCREMENT PRIMARY KEY,
    at        BIGINT          NOT NULL,
    actor     LONGBLOB        NOT NULL,
    what      VARBINARY(64)   NOT NULL,
    subject   VARBINARY(1024) NOT NULL,
    role      VARBINARY(255),
    `key`     VARBINARY(191),
    `before`  LONGBLOB        NOT NULL,
    `after`   LONGBLOB        NOT NULL,
    INDEX repair_subject (subject)
) ENGINE = InnoDB ROW_FORMAT = DYNAMIC DEFAULT CHARSET = utf8mb4;
