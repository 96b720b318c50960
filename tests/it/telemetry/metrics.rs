//! `/metrics`, as a process answers it.

use super::{envelope, publication};
use crate::servers::Servers;
use crate::site::{Serving, Site, until};
use crate::support::{Meddled, World, create, create_worth, of, order_role, outcomes, paid};
use http_body_util::{BodyExt, Full};
use hyper::Request;
use hyper::body::Bytes;
use hyper::http::request::Builder;
use hyper_util::rt::TokioIo;
use metrics_exporter_prometheus::{PrometheusBuilder, PrometheusHandle};
use orderonce::broker::Broker as _;
use orderonce::domain::RoleName;
use orderonce::http::auth::{Right, new_key};
use orderonce::telemetry::metrics::{Kind, METRICS, Metric, Part};
use orderonce::worker::relay::{self, Relay};
use rustix::process::Signal;
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::time::Duration;
use strum::IntoEnumIterator;
use tokio::net::TcpStream;

/// Where a process answers, as it says in its log.
pub(crate) async fn address(serving: &mut Serving, message: &str) -> SocketAddr {
    serving.says(message).await;
    let log = serving.log();
    let mut lines = log
        .lines()
        .filter_map(|line| serde_json::from_str(line).ok());
    let line = lines.find(|line: &Value| line["message"] == message);
    line.unwrap()["at"].as_str().unwrap().parse().unwrap()
}

/// The status and the text that are answered.
pub(crate) async fn get(at: SocketAddr, path: &str) -> (u16, String) {
    ask(at, Request::get(path), String::new()).await
}

pub(super) async fn ask(at: SocketAddr, request: Builder, body: String) -> (u16, String) {
    let stream = TcpStream::connect(at).await.unwrap();
    let handshake = hyper::client::conn::http1::handshake(TokioIo::new(stream));
    let (mut sender, connection) = handshake.await.unwrap();
    tokio::spawn(connection);
    let request = request.header("host", at.to_string());
    let request = request.body(Full::new(Bytes::from(body))).unwrap();
    let response = sender.send_request(request).await.unwrap();
    let status = response.status().as_u16();
    let body = response.into_body().collect().await.unwrap().to_bytes();
    (status, String::from_utf8(body.to_vec()).unwrap())
}

/// What is told: kinds by name, and values by series.
#[derive(Debug, Default)]
pub(crate) struct Told {
    kinds: BTreeMap<String, String>,
    series: BTreeMap<String, f64>,
}

pub(crate) async fn told(at: SocketAddr) -> Told {
    let (status, text) = get(at, "/metrics").await;
    assert_eq!(status, 200, "{text}");
    let mut told = Told::default();
    for line in text.lines() {
        if let Some(kind) = line.strip_prefix("# TYPE ") {
            let (name, kind) = kind.split_once(' ').unwrap();
            told.kinds.insert(name.to_owned(), kind.to_owned());
        } else if !line.starts_with('#') && !line.is_empty() {
            let (series, value) = line.rsplit_once(' ').unwrap();
            told.series
                .insert(series.to_owned(), value.parse().unwrap());
        }
    }
    told
}

impl Told {
    /// The value of a series, or of all series of a name together; nothing if it is not told.
    pub(crate) fn get(&self, series: &str) -> Option<f64> {
        let is_of = |found: &&String| match series.contains('{') {
            true => *found == series,
            false => found.split('{').next() == Some(series),
        };
        let found: Vec<f64> = self
            .series
            .iter()
            .filter(|(found, _)| is_of(found))
            .map(|(_, v)| *v)
            .collect();
        (!found.is_empty()).then(|| found.iter().sum())
    }

