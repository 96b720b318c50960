//! Receiving, and who holds what.

use crate::broker::{
    Adapter, all_is_settled, cancelled_after, consumer, nothing_waits, numbered, orders, publish,
    settle, take, take_one, text, texts,
};
use orderonce::broker::{Error, Settlement};
use orderonce::domain::RoleName;
use std::collections::BTreeSet;
use std::time::Duration;

pub(crate) async fn receive_waits_for_the_first_message(adapter: &dyn Adapter) {
    let broker = adapter.broker();
    let mut consumer = consumer(broker, &RoleName::ORDER).await;
    assert!(consumer.try_receive(10).await.unwrap().is_empty());
    let messages = orders(["m1"]);
    let (received, ()) = tokio::join!(consumer.receive(10), publish(broker, &messages));
    let deliveries = received.unwrap();
    assert_eq!(texts(&deliveries), ["m1"]);
    settle(&mut consumer, &deliveries, Settlement::Ack).await;
    all_is_settled(adapter).await;
}

pub(crate) async fn receive_returns_at_most_max_and_the_oldest_first(adapter: &dyn Adapter) {
    let broker = adapter.broker();
    let (messages, ids) = numbered(10);
    publish(broker, &messages).await;
    let mut consumer = consumer(broker, &RoleName::ORDER).await;
    let mut seen = Vec::new();
    while seen.len() < ids.len() {
        let deliveries = consumer.receive(3).await.unwrap();
        assert!((1..=3).contains(&deliveries.len()), "{deliveries:?}");
        settle(&mut consumer, &deliveries, Settlement::Ack).await;
        seen.extend(texts(&deliveries));
    }
    assert_eq!(seen, ids);
    all_is_settled(adapter).await;
}

pub(crate) async fn try_receive_returns_what_is_there_without_waiting(adapter: &dyn Adapter) {
    let broker = adapter.broker();
    let mut consumer = consumer(broker, &RoleName::ORDER).await;
    assert!(consumer.try_receive(10).await.unwrap().is_empty());
    publish(broker, &orders(["m1", "m2"])).await;
    let first = take_one(&mut consumer).await;
    assert_eq!(text(&first), "m1");
    assert!(consumer.try_receive(0).await.unwrap().is_empty());
    let mut rest = consumer.try_receive(10).await.unwrap();
    assert!(rest.len() <= 1);
    if rest.is_empty() {
        // A broker at the other end of a wire may have it on the way.
        rest = take(&mut consumer, 1).await;
    }
    assert_eq!(texts(&rest), ["m2"]);
    rest.push(first);
    settle(&mut consumer, &rest, Settlement::Ack).await;
    all_is_settled(adapter).await;
}

pub(crate) async fn a_role_without_a_queue_has_no_consumer_and_no_depth(adapter: &dyn Adapter) {
    let broker = adapter.broker();
    let nobody = RoleName::new("nobody");
    let unknown = Error::UnknownQueue(nobody.clone());
    assert_eq!(
        broker.consumer(&nobody, 1).await.err(),
        Some(unknown.clone())
    );
    assert_eq!(broker.depth(&nobody).await, Err(unknown));
}

pub(crate) async fn nothing_is_delivered_twice_while_it_is_held(adapter: &dyn Adapter) {
    let broker = adapter.broker();
    publish(broker, &orders(["m1", "m2", "m3"])).await;
    let mut holder = consumer(broker, &RoleName::ORDER).await;
    let held = take(&mut holder, 3).await;
    let mut other = consumer(broker, &RoleName::ORDER).await;
    assert!(other.try_receive(10).await.unwrap().is_empty());
    assert!(holder.try_receive(10).await.unwrap().is_empty());
    settle(&mut holder, &held, Settlement::Ack).await;
    holder.close().await.unwrap();
    nothing_waits(broker, &RoleName::ORDER, &mut other).await;
    all_is_settled(adapter).await;
}

pub(crate) async fn deliveries_of_a_killed_consumer_come_again_and_say_so(adapter: &dyn Adapter) {
    let broker = adapter.broker();
    publish(broker, &orders(["m1", "m2", "m3"])).await;
    let mut killed = consumer(broker, &RoleName::ORDER).await;
    let held = take(&mut killed, 3).await;
    settle(&mut killed, &held[..1], Settlement::Ack).await;
    adapter.kill(killed).await;
    let mut consumer = consumer(broker, &RoleName::ORDER).await;
    let deliveries = take(&mut consumer, 2).await;
    assert_eq!(texts(&deliveries), ["m2", "m3"]);
    for delivery in &deliveries {
        assert_eq!((delivery.attempt, delivery.deliveries), (0, 2));
    }
    settle(&mut consumer, &deliveries, Settlement::Ack).await;
    nothing_waits(broker, &RoleName::ORDER, &mut consumer).await;
    all_is_settled(adapter).await;
}

pub(crate) async fn deliveries_of_a_dropped_consumer_come_again(adapter: &dyn Adapter) {
    let broker = adapter.broker();
    publish(broker, &orders(["m1", "m2"])).await;
    let mut dropped = consumer(broker, &RoleName::ORDER).await;
    take(&mut dropped, 2).await;
    drop(dropped);
    let mut consumer = consumer(broker, &RoleName::ORDER).await;
    let deliveries = take(&mut consumer, 2).await;
    assert_eq!(texts(&deliveries), ["m1", "m2"]);
    for delivery in &deliveries {
        assert_eq!((delivery.attempt, delivery.deliveries), (0, 2));
    }
    settle(&mut consumer, &deliveries, Settlement::Ack).await;
    all_is_settled(adapter).await;
}

