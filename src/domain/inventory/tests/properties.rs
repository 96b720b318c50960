//! What holds after any sequence of events of several orders that share their SKUs.

use super::*;
use proptest::prelude::*;
use proptest::sample::Index;
use std::collections::HashSet;

const SKUS: [&str; 3] = ["S1", "S2", "S3"];

fn some_goods() -> impl Strategy<Value = Vec<(&'static str, i64)>> {
    let line = (any::<Index>(), 1_i64..4).prop_map(|(sku, qty)| (*sku.get(&SKUS), qty));
    proptest::collection::vec(line, 1..4)
}

/// Events of three orders, no two of them with one key.
fn different_events() -> impl Strategy<Value = Vec<InventoryEvent>> {
    let ends = some_goods().prop_flat_map(|goods| {
        let other = proptest::collection::vec(some_goods(), 0..4);
        (Just(goods), other)
    });
    let orders = proptest::collection::vec(ends, 3).prop_map(|orders| {
        let mut events = Vec::new();
        for (n, (goods, returns)) in orders.iter().enumerate() {
            let order_id = format!("O{n}");
            events.extend([created(&order_id, goods), closed(&order_id)]);
            for (r, goods) in returns.iter().enumerate() {
                events.push(InventoryEvent::Return(StockReturn {
                    return_id: id(&format!("R{n}{r}")),
                    order_id: id(&order_id),
                    lines: lines(goods),
                }));
            }
        }
        events
    });
    let adjustment = prop_oneof![
        (0_i64..10, 0_i64..4).prop_map(|(level, seen)| (Adjustment::Set(level), Some(seen))),
        (-3_i64..6).prop_map(|change| (Adjustment::Change(change), None)),
    ];
    let adjustments = proptest::collection::vec((any::<Index>(), adjustment), 1..8);
    (orders, adjustments).prop_map(|(mut events, adjustments)| {
        for (n, (sku, (adjustment, version))) in adjustments.into_iter().enumerate() {
            let &sku_id = sku.get(&SKUS);
            let event = adjust_as(&format!("A{n}"), sku_id, adjustment, version);
            events.push(event);
        }
        events
    })
}

/// Those events, each up to three times, in any order.
fn sequences() -> impl Strategy<Value = Vec<InventoryEvent>> {
    different_events().prop_flat_map(|events| {
        let picks = proptest::collection::vec(any::<Index>(), 0..40);
        let all = [events.clone(), events.clone()].concat();
        (Just(events), Just(all).prop_shuffle(), picks).prop_map(|(events, mut all, picks)| {
            all.extend(picks.iter().map(|pick| pick.get(&events).clone()));
            all
        })
    })
}

fn assert_sound(rows: &StockRows) {
    for (sku_id, row) in &rows.stock {
        let of_sku = rows.flows.iter().filter(|flow| flow.sku_id == *sku_id);
        assert!(row.available >= 0);
        let sum: i64 = of_sku.clone().map(|flow| flow.qty).sum();
        assert_eq!(row.available, sum);
        assert_eq!(i64::try_from(of_sku.count()), Ok(row.version));
    }
    for (order_id, reservation) in &rows.reservations {
        let mut out: HashMap<&SkuId, i64> = HashMap::new();
        for flow in &rows.flows {
            if flow.order_id.as_ref() == Some(order_id) {
                *out.entry(&flow.sku_id).or_default() -= flow.qty;
            }
        }
        assert!(out.values().all(|&out| out >= 0), "{out:?}");
        let nothing_out = out.values().all(|&out| out == 0);
        assert!(nothing_out || reservation.status == ReservationStatus::Deducted);
    }
}

proptest! {
    #[test]
    fn stock_is_the_sum_of_its_flows_and_never_negative(events in sequences()) {
        let mut rows = StockRows::with(&[("S1", 5), ("S2", 3)]);
        for event in &events {
            rows.handle(event);
            assert_sound(&rows);
        }
    }

    #[test]
    fn a_replay_changes_nothing_even_without_claims(events in sequences()) {
        let mut rows = StockRows::with(&[("S1", 5), ("S2", 3)]);
        let mut applied = HashSet::new();
        for event in &events {
            let before = rows.clone();
            let verdict = rows.handle(event).verdict;
            if applied.contains(&event.key()) {
                prop_assert_ne!(verdict, Verdict::Applied);
                prop_assert_eq!(&rows, &before);
            } else if verdict == Verdict::Applied {
                applied.insert(event.key());
            }
        }
    }

    #[test]
    fn nothing_is_parked_for_a_token_that_was_reached_before(events in sequences()) {
        let mut rows = StockRows::with(&[("S1", 5), ("S2", 3)]);
        let mut reached = Vec::new();
        for event in &events {
            let decision = rows.handle(event);
            if let Verdict::Parked(token) = &decision.verdict {
                prop_assert!(!reached.contains(token), "{}", token);
            }
            reached.extend(decision.reached);
        }
    }
}
