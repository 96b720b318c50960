//! How long `POST /v1/orders` takes while orders arrive at a steady rate, and how many of them a process takes.
//!
//! Starts the program itself, on a SQLite file, and on the servers of `ORDERONCE_TEST_POSTGRES_URL` and
//! `ORDERONCE_TEST_MARIADB_URL` with `ORDERONCE_TEST_AMQP_URL`, if they are set (`tests/servers start DIR` starts such
//! servers and names them in `DIR/env`). The orders are those of a real shop's first day, with new numbers. They arrive
//! on 64 connections, `BENCH_RATE` a second (500 by default) for 20 seconds; timed is from the moment at which an order
//! was due to its answer, which comes after its commit. Then each connection asks again as soon as it is answered, for
//! 10 seconds, once with batches and once with transactions of one order each. The callers take their share of the same
//! machine.

#![expect(
    clippy::expect_used,
    clippy::print_stdout,
    clippy::cast_precision_loss,
    reason = "a benchmark that cannot be set up has nothing to measure, and prints what it measured"
)]

use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::client::conn::http1::{SendRequest, handshake};
use hyper::{Request, StatusCode};
use hyper_util::rt::TokioIo;
use orderonce::domain::event::{Event, OrderEvent};
use orderonce::http::auth::{Right, new_key};
use orderonce::message::Outgoing;
use orderonce::ops::demo::FIRST_DAY;
use orderonce::ops::online_retail::{Import, Options as ImportOptions};
use serde_json::{Value, json};
use sqlx::{AssertSqlSafe, Connection, MySqlConnection, PgConnection};
use std::net::SocketAddr;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};
use tempfile::TempDir;
use tokio::net::TcpStream;

const CONNECTIONS: usize = 64;
const STEADY: Duration = Duration::from_secs(20);
const FLAT_OUT: Duration = Duration::from_secs(10);

fn main() {
    // `cargo test --benches` runs this with `--test`, to see that it builds.
    if std::env::args().any(|arg| arg == "--test") {
        return;
    }
    let runtime = tokio::runtime::Builder::new_current_thread();
    let runtime = { runtime }.enable_all().build().expect("a runtime");
    runtime.block_on(measure_all());
}

async fn measure_all() {
    measure("SQLite", None).await;
    let Ok(broker) = std::env::var("ORDERONCE_TEST_AMQP_URL") else {
        return;
    };
    for (variable, name) in [
        ("ORDERONCE_TEST_POSTGRES_URL", "PostgreSQL"),
        ("ORDERONCE_TEST_MARIADB_URL", "MariaDB"),
    ] {
        if let Ok(server) = std::env::var(variable) {
            measure(name, Some((&server, &broker))).await;
        }
    }
}

