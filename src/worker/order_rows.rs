//! A role that moves orders, and the rows of its batch as far as they were decided: shared by the order
//! and the payment role, which move the same orders.

use super::role::decode_typed;
use super::{Role, Ruling};
use crate::domain::event::{OrderEvent, OrderLine, OrderRefund};
use crate::domain::order::{
    self, Context, Order, OrderState, OrderStatus, Payment, PaymentStatus, RefundStatus,
};
use crate::domain::{
    Fingerprint, Key, OrderId, Provider, RefundNo, RoleName, Timestamp, TradeNo, Verdict,
};
use crate::message::{self, Envelope, Malformed};
use crate::store::{self, OrderUpdate, RefundUpdate, StepRow, Tx};
use async_trait::async_trait;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::time::Duration;

/// A role that moves orders. What is asked of an order and what providers report of its payments come
/// by two queues; one state machine decides both.
#[derive(Debug, Clone)]
pub struct OrderMachine<const PAYMENTS: bool> {
    /// How long an order may stay unpaid, unless it says so itself.
    pub pay_timeout: Duration,
    /// How long before its deadline somebody is reminded of an unpaid order, if anybody is.
    pub remind_before: Option<Duration>,
}

impl<const PAYMENTS: bool> OrderMachine<PAYMENTS> {
    /// A role whose orders may stay unpaid for some time, and of which nobody is reminded.
    #[must_use]
    pub fn new(pay_timeout: Duration) -> Self {
        Self {
            pay_timeout,
            remind_before: None,
        }
    }
}

#[async_trait]
impl<const PAYMENTS: bool> Role for OrderMachine<PAYMENTS> {
    type Event = OrderEvent;
    type Rows = OrderRows;

    fn name(&self) -> RoleName {
        if PAYMENTS {
            RoleName::PAYMENT
        } else {
            RoleName::ORDER
        }
    }

    fn decode(&self, envelope: &Envelope<'_>) -> Result<Vec<OrderEvent>, Malformed> {
        decode_typed(envelope, &self.name(), message::order_event)
    }

    fn key(&self, event: &OrderEvent) -> Key {
        event.key()
    }

    fn fingerprint(&self, event: &OrderEvent) -> Fingerprint {
        event.fingerprint()
    }

    fn subject<'e>(&self, event: &'e OrderEvent) -> &'e str {
        event.order_id().as_str()
    }

    async fn load(&self, tx: &mut dyn Tx, events: &[&OrderEvent]) -> store::Result<OrderRows> {
        OrderRows::load(tx, events).await
    }

    fn decide(
        &self,
        rows: &mut OrderRows,
        event: &OrderEvent,
        key: &Key,
        now: Timestamp,
    ) -> Ruling {
        let context = Context {
            now,
            pay_timeout: self.pay_timeout,
            remind_before: self.remind_before,
            number_taken: rows.number_taken(event),
            noted: rows.notes.contains(key),
        };
        rows.decide(event, key, &context)
    }

    async fn write(&self, tx: &mut dyn Tx, rows: OrderRows, now: Timestamp) -> store::Result<()> {
        rows.write(tx, now).await
    }
}

/// Rows by order, with what was read of each as its guard.
#[derive(Debug, Default)]
pub struct OrderRows {
    orders: BTreeMap<OrderId, Slot>,
    trades: HashMap<(Provider, TradeNo), OrderId>,
    refunds: HashMap<(Provider, RefundNo), OrderId>,
    lines: Vec<(OrderId, Vec<OrderLine>)>,
    steps: Vec<StepRow>,
    /// Of events that do no more than leave a note.
    notes: HashSet<Key>,
}

#[derive(Debug, Default)]
struct Slot {
    state: OrderState,
    /// Status and version of the order's row that was read.
    read: Option<(OrderStatus, i64)>,
    changed: bool,
    /// Whether an event waits for the order to be there.
    awaited: bool,
    new_payments: HashSet<(Provider, TradeNo)>,
    /// Refunds that were changed, with the status that was read.
    changed_refunds: HashMap<(Provider, RefundNo), Option<RefundStatus>>,
}

