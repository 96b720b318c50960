//! Envelopes: CloudEvents 1.0 JSON, to bytes and back.
//!
//! What lives here: reading and writing messages, and every way in which one can be malformed.
//! What deliberately does not: what an event means, which is [`crate::domain`]'s.

mod fields;
mod malformed;
mod payload;
#[cfg(test)]
mod tests;

pub use fields::Fields;
pub use malformed::Malformed;
pub use payload::{account_event, inventory_event, order_event};

use crate::domain::{Event, Timestamp};
use fields::Path;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use std::borrow::Cow;

/// The media type of a message.
pub const CONTENT_TYPE: &str = "application/cloudevents+json";

/// What a message may be at most.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Limits {
    /// Bytes of a message.
    pub max_bytes: usize,
    /// Levels of nested objects and arrays.
    pub max_depth: usize,
}

/// 1 MiB, 32 levels.
impl Default for Limits {
    fn default() -> Self {
        Self {
            max_bytes: 1 << 20,
            max_depth: 32,
        }
    }
}

/// A message, read as far as its envelope. Unknown attributes are ignored.
#[derive(Debug, Clone)]
pub struct Envelope<'a> {
    /// The producer's id of the message; copies may have others.
    pub id: Cow<'a, str>,
    /// Who produced it.
    pub source: Cow<'a, str>,
    /// The type of its events, such as `order.create`.
    pub event_type: Cow<'a, str>,
    /// What it is about.
    pub subject: Cow<'a, str>,
    /// When it was produced, as the producer says.
    pub time: Option<Timestamp>,
    /// W3C trace context.
    pub traceparent: Option<Cow<'a, str>>,
    data: Fields<'a>,
}

impl<'a> Envelope<'a> {
    /// Reads the envelope of a message.
    ///
    /// # Errors
    /// [`Malformed`]: the first thing that is wrong with it.
    pub fn parse(bytes: &'a [u8], limits: &Limits) -> Result<Self, Malformed> {
        let text = text_within(bytes, limits)?;
        let fields = Fields::parse(text, Path::Root("message"))?;
        let version = fields.text("specversion")?;
        if version != "1.0" {
            return Err(fields.invalid("specversion", &version, "must be 1.0"));
        }
        let time = match fields.optional_text("time")? {
            Some(text) => Some(
                Timestamp::parse_rfc3339(&text)
                    .ok_or_else(|| fields.invalid("time", &text, "must be an RFC 3339 time"))?,
            ),
            None => None,
        };
        Ok(Self {
            id: fields.attribute("id")?,
            source: fields.attribute("source")?,
            event_type: fields.attribute("type")?,
            subject: fields.attribute("subject")?,
            time,
            traceparent: fields.optional_attribute("traceparent")?,
            data: Fields::parse(fields.required("data")?.get(), Path::Root("data"))?,
        })
    }

    /// The content of each of its events: those of `data.items`, or `data` itself.
    ///
    /// # Errors
    /// [`Malformed`] if `items` is not a list of objects, or is empty.
    pub fn items(&self) -> Result<Vec<Fields<'a>>, Malformed> {
        if self.data.optional("items").is_some() {
            self.data.objects("items")
        } else {
            Ok(vec![self.data.clone()])
        }
    }
}

/// The trace context of a message, read without the rest.
#[must_use]
pub fn traceparent(message: &[u8]) -> Option<String> {
    #[derive(Deserialize)]
    struct Traced {
        traceparent: Option<String>,
    }
    let traced: Traced = serde_json::from_slice(message).ok()?;
    traced.traceparent
}

/// Bytes as text, if they are within the limits.
fn text_within<'a>(bytes: &'a [u8], limits: &Limits) -> Result<&'a str, Malformed> {
    if bytes.len() > limits.max_bytes {
        return Err(Malformed::TooLarge {
            bytes: bytes.len(),
            max: limits.max_bytes,
        });
    }
    if let [0xEF, 0xBB, 0xBF, ..] | [0xFE, 0xFF, ..] | [0xFF, 0xFE, ..] = bytes {
        return Err(Malformed::ByteOrderMark);
    }
    let text = std::str::from_utf8(bytes).map_err(|error| Malformed::NotUtf8 {
        at: error.valid_up_to(),
    })?;
    if depth(bytes) > limits.max_depth {
        return Err(Malformed::TooDeep {
            max: limits.max_depth,
        });
    }
    Ok(text)
}

/// How deep objects and arrays are nested, counted without building anything.
fn depth(json: &[u8]) -> usize {
    let (mut depth, mut deepest) = (0_usize, 0);
    let (mut in_text, mut escaped) = (false, false);
    for &byte in json {
        if in_text {
            match byte {
                _ if escaped => escaped = false,
                b'\\' => escaped = true,
                b'"' => in_text = false,
                _ => {}
            }
        } else {
            match byte {
                b'"' => in_text = true,
                b'{' | b'[' => {
                    depth += 1;
                    deepest = deepest.max(depth);
                }
                b'}' | b']' => depth = depth.saturating_sub(1),
                _ => {}
            }
        }
    }
    deepest
}

/// An event on its way out, not yet in an envelope.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Outgoing {
    /// The type, such as `order.created`.
    pub event_type: Cow<'static, str>,
    /// What it is about. Events of one subject leave in the order of their commits.
    pub subject: String,
    /// The content, a JSON object.
    pub data: String,
}

impl From<&Event> for Outgoing {
    fn from(event: &Event) -> Self {
        // Structs of integers and texts with text keys always serialize.
        let data = serde_json::to_string(event).unwrap_or_default();
        Self {
            event_type: event.event_type().name().into(),
            subject: event.subject().to_owned(),
            data,
        }
    }
}

/// What an envelope says beside its event.
#[derive(Debug, Clone, Copy)]
pub struct Meta<'a> {
    /// The message id.
    pub id: &'a str,
    /// Who produces it.
    pub source: &'a str,
    /// When.
    pub time: Timestamp,
    /// W3C trace context, passed on.
    pub traceparent: Option<&'a str>,
}

/// Puts an event into its envelope.
#[must_use]
pub fn encode(meta: Meta<'_>, event: &Outgoing) -> String {
    #[derive(Serialize)]
    struct Wire<'a> {
        specversion: &'static str,
        id: &'a str,
        source: &'a str,
        r#type: &'a str,
        subject: &'a str,
        time: String,
        #[serde(skip_serializing_if = "Option::is_none")]
        traceparent: Option<&'a str>,
        datacontenttype: &'static str,
        data: Option<&'a RawValue>,
    }
    serde_json::to_string(&Wire {
        specversion: "1.0",
        id: meta.id,
        source: meta.source,
        r#type: &event.event_type,
        subject: &event.subject,
        time: meta.time.to_string(),
        traceparent: meta.traceparent,
        datacontenttype: "application/json",
        data: serde_json::from_str(&event.data).ok(),
    })
    .unwrap_or_default()
}
