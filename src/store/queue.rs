//! How many callers wait for a connection.

use std::sync::atomic::{AtomicU64, Ordering};

/// Counts those who have entered and not gone.
#[derive(Debug, Default)]
pub(super) struct Queue(AtomicU64);

/// A place among those who wait. Whoever gives up drops it too.
pub(super) struct Place<'q>(&'q Queue);

impl Queue {
    /// One more waits.
    pub(super) fn enter(&self) -> Place<'_> {
        self.0.fetch_add(1, Ordering::Relaxed);
        Place(self)
    }

    /// How many wait.
    pub(super) fn len(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

impl Drop for Place<'_> {
    fn drop(&mut self) {
        self.0.0.fetch_sub(1, Ordering::Relaxed);
    }
}