    /// Everything is in the table, with its kind and labels. Returns the names.
    fn is_of_the_table(&self) -> BTreeSet<&'static str> {
        let mut seen = BTreeSet::new();
        for (name, kind) in &self.kinds {
            let metric = metric(name).unwrap_or_else(|| panic!("{name} is not in the table"));
            assert_eq!(metric.kind.to_string(), *kind, "{name}");
        }
        for series in self.series.keys() {
            let (name, labels) = series.split_once('{').unwrap_or((series, "}"));
            let labels = labels.strip_suffix('}').unwrap();
            let ends = ["_bucket", "_sum", "_count"];
            let whole = ends
                .iter()
                .find_map(|end| name.strip_suffix(end).and_then(metric));
            let whole = whole.filter(|metric| matches!(metric.kind, Kind::Histogram(_)));
            let metric = whole.or_else(|| metric(name));
            let metric = metric.unwrap_or_else(|| panic!("{series} is not in the table"));
            // No value of a label holds such a sequence.
            let found = labels.split("\",").filter(|label| !label.is_empty());
            let found = found.map(|label| label.split_once("=\"").unwrap().0);
            let found: BTreeSet<_> = found.filter(|label| *label != "le").collect();
            let expected: BTreeSet<_> = metric.labels.iter().copied().collect();
            assert_eq!(found, expected, "{series}");
            seen.insert(metric.name);
        }
        seen
    }
}

fn metric(name: &str) -> Option<&'static Metric> {
    METRICS.iter().find(|metric| metric.name == name)
}

/// The names of the table that these parts of a process tell.
fn table(parts: &[Part]) -> BTreeSet<&'static str> {
    let told = METRICS.iter().filter(|metric| parts.contains(&metric.part));
    told.map(|metric| metric.name).collect()
}

async fn publish(site: &Site, messages: &[(&str, &str, Value)]) {
    let messages: Vec<_> = messages
        .iter()
        .map(|(id, event_type, data)| {
            let mut message = envelope(id, event_type, data);
            message["time"] = json!("2010-12-01T08:26:00Z");
            publication(id, event_type, &message)
        })
        .collect();
    site.publish(&messages).await;
}

/// Work for all roles: two orders, one of which completes, copies, a conflict, one that cannot be read and one
/// that comes too early.
async fn work(site: &Site, serving: &mut Serving) {
    let stock = json!({"adjustment_id": "A", "sku_id": "S", "change": 5});
    publish(
        site,
        &[
            ("m1", "stock.adjust", stock),
            ("m2", "order.create", create_worth("O1", 1000)),
            ("m3", "order.create", create_worth("O1", 1000)),
            ("m4", "order.create", create_worth("O1", 2000)),
            ("m5", "order.create", create("O2", &[("S", 1)])),
            ("m6", "order.ship", json!({})),
        ],
    )
    .await;
    serving.settles(site).await;
    publish(site, &[("m7", "payment.succeeded", paid("O1", "T1", 1000))]).await;
    serving.settles(site).await;
    publish(site, &[("m8", "order.ship", of("O1"))]).await;
    serving.settles(site).await;
    publish(site, &[("m9", "order.complete", of("O1"))]).await;
    serving.settles(site).await;
}

