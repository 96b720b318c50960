//! Stripe's events: JSON with an HMAC of the endpoint's secret.
//!
//! The signed text is `t.body`, with the stamp of the header and the body byte for byte. The header may hold several
//! signatures `v1` while a secret is rolled, and others, which are ignored. The secret belongs to one endpoint of one
//! account, so it says as well for whom an event is.
//!
//! Stripe states a refund twice: `charge.refunded` with the running total of the charge, and `refund.updated` with the
//! refund's own amount. One refund stated by a total and by its own amount cannot be told apart from two refunds, so
//! only one of them may count. It is `charge.refunded`, because its totals can come in any order and several times;
//! a `refund.updated` counts only if it says that the refund failed.
//!
//! An event's own number (`evt_...`) says nothing: there may be two events for one change. A payment intent may fail
//! several times, for other reasons each, and has no number for an attempt; its failures count as one, so they carry
//! no reason, which would make them contradict each other.

use super::json::Json;
use super::provider::{Provider, Received, Refusal, Reply, Said, Verdict, check_stamp, header, id};
use crate::domain::event::{
    OrderEvent, PaymentFailed, PaymentSucceeded, RefundAmount, RefundFailed, RefundSucceeded,
};
use crate::domain::{self, OrderId, RefundNo, TradeNo};
use ring::hmac;
use std::time::Duration;

const SIGNATURE: &str = "Stripe-Signature";

/// Where Stripe calls.
#[derive(Debug)]
pub(super) struct Stripe {
    pub(super) name: domain::Provider,
    /// The endpoint's secrets; several while one replaces another.
    pub(super) secrets: Vec<hmac::Key>,
    /// Where the order's number stands in the event.
    pub(super) order_id: String,
    /// How far the stamp of a request may be from now.
    pub(super) tolerance: Duration,
}

impl Provider for Stripe {
    fn name(&self) -> &domain::Provider {
        &self.name
    }

    fn receive(&self, request: &Received<'_>) -> Result<Said, Refusal> {
        self.verify(request)?;
        let body = Json::parse(request.body)?;
        let event = match body.required("/type")?.as_ref() {
            "payment_intent.succeeded" => self.paid(body)?,
            "payment_intent.payment_failed" => self.not_paid(body)?,
            "charge.refunded" => self.refunded(body)?,
            "refund.updated" | "refund.failed" => {
                match body.required("/data/object/status")?.as_ref() {
                    "failed" | "canceled" => self.not_refunded(body)?,
                    _ => return Ok(Said::OfNoInterest),
                }
            }
            // Among them charge.dispute.created, which is for a person.
            _ => return Ok(Said::OfNoInterest),
        };
        Ok(Said::Events(vec![event]))
    }

    fn answer(&self, verdict: Verdict) -> Reply {
        Reply::empty(verdict.status())
    }
}

impl Stripe {
    fn verify(&self, request: &Received<'_>) -> Result<(), Refusal> {
        let (stamp, signatures) = signatures(header(request.headers, SIGNATURE)?)?;
        let text = [stamp.as_bytes(), b".", request.body].concat();
        let fits = |signature: &Vec<u8>| {
            let mut secrets = self.secrets.iter();
            secrets.any(|secret| hmac::verify(secret, &text, signature).is_ok())
        };
        if !signatures.iter().any(fits) {
            return Err(Refusal::BadSignature);
        }
        check_stamp(SIGNATURE, stamp, request.now, self.tolerance)
    }

    fn paid(&self, body: Json<'_>) -> Result<OrderEvent, Refusal> {
        let currency = body.currency("/data/object/currency")?;
        Ok(OrderEvent::PaymentSucceeded(PaymentSucceeded {
            order_id: body.id(&self.order_id, OrderId::new)?,
            provider: self.name.clone(),
            trade_no: body.id("/data/object/id", TradeNo::new)?,
            out_trade_no: None,
            trade_status: None,
            amount_minor: body.minor("/data/object/amount_received", currency, 0)?,
            currency,
        }))
    }

    fn not_paid(&self, body: Json<'_>) -> Result<OrderEvent, Refusal> {
        Ok(OrderEvent::PaymentFailed(PaymentFailed {
            order_id: body.id(&self.order_id, OrderId::new)?,
            provider: self.name.clone(),
            trade_no: body.id("/data/object/id", TradeNo::new)?,
            reason: None,
        }))
    }

    fn refunded(&self, body: Json<'_>) -> Result<OrderEvent, Refusal> {
        let currency = body.currency("/data/object/currency")?;
        let total = body.minor("/data/object/amount_refunded", currency, 1)?;
        let charge = body.required("/data/object/id")?;
        Ok(OrderEvent::RefundSucceeded(RefundSucceeded {
            order_id: body.id(&self.order_id, OrderId::new)?,
            provider: self.name.clone(),
            refund_no: id(
                "/data/object/id",
                &format!("{charge}:{total}"),
                RefundNo::new,
            )?,
            trade_no: Some(body.id("/data/object/payment_intent", TradeNo::new)?),
            amount: RefundAmount::RunningTotal(total),
            currency,
        }))
    }

