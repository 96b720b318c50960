//! `outbox`: what is to be published. `lease`: the right to do alone what one process at a time does, such as
//! publishing it.

use super::Result;
use crate::domain::{RoleName, Timestamp};
use async_trait::async_trait;
use serde::Serialize;
use std::collections::BTreeMap;
use std::time::Duration;

/// A message to be published.
#[derive(Debug, Clone)]
pub struct NewOutbox {
    /// What it is about; messages of one aggregate leave in the order of their rows.
    pub aggregate: String,
    /// The role whose queue it goes to; by its type if `None`.
    pub addressee: Option<RoleName>,
    /// The type of its event.
    pub event_type: String,
    /// Its id, the same at every attempt to publish it.
    pub message_id: String,
    /// Headers to publish it with.
    pub headers: BTreeMap<String, String>,
    /// The message.
    pub message: Vec<u8>,
}

/// A row of the outbox.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct OutboxRow {
    /// Its number.
    pub id: i64,
    /// What it is about.
    pub aggregate: String,
    /// The role whose queue it goes to; by its type if `None`.
    pub addressee: Option<RoleName>,
    /// The type of its event.
    pub event_type: String,
    /// Its message id.
    pub message_id: String,
    /// Headers to publish it with.
    pub headers: BTreeMap<String, String>,
    /// The message.
    #[serde(skip)]
    pub message: Vec<u8>,
    /// When it was written.
    pub created_at: Timestamp,
    /// How often the broker refused or returned it.
    pub failures: u32,
    /// What the broker said last.
    pub last_error: Option<String>,
}

/// Writing to the outbox, within the transaction of the effects.
#[async_trait]
pub trait OutboxAppend {
    /// Appends rows, in order.
    ///
    /// # Errors
    /// [`super::Error::Unavailable`].
    async fn append(&mut self, now: Timestamp, rows: &[NewOutbox]) -> Result<()>;
}

/// The right to do something alone, for a time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Lease {
    /// Grows with every change of the holder; a holder of an older one is fenced off.
    pub fence: i64,
    /// When it ends unless it is renewed.
    pub until: Timestamp,
}

/// What a transaction writes as the holder of a lease.
#[async_trait]
pub trait Leased {
    /// Whether the lease `name` is still this one and has not ended at `now`, by the database's clock. If so, nobody
    /// takes it before the transaction ends: what is written until then is written by its only holder.
    ///
    /// # Errors
    /// [`super::Error::Unavailable`].
    async fn holds_lease(&mut self, name: &str, lease: Lease, now: Timestamp) -> Result<bool>;
}

/// What the relay does with the outbox.
#[async_trait]
pub trait Outbox {
    /// Takes or renews the lease `name` for `holder`. `None` while somebody else holds it.
    ///
    /// # Errors
    /// [`super::Error::Unavailable`].
    async fn lease(&self, name: &str, holder: &str, duration: Duration) -> Result<Option<Lease>>;

    /// Gives a lease back, so that another holder need not wait for its end.
    ///
    /// # Errors
    /// [`super::Error::Unavailable`].
    async fn give_back_lease(&self, name: &str, lease: Lease) -> Result<()>;

    /// The oldest rows, in order, without those that wait after a failure and without younger rows
    /// of the same aggregates.
    ///
    /// # Errors
    /// [`super::Error::Unavailable`].
    async fn outbox_head(&self, limit: usize) -> Result<Vec<OutboxRow>>;

    /// Removes rows that the broker has confirmed, guarded by the lease `name`. Returns how many: 0
    /// if the holder is fenced off.
    ///
    /// # Errors
    /// [`super::Error::Unavailable`].
    async fn remove_published(&self, name: &str, lease: Lease, ids: &[i64]) -> Result<u64>;

    /// Lets rows that the broker refused or returned wait for `delay`, and notes what it said.
    ///
    /// # Errors
    /// [`super::Error::Unavailable`].
    async fn postpone(&self, failed: &[(i64, String)], delay: Duration) -> Result<()>;

    /// How many rows there are, and when the oldest was written.
    ///
    /// # Errors
    /// [`super::Error::Unavailable`].
    async fn outbox_depth(&self) -> Result<(u64, Option<Timestamp>)>;
}
