//! The order's state machine: one exhaustive `match`.

use super::event::{
    AccountEvent, Event, InventoryEvent, Notice, OrderCancel, OrderClosed, OrderCompleted,
    OrderCreate, OrderCreated, OrderEvent, OrderExpire, OrderLine, OrderPaid, OrderRef,
    OrderRefund, OrderRefunded, OrderRemind, PaymentQueryRequested, PaymentRejected,
    PaymentSucceeded, RefundAmount, RefundFailed, RefundRequested, RefundSucceeded, StockLine,
};
use super::outcome::{Decision, Rejection, Verdict};
use super::{
    Currency, Fingerprint, Key, Money, OrderId, Provider, RefundId, RefundNo, Timestamp, Token,
    TradeNo, UserId,
};
use serde::Serialize;
use sha2::{Digest, Sha256};
use std::time::Duration;
use strum::{Display, EnumIter, EnumString, IntoStaticStr};

/// Where an order stands.
#[derive(
    Debug,
    Clone,
    Copy,
    PartialEq,
    Eq,
    Hash,
    PartialOrd,
    Ord,
    Display,
    EnumIter,
    EnumString,
    IntoStaticStr,
    Serialize,
)]
#[strum(serialize_all = "SCREAMING_SNAKE_CASE")]
#[serde(rename_all = "SCREAMING_SNAKE_CASE")]
pub enum OrderStatus {
    /// Accepted, not paid.
    WaitPay,
    /// Paid in full.
    Paid,
    /// The goods have left.
    Shipped,
    /// The goods have arrived and are kept.
    Completed,
    /// Ended before its goods left.
    Closed,
    /// All that was paid has been given back.
    Refunded,
}

impl OrderStatus {
    /// Whether an order that stands here has come as far as `awaited`, or can never come there any
    /// more: then nothing has to wait for it.
    #[must_use]
    pub fn has_come_to(self, awaited: Self) -> bool {
        use OrderStatus::{Closed, Completed, Paid, Refunded, Shipped, WaitPay};

        match self {
            WaitPay => awaited == WaitPay,
            Paid => matches!(awaited, WaitPay | Paid),
            Shipped => matches!(awaited, WaitPay | Paid | Shipped),
            Completed => matches!(awaited, WaitPay | Paid | Shipped | Completed),
            Closed | Refunded => true,
        }
    }
}

/// A row of `orders`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Order {
    /// The order.
    pub order_id: OrderId,
    /// Who ordered.
    pub user_id: UserId,
    /// Where it stands.
    pub status: OrderStatus,
    /// Counts the rows of its history, from 1.
    pub version: i64,
    /// Currency of its amounts.
    pub currency: Currency,
    /// What is to be paid, in minor units.
    pub total_minor: i64,
    /// What its own payment paid, in minor units; surplus and late payments do not count.
    pub paid_minor: i64,
    /// What of its own payment was given back, in minor units.
    pub refunded_minor: i64,
    /// When it expires if unpaid.
    pub pay_deadline: Timestamp,
    /// When somebody is to be reminded that it is unpaid, if anybody is and has not been.
    pub remind_at: Option<Timestamp>,
    /// Of the event that created it.
    pub fingerprint: Fingerprint,
}

/// What a payment is to its order.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, Hash, Display, EnumIter, EnumString, IntoStaticStr, Serialize,
)]
#[strum(serialize_all = "SCREAMING_SNAKE_CASE")]
#[serde(rename_all = "SCREAMING_SNAKE_CASE")]
pub enum PaymentStatus {
    /// It paid the order.
    Accepted,
    /// The order had been paid by another.
    Surplus,
    /// The order had ended.
    Late,
}

/// A row of `payment`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Payment {
    /// Who has the money.
    pub provider: Provider,
    /// The provider's number.
    pub trade_no: TradeNo,
    /// The order.
    pub order_id: OrderId,
    /// What it is to the order.
    pub status: PaymentStatus,
    /// The provider's status under which it came first, where providers have several.
    pub trade_status: Option<String>,
    /// Minor units.
    pub amount_minor: i64,
    /// Currency of the amount.
    pub currency: Currency,
}

/// Where a refund stands.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, Hash, Display, EnumIter, EnumString, IntoStaticStr, Serialize,
)]
#[strum(serialize_all = "SCREAMING_SNAKE_CASE")]
#[serde(rename_all = "SCREAMING_SNAKE_CASE")]
pub enum RefundStatus {
    /// We asked for it.
    Requested,
    /// The money has been given back.
    Succeeded,
    /// The provider could not.
    Failed,
}