    fn not_refunded(&self, body: Json<'_>) -> Result<OrderEvent, Refusal> {
        Ok(OrderEvent::RefundFailed(RefundFailed {
            order_id: body.id(&self.order_id, OrderId::new)?,
            provider: self.name.clone(),
            refund_no: body.id("/data/object/id", RefundNo::new)?,
            reason: body.remark("/data/object/failure_reason")?,
        }))
    }
}

/// The stamp and the signatures `v1` of a header; what is no hexadecimal number is no signature.
fn signatures(header: &str) -> Result<(&str, Vec<Vec<u8>>), Refusal> {
    let (mut stamp, mut signatures) = (None, Vec::new());
    for part in header.split(',') {
        match part.trim().split_once('=') {
            Some(("t", _)) if stamp.is_some() => {
                return Err(Refusal::header(SIGNATURE, "holds t twice"));
            }
            Some(("t", text)) => stamp = Some(text),
            Some(("v1", text)) => signatures.extend(hex::decode(text)),
            Some(_) => (),
            None => return Err(Refusal::header(SIGNATURE, "is no list of name=value")),
        }
    }
    let stamp = stamp.ok_or_else(|| Refusal::header(SIGNATURE, "holds no t"))?;
    Ok((stamp, signatures))
}

#[cfg(test)]
mod tests {
    use super::super::testing::{self, NOW_SECONDS, headers, receive_at};
    use super::*;
    use crate::domain::Currency;
    use axum::http::HeaderMap;
    use proptest::prelude::*;
    use serde_json::{Value, json};

    const SECRET: &str = "whsec_test_secret";

    fn secret(secret: &str) -> hmac::Key {
        hmac::Key::new(hmac::HMAC_SHA256, secret.as_bytes())
    }

    fn stripe() -> Stripe {
        Stripe {
            name: domain::Provider::new("stripe").unwrap(),
            secrets: vec![secret(SECRET)],
            order_id: "/data/object/metadata/order_id".to_owned(),
            tolerance: Duration::from_secs(300),
        }
    }

    fn v1(by: &str, body: &str) -> String {
        let text = format!("{NOW_SECONDS}.{body}");
        let tag = hmac::sign(&secret(by), text.as_bytes());
        format!("v1={}", hex::encode(tag))
    }

    fn signed(signatures: &[&str]) -> HeaderMap {
        let signatures = signatures.join(",");
        headers(&[(SIGNATURE, &format!("t={NOW_SECONDS},{signatures}"))])
    }

