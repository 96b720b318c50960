//! What runs by the clock: order timeouts and reminders, parked deadlines, messages that kill the process.
//!
//! One janitor at a time works, by a lease; whoever does not hold it does nothing. Closing and reminding go the way
//! of all events and would be harmless twice at the same time: the guards of the rows decide. What the janitor
//! writes by itself is guarded by the fence of its lease, within the same transaction: one that slept past the end of
//! its lease writes nothing, and what it took from the broker goes back there.

use super::lease::Held;
use super::order::OrderRole;
use super::{Processor, Result};
use crate::broker::Broker;
use crate::domain::event::{Event, OrderEvent, OrderExpire, OrderRemind};
use crate::domain::{DeadReason, Outcome, RoleName, Timestamp};
use crate::message::Outgoing;
use crate::store::{Conclusion, Lease, NewDeadLetter, Store, Tx};
use metrics::{Counter, counter};
use std::sync::Arc;
use std::time::Duration;

/// The name of the janitor's lease.
pub const LEASE: &str = "janitor";

/// A janitor.
pub struct Janitor {
    store: Arc<dyn Store>,
    broker: Arc<dyn Broker>,
    orders: Arc<Processor<OrderRole>>,
    roles: Vec<RoleName>,
    batch: u32,
    lease: Option<Held>,
    series: Series,
}

/// What is counted.
struct Series {
    closed: Counter,
    reminded: Counter,
    overdue: Counter,
    crashed: Counter,
}

impl Series {
    fn new() -> Self {
        let of = |what: &'static str| counter!("orderonce_janitor_handled_total", "what" => what);
        Self {
            closed: of("closed"),
            reminded: of("reminded"),
            overdue: of("overdue"),
            crashed: of("crashed"),
        }
    }
}

/// Adds a number to a series and returns it.
fn counted(series: &Counter, number: usize) -> usize {
    series.increment(u64::try_from(number).unwrap_or(u64::MAX));
    number
}

/// What a run of the janitor did.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Cleaned {
    /// Unpaid orders that were closed.
    pub expired: usize,
    /// Unpaid orders of which somebody was reminded.
    pub reminded: usize,
    /// Parked events that were given up.
    pub overdue: usize,
    /// Messages that seemed to kill the process and were kept.
    pub crashed: usize,
    /// Another janitor holds the lease, or took it over in the midst of the run: the rest is left to that one.
    pub not_ours: bool,
}

impl Cleaned {
    /// Whether there may be more to do at once.
    #[must_use]
    pub fn is_busy(self) -> bool {
        !self.not_ours && self != Self::default()
    }
}

impl Janitor {
    /// A janitor that looks after the queues of `roles` and takes up to `batch` of each thing at a
    /// time. It asks for no lease.
    #[must_use]
    pub fn new(
        store: Arc<dyn Store>,
        broker: Arc<dyn Broker>,
        orders: Arc<Processor<OrderRole>>,
        roles: Vec<RoleName>,
        batch: u32,
    ) -> Self {
        Self {
            store,
            broker,
            orders,
            roles,
            batch,
            lease: None,
            series: Series::new(),
        }
    }

    /// Works only while it holds the lease, as `holder`, a name that no other process has. It owns what is due for
    /// `duration` without renewing it. Janitors of one database should look after the queues of the same roles, as only
    /// one of them does.
    #[must_use]
    pub fn alone(mut self, holder: String, duration: Duration) -> Self {
        let store = Arc::clone(&self.store);
        self.lease = Some(Held::new(store, LEASE, holder, duration));
        self
    }

    /// Does what is due. Must not be cancelled.
    ///
    /// # Errors
    /// [`super::Error`] if the database or the broker is away; the next run does it.
    pub async fn run_once(&mut self) -> Result<Cleaned> {
        let mut cleaned = Cleaned::default();
        let lease = match &mut self.lease {
            Some(held) => {
                let lease = held.hold().await?;
                cleaned.not_ours = lease.is_none();
                lease
            }
            None => None,
        };
        if !cleaned.not_ours {
            cleaned.expired = self.expire_orders().await?;
            cleaned.reminded = self.remind().await?;
            self.give_up_parked(lease, &mut cleaned).await?;
            self.keep_crashed(lease, &mut cleaned).await?;
        }
        if cleaned.not_ours {
            self.leave().await?;
        }
        Ok(cleaned)
    }

    /// Gives the lease back, so that another janitor need not wait for its end.
    ///
    /// # Errors
    /// [`super::Error`] if the database is away.
    pub async fn close(self) -> Result<()> {
        match self.lease {
            Some(held) => held.give_back().await,
            None => Ok(()),
        }
    }

    /// Leaves the work to whoever has the lease now.
    async fn leave(&mut self) -> Result<()> {
        if let Some(held) = &mut self.lease {
            held.lose();
        }
        for role in &self.roles {
            self.broker.put_back_crashed(role).await?;
        }
        Ok(())
    }

