//! The order's table: every event in every status.

mod properties;

use super::*;
use crate::domain::EventType;
use crate::domain::testing::{
    DUE, EARLY, OrderRows, REMINDING, TAKEN, ask_back, asked, cancel, check_table, create, expire,
    id, of, pay, pay_failed, refund, refund_failed, remind, show_rest, show_verdict,
    stock_rejected,
};
use RefundAmount::{Own, RunningTotal};
use strum::IntoEnumIterator;

const TOTAL: i64 = 1999;

/// Where the order stands before the event. Once it was there to be paid, it also has a payment T2
/// of 700 that it did not need. An order can be closed unpaid (CLOSED) or paid (CLOSED_PAID).
pub(in crate::domain) fn columns() -> Vec<(&'static str, OrderRows)> {
    use OrderEvent::{Complete, PaymentSucceeded, RefundSucceeded, Ship};

    let early = |events: &[OrderEvent]| -> Vec<(OrderEvent, Context)> {
        events.iter().map(|event| (event.clone(), EARLY)).collect()
    };
    let wait_pay = early(&[create("O1", TOTAL, &[("S1", 2)])]);
    let surplus = PaymentSucceeded(pay("O1", "T2", 700));
    let paid = early(&[PaymentSucceeded(pay("O1", "T1", TOTAL)), surplus.clone()]);
    let paid = [wait_pay.clone(), paid].concat();
    let shipped = [paid.clone(), early(&[Ship(of("O1"))])].concat();
    let completed = [shipped.clone(), early(&[Complete(of("O1"))])].concat();
    let closed = vec![(expire("O1"), DUE), (surplus, EARLY)];
    let closed = [wait_pay.clone(), closed].concat();
    let closed_paid = [paid.clone(), early(&[cancel("O1")])].concat();
    let all = RefundSucceeded(refund("O1", "R0", Own(TOTAL)));
    let refunded = [paid.clone(), early(&[all])].concat();
    let columns = [
        ("none", Vec::new()),
        ("WAIT_PAY", wait_pay),
        ("PAID", paid),
        ("SHIPPED", shipped),
        ("COMPLETED", completed),
        ("CLOSED", closed),
        ("CLOSED_PAID", closed_paid),
        ("REFUNDED", refunded),
    ];
    let rows = |(name, events): (_, Vec<_>)| (name, OrderRows::after(&events));
    columns.into_iter().map(rows).collect()
}

