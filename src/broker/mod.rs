//! Brokers: where deliveries come from and messages go.
//!
//! What lives here: the traits, the topology as data, and a folder per broker. What deliberately
//! does not: what a message means, and when it may be acknowledged, which the worker decides.

pub mod amqp;
pub mod embedded;
mod error;
mod topology;

pub use error::{Error, Result, Setup};
pub use topology::Topology;

use crate::domain::RoleName;
use async_trait::async_trait;
use bytes::Bytes;
use std::collections::BTreeMap;
use std::time::{Duration, SystemTime};

/// Headers of a message.
pub type Headers = BTreeMap<String, String>;

/// Names one delivery at the consumer that received it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Tag {
    /// The message in its queue, or the number of the delivery on its channel.
    pub id: i64,
    /// Which delivery of the message, or which channel; an older one settles nothing.
    pub fence: i64,
}

/// One arrival of a message at a consumer. That a message came before does not say that it was
/// handled, and that it did not come before does not say that no copy of it was: only the claim
/// decides.
#[derive(Debug, Clone)]
pub struct Delivery {
    /// Names it when it is settled.
    pub tag: Tag,
    /// The message.
    pub message: Bytes,
    /// Its headers.
    pub headers: Headers,
    /// How many attempts failed before and were told so with [`Settlement::Retry`].
    pub attempt: u32,
    /// How often it has been delivered, this time included, as far as the broker knows.
    pub deliveries: u32,
}

/// What becomes of a delivery at the broker.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Settlement {
    /// Its outcome is in the database: the broker may forget it.
    Ack,
    /// It failed: deliver it again to this role after the delay, with its attempt counted.
    Retry(Duration),
    /// It was not worked on: deliver it again at once, with nothing counted.
    Release,
    /// It was not worked on, since somebody else is at it: deliver it again to this role after the delay,
    /// with nothing counted.
    Later(Duration),
}

/// Receives the deliveries of one role.
#[async_trait]
pub trait Consumer: Send + Sync {
    /// Waits for deliveries and returns what has arrived, from one to `max`, oldest first. Dropping
    /// the future loses nothing.
    ///
    /// A message that was delivered before and not settled, again and again, comes with fewer others,
    /// and alone before it reaches the delivery limit: it may be what killed its consumers, and must
    /// not take its neighbours along.
    ///
    /// # Errors
    /// [`Error::Unavailable`] if the broker is away.
    async fn receive(&mut self, max: usize) -> Result<Vec<Delivery>>;

    /// Returns what has arrived without waiting; may be nothing.
    ///
    /// # Errors
    /// [`Error::Unavailable`] if the broker is away.
    async fn try_receive(&mut self, max: usize) -> Result<Vec<Delivery>>;

    /// Settles deliveries. Returns how many could not be settled because they belong to somebody
    /// else by now: their lease or their channel is gone, and they are delivered again.
    ///
    /// # Errors
    /// [`Error::Unavailable`] if the broker is away; some may have been settled.
    async fn settle(&mut self, settlements: &[(Tag, Settlement)]) -> Result<usize>;

    /// Stops receiving and releases what was received and not settled.
    ///
    /// # Errors
    /// [`Error::Unavailable`] if the broker is away; it releases them by itself then.
    async fn close(self: Box<Self>) -> Result<()>;
}

/// A message on its way to the broker.
#[derive(Debug, Clone)]
pub struct Publication {
    /// Its id, the same at every attempt.
    pub message_id: String,
    /// The type of its event, by which it finds its queues.
    pub event_type: String,
    /// The one role whose queue it goes to, instead of by its type.
    pub addressee: Option<RoleName>,
    /// The message.
    pub message: Bytes,
    /// Its headers.
    pub headers: Headers,
}

/// What the broker said of a publication.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Receipt {
    /// It is safe with the broker, or nobody had asked for its type.
    Confirmed,
    /// It was not taken, and why.
    Refused(String),
}

