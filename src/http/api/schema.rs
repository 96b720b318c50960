//! What requests and answers look like, for the description of the API. Bodies of requests are read as the data of
//! messages are, by [`crate::message`]; these types describe them.

#![allow(dead_code, reason = "requests are described here and read elsewhere")]

use crate::domain;
use crate::store::{OrderView, PastStep};
use serde::Serialize;
use utoipa::openapi::schema::{ObjectBuilder, OneOfBuilder, Schema, Type};
use utoipa::{IntoParams, ToSchema};

/// A text with something to be seen and without control characters.
const ID: &str = r"^[^\x00-\x1f\x7f-\x9f]*[^\s\x00-\x1f\x7f-\x9f][^\x00-\x1f\x7f-\x9f]*$";

/// An identifier in an address: a text of at most 512 bytes.
fn text_id() -> ObjectBuilder {
    ObjectBuilder::new()
        .schema_type(Type::String)
        .min_length(Some(1))
        .max_length(Some(512))
        .pattern(Some(ID))
}

/// An identifier in a body: such a text, or an integer, taken digit by digit.
fn id() -> Schema {
    let digits = ObjectBuilder::new()
        .schema_type(Type::Integer)
        .minimum(Some(0));
    OneOfBuilder::new().item(text_id()).item(digits).into()
}

/// The same, or nothing.
fn optional_id() -> Schema {
    let nothing = ObjectBuilder::new().schema_type(Type::Null);
    OneOfBuilder::new().item(id()).item(nothing).into()
}

/// A code of ISO 4217.
fn currency() -> Schema {
    ObjectBuilder::new()
        .schema_type(Type::String)
        .enum_values(Some(domain::Currency::codes()))
        .into()
}

/// Nothing but `*`.
fn any() -> ObjectBuilder {
    ObjectBuilder::new()
        .schema_type(Type::String)
        .enum_values(Some(["*"]))
}

/// Which order.
#[derive(IntoParams)]
#[into_params(parameter_in = Path)]
pub(super) struct OfOrder {
    /// The order.
    #[param(schema_with = text_id)]
    order_id: String,
}

/// Which SKU.
#[derive(IntoParams)]
#[into_params(parameter_in = Path)]
pub(super) struct OfSku {
    /// The stock keeping unit.
    #[param(schema_with = text_id)]
    sku_id: String,
}

/// Whose.
#[derive(IntoParams)]
#[into_params(parameter_in = Path)]
pub(super) struct OfUser {
    /// The customer.
    #[param(schema_with = text_id)]
    user_id: String,
}

/// What makes a request one that may be made again.
#[derive(IntoParams)]
#[into_params(parameter_in = Header)]
pub(super) struct Once {
    /// New for each thing to be done, the same for each try at it.
    #[param(
        rename = "Idempotency-Key",
        min_length = 1,
        max_length = 255,
        pattern = "^[!-~]+$"
    )]
    idempotency_key: String,
}

/// What the caller has seen: one of the two.
#[derive(IntoParams)]
#[into_params(parameter_in = Header)]
pub(super) struct Seen {
    /// The ETag that was read.
    #[param(rename = "If-Match", value_type = String, required = false, pattern = "^\"[1-9][0-9]{0,17}\"$")]
    if_match: Option<String>,
    /// `*`: there never was any.
    #[param(rename = "If-None-Match", schema_with = any)]
    if_none_match: Option<String>,
}

/// A customer's order.
#[derive(ToSchema)]
pub(super) struct NewOrder {
    /// Your number of it; made from the Idempotency-Key if absent.
    #[schema(schema_with = optional_id)]
    order_id: Option<String>,
    /// Who ordered.
    #[schema(schema_with = id)]
    user_id: String,
    /// Of all amounts, ISO 4217.
    #[schema(schema_with = currency)]
    currency: String,
    /// What is to be paid, in minor units: the sum of the lines' amounts.
    #[schema(minimum = 0, maximum = 1_000_000_000_000_000_i64)]
    total_minor: i64,
    /// Goods and charges.
    #[schema(min_items = 1)]
    lines: Vec<NewLine>,
    /// Seconds until it expires unpaid; the configured time if absent.
    #[schema(minimum = 1, maximum = 4_294_967_295_u32)]
    pay_within_seconds: Option<u32>,
}

