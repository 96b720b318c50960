//! `stock`, `reservation`, `deduction_flow`.

use super::MySqlTx;
use super::set::{Reader, json_by, keys};
use crate::domain::inventory::{Flow, Reservation, ReservationStatus, Stock};
use crate::domain::{Key, OrderId, SkuId, Timestamp};
use crate::store::error::all_written;
use crate::store::{Inventory, Result, StockUpdate};
use async_trait::async_trait;
use sqlx::mysql::MySqlRow;

#[async_trait]
impl Inventory for MySqlTx {
    async fn load_reservations(&mut self, ids: &[&OrderId]) -> Result<Vec<Reservation>> {
        const LOAD: &str = "
            SELECT r.order_id, r.status, r.version
            FROM JSON_TABLE(?, '$[*]' COLUMNS (order_id VARBINARY(512) PATH '$')) AS wanted
            STRAIGHT_JOIN reservation AS r FORCE INDEX (PRIMARY) ON r.order_id = wanted.order_id
            FOR UPDATE";
        if ids.is_empty() {
            return Ok(Vec::new());
        }
        let set = keys(ids.iter().map(|id| id.as_str()))?;
        let rows = self.fetch(sqlx::query(LOAD).bind(set)).await?;
        rows.iter().map(reservation).collect()
    }

    async fn load_stock(&mut self, skus: &[&SkuId]) -> Result<Vec<Stock>> {
        const LOAD: &str = "
            SELECT s.sku_id, s.available, s.version
            FROM JSON_TABLE(?, '$[*]' COLUMNS (sku_id VARBINARY(512) PATH '$')) AS wanted
            STRAIGHT_JOIN stock AS s FORCE INDEX (PRIMARY) ON s.sku_id = wanted.sku_id
            FOR UPDATE";
        if skus.is_empty() {
            return Ok(Vec::new());
        }
        let set = keys(skus.iter().map(|sku| sku.as_str()))?;
        let rows = self.fetch(sqlx::query(LOAD).bind(set)).await?;
        rows.iter().map(stock).collect()
    }

    // The keys of both halves first, each once, then their rows. Flows are never changed.
    async fn load_flows(&mut self, ids: &[&OrderId], flow_ids: &[&Key]) -> Result<Vec<Flow>> {
        const LOAD: &str = "
            SELECT f.flow_id, f.order_id, f.sku_id, f.action, f.qty, f.available_after
            FROM (
                SELECT f.flow_id
                FROM JSON_TABLE(?, '$[*]' COLUMNS (order_id VARBINARY(512) PATH '$')) AS wanted
                STRAIGHT_JOIN deduction_flow AS f FORCE INDEX (deduction_flow_order)
                    ON f.order_id = wanted.order_id
                UNION
                SELECT wanted.flow_id
                FROM JSON_TABLE(?, '$[*]' COLUMNS (flow_id VARBINARY(191) PATH '$')) AS wanted) AS number
            STRAIGHT_JOIN deduction_flow AS f FORCE INDEX (PRIMARY) ON f.flow_id = number.flow_id";
        if ids.is_empty() && flow_ids.is_empty() {
            return Ok(Vec::new());
        }
        let orders = keys(ids.iter().map(|id| id.as_str()))?;
        let flow_ids = keys(flow_ids.iter().map(|id| id.as_str()))?;
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
            SELECT new.order_id, new.status, new.version, ?, ?
            FROM JSON_TABLE(?, '$[*]' COLUMNS (
                order_id VARBINARY(512) PATH '$[0]',
                status VARBINARY(16) PATH '$[1]',
                version BIGINT PATH '$[2]')) AS new";
        if reservations.is_empty() {
            return Ok(());
        }
        let set = json_by(
            reservations.iter().map(|reservation| {
                let status = <&str>::from(reservation.status);
                (&reservation.order_id, status, reservation.version)
            }),
            |a, b| a.0.cmp(b.0),
        )?;
        let insert = sqlx::query(INSERT).bind(now.0).bind(now.0).bind(set);
        self.execute(insert).await.map(drop)
    }

    // Differs from Postgres as hold_absent_orders does.
    async fn hold_absent_reservations(&mut self, ids: &[&OrderId]) -> Result<()> {
        const HOLD: &str = "
            INSERT INTO reservation (order_id, status, version, created_at, updated_at)
            SELECT absent.order_id, 'REJECTED', 1, 0, 0
            FROM JSON_TABLE(?, '$[*]' COLUMNS (order_id VARBINARY(512) PATH '$')) AS absent";
        const LEAVE_ABSENT: &str = "
            DELETE r
            FROM JSON_TABLE(?, '$[*]' COLUMNS (order_id VARBINARY(512) PATH '$')) AS absent
            STRAIGHT_JOIN reservation AS r FORCE INDEX (PRIMARY) ON r.order_id = absent.order_id";
        if ids.is_empty() {
            return Ok(());
        }
        let set = keys(ids.iter().map(|id| id.as_str()))?;
        self.hold("reservation", HOLD, LEAVE_ABSENT, set).await
    }

