//! `parked_event`: events that came too early.

use super::Result;
use crate::domain::{Key, RoleName, Timestamp, Token};
use async_trait::async_trait;
use serde::Serialize;
use std::collections::BTreeMap;

/// The header of a message that was parked and handed back, with any value: this delivery is due to
/// the parking, not to its publisher.
pub const WOKEN: &str = "orderonce-woken";

/// An event to be parked, or parked again.
#[derive(Debug, Clone)]
pub struct NewParked<'a> {
    /// Its key.
    pub key: &'a Key,
    /// What it awaits.
    pub awaits: &'a Token,
    /// Of the delivery that brought it.
    pub message_id: &'a str,
    /// The type of its message.
    pub event_type: &'a str,
    /// What it is about.
    pub subject: &'a str,
    /// The message as it came.
    pub message: &'a str,
    /// Its headers, which it is handed back with, and [`WOKEN`].
    pub headers: &'a BTreeMap<String, String>,
    /// When it is given up. One that is parked again keeps the deadline it has.
    pub deadline: Timestamp,
}

/// A parked event as the operator sees it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct ParkedRow {
    /// The role that parked it.
    pub role: RoleName,
    /// Its key.
    pub key: Key,
    /// What it awaits.
    pub awaits: Token,
    /// Of the delivery that brought it.
    pub message_id: String,
    /// The type of its message.
    pub event_type: String,
    /// The message as it came.
    pub message: String,
    /// Its headers.
    pub headers: BTreeMap<String, String>,
    /// When it was parked first.
    pub parked_at: Timestamp,
    /// When it is given up.
    pub deadline: Timestamp,
    /// When it was handed back to its role, if it was.
    pub woken_at: Option<Timestamp>,
}

/// Parking and waking, within the transaction of the effects.
#[async_trait]
pub trait Parking {
    /// Sets events aside. An event that is parked already waits, from now on, for this token.
    ///
    /// # Errors
    /// [`super::Error::Unavailable`].
    async fn park(
        &mut self,
        role: &RoleName,
        now: Timestamp,
        parked: &[NewParked<'_>],
    ) -> Result<()>;

    /// Removes the rows of events that were decided.
    ///
    /// # Errors
    /// [`super::Error::Unavailable`].
    async fn unpark(&mut self, role: &RoleName, keys: &[&Key]) -> Result<()>;

    /// Hands what awaits one of the tokens back to its role, by the outbox. Returns how many.
    ///
    /// # Errors
    /// [`super::Error::Unavailable`].
    async fn wake(&mut self, now: Timestamp, tokens: &[Token]) -> Result<u64>;

    /// Takes up to `limit` events whose deadline has passed, oldest first, and removes their rows.
    ///
    /// # Errors
    /// [`super::Error::Unavailable`].
    async fn take_overdue(&mut self, now: Timestamp, limit: u32) -> Result<Vec<ParkedRow>>;
}
