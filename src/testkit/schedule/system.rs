//! The system under test, as one process would run it, with taps where a schedule listens and
//! interferes.

use crate::broker::embedded::{self, Embedded};
use crate::broker::{
    self, Broker, Consumer, Delivery, Publication, Publisher, Receipt, Settlement, Tag, Topology,
};
use crate::domain::account::PointsRule;
use crate::domain::{AccountKind, Fingerprint, Key, RoleName, Timestamp};
use crate::gate::{Gate, Known, Told};
use crate::store::Store;
use crate::store::mysql::{self, MySqlStore};
use crate::store::postgres::{self, PostgresStore};
use crate::store::sqlite::{Database, Options, SqliteStore};
use crate::worker::account::AccountRole;
use crate::worker::inventory::InventoryRole;
use crate::worker::janitor::Janitor;
use crate::worker::order::OrderRole;
use crate::worker::payment::PaymentRole;
use crate::worker::relay::{self, Relay};
use crate::worker::{self, Point, Points, Processor, Role, Settings, Settled, Worker};
use async_trait::async_trait;
use fastrand::Rng;
use std::collections::HashMap;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// How long an order may stay unpaid.
pub(super) const PAY_WITHIN: Duration = Duration::from_secs(1_800);

/// How long an event may stay parked.
pub(super) const PARK_FOR: Duration = Duration::from_secs(86_400);

/// Lets the schedule see what passes between the system and its broker, and interfere.
#[derive(Clone, Default)]
pub(super) struct Tap(Arc<Mutex<Tapped>>);

#[derive(Default)]
struct Tapped {
    stop_at: Option<Point>,
    fault: Option<Fault>,
    received: Vec<Delivery>,
    offered: Vec<Offer>,
}

/// What goes wrong between the system and its broker.
#[derive(Debug, Clone)]
pub(super) enum Fault {
    /// The broker is away before it has done anything.
    Before,
    /// The broker is away when it has done everything.
    After,
    /// The broker refuses some publications.
    Refusing(Rng),
}

/// What the relay has offered to the broker.
#[derive(Debug, Clone)]
pub(super) struct Offer {
    pub(super) publication: Publication,
    /// Whether the broker has it, and has said so.
    pub(super) confirmed: bool,
}

impl Tap {
    fn lock(&self) -> MutexGuard<'_, Tapped> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The next run stops at a point.
    pub(super) fn stop_at(&self, point: Point) {
        self.lock().stop_at = Some(point);
    }

    /// The next run meets a fault of the broker.
    pub(super) fn fail(&self, fault: Fault) {
        self.lock().fault = Some(fault);
    }

    /// Nothing goes wrong any more.
    pub(super) fn calm(&self) {
        let mut tapped = self.lock();
        tapped.stop_at = None;
        tapped.fault = None;
    }

    /// What was received since it was last asked.
    pub(super) fn received(&self) -> Vec<Delivery> {
        std::mem::take(&mut self.lock().received)
    }

    /// What was offered since it was last asked.
    pub(super) fn offered(&self) -> Vec<Offer> {
        std::mem::take(&mut self.lock().offered)
    }

    fn points(&self) -> Points {
        let tap = self.clone();
        Points::stopping(move |point| tap.lock().stop_at == Some(point))
    }

    fn take_fault(&self) -> Option<Fault> {
        self.lock().fault.take()
    }
}

fn away() -> broker::Error {
    broker::Error::Unavailable("the schedule says so".to_owned())
}

struct TappedConsumer {
    inner: Box<dyn Consumer>,
    tap: Tap,
}

#[async_trait]
impl Consumer for TappedConsumer {
    async fn receive(&mut self, max: usize) -> broker::Result<Vec<Delivery>> {
        let deliveries = self.inner.receive(max).await?;
        self.tap.lock().received.extend_from_slice(&deliveries);
        Ok(deliveries)
    }

    async fn try_receive(&mut self, max: usize) -> broker::Result<Vec<Delivery>> {
        let deliveries = self.inner.try_receive(max).await?;
        self.tap.lock().received.extend_from_slice(&deliveries);
        Ok(deliveries)
    }

    async fn settle(&mut self, settlements: &[(Tag, Settlement)]) -> broker::Result<usize> {
        let fault = self.tap.take_fault();
        if let Some(Fault::Before) = fault {
            return Err(away());
        }
        let stale = self.inner.settle(settlements).await?;
        match fault {
            Some(Fault::After) => Err(away()),
            Some(Fault::Before | Fault::Refusing(_)) | None => Ok(stale),
        }
    }

    async fn close(self: Box<Self>) -> broker::Result<()> {
        self.inner.close().await
    }
}

struct TappedPublisher {
    inner: Box<dyn Publisher>,
    tap: Tap,
}

