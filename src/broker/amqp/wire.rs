//! What a message looks like on the wire.
//!
//! AMQP holds names of at most 255 bytes and properties of at most a frame. A longer name ends in a
//! hash, a longer header is cut; the message itself is always whole.

#![expect(
    clippy::wildcard_enum_match_arm,
    reason = "the library's and JSON's kinds are many, and all others are alike here"
)]

use crate::broker::{Delivery, Headers, Publication, Tag};
use bytes::Bytes;
use lapin::BasicProperties;
use lapin::types::{AMQPValue, FieldTable, ShortString};
use sha2::{Digest, Sha256};
use std::collections::BTreeMap;

/// How many attempts failed before.
const ATTEMPT: &str = "orderonce-attempt";
/// How often the message was delivered before it was published again.
const DELIVERIES: &str = "orderonce-deliveries";
/// How many of these deliveries in a row ended without a word.
const UNSETTLED: &str = "orderonce-unsettled";
/// Which publication of its window this is, so that one that is returned is found again.
const PUBLICATION: &str = "orderonce-publication";

/// Headers that nobody but this adapter sees.
const OWN: [&str; 4] = [ATTEMPT, DELIVERIES, UNSETTLED, PUBLICATION];

/// Headers that the server sets on one way of a message, or that would send it on others.
const OF_THE_WAY: [&str; 11] = [
    "x-death",
    "x-first-death-exchange",
    "x-first-death-queue",
    "x-first-death-reason",
    "x-last-death-exchange",
    "x-last-death-queue",
    "x-last-death-reason",
    X_DELIVERY_COUNT,
    "x-acquired-count",
    "CC",
    "BCC",
];

/// How often a quorum queue took the message back.
const X_DELIVERY_COUNT: &str = "x-delivery-count";

const LONGEST_NAME: usize = 255;
const PERSISTENT: u8 = 2;
const CONTENT_TYPE: &str = "application/cloudevents+json";

/// A publication, ready to be sent.
#[derive(Debug)]
pub(super) struct Outgoing {
    pub(super) exchange: ShortString,
    pub(super) routing_key: ShortString,
    /// Whether it is to be returned if no queue takes it.
    pub(super) mandatory: bool,
    /// All but its headers.
    pub(super) properties: BasicProperties,
    pub(super) headers: FieldTable,
    pub(super) message: Bytes,
}

impl Outgoing {
    /// Its properties as the publication of this number in its window.
    pub(super) fn numbered(&self, number: usize) -> BasicProperties {
        let mut headers = self.headers.clone();
        if self.mandatory {
            let number = i64::try_from(number).unwrap_or(i64::MAX);
            headers.insert(short(PUBLICATION), AMQPValue::LongLongInt(number));
        }
        self.properties.clone().with_headers(headers)
    }
}

/// Which publication of its window a returned message is.
pub(super) fn number(properties: &BasicProperties) -> Option<usize> {
    let headers = properties.headers().as_ref()?;
    count(headers, PUBLICATION).and_then(|number| usize::try_from(number).ok())
}

/// The properties of a publication, its headers apart.
pub(super) fn properties(publication: &Publication) -> BasicProperties {
    BasicProperties::default()
        .with_content_type(short(CONTENT_TYPE))
        .with_delivery_mode(PERSISTENT)
        .with_message_id(short(&publication.message_id))
        .with_type(short(&publication.event_type))
}

/// The headers of a publication, in at most `room` bytes.
///
/// # Errors
/// A sentence, if they do not fit even when they are cut.
pub(super) fn headers(publication: &Publication, room: usize) -> Result<FieldTable, String> {
    let names = publication.headers.iter();
    let own = |name: &str| OWN.contains(&name);
    let mut headers: BTreeMap<ShortString, &str> = names
        .filter(|(name, _)| !own(name))
        .map(|(name, value)| (short(name), value.as_str()))
        .collect();
    cut_to(&mut headers, room)?;
    let values = headers.into_iter();
    let values = values.map(|(name, value)| (name, AMQPValue::LongString(value.into())));
    Ok(values.collect::<BTreeMap<_, _>>().into())
}

/// Cuts the longest values until all headers fit.
fn cut_to(headers: &mut BTreeMap<ShortString, &str>, room: usize) -> Result<(), String> {
    // Length and type of name and value.
    const OVERHEAD: usize = 6;
    const LONGEST_VALUES: [usize; 4] = [16_384, 4_096, 1_024, 256];
    let size = |headers: &BTreeMap<ShortString, &str>| -> usize {
        let sizes = headers.iter();
        sizes
            .map(|(name, value)| OVERHEAD + name.as_str().len() + value.len())
            .sum()
    };
    let whole = size(headers);
    if whole <= room {
        return Ok(());
    }
    for longest in LONGEST_VALUES {
        for value in headers.values_mut() {
            *value = &value[..value.floor_char_boundary(longest)];
        }
        if size(headers) <= room {
            return Ok(());
        }
    }
    Err(format!(
        "headers of {whole} bytes, expected at most {room} to fit a frame"
    ))
}