/// A row of `refund`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refund {
    /// Who has the money.
    pub provider: Provider,
    /// The number of the refund.
    pub refund_no: RefundNo,
    /// The order.
    pub order_id: OrderId,
    /// The payment that is refunded, where it is known.
    pub trade_no: Option<TradeNo>,
    /// Where it stands.
    pub status: RefundStatus,
    /// Minor units; zero for a refund that is known by its failure only.
    pub amount_minor: i64,
    /// Currency of the amount.
    pub currency: Currency,
}

/// A row of `order_transition`: one step of the history. A note has `from` equal to `to`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Step {
    /// Where the order stood; `None` before it was there.
    pub from: Option<OrderStatus>,
    /// Where it stands now.
    pub to: OrderStatus,
    /// The order's version after the step.
    pub version: i64,
}

/// All rows about one order.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct OrderState {
    /// The order, once it is there.
    pub order: Option<Order>,
    /// Its payments.
    pub payments: Vec<Payment>,
    /// Its refunds.
    pub refunds: Vec<Refund>,
    /// Numbers that it would ask for refunds under, and that other orders' refunds have.
    pub taken: Vec<(Provider, RefundNo)>,
}

/// What a decision needs beside the rows of the order.
#[derive(Debug, Clone, Copy)]
pub struct Context {
    /// The database's clock.
    pub now: Timestamp,
    /// How long an order may stay unpaid, unless it says so itself.
    pub pay_timeout: Duration,
    /// How long before its deadline somebody is reminded of an unpaid order, if anybody is.
    pub remind_before: Option<Duration>,
    /// The event's trade or refund number is recorded for another order.
    pub number_taken: bool,
    /// The order's history has a note of this event.
    pub noted: bool,
}

/// Rows that a decision writes.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct OrderWrites {
    /// The order as it is from now on.
    pub order: Option<Order>,
    /// Lines of a new order.
    pub lines: Vec<OrderLine>,
    /// The step of its history.
    pub step: Option<Step>,
    /// A new payment.
    pub payment: Option<Payment>,
    /// A new refund, or a known one as it is from now on.
    pub refund: Option<Refund>,
}

type OrderDecision = Decision<OrderWrites>;

