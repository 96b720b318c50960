//! Any other provider that sends JSON with an HMAC of it: the configuration says where everything stands.
//!
//! The signed text is the body, or `timestamp.body` where there is a header for the time. Without one an old
//! request can be sent again by whoever overheard it; it is believed again, and has no second effect.

use super::json::Json;
use super::provider::{Provider, Received, Refusal, Reply, Said, Verdict, check_stamp, header};
use crate::domain::event::{
    OrderEvent, PaymentFailed, PaymentSucceeded, RefundAmount, RefundFailed, RefundSucceeded,
};
use crate::domain::{self, Currency, OrderId, RefundNo, TradeNo};
use axum::http::HeaderName;
use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use ring::hmac;
use std::collections::BTreeMap;
use std::time::Duration;
use strum::{Display, EnumString, VariantNames};

/// Where a provider of this kind calls.
#[derive(Debug)]
pub(super) struct Generic {
    pub(super) name: domain::Provider,
    /// What signs; several while one replaces another.
    pub(super) secrets: Vec<hmac::Key>,
    /// Where the signature stands.
    pub(super) signature_header: HeaderName,
    /// What stands before the signature in its header, such as `sha256=`.
    pub(super) signature_prefix: String,
    /// How the signature is written.
    pub(super) encoding: Encoding,
    /// Where the time stands, and how far it may be from now.
    pub(super) timestamp: Option<(HeaderName, Duration)>,
    /// Where the values stand.
    pub(super) pointers: Pointers,
    /// What the provider's types mean; all others are of no interest.
    pub(super) types: BTreeMap<String, Meaning>,
    /// How amounts are stated.
    pub(super) unit: Unit,
}

/// JSON pointers to the values of a body.
#[derive(Debug)]
pub(super) struct Pointers {
    pub(super) event_type: String,
    pub(super) order_id: String,
    pub(super) trade_no: String,
    pub(super) amount: String,
    pub(super) currency: String,
    pub(super) refund_no: String,
    pub(super) reason: Option<String>,
}

/// What a type means.
#[derive(Debug, Clone, Copy, PartialEq, Eq, EnumString, Display, VariantNames)]
pub(super) enum Meaning {
    #[strum(serialize = "payment.succeeded")]
    PaymentSucceeded,
    #[strum(serialize = "payment.failed")]
    PaymentFailed,
    #[strum(serialize = "refund.succeeded")]
    RefundSucceeded,
    #[strum(serialize = "refund.failed")]
    RefundFailed,
}

/// How a signature is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, EnumString, Display, VariantNames)]
#[strum(serialize_all = "snake_case")]
pub(super) enum Encoding {
    Hex,
    Base64,
}

/// How amounts are stated: as integers of the currency's smallest unit, or as decimals.
#[derive(Debug, Clone, Copy, PartialEq, Eq, EnumString, Display, VariantNames)]
#[strum(serialize_all = "snake_case")]
pub(super) enum Unit {
    Minor,
    Major,
}

impl Provider for Generic {
    fn name(&self) -> &domain::Provider {
        &self.name
    }

    fn receive(&self, request: &Received<'_>) -> Result<Said, Refusal> {
        self.verify(request)?;
        let body = Json::parse(request.body)?;
        let event_type = body.required(&self.pointers.event_type)?;
        let event = match self.types.get(event_type.as_ref()) {
            None => return Ok(Said::OfNoInterest),
            Some(Meaning::PaymentSucceeded) => self.paid(body)?,
            Some(Meaning::PaymentFailed) => self.not_paid(body)?,
            Some(Meaning::RefundSucceeded) => self.refunded(body)?,
            Some(Meaning::RefundFailed) => self.not_refunded(body)?,
        };
        Ok(Said::Events(vec![event]))
    }

    fn answer(&self, verdict: Verdict) -> Reply {
        Reply::empty(verdict.status())
    }
}

