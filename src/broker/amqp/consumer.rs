//! Consuming.
//!
//! A consumer lives on a channel; with the channel all its deliveries are lost, and a new channel has
//! a new epoch, so that an old tag settles nothing. Two things need care:
//!
//! **Nothing counts that was not worked on.** RabbitMQ counts whatever comes back to a quorum queue
//! towards the delivery limit. So what is released is published again as a copy, and then the
//! original is acknowledged. If the process ends in between there are two, and the claim tells.
//!
//! **A killer takes no neighbour along.** What was prefetched with it would be counted too. Once a
//! message arrives that has used up a part of its deliveries, the consumer releases what else it has
//! and goes on with a smaller prefetch: the smaller, the fewer deliveries the message has left, and at
//! last one. It returns to its own only when some messages in a row were innocent. So a process that
//! is killed by somebody else goes on in batches, unless that happens nearly as often as the limit
//! allows. Copies carry how often the message was left unsettled, so that the limit holds for them.

use super::Shared;
use super::acks::acks;
use super::burst::send_acks;
use super::outlet::{Outlet, Patience};
use super::setup::message_count;
use super::wire::{Held, Outgoing, Stage};
use crate::broker::{Consumer, Delivery, Error, Receipt, Result, Settlement, Tag};
use crate::domain::RoleName;
use async_trait::async_trait;
use futures_util::{FutureExt, StreamExt};
use lapin::Channel;
use lapin::options::{BasicCancelOptions, BasicConsumeOptions, BasicQosOptions};
use lapin::types::{FieldTable, ShortString};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::Mutex;
use tokio::task::JoinHandle;

/// Unsettled deliveries that suspect nothing, whatever the limit: one may have been any restart.
const HARMLESS: u32 = 1;

/// The prefetch with a message that has used up that many quarters of its deliveries.
const PACE_BY_QUARTER: [Option<u16>; 4] = [None, Some(64), Some(16), Some(4)];

/// With how many deliveries left a message comes alone.
const ALONE_AT_LAST: u32 = 3;

/// How long at most a consumer waits before it takes messages alone, with nothing in hand. The killer
/// of a process comes to one role; if all roles went on at the same time after each start, the message
/// in hand of another role would be the same each time, and be counted with the killer to the end.
const APART: Duration = Duration::from_secs(1);

/// Innocent messages in a row after which the consumer takes many at a time again.
const CALM_AFTER: u32 = 32;

/// Consumes one queue.
#[derive(Debug)]
pub(super) struct AmqpConsumer {
    post: Arc<Post>,
    session: Option<Session>,
    /// Away with the session. It goes on if the receive that started it is cancelled; the next one
    /// collects it.
    turn: Option<JoinHandle<Result<Session>>>,
    /// Sessions in a row that ended and had brought nothing.
    futile: u32,
}

/// What is consumed, and how.
#[derive(Debug)]
struct Post {
    shared: Arc<Shared>,
    role: RoleName,
    queue: ShortString,
    prefetch: u16,
    outlet: Mutex<Outlet>,
}

/// A channel, and what is held over it.
#[derive(Debug)]
struct Session {
    channel: Channel,
    epoch: i64,
    stream: lapin::Consumer,
    pace: Pace,
    /// Everything that is not settled, by delivery tag.
    held: BTreeMap<u64, Held>,
    /// What of it nobody has seen.
    arrived: VecDeque<u64>,
    /// What of it has used up its deliveries.
    exhausted: Vec<u64>,
    /// Why no more arrives.
    ended: Option<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Pace {
    Full,
    Careful { prefetch: u16, calm: u32 },
}

/// Something that must be done before anything is handed out.
#[derive(Debug, Clone, Copy)]
enum Turn {
    /// What has used up its deliveries goes to the queue for that.
    SetAside,
    /// A new session goes on at another pace. Not the same channel: what is on its way to a consumer
    /// that is cancelled would be held by nobody, until that channel is closed. So what was handed
    /// out and is not settled comes again.
    Change(Pace),
}

impl AmqpConsumer {
    pub(super) async fn open(shared: Arc<Shared>, role: RoleName, prefetch: usize) -> Result<Self> {
        let post = Post {
            queue: shared.layout.queue_of(&role),
            role,
            // The protocol takes 0 for no limit.
            prefetch: u16::try_from(prefetch.max(1)).unwrap_or(u16::MAX),
            outlet: Mutex::new(shared.outlet()),
            shared,
        };
        Ok(Self {
            session: Some(post.open(Pace::Full).await?),
            post: Arc::new(post),
            turn: None,
            futile: 0,
        })
    }

