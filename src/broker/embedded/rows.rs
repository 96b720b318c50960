//! The statements of the queue. Each transaction takes the clock after it has the write lock, so
//! that rows become visible in the order of their commits.

use super::{Options, Shared};
use crate::broker::{Delivery, Depth, Headers, Publication, Settlement, Tag};
use crate::domain::{RoleName, Timestamp};
use crate::store::sqlite::from_sqlx;
use crate::store::{Error, Result, WOKEN};
use bytes::Bytes;
use serde::Serialize;
use sqlx::sqlite::SqliteConnection;
use std::ops::Range;
use std::time::Duration;

/// A message as it stands in the table.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Kept {
    /// The role whose queue it is in.
    pub queue: RoleName,
    /// The id it was published with.
    pub message_id: String,
    /// The message.
    pub message: Bytes,
    /// Whether it had been parked and was handed back.
    pub woken: bool,
    /// How often it was delivered.
    pub deliveries: u32,
    /// Whether it was acknowledged.
    pub acked: bool,
}

/// A delivery whose lease ends later than any can: its consumer's clock was ahead.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Held {
    /// The row and its fence.
    pub tag: Tag,
    /// The role whose queue it is in.
    pub queue: RoleName,
    /// The id that the message was published with.
    pub message_id: String,
    /// The message.
    pub message: Bytes,
    /// When the lease ends.
    pub until: Timestamp,
}

/// A message for one queue.
#[derive(Debug)]
pub(super) struct Routed<'a> {
    pub(super) queue: &'a RoleName,
    pub(super) publication: &'a Publication,
}

/// What one statement inserts: the rows as JSON, and the messages as one blob that the rows cut
/// their bytes from. So no byte is escaped, and a message for many queues is passed once.
#[derive(Debug, Default)]
pub(super) struct Insertion {
    rows: String,
    messages: Vec<u8>,
}

impl Insertion {
    /// About as many bytes as one statement should carry.
    const SIZE: usize = 16 << 20;

