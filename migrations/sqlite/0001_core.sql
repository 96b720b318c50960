-- Times are milliseconds since 1970-01-01T00:00:00Z, by the database's clock.
-- Text is compared byte by byte (the BINARY collation, SQLite's default).
-- Money is integer minor units of the row's ISO 4217 currency.

CREATE TABLE orders (
    order_id        TEXT    NOT NULL PRIMARY KEY,
    user_id         TEXT    NOT NULL,
    status          TEXT    NOT NULL CHECK (status IN ('WAIT_PAY', 'PAID', 'SHIPPED', 'COMPLETED', 'CLOSED', 'REFUNDED')),
    version         INTEGER NOT NULL CHECK (version > 0),
    currency        TEXT    NOT NULL,
    total_minor     INTEGER NOT NULL CHECK (total_minor >= 0),
    paid_minor      INTEGER NOT NULL CHECK (paid_minor >= 0),
    refunded_minor  INTEGER NOT NULL CHECK (refunded_minor BETWEEN 0 AND paid_minor),
    pay_deadline    INTEGER NOT NULL,
    fingerprint     BLOB    NOT NULL,
    created_at      INTEGER NOT NULL,
    updated_at      INTEGER NOT NULL
) STRICT;

CREATE INDEX orders_unpaid ON orders (pay_deadline) WHERE status = 'WAIT_PAY';

CREATE TABLE order_line (
    order_id          TEXT    NOT NULL,
    line_no           INTEGER NOT NULL,
    sku_id            TEXT    NOT NULL,
    qty               INTEGER NOT NULL CHECK (qty > 0),
    unit_price_minor  INTEGER NOT NULL,
    amount_minor      INTEGER NOT NULL,
    charge            INTEGER NOT NULL CHECK (charge IN (0, 1)),
    PRIMARY KEY (order_id, line_no)
) STRICT, WITHOUT ROWID;

CREATE TABLE order_transition (
    order_id     TEXT    NOT NULL,
    version      INTEGER NOT NULL,
    from_status  TEXT,
    to_status    TEXT    NOT NULL,
    key          TEXT    NOT NULL,
    at           INTEGER NOT NULL,
    PRIMARY KEY (order_id, version)
) STRICT, WITHOUT ROWID;

CREATE TABLE payment (
    provider      TEXT    NOT NULL,
    trade_no      TEXT    NOT NULL,
    order_id      TEXT    NOT NULL,
    status        TEXT    NOT NULL CHECK (status IN ('ACCEPTED', 'SURPLUS', 'LATE')),
    trade_status  TEXT,
    amount_minor  INTEGER NOT NULL CHECK (amount_minor >= 0),
    currency      TEXT    NOT NULL,
    created_at    INTEGER NOT NULL,
    PRIMARY KEY (provider, trade_no)
) STRICT, WITHOUT ROWID;

CREATE INDEX payment_order ON payment (order_id);
CREATE UNIQUE INDEX payment_accepted ON payment (order_id) WHERE status = 'ACCEPTED';

CREATE TABLE refund (
    provider      TEXT    NOT NULL,
    refund_no     TEXT    NOT NULL,
    order_id      TEXT    NOT NULL,
    trade_no      TEXT,
    status        TEXT    NOT NULL CHECK (status IN ('REQUESTED', 'SUCCEEDED', 'FAILED')),
    amount_minor  INTEGER NOT NULL CHECK (amount_minor >= 0),
    currency      TEXT    NOT NULL,
    created_at    INTEGER NOT NULL,
    updated_at    INTEGER NOT NULL,
    PRIMARY KEY (provider, refund_no)
) STRICT, WITHOUT ROWID;

CREATE INDEX refund_order ON refund (order_id);

-- `opening` is what was there before this program kept flows; stock that it was told of by
-- stock.adjust has a flow instead.
CREATE TABLE stock (
    sku_id      TEXT    NOT NULL PRIMARY KEY,
    opening     INTEGER NOT NULL DEFAULT 0,
    available   INTEGER NOT NULL CHECK (available >= 0),
    version     INTEGER NOT NULL CHECK (version >= 0),
    updated_at  INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

CREATE TABLE reservation (
    order_id    TEXT    NOT NULL PRIMARY KEY,
    status      TEXT    NOT NULL CHECK (status IN ('DEDUCTED', 'REJECTED', 'RELEASED')),
    version     INTEGER NOT NULL CHECK (version > 0),
    created_at  INTEGER NOT NULL,
    updated_at  INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

CREATE TABLE deduction_flow (
    flow_id          TEXT    NOT NULL PRIMARY KEY,
    order_id         TEXT,
    sku_id           TEXT    NOT NULL,
    action           TEXT    NOT NULL CHECK (action IN ('deduct', 'release', 'return', 'adjust')),
    qty              INTEGER NOT NULL,
    available_after  INTEGER NOT NULL,
    at               INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

CREATE INDEX deduction_flow_order ON deduction_flow (order_id) WHERE order_id IS NOT NULL;

CREATE TABLE account (
    user_id     TEXT    NOT NULL,
    kind        TEXT    NOT NULL,
    balance     INTEGER NOT NULL CHECK (balance >= 0),
    version     INTEGER NOT NULL CHECK (version > 0),
    updated_at  INTEGER NOT NULL,
    PRIMARY KEY (user_id, kind)
) STRICT, WITHOUT ROWID;

CREATE TABLE account_flow (
    user_id               TEXT    NOT NULL,
    kind                  TEXT    NOT NULL,
    source_type           TEXT    NOT NULL,
    source_id             TEXT    NOT NULL,
    reverses_source_type  TEXT,
    reverses_source_id    TEXT,
    amount                INTEGER NOT NULL,
    balance_after         INTEGER NOT NULL CHECK (balance_after >= 0),
    at                    INTEGER NOT NULL,
    PRIMARY KEY (user_id, kind, source_type, source_id)
) STRICT, WITHOUT ROWID;

CREATE INDEX account_flow_reverses
    ON account_flow (user_id, kind, reverses_source_type, reverses_source_id)
    WHERE reverses_source_id IS NOT NULL;
CREATE INDEX account_flow_source ON account_flow (source_type, source_id);

CREATE TABLE idempotent_record (
    role          TEXT    NOT NULL,
    key           TEXT    NOT NULL,
    subject       TEXT    NOT NULL,
    fingerprint   BLOB    NOT NULL,
    message_id    TEXT    NOT NULL,
    outcome       TEXT    NOT NULL CHECK (outcome IN ('applied', 'parked', 'stale', 'rejected', 'duplicate', 'conflict', 'dead')),
    detail        TEXT,
    request_body  TEXT,
    created_at    INTEGER NOT NULL,
    concluded_at  INTEGER NOT NULL,
    expired_at    INTEGER,
    PRIMARY KEY (role, key)
) STRICT;

CREATE INDEX idempotent_record_subject ON idempotent_record (subject);

CREATE TABLE parked_event (
    role        TEXT    NOT NULL,
    key         TEXT    NOT NULL,
    awaits      TEXT    NOT NULL,
    message_id  TEXT    NOT NULL,
    event_type  TEXT    NOT NULL,
    subject     TEXT    NOT NULL,
    message     TEXT    NOT NULL,
    headers     TEXT    NOT NULL DEFAULT '{}',
    parked_at   INTEGER NOT NULL,
    deadline    INTEGER NOT NULL,
    woken_at    INTEGER,
    PRIMARY KEY (role, key)
) STRICT;

CREATE INDEX parked_event_awaits ON parked_event (awaits) WHERE woken_at IS NULL;
CREATE INDEX parked_event_deadline ON parked_event (deadline);

-- AUTOINCREMENT: a number is never used twice, so that an old relay cannot remove a new row.
CREATE TABLE outbox (
    id          INTEGER PRIMARY KEY AUTOINCREMENT,
    aggregate   TEXT    NOT NULL,
    addressee   TEXT,
    event_type  TEXT    NOT NULL,
    message_id  TEXT    NOT NULL,
    headers     TEXT    NOT NULL DEFAULT '{}',
    message     BLOB    NOT NULL,
    created_at  INTEGER NOT NULL,
    retry_at    INTEGER NOT NULL DEFAULT 0,
    failures    INTEGER NOT NULL DEFAULT 0,
    last_error  TEXT
) STRICT;

CREATE INDEX outbox_waiting ON outbox (aggregate, id) WHERE retry_at > 0;

CREATE TABLE dead_letter (
    id            INTEGER PRIMARY KEY AUTOINCREMENT,
    digest        BLOB    NOT NULL UNIQUE,
    role          TEXT    NOT NULL,
    message_id    TEXT,
    key           TEXT,
    reason        TEXT    NOT NULL,
    detail        TEXT    NOT NULL,
    raw           BLOB    NOT NULL,
    headers       TEXT    NOT NULL,
    deliveries    INTEGER NOT NULL,
    deaths        INTEGER NOT NULL DEFAULT 1,
    status        TEXT    NOT NULL DEFAULT 'DEAD' CHECK (status IN ('DEAD', 'REPLAYED', 'DISCARDED')),
    died_at       INTEGER NOT NULL,
    actor         TEXT,
    actor_reason  TEXT
) STRICT;

CREATE INDEX dead_letter_status ON dead_letter (status, id);
CREATE INDEX dead_letter_key ON dead_letter (key) WHERE key IS NOT NULL;

CREATE TABLE lease (
    name    TEXT    NOT NULL PRIMARY KEY,
    holder  TEXT    NOT NULL,
    fence   INTEGER NOT NULL,
    until   INTEGER NOT NULL
) STRICT, WITHOUT ROWID;
