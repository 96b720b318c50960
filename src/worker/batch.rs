//! The path of a batch, in nine steps.
//!
//! | step | what happens | where |
//! | --- | --- | --- |
//! | 1 | receive deliveries, decode each into its events | [`Worker::run_once`], `decode` |
//! | 2 | key each event, bring copies together | `key`, `Work::of` |
//! | 3 | ask the gates | `ask` |
//! | 4 | begin, claim all keys | `claim` |
//! | 5 | load the rows that the events touch | [`Role::load`] |
//! | 6 | decide, event by event, in order of arrival | `decide` |
//! | 7 | write, one statement per table | `write` |
//! | 8 | commit | `attempt` |
//! | 9 | settle with the broker, tell the gates | [`Worker::handle`] |
//!
//! Steps 2 to 8 are one *attempt*. An attempt that loses a race is made again from fresh rows, a few
//! times; then, or if the database refuses the data, the batch is halved until the delivery that is
//! to blame stands alone, so that it never takes its neighbours along.

mod books;
mod course;
mod meter;
mod report;
mod unit;
mod work;

use books::{Books, Effects};
use course::{Course, Origin};
use meter::{Meter, Step};
use report::report;
pub use unit::Request;
use unit::{Content, Item, Unit, Unreadable};
use work::{Group, Work};

use super::{Error, Point, Points, Result, Role, Ruling, clock};
use crate::broker::{Consumer, Delivery, Headers, Settlement, Tag};
use crate::domain::retry::Next;
use crate::domain::{
    DeadReason, Fingerprint, Key, Layer, Outcome, RetryPolicy, RoleName, Timestamp,
};
use crate::gate::{Gate, Known, Told};
use crate::message::{self, Envelope, Limits, Meta, Outgoing};
use crate::store::{
    self, Claimed, Conclusion, NewClaim, NewDeadLetter, NewOutbox, Prior, Store, Tx, WOKEN,
};
use crate::telemetry::trace::Traces;
use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;
use tokio_util::sync::CancellationToken;

/// A role at work: its consumer and its processor.
pub struct Worker<R: Role> {
    processor: Arc<Processor<R>>,
    consumer: Box<dyn Consumer>,
    batch_max: usize,
    give_up: CancellationToken,
}

impl<R: Role> Worker<R> {
    /// A worker that takes up to `batch_max` deliveries at a time.
    #[must_use]
    pub fn new(
        processor: Arc<Processor<R>>,
        consumer: Box<dyn Consumer>,
        batch_max: usize,
    ) -> Self {
        Self {
            processor,
            consumer,
            batch_max,
            give_up: CancellationToken::new(),
        }
    }

    /// Settling ends when `give_up` is cancelled, whatever the broker is waiting for; what is not
    /// settled comes again.
    #[must_use]
    pub fn with_give_up(self, give_up: CancellationToken) -> Self {
        Self { give_up, ..self }
    }

    /// Waits for deliveries and handles them. Dropping the future of the wait loses nothing, so
    /// [`Self::receive`] and [`Self::handle`] can also be called one by one.
    ///
    /// # Errors
    /// [`Error`] if the database or the broker is away; the deliveries come again.
    pub async fn run_once(&mut self) -> Result<Vec<Settled>> {
        let deliveries = self.receive().await?;
        self.handle(&deliveries).await
    }

    /// Handles what has already arrived; nothing if nothing has.
    ///
    /// # Errors
    /// As [`Self::run_once`].
    pub async fn run_available(&mut self) -> Result<Vec<Settled>> {
        let deliveries = self.consumer.try_receive(self.batch_max).await?;
        self.handle(&deliveries).await
    }

    /// Waits for deliveries: step 1, which may be cancelled.
    ///
    /// # Errors
    /// [`Error::Broker`] if the broker is away.
    pub async fn receive(&mut self) -> Result<Vec<Delivery>> {
        Ok(self.consumer.receive(self.batch_max).await?)
    }

