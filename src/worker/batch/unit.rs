//! A delivery with what it says.

use super::{ItemOutcome, Settled};
use crate::broker::{Delivery, Settlement};
use crate::domain::{DeadReason, Fingerprint, Key, Outcome, Timestamp};
use crate::message::Malformed;

/// A delivery with its events. All of them are decided in one transaction.
pub(super) struct Unit<'d, E> {
    pub(super) delivery: &'d Delivery,
    pub(super) content: Result<Content<Item<E>>, Unreadable>,
    /// What a client asked, if it asked; then there is one event.
    pub(super) request: Option<Request>,
}

/// A request that its client may repeat until it has the answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Request {
    /// Which of the client's requests it is. Its claim belongs to the role `api`.
    pub key: Key,
    /// Of all that the request says.
    pub fingerprint: Fingerprint,
}

/// A message that its role cannot read.
pub(super) struct Unreadable {
    /// Its id, if its envelope could be read.
    pub(super) message_id: Option<String>,
    pub(super) malformed: Malformed,
}

/// What a message says: its events, without and later with their keys.
pub(super) struct Content<I> {
    pub(super) message_id: String,
    pub(super) event_type: String,
    pub(super) traceparent: Option<String>,
    /// When its producer says that it was produced, if that is of interest.
    pub(super) time: Option<Timestamp>,
    pub(super) items: Vec<I>,
}

pub(super) struct Item<E> {
    pub(super) event: E,
    pub(super) subject: String,
    pub(super) key: Key,
    pub(super) fingerprint: Fingerprint,
}

impl<E> Unit<'_, E> {
    pub(super) fn items(&self) -> &[Item<E>] {
        self.content.as_ref().map_or(&[], |content| &content.items)
    }

    pub(super) fn message_id(&self) -> Option<&str> {
        match &self.content {
            Ok(content) => Some(&content.message_id),
            Err(unreadable) => unreadable.message_id.as_deref(),
        }
    }

    /// The message as text; it was read, so it is UTF-8.
    pub(super) fn text(&self) -> &str {
        std::str::from_utf8(&self.delivery.message).unwrap_or_default()
    }

    pub(super) fn settled(&self, outcomes: Vec<Outcome>) -> Settled {
        let failed = self.delivery.attempt;
        let delays = outcomes.iter().filter_map(|outcome| match outcome {
            Outcome::Retried { attempt, delay } => Some((*attempt > failed, *delay)),
            Outcome::Applied
            | Outcome::Duplicate(_)
            | Outcome::Conflict
            | Outcome::Parked(_)
            | Outcome::Stale
            | Outcome::Rejected(_)
            | Outcome::Dead(_) => None,
        });
        // An attempt that failed goes before one that was not made.
        let settlement = match delays.max() {
            None => Settlement::Ack,
            Some((true, delay)) => Settlement::Retry(delay),
            Some((false, delay)) => Settlement::Later(delay),
        };
        let keys = self.items().iter();
        let mut keys = keys.map(|item| (item.key.clone(), item.fingerprint));
        Settled {
            tag: self.delivery.tag,
            message_id: self.message_id().map(str::to_owned),
            trace_id: None,
            items: outcomes
                .into_iter()
                .map(|outcome| ItemOutcome {
                    key: keys.next(),
                    outcome,
                })
                .collect(),
            settlement,
        }
    }
}

pub(super) fn dead_reason(malformed: &Malformed) -> DeadReason {
    if let Malformed::UnknownType { .. } = malformed {
        DeadReason::UnknownType
    } else {
        DeadReason::Malformed
    }
}
