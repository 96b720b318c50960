//! How long claims are kept, and what stops a copy that comes later still.

use crate::support::{World, and, create, of, outcomes, paid, refunded};
use orderonce::broker::Headers;
use orderonce::domain::{EventType, Key, RoleName, Timestamp};
use orderonce::ops::explain::explain;
use orderonce::store::{CallbackVerdict, NewCallback, Retention as _, Store as _, Swept};
use orderonce::worker::retention::{Retention, Settings, Step};
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;
use strum::IntoEnumIterator;

const DAY: Duration = Duration::from_hours(24);
const SETTINGS: Settings = Settings {
    life: DAY,
    archive: DAY,
    callbacks: DAY,
    batch: 10,
    pause: Duration::from_millis(1),
    interval: Duration::from_mins(5),
};

/// Orders that between them go every way.
async fn every_event() -> World {
    let world = World::new().await;
    let line = |qty| json!([{"sku_id": "A", "qty": qty}]);
    let source = |source_type, source_id| json!({"user_id": "U1", "kind": "POINTS", "source_type": source_type, "source_id": source_id});
    world.stock("A", 10).await;
    let set = json!({"adjustment_id": "set", "sku_id": "B", "set": 5, "version": 0});
    let events = [
        ("stock.adjust", set),
        ("order.create", create("O1", &[("A", 2)])),
        ("order.create", create("cancelled", &[("A", 1)])),
        ("order.create", create("expired", &[("A", 1)])),
        ("order.create", create("greedy", &[("A", 1000)])),
        (
            "payment.failed",
            and(paid("O1", "T0", 2000), json!({"reason": "declined"})),
        ),
        ("payment.succeeded", paid("O1", "T1", 2000)),
        ("order.cancel", of("cancelled")),
        (
            "account.credit",
            and(source("GIFT", "1"), json!({"amount": 100})),
        ),
        (
            "account.debit",
            and(source("SPENT", "1"), json!({"amount": 30})),
        ),
    ];
    for (event_type, data) in events {
        world.publish(event_type, data).await;
        world.drain().await;
    }
    world.advance(Duration::from_secs(1800));
    assert_eq!(world.clean().await.expired, 1);
    let of_gift = json!({"of_source_type": "GIFT", "of_source_id": "1", "amount": 20});
    let events = [
        ("order.ship", of("O1")),
        ("order.complete", of("O1")),
        (
            "stock.return",
            json!({"return_id": "R1", "order_id": "O1", "lines": line(1)}),
        ),
        (
            "order.refund",
            json!({"order_id": "O1", "refund_id": "A1", "amount_minor": 100}),
        ),
        ("order.remind", of("O1")),
        ("refund.failed", refunded("O1", "F1", 500)),
        ("refund.succeeded", refunded("O1", "R1", 500)),
        ("refund.succeeded", refunded("O1", "R2", 500)),
        ("account.reverse", and(source("BACK", "1"), of_gift)),
        ("order.expire", of("greedy")),
        ("payment.succeeded", paid("O1", "T2", 2000)),
        ("payment.succeeded", paid("expired", "T3", 1000)),
    ];
    for (event_type, data) in events {
        world.publish(event_type, data).await;
        world.drain().await;
    }
    assert_eq!(world.status("O1").await, "COMPLETED");
    world.adds_up().await;
    world
}

/// Everything but claims, and what moves messages.
async fn effects(world: &World) -> Vec<(&'static str, Vec<String>)> {
    const TABLES: [&str; 10] = [
        "order_line",
        "order_transition",
        "payment",
        "refund",
        "stock",
        "reservation",
        "deduction_flow",
        "account",
        "account_flow",
        "parked_event",
    ];
    let orders = "SELECT order_id, status, version, paid_minor, refunded_minor, updated_at FROM orders ORDER BY 1";
    let mut effects = vec![("orders", world.rows(orders).await)];
    for table in TABLES {
        let rows = world
            .rows(&format!("SELECT * FROM {table} ORDER BY 1, 2"))
            .await;
        effects.push((table, rows));
    }
    let letters = "SELECT id, role, reason, deaths, status FROM dead_letter ORDER BY 1";
    effects.push(("dead_letter", world.rows(letters).await));
    effects
}