    /// Returns what has arrived, from none to `max`. Nothing is awaited between taking a delivery
    /// from the session and returning it, so a cancelled call takes none along.
    async fn look(&mut self, max: usize) -> Result<Vec<Delivery>> {
        loop {
            self.finish_turn().await?;
            let mut session = match self.session.take() {
                Some(session) => session,
                None => self.post.open(Pace::Full).await?,
            };
            session.pull(self.post.shared.delivery_limit);
            if let Some(why) = session.ended.take() {
                self.lost(why)?;
                continue;
            }
            if !session.held.is_empty() {
                self.futile = 0;
            }
            if let Some(turn) = self.post.next_turn(&session) {
                self.turn = Some(tokio::spawn(Arc::clone(&self.post).run(turn, session)));
                continue;
            }
            let deliveries = session.hand_out(max, |unsettled| self.post.suspects(unsettled));
            self.session = Some(session);
            return Ok(deliveries);
        }
    }

    /// Waits for a turn, if there is one.
    async fn finish_turn(&mut self) -> Result<()> {
        let Some(turn) = &mut self.turn else {
            return Ok(());
        };
        let turned = turn.await;
        self.turn = None;
        match turned {
            Ok(Ok(session)) => self.session = Some(session),
            Ok(Err(error)) => self.lost(error.to_string())?,
            Err(error) => self.lost(format!("a task of the consumer: {error}"))?,
        }
        Ok(())
    }

    /// A lost channel is no reason to wait, one that is lost again is.
    fn lost(&mut self, why: String) -> Result<()> {
        self.futile += 1;
        if self.futile > 1 {
            self.futile = 0;
            return Err(Error::Unavailable(why));
        }
        tracing::info!(role = %self.post.role, why, "consuming anew, what was held comes again");
        Ok(())
    }
}

impl Drop for AmqpConsumer {
    fn drop(&mut self) {
        if let Some(turn) = &self.turn {
            turn.abort();
        }
    }
}

impl Post {
    /// The exchange by which a message comes back after a delay; the default one at once.
    fn after(&self, delay: Duration) -> ShortString {
        let level = self.shared.layout.level_for(delay);
        level
            .map(|level| level.exchange.name.clone())
            .unwrap_or_default()
    }

    async fn open(&self, pace: Pace) -> Result<Session> {
        let pace = match self.pace_with(0) {
            Some(prefetch) => Pace::Careful { prefetch, calm: 0 },
            None => pace,
        };
        let link = &self.shared.consuming;
        let channel = link.channel().await?;
        let stream = consume(&channel, &self.queue, pace.prefetch(self.prefetch)).await;
        Ok(Session {
            stream: stream.map_err(|error| link.unavailable(&error))?,
            channel,
            epoch: self.shared.next_epoch(),
            pace,
            held: BTreeMap::new(),
            arrived: VecDeque::new(),
            exhausted: Vec::new(),
            ended: None,
        })
    }

    /// How many may be held together with a message that was left unsettled that often, if that is
    /// suspect.
    fn pace_with(&self, unsettled: u32) -> Option<u16> {
        let limit = self.shared.delivery_limit;
        let left = limit.saturating_sub(unsettled);
        if unsettled <= HARMLESS && left > 1 {
            return None;
        }
        if left <= ALONE_AT_LAST {
            return Some(1);
        }
        let used = u64::from(unsettled) * 4 / u64::from(limit);
        let quarter = usize::try_from(used).ok()?;
        *PACE_BY_QUARTER.get(quarter)?
    }

    fn suspects(&self, unsettled: u32) -> bool {
        self.pace_with(unsettled).is_some()
    }

