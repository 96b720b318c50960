//! A connection, made anew when it is lost.
//!
//! The library's own recovery is off: it replays consumers on the same channels, so that a tag of the
//! old connection could settle a delivery of the new one, and it knows one host. Here a lost
//! connection ends all its channels, whoever needs one next connects again, and each new channel has
//! an epoch of its own.

#![expect(
    clippy::wildcard_enum_match_arm,
    reason = "the library's and JSON's kinds are many, and all others are alike here"
)]

use super::Options;
use super::host::Host;
use crate::broker::{ConnectionState, Error, Result, Setup, State};
use futures_util::{Stream, StreamExt};
use lapin::protocol::{AMQPErrorKind, AMQPHardError};
use lapin::tcp::{AsyncTcpStream, OwnedTLSConfig};
use lapin::uri::{AMQPScheme, AMQPUri};
use lapin::{Channel, Connection, ConnectionProperties, ErrorKind, Event};
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, SystemTime};
use tokio::sync::{Mutex, watch};
use tokio::time::{Instant, timeout};

/// The connection of one purpose.
#[derive(Debug)]
pub(super) struct Link {
    name: &'static str,
    hosts: Vec<Host>,
    tls: Tls,
    connect_timeout: Duration,
    dial: Mutex<Dial>,
    status: Status,
    /// The largest frame that the server takes, in bytes.
    frame: AtomicUsize,
}

#[derive(Debug, Default)]
struct Dial {
    connection: Option<Connection>,
    /// The host to try first: the last one that answered.
    host: usize,
    failures: u32,
    /// Until when nobody tries again, and what the last one met.
    pause: Option<(Instant, Setup)>,
}

const FIRST_PAUSE: Duration = Duration::from_millis(50);
const LONGEST_PAUSE: Duration = Duration::from_secs(5);

/// Messages of a size that RabbitMQ and all its proxies take for granted.
const USUAL_FRAME: usize = 128 * 1_024;

impl Link {
    pub(super) fn new(
        name: &'static str,
        hosts: Vec<Host>,
        tls: Tls,
        options: &Options,
    ) -> Arc<Self> {
        let at = hosts.first().map(ToString::to_string).unwrap_or_default();
        Arc::new(Self {
            name,
            hosts,
            tls,
            connect_timeout: options.connect_timeout,
            dial: Mutex::default(),
            status: Status::new(name, at),
            frame: AtomicUsize::new(USUAL_FRAME),
        })
    }

    /// A new channel, over a new connection if there is none.
    pub(super) async fn channel(&self) -> Result<Channel> {
        let mut dial = self.dial.lock().await;
        self.connect(&mut dial).await.map_err(away)?;
        self.open(&dial).await
    }

    /// Connects, and reports what is wrong with the configuration if that fails.
    pub(super) async fn set_up(&self) -> Result<()> {
        let mut dial = self.dial.lock().await;
        self.connect(&mut dial).await.map_err(Error::Setup)
    }

    /// Closes the connection in order; the next channel makes a new one.
    pub(super) async fn close(&self) {
        let connection = self.dial.lock().await.connection.take();
        if let Some(connection) = connection {
            self.status.replace(None, State::Down("closed".to_owned()));
            let closing = connection.close(200, "OK".into());
            // One that cannot be closed in order is closed by being dropped.
            let _ = timeout(self.connect_timeout, closing).await;
        }
    }

    /// The host in use.
    pub(super) fn at(&self) -> String {
        self.status.state().at
    }

    pub(super) fn state(&self) -> ConnectionState {
        self.status.state()
    }

    pub(super) fn is_blocked(&self) -> bool {
        matches!(self.state().state, State::Blocked(_))
    }

    /// Waits until the server takes messages, or the connection is gone.
    pub(super) async fn unblocked(&self) {
        self.status.unblocked().await;
    }

    /// How many bytes of headers fit a frame, with room for the other properties of a message.
    pub(super) fn room_for_headers(&self) -> usize {
        const OTHERS: usize = 2_048;
        self.frame.load(Ordering::Relaxed).saturating_sub(OTHERS)
    }