    /// Handles deliveries: steps 1 to 9. Must not be cancelled.
    ///
    /// # Errors
    /// As [`Self::run_once`]. What was decided before is settled.
    pub async fn handle(&mut self, deliveries: &[Delivery]) -> Result<Vec<Settled>> {
        if deliveries.is_empty() {
            return Ok(Vec::new());
        }
        let processor = Arc::clone(&self.processor);
        processor.points.pass(Point::Received)?;
        let mut course = processor.course(deliveries.len());
        let Processed { settled, stopped } = processor.go(deliveries, &mut course).await;
        processor.report(&settled);
        course.rest();
        if let Some(Error::Stopped(point)) = stopped {
            return Err(Error::Stopped(point));
        }
        // A delivery that was not decided, because the database is away, is handed back.
        let mut settlements: Vec<_> = settled.iter().map(|s| (s.tag, s.settlement)).collect();
        let undecided = deliveries.iter().skip(settled.len());
        settlements.extend(undecided.map(|delivery| (delivery.tag, Settlement::Release)));
        let given_up = self.give_up.cancelled();
        let stale = tokio::select! {
            biased;
            stale = self.consumer.settle(&settlements) => stale?,
            () = given_up => settlements.len(),
        };
        if stale > 0 {
            tracing::warn!(role = %processor.name, stale, "deliveries could not be settled, they come again");
        }
        processor.points.pass(Point::Settled)?;
        processor.tell(&settled).await;
        course.lap(Step::Settle);
        match stopped {
            Some(error) => Err(error),
            None => Ok(settled),
        }
    }

    /// Stops receiving and hands back what was received and not handled.
    ///
    /// # Errors
    /// [`Error::Broker`] if the broker is away; it takes them back by itself then.
    pub async fn close(self) -> Result<()> {
        Ok(self.consumer.close().await?)
    }
}

/// How a processor works.
#[derive(Debug, Clone)]
pub struct Settings {
    /// What a message may be at most.
    pub limits: Limits,
    /// How often a failed delivery is tried again.
    pub retry: RetryPolicy,
    /// How often an attempt that lost a race is made again at once.
    pub redecide: u32,
    /// Whether claims keep the message.
    pub keep_body: bool,
    /// How long an event may wait for what makes it possible.
    pub parking_deadline: Duration,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            limits: Limits::default(),
            retry: RetryPolicy::default(),
            redecide: 5,
            keep_body: true,
            parking_deadline: Duration::from_secs(86_400),
        }
    }
}

/// The one path from deliveries to the tables; consumers, the HTTP API and the janitor all take it.
pub struct Processor<R: Role> {
    role: R,
    name: RoleName,
    store: Arc<dyn Store>,
    gates: Vec<Arc<dyn Gate>>,
    settings: Settings,
    points: Points,
    meter: Meter,
    traces: Traces,
}

/// An event that did not come from a broker.
#[derive(Debug)]
pub struct Asked<E> {
    /// The event.
    pub event: E,
    /// The same for a message, which is kept with its claim and parked in its place.
    pub outgoing: Outgoing,
    /// W3C trace context, passed on.
    pub traceparent: Option<String>,
    /// Which request it is, if a client asked and may ask again.
    pub request: Option<Request>,
}

/// What became of some deliveries.
#[derive(Debug)]
pub struct Processed {
    /// Those that were decided, from the first on.
    pub settled: Vec<Settled>,
    /// Why the rest was not, if there is a rest.
    pub stopped: Option<Error>,
}

/// What became of a delivery.
#[derive(Debug, Clone)]
pub struct Settled {
    /// The delivery.
    pub tag: Tag,
    /// Its message id, if it could be read.
    pub message_id: Option<String>,
    /// The trace that it belongs to, while traces are on.
    pub trace_id: Option<String>,
    /// What became of each of its events; one without a key if they could not be read.
    pub items: Vec<ItemOutcome>,
    /// What the broker is to be told.
    pub settlement: Settlement,
}

/// What became of an event.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ItemOutcome {
    /// Its key and fingerprint, if it could be read.
    pub key: Option<(Key, Fingerprint)>,
    /// Its outcome.
    pub outcome: Outcome,
}

impl<R: Role> Processor<R> {
    /// A processor for `role`.
    pub fn new(role: R, store: Arc<dyn Store>, settings: Settings) -> Self {
        let name = role.name();
        Self {
            meter: Meter::new(&name),
            name,
            role,
            store,
            gates: Vec::new(),
            settings,
            points: Points::default(),
            traces: Traces::default(),
        }
    }