    async fn update_reservations(
        &mut self,
        now: Timestamp,
        updates: &[(ReservationStatus, i64, &Reservation)],
    ) -> Result<()> {
        const UPDATE: &str = "
            UPDATE JSON_TABLE(?, '$[*]' COLUMNS (
                order_id VARBINARY(512) PATH '$[0]',
                was VARBINARY(16) PATH '$[1]',
                was_version BIGINT PATH '$[2]',
                status VARBINARY(16) PATH '$[3]',
                version BIGINT PATH '$[4]')) AS new
            STRAIGHT_JOIN reservation AS r FORCE INDEX (PRIMARY) ON r.order_id = new.order_id
            SET r.status = new.status, r.version = new.version, r.updated_at = ?
            WHERE r.status = new.was AND r.version = new.was_version";
        if updates.is_empty() {
            return Ok(());
        }
        let set = json_by(
            updates.iter().map(|(was, was_version, new)| {
                let (was, status) = (<&str>::from(*was), <&str>::from(new.status));
                (&new.order_id, was, was_version, status, new.version)
            }),
            |a, b| a.0.cmp(b.0),
        )?;
        let update = sqlx::query(UPDATE).bind(set).bind(now.0);
        let written = self.execute(update).await?;
        all_written("reservation", written, updates.len())
    }

    async fn insert_stock(&mut self, now: Timestamp, stock: &[&Stock]) -> Result<()> {
        const INSERT: &str = "
            INSERT INTO stock (sku_id, available, version, updated_at)
            SELECT new.sku_id, new.available, new.version, ?
            FROM JSON_TABLE(?, '$[*]' COLUMNS (
                sku_id VARBINARY(512) PATH '$[0]',
                available BIGINT PATH '$[1]',
                version BIGINT PATH '$[2]')) AS new";
        if stock.is_empty() {
            return Ok(());
        }
        let set = json_by(
            stock.iter().map(|s| (&s.sku_id, s.available, s.version)),
            |a, b| a.0.cmp(b.0),
        )?;
        let insert = sqlx::query(INSERT).bind(now.0).bind(set);
        self.execute(insert).await.map(drop)
    }

    async fn update_stock(&mut self, now: Timestamp, updates: &[StockUpdate<'_>]) -> Result<()> {
        const UPDATE: &str = "
            UPDATE JSON_TABLE(?, '$[*]' COLUMNS (
                sku_id VARBINARY(512) PATH '$[0]',
                was_version BIGINT PATH '$[1]',
                available BIGINT PATH '$[2]',
                version BIGINT PATH '$[3]')) AS new
            STRAIGHT_JOIN stock AS s FORCE INDEX (PRIMARY) ON s.sku_id = new.sku_id
            SET s.available = new.available, s.version = new.version, s.updated_at = ?
            WHERE s.version = new.was_version";
        if updates.is_empty() {
            return Ok(());
        }
        let set = json_by(
            updates.iter().map(|update| {
                let stock = update.stock;
                (
                    &stock.sku_id,
                    update.was_version,
                    stock.available,
                    stock.version,
                )
            }),
            |a, b| a.0.cmp(b.0),
        )?;
        let update = sqlx::query(UPDATE).bind(set).bind(now.0);
        let written = self.execute(update).await?;
        all_written("stock", written, updates.len())
    }

    async fn insert_flows(&mut self, now: Timestamp, flows: &[Flow]) -> Result<()> {
        const INSERT: &str = "
            INSERT INTO deduction_flow (flow_id, order_id, sku_id, action, qty, available_after, at)
            SELECT new.flow_id, new.order_id, new.sku_id, new.action, new.qty, new.available_after, ?
            FROM JSON_TABLE(?, '$[*]' COLUMNS (
                flow_id VARBINARY(191) PATH '$[0]',
                order_id VARBINARY(512) PATH '$[1]',
                sku_id VARBINARY(512) PATH '$[2]',
                action VARBINARY(16) PATH '$[3]',
                qty BIGINT PATH '$[4]',
                available_after BIGINT PATH '$[5]')) AS new";
        if flows.is_empty() {
            return Ok(());
        }
        let set = json_by(
            flows.iter().map(|flow| {
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
            }),
            |a, b| a.0.cmp(b.0),
        )?;
        self.database().fits(set.len())?;
        let insert = sqlx::query(INSERT).bind(now.0).bind(set);
        self.execute(insert).await.map(drop)
    }
}

fn reservation(row: &MySqlRow) -> Result<Reservation> {
    let row = Reader::new(row, "reservation", 1);
    Ok(Reservation {
        order_id: row.parse(0)?,
        status: row.parse(1)?,
        version: row.get(2)?,
    })
}

pub(super) fn stock(row: &MySqlRow) -> Result<Stock> {
    let row = Reader::new(row, "stock", 1);
    Ok(Stock {
        sku_id: row.parse(0)?,
        available: row.get(1)?,
        version: row.get(2)?,
    })
}

fn flow(row: &MySqlRow) -> Result<Flow> {
    let row = Reader::new(row, "deduction_flow", 1);
    Ok(Flow {
        flow_id: Key::stored(row.text(0)?),
        order_id: row.parse_optional(1)?,
        sku_id: row.parse(2)?,
        action: row.parse(3)?,
        qty: row.get(4)?,
        available_after: row.get(5)?,
    })
}
