//! Events: what was asked (imperative) or what happened (past participle).
//!
//! Each type is consumed by exactly one role, or by none: then it is a notice to other systems.

use super::{
    AccountKind, AdjustmentId, Currency, Fingerprint, Key, Money, OrderId, Provider, RefundId,
    RefundNo, Rejection, ReturnId, RoleName, SkuId, SourceId, SourceType, Timestamp, TradeNo,
    UserId,
};
use serde::Serialize;
use strum::{Display, EnumIter, EnumString, IntoStaticStr};

/// The most units that an event may state: of a line, an adjustment or a return. No warehouse holds
/// as many, and nine million such numbers still add up within 64 bits, so no sum over the events of
/// a batch or the lines of an order leaves the range.
pub const MAX_QTY: i64 = 1_000_000_000_000;

/// The most minor units, or points, that an event may state: ten trillion pounds. Nine thousand such
/// amounts still add up within 64 bits, more than there are deliveries in the largest batch, so no
/// sum over the events of a batch or the payments of an order leaves the range.
pub const MAX_AMOUNT: i64 = 1_000_000_000_000_000;

/// The type of an event, as it stands in an envelope's `type`.
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
)]
#[allow(
    missing_docs,
    reason = "the documentation is that of the variants of the event enums"
)]
pub enum EventType {
    #[strum(serialize = "order.create")]
    OrderCreate,
    #[strum(serialize = "order.cancel")]
    OrderCancel,
    #[strum(serialize = "order.expire")]
    OrderExpire,
    #[strum(serialize = "order.ship")]
    OrderShip,
    #[strum(serialize = "order.complete")]
    OrderComplete,
    #[strum(serialize = "order.refund")]
    OrderRefund,
    #[strum(serialize = "order.remind")]
    OrderRemind,
    #[strum(serialize = "stock.deducted")]
    StockDeducted,
    #[strum(serialize = "stock.rejected")]
    StockRejected,
    #[strum(serialize = "payment.succeeded")]
    PaymentSucceeded,
    #[strum(serialize = "payment.failed")]
    PaymentFailed,
    #[strum(serialize = "refund.succeeded")]
    RefundSucceeded,
    #[strum(serialize = "refund.failed")]
    RefundFailed,
    #[strum(serialize = "order.created")]
    OrderCreated,
    #[strum(serialize = "order.closed")]
    OrderClosed,
    #[strum(serialize = "stock.return")]
    StockReturn,
    #[strum(serialize = "stock.adjust")]
    StockAdjust,
    #[strum(serialize = "order.completed")]
    OrderCompleted,
    #[strum(serialize = "order.refunded")]
    OrderRefunded,
    #[strum(serialize = "account.credit")]
    AccountCredit,
    #[strum(serialize = "account.debit")]
    AccountDebit,
    #[strum(serialize = "account.reverse")]
    AccountReverse,
    #[strum(serialize = "order.paid")]
    OrderPaid,
    #[strum(serialize = "order.shipped")]
    OrderShipped,
    #[strum(serialize = "payment.rejected")]
    PaymentRejected,
    #[strum(serialize = "refund.requested")]
    RefundRequested,
    #[strum(serialize = "payment.query_requested")]
    PaymentQueryRequested,
    #[strum(serialize = "account.credited")]
    AccountCredited,
    #[strum(serialize = "account.debited")]
    AccountDebited,
    #[strum(serialize = "account.reversed")]
    AccountReversed,
    #[strum(serialize = "account.rejected")]
    AccountRejected,
}

