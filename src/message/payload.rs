//! The content of each type of event that a built-in role consumes.

use super::{Fields, Malformed};
use crate::domain::event::{
    AccountChange, AccountEvent, AccountReverse, Adjustment, InventoryEvent, MAX_AMOUNT, MAX_QTY,
    OrderCancel, OrderClosed, OrderCompleted, OrderCreate, OrderCreated, OrderEvent, OrderExpire,
    OrderLine, OrderRef, OrderRefund, OrderRefunded, OrderRemind, PaymentFailed, PaymentSucceeded,
    RefundAmount, RefundFailed, RefundSucceeded, Shortage, StockAdjust, StockLine, StockRejected,
    StockReturn,
};
use crate::domain::{
    AccountKind, AdjustmentId, EventType, OrderId, Provider, RefundId, RefundNo, ReturnId, SkuId,
    SourceId, SourceType, TradeNo, UserId,
};
use std::ops::RangeInclusive;

/// Units of a line, a return or a shortage's demand.
const QTY: RangeInclusive<i64> = 1..=MAX_QTY;
/// Units that a SKU is set to.
const LEVEL: RangeInclusive<i64> = 0..=MAX_QTY;
/// Units that a SKU is changed by.
const CHANGE: RangeInclusive<i64> = -MAX_QTY..=MAX_QTY;
/// Units that add up what events state; only told, never calculated with.
const SUM: RangeInclusive<i64> = 0..=i64::MAX;
/// The version of a row that the author saw; only compared.
const VERSION: RangeInclusive<i64> = 0..=i64::MAX;
/// Money or points of which there may be none.
const AMOUNT: RangeInclusive<i64> = 0..=MAX_AMOUNT;
/// Money or points that move.
const SOME_AMOUNT: RangeInclusive<i64> = 1..=MAX_AMOUNT;
/// A charge, or the discount that it is if negative.
const CHARGE: RangeInclusive<i64> = -MAX_AMOUNT..=MAX_AMOUNT;

/// Reads an event that moves an order; `None` if `event_type` does not.
///
/// # Errors
/// [`Malformed`]: the first thing that is wrong with it.
pub fn order_event(
    event_type: EventType,
    fields: &Fields<'_>,
) -> Option<Result<OrderEvent, Malformed>> {
    #[expect(
        clippy::wildcard_enum_match_arm,
        reason = "a type that moves no order has another consumer"
    )]
    Some(match event_type {
        EventType::OrderCreate => order_create(fields).map(OrderEvent::Create),
        EventType::OrderCancel => order_cancel(fields).map(OrderEvent::Cancel),
        EventType::OrderExpire => order_expire(fields).map(OrderEvent::Expire),
        EventType::OrderShip => order_ref(fields).map(OrderEvent::Ship),
        EventType::OrderComplete => order_ref(fields).map(OrderEvent::Complete),
        EventType::OrderRefund => order_refund(fields).map(OrderEvent::Refund),
        EventType::OrderRemind => order_remind(fields).map(OrderEvent::Remind),
        EventType::StockDeducted => order_ref(fields).map(OrderEvent::StockDeducted),
        EventType::StockRejected => stock_rejected(fields).map(OrderEvent::StockRejected),
        EventType::PaymentSucceeded => payment(fields).map(OrderEvent::PaymentSucceeded),
        EventType::PaymentFailed => payment_failed(fields).map(OrderEvent::PaymentFailed),
        EventType::RefundSucceeded => refund(fields).map(OrderEvent::RefundSucceeded),
        EventType::RefundFailed => refund_failed(fields).map(OrderEvent::RefundFailed),
        _ => return None,
    })
}

/// Reads an event that moves stock; `None` if `event_type` does not.
///
/// # Errors
/// [`Malformed`]: the first thing that is wrong with it.
pub fn inventory_event(
    event_type: EventType,
    fields: &Fields<'_>,
) -> Option<Result<InventoryEvent, Malformed>> {
    #[expect(
        clippy::wildcard_enum_match_arm,
        reason = "a type that moves no stock has another consumer"
    )]
    Some(match event_type {
        EventType::OrderCreated => order_created(fields).map(InventoryEvent::Created),
        EventType::OrderClosed => order_closed(fields).map(InventoryEvent::Closed),
        EventType::StockReturn => stock_return(fields).map(InventoryEvent::Return),
        EventType::StockAdjust => stock_adjust(fields).map(InventoryEvent::Adjust),
        _ => return None,
    })
}

