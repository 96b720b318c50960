//! Plays one schedule: what happens in which order, and what must follow from each step.

use super::system::{AnyWorker, Fault, Offer, PARK_FOR, PAY_WITHIN, System, Tap};
use super::tables::{DeadLetter, OutboxRow, Tables};
use super::{Problem, Summary};
use crate::broker::{Broker, Delivery, Publication, Publisher};
use crate::domain::{Outcome, RoleName};
use crate::message::{Meta, Outgoing, encode};
use crate::ops::reconcile::{self, reconcile};
use crate::testkit::model::{Emitted, Model, Prediction, ScopedKey};
use crate::testkit::stories::{self, Size, StoryMessage};
use crate::worker::relay::{Relay, Relayed};
use crate::worker::{self, Error, Point, Settled};
use fastrand::Rng;
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

type Result<T> = std::result::Result<T, Problem>;

/// Times that may pass at once, with how often: a lease of the relay, one of a delivery, nearly the
/// time to pay, more than that, the deadline of what is parked. No sum of them comes within a second
/// before a deadline, so that it matters nothing how fast a schedule runs.
const PASSING: [(u8, Duration); 5] = [
    (20, Duration::from_secs(11)),
    (62, Duration::from_secs(37)),
    (6, Duration::from_secs(1_742)),
    (9, Duration::from_secs(2_003)),
    (3, Duration::from_secs(90_007)),
];

pub(super) struct Player<'s> {
    rng: Rng,
    path: PathBuf,
    server: Option<String>,
    thorough: bool,
    steps: &'s mut Vec<String>,
    summary: Summary,

    model: Model,
    story: VecDeque<StoryMessage>,
    tables: Tables,
    tap: Tap,
    system: System,
    keep_acked: bool,
    /// How far the clock was moved; a database that is opened again starts at the host's.
    passed: Duration,
    publisher: Box<dyn Publisher>,
    workers: BTreeMap<RoleName, Box<dyn AnyWorker>>,
    /// Workers that have received and not yet handled.
    slow: Vec<Slow>,
    relays: [Option<Relay>; 2],
    names: u32,
    book: Book,
}

struct Slow {
    role: RoleName,
    worker: Box<dyn AnyWorker>,
    deliveries: Vec<Delivery>,
}

/// What must have come to its end when nothing moves any more.
#[derive(Default)]
struct Book {
    /// All that was published, to be published again.
    published: Vec<Publication>,
    /// Ids of queued messages that were in a run that committed.
    decided: BTreeSet<i64>,
    /// Types and contents of events that the system has emitted for its own roles, and of all that
    /// it has handled.
    emitted: BTreeSet<(String, String)>,
    handled: BTreeSet<(String, String)>,
    /// The messages of parked events.
    parked: BTreeMap<ScopedKey, Vec<u8>>,
    dead: BTreeSet<DeadLetter>,
    /// The youngest row of the outbox that has been seen.
    outbox: i64,
}

/// A message as it was received; nothing if it cannot be read.
struct Read {
    event_type: String,
    items: Vec<Value>,
}

impl<'s> Player<'s> {
    pub(super) async fn open(
        path: &Path,
        server: Option<&str>,
        seed: u64,
        thorough: bool,
        steps: &'s mut Vec<String>,
    ) -> Result<Self> {
        let mut rng = Rng::with_seed(seed);
        // The seventh order and the third user of a story have ids that need escapes.
        let large = rng.u8(0..10) == 0;
        let size = Size {
            orders: if large { 7 } else { rng.usize(2..4) },
            skus: rng.usize(1..4),
            users: if large { 3 } else { rng.usize(1..3) },
        };
        let story = stories::generate(&mut rng, size).into();
        let file = format!("sqlite://{}", path.display());
        let tap = Tap::default();
        let keep_acked = rng.bool();
        let system = System::open(path, server, &tap, gate(&mut rng), keep_acked).await?;
        let seconds = |duration: Duration| u32::try_from(duration.as_secs()).unwrap_or(u32::MAX);
        Ok(Self {
            rng,
            path: path.to_owned(),
            server: server.map(str::to_owned),
            thorough,
            steps,
            summary: Summary::default(),
            model: Model::new(seconds(PAY_WITHIN)).parking_for(seconds(PARK_FOR)),
            story,
            tables: Tables::open(&file, server.unwrap_or(&file)).await?,
            tap,
            publisher: system.broker.publisher().await?,
            system,
            keep_acked,
            passed: Duration::ZERO,
            workers: BTreeMap::new(),
            slow: Vec::new(),
            relays: [None, None],
            names: 0,
            book: Book::default(),
        })
    }

