//! Spans, as they arrive at a collector.

use super::collector::{Collected, Collector};
use super::metrics::{address, ask};
use super::{envelope, publication, span_id, trace_id, traced, traceparent};
use crate::site::{Serving, Site};
use crate::support::{create, create_worth, of, paid};
use axum::body::{Body, to_bytes};
use axum::http::{Request, StatusCode};
use axum::routing::get;
use axum::{Extension, Router, middleware};
use hyper::http::request::Builder;
use orderonce::config::{Config, Trace};
use orderonce::http::auth::{Right, new_key};
use orderonce::telemetry::trace::{Passed, Traces, http};
use rustix::process::Signal;

use serde_json::{Value, json};
use std::time::{Duration, Instant};
use strum::IntoEnumIterator;
use tokio::net::TcpListener;
use tower::ServiceExt;

const INTERNAL: i32 = 1;
const SERVER: i32 = 2;
const PRODUCER: i32 = 4;
const CONSUMER: i32 = 5;

async fn site(collector: &Collector, more: &str) -> Site {
    let endpoint = &collector.endpoint;
    Site::new(&format!(
        "trace.endpoint = \"{endpoint}\"\ntrace.service = \"shop\"\n{more}"
    ))
    .await
}

#[tokio::test]
async fn one_trace_leads_from_a_message_through_outbox_and_broker_to_the_last_commit() {
    let collector = Collector::new().await;
    let site = site(&collector, "").await;
    let mut serving = site.serve(&[], &[]);
    site.publish(&[
        traced(
            "m0",
            "stock.adjust",
            &json!({"adjustment_id": "A", "sku_id": "S", "change": 5}),
            &traceparent(9, 9),
        ),
        traced(
            "m1",
            "order.create",
            &create("O1", &[("S", 1)]),
            &traceparent(1, 1),
        ),
    ])
    .await;
    serving.settles(&site).await;
    site.publish(&[traced(
        "m2",
        "payment.succeeded",
        &paid("O1", "T1", 1000),
        &traceparent(1, 2),
    )])
    .await;
    serving.settles(&site).await;
    site.publish(&[traced("m3", "order.ship", &of("O1"), &traceparent(1, 3))])
        .await;
    serving.settles(&site).await;
    site.publish(&[traced(
        "m4",
        "order.complete",
        &of("O1"),
        &traceparent(1, 4),
    )])
    .await;
    serving.settles(&site).await;
    serving.stops(Signal::TERM).await;

    let created = collector.child(&span_id(1), "process order").await;
    assert_eq!(created.kind, CONSUMER);
    assert_eq!(created.service, "shop");
    for (key, value) in [
        ("messaging.system", "orderonce"),
        ("messaging.operation.type", "process"),
        ("messaging.destination.name", "order"),
        ("messaging.message.id", "m1"),
        ("orderonce.key", "O1/order.create"),
        ("orderonce.outcome", "applied"),
    ] {
        assert_eq!(created.get(key), value, "{key}");
    }
    let published = collector.child(&created.id, "publish order.created").await;
    assert_eq!(published.kind, PRODUCER);
    assert_eq!(published.get("messaging.operation.type"), "send");
    let deducted = collector.child(&created.id, "process inventory").await;
    collector
        .child(&deducted.id, "publish stock.deducted")
        .await;
    let noted = collector.child(&deducted.id, "process order").await;
    assert_eq!(
        noted.get("messaging.message.id"),
        "inventory:O1/deduct>stock.deducted"
    );

    let paid = collector.child(&span_id(2), "process payment").await;
    assert_eq!(paid.get("orderonce.outcome"), "applied");
    let completed = collector.child(&span_id(4), "process order").await;
    collector
        .child(&completed.id, "publish order.completed")
        .await;
    let credited = collector.child(&completed.id, "process account").await;
    assert_eq!(credited.get("orderonce.outcome"), "applied");

    for span in [
        created, published, deducted, noted, paid, completed, credited,
    ] {
        assert_eq!(span.trace, trace_id(1), "{span:#?}");
    }
    let spans = collector.spans();
    let batches = spans.iter().filter(|span| span.name.starts_with("batch "));
    for batch in batches {
        is_whole(batch, &spans);
    }
}

