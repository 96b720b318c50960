//! The embedded queue: the suite, and what only a queue with leases does.

use super::{
    Adapter, DELIVERY_LIMIT, audit, broker_suite, cancelled_after, consumer, in_time, message,
    nothing_is_left, nothing_waits, numbered, orders, publish, settle, settled_queue, take,
    take_one, text, texts, topology,
};
use async_trait::async_trait;
use bytes::Bytes;
use orderonce::broker::embedded::{Embedded, Options};
use orderonce::broker::{Broker, Consumer, Depth, Publication, Receipt, Settlement};
use orderonce::domain::RoleName;
use orderonce::store::sqlite::{self, Database};
use sqlx::Connection;
use sqlx::sqlite::{SqliteConnectOptions, SqliteConnection};
use std::time::Duration;
use tempfile::TempDir;

broker_suite!(fresh);

/// Longer than any test, so that no lease ends and no poll helps unless the test says so.
const HOUR: Duration = Duration::from_secs(3600);

struct EmbeddedAdapter {
    directory: TempDir,
    database: Database,
    broker: Embedded,
}

#[async_trait]
impl Adapter for EmbeddedAdapter {
    fn broker(&self) -> &dyn Broker {
        &self.broker
    }

    async fn advance(&self, by: Duration) {
        self.database.advance(by);
    }

    /// A killed process says nothing: only the end of its leases frees what it held.
    async fn kill(&self, consumer: Box<dyn Consumer>) {
        std::mem::forget(consumer);
        self.database.advance(HOUR);
    }

    async fn take_deliveries_away(&self) {
        self.database.advance(HOUR);
    }
}

impl EmbeddedAdapter {
    fn file(&self) -> sqlite::Options {
        file(&self.directory)
    }

    /// Another process's view of the same queues.
    async fn another_process(&self, options: Options) -> Embedded {
        let database = Database::open(&self.file()).await.unwrap();
        Embedded::new(database, topology(), options)
    }
}

fn options() -> Options {
    Options {
        lease: HOUR,
        delivery_limit: DELIVERY_LIMIT,
        ..Options::default()
    }
}

fn file(directory: &TempDir) -> sqlite::Options {
    sqlite::Options {
        path: directory.path().join("queue.db"),
        busy_timeout: Duration::from_secs(30),
        readers: 2,
    }
}

async fn fresh() -> EmbeddedAdapter {
    with(options()).await
}

async fn with(options: Options) -> EmbeddedAdapter {
    let directory = tempfile::tempdir().unwrap();
    let (database, _) = Database::migrate(&file(&directory)).await.unwrap();
    EmbeddedAdapter {
        broker: Embedded::new(database.clone(), topology(), options),
        database,
        directory,
    }
}

async fn order_depth(broker: &dyn Broker) -> Depth {
    broker.depth(&RoleName::ORDER).await.unwrap()
}

#[tokio::test]
async fn a_delivery_is_not_delivered_again_before_its_lease_ends() {
    let adapter = fresh().await;
    let broker = adapter.broker();
    publish(broker, &orders(["m1"])).await;
    let mut slow = consumer(broker, &RoleName::ORDER).await;
    take_one(&mut slow).await;
    let mut quick = consumer(broker, &RoleName::ORDER).await;
    adapter.advance(HOUR - Duration::from_secs(100)).await;
    assert!(quick.try_receive(1).await.unwrap().is_empty());
    assert_eq!(order_depth(broker).await.unsettled, Some(1));
    adapter.advance(Duration::from_secs(100)).await;
    assert_eq!(order_depth(broker).await.ready, 1);
    let deliveries = quick.try_receive(1).await.unwrap();
    assert_eq!(deliveries[0].deliveries, 2);
}

#[tokio::test]
async fn a_delivery_whose_lease_is_over_can_be_settled_until_somebody_else_has_it() {
    let adapter = fresh().await;
    let broker = adapter.broker();
    publish(broker, &orders(["m1"])).await;
    let mut slow = consumer(broker, &RoleName::ORDER).await;
    let delivery = take_one(&mut slow).await;
    adapter.advance(2 * HOUR).await;
    settle(&mut slow, &[delivery], Settlement::Ack).await;
    nothing_is_left(broker).await;
}

