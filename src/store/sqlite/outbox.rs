//! `outbox`, `lease`.

use super::set::{Bytes, Reader, json};
use super::{SqliteStore, SqliteTx, from_sqlx};
use crate::domain::{RoleName, Timestamp};
use crate::store::{Lease, Leased, NewOutbox, Outbox, OutboxAppend, OutboxRow, Result};
use async_trait::async_trait;
use sqlx::Sqlite;
use sqlx::query::Query;
use sqlx::sqlite::{SqliteArguments, SqliteRow};
use std::time::Duration;

/// How much is kept of what the broker said, in characters.
const LAST_ERROR_CHARS: usize = 500;

#[async_trait]
impl OutboxAppend for SqliteTx {
    async fn append(&mut self, now: Timestamp, rows: &[NewOutbox]) -> Result<()> {
        // json_each gives the rows in their order, so that they are numbered in it. ORDER BY would
        // copy every message once more.
        const APPEND: &str = "
            INSERT INTO outbox (aggregate, addressee, event_type, message_id, headers, message, created_at)
            SELECT value ->> 0, value ->> 1, value ->> 2, value ->> 3, value ->> 4,
                coalesce(substr(?3, value ->> 5, value ->> 6), x''), ?1
            FROM json_each(?2)";
        if rows.is_empty() {
            return Ok(());
        }
        let mut messages = Bytes::default();
        let set = json(rows.iter().map(|row| {
            let addressee = row.addressee.as_ref().map(RoleName::as_str);
            let (start, length) = messages.add(&row.message);
            let (event_type, message_id) = (&row.event_type, &row.message_id);
            (
                &row.aggregate,
                addressee,
                event_type,
                message_id,
                &row.headers,
                start,
                length,
            )
        }))?;
        let insert = sqlx::query(APPEND)
            .bind(now.0)
            .bind(set)
            .bind(messages.into_parameter());
        self.execute(insert).await.map(drop)
    }
}

#[async_trait]
impl Leased for SqliteTx {
    // Differs from Postgres: the transaction has the write lock, so the row is locked with everything else.
    async fn holds_lease(&mut self, name: &str, lease: Lease, now: Timestamp) -> Result<bool> {
        const HOLDS: &str = "SELECT 1 FROM lease WHERE name = ?1 AND fence = ?2 AND until > ?3";
        let select = sqlx::query(HOLDS).bind(name).bind(lease.fence).bind(now.0);
        Ok(!self.fetch(select).await?.is_empty())
    }
}

#[async_trait]
impl Outbox for SqliteStore {
    // Free if it has ended; its holder may renew it as often as it likes.
    async fn lease(&self, name: &str, holder: &str, duration: Duration) -> Result<Option<Lease>> {
        const LEASE: &str = "
            INSERT INTO lease (name, holder, fence, until)
            VALUES (?1, ?2, 1, ?4)
            ON CONFLICT (name) DO UPDATE
            SET fence = fence + (holder <> excluded.holder OR until <= ?3),
                holder = excluded.holder,
                until = excluded.until
            WHERE holder = excluded.holder OR until <= ?3
            RETURNING fence, until";
        let mut transaction = self.begin_write().await?;
        self.statements.count(2);
        let now = self.database.now();
        let row = sqlx::query(LEASE)
            .bind(name)
            .bind(holder)
            .bind(now.0)
            .bind(now.plus(duration).0)
            .fetch_optional(&mut *transaction)
            .await
            .map_err(from_sqlx)?;
        transaction.commit().await.map_err(from_sqlx)?;
        let Some(row) = row else {
            return Ok(None);
        };
        let row = Reader::new(&row, "lease", 0);
        Ok(Some(Lease {
            fence: row.get(0)?,
            until: Timestamp(row.get(1)?),
        }))
    }

    async fn give_back_lease(&self, name: &str, lease: Lease) -> Result<()> {
        const GIVE_BACK: &str = "UPDATE lease SET until = 0 WHERE name = ?1 AND fence = ?2";
        let update = sqlx::query(GIVE_BACK).bind(name).bind(lease.fence);
        self.write(update).await.map(drop)
    }

