//! What RabbitMQ refuses, loses and holds up.

use super::{SMALL_BATCHES, site};
use crate::day::Day;
use crate::servers::Servers;
use crate::site::{Site, until};
use rustix::process::Signal;
use serde_json::Value;
use std::time::Duration;

const CLAIMS: &str = "SELECT count(*) FROM idempotent_record";
const OUTBOX: &str = "SELECT count(*) FROM outbox";
const DEAD: &str = "SELECT count(*) FROM dead_letter";

/// RabbitMQ's own name of a queue of the site.
fn queue(site: &Site, role: &str) -> String {
    format!("{}.{role}", site.deployment().config.broker.prefix)
}

#[tokio::test]
async fn a_memory_alarm_holds_up_publishing_and_not_consuming() {
    let Some(servers) = Servers::turn().await else {
        return;
    };
    let port = fastrand::u16(33_000..40_000);
    let more = format!(
        "{SMALL_BATCHES}\nhealth.listen = \"127.0.0.1:{port}\"\nhealth.interval_seconds = 0.1"
    );
    let site = site(&servers, "postgres", &more).await;
    let day = Day::first(40);
    day.stock_up(&site).await;
    site.publish(&day.messages()).await;

    servers.rabbitmqctl(&["set_vm_memory_high_watermark", "absolute", "1"]);
    let mut serving = site.serve(&[], &[]);
    until("the outbox fills while publishing is blocked", async || {
        serving.is_alive();
        site.number(OUTBOX).await > 20
    })
    .await;
    until("health says so", async || {
        health(&site)["state"] == "degraded"
    })
    .await;
    let shown = health(&site);
    let dependencies = shown["dependencies"].as_array().unwrap();
    let blocked = dependencies.iter().find(|d| d["state"] == "blocked");
    assert!(blocked.is_some(), "{shown:#}");

    servers.rabbitmqctl(&["set_vm_memory_high_watermark", "0.4"]);
    serving.settles(&site).await;
    until("health is well again", async || {
        health(&site)["state"] == "ready"
    })
    .await;
    serving.stops(Signal::TERM).await;
    site.serve_to_the_end().await;
    day.happened_once(&site).await;
}

fn health(site: &Site) -> Value {
    let output = site.run(&["--report", "json", "health", "--running"]);
    serde_json::from_slice(&output.stdout).unwrap_or_default()
}

#[tokio::test]
async fn an_event_that_finds_no_queue_waits_in_the_outbox() {
    let Some(servers) = Servers::turn().await else {
        return;
    };
    let site = site(&servers, "postgres", "").await;
    let day = Day::first(20);
    day.stock_up(&site).await;
    let others = ["order", "payment", "account", "relay"].map(|role| ["--role", role]);
    let mut serving = site.serve(&others.concat(), &[]);
    serving.says("started").await;
    servers.rabbitmqctl(&["delete_queue", &queue(&site, "inventory")]);
    let messages = day.messages().into_iter();
    let of_orders = messages.filter(|message| message.event_type != "stock.adjust");
    site.publish(&of_orders.collect::<Vec<_>>()).await;
    const RETURNED: &str = "
        SELECT count(*) FROM outbox WHERE event_type = 'order.created' AND failures > 0";
    until("the events come back", async || {
        serving.is_alive();
        site.number(RETURNED).await > 0
    })
    .await;
    const SAID: &str = "SELECT last_error FROM outbox WHERE failures > 0";
    let said: Vec<(String,)> = site.rows(SAID).await;
    assert!(said[0].0.contains("order.created"), "{said:?}");

    let migrated = site.run(&["migrate"]);
    assert!(migrated.status.success(), "{migrated:?}");
    site.publish(&day.messages()).await;
    serving.stops(Signal::TERM).await;
    site.serve_to_the_end().await;
    day.happened_once(&site).await;
}

#[tokio::test]
async fn a_queue_that_is_deleted_under_its_consumer_is_waited_for() {
    let Some(servers) = Servers::turn().await else {
        return;
    };
    let site = site(&servers, "postgres", SMALL_BATCHES).await;
    let day = Day::first(30);
    day.stock_up(&site).await;
    let mut serving = site.serve(&[], &[]);
    serving.says("started").await;
    servers.rabbitmqctl(&["delete_queue", &queue(&site, "order")]);
    serving.says("orderonce migrate").await;
    let migrated = site.run(&["migrate"]);
    assert!(migrated.status.success(), "{migrated:?}");
    site.publish(&day.messages()).await;
    serving.settles(&site).await;
    serving.stops(Signal::TERM).await;
    site.serve_to_the_end().await;
    day.happened_once(&site).await;
}

#[tokio::test]
async fn rabbitmq_down_for_minutes_costs_no_attempt_and_everything_is_sent_after() {
    const AWAY: Duration = Duration::from_secs(130);
    let Some(servers) = Servers::turn().await else {
        return;
    };
    let site = site(&servers, "postgres", "order.pay_timeout_seconds = 1").await;
    // Orders that nobody pays: the janitor closes them while RabbitMQ is away.
    let day = Day::first(30);
    day.stock_up(&site).await;
    let unpaid = day.messages().into_iter();
    let unpaid: Vec<_> = unpaid.filter(|m| m.event_type == "order.create").collect();
    site.publish(&unpaid).await;
    let orders = i64::try_from(unpaid.len()).unwrap();
    let mut order = site.serve(&["--role", "order", "--no-relay", "--no-janitor"], &[]);
    until("all orders are there", async || {
        order.is_alive();
        site.number("SELECT count(*) FROM orders").await >= orders
    })
    .await;
    order.stops(Signal::TERM).await;

    let mut serving = site.serve(&[], &[]);
    serving.says("started").await;
    servers.stop("rabbitmq");
    until("the janitor has closed the orders", async || {
        serving.is_alive();
        const OPEN: &str = "SELECT count(*) FROM orders WHERE status = 'WAIT_PAY'";
        site.number(OPEN).await == 0
    })
    .await;
    tokio::time::sleep(AWAY).await;
    serving.is_alive();
    assert!(site.number(OUTBOX).await >= orders);
    assert_eq!(
        site.number("SELECT count(*) FROM outbox WHERE failures > 0")
            .await,
        0
    );

    servers.start("rabbitmq");
    serving.settles(&site).await;
    serving.stops(Signal::TERM).await;
    site.serve_to_the_end().await;
    site.reconciles();
    assert_eq!(site.number(DEAD).await, 0);
    const RELEASED: &str = "SELECT count(*) FROM reservation WHERE status = 'RELEASED'";
    let of_goods = site.number("SELECT count(*) FROM reservation").await;
    assert_eq!(site.number(RELEASED).await, of_goods);
    assert!(site.number(CLAIMS).await > 2 * orders);
}
