//! `outbox`, `lease`.
//!
//! A number is taken before its row is committed, so rows may appear below others that are there
//! already. Those of one aggregate still stand in the order of their commits: who writes about an
//! order has locked its row, and takes the numbers after that.

use super::set::{Reader, column, headers, readable};
use super::{PostgresStore, PostgresTx};
use crate::domain::{RoleName, Timestamp};
use crate::store::{Lease, Leased, NewOutbox, Outbox, OutboxAppend, OutboxRow, Result};
use async_trait::async_trait;
use sqlx::postgres::PgRow;
use std::sync::{MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// How much is kept of what the broker said, in characters.
const LAST_ERROR_CHARS: usize = 500;

/// How often the lowest number is looked for.
const LOOK_EVERY: Duration = Duration::from_secs(1);

#[async_trait]
impl OutboxAppend for PostgresTx {
    async fn append(&mut self, now: Timestamp, rows: &[NewOutbox]) -> Result<()> {
        // unnest gives the rows in their order, so that they are numbered in it. ORDER BY would copy
        // every message once more.
        const APPEND: &str = "
            INSERT INTO outbox (aggregate, addressee, event_type, message_id, headers, message, created_at)
            SELECT aggregate, addressee, event_type, message_id, headers, message, $1
            FROM unnest($2::bytea[], $3::text[], $4::bytea[], $5::bytea[], $6::text[], $7::bytea[])
                AS new (aggregate, addressee, event_type, message_id, headers, message)";
        if rows.is_empty() {
            return Ok(());
        }
        let texts = rows.iter().map(|row| headers(&row.headers));
        let insert = sqlx::query(APPEND)
            .bind(now.0)
            .bind(column(rows, |row| row.aggregate.as_bytes()))
            .bind(column(rows, |row| {
                row.addressee.as_ref().map(RoleName::as_str)
            }))
            .bind(column(rows, |row| row.event_type.as_bytes()))
            .bind(column(rows, |row| row.message_id.as_bytes()))
            .bind(texts.collect::<Result<Vec<_>>>()?)
            .bind(column(rows, |row| &row.message[..]));
        self.execute(insert).await.map(drop)
    }
}

#[async_trait]
impl Leased for PostgresTx {
    async fn holds_lease(&mut self, name: &str, lease: Lease, now: Timestamp) -> Result<bool> {
        const HOLDS: &str =
            "SELECT 1 FROM lease WHERE name = $1 AND fence = $2 AND until > $3 FOR UPDATE";
        let select = sqlx::query(HOLDS).bind(name).bind(lease.fence).bind(now.0);
        Ok(!self.fetch(select).await?.is_empty())
    }
}

#[async_trait]
impl Outbox for PostgresStore {
    // Free if it has ended; its holder may renew it as often as it likes.
    async fn lease(&self, name: &str, holder: &str, duration: Duration) -> Result<Option<Lease>> {
        const LEASE: &str = "
            WITH clock AS MATERIALIZED (
                SELECT floor(extract(epoch FROM clock_timestamp()) * 1000)::bigint + $4 AS now)
            INSERT INTO lease (name, holder, fence, until)
            SELECT $1, $2, 1, now + $3 FROM clock
            ON CONFLICT (name) DO UPDATE
            SET fence = lease.fence
                    + (lease.holder <> excluded.holder OR lease.until <= excluded.until - $3)::int,
                holder = excluded.holder,
                until = excluded.until
            WHERE lease.holder = excluded.holder OR lease.until <= excluded.until - $3
            RETURNING fence, until";
        let lease = sqlx::query(LEASE)
            .bind(name)
            .bind(holder)
            .bind(milliseconds(duration))
            .bind(self.database.skew());
        let rows = self.database.fetch(lease).await?;
        let Some(row) = rows.first() else {
            return Ok(None);
        };
        let row = Reader::new(row, "lease", 0);
        Ok(Some(Lease {
            fence: row.get(0)?,
            until: Timestamp(row.get(1)?),
        }))
    }

    async fn give_back_lease(&self, name: &str, lease: Lease) -> Result<()> {
        const GIVE_BACK: &str = "UPDATE lease SET until = 0 WHERE name = $1 AND fence = $2";
        let update = sqlx::query(GIVE_BACK).bind(name).bind(lease.fence);
        self.database.execute(update).await.map(drop)
    }

    async fn outbox_head(&self, limit: usize) -> Result<Vec<OutboxRow>> {
        // retry_at > 0 says nothing new; it lets the partial index be used.
        const HEAD: &str = "
            WITH clock AS MATERIALIZED (
                SELECT floor(extract(epoch FROM clock_timestamp()) * 1000)::bigint + $3 AS now)
            SELECT id, aggregate, addressee, event_type, message_id, headers, message, created_at, failures, last_error
            FROM outbox AS candidate
            WHERE id >= $1 AND retry_at <= (SELECT now FROM clock) AND NOT EXISTS (
                SELECT 1 FROM outbox AS older
                WHERE older.aggregate = candidate.aggregate AND older.id < candidate.id
                    AND older.retry_at > 0 AND older.retry_at > (SELECT now FROM clock))
            ORDER BY id
            LIMIT $2";
        let floor = self.floor().await?;
        let select = sqlx::query(HEAD)
            .bind(floor)
            .bind(i64::try_from(limit).unwrap_or(i64::MAX))
            .bind(self.database.skew());
        let rows = self.database.fetch(select).await?;
        let rows: Vec<_> = rows.iter().map(outbox_row).collect::<Result<_>>()?;
        if let Some(last) = rows.last() {
            self.head().read(last.id);
        }
        Ok(rows)
    }

    async fn remove_published(&self, name: &str, lease: Lease, ids: &[i64]) -> Result<u64> {
        const REMOVE: &str = "
            DELETE FROM outbox
            WHERE id = ANY ($3) AND EXISTS (SELECT 1 FROM lease WHERE name = $1 AND fence = $2)";
        if ids.is_empty() {
            return Ok(0);
        }
        let delete = sqlx::query(REMOVE).bind(name).bind(lease.fence).bind(ids);
        self.database.execute(delete).await
    }

    async fn postpone(&self, failed: &[(i64, String)], delay: Duration) -> Result<()> {
        const POSTPONE: &str = "
            UPDATE outbox
            SET retry_at = floor(extract(epoch FROM statement_timestamp()) * 1000)::bigint + $1 + $2,
                failures = failures + 1, last_error = new.said
            FROM unnest($3::bigint[], $4::text[]) AS new (id, said)
            WHERE outbox.id = new.id";
        if failed.is_empty() {
            return Ok(());
        }
        let said = failed.iter().map(|(_, said)| {
            let said: String = said.chars().take(LAST_ERROR_CHARS).collect();
            readable(&said).into_owned()
        });
        let update = sqlx::query(POSTPONE)
            .bind(self.database.skew())
            .bind(milliseconds(delay))
            .bind(column(failed, |(id, _)| *id))
            .bind(said.collect::<Vec<_>>());
        self.database.execute(update).await.map(drop)
    }

    async fn outbox_depth(&self) -> Result<(u64, Option<Timestamp>)> {
        const DEPTH: &str = "
            SELECT count(*), (SELECT created_at FROM outbox ORDER BY id LIMIT 1) FROM outbox";
        let rows = self.database.fetch(sqlx::query(DEPTH)).await?;
        let Some(row) = rows.first() else {
            return Ok((0, None));
        };
        let row = Reader::new(row, "outbox", 0);
        Ok((row.count(0)?, row.get::<Option<i64>>(1)?.map(Timestamp)))
    }
}

impl PostgresStore {
    /// The number below which [`Outbox::outbox_head`] need not look.
    async fn floor(&self) -> Result<i64> {
        const LOWEST: &str = "SELECT min(id) FROM outbox";
        let now = Instant::now();
        if !self.head().is_due(now) {
            return Ok(self.head().floor);
        }
        let rows = self.database.fetch(sqlx::query(LOWEST)).await?;
        let lowest = match rows.first() {
            Some(row) => Reader::new(row, "outbox", 0).get(0)?,
            None => None,
        };
        Ok(self.head().looked(now, lowest))
    }

    fn head(&self) -> MutexGuard<'_, Head> {
        self.head.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Where the head of the outbox is. Until the next vacuum, removed rows still lie below it in the
/// index, up to a minute's worth of them; reading the head past all of them would take longer than
/// publishing it.
///
/// So the lowest number is looked for from time to time only, and in between the head is read from the
/// number that was the lowest at the look before the last one. A row that appears below that was
/// written by a transaction that took longer than the time between two looks: the next look finds it.
#[derive(Debug, Default)]
pub(super) struct Head {
    floor: i64,
    /// The floor from the next look on.
    next_floor: i64,
    looked: Option<Instant>,
    /// The highest number that was read.
    highest: i64,
}

impl Head {
    fn is_due(&self, now: Instant) -> bool {
        self.looked
            .is_none_or(|looked| now.saturating_duration_since(looked) >= LOOK_EVERY)
    }

    /// Takes the lowest number that is there, if there is any; returns the floor.
    fn looked(&mut self, now: Instant, lowest: Option<i64>) -> i64 {
        let lowest = lowest.unwrap_or(self.highest.saturating_add(1));
        self.floor = self.next_floor.min(lowest);
        self.next_floor = lowest;
        self.looked = Some(now);
        self.floor
    }

    fn read(&mut self, id: i64) {
        self.highest = self.highest.max(id);
    }
}

/// A duration that can be added to any time.
fn milliseconds(duration: Duration) -> i64 {
    const MAX: i64 = 1 << 53;
    i64::try_from(duration.as_millis()).map_or(MAX, |number| number.min(MAX))
}

/// Reads `id, aggregate, addressee, event_type, message_id, headers, message, created_at, failures,
/// last_error`.
pub(super) fn outbox_row(row: &PgRow) -> Result<OutboxRow> {
    let row = Reader::new(row, "outbox", 1);
    Ok(OutboxRow {
        id: row.get(0)?,
        aggregate: row.text(1)?,
        addressee: row.get::<Option<String>>(2)?.map(RoleName::new),
        event_type: row.text(3)?,
        message_id: row.text(4)?,
        headers: row.json(5)?,
        message: row.get(6)?,
        created_at: Timestamp(row.get(7)?),
        failures: row.count(8)?,
        last_error: row.get(9)?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The floors after looks that found these numbers lowest, a second apart.
    fn floors(head: &mut Head, lowest: &[Option<i64>]) -> Vec<i64> {
        let start = Instant::now();
        let looks = lowest.iter().zip(0_u32..);
        looks
            .map(|(&lowest, second)| head.looked(start + LOOK_EVERY * second, lowest))
            .collect()
    }

    #[test]
    fn the_head_is_read_from_what_was_lowest_at_the_look_before_the_last() {
        let lowest = [Some(100), Some(300), Some(500), Some(500)];
        assert_eq!(floors(&mut Head::default(), &lowest), [0, 100, 300, 500]);
    }

    #[test]
    fn a_row_that_appears_below_the_floor_is_found_by_the_next_look() {
        let lowest = [Some(100), Some(300), Some(500), Some(7), Some(600)];
        assert_eq!(floors(&mut Head::default(), &lowest), [0, 100, 300, 7, 7]);
    }

    #[test]
    fn an_empty_outbox_begins_after_what_was_read() {
        let mut head = Head::default();
        assert_eq!(floors(&mut head, &[None, None]), [0, 1]);
        head.read(256);
        head.read(255);
        assert_eq!(floors(&mut head, &[None, None, Some(900)]), [1, 257, 257]);
    }

    #[test]
    fn a_look_is_due_at_first_and_a_second_after_each() {
        let mut head = Head::default();
        let now = Instant::now();
        assert!(head.is_due(now));
        head.looked(now, None);
        assert!(!head.is_due(now + LOOK_EVERY / 2));
        assert!(head.is_due(now + LOOK_EVERY));
    }
}