/// Decides an event against the rows of its order.
#[must_use]
pub fn decide(state: &OrderState, event: &OrderEvent, context: &Context) -> OrderDecision {
    use OrderStatus::{Closed, Completed, Paid, Refunded, Shipped, WaitPay};

    let Some(order) = &state.order else {
        return match event {
            OrderEvent::Create(create) => create_order(create, context),
            OrderEvent::StockDeducted(_)
            | OrderEvent::StockRejected(_)
            | OrderEvent::PaymentSucceeded(_)
            | OrderEvent::PaymentFailed(_)
            | OrderEvent::Cancel(_)
            | OrderEvent::Expire(_)
            | OrderEvent::Ship(_)
            | OrderEvent::Complete(_)
            | OrderEvent::Refund(_)
            | OrderEvent::Remind(_)
            | OrderEvent::RefundSucceeded(_)
            | OrderEvent::RefundFailed(_) => park(event.order_id(), WaitPay),
        };
    };
    let at = Standing { state, order };
    match event {
        OrderEvent::Create(_) => {
            if order.fingerprint == event.fingerprint() {
                Verdict::Duplicate.into()
            } else {
                Verdict::Conflict.into()
            }
        }
        OrderEvent::StockDeducted(_) => match order.status {
            WaitPay | Paid | Shipped | Completed => at.note(context),
            Closed | Refunded => Verdict::Stale.into(),
        },
        OrderEvent::StockRejected(_) => match order.status {
            WaitPay => at.close("out_of_stock"),
            Paid => at.close_and_refund("out_of_stock"),
            Shipped => Rejection::AlreadyShipped.into(),
            Completed => Rejection::AlreadyCompleted.into(),
            Closed | Refunded => Verdict::Stale.into(),
        },
        OrderEvent::PaymentSucceeded(payment) => at.pay(payment, context),
        OrderEvent::PaymentFailed(_) => match order.status {
            WaitPay => at.note(context),
            Paid | Shipped | Completed | Closed | Refunded => Verdict::Stale.into(),
        },
        OrderEvent::Cancel(OrderCancel { .. }) => match order.status {
            WaitPay => at.close("cancelled"),
            Paid => at.close_and_refund("cancelled"),
            Shipped => Rejection::AlreadyShipped.into(),
            Completed => Rejection::AlreadyCompleted.into(),
            Closed | Refunded => Verdict::Stale.into(),
        },
        OrderEvent::Expire(OrderExpire { seen_due, .. }) => match order.status {
            WaitPay if seen_due.unwrap_or(context.now).max(context.now) >= order.pay_deadline => {
                at.close("expired")
            }
            WaitPay => Rejection::NotDue.into(),
            Paid | Shipped | Completed | Closed | Refunded => Verdict::Stale.into(),
        },
        OrderEvent::Ship(_) => match order.status {
            WaitPay => park(&order.order_id, Paid),
            Paid => at.ship(),
            Shipped | Completed => Verdict::Stale.into(),
            Closed => Rejection::OrderClosed.into(),
            Refunded => Rejection::OrderRefunded.into(),
        },
        OrderEvent::Complete(_) => match order.status {
            WaitPay | Paid => park(&order.order_id, Shipped),
            Shipped => at.complete(),
            Completed => Verdict::Stale.into(),
            Closed => Rejection::OrderClosed.into(),
            Refunded => Rejection::OrderRefunded.into(),
        },
        OrderEvent::Refund(refund) => match order.status {
            WaitPay => Rejection::NotPaid.into(),
            Paid | Shipped | Completed => at.ask_back(refund, context),
            Closed => Rejection::OrderClosed.into(),
            Refunded => Rejection::OrderRefunded.into(),
        },
        OrderEvent::Remind(OrderRemind { seen_due, .. }) => match (order.status, order.remind_at) {
            (WaitPay, Some(at_earliest))
                if seen_due.unwrap_or(context.now).max(context.now) >= at_earliest =>
            {
                at.remind()
            }
            (WaitPay, Some(_)) => Rejection::NotDue.into(),
            (WaitPay, None) | (Paid | Shipped | Completed | Closed | Refunded, _) => {
                Verdict::Stale.into()
            }
        },
        OrderEvent::RefundSucceeded(refund) => match order.status {
            WaitPay => park(&order.order_id, Paid),
            Paid | Shipped | Completed | Closed | Refunded => at.refund(refund, context),
        },
        OrderEvent::RefundFailed(refund) => match order.status {
            WaitPay => Verdict::Stale.into(),
            Paid | Shipped | Completed | Closed | Refunded => at.refund_failed(refund, context),
        },
    }
}

/// The token of an order that has come at least as far as `status`.
#[must_use]
pub fn token(order_id: &OrderId, status: OrderStatus) -> Token {
    Token::of(&["order", order_id.as_str(), status.into()])
}

/// The number of the refund that we ask for of one payment: always the same for the same payment.
#[must_use]
pub fn refund_no(provider: &Provider, trade_no: &TradeNo) -> RefundNo {
    let mut hash = Sha256::new();
    hash.update(provider.as_str());
    hash.update([0]);
    hash.update(trade_no.as_str());
    let digits = hex::encode(&hash.finalize()[..12]);
    RefundNo::literal(&format!("RF{digits}"))
}

/// The number to take where a refund has `refund_no` already.
#[must_use]
pub fn next_refund_no(provider: &Provider, refund_no: &RefundNo) -> RefundNo {
    self::refund_no(provider, &TradeNo::literal(refund_no.as_str()))
}

/// The number of the refund that somebody asks for of a payment: one for each of the order's requests.
#[must_use]
pub fn refund_no_of(provider: &Provider, trade_no: &TradeNo, refund_id: &RefundId) -> RefundNo {
    let hash = Key::of(&[provider.as_str(), trade_no.as_str(), refund_id.as_str()]);
    refund_no(provider, &TradeNo::literal(hash.as_str()))
}

fn park(order_id: &OrderId, status: OrderStatus) -> OrderDecision {
    Verdict::Parked(token(order_id, status)).into()
}