/// Publishes messages.
#[async_trait]
pub trait Publisher: Send + Sync {
    /// Publishes messages in order and waits for what the broker says of each.
    ///
    /// # Errors
    /// [`Error::Unavailable`] if the broker is away; some may have been published.
    async fn publish(&mut self, messages: &[Publication]) -> Result<Vec<Receipt>>;
}

/// How many messages a queue holds.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Depth {
    /// Waiting to be delivered.
    pub ready: u64,
    /// Delivered and not settled; `None` if the broker does not tell.
    pub unsettled: Option<u64>,
    /// Waiting for a delay to pass. Where the roles share what holds them, those of all roles.
    pub delayed: u64,
    /// Set aside because they seem to kill the process.
    pub crashed: u64,
}

impl Depth {
    /// All messages that the broker tells of. One that keeps its unsettled ones to itself may hold
    /// more.
    #[must_use]
    pub fn total(self) -> u64 {
        self.ready + self.unsettled.unwrap_or(0) + self.delayed + self.crashed
    }
}

/// How a connection to the broker is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConnectionState {
    /// What it is for.
    pub name: &'static str,
    /// The host that is in use, or was tried last, password masked.
    pub at: String,
    /// How it is.
    pub state: State,
    /// Since when.
    pub since: SystemTime,
}

/// What a connection is good for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum State {
    /// It works.
    Up,
    /// The broker takes no messages over it, and why.
    Blocked(String),
    /// It is not there, and why.
    Down(String),
}

/// A broker with a queue for each role.
#[async_trait]
pub trait Broker: Send + Sync + 'static {
    /// A consumer of a role's queue that holds at most `prefetch` unsettled deliveries.
    ///
    /// # Errors
    /// [`Error::UnknownQueue`] if the topology has no queue for the role, [`Error::Unavailable`] if
    /// the broker is away.
    async fn consumer(&self, role: &RoleName, prefetch: usize) -> Result<Box<dyn Consumer>>;

    /// A publisher. Use it from one task.
    ///
    /// # Errors
    /// [`Error::Unavailable`] if the broker is away.
    async fn publisher(&self) -> Result<Box<dyn Publisher>>;

    /// Takes up to `max` messages that were delivered again and again and never settled, so that
    /// they seem to kill the process. They are not delivered to consumers any more; settle them
    /// with [`Self::forget_crashed`] once they are kept elsewhere.
    ///
    /// # Errors
    /// [`Error::Unavailable`] if the broker is away.
    async fn crashed(&self, role: &RoleName, max: usize) -> Result<Vec<Delivery>>;

    /// Lets go what [`Self::crashed`] took and nobody forgot, so that another process can take it.
    ///
    /// # Errors
    /// [`Error::UnknownQueue`] if the topology has no queue for the role.
    async fn put_back_crashed(&self, role: &RoleName) -> Result<()>;

    /// Forgets messages that [`Self::crashed`] returned.
    ///
    /// # Errors
    /// [`Error::Unavailable`] if the broker is away.
    async fn forget_crashed(&self, role: &RoleName, tags: &[Tag]) -> Result<()>;

    /// How many messages a role's queue holds.
    ///
    /// # Errors
    /// [`Error::UnknownQueue`], [`Error::Unavailable`].
    async fn depth(&self, role: &RoleName) -> Result<Depth>;

    /// Whether the broker answers. A connection that is lost is made anew, which nobody else does while
    /// there is nothing to say over it.
    ///
    /// # Errors
    /// [`Error`] if it cannot be made.
    async fn ping(&self) -> Result<()> {
        Ok(())
    }

    /// What kind of broker it is, as traces name it.
    fn system(&self) -> &'static str {
        "orderonce"
    }

    /// How the connections to the broker are; none if it needs none.
    fn connections(&self) -> Vec<ConnectionState> {
        Vec::new()
    }
}
