//! Open connections, at most so many.
//!
//! sqlx's own pool asks the server twice for each use whether a connection is alive, and takes back
//! one whose `BEGIN` was cancelled half-way, which then is in a transaction that nobody knows of.
//! Here a connection comes back only from whoever saw its last statement end. One that is dropped in
//! any other state is closed, and the server rolls back.

use super::error::{ends_connection, from_sqlx};
use crate::store::queue::Queue;
use crate::store::statements::Statements;
use crate::store::{Error, Occupancy, Result};
use sqlx::postgres::{PgArguments, PgConnectOptions, PgConnection, PgRow};
use sqlx::query::Query;
use sqlx::{Connection, Postgres};
use std::fmt;
use std::ops::{Deref, DerefMut};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use tokio::runtime::Handle;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::timeout;

/// How long connecting and logging in may take, and what takes no time on a live connection.
const CONNECT: Duration = Duration::from_secs(10);

/// How long a caller waits for a connection that others use.
const ACQUIRE: Duration = Duration::from_secs(60);

/// A connection is refreshed before its next use after so long.
const FRESH: Duration = Duration::from_secs(1);

/// The server keeps a plan until the statistics change, which may take a minute; in that time a table
/// that was empty may have grown by a million rows. The answer also tells that the connection is alive.
const REFRESH: &str = "DISCARD PLANS";

/// What the server's own timeout takes to be heard, beyond itself.
const GRACE: Duration = Duration::from_secs(5);

/// Connections to one database, made as they are needed.
pub(super) struct Pool {
    options: PgConnectOptions,
    size: u32,
    permits: Arc<Semaphore>,
    idle: Mutex<Vec<Idle>>,
    waiting: Queue,
    /// How long an answer is waited for. The server ends a statement before that, unless it is no
    /// longer there.
    patience: Duration,
    statements: Statements,
}

struct Idle {
    connection: PgConnection,
    refreshed: Instant,
}

/// A connection in use.
pub(super) struct Pooled {
    /// Taken only when this is given back or dropped.
    connection: Option<PgConnection>,
    pool: Arc<Pool>,
    permit: Option<OwnedSemaphorePermit>,
    /// Whether it was used before, so that the server may have gone away since.
    is_used: bool,
    refreshed: Instant,
    in_transaction: bool,
    patience: Duration,
}

impl Pool {
    /// A pool that so far holds `first`. `statement_timeout` is the server's.
    pub(super) fn new(
        options: PgConnectOptions,
        size: u32,
        statement_timeout: Duration,
        first: PgConnection,
    ) -> Self {
        let size = size.max(1);
        let idle = Idle {
            connection: first,
            refreshed: Instant::now(),
        };
        Self {
            options,
            size,
            permits: Arc::new(Semaphore::new(usize::try_from(size).unwrap_or(1))),
            idle: Mutex::new(vec![idle]),
            waiting: Queue::default(),
            patience: statement_timeout.saturating_add(GRACE),
            statements: Statements::default(),
        }
    }

    /// Begins a transaction, on a connection that is replaced if the server has closed it since.
    pub(super) async fn begin(self: &Arc<Self>, begin: &'static str) -> Result<Pooled> {
        loop {
            let mut pooled = self.acquire().await?;
            pooled.in_transaction = true;
            match pooled.begin(begin).await {
                Ok(()) => return Ok(pooled),
                Err(error) if pooled.is_used && ends_connection(&error) => pooled.discard(),
                Err(error) => {
                    pooled.discard();
                    return Err(Error::Unavailable(error.to_string()));
                }
            }
        }
    }

    /// Runs one statement in a transaction of its own and returns how many rows it wrote.
    pub(super) async fn execute(
        self: &Arc<Self>,
        statement: Query<'_, Postgres, PgArguments>,
    ) -> Result<u64> {
        let mut pooled = self.acquire_alive().await?;
        self.statements.count(1);
        let done = waited(self.patience, statement.execute(&mut *pooled)).await;
        let done = pooled.give_back_after(done)?;
        Ok(done.rows_affected())
    }

    /// Runs one statement in a transaction of its own and returns its rows.
    pub(super) async fn fetch(
        self: &Arc<Self>,
        statement: Query<'_, Postgres, PgArguments>,
    ) -> Result<Vec<PgRow>> {
        let mut pooled = self.acquire_alive().await?;
        self.statements.count(1);
        let rows = waited(self.patience, statement.fetch_all(&mut *pooled)).await;
        pooled.give_back_after(rows)
    }

