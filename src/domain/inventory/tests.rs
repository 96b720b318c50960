//! The reservation's table: every event of the inventory in every status.

mod properties;

use super::*;
use crate::domain::testing::{
    StockRows, check_table, closed, created, id, lines, show_rest, show_verdict,
};
use crate::domain::{EventType, RoleName};
use strum::IntoEnumIterator;

fn returned(return_id: &str, goods: &[(&str, i64)]) -> InventoryEvent {
    InventoryEvent::Return(StockReturn {
        return_id: id(return_id),
        order_id: id("O1"),
        lines: lines(goods),
    })
}

fn adjust(adjustment: Adjustment, version: Option<i64>) -> InventoryEvent {
    adjust_as("A1", "S3", adjustment, version)
}

fn adjust_as(
    adjustment_id: &str,
    sku_id: &str,
    adjustment: Adjustment,
    version: Option<i64>,
) -> InventoryEvent {
    InventoryEvent::Adjust(StockAdjust {
        adjustment_id: id(adjustment_id),
        sku_id: id(sku_id),
        adjustment,
        version,
        reason: None,
    })
}

/// Where the reservation of O1 stands before the event. There were 5 of S1, 1 of S2, and 7 of S3 in
/// two flows. It can be DEDUCTED with 2 of S1 and 1 of S2 out, or with nothing out any more
/// (DEDUCTED_BACK), and RELEASED after or without a deduction (RELEASED_FIRST).
pub(in crate::domain) fn columns() -> Vec<(&'static str, StockRows)> {
    let fits = created("O1", &[("S1", 2), ("S2", 1)]);
    let back = returned("R0", &[("S1", 2), ("S2", 1)]);
    let columns: [(_, &[InventoryEvent]); 6] = [
        ("none", &[]),
        ("DEDUCTED", std::slice::from_ref(&fits)),
        ("DEDUCTED_BACK", &[fits.clone(), back]),
        ("REJECTED", &[created("O1", &[("S1", 6)])]),
        ("RELEASED", &[fits.clone(), closed("O1")]),
        ("RELEASED_FIRST", &[closed("O1")]),
    ];
    let rows = |(name, events): (_, &[InventoryEvent])| {
        let mut rows = StockRows::with(&[("S1", 5), ("S2", 1), ("S3", 6)]);
        let before = adjust_as("A0", "S3", Adjustment::Change(1), None);
        for event in [before].iter().chain(events) {
            assert_eq!(rows.handle(event).verdict, Verdict::Applied, "{event:?}");
        }
        (name, rows)
    };
    columns.into_iter().map(rows).collect()
}

/// Every event with its variants.
#[rustfmt::skip]
pub(in crate::domain) fn events() -> Vec<(&'static str, InventoryEvent)> {
    use Adjustment::{Change, Set};
    vec![
        ("order.created, fits", created("O1", &[("S2", 1), ("S1", 2)])),
        ("order.created, fits to the last", created("O1", &[("S1", 5), ("S2", 1)])),
        ("order.created, one line does not fit", created("O1", &[("S1", 1), ("S2", 2)])),
        ("order.created, same SKU twice, fits", created("O1", &[("S1", 2), ("S1", 1)])),
        ("order.created, same SKU twice, fits but for the sum", created("O1", &[("S1", 3), ("S1", 3)])),
        ("order.created, sum beyond the range", created("O1", &[("S1", i64::MAX), ("S1", i64::MAX)])),
        ("order.created, unknown SKU", created("O1", &[("S9", 1)])),
        ("order.created, nothing but charges", created("O1", &[])),
        ("order.closed", closed("O1")),
        ("stock.return, part", returned("R1", &[("S1", 1)])),
        ("stock.return, all", returned("R1", &[("S1", 2), ("S2", 1)])),
        ("stock.return, same SKU twice", returned("R1", &[("S1", 1), ("S1", 1)])),
        ("stock.return, more than is out", returned("R1", &[("S1", 9), ("S2", 1)])),
        ("stock.return, SKU that is not of the order", returned("R1", &[("S3", 1)])),
        ("stock.return, number of the first", returned("R0", &[("S1", 2)])),
        ("stock.adjust, set", adjust(Set(10), Some(2))),
        ("stock.adjust, set to less", adjust(Set(0), Some(2))),
        ("stock.adjust, set, other version", adjust(Set(10), Some(1))),
        ("stock.adjust, set below zero", adjust(Set(-1), Some(2))),
        ("stock.adjust, change up", adjust(Change(3), None)),
        ("stock.adjust, change down to nothing", adjust(Change(-7), Some(2))),
        ("stock.adjust, change, other version", adjust(Change(3), Some(3))),
        ("stock.adjust, change below zero", adjust(Change(-8), None)),
        ("stock.adjust, change beyond the range", adjust(Change(i64::MAX), None)),
        ("stock.adjust, new SKU", adjust_as("A1", "S9", Set(4), Some(0))),
        ("stock.adjust, new SKU, other version", adjust_as("A1", "S9", Set(4), Some(1))),
        ("stock.adjust, once more", adjust_as("A0", "S3", Change(1), None)),
    ]
}

