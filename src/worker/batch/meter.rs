//! What a role counts and measures. The series are looked up once, since there may be many events in a second.

use super::Settled;
use crate::domain::{Layer, Outcome, RoleName};
use metrics::{Counter, Histogram, counter, histogram};
use std::time::Duration;
use strum::{EnumIter, IntoEnumIterator, IntoStaticStr};

/// A step of the path of a batch, as it is measured.
#[derive(Debug, Clone, Copy, PartialEq, Eq, EnumIter, IntoStaticStr)]
#[strum(serialize_all = "snake_case")]
pub(super) enum Step {
    Decode,
    Key,
    Ask,
    Claim,
    Load,
    Decide,
    Write,
    Commit,
    Settle,
}

/// The series of a role.
pub(super) struct Meter {
    /// In the order of [`slot`].
    outcomes: Vec<Counter>,
    batches: Histogram,
    latency: Histogram,
    /// In the order of [`Step`].
    steps: Vec<Histogram>,
    again: Counter,
    late: Counter,
}

impl Meter {
    pub(super) fn new(role: &RoleName) -> Self {
        let role = role.as_str().to_owned();
        let outcome = |(outcome, layer): (&'static str, &'static str)| counter!("orderonce_outcomes_total", "role" => role.clone(), "outcome" => outcome, "layer" => layer);
        let step = |step: Step| {
            let step: &'static str = step.into();
            histogram!("orderonce_step_seconds", "role" => role.clone(), "step" => step)
        };
        Self {
            outcomes: slots().into_iter().map(outcome).collect(),
            batches: histogram!("orderonce_batch_deliveries", "role" => role.clone()),
            latency: histogram!("orderonce_commit_latency_seconds", "role" => role.clone()),
            steps: Step::iter().map(step).collect(),
            again: counter!("orderonce_decided_again_total", "role" => role.clone()),
            late: counter!("orderonce_expired_duplicates_total", "role" => role.clone()),
        }
    }

    /// Counts what became of the events of a batch.
    pub(super) fn outcomes(&self, settled: &[Settled]) {
        let mut counts = vec![0_u64; self.outcomes.len()];
        for item in settled.iter().flat_map(|settled| &settled.items) {
            if let Some(count) = counts.get_mut(slot(&item.outcome)) {
                *count += 1;
            }
        }
        for (counter, count) in self.outcomes.iter().zip(counts) {
            if count > 0 {
                counter.increment(count);
            }
        }
    }

    pub(super) fn batch(&self, deliveries: usize) {
        self.batches
            .record(f64::from(u32::try_from(deliveries).unwrap_or(u32::MAX)));
    }

    /// From what a message states to the commit of its effects.
    pub(super) fn latency(&self, latency: Duration) {
        self.latency.record(latency);
    }

    pub(super) fn step(&self, step: Step, took: Duration) {
        if let Some(histogram) = self.steps.get(step as usize) {
            histogram.record(took);
        }
    }

    /// An attempt lost a race.
    pub(super) fn again(&self) {
        self.again.increment(1);
    }

    /// So many duplicates met claims that had expired.
    pub(super) fn late(&self, duplicates: u64) {
        if duplicates > 0 {
            self.late.increment(duplicates);
        }
    }
}

/// Where an outcome is counted.
fn slot(outcome: &Outcome) -> usize {
    match outcome {
        Outcome::Applied => 0,
        Outcome::Conflict => 1,
        Outcome::Parked(_) => 2,
        Outcome::Stale => 3,
        Outcome::Rejected(_) => 4,
        Outcome::Retried { .. } => 5,
        Outcome::Dead(_) => 6,
        Outcome::Duplicate(layer) => 7 + *layer as usize,
    }
}

/// The outcome and layer of each slot.
fn slots() -> Vec<(&'static str, &'static str)> {
    let others = [
        "applied", "conflict", "parked", "stale", "rejected", "retried", "dead",
    ];
    let others = others.into_iter().map(|outcome| (outcome, ""));
    let duplicates = Layer::iter().map(|layer| ("duplicate", layer.into()));
    others.chain(duplicates).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::{DeadReason, Rejection, Token};

    #[test]
    fn every_outcome_has_a_slot_of_its_name_and_layer() {
        let others = [
            Outcome::Applied,
            Outcome::Conflict,
            Outcome::Parked(Token::stored("order:O1:PAID")),
            Outcome::Stale,
            Outcome::Rejected(Rejection::NotPaid),
            Outcome::Retried {
                attempt: 1,
                delay: Duration::ZERO,
            },
            Outcome::Dead(DeadReason::Malformed),
        ];
        let duplicates = Layer::iter().map(Outcome::Duplicate);
        let all: Vec<_> = others.into_iter().chain(duplicates).collect();
        assert_eq!(all.len(), slots().len());
        for outcome in all {
            let layer = outcome.layer().map_or("", Into::into);
            assert_eq!(slots()[slot(&outcome)], (outcome.name(), layer));
        }
    }

    #[test]
    fn every_step_has_a_place() {
        for (place, step) in Step::iter().enumerate() {
            assert_eq!(step as usize, place);
        }
        assert_eq!(Step::iter().count(), 9);
    }
}