/// Reads an event that moves an account; `None` if `event_type` does not.
///
/// # Errors
/// [`Malformed`]: the first thing that is wrong with it.
pub fn account_event(
    event_type: EventType,
    fields: &Fields<'_>,
) -> Option<Result<AccountEvent, Malformed>> {
    #[expect(
        clippy::wildcard_enum_match_arm,
        reason = "a type that moves no account has another consumer"
    )]
    Some(match event_type {
        EventType::OrderCompleted => order_completed(fields).map(AccountEvent::Completed),
        EventType::OrderRefunded => order_refunded(fields).map(AccountEvent::Refunded),
        EventType::AccountCredit => account_change(fields).map(AccountEvent::Credit),
        EventType::AccountDebit => account_change(fields).map(AccountEvent::Debit),
        EventType::AccountReverse => account_reverse(fields).map(AccountEvent::Reverse),
        _ => return None,
    })
}

fn order_create(fields: &Fields<'_>) -> Result<OrderCreate, Malformed> {
    let lines = fields.objects("lines")?;
    let lines: Vec<OrderLine> = lines.iter().map(order_line).collect::<Result<_, _>>()?;
    let total_minor = fields.integer("total_minor", AMOUNT)?;
    let sum = lines
        .iter()
        .try_fold(0_i64, |sum, line| sum.checked_add(line.amount_minor));
    if sum != Some(total_minor) {
        let sum = sum.map_or("beyond the range".to_owned(), |sum| sum.to_string());
        let problem = format!("must be the sum of the lines' amounts, which is {sum}");
        return Err(fields.invalid("total_minor", &total_minor.to_string(), &problem));
    }
    let pay_within = fields.optional_integer("pay_within_seconds", 1..=u32::MAX.into())?;
    Ok(OrderCreate {
        order_id: fields.id("order_id", OrderId::new)?,
        user_id: fields.id("user_id", UserId::new)?,
        currency: fields.currency("currency")?,
        total_minor,
        lines,
        pay_within_seconds: pay_within.and_then(|seconds| seconds.try_into().ok()),
    })
}

fn order_line(fields: &Fields<'_>) -> Result<OrderLine, Malformed> {
    let charge = fields.flag("charge")?;
    // A discount is a charge with a negative amount; goods are never sold below nothing.
    let prices = if charge { CHARGE } else { AMOUNT };
    let qty = fields.integer("qty", QTY)?;
    let unit_price_minor = fields.integer("unit_price_minor", prices.clone())?;
    let amount_minor = match fields.optional_integer("amount_minor", prices.clone())? {
        Some(amount) => amount,
        None => {
            let product = qty.checked_mul(unit_price_minor);
            product
                .filter(|amount| prices.contains(amount))
                .ok_or_else(|| {
                    let problem = format!("times qty {qty} is more than {MAX_AMOUNT}");
                    fields.invalid("unit_price_minor", &unit_price_minor.to_string(), &problem)
                })?
        }
    };
    Ok(OrderLine {
        sku_id: fields.id("sku_id", SkuId::new)?,
        qty,
        unit_price_minor,
        amount_minor,
        charge,
    })
}

fn order_cancel(fields: &Fields<'_>) -> Result<OrderCancel, Malformed> {
    Ok(OrderCancel {
        order_id: fields.id("order_id", OrderId::new)?,
        reason: fields.remark("reason")?,
    })
}

fn order_expire(fields: &Fields<'_>) -> Result<OrderExpire, Malformed> {
    Ok(OrderExpire {
        order_id: fields.id("order_id", OrderId::new)?,
        seen_due: None,
    })
}

fn order_refund(fields: &Fields<'_>) -> Result<OrderRefund, Malformed> {
    Ok(OrderRefund {
        order_id: fields.id("order_id", OrderId::new)?,
        refund_id: fields.id("refund_id", RefundId::new)?,
        amount_minor: fields.optional_integer("amount_minor", SOME_AMOUNT)?,
        reason: fields.remark("reason")?,
    })
}

