//! `orders`, `order_line`, `order_transition`, `payment`, `refund`.

use super::MySqlTx;
use super::set::{Bytes, Reader, Text, json_by, keys};
use crate::domain::event::OrderLine;
use crate::domain::order::{Order, Payment, Refund};
use crate::domain::{Currency, Fingerprint, Key, OrderId, Provider, RefundNo, Timestamp, TradeNo};
use crate::store::error::all_written;
use crate::store::{OrderUpdate, Orders, RefundUpdate, Result, StepRow};
use async_trait::async_trait;
use sqlx::mysql::MySqlRow;

#[async_trait]
impl Orders for MySqlTx {
    async fn load_orders(&mut self, ids: &[&OrderId]) -> Result<Vec<Order>> {
        const LOAD: &str = "
            SELECT o.order_id, o.user_id, o.status, o.version, o.currency, o.total_minor, o.paid_minor,
                o.refunded_minor, o.pay_deadline, o.fingerprint, o.remind_at
            FROM JSON_TABLE(?, '$[*]' COLUMNS (order_id VARBINARY(512) PATH '$')) AS wanted
            STRAIGHT_JOIN orders AS o FORCE INDEX (PRIMARY) ON o.order_id = wanted.order_id
            FOR UPDATE";
        if ids.is_empty() {
            return Ok(Vec::new());
        }
        let set = keys(ids.iter().map(|id| id.as_str()))?;
        let rows = self.fetch(sqlx::query(LOAD).bind(set)).await?;
        rows.iter().map(order).collect()
    }

    // The keys of both halves first, each once, then their rows. Payments are never changed.
    async fn load_payments(
        &mut self,
        ids: &[&OrderId],
        numbers: &[(&Provider, &TradeNo)],
    ) -> Result<Vec<Payment>> {
        const LOAD: &str = "
            SELECT p.provider, p.trade_no, p.order_id, p.status, p.trade_status, p.amount_minor, p.currency
            FROM (
                SELECT p.provider, p.trade_no
                FROM JSON_TABLE(?, '$[*]' COLUMNS (order_id VARBINARY(512) PATH '$')) AS wanted
                STRAIGHT_JOIN payment AS p FORCE INDEX (payment_order) ON p.order_id = wanted.order_id
                UNION
                SELECT wanted.provider, wanted.trade_no
                FROM JSON_TABLE(?, '$[*]' COLUMNS (
                    provider VARBINARY(512) PATH '$[0]',
                    trade_no VARBINARY(512) PATH '$[1]')) AS wanted) AS number
            STRAIGHT_JOIN payment AS p FORCE INDEX (PRIMARY)
                ON p.provider = number.provider AND p.trade_no = number.trade_no";
        if ids.is_empty() && numbers.is_empty() {
            return Ok(Vec::new());
        }
        let orders = keys(ids.iter().map(|id| id.as_str()))?;
        let numbers = keys(numbers.iter().map(|(p, no)| (p.as_str(), no.as_str())))?;
        let select = sqlx::query(LOAD).bind(orders).bind(numbers);
        let rows = self.fetch(select).await?;
        rows.iter().map(payment).collect()
    }

    // As the payments, locked. Who changes a refund has locked its order before, so the order in which
    // these are locked matters little.
    async fn load_refunds(
        &mut self,
        ids: &[&OrderId],
        numbers: &[(&Provider, &RefundNo)],
    ) -> Result<Vec<Refund>> {
        const LOAD: &str = "
            SELECT r.provider, r.refund_no, r.order_id, r.trade_no, r.status, r.amount_minor, r.currency
            FROM (
                SELECT r.provider, r.refund_no
                FROM JSON_TABLE(?, '$[*]' COLUMNS (order_id VARBINARY(512) PATH '$')) AS wanted
                STRAIGHT_JOIN refund AS r FORCE INDEX (refund_order) ON r.order_id = wanted.order_id
                UNION
                SELECT wanted.provider, wanted.refund_no
                FROM JSON_TABLE(?, '$[*]' COLUMNS (
                    provider VARBINARY(512) PATH '$[0]',
                    refund_no VARBINARY(512) PATH '$[1]')) AS wanted) AS number
            STRAIGHT_JOIN refund AS r FORCE INDEX (PRIMARY)
                ON r.provider = number.provider AND r.refund_no = number.refund_no
            FOR UPDATE";
        if ids.is_empty() && numbers.is_empty() {
            return Ok(Vec::new());
        }
        let orders = keys(ids.iter().map(|id| id.as_str()))?;
        let numbers = keys(numbers.iter().map(|(p, no)| (p.as_str(), no.as_str())))?;
        let select = sqlx::query(LOAD).bind(orders).bind(numbers);
        let rows = self.fetch(select).await?;
        rows.iter().map(refund).collect()
    }

