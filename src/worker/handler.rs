//! A role from a plain function.
//!
//! The function is called message by message, each call behind a savepoint of the batch's
//! transaction, so that even it shares the claim, the commit and the outbox with its neighbours.

use super::{Role, Ruling};
use crate::domain::key::EmptyPart;
use crate::domain::{Fingerprint, Key, RoleName, Timestamp, Verdict};
use crate::message::{Envelope, Malformed, Outgoing};
use crate::store::{self, Tx};
use async_trait::async_trait;
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::collections::VecDeque;

/// A function that handles one event at a time.
#[async_trait]
pub trait Handler: Send + Sync + 'static {
    /// What stands in a message's `data`.
    type Event: DeserializeOwned + Serialize + Send + Sync;

    /// Which business action an event is. It must be the same for every copy of the event; never
    /// build it from a message id, a time or a random value.
    ///
    /// # Errors
    /// [`EmptyPart`] if the event does not say which action it is; its message goes to the dead
    /// letters.
    fn key(&self, event: &Self::Event) -> Result<Key, EmptyPart>;

    /// Writes the effects of one event and returns what is to be published. It is called once per
    /// key, unless its transaction is rolled back; then its writes are gone too.
    ///
    /// # Errors
    /// [`Failure::Again`] gives up its writes and has the message delivered again later, alone.
    async fn handle(&self, tx: &mut dyn Tx, event: &Self::Event) -> Result<Vec<Outgoing>, Failure>;
}

/// Why a handler could not handle an event.
#[derive(Debug, thiserror::Error)]
pub enum Failure {
    /// It is to be tried again later, and why.
    #[error("{0}")]
    Again(String),
    /// The database.
    #[error(transparent)]
    Store(#[from] store::Error),
}

/// A role that calls a [`Handler`] for all messages of one type.
#[derive(Debug)]
pub struct HandlerRole<H> {
    name: RoleName,
    event_type: String,
    handler: H,
}

impl<H> HandlerRole<H> {
    /// The role `name`, which consumes `event_type`.
    pub fn new(name: RoleName, event_type: impl Into<String>, handler: H) -> Self {
        Self {
            name,
            event_type: event_type.into(),
            handler,
        }
    }
}

/// An event of a handler, read.
#[derive(Debug)]
pub struct Typed<E> {
    event: E,
    key: Key,
    subject: String,
}

#[async_trait]
impl<H: Handler> Role for HandlerRole<H> {
    type Event = Typed<H::Event>;
    /// What the handler said of each event, in the order in which they are decided.
    type Rows = VecDeque<Ruling>;

    fn name(&self) -> RoleName {
        self.name.clone()
    }

    fn decode(&self, envelope: &Envelope<'_>) -> Result<Vec<Self::Event>, Malformed> {
        if envelope.event_type != self.event_type {
            return Err(Malformed::UnknownType {
                found: envelope.event_type.to_string(),
            });
        }
        let items = envelope.items()?;
        let typed = items.iter().map(|fields| {
            let event: H::Event = fields.deserialize()?;
            let key = self.handler.key(&event);
            let key = key.map_err(|empty| fields.unusable(&empty.to_string()))?;
            Ok(Typed {
                key,
                event,
                subject: envelope.subject.to_string(),
            })
        });
        typed.collect()
    }

    fn key(&self, event: &Self::Event) -> Key {
        event.key.clone()
    }

    fn fingerprint(&self, event: &Self::Event) -> Fingerprint {
        Fingerprint::of(&self.event_type, &event.event)
    }

    fn subject<'e>(&self, event: &'e Self::Event) -> &'e str {
        &event.subject
    }

    /// Calls the handler for each event, in order.
    async fn load(&self, tx: &mut dyn Tx, events: &[&Self::Event]) -> store::Result<Self::Rows> {
        let mut rulings = VecDeque::with_capacity(events.len());
        for event in events {
            tx.savepoint().await?;
            let ruling = match self.handler.handle(tx, &event.event).await {
                Ok(emits) => {
                    tx.release_savepoint().await?;
                    Ruling::Decided {
                        verdict: Verdict::Applied,
                        emits,
                        reached: Vec::new(),
                    }
                }
                Err(Failure::Again(problem)) => {
                    tx.rollback_to_savepoint().await?;
                    Ruling::Failed(problem)
                }
                Err(Failure::Store(error)) => return Err(error),
            };
            rulings.push_back(ruling);
        }
        Ok(rulings)
    }

    fn decide(
        &self,
        rows: &mut Self::Rows,
        _event: &Self::Event,
        _key: &Key,
        _now: Timestamp,
    ) -> Ruling {
        rows.pop_front()
            .unwrap_or_else(|| Ruling::Failed("the handler was not called".to_owned()))
    }

    async fn write(&self, _: &mut dyn Tx, _: Self::Rows, _: Timestamp) -> store::Result<()> {
        Ok(())
    }
}
