//! Alipay's asynchronous notifications: a signed form.
//!
//! The signed text is `name=value` of all fields but `sign` and `sign_type`, sorted by name and joined by `&`,
//! in the bytes of the form's charset. The values stand in it as they are, so a `&` in one of them looks like the
//! border between two. Whoever may choose the subject of an order could therefore have a text signed that splits
//! into other fields than Alipay's: `x&total_amount=...&z=`. All of the true fields must then hide inside a
//! value, so a form in which a value holds the name of a field that counts is refused.
//!
//! A partial refund comes as the trade's status once more, with `refund_fee`, the running total of all refunds. A
//! full refund comes as `TRADE_CLOSED` with `refund_fee`, and an unpaid trade that is over as `TRADE_CLOSED`
//! without. A notification that states a refund says as well that there was a payment, and the payment goes first:
//! if its own notification was lost, the refund would have nothing to refer to.

use super::keys::PublicKey;
use super::provider::{
    Provider, Received, Refusal, Reply, Said, Verdict, id, remark, shorten, within,
};
use crate::domain::event::{
    OrderEvent, PaymentFailed, PaymentSucceeded, RefundAmount, RefundSucceeded,
};
use crate::domain::money::Decimal;
use crate::domain::{self, Currency, OrderId, RefundNo, TradeNo};
use encoding_rs::{Encoding, GBK, UTF_8};
use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};

/// The fields that count, and those that every notification has. None of them may hide in a value.
const NAMES: [&str; 12] = [
    "app_id",
    "charset",
    "notify_id",
    "notify_time",
    "notify_type",
    "out_biz_no",
    "out_trade_no",
    "refund_fee",
    "seller_id",
    "total_amount",
    "trade_no",
    "trade_status",
];

/// Where Alipay calls.
#[derive(Debug)]
pub(super) struct Alipay {
    pub(super) name: domain::Provider,
    /// Our applications.
    pub(super) app_ids: BTreeSet<String>,
    /// The accounts that get the money.
    pub(super) seller_ids: BTreeSet<String>,
    /// Alipay's keys; several while one replaces another.
    pub(super) keys: Vec<PublicKey>,
    /// The text that counts as received: `success`, but `SUCCESS` for some products.
    pub(super) success: String,
}

impl Provider for Alipay {
    fn name(&self) -> &domain::Provider {
        &self.name
    }

    fn receive(&self, request: &Received<'_>) -> Result<Said, Refusal> {
        let form = Form::parse(request.body)?;
        let sign_type = form.ascii("sign_type")?;
        if sign_type != "RSA2" {
            return Err(Refusal::Algorithm {
                found: shorten(&sign_type),
                expected: "RSA2, SHA256withRSA",
            });
        }
        let signature = form.ascii("sign")?;
        let text = form.signed_text();
        if !self
            .keys
            .iter()
            .any(|key| key.has_signed(&text, &signature))
        {
            return Err(Refusal::BadSignature);
        }
        form.check_no_name_hides()?;
        self.read(&form.transcode()?)
    }

    fn answer(&self, verdict: Verdict) -> Reply {
        let body = match verdict {
            Verdict::Accepted => self.success.clone().into(),
            Verdict::Refused | Verdict::TryAgain => "failure".into(),
        };
        Reply {
            status: verdict.status(),
            content_type: Some("text/plain; charset=utf-8"),
            body,
        }
    }
}

