//! What claims and callbacks become when they grow old: the part of the janitor that goes through many rows.
//!
//! It works in small steps with a pause after each, so that whoever claims meanwhile hardly notices. One
//! process at a time does it, by a lease; two would do no harm.

use super::Result;
use crate::domain::Timestamp;
use crate::store::{CLAIMS, Store};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// How long the right to go on lasts without being renewed: longer than a step and its pause.
pub const TURN: Duration = Duration::from_mins(1);

/// After a step it pauses at least so many times as long as the step took: a database that is busy has
/// less of it.
const REST: u32 = 4;

/// How it works.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Settings {
    /// How long after its conclusion a claim is marked as expired.
    pub life: Duration,
    /// How long after that it is removed.
    pub archive: Duration,
    /// How long callbacks are kept as they came.
    pub callbacks: Duration,
    /// Most rows of each kind in a step.
    pub batch: u32,
    /// The pause after a step, at least.
    pub pause: Duration,
    /// How long it waits once nothing is left to do.
    pub interval: Duration,
}

/// What a step did, and when the next is due.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Step {
    /// Claims that were marked as expired.
    pub expired: u64,
    /// Claims that were removed.
    pub removed: u64,
    /// Callbacks that were removed.
    pub callbacks: u64,
    /// How long to pause before the next step.
    pub pause: Duration,
}

/// Retention at work.
pub struct Retention {
    store: Arc<dyn Store>,
    settings: Settings,
    holder: String,
    /// Where the next step goes on, so that it need not pass what the last one has done.
    expire_from: Timestamp,
    remove_from: Timestamp,
    expired: u64,
    removed: u64,
    callbacks: u64,
}

impl Retention {
    /// Retention by a process of its own name.
    #[must_use]
    pub fn new(store: Arc<dyn Store>, holder: String, settings: Settings) -> Self {
        Self {
            store,
            settings,
            holder,
            expire_from: Timestamp(0),
            remove_from: Timestamp(0),
            expired: 0,
            removed: 0,
            callbacks: 0,
        }
    }

    /// Makes a step, if nobody else is at it. Must not be cancelled.
    ///
    /// # Errors
    /// [`super::Error::Store`] if the database is away; the next step does it.
    pub async fn run_once(&mut self) -> Result<Step> {
        let Settings {
            life,
            archive,
            callbacks,
            batch,
            pause,
            interval,
        } = self.settings;
        if self.lease(TURN).await? {
            let begun = Instant::now();
            let expired = self
                .store
                .expire_claims(life, self.expire_from, batch)
                .await?;
            let removed = self
                .store
                .remove_claims(archive, self.remove_from, batch)
                .await?;
            let callbacks = self.store.remove_callbacks(callbacks, batch).await?;
            self.expire_from = expired.through.unwrap_or(self.expire_from);
            self.remove_from = removed.through.unwrap_or(self.remove_from);
            self.expired += expired.rows;
            self.removed += removed.rows;
            self.callbacks += callbacks;
            let is_busy = expired.rows.max(removed.rows).max(callbacks) >= batch.into();
            let step = Step {
                expired: expired.rows,
                removed: removed.rows,
                callbacks,
                pause: pause.max(begun.elapsed() * REST),
            };
            if is_busy {
                return Ok(step);
            }
            self.finish();
            self.lease(interval).await?;
            return Ok(Step {
                pause: interval,
                ..step
            });
        }
        Ok(Step {
            pause: interval,
            ..Step::default()
        })
    }

    async fn lease(&self, duration: Duration) -> Result<bool> {
        let lease = self.store.lease(CLAIMS, &self.holder, duration).await?;
        Ok(lease.is_some())
    }

    /// Says what was done since the last pause, and begins anew.
    fn finish(&mut self) {
        let (expired, removed) = (self.expired, self.removed);
        if expired + removed > 0 {
            tracing::info!(expired, removed, "claims have outlived their time");
        }
        if self.callbacks > 0 {
            tracing::info!(
                removed = self.callbacks,
                "callbacks have outlived their time"
            );
        }
        metrics::counter!("orderonce_claims_expired_total").increment(expired);
        metrics::counter!("orderonce_claims_removed_total").increment(removed);
        (self.expired, self.removed, self.callbacks) = (0, 0, 0);
        (self.expire_from, self.remove_from) = (Timestamp(0), Timestamp(0));
    }
}
