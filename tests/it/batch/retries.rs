//! What fails comes again, a counted number of times; what is away costs no attempt.

use crate::support::{
    DELIVERY_LIMIT, Meddled, World, create, create_worth, envelope, of, order_role, paid,
};
use orderonce::broker::{Broker, Headers};
use orderonce::domain::RoleName;
use orderonce::store;
use orderonce::worker::Error;
use std::time::Duration;

const REFUSE: &str = "CREATE TRIGGER refuse BEFORE INSERT ON orders
    BEGIN SELECT RAISE(ABORT, 'orders are closed'); END";

#[tokio::test]
async fn a_failure_comes_again_after_each_level_and_is_kept_after_the_last() {
    let world = World::new().await;
    world.execute(REFUSE).await;
    let message = envelope("m1", "order.create", &create_worth("O1", 1));
    let headers = Headers::from([("trace".to_owned(), "t-1".to_owned())]);
    world
        .publish_raw("order.create", message.clone().into_bytes(), headers)
        .await;
    for (level, outcome) in [
        (1, "retried (attempt 1, again in 1 s)"),
        (5, "retried (attempt 2, again in 5 s)"),
    ] {
        assert_eq!(world.run_orders().await, [outcome]);
        let delayed = world.queue.depth(&RoleName::ORDER).await.unwrap();
        assert_eq!((delayed.delayed, delayed.total()), (1, 1));
        assert_eq!(world.dead().await, [""; 0]);
        world.advance(Duration::from_secs(level));
    }
    assert_eq!(world.run_orders().await, ["dead (retries_exhausted)"]);
    let empty = world.queue.depth(&RoleName::ORDER).await.unwrap();
    assert_eq!(empty.total(), 0);
    let letter = world
        .row("SELECT reason, message_id, key, deliveries, headers, raw FROM dead_letter")
        .await;
    let headers = r#"{"trace":"t-1"}"#;
    let expected = format!("retries_exhausted m1 O1/order.create 3 {headers} {message}");
    assert_eq!(letter, expected);
    let detail = world.row("SELECT detail FROM dead_letter").await;
    assert!(detail.contains("orders are closed"), "{detail}");
    assert_eq!(world.count("idempotent_record").await, 0);

    // Nothing of it was done, so a copy may still do it.
    world.execute("DROP TRIGGER refuse").await;
    world.publish("order.create", create_worth("O1", 1)).await;
    assert_eq!(world.run_orders().await, ["applied"]);
}

/// It has its letter when its retries are over, and not another one at its deadline.
#[tokio::test]
async fn a_woken_event_that_fails_for_good_waits_no_longer() {
    const NO_SHIPPING: &str =
        "CREATE TRIGGER refuse BEFORE UPDATE ON orders WHEN new.status = 'SHIPPED'
        BEGIN SELECT RAISE(ABORT, 'nothing leaves'); END";
    let world = World::new().await;
    world.publish("order.ship", of("O1")).await;
    world
        .publish("order.create", create_worth("O1", 1000))
        .await;
    world.drain().await;
    world.execute(NO_SHIPPING).await;
    world
        .publish("payment.succeeded", paid("O1", "T1", 1000))
        .await;
    world.drain().await;
    world.advance(Duration::from_secs(1));
    assert_eq!(
        world.run_orders().await,
        ["retried (attempt 2, again in 5 s)"]
    );
    world.advance(Duration::from_secs(5));
    assert_eq!(world.run_orders().await, ["dead (retries_exhausted)"]);
    assert_eq!(world.dead().await, ["retries_exhausted DEAD"]);
    assert_eq!(world.count("parked_event").await, 0);
    let claim =
        "SELECT outcome || ' ' || detail FROM idempotent_record WHERE key = 'O1/order.ship'";
    assert_eq!(world.row(claim).await, "dead retries_exhausted");
    world.advance(Duration::from_hours(24));
    assert_eq!(world.clean().await.overdue, 0);
    assert_eq!(world.count("dead_letter").await, 1);

    world.execute("DROP TRIGGER refuse").await;
    world.publish("order.ship", of("O1")).await;
    assert_eq!(world.run_orders().await, ["applied"]);
}

#[tokio::test]
async fn a_retry_is_not_due_before_its_delay_is_over() {
    let world = World::new().await;
    world.execute(REFUSE).await;
    world.publish("order.create", create_worth("O1", 1)).await;
    world.run_orders().await;
    world.execute("DROP TRIGGER refuse").await;
    assert_eq!(world.run_orders().await, [""; 0]);
    world.advance(Duration::from_secs(1));
    assert_eq!(world.run_orders().await, ["applied"]);
}

#[tokio::test]
async fn a_database_that_is_away_costs_no_attempt_and_no_message() {
    let mut world = World::with_queue_apart().await;
    for order in ["O1", "O2"] {
        world.publish("order.create", create_worth(order, 1)).await;
    }
    // More often than a message may fail, and than it may be delivered without a word.
    for _ in 0..DELIVERY_LIMIT + 3 {
        let mut worker = world.worker(&RoleName::ORDER, world.orders()).await;
        let deliveries = crate::support::received(&mut worker).await;
        assert_eq!(deliveries.len(), 2);
        assert!(deliveries.iter().all(|delivery| delivery.attempt == 0));
        world.database.close().await;
        let away = worker.handle(&deliveries).await;
        assert!(matches!(
            away,
            Err(Error::Store(store::Error::Unavailable(_)))
        ));
        let depth = world.queue.depth(&RoleName::ORDER).await.unwrap();
        assert_eq!((depth.ready, depth.total()), (2, 2));
        world.reopen().await;
    }
    assert_eq!(world.run_orders().await, ["applied", "applied"]);
    assert_eq!(world.dead().await, [""; 0]);
}

