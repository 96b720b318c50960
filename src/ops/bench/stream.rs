//! Deliveries of orders of one line each, some of them again.

use crate::broker::{Delivery, Headers, Tag};
use crate::domain::event::{Event, InventoryEvent, OrderCreated, StockLine};
use crate::domain::{Key, OrderId, Timestamp, UserId};
use crate::message::{self, Meta, Outgoing};

/// What a run is fed with, and what must come out of it.
pub(super) struct Stream {
    /// In the order of their arrival, each with its place as its tag.
    pub(super) deliveries: Vec<Delivery>,
    /// The key of each order, in the order of their first arrival.
    pub(super) keys: Vec<Key>,
    /// Units that the orders take from stock.
    pub(super) units: i64,
}

impl Stream {
    /// So many deliveries, a share of which are copies; `run` is in the ids of its orders, so that no
    /// other stream has the same. The same arguments make the same stream.
    pub(super) fn of(
        lines: &[StockLine],
        deliveries: usize,
        duplicates: f64,
        seed: u64,
        run: u32,
    ) -> Self {
        let mut rng = fastrand::Rng::with_seed(seed);
        let orders = draw(deliveries, duplicates, &mut rng);
        let distinct = orders.iter().max().map_or(0, |last| last + 1);
        let lines: Vec<_> = lines.iter().cycle().take(distinct).collect();
        let created = |(number, line): (usize, &&StockLine)| OrderCreated {
            order_id: OrderId::literal(&format!("B{run}-{number:08}")),
            user_id: UserId::literal("U1"),
            lines: vec![(*line).clone()],
        };
        let created = lines.iter().enumerate().map(created);
        let events: Vec<_> = created.map(InventoryEvent::Created).collect();
        let keys = events.iter().map(InventoryEvent::key).collect();
        let outgoing: Vec<_> = events
            .into_iter()
            .map(|event| Outgoing::from(&Event::Inventory(event)))
            .collect();
        let delivery = |(place, order): (usize, usize)| {
            let id = format!("m{run}-{place}");
            let meta = Meta {
                id: &id,
                source: "bench",
                time: Timestamp(0),
                traceparent: None,
            };
            Delivery {
                tag: Tag {
                    id: i64::try_from(place).unwrap_or(i64::MAX),
                    fence: 0,
                },
                message: message::encode(meta, &outgoing[order]).into(),
                headers: Headers::new(),
                attempt: 0,
                deliveries: 1,
            }
        };
        Self {
            deliveries: orders.into_iter().enumerate().map(delivery).collect(),
            keys,
            units: lines.iter().map(|line| line.qty).sum(),
        }
    }
}

/// Which order each delivery is of. Orders are numbered in the order of their first delivery; exactly
/// the share of copies is met, to the nearest delivery, and where they are is drawn. Each is of one of
/// the orders before it, whichever, and there is no copy of nothing: the first is always an original.
fn draw(deliveries: usize, duplicates: f64, rng: &mut fastrand::Rng) -> Vec<usize> {
    let copies = copies(deliveries, duplicates);
    let mut originals = deliveries - copies;
    let mut seen = 0;
    let draw = |place: usize| {
        let is_original = place == 0 || rng.usize(..deliveries - place) < originals;
        if !is_original {
            return rng.usize(..seen);
        }
        originals -= 1;
        seen += 1;
        seen - 1
    };
    (0..deliveries).map(draw).collect()
}