    /// How many connections are open.
    pub(super) fn occupancy(&self) -> Occupancy {
        let size = usize::try_from(self.size).unwrap_or(usize::MAX);
        let in_use = size.saturating_sub(self.permits.available_permits());
        Occupancy {
            in_use: u64::try_from(in_use).unwrap_or(u64::MAX),
            idle: u64::try_from(self.idle().len()).unwrap_or(u64::MAX),
            waiting: Some(self.waiting.len()),
        }
    }

    /// How many statements were sent.
    pub(super) fn statements(&self) -> u64 {
        self.statements.sent()
    }

    /// Waits for what is under way and closes all connections.
    pub(super) async fn close(&self) {
        let all = self.permits.acquire_many(self.size).await;
        self.permits.close();
        drop(all);
        let idle = std::mem::take(&mut *self.idle());
        for idle in idle {
            if let Err(error) = idle.connection.close().await {
                tracing::debug!(%error, "a connection to the database was gone before it was closed");
            }
        }
    }

    /// A connection, of which the last use may be long ago.
    async fn acquire(self: &Arc<Self>) -> Result<Pooled> {
        let permits = Arc::clone(&self.permits);
        let waiting = self.waiting.enter();
        let permit = timeout(ACQUIRE, permits.acquire_owned()).await;
        drop(waiting);
        let permit = match permit {
            Ok(Ok(permit)) => permit,
            Ok(Err(_)) => return Err(Error::Unavailable("the store is closed".into())),
            Err(_) => {
                let (size, waited) = (self.size, ACQUIRE.as_secs());
                return Err(Error::Unavailable(format!(
                    "all {size} connections were in use for {waited} s"
                )));
            }
        };
        let idle = self.idle().pop();
        let is_used = idle.is_some();
        let idle = match idle {
            Some(idle) => idle,
            None => {
                let connection = connect(&self.options).await;
                let failed = |error: sqlx::Error| Error::Unavailable(error.to_string());
                Idle {
                    connection: connection.map_err(failed)?,
                    refreshed: Instant::now(),
                }
            }
        };
        Ok(Pooled {
            connection: Some(idle.connection),
            pool: Arc::clone(self),
            permit: Some(permit),
            is_used,
            refreshed: idle.refreshed,
            in_transaction: false,
            patience: self.patience,
        })
    }

    /// A connection for a statement that is not repeated, so that it had better not be dead.
    async fn acquire_alive(self: &Arc<Self>) -> Result<Pooled> {
        loop {
            let mut pooled = self.acquire().await?;
            if !pooled.is_stale() || pooled.refresh().await.is_ok() {
                return Ok(pooled);
            }
            pooled.discard();
        }
    }

    fn idle(&self) -> MutexGuard<'_, Vec<Idle>> {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Pooled {
    async fn begin(&mut self, begin: &'static str) -> Result<(), sqlx::Error> {
        self.pool.statements.count(1);
        let begun = sqlx::raw_sql(begin).execute(&mut **self);
        waited(CONNECT, begun).await?;
        if self.is_stale() {
            self.refresh().await?;
        }
        Ok(())
    }

    fn is_stale(&self) -> bool {
        self.refreshed.elapsed() > FRESH
    }

    async fn refresh(&mut self) -> Result<(), sqlx::Error> {
        self.pool.statements.count(1);
        let refreshed = sqlx::raw_sql(REFRESH).execute(&mut **self);
        waited(CONNECT, refreshed).await?;
        self.refreshed = Instant::now();
        Ok(())
    }

    /// Waits for each answer as long as it takes.
    pub(super) fn be_patient(&mut self) {
        self.patience = Duration::MAX;
    }

    /// Runs statements without parameters, one after the other.
    pub(super) async fn run(&mut self, statements: &'static str) -> Result<(), sqlx::Error> {
        let patience = self.patience;
        self.pool.statements.count(1);
        let done = waited(patience, sqlx::raw_sql(statements).execute(&mut **self)).await;
        self.note(done).map(drop)
    }

    /// Runs a statement and returns how many rows it wrote.
    pub(super) async fn execute(
        &mut self,
        statement: Query<'_, Postgres, PgArguments>,
    ) -> Result<u64> {
        let patience = self.patience;
        self.pool.statements.count(1);
        let done = waited(patience, statement.execute(&mut **self)).await;
        let done = self.note(done).map_err(from_sqlx)?;
        Ok(done.rows_affected())
    }