#[tokio::test]
async fn a_delivery_whose_lease_is_over_makes_room_in_the_prefetch() {
    let adapter = fresh().await;
    let broker = adapter.broker();
    publish(broker, &orders(["m1", "m2"])).await;
    let mut consumer = broker.consumer(&RoleName::ORDER, 1).await.unwrap();
    assert_eq!(text(&take_one(&mut consumer).await), "m1");
    assert!(consumer.try_receive(1).await.unwrap().is_empty());
    adapter.advance(HOUR).await;
    assert_eq!(text(&take_one(&mut consumer).await), "m2");
}

#[tokio::test]
async fn a_delivery_settled_by_another_queue_is_stale() {
    let adapter = fresh().await;
    let broker = adapter.broker();
    publish(broker, &orders(["m1"])).await;
    let mut order = consumer(broker, &RoleName::ORDER).await;
    let delivery = take_one(&mut order).await;
    let mut other = consumer(broker, &audit()).await;
    let stale = other.settle(&[(delivery.tag, Settlement::Ack)]).await;
    assert_eq!(stale, Ok(1));
    settle(&mut order, &[delivery], Settlement::Ack).await;
}

#[tokio::test]
async fn a_delivery_settled_twice_in_one_call_counts_once() {
    let adapter = fresh().await;
    let broker = adapter.broker();
    publish(broker, &orders(["m1"])).await;
    let mut consumer = consumer(broker, &RoleName::ORDER).await;
    let tag = take_one(&mut consumer).await.tag;
    let twice = [(tag, Settlement::Release), (tag, Settlement::Ack)];
    assert_eq!(consumer.settle(&twice).await, Ok(1));
    nothing_is_left(broker).await;
}

#[tokio::test]
async fn a_dropped_consumer_counts_towards_the_delivery_limit_and_a_closed_one_does_not() {
    let adapter = fresh().await;
    let broker = adapter.broker();
    publish(broker, &orders(["m1"])).await;
    for _ in 0..2 * DELIVERY_LIMIT {
        let mut closed = consumer(broker, &RoleName::ORDER).await;
        take_one(&mut closed).await;
        closed.close().await.unwrap();
    }
    for _ in 0..DELIVERY_LIMIT {
        let mut dropped = consumer(broker, &RoleName::ORDER).await;
        in_time(take_one(&mut dropped)).await;
    }
    let crashed = async {
        loop {
            let crashed = broker.crashed(&RoleName::ORDER, 1).await.unwrap();
            if !crashed.is_empty() {
                return crashed;
            }
            tokio::task::yield_now().await;
        }
    };
    assert_eq!(texts(&in_time(crashed).await), ["m1"]);
    assert_eq!(order_depth(broker).await.crashed, 1);
}

#[tokio::test]
async fn a_delivery_that_was_never_handed_out_does_not_count_towards_the_delivery_limit() {
    let adapter = fresh().await;
    let broker = adapter.broker();
    let mut consumer = consumer(broker, &RoleName::ORDER).await;
    publish(broker, &orders(["m1"])).await;
    for _ in 0..2 * DELIVERY_LIMIT {
        in_time(async {
            // Until a receive was cancelled after its lease had begun.
            while order_depth(broker).await.unsettled == Some(0) {
                let receive = consumer.receive(1);
                if let Some(received) = cancelled_after(fastrand::u32(1..5), receive).await {
                    settle(&mut consumer, &received.unwrap(), Settlement::Release).await;
                }
            }
        })
        .await;
        adapter.advance(HOUR).await;
    }
    let delivery = in_time(take_one(&mut consumer)).await;
    assert!(delivery.deliveries > DELIVERY_LIMIT, "{delivery:?}");
    settle(&mut consumer, &[delivery], Settlement::Ack).await;
    nothing_is_left(broker).await;
}

#[tokio::test]
async fn an_empty_message_arrives_empty() {
    let adapter = fresh().await;
    let broker = adapter.broker();
    let empty = Publication {
        message: Bytes::new(),
        ..message("m1", "order.create")
    };
    publish(broker, &[empty]).await;
    let mut consumer = consumer(broker, &RoleName::ORDER).await;
    let delivery = take_one(&mut consumer).await;
    assert_eq!(delivery.message, "");
}

