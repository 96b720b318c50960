//! The reservation's state machine: one exhaustive `match`.

use super::event::{
    Adjustment, Event, InventoryEvent, OrderClosed, OrderCreated, OrderEvent, OrderRef, Shortage,
    StockAdjust, StockLine, StockRejected, StockReturn,
};
use super::outcome::{Decision, Rejection, Verdict};
use super::{Key, OrderId, ReturnId, SkuId, Token};
use serde::Serialize;
use std::collections::{BTreeMap, HashMap};
use strum::{Display, EnumIter, EnumString, IntoStaticStr};

/// Where the reservation of an order's goods stands.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, Hash, Display, EnumIter, EnumString, IntoStaticStr, Serialize,
)]
#[strum(serialize_all = "SCREAMING_SNAKE_CASE")]
#[serde(rename_all = "SCREAMING_SNAKE_CASE")]
pub enum ReservationStatus {
    /// All lines were set aside.
    Deducted,
    /// At least one line did not fit, so none was set aside.
    Rejected,
    /// The goods are back in stock, or were never taken.
    Released,
}

/// The most units that an adjustment may leave of a SKU: far beyond any warehouse, and far enough
/// from the end of the range that no order's goods coming back can reach it.
pub const MAX_UNITS: i64 = 1_000_000_000_000_000;

/// A row of `reservation`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Reservation {
    /// The order.
    pub order_id: OrderId,
    /// Where it stands.
    pub status: ReservationStatus,
    /// Counts its changes, from 1.
    pub version: i64,
}

/// A row of `stock`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Stock {
    /// The SKU.
    pub sku_id: SkuId,
    /// Units that can be sold; never negative.
    pub available: i64,
    /// Counts its flows, from 1.
    pub version: i64,
}

/// What a flow of stock was for.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, Hash, Display, EnumIter, EnumString, IntoStaticStr, Serialize,
)]
#[strum(serialize_all = "snake_case")]
#[serde(rename_all = "snake_case")]
pub enum FlowAction {
    /// Set aside for an order.
    Deduct,
    /// Put back because the order ended.
    Release,
    /// Put back because the customer sent it back.
    Return,
    /// Changed by hand.
    Adjust,
}

/// A row of `deduction_flow`: one change of one SKU's stock.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Flow {
    /// Unique: a second application fails even if its claim row is long gone.
    pub flow_id: Key,
    /// The order; `None` for a change by hand.
    pub order_id: Option<OrderId>,
    /// The SKU.
    pub sku_id: SkuId,
    /// What for.
    pub action: FlowAction,
    /// Units, signed: negative leaves the stock.
    pub qty: i64,
    /// What was available afterwards.
    pub available_after: i64,
}

/// The rows that an event is decided against.
#[derive(Debug, Clone, Copy)]
pub struct InventoryState<'a> {
    /// The reservation of the event's order.
    pub reservation: Option<&'a Reservation>,
    /// The stock of all SKUs of the event that have a row.
    pub stock: &'a HashMap<SkuId, Stock>,
    /// The flows of the event's order, or those that this adjustment wrote before.
    pub flows: &'a [Flow],
}

/// Rows that a decision writes.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct InventoryWrites {
    /// The reservation as it is from now on.
    pub reservation: Option<Reservation>,
    /// New flows, at most one per SKU; each moves its stock row by its quantity and one version.
    pub flows: Vec<Flow>,
}

type InventoryDecision = Decision<InventoryWrites>;

