//! Publishing into the table.

use super::rows::{self, Insertion, Routed};
use super::{Shared, transact};
use crate::broker::{Publication, Publisher, Receipt, Result};
use async_trait::async_trait;
use std::collections::BTreeSet;
use std::sync::Arc;

/// The longest message, as RabbitMQ had it before 4.0.
const MAX_BYTES: usize = 128 << 20;

/// Routes publications and writes them, each call in one transaction.
#[derive(Debug)]
pub(super) struct EmbeddedPublisher {
    shared: Arc<Shared>,
}

impl EmbeddedPublisher {
    pub(super) fn new(shared: Arc<Shared>) -> Self {
        Self { shared }
    }
}

#[async_trait]
impl Publisher for EmbeddedPublisher {
    async fn publish(&mut self, messages: &[Publication]) -> Result<Vec<Receipt>> {
        let shared = &self.shared;
        let mut routed = Vec::with_capacity(messages.len());
        let receipts = messages
            .iter()
            .map(|publication| route(shared, publication, &mut routed))
            .collect();
        if routed.is_empty() {
            return Ok(receipts);
        }
        let insertions: Arc<[Insertion]> = Insertion::of(&routed)?.into();
        let task = Arc::clone(shared);
        transact(move || {
            let (shared, insertions) = (Arc::clone(&task), Arc::clone(&insertions));
            async move { rows::publish(&shared, &insertions).await }
        })
        .await?;
        let queues: BTreeSet<_> = routed.iter().map(|routed| routed.queue).collect();
        for wake in queues.iter().filter_map(|queue| shared.wakes.get(*queue)) {
            wake.notify_waiters();
        }
        Ok(receipts)
    }
}

/// Adds a publication to `routed` once per queue that it goes to, and says what its publisher is
/// told once that is written.
fn route<'a>(
    shared: &'a Shared,
    publication: &'a Publication,
    routed: &mut Vec<Routed<'a>>,
) -> Receipt {
    let size = publication.message.len();
    if size > MAX_BYTES {
        let refusal = format!("message of {size} bytes, expected at most {MAX_BYTES}");
        return Receipt::Refused(refusal);
    }
    let topology = &shared.topology;
    if let Some(addressee) = &publication.addressee {
        // The topology's copy of the name lives as long as `shared`, and says that the queue is there.
        let Some((queue, _)) = shared.wakes.get_key_value(addressee) else {
            return Receipt::Refused(format!("there is no queue for role {addressee}"));
        };
        routed.push(Routed { queue, publication });
        return Receipt::Confirmed;
    }
    let event_type = publication.event_type.as_str();
    let before = routed.len();
    let routes = topology.routes(event_type);
    routed.extend(routes.map(|queue| Routed { queue, publication }));
    if routed.len() == before && topology.mandatory(event_type) {
        return Receipt::Refused(format!("no queue is bound to type {event_type}"));
    }
    Receipt::Confirmed
}
