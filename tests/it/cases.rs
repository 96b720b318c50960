//! Faults that real systems of this kind had, played to this one through its queues. The number above
//! each test is that of its case; B47, B63, B65 and B69 are in `handler` and `relay`.

use crate::support::{
    Memory, PAY_TIMEOUT, World, and, create, create_worth, envelope, of, outcomes, paid, refunded,
};
use orderonce::broker::{Broker, Headers};
use orderonce::domain::order::refund_no;
use orderonce::domain::{RetryPolicy, RoleName};
use orderonce::store::sqlite::{Database, Options, SqliteStore};
use orderonce::store::{self, Store};
use orderonce::worker::relay::{Relay, Relayed, Settings};
use orderonce::worker::{Error, Point, Points};
use serde_json::{Value, json};
use std::sync::Arc;
use std::time::Duration;

const DAY: Duration = Duration::from_secs(86_400);

/// A world with one unshipped order of two units at 1000 each, of a SKU that has five.
async fn ordered() -> World {
    let world = World::new().await;
    world.stock("A", 5).await;
    world
        .publish("order.create", create("O1", &[("A", 2)]))
        .await;
    world.drain().await;
    world
}

async fn ordered_and_paid() -> World {
    let world = ordered().await;
    world
        .publish("payment.succeeded", paid("O1", "T1", 2000))
        .await;
    world.drain().await;
    world
}

async fn completed() -> World {
    let world = ordered_and_paid().await;
    world.publish("order.ship", of("O1")).await;
    world.publish("order.complete", of("O1")).await;
    world.drain().await;
    assert_eq!(world.status("O1").await, "COMPLETED");
    world
}

async fn one_deduction(world: &World) {
    let flows = "SELECT sku_id, qty FROM deduction_flow WHERE action <> 'adjust'";
    assert_eq!(world.rows(flows).await, ["A -2"]);
    assert_eq!(world.available("A").await, 3);
}

// B01
#[tokio::test]
async fn one_payment_at_three_consumers_at_once_pays_once_and_all_three_are_acknowledged() {
    let world = ordered().await;
    for _ in 0..3 {
        world
            .publish("payment.succeeded", paid("O1", "evt_a1", 2000))
            .await;
    }
    let mut running = Vec::new();
    for _ in 0..3 {
        let mut consumer = world.queue.consumer(&RoleName::PAYMENT, 1).await.unwrap();
        let deliveries = consumer.receive(1).await.unwrap();
        let processor = Arc::new(world.payments());
        let mut worker = orderonce::worker::Worker::new(processor, consumer, 1);
        running.push(tokio::spawn(async move {
            let settled = worker.handle(&deliveries).await.unwrap();
            worker.close().await.unwrap();
            outcomes(&settled)
        }));
    }
    let mut seen = Vec::new();
    for task in running {
        seen.extend(task.await.unwrap());
    }
    seen.sort();
    assert_eq!(seen, ["applied", "duplicate (claim)", "duplicate (claim)"]);
    world.drain().await;
    let steps = "SELECT count(*) FROM order_transition WHERE to_status = 'PAID'";
    assert_eq!(world.row(steps).await, "1");
    assert_eq!(world.count("payment").await, 1);
    one_deduction(&world).await;
    world.adds_up().await;
}

// B03, B29
#[tokio::test]
async fn a_second_payment_is_surplus_asked_back_once_and_deducts_nothing() {
    let world = ordered_and_paid().await;
    world
        .publish("payment.succeeded", paid("O1", "T2", 2000))
        .await;
    world
        .publish("payment.succeeded", paid("O1", "T2", 2000))
        .await;
    let seen = world.drain().await;
    assert_eq!(seen, ["payment: applied", "payment: duplicate (batch)"]);
    let payments = "SELECT trade_no, status FROM payment ORDER BY trade_no";
    assert_eq!(world.rows(payments).await, ["T1 ACCEPTED", "T2 SURPLUS"]);
    let refunds = "SELECT trade_no, status, amount_minor FROM refund";
    assert_eq!(world.rows(refunds).await, ["T2 REQUESTED 2000"]);
    assert_eq!(world.row("SELECT paid_minor FROM orders").await, "2000");
    one_deduction(&world).await;
    world.adds_up().await;
}