/// A delivery that is not settled yet.
#[derive(Debug)]
pub(super) struct Held {
    message: Bytes,
    properties: BasicProperties,
    attempt: u32,
    /// This delivery included.
    deliveries: u32,
    /// Deliveries in a row before this one that ended without a word.
    pub(super) unsettled: u32,
    pub(super) stage: Stage,
}

/// How far a delivery is at its consumer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Stage {
    /// Nobody has seen it.
    Arrived,
    /// Somebody works on it.
    HandedOut,
    /// It is being settled.
    Settling,
}

impl Held {
    pub(super) fn of(delivery: lapin::message::Delivery) -> Self {
        let none = FieldTable::default();
        let headers = delivery.properties.headers().as_ref().unwrap_or(&none);
        // A classic queue only says whether it is the first time.
        let returned = match counted(headers, X_DELIVERY_COUNT) {
            0 => u32::from(delivery.redelivered),
            returned => returned,
        };
        Self {
            attempt: counted(headers, ATTEMPT),
            deliveries: counted(headers, DELIVERIES)
                .saturating_add(returned)
                .saturating_add(1),
            unsettled: counted(headers, UNSETTLED).saturating_add(returned),
            stage: Stage::Arrived,
            message: delivery.data.into(),
            properties: delivery.properties,
        }
    }

    /// What a worker sees of it.
    pub(super) fn delivery(&self, tag: Tag) -> Delivery {
        let hidden = |name: &str| OWN.contains(&name) || OF_THE_WAY.contains(&name);
        let headers = self.properties.headers().as_ref();
        let headers = headers.into_iter().flatten();
        let headers = headers.filter_map(|(name, value)| {
            let AMQPValue::LongString(text) = value else {
                return None;
            };
            (!hidden(name.as_str())).then(|| (name.to_string(), text.to_string()))
        });
        self.with_headers(tag, headers.collect())
    }

    /// What is kept of it once it was set aside: also what the server noted of its way, as text.
    pub(super) fn set_aside(&self, tag: Tag, delivery_limit: u32) -> Delivery {
        let none = FieldTable::default();
        let headers = self.properties.headers().as_ref().unwrap_or(&none);
        let texts = headers
            .into_iter()
            .map(|(name, value)| (name.to_string(), readable(value)));
        let mut delivery = self.with_headers(tag, texts.collect());
        // The server counts anew in each queue; where it was the server that brought the message
        // here, its limit was used up in the last one.
        let before = counted(headers, DELIVERIES);
        delivery.deliveries = match headers.contains_key("x-death") {
            true => before.saturating_add(delivery_limit),
            false => before.max(1),
        };
        delivery
    }

    fn with_headers(&self, tag: Tag, headers: Headers) -> Delivery {
        Delivery {
            tag,
            message: self.message.clone(),
            headers,
            attempt: self.attempt,
            deliveries: self.deliveries,
        }
    }

    /// A copy that takes its place in a queue, with nothing counted.
    pub(super) fn released(&self, queue: &ShortString) -> Outgoing {
        self.copy(short(""), queue, self.attempt, self.unsettled)
    }

    /// A copy that comes back by way of an exchange that delays it, with nothing counted.
    pub(super) fn delayed(&self, exchange: ShortString, queue: &ShortString) -> Outgoing {
        self.copy(exchange, queue, self.attempt, self.unsettled)
    }

    /// A copy that comes back by way of an exchange that delays it, with its attempt counted.
    pub(super) fn retried(&self, exchange: ShortString, queue: &ShortString) -> Outgoing {
        self.copy(exchange, queue, self.attempt.saturating_add(1), 0)
    }

