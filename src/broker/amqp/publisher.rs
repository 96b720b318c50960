//! Publishing events.

use super::Shared;
use super::outlet::{Outlet, Patience};
use super::wire::{self, Outgoing, short};
use crate::broker::{Publication, Publisher, Receipt, Result};
use async_trait::async_trait;
use std::sync::Arc;

/// Publishes over a channel of its own.
#[derive(Debug)]
pub(super) struct AmqpPublisher {
    shared: Arc<Shared>,
    outlet: Outlet,
}

impl AmqpPublisher {
    pub(super) async fn open(shared: Arc<Shared>) -> Result<Self> {
        let mut outlet = shared.outlet();
        outlet.open().await?;
        Ok(Self { shared, outlet })
    }

    /// What goes over the wire.
    ///
    /// # Errors
    /// A sentence, if it cannot.
    fn outgoing(&self, publication: &Publication) -> Result<Outgoing, String> {
        let room = self.shared.publishing.room_for_headers();
        let headers = wire::headers(publication, room)?;
        let layout = &self.shared.layout;
        let event_type = publication.event_type.as_str();
        let (exchange, routing_key, mandatory) = match &publication.addressee {
            Some(role) => (short(""), layout.queue_of(role), true),
            None => {
                let mandatory = self.shared.topology.mandatory(event_type);
                (layout.events.name.clone(), short(event_type), mandatory)
            }
        };
        Ok(Outgoing {
            exchange,
            routing_key,
            mandatory,
            properties: wire::properties(publication),
            headers,
            message: publication.message.clone(),
        })
    }
}

#[async_trait]
impl Publisher for AmqpPublisher {
    async fn publish(&mut self, messages: &[Publication]) -> Result<Vec<Receipt>> {
        let mut outgoing = Vec::with_capacity(messages.len());
        let mut receipts = Vec::with_capacity(messages.len());
        for publication in messages {
            receipts.push(match self.outgoing(publication) {
                Ok(message) => {
                    outgoing.push(message);
                    None
                }
                Err(refusal) => Some(Receipt::Refused(refusal)),
            });
        }
        let said = self.outlet.publish(&outgoing, Patience::Limited).await?;
        let mut said = said.into_iter();
        let receipts = receipts
            .into_iter()
            .filter_map(|refused| refused.or_else(|| said.next()));
        Ok(receipts.collect())
    }
}