/// Every event with its variants.
#[rustfmt::skip]
pub(in crate::domain) fn events() -> Vec<(&'static str, OrderEvent, Context)> {
    let jpy = Currency::new("JPY").unwrap();
    let same = || create("O1", TOTAL, &[("S1", 2)]);
    let paid = |trade_no, amount| OrderEvent::PaymentSucceeded(pay("O1", trade_no, amount));
    let paid_as = |change: &dyn Fn(&mut PaymentSucceeded)| {
        let mut event = pay("O1", "T3", TOTAL);
        change(&mut event);
        OrderEvent::PaymentSucceeded(event)
    };
    let back = |refund_no: &str, amount| {
        let event = refund("O1", refund_no, amount);
        OrderEvent::RefundSucceeded(event)
    };
    let back_as = |refund_no: &str, amount, change: &dyn Fn(&mut RefundSucceeded)| {
        let mut event = refund("O1", refund_no, Own(amount));
        change(&mut event);
        OrderEvent::RefundSucceeded(event)
    };
    let clock = OrderEvent::Expire(OrderExpire {
        order_id: id("O1"),
        seen_due: Some(DUE.now),
    });
    let further = |event: &mut PaymentSucceeded| {
        event.trade_no = id("T1");
        event.trade_status = Some("TRADE_FINISHED".to_owned());
    };
    vec![
        ("order.create", same(), EARLY),
        ("order.create, other content", create("O1", TOTAL, &[("S1", 3)]), EARLY),
        ("order.create, total 0", create("O1", 0, &[("S1", 2)]), EARLY),
        ("stock.deducted", OrderEvent::StockDeducted(of("O1")), EARLY),
        ("stock.rejected", stock_rejected("O1"), EARLY),
        ("payment.succeeded, matches, new trade no", paid("T3", TOTAL), EARLY),
        ("payment.succeeded, trade no of the first", paid("T1", TOTAL), EARLY),
        ("payment.succeeded, trade no of the first, further status", paid_as(&further), EARLY),
        ("payment.succeeded, trade no of the first, other amount", paid("T1", 5), EARLY),
        ("payment.succeeded, trade no of the surplus", paid("T2", 700), EARLY),
        ("payment.succeeded, other amount", paid("T3", 1998), EARLY),
        ("payment.succeeded, other currency", paid_as(&|p| p.currency = jpy), EARLY),
        ("payment.succeeded, zero", paid("T3", 0), EARLY),
        ("payment.succeeded, negative", paid("T3", -1), EARLY),
        ("payment.succeeded, trade no of another order", paid("T3", TOTAL), TAKEN),
        ("payment.failed", pay_failed("O1", "T9"), EARLY),
        ("order.cancel", cancel("O1"), EARLY),
        ("order.expire, due", expire("O1"), DUE),
        ("order.expire, early", expire("O1"), EARLY),
        ("order.expire, seen due by the clock", clock, EARLY),
        ("order.ship", OrderEvent::Ship(of("O1")), EARLY),
        ("order.complete", OrderEvent::Complete(of("O1")), EARLY),
        ("order.refund, part", ask_back("O1", "A1", Some(500)), EARLY),
        ("order.refund, all", ask_back("O1", "A1", None), EARLY),
        ("order.refund, more than is left", ask_back("O1", "A1", Some(TOTAL + 1)), EARLY),
        ("order.remind", remind("O1"), EARLY),
        ("refund.succeeded, part", back("R1", Own(500)), EARLY),
        ("refund.succeeded, part, running total", back("R1", RunningTotal(500)), EARLY),
        ("refund.succeeded, all", back("R1", Own(TOTAL)), EARLY),
        ("refund.succeeded, all, running total", back("R1", RunningTotal(TOTAL)), EARLY),
        ("refund.succeeded, more than paid", back("R1", Own(TOTAL + 1)), EARLY),
        ("refund.succeeded, more than paid, running total", back("R1", RunningTotal(2000)), EARLY),
        ("refund.succeeded, zero", back("R1", Own(0)), EARLY),
        ("refund.succeeded, other currency", back_as("R1", 500, &|r| r.currency = jpy), EARLY),
        ("refund.succeeded, of a payment by name", back_as("R1", TOTAL, &|r| r.trade_no = Some(id("T1"))), EARLY),
        ("refund.succeeded, of a payment as asked for", back(&asked("T1"), Own(TOTAL)), EARLY),
        ("refund.succeeded, of the surplus", back_as("R1", 700, &|r| r.trade_no = Some(id("T2"))), EARLY),
        ("refund.succeeded, of the surplus as asked for", back(&asked("T2"), Own(700)), EARLY),
        ("refund.succeeded, of an unknown payment", back_as("R1", 500, &|r| r.trade_no = Some(id("T9"))), EARLY),
        ("refund.succeeded, other provider", back_as("R1", 500, &|r| r.provider = id("wechat")), EARLY),
        ("refund.succeeded, number of another order", back("R1", Own(500)), TAKEN),
        ("refund.succeeded, once more", back("R0", Own(TOTAL)), EARLY),
        ("refund.succeeded, once more, other amount", back("R0", Own(500)), EARLY),
        ("refund.failed", refund_failed("O1", "R1"), EARLY),
        ("refund.failed, of the surplus", refund_failed("O1", &asked("T2")), EARLY),
        ("refund.failed, after success", refund_failed("O1", "R0"), EARLY),
        ("refund.failed, number of another order", refund_failed("O1", "R1"), TAKEN),
    ]
}

/// `-> S` a new status, `note` the same one; `paid=` and `refunded=` the order's sums if they
/// changed; rows of `payment` and `refund` with status and amount; `+` events; `!` tokens reached.
const TABLE: &str = "
order.create
    none: -> WAIT_PAY +order.created !WAIT_PAY
    WAIT_PAY PAID SHIPPED COMPLETED CLOSED CLOSED_PAID REFUNDED: duplicate
order.create, other content
    none: -> WAIT_PAY +order.created !WAIT_PAY
    WAIT_PAY PAID SHIPPED COMPLETED CLOSED CLOSED_PAID REFUNDED: conflict
order.create, total 0
    none: -> PAID +order.created +order.paid !WAIT_PAY,PAID
    WAIT_PAY PAID SHIPPED COMPLETED CLOSED CLOSED_PAID REFUNDED: conflict