impl EventType {
    /// The name on the wire, such as `order.create`.
    #[must_use]
    pub fn name(self) -> &'static str {
        self.into()
    }

    /// The built-in role that consumes events of this type; `None` for a notice.
    #[must_use]
    pub fn consumer(self) -> Option<RoleName> {
        match self {
            Self::OrderCreate
            | Self::OrderCancel
            | Self::OrderExpire
            | Self::OrderShip
            | Self::OrderComplete
            | Self::OrderRefund
            | Self::OrderRemind
            | Self::StockDeducted
            | Self::StockRejected => Some(RoleName::ORDER),
            Self::PaymentSucceeded
            | Self::PaymentFailed
            | Self::RefundSucceeded
            | Self::RefundFailed => Some(RoleName::PAYMENT),
            Self::OrderCreated | Self::OrderClosed | Self::StockReturn | Self::StockAdjust => {
                Some(RoleName::INVENTORY)
            }
            Self::OrderCompleted
            | Self::OrderRefunded
            | Self::AccountCredit
            | Self::AccountDebit
            | Self::AccountReverse => Some(RoleName::ACCOUNT),
            Self::OrderPaid
            | Self::OrderShipped
            | Self::PaymentRejected
            | Self::RefundRequested
            | Self::PaymentQueryRequested
            | Self::AccountCredited
            | Self::AccountDebited
            | Self::AccountReversed
            | Self::AccountRejected => None,
        }
    }
}

/// Any event, by the state machine that consumes it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(untagged)]
pub enum Event {
    /// Moves an order.
    Order(OrderEvent),
    /// Moves stock.
    Inventory(InventoryEvent),
    /// Moves points or balances.
    Account(AccountEvent),
    /// Tells other systems.
    Notice(Notice),
}

impl Event {
    /// The type that stands in the envelope.
    #[must_use]
    pub fn event_type(&self) -> EventType {
        match self {
            Self::Order(event) => event.event_type(),
            Self::Inventory(event) => event.event_type(),
            Self::Account(event) => event.event_type(),
            Self::Notice(event) => event.event_type(),
        }
    }

    /// What the event is about: an order, SKU or user. Events of one subject leave in order.
    #[must_use]
    pub fn subject(&self) -> &str {
        match self {
            Self::Order(event) => event.order_id().as_str(),
            Self::Inventory(event) => event.subject(),
            Self::Account(event) => event.subject(),
            Self::Notice(event) => event.subject(),
        }
    }
}

/// What the order's state machine consumes: the order role takes what is asked and what became of
/// the stock, the payment role what providers report.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(untagged)]
pub enum OrderEvent {
    /// `order.create`: a customer ordered.
    Create(OrderCreate),
    /// `order.cancel`: customer or shop want the order closed.
    Cancel(OrderCancel),
    /// `order.expire`: the order was not paid in time.
    Expire(OrderExpire),
    /// `order.ship`: the goods leave.
    Ship(OrderRef),
    /// `order.complete`: the goods have arrived and are kept.
    Complete(OrderRef),
    /// `order.refund`: somebody wants money to be given back.
    Refund(OrderRefund),
    /// `order.remind`: the order is about to expire.
    Remind(OrderRemind),
    /// `stock.deducted`: the goods are set aside.
    StockDeducted(OrderRef),
    /// `stock.rejected`: at least one line does not fit.
    StockRejected(StockRejected),
    /// `payment.succeeded`: a provider has the money.
    PaymentSucceeded(PaymentSucceeded),
    /// `payment.failed`: an attempt to pay failed.
    PaymentFailed(PaymentFailed),
    /// `refund.succeeded`: a provider gave money back.
    RefundSucceeded(RefundSucceeded),
    /// `refund.failed`: a provider could not give money back.
    RefundFailed(RefundFailed),
}

impl OrderEvent {
    /// The type that stands in the envelope.
    #[must_use]
    pub fn event_type(&self) -> EventType {
        match self {
            Self::Create(_) => EventType::OrderCreate,
            Self::Cancel(_) => EventType::OrderCancel,
            Self::Expire(_) => EventType::OrderExpire,
            Self::Ship(_) => EventType::OrderShip,
            Self::Complete(_) => EventType::OrderComplete,
            Self::Refund(_) => EventType::OrderRefund,
            Self::Remind(_) => EventType::OrderRemind,
            Self::StockDeducted(_) => EventType::StockDeducted,
            Self::StockRejected(_) => EventType::StockRejected,
            Self::PaymentSucceeded(_) => EventType::PaymentSucceeded,
            Self::PaymentFailed(_) => EventType::PaymentFailed,
            Self::RefundSucceeded(_) => EventType::RefundSucceeded,
            Self::RefundFailed(_) => EventType::RefundFailed,
        }
    }