impl OrderRows {
    pub(super) async fn load(tx: &mut dyn Tx, events: &[&OrderEvent]) -> store::Result<Self> {
        let mut ids: Vec<_> = events.iter().map(|event| event.order_id()).collect();
        ids.sort_unstable();
        ids.dedup();
        let mut rows = Self::default();
        for &id in &ids {
            rows.orders.insert(id.clone(), Slot::default());
        }
        for order in tx.load_orders(&ids).await? {
            let slot = rows.orders.entry(order.order_id.clone()).or_default();
            slot.read = Some((order.status, order.version));
            slot.state.order = Some(order);
        }
        rows.load_money(tx, events).await?;
        rows.load_notes(tx, events).await?;
        Ok(rows)
    }

    /// The notes on those orders that events ask to note something on. Their history is all that tells
    /// an event that was noted before, once its claim is gone.
    async fn load_notes(&mut self, tx: &mut dyn Tx, events: &[&OrderEvent]) -> store::Result<()> {
        let noted = events.iter().filter(|event| match event {
            OrderEvent::StockDeducted(_) | OrderEvent::PaymentFailed(_) => true,
            OrderEvent::Create(_)
            | OrderEvent::Cancel(_)
            | OrderEvent::Expire(_)
            | OrderEvent::Ship(_)
            | OrderEvent::Complete(_)
            | OrderEvent::Refund(_)
            | OrderEvent::Remind(_)
            | OrderEvent::StockRejected(_)
            | OrderEvent::PaymentSucceeded(_)
            | OrderEvent::RefundSucceeded(_)
            | OrderEvent::RefundFailed(_) => false,
        });
        let mut ids: Vec<_> = noted.map(|event| event.order_id()).collect();
        ids.sort_unstable();
        ids.dedup();
        self.notes.extend(tx.load_notes(&ids).await?);
        Ok(())
    }

    /// Payments and refunds of those orders whose events ask about money.
    async fn load_money(&mut self, tx: &mut dyn Tx, events: &[&OrderEvent]) -> store::Result<()> {
        let mut ids = Vec::new();
        let (mut trades, mut refunds) = (Vec::new(), Vec::new());
        for event in events {
            match event {
                OrderEvent::Create(_)
                | OrderEvent::Expire(_)
                | OrderEvent::Ship(_)
                | OrderEvent::Complete(_)
                | OrderEvent::Remind(_)
                | OrderEvent::StockDeducted(_)
                | OrderEvent::PaymentFailed(_) => continue,
                OrderEvent::Cancel(_) | OrderEvent::Refund(_) | OrderEvent::StockRejected(_) => {}
                OrderEvent::PaymentSucceeded(event) => {
                    trades.push((&event.provider, &event.trade_no));
                }
                OrderEvent::RefundSucceeded(event) => {
                    refunds.push((&event.provider, &event.refund_no));
                }
                OrderEvent::RefundFailed(event) => {
                    refunds.push((&event.provider, &event.refund_no));
                }
            }
            ids.push(event.order_id());
        }
        if ids.is_empty() {
            return Ok(());
        }
        ids.sort_unstable();
        ids.dedup();
        for payment in tx.load_payments(&ids, &trades).await? {
            let number = (payment.provider.clone(), payment.trade_no.clone());
            self.trades.insert(number, payment.order_id.clone());
            if let Some(slot) = self.orders.get_mut(&payment.order_id) {
                slot.state.payments.push(payment);
            }
        }
        let mut asked = self.numbers_to_ask_under(events);
        refunds.extend(asked.iter().map(|(provider, number)| (provider, number)));
        for refund in tx.load_refunds(&ids, &refunds).await? {
            let number = (refund.provider.clone(), refund.refund_no.clone());
            self.refunds.insert(number, refund.order_id.clone());
            if let Some(slot) = self.orders.get_mut(&refund.order_id) {
                slot.state.refunds.push(refund);
            }
        }
        // A number that is used has a next one, which may be used too: hardly ever.
        loop {
            asked.retain(|number| self.refunds.contains_key(number));
            for (provider, number) in &mut asked {
                *number = order::next_refund_no(provider, number);
            }
            if asked.is_empty() {
                return Ok(());
            }
            let numbers: Vec<_> = asked.iter().map(|(by, number)| (by, number)).collect();
            for refund in tx.load_refunds(&[], &numbers).await? {
                let number = (refund.provider, refund.refund_no);
                self.refunds.insert(number, refund.order_id);
            }
        }
    }