    fn copy(
        &self,
        exchange: ShortString,
        queue: &ShortString,
        attempt: u32,
        unsettled: u32,
    ) -> Outgoing {
        let original = &self.properties;
        let goes_along = |name: &str| !OWN.contains(&name) && !OF_THE_WAY.contains(&name);
        let before = original.headers().as_ref().into_iter().flatten();
        let mut headers: BTreeMap<ShortString, AMQPValue> = before
            .filter(|(name, _)| goes_along(name.as_str()))
            .map(|(name, value)| (name.clone(), value.clone()))
            .collect();
        for (name, value) in [
            (ATTEMPT, attempt),
            (DELIVERIES, self.deliveries),
            (UNSETTLED, unsettled),
        ] {
            if value > 0 {
                headers.insert(short(name), AMQPValue::LongLongInt(value.into()));
            }
        }
        // Left out: an expiry that has done its work, a user whom only he himself may name, and an
        // address for answers that is good on one channel only.
        let mut properties = BasicProperties::default().with_delivery_mode(PERSISTENT);
        if let Some(value) = original.content_type() {
            properties = properties.with_content_type(value.clone());
        }
        if let Some(value) = original.content_encoding() {
            properties = properties.with_content_encoding(value.clone());
        }
        if let Some(value) = original.priority() {
            properties = properties.with_priority(*value);
        }
        if let Some(value) = original.correlation_id() {
            properties = properties.with_correlation_id(value.clone());
        }
        if let Some(value) = original.message_id() {
            properties = properties.with_message_id(value.clone());
        }
        if let Some(value) = original.timestamp() {
            properties = properties.with_timestamp(*value);
        }
        if let Some(value) = original.kind() {
            properties = properties.with_type(value.clone());
        }
        if let Some(value) = original.app_id() {
            properties = properties.with_app_id(value.clone());
        }
        Outgoing {
            exchange,
            routing_key: queue.clone(),
            mandatory: true,
            properties,
            headers: headers.into(),
            message: self.message.clone(),
        }
    }
}

/// A name that AMQP has room for: itself, or its beginning and a hash of all of it.
pub(super) fn short(name: &str) -> ShortString {
    let fits = |name: &str| ShortString::try_new(name).ok();
    let shortened = || {
        let hash = hex::encode(Sha256::digest(name));
        let start = name.floor_char_boundary(LONGEST_NAME - 1 - hash.len());
        fits(&format!("{}~{hash}", &name[..start]))
    };
    fits(name).or_else(shortened).unwrap_or_default()
}

/// A count in a header; 0 if there is none, or none that makes sense.
fn counted(headers: &FieldTable, name: &str) -> u32 {
    let value = count(headers, name).unwrap_or(0).max(0);
    u32::try_from(value).unwrap_or(u32::MAX)
}

fn count(headers: &FieldTable, name: &str) -> Option<i64> {
    match headers.inner().get(name)? {
        AMQPValue::ShortShortInt(value) => Some((*value).into()),
        AMQPValue::ShortShortUInt(value) => Some((*value).into()),
        AMQPValue::ShortInt(value) => Some((*value).into()),
        AMQPValue::ShortUInt(value) => Some((*value).into()),
        AMQPValue::LongInt(value) => Some((*value).into()),
        AMQPValue::LongUInt(value) => Some((*value).into()),
        AMQPValue::LongLongInt(value) => Some(*value),
        AMQPValue::LongString(text) => text.to_string().parse().ok(),
        AMQPValue::Boolean(_)
        | AMQPValue::Float(_)
        | AMQPValue::Double(_)
        | AMQPValue::DecimalValue(_)
        | AMQPValue::ShortString(_)
        | AMQPValue::FieldArray(_)
        | AMQPValue::Timestamp(_)
        | AMQPValue::FieldTable(_)
        | AMQPValue::ByteArray(_)
        | AMQPValue::Void => None,
    }
}

/// A header's value for people: a text as it is, anything else as JSON.
fn readable(value: &AMQPValue) -> String {
    match json(value) {
        serde_json::Value::String(text) => text,
        other => other.to_string(),
    }
}

fn json(value: &AMQPValue) -> serde_json::Value {
    match value {
        AMQPValue::Boolean(value) => (*value).into(),
        AMQPValue::ShortShortInt(value) => (*value).into(),
        AMQPValue::ShortShortUInt(value) => (*value).into(),
        AMQPValue::ShortInt(value) => (*value).into(),
        AMQPValue::ShortUInt(value) => (*value).into(),
        AMQPValue::LongInt(value) => (*value).into(),
        AMQPValue::LongUInt(value) => (*value).into(),
        AMQPValue::LongLongInt(value) => (*value).into(),
        AMQPValue::Float(value) => (*value).into(),
        AMQPValue::Double(value) => (*value).into(),
        AMQPValue::DecimalValue(value) => format!("{}e-{}", value.value, value.scale).into(),
        AMQPValue::ShortString(text) => text.as_str().into(),
        AMQPValue::LongString(text) => text.to_string().into(),
        AMQPValue::FieldArray(values) => values.as_slice().iter().map(json).collect(),
        AMQPValue::Timestamp(seconds) => (*seconds).into(),
        AMQPValue::FieldTable(table) => table
            .into_iter()
            .map(|(name, value)| (name.to_string(), json(value)))
            .collect(),
        AMQPValue::ByteArray(bytes) => hex::encode(bytes.as_slice()).into(),
        AMQPValue::Void => serde_json::Value::Null,
    }
}
