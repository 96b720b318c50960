//! `dead_letter`: what could not be processed, with its bytes, headers and reason.

use super::Result;
use crate::domain::{DeadReason, Key, RoleName, Timestamp};
use async_trait::async_trait;
use serde::Serialize;
use std::collections::BTreeMap;
use strum::{Display, EnumString, IntoStaticStr};

/// A message to be kept for a person.
#[derive(Debug, Clone)]
pub struct NewDeadLetter<'a> {
    /// The role that could not process it.
    pub role: &'a RoleName,
    /// Its id, if it could be read.
    pub message_id: Option<&'a str>,
    /// Its key, if it could be read.
    pub key: Option<&'a Key>,
    /// Why.
    pub reason: DeadReason,
    /// What exactly was wrong.
    pub detail: &'a str,
    /// Its bytes, as they came.
    pub raw: &'a [u8],
    /// Its headers, as they came.
    pub headers: &'a BTreeMap<String, String>,
    /// How often it had been delivered.
    pub deliveries: u32,
}

/// What has been done about a dead letter.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, Hash, Display, EnumString, IntoStaticStr, Serialize,
)]
#[strum(serialize_all = "SCREAMING_SNAKE_CASE", ascii_case_insensitive)]
#[serde(rename_all = "SCREAMING_SNAKE_CASE")]
pub enum DeadStatus {
    /// Nothing; it waits for a person.
    Dead,
    /// It was handed back to its role.
    Replayed,
    /// A person decided that it does not matter.
    Discarded,
}

/// A row of `dead_letter`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct DeadLetter {
    /// Its number.
    pub id: i64,
    /// The role that could not process it.
    pub role: RoleName,
    /// The id of the message, if it could be read.
    pub message_id: Option<String>,
    /// Its key, if it could be read.
    pub key: Option<Key>,
    /// Why: the name of a [`DeadReason`].
    pub reason: String,
    /// What exactly was wrong.
    pub detail: String,
    /// Its bytes, as they came.
    #[serde(skip)]
    pub raw: Vec<u8>,
    /// Its headers, as they came.
    pub headers: BTreeMap<String, String>,
    /// How often it had been delivered when it died first.
    pub deliveries: u32,
    /// How often it died: once, and again after each replay that failed.
    pub deaths: u32,
    /// What has been done about it.
    pub status: DeadStatus,
    /// When it died last.
    pub died_at: Timestamp,
    /// Who replayed or discarded it.
    pub actor: Option<String>,
    /// Why they did.
    pub actor_reason: Option<String>,
}

/// Which dead letters to list.
#[derive(Debug, Clone, Default)]
pub struct DeadFilter {
    /// Of this role.
    pub role: Option<RoleName>,
    /// With this status.
    pub status: Option<DeadStatus>,
    /// With this reason.
    pub reason: Option<String>,
    /// With this key.
    pub key: Option<String>,
}

/// Burying and digging up, within a transaction.
#[async_trait]
pub trait DeadLetters {
    /// Keeps messages. The same bytes that die of the same reason in the same role are kept once;
    /// if they had been replayed, they are dead again.
    ///
    /// # Errors
    /// [`super::Error::Unavailable`].
    async fn bury(&mut self, now: Timestamp, letters: &[NewDeadLetter<'_>]) -> Result<()>;

    /// Marks a dead letter as replayed or discarded, guarded by its status being `from`.
    ///
    /// # Errors
    /// [`super::Error::Conflict`] if it has another status by now.
    async fn mark_dead_letter(
        &mut self,
        id: i64,
        from: DeadStatus,
        to: DeadStatus,
        actor: &str,
        reason: &str,
    ) -> Result<()>;
}
