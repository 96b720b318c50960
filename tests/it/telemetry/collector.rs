//! A collector of traces.

use crate::site::until;
use axum::Router;
use axum::extract::State;
use axum::routing::post;
use bytes::Bytes;
use opentelemetry_proto::tonic::collector::trace::v1::ExportTraceServiceRequest;
use opentelemetry_proto::tonic::common::v1::KeyValue;
use opentelemetry_proto::tonic::common::v1::any_value::Value;
use opentelemetry_proto::tonic::trace::v1::Span;
use prost::Message;
use std::sync::{Arc, Mutex};
use tokio::net::TcpListener;
use tokio_util::task::AbortOnDropHandle;

pub(super) struct Collector {
    pub(super) endpoint: String,
    spans: Spans,
    _serving: AbortOnDropHandle<()>,
}

type Spans = Arc<Mutex<Vec<Collected>>>;

/// A span as it arrived.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Collected {
    pub(super) service: String,
    pub(super) name: String,
    pub(super) trace: String,
    pub(super) id: String,
    /// Empty if it has none.
    pub(super) parent: String,
    pub(super) kind: i32,
    /// The spans that it points to.
    pub(super) links: Vec<String>,
    pub(super) has_failed: bool,
    attributes: Vec<KeyValue>,
}

impl Collected {
    /// An attribute as text; empty if there is none.
    pub(super) fn get(&self, key: &str) -> String {
        let attribute = self
            .attributes
            .iter()
            .find(|attribute| attribute.key == key);
        text(attribute)
    }
}

fn text(attribute: Option<&KeyValue>) -> String {
    let value = attribute.and_then(|attribute| attribute.value.as_ref()?.value.as_ref());
    match value {
        None => String::new(),
        Some(Value::StringValue(text)) => text.clone(),
        Some(Value::IntValue(number)) => number.to_string(),
        Some(other) => panic!("{other:?}"),
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn collected(service: &str, span: Span) -> Collected {
    Collected {
        service: service.to_owned(),
        name: span.name,
        trace: hex(&span.trace_id),
        id: hex(&span.span_id),
        parent: hex(&span.parent_span_id),
        kind: span.kind,
        links: span.links.iter().map(|link| hex(&link.span_id)).collect(),
        has_failed: span.status.is_some_and(|status| status.code == 2),
        attributes: span.attributes,
    }
}

async fn take(State(spans): State<Spans>, body: Bytes) -> &'static str {
    let request = ExportTraceServiceRequest::decode(body).unwrap();
    for of_service in request.resource_spans {
        let resource = of_service.resource.unwrap_or_default();
        let mut attributes = resource.attributes.iter();
        let service = text(attributes.find(|attribute| attribute.key == "service.name"));
        let scopes = of_service.scope_spans.into_iter();
        let arrived = scopes.flat_map(|scope| scope.spans);
        let mut spans = spans.lock().unwrap();
        spans.extend(arrived.map(|span| collected(&service, span)));
    }
    ""
}

impl Collector {
    pub(super) async fn new() -> Self {
        let spans = Spans::default();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let endpoint = format!("http://{}", listener.local_addr().unwrap());
        let routes = Router::new()
            .route("/v1/traces", post(take))
            .with_state(Arc::clone(&spans));
        let serving = async move { axum::serve(listener, routes).await.unwrap() };
        Self {
            endpoint,
            spans,
            _serving: AbortOnDropHandle::new(tokio::spawn(serving)),
        }
    }

    pub(super) fn spans(&self) -> Vec<Collected> {
        self.spans.lock().unwrap().clone()
    }

    /// The only span of that name with that parent, once it has arrived.
    pub(super) async fn child(&self, parent: &str, name: &str) -> Collected {
        let mut found = Vec::new();
        until(&format!("{name} within {parent} has arrived"), async || {
            found = self.spans();
            found.retain(|span| span.name == name && span.parent == parent);
            !found.is_empty()
        })
        .await;
        assert_eq!(found.len(), 1, "{found:#?}");
        found.remove(0)
    }
}
