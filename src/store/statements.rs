//! How many statements were sent to a database.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Counts what passes through the few functions of a store that send.
#[derive(Debug, Clone, Default)]
pub(super) struct Statements(Arc<AtomicU64>);

impl Statements {
    /// So many are about to be sent.
    pub(super) fn count(&self, number: u64) {
        self.0.fetch_add(number, Ordering::Relaxed);
        metrics::counter!("orderonce_store_statements_total").increment(number);
    }

    /// How many were.
    pub(super) fn sent(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}
