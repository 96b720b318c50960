//! What is told at `/metrics` that nobody passes by while working: what waits, and how far queues have filled.

use crate::broker::{Broker, Depth};
use crate::domain::{RoleName, Timestamp};
use crate::store::{Backlog, Occupancy, Store, Waiting};
use crate::telemetry::metrics::{gauged, keep_up};
use metrics::gauge;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::timeout;

/// How long an answer is waited for. What has none keeps its last value.
const PATIENCE: Duration = Duration::from_secs(5);

/// The shortest pause between two looks.
const PAUSE: Duration = Duration::from_secs(5);

/// Looks at database and broker now and then.
pub(super) struct Watch {
    store: Arc<dyn Store>,
    broker: Arc<dyn Broker>,
    roles: Vec<RoleName>,
}

impl Watch {
    pub(super) fn new(
        store: Arc<dyn Store>,
        broker: Arc<dyn Broker>,
        roles: Vec<RoleName>,
    ) -> Self {
        Self {
            store,
            broker,
            roles,
        }
    }

    /// Looks for as long as it is polled, as often as `interval` says, and every five seconds at most.
    pub(super) async fn run(&self, interval: Duration) {
        loop {
            self.run_once().await;
            tokio::time::sleep(interval.max(PAUSE)).await;
        }
    }

    pub(super) async fn run_once(&self) {
        keep_up();
        tell_occupancy(self.store.occupancy());
        let store = Arc::clone(&self.store);
        // In a task of its own, which nobody cancels: so is every statement.
        let backlog = tokio::spawn(async move { store.backlog().await });
        if let Ok(Ok(Ok(backlog))) = timeout(PATIENCE, backlog).await {
            tell_backlog(&backlog);
        }
        for role in &self.roles {
            let broker = Arc::clone(&self.broker);
            let of_role = role.clone();
            let depth = tokio::spawn(async move { broker.depth(&of_role).await });
            if let Ok(Ok(Ok(depth))) = timeout(PATIENCE, depth).await {
                tell_depth(role, depth);
            }
        }
    }
}

fn tell_occupancy(occupancy: Occupancy) {
    gauge!("orderonce_store_connections", "state" => "in_use").set(gauged(occupancy.in_use));
    gauge!("orderonce_store_connections", "state" => "idle").set(gauged(occupancy.idle));
    if let Some(waiting) = occupancy.waiting {
        gauge!("orderonce_store_waiting").set(gauged(waiting));
    }
}

fn tell_backlog(backlog: &Backlog) {
    let Backlog {
        outbox,
        parked,
        dead,
        now,
    } = backlog;
    gauge!("orderonce_outbox_rows").set(gauged(outbox.rows));
    gauge!("orderonce_outbox_oldest_age_seconds").set(age(*now, *outbox));
    gauge!("orderonce_parked_rows").set(gauged(parked.rows));
    gauge!("orderonce_parked_oldest_age_seconds").set(age(*now, *parked));
    gauge!("orderonce_dead_letters_open").set(gauged(*dead));
    gauge!("orderonce_store_sampled_time_seconds").set(seconds(now.0));
}

/// By the database's clock; 0 if nothing waits.
fn age(now: Timestamp, waiting: Waiting) -> f64 {
    let since = waiting.oldest.unwrap_or(now);
    seconds(now.0.saturating_sub(since.0))
}

fn seconds(milliseconds: i64) -> f64 {
    let milliseconds = u64::try_from(milliseconds).unwrap_or(0);
    Duration::from_millis(milliseconds).as_secs_f64()
}

fn tell_depth(role: &RoleName, depth: Depth) {
    for (state, messages) in [
        ("ready", depth.ready),
        ("delayed", depth.delayed),
        ("crashed", depth.crashed),
    ] {
        let role = role.as_str().to_owned();
        gauge!("orderonce_queue_messages", "role" => role, "state" => state).set(gauged(messages));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_age_is_that_of_the_oldest_and_never_below_zero() {
        let now = Timestamp(10_500);
        let waiting = |oldest: Option<i64>| Waiting {
            rows: 1,
            oldest: oldest.map(Timestamp),
        };
        assert_eq!(age(now, waiting(Some(9_000))), 1.5);
        assert_eq!(age(now, waiting(None)), 0.0);
        assert_eq!(age(now, waiting(Some(11_000))), 0.0, "its clock was ahead");
    }
}
