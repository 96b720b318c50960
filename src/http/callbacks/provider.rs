//! The trait of a provider and its data: what is received, what it says, why it is refused, what is answered.

use crate::domain::event::{MAX_AMOUNT, OrderEvent};
use crate::domain::{self, Currency, IdError, Timestamp};
use axum::http::HeaderMap;
use std::borrow::Cow;
use std::time::Duration;
use strum::IntoStaticStr;

/// A request as it came.
#[derive(Debug, Clone, Copy)]
pub struct Received<'a> {
    /// All its headers.
    pub headers: &'a HeaderMap,
    /// Its body, byte for byte: signatures are over these bytes.
    pub body: &'a [u8],
    /// When it came.
    pub now: Timestamp,
}

/// Somebody who has the money, and calls when something becomes of it.
pub trait Provider: Send + Sync {
    /// The name that its events carry, which is the last segment of its address as well.
    fn name(&self) -> &domain::Provider;

    /// Checks who signed the request, and reads what it says.
    ///
    /// # Errors
    /// [`Refusal`] if it was not signed by the provider, is not for this merchant or cannot be read.
    fn receive(&self, request: &Received<'_>) -> Result<Said, Refusal>;

    /// The answer that the provider understands. What is of no interest is [`Verdict::Accepted`], since it
    /// would come again otherwise.
    fn answer(&self, verdict: Verdict) -> Reply;
}

/// What a request says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Said {
    /// What happened, in this order. There is at least one event.
    Events(Vec<OrderEvent>),
    /// Something that moves no order.
    OfNoInterest,
}

/// What became of a request, as far as its sender has to know.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// It is safe here and need not come again.
    Accepted,
    /// It is not believed.
    Refused,
    /// It could not be kept, and is to come again.
    TryAgain,
}

impl Verdict {
    /// The HTTP status of an answer that has no other one by its provider's rules.
    pub(super) fn status(self) -> u16 {
        match self {
            Self::Accepted => 200,
            Self::Refused => 400,
            Self::TryAgain => 503,
        }
    }
}

/// An answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Reply {
    /// The HTTP status.
    pub status: u16,
    /// The type of the body, if there is one.
    pub content_type: Option<&'static str>,
    /// The body.
    pub body: Cow<'static, str>,
}

impl Reply {
    /// An answer without a body.
    pub(super) const fn empty(status: u16) -> Self {
        Self {
            status,
            content_type: None,
            body: Cow::Borrowed(""),
        }
    }
}

/// Why a request is refused. One variant per cause. What is shown of the request is cut to 64 characters, and
/// nothing is shown of a secret.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error, IntoStaticStr)]
#[strum(serialize_all = "snake_case")]
pub enum Refusal {
    /// A header is not there.
    #[error("the header {header} is missing")]
    MissingHeader {
        /// The header.
        header: String,
    },
    /// A header stands twice, so that it is open which one counts.
    #[error("the header {header} is there twice")]
    HeaderTwice {
        /// The header.
        header: String,
    },
    /// A header cannot be read.
    #[error("the header {header} {problem}")]
    MalformedHeader {
        /// The header.
        header: String,
        /// What is wrong with it.
        problem: &'static str,
    },
    /// The body cannot be read.
    #[error("the body {problem}")]
    Malformed {
        /// What is wrong with it.
        problem: String,
    },
    /// A field is not there, or empty.
    #[error("{field} is missing")]
    MissingField {
        /// The field.
        field: String,
    },
    /// A field stands twice, so that it is open which one counts.
    #[error("{field} is there twice")]
    FieldTwice {
        /// The field.
        field: String,
    },
    /// The signed text could be split into other fields than these.
    #[error("{field} holds &{hidden}=, so that it is open where a field ends")]
    Ambiguous {
        /// The field, shortened.
        field: String,
        /// What its value holds.
        hidden: &'static str,
    },
    /// A field's value makes no sense.
    #[error("{field} {problem}, got {value:?}")]
    MalformedField {
        /// The field.
        field: String,
        /// Its value, shortened.
        value: String,
        /// What is wrong with it.
        problem: String,
    },
    /// The text is in a charset that is not read here, or not in the one that it names.
    #[error("the charset {charset:?} {problem}")]
    Charset {
        /// The charset, shortened.
        charset: String,
        /// What is wrong with it.
        problem: &'static str,
    },
    /// It is signed or encrypted in a way that is not accepted here.
    #[error("the algorithm is {found:?}, expected {expected}")]
    Algorithm {
        /// The algorithm, shortened.
        found: String,
        /// What is accepted.
        expected: &'static str,
    },
    /// It is signed by a key that is not configured.
    #[error("the key {key:?} is not known here")]
    UnknownKey {
        /// The key's serial or id, shortened.
        key: String,
    },
    /// It was not signed by a key of the provider, or was altered afterwards.
    #[error("the signature is not one of the provider over this request")]
    BadSignature,
    /// The provider tries whether signatures are checked here. No cause for an alarm.
    #[error("the signature is one with which the provider tries whether signatures are checked")]
    Probe,
    /// It was signed too long ago: perhaps somebody sends again what was overheard.
    #[error("the request was signed {seconds} s ago, at most {tolerance} s are allowed")]
    TooOld {
        /// How long ago.
        seconds: u64,
        /// What is allowed.
        tolerance: u64,
    },
    /// It was signed in the future: one of the two clocks is wrong.
    #[error("the request was signed {seconds} s from now, at most {tolerance} s are allowed")]
    TooFarAhead {
        /// How far ahead.
        seconds: u64,
        /// What is allowed.
        tolerance: u64,
    },
    /// It is for somebody else.
    #[error("{field} is {value:?}, which is not configured here")]
    OtherMerchant {
        /// The field that says for whom.
        field: String,
        /// Its value, shortened.
        value: String,
    },
    /// The amount is no exact number of the currency's smallest unit.
    #[error("{field} is {value:?}, expected an exact amount with at most {decimals} decimals")]
    InexactAmount {
        /// The field.
        field: String,
        /// Its value, shortened.
        value: String,
        /// Decimals of the currency.
        decimals: u8,
    },
    /// The amount is too small or too large.
    #[error("{field} is {value:?}, expected an amount from {min} to {MAX_AMOUNT} in minor units")]
    AmountOutOfRange {
        /// The field.
        field: String,
        /// Its value, shortened.
        value: String,
        /// The least.
        min: i64,
    },
    /// The currency is none that is known.
    #[error("{field} is {value:?}, expected an ISO 4217 currency code such as GBP")]
    UnknownCurrency {
        /// The field.
        field: String,
        /// Its value, shortened.
        value: String,
    },
    /// It was not encrypted with the configured key, or was altered afterwards.
    #[error("the resource cannot be decrypted with the configured key")]
    CannotBeDecrypted,
}

