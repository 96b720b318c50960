//! What is logged of each delivery.

use super::{trace_id, traced, traceparent};
use crate::support::{Memory, World, create, create_worth, of, paid};
use orderonce::broker::Headers;
use orderonce::config::{Config, Log, LogFormat, Url};
use orderonce::domain::event::{Event, OrderCancel, OrderEvent};
use orderonce::domain::{Fingerprint, Key, RoleName, Timestamp};
use orderonce::message::Outgoing;
use orderonce::telemetry::subscriber;
use orderonce::telemetry::trace::Traces;
use orderonce::worker::{Asked, Processor, Request, Role, Settled};
use serde_json::Value;
use std::collections::BTreeSet;
use std::io::Write;
use std::sync::{Arc, LazyLock, Mutex};
use tracing::Dispatch;
use tracing::subscriber::DefaultGuard;

#[derive(Clone, Default)]
struct Buffer(Arc<Mutex<Vec<u8>>>);

impl Write for Buffer {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().unwrap().write(bytes)
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

/// The log of this test's thread.
struct Logged {
    format: LogFormat,
    buffer: Buffer,
    _guard: DefaultGuard,
}

/// What a line has to say.
#[derive(Debug, PartialEq, Eq)]
struct Line {
    message_id: String,
    key: String,
    outcome: String,
    layer: Option<String>,
    trace_id: Option<String>,
}

/// With one subscriber alone, whichever thread comes to an event first decides for all threads whether anybody
/// listens to it; most tests' threads have none.
static SECOND: LazyLock<Dispatch> = LazyLock::new(|| {
    let nowhere = tracing_subscriber::fmt().with_writer(std::io::sink);
    Dispatch::new(nowhere.finish())
});

impl Logged {
    fn new(format: LogFormat) -> Self {
        LazyLock::force(&SECOND);
        let log = Log {
            format,
            filter: "info".to_owned(),
        };
        let buffer = Buffer::default();
        let writer = buffer.clone();
        let subscriber = subscriber(&log, move || writer.clone(), false).unwrap();
        Self {
            format,
            buffer,
            _guard: tracing::subscriber::set_default(subscriber),
        }
    }

    /// The lines since the last look that tell what became of a delivery.
    fn lines(&self) -> Vec<Line> {
        let bytes = std::mem::take(&mut *self.buffer.0.lock().unwrap());
        let text = String::from_utf8(bytes).unwrap();
        let told = text.lines().filter(|line| line.contains("batch::report"));
        told.map(|line| self.read(line)).collect()
    }