    /// The numbers under which these events may have refunds asked for, if no refund has them yet.
    fn numbers_to_ask_under(&self, events: &[&OrderEvent]) -> Vec<(Provider, RefundNo)> {
        let mut numbers = Vec::new();
        for event in events {
            match event {
                OrderEvent::PaymentSucceeded(event) => {
                    let number = order::refund_no(&event.provider, &event.trade_no);
                    numbers.push((event.provider.clone(), number));
                }
                OrderEvent::Cancel(_) | OrderEvent::StockRejected(_) => {
                    for payment in self.payments(event.order_id()) {
                        let number = order::refund_no(&payment.provider, &payment.trade_no);
                        numbers.push((payment.provider.clone(), number));
                    }
                }
                OrderEvent::Refund(event) => numbers.extend(self.number_of(event)),
                OrderEvent::Create(_)
                | OrderEvent::Expire(_)
                | OrderEvent::Ship(_)
                | OrderEvent::Complete(_)
                | OrderEvent::Remind(_)
                | OrderEvent::StockDeducted(_)
                | OrderEvent::PaymentFailed(_)
                | OrderEvent::RefundSucceeded(_)
                | OrderEvent::RefundFailed(_) => {}
            }
        }
        numbers
    }

    fn payments(&self, order_id: &OrderId) -> &[Payment] {
        let slot = self.orders.get(order_id);
        slot.map_or(&[], |slot| &slot.state.payments)
    }

    /// The number of the refund that is asked for, once the order is paid.
    fn number_of(&self, event: &OrderRefund) -> Option<(Provider, RefundNo)> {
        let mut payments = self.payments(&event.order_id).iter();
        let payment = payments.find(|payment| payment.status == PaymentStatus::Accepted)?;
        let (provider, trade_no) = (&payment.provider, &payment.trade_no);
        let number = order::refund_no_of(provider, trade_no, &event.refund_id);
        Some((provider.clone(), number))
    }

    /// The numbers under which an event would have a refund asked for, as far as other orders' refunds have
    /// them.
    fn taken(&self, event: &OrderEvent) -> Vec<(Provider, RefundNo)> {
        let mut taken = Vec::new();
        for (provider, mut number) in self.numbers_to_ask_under(&[event]) {
            while let Some(owner) = self.refunds.get(&(provider.clone(), number.clone())) {
                let next = order::next_refund_no(&provider, &number);
                if owner != event.order_id() {
                    taken.push((provider.clone(), number));
                }
                number = next;
            }
        }
        taken
    }

    pub(super) fn decide(&mut self, event: &OrderEvent, key: &Key, context: &Context) -> Ruling {
        let taken = self.taken(event);
        let slot = self.orders.entry(event.order_id().clone()).or_default();
        slot.state.taken = taken;
        let decision = order::decide(&slot.state, event, context);
        let ruling = Ruling::from(&decision);
        match decision.verdict {
            Verdict::Applied => self.apply(event.order_id(), decision.writes, key),
            Verdict::Parked(_) => slot.awaited = true,
            Verdict::Duplicate | Verdict::Conflict | Verdict::Stale | Verdict::Rejected(_) => {}
        }
        ruling
    }

