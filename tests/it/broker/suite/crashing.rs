//! Messages that seem to kill the process.

use crate::broker::{
    Adapter, DELIVERY_LIMIT, all_is_settled, consumer, crashed, nothing_waits, orders, publish,
    settle, take, take_one, text, texts,
};
use orderonce::broker::{Settlement, Tag};
use orderonce::domain::RoleName;
use std::time::Duration;

/// Kills a consumer while it holds the next message, as often as the limit allows.
async fn crash_to_the_limit(adapter: &dyn Adapter, id: &str) {
    for _ in 0..DELIVERY_LIMIT {
        let mut killed = adapter
            .broker()
            .consumer(&RoleName::ORDER, 1)
            .await
            .unwrap();
        let delivery = take_one(&mut killed).await;
        assert_eq!(text(&delivery), id);
        adapter.kill(killed).await;
    }
}

pub(crate) async fn a_message_at_the_delivery_limit_is_set_aside_and_its_neighbours_are_not(
    adapter: &dyn Adapter,
) {
    let broker = adapter.broker();
    publish(broker, &orders(["killer"])).await;
    crash_to_the_limit(adapter, "killer").await;
    publish(broker, &orders(["m1", "m2"])).await;
    let mut consumer = consumer(broker, &RoleName::ORDER).await;
    let deliveries = take(&mut consumer, 2).await;
    assert_eq!(texts(&deliveries), ["m1", "m2"]);
    settle(&mut consumer, &deliveries, Settlement::Ack).await;
    nothing_waits(broker, &RoleName::ORDER, &mut consumer).await;

    let crashed = crashed(broker, &RoleName::ORDER).await;
    assert_eq!(texts(&crashed), ["killer"]);
    assert_eq!(crashed[0].deliveries, DELIVERY_LIMIT);
    assert!(
        broker
            .crashed(&RoleName::PAYMENT, 10)
            .await
            .unwrap()
            .is_empty()
    );
    broker
        .forget_crashed(&RoleName::ORDER, &[crashed[0].tag])
        .await
        .unwrap();
    all_is_settled(adapter).await;
}

pub(crate) async fn a_message_set_aside_stays_until_it_is_forgotten(adapter: &dyn Adapter) {
    let broker = adapter.broker();
    publish(broker, &orders(["killer"])).await;
    crash_to_the_limit(adapter, "killer").await;
    let crashed = crashed(broker, &RoleName::ORDER).await;
    assert_eq!(texts(&crashed), ["killer"]);
    assert_eq!(broker.depth(&RoleName::ORDER).await.unwrap().total(), 1);

    let older = Tag {
        fence: crashed[0].tag.fence - 1,
        ..crashed[0].tag
    };
    broker
        .forget_crashed(&RoleName::ORDER, &[older])
        .await
        .unwrap();
    broker.forget_crashed(&RoleName::ORDER, &[]).await.unwrap();
    let still = broker.crashed(&RoleName::ORDER, 10).await.unwrap();
    assert_eq!(texts(&still), ["killer"]);

    let tags = [still[0].tag];
    broker
        .forget_crashed(&RoleName::ORDER, &tags)
        .await
        .unwrap();
    broker
        .forget_crashed(&RoleName::ORDER, &tags)
        .await
        .unwrap();
    assert!(
        broker
            .crashed(&RoleName::ORDER, 10)
            .await
            .unwrap()
            .is_empty()
    );
    all_is_settled(adapter).await;
}

pub(crate) async fn a_message_left_unsettled_again_and_again_comes_alone(adapter: &dyn Adapter) {
    let broker = adapter.broker();
    publish(broker, &orders(["m1", "m2", "m3"])).await;
    for _ in 1..DELIVERY_LIMIT {
        let mut killed = consumer(broker, &RoleName::ORDER).await;
        take(&mut killed, 3).await;
        adapter.kill(killed).await;
    }
    let mut consumer = consumer(broker, &RoleName::ORDER).await;
    for id in ["m1", "m2", "m3"] {
        let deliveries = consumer.receive(10).await.unwrap();
        assert_eq!(texts(&deliveries), [id]);
        settle(&mut consumer, &deliveries, Settlement::Ack).await;
    }
    all_is_settled(adapter).await;
}

pub(crate) async fn releases_and_retries_never_reach_the_delivery_limit(adapter: &dyn Adapter) {
    let broker = adapter.broker();
    publish(broker, &orders(["m1"])).await;
    for round in 0..4 * DELIVERY_LIMIT {
        let mut consumer = consumer(broker, &RoleName::ORDER).await;
        let delivery = take_one(&mut consumer).await;
        match round % 3 {
            0 => settle(&mut consumer, &[delivery], Settlement::Release).await,
            1 => {
                settle(
                    &mut consumer,
                    &[delivery],
                    Settlement::Retry(Duration::ZERO),
                )
                .await
            }
            _ => {}
        }
        consumer.close().await.unwrap();
    }
    assert!(
        broker
            .crashed(&RoleName::ORDER, 10)
            .await
            .unwrap()
            .is_empty()
    );
    let mut consumer = consumer(broker, &RoleName::ORDER).await;
    let delivery = take_one(&mut consumer).await;
    settle(&mut consumer, &[delivery], Settlement::Ack).await;
    all_is_settled(adapter).await;
}

/// B61: a flag of the broker's is only a hint.
pub(crate) async fn how_often_a_message_was_delivered_says_nothing_of_whether_it_was_handled(
    adapter: &dyn Adapter,
) {
    let broker = adapter.broker();
    publish(broker, &orders(["never handled", "handled"])).await;
    let mut first = consumer(broker, &RoleName::ORDER).await;
    let deliveries = take(&mut first, 2).await;
    settle(&mut first, &deliveries[1..], Settlement::Ack).await;
    adapter.kill(first).await;
    // Its publisher had no answer and publishes again.
    publish(broker, &orders(["handled"])).await;

    let mut second = consumer(broker, &RoleName::ORDER).await;
    let deliveries = take(&mut second, 2).await;
    let told = |id: &str| {
        deliveries
            .iter()
            .find(|d| text(d) == id)
            .unwrap()
            .deliveries
    };
    assert_eq!((told("never handled"), told("handled")), (2, 1));
    settle(&mut second, &deliveries, Settlement::Ack).await;
    all_is_settled(adapter).await;
}

pub(crate) async fn a_message_that_was_put_back_can_be_taken_again(adapter: &dyn Adapter) {
    let broker = adapter.broker();
    publish(broker, &orders(["killer"])).await;
    crash_to_the_limit(adapter, "killer").await;
    broker.put_back_crashed(&RoleName::ORDER).await.unwrap();
    let taken = crashed(broker, &RoleName::ORDER).await;
    assert_eq!(texts(&taken), ["killer"]);
    broker.put_back_crashed(&RoleName::ORDER).await.unwrap();
    let again = crashed(broker, &RoleName::ORDER).await;
    assert_eq!(texts(&again), ["killer"]);
    broker
        .forget_crashed(&RoleName::ORDER, &[again[0].tag])
        .await
        .unwrap();
    broker.put_back_crashed(&RoleName::ORDER).await.unwrap();
    all_is_settled(adapter).await;
}