stock.deducted
    none: park WAIT_PAY
    WAIT_PAY PAID SHIPPED COMPLETED: note
    CLOSED CLOSED_PAID REFUNDED: stale
stock.rejected
    none: park WAIT_PAY
    WAIT_PAY: -> CLOSED +order.closed !WAIT_PAY,PAID,SHIPPED
    PAID: -> CLOSED refund REQUESTED 1999 +order.closed +refund.requested !WAIT_PAY,PAID,SHIPPED
    SHIPPED: rejected already_shipped
    COMPLETED: rejected already_completed
    CLOSED CLOSED_PAID REFUNDED: stale

payment.succeeded, matches, new trade no
    none: park WAIT_PAY
    WAIT_PAY: -> PAID paid=1999 payment ACCEPTED 1999 +order.paid !PAID
    PAID SHIPPED COMPLETED: note payment SURPLUS 1999 refund REQUESTED 1999 +refund.requested
    CLOSED CLOSED_PAID REFUNDED: note payment LATE 1999 refund REQUESTED 1999 +refund.requested
payment.succeeded, trade no of the first
    none: park WAIT_PAY
    WAIT_PAY: -> PAID paid=1999 payment ACCEPTED 1999 +order.paid !PAID
    PAID SHIPPED COMPLETED CLOSED_PAID REFUNDED: duplicate
    CLOSED: note payment LATE 1999 refund REQUESTED 1999 +refund.requested
payment.succeeded, trade no of the first, further status
    none: park WAIT_PAY
    WAIT_PAY: -> PAID paid=1999 payment ACCEPTED 1999 +order.paid !PAID
    PAID SHIPPED COMPLETED CLOSED_PAID REFUNDED: stale
    CLOSED: note payment LATE 1999 refund REQUESTED 1999 +refund.requested
payment.succeeded, trade no of the first, other amount
    none: park WAIT_PAY
    WAIT_PAY: rejected amount_mismatch +payment.rejected
    PAID SHIPPED COMPLETED CLOSED_PAID REFUNDED: conflict
    CLOSED: note payment LATE 5 refund REQUESTED 5 +refund.requested
payment.succeeded, trade no of the surplus
    none: park WAIT_PAY
    WAIT_PAY: rejected amount_mismatch +payment.rejected
    PAID SHIPPED COMPLETED CLOSED CLOSED_PAID REFUNDED: duplicate
payment.succeeded, other amount
    none: park WAIT_PAY
    WAIT_PAY: rejected amount_mismatch +payment.rejected
    PAID SHIPPED COMPLETED: note payment SURPLUS 1998 refund REQUESTED 1998 +refund.requested
    CLOSED CLOSED_PAID REFUNDED: note payment LATE 1998 refund REQUESTED 1998 +refund.requested
payment.succeeded, other currency
    none: park WAIT_PAY
    WAIT_PAY: rejected currency_mismatch +payment.rejected
    PAID SHIPPED COMPLETED: note payment SURPLUS 1999 refund REQUESTED 1999 +refund.requested
    CLOSED CLOSED_PAID REFUNDED: note payment LATE 1999 refund REQUESTED 1999 +refund.requested
payment.succeeded, zero
    none: park WAIT_PAY
    WAIT_PAY: rejected amount_mismatch +payment.rejected
    PAID SHIPPED COMPLETED CLOSED CLOSED_PAID REFUNDED: stale
payment.succeeded, negative
    none: park WAIT_PAY
    WAIT_PAY: rejected amount_mismatch +payment.rejected
    PAID SHIPPED COMPLETED CLOSED CLOSED_PAID REFUNDED: stale
payment.succeeded, trade no of another order
    none: park WAIT_PAY
    WAIT_PAY PAID SHIPPED COMPLETED CLOSED CLOSED_PAID REFUNDED: rejected number_of_another_order +payment.rejected
payment.failed
    none: park WAIT_PAY
    WAIT_PAY: note
    PAID SHIPPED COMPLETED CLOSED CLOSED_PAID REFUNDED: stale

order.cancel
    none: park WAIT_PAY
    WAIT_PAY: -> CLOSED +order.closed !WAIT_PAY,PAID,SHIPPED
    PAID: -> CLOSED refund REQUESTED 1999 +order.closed +refund.requested !WAIT_PAY,PAID,SHIPPED
    SHIPPED: rejected already_shipped
    COMPLETED: rejected already_completed
    CLOSED CLOSED_PAID REFUNDED: stale