async fn forget_all_claims(world: &World) {
    world.advance(2 * DAY);
    let expired = world
        .store
        .expire_claims(DAY, Timestamp(0), 1000)
        .await
        .unwrap();
    world.advance(2 * DAY);
    let removed = world
        .store
        .remove_claims(DAY, Timestamp(0), 1000)
        .await
        .unwrap();
    assert_eq!(expired.rows, removed.rows);
    assert_eq!(world.count("idempotent_record").await, 0);
}

#[tokio::test]
async fn whatever_comes_back_when_its_claim_is_gone_is_stopped_by_flows_and_states() {
    let world = every_event().await;
    let messages = "SELECT role, request_body FROM idempotent_record ORDER BY created_at, rowid";
    let messages = world.rows(messages).await;
    let consumed = EventType::iter().filter(|event_type| event_type.consumer().is_some());
    let mut missing: BTreeSet<_> = consumed.map(|event_type| event_type.to_string()).collect();
    forget_all_claims(&world).await;
    let before = effects(&world).await;
    for message in &messages {
        let (role, body) = message.split_once(' ').unwrap();
        let body: Value = serde_json::from_str(body).unwrap();
        missing.remove(body["type"].as_str().unwrap());
        let again = and(body, json!({"id": "another"})).to_string();
        let role = RoleName::new(role.to_owned());
        world
            .publish_to(&role, again.as_bytes(), Headers::new())
            .await;
        let outcomes = world.drain().await;
        assert_eq!(outcomes.len(), 1, "{message}: {outcomes:?}");
        let (_, outcome) = outcomes[0].split_once(": ").unwrap();
        assert_ne!(outcome, "applied", "{message}");
        assert_eq!(effects(&world).await, before, "{message}: {outcome}");
    }
    assert!(missing.is_empty(), "never seen: {missing:?}");
    world.adds_up().await;
}

#[tokio::test]
async fn what_removed_claims_have_written_is_no_difference() {
    let world = every_event().await;
    forget_all_claims(&world).await;
    world.reconciles().await;
    world
        .publish("order.create", create("O2", &[("A", 1)]))
        .await;
    world.drain().await;
    world.reconciles().await;
    world
        .execute("DELETE FROM idempotent_record WHERE subject = 'O2'")
        .await;
    let options = orderonce::ops::reconcile::Options::default();
    let report = orderonce::ops::reconcile::reconcile(world.store.as_ref(), &options, |_| {}).await;
    let found = report.unwrap().checks.into_iter();
    let found = found.filter(|check| !check.differences.is_empty());
    let found: Vec<_> = found.map(|check| check.name).collect();
    let expected = [
        "transitions_without_claim",
        "reservations_without_claim",
        "stock_flows_without_claim",
    ];
    assert_eq!(found, expected);
}

fn retention(world: &World, holder: &str) -> Retention {
    Retention::new(world.store.clone(), holder.to_owned(), SETTINGS)
}

#[tokio::test]
async fn callbacks_go_after_their_time_in_small_steps() {
    let world = World::new().await;
    let (headers, key) = (BTreeMap::new(), Key::new(&["k"]).unwrap());
    let callback = NewCallback {
        provider: "stripe",
        verdict: CallbackVerdict::Accepted,
        detail: "",
        subject: "O1",
        key: &key,
        headers: &headers,
        body: b"{}",
        remote: "",
    };
    let mut tx = world.store.begin().await.unwrap();
    let now = tx.now().await.unwrap();
    tx.keep_callbacks(now, &[callback; 15]).await.unwrap();
    tx.commit().await.unwrap();
    let mut retention = retention(&world, "one");
    assert_eq!(retention.run_once().await.unwrap().callbacks, 0);
    world.advance(DAY);
    let mut removed = Vec::new();
    loop {
        let step = retention.run_once().await.unwrap();
        removed.push(step.callbacks);
        if step.pause == SETTINGS.interval {
            break;
        }
    }
    assert_eq!(removed, [10, 5]);
    assert_eq!(world.count("callback").await, 0);
}

