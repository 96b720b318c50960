//! Events that come too early.

use crate::support::{World, and, create, create_worth, of, paid};
use orderonce::broker::Headers;
use orderonce::domain::RoleName;
use orderonce::store::WOKEN;
use serde_json::json;
use std::time::Duration;

const DAY: Duration = Duration::from_secs(86_400);

#[tokio::test]
async fn an_early_event_is_parked_woken_and_applied() {
    let world = World::new().await;
    world
        .publish("payment.succeeded", paid("O1", "T1", 1000))
        .await;
    let parked = "parked (until order:O1:WAIT_PAY)";
    assert_eq!(world.run_payments().await, [parked]);
    assert_eq!(
        world.claims("1").await,
        ["payment ali/O1/SUCCEEDED/T1/payment.succeeded parked"]
    );
    world
        .publish("order.create", create_worth("O1", 1000))
        .await;
    assert_eq!(world.run_orders().await, ["applied"]);
    // Woken in the transaction that made it possible, addressed to its role.
    let outbox = "SELECT event_type, addressee, message_id FROM outbox ORDER BY id";
    let expected = [
        "order.created - order:O1/order.create>order.created",
        "payment.succeeded payment m1",
    ];
    assert_eq!(world.rows(outbox).await, expected);
    world.relay().await;
    assert_eq!(world.run_payments().await, ["applied"]);
    assert_eq!(world.status("O1").await, "PAID");
    assert_eq!(world.count("parked_event").await, 0);
    world.drain().await;
    world.adds_up().await;
}

#[tokio::test]
async fn a_woken_event_comes_as_it_was_parked_and_says_that_it_was() {
    let world = World::new().await;
    let message = crate::support::envelope("m1", "payment.succeeded", &paid("O1", "T1", 1000));
    let mut headers = Headers::from([("x".to_owned(), "1".to_owned())]);
    world
        .publish_raw(
            "payment.succeeded",
            message.clone().into_bytes(),
            headers.clone(),
        )
        .await;
    world.run_payments().await;
    world
        .publish("order.create", create_worth("O1", 1000))
        .await;
    world.run_orders().await;
    world.relay().await;
    let mut worker = world.worker(&RoleName::PAYMENT, world.payments()).await;
    let woken = crate::support::received(&mut worker).await;
    assert_eq!(woken[0].message, message.as_bytes());
    headers.insert(WOKEN.to_owned(), "true".to_owned());
    assert_eq!(woken[0].headers, headers);
    worker.close().await.unwrap();
}

#[tokio::test]
async fn copies_of_a_parked_event_are_duplicates_while_it_waits() {
    let world = World::new().await;
    world.publish("order.cancel", of("O1")).await;
    world.publish("order.cancel", of("O1")).await;
    let expected = ["parked (until order:O1:WAIT_PAY)", "duplicate (batch)"];
    assert_eq!(world.run_orders().await, expected);
    world.publish("order.cancel", of("O1")).await;
    world.publish("order.cancel", of("O1")).await;
    let expected = ["duplicate (parked)", "duplicate (batch)"];
    assert_eq!(world.run_orders().await, expected);
    assert_eq!(world.count("parked_event").await, 1);
    let other = and(of("O1"), json!({"reason": "another"}));
    world.publish("order.cancel", other).await;
    assert_eq!(world.run_orders().await, ["conflict"]);
    assert_eq!(world.claims("1").await, ["order O1/order.cancel parked"]);
}

#[tokio::test]
async fn a_copy_that_overtakes_the_woken_event_is_applied_and_the_woken_one_is_its_duplicate() {
    let world = World::new().await;
    world.publish("order.cancel", of("O1")).await;
    world.run_orders().await;
    world
        .publish("order.create", create_worth("O1", 1000))
        .await;
    assert_eq!(world.run_orders().await, ["applied"]);
    world.publish("order.cancel", of("O1")).await;
    assert_eq!(world.run_orders().await, ["applied"]);
    assert_eq!(world.status("O1").await, "CLOSED");
    assert_eq!(world.count("parked_event").await, 0);
    world.relay().await;
    assert_eq!(world.run_orders().await, ["duplicate (claim)"]);
    world.drain().await;
    world.adds_up().await;
}

#[tokio::test]
async fn an_event_is_parked_again_for_what_it_needs_next() {
    let world = World::new().await;
    world.stock("A", 5).await;
    world.publish("order.complete", of("O1")).await;
    world.publish("order.ship", of("O1")).await;
    world.drain().await;
    world
        .publish("order.create", create("O1", &[("A", 1)]))
        .await;
    let seen = world.drain().await;
    assert!(
        seen.contains(&"order: parked (until order:O1:SHIPPED)".to_owned()),
        "{seen:?}"
    );
    assert!(
        seen.contains(&"order: parked (until order:O1:PAID)".to_owned()),
        "{seen:?}"
    );
    // The claim says what it waits for now.
    let detail = "SELECT key, detail FROM idempotent_record WHERE outcome = 'parked' ORDER BY key";
    let expected = [
        "O1/order.complete order:O1:SHIPPED",
        "O1/order.ship order:O1:PAID",
    ];
    assert_eq!(world.rows(detail).await, expected);
    world
        .publish("payment.succeeded", paid("O1", "T1", 1000))
        .await;
    world.drain().await;
    assert_eq!(world.status("O1").await, "COMPLETED");
    assert_eq!(world.row("SELECT balance FROM account").await, "10");
    world.adds_up().await;
}

