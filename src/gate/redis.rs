//! Keys that are settled, in a Redis that all processes share.
//!
//! What lives here: one command for each batch before it, one pipeline after its commit, and a
//! breaker. What it deliberately does not do: decide, or hold anybody up. A Redis that does not answer
//! in time, refuses a write or is away is gone round from then on, without another wait, until a
//! write to it succeeds; meanwhile the database does all the work.
//!
//! With marks ([`Options::marks`]) each worker also says which keys it has in hand, so that others let
//! their copies wait.
//!
//! All keys of a role have one hash tag, so that a command finds them on one node of a cluster.

use super::{Gate, Known, Told};
use crate::domain::{Fingerprint, Key, RoleName};
use async_trait::async_trait;
use in_flight::InFlight;
use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, Client, RedisError, RedisResult};
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, PoisonError, RwLock};
use std::time::{Duration, SystemTime};
use tokio::sync::Notify;
use tokio::time::timeout;
use tokio_util::task::AbortOnDropHandle;

mod in_flight;

/// The first byte of a value: a fingerprint follows.
const DONE: u8 = b'1';

/// How long connecting may take. Nobody waits for it.
const CONNECT: Duration = Duration::from_secs(2);

/// The pause before the first look whether it is back; each later one is twice as long.
const FIRST_PAUSE: Duration = Duration::from_millis(100);
const LONGEST_PAUSE: Duration = Duration::from_secs(5);

/// How Redis is used.
#[derive(Clone)]
pub struct Options {
    /// `redis://USER:PASSWORD@HOST:PORT/DATABASE`.
    pub url: String,
    /// The beginning of each key. Deployments with databases of their own need names of their own.
    pub namespace: String,
    /// How long a key is remembered.
    pub ttl: Duration,
    /// How long an answer is waited for.
    pub patience: Duration,
    /// Whether workers mark what they have in hand, and the name of this process in the marks. It has the
    /// same name after it was killed, and no other process has it.
    pub marks: Option<String>,
}

/// Without the password.
impl fmt::Debug for Options {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Options")
            .field("namespace", &self.namespace)
            .field("ttl", &self.ttl)
            .field("patience", &self.patience)
            .field("marks", &self.marks)
            .finish_non_exhaustive()
    }
}

/// Whether it is used.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Standing {
    /// Why it is gone round, unless it is used.
    pub down: Option<String>,
    /// Since when.
    pub since: SystemTime,
}

/// The layer.
pub struct RedisGate {
    shared: Arc<Shared>,
    _keeper: AbortOnDropHandle<()>,
}

struct Shared {
    options: Options,
    breaker: RwLock<Breaker>,
    broken: Notify,
    commands: AtomicU64,
    /// Tells the marks of this process from those that it left when it was killed.
    life: u64,
}

struct Breaker {
    /// Each has a number, so that a failure of an old one does not break a new one.
    connection: Option<(u64, MultiplexedConnection)>,
    made: u64,
    standing: Standing,
}

impl RedisGate {
    /// Begins to connect, and returns at once.
    ///
    /// # Errors
    /// What is wrong with the URL.
    pub fn new(options: Options) -> Result<Self, String> {
        let client = Client::open(options.url.as_str()).map_err(|error| said(&error))?;
        let breaker = Breaker {
            connection: None,
            made: 0,
            standing: Standing {
                down: Some("not connected yet".to_owned()),
                since: SystemTime::now(),
            },
        };
        let shared = Arc::new(Shared {
            options,
            breaker: RwLock::new(breaker),
            broken: Notify::new(),
            commands: AtomicU64::new(0),
            life: fastrand::u64(..),
        });
        let keeper = tokio::spawn(Arc::clone(&shared).keep_connected(client));
        Ok(Self {
            shared,
            _keeper: AbortOnDropHandle::new(keeper),
        })
    }

    /// Whether it is used, and since when.
    #[must_use]
    pub fn standing(&self) -> Standing {
        self.shared.read(|breaker| breaker.standing.clone())
    }

