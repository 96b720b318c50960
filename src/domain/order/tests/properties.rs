//! What holds after any sequence of events of one order.

use super::*;
use proptest::prelude::*;
use proptest::sample::{Index, select};
use std::collections::HashSet;

fn an_event() -> impl Strategy<Value = (OrderEvent, Context)> {
    let amounts = select(vec![TOTAL, TOTAL, TOTAL, 10, 0]);
    let trades = select(vec!["T1", "T2", "T3"]);
    let numbers = select(vec!["R1", "R2", "R3", "T1", "T2", "T3"]).prop_map(|no| {
        if no.starts_with('T') {
            asked(no)
        } else {
            no.to_owned()
        }
    });
    let currencies = select(vec!["GBP", "GBP", "GBP", "GBP", "JPY"]);
    let statuses = select(vec![None, Some("TRADE_FINISHED")]);
    let payments = (trades.clone(), amounts, currencies.clone(), statuses).prop_map(
        |(trade_no, amount, currency, status)| {
            OrderEvent::PaymentSucceeded(PaymentSucceeded {
                currency: Currency::new(currency).unwrap(),
                trade_status: status.map(str::to_owned),
                ..pay("O1", trade_no, amount)
            })
        },
    );
    let of_trades = proptest::option::of(trades);
    let sums = select(vec![0, 1, 500, 1000, 1500, TOTAL, 2500]);
    let refunds = (numbers.clone(), of_trades, sums, any::<bool>(), currencies).prop_map(
        |(refund_no, trade_no, sum, own, currency)| {
            let amount = if own { Own(sum) } else { RunningTotal(sum) };
            OrderEvent::RefundSucceeded(RefundSucceeded {
                trade_no: trade_no.map(id),
                currency: Currency::new(currency).unwrap(),
                ..refund("O1", &refund_no, amount)
            })
        },
    );
    let others = vec![
        create("O1", TOTAL, &[("S1", 2)]),
        create("O1", TOTAL, &[("S1", 2)]),
        create("O1", 0, &[("S1", 2)]),
        cancel("O1"),
        expire("O1"),
        OrderEvent::Ship(of("O1")),
        OrderEvent::Complete(of("O1")),
        OrderEvent::StockDeducted(of("O1")),
        stock_rejected("O1"),
        pay_failed("O1", "T1"),
        ask_back("O1", "A1", Some(500)),
        ask_back("O1", "A2", Some(1500)),
        ask_back("O1", "A3", None),
    ];
    let failures = numbers.prop_map(|refund_no| refund_failed("O1", &refund_no));
    let events = prop_oneof![
        4 => select(others),
        4 => payments,
        4 => refunds,
        1 => failures,
    ];
    (events, select(vec![EARLY, EARLY, DUE]))
}

/// Most sequences begin with a creation, so that they come far.
fn sequences() -> impl Strategy<Value = Vec<(OrderEvent, Context)>> {
    let born = proptest::bool::weighted(0.8);
    let rest = proptest::collection::vec(an_event(), 0..40);
    (born, rest).prop_map(|(born, mut events)| {
        if born {
            events.insert(0, (create("O1", TOTAL, &[("S1", 2)]), EARLY));
        }
        events
    })
}

fn may_follow(from: OrderStatus, to: OrderStatus) -> bool {
    use OrderStatus::{Closed, Completed, Paid, Refunded, Shipped, WaitPay};
    match from {
        WaitPay => matches!(to, WaitPay | Paid | Closed),
        Paid => matches!(to, Paid | Shipped | Closed | Refunded),
        Shipped => matches!(to, Shipped | Completed | Refunded),
        Completed => matches!(to, Completed | Refunded),
        Closed => matches!(to, Closed | Refunded),
        Refunded => to == Refunded,
    }
}

/// What the rows of one order always are to each other.
fn assert_sound(rows: &OrderRows) {
    let Some(order) = &rows.state.order else {
        assert_eq!(*rows, OrderRows::default());
        return;
    };
    assert_eq!(i64::try_from(rows.history.len()), Ok(order.version));

    let refunds = &rows.state.refunds;
    let given_back = |payment: &Payment| -> i64 {
        let refunds = refunds.iter().filter(|refund| {
            refund.status == RefundStatus::Succeeded
                && refund.trade_no.as_ref() == Some(&payment.trade_no)
        });
        refunds.map(|refund| refund.amount_minor).sum()
    };
    let (mut accepted, mut paid, mut refunded) = (0, 0, 0);
    for payment in &rows.state.payments {
        assert!(given_back(payment) <= payment.amount_minor);
        if payment.status == PaymentStatus::Accepted {
            accepted += 1;
            paid += payment.amount_minor;
            refunded += given_back(payment);
        }
    }
    assert!(accepted <= 1);
    assert_eq!((order.paid_minor, order.refunded_minor), (paid, refunded));
    assert!(refunded <= paid);
    let all_back = paid > 0 && refunded == paid;
    assert_eq!(order.status == OrderStatus::Refunded, all_back);
    let numbers: HashSet<_> = refunds.iter().map(|refund| &refund.refund_no).collect();
    assert_eq!(numbers.len(), refunds.len());
}

