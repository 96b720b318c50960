//! Deliveries a second through the inventory role on RabbitMQ (quorum queue) and a database server,
//! everything on one machine: in batches, and one by one with 32 in parallel, which is the usual
//! design. The two take turns in one run; their ratio means more than either figure.
//!
//! Needs `ORDERONCE_TEST_AMQP_URL` and `ORDERONCE_TEST_POSTGRES_URL` or `ORDERONCE_TEST_MARIADB_URL`
//! (`tests/servers start DIR` starts such servers and names them in `DIR/env`), and makes a database
//! and queues of its own there. A delivery is an order of one line of a real shop's day: one claim, one
//! flow, one reservation, one row of the outbox, and a share in the stock rows of its batch. Timed is
//! from the start of the workers, with all messages waiting, to the settlement of the last one.

#![expect(
    clippy::expect_used,
    clippy::print_stdout,
    clippy::cast_precision_loss,
    reason = "a benchmark that cannot be set up has nothing to measure, and prints what it measured"
)]

use async_trait::async_trait;
use orderonce::broker::{Headers, Publication, Topology};
use orderonce::config::Config;
use orderonce::domain::event::{
    Adjustment, Event, InventoryEvent, OrderCreated, OrderEvent, StockAdjust, StockLine,
};
use orderonce::domain::{AdjustmentId, Key, OrderId, RoleName, SkuId, Timestamp};
use orderonce::gate::{Gate, Known, Told};
use orderonce::message::{self, Meta, Outgoing};
use orderonce::ops::demo::FIRST_DAY;
use orderonce::ops::deployment::Deployment;
use orderonce::ops::online_retail::{Import, Options as ImportOptions};
use orderonce::worker::inventory::InventoryRole;
use orderonce::worker::{Processor, supervisor};
use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

/// How deliveries are handled.
struct Way {
    name: &'static str,
    batch_max: usize,
    workers: usize,
    relay: bool,
    deliveries: usize,
}

const WAYS: [Way; 4] = [
    Way {
        name: "batches of up to 512, 1 worker",
        batch_max: 512,
        workers: 1,
        relay: false,
        deliveries: 60_000,
    },
    Way {
        name: "batches of up to 512, 2 workers",
        batch_max: 512,
        workers: 2,
        relay: false,
        deliveries: 60_000,
    },
    Way {
        name: "batches of up to 512, 2 workers, relay",
        batch_max: 512,
        workers: 2,
        relay: true,
        deliveries: 60_000,
    },
    Way {
        name: "one by one, 32 workers",
        batch_max: 1,
        workers: 32,
        relay: false,
        deliveries: 8_000,
    },
];

const ROUNDS: usize = 3;

fn main() {
    // `cargo test --benches` runs this with `--test`, to see that it builds.
    if std::env::args().any(|arg| arg == "--test") {
        return;
    }
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    let broker = std::env::var("ORDERONCE_TEST_AMQP_URL").expect("ORDERONCE_TEST_AMQP_URL");
    for (variable, name) in [
        ("ORDERONCE_TEST_POSTGRES_URL", "PostgreSQL"),
        ("ORDERONCE_TEST_MARIADB_URL", "MariaDB"),
    ] {
        if let Ok(server) = std::env::var(variable) {
            runtime.block_on(compare(name, &server, &broker));
        }
    }
}

async fn compare(name: &str, server: &str, broker: &str) {
    println!("{name}:");
    let mut best = [0.0_f64; WAYS.len()];
    for _ in 0..ROUNDS {
        for (way, best) in WAYS.iter().zip(&mut best) {
            let rate = measure(way, server, broker).await;
            println!("  {:<42} {rate:>9.0} deliveries/s", way.name);
            *best = best.max(rate);
        }
    }
    let [one, two, relayed, single] = best;
    println!("  best of {ROUNDS}, against one by one:");
    for (way, rate) in WAYS.iter().zip([one, two, relayed]) {
        println!(
            "  {:<42} {rate:>9.0} {:>6.1} times",
            way.name,
            rate / single
        );
    }
}