#[tokio::test]
async fn retention_works_in_small_steps_until_nothing_is_left() {
    let world = every_event().await;
    let claims = u64::try_from(world.count("idempotent_record").await).unwrap();
    assert!(claims > 20);
    let mut retention = retention(&world, "one");
    world.advance(2 * DAY);
    let (mut expired, mut steps) = (0, 0);
    loop {
        let step = retention.run_once().await.unwrap();
        assert!(step.expired <= 10 && step.removed == 0, "{step:?}");
        assert!(step.pause >= SETTINGS.pause);
        expired += step.expired;
        steps += 1;
        if step.pause == SETTINGS.interval {
            break;
        }
    }
    assert_eq!((expired, steps), (claims, claims / 10 + 1));
    world.advance(2 * DAY);
    let mut removed = 0;
    while removed < claims {
        let step = retention.run_once().await.unwrap();
        assert!(step.removed > 0, "{removed} of {claims}");
        removed += step.removed;
    }
    assert_eq!(world.count("idempotent_record").await, 0);
}

#[tokio::test]
async fn one_process_at_a_time_does_it_and_the_next_takes_over() {
    let world = every_event().await;
    let (mut one, mut two) = (retention(&world, "one"), retention(&world, "two"));
    world.advance(2 * DAY);
    assert_eq!(one.run_once().await.unwrap().expired, 10);
    let idle = Step {
        pause: SETTINGS.interval,
        ..Step::default()
    };
    assert_eq!(two.run_once().await.unwrap(), idle);
    world.advance(Duration::from_mins(1));
    assert_eq!(two.run_once().await.unwrap().expired, 10);
    assert_eq!(one.run_once().await.unwrap(), idle);
    while two.run_once().await.unwrap().pause < SETTINGS.interval {}
    assert_eq!(one.run_once().await.unwrap(), idle);
    let next = world.store.kept_claims().await.unwrap();
    let wait = next.next.unwrap().since(next.now);
    assert!(wait > SETTINGS.interval - DAY / 1440, "{wait:?}");
    world.advance(SETTINGS.interval);
    assert_ne!(one.run_once().await.unwrap().pause, Duration::ZERO);
}

#[tokio::test]
async fn a_copy_of_an_expired_claim_is_a_duplicate_still() {
    let world = World::new().await;
    world
        .publish("order.create", create("O1", &[("A", 2)]))
        .await;
    world.run_orders().await;
    world.advance(2 * DAY);
    let swept = world
        .store
        .expire_claims(DAY, Timestamp(0), 10)
        .await
        .unwrap();
    assert_ne!(swept, Swept::default());
    world
        .publish("order.create", create("O1", &[("A", 2)]))
        .await;
    let settled = world.run(&RoleName::ORDER, world.orders()).await;
    assert_eq!(outcomes(&settled), ["duplicate (claim)"]);
}

#[tokio::test]
async fn an_expired_claim_is_explained_as_such() {
    let world = World::new().await;
    world
        .publish("order.create", create("O1", &[("A", 2)]))
        .await;
    world.run_orders().await;
    world.advance(2 * DAY);
    world
        .store
        .expire_claims(DAY, Timestamp(0), 10)
        .await
        .unwrap();
    for what in ["O1", "order:O1/order.create"] {
        let explained = explain(world.store.as_ref(), what)
            .await
            .unwrap()
            .to_string();
        let expired = "order O1/order.create: expired, its message was removed";
        assert!(explained.contains(expired), "{explained}");
    }
}