/// A line of an order.
#[derive(ToSchema)]
pub(super) struct NewLine {
    /// What was ordered; for a charge, its code.
    #[schema(schema_with = id)]
    sku_id: String,
    /// Units.
    #[schema(minimum = 1, maximum = 1_000_000_000_000_i64)]
    qty: i64,
    /// Price of a unit in minor units; negative only for a charge that is a discount.
    #[schema(minimum = -1_000_000_000_000_000_i64, maximum = 1_000_000_000_000_000_i64)]
    unit_price_minor: i64,
    /// What the line adds to the total; units times price if absent.
    #[schema(minimum = -1_000_000_000_000_000_i64, maximum = 1_000_000_000_000_000_i64)]
    amount_minor: Option<i64>,
    /// A charge such as postage counts money and no stock.
    charge: Option<bool>,
}

/// Why an order is cancelled.
#[derive(ToSchema)]
pub(super) struct Cancellation {
    /// For the history.
    reason: Option<String>,
}

/// Money to be given back.
#[derive(ToSchema)]
pub(super) struct NewRefund {
    /// Your number of it; made from the Idempotency-Key if absent.
    #[schema(schema_with = optional_id)]
    refund_id: Option<String>,
    /// In minor units; all that is left if absent.
    #[schema(minimum = 1, maximum = 1_000_000_000_000_000_i64)]
    amount_minor: Option<i64>,
    /// For the history.
    reason: Option<String>,
}

/// The stock that there is from now on.
#[derive(ToSchema)]
pub(super) struct NewStock {
    /// Units that can be sold.
    #[schema(minimum = 0, maximum = 1_000_000_000_000_i64)]
    available: i64,
    /// For the history.
    reason: Option<String>,
}

/// What became of a request.
#[derive(Serialize, ToSchema)]
pub(super) struct Answer {
    /// The order.
    pub(super) order_id: String,
    /// `applied`; `duplicate` if it had been done before by another request; `stale` if it came too late to
    /// matter; `parked` if it waits for something.
    pub(super) outcome: String,
    /// What it waits for, such as `order:O1:PAID`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) awaits: Option<String>,
}

/// An order.
#[derive(Serialize, ToSchema)]
pub(super) struct Order {
    order_id: String,
    user_id: String,
    /// `WAIT_PAY`, `PAID`, `SHIPPED`, `COMPLETED`, `CLOSED` or `REFUNDED`.
    status: String,
    /// How many steps its history has.
    version: i64,
    currency: String,
    total_minor: i64,
    paid_minor: i64,
    refunded_minor: i64,
    /// When it expires if unpaid, RFC 3339.
    pay_deadline: String,
    /// What became of its stock: `DEDUCTED`, `REJECTED` or `RELEASED`, once that is known.
    #[serde(skip_serializing_if = "Option::is_none")]
    reservation: Option<String>,
    lines: Vec<Line>,
    payments: Vec<Payment>,
    refunds: Vec<Refund>,
    history: Vec<Step>,
}

/// A line of an order.
#[derive(Serialize, ToSchema)]
pub(super) struct Line {
    sku_id: String,
    qty: i64,
    unit_price_minor: i64,
    amount_minor: i64,
    charge: bool,
}

/// A payment of an order.
#[derive(Serialize, ToSchema)]
pub(super) struct Payment {
    provider: String,
    trade_no: String,
    /// `ACCEPTED`, `SURPLUS` or `LATE`.
    status: String,
    amount_minor: i64,
    currency: String,
}