    fn next_turn(&self, session: &Session) -> Option<Turn> {
        if !session.exhausted.is_empty() {
            return Some(Turn::SetAside);
        }
        if let Some(prefetch) = self.pace_with(session.suspicion())
            && prefetch < session.pace.prefetch(self.prefetch)
        {
            return Some(Turn::Change(Pace::Careful { prefetch, calm: 0 }));
        }
        let may_be_full = session.is_calm() && !self.suspects(0);
        may_be_full.then_some(Turn::Change(Pace::Full))
    }

    async fn run(self: Arc<Self>, turn: Turn, mut session: Session) -> Result<Session> {
        let patience = Patience::WhileBlocked;
        match turn {
            Turn::SetAside => {
                let exhausted = std::mem::take(&mut session.exhausted);
                tracing::warn!(
                    role = %self.role,
                    count = exhausted.len(),
                    "messages used up their deliveries and are set aside"
                );
                let crashed = &self.shared.queues(&self.role)?.crashed.name;
                let copies = session.copies(exhausted, crashed);
                session.give_back(&self.outlet, copies, patience).await?;
                Ok(session)
            }
            Turn::Change(pace) => {
                // All that nobody has seen, also what is suspect.
                self.leave(&mut session, patience, |held| held.stage == Stage::Arrived)
                    .await?;
                // One that cannot be closed any more is gone.
                let _ = session.channel.close(200, "OK".into()).await;
                drop(session);
                if pace.prefetch(self.prefetch) == 1 {
                    tokio::time::sleep(APART.mul_f64(fastrand::f64())).await;
                }
                self.open(pace).await
            }
        }
    }

    /// Stops receiving, and gives back with nothing counted what is `meant`.
    async fn leave(
        &self,
        session: &mut Session,
        patience: Patience,
        meant: impl Fn(&Held) -> bool,
    ) -> Result<()> {
        let prefetch = session.pace.prefetch(self.prefetch);
        let limit = self.shared.delivery_limit;
        let stopped = session.stop(&self.queue, prefetch, limit).await;
        stopped.map_err(|error| self.shared.consuming.unavailable(&error))?;
        let meant = session.held.iter().filter(|(_, held)| meant(held));
        let meant: Vec<u64> = meant.map(|(tag, _)| *tag).collect();
        let copies = session.copies(meant, &self.queue);
        session.give_back(&self.outlet, copies, patience).await
    }
}

impl Pace {
    /// How many are held at most, if `full` are at full pace.
    fn prefetch(self, full: u16) -> u16 {
        match self {
            Self::Full => full,
            Self::Careful { prefetch, .. } => prefetch,
        }
    }
}

impl Session {
    /// Takes in what has arrived.
    fn pull(&mut self, delivery_limit: u32) {
        while self.ended.is_none()
            && let Some(next) = self.stream.next().now_or_never()
        {
            self.note(next, delivery_limit);
        }
    }

    fn note(&mut self, next: Option<lapin::Result<lapin::message::Delivery>>, delivery_limit: u32) {
        match next {
            Some(Ok(delivery)) => {
                let tag = delivery.delivery_tag;
                let held = Held::of(delivery);
                match held.unsettled >= delivery_limit {
                    true => self.exhausted.push(tag),
                    false => self.arrived.push_back(tag),
                }
                self.held.insert(tag, held);
            }
            Some(Err(error)) => self.ended = Some(error.to_string()),
            None => self.ended = Some("the broker ended the consumer".to_owned()),
        }
    }

    /// How often any message that nobody has seen was left unsettled, at most.
    fn suspicion(&self) -> u32 {
        let arrived = self.arrived.iter().filter_map(|tag| self.held.get(tag));
        arrived.map(|held| held.unsettled).max().unwrap_or(0)
    }

    fn is_calm(&self) -> bool {
        let is_calm = |calm| calm >= CALM_AFTER && self.held.is_empty();
        matches!(self.pace, Pace::Careful { calm, .. } if is_calm(calm))
    }

