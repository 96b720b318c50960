//! The boundaries between the steps of a run, where tests make it crash.

use std::sync::Arc;
use strum::{Display, EnumIter, EnumString};

/// A boundary between two steps.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Display, EnumString, EnumIter)]
#[strum(serialize_all = "snake_case")]
pub enum Point {
    /// Deliveries are here, nothing was done.
    Received,
    /// Deliveries are decoded.
    Decoded,
    /// Events have keys.
    Keyed,
    /// The gates have answered.
    Asked,
    /// A transaction is open.
    Begun,
    /// The keys are claimed, not committed.
    Claimed,
    /// The rows are loaded.
    Loaded,
    /// All events are decided.
    Decided,
    /// All rows are written, not committed.
    Written,
    /// The transaction has been committed, the broker knows nothing of it.
    Committed,
    /// The broker was told, the gates were not.
    Settled,
    /// The relay has read rows of the outbox.
    RelayRead,
    /// The broker has confirmed them, they are still in the outbox.
    RelayPublished,
    /// They are removed.
    RelayRemoved,
}

/// What happens at each point: nothing, unless a test says otherwise.
#[derive(Clone, Default)]
pub struct Points(Option<Arc<dyn Fn(Point) -> bool + Send + Sync>>);

impl Points {
    /// Calls `stop` at every point; a run ends there, as if it had crashed, if it returns `true`.
    #[cfg(feature = "testkit")]
    #[must_use]
    pub fn stopping(stop: impl Fn(Point) -> bool + Send + Sync + 'static) -> Self {
        Self(Some(Arc::new(stop)))
    }

    pub(super) fn pass(&self, point: Point) -> super::Result<()> {
        match &self.0 {
            Some(stop) if stop(point) => Err(super::Error::Stopped(point)),
            _ => Ok(()),
        }
    }
}

impl std::fmt::Debug for Points {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Points").field(&self.0.is_some()).finish()
    }
}