impl Generic {
    fn verify(&self, request: &Received<'_>) -> Result<(), Refusal> {
        let name = self.signature_header.as_str();
        let written = header(request.headers, name)?;
        let written = written
            .strip_prefix(&self.signature_prefix)
            .ok_or_else(|| Refusal::header(name, "does not begin with the configured prefix"))?;
        let signature = match self.encoding {
            Encoding::Hex => hex::decode(written).ok(),
            Encoding::Base64 => BASE64_STANDARD.decode(written).ok(),
        };
        let signature = signature
            .ok_or_else(|| Refusal::header(name, "is not written in the configured encoding"))?;
        let stamp = match &self.timestamp {
            Some((name, tolerance)) => {
                let stamp = header(request.headers, name.as_str())?;
                Some((name.as_str(), stamp, *tolerance))
            }
            None => None,
        };
        let mut text = Vec::with_capacity(request.body.len() + 16);
        if let Some((_, stamp, _)) = stamp {
            text.extend_from_slice(stamp.as_bytes());
            text.push(b'.');
        }
        text.extend_from_slice(request.body);
        let mut secrets = self.secrets.iter();
        if !secrets.any(|secret| hmac::verify(secret, &text, &signature).is_ok()) {
            return Err(Refusal::BadSignature);
        }
        match stamp {
            Some((name, stamp, tolerance)) => check_stamp(name, stamp, request.now, tolerance),
            None => Ok(()),
        }
    }

    fn amount(&self, body: Json<'_>, min: i64) -> Result<(i64, Currency), Refusal> {
        let currency = body.currency(&self.pointers.currency)?;
        let minor = match self.unit {
            Unit::Minor => body.minor(&self.pointers.amount, currency, min)?,
            Unit::Major => body.major(&self.pointers.amount, currency, min)?,
        };
        Ok((minor, currency))
    }

    fn order_id(&self, body: Json<'_>) -> Result<OrderId, Refusal> {
        body.id(&self.pointers.order_id, OrderId::new)
    }

    fn reason(&self, body: Json<'_>) -> Result<Option<String>, Refusal> {
        match &self.pointers.reason {
            Some(pointer) => body.remark(pointer),
            None => Ok(None),
        }
    }

    fn paid(&self, body: Json<'_>) -> Result<OrderEvent, Refusal> {
        let (amount_minor, currency) = self.amount(body, 0)?;
        Ok(OrderEvent::PaymentSucceeded(PaymentSucceeded {
            order_id: self.order_id(body)?,
            provider: self.name.clone(),
            trade_no: body.id(&self.pointers.trade_no, TradeNo::new)?,
            out_trade_no: None,
            trade_status: None,
            amount_minor,
            currency,
        }))
    }

    fn not_paid(&self, body: Json<'_>) -> Result<OrderEvent, Refusal> {
        Ok(OrderEvent::PaymentFailed(PaymentFailed {
            order_id: self.order_id(body)?,
            provider: self.name.clone(),
            trade_no: body.id(&self.pointers.trade_no, TradeNo::new)?,
            reason: self.reason(body)?,
        }))
    }

    /// A refund may leave out the payment; then it is the order's own.
    fn refunded(&self, body: Json<'_>) -> Result<OrderEvent, Refusal> {
        let (amount, currency) = self.amount(body, 1)?;
        let trade_no = match body.optional(&self.pointers.trade_no)? {
            Some(_) => Some(body.id(&self.pointers.trade_no, TradeNo::new)?),
            None => None,
        };
        Ok(OrderEvent::RefundSucceeded(RefundSucceeded {
            order_id: self.order_id(body)?,
            provider: self.name.clone(),
            refund_no: body.id(&self.pointers.refund_no, RefundNo::new)?,
            trade_no,
            amount: RefundAmount::Own(amount),
            currency,
        }))
    }