/// Decides an event against the rows of its order and SKUs.
#[must_use]
pub fn decide(state: InventoryState<'_>, event: &InventoryEvent) -> InventoryDecision {
    use ReservationStatus::{Deducted, Rejected, Released};

    let status = state.reservation.map(|reservation| reservation.status);
    match event {
        InventoryEvent::Created(created) => match status {
            None => state.deduct(created),
            Some(Deducted | Rejected) => Verdict::Duplicate.into(),
            Some(Released) => Verdict::Stale.into(),
        },
        InventoryEvent::Closed(closed) => match status {
            None => Decision::applied(InventoryWrites {
                reservation: Some(state.reserve(&closed.order_id, Released)),
                flows: Vec::new(),
            })
            .reach(token(&closed.order_id)),
            Some(Deducted) => state.release(closed),
            Some(Rejected | Released) => Verdict::Stale.into(),
        },
        InventoryEvent::Return(back) => match status {
            None => Verdict::Parked(token(&back.order_id)).into(),
            Some(Deducted) => state.give_back(back),
            Some(Rejected | Released) => Rejection::NothingDeducted.into(),
        },
        InventoryEvent::Adjust(adjust) => state.adjust(adjust),
    }
}

/// The token of an order whose goods were set aside, or never will be.
#[must_use]
pub fn token(order_id: &OrderId) -> Token {
    Token::of(&[
        "stock",
        order_id.as_str(),
        ReservationStatus::Deducted.into(),
    ])
}

/// The id of the flow that an adjustment writes.
#[must_use]
pub fn adjust_flow_id(adjust: &StockAdjust) -> Key {
    Key::of(&[
        adjust.adjustment_id.as_str(),
        adjust.sku_id.as_str(),
        FlowAction::Adjust.into(),
    ])
}

/// The id of the flow that an event of an order writes for one SKU. As in all keys, the last part
/// says what is done.
fn flow_id(
    order_id: &OrderId,
    sku_id: &SkuId,
    action: FlowAction,
    return_id: Option<&ReturnId>,
) -> Key {
    let (order_id, sku_id) = (order_id.as_str(), sku_id.as_str());
    match return_id {
        None => Key::of(&[order_id, sku_id, action.into()]),
        Some(return_id) => Key::of(&[order_id, sku_id, return_id.as_str(), action.into()]),
    }
}

