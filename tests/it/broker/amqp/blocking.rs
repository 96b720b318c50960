//! A server that is short of memory.

use super::fixture::fresh_at;
use crate::broker::{
    Adapter, all_is_settled, consumer, in_time, numbered, orders, publish, settle, take,
};
use crate::servers::Servers;
use orderonce::broker::{Error, Receipt, Settlement, State};
use orderonce::domain::RoleName;
use std::time::Duration;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn while_the_server_takes_no_messages_consuming_goes_on_and_publishing_waits() {
    let Some(servers) = Servers::turn().await else {
        return;
    };
    let url = servers.start("rabbitmq");
    let adapter = fresh_at(&url, |options| {
        options.confirm_timeout = Duration::from_secs(2)
    })
    .await;
    let broker = adapter.broker();
    let (messages, ids) = numbered(20);
    publish(broker, &messages).await;
    let mut consumer = consumer(broker, &RoleName::ORDER).await;
    let first = take(&mut consumer, 10).await;
    let mut publisher = broker.publisher().await.unwrap();

    servers.rabbitmqctl(&["set_vm_memory_high_watermark", "0.00001"]);
    for _ in 0..2 {
        let blocked = publisher.publish(&orders(["late"])).await.unwrap_err();
        assert!(
            matches!(&blocked, Error::Unavailable(why) if why.contains("takes no messages")),
            "{blocked:?}"
        );
    }
    let connections = broker.connections();
    assert_eq!(connections[0].state, State::Up);
    assert!(
        matches!(&connections[1].state, State::Blocked(why) if why.contains("memory")),
        "{connections:?}"
    );
    settle(&mut consumer, &first, Settlement::Ack).await;
    let rest = take(&mut consumer, 10).await;
    settle(&mut consumer, &rest[1..], Settlement::Ack).await;
    assert_eq!([&first[..], &rest[..]].concat().len(), ids.len(),);

    // A retry is published too, and outlasts the timeout.
    let retry = [(rest[0].tag, Settlement::Retry(Duration::ZERO))];
    let retried = async { consumer.settle(&retry).await };
    let relieved = async {
        tokio::time::sleep(Duration::from_secs(3)).await;
        tokio::task::block_in_place(|| {
            servers.rabbitmqctl(&["set_vm_memory_high_watermark", "0.4"]);
        });
    };
    let (retried, ()) = in_time(async { tokio::join!(retried, relieved) }).await;
    assert_eq!(retried, Ok(0));
    let receipts = in_time(async {
        loop {
            if let Ok(receipts) = publisher.publish(&orders(["after"])).await {
                return receipts;
            }
        }
    })
    .await;
    assert_eq!(receipts, [Receipt::Confirmed]);
    assert_eq!(broker.connections()[1].state, State::Up);
    let mut after = 0;
    while after < 1 {
        let deliveries = in_time(consumer.receive(10)).await.unwrap();
        after += deliveries
            .iter()
            .filter(|delivery| delivery.message == "after")
            .count();
        settle(&mut consumer, &deliveries, Settlement::Ack).await;
    }
    all_is_settled(&adapter).await;
}
