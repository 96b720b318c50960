//! Pure decisions: from rows and an event to data.
//!
//! What lives here: identifiers, money, keys, events, the three state machines, outcomes and the
//! retry schedule. What deliberately does not: I/O, clocks, randomness, async, SQL and JSON
//! parsing. Time is an argument ([`Timestamp`], read from the database's clock by the caller).
//!
#![doc = include_str!("states.md")]

pub mod account;
pub mod awaited;
pub mod event;
pub mod id;
pub mod inventory;
pub mod key;
pub mod money;
pub mod order;
pub mod outcome;
pub mod retention;
pub mod retry;
pub mod role;
mod text;
pub mod timestamp;

#[cfg(test)]
mod cases;
#[cfg(test)]
mod diagram;
#[cfg(test)]
pub(crate) mod testing;

pub use awaited::Awaited;
pub use event::{Event, EventType};
pub use id::{
    AccountKind, AdjustmentId, IdError, OrderId, Provider, RefundId, RefundNo, ReturnId, SkuId,
    SourceId, SourceType, TradeNo, UserId,
};
pub use key::{Anew, Fingerprint, Key, Token};
pub use money::{Currency, Money};
pub use outcome::{DeadReason, Decision, Layer, Outcome, Rejection, Verdict};
pub use retention::WaysBack;
pub use retry::RetryPolicy;
pub use role::RoleName;
pub use timestamp::Timestamp;
