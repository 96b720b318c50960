//! Layers in front of the database that save work.
//!
//! What lives here: the trait. A gate is asked before the transaction and told after it. What it
//! deliberately does not do: decide. "Maybe" and "don't know" go to the database, and losing all of
//! a gate's memory changes no result.

use crate::domain::{Fingerprint, Key, RoleName};
use async_trait::async_trait;
use std::sync::Arc;

pub mod filter;
pub mod redis;

/// What a gate knows of a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Known {
    /// The key was settled for good, by an event with this fingerprint.
    Done(Fingerprint),
    /// It was not told of the key, so that the layers behind need not be asked. Another process may
    /// have settled it.
    Absent,
    /// Another worker is at it. Its copies wait, and none of them is acknowledged.
    Held,
    /// Nothing that would save work.
    Unknown,
}

/// A key that was settled for good.
#[derive(Debug, Clone, Copy)]
pub struct Told<'k> {
    /// The key.
    pub key: &'k Key,
    /// Of the event that settled it.
    pub fingerprint: Fingerprint,
    /// Whether that was this event, and not another one before it.
    pub is_first: bool,
}

/// A layer in front of the database.
#[async_trait]
pub trait Gate: Send + Sync + 'static {
    /// What it knows of each key, in their order. A gate that fails answers [`Known::Unknown`].
    async fn ask(&self, role: &RoleName, keys: &[&Key]) -> Vec<Known>;

    /// Tells it of keys that have been settled for good, after the commit. A gate that fails
    /// forgets them.
    async fn tell(&self, role: &RoleName, told: &[Told<'_>]);

    /// Takes back the marks of keys that a worker had in hand and did not settle.
    async fn release(&self, _role: &RoleName, _keys: &[&Key]) {}

    /// The layer as one worker sees it, if it tells them apart. A worker that was killed comes back
    /// under the same name.
    fn of_worker(&self, _worker: &str) -> Option<Arc<dyn Gate>> {
        None
    }
}
