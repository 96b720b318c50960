-- Times are milliseconds since 1970-01-01T00:00:00Z, by the database's clock.
-- Text is compared byte by byte, so it is VARBINARY: every collation of utf8mb4 either folds case or
-- ignores spaces at the end. What is never compared is LONGBLOB, which has no limit of its own.
-- Money is integer minor units of the row's ISO 4217 currency.
-- An index cannot be partial: one that is in SQLite has its condition's column here, or none.

CREATE TABLE orders (
    order_id        VARBINARY(512) NOT NULL PRIMARY KEY,
    user_id         VARBINARY(512) NOT NULL,
    status          VARBINARY(16)  NOT NULL CHECK (status IN ('WAIT_PAY', 'PAID', 'SHIPPED', 'COMPLETED', 'CLOSED', 'REFUNDED')),
    version         BIGINT         NOT NULL CHECK (version > 0),
    currency        VARBINARY(3)   NOT NULL,
    total_minor     BIGINT         NOT NULL CHECK (total_minor >= 0),
    paid_minor      BIGINT         NOT NULL CHECK (paid_minor >= 0),
    refunded_minor  BIGINT         NOT NULL,
    pay_deadline    BIGINT         NOT NULL,
    fingerprint     VARBINARY(32)  NOT NULL,
    created_at      BIGINT         NOT NULL,
    updated_at      BIGINT         NOT NULL,
    CHECK (refunded_minor BETWEEN 0 AND paid_minor),
    INDEX orders_unpaid (status, pay_deadline)
) ENGINE = InnoDB ROW_FORMAT = DYNAMIC DEFAULT CHARSET = utf8mb4;

CREATE TABLE order_line (
    order_id          VARBINARY(512) NOT NULL,
    line_no           BIGINT         NOT NULL,
    sku_id            VARBINARY(512) NOT NULL,
    qty               BIGINT         NOT NULL CHECK (qty > 0),
    unit_price_minor  BIGINT         NOT NULL,
    amount_minor      BIGINT         NOT NULL,
    charge            BIGINT         NOT NULL CHECK (charge IN (0, 1)),
    PRIMARY KEY (order_id, line_no)
) ENGINE = InnoDB ROW_FORMAT = DYNAMIC DEFAULT CHARSET = utf8mb4;

CREATE TABLE order_transition (
    order_id     VARBINARY(512) NOT NULL,
    version      BIGINT         NOT NULL,
    from_status  VARBINARY(16),
    to_status    VARBINARY(16)  NOT NULL,
    `key`        VARBINARY(191) NOT NULL,
    at           BIGINT         NOT NULL,
    PRIMARY KEY (order_id, version)
) ENGINE = InnoDB ROW_FORMAT = DYNAMIC DEFAULT CHARSET = utf8mb4;

CREATE TABLE payment (
    provider           VARBINARY(512) NOT NULL,
    trade_no           VARBINARY(512) NOT NULL,
    order_id           VARBINARY(512) NOT NULL,
    status             VARBINARY(16)  NOT NULL CHECK (status IN ('ACCEPTED', 'SURPLUS', 'LATE')),
    trade_status       LONGBLOB,
    amount_minor       BIGINT         NOT NULL CHECK (amount_minor >= 0),
    currency           VARBINARY(3)   NOT NULL,
    created_at         BIGINT         NOT NULL,
    accepted_order_id  VARBINARY(512) GENERATED ALWAYS AS (CASE WHEN status = 'ACCEPTED' THEN order_id END) STORED,
    PRIMARY KEY (provider, trade_no),
    INDEX payment_order (order_id),
    UNIQUE INDEX payment_accepted (accepted_order_id)
) ENGINE = InnoDB ROW_FORMAT = DYNAMIC DEFAULT CHARSET = utf8mb4;

