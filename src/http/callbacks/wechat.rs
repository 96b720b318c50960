//! WeChat Pay's notifications, version 3: signed JSON with an encrypted resource.
//!
//! The signed text is `timestamp\nnonce\nbody\n`, with the body byte for byte. Which key has signed stands in a
//! header: the serial of a platform certificate, or the id of a public key (`PUB_KEY_ID_...`). WeChat Pay sends
//! wrong signatures on purpose, to try whether they are checked; they begin with [`PROBE`].

use super::json::Json;
use super::keys::PublicKey;
use super::provider::{
    Provider, Received, Refusal, Reply, Said, Verdict, check_stamp, header, shorten,
};
use crate::domain::event::{
    OrderEvent, PaymentSucceeded, RefundAmount, RefundFailed, RefundSucceeded,
};
use crate::domain::{self, Currency, OrderId, RefundNo, TradeNo};
use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use ring::aead::{AES_256_GCM, Aad, LessSafeKey, Nonce, UnboundKey};
use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

/// How the signature of a probe begins.
const PROBE: &str = "WECHATPAY/SIGNTEST/";

/// How far the stamp of a request may be from now.
const TOLERANCE: Duration = Duration::from_secs(300);

const SERIAL: &str = "Wechatpay-Serial";
const SIGNATURE: &str = "Wechatpay-Signature";
const TIMESTAMP: &str = "Wechatpay-Timestamp";
const NONCE: &str = "Wechatpay-Nonce";

/// Where WeChat Pay calls.
#[derive(Debug)]
pub(super) struct WeChat {
    pub(super) name: domain::Provider,
    /// Our merchant numbers.
    pub(super) mchids: BTreeSet<String>,
    /// Our applications.
    pub(super) appids: BTreeSet<String>,
    /// WeChat Pay's keys, by the serial of the certificate or by the key's id.
    pub(super) keys: BTreeMap<String, PublicKey>,
    /// Our APIv3 keys; several while one replaces another.
    pub(super) api_keys: Vec<ApiKey>,
}

/// An APIv3 key, with which resources are encrypted.
#[derive(Debug)]
pub(super) struct ApiKey(LessSafeKey);

impl ApiKey {
    /// A key of 32 bytes; none of any other length.
    pub(super) fn new(bytes: &[u8]) -> Option<Self> {
        let key = UnboundKey::new(&AES_256_GCM, bytes).ok()?;
        Some(Self(LessSafeKey::new(key)))
    }
}

impl Provider for WeChat {
    fn name(&self) -> &domain::Provider {
        &self.name
    }

    fn receive(&self, request: &Received<'_>) -> Result<Said, Refusal> {
        self.verify(request)?;
        let body = Json::parse(request.body)?;
        match body.required("/event_type")?.as_ref() {
            "TRANSACTION.SUCCESS" => self.paid(&self.decrypt(body)?),
            "REFUND.SUCCESS" => self.refunded(&self.decrypt(body)?),
            "REFUND.ABNORMAL" | "REFUND.CLOSED" => self.not_refunded(&self.decrypt(body)?),
            _ => Ok(Said::OfNoInterest),
        }
    }

    /// A body with a status of 200 would count as received, whatever it says.
    fn answer(&self, verdict: Verdict) -> Reply {
        let body = match verdict {
            Verdict::Accepted => return Reply::empty(204),
            Verdict::Refused => r#"{"code":"FAIL","message":"refused"}"#,
            Verdict::TryAgain => r#"{"code":"FAIL","message":"try again"}"#,
        };
        Reply {
            status: verdict.status(),
            content_type: Some("application/json"),
            body: Cow::Borrowed(body),
        }
    }
}

impl WeChat {
    fn verify(&self, request: &Received<'_>) -> Result<(), Refusal> {
        let headers = request.headers;
        let signature = header(headers, SIGNATURE)?;
        if signature.starts_with(PROBE) {
            return Err(Refusal::Probe);
        }
        let serial = header(headers, SERIAL)?;
        let (stamp, nonce) = (header(headers, TIMESTAMP)?, header(headers, NONCE)?);
        let key = self.keys.get(serial).ok_or_else(|| Refusal::UnknownKey {
            key: shorten(serial),
        })?;
        let mut text = format!("{stamp}\n{nonce}\n").into_bytes();
        text.extend_from_slice(request.body);
        text.push(b'\n');
        if !key.has_signed(&text, signature) {
            return Err(Refusal::BadSignature);
        }
        check_stamp(TIMESTAMP, stamp, request.now, TOLERANCE)
    }