    async fn load_notes(&mut self, ids: &[&OrderId]) -> Result<Vec<Key>> {
        const LOAD: &str = "
            SELECT note.`key`
            FROM JSON_TABLE(?, '$[*]' COLUMNS (order_id VARBINARY(512) PATH '$')) AS wanted
            STRAIGHT_JOIN order_transition AS note FORCE INDEX (PRIMARY)
                ON note.order_id = wanted.order_id
            WHERE note.from_status = note.to_status";
        if ids.is_empty() {
            return Ok(Vec::new());
        }
        let set = keys(ids.iter().map(|id| id.as_str()))?;
        let rows = self.fetch(sqlx::query(LOAD).bind(set)).await?;
        let key = |row| {
            let key: Text = Reader::new(row, "order_transition", 0).get(0)?;
            Ok(Key::stored(&key))
        };
        rows.iter().map(key).collect()
    }

    async fn insert_orders(&mut self, now: Timestamp, orders: &[&Order]) -> Result<()> {
        const INSERT: &str = "
            INSERT INTO orders
                (order_id, user_id, status, version, currency, total_minor, paid_minor, refunded_minor,
                pay_deadline, fingerprint, remind_at, created_at, updated_at)
            SELECT new.order_id, new.user_id, new.status, new.version, new.currency, new.total_minor,
                new.paid_minor, new.refunded_minor, new.pay_deadline,
                SUBSTRING(fingerprints.bytes, new.fingerprint, 32), new.remind_at, ?, ?
            FROM (SELECT CAST(? AS BINARY) AS bytes) AS fingerprints
            STRAIGHT_JOIN JSON_TABLE(?, '$[*]' COLUMNS (
                order_id VARBINARY(512) PATH '$[0]',
                user_id VARBINARY(512) PATH '$[1]',
                status VARBINARY(16) PATH '$[2]',
                version BIGINT PATH '$[3]',
                currency VARBINARY(3) PATH '$[4]',
                total_minor BIGINT PATH '$[5]',
                paid_minor BIGINT PATH '$[6]',
                refunded_minor BIGINT PATH '$[7]',
                pay_deadline BIGINT PATH '$[8]',
                fingerprint BIGINT PATH '$[9]',
                remind_at BIGINT PATH '$[10]')) AS new";
        if orders.is_empty() {
            return Ok(());
        }
        let mut fingerprints = Bytes::default();
        let set = json_by(
            orders.iter().map(|order| {
                let status: &str = order.status.into();
                let (fingerprint, _) = fingerprints.add(&order.fingerprint.0);
                (
                    &order.order_id,
                    &order.user_id,
                    status,
                    order.version,
                    order.currency,
                    order.total_minor,
                    order.paid_minor,
                    order.refunded_minor,
                    order.pay_deadline.0,
                    fingerprint,
                    order.remind_at.map(|at| at.0),
                )
            }),
            |a, b| a.0.cmp(b.0),
        )?;
        let insert = sqlx::query(INSERT)
            .bind(now.0)
            .bind(now.0)
            .bind(fingerprints.into_parameter())
            .bind(set);
        self.execute(insert).await.map(drop)
    }

