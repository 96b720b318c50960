//! What a consumer that takes every delivery at its word would have done to stock, points and money
//! on the very deliveries that were made.

use crate::broker::embedded::Kept;
use crate::domain::account::PointsRule;
use crate::domain::event::{AccountEvent, Adjustment, InventoryEvent, OrderEvent, StockAdjust};
use crate::domain::{EventType, Money, RoleName, SkuId};
use crate::message::{self, Envelope, Limits};
use serde::Serialize;
use std::collections::HashMap;

/// Units by SKU.
pub(super) type Shelf = HashMap<SkuId, i64>;

/// What would have gone wrong.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Naive {
    /// Units that would have been taken from stock more than once.
    pub units_deducted_twice: i64,
    /// Units that would have been sold and were not there.
    pub units_oversold: i64,
    /// Points that would have been credited more than once.
    pub points_over_credited: i64,
    /// Minor units of customers' balances that would have been credited more than once.
    pub money_over_credited_minor: i64,
    /// Minor units of payments that would have been booked more than once.
    pub payments_double_booked_minor: i64,
}

impl Naive {
    /// Applies each message as often as it was delivered, without looking at what had been done.
    pub(super) fn of(kept: &[Kept], opening: &Shelf, points: &PointsRule) -> Self {
        let mut naive = Self::default();
        let mut shelf = opening.clone();
        // Messages that are copies of each other share their effect: all but one delivery is too
        // many.
        let mut delivered: HashMap<(&RoleName, &str), (&Kept, i64)> = HashMap::new();
        // Who never parks a message is never handed one back.
        for kept in kept.iter().filter(|kept| !kept.woken) {
            let message = delivered
                .entry((&kept.queue, &kept.message_id))
                .or_insert((kept, 0));
            message.1 += i64::from(kept.deliveries);
        }
        for (message, times) in delivered.into_values() {
            naive.apply(message, times, &mut shelf, points);
        }
        naive.units_oversold = shelf.values().map(|&units| (-units).max(0)).sum();
        naive
    }

    fn apply(
        &mut self,
        kept: &Kept,
        times: i64,
        shelf: &mut Shelf,
        points: &PointsRule,
    ) -> Option<()> {
        let envelope = Envelope::parse(&kept.message, &Limits::default()).ok()?;
        let event_type: EventType = envelope.event_type.parse().ok()?;
        let again = (times - 1).max(0);
        for fields in &envelope.items().ok()? {
            if let Some(Ok(event)) = message::inventory_event(event_type, fields) {
                self.move_stock(&event, times, shelf);
            } else if let Some(Ok(event)) = message::account_event(event_type, fields) {
                self.credit(&event, again, points);
            } else if let Some(Ok(OrderEvent::PaymentSucceeded(payment))) =
                message::order_event(event_type, fields)
            {
                self.payments_double_booked_minor += payment.amount_minor * again;
            }
        }
        Some(())
    }

    fn move_stock(&mut self, event: &InventoryEvent, times: i64, shelf: &mut Shelf) {
        match event {
            InventoryEvent::Created(created) => {
                for line in &created.lines {
                    *shelf.entry(line.sku_id.clone()).or_default() -= line.qty * times;
                    self.units_deducted_twice += line.qty * (times - 1).max(0);
                }
            }
            InventoryEvent::Adjust(adjustment) => {
                for _ in 0..times {
                    adjust(shelf, adjustment);
                }
            }
            // Without the record of what an order took, nothing is given back.
            InventoryEvent::Closed(_) | InventoryEvent::Return(_) => {}
        }
    }

    fn credit(&mut self, event: &AccountEvent, again: i64, points: &PointsRule) {
        match event {
            AccountEvent::Completed(order) => {
                let kept = Money::new(order.paid_minor - order.refunded_minor, order.currency);
                let earned = kept.whole_major_units() * points.per_major_unit;
                self.points_over_credited += earned * again;
            }
            AccountEvent::Credit(credit) => {
                self.money_over_credited_minor += credit.amount * again;
            }
            AccountEvent::Refunded(_) | AccountEvent::Debit(_) | AccountEvent::Reverse(_) => {}
        }
    }
}

pub(super) fn adjust(shelf: &mut Shelf, adjust: &StockAdjust) {
    let units = shelf.entry(adjust.sku_id.clone()).or_default();
    match adjust.adjustment {
        Adjustment::Set(level) => *units = level,
        Adjustment::Change(change) => *units += change,
    }
}