    /// The JSON of the resource.
    fn decrypt(&self, body: Json<'_>) -> Result<Vec<u8>, Refusal> {
        let algorithm = body.required("/resource/algorithm")?;
        if algorithm != "AEAD_AES_256_GCM" {
            return Err(Refusal::Algorithm {
                found: shorten(&algorithm),
                expected: "AEAD_AES_256_GCM",
            });
        }
        let ciphertext = body.required("/resource/ciphertext")?;
        let ciphertext = BASE64_STANDARD
            .decode(ciphertext.as_bytes())
            .map_err(|_| Refusal::field("/resource/ciphertext", &ciphertext, "is not base64"))?;
        let associated = body.optional("/resource/associated_data")?;
        let associated = associated.as_deref().unwrap_or_default().as_bytes();
        let nonce = body.required("/resource/nonce")?;
        for ApiKey(key) in &self.api_keys {
            let nonce = Nonce::try_assume_unique_for_key(nonce.as_bytes())
                .map_err(|_| Refusal::field("/resource/nonce", &nonce, "has not 12 bytes"))?;
            let mut text = ciphertext.clone();
            if let Ok(plain) = key.open_in_place(nonce, Aad::from(associated), &mut text) {
                return Ok(plain.to_vec());
            }
        }
        Err(Refusal::CannotBeDecrypted)
    }

    fn check_merchant(&self, resource: Json<'_>) -> Result<(), Refusal> {
        let mchid = resource.required("/mchid")?;
        if self.mchids.contains(mchid.as_ref()) {
            return Ok(());
        }
        Err(Refusal::other_merchant("/mchid", &mchid))
    }

    fn paid(&self, resource: &[u8]) -> Result<Said, Refusal> {
        let resource = Json::parse(resource)?;
        self.check_merchant(resource)?;
        let appid = resource.required("/appid")?;
        if !self.appids.contains(appid.as_ref()) {
            return Err(Refusal::other_merchant("/appid", &appid));
        }
        if resource.required("/trade_state")? != "SUCCESS" {
            return Ok(Said::OfNoInterest);
        }
        let currency = currency(resource)?;
        let paid = PaymentSucceeded {
            order_id: resource.id("/out_trade_no", OrderId::new)?,
            provider: self.name.clone(),
            trade_no: resource.id("/transaction_id", TradeNo::new)?,
            out_trade_no: None,
            trade_status: None,
            amount_minor: resource.minor("/amount/total", currency, 0)?,
            currency,
        };
        Ok(Said::Events(vec![OrderEvent::PaymentSucceeded(paid)]))
    }

    /// A refund's notification names no application.
    fn refunded(&self, resource: &[u8]) -> Result<Said, Refusal> {
        let resource = Json::parse(resource)?;
        self.check_merchant(resource)?;
        let currency = currency(resource)?;
        let amount = resource.minor("/amount/refund", currency, 1)?;
        let refunded = RefundSucceeded {
            order_id: resource.id("/out_trade_no", OrderId::new)?,
            provider: self.name.clone(),
            refund_no: resource.id("/out_refund_no", RefundNo::new)?,
            trade_no: Some(resource.id("/transaction_id", TradeNo::new)?),
            amount: RefundAmount::Own(amount),
            currency,
        };
        Ok(Said::Events(vec![OrderEvent::RefundSucceeded(refunded)]))
    }

    fn not_refunded(&self, resource: &[u8]) -> Result<Said, Refusal> {
        let resource = Json::parse(resource)?;
        self.check_merchant(resource)?;
        let failed = RefundFailed {
            order_id: resource.id("/out_trade_no", OrderId::new)?,
            provider: self.name.clone(),
            refund_no: resource.id("/out_refund_no", RefundNo::new)?,
            reason: resource.remark("/refund_status")?,
        };
        Ok(Said::Events(vec![OrderEvent::RefundFailed(failed)]))
    }
}

/// The currency of a resource; refunds leave it out where it is the yuan.
fn currency(resource: Json<'_>) -> Result<Currency, Refusal> {
    let field = "/amount/currency";
    let code = resource.optional(field)?;
    super::provider::currency(field, code.as_deref().unwrap_or("CNY"))
}

#[cfg(test)]
mod tests {
    use super::super::testing::{
        self, NOW_SECONDS, Signer, headers, other_signer, receive_at, signer,
    };
    use super::*;
    use axum::http::HeaderMap;
    use proptest::prelude::*;
    use serde_json::{Value, json};

