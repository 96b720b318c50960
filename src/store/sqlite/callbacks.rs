//! `callback`.

use super::set::{Bytes, Reader, json};
use super::{SqliteStore, SqliteTx, from_sqlx};
use crate::domain::{Key, Timestamp};
use crate::store::{
    CallbackRow, CallbackVerdict, Callbacks, KeptCallbacks, NewCallback, Result, Tx,
};
use async_trait::async_trait;
use sqlx::sqlite::SqliteRow;
use std::time::Duration;

const TABLE: &str = "callback";

#[async_trait]
impl Callbacks for SqliteTx {
    async fn keep_callbacks(
        &mut self,
        now: Timestamp,
        callbacks: &[NewCallback<'_>],
    ) -> Result<()> {
        // An empty blob has no parts, not even an empty one: coalesce.
        const KEEP: &str = "
            INSERT INTO callback (provider, verdict, detail, subject, key, headers, body, remote, received_at)
            SELECT value ->> 0, value ->> 1, value ->> 2, value ->> 3, value ->> 4, value -> 5,
                coalesce(substr(?3, value ->> 6, value ->> 7), x''), value ->> 8, ?1
            FROM json_each(?2)";
        if callbacks.is_empty() {
            return Ok(());
        }
        let mut bytes = Bytes::default();
        let set = json(callbacks.iter().map(|callback| {
            let verdict: &str = callback.verdict.into();
            let (start, length) = bytes.add(callback.body);
            (
                callback.provider,
                verdict,
                callback.detail,
                callback.subject,
                callback.key.as_str(),
                callback.headers,
                start,
                length,
                callback.remote,
            )
        }))?;
        let insert = sqlx::query(KEEP)
            .bind(now.0)
            .bind(set)
            .bind(bytes.into_parameter());
        self.execute(insert).await.map(drop)
    }
}

#[async_trait]
impl KeptCallbacks for SqliteStore {
    async fn callbacks(
        &self,
        order_id: Option<&str>,
        verdict: Option<CallbackVerdict>,
        limit: u32,
    ) -> Result<Vec<CallbackRow>> {
        const CALLBACKS: &str = "
            SELECT id, provider, verdict, detail, subject, key, headers, body, remote, received_at
            FROM callback
            WHERE ?1 IS NULL OR verdict = ?1
            ORDER BY id DESC
            LIMIT ?2";
        // A statement of its own: an optional condition would not use the index.
        const CALLBACKS_ABOUT: &str = "
            SELECT id, provider, verdict, detail, subject, key, headers, body, remote, received_at
            FROM callback
            WHERE subject = ?3 AND subject <> '' AND (?1 IS NULL OR verdict = ?1)
            ORDER BY id DESC
            LIMIT ?2";
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
        let rows = select.fetch_all(self.readers()).await.map_err(from_sqlx)?;
        rows.iter().map(callback).collect()
    }

    async fn callback(&self, id: i64) -> Result<Option<CallbackRow>> {
        const CALLBACK: &str = "
            SELECT id, provider, verdict, detail, subject, key, headers, body, remote, received_at
            FROM callback
            WHERE id = ?1";
        let select = sqlx::query(CALLBACK).bind(id);
        let row = select.fetch_optional(self.readers()).await;
        row.map_err(from_sqlx)?.as_ref().map(callback).transpose()
    }

    async fn remove_callbacks(&self, kept: Duration, limit: u32) -> Result<u64> {
        const REMOVE: &str = "
            DELETE FROM callback
            WHERE id IN (
                SELECT id FROM callback
                WHERE received_at <= ?1
                ORDER BY received_at
                LIMIT ?2)";
        let delete = sqlx::query(REMOVE)
            .bind(self.database().now().minus(kept).0)
            .bind(i64::from(limit));
        let mut tx = self.begin_tx().await?;
        let removed = tx.execute(delete).await?;
        Box::new(tx).commit().await?;
        Ok(removed)
    }
}

fn callback(row: &SqliteRow) -> Result<CallbackRow> {
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