    /// A transaction, and the time. If there is a lease, it is still held, and is until the transaction ends; `None` if
    /// it is not.
    async fn begin(&self, lease: Option<Lease>) -> Result<Option<(Box<dyn Tx>, Timestamp)>> {
        let mut tx = self.store.begin().await?;
        let now = tx.now().await?;
        if let Some(lease) = lease
            && !tx.holds_lease(LEASE, lease, now).await?
        {
            tx.rollback().await?;
            return Ok(None);
        }
        Ok(Some((tx, now)))
    }

    /// Closes unpaid orders by the way that all events take.
    async fn expire_orders(&self) -> Result<usize> {
        let (seen_due, due) = self.store.due_orders(self.batch).await?;
        let expire = |order_id| {
            OrderEvent::Expire(OrderExpire {
                order_id,
                seen_due: Some(seen_due),
            })
        };
        let closed = self.decide(seen_due, due.into_iter().map(expire)).await?;
        Ok(counted(&self.series.closed, closed))
    }

    /// Reminds of unpaid orders that are about to expire, the same way.
    async fn remind(&self) -> Result<usize> {
        let (seen_due, due) = self.store.due_reminders(self.batch).await?;
        let remind = |order_id| {
            OrderEvent::Remind(OrderRemind {
                order_id,
                seen_due: Some(seen_due),
            })
        };
        let reminded = self.decide(seen_due, due.into_iter().map(remind)).await?;
        Ok(counted(&self.series.reminded, reminded))
    }

    /// How many of the events were applied.
    async fn decide(
        &self,
        now: Timestamp,
        events: impl Iterator<Item = OrderEvent>,
    ) -> Result<usize> {
        let events = events.map(|event| {
            let outgoing = Outgoing::from(&Event::Order(event.clone()));
            (event, outgoing)
        });
        let outcomes = self.orders.process_events(now, events.collect()).await?;
        let applied = outcomes
            .iter()
            .filter(|outcome| **outcome == Outcome::Applied);
        Ok(applied.count())
    }

    /// Moves parked events whose deadline has passed to the dead letters.
    async fn give_up_parked(&self, lease: Option<Lease>, cleaned: &mut Cleaned) -> Result<()> {
        let Some((mut tx, now)) = self.begin(lease).await? else {
            cleaned.not_ours = true;
            return Ok(());
        };
        let overdue = tx.take_overdue(now, self.batch).await?;
        if overdue.is_empty() {
            tx.rollback().await?;
            return Ok(());
        }
        for parked in &overdue {
            let dead = Outcome::Dead(DeadReason::ParkedTooLong);
            tracing::warn!(
                role = %parked.role,
                message_id = parked.message_id,
                key = %parked.key,
                outcome = dead.name(),
                awaits = %parked.awaits,
                "parked past its deadline"
            );
            let conclusion = Conclusion {
                key: &parked.key,
                from: "parked",
                to: dead.name(),
                detail: Some("parked_too_long".into()),
            };
            tx.conclude(&parked.role, now, &[conclusion]).await?;
            let letter = NewDeadLetter {
                role: &parked.role,
                message_id: Some(&parked.message_id),
                key: Some(&parked.key),
                reason: DeadReason::ParkedTooLong,
                detail: &format!("waited for {} until {}", parked.awaits, parked.deadline),
                raw: parked.message.as_bytes(),
                headers: &parked.headers,
                deliveries: 1,
            };
            tx.bury(now, &[letter]).await?;
        }
        tx.commit().await?;
        cleaned.overdue = counted(&self.series.overdue, overdue.len());
        Ok(())
    }

    /// Keeps messages that were delivered again and again and never settled.
    async fn keep_crashed(&self, lease: Option<Lease>, cleaned: &mut Cleaned) -> Result<()> {
        for role in &self.roles {
            if cleaned.not_ours {
                break;
            }
            let batch = usize::try_from(self.batch).unwrap_or(usize::MAX);
            let crashed = self.broker.crashed(role, batch).await?;
            if crashed.is_empty() {
                continue;
            }
            let Some((mut tx, now)) = self.begin(lease).await? else {
                cleaned.not_ours = true;
                break;
            };
            let letters = crashed.iter().map(|delivery| NewDeadLetter {
                role,
                message_id: None,
                key: None,
                reason: DeadReason::CrashLoop,
                detail: "delivered again and again and never settled",
                raw: &delivery.message,
                headers: &delivery.headers,
                deliveries: delivery.deliveries,
            });
            tx.bury(now, &letters.collect::<Vec<_>>()).await?;
            tx.commit().await?;
            let dead = Outcome::Dead(DeadReason::CrashLoop);
            for _ in &crashed {
                // Its bytes are not read: that may be what kills.
                let (outcome, detail) = (dead.name(), dead.detail());
                let detail = detail.as_deref();
                tracing::warn!(%role, message_id = "", key = "", outcome, detail, "a message that seems to kill the process");
            }
            cleaned.crashed += counted(&self.series.crashed, crashed.len());
            let tags: Vec<_> = crashed.iter().map(|delivery| delivery.tag).collect();
            self.broker.forget_crashed(role, &tags).await?;
        }
        Ok(())
    }
}