    /// Runs a statement and returns its rows.
    pub(super) async fn fetch(
        &mut self,
        statement: Query<'_, Postgres, PgArguments>,
    ) -> Result<Vec<PgRow>> {
        let patience = self.patience;
        self.pool.statements.count(1);
        let rows = waited(patience, statement.fetch_all(&mut **self)).await;
        self.note(rows).map_err(from_sqlx)
    }

    /// A connection that is at its end is closed when it is dropped: there is nothing to roll back.
    fn note<T>(&mut self, result: Result<T, sqlx::Error>) -> Result<T, sqlx::Error> {
        if let Err(error) = &result
            && ends_connection(error)
        {
            self.in_transaction = false;
        }
        result
    }

    /// Ends the transaction with `end` and gives the connection back.
    pub(super) async fn end(mut self, end: &'static str) -> Result<()> {
        self.run(end).await.map_err(from_sqlx)?;
        self.in_transaction = false;
        self.give_back();
        Ok(())
    }

    fn give_back_after<T>(self, result: Result<T, sqlx::Error>) -> Result<T> {
        match result {
            Ok(value) => {
                self.give_back();
                Ok(value)
            }
            Err(error) if ends_connection(&error) => {
                // The others are as old: the next caller shall not find them out one by one.
                self.pool.idle().clear();
                self.discard();
                Err(from_sqlx(error))
            }
            Err(error) => {
                self.give_back();
                Err(from_sqlx(error))
            }
        }
    }

    fn give_back(mut self) {
        if let Some(connection) = self.connection.take() {
            let refreshed = self.refreshed;
            self.pool.idle().push(Idle {
                connection,
                refreshed,
            });
        }
    }

    fn discard(mut self) {
        self.connection = None;
    }
}

/// A transaction that is given up is rolled back politely, and its connection used again. Whatever
/// else is dropped was cancelled in the middle of a statement: the connection is closed.
impl Drop for Pooled {
    fn drop(&mut self) {
        if !self.in_transaction {
            return;
        }
        let Some(connection) = self.connection.take() else {
            return;
        };
        let rolled_back = Self {
            connection: Some(connection),
            pool: Arc::clone(&self.pool),
            permit: self.permit.take(),
            is_used: true,
            refreshed: self.refreshed,
            in_transaction: false,
            patience: self.pool.patience,
        };
        if let Ok(runtime) = Handle::try_current() {
            runtime.spawn(rolled_back.end("ROLLBACK"));
        }
    }
}

#[expect(
    clippy::expect_used,
    reason = "the connection is taken only by functions that own it"
)]
impl Deref for Pooled {
    type Target = PgConnection;

    fn deref(&self) -> &PgConnection {
        self.connection.as_ref().expect("a connection in use")
    }
}

#[expect(
    clippy::expect_used,
    reason = "the connection is taken only by functions that own it"
)]
impl DerefMut for Pooled {
    fn deref_mut(&mut self) -> &mut PgConnection {
        self.connection.as_mut().expect("a connection in use")
    }
}

impl fmt::Debug for Pooled {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pooled").finish_non_exhaustive()
    }
}

/// Without the options, which hold the password.
impl fmt::Debug for Pool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let size = self.size;
        f.debug_struct("Pool")
            .field("size", &size)
            .finish_non_exhaustive()
    }
}

/// A new connection.
pub(super) async fn connect(options: &PgConnectOptions) -> Result<PgConnection, sqlx::Error> {
    let connection = waited(CONNECT, PgConnection::connect_with(options)).await?;
    #[cfg(target_os = "linux")]
    crate::store::nodelay::send_at_once(options.get_port());
    Ok(connection)
}

/// Waits so long and no longer: a server that is cut off does not say so. The connection is left in
/// the middle of a statement then.
async fn waited<T>(
    patience: Duration,
    answer: impl Future<Output = Result<T, sqlx::Error>>,
) -> Result<T, sqlx::Error> {
    match timeout(patience, answer).await {
        Ok(answer) => answer,
        Err(_) => {
            let silent = format!("the server did not answer within {} s", patience.as_secs());
            Err(std::io::Error::new(std::io::ErrorKind::TimedOut, silent).into())
        }
    }
}