#[tokio::test]
async fn what_a_late_consumer_settled_is_not_forgotten_as_crashed() {
    let adapter = fresh().await;
    let broker = adapter.broker();
    publish(broker, &orders(["slow"])).await;
    let mut late = consumer(broker, &RoleName::ORDER).await;
    let mut last = None;
    for _ in 0..DELIVERY_LIMIT {
        last = Some(take_one(&mut late).await);
        adapter.advance(HOUR).await;
    }
    let crashed = broker.crashed(&RoleName::ORDER, 1).await.unwrap();
    let retry = Settlement::Retry(Duration::ZERO);
    settle(&mut late, &[last.unwrap()], retry).await;
    let tags = [crashed[0].tag];
    broker
        .forget_crashed(&RoleName::ORDER, &tags)
        .await
        .unwrap();
    let again = take_one(&mut late).await;
    assert_eq!((text(&again).as_str(), again.attempt), ("slow", 1));
}

#[tokio::test]
async fn acknowledged_messages_are_kept_if_asked_for() {
    let adapter = with(Options {
        keep_acked: true,
        ..options()
    })
    .await;
    let broker = adapter.broker();
    let odd = Publication {
        message: Bytes::from_static(b"\0\xff"),
        ..message("m\0 '\"😀", "order.created")
    };
    publish(broker, &[odd, message("m2", "order.create")]).await;
    let mut inventory = consumer(broker, &RoleName::INVENTORY).await;
    let delivery = take_one(&mut inventory).await;
    settle(&mut inventory, &[delivery], Settlement::Release).await;
    let delivery = take_one(&mut inventory).await;
    settle(
        &mut inventory,
        std::slice::from_ref(&delivery),
        Settlement::Ack,
    )
    .await;
    let again = inventory
        .settle(&[(delivery.tag, Settlement::Release)])
        .await;
    assert_eq!(again, Ok(1));
    nothing_waits(broker, &RoleName::INVENTORY, &mut inventory).await;

    let kept = adapter.broker.kept().await.unwrap();
    let row = |k: &orderonce::broker::embedded::Kept| {
        let (queue, id) = (k.queue.as_str().to_owned(), k.message_id.clone());
        (queue, id, k.message.to_vec(), k.deliveries, k.acked)
    };
    let rows: Vec<_> = kept.iter().map(row).collect();
    let expected = [
        ("audit", "m\0 '\"😀", &b"\0\xff"[..], 0, false),
        ("inventory", "m\0 '\"😀", b"\0\xff", 2, true),
        ("order", "m2", b"m2", 0, false),
        ("inventory", "marker", b"marker", 1, true),
    ];
    let expected = expected.map(|(queue, id, message, deliveries, acked)| {
        (
            queue.to_owned(),
            id.to_owned(),
            message.to_vec(),
            deliveries,
            acked,
        )
    });
    assert_eq!(rows, expected);
    let depth = broker.depth(&RoleName::INVENTORY).await.unwrap();
    assert_eq!(depth, settled_queue());
}

#[tokio::test]
async fn a_crashed_message_is_kept_if_asked_for_and_is_forgotten_all_the_same() {
    let adapter = with(Options {
        keep_acked: true,
        delivery_limit: 1,
        ..options()
    })
    .await;
    let broker = adapter.broker();
    publish(broker, &orders(["killer"])).await;
    let mut killed = consumer(broker, &RoleName::ORDER).await;
    take_one(&mut killed).await;
    adapter.kill(killed).await;
    let crashed = broker.crashed(&RoleName::ORDER, 1).await.unwrap();
    let tags = [crashed[0].tag];
    broker
        .forget_crashed(&RoleName::ORDER, &tags)
        .await
        .unwrap();
    assert!(
        broker
            .crashed(&RoleName::ORDER, 1)
            .await
            .unwrap()
            .is_empty()
    );
    assert_eq!(order_depth(broker).await, settled_queue());
    let kept = adapter.broker.kept().await.unwrap();
    assert!(kept[0].acked);
}