order.expire, due
    none: park WAIT_PAY
    WAIT_PAY: -> CLOSED +order.closed !WAIT_PAY,PAID,SHIPPED
    PAID SHIPPED COMPLETED CLOSED CLOSED_PAID REFUNDED: stale
order.expire, early
    none: park WAIT_PAY
    WAIT_PAY: rejected not_due
    PAID SHIPPED COMPLETED CLOSED CLOSED_PAID REFUNDED: stale
order.expire, seen due by the clock
    none: park WAIT_PAY
    WAIT_PAY: -> CLOSED +order.closed !WAIT_PAY,PAID,SHIPPED
    PAID SHIPPED COMPLETED CLOSED CLOSED_PAID REFUNDED: stale
order.ship
    none: park WAIT_PAY
    WAIT_PAY: park PAID
    PAID: -> SHIPPED +order.shipped !SHIPPED
    SHIPPED COMPLETED: stale
    CLOSED CLOSED_PAID: rejected order_closed
    REFUNDED: rejected order_refunded
order.complete
    none: park WAIT_PAY
    WAIT_PAY PAID: park SHIPPED
    SHIPPED: -> COMPLETED +order.completed
    COMPLETED: stale
    CLOSED CLOSED_PAID: rejected order_closed
    REFUNDED: rejected order_refunded

order.refund, part
    none: park WAIT_PAY
    WAIT_PAY: rejected not_paid
    PAID SHIPPED COMPLETED: note refund REQUESTED 500 +refund.requested
    CLOSED CLOSED_PAID: rejected order_closed
    REFUNDED: rejected order_refunded
order.refund, all
    none: park WAIT_PAY
    WAIT_PAY: rejected not_paid
    PAID SHIPPED COMPLETED: note refund REQUESTED 1999 +refund.requested
    CLOSED CLOSED_PAID: rejected order_closed
    REFUNDED: rejected order_refunded
order.refund, more than is left
    none: park WAIT_PAY
    WAIT_PAY: rejected not_paid
    PAID SHIPPED COMPLETED: rejected refund_exceeds_paid
    CLOSED CLOSED_PAID: rejected order_closed
    REFUNDED: rejected order_refunded
order.remind
    none: park WAIT_PAY
    WAIT_PAY PAID SHIPPED COMPLETED CLOSED CLOSED_PAID REFUNDED: stale

refund.succeeded, part
    none: park WAIT_PAY
    WAIT_PAY: park PAID
    PAID SHIPPED COMPLETED CLOSED_PAID: note refunded=500 refund SUCCEEDED 500 +order.refunded
    CLOSED: rejected payment_unknown
    REFUNDED: stale
refund.succeeded, part, running total
    none: park WAIT_PAY
    WAIT_PAY: park PAID
    PAID SHIPPED COMPLETED CLOSED_PAID: note refunded=500 refund SUCCEEDED 500 +order.refunded
    CLOSED: rejected payment_unknown
    REFUNDED: stale
refund.succeeded, all
    none: park WAIT_PAY
    WAIT_PAY: park PAID
    PAID: -> REFUNDED refunded=1999 refund SUCCEEDED 1999 +order.refunded +order.closed !WAIT_PAY,PAID,SHIPPED
    SHIPPED COMPLETED CLOSED_PAID: -> REFUNDED refunded=1999 refund SUCCEEDED 1999 +order.refunded !WAIT_PAY,PAID,SHIPPED
    CLOSED: rejected payment_unknown
    REFUNDED: stale
refund.succeeded, all, running total
    none: park WAIT_PAY
    WAIT_PAY: park PAID
    PAID: -> REFUNDED refunded=1999 refund SUCCEEDED 1999 +order.refunded +order.closed !WAIT_PAY,PAID,SHIPPED
    SHIPPED COMPLETED CLOSED_PAID: -> REFUNDED refunded=1999 refund SUCCEEDED 1999 +order.refunded !WAIT_PAY,PAID,SHIPPED
    CLOSED: rejected payment_unknown
    REFUNDED: stale
refund.succeeded, more than paid
    none: park WAIT_PAY
    WAIT_PAY: park PAID
    PAID SHIPPED COMPLETED CLOSED_PAID: rejected refund_exceeds_paid
    CLOSED: rejected payment_unknown
    REFUNDED: stale