// B05
#[tokio::test]
async fn a_payment_of_another_amount_or_currency_does_not_pay_and_raises_an_alert() {
    let world = World::new().await;
    world
        .publish("order.create", create_worth("O1", 50_000))
        .await;
    world.drain().await;
    world
        .publish("payment.succeeded", paid("O1", "T1", 10))
        .await;
    let yen = and(paid("O1", "T2", 50_000), json!({"currency": "JPY"}));
    world.publish("payment.succeeded", yen).await;
    let expected = ["rejected (amount_mismatch)", "rejected (currency_mismatch)"];
    assert_eq!(world.run_payments().await, expected);
    assert_eq!(world.status("O1").await, "WAIT_PAY");
    let alerts = "SELECT event_type, message -> 'data' ->> 'reason' FROM outbox ORDER BY id";
    let expected = [
        "payment.rejected amount_mismatch",
        "payment.rejected currency_mismatch",
    ];
    assert_eq!(world.rows(alerts).await, expected);
    world.drain().await;
    world.adds_up().await;
}

// B09
#[tokio::test]
async fn an_order_of_nothing_is_paid_by_rule_and_nothing_pays_no_other() {
    let world = World::new().await;
    world.publish("order.create", create_worth("O0", 0)).await;
    world.publish("order.create", create_worth("O1", 100)).await;
    let seen = world.drain().await;
    assert_eq!(seen[..2], ["order: applied", "order: applied"]);
    assert_eq!(world.status("O0").await, "PAID");
    world
        .publish("payment.succeeded", paid("O0", "T0", 0))
        .await;
    world
        .publish("payment.succeeded", paid("O1", "T1", 0))
        .await;
    world
        .publish("payment.succeeded", paid("O1", "T2", -1))
        .await;
    let expected = ["stale", "rejected (amount_mismatch)", "dead (malformed)"];
    assert_eq!(world.run_payments().await, expected);
    assert_eq!(world.status("O1").await, "WAIT_PAY");
    assert_eq!(world.count("payment").await, 0);
    world.drain().await;
    world.adds_up().await;
}

// B11
#[tokio::test]
async fn a_failed_attempt_that_is_heard_of_late_does_not_undo_a_later_success() {
    let world = ordered_and_paid().await;
    let failed =
        json!({"order_id": "O1", "provider": "ali", "trade_no": "T0", "reason": "declined"});
    world.publish("payment.failed", failed).await;
    assert_eq!(world.drain().await, ["payment: stale"]);
    assert_eq!(world.status("O1").await, "PAID");
    world.adds_up().await;
}

// B13
#[tokio::test]
async fn a_payment_that_is_reported_again_revives_no_refunded_order() {
    let world = ordered_and_paid().await;
    world
        .publish("refund.succeeded", refunded("O1", "R1", 2000))
        .await;
    world.drain().await;
    assert_eq!(world.status("O1").await, "REFUNDED");
    assert_eq!(world.available("A").await, 5);
    world.publish("order.cancel", of("O1")).await;
    world
        .publish("payment.succeeded", paid("O1", "T1", 2000))
        .await;
    let status = json!({"trade_status": "TRADE_FINISHED"});
    world
        .publish("payment.succeeded", and(paid("O1", "T1", 2000), status))
        .await;
    let expected = [
        "order: stale",
        "payment: duplicate (claim)",
        "payment: stale",
    ];
    assert_eq!(world.drain().await, expected);
    assert_eq!(world.status("O1").await, "REFUNDED");
    assert_eq!(world.available("A").await, 5);
    assert_eq!(world.count("refund").await, 1);
    world.adds_up().await;
}

// B15
#[tokio::test]
async fn a_payment_after_expiry_leaves_the_order_closed_and_is_asked_back_once() {
    let world = ordered().await;
    world.advance(PAY_TIMEOUT);
    assert_eq!(world.clean().await.expired, 1);
    world.drain().await;
    for _ in 0..2 {
        world
            .publish("payment.succeeded", paid("O1", "T1", 2000))
            .await;
        world.drain().await;
    }
    assert_eq!(world.status("O1").await, "CLOSED");
    assert_eq!(world.row("SELECT status FROM payment").await, "LATE");
    let refunds = "SELECT trade_no, status, amount_minor FROM refund";
    assert_eq!(world.rows(refunds).await, ["T1 REQUESTED 2000"]);
    assert_eq!(world.available("A").await, 5);
    world.adds_up().await;
}

