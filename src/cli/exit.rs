//! What an exit code means.

use crate::ops::{dead, demo, explain, import, send};
use crate::{broker, config, store, worker};

/// Something is wrong with the data.
pub(super) const DATA: u8 = 1;
/// Wrong usage or configuration.
pub(super) const USAGE: u8 = 2;
/// A server is unreachable.
pub(super) const UNREACHABLE: u8 = 3;

/// A mistake in the arguments that shows only once they are used.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub(super) struct Usage(pub(super) String);

/// The exit code for an error: 1 something is wrong with the data, 2 wrong usage or configuration, 3
/// a server is unreachable.
#[must_use]
pub fn exit_code(error: &anyhow::Error) -> u8 {
    let of_one = |cause: &(dyn std::error::Error + 'static)| {
        if let Some(error) = cause.downcast_ref() {
            Some(of_store(error))
        } else if let Some(broker::Error::Unavailable(_)) = cause.downcast_ref() {
            Some(UNREACHABLE)
        } else if cause.is::<config::Errors>() || cause.is::<Usage>() || cause.is::<store::Setup>()
        {
            Some(USAGE)
        } else {
            None
        }
    };
    let wrapped = || {
        if let Some(worker::Error::Store(error)) = error.downcast_ref() {
            Some(of_store(error))
        } else if let Some(worker::Error::Broker(_)) = error.downcast_ref() {
            Some(UNREACHABLE)
        } else if let Some(send::Error::Broker(_)) = error.downcast_ref() {
            Some(UNREACHABLE)
        } else if let Some(import::Error::Broker(_)) = error.downcast_ref() {
            Some(UNREACHABLE)
        } else if let Some(dead::Error::Store(error)) = error.downcast_ref() {
            Some(of_store(error))
        } else if let Some(explain::Error::Store(error)) = error.downcast_ref() {
            Some(of_store(error))
        } else if let Some(demo::Error::Store(error)) = error.downcast_ref() {
            Some(of_store(error))
        } else if let Some(demo::Error::Io { .. }) = error.downcast_ref() {
            Some(USAGE)
        } else {
            None
        }
    };
    error
        .chain()
        .find_map(of_one)
        .or_else(wrapped)
        .unwrap_or(DATA)
}

fn of_store(error: &store::Error) -> u8 {
    match error {
        store::Error::Setup(_) => USAGE,
        store::Error::Unavailable(_) | store::Error::Conflict(_) => UNREACHABLE,
        store::Error::Refused(_) | store::Error::Corrupt { .. } => DATA,
    }
}