/// How many of so many deliveries are copies; the first is none.
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    clippy::cast_precision_loss,
    reason = "the share is from 0 to 1, and memory holds no 2^52 deliveries"
)]
fn copies(deliveries: usize, duplicates: f64) -> usize {
    let copies = (deliveries as f64 * duplicates).round() as usize;
    copies.min(deliveries.saturating_sub(1))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::SkuId;
    use crate::message::{Envelope, Limits};
    use std::collections::HashSet;

    fn drawn(deliveries: usize, duplicates: f64, seed: u64) -> Vec<usize> {
        draw(deliveries, duplicates, &mut fastrand::Rng::with_seed(seed))
    }

    fn distinct(orders: &[usize]) -> usize {
        orders.iter().collect::<HashSet<_>>().len()
    }

    #[test]
    fn the_share_of_duplicates_is_met_to_the_delivery() {
        for (deliveries, duplicates, orders) in [
            (1_000, 0.0, 1_000),
            (1_000, 0.01, 990),
            (1_000, 0.5, 500),
            (1_000, 0.9, 100),
            (1_000, 1.0, 1),
            (7, 0.5, 3),
            (1, 0.9, 1),
            (1, 0.0, 1),
        ] {
            for seed in 0..20 {
                let drawn = drawn(deliveries, duplicates, seed);
                let share = (deliveries, duplicates);
                assert_eq!(
                    (drawn.len(), distinct(&drawn)),
                    (deliveries, orders),
                    "{share:?}"
                );
            }
        }
    }

    #[test]
    fn every_copy_comes_after_its_original() {
        for seed in 0..20 {
            let mut seen = 0;
            for order in drawn(500, 0.7, seed) {
                assert!(order <= seen, "order {order} after {seen} of them");
                seen = seen.max(order + 1);
            }
        }
    }

    #[test]
    fn copies_are_of_all_orders_before_them_and_all_over_the_stream() {
        let drawn = drawn(10_000, 0.5, 7);
        let (first, second) = drawn.split_at(5_000);
        let new = |part: &[usize], before: usize| {
            part.iter()
                .collect::<HashSet<_>>()
                .iter()
                .filter(|order| ***order >= before)
                .count()
        };
        let half = distinct(first);
        assert!(
            (2_300..2_700).contains(&half),
            "{half} of 5,000 orders in the first half"
        );
        assert_eq!(new(second, half), 5_000 - half);
        let of_the_first_half = second.iter().filter(|order| **order < half).count();
        assert!(
            of_the_first_half > 1_000,
            "{of_the_first_half} copies of the first half's orders"
        );
    }

    #[test]
    fn the_same_seed_makes_the_same_stream_and_another_one_another() {
        let lines = [("A", 2), ("B", 3), ("C", 5)].map(|(sku, qty)| StockLine {
            sku_id: SkuId::literal(sku),
            qty,
        });
        let messages = |seed, run| {
            let stream = Stream::of(&lines, 50, 0.5, seed, run);
            let deliveries = stream.deliveries.into_iter();
            deliveries
                .map(|delivery| delivery.message)
                .collect::<Vec<_>>()
        };
        assert_eq!(messages(7, 1), messages(7, 1));
        assert_ne!(messages(7, 1), messages(8, 1));
        let (one, other) = (
            Stream::of(&lines, 50, 0.5, 7, 1),
            Stream::of(&lines, 50, 0.5, 7, 2),
        );
        assert_eq!(one.keys.len(), 25);
        assert!(one.keys.iter().all(|key| !other.keys.contains(key)));
        assert_eq!(one.units, other.units);
    }

    #[test]
    fn a_copy_has_an_id_of_its_own_and_the_same_content() {
        let lines = [StockLine {
            sku_id: SkuId::literal("A"),
            qty: 2,
        }];
        let stream = Stream::of(&lines, 2, 0.5, 7, 1);
        let limits = Limits::default();
        let read: Vec<_> = stream
            .deliveries
            .iter()
            .map(|delivery| {
                let envelope = Envelope::parse(&delivery.message, &limits).unwrap();
                let items = envelope.items().unwrap();
                let event =
                    message::inventory_event(crate::domain::EventType::OrderCreated, &items[0]);
                let event = event.unwrap().unwrap();
                (envelope.id.to_string(), event.key(), event.fingerprint())
            })
            .collect();
        assert_ne!(read[0].0, read[1].0);
        assert_eq!((&read[0].1, &read[0].2), (&read[1].1, &read[1].2));
        assert_eq!(stream.keys, [read[0].1.clone()]);
        assert_eq!(stream.units, 2);
    }
}