    pub(super) async fn play(&mut self) -> Result<()> {
        let mut more = self.rng.usize(0..20);
        while !self.story.is_empty() || more > 0 {
            if self.story.is_empty() {
                more -= 1;
            }
            self.step().await?;
            if self.thorough {
                self.compare_tables().await?;
            }
        }
        self.come_to_rest().await?;
        self.compare_all().await
    }

    pub(super) async fn close(self) -> Result<Summary> {
        let Self {
            mut summary,
            system,
            tables,
            workers,
            ..
        } = self;
        for worker in workers.into_values() {
            worker.close().await?;
        }
        tables.close().await?;
        system.store.close().await;
        summary.schedules = 1;
        Ok(summary)
    }

    async fn step(&mut self) -> Result<()> {
        match self.rng.u8(0..100) {
            0..22 => self.publish_next().await,
            22..27 => self.publish_copy().await,
            27..29 => self.publish_rubbish().await,
            29..67 => self.run_any_role(true).await,
            67..80 => self.run_relay(true).await.map(drop),
            80..84 => self.run_janitor(true).await.map(drop),
            84..90 => self.let_time_pass(),
            90..94 => self.receive_slowly().await,
            94..98 => self.handle_late().await,
            98..99 => self.start_again().await,
            _ => self.replace_worker().await,
        }
    }

    fn note(&mut self, step: impl Into<String>) {
        self.steps.push(step.into());
    }

    fn now(&self) -> i64 {
        self.system.now().0
    }

    fn chance(&mut self, percent: u8) -> bool {
        self.rng.u8(0..100) < percent
    }

    fn any_role(&mut self) -> RoleName {
        RoleName::BUILT_IN[self.rng.usize(0..4)].clone()
    }

    // What comes from outside.

    /// The next messages of the story; sometimes two of a type as one message, or one twice.
    async fn publish_next(&mut self) -> Result<()> {
        let mut publications = Vec::new();
        for _ in 0..self.rng.usize(1..7) {
            let Some(StoryMessage { event_type, data }) = self.story.pop_front() else {
                break;
            };
            let twin = self.story.iter().position(|it| it.event_type == event_type);
            let data = match twin {
                Some(at) if self.chance(10) => {
                    let other = self.story.remove(at).map(|it| it.data);
                    json!({ "items": [data, other] })
                }
                Some(_) | None => data,
            };
            self.names += 1;
            let message_id = format!("m{}", self.names);
            let publication = self.publication(&message_id, &event_type, &data);
            if self.chance(8) {
                publications.push(publication.clone());
            }
            publications.push(publication);
        }
        self.publish("publish", publications).await
    }

    /// A message of the story or of the system, as it was or under another id.
    async fn publish_copy(&mut self) -> Result<()> {
        let Some(mut copy) = self.rng.choice(&self.book.published).cloned() else {
            return Ok(());
        };
        if self.chance(50)
            && let Some(Read { event_type, items }) = read(&copy.message)
        {
            self.names += 1;
            let message_id = format!("again{}", self.names);
            let data = match <[Value; 1]>::try_from(items) {
                Ok([data]) => data,
                Err(items) => json!({ "items": items }),
            };
            let addressee = copy.addressee.take();
            copy = self.publication(&message_id, &event_type, &data);
            copy.addressee = addressee;
        }
        self.summary.count("copy published");
        self.publish("publish a copy", vec![copy]).await
    }

    /// What no role can read.
    async fn publish_rubbish(&mut self) -> Result<()> {
        self.names += 1;
        let message_id = format!("rubbish{}", self.names);
        let mut publication = self.publication(&message_id, "order.paid", &json!({}));
        publication.addressee = Some(self.any_role());
        if self.chance(50) {
            publication.message = message_id.into_bytes().into();
        }
        self.publish("publish rubbish", vec![publication]).await
    }

