//! What this program does on an operator's own machine and servers, measured.
//!
//! What lives here: what all measurements have in common, which is a database of their own, a stream
//! of deliveries, one run over it and what that run cost; and one file for each measurement. What
//! deliberately does not: the broker. Deliveries come from memory, so that its cost, which is the same
//! for all, hides no difference.

mod cpu;
mod feed;
mod ground;
mod run;
mod stream;

pub mod layers;

use super::online_retail;
use crate::{store, worker};

/// Why a measurement could not be finished.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The built-in day.
    #[error("the data cannot be used")]
    Data(#[from] online_retail::Error),
    /// The database.
    #[error(transparent)]
    Store(#[from] store::Error),
    /// Database or broker, while deliveries were handled.
    #[error(transparent)]
    Worker(#[from] worker::Error),
    /// The database is somebody's.
    #[error(
        "the database at {at} holds claims already, a measurement needs an empty one: create one and \
         name it with --store, or leave store.url unset for a temporary file"
    )]
    NotEmpty {
        /// The database, password masked.
        at: String,
    },
    /// Redis cannot be used.
    #[error(
        "Redis at {at} cannot be used: {problem}; start it, or leave gate.redis_url empty to measure \
         without it"
    )]
    Redis {
        /// Its URL, password masked.
        at: String,
        /// What is wrong with it.
        problem: String,
    },
    /// What came out of a run is not what must come out of it.
    #[error("{what}: expected {expected} {unit}, found {found}")]
    Wrong {
        /// The run.
        what: String,
        /// What was counted.
        unit: &'static str,
        /// How much there must be.
        expected: i128,
        /// How much there is.
        found: i128,
    },
    /// What the runs left in the database contradicts itself.
    #[error(
        "the tables contradict each other in {} of {}: expected {}, found {}",
        .0.check, .0.subject, .0.expected, .0.found
    )]
    Different(store::Difference),
    /// Somebody asked for a stop.
    #[error("stopped before the last run, so there is nothing to report")]
    Interrupted,
}

/// So much of something for each delivery.
#[expect(
    clippy::cast_precision_loss,
    reason = "what is counted in a run is far below 2^52"
)]
fn per(number: u64, deliveries: u64) -> f64 {
    number as f64 / (deliveries.max(1) as f64)
}

/// A figure for a report, without digits that mean nothing.
fn rounded(figure: f64, decimals: i32) -> f64 {
    let scale = 10_f64.powi(decimals);
    (figure * scale).round() / scale
}
