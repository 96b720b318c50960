//! `callback`: what payment providers said by HTTP, as it came.

use super::Result;
use crate::domain::{Key, Timestamp};
use async_trait::async_trait;
use serde::Serialize;
use std::collections::BTreeMap;
use std::time::Duration;
use strum::{Display, EnumString, IntoStaticStr};

/// What a callback was taken for.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, Hash, Display, EnumString, IntoStaticStr, Serialize,
)]
#[strum(serialize_all = "SCREAMING_SNAKE_CASE", ascii_case_insensitive)]
#[serde(rename_all = "SCREAMING_SNAKE_CASE")]
pub enum CallbackVerdict {
    /// The provider's, and about an order.
    Accepted,
    /// The provider's, and of no interest.
    Ignored,
    /// Not believed.
    Refused,
}

/// A callback to be kept.
#[derive(Debug, Clone, Copy)]
pub struct NewCallback<'a> {
    /// The provider that it came for.
    pub provider: &'a str,
    /// What it was taken for.
    pub verdict: CallbackVerdict,
    /// Which events it stands for, or why it is refused.
    pub detail: &'a str,
    /// The order, or empty.
    pub subject: &'a str,
    /// Of its claim.
    pub key: &'a Key,
    /// Its headers, without secrets.
    pub headers: &'a BTreeMap<String, String>,
    /// Its body, as it came.
    pub body: &'a [u8],
    /// The address that it came from.
    pub remote: &'a str,
}

/// A row of `callback`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct CallbackRow {
    /// Its number.
    pub id: i64,
    /// The provider that it came for.
    pub provider: String,
    /// What it was taken for.
    pub verdict: CallbackVerdict,
    /// Which events it stands for, or why it was refused.
    pub detail: String,
    /// The order, or empty.
    pub subject: String,
    /// Of its claim.
    pub key: Key,
    /// Its headers, without secrets.
    pub headers: BTreeMap<String, String>,
    /// Its body, as it came.
    #[serde(skip)]
    pub body: Vec<u8>,
    /// The address that it came from.
    pub remote: String,
    /// When it came first, by the database's clock.
    pub received_at: Timestamp,
}

/// Keeping what came, within a transaction.
#[async_trait]
pub trait Callbacks {
    /// Keeps callbacks.
    ///
    /// # Errors
    /// [`super::Error::Unavailable`].
    async fn keep_callbacks(&mut self, now: Timestamp, callbacks: &[NewCallback<'_>])
    -> Result<()>;
}

/// Looking at what was kept, and forgetting it.
#[async_trait]
pub trait KeptCallbacks {
    /// Callbacks, youngest first: those about an order, or all; of one verdict, or of all.
    ///
    /// # Errors
    /// [`super::Error::Unavailable`], [`super::Error::Corrupt`].
    async fn callbacks(
        &self,
        order_id: Option<&str>,
        verdict: Option<CallbackVerdict>,
        limit: u32,
    ) -> Result<Vec<CallbackRow>>;

    /// One callback.
    ///
    /// # Errors
    /// [`super::Error::Unavailable`], [`super::Error::Corrupt`].
    async fn callback(&self, id: i64) -> Result<Option<CallbackRow>>;

    /// Removes up to `limit` callbacks that came longer than `kept` ago, oldest first, and says how many.
    ///
    /// # Errors
    /// [`super::Error::Unavailable`].
    async fn remove_callbacks(&self, kept: Duration, limit: u32) -> Result<u64>;
}