CREATE TABLE refund (
    provider      VARBINARY(512) NOT NULL,
    refund_no     VARBINARY(512) NOT NULL,
    order_id      VARBINARY(512) NOT NULL,
    trade_no      VARBINARY(512),
    status        VARBINARY(16)  NOT NULL CHECK (status IN ('REQUESTED', 'SUCCEEDED', 'FAILED')),
    amount_minor  BIGINT         NOT NULL CHECK (amount_minor >= 0),
    currency      VARBINARY(3)   NOT NULL,
    created_at    BIGINT         NOT NULL,
    updated_at    BIGINT         NOT NULL,
    PRIMARY KEY (provider, refund_no),
    INDEX refund_order (order_id)
) ENGINE = InnoDB ROW_FORMAT = DYNAMIC DEFAULT CHARSET = utf8mb4;

-- `opening` is what was there before this program kept flows; stock that it was told of by
-- stock.adjust has a flow instead.
CREATE TABLE stock (
    sku_id      VARBINARY(512) NOT NULL PRIMARY KEY,
    opening     BIGINT         NOT NULL DEFAULT 0,
    available   BIGINT         NOT NULL CHECK (available >= 0),
    version     BIGINT         NOT NULL CHECK (version >= 0),
    updated_at  BIGINT         NOT NULL
) ENGINE = InnoDB ROW_FORMAT = DYNAMIC DEFAULT CHARSET = utf8mb4;

CREATE TABLE reservation (
    order_id    VARBINARY(512) NOT NULL PRIMARY KEY,
    status      VARBINARY(16)  NOT NULL CHECK (status IN ('DEDUCTED', 'REJECTED', 'RELEASED')),
    version     BIGINT         NOT NULL CHECK (version > 0),
    created_at  BIGINT         NOT NULL,
    updated_at  BIGINT         NOT NULL
) ENGINE = InnoDB ROW_FORMAT = DYNAMIC DEFAULT CHARSET = utf8mb4;

CREATE TABLE deduction_flow (
    flow_id          VARBINARY(191) NOT NULL PRIMARY KEY,
    order_id         VARBINARY(512),
    sku_id           VARBINARY(512) NOT NULL,
    action           VARBINARY(16)  NOT NULL CHECK (action IN ('deduct', 'release', 'return', 'adjust')),
    qty              BIGINT         NOT NULL,
    available_after  BIGINT         NOT NULL,
    at               BIGINT         NOT NULL,
    INDEX deduction_flow_order (order_id)
) ENGINE = InnoDB ROW_FORMAT = DYNAMIC DEFAULT CHARSET = utf8mb4;

CREATE TABLE account (
    user_id     VARBINARY(512) NOT NULL,
    kind        VARBINARY(512) NOT NULL,
    balance     BIGINT         NOT NULL CHECK (balance >= 0),
    version     BIGINT         NOT NULL CHECK (version > 0),
    updated_at  BIGINT         NOT NULL,
    PRIMARY KEY (user_id, kind)
) ENGINE = InnoDB ROW_FORMAT = DYNAMIC DEFAULT CHARSET = utf8mb4;

CREATE TABLE account_flow (
    user_id               VARBINARY(512) NOT NULL,
    kind                  VARBINARY(512) NOT NULL,
    source_type           VARBINARY(512) NOT NULL,
    source_id             VARBINARY(512) NOT NULL,
    reverses_source_type  VARBINARY(512),
    reverses_source_id    VARBINARY(512),
    amount                BIGINT         NOT NULL,
    balance_after         BIGINT         NOT NULL CHECK (balance_after >= 0),
    at                    BIGINT         NOT NULL,
    PRIMARY KEY (user_id, kind, source_type, source_id),
    INDEX account_flow_reverses (user_id, kind, reverses_source_type, reverses_source_id),
    INDEX account_flow_source (source_type, source_id)
) ENGINE = InnoDB ROW_FORMAT = DYNAMIC DEFAULT CHARSET = utf8mb4;

