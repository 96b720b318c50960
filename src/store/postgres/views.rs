//! What clients read. Nothing here writes or locks.

use super::PostgresStore;
use super::accounts::account;
use super::history::SNAPSHOT;
use super::history::order_summary;
use super::inventory::stock;
use super::orders::{payment, refund};
use super::pool::Pooled;
use super::set::{Reader, column};
use crate::domain::account::Account;
use crate::domain::event::OrderLine;
use crate::domain::inventory::Stock;
use crate::domain::order::Step;
use crate::domain::{Fingerprint, Key, OrderId, RoleName, SkuId, Timestamp, UserId};
use crate::store::{OrderView, PastStep, Recorded, Result, Views};
use async_trait::async_trait;
use sqlx::postgres::PgRow;

#[async_trait]
impl Views for PostgresStore {
    async fn order_view(&self, order_id: &OrderId) -> Result<Option<OrderView>> {
        const LINES: &str = "
            SELECT line_no, sku_id, qty, unit_price_minor, amount_minor, charge = 1
            FROM order_line
            WHERE order_id = $1
            ORDER BY line_no";
        const PAYMENTS: &str = "
            SELECT provider, trade_no, order_id, status, trade_status, amount_minor, currency
            FROM payment
            WHERE order_id = $1
            ORDER BY provider, trade_no";
        const REFUNDS: &str = "
            SELECT provider, refund_no, order_id, trade_no, status, amount_minor, currency
            FROM refund
            WHERE order_id = $1
            ORDER BY provider, refund_no";
        const HISTORY: &str = "
            SELECT version, from_status, to_status, key, at
            FROM order_transition
            WHERE order_id = $1
            ORDER BY version";
        let mut tx = self.database.begin(SNAPSHOT).await?;
        let Some(summary) = order_summary(&mut tx, order_id.as_str()).await? else {
            tx.end("COMMIT").await?;
            return Ok(None);
        };
        let view = OrderView {
            summary,
            lines: of_order(&mut tx, LINES, order_id, line).await?,
            payments: of_order(&mut tx, PAYMENTS, order_id, payment).await?,
            refunds: of_order(&mut tx, REFUNDS, order_id, refund).await?,
            history: of_order(&mut tx, HISTORY, order_id, step).await?,
        };
        tx.end("COMMIT").await?;
        Ok(Some(view))
    }

    async fn stock_of(&self, sku_id: &SkuId) -> Result<Option<Stock>> {
        const STOCK: &str = "SELECT sku_id, available, version FROM stock WHERE sku_id = $1";
        let select = sqlx::query(STOCK).bind(sku_id.as_str());
        let rows = self.database.fetch(select).await?;
        rows.first().map(stock).transpose()
    }

    async fn accounts_of(&self, user_id: &UserId) -> Result<Vec<Account>> {
        const ACCOUNTS: &str = "
            SELECT user_id, kind, balance, version
            FROM account
            WHERE user_id = $1
            ORDER BY kind";
        let select = sqlx::query(ACCOUNTS).bind(user_id.as_str());
        let rows = self.database.fetch(select).await?;
        rows.iter().map(account).collect()
    }

    async fn answers(&self, requests: &[&Key]) -> Result<Vec<Recorded>> {
        // MATERIALIZED: the role comes with each row. By a parameter the server would go through all claims
        // of the role, as long as it takes the table for a small one.
        const ANSWERS: &str = "
            WITH asked AS MATERIALIZED (
                SELECT $1::text AS role, key FROM unnest($2::text[]) AS asked (key))
            SELECT claim.key, claim.fingerprint, claim.detail
            FROM asked
            JOIN idempotent_record AS claim ON claim.role = asked.role AND claim.key = asked.key";
        if requests.is_empty() {
            return Ok(Vec::new());
        }
        let select = sqlx::query(ANSWERS)
            .bind(RoleName::API.as_str())
            .bind(column(requests.iter().copied(), Key::as_str));
        let rows = self.database.fetch(select).await?;
        rows.iter().map(recorded).collect()
    }
}

async fn of_order<T>(
    connection: &mut Pooled,
    statement: &'static str,
    order_id: &OrderId,
    read: fn(&PgRow) -> Result<T>,
) -> Result<Vec<T>> {
    let rows = connection
        .fetch(sqlx::query(statement).bind(order_id.as_str()))
        .await?;
    rows.iter().map(read).collect()
}

fn line(row: &PgRow) -> Result<OrderLine> {
    let row = Reader::new(row, "order_line", 1);
    Ok(OrderLine {
        sku_id: row.parse(1)?,
        qty: row.get(2)?,
        unit_price_minor: row.get(3)?,
        amount_minor: row.get(4)?,
        charge: row.get(5)?,
    })
}

fn step(row: &PgRow) -> Result<PastStep> {
    let row = Reader::new(row, "order_transition", 1);
    Ok(PastStep {
        step: Step {
            from: row.parse_optional(1)?,
            to: row.parse(2)?,
            version: row.get(0)?,
        },
        key: Key::stored(row.get(3)?),
        at: Timestamp(row.get(4)?),
    })
}

fn recorded(row: &PgRow) -> Result<Recorded> {
    let row = Reader::new(row, "idempotent_record", 1);
    let fingerprint: &[u8] = row.get(1)?;
    Ok(Recorded {
        key: Key::stored(row.get(0)?),
        fingerprint: Fingerprint::from_bytes(fingerprint).ok_or_else(|| {
            let bytes = fingerprint.len();
            row.corrupt(&format!("the fingerprint has {bytes} bytes, not 32"))
        })?,
        detail: row.get(2)?,
    })
}