#[tokio::test]
async fn a_waiting_consumer_is_woken_by_what_its_own_process_does() {
    let adapter = with(Options {
        poll: HOUR,
        ..options()
    })
    .await;
    let broker = adapter.broker();
    let mut waiting = consumer(broker, &RoleName::ORDER).await;
    let mut other = consumer(broker, &RoleName::ORDER).await;
    in_time(async {
        let messages = orders(["m1"]);
        let (received, ()) = tokio::join!(waiting.receive(1), publish(broker, &messages));
        let delivery = received.unwrap();
        let released = async { settle(&mut waiting, &delivery, Settlement::Release).await };
        let (received, ()) = tokio::join!(other.receive(1), released);
        assert_eq!(texts(&received.unwrap()), ["m1"]);
        let closed = async { other.close().await.unwrap() };
        let (received, ()) = tokio::join!(waiting.receive(1), closed);
        assert_eq!(texts(&received.unwrap()), ["m1"]);
        let mut third = consumer(broker, &RoleName::ORDER).await;
        let dropped = async { drop(waiting) };
        let (received, ()) = tokio::join!(third.receive(1), dropped);
        assert_eq!(texts(&received.unwrap()), ["m1"]);
    })
    .await;
}

#[tokio::test]
async fn a_waiting_consumer_receives_a_retry_as_soon_as_it_is_due() {
    let adapter = with(Options {
        poll: HOUR,
        ..options()
    })
    .await;
    let broker = adapter.broker();
    publish(broker, &orders(["m1"])).await;
    let mut consumer = consumer(broker, &RoleName::ORDER).await;
    let failed = take_one(&mut consumer).await;
    let soon = Settlement::Retry(Duration::from_millis(20));
    settle(&mut consumer, &[failed], soon).await;
    let again = in_time(take_one(&mut consumer)).await;
    assert_eq!(again.attempt, 1);
}

#[tokio::test]
async fn processes_share_a_file() {
    let adapter = fresh().await;
    let ours = adapter.broker();
    let theirs = adapter.another_process(options()).await;
    let mut our_consumer = consumer(ours, &RoleName::ORDER).await;
    let messages = orders(["m1"]);
    let (received, ()) = tokio::join!(our_consumer.receive(1), publish(&theirs, &messages));
    assert_eq!(texts(&received.unwrap()), ["m1"]);
    let mut their_consumer = consumer(&theirs, &RoleName::ORDER).await;
    assert!(their_consumer.try_receive(1).await.unwrap().is_empty());
    our_consumer.close().await.unwrap();
    let delivery = take_one(&mut their_consumer).await;
    settle(&mut their_consumer, &[delivery], Settlement::Ack).await;
    nothing_is_left(ours).await;
}

#[tokio::test]
async fn an_idle_consumer_leaves_the_write_lock_to_others() {
    let adapter = fresh().await;
    let broker = adapter.broker();
    let mut consumer = consumer(broker, &RoleName::ORDER).await;
    let options = SqliteConnectOptions::new().filename(adapter.file().path);
    let mut writer = SqliteConnection::connect_with(&options).await.unwrap();
    let tx = writer.begin_with("BEGIN IMMEDIATE").await.unwrap();
    let look = tokio::time::timeout(Duration::from_secs(10), consumer.try_receive(1));
    assert!(look.await.unwrap().unwrap().is_empty());
    tx.rollback().await.unwrap();
}

#[tokio::test]
async fn messages_survive_closing_the_file() {
    let adapter = fresh().await;
    let (messages, ids) = numbered(10);
    publish(adapter.broker(), &messages).await;
    let mut consumer = consumer(adapter.broker(), &RoleName::ORDER).await;
    let held = take(&mut consumer, 5).await;
    settle(&mut consumer, &held[..2], Settlement::Ack).await;
    consumer.close().await.unwrap();
    adapter.database.close().await;
    let reopened = adapter.another_process(options()).await;
    let mut consumer = reopened.consumer(&RoleName::ORDER, 100).await.unwrap();
    let mut seen = texts(&take(&mut consumer, 8).await);
    seen.sort_unstable();
    assert_eq!(seen, ids[2..]);
}

