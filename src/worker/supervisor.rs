//! Starts roles, relay and janitor, keeps them going while database or broker are away, and stops
//! them so that nothing is left half-done.

use super::account::AccountRole;
use super::batch::Worker;
use super::inventory::InventoryRole;
use super::janitor::Janitor;
use super::order::OrderRole;
use super::order_rows::OrderMachine;
use super::payment::PaymentRole;
use super::relay::Relay;
use super::retention::{self, Retention};
use super::{Error, Points, Processor, Result, Role, Settings, relay};
use crate::broker::Broker;
use crate::domain::RoleName;
use crate::domain::account::PointsRule;
use crate::gate::Gate;
use crate::store::Store;
use crate::telemetry::trace::Traces;
use async_trait::async_trait;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::Notify;
use tokio::task::JoinSet;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;

/// What to run, and how.
#[derive(Clone)]
pub struct Plan {
    /// The roles to run, by name; those that are not built in are ignored.
    pub roles: Vec<RoleName>,
    /// Whether to run the relay.
    pub relay: bool,
    /// Whether to run the janitor.
    pub janitor: bool,
    /// The roles whose queues the janitor looks after.
    pub janitor_roles: Vec<RoleName>,
    /// How deliveries are processed.
    pub settings: Settings,
    /// Deliveries in a batch, at most.
    pub batch_max: usize,
    /// Workers of each role, each with a batch at work.
    pub workers: usize,
    /// Time to pay.
    pub pay_timeout: Duration,
    /// How long before its end somebody is reminded, if anybody is.
    pub remind_before: Option<Duration>,
    /// Points that orders earn.
    pub points_rule: PointsRule,
    /// How the relay works.
    pub relay_settings: relay::Settings,
    /// How long the relay waits for new rows that nobody in this process wrote.
    pub relay_poll: Duration,
    /// How often the janitor looks.
    pub janitor_interval: Duration,
    /// How long a janitor owns what is due without renewing its lease.
    pub janitor_lease: Duration,
    /// Things the janitor takes at a time.
    pub janitor_batch: u32,
    /// How long the janitor keeps claims.
    pub retention: retention::Settings,
    /// How long the relay may go on after a stop, and a broker that takes no messages is waited for.
    pub stop_deadline: Duration,
    /// Layers in front of the database.
    pub gates: Vec<Arc<dyn Gate>>,
    /// Stops at points, for tests.
    pub points: Points,
    /// Spans of what is done.
    pub traces: Traces,
}

impl Plan {
    /// The order or the payment role.
    #[must_use]
    pub fn order_machine<const PAYMENTS: bool>(&self) -> OrderMachine<PAYMENTS> {
        OrderMachine {
            pay_timeout: self.pay_timeout,
            remind_before: self.remind_before,
        }
    }
}

/// Something beside the queues by which work comes in.
#[async_trait]
pub trait Door: Send {
    /// Works until it is told to stop, and then finishes what it has begun.
    ///
    /// # Errors
    /// [`Error`] if it ended by something that time does not heal.
    async fn run(self: Box<Self>, doorway: Doorway) -> Result<()>;
}

/// What a door has to do with the rest.
#[derive(Debug, Clone)]
pub struct Doorway {
    /// Cancelled when nothing more is to come in.
    pub stop: CancellationToken,
    /// Cancelled when the deadline after a stop has passed.
    pub give_up: CancellationToken,
    /// To be told after each commit, so that the relay need not poll.
    pub written: Arc<Notify>,
}

/// Prefetched deliveries, in batches: one at work, one waiting.
const PREFETCH_BATCHES: usize = 2;

const FIRST_WAIT: Duration = Duration::from_millis(50);
const LONGEST_WAIT: Duration = Duration::from_secs(5);

/// Runs the plan until `stop` is cancelled, then finishes the batches in hand, publishes what they
/// left in the outbox as far as the deadline allows, and returns.
///
/// # Errors
/// [`Error`] if a loop ended by something that time does not heal.
pub async fn run(
    plan: Plan,
    store: Arc<dyn Store>,
    broker: Arc<dyn Broker>,
    stop: CancellationToken,
) -> Result<()> {
    run_with(plan, store, broker, Vec::new(), stop).await
}

