//! Consuming from the table.

use super::rows::{self, Leased, Settlements};
use super::{Shared, joined, retrying, transact};
use crate::broker::{Consumer, Delivery, Result, Settlement, Tag};
use crate::domain::{RoleName, Timestamp};
use async_trait::async_trait;
use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;
use tokio::runtime::Handle;
use tokio::sync::Notify;
use tokio::task::JoinHandle;

/// Holds leases of one queue.
#[derive(Debug)]
pub(super) struct EmbeddedConsumer {
    shared: Arc<Shared>,
    queue: RoleName,
    wake: Arc<Notify>,
    prefetch: usize,
    /// A transaction that leases. It outlives a receive that is cancelled; the next one collects it.
    leasing: Option<JoinHandle<Result<Leased>>>,
    /// Leased, but not handed out, because a receive was cancelled.
    buffer: VecDeque<Delivery>,
    /// When the leases in the buffer end.
    buffer_until: Timestamp,
    /// Handed out and not settled: fence and end of lease by id.
    held: HashMap<i64, (i64, Timestamp)>,
    /// Whether the last lease was as large as it could be, so that more is probably waiting.
    more: bool,
}

/// What a look at the queue found.
enum Look {
    Arrived(Vec<Delivery>),
    Nothing { look_again_in: Duration },
}

impl EmbeddedConsumer {
    pub(super) fn new(
        shared: Arc<Shared>,
        queue: RoleName,
        wake: Arc<Notify>,
        prefetch: usize,
    ) -> Self {
        Self {
            shared,
            queue,
            wake,
            prefetch: prefetch.max(1),
            leasing: None,
            buffer: VecDeque::new(),
            buffer_until: Timestamp(0),
            held: HashMap::new(),
            more: false,
        }
    }

    /// Hands out what has arrived. Nothing is awaited between taking a delivery out of the
    /// consumer's own state and returning it, so a cancelled call takes none along.
    async fn look(&mut self, max: usize) -> Result<Look> {
        self.collect().await?;
        let now = self.shared.database.now();
        self.held.retain(|_, &mut (_, until)| until > now);
        if self.buffer_until <= now {
            self.release_buffer().await?;
        }
        if !self.buffer.is_empty() {
            return Ok(self.hand_out(max));
        }
        let poll = self.shared.options.poll;
        let max = max.min(self.prefetch.saturating_sub(self.held.len()));
        if max == 0 {
            return Ok(Look::Nothing {
                look_again_in: poll,
            });
        }
        if !std::mem::take(&mut self.more) {
            // An idle consumer only reads and leaves the write lock to others.
            let due = rows::next_due(&self.shared, &self.queue).await?;
            let pause = due.map_or(poll, |due| due.since(now).min(poll));
            if !pause.is_zero() {
                return Ok(Look::Nothing {
                    look_again_in: pause,
                });
            }
        }
        self.lease(max);
        self.collect().await?;
        self.more = self.buffer.len() == max;
        Ok(self.hand_out(max))
    }

    /// Starts a transaction that leases up to `max` messages.
    fn lease(&mut self, max: usize) {
        let (shared, queue) = (Arc::clone(&self.shared), self.queue.clone());
        let lease = move || {
            let (shared, queue) = (Arc::clone(&shared), queue.clone());
            async move { rows::lease(&shared, &queue, max).await }
        };
        self.leasing = Some(tokio::spawn(retrying(lease)));
    }

    /// Waits for a transaction that leases, if there is one, and buffers what it leased.
    async fn collect(&mut self) -> Result<()> {
        let Some(leasing) = &mut self.leasing else {
            return Ok(());
        };
        let leased = joined(leasing.await);
        self.leasing = None;
        let Leased { deliveries, until } = leased?;
        self.buffer.extend(deliveries);
        self.buffer_until = until;
        Ok(())
    }

    /// Gives back what was leased and never handed out, so that a lease that ran out here does not
    /// count towards the delivery limit.
    async fn release_buffer(&mut self) -> Result<()> {
        if self.buffer.is_empty() {
            return Ok(());
        }
        let untouched = self.buffer.drain(..).map(|delivery| delivery.tag);
        let settlements = Arc::new(Settlements::leaving(untouched, std::iter::empty()));
        settle(&self.shared, &self.queue, &self.wake, &settlements).await?;
        Ok(())
    }

    fn hand_out(&mut self, max: usize) -> Look {
        let deliveries: Vec<Delivery> = self.buffer.drain(..max.min(self.buffer.len())).collect();
        if deliveries.is_empty() {
            // Another consumer was faster.
            return Look::Nothing {
                look_again_in: Duration::from_millis(1),
            };
        }
        let until = self.buffer_until;
        let tags = deliveries.iter().map(|delivery| delivery.tag);
        self.held
            .extend(tags.map(|tag| (tag.id, (tag.fence, until))));
        Look::Arrived(deliveries)
    }

