//! What became of a delivery.

use super::event::Event;
use super::key::Token;
use serde::Serialize;
use std::borrow::Cow;
use std::fmt;
use std::time::Duration;
use strum::{EnumIter, IntoStaticStr};

/// What became of one event of a delivery. Every delivery ends in exactly one of these per event.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    /// Its effects are in the database.
    Applied,
    /// A copy of it had been settled before; the layer that saw it.
    Duplicate(Layer),
    /// The key is taken by other content; kept in the dead-letter table for a person.
    Conflict,
    /// Came too early; waits in the database for the token.
    Parked(Token),
    /// Came too late to matter; recorded.
    Stale,
    /// The business said no; recorded, and final for the key.
    Rejected(Rejection),
    /// Failed, or another worker has it in hand; will be delivered again.
    Retried {
        /// Which attempt failed, from 1; no more than before if none was made.
        attempt: u32,
        /// Until the next.
        delay: Duration,
    },
    /// Cannot be processed; kept in the dead-letter table.
    Dead(DeadReason),
}

impl Outcome {
    /// The names of all outcomes, in the order of their definition.
    pub const NAMES: [&'static str; 8] = [
        "applied",
        "duplicate",
        "conflict",
        "parked",
        "stale",
        "rejected",
        "retried",
        "dead",
    ];

    /// Its name in logs, metrics and columns.
    #[must_use]
    pub fn name(&self) -> &'static str {
        match self {
            Self::Applied => "applied",
            Self::Duplicate(_) => "duplicate",
            Self::Conflict => "conflict",
            Self::Parked(_) => "parked",
            Self::Stale => "stale",
            Self::Rejected(_) => "rejected",
            Self::Retried { .. } => "retried",
            Self::Dead(_) => "dead",
        }
    }

    /// What belongs to it beside its name, as it is stored and logged.
    #[must_use]
    pub fn detail(&self) -> Option<Cow<'static, str>> {
        match self {
            Self::Rejected(rejection) => Some(Cow::Borrowed(rejection.into())),
            Self::Duplicate(layer) => Some(Cow::Borrowed(layer.into())),
            Self::Parked(token) => Some(Cow::Owned(token.as_str().to_owned())),
            Self::Dead(reason) => Some(Cow::Borrowed(reason.into())),
            Self::Applied | Self::Conflict | Self::Stale | Self::Retried { .. } => None,
        }
    }

    /// As the answer to a request: its name, and after a colon what belongs to it.
    #[must_use]
    pub fn recorded(&self) -> String {
        let name = self.name();
        match self.detail() {
            Some(detail) => format!("{name}:{detail}"),
            None => name.to_owned(),
        }
    }

    /// The layer that saw a duplicate.
    #[must_use]
    pub fn layer(&self) -> Option<Layer> {
        if let Self::Duplicate(layer) = self {
            Some(*layer)
        } else {
            None
        }
    }
}

/// The name, with the detail that belongs to it.
impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())?;
        match self {
            Self::Applied | Self::Conflict | Self::Stale => Ok(()),
            Self::Duplicate(layer) => write!(f, " ({layer})"),
            Self::Parked(token) => write!(f, " (until {token})"),
            Self::Rejected(rejection) => write!(f, " ({rejection})"),
            Self::Retried { attempt, delay } => {
                write!(f, " (attempt {attempt}, again in {} s)", delay.as_secs())
            }
            Self::Dead(reason) => write!(f, " ({reason})"),
        }
    }
}

/// Where a duplicate was seen.
#[derive(
    Debug,
    Clone,
    Copy,
    PartialEq,
    Eq,
    Hash,
    PartialOrd,
    Ord,
    IntoStaticStr,
    EnumIter,
    strum::Display,
)]
#[strum(serialize_all = "snake_case")]
pub enum Layer {
    /// Its client had asked the same before.
    Request,
    /// Twice in one batch.
    Batch,
    /// The gate or the filter knew the key.
    Gate,
    /// The claim row was there.
    Claim,
    /// The claim row was there, and its event is parked: nothing is settled for good yet.
    Parked,
    /// The claim row was gone, but a flow or a status showed it.
    Flow,
}

