//! Publishing: what the server says of each message.

use super::fixture::{fresh, fresh_at};
use crate::broker::{
    Adapter, all_is_settled, consumer, in_time, message, orders, publish, settle, take, take_one,
    texts,
};
use crate::servers::Servers;
use lapin::options::{ExchangeDeleteOptions, QueueBindOptions, QueueDeclareOptions};
use lapin::types::{AMQPValue, FieldTable};
use orderonce::broker::{Error, Headers, Publication, Receipt, Settlement};
use orderonce::domain::RoleName;
use std::time::Duration;

/// The library attaches a returned message to whichever confirm comes next.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_returned_message_is_found_among_thousands() {
    let adapter = fresh().await;
    let seed = fastrand::u64(..);
    let mut random = fastrand::Rng::with_seed(seed);
    let messages: Vec<Publication> = (0..5_000)
        .map(|n| match random.u8(0..10) {
            0 => message(&format!("m{n}"), "order.upgrade"),
            // Some share an id with one that goes another way.
            1 => message("the same", "order.upgrade"),
            2 => message("the same", "order.create"),
            3 => message(&format!("m{n}"), "order.paid"),
            _ => message(&format!("m{n}"), "order.create"),
        })
        .collect();
    let mut publisher = adapter.broker().publisher().await.unwrap();
    let receipts = in_time(publisher.publish(&messages)).await.unwrap();
    assert_eq!(receipts.len(), messages.len());
    for (message, receipt) in messages.iter().zip(&receipts) {
        match receipt {
            Receipt::Confirmed => assert_ne!(message.event_type, "order.upgrade", "seed {seed}"),
            Receipt::Refused(why) => {
                assert_eq!(message.event_type, "order.upgrade", "seed {seed}: {why}");
                assert!(
                    why.contains("order.upgrade") && why.contains("NO_ROUTE"),
                    "{why}"
                );
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_a_full_queue_rejects_is_refused() {
    let adapter = fresh().await;
    let channel = adapter.channel().await;
    let name = format!("{}full", adapter.options.prefix);
    let mut arguments = FieldTable::default();
    arguments.insert("x-max-length".into(), AMQPValue::LongInt(3));
    arguments.insert(
        "x-overflow".into(),
        AMQPValue::LongString("reject-publish".into()),
    );
    let temporary = QueueDeclareOptions {
        exclusive: true,
        ..QueueDeclareOptions::default()
    };
    let declared = channel.queue_declare(name.as_str().into(), temporary, arguments);
    declared.await.unwrap();
    let bound = channel.queue_bind(
        name.as_str().into(),
        adapter.options.exchange.as_str().into(),
        "order.paid".into(),
        QueueBindOptions::default(),
        FieldTable::default(),
    );
    bound.await.unwrap();
    let messages: Vec<_> = (0..10)
        .map(|n| message(&format!("m{n}"), "order.paid"))
        .collect();
    let mut publisher = adapter.broker().publisher().await.unwrap();
    let receipts = publisher.publish(&messages).await.unwrap();
    let confirmed = receipts
        .iter()
        .filter(|r| **r == Receipt::Confirmed)
        .count();
    assert_eq!(confirmed, 3, "{receipts:?}");
    let refused = receipts.iter().find(|r| **r != Receipt::Confirmed).unwrap();
    assert!(
        matches!(refused, Receipt::Refused(why) if why.contains("full")),
        "{refused:?}"
    );
}

/// B39, B47: AMQP holds names of 255 bytes and properties of a frame.
#[tokio::test]
async fn names_and_headers_that_amqp_has_no_room_for_are_shortened() {
    let adapter = fresh().await;
    let broker = adapter.broker();
    let name = "n".repeat(300);
    let headers = Headers::from([
        ("error".to_owned(), "日".repeat(200_000)),
        (name.clone(), "kept".to_owned()),
        ("traceparent".to_owned(), "00-1-01".to_owned()),
    ]);
    let long = Publication {
        message_id: "i".repeat(300),
        headers,
        ..message("long", "order.create")
    };
    let mut messages = orders(["before", "after"]);
    messages.insert(1, long);
    publish(broker, &messages).await;
    let mut consumer = consumer(broker, &RoleName::ORDER).await;
    let deliveries = take(&mut consumer, 3).await;
    assert_eq!(deliveries[1].message, "long");
    let headers = &deliveries[1].headers;
    assert_eq!(headers["traceparent"], "00-1-01");
    assert!(headers["error"].len() > 10_000 && headers["error"].starts_with("日日"));
    let shortened = headers
        .iter()
        .find(|(_, value)| *value == "kept")
        .unwrap()
        .0;
    assert!(
        shortened.len() == 255 && shortened.starts_with("nnn"),
        "{shortened}"
    );
    settle(
        &mut consumer,
        &deliveries,
        Settlement::Retry(Duration::ZERO),
    )
    .await;
    let again = take(&mut consumer, 3).await;
    settle(&mut consumer, &again, Settlement::Ack).await;
    all_is_settled(&adapter).await;
}

#[tokio::test]
async fn types_that_amqp_has_no_room_for_are_refused_and_so_are_too_many_headers() {
    let adapter = fresh().await;
    let broker = adapter.broker();
    let many: Headers = (0..2_000)
        .map(|n| (format!("{n:0200}"), String::new()))
        .collect();
    let messages = [
        message("m1", &"t".repeat(300)),
        Publication {
            headers: many,
            ..message("m2", "order.create")
        },
        Publication {
            addressee: Some(RoleName::new("r".repeat(300))),
            ..message("m3", "order.create")
        },
        message("m4", "order.create"),
    ];
    let mut publisher = broker.publisher().await.unwrap();
    let receipts = in_time(publisher.publish(&messages)).await.unwrap();
    let confirmed: Vec<bool> = receipts.iter().map(|r| *r == Receipt::Confirmed).collect();
    assert_eq!(confirmed, [false, false, false, true], "{receipts:?}");
    let mut consumer = consumer(broker, &RoleName::ORDER).await;
    let delivery = take_one(&mut consumer).await;
    assert_eq!(delivery.message, "m4");
    settle(&mut consumer, &[delivery], Settlement::Ack).await;
    all_is_settled(&adapter).await;
}

#[tokio::test]
async fn a_missing_exchange_is_unavailable_until_it_is_migrated() {
    let adapter = fresh().await;
    let channel = adapter.channel().await;
    let exchange = adapter.options.exchange.as_str();
    let deleted = channel.exchange_delete(exchange.into(), ExchangeDeleteOptions::default());
    deleted.await.unwrap();
    let mut publisher = adapter.broker().publisher().await.unwrap();
    let refused = publisher.publish(&orders(["m1"])).await.unwrap_err();
    let Error::Unavailable(sentence) = refused else {
        panic!("{refused:?}");
    };
    assert!(
        sentence.contains("run `orderonce migrate`")
            || sentence.contains("with `orderonce migrate`"),
        "{sentence}"
    );
    orderonce::broker::amqp::Amqp::migrate(&adapter.options, crate::broker::topology())
        .await
        .unwrap();
    let receipts = publisher.publish(&orders(["m1"])).await.unwrap();
    assert_eq!(receipts, [Receipt::Confirmed]);
}

/// The server answers a message that is too large by closing the channel.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_message_beyond_the_servers_limit_is_refused_and_takes_no_neighbour_along() {
    let Some(servers) = Servers::turn().await else {
        return;
    };
    let url = servers.start("rabbitmq");
    servers.rabbitmqctl(&[
        "eval",
        "application:set_env(rabbit, max_message_size, 1000).",
    ]);
    let adapter = fresh_at(&url, |_| {}).await;
    let broker = adapter.broker();
    let large = |id: &str, bytes: usize| Publication {
        message: vec![b'x'; bytes].into(),
        ..message(id, "order.create")
    };
    let messages = [
        message("m1", "order.create"),
        large("m2", 200_000),
        message("m3", "order.create"),
        large("m4", 2_000_000),
        message("m5", "order.create"),
    ];
    let mut publisher = broker.publisher().await.unwrap();
    let receipts = in_time(publisher.publish(&messages)).await.unwrap();
    let confirmed: Vec<bool> = receipts.iter().map(|r| *r == Receipt::Confirmed).collect();
    assert_eq!(confirmed, [true, false, true, false, true], "{receipts:?}");
    assert!(
        matches!(&receipts[1], Receipt::Refused(why) if why.contains("1000")),
        "{receipts:?}"
    );
    let mut consumer = consumer(broker, &RoleName::ORDER).await;
    let mut seen = Vec::new();
    while !seen.contains(&"m5".to_owned()) {
        let deliveries = in_time(consumer.receive(10)).await.unwrap();
        seen.extend(texts(&deliveries));
        settle(&mut consumer, &deliveries, Settlement::Ack).await;
    }
    seen.sort_unstable();
    seen.dedup();
    assert_eq!(seen, ["m1", "m3", "m5"]);
    drop(adapter);
    servers.rabbitmqctl(&[
        "eval",
        "application:set_env(rabbit, max_message_size, 134217728).",
    ]);
}

#[tokio::test]
async fn a_publisher_outlives_a_lost_connection() {
    let adapter = fresh().await;
    let broker = adapter.broker();
    let mut publisher = broker.publisher().await.unwrap();
    assert_eq!(
        publisher.publish(&orders(["m1"])).await,
        Ok(vec![Receipt::Confirmed])
    );
    adapter.proxy.cut();
    in_time(async {
        while publisher.publish(&orders(["m2"])).await.is_err() {
            tokio::task::yield_now().await;
        }
    })
    .await;
    let mut consumer = consumer(broker, &RoleName::ORDER).await;
    let mut seen = Vec::new();
    while !seen.contains(&"m2".to_owned()) {
        let deliveries = in_time(consumer.receive(10)).await.unwrap();
        seen.extend(texts(&deliveries));
        settle(&mut consumer, &deliveries, Settlement::Ack).await;
    }
    assert_eq!(seen[0], "m1");
}
