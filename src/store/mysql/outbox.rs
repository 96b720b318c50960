//! `outbox`, `lease`.

use super::set::{Bytes, Reader, json, json_by, keys, text_of};
use super::{MySqlStore, MySqlTx};
use crate::domain::{RoleName, Timestamp};
use crate::store::{Lease, Leased, NewOutbox, Outbox, OutboxAppend, OutboxRow, Result, Tx};
use async_trait::async_trait;
use sqlx::mysql::MySqlRow;
use std::time::Duration;

/// How much is kept of what the broker said, in characters.
const LAST_ERROR_CHARS: usize = 500;

#[async_trait]
impl OutboxAppend for MySqlTx {
    async fn append(&mut self, now: Timestamp, rows: &[NewOutbox]) -> Result<()> {
        // JSON_TABLE gives the rows in their order, so that they are numbered in it. ORDER BY would
        // copy every message once more.
        const APPEND: &str = "
            INSERT INTO outbox (aggregate, addressee, event_type, message_id, headers, message, created_at)
            SELECT new.aggregate, new.addressee, new.event_type, new.message_id, new.headers,
                SUBSTRING(messages.bytes, new.start, new.length), ?
            FROM (SELECT CAST(? AS BINARY) AS bytes) AS messages
            STRAIGHT_JOIN JSON_TABLE(?, '$[*]' COLUMNS (
                aggregate LONGBLOB PATH '$[0]',
                addressee LONGBLOB PATH '$[1]',
                event_type LONGBLOB PATH '$[2]',
                message_id LONGBLOB PATH '$[3]',
                headers LONGTEXT PATH '$[4]',
                start BIGINT PATH '$[5]',
                length BIGINT PATH '$[6]')) AS new";
        if rows.is_empty() {
            return Ok(());
        }
        let mut messages = Bytes::default();
        let rows = rows.iter().map(|row| {
            let addressee = row.addressee.as_ref().map(RoleName::as_str);
            let (start, length) = messages.add(&row.message);
            let (event_type, message_id) = (&row.event_type, &row.message_id);
            let headers = text_of(&row.headers)?;
            Ok((
                &row.aggregate,
                addressee,
                event_type,
                message_id,
                headers,
                start,
                length,
            ))
        });
        let set = json(rows.collect::<Result<Vec<_>>>()?)?;
        self.database().fits(messages.len() + set.len())?;
        let insert = sqlx::query(APPEND)
            .bind(now.0)
            .bind(messages.into_parameter())
            .bind(set);
        self.execute(insert).await.map(drop)
    }
}

#[async_trait]
impl Leased for MySqlTx {
    async fn holds_lease(&mut self, name: &str, lease: Lease, now: Timestamp) -> Result<bool> {
        const HOLDS: &str =
            "SELECT 1 FROM lease WHERE name = ? AND fence = ? AND until > ? FOR UPDATE";
        let select = sqlx::query(HOLDS).bind(name).bind(lease.fence).bind(now.0);
        Ok(!self.fetch(select).await?.is_empty())
    }
}

#[async_trait]
impl Outbox for MySqlStore {
    // Free if it has ended; its holder may renew it as often as it likes. The columns are set from
    // left to right, each seeing those before it.
    async fn lease(&self, name: &str, holder: &str, duration: Duration) -> Result<Option<Lease>> {
        const LEASE: &str = "
            INSERT INTO lease (name, holder, fence, until)
            SELECT asked.name, asked.holder, 1, asked.until
            FROM (SELECT ? AS name, CAST(? AS BINARY) AS holder, CAST(? AS SIGNED) AS until,
                CAST(? AS SIGNED) AS now) AS asked
            ON DUPLICATE KEY UPDATE
                fence = lease.fence + (lease.until <= asked.now),
                holder = IF(lease.until <= asked.now, asked.holder, lease.holder),
                until = IF(lease.holder = asked.holder, asked.until, lease.until)";
        const HELD: &str = "SELECT fence, until FROM lease WHERE name = ? AND holder = ?";
        let now = self.database.now().await?;
        let mut tx = MySqlTx::begin(&self.database).await?;
        let take = sqlx::query(LEASE)
            .bind(name)
            .bind(holder)
            .bind(now.plus(duration).0)
            .bind(now.0);
        tx.execute(take).await?;
        let held = tx.fetch(sqlx::query(HELD).bind(name).bind(holder)).await?;
        Box::new(tx).commit().await?;
        let Some(row) = held.first() else {
            return Ok(None);
        };
        let row = Reader::new(row, "lease", 0);
        Ok(Some(Lease {
            fence: row.get(0)?,
            until: Timestamp(row.get(1)?),
        }))
    }

