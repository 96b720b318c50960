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
//! message arrives that was left unsettled again and again, the consumer releases what else it has
//! and goes on with a smaller prefetch: the smaller, the more often the message was left, and at last
//! one. It returns to its own only when some messages in a row were innocent. So a process that is
//! killed a few times by somebody else goes on in batches. Copies carry how often the message was
//! left unsettled, so that the limit holds for them.

use super::Shared;
use super::acks::{Ack, acks};
use super::burst::send_acks;
use super::outlet::{Outlet, Patience};
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
use tokio::sync::Mutex;
use tokio::task::JoinHandle;

/// Unsettled deliveries in a row after which a message comes alone. One may have been any restart;
/// from the second on, the message may be what ends the process.
const SUSPECT_AFTER: u32 = 2;

/// The prefetch for a message that was left unsettled that often; each time more it is a quarter.
const FIRST_PACE: u16 = 64;

/// How many deliveries before its last a message comes alone at the latest.
const ALONE_BEFORE_LIMIT: u32 = 3;

/// Innocent messages in a row after which the consumer takes many at a time again.
const CALM_AFTER: u32 = 32;

/// Consumes one queue.
#[derive(Debug)]
pub(super) struct AmqpConsumer {
    shared: Arc<Shared>,
    role: RoleName,
    queue: ShortString,
    prefetch: u16,
    outlet: Arc<Mutex<Outlet>>,
    session: Option<Session>,
    /// Sessions in a row that ended and had brought nothing.
    futile: u32,
}

/// A channel, and what is held over it.
#[derive(Debug)]
struct Session {
    channel: Channel,
    epoch: i64,
    /// Away while a turn runs that replaces it.
    stream: Option<lapin::Consumer>,
    pace: Pace,
    /// Everything that is not settled, by delivery tag.
    held: BTreeMap<u64, Held>,
    /// What of it nobody has seen.
    arrived: VecDeque<u64>,
    /// What of it has used up its deliveries.
    exhausted: Vec<u64>,
    /// It goes on if the receive that started it is cancelled; the next one collects it.
    turn: Option<JoinHandle<Result<Turned>>>,
    /// Why no more arrives.
    ended: Option<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Pace {
    Full,
    Careful { prefetch: u16, calm: u32 },
}

impl AmqpConsumer {
    pub(super) async fn open(shared: Arc<Shared>, role: RoleName, prefetch: usize) -> Result<Self> {
        let mut consumer = Self {
            queue: shared.layout.queue_of(&role),
            role,
            // The protocol takes 0 for no limit.
            prefetch: u16::try_from(prefetch.max(1)).unwrap_or(u16::MAX),
            outlet: Arc::new(Mutex::new(shared.outlet())),
            shared,
            session: None,
            futile: 0,
        };
        consumer.session = Some(consumer.new_session().await?);
        Ok(consumer)
    }

    async fn new_session(&self) -> Result<Session> {
        let link = &self.shared.consuming;
        let channel = link.channel().await?;
        let (pace, prefetch) = match self.suspect_after() {
            0 => {
                let (prefetch, calm) = (1, 0);
                (Pace::Careful { prefetch, calm }, prefetch)
            }
            _ => (Pace::Full, self.prefetch),
        };
        let stream = consume(&channel, &self.queue, prefetch).await;
        Ok(Session {
            stream: Some(stream.map_err(|error| link.unavailable(&error))?),
            channel,
            epoch: self.shared.next_epoch(),
            pace,
            held: BTreeMap::new(),
            arrived: VecDeque::new(),
            exhausted: Vec::new(),
            turn: None,
            ended: None,
        })
    }

    fn suspect_after(&self) -> u32 {
        SUSPECT_AFTER.min(self.shared.delivery_limit - 1)
    }

    /// How many may be held together with a message that was left unsettled that often.
    fn prefetch_with(&self, unsettled: u32) -> u16 {
        let suspicion = match unsettled.checked_sub(self.suspect_after()) {
            None => return self.prefetch,
            Some(suspicion) => suspicion,
        };
        if unsettled + ALONE_BEFORE_LIMIT >= self.shared.delivery_limit {
            return 1;
        }
        let fewer = FIRST_PACE.checked_shr(2 * suspicion).unwrap_or(0);
        fewer.clamp(1, self.prefetch)
    }