    const API_KEY: &[u8] = b"0123456789abcdef0123456789abcdef";
    const CIPHERTEXT: &str = "xTj436Yd3nxd4X5+96mSxGJgaE/FO/nhuKhJWlnPge7+FKr0CEvU3PX6kDPbm/FUjYy2F7CFYRFzb7jBIPeaTRk4IJCyk0S/Wuhjrz0iLu7u8tMH596NScMwiU1fwYxsMaeW6NYSChyCfDBAif0UE0hMruua+lAjyOb+d4Lcqh7PWmQrDTGe65okEzyneZvbx9whi2S1ZiroFRlX6u9/bYHi8zGxGz/+TPPOC2rLmv1S2uWkn60JZYbsKJbNJgu2Flo9qS527vNNvJCt+LUsFw==";
    const AAD: &str = "\"associated_data\":\"transaction\"";
    const SERIAL_OF_KEY: &str = "5157F0";

    fn wechat() -> WeChat {
        let key = PublicKey::from_pem(&signer().certificate(&[0x51, 0x57, 0xf0])).unwrap();
        WeChat {
            name: domain::Provider::new("wechat").unwrap(),
            mchids: ["1900000000".to_owned()].into(),
            appids: ["wx0000000000000000".to_owned()].into(),
            keys: [(key.serial().unwrap().to_owned(), key)].into(),
            api_keys: vec![ApiKey::new(API_KEY).unwrap()],
        }
    }

    fn encrypt(key: &[u8], resource: &Value) -> String {
        let key = ApiKey::new(key).unwrap().0;
        let nonce = Nonce::assume_unique_for_key(*b"nonce0000001");
        let mut text = resource.to_string().into_bytes();
        key.seal_in_place_append_tag(nonce, Aad::from(b"transaction"), &mut text)
            .unwrap();
        BASE64_STANDARD.encode(text)
    }

    fn body(event_type: &str, ciphertext: &str) -> String {
        json!({
            "id": "n1",
            "create_time": "2023-11-15T06:13:20+08:00",
            "event_type": event_type,
            "resource_type": "encrypt-resource",
            "resource": {
                "original_type": "transaction",
                "algorithm": "AEAD_AES_256_GCM",
                "ciphertext": ciphertext,
                "associated_data": "transaction",
                "nonce": "nonce0000001",
            },
        })
        .to_string()
    }

    fn signed_by(signer: &Signer, serial: &str, body: &str) -> HeaderMap {
        let stamp = NOW_SECONDS.to_string();
        let signature = signer.sign(format!("{stamp}\nabc\n{body}\n").as_bytes());
        headers(&[
            (SERIAL, serial),
            (SIGNATURE, &signature),
            (TIMESTAMP, &stamp),
            (NONCE, "abc"),
        ])
    }

