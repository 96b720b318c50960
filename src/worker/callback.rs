//! The callback role: what payment providers say by HTTP. It has no queue: whoever answers the provider asks a
//! [`Desk`](super::Desk).
//!
//! It decides nothing about orders. What is said goes to the outbox, and the request is kept as it came, in the
//! transaction that takes its key; the rest is up to the payment role. So a provider is answered as soon as what it
//! said cannot be lost any more, however busy the roles are.

use super::{Asked, Role, Ruling};
use crate::domain::event::{Event, OrderEvent};
use crate::domain::{Fingerprint, Key, Provider, RoleName, Timestamp, Verdict};
use crate::message::{Envelope, Malformed, Outgoing};
use crate::store::{self, CallbackVerdict, NewCallback, Tx};
use async_trait::async_trait;
use bytes::Bytes;
use std::collections::BTreeMap;
use std::sync::Arc;

/// A callback, read.
#[derive(Debug, Clone)]
pub struct Callback {
    provider: Provider,
    said: Said,
    raw: Arc<Raw>,
    subject: String,
    fingerprint: Fingerprint,
    key: Key,
}

/// What a callback says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Said {
    /// What happened to an order, in this order.
    Events(Vec<OrderEvent>),
    /// Something that moves no order.
    OfNoInterest,
    /// Nothing that is believed, and why.
    Refused {
        /// The name of the cause.
        code: &'static str,
        /// What exactly was wrong.
        detail: String,
    },
}

/// A request, as it came.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Raw {
    /// Its headers, without secrets.
    pub headers: BTreeMap<String, String>,
    /// Its body, or the beginning of it.
    pub body: Bytes,
    /// The address that it came from.
    pub remote: String,
}

impl Callback {
    /// What `provider` said by the request `raw`.
    ///
    /// Its key holds a hash of all that counts: the events, whatever else differs from one call to the next, or the
    /// body, if there are none. So only what says exactly the same is stopped here. Whether two callbacks that say
    /// different things mean the same payment is decided by the payment role, which keeps a conflict.
    #[must_use]
    pub fn new(provider: Provider, said: Said, raw: Raw) -> Self {
        let (subject, fingerprint) = match &said {
            Said::Events(events) => {
                let subject = events.first().map_or("", |event| event.order_id().as_str());
                (subject.to_owned(), Fingerprint::of("callback", events))
            }
            Said::OfNoInterest => (String::new(), Fingerprint::of("ignored", &&raw.body[..])),
            Said::Refused { code, .. } => (String::new(), Fingerprint::of(code, &&raw.body[..])),
        };
        let about = match &said {
            Said::Events(_) if !subject.is_empty() => &subject,
            Said::Events(_) | Said::OfNoInterest => "ignored",
            Said::Refused { .. } => "refused",
        };
        let hash = fingerprint.to_hex();
        Self {
            key: Key::of(&[provider.as_str(), about, &hash[..32]]),
            provider,
            said,
            raw: Arc::new(raw),
            subject,
            fingerprint,
        }
    }

    /// The same for a [`Desk`](super::Desk).
    #[must_use]
    pub fn asked(self, traceparent: Option<String>) -> Asked<Self> {
        Asked {
            outgoing: self.outgoing(),
            event: self,
            traceparent,
            request: None,
        }
    }

    /// What its claim keeps: the request itself has a table of its own.
    fn outgoing(&self) -> Outgoing {
        let verdict: &str = self.verdict().into();
        let data = serde_json::json!({
            "provider": self.provider.as_str(),
            "detail": self.detail(),
        });
        Outgoing {
            event_type: format!("callback.{}", verdict.to_ascii_lowercase()).into(),
            subject: self.subject.clone(),
            data: data.to_string(),
        }
    }

    fn verdict(&self) -> CallbackVerdict {
        match &self.said {
            Said::Events(_) => CallbackVerdict::Accepted,
            Said::OfNoInterest => CallbackVerdict::Ignored,
            Said::Refused { .. } => CallbackVerdict::Refused,
        }
    }

    /// The types of its events, or why it is refused.
    fn detail(&self) -> String {
        match &self.said {
            Said::Events(events) => {
                let types = events.iter().map(|event| event.event_type().name());
                types.collect::<Vec<_>>().join(" ")
            }
            Said::OfNoInterest => String::new(),
            Said::Refused { code, detail } => format!("{code}: {detail}"),
        }
    }
}