/// Why the business said no: one variant per cause.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, Hash, IntoStaticStr, EnumIter, strum::Display, Serialize,
)]
#[strum(serialize_all = "snake_case")]
#[serde(rename_all = "snake_case")]
pub enum Rejection {
    /// A payment of another amount than the order's total.
    AmountMismatch,
    /// A payment or refund in another currency than the order's.
    CurrencyMismatch,
    /// The trade or refund number is recorded for another order.
    NumberOfAnotherOrder,
    /// `order.expire` before the deadline, or `order.remind` before its time.
    NotDue,
    /// The order has not been paid.
    NotPaid,
    /// The order has been shipped.
    AlreadyShipped,
    /// The order has been completed.
    AlreadyCompleted,
    /// The order is closed.
    OrderClosed,
    /// The order has been refunded.
    OrderRefunded,
    /// More refunded than was paid.
    RefundExceedsPaid,
    /// A refund of a payment that is not recorded.
    PaymentUnknown,
    /// Not enough units of a SKU.
    InsufficientStock,
    /// A return of goods that were never deducted.
    NothingDeducted,
    /// A return of goods that all came back before.
    NothingOut,
    /// The stock row has another version than the author saw.
    VersionMismatch,
    /// The account would go below zero.
    InsufficientBalance,
    /// The named source credited nothing that is left to take back.
    NothingToReverse,
    /// The result is beyond the range of a 64-bit integer.
    AmountOverflow,
}

/// Why a message is in the dead-letter table.
#[derive(
    Debug,
    Clone,
    Copy,
    PartialEq,
    Eq,
    Hash,
    IntoStaticStr,
    EnumIter,
    strum::Display,
    strum::VariantNames,
)]
#[strum(serialize_all = "snake_case")]
pub enum DeadReason {
    /// It is not an event that the role can read; the detail says why.
    Malformed,
    /// Its type is not one that the role consumes.
    UnknownType,
    /// Its key is taken by other content.
    Conflict,
    /// It failed as often as is allowed.
    RetriesExhausted,
    /// It was parked past its deadline.
    ParkedTooLong,
    /// It was delivered again and again and never settled: it seems to kill the process.
    CrashLoop,
    /// The business had said no, and an operator has it decided anew.
    Rejected,
}

/// What a state machine says of an event.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Verdict {
    /// Apply the writes.
    Applied,
    /// The rows show that it was applied before.
    Duplicate,
    /// The rows show that the same action was applied with other content.
    Conflict,
    /// Too early; wait for the token.
    Parked(Token),
    /// Too late to matter.
    Stale,
    /// The business says no.
    Rejected(Rejection),
}

impl From<Verdict> for Outcome {
    fn from(verdict: Verdict) -> Self {
        match verdict {
            Verdict::Applied => Self::Applied,
            Verdict::Duplicate => Self::Duplicate(Layer::Flow),
            Verdict::Conflict => Self::Conflict,
            Verdict::Parked(token) => Self::Parked(token),
            Verdict::Stale => Self::Stale,
            Verdict::Rejected(rejection) => Self::Rejected(rejection),
        }
    }
}

/// A verdict with all that follows from it, as data.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Decision<W> {
    /// What is said of the event.
    pub verdict: Verdict,
    /// Rows to write; the default, nothing, unless the verdict is `Applied`.
    pub writes: W,
    /// Events to publish, in this order.
    pub emits: Vec<Event>,
    /// Tokens that are true from now on; what awaits them is woken.
    pub reached: Vec<Token>,
}

impl<W: Default> Decision<W> {
    /// Apply `writes`.
    pub fn applied(writes: W) -> Self {
        Self {
            verdict: Verdict::Applied,
            writes,
            emits: Vec::new(),
            reached: Vec::new(),
        }
    }

    /// Publish `event` too.
    #[must_use]
    pub fn emit(mut self, event: Event) -> Self {
        self.emits.push(event);
        self
    }

    /// Wake what awaits `token` too.
    #[must_use]
    pub fn reach(mut self, token: Token) -> Self {
        self.reached.push(token);
        self
    }
}

/// A verdict from which nothing follows.
impl<W: Default> From<Verdict> for Decision<W> {
    fn from(verdict: Verdict) -> Self {
        Self {
            verdict,
            writes: W::default(),
            emits: Vec::new(),
            reached: Vec::new(),
        }
    }
}

/// A rejection that nobody waits to hear of.
impl<W: Default> From<Rejection> for Decision<W> {
    fn from(rejection: Rejection) -> Self {
        Verdict::Rejected(rejection).into()
    }
}