#[async_trait]
impl Publisher for TappedPublisher {
    async fn publish(&mut self, messages: &[Publication]) -> broker::Result<Vec<Receipt>> {
        let fault = self.tap.take_fault();
        let mut refusing = None;
        match &fault {
            Some(Fault::Before) => return Err(away()),
            Some(Fault::Refusing(rng)) => refusing = Some(rng.clone()),
            Some(Fault::After) | None => {}
        }
        let refused: Vec<bool> = messages
            .iter()
            .map(|_| refusing.as_mut().is_some_and(|rng| rng.u8(0..3) == 0))
            .collect();
        let taken = messages
            .iter()
            .zip(&refused)
            .filter(|(_, refused)| !**refused);
        let taken: Vec<_> = taken.map(|(message, _)| message.clone()).collect();
        let mut said = self.inner.publish(&taken).await?.into_iter();
        let mut receipts = Vec::with_capacity(messages.len());
        for (message, refused) in messages.iter().zip(refused) {
            let receipt = if refused {
                Receipt::Refused("the schedule says so".to_owned())
            } else {
                said.next().ok_or_else(away)?
            };
            self.tap.lock().offered.push(Offer {
                publication: message.clone(),
                confirmed: receipt == Receipt::Confirmed,
            });
            receipts.push(receipt);
        }
        match fault {
            Some(Fault::After) => Err(away()),
            Some(Fault::Before | Fault::Refusing(_)) | None => Ok(receipts),
        }
    }
}

/// A gate that remembers what it was told, but not always.
struct ForgetfulGate {
    known: Mutex<HashMap<(RoleName, Key), Fingerprint>>,
    rng: Mutex<Rng>,
}

#[async_trait]
impl Gate for ForgetfulGate {
    async fn ask(&self, role: &RoleName, keys: &[&Key]) -> Vec<Known> {
        let known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        let mut rng = self.rng.lock().unwrap_or_else(PoisonError::into_inner);
        let answer = |key: &&Key| match known.get(&(role.clone(), (*key).clone())) {
            Some(fingerprint) if rng.bool() => Known::Done(*fingerprint),
            Some(_) | None => Known::Unknown,
        };
        keys.iter().map(answer).collect()
    }

    async fn tell(&self, role: &RoleName, told: &[Told<'_>]) {
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        for told in told {
            known.insert((role.clone(), told.key.clone()), told.fingerprint);
        }
    }
}

/// A worker of any role.
#[async_trait]
pub(super) trait AnyWorker: Send {
    async fn run_available(&mut self) -> worker::Result<Vec<Settled>>;
    async fn receive(&mut self) -> worker::Result<Vec<Delivery>>;
    async fn handle(&mut self, deliveries: &[Delivery]) -> worker::Result<Vec<Settled>>;
    async fn close(self: Box<Self>) -> worker::Result<()>;
}

#[async_trait]
impl<R: Role> AnyWorker for Worker<R> {
    async fn run_available(&mut self) -> worker::Result<Vec<Settled>> {
        Worker::run_available(self).await
    }

    async fn receive(&mut self) -> worker::Result<Vec<Delivery>> {
        Worker::receive(self).await
    }

    async fn handle(&mut self, deliveries: &[Delivery]) -> worker::Result<Vec<Settled>> {
        Worker::handle(self, deliveries).await
    }

    async fn close(self: Box<Self>) -> worker::Result<()> {
        Worker::close(*self).await
    }
}

/// All that one process opens.
pub(super) struct System {
    /// That of the queue.
    database: Database,
    pub(super) store: Arc<dyn Store>,
    clock: Clock,
    pub(super) broker: Arc<Embedded>,
    order: Arc<Processor<OrderRole>>,
    payment: Arc<Processor<PaymentRole>>,
    inventory: Arc<Processor<InventoryRole>>,
    account: Arc<Processor<AccountRole>>,
    tap: Tap,
}

impl System {
    /// Opens the file of the queue and, unless that is the file's, the store. `with_gate` says whether a gate stands before the database, and what it
    /// forgets.
    pub(super) async fn open(
        path: &Path,
        server: Option<&str>,
        tap: &Tap,
        with_gate: Option<Rng>,
        keep_acked: bool,
    ) -> crate::store::Result<Self> {
        let database = Database::open(&options(path)).await?;
        let (store, clock) = open_store(&database, server).await?;
        let queue = embedded::Options {
            delivery_limit: u32::MAX,
            keep_acked,
            ..embedded::Options::default()
        };
        let broker = Embedded::new(database.clone(), Topology::default(), queue);
        let gate = with_gate.map(|rng| {
            Arc::new(ForgetfulGate {
                known: Mutex::default(),
                rng: Mutex::new(rng),
            })
        });
        let parts = Parts {
            store: &store,
            gate: gate.as_ref(),
            tap,
        };
        let pay_timeout = PAY_WITHIN;
        Ok(Self {
            order: parts.processor(OrderRole::new(pay_timeout)),
            payment: parts.processor(PaymentRole::new(pay_timeout)),
            inventory: parts.processor(InventoryRole),
            account: parts.processor(AccountRole {
                points: PointsRule {
                    kind: AccountKind::literal("POINTS"),
                    per_major_unit: 1,
                },
            }),
            broker: Arc::new(broker),
            tap: tap.clone(),
            database,
            store,
            clock,
        })
    }

