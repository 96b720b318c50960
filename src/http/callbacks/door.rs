//! `POST /v1/callbacks/{name}`: from a request to what its provider is answered.

use super::provider::{Provider, Received, Refusal, Verdict};
use super::{Said, provider};
use crate::http::problem::Problem;
use crate::telemetry::trace::Passed;
use crate::worker::Desk;
use crate::worker::callback::{self, Callback, CallbackRole, Raw};
use crate::worker::clock;
use crate::worker::desk::{NoReply, Reply};
use axum::Router;
use axum::body::to_bytes;
use axum::extract::{ConnectInfo, Path, Request, State};
use axum::http::{HeaderMap, HeaderName, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::post;
use bytes::Bytes;
use governor::{DefaultDirectRateLimiter, Quota, RateLimiter};
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::Duration;

/// Longest body of a callback, in bytes. Those of the providers have a few thousand.
const BODY_MAX: usize = 1024 * 1024;

/// What is kept of the body of one that is not believed, in bytes.
const REFUSED_KEPT: usize = 64 * 1024;

/// Headers that are not kept.
const SECRETS: [HeaderName; 3] = [
    header::AUTHORIZATION,
    header::PROXY_AUTHORIZATION,
    header::COOKIE,
];

/// Receives what providers say.
pub struct Callbacks {
    providers: BTreeMap<String, Arc<dyn Provider>>,
    desk: Desk<CallbackRole>,
    answer_within: Duration,
    refusals: DefaultDirectRateLimiter,
}

impl Callbacks {
    /// For these providers. An answer takes `answer_within` at most, and so many callbacks that are not believed
    /// are kept in a minute.
    pub fn new(
        providers: BTreeMap<String, Arc<dyn Provider>>,
        desk: Desk<CallbackRole>,
        answer_within: Duration,
        refusals_kept_per_minute: u32,
    ) -> Self {
        let kept = NonZeroU32::new(refusals_kept_per_minute).unwrap_or(NonZeroU32::MIN);
        Self {
            providers,
            desk,
            answer_within,
            refusals: RateLimiter::direct(Quota::per_minute(kept)),
        }
    }

    /// Waits until it is safe, but no longer than a provider does. The work goes on when the wait is over, so the
    /// provider finds it done when it calls again.
    async fn keep(&self, callback: Callback, traceparent: Option<String>) -> Result<Kept, NoReply> {
        let asked = self.desk.ask(callback.asked(traceparent));
        let reply = tokio::time::timeout(self.answer_within, asked).await;
        let late = |_| NoReply::Failed("it took too long".to_owned());
        match reply.map_err(late)?? {
            Reply::Decided { outcome, .. } if outcome == "applied" => Ok(Kept::First),
            Reply::Decided { outcome, .. } if outcome == "duplicate" => Ok(Kept::Again),
            Reply::Decided { outcome, .. } => Err(NoReply::Failed(outcome)),
            Reply::OtherRequest => Err(NoReply::Failed("conflict".to_owned())),
        }
    }
}

enum Kept {
    First,
    Again,
}

/// The route. It needs no key: callbacks are signed.
pub fn router(callbacks: Arc<Callbacks>) -> Router {
    Router::new()
        .route("/v1/callbacks/{name}", post(receive))
        .with_state(callbacks)
}

async fn receive(
    State(callbacks): State<Arc<Callbacks>>,
    Path(name): Path<String>,
    ConnectInfo(remote): ConnectInfo<SocketAddr>,
    request: Request,
) -> Response {
    let Some(provider) = callbacks.providers.get(&name) else {
        let detail = format!("there is no provider {:?} here", provider::shorten(&name));
        return Problem::new(StatusCode::NOT_FOUND, "not_found", detail).into_response();
    };
    let (parts, body) = request.into_parts();
    let traceparent = parts.extensions.get::<Passed>();
    let traceparent = traceparent.map(|Passed(traceparent)| traceparent.clone());
    let read = tokio::time::timeout(callbacks.answer_within, to_bytes(body, BODY_MAX));
    let Ok(body) = read.await else {
        count(&**provider, "not_kept", "slow");
        return answer(provider.answer(Verdict::TryAgain));
    };
    let said = match &body {
        Ok(body) => provider.receive(&Received {
            headers: &parts.headers,
            body,
            now: clock::now(),
        }),
        Err(_) => Err(Refusal::malformed(format!(
            "is longer than {BODY_MAX} bytes, or was cut off"
        ))),
    };
    let raw = Raw {
        headers: kept_headers(&parts.headers),
        body: body.unwrap_or_default(),
        remote: remote.ip().to_string(),
    };
    let verdict = match said {
        Ok(said) => believed(&callbacks, &**provider, said, raw, traceparent).await,
        Err(refusal) => {
            refused(&callbacks, &**provider, &refusal, raw, traceparent).await;
            Verdict::Refused
        }
    };
    answer(provider.answer(verdict))
}

async fn believed(
    callbacks: &Callbacks,
    provider: &dyn Provider,
    said: Said,
    raw: Raw,
    traceparent: Option<String>,
) -> Verdict {
    let (said, name) = match said {
        Said::Events(events) => (callback::Said::Events(events), "accepted"),
        Said::OfNoInterest => (callback::Said::OfNoInterest, "ignored"),
    };
    let callback = Callback::new(provider.name().clone(), said, raw);
    match callbacks.keep(callback, traceparent).await {
        Ok(Kept::First) => count(provider, name, "first"),
        Ok(Kept::Again) => count(provider, name, "again"),
        Err(error) => {
            tracing::warn!(provider = provider.name().as_str(), %error, "a callback could not be kept, it is to come again");
            count(provider, "not_kept", "unavailable");
            return Verdict::TryAgain;
        }
    }
    Verdict::Accepted
}

/// Counts what is not believed, and keeps some of it.
async fn refused(
    callbacks: &Callbacks,
    provider: &dyn Provider,
    refusal: &Refusal,
    mut raw: Raw,
    traceparent: Option<String>,
) {
    count(provider, "refused", refusal.code());
    if refusal.is_probe() || callbacks.refusals.check().is_err() {
        return;
    }
    let name = provider.name().as_str();
    tracing::warn!(provider = name, reason = refusal.code(), remote = raw.remote, error = %refusal, "a callback is not believed");
    raw.body.truncate(REFUSED_KEPT);
    let said = callback::Said::Refused {
        code: refusal.code(),
        detail: refusal.to_string(),
    };
    let callback = Callback::new(provider.name().clone(), said, raw);
    if let Err(error) = callbacks.keep(callback, traceparent).await {
        tracing::warn!(provider = name, %error, "what is not believed could not be kept");
    }
}

fn count(provider: &dyn Provider, verdict: &'static str, reason: &'static str) {
    let provider = provider.name().as_str().to_owned();
    metrics::counter!("orderonce_callbacks_total", "provider" => provider, "verdict" => verdict, "reason" => reason)
        .increment(1);
}

/// What a person may need later. Of several headers with one name all values are kept.
fn kept_headers(headers: &HeaderMap) -> BTreeMap<String, String> {
    let mut kept: BTreeMap<String, String> = BTreeMap::new();
    for (name, value) in headers {
        if SECRETS.contains(name) {
            continue;
        }
        let value = String::from_utf8_lossy(value.as_bytes());
        kept.entry(name.as_str().to_owned())
            .and_modify(|values| {
                values.push_str(", ");
                values.push_str(&value);
            })
            .or_insert_with(|| value.into_owned());
    }
    kept
}

fn answer(reply: provider::Reply) -> Response {
    let status = StatusCode::from_u16(reply.status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    let mut response = (status, Bytes::from(reply.body.into_owned())).into_response();
    let headers = response.headers_mut();
    match reply.content_type {
        Some(content_type) => {
            let content_type = HeaderValue::from_static(content_type);
            headers.insert(header::CONTENT_TYPE, content_type);
        }
        None => drop(headers.remove(header::CONTENT_TYPE)),
    }
    response
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headers_are_kept_without_secrets() {
        let mut headers = HeaderMap::new();
        for (name, value) in [
            ("stripe-signature", "t=1,v1=ab"),
            ("authorization", "Bearer hunter2"),
            ("cookie", "session=hunter2"),
            ("proxy-authorization", "Basic hunter2"),
            ("x-forwarded-for", "192.0.2.1"),
            ("x-forwarded-for", "192.0.2.2"),
        ] {
            headers.append(name, HeaderValue::from_static(value));
        }
        headers.insert("x-raw", HeaderValue::from_bytes(b"\xff").unwrap());
        let kept = kept_headers(&headers);
        let kept: Vec<_> = kept.iter().map(|(k, v)| (k.as_str(), v.as_str())).collect();
        assert_eq!(
            kept,
            [
                ("stripe-signature", "t=1,v1=ab"),
                ("x-forwarded-for", "192.0.2.1, 192.0.2.2"),
                ("x-raw", "\u{FFFD}"),
            ]
        );
    }
}
