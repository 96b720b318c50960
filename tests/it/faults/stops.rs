//! Orderly stops.

use super::competing::message;
use super::site;
use crate::day::Day;
use crate::servers::Servers;
use crate::site::until;
use orderonce::broker::Settlement;
use orderonce::domain::RoleName;
use orderonce::testkit::sql::Reader;
use rustix::process::Signal;
use serde_json::json;

#[tokio::test]
async fn a_stop_finishes_the_batch_in_hand_and_leaves_no_delivery_behind() {
    let Some(servers) = Servers::turn().await else {
        return;
    };
    let site = site(&servers, "postgres", "batch.max = 4").await;
    let day = Day::of_year(200);
    day.stock_up(&site).await;
    site.publish(&day.messages()).await;
    let mut serving = site.serve(&[], &[]);
    until("it is in the middle of its work", async || {
        site.number("SELECT count(*) FROM idempotent_record WHERE role <> 'inventory'")
            .await
            > 20
    })
    .await;
    serving.stops(Signal::TERM).await;
    assert!(site.queued().await > 0, "it was not stopped in the middle");

    // What it had received and not handled is in the queues again, with no attempt counted.
    for role in &RoleName::BUILT_IN {
        let ready = site.broker().depth(role).await.unwrap().ready;
        if ready == 0 {
            continue;
        }
        let mut consumer = site.broker().consumer(role, 100).await.unwrap();
        let deliveries = consumer.receive(100).await.unwrap();
        for delivery in &deliveries {
            assert_eq!(delivery.attempt, 0, "{delivery:?}");
        }
        let released = deliveries.iter().map(|d| (d.tag, Settlement::Release));
        consumer
            .settle(&released.collect::<Vec<_>>())
            .await
            .unwrap();
        consumer.close().await.unwrap();
    }
    site.serve_to_the_end().await;
    day.happened_once(&site).await;
}

/// What is to be tried again is published again, which a blocked connection would hold up for ever.
#[tokio::test]
async fn a_stop_does_not_wait_for_a_broker_that_takes_no_messages() {
    let Some(servers) = Servers::turn().await else {
        return;
    };
    let more = "store.busy_timeout_seconds = 0.05\nshutdown.deadline_seconds = 1";
    let site = site(&servers, "postgres", more).await;
    let stock = json!({"adjustment_id": "count", "sku_id": "S1", "set": 5, "version": 0});
    site.publish(&[message("set", "stock.adjust", "S1", &stock)])
        .await;
    site.serve_to_the_end().await;
    let more = json!({"adjustment_id": "found", "sku_id": "S1", "change": 1});
    site.publish(&[message("more", "stock.adjust", "S1", &more)])
        .await;

    let mut stranger = Reader::open(site.tables()).await.unwrap();
    stranger.execute("BEGIN; LOCK TABLE stock").await.unwrap();
    servers.rabbitmqctl(&["set_vm_memory_high_watermark", "absolute", "1"]);
    let mut serving = site.serve(&[], &[]);
    serving.says("\"retried\"").await;
    serving.stops(Signal::TERM).await;
    assert!(serving.log().contains("they come again"));

    servers.rabbitmqctl(&["set_vm_memory_high_watermark", "0.4"]);
    stranger.execute("ROLLBACK").await.unwrap();
    site.serve_to_the_end().await;
    site.reconciles();
    assert_eq!(site.number("SELECT available FROM stock").await, 6);
}