    /// The time, as the queue and the store tell it.
    pub(super) fn now(&self) -> Timestamp {
        self.database.now()
    }

    /// Lets time pass.
    pub(super) fn advance(&self, by: Duration) {
        self.database.advance(by);
        (self.clock)(by);
    }

    /// A worker of a built-in role.
    pub(super) async fn worker(
        &self,
        role: &RoleName,
        batch_max: usize,
    ) -> broker::Result<Box<dyn AnyWorker>> {
        let consumer = Box::new(TappedConsumer {
            inner: self.broker.consumer(role, 64).await?,
            tap: self.tap.clone(),
        });
        Ok(if *role == RoleName::ORDER {
            Box::new(Worker::new(self.order.clone(), consumer, batch_max))
        } else if *role == RoleName::PAYMENT {
            Box::new(Worker::new(self.payment.clone(), consumer, batch_max))
        } else if *role == RoleName::INVENTORY {
            Box::new(Worker::new(self.inventory.clone(), consumer, batch_max))
        } else {
            Box::new(Worker::new(self.account.clone(), consumer, batch_max))
        })
    }

    pub(super) async fn relay(&self, holder: String, window: usize) -> broker::Result<Relay> {
        let publisher = Box::new(TappedPublisher {
            inner: self.broker.publisher().await?,
            tap: self.tap.clone(),
        });
        let settings = relay::Settings {
            window,
            ..relay::Settings::default()
        };
        let store = Arc::clone(&self.store);
        Ok(Relay::new(store, publisher, holder, settings).with_points(self.tap.points()))
    }

    pub(super) fn janitor(&self) -> Janitor {
        Janitor::new(
            self.store.clone(),
            self.broker.clone(),
            self.order.clone(),
            RoleName::BUILT_IN.to_vec(),
            1_000,
        )
    }
}

/// What all processors have in common.
struct Parts<'a> {
    store: &'a Arc<dyn Store>,
    gate: Option<&'a Arc<ForgetfulGate>>,
    tap: &'a Tap,
}

impl Parts<'_> {
    fn processor<R: Role>(&self, role: R) -> Arc<Processor<R>> {
        let store = Arc::clone(self.store);
        let settings = Settings {
            parking_deadline: PARK_FOR,
            ..Settings::default()
        };
        let gate = self.gate.map(|gate| Arc::clone(gate) as Arc<dyn Gate>);
        let processor = Processor::new(role, store, settings)
            .with_gates(gate.into_iter().collect())
            .with_points(self.tap.points());
        Arc::new(processor)
    }
}

/// Lets time pass for a store that has a clock of its own.
type Clock = Box<dyn Fn(Duration) + Send + Sync>;

/// The store in the queue's file, or on a server.
async fn open_store(
    file: &Database,
    server: Option<&str>,
) -> crate::store::Result<(Arc<dyn Store>, Clock)> {
    Ok(match server {
        None => (Arc::new(SqliteStore::new(file.clone())), Box::new(|_| {})),
        Some(url) if url.starts_with("postgres") => {
            let database = postgres::Database::open(&postgres_options(url)).await?;
            let clock = database.clone();
            (
                Arc::new(PostgresStore::new(database)),
                Box::new(move |by| clock.advance(by)),
            )
        }
        Some(url) => {
            let database = mysql::Database::open(&mysql_options(url)).await?;
            let clock = database.clone();
            (
                Arc::new(MySqlStore::new(database)),
                Box::new(move |by| clock.advance(by)),
            )
        }
    })
}

/// Makes the tables of a store on a server.
pub(super) async fn migrate(url: &str) -> crate::store::Result<()> {
    if url.starts_with("postgres") {
        let (database, _) = postgres::Database::migrate(&postgres_options(url)).await?;
        database.close().await;
    } else {
        let (database, _) = mysql::Database::migrate(&mysql_options(url)).await?;
        database.close().await;
    }
    Ok(())
}

fn postgres_options(url: &str) -> postgres::Options {
    postgres::Options {
        url: url.to_owned(),
        lock_timeout: PATIENCE,
        statement_timeout: PATIENCE,
        connections: CONNECTIONS,
    }
}

fn mysql_options(url: &str) -> mysql::Options {
    mysql::Options {
        url: url.to_owned(),
        lock_timeout: PATIENCE,
        statement_timeout: PATIENCE,
        connections: CONNECTIONS,
    }
}

/// The longest that a store waits for a lock.
const PATIENCE: Duration = Duration::from_secs(30);

/// Connections to a server: one process needs no more.
const CONNECTIONS: u32 = 4;

/// How a file is opened: nobody else opens it, and one reader is enough.
pub(super) fn options(path: &Path) -> Options {
    Options {
        path: path.to_owned(),
        busy_timeout: PATIENCE,
        readers: 1,
    }
}
