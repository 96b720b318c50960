//! How long claims are kept: a claim that is older than its life is marked as expired, and one that was
//! marked long enough ago is removed.
//!
//! A marked claim still stops its copies; only its message is gone. Marking gives people time to look, and
//! makes sure that nothing goes by one wrong number. What must not expire at all is left alone: a claim
//! that is parked, and one with a dead letter that may still be replayed.

use super::Result;
use crate::domain::{RoleName, Timestamp};
use async_trait::async_trait;
use serde::Serialize;
use std::time::Duration;

/// The name of the lease of whoever does it, and of the row in `retention`.
pub const CLAIMS: &str = "claims";

/// What one step did.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Swept {
    /// Rows that were marked or removed.
    pub rows: u64,
    /// The time of the youngest of them, from which the next step may go on.
    pub through: Option<Timestamp>,
}

/// How many claims there are, and since when.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Kept {
    /// In use.
    pub live: u64,
    /// When the oldest of them was made.
    pub oldest_live: Option<Timestamp>,
    /// Marked as expired.
    pub expired: u64,
    /// When the first of them was marked.
    pub oldest_expired: Option<Timestamp>,
    /// Removed so far.
    pub removed: u64,
    /// When the youngest of the removed ones was concluded.
    pub removed_through: Option<Timestamp>,
    /// Until when somebody has the right to go on, or nobody looks again.
    pub next: Option<Timestamp>,
    /// The database's clock.
    pub now: Timestamp,
}

/// What retention does with `idempotent_record`. Each step is a transaction of its own over few rows that
/// it finds by an index, and waits for nobody: rows that somebody else has locked are left for later.
#[async_trait]
pub trait Retention {
    /// Marks up to `limit` claims that were made at `from` or later and concluded longer than `life` ago,
    /// oldest first, and forgets their messages.
    ///
    /// # Errors
    /// [`super::Error::Unavailable`].
    async fn expire_claims(&self, life: Duration, from: Timestamp, limit: u32) -> Result<Swept>;

    /// Removes up to `limit` claims that were marked at `from` or later and longer than `archive` ago,
    /// oldest first, and notes it.
    ///
    /// # Errors
    /// [`super::Error::Unavailable`].
    async fn remove_claims(&self, archive: Duration, from: Timestamp, limit: u32) -> Result<Swept>;

    /// Counts. Goes through an index of all claims.
    ///
    /// # Errors
    /// [`super::Error::Unavailable`].
    async fn kept_claims(&self) -> Result<Kept>;

    /// Up to `limit` keys of a role that were settled for good and made between `since` and `until`,
    /// youngest first, with the time of each.
    ///
    /// # Errors
    /// [`super::Error::Unavailable`].
    async fn recent_keys(
        &self,
        role: &RoleName,
        since: Timestamp,
        until: Timestamp,
        limit: u32,
    ) -> Result<Vec<(String, Timestamp)>>;
}