    fn not_refunded(&self, body: Json<'_>) -> Result<OrderEvent, Refusal> {
        Ok(OrderEvent::RefundFailed(RefundFailed {
            order_id: self.order_id(body)?,
            provider: self.name.clone(),
            refund_no: body.id(&self.pointers.refund_no, RefundNo::new)?,
            reason: self.reason(body)?,
        }))
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::{self, NOW_SECONDS, headers, receive_at};
    use super::*;
    use proptest::prelude::*;
    use serde_json::{Value, json};

    const SECRET: &[u8] = b"generic_test_secret";

    fn key(secret: &[u8]) -> hmac::Key {
        hmac::Key::new(hmac::HMAC_SHA256, secret)
    }

    fn generic() -> Generic {
        let pointer = |text: &str| text.to_owned();
        Generic {
            name: domain::Provider::new("till").unwrap(),
            secrets: vec![key(SECRET)],
            signature_header: HeaderName::from_static("x-signature"),
            signature_prefix: String::new(),
            encoding: Encoding::Hex,
            timestamp: None,
            pointers: Pointers {
                event_type: pointer("/kind"),
                order_id: pointer("/order/number"),
                trade_no: pointer("/payment"),
                amount: pointer("/sum"),
                currency: pointer("/currency"),
                refund_no: pointer("/refund"),
                reason: Some(pointer("/why")),
            },
            types: [
                ("PAID".to_owned(), Meaning::PaymentSucceeded),
                ("DECLINED".to_owned(), Meaning::PaymentFailed),
                ("RETURNED".to_owned(), Meaning::RefundSucceeded),
                ("NOT_RETURNED".to_owned(), Meaning::RefundFailed),
            ]
            .into(),
            unit: Unit::Minor,
        }
    }

    fn stamped() -> Generic {
        Generic {
            timestamp: Some((HeaderName::from_static("x-time"), Duration::from_secs(60))),
            ..generic()
        }
    }

    fn tag(secret: &[u8], text: &str) -> Vec<u8> {
        hmac::sign(&key(secret), text.as_bytes()).as_ref().to_vec()
    }

    fn receive(provider: &Generic, body: &str) -> Result<Said, &'static str> {
        let signature = hex::encode(tag(SECRET, body));
        let headers = headers(&[("x-signature", &signature)]);
        testing::receive(provider, &headers, body.as_bytes())
    }

    fn body(kind: &str) -> Value {
        json!({
            "kind": kind, "order": {"number": "ORD-1"}, "payment": "T-1", "refund": "R-1",
            "sum": 1999, "currency": "GBP", "why": "no money",
        })
    }

    fn event(provider: &Generic, body: &Value) -> OrderEvent {
        match receive(provider, &body.to_string()) {
            Ok(Said::Events(mut events)) => events.pop().unwrap(),
            other => panic!("{body}: {other:?}"),
        }
    }