/// `-> S` a new status; changes of stock by SKU; `+` events; `!` tokens reached.
const TABLE: &str = "
order.created, fits
    none: -> DEDUCTED S1-2 S2-1 +stock.deducted !DEDUCTED
    DEDUCTED DEDUCTED_BACK REJECTED: duplicate
    RELEASED RELEASED_FIRST: stale
order.created, fits to the last
    none: -> DEDUCTED S1-5 S2-1 +stock.deducted !DEDUCTED
    DEDUCTED DEDUCTED_BACK REJECTED: duplicate
    RELEASED RELEASED_FIRST: stale
order.created, one line does not fit
    none: -> REJECTED +stock.rejected !DEDUCTED
    DEDUCTED DEDUCTED_BACK REJECTED: duplicate
    RELEASED RELEASED_FIRST: stale
order.created, same SKU twice, fits
    none: -> DEDUCTED S1-3 +stock.deducted !DEDUCTED
    DEDUCTED DEDUCTED_BACK REJECTED: duplicate
    RELEASED RELEASED_FIRST: stale
order.created, same SKU twice, fits but for the sum
    none: -> REJECTED +stock.rejected !DEDUCTED
    DEDUCTED DEDUCTED_BACK REJECTED: duplicate
    RELEASED RELEASED_FIRST: stale
order.created, sum beyond the range
    none: -> REJECTED +stock.rejected !DEDUCTED
    DEDUCTED DEDUCTED_BACK REJECTED: duplicate
    RELEASED RELEASED_FIRST: stale
order.created, unknown SKU
    none: -> REJECTED +stock.rejected !DEDUCTED
    DEDUCTED DEDUCTED_BACK REJECTED: duplicate
    RELEASED RELEASED_FIRST: stale
order.created, nothing but charges
    none: -> DEDUCTED +stock.deducted !DEDUCTED
    DEDUCTED DEDUCTED_BACK REJECTED: duplicate
    RELEASED RELEASED_FIRST: stale

order.closed
    none: -> RELEASED !DEDUCTED
    DEDUCTED: -> RELEASED S1+2 S2+1
    DEDUCTED_BACK: -> RELEASED
    REJECTED RELEASED RELEASED_FIRST: stale

stock.return, part
    none: park DEDUCTED
    DEDUCTED: S1+1
    DEDUCTED_BACK: rejected nothing_out
    REJECTED RELEASED RELEASED_FIRST: rejected nothing_deducted
stock.return, all
    none: park DEDUCTED
    DEDUCTED: S1+2 S2+1
    DEDUCTED_BACK: rejected nothing_out
    REJECTED RELEASED RELEASED_FIRST: rejected nothing_deducted
stock.return, same SKU twice
    none: park DEDUCTED
    DEDUCTED: S1+2
    DEDUCTED_BACK: rejected nothing_out
    REJECTED RELEASED RELEASED_FIRST: rejected nothing_deducted
stock.return, more than is out
    none: park DEDUCTED
    DEDUCTED: S1+2 S2+1
    DEDUCTED_BACK: rejected nothing_out
    REJECTED RELEASED RELEASED_FIRST: rejected nothing_deducted
stock.return, SKU that is not of the order
    none: park DEDUCTED
    DEDUCTED DEDUCTED_BACK: rejected nothing_out
    REJECTED RELEASED RELEASED_FIRST: rejected nothing_deducted
stock.return, number of the first
    none: park DEDUCTED
    DEDUCTED: S1+2
    DEDUCTED_BACK: duplicate
    REJECTED RELEASED RELEASED_FIRST: rejected nothing_deducted