    fn receive(body: &str) -> Result<Said, &'static str> {
        let headers = signed(&[&v1(SECRET, body)]);
        testing::receive(&stripe(), &headers, body.as_bytes())
    }

    fn said(event_type: &str, object: &Value) -> Result<Said, &'static str> {
        receive(&json!({"id": "evt_1", "type": event_type, "data": {"object": object}}).to_string())
    }

    fn intent() -> Value {
        json!({
            "id": "pi_1", "object": "payment_intent", "amount": 2000, "amount_received": 1999,
            "currency": "gbp", "metadata": {"order_id": "ORD-1"},
        })
    }

    fn charge() -> Value {
        json!({
            "id": "ch_1", "object": "charge", "amount": 1999, "amount_refunded": 500,
            "currency": "gbp", "payment_intent": "pi_1", "metadata": {"order_id": "ORD-1"},
        })
    }

    fn event(event: OrderEvent) -> Result<Said, &'static str> {
        Ok(Said::Events(vec![event]))
    }

    #[test]
    fn the_vector_is_signed() {
        let body = r#"{"id":"evt_test_0001","object":"event","type":"charge.refunded","created":1700000000}"#;
        let v1 = "v1=df97b79bcb20556b0c240f6b410059f07d7867e848201574e356f27a869488bc";
        let receive =
            |v1: &str, body: &str| testing::receive(&stripe(), &signed(&[v1]), body.as_bytes());
        // It is believed, and says too little.
        assert_eq!(receive(v1, body), Err("missing_field"));
        assert_eq!(
            receive(&v1.replace("df97", "df98"), body),
            Err("bad_signature")
        );
        assert_eq!(
            receive(v1, &body.replace("0001", "0002")),
            Err("bad_signature")
        );
        let other = body.replace("charge.refunded", "charge.updated");
        assert_eq!(receive(v1, &other), Err("bad_signature"));
    }

    #[test]
    fn a_payment_states_what_was_received() {
        let payment = |amount_minor, currency: &str| {
            event(OrderEvent::PaymentSucceeded(PaymentSucceeded {
                order_id: OrderId::new("ORD-1").unwrap(),
                provider: domain::Provider::new("stripe").unwrap(),
                trade_no: TradeNo::new("pi_1").unwrap(),
                out_trade_no: None,
                trade_status: None,
                amount_minor,
                currency: Currency::new(currency).unwrap(),
            }))
        };
        let mut paid = intent();
        assert_eq!(
            said("payment_intent.succeeded", &paid),
            payment(1999, "GBP")
        );
        paid["currency"] = json!("jpy");
        assert_eq!(
            said("payment_intent.succeeded", &paid),
            payment(1999, "JPY")
        );
        paid["currency"] = json!("xxx");
        assert_eq!(
            said("payment_intent.succeeded", &paid),
            Err("unknown_currency")
        );
        for (field, value, code) in [
            ("metadata", json!({}), "missing_field"),
            ("id", Value::Null, "missing_field"),
            ("amount_received", json!(19.99), "malformed_field"),
            ("amount_received", json!(-1), "amount_out_of_range"),
            ("amount_received", Value::Null, "missing_field"),
        ] {
            let mut wrong = intent();
            wrong[field] = value;
            assert_eq!(
                said("payment_intent.succeeded", &wrong),
                Err(code),
                "{wrong}"
            );
        }
    }

    #[test]
    fn a_payment_intent_that_fails_twice_says_the_same_twice() {
        let failed = event(OrderEvent::PaymentFailed(PaymentFailed {
            order_id: OrderId::new("ORD-1").unwrap(),
            provider: domain::Provider::new("stripe").unwrap(),
            trade_no: TradeNo::new("pi_1").unwrap(),
            reason: None,
        }));
        for code in ["card_declined", "expired_card"] {
            let mut intent = intent();
            intent["last_payment_error"] = json!({"code": code});
            assert_eq!(said("payment_intent.payment_failed", &intent), failed);
        }
    }

    #[test]
    fn a_refund_is_told_by_the_total_of_its_charge_alone() {
        let refunded = event(OrderEvent::RefundSucceeded(RefundSucceeded {
            order_id: OrderId::new("ORD-1").unwrap(),
            provider: domain::Provider::new("stripe").unwrap(),
            refund_no: RefundNo::new("ch_1:500").unwrap(),
            trade_no: Some(TradeNo::new("pi_1").unwrap()),
            amount: RefundAmount::RunningTotal(500),
            currency: Currency::GBP,
        }));
        assert_eq!(said("charge.refunded", &charge()), refunded);
        let mut refund = json!({
            "id": "re_1", "object": "refund", "amount": 500, "currency": "gbp",
            "status": "succeeded", "metadata": {"order_id": "ORD-1"},
        });
        for status in ["succeeded", "pending", "requires_action"] {
            refund["status"] = json!(status);
            assert_eq!(said("refund.updated", &refund), Ok(Said::OfNoInterest));
        }
        let failed = |reason: Option<&str>| {
            event(OrderEvent::RefundFailed(RefundFailed {
                order_id: OrderId::new("ORD-1").unwrap(),
                provider: domain::Provider::new("stripe").unwrap(),
                refund_no: RefundNo::new("re_1").unwrap(),
                reason: reason.map(str::to_owned),
            }))
        };
        refund["status"] = json!("canceled");
        assert_eq!(said("refund.updated", &refund), failed(None));
        refund["status"] = json!("failed");
        refund["failure_reason"] = json!("lost_or_stolen_card");
        let told = failed(Some("lost_or_stolen_card"));
        assert_eq!(said("refund.updated", &refund), told);
        assert_eq!(said("refund.failed", &refund), told);
    }

    #[test]
    fn a_charge_without_refund_or_payment_intent_is_refused() {
        for (field, value, code) in [
            ("amount_refunded", json!(0), "amount_out_of_range"),
            ("payment_intent", Value::Null, "missing_field"),
            ("payment_intent", json!({"id": "pi_1"}), "malformed_field"),
        ] {
            let mut wrong = charge();
            wrong[field] = value;
            assert_eq!(said("charge.refunded", &wrong), Err(code), "{wrong}");
        }
    }

    #[test]
    fn other_events_are_of_no_interest() {
        for event_type in ["charge.dispute.created", "payment_intent.created", "x"] {
            assert_eq!(said(event_type, &json!({})), Ok(Said::OfNoInterest));
        }
    }

    #[test]
    fn the_order_stands_where_the_configuration_says() {
        let mut elsewhere = stripe();
        elsewhere.order_id = "/data/object/description".to_owned();
        let mut intent = intent();
        intent["description"] = json!("ORD-2");
        let body = json!({"type": "payment_intent.succeeded", "data": {"object": intent}});
        let body = body.to_string();
        let headers = signed(&[&v1(SECRET, &body)]);
        let Ok(Said::Events(events)) = testing::receive(&elsewhere, &headers, body.as_bytes())
        else {
            panic!("the payment is refused");
        };
        assert_eq!(events[0].order_id().as_str(), "ORD-2");
    }

    #[test]
    fn one_signature_that_fits_is_enough_while_a_secret_is_rolled() {
        let body = r#"{"type":"x"}"#;
        let (right, wrong) = (v1(SECRET, body), v1("whsec_other", body));
        let v0 = right.replace("v1=", "v0=");
        let receive = |stripe: &Stripe, signatures: &[&str]| {
            testing::receive(stripe, &signed(signatures), body.as_bytes())
        };
        let believed = Ok(Said::OfNoInterest);
        assert_eq!(receive(&stripe(), &[&wrong, &right, "v0=ab"]), believed);
        assert_eq!(receive(&stripe(), &["v1=no hex", &right]), believed);
        assert_eq!(receive(&stripe(), &[&wrong]), Err("bad_signature"));
        assert_eq!(receive(&stripe(), &[&v0]), Err("bad_signature"));
        assert_eq!(receive(&stripe(), &["v1="]), Err("bad_signature"));
        assert_eq!(receive(&stripe(), &[&right, "v1"]), Err("malformed_header"));
        assert_eq!(
            receive(&stripe(), &[&right, "t=1700000001"]),
            Err("malformed_header")
        );
        let mut rolling = stripe();
        rolling.secrets.push(secret("whsec_other"));
        assert_eq!(receive(&rolling, &[&wrong]), believed);
        assert_eq!(receive(&rolling, &[&right]), believed);
        for header in ["v1=ab", "t", "=", ","] {
            let headers = headers(&[(SIGNATURE, header)]);
            let refused = testing::receive(&stripe(), &headers, body.as_bytes());
            assert_eq!(refused, Err("malformed_header"), "{header}");
        }
        let refused = testing::receive(&stripe(), &HeaderMap::new(), body.as_bytes());
        assert_eq!(refused, Err("missing_header"));
    }

    #[test]
    fn a_copy_that_comes_after_the_tolerance_is_refused() {
        let body = r#"{"type":"x"}"#;
        let headers = signed(&[&v1(SECRET, body)]);
        let at = |seconds| receive_at(&stripe(), &headers, body.as_bytes(), seconds);
        assert_eq!(at(300), Ok(Said::OfNoInterest));
        assert_eq!(at(301), Err("too_old"));
        assert_eq!(at(-300), Ok(Said::OfNoInterest));
        assert_eq!(at(-301), Err("too_far_ahead"));
        // A new stamp does not make an old signature new.
        let stamped = format!("t={},{}", NOW_SECONDS + 400, v1(SECRET, body));
        let stamped = testing::headers(&[(SIGNATURE, &stamped)]);
        let refused = receive_at(&stripe(), &stamped, body.as_bytes(), 400);
        assert_eq!(refused, Err("bad_signature"));
    }

    #[test]
    fn a_truncated_body_is_refused() {
        let body = json!({"type": "charge.refunded", "data": {"object": charge()}}).to_string();
        let headers = signed(&[&v1(SECRET, &body)]);
        for end in 0..body.len() {
            let refused = testing::receive(&stripe(), &headers, &body.as_bytes()[..end]);
            assert_eq!(refused, Err("bad_signature"));
        }
    }

    #[test]
    fn the_answers_have_no_body() {
        let statuses = [Verdict::Accepted, Verdict::Refused, Verdict::TryAgain]
            .map(|verdict| stripe().answer(verdict));
        assert_eq!(statuses, [200, 400, 503].map(Reply::empty));
    }

    proptest! {
        #[test]
        fn no_request_is_believed_unless_it_is_signed(
            header in prop_oneof![
                "[ -~]{0,100}",
                "t=1700000000,v1=[0-9a-f]{0,64}",
                "t=[0-9]{0,20},v1=[0-9a-f]{64},v1=[0-9a-f]{64}",
            ],
            body in proptest::collection::vec(any::<u8>(), 0..200),
        ) {
            let headers = headers(&[(SIGNATURE, &header)]);
            prop_assert!(testing::receive(&stripe(), &headers, &body).is_err());
        }

        // What is signed may still be anything.
        #[test]
        fn no_signed_body_panics(body in "[{}\":,a-z0-9\\[\\]]{0,100}", object in "[ -~]{0,50}") {
            let _ = receive(&body);
            prop_assert!(said("charge.refunded", &json!(object)).is_err());
            let intent = json!({"id": object});
            prop_assert!(said("payment_intent.succeeded", &intent).is_err());
        }
    }
}
