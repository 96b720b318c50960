//! How database and broker are, asked once or watched while `serve` runs.

use super::deployment::Deployment;
use super::gates::{self, Gates};
use super::table::Table;
use super::watch::Watch;
use crate::broker::{Broker, ConnectionState, State, Topology};
use crate::config::Config;
use crate::domain::{RoleName, Timestamp};
use crate::gate::filter::Mistakes;
use crate::gate::redis::Standing;
use crate::store::Store;
use crate::telemetry::metrics;
use axum::extract::State as Shared;
use axum::http::{HeaderName, StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use axum::{Json, Router};
use http_body_util::{BodyExt, Empty};
use hyper::body::Bytes;
use hyper_util::rt::TokioIo;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

/// How a process, or what it would work with, is.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Health {
    /// In one word.
    pub state: Readiness,
    /// What it is made of.
    pub dependencies: Vec<Dependency>,
}

/// Whether work gets done.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, strum::Display)]
#[serde(rename_all = "snake_case")]
#[strum(serialize_all = "snake_case")]
pub enum Readiness {
    /// All is well.
    Ready,
    /// Work gets done, but something is held up.
    Degraded,
    /// Something is away.
    Unavailable,
    /// A stop was asked for.
    Stopping,
}

/// Something that work depends on.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Dependency {
    /// What it is.
    pub name: String,
    /// Where it is, without passwords.
    pub at: String,
    /// `up`, `blocked` or `down`; `bypassed` for what work goes round.
    pub state: String,
    /// Why, unless it is up, or what it has counted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub detail: Option<String>,
    /// Since when, RFC 3339.
    pub since: String,
}

/// Why the health of a running process is not known.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The address cannot be listened at.
    #[error("health.listen is {at}: {error}")]
    Listen {
        /// The address.
        at: String,
        /// What the system says.
        error: std::io::Error,
    },
    /// No address is configured.
    #[error(
        "health.listen is empty, so no process answers; set it to an address such as 127.0.0.1:8080"
    )]
    NoAddress,
    /// Nobody answers there.
    #[error("no `orderonce serve` answers at {at} ({problem}), which is health.listen")]
    NoAnswer {
        /// The address.
        at: SocketAddr,
        /// What happened instead.
        problem: String,
    },
}

impl Health {
    fn of(dependencies: Vec<Dependency>) -> Self {
        let any = |state: &str| dependencies.iter().any(|d| d.state == state);
        let state = if any("down") {
            Readiness::Unavailable
        } else if any("blocked") || any("bypassed") {
            Readiness::Degraded
        } else {
            Readiness::Ready
        };
        Self {
            state,
            dependencies,
        }
    }

    /// Whether work gets done.
    #[must_use]
    pub fn is_ready(&self) -> bool {
        match self.state {
            Readiness::Ready | Readiness::Degraded => true,
            Readiness::Unavailable | Readiness::Stopping => false,
        }
    }
}

impl fmt::Display for Health {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut table = Table::new(&["what", "state", "since", "where", "why"], &[]);
        for dependency in &self.dependencies {
            let Dependency {
                name,
                at,
                state,
                detail,
                since,
            } = dependency;
            let detail = detail.as_deref().unwrap_or_default();
            table.row([name, state, since, at, detail].map(str::to_owned));
        }
        writeln!(f, "{table}")?;
        writeln!(f, "{}", self.state)
    }
}

impl From<ConnectionState> for Dependency {
    fn from(connection: ConnectionState) -> Self {
        let (state, detail) = match connection.state {
            State::Up => ("up", None),
            State::Blocked(reason) => ("blocked", Some(reason)),
            State::Down(reason) => ("down", Some(reason)),
        };
        let since = connection.since.duration_since(SystemTime::UNIX_EPOCH);
        let since = Timestamp(0).plus(since.unwrap_or_default());
        Self {
            name: connection.name.to_owned(),
            at: connection.at,
            state: state.to_owned(),
            detail,
            since: since.to_string(),
        }
    }
}