#[tokio::test]
async fn a_closed_file_is_an_unavailable_broker() {
    let adapter = fresh().await;
    let broker = adapter.broker();
    let mut consumer = consumer(broker, &RoleName::ORDER).await;
    let mut publisher = broker.publisher().await.unwrap();
    adapter.database.close().await;
    let unavailable =
        |error: orderonce::broker::Error| matches!(error, orderonce::broker::Error::Unavailable(_));
    assert!(unavailable(consumer.receive(1).await.unwrap_err()));
    assert!(unavailable(consumer.try_receive(1).await.unwrap_err()));
    let publication = orders(["m1"]);
    assert!(unavailable(
        publisher.publish(&publication).await.unwrap_err()
    ));
    assert!(unavailable(
        broker.depth(&RoleName::ORDER).await.unwrap_err()
    ));
}

#[tokio::test]
async fn a_large_batch_of_large_messages_arrives_whole_and_in_order() {
    let adapter = fresh().await;
    let broker = adapter.broker();
    let large = |n: u8| Publication {
        message: vec![n; 3 << 20].into(),
        ..message(&n.to_string(), "order.created")
    };
    let messages: Vec<Publication> = (0..13).map(large).collect();
    publish(broker, &messages).await;
    for role in [RoleName::INVENTORY, audit()] {
        let mut consumer = consumer(broker, &role).await;
        let deliveries = take(&mut consumer, messages.len()).await;
        for (publication, delivery) in messages.iter().zip(&deliveries) {
            assert!(
                publication.message == delivery.message,
                "{}",
                publication.message_id
            );
        }
        settle(&mut consumer, &deliveries, Settlement::Ack).await;
    }
    nothing_is_left(broker).await;
}

#[tokio::test]
async fn a_message_that_is_too_long_is_refused() {
    let adapter = fresh().await;
    let mut publisher = adapter.broker().publisher().await.unwrap();
    let too_long = Publication {
        message: vec![0; (128 << 20) + 1].into(),
        ..message("m1", "order.create")
    };
    let receipts = publisher.publish(&[too_long]).await.unwrap();
    assert!(
        matches!(&receipts[..], [Receipt::Refused(why)] if why.contains("134217729 bytes")),
        "{receipts:?}"
    );
}

#[tokio::test]
async fn a_killer_takes_no_neighbour_along_to_the_delivery_limit() {
    let adapter = fresh().await;
    let broker = adapter.broker();
    publish(broker, &orders(["m1", "m2", "killer", "m3", "m4"])).await;
    let mut survivors = Vec::new();
    let mut deaths = 0;
    while deaths < DELIVERY_LIMIT {
        let mut consumer = consumer(broker, &RoleName::ORDER).await;
        loop {
            let deliveries = consumer.receive(10).await.unwrap();
            let ids = texts(&deliveries);
            if ids.contains(&"killer".to_owned()) {
                break;
            }
            settle(&mut consumer, &deliveries, Settlement::Ack).await;
            survivors.extend(ids);
        }
        adapter.kill(consumer).await;
        deaths += 1;
    }
    let mut consumer = consumer(broker, &RoleName::ORDER).await;
    survivors.extend(texts(&consumer.try_receive(10).await.unwrap()));
    survivors.extend(texts(&consumer.try_receive(10).await.unwrap()));
    survivors.sort_unstable();
    assert_eq!(survivors, ["m1", "m2", "m3", "m4"]);
    let crashed = broker.crashed(&RoleName::ORDER, 10).await.unwrap();
    assert_eq!(texts(&crashed), ["killer"]);
}

#[tokio::test]
async fn the_lease_of_a_suspect_ends_early_but_not_before_half_of_it() {
    let adapter = fresh().await;
    let broker = adapter.broker();
    publish(broker, &orders(["m1"])).await;
    for _ in 1..DELIVERY_LIMIT {
        let mut killed = consumer(broker, &RoleName::ORDER).await;
        take_one(&mut killed).await;
        adapter.kill(killed).await;
    }
    let mut slow = consumer(broker, &RoleName::ORDER).await;
    take_one(&mut slow).await;
    adapter.advance(HOUR / 2 - Duration::from_secs(100)).await;
    let crashed = broker.crashed(&RoleName::ORDER, 10).await.unwrap();
    assert!(crashed.is_empty(), "{crashed:?}");
    adapter.advance(HOUR / 2 + Duration::from_secs(100)).await;
    let crashed = broker.crashed(&RoleName::ORDER, 10).await.unwrap();
    assert_eq!(texts(&crashed), ["m1"]);
}
