//! What is published, and what is said of each delivery.

use crate::support::{
    Meddled, World, create, create_worth, envelope, of, order_role, outcomes, paid,
};
use orderonce::domain::RoleName;
use orderonce::worker::Settled;
use serde_json::{Value, json};

async fn ids(world: &World) -> Vec<String> {
    let sql = "SELECT aggregate, message_id FROM outbox ORDER BY id";
    world.rows(sql).await
}

#[tokio::test]
async fn the_ids_of_what_is_published_come_from_the_cause_and_stay_the_same() {
    let expected = ["O1 order:O1/order.create>order.created"];
    let world = World::new().await;
    world
        .publish_as("first", "order.create", create("O1", &[("A", 1)]))
        .await;
    world.run_orders().await;
    assert_eq!(ids(&world).await, expected);

    let world = World::new().await;
    world
        .publish_as("second", "order.create", create("O1", &[("A", 1)]))
        .await;
    let meddle =
        "INSERT INTO orders SELECT 'O1', 'U', 'CLOSED', 1, 'CNY', 0, 0, 0, 0, x'', 0, 0, NULL";
    let role = Meddled::new(order_role(), meddle, 1);
    let settled = world.run(&RoleName::ORDER, world.processor(role)).await;
    assert_eq!(outcomes(&settled), ["applied"]);
    assert_eq!(ids(&world).await, expected);
}

#[tokio::test]
async fn all_that_one_event_causes_has_ids_of_its_own() {
    let world = World::new().await;
    world
        .publish("order.create", create_worth("O1", 1000))
        .await;
    world.drain().await;
    world
        .publish("payment.succeeded", paid("O1", "T1", 1000))
        .await;
    world.drain().await;
    world.publish("order.cancel", of("O1")).await;
    world.run_orders().await;
    let expected = [
        "O1 order:O1/order.cancel>order.closed",
        "O1 order:O1/order.cancel>refund.requested",
    ];
    assert_eq!(ids(&world).await, expected);
}

#[tokio::test]
async fn the_trace_of_a_cause_is_passed_on() {
    let world = World::new().await;
    let trace = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
    let message = envelope("m1", "order.create", &create("O1", &[("A", 1)]));
    let mut message: Value = serde_json::from_str(&message).unwrap();
    message["traceparent"] = json!(trace);
    let bytes = message.to_string().into_bytes();
    world
        .publish_raw("order.create", bytes, Default::default())
        .await;
    world
        .publish("order.create", create("O2", &[("A", 1)]))
        .await;
    assert_eq!(world.run_orders().await, ["applied", "applied"]);
    let traces = "SELECT message ->> 'traceparent' FROM outbox ORDER BY id";
    assert_eq!(world.rows(traces).await, [trace, "-"]);
}

#[tokio::test]
async fn events_are_published_in_the_order_in_which_they_were_decided() {
    let world = World::new().await;
    for order in ["O2", "O1", "O3"] {
        world
            .publish("order.create", create(order, &[("A", 1)]))
            .await;
    }
    world.publish("order.cancel", of("O1")).await;
    world.run_orders().await;
    let outbox = "SELECT aggregate, event_type FROM outbox ORDER BY id";
    let expected = [
        "O2 order.created",
        "O1 order.created",
        "O3 order.created",
        "O1 order.closed",
    ];
    assert_eq!(world.rows(outbox).await, expected);
}

#[tokio::test]
async fn what_is_settled_names_message_key_and_outcome() {
    let world = World::new().await;
    world
        .publish("order.create", create("O1", &[("A", 1)]))
        .await;
    world.publish("order.ship", json!({})).await;
    world
        .publish_to(&RoleName::ORDER, b"?", Default::default())
        .await;
    let settled = world.run(&RoleName::ORDER, world.orders()).await;
    let line = |settled: &Settled| {
        let item = &settled.items[0];
        let key = item.key.as_ref().map(|(key, _)| key.to_string());
        format!("{:?} {key:?} {}", settled.message_id, item.outcome.name())
    };
    let lines: Vec<String> = settled.iter().map(line).collect();
    let expected = [
        r#"Some("m1") Some("O1/order.create") applied"#,
        r#"Some("m2") None dead"#,
        "None None dead",
    ];
    assert_eq!(lines, expected);
}

#[tokio::test]
async fn a_rehearsal_says_what_would_become_of_a_delivery_and_writes_nothing() {
    let world = World::new().await;
    let message = envelope("m1", "order.create", &create("O1", &[("A", 1)]));
    let delivery = crate::support::delivery(message);
    let would_be = world.orders().rehearse(&delivery).await.unwrap();
    assert_eq!(outcomes(&[would_be]), ["applied"]);
    for table in ["orders", "idempotent_record", "outbox"] {
        assert_eq!(world.count(table).await, 0);
    }
}

#[tokio::test]
async fn the_message_is_kept_with_its_claim_unless_it_is_not_wanted() {
    for keep_body in [true, false] {
        let mut world = World::new().await;
        world.settings.keep_body = keep_body;
        world
            .publish("order.create", create("O1", &[("A", 1)]))
            .await;
        world.run_orders().await;
        let body = world
            .row("SELECT request_body FROM idempotent_record")
            .await;
        let message = envelope("m1", "order.create", &create("O1", &[("A", 1)]));
        assert_eq!(body, if keep_body { &message } else { "-" });
    }
}