fn order_remind(fields: &Fields<'_>) -> Result<OrderRemind, Malformed> {
    Ok(OrderRemind {
        order_id: fields.id("order_id", OrderId::new)?,
        seen_due: None,
    })
}

fn order_ref(fields: &Fields<'_>) -> Result<OrderRef, Malformed> {
    Ok(OrderRef {
        order_id: fields.id("order_id", OrderId::new)?,
    })
}

fn stock_rejected(fields: &Fields<'_>) -> Result<StockRejected, Malformed> {
    let shortages = match fields.optional("shortages") {
        None => Vec::new(),
        Some(_) => fields.objects_or_none("shortages")?,
    };
    let shortage = |fields: &Fields<'_>| {
        Ok(Shortage {
            sku_id: fields.id("sku_id", SkuId::new)?,
            wanted: fields.integer("wanted", SUM)?,
            available: fields.integer("available", SUM)?,
        })
    };
    Ok(StockRejected {
        order_id: fields.id("order_id", OrderId::new)?,
        shortages: shortages.iter().map(shortage).collect::<Result<_, _>>()?,
    })
}

fn payment(fields: &Fields<'_>) -> Result<PaymentSucceeded, Malformed> {
    Ok(PaymentSucceeded {
        order_id: fields.id("order_id", OrderId::new)?,
        provider: fields.id("provider", Provider::new)?,
        trade_no: fields.id("trade_no", TradeNo::new)?,
        out_trade_no: fields.optional_id("out_trade_no", TradeNo::new)?,
        // A status is part of the key, so it is checked as an identifier is.
        trade_status: fields
            .optional_id("trade_status", SourceType::new)?
            .map(|status| status.as_str().to_owned()),
        amount_minor: fields.integer("amount_minor", AMOUNT)?,
        currency: fields.currency("currency")?,
    })
}

fn payment_failed(fields: &Fields<'_>) -> Result<PaymentFailed, Malformed> {
    Ok(PaymentFailed {
        order_id: fields.id("order_id", OrderId::new)?,
        provider: fields.id("provider", Provider::new)?,
        trade_no: fields.id("trade_no", TradeNo::new)?,
        reason: fields.remark("reason")?,
    })
}

fn refund(fields: &Fields<'_>) -> Result<RefundSucceeded, Malformed> {
    let total = fields.optional_integer("total_refunded_minor", SOME_AMOUNT)?;
    let own = fields.optional_integer("amount_minor", SOME_AMOUNT)?;
    let amount = match (own, total) {
        (Some(_), Some(total)) => {
            let problem = "must not stand beside amount_minor";
            return Err(fields.invalid("total_refunded_minor", &total.to_string(), problem));
        }
        (None, Some(total)) => RefundAmount::RunningTotal(total),
        (_, None) => RefundAmount::Own(fields.integer("amount_minor", SOME_AMOUNT)?),
    };
    Ok(RefundSucceeded {
        order_id: fields.id("order_id", OrderId::new)?,
        provider: fields.id("provider", Provider::new)?,
        refund_no: fields.id("refund_no", RefundNo::new)?,
        trade_no: fields.optional_id("trade_no", TradeNo::new)?,
        amount,
        currency: fields.currency("currency")?,
    })
}

fn refund_failed(fields: &Fields<'_>) -> Result<RefundFailed, Malformed> {
    Ok(RefundFailed {
        order_id: fields.id("order_id", OrderId::new)?,
        provider: fields.id("provider", Provider::new)?,
        refund_no: fields.id("refund_no", RefundNo::new)?,
        reason: fields.remark("reason")?,
    })
}

fn stock_lines(lines: &[Fields<'_>]) -> Result<Vec<StockLine>, Malformed> {
    let line = |fields: &Fields<'_>| {
        Ok(StockLine {
            sku_id: fields.id("sku_id", SkuId::new)?,
            qty: fields.integer("qty", QTY)?,
        })
    };
    lines.iter().map(line).collect()
}