refund.succeeded, more than paid, running total
    none: park WAIT_PAY
    WAIT_PAY: park PAID
    PAID SHIPPED COMPLETED CLOSED_PAID: rejected refund_exceeds_paid
    CLOSED: rejected payment_unknown
    REFUNDED: stale
refund.succeeded, zero
    none: park WAIT_PAY
    WAIT_PAY: park PAID
    PAID SHIPPED COMPLETED CLOSED_PAID REFUNDED: stale
    CLOSED: rejected payment_unknown
refund.succeeded, other currency
    none: park WAIT_PAY
    WAIT_PAY: park PAID
    PAID SHIPPED COMPLETED CLOSED_PAID: rejected currency_mismatch
    CLOSED: rejected payment_unknown
    REFUNDED: stale
refund.succeeded, of a payment by name
    none: park WAIT_PAY
    WAIT_PAY: park PAID
    PAID: -> REFUNDED refunded=1999 refund SUCCEEDED 1999 +order.refunded +order.closed !WAIT_PAY,PAID,SHIPPED
    SHIPPED COMPLETED CLOSED_PAID: -> REFUNDED refunded=1999 refund SUCCEEDED 1999 +order.refunded !WAIT_PAY,PAID,SHIPPED
    CLOSED: rejected payment_unknown
    REFUNDED: stale
refund.succeeded, of a payment as asked for
    none: park WAIT_PAY
    WAIT_PAY: park PAID
    PAID: -> REFUNDED refunded=1999 refund SUCCEEDED 1999 +order.refunded +order.closed !WAIT_PAY,PAID,SHIPPED
    SHIPPED COMPLETED CLOSED_PAID: -> REFUNDED refunded=1999 refund SUCCEEDED 1999 +order.refunded !WAIT_PAY,PAID,SHIPPED
    CLOSED: rejected payment_unknown
    REFUNDED: stale
refund.succeeded, of the surplus
    none: park WAIT_PAY
    WAIT_PAY: park PAID
    PAID SHIPPED COMPLETED CLOSED CLOSED_PAID REFUNDED: note refund SUCCEEDED 700
refund.succeeded, of the surplus as asked for
    none: park WAIT_PAY
    WAIT_PAY: park PAID
    PAID SHIPPED COMPLETED CLOSED CLOSED_PAID REFUNDED: note refund SUCCEEDED 700
refund.succeeded, of an unknown payment
    none: park WAIT_PAY
    WAIT_PAY: park PAID
    PAID SHIPPED COMPLETED CLOSED CLOSED_PAID REFUNDED: rejected payment_unknown
refund.succeeded, other provider
    none: park WAIT_PAY
    WAIT_PAY: park PAID
    PAID SHIPPED COMPLETED CLOSED CLOSED_PAID: rejected payment_unknown
    REFUNDED: stale
refund.succeeded, number of another order
    none: park WAIT_PAY
    WAIT_PAY: park PAID
    PAID SHIPPED COMPLETED CLOSED CLOSED_PAID REFUNDED: rejected number_of_another_order
refund.succeeded, once more
    none: park WAIT_PAY
    WAIT_PAY: park PAID
    PAID: -> REFUNDED refunded=1999 refund SUCCEEDED 1999 +order.refunded +order.closed !WAIT_PAY,PAID,SHIPPED
    SHIPPED COMPLETED CLOSED_PAID: -> REFUNDED refunded=1999 refund SUCCEEDED 1999 +order.refunded !WAIT_PAY,PAID,SHIPPED
    CLOSED: rejected payment_unknown
    REFUNDED: duplicate
refund.succeeded, once more, other amount
    none: park WAIT_PAY
    WAIT_PAY: park PAID
    PAID SHIPPED COMPLETED CLOSED_PAID: note refunded=500 refund SUCCEEDED 500 +order.refunded
    CLOSED: rejected payment_unknown
    REFUNDED: conflict

refund.failed
    none: park WAIT_PAY
    WAIT_PAY: stale
    PAID SHIPPED COMPLETED CLOSED CLOSED_PAID REFUNDED: note refund FAILED 0
refund.failed, of the surplus
    none: park WAIT_PAY
    WAIT_PAY: stale
    PAID SHIPPED COMPLETED CLOSED CLOSED_PAID REFUNDED: note refund FAILED 700
refund.failed, after success
    none: park WAIT_PAY
    WAIT_PAY: stale
    PAID SHIPPED COMPLETED CLOSED CLOSED_PAID: note refund FAILED 0
    REFUNDED: stale