/// As [`run`], with doors.
///
/// # Errors
/// As [`run`].
pub async fn run_with(
    plan: Plan,
    store: Arc<dyn Store>,
    broker: Arc<dyn Broker>,
    doors: Vec<Box<dyn Door>>,
    stop: CancellationToken,
) -> Result<()> {
    let shared = Shared {
        plan: Arc::new(plan),
        store,
        broker,
        written: Arc::default(),
        give_up: CancellationToken::new(),
        stop,
    };
    let (stop, give_up) = (shared.stop.clone(), shared.give_up.clone());
    let stop_deadline = shared.plan.stop_deadline;
    let _deadline = AbortOnDropHandle::new(tokio::spawn(async move {
        stop.cancelled().await;
        tokio::time::sleep(stop_deadline).await;
        give_up.cancel();
    }));
    let mut roles = JoinSet::new();
    for role in &shared.plan.roles {
        for number in 0..shared.plan.workers.max(1) {
            shared.clone().spawn_role(role, number, &mut roles);
        }
    }
    for door in doors {
        let doorway = Doorway {
            stop: shared.stop.clone(),
            give_up: shared.give_up.clone(),
            written: Arc::clone(&shared.written),
        };
        roles.spawn(async move { door.run(doorway).await });
    }
    if shared.plan.janitor {
        roles.spawn(shared.clone().run_janitor());
        roles.spawn(shared.clone().run_retention());
    }
    // A relay by itself waits for no role, only to be told to stop.
    let roles_done = match roles.is_empty() {
        true => shared.stop.clone(),
        false => CancellationToken::new(),
    };
    let mut relay = JoinSet::new();
    if shared.plan.relay {
        relay.spawn(shared.clone().run_relay(roles_done.clone()));
    }

    let mut ended = Ok(());
    let mut keep = |result: Result<Result<()>, tokio::task::JoinError>| {
        let result = match result {
            Ok(result) => result,
            Err(error) => match error.try_into_panic() {
                Ok(panic) => std::panic::resume_unwind(panic),
                Err(_cancelled) => Ok(()),
            },
        };
        if let (Ok(()), Err(error)) = (&ended, result) {
            ended = Err(error);
        }
        // One loop that ended takes the others along; the process is started again as a whole.
        shared.stop.cancel();
    };
    loop {
        tokio::select! {
            Some(result) = roles.join_next() => keep(result),
            Some(result) = relay.join_next() => keep(result),
            else => break,
        }
        if roles.is_empty() {
            roles_done.cancel();
        }
    }
    ended
}

#[derive(Clone)]
struct Shared {
    plan: Arc<Plan>,
    store: Arc<dyn Store>,
    broker: Arc<dyn Broker>,
    /// Told after each commit, so that the relay need not poll.
    written: Arc<Notify>,
    stop: CancellationToken,
    /// Cancelled when the deadline after a stop has passed.
    give_up: CancellationToken,
}

impl Shared {
    fn spawn_role(self, role: &RoleName, number: usize, tasks: &mut JoinSet<Result<()>>) {
        let name = format!("{role}-{number}");
        let points = self.plan.points_rule.clone();
        if *role == RoleName::ORDER {
            let role = self.plan.order_machine();
            tasks.spawn(self.run_role::<OrderRole>(role, name));
        } else if *role == RoleName::PAYMENT {
            let role = self.plan.order_machine();
            tasks.spawn(self.run_role::<PaymentRole>(role, name));
        } else if *role == RoleName::INVENTORY {
            tasks.spawn(self.run_role(InventoryRole, name));
        } else if *role == RoleName::ACCOUNT {
            tasks.spawn(self.run_role(AccountRole { points }, name));
        }
    }

    /// A processor for the worker of that name.
    fn processor<R: Role>(&self, role: R, worker: &str) -> Arc<Processor<R>> {
        let processor = Processor::new(role, Arc::clone(&self.store), self.plan.settings.clone());
        let of_worker = |gate: &Arc<dyn Gate>| gate.of_worker(worker);
        let gates = self.plan.gates.iter();
        let gates = gates.map(|gate| of_worker(gate).unwrap_or_else(|| Arc::clone(gate)));
        Arc::new(
            processor
                .with_gates(gates.collect())
                .with_points(self.plan.points.clone())
                .with_traces(self.plan.traces.over(self.broker.system())),
        )
    }

