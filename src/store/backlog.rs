//! What waits, and how busy the connections are: read again and again by whoever watches a process.

use super::Result;
use crate::domain::Timestamp;
use async_trait::async_trait;

/// Rows of a table are counted up to so many: whoever watches must not go through a large one.
pub const COUNTED: u32 = 10_000;

/// What waits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Backlog {
    /// What is to be published.
    pub outbox: Waiting,
    /// Events that came too early. The oldest is the one whose deadline is first.
    pub parked: Waiting,
    /// Dead letters that wait for a person; those over [`COUNTED`] are not counted.
    pub dead: u64,
    /// The database's clock.
    pub now: Timestamp,
}

/// Rows that wait.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Waiting {
    /// How many; those over [`COUNTED`] are not counted.
    pub rows: u64,
    /// Since when the oldest does.
    pub oldest: Option<Timestamp>,
}

/// How many connections a store has open.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Occupancy {
    /// In use.
    pub in_use: u64,
    /// Open and not in use.
    pub idle: u64,
    /// Callers that wait for one, if that is known.
    pub waiting: Option<u64>,
}

/// What is read to watch a store.
#[async_trait]
pub trait Watch {
    /// What waits, by indexes alone.
    ///
    /// # Errors
    /// [`super::Error::Unavailable`].
    async fn backlog(&self) -> Result<Backlog>;

    /// How many connections are open. Asks nobody.
    fn occupancy(&self) -> Occupancy;
}