// B17
#[tokio::test]
async fn stock_that_a_timeout_gave_back_is_sold_once() {
    let world = World::new().await;
    world.stock("A", 1).await;
    world
        .publish("order.create", create("O1", &[("A", 1)]))
        .await;
    world.drain().await;
    world.advance(PAY_TIMEOUT);
    world.clean().await;
    world
        .publish("order.create", create("O2", &[("A", 1)]))
        .await;
    world.drain().await;
    world
        .publish("payment.succeeded", paid("O2", "T2", 1000))
        .await;
    world
        .publish("payment.succeeded", paid("O1", "T1", 1000))
        .await;
    world.drain().await;
    assert_eq!(world.status("O1").await, "CLOSED");
    assert_eq!(world.status("O2").await, "PAID");
    assert_eq!(
        world.row("SELECT order_id, trade_no FROM refund").await,
        "O1 T1"
    );
    assert_eq!(world.available("A").await, 0);
    let lowest = "SELECT min(available_after) FROM deduction_flow";
    assert_eq!(world.row(lowest).await, "0");
    world.adds_up().await;
}

// B19
#[tokio::test]
async fn a_payment_before_its_order_waits_for_it_and_raises_an_alarm_if_it_never_comes() {
    let world = World::new().await;
    world
        .publish("payment.succeeded", paid("O9", "T9", 1000))
        .await;
    world
        .publish("payment.succeeded", paid("O8", "T8", 1000))
        .await;
    world.drain().await;
    world.advance(Duration::from_secs(2));
    world
        .publish("order.create", create_worth("O9", 1000))
        .await;
    world.drain().await;
    assert_eq!(world.status("O9").await, "PAID");
    world.advance(DAY);
    assert_eq!(world.clean().await.overdue, 1);
    let letter = "SELECT reason, key FROM dead_letter";
    assert_eq!(
        world.row(letter).await,
        "parked_too_long ali/O8/SUCCEEDED/T8/payment.succeeded"
    );
    world.adds_up().await;
}

// B21
#[tokio::test]
async fn a_refund_that_failed_leaves_the_order_its_stock_and_its_points_alone() {
    let world = completed().await;
    let failed = json!({"order_id": "O1", "provider": "ali", "refund_no": "R1"});
    world.publish("refund.failed", failed).await;
    assert_eq!(world.drain().await, ["payment: applied"]);
    assert_eq!(world.status("O1").await, "COMPLETED");
    assert_eq!(world.row("SELECT refunded_minor FROM orders").await, "0");
    assert_eq!(world.row("SELECT balance FROM account").await, "20");
    one_deduction(&world).await;
    world.adds_up().await;
}

// B23
#[tokio::test]
async fn equal_partial_refunds_both_count_and_a_repeated_one_does_not() {
    let world = ordered_and_paid().await;
    for number in ["re_1", "re_2", "re_1"] {
        world
            .publish("refund.succeeded", refunded("O1", number, 500))
            .await;
    }
    let seen = world.drain().await;
    let payments: Vec<_> = seen
        .iter()
        .filter(|seen| seen.starts_with("payment"))
        .collect();
    let expected = [
        "payment: applied",
        "payment: applied",
        "payment: duplicate (batch)",
    ];
    assert_eq!(payments, expected.iter().collect::<Vec<_>>());
    assert_eq!(
        world.row("SELECT status, refunded_minor FROM orders").await,
        "PAID 1000"
    );
    world
        .publish("refund.succeeded", refunded("O1", "re_2", 500))
        .await;
    assert_eq!(world.drain().await, ["payment: duplicate (claim)"]);
    assert_eq!(world.row("SELECT refunded_minor FROM orders").await, "1000");
    world.adds_up().await;
}