impl Refusal {
    /// A short name for metrics, such as `bad_signature`.
    #[must_use]
    pub fn code(&self) -> &'static str {
        self.into()
    }

    /// Whether the provider only tries whether signatures are checked.
    #[must_use]
    pub fn is_probe(&self) -> bool {
        matches!(self, Self::Probe)
    }

    pub(super) fn missing(field: &str) -> Self {
        Self::MissingField {
            field: field.to_owned(),
        }
    }

    pub(super) fn malformed(problem: impl Into<String>) -> Self {
        Self::Malformed {
            problem: problem.into(),
        }
    }

    pub(super) fn field(field: &str, value: &str, problem: impl Into<String>) -> Self {
        Self::MalformedField {
            field: field.to_owned(),
            value: shorten(value),
            problem: problem.into(),
        }
    }

    pub(super) fn header(header: &str, problem: &'static str) -> Self {
        Self::MalformedHeader {
            header: header.to_owned(),
            problem,
        }
    }

    pub(super) fn other_merchant(field: &str, value: &str) -> Self {
        Self::OtherMerchant {
            field: field.to_owned(),
            value: shorten(value),
        }
    }

    pub(super) fn inexact(field: &str, value: &str, currency: Currency) -> Self {
        Self::InexactAmount {
            field: field.to_owned(),
            value: shorten(value),
            decimals: currency.exponent(),
        }
    }
}

/// At most 64 characters of a value, for a message that a person reads.
pub(super) fn shorten(value: &str) -> String {
    match value.char_indices().nth(64) {
        Some((end, _)) => format!("{}...", &value[..end]),
        None => value.to_owned(),
    }
}

/// The one header of that name, without white space around it.
pub(super) fn header<'a>(headers: &'a HeaderMap, name: &str) -> Result<&'a str, Refusal> {
    let mut values = headers.get_all(name).iter();
    let header = || name.to_owned();
    let value = values
        .next()
        .ok_or_else(|| Refusal::MissingHeader { header: header() })?;
    if values.next().is_some() {
        return Err(Refusal::HeaderTwice { header: header() });
    }
    let value = value.to_str().map(str::trim);
    let value = value.map_err(|_| Refusal::header(name, "is not ASCII text"))?;
    if value.is_empty() {
        return Err(Refusal::MissingHeader { header: header() });
    }
    Ok(value)
}

/// Whether a stamp of Unix seconds is near enough to now. Only digits are one: what was signed is the text, and
/// there is one text per number.
pub(super) fn check_stamp(
    header: &str,
    stamp: &str,
    now: Timestamp,
    tolerance: Duration,
) -> Result<(), Refusal> {
    let digits = !stamp.is_empty() && stamp.bytes().all(|byte| byte.is_ascii_digit());
    let seconds: Option<i64> = stamp.parse().ok().filter(|_| digits);
    let signed = seconds.and_then(|seconds| seconds.checked_mul(1000));
    let Some(signed) = signed.map(Timestamp) else {
        let problem = "holds no time in seconds since 1970";
        return Err(Refusal::header(header, problem));
    };
    let (age, lead) = (now.since(signed), signed.since(now));
    if age > tolerance {
        return Err(Refusal::TooOld {
            seconds: age.as_secs(),
            tolerance: tolerance.as_secs(),
        });
    }
    if lead > tolerance {
        return Err(Refusal::TooFarAhead {
            seconds: lead.as_secs(),
            tolerance: tolerance.as_secs(),
        });
    }
    Ok(())
}