    async fn open(&self, dial: &Dial) -> Result<Channel> {
        let Some(connection) = &dial.connection else {
            return Err(Error::Unavailable("the connection is gone".to_owned()));
        };
        match timeout(self.connect_timeout, connection.create_channel()).await {
            Ok(channel) => channel.map_err(|error| self.unavailable(&error)),
            Err(_) => {
                let at = self.at();
                Err(Error::Unavailable(format!("{at} opens no channel")))
            }
        }
    }

    async fn connect(&self, dial: &mut Dial) -> Result<(), Setup> {
        if dial
            .connection
            .as_ref()
            .is_some_and(|connection| connection.status().connected())
        {
            return Ok(());
        }
        dial.connection = None;
        if let Some((until, met)) = &dial.pause
            && Instant::now() < *until
        {
            return Err(met.clone());
        }
        match self.try_hosts(dial).await {
            Ok(()) => {
                dial.failures = 0;
                dial.pause = None;
                Ok(())
            }
            Err(met) => {
                let pause = FIRST_PAUSE * 2_u32.saturating_pow(dial.failures.min(10));
                let pause = pause
                    .min(LONGEST_PAUSE)
                    .mul_f64(1.0 - fastrand::f64() / 2.0);
                dial.failures = dial.failures.saturating_add(1);
                dial.pause = Some((Instant::now() + pause, met.clone()));
                Err(met)
            }
        }
    }

    /// Tries each host in turn. Of what they met, the first that is more than silence is reported.
    async fn try_hosts(&self, dial: &mut Dial) -> Result<(), Setup> {
        let mut met: Option<Setup> = None;
        for turn in 0..self.hosts.len() {
            let host = (dial.host + turn) % self.hosts.len();
            match self.try_host(&self.hosts[host]).await {
                Ok(connection) => {
                    dial.host = host;
                    dial.connection = Some(connection);
                    return Ok(());
                }
                Err(error) => {
                    let state = State::Down(error.to_string());
                    self.status.replace(Some(&self.hosts[host]), state);
                    if !matches!(met, Some(Setup::Unreachable { .. }) | None) {
                        continue;
                    }
                    met = Some(error);
                }
            }
        }
        Err(met.unwrap_or_else(|| Setup::Url {
            at: "empty".to_owned(),
            problem: "it names no host, expected amqp://USER:PASSWORD@HOST/VHOST".to_owned(),
        }))
    }

    async fn try_host(&self, host: &Host) -> Result<Connection, Setup> {
        let limit = host.uri.query.connection_timeout;
        let limit = limit.map_or(self.connect_timeout, Duration::from_millis);
        let connecting = self.handshake(host, limit);
        // Connecting has a limit of its own; what is left is a server that says nothing.
        let connection = match timeout(limit * 2, connecting).await {
            Ok(connection) => connection?,
            Err(_) => {
                return Err(Setup::NotABroker {
                    at: host.to_string(),
                    problem: format!("silent for {} s", limit.as_secs_f64()),
                });
            }
        };
        let frame = usize::try_from(connection.configuration().frame_max());
        let frame = frame.unwrap_or(USUAL_FRAME).min(USUAL_FRAME);
        self.frame.store(frame, Ordering::Relaxed);
        let number = self.status.replace(Some(host), State::Up);
        let events = connection.events_listener();
        tokio::spawn(self.status.clone().follow(number, events));
        Ok(connection)
    }

    async fn handshake(&self, host: &Host, limit: Duration) -> Result<Connection, Setup> {
        let properties = ConnectionProperties::default()
            .with_connection_name(format!("orderonce {}", self.name).into())
            .with_client_property("product".into(), "orderonce".into())
            .with_client_property("version".into(), env!("CARGO_PKG_VERSION").into());
        let tls = self.tls.clone();
        let runtime = lapin::runtime::default_runtime().map_err(|error| refusal(host, &error))?;
        let connecting = Connection::connector(
            host.uri.clone(),
            runtime,
            async move |uri: AMQPUri, runtime| {
                let name = uri.authority.host.clone();
                let addresses = runtime.to_socket_addrs((name, uri.authority.port));
                let connecting = AsyncTcpStream::connect(&runtime, addresses);
                let stream = match timeout(limit, connecting).await {
                    Ok(stream) => stream?,
                    Err(_) => Err(io::Error::from(io::ErrorKind::TimedOut))?,
                };
                match uri.scheme {
                    AMQPScheme::AMQP => Ok(stream),
                    AMQPScheme::AMQPS => {
                        let config = OwnedTLSConfig::as_ref(&tls.0);
                        let secured = stream.into_tls(&uri.authority.host, config).await;
                        Ok(secured.map_err(|error| io::Error::other(NoTls(error)))?)
                    }
                }
            },
            properties,
        );
        connecting.await.map_err(|error| refusal(host, &error))
    }