    /// Whether the event's trade or refund number is recorded for another order.
    fn number_taken(&self, event: &OrderEvent) -> bool {
        let owner = match event {
            OrderEvent::Create(_)
            | OrderEvent::Cancel(_)
            | OrderEvent::Expire(_)
            | OrderEvent::Ship(_)
            | OrderEvent::Complete(_)
            | OrderEvent::Remind(_)
            | OrderEvent::StockDeducted(_)
            | OrderEvent::StockRejected(_)
            | OrderEvent::PaymentFailed(_) => None,
            OrderEvent::Refund(event) => {
                let number = self.number_of(event);
                number.and_then(|number| self.refunds.get(&number))
            }
            OrderEvent::PaymentSucceeded(event) => {
                let number = (event.provider.clone(), event.trade_no.clone());
                self.trades.get(&number)
            }
            OrderEvent::RefundSucceeded(event) => {
                let number = (event.provider.clone(), event.refund_no.clone());
                self.refunds.get(&number)
            }
            OrderEvent::RefundFailed(event) => {
                let number = (event.provider.clone(), event.refund_no.clone());
                self.refunds.get(&number)
            }
        };
        owner.is_some_and(|owner| owner != event.order_id())
    }

    fn apply(&mut self, order_id: &OrderId, writes: order::OrderWrites, key: &Key) {
        let slot = self.orders.entry(order_id.clone()).or_default();
        if let Some(order) = writes.order {
            slot.state.order = Some(order);
            slot.changed = true;
        }
        if !writes.lines.is_empty() {
            self.lines.push((order_id.clone(), writes.lines));
        }
        if let Some(step) = writes.step {
            self.steps.push(StepRow {
                order_id: order_id.clone(),
                step,
                key: key.clone(),
            });
        }
        if let Some(payment) = writes.payment {
            let number = (payment.provider.clone(), payment.trade_no.clone());
            self.trades.insert(number.clone(), order_id.clone());
            slot.new_payments.insert(number);
            slot.state.payments.push(payment);
        }
        if let Some(refund) = writes.refund {
            let number = (refund.provider.clone(), refund.refund_no.clone());
            self.refunds.insert(number.clone(), order_id.clone());
            let refunds = &mut slot.state.refunds;
            let known = refunds.iter_mut().find(|known| {
                known.provider == refund.provider && known.refund_no == refund.refund_no
            });
            let read = known.as_ref().map(|known| known.status);
            match known {
                Some(known) => *known = refund,
                None => refunds.push(refund),
            }
            slot.changed_refunds.entry(number).or_insert(read);
        }
    }

    pub(super) async fn write(self, tx: &mut dyn Tx, now: Timestamp) -> store::Result<()> {
        let (mut inserts, mut updates) = (Vec::<&Order>::new(), Vec::new());
        let mut absent = Vec::new();
        let (mut payments, mut new_refunds, mut refunds) = (Vec::new(), Vec::new(), Vec::new());
        for (order_id, slot) in &self.orders {
            if slot.awaited && slot.state.order.is_none() {
                absent.push(order_id);
            }
            match (&slot.state.order, slot.read) {
                (Some(order), None) if slot.changed => inserts.push(order),
                (Some(order), Some((was, was_version))) if slot.changed => {
                    updates.push(OrderUpdate {
                        was,
                        was_version,
                        order,
                    });
                }
                _ => {}
            }
            payments.extend(slot.state.payments.iter().filter(|payment| {
                let number = (payment.provider.clone(), payment.trade_no.clone());
                slot.new_payments.contains(&number)
            }));
            for refund in &slot.state.refunds {
                let number = (refund.provider.clone(), refund.refund_no.clone());
                match slot.changed_refunds.get(&number) {
                    Some(&Some(was)) => refunds.push(RefundUpdate { was, refund }),
                    Some(None) => new_refunds.push(refund),
                    None => {}
                }
            }
        }
        let mut lines = Vec::new();
        for (order_id, of_order) in &self.lines {
            for (line_no, line) in (1..).zip(of_order) {
                lines.push((order_id, line_no, line));
            }
        }
        tx.hold_absent_orders(&absent).await?;
        tx.insert_orders(now, &inserts).await?;
        tx.insert_order_lines(&lines).await?;
        tx.update_orders(now, &updates).await?;
        tx.insert_steps(now, &self.steps).await?;
        tx.insert_payments(now, &payments).await?;
        tx.insert_refunds(now, &new_refunds).await?;
        tx.update_refunds(now, &refunds).await
    }
}
