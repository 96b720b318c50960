//! Traces: spans of deliveries, batches, publications and requests, sent to a collector.
//!
//! Nothing waits for the collector. Spans are handed over to a thread of their own, which sends them in batches;
//! those that it cannot send, or that are too many for it, are lost. While traces are off no span is made.

use super::traceparent;
use crate::config;
use crate::config::Url;
use axum::extract::{MatchedPath, Request, State};
use axum::middleware::Next;
use axum::response::Response;
use opentelemetry::trace::{
    Span as _, SpanBuilder, SpanContext, SpanKind, Status, TraceContextExt, Tracer, TracerProvider,
};
use opentelemetry::{Context, KeyValue, Value};
use opentelemetry_otlp::{ExporterBuildError, WithExportConfig};
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::error::{OTelSdkError, OTelSdkResult};
use opentelemetry_sdk::trace::{
    BatchConfigBuilder, BatchSpanProcessor, Sampler, SdkTracer, SdkTracerProvider, SpanData,
    SpanExporter,
};
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, SystemTime};

/// How long the collector may take for one answer.
const PATIENCE: Duration = Duration::from_secs(5);

/// How long is waited at the end for what was not sent yet.
const FLUSH: Duration = Duration::from_secs(2);

/// Spans that wait to be sent, at most; beyond that they are lost.
const QUEUE: usize = 32_768;

/// Spans that are sent at once, at most.
const SENT_AT_ONCE: usize = 2_048;

/// Links of a batch to its deliveries, at most: the limit of `batch.max`.
const LINKS: u32 = 4_096;

/// Why traces cannot be started.
#[derive(Debug, thiserror::Error)]
#[error("trace.endpoint is {at}, expected where a collector takes OTLP over HTTP: {error}")]
pub struct Error {
    at: Url,
    error: ExporterBuildError,
}

/// Makes spans, or none while traces are off, which is the default.
#[derive(Clone, Default)]
pub struct Traces {
    on: Option<Arc<On>>,
    system: &'static str,
}

struct On {
    provider: SdkTracerProvider,
    tracer: SdkTracer,
}

impl fmt::Debug for Traces {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Traces").field(&self.is_on()).finish()
    }
}

impl Traces {
    /// Traces as they are configured: none without an endpoint.
    ///
    /// # Errors
    /// [`Error`] if the endpoint cannot be one. Whether a collector is there shows only when spans are sent.
    pub fn start(config: &config::Trace) -> Result<Self, Error> {
        let at = &config.endpoint;
        if at.as_str().is_empty() {
            return Ok(Self::default());
        }
        let exporter = opentelemetry_otlp::SpanExporter::builder()
            .with_http()
            .with_endpoint(format!("{}/v1/traces", at.as_str().trim_end_matches('/')))
            .with_timeout(PATIENCE)
            .build();
        let exporter = Exporter {
            otlp: exporter.map_err(|error| Error {
                at: at.clone(),
                error,
            })?,
            at: at.clone(),
            is_away: AtomicBool::new(false),
        };
        let queue = BatchConfigBuilder::default()
            .with_max_queue_size(QUEUE)
            .with_max_export_batch_size(SENT_AT_ONCE)
            .with_scheduled_delay(Duration::from_secs(1))
            .build();
        let processor = BatchSpanProcessor::builder(exporter).with_batch_config(queue);
        let resource = Resource::builder_empty()
            .with_service_name(config.service.clone())
            .with_attribute(KeyValue::new("service.version", env!("CARGO_PKG_VERSION")))
            .with_attribute(KeyValue::new(
                "service.instance.id",
                format!("{:016x}", fastrand::u64(..)),
            ));
        let own = match config.sample_one_in {
            0 | 1 => Sampler::AlwaysOn,
            one_in => Sampler::TraceIdRatioBased(1.0 / f64::from(one_in)),
        };
        let provider = SdkTracerProvider::builder()
            .with_span_processor(processor.build())
            .with_sampler(Sampler::ParentBased(Box::new(own)))
            .with_max_links_per_span(LINKS)
            .with_resource(resource.build())
            .build();
        let tracer = provider.tracer("orderonce");
        Ok(Self {
            on: Some(Arc::new(On { provider, tracer })),
            system: "",
        })
    }

    /// The same, of messages on this kind of broker, such as `rabbitmq`.
    #[must_use]
    pub fn over(&self, system: &'static str) -> Self {
        Self {
            on: self.on.clone(),
            system,
        }
    }

    /// Whether spans are made.
    #[must_use]
    pub fn is_on(&self) -> bool {
        self.on.is_some()
    }

    /// Sends what was not sent yet, and waits for that for two seconds at most. No span is made after it.
    pub async fn finish(&self) {
        let Some(on) = self.on.clone() else {
            return;
        };
        let finished =
            tokio::task::spawn_blocking(move || on.provider.shutdown_with_timeout(FLUSH));
        // A collector that is away was told of when it was.
        if let Ok(Err(error @ OTelSdkError::Timeout(_))) = finished.await {
            tracing::warn!(%error, "the last spans may not have been sent");
        }
    }

