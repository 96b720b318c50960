//! Consuming: acknowledgements, copies, lost channels.

use super::fixture::{AmqpAdapter, fresh, fresh_at, server};
use crate::broker::{
    Adapter, DELIVERY_LIMIT, all, all_is_settled, audit, consumer, crashed, in_time, message,
    nothing_waits, numbered, orders, publish, settle, take, take_one, texts, topology,
};
use lapin::BasicProperties;
use lapin::options::{BasicGetOptions, BasicPublishOptions, QueueDeleteOptions};
use lapin::types::{AMQPValue, FieldTable};
use orderonce::broker::amqp::Amqp;
use orderonce::broker::{Broker, Consumer, Error, Settlement};
use orderonce::domain::RoleName;
use std::time::Duration;

#[tokio::test]
async fn an_acknowledgement_of_many_leaves_what_is_held() {
    let adapter = fresh().await;
    let broker = adapter.broker();
    let (messages, ids) = numbered(30);
    publish(broker, &messages).await;
    let mut consumer = consumer(broker, &RoleName::ORDER).await;
    let deliveries = take(&mut consumer, 20).await;
    // Ten were never handed out, and two of those that were are held.
    let mut settled = deliveries.clone();
    let held = [settled.remove(15), settled.remove(7)];
    settle(&mut consumer, &settled, Settlement::Ack).await;
    adapter.end_holds().await;
    let mut next = adapter
        .broker()
        .consumer(&RoleName::ORDER, 100)
        .await
        .unwrap();
    let mut left = take(&mut next, 12).await;
    left.sort_by(|a, b| a.message.cmp(&b.message));
    let mut expected = texts(&held);
    expected.extend_from_slice(&ids[20..]);
    expected.sort_unstable();
    assert_eq!(texts(&left), expected);
    settle(&mut next, &left, Settlement::Ack).await;
    all_is_settled(&adapter).await;
}

/// B51, B53.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_consumer_goes_on_over_a_new_connection_and_its_old_tags_settle_nothing() {
    let adapter = fresh_at(&server(), |options| options.delivery_limit = 20).await;
    let broker = adapter.broker();
    publish(broker, &orders(["m1", "m2"])).await;
    let mut consumer = consumer(broker, &RoleName::ORDER).await;
    let old = take(&mut consumer, 2).await;
    adapter.take_deliveries_away().await;
    let again = take(&mut consumer, 2).await;
    assert_eq!(texts(&again), ["m1", "m2"]);
    // The same numbers, on another channel.
    assert_eq!(old[0].tag.id, again[0].tag.id);
    let stale = consumer.settle(&all(&old, Settlement::Ack)).await;
    assert_eq!(stale, Ok(2));
    adapter.kill(consumer).await;
    let mut consumer = broker.consumer(&RoleName::ORDER, 10).await.unwrap();
    let still = take(&mut consumer, 2).await;
    assert_eq!(texts(&still), ["m1", "m2"]);
    settle(&mut consumer, &still, Settlement::Ack).await;
    all_is_settled(&adapter).await;
}

#[tokio::test]
async fn a_broker_that_is_away_is_unavailable_to_consumers_too() {
    let adapter = fresh().await;
    let broker = adapter.broker();
    let mut waiting = consumer(broker, &RoleName::ORDER).await;
    adapter.proxy.shut();
    let away = in_time(waiting.receive(1)).await.unwrap_err();
    assert!(matches!(away, Error::Unavailable(_)), "{away:?}");
    let away = waiting.try_receive(1).await.unwrap_err();
    assert!(matches!(away, Error::Unavailable(_)), "{away:?}");
    waiting.close().await.unwrap();
    let away = broker.consumer(&RoleName::ORDER, 1).await.err();
    assert!(matches!(away, Some(Error::Unavailable(_))), "{away:?}");
    adapter.proxy.open();
}

#[tokio::test]
async fn a_queue_deleted_under_its_consumer_is_waited_for() {
    let adapter = fresh().await;
    let broker = adapter.broker();
    publish(broker, &orders(["m1"])).await;
    let mut waiting = consumer(broker, &RoleName::ORDER).await;
    let held = take_one(&mut waiting).await;
    let channel = adapter.channel().await;
    let queue = adapter.queue(&RoleName::ORDER);
    let deleted = channel.queue_delete(queue.as_str().into(), QueueDeleteOptions::default());
    deleted.await.unwrap();
    let error = in_time(waiting.receive(1)).await.unwrap_err();
    let Error::Unavailable(sentence) = error else {
        panic!("{error:?}");
    };
    assert!(sentence.contains("`orderonce migrate`"), "{sentence}");
    let stale = waiting.settle(&[(held.tag, Settlement::Ack)]).await;
    assert_eq!(stale, Ok(1));
    Amqp::migrate(&adapter.options, topology()).await.unwrap();
    publish(broker, &orders(["m2"])).await;
    let next = take_one(&mut waiting).await;
    assert_eq!(next.message, "m2");
    settle(&mut waiting, &[next], Settlement::Ack).await;
    all_is_settled(&adapter).await;
}

