//! `repair`: what can be put right without judgement, and the record of what was.
//!
//! A fault is found without a lock and repaired in a transaction of its own, under a guard that names
//! what was found: whoever was first, another repair or the workers, has it.

use super::Result;
use crate::domain::{Key, RoleName, Timestamp, Token};
use async_trait::async_trait;
use serde::Serialize;
use std::time::Duration;
use strum::{Display, IntoStaticStr};

/// A kind of repair.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Display, IntoStaticStr, Serialize)]
#[strum(serialize_all = "snake_case")]
#[serde(rename_all = "snake_case")]
pub enum Repair {
    /// A parked event is woken, because what it awaits is true.
    Wake,
    /// A row of the outbox that waits after a failure is due at once.
    MakeDue,
    /// A lease that ends later than any can ends now.
    EndLease,
    /// A delivery of the embedded queue whose lease ends later than any can is due at once.
    EndDelivery,
}

/// A parked event that was not woken.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Unwoken {
    /// The role that parked it.
    pub role: RoleName,
    /// Its key.
    pub key: Key,
    /// What it awaits.
    pub awaits: Token,
    /// What it is about.
    pub subject: String,
    /// When it was parked first.
    pub parked_at: Timestamp,
}

/// A row of the outbox that waits after a failure.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Postponed {
    /// Its number.
    pub id: i64,
    /// What it is about.
    pub aggregate: String,
    /// The type of its event.
    pub event_type: String,
    /// Until when it waits.
    pub retry_at: Timestamp,
    /// How often the broker refused or returned it.
    pub failures: u32,
    /// What the broker said last.
    pub last_error: Option<String>,
}

/// A lease that somebody holds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HeldLease {
    /// Its name.
    pub name: String,
    /// Who holds it.
    pub holder: String,
    /// The holder's fence.
    pub fence: i64,
    /// When it ends.
    pub until: Timestamp,
}

/// A repair to be recorded.
#[derive(Debug, Clone)]
pub struct NewRepair<'a> {
    /// Who repairs.
    pub actor: &'a str,
    /// What is done.
    pub what: Repair,
    /// What it is about, such as an order.
    pub subject: &'a str,
    /// The role and key of the parked event, if it is one.
    pub claim: Option<(&'a RoleName, &'a Key)>,
    /// What was found.
    pub before: &'a str,
    /// What became of it.
    pub after: &'a str,
}

/// A row of `repair`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct RepairRow {
    /// Its number.
    pub id: i64,
    /// When it was repaired.
    pub at: Timestamp,
    /// Who repaired it.
    pub actor: String,
    /// What was done: the name of a [`Repair`].
    pub what: String,
    /// What it is about.
    pub subject: String,
    /// The role of the parked event, if it is one.
    pub role: Option<RoleName>,
    /// The key of the parked event, if it is one.
    pub key: Option<Key>,
    /// What was found.
    pub before: String,
    /// What became of it.
    pub after: String,
}

/// Finding faults. None of these writes or locks. Parked events that were missed are found by the
/// check `parked_and_possible` of [`super::Audit`].
#[async_trait]
pub trait Faults {
    /// The parked event of a key; `None` if it is not there or was woken.
    ///
    /// # Errors
    /// [`super::Error::Unavailable`].
    async fn unwoken(&self, role: &str, key: &str) -> Result<Option<Unwoken>>;

    /// Up to `limit` rows of the outbox that wait after a failure, oldest first: those that were
    /// written more than `stuck_after` ago, or would wait longer than that from now on.
    ///
    /// # Errors
    /// [`super::Error::Unavailable`].
    async fn postponed(&self, stuck_after: Duration, limit: u32) -> Result<Vec<Postponed>>;

    /// The lease `name`, if it lasts longer than `longest` from now on.
    ///
    /// # Errors
    /// [`super::Error::Unavailable`].
    async fn lease_beyond(&self, name: &str, longest: Duration) -> Result<Option<HeldLease>>;
}

/// Repairing, within a transaction.
#[async_trait]
pub trait Repairs {
    /// The parked events that await a token and were not woken, by role and key.
    ///
    /// # Errors
    /// [`super::Error::Unavailable`].
    async fn unwoken_by(&mut self, token: &Token) -> Result<Vec<Unwoken>>;

    /// Lets a row of the outbox wait no longer, guarded by what was found of it. Returns whether it
    /// did.
    ///
    /// # Errors
    /// [`super::Error::Unavailable`].
    async fn make_due(&mut self, row: &Postponed) -> Result<bool>;

    /// Ends a lease, guarded by holder, fence and end. The fence stays: it grows when somebody takes
    /// the lease. Returns whether it ended.
    ///
    /// # Errors
    /// [`super::Error::Unavailable`].
    async fn end_lease(&mut self, lease: &HeldLease) -> Result<bool>;

    /// Records what was repaired.
    ///
    /// # Errors
    /// [`super::Error::Unavailable`].
    async fn record_repair(&mut self, now: Timestamp, repair: &NewRepair<'_>) -> Result<()>;
}