fn order_created(fields: &Fields<'_>) -> Result<OrderCreated, Malformed> {
    Ok(OrderCreated {
        order_id: fields.id("order_id", OrderId::new)?,
        user_id: fields.id("user_id", UserId::new)?,
        // An order of charges alone has no goods.
        lines: stock_lines(&fields.objects_or_none("lines")?)?,
    })
}

fn order_closed(fields: &Fields<'_>) -> Result<OrderClosed, Malformed> {
    Ok(OrderClosed {
        order_id: fields.id("order_id", OrderId::new)?,
        reason: fields.text("reason")?.replace('\0', "\u{FFFD}"),
    })
}

fn stock_return(fields: &Fields<'_>) -> Result<StockReturn, Malformed> {
    Ok(StockReturn {
        return_id: fields.id("return_id", ReturnId::new)?,
        order_id: fields.id("order_id", OrderId::new)?,
        lines: stock_lines(&fields.objects("lines")?)?,
    })
}

fn stock_adjust(fields: &Fields<'_>) -> Result<StockAdjust, Malformed> {
    let set = fields.optional_integer("set", LEVEL)?;
    let change = fields.optional_integer("change", CHANGE)?;
    let version = fields.optional_integer("version", VERSION)?;
    let adjustment = match (set, change) {
        (Some(level), Some(_)) => {
            return Err(fields.invalid("set", &level.to_string(), "must not stand beside change"));
        }
        (Some(level), None) => {
            // A level is meant for what its author saw.
            fields.required("version")?;
            Adjustment::Set(level)
        }
        (None, Some(0)) => return Err(fields.invalid("change", "0", "must not be zero")),
        (None, _) => Adjustment::Change(fields.integer("change", CHANGE)?),
    };
    Ok(StockAdjust {
        adjustment_id: fields.id("adjustment_id", AdjustmentId::new)?,
        sku_id: fields.id("sku_id", SkuId::new)?,
        adjustment,
        version,
        reason: fields.remark("reason")?,
    })
}

fn order_completed(fields: &Fields<'_>) -> Result<OrderCompleted, Malformed> {
    Ok(OrderCompleted {
        order_id: fields.id("order_id", OrderId::new)?,
        user_id: fields.id("user_id", UserId::new)?,
        currency: fields.currency("currency")?,
        paid_minor: fields.integer("paid_minor", AMOUNT)?,
        refunded_minor: fields.integer("refunded_minor", AMOUNT)?,
    })
}

fn order_refunded(fields: &Fields<'_>) -> Result<OrderRefunded, Malformed> {
    Ok(OrderRefunded {
        order_id: fields.id("order_id", OrderId::new)?,
        user_id: fields.id("user_id", UserId::new)?,
        provider: fields.id("provider", Provider::new)?,
        refund_no: fields.id("refund_no", RefundNo::new)?,
        currency: fields.currency("currency")?,
        amount_minor: fields.integer("amount_minor", SOME_AMOUNT)?,
        paid_minor: fields.integer("paid_minor", AMOUNT)?,
        refunded_minor: fields.integer("refunded_minor", AMOUNT)?,
        completed: fields.flag("completed")?,
    })
}

fn account_change(fields: &Fields<'_>) -> Result<AccountChange, Malformed> {
    Ok(AccountChange {
        user_id: fields.id("user_id", UserId::new)?,
        kind: fields.id("kind", AccountKind::new)?,
        source_type: fields.id("source_type", SourceType::new)?,
        source_id: fields.id("source_id", SourceId::new)?,
        amount: fields.integer("amount", SOME_AMOUNT)?,
    })
}

fn account_reverse(fields: &Fields<'_>) -> Result<AccountReverse, Malformed> {
    Ok(AccountReverse {
        user_id: fields.id("user_id", UserId::new)?,
        kind: fields.id("kind", AccountKind::new)?,
        source_type: fields.id("source_type", SourceType::new)?,
        source_id: fields.id("source_id", SourceId::new)?,
        of_source_type: fields.id("of_source_type", SourceType::new)?,
        of_source_id: fields.id("of_source_id", SourceId::new)?,
        amount: fields.optional_integer("amount", SOME_AMOUNT)?,
    })
}
