//! `stock`, `reservation`, `deduction_flow`.

use super::PostgresTx;
use super::set::{Reader, all_absent, column};
use crate::domain::inventory::{Flow, Reservation, ReservationStatus, Stock};
use crate::domain::{Key, OrderId, SkuId, Timestamp};
use crate::store::error::all_written;
use crate::store::{Inventory, Result, StockUpdate};
use async_trait::async_trait;
use sqlx::postgres::PgRow;

#[async_trait]
impl Inventory for PostgresTx {
    async fn load_reservations(&mut self, ids: &[&OrderId]) -> Result<Vec<Reservation>> {
        const LOAD: &str = "
            SELECT order_id, status, version
            FROM reservation
            WHERE order_id = ANY ($1)
            ORDER BY order_id
            FOR UPDATE";
        if ids.is_empty() {
            return Ok(Vec::new());
        }
        let select = sqlx::query(LOAD).bind(texts(ids));
        let rows = self.fetch(select).await?;
        rows.iter().map(reservation).collect()
    }

    async fn load_stock(&mut self, skus: &[&SkuId]) -> Result<Vec<Stock>> {
        const LOAD: &str = "
            SELECT sku_id, available, version
            FROM stock
            WHERE sku_id = ANY ($1)
            ORDER BY sku_id
            FOR UPDATE";
        if skus.is_empty() {
            return Ok(Vec::new());
        }
        let select = sqlx::query(LOAD).bind(column(skus.iter().copied(), SkuId::as_str));
        let rows = self.fetch(select).await?;
        rows.iter().map(stock).collect()
    }

    // UNION, not OR: each half finds its rows by an index, and a row of both is returned once.
    async fn load_flows(&mut self, ids: &[&OrderId], flow_ids: &[&Key]) -> Result<Vec<Flow>> {
        const LOAD: &str = "
            SELECT flow_id, order_id, sku_id, action, qty, available_after
            FROM deduction_flow
            WHERE order_id = ANY ($1)
            UNION
            SELECT flow_id, order_id, sku_id, action, qty, available_after
            FROM deduction_flow
            WHERE flow_id = ANY ($2)";
        if ids.is_empty() && flow_ids.is_empty() {
            return Ok(Vec::new());
        }
        let select = sqlx::query(LOAD)
            .bind(texts(ids))
            .bind(column(flow_ids.iter().copied(), Key::as_str));
        let rows = self.fetch(select).await?;
        rows.iter().map(flow).collect()
    }

    async fn insert_reservations(
        &mut self,
        now: Timestamp,
        reservations: &[&Reservation],
    ) -> Result<()> {
        const INSERT: &str = "
            INSERT INTO reservation (order_id, status, version, created_at, updated_at)
            SELECT order_id, status, version, $1, $1
            FROM unnest($2::text[], $3::text[], $4::bigint[]) AS new (order_id, status, version)
            ORDER BY order_id COLLATE \"C\"";
        if reservations.is_empty() {
            return Ok(());
        }
        let reservations = || reservations.iter().copied();
        let insert = sqlx::query(INSERT)
            .bind(now.0)
            .bind(column(reservations(), |new| new.order_id.as_str()))
            .bind(column(reservations(), |new| <&str>::from(new.status)))
            .bind(column(reservations(), |new| new.version));
        self.execute(insert).await.map(drop)
    }

    // Rows in their place, until this transaction has ended: whoever inserts one of these keys waits
    // for that.
    async fn hold_absent_reservations(&mut self, ids: &[&OrderId]) -> Result<()> {
        const HOLD: &str = "
            INSERT INTO reservation (order_id, status, version, created_at, updated_at)
            SELECT absent.order_id, 'REJECTED', 1, 0, 0
            FROM unnest($1::text[]) AS absent (order_id)
            ORDER BY absent.order_id COLLATE \"C\"
            ON CONFLICT (order_id) DO NOTHING";
        const LET_GO: &str = "DELETE FROM reservation WHERE order_id = ANY ($1)";
        if ids.is_empty() {
            return Ok(());
        }
        let ids = texts(ids);
        let held = self.execute(sqlx::query(HOLD).bind(&ids)).await?;
        all_absent("reservation", held, ids.len())?;
        self.execute(sqlx::query(LET_GO).bind(&ids)).await.map(drop)
    }

