//! The database: claims, parked events, outbox, dead letters, and the tables of the roles.
//!
//! What lives here: one trait per group of tables, the rows they speak of, and a folder per
//! database with the same files and functions in each. What deliberately does not: business rules.
//! A decision comes in as data; SQL repeats nothing of it but the guard, `status = ? AND version =
//! ?`, and every function that guards says so.
//!
//! All functions that write take sets and run one statement for the whole set.

mod accounts;
mod audit;
mod backlog;
mod callbacks;
mod claims;
mod dead_letters;
mod error;
mod history;
mod inventory;
pub mod mysql;
#[cfg(target_os = "linux")]
mod nodelay;
mod orders;
mod outbox;
mod parking;
pub mod postgres;
mod queue;
mod repairs;
mod retention;
pub mod sqlite;
mod statements;
mod views;

pub use accounts::{AccountUpdate, Accounts, CreditState};
pub use audit::{About, Audit, CHECKS, Check, Difference, Subject};
pub use backlog::{Backlog, COUNTED, Occupancy, Waiting, Watch};
pub use callbacks::{CallbackRow, CallbackVerdict, Callbacks, KeptCallbacks, NewCallback};
pub use claims::{Claimed, Claims, Conclusion, NewClaim, Prior};
pub use dead_letters::{DeadFilter, DeadLetter, DeadLetters, DeadStatus, NewDeadLetter};
pub use error::{Error, Result, Setup};
pub use history::{ClaimRow, History, Moment, OrderSummary};
pub use inventory::{Inventory, StockUpdate};
pub use orders::{OrderUpdate, Orders, RefundUpdate, StepRow};
pub use outbox::{Lease, Leased, NewOutbox, Outbox, OutboxRow};
pub use parking::{NewParked, ParkedRow, Parking, WOKEN};
pub use repairs::{Faults, HeldLease, NewRepair, Postponed, Repair, RepairRow, Repairs, Unwoken};
pub use retention::{CLAIMS, Kept, Retention, Swept};
pub use views::{OrderView, PastStep, Recorded, Views};

use crate::domain::Timestamp;
use async_trait::async_trait;
use sqlx::mysql::MySqlConnection;
use sqlx::postgres::PgConnection;
use sqlx::sqlite::SqliteConnection;

/// A database. What only reads, and what the relay and the janitor do, needs no transaction of the
/// caller's.
#[async_trait]
pub trait Store:
    Outbox
    + Retention
    + History
    + KeptCallbacks
    + Views
    + Watch
    + Audit
    + Faults
    + Send
    + Sync
    + 'static
{
    /// Begins a transaction that may write. Dropping it without a commit rolls it back.
    ///
    /// # Errors
    /// [`Error::Unavailable`] if it is away, or another process holds its lock for too long.
    async fn begin(&self) -> Result<Box<dyn Tx>>;

    /// The database's clock.
    ///
    /// # Errors
    /// [`Error::Unavailable`] if it is away.
    async fn now(&self) -> Result<Timestamp>;

    /// Whether the database answers.
    ///
    /// # Errors
    /// [`Error::Unavailable`] if it does not.
    async fn ping(&self) -> Result<()>;

    /// Statements sent since the store was opened, begin and commit included; several that are sent as
    /// one text count once. Not seen are the single reads within a timeline, and what a team's own role
    /// sends over its [`Tx::connection`].
    fn statements(&self) -> u64;

    /// Finishes what is under way and closes all connections.
    async fn close(&self);
}

/// A transaction. Run it in a task that nobody cancels: a dropped `commit` may have committed.
#[async_trait]
pub trait Tx:
    Claims
    + Parking
    + DeadLetters
    + Callbacks
    + Orders
    + Inventory
    + Accounts
    + OutboxAppend
    + Leased
    + Repairs
    + Send
{
    /// The database's clock.
    ///
    /// # Errors
    /// [`Error::Unavailable`] if the database is away.
    async fn now(&mut self) -> Result<Timestamp>;

    /// Makes all that was written visible and durable.
    ///
    /// # Errors
    /// [`Error::Unavailable`] if the database went away: then it is unknown whether the transaction
    /// has been committed, and the claims will tell.
    async fn commit(self: Box<Self>) -> Result<()>;

    /// Gives up all that was written.
    ///
    /// # Errors
    /// [`Error::Unavailable`] if the database went away, which has the same effect.
    async fn rollback(self: Box<Self>) -> Result<()>;

    /// Marks a point to go back to.
    ///
    /// # Errors
    /// [`Error::Unavailable`] if the database is away.
    async fn savepoint(&mut self) -> Result<()>;

    /// Gives up what was written since the last savepoint, and forgets that point.
    ///
    /// # Errors
    /// [`Error::Unavailable`] if the database is away.
    async fn rollback_to_savepoint(&mut self) -> Result<()>;

    /// Forgets the last savepoint and keeps what was written since.
    ///
    /// # Errors
    /// [`Error::Unavailable`] if the database is away.
    async fn release_savepoint(&mut self) -> Result<()>;

    /// The connection that the transaction runs on, for statements of a team's own role.
    fn connection(&mut self) -> Connection<'_>;
}

pub use outbox::OutboxAppend;

/// The connection of a transaction, by database.
#[derive(Debug)]
#[non_exhaustive]
pub enum Connection<'a> {
    /// SQLite.
    Sqlite(&'a mut SqliteConnection),
    /// PostgreSQL.
    Postgres(&'a mut PgConnection),
    /// MySQL or MariaDB.
    MySql(&'a mut MySqlConnection),
}