/// An identifier of the domain.
pub(super) fn id<T>(
    field: &str,
    text: &str,
    new: impl Fn(&str) -> Result<T, IdError>,
) -> Result<T, Refusal> {
    new(text).map_err(|error| match error {
        IdError::Empty => Refusal::missing(field),
        IdError::TooLong(_) | IdError::Control(_) => Refusal::field(field, text, error.to_string()),
    })
}

/// A remark of the provider, such as a reason. NUL, which not every database stores, becomes U+FFFD; an empty
/// one counts as none.
pub(super) fn remark(text: &str) -> Option<String> {
    (!text.trim().is_empty()).then(|| text.replace('\0', "\u{FFFD}"))
}

/// A currency, in whatever case it is written.
pub(super) fn currency(field: &str, code: &str) -> Result<Currency, Refusal> {
    Currency::new(&code.to_ascii_uppercase()).map_err(|_| Refusal::UnknownCurrency {
        field: field.to_owned(),
        value: shorten(code),
    })
}

/// An amount that an event may state: at least `min` and at most [`MAX_AMOUNT`] minor units.
pub(super) fn within(field: &str, minor: i64, min: i64) -> Result<i64, Refusal> {
    if (min..=MAX_AMOUNT).contains(&minor) {
        return Ok(minor);
    }
    Err(Refusal::AmountOutOfRange {
        field: field.to_owned(),
        value: minor.to_string(),
        min,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const TOLERANCE: Duration = Duration::from_secs(300);
    const NOW: Timestamp = Timestamp(1_700_000_000_000);

    fn stamp(text: &str) -> Result<(), &'static str> {
        check_stamp("t", text, NOW, TOLERANCE).map_err(|refusal| refusal.code())
    }

    #[test]
    fn a_stamp_may_be_off_by_the_tolerance_and_not_by_more() {
        assert_eq!(stamp("1700000000"), Ok(()));
        assert_eq!(stamp("1699999700"), Ok(()));
        assert_eq!(stamp("1700000300"), Ok(()));
        assert_eq!(stamp("1699999699"), Err("too_old"));
        assert_eq!(stamp("1700000301"), Err("too_far_ahead"));
        assert_eq!(stamp("0"), Err("too_old"));
    }

    #[test]
    fn only_digits_are_a_stamp() {
        let huge = i64::MAX.to_string();
        for text in [
            "",
            "+1700000000",
            "-1",
            "1.7e9",
            "1700000000.0",
            "０",
            &huge,
            "99999999999999999999",
        ] {
            assert_eq!(stamp(text), Err("malformed_header"), "{text}");
        }
    }

    #[test]
    fn a_header_that_is_there_twice_is_refused() {
        fn code(headers: &HeaderMap) -> Result<&str, &str> {
            header(headers, "A").map_err(|refusal| refusal.code())
        }
        let mut headers = HeaderMap::new();
        assert_eq!(code(&headers), Err("missing_header"));
        headers.append("a", " ".parse().unwrap());
        assert_eq!(code(&headers), Err("missing_header"));
        headers.insert("a", " x ".parse().unwrap());
        assert_eq!(code(&headers), Ok("x"));
        headers.append("a", "x".parse().unwrap());
        assert_eq!(code(&headers), Err("header_twice"));
        headers.insert("a", axum::http::HeaderValue::from_bytes(b"\xe9").unwrap());
        assert_eq!(code(&headers), Err("malformed_header"));
    }

    #[test]
    fn a_probe_alone_is_no_cause_for_an_alarm() {
        assert!(Refusal::Probe.is_probe());
        assert!(!Refusal::BadSignature.is_probe());
        assert_eq!(Refusal::CannotBeDecrypted.code(), "cannot_be_decrypted");
    }

    #[test]
    fn currencies_are_read_in_any_case_and_must_be_known() {
        assert_eq!(currency("c", "gbp"), Ok(Currency::GBP));
        assert_eq!(currency("c", "GBP"), Ok(Currency::GBP));
        for code in ["", "xxx", "GB", "ＧＢＰ"] {
            assert_eq!(currency("c", code).unwrap_err().code(), "unknown_currency");
        }
    }

    #[test]
    fn a_message_shows_no_more_than_64_characters_of_a_value() {
        let long = "é".repeat(65);
        let shown = Refusal::field("a", &long, "is long").to_string();
        assert_eq!(shown.matches('é').count(), 64, "{shown}");
    }
}