    /// What an error of a channel or the connection means to somebody who waits.
    pub(super) fn unavailable(&self, error: &lapin::Error) -> Error {
        let problem = match error.kind() {
            ErrorKind::ProtocolError(error) => {
                let advice = match error.get_id() {
                    NOT_FOUND => ", create it with `orderonce migrate`",
                    ACCESS_REFUSED => {
                        ", give the user the right with `rabbitmqctl set_permissions`"
                    }
                    _ => "",
                };
                format!("{}{advice}", error.get_message())
            }
            _ => error.to_string(),
        };
        Error::Unavailable(format!("{problem} (at {})", self.at()))
    }
}

/// Reply codes of AMQP.
pub(super) const ACCESS_REFUSED: u16 = 403;
pub(super) const NOT_FOUND: u16 = 404;
pub(super) const PRECONDITION_FAILED: u16 = 406;

/// The reply code of an error that the server sent.
pub(super) fn reply_code(error: &lapin::Error) -> Option<u16> {
    match error.kind() {
        ErrorKind::ProtocolError(error) => Some(error.get_id()),
        _ => None,
    }
}

/// While it runs, a wrong configuration is a broker that is away: it may be put right at the server.
fn away(setup: Setup) -> Error {
    Error::Unavailable(setup.to_string())
}

#[derive(Debug, thiserror::Error)]
#[error("{0}")]
struct NoTls(io::Error);

/// How a connection ends that was taken and given up.
const HUNG_UP: [io::ErrorKind; 4] = [
    io::ErrorKind::ConnectionAborted,
    io::ErrorKind::ConnectionReset,
    io::ErrorKind::BrokenPipe,
    io::ErrorKind::UnexpectedEof,
];

/// Why a connection was not made.
fn refusal(host: &Host, error: &lapin::Error) -> Setup {
    let at = host.to_string();
    match error.kind() {
        ErrorKind::IOError(error) => {
            let tls = error
                .get_ref()
                .and_then(|error| error.downcast_ref::<NoTls>());
            match tls {
                Some(NoTls(error)) => Setup::Tls {
                    at,
                    problem: error.to_string(),
                },
                None if HUNG_UP.contains(&error.kind()) => Setup::NotABroker {
                    at,
                    problem: "it closed the connection".to_owned(),
                },
                None => Setup::Unreachable {
                    at,
                    problem: error.to_string(),
                },
            }
        }
        ErrorKind::ProtocolError(error) => {
            let problem = error.get_message().to_string();
            match error.kind() {
                AMQPErrorKind::Hard(AMQPHardError::NOTALLOWED) => Setup::VirtualHost {
                    at,
                    vhost: host.uri.vhost.clone(),
                    problem,
                },
                AMQPErrorKind::Soft(_) if error.get_id() == ACCESS_REFUSED => Setup::Login {
                    at,
                    user: host.user(),
                },
                AMQPErrorKind::Soft(_) | AMQPErrorKind::Hard(_) => Setup::Refused { at, problem },
            }
        }
        ErrorKind::ParsingError(_) | ErrorKind::InvalidProtocolVersion(_) => Setup::NotABroker {
            at,
            problem: error.to_string(),
        },
        _ => Setup::Unreachable {
            at,
            problem: error.to_string(),
        },
    }
}

/// By which certificates a server is known.
#[derive(Clone)]
pub(super) struct Tls(Arc<OwnedTLSConfig>);