#[tokio::test]
async fn all_that_a_process_tells_is_in_the_table_and_all_in_the_table_is_told() {
    let (key, entry) = new_key("shop", &Right::iter().collect::<Vec<_>>()).unwrap();
    let keys = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(keys.path(), entry).unwrap();
    let providers = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(providers.path(), "[[stripe]]\nname = \"s\"\nsecret = \"x\"").unwrap();
    let site = Site::new(&format!(
        "health.listen = \"127.0.0.1:0\"\nhealth.interval_seconds = 0.05\nhttp.listen = \"127.0.0.1:0\"
http.keys_file = '{}'\ncallbacks.file = '{}'\ntrace.endpoint = \"http://127.0.0.1:9\"",
        keys.path().display(),
        providers.path().display()
    ))
    .await;
    let mut serving = site.serve(&[], &[]);
    let at = address(&mut serving, "answering /live, /ready and /metrics").await;
    let api = address(&mut serving, "answering /v1").await;
    work(&site, &mut serving).await;
    assert_eq!(
        get(api, "/v1/orders/O1").await.0,
        401,
        "without the key {key}"
    );
    let forged = ask(api, Request::post("/v1/callbacks/s"), "{}".to_owned()).await;
    assert_eq!(forged.0, 400);
    serving.says("the collector takes no spans").await;
    until("what waits was looked at", async || {
        told(at).await.get("orderonce_dead_letters_open") == Some(2.0)
    })
    .await;

    let told = told(at).await;
    let seen = told.is_of_the_table();
    let parts = [
        Part::Process,
        Part::Role,
        Part::Relay,
        Part::Janitor,
        Part::Http,
        Part::Traces,
    ];
    assert_eq!(seen, table(&parts));
    let outcome = |outcome: &str, layer: &str| {
        let series = format!(
            "orderonce_outcomes_total{{role=\"order\",outcome=\"{outcome}\",layer=\"{layer}\"}}"
        );
        told.get(&series)
            .unwrap_or_else(|| panic!("no {series} in {told:#?}"))
    };
    assert_eq!(outcome("conflict", ""), 1.0);
    assert_eq!(outcome("dead", ""), 1.0);
    assert_eq!(
        outcome("duplicate", "batch") + outcome("duplicate", "claim"),
        1.0
    );
    assert!(outcome("applied", "") >= 5.0);
    for (series, least) in [
        (
            "orderonce_commit_latency_seconds_count{role=\"account\"}",
            1.0,
        ),
        (
            "orderonce_step_seconds_count{role=\"order\",step=\"commit\"}",
            1.0,
        ),
        ("orderonce_batch_deliveries_sum{role=\"order\"}", 8.0),
        ("orderonce_relay_messages_total{result=\"published\"}", 4.0),
        ("orderonce_store_connected", 1.0),
        ("orderonce_store_connections", 2.0),
        ("orderonce_process_resident_memory_bytes", 1e6),
        ("orderonce_trace_spans_total{result=\"lost\"}", 1.0),
    ] {
        let found = told.get(series);
        assert!(found >= Some(least), "{series} is {found:?}");
    }
    assert_eq!(told.get("orderonce_expired_duplicates_total"), Some(0.0));
    assert_eq!(told.get("orderonce_queue_messages"), Some(0.0));
    let years = told.get("orderonce_commit_latency_seconds_sum").unwrap() / 31_536_000.0;
    assert!(years > 10.0, "the messages are of 2010");
    let within_an_hour = |role: &str| {
        let series = "orderonce_commit_latency_seconds_bucket";
        told.get(&format!("{series}{{role=\"{role}\",le=\"3600\"}}"))
    };
    assert_eq!(within_an_hour("payment"), Some(0.0));
    assert_eq!(
        within_an_hour("account"),
        Some(1.0),
        "what follows is of now"
    );

    // Who comes back after its claim has expired is told of.
    let mut stranger = site.stranger().await;
    let expire = sqlx::query("UPDATE idempotent_record SET expired_at = 1");
    expire.execute(&mut stranger).await.unwrap();
    publish(&site, &[("m2", "order.create", create_worth("O1", 1000))]).await;
    serving.settles(&site).await;
    until("it is counted", async || {
        self::told(at)
            .await
            .get("orderonce_expired_duplicates_total")
            == Some(1.0)
    })
    .await;
    serving.stops(Signal::TERM).await;
}

/// A recorder for what is made within `make`.
fn recorded<T>(make: impl FnOnce() -> T) -> (T, PrometheusHandle) {
    let recorder = PrometheusBuilder::new().build_recorder();
    let made = ::metrics::with_local_recorder(&recorder, make);
    (made, recorder.handle())
}

#[tokio::test]
async fn an_attempt_that_lost_a_race_is_counted_once() {
    let world = World::new().await;
    world
        .publish("order.create", create_worth("O1", 1000))
        .await;
    let meddle =
        "INSERT INTO orders (order_id, user_id, status, version, currency, total_minor, paid_minor,
            refunded_minor, pay_deadline, fingerprint, created_at, updated_at)
        VALUES ('O1', 'U', 'CLOSED', 1, 'CNY', 0, 0, 0, 0, x'', 0, 0)";
    let role = Meddled::new(order_role(), meddle, 1);
    let (orders, told) = recorded(|| world.processor(role));
    let settled = world.run(&RoleName::ORDER, orders).await;
    assert_eq!(outcomes(&settled), ["applied"]);
    let told = told.render();
    for line in [
        "orderonce_decided_again_total{role=\"order\"} 1",
        "orderonce_batch_deliveries_count{role=\"order\"} 1",
        "orderonce_step_seconds_count{role=\"order\",step=\"decode\"} 1",
        "orderonce_step_seconds_count{role=\"order\",step=\"load\"} 2",
        "orderonce_step_seconds_count{role=\"order\",step=\"commit\"} 1",
    ] {
        assert!(
            told.lines().any(|found| found == line),
            "no {line} in {told}"
        );
    }
}