    /// The order it is about.
    #[must_use]
    pub fn order_id(&self) -> &OrderId {
        match self {
            Self::Create(event) => &event.order_id,
            Self::Cancel(event) => &event.order_id,
            Self::Expire(event) => &event.order_id,
            Self::Ship(event) | Self::Complete(event) | Self::StockDeducted(event) => {
                &event.order_id
            }
            Self::Refund(event) => &event.order_id,
            Self::Remind(event) => &event.order_id,
            Self::StockRejected(event) => &event.order_id,
            Self::PaymentSucceeded(event) => &event.order_id,
            Self::PaymentFailed(event) => &event.order_id,
            Self::RefundSucceeded(event) => &event.order_id,
            Self::RefundFailed(event) => &event.order_id,
        }
    }

    /// Which business action it is.
    #[must_use]
    pub fn key(&self) -> Key {
        let name = self.event_type().name();
        match self {
            Self::Expire(OrderExpire {
                order_id,
                seen_due: Some(_),
            })
            | Self::Remind(OrderRemind {
                order_id,
                seen_due: Some(_),
            }) => key(&[order_id.as_str(), name, "clock"]),
            Self::Refund(OrderRefund {
                order_id,
                refund_id,
                ..
            }) => key(&[order_id.as_str(), refund_id.as_str(), name]),
            Self::Create(_)
            | Self::Cancel(_)
            | Self::Expire(_)
            | Self::Ship(_)
            | Self::Complete(_)
            | Self::Remind(_)
            | Self::StockDeducted(_)
            | Self::StockRejected(_) => key(&[self.order_id().as_str(), name]),
            Self::PaymentSucceeded(p) => key(&[
                p.provider.as_str(),
                p.out_trade_no(),
                p.trade_status.as_deref().unwrap_or("SUCCEEDED"),
                p.trade_no.as_str(),
                name,
            ]),
            Self::PaymentFailed(p) => {
                let (provider, trade_no) = (p.provider.as_str(), p.trade_no.as_str());
                key(&[provider, p.order_id.as_str(), trade_no, name])
            }
            Self::RefundSucceeded(r) => {
                let (provider, refund_no) = (r.provider.as_str(), r.refund_no.as_str());
                key(&[provider, r.order_id.as_str(), refund_no, name])
            }
            Self::RefundFailed(r) => {
                let (provider, refund_no) = (r.provider.as_str(), r.refund_no.as_str());
                key(&[provider, r.order_id.as_str(), refund_no, name])
            }
        }
    }

    /// A hash of the business content.
    #[must_use]
    pub fn fingerprint(&self) -> Fingerprint {
        Fingerprint::of(self.event_type().name(), self)
    }
}

/// What the inventory consumes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(untagged)]
pub enum InventoryEvent {
    /// `order.created`: an order was accepted, its goods are to be set aside.
    Created(OrderCreated),
    /// `order.closed`: an order ended before its goods left.
    Closed(OrderClosed),
    /// `stock.return`: goods came back.
    Return(StockReturn),
    /// `stock.adjust`: somebody counted.
    Adjust(StockAdjust),
}

impl InventoryEvent {
    /// The type that stands in the envelope.
    #[must_use]
    pub fn event_type(&self) -> EventType {
        match self {
            Self::Created(_) => EventType::OrderCreated,
            Self::Closed(_) => EventType::OrderClosed,
            Self::Return(_) => EventType::StockReturn,
            Self::Adjust(_) => EventType::StockAdjust,
        }
    }

