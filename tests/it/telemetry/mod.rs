//! What a process tells about itself: metrics, traces, logs.

mod collector;
mod kept;
mod logs;
pub(crate) mod metrics;
mod traces;

use orderonce::broker::Publication;
use serde_json::{Value, json};

/// A trace that somebody else has begun, at its span number `span`.
fn traceparent(trace: u8, span: u8) -> String {
    format!("00-{}-{}-01", trace_id(trace), span_id(span))
}

fn trace_id(trace: u8) -> String {
    format!("{trace:032x}")
}

fn span_id(span: u8) -> String {
    format!("{span:016x}")
}

/// A message within a trace.
fn traced(id: &str, event_type: &str, data: &Value, traceparent: &str) -> Publication {
    let mut message = envelope(id, event_type, data);
    message["traceparent"] = json!(traceparent);
    publication(id, event_type, &message)
}

fn envelope(id: &str, event_type: &str, data: &Value) -> Value {
    let message = crate::support::envelope(id, event_type, data);
    serde_json::from_str(&message).unwrap()
}

fn publication(id: &str, event_type: &str, message: &Value) -> Publication {
    Publication {
        message_id: id.to_owned(),
        event_type: event_type.to_owned(),
        addressee: None,
        message: message.to_string().into(),
        headers: Default::default(),
    }
}