/// How often the server has taken back the oldest message of the order queue, which it keeps.
async fn counted(adapter: &AmqpAdapter) -> i64 {
    let channel = adapter.channel().await;
    let queue = adapter.queue(&RoleName::ORDER);
    let options = BasicGetOptions { no_ack: false };
    let got = channel
        .basic_get(queue.as_str().into(), options)
        .await
        .unwrap()
        .unwrap();
    let headers = got.properties.headers().clone().unwrap_or_default();
    let counted = headers.inner().get("x-delivery-count").cloned();
    channel.close(200, "OK".into()).await.unwrap();
    match counted {
        None => 0,
        Some(AMQPValue::LongLongInt(count)) => count,
        Some(other) => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn what_a_closed_consumer_gives_back_is_not_counted() {
    let adapter = fresh().await;
    let broker = adapter.broker();
    let (messages, mut ids) = numbered(50);
    publish(broker, &messages).await;
    for _ in 0..2 * DELIVERY_LIMIT {
        let mut closing = consumer(broker, &RoleName::ORDER).await;
        // Some are handed out, the others only prefetched.
        let handed_out = in_time(closing.receive(5)).await.unwrap();
        assert!(handed_out.iter().all(|delivery| delivery.attempt == 0));
        closing.close().await.unwrap();
    }
    assert_eq!(counted(&adapter).await, 0);
    let mut consumer = consumer(broker, &RoleName::ORDER).await;
    let mut deliveries = take(&mut consumer, 50).await;
    deliveries.sort_by(|a, b| a.message.cmp(&b.message));
    ids.sort_unstable();
    assert_eq!(texts(&deliveries), ids);
    settle(&mut consumer, &deliveries, Settlement::Ack).await;
    all_is_settled(&adapter).await;
}

#[tokio::test]
async fn a_message_that_kills_takes_no_neighbour_to_the_delivery_limit() {
    let adapter = fresh().await;
    let broker = adapter.broker();
    publish(broker, &orders(["killer", "m1", "m2", "m3"])).await;
    let mut killed = 0;
    let mut worked = Vec::new();
    while worked.len() < 3 {
        let mut consumer = consumer(broker, &RoleName::ORDER).await;
        loop {
            let deliveries = in_time(consumer.receive(10)).await.unwrap();
            if texts(&deliveries).contains(&"killer".to_owned()) {
                killed += 1;
                adapter.kill(consumer).await;
                break;
            }
            settle(&mut consumer, &deliveries, Settlement::Ack).await;
            worked.extend(texts(&deliveries));
            if worked.len() == 3 {
                consumer.close().await.unwrap();
                break;
            }
        }
    }
    worked.sort_unstable();
    assert_eq!(worked, ["m1", "m2", "m3"]);
    assert_eq!(killed, DELIVERY_LIMIT);
    let set_aside = crashed(broker, &RoleName::ORDER).await;
    assert_eq!(texts(&set_aside), ["killer"]);
    let tags = [set_aside[0].tag];
    broker
        .forget_crashed(&RoleName::ORDER, &tags)
        .await
        .unwrap();
    all_is_settled(&adapter).await;
}

/// The limit holds for a copy too: it carries how often it was left unsettled.
#[tokio::test]
async fn a_released_suspect_does_not_start_anew() {
    let adapter = fresh().await;
    let broker = adapter.broker();
    publish(broker, &orders(["killer"])).await;
    for _ in 1..DELIVERY_LIMIT {
        let mut killed = consumer(broker, &RoleName::ORDER).await;
        take_one(&mut killed).await;
        adapter.kill(killed).await;
    }
    let mut releasing = consumer(broker, &RoleName::ORDER).await;
    let delivery = take_one(&mut releasing).await;
    assert!(delivery.deliveries >= DELIVERY_LIMIT, "{delivery:?}");
    settle(&mut releasing, &[delivery], Settlement::Release).await;
    releasing.close().await.unwrap();
    let mut killed = consumer(broker, &RoleName::ORDER).await;
    take_one(&mut killed).await;
    adapter.kill(killed).await;

    let mut last = consumer(broker, &RoleName::ORDER).await;
    nothing_waits(broker, &RoleName::ORDER, &mut last).await;
    let set_aside = crashed(broker, &RoleName::ORDER).await;
    assert_eq!(texts(&set_aside), ["killer"]);
    assert!(set_aside[0].deliveries > DELIVERY_LIMIT, "{set_aside:?}");
    let tags = [set_aside[0].tag];
    broker
        .forget_crashed(&RoleName::ORDER, &tags)
        .await
        .unwrap();
    all_is_settled(&adapter).await;
}

#[tokio::test]
async fn what_was_set_aside_says_why_and_comes_again_after_a_restart() {
    let adapter = fresh().await;
    let broker = adapter.broker();
    publish(broker, &orders(["killer"])).await;
    for _ in 0..DELIVERY_LIMIT {
        let mut killed = broker.consumer(&RoleName::ORDER, 1).await.unwrap();
        take_one(&mut killed).await;
        adapter.kill(killed).await;
    }
    let set_aside = crashed(broker, &RoleName::ORDER).await;
    let headers = &set_aside[0].headers;
    assert_eq!(headers["x-first-death-reason"], "delivery_limit");
    assert!(
        headers["x-death"].contains("\"delivery_limit\""),
        "{headers:?}"
    );
    assert_eq!(set_aside[0].deliveries, DELIVERY_LIMIT);
    let old = set_aside[0].tag;
    adapter.take_deliveries_away().await;
    let again = crashed(broker, &RoleName::ORDER).await;
    assert_eq!(texts(&again), ["killer"]);
    broker
        .forget_crashed(&RoleName::ORDER, &[old])
        .await
        .unwrap();
    assert_eq!(crashed(broker, &RoleName::ORDER).await.len(), 1);
    let tags = [again[0].tag];
    broker
        .forget_crashed(&RoleName::ORDER, &tags)
        .await
        .unwrap();
    all_is_settled(&adapter).await;
}

#[tokio::test]
async fn what_one_process_puts_back_another_takes() {
    let adapter = fresh().await;
    let broker = adapter.broker();
    publish(broker, &orders(["killer"])).await;
    for _ in 0..DELIVERY_LIMIT {
        let mut killed = broker.consumer(&RoleName::ORDER, 1).await.unwrap();
        take_one(&mut killed).await;
        adapter.kill(killed).await;
    }
    crashed(broker, &RoleName::ORDER).await;
    let other = Amqp::open(&adapter.options, topology()).await.unwrap();
    let taken = other.crashed(&RoleName::ORDER, 10).await.unwrap();
    assert_eq!(texts(&taken), [""; 0]);
    broker.put_back_crashed(&RoleName::ORDER).await.unwrap();
    let taken = in_time(crashed(&other, &RoleName::ORDER)).await;
    assert_eq!(texts(&taken), ["killer"]);
    let tags = [taken[0].tag];
    other.forget_crashed(&RoleName::ORDER, &tags).await.unwrap();
    other.close().await;
    all_is_settled(&adapter).await;
}

/// Messages of other systems may carry anything; a copy must neither lose it nor be led astray by it.
#[tokio::test]
async fn a_retry_keeps_the_headers_of_others_and_follows_none_of_them() {
    let adapter = fresh().await;
    let broker = adapter.broker();
    let queue = adapter.queue(&RoleName::ORDER);
    let mut headers = FieldTable::default();
    let elsewhere = AMQPValue::LongString(adapter.queue(&audit()).into());
    headers.insert("CC".into(), AMQPValue::FieldArray(vec![elsewhere].into()));
    headers.insert("count".into(), AMQPValue::LongInt(7));
    headers.insert("name".into(), AMQPValue::LongString("value".into()));
    headers.insert(
        "orderonce-attempt".into(),
        AMQPValue::LongString("nonsense".into()),
    );
    let properties = BasicProperties::default()
        .with_headers(headers)
        .with_user_id("orderonce".into())
        .with_expiration("60000".into())
        .with_correlation_id("theirs".into())
        .with_reply_to("somewhere".into());
    let channel = adapter.channel().await;
    let options = BasicPublishOptions::default();
    let published =
        channel.basic_publish("".into(), queue.as_str().into(), options, b"m1", properties);
    published.await.unwrap();
    let mut other = consumer(broker, &audit()).await;
    let copy = take_one(&mut other).await;
    settle(&mut other, &[copy], Settlement::Ack).await;

    let mut consumer = consumer(broker, &RoleName::ORDER).await;
    let first = take_one(&mut consumer).await;
    assert_eq!((first.attempt, first.deliveries), (0, 1));
    assert_eq!(
        first.headers.into_iter().collect::<Vec<_>>(),
        [("name".to_owned(), "value".to_owned())]
    );
    let tag = first.tag;
    assert_eq!(
        consumer
            .settle(&[(tag, Settlement::Retry(Duration::from_secs(1)))])
            .await,
        Ok(0)
    );
    let again = take_one(&mut consumer).await;
    assert_eq!(
        (again.attempt, again.headers["name"].as_str()),
        (1, "value")
    );
    nothing_waits(broker, &audit(), &mut other).await;
    assert_eq!(
        consumer.settle(&[(again.tag, Settlement::Release)]).await,
        Ok(0)
    );
    consumer.close().await.unwrap();
    let options = BasicGetOptions { no_ack: true };
    let raw = channel
        .basic_get(queue.as_str().into(), options)
        .await
        .unwrap()
        .unwrap();
    let headers = raw.properties.headers().clone().unwrap();
    assert_eq!(headers.inner().get("count"), Some(&AMQPValue::LongInt(7)));
    assert!(
        !headers.contains_key("CC") && !headers.contains_key("x-death"),
        "{headers:?}"
    );
    assert_eq!(
        raw.properties.correlation_id().as_ref().unwrap().as_str(),
        "theirs"
    );
    assert_eq!(raw.properties.user_id(), &None);
    assert_eq!(raw.properties.expiration(), &None);
    all_is_settled(&adapter).await;
}

#[tokio::test]
async fn a_delivery_limit_of_one_delivers_each_message_alone() {
    let adapter = fresh_at(&server(), |options| options.delivery_limit = 1).await;
    let broker = adapter.broker();
    publish(broker, &orders(["m1", "m2"])).await;
    let mut killed = consumer(broker, &RoleName::ORDER).await;
    assert_eq!(in_time(killed.receive(10)).await.unwrap().len(), 1);
    adapter.kill(killed).await;
    let mut next = consumer(broker, &RoleName::ORDER).await;
    let delivery = take_one(&mut next).await;
    assert_eq!(delivery.message, "m2");
    settle(&mut next, &[delivery], Settlement::Ack).await;
    assert_eq!(texts(&crashed(broker, &RoleName::ORDER).await), ["m1"]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn thousands_of_deliveries_over_cut_connections_are_settled_once_each_or_come_again() {
    let adapter = fresh_at(&server(), |options| options.delivery_limit = 1_000).await;
    let broker = adapter.broker();
    let (messages, ids) = numbered(3_000);
    publish(broker, &messages).await;
    let mut seen = std::collections::BTreeSet::new();
    let mut consumer: Option<Box<dyn Consumer>> = None;
    let mut rounds = 0;
    in_time(async {
        while seen.len() < ids.len() {
            let mut current = match consumer.take() {
                Some(consumer) => consumer,
                None => match broker.consumer(&RoleName::ORDER, 200).await {
                    Ok(consumer) => consumer,
                    Err(_) => continue,
                },
            };
            let Ok(deliveries) = current.receive(50).await else {
                continue;
            };
            rounds += 1;
            if rounds % 10 == 0 && rounds < 60 {
                adapter.proxy.cut();
            }
            if current
                .settle(&all(&deliveries, Settlement::Ack))
                .await
                .is_ok()
            {
                seen.extend(texts(&deliveries));
            }
            consumer = Some(current);
        }
    })
    .await;
    assert!(seen.iter().eq(&ids));
}

#[tokio::test]
async fn a_message_of_ours_goes_by_its_type_and_says_what_it_is() {
    let adapter = fresh().await;
    publish(adapter.broker(), &[message("m1", "order.create")]).await;
    let channel = adapter.channel().await;
    let queue = adapter.queue(&RoleName::ORDER);
    let options = BasicGetOptions { no_ack: true };
    let raw = channel
        .basic_get(queue.as_str().into(), options)
        .await
        .unwrap()
        .unwrap();
    let properties = &raw.properties;
    let text = |value: &Option<lapin::types::ShortString>| value.as_ref().unwrap().to_string();
    assert_eq!(
        text(properties.content_type()),
        "application/cloudevents+json"
    );
    assert_eq!(text(properties.message_id()), "m1");
    assert_eq!(text(properties.kind()), "order.create");
    assert_eq!(*properties.delivery_mode(), Some(2));
    assert_eq!(raw.routing_key.as_str(), "order.create");
}
