//! The embedded queue: a table in the SQLite file, so that one process needs no server.
//!
//! What lives here: routing, leases, and the tasks that transactions run in. A delivery is a lease:
//! the row stays where it is and becomes invisible until the lease ends, so a killed process costs
//! time and no message. Each lease raises the row's fence, and only the newest fence settles.
//! `unsettled` counts the leases that ended without a word; a row that has a few of them is leased
//! alone, and one that reaches the delivery limit is taken for one that kills the process and is kept
//! away from consumers.
//!
//! What deliberately does not: an exchange. A publication is written once per queue that wants it,
//! so that each role settles a row of its own.
//!
//! Rows are ordered by the host's clock. A clock that is set back delays what was published before
//! by as much, and loses nothing.

mod consumer;
mod publisher;
mod rows;

pub use rows::{Held, Kept};

use super::{Broker, Consumer, Delivery, Depth, Error, Publisher, Result, Tag, Topology};
use crate::domain::{RoleName, Timestamp};
use crate::store;
use crate::store::sqlite::Database;
use async_trait::async_trait;
use sqlx::sqlite::SqliteConnection;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::Notify;

/// How the queue behaves.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Options {
    /// How long a delivery belongs to its consumer before it is delivered again.
    pub lease: Duration,
    /// After how many unsettled deliveries a message is not delivered any more; at least 1.
    pub delivery_limit: u32,
    /// The longest pause before an empty queue is looked at again. Publishers of the same process
    /// wake consumers at once; this is for those of others.
    pub poll: Duration,
    /// Whether acknowledged messages stay in the table, for inspection.
    pub keep_acked: bool,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            lease: Duration::from_secs(30),
            delivery_limit: 20,
            poll: Duration::from_millis(50),
            keep_acked: false,
        }
    }
}

/// The queues of a topology in a SQLite file. Clones share the wake-ups of their consumers.
#[derive(Debug, Clone)]
pub struct Embedded {
    shared: Arc<Shared>,
}

/// What consumers and publishers have in common.
#[derive(Debug)]
struct Shared {
    database: Database,
    topology: Topology,
    options: Options,
    wakes: BTreeMap<RoleName, Arc<Notify>>,
}

impl Embedded {
    /// The queues of `topology` in `database`, whose writer is shared with the store.
    #[must_use]
    pub fn new(database: Database, topology: Topology, options: Options) -> Self {
        let wakes = topology.roles().cloned().map(|role| (role, Arc::default()));
        let options = Options {
            delivery_limit: options.delivery_limit.max(1),
            ..options
        };
        let shared = Shared {
            wakes: wakes.collect(),
            database,
            topology,
            options,
        };
        Self {
            shared: Arc::new(shared),
        }
    }

    /// Every message of every queue in the order of publishing. With [`Options::keep_acked`] that
    /// is everything that was ever published; without, what is not acknowledged yet.
    ///
    /// # Errors
    /// [`Error::Unavailable`] if the file cannot be read.
    pub async fn kept(&self) -> Result<Vec<Kept>> {
        Ok(rows::kept(&self.shared).await?)
    }

    /// Up to `limit` deliveries whose lease lasts longer than a lease and `grace` from now on.
    ///
    /// # Errors
    /// [`Error::Unavailable`] if the file cannot be read.
    pub async fn held_beyond(&self, grace: Duration, limit: u32) -> Result<Vec<Held>> {
        Ok(rows::held_beyond(&self.shared, grace, limit).await?)
    }

    /// Ends the lease of a delivery within a transaction on the queue's file, as its time would: the
    /// consumer may still settle it until it is delivered again. Guarded by fence and end; returns
    /// whether it ended.
    ///
    /// # Errors
    /// [`store::Error::Unavailable`] if the file cannot be written.
    pub async fn end_lease(
        connection: &mut SqliteConnection,
        held: &Held,
        now: Timestamp,
    ) -> store::Result<bool> {
        rows::end_lease(connection, held, now).await
    }

    fn wake(&self, role: &RoleName) -> Result<&Arc<Notify>> {
        let wake = self.shared.wakes.get(role);
        wake.ok_or_else(|| Error::UnknownQueue(role.clone()))
    }
}

#[async_trait]
impl Broker for Embedded {
    async fn consumer(&self, role: &RoleName, prefetch: usize) -> Result<Box<dyn Consumer>> {
        let wake = Arc::clone(self.wake(role)?);
        let shared = Arc::clone(&self.shared);
        let consumer = consumer::EmbeddedConsumer::new(shared, role.clone(), wake, prefetch);
        Ok(Box::new(consumer))
    }

    async fn publisher(&self) -> Result<Box<dyn Publisher>> {
        let shared = Arc::clone(&self.shared);
        Ok(Box::new(publisher::EmbeddedPublisher::new(shared)))
    }

    async fn crashed(&self, role: &RoleName, max: usize) -> Result<Vec<Delivery>> {
        Ok(rows::crashed(&self.shared, role, max).await?)
    }

    /// Nothing was taken: it stays where everybody finds it until it is forgotten.
    async fn put_back_crashed(&self, role: &RoleName) -> Result<()> {
        self.wake(role).map(drop)
    }

    async fn forget_crashed(&self, role: &RoleName, tags: &[Tag]) -> Result<()> {
        let (shared, role) = (Arc::clone(&self.shared), role.clone());
        let tags: Arc<[Tag]> = tags.into();
        transact(move || {
            let (shared, role, tags) = (Arc::clone(&shared), role.clone(), Arc::clone(&tags));
            async move { rows::forget_crashed(&shared, &role, &tags).await }
        })
        .await
    }

    async fn depth(&self, role: &RoleName) -> Result<Depth> {
        self.wake(role)?;
        Ok(rows::depth(&self.shared, role).await?)
    }
}

impl From<store::Error> for Error {
    fn from(error: store::Error) -> Self {
        match error {
            store::Error::Unavailable(text) => Self::Unavailable(text),
            store::Error::Conflict(_)
            | store::Error::Refused(_)
            | store::Error::Corrupt { .. }
            | store::Error::Setup(_) => Self::Unavailable(error.to_string()),
        }
    }
}

/// Runs a transaction in a task of its own, because one that is cancelled half-way leaves the
/// writer in an unknown state.
async fn transact<T, W, F>(work: W) -> Result<T>
where
    T: Send + 'static,
    W: Fn() -> F + Send + 'static,
    F: Future<Output = store::Result<T>> + Send + 'static,
{
    joined(tokio::spawn(retrying(work)).await)
}

/// The result of a task that ran a transaction.
fn joined<T>(result: std::result::Result<Result<T>, tokio::task::JoinError>) -> Result<T> {
    result.unwrap_or_else(|error| Err(Error::Unavailable(format!("the queue's task: {error}"))))
}

/// Runs a transaction again if another process was first, which has already waited for the file's
/// lock as long as it is allowed to.
async fn retrying<T, W, F>(work: W) -> Result<T>
where
    W: Fn() -> F,
    F: Future<Output = store::Result<T>>,
{
    const RETRIES: u64 = 3;
    for retry in 0..RETRIES {
        match work().await {
            Err(store::Error::Conflict(_)) => {
                let pause = fastrand::u64(1..=10 << retry);
                tokio::time::sleep(Duration::from_millis(pause)).await;
            }
            result => return Ok(result?),
        }
    }
    Ok(work().await?)
}
