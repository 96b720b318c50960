//! `orders`, `order_line`, `order_transition`, `payment`, `refund`.

use super::PostgresTx;
use super::set::{Reader, all_absent, column};
use crate::domain::event::OrderLine;
use crate::domain::order::{Order, Payment, Refund};
use crate::domain::{Currency, Fingerprint, Key, OrderId, Provider, RefundNo, Timestamp, TradeNo};
use crate::store::error::all_written;
use crate::store::{OrderUpdate, Orders, RefundUpdate, Result, StepRow};
use async_trait::async_trait;
use sqlx::postgres::PgRow;

#[async_trait]
impl Orders for PostgresTx {
    async fn load_orders(&mut self, ids: &[&OrderId]) -> Result<Vec<Order>> {
        const LOAD: &str = "
            SELECT order_id, user_id, status, version, currency, total_minor, paid_minor, refunded_minor,
                pay_deadline, fingerprint, remind_at
            FROM orders
            WHERE order_id = ANY ($1)
            ORDER BY order_id
            FOR UPDATE";
        if ids.is_empty() {
            return Ok(Vec::new());
        }
        let select = sqlx::query(LOAD).bind(texts(ids));
        let rows = self.fetch(select).await?;
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
            WHERE order_id = ANY ($1)
            UNION
            SELECT provider, trade_no, order_id, status, trade_status, amount_minor, currency
            FROM payment
            WHERE (provider, trade_no) IN (
                SELECT provider, trade_no FROM unnest($2::text[], $3::text[]) AS wanted (provider, trade_no))";
        if ids.is_empty() && numbers.is_empty() {
            return Ok(Vec::new());
        }
        let select = sqlx::query(LOAD)
            .bind(texts(ids))
            .bind(column(numbers, |(provider, _)| provider.as_str()))
            .bind(column(numbers, |(_, number)| number.as_str()));
        let rows = self.fetch(select).await?;
        rows.iter().map(payment).collect()
    }

    // Differs from SQLite: a UNION cannot be locked, so it finds the keys.
    async fn load_refunds(
        &mut self,
        ids: &[&OrderId],
        numbers: &[(&Provider, &RefundNo)],
    ) -> Result<Vec<Refund>> {
        const LOAD: &str = "
            SELECT provider, refund_no, order_id, trade_no, status, amount_minor, currency
            FROM refund
            WHERE (provider, refund_no) IN (
                SELECT provider, refund_no FROM refund WHERE order_id = ANY ($1)
                UNION
                SELECT provider, refund_no FROM unnest($2::text[], $3::text[]) AS wanted (provider, refund_no))
            ORDER BY provider, refund_no
            FOR UPDATE";
        if ids.is_empty() && numbers.is_empty() {
            return Ok(Vec::new());
        }
        let select = sqlx::query(LOAD)
            .bind(texts(ids))
            .bind(column(numbers, |(provider, _)| provider.as_str()))
            .bind(column(numbers, |(_, number)| number.as_str()));
        let rows = self.fetch(select).await?;
        rows.iter().map(refund).collect()
    }

    async fn load_notes(&mut self, ids: &[&OrderId]) -> Result<Vec<Key>> {
        const LOAD: &str = "
            SELECT key FROM order_transition WHERE order_id = ANY ($1) AND from_status = to_status";
        if ids.is_empty() {
            return Ok(Vec::new());
        }
        let select = sqlx::query(LOAD).bind(column(ids.iter().copied(), OrderId::as_str));
        let rows = self.fetch(select).await?;
        let key = |row| Ok(Key::stored(Reader::new(row, "order_transition", 0).get(0)?));
        rows.iter().map(key).collect()
    }

    async fn insert_orders(&mut self, now: Timestamp, orders: &[&Order]) -> Result<()> {
        const INSERT: &str = "
            INSERT INTO orders
                (order_id, user_id, status, version, currency, total_minor, paid_minor, refunded_minor,
                pay_deadline, fingerprint, remind_at, created_at, updated_at)
            SELECT new.order_id, new.user_id, new.status, new.version, new.currency, new.total_minor,
                new.paid_minor, new.refunded_minor, new.pay_deadline, new.fingerprint, new.remind_at, $1, $1
            FROM unnest($2::text[], $3::text[], $4::text[], $5::bigint[], $6::text[], $7::bigint[],
                    $8::bigint[], $9::bigint[], $10::bigint[], $11::bytea[], $12::bigint[])
                AS new (order_id, user_id, status, version, currency, total_minor,
                    paid_minor, refunded_minor, pay_deadline, fingerprint, remind_at)
            ORDER BY new.order_id COLLATE \"C\"";
        if orders.is_empty() {
            return Ok(());
        }
        let orders = || orders.iter().copied();
        let insert = sqlx::query(INSERT)
            .bind(now.0)
            .bind(column(orders(), |order| order.order_id.as_str()))
            .bind(column(orders(), |order| order.user_id.as_str()))
            .bind(column(orders(), |order| <&str>::from(order.status)))
            .bind(column(orders(), |order| order.version))
            .bind(column(orders(), |order| order.currency.as_str()))
            .bind(column(orders(), |order| order.total_minor))
            .bind(column(orders(), |order| order.paid_minor))
            .bind(column(orders(), |order| order.refunded_minor))
            .bind(column(orders(), |order| order.pay_deadline.0))
            .bind(column(orders(), |order| &order.fingerprint.0[..]))
            .bind(column(orders(), |order| order.remind_at.map(|at| at.0)));
        self.execute(insert).await.map(drop)
    }

