//! `stock`, `reservation`, `deduction_flow`.

use super::SqliteTx;
use super::set::{Reader, json};
use crate::domain::inventory::{Flow, Reservation, ReservationStatus, Stock};
use crate::domain::{Key, OrderId, SkuId, Timestamp};
use crate::store::error::all_written;
use crate::store::{Inventory, Result, StockUpdate};
use async_trait::async_trait;
use sqlx::sqlite::SqliteRow;

#[async_trait]
impl Inventory for SqliteTx {
    async fn load_reservations(&mut self, ids: &[&OrderId]) -> Result<Vec<Reservation>> {
        const LOAD: &str = "
            SELECT order_id, status, version
            FROM reservation
            WHERE order_id IN (SELECT value FROM json_each(?1))";
        if ids.is_empty() {
            return Ok(Vec::new());
        }
        let set = json(ids.iter().map(|id| id.as_str()))?;
        let rows = self.fetch(sqlx::query(LOAD).bind(set)).await?;
        rows.iter().map(reservation).collect()
    }

    async fn load_stock(&mut self, skus: &[&SkuId]) -> Result<Vec<Stock>> {
        const LOAD: &str = "
            SELECT sku_id, available, version
            FROM stock
            WHERE sku_id IN (SELECT value FROM json_each(?1))";
        if skus.is_empty() {
            return Ok(Vec::new());
        }
        let set = json(skus.iter().map(|sku| sku.as_str()))?;
        let rows = self.fetch(sqlx::query(LOAD).bind(set)).await?;
        rows.iter().map(stock).collect()
    }

    // UNION, not OR: each half finds its rows by an index, and a row of both is returned once.
    async fn load_flows(&mut self, ids: &[&OrderId], flow_ids: &[&Key]) -> Result<Vec<Flow>> {
        const LOAD: &str = "
            SELECT flow_id, order_id, sku_id, action, qty, available_after
            FROM deduction_flow
            WHERE order_id IN (SELECT value FROM json_each(?1))
            UNION
            SELECT flow_id, order_id, sku_id, action, qty, available_after
            FROM deduction_flow
            WHERE flow_id IN (SELECT value FROM json_each(?2))";
        if ids.is_empty() && flow_ids.is_empty() {
            return Ok(Vec::new());
        }
        let orders = json(ids.iter().map(|id| id.as_str()))?;
        let flow_ids = json(flow_ids.iter().map(|id| id.as_str()))?;
        let select = sqlx::query(LOAD).bind(orders).bind(flow_ids);
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
            SELECT value ->> 0, value ->> 1, value ->> 2, ?1, ?1
            FROM json_each(?2)";
        if reservations.is_empty() {
            return Ok(());
        }
        let set = json(reservations.iter().map(|reservation| {
            let status = <&str>::from(reservation.status);
            (&reservation.order_id, status, reservation.version)
        }))?;
        let insert = sqlx::query(INSERT).bind(now.0).bind(set);
        self.execute(insert).await.map(drop)
    }

    // A transaction has the write lock from the start: nobody else inserts anything.
    async fn hold_absent_reservations(&mut self, _ids: &[&OrderId]) -> Result<()> {
        Ok(())
    }

    async fn update_reservations(
        &mut self,
        now: Timestamp,
        updates: &[(ReservationStatus, i64, &Reservation)],
    ) -> Result<()> {
        const UPDATE: &str = "
            UPDATE reservation
            SET status = new.value ->> 3, version = new.value ->> 4, updated_at = ?1
            FROM json_each(?2) AS new
            WHERE order_id = new.value ->> 0 AND status = new.value ->> 1 AND version = new.value ->> 2";
        if updates.is_empty() {
            return Ok(());
        }
        let set = json(updates.iter().map(|(was, was_version, new)| {
            let (was, status) = (<&str>::from(*was), <&str>::from(new.status));
            (&new.order_id, was, was_version, status, new.version)
        }))?;
        let update = sqlx::query(UPDATE).bind(now.0).bind(set);
        let written = self.execute(update).await?;
        all_written("reservation", written, updates.len())
    }

    async fn insert_stock(&mut self, now: Timestamp, stock: &[&Stock]) -> Result<()> {
        const INSERT: &str = "
            INSERT INTO stock (sku_id, available, version, updated_at)
            SELECT value ->> 0, value ->> 1, value ->> 2, ?1
            FROM json_each(?2)";
        if stock.is_empty() {
            return Ok(());
        }
        let set = json(stock.iter().map(|s| (&s.sku_id, s.available, s.version)))?;
        let insert = sqlx::query(INSERT).bind(now.0).bind(set);
        self.execute(insert).await.map(drop)
    }

    async fn update_stock(&mut self, now: Timestamp, updates: &[StockUpdate<'_>]) -> Result<()> {
        const UPDATE: &str = "
            UPDATE stock
            SET available = new.value ->> 2, version = new.value ->> 3, updated_at = ?1
            FROM json_each(?2) AS new
            WHERE sku_id = new.value ->> 0 AND version = new.value ->> 1";
        if updates.is_empty() {
            return Ok(());
        }
        let set = json(updates.iter().map(|update| {
            let stock = update.stock;
            (
                &stock.sku_id,
                update.was_version,
                stock.available,
                stock.version,
            )
        }))?;
        let update = sqlx::query(UPDATE).bind(now.0).bind(set);
        let written = self.execute(update).await?;
        all_written("stock", written, updates.len())
    }

    async fn insert_flows(&mut self, now: Timestamp, flows: &[Flow]) -> Result<()> {
        const INSERT: &str = "
            INSERT INTO deduction_flow (flow_id, order_id, sku_id, action, qty, available_after, at)
            SELECT value ->> 0, value ->> 1, value ->> 2, value ->> 3, value ->> 4, value ->> 5, ?1
            FROM json_each(?2)";
        if flows.is_empty() {
            return Ok(());
        }
        let set = json(flows.iter().map(|flow| {
            let action = <&str>::from(flow.action);
            let (flow_id, order_id, sku_id) = (&flow.flow_id, &flow.order_id, &flow.sku_id);
            (
                flow_id,
                order_id,
                sku_id,
                action,
                flow.qty,
                flow.available_after,
            )
        }))?;
        let insert = sqlx::query(INSERT).bind(now.0).bind(set);
        self.execute(insert).await.map(drop)
    }
}

fn reservation(row: &SqliteRow) -> Result<Reservation> {
    let row = Reader::new(row, "reservation", 1);
    Ok(Reservation {
        order_id: row.parse(0)?,
        status: row.parse(1)?,
        version: row.get(2)?,
    })
}

pub(super) fn stock(row: &SqliteRow) -> Result<Stock> {
    let row = Reader::new(row, "stock", 1);
    Ok(Stock {
        sku_id: row.parse(0)?,
        available: row.get(1)?,
        version: row.get(2)?,
    })
}

fn flow(row: &SqliteRow) -> Result<Flow> {
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
