//! Settling: ack, retry, release, and too late.

use crate::broker::{
    Adapter, all, all_is_settled, audit, consumer, message, nothing_waits, orders, publish, settle,
    take, take_one, text, texts,
};
use orderonce::broker::{Depth, Publication, Settlement};
use orderonce::domain::RoleName;
use std::time::Duration;

const DELAY: Duration = Duration::from_secs(1);

pub(crate) async fn an_acknowledged_message_is_gone(adapter: &dyn Adapter) {
    let broker = adapter.broker();
    publish(broker, &orders(["m1", "m2"])).await;
    let mut first = consumer(broker, &RoleName::ORDER).await;
    let deliveries = take(&mut first, 2).await;
    settle(&mut first, &deliveries, Settlement::Ack).await;
    adapter.kill(first).await;
    let mut second = consumer(broker, &RoleName::ORDER).await;
    nothing_waits(broker, &RoleName::ORDER, &mut second).await;
    all_is_settled(adapter).await;
}

pub(crate) async fn a_retried_message_comes_back_after_its_delay_to_its_own_role_alone(
    adapter: &dyn Adapter,
) {
    let broker = adapter.broker();
    publish(broker, &[message("m1", "order.created")]).await;
    let mut inventory = consumer(broker, &RoleName::INVENTORY).await;
    let mut other = consumer(broker, &audit()).await;
    let seen = take_one(&mut other).await;
    settle(&mut other, &[seen], Settlement::Ack).await;

    let failed = take_one(&mut inventory).await;
    settle(&mut inventory, &[failed], Settlement::Retry(DELAY)).await;
    nothing_waits(broker, &RoleName::INVENTORY, &mut inventory).await;
    adapter.advance(DELAY).await;
    let again = take_one(&mut inventory).await;
    assert_eq!(text(&again), "m1");
    assert_eq!(again.attempt, 1);
    settle(&mut inventory, &[again], Settlement::Ack).await;
    nothing_waits(broker, &audit(), &mut other).await;
    all_is_settled(adapter).await;
}

/// B57: the brokers' own counters do not survive a message's way through a delay; ours does.
pub(crate) async fn attempts_are_counted_over_many_retries(adapter: &dyn Adapter) {
    let broker = adapter.broker();
    let original = Publication {
        headers: [("traceparent".to_owned(), "00-1-01".to_owned())].into(),
        ..message("m1", "order.create")
    };
    publish(broker, std::slice::from_ref(&original)).await;
    let mut consumer = consumer(broker, &RoleName::ORDER).await;
    for attempt in 0..6 {
        let delivery = take_one(&mut consumer).await;
        assert_eq!(delivery.attempt, attempt);
        assert_eq!(delivery.message, original.message);
        assert_eq!(delivery.headers, original.headers);
        let settlement = match attempt {
            5 => Settlement::Ack,
            _ => Settlement::Retry(DELAY),
        };
        settle(&mut consumer, &[delivery], settlement).await;
        adapter.advance(DELAY).await;
    }
    all_is_settled(adapter).await;
}

pub(crate) async fn a_retried_message_keeps_its_trace(adapter: &dyn Adapter) {
    let broker = adapter.broker();
    let trace = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
    let message = format!("{{\"specversion\":\"1.0\",\"traceparent\":\"{trace}\"}}");
    let original = Publication {
        message: message.into(),
        ..self::message("m1", "order.create")
    };
    publish(broker, &[original]).await;
    let mut consumer = consumer(broker, &RoleName::ORDER).await;
    for settlement in [
        Settlement::Retry(DELAY),
        Settlement::Later(DELAY),
        Settlement::Release,
        Settlement::Ack,
    ] {
        let delivery = take_one(&mut consumer).await;
        let kept = orderonce::message::traceparent(&delivery.message);
        assert_eq!(kept.as_deref(), Some(trace), "before {settlement:?}");
        settle(&mut consumer, &[delivery], settlement).await;
        adapter.advance(DELAY).await;
    }
    all_is_settled(adapter).await;
}

pub(crate) async fn a_message_that_somebody_else_is_at_comes_back_later_with_nothing_counted(
    adapter: &dyn Adapter,
) {
    let broker = adapter.broker();
    publish(broker, &orders(["m1"])).await;
    let mut consumer = consumer(broker, &RoleName::ORDER).await;
    let failed = take_one(&mut consumer).await;
    settle(&mut consumer, &[failed], Settlement::Retry(Duration::ZERO)).await;
    for _ in 0..6 {
        let delivery = take_one(&mut consumer).await;
        assert_eq!((text(&delivery).as_str(), delivery.attempt), ("m1", 1));
        settle(&mut consumer, &[delivery], Settlement::Later(DELAY)).await;
        nothing_waits(broker, &RoleName::ORDER, &mut consumer).await;
        adapter.advance(DELAY).await;
    }
    let delivery = take_one(&mut consumer).await;
    settle(&mut consumer, &[delivery], Settlement::Ack).await;
    all_is_settled(adapter).await;
}

pub(crate) async fn a_retry_without_delay_comes_back_at_once(adapter: &dyn Adapter) {
    let broker = adapter.broker();
    publish(broker, &orders(["m1"])).await;
    let mut consumer = consumer(broker, &RoleName::ORDER).await;
    let failed = take_one(&mut consumer).await;
    settle(&mut consumer, &[failed], Settlement::Retry(Duration::ZERO)).await;
    let again = take_one(&mut consumer).await;
    assert_eq!((text(&again).as_str(), again.attempt), ("m1", 1));
    settle(&mut consumer, &[again], Settlement::Ack).await;
    all_is_settled(adapter).await;
}