-- `claim_token` is of the statement that took the key: by it that statement knows its own rows.
CREATE TABLE idempotent_record (
    role          VARBINARY(255)  NOT NULL,
    `key`         VARBINARY(191)  NOT NULL,
    subject       VARBINARY(1024) NOT NULL,
    fingerprint   VARBINARY(32)   NOT NULL,
    message_id    LONGBLOB        NOT NULL,
    outcome       VARBINARY(16)   NOT NULL CHECK (outcome IN ('applied', 'parked', 'stale', 'rejected', 'duplicate', 'conflict', 'dead')),
    detail        LONGBLOB,
    request_body  LONGBLOB,
    created_at    BIGINT          NOT NULL,
    concluded_at  BIGINT          NOT NULL,
    expired_at    BIGINT,
    claim_token   VARBINARY(16)   NOT NULL DEFAULT '',
    PRIMARY KEY (role, `key`),
    INDEX idempotent_record_subject (subject)
) ENGINE = InnoDB ROW_FORMAT = DYNAMIC DEFAULT CHARSET = utf8mb4;

CREATE TABLE parked_event (
    role        VARBINARY(255)  NOT NULL,
    `key`       VARBINARY(191)  NOT NULL,
    awaits      VARBINARY(191)  NOT NULL,
    message_id  LONGBLOB        NOT NULL,
    event_type  LONGBLOB        NOT NULL,
    subject     VARBINARY(1024) NOT NULL,
    message     LONGBLOB        NOT NULL,
    headers     LONGTEXT        CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL DEFAULT ('{}'),
    parked_at   BIGINT          NOT NULL,
    deadline    BIGINT          NOT NULL,
    woken_at    BIGINT,
    PRIMARY KEY (role, `key`),
    INDEX parked_event_awaits (awaits, woken_at),
    INDEX parked_event_deadline (deadline)
) ENGINE = InnoDB ROW_FORMAT = DYNAMIC DEFAULT CHARSET = utf8mb4;

-- InnoDB keeps the next number over a restart: a number is never used twice, so that an old relay
-- cannot remove a new row.
CREATE TABLE outbox (
    id          BIGINT          NOT NULL AUTO_INCREMENT PRIMARY KEY,
    aggregate   VARBINARY(1024) NOT NULL,
    addressee   VARBINARY(255),
    event_type  LONGBLOB        NOT NULL,
    message_id  LONGBLOB        NOT NULL,
    headers     LONGTEXT        CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL DEFAULT ('{}'),
    message     LONGBLOB        NOT NULL,
    created_at  BIGINT          NOT NULL,
    retry_at    BIGINT          NOT NULL DEFAULT 0,
    failures    INT UNSIGNED    NOT NULL DEFAULT 0,
    last_error  LONGBLOB,
    INDEX outbox_waiting (aggregate, retry_at)
) ENGINE = InnoDB ROW_FORMAT = DYNAMIC DEFAULT CHARSET = utf8mb4;

CREATE TABLE dead_letter (
    id            BIGINT         NOT NULL AUTO_INCREMENT PRIMARY KEY,
    digest        VARBINARY(32)  NOT NULL UNIQUE,
    role          VARBINARY(255) NOT NULL,
    message_id    LONGBLOB,
    `key`         VARBINARY(191),
    reason        VARBINARY(64)  NOT NULL,
    detail        LONGBLOB       NOT NULL,
    raw           LONGBLOB       NOT NULL,
    headers       LONGTEXT       CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL,
    deliveries    INT UNSIGNED   NOT NULL,
    deaths        INT UNSIGNED   NOT NULL DEFAULT 1,
    status        VARBINARY(16)  NOT NULL DEFAULT 'DEAD' CHECK (status IN ('DEAD', 'REPLAYED', 'DISCARDED')),
    died_at       BIGINT         NOT NULL,
    actor         LONGBLOB,
    actor_reason  LONGBLOB,
    INDEX dead_letter_status (status, id),
    INDEX dead_letter_key (`key`)
) ENGINE = InnoDB ROW_FORMAT = DYNAMIC DEFAULT CHARSET = utf8mb4;

CREATE TABLE lease (
    name    VARBINARY(255) NOT NULL PRIMARY KEY,
    holder  VARBINARY(512) NOT NULL,
    fence   BIGINT         NOT NULL,
    until   BIGINT         NOT NULL
) ENGINE = InnoDB ROW_FORMAT = DYNAMIC DEFAULT CHARSET = utf8mb4;
