//! Several processes on the same queues and the same rows.

use super::{DATABASES, site};
use crate::day::Day;
use crate::servers::Servers;
use crate::site::until;
use orderonce::broker::{Headers, Publication};
use rustix::process::Signal;
use serde_json::json;

#[tokio::test]
async fn two_then_four_processes_share_the_work() {
    let Some(servers) = Servers::turn().await else {
        return;
    };
    for database in DATABASES {
        let site = site(&servers, database, "batch.max = 16\nbatch.workers = 2").await;
        let day = Day::of_year(600);
        day.stock_up(&site).await;
        let mut rng = fastrand::Rng::with_seed(19);
        for (processes, part) in [2, 4].into_iter().zip(day.parts(2, &mut rng)) {
            let serving = (0..processes).map(|_| site.serve(&[], &[]));
            let mut serving: Vec<_> = serving.collect();
            for process in &mut serving {
                process.says("started").await;
            }
            site.publish(&part).await;
            for process in &mut serving {
                process.settles(&site).await;
            }
            for process in &mut serving {
                process.stops(Signal::TERM).await;
            }
        }
        site.serve_to_the_end().await;
        day.happened_once(&site).await;
    }
}

/// More orders for one SKU than there are units: as many are served as there are units, whoever gets
/// which.
#[tokio::test]
async fn a_hot_sku_is_sold_to_the_last_unit_and_no_further() {
    const UNITS: i64 = 900;
    const ORDERS: i64 = 1_200;
    let Some(servers) = Servers::turn().await else {
        return;
    };
    for database in DATABASES {
        let site = site(&servers, database, "batch.max = 32\nbatch.workers = 2").await;
        let stock = json!({"adjustment_id": "count", "sku_id": "HOT", "set": UNITS, "version": 0});
        site.publish(&[message("stock", "stock.adjust", "HOT", &stock)])
            .await;
        let mut serving: Vec<_> = (0..4).map(|_| site.serve(&[], &[])).collect();
        until("the stock is there", async || {
            site.number("SELECT count(*) FROM stock").await == 1
        })
        .await;
        let mut orders: Vec<_> = (0..ORDERS).map(order).collect();
        let again: Vec<_> = orders.iter().step_by(3).cloned().collect();
        orders.extend(again);
        fastrand::Rng::with_seed(23).shuffle(&mut orders);
        site.publish(&orders).await;
        for process in &mut serving {
            process.settles(&site).await;
        }
        for process in &mut serving {
            process.stops(Signal::TERM).await;
        }
        site.serve_to_the_end().await;
        site.reconciles();
        let reservations: Vec<(String, i64)> = site
            .rows("SELECT status, count(*) FROM reservation GROUP BY status ORDER BY status")
            .await;
        let expected = [("DEDUCTED", UNITS), ("REJECTED", ORDERS - UNITS)];
        assert_eq!(reservations, expected.map(|(s, n)| (s.to_owned(), n)));
        assert_eq!(site.number("SELECT available FROM stock").await, 0);
        let closed = "SELECT count(*) FROM orders WHERE status = 'CLOSED'";
        assert_eq!(site.number(closed).await, ORDERS - UNITS);
        assert_eq!(site.number("SELECT count(*) FROM dead_letter").await, 0);
    }
}

fn order(number: i64) -> Publication {
    let id = format!("H{number}");
    let lines = json!([{"sku_id": "HOT", "qty": 1, "unit_price_minor": 100}]);
    let data = json!({
        "order_id": id, "user_id": "U1", "currency": "GBP", "total_minor": 100, "lines": lines
    });
    message(&format!("create-{id}"), "order.create", &id, &data)
}

pub(super) fn message(
    id: &str,
    event_type: &str,
    subject: &str,
    data: &serde_json::Value,
) -> Publication {
    let envelope = json!({
        "specversion": "1.0", "id": id, "source": "shop", "type": event_type,
        "subject": subject, "data": data
    });
    Publication {
        message_id: id.to_owned(),
        event_type: event_type.to_owned(),
        addressee: None,
        message: envelope.to_string().into(),
        headers: Headers::new(),
    }
}
