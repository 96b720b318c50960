//! Publishing and routing.

use crate::broker::{
    Adapter, all_is_settled, audit, consumer, message, nothing_waits, numbered, orders, publish,
    settle, take, take_one, texts,
};
use bytes::Bytes;
use orderonce::broker::{Headers, Publication, Receipt, Settlement};
use orderonce::domain::RoleName;

pub(crate) async fn a_message_arrives_once_at_each_queue_bound_to_its_type(adapter: &dyn Adapter) {
    let broker = adapter.broker();
    publish(broker, &[message("m1", "order.created")]).await;
    for role in [RoleName::INVENTORY, audit()] {
        let mut consumer = consumer(broker, &role).await;
        let delivery = take_one(&mut consumer).await;
        assert_eq!(delivery.message, "m1");
        assert_eq!((delivery.attempt, delivery.deliveries), (0, 1));
        settle(&mut consumer, &[delivery], Settlement::Ack).await;
        nothing_waits(broker, &role, &mut consumer).await;
    }
    all_is_settled(adapter).await;
}

pub(crate) async fn bytes_and_headers_arrive_as_they_were_published(adapter: &dyn Adapter) {
    let broker = adapter.broker();
    let every_byte: Vec<u8> = (0..=255).rev().collect();
    let messages = [
        Bytes::from(every_byte),
        Bytes::new(),
        Bytes::from_static(b"\0"),
        Bytes::from_static(b"a\0b"),
        Bytes::from_static(b"\xff\xfe{\"a\":1}"),
        Bytes::from_static("{\"memo\":\"\\u0000 \u{2028} 订单 😀 \\ \"}".as_bytes()),
        Bytes::from_static(b"738529527931269425"),
        Bytes::from_static(b"null"),
    ];
    let headers = Headers::from([
        (
            "traceparent".to_owned(),
            "00-0af7651916cd43dd-01".to_owned(),
        ),
        ("empty".to_owned(), String::new()),
        ("quoted \"name\"".to_owned(), "'; \\ \n 订单 😀".to_owned()),
    ]);
    let publications: Vec<Publication> = messages
        .iter()
        .enumerate()
        .map(|(n, bytes)| Publication {
            message: bytes.clone(),
            // Every other one has no header.
            headers: headers.clone().into_iter().filter(|_| n % 2 == 0).collect(),
            ..message(&format!("m'\"{n}"), "order.create")
        })
        .collect();
    publish(broker, &publications).await;
    let mut consumer = consumer(broker, &RoleName::ORDER).await;
    let deliveries = take(&mut consumer, messages.len()).await;
    for (publication, delivery) in publications.iter().zip(&deliveries) {
        assert_eq!(publication.message, delivery.message);
        assert_eq!(publication.headers, delivery.headers);
    }
    settle(&mut consumer, &deliveries, Settlement::Ack).await;
    all_is_settled(adapter).await;
}

pub(crate) async fn an_addressed_message_arrives_at_its_addressee_alone(adapter: &dyn Adapter) {
    let broker = adapter.broker();
    let addressed = Publication {
        addressee: Some(RoleName::ACCOUNT),
        ..message("m1", "order.created")
    };
    publish(broker, &[addressed]).await;
    let mut account = consumer(broker, &RoleName::ACCOUNT).await;
    let delivery = take_one(&mut account).await;
    assert_eq!(delivery.message, "m1");
    settle(&mut account, &[delivery], Settlement::Ack).await;
    for role in [RoleName::INVENTORY, audit()] {
        let mut consumer = consumer(broker, &role).await;
        nothing_waits(broker, &role, &mut consumer).await;
    }
    all_is_settled(adapter).await;
}

pub(crate) async fn an_unknown_addressee_is_refused(adapter: &dyn Adapter) {
    let broker = adapter.broker();
    let addressed = Publication {
        addressee: Some(RoleName::new("nobody")),
        ..message("m1", "order.create")
    };
    let mut publisher = broker.publisher().await.unwrap();
    let receipts = publisher.publish(&[addressed]).await.unwrap();
    assert!(
        matches!(&receipts[..], [Receipt::Refused(why)] if why.contains("nobody")),
        "{receipts:?}"
    );
    all_is_settled(adapter).await;
}

