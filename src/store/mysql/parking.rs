//! `parked_event`.

use super::MySqlTx;
use super::set::{Reader, json, json_by, keys, text_of};
use crate::domain::{Key, RoleName, Timestamp, Token};
use crate::store::error::all_written;
use crate::store::{NewParked, ParkedRow, Parking, Result};
use async_trait::async_trait;
use sqlx::mysql::MySqlRow;

#[async_trait]
impl Parking for MySqlTx {
    async fn park(
        &mut self,
        role: &RoleName,
        now: Timestamp,
        parked: &[NewParked<'_>],
    ) -> Result<()> {
        const PARK: &str = "
            INSERT INTO parked_event
                (role, `key`, awaits, message_id, event_type, subject, message, headers, parked_at, deadline)
            SELECT ?, new.`key`, new.awaits, new.message_id, new.event_type, new.subject, new.message, new.headers,
                ?, new.deadline
            FROM JSON_TABLE(?, '$[*]' COLUMNS (
                `key` VARBINARY(191) PATH '$[0]',
                awaits VARBINARY(191) PATH '$[1]',
                message_id LONGBLOB PATH '$[2]',
                event_type LONGBLOB PATH '$[3]',
                subject LONGBLOB PATH '$[4]',
                message LONGBLOB PATH '$[5]',
                headers LONGTEXT PATH '$[6]',
                deadline BIGINT PATH '$[7]')) AS new
            ON DUPLICATE KEY UPDATE awaits = new.awaits, woken_at = NULL";
        if parked.is_empty() {
            return Ok(());
        }
        let rows = parked.iter().map(|event| {
            let (key, awaits) = (event.key.as_str(), event.awaits.as_str());
            let (event_type, subject) = (event.event_type, event.subject);
            let (message_id, message) = (event.message_id, event.message);
            let deadline = event.deadline.0;
            let headers = text_of(event.headers)?;
            Ok((
                key, awaits, message_id, event_type, subject, message, headers, deadline,
            ))
        });
        let rows = rows.collect::<Result<Vec<_>>>()?;
        let set = json_by(rows, |a, b| a.0.cmp(b.0))?;
        self.database().fits(set.len())?;
        let insert = sqlx::query(PARK).bind(role.as_str()).bind(now.0).bind(set);
        self.execute(insert).await.map(drop)
    }

    async fn unpark(&mut self, role: &RoleName, unparked: &[&Key]) -> Result<()> {
        const UNPARK: &str = "
            DELETE parked
            FROM JSON_TABLE(?, '$[*]' COLUMNS (`key` VARBINARY(191) PATH '$')) AS decided
            STRAIGHT_JOIN parked_event AS parked FORCE INDEX (PRIMARY)
                ON parked.role = ? AND parked.`key` = decided.`key`";
        if unparked.is_empty() {
            return Ok(());
        }
        let set = keys(unparked.iter().map(|key| key.as_str()))?;
        let delete = sqlx::query(UNPARK).bind(set).bind(role.as_str());
        self.execute(delete).await.map(drop)
    }

    // Differs from Postgres: what is found first, without waiting for anybody, is marked under the
    // guard of what it awaited and then handed back. So no event is marked that is not handed back.
    async fn wake(&mut self, now: Timestamp, tokens: &[Token]) -> Result<u64> {
        const FIND: &str = "
            SELECT parked.role, parked.`key`, parked.awaits
            FROM JSON_TABLE(?, '$[*]' COLUMNS (awaits VARBINARY(191) PATH '$')) AS token
            STRAIGHT_JOIN parked_event AS parked FORCE INDEX (parked_event_awaits)
                ON parked.awaits = token.awaits AND parked.woken_at IS NULL";
        const MARK: &str = "
            UPDATE JSON_TABLE(?, '$[*]' COLUMNS (
                role VARBINARY(255) PATH '$[0]',
                `key` VARBINARY(191) PATH '$[1]',
                awaits VARBINARY(191) PATH '$[2]')) AS woken
            STRAIGHT_JOIN parked_event AS parked FORCE INDEX (PRIMARY)
                ON parked.role = woken.role AND parked.`key` = woken.`key`
            SET parked.woken_at = ?
            WHERE parked.awaits = woken.awaits AND parked.woken_at IS NULL";
        const HAND_BACK: &str = "
            INSERT INTO outbox (aggregate, addressee, event_type, message_id, headers, message, created_at)
            SELECT parked.subject, parked.role, parked.event_type, parked.message_id,
                JSON_SET(parked.headers, '$.\"orderonce-woken\"', 'true'), parked.message, ?
            FROM JSON_TABLE(?, '$[*]' COLUMNS (
                role VARBINARY(255) PATH '$[0]',
                `key` VARBINARY(191) PATH '$[1]')) AS woken
            STRAIGHT_JOIN parked_event AS parked FORCE INDEX (PRIMARY)
                ON parked.role = woken.role AND parked.`key` = woken.`key`
            ORDER BY parked.parked_at, parked.`key`";
        if tokens.is_empty() {
            return Ok(0);
        }
        let awaited = keys(tokens.iter().map(Token::as_str))?;
        let rows = self.fetch(sqlx::query(FIND).bind(awaited)).await?;
        if rows.is_empty() {
            return Ok(0);
        }
        let mut found = rows
            .iter()
            .map(|row| {
                let row = Reader::new(row, "parked_event", 2);
                Ok((row.text(0)?, row.text(1)?, row.text(2)?))
            })
            .collect::<Result<Vec<_>>>()?;
        found.sort_unstable();
        let set = json(&found)?;
        let marked = self
            .execute(sqlx::query(MARK).bind(&set).bind(now.0))
            .await?;
        all_written("parked_event", marked, found.len())?;
        let insert = sqlx::query(HAND_BACK).bind(now.0).bind(set);
        self.execute(insert).await
    }

    // A woken event is on its way to its role. If it never arrives, this finds it. What another
    // transaction has in hand is left for the next time.
    async fn take_overdue(&mut self, now: Timestamp, limit: u32) -> Result<Vec<ParkedRow>> {
        const OVERDUE: &str = "
            SELECT role, `key`, awaits, message_id, event_type, message, headers, parked_at, deadline, woken_at
            FROM parked_event FORCE INDEX (parked_event_deadline)
            WHERE deadline <= ?
            ORDER BY deadline
            LIMIT ?
            FOR UPDATE SKIP LOCKED";
        const TAKE: &str = "
            DELETE parked
            FROM JSON_TABLE(?, '$[*]' COLUMNS (
                role VARBINARY(255) PATH '$[0]',
                `key` VARBINARY(191) PATH '$[1]')) AS taken
            STRAIGHT_JOIN parked_event AS parked FORCE INDEX (PRIMARY)
                ON parked.role = taken.role AND parked.`key` = taken.`key`";
        let select = sqlx::query(OVERDUE).bind(now.0).bind(limit);
        let rows = self.fetch(select).await?;
        if rows.is_empty() {
            return Ok(Vec::new());
        }
        let mut taken = rows.iter().map(parked).collect::<Result<Vec<_>>>()?;
        let set = keys(
            taken
                .iter()
                .map(|row| (row.role.as_str(), row.key.as_str())),
        )?;
        let deleted = self.execute(sqlx::query(TAKE).bind(set)).await?;
        all_written("parked_event", deleted, taken.len())?;
        taken.sort_by(|a, b| {
            (a.deadline, a.parked_at, &a.key).cmp(&(b.deadline, b.parked_at, &b.key))
        });
        Ok(taken)
    }
}

/// Reads `role, key, awaits, message_id, event_type, message, headers, parked_at, deadline,
/// woken_at`.
pub(super) fn parked(row: &MySqlRow) -> Result<ParkedRow> {
    let row = Reader::new(row, "parked_event", 2);
    Ok(ParkedRow {
        role: RoleName::new(row.text(0)?.to_owned()),
        key: Key::stored(row.text(1)?),
        awaits: Token::stored(row.text(2)?),
        message_id: row.text(3)?.to_owned(),
        event_type: row.text(4)?.to_owned(),
        message: row.text(5)?.to_owned(),
        headers: row.json(6)?,
        parked_at: Timestamp(row.get(7)?),
        deadline: Timestamp(row.get(8)?),
        woken_at: row.get::<Option<i64>>(9)?.map(Timestamp),
    })
}
