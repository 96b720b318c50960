//! Everything that goes through the broker, to be counted and published again.

use crate::broker::embedded::{Embedded, Kept};
use crate::broker::{self, Broker, Consumer, Delivery, Settlement, Topology};
use crate::domain::{EventType, RoleName};
use crate::message::{Envelope, Limits};
use crate::store::WOKEN;
use strum::IntoEnumIterator;

/// Where the messages are seen.
pub(super) enum Tap {
    /// The table of the embedded queue, which keeps them with their deliveries.
    Table(Embedded, Vec<Kept>),
    /// A queue of its own that gets a copy of each. Of the deliveries it knows nothing.
    Copies(Box<dyn Consumer>, Vec<Kept>),
}

/// Copies that are taken at a time.
const COPIES: usize = 1_000;

impl Tap {
    /// The queues of the roles, and one that gets a copy of all that they get.
    pub(super) fn topology() -> Topology {
        let (mut topology, tap) = (Topology::default(), tap());
        for event_type in EventType::iter() {
            if event_type.consumer().is_some() {
                topology.bind(&tap, event_type.name());
            }
        }
        topology
    }

    pub(super) fn of_table(queue: Embedded) -> Self {
        Self::Table(queue, Vec::new())
    }

    pub(super) async fn of_copies(broker: &dyn Broker) -> broker::Result<Self> {
        let consumer = broker.consumer(&tap(), COPIES).await?;
        Ok(Self::Copies(consumer, Vec::new()))
    }

    /// All that has been seen so far, copies that were published again counted.
    pub(super) async fn look(&mut self) -> broker::Result<&[Kept]> {
        match self {
            Self::Table(queue, kept) => {
                *kept = queue.kept().await?;
                Ok(kept)
            }
            Self::Copies(consumer, kept) => loop {
                let copies = consumer.try_receive(COPIES).await?;
                if copies.is_empty() {
                    return Ok(kept);
                }
                kept.extend(copies.iter().filter_map(seen));
                let settlements = copies.iter().map(|copy| (copy.tag, Settlement::Ack));
                consumer.settle(&settlements.collect::<Vec<_>>()).await?;
            },
        }
    }

    /// How many deliveries there were, as far as the broker tells.
    pub(super) async fn deliveries(&mut self) -> broker::Result<Option<u64>> {
        match self {
            Self::Table(..) => {
                let kept = self.look().await?;
                Ok(Some(
                    kept.iter().map(|kept| u64::from(kept.deliveries)).sum(),
                ))
            }
            Self::Copies(..) => Ok(None),
        }
    }
}

/// The queue that gets the copies.
fn tap() -> RoleName {
    RoleName::new("tap")
}

/// A copy as what it is a copy of, delivered once.
fn seen(copy: &Delivery) -> Option<Kept> {
    let envelope = Envelope::parse(&copy.message, &Limits::default()).ok()?;
    let event_type: EventType = envelope.event_type.parse().ok()?;
    Some(Kept {
        queue: event_type.consumer()?,
        message_id: envelope.id.into_owned(),
        message: copy.message.clone(),
        woken: copy.headers.contains_key(WOKEN),
        deliveries: 1,
        acked: true,
    })
}
