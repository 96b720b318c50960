//! What is told to a caller whose request is not done, as `application/problem+json` (RFC 9457).

use crate::message::Malformed;
use crate::worker::desk::NoReply;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde::Serialize;
use std::time::Duration;
use utoipa::ToSchema;

/// The media type of a problem.
const CONTENT_TYPE: &str = "application/problem+json";

/// Why a request is not done.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, ToSchema)]
pub struct Problem {
    /// `urn:orderonce:` and the code.
    r#type: String,
    /// The status in words.
    title: String,
    /// The HTTP status.
    status: u16,
    /// What is wrong, for programs.
    code: String,
    /// What is wrong with this request, and what to do, for people.
    detail: String,
    /// The version that the caller expected.
    #[serde(skip_serializing_if = "Option::is_none")]
    expected_version: Option<i64>,
    /// The version that there is.
    #[serde(skip_serializing_if = "Option::is_none")]
    version: Option<i64>,
    #[serde(skip)]
    retry_after: Option<Duration>,
}

impl Problem {
    /// A problem of this kind.
    #[must_use]
    pub fn new(status: StatusCode, code: &str, detail: impl Into<String>) -> Self {
        Self {
            r#type: format!("urn:orderonce:{code}"),
            title: status.canonical_reason().unwrap_or_default().to_owned(),
            status: status.as_u16(),
            code: code.to_owned(),
            detail: detail.into(),
            expected_version: None,
            version: None,
            retry_after: None,
        }
    }

    /// The versions that were expected and found.
    #[must_use]
    pub fn with_versions(self, expected: i64, found: i64) -> Self {
        Self {
            expected_version: Some(expected),
            version: Some(found),
            ..self
        }
    }

    /// When to ask again.
    #[must_use]
    pub fn retry_after(self, delay: Duration) -> Self {
        Self {
            retry_after: Some(delay),
            ..self
        }
    }

    /// The database is away: nothing is known, so the same may be asked again.
    pub(super) fn unavailable(problem: &str) -> Self {
        let detail = format!("{problem}; ask again with the same Idempotency-Key");
        Self::new(StatusCode::SERVICE_UNAVAILABLE, "unavailable", detail)
            .retry_after(Duration::from_secs(1))
    }
}

impl IntoResponse for Problem {
    fn into_response(self) -> Response {
        let status = StatusCode::from_u16(self.status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        // Texts and numbers always serialize.
        let body = serde_json::to_vec(&self).unwrap_or_default();
        let mut response = (status, body).into_response();
        let headers = response.headers_mut();
        headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(CONTENT_TYPE));
        if status == StatusCode::UNAUTHORIZED {
            let scheme = HeaderValue::from_static("Bearer");
            headers.insert(header::WWW_AUTHENTICATE, scheme);
        }
        if let Some(delay) = self.retry_after {
            // A part of a second counts as a whole one: nobody comes too early.
            let seconds = delay.as_secs() + u64::from(delay.subsec_nanos() > 0);
            headers.insert(header::RETRY_AFTER, seconds.max(1).into());
        }
        response
    }
}

/// What cannot be read is a bad request; what can be read and makes no sense is unprocessable.
impl From<Malformed> for Problem {
    fn from(malformed: Malformed) -> Self {
        let status = match &malformed {
            Malformed::TooLarge { .. } => StatusCode::PAYLOAD_TOO_LARGE,
            Malformed::ByteOrderMark
            | Malformed::NotUtf8 { .. }
            | Malformed::NotJson { .. }
            | Malformed::TooDeep { .. }
            | Malformed::DuplicateField { .. } => StatusCode::BAD_REQUEST,
            Malformed::MissingField { .. }
            | Malformed::EmptyField { .. }
            | Malformed::WrongType { .. }
            | Malformed::OutOfRange { .. }
            | Malformed::Invalid { .. }
            | Malformed::UnknownType { .. } => StatusCode::UNPROCESSABLE_ENTITY,
        };
        Self::new(status, malformed.code(), malformed.to_string())
    }
}

impl From<NoReply> for Problem {
    fn from(no_reply: NoReply) -> Self {
        let problem = match &no_reply {
            NoReply::Busy => "more requests wait than there is room for",
            NoReply::Stopping => "this process stops",
            // What the database said is for the log, not for callers.
            NoReply::Failed(_) => "the database cannot be used now",
        };
        Self::unavailable(problem)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_problem_says_its_kind_and_when_to_ask_again() {
        let problem = Problem::from(NoReply::Failed("password".to_owned()));
        let text = serde_json::to_string(&problem).unwrap();
        assert!(
            text.contains("\"type\":\"urn:orderonce:unavailable\""),
            "{text}"
        );
        assert!(!text.contains("password"), "{text}");
        let response = problem.into_response();
        assert_eq!(response.status(), StatusCode::SERVICE_UNAVAILABLE);
        assert_eq!(response.headers()["retry-after"], "1");
        assert_eq!(response.headers()["content-type"], CONTENT_TYPE);
    }

    #[test]
    fn a_delay_is_rounded_up() {
        let problem = Problem::new(StatusCode::TOO_MANY_REQUESTS, "too_many_requests", "");
        let after = |delay| {
            let response = problem.clone().retry_after(delay).into_response();
            response.headers()["retry-after"]
                .to_str()
                .unwrap()
                .to_owned()
        };
        assert_eq!(after(Duration::ZERO), "1");
        assert_eq!(after(Duration::from_millis(1_001)), "2");
        assert_eq!(after(Duration::from_secs(2)), "2");
    }
}