    async fn outbox_head(&self, limit: usize) -> Result<Vec<OutboxRow>> {
        // retry_at > 0 says nothing new; it lets the partial index be used.
        const HEAD: &str = "
            SELECT id, aggregate, addressee, event_type, message_id, headers, message, created_at, failures, last_error
            FROM outbox AS row
            WHERE retry_at <= ?1 AND NOT EXISTS (
                SELECT 1 FROM outbox AS older
                WHERE older.aggregate = row.aggregate AND older.id < row.id
                    AND older.retry_at > 0 AND older.retry_at > ?1)
            ORDER BY id
            LIMIT ?2";
        let rows = sqlx::query(HEAD)
            .bind(self.database.now().0)
            .bind(i64::try_from(limit).unwrap_or(i64::MAX))
            .fetch_all(self.readers())
            .await
            .map_err(from_sqlx)?;
        rows.iter().map(outbox_row).collect()
    }

    async fn remove_published(&self, name: &str, lease: Lease, ids: &[i64]) -> Result<u64> {
        const REMOVE: &str = "
            DELETE FROM outbox
            WHERE id IN (SELECT value FROM json_each(?3))
                AND EXISTS (SELECT 1 FROM lease WHERE name = ?1 AND fence = ?2)";
        if ids.is_empty() {
            return Ok(0);
        }
        let delete = sqlx::query(REMOVE)
            .bind(name)
            .bind(lease.fence)
            .bind(json(ids)?);
        self.write(delete).await
    }

    async fn postpone(&self, failed: &[(i64, String)], delay: Duration) -> Result<()> {
        const POSTPONE: &str = "
            UPDATE outbox
            SET retry_at = ?1, failures = failures + 1, last_error = new.value ->> 1
            FROM json_each(?2) AS new
            WHERE outbox.id = new.value ->> 0";
        if failed.is_empty() {
            return Ok(());
        }
        let set = json(failed.iter().map(|(id, said)| {
            let said: String = said.chars().take(LAST_ERROR_CHARS).collect();
            (*id, said)
        }))?;
        let retry_at = self.database.now().plus(delay);
        let update = sqlx::query(POSTPONE).bind(retry_at.0).bind(set);
        self.write(update).await.map(drop)
    }

    async fn outbox_depth(&self) -> Result<(u64, Option<Timestamp>)> {
        const DEPTH: &str = "
            SELECT count(*), (SELECT created_at FROM outbox ORDER BY id LIMIT 1) FROM outbox";
        let row = sqlx::query(DEPTH)
            .fetch_one(self.readers())
            .await
            .map_err(from_sqlx)?;
        let row = Reader::new(&row, "outbox", 0);
        Ok((row.count(0)?, row.get::<Option<i64>>(1)?.map(Timestamp)))
    }
}

impl SqliteStore {
    /// Runs one statement in a transaction of its own; returns how many rows it wrote.
    async fn write(&self, statement: Query<'_, Sqlite, SqliteArguments>) -> Result<u64> {
        let mut transaction = self.begin_write().await?;
        self.statements.count(2);
        let done = statement
            .execute(&mut *transaction)
            .await
            .map_err(from_sqlx)?;
        transaction.commit().await.map_err(from_sqlx)?;
        Ok(done.rows_affected())
    }
}

/// Reads `id, aggregate, addressee, event_type, message_id, headers, message, created_at, failures,
/// last_error`.
pub(super) fn outbox_row(row: &SqliteRow) -> Result<OutboxRow> {
    let row = Reader::new(row, "outbox", 1);
    Ok(OutboxRow {
        id: row.get(0)?,
        aggregate: row.get(1)?,
        addressee: row.get::<Option<String>>(2)?.map(RoleName::new),
        event_type: row.get(3)?,
        message_id: row.get(4)?,
        headers: row.json(5)?,
        message: row.get(6)?,
        created_at: Timestamp(row.get(7)?),
        failures: row.get(8)?,
        last_error: row.get(9)?,
    })
}
