-- Times are milliseconds since 1970-01-01T00:00:00Z, by the database's clock.
-- Text is compared byte by byte (COLLATE "C"). What is text elsewhere and BYTEA here may hold a NUL,
-- which PostgreSQL's text refuses.
-- Money is integer minor units of the row's ISO 4217 currency.
-- Tables whose rows change keep room in their pages, so that a new version of a row stays in its
-- page and no index is written (HOT).

CREATE TABLE orders (
    order_id        TEXT COLLATE "C"  NOT NULL PRIMARY KEY,
    user_id         TEXT COLLATE "C"  NOT NULL,
    status          TEXT COLLATE "C"  NOT NULL CHECK (status IN ('WAIT_PAY', 'PAID', 'SHIPPED', 'COMPLETED', 'CLOSED', 'REFUNDED')),
    version         BIGINT            NOT NULL CHECK (version > 0),
    currency        TEXT COLLATE "C"  NOT NULL,
    total_minor     BIGINT            NOT NULL CHECK (total_minor >= 0),
    paid_minor      BIGINT            NOT NULL CHECK (paid_minor >= 0),
    refunded_minor  BIGINT            NOT NULL CHECK (refunded_minor BETWEEN 0 AND paid_minor),
    pay_deadline    BIGINT            NOT NULL,
    fingerprint     BYTEA             NOT NULL,
    created_at      BIGINT            NOT NULL,
    updated_at      BIGINT            NOT NULL
) WITH (fillfactor = 80, autovacuum_vacuum_scale_factor = 0.02, autovacuum_analyze_scale_factor = 0.02);

CREATE INDEX orders_unpaid ON orders (pay_deadline) WHERE status = 'WAIT_PAY';

CREATE TABLE order_line (
    order_id          TEXT COLLATE "C"  NOT NULL,
    line_no           BIGINT            NOT NULL,
    sku_id            TEXT COLLATE "C"  NOT NULL,
    qty               BIGINT            NOT NULL CHECK (qty > 0),
    unit_price_minor  BIGINT            NOT NULL,
    amount_minor      BIGINT            NOT NULL,
    charge            BIGINT            NOT NULL CHECK (charge IN (0, 1)),
    PRIMARY KEY (order_id, line_no)
);

CREATE TABLE order_transition (
    order_id     TEXT COLLATE "C"  NOT NULL,
    version      BIGINT            NOT NULL,
    from_status  TEXT COLLATE "C",
    to_status    TEXT COLLATE "C"  NOT NULL,
    key          TEXT COLLATE "C"  NOT NULL,
    at           BIGINT            NOT NULL,
    PRIMARY KEY (order_id, version)
);

CREATE TABLE payment (
    provider      TEXT COLLATE "C"  NOT NULL,
    trade_no      TEXT COLLATE "C"  NOT NULL,
    order_id      TEXT COLLATE "C"  NOT NULL,
    status        TEXT COLLATE "C"  NOT NULL CHECK (status IN ('ACCEPTED', 'SURPLUS', 'LATE')),
    trade_status  TEXT COLLATE "C",
    amount_minor  BIGINT            NOT NULL CHECK (amount_minor >= 0),
    currency      TEXT COLLATE "C"  NOT NULL,
    created_at    BIGINT            NOT NULL,
    PRIMARY KEY (provider, trade_no)
);

CREATE INDEX payment_order ON payment (order_id);
CREATE UNIQUE INDEX payment_accepted ON payment (order_id) WHERE status = 'ACCEPTED';

CREATE TABLE refund (
    provider      TEXT COLLATE "C"  NOT NULL,
    refund_no     TEXT COLLATE "C"  NOT NULL,
    order_id      TEXT COLLATE "C"  NOT NULL,
    trade_no      TEXT COLLATE "C",
    status        TEXT COLLATE "C"  NOT NULL CHECK (status IN ('REQUESTED', 'SUCCEEDED', 'FAILED')),
    amount_minor  BIGINT            NOT NULL CHECK (amount_minor >= 0),
    currency      TEXT COLLATE "C"  NOT NULL,
    created_at    BIGINT            NOT NULL,
    updated_at    BIGINT            NOT NULL,
    PRIMARY KEY (provider, refund_no)
) WITH (fillfactor = 90);

