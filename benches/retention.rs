//! How long the inventory role takes while old claims are cleaned away, against how long it takes without.
//!
//! Needs `ORDERONCE_TEST_POSTGRES_URL` or `ORDERONCE_TEST_MARIADB_URL` (`tests/servers start DIR` starts such
//! servers and names them in `DIR/env`), and makes a database of its own there, with 5 million old claims
//! (`BENCH_CLAIMS` for another number): half of them are due to be marked, half to be removed. Orders of one
//! line arrive at a steady rate (`BENCH_RATE` a second, 1,000 by default) and are handled in batches of what
//! has arrived; timed is from the moment at which an order was due to arrive to the commit of its batch.

#![expect(
    clippy::expect_used,
    clippy::print_stdout,
    clippy::cast_precision_loss,
    reason = "a benchmark that cannot be set up has nothing to measure, and prints what it measured"
)]

use orderonce::config::Config;
use orderonce::domain::event::{
    Adjustment, Event, InventoryEvent, OrderCreated, OrderEvent, StockAdjust, StockLine,
};
use orderonce::domain::{AdjustmentId, OrderId, SkuId, Timestamp};
use orderonce::message::Outgoing;
use orderonce::ops::demo::FIRST_DAY;
use orderonce::ops::deployment::Deployment;
use orderonce::ops::online_retail::{Import, Options as ImportOptions};
use orderonce::store::{Connection, Store};
use orderonce::worker::Processor;
use orderonce::worker::inventory::InventoryRole;
use orderonce::worker::retention::Retention;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio_util::sync::CancellationToken;

/// Old claims that are written in one transaction.
const CHUNK: u64 = 100_000;

/// How long it is measured without cleaning, before it and after it.
const QUIET: Duration = Duration::from_secs(60);

/// Batches of what has arrived.
const BATCH_MAX: usize = 256;

fn main() {
    // `cargo test --benches` runs this with `--test`, to see that it builds.
    if std::env::args().any(|arg| arg == "--test") {
        return;
    }
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    for (variable, name) in [
        ("ORDERONCE_TEST_POSTGRES_URL", "PostgreSQL"),
        ("ORDERONCE_TEST_MARIADB_URL", "MariaDB"),
    ] {
        if let Ok(server) = std::env::var(variable) {
            runtime.block_on(compare(name, &server));
        }
    }
}

fn number(variable: &str, default: u64) -> u64 {
    let number = std::env::var(variable).ok();
    number.map_or(default, |number| number.parse().expect("a number"))
}

async fn compare(name: &str, server: &str) {
    let (claims, rate) = (
        number("BENCH_CLAIMS", 5_000_000),
        number("BENCH_RATE", 1_000),
    );
    let url = create_database(server).await;
    let settings = [
        ("ORDERONCE__STORE__URL", url.as_str()),
        ("ORDERONCE__BROKER__URL", "amqp://of-no-use"),
    ];
    let config = Config::load(None, settings, &[]).expect("a configuration");
    let deployment = migrated(&config.config).await;
    let store = Arc::clone(&deployment.store);
    println!("{name}: {claims} old claims, {rate} orders/s");
    let begun = Instant::now();
    fill(store.as_ref(), claims).await;
    println!("  written in {:.0} s", begun.elapsed().as_secs_f64());

    let shop = Shop::open(&deployment).await;
    shop.serve(rate, 0, until(Duration::from_secs(5))).await;
    let quiet = shop.serve(rate, 1, until(QUIET)).await;
    print("without", &quiet);

    let plan = deployment.plan(Vec::new(), false);
    let mut retention = Retention::new(Arc::clone(&store), "bench".to_owned(), plan.retention);
    let done = CancellationToken::new();
    let finished = done.clone();
    let cleaning = tokio::spawn(async move {
        let (mut cleaned, begun) = (0, Instant::now());
        loop {
            let step = retention.run_once().await.expect("a step");
            cleaned += step.expired + step.removed;
            if step.pause >= plan.retention.interval {
                finished.cancel();
                return (cleaned, begun.elapsed());
            }
            tokio::time::sleep(step.pause).await;
        }
    });
    let busy = shop.serve(rate, 2, done).await;
    let (cleaned, took) = cleaning.await.expect("no panic");
    print("cleaning", &busy);
    let after = shop.serve(rate, 3, until(QUIET)).await;
    print("without", &after);
    let seconds = took.as_secs_f64();
    println!(
        "  {cleaned} claims in {seconds:.0} s, {:.0}/s",
        cleaned as f64 / seconds
    );
    // The server has more to do for a while after so many claims were written, and after they went.
    let quiet = percentile(&quiet, 99.0).min(percentile(&after, 99.0));
    println!(
        "  p99 with cleaning is {:.2} times the lower one without",
        percentile(&busy, 99.0).as_secs_f64() / quiet.as_secs_f64()
    );
    store.close().await;
}