fn create_order(create: &OrderCreate, context: &Context) -> OrderDecision {
    let status = if create.total_minor == 0 {
        OrderStatus::Paid
    } else {
        OrderStatus::WaitPay
    };
    let pay_within = create
        .pay_within_seconds
        .map_or(context.pay_timeout, |seconds| {
            Duration::from_secs(seconds.into())
        });
    let pay_deadline = context.now.plus(pay_within);
    let remind_at = context
        .remind_before
        .map(|before| pay_deadline.minus(before));
    let order = Order {
        order_id: create.order_id.clone(),
        user_id: create.user_id.clone(),
        status,
        version: 1,
        currency: create.currency,
        total_minor: create.total_minor,
        paid_minor: 0,
        refunded_minor: 0,
        pay_deadline,
        remind_at: remind_at.filter(|_| status == OrderStatus::WaitPay),
        fingerprint: Fingerprint::of(super::EventType::OrderCreate.name(), create),
    };
    let goods = create.lines.iter().filter(|line| !line.charge);
    let created = OrderCreated {
        order_id: create.order_id.clone(),
        user_id: create.user_id.clone(),
        lines: goods
            .map(|line| StockLine {
                sku_id: line.sku_id.clone(),
                qty: line.qty,
            })
            .collect(),
    };
    let paid = (status == OrderStatus::Paid).then(|| paid(&order));
    let decision = Decision::applied(OrderWrites {
        step: Some(Step {
            from: None,
            to: status,
            version: 1,
        }),
        lines: create.lines.clone(),
        order: Some(order),
        ..OrderWrites::default()
    })
    .emit(Event::Inventory(InventoryEvent::Created(created)))
    .reach(token(&create.order_id, OrderStatus::WaitPay));
    match paid {
        Some(paid) => decision
            .emit(paid)
            .reach(token(&create.order_id, OrderStatus::Paid)),
        None => decision,
    }
}

fn paid(order: &Order) -> Event {
    Event::Notice(Notice::Paid(OrderPaid {
        order_id: order.order_id.clone(),
        user_id: order.user_id.clone(),
        currency: order.currency,
        paid_minor: order.paid_minor,
    }))
}

/// An order that is there, with its rows.
struct Standing<'a> {
    state: &'a OrderState,
    order: &'a Order,
}