    /// Forgets everything that this consumer has, and returns it; `None` if that is nothing.
    fn leave(&mut self) -> Option<Leaving> {
        let leaving = Leaving {
            leasing: self.leasing.take(),
            untouched: self.buffer.drain(..).map(|delivery| delivery.tag).collect(),
            unsettled: self
                .held
                .drain()
                .map(|(id, (fence, _))| Tag { id, fence })
                .collect(),
            shared: Arc::clone(&self.shared),
            queue: self.queue.clone(),
            wake: Arc::clone(&self.wake),
        };
        let nothing = leaving.leasing.is_none()
            && leaving.untouched.is_empty()
            && leaving.unsettled.is_empty();
        (!nothing).then_some(leaving)
    }
}

#[async_trait]
impl Consumer for EmbeddedConsumer {
    async fn receive(&mut self, max: usize) -> Result<Vec<Delivery>> {
        let wake = Arc::clone(&self.wake);
        loop {
            // Listening starts before the look, so that nothing published in between is missed.
            let mut woken = std::pin::pin!(wake.notified());
            woken.as_mut().enable();
            match self.look(max.max(1)).await? {
                Look::Arrived(deliveries) => return Ok(deliveries),
                Look::Nothing { look_again_in } => {
                    // Both ends of the wait mean the same: look again.
                    let _ = tokio::time::timeout(look_again_in, woken).await;
                }
            }
        }
    }

    async fn try_receive(&mut self, max: usize) -> Result<Vec<Delivery>> {
        match self.look(max).await? {
            Look::Arrived(deliveries) => Ok(deliveries),
            Look::Nothing { .. } => Ok(Vec::new()),
        }
    }

    async fn settle(&mut self, settlements: &[(Tag, Settlement)]) -> Result<usize> {
        if settlements.is_empty() {
            return Ok(0);
        }
        let sorted = Arc::new(Settlements::of(settlements));
        // Forgotten first: a call that is cancelled still settles.
        let mut forgotten = Vec::new();
        for (tag, _) in settlements {
            if let Some(&(fence, until)) = self.held.get(&tag.id)
                && fence == tag.fence
            {
                self.held.remove(&tag.id);
                forgotten.push((tag.id, (fence, until)));
            }
        }
        let settled = settle(&self.shared, &self.queue, &self.wake, &sorted).await;
        if settled.is_err() {
            self.held.extend(forgotten);
        }
        let settled = usize::try_from(settled?).unwrap_or(usize::MAX);
        Ok(sorted.len().saturating_sub(settled))
    }

    async fn close(mut self: Box<Self>) -> Result<()> {
        match self.leave() {
            Some(leaving) => leaving.release().await,
            None => Ok(()),
        }
    }
}

/// A consumer that is dropped gives up its deliveries at once. What it had handed out stays counted
/// as unsettled: a message that makes its worker panic must reach the delivery limit.
impl Drop for EmbeddedConsumer {
    fn drop(&mut self) {
        let Some(leaving) = self.leave() else { return };
        // Without a runtime the leases run out by themselves.
        if let Ok(runtime) = Handle::try_current() {
            runtime.spawn(async move {
                if let Err(error) = leaving.abandon().await {
                    tracing::debug!(%error, "the leases of a dropped consumer run out by themselves");
                }
            });
        }
    }
}

/// What a consumer leaves behind.
struct Leaving {
    shared: Arc<Shared>,
    queue: RoleName,
    wake: Arc<Notify>,
    leasing: Option<JoinHandle<Result<Leased>>>,
    untouched: Vec<Tag>,
    unsettled: Vec<Tag>,
}

impl Leaving {
    /// Gives everything back with nothing counted.
    async fn release(mut self) -> Result<()> {
        self.untouched.append(&mut self.unsettled);
        self.abandon().await
    }

    /// Gives everything back, what was handed out still counted as unsettled.
    async fn abandon(mut self) -> Result<()> {
        if let Some(leasing) = self.leasing.take() {
            // A lease that failed left nothing to give back.
            if let Ok(leased) = joined(leasing.await) {
                let tags = leased.deliveries.iter().map(|delivery| delivery.tag);
                self.untouched.extend(tags);
            }
        }
        let untouched = self.untouched.into_iter();
        let settlements = Settlements::leaving(untouched, self.unsettled.into_iter());
        settle(
            &self.shared,
            &self.queue,
            &self.wake,
            &Arc::new(settlements),
        )
        .await?;
        Ok(())
    }
}

/// Settles in a task of its own, and wakes consumers if something may be visible again. Returns how
/// many rows were settled.
async fn settle(
    shared: &Arc<Shared>,
    queue: &RoleName,
    wake: &Arc<Notify>,
    settlements: &Arc<Settlements>,
) -> Result<u64> {
    let (task, queue, set) = (Arc::clone(shared), queue.clone(), Arc::clone(settlements));
    let settled = transact(move || {
        let (shared, queue, set) = (Arc::clone(&task), queue.clone(), Arc::clone(&set));
        async move { rows::settle(&shared, &queue, &set).await }
    })
    .await?;
    if settlements.hands_back() {
        wake.notify_waiters();
    }
    Ok(settled)
}