/// The role.
#[derive(Debug, Clone, Copy)]
pub struct CallbackRole;

#[async_trait]
impl Role for CallbackRole {
    type Event = Callback;
    /// What is to be kept.
    type Rows = Vec<Callback>;

    fn name(&self) -> RoleName {
        RoleName::CALLBACK
    }

    /// A callback never comes as a message.
    fn decode(&self, envelope: &Envelope<'_>) -> Result<Vec<Callback>, Malformed> {
        Err(Malformed::UnknownType {
            found: envelope.event_type.chars().take(100).collect(),
        })
    }

    fn key(&self, callback: &Callback) -> Key {
        callback.key.clone()
    }

    fn fingerprint(&self, callback: &Callback) -> Fingerprint {
        callback.fingerprint
    }

    fn subject<'e>(&self, callback: &'e Callback) -> &'e str {
        &callback.subject
    }

    async fn load(&self, _: &mut dyn Tx, _: &[&Callback]) -> store::Result<Self::Rows> {
        Ok(Vec::new())
    }

    fn decide(&self, rows: &mut Self::Rows, callback: &Callback, _: &Key, _: Timestamp) -> Ruling {
        rows.push(callback.clone());
        let emits = match &callback.said {
            Said::Events(events) => {
                let events = events.iter().cloned().map(Event::Order);
                events.map(|event| Outgoing::from(&event)).collect()
            }
            Said::OfNoInterest | Said::Refused { .. } => Vec::new(),
        };
        Ruling::Decided {
            verdict: Verdict::Applied,
            emits,
            reached: Vec::new(),
        }
    }

    async fn write(&self, tx: &mut dyn Tx, rows: Self::Rows, now: Timestamp) -> store::Result<()> {
        let details: Vec<_> = rows.iter().map(Callback::detail).collect();
        let kept = rows
            .iter()
            .zip(&details)
            .map(|(callback, detail)| NewCallback {
                provider: callback.provider.as_str(),
                verdict: callback.verdict(),
                detail,
                subject: &callback.subject,
                key: &callback.key,
                headers: &callback.raw.headers,
                body: &callback.raw.body,
                remote: &callback.raw.remote,
            });
        tx.keep_callbacks(now, &kept.collect::<Vec<_>>()).await
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::event::PaymentFailed;
    use crate::domain::{OrderId, TradeNo};

    fn raw(body: &'static str) -> Raw {
        Raw {
            headers: BTreeMap::new(),
            body: Bytes::from_static(body.as_bytes()),
            remote: String::new(),
        }
    }

    fn failed(order: &str, reason: &str) -> Said {
        Said::Events(vec![OrderEvent::PaymentFailed(PaymentFailed {
            order_id: OrderId::literal(order),
            provider: Provider::literal("p"),
            trade_no: TradeNo::literal("T1"),
            reason: Some(reason.to_owned()),
        })])
    }

    fn key(provider: &str, said: Said, body: &'static str) -> String {
        let callback = Callback::new(Provider::literal(provider), said, raw(body));
        callback.key.to_string()
    }

    #[test]
    fn what_says_the_same_has_one_key_whatever_else_it_holds() {
        let first = key("p", failed("O/1", "no"), "sent at 1");
        assert_eq!(first, key("p", failed("O/1", "no"), "sent at 2"));
        assert!(first.starts_with("p/O%2F1/"), "{first}");
        assert_ne!(first, key("p", failed("O/1", "yes"), "sent at 1"));
        assert_ne!(first, key("q", failed("O/1", "no"), "sent at 1"));
    }

    #[test]
    fn what_says_nothing_is_known_by_its_bytes() {
        let refused = |code| Said::Refused {
            code,
            detail: "at 1".to_owned(),
        };
        let first = key("p", refused("a"), "x");
        assert!(first.starts_with("p/refused/"), "{first}");
        assert_eq!(first, key("p", refused("a"), "x"));
        assert_ne!(first, key("p", refused("b"), "x"));
        assert_ne!(first, key("p", refused("a"), "y"));
        assert_ne!(
            key("p", Said::OfNoInterest, "x"),
            key("p", Said::OfNoInterest, "y")
        );
    }
}