    /// The order whose reservation it moves, if it moves one.
    #[must_use]
    pub fn order_id(&self) -> Option<&OrderId> {
        match self {
            Self::Created(event) => Some(&event.order_id),
            Self::Closed(event) => Some(&event.order_id),
            Self::Return(event) => Some(&event.order_id),
            Self::Adjust(_) => None,
        }
    }

    /// What it is about: an order or a SKU.
    #[must_use]
    pub fn subject(&self) -> &str {
        match self {
            Self::Created(event) => event.order_id.as_str(),
            Self::Closed(event) => event.order_id.as_str(),
            Self::Return(event) => event.order_id.as_str(),
            Self::Adjust(event) => event.sku_id.as_str(),
        }
    }

    /// Which business action it is.
    #[must_use]
    pub fn key(&self) -> Key {
        match self {
            Self::Created(event) => key(&[event.order_id.as_str(), "deduct"]),
            Self::Closed(event) => key(&[event.order_id.as_str(), "release"]),
            Self::Return(event) => key(&[event.return_id.as_str(), "return"]),
            Self::Adjust(event) => key(&[event.adjustment_id.as_str(), "adjust"]),
        }
    }

    /// A hash of the business content.
    #[must_use]
    pub fn fingerprint(&self) -> Fingerprint {
        Fingerprint::of(self.event_type().name(), self)
    }
}

/// What the accounts consume.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(untagged)]
pub enum AccountEvent {
    /// `order.completed`: points are earned.
    Completed(OrderCompleted),
    /// `order.refunded`: points are taken back in proportion.
    Refunded(OrderRefunded),
    /// `account.credit`: put something on an account.
    Credit(AccountChange),
    /// `account.debit`: take something off an account.
    Debit(AccountChange),
    /// `account.reverse`: take back what a named source had credited.
    Reverse(AccountReverse),
}

impl AccountEvent {
    /// The type that stands in the envelope.
    #[must_use]
    pub fn event_type(&self) -> EventType {
        match self {
            Self::Completed(_) => EventType::OrderCompleted,
            Self::Refunded(_) => EventType::OrderRefunded,
            Self::Credit(_) => EventType::AccountCredit,
            Self::Debit(_) => EventType::AccountDebit,
            Self::Reverse(_) => EventType::AccountReverse,
        }
    }

    /// What it is about: an order or a user.
    #[must_use]
    pub fn subject(&self) -> &str {
        match self {
            Self::Completed(event) => event.order_id.as_str(),
            Self::Refunded(event) => event.order_id.as_str(),
            Self::Credit(event) | Self::Debit(event) => event.user_id.as_str(),
            Self::Reverse(event) => event.user_id.as_str(),
        }
    }

    /// A hash of the business content.
    #[must_use]
    pub fn fingerprint(&self) -> Fingerprint {
        Fingerprint::of(self.event_type().name(), self)
    }
}

/// Facts for whoever cares; no built-in role consumes them.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(untagged)]
pub enum Notice {
    /// `order.paid`.
    Paid(OrderPaid),
    /// `order.shipped`.
    Shipped(OrderRef),
    /// `payment.rejected`: money came that does not fit its order; somebody has to look.
    PaymentRejected(PaymentRejected),
    /// `refund.requested`: money is to be given back; the provider's side acts on it.
    RefundRequested(RefundRequested),
    /// `payment.query_requested`: an order is about to expire; the provider may know of a payment.
    PaymentQueryRequested(PaymentQueryRequested),
    /// `account.credited`.
    Credited(AccountMoved),
    /// `account.debited`.
    Debited(AccountMoved),
    /// `account.reversed`.
    Reversed(AccountMoved),
    /// `account.rejected`.
    AccountRejected(AccountRejected),
}

