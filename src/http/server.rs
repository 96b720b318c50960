//! The listener, and what belongs to every request: its number, its log line, its limits.

use super::api::{self, Api};
use super::auth::{self, Keys, Rate};
use super::callbacks::{self, Callbacks, Provider};
use super::problem::Problem;
use crate::message::Limits;
use crate::ops::deployment::Deployment;
use crate::telemetry::trace;
use crate::worker::callback::CallbackRole;
use crate::worker::desk::{self, Desk};
use crate::worker::inventory::InventoryRole;
use crate::worker::order::OrderRole;
use crate::worker::supervisor::{Door, Doorway, Plan};
use crate::worker::{self, Processor, Role};
use async_trait::async_trait;
use axum::Router;
use axum::extract::{MatchedPath, Request, State};
use axum::http::{HeaderName, HeaderValue, StatusCode};
use axum::middleware::{self, Next};
use axum::response::{IntoResponse, Response};
use std::any::Any;
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::net::TcpListener;
use tokio_util::task::TaskTracker;
use tower_http::catch_panic::CatchPanicLayer;

/// Why the API cannot be served.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// No address is configured.
    #[error(
        "http.listen is empty, so the API has no address; set it to one such as 127.0.0.1:8000"
    )]
    NoAddress,
    /// Neither keys nor providers are configured.
    #[error(
        "http.keys_file and callbacks.file are empty, so nobody may call; `orderonce keys new NAME` makes an entry for a file of keys"
    )]
    NoKeys,
    /// The address cannot be listened at.
    #[error("http.listen is {at}: {error}")]
    Listen {
        /// The address.
        at: String,
        /// What the system says.
        error: std::io::Error,
    },
    /// The keys.
    #[error(transparent)]
    Keys(#[from] auth::Error),
    /// The providers.
    #[error(transparent)]
    Callbacks(#[from] callbacks::Error),
}

/// The API at its address, not yet answering.
pub struct Server {
    listener: TcpListener,
    at: SocketAddr,
    keys: Arc<Keys>,
    providers: BTreeMap<String, Arc<dyn Provider>>,
    deployment: Deployment,
    plan: Plan,
}

impl Server {
    /// Reads the keys and the providers, and listens. The roles work as `plan` says.
    ///
    /// # Errors
    /// [`Error`].
    pub async fn bind(deployment: &Deployment, plan: &Plan) -> Result<Self, Error> {
        let config = &deployment.config.http;
        if config.listen.is_empty() {
            return Err(Error::NoAddress);
        }
        let callbacks = &deployment.config.callbacks;
        if config.keys_file.is_empty() && callbacks.file.is_empty() {
            return Err(Error::NoKeys);
        }
        let rate = Rate {
            per_second: config.rate,
            burst: config.burst,
        };
        let keys = match config.keys_file.as_str() {
            "" => Keys::none(),
            file => Keys::read(Path::new(file), rate)?,
        };
        let providers = match callbacks.file.as_str() {
            "" => BTreeMap::new(),
            file => callbacks::read(Path::new(file))?,
        };
        let listen = |error| Error::Listen {
            at: config.listen.clone(),
            error,
        };
        let listener = TcpListener::bind(&config.listen).await.map_err(listen)?;
        let at = listener.local_addr().map_err(listen)?;
        Ok(Self {
            listener,
            at,
            keys: Arc::new(keys),
            providers,
            deployment: deployment.clone(),
            plan: plan.clone(),
        })
    }

    /// The address.
    #[must_use]
    pub fn at(&self) -> SocketAddr {
        self.at
    }

    /// The routes. Their desks work in `tasks`.
    fn routes(&self, doorway: &Doorway, tasks: &TaskTracker) -> Router {
        let config = &self.deployment.config.http;
        let api = Api {
            keys: Arc::clone(&self.keys),
            orders: self.desk::<OrderRole>(self.plan.order_machine(), doorway, tasks),
            inventory: self.desk(InventoryRole, doorway, tasks),
            store: Arc::clone(&self.deployment.store),
            limits: Limits {
                max_bytes: config.body_max,
                ..self.plan.settings.limits.clone()
            },
        };
        let in_time = middleware::from_fn_with_state(config.timeout, in_time);
        let mut routes = api::router(Arc::new(api)).layer(in_time);
        if !self.providers.is_empty() {
            let config = &self.deployment.config.callbacks;
            let callbacks = Callbacks::new(
                self.providers.clone(),
                self.desk(CallbackRole, doorway, tasks),
                config.answer_within,
                config.refusals_kept,
            );
            routes = routes.merge(callbacks::router(Arc::new(callbacks)));
        }
        routes
            .fallback(nothing_there)
            .method_not_allowed_fallback(not_so)
            .layer(CatchPanicLayer::custom(panicked))
            .layer(middleware::from_fn(told))
            .layer(middleware::from_fn_with_state(
                self.plan.traces.clone(),
                trace::http,
            ))
    }

    fn desk<R: Role>(&self, role: R, doorway: &Doorway, tasks: &TaskTracker) -> Desk<R> {
        let store = Arc::clone(&self.deployment.store);
        let processor = Processor::new(role, Arc::clone(&store), self.plan.settings.clone())
            .with_points(self.plan.points.clone())
            .with_traces(self.plan.traces.clone());
        let settings = desk::Settings {
            batch_max: self.plan.batch_max,
            workers: self.plan.workers,
            room: self.deployment.config.http.room,
        };
        let written = Arc::clone(&doorway.written);
        Desk::open(Arc::new(processor), store, settings, written, tasks)
    }
}

#[async_trait]
impl Door for Server {
    async fn run(self: Box<Self>, doorway: Doorway) -> worker::Result<()> {
        let tasks = TaskTracker::new();
        let routes = self.routes(&doorway, &tasks);
        let routes = routes.into_make_service_with_connect_info::<SocketAddr>();
        tracing::info!(at = %self.at, "answering /v1");
        let served = axum::serve(self.listener, routes)
            .with_graceful_shutdown(doorway.stop.cancelled_owned());
        tasks.close();
        // A caller that never ends its request is not waited for; what a desk has taken is.
        tokio::select! {
            served = served => if let Err(error) = served {
                tracing::warn!(%error, "/v1 is not answered any more");
            },
            () = doorway.give_up.cancelled() => {}
        }
        tokio::select! {
            () = tasks.wait() => {}
            () = doorway.give_up.cancelled() => {}
        }
        Ok(())
    }
}

static REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");

/// Each request has a number, the caller's if it has one, which is told to the caller and the log.
async fn told(request: Request, next: Next) -> Response {
    let began = Instant::now();
    let given = request.headers().get(&REQUEST_ID);
    let given = given.filter(|id| (1..=128).contains(&id.len()) && id.to_str().is_ok());
    let id = given.cloned().unwrap_or_else(|| {
        let number = format!("{:032x}", fastrand::u128(..));
        HeaderValue::from_str(&number).unwrap_or_else(|_| HeaderValue::from_static("0"))
    });
    let method = request.method().clone();
    let route = request.extensions().get::<MatchedPath>();
    let route = route.map_or("none", MatchedPath::as_str).to_owned();
    let mut response = next.run(request).await;
    let (status, seconds) = (response.status().as_u16(), began.elapsed().as_secs_f64());
    let caller = response.extensions().get::<Arc<auth::Caller>>();
    let caller = caller.map(|caller| caller.name());
    tracing::info!(
        request_id = id.to_str().unwrap_or_default(),
        caller,
        %method,
        route,
        status,
        seconds,
        "answered"
    );
    let labels = [
        ("method", method.to_string()),
        ("route", route),
        ("status", status.to_string()),
    ];
    metrics::counter!("orderonce_http_requests_total", &labels).increment(1);
    metrics::histogram!("orderonce_http_request_seconds", &labels[..2]).record(seconds);
    response.headers_mut().insert(&REQUEST_ID, id);
    response
}

/// Only the answer is given up: what a desk has taken goes on.
async fn in_time(State(limit): State<Duration>, request: Request, next: Next) -> Response {
    match tokio::time::timeout(limit, next.run(request)).await {
        Ok(response) => response,
        Err(_elapsed) => {
            let seconds = limit.as_secs_f64();
            Problem::unavailable(&format!("there is no answer after {seconds} s")).into_response()
        }
    }
}

async fn nothing_there(request: Request) -> Problem {
    let detail = format!("there is nothing at {}", request.uri().path());
    Problem::new(StatusCode::NOT_FOUND, "not_found", detail)
}

async fn not_so(request: Request) -> Problem {
    let (method, path) = (request.method(), request.uri().path());
    let detail = format!("{path} does not take {method}");
    Problem::new(StatusCode::METHOD_NOT_ALLOWED, "method_not_allowed", detail)
}

fn panicked(_: Box<dyn Any + Send>) -> Response {
    let detail = "something went wrong here; the request may be made again";
    Problem::new(StatusCode::INTERNAL_SERVER_ERROR, "internal", detail).into_response()
}