    // Rows in their place, until this transaction has ended: whoever inserts one of these keys waits
    // for that.
    async fn hold_absent_orders(&mut self, ids: &[&OrderId]) -> Result<()> {
        const HOLD: &str = "
            INSERT INTO orders
                (order_id, user_id, status, version, currency, total_minor, paid_minor, refunded_minor,
                pay_deadline, fingerprint, created_at, updated_at)
            SELECT absent.order_id, '', 'CLOSED', 1, '', 0, 0, 0, 0, '', 0, 0
            FROM unnest($1::text[]) AS absent (order_id)
            ORDER BY absent.order_id COLLATE \"C\"
            ON CONFLICT (order_id) DO NOTHING";
        const LET_GO: &str = "DELETE FROM orders WHERE order_id = ANY ($1)";
        if ids.is_empty() {
            return Ok(());
        }
        let ids = texts(ids);
        let held = self.execute(sqlx::query(HOLD).bind(&ids)).await?;
        all_absent("orders", held, ids.len())?;
        self.execute(sqlx::query(LET_GO).bind(&ids)).await.map(drop)
    }

    async fn insert_order_lines(&mut self, lines: &[(&OrderId, i64, &OrderLine)]) -> Result<()> {
        const INSERT: &str = "
            INSERT INTO order_line (order_id, line_no, sku_id, qty, unit_price_minor, amount_minor, charge)
            SELECT order_id, line_no, sku_id, qty, unit_price_minor, amount_minor, charge
            FROM unnest($1::text[], $2::bigint[], $3::text[], $4::bigint[], $5::bigint[], $6::bigint[],
                    $7::bigint[])
                AS new (order_id, line_no, sku_id, qty, unit_price_minor, amount_minor, charge)
            ORDER BY order_id COLLATE \"C\", line_no";
        if lines.is_empty() {
            return Ok(());
        }
        let insert = sqlx::query(INSERT)
            .bind(column(lines, |(order_id, _, _)| order_id.as_str()))
            .bind(column(lines, |(_, line_no, _)| *line_no))
            .bind(column(lines, |(_, _, line)| line.sku_id.as_str()))
            .bind(column(lines, |(_, _, line)| line.qty))
            .bind(column(lines, |(_, _, line)| line.unit_price_minor))
            .bind(column(lines, |(_, _, line)| line.amount_minor))
            .bind(column(lines, |(_, _, line)| i64::from(line.charge)));
        self.execute(insert).await.map(drop)
    }