// B25
#[tokio::test]
async fn a_provider_that_reports_a_trade_after_its_refund_and_months_later_changes_nothing_more() {
    let world = ordered().await;
    let status = |status: &str| and(paid("O1", "T1", 2000), json!({"trade_status": status}));
    world
        .publish("payment.succeeded", status("TRADE_SUCCESS"))
        .await;
    world.drain().await;
    let refund = json!({"total_refunded_minor": 300, "refund_no": "R1", "order_id": "O1",
        "provider": "ali", "trade_no": "T1", "currency": "CNY"});
    world
        .publish("payment.succeeded", status("TRADE_SUCCESS"))
        .await;
    world.publish("refund.succeeded", refund.clone()).await;
    world.drain().await;
    world.advance(90 * DAY);
    world
        .publish("payment.succeeded", status("TRADE_FINISHED"))
        .await;
    world.publish("refund.succeeded", refund).await;
    let expected = ["payment: stale", "payment: duplicate (claim)"];
    assert_eq!(world.drain().await, expected);
    assert_eq!(
        world.row("SELECT trade_no, status FROM payment").await,
        "T1 ACCEPTED"
    );
    let refunds = "SELECT refund_no, status, amount_minor FROM refund";
    assert_eq!(world.rows(refunds).await, ["R1 SUCCEEDED 300"]);
    world.adds_up().await;
}

// B27
#[tokio::test]
async fn a_line_that_comes_back_under_two_names_is_restocked_once() {
    let world = completed().await;
    for number in ["refund-line-1", "removed-line-1", "refund-line-1"] {
        let lines = json!([{"sku_id": "A", "qty": 2}]);
        let back = json!({"return_id": number, "order_id": "O1", "lines": lines});
        world.publish("stock.return", back).await;
    }
    let expected = [
        "inventory: applied",
        "inventory: rejected (nothing_out)",
        "inventory: duplicate (batch)",
    ];
    assert_eq!(world.drain().await, expected);
    assert_eq!(world.available("A").await, 5);
    world.adds_up().await;
}

// B31
#[tokio::test]
async fn lines_of_one_sku_are_added_up_before_they_are_checked() {
    for (stock, left, status) in [(1, 1, "CLOSED"), (5, 3, "WAIT_PAY")] {
        let world = World::new().await;
        world.stock("A", stock).await;
        world
            .publish("order.create", create("O1", &[("A", 1), ("A", 1)]))
            .await;
        world.drain().await;
        assert_eq!(world.available("A").await, left);
        assert_eq!(world.status("O1").await, status);
        world.adds_up().await;
    }
}

// B33
#[tokio::test]
async fn points_are_credited_once_however_often_an_order_is_completed() {
    let world = completed().await;
    let completed = json!({"order_id": "O1", "user_id": "U-O1", "currency": "CNY",
        "paid_minor": 2000, "refunded_minor": 0});
    world.publish("order.complete", of("O1")).await;
    world.publish("order.completed", completed.clone()).await;
    world.publish("order.completed", completed).await;
    let expected = [
        "order: duplicate (claim)",
        "account: duplicate (claim)",
        "account: duplicate (claim)",
    ];
    assert_eq!(world.drain().await, expected);
    assert_eq!(
        world.row("SELECT balance, version FROM account").await,
        "20 1"
    );
    assert_eq!(world.count("account_flow").await, 1);
    world.adds_up().await;
}

// B35
#[tokio::test]
async fn ids_that_differ_in_a_byte_are_different_orders() {
    let world = World::new().await;
    let ids = [
        "Ab1",
        "aB1",
        "ab1",
        "é1",
        "e\u{301}1",
        "e1",
        "e1x",
        "ß",
        "ss",
    ];
    for id in ids {
        world.publish("order.create", create_worth(id, 100)).await;
    }
    assert_eq!(world.run_orders().await, ["applied"; 9]);
    for id in ids {
        world.publish("order.cancel", of(id)).await;
    }
    assert_eq!(world.run_orders().await, ["applied"; 9]);
    world.drain().await;
    assert_eq!(
        world
            .row("SELECT count(*) FROM orders WHERE status = 'CLOSED'")
            .await,
        "9"
    );
    world.adds_up().await;
}