#[tokio::test]
async fn a_database_that_somebody_has_locked_costs_no_attempt_and_no_message() {
    let world = World::with_queue_apart().await;
    for order in ["O1", "O2"] {
        world.publish("order.create", create_worth(order, 1)).await;
    }
    let lock = world.lock().await;
    for _ in 0..2 {
        let mut worker = world.worker(&RoleName::ORDER, world.orders()).await;
        let locked = worker.run_available().await;
        assert!(matches!(locked, Err(Error::Store(_))), "{locked:?}");
        worker.close().await.unwrap();
    }
    drop(lock);
    let mut consumer = world.queue.consumer(&RoleName::ORDER, 10).await.unwrap();
    let deliveries = consumer.try_receive(10).await.unwrap();
    assert_eq!(deliveries.len(), 2);
    assert!(deliveries.iter().all(|delivery| delivery.attempt == 0));
    consumer.close().await.unwrap();
    assert_eq!(world.run_orders().await, ["applied", "applied"]);
}

#[tokio::test]
async fn what_was_decided_before_the_database_went_is_settled_and_the_rest_comes_again() {
    let world = World::new().await;
    for order in ["O1", "O2", "O3", "O4"] {
        world.publish("order.create", create_worth(order, 1)).await;
    }
    let role = Meddled::failing(order_role(), |subject| match subject {
        "O2" => Some(store::Error::Refused("not O2".to_owned())),
        "O4" => Some(store::Error::Unavailable("gone".to_owned())),
        _ => None,
    });
    let mut worker = world.worker(&RoleName::ORDER, world.processor(role)).await;
    let stopped = worker.run_available().await;
    assert!(matches!(
        stopped,
        Err(Error::Store(store::Error::Unavailable(_)))
    ));
    assert_eq!(world.claims("1").await, ["order O1/order.create applied"]);
    let depth = world.queue.depth(&RoleName::ORDER).await.unwrap();
    assert_eq!(
        (depth.ready, depth.delayed, depth.unsettled),
        (2, 1, Some(0))
    );
    let left = "SELECT attempt FROM queue_message ORDER BY id";
    assert_eq!(world.rows(left).await, ["1", "0", "0"]);
    worker.close().await.unwrap();
    world.advance(Duration::from_secs(1));
    assert_eq!(world.run_orders().await, ["applied"; 3]);
}

#[tokio::test]
async fn a_database_that_goes_away_again_and_again_never_brings_a_message_to_the_dead_letters() {
    let world = World::new().await;
    world.publish("order.create", create_worth("O1", 1)).await;
    for _ in 0..20 {
        let away = |_: &str| Some(store::Error::Unavailable("gone".to_owned()));
        let role = Meddled::failing(order_role(), away);
        let mut worker = world.worker(&RoleName::ORDER, world.processor(role)).await;
        assert!(worker.run_available().await.is_err());
        worker.close().await.unwrap();
        assert_eq!(world.clean().await.crashed, 0);
    }
    assert_eq!(world.run_orders().await, ["applied"]);
    assert_eq!(world.dead().await, [""; 0]);
}

#[tokio::test]
async fn messages_that_are_no_events_are_kept_with_bytes_and_headers_as_they_came() {
    let world = World::new().await;
    let headers = Headers::from([("x".to_owned(), "1\"\n2".to_owned())]);
    let unknown = envelope("m1", "order.explode", &of("O1")).into_bytes();
    let foreign = envelope("m2", "account.credit", &of("O1")).into_bytes();
    let messages: [&[u8]; 4] = [b"\0\xff not JSON", b"", &unknown, &foreign];
    for bytes in messages {
        world
            .publish_to(&RoleName::ORDER, bytes, headers.clone())
            .await;
    }
    world
        .publish("order.create", create("O1", &[("A", 1)]))
        .await;
    let expected = [
        "dead (malformed)",
        "dead (malformed)",
        "dead (unknown_type)",
        "dead (unknown_type)",
        "applied",
    ];
    assert_eq!(world.run_orders().await, expected);
    let kept = "SELECT reason, hex(raw), headers FROM dead_letter ORDER BY id";
    let reasons = ["malformed", "malformed", "unknown_type", "unknown_type"];
    let expected = reasons.iter().zip(messages).map(|(reason, bytes)| {
        let bytes = hex(bytes);
        format!(r#"{reason} {bytes} {{"x":"1\"\n2"}}"#)
    });
    assert_eq!(world.rows(kept).await, expected.collect::<Vec<_>>());
    let empty = world.queue.depth(&RoleName::ORDER).await.unwrap();
    assert_eq!(empty.total(), 0);
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02X}")).collect()
}