refund.failed, number of another order
    none: park WAIT_PAY
    WAIT_PAY: stale
    PAID SHIPPED COMPLETED CLOSED CLOSED_PAID REFUNDED: rejected number_of_another_order
";

fn show(before: &OrderState, decision: &OrderDecision) -> String {
    let mut applied = String::new();
    let writes = &decision.writes;
    if let (Some(step), Some(order)) = (&writes.step, &writes.order) {
        let before = before.order.as_ref();
        applied += &if step.from == Some(step.to) {
            "note".to_owned()
        } else {
            format!("-> {}", step.to)
        };
        if order.paid_minor != before.map_or(0, |before| before.paid_minor) {
            applied += &format!(" paid={}", order.paid_minor);
        }
        if order.refunded_minor != before.map_or(0, |before| before.refunded_minor) {
            applied += &format!(" refunded={}", order.refunded_minor);
        }
    }
    if let Some(row) = &writes.payment {
        applied += &format!(" payment {} {}", row.status, row.amount_minor);
    }
    if let Some(row) = &writes.refund {
        applied += &format!(" refund {} {}", row.status, row.amount_minor);
    }
    let token = "order:O1:";
    show_verdict(&decision.verdict, applied, token) + &show_rest(decision, token)
}

#[test]
fn every_event_in_every_status_is_decided_as_the_table_says() {
    let (events, columns) = (events(), columns());
    let rows: Vec<&str> = events.iter().map(|&(name, ..)| name).collect();
    let names: Vec<&str> = columns.iter().map(|&(name, _)| name).collect();
    check_table(TABLE, &rows, &names, |row, column| {
        let (_, event, context) = &events[row];
        let state = &columns[column].1.state;
        show(state, &decide(state, event, context))
    });
}

#[test]
fn nothing_is_parked_for_what_is_true_and_what_is_reached_is_true() {
    for (name, rows) in columns() {
        let status = |state: &OrderState| state.order.as_ref().map(|order| order.status);
        let come = |at: Option<OrderStatus>, awaited: &Token| {
            let to = OrderStatus::iter().find(|to| token(&id("O1"), *to) == *awaited);
            at.is_some_and(|at| at.has_come_to(to.unwrap()))
        };
        for (event, asked, context) in events() {
            let decision = decide(&rows.state, &asked, &context);
            let before = status(&rows.state);
            if let Verdict::Parked(awaited) = &decision.verdict {
                assert!(!come(before, awaited), "{event} in {name} awaits {awaited}");
            }
            let after = decision.writes.order.as_ref().map(|order| order.status);
            for reached in &decision.reached {
                let is_true = come(after.or(before), reached);
                assert!(is_true, "{event} in {name} reached {reached}");
            }
        }
    }
}

#[test]
fn the_table_has_every_status_and_every_event_of_the_order() {
    for (name, rows) in columns() {
        let status = rows.state.order.map_or("none", |order| order.status.into());
        assert!(name.starts_with(status), "{name} is {status}");
    }
    for status in OrderStatus::iter() {
        let name: &str = status.into();
        assert!(
            columns().iter().any(|&(column, _)| column == name),
            "{name}"
        );
    }
    let named =
        |name: &str, event: &OrderEvent| name.split(',').next() == Some(event.event_type().name());
    assert!(events().iter().all(|(name, event, _)| named(name, event)));
    let role = |kind: EventType| kind.consumer().map(|role| role.to_string());
    for kind in EventType::iter() {
        let consumed = matches!(role(kind).as_deref(), Some("order" | "payment"));
        let listed = events()
            .iter()
            .any(|(_, event, _)| event.event_type() == kind);
        assert_eq!(consumed, listed, "{kind}");
    }
}

#[test]
fn closing_asks_for_what_has_not_been_given_back() {
    let back = OrderEvent::RefundSucceeded(refund("O1", "R1", Own(500)));
    let paid = OrderEvent::PaymentSucceeded(pay("O1", "T1", TOTAL));
    let events = [create("O1", TOTAL, &[("S1", 2)]), paid, back, cancel("O1")];
    let rows = OrderRows::after(&events.map(|event| (event, EARLY)));
    let asked = rows.state.refunds.last().unwrap();
    assert_eq!(asked.status, RefundStatus::Requested);
    assert_eq!(asked.amount_minor, TOTAL - 500);

    let free = [create("O1", 0, &[("S1", 2)]), cancel("O1")];
    let rows = OrderRows::after(&free.map(|event| (event, EARLY)));
    assert_eq!(rows.state.refunds, []);
}