    /// Splits messages into insertions, in order.
    pub(super) fn of(routed: &[Routed<'_>]) -> Result<Vec<Self>> {
        let mut insertions = Vec::new();
        let mut rest = routed;
        while !rest.is_empty() {
            // SQLite cuts nothing out of an empty blob, not even an empty message.
            let mut messages = vec![0];
            let mut rows = Vec::new();
            let mut last: Option<(&Publication, Range<usize>)> = None;
            while let Some((next, others)) = rest.split_first() {
                if messages.len() >= Self::SIZE {
                    break;
                }
                rest = others;
                let publication = next.publication;
                let range = match last.take() {
                    Some((same, range)) if std::ptr::eq(same, publication) => range,
                    _ => {
                        let start = messages.len();
                        messages.extend_from_slice(&publication.message);
                        start..messages.len()
                    }
                };
                let headers = json(&publication.headers)?;
                let id = publication.message_id.as_str();
                // SQLite counts bytes from 1.
                rows.push((next.queue, id, range.start + 1, range.len(), headers));
                last = Some((publication, range));
            }
            let rows = json(&rows)?;
            insertions.push(Self { rows, messages });
        }
        Ok(insertions)
    }
}

const PUBLISH: &str = "
    INSERT INTO queue_message (queue, message_id, message, headers, visible_at)
    SELECT value ->> 0, value ->> 1, substr(?2, value ->> 2, value ->> 3), value ->> 4, ?3
    FROM json_each(?1)
    ORDER BY json_each.rowid";

/// Publishes all or nothing.
pub(super) async fn publish(shared: &Shared, insertions: &[Insertion]) -> Result<()> {
    let mut tx = shared.database.begin().await?;
    let now = shared.database.now();
    for insertion in insertions {
        sqlx::query(PUBLISH)
            .bind(insertion.rows.as_str())
            .bind(insertion.messages.as_slice())
            .bind(now.0)
            .execute(&mut *tx)
            .await
            .map_err(from_sqlx)?;
    }
    tx.commit().await.map_err(from_sqlx)
}

const NEXT_DUE: &str = "
    SELECT visible_at FROM queue_message
    WHERE queue = ?1 AND acked_at IS NULL AND unsettled < ?2
    ORDER BY visible_at, id LIMIT 1";

/// When the next message of a queue is to be delivered; in the past if one is waiting. Takes no
/// lock.
pub(super) async fn next_due(shared: &Shared, queue: &RoleName) -> Result<Option<Timestamp>> {
    let due: Option<i64> = sqlx::query_scalar(NEXT_DUE)
        .bind(queue.as_str())
        .bind(shared.options.delivery_limit)
        .fetch_optional(shared.database.readers())
        .await
        .map_err(from_sqlx)?;
    Ok(due.map(Timestamp))
}

/// Deliveries, and until when they belong to their consumer.
#[derive(Debug)]
pub(super) struct Leased {
    pub(super) deliveries: Vec<Delivery>,
    pub(super) until: Timestamp,
}

type DeliveryRow = (i64, i64, Vec<u8>, String, u32, u32);

type DueRow = (i64, i64, Vec<u8>, String, u32, u32, u32);

const DUE: &str = "
    SELECT id, fence + 1, message, headers, attempt, deliveries + 1, unsettled FROM queue_message
    WHERE queue = ?1 AND acked_at IS NULL AND visible_at <= ?2 AND unsettled < ?3
    ORDER BY visible_at, id LIMIT ?4";

const LEASE: &str = "
    UPDATE queue_message
    SET visible_at = ?2, leased = 1, fence = fence + 1,
        deliveries = deliveries + 1, unsettled = unsettled + 1
    WHERE id IN (SELECT value FROM json_each(?1))";

/// Leases that ended without a word after which a message is leased alone. One may have been any
/// restart; from the second on, the message may be what ends the process.
const SUSPECT_AFTER: u32 = 2;

/// Leaves of the messages that are due those that are leased together, and returns for how long.
///
/// That is all before the first suspect, or the suspect alone: a killer takes no neighbour along to
/// the delivery limit. A suspect's lease ends somewhat early, at random, so that what another role
/// of the killed process had in hand is not due again in the very moment when the killer is.
fn together(due: &mut Vec<DueRow>, options: &Options) -> Duration {
    let suspect_after = SUSPECT_AFTER.min(options.delivery_limit - 1);
    let is_suspect = |&(.., unsettled): &DueRow| unsettled >= suspect_after;
    match due.iter().position(is_suspect) {
        Some(0) => {
            due.truncate(1);
            options.lease.mul_f64(1.0 - fastrand::f64() / 2.0)
        }
        Some(before) => {
            due.truncate(before);
            options.lease
        }
        None => options.lease,
    }
}

/// Leases up to `max` messages, oldest first. The write lock is held from the first statement, so
/// that the second one meets the rows that the first one read.
pub(super) async fn lease(shared: &Shared, queue: &RoleName, max: usize) -> Result<Leased> {
    let mut tx = shared.database.begin().await?;
    let now = shared.database.now();
    let mut due: Vec<DueRow> = sqlx::query_as(DUE)
        .bind(queue.as_str())
        .bind(now.0)
        .bind(shared.options.delivery_limit)
        .bind(limit(max))
        .fetch_all(&mut *tx)
        .await
        .map_err(from_sqlx)?;
    let until = now.plus(together(&mut due, &shared.options));
    let due = due.into_iter();
    let due = due.map(|(id, fence, message, headers, attempt, deliveries, _)| {
        delivery((id, fence, message, headers, attempt, deliveries))
    });
    let deliveries: Vec<Delivery> = due.collect();
    if !deliveries.is_empty() {
        let ids: Vec<i64> = deliveries.iter().map(|delivery| delivery.tag.id).collect();
        sqlx::query(LEASE)
            .bind(json(&ids)?)
            .bind(until.0)
            .execute(&mut *tx)
            .await
            .map_err(from_sqlx)?;
    }
    tx.commit().await.map_err(from_sqlx)?;
    Ok(Leased { deliveries, until })
}

/// Settlements by what they do, as each statement takes them.
#[derive(Debug, Default)]
pub(super) struct Settlements {
    acks: Vec<(i64, i64)>,
    retries: Vec<(i64, i64, i64)>,
    releases: Vec<(i64, i64)>,
    laters: Vec<(i64, i64, i64)>,
    abandoned: Vec<(i64, i64)>,
}

impl Settlements {
    pub(super) fn of(settlements: &[(Tag, Settlement)]) -> Self {
        let mut sorted = Self::default();
        for &(Tag { id, fence }, settlement) in settlements {
            match settlement {
                Settlement::Ack => sorted.acks.push((id, fence)),
                Settlement::Retry(delay) => sorted.retries.push((id, fence, milliseconds(delay))),
                Settlement::Release => sorted.releases.push((id, fence)),
                Settlement::Later(delay) => sorted.laters.push((id, fence, milliseconds(delay))),
            }
        }
        sorted
    }