    fn publication(&self, message_id: &str, event_type: &str, data: &Value) -> Publication {
        let meta = Meta {
            id: message_id,
            source: "schedule",
            time: self.system.now(),
            traceparent: None,
        };
        let outgoing = Outgoing {
            event_type: event_type.to_owned().into(),
            subject: "story".to_owned(),
            data: data.to_string(),
        };
        Publication {
            message_id: message_id.to_owned(),
            event_type: event_type.to_owned(),
            addressee: None,
            message: encode(meta, &outgoing).into(),
            headers: BTreeMap::new(),
        }
    }

    async fn publish(&mut self, step: &str, mut publications: Vec<Publication>) -> Result<()> {
        for publication in &publications {
            let text = String::from_utf8_lossy(&publication.message).into_owned();
            self.note(format!("{step}: {text}"));
        }
        self.publisher.publish(&publications).await?;
        self.book.published.append(&mut publications);
        Ok(())
    }

    fn let_time_pass(&mut self) -> Result<()> {
        let mut at = self.rng.u8(0..100);
        let mut time = PASSING[0].1;
        for (percent, passing) in PASSING {
            time = passing;
            if at < percent {
                break;
            }
            at -= percent;
        }
        self.pass(time);
        Ok(())
    }

    fn pass(&mut self, time: Duration) {
        self.note(format!("{} s pass", time.as_secs()));
        self.system.advance(time);
        self.passed += time;
    }

    // Workers.

    async fn run_any_role(&mut self, may_fail: bool) -> Result<()> {
        let role = self.any_role();
        self.run_role(&role, may_fail).await.map(drop)
    }

    /// Runs a worker of a role once. Returns whether anything had arrived.
    async fn run_role(&mut self, role: &RoleName, may_fail: bool) -> Result<bool> {
        let mut worker = self.take_worker(role).await?;
        let trouble = self.make_trouble(may_fail, &BATCH_POINTS);
        let now = self.now();
        let result = worker.run_available().await;
        self.tap.calm();
        let deliveries = self.tap.received();
        if deliveries.is_empty() {
            self.workers.insert(role.clone(), worker);
            return result.map(|_| false).map_err(Problem::from);
        }
        self.note(format!("{role} handles{trouble} {}", list(&deliveries)));
        self.check_run(role, &deliveries, &result, now).await?;
        self.after_run(role, worker, &deliveries, &result).await?;
        Ok(true)
    }

    /// A worker receives, and takes its time.
    async fn receive_slowly(&mut self) -> Result<()> {
        let role = self.any_role();
        if self.slow.len() >= 3 || self.system.broker.depth(&role).await?.ready == 0 {
            return Ok(());
        }
        let mut worker = self.take_worker(&role).await?;
        let deliveries = worker.receive().await?;
        self.tap.received();
        self.note(format!("{role} receives {}", list(&deliveries)));
        self.slow.push(Slow {
            role,
            worker,
            deliveries,
        });
        Ok(())
    }

    /// A slow worker handles what it has, which may be somebody else's by now.
    async fn handle_late(&mut self) -> Result<()> {
        if self.slow.is_empty() {
            return Ok(());
        }
        let at = self.rng.usize(0..self.slow.len());
        let slow = self.slow.swap_remove(at);
        let Slow {
            role,
            mut worker,
            deliveries,
        } = slow;
        let trouble = self.make_trouble(true, &BATCH_POINTS);
        let now = self.now();
        let result = worker.handle(&deliveries).await;
        self.tap.calm();
        self.summary.count("handled late");
        self.note(format!(
            "{role} handles late{trouble} {}",
            list(&deliveries)
        ));
        self.check_run(&role, &deliveries, &result, now).await?;
        self.after_run(&role, worker, &deliveries, &result).await
    }

    async fn take_worker(&mut self, role: &RoleName) -> Result<Box<dyn AnyWorker>> {
        match self.workers.remove(role) {
            Some(worker) => Ok(worker),
            None => {
                let batch_max = match self.rng.u8(0..10) {
                    0..2 => 1,
                    2..5 => self.rng.usize(2..5),
                    _ => self.rng.usize(5..17),
                };
                Ok(self.system.worker(role, batch_max).await?)
            }
        }
    }

    /// A worker leaves in good order; the next has another size of batch.
    async fn replace_worker(&mut self) -> Result<()> {
        let role = self.any_role();
        if let Some(worker) = self.workers.remove(&role) {
            worker.close().await?;
        }
        Ok(())
    }