/// A batch points to its deliveries, and its steps are within it.
fn is_whole(batch: &Collected, spans: &[Collected]) {
    assert_eq!((batch.kind, batch.parent.as_str()), (INTERNAL, ""));
    let role = batch.name.strip_prefix("batch ").unwrap();
    let of_batch = |link: &String| spans.iter().find(|span| span.id == *link).unwrap();
    let count = batch.links.len().to_string();
    assert_eq!(batch.get("messaging.batch.message_count"), count);
    for delivery in batch.links.iter().map(of_batch) {
        assert_eq!(delivery.name, format!("process {role}"));
    }
    let steps = spans.iter().filter(|span| span.parent == batch.id);
    let steps: Vec<_> = steps.map(|span| span.name.as_str()).collect();
    let expected = [
        "decode", "key", "ask", "claim", "load", "decide", "write", "commit", "settle",
    ];
    assert_eq!(steps, expected);
}

#[tokio::test]
async fn what_fails_or_says_nothing_of_a_trace_has_a_span_too() {
    let collector = Collector::new().await;
    let site = site(&collector, "").await;
    let invalid = traceparent(3, 3).to_uppercase().replace("00-", "0A-");
    site.publish(&[
        publication(
            "m1",
            "order.create",
            &envelope("m1", "order.create", &create_worth("O1", 0)),
        ),
        traced("m2", "order.create", &create_worth("O2", 0), &invalid),
        traced("m3", "order.create", &json!({}), &traceparent(1, 1)),
    ])
    .await;
    let mut serving = site.serve(&[], &[]);
    serving.settles(&site).await;
    serving.stops(Signal::TERM).await;
    let spans = collector.spans();
    let of = |id: &str| {
        let mut found = spans.iter().filter(|span| span.name == "process order");
        found
            .find(|span| span.get("messaging.message.id") == id)
            .unwrap()
    };
    assert_eq!(of("m1").parent, "");
    assert_eq!(
        of("m2").parent,
        "",
        "an invalid traceparent begins a new trace"
    );
    assert_ne!(of("m2").trace, of("m1").trace);
    let dead = of("m3");
    assert_eq!(dead.get("orderonce.outcome"), "dead");
    assert!(dead.has_failed);
    let next = spans.iter().find(|span| span.parent == of("m1").id);
    assert_eq!(next.unwrap().trace, of("m1").trace);
}

#[tokio::test]
async fn whoever_began_a_trace_decides_whether_it_is_kept() {
    let collector = Collector::new().await;
    let site = site(&collector, "trace.sample_one_in = 1000000").await;
    let not_kept = traceparent(2, 2).replace("-01", "-00");
    site.publish(&[
        traced(
            "m1",
            "order.create",
            &create_worth("O1", 0),
            &traceparent(1, 1),
        ),
        traced("m2", "order.create", &create_worth("O2", 0), &not_kept),
        publication(
            "m3",
            "order.create",
            &envelope("m3", "order.create", &create_worth("O3", 0)),
        ),
    ])
    .await;
    let mut serving = site.serve(&[], &[]);
    serving.settles(&site).await;
    serving.stops(Signal::TERM).await;
    let spans = collector.spans();
    assert!(
        spans
            .iter()
            .any(|span| span.get("messaging.message.id") == "m1")
    );
    for span in &spans {
        assert_eq!(span.trace, trace_id(1), "{span:#?}");
    }
}

#[tokio::test]
async fn a_collector_that_is_away_costs_spans_and_one_line() {
    // A port that nobody listens at any more.
    let collector = Collector::new().await;
    let endpoint = collector.endpoint.clone();
    drop(collector);
    let site = Site::new(&format!("trace.endpoint = \"{endpoint}\"")).await;
    let mut serving = site.serve(&[], &[]);
    let settle = async |serving: &mut Serving, order: &str| {
        let create = envelope(order, "order.create", &create_worth(order, 0));
        site.publish(&[publication(order, "order.create", &create)])
            .await;
        serving.settles(&site).await;
    };
    settle(&mut serving, "O1").await;
    serving.says("the collector takes no spans").await;
    // These are sent at the end, if not before, and are lost too.
    settle(&mut serving, "O2").await;
    serving.stops(Signal::TERM).await;
    let log = serving.log();
    let told = log.lines().filter(|line| line.contains("telemetry::trace"));
    assert_eq!(told.count(), 1, "{log}");
    assert!(!log.contains("opentelemetry"), "{log}");
}

fn config(endpoint: &str) -> Trace {
    let mut config = Config::default().trace;
    config.endpoint = orderonce::config::Url::new(endpoint.to_owned());
    config
}

