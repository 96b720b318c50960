//! `callback`.

use super::set::{Bytes, Reader, json, text_of};
use super::{MySqlStore, MySqlTx};
use crate::domain::{Key, Timestamp};
use crate::store::{CallbackRow, CallbackVerdict, Callbacks, KeptCallbacks, NewCallback, Result};
use async_trait::async_trait;
use sqlx::mysql::MySqlRow;
use std::time::Duration;

const TABLE: &str = "callback";

#[async_trait]
impl Callbacks for MySqlTx {
    async fn keep_callbacks(
        &mut self,
        now: Timestamp,
        callbacks: &[NewCallback<'_>],
    ) -> Result<()> {
        const KEEP: &str = "
            INSERT INTO callback
                (provider, verdict, detail, subject, `key`, headers, body, remote, received_at)
            SELECT new.provider, new.verdict, new.detail, new.subject, new.`key`, new.headers,
                SUBSTRING(parts.bytes, new.start, new.length), new.remote, ?
            FROM (SELECT CAST(? AS BINARY) AS bytes) AS parts
            STRAIGHT_JOIN JSON_TABLE(?, '$[*]' COLUMNS (
                place FOR ORDINALITY,
                provider VARBINARY(64) PATH '$[0]',
                verdict VARBINARY(16) PATH '$[1]',
                detail LONGBLOB PATH '$[2]',
                subject VARBINARY(1024) PATH '$[3]',
                `key` VARBINARY(191) PATH '$[4]',
                headers LONGTEXT PATH '$[5]',
                start BIGINT PATH '$[6]',
                length BIGINT PATH '$[7]',
                remote VARBINARY(64) PATH '$[8]')) AS new
            ORDER BY new.place";
        if callbacks.is_empty() {
            return Ok(());
        }
        let mut bytes = Bytes::default();
        let rows = callbacks.iter().map(|callback| {
            let verdict: &str = callback.verdict.into();
            let headers = text_of(callback.headers)?;
            let (start, length) = bytes.add(callback.body);
            Ok((
                callback.provider,
                verdict,
                callback.detail,
                callback.subject,
                callback.key.as_str(),
                headers,
                start,
                length,
                callback.remote,
            ))
        });
        let set = json(rows.collect::<Result<Vec<_>>>()?)?;
        self.database().fits(bytes.len() + set.len())?;
        let insert = sqlx::query(KEEP)
            .bind(now.0)
            .bind(bytes.into_parameter())
            .bind(set);
        self.execute(insert).await.map(drop)
    }
}

#[async_trait]
impl KeptCallbacks for MySqlStore {
    async fn callbacks(
        &self,
        order_id: Option<&str>,
        verdict: Option<CallbackVerdict>,
        limit: u32,
    ) -> Result<Vec<CallbackRow>> {
        const CALLBACKS: &str = "
            SELECT id, provider, verdict, detail, subject, `key`, headers, body, remote, received_at
            FROM callback
            WHERE ? IS NULL OR verdict = ?
            ORDER BY id DESC
            LIMIT ?";
        // A statement of its own: an optional condition would not use the index.
        const CALLBACKS_ABOUT: &str = "
            SELECT id, provider, verdict, detail, subject, `key`, headers, body, remote, received_at
            FROM callback
            WHERE subject = ? AND (? IS NULL OR verdict = ?)
            ORDER BY id DESC
            LIMIT ?";
        let select = match order_id {
            Some(order_id) => sqlx::query(CALLBACKS_ABOUT).bind(order_id.to_owned()),
            None => sqlx::query(CALLBACKS),
        };
        let verdict = verdict.map(<&'static str>::from);
        let select = select.bind(verdict).bind(verdict).bind(limit);
        let rows = self.database().fetch(select).await?;
        rows.iter().map(callback).collect()
    }

    async fn callback(&self, id: i64) -> Result<Option<CallbackRow>> {
        const CALLBACK: &str = "
            SELECT id, provider, verdict, detail, subject, `key`, headers, body, remote, received_at
            FROM callback
            WHERE id = ?";
        let select = sqlx::query(CALLBACK).bind(id);
        let rows = self.database().fetch(select).await?;
        rows.first().map(callback).transpose()
    }

    // Differs from Postgres: the oldest rows are deleted in one go, by whoever has the lease.
    async fn remove_callbacks(&self, kept: Duration, limit: u32) -> Result<u64> {
        const REMOVE: &str = "
            DELETE FROM callback
            WHERE received_at <= ?
            ORDER BY received_at
            LIMIT ?";
        let now = self.database().now().await?;
        let delete = sqlx::query(REMOVE).bind(now.minus(kept).0).bind(limit);
        self.database().execute(delete).await
    }
}

fn callback(row: &MySqlRow) -> Result<CallbackRow> {
    let row = Reader::new(row, TABLE, 1);
    Ok(CallbackRow {
        id: row.get(0)?,
        provider: row.text(1)?.to_owned(),
        verdict: row.parse(2)?,
        detail: row.text(3)?.to_owned(),
        subject: row.text(4)?.to_owned(),
        key: Key::stored(row.text(5)?),
        headers: row.json(6)?,
        body: row.get(7)?,
        remote: row.text(8)?.to_owned(),
        received_at: Timestamp(row.get(9)?),
    })
}
