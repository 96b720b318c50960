//! What happened, for people: timelines, claims, dead letters and parked events.

use super::{DeadFilter, DeadLetter, Error, OutboxRow, ParkedRow, RepairRow, Result};
use crate::domain::inventory::ReservationStatus;
use crate::domain::order::OrderStatus;
use crate::domain::{
    AccountKind, Currency, Fingerprint, Key, Money, OrderId, RoleName, Timestamp, UserId,
};
use async_trait::async_trait;
use serde::Serialize;

/// A row of `idempotent_record`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct ClaimRow {
    /// The role that took the key.
    pub role: RoleName,
    /// The key.
    pub key: Key,
    /// What the event is about.
    pub subject: String,
    /// Of the event's content.
    pub fingerprint: Fingerprint,
    /// Of the delivery that took the key.
    pub message_id: String,
    /// What became of it.
    pub outcome: String,
    /// The detail, such as the code of a rejection.
    pub detail: Option<String>,
    /// The message, if it was kept and the claim has not expired.
    #[serde(skip)]
    pub body: Option<String>,
    /// When the key was taken.
    pub created_at: Timestamp,
    /// When the outcome was decided.
    pub concluded_at: Timestamp,
    /// When retention marked it as expired.
    pub expired_at: Option<Timestamp>,
}

/// Something that happened to an order.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Moment {
    /// When, by the database's clock.
    pub at: Timestamp,
    /// The table that tells of it.
    pub table: &'static str,
    /// What happened, in words.
    pub what: String,
    /// The key of the event that caused it, where the table says so.
    pub key: Option<Key>,
}

/// Where an order stands, in short.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct OrderSummary {
    /// The order.
    pub order_id: OrderId,
    /// Who ordered.
    pub user_id: UserId,
    /// Where it stands.
    pub status: OrderStatus,
    /// How many steps its history has.
    pub version: i64,
    /// Currency of its amounts.
    pub currency: Currency,
    /// What is to be paid, in minor units.
    pub total_minor: i64,
    /// What was paid, in minor units.
    pub paid_minor: i64,
    /// What was given back, in minor units.
    pub refunded_minor: i64,
    /// When it expires if unpaid.
    pub pay_deadline: Timestamp,
    /// What became of its stock, if that is known here.
    pub reservation: Option<ReservationStatus>,
    /// What it has earned and kept, by kind of account, if that is known here.
    pub earned: Vec<(AccountKind, i64)>,
}

/// Questions of an operator. None of them writes or locks.
#[async_trait]
pub trait History {
    /// Orders that wait for a payment past their deadline, oldest first, and the time by which they
    /// are judged.
    ///
    /// # Errors
    /// [`super::Error::Unavailable`].
    async fn due_orders(&self, limit: u32) -> Result<(Timestamp, Vec<OrderId>)>;

    /// Unpaid orders of which somebody is to be reminded by now, oldest first, and the time by which they are
    /// judged.
    ///
    /// # Errors
    /// [`super::Error::Unavailable`].
    async fn due_reminders(&self, limit: u32) -> Result<(Timestamp, Vec<OrderId>)>;

    /// Where an order stands; `None` if it is not there.
    ///
    /// # Errors
    /// [`super::Error::Unavailable`], [`super::Error::Corrupt`].
    async fn order_summary(&self, order_id: &str) -> Result<Option<OrderSummary>>;

    /// All that the tables of the roles tell of an order, oldest first; empty if they know nothing.
    ///
    /// # Errors
    /// [`super::Error::Unavailable`].
    async fn timeline(&self, order_id: &str) -> Result<Vec<Moment>>;

    /// The claims about a subject, such as an order, oldest first.
    ///
    /// # Errors
    /// [`super::Error::Unavailable`].
    async fn claims_about(&self, subject: &str) -> Result<Vec<ClaimRow>>;

    /// The claims of a key, of one role or of all.
    ///
    /// # Errors
    /// [`super::Error::Unavailable`].
    async fn claims_of(&self, role: Option<&RoleName>, key: &str) -> Result<Vec<ClaimRow>>;

    /// Parked events, the one with the nearest deadline first; those about a subject, or all.
    ///
    /// # Errors
    /// [`super::Error::Unavailable`].
    async fn parked(&self, subject: Option<&str>, limit: u32) -> Result<Vec<ParkedRow>>;

    /// What is to be published about an aggregate, oldest first.
    ///
    /// # Errors
    /// [`super::Error::Unavailable`].
    async fn outbox_about(&self, aggregate: &str) -> Result<Vec<OutboxRow>>;

    /// What was repaired about a subject, such as an order, oldest first.
    ///
    /// # Errors
    /// [`super::Error::Unavailable`].
    async fn repairs_about(&self, subject: &str) -> Result<Vec<RepairRow>>;

    /// Dead letters, oldest first.
    ///
    /// # Errors
    /// [`super::Error::Unavailable`].
    async fn dead_letters(&self, filter: &DeadFilter, limit: u32) -> Result<Vec<DeadLetter>>;

    /// One dead letter.
    ///
    /// # Errors
    /// [`super::Error::Unavailable`].
    async fn dead_letter(&self, id: i64) -> Result<Option<DeadLetter>>;

    /// How many claims there are by role and outcome.
    ///
    /// # Errors
    /// [`super::Error::Unavailable`].
    async fn claim_counts(&self) -> Result<Vec<(RoleName, String, u64)>>;
}

/// Something that happened, without the key of its cause.
pub(super) fn moment(at: i64, table: &'static str, what: String) -> Moment {
    Moment {
        at: Timestamp(at),
        table,
        what,
        key: None,
    }
}

/// The amount for people; one in a currency that is unknown by now is better shown than refused.
pub(super) fn money(minor: i64, currency: &str) -> String {
    match Currency::new(currency) {
        Ok(currency) => Money::new(minor, currency).to_string(),
        Err(_) => format!("{minor} minor units of {currency}"),
    }
}

/// So many of something, in words.
pub(super) fn counted(count: i64, what: &str) -> String {
    format!("{count} {what}{}", if count == 1 { "" } else { "s" })
}

/// A row that cannot be read back.
pub(super) fn corrupt(table: &'static str, problem: impl ToString) -> Error {
    Error::Corrupt {
        table,
        problem: problem.to_string(),
    }
}
