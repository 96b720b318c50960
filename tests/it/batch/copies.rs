//! Copies of an event, in one batch and after each other; messages of many events.

use crate::support::{World, and, create, create_worth, envelope, of, outcomes, paid};
use orderonce::broker::Headers;
use orderonce::domain::RoleName;
use orderonce::worker::Processor;
use serde_json::json;

#[tokio::test]
async fn a_copy_in_the_same_batch_is_a_duplicate() {
    let world = World::new().await;
    for _ in 0..3 {
        world
            .publish("order.create", create("O1", &[("A", 1)]))
            .await;
    }
    let expected = ["applied", "duplicate (batch)", "duplicate (batch)"];
    assert_eq!(world.run_orders().await, expected);
    assert_eq!(world.count("order_transition").await, 1);
    assert_eq!(world.outbox().await, ["order.created"]);
}

#[tokio::test]
async fn a_copy_of_what_is_settled_is_a_duplicate() {
    let world = World::new().await;
    world
        .publish("order.create", create("O1", &[("A", 1)]))
        .await;
    assert_eq!(world.run_orders().await, ["applied"]);
    world
        .publish("order.create", create("O1", &[("A", 1)]))
        .await;
    world
        .publish("order.create", create("O1", &[("A", 1)]))
        .await;
    let expected = ["duplicate (claim)", "duplicate (claim)"];
    assert_eq!(world.run_orders().await, expected);
}

#[tokio::test]
async fn other_content_under_the_same_key_is_a_conflict_that_a_person_can_read() {
    let world = World::new().await;
    world
        .publish("order.create", create("O1", &[("A", 1)]))
        .await;
    let other = world
        .publish("order.create", create("O1", &[("A", 2)]))
        .await;
    assert_eq!(world.run_orders().await, ["applied", "conflict"]);
    assert_eq!(world.row("SELECT qty FROM order_line").await, "1");
    let kept = "SELECT role, reason, status, key, raw FROM dead_letter";
    let raw = envelope(&other, "order.create", &create("O1", &[("A", 2)]));
    let expected = format!("order conflict DEAD O1/order.create {raw}");
    assert_eq!(world.row(kept).await, expected);
    let depth = orderonce::broker::Broker::depth(&world.queue, &RoleName::ORDER).await;
    assert_eq!(depth.unwrap().total(), 0);
}

#[tokio::test]
async fn what_took_the_key_decides_who_is_the_copy_and_who_the_conflict() {
    for order in [[2, 1], [1, 2]] {
        let world = World::new().await;
        world
            .publish("order.create", create("O1", &[("A", 1)]))
            .await;
        assert_eq!(world.run_orders().await, ["applied"]);
        for qty in order {
            world
                .publish("order.create", create("O1", &[("A", qty)]))
                .await;
        }
        let expected = order.map(|qty| match qty {
            1 => "duplicate (claim)",
            _ => "conflict",
        });
        assert_eq!(world.run_orders().await, expected);
        assert_eq!(world.dead().await, ["conflict DEAD"]);
    }
}

#[tokio::test]
async fn what_came_first_takes_a_free_key_whatever_follows_in_its_batch() {
    let world = World::new().await;
    for qty in [1, 2, 1, 2] {
        world
            .publish("order.create", create("O1", &[("A", qty)]))
            .await;
    }
    let expected = ["applied", "conflict", "duplicate (batch)", "conflict"];
    assert_eq!(world.run_orders().await, expected);
    assert_eq!(world.row("SELECT qty FROM order_line").await, "1");
}

#[tokio::test]
async fn a_conflict_that_is_delivered_again_is_kept_once() {
    let world = World::new().await;
    world
        .publish("order.create", create("O1", &[("A", 1)]))
        .await;
    world.run_orders().await;
    for _ in 0..2 {
        world
            .publish_as("same", "order.create", create("O1", &[("A", 2)]))
            .await;
        assert_eq!(world.run_orders().await, ["conflict"]);
    }
    assert_eq!(world.dead().await, ["conflict DEAD"]);
    world
        .publish_as("other", "order.create", create("O1", &[("A", 3)]))
        .await;
    assert_eq!(world.run_orders().await, ["conflict"]);
    assert_eq!(world.dead().await, ["conflict DEAD", "conflict DEAD"]);
}

#[tokio::test]
async fn a_rejection_is_final_for_its_key() {
    let world = World::new().await;
    world
        .publish("order.create", create("O1", &[("A", 1)]))
        .await;
    world.publish("order.expire", of("O1")).await;
    assert_eq!(world.run_orders().await, ["applied", "rejected (not_due)"]);
    world.advance(crate::support::PAY_TIMEOUT);
    world.publish("order.expire", of("O1")).await;
    assert_eq!(world.run_orders().await, ["duplicate (claim)"]);
    assert_eq!(world.status("O1").await, "WAIT_PAY");
    let claim = "SELECT outcome, detail FROM idempotent_record WHERE key = 'O1/order.expire'";
    assert_eq!(world.row(claim).await, "rejected not_due");
}

