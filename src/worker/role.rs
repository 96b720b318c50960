//! What a role has to say, so that a batch need not know orders or stock.

use crate::domain::{Decision, EventType, Fingerprint, Key, RoleName, Timestamp, Token, Verdict};
use crate::message::{Envelope, Fields, Malformed, Outgoing};
use crate::store::{self, Tx};
use async_trait::async_trait;

/// A role: what to load, how to decide, what to write. The four built-in roles are implementations;
/// a team's own is another, and [`super::handler::HandlerRole`] makes one of a plain function.
#[async_trait]
pub trait Role: Send + Sync + 'static {
    /// An event that it consumes.
    type Event: Send + Sync;
    /// The rows that its events touch, as far as they were decided.
    type Rows: Send;

    /// Its name, which is that of its queue and scopes its keys.
    fn name(&self) -> RoleName;

    /// Reads the events of a message.
    ///
    /// # Errors
    /// [`Malformed`]: the first thing that is wrong with it. The message goes to the dead letters.
    fn decode(&self, envelope: &Envelope<'_>) -> Result<Vec<Self::Event>, Malformed>;

    /// Which business action an event is. It must be the same for every copy of the event.
    fn key(&self, event: &Self::Event) -> Key;

    /// A hash of the event's business content, without ids, times and trace headers.
    fn fingerprint(&self, event: &Self::Event) -> Fingerprint;

    /// What an event is about, such as an order.
    fn subject<'e>(&self, event: &'e Self::Event) -> &'e str;

    /// Loads all rows that the events touch, with one statement per table, locked in the order of
    /// their keys. The events are then decided in the order in which they stand here.
    ///
    /// # Errors
    /// [`store::Error`].
    async fn load(&self, tx: &mut dyn Tx, events: &[&Self::Event]) -> store::Result<Self::Rows>;

    /// Decides one event, purely, and remembers what it changed in `rows`, so that the next event of
    /// the batch sees it.
    fn decide(
        &self,
        rows: &mut Self::Rows,
        event: &Self::Event,
        key: &Key,
        now: Timestamp,
    ) -> Ruling;

    /// Writes what was changed, with one statement per table, one update per row, and every guard
    /// checked.
    ///
    /// # Errors
    /// [`store::Error::Conflict`] if a guard fails; then the batch is decided again.
    async fn write(&self, tx: &mut dyn Tx, rows: Self::Rows, now: Timestamp) -> store::Result<()>;
}

/// What a role says of an event.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Ruling {
    /// It is decided.
    Decided {
        /// What is said of it.
        verdict: Verdict,
        /// What is to be published.
        emits: Vec<Outgoing>,
        /// Tokens that are true from now on.
        reached: Vec<Token>,
    },
    /// It could not be decided, and nothing of it was written: it is to be delivered again later.
    Failed(String),
}

impl<W> From<&Decision<W>> for Ruling {
    fn from(decision: &Decision<W>) -> Self {
        Self::Decided {
            verdict: decision.verdict.clone(),
            emits: decision.emits.iter().map(Outgoing::from).collect(),
            reached: decision.reached.clone(),
        }
    }
}

/// Reads all events of a message whose type `role` consumes.
pub(super) fn decode_typed<E>(
    envelope: &Envelope<'_>,
    role: &RoleName,
    read: impl Fn(EventType, &Fields<'_>) -> Option<Result<E, Malformed>>,
) -> Result<Vec<E>, Malformed> {
    let unknown = || Malformed::UnknownType {
        found: envelope.event_type.chars().take(100).collect(),
    };
    let event_type: EventType = envelope.event_type.parse().map_err(|_| unknown())?;
    if event_type.consumer().as_ref() != Some(role) {
        return Err(unknown());
    }
    let items = envelope.items()?;
    let events = items.iter().map(|fields| read(event_type, fields));
    events
        .map(|event| event.unwrap_or_else(|| Err(unknown())))
        .collect()
}
