//! `idempotent_record`, as it grows old; `retention`.

use super::set::Reader;
use super::{SqliteStore, from_sqlx};
use crate::domain::{RoleName, Timestamp};
use crate::store::retention::CLAIMS;
use crate::store::{Error, Kept, Result, Retention, Swept, Tx};
use async_trait::async_trait;
use sqlx::sqlite::SqliteRow;
use std::time::Duration;

const TABLE: &str = "idempotent_record";

#[async_trait]
impl Retention for SqliteStore {
    // Differs from Postgres, here and below: there is one writer, so nothing is locked by others, and no
    // statement may write within another one.
    async fn expire_claims(&self, life: Duration, from: Timestamp, limit: u32) -> Result<Swept> {
        const EXPIRE: &str = "
            UPDATE idempotent_record
            SET expired_at = ?1, request_body = NULL
            WHERE rowid IN (
                SELECT claim.rowid
                FROM idempotent_record AS claim
                WHERE expired_at IS NULL AND created_at BETWEEN ?2 AND ?3
                    AND concluded_at <= ?3 AND outcome <> 'parked'
                    AND NOT EXISTS (
                        SELECT 1 FROM dead_letter
                        WHERE dead_letter.key = claim.key AND dead_letter.role = claim.role
                            AND dead_letter.status = 'DEAD')
                ORDER BY created_at
                LIMIT ?4)
            RETURNING created_at, concluded_at";
        let now = self.database().now();
        let update = sqlx::query(EXPIRE)
            .bind(now.0)
            .bind(from.0)
            .bind(now.minus(life).0)
            .bind(i64::from(limit));
        let mut tx = self.begin_tx().await?;
        let marked = tx.fetch(update).await?;
        Box::new(tx).commit().await?;
        Ok(swept(&times(&marked)?))
    }

    async fn remove_claims(&self, archive: Duration, from: Timestamp, limit: u32) -> Result<Swept> {
        const REMOVE: &str = "
            DELETE FROM idempotent_record
            WHERE rowid IN (
                SELECT rowid
                FROM idempotent_record
                WHERE expired_at IS NOT NULL AND expired_at BETWEEN ?1 AND ?2
                ORDER BY expired_at
                LIMIT ?3)
            RETURNING expired_at, concluded_at";
        const NOTE: &str = "
            INSERT INTO retention (name, removed, removed_through)
            VALUES (?1, ?2, ?3)
            ON CONFLICT (name) DO UPDATE
            SET removed = removed + excluded.removed,
                removed_through = max(removed_through, excluded.removed_through)";
        let delete = sqlx::query(REMOVE)
            .bind(from.0)
            .bind(self.database().now().minus(archive).0)
            .bind(i64::from(limit));
        let mut tx = self.begin_tx().await?;
        let gone = times(&tx.fetch(delete).await?)?;
        if let Some(concluded) = gone.iter().map(|(_, concluded)| *concluded).max() {
            let note = sqlx::query(NOTE)
                .bind(CLAIMS)
                .bind(i64::try_from(gone.len()).unwrap_or(i64::MAX))
                .bind(concluded);
            tx.execute(note).await?;
        }
        Box::new(tx).commit().await?;
        Ok(swept(&gone))
    }

    async fn kept_claims(&self) -> Result<Kept> {
        const KEPT: &str = "
            SELECT live.number, live.oldest, expired.number, expired.oldest,
                coalesce((SELECT removed FROM retention WHERE name = ?1), 0),
                (SELECT removed_through FROM retention WHERE name = ?1),
                (SELECT until FROM lease WHERE name = ?1)
            FROM (SELECT count(*) AS number, min(created_at) AS oldest
                    FROM idempotent_record WHERE expired_at IS NULL) AS live,
                (SELECT count(*) AS number, min(expired_at) AS oldest
                    FROM idempotent_record WHERE expired_at IS NOT NULL) AS expired";
        let now = self.database().now();
        let row = sqlx::query(KEPT)
            .bind(CLAIMS)
            .fetch_one(self.readers())
            .await
            .map_err(from_sqlx)?;
        let row = Reader::new(&row, TABLE, 0);
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
            SELECT key, created_at
            FROM idempotent_record
            WHERE expired_at IS NULL AND created_at BETWEEN ?2 AND ?3 AND +role = ?1
                AND outcome IN ('applied', 'stale', 'rejected', 'duplicate')
            ORDER BY created_at DESC
            LIMIT ?4";
        let rows = sqlx::query(RECENT)
            .bind(role.as_str())
            .bind(since.0)
            .bind(until.0)
            .bind(i64::from(limit))
            .fetch_all(self.readers())
            .await
            .map_err(from_sqlx)?;
        let key = |row: &SqliteRow| {
            let row = Reader::new(row, TABLE, 1);
            Ok((row.get(0)?, Timestamp(row.get(1)?)))
        };
        rows.iter().map(key).collect()
    }
}

/// Reads two times of each row: that by which it was found, and its conclusion.
fn times(rows: &[SqliteRow]) -> Result<Vec<(i64, i64)>> {
    let times = |row: &SqliteRow| {
        let row = Reader::new(row, TABLE, 0);
        Ok((row.get(0)?, row.get(1)?))
    };
    rows.iter().map(times).collect()
}

fn swept(times: &[(i64, i64)]) -> Swept {
    Swept {
        rows: u64::try_from(times.len()).unwrap_or(u64::MAX),
        through: times.iter().map(|(found, _)| Timestamp(*found)).max(),
    }
}