    fn receive(body: &str) -> Result<Said, &'static str> {
        let headers = signed_by(signer(), SERIAL_OF_KEY, body);
        testing::receive(&wechat(), &headers, body.as_bytes())
    }

    fn said(event_type: &str, resource: &Value) -> Result<Said, &'static str> {
        receive(&body(event_type, &encrypt(API_KEY, resource)))
    }

    fn transaction() -> Value {
        json!({
            "mchid": "1900000000", "appid": "wx0000000000000000",
            "out_trade_no": "ORD-T-0001", "transaction_id": "4200000000000000000000000001",
            "trade_state": "SUCCESS", "amount": {"total": 1999, "currency": "CNY"},
        })
    }

    fn refund(status: &str) -> Value {
        json!({
            "mchid": "1900000000", "out_trade_no": "ORD-T-0001", "transaction_id": "42",
            "out_refund_no": "R-1", "refund_id": "50", "refund_status": status,
            "amount": {"total": 1999, "refund": 500, "payer_total": 1999, "payer_refund": 500},
        })
    }

    fn payment() -> Result<Said, &'static str> {
        let paid = PaymentSucceeded {
            order_id: OrderId::new("ORD-T-0001").unwrap(),
            provider: domain::Provider::new("wechat").unwrap(),
            trade_no: TradeNo::new("4200000000000000000000000001").unwrap(),
            out_trade_no: None,
            trade_status: None,
            amount_minor: 1999,
            currency: Currency::new("CNY").unwrap(),
        };
        Ok(Said::Events(vec![OrderEvent::PaymentSucceeded(paid)]))
    }

    #[test]
    fn the_vector_is_a_payment() {
        assert_eq!(receive(&body("TRANSACTION.SUCCESS", CIPHERTEXT)), payment());
        assert_eq!(said("TRANSACTION.SUCCESS", &transaction()), payment());
    }

    #[test]
    fn refunds_state_their_own_amount() {
        let refunded = RefundSucceeded {
            order_id: OrderId::new("ORD-T-0001").unwrap(),
            provider: domain::Provider::new("wechat").unwrap(),
            refund_no: RefundNo::new("R-1").unwrap(),
            trade_no: Some(TradeNo::new("42").unwrap()),
            amount: RefundAmount::Own(500),
            currency: Currency::new("CNY").unwrap(),
        };
        assert_eq!(
            said("REFUND.SUCCESS", &refund("SUCCESS")),
            Ok(Said::Events(vec![OrderEvent::RefundSucceeded(refunded)]))
        );
        for status in ["ABNORMAL", "CLOSED"] {
            let failed = RefundFailed {
                order_id: OrderId::new("ORD-T-0001").unwrap(),
                provider: domain::Provider::new("wechat").unwrap(),
                refund_no: RefundNo::new("R-1").unwrap(),
                reason: Some(status.to_owned()),
            };
            assert_eq!(
                said(&format!("REFUND.{status}"), &refund(status)),
                Ok(Said::Events(vec![OrderEvent::RefundFailed(failed)]))
            );
        }
    }

    #[test]
    fn other_events_are_of_no_interest() {
        let of_no_interest = Ok(Said::OfNoInterest);
        assert_eq!(receive(&body("COUPON.USE", "")), of_no_interest);
        let mut unpaid = transaction();
        unpaid["trade_state"] = json!("USERPAYING");
        assert_eq!(said("TRANSACTION.SUCCESS", &unpaid), of_no_interest);
    }

    #[test]
    fn a_probe_is_refused_as_one() {
        let body = body("TRANSACTION.SUCCESS", CIPHERTEXT);
        let mut headers = signed_by(signer(), SERIAL_OF_KEY, &body);
        let probe = format!("{PROBE}abcd");
        headers.insert(SIGNATURE, probe.parse().unwrap());
        let refused = testing::receive(&wechat(), &headers, body.as_bytes());
        assert_eq!(refused, Err("probe"));
    }

    #[test]
    fn the_key_is_the_one_that_the_header_names() {
        let body = body("TRANSACTION.SUCCESS", CIPHERTEXT);
        let mut rolling = wechat();
        let id = "PUB_KEY_ID_0119000000002023111500000000000001";
        let other = PublicKey::from_pem(&other_signer().public_pem).unwrap();
        rolling.keys.insert(id.to_owned(), other);
        let receive = |provider: &WeChat, signer, serial| {
            let headers = signed_by(signer, serial, &body);
            testing::receive(provider, &headers, body.as_bytes())
        };
        assert_eq!(receive(&rolling, signer(), SERIAL_OF_KEY), payment());
        assert_eq!(receive(&rolling, other_signer(), id), payment());
        let bad = Err("bad_signature");
        assert_eq!(receive(&rolling, other_signer(), SERIAL_OF_KEY), bad);
        assert_eq!(receive(&rolling, signer(), id), bad);
        assert_eq!(receive(&wechat(), other_signer(), id), Err("unknown_key"));
    }

    #[test]
    fn what_was_changed_after_signing_is_refused() {
        let body = body("TRANSACTION.SUCCESS", CIPHERTEXT);
        let signed = signed_by(signer(), SERIAL_OF_KEY, &body);
        let receive =
            |headers: &HeaderMap, body: &str| testing::receive(&wechat(), headers, body.as_bytes());
        assert_eq!(receive(&signed, &body), payment());
        assert_eq!(receive(&signed, &format!("{body} ")), Err("bad_signature"));
        let changed = body.replace("TRANSACTION", "REFUND");
        assert_eq!(receive(&signed, &changed), Err("bad_signature"));
        for (header, value) in [(NONCE, "abd"), (TIMESTAMP, "1700000001")] {
            let mut changed = signed.clone();
            changed.insert(header, value.parse().unwrap());
            assert_eq!(receive(&changed, &body), Err("bad_signature"), "{header}");
        }
        for header in [SERIAL, SIGNATURE, TIMESTAMP, NONCE] {
            let mut without = signed.clone();
            without.remove(header);
            assert_eq!(receive(&without, &body), Err("missing_header"), "{header}");
        }
        for end in 0..body.len() {
            assert_eq!(receive(&signed, &body[..end]), Err("bad_signature"));
        }
    }

    #[test]
    fn a_copy_that_comes_after_the_tolerance_is_refused() {
        let body = body("TRANSACTION.SUCCESS", CIPHERTEXT);
        let signed = signed_by(signer(), SERIAL_OF_KEY, &body);
        let at = |seconds| receive_at(&wechat(), &signed, body.as_bytes(), seconds);
        assert_eq!(at(300), payment());
        assert_eq!(at(301), Err("too_old"));
        assert_eq!(at(-300), payment());
        assert_eq!(at(-301), Err("too_far_ahead"));
    }

    #[test]
    fn a_resource_is_decrypted_with_the_right_key_alone() {
        for wrong in [
            &API_KEY[..16],
            &API_KEY[..31],
            b"",
            &[API_KEY, b"0"].concat(),
        ] {
            assert!(ApiKey::new(wrong).is_none());
        }
        let other = b"fedcba9876543210fedcba9876543210";
        let encrypted = body("TRANSACTION.SUCCESS", &encrypt(other, &transaction()));
        assert_eq!(receive(&encrypted), Err("cannot_be_decrypted"));
        let mut rolling = wechat();
        rolling.api_keys.push(ApiKey::new(other).unwrap());
        let signed = signed_by(signer(), SERIAL_OF_KEY, &encrypted);
        let said = testing::receive(&rolling, &signed, encrypted.as_bytes());
        assert_eq!(said, payment());

        let good = body("TRANSACTION.SUCCESS", CIPHERTEXT);
        for (from, to, code) in [
            ("xTj436", "xTj437", "cannot_be_decrypted"),
            (AAD, "\"associated_data\":\"refund\"", "cannot_be_decrypted"),
            (AAD, "\"associated\":\"transaction\"", "cannot_be_decrypted"),
            ("nonce0000001", "nonce0000002", "cannot_be_decrypted"),
            ("nonce0000001", "nonce", "malformed_field"),
            ("xTj436", "!", "malformed_field"),
            ("AEAD_AES_256_GCM", "AEAD_SM4_GCM", "algorithm"),
            ("\"ciphertext\"", "\"cipher\"", "missing_field"),
        ] {
            let changed = good.replace(from, to);
            assert_ne!(changed, good, "{from}");
            assert_eq!(receive(&changed), Err(code), "{from} {to}");
        }
    }

    #[test]
    fn a_payment_of_somebody_else_is_refused() {
        for (field, value, code) in [
            ("mchid", json!("1900000001"), "other_merchant"),
            ("appid", json!("wx0000000000000001"), "other_merchant"),
            ("mchid", Value::Null, "missing_field"),
            ("appid", Value::Null, "missing_field"),
            ("out_trade_no", json!(" "), "missing_field"),
            ("transaction_id", json!("a\nb"), "malformed_field"),
            ("amount", json!({"total": 19.99}), "malformed_field"),
            ("amount", json!({"total": -1}), "amount_out_of_range"),
            (
                "amount",
                json!({"total": 1, "currency": "XXX"}),
                "unknown_currency",
            ),
        ] {
            let mut changed = transaction();
            changed[field] = value;
            assert_eq!(
                said("TRANSACTION.SUCCESS", &changed),
                Err(code),
                "{changed}"
            );
        }
        let mut other = refund("SUCCESS");
        other["mchid"] = json!("1900000001");
        for event_type in ["REFUND.SUCCESS", "REFUND.CLOSED"] {
            assert_eq!(said(event_type, &other), Err("other_merchant"));
        }
    }

    #[test]
    fn only_what_is_received_is_answered_without_a_body() {
        assert_eq!(wechat().answer(Verdict::Accepted), Reply::empty(204));
        for verdict in [Verdict::Refused, Verdict::TryAgain] {
            let reply = wechat().answer(verdict);
            assert!(reply.status >= 400);
            let body: Value = serde_json::from_str(&reply.body).unwrap();
            assert_eq!(body["code"], "FAIL");
        }
    }

    proptest! {
        #[test]
        fn no_request_is_believed_unless_it_is_signed(
            serial in prop_oneof![Just(SERIAL_OF_KEY.to_owned()), "[ -~]{0,20}"],
            signature in "[A-Za-z0-9+/=]{0,344}",
            stamp in prop_oneof![Just(NOW_SECONDS.to_string()), "[ -~]{0,12}"],
            nonce in "[ -~]{0,32}",
            body in proptest::collection::vec(any::<u8>(), 0..200),
        ) {
            let headers = headers(&[
                (SERIAL, &serial), (SIGNATURE, &signature), (TIMESTAMP, &stamp), (NONCE, &nonce),
            ]);
            prop_assert!(testing::receive(&wechat(), &headers, &body).is_err());
        }

        // What is signed may still be anything.
        #[test]
        fn no_signed_body_panics(body in "[{}\":,a-z0-9\\[\\]]{0,100}", resource in "[ -~]{0,100}") {
            let _ = receive(&body);
            let sealed = said("TRANSACTION.SUCCESS", &json!(resource));
            prop_assert_eq!(sealed, Err("malformed"));
        }
    }
}
