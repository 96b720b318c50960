//! One run over a stream, and what it cost.

use super::cpu::Cpu;
use super::feed::Feed;
use super::ground::Held;
use super::{Error, per};
use crate::domain::{Layer, Outcome};
use crate::store::Store;
use crate::worker::inventory::InventoryRole;
use crate::worker::{Processor, Settled, Worker};
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

/// How a run is done.
pub(super) struct Plan<'a> {
    pub(super) processor: Arc<Processor<InventoryRole>>,
    pub(super) store: &'a dyn Store,
    pub(super) batch_max: usize,
    pub(super) workers: usize,
    pub(super) stop: &'a CancellationToken,
}

/// What a run cost, from the start of its workers to the last settlement.
#[derive(Debug, Clone)]
pub(super) struct Cost {
    pub(super) deliveries: u64,
    pub(super) elapsed: Duration,
    pub(super) cpu: Cpu,
    /// Sent to the database.
    pub(super) statements: u64,
    pub(super) outcomes: Tally,
}

impl Cost {
    /// Deliveries a second.
    pub(super) fn speed(&self) -> f64 {
        1e6 / self.microseconds(self.elapsed).max(f64::MIN_POSITIVE)
    }

    /// Microseconds of a time for each delivery.
    pub(super) fn microseconds(&self, time: Duration) -> f64 {
        time.as_secs_f64() * 1e6 * per(1, self.deliveries)
    }
}

/// Deliveries by what became of them.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Tally {
    pub(super) applied: u64,
    pub(super) by_batch: u64,
    pub(super) by_gate: u64,
    pub(super) by_claim: u64,
    pub(super) by_flow: u64,
    /// Anything else, of which there must be nothing.
    pub(super) other: u64,
}

impl Tally {
    /// A delivery that is tried again is counted when it is decided.
    fn count(&mut self, settled: &[Settled]) {
        for item in settled.iter().flat_map(|settled| &settled.items) {
            match item.outcome {
                Outcome::Applied => self.applied += 1,
                Outcome::Duplicate(Layer::Batch) => self.by_batch += 1,
                Outcome::Duplicate(Layer::Gate) => self.by_gate += 1,
                Outcome::Duplicate(Layer::Claim) => self.by_claim += 1,
                Outcome::Duplicate(Layer::Flow) => self.by_flow += 1,
                Outcome::Retried { .. } => {}
                Outcome::Duplicate(Layer::Request | Layer::Parked)
                | Outcome::Conflict
                | Outcome::Parked(_)
                | Outcome::Stale
                | Outcome::Rejected(_)
                | Outcome::Dead(_) => self.other += 1,
            }
        }
    }

    fn add(&mut self, more: Self) {
        self.applied += more.applied;
        self.by_batch += more.by_batch;
        self.by_gate += more.by_gate;
        self.by_claim += more.by_claim;
        self.by_flow += more.by_flow;
        self.other += more.other;
    }

    pub(super) fn duplicates(&self) -> u64 {
        self.by_batch + self.by_gate + self.by_claim + self.by_flow
    }
}

/// Handles all that the feed holds. Must not be cancelled; it looks at `stop` between batches.
///
/// # Errors
/// [`Error::Worker`] if the database is away, [`Error::Interrupted`].
pub(super) async fn run(plan: &Plan<'_>, feed: &Arc<Feed>) -> Result<Cost, Error> {
    let workers: Vec<_> = (0..plan.workers)
        .map(|_| {
            let processor = Arc::clone(&plan.processor);
            Worker::new(processor, feed.consumer(), plan.batch_max)
        })
        .collect();
    let statements = plan.store.statements();
    let cpu = Cpu::now();
    let started = Instant::now();
    let mut tasks = JoinSet::new();
    for worker in workers {
        tasks.spawn(work(worker, plan.stop.clone()));
    }
    let mut outcomes = Tally::default();
    let mut failed = None;
    while let Some(done) = tasks.join_next().await {
        match done {
            Ok(Ok(tally)) => outcomes.add(tally),
            Ok(Err(error)) => failed = Some(error),
            Err(error) => {
                if let Ok(panic) = error.try_into_panic() {
                    std::panic::resume_unwind(panic);
                }
            }
        }
    }
    let elapsed = started.elapsed();
    let cpu = Cpu::now().since(cpu);
    let statements = plan.store.statements().saturating_sub(statements);
    if let Some(error) = failed {
        return Err(error);
    }
    Ok(Cost {
        deliveries: feed.len(),
        elapsed,
        cpu,
        statements,
        outcomes,
    })
}

