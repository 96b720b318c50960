//! What the demo found, as data and as a table.

use super::Naive;
use crate::broker::embedded::Kept;
use crate::domain::{Currency, Layer, Money, Outcome};
use crate::ops::{online_retail, reconcile};
use comfy_table::{Cell, CellAlignment, Table};
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
    /// Deliveries to the roles.
    pub deliveries: u64,
    /// Times the workers were killed.
    pub kills: u32,
    /// Deliveries by outcome.
    pub outcomes: BTreeMap<&'static str, u64>,
    /// Duplicates by the layer that saw them.
    pub duplicates: BTreeMap<&'static str, u64>,
    /// Deliveries whose outcome a kill cut off; each came again.
    pub interrupted: u64,
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
    pub(super) kills: u32,
    pub(super) log: &'a str,
    pub(super) seconds: Duration,
}

impl Report {
    pub(super) fn new(facts: Facts<'_>, reconciliation: reconcile::Report, naive: Naive) -> Self {
        let mut messages: Vec<_> = facts.kept.iter().map(|kept| &kept.message_id).collect();
        messages.sort_unstable();
        messages.dedup();
        let deliveries = facts
            .kept
            .iter()
            .map(|kept| u64::from(kept.deliveries))
            .sum();
        let (outcomes, duplicates) = count(facts.log);
        let told: u64 = outcomes.values().sum();
        Self {
            orders: facts.day.orders,
            lines: facts.day.lines,
            messages: messages.len().try_into().unwrap_or(u64::MAX),
            shop_messages: facts.external.try_into().unwrap_or(u64::MAX),
            deliveries,
            kills: facts.kills,
            interrupted: deliveries.saturating_sub(told),
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

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut table = Table::new();
        table.load_preset(comfy_table::presets::UTF8_HORIZONTAL_ONLY);
        let mut row = |what: &str, count: String, remark: String| {
            let count = Cell::new(count).set_alignment(CellAlignment::Right);
            table.add_row([Cell::new(what), count, Cell::new(remark)]);
        };
        row(
            "orders",
            self.orders.to_string(),
            format!("{} invoice lines of a real shop", self.lines),
        );
        row(
            "messages",
            self.messages.to_string(),
            format!(
                "{} from the shop, the rest between the roles",
                self.shop_messages
            ),
        );
        row(
            "deliveries",
            self.deliveries.to_string(),
            "copies and redeliveries counted".to_owned(),
        );
        row(
            "kills",
            self.kills.to_string(),
            "SIGKILL to the workers".to_owned(),
        );
        for name in Outcome::NAMES {
            let count = self.outcomes.get(name).copied().unwrap_or(0);
            let remark = if name == "duplicate" {
                let layers = self.duplicates.iter().filter(|(_, count)| **count > 0);
                let layers: Vec<_> = layers
                    .map(|(layer, count)| format!("{count} by {layer}"))
                    .collect();
                format!("seen by layer: {}", layers.join(", "))
            } else {
                remark(name).to_owned()
            };
            row(&format!("  {name}"), count.to_string(), remark);
        }
        row(
            "  interrupted",
            self.interrupted.to_string(),
            "cut off by a kill, came again".to_owned(),
        );
        writeln!(f, "{table}")?;

        let naive = &self.naive;
        let pounds = |minor| Money::new(minor, Currency::GBP).to_string();
        writeln!(
            f,
            "A consumer without any of this, on the same deliveries, would have"
        )?;
        writeln!(
            f,
            "  taken {} units from stock again, {} of them not there",
            naive.units_deducted_twice, naive.units_oversold
        )?;
        writeln!(
            f,
            "  credited {} points too many",
            naive.points_over_credited
        )?;
        writeln!(
            f,
            "  credited {} to customers again",
            pounds(naive.money_over_credited_minor)
        )?;
        writeln!(
            f,
            "  booked {} of payments again",
            pounds(naive.payments_double_booked_minor)
        )?;
        writeln!(f)?;
        if self.differences > 0 {
            writeln!(f, "{}", self.reconciliation)?;
        }
        writeln!(
            f,
            "differences: {} ({:.1} s)",
            self.differences, self.seconds
        )
    }
}

fn remark(outcome: &str) -> &'static str {
    match outcome {
        "applied" => "took effect, once",
        "conflict" => "same key, other content",
        "parked" => "came too early, waited in the database",
        "stale" => "came too late to matter",
        "rejected" => "the business said no",
        "retried" => "failed, delivered again later",
        "dead" => "kept in the dead-letter table",
        _ => "",
    }
}
