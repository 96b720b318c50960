//! `callback`.

use super::set::{Reader, column, headers, readable};
use super::{PostgresStore, PostgresTx};
use crate::domain::{Key, Timestamp};
use crate::store::{CallbackRow, CallbackVerdict, Callbacks, KeptCallbacks, NewCallback, Result};
use async_trait::async_trait;
use sqlx::postgres::PgRow;
use std::time::Duration;

const TABLE: &str = "callback";

#[async_trait]
impl Callbacks for PostgresTx {
    async fn keep_callbacks(
        &mut self,
        now: Timestamp,
        callbacks: &[NewCallback<'_>],
    ) -> Result<()> {
        const KEEP: &str = "
            INSERT INTO callback (provider, verdict, detail, subject, key, headers, body, remote, received_at)
            SELECT provider, verdict, detail, subject, key, headers, body, remote, $1
            FROM unnest($2::text[], $3::text[], $4::text[], $5::text[], $6::text[], $7::text[], $8::bytea[],
                    $9::text[])
                WITH ORDINALITY
                AS new (provider, verdict, detail, subject, key, headers, body, remote, place)
            ORDER BY place";
        if callbacks.is_empty() {
            return Ok(());
        }
        let texts = callbacks.iter().map(|callback| headers(callback.headers));
        let insert = sqlx::query(KEEP)
            .bind(now.0)
            .bind(column(callbacks, |callback| callback.provider))
            .bind(column(callbacks, |callback| <&str>::from(callback.verdict)))
            .bind(column(callbacks, |callback| readable(callback.detail)))
            .bind(column(callbacks, |callback| callback.subject))
            .bind(column(callbacks, |callback| callback.key.as_str()))
            .bind(texts.collect::<Result<Vec<_>>>()?)
            .bind(column(callbacks, |callback| callback.body))
            .bind(column(callbacks, |callback| callback.remote));
        self.execute(insert).await.map(drop)
    }
}

#[async_trait]
impl KeptCallbacks for PostgresStore {
    async fn callbacks(
        &self,
        order_id: Option<&str>,
        verdict: Option<CallbackVerdict>,
        limit: u32,
    ) -> Result<Vec<CallbackRow>> {
        const CALLBACKS: &str = "
            SELECT id, provider, verdict, detail, subject, key, headers, body, remote, received_at
            FROM callback
            WHERE $1::text IS NULL OR verdict = $1
            ORDER BY id DESC
            LIMIT $2";
        // A statement of its own: an optional condition would not use the index.
        const CALLBACKS_ABOUT: &str = "
            SELECT id, provider, verdict, detail, subject, key, headers, body, remote, received_at
            FROM callback
            WHERE subject = $3 AND subject <> '' AND ($1::text IS NULL OR verdict = $1)
            ORDER BY id DESC
            LIMIT $2";
        let statement = match order_id {
            Some(_) => CALLBACKS_ABOUT,
            None => CALLBACKS,
        };
        let mut select = sqlx::query(statement)
            .bind(verdict.map(<&str>::from))
            .bind(i64::from(limit));
        if let Some(order_id) = order_id {
            select = select.bind(order_id);
        }
        let rows = self.database().fetch(select).await?;
        rows.iter().map(callback).collect()
    }

    async fn callback(&self, id: i64) -> Result<Option<CallbackRow>> {
        const CALLBACK: &str = "
            SELECT id, provider, verdict, detail, subject, key, headers, body, remote, received_at
            FROM callback
            WHERE id = $1";
        let rows = self
            .database()
            .fetch(sqlx::query(CALLBACK).bind(id))
            .await?;
        rows.first().map(callback).transpose()
    }

    async fn remove_callbacks(&self, kept: Duration, limit: u32) -> Result<u64> {
        const REMOVE: &str = "
            WITH gone AS (
                DELETE FROM callback
                WHERE id IN (
                    SELECT id FROM callback
                    WHERE received_at <= $1
                    ORDER BY received_at
                    LIMIT $2
                    FOR UPDATE SKIP LOCKED)
                RETURNING id)
            SELECT count(*) FROM gone";
        let now = self.database().now().await?;
        let delete = sqlx::query(REMOVE)
            .bind(now.minus(kept).0)
            .bind(i64::from(limit));
        let rows = self.database().fetch(delete).await?;
        rows.first()
            .map_or(Ok(0), |row| Reader::new(row, TABLE, 0).count(0))
    }
}

fn callback(row: &PgRow) -> Result<CallbackRow> {
    let row = Reader::new(row, TABLE, 1);
    Ok(CallbackRow {
        id: row.get(0)?,
        provider: row.get(1)?,
        verdict: row.parse(2)?,
        detail: row.get(3)?,
        subject: row.get(4)?,
        key: Key::stored(row.get(5)?),
        headers: row.json(6)?,
        body: row.get(7)?,
        remote: row.get(8)?,
        received_at: Timestamp(row.get(9)?),
    })
}