impl Notice {
    /// The type that stands in the envelope.
    #[must_use]
    pub fn event_type(&self) -> EventType {
        match self {
            Self::Paid(_) => EventType::OrderPaid,
            Self::Shipped(_) => EventType::OrderShipped,
            Self::PaymentRejected(_) => EventType::PaymentRejected,
            Self::RefundRequested(_) => EventType::RefundRequested,
            Self::PaymentQueryRequested(_) => EventType::PaymentQueryRequested,
            Self::Credited(_) => EventType::AccountCredited,
            Self::Debited(_) => EventType::AccountDebited,
            Self::Reversed(_) => EventType::AccountReversed,
            Self::AccountRejected(_) => EventType::AccountRejected,
        }
    }

    fn subject(&self) -> &str {
        match self {
            Self::Paid(event) => event.order_id.as_str(),
            Self::Shipped(event) => event.order_id.as_str(),
            Self::PaymentRejected(event) => event.order_id.as_str(),
            Self::RefundRequested(event) => event.order_id.as_str(),
            Self::PaymentQueryRequested(event) => event.order_id.as_str(),
            Self::Credited(event) | Self::Debited(event) | Self::Reversed(event) => {
                event.user_id.as_str()
            }
            Self::AccountRejected(event) => event.user_id.as_str(),
        }
    }
}

/// Parts come from identifiers and literals, none of which is empty. The last one is always a
/// literal that says what is done, so that the key of one action is never that of another.
fn key(parts: &[&str]) -> Key {
    Key::of(parts)
}

/// A customer's order. `total_minor` is the sum of the lines' amounts.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct OrderCreate {
    /// The order.
    pub order_id: OrderId,
    /// Who ordered.
    pub user_id: UserId,
    /// Currency of all amounts.
    pub currency: Currency,
    /// What is to be paid, in minor units; zero is paid at once.
    pub total_minor: i64,
    /// Goods and charges.
    pub lines: Vec<OrderLine>,
    /// Seconds until it expires unpaid; the configured time if absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pay_within_seconds: Option<u32>,
}

/// A line of an order.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct OrderLine {
    /// What was ordered; for a charge, its code.
    pub sku_id: SkuId,
    /// Units, at least one.
    pub qty: i64,
    /// Price of a unit in minor units, rounded where the shop prices finer.
    pub unit_price_minor: i64,
    /// What the line adds to the total. Negative for a discount, which is a charge.
    pub amount_minor: i64,
    /// A charge such as postage counts money and no stock.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub charge: bool,
}

/// Asks for an order to be closed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct OrderCancel {
    /// The order.
    pub order_id: OrderId,
    /// Why, for the history.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
}

/// Asks for an unpaid order to be closed because its time is up.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct OrderExpire {
    /// The order.
    pub order_id: OrderId,
    /// When the janitor read, by the database's clock, that the order was due. It never comes in a
    /// message, so nobody outside can use up the clock's key before the time.
    #[serde(skip)]
    pub seen_due: Option<Timestamp>,
}

/// Asks for money of an order to be given back.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct OrderRefund {
    /// The order.
    pub order_id: OrderId,
    /// Which of the order's requests it is. The refund gets a number of its own for the provider.
    pub refund_id: RefundId,
    /// Minor units; all that is left of the payment if absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub amount_minor: Option<i64>,
    /// Why, for the history.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
}

/// Asks for a word to the provider before an unpaid order expires.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct OrderRemind {
    /// The order.
    pub order_id: OrderId,
    /// When the janitor read, by the database's clock, that it was time. It never comes in a message.
    #[serde(skip)]
    pub seen_due: Option<Timestamp>,
}

/// An event that says nothing but which order.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct OrderRef {
    /// The order.
    pub order_id: OrderId,
}

/// The inventory could not set the goods aside.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct StockRejected {
    /// The order.
    pub order_id: OrderId,
    /// What is missing; empty if it came from a system that does not say.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub shortages: Vec<Shortage>,
}

/// A SKU of which there is not enough.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Shortage {
    /// The SKU.
    pub sku_id: SkuId,
    /// Units the order wants of it, all its lines together.
    pub wanted: i64,
    /// Units there are.
    pub available: i64,
}

