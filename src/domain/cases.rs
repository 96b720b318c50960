//! Faults that real systems of this kind had, as far as they can be shown without a database.

use super::account::SOURCE_ORDER;
use super::event::{
    AccountEvent, InventoryEvent, OrderCompleted, OrderEvent, PaymentSucceeded,
    RefundAmount::{Own, RunningTotal},
    RefundSucceeded, StockReturn,
};
use super::order::{OrderStatus, PaymentStatus, RefundStatus};
use super::testing::{
    DUE, World, asked, cancel, create, created, expire, id, lines, of, pay, pay_failed, refund,
    refund_failed,
};
use super::{Currency, EventType, Rejection, Verdict};

const ONE: [(&str, i64); 1] = [("S1", 1)];

/// An order O1 of one S1, of which there is one.
fn ordered(total_minor: i64) -> World {
    let mut world = World::with_stock(&ONE);
    assert_eq!(
        world.deliver(create("O1", total_minor, &ONE)),
        Verdict::Applied
    );
    assert_eq!(world.stock.available("S1"), 0);
    world
}

/// That order, paid by T1.
fn paid(total_minor: i64) -> World {
    let mut world = ordered(total_minor);
    let event = pay("O1", "T1", total_minor);
    assert_eq!(world.deliver(event), Verdict::Applied);
    world
}

fn status(world: &World) -> OrderStatus {
    world.order("O1").order.as_ref().unwrap().status
}

fn refunded(world: &World) -> i64 {
    world.order("O1").order.as_ref().unwrap().refunded_minor
}

// B03
#[test]
fn a_second_payment_is_kept_as_surplus_and_given_back() {
    let mut world = paid(1999);
    assert_eq!(world.deliver(pay("O1", "T2", 1999)), Verdict::Applied);
    let state = world.order("O1");
    let statuses: Vec<_> = state.payments.iter().map(|p| p.status).collect();
    assert_eq!(statuses, [PaymentStatus::Accepted, PaymentStatus::Surplus]);
    assert_eq!(state.refunds.len(), 1);
    assert_eq!(state.refunds[0].trade_no, Some(id("T2")));
    assert_eq!(state.refunds[0].status, RefundStatus::Requested);
    assert_eq!(world.count(EventType::RefundRequested), 1);
    assert_eq!(world.count(EventType::OrderPaid), 1);
}

// B05
#[test]
fn a_tiny_payment_or_one_in_another_currency_does_not_pay_an_order() {
    let mut world = ordered(50_000);
    let tiny = world.deliver(pay("O1", "T1", 10));
    assert_eq!(tiny, Verdict::Rejected(Rejection::AmountMismatch));
    let yen = world.deliver(PaymentSucceeded {
        currency: Currency::new("JPY").unwrap(),
        ..pay("O1", "T2", 50_000)
    });
    assert_eq!(yen, Verdict::Rejected(Rejection::CurrencyMismatch));
    assert_eq!(status(&world), OrderStatus::WaitPay);
    assert_eq!(world.order("O1").payments, []);
    assert_eq!(world.count(EventType::PaymentRejected), 2);
}

// B09
#[test]
fn an_order_that_costs_nothing_is_paid_at_once_and_nothing_pays_no_other() {
    let free = ordered(0);
    assert_eq!(status(&free), OrderStatus::Paid);
    assert_eq!(free.count(EventType::OrderPaid), 1);

    let mut world = ordered(1999);
    for amount in [0, -1] {
        let verdict = world.deliver(pay("O1", "T1", amount));
        assert_eq!(verdict, Verdict::Rejected(Rejection::AmountMismatch));
    }
    assert_eq!(status(&world), OrderStatus::WaitPay);
}

// B11
#[test]
fn a_failed_attempt_does_not_undo_another_that_succeeded() {
    let mut world = paid(1999);
    let failed = pay_failed("O1", "T0");
    assert_eq!(world.deliver(failed), Verdict::Stale);
    assert_eq!(status(&world), OrderStatus::Paid);
}

