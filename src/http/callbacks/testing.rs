//! Keys and requests for the tests of the providers.

use super::{Provider, Received, Said};
use crate::domain::Timestamp;
use axum::http::{HeaderMap, HeaderName, HeaderValue};
use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use ring::rand::SystemRandom;
use ring::signature::{RSA_PKCS1_SHA256, RsaKeyPair};
use rsa::pkcs8::{EncodePrivateKey, EncodePublicKey, LineEnding};
use rsa::traits::PrivateKeyParts;
use rsa::{BigUint, RsaPrivateKey, RsaPublicKey};
use std::sync::OnceLock;

/// The time at which requests come, in seconds.
pub(super) const NOW_SECONDS: i64 = 1_700_000_000;

/// A provider's key pair.
pub(super) struct Signer {
    private: RsaKeyPair,
    private_pem: String,
    pub(super) public_pem: String,
}

impl Signer {
    fn new(key: &RsaPrivateKey) -> Self {
        let der = key.to_pkcs8_der().unwrap();
        Self {
            private: RsaKeyPair::from_pkcs8(der.as_bytes()).unwrap(),
            private_pem: key.to_pkcs8_pem(LineEnding::LF).unwrap().to_string(),
            public_pem: RsaPublicKey::from(key)
                .to_public_key_pem(LineEnding::LF)
                .unwrap(),
        }
    }

    /// A signature of SHA256withRSA in base64.
    pub(super) fn sign(&self, message: &[u8]) -> String {
        let mut signature = vec![0; self.private.public().modulus_len()];
        let random = SystemRandom::new();
        self.private
            .sign(&RSA_PKCS1_SHA256, &random, message, &mut signature)
            .unwrap();
        BASE64_STANDARD.encode(signature)
    }

    /// A certificate of the key.
    pub(super) fn certificate(&self, serial: &[u8]) -> String {
        let key = rcgen::KeyPair::from_pem(&self.private_pem).unwrap();
        let mut params = rcgen::CertificateParams::new(vec!["pay.example".to_owned()]).unwrap();
        params.serial_number = Some(serial.to_vec().into());
        params.self_signed(&key).unwrap().pem()
    }
}

/// A key takes seconds to make in a debug build, so it is made once.
fn key() -> &'static RsaPrivateKey {
    static KEY: OnceLock<RsaPrivateKey> = OnceLock::new();
    KEY.get_or_init(|| RsaPrivateKey::new(&mut rsa::rand_core::OsRng, 2048).unwrap())
}

/// The provider's key.
pub(super) fn signer() -> &'static Signer {
    static SIGNER: OnceLock<Signer> = OnceLock::new();
    SIGNER.get_or_init(|| Signer::new(key()))
}

/// Another key. It shares the primes of the first, which saves the time to look for others, and has another
/// exponent, so that neither verifies what the other has signed.
pub(super) fn other_signer() -> &'static Signer {
    static SIGNER: OnceLock<Signer> = OnceLock::new();
    SIGNER.get_or_init(|| {
        let exponents = [65_539_u32, 65_543, 65_551, 65_557].map(BigUint::from);
        let mut keys = exponents
            .into_iter()
            .filter_map(|e| RsaPrivateKey::from_primes(key().primes().to_vec(), e).ok());
        Signer::new(&keys.find(|key| key.validate().is_ok()).unwrap())
    })
}

/// Headers of these names and values.
pub(super) fn headers(headers: &[(&str, &str)]) -> HeaderMap {
    let header = |(name, value): &(&str, &str)| {
        let name: HeaderName = name.parse().unwrap();
        let value: HeaderValue = value.parse().unwrap();
        (name, value)
    };
    headers.iter().map(header).collect()
}

/// What a provider makes of a request that comes `seconds` after [`NOW_SECONDS`]: what it says, or the code of
/// its refusal.
pub(super) fn receive_at(
    provider: &dyn Provider,
    headers: &HeaderMap,
    body: &[u8],
    seconds: i64,
) -> Result<Said, &'static str> {
    let now = Timestamp((NOW_SECONDS + seconds) * 1000);
    let request = Received { headers, body, now };
    provider.receive(&request).map_err(|refusal| refusal.code())
}

/// The same at once.
pub(super) fn receive(
    provider: &dyn Provider,
    headers: &HeaderMap,
    body: &[u8],
) -> Result<Said, &'static str> {
    receive_at(provider, headers, body, 0)
}
