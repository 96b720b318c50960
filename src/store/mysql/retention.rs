//! `idempotent_record`, as it grows old; `retention`.

use super::set::{Reader, Text, json_by};
use super::{MySqlStore, MySqlTx};
use crate::domain::{RoleName, Timestamp};
use crate::store::retention::CLAIMS;
use crate::store::{Error, Kept, Result, Retention, Swept, Tx};
use async_trait::async_trait;
use sqlx::mysql::MySqlRow;
use std::time::Duration;

const TABLE: &str = "idempotent_record";

#[async_trait]
impl Retention for MySqlStore {
    // Differs from Postgres: no UPDATE or DELETE skips what is locked, so a SELECT locks what is free.
    async fn expire_claims(&self, life: Duration, from: Timestamp, limit: u32) -> Result<Swept> {
        const DUE: &str = "
            SELECT role, `key`, created_at, concluded_at
            FROM idempotent_record AS claim FORCE INDEX (idempotent_record_expired)
            WHERE expired_at IS NULL AND created_at BETWEEN ? AND ?
                AND concluded_at <= ? AND outcome <> 'parked'
                AND NOT EXISTS (
                    SELECT 1 FROM dead_letter
                    WHERE dead_letter.`key` = claim.`key` AND dead_letter.role = claim.role
                        AND dead_letter.status = 'DEAD')
            ORDER BY created_at
            LIMIT ?
            FOR UPDATE SKIP LOCKED";
        const EXPIRE: &str = "
            UPDATE JSON_TABLE(?, '$[*]' COLUMNS (
                role VARBINARY(255) PATH '$[0]',
                `key` VARBINARY(191) PATH '$[1]')) AS due
            STRAIGHT_JOIN idempotent_record AS claim FORCE INDEX (PRIMARY)
                ON claim.role = due.role AND claim.`key` = due.`key`
            SET claim.expired_at = ?, claim.request_body = NULL";
        let now = self.database.now().await?;
        let before = now.minus(life);
        let select = sqlx::query(DUE)
            .bind(from.0)
            .bind(before.0)
            .bind(before.0)
            .bind(i64::from(limit));
        let mut tx = MySqlTx::begin(&self.database).await?;
        let due = due(&tx.fetch(select).await?)?;
        let rows = match due.is_empty() {
            true => 0,
            false => {
                let set = due_keys(&due)?;
                tx.execute(sqlx::query(EXPIRE).bind(set).bind(now.0))
                    .await?
            }
        };
        Box::new(tx).commit().await?;
        let through = due.iter().map(|due| due.at).max();
        Ok(Swept { rows, through })
    }

    async fn remove_claims(&self, archive: Duration, from: Timestamp, limit: u32) -> Result<Swept> {
        const DUE: &str = "
            SELECT role, `key`, expired_at, concluded_at
            FROM idempotent_record FORCE INDEX (idempotent_record_expired)
            WHERE expired_at BETWEEN ? AND ?
            ORDER BY expired_at
            LIMIT ?
            FOR UPDATE SKIP LOCKED";
        const REMOVE: &str = "
            DELETE claim
            FROM JSON_TABLE(?, '$[*]' COLUMNS (
                role VARBINARY(255) PATH '$[0]',
                `key` VARBINARY(191) PATH '$[1]')) AS due
            STRAIGHT_JOIN idempotent_record AS claim FORCE INDEX (PRIMARY)
                ON claim.role = due.role AND claim.`key` = due.`key`";
        const NOTE: &str = "
            INSERT INTO retention (name, removed, removed_through)
            SELECT asked.name, asked.removed, asked.through
            FROM (SELECT ? AS name, CAST(? AS SIGNED) AS removed, CAST(? AS SIGNED) AS through) AS asked
            ON DUPLICATE KEY UPDATE
                removed = retention.removed + asked.removed,
                removed_through = greatest(retention.removed_through, asked.through)";
        let now = self.database.now().await?;
        let select = sqlx::query(DUE)
            .bind(from.0)
            .bind(now.minus(archive).0)
            .bind(i64::from(limit));
        let mut tx = MySqlTx::begin(&self.database).await?;
        let due = due(&tx.fetch(select).await?)?;
        let mut rows = 0;
        if let Some(concluded) = due.iter().map(|due| due.concluded_at).max() {
            let set = due_keys(&due)?;
            rows = tx.execute(sqlx::query(REMOVE).bind(set)).await?;
            let note = sqlx::query(NOTE)
                .bind(CLAIMS)
                .bind(i64::try_from(rows).unwrap_or(i64::MAX))
                .bind(concluded.0);
            tx.execute(note).await?;
        }
        Box::new(tx).commit().await?;
        let through = due.iter().map(|due| due.at).max();
        Ok(Swept { rows, through })
    }

