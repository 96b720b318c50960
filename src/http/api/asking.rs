//! What every request has that asks for something: a caller, a key, and a body.

use super::Api;
use crate::domain::{Fingerprint, IdError, Key};
use crate::http::auth::{Caller, Right};
use crate::http::problem::Problem;
use crate::message::Fields;
use crate::telemetry::trace::Passed;
use crate::worker::Request as Ticket;
use axum::body::to_bytes;
use axum::extract::rejection::PathRejection;
use axum::extract::{FromRequest, FromRequestParts, Path, Request};
use axum::http::request::Parts;
use axum::http::{HeaderMap, StatusCode, header};
use bytes::Bytes;
use serde_json::Value;
use std::marker::PhantomData;
use std::str::FromStr;
use std::sync::Arc;

/// The identifier in an address.
pub(super) struct Id<T>(pub(super) T);

impl<S, T> FromRequestParts<S> for Id<T>
where
    S: Send + Sync,
    T: FromStr<Err = IdError> + Send,
{
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Problem> {
        let wrong = |detail| Problem::new(StatusCode::BAD_REQUEST, "invalid_address", detail);
        let path: Result<Path<String>, PathRejection> =
            Path::from_request_parts(parts, state).await;
        let Path(text) = path.map_err(|rejection| wrong(rejection.body_text()))?;
        let id = text.parse();
        id.map(Self)
            .map_err(|error| wrong(format!("the identifier in the address {error}")))
    }
}

/// Who calls.
pub(super) struct By(Arc<Caller>);

impl By {
    pub(super) fn may(&self, right: Right) -> Result<(), Problem> {
        self.0.may(right)
    }
}

impl<S: Send + Sync> FromRequestParts<S> for By {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Problem> {
        caller(parts).map(Self)
    }
}

fn caller(parts: &Parts) -> Result<Arc<Caller>, Problem> {
    let caller = parts.extensions.get::<Arc<Caller>>().cloned();
    caller.ok_or_else(|| Problem::new(StatusCode::UNAUTHORIZED, "unauthorized", "expected a key"))
}

/// A body in JSON.
pub(super) struct Body(Bytes);

impl Body {
    /// Its fields. Nothing at all counts as an object without fields.
    pub(super) fn fields<'b>(&'b self, api: &Api) -> Result<Fields<'b>, Problem> {
        let bytes = match self.0.trim_ascii() {
            [] => b"{}",
            _ => &self.0[..],
        };
        Ok(Fields::of_body(bytes, &api.limits)?)
    }
}

impl FromRequest<Arc<Api>> for Body {
    type Rejection = Problem;

    async fn from_request(request: Request, api: &Arc<Api>) -> Result<Self, Problem> {
        let max = api.limits.max_bytes;
        let too_long = || {
            let detail = format!("the body is longer than {max} bytes");
            Problem::new(StatusCode::PAYLOAD_TOO_LARGE, "too_large", detail)
        };
        let (parts, body) = request.into_parts();
        let stated = parts.headers.get(header::CONTENT_LENGTH);
        let stated = stated.and_then(|length| length.to_str().ok()?.parse::<usize>().ok());
        if stated.is_some_and(|length| length > max) {
            return Err(too_long());
        }
        let body = to_bytes(body, max).await.map_err(|_| too_long())?;
        if !body.is_empty() && !is_json(&parts.headers) {
            let detail = "expected Content-Type: application/json";
            let status = StatusCode::UNSUPPORTED_MEDIA_TYPE;
            return Err(Problem::new(status, "unsupported_media_type", detail));
        }
        Ok(Self(body))
    }
}

fn is_json(headers: &HeaderMap) -> bool {
    let content_type = headers.get(header::CONTENT_TYPE);
    let content_type = content_type
        .and_then(|value| value.to_str().ok())
        .unwrap_or_default();
    let media_type = content_type.split(';').next().unwrap_or_default().trim();
    media_type.eq_ignore_ascii_case("application/json")
}

/// A request that its caller may make again until it has the answer. The right is checked before anything
/// else is read.
pub(super) struct Asking<R> {
    pub(super) ticket: Ticket,
    pub(super) body: Body,
    pub(super) traceparent: Option<String>,
    right: PhantomData<R>,
}

/// A right that a route needs.
pub(super) trait Needs: Send {
    const RIGHT: Right;
}

impl<R: Needs> FromRequest<Arc<Api>> for Asking<R> {
    type Rejection = Problem;

    async fn from_request(request: Request, api: &Arc<Api>) -> Result<Self, Problem> {
        let (parts, body) = request.into_parts();
        let caller = caller(&parts)?;
        caller.may(R::RIGHT)?;
        let key = key(caller.name(), &parts.headers)?;
        let what = format!("{} {}", parts.method, parts.uri.path());
        let traceparent = parts.extensions.get::<Passed>();
        let traceparent = traceparent.map(|Passed(traceparent)| traceparent.clone());
        let body = Body::from_request(Request::from_parts(parts, body), api).await?;
        let fingerprint = Fingerprint::of(&what, &content(&body));
        Ok(Self {
            ticket: Ticket { key, fingerprint },
            body,
            traceparent,
            right: PhantomData,
        })
    }
}

/// The key of a request, scoped by its caller.
fn key(caller: &str, headers: &HeaderMap) -> Result<Key, Problem> {
    let wrong = |detail: &str| {
        Err(Problem::new(
            StatusCode::BAD_REQUEST,
            "idempotency_key",
            detail,
        ))
    };
    let mut given = headers.get_all("idempotency-key").iter();
    let (Some(given), None) = (given.next(), given.next()) else {
        return wrong(
            "expected one Idempotency-Key: a text of your choice, new for each thing to be done and the same for \
             each try at it",
        );
    };
    let is_right =
        |key: &&str| (1..=255).contains(&key.len()) && key.bytes().all(|b| b.is_ascii_graphic());
    match given
        .to_str()
        .ok()
        .filter(is_right)
        .map(|given| Key::new(&[caller, given, "request"]))
    {
        Some(Ok(key)) => Ok(key),
        _ => wrong("expected an Idempotency-Key of 1 to 255 visible ASCII characters"),
    }
}

/// What a body says, whatever its spacing and the order of its fields. One that is no JSON is refused later.
fn content(body: &Body) -> Value {
    match body.0.trim_ascii() {
        [] => Value::Object(serde_json::Map::new()),
        bytes => serde_json::from_slice(bytes).unwrap_or_default(),
    }
}

/// A number that follows from a request, so that it is the same when the request is made again.
pub(super) fn number(prefix: &str, ticket: &Ticket) -> String {
    let hash = Fingerprint::of("number", &ticket.key.as_str()).to_hex();
    format!("{prefix}{}", &hash[..24])
}