/// Opens database and broker to see whether they can be used as they are configured.
pub async fn check(config: &Config) -> Health {
    let now = SystemTime::now();
    let database = |state| ConnectionState {
        name: "database",
        at: config.store.url.to_string(),
        state,
        since: now,
    };
    let broker = |state| ConnectionState {
        name: "broker",
        at: config.broker.url.to_string(),
        state,
        since: now,
    };
    let opened = Deployment::open(config).await;
    let dependencies = vec![match &opened {
        Ok(_) => database(State::Up),
        Err(error) => database(State::Down(error.to_string())),
    }];
    let mut dependencies: Vec<_> = dependencies.into_iter().map(Dependency::from).collect();
    match Deployment::connect(config, opened.ok().as_ref(), Topology::default()).await {
        Ok(connected) => match connected.connections() {
            none if none.is_empty() => dependencies.push(broker(State::Up).into()),
            connections => dependencies.extend(connections.into_iter().map(of_broker)),
        },
        Err(error) => dependencies.push(broker(State::Down(error.to_string())).into()),
    }
    if !config.gate.redis_url.as_str().is_empty() {
        let standing = Standing {
            down: gates::check(config).await.err(),
            since: now,
        };
        dependencies.push(of_redis(&config.gate.redis_url.to_string(), standing));
    }
    Health::of(dependencies)
}

/// One of the connections to the broker, which are named by what they are for.
fn of_broker(connection: ConnectionState) -> Dependency {
    let dependency = Dependency::from(connection);
    Dependency {
        name: format!("broker, {}", dependency.name),
        ..dependency
    }
}

/// Redis, round which work goes while it cannot be used.
fn of_redis(at: &str, standing: Standing) -> Dependency {
    let state = match standing.down {
        None => State::Up,
        Some(reason) => State::Down(reason),
    };
    let mut dependency = Dependency::from(ConnectionState {
        name: "redis",
        at: at.to_owned(),
        state,
        since: standing.since,
    });
    if dependency.detail.is_some() {
        dependency.state = "bypassed".to_owned();
    }
    dependency
}

/// The filter, which is always there and says how good it is.
fn of_filter((mistakes, since): (Mistakes, SystemTime)) -> Dependency {
    Dependency {
        detail: Some(mistakes.to_string()),
        ..Dependency::from(ConnectionState {
            name: "filter",
            at: "in memory".to_owned(),
            state: State::Up,
            since,
        })
    }
}

/// Asks the process that answers at `health.listen`.
///
/// # Errors
/// [`Error`] if none does.
pub async fn ask(config: &Config) -> Result<Health, Error> {
    let Ok(mut at) = config.health.listen.parse::<SocketAddr>() else {
        return Err(Error::NoAddress);
    };
    if at.ip().is_unspecified() {
        let local: std::net::IpAddr = match at {
            SocketAddr::V4(_) => std::net::Ipv4Addr::LOCALHOST.into(),
            SocketAddr::V6(_) => std::net::Ipv6Addr::LOCALHOST.into(),
        };
        at.set_ip(local);
    }
    let answer = tokio::time::timeout(PATIENCE, get_ready(at)).await;
    let answer = answer.unwrap_or_else(|_| Err("no answer within 5 s".into()));
    answer.map_err(|problem| Error::NoAnswer {
        at,
        problem: problem.to_string(),
    })
}

async fn get_ready(
    at: SocketAddr,
) -> Result<Health, Box<dyn std::error::Error + Send + Sync + 'static>> {
    let stream = TcpStream::connect(at).await?;
    let (mut sender, connection) =
        hyper::client::conn::http1::handshake(TokioIo::new(stream)).await?;
    tokio::spawn(connection);
    let request = hyper::Request::get("/ready")
        .header("host", at.to_string())
        .body(Empty::<Bytes>::new())?;
    let response = sender.send_request(request).await?;
    let body = response.into_body().collect().await?.to_bytes();
    Ok(serde_json::from_slice(&body)?)
}

/// How long the database may take to answer before it counts as down.
const PATIENCE: Duration = Duration::from_secs(5);

/// Watches what a running `serve` depends on.
pub(super) struct Monitor {
    store: Arc<dyn Store>,
    broker: Arc<dyn Broker>,
    gates: Arc<Gates>,
    database: Mutex<ConnectionState>,
    stop: CancellationToken,
    watch: Watch,
}