CREATE INDEX refund_order ON refund (order_id);

-- `opening` is what was there before this program kept flows; stock that it was told of by
-- stock.adjust has a flow instead.
CREATE TABLE stock (
    sku_id      TEXT COLLATE "C"  NOT NULL PRIMARY KEY,
    opening     BIGINT            NOT NULL DEFAULT 0,
    available   BIGINT            NOT NULL CHECK (available >= 0),
    version     BIGINT            NOT NULL CHECK (version >= 0),
    updated_at  BIGINT            NOT NULL
) WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0.1, autovacuum_vacuum_threshold = 1000, autovacuum_vacuum_cost_delay = 0);

CREATE TABLE reservation (
    order_id    TEXT COLLATE "C"  NOT NULL PRIMARY KEY,
    status      TEXT COLLATE "C"  NOT NULL CHECK (status IN ('DEDUCTED', 'REJECTED', 'RELEASED')),
    version     BIGINT            NOT NULL CHECK (version > 0),
    created_at  BIGINT            NOT NULL,
    updated_at  BIGINT            NOT NULL
) WITH (fillfactor = 90);

CREATE TABLE deduction_flow (
    flow_id          TEXT COLLATE "C"  NOT NULL PRIMARY KEY,
    order_id         TEXT COLLATE "C",
    sku_id           TEXT COLLATE "C"  NOT NULL,
    action           TEXT COLLATE "C"  NOT NULL CHECK (action IN ('deduct', 'release', 'return', 'adjust')),
    qty              BIGINT            NOT NULL,
    available_after  BIGINT            NOT NULL,
    at               BIGINT            NOT NULL
);

CREATE INDEX deduction_flow_order ON deduction_flow (order_id) WHERE order_id IS NOT NULL;

CREATE TABLE account (
    user_id     TEXT COLLATE "C"  NOT NULL,
    kind        TEXT COLLATE "C"  NOT NULL,
    balance     BIGINT            NOT NULL CHECK (balance >= 0),
    version     BIGINT            NOT NULL CHECK (version > 0),
    updated_at  BIGINT            NOT NULL,
    PRIMARY KEY (user_id, kind)
) WITH (fillfactor = 70, autovacuum_vacuum_scale_factor = 0.05, autovacuum_vacuum_threshold = 1000);

CREATE TABLE account_flow (
    user_id               TEXT COLLATE "C"  NOT NULL,
    kind                  TEXT COLLATE "C"  NOT NULL,
    source_type           TEXT COLLATE "C"  NOT NULL,
    source_id             TEXT COLLATE "C"  NOT NULL,
    reverses_source_type  TEXT COLLATE "C",
    reverses_source_id    TEXT COLLATE "C",
    amount                BIGINT            NOT NULL,
    balance_after         BIGINT            NOT NULL CHECK (balance_after >= 0),
    at                    BIGINT            NOT NULL,
    PRIMARY KEY (user_id, kind, source_type, source_id)
);

CREATE INDEX account_flow_reverses
    ON account_flow (user_id, kind, reverses_source_type, reverses_source_id)
    WHERE reverses_source_id IS NOT NULL;
CREATE INDEX account_flow_source ON account_flow (source_type, source_id);

-- Large and written all the time: a vacuum of one fiftieth of it at a time keeps each of them short.
CREATE TABLE idempotent_record (
    role          TEXT COLLATE "C"  NOT NULL,
    key           TEXT COLLATE "C"  NOT NULL,
    subject       TEXT COLLATE "C"  NOT NULL,
    fingerprint   BYTEA             NOT NULL,
    message_id    TEXT COLLATE "C"  NOT NULL,
    outcome       TEXT COLLATE "C"  NOT NULL CHECK (outcome IN ('applied', 'parked', 'stale', 'rejected', 'duplicate', 'conflict', 'dead')),
    detail        TEXT COLLATE "C",
    request_body  TEXT COLLATE "C",
    created_at    BIGINT            NOT NULL,
    concluded_at  BIGINT            NOT NULL,
    expired_at    BIGINT,
    PRIMARY KEY (role, key)
) WITH (autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_insert_scale_factor = 0.02, autovacuum_analyze_scale_factor = 0.02);