    // Who ordered what, for how much, is never changed.
    async fn update_orders(&mut self, now: Timestamp, updates: &[OrderUpdate<'_>]) -> Result<()> {
        const UPDATE: &str = "
            UPDATE orders
            SET status = new.status,
                version = new.version,
                paid_minor = new.paid_minor,
                refunded_minor = new.refunded_minor,
                pay_deadline = new.pay_deadline,
                remind_at = new.remind_at,
                updated_at = $1
            FROM unnest($2::text[], $3::text[], $4::bigint[], $5::text[], $6::bigint[], $7::bigint[],
                    $8::bigint[], $9::bigint[], $10::bigint[])
                AS new (order_id, was, was_version, status, version, paid_minor, refunded_minor, pay_deadline,
                    remind_at)
            WHERE orders.order_id = new.order_id AND orders.status = new.was
                AND orders.version = new.was_version";
        if updates.is_empty() {
            return Ok(());
        }
        let update = sqlx::query(UPDATE)
            .bind(now.0)
            .bind(column(updates, |update| update.order.order_id.as_str()))
            .bind(column(updates, |update| <&str>::from(update.was)))
            .bind(column(updates, |update| update.was_version))
            .bind(column(updates, |update| <&str>::from(update.order.status)))
            .bind(column(updates, |update| update.order.version))
            .bind(column(updates, |update| update.order.paid_minor))
            .bind(column(updates, |update| update.order.refunded_minor))
            .bind(column(updates, |update| update.order.pay_deadline.0))
            .bind(column(updates, |update| {
                update.order.remind_at.map(|at| at.0)
            }));
        let written = self.execute(update).await?;
        all_written("orders", written, updates.len())
    }

    async fn insert_steps(&mut self, now: Timestamp, steps: &[StepRow]) -> Result<()> {
        const INSERT: &str = "
            INSERT INTO order_transition (order_id, version, from_status, to_status, key, at)
            SELECT order_id, version, from_status, to_status, key, $1
            FROM unnest($2::text[], $3::bigint[], $4::text[], $5::text[], $6::text[])
                AS new (order_id, version, from_status, to_status, key)
            ORDER BY order_id COLLATE \"C\", version";
        if steps.is_empty() {
            return Ok(());
        }
        let insert = sqlx::query(INSERT)
            .bind(now.0)
            .bind(column(steps, |row| row.order_id.as_str()))
            .bind(column(steps, |row| row.step.version))
            .bind(column(steps, |row| row.step.from.map(<&str>::from)))
            .bind(column(steps, |row| <&str>::from(row.step.to)))
            .bind(column(steps, |row| row.key.as_str()));
        self.execute(insert).await.map(drop)
    }

    async fn insert_payments(&mut self, now: Timestamp, payments: &[&Payment]) -> Result<()> {
        const INSERT: &str = "
            INSERT INTO payment
                (provider, trade_no, order_id, status, trade_status, amount_minor, currency, created_at)
            SELECT provider, trade_no, order_id, status, trade_status, amount_minor, currency, $1
            FROM unnest($2::text[], $3::text[], $4::text[], $5::text[], $6::text[], $7::bigint[],
                    $8::text[])
                AS new (provider, trade_no, order_id, status, trade_status, amount_minor, currency)
            ORDER BY provider COLLATE \"C\", trade_no COLLATE \"C\"";
        if payments.is_empty() {
            return Ok(());
        }
        let payments = || payments.iter().copied();
        let insert = sqlx::query(INSERT)
            .bind(now.0)
            .bind(column(payments(), |payment| payment.provider.as_str()))
            .bind(column(payments(), |payment| payment.trade_no.as_str()))
            .bind(column(payments(), |payment| payment.order_id.as_str()))
            .bind(column(payments(), |payment| <&str>::from(payment.status)))
            .bind(column(payments(), |payment| {
                payment.trade_status.as_deref()
            }))
            .bind(column(payments(), |payment| payment.amount_minor))
            .bind(column(payments(), |payment| payment.currency.as_str()));
        self.execute(insert).await.map(drop)
    }

    async fn insert_refunds(&mut self, now: Timestamp, refunds: &[&Refund]) -> Result<()> {
        const INSERT: &str = "
            INSERT INTO refund
                (provider, refund_no, order_id, trade_no, status, amount_minor, currency, created_at, updated_at)
            SELECT provider, refund_no, order_id, trade_no, status, amount_minor, currency, $1, $1
            FROM unnest($2::text[], $3::text[], $4::text[], $5::text[], $6::text[], $7::bigint[],
                    $8::text[])
                AS new (provider, refund_no, order_id, trade_no, status, amount_minor, currency)
            ORDER BY provider COLLATE \"C\", refund_no COLLATE \"C\"";
        if refunds.is_empty() {
            return Ok(());
        }
        let refunds = || refunds.iter().copied();
        let insert = sqlx::query(INSERT)
            .bind(now.0)
            .bind(column(refunds(), |refund| refund.provider.as_str()))
            .bind(column(refunds(), |refund| refund.refund_no.as_str()))
            .bind(column(refunds(), |refund| refund.order_id.as_str()))
            .bind(column(refunds(), |refund| {
                refund.trade_no.as_ref().map(TradeNo::as_str)
            }))
            .bind(column(refunds(), |refund| <&str>::from(refund.status)))
            .bind(column(refunds(), |refund| refund.amount_minor))
            .bind(column(refunds(), |refund| refund.currency.as_str()));
        self.execute(insert).await.map(drop)
    }

    async fn update_refunds(&mut self, now: Timestamp, updates: &[RefundUpdate<'_>]) -> Result<()> {
        const UPDATE: &str = "
            UPDATE refund
            SET status = new.status,
                trade_no = new.trade_no,
                amount_minor = new.amount_minor,
                currency = new.currency,
                updated_at = $1
            FROM unnest($2::text[], $3::text[], $4::text[], $5::text[], $6::text[], $7::bigint[],
                    $8::text[])
                AS new (provider, refund_no, was, status, trade_no, amount_minor, currency)
            WHERE refund.provider = new.provider AND refund.refund_no = new.refund_no
                AND refund.status = new.was";
        if updates.is_empty() {
            return Ok(());
        }
        let refunds = || updates.iter().map(|update| update.refund);
        let update = sqlx::query(UPDATE)
            .bind(now.0)
            .bind(column(refunds(), |refund| refund.provider.as_str()))
            .bind(column(refunds(), |refund| refund.refund_no.as_str()))
            .bind(column(updates, |update| <&str>::from(update.was)))
            .bind(column(refunds(), |refund| <&str>::from(refund.status)))
            .bind(column(refunds(), |refund| {
                refund.trade_no.as_ref().map(TradeNo::as_str)
            }))
            .bind(column(refunds(), |refund| refund.amount_minor))
            .bind(column(refunds(), |refund| refund.currency.as_str()));
        let written = self.execute(update).await?;
        all_written("refund", written, updates.len())
    }
}

fn texts<'i>(ids: &[&'i OrderId]) -> Vec<&'i str> {
    column(ids.iter().copied(), OrderId::as_str)
}

fn order(row: &PgRow) -> Result<Order> {
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

pub(super) fn payment(row: &PgRow) -> Result<Payment> {
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

pub(super) fn refund(row: &PgRow) -> Result<Refund> {
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
