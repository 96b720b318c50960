//! Reconciliation: one statement for each check.
//!
//! Each returns only rows that differ, at most `?3`, as: the subject in one or two parts, what was
//! expected, what was found, the currency if these are minor units, and a detail. `?1` is the time
//! before which what waits is stuck, `?2` is now.
//!
//! A message counts as on its way while its order was changed after `?1`, or the outbox holds
//! something about the order. Orders, stock and accounts may live in three databases: a check over
//! two of them says nothing where the tables of one are empty. Keys that hold the hash of a part
//! (`~`) cannot be built here; what would need them is left out or compared less exactly.

use super::{SqliteStore, from_sqlx};
use crate::domain::{Currency, Money};
use crate::store::{About, Audit, Check, Difference, Error, Result, Subject};
use async_trait::async_trait;
use std::time::Duration;

#[async_trait]
impl Audit for SqliteStore {
    async fn check(
        &self,
        name: &'static str,
        stuck_after: Duration,
        limit: u32,
    ) -> Result<Vec<Difference>> {
        let check = Check::named(name).ok_or_else(|| unknown(name))?;
        let statement = STATEMENTS.iter().find(|(known, _)| *known == name);
        let &(_, statement) = statement.ok_or_else(|| unknown(name))?;
        let now = self.database.now().0;
        let waiting = i64::try_from(stuck_after.as_millis()).unwrap_or(i64::MAX);
        let rows: Vec<Differing> = sqlx::query_as(statement)
            .bind(now.saturating_sub(waiting))
            .bind(now)
            .bind(limit)
            .fetch_all(self.readers())
            .await
            .map_err(from_sqlx)?;
        rows.into_iter().map(|row| row.difference(check)).collect()
    }
}

fn unknown(name: &str) -> Error {
    Error::Refused(format!("there is no check {name}"))
}

#[derive(sqlx::FromRow)]
struct Differing {
    subject: String,
    part: Option<String>,
    expected: Option<String>,
    found: Option<String>,
    currency: Option<String>,
    detail: Option<String>,
}

impl Differing {
    fn difference(self, check: &Check) -> Result<Difference> {
        let second = self.part.unwrap_or_default();
        let subject = match check.about {
            About::Order => Subject::Order(self.subject),
            About::Sku => Subject::Sku(self.subject),
            About::Account => Subject::Account(self.subject, second),
            About::Claim => Subject::Claim(self.subject, second),
            About::Outbox => Subject::Outbox(self.subject.parse().map_err(|_| Error::Corrupt {
                table: "outbox",
                problem: format!("its id is {}", self.subject),
            })?),
        };
        let currency = self.currency.and_then(|code| Currency::new(&code).ok());
        let figure = |text: Option<String>| {
            let text = text.unwrap_or_else(|| "none".to_owned());
            match (currency, text.parse()) {
                (Some(currency), Ok(minor)) => Money::new(minor, currency).to_string(),
                _ => text,
            }
        };
        let (expected, found) = (figure(self.expected), figure(self.found));
        Ok(check.difference(subject, expected, found, self.detail.as_deref()))
    }
}