    /// Sometimes the next run crashes at a point, or the broker fails.
    fn make_trouble(&mut self, may_fail: bool, points: &[Point]) -> String {
        if !may_fail {
            return String::new();
        }
        match self.rng.u8(0..100) {
            0..14 => {
                let point = points[self.rng.usize(0..points.len())];
                self.tap.stop_at(point);
                format!(" (stop at {point})")
            }
            14..19 => {
                let fault = match self.rng.u8(0..3) {
                    0 => Fault::Before,
                    1 => Fault::After,
                    _ => Fault::Refusing(self.rng.fork()),
                };
                let text = format!(" (broker fails: {fault:?})");
                self.tap.fail(fault);
                text
            }
            _ => String::new(),
        }
    }

    /// Keeps the worker, or buries it if it crashed.
    async fn after_run(
        &mut self,
        role: &RoleName,
        worker: Box<dyn AnyWorker>,
        deliveries: &[Delivery],
        result: &worker::Result<Vec<Settled>>,
    ) -> Result<()> {
        let keep = match result {
            Ok(_) => self.chance(80),
            Err(Error::Broker(_)) => self.chance(50),
            Err(Error::Stopped(point)) => {
                self.summary.count(format!("crash at {point}"));
                false
            }
            Err(Error::Store(_)) => false,
        };
        if keep {
            if let Some(other) = self.workers.insert(role.clone(), worker) {
                other.close().await?;
            }
        } else if self.chance(60) {
            bury(worker)?;
        } else {
            drop(worker);
            self.wait_until_given_up(deliveries).await?;
        }
        Ok(())
    }

    /// Waits until a dropped consumer's deliveries have been handed back, which it does in the
    /// background.
    async fn wait_until_given_up(&mut self, deliveries: &[Delivery]) -> Result<()> {
        let tags: Vec<_> = deliveries
            .iter()
            .map(|it| (it.tag.id, it.tag.fence))
            .collect();
        let started = Instant::now();
        while self.tables.leased(&tags).await? {
            if started.elapsed() > Duration::from_secs(20) {
                return problem("a dropped consumer keeps its deliveries");
            }
            tokio::task::yield_now().await;
        }
        Ok(())
    }

    /// Compares a run of a worker with what the model says of it.
    async fn check_run(
        &mut self,
        role: &RoleName,
        deliveries: &[Delivery],
        result: &worker::Result<Vec<Settled>>,
        now: i64,
    ) -> Result<()> {
        let rows = self.new_rows().await?;
        let settled = match result {
            Ok(settled) => Some(settled),
            Err(Error::Stopped(Point::Committed | Point::Settled) | Error::Broker(_)) => None,
            Err(Error::Stopped(_)) if rows.is_empty() => return Ok(()),
            Err(Error::Stopped(point)) => {
                return problem(format!("stopped at {point}, but the outbox has {rows:?}"));
            }
            Err(Error::Store(error)) => return problem(format!("the store failed: {error}")),
        };
        let messages: Vec<_> = deliveries.iter().map(|it| read(&it.message)).collect();
        let events: Vec<_> = messages
            .iter()
            .flatten()
            .flat_map(|it| it.items.iter().map(|item| (it.event_type.as_str(), item)))
            .collect();
        let said = self.model.deliver_batch(role.as_str(), &events, now);
        let mut predictions = said.predictions.iter();
        let mut emits = Vec::new();
        for (at, (delivery, message)) in deliveries.iter().zip(&messages).enumerate() {
            let items = message.as_ref().map_or(0, |it| it.items.len());
            let of_delivery: Vec<_> = predictions.by_ref().take(items).collect();
            if let Some(settled) = settled {
                compare_outcomes(delivery, settled.get(at), &of_delivery)?;
            }
            emits.extend(of_delivery.iter().flat_map(|it| &it.emits));
            self.record(role, delivery, message.as_ref(), &of_delivery);
        }
        self.compare_rows(&rows, &emits, &said.wakes)?;
        let parked = &mut self.book.parked;
        parked.retain(|id, _| self.model.awaits(id).is_some());
        Ok(())
    }

