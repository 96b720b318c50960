//! `orders`, `order_line`, `order_transition`, `payment`, `refund`.

use super::SqliteTx;
use super::set::{Bytes, Reader, json};
use crate::domain::event::OrderLine;
use crate::domain::order::{Order, Payment, Refund};
use crate::domain::{Currency, Fingerprint, Key, OrderId, Provider, RefundNo, Timestamp, TradeNo};
use crate::store::error::all_written;
use crate::store::{OrderUpdate, Orders, RefundUpdate, Result, StepRow};
use async_trait::async_trait;
use sqlx::sqlite::SqliteRow;

#[async_trait]
impl Orders for SqliteTx {
    async fn load_orders(&mut self, ids: &[&OrderId]) -> Result<Vec<Order>> {
        const LOAD: &str = "
            SELECT order_id, user_id, status, version, currency, total_minor, paid_minor, refunded_minor,
                pay_deadline, fingerprint, remind_at
            FROM orders
            WHERE order_id IN (SELECT value FROM json_each(?1))";
        if ids.is_empty() {
            return Ok(Vec::new());
        }
        let set = json(ids.iter().map(|id| id.as_str()))?;
        let rows = self.fetch(sqlx::query(LOAD).bind(set)).await?;
        rows.iter().map(order).collect()
    }

    // UNION, not OR: each half finds its rows by an index, and a row of both is returned once.
    async fn load_payments(
        &mut self,
        ids: &[&OrderId],
        numbers: &[(&Provider, &TradeNo)],
    ) -> Result<Vec<Payment>> {
        const LOAD: &str = "
            SELECT provider, trade_no, order_id, status, trade_status, amount_minor, currency
            FROM payment
            WHERE order_id IN (SELECT value FROM json_each(?1))
            UNION
            SELECT provider, trade_no, order_id, status, trade_status, amount_minor, currency
            FROM payment
            WHERE (provider, trade_no) IN (SELECT value ->> 0, value ->> 1 FROM json_each(?2))";
        if ids.is_empty() && numbers.is_empty() {
            return Ok(Vec::new());
        }
        let orders = json(ids.iter().map(|id| id.as_str()))?;
        let numbers = json(numbers.iter().map(|(p, no)| (p.as_str(), no.as_str())))?;
        let select = sqlx::query(LOAD).bind(orders).bind(numbers);
        let rows = self.fetch(select).await?;
        rows.iter().map(payment).collect()
    }

    async fn load_refunds(
        &mut self,
        ids: &[&OrderId],
        numbers: &[(&Provider, &RefundNo)],
    ) -> Result<Vec<Refund>> {
        const LOAD: &str = "
            SELECT provider, refund_no, order_id, trade_no, status, amount_minor, currency
            FROM refund
            WHERE order_id IN (SELECT value FROM json_each(?1))
            UNION
            SELECT provider, refund_no, order_id, trade_no, status, amount_minor, currency
            FROM refund
            WHERE (provider, refund_no) IN (SELECT value ->> 0, value ->> 1 FROM json_each(?2))";
        if ids.is_empty() && numbers.is_empty() {
            return Ok(Vec::new());
        }
        let orders = json(ids.iter().map(|id| id.as_str()))?;
        let numbers = json(numbers.iter().map(|(p, no)| (p.as_str(), no.as_str())))?;
        let select = sqlx::query(LOAD).bind(orders).bind(numbers);
        let rows = self.fetch(select).await?;
        rows.iter().map(refund).collect()
    }

    async fn load_notes(&mut self, ids: &[&OrderId]) -> Result<Vec<Key>> {
        const LOAD: &str = "
            SELECT key
            FROM order_transition
            WHERE order_id IN (SELECT value FROM json_each(?1)) AND from_status = to_status";
        if ids.is_empty() {
            return Ok(Vec::new());
        }
        let set = json(ids.iter().map(|id| id.as_str()))?;
        let rows = self.fetch(sqlx::query(LOAD).bind(set)).await?;
        let key = |row| Ok(Key::stored(Reader::new(row, "order_transition", 0).get(0)?));
        rows.iter().map(key).collect()
    }

    async fn insert_orders(&mut self, now: Timestamp, orders: &[&Order]) -> Result<()> {
        const INSERT: &str = "
            INSERT INTO orders
                (order_id, user_id, status, version, currency, total_minor, paid_minor, refunded_minor,
                pay_deadline, fingerprint, remind_at, created_at, updated_at)
            SELECT value ->> 0, value ->> 1, value ->> 2, value ->> 3, value ->> 4, value ->> 5, value ->> 6,
                value ->> 7, value ->> 8, substr(?3, value ->> 9, 32), value ->> 10, ?1, ?1
            FROM json_each(?2)";
        if orders.is_empty() {
            return Ok(());
        }
        let mut fingerprints = Bytes::default();
        let set = json(orders.iter().map(|order| {
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
        }))?;
        let insert = sqlx::query(INSERT)
            .bind(now.0)
            .bind(set)
            .bind(fingerprints.into_parameter());
        self.execute(insert).await.map(drop)
    }

    // A transaction has the write lock from the start: nobody else inserts anything.
    async fn hold_absent_orders(&mut self, _ids: &[&OrderId]) -> Result<()> {
        Ok(())
    }