impl Alipay {
    fn read(&self, fields: &Fields) -> Result<Said, Refusal> {
        let app_id = fields.required("app_id")?;
        if !self.app_ids.contains(app_id) {
            return Err(Refusal::other_merchant("app_id", app_id));
        }
        if let Some(kind) = fields.optional("notify_type")
            && kind != "trade_status_sync"
        {
            return Ok(Said::OfNoInterest);
        }
        let seller_id = fields.required("seller_id")?;
        if !self.seller_ids.contains(seller_id) {
            return Err(Refusal::other_merchant("seller_id", seller_id));
        }
        let refunded = match fields.optional("refund_fee") {
            Some(_) => fields.fen("refund_fee")?,
            None => 0,
        };
        match fields.required("trade_status")? {
            "TRADE_SUCCESS" | "TRADE_FINISHED" => self.paid(fields, refunded),
            "TRADE_CLOSED" if refunded > 0 => self.paid(fields, refunded),
            status @ "TRADE_CLOSED" => {
                let failed = PaymentFailed {
                    order_id: fields.id("out_trade_no", OrderId::new)?,
                    provider: self.name.clone(),
                    trade_no: fields.id("trade_no", TradeNo::new)?,
                    reason: remark(status),
                };
                Ok(Said::Events(vec![OrderEvent::PaymentFailed(failed)]))
            }
            _ => Ok(Said::OfNoInterest),
        }
    }

    fn paid(&self, fields: &Fields, refunded: i64) -> Result<Said, Refusal> {
        let order_id = fields.id("out_trade_no", OrderId::new)?;
        let trade_no = fields.id("trade_no", TradeNo::new)?;
        let currency = yuan()?;
        let paid = PaymentSucceeded {
            order_id: order_id.clone(),
            provider: self.name.clone(),
            trade_no: trade_no.clone(),
            out_trade_no: None,
            trade_status: Some(fields.required("trade_status")?.to_owned()),
            amount_minor: fields.fen("total_amount")?,
            currency,
        };
        let mut events = vec![OrderEvent::PaymentSucceeded(paid)];
        if refunded > 0 {
            let refund_no = match fields.optional("out_biz_no") {
                Some(refund_no) => id("out_biz_no", refund_no, RefundNo::new)?,
                None => id("trade_no", &format!("{trade_no}:{refunded}"), RefundNo::new)?,
            };
            events.push(OrderEvent::RefundSucceeded(RefundSucceeded {
                order_id,
                provider: self.name.clone(),
                refund_no,
                trade_no: Some(trade_no),
                amount: RefundAmount::RunningTotal(refunded),
                currency,
            }));
        }
        Ok(Said::Events(events))
    }
}

fn yuan() -> Result<Currency, Refusal> {
    super::provider::currency("currency", "CNY")
}

/// The fields of a form in the bytes of its charset, by name.
struct Form(BTreeMap<String, Vec<u8>>);

impl Form {
    fn parse(body: &[u8]) -> Result<Self, Refusal> {
        let mut fields = BTreeMap::new();
        for pair in body.split(|&byte| byte == b'&') {
            let Some(border) = pair.iter().position(|&byte| byte == b'=') else {
                return Err(Refusal::malformed("is no form of fields name=value"));
            };
            let name = percent_decoded(&pair[..border])?;
            let is_name = |byte: &u8| byte.is_ascii_alphanumeric() || *byte == b'_';
            if name.is_empty() || !name.iter().all(is_name) {
                return Err(Refusal::malformed(
                    "has a field whose name is not made of ASCII letters, digits and underscores",
                ));
            }
            let name: String = name.into_iter().map(char::from).collect();
            let value = percent_decoded(&pair[border + 1..])?;
            if fields.contains_key(&name) {
                return Err(Refusal::FieldTwice {
                    field: shorten(&name),
                });
            }
            fields.insert(name, value);
        }
        Ok(Self(fields))
    }

