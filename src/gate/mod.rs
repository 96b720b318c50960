//! Layers in front of the database that save work.
//!
//! What lives here: the trait. A gate is asked before the transaction and told after it. What it
//! deliberately does not do: decide. "Maybe" and "don't know" go to the database, and losing all of
//! a gate's memory changes no result.

use crate::domain::{Fingerprint, Key, RoleName};
use async_trait::async_trait;

/// What a gate knows of a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Known {
    /// The key was settled for good, by an event with this fingerprint.
    Done(Fingerprint),
    /// Nothing that would save work.
    Unknown,
}

/// A layer in front of the database.
#[async_trait]
pub trait Gate: Send + Sync + 'static {
    /// What it knows of each key, in their order. A gate that fails answers [`Known::Unknown`].
    async fn ask(&self, role: &RoleName, keys: &[&Key]) -> Vec<Known>;

    /// Tells it of keys that have been settled for good, after the commit. A gate that fails
    /// forgets them.
    async fn tell(&self, role: &RoleName, keys: &[(&Key, Fingerprint)]);
}