    /// Returns what has arrived, from none to `max`. Nothing is awaited between taking a delivery
    /// from the session and returning it, so a cancelled call takes none along.
    async fn look(&mut self, max: usize) -> Result<Vec<Delivery>> {
        loop {
            let mut session = match self.session.take() {
                Some(session) => session,
                None => self.new_session().await?,
            };
            if session.turn.is_some() {
                let session = self.session.insert(session);
                session.finish_turn(self.shared.delivery_limit).await;
                continue;
            }
            session.pull(self.shared.delivery_limit);
            if let Some(why) = session.ended.take() {
                // A lost connection is no reason to wait, one that is lost again is.
                self.futile += 1;
                if self.futile > 1 {
                    self.futile = 0;
                    return Err(Error::Unavailable(why));
                }
                tracing::info!(role = %self.role, why, "consuming anew, what was held comes again");
                continue;
            }
            if !session.held.is_empty() {
                self.futile = 0;
            }
            if let Some(turn) = self.next_turn(&mut session) {
                session.turn = Some(tokio::spawn(turn.run()));
                self.session = Some(session);
                continue;
            }
            let deliveries = session.hand_out(max, self.suspect_after());
            self.session = Some(session);
            return Ok(deliveries);
        }
    }

    /// What must happen before anything is handed out.
    fn next_turn(&self, session: &mut Session) -> Option<Turn> {
        let suspect_after = self.suspect_after();
        let (copies, switch) = if !session.exhausted.is_empty() {
            let crashed = self.shared.layout.roles.get(&self.role)?;
            let crashed = &crashed.crashed.name;
            tracing::warn!(
                role = %self.role,
                count = session.exhausted.len(),
                "messages used up their deliveries and are set aside"
            );
            let exhausted = std::mem::take(&mut session.exhausted);
            (session.copies(exhausted, crashed), None)
        } else if let prefetch = self.prefetch_with(session.suspicion())
            && prefetch < session.pace.prefetch(self.prefetch)
        {
            session.pace = Pace::Careful { prefetch, calm: 0 };
            // All of it, also what is suspect: whatever stayed would come on top of the new prefetch.
            let arrived = std::mem::take(&mut session.arrived);
            let switch = Switch {
                stream: session.stream.take()?,
                prefetch,
                release_late: true,
            };
            (session.copies(arrived, &self.queue), Some(switch))
        } else if session.is_calm() && suspect_after > 0 {
            session.pace = Pace::Full;
            let switch = Switch {
                stream: session.stream.take()?,
                prefetch: self.prefetch,
                release_late: false,
            };
            (Copies::default(), Some(switch))
        } else {
            return None;
        };
        Some(Turn {
            shared: Arc::clone(&self.shared),
            channel: session.channel.clone(),
            outlet: Arc::clone(&self.outlet),
            queue: self.queue.clone(),
            copies,
            switch,
        })
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
            && let Some(stream) = &mut self.stream
            && let Some(next) = stream.next().now_or_never()
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

    async fn finish_turn(&mut self, delivery_limit: u32) {
        let Some(turn) = &mut self.turn else { return };
        let turned = turn.await;
        self.turn = None;
        match turned {
            Ok(Ok(turned)) => {
                for tag in turned.settled {
                    self.held.remove(&tag);
                }
                if let Some(stream) = turned.stream {
                    self.stream = Some(stream);
                }
                for delivery in turned.late {
                    self.note(Some(Ok(delivery)), delivery_limit);
                }
            }
            Ok(Err(error)) => self.ended = Some(error.to_string()),
            Err(error) => self.ended = Some(format!("a task of the consumer: {error}")),
        }
    }

    /// How often any message that nobody has seen was left unsettled, at most.
    fn suspicion(&self) -> u32 {
        let arrived = self.arrived.iter().filter_map(|tag| self.held.get(tag));
        arrived.map(|held| held.unsettled).max().unwrap_or(0)
    }

    fn is_calm(&self) -> bool {
        let is_calm = |calm| calm >= CALM_AFTER && self.arrived.is_empty();
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

    fn hand_out(&mut self, max: usize, suspect_after: u32) -> Vec<Delivery> {
        let max = max.min(self.pace.prefetch(u16::MAX).into());
        let tags = self.arrived.drain(..max.min(self.arrived.len()));
        let mut deliveries = Vec::with_capacity(tags.len());
        for id in tags {
            let Some(held) = self.held.get_mut(&id) else {
                continue;
            };
            held.stage = Stage::HandedOut;
            if let Pace::Careful { calm, .. } = &mut self.pace {
                *calm = match held.unsettled >= suspect_after {
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

    /// Gives everything back with nothing counted.
    async fn leave(
        &mut self,
        shared: &Shared,
        queue: &ShortString,
        outlet: &Mutex<Outlet>,
    ) -> Result<()> {
        let gone = |error: lapin::Error| shared.consuming.unavailable(&error);
        let mut copies = self.copies(self.held.keys().copied(), queue);
        if let Some(mut stream) = self.stream.take() {
            cancel(&self.channel, &mut stream, |late| {
                let tag = late.delivery_tag;
                copies.push(tag, Held::of(late).released(queue));
            })
            .await
            .map_err(gone)?;
        }
        give_back(&self.channel, outlet, &copies, Patience::Limited).await
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        if let Some(turn) = &self.turn {
            turn.abort();
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
            let limit = self.shared.delivery_limit;
            if let Some(session) = &mut self.session
                && let Some(stream) = &mut session.stream
            {
                let next = stream.next().await;
                session.note(next, limit);
            }
        }
    }

    async fn try_receive(&mut self, max: usize) -> Result<Vec<Delivery>> {
        self.look(max).await
    }

    async fn settle(&mut self, settlements: &[(Tag, Settlement)]) -> Result<usize> {
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
                Settlement::Release => held.released(&self.queue),
                Settlement::Retry(delay) => {
                    let exchange = self.shared.layout.level_for(delay);
                    let exchange = exchange.map(|level| level.exchange.name.clone());
                    held.retried(exchange.unwrap_or_default(), &self.queue)
                }
            };
            copies.push(id, copy);
        }
        if !acked.is_empty() {
            stale += session.ack(&acked).await;
        }
        if copies.tags.is_empty() {
            return Ok(stale);
        }
        let mut outlet = self.outlet.lock().await;
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
        let Some(mut session) = self.session.take() else {
            return Ok(());
        };
        if let Some(turn) = session.turn.take() {
            turn.abort();
        }
        if !session.channel.status().connected() {
            return Ok(());
        }
        if let Err(error) = session.leave(&self.shared, &self.queue, &self.outlet).await {
            tracing::info!(role = %self.role, %error, "the broker takes deliveries back by itself, and counts them");
        }
        // One that cannot be closed any more is gone.
        let _ = session.channel.close(200, "OK".into()).await;
        Ok(())
    }
}

/// Something that must be done before the consumer goes on.
struct Turn {
    shared: Arc<Shared>,
    channel: Channel,
    outlet: Arc<Mutex<Outlet>>,
    queue: ShortString,
    copies: Copies,
    switch: Option<Switch>,
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

/// Goes over to another prefetch.
struct Switch {
    stream: lapin::Consumer,
    prefetch: u16,
    /// Whether what arrives meanwhile is given back.
    release_late: bool,
}

#[derive(Debug)]
struct Turned {
    settled: Vec<u64>,
    stream: Option<lapin::Consumer>,
    late: Vec<lapin::message::Delivery>,
}

impl Turn {
    async fn run(mut self) -> Result<Turned> {
        let link = Arc::clone(&self.shared.consuming);
        let gone = |error: lapin::Error| link.unavailable(&error);
        let mut turned = Turned {
            settled: self.copies.tags.clone(),
            stream: None,
            late: Vec::new(),
        };
        if let Some(switch) = &mut self.switch {
            let late = &mut turned.late;
            cancel(&self.channel, &mut switch.stream, |delivery| {
                late.push(delivery);
            })
            .await
            .map_err(gone)?;
            if switch.release_late {
                for delivery in turned.late.drain(..) {
                    let tag = delivery.delivery_tag;
                    let copy = Held::of(delivery).released(&self.queue);
                    self.copies.push(tag, copy);
                }
            }
        }
        let patience = Patience::WhileBlocked;
        give_back(&self.channel, &self.outlet, &self.copies, patience).await?;
        if let Some(switch) = self.switch {
            let stream = consume(&self.channel, &self.queue, switch.prefetch).await;
            turned.stream = Some(stream.map_err(gone)?);
        }
        Ok(turned)
    }
}

/// Publishes copies and acknowledges their originals.
async fn give_back(
    channel: &Channel,
    outlet: &Mutex<Outlet>,
    copies: &Copies,
    patience: Patience,
) -> Result<()> {
    let mut outlet = outlet.lock().await;
    let receipts = outlet.publish(&copies.messages, patience).await?;
    let mut acks = Vec::with_capacity(receipts.len());
    let mut problem = None;
    for (&tag, receipt) in copies.tags.iter().zip(receipts) {
        match receipt {
            Receipt::Confirmed => acks.push(Ack {
                tag,
                multiple: false,
            }),
            Receipt::Refused(why) => problem = Some(why),
        }
    }
    let written = send_acks(channel, &acks).await;
    match problem {
        None if written => Ok(()),
        None => Err(Error::Unavailable("the channel is gone".to_owned())),
        Some(why) => Err(Error::Unavailable(why)),
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

/// Stops a consumer, and passes on what has arrived from it.
async fn cancel(
    channel: &Channel,
    stream: &mut lapin::Consumer,
    mut late: impl FnMut(lapin::message::Delivery),
) -> lapin::Result<()> {
    let options = BasicCancelOptions { nowait: false };
    channel.basic_cancel(stream.tag(), options).await?;
    while let Some(delivery) = stream.next().await {
        late(delivery?);
    }
    Ok(())
}

fn tag(id: u64, epoch: i64) -> Tag {
    Tag {
        id: i64::try_from(id).unwrap_or(i64::MAX),
        fence: epoch,
    }
}