    fn ascii(&self, name: &str) -> Result<Cow<'_, str>, Refusal> {
        match self.0.get(name) {
            Some(value) if !value.is_empty() => {
                let text = String::from_utf8_lossy(value);
                if text.is_ascii() {
                    return Ok(text);
                }
                Err(Refusal::field(name, &text, "is not ASCII text"))
            }
            Some(_) | None => Err(Refusal::missing(name)),
        }
    }

    /// What is signed. Bytes of UTF-8 or GBK that look like `&` or `=` are such, so the borders are clear.
    fn signed_text(&self) -> Vec<u8> {
        let mut text = Vec::new();
        for (name, value) in &self.0 {
            if name == "sign" || name == "sign_type" {
                continue;
            }
            if !text.is_empty() {
                text.push(b'&');
            }
            text.extend_from_slice(name.as_bytes());
            text.push(b'=');
            text.extend_from_slice(value);
        }
        text
    }

    /// The signed text can be split into fields in one way only, as far as the fields that count go.
    fn check_no_name_hides(&self) -> Result<(), Refusal> {
        for (name, value) in &self.0 {
            for part in value.split(|&byte| byte == b'&').skip(1) {
                let hidden = NAMES.into_iter().find(|hidden| {
                    let rest = part.strip_prefix(hidden.as_bytes());
                    rest.is_some_and(|rest| rest.starts_with(b"="))
                });
                if let Some(hidden) = hidden {
                    return Err(Refusal::Ambiguous {
                        field: shorten(name),
                        hidden,
                    });
                }
            }
        }
        Ok(())
    }

    fn transcode(&self) -> Result<Fields, Refusal> {
        let label = self.ascii("charset")?;
        let charset: &Encoding = match label.to_ascii_lowercase().as_str() {
            "utf-8" => UTF_8,
            "gbk" => GBK,
            _ => {
                return Err(Refusal::Charset {
                    charset: shorten(&label),
                    problem: "is not read here, expected utf-8 or gbk",
                });
            }
        };
        let text = |(name, value): (&String, &Vec<u8>)| {
            let text = charset.decode_without_bom_handling_and_without_replacement(value);
            let text = text.ok_or_else(|| Refusal::Charset {
                charset: shorten(&label),
                problem: "is not the one of the values",
            })?;
            Ok((name.clone(), text.into_owned()))
        };
        self.0
            .iter()
            .map(text)
            .collect::<Result<_, _>>()
            .map(Fields)
    }
}

/// Undoes the encoding of a form; a `+` is a space.
fn percent_decoded(encoded: &[u8]) -> Result<Vec<u8>, Refusal> {
    let mut decoded = Vec::with_capacity(encoded.len());
    let mut bytes = encoded.iter();
    while let Some(&byte) = bytes.next() {
        decoded.push(match byte {
            b'+' => b' ',
            b'%' => {
                let mut nibble = || char::from(*bytes.next()?).to_digit(16);
                let value = nibble().zip(nibble()).map(|(high, low)| high * 16 + low);
                let value = value.and_then(|value| u8::try_from(value).ok());
                value.ok_or_else(|| Refusal::malformed("has a % without two hexadecimal digits"))?
            }
            other => other,
        });
    }
    Ok(decoded)
}

/// The fields of a form as text, by name.
struct Fields(BTreeMap<String, String>);

impl Fields {
    /// A field that is there and not empty.
    fn optional(&self, name: &str) -> Option<&str> {
        let value = self.0.get(name).map(String::as_str);
        value.filter(|value| !value.is_empty())
    }

    fn required(&self, name: &str) -> Result<&str, Refusal> {
        self.optional(name).ok_or_else(|| Refusal::missing(name))
    }

    fn id<T>(
        &self,
        name: &str,
        new: impl Fn(&str) -> Result<T, domain::IdError>,
    ) -> Result<T, Refusal> {
        id(name, self.required(name)?, new)
    }