#[tokio::test]
async fn what_the_clock_made_due_is_counted() {
    let world = World::new().await;
    world
        .publish("order.create", create_worth("O1", 1000))
        .await;
    world
        .publish("payment.succeeded", paid("O2", "T2", 1000))
        .await;
    world.run_orders().await;
    world.run_payments().await;
    world.advance(Duration::from_secs(86_400));
    let (mut janitor, told) = recorded(|| world.janitor());
    janitor.run_once().await.unwrap();
    let told = told.render();
    for (what, number) in [
        ("closed", 1),
        ("reminded", 0),
        ("overdue", 1),
        ("crashed", 0),
    ] {
        let line = format!("orderonce_janitor_handled_total{{what=\"{what}\"}} {number}");
        assert!(
            told.lines().any(|found| found == line),
            "no {line} in {told}"
        );
    }
}

#[tokio::test]
async fn what_the_broker_refuses_is_counted_apart_from_what_it_takes() {
    let world = World::new().await;
    world
        .publish("order.create", create_worth("O1", 1000))
        .await;
    world.run_orders().await;
    let nobody =
        "INSERT INTO outbox (aggregate, addressee, event_type, message_id, message, created_at)
        VALUES ('A', 'nobody', 'order.ship', 'm', x'', 0)";
    world.execute(nobody).await;
    let publisher = world.queue.publisher().await.unwrap();
    let settings = relay::Settings::default();
    let (mut relay, told) = recorded(|| {
        Relay::new(
            world.store.clone(),
            publisher,
            "relay of a test".to_owned(),
            settings,
        )
    });
    relay.run_once().await.unwrap();
    let told = told.render();
    for result in ["published", "refused"] {
        let line = format!("orderonce_relay_messages_total{{result=\"{result}\"}} 1");
        assert!(
            told.lines().any(|found| found == line),
            "no {line} in {told}"
        );
    }
}

#[tokio::test]
async fn on_servers_there_is_more_to_tell() {
    let Some(servers) = Servers::turn().await else {
        return;
    };
    let redis = servers.start("redis");
    let (store, broker) = (servers.start("postgres"), servers.start("rabbitmq"));
    let more = format!(
        "health.listen = \"127.0.0.1:0\"\ngate.redis_url = \"{redis}\"\ngate.filter_keys = 1000
gate.timeout_seconds = 1"
    );
    let site = Site::on_servers(&store, &broker, &more).await;
    let mut serving = site.serve(&[], &[]);
    let at = address(&mut serving, "answering /live, /ready and /metrics").await;
    serving.says("Redis is used").await;
    work(&site, &mut serving).await;
    until("what waits was looked at", async || {
        told(at).await.get("orderonce_dead_letters_open") == Some(2.0)
    })
    .await;
    let before = told(at).await;
    let parts = [
        Part::Process,
        Part::Role,
        Part::Relay,
        Part::Janitor,
        Part::RabbitMq,
        Part::Server,
        Part::Redis,
        Part::Filter,
    ];
    assert_eq!(before.is_of_the_table(), table(&parts));
    assert_eq!(before.get("orderonce_redis_used"), Some(1.0));
    assert!(before.get("orderonce_redis_round_trips_total") > Some(0.0));
    assert_eq!(before.get("orderonce_broker_connected"), Some(2.0));

    // What cannot be asked keeps its last value, and nobody waits for it.
    servers.stop("postgres");
    servers.stop("redis");
    until("the database is away", async || {
        told(at).await.get("orderonce_store_connected") == Some(0.0)
    })
    .await;
    let after = told(at).await;
    assert_eq!(after.get("orderonce_dead_letters_open"), Some(2.0));
    let sampled = "orderonce_store_sampled_time_seconds";
    assert!(after.get(sampled) >= before.get(sampled));
    servers.start("postgres");
    until("the database is back", async || {
        told(at).await.get("orderonce_store_connected") == Some(1.0)
    })
    .await;
    serving.stops(Signal::TERM).await;
}