// B37
#[tokio::test]
async fn messages_without_an_id_are_kept_each_and_never_taken_for_each_other() {
    let world = World::new().await;
    let mut sent = 0;
    for order in ["O1", "O2"] {
        for id in [Some(json!("")), Some(Value::Null), None, Some(json!("  "))] {
            let message = envelope("m", "order.create", &create_worth(order, 100));
            let mut message: Value = serde_json::from_str(&message).unwrap();
            match id {
                Some(id) => message["id"] = id,
                None => drop(message.as_object_mut().unwrap().remove("id")),
            }
            let bytes = message.to_string().into_bytes();
            world
                .publish_raw("order.create", bytes, Headers::new())
                .await;
            sent += 1;
        }
    }
    for id in [json!(""), Value::Null, json!("  ")] {
        let data = json!({"order_id": id});
        world.publish("order.cancel", data).await;
        sent += 1;
    }
    assert_eq!(world.run_orders().await, vec!["dead (malformed)"; sent]);
    assert_eq!(world.dead().await, vec!["malformed DEAD"; sent]);
    assert_eq!(world.count("idempotent_record").await, 0);
    world.adds_up().await;
}

// B39
#[tokio::test]
async fn long_ids_that_share_their_beginning_are_never_taken_for_each_other() {
    let world = World::new().await;
    // The longest ids that are taken, and ids beyond that, which are refused and kept.
    for (length, outcome) in [
        (300, "applied"),
        (500, "applied"),
        (513, "dead (malformed)"),
    ] {
        let shared = "x".repeat(length - 1);
        for end in ["1", "2"] {
            let order = create_worth(&format!("{shared}{end}"), 100);
            world.publish("order.create", order).await;
        }
        assert_eq!(world.run_orders().await, [outcome; 2]);
    }
    assert_eq!(world.count("orders").await, 4);
    assert_eq!(world.dead().await, ["malformed DEAD"; 2]);
    // A message's own id may be as long as it likes.
    for end in ["1", "2"] {
        let id = format!("{}{end}", "m".repeat(299));
        let order = create_worth(&format!("O{end}"), 100);
        world.publish_as(&id, "order.create", order).await;
    }
    assert_eq!(world.run_orders().await, ["applied"; 2]);
    world.drain().await;
    world.adds_up().await;
}

// B41
#[tokio::test]
async fn what_a_retry_of_the_producer_changes_does_not_make_it_another_event() {
    let world = World::new().await;
    for (id, time, trace) in [
        ("a", "2026-01-01T00:00:00Z", "1"),
        ("b", "2026-01-02T00:00:00Z", "2"),
    ] {
        let message = envelope(id, "order.create", &create_worth("O1", 100));
        let mut message: Value = serde_json::from_str(&message).unwrap();
        message["time"] = json!(time);
        message["sent_at"] = json!(time);
        message["traceparent"] = json!(format!("00-{}-{}-01", trace.repeat(32), trace.repeat(16)));
        message["data"]["sent_at"] = json!(time);
        let bytes = message.to_string().into_bytes();
        world
            .publish_raw("order.create", bytes, Headers::new())
            .await;
    }
    assert_eq!(world.run_orders().await, ["applied", "duplicate (batch)"]);
    world.drain().await;
    world.adds_up().await;
}

// B43
#[tokio::test]
async fn ids_that_are_numbers_keep_every_digit() {
    let world = World::new().await;
    for id in [738_529_527_931_269_425_u64, 738_529_527_931_269_424] {
        let order = and(create_worth("?", 100), json!({"order_id": id}));
        world.publish("order.create", order).await;
    }
    world
        .publish("order.cancel", of("738529527931269425"))
        .await;
    assert_eq!(world.run_orders().await, ["applied"; 3]);
    let orders = "SELECT order_id, status FROM orders ORDER BY order_id DESC";
    let expected = ["738529527931269425 CLOSED", "738529527931269424 WAIT_PAY"];
    assert_eq!(world.rows(orders).await, expected);
    world.drain().await;
    world.adds_up().await;
}