CREATE INDEX idempotent_record_subject ON idempotent_record (subject);

CREATE TABLE parked_event (
    role        TEXT COLLATE "C"  NOT NULL,
    key         TEXT COLLATE "C"  NOT NULL,
    awaits      TEXT COLLATE "C"  NOT NULL,
    message_id  TEXT COLLATE "C"  NOT NULL,
    event_type  TEXT COLLATE "C"  NOT NULL,
    subject     TEXT COLLATE "C"  NOT NULL,
    message     TEXT COLLATE "C"  NOT NULL,
    headers     TEXT COLLATE "C"  NOT NULL DEFAULT '{}',
    parked_at   BIGINT            NOT NULL,
    deadline    BIGINT            NOT NULL,
    woken_at    BIGINT,
    PRIMARY KEY (role, key)
) WITH (autovacuum_vacuum_scale_factor = 0.05, autovacuum_vacuum_threshold = 1000);

CREATE INDEX parked_event_awaits ON parked_event (awaits) WHERE woken_at IS NULL;
CREATE INDEX parked_event_deadline ON parked_event (deadline);

-- An identity: a number is never used twice, so that an old relay cannot remove a new row.
-- Every row goes soon after it came. What is left of removed rows lies where the relay looks first,
-- so it is vacuumed after a number of rows, whatever the table's size, and without pauses.
CREATE TABLE outbox (
    id          BIGINT            GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    aggregate   BYTEA             NOT NULL,
    addressee   TEXT COLLATE "C",
    event_type  BYTEA             NOT NULL,
    message_id  BYTEA             NOT NULL,
    headers     TEXT COLLATE "C"  NOT NULL DEFAULT '{}',
    message     BYTEA             NOT NULL,
    created_at  BIGINT            NOT NULL,
    retry_at    BIGINT            NOT NULL DEFAULT 0,
    failures    BIGINT            NOT NULL DEFAULT 0,
    last_error  TEXT COLLATE "C"
) WITH (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 10000, autovacuum_vacuum_cost_delay = 0,
    toast.autovacuum_vacuum_scale_factor = 0, toast.autovacuum_vacuum_threshold = 10000, toast.autovacuum_vacuum_cost_delay = 0);

CREATE INDEX outbox_waiting ON outbox (aggregate, id) WHERE retry_at > 0;

CREATE TABLE dead_letter (
    id            BIGINT            GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    digest        BYTEA             NOT NULL UNIQUE,
    role          TEXT COLLATE "C"  NOT NULL,
    message_id    TEXT COLLATE "C",
    key           TEXT COLLATE "C",
    reason        TEXT COLLATE "C"  NOT NULL,
    detail        TEXT COLLATE "C"  NOT NULL,
    raw           BYTEA             NOT NULL,
    headers       TEXT COLLATE "C"  NOT NULL,
    deliveries    BIGINT            NOT NULL,
    deaths        BIGINT            NOT NULL DEFAULT 1,
    status        TEXT COLLATE "C"  NOT NULL DEFAULT 'DEAD' CHECK (status IN ('DEAD', 'REPLAYED', 'DISCARDED')),
    died_at       BIGINT            NOT NULL,
    actor         TEXT COLLATE "C",
    actor_reason  TEXT COLLATE "C"
);

CREATE INDEX dead_letter_status ON dead_letter (status, id);
CREATE INDEX dead_letter_key ON dead_letter (key) WHERE key IS NOT NULL;

CREATE TABLE lease (
    name    TEXT COLLATE "C"  NOT NULL PRIMARY KEY,
    holder  TEXT COLLATE "C"  NOT NULL,
    fence   BIGINT            NOT NULL,
    until   BIGINT            NOT NULL
) WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 100);
