//! `parked_event`.

use super::SqliteTx;
use super::set::{Reader, json};
use crate::domain::{Key, RoleName, Timestamp, Token};
use crate::store::{NewParked, ParkedRow, Parking, Result};
use async_trait::async_trait;
use sqlx::sqlite::SqliteRow;

#[async_trait]
impl Parking for SqliteTx {
    async fn park(
        &mut self,
        role: &RoleName,
        now: Timestamp,
        parked: &[NewParked<'_>],
    ) -> Result<()> {
        const PARK: &str = "
            INSERT INTO parked_event
                (role, key, awaits, message_id, event_type, subject, message, headers, parked_at, deadline)
            SELECT ?1, value ->> 0, value ->> 1, value ->> 2, value ->> 3, value ->> 4, value ->> 5, value ->> 6, ?2, value ->> 7
            FROM json_each(?3)
            WHERE true
            ON CONFLICT (role, key) DO UPDATE SET awaits = excluded.awaits, woken_at = NULL";
        if parked.is_empty() {
            return Ok(());
        }
        let set = json(parked.iter().map(|event| {
            let (key, awaits) = (event.key.as_str(), event.awaits.as_str());
            let (event_type, subject) = (event.event_type, event.subject);
            let (message_id, message) = (event.message_id, event.message);
            let deadline = event.deadline.0;
            let headers = event.headers;
            (
                key, awaits, message_id, event_type, subject, message, headers, deadline,
            )
        }))?;
        let insert = sqlx::query(PARK).bind(role.as_str()).bind(now.0).bind(set);
        self.execute(insert).await.map(drop)
    }

    async fn unpark(&mut self, role: &RoleName, keys: &[&Key]) -> Result<()> {
        const UNPARK: &str = "
            DELETE FROM parked_event
            WHERE role = ?1 AND key IN (SELECT value FROM json_each(?2))";
        if keys.is_empty() {
            return Ok(());
        }
        let set = json(keys.iter().map(|key| key.as_str()))?;
        let delete = sqlx::query(UNPARK).bind(role.as_str()).bind(set);
        self.execute(delete).await.map(drop)
    }

    async fn wake(&mut self, now: Timestamp, tokens: &[Token]) -> Result<u64> {
        const HAND_BACK: &str = "
            INSERT INTO outbox (aggregate, addressee, event_type, message_id, headers, message, created_at)
            SELECT subject, role, event_type, message_id,
                json_set(headers, '$.orderonce-woken', 'true'), CAST(message AS BLOB), ?1
            FROM parked_event
            WHERE woken_at IS NULL AND awaits IN (SELECT value FROM json_each(?2))
            ORDER BY parked_at, key";
        if tokens.is_empty() {
            return Ok(0);
        }
        let set = json(tokens.iter().map(Token::as_str))?;
        let insert = sqlx::query(HAND_BACK).bind(now.0).bind(&set);
        let woken = self.execute(insert).await?;
        if woken > 0 {
            self.mark_woken(now, &set).await?;
        }
        Ok(woken)
    }

    // A woken event is on its way to its role. If it never arrives, this finds it.
    async fn take_overdue(&mut self, now: Timestamp, limit: u32) -> Result<Vec<ParkedRow>> {
        const TAKE_OVERDUE: &str = "
            DELETE FROM parked_event
            WHERE rowid IN (SELECT rowid FROM parked_event WHERE deadline <= ?1 ORDER BY deadline LIMIT ?2)
            RETURNING role, key, awaits, message_id, event_type, message, headers, parked_at, deadline, woken_at";
        let delete = sqlx::query(TAKE_OVERDUE).bind(now.0).bind(limit);
        let rows = self.fetch(delete).await?;
        let mut taken = rows.iter().map(parked).collect::<Result<Vec<_>>>()?;
        taken.sort_by(|a, b| {
            (a.deadline, a.parked_at, &a.key).cmp(&(b.deadline, b.parked_at, &b.key))
        });
        Ok(taken)
    }
}

impl SqliteTx {
    async fn mark_woken(&mut self, now: Timestamp, tokens: &str) -> Result<()> {
        const MARK_WOKEN: &str = "
            UPDATE parked_event SET woken_at = ?1
            WHERE woken_at IS NULL AND awaits IN (SELECT value FROM json_each(?2))";
        let update = sqlx::query(MARK_WOKEN).bind(now.0).bind(tokens);
        self.execute(update).await.map(drop)
    }
}

/// Reads `role, key, awaits, message_id, event_type, message, headers, parked_at, deadline,
/// woken_at`.
pub(super) fn parked(row: &SqliteRow) -> Result<ParkedRow> {
    let row = Reader::new(row, "parked_event", 2);
    Ok(ParkedRow {
        role: RoleName::new(row.get::<String>(0)?),
        key: Key::stored(row.get(1)?),
        awaits: Token::stored(row.get(2)?),
        message_id: row.get(3)?,
        event_type: row.get(4)?,
        message: row.get(5)?,
        headers: row.json(6)?,
        parked_at: Timestamp(row.get(7)?),
        deadline: Timestamp(row.get(8)?),
        woken_at: row.get::<Option<i64>>(9)?.map(Timestamp),
    })
}
