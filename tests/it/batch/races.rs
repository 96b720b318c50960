//! Guards that fail, and data that the database refuses.

use crate::support::{
    Meddled, World, create, create_worth, delivery, envelope, of, outcomes, paid, payment_role,
    refunded,
};
use async_trait::async_trait;
use orderonce::broker::Delivery;
use orderonce::domain::{Key, RoleName};
use orderonce::gate::{Gate, Known, Told};
use orderonce::worker::inventory::InventoryRole;
use orderonce::worker::order::OrderRole;
use orderonce::worker::{Processor, Role};
use serde_json::json;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

#[tokio::test]
async fn a_batch_that_lost_a_race_is_decided_again() {
    let world = World::new().await;
    world.stock("A", 10).await;
    world.drain().await;
    world
        .publish("order.create", create("O1", &[("A", 1)]))
        .await;
    world
        .publish("order.create", create("O2", &[("A", 2)]))
        .await;
    world.run_orders().await;
    world.relay().await;
    let role = Meddled::new(InventoryRole, "UPDATE stock SET version = version + 1", 2);
    let loads = Arc::clone(&role.loads);
    let settled = world.run(&RoleName::INVENTORY, world.processor(role)).await;
    assert_eq!(outcomes(&settled), ["applied", "applied"]);
    assert_eq!(loads.load(Ordering::Relaxed), 3);
    assert_eq!(world.available("A").await, 7);
    world.drain().await;
    world.adds_up().await;
}

/// Lets another worker commit between two attempts.
struct Rival {
    asked: AtomicU32,
    orders: Processor<OrderRole>,
    delivery: Delivery,
}

#[async_trait]
impl Gate for Rival {
    async fn ask(&self, _: &RoleName, keys: &[&Key]) -> Vec<Known> {
        if self.asked.fetch_add(1, Ordering::Relaxed) == 1 {
            let deliveries = std::slice::from_ref(&self.delivery);
            let rival = self.orders.process(deliveries).await;
            assert_eq!(outcomes(&rival.settled), ["applied"]);
        }
        vec![Known::Unknown; keys.len()]
    }