impl Tls {
    pub(super) fn of(options: &Options) -> Result<Self, Setup> {
        let Some(path) = &options.ca_file else {
            return Ok(Self(Arc::default()));
        };
        let refused = |problem: String| Setup::CaFile {
            path: path.display().to_string(),
            problem,
        };
        let pem = std::fs::read_to_string(path).map_err(|error| refused(error.to_string()))?;
        if !pem.contains("-----BEGIN CERTIFICATE-----") {
            return Err(refused("it holds no certificate in PEM form".to_owned()));
        }
        Ok(Self(Arc::new(OwnedTLSConfig {
            identity: None,
            cert_chain: Some(pem),
        })))
    }
}

impl std::fmt::Debug for Tls {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Tls").finish_non_exhaustive()
    }
}

/// The state of a connection, for health, metrics, and those who wait for it.
#[derive(Debug, Clone)]
struct Status(Arc<watch::Sender<Noted>>);

#[derive(Debug)]
struct Noted {
    state: ConnectionState,
    /// Which connection it is; what an older one still reports is of no interest.
    number: u64,
}

impl Status {
    fn new(name: &'static str, at: String) -> Self {
        let state = ConnectionState {
            name,
            at,
            state: State::Down("not connected yet".to_owned()),
            since: SystemTime::now(),
        };
        Self(Arc::new(watch::Sender::new(Noted { state, number: 0 })))
    }

    fn state(&self) -> ConnectionState {
        self.0.borrow().state.clone()
    }

    /// Notes the state of a new connection, or of none. Returns its number.
    fn replace(&self, host: Option<&Host>, state: State) -> u64 {
        let mut number = 0;
        self.0.send_modify(|noted| {
            noted.number += 1;
            number = noted.number;
            if let Some(host) = host {
                noted.state.at = host.to_string();
            }
            noted.set(state);
        });
        number
    }

    /// Notes what became of a connection, unless it has been replaced.
    fn update(&self, number: u64, state: State) {
        self.0.send_if_modified(|noted| {
            let is_current = noted.number == number;
            if is_current {
                noted.set(state);
            }
            is_current
        });
    }

    async fn unblocked(&self) {
        let is_free = |noted: &Noted| !matches!(noted.state.state, State::Blocked(_));
        // The sender lives as long as `self`.
        let _ = self.0.subscribe().wait_for(is_free).await;
    }

    /// Notes what becomes of a connection, until it ends.
    async fn follow(self, number: u64, events: impl Stream<Item = Event>) {
        let mut events = std::pin::pin!(events);
        let connection = self.state().name;
        while let Some(event) = events.next().await {
            match event {
                Event::ConnectionBlocked(reason) => {
                    tracing::warn!(connection, reason, "the broker takes no messages");
                    self.update(number, State::Blocked(reason));
                }
                Event::ConnectionUnblocked => {
                    tracing::info!(connection, "the broker takes messages again");
                    self.update(number, State::Up);
                }
                Event::Error(error) if !is_of_a_channel(&error) => {
                    tracing::warn!(connection, %error, "the connection to the broker is lost");
                    self.update(number, State::Down(error.to_string()));
                    return;
                }
                _ => {}
            }
        }
    }
}

/// Whether an error leaves the connection as it is: the server closes a channel for a queue that is not
/// there, and the library then tells of whatever was still on its way to that channel.
fn is_of_a_channel(error: &lapin::Error) -> bool {
    use lapin::ErrorKind::{InvalidChannel, InvalidChannelState};
    error.is_amqp_soft_error()
        || matches!(error.kind(), InvalidChannel(_) | InvalidChannelState(..))
}

impl Noted {
    fn set(&mut self, state: State) {
        let current = &mut self.state;
        let goes_on = matches!(
            (&current.state, &state),
            (State::Down(_), State::Down(_)) | (State::Blocked(_), State::Blocked(_))
        );
        if !goes_on {
            current.since = SystemTime::now();
        }
        let (connected, blocked) = match state {
            State::Up => (1.0, 0.0),
            State::Blocked(_) => (1.0, 1.0),
            State::Down(_) => (0.0, 0.0),
        };
        let name = current.name;
        current.state = state;
        metrics::gauge!("orderonce_broker_connected", "connection" => name).set(connected);
        metrics::gauge!("orderonce_broker_blocked", "connection" => name).set(blocked);
    }
}
