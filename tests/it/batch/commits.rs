//! One delivery, one transaction, one outcome; the broker hears of it after the commit.

use crate::support::{World, create, of, outcomes, paid};
use async_trait::async_trait;
use orderonce::broker::{self, Broker, Consumer, Delivery, Settlement, Tag};
use orderonce::domain::RoleName;
use orderonce::store::History;
use orderonce::store::sqlite::SqliteStore;
use orderonce::worker::{Error, Point, Points, Worker};
use serde_json::json;
use std::sync::{Arc, Mutex};

const BEFORE_COMMIT: [Point; 9] = [
    Point::Received,
    Point::Decoded,
    Point::Keyed,
    Point::Asked,
    Point::Begun,
    Point::Claimed,
    Point::Loaded,
    Point::Decided,
    Point::Written,
];

const WRITTEN: [&str; 6] = [
    "orders",
    "order_line",
    "order_transition",
    "outbox",
    "idempotent_record",
    "parked_event",
];

#[tokio::test]
async fn a_stop_before_the_commit_leaves_nothing_behind_and_the_delivery_comes_again() {
    for point in BEFORE_COMMIT {
        let world = World::new().await;
        world
            .publish("order.create", create("O1", &[("A", 1)]))
            .await;
        world.publish("order.ship", of("O2")).await;
        let stopping = Points::stopping(move |at| at == point);
        let stopped = world
            .try_run(&RoleName::ORDER, world.orders().with_points(stopping))
            .await;
        assert!(matches!(stopped, Err(Error::Stopped(at)) if at == point));
        for table in WRITTEN {
            assert_eq!(world.count(table).await, 0, "{table} after {point}");
        }
        world.advance(crate::support::LEASE);
        let again = world.run_orders().await;
        assert_eq!(again, ["applied", "parked (until order:O2:WAIT_PAY)"]);
    }
}

#[tokio::test]
async fn a_stop_after_the_commit_makes_the_next_delivery_a_duplicate() {
    let world = World::new().await;
    world
        .publish("order.create", create("O1", &[("A", 1)]))
        .await;
    let stopping = Points::stopping(|at| at == Point::Committed);
    let stopped = world
        .try_run(&RoleName::ORDER, world.orders().with_points(stopping))
        .await;
    assert!(matches!(stopped, Err(Error::Stopped(Point::Committed))));
    assert_eq!(world.status("O1").await, "WAIT_PAY");
    world.advance(crate::support::LEASE);
    assert_eq!(world.run_orders().await, ["duplicate (claim)"]);
    assert_eq!(world.count("order_transition").await, 1);
    assert_eq!(world.outbox().await, ["order.created"]);
}

#[tokio::test]
async fn a_stop_after_settling_brings_nothing_again() {
    let world = World::new().await;
    world
        .publish("order.create", create("O1", &[("A", 1)]))
        .await;
    let stopping = Points::stopping(|at| at == Point::Settled);
    let stopped = world
        .try_run(&RoleName::ORDER, world.orders().with_points(stopping))
        .await;
    assert!(matches!(stopped, Err(Error::Stopped(Point::Settled))));
    world.advance(crate::support::LEASE);
    assert_eq!(world.run_orders().await, [""; 0]);
}

/// A consumer that writes down what the database says whenever something is settled.
struct Witness {
    consumer: Box<dyn Consumer>,
    store: Arc<SqliteStore>,
    seen: Arc<Mutex<Vec<String>>>,
}

#[async_trait]
impl Consumer for Witness {
    async fn receive(&mut self, max: usize) -> broker::Result<Vec<Delivery>> {
        self.consumer.receive(max).await
    }

    async fn try_receive(&mut self, max: usize) -> broker::Result<Vec<Delivery>> {
        self.consumer.try_receive(max).await
    }

    async fn settle(&mut self, settlements: &[(Tag, Settlement)]) -> broker::Result<usize> {
        let claims = self.store.claim_counts().await.unwrap();
        let claims = claims
            .into_iter()
            .map(|(_, outcome, n)| format!("{n} {outcome}"));
        let mut seen: Vec<String> = claims.collect();
        let dead = self.store.dead_letters(&Default::default(), 10).await;
        seen.push(format!("{} dead", dead.unwrap().len()));
        seen.extend(settlements.iter().map(|(_, how)| format!("{how:?}")));
        self.seen.lock().unwrap().extend(seen);
        self.consumer.settle(settlements).await
    }

    async fn close(self: Box<Self>) -> broker::Result<()> {
        self.consumer.close().await
    }
}

#[tokio::test]
async fn the_broker_is_told_only_of_what_the_database_already_says() {
    let world = World::new().await;
    world
        .publish("order.create", create("O1", &[("A", 1)]))
        .await;
    world.publish("order.ship", of("O1")).await;
    world.publish("order.expire", of("O1")).await;
    world.publish("order.cancel", json!({"order_id": ""})).await;
    let seen = Arc::<Mutex<Vec<String>>>::default();
    let witness = Witness {
        consumer: world.queue.consumer(&RoleName::ORDER, 10).await.unwrap(),
        store: Arc::clone(&world.store),
        seen: Arc::clone(&seen),
    };
    let mut worker = Worker::new(Arc::new(world.orders()), Box::new(witness), 10);
    let settled = worker.run_available().await.unwrap();
    let expected = [
        "applied",
        "parked (until order:O1:PAID)",
        "rejected (not_due)",
        "dead (malformed)",
    ];
    assert_eq!(outcomes(&settled), expected);
    let seen = seen.lock().unwrap().clone();
    let expected = [
        "1 applied",
        "1 parked",
        "1 rejected",
        "1 dead",
        "Ack",
        "Ack",
        "Ack",
        "Ack",
    ];
    assert_eq!(seen, expected);
    worker.close().await.unwrap();
}

#[tokio::test]
async fn a_claim_goes_when_its_effects_go() {
    let world = World::new().await;
    world
        .execute(
            "CREATE TRIGGER no_steps BEFORE INSERT ON order_transition
             BEGIN SELECT RAISE(ABORT, 'no steps today'); END",
        )
        .await;
    world
        .publish("order.create", create("O1", &[("A", 1)]))
        .await;
    let outcome = world.run_orders().await;
    assert_eq!(outcome, ["retried (attempt 1, again in 1 s)"]);
    for table in WRITTEN {
        assert_eq!(world.count(table).await, 0, "{table}");
    }
    world.execute("DROP TRIGGER no_steps").await;
    world.advance(std::time::Duration::from_secs(1));
    assert_eq!(world.run_orders().await, ["applied"]);
}

#[tokio::test]
async fn events_of_one_batch_see_what_the_events_before_them_decided() {
    let world = World::new().await;
    world
        .publish("order.create", create("O1", &[("A", 1)]))
        .await;
    world.publish("order.cancel", of("O1")).await;
    world.publish("order.expire", of("O1")).await;
    assert_eq!(world.run_orders().await, ["applied", "applied", "stale"]);
    assert_eq!(
        world.row("SELECT status, version FROM orders").await,
        "CLOSED 2"
    );
    assert_eq!(world.outbox().await, ["order.created", "order.closed"]);
    world
        .publish("payment.succeeded", paid("O1", "T1", 1000))
        .await;
    world
        .publish("payment.succeeded", paid("O1", "T2", 1000))
        .await;
    assert_eq!(world.run_payments().await, ["applied", "applied"]);
    assert_eq!(
        world.row("SELECT status, version FROM orders").await,
        "CLOSED 4"
    );
    world.relay().await;
}