// B13
#[test]
fn a_late_copy_of_a_payment_does_not_revive_a_refunded_order() {
    let mut world = paid(1999);
    world.deliver(refund("O1", "R1", Own(1999)));
    assert_eq!(world.deliver(cancel("O1")), Verdict::Stale);
    assert_eq!(world.deliver(pay("O1", "T1", 1999)), Verdict::Duplicate);
    assert_eq!(status(&world), OrderStatus::Refunded);
    assert_eq!(world.count(EventType::StockDeducted), 1);
    assert_eq!(world.stock.available("S1"), 1);
    assert_eq!(world.count(EventType::RefundRequested), 0);
}

// B15
#[test]
fn a_payment_after_expiry_is_recorded_and_given_back() {
    let mut world = ordered(1999);
    assert_eq!(world.deliver_in(&DUE, expire("O1")), Verdict::Applied);
    assert_eq!(world.deliver(pay("O1", "T1", 1999)), Verdict::Applied);
    assert_eq!(world.deliver(pay("O1", "T1", 1999)), Verdict::Duplicate);
    assert_eq!(status(&world), OrderStatus::Closed);
    assert_eq!(world.order("O1").payments[0].status, PaymentStatus::Late);
    assert_eq!(world.count(EventType::RefundRequested), 1);
    let answer = refund("O1", &asked("T1"), Own(1999));
    assert_eq!(world.deliver(answer), Verdict::Applied);
    assert_eq!(status(&world), OrderStatus::Closed);
}

// B17
#[test]
fn the_last_piece_goes_to_the_second_buyer_once_the_first_has_run_out_of_time() {
    let mut world = ordered(1999);
    world.deliver(create("O3", 1999, &ONE));
    assert_eq!(
        world.order("O3").order.as_ref().unwrap().status,
        OrderStatus::Closed
    );
    world.deliver_in(&DUE, expire("O1"));
    assert_eq!(world.stock.available("S1"), 1);
    world.deliver(create("O2", 1999, &ONE));
    world.deliver(pay("O1", "T1", 1999));
    world.deliver(pay("O2", "T2", 1999));
    assert_eq!(world.stock.available("S1"), 0);
    assert_eq!(world.order("O1").refunds[0].trade_no, Some(id("T1")));
    assert_eq!(
        world.order("O2").order.as_ref().unwrap().status,
        OrderStatus::Paid
    );
    assert_eq!(world.count(EventType::RefundRequested), 1);
}

// B19
#[test]
fn a_payment_before_its_order_waits_for_it() {
    let mut world = World::with_stock(&ONE);
    let early = world.deliver(pay("O1", "T1", 1999));
    assert!(matches!(early, Verdict::Parked(token) if token.as_str() == "order:O1:WAIT_PAY"));
    world.deliver(OrderEvent::Ship(of("O1")));
    world.deliver(create("O1", 1999, &ONE));
    assert_eq!(status(&world), OrderStatus::Shipped);
}

// B21
#[test]
fn a_failed_refund_leaves_the_order_paid() {
    let mut world = paid(1999);
    let before = (world.stock.clone(), world.accounts.clone());
    assert_eq!(world.deliver(refund_failed("O1", "R1")), Verdict::Applied);
    assert_eq!(status(&world), OrderStatus::Paid);
    assert_eq!(refunded(&world), 0);
    assert_eq!(world.order("O1").refunds[0].status, RefundStatus::Failed);
    assert_eq!((world.stock, world.accounts), before);
}

// B23
#[test]
fn equal_partial_refunds_count_once_each() {
    let mut world = paid(1999);
    let (first, second) = (
        refund("O1", "re_1", Own(500)),
        refund("O1", "re_2", Own(500)),
    );
    assert_eq!(world.deliver(first.clone()), Verdict::Applied);
    assert_eq!(world.deliver(second), Verdict::Applied);
    assert_eq!(world.deliver(first), Verdict::Duplicate);
    assert_eq!(refunded(&world), 1000);
    assert_eq!(world.count(EventType::OrderRefunded), 2);
}