    /// Makes spans of batches and deliveries.
    #[must_use]
    pub fn with_traces(mut self, traces: Traces) -> Self {
        self.traces = traces;
        self
    }

    /// Asks and tells these gates, in this order.
    #[must_use]
    pub fn with_gates(mut self, gates: Vec<Arc<dyn Gate>>) -> Self {
        self.gates = gates;
        self
    }

    /// Stops at points, for tests.
    #[must_use]
    pub fn with_points(mut self, points: Points) -> Self {
        self.points = points;
        self
    }

    /// Takes deliveries to their outcomes: steps 1 to 8. Must not be cancelled.
    pub async fn process(&self, deliveries: &[Delivery]) -> Processed {
        self.go(deliveries, &mut self.course(deliveries.len()))
            .await
    }

    fn course(&self, deliveries: usize) -> Course<'_> {
        Course::new(&self.name, &self.meter, &self.traces, deliveries)
    }

    async fn go(&self, deliveries: &[Delivery], course: &mut Course<'_>) -> Processed {
        let mut settled = Vec::with_capacity(deliveries.len());
        let stopped = self.process_into(deliveries, &mut settled, course).await;
        Processed {
            settled,
            stopped: stopped.err(),
        }
    }

    /// Counts and logs what became of deliveries.
    fn report(&self, settled: &[Settled]) {
        self.meter.outcomes(settled);
        report(&self.name, settled);
    }

    /// What would become of deliveries now: steps 1 to 7, then everything is rolled back.
    ///
    /// # Errors
    /// [`Error::Store`].
    pub async fn rehearse(&self, delivery: &Delivery) -> Result<Settled> {
        let unit = self.key(delivery, self.decode(delivery));
        let units = std::slice::from_ref(&unit);
        let mut work = Work::of(units);
        let mut tx = self.store.begin().await?;
        let mut course = Course::new(&self.name, &self.meter, &self.traces, 0);
        self.transact(&mut *tx, &mut work, &mut course).await?;
        tx.rollback().await?;
        Ok(unit.settled(work.outcomes_by_unit().remove(0)))
    }

    /// Takes events that did not come from a broker the same way, each as a delivery of its own, and
    /// returns their outcomes in order. Must not be cancelled.
    ///
    /// # Errors
    /// [`Error::Store`] if the database is away; the events that were not decided are not recorded.
    pub async fn process_events(
        &self,
        now: Timestamp,
        events: Vec<(R::Event, Outgoing)>,
    ) -> Result<Vec<Outcome>> {
        let asked = events.into_iter().map(|(event, outgoing)| Asked {
            event,
            outgoing,
            traceparent: None,
            request: None,
        });
        self.process_asked(now, asked.collect()).await
    }

    /// As [`Self::process_events`], for events that somebody asked for and waits for. A request whose key is
    /// taken is a duplicate seen by [`Layer::Request`], whatever it says: its claim has the answer.
    ///
    /// # Errors
    /// As [`Self::process_events`].
    pub async fn process_asked(
        &self,
        now: Timestamp,
        asked: Vec<Asked<R::Event>>,
    ) -> Result<Vec<Outcome>> {
        if asked.is_empty() {
            return Ok(Vec::new());
        }
        let source = format!("orderonce/{}", self.name);
        let mut deliveries = Vec::with_capacity(asked.len());
        let mut contents = Vec::with_capacity(asked.len());
        for Asked {
            event,
            outgoing,
            traceparent,
            request,
        } in asked
        {
            let message_id = match &request {
                Some(request) => format!("{}:{}", RoleName::API, request.key),
                None => format!("{}:{}", self.name, self.role.key(&event)),
            };
            let meta = Meta {
                id: &message_id,
                source: &source,
                time: now,
                traceparent: traceparent.as_deref(),
            };
            deliveries.push(Delivery {
                tag: Tag { id: 0, fence: 0 },
                message: message::encode(meta, &outgoing).into(),
                headers: Headers::new(),
                attempt: 0,
                deliveries: 1,
            });
            let content = Content {
                message_id,
                event_type: outgoing.event_type.into_owned(),
                traceparent,
                time: None,
                items: vec![event],
            };
            contents.push((content, request));
        }
        let mut course = self.course(deliveries.len());
        let begun = contents.iter_mut().map(|(content, _)| Ok(content));
        let spans = course.begin(Origin::Process, begun);
        let units = deliveries.iter().zip(contents);
        let units: Vec<_> = units
            .map(|(delivery, (content, request))| Unit {
                request,
                ..self.key(delivery, Ok(content))
            })
            .collect();
        let mut settled = Vec::with_capacity(units.len());
        let ran = self.run(&units, &mut settled, &mut course).await;
        spans.end(&mut settled);
        ran?;
        self.report(&settled);
        self.tell(&settled).await;
        let items = settled.into_iter().flat_map(|settled| settled.items);
        Ok(items.map(|item| item.outcome).collect())
    }

    async fn process_into(
        &self,
        deliveries: &[Delivery],
        settled: &mut Vec<Settled>,
        course: &mut Course<'_>,
    ) -> Result<()> {
        let mut decoded: Vec<_> = deliveries.iter().map(|d| self.decode(d)).collect();
        let contents = decoded
            .iter_mut()
            .map(|content| content.as_mut().map_err(|e| &*e));
        let spans = course.begin(Origin::Queue, contents);
        course.lap(Step::Decode);
        self.points.pass(Point::Decoded)?;
        let decoded = deliveries.iter().zip(decoded);
        let units: Vec<_> = decoded.map(|(d, content)| self.key(d, content)).collect();
        course.lap(Step::Key);
        self.points.pass(Point::Keyed)?;
        let ran = self.run(&units, settled, course).await;
        spans.end(settled);
        ran
    }

    /// Steps 2 to 8 for all units, in order. Those that are left undecided are nobody's again.
    async fn run(
        &self,
        units: &[Unit<'_, R::Event>],
        settled: &mut Vec<Settled>,
        course: &mut Course<'_>,
    ) -> Result<()> {
        let ran = self.run_parts(units, settled, course).await;
        if let Err(Error::Store(_)) = ran {
            let undecided = units.iter().skip(settled.len());
            let items = undecided.flat_map(|unit| unit.items());
            self.release(&items.map(|item| &item.key).collect::<Vec<_>>())
                .await;
        }
        ran
    }

    /// In as few transactions as it takes.
    async fn run_parts(
        &self,
        units: &[Unit<'_, R::Event>],
        settled: &mut Vec<Settled>,
        course: &mut Course<'_>,
    ) -> Result<()> {
        let mut parts = VecDeque::from([units]);
        while let Some(part) = parts.pop_front() {
            match self.attempt_again(part, course).await {
                Ok(outcomes) => {
                    self.measure(part, &outcomes);
                    let units = part.iter().zip(outcomes);
                    settled.extend(units.map(|(unit, outcomes)| unit.settled(outcomes)));
                }
                Err(Error::Store(error)) if is_to_blame(&error) => match part {
                    [] => {}
                    [unit] => {
                        let outcomes = self.fail(unit, &error).await?;
                        settled.push(unit.settled(outcomes));
                    }
                    _ => {
                        let (first, second) = part.split_at(part.len() / 2);
                        parts.push_front(second);
                        parts.push_front(first);
                    }
                },
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Measures how long after their publication messages were applied.
    fn measure(&self, units: &[Unit<'_, R::Event>], outcomes: &[Vec<Outcome>]) {
        let now = clock::now();
        for (unit, outcomes) in units.iter().zip(outcomes) {
            if let Ok(Content {
                time: Some(time), ..
            }) = &unit.content
                && outcomes.contains(&Outcome::Applied)
            {
                let passed = u64::try_from(now.0.saturating_sub(time.0)).unwrap_or(0);
                self.meter.latency(Duration::from_millis(passed));
            }
        }
    }

    /// Makes an attempt, and makes it again while it only lost a race.
    async fn attempt_again(
        &self,
        units: &[Unit<'_, R::Event>],
        course: &mut Course<'_>,
    ) -> Result<Vec<Vec<Outcome>>> {
        for lost in 1..=self.settings.redecide {
            match self.attempt(units, course).await {
                Err(Error::Store(store::Error::Conflict(what))) => {
                    self.meter.again();
                    tracing::debug!(role = %self.name, lost, what, "deciding again from fresh rows");
                    let jitter = fastrand::u64(0..=4_u64 << lost.min(6));
                    tokio::time::sleep(Duration::from_millis(jitter)).await;
                    course.rest();
                }
                other => return other,
            }
        }
        self.attempt(units, course).await
    }

    /// One attempt: steps 2 to 8.
    async fn attempt(
        &self,
        units: &[Unit<'_, R::Event>],
        course: &mut Course<'_>,
    ) -> Result<Vec<Vec<Outcome>>> {
        let mut work = Work::of(units);
        self.ask(&mut work).await;
        course.lap(Step::Ask);
        self.points.pass(Point::Asked)?;
        if !work.is_settled() {
            let mut tx = self.store.begin().await?;
            self.transact(&mut *tx, &mut work, course).await?;
            tx.commit().await?;
            course.lap(Step::Commit);
            self.meter.late(work.late);
            self.points.pass(Point::Committed)?;
        }
        Ok(work.outcomes_by_unit())
    }

    /// What happens between begin and commit: steps 4 to 7.
    async fn transact(
        &self,
        tx: &mut dyn Tx,
        work: &mut Work<'_, R::Event>,
        course: &mut Course<'_>,
    ) -> Result<()> {
        self.points.pass(Point::Begun)?;
        let now = tx.now().await?;
        self.admit(tx, now, work).await?;
        self.claim(tx, now, work).await?;
        course.lap(Step::Claim);
        self.points.pass(Point::Claimed)?;
        let events: Vec<_> = work.fresh.iter().map(|fresh| &fresh.item.event).collect();
        let mut rows = self.role.load(tx, &events).await?;
        course.lap(Step::Load);
        self.points.pass(Point::Loaded)?;
        let effects = self.decide(&mut rows, now, work);
        course.lap(Step::Decide);
        self.points.pass(Point::Decided)?;
        self.write(tx, now, rows, &effects, work).await?;
        course.lap(Step::Write);
        self.points.pass(Point::Written)
    }

    /// Step 1: bytes to events.
    fn decode(&self, delivery: &Delivery) -> Result<Content<R::Event>, Unreadable> {
        let envelope = Envelope::parse(&delivery.message, &self.settings.limits);
        let envelope = envelope.map_err(|malformed| Unreadable {
            message_id: None,
            malformed,
        })?;
        let items = self.role.decode(&envelope);
        Ok(Content {
            items: items.map_err(|malformed| Unreadable {
                message_id: Some(envelope.id.to_string()),
                malformed,
            })?,
            message_id: envelope.id.into_owned(),
            event_type: envelope.event_type.into_owned(),
            traceparent: envelope.traceparent.map(Cow::into_owned),
            time: envelope.time,
        })
    }

    /// Step 2: which business action each event is.
    fn key<'d>(
        &self,
        delivery: &'d Delivery,
        content: Result<Content<R::Event>, Unreadable>,
    ) -> Unit<'d, R::Event> {
        let anew = delivery
            .headers
            .get(ANEW)
            .and_then(|anew| anew.parse().ok());
        let item = |event| {
            let key = self.role.key(&event);
            Item {
                key: anew.map_or(key.clone(), |anew| key.anew(anew)),
                fingerprint: self.role.fingerprint(&event),
                subject: self.role.subject(&event).to_owned(),
                event,
            }
        };
        let content = content.map(|content| Content {
            message_id: content.message_id,
            event_type: content.event_type,
            traceparent: content.traceparent,
            time: content.time,
            items: content.items.into_iter().map(item).collect(),
        });
        Unit {
            delivery,
            content,
            request: None,
        }
    }

    /// Step 3: what the gates know to be settled needs no database.
    async fn ask(&self, work: &mut Work<'_, R::Event>) {
        for gate in &self.gates {
            let asked = |group: &&Group<'_>| !group.is_absent;
            let keys: Vec<_> = work
                .groups
                .iter()
                .filter(asked)
                .map(|group| group.key)
                .collect();
            if keys.is_empty() {
                return;
            }
            let answers = gate.ask(&self.name, &keys).await;
            let groups = work.groups.iter_mut().filter(|group| !group.is_absent);
            for (group, known) in groups.zip(answers) {
                match known {
                    Known::Done(fingerprint) => group.members.retain(|&member| {
                        let copy = work.flat[member].item.fingerprint == fingerprint;
                        if copy {
                            work.outcomes[member] = Some(Outcome::Duplicate(Layer::Gate));
                        }
                        !copy
                    }),
                    Known::Absent => group.is_absent = true,
                    Known::Held => {
                        for member in group.members.drain(..) {
                            let attempt = work.flat[member].unit.delivery.attempt;
                            let delay = HELD;
                            work.outcomes[member] = Some(Outcome::Retried { attempt, delay });
                        }
                    }
                    Known::Unknown => {}
                }
            }
            work.groups.retain(|group| !group.members.is_empty());
        }
    }

    /// Step 4, for what clients ask: takes the keys of their requests. What was asked before, even by a client
    /// that is not answered yet, is not decided again.
    async fn admit(
        &self,
        tx: &mut dyn Tx,
        now: Timestamp,
        work: &mut Work<'_, R::Event>,
    ) -> Result<()> {
        let requests = work.requests();
        if requests.is_empty() {
            return Ok(());
        }
        let firsts = requests.values().filter_map(|members| {
            let first = &work.flat[*members.first()?];
            let request = first.unit.request.as_ref()?;
            Some(NewClaim {
                key: &request.key,
                subject: &first.item.subject,
                fingerprint: request.fingerprint,
                message_id: first.unit.message_id().unwrap_or_default(),
                body: None,
            })
        });
        let claims: Vec<_> = firsts.collect();
        let answers = tx.claim(&RoleName::API, now, &claims).await?;
        let asked = requests.values().zip(answers);
        let repeated = asked.flat_map(|(members, answer)| {
            let first = usize::from(answer == Claimed::Fresh);
            members[first..].iter().copied()
        });
        let repeated: BTreeSet<usize> = repeated.collect();
        work.repeat(&repeated);
        Ok(())
    }

    /// Step 4: takes all keys, and settles what is a copy of something.
    async fn claim<'w>(
        &self,
        tx: &mut dyn Tx,
        now: Timestamp,
        work: &mut Work<'w, R::Event>,
    ) -> Result<()> {
        let claim = |group: &Group<'w>| {
            let first = &work.flat[group.members[0]];
            NewClaim {
                key: group.key,
                subject: &first.item.subject,
                fingerprint: first.item.fingerprint,
                message_id: first.unit.message_id().unwrap_or_default(),
                body: self.settings.keep_body.then(|| first.unit.text()),
            }
        };
        let claims: Vec<_> = work.groups.iter().map(claim).collect();
        let answers = tx.claim(&self.name, now, &claims).await?;
        work.answer(answers);
        Ok(())
    }

    /// Step 6: each event in order of arrival, seeing what the one before it decided.
    fn decide(&self, rows: &mut R::Rows, now: Timestamp, work: &mut Work<'_, R::Event>) -> Effects {
        let mut effects = Effects::default();
        for fresh in &work.fresh {
            let Item { event, key, .. } = fresh.item;
            let outcome = match self.role.decide(rows, event, key, now) {
                Ruling::Decided {
                    verdict,
                    emits,
                    reached,
                } => {
                    let before = effects.outbox.len();
                    for event in emits {
                        let siblings = &effects.outbox[before..];
                        let row = self.outbox_row(now, fresh.unit, key, event, siblings);
                        effects.outbox.push(row);
                    }
                    effects.reached.extend(reached);
                    match (Outcome::from(verdict), &fresh.prior) {
                        // A copy of what waits already.
                        (
                            Outcome::Parked(token),
                            Prior::Parked {
                                awaits,
                                woken: false,
                            },
                        ) if token == *awaits => Outcome::Duplicate(Layer::Parked),
                        (outcome, _) => outcome,
                    }
                }
                Ruling::Failed(problem) => {
                    let problem = shorten(problem);
                    let outcome = self.failed(fresh.unit.delivery);
                    tracing::warn!(role = %self.name, %key, problem, %outcome, "an event failed");
                    effects.problems.push((fresh.member, problem));
                    outcome
                }
            };
            work.outcomes[fresh.member] = Some(outcome);
        }
        effects
    }

    fn outbox_row(
        &self,
        now: Timestamp,
        cause: &Unit<'_, R::Event>,
        key: &Key,
        event: Outgoing,
        siblings: &[NewOutbox],
    ) -> NewOutbox {
        let content = cause.content.as_ref().ok();
        // The same cause always gives the same ids: those of one type are numbered from the second on.
        let mut message_id = format!("{}:{key}>{}", self.name, event.event_type);
        let of_type = |sibling: &&NewOutbox| sibling.event_type == event.event_type;
        let older = siblings.iter().filter(of_type).count();
        if older > 0 {
            message_id = format!("{message_id}/{}", older + 1);
        }
        let meta = Meta {
            id: &message_id,
            source: &format!("orderonce/{}", self.name),
            time: now,
            traceparent: content.and_then(|content| content.traceparent.as_deref()),
        };
        let message = message::encode(meta, &event).into_bytes();
        NewOutbox {
            aggregate: event.subject,
            addressee: None,
            headers: Headers::new(),
            event_type: event.event_type.into_owned(),
            message_id,
            message,
        }
    }

    /// Step 7: rows of the role, claims, parked and woken events, outbox, dead letters.
    async fn write(
        &self,
        tx: &mut dyn Tx,
        now: Timestamp,
        rows: R::Rows,
        effects: &Effects,
        work: &Work<'_, R::Event>,
    ) -> Result<()> {
        self.role.write(tx, rows, now).await?;
        let books = Books::of(work, effects, now.plus(self.settings.parking_deadline));
        tx.conclude(&self.name, now, &books.conclusions).await?;
        tx.unclaim(&self.name, &books.unclaimed).await?;
        tx.conclude(&RoleName::API, now, &books.answers).await?;
        tx.unclaim(&RoleName::API, &books.unanswered).await?;
        tx.park(&self.name, now, &books.parked).await?;
        tx.unpark(&self.name, &books.unparked).await?;
        tx.append(now, &effects.outbox).await?;
        tx.wake(now, &effects.reached).await?;
        let dead = books.dead.iter().map(|dead| NewDeadLetter {
            role: &self.name,
            message_id: dead.unit.message_id(),
            key: dead.key,
            reason: dead.reason,
            detail: &dead.detail,
            raw: &dead.unit.delivery.message,
            headers: &dead.unit.delivery.headers,
            deliveries: dead.unit.delivery.deliveries,
        });
        tx.bury(now, &dead.collect::<Vec<_>>()).await?;
        Ok(())
    }

    /// A delivery that cannot be decided, alone as it is: again later, or to the dead letters.
    async fn fail(&self, unit: &Unit<'_, R::Event>, error: &store::Error) -> Result<Vec<Outcome>> {
        let outcome = self.failed(unit.delivery);
        let error = shorten(error.to_string());
        tracing::warn!(
            role = %self.name,
            message_id = unit.message_id(),
            error,
            %outcome,
            "a delivery failed"
        );
        if let Outcome::Dead(reason) = outcome {
            let mut tx = self.store.begin().await?;
            let now = tx.now().await?;
            let letter = NewDeadLetter {
                role: &self.name,
                message_id: unit.message_id(),
                key: unit.items().first().map(|item| &item.key),
                reason,
                detail: &error,
                raw: &unit.delivery.message,
                headers: &unit.delivery.headers,
                deliveries: unit.delivery.deliveries,
            };
            tx.bury(now, &[letter]).await?;
            self.give_up_waiting(&mut *tx, now, unit, reason).await?;
            tx.commit().await?;
        }
        Ok(vec![outcome; unit.items().len().max(1)])
    }

    /// What had waited is given up with the message that it was handed back in; it would be buried once more at its
    /// deadline.
    async fn give_up_waiting(
        &self,
        tx: &mut dyn Tx,
        now: Timestamp,
        unit: &Unit<'_, R::Event>,
        reason: DeadReason,
    ) -> Result<()> {
        if !unit.delivery.headers.contains_key(WOKEN) {
            return Ok(());
        }
        let items: BTreeMap<&Key, _> = unit.items().iter().map(|item| (&item.key, item)).collect();
        let claims = items.values().map(|item| NewClaim {
            key: &item.key,
            subject: &item.subject,
            fingerprint: item.fingerprint,
            message_id: unit.message_id().unwrap_or_default(),
            body: None,
        });
        let claims: Vec<_> = claims.collect();
        let answers = tx.claim(&self.name, now, &claims).await?;
        let (mut waiting, mut fresh) = (Vec::new(), Vec::new());
        for (key, answer) in items.into_keys().zip(answers) {
            match answer {
                Claimed::Fresh => fresh.push(key),
                Claimed::Open {
                    prior: Prior::Parked { .. },
                    ..
                } => waiting.push(key),
                Claimed::Open { .. } | Claimed::Done { .. } => {}
            }
        }
        let concluded = waiting.iter().map(|key| Conclusion {
            key,
            from: "parked",
            to: "dead",
            detail: Some(Cow::Borrowed(reason.into())),
        });
        tx.conclude(&self.name, now, &concluded.collect::<Vec<_>>())
            .await?;
        tx.unpark(&self.name, &waiting).await?;
        tx.unclaim(&self.name, &fresh).await?;
        Ok(())
    }

    fn failed(&self, delivery: &Delivery) -> Outcome {
        match self.settings.retry.after(delivery.attempt) {
            Next::Again(delay) => Outcome::Retried {
                attempt: delivery.attempt + 1,
                delay,
            },
            Next::DeadLetter => Outcome::Dead(DeadReason::RetriesExhausted),
        }
    }

    /// Step 9: tells the gates what is settled for good, and that the rest is nobody's again.
    async fn tell(&self, settled: &[Settled]) {
        if self.gates.is_empty() {
            return;
        }
        let items = settled.iter().flat_map(|settled| &settled.items);
        let told = items.filter_map(|item| {
            let (key, fingerprint) = item.key.as_ref()?;
            let is_first = match item.outcome {
                Outcome::Applied | Outcome::Stale | Outcome::Rejected(_) => true,
                Outcome::Duplicate(Layer::Claim | Layer::Flow) => false,
                Outcome::Duplicate(Layer::Request | Layer::Batch | Layer::Gate | Layer::Parked)
                | Outcome::Conflict
                | Outcome::Parked(_)
                | Outcome::Retried { .. }
                | Outcome::Dead(_) => return None,
            };
            let fingerprint = *fingerprint;
            Some(Told {
                key,
                fingerprint,
                is_first,
            })
        });
        let told: Vec<_> = told.collect();
        for gate in &self.gates {
            gate.tell(&self.name, &told).await;
        }
        let items = settled.iter().flat_map(|settled| &settled.items);
        let open = items.filter_map(|item| match item.outcome {
            Outcome::Conflict | Outcome::Parked(_) | Outcome::Retried { .. } | Outcome::Dead(_) => {
                item.key.as_ref().map(|(key, _)| key)
            }
            Outcome::Duplicate(Layer::Parked) => item.key.as_ref().map(|(key, _)| key),
            Outcome::Applied | Outcome::Stale | Outcome::Rejected(_) | Outcome::Duplicate(_) => {
                None
            }
        });
        self.release(&open.collect::<Vec<_>>()).await;
    }

    /// Tells the gates that nobody works on the keys any more.
    async fn release(&self, keys: &[&Key]) {
        for gate in self.gates.iter().filter(|_| !keys.is_empty()) {
            gate.release(&self.name, keys).await;
        }
    }
}

/// How long a copy of what another worker has in hand waits before it is looked at again.
const HELD: Duration = Duration::from_secs(1);

/// The header of a message that an operator has decided anew: an [`Anew`](crate::domain::Anew).
pub const ANEW: &str = "orderonce-anew";

/// The beginning of an account of a failure: a person reads it, and it must not be what fails next.
fn shorten(mut text: String) -> String {
    const CHARS: usize = 2000;
    if let Some((end, _)) = text.char_indices().nth(CHARS) {
        text.truncate(end);
        text.push_str("...");
    }
    text
}

/// Whether an error may be due to what one delivery holds.
fn is_to_blame(error: &store::Error) -> bool {
    match error {
        store::Error::Conflict(_) | store::Error::Refused(_) | store::Error::Corrupt { .. } => true,
        store::Error::Unavailable(_) | store::Error::Setup(_) => false,
    }
}
