//! The right to be the only one at work, for a time.

use super::Result;
use crate::store::{Lease, Store};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// A lease that a loop takes, renews and gives back.
pub(super) struct Held {
    store: Arc<dyn Store>,
    name: &'static str,
    /// A name that no other process has.
    holder: String,
    duration: Duration,
    /// With the time at which it was asked for: it began later.
    lease: Option<(Lease, Instant)>,
}

impl Held {
    /// The lease `name`, not yet taken.
    pub(super) fn new(
        store: Arc<dyn Store>,
        name: &'static str,
        holder: String,
        duration: Duration,
    ) -> Self {
        Self {
            store,
            name,
            holder,
            duration,
            lease: None,
        }
    }

    /// The lease, renewed once half of it is over. `None` while somebody else holds it.
    pub(super) async fn hold(&mut self) -> Result<Option<Lease>> {
        if let Some((lease, asked)) = self.lease
            && asked.elapsed() < self.duration / 2
        {
            return Ok(Some(lease));
        }
        let asked = Instant::now();
        let lease = self
            .store
            .lease(self.name, &self.holder, self.duration)
            .await?;
        self.lease = lease.map(|lease| (lease, asked));
        Ok(lease)
    }

    /// Somebody else took over: it is asked for anew.
    pub(super) fn lose(&mut self) {
        self.lease = None;
    }

    /// Gives it back, so that another holder need not wait for its end.
    pub(super) async fn give_back(self) -> Result<()> {
        if let Some((lease, _)) = self.lease {
            self.store.give_back_lease(self.name, lease).await?;
        }
        Ok(())
    }
}