    /// The kind of broker.
    pub(crate) fn system(&self) -> &'static str {
        self.system
    }

    /// Begins a span within a trace that somebody else has begun, or a trace of its own. `None` while traces are
    /// off.
    pub(crate) fn begin(&self, name: String, kind: SpanKind, parent: Option<&str>) -> Option<Span> {
        let parent = self.on.as_ref().and(parent).and_then(traceparent::parse);
        self.build(SpanBuilder::from_name(name).with_kind(kind), parent)
    }

    /// A span within `parent` that has ended already.
    pub(crate) fn past(
        &self,
        name: &'static str,
        parent: &Span,
        from: SystemTime,
        until: SystemTime,
    ) {
        if !parent.is_kept() {
            return;
        }
        let builder = SpanBuilder::from_name(name).with_start_time(from);
        if let Some(mut span) = self.build(builder, Some(parent.context().clone())) {
            span.0.end_with_timestamp(until);
        }
    }

    fn build(&self, builder: SpanBuilder, parent: Option<SpanContext>) -> Option<Span> {
        let on = self.on.as_ref()?;
        let within = match parent {
            Some(parent) => Context::new().with_remote_span_context(parent),
            None => Context::new(),
        };
        Some(Span(on.tracer.build_with_context(builder, &within)))
    }
}

/// A span that ends when it is dropped.
#[derive(Debug)]
pub(crate) struct Span(opentelemetry_sdk::trace::Span);

impl Span {
    fn context(&self) -> &SpanContext {
        self.0.span_context()
    }

    /// Whether it is sampled, so that what is said of it is of use.
    pub(crate) fn is_kept(&self) -> bool {
        self.0.is_recording()
    }

    /// What is handed on to whoever works within it.
    pub(crate) fn traceparent(&self) -> String {
        traceparent::write(self.context())
    }

    /// The number of its trace.
    pub(crate) fn trace_id(&self) -> String {
        self.context().trace_id().to_string()
    }

    /// Says something about it.
    pub(crate) fn set(&mut self, key: &'static str, value: impl Into<Value>) {
        self.0.set_attribute(KeyValue::new(key, value));
    }

    /// Says that something did not go well.
    pub(crate) fn fail(&mut self, why: String) {
        self.0.set_status(Status::error(why));
    }

    /// Points to another span, if that is kept.
    pub(crate) fn link(&mut self, other: &Self) {
        if other.is_kept() {
            self.0.add_link(other.context().clone(), Vec::new());
        }
    }
}

/// The `traceparent` that a handler passes on, as an extension of its request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Passed(pub String);

/// For [`axum::middleware::from_fn_with_state`]: makes a span of each request, within the trace of its
/// `traceparent`, and hands on a [`Passed`]. While traces are off that is the caller's own `traceparent`, unread.
pub async fn http(State(traces): State<Traces>, mut request: Request, next: Next) -> Response {
    let mut given = request.headers().get_all("traceparent").iter();
    // Of two nobody knows which one is right.
    let given = given.next().filter(|_| given.next().is_none());
    let given = given
        .and_then(|value| value.to_str().ok())
        .map(str::to_owned);
    let method = request.method().to_string();
    let route = request.extensions().get::<MatchedPath>();
    let route = route.map(|route| route.as_str().to_owned());
    let name = || match &route {
        Some(route) => format!("{method} {route}"),
        None => method.clone(),
    };
    let span = traces
        .is_on()
        .then(|| traces.begin(name(), SpanKind::Server, given.as_deref()));
    let Some(mut span) = span.flatten() else {
        if let Some(given) = given {
            request.extensions_mut().insert(Passed(given));
        }
        return next.run(request).await;
    };
    request.extensions_mut().insert(Passed(span.traceparent()));
    span.set("http.request.method", method);
    if let Some(route) = route {
        span.set("http.route", route);
    }
    span.set("url.path", request.uri().path().to_owned());
    let response = next.run(request).await;
    let status = response.status();
    span.set("http.response.status_code", i64::from(status.as_u16()));
    if status.is_server_error() {
        span.fail(status.to_string());
    }
    response
}

/// Sends spans, and says once that it cannot and once that it can again.
#[derive(Debug)]
struct Exporter {
    otlp: opentelemetry_otlp::SpanExporter,
    at: Url,
    is_away: AtomicBool,
}

impl SpanExporter for Exporter {
    async fn export(&self, batch: Vec<SpanData>) -> OTelSdkResult {
        let spans = u64::try_from(batch.len()).unwrap_or(u64::MAX);
        let sent = self.otlp.export(batch).await;
        let was_away = self.is_away.swap(sent.is_err(), Ordering::Relaxed);
        let result = match &sent {
            Ok(()) => "sent",
            Err(_) => "lost",
        };
        metrics::counter!("orderonce_trace_spans_total", "result" => result).increment(spans);
        let at = &self.at;
        match &sent {
            Ok(()) if was_away => tracing::info!(%at, "the collector takes spans again"),
            Err(error) if !was_away => {
                tracing::warn!(%at, %error, "the collector takes no spans, they are lost until it does");
            }
            Ok(()) | Err(_) => {}
        }
        sent
    }

    fn shutdown_with_timeout(&self, timeout: Duration) -> OTelSdkResult {
        self.otlp.shutdown_with_timeout(timeout)
    }

    fn force_flush(&self) -> OTelSdkResult {
        self.otlp.force_flush()
    }

    fn set_resource(&mut self, resource: &Resource) {
        self.otlp.set_resource(resource);
    }
}