    /// Commands sent for batches since the process started: one before each, one for each key after it.
    #[must_use]
    pub fn commands(&self) -> u64 {
        self.shared.commands.load(Ordering::Relaxed)
    }

    /// Makes it forget keys, for whoever knows that they will not come again. Those that it fails to
    /// forget go when their time is over.
    pub async fn forget(&self, role: &RoleName, keys: &[Key]) {
        if keys.is_empty() {
            return;
        }
        let Some((number, mut connection)) = self.shared.connection() else {
            return;
        };
        let mut unlink = redis::cmd("UNLINK");
        for key in keys {
            unlink.arg(self.shared.key(role, key));
        }
        let forgotten = unlink.exec_async(&mut connection);
        self.shared.answer(number, forgotten).await;
    }
}

impl Shared {
    fn read<T>(&self, look: impl FnOnce(&Breaker) -> T) -> T {
        look(&self.breaker.read().unwrap_or_else(PoisonError::into_inner))
    }

    fn change(&self, change: impl FnOnce(&mut Breaker)) {
        change(&mut self.breaker.write().unwrap_or_else(PoisonError::into_inner));
    }

    /// The connection to use now, if there is one.
    fn connection(&self) -> Option<(u64, MultiplexedConnection)> {
        self.read(|breaker| breaker.connection.clone())
    }

    /// Waits for an answer, and no longer than it may take. Whoever gets none breaks the connection.
    async fn answer<T>(
        &self,
        number: u64,
        answer: impl Future<Output = RedisResult<T>>,
    ) -> Option<T> {
        metrics::counter!("orderonce_redis_round_trips_total").increment(1);
        let failures = metrics::counter!("orderonce_redis_failures_total");
        let problem = match timeout(self.options.patience, answer).await {
            Ok(Ok(answer)) => return Some(answer),
            Ok(Err(error)) => said(&error),
            Err(_) => slow(self.options.patience),
        };
        failures.increment(1);
        self.change(|breaker| {
            if breaker
                .connection
                .take_if(|(current, _)| *current == number)
                .is_some()
            {
                breaker.stand(Some(problem));
            }
        });
        self.broken.notify_one();
        None
    }

    async fn keep_connected(self: Arc<Self>, client: Client) {
        loop {
            let mut pause = FIRST_PAUSE;
            while self.connection().is_none() {
                match connect(&client, &self.options).await {
                    Ok(connection) => self.change(|breaker| {
                        breaker.made += 1;
                        breaker.connection = Some((breaker.made, connection));
                        breaker.stand(None);
                    }),
                    Err(problem) => {
                        self.change(|breaker| breaker.stand(Some(problem)));
                        tokio::time::sleep(pause).await;
                        pause = (pause * 2).min(LONGEST_PAUSE);
                    }
                }
            }
            self.broken.notified().await;
        }
    }

    async fn tell(&self, role: &RoleName, told: &[Told<'_>]) {
        if told.is_empty() {
            return;
        }
        let Some((number, mut connection)) = self.connection() else {
            return;
        };
        self.count(told.len());
        let ttl = milliseconds(self.options.ttl);
        let mut pipe = redis::pipe();
        for told in told {
            let mut value = [DONE; 33];
            value[1..].copy_from_slice(&told.fingerprint.0);
            let set = pipe.cmd("SET").arg(self.key(role, told.key));
            set.arg(&value[..]).arg("PX").arg(ttl).ignore();
        }
        self.answer(number, pipe.exec_async(&mut connection)).await;
    }

    fn count(&self, commands: usize) {
        let commands = u64::try_from(commands).unwrap_or(u64::MAX);
        self.commands.fetch_add(commands, Ordering::Relaxed);
    }

    fn key(&self, role: &RoleName, key: &Key) -> String {
        format!("{}:{{{role}}}:{key}", self.options.namespace)
    }
}

impl Breaker {
    fn stand(&mut self, down: Option<String>) {
        match (&self.standing.down, &down) {
            (Some(_), None) => tracing::info!("Redis is used"),
            (None, Some(problem)) => tracing::warn!(problem, "Redis is gone round"),
            (Some(_), Some(_)) | (None, None) => {}
        }
        metrics::gauge!("orderonce_redis_used").set(if down.is_none() { 1.0 } else { 0.0 });
        if self.standing.down.is_none() != down.is_none() {
            self.standing.since = SystemTime::now();
        }
        self.standing.down = down;
    }
}

#[async_trait]
impl Gate for RedisGate {
    async fn ask(&self, role: &RoleName, keys: &[&Key]) -> Vec<Known> {
        let unknown = || vec![Known::Unknown; keys.len()];
        let Some((number, mut connection)) = self.shared.connection() else {
            return unknown();
        };
        let mut get = redis::cmd("MGET");
        for key in keys {
            get.arg(self.shared.key(role, key));
        }
        self.shared.count(1);
        let values = get.query_async::<Vec<Option<Vec<u8>>>>(&mut connection);
        match self.shared.answer(number, values).await {
            Some(values) if values.len() == keys.len() => {
                values.iter().map(|value| known(value.as_deref())).collect()
            }
            Some(_) | None => unknown(),
        }
    }