impl Monitor {
    pub(super) fn new(
        deployment: &Deployment,
        broker: Arc<dyn Broker>,
        gates: Arc<Gates>,
        roles: &[RoleName],
        stop: CancellationToken,
    ) -> Arc<Self> {
        let database = ConnectionState {
            name: "database",
            at: deployment.config.store.url.to_string(),
            state: State::Up,
            since: SystemTime::now(),
        };
        // Whatever is missed without it, work goes on.
        if let Err(error) = metrics::install() {
            tracing::warn!(%error, "nothing is measured");
        }
        let store = Arc::clone(&deployment.store);
        Arc::new(Self {
            watch: Watch::new(Arc::clone(&store), Arc::clone(&broker), roles.to_vec()),
            store,
            broker,
            gates,
            database: Mutex::new(database),
            stop,
        })
    }

    /// Answers `/live`, `/ready` and `/metrics` at an address until told to end.
    pub(super) async fn listen(
        self: Arc<Self>,
        at: &str,
        interval: Duration,
        end: CancellationToken,
    ) -> Result<JoinHandle<()>, Error> {
        let listen = |error| Error::Listen {
            at: at.to_owned(),
            error,
        };
        let listener = TcpListener::bind(at).await.map_err(listen)?;
        tracing::info!(at = %listener.local_addr().map_err(listen)?, "answering /live, /ready and /metrics");
        let routes = Router::new()
            .route("/live", get(|| async { "live\n" }))
            .route("/ready", get(ready))
            .route("/metrics", get(told))
            .with_state(Arc::clone(&self));
        let ended = end.clone().cancelled_owned();
        let served = axum::serve(listener, routes).with_graceful_shutdown(ended);
        Ok(tokio::spawn(async move {
            tokio::select! {
                () = self.ping(interval) => {}
                () = self.watch.run(interval) => {}
                served = served => {
                    if let Err(error) = served {
                        tracing::warn!(%error, "/live, /ready and /metrics are not answered any more");
                    }
                }
            }
        }))
    }

    async fn ping(&self, interval: Duration) {
        loop {
            let store = Arc::clone(&self.store);
            let ping = tokio::spawn(async move { store.ping().await });
            let state = match tokio::time::timeout(PATIENCE, ping).await {
                Ok(Ok(Ok(()))) => State::Up,
                Ok(Ok(Err(error))) => State::Down(error.to_string()),
                Ok(Err(error)) => State::Down(error.to_string()),
                Err(_elapsed) => State::Down(format!("no answer within {PATIENCE:?}")),
            };
            self.saw(state);
            let broker = Arc::clone(&self.broker);
            // What comes of it, the connections say themselves.
            drop(tokio::spawn(async move { broker.ping().await }).await);
            tokio::time::sleep(interval).await;
        }
    }

    fn saw(&self, state: State) {
        let is_up = f64::from(u8::from(state == State::Up));
        ::metrics::gauge!("orderonce_store_connected").set(is_up);
        let mut database = self.database.lock().unwrap_or_else(PoisonError::into_inner);
        if std::mem::discriminant(&database.state) != std::mem::discriminant(&state) {
            database.since = SystemTime::now();
        }
        database.state = state;
    }

    fn health(&self) -> Health {
        let database = self.database.lock().unwrap_or_else(PoisonError::into_inner);
        let database = database.clone();
        let connections = self.broker.connections().into_iter().map(of_broker);
        let redis = self.gates.redis();
        let redis = redis.map(|(at, standing)| of_redis(at, standing));
        let filter = self.gates.mistakes().map(of_filter);
        let all = std::iter::once(database.into())
            .chain(connections)
            .chain(redis)
            .chain(filter);
        let mut health = Health::of(all.collect());
        if self.stop.is_cancelled() {
            health.state = Readiness::Stopping;
        }
        health
    }
}

/// What is measured, in the text format of Prometheus.
async fn told() -> Response {
    const TEXT: [(HeaderName, &str); 1] = [(header::CONTENT_TYPE, "text/plain; version=0.0.4")];
    match metrics::render() {
        Some(text) => (TEXT, text).into_response(),
        None => (StatusCode::NOT_FOUND, "nothing is measured\n").into_response(),
    }
}

async fn ready(Shared(monitor): Shared<Arc<Monitor>>) -> (StatusCode, Json<Health>) {
    let health = monitor.health();
    let status = if health.is_ready() {
        StatusCode::OK
    } else {
        StatusCode::SERVICE_UNAVAILABLE
    };
    (status, Json(health))
}