/// What is asked for, was asked for before and was given back is not more than was paid.
fn assert_asked_within_paid(rows: &OrderRows, emits: &[Event]) {
    for emitted in emits {
        let Event::Notice(Notice::RefundRequested(asked)) = emitted else {
            continue;
        };
        let of_it = |refund: &&Refund| refund.trade_no.as_ref() == Some(&asked.trade_no);
        let refunds = rows.state.refunds.iter().filter(of_it);
        let open = refunds.filter(|refund| refund.status != RefundStatus::Failed);
        let sum: i64 = open.map(|refund| refund.amount_minor).sum();
        let mut payments = rows.state.payments.iter();
        let payment = payments.find(|payment| payment.trade_no == asked.trade_no);
        assert!(sum <= payment.unwrap().amount_minor, "{asked:?}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(500))]

    #[test]
    fn the_rows_of_an_order_stay_sound(events in sequences()) {
        let mut rows = OrderRows::default();
        let (mut closed, mut paid) = (0, 0);
        for (event, context) in &events {
            let emits = rows.handle(event, context).emits;
            assert_sound(&rows);
            assert_asked_within_paid(&rows, &emits);
            let emitted = |kind| emits.iter().filter(|e| e.event_type() == kind).count();
            closed += emitted(EventType::OrderClosed);
            paid += emitted(EventType::OrderPaid);
        }
        let mut steps = rows.history.iter();
        prop_assert!(steps.all(|s| s.from.is_none_or(|from| may_follow(from, s.to))));
        let been = |status| rows.history.iter().any(|step| step.to == status);
        let ended = been(OrderStatus::Closed) || been(OrderStatus::Refunded);
        prop_assert_eq!(closed, usize::from(ended && !been(OrderStatus::Shipped)));
        prop_assert_eq!(paid, usize::from(been(OrderStatus::Paid)));
    }

    #[test]
    fn a_replay_changes_nothing_even_without_claims(
        events in sequences(),
        again in proptest::collection::vec(any::<Index>(), 1..10),
    ) {
        let mut rows = OrderRows::default();
        let mut applied = Vec::new();
        for (event, context) in events {
            if rows.handle(&event, &context).verdict == Verdict::Applied {
                let mut twice = rows.clone();
                let replayed = twice.handle(&event, &context);
                prop_assert!(replayed.verdict != Verdict::Applied);
                applied.push((event, context));
            }
        }
        let before = rows.clone();
        for index in again.iter().filter(|_| !applied.is_empty()) {
            let (event, context) = index.get(&applied);
            let replayed = rows.handle(event, context);
            prop_assert_eq!(&rows, &before, "{:?}", event);
            prop_assert_eq!(replayed.emits, [], "{:?}", event);
        }
    }

    #[test]
    fn nothing_is_parked_for_a_token_that_was_reached_before(events in sequences()) {
        let mut rows = OrderRows::default();
        let mut reached = Vec::new();
        for (event, context) in &events {
            let decision = rows.handle(event, context);
            if let Verdict::Parked(token) = &decision.verdict {
                prop_assert!(!reached.contains(token), "{} for {:?}", token, event);
            }
            reached.extend(decision.reached);
        }
    }

    #[test]
    fn running_totals_come_to_the_same_sum_in_any_order(
        (totals, shuffled) in proptest::collection::vec(1..=TOTAL, 1..8).prop_flat_map(|totals| {
            let numbered: Vec<_> = totals.iter().copied().enumerate().collect();
            let twice = [numbered.clone(), numbered].concat();
            (Just(totals), Just(twice).prop_shuffle())
        })
    ) {
        let paid = OrderEvent::PaymentSucceeded(pay("O1", "T1", TOTAL));
        let paid = [create("O1", TOTAL, &[]), paid].map(|event| (event, EARLY));
        let mut rows = OrderRows::after(&paid);
        for (number, total) in shuffled {
            let event = refund("O1", &format!("R{number}"), RunningTotal(total));
            rows.handle(&OrderEvent::RefundSucceeded(event), &EARLY);
            assert_sound(&rows);
        }
        let order = rows.state.order.unwrap();
        prop_assert_eq!(Some(order.refunded_minor), totals.into_iter().max());
    }
}