    fn refused(provider: &Generic, body: &Value) -> &'static str {
        receive(provider, &body.to_string()).unwrap_err()
    }

    #[test]
    fn types_mean_what_the_configuration_says() {
        let (order_id, name) = (OrderId::new("ORD-1").unwrap(), generic().name);
        let (trade_no, refund_no) = (TradeNo::new("T-1").unwrap(), RefundNo::new("R-1").unwrap());
        let reason = Some("no money".to_owned());
        let refunded = RefundSucceeded {
            order_id: order_id.clone(),
            provider: name.clone(),
            refund_no: refund_no.clone(),
            trade_no: Some(trade_no.clone()),
            amount: RefundAmount::Own(1999),
            currency: Currency::GBP,
        };
        for (kind, means) in [
            (
                "PAID",
                OrderEvent::PaymentSucceeded(PaymentSucceeded {
                    order_id: order_id.clone(),
                    provider: name.clone(),
                    trade_no: trade_no.clone(),
                    out_trade_no: None,
                    trade_status: None,
                    amount_minor: 1999,
                    currency: Currency::GBP,
                }),
            ),
            (
                "DECLINED",
                OrderEvent::PaymentFailed(PaymentFailed {
                    order_id: order_id.clone(),
                    provider: name.clone(),
                    trade_no,
                    reason: reason.clone(),
                }),
            ),
            ("RETURNED", OrderEvent::RefundSucceeded(refunded.clone())),
            (
                "NOT_RETURNED",
                OrderEvent::RefundFailed(RefundFailed {
                    order_id,
                    provider: name,
                    refund_no,
                    reason,
                }),
            ),
        ] {
            assert_eq!(event(&generic(), &body(kind)), means, "{kind}");
        }
        let other = receive(&generic(), &body("paid").to_string());
        assert_eq!(other, Ok(Said::OfNoInterest));
        let mut of_the_order = body("RETURNED");
        of_the_order["payment"] = Value::Null;
        let means = RefundSucceeded {
            trade_no: None,
            ..refunded
        };
        assert_eq!(
            event(&generic(), &of_the_order),
            OrderEvent::RefundSucceeded(means)
        );
    }

    // B07: amounts never pass through a float.
    #[test]
    fn amounts_are_stated_in_minor_or_in_major_units() {
        let major = Generic {
            unit: Unit::Major,
            ..generic()
        };
        let amount = |provider: &Generic, sum: &str, currency: &str| {
            let sent = body("PAID")
                .to_string()
                .replace("1999", sum)
                .replace("GBP", currency);
            match receive(provider, &sent)? {
                Said::Events(events) => {
                    let OrderEvent::PaymentSucceeded(paid) = &events[0] else {
                        panic!("{events:?}");
                    };
                    Ok(paid.amount_minor)
                }
                Said::OfNoInterest => panic!("of no interest"),
            }
        };
        assert_eq!(amount(&major, "19.99", "GBP"), Ok(1999));
        assert_eq!(amount(&major, "\"0.10\"", "gbp"), Ok(10));
        assert_eq!(amount(&major, "1999", "JPY"), Ok(1999));
        assert_eq!(amount(&major, "1.234", "KWD"), Ok(1234));
        assert_eq!(amount(&major, "19.999", "GBP"), Err("inexact_amount"));
        assert_eq!(amount(&generic(), "19.99", "GBP"), Err("malformed_field"));
        assert_eq!(amount(&generic(), "0", "GBP"), Ok(0));
        assert_eq!(amount(&generic(), "-1", "GBP"), Err("amount_out_of_range"));
        assert_eq!(amount(&generic(), "1", "GBX"), Err("unknown_currency"));
        let mut nothing = body("RETURNED");
        nothing["sum"] = json!(0);
        assert_eq!(refused(&generic(), &nothing), "amount_out_of_range");
    }

    #[test]
    fn what_lacks_a_value_is_refused() {
        for (kind, field) in [
            ("PAID", "kind"),
            ("PAID", "order"),
            ("PAID", "payment"),
            ("PAID", "sum"),
            ("PAID", "currency"),
            ("DECLINED", "payment"),
            ("RETURNED", "refund"),
            ("NOT_RETURNED", "refund"),
        ] {
            let mut lacking = body(kind);
            lacking[field] = Value::Null;
            assert_eq!(refused(&generic(), &lacking), "missing_field", "{field}");
        }
    }

    #[test]
    fn a_signature_may_be_hex_or_base64_with_a_prefix() {
        let body = body("PAID").to_string();
        let tag = tag(SECRET, &body);
        let (hex, base64) = (hex::encode(&tag), BASE64_STANDARD.encode(&tag));
        let receive = |encoding, prefix: &str, signature: &str| {
            let provider = Generic {
                encoding,
                signature_prefix: prefix.to_owned(),
                ..generic()
            };
            let headers = headers(&[("X-Signature", signature)]);
            testing::receive(&provider, &headers, body.as_bytes()).map(|_| ())
        };
        let malformed = Err("malformed_header");
        assert_eq!(receive(Encoding::Hex, "", &hex), Ok(()));
        assert_eq!(receive(Encoding::Hex, "", &hex.to_uppercase()), Ok(()));
        assert_eq!(receive(Encoding::Base64, "", &base64), Ok(()));
        assert_eq!(receive(Encoding::Base64, "", &hex), Err("bad_signature"));
        assert_eq!(receive(Encoding::Hex, "", &base64), malformed);
        let prefixed = format!("sha256={hex}");
        assert_eq!(receive(Encoding::Hex, "sha256=", &prefixed), Ok(()));
        assert_eq!(receive(Encoding::Hex, "sha256=", &hex), malformed);
        assert_eq!(receive(Encoding::Hex, "", &hex[2..]), Err("bad_signature"));
        assert_eq!(
            receive(Encoding::Hex, "sha256=", "sha256="),
            Err("bad_signature")
        );
        let without = testing::receive(&generic(), &headers(&[]), body.as_bytes());
        assert_eq!(without, Err("missing_header"));
    }

    #[test]
    fn what_was_changed_after_signing_is_refused() {
        let sent = body("PAID").to_string();
        let signature = hex::encode(tag(SECRET, &sent));
        let headers = headers(&[("x-signature", &signature)]);
        let receive = |body: &str| testing::receive(&generic(), &headers, body.as_bytes());
        assert!(receive(&sent).is_ok());
        assert_eq!(receive(&sent.replace("1999", "1998")), Err("bad_signature"));
        for end in 0..sent.len() {
            assert_eq!(receive(&sent[..end]), Err("bad_signature"));
        }
    }

    #[test]
    fn two_secrets_are_believed_while_one_replaces_the_other() {
        let rolling = Generic {
            secrets: vec![key(b"new"), key(SECRET)],
            ..generic()
        };
        assert!(receive(&rolling, &body("PAID").to_string()).is_ok());
        let rolled = Generic {
            secrets: vec![key(b"new")],
            ..generic()
        };
        assert_eq!(refused(&rolled, &body("PAID")), "bad_signature");
    }

    #[test]
    fn a_copy_that_comes_after_the_tolerance_is_refused() {
        let body = body("PAID").to_string();
        let signature = hex::encode(tag(SECRET, &format!("{NOW_SECONDS}.{body}")));
        let signed =
            |stamp: i64| headers(&[("x-signature", &signature), ("x-time", &stamp.to_string())]);
        let at = |stamp, seconds| {
            let said = receive_at(&stamped(), &signed(stamp), body.as_bytes(), seconds);
            said.map(|_| ())
        };
        assert_eq!(at(NOW_SECONDS, 60), Ok(()));
        assert_eq!(at(NOW_SECONDS, 61), Err("too_old"));
        assert_eq!(at(NOW_SECONDS, -61), Err("too_far_ahead"));
        assert_eq!(at(NOW_SECONDS + 61, 61), Err("bad_signature"));
        let unstamped = headers(&[("x-signature", &signature)]);
        let refused = testing::receive(&stamped(), &unstamped, body.as_bytes());
        assert_eq!(refused, Err("missing_header"));
        // The signature of the body alone is none where there is to be a time.
        let alone = hex::encode(tag(SECRET, &body));
        let now = NOW_SECONDS.to_string();
        let alone = headers(&[("x-signature", &alone), ("x-time", &now)]);
        let refused = testing::receive(&stamped(), &alone, body.as_bytes());
        assert_eq!(refused, Err("bad_signature"));
    }

    #[test]
    fn the_answers_have_no_body() {
        let replies = [Verdict::Accepted, Verdict::Refused, Verdict::TryAgain]
            .map(|verdict| generic().answer(verdict));
        assert_eq!(replies, [200, 400, 503].map(Reply::empty));
    }

    proptest! {
        #[test]
        fn no_request_is_believed_unless_it_is_signed(
            signature in prop_oneof!["[ -~]{0,80}", "[0-9a-f]{64}"],
            stamp in prop_oneof![Just(NOW_SECONDS.to_string()), "[ -~]{0,12}"],
            body in proptest::collection::vec(any::<u8>(), 0..200),
        ) {
            let headers = headers(&[("x-signature", &signature), ("x-time", &stamp)]);
            prop_assert!(testing::receive(&generic(), &headers, &body).is_err());
            prop_assert!(testing::receive(&stamped(), &headers, &body).is_err());
        }

        // What is signed may still be anything.
        #[test]
        fn no_signed_body_panics(text in "[{}\":,a-z0-9\\[\\]]{0,100}", sum in "[ -~]{0,30}") {
            let _ = receive(&generic(), &text);
            let mut sent = body("PAID");
            sent["sum"] = json!(sum);
            sent["currency"] = json!(text);
            prop_assert!(receive(&generic(), &sent.to_string()).is_err());
        }
    }
}