#[test]
fn what_is_asked_for_never_comes_to_more_than_was_paid() {
    let paid = OrderEvent::PaymentSucceeded(pay("O1", "T1", TOTAL));
    let create = create("O1", TOTAL, &[("S1", 2)]);
    let mut rows = OrderRows::after(&[create, paid].map(|event| (event, EARLY)));
    let verdict = |rows: &mut OrderRows, event| rows.handle(&event, &EARLY).verdict;
    let asked = |id, amount| ask_back("O1", id, Some(amount));
    assert_eq!(verdict(&mut rows, asked("A1", 500)), Verdict::Applied);
    assert_eq!(verdict(&mut rows, asked("A1", 500)), Verdict::Duplicate);
    assert_eq!(
        verdict(&mut rows, ask_back("O1", "A1", None)),
        Verdict::Duplicate
    );
    assert_eq!(verdict(&mut rows, asked("A1", 501)), Verdict::Conflict);
    let exceeds = Verdict::Rejected(Rejection::RefundExceedsPaid);
    assert_eq!(verdict(&mut rows, asked("A2", TOTAL - 499)), exceeds);

    // What failed may be asked for again, under another number.
    let number = rows.state.refunds[0].refund_no.clone();
    assert_eq!(
        verdict(&mut rows, refund_failed("O1", number.as_str())),
        Verdict::Applied
    );
    assert_eq!(verdict(&mut rows, asked("A3", 1000)), Verdict::Applied);
    assert_eq!(verdict(&mut rows, cancel("O1")), Verdict::Applied);
    let last = rows.state.refunds.last().unwrap();
    assert_eq!(
        (last.status, last.amount_minor),
        (RefundStatus::Requested, 999)
    );
}

#[test]
fn nothing_is_asked_back_of_an_order_that_cost_nothing() {
    let mut rows = OrderRows::after(&[(create("O1", 0, &[("S1", 2)]), EARLY)]);
    let asked = rows.handle(&ask_back("O1", "A1", None), &EARLY).verdict;
    assert_eq!(asked, Verdict::Rejected(Rejection::RefundExceedsPaid));
}

#[test]
fn an_unpaid_order_is_reminded_of_once_and_not_before_its_time() {
    let created = || (create("O1", TOTAL, &[("S1", 2)]), REMINDING);
    let mut rows = OrderRows::after(&[created()]);
    let at = rows.state.order.as_ref().unwrap().remind_at.unwrap();
    assert_eq!(DUE.now.since(at).as_secs(), 300);
    let mut remind_at = |now| rows.handle(&remind("O1"), &Context { now, ..REMINDING });
    let early = remind_at(Timestamp(at.0 - 1)).verdict;
    assert_eq!(early, Verdict::Rejected(Rejection::NotDue));
    let decision = remind_at(at);
    let [Event::Notice(Notice::PaymentQueryRequested(query))] = &decision.emits[..] else {
        panic!("{decision:?}");
    };
    assert_eq!(query.total_minor, TOTAL);
    assert_eq!(query.pay_deadline, DUE.now.to_string());
    assert_eq!(remind_at(at).verdict, Verdict::Stale);

    let paid = OrderEvent::PaymentSucceeded(pay("O1", "T1", TOTAL));
    let rows = OrderRows::after(&[created(), (paid, EARLY)]);
    assert_eq!(rows.state.order.unwrap().remind_at, None);
}

#[test]
fn an_order_is_due_when_it_says_so_and_its_charges_take_no_stock() {
    let OrderEvent::Create(mut event) = create("O1", TOTAL, &[("S1", 2), ("POST", 1)]) else {
        unreachable!()
    };
    event.pay_within_seconds = Some(60);
    event.lines[1].charge = true;
    let event = OrderEvent::Create(event);
    let decision = decide(&OrderState::default(), &event, &EARLY);
    assert_eq!(decision.writes.lines.len(), 2);
    let order = decision.writes.order.unwrap();
    assert_eq!(order.pay_deadline.since(EARLY.now).as_secs(), 60);
    let created = crate::domain::testing::created("O1", &[("S1", 2)]);
    assert_eq!(decision.emits, [Event::Inventory(created)]);
}
