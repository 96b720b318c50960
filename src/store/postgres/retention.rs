//! `idempotent_record`, as it grows old; `retention`.

use super::PostgresStore;
use super::set::Reader;
use crate::domain::{RoleName, Timestamp};
use crate::store::retention::CLAIMS;
use crate::store::{Error, Kept, Result, Retention, Swept};
use async_trait::async_trait;
use sqlx::postgres::PgRow;
use std::time::Duration;

const TABLE: &str = "idempotent_record";

#[async_trait]
impl Retention for PostgresStore {
    async fn expire_claims(&self, life: Duration, from: Timestamp, limit: u32) -> Result<Swept> {
        const EXPIRE: &str = "
            WITH due AS MATERIALIZED (
                SELECT role, key, created_at
                FROM idempotent_record AS claim
                WHERE expired_at IS NULL AND created_at BETWEEN $2 AND $3
                    AND concluded_at <= $3 AND outcome <> 'parked'
                    AND NOT EXISTS (
                        SELECT 1 FROM dead_letter
                        WHERE dead_letter.key = claim.key AND dead_letter.role = claim.role
                            AND dead_letter.status = 'DEAD')
                ORDER BY created_at
                LIMIT $4
                FOR UPDATE OF claim SKIP LOCKED),
            marked AS (
                UPDATE idempotent_record AS claim
                SET expired_at = $1, request_body = NULL
                FROM due
                WHERE claim.role = due.role AND claim.key = due.key
                RETURNING due.created_at)
            SELECT count(*), max(created_at) FROM marked";
        let now = self.database().now().await?;
        let update = sqlx::query(EXPIRE)
            .bind(now.0)
            .bind(from.0)
            .bind(now.minus(life).0)
            .bind(i64::from(limit));
        swept(&self.database().fetch(update).await?)
    }

    async fn remove_claims(&self, archive: Duration, from: Timestamp, limit: u32) -> Result<Swept> {
        const REMOVE: &str = "
            WITH due AS MATERIALIZED (
                SELECT role, key
                FROM idempotent_record
                WHERE expired_at BETWEEN $2 AND $3
                ORDER BY expired_at
                LIMIT $4
                FOR UPDATE SKIP LOCKED),
            gone AS (
                DELETE FROM idempotent_record AS claim
                USING due
                WHERE claim.role = due.role AND claim.key = due.key
                RETURNING claim.concluded_at, claim.expired_at),
            noted AS (
                INSERT INTO retention (name, removed, removed_through)
                SELECT $1, count(*), max(concluded_at) FROM gone HAVING count(*) > 0
                ON CONFLICT (name) DO UPDATE
                SET removed = retention.removed + excluded.removed,
                    removed_through = greatest(retention.removed_through, excluded.removed_through))
            SELECT count(*), max(expired_at) FROM gone";
        let now = self.database().now().await?;
        let delete = sqlx::query(REMOVE)
            .bind(CLAIMS)
            .bind(from.0)
            .bind(now.minus(archive).0)
            .bind(i64::from(limit));
        swept(&self.database().fetch(delete).await?)
    }

    async fn kept_claims(&self) -> Result<Kept> {
        const KEPT: &str = "
            SELECT live.number, live.oldest, expired.number, expired.oldest,
                coalesce((SELECT removed FROM retention WHERE name = $1), 0),
                (SELECT removed_through FROM retention WHERE name = $1),
                (SELECT until FROM lease WHERE name = $1)
            FROM (SELECT count(*) AS number, min(created_at) AS oldest
                    FROM idempotent_record WHERE expired_at IS NULL) AS live,
                (SELECT count(*) AS number, min(expired_at) AS oldest
                    FROM idempotent_record WHERE expired_at IS NOT NULL) AS expired";
        let now = self.database().now().await?;
        let rows = self.database().scan(sqlx::query(KEPT).bind(CLAIMS)).await?;
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
            SELECT key, created_at
            FROM idempotent_record
            WHERE expired_at IS NULL AND created_at BETWEEN $2 AND $3 AND role = $1
                AND outcome IN ('applied', 'stale', 'rejected', 'duplicate')
            ORDER BY created_at DESC
            LIMIT $4";
        let select = sqlx::query(RECENT)
            .bind(role.as_str())
            .bind(since.0)
            .bind(until.0)
            .bind(i64::from(limit));
        let rows = self.database().fetch(select).await?;
        let key = |row: &PgRow| {
            let row = Reader::new(row, TABLE, 1);
            Ok((row.get(0)?, Timestamp(row.get(1)?)))
        };
        rows.iter().map(key).collect()
    }
}

/// Reads how many rows, and the time of the youngest.
fn swept(rows: &[PgRow]) -> Result<Swept> {
    let Some(row) = rows.first() else {
        return Ok(Swept::default());
    };
    let row = Reader::new(row, TABLE, 0);
    Ok(Swept {
        rows: row.count(0)?,
        through: row.get::<Option<i64>>(1)?.map(Timestamp),
    })
}