impl Standing<'_> {
    /// The order one step on, in `to`, after `change`.
    fn step(&self, to: OrderStatus, change: impl FnOnce(&mut Order)) -> OrderWrites {
        let mut order = self.order.clone();
        order.status = to;
        order.version += 1;
        if to != OrderStatus::WaitPay {
            order.remind_at = None;
        }
        change(&mut order);
        OrderWrites {
            step: Some(Step {
                from: Some(self.order.status),
                to,
                version: order.version,
            }),
            order: Some(order),
            ..OrderWrites::default()
        }
    }

    /// A line in the history, the status as it is. Nothing else tells that it was written before.
    fn note(&self, context: &Context) -> OrderDecision {
        if context.noted {
            return Verdict::Duplicate.into();
        }
        Decision::applied(self.step(self.order.status, |_| {}))
    }

    fn close(&self, reason: &str) -> OrderDecision {
        let decision = Decision::applied(self.step(OrderStatus::Closed, |_| {}));
        self.ended(decision.emit(self.closed(reason)))
    }

    fn close_and_refund(&self, reason: &str) -> OrderDecision {
        let mut decision = self.close(reason);
        if let Some(payment) = self.accepted()
            && let left = self.left_of(payment)
            && left > 0
        {
            let (refund, asked) = self.ask_refund(payment, left);
            decision.writes.refund = Some(refund);
            decision.emits.push(asked);
        }
        decision
    }

    /// Asks for money of the order's own payment, at most what nobody has asked for.
    fn ask_back(&self, event: &OrderRefund, context: &Context) -> OrderDecision {
        if context.number_taken {
            return Rejection::NumberOfAnotherOrder.into();
        }
        let Some(payment) = self.accepted() else {
            return Rejection::RefundExceedsPaid.into();
        };
        let number = refund_no_of(&payment.provider, &payment.trade_no, &event.refund_id);
        if let Some(known) = self.known_refund(&payment.provider, &number) {
            let same = event
                .amount_minor
                .is_none_or(|amount| amount == known.amount_minor);
            return if same {
                Verdict::Duplicate
            } else {
                Verdict::Conflict
            }
            .into();
        }
        let left = self.left_of(payment);
        let amount = event.amount_minor.unwrap_or(left);
        if amount <= 0 || amount > left {
            return Rejection::RefundExceedsPaid.into();
        }
        let (refund, asked) = requested(payment, number, amount);
        let mut writes = self.step(self.order.status, |_| {});
        writes.refund = Some(refund);
        Decision::applied(writes).emit(asked)
    }

    /// Reminds whoever can ask the provider; nobody is reminded twice.
    fn remind(&self) -> OrderDecision {
        let query = PaymentQueryRequested {
            order_id: self.order.order_id.clone(),
            user_id: self.order.user_id.clone(),
            currency: self.order.currency,
            total_minor: self.order.total_minor,
            pay_deadline: self.order.pay_deadline.to_string(),
        };
        Decision::applied(self.step(self.order.status, |order| order.remind_at = None))
            .emit(Event::Notice(Notice::PaymentQueryRequested(query)))
    }

    fn closed(&self, reason: &str) -> Event {
        Event::Inventory(InventoryEvent::Closed(OrderClosed {
            order_id: self.order.order_id.clone(),
            reason: reason.to_owned(),
        }))
    }

    /// An order that ends wakes all that waits for it, to be decided at once.
    fn ended(&self, decision: OrderDecision) -> OrderDecision {
        use OrderStatus::{Paid, Shipped, WaitPay};
        [WaitPay, Paid, Shipped]
            .into_iter()
            .fold(decision, |decision, status| {
                decision.reach(token(&self.order.order_id, status))
            })
    }

    fn ship(&self) -> OrderDecision {
        Decision::applied(self.step(OrderStatus::Shipped, |_| {}))
            .emit(Event::Notice(Notice::Shipped(OrderRef {
                order_id: self.order.order_id.clone(),
            })))
            .reach(token(&self.order.order_id, OrderStatus::Shipped))
    }

    fn complete(&self) -> OrderDecision {
        let completed = OrderCompleted {
            order_id: self.order.order_id.clone(),
            user_id: self.order.user_id.clone(),
            currency: self.order.currency,
            paid_minor: self.order.paid_minor,
            refunded_minor: self.order.refunded_minor,
        };
        Decision::applied(self.step(OrderStatus::Completed, |_| {}))
            .emit(Event::Account(AccountEvent::Completed(completed)))
    }

    fn pay(&self, event: &PaymentSucceeded, context: &Context) -> OrderDecision {
        use OrderStatus::{Closed, Completed, Paid, Refunded, Shipped, WaitPay};

        if context.number_taken {
            return self.reject_payment(event, Rejection::NumberOfAnotherOrder);
        }
        if let Some(known) = self.payment(&event.provider, &event.trade_no) {
            return if (known.amount_minor, known.currency) != (event.amount_minor, event.currency) {
                Verdict::Conflict.into()
            } else if known.trade_status == event.trade_status {
                Verdict::Duplicate.into()
            } else {
                Verdict::Stale.into()
            };
        }
        match self.order.status {
            WaitPay if event.currency != self.order.currency => {
                self.reject_payment(event, Rejection::CurrencyMismatch)
            }
            WaitPay if event.amount_minor != self.order.total_minor => {
                self.reject_payment(event, Rejection::AmountMismatch)
            }
            WaitPay => self.accept(event),
            // No money came, so there is none to give back.
            Paid | Shipped | Completed | Closed | Refunded if event.amount_minor <= 0 => {
                Verdict::Stale.into()
            }
            Paid | Shipped | Completed => self.return_payment(event, PaymentStatus::Surplus),
            Closed | Refunded => self.return_payment(event, PaymentStatus::Late),
        }
    }

    fn accept(&self, event: &PaymentSucceeded) -> OrderDecision {
        let mut writes = self.step(OrderStatus::Paid, |order| {
            order.paid_minor = event.amount_minor;
        });
        let notice = writes.order.as_ref().map(paid);
        writes.payment = Some(payment_row(event, PaymentStatus::Accepted));
        let mut decision =
            Decision::applied(writes).reach(token(&self.order.order_id, OrderStatus::Paid));
        decision.emits.extend(notice);
        decision
    }

    /// Records a payment that the order does not need, and asks for it to be given back.
    fn return_payment(&self, event: &PaymentSucceeded, status: PaymentStatus) -> OrderDecision {
        let payment = payment_row(event, status);
        let (refund, asked) = self.ask_refund(&payment, payment.amount_minor);
        let mut writes = self.step(self.order.status, |_| {});
        writes.payment = Some(payment);
        writes.refund = Some(refund);
        Decision::applied(writes).emit(asked)
    }

    fn reject_payment(&self, event: &PaymentSucceeded, reason: Rejection) -> OrderDecision {
        OrderDecision::from(reason).emit(Event::Notice(Notice::PaymentRejected(PaymentRejected {
            order_id: self.order.order_id.clone(),
            provider: event.provider.clone(),
            trade_no: event.trade_no.clone(),
            amount_minor: event.amount_minor,
            currency: event.currency,
            reason,
        })))
    }

    fn refund(&self, event: &RefundSucceeded, context: &Context) -> OrderDecision {
        if context.number_taken {
            return Rejection::NumberOfAnotherOrder.into();
        }
        let known = self.known_refund(&event.provider, &event.refund_no);
        if let Some(done) = known.filter(|refund| refund.status == RefundStatus::Succeeded) {
            return match event.amount {
                RefundAmount::Own(amount) if amount != done.amount_minor => {
                    Verdict::Conflict.into()
                }
                RefundAmount::Own(_) | RefundAmount::RunningTotal(_) => Verdict::Duplicate.into(),
            };
        }
        let trade_no = event
            .trade_no
            .as_ref()
            .or_else(|| known.and_then(|refund| refund.trade_no.as_ref()));
        let payment = match trade_no {
            Some(trade_no) => self.payment(&event.provider, trade_no),
            None => self
                .accepted()
                .filter(|payment| payment.provider == event.provider),
        };
        let Some(payment) = payment else {
            // Nothing that is not recorded as paid is given back; a refunded order has settled.
            return if self.order.status == OrderStatus::Refunded && trade_no.is_none() {
                Verdict::Stale.into()
            } else {
                Rejection::PaymentUnknown.into()
            };
        };
        if payment.status == PaymentStatus::Accepted && self.order.status == OrderStatus::Refunded {
            return Verdict::Stale.into();
        }
        if event.currency != payment.currency {
            return Rejection::CurrencyMismatch.into();
        }
        let before = self.refunded_of(payment);
        let amount = match event.amount {
            RefundAmount::Own(amount) => amount,
            RefundAmount::RunningTotal(total) => total - before,
        };
        if amount <= 0 {
            return Verdict::Stale.into();
        }
        if amount > payment.amount_minor - before {
            return Rejection::RefundExceedsPaid.into();
        }
        self.give_back(event, payment, amount)
    }

    /// Records a refund of `amount`, which is positive and not more than is left of `payment`.
    fn give_back(&self, event: &RefundSucceeded, payment: &Payment, amount: i64) -> OrderDecision {
        let refund = Refund {
            provider: event.provider.clone(),
            refund_no: event.refund_no.clone(),
            order_id: self.order.order_id.clone(),
            trade_no: Some(payment.trade_no.clone()),
            status: RefundStatus::Succeeded,
            amount_minor: amount,
            currency: event.currency,
        };
        if payment.status != PaymentStatus::Accepted {
            let mut writes = self.step(self.order.status, |_| {});
            writes.refund = Some(refund);
            return Decision::applied(writes);
        }

        let refunded_minor = self.order.refunded_minor + amount;
        let full = refunded_minor == self.order.paid_minor;
        let to = if full {
            OrderStatus::Refunded
        } else {
            self.order.status
        };
        let mut writes = self.step(to, |order| order.refunded_minor = refunded_minor);
        writes.refund = Some(refund);
        let refunded = OrderRefunded {
            order_id: self.order.order_id.clone(),
            user_id: self.order.user_id.clone(),
            provider: event.provider.clone(),
            refund_no: event.refund_no.clone(),
            currency: event.currency,
            amount_minor: amount,
            paid_minor: self.order.paid_minor,
            refunded_minor,
            completed: self.order.status == OrderStatus::Completed,
        };
        let mut decision =
            Decision::applied(writes).emit(Event::Account(AccountEvent::Refunded(refunded)));
        if full && self.order.status == OrderStatus::Paid {
            decision = decision.emit(self.closed("refunded"));
        }
        if full { self.ended(decision) } else { decision }
    }

    fn refund_failed(&self, event: &RefundFailed, context: &Context) -> OrderDecision {
        if context.number_taken {
            return Rejection::NumberOfAnotherOrder.into();
        }
        let known = self.known_refund(&event.provider, &event.refund_no);
        match known.map(|refund| refund.status) {
            Some(RefundStatus::Succeeded) => return Verdict::Stale.into(),
            Some(RefundStatus::Failed) => return Verdict::Duplicate.into(),
            Some(RefundStatus::Requested) | None => {}
        }
        let refund = match known {
            Some(known) => Refund {
                status: RefundStatus::Failed,
                ..known.clone()
            },
            None => Refund {
                provider: event.provider.clone(),
                refund_no: event.refund_no.clone(),
                order_id: self.order.order_id.clone(),
                trade_no: None,
                status: RefundStatus::Failed,
                amount_minor: 0,
                currency: self.order.currency,
            },
        };
        let mut writes = self.step(self.order.status, |_| {});
        writes.refund = Some(refund);
        Decision::applied(writes)
    }

    /// Asks for `amount_minor` of a payment under a number that no refund has yet, so that no row of a refund
    /// that somebody made under it is lost.
    fn ask_refund(&self, payment: &Payment, amount_minor: i64) -> (Refund, Event) {
        let mut number = refund_no(&payment.provider, &payment.trade_no);
        while self.is_used(&payment.provider, &number) {
            number = next_refund_no(&payment.provider, &number);
        }
        requested(payment, number, amount_minor)
    }

    fn accepted(&self) -> Option<&Payment> {
        let mut payments = self.state.payments.iter();
        payments.find(|payment| payment.status == PaymentStatus::Accepted)
    }

    fn payment(&self, provider: &Provider, trade_no: &TradeNo) -> Option<&Payment> {
        let mut payments = self.state.payments.iter();
        payments.find(|p| p.provider == *provider && p.trade_no == *trade_no)
    }

    fn known_refund(&self, provider: &Provider, refund_no: &RefundNo) -> Option<&Refund> {
        let mut refunds = self.state.refunds.iter();
        refunds.find(|r| r.provider == *provider && r.refund_no == *refund_no)
    }

    fn is_used(&self, provider: &Provider, refund_no: &RefundNo) -> bool {
        let mut taken = self.state.taken.iter();
        self.known_refund(provider, refund_no).is_some()
            || taken.any(|(by, number)| by == provider && number == refund_no)
    }

    /// Minor units of `payment` that have been given back.
    fn refunded_of(&self, payment: &Payment) -> i64 {
        self.sum_of(payment, RefundStatus::Succeeded)
    }

    /// Minor units of `payment` that have neither been given back nor been asked for.
    fn left_of(&self, payment: &Payment) -> i64 {
        payment.amount_minor
            - self.refunded_of(payment)
            - self.sum_of(payment, RefundStatus::Requested)
    }

    fn sum_of(&self, payment: &Payment, status: RefundStatus) -> i64 {
        let refunds = self.state.refunds.iter();
        refunds
            .filter(|refund| {
                refund.status == status
                    && refund.provider == payment.provider
                    && refund.trade_no.as_ref() == Some(&payment.trade_no)
            })
            .map(|refund| refund.amount_minor)
            .sum()
    }
}

