//! `parked_event`.

use super::PostgresTx;
use super::set::{Reader, column, headers};
use crate::domain::{Key, RoleName, Timestamp, Token};
use crate::store::{NewParked, ParkedRow, Parking, Result};
use async_trait::async_trait;
use sqlx::postgres::PgRow;

#[async_trait]
impl Parking for PostgresTx {
    async fn park(
        &mut self,
        role: &RoleName,
        now: Timestamp,
        parked: &[NewParked<'_>],
    ) -> Result<()> {
        const PARK: &str = "
            INSERT INTO parked_event
                (role, key, awaits, message_id, event_type, subject, message, headers, parked_at, deadline)
            SELECT $1, key, awaits, message_id, event_type, subject, message, headers, $2, deadline
            FROM unnest($3::text[], $4::text[], $5::text[], $6::text[], $7::text[], $8::text[],
                    $9::text[], $10::bigint[])
                AS new (key, awaits, message_id, event_type, subject, message, headers, deadline)
            ORDER BY key COLLATE \"C\"
            ON CONFLICT (role, key) DO UPDATE SET awaits = excluded.awaits, woken_at = NULL";
        if parked.is_empty() {
            return Ok(());
        }
        let texts = parked.iter().map(|event| headers(event.headers));
        let insert = sqlx::query(PARK)
            .bind(role.as_str())
            .bind(now.0)
            .bind(column(parked, |event| event.key.as_str()))
            .bind(column(parked, |event| event.awaits.as_str()))
            .bind(column(parked, |event| event.message_id))
            .bind(column(parked, |event| event.event_type))
            .bind(column(parked, |event| event.subject))
            .bind(column(parked, |event| event.message))
            .bind(texts.collect::<Result<Vec<_>>>()?)
            .bind(column(parked, |event| event.deadline.0));
        self.execute(insert).await.map(drop)
    }

    async fn unpark(&mut self, role: &RoleName, keys: &[&Key]) -> Result<()> {
        const UNPARK: &str = "DELETE FROM parked_event WHERE role = $1 AND key = ANY ($2)";
        if keys.is_empty() {
            return Ok(());
        }
        let delete = sqlx::query(UNPARK)
            .bind(role.as_str())
            .bind(column(keys.iter().copied(), Key::as_str));
        self.execute(delete).await.map(drop)
    }

    // Differs from SQLite: one statement, so that what another transaction parks or wakes in between
    // is either handed back and marked, or neither. The headers are our own JSON, so that one more can
    // be put before the last brace; of two with one name the last counts.
    async fn wake(&mut self, now: Timestamp, tokens: &[Token]) -> Result<u64> {
        const WAKE: &str = "
            WITH due AS MATERIALIZED (
                SELECT role, key FROM parked_event
                WHERE woken_at IS NULL AND awaits = ANY ($2)
                ORDER BY role, key
                FOR UPDATE),
            woken AS (
                UPDATE parked_event SET woken_at = $1
                FROM due
                WHERE parked_event.role = due.role AND parked_event.key = due.key
                RETURNING parked_event.role, parked_event.key, subject, event_type, message_id, headers,
                    message, parked_at)
            INSERT INTO outbox (aggregate, addressee, event_type, message_id, headers, message, created_at)
            SELECT convert_to(subject, 'UTF8'), role, convert_to(event_type, 'UTF8'),
                convert_to(message_id, 'UTF8'),
                left(headers, -1) || CASE headers WHEN '{}' THEN '' ELSE ',' END
                    || '\"orderonce-woken\":\"true\"}',
                convert_to(message, 'UTF8'), $1
            FROM woken
            ORDER BY parked_at, key";
        if tokens.is_empty() {
            return Ok(0);
        }
        let wake = sqlx::query(WAKE)
            .bind(now.0)
            .bind(column(tokens, Token::as_str));
        self.execute(wake).await
    }

    // A woken event is on its way to its role. If it never arrives, this finds it. One that somebody
    // is deciding right now is left to them.
    async fn take_overdue(&mut self, now: Timestamp, limit: u32) -> Result<Vec<ParkedRow>> {
        const TAKE_OVERDUE: &str = "
            WITH overdue AS MATERIALIZED (
                SELECT role, key FROM parked_event
                WHERE deadline <= $1
                ORDER BY deadline
                LIMIT $2
                FOR UPDATE SKIP LOCKED)
            DELETE FROM parked_event AS event
            USING overdue
            WHERE event.role = overdue.role AND event.key = overdue.key
            RETURNING event.role, event.key, awaits, message_id, event_type, message, headers, parked_at,
                deadline, woken_at";
        let delete = sqlx::query(TAKE_OVERDUE).bind(now.0).bind(i64::from(limit));
        let rows = self.fetch(delete).await?;
        let mut taken = rows.iter().map(parked).collect::<Result<Vec<_>>>()?;
        taken.sort_by(|a, b| {
            (a.deadline, a.parked_at, &a.key).cmp(&(b.deadline, b.parked_at, &b.key))
        });
        Ok(taken)
    }
}

/// Reads `role, key, awaits, message_id, event_type, message, headers, parked_at, deadline,
/// woken_at`.
pub(super) fn parked(row: &PgRow) -> Result<ParkedRow> {
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