    async fn update_reservations(
        &mut self,
        now: Timestamp,
        updates: &[(ReservationStatus, i64, &Reservation)],
    ) -> Result<()> {
        const UPDATE: &str = "
            UPDATE reservation
            SET status = new.status, version = new.version, updated_at = $1
            FROM unnest($2::text[], $3::text[], $4::bigint[], $5::text[], $6::bigint[])
                AS new (order_id, was, was_version, status, version)
            WHERE reservation.order_id = new.order_id AND reservation.status = new.was
                AND reservation.version = new.was_version";
        if updates.is_empty() {
            return Ok(());
        }
        let update = sqlx::query(UPDATE)
            .bind(now.0)
            .bind(column(updates, |(_, _, new)| new.order_id.as_str()))
            .bind(column(updates, |(was, _, _)| <&str>::from(*was)))
            .bind(column(updates, |(_, was_version, _)| *was_version))
            .bind(column(updates, |(_, _, new)| <&str>::from(new.status)))
            .bind(column(updates, |(_, _, new)| new.version));
        let written = self.execute(update).await?;
        all_written("reservation", written, updates.len())
    }

    async fn insert_stock(&mut self, now: Timestamp, stock: &[&Stock]) -> Result<()> {
        const INSERT: &str = "
            INSERT INTO stock (sku_id, available, version, updated_at)
            SELECT sku_id, available, version, $1
            FROM unnest($2::text[], $3::bigint[], $4::bigint[]) AS new (sku_id, available, version)
            ORDER BY sku_id COLLATE \"C\"";
        if stock.is_empty() {
            return Ok(());
        }
        let stock = || stock.iter().copied();
        let insert = sqlx::query(INSERT)
            .bind(now.0)
            .bind(column(stock(), |new| new.sku_id.as_str()))
            .bind(column(stock(), |new| new.available))
            .bind(column(stock(), |new| new.version));
        self.execute(insert).await.map(drop)
    }

    async fn update_stock(&mut self, now: Timestamp, updates: &[StockUpdate<'_>]) -> Result<()> {
        const UPDATE: &str = "
            UPDATE stock
            SET available = new.available, version = new.version, updated_at = $1
            FROM unnest($2::text[], $3::bigint[], $4::bigint[], $5::bigint[])
                AS new (sku_id, was_version, available, version)
            WHERE stock.sku_id = new.sku_id AND stock.version = new.was_version";
        if updates.is_empty() {
            return Ok(());
        }
        let update = sqlx::query(UPDATE)
            .bind(now.0)
            .bind(column(updates, |update| update.stock.sku_id.as_str()))
            .bind(column(updates, |update| update.was_version))
            .bind(column(updates, |update| update.stock.available))
            .bind(column(updates, |update| update.stock.version));
        let written = self.execute(update).await?;
        all_written("stock", written, updates.len())
    }

    async fn insert_flows(&mut self, now: Timestamp, flows: &[Flow]) -> Result<()> {
        const INSERT: &str = "
            INSERT INTO deduction_flow (flow_id, order_id, sku_id, action, qty, available_after, at)
            SELECT flow_id, order_id, sku_id, action, qty, available_after, $1
            FROM unnest($2::text[], $3::text[], $4::text[], $5::text[], $6::bigint[], $7::bigint[])
                AS new (flow_id, order_id, sku_id, action, qty, available_after)
            ORDER BY flow_id COLLATE \"C\"";
        if flows.is_empty() {
            return Ok(());
        }
        let insert = sqlx::query(INSERT)
            .bind(now.0)
            .bind(column(flows, |flow| flow.flow_id.as_str()))
            .bind(column(flows, |flow| {
                flow.order_id.as_ref().map(OrderId::as_str)
            }))
            .bind(column(flows, |flow| flow.sku_id.as_str()))
            .bind(column(flows, |flow| <&str>::from(flow.action)))
            .bind(column(flows, |flow| flow.qty))
            .bind(column(flows, |flow| flow.available_after));
        self.execute(insert).await.map(drop)
    }
}

fn texts<'i>(ids: &[&'i OrderId]) -> Vec<&'i str> {
    column(ids.iter().copied(), OrderId::as_str)
}

fn reservation(row: &PgRow) -> Result<Reservation> {
    let row = Reader::new(row, "reservation", 1);
    Ok(Reservation {
        order_id: row.parse(0)?,
        status: row.parse(1)?,
        version: row.get(2)?,
    })
}

pub(super) fn stock(row: &PgRow) -> Result<Stock> {
    let row = Reader::new(row, "stock", 1);
    Ok(Stock {
        sku_id: row.parse(0)?,
        available: row.get(1)?,
        version: row.get(2)?,
    })
}

fn flow(row: &PgRow) -> Result<Flow> {
    let row = Reader::new(row, "deduction_flow", 1);
    Ok(Flow {
        flow_id: Key::stored(row.get(0)?),
        order_id: row.parse_optional(1)?,
        sku_id: row.parse(2)?,
        action: row.parse(3)?,
        qty: row.get(4)?,
        available_after: row.get(5)?,
    })
}
