//! Orderly stops.

use super::site;
use crate::day::Day;
use crate::servers::Servers;
use crate::site::until;
use orderonce::broker::Settlement;
use orderonce::domain::RoleName;
use rustix::process::Signal;

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