/// A provider has received money.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct PaymentSucceeded {
    /// The order.
    pub order_id: OrderId,
    /// Who has the money.
    pub provider: Provider,
    /// The provider's number of the payment.
    pub trade_no: TradeNo,
    /// The number under which the provider knows the order, where it is not the order's own.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub out_trade_no: Option<TradeNo>,
    /// The provider's status, where one payment has several, such as Alipay's `TRADE_FINISHED`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub trade_status: Option<String>,
    /// Minor units, not negative.
    pub amount_minor: i64,
    /// Currency of the amount.
    pub currency: Currency,
}

impl PaymentSucceeded {
    fn out_trade_no(&self) -> &str {
        self.out_trade_no
            .as_ref()
            .map_or(self.order_id.as_str(), TradeNo::as_str)
    }

    /// The amount with its currency.
    #[must_use]
    pub fn amount(&self) -> Money {
        Money::new(self.amount_minor, self.currency)
    }
}

/// An attempt to pay failed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct PaymentFailed {
    /// The order.
    pub order_id: OrderId,
    /// Whose attempt.
    pub provider: Provider,
    /// The provider's number of the attempt.
    pub trade_no: TradeNo,
    /// Why, as the provider says.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
}

/// A provider gave money back.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct RefundSucceeded {
    /// The order.
    pub order_id: OrderId,
    /// Who gave it back.
    pub provider: Provider,
    /// The number of the refund.
    pub refund_no: RefundNo,
    /// The payment that is refunded; the order's own if absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub trade_no: Option<TradeNo>,
    /// How much.
    #[serde(flatten)]
    pub amount: RefundAmount,
    /// Currency of the amount.
    pub currency: Currency,
}

/// Providers state a refund's own amount, or what has been refunded of the payment so far.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub enum RefundAmount {
    /// Minor units of this refund.
    #[serde(rename = "amount_minor")]
    Own(i64),
    /// Minor units of all refunds of the payment up to this one.
    #[serde(rename = "total_refunded_minor")]
    RunningTotal(i64),
}

/// A provider could not give money back.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct RefundFailed {
    /// The order.
    pub order_id: OrderId,
    /// Who could not.
    pub provider: Provider,
    /// The number of the refund.
    pub refund_no: RefundNo,
    /// Why, as the provider says.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
}

/// An order was accepted.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct OrderCreated {
    /// The order.
    pub order_id: OrderId,
    /// Who ordered.
    pub user_id: UserId,
    /// Its goods, without charges.
    pub lines: Vec<StockLine>,
}

/// Units of a SKU.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct StockLine {
    /// The SKU.
    pub sku_id: SkuId,
    /// Units, at least one.
    pub qty: i64,
}

/// An order ended before its goods left.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct OrderClosed {
    /// The order.
    pub order_id: OrderId,
    /// `cancelled`, `expired`, `out_of_stock` or `refunded`.
    pub reason: String,
}

/// Goods of an order came back.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct StockReturn {
    /// The return.
    pub return_id: ReturnId,
    /// The order.
    pub order_id: OrderId,
    /// What came back.
    pub lines: Vec<StockLine>,
}

/// Sets or changes the stock of one SKU by hand.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct StockAdjust {
    /// The adjustment.
    pub adjustment_id: AdjustmentId,
    /// The SKU.
    pub sku_id: SkuId,
    /// What to do.
    #[serde(flatten)]
    pub adjustment: Adjustment,
    /// The version of the stock row that the author saw; 0 for a SKU that is not there yet. To set
    /// a level it is required; a change by a number may do without, since it holds whatever the
    /// level is.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub version: Option<i64>,
    /// Why, for the history.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
}

/// How stock is adjusted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Adjustment {
    /// To this many units.
    Set(i64),
    /// By this many units, negative to take off.
    Change(i64),
}

