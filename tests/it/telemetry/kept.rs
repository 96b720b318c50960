//! The trace context of a message survives whatever befalls it, with traces and without.

use super::{trace_id, traced, traceparent};
use crate::site::Site;
use crate::support::{World, create_worth, of, paid};
use orderonce::broker::Broker;
use orderonce::domain::RoleName;
use orderonce::message;
use orderonce::ops::dead::{Act, Replay, replay};
use orderonce::telemetry::trace::Traces;
use serde_json::{Value, json};
use std::time::Duration;

const REFUSE: &str = "CREATE TRIGGER refuse BEFORE INSERT ON orders
    BEGIN SELECT RAISE(ABORT, 'orders are closed'); END";

/// Traces that go nowhere: no collector listens at port 9.
fn traces() -> Traces {
    let mut config = orderonce::config::Config::default().trace;
    config.endpoint = orderonce::config::Url::new("http://127.0.0.1:9".to_owned());
    Traces::start(&config).unwrap()
}

async fn publish(world: &World, event_type: &str, data: &Value, trace: &str) {
    let message = traced("m1", event_type, data, trace).message;
    world
        .publish_raw(event_type, message.to_vec(), Default::default())
        .await;
}

/// The trace contexts of the rows of a table, in their order.
async fn contexts(world: &World, column: &str, table: &str) -> Vec<String> {
    let sql = format!("SELECT {column} ->> 'traceparent' FROM {table}");
    world.rows(&sql).await
}

#[tokio::test]
async fn through_retries_and_into_the_dead_letters() {
    for traces in [Traces::default(), traces()] {
        let world = World::new().await;
        let trace = traceparent(1, 1);
        world.execute(REFUSE).await;
        publish(&world, "order.create", &create_worth("O1", 1), &trace).await;
        for seconds in [1, 5] {
            let orders = world.orders().with_traces(traces.clone());
            let settled = world.run(&RoleName::ORDER, orders).await;
            assert_eq!(settled[0].items[0].outcome.name(), "retried");
            let kept = contexts(&world, "CAST(message AS TEXT)", "queue_message").await;
            assert_eq!(kept, [trace.as_str()]);
            world.advance(Duration::from_secs(seconds));
        }
        let orders = world.orders().with_traces(traces.clone());
        world.run(&RoleName::ORDER, orders).await;
        assert_eq!(
            contexts(&world, "CAST(raw AS TEXT)", "dead_letter").await,
            [trace]
        );
    }
}

#[tokio::test]
async fn through_parking_and_waking() {
    for traces in [Traces::default(), traces()] {
        let world = World::new().await;
        let (of_payment, of_order) = (traceparent(1, 1), traceparent(2, 2));
        publish(
            &world,
            "payment.succeeded",
            &paid("O1", "T1", 1000),
            &of_payment,
        )
        .await;
        let payments = || world.payments().with_traces(traces.clone());
        world.run(&RoleName::PAYMENT, payments()).await;
        let parked = contexts(&world, "message", "parked_event").await;
        assert_eq!(parked, [of_payment.as_str()]);
        publish(&world, "order.create", &create_worth("O1", 1000), &of_order).await;
        let orders = world.orders().with_traces(traces.clone());
        world.run(&RoleName::ORDER, orders).await;

        let outbox = "outbox WHERE addressee = 'payment'";
        let woken = contexts(&world, "CAST(message AS TEXT)", outbox).await;
        assert_eq!(
            woken,
            [of_payment.as_str()],
            "it keeps its own, not that of what woke it"
        );
        world.relay().await;
        let consumer = world.queue.consumer(&RoleName::PAYMENT, 1).await;
        let mut consumer = consumer.unwrap();
        let delivered = consumer.try_receive(1).await.unwrap();
        let kept = message::traceparent(&delivered[0].message);
        assert_eq!(kept, Some(of_payment));
        consumer.close().await.unwrap();
    }
}

#[tokio::test]
async fn what_is_caused_is_within_the_span_of_its_cause_or_has_its_context_unchanged() {
    for traces in [Traces::default(), traces()] {
        let world = World::new().await;
        let trace = traceparent(1, 1);
        publish(&world, "order.create", &create_worth("O1", 1), &trace).await;
        let orders = world.orders().with_traces(traces.clone());
        world.run(&RoleName::ORDER, orders).await;
        let caused = contexts(&world, "CAST(message AS TEXT)", "outbox").await;
        if traces.is_on() {
            assert!(
                caused[0].starts_with(&format!("00-{}-", trace_id(1))),
                "{caused:?}"
            );
            assert_ne!(caused, [trace]);
        } else {
            assert_eq!(caused, [trace]);
        }
    }
}

#[tokio::test]
async fn through_dead_letters_and_replays() {
    let site = Site::new("").await;
    let trace = traceparent(1, 1);
    site.publish(&[traced("m1", "order.create", &json!({}), &trace)])
        .await;
    let mut serving = site.serve(&[], &[]);
    serving.settles(&site).await;
    serving.stops(rustix::process::Signal::TERM).await;
    let act = Act {
        actor: "ann".to_owned(),
        reason: "a test".to_owned(),
    };
    let how = Replay {
        dry_run: false,
        as_new: false,
    };
    replay(site.deployment(), &[1], &how, &act).await.unwrap();
    let rows = site.deployment().store.outbox_head(10).await.unwrap();
    assert_eq!(message::traceparent(&rows[0].message), Some(trace));
    assert_eq!(rows.len(), 1);
}

#[tokio::test]
async fn what_was_never_traced_stays_so() {
    let world = World::new().await;
    world.publish("order.create", create_worth("O1", 1)).await;
    world.publish("order.cancel", of("O1")).await;
    world.run_orders().await;
    let caused = contexts(&world, "CAST(message AS TEXT)", "outbox").await;
    assert!(caused.len() > 1);
    assert!(caused.iter().all(|context| context == "-"), "{caused:?}");
}