    fn read(&self, line: &str) -> Line {
        let field = |name: &str| match self.format {
            LogFormat::Json => {
                let line: Value = serde_json::from_str(line).unwrap();
                line.get(name)
                    .map(|value| value.as_str().unwrap().to_owned())
            }
            LogFormat::Pretty => {
                let (_, rest) = line.split_once(&format!(" {name}=\""))?;
                Some(rest.split_once('"').unwrap().0.to_owned())
            }
        };
        let always = |name: &str| field(name).unwrap_or_else(|| panic!("no {name} in {line}"));
        Line {
            message_id: always("message_id"),
            key: always("key"),
            outcome: always("outcome"),
            layer: field("layer"),
            trace_id: field("trace_id"),
        }
    }
}

/// What has to be logged of what was settled.
fn expected(settled: &[Settled]) -> Vec<Line> {
    let lines = settled.iter().flat_map(|settled| {
        let line = |item: &orderonce::worker::ItemOutcome| Line {
            message_id: settled.message_id.clone().unwrap_or_default(),
            key: item
                .key
                .as_ref()
                .map_or(String::new(), |(key, _)| key.to_string()),
            outcome: item.outcome.name().to_owned(),
            layer: item.outcome.layer().map(|layer| layer.to_string()),
            trace_id: settled.trace_id.clone(),
        };
        settled.items.iter().map(line)
    });
    lines.collect()
}

/// Runs a batch and compares what is logged of it; remembers which outcomes there were.
async fn run<R: Role>(
    world: &World,
    logged: &Logged,
    seen: &mut BTreeSet<String>,
    role: &RoleName,
    at: Processor<R>,
) {
    let settled = world.run(role, at).await;
    let lines = logged.lines();
    assert!(!settled.is_empty());
    assert_eq!(lines, expected(&settled));
    let named = lines.into_iter().map(|line| match line.layer {
        Some(layer) => format!("{} {layer}", line.outcome),
        None => line.outcome,
    });
    seen.extend(named);
}

async fn every_delivery_is_logged(format: LogFormat) {
    const REFUSE: &str = "CREATE TRIGGER refuse BEFORE INSERT ON orders
        BEGIN SELECT RAISE(ABORT, 'orders are closed'); END";
    let world = World::new().await;
    let logged = Logged::new(format);
    let seen = &mut BTreeSet::new();
    let (order, payment) = (RoleName::ORDER, RoleName::PAYMENT);

    world
        .publish("order.create", create_worth("O1", 1000))
        .await;
    world
        .publish("order.create", create_worth("O1", 1000))
        .await;
    world
        .publish("order.create", create_worth("O1", 2000))
        .await;
    world.publish_to(&order, b"?", Headers::new()).await;
    world.publish("order.ship", serde_json::json!({})).await;
    run(&world, &logged, seen, &order, world.orders()).await;

    world
        .publish("order.create", create_worth("O1", 1000))
        .await;
    run(&world, &logged, seen, &order, world.orders()).await;

    for _ in 0..2 {
        world
            .publish("payment.succeeded", paid("O2", "T2", 1000))
            .await;
        run(&world, &logged, seen, &payment, world.payments()).await;
    }

    world.publish("order.cancel", of("O1")).await;
    run(&world, &logged, seen, &order, world.orders()).await;
    world.publish("order.expire", of("O1")).await;
    world.publish("order.ship", of("O1")).await;
    run(&world, &logged, seen, &order, world.orders()).await;

    world.execute("DELETE FROM idempotent_record").await;
    world
        .publish("order.create", create_worth("O1", 1000))
        .await;
    run(&world, &logged, seen, &order, world.orders()).await;

    let memory = Arc::new(Memory::default());
    for _ in 0..2 {
        world
            .publish("order.create", create("O3", &[("A", 1)]))
            .await;
        let orders = world.orders().with_gates(memory.gates());
        run(&world, &logged, seen, &order, orders).await;
    }

    world.execute(REFUSE).await;
    world
        .publish("order.create", create_worth("O4", 1000))
        .await;
    run(&world, &logged, seen, &order, world.orders()).await;

    // As two clients of the API ask.
    let orders = world.orders();
    let asked = || {
        let order_id = "O3".parse().unwrap();
        let event = OrderEvent::Cancel(OrderCancel {
            order_id,
            reason: None,
        });
        Asked {
            outgoing: Outgoing::from(&Event::Order(event.clone())),
            event,
            traceparent: None,
            request: Some(Request {
                key: Key::new(&["shop", "k1"]).unwrap(),
                fingerprint: Fingerprint([1; 32]),
            }),
        }
    };
    let both = vec![asked(), asked()];
    orders.process_asked(Timestamp(0), both).await.unwrap();
    let lines = logged.lines();
    let last: Vec<_> = lines.iter().map(|line| line.layer.as_deref()).collect();
    assert_eq!(last, [None, Some("request")]);
    assert!(
        lines.iter().all(|line| line.message_id == "api:shop/k1"),
        "{lines:?}"
    );

    let all = [
        "applied",
        "conflict",
        "dead",
        "duplicate batch",
        "duplicate claim",
        "duplicate flow",
        "duplicate gate",
        "duplicate parked",
        "parked",
        "rejected",
        "retried",
        "stale",
    ];
    assert_eq!(seen.iter().map(String::as_str).collect::<Vec<_>>(), all);
}

#[tokio::test]
async fn every_delivery_is_one_object_with_its_id_key_and_outcome() {
    every_delivery_is_logged(LogFormat::Json).await;
}

#[tokio::test]
async fn every_delivery_is_one_line_with_its_id_key_and_outcome() {
    every_delivery_is_logged(LogFormat::Pretty).await;
}

#[tokio::test]
async fn with_traces_every_delivery_names_its_own() {
    for format in [LogFormat::Json, LogFormat::Pretty] {
        let world = World::new().await;
        let logged = Logged::new(format);
        let mut config = Config::default().trace;
        config.endpoint = Url::new("http://127.0.0.1:9".to_owned());
        let traces = Traces::start(&config).unwrap();
        let message = traced(
            "m1",
            "order.create",
            &create_worth("O1", 1),
            &traceparent(7, 7),
        );
        world
            .publish_raw("order.create", message.message.to_vec(), Headers::new())
            .await;
        world
            .publish_to(&RoleName::ORDER, b"?", Headers::new())
            .await;
        let orders = world.orders().with_traces(traces);
        let settled = world.run(&RoleName::ORDER, orders).await;
        let lines = logged.lines();
        assert_eq!(lines, expected(&settled));
        assert_eq!(lines[0].trace_id, Some(trace_id(7)));
        let of_malformed = lines[1].trace_id.as_deref().unwrap();
        assert_eq!(of_malformed.len(), 32);
    }
}