// B45
#[tokio::test]
async fn a_nul_in_a_text_neither_loops_nor_harms_its_neighbours() {
    let world = World::new().await;
    for order in ["O1", "O2", "O3", "O4"] {
        let order = and(create_worth(order, 100), json!({"memo": "a\u{0}b"}));
        world.publish("order.create", order).await;
    }
    world.publish("order.cancel", of("O1")).await;
    let reason = json!({"reason": "a\u{0}b"});
    world.publish("order.cancel", and(of("O2"), reason)).await;
    world.publish("order.cancel", of("O3\u{0}")).await;
    world.publish_as("m\u{0}", "order.cancel", of("O4")).await;
    let seen = world.run_orders().await;
    let expected = ["applied", "applied", "dead (malformed)", "dead (malformed)"];
    assert_eq!(seen[4..], expected);
    // And where it is parked with its whole text.
    let early = and(of("O9"), json!({"reason": "a\u{0}b"}));
    world.publish("order.cancel", early).await;
    world.drain().await;
    world.publish("order.create", create_worth("O9", 100)).await;
    world.drain().await;
    assert_eq!(world.status("O9").await, "CLOSED");
    world.adds_up().await;
}

// B57
#[tokio::test]
async fn attempts_are_counted_across_every_republication() {
    let mut world = World::new().await;
    world.settings.retry = RetryPolicy::new(5, Duration::from_secs(1)).unwrap();
    world
        .execute(
            "CREATE TRIGGER refuse BEFORE INSERT ON orders
             BEGIN SELECT RAISE(ABORT, 'not today'); END",
        )
        .await;
    world.publish("order.create", create_worth("O1", 100)).await;
    for attempt in 1..=5 {
        let seen = world.run_orders().await;
        assert!(
            seen[0].starts_with(&format!("retried (attempt {attempt},")),
            "{seen:?}"
        );
        world.advance(Duration::from_secs(60));
    }
    assert_eq!(world.run_orders().await, ["dead (retries_exhausted)"]);
    assert_eq!(world.dead().await, ["retries_exhausted DEAD"]);
    world.adds_up().await;
}

// B59
#[tokio::test]
async fn an_order_closes_in_time_though_every_message_of_the_broker_is_lost() {
    let world = ordered().await;
    world.execute("DELETE FROM queue_message").await;
    world.advance(PAY_TIMEOUT);
    assert_eq!(world.clean().await.expired, 1);
    world.drain().await;
    assert_eq!(world.status("O1").await, "CLOSED");
    assert_eq!(world.available("A").await, 5);
    world.adds_up().await;
}

// B61
#[tokio::test]
async fn whether_a_message_was_delivered_before_does_not_say_whether_it_was_handled() {
    let world = World::new().await;
    world.publish("order.create", create_worth("O1", 100)).await;
    let dying = Points::stopping(|point| point == Point::Written);
    let died = world
        .try_run(&RoleName::ORDER, world.orders().with_points(dying))
        .await;
    assert!(matches!(died, Err(Error::Stopped(Point::Written))));
    world.advance(crate::support::LEASE);
    let mut worker = world.worker(&RoleName::ORDER, world.orders()).await;
    let again = crate::support::received(&mut worker).await;
    assert_eq!(again[0].deliveries, 2);
    assert_eq!(outcomes(&worker.handle(&again).await.unwrap()), ["applied"]);
    world.publish("order.create", create_worth("O1", 100)).await;
    let first = crate::support::received(&mut worker).await;
    assert_eq!(first[0].deliveries, 1);
    let settled = worker.handle(&first).await.unwrap();
    assert_eq!(outcomes(&settled), ["duplicate (claim)"]);
    worker.close().await.unwrap();
    world.drain().await;
    world.adds_up().await;
}