#[tokio::test]
async fn rows_stop_a_copy_whose_claim_is_gone() {
    let world = World::new().await;
    world.stock("A", 5).await;
    world
        .publish("order.create", create("O1", &[("A", 2)]))
        .await;
    world.drain().await;
    world
        .publish("payment.succeeded", paid("O1", "T1", 2000))
        .await;
    world.publish("account.credit", credit()).await;
    world.drain().await;
    let before = world.rows(EFFECTS).await;
    world.execute("DELETE FROM idempotent_record").await;
    world
        .publish("order.create", create("O1", &[("A", 2)]))
        .await;
    let lines = json!([{"sku_id": "A", "qty": 2}]);
    let created = json!({"order_id": "O1", "user_id": "U-O1", "lines": lines});
    world.publish("order.created", created).await;
    world
        .publish("payment.succeeded", paid("O1", "T1", 2000))
        .await;
    world.publish("account.credit", credit()).await;
    let seen = world.drain().await;
    let expected = ["order", "payment", "inventory", "account"];
    let expected = expected.map(|role| format!("{role}: duplicate (flow)"));
    assert_eq!(seen, expected);
    assert_eq!(world.rows(EFFECTS).await, before);
}

/// Everything that an event can change, but for the shared tables.
const EFFECTS: &str = "
    SELECT 'order', order_id, status, version FROM orders UNION ALL
    SELECT 'step', order_id, to_status, version FROM order_transition UNION ALL
    SELECT 'stock', sku_id, available, version FROM stock UNION ALL
    SELECT 'flow', flow_id, qty, available_after FROM deduction_flow UNION ALL
    SELECT 'payment', trade_no, status, amount_minor FROM payment UNION ALL
    SELECT 'account', user_id, balance, version FROM account UNION ALL
    SELECT 'points', user_id, source_id, amount FROM account_flow
    ORDER BY 1, 2, 3, 4";

fn credit() -> serde_json::Value {
    json!({"user_id": "U1", "kind": "POINTS", "source_type": "GIFT", "source_id": "G1", "amount": 5})
}

#[tokio::test]
async fn each_event_of_a_message_has_an_outcome_of_its_own() {
    let world = World::new().await;
    world.publish("order.create", create_worth("O1", 100)).await;
    world.run_orders().await;
    let items = json!({"items": [
        create_worth("O1", 100), create_worth("O2", 100), create_worth("O1", 200),
        create_worth("O2", 100), create_worth("O3", 0),
    ]});
    world.publish("order.create", items).await;
    let settled = world.run(&RoleName::ORDER, world.orders()).await;
    assert_eq!(settled.len(), 1);
    let expected = [
        "duplicate (claim)",
        "applied",
        "conflict",
        "duplicate (batch)",
        "applied",
    ];
    assert_eq!(outcomes(&settled), expected);
    let orders = "SELECT order_id, status FROM orders ORDER BY order_id";
    let expected = ["O1 WAIT_PAY", "O2 WAIT_PAY", "O3 PAID"];
    assert_eq!(world.rows(orders).await, expected);
    assert_eq!(world.dead().await, ["conflict DEAD"]);
}

#[tokio::test]
async fn a_message_with_a_malformed_event_is_dead_as_a_whole() {
    let world = World::new().await;
    let bad = and(create_worth("O2", 100), json!({"total_minor": 99}));
    let items = json!({"items": [create_worth("O1", 100), bad]});
    let id = world.publish("order.create", items.clone()).await;
    world.publish("order.create", create_worth("O3", 100)).await;
    let expected = ["dead (malformed)", "applied"];
    assert_eq!(world.run_orders().await, expected);
    let orders = "SELECT order_id FROM orders";
    assert_eq!(world.rows(orders).await, ["O3"]);
    let raw = envelope(&id, "order.create", &items);
    assert_eq!(world.row("SELECT raw FROM dead_letter").await, raw);
    let detail = world.row("SELECT detail FROM dead_letter").await;
    assert!(detail.starts_with("data.items[1].total_minor"), "{detail}");
}

#[tokio::test]
async fn a_message_comes_again_for_one_of_its_events_and_the_others_are_duplicates() {
    let world = World::new().await;
    world
        .execute(
            "CREATE TRIGGER not_o2 BEFORE INSERT ON orders WHEN new.order_id = 'O2'
             BEGIN SELECT RAISE(ABORT, 'not O2'); END",
        )
        .await;
    let items = json!({"items": [create_worth("O1", 1), create_worth("O2", 1)]});
    world.publish("order.create", items).await;
    world.publish("order.create", create_worth("O3", 1)).await;
    // All events of a delivery share its transaction, so O1 waits with O2.
    let retried = "retried (attempt 1, again in 1 s)";
    assert_eq!(world.run_orders().await, [retried, retried, "applied"]);
    world.execute("DROP TRIGGER not_o2").await;
    world.publish("order.create", create_worth("O1", 1)).await;
    assert_eq!(world.run_orders().await, ["applied"]);
    world.advance(std::time::Duration::from_secs(1));
    assert_eq!(world.run_orders().await, ["duplicate (claim)", "applied"]);
}

#[tokio::test]
async fn no_sign_of_redelivery_decides_anything() {
    let world = World::new().await;
    let processor: Processor<_> = world.orders();
    let message = envelope("m1", "order.create", &create_worth("O1", 1));
    let mut delivery = crate::support::delivery(message);
    delivery.deliveries = 7;
    let first = processor.process(std::slice::from_ref(&delivery)).await;
    assert_eq!(outcomes(&first.settled), ["applied"]);
    delivery.deliveries = 1;
    delivery.headers = Headers::new();
    let second = processor.process(&[delivery]).await;
    assert_eq!(outcomes(&second.settled), ["duplicate (claim)"]);
}
