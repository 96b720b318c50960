//! Errors that stop a worker's run; the deliveries stay with the broker.

use super::Point;
use crate::{broker, store};

/// Shorthand for results of a worker.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Why a run stopped.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The database.
    #[error(transparent)]
    Store(#[from] store::Error),
    /// The broker.
    #[error(transparent)]
    Broker(#[from] broker::Error),
    /// A test stopped it at a point, as a crash would.
    #[error("stopped at {0}")]
    Stopped(Point),
}