    async fn tell(&self, _: &RoleName, _: &[Told<'_>]) {}
}

#[tokio::test]
async fn a_batch_that_lost_a_race_is_decided_from_the_rows_that_the_winner_left() {
    let world = World::new().await;
    world
        .publish("order.create", create_worth("O1", 1000))
        .await;
    world.drain().await;
    world
        .publish("payment.succeeded", paid("O1", "T1", 1000))
        .await;
    let role = Meddled::new(payment_role(), "UPDATE orders SET version = version + 1", 1);
    let rival = Rival {
        asked: AtomicU32::new(0),
        orders: world.orders(),
        delivery: delivery(envelope("m9", "order.cancel", &of("O1"))),
    };
    let payments = world.processor(role).with_gates(vec![Arc::new(rival)]);
    let settled = world.run(&RoleName::PAYMENT, payments).await;
    assert_eq!(outcomes(&settled), ["applied"]);
    assert_eq!(world.status("O1").await, "CLOSED");
    assert_eq!(world.row("SELECT status FROM payment").await, "LATE");
    assert_eq!(world.outbox().await, ["order.closed", "refund.requested"]);
    world.drain().await;
    world.adds_up().await;
}

/// Runs one event of a role whose rows somebody else changes each time after they were read, and
/// fails if the event is applied all the same.
async fn is_guarded<R: Role>(world: &World, role: R, sql: &'static str) {
    let name = role.name();
    let role = Meddled::new(role, sql, u32::MAX);
    let settled = world.run(&name, world.processor(role)).await;
    let expected = ["retried (attempt 1, again in 1 s)"];
    assert_eq!(outcomes(&settled), expected, "{sql}");
}

#[tokio::test]
async fn every_update_is_guarded_by_what_was_read() {
    let world = World::new().await;
    world.stock("A", 10).await;
    world
        .publish("order.create", create("O1", &[("A", 1)]))
        .await;
    world
        .publish("order.create", create("O2", &[("A", 1)]))
        .await;
    world
        .publish("payment.succeeded", paid("O1", "T1", 1000))
        .await;
    world
        .publish("payment.succeeded", paid("O1", "T2", 1000))
        .await;
    let credit = |id| json!({"user_id": "U1", "kind": "P", "source_type": "G", "source_id": id, "amount": 5});
    world.publish("account.credit", credit("1")).await;
    world.drain().await;
    let ask = "SELECT refund_no FROM refund WHERE status = 'REQUESTED'";
    let refund_no = world.row(ask).await;

    world.publish("order.cancel", of("O2")).await;
    is_guarded(
        &world,
        crate::support::order_role(),
        "UPDATE orders SET status = 'PAID'",
    )
    .await;
    world.publish("order.ship", of("O1")).await;
    let version = "UPDATE orders SET version = version + 1";
    is_guarded(&world, crate::support::order_role(), version).await;

    let surplus = crate::support::and(refunded("O1", &refund_no, 1000), json!({"trade_no": "T2"}));
    world.publish("refund.succeeded", surplus).await;
    is_guarded(
        &world,
        payment_role(),
        "UPDATE refund SET status = 'FAILED'",
    )
    .await;

    let closed = json!({"order_id": "O1", "reason": "test"});
    world.publish("order.closed", closed.clone()).await;
    let released = "UPDATE reservation SET status = 'RELEASED'";
    is_guarded(&world, InventoryRole, released).await;
    world.publish("order.closed", closed).await;
    let version = "UPDATE reservation SET version = version + 1";
    is_guarded(&world, InventoryRole, version).await;
    let adjust = json!({"adjustment_id": "J1", "sku_id": "A", "change": 1});
    world.publish("stock.adjust", adjust).await;
    is_guarded(
        &world,
        InventoryRole,
        "UPDATE stock SET version = version + 1",
    )
    .await;

    world.publish("account.credit", credit("2")).await;
    let version = "UPDATE account SET version = version + 1";
    is_guarded(&world, crate::support::account_role(), version).await;

    // A claim that another transaction has concluded in the meantime.
    world.publish("order.expire", of("O2")).await;
    let stale = "UPDATE idempotent_record SET outcome = 'stale' WHERE key = 'O2/order.expire'";
    is_guarded(&world, crate::support::order_role(), stale).await;
}

#[tokio::test]
async fn rows_that_somebody_else_inserted_are_a_lost_race() {
    let world = World::new().await;
    world.stock("A", 10).await;
    world.drain().await;
    let created = |id: &str| {
        let lines = json!([{"sku_id": "A", "qty": 1}]);
        json!({"order_id": id, "user_id": "U1", "lines": lines})
    };
    world.publish("order.created", created("O1")).await;
    let flow = "INSERT INTO deduction_flow VALUES ('O1/A/deduct', 'O1', 'A', 'deduct', -1, 9, 0)";
    is_guarded(&world, InventoryRole, flow).await;
    world.publish("order.created", created("O2")).await;
    let reservation = "INSERT INTO reservation VALUES ('O2', 'DEDUCTED', 1, 0, 0)";
    is_guarded(&world, InventoryRole, reservation).await;
    let credit =
        json!({"user_id": "U1", "kind": "P", "source_type": "G", "source_id": "1", "amount": 5});
    world.publish("account.credit", credit).await;
    let flow = "INSERT INTO account_flow VALUES ('U1', 'P', 'G', '1', NULL, NULL, 5, 5, 0)";
    is_guarded(&world, crate::support::account_role(), flow).await;
    assert_eq!(world.available("A").await, 10);
    assert_eq!(world.count("account").await, 0);
}

/// Eight orders of a SKU each, of which one cannot be written, by `trigger`.
async fn one_bad_of_eight(trigger: &str) {
    for bad in 0..8 {
        let world = World::new().await;
        for n in 0..8 {
            world.stock(&format!("S{n}"), 5).await;
        }
        world.drain().await;
        world
            .execute(&trigger.replace("@bad", &format!("S{bad}")))
            .await;
        for n in 0..8 {
            let sku = format!("S{n}");
            let order = create(&format!("O{n}"), &[(&sku, 1)]);
            world.publish("order.create", order).await;
        }
        world.run_orders().await;
        world.relay().await;
        let mut expected = vec!["applied"; 8];
        expected[bad] = "retried (attempt 1, again in 1 s)";
        assert_eq!(world.run_inventory().await, expected);
        let reserved = "SELECT count(*) FROM reservation WHERE status = 'DEDUCTED'";
        assert_eq!(world.row(reserved).await, "7");
        world.execute("DROP TRIGGER bad").await;
        world.advance(std::time::Duration::from_secs(1));
        assert_eq!(world.run_inventory().await, ["applied"]);
        world.drain().await;
        world.adds_up().await;
    }
}

#[tokio::test]
async fn a_delivery_that_loses_again_and_again_is_tried_alone_and_its_neighbours_are_applied() {
    one_bad_of_eight(
        "CREATE TRIGGER bad BEFORE UPDATE ON stock WHEN new.sku_id = '@bad'
         BEGIN SELECT RAISE(IGNORE); END",
    )
    .await;
}

#[tokio::test]
async fn data_that_the_database_refuses_takes_no_neighbour_along() {
    one_bad_of_eight(
        "CREATE TRIGGER bad BEFORE UPDATE ON stock WHEN new.sku_id = '@bad'
         BEGIN SELECT RAISE(ABORT, 'not this one'); END",
    )
    .await;
}

#[tokio::test]
async fn a_row_that_cannot_be_read_takes_no_neighbour_along() {
    let world = World::new().await;
    for order in ["O1", "O2", "O3"] {
        world
            .publish("order.create", create_worth(order, 100))
            .await;
    }
    world.drain().await;
    world
        .execute("UPDATE orders SET currency = 'florins' WHERE order_id = 'O2'")
        .await;
    for order in ["O1", "O2", "O3"] {
        world.publish("order.cancel", of(order)).await;
    }
    let expected = ["applied", "retried (attempt 1, again in 1 s)", "applied"];
    assert_eq!(world.run_orders().await, expected);
}

#[tokio::test]
async fn a_hot_sku_costs_one_row_update_per_batch() {
    let world = World::new().await;
    world.stock("HOT", 1000).await;
    world.drain().await;
    world
        .execute(
            "CREATE TABLE updates (sku_id TEXT);
             CREATE TRIGGER counted AFTER UPDATE ON stock
             BEGIN INSERT INTO updates VALUES (new.sku_id); END",
        )
        .await;
    for n in 0..256 {
        let order = create(&format!("O{n}"), &[("HOT", 1)]);
        world.publish("order.create", order).await;
    }
    assert_eq!(world.run_orders().await, ["applied"; 256]);
    world.relay().await;
    assert_eq!(world.run_inventory().await, ["applied"; 256]);
    assert_eq!(world.rows("SELECT sku_id FROM updates").await, ["HOT"]);
    let stock = "SELECT available, version FROM stock";
    assert_eq!(world.row(stock).await, "744 257");
    assert_eq!(world.count("deduction_flow").await, 257);
    let lowest = "SELECT min(available_after) FROM deduction_flow";
    assert_eq!(world.row(lowest).await, "744");
    world.drain().await;
    world.adds_up().await;
}