async fn work(mut worker: Worker<InventoryRole>, stop: CancellationToken) -> Result<Tally, Error> {
    let mut tally = Tally::default();
    loop {
        if stop.is_cancelled() {
            return Err(Error::Interrupted);
        }
        let settled = worker.run_available().await?;
        if settled.is_empty() {
            return Ok(tally);
        }
        tally.count(&settled);
    }
}

/// What must come out of a run.
pub(super) struct Check {
    /// The run, for whoever reads that it failed.
    pub(super) what: String,
    pub(super) deliveries: u64,
    /// Different keys among the deliveries.
    pub(super) keys: u64,
    /// Units that their orders take.
    pub(super) units: i64,
}

impl Check {
    /// Each key took effect once, and every other delivery was a duplicate.
    ///
    /// # Errors
    /// [`Error::Wrong`].
    pub(super) fn outcomes(self, outcomes: Tally) -> Result<Self, Error> {
        let copies = self.deliveries.saturating_sub(self.keys);
        let keys = self.keys;
        self.same("orders applied", keys, outcomes.applied)?
            .same("duplicates", copies, outcomes.duplicates())?
            .same("other outcomes", 0_u64, outcomes.other)
    }

    /// Each key has its flow, and its units were taken once.
    ///
    /// # Errors
    /// [`Error::Wrong`].
    pub(super) fn effects(self, before: Held, after: Held) -> Result<Self, Error> {
        let (keys, units) = (self.keys, self.units);
        let flows = i128::from(after.flows) - i128::from(before.flows);
        let taken = i128::from(before.units) - i128::from(after.units);
        self.same("flows", keys, flows)?
            .same("units taken from stock", units, taken)
    }

    fn same(
        self,
        unit: &'static str,
        expected: impl Into<i128>,
        found: impl Into<i128>,
    ) -> Result<Self, Error> {
        let (expected, found) = (expected.into(), found.into());
        if expected == found {
            return Ok(self);
        }
        Err(Error::Wrong {
            what: self.what,
            unit,
            expected,
            found,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check() -> Check {
        Check {
            what: "50%, + filter".into(),
            deliveries: 10,
            keys: 5,
            units: 20,
        }
    }

    fn said(checked: Result<Check, Error>) -> String {
        checked.map_or_else(|error| error.to_string(), |_| "right".into())
    }

    #[test]
    fn an_order_that_took_effect_twice_or_never_is_told() {
        let right = Tally {
            applied: 5,
            by_batch: 1,
            by_gate: 2,
            by_claim: 1,
            by_flow: 1,
            other: 0,
        };
        let with = |change: fn(&mut Tally)| {
            let mut tally = right;
            change(&mut tally);
            said(check().outcomes(tally))
        };
        assert_eq!(with(|_| {}), "right");
        assert_eq!(
            with(|tally| tally.applied = 6),
            "50%, + filter: expected 5 orders applied, found 6"
        );
        assert_eq!(
            with(|tally| tally.by_gate = 1),
            "50%, + filter: expected 5 duplicates, found 4"
        );
        assert_eq!(
            with(|tally| tally.other = 1),
            "50%, + filter: expected 0 other outcomes, found 1"
        );
    }

    #[test]
    fn what_the_database_holds_must_agree() {
        let held = |flows, units| Held { flows, units };
        let effects = |after| said(check().effects(held(100, 1_000), after));
        assert_eq!(effects(held(105, 980)), "right");
        assert_eq!(
            effects(held(104, 980)),
            "50%, + filter: expected 5 flows, found 4"
        );
        assert_eq!(
            effects(held(105, 976)),
            "50%, + filter: expected 20 units taken from stock, found 24"
        );
    }
}