/// A token that is cancelled after some time.
fn until(time: Duration) -> CancellationToken {
    let token = CancellationToken::new();
    let end = token.clone();
    tokio::spawn(async move {
        tokio::time::sleep(time).await;
        end.cancel();
    });
    token
}

fn print(what: &str, times: &[Duration]) {
    let [p50, p99, p999, longest] =
        [50.0, 99.0, 99.9, 100.0].map(|percent| percentile(times, percent).as_secs_f64() * 1e3);
    let count = times.len();
    println!(
        "  {what:<9} {count:>7} orders, p50 {p50:.1} ms, p99 {p99:.1} ms, p99.9 {p999:.1} ms, longest {longest:.1} ms"
    );
}

#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "a place in a list"
)]
fn percentile(sorted: &[Duration], percent: f64) -> Duration {
    let place = (sorted.len() as f64 * percent / 100.0).ceil() as usize;
    sorted[place.clamp(1, sorted.len()) - 1]
}

/// The schema alone; there is no broker.
async fn migrated(config: &Config) -> Deployment {
    use orderonce::store::{mysql, postgres};
    let url = config.store.url.as_str().to_owned();
    let (lock_timeout, connections) = (Duration::from_secs(5), 4);
    let statement_timeout = Duration::from_secs(30);
    if url.starts_with("postgres") {
        let options = postgres::Options {
            url,
            lock_timeout,
            statement_timeout,
            connections,
        };
        let (database, _) = postgres::Database::migrate(&options)
            .await
            .expect("a schema");
        database.close().await;
    } else {
        let options = mysql::Options {
            url,
            lock_timeout,
            statement_timeout,
            connections,
        };
        let (database, _) = mysql::Database::migrate(&options).await.expect("a schema");
        database.close().await;
    }
    Deployment::open(config).await.expect("a deployment")
}