    /// Keeps what has to be true at the end.
    fn record(
        &mut self,
        role: &RoleName,
        delivery: &Delivery,
        message: Option<&Read>,
        said: &[&Prediction],
    ) {
        let role = role.to_string();
        let Self { book, summary, .. } = self;
        book.decided.insert(delivery.tag.id);
        let bytes = || delivery.message.to_vec();
        let Some(message) = message else {
            summary.count("dead");
            book.dead.insert((role, "malformed".to_owned(), bytes()));
            return;
        };
        for (item, said) in message.items.iter().zip(said) {
            summary.count(said.outcome);
            let event = (message.event_type.clone(), item.to_string());
            book.handled.insert(event);
            let reason = match said.outcome {
                "dead" => "unknown_type",
                "conflict" => "conflict",
                "parked" => {
                    let (role, key) = (role.clone(), said.key.clone());
                    let parked = book.parked.entry(ScopedKey { role, key });
                    parked.or_insert_with(bytes);
                    continue;
                }
                _ => continue,
            };
            let letter = (role.clone(), reason.to_owned(), bytes());
            book.dead.insert(letter);
        }
    }

    /// Compares new rows of the outbox with what is to be published, in order, and with what is to
    /// be woken, in any.
    fn compare_rows(
        &mut self,
        rows: &[OutboxRow],
        emits: &[&Emitted],
        wakes: &[ScopedKey],
    ) -> Result<()> {
        let expected: Vec<_> = emits.iter().map(|it| emitted(it)).collect();
        let (found, woken) = rows.split_at(rows.len().min(emits.len()));
        let found: Vec<_> = found.iter().map(row_event).collect();
        if found != expected {
            return problem(format!(
                "the outbox got other events\n  expected {expected:?}\n  found    {found:?}"
            ));
        }
        let mut expected: Vec<_> = wakes
            .iter()
            .map(|id| (Some(id.role.clone()), self.book.parked.get(id).cloned()))
            .collect();
        let mut found: Vec<_> = woken
            .iter()
            .map(|row| (row.addressee.clone(), Some(row.message.clone())))
            .collect();
        expected.sort();
        found.sort();
        if found != expected {
            return problem(format!(
                "other parked events were woken\n  expected {wakes:?}\n  found    {woken:?}"
            ));
        }
        self.expect_handling(emits);
        Ok(())
    }

    /// What is emitted for a role must come to it.
    fn expect_handling(&mut self, emits: &[&Emitted]) {
        for emit in emits {
            if crate::testkit::model::consumer(emit.event_type).is_some() {
                self.book.emitted.insert(emitted(emit));
            }
        }
    }

    async fn new_rows(&mut self) -> Result<Vec<OutboxRow>> {
        let rows = self.tables.outbox_after(self.book.outbox).await?;
        if let Some(last) = rows.last() {
            self.book.outbox = last.id;
        }
        Ok(rows)
    }

    // Relay and janitor.

    /// Runs one of two relays once. Returns whether it may have more to do.
    async fn run_relay(&mut self, may_fail: bool) -> Result<bool> {
        let at = usize::from(self.chance(20));
        let mut relay = match self.relays[at].take() {
            Some(relay) => relay,
            None => {
                self.names += 1;
                let window = self.rng.usize(1..30);
                let holder = format!("relay{}", self.names);
                self.system.relay(holder, window).await?
            }
        };
        let before = self.tables.outbox_after(0).await?;
        let trouble = self.make_trouble(may_fail, &RELAY_POINTS);
        let result = relay.run_once().await;
        self.tap.calm();
        let offers = self.tap.offered();
        let after = self.tables.outbox_after(0).await?;
        self.note(format!(
            "relay {at} offers{trouble} {} of {}, {} stay: {result:?}",
            offers.len(),
            before.len(),
            after.len()
        ));
        compare_relayed(&before, &after, &offers, self.now())?;
        let confirmed = offers.into_iter().filter(|offer| offer.confirmed);
        self.book
            .published
            .extend(confirmed.map(|offer| offer.publication));
        match result {
            Ok(Relayed::NotOurs) => {
                self.summary.count("relay without the lease");
                self.relays[at] = Some(relay);
                Ok(false)
            }
            Ok(relayed @ Relayed::Rows { published, .. }) => {
                if published != before.len() - after.len() {
                    return problem("the relay miscounts");
                }
                if self.chance(10) {
                    relay.close().await?;
                } else {
                    self.relays[at] = Some(relay);
                }
                Ok(relayed.is_busy())
            }
            Err(Error::Stopped(point)) => {
                self.summary.count(format!("crash at {point}"));
                Ok(true)
            }
            Err(Error::Broker(_)) => {
                self.relays[at] = Some(relay);
                Ok(true)
            }
            Err(Error::Store(error)) => problem(format!("the store failed: {error}")),
        }
    }