/// A refund of an order.
#[derive(Serialize, ToSchema)]
pub(super) struct Refund {
    provider: String,
    refund_no: String,
    /// The payment that is refunded, where it is known.
    #[serde(skip_serializing_if = "Option::is_none")]
    trade_no: Option<String>,
    /// `REQUESTED`, `SUCCEEDED` or `FAILED`.
    status: String,
    amount_minor: i64,
    currency: String,
}

/// A step of an order's history.
#[derive(Serialize, ToSchema)]
pub(super) struct Step {
    version: i64,
    /// Where it stood; absent for the first step.
    #[serde(skip_serializing_if = "Option::is_none")]
    from: Option<String>,
    /// Where it stood then.
    to: String,
    /// The key of the event that caused it.
    key: String,
    /// When, RFC 3339.
    at: String,
}

/// The stock of a SKU.
#[derive(Serialize, ToSchema)]
pub(super) struct Stock {
    pub(super) sku_id: String,
    /// Units that can be sold.
    pub(super) available: i64,
    /// Counts its changes.
    pub(super) version: i64,
}

/// The accounts of a user.
#[derive(Serialize, ToSchema)]
pub(super) struct Accounts {
    pub(super) user_id: String,
    pub(super) accounts: Vec<Account>,
}

/// An account.
#[derive(Serialize, ToSchema)]
pub(super) struct Account {
    /// What it counts, such as `POINTS`.
    kind: String,
    balance: i64,
    /// Counts its changes.
    version: i64,
}

impl From<OrderView> for Order {
    fn from(view: OrderView) -> Self {
        let summary = view.summary;
        Self {
            order_id: summary.order_id.to_string(),
            user_id: summary.user_id.to_string(),
            status: summary.status.to_string(),
            version: summary.version,
            currency: summary.currency.to_string(),
            total_minor: summary.total_minor,
            paid_minor: summary.paid_minor,
            refunded_minor: summary.refunded_minor,
            pay_deadline: summary.pay_deadline.to_string(),
            reservation: summary.reservation.map(|status| status.to_string()),
            lines: view.lines.into_iter().map(Line::from).collect(),
            payments: view.payments.into_iter().map(Payment::from).collect(),
            refunds: view.refunds.into_iter().map(Refund::from).collect(),
            history: view.history.into_iter().map(Step::from).collect(),
        }
    }
}

impl From<domain::event::OrderLine> for Line {
    fn from(line: domain::event::OrderLine) -> Self {
        Self {
            sku_id: line.sku_id.to_string(),
            qty: line.qty,
            unit_price_minor: line.unit_price_minor,
            amount_minor: line.amount_minor,
            charge: line.charge,
        }
    }
}

impl From<domain::order::Payment> for Payment {
    fn from(payment: domain::order::Payment) -> Self {
        Self {
            provider: payment.provider.to_string(),
            trade_no: payment.trade_no.to_string(),
            status: payment.status.to_string(),
            amount_minor: payment.amount_minor,
            currency: payment.currency.to_string(),
        }
    }
}

impl From<domain::order::Refund> for Refund {
    fn from(refund: domain::order::Refund) -> Self {
        Self {
            provider: refund.provider.to_string(),
            refund_no: refund.refund_no.to_string(),
            trade_no: refund.trade_no.map(|number| number.to_string()),
            status: refund.status.to_string(),
            amount_minor: refund.amount_minor,
            currency: refund.currency.to_string(),
        }
    }
}

impl From<PastStep> for Step {
    fn from(past: PastStep) -> Self {
        Self {
            version: past.step.version,
            from: past.step.from.map(|status| status.to_string()),
            to: past.step.to.to_string(),
            key: past.key.to_string(),
            at: past.at.to_string(),
        }
    }
}

impl From<domain::inventory::Stock> for Stock {
    fn from(stock: domain::inventory::Stock) -> Self {
        Self {
            sku_id: stock.sku_id.to_string(),
            available: stock.available,
            version: stock.version,
        }
    }
}

impl From<domain::account::Account> for Account {
    fn from(account: domain::account::Account) -> Self {
        Self {
            kind: account.id.kind.to_string(),
            balance: account.balance,
            version: account.version,
        }
    }
}
