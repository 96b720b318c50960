-- What payment providers said by HTTP, as it came: kept for whoever investigates, never changed, and removed
-- after a while. `subject` is the order that it is about, or empty; `key` that of its claim.
CREATE TABLE callback (
    id           BIGINT          NOT NULL AUTO_INCREMENT PRIMARY KEY,
    provider     VARBINARY(64)   NOT NULL,
    verdict      VARBINARY(16)   NOT NULL CHECK (verdict IN ('ACCEPTED', 'IGNORED', 'REFUSED')),
    detail       LONGBLOB        NOT NULL,
    subject      VARBINARY(1024) NOT NULL,
    `key`        VARBINARY(191)  NOT NULL,
    headers      LONGTEXT        CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL,
    body         LONGBLOB        NOT NULL,
    remote       VARBINARY(64)   NOT NULL,
    received_at  BIGINT          NOT NULL,
    INDEX callback_subject (subject, id),
    INDEX callback_received (received_at)
) ENGINE = InnoDB ROW_FORMAT = DYNAMIC DEFAULT CHARSET = utf8mb4;