pub(crate) async fn a_released_message_comes_back_at_once_with_no_attempt_counted(
    adapter: &dyn Adapter,
) {
    let broker = adapter.broker();
    publish(broker, &orders(["m1"])).await;
    let mut releasing = consumer(broker, &RoleName::ORDER).await;
    let released = take_one(&mut releasing).await;
    settle(&mut releasing, &[released], Settlement::Release).await;
    releasing.close().await.unwrap();
    let mut consumer = consumer(broker, &RoleName::ORDER).await;
    let again = take_one(&mut consumer).await;
    assert_eq!(text(&again), "m1");
    assert_eq!(again.attempt, 0);
    // The consumer that released it may have been the first to have it back.
    assert!(again.deliveries >= 2, "{again:?}");
    settle(&mut consumer, &[again], Settlement::Ack).await;
    all_is_settled(adapter).await;
}

pub(crate) async fn a_stale_settlement_is_counted_and_changes_nothing(adapter: &dyn Adapter) {
    let broker = adapter.broker();
    publish(broker, &orders(["m1", "m2", "m3"])).await;
    let mut slow = consumer(broker, &RoleName::ORDER).await;
    let lost = take(&mut slow, 3).await;
    adapter.take_deliveries_away().await;
    let mut quick = consumer(broker, &RoleName::ORDER).await;
    let held = take(&mut quick, 3).await;

    let too_late = [
        (lost[0].tag, Settlement::Ack),
        (lost[1].tag, Settlement::Retry(Duration::ZERO)),
        (lost[2].tag, Settlement::Release),
    ];
    assert_eq!(slow.settle(&too_late).await, Ok(3));
    assert!(slow.try_receive(10).await.unwrap().is_empty());
    let depth = broker.depth(&RoleName::ORDER).await.unwrap();
    let expected = Depth {
        unsettled: depth.unsettled.and(Some(3)),
        ..Depth::default()
    };
    assert_eq!(depth, expected);
    settle(&mut quick, &held, Settlement::Ack).await;
    slow.close().await.unwrap();
    nothing_waits(broker, &RoleName::ORDER, &mut quick).await;
    all_is_settled(adapter).await;
}

pub(crate) async fn settling_again_is_stale(adapter: &dyn Adapter) {
    let broker = adapter.broker();
    publish(broker, &orders(["m1", "m2"])).await;
    let mut consumer = consumer(broker, &RoleName::ORDER).await;
    let deliveries = take(&mut consumer, 2).await;
    settle(&mut consumer, &deliveries[..1], Settlement::Ack).await;
    let again = all(&deliveries, Settlement::Ack);
    assert_eq!(consumer.settle(&again).await, Ok(1));
    assert_eq!(consumer.settle(&again).await, Ok(2));
    all_is_settled(adapter).await;
}

pub(crate) async fn one_call_settles_each_delivery_in_its_own_way(adapter: &dyn Adapter) {
    let broker = adapter.broker();
    publish(broker, &orders(["acked", "retried", "released", "held"])).await;
    let mut consumer = consumer(broker, &RoleName::ORDER).await;
    let deliveries = take(&mut consumer, 4).await;
    let settlements = [
        (deliveries[2].tag, Settlement::Release),
        (deliveries[0].tag, Settlement::Ack),
        (deliveries[1].tag, Settlement::Retry(DELAY)),
    ];
    assert_eq!(consumer.settle(&settlements).await, Ok(0));
    let released = take_one(&mut consumer).await;
    assert_eq!(
        (text(&released).as_str(), released.attempt),
        ("released", 0)
    );
    nothing_waits(broker, &RoleName::ORDER, &mut consumer).await;
    adapter.advance(DELAY).await;
    let retried = take_one(&mut consumer).await;
    assert_eq!((text(&retried).as_str(), retried.attempt), ("retried", 1));
    let rest = [released, retried, deliveries[3].clone()];
    settle(&mut consumer, &rest, Settlement::Ack).await;
    all_is_settled(adapter).await;
}

pub(crate) async fn settling_nothing_is_fine(adapter: &dyn Adapter) {
    let mut consumer = consumer(adapter.broker(), &RoleName::ORDER).await;
    assert_eq!(consumer.settle(&[]).await, Ok(0));
    consumer.close().await.unwrap();
}

pub(crate) async fn depth_tells_ready_from_unsettled_from_delayed(adapter: &dyn Adapter) {
    let broker = adapter.broker();
    let (ids, prefetch) = (["m1", "m2", "m3", "m4", "m5", "m6"], 3);
    publish(broker, &orders(ids)).await;
    let mut consumer = broker.consumer(&RoleName::ORDER, prefetch).await.unwrap();
    let held = take(&mut consumer, prefetch).await;
    assert_eq!(texts(&held), ids[..prefetch]);
    settle(&mut consumer, &held[..1], Settlement::Retry(10 * DELAY)).await;
    let more = take_one(&mut consumer).await;
    let depth = broker.depth(&RoleName::ORDER).await.unwrap();
    let expected = Depth {
        ready: 2,
        unsettled: depth.unsettled.and(Some(3)),
        delayed: 1,
        crashed: 0,
    };
    assert_eq!(depth, expected);
    assert_eq!(depth.total(), 3 + depth.unsettled.unwrap_or(0));
    settle(&mut consumer, &held[1..], Settlement::Ack).await;
    settle(&mut consumer, &[more], Settlement::Ack).await;
}