/// An order is complete.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct OrderCompleted {
    /// The order.
    pub order_id: OrderId,
    /// Who ordered.
    pub user_id: UserId,
    /// Currency of the amounts.
    pub currency: Currency,
    /// Paid so far, in minor units.
    pub paid_minor: i64,
    /// Refunded so far, in minor units.
    pub refunded_minor: i64,
}

/// Money of an order was given back.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct OrderRefunded {
    /// The order.
    pub order_id: OrderId,
    /// Who ordered.
    pub user_id: UserId,
    /// Whose refund.
    pub provider: Provider,
    /// The refund.
    pub refund_no: RefundNo,
    /// Currency of the amounts.
    pub currency: Currency,
    /// This refund, in minor units.
    pub amount_minor: i64,
    /// Paid, in minor units.
    pub paid_minor: i64,
    /// Refunded with this one, in minor units.
    pub refunded_minor: i64,
    /// Whether the order was complete, so that points had been earned.
    pub completed: bool,
}

/// Puts something on an account or takes it off.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct AccountChange {
    /// Whose account.
    pub user_id: UserId,
    /// What it counts.
    pub kind: AccountKind,
    /// What kind of thing caused it.
    pub source_type: SourceType,
    /// Which one.
    pub source_id: SourceId,
    /// Units of the kind, at least one; minor units where the kind counts money.
    pub amount: i64,
}

/// Takes back what a named source had credited.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct AccountReverse {
    /// Whose account.
    pub user_id: UserId,
    /// What it counts.
    pub kind: AccountKind,
    /// What kind of thing caused the reversal.
    pub source_type: SourceType,
    /// Which one.
    pub source_id: SourceId,
    /// The credit's source type.
    pub of_source_type: SourceType,
    /// The credit's source.
    pub of_source_id: SourceId,
    /// Units to take back; all that is left of the credit if absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub amount: Option<i64>,
}

/// An order is paid.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct OrderPaid {
    /// The order.
    pub order_id: OrderId,
    /// Who ordered.
    pub user_id: UserId,
    /// Currency of the amount.
    pub currency: Currency,
    /// Paid, in minor units.
    pub paid_minor: i64,
}

/// Money came that does not fit its order.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct PaymentRejected {
    /// The order.
    pub order_id: OrderId,
    /// Who has the money.
    pub provider: Provider,
    /// The provider's number of the payment.
    pub trade_no: TradeNo,
    /// What came, in minor units.
    pub amount_minor: i64,
    /// Its currency.
    pub currency: Currency,
    /// What does not fit.
    pub reason: Rejection,
}

/// Money is to be given back.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct RefundRequested {
    /// The order.
    pub order_id: OrderId,
    /// Who has the money.
    pub provider: Provider,
    /// The payment.
    pub trade_no: TradeNo,
    /// The number that the answer has to carry.
    pub refund_no: RefundNo,
    /// How much, in minor units.
    pub amount_minor: i64,
    /// Its currency.
    pub currency: Currency,
}

/// An order is about to expire unpaid.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct PaymentQueryRequested {
    /// The order.
    pub order_id: OrderId,
    /// Who ordered.
    pub user_id: UserId,
    /// Currency of the amount.
    pub currency: Currency,
    /// What is to be paid, in minor units.
    pub total_minor: i64,
    /// When it expires, RFC 3339.
    pub pay_deadline: String,
}

/// An account has changed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct AccountMoved {
    /// Whose account.
    pub user_id: UserId,
    /// What it counts.
    pub kind: AccountKind,
    /// What kind of thing caused it.
    pub source_type: SourceType,
    /// Which one.
    pub source_id: SourceId,
    /// The change, signed.
    pub amount: i64,
    /// What is on the account now.
    pub balance: i64,
}

/// An account could not be changed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct AccountRejected {
    /// Whose account.
    pub user_id: UserId,
    /// What it counts.
    pub kind: AccountKind,
    /// What kind of thing caused it.
    pub source_type: SourceType,
    /// Which one.
    pub source_id: SourceId,
    /// Why not.
    pub reason: Rejection,
}