/// A router of somebody's own, whose handler answers with what it would pass on.
fn router(traces: &Traces) -> Router {
    let passed = |passed: Option<Extension<Passed>>| async {
        passed.map_or("nothing".to_owned(), |Extension(Passed(traceparent))| {
            traceparent
        })
    };
    let fails = || async { StatusCode::BAD_GATEWAY };
    Router::new()
        .route("/things/{id}", get(passed))
        .route("/fails", get(fails))
        .layer(middleware::from_fn_with_state(traces.clone(), http))
}

async fn ask_router(router: &Router, path: &str, headers: &[&str]) -> String {
    let mut request = Request::get(path);
    for header in headers {
        request = request.header("traceparent", *header);
    }
    let request = request.body(Body::empty()).unwrap();
    let response = router.clone().oneshot(request).await.unwrap();
    let body = to_bytes(response.into_body(), 1_000).await.unwrap();
    String::from_utf8(body.to_vec()).unwrap()
}

#[tokio::test]
async fn a_request_is_a_span_within_its_callers_and_hands_on_its_own() {
    let collector = Collector::new().await;
    let traces = Traces::start(&config(&collector.endpoint)).unwrap();
    let router = router(&traces);
    let passed = ask_router(&router, "/things/7", &[&traceparent(1, 1)]).await;
    let two = ask_router(
        &router,
        "/things/8",
        &[&traceparent(2, 2), &traceparent(3, 3)],
    )
    .await;
    ask_router(&router, "/fails", &[]).await;
    traces.finish().await;

    let span = collector.child(&span_id(1), "GET /things/{id}").await;
    assert_eq!(passed, format!("00-{}-{}-01", trace_id(1), span.id));
    assert_eq!(span.kind, SERVER);
    for (key, value) in [
        ("http.request.method", "GET"),
        ("http.route", "/things/{id}"),
        ("url.path", "/things/7"),
        ("http.response.status_code", "200"),
    ] {
        assert_eq!(span.get(key), value, "{key}");
    }
    assert!(!span.has_failed);
    let root = collector.child("", "GET /things/{id}").await;
    assert!(two.contains(&root.trace), "of two traceparents none counts");
    let failed = collector.child("", "GET /fails").await;
    assert!(failed.has_failed);
    assert_eq!(failed.get("http.response.status_code"), "502");
}

#[tokio::test]
async fn what_a_client_asks_for_is_within_its_request() {
    let (key, entry) = new_key("shop", &Right::iter().collect::<Vec<_>>()).unwrap();
    let keys = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(keys.path(), entry).unwrap();
    let more = format!(
        "http.listen = \"127.0.0.1:0\"\nhttp.keys_file = '{}'",
        keys.path().display()
    );
    let collector = Collector::new().await;
    let site = site(&collector, &more).await;
    let mut serving = site.serve(&[], &[]);
    let at = address(&mut serving, "answering /v1").await;
    let asks = async |request: Builder, span: u8, body: Value| {
        let request = request
            .header("authorization", format!("Bearer {key}"))
            .header("content-type", "application/json")
            .header("traceparent", traceparent(1, span));
        let (status, said) = ask(at, request, body.to_string()).await;
        assert!(status < 300, "{status} {said}");
    };
    let order = Request::post("/v1/orders").header("idempotency-key", "k1");
    asks(order, 1, create_worth("O1", 0)).await;
    let stock = Request::put("/v1/stock/S").header("if-none-match", "*");
    asks(stock, 2, json!({"available": 7})).await;
    serving.settles(&site).await;
    serving.stops(Signal::TERM).await;

    let request = collector.child(&span_id(1), "POST /v1/orders").await;
    let created = collector.child(&request.id, "process order").await;
    assert_eq!(created.kind, INTERNAL);
    assert_eq!(created.get("orderonce.outcome"), "applied");
    collector.child(&created.id, "publish order.created").await;
    let request = collector.child(&span_id(2), "PUT /v1/stock/{sku_id}").await;
    collector.child(&request.id, "process inventory").await;
}

#[tokio::test]
async fn a_collector_that_never_answers_is_not_waited_for_at_the_end() {
    let silent = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let at = format!("http://{}", silent.local_addr().unwrap());
    let traces = Traces::start(&config(&at)).unwrap();
    ask_router(&router(&traces), "/things/7", &[]).await;
    let began = Instant::now();
    traces.finish().await;
    let took = began.elapsed();
    assert!(took < Duration::from_secs(4), "{took:?}");
}

#[tokio::test]
async fn without_traces_a_request_hands_on_what_it_came_with() {
    let router = router(&Traces::default());
    let given = traceparent(1, 1);
    assert_eq!(ask_router(&router, "/things/7", &[&given]).await, given);
    assert_eq!(ask_router(&router, "/things/7", &[]).await, "nothing");
}