    async fn kept_claims(&self) -> Result<Kept> {
        const ASK: &str = "SET @name = ?";
        const KEPT: &str = "
            SELECT live.number, live.oldest, expired.number, expired.oldest,
                coalesce((SELECT removed FROM retention WHERE name = CAST(@name AS BINARY)), 0),
                (SELECT removed_through FROM retention WHERE name = CAST(@name AS BINARY)),
                (SELECT until FROM lease WHERE name = CAST(@name AS BINARY))
            FROM (SELECT count(*) AS number, min(created_at) AS oldest
                    FROM idempotent_record WHERE expired_at IS NULL) AS live,
                (SELECT count(*) AS number, min(expired_at) AS oldest
                    FROM idempotent_record WHERE expired_at IS NOT NULL) AS expired";
        let now = self.database.now().await?;
        let ask = sqlx::query(ASK).bind(CLAIMS);
        let rows = self.database.scan(ask, sqlx::query(KEPT)).await?;
        let [row] = &rows[..] else {
            return Err(Error::Unavailable("the counts gave no row".into()));
        };
        let row = Reader::new(row, TABLE, 0);
        let time = |column| Ok::<_, Error>(row.get::<Option<i64>>(column)?.map(Timestamp));
        Ok(Kept {
            live: row.count(0)?,
            oldest_live: time(1)?,
            expired: row.count(2)?,
            oldest_expired: time(3)?,
            removed: row.count(4)?,
            removed_through: time(5)?,
            next: time(6)?,
            now,
        })
    }

    async fn recent_keys(
        &self,
        role: &RoleName,
        since: Timestamp,
        until: Timestamp,
        limit: u32,
    ) -> Result<Vec<(String, Timestamp)>> {
        const RECENT: &str = "
            SELECT `key`, created_at
            FROM idempotent_record FORCE INDEX (idempotent_record_expired)
            WHERE expired_at IS NULL AND created_at BETWEEN ? AND ? AND role = ?
                AND outcome IN ('applied', 'stale', 'rejected', 'duplicate')
            ORDER BY created_at DESC
            LIMIT ?";
        let select = sqlx::query(RECENT)
            .bind(since.0)
            .bind(until.0)
            .bind(role.as_str())
            .bind(i64::from(limit));
        let rows = self.database.fetch(select).await?;
        let key = |row: &MySqlRow| {
            let row = Reader::new(row, TABLE, 1);
            Ok((row.get::<Text>(0)?.0, Timestamp(row.get(1)?)))
        };
        rows.iter().map(key).collect()
    }
}

/// A claim whose time has come.
struct Due {
    role: Text,
    key: Text,
    at: Timestamp,
    concluded_at: Timestamp,
}

fn due(rows: &[MySqlRow]) -> Result<Vec<Due>> {
    let due = |row: &MySqlRow| {
        let row = Reader::new(row, TABLE, 2);
        Ok(Due {
            role: row.get(0)?,
            key: row.get(1)?,
            at: Timestamp(row.get(2)?),
            concluded_at: Timestamp(row.get(3)?),
        })
    };
    rows.iter().map(due).collect()
}

fn due_keys(due: &[Due]) -> Result<String> {
    json_by(due.iter().map(|due| (&*due.role, &*due.key)), Ord::cmp)
}