    // Differs from Postgres: a key that is not there cannot be locked, but a row that was inserted and
    // deleted again holds its key until the commit.
    async fn hold_absent_orders(&mut self, ids: &[&OrderId]) -> Result<()> {
        const HOLD: &str = "
            INSERT INTO orders
                (order_id, user_id, status, version, currency, total_minor, paid_minor, refunded_minor,
                pay_deadline, fingerprint, created_at, updated_at)
            SELECT absent.order_id, '', 'CLOSED', 1, '', 0, 0, 0, 0, '', 0, 0
            FROM JSON_TABLE(?, '$[*]' COLUMNS (order_id VARBINARY(512) PATH '$')) AS absent";
        const LEAVE_ABSENT: &str = "
            DELETE o
            FROM JSON_TABLE(?, '$[*]' COLUMNS (order_id VARBINARY(512) PATH '$')) AS absent
            STRAIGHT_JOIN orders AS o FORCE INDEX (PRIMARY) ON o.order_id = absent.order_id";
        if ids.is_empty() {
            return Ok(());
        }
        let set = keys(ids.iter().map(|id| id.as_str()))?;
        self.hold("orders", HOLD, LEAVE_ABSENT, set).await
    }

    async fn insert_order_lines(&mut self, lines: &[(&OrderId, i64, &OrderLine)]) -> Result<()> {
        const INSERT: &str = "
            INSERT INTO order_line (order_id, line_no, sku_id, qty, unit_price_minor, amount_minor, charge)
            SELECT new.order_id, new.line_no, new.sku_id, new.qty, new.unit_price_minor, new.amount_minor, new.charge
            FROM JSON_TABLE(?, '$[*]' COLUMNS (
                order_id VARBINARY(512) PATH '$[0]',
                line_no BIGINT PATH '$[1]',
                sku_id VARBINARY(512) PATH '$[2]',
                qty BIGINT PATH '$[3]',
                unit_price_minor BIGINT PATH '$[4]',
                amount_minor BIGINT PATH '$[5]',
                charge BIGINT PATH '$[6]')) AS new";
        if lines.is_empty() {
            return Ok(());
        }
        let set = json_by(
            lines.iter().map(|(order_id, line_no, line)| {
                let (price, amount) = (line.unit_price_minor, line.amount_minor);
                let charge = u8::from(line.charge);
                (
                    order_id,
                    line_no,
                    &line.sku_id,
                    line.qty,
                    price,
                    amount,
                    charge,
                )
            }),
            |a, b| (a.0, a.1).cmp(&(b.0, b.1)),
        )?;
        self.database().fits(set.len())?;
        self.execute(sqlx::query(INSERT).bind(set)).await.map(drop)
    }

