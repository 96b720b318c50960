//! RSA public keys, from the PEM of a key or of an X.509 certificate.
//!
//! A key is believed because it is configured. Neither the issuer of a certificate nor its dates are looked at: a
//! key that is no longer to be believed is taken out of the file.

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use ring::signature::{RSA_PKCS1_2048_8192_SHA256, UnparsedPublicKey};
use std::fmt;
use std::ops::RangeInclusive;
use x509_cert::Certificate;
use x509_cert::der::asn1::{AnyRef, UintRef};
use x509_cert::der::{Decode, Document};
use x509_cert::spki::{AlgorithmIdentifierRef, ObjectIdentifier, SubjectPublicKeyInfoRef};

const RSA: ObjectIdentifier = ObjectIdentifier::new_unwrap("1.2.840.113549.1.1.1");
const BITS: RangeInclusive<usize> = 2048..=8192;

/// Why a text is no key that can be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(super) enum Error {
    /// It is no PEM.
    #[error(
        "is no PEM ({0}), expected BEGIN PUBLIC KEY or BEGIN CERTIFICATE and lines of 64 characters"
    )]
    Pem(String),
    /// It is something else, such as a private key.
    #[error("is a PEM of a {0}, expected PUBLIC KEY or CERTIFICATE")]
    Label(String),
    /// What the PEM holds is not what it says.
    #[error("is a PEM of a {label} that cannot be read: {problem}")]
    Der {
        /// What the PEM says that it holds.
        label: String,
        /// What is wrong with it.
        problem: String,
    },
    /// It is a key of another algorithm.
    #[error("is a key of the algorithm {0}, expected RSA")]
    NotRsa(ObjectIdentifier),
    /// It is too short to be safe, or longer than can be verified here.
    #[error("is an RSA key of {0} bits, expected 2048 to 8192")]
    Bits(usize),
}

/// An RSA public key.
pub(super) struct PublicKey {
    key: UnparsedPublicKey<Vec<u8>>,
    serial: Option<String>,
}

impl PublicKey {
    /// Reads the PEM of a public key or of an X.509 certificate.
    pub(super) fn from_pem(pem: &str) -> Result<Self, Error> {
        let (label, document) =
            Document::from_pem(pem.trim()).map_err(|error| Error::Pem(error.to_string()))?;
        let unreadable = |error: x509_cert::der::Error| Error::Der {
            label: label.to_owned(),
            problem: error.to_string(),
        };
        match label {
            "PUBLIC KEY" => {
                let spki: SubjectPublicKeyInfoRef<'_> =
                    document.decode_msg().map_err(unreadable)?;
                let key = spki.subject_public_key.as_bytes().unwrap_or_default();
                Self::new(&spki.algorithm, key, None, unreadable)
            }
            "CERTIFICATE" => {
                let certificate: Certificate = document.decode_msg().map_err(unreadable)?;
                let tbs = &certificate.tbs_certificate;
                let serial = tbs.serial_number.as_bytes();
                // A positive number whose first bit is set has a zero byte before it.
                let serial = match serial {
                    [0, rest @ ..] if !rest.is_empty() => rest,
                    _ => serial,
                };
                let spki = &tbs.subject_public_key_info;
                let key = spki.subject_public_key.as_bytes().unwrap_or_default();
                let algorithm = AlgorithmIdentifierRef {
                    oid: spki.algorithm.oid,
                    parameters: None,
                };
                Self::new(&algorithm, key, Some(hex::encode_upper(serial)), unreadable)
            }
            other => Err(Error::Label(other.to_owned())),
        }
    }

    fn new(
        algorithm: &AlgorithmIdentifierRef<'_>,
        pkcs1: &[u8],
        serial: Option<String>,
        unreadable: impl FnOnce(x509_cert::der::Error) -> Error,
    ) -> Result<Self, Error> {
        if algorithm.oid != RSA {
            return Err(Error::NotRsa(algorithm.oid));
        }
        let bits = bits(pkcs1).map_err(unreadable)?;
        if !BITS.contains(&bits) {
            return Err(Error::Bits(bits));
        }
        Ok(Self {
            key: UnparsedPublicKey::new(&RSA_PKCS1_2048_8192_SHA256, pkcs1.to_vec()),
            serial,
        })
    }