impl InventoryState<'_> {
    fn available(&self, sku_id: &SkuId) -> i64 {
        self.stock.get(sku_id).map_or(0, |stock| stock.available)
    }

    fn reserve(&self, order_id: &OrderId, status: ReservationStatus) -> Reservation {
        Reservation {
            order_id: order_id.clone(),
            status,
            version: self
                .reservation
                .map_or(0, |reservation| reservation.version)
                + 1,
        }
    }

    /// All lines or none. Lines of one SKU are added up before they are checked.
    fn deduct(&self, created: &OrderCreated) -> InventoryDecision {
        let order_id = &created.order_id;
        let wanted = add_up(&created.lines);
        let shortages: Vec<Shortage> = wanted
            .iter()
            .filter(|&(sku_id, &qty)| qty > self.available(sku_id))
            .map(|(&sku_id, &qty)| Shortage {
                sku_id: sku_id.clone(),
                wanted: qty,
                available: self.available(sku_id),
            })
            .collect();
        if !shortages.is_empty() {
            return Decision::applied(InventoryWrites {
                reservation: Some(self.reserve(order_id, ReservationStatus::Rejected)),
                flows: Vec::new(),
            })
            .emit(Event::Order(OrderEvent::StockRejected(StockRejected {
                order_id: order_id.clone(),
                shortages,
            })))
            .reach(token(order_id));
        }

        let flows = wanted.into_iter().map(|(sku_id, qty)| {
            let id = flow_id(order_id, sku_id, FlowAction::Deduct, None);
            self.flow(id, order_id, sku_id, FlowAction::Deduct, -qty)
        });
        Decision::applied(InventoryWrites {
            reservation: Some(self.reserve(order_id, ReservationStatus::Deducted)),
            flows: flows.collect(),
        })
        .emit(Event::Order(OrderEvent::StockDeducted(OrderRef {
            order_id: order_id.clone(),
        })))
        .reach(token(order_id))
    }

    /// Puts back all that is still out.
    fn release(&self, closed: &OrderClosed) -> InventoryDecision {
        let order_id = &closed.order_id;
        let flows = self.out().into_iter().filter(|&(_, out)| out > 0);
        let flows = flows.map(|(sku_id, out)| {
            let id = flow_id(order_id, sku_id, FlowAction::Release, None);
            self.flow(id, order_id, sku_id, FlowAction::Release, out)
        });
        Decision::applied(InventoryWrites {
            reservation: Some(self.reserve(order_id, ReservationStatus::Released)),
            flows: flows.collect(),
        })
    }

    /// Puts back what came back, at most what is still out.
    fn give_back(&self, back: &StockReturn) -> InventoryDecision {
        let order_id = &back.order_id;
        let returned = add_up(&back.lines);
        let flow_id = |sku_id| flow_id(order_id, sku_id, FlowAction::Return, Some(&back.return_id));
        let ids: Vec<Key> = returned.keys().map(|&sku_id| flow_id(sku_id)).collect();
        if self.flows.iter().any(|flow| ids.contains(&flow.flow_id)) {
            return Verdict::Duplicate.into();
        }
        let out = self.out();
        let flows: Vec<Flow> = returned
            .into_iter()
            .map(|(sku_id, qty)| (sku_id, qty.min(out.get(sku_id).copied().unwrap_or(0))))
            .filter(|&(_, qty)| qty > 0)
            .map(|(sku_id, qty)| {
                let id = flow_id(sku_id);
                self.flow(id, order_id, sku_id, FlowAction::Return, qty)
            })
            .collect();
        if flows.is_empty() {
            return Rejection::NothingOut.into();
        }
        Decision::applied(InventoryWrites {
            reservation: None,
            flows,
        })
    }

    fn adjust(&self, adjust: &StockAdjust) -> InventoryDecision {
        if !self.flows.is_empty() {
            return Verdict::Duplicate.into();
        }
        let row = self.stock.get(&adjust.sku_id);
        let version = row.map_or(0, |stock| stock.version);
        if adjust.version.is_some_and(|seen| seen != version) {
            return Rejection::VersionMismatch.into();
        }
        let available = self.available(&adjust.sku_id);
        let change = match adjust.adjustment {
            Adjustment::Set(level) => level.checked_sub(available),
            Adjustment::Change(change) => available.checked_add(change).map(|_| change),
        };
        let Some(change) = change else {
            return Rejection::AmountOverflow.into();
        };
        if available + change < 0 {
            return Rejection::InsufficientStock.into();
        }
        if available + change > MAX_UNITS {
            return Rejection::AmountOverflow.into();
        }
        Decision::applied(InventoryWrites {
            reservation: None,
            flows: vec![Flow {
                flow_id: adjust_flow_id(adjust),
                order_id: None,
                sku_id: adjust.sku_id.clone(),
                action: FlowAction::Adjust,
                qty: change,
                available_after: available + change,
            }],
        })
    }

    fn flow(
        &self,
        flow_id: Key,
        order_id: &OrderId,
        sku_id: &SkuId,
        action: FlowAction,
        qty: i64,
    ) -> Flow {
        Flow {
            flow_id,
            order_id: Some(order_id.clone()),
            sku_id: sku_id.clone(),
            action,
            qty,
            available_after: self.available(sku_id).saturating_add(qty),
        }
    }

    /// Units of each SKU that the order has taken and not given back.
    fn out(&self) -> BTreeMap<&SkuId, i64> {
        let mut out = BTreeMap::new();
        for flow in self.flows {
            *out.entry(&flow.sku_id).or_insert(0) -= flow.qty;
        }
        out
    }
}

/// Units per SKU, in the order of the SKUs. A sum beyond the range counts as the largest number.
fn add_up(lines: &[StockLine]) -> BTreeMap<&SkuId, i64> {
    let mut sums: BTreeMap<&SkuId, i64> = BTreeMap::new();
    for line in lines {
        let sum = sums.entry(&line.sku_id).or_default();
        *sum = sum.saturating_add(line.qty);
    }
    sums
}

#[cfg(test)]
pub(super) mod tests;