stock.adjust, set
    none DEDUCTED DEDUCTED_BACK REJECTED RELEASED RELEASED_FIRST: S3+3
stock.adjust, set to less
    none DEDUCTED DEDUCTED_BACK REJECTED RELEASED RELEASED_FIRST: S3-7
stock.adjust, set, other version
    none DEDUCTED DEDUCTED_BACK REJECTED RELEASED RELEASED_FIRST: rejected version_mismatch
stock.adjust, set below zero
    none DEDUCTED DEDUCTED_BACK REJECTED RELEASED RELEASED_FIRST: rejected insufficient_stock
stock.adjust, change up
    none DEDUCTED DEDUCTED_BACK REJECTED RELEASED RELEASED_FIRST: S3+3
stock.adjust, change down to nothing
    none DEDUCTED DEDUCTED_BACK REJECTED RELEASED RELEASED_FIRST: S3-7
stock.adjust, change, other version
    none DEDUCTED DEDUCTED_BACK REJECTED RELEASED RELEASED_FIRST: rejected version_mismatch
stock.adjust, change below zero
    none DEDUCTED DEDUCTED_BACK REJECTED RELEASED RELEASED_FIRST: rejected insufficient_stock
stock.adjust, change beyond the range
    none DEDUCTED DEDUCTED_BACK REJECTED RELEASED RELEASED_FIRST: rejected amount_overflow
stock.adjust, new SKU
    none DEDUCTED DEDUCTED_BACK REJECTED RELEASED RELEASED_FIRST: S9+4
stock.adjust, new SKU, other version
    none DEDUCTED DEDUCTED_BACK REJECTED RELEASED RELEASED_FIRST: rejected version_mismatch
stock.adjust, once more
    none DEDUCTED DEDUCTED_BACK REJECTED RELEASED RELEASED_FIRST: duplicate
";

fn show(decision: &InventoryDecision) -> String {
    let mut words: Vec<String> = Vec::new();
    if let Some(reservation) = &decision.writes.reservation {
        words.push(format!("-> {}", reservation.status));
    }
    let flows = decision.writes.flows.iter();
    words.extend(flows.map(|flow| format!("{}{:+}", flow.sku_id, flow.qty)));
    let token = "stock:O1:";
    show_verdict(&decision.verdict, words.join(" "), token) + &show_rest(decision, token)
}

#[test]
fn every_event_in_every_status_is_decided_as_the_table_says() {
    let (events, columns) = (events(), columns());
    let rows: Vec<&str> = events.iter().map(|&(name, _)| name).collect();
    let names: Vec<&str> = columns.iter().map(|&(name, _)| name).collect();
    check_table(TABLE, &rows, &names, |row, column| {
        show(&columns[column].1.decide(&events[row].1))
    });
}

#[test]
fn the_table_has_every_status_and_every_event_of_the_inventory() {
    for (name, rows) in columns() {
        let row = rows.reservations.get(&id::<OrderId>("O1"));
        let status = row.map_or("none", |row| row.status.into());
        assert!(name.starts_with(status), "{name} is {status}");
    }
    for status in ReservationStatus::iter() {
        let name: &str = status.into();
        assert!(
            columns().iter().any(|&(column, _)| column == name),
            "{name}"
        );
    }
    for (name, event) in events() {
        assert_eq!(name.split(',').next(), Some(event.event_type().name()));
    }
    for kind in EventType::iter() {
        let consumed = kind.consumer() == Some(RoleName::INVENTORY);
        let listed = events().iter().any(|(_, event)| event.event_type() == kind);
        assert_eq!(consumed, listed, "{kind}");
    }
}

#[test]
fn a_rejection_tells_what_is_missing() {
    let rows = StockRows::with(&[("S1", 5), ("S2", 1)]);
    let event = created("O1", &[("S1", 3), ("S2", 1), ("S1", 3), ("S9", 1)]);
    let shortage = |sku_id, wanted, available| Shortage {
        sku_id: id(sku_id),
        wanted,
        available,
    };
    let rejected = StockRejected {
        order_id: id("O1"),
        shortages: vec![shortage("S1", 6, 5), shortage("S9", 1, 0)],
    };
    let rejected = Event::Order(OrderEvent::StockRejected(rejected));
    assert_eq!(rows.decide(&event).emits, [rejected]);
}