#[tokio::test]
async fn an_event_that_is_parked_again_keeps_its_deadline() {
    let world = World::new().await;
    world.publish("order.ship", of("O1")).await;
    world.run_orders().await;
    let deadline = world.row("SELECT deadline FROM parked_event").await;
    world.advance(DAY / 2);
    world
        .publish("order.create", create_worth("O1", 1000))
        .await;
    world.run_orders().await;
    world.relay().await;
    assert_eq!(world.run_orders().await, ["parked (until order:O1:PAID)"]);
    assert_eq!(
        world.row("SELECT deadline FROM parked_event").await,
        deadline
    );
    world.advance(DAY / 2);
    assert_eq!(world.clean().await.overdue, 1);
}

#[tokio::test]
async fn an_order_that_ends_wakes_all_that_waits_for_it() {
    let world = World::new().await;
    world
        .publish("order.create", create_worth("O1", 1000))
        .await;
    world.publish("order.ship", of("O1")).await;
    world.publish("order.complete", of("O1")).await;
    let expected = [
        "applied",
        "parked (until order:O1:PAID)",
        "parked (until order:O1:SHIPPED)",
    ];
    assert_eq!(world.run_orders().await, expected);
    world.publish("order.cancel", of("O1")).await;
    let seen = world.drain().await;
    let rejected = "order: rejected (order_closed)".to_owned();
    assert_eq!(
        seen.iter().filter(|outcome| **outcome == rejected).count(),
        2
    );
    assert_eq!(world.count("parked_event").await, 0);
    world.adds_up().await;
}

#[tokio::test]
async fn a_parked_event_whose_deadline_passes_is_kept_and_its_key_is_free_for_a_copy() {
    let world = World::new().await;
    let data = paid("O1", "T1", 1000);
    let id = world.publish("payment.succeeded", data.clone()).await;
    world.run_payments().await;
    world.advance(DAY - Duration::from_secs(60));
    assert_eq!(world.clean().await.overdue, 0);
    world.advance(Duration::from_secs(60));
    assert_eq!(world.clean().await.overdue, 1);
    assert_eq!(world.clean().await.overdue, 0);
    assert_eq!(world.count("parked_event").await, 0);
    let claims = ["payment ali/O1/SUCCEEDED/T1/payment.succeeded dead"];
    assert_eq!(world.claims("1").await, claims);
    let letter = "SELECT reason, message_id, key, raw FROM dead_letter";
    let raw = crate::support::envelope(&id, "payment.succeeded", &data);
    let expected = format!("parked_too_long {id} ali/O1/SUCCEEDED/T1/payment.succeeded {raw}");
    assert_eq!(world.row(letter).await, expected);

    world
        .publish("order.create", create_worth("O1", 1000))
        .await;
    world.drain().await;
    world.publish("payment.succeeded", data).await;
    assert_eq!(world.run_payments().await, ["applied"]);
    let claims = ["payment ali/O1/SUCCEEDED/T1/payment.succeeded applied"];
    assert_eq!(world.claims("role = 'payment'").await, claims);
    world.drain().await;
    world.adds_up().await;
}

#[tokio::test]
async fn a_given_up_event_may_be_parked_again() {
    let world = World::new().await;
    world.publish("order.cancel", of("O1")).await;
    world.run_orders().await;
    world.advance(DAY);
    assert_eq!(world.clean().await.overdue, 1);
    world.publish("order.cancel", of("O1")).await;
    let parked = "parked (until order:O1:WAIT_PAY)";
    assert_eq!(world.run_orders().await, [parked]);
    assert_eq!(world.claims("1").await, ["order O1/order.cancel parked"]);
    assert_eq!(world.clean().await.overdue, 0);
}

#[tokio::test]
async fn a_parked_event_that_turns_out_to_be_a_conflict_waits_no_more() {
    let world = World::new().await;
    let status =
        |status: &str, amount| and(paid("O1", "T1", amount), json!({"trade_status": status}));
    world
        .publish("payment.succeeded", status("TRADE_FINISHED", 1000))
        .await;
    world
        .publish("payment.succeeded", status("TRADE_SUCCESS", 900))
        .await;
    world.run_payments().await;
    world
        .publish("order.create", create_worth("O1", 1000))
        .await;
    world.drain().await;
    assert_eq!(world.dead().await, ["conflict DEAD"]);
    assert_eq!(world.count("parked_event").await, 0);
    let claims = [
        "payment ali/O1/TRADE_FINISHED/T1/payment.succeeded applied",
        "payment ali/O1/TRADE_SUCCESS/T1/payment.succeeded dead",
    ];
    assert_eq!(world.claims("role = 'payment'").await, claims);
    world.advance(DAY);
    world.clean().await;
    assert_eq!(world.dead().await, ["conflict DEAD"]);
}

#[tokio::test]
async fn events_of_a_message_are_parked_and_woken_each_for_itself() {
    let world = World::new().await;
    let items = json!({"items": [of("O1"), of("O2"), of("O3")]});
    world
        .publish("order.create", create_worth("O3", 1000))
        .await;
    world.publish("order.cancel", items).await;
    let expected = [
        "applied",
        "parked (until order:O1:WAIT_PAY)",
        "parked (until order:O2:WAIT_PAY)",
        "applied",
    ];
    assert_eq!(world.run_orders().await, expected);
    world
        .publish("order.create", create_worth("O2", 1000))
        .await;
    world.run_orders().await;
    world.relay().await;
    let expected = ["duplicate (parked)", "applied", "duplicate (claim)"];
    assert_eq!(world.run_orders().await, expected);
    world
        .publish("order.create", create_worth("O1", 1000))
        .await;
    world.drain().await;
    assert_eq!(world.status("O1").await, "CLOSED");
    world.adds_up().await;
}
