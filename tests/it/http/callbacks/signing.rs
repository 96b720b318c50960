//! Providers that sign what they say, each with keys of its own.

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use ring::aead::{AES_256_GCM, Aad, LessSafeKey, Nonce, UnboundKey};
use ring::hmac;
use ring::rand::SystemRandom;
use ring::signature::{RSA_PKCS1_SHA256, RsaKeyPair};
use rsa::pkcs8::{EncodePrivateKey, EncodePublicKey, LineEnding};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::time::{SystemTime, UNIX_EPOCH};

/// A callback: the last part of its address, its headers and its body.
#[derive(Debug, Clone)]
pub(super) struct Call {
    pub(super) to: &'static str,
    pub(super) headers: Vec<(&'static str, String)>,
    pub(super) body: String,
}

const API_KEY: &str = "0123456789abcdef0123456789abcdef";

/// Writes the file that names the providers.
pub(super) fn write(folder: &Path) -> PathBuf {
    let public = &signer().1;
    let text = format!(
        r#"
[[alipay]]
name = "alipay"
app_id = "2021"
seller_id = "2088"
public_key = '''{public}'''

[[wechat]]
name = "wechat"
mchid = "1900"
appid = "wx0"
api_key = "{API_KEY}"
public_key = {{ PUB_KEY_ID_1 = '''{public}''' }}

[[stripe]]
name = "stripe"
secret = ["whsec_new", "whsec_old"]

[[generic]]
name = "till"
secret = "till"
signature_header = "x-signature"
encoding = "hex"
type = "/type"
order_id = "/order"
trade_no = "/trade"
amount = "/amount"
currency = "/currency"
refund_no = "/refund"
unit = "minor"
[generic.types]
paid = "payment.succeeded"
failed = "payment.failed"
refunded = "refund.succeeded"
refund_failed = "refund.failed"
"#
    );
    let path = folder.join("callbacks.toml");
    std::fs::write(&path, text).unwrap();
    path
}

/// A private key and its public one. It takes seconds to make, so it is made once.
fn signer() -> &'static (RsaKeyPair, String) {
    static SIGNER: OnceLock<(RsaKeyPair, String)> = OnceLock::new();
    SIGNER.get_or_init(|| {
        let key = rsa::RsaPrivateKey::new(&mut rsa::rand_core::OsRng, 2048).unwrap();
        let public = key.to_public_key().to_public_key_pem(LineEnding::LF);
        let der = key.to_pkcs8_der().unwrap();
        (
            RsaKeyPair::from_pkcs8(der.as_bytes()).unwrap(),
            public.unwrap(),
        )
    })
}

fn sign(text: &str) -> String {
    let (key, _) = signer();
    let mut signature = vec![0; key.public().modulus_len()];
    let random = SystemRandom::new();
    key.sign(&RSA_PKCS1_SHA256, &random, text.as_bytes(), &mut signature)
        .unwrap();
    BASE64_STANDARD.encode(signature)
}

fn now() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.unwrap().as_secs()
}

/// A notification of Alipay about one trade of `order`, with more fields or others.
pub(super) fn alipay(order: &str, fields: &[(&'static str, &str)]) -> Call {
    let trade = format!("T-{order}");
    let mut all = BTreeMap::from([
        ("notify_type", "trade_status_sync"),
        ("notify_id", "n1"),
        ("app_id", "2021"),
        ("charset", "utf-8"),
        ("seller_id", "2088"),
        ("trade_no", &trade),
        ("out_trade_no", order),
        ("trade_status", "TRADE_SUCCESS"),
        ("total_amount", "19.99"),
        ("subject", "a+b & c"),
    ]);
    all.extend(fields.iter().copied());
    let pairs: Vec<_> = all
        .iter()
        .map(|(name, value)| format!("{name}={value}"))
        .collect();
    let signature = sign(&pairs.join("&"));
    let encode =
        |text: &str| url::form_urlencoded::byte_serialize(text.as_bytes()).collect::<String>();
    let mut pairs: Vec<_> = { all.iter() }
        .map(|(name, value)| format!("{name}={}", encode(value)))
        .collect();
    pairs.push(format!("sign_type=RSA2&sign={}", encode(&signature)));
    Call {
        to: "alipay",
        headers: vec![(
            "content-type",
            "application/x-www-form-urlencoded".to_owned(),
        )],
        body: pairs.join("&"),
    }
}

/// A notification of WeChat Pay, with its resource encrypted.
pub(super) fn wechat(event_type: &str, resource: &Value) -> Call {
    let key = UnboundKey::new(&AES_256_GCM, API_KEY.as_bytes()).unwrap();
    let nonce = Nonce::assume_unique_for_key(*b"nonce0000001");
    let mut text = resource.to_string().into_bytes();
    LessSafeKey::new(key)
        .seal_in_place_append_tag(nonce, Aad::from(b"transaction"), &mut text)
        .unwrap();
    let body = json!({
        "id": "n1",
        "event_type": event_type,
        "resource_type": "encrypt-resource",
        "resource": {
            "algorithm": "AEAD_AES_256_GCM",
            "ciphertext": BASE64_STANDARD.encode(text),
            "associated_data": "transaction",
            "nonce": "nonce0000001",
        },
    });
    wechat_signed(&body.to_string(), None)
}

/// A body in the name of WeChat Pay, signed by it or by nobody.
pub(super) fn wechat_signed(body: &str, signature: Option<&str>) -> Call {
    let stamp = now().to_string();
    let by_key = || sign(&format!("{stamp}\nabc\n{body}\n"));
    Call {
        to: "wechat",
        headers: vec![
            ("wechatpay-serial", "PUB_KEY_ID_1".to_owned()),
            (
                "wechatpay-signature",
                signature.map_or_else(by_key, str::to_owned),
            ),
            ("wechatpay-timestamp", stamp.clone()),
            ("wechatpay-nonce", "abc".to_owned()),
            ("content-type", "application/json".to_owned()),
        ],
        body: body.to_owned(),
    }
}

/// An event of Stripe about one object.
pub(super) fn stripe(event_type: &str, object: &Value) -> Call {
    let id = format!("evt_{:x}", fastrand::u64(..));
    let body = json!({"id": id, "object": "event", "type": event_type, "data": {"object": object}});
    stripe_signed("whsec_new", &body.to_string(), now())
}

/// A body in the name of Stripe.
pub(super) fn stripe_signed(secret: &str, body: &str, stamp: u64) -> Call {
    let signature = hmac_hex(secret, &format!("{stamp}.{body}"));
    Call {
        to: "stripe",
        headers: vec![("stripe-signature", format!("t={stamp},v1={signature}"))],
        body: body.to_owned(),
    }
}

/// A payment of an order by Stripe.
pub(super) fn stripe_paid(order: &str, trade: &str, amount: i64) -> Call {
    let object = json!({
        "id": trade, "amount_received": amount, "currency": "gbp",
        "metadata": {"order_id": order},
    });
    stripe("payment_intent.succeeded", &object)
}

/// What any other provider says.
pub(super) fn till(body: &Value) -> Call {
    let body = body.to_string();
    Call {
        to: "till",
        headers: vec![("x-signature", hmac_hex("till", &body))],
        body,
    }
}

fn hmac_hex(secret: &str, text: &str) -> String {
    let key = hmac::Key::new(hmac::HMAC_SHA256, secret.as_bytes());
    let tag = hmac::sign(&key, text.as_bytes());
    hex::encode(tag)
}