/// By name of the check.
const STATEMENTS: &[(&str, &str)] = &[
    // Differs from Postgres: `sum` fails beyond 64 bits, also on the way to a small result, so the
    // high and the low half are added up apart.
    (
        "stock_available",
        "
        SELECT s.sku_id AS subject, NULL AS part,
            CASE WHEN s.high BETWEEN -2147483648 AND 2147483647
                THEN CAST(s.high * 4294967296 + s.low AS TEXT) ELSE 'beyond 64 bits' END AS expected,
            CAST(k.available AS TEXT) AS found, NULL AS currency, NULL AS detail
        FROM (
            SELECT sku_id, sum(qty >> 32) + (sum(qty & 4294967295) >> 32) AS high,
                sum(qty & 4294967295) & 4294967295 AS low
            FROM (
                SELECT sku_id, opening AS qty FROM stock
                UNION ALL SELECT sku_id, qty FROM deduction_flow)
            GROUP BY sku_id) AS s
        LEFT JOIN stock AS k ON k.sku_id = s.sku_id
        WHERE k.available >> 32 IS DISTINCT FROM s.high OR k.available & 4294967295 <> s.low
        ORDER BY s.sku_id LIMIT ?3",
    ),
    (
        "stock_versions",
        "
        SELECT k.sku_id AS subject, NULL AS part, CAST(coalesce(f.flows, 0) AS TEXT) AS expected,
            CAST(k.version AS TEXT) AS found, NULL AS currency, NULL AS detail
        FROM stock AS k
        LEFT JOIN (SELECT sku_id, count(*) AS flows FROM deduction_flow GROUP BY sku_id) AS f
            ON f.sku_id = k.sku_id
        WHERE k.version <> coalesce(f.flows, 0)
        ORDER BY k.sku_id LIMIT ?3",
    ),
    // No order of the flows is recorded, and none is needed: in a chain each level is left as often
    // as it is reached, the opening stock being reached once more and the final level left once more.
    (
        "stock_running",
        "
        SELECT sku_id AS subject, NULL AS part,
            CAST(min(CASE WHEN reached > 0 THEN level END) AS TEXT) AS expected,
            CAST(min(CASE WHEN reached < 0 THEN level END) AS TEXT) AS found,
            NULL AS currency, 'level from which a flow starts' AS detail
        FROM (
            SELECT sku_id, level, sum(step) AS reached
            FROM (
                SELECT sku_id, available_after AS level, 1 AS step FROM deduction_flow
                UNION ALL SELECT sku_id, available_after - qty, -1 FROM deduction_flow
                UNION ALL SELECT sku_id, opening, 1 FROM stock
                UNION ALL SELECT sku_id, available, -1 FROM stock)
            GROUP BY sku_id, level
            HAVING sum(step) <> 0)
        GROUP BY sku_id
        ORDER BY sku_id LIMIT ?3",
    ),
    (
        "stock_not_negative",
        "
        SELECT sku_id AS subject, NULL AS part, 'at least 0' AS expected,
            CAST(available_after AS TEXT) AS found, NULL AS currency, 'flow ' || flow_id AS detail
        FROM deduction_flow
        WHERE available_after < 0
        ORDER BY flow_id LIMIT ?3",
    ),
    // An order that was released before its deduction has no deductions at all.
    (
        "reservation_deducted",
        "
        SELECT order_id AS subject, NULL AS part, CAST(sum(wanted) AS TEXT) AS expected,
            CAST(sum(taken) AS TEXT) AS found, NULL AS currency, 'SKU ' || sku_id AS detail
        FROM (
            SELECT l.order_id, l.sku_id, l.qty AS wanted, 0 AS taken
            FROM order_line AS l
            JOIN reservation AS r ON r.order_id = l.order_id
            WHERE l.charge = 0
                AND (r.status = 'DEDUCTED' OR r.status = 'RELEASED' AND EXISTS (
                    SELECT 1 FROM deduction_flow AS d
                    WHERE d.order_id = l.order_id AND d.action = 'deduct'))
            UNION ALL
            SELECT f.order_id, f.sku_id, 0, -f.qty
            FROM deduction_flow AS f
            JOIN orders AS o ON o.order_id = f.order_id
            JOIN reservation AS r ON r.order_id = f.order_id
            WHERE f.action = 'deduct' AND r.status IN ('DEDUCTED', 'RELEASED'))
        GROUP BY order_id, sku_id
        HAVING sum(wanted) <> sum(taken)
        ORDER BY order_id, sku_id LIMIT ?3",
    ),
    (
        "reservation_released",
        "
        SELECT f.order_id AS subject, NULL AS part, '0' AS expected,
            CAST(sum(f.qty) AS TEXT) AS found, NULL AS currency, 'SKU ' || f.sku_id AS detail
        FROM reservation AS r
        JOIN deduction_flow AS f ON f.order_id = r.order_id
        WHERE r.status = 'RELEASED'
        GROUP BY f.order_id, f.sku_id
        HAVING sum(f.qty) <> 0
        ORDER BY f.order_id, f.sku_id LIMIT ?3",
    ),
    (
        "reservation_rejected",
        "
        SELECT r.order_id AS subject, NULL AS part, '0' AS expected,
            CAST(count(*) AS TEXT) AS found, NULL AS currency, 'number of flows' AS detail
        FROM reservation AS r
        JOIN deduction_flow AS f ON f.order_id = r.order_id
        WHERE r.status = 'REJECTED'
        GROUP BY r.order_id
        ORDER BY r.order_id LIMIT ?3",
    ),
    (
        "returns_within_deduction",
        "
        SELECT order_id AS subject, NULL AS part,
            'at most ' || sum(CASE WHEN action = 'deduct' THEN -qty ELSE 0 END) AS expected,
            CAST(sum(CASE WHEN action <> 'deduct' THEN qty ELSE 0 END) AS TEXT) AS found,
            NULL AS currency, 'SKU ' || sku_id AS detail
        FROM deduction_flow
        WHERE order_id IS NOT NULL
        GROUP BY order_id, sku_id
        HAVING sum(qty) > 0
        ORDER BY order_id, sku_id LIMIT ?3",
    ),
    (
        "flows_reserved",
        "
        SELECT f.order_id AS subject, NULL AS part, '1 reservation' AS expected,
            '0 reservations' AS found, NULL AS currency, 'flows: ' || count(*) AS detail
        FROM deduction_flow AS f
        WHERE f.order_id IS NOT NULL
            AND NOT EXISTS (SELECT 1 FROM reservation AS r WHERE r.order_id = f.order_id)
        GROUP BY f.order_id
        ORDER BY f.order_id LIMIT ?3",
    ),
    (
        "reservation_missing",
        "
        SELECT o.order_id AS subject, NULL AS part, '1 reservation' AS expected,
            '0 reservations' AS found, NULL AS currency,
            'created ' || ((?2 - o.created_at) / 1000) || ' s ago' AS detail
        FROM orders AS o
        WHERE o.status IN ('WAIT_PAY', 'PAID', 'SHIPPED', 'COMPLETED') AND o.created_at < ?1
            AND EXISTS (SELECT 1 FROM order_line AS l WHERE l.order_id = o.order_id AND l.charge = 0)
            AND NOT EXISTS (SELECT 1 FROM reservation AS r WHERE r.order_id = o.order_id)
            AND o.order_id NOT IN (SELECT aggregate FROM outbox)
            AND (EXISTS (SELECT 1 FROM stock) OR EXISTS (SELECT 1 FROM reservation)
                OR EXISTS (SELECT 1 FROM idempotent_record WHERE role = 'inventory'))
        ORDER BY o.order_id LIMIT ?3",
    ),
    (
        "closed_orders_released",
        "
        SELECT o.order_id AS subject, NULL AS part, 'RELEASED or REJECTED' AS expected,
            r.status AS found, NULL AS currency, 'the order is ' || o.status AS detail
        FROM orders AS o
        LEFT JOIN reservation AS r ON r.order_id = o.order_id
        WHERE (o.status = 'CLOSED' OR o.status = 'REFUNDED' AND NOT EXISTS (
                SELECT 1 FROM order_transition AS t
                WHERE t.order_id = o.order_id AND t.to_status = 'SHIPPED'))
            AND coalesce(r.status, '') NOT IN ('RELEASED', 'REJECTED')
            AND o.updated_at < ?1
            AND o.order_id NOT IN (SELECT aggregate FROM outbox)
            AND (EXISTS (SELECT 1 FROM stock) OR EXISTS (SELECT 1 FROM reservation)
                OR EXISTS (SELECT 1 FROM idempotent_record WHERE role = 'inventory'))
        ORDER BY o.order_id LIMIT ?3",
    ),
    (
        "open_orders_reserved",
        "
        SELECT o.order_id AS subject, NULL AS part, 'DEDUCTED or REJECTED' AS expected,
            r.status AS found, NULL AS currency, 'the order is ' || o.status AS detail
        FROM orders AS o
        JOIN reservation AS r ON r.order_id = o.order_id
        WHERE r.status = 'RELEASED'
            AND (o.status IN ('WAIT_PAY', 'PAID', 'SHIPPED', 'COMPLETED')
                OR o.status = 'REFUNDED' AND EXISTS (
                    SELECT 1 FROM order_transition AS t
                    WHERE t.order_id = o.order_id AND t.to_status = 'SHIPPED'))
        ORDER BY o.order_id LIMIT ?3",
    ),
    (
        "rejected_orders_closed",
        "
        SELECT o.order_id AS subject, NULL AS part, 'CLOSED' AS expected, o.status AS found,
            NULL AS currency, 'the reservation is REJECTED' AS detail
        FROM orders AS o
        JOIN reservation AS r ON r.order_id = o.order_id
        WHERE r.status = 'REJECTED' AND o.status IN ('WAIT_PAY', 'PAID')
            AND o.updated_at < ?1 AND r.updated_at < ?1
            AND o.order_id NOT IN (SELECT aggregate FROM outbox)
        ORDER BY o.order_id LIMIT ?3",
    ),
    // Differs from Postgres as stock_available does.
    (
        "account_balance",
        "
        SELECT s.user_id AS subject, s.kind AS part,
            CASE WHEN s.high BETWEEN -2147483648 AND 2147483647
                THEN CAST(s.high * 4294967296 + s.low AS TEXT) ELSE 'beyond 64 bits' END AS expected,
            CAST(a.balance AS TEXT) AS found, NULL AS currency, NULL AS detail
        FROM (
            SELECT user_id, kind, sum(amount >> 32) + (sum(amount & 4294967295) >> 32) AS high,
                sum(amount & 4294967295) & 4294967295 AS low
            FROM (
                SELECT user_id, kind, 0 AS amount FROM account
                UNION ALL SELECT user_id, kind, amount FROM account_flow)
            GROUP BY user_id, kind) AS s
        LEFT JOIN account AS a ON a.user_id = s.user_id AND a.kind = s.kind
        WHERE a.balance >> 32 IS DISTINCT FROM s.high OR a.balance & 4294967295 <> s.low
        ORDER BY s.user_id, s.kind LIMIT ?3",
    ),
    (
        "account_versions",
        "
        SELECT a.user_id AS subject, a.kind AS part, CAST(coalesce(f.flows, 0) AS TEXT) AS expected,
            CAST(a.version AS TEXT) AS found, NULL AS currency, NULL AS detail
        FROM account AS a
        LEFT JOIN (
            SELECT user_id, kind, count(*) AS flows FROM account_flow GROUP BY user_id, kind) AS f
            ON f.user_id = a.user_id AND f.kind = a.kind
        WHERE a.version <> coalesce(f.flows, 0)
        ORDER BY a.user_id, a.kind LIMIT ?3",
    ),
    // As stock_running.
    (
        "account_running",
        "
        SELECT user_id AS subject, kind AS part,
            CAST(min(CASE WHEN reached > 0 THEN level END) AS TEXT) AS expected,
            CAST(min(CASE WHEN reached < 0 THEN level END) AS TEXT) AS found,
            NULL AS currency, 'balance from which a flow starts' AS detail
        FROM (
            SELECT user_id, kind, level, sum(step) AS reached
            FROM (
                SELECT user_id, kind, balance_after AS level, 1 AS step FROM account_flow
                UNION ALL SELECT user_id, kind, balance_after - amount, -1 FROM account_flow
                UNION ALL SELECT user_id, kind, 0, 1 FROM account
                UNION ALL SELECT user_id, kind, balance, -1 FROM account)
            GROUP BY user_id, kind, level
            HAVING sum(step) <> 0)
        GROUP BY user_id, kind
        ORDER BY user_id, kind LIMIT ?3",
    ),
    (
        "reversals_within_credit",
        "
        SELECT r.user_id AS subject, r.kind AS part, 'at most ' || coalesce(c.amount, 0) AS expected,
            CAST(r.amount AS TEXT) AS found, NULL AS currency,
            'source ' || r.source_type || ' ' || r.source_id AS detail
        FROM (
            SELECT user_id, kind, reverses_source_type AS source_type,
                reverses_source_id AS source_id, -sum(amount) AS amount
            FROM account_flow
            WHERE reverses_source_id IS NOT NULL
            GROUP BY user_id, kind, reverses_source_type, reverses_source_id) AS r
        LEFT JOIN account_flow AS c ON c.user_id = r.user_id AND c.kind = r.kind
            AND c.source_type = r.source_type AND c.source_id = r.source_id
        WHERE c.amount IS NULL OR r.amount > c.amount
        ORDER BY r.user_id, r.kind, r.source_type, r.source_id LIMIT ?3",
    ),
    // Points beyond the range are rejected, which is the claim's outcome and nobody's error.
    (
        "points",
        "
        SELECT o.order_id AS subject, NULL AS part, '1 credit' AS expected, '0 credits' AS found,
            NULL AS currency, 'user ' || o.user_id AS detail
        FROM orders AS o
        WHERE o.updated_at < ?1
            AND EXISTS (
                SELECT 1 FROM order_transition AS t
                WHERE t.order_id = o.order_id AND t.to_status = 'COMPLETED')
            AND NOT EXISTS (
                SELECT 1 FROM account_flow AS f
                WHERE f.source_type = 'ORDER' AND f.source_id = o.order_id AND f.user_id = o.user_id)
            AND NOT EXISTS (
                SELECT 1 FROM idempotent_record AS c
                WHERE c.subject = o.order_id AND c.role = 'account' AND c.outcome = 'rejected'
                    AND instr(c.key || '/', '/credit/') > 0)
            AND o.order_id NOT IN (SELECT aggregate FROM outbox)
            AND (EXISTS (SELECT 1 FROM account)
                OR EXISTS (SELECT 1 FROM idempotent_record WHERE role = 'account'))
        ORDER BY o.order_id LIMIT ?3",
    ),
    // Others may credit something for an order too; what the order's own completion has credited is
    // known by its claim, whose subject is the order.
    (
        "points_unearned",
        "
        SELECT o.order_id AS subject, NULL AS part, '0' AS expected,
            CAST(f.amount AS TEXT) AS found, NULL AS currency,
            f.kind || ' of user ' || f.user_id AS detail
        FROM orders AS o
        JOIN account_flow AS f ON f.source_type = 'ORDER' AND f.source_id = o.order_id
        WHERE NOT EXISTS (
                SELECT 1 FROM order_transition AS t
                WHERE t.order_id = o.order_id AND t.to_status = 'COMPLETED')
            AND EXISTS (
                SELECT 1 FROM idempotent_record AS c
                WHERE c.subject = o.order_id AND c.role = 'account'
                    AND instr(c.key || '/', '/credit/') > 0)
        ORDER BY o.order_id, f.user_id, f.kind LIMIT ?3",
    ),
    (
        "points_taken_back",
        "
        SELECT o.order_id AS subject, NULL AS part, '0' AS expected,
            CAST(f.amount + coalesce(sum(r.amount), 0) AS TEXT) AS found, NULL AS currency,
            f.kind || ' of user ' || f.user_id AS detail
        FROM orders AS o
        JOIN account_flow AS f ON f.source_type = 'ORDER' AND f.source_id = o.order_id
            AND f.user_id = o.user_id
        LEFT JOIN account_flow AS r ON r.user_id = f.user_id AND r.kind = f.kind
            AND r.reverses_source_type = 'ORDER' AND r.reverses_source_id = o.order_id
        WHERE o.status = 'REFUNDED' AND o.updated_at < ?1
            AND EXISTS (
                SELECT 1 FROM idempotent_record AS c
                WHERE c.subject = o.order_id AND c.role = 'account'
                    AND c.key = replace(replace(replace(f.user_id, '%', '%25'), '/', '%2F'), '~', '%7E')
                        || '/' || replace(replace(replace(f.kind, '%', '%25'), '/', '%2F'), '~', '%7E')
                        || '/ORDER/'
                        || replace(replace(replace(o.order_id, '%', '%25'), '/', '%2F'), '~', '%7E')
                        || '/credit')
            AND NOT EXISTS (
                SELECT 1 FROM idempotent_record AS c
                WHERE c.subject = o.order_id AND c.role = 'account'
                    AND c.outcome IN ('rejected', 'parked')
                    AND instr(c.key || '/', '/reverse/') > 0)
            AND o.order_id NOT IN (SELECT aggregate FROM outbox)
        GROUP BY o.order_id, f.user_id, f.kind, f.amount
        HAVING f.amount + coalesce(sum(r.amount), 0) <> 0
        ORDER BY o.order_id, f.kind LIMIT ?3",
    ),
    (
        "order_recorded",
        "
        SELECT x.order_id AS subject, NULL AS part, '1 row' AS expected, '0 rows' AS found,
            NULL AS currency, 'rows in ' || x.held_by || ': ' || count(*) AS detail
        FROM (
            SELECT order_id, 'order_line' AS held_by FROM order_line
            UNION ALL SELECT order_id, 'order_transition' FROM order_transition
            UNION ALL SELECT order_id, 'payment' FROM payment
            UNION ALL SELECT order_id, 'refund' FROM refund) AS x
        WHERE NOT EXISTS (SELECT 1 FROM orders AS o WHERE o.order_id = x.order_id)
        GROUP BY x.order_id, x.held_by
        ORDER BY x.order_id, x.held_by LIMIT ?3",
    ),
    (
        "order_totals",
        "
        SELECT o.order_id AS subject, NULL AS part, CAST(coalesce(l.amount, 0) AS TEXT) AS expected,
            CAST(o.total_minor AS TEXT) AS found, o.currency AS currency, NULL AS detail
        FROM orders AS o
        LEFT JOIN (
            SELECT order_id, sum(amount_minor) AS amount FROM order_line GROUP BY order_id) AS l
            ON l.order_id = o.order_id
        WHERE o.total_minor <> coalesce(l.amount, 0)
        ORDER BY o.order_id LIMIT ?3",
    ),
    (
        "order_versions",
        "
        SELECT o.order_id AS subject, NULL AS part, 'versions 1 to ' || o.version AS expected,
            count(t.version) || ' versions from ' || coalesce(min(t.version), 0) || ' to '
                || coalesce(max(t.version), 0) AS found,
            NULL AS currency, NULL AS detail
        FROM orders AS o
        LEFT JOIN order_transition AS t ON t.order_id = o.order_id
        GROUP BY o.order_id, o.version
        HAVING count(t.version) <> o.version OR min(t.version) <> 1 OR max(t.version) <> o.version
        ORDER BY o.order_id LIMIT ?3",
    ),
    (
        "order_history",
        "
        SELECT order_id AS subject, NULL AS part, before AS expected, from_status AS found,
            NULL AS currency, 'version ' || version AS detail
        FROM (
            SELECT order_id, version, from_status,
                lag(to_status) OVER (PARTITION BY order_id ORDER BY version) AS before
            FROM order_transition)
        WHERE from_status IS DISTINCT FROM before
        ORDER BY order_id, version LIMIT ?3",
    ),
    // Written down a second time, so that an error in the state machine shows.
    (
        "order_steps",
        "
        SELECT order_id AS subject, NULL AS part, 'a step that orders may take' AS expected,
            coalesce(from_status, 'none') || ' to ' || to_status AS found, NULL AS currency,
            'version ' || version AS detail
        FROM order_transition
        WHERE from_status IS DISTINCT FROM to_status
            AND (coalesce(from_status, ''), to_status) NOT IN (VALUES
                ('', 'WAIT_PAY'), ('', 'PAID'), ('WAIT_PAY', 'PAID'), ('WAIT_PAY', 'CLOSED'),
                ('PAID', 'SHIPPED'), ('PAID', 'CLOSED'), ('PAID', 'REFUNDED'),
                ('SHIPPED', 'COMPLETED'), ('SHIPPED', 'REFUNDED'), ('COMPLETED', 'REFUNDED'),
                ('CLOSED', 'REFUNDED'))
        ORDER BY order_id, version LIMIT ?3",
    ),
    (
        "order_status",
        "
        SELECT o.order_id AS subject, NULL AS part, t.to_status AS expected, o.status AS found,
            NULL AS currency, 'version ' || t.version AS detail
        FROM orders AS o
        JOIN order_transition AS t ON t.order_id = o.order_id AND t.version = (
            SELECT max(l.version) FROM order_transition AS l WHERE l.order_id = o.order_id)
        WHERE o.status <> t.to_status
        ORDER BY o.order_id LIMIT ?3",
    ),
    (
        "orders_overdue",
        "
        SELECT order_id AS subject, NULL AS part,
            'at most ' || ((?2 - ?1) / 1000) || ' s after the deadline' AS expected,
            ((?2 - pay_deadline) / 1000) || ' s' AS found, NULL AS currency, NULL AS detail
        FROM orders
        WHERE status = 'WAIT_PAY' AND pay_deadline < ?1
            AND order_id NOT IN (SELECT aggregate FROM outbox)
        ORDER BY pay_deadline, order_id LIMIT ?3",
    ),
    (
        "order_paid",
        "
        SELECT o.order_id AS subject, NULL AS part,
            CAST(coalesce(p.amount_minor, 0) AS TEXT) AS expected,
            CAST(o.paid_minor AS TEXT) AS found, o.currency AS currency,
            'accepted payment ' || p.provider || ' ' || p.trade_no AS detail
        FROM orders AS o
        LEFT JOIN payment AS p ON p.order_id = o.order_id AND p.status = 'ACCEPTED'
        WHERE o.paid_minor <> coalesce(p.amount_minor, 0)
        ORDER BY o.order_id LIMIT ?3",
    ),
    (
        "order_paid_total",
        "
        SELECT order_id AS subject, NULL AS part,
            CAST(CASE WHEN status = 'WAIT_PAY' THEN 0 ELSE total_minor END AS TEXT) AS expected,
            CAST(paid_minor AS TEXT) AS found, currency AS currency,
            'the order is ' || status AS detail
        FROM orders
        WHERE paid_minor <> CASE WHEN status = 'WAIT_PAY' THEN 0 ELSE total_minor END
            AND NOT (status = 'CLOSED' AND paid_minor = 0)
        ORDER BY order_id LIMIT ?3",
    ),
    (
        "payment_currency",
        "
        SELECT o.order_id AS subject, NULL AS part, o.currency AS expected, p.currency AS found,
            NULL AS currency, 'payment ' || p.provider || ' ' || p.trade_no AS detail
        FROM payment AS p
        JOIN orders AS o ON o.order_id = p.order_id
        WHERE p.status = 'ACCEPTED' AND p.currency <> o.currency
        UNION ALL
        SELECT r.order_id, NULL, p.currency, r.currency, NULL,
            'refund ' || r.provider || ' ' || r.refund_no
        FROM refund AS r
        JOIN payment AS p ON p.provider = r.provider AND p.trade_no = r.trade_no
        WHERE r.currency <> p.currency
        ORDER BY 1, 6 LIMIT ?3",
    ),
    (
        "order_refunded",
        "
        SELECT o.order_id AS subject, NULL AS part, CAST(coalesce(r.amount, 0) AS TEXT) AS expected,
            CAST(o.refunded_minor AS TEXT) AS found, o.currency AS currency, NULL AS detail
        FROM orders AS o
        LEFT JOIN (
            SELECT p.order_id, sum(r.amount_minor) AS amount
            FROM payment AS p
            JOIN refund AS r ON r.provider = p.provider AND r.trade_no = p.trade_no
                AND r.order_id = p.order_id
            WHERE p.status = 'ACCEPTED' AND r.status = 'SUCCEEDED'
            GROUP BY p.order_id) AS r ON r.order_id = o.order_id
        WHERE o.refunded_minor <> coalesce(r.amount, 0)
        ORDER BY o.order_id LIMIT ?3",
    ),
    (
        "order_refunded_status",
        "
        SELECT order_id AS subject, NULL AS part,
            CASE WHEN status = 'REFUNDED' THEN 'a status other than REFUNDED' ELSE 'REFUNDED' END
                AS expected,
            status AS found, NULL AS currency,
            refunded_minor || ' of ' || paid_minor || ' minor units refunded' AS detail
        FROM orders
        WHERE (status = 'REFUNDED') <> (paid_minor > 0 AND refunded_minor = paid_minor)
        ORDER BY order_id LIMIT ?3",
    ),
    (
        "refunds_within_payment",
        "
        SELECT p.order_id AS subject, NULL AS part, CAST(p.amount_minor AS TEXT) AS expected,
            CAST(sum(r.amount_minor) AS TEXT) AS found, p.currency AS currency,
            'payment ' || p.provider || ' ' || p.trade_no AS detail
        FROM payment AS p
        JOIN refund AS r ON r.provider = p.provider AND r.trade_no = p.trade_no
            AND r.order_id = p.order_id
        WHERE r.status = 'SUCCEEDED'
        GROUP BY p.provider, p.trade_no, p.order_id, p.amount_minor, p.currency
        HAVING sum(r.amount_minor) > p.amount_minor
        ORDER BY p.order_id, p.provider, p.trade_no LIMIT ?3",
    ),
    (
        "refunds_of_payments",
        "
        SELECT r.order_id AS subject, NULL AS part, '1 payment' AS expected,
            '0 payments' AS found, NULL AS currency,
            'refund ' || r.provider || ' ' || r.refund_no || ' of payment '
                || coalesce(r.trade_no, 'none') AS detail
        FROM refund AS r
        WHERE r.status = 'SUCCEEDED' AND NOT EXISTS (
            SELECT 1 FROM payment AS p
            WHERE p.provider = r.provider AND p.trade_no = r.trade_no AND p.order_id = r.order_id)
        ORDER BY r.order_id, r.provider, r.refund_no LIMIT ?3",
    ),
    (
        "surplus_and_late_refunded",
        "
        SELECT p.order_id AS subject, NULL AS part, CAST(p.amount_minor AS TEXT) AS expected,
            '0' AS found, p.currency AS currency,
            p.status || ' payment ' || p.provider || ' ' || p.trade_no || ' has no refund' AS detail
        FROM payment AS p
        WHERE p.status IN ('SURPLUS', 'LATE') AND NOT EXISTS (
            SELECT 1 FROM refund AS r
            WHERE r.order_id = p.order_id AND r.provider = p.provider AND r.trade_no = p.trade_no)
        ORDER BY p.order_id, p.provider, p.trade_no LIMIT ?3",
    ),
    (
        "closed_orders_refunded",
        "
        SELECT o.order_id AS subject, NULL AS part, CAST(o.paid_minor AS TEXT) AS expected,
            '0' AS found, o.currency AS currency,
            'payment ' || p.provider || ' ' || p.trade_no || ' has no refund' AS detail
        FROM orders AS o
        JOIN payment AS p ON p.order_id = o.order_id AND p.status = 'ACCEPTED'
        WHERE o.status = 'CLOSED' AND o.paid_minor > o.refunded_minor AND NOT EXISTS (
            SELECT 1 FROM refund AS r
            WHERE r.order_id = o.order_id AND r.provider = p.provider AND r.trade_no = p.trade_no)
        ORDER BY o.order_id LIMIT ?3",
    ),
    (
        "claims_without_transition",
        "
        SELECT c.role AS subject, c.key AS part, '1 step' AS expected, '0 steps' AS found,
            NULL AS currency, 'order ' || c.subject AS detail
        FROM idempotent_record AS c
        WHERE c.role IN ('order', 'payment') AND c.outcome = 'applied' AND NOT EXISTS (
            SELECT 1 FROM order_transition AS t WHERE t.order_id = c.subject AND t.key = c.key)
        ORDER BY c.role, c.key LIMIT ?3",
    ),
    (
        "claims_without_reservation",
        "
        WITH claim AS (
            SELECT role, key, subject,
                CASE WHEN instr(key, '/~anew-') > 0
                    THEN substr(key, 1, instr(key, '/~anew-') - 1) ELSE key END AS base
            FROM idempotent_record
            WHERE role = 'inventory' AND outcome = 'applied')
        SELECT c.role AS subject, c.key AS part,
            CASE WHEN c.base LIKE '%/release' THEN 'RELEASED' ELSE 'any status' END AS expected,
            r.status AS found, NULL AS currency, 'order ' || c.subject AS detail
        FROM claim AS c
        LEFT JOIN reservation AS r ON r.order_id = c.subject
        WHERE c.base LIKE '%/deduct' AND r.status IS NULL
            OR c.base LIKE '%/release' AND r.status IS DISTINCT FROM 'RELEASED'
        ORDER BY c.role, c.key LIMIT ?3",
    ),
    // A key that was decided anew ends in '/~anew-' and a number; the flow has the first one's id.
    (
        "claims_without_stock_flow",
        "
        WITH claim AS (
            SELECT role, key, subject,
                CASE WHEN instr(key, '/~anew-') > 0
                    THEN substr(key, 1, instr(key, '/~anew-') - 1) ELSE key END AS base,
                replace(replace(replace(subject, '%', '%25'), '/', '%2F'), '~', '%7E') AS escaped
            FROM idempotent_record
            WHERE role = 'inventory' AND outcome = 'applied')
        SELECT c.role AS subject, c.key AS part, '1 flow' AS expected, '0 flows' AS found,
            NULL AS currency, 'order ' || c.subject AS detail
        FROM claim AS c
        WHERE c.base LIKE '%/return'
            AND NOT EXISTS (
                SELECT 1 FROM deduction_flow AS f
                WHERE f.order_id = c.subject AND f.action = 'return'
                    AND (instr(f.flow_id, '~') > 0 OR f.flow_id = c.escaped || '/'
                        || replace(replace(replace(f.sku_id, '%', '%25'), '/', '%2F'), '~', '%7E')
                        || '/' || c.base))
        UNION ALL
        SELECT c.role, c.key, '1 flow', '0 flows', NULL, 'SKU ' || c.subject
        FROM claim AS c
        WHERE c.base LIKE '%/adjust' AND instr(c.base, '~') = 0
            AND length(CAST(c.base || '/' || c.escaped AS BLOB)) <= 191
            AND NOT EXISTS (
                SELECT 1 FROM deduction_flow AS f
                WHERE f.flow_id = substr(c.base, 1, length(c.base) - 6) || c.escaped || '/adjust')
        ORDER BY 1, 2 LIMIT ?3",
    ),
    // An order.refunded that found nothing to take back is applied without a flow.
    (
        "claims_without_account_flow",
        "
        WITH claim AS (
            SELECT role, key, subject,
                CASE WHEN instr(key, '/~anew-') > 0
                    THEN substr(key, 1, instr(key, '/~anew-') - 1) ELSE key END AS base
            FROM idempotent_record
            WHERE role = 'account' AND outcome = 'applied')
        SELECT c.role AS subject, c.key AS part, '1 flow' AS expected, '0 flows' AS found,
            NULL AS currency, 'about ' || c.subject AS detail
        FROM claim AS c
        WHERE instr(c.base, '~') = 0
            AND NOT (instr(c.base, '/REFUND/') > 0 AND substr(c.base, -8) = '/reverse')
            AND c.base NOT IN (
                SELECT replace(replace(replace(f.user_id, '%', '%25'), '/', '%2F'), '~', '%7E') || '/'
                    || replace(replace(replace(f.kind, '%', '%25'), '/', '%2F'), '~', '%7E') || '/'
                    || replace(replace(replace(f.source_type, '%', '%25'), '/', '%2F'), '~', '%7E') || '/'
                    || replace(replace(replace(f.source_id, '%', '%25'), '/', '%2F'), '~', '%7E')
                    || CASE WHEN f.reverses_source_id IS NOT NULL THEN '/reverse'
                        WHEN f.amount < 0 THEN '/debit' ELSE '/credit' END
                FROM account_flow AS f)
        ORDER BY c.role, c.key LIMIT ?3",
    ),
    (
        "transitions_without_claim",
        "
        SELECT t.order_id AS subject, NULL AS part, '1 claim' AS expected, '0 claims' AS found,
            NULL AS currency, 'version ' || t.version || ' by key ' || t.key AS detail
        FROM order_transition AS t
        WHERE t.at > (SELECT coalesce(max(removed_through), 0) FROM retention)
            AND NOT EXISTS (
                SELECT 1 FROM idempotent_record AS c
                WHERE c.role IN ('order', 'payment') AND c.key = t.key
                    AND c.outcome IN ('applied', 'duplicate'))
        ORDER BY t.order_id, t.version LIMIT ?3",
    ),
    (
        "reservations_without_claim",
        "
        SELECT r.order_id AS subject, NULL AS part, '1 claim' AS expected, '0 claims' AS found,
            NULL AS currency, 'the reservation is ' || r.status AS detail
        FROM reservation AS r
        WHERE r.updated_at > (SELECT coalesce(max(removed_through), 0) FROM retention)
            AND NOT EXISTS (
                SELECT 1 FROM idempotent_record AS c
                WHERE c.subject = r.order_id AND c.role = 'inventory'
                    AND c.outcome IN ('applied', 'duplicate')
                    AND instr(c.key || '/',
                        CASE WHEN r.status = 'RELEASED' THEN '/release/' ELSE '/deduct/' END) > 0)
        ORDER BY r.order_id LIMIT ?3",
    ),
    // There are many flows for each claim of an order, so its claims are gathered first. Flows with
    // a hashed id tell only their order or SKU.
    (
        "stock_flows_without_claim",
        "
        WITH claim AS (
            SELECT subject,
                CASE WHEN instr(key, '/~anew-') > 0
                    THEN substr(key, 1, instr(key, '/~anew-') - 1) ELSE key END AS base
            FROM idempotent_record
            WHERE role = 'inventory' AND outcome IN ('applied', 'duplicate')),
        flow AS (
            SELECT flow_id, order_id, sku_id, action, at,
                replace(replace(replace(sku_id, '%', '%25'), '/', '%2F'), '~', '%7E') AS sku,
                replace(replace(replace(order_id, '%', '%25'), '/', '%2F'), '~', '%7E') AS escaped
            FROM deduction_flow)
        SELECT f.sku_id AS subject, NULL AS part, '1 claim' AS expected, '0 claims' AS found,
            NULL AS currency, 'flow ' || f.flow_id AS detail
        FROM flow AS f
        WHERE f.at > (SELECT coalesce(max(removed_through), 0) FROM retention) AND (
            f.action IN ('deduct', 'release') AND (coalesce(f.order_id, ''), f.action) NOT IN (
                SELECT subject, CASE WHEN base LIKE '%/deduct' THEN 'deduct' ELSE 'release' END
                FROM claim
                WHERE base LIKE '%/deduct' OR base LIKE '%/release')
            OR f.action = 'return' AND instr(f.flow_id, '~') = 0
                AND (f.order_id, substr(f.flow_id, length(f.escaped) + length(f.sku) + 3)) NOT IN (
                    SELECT subject, base FROM claim WHERE base LIKE '%/return')
            OR f.action = 'adjust' AND instr(f.flow_id, '~') = 0
                AND (f.sku_id, substr(f.flow_id, 1, length(f.flow_id) - length(f.sku) - 7) || 'adjust')
                    NOT IN (SELECT subject, base FROM claim WHERE base LIKE '%/adjust'))
        ORDER BY f.flow_id LIMIT ?3",
    ),
    // The parts before the action are the flow's own, so the keys of its claims are those that
    // continue them with a slash; '0' is the character after it. What is long enough for the
    // number of a decision anew to be hashed with the rest is left out.
    (
        "account_flows_without_claim",
        "
        WITH flow AS (
            SELECT user_id, kind, source_type, source_id, at,
                replace(replace(replace(user_id, '%', '%25'), '/', '%2F'), '~', '%7E') || '/'
                    || replace(replace(replace(kind, '%', '%25'), '/', '%2F'), '~', '%7E') || '/'
                    || replace(replace(replace(source_type, '%', '%25'), '/', '%2F'), '~', '%7E') || '/'
                    || replace(replace(replace(source_id, '%', '%25'), '/', '%2F'), '~', '%7E') AS base
            FROM account_flow)
        SELECT f.user_id AS subject, f.kind AS part, '1 claim' AS expected, '0 claims' AS found,
            NULL AS currency, 'source ' || f.source_type || ' ' || f.source_id AS detail
        FROM flow AS f
        WHERE f.at > (SELECT coalesce(max(removed_through), 0) FROM retention) AND length(CAST(f.base AS BLOB)) <= 160
            AND NOT EXISTS (
                SELECT 1 FROM idempotent_record AS c
                WHERE c.role = 'account' AND c.key > f.base || '/' AND c.key < f.base || '0'
                    AND c.outcome IN ('applied', 'duplicate'))
        ORDER BY f.user_id, f.kind, f.source_type, f.source_id LIMIT ?3",
    ),
    (
        "claims_parked",
        "
        SELECT c.role AS subject, c.key AS part, '1 parked event' AS expected,
            '0 parked events' AS found, NULL AS currency, 'about ' || c.subject AS detail
        FROM idempotent_record AS c
        WHERE c.outcome = 'parked' AND NOT EXISTS (
            SELECT 1 FROM parked_event AS p WHERE p.role = c.role AND p.key = c.key)
        ORDER BY c.role, c.key LIMIT ?3",
    ),
    (
        "parked_claims",
        "
        SELECT p.role AS subject, p.key AS part, 'parked' AS expected, c.outcome AS found,
            NULL AS currency, 'about ' || p.subject AS detail
        FROM parked_event AS p
        LEFT JOIN idempotent_record AS c ON c.role = p.role AND c.key = p.key
        WHERE c.outcome IS DISTINCT FROM 'parked'
        ORDER BY p.role, p.key LIMIT ?3",
    ),
    // The same bytes are kept once, though they may hold several keys: then the message id tells.
    (
        "claims_kept",
        "
        SELECT c.role AS subject, c.key AS part, '1 dead letter' AS expected,
            '0 dead letters' AS found, NULL AS currency, 'the claim says ' || c.outcome AS detail
        FROM idempotent_record AS c
        WHERE c.outcome IN ('dead', 'conflict')
            AND NOT EXISTS (
                SELECT 1 FROM dead_letter AS d WHERE d.key = c.key AND d.role = c.role)
            AND (c.role, c.message_id) NOT IN (
                SELECT role, message_id FROM dead_letter WHERE message_id IS NOT NULL)
        ORDER BY c.role, c.key LIMIT ?3",
    ),
    (
        "outbox_stuck",
        "
        SELECT CAST(id AS TEXT) AS subject, NULL AS part,
            'at most ' || ((?2 - ?1) / 1000) || ' s' AS expected,
            ((?2 - created_at) / 1000) || ' s' AS found, NULL AS currency,
            event_type || ' about ' || aggregate || coalesce(', ' || last_error, '') AS detail
        FROM outbox
        WHERE created_at < ?1
        ORDER BY id LIMIT ?3",
    ),
    // Differs from the keys above: a token holds what it is made of, so it is taken apart. The hash of a
    // long order is that of the event's own; a flow whose token holds a hash is left out.
    (
        "parked_and_possible",
        "
        SELECT role AS subject, key AS part, 'woken' AS expected, 'parked' AS found, NULL AS currency,
            'awaits ' || awaits || ', and there is ' || what AS detail
        FROM (
            SELECT p.role, p.key, p.awaits, p.parked_at, 'an order that is ' || o.status AS what
            FROM parked_event AS p
            JOIN (SELECT ':WAIT_PAY' AS suffix UNION ALL SELECT ':PAID' UNION ALL SELECT ':SHIPPED') AS s
                ON substr(p.awaits, -length(s.suffix)) = s.suffix
            JOIN orders AS o ON o.order_id = CASE WHEN substr(p.awaits, 1, 7) = 'order:~' THEN p.subject
                ELSE replace(replace(replace(substr(p.awaits, 7, max(length(p.awaits) - 6 - length(s.suffix), 0)), '%3A', ':'), '%7E', '~'), '%25', '%') END
            WHERE p.woken_at IS NULL AND substr(p.awaits, 1, 6) = 'order:' AND o.updated_at < ?1
                AND (s.suffix = ':WAIT_PAY' OR o.status <> 'WAIT_PAY' AND (s.suffix = ':PAID' OR o.status <> 'PAID'))
            UNION ALL
            SELECT p.role, p.key, p.awaits, p.parked_at, 'a reservation that is ' || r.status
            FROM parked_event AS p
            JOIN reservation AS r ON r.order_id = CASE WHEN substr(p.awaits, 1, 7) = 'stock:~' THEN p.subject
                ELSE replace(replace(replace(substr(p.awaits, 7, max(length(p.awaits) - 15, 0)), '%3A', ':'), '%7E', '~'), '%25', '%') END
            WHERE p.woken_at IS NULL AND substr(p.awaits, 1, 6) = 'stock:' AND substr(p.awaits, -length(':DEDUCTED')) = ':DEDUCTED'
                AND r.created_at < ?1
            UNION ALL
            SELECT p.role, p.key, p.awaits, p.parked_at, 'a flow of ' || f.amount
            FROM (
                SELECT role, key, awaits, parked_at,
                    '[' || replace(json_quote(awaits), ':', '\",\"') || ']' AS part
                FROM parked_event
                WHERE woken_at IS NULL AND substr(awaits, 1, 5) = 'flow:') AS p
            JOIN account_flow AS f
                ON f.user_id = replace(replace(replace(p.part ->> 1, '%3A', ':'), '%7E', '~'), '%25', '%')
                    AND f.kind = replace(replace(replace(p.part ->> 2, '%3A', ':'), '%7E', '~'), '%25', '%')
                    AND f.source_type = replace(replace(replace(p.part ->> 3, '%3A', ':'), '%7E', '~'), '%25', '%')
                    AND f.source_id = replace(replace(replace(p.part ->> 4, '%3A', ':'), '%7E', '~'), '%25', '%')
            WHERE f.at < ?1) AS possible
        WHERE parked_at < ?1
        ORDER BY role, key LIMIT ?3",
    ),
    (
        "parked_woken_stuck",
        "
        SELECT role AS subject, key AS part, 'at most ' || ((?2 - ?1) / 1000) || ' s' AS expected,
            ((?2 - woken_at) / 1000) || ' s' AS found, NULL AS currency, 'awaited ' || awaits AS detail
        FROM parked_event
        WHERE woken_at < ?1
        ORDER BY woken_at, role, key LIMIT ?3",
    ),
    (
        "parked_overdue",
        "
        SELECT role AS subject, key AS part,
            'at most ' || ((?2 - ?1) / 1000) || ' s after the deadline' AS expected,
            ((?2 - deadline) / 1000) || ' s' AS found, NULL AS currency, 'awaits ' || awaits AS detail
        FROM parked_event
        WHERE deadline < ?1
        ORDER BY deadline, role, key LIMIT ?3",
    ),
];

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::CHECKS;

    #[test]
    fn every_check_has_one_statement_in_the_same_order() {
        let checks: Vec<_> = CHECKS.iter().map(|check| check.name).collect();
        let statements: Vec<_> = STATEMENTS.iter().map(|(name, _)| *name).collect();
        assert_eq!(statements, checks);
    }
}