// B67
#[tokio::test]
async fn a_copy_that_comes_after_its_claim_was_cleaned_is_stopped_by_the_rows() {
    let world = completed().await;
    world
        .publish("refund.succeeded", refunded("O1", "R1", 500))
        .await;
    world.drain().await;
    world.advance(8 * DAY);
    world
        .execute(
            "DELETE FROM idempotent_record WHERE key IN ('O1/order.create', 'O1/deduct',
                 'ali/O1/SUCCEEDED/T1/payment.succeeded', 'ali/O1/R1/refund.succeeded', 'U-O1/POINTS/ORDER/O1/credit')",
        )
        .await;
    world
        .publish("order.create", create("O1", &[("A", 2)]))
        .await;
    world
        .publish("payment.succeeded", paid("O1", "T1", 2000))
        .await;
    world
        .publish("refund.succeeded", refunded("O1", "R1", 500))
        .await;
    let lines = json!([{"sku_id": "A", "qty": 2}]);
    let created = json!({"order_id": "O1", "user_id": "U-O1", "lines": lines});
    world.publish("order.created", created).await;
    let completed = json!({"order_id": "O1", "user_id": "U-O1", "currency": "CNY",
        "paid_minor": 2000, "refunded_minor": 0});
    world.publish("order.completed", completed).await;
    let expected = [
        "order: duplicate (flow)",
        "payment: duplicate (flow)",
        "payment: duplicate (flow)",
        "inventory: duplicate (flow)",
        "account: duplicate (flow)",
    ];
    assert_eq!(world.drain().await, expected);
    one_deduction(&world).await;
    assert_eq!(world.row("SELECT balance FROM account").await, "15");
    assert_eq!(world.row("SELECT refunded_minor FROM orders").await, "500");
    world.adds_up().await;
}

// B71
#[tokio::test]
async fn a_step_that_fails_leaves_no_record_that_it_was_done() {
    let world = ordered_and_paid().await;
    world
        .execute(
            "CREATE TRIGGER broken BEFORE UPDATE ON stock
             BEGIN SELECT RAISE(ABORT, 'disk I/O error'); END",
        )
        .await;
    world.publish("order.cancel", of("O1")).await;
    let seen = world.drain().await;
    assert_eq!(
        seen,
        [
            "order: applied",
            "inventory: retried (attempt 1, again in 1 s)"
        ]
    );
    assert_eq!(world.claims("key = 'O1/release'").await, [""; 0]);
    world.execute("DROP TRIGGER broken").await;
    world.advance(Duration::from_secs(1));
    assert_eq!(world.drain().await, ["inventory: applied"]);
    assert_eq!(world.available("A").await, 5);
    world.adds_up().await;
}

// B75
#[tokio::test]
async fn errors_are_told_apart_by_code_whatever_their_text_says() {
    // A lock that somebody else holds, SQLITE_BUSY, costs time and no attempt.
    let world = World::with_queue_apart().await;
    let lock = world.lock().await;
    let busy = world.store.begin().await.err();
    assert!(
        matches!(busy, Some(store::Error::Unavailable(_))),
        "{busy:?}"
    );
    drop(lock);
    // Texts that lie: what a constraint says, said by a trigger, is still data that was refused.
    let lies = [
        "database is locked",
        "UNIQUE constraint failed: orders.order_id",
    ];
    for (number, lie) in lies.iter().enumerate() {
        let trigger = format!(
            "DROP TRIGGER IF EXISTS liar; CREATE TRIGGER liar BEFORE INSERT ON orders
             BEGIN SELECT RAISE(ABORT, '{lie}'); END"
        );
        world.execute(&trigger).await;
        let order = create_worth(&format!("O{number}"), 100);
        world.publish("order.create", order).await;
        let role = crate::support::Meddled::new(crate::support::order_role(), "SELECT 1", 0);
        let loads = Arc::clone(&role.loads);
        let settled = world.run(&RoleName::ORDER, world.processor(role)).await;
        assert_eq!(outcomes(&settled), ["retried (attempt 1, again in 1 s)"]);
        // A lost race would have been decided again at once.
        assert_eq!(loads.load(std::sync::atomic::Ordering::Relaxed), 1);
    }
}

// B79
#[tokio::test]
async fn a_gate_that_loses_all_it_knew_half_way_does_not_let_anything_happen_twice() {
    let world = ordered().await;
    let memory = Arc::new(Memory::default());
    world
        .publish("payment.succeeded", paid("O1", "T1", 2000))
        .await;
    let dying = Points::stopping(|point| point == Point::Settled);
    let payments = world.payments().with_gates(memory.gates());
    let died = world
        .try_run(&RoleName::PAYMENT, payments.with_points(dying))
        .await;
    assert!(died.is_err());
    memory.forget();
    world.advance(crate::support::LEASE);
    world
        .publish("payment.succeeded", paid("O1", "T1", 2000))
        .await;
    let payments = world.payments().with_gates(memory.gates());
    let settled = world.run(&RoleName::PAYMENT, payments).await;
    assert_eq!(outcomes(&settled), ["duplicate (claim)"]);
    world.drain().await;
    assert_eq!(world.count("payment").await, 1);
    world.adds_up().await;
}