    async fn run_janitor(&mut self, may_fail: bool) -> Result<bool> {
        let mut janitor = self.system.janitor();
        let trouble = self.make_trouble(may_fail, &JANITOR_POINTS);
        let now = self.now();
        let due = self.model.due_orders(now);
        let result = janitor.run_once().await;
        self.tap.calm();
        self.note(format!("the janitor runs{trouble}: {result:?}"));
        let rows = self.new_rows().await?;
        let committed = match &result {
            Ok(_) | Err(Error::Stopped(Point::Committed)) => true,
            Err(Error::Stopped(point)) => {
                self.summary
                    .count(format!("the janitor crashed at {point}"));
                false
            }
            Err(error) => return problem(format!("the janitor failed: {error}")),
        };
        let (mut said, mut wakes) = (Vec::new(), Vec::new());
        if committed {
            for order_id in &due {
                let mut of_order = self.model.deliver_clock_expire(order_id, now);
                wakes.append(&mut of_order.wakes);
                said.push(of_order);
            }
        }
        // Which of the due orders came first is not the model's business.
        let by_event = |row: &OutboxRow| (row.addressee.is_some(), row_event(row));
        let mut rows = rows;
        rows.sort_by_cached_key(by_event);
        let mut emits: Vec<_> = said.iter().flat_map(|it| &it.emits).collect();
        emits.sort_by_cached_key(|it| emitted(it));
        self.compare_rows(&rows, &emits, &wakes)?;
        let Ok(cleaned) = result else {
            return Ok(true);
        };
        let overdue = self.model.give_up_overdue(now);
        let counts = (cleaned.expired, cleaned.overdue, cleaned.crashed);
        if counts != (due.len(), overdue.len(), 0) {
            return problem(format!("expected due {due:?}, overdue {overdue:?}"));
        }
        for id in overdue {
            self.summary.count("given up");
            let message = self.book.parked.remove(&id).unwrap_or_default();
            let letter = (id.role, "parked_too_long".to_owned(), message);
            self.book.dead.insert(letter);
        }
        for _ in due {
            self.summary.count("expired by the clock");
        }
        Ok(cleaned.is_busy())
    }

    /// The process is killed, or ends, and another one starts.
    async fn start_again(&mut self) -> Result<()> {
        self.note("the process starts again");
        self.summary.count("start of a process");
        let slow = std::mem::take(&mut self.slow).into_iter();
        for worker in slow.map(|slow| slow.worker) {
            bury(worker)?;
        }
        for worker in std::mem::take(&mut self.workers).into_values() {
            bury(worker)?;
        }
        self.relays = [None, None];
        self.system.store.close().await;
        let gate = gate(&mut self.rng);
        let server = self.server.as_deref();
        self.system = System::open(&self.path, server, &self.tap, gate, self.keep_acked).await?;
        self.system.advance(self.passed);
        self.publisher = self.system.broker.publisher().await?;
        Ok(())
    }

    // The end.

    /// Nothing fails any more, and time passes, until nothing moves.
    async fn come_to_rest(&mut self) -> Result<()> {
        self.note("nothing fails any more");
        while !self.slow.is_empty() {
            self.handle_late().await?;
        }
        for worker in std::mem::take(&mut self.workers).into_values() {
            worker.close().await?;
        }
        for _ in 0..200 {
            while self.run_relay(false).await? {}
            while self.run_janitor(false).await? {}
            for role in RoleName::BUILT_IN {
                while self.run_role(&role, false).await? {}
            }
            if self.is_at_rest().await? {
                return Ok(());
            }
            self.pass(PASSING[1].1);
        }
        problem("it does not come to rest")
    }

    async fn is_at_rest(&mut self) -> Result<bool> {
        for role in RoleName::BUILT_IN {
            if self.system.broker.depth(&role).await?.total() > 0 {
                return Ok(false);
            }
        }
        let outbox = self.tables.outbox_after(0).await?;
        Ok(outbox.is_empty() && self.model.due_orders(self.now()).is_empty())
    }