/// A refund of `payment` that is asked for, and the notice of it.
fn requested(payment: &Payment, refund_no: RefundNo, amount_minor: i64) -> (Refund, Event) {
    let refund = Refund {
        provider: payment.provider.clone(),
        refund_no,
        order_id: payment.order_id.clone(),
        trade_no: Some(payment.trade_no.clone()),
        status: RefundStatus::Requested,
        amount_minor,
        currency: payment.currency,
    };
    let asked = Event::Notice(Notice::RefundRequested(RefundRequested {
        order_id: refund.order_id.clone(),
        provider: refund.provider.clone(),
        trade_no: payment.trade_no.clone(),
        refund_no: refund.refund_no.clone(),
        amount_minor,
        currency: refund.currency,
    }));
    (refund, asked)
}

fn payment_row(event: &PaymentSucceeded, status: PaymentStatus) -> Payment {
    Payment {
        provider: event.provider.clone(),
        trade_no: event.trade_no.clone(),
        order_id: event.order_id.clone(),
        status,
        trade_status: event.trade_status.clone(),
        amount_minor: event.amount_minor,
        currency: event.currency,
    }
}

impl Order {
    /// What is to be paid.
    #[must_use]
    pub fn total(&self) -> Money {
        Money::new(self.total_minor, self.currency)
    }
}

#[cfg(test)]
pub(super) mod tests;