    /// The serial number of its certificate, in upper case hexadecimal digits.
    pub(super) fn serial(&self) -> Option<&str> {
        self.serial.as_deref()
    }

    /// Whether a signature in base64 is one of SHA256withRSA over `message` by this key's owner.
    pub(super) fn has_signed(&self, message: &[u8], signature: &str) -> bool {
        let signature = BASE64_STANDARD.decode(signature);
        signature.is_ok_and(|signature| self.key.verify(message, &signature).is_ok())
    }
}

impl fmt::Debug for PublicKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PublicKey")
            .field("serial", &self.serial)
            .finish_non_exhaustive()
    }
}

/// The bits of a key's modulus.
fn bits(pkcs1: &[u8]) -> Result<usize, x509_cert::der::Error> {
    AnyRef::from_der(pkcs1)?.sequence(|reader| {
        let modulus = UintRef::decode(reader)?.as_bytes();
        let _exponent = UintRef::decode(reader)?;
        let unused = modulus.first().map_or(0, |byte| byte.leading_zeros());
        Ok((modulus.len() * 8).saturating_sub(usize::try_from(unused).unwrap_or(0)))
    })
}

#[cfg(test)]
mod tests {
    use super::super::testing::{other_signer, signer};
    use super::*;

    #[test]
    fn a_key_and_its_certificate_verify_the_same() {
        let signature = signer().sign(b"message");
        let certificate = signer().certificate(&[0x51, 0x57, 0xF0]);
        let keys = [&signer().public_pem, &certificate];
        for key in keys.map(|pem| PublicKey::from_pem(pem).unwrap()) {
            assert!(key.has_signed(b"message", &signature));
            assert!(!key.has_signed(b"massage", &signature));
            assert!(!key.has_signed(b"message", &other_signer().sign(b"message")));
            assert!(!key.has_signed(b"message", &signature[1..]));
            assert!(!key.has_signed(b"message", ""));
            assert!(!key.has_signed(b"message", "no base64!"));
        }
    }

    #[test]
    fn a_certificate_is_known_by_its_serial() {
        let serial = |serial: &[u8]| {
            let key = PublicKey::from_pem(&signer().certificate(serial)).unwrap();
            key.serial().unwrap().to_owned()
        };
        assert_eq!(serial(&[0x0a, 0xbc]), "0ABC");
        assert_eq!(serial(&[0xa1, 0x00]), "A100");
        let key = PublicKey::from_pem(&signer().public_pem).unwrap();
        assert_eq!(key.serial(), None);
    }

    #[test]
    fn what_is_no_rsa_public_key_is_refused_with_the_reason() {
        let wrong = |pem: &str| PublicKey::from_pem(pem).unwrap_err().to_string();
        assert!(wrong("").contains("no PEM"));
        assert!(wrong("MIIBIjANBg").contains("no PEM"));
        assert!(wrong(&signer().public_pem[..200]).contains("no PEM"));
        let private = "-----BEGIN PRIVATE KEY-----\nMAA=\n-----END PRIVATE KEY-----\n";
        assert!(wrong(private).contains("a PEM of a PRIVATE KEY, expected"));
        for label in ["PUBLIC KEY", "CERTIFICATE"] {
            let pem = private.replace("PRIVATE KEY", label);
            assert!(wrong(&pem).contains("cannot be read"), "{label}");
        }
        let elliptic = rcgen::KeyPair::generate().unwrap();
        let of_curve = "algorithm 1.2.840.10045.2.1, expected RSA";
        assert!(wrong(&elliptic.public_key_pem()).contains(of_curve));
        let certificate = rcgen::CertificateParams::default()
            .self_signed(&elliptic)
            .unwrap();
        assert!(wrong(&certificate.pem()).contains(of_curve));
    }

    #[test]
    fn a_short_rsa_key_is_refused() {
        use rsa::pkcs8::{EncodePublicKey, LineEnding};
        // Whether a modulus is a product of primes is not looked at, so any number of 1,024 bits will do.
        let modulus = rsa::BigUint::from_bytes_be(&[0xff; 128]);
        let key = rsa::RsaPublicKey::new(modulus, 65_537_u32.into()).unwrap();
        let pem = key.to_public_key_pem(LineEnding::LF).unwrap();
        assert_eq!(PublicKey::from_pem(&pem).unwrap_err(), Error::Bits(1024));
    }
}