// B25
#[test]
fn further_calls_of_a_pay_url_are_one_payment_and_one_refund() {
    let mut world = ordered(1999);
    let call = |status: &str| PaymentSucceeded {
        trade_status: Some(status.to_owned()),
        ..pay("O1", "T1", 1999)
    };
    assert_eq!(world.deliver(call("TRADE_SUCCESS")), Verdict::Applied);
    let given_back = RefundSucceeded {
        trade_no: Some(id("T1")),
        ..refund("O1", "R1", RunningTotal(300))
    };
    assert_eq!(world.deliver(given_back), Verdict::Applied);
    assert_eq!(world.deliver(call("TRADE_SUCCESS")), Verdict::Duplicate);
    assert_eq!(world.deliver(call("TRADE_FINISHED")), Verdict::Stale);
    assert_eq!(world.order("O1").payments.len(), 1);
    assert_eq!(refunded(&world), 300);
    assert_eq!(world.count(EventType::RefundRequested), 0);
}

// B27
#[test]
fn goods_that_come_back_under_two_numbers_are_restocked_once() {
    let mut world = paid(1999);
    let back = |return_id: &str| {
        InventoryEvent::Return(StockReturn {
            return_id: id(return_id),
            order_id: id("O1"),
            lines: lines(&ONE),
        })
    };
    assert_eq!(world.deliver(back("refund-line-1")), Verdict::Applied);
    let again = world.deliver(back("removed-line-1"));
    assert_eq!(again, Verdict::Rejected(Rejection::NothingOut));
    assert_eq!(world.stock.available("S1"), 1);
}

// B29
#[test]
fn paying_again_by_another_method_deducts_nothing_more() {
    let mut world = World::with_stock(&[("S1", 5)]);
    world.deliver(create("O1", 1999, &ONE));
    world.deliver(pay("O1", "T1", 1999));
    world.deliver(PaymentSucceeded {
        provider: id("wechat"),
        ..pay("O1", "T2", 1999)
    });
    assert_eq!(world.stock.available("S1"), 4);
    assert_eq!(world.stock.flows.len(), 2);
}

// B31
#[test]
fn lines_of_one_sku_are_added_up_before_they_are_checked() {
    for (opening, left) in [(1, 1), (5, 3)] {
        let mut world = World::with_stock(&[("S1", opening)]);
        world.deliver(created("O1", &[("S1", 1), ("S1", 1)]));
        assert_eq!(world.stock.available("S1"), left);
        let rejected = usize::from(opening == 1);
        assert_eq!(world.count(EventType::StockRejected), rejected);
    }
}

// B33
#[test]
fn points_are_credited_once_however_often_an_order_completes() {
    let mut world = paid(1999);
    for _ in 0..2 {
        world.deliver(OrderEvent::Ship(of("O1")));
        world.deliver(OrderEvent::Complete(of("O1")));
    }
    let copy = AccountEvent::Completed(OrderCompleted {
        order_id: id("O1"),
        user_id: id("U1"),
        currency: Currency::GBP,
        paid_minor: 1999,
        refunded_minor: 0,
    });
    assert_eq!(world.deliver(copy), Verdict::Duplicate);
    assert_eq!(world.accounts.balance("U1", "POINTS"), 19);
    assert_eq!(world.accounts.flows.len(), 1);
    let source = &world.accounts.flows[0].source;
    assert_eq!(source.source_type.as_str(), SOURCE_ORDER);
}

#[test]
fn what_waits_for_an_order_that_ends_is_decided_at_once() {
    let mut world = ordered(1999);
    world.deliver(OrderEvent::Ship(of("O1")));
    world.deliver(OrderEvent::Complete(of("O1")));
    world.deliver(refund("O1", "R1", Own(1)));
    assert_eq!(world.parked(), 3);
    world.deliver(cancel("O1"));
    assert_eq!(world.parked(), 0);
    assert_eq!(status(&world), OrderStatus::Closed);
}

#[test]
fn points_are_those_of_the_money_that_was_kept() {
    let mut world = paid(1999);
    world.deliver(refund("O1", "R1", Own(500)));
    world.deliver(OrderEvent::Ship(of("O1")));
    world.deliver(OrderEvent::Complete(of("O1")));
    assert_eq!(world.accounts.balance("U1", "POINTS"), 14);
    world.deliver(refund("O1", "R2", Own(500)));
    assert_eq!(world.accounts.balance("U1", "POINTS"), 9);
    // The refund before completion took nothing.
    assert_eq!(world.accounts.flows.len(), 2);
}
