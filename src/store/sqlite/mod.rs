//! SQLite: the embedded default.
//!
//! A set goes in as one JSON parameter that `json_each` unfolds, so every statement is constant
//! text.

mod connect;
mod error;

pub use connect::{Database, Options};
pub(crate) use error::from_sqlx;