pub(crate) async fn a_type_that_must_find_a_queue_is_refused_without_one(adapter: &dyn Adapter) {
    let broker = adapter.broker();
    let mut publisher = broker.publisher().await.unwrap();
    let unheard_of = message("m1", "order.upgrade");
    let receipts = publisher.publish(&[unheard_of]).await.unwrap();
    assert!(
        matches!(&receipts[..], [Receipt::Refused(why)] if why.contains("order.upgrade")),
        "{receipts:?}"
    );
    all_is_settled(adapter).await;
}

pub(crate) async fn a_notice_that_nobody_is_bound_to_is_confirmed(adapter: &dyn Adapter) {
    let broker = adapter.broker();
    publish(broker, &[message("m1", "order.paid")]).await;
    all_is_settled(adapter).await;
}

pub(crate) async fn a_refused_message_takes_no_neighbour_along(adapter: &dyn Adapter) {
    let broker = adapter.broker();
    let messages = [
        message("m1", "order.create"),
        message("m2", "order.upgrade"),
        message("m3", "order.paid"),
        message("m4", "order.cancel"),
    ];
    let mut publisher = broker.publisher().await.unwrap();
    let receipts = publisher.publish(&messages).await.unwrap();
    let confirmed: Vec<bool> = receipts.iter().map(|r| *r == Receipt::Confirmed).collect();
    assert_eq!(confirmed, [true, false, true, true]);
    let mut consumer = consumer(broker, &RoleName::ORDER).await;
    let deliveries = take(&mut consumer, 2).await;
    assert_eq!(texts(&deliveries), ["m1", "m4"]);
    settle(&mut consumer, &deliveries, Settlement::Ack).await;
    all_is_settled(adapter).await;
}

pub(crate) async fn publishing_nothing_yields_no_receipts(adapter: &dyn Adapter) {
    publish(adapter.broker(), &[]).await;
}

pub(crate) async fn messages_of_one_publisher_arrive_in_order(adapter: &dyn Adapter) {
    let broker = adapter.broker();
    let (messages, ids) = numbered(500);
    let mut publisher = broker.publisher().await.unwrap();
    for chunk in messages.chunks(7) {
        publisher.publish(chunk).await.unwrap();
    }
    let mut consumer = consumer(broker, &RoleName::ORDER).await;
    let deliveries = take(&mut consumer, ids.len()).await;
    assert_eq!(texts(&deliveries), ids);
    settle(&mut consumer, &deliveries, Settlement::Ack).await;
    all_is_settled(adapter).await;
}

pub(crate) async fn a_message_of_a_mebibyte_arrives_whole(adapter: &dyn Adapter) {
    let broker = adapter.broker();
    let mut random = fastrand::Rng::with_seed(7);
    let big: Vec<u8> = std::iter::repeat_with(|| random.u8(..))
        .take(1 << 20)
        .collect();
    let big = Publication {
        message: big.into(),
        ..message("big", "order.create")
    };
    let mut messages = orders(["before", "after"]);
    messages.insert(1, big.clone());
    publish(broker, &messages).await;
    let mut consumer = consumer(broker, &RoleName::ORDER).await;
    let deliveries = take(&mut consumer, 3).await;
    assert_eq!(deliveries[0].message, "before");
    assert!(deliveries[1].message == big.message);
    assert_eq!(deliveries[2].message, "after");
    settle(&mut consumer, &deliveries, Settlement::Ack).await;
    all_is_settled(adapter).await;
}

pub(crate) async fn a_message_published_twice_arrives_twice(adapter: &dyn Adapter) {
    let broker = adapter.broker();
    publish(broker, &orders(["m1", "m1"])).await;
    publish(broker, &orders(["m1"])).await;
    let mut consumer = consumer(broker, &RoleName::ORDER).await;
    let deliveries = take(&mut consumer, 3).await;
    assert_eq!(texts(&deliveries), ["m1", "m1", "m1"]);
    settle(&mut consumer, &deliveries, Settlement::Ack).await;
    all_is_settled(adapter).await;
}
