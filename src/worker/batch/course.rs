//! How a batch goes: what each step takes, and the spans of the batch and its deliveries.

use super::meter::{Meter, Step};
use super::unit::{Content, Unreadable};
use super::{ItemOutcome, Settled};
use crate::domain::{Outcome, RoleName};
use crate::telemetry::trace::{Span, Traces};
use opentelemetry::trace::SpanKind;
use std::time::{Instant, SystemTime};

/// A batch on its way.
pub(super) struct Course<'p> {
    meter: &'p Meter,
    role: &'p RoleName,
    traces: &'p Traces,
    last: Instant,
    /// The span of the batch, if it is kept, and when its last step ended.
    span: Option<(Span, SystemTime)>,
}

/// Where deliveries come from.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Origin {
    /// A queue.
    Queue,
    /// Somebody within this process, such as the HTTP API.
    Process,
}

/// The spans of the deliveries of a batch, in their order; none while traces are off.
pub(super) struct Spans(Vec<Span>);

impl<'p> Course<'p> {
    pub(super) fn new(
        role: &'p RoleName,
        meter: &'p Meter,
        traces: &'p Traces,
        deliveries: usize,
    ) -> Self {
        meter.batch(deliveries);
        let mut course = Self {
            meter,
            role,
            traces,
            last: Instant::now(),
            span: None,
        };
        if traces.is_on()
            && let Some(mut span) = traces.begin(format!("batch {role}"), SpanKind::Internal, None)
            && span.is_kept()
        {
            let count = i64::try_from(deliveries).unwrap_or(i64::MAX);
            span.set("messaging.batch.message_count", count);
            span.set("messaging.destination.name", role.as_str().to_owned());
            course.span = Some((span, SystemTime::now()));
        }
        course
    }

    /// A step has ended that began when the last one did.
    pub(super) fn lap(&mut self, step: Step) {
        let now = Instant::now();
        self.meter.step(step, now - self.last);
        self.last = now;
        if let Some((span, since)) = &mut self.span {
            let until = SystemTime::now();
            self.traces.past(step.into(), span, *since, until);
            *since = until;
        }
    }

    /// What took time since the last step belongs to none.
    pub(super) fn rest(&mut self) {
        self.last = Instant::now();
        if let Some((_, since)) = &mut self.span {
            *since = SystemTime::now();
        }
    }

    /// Begins a span for each delivery, which takes the place of the trace context that it came with: what it
    /// causes is within it.
    pub(super) fn begin<'c, E: 'c>(
        &mut self,
        origin: Origin,
        contents: impl Iterator<Item = Result<&'c mut Content<E>, &'c Unreadable>>,
    ) -> Spans {
        let mut spans = Vec::new();
        if !self.traces.is_on() {
            return Spans(spans);
        }
        let kind = match origin {
            Origin::Queue => SpanKind::Consumer,
            Origin::Process => SpanKind::Internal,
        };
        for content in contents {
            let parent = match &content {
                Ok(content) => content.traceparent.as_deref(),
                Err(_) => None,
            };
            let name = format!("process {}", self.role);
            let Some(mut span) = self.traces.begin(name, kind.clone(), parent) else {
                return Spans(Vec::new());
            };
            if origin == Origin::Queue {
                span.set("messaging.system", self.traces.system());
                span.set("messaging.operation.name", "process");
                span.set("messaging.operation.type", "process");
                span.set("messaging.destination.name", self.role.as_str().to_owned());
            }
            if let Some((batch, _)) = &mut self.span {
                batch.link(&span);
            }
            if let Ok(content) = content {
                content.traceparent = Some(span.traceparent());
            }
            spans.push(span);
        }
        Spans(spans)
    }
}

impl Spans {
    /// Ends all spans: those of `settled`, which are the first of the batch, with what became of them.
    pub(super) fn end(self, settled: &mut [Settled]) {
        let decided = settled.len();
        for (span, settled) in self.0.iter().zip(settled.iter_mut()) {
            settled.trace_id = Some(span.trace_id());
        }
        for (place, mut span) in self.0.into_iter().enumerate() {
            match settled.get(place).filter(|_| place < decided) {
                Some(settled) if span.is_kept() => describe(&mut span, settled),
                Some(_) => {}
                None => span.fail("not decided, it comes again".to_owned()),
            }
        }
    }
}

/// Says on the span of a delivery what became of it.
fn describe(span: &mut Span, settled: &Settled) {
    if let Some(message_id) = &settled.message_id {
        span.set("messaging.message.id", message_id.clone());
    }
    let keys = settled.items.iter().filter_map(|item| item.key.as_ref());
    let keys: Vec<_> = keys.map(|(key, _)| key.as_str()).collect();
    span.set("orderonce.key", keys.join(" "));
    let outcomes: Vec<_> = settled
        .items
        .iter()
        .map(|item| item.outcome.name())
        .collect();
    span.set("orderonce.outcome", outcomes.join(" "));
    for ItemOutcome { outcome, .. } in &settled.items {
        match outcome {
            Outcome::Conflict | Outcome::Retried { .. } | Outcome::Dead(_) => {
                span.fail(outcome.to_string());
            }
            Outcome::Applied
            | Outcome::Duplicate(_)
            | Outcome::Parked(_)
            | Outcome::Stale
            | Outcome::Rejected(_) => {}
        }
    }
}
