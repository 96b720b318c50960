//! Gates save work and decide nothing.

use crate::support::{Memory, World, create, is_final, of, outcomes, paid};
use async_trait::async_trait;
use orderonce::domain::{Key, RoleName};
use orderonce::gate::filter::{Filter, Shape};
use orderonce::gate::{Gate, Known, Told};
use orderonce::ops::gates::fill;
use orderonce::store::History;
use orderonce::store::sqlite::SqliteStore;
use orderonce::worker::{Point, Points};
use std::sync::{Arc, Mutex};
use std::time::Duration;

#[tokio::test]
async fn what_a_gate_knows_never_reaches_the_database() {
    let world = World::new().await;
    let memory = Arc::new(Memory::default());
    world
        .publish("order.create", create("O1", &[("A", 1)]))
        .await;
    let orders = world.orders().with_gates(memory.gates());
    assert_eq!(
        outcomes(&world.run(&RoleName::ORDER, orders).await),
        ["applied"]
    );
    world
        .publish("order.create", create("O1", &[("A", 1)]))
        .await;
    world
        .publish("order.create", create("O1", &[("A", 1)]))
        .await;
    let begun = Points::stopping(|point| point == Point::Begun);
    let orders = world.orders().with_gates(memory.gates()).with_points(begun);
    let settled = world.run(&RoleName::ORDER, orders).await;
    assert_eq!(outcomes(&settled), ["duplicate (gate)", "duplicate (gate)"]);
}

#[tokio::test]
async fn a_gate_that_knows_the_key_of_other_content_leaves_the_conflict_to_the_database() {
    let world = World::new().await;
    let memory = Arc::new(Memory::default());
    for (qty, expected) in [(1, "applied"), (2, "conflict"), (1, "duplicate (gate)")] {
        world
            .publish("order.create", create("O1", &[("A", qty)]))
            .await;
        let orders = world.orders().with_gates(memory.gates());
        let settled = world.run(&RoleName::ORDER, orders).await;
        assert_eq!(outcomes(&settled), [expected]);
    }
    assert_eq!(world.dead().await, ["conflict DEAD"]);
}

/// Plays the same story to a gate and returns what the database says in the end.
async fn story(gates: Vec<Arc<dyn Gate>>, mut between: impl FnMut()) -> Vec<String> {
    let world = World::new().await;
    let run = async || {
        for _ in 0..2 {
            let orders = world.orders().with_gates(gates.clone());
            world.run(&RoleName::ORDER, orders).await;
            let payments = world.payments().with_gates(gates.clone());
            world.run(&RoleName::PAYMENT, payments).await;
            let inventory = world.inventory().with_gates(gates.clone());
            world.run(&RoleName::INVENTORY, inventory).await;
            world.relay().await;
        }
    };
    world.stock("A", 5).await;
    for _ in 0..2 {
        world
            .publish("payment.succeeded", paid("O1", "T1", 1000))
            .await;
        run().await;
        between();
        world.publish("order.ship", of("O1")).await;
        run().await;
        between();
        world
            .publish("order.create", create("O1", &[("A", 1)]))
            .await;
        run().await;
        between();
        world.publish("order.cancel", of("O1")).await;
        run().await;
        between();
    }
    run().await;
    world.adds_up().await;
    let claims = "SELECT role, key, outcome, detail FROM idempotent_record ORDER BY 1, 2";
    let mut end = world.rows(claims).await;
    end.push(world.row("SELECT status, version FROM orders").await);
    end.push(world.available("A").await.to_string());
    assert_eq!(world.dead().await, [""; 0]);
    end
}

#[tokio::test]
async fn a_gate_that_remembers_forgets_or_knows_nothing_changes_no_result() {
    let plain = story(Vec::new(), || {}).await;
    assert!(plain.contains(&"SHIPPED 4".to_owned()), "{plain:#?}");
    let memory = Arc::new(Memory::default());
    assert_eq!(story(memory.gates(), || {}).await, plain);
    let lost = Arc::new(Memory::default());
    assert_eq!(story(lost.gates(), || lost.forget()).await, plain);
    let forgetful = Arc::new(Memory {
        forgetful: true,
        ..Memory::default()
    });
    assert_eq!(story(forgetful.gates(), || {}).await, plain);
}

#[tokio::test]
async fn a_filter_of_64_bits_or_filled_far_past_its_size_changes_no_result() {
    let plain = story(Vec::new(), || {}).await;
    let behind = |filter: Filter| {
        let memory = Arc::new(Memory::default());
        let filter = Arc::new(filter);
        [vec![filter as Arc<dyn Gate>], memory.gates()].concat()
    };
    let shape = Shape::of(1000, 0.01);
    let tiny = Filter::new(shape.with_bits(64), 1, &RoleName::BUILT_IN);
    for number in 0..10_000 {
        tiny.insert(&RoleName::ORDER, [format!("other-{number}").as_str()]);
    }
    assert_eq!(story(behind(tiny), || {}).await, plain);
    let overfilled = Filter::new(Shape::of(2, 0.01), 1, &RoleName::BUILT_IN);
    assert_eq!(story(behind(overfilled), || {}).await, plain);
    let other_roles = Filter::new(shape, 1, &[RoleName::ACCOUNT]);
    assert_eq!(story(behind(other_roles), || {}).await, plain);
}