    async fn run_role<R: Role>(self, role: R, worker: String) -> Result<()> {
        let name = role.name();
        let processor = self.processor(role, &worker);
        let mut patience = Patience::new(format!("role {name}"));
        while !self.stop.is_cancelled() {
            let prefetch = self.plan.batch_max * PREFETCH_BATCHES;
            let consumer = match self.broker.consumer(&name, prefetch).await {
                Ok(consumer) => consumer,
                Err(error) => {
                    patience.wait(&error.into(), &self.stop).await?;
                    continue;
                }
            };
            let worker = Worker::new(Arc::clone(&processor), consumer, self.plan.batch_max)
                .with_give_up(self.give_up.clone());
            self.work(worker, &mut patience).await?;
        }
        Ok(())
    }

    /// Handles batches until the stop, or until the consumer is of no more use.
    async fn work<R: Role>(&self, mut worker: Worker<R>, patience: &mut Patience) -> Result<()> {
        loop {
            // Only the wait for deliveries may be cancelled; a transaction never is.
            let received = tokio::select! {
                biased;
                () = self.stop.cancelled() => break,
                received = worker.receive() => received,
            };
            let handled = match received {
                Ok(deliveries) => worker.handle(&deliveries).await.map(drop),
                Err(error) => Err(error),
            };
            self.written.notify_one();
            match handled {
                Ok(()) => patience.reset(),
                Err(Error::Broker(error)) => {
                    patience.wait(&error.into(), &self.stop).await?;
                    break;
                }
                Err(error) => {
                    patience.wait(&error, &self.stop).await?;
                    self.await_store(patience).await?;
                }
            }
        }
        match worker.close().await {
            Ok(()) | Err(Error::Broker(_)) => Ok(()),
            Err(error) => Err(error),
        }
    }

    /// Waits until the database answers; meanwhile the deliveries stay with the broker.
    async fn await_store(&self, patience: &mut Patience) -> Result<()> {
        while !self.stop.is_cancelled()
            && let Err(error) = self.store.ping().await
        {
            patience.wait(&error.into(), &self.stop).await?;
        }
        Ok(())
    }

    async fn run_relay(self, roles_done: CancellationToken) -> Result<()> {
        let mut patience = Patience::new("relay".to_owned());
        let holder = holder();
        loop {
            let publisher = match self.broker.publisher().await {
                Ok(publisher) => publisher,
                Err(error) if self.stop.is_cancelled() => {
                    tracing::warn!(%error, "stopped with messages in the outbox, they leave after the next start");
                    return Ok(());
                }
                Err(error) => {
                    patience.wait(&error.into(), &self.stop).await?;
                    continue;
                }
            };
            let mut relay = Relay::new(
                Arc::clone(&self.store),
                publisher,
                holder.clone(),
                self.plan.relay_settings.clone(),
            )
            .with_points(self.plan.points.clone())
            .with_traces(self.plan.traces.over(self.broker.system()));
            let done = self.relay(&mut relay, &roles_done, &mut patience).await?;
            if done {
                return relay.close().await.or_else(|error| {
                    tracing::warn!(%error, "the relay's lease could not be given back, it ends by itself");
                    Ok(())
                });
            }
        }
    }

    /// Publishes until the roles are done and the outbox is empty, or the deadline has passed.
    /// Returns `false` if a new publisher is needed.
    async fn relay(
        &self,
        relay: &mut Relay,
        roles_done: &CancellationToken,
        patience: &mut Patience,
    ) -> Result<bool> {
        loop {
            if self.give_up.is_cancelled() {
                tracing::warn!(
                    "stopped with messages in the outbox, they leave after the next start"
                );
                return Ok(true);
            }
            let finishing = roles_done.is_cancelled();
            match relay.run_once().await {
                Ok(relayed) if relayed.is_busy() => patience.reset(),
                Ok(_) if finishing => return Ok(true),
                Ok(_) => {
                    patience.reset();
                    tokio::select! {
                        () = self.written.notified() => {}
                        () = roles_done.cancelled() => {}
                        () = tokio::time::sleep(self.plan.relay_poll) => {}
                    }
                }
                Err(error @ Error::Stopped(_)) => return Err(error),
                Err(error) if finishing => {
                    tracing::warn!(%error, "stopped with messages in the outbox, they leave after the next start");
                    return Ok(true);
                }
                Err(error) => {
                    patience.wait(&error, &self.stop).await?;
                    if let Error::Broker(_) = error {
                        return Ok(false);
                    }
                }
            }
        }
    }