    async fn tell(&self, role: &RoleName, told: &[Told<'_>]) {
        self.shared.tell(role, told).await;
    }

    fn of_worker(&self, worker: &str) -> Option<Arc<dyn Gate>> {
        let process = self.shared.options.marks.as_ref()?;
        let shared = Arc::clone(&self.shared);
        Some(Arc::new(InFlight::new(shared, process, worker)))
    }
}

/// Connects once, and says what is wrong.
///
/// # Errors
/// What is wrong.
pub async fn check(options: &Options) -> Result<(), String> {
    let client = Client::open(options.url.as_str()).map_err(|error| said(&error))?;
    connect(&client, options).await.map(drop)
}

/// A connection that takes a write within the time that an answer may take: one that only reads, or is
/// full, is of no use.
async fn connect(client: &Client, options: &Options) -> Result<MultiplexedConnection, String> {
    let config = AsyncConnectionConfig::new()
        .set_connection_timeout(Some(CONNECT))
        .set_response_timeout(Some(CONNECT));
    let connecting = client.get_multiplexed_async_connection_with_config(&config);
    let connected = timeout(CONNECT, connecting).await;
    let connected = connected.map_err(|_| format!("no connection within {CONNECT:?}"))?;
    let mut connection = connected.map_err(|error| said(&error))?;
    let mut probe = redis::cmd("SET");
    let probe = probe.arg(format!("{}:probe", options.namespace));
    let probe = probe.arg("").arg("PX").arg(1);
    match timeout(options.patience, probe.exec_async(&mut connection)).await {
        Ok(Ok(())) => Ok(connection),
        Ok(Err(error)) => Err(said(&error)),
        Err(_) => Err(slow(options.patience)),
    }
}

fn milliseconds(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

fn slow(patience: Duration) -> String {
    format!("no answer within {patience:?}")
}

/// What a value says. One that is not ours says nothing.
fn known(value: Option<&[u8]>) -> Known {
    let fingerprint = value.and_then(|value| value.strip_prefix(&[DONE]));
    let fingerprint = fingerprint.and_then(|rest| <[u8; 32]>::try_from(rest).ok());
    fingerprint.map_or(Known::Unknown, |bytes| Known::Done(Fingerprint(bytes)))
}

/// What the client says. It shows no URL, which may hold a password.
fn said(error: &RedisError) -> String {
    error.to_string()
}

impl fmt::Debug for RedisGate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RedisGate")
            .field("options", &self.shared.options)
            .field("standing", &self.standing())
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_that_is_not_ours_says_nothing() {
        let mut ours = vec![DONE];
        ours.extend([7; 32]);
        assert_eq!(known(Some(&ours)), Known::Done(Fingerprint([7; 32])));
        for other in [
            vec![],
            vec![DONE],
            ours[..32].to_vec(),
            [&ours[..], b"x"].concat(),
        ] {
            assert_eq!(known(Some(&other)), Known::Unknown);
        }
        ours[0] = b'2';
        assert_eq!(known(Some(&ours)), Known::Unknown);
        assert_eq!(known(None), Known::Unknown);
    }
}