async fn measure(way: &Way, server: &str, broker: &str) -> f64 {
    let name = format!("bench{:08x}", fastrand::u32(..));
    let url = create_database(server, &name).await;
    let settings = [
        ("ORDERONCE__STORE__URL", url.as_str()),
        ("ORDERONCE__STORE__CONNECTIONS", "40"),
        ("ORDERONCE__BROKER__URL", broker),
        ("ORDERONCE__BROKER__PREFIX", &name),
        ("ORDERONCE__BATCH__MAX", &way.batch_max.to_string()),
        ("ORDERONCE__BATCH__WORKERS", &way.workers.to_string()),
        ("ORDERONCE__RELAY__WINDOW", "512"),
    ];
    let config = Config::load(None, settings, &[]).expect("a configuration");
    let (deployment, _) = Deployment::migrate(&config.config, Topology::default())
        .await
        .expect("a deployment");
    let broker = deployment
        .broker(Topology::default())
        .await
        .expect("a broker");

    let lines = lines();
    stock_up(&deployment, &lines).await;
    let mut publisher = broker.publisher().await.expect("a publisher");
    for window in messages(&lines, way.deliveries).chunks(1_000) {
        publisher.publish(window).await.expect("published");
    }
    drop(publisher);

    let counter = Arc::new(Counter::new(way.deliveries));
    let mut plan = deployment.plan(vec![RoleName::INVENTORY], false);
    plan.relay = way.relay;
    plan.gates = vec![Arc::clone(&counter) as Arc<dyn Gate>];
    let stop = CancellationToken::new();
    let started = Instant::now();
    let running = supervisor::run(plan, Arc::clone(&deployment.store), broker, stop.clone());
    let running = tokio::spawn(running);
    counter.done.notified().await;
    let elapsed = started.elapsed();
    stop.cancel();
    running.await.expect("no panic").expect("no error");
    deployment.store.close().await;
    way.deliveries as f64 / elapsed.as_secs_f64()
}

async fn create_database(server: &str, name: &str) -> String {
    use sqlx::{AssertSqlSafe, Connection, MySqlConnection, PgConnection};
    let create = sqlx::raw_sql(AssertSqlSafe(format!("CREATE DATABASE {name}")));
    if server.starts_with("postgres") {
        let mut connection = PgConnection::connect(server).await.expect("PostgreSQL");
        create.execute(&mut connection).await.expect("a database");
    } else {
        let mut connection = MySqlConnection::connect(server).await.expect("MariaDB");
        create.execute(&mut connection).await.expect("a database");
    }
    let (base, _) = server.rsplit_once('/').expect("a URL");
    format!("{base}/{name}")
}

/// Counts what is settled, as a gate is told.
struct Counter {
    left: AtomicUsize,
    done: Notify,
}

impl Counter {
    fn new(deliveries: usize) -> Self {
        Self {
            left: AtomicUsize::new(deliveries),
            done: Notify::new(),
        }
    }
}

#[async_trait]
impl Gate for Counter {
    async fn ask(&self, _role: &RoleName, keys: &[&Key]) -> Vec<Known> {
        vec![Known::Unknown; keys.len()]
    }

    async fn tell(&self, _role: &RoleName, told: &[Told<'_>]) {
        let left = self.left.fetch_sub(told.len(), Ordering::Relaxed);
        if left <= told.len() {
            self.done.notify_one();
        }
    }
}

/// The goods lines of the day's orders.
fn lines() -> Vec<StockLine> {
    let import = Import::new(FIRST_DAY, ImportOptions::default()).expect("the sample data");
    let entries = import.flat_map(|invoice| invoice.expect("the sample data").entries);
    let creates = entries.filter_map(|entry| match entry.event {
        Event::Order(OrderEvent::Create(create)) => Some(create),
        Event::Order(_) | Event::Inventory(_) | Event::Account(_) | Event::Notice(_) => None,
    });
    let lines = creates.flat_map(|create| create.lines);
    let goods = lines.filter(|line| !line.charge);
    goods
        .map(|line| StockLine {
            sku_id: line.sku_id,
            qty: line.qty,
        })
        .collect()
}

async fn stock_up(deployment: &Deployment, lines: &[StockLine]) {
    let store = Arc::clone(&deployment.store);
    let processor = Processor::new(InventoryRole, store, deployment.settings());
    let skus: BTreeSet<&SkuId> = lines.iter().map(|line| &line.sku_id).collect();
    let adjust = |sku_id: &SkuId| {
        let event = InventoryEvent::Adjust(StockAdjust {
            adjustment_id: AdjustmentId::new(&format!("opening/{sku_id}")).expect("an id"),
            sku_id: sku_id.clone(),
            adjustment: Adjustment::Set(1_000_000_000),
            version: Some(0),
            reason: None,
        });
        let outgoing = Outgoing::from(&Event::Inventory(event.clone()));
        (event, outgoing)
    };
    let events = skus.into_iter().map(adjust).collect();
    processor
        .process_events(Timestamp(0), events)
        .await
        .expect("stock");
}

fn messages(lines: &[StockLine], count: usize) -> Vec<Publication> {
    let message = |number: usize| {
        let created = Event::Inventory(InventoryEvent::Created(OrderCreated {
            order_id: OrderId::new(&format!("B{number}")).expect("an id"),
            user_id: "U1".parse().expect("an id"),
            lines: vec![lines[number % lines.len()].clone()],
        }));
        let id = format!("m{number}");
        let meta = Meta {
            id: &id,
            source: "bench",
            time: Timestamp(0),
            traceparent: None,
        };
        Publication {
            message: message::encode(meta, &Outgoing::from(&created)).into(),
            message_id: id,
            event_type: "order.created".to_owned(),
            addressee: None,
            headers: Headers::new(),
        }
    };
    (0..count).map(message).collect()
}