    // Who ordered what, for how much, is never changed.
    async fn update_orders(&mut self, now: Timestamp, updates: &[OrderUpdate<'_>]) -> Result<()> {
        const UPDATE: &str = "
            UPDATE JSON_TABLE(?, '$[*]' COLUMNS (
                order_id VARBINARY(512) PATH '$[0]',
                was VARBINARY(16) PATH '$[1]',
                was_version BIGINT PATH '$[2]',
                status VARBINARY(16) PATH '$[3]',
                version BIGINT PATH '$[4]',
                paid_minor BIGINT PATH '$[5]',
                refunded_minor BIGINT PATH '$[6]',
                pay_deadline BIGINT PATH '$[7]',
                remind_at BIGINT PATH '$[8]')) AS new
            STRAIGHT_JOIN orders AS o FORCE INDEX (PRIMARY) ON o.order_id = new.order_id
            SET o.status = new.status,
                o.version = new.version,
                o.paid_minor = new.paid_minor,
                o.refunded_minor = new.refunded_minor,
                o.pay_deadline = new.pay_deadline,
                o.remind_at = new.remind_at,
                o.updated_at = ?
            WHERE o.status = new.was AND o.version = new.was_version";
        if updates.is_empty() {
            return Ok(());
        }
        let set = json_by(
            updates.iter().map(|update| {
                let order = update.order;
                (
                    &order.order_id,
                    <&str>::from(update.was),
                    update.was_version,
                    <&str>::from(order.status),
                    order.version,
                    order.paid_minor,
                    order.refunded_minor,
                    order.pay_deadline.0,
                    order.remind_at.map(|at| at.0),
                )
            }),
            |a, b| a.0.cmp(b.0),
        )?;
        let update = sqlx::query(UPDATE).bind(set).bind(now.0);
        let written = self.execute(update).await?;
        all_written("orders", written, updates.len())
    }

    async fn insert_steps(&mut self, now: Timestamp, steps: &[StepRow]) -> Result<()> {
        const INSERT: &str = "
            INSERT INTO order_transition (order_id, version, from_status, to_status, `key`, at)
            SELECT new.order_id, new.version, new.from_status, new.to_status, new.`key`, ?
            FROM JSON_TABLE(?, '$[*]' COLUMNS (
                order_id VARBINARY(512) PATH '$[0]',
                version BIGINT PATH '$[1]',
                from_status VARBINARY(16) PATH '$[2]',
                to_status VARBINARY(16) PATH '$[3]',
                `key` VARBINARY(191) PATH '$[4]')) AS new";
        if steps.is_empty() {
            return Ok(());
        }
        let set = json_by(
            steps.iter().map(|row| {
                let from = row.step.from.map(<&str>::from);
                let to = <&str>::from(row.step.to);
                (&row.order_id, row.step.version, from, to, &row.key)
            }),
            |a, b| (a.0, a.1).cmp(&(b.0, b.1)),
        )?;
        let insert = sqlx::query(INSERT).bind(now.0).bind(set);
        self.execute(insert).await.map(drop)
    }

    async fn insert_payments(&mut self, now: Timestamp, payments: &[&Payment]) -> Result<()> {
        const INSERT: &str = "
            INSERT INTO payment
                (provider, trade_no, order_id, status, trade_status, amount_minor, currency, created_at)
            SELECT new.provider, new.trade_no, new.order_id, new.status, new.trade_status, new.amount_minor,
                new.currency, ?
            FROM JSON_TABLE(?, '$[*]' COLUMNS (
                provider VARBINARY(512) PATH '$[0]',
                trade_no VARBINARY(512) PATH '$[1]',
                order_id VARBINARY(512) PATH '$[2]',
                status VARBINARY(16) PATH '$[3]',
                trade_status LONGBLOB PATH '$[4]',
                amount_minor BIGINT PATH '$[5]',
                currency VARBINARY(3) PATH '$[6]')) AS new";
        if payments.is_empty() {
            return Ok(());
        }
        let set = json_by(
            payments.iter().map(|payment| {
                (
                    &payment.provider,
                    &payment.trade_no,
                    &payment.order_id,
                    <&str>::from(payment.status),
                    &payment.trade_status,
                    payment.amount_minor,
                    payment.currency,
                )
            }),
            |a, b| (a.0, a.1).cmp(&(b.0, b.1)),
        )?;
        let insert = sqlx::query(INSERT).bind(now.0).bind(set);
        self.execute(insert).await.map(drop)
    }

    async fn insert_refunds(&mut self, now: Timestamp, refunds: &[&Refund]) -> Result<()> {
        const INSERT: &str = "
            INSERT INTO refund
                (provider, refund_no, order_id, trade_no, status, amount_minor, currency, created_at, updated_at)
            SELECT new.provider, new.refund_no, new.order_id, new.trade_no, new.status, new.amount_minor,
                new.currency, ?, ?
            FROM JSON_TABLE(?, '$[*]' COLUMNS (
                provider VARBINARY(512) PATH '$[0]',
                refund_no VARBINARY(512) PATH '$[1]',
                order_id VARBINARY(512) PATH '$[2]',
                trade_no VARBINARY(512) PATH '$[3]',
                status VARBINARY(16) PATH '$[4]',
                amount_minor BIGINT PATH '$[5]',
                currency VARBINARY(3) PATH '$[6]')) AS new";
        if refunds.is_empty() {
            return Ok(());
        }
        let set = json_by(
            refunds.iter().map(|refund| {
                (
                    &refund.provider,
                    &refund.refund_no,
                    &refund.order_id,
                    &refund.trade_no,
                    <&str>::from(refund.status),
                    refund.amount_minor,
                    refund.currency,
                )
            }),
            |a, b| (a.0, a.1).cmp(&(b.0, b.1)),
        )?;
        let insert = sqlx::query(INSERT).bind(now.0).bind(now.0).bind(set);
        self.execute(insert).await.map(drop)
    }

    async fn update_refunds(&mut self, now: Timestamp, updates: &[RefundUpdate<'_>]) -> Result<()> {
        const UPDATE: &str = "
            UPDATE JSON_TABLE(?, '$[*]' COLUMNS (
                provider VARBINARY(512) PATH '$[0]',
                refund_no VARBINARY(512) PATH '$[1]',
                was VARBINARY(16) PATH '$[2]',
                status VARBINARY(16) PATH '$[3]',
                trade_no VARBINARY(512) PATH '$[4]',
                amount_minor BIGINT PATH '$[5]',
                currency VARBINARY(3) PATH '$[6]')) AS new
            STRAIGHT_JOIN refund AS r FORCE INDEX (PRIMARY)
                ON r.provider = new.provider AND r.refund_no = new.refund_no
            SET r.status = new.status,
                r.trade_no = new.trade_no,
                r.amount_minor = new.amount_minor,
                r.currency = new.currency,
                r.updated_at = ?
            WHERE r.status = new.was";
        if updates.is_empty() {
            return Ok(());
        }
        let set = json_by(
            updates.iter().map(|update| {
                let refund = update.refund;
                (
                    &refund.provider,
                    &refund.refund_no,
                    <&str>::from(update.was),
                    <&str>::from(refund.status),
                    &refund.trade_no,
                    refund.amount_minor,
                    refund.currency,
                )
            }),
            |a, b| (a.0, a.1).cmp(&(b.0, b.1)),
        )?;
        let update = sqlx::query(UPDATE).bind(set).bind(now.0);
        let written = self.execute(update).await?;
        all_written("refund", written, updates.len())
    }
}

fn order(row: &MySqlRow) -> Result<Order> {
    let row = Reader::new(row, "orders", 1);
    Ok(Order {
        order_id: row.parse(0)?,
        user_id: row.parse(1)?,
        status: row.parse(2)?,
        version: row.get(3)?,
        currency: currency(&row, 4)?,
        total_minor: row.get(5)?,
        paid_minor: row.get(6)?,
        refunded_minor: row.get(7)?,
        pay_deadline: Timestamp(row.get(8)?),
        remind_at: row.get::<Option<i64>>(10)?.map(Timestamp),
        fingerprint: Fingerprint::from_bytes(row.get(9)?)
            .ok_or_else(|| row.corrupt("the fingerprint has not 32 bytes"))?,
    })
}

pub(super) fn payment(row: &MySqlRow) -> Result<Payment> {
    let row = Reader::new(row, "payment", 2);
    Ok(Payment {
        provider: row.parse(0)?,
        trade_no: row.parse(1)?,
        order_id: row.parse(2)?,
        status: row.parse(3)?,
        trade_status: row.optional_text(4)?.map(str::to_owned),
        amount_minor: row.get(5)?,
        currency: currency(&row, 6)?,
    })
}

pub(super) fn refund(row: &MySqlRow) -> Result<Refund> {
    let row = Reader::new(row, "refund", 2);
    Ok(Refund {
        provider: row.parse(0)?,
        refund_no: row.parse(1)?,
        order_id: row.parse(2)?,
        trade_no: row.parse_optional(3)?,
        status: row.parse(4)?,
        amount_minor: row.get(5)?,
        currency: currency(&row, 6)?,
    })
}

fn currency(row: &Reader<'_>, column: usize) -> Result<Currency> {
    let code = row.text(column)?;
    Currency::new(code).map_err(|error| row.corrupt(&format!("{code:?}: {error}")))
}
