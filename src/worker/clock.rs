//! This machine's clock.

use crate::domain::Timestamp;
use std::time::{SystemTime, UNIX_EPOCH};

/// The time by this machine's clock, for messages and for what providers sign; what is decided about orders goes by
/// the database's.
pub(crate) fn now() -> Timestamp {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    Timestamp(0).plus(since.unwrap_or_default())
}