pub(crate) async fn deliveries_of_a_closed_consumer_come_again_at_once(adapter: &dyn Adapter) {
    let broker = adapter.broker();
    publish(broker, &orders(["m1", "m2"])).await;
    let mut closed = consumer(broker, &RoleName::ORDER).await;
    let held = take(&mut closed, 2).await;
    settle(&mut closed, &held[..1], Settlement::Ack).await;
    closed.close().await.unwrap();
    let mut consumer = consumer(broker, &RoleName::ORDER).await;
    let delivery = take_one(&mut consumer).await;
    assert_eq!(text(&delivery), "m2");
    assert_eq!((delivery.attempt, delivery.deliveries), (0, 2));
    settle(&mut consumer, &[delivery], Settlement::Ack).await;
    all_is_settled(adapter).await;
}

pub(crate) async fn a_consumer_holds_no_more_than_its_prefetch(adapter: &dyn Adapter) {
    let broker = adapter.broker();
    let (messages, ids) = numbered(6);
    publish(broker, &messages).await;
    let mut consumer = broker.consumer(&RoleName::ORDER, 4).await.unwrap();
    let mut held = take(&mut consumer, 4).await;
    assert!(consumer.try_receive(10).await.unwrap().is_empty());
    let more = tokio::time::timeout(Duration::from_millis(100), consumer.receive(10));
    assert!(more.await.is_err(), "more than the prefetch arrived");
    let last = held.split_off(2);
    settle(&mut consumer, &held, Settlement::Ack).await;
    let rest = take(&mut consumer, 2).await;
    let seen = [texts(&held), texts(&last), texts(&rest)].concat();
    assert_eq!(seen, ids);
    settle(&mut consumer, &[last, rest].concat(), Settlement::Ack).await;
    all_is_settled(adapter).await;
}

pub(crate) async fn two_consumers_share_a_queue_without_overlap(adapter: &dyn Adapter) {
    const TOTAL: usize = 600;
    let broker = adapter.broker();
    let (messages, ids) = numbered(TOTAL);
    publish(broker, &messages).await;
    let (done, _) = tokio::sync::watch::channel(0);
    let share = async || {
        let mut consumer = broker.consumer(&RoleName::ORDER, 20).await.unwrap();
        let mut watch = done.subscribe();
        let mut seen = Vec::new();
        loop {
            let received = tokio::select! {
                received = consumer.receive(10) => received.unwrap(),
                _ = watch.wait_for(|&done| done == TOTAL) => break,
            };
            settle(&mut consumer, &received, Settlement::Ack).await;
            seen.extend(texts(&received));
            done.send_modify(|done| *done += received.len());
        }
        consumer.close().await.unwrap();
        seen
    };
    let (one, two) = tokio::join!(share(), share());
    let mut seen = [one, two].concat();
    seen.sort_unstable();
    assert_eq!(seen, ids);
    all_is_settled(adapter).await;
}

pub(crate) async fn a_cancelled_receive_loses_nothing(adapter: &dyn Adapter) {
    let broker = adapter.broker();
    let seed = fastrand::u64(..);
    let mut random = fastrand::Rng::with_seed(seed);
    let (messages, ids) = numbered(400);
    publish(broker, &messages).await;
    // So few that it often has to wait for more.
    let mut consumer = broker.consumer(&RoleName::ORDER, 5).await.unwrap();
    let mut seen = Vec::new();
    let mut cancelled = 0;
    while seen.len() < ids.len() {
        let receive = consumer.receive(random.usize(1..5));
        let deliveries = if cancelled < 200 {
            let Some(received) = cancelled_after(random.u32(1..8), receive).await else {
                cancelled += 1;
                continue;
            };
            received.unwrap()
        } else {
            receive.await.unwrap()
        };
        for delivery in &deliveries {
            assert_eq!(delivery.deliveries, 1, "seed {seed}: {delivery:?}");
        }
        seen.extend(texts(&deliveries));
        settle(&mut consumer, &deliveries, Settlement::Ack).await;
    }
    assert_eq!(seen, ids, "seed {seed}");
    assert!(cancelled > 0, "seed {seed}");
    nothing_waits(broker, &RoleName::ORDER, &mut consumer).await;
    all_is_settled(adapter).await;
}

pub(crate) async fn thousands_of_messages_arrive_once_each(adapter: &dyn Adapter) {
    let broker = adapter.broker();
    let (messages, ids) = numbered(5_000);
    let mut publisher = broker.publisher().await.unwrap();
    let mut consumer = broker.consumer(&RoleName::ORDER, 512).await.unwrap();
    let publishing = async {
        for chunk in messages.chunks(256) {
            publisher.publish(chunk).await.unwrap();
        }
    };
    let consuming = async {
        let mut seen = BTreeSet::new();
        while seen.len() < ids.len() {
            let deliveries = consumer.receive(256).await.unwrap();
            settle(&mut consumer, &deliveries, Settlement::Ack).await;
            for delivery in &deliveries {
                assert!(seen.insert(text(delivery)), "{delivery:?} came twice");
            }
        }
        seen
    };
    let ((), seen) = tokio::join!(publishing, consuming);
    assert!(seen.iter().eq(&ids));
    all_is_settled(adapter).await;
}