    async fn run_janitor(self) -> Result<()> {
        let orders: Arc<Processor<OrderRole>> =
            self.processor(self.plan.order_machine(), "janitor");
        let mut janitor = Janitor::new(
            Arc::clone(&self.store),
            Arc::clone(&self.broker),
            orders,
            self.plan.janitor_roles.clone(),
            self.plan.janitor_batch,
        )
        .alone(holder(), self.plan.janitor_lease);
        let mut patience = Patience::new("janitor".to_owned());
        while !self.stop.is_cancelled() {
            match janitor.run_once().await {
                Ok(cleaned) if cleaned.is_busy() => {
                    patience.reset();
                    self.written.notify_one();
                }
                Ok(_) => {
                    patience.reset();
                    tokio::select! {
                        () = self.stop.cancelled() => {}
                        () = tokio::time::sleep(self.plan.janitor_interval) => {}
                    }
                }
                Err(error) => patience.wait(&error, &self.stop).await?,
            }
        }
        janitor.close().await.or_else(|error| {
            tracing::warn!(%error, "the janitor's lease could not be given back, it ends by itself");
            Ok(())
        })
    }

    async fn run_retention(self) -> Result<()> {
        let store = Arc::clone(&self.store);
        let mut retention = Retention::new(store, holder(), self.plan.retention);
        let mut patience = Patience::new("retention".to_owned());
        while !self.stop.is_cancelled() {
            match retention.run_once().await {
                Ok(step) => {
                    patience.reset();
                    tokio::select! {
                        () = self.stop.cancelled() => {}
                        () = tokio::time::sleep(step.pause) => {}
                    }
                }
                Err(error) => patience.wait(&error, &self.stop).await?,
            }
        }
        Ok(())
    }
}

/// A name for this process's part in a lease.
fn holder() -> String {
    format!("{}-{:016x}", std::process::id(), fastrand::u64(..))
}

/// Waits longer and longer while something is away, and says so once, and again when it is away for
/// another reason.
struct Patience {
    who: String,
    wait: Duration,
    since: Option<Instant>,
    reason: String,
}

impl Patience {
    fn new(who: String) -> Self {
        Self {
            who,
            wait: FIRST_WAIT,
            since: None,
            reason: String::new(),
        }
    }

    async fn wait(&mut self, error: &Error, stop: &CancellationToken) -> Result<()> {
        match error {
            Error::Stopped(point) => return Err(Error::Stopped(*point)),
            Error::Store(crate::store::Error::Setup(setup)) => {
                return Err(Error::Store(setup.clone().into()));
            }
            Error::Broker(crate::broker::Error::UnknownQueue(role)) => {
                return Err(crate::broker::Error::UnknownQueue(role.clone()).into());
            }
            Error::Store(_) | Error::Broker(_) => {}
        }
        let reason = error.to_string();
        if self.since.is_none() || self.reason != reason {
            self.since.get_or_insert_with(Instant::now);
            tracing::warn!(
                who = self.who,
                error = reason,
                "waiting for it to come back"
            );
            self.reason = reason;
        }
        tokio::select! {
            () = stop.cancelled() => {}
            () = tokio::time::sleep(self.wait) => {}
        }
        self.wait = (self.wait * 2).min(LONGEST_WAIT);
        Ok(())
    }

    fn reset(&mut self) {
        self.wait = FIRST_WAIT;
        if let Some(since) = self.since.take() {
            let seconds = since.elapsed().as_secs_f64();
            tracing::info!(who = self.who, seconds, "it is back");
        }
    }
}