    fn copies(&self, tags: impl IntoIterator<Item = u64>, queue: &ShortString) -> Copies {
        let mut copies = Copies::default();
        for tag in tags {
            if let Some(held) = self.held.get(&tag) {
                copies.push(tag, held.released(queue));
            }
        }
        copies
    }

    fn hand_out(&mut self, max: usize, suspects: impl Fn(u32) -> bool) -> Vec<Delivery> {
        let max = max.min(self.pace.prefetch(u16::MAX).into());
        let tags = self.arrived.drain(..max.min(self.arrived.len()));
        let mut deliveries = Vec::with_capacity(tags.len());
        for id in tags {
            let Some(held) = self.held.get_mut(&id) else {
                continue;
            };
            held.stage = Stage::HandedOut;
            if let Pace::Careful { calm, .. } = &mut self.pace {
                *calm = match suspects(held.unsettled) {
                    true => 0,
                    false => calm.saturating_add(1),
                };
            }
            deliveries.push(held.delivery(tag(id, self.epoch)));
        }
        deliveries
    }

    /// Takes a delivery for settling, unless it is not ours to settle.
    fn claim(&mut self, tag: Tag) -> Option<(u64, &Held)> {
        let id = u64::try_from(tag.id).ok()?;
        let held = self.held.get_mut(&id)?;
        if tag.fence != self.epoch || held.stage != Stage::HandedOut {
            return None;
        }
        held.stage = Stage::Settling;
        Some((id, held))
    }

    /// Acknowledges. Returns how many could not be.
    async fn ack(&mut self, settled: &BTreeSet<u64>) -> usize {
        let acks = acks(self.held.keys().copied(), settled);
        let written = send_acks(&self.channel, &acks).await;
        self.held.retain(|tag, _| !settled.contains(tag));
        if written { 0 } else { settled.len() }
    }

    /// Stops the stream. Before that it takes in what is on its way: what comes after the last of the
    /// stream is held by nobody, and counted when the channel is closed.
    async fn stop(
        &mut self,
        queue: &ShortString,
        prefetch: u16,
        delivery_limit: u32,
    ) -> lapin::Result<()> {
        // Other consumers may keep the queue busy, so that it is never quiet.
        const MOST_ROUNDS: u32 = 100;
        let mut quiet_rounds = 0;
        for _ in 0..MOST_ROUNDS {
            let waiting = message_count(&self.channel, queue).await?;
            self.pull(delivery_limit);
            // The server sends at once what there is, and room for. What it has sent when it is asked
            // has passed the channel when it is asked again.
            let is_quiet = waiting == 0 || self.held.len() >= prefetch.into();
            quiet_rounds = if is_quiet { quiet_rounds + 1 } else { 0 };
            if quiet_rounds == 2 {
                break;
            }
        }
        let options = BasicCancelOptions { nowait: false };
        self.channel
            .basic_cancel(self.stream.tag(), options)
            .await?;
        while let Some(delivery) = self.stream.next().await {
            self.note(Some(Ok(delivery?)), delivery_limit);
        }
        Ok(())
    }

    /// Publishes copies and acknowledges their originals.
    async fn give_back(
        &mut self,
        outlet: &Mutex<Outlet>,
        copies: Copies,
        patience: Patience,
    ) -> Result<()> {
        let mut outlet = outlet.lock().await;
        let receipts = outlet.publish(&copies.messages, patience).await?;
        let (mut given, mut problem) = (BTreeSet::new(), None);
        for (tag, receipt) in copies.tags.into_iter().zip(receipts) {
            match receipt {
                Receipt::Confirmed => {
                    given.insert(tag);
                }
                Receipt::Refused(why) => problem = Some(why),
            }
        }
        let left = self.ack(&given).await;
        match problem {
            None if left == 0 => Ok(()),
            None => Err(Error::Unavailable("the channel is gone".to_owned())),
            Some(why) => Err(Error::Unavailable(why)),
        }
    }
}

#[async_trait]
impl Consumer for AmqpConsumer {
    async fn receive(&mut self, max: usize) -> Result<Vec<Delivery>> {
        loop {
            let deliveries = self.look(max.max(1)).await?;
            if !deliveries.is_empty() {
                return Ok(deliveries);
            }
            if let Some(session) = &mut self.session {
                let next = session.stream.next().await;
                session.note(next, self.post.shared.delivery_limit);
            }
        }
    }