// B83
#[tokio::test]
async fn two_processes_whose_clocks_are_90_seconds_apart_never_do_the_same_thing_twice() {
    let world = ordered().await;
    let options = Options {
        path: world.database.path().to_owned(),
        busy_timeout: Duration::from_secs(5),
        readers: 1,
    };
    let fast = Database::open(&options).await.unwrap();
    fast.advance(Duration::from_secs(90));
    let fast = Arc::new(SqliteStore::new(fast));
    world.publish("order.cancel", of("O1")).await;
    world.run_orders().await;
    let relay = async |store: Arc<SqliteStore>, holder: &str| {
        let publisher = world.queue.publisher().await.unwrap();
        Relay::new(store, publisher, holder.to_owned(), Settings::default())
    };
    let mut slow_relay = relay(world.store.clone(), "slow").await;
    let mut fast_relay = relay(Arc::clone(&fast), "fast").await;
    let one = Relayed::Rows {
        published: 1,
        refused: 0,
    };
    assert_eq!(slow_relay.run_once().await.unwrap(), one);
    world.stock("B", 1).await;
    world
        .publish("order.create", create("O2", &[("B", 1)]))
        .await;
    world.run_orders().await;
    // To the fast one the lease of the slow one is over; the slow one notices at its next removal.
    assert_eq!(fast_relay.run_once().await.unwrap(), one);
    world
        .publish("order.create", create("O3", &[("A", 1)]))
        .await;
    world.run_orders().await;
    assert_eq!(slow_relay.run_once().await.unwrap(), Relayed::NotOurs);
    assert_eq!(fast_relay.run_once().await.unwrap(), one);
    fast_relay.close().await.unwrap();
    let queued = world.queue.depth(&RoleName::INVENTORY).await.unwrap();
    // order.closed of O1, stock.adjust of B, order.created of O2, and of O3 twice.
    assert_eq!(queued.total(), 5);
    world.drain().await;
    world.advance(PAY_TIMEOUT);
    // Both janitors see that O2 and O3 are due.
    let orders = orderonce::worker::Processor::new(
        crate::support::order_role(),
        fast.clone(),
        world.settings.clone(),
    );
    let roles = RoleName::BUILT_IN.to_vec();
    let broker = Arc::new(world.queue.clone());
    let mut other =
        orderonce::worker::janitor::Janitor::new(fast, broker, Arc::new(orders), roles, 10);
    let mut ours = world.janitor();
    let (a, b) = tokio::join!(other.run_once(), ours.run_once());
    assert_eq!(a.unwrap().expired + b.unwrap().expired, 2);
    world.drain().await;
    assert_eq!(world.available("A").await, 5);
    assert_eq!(world.available("B").await, 1);
    assert_eq!(world.dead().await, [""; 0]);
    world.adds_up().await;
}

/// Somebody reports a refund under the number that we would ask under, for another order: we ask under the next one.
#[tokio::test]
async fn a_refund_number_that_another_order_has_is_not_used_again() {
    let world = World::new().await;
    world.stock("A", 10).await;
    for order_id in ["O1", "O2"] {
        world
            .publish("order.create", create(order_id, &[("A", 1)]))
            .await;
    }
    world.drain().await;
    let number = refund_no(&"card".parse().unwrap(), &"T2".parse().unwrap());
    let failed = json!({"order_id": "O2", "provider": "card", "refund_no": number.as_str()});
    for (event_type, data) in [
        ("payment.succeeded", paid("O1", "T1", 1000)),
        ("payment.succeeded", paid("O2", "T9", 1000)),
        ("refund.failed", failed),
        ("payment.succeeded", paid("O1", "T2", 1000)),
    ] {
        world.publish(event_type, data).await;
        world.drain().await;
    }
    let refunds = world
        .rows("SELECT order_id, status, amount_minor FROM refund ORDER BY order_id")
        .await;
    assert_eq!(refunds, ["O1 REQUESTED 1000", "O2 FAILED 0"]);
    world.adds_up().await;
}
