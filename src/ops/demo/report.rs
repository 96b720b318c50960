//! What the demo found, as data and as a table.

use super::Naive;
use crate::broker::embedded::Kept;
use crate::domain::{Currency, Layer, Money, Outcome};
use crate::ops::table::{Table, grouped};
use crate::ops::{online_retail, reconcile};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;
use strum::IntoEnumIterator;

/// What the demo found.
#[derive(Debug, Clone, Serialize)]
pub struct Report {
    /// Orders of the day.
    pub orders: u64,
    /// Invoice lines of the day.
    pub lines: u64,
    /// Different messages: those of the shop, and those that the roles sent each other.
    pub messages: u64,
    /// Of these, the shop's.
    pub shop_messages: u64,
    /// Deliveries to the roles, as far as their outcome was told if the broker does not count them.
    pub deliveries: u64,
    /// Times the workers were killed.
    pub kills: u32,
    /// Deliveries by outcome.
    pub outcomes: BTreeMap<&'static str, u64>,
    /// Duplicates by the layer that saw them.
    pub duplicates: BTreeMap<&'static str, u64>,
    /// Deliveries whose outcome a kill cut off, if the broker counts them; each came again.
    pub interrupted: Option<u64>,
    /// Differences that reconciliation found.
    pub differences: usize,
    /// The reconciliation.
    pub reconciliation: reconcile::Report,
    /// What a consumer without any of this would have done.
    pub naive: Naive,
    /// Seconds that everything took.
    pub seconds: f64,
}

/// What a report is made of.
pub(super) struct Facts<'a> {
    pub(super) day: &'a online_retail::Report,
    pub(super) external: usize,
    pub(super) kept: &'a [Kept],
    /// Deliveries to the roles, if the broker tells.
    pub(super) deliveries: Option<u64>,
    pub(super) kills: u32,
    pub(super) log: &'a str,
    pub(super) seconds: Duration,
}

impl Report {
    pub(super) fn new(facts: Facts<'_>, reconciliation: reconcile::Report, naive: Naive) -> Self {
        let mut messages: Vec<_> = facts.kept.iter().map(|kept| &kept.message_id).collect();
        messages.sort_unstable();
        messages.dedup();
        let (outcomes, duplicates) = count(facts.log);
        let told: u64 = outcomes.values().sum();
        Self {
            orders: facts.day.orders,
            lines: facts.day.lines,
            messages: messages.len().try_into().unwrap_or(u64::MAX),
            shop_messages: facts.external.try_into().unwrap_or(u64::MAX),
            deliveries: facts.deliveries.unwrap_or(told),
            kills: facts.kills,
            interrupted: facts.deliveries.map(|all| all.saturating_sub(told)),
            outcomes,
            duplicates,
            differences: reconciliation.differences,
            reconciliation,
            naive,
            seconds: (facts.seconds.as_secs_f64() * 1000.0).round() / 1000.0,
        }
    }
}

/// Outcomes, and duplicates by layer, as the workers' log tells them.
fn count(log: &str) -> (BTreeMap<&'static str, u64>, BTreeMap<&'static str, u64>) {
    #[derive(Deserialize)]
    struct Line<'a> {
        #[serde(borrow)]
        message_id: Option<&'a str>,
        outcome: Option<&'a str>,
        layer: Option<&'a str>,
    }
    let mut outcomes: BTreeMap<_, _> = Outcome::NAMES.iter().map(|&name| (name, 0)).collect();
    let mut layers: BTreeMap<_, _> = Layer::iter().map(|layer| (layer.into(), 0)).collect();
    for line in log.lines() {
        // A line that a kill cut off tells nothing.
        let Ok(line) = serde_json::from_str::<Line<'_>>(line) else {
            continue;
        };
        let counter = line.outcome.and_then(|outcome| outcomes.get_mut(outcome));
        if let (Some(counter), Some(_)) = (counter, line.message_id) {
            *counter += 1;
        }
        if let Some(counter) = line.layer.and_then(|layer| layers.get_mut(layer)) {
            *counter += 1;
        }
    }
    (outcomes, layers)
}

/// What the day was, what became of its deliveries, what would have become of them, and the verdict.
impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{}", self.day())?;
        writeln!(f, "{}", self.by_outcome())?;
        writeln!(f, "{}", self.without())?;
        if !self.reconciliation.is_clean() {
            writeln!(f, "{}", self.reconciliation)?;
        }
        let verdict = if self.reconciliation.is_clean() {
            "every effect happened once"
        } else {
            "something happened twice, or not at all"
        };
        let (differences, seconds) = (self.differences, self.seconds);
        writeln!(f, "differences: {differences}, {verdict} ({seconds:.1} s)")
    }
}

impl Report {
    fn day(&self) -> Table {
        let mut table = Table::new(&["the day", "count", ""], &["count"]);
        let mut row = |what: &str, count: u64, remark: &str| {
            table.row([what.to_owned(), grouped(count), remark.to_owned()]);
        };
        let lines = format!("{} invoice lines of a real shop", grouped(self.lines));
        row("orders", self.orders, &lines);
        let of_shop = grouped(self.shop_messages);
        let messages = format!("{of_shop} from the shop, the rest between the roles");
        row("messages", self.messages, &messages);
        row(
            "deliveries",
            self.deliveries,
            "copies and redeliveries counted",
        );
        row("kills", self.kills.into(), "SIGKILL to the workers");
        table
    }

    fn by_outcome(&self) -> Table {
        let mut table = Table::new(&["outcome", "deliveries", ""], &["deliveries"]);
        let mut row = |name: &str, count: u64, remark: String| {
            table.row([name.to_owned(), grouped(count), remark]);
        };
        for name in Outcome::NAMES {
            let count = self.outcomes.get(name).copied().unwrap_or(0);
            let layers = self.duplicates.iter().filter(|(_, count)| **count > 0);
            let layers: Vec<_> = layers
                .map(|(layer, &count)| format!("{} by {layer}", grouped(count)))
                .collect();
            if name == "duplicate" && !layers.is_empty() {
                row(
                    name,
                    count,
                    format!("had no effect, seen {}", layers.join(", ")),
                );
            } else {
                row(name, count, remark(name).to_owned());
            }
        }
        let interrupted = "cut off by a kill, came again".to_owned();
        if let Some(count) = self.interrupted {
            row("interrupted", count, interrupted);
        }
        table
    }

    fn without(&self) -> Table {
        let naive = &self.naive;
        let header = &["a consumer without any of this", "would have"];
        let mut table = Table::new(header, &["a consumer without any of this"]);
        let mut row = |amount: String, what: &str| table.row([amount, what.to_owned()]);
        let pounds = |minor| grouped(Money::new(minor, Currency::GBP));
        let units = |units| format!("{} units", grouped(units));
        row(units(naive.units_deducted_twice), "taken from stock again");
        row(units(naive.units_oversold), "sold that were not there");
        let points = format!("{} points", grouped(naive.points_over_credited));
        row(points, "credited again");
        row(
            pounds(naive.money_over_credited_minor),
            "credited to customers again",
        );
        row(
            pounds(naive.payments_double_booked_minor),
            "of payments booked again",
        );
        table
    }
}

fn remark(outcome: &str) -> &'static str {
    match outcome {
        "applied" => "took effect, once",
        "duplicate" => "had no effect",
        "conflict" => "same key, other content",
        "parked" => "came too early, waited in the database",
        "stale" => "came too late to matter",
        "rejected" => "the business said no",
        "retried" => "failed, delivered again later",
        "dead" => "kept in the dead-letter table",
        _ => "",
    }
}
