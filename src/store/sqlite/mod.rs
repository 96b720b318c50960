//! SQLite: the embedded default.
//!
//! A set goes in as one JSON parameter that `json_each` unfolds, so every statement is constant
//! text.

mod audit;
mod connect;
mod error;
mod history;

pub use connect::{Database, Options};
pub(crate) use error::from_sqlx;

/// The store in a SQLite file.
#[derive(Debug, Clone)]
pub struct SqliteStore {
    database: Database,
}

impl SqliteStore {
    /// A store in an open file.
    #[must_use]
    pub fn new(database: Database) -> Self {
        Self { database }
    }
}