    async fn compare_all(&mut self) -> Result<()> {
        self.compare_tables().await?;
        let last = self.tables.published().await?;
        let undecided = (1..=last).filter(|id| !self.book.decided.contains(id));
        let undecided: Vec<_> = undecided.collect();
        if !undecided.is_empty() {
            return problem(format!("queued messages got lost: {undecided:?}"));
        }
        let unhandled = self.book.emitted.difference(&self.book.handled);
        let unhandled: Vec<_> = unhandled.collect();
        if !unhandled.is_empty() {
            return problem(format!("emitted events got lost: {unhandled:?}"));
        }
        let woken = self.tables.woken().await?;
        if !woken.is_empty() {
            return problem(format!("woken events never arrived: {woken:?}"));
        }
        self.reconcile().await
    }

    async fn compare_tables(&mut self) -> Result<()> {
        let expected = self.model.snapshot();
        let found = self.tables.snapshot().await?;
        if found != expected {
            let (expected, found) = (
                serde_json::to_string_pretty(&expected)?,
                serde_json::to_string_pretty(&found)?,
            );
            let differing = difference(&expected, &found);
            return problem(format!("the tables differ from the model\n{differing}"));
        }
        let found = self.tables.dead_letters().await?;
        let differing: Vec<_> = found.symmetric_difference(&self.book.dead).collect();
        if !differing.is_empty() {
            return problem(format!("other dead letters than expected: {differing:?}"));
        }
        Ok(())
    }

    async fn reconcile(&mut self) -> Result<()> {
        // Whatever is still on its way now is stuck.
        let options = reconcile::Options {
            stuck_after: Duration::from_secs(60),
            ..reconcile::Options::default()
        };
        self.pass(Duration::from_secs(61));
        let report = reconcile(&*self.system.store, &options, |_| {}).await?;
        if !report.is_clean() {
            return problem(report.to_string());
        }
        Ok(())
    }
}

const BATCH_POINTS: [Point; 11] = [
    Point::Received,
    Point::Decoded,
    Point::Keyed,
    Point::Asked,
    Point::Begun,
    Point::Claimed,
    Point::Loaded,
    Point::Decided,
    Point::Written,
    Point::Committed,
    Point::Settled,
];

/// The janitor's orders do not come from a consumer.
const JANITOR_POINTS: [Point; 7] = [
    Point::Asked,
    Point::Begun,
    Point::Claimed,
    Point::Loaded,
    Point::Decided,
    Point::Written,
    Point::Committed,
];

const RELAY_POINTS: [Point; 3] = [Point::RelayRead, Point::RelayPublished, Point::RelayRemoved];

fn problem<T>(text: impl Into<String>) -> Result<T> {
    Err(Problem(text.into()))
}

fn gate(rng: &mut Rng) -> Option<Rng> {
    rng.bool().then(|| rng.fork())
}

/// Ends a worker as the end of its process would: nobody gives its leases back. Outside of the
/// runtime its consumer cannot.
fn bury(worker: Box<dyn AnyWorker>) -> Result<()> {
    match std::thread::spawn(move || drop(worker)).join() {
        Ok(()) => Ok(()),
        Err(_) => problem("a worker panicked when it was dropped"),
    }
}

fn list(deliveries: &[Delivery]) -> String {
    let ids = deliveries.iter().map(|delivery| {
        // Whoever wrote it, the id comes before the data.
        let text = String::from_utf8_lossy(&delivery.message);
        let id = text
            .split_once("\"id\":\"")
            .and_then(|(_, id)| id.split_once('"'));
        format!(
            "#{} {}",
            delivery.tag.id,
            id.map_or("rubbish", |(id, _)| id)
        )
    });
    ids.collect::<Vec<_>>().join(", ")
}

fn read(message: &[u8]) -> Option<Read> {
    let mut message: Value = serde_json::from_slice(message).ok()?;
    let event_type = message.get("type")?.as_str()?.to_owned();
    let data = message.get_mut("data")?.take();
    let items = match data.get("items").and_then(Value::as_array) {
        Some(items) => items.clone(),
        None => vec![data],
    };
    Some(Read { event_type, items })
}

fn emitted(emitted: &Emitted) -> (String, String) {
    (emitted.event_type.to_owned(), emitted.data.to_string())
}

fn row_event(row: &OutboxRow) -> (String, String) {
    let data = read(&row.message).and_then(|read| read.items.into_iter().next());
    (row.event_type.clone(), data.unwrap_or_default().to_string())
}