    /// An amount in yuan as fen.
    fn fen(&self, name: &str) -> Result<i64, Refusal> {
        let (written, currency) = (self.required(name)?, yuan()?);
        match Decimal::parse(written).and_then(|decimal| decimal.times(1, currency)) {
            Some((money, false)) => within(name, money.minor, 0),
            Some((_, true)) | None => Err(Refusal::inexact(name, written, currency)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::{self, Signer, other_signer, signer};
    use super::*;
    use axum::http::HeaderMap;
    use proptest::prelude::*;

    const PAID: [(&str, &str); 13] = [
        ("notify_time", "2023-11-15 06:13:20"),
        ("notify_type", "trade_status_sync"),
        ("notify_id", "n0001"),
        ("app_id", "2021000000000001"),
        ("charset", "utf-8"),
        ("version", "1.0"),
        ("sign_type", "RSA2"),
        ("trade_no", "2023111500000000000001"),
        ("out_trade_no", "ORD-1"),
        ("seller_id", "2088000000000001"),
        ("trade_status", "TRADE_SUCCESS"),
        ("total_amount", "0.10"),
        ("subject", "A + B & C=1 手机"),
    ];

    fn alipay() -> Alipay {
        let key = |signer: &Signer| PublicKey::from_pem(&signer.public_pem).unwrap();
        Alipay {
            name: domain::Provider::new("alipay").unwrap(),
            app_ids: ["2021000000000001".to_owned()].into(),
            seller_ids: ["2088000000000001".to_owned()].into(),
            keys: vec![key(signer())],
            success: "success".to_owned(),
        }
    }

    /// The fields of [`PAID`], some of them changed or added.
    fn paid_but(changes: &[(&'static str, &'static str)]) -> Vec<(&'static str, Vec<u8>)> {
        let mut fields: BTreeMap<_, _> = PAID.into();
        fields.extend(changes.iter().copied());
        fields
            .into_iter()
            .map(|(name, value)| (name, value.as_bytes().to_vec()))
            .collect()
    }

    fn encode(value: &[u8]) -> String {
        url::form_urlencoded::byte_serialize(value).collect()
    }

    /// A form without a signature.
    fn form(fields: &[(&str, Vec<u8>)]) -> String {
        let pair = |(name, value): &(&str, Vec<u8>)| format!("{name}={}", encode(value));
        fields.iter().map(pair).collect::<Vec<_>>().join("&")
    }

    /// What Alipay signs, made in another way than above.
    fn signed_text(fields: &[(&str, Vec<u8>)]) -> Vec<u8> {
        let mut pairs: Vec<Vec<u8>> = { fields.iter() }
            .filter(|(name, _)| *name != "sign_type")
            .map(|(name, value)| [name.as_bytes(), b"=", value].concat())
            .collect();
        pairs.sort();
        pairs.join(&b'&')
    }

    fn signed_by(signer: &Signer, fields: &[(&str, Vec<u8>)]) -> String {
        let sign = signer.sign(&signed_text(fields));
        format!("{}&sign={}", form(fields), encode(sign.as_bytes()))
    }

    fn receive(body: &str) -> Result<Said, &'static str> {
        testing::receive(&alipay(), &HeaderMap::new(), body.as_bytes())
    }

    fn said(changes: &[(&'static str, &'static str)]) -> Result<Said, &'static str> {
        receive(&signed_by(signer(), &paid_but(changes)))
    }

    fn payment(status: &str) -> OrderEvent {
        OrderEvent::PaymentSucceeded(PaymentSucceeded {
            order_id: OrderId::new("ORD-1").unwrap(),
            provider: domain::Provider::new("alipay").unwrap(),
            trade_no: TradeNo::new("2023111500000000000001").unwrap(),
            out_trade_no: None,
            trade_status: Some(status.to_owned()),
            amount_minor: 10,
            currency: Currency::new("CNY").unwrap(),
        })
    }

    fn refund(refund_no: &str, total: i64) -> OrderEvent {
        OrderEvent::RefundSucceeded(RefundSucceeded {
            order_id: OrderId::new("ORD-1").unwrap(),
            provider: domain::Provider::new("alipay").unwrap(),
            refund_no: RefundNo::new(refund_no).unwrap(),
            trade_no: Some(TradeNo::new("2023111500000000000001").unwrap()),
            amount: RefundAmount::RunningTotal(total),
            currency: Currency::new("CNY").unwrap(),
        })
    }

    // B25: the address is called again after refunds, and months later.
    #[test]
    fn every_status_of_a_trade_is_told() {
        let events = |events| Ok(Said::Events(events));
        assert_eq!(said(&[]), events(vec![payment("TRADE_SUCCESS")]));
        assert_eq!(
            said(&[("trade_status", "TRADE_FINISHED")]),
            events(vec![payment("TRADE_FINISHED")])
        );
        assert_eq!(
            said(&[("refund_fee", "0.03"), ("out_biz_no", "R-1")]),
            events(vec![payment("TRADE_SUCCESS"), refund("R-1", 3)])
        );
        assert_eq!(
            said(&[("refund_fee", "0.03"), ("out_biz_no", "")]),
            events(vec![
                payment("TRADE_SUCCESS"),
                refund("2023111500000000000001:3", 3)
            ])
        );
        assert_eq!(
            said(&[("refund_fee", "0.00")]),
            events(vec![payment("TRADE_SUCCESS")])
        );
        assert_eq!(
            said(&[
                ("trade_status", "TRADE_CLOSED"),
                ("refund_fee", "0.10"),
                ("out_biz_no", "R-2"),
            ]),
            events(vec![payment("TRADE_CLOSED"), refund("R-2", 10)])
        );
        let failed = OrderEvent::PaymentFailed(PaymentFailed {
            order_id: OrderId::new("ORD-1").unwrap(),
            provider: domain::Provider::new("alipay").unwrap(),
            trade_no: TradeNo::new("2023111500000000000001").unwrap(),
            reason: Some("TRADE_CLOSED".to_owned()),
        });
        assert_eq!(
            said(&[("trade_status", "TRADE_CLOSED")]),
            events(vec![failed])
        );
        for of_no_interest in [
            ("trade_status", "WAIT_BUYER_PAY"),
            ("trade_status", "TRADE_PENDING"),
            ("notify_type", "something_else"),
        ] {
            assert_eq!(said(&[of_no_interest]), Ok(Said::OfNoInterest));
        }
    }

    #[test]
    fn a_space_may_be_a_plus_and_a_plus_is_escaped() {
        let signed = signed_by(signer(), &paid_but(&[]));
        assert!(
            signed.contains("subject=A+%2B+B+%26+C%3D1+%E6%89%8B"),
            "{signed}"
        );
        assert!(receive(&signed).is_ok());
        assert!(receive(&signed.replace("A+%2B+B", "A%20%2b%20B")).is_ok());
        assert_eq!(
            receive(&signed.replace("A+%2B+B", "A+++B")),
            Err("bad_signature")
        );
    }

    #[test]
    fn a_form_in_gbk_is_verified_in_its_own_bytes() {
        let mut fields = paid_but(&[("charset", "GBK")]);
        let (gbk, _, _) = GBK.encode("手机 & 盒");
        fields.push(("body", gbk.into_owned()));
        for (name, value) in &mut fields {
            if *name == "subject" {
                *value = GBK.encode("订单").0.into_owned();
            }
        }
        fields.retain(|(name, _)| *name != "out_trade_no");
        fields.push(("out_trade_no", GBK.encode("订单-1").0.into_owned()));
        let Ok(Said::Events(events)) = receive(&signed_by(signer(), &fields)) else {
            panic!("a form in GBK is refused");
        };
        assert_eq!(events[0].order_id().as_str(), "订单-1");

        // The same bytes under a name that is not theirs.
        for field in &mut fields {
            if field.0 == "charset" {
                field.1 = b"utf-8".to_vec();
            }
        }
        assert_eq!(receive(&signed_by(signer(), &fields)), Err("charset"));
    }

    #[test]
    fn charsets_that_are_not_read_are_refused() {
        assert!(said(&[("charset", "UTF-8")]).is_ok());
        assert_eq!(said(&[("charset", "big5")]), Err("charset"));
        assert_eq!(said(&[("charset", "utf-16")]), Err("charset"));
        assert_eq!(said(&[("charset", "")]), Err("missing_field"));
    }

    // B07: amounts never pass through a float.
    #[test]
    fn amounts_are_exact_fen() {
        for wrong in ["0.101", "1e3", "0,10", ".10", "", "一"] {
            let refused = said(&[("total_amount", wrong)]);
            let codes = [Err("inexact_amount"), Err("missing_field")];
            assert!(codes.contains(&refused), "{wrong}: {refused:?}");
        }
        assert_eq!(
            said(&[("total_amount", "-0.10")]),
            Err("amount_out_of_range")
        );
        assert_eq!(said(&[("refund_fee", "-0.10")]), Err("amount_out_of_range"));
        assert_eq!(
            said(&[("total_amount", "0.1")]),
            Ok(Said::Events(vec![payment("TRADE_SUCCESS")]))
        );
    }

    #[test]
    fn what_was_changed_after_signing_is_refused() {
        let signed = signed_by(signer(), &paid_but(&[]));
        for (from, to) in [
            ("total_amount=0.10", "total_amount=0.1"),
            ("total_amount=0.10", "total_amount=9.10"),
            ("out_trade_no=ORD-1", "out_trade_no=ORD-2"),
            ("subject=A", "subject=a"),
            ("version=1.0&", ""),
            ("version=1.0&", "version=1.0&refund_fee=0.10&"),
            ("notify_id=n0001", "notify_id="),
        ] {
            let changed = signed.replace(from, to);
            assert_ne!(changed, signed, "{from}");
            assert_eq!(receive(&changed), Err("bad_signature"), "{from} {to}");
        }
        let other = signed_by(other_signer(), &paid_but(&[]));
        assert_eq!(receive(&other), Err("bad_signature"));
    }

    #[test]
    fn the_signed_text_leaves_out_sign_type() {
        let fields = paid_but(&[]);
        let mut pairs: Vec<Vec<u8>> = { fields.iter() }
            .map(|(name, value)| [name.as_bytes(), b"=", value].concat())
            .collect();
        pairs.sort();
        let sign = signer().sign(&pairs.join(&b'&'));
        let body = format!("{}&sign={}", form(&fields), encode(sign.as_bytes()));
        assert_eq!(receive(&body), Err("bad_signature"));
    }

    #[test]
    fn sha_1_is_refused() {
        assert_eq!(said(&[("sign_type", "RSA")]), Err("algorithm"));
        assert_eq!(said(&[("sign_type", "")]), Err("missing_field"));
    }

    #[test]
    fn two_keys_are_believed_while_one_replaces_the_other() {
        let mut rolling = alipay();
        rolling
            .keys
            .push(PublicKey::from_pem(&other_signer().public_pem).unwrap());
        for signer in [signer(), other_signer()] {
            let body = signed_by(signer, &paid_but(&[]));
            let said = testing::receive(&rolling, &HeaderMap::new(), body.as_bytes());
            assert!(said.is_ok(), "{said:?}");
        }
    }

    #[test]
    fn a_trade_of_somebody_else_is_refused() {
        assert_eq!(
            said(&[("app_id", "2021000000000002")]),
            Err("other_merchant")
        );
        assert_eq!(
            said(&[("seller_id", "2088000000000002")]),
            Err("other_merchant")
        );
        assert_eq!(said(&[("app_id", "")]), Err("missing_field"));
        assert_eq!(said(&[("seller_id", "")]), Err("missing_field"));
    }

    #[test]
    fn a_form_that_can_be_read_in_two_ways_is_refused() {
        let signed = signed_by(signer(), &paid_but(&[]));
        assert_eq!(
            receive(&format!("{signed}&total_amount=0.10")),
            Err("field_twice")
        );
        let twice = format!("{signed}&total%5Famount=0.10");
        assert_eq!(receive(&twice), Err("field_twice"));
    }

    /// A customer who may choose the subject has Alipay sign a text that looks like a large payment.
    #[test]
    fn fields_do_not_come_out_of_a_value() {
        let true_fields = [
            ("app_id", "2021000000000001"),
            (
                "body",
                "x&charset=utf-8&out_trade_no=ORD-9&seller_id=2088000000000001\
                 &total_amount=9999.00&trade_no=T9&trade_status=TRADE_SUCCESS&z=",
            ),
            ("charset", "utf-8"),
            ("out_trade_no", "ORD-1"),
            ("seller_id", "2088000000000001"),
            ("total_amount", "0.01"),
            ("trade_no", "T1"),
            ("trade_status", "TRADE_SUCCESS"),
        ];
        let text = |fields: &[(&str, &str)]| {
            let pair = |(name, value): &(&str, &str)| format!("{name}={value}");
            fields.iter().map(pair).collect::<Vec<_>>().join("&")
        };
        let hidden = format!("&{}", text(&true_fields[2..]));
        let forged = [
            ("app_id", "2021000000000001"),
            ("body", "x"),
            ("charset", "utf-8"),
            ("out_trade_no", "ORD-9"),
            ("seller_id", "2088000000000001"),
            ("total_amount", "9999.00"),
            ("trade_no", "T9"),
            ("trade_status", "TRADE_SUCCESS"),
            ("z", &hidden),
        ];
        assert_eq!(text(&true_fields), text(&forged));
        let sign = signer().sign(text(&true_fields).as_bytes());
        let owned = |fields: &[(&'static str, &str)]| -> Vec<(&'static str, Vec<u8>)> {
            let field = |&(name, value): &(&'static str, &str)| (name, value.as_bytes().to_vec());
            fields.iter().map(field).collect()
        };
        let body = format!(
            "{}&sign_type=RSA2&sign={}",
            form(&owned(&forged)),
            encode(sign.as_bytes())
        );
        assert_eq!(receive(&body), Err("ambiguous"));
        // Nor are they told apart by a name that holds the border.
        let body = body.replace("&z=", "&z%3D%26charset=");
        assert_eq!(receive(&body), Err("malformed"));
    }

    #[test]
    fn a_truncated_body_is_refused() {
        let signed = signed_by(signer(), &paid_but(&[]));
        for end in 0..signed.len() {
            assert!(receive(&signed[..end]).is_err(), "{}", &signed[..end]);
        }
    }

    #[test]
    fn the_answers_are_alipays() {
        let mut alipay = alipay();
        let answer = |alipay: &Alipay, verdict| alipay.answer(verdict).body;
        assert_eq!(alipay.answer(Verdict::Accepted).status, 200);
        assert_eq!(answer(&alipay, Verdict::Accepted), "success");
        assert_eq!(answer(&alipay, Verdict::Refused), "failure");
        assert_eq!(answer(&alipay, Verdict::TryAgain), "failure");
        alipay.success = "SUCCESS".to_owned();
        assert_eq!(answer(&alipay, Verdict::Accepted), "SUCCESS");
    }

    proptest! {
        #[test]
        fn no_bytes_are_believed(body in proptest::collection::vec(any::<u8>(), 0..300)) {
            let refused = testing::receive(&alipay(), &HeaderMap::new(), &body);
            prop_assert!(refused.is_err());
        }

        #[test]
        fn no_unsigned_form_is_believed(
            values in proptest::collection::vec("[ -~手]{0,20}", NAMES.len()),
            sign in "[A-Za-z0-9+/]{0,344}",
        ) {
            let mut fields: Vec<_> = NAMES.into_iter()
                .zip(values.into_iter().map(String::into_bytes))
                .collect();
            fields.push(("sign_type", b"RSA2".to_vec()));
            fields.push(("sign", sign.into_bytes()));
            let refused = testing::receive(&alipay(), &HeaderMap::new(), form(&fields).as_bytes());
            prop_assert!(refused.is_err());
        }

        #[test]
        fn decoding_undoes_encoding(value in proptest::collection::vec(any::<u8>(), 0..100)) {
            prop_assert_eq!(percent_decoded(encode(&value).as_bytes()), Ok(value));
        }
    }
}