    async fn try_receive(&mut self, max: usize) -> Result<Vec<Delivery>> {
        self.look(max).await
    }

    async fn settle(&mut self, settlements: &[(Tag, Settlement)]) -> Result<usize> {
        self.finish_turn().await?;
        let Some(session) = &mut self.session else {
            return Ok(settlements.len());
        };
        if !session.channel.status().connected() {
            return Ok(settlements.len());
        }
        let (mut stale, mut acked) = (0, BTreeSet::new());
        let mut copies = Copies::default();
        for &(tag, settlement) in settlements {
            let Some((id, held)) = session.claim(tag) else {
                stale += 1;
                continue;
            };
            let copy = match settlement {
                Settlement::Ack => {
                    acked.insert(id);
                    continue;
                }
                Settlement::Release => held.released(&self.post.queue),
                Settlement::Retry(delay) => held.retried(self.post.after(delay), &self.post.queue),
                Settlement::Later(delay) => held.delayed(self.post.after(delay), &self.post.queue),
            };
            copies.push(id, copy);
        }
        if !acked.is_empty() {
            stale += session.ack(&acked).await;
        }
        if copies.tags.is_empty() {
            return Ok(stale);
        }
        let mut outlet = self.post.outlet.lock().await;
        let published = outlet.publish(&copies.messages, Patience::WhileBlocked);
        let (receipts, mut problem) = match published.await {
            Ok(receipts) => (receipts, None),
            Err(error) => (Vec::new(), Some(error)),
        };
        let mut confirmed = BTreeSet::new();
        for (n, id) in copies.tags.into_iter().enumerate() {
            match receipts.get(n) {
                Some(Receipt::Confirmed) => {
                    confirmed.insert(id);
                    continue;
                }
                Some(Receipt::Refused(why)) => {
                    problem.get_or_insert_with(|| Error::Unavailable(why.clone()));
                }
                None => {}
            }
            if let Some(held) = session.held.get_mut(&id) {
                held.stage = Stage::HandedOut;
            }
        }
        if !confirmed.is_empty() {
            stale += session.ack(&confirmed).await;
        }
        match problem {
            Some(error) => Err(error),
            None => Ok(stale),
        }
    }

    async fn close(mut self: Box<Self>) -> Result<()> {
        // One that is away with a turn is closed by being dropped.
        let Some(mut session) = self.session.take() else {
            return Ok(());
        };
        if !session.channel.status().connected() {
            return Ok(());
        }
        let left = self.post.leave(&mut session, Patience::Limited, |_| true);
        if let Err(error) = left.await {
            tracing::info!(role = %self.post.role, %error, "the broker takes deliveries back by itself, and counts them");
        }
        // One that cannot be closed any more is gone.
        let _ = session.channel.close(200, "OK".into()).await;
        Ok(())
    }
}

/// Copies of deliveries, and the tags of their originals.
#[derive(Debug, Default)]
struct Copies {
    tags: Vec<u64>,
    messages: Vec<Outgoing>,
}

impl Copies {
    fn push(&mut self, tag: u64, message: Outgoing) {
        self.tags.push(tag);
        self.messages.push(message);
    }
}

async fn consume(
    channel: &Channel,
    queue: &ShortString,
    prefetch: u16,
) -> lapin::Result<lapin::Consumer> {
    // Of each consumer of the channel that starts from now on, the only kind that quorum queues take.
    let each = BasicQosOptions { global: false };
    channel.basic_qos(prefetch, each).await?;
    let any_tag = ShortString::default();
    let options = BasicConsumeOptions::default();
    let none = FieldTable::default();
    channel
        .basic_consume(queue.clone(), any_tag, options, none)
        .await
}

fn tag(id: u64, epoch: i64) -> Tag {
    Tag {
        id: i64::try_from(id).unwrap_or(i64::MAX),
        fence: epoch,
    }
}
