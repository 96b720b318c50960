//! Errors of a broker.

use crate::domain::RoleName;

/// Shorthand for results of a broker.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// What went wrong at the broker.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// The broker is away. It costs time, never an attempt.
    #[error("the broker is not available: {0}")]
    Unavailable(String),
    /// The topology has no queue for the role.
    #[error("there is no queue for role {0}")]
    UnknownQueue(RoleName),
}