async fn measure(name: &str, servers: Option<(&str, &str)>) {
    let rate = std::env::var("BENCH_RATE").ok();
    let rate: u32 = rate.map_or(500, |rate| rate.parse().expect("a number"));
    let orders = Arc::new(orders());
    println!("{name}");
    let place = Place::new(servers).await;
    {
        let process = Process::start(&place, "256").await;
        let warm_up = Load::steady(rate, Duration::from_secs(3));
        process.ask(warm_up, &orders).await;
        let times = process.ask(Load::steady(rate, STEADY), &orders).await;
        let [p50, p99, p999, longest] = [50.0, 99.0, 99.9, 100.0]
            .map(|percent| percentile(&times, percent).as_secs_f64() * 1e3);
        let count = times.len();
        println!(
            "  {rate} orders/s: {count} orders, p50 {p50:.1} ms, p99 {p99:.1} ms, p99.9 {p999:.1} ms, longest {longest:.1} ms"
        );
    }
    let mut flat_out = Vec::new();
    for batch_max in ["1", "256"] {
        let process = Process::start(&place, batch_max).await;
        let times = process.ask(Load::flat_out(FLAT_OUT), &orders).await;
        let per_second = times.len() as f64 / FLAT_OUT.as_secs_f64();
        let p99 = percentile(&times, 99.0).as_secs_f64() * 1e3;
        println!("  flat out, batch.max {batch_max:>3}: {per_second:.0} orders/s, p99 {p99:.1} ms");
        flat_out.push(per_second);
    }
    println!(
        "  batches take {:.1} times as many",
        flat_out[1] / flat_out[0]
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

/// What the shop's customers ordered, without the numbers of the orders.
fn orders() -> Vec<Value> {
    let import = Import::new(FIRST_DAY, ImportOptions::default()).expect("the sample data");
    let entries = import.flat_map(|invoice| invoice.expect("the sample data").entries);
    let create = |event: Event| match event {
        Event::Order(OrderEvent::Create(_)) => Some(event),
        Event::Order(_) | Event::Inventory(_) | Event::Account(_) | Event::Notice(_) => None,
    };
    let creates = entries.filter_map(|entry| create(entry.event));
    let body = |event| serde_json::from_str(&Outgoing::from(&event).data).expect("JSON");
    creates.map(body).collect()
}

/// A database with its configuration, and a key for the API.
struct Place {
    folder: TempDir,
    key: String,
}

impl Place {
    async fn new(servers: Option<(&str, &str)>) -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let file = |name: &str| folder.path().join(name).display().to_string();
        let (store, broker, prefix) = match servers {
            None => (
                format!("sqlite://{}", file("bench.db")),
                "embedded:",
                "bench".to_owned(),
            ),
            Some((server, broker)) => {
                let name = format!("bench{:08x}", fastrand::u32(..));
                (create_database(server, &name).await, broker, name)
            }
        };
        let (key, entry) = new_key("shop", &[Right::OrdersWrite]).expect("a key");
        let rate = "rate_per_second = 1000000\nrate_burst = 1000000\n";
        std::fs::write(file("keys.toml"), format!("{entry}{rate}")).expect("a file");
        let config = format!(
            "store.url = \"{store}\"\nbroker.url = \"{broker}\"\nbroker.prefix = \"{prefix}\"\n\
             http.listen = \"127.0.0.1:0\"\nhttp.keys_file = \"{}\"\nlog.format = \"json\"\n\
             log.filter = \"warn,orderonce::http::server=info\"\n",
            file("keys.toml")
        );
        std::fs::write(file("orderonce.toml"), config).expect("a file");
        let place = Self { folder, key };
        let migrated = place.command("migrate").status().expect("a process");
        assert!(migrated.success(), "{migrated}");
        place
    }

    fn command(&self, command: &str) -> Command {
        let mut process = Command::new(env!("CARGO_BIN_EXE_orderonce"));
        process
            .arg("--config")
            .arg(self.folder.path().join("orderonce.toml"))
            .arg(command)
            .stdout(Stdio::null());
        process
    }
}

async fn create_database(server: &str, name: &str) -> String {
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

/// A process that answers HTTP and nothing else.
struct Process<'p> {
    child: Child,
    at: SocketAddr,
    place: &'p Place,
}

impl<'p> Process<'p> {
    async fn start(place: &'p Place, batch_max: &str) -> Self {
        let log = place.folder.path().join(format!("serve-{batch_max}.log"));
        let child = place
            .command("serve")
            .args(["--role", "api", "--no-relay", "--no-janitor"])
            .env("ORDERONCE__BATCH__MAX", batch_max)
            .stderr(std::fs::File::create(&log).expect("a file"))
            .spawn()
            .expect("a process");
        let mut process = Self {
            child,
            at: SocketAddr::from(([127, 0, 0, 1], 0)),
            place,
        };
        process.at = loop {
            if let Some(at) = address(&log) {
                break at;
            }
            let ended = process.child.try_wait().expect("a status");
            assert!(ended.is_none(), "the program has ended: {}", log.display());
            tokio::time::sleep(Duration::from_millis(10)).await;
        };
        process
    }

    /// How long each answer took, sorted.
    async fn ask(&self, load: Load, orders: &Arc<Vec<Value>>) -> Vec<Duration> {
        let load = Arc::new(load);
        let callers = (0..CONNECTIONS).map(|_| {
            let (at, key) = (self.at, format!("Bearer {}", self.place.key));
            tokio::spawn(call(at, key, Arc::clone(&load), Arc::clone(orders)))
        });
        let mut times = Vec::new();
        for caller in callers.collect::<Vec<_>>() {
            times.extend(caller.await.expect("no panic"));
        }
        times.sort_unstable();
        times
    }
}

impl Drop for Process<'_> {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Where a process answers, once its log says it.
fn address(log: &Path) -> Option<SocketAddr> {
    let log = std::fs::read_to_string(log).ok()?;
    let lines = log
        .lines()
        .filter_map(|line| serde_json::from_str(line).ok());
    let mut lines = lines.filter(|line: &Value| line["message"] == "answering /v1");
    lines.next()?["at"].as_str()?.parse().ok()
}

/// Which orders there are to send, and when.
struct Load {
    begun: Instant,
    end: Instant,
    /// How long one order comes after the other; `None`: as soon as there is an answer.
    distance: Option<Duration>,
    next: AtomicU32,
    run: u32,
}

impl Load {
    fn steady(rate: u32, time: Duration) -> Self {
        Self::new(time, Some(Duration::from_secs(1) / rate))
    }

    fn flat_out(time: Duration) -> Self {
        Self::new(time, None)
    }

    fn new(time: Duration, distance: Option<Duration>) -> Self {
        let begun = Instant::now();
        Self {
            begun,
            end: begun + time,
            distance,
            next: AtomicU32::new(0),
            run: fastrand::u32(..),
        }
    }

    /// The number of an order, and when it is due.
    fn take(&self) -> Option<(u32, Instant)> {
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        let due = self
            .distance
            .map_or_else(Instant::now, |distance| self.begun + distance * number);
        (due < self.end).then_some((number, due))
    }
}

async fn call(
    at: SocketAddr,
    key: String,
    load: Arc<Load>,
    orders: Arc<Vec<Value>>,
) -> Vec<Duration> {
    let stream = TcpStream::connect(at).await.expect("a connection");
    stream.set_nodelay(true).expect("a socket");
    let (mut sender, connection) = handshake(TokioIo::new(stream)).await.expect("a connection");
    tokio::spawn(connection);
    let mut times = Vec::new();
    while let Some((number, due)) = load.take() {
        let mut order = orders[number as usize % orders.len()].clone();
        let id = format!("{}-{number}", load.run);
        order["order_id"] = json!(id);
        let body = Bytes::from(order.to_string());
        tokio::time::sleep_until(due.into()).await;
        post(&mut sender, &key, &id, body).await;
        times.push(due.elapsed());
    }
    times
}

async fn post(sender: &mut SendRequest<Full<Bytes>>, key: &str, id: &str, body: Bytes) {
    let request = Request::post("/v1/orders")
        .header("host", "bench")
        .header("authorization", key)
        .header("idempotency-key", id)
        .header("content-type", "application/json")
        .body(Full::new(body))
        .expect("a request");
    let response = sender.send_request(request).await.expect("an answer");
    let status = response.status();
    let body = response.into_body().collect().await.expect("an answer");
    assert_eq!(status, StatusCode::CREATED, "{:?}", body.to_bytes());
}