    async fn give_back_lease(&self, name: &str, lease: Lease) -> Result<()> {
        const GIVE_BACK: &str = "UPDATE lease SET until = 0 WHERE name = ? AND fence = ?";
        let update = sqlx::query(GIVE_BACK).bind(name).bind(lease.fence);
        self.database.execute(update).await.map(drop)
    }

    async fn outbox_head(&self, limit: usize) -> Result<Vec<OutboxRow>> {
        const HEAD: &str = "
            SELECT id, aggregate, addressee, event_type, message_id, headers, message, created_at, failures, last_error
            FROM outbox AS head FORCE INDEX (PRIMARY)
            WHERE head.retry_at <= ? AND NOT EXISTS (
                SELECT 1 FROM outbox AS older FORCE INDEX (outbox_waiting)
                WHERE older.aggregate = head.aggregate AND older.id < head.id AND older.retry_at > ?)
            ORDER BY id
            LIMIT ?";
        let now = self.database.now().await?;
        let select = sqlx::query(HEAD)
            .bind(now.0)
            .bind(now.0)
            .bind(i64::try_from(limit).unwrap_or(i64::MAX));
        let rows = self.database.fetch(select).await?;
        rows.iter().map(outbox_row).collect()
    }

    async fn remove_published(&self, name: &str, lease: Lease, ids: &[i64]) -> Result<u64> {
        const REMOVE: &str = "
            DELETE gone
            FROM lease FORCE INDEX (PRIMARY)
            STRAIGHT_JOIN JSON_TABLE(?, '$[*]' COLUMNS (id BIGINT PATH '$')) AS published
            STRAIGHT_JOIN outbox AS gone FORCE INDEX (PRIMARY) ON gone.id = published.id
            WHERE lease.name = ? AND lease.fence = ?";
        if ids.is_empty() {
            return Ok(0);
        }
        let delete = sqlx::query(REMOVE)
            .bind(keys(ids)?)
            .bind(name)
            .bind(lease.fence);
        self.database.execute(delete).await
    }

    async fn postpone(&self, failed: &[(i64, String)], delay: Duration) -> Result<()> {
        const POSTPONE: &str = "
            UPDATE JSON_TABLE(?, '$[*]' COLUMNS (
                id BIGINT PATH '$[0]',
                said LONGBLOB PATH '$[1]')) AS failed
            STRAIGHT_JOIN outbox AS late FORCE INDEX (PRIMARY) ON late.id = failed.id
            SET late.retry_at = ?, late.failures = late.failures + 1, late.last_error = failed.said";
        if failed.is_empty() {
            return Ok(());
        }
        let said = failed.iter().map(|(id, said)| {
            let said: String = said.chars().take(LAST_ERROR_CHARS).collect();
            (*id, said)
        });
        let set = json_by(said, |a, b| a.0.cmp(&b.0))?;
        let retry_at = self.database.now().await?.plus(delay);
        let update = sqlx::query(POSTPONE).bind(set).bind(retry_at.0);
        self.database.execute(update).await.map(drop)
    }

    async fn outbox_depth(&self) -> Result<(u64, Option<Timestamp>)> {
        const DEPTH: &str = "
            SELECT COUNT(*), (SELECT created_at FROM outbox ORDER BY id LIMIT 1) FROM outbox";
        let rows = self.database.fetch(sqlx::query(DEPTH)).await?;
        let Some(row) = rows.first() else {
            return Ok((0, None));
        };
        let row = Reader::new(row, "outbox", 0);
        Ok((row.count(0)?, row.get::<Option<i64>>(1)?.map(Timestamp)))
    }
}

/// Reads `id, aggregate, addressee, event_type, message_id, headers, message, created_at, failures,
/// last_error`.
pub(super) fn outbox_row(row: &MySqlRow) -> Result<OutboxRow> {
    let row = Reader::new(row, "outbox", 1);
    let addressee = row.optional_text(2)?.map(str::to_owned);
    Ok(OutboxRow {
        id: row.get(0)?,
        aggregate: row.text(1)?.to_owned(),
        addressee: addressee.map(RoleName::new),
        event_type: row.text(3)?.to_owned(),
        message_id: row.text(4)?.to_owned(),
        headers: row.json(5)?,
        message: row.get(6)?,
        created_at: Timestamp(row.get(7)?),
        failures: row.get(8)?,
        last_error: row.optional_text(9)?.map(str::to_owned),
    })
}