    async fn insert_order_lines(&mut self, lines: &[(&OrderId, i64, &OrderLine)]) -> Result<()> {
        const INSERT: &str = "
            INSERT INTO order_line (order_id, line_no, sku_id, qty, unit_price_minor, amount_minor, charge)
            SELECT value ->> 0, value ->> 1, value ->> 2, value ->> 3, value ->> 4, value ->> 5, value ->> 6
            FROM json_each(?1)";
        if lines.is_empty() {
            return Ok(());
        }
        let set = json(lines.iter().map(|(order_id, line_no, line)| {
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
        }))?;
        self.execute(sqlx::query(INSERT).bind(set)).await.map(drop)
    }

    // Who ordered what, for how much, is never changed.
    async fn update_orders(&mut self, now: Timestamp, updates: &[OrderUpdate<'_>]) -> Result<()> {
        const UPDATE: &str = "
            UPDATE orders
            SET status = new.value ->> 3,
                version = new.value ->> 4,
                paid_minor = new.value ->> 5,
                refunded_minor = new.value ->> 6,
                pay_deadline = new.value ->> 7,
                remind_at = new.value ->> 8,
                updated_at = ?1
            FROM json_each(?2) AS new
            WHERE order_id = new.value ->> 0 AND status = new.value ->> 1 AND version = new.value ->> 2";
        if updates.is_empty() {
            return Ok(());
        }
        let set = json(updates.iter().map(|update| {
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
        }))?;
        let update = sqlx::query(UPDATE).bind(now.0).bind(set);
        let written = self.execute(update).await?;
        all_written("orders", written, updates.len())
    }

    async fn insert_steps(&mut self, now: Timestamp, steps: &[StepRow]) -> Result<()> {
        const INSERT: &str = "
            INSERT INTO order_transition (order_id, version, from_status, to_status, key, at)
            SELECT value ->> 0, value ->> 1, value ->> 2, value ->> 3, value ->> 4, ?1
            FROM json_each(?2)";
        if steps.is_empty() {
            return Ok(());
        }
        let set = json(steps.iter().map(|row| {
            let from = row.step.from.map(<&str>::from);
            let to = <&str>::from(row.step.to);
            (&row.order_id, row.step.version, from, to, &row.key)
        }))?;
        let insert = sqlx::query(INSERT).bind(now.0).bind(set);
        self.execute(insert).await.map(drop)
    }

    async fn insert_payments(&mut self, now: Timestamp, payments: &[&Payment]) -> Result<()> {
        const INSERT: &str = "
            INSERT INTO payment
                (provider, trade_no, order_id, status, trade_status, amount_minor, currency, created_at)
            SELECT value ->> 0, value ->> 1, value ->> 2, value ->> 3, value ->> 4, value ->> 5, value ->> 6, ?1
            FROM json_each(?2)";
        if payments.is_empty() {
            return Ok(());
        }
        let set = json(payments.iter().map(|payment| {
            (
                &payment.provider,
                &payment.trade_no,
                &payment.order_id,
                <&str>::from(payment.status),
                &payment.trade_status,
                payment.amount_minor,
                payment.currency,
            )
        }))?;
        let insert = sqlx::query(INSERT).bind(now.0).bind(set);
        self.execute(insert).await.map(drop)
    }

    async fn insert_refunds(&mut self, now: Timestamp, refunds: &[&Refund]) -> Result<()> {
        const INSERT: &str = "
            INSERT INTO refund
                (provider, refund_no, order_id, trade_no, status, amount_minor, currency, created_at, updated_at)
            SELECT value ->> 0, value ->> 1, value ->> 2, value ->> 3, value ->> 4, value ->> 5, value ->> 6, ?1, ?1
            FROM json_each(?2)";
        if refunds.is_empty() {
            return Ok(());
        }
        let set = json(refunds.iter().map(|refund| {
            (
                &refund.provider,
                &refund.refund_no,
                &refund.order_id,
                &refund.trade_no,
                <&str>::from(refund.status),
                refund.amount_minor,
                refund.currency,
            )
        }))?;
        let insert = sqlx::query(INSERT).bind(now.0).bind(set);
        self.execute(insert).await.map(drop)
    }

    async fn update_refunds(&mut self, now: Timestamp, updates: &[RefundUpdate<'_>]) -> Result<()> {
        const UPDATE: &str = "
            UPDATE refund
            SET status = new.value ->> 3,
                trade_no = new.value ->> 4,
                amount_minor = new.value ->> 5,
                currency = new.value ->> 6,
                updated_at = ?1
            FROM json_each(?2) AS new
            WHERE provider = new.value ->> 0 AND refund_no = new.value ->> 1 AND status = new.value ->> 2";
        if updates.is_empty() {
            return Ok(());
        }
        let set = json(updates.iter().map(|update| {
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
        }))?;
        let update = sqlx::query(UPDATE).bind(now.0).bind(set);
        let written = self.execute(update).await?;
        all_written("refund", written, updates.len())
    }
}

fn order(row: &SqliteRow) -> Result<Order> {
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

pub(super) fn payment(row: &SqliteRow) -> Result<Payment> {
    let row = Reader::new(row, "payment", 2);
    Ok(Payment {
        provider: row.parse(0)?,
        trade_no: row.parse(1)?,
        order_id: row.parse(2)?,
        status: row.parse(3)?,
        trade_status: row.get(4)?,
        amount_minor: row.get(5)?,
        currency: currency(&row, 6)?,
    })
}

pub(super) fn refund(row: &SqliteRow) -> Result<Refund> {
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
    let code: &str = row.get(column)?;
    Currency::new(code).map_err(|error| row.corrupt(&format!("{code:?}: {error}")))
}