    /// Hands over to others what a consumer leaves behind: `untouched` was seen by nobody,
    /// `unsettled` may be what ended the consumer and stays counted.
    pub(super) fn leaving(
        untouched: impl Iterator<Item = Tag>,
        unsettled: impl Iterator<Item = Tag>,
    ) -> Self {
        Self {
            releases: untouched.map(|tag| (tag.id, tag.fence)).collect(),
            abandoned: unsettled.map(|tag| (tag.id, tag.fence)).collect(),
            ..Self::default()
        }
    }

    pub(super) fn len(&self) -> usize {
        self.acks.len()
            + self.retries.len()
            + self.releases.len()
            + self.laters.len()
            + self.abandoned.len()
    }

    /// Whether something of it may become visible again.
    pub(super) fn hands_back(&self) -> bool {
        self.len() > self.acks.len()
    }
}

// Each of these is guarded by queue, fence and lease. The joins are written so that the set is
// scanned and each row found by its id.

const DELETE_ACKED: &str = "
    DELETE FROM queue_message WHERE id IN (
        SELECT held.id FROM json_each(?1) AS tag
        CROSS JOIN queue_message AS held ON held.id = tag.value ->> 0
        WHERE held.fence = tag.value ->> 1
          AND held.queue = ?2 AND held.leased = 1 AND held.acked_at IS NULL)";

const MARK_ACKED: &str = "
    UPDATE queue_message SET acked_at = ?3, leased = 0, unsettled = 0
    FROM json_each(?1) AS tag
    WHERE queue_message.id = tag.value ->> 0 AND fence = tag.value ->> 1
      AND queue = ?2 AND leased = 1 AND acked_at IS NULL";

const RETRY: &str = "
    UPDATE queue_message
    SET visible_at = ?3 + (tag.value ->> 2), attempt = attempt + 1, leased = 0, unsettled = 0
    FROM json_each(?1) AS tag
    WHERE queue_message.id = tag.value ->> 0 AND fence = tag.value ->> 1
      AND queue = ?2 AND leased = 1 AND acked_at IS NULL";

const RELEASE: &str = "
    UPDATE queue_message
    SET visible_at = ?3, leased = 0, unsettled = max(unsettled - 1, 0)
    FROM json_each(?1) AS tag
    WHERE queue_message.id = tag.value ->> 0 AND fence = tag.value ->> 1
      AND queue = ?2 AND leased = 1 AND acked_at IS NULL";

const LATER: &str = "
    UPDATE queue_message
    SET visible_at = ?3 + (tag.value ->> 2), leased = 0, unsettled = max(unsettled - 1, 0)
    FROM json_each(?1) AS tag
    WHERE queue_message.id = tag.value ->> 0 AND fence = tag.value ->> 1
      AND queue = ?2 AND leased = 1 AND acked_at IS NULL";

const ABANDON: &str = "
    UPDATE queue_message
    SET visible_at = ?3, leased = 0
    FROM json_each(?1) AS tag
    WHERE queue_message.id = tag.value ->> 0 AND fence = tag.value ->> 1
      AND queue = ?2 AND leased = 1 AND acked_at IS NULL";

/// Settles in one transaction, guarded by fence and lease. Returns how many rows were settled.
pub(super) async fn settle(
    shared: &Shared,
    queue: &RoleName,
    settlements: &Settlements,
) -> Result<u64> {
    let ack = match shared.options.keep_acked {
        true => MARK_ACKED,
        false => DELETE_ACKED,
    };
    let Settlements {
        acks,
        retries,
        releases,
        laters,
        abandoned,
    } = settlements;
    let mut tx = shared.database.begin().await?;
    let now = shared.database.now();
    let mut settled = guarded(&mut tx, ack, queue, acks, now).await?;
    settled += guarded(&mut tx, RETRY, queue, retries, now).await?;
    settled += guarded(&mut tx, RELEASE, queue, releases, now).await?;
    settled += guarded(&mut tx, LATER, queue, laters, now).await?;
    settled += guarded(&mut tx, ABANDON, queue, abandoned, now).await?;
    tx.commit().await.map_err(from_sqlx)?;
    Ok(settled)
}

/// Runs a guarded statement over a set, unless the set is empty. Returns how many rows it changed.
/// A statement that has no use for the clock leaves `?3` out.
async fn guarded(
    connection: &mut SqliteConnection,
    statement: &'static str,
    queue: &RoleName,
    set: &[impl Serialize],
    now: Timestamp,
) -> Result<u64> {
    if set.is_empty() {
        return Ok(0);
    }
    let done = sqlx::query(statement)
        .bind(json(set)?)
        .bind(queue.as_str())
        .bind(now.0)
        .execute(connection)
        .await
        .map_err(from_sqlx)?;
    Ok(done.rows_affected())
}

const CRASHED: &str = "
    SELECT id, fence, message, headers, attempt, deliveries FROM queue_message
    WHERE queue = ?1 AND acked_at IS NULL AND visible_at <= ?2 AND unsettled >= ?3
    ORDER BY visible_at, id LIMIT ?4";

/// Messages at the delivery limit whose last lease is over, oldest first.
pub(super) async fn crashed(
    shared: &Shared,
    queue: &RoleName,
    max: usize,
) -> Result<Vec<Delivery>> {
    let rows: Vec<DeliveryRow> = sqlx::query_as(CRASHED)
        .bind(queue.as_str())
        .bind(shared.database.now().0)
        .bind(shared.options.delivery_limit)
        .bind(limit(max))
        .fetch_all(shared.database.readers())
        .await
        .map_err(from_sqlx)?;
    Ok(rows.into_iter().map(delivery).collect())
}

const DELETE_CRASHED: &str = "
    DELETE FROM queue_message WHERE id IN (
        SELECT crashed.id FROM json_each(?1) AS tag
        CROSS JOIN queue_message AS crashed ON crashed.id = tag.value ->> 0
        WHERE crashed.fence = tag.value ->> 1 AND crashed.queue = ?2
          AND crashed.visible_at <= ?3 AND crashed.unsettled >= tag.value ->> 2
          AND crashed.acked_at IS NULL)";

const MARK_CRASHED: &str = "
    UPDATE queue_message SET acked_at = ?3, leased = 0
    FROM json_each(?1) AS tag
    WHERE queue_message.id = tag.value ->> 0 AND fence = tag.value ->> 1 AND queue = ?2
      AND visible_at <= ?3 AND unsettled >= tag.value ->> 2
      AND acked_at IS NULL";

/// Forgets crashed messages, guarded by fence and limit: a late consumer may have settled one in
/// the meantime.
pub(super) async fn forget_crashed(shared: &Shared, queue: &RoleName, tags: &[Tag]) -> Result<()> {
    let statement = match shared.options.keep_acked {
        true => MARK_CRASHED,
        false => DELETE_CRASHED,
    };
    let limit = shared.options.delivery_limit;
    let set: Vec<(i64, i64, u32)> = tags.iter().map(|tag| (tag.id, tag.fence, limit)).collect();
    let mut tx = shared.database.begin().await?;
    let now = shared.database.now();
    guarded(&mut tx, statement, queue, &set, now).await?;
    tx.commit().await.map_err(from_sqlx)
}

const DEPTH: &str = "
    SELECT
        count(*) FILTER (WHERE visible_at <= ?2 AND unsettled < ?3),
        count(*) FILTER (WHERE visible_at > ?2 AND leased = 1),
        count(*) FILTER (WHERE visible_at > ?2 AND leased = 0),
        count(*) FILTER (WHERE visible_at <= ?2 AND unsettled >= ?3)
    FROM queue_message
    WHERE queue = ?1 AND acked_at IS NULL";

/// Counts the rows of a queue, each once.
pub(super) async fn depth(shared: &Shared, queue: &RoleName) -> Result<Depth> {
    let (ready, unsettled, delayed, crashed): (i64, i64, i64, i64) = sqlx::query_as(DEPTH)
        .bind(queue.as_str())
        .bind(shared.database.now().0)
        .bind(shared.options.delivery_limit)
        .fetch_one(shared.database.readers())
        .await
        .map_err(from_sqlx)?;
    Ok(Depth {
        ready: ready.unsigned_abs(),
        unsettled: Some(unsettled.unsigned_abs()),
        delayed: delayed.unsigned_abs(),
        crashed: crashed.unsigned_abs(),
    })
}

const HELD_BEYOND: &str = "
    SELECT id, fence, queue, message_id, message, visible_at FROM queue_message
    WHERE leased = 1 AND acked_at IS NULL AND visible_at > ?1
    ORDER BY id LIMIT ?2";

/// Deliveries whose lease lasts longer than a lease and `grace` from now on.
pub(super) async fn held_beyond(shared: &Shared, grace: Duration, limit: u32) -> Result<Vec<Held>> {
    let latest = shared.database.now().plus(shared.options.lease).plus(grace);
    let rows: Vec<(i64, i64, String, String, Vec<u8>, i64)> = sqlx::query_as(HELD_BEYOND)
        .bind(latest.0)
        .bind(limit)
        .fetch_all(shared.database.readers())
        .await
        .map_err(from_sqlx)?;
    let held =
        |(id, fence, queue, message_id, message, until): (_, _, String, _, Vec<u8>, _)| Held {
            tag: Tag { id, fence },
            queue: RoleName::new(queue),
            message_id,
            message: message.into(),
            until: Timestamp(until),
        };
    Ok(rows.into_iter().map(held).collect())
}

const END_LEASE: &str = "
    UPDATE queue_message SET visible_at = ?1
    WHERE id = ?2 AND fence = ?3 AND visible_at = ?4 AND leased = 1 AND acked_at IS NULL";

/// Ends a lease as its time would, guarded by fence and end. Returns whether it did.
pub(super) async fn end_lease(
    connection: &mut SqliteConnection,
    held: &Held,
    now: Timestamp,
) -> Result<bool> {
    let done = sqlx::query(END_LEASE)
        .bind(now.0)
        .bind(held.tag.id)
        .bind(held.tag.fence)
        .bind(held.until.0)
        .execute(connection)
        .await
        .map_err(from_sqlx)?;
    Ok(done.rows_affected() > 0)
}

type KeptRow = (String, String, Vec<u8>, bool, u32, bool);

const KEPT: &str = "
    SELECT queue, message_id, message, instr(headers, ?1) > 0, deliveries, acked_at IS NOT NULL
    FROM queue_message ORDER BY id";

/// Every row, in the order of publishing.
pub(super) async fn kept(shared: &Shared) -> Result<Vec<Kept>> {
    let rows: Vec<KeptRow> = sqlx::query_as(KEPT)
        .bind(format!("\"{WOKEN}\":"))
        .fetch_all(shared.database.readers())
        .await
        .map_err(from_sqlx)?;
    let kept = |(queue, message_id, message, woken, deliveries, acked): KeptRow| Kept {
        queue: RoleName::new(queue),
        message_id,
        message: message.into(),
        woken,
        deliveries,
        acked,
    };
    Ok(rows.into_iter().map(kept).collect())
}

/// A row as a delivery. Headers that somebody has spoiled by hand are left out, because a row that
/// cannot be read would hold up its whole queue.
fn delivery((id, fence, message, headers, attempt, deliveries): DeliveryRow) -> Delivery {
    let headers: Headers = serde_json::from_str(&headers).unwrap_or_else(|error| {
        tracing::warn!(id, %error, "the headers of a queued message are left out");
        Headers::new()
    });
    Delivery {
        tag: Tag { id, fence },
        message: message.into(),
        headers,
        attempt,
        deliveries,
    }
}

/// A delay in whole milliseconds, rounded up so that nothing comes early, and at most a century
/// so that no sum overflows.
fn milliseconds(delay: Duration) -> i64 {
    const CENTURY: Duration = Duration::from_secs(100 * 366 * 24 * 60 * 60);
    let rounded = delay.min(CENTURY).as_nanos().div_ceil(1_000_000);
    i64::try_from(rounded).unwrap_or(i64::MAX)
}

fn limit(max: usize) -> i64 {
    i64::try_from(max).unwrap_or(i64::MAX)
}

fn json(value: &(impl Serialize + ?Sized)) -> Result<String> {
    serde_json::to_string(value).map_err(|error| Error::Refused(error.to_string()))
}