async fn create_database(server: &str) -> String {
    use sqlx::{AssertSqlSafe, Connection, MySqlConnection, PgConnection};
    let name = format!("bench{:08x}", fastrand::u32(..));
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

/// Writes claims of 100 days ago, of which every other one has been marked for 50 days.
async fn fill(store: &dyn Store, claims: u64) {
    const POSTGRES: &str = "
        INSERT INTO idempotent_record
            (role, key, subject, fingerprint, message_id, outcome, created_at, concluded_at, expired_at)
        SELECT 'inventory', 'OLD' || n || '/deduct', 'OLD' || n,
            decode(repeat('5a', 32), 'hex'), 'm' || n, 'applied', $3 + n, $3 + n,
            CASE WHEN n % 2 = 0 THEN $4 + n END
        FROM generate_series($1::bigint, $2::bigint) AS n";
    const MARIADB: &str = "
        INSERT INTO idempotent_record
            (role, `key`, subject, fingerprint, message_id, outcome, created_at, concluded_at, expired_at)
        SELECT 'inventory', concat('OLD', n, '/deduct'), concat('OLD', n),
            unhex(repeat('5a', 32)), concat('m', n), 'applied', ? + n, ? + n,
            IF(n % 2 = 0, ? + n, NULL)
        FROM (SELECT ? + seq AS n FROM seq_0_to_99999 WHERE seq <= ?) AS numbers";
    let now = store.now().await.expect("a clock");
    let days = |days: u64| now.minus(Duration::from_hours(24 * days)).0;
    let mut first = 0;
    while first < claims {
        let last = (first + CHUNK).min(claims) - 1;
        let [from, to] = [first, last].map(|n| i64::try_from(n).expect("a number"));
        let mut tx = store.begin().await.expect("a transaction");
        if let Connection::Postgres(connection) = tx.connection() {
            let fill = sqlx::query(POSTGRES).bind(from).bind(to);
            let fill = fill.bind(days(100)).bind(days(50));
            fill.execute(connection).await.expect("claims");
        } else if let Connection::MySql(connection) = tx.connection() {
            let fill = sqlx::query(MARIADB).bind(days(100)).bind(days(100));
            let fill = fill.bind(days(50)).bind(from).bind(to - from);
            fill.execute(connection).await.expect("claims");
        }
        tx.commit().await.expect("a commit");
        first = last + 1;
    }
}

/// The inventory role, with goods to sell.
struct Shop {
    processor: Processor<InventoryRole>,
    lines: Vec<StockLine>,
}

impl Shop {
    async fn open(deployment: &Deployment) -> Self {
        let import = Import::new(FIRST_DAY, ImportOptions::default()).expect("the sample data");
        let entries = import.flat_map(|invoice| invoice.expect("the sample data").entries);
        let creates = entries.filter_map(|entry| match entry.event {
            Event::Order(OrderEvent::Create(create)) => Some(create),
            Event::Order(_) | Event::Inventory(_) | Event::Account(_) | Event::Notice(_) => None,
        });
        let goods = creates.flat_map(|create| create.lines);
        let goods = goods.filter(|line| !line.charge).map(|line| StockLine {
            sku_id: line.sku_id,
            qty: line.qty,
        });
        let lines: Vec<_> = goods.collect();
        let store = Arc::clone(&deployment.store);
        let processor = Processor::new(InventoryRole, store, deployment.settings());
        let skus: BTreeSet<&SkuId> = lines.iter().map(|line| &line.sku_id).collect();
        let adjust = |sku_id: &SkuId| {
            InventoryEvent::Adjust(StockAdjust {
                adjustment_id: AdjustmentId::new(&format!("opening/{sku_id}")).expect("an id"),
                sku_id: sku_id.clone(),
                adjustment: Adjustment::Set(1_000_000_000),
                version: Some(0),
                reason: None,
            })
        };
        let events = skus.into_iter().map(adjust).map(with_message);
        let done = processor
            .process_events(Timestamp(0), events.collect())
            .await;
        done.expect("stock");
        Self { processor, lines }
    }

    /// Handles orders that arrive at a steady rate until `end`. Returns how long each took, sorted.
    async fn serve(&self, rate: u64, run: u32, end: CancellationToken) -> Vec<Duration> {
        let begun = Instant::now();
        let due = |number: usize| {
            let number = u32::try_from(number).expect("a number");
            begun + Duration::from_secs(1) * number / u32::try_from(rate).expect("a rate")
        };
        let mut times: Vec<Duration> = Vec::new();
        while !end.is_cancelled() {
            let first = times.len();
            tokio::time::sleep_until(due(first).into()).await;
            let now = Instant::now();
            let arrived = (first..first + BATCH_MAX).take_while(|number| due(*number) <= now);
            let numbers: Vec<_> = arrived.collect();
            let orders = numbers.iter().map(|number| {
                with_message(InventoryEvent::Created(OrderCreated {
                    order_id: OrderId::new(&format!("B{run}-{number}")).expect("an id"),
                    user_id: "U1".parse().expect("an id"),
                    lines: vec![self.lines[number % self.lines.len()].clone()],
                }))
            });
            let done = self
                .processor
                .process_events(Timestamp(0), orders.collect());
            done.await.expect("decided");
            let committed = Instant::now();
            times.extend(numbers.iter().map(|number| committed - due(*number)));
        }
        times.sort_unstable();
        times
    }
}

fn with_message(event: InventoryEvent) -> (InventoryEvent, Outgoing) {
    let outgoing = Outgoing::from(&Event::Inventory(event.clone()));
    (event, outgoing)
}
