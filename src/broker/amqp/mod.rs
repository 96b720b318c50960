//! RabbitMQ, over AMQP 0-9-1.
//!
//! What lives here: the topology, two connections, and what it takes to lose nothing over them. They
//! are two because a server that is short of memory stops reading from whoever publishes: what
//! consumes must be able to go on acknowledging.
//!
//! What deliberately does not: the management API. Whatever is checked, is checked by the means of
//! the protocol.
//!
//! It needs RabbitMQ 3.10, the first that dead-letters at least once.

mod acks;
mod burst;
mod consumer;
mod crashed;
mod host;
mod link;
mod outlet;
mod publisher;
mod setup;
mod topology;
mod wire;

pub use setup::Migration;

use super::{
    Broker, ConnectionState, Consumer, Delivery, Depth, Error, Publisher, Result, Setup, Tag,
    Topology,
};
use crate::domain::{RoleName, retry};
use async_trait::async_trait;
use consumer::AmqpConsumer;
use crashed::Taken;
use host::Host;
use link::{Link, Tls};
use outlet::{Limits, Outlet};
use publisher::AmqpPublisher;
use setup::{Inspector, message_count};
use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;
use tokio::sync::Mutex;
use topology::{Layout, Queue, RoleQueues};

/// Where the broker is, and how it is used.
#[derive(Clone, PartialEq, Eq)]
pub struct Options {
    /// URLs of hosts, `amqp://` or `amqps://`, tried in turn. They may hold passwords.
    pub hosts: Vec<String>,
    /// A file with certificates, in PEM form, of authorities that are trusted besides the system's.
    pub ca_file: Option<PathBuf>,
    /// The exchange that events are published to.
    pub exchange: String,
    /// How the names of queues and of the exchanges of delays begin.
    pub prefix: String,
    /// After how many unsettled deliveries a message is not delivered any more; at least 1.
    pub delivery_limit: u32,
    /// How long an idle connection may be silent, in whole seconds, unless the URL says.
    pub heartbeat: Duration,
    /// How long to wait for a host to answer, unless the URL says.
    pub connect_timeout: Duration,
    /// How long to wait for the broker to confirm what was published.
    pub confirm_timeout: Duration,
    /// Messages that are published before their confirms are awaited; at least 1.
    pub window: usize,
    /// The delays that retries can have.
    pub levels: Vec<Duration>,
}

impl Options {
    /// The defaults, with these hosts.
    #[must_use]
    pub fn new(hosts: Vec<String>) -> Self {
        Self {
            hosts,
            ca_file: None,
            exchange: "orderonce.events".to_owned(),
            prefix: "orderonce.".to_owned(),
            delivery_limit: 20,
            heartbeat: Duration::from_secs(10),
            connect_timeout: Duration::from_secs(10),
            confirm_timeout: Duration::from_secs(30),
            window: 512,
            levels: retry::LEVELS.to_vec(),
        }
    }
}

/// Without the hosts, whose URLs may hold passwords.
impl fmt::Debug for Options {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Options")
            .field("ca_file", &self.ca_file)
            .field("exchange", &self.exchange)
            .field("prefix", &self.prefix)
            .field("delivery_limit", &self.delivery_limit)
            .field("heartbeat", &self.heartbeat)
            .field("connect_timeout", &self.connect_timeout)
            .field("confirm_timeout", &self.confirm_timeout)
            .field("window", &self.window)
            .field("levels", &self.levels)
            .finish_non_exhaustive()
    }
}

/// The queues of a topology at a RabbitMQ server. Clones share their connections.
#[derive(Debug, Clone)]
pub struct Amqp {
    shared: Arc<Shared>,
}

/// What consumers and publishers have in common.
#[derive(Debug)]
struct Shared {
    topology: Topology,
    layout: Layout,
    delivery_limit: u32,
    limits: Limits,
    consuming: Arc<Link>,
    publishing: Arc<Link>,
    epochs: AtomicI64,
    taken: BTreeMap<RoleName, Mutex<Taken>>,
}

impl Amqp {
    /// Connects, and checks that the server has what `topology` needs. Creates nothing there. Logs
    /// what works but could be better.
    ///
    /// # Errors
    /// [`Error::Setup`] if the configuration or the server must be put right first,
    /// [`Error::Unavailable`] if the server goes away meanwhile.
    pub async fn open(options: &Options, topology: Topology) -> Result<Self> {
        let broker = Self::unconnected(options, topology)?;
        let shared = &broker.shared;
        shared.consuming.set_up().await?;
        let warnings = Inspector::new(&shared.consuming, &shared.layout)
            .check()
            .await?;
        shared.publishing.set_up().await?;
        for warning in warnings {
            tracing::warn!("{warning}");
        }
        Ok(broker)
    }

    /// Declares what `topology` needs, as far as it is not there yet.
    ///
    /// # Errors
    /// As [`Self::open`].
    pub async fn migrate(options: &Options, topology: Topology) -> Result<Migration> {
        let broker = Self::unconnected(options, topology)?;
        let link = &broker.shared.consuming;
        link.set_up().await?;
        let migrated = Inspector::new(link, &broker.shared.layout).migrate().await;
        broker.close().await;
        migrated
    }