/// Outcome, and its detail if the model knows of one.
fn outcome(outcome: &Outcome) -> (&'static str, Option<String>) {
    let detail = match outcome {
        Outcome::Rejected(rejection) => Some(rejection.to_string()),
        Outcome::Parked(token) => Some(token.as_str().to_owned()),
        Outcome::Applied
        | Outcome::Duplicate(_)
        | Outcome::Conflict
        | Outcome::Stale
        | Outcome::Retried { .. }
        | Outcome::Dead(_) => None,
    };
    (outcome.name(), detail)
}

fn compare_outcomes(
    delivery: &Delivery,
    settled: Option<&Settled>,
    said: &[&Prediction],
) -> Result<()> {
    let Some(settled) = settled.filter(|settled| settled.tag == delivery.tag) else {
        return problem(format!("#{} was not settled in its turn", delivery.tag.id));
    };
    let found: Vec<_> = settled
        .items
        .iter()
        .map(|it| outcome(&it.outcome))
        .collect();
    let mut expected: Vec<_> = said
        .iter()
        .map(|it| {
            let rejection = it.rejection.map(str::to_owned);
            (it.outcome, rejection.or_else(|| it.token.clone()))
        })
        .collect();
    if expected.is_empty() {
        expected.push(("dead", None));
    }
    if found == expected {
        return Ok(());
    }
    problem(format!(
        "#{} ended otherwise\n  expected {expected:?}\n  found    {found:?}\n  of {}",
        delivery.tag.id,
        String::from_utf8_lossy(&delivery.message)
    ))
}

/// The relay offers rows of one aggregate in order, removes only what the broker has, and nothing
/// before what is older of its aggregate.
fn compare_relayed(
    before: &[OutboxRow],
    after: &[OutboxRow],
    offers: &[Offer],
    now: i64,
) -> Result<()> {
    let stays = |row: &OutboxRow| after.iter().any(|other| other.id == row.id);
    let mut confirmed = BTreeMap::<i64, bool>::new();
    for Offer {
        publication,
        confirmed: is_confirmed,
    } in offers
    {
        let addressee = publication.addressee.as_ref().map(RoleName::as_str);
        // A message that holds several events may be woken for each of them, so that its rows differ
        // only by what they are about.
        let mut rows = before.iter().filter(|row| {
            let same =
                *row.message == *publication.message && row.addressee.as_deref() == addressee;
            let mut older = before.iter().take_while(|other| other.id < row.id);
            same && row.retry_at <= now
                && !confirmed.contains_key(&row.id)
                && older.all(|it| it.aggregate != row.aggregate || confirmed.contains_key(&it.id))
        });
        let first = rows.next();
        let row = first
            .filter(|row| !stays(row))
            .or_else(|| rows.find(|row| !stays(row)));
        let Some(row) = row.or(first) else {
            return problem(format!("published out of its turn: {publication:?}"));
        };
        confirmed.insert(row.id, *is_confirmed);
    }
    for row in before.iter().filter(|row| !stays(row)) {
        if confirmed.get(&row.id) != Some(&true) {
            return problem(format!("left the outbox unconfirmed: {row:?}"));
        }
        let mut older = after.iter().take_while(|other| other.id < row.id);
        if older.any(|other| other.aggregate == row.aggregate) {
            return problem(format!("overtook one of its order: {row:?}"));
        }
    }
    Ok(())
}

/// The lines of two pretty-printed values that differ, with a little of what is around them.
fn difference(expected: &str, found: &str) -> String {
    let (expected, found): (Vec<_>, Vec<_>) = (expected.lines().collect(), found.lines().collect());
    let same = expected.iter().zip(&found).take_while(|(a, b)| a == b);
    let start = same.count();
    let tail = expected.iter().rev().zip(found.iter().rev());
    let same = tail.take_while(|(a, b)| a == b).count();
    let same = same.min(expected.len().min(found.len()) - start);
    let mut text = String::new();
    for line in &expected[start.saturating_sub(6)..start] {
        text.push_str(&format!("    {line}\n"));
    }
    for line in expected[start..expected.len() - same].iter().take(40) {
        text.push_str(&format!("  - {line}\n"));
    }
    for line in found[start..found.len() - same].iter().take(40) {
        text.push_str(&format!("  + {line}\n"));
    }
    text
}