#[tokio::test]
async fn a_filter_is_filled_from_what_was_settled_of_late() {
    let world = World::new().await;
    let create_as = async |id: &str| {
        world.publish("order.create", create(id, &[("A", 1)])).await;
        world.run_orders().await;
    };
    create_as("old").await;
    world.advance(Duration::from_secs(100));
    create_as("O1").await;
    create_as("O2").await;
    world.publish("order.ship", of("O2")).await;
    world.run_orders().await;
    let filter = Filter::new(Shape::of(1000, 0.0001), 1, &RoleName::BUILT_IN);
    let filled = fill(world.store.as_ref(), &filter, Duration::from_secs(50)).await;
    assert_eq!(filled.unwrap(), 2);
    let key = |parts: &[&str]| Key::new(parts).unwrap();
    let knows = |key: &Key| !filter.is_absent(&RoleName::ORDER, key);
    assert!(knows(&key(&["O1", "order.create"])));
    assert!(knows(&key(&["O2", "order.create"])));
    assert!(!knows(&key(&["old", "order.create"])));
    assert!(!knows(&key(&["O2", "order.ship"])));
    let all = fill(world.store.as_ref(), &filter, Duration::from_secs(500)).await;
    assert_eq!(all.unwrap(), 3);
}

/// A gate that writes down what the database says of each key that it is told.
struct Witness {
    store: Arc<SqliteStore>,
    told: Mutex<Vec<String>>,
}

#[async_trait]
impl Gate for Witness {
    async fn ask(&self, _: &RoleName, keys: &[&Key]) -> Vec<Known> {
        vec![Known::Unknown; keys.len()]
    }

    async fn tell(&self, role: &RoleName, told: &[Told<'_>]) {
        for told in told {
            let key = told.key;
            let claims = self.store.claims_of(Some(role), key.as_str()).await;
            let claims = claims.unwrap();
            let claim = claims
                .iter()
                .find(|claim| claim.fingerprint == told.fingerprint);
            let outcome = claim.map_or("nothing", |claim| claim.outcome.as_str());
            self.told.lock().unwrap().push(format!("{key} {outcome}"));
        }
    }
}

#[tokio::test]
async fn gates_are_told_after_the_commit_and_only_of_what_is_settled_for_good() {
    let world = World::new().await;
    world
        .execute(
            "CREATE TRIGGER not_o5 BEFORE INSERT ON orders WHEN new.order_id = 'O5'
             BEGIN SELECT RAISE(ABORT, 'not O5'); END",
        )
        .await;
    let witness = Arc::new(Witness {
        store: Arc::clone(&world.store),
        told: Mutex::default(),
    });
    world
        .publish("order.create", create("O1", &[("A", 1)]))
        .await;
    world
        .publish("order.create", create("O1", &[("A", 2)]))
        .await;
    world.publish("order.expire", of("O1")).await;
    world.publish("order.ship", of("O1")).await;
    world
        .publish("order.create", create("O5", &[("A", 1)]))
        .await;
    world.publish("order.cancel", of("O9")).await;
    world.publish("order.cancel", of("")).await;
    let mut all = Vec::new();
    for _ in 0..2 {
        let orders = world.orders();
        let orders = orders.with_gates(vec![Arc::clone(&witness) as Arc<dyn Gate>]);
        all.extend(world.run(&RoleName::ORDER, orders).await);
        // Copies of what is parked, and of what is settled.
        world.publish("order.ship", of("O1")).await;
        world.publish("order.cancel", of("O9")).await;
        world.publish("order.expire", of("O1")).await;
    }
    let finals = all.iter().flat_map(|settled| &settled.items);
    assert_eq!(finals.filter(|item| is_final(&item.outcome)).count(), 2);
    let told = witness.told.lock().unwrap().clone();
    let expected = [
        "O1/order.create applied",
        "O1/order.expire rejected",
        "O1/order.expire rejected",
    ];
    assert_eq!(told, expected);
}

#[tokio::test]
async fn a_copy_of_a_parked_event_does_not_make_a_gate_swallow_the_woken_one() {
    let world = World::new().await;
    let memory = Arc::new(Memory::default());
    let orders = || world.orders().with_gates(memory.gates());
    world.publish("order.ship", of("O1")).await;
    world.run(&RoleName::ORDER, orders()).await;
    world.publish("order.ship", of("O1")).await;
    let copy = world.run(&RoleName::ORDER, orders()).await;
    assert_eq!(outcomes(&copy), ["duplicate (parked)"]);
    assert_eq!(memory.told(), [""; 0]);
    world
        .publish("order.create", create("O1", &[("A", 1)]))
        .await;
    world.run(&RoleName::ORDER, orders()).await;
    world.relay().await;
    let woken = world.run(&RoleName::ORDER, orders()).await;
    assert_eq!(outcomes(&woken), ["parked (until order:O1:PAID)"]);
    world
        .publish("payment.succeeded", paid("O1", "T1", 1000))
        .await;
    world.run_payments().await;
    world.relay().await;
    let woken = world.run(&RoleName::ORDER, orders()).await;
    assert_eq!(outcomes(&woken), ["applied"]);
    assert_eq!(world.status("O1").await, "SHIPPED");
}

#[tokio::test]
async fn a_crash_before_a_gate_is_told_costs_work_only() {
    let world = World::new().await;
    let memory = Arc::new(Memory::default());
    world
        .publish("order.create", create("O1", &[("A", 1)]))
        .await;
    let stopping = Points::stopping(|point| point == Point::Settled);
    let orders = world.orders().with_gates(memory.gates());
    let stopped = world
        .try_run(&RoleName::ORDER, orders.with_points(stopping))
        .await;
    assert!(stopped.is_err());
    assert_eq!(memory.told(), [""; 0]);
    world.advance(Duration::from_secs(60));
    world
        .publish("order.create", create("O1", &[("A", 1)]))
        .await;
    let orders = world.orders().with_gates(memory.gates());
    let settled = world.run(&RoleName::ORDER, orders).await;
    assert_eq!(outcomes(&settled), ["duplicate (claim)"]);
    assert_eq!(memory.told(), ["O1/order.create"]);
}