    /// Deletes the exchanges and queues of `topology`, with what they hold.
    ///
    /// # Errors
    /// As [`Self::open`].
    pub async fn remove(options: &Options, topology: Topology) -> Result<()> {
        let broker = Self::unconnected(options, topology)?;
        let link = &broker.shared.consuming;
        link.set_up().await?;
        let removed = Inspector::new(link, &broker.shared.layout).remove().await;
        broker.close().await;
        removed
    }

    /// Closes the connections in order. What is still in use of them ends with an error.
    pub async fn close(&self) {
        self.shared.publishing.close().await;
        self.shared.consuming.close().await;
    }

    fn unconnected(options: &Options, topology: Topology) -> Result<Self, Setup> {
        let options = Options {
            delivery_limit: options.delivery_limit.max(1),
            window: options.window.max(1),
            ..options.clone()
        };
        let hosts = options.hosts.iter();
        let hosts = hosts.map(|url| Host::parse(url, options.heartbeat));
        let hosts: Vec<Host> = hosts.collect::<Result<_, Setup>>()?;
        let tls = Tls::of(&options)?;
        let link = |name| Link::new(name, hosts.clone(), tls.clone(), &options);
        let shared = Shared {
            layout: Layout::new(&options, &topology)?,
            delivery_limit: options.delivery_limit,
            limits: Limits {
                window: options.window,
                confirm_timeout: options.confirm_timeout,
            },
            consuming: link("consuming"),
            publishing: link("publishing"),
            epochs: AtomicI64::new(0),
            taken: topology
                .roles()
                .map(|role| (role.clone(), Mutex::default()))
                .collect(),
            topology,
        };
        Ok(Self {
            shared: Arc::new(shared),
        })
    }
}

impl Shared {
    fn outlet(&self) -> Outlet {
        Outlet::new(Arc::clone(&self.publishing), self.limits)
    }

    /// A number that no channel of this process has had.
    fn next_epoch(&self) -> i64 {
        self.epochs.fetch_add(1, Ordering::Relaxed)
    }

    fn queues(&self, role: &RoleName) -> Result<&RoleQueues> {
        let queues = self.layout.roles.get(role);
        queues.ok_or_else(|| Error::UnknownQueue(role.clone()))
    }

    fn taken(&self, role: &RoleName) -> Result<&Mutex<Taken>> {
        let taken = self.taken.get(role);
        taken.ok_or_else(|| Error::UnknownQueue(role.clone()))
    }
}

#[async_trait]
impl Broker for Amqp {
    fn system(&self) -> &'static str {
        "rabbitmq"
    }

    async fn consumer(&self, role: &RoleName, prefetch: usize) -> Result<Box<dyn Consumer>> {
        self.shared.queues(role)?;
        let shared = Arc::clone(&self.shared);
        let consumer = AmqpConsumer::open(shared, role.clone(), prefetch).await?;
        Ok(Box::new(consumer))
    }

    async fn publisher(&self) -> Result<Box<dyn Publisher>> {
        let publisher = AmqpPublisher::open(Arc::clone(&self.shared)).await?;
        Ok(Box::new(publisher))
    }

    async fn crashed(&self, role: &RoleName, max: usize) -> Result<Vec<Delivery>> {
        let queue = &self.shared.queues(role)?.crashed.name;
        let mut taken = self.shared.taken(role)?.lock().await;
        taken.take(&self.shared, queue, max).await
    }

    async fn put_back_crashed(&self, role: &RoleName) -> Result<()> {
        self.shared.taken(role)?.lock().await.put_back().await;
        Ok(())
    }

    async fn forget_crashed(&self, role: &RoleName, tags: &[Tag]) -> Result<()> {
        self.shared.taken(role)?.lock().await.forget(tags).await;
        Ok(())
    }

    /// How many deliveries are unsettled, AMQP does not tell.
    async fn depth(&self, role: &RoleName) -> Result<Depth> {
        let shared = &self.shared;
        let queues = shared.queues(role)?;
        let taken = shared.taken(role)?.lock().await.count();
        let link = &shared.consuming;
        let channel = link.channel().await?;
        let count = async |queue: &Queue| {
            let count = message_count(&channel, &queue.name).await;
            count.map_err(|error| link.unavailable(&error))
        };
        let mut delayed = 0;
        for level in &shared.layout.levels {
            delayed += count(&level.queue).await?;
        }
        Ok(Depth {
            ready: count(&queues.queue).await?,
            unsettled: None,
            delayed,
            crashed: count(&queues.crashed).await? + taken,
        })
    }

    async fn ping(&self) -> Result<()> {
        self.shared.consuming.set_up().await?;
        self.shared.publishing.set_up().await
    }

    fn connections(&self) -> Vec<ConnectionState> {
        let shared = &self.shared;
        vec![shared.consuming.state(), shared.publishing.state()]
    }
}
