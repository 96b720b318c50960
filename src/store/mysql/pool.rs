//! Open connections, at most so many.
//!
//! sqlx's own pool asks the server twice for each use whether a connection is alive, and takes back
//! one whose user was cancelled in the middle of a statement, which then gives its next user the
//! answers of the last. Here a connection comes back only from whoever saw its last statement end.
//! One that is dropped in any other state is closed, and the server rolls back.

use super::error::{ends_connection, from_sqlx};
use crate::store::queue::Queue;
use crate::store::statements::Statements;
use crate::store::{Error, Occupancy, Result};
use sqlx::mysql::{MySqlArguments, MySqlConnectOptions, MySqlConnection, MySqlRow};
use sqlx::query::Query;
use sqlx::{AssertSqlSafe, Connection, Executor, MySql, SqlSafeStr, SqlStr};
use std::fmt;
use std::ops::{Deref, DerefMut};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use tokio::runtime::Handle;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::timeout;

/// How long connecting and logging in may take.
const CONNECT: Duration = Duration::from_secs(10);

/// How long a caller waits for a connection that others use.
const ACQUIRE: Duration = Duration::from_secs(60);

/// A connection that nobody has used for so long is asked whether it is alive.
const TRUSTED: Duration = Duration::from_secs(1);

/// What the server's own timeouts take to be heard, beyond themselves.
const GRACE: Duration = Duration::from_secs(5);

/// How sessions are set up.
#[derive(Debug, Clone)]
pub(super) struct Session {
    /// The statements that do it.
    pub(super) statements: Arc<str>,
    /// How long an answer is waited for. The server ends a statement before that, unless it is no
    /// longer there.
    pub(super) patience: Duration,
}

impl Session {
    /// A session whose server ends a statement after `timeout`; zero for never.
    pub(super) fn new(statements: &str, timeout: Duration) -> Self {
        let patience = match timeout {
            Duration::ZERO => Duration::MAX,
            timeout => timeout.saturating_add(GRACE),
        };
        Self {
            statements: statements.into(),
            patience,
        }
    }
}

/// Connections to one database, made as they are needed.
pub(super) struct Pool {
    options: MySqlConnectOptions,
    session: Session,
    size: u32,
    permits: Arc<Semaphore>,
    idle: Mutex<Vec<Idle>>,
    waiting: Queue,
    statements: Statements,
}

struct Idle {
    connection: MySqlConnection,
    since: Instant,
    commits: bool,
}

/// A connection in use.
pub(super) struct Pooled {
    /// Taken only when this is given back or dropped.
    connection: Option<MySqlConnection>,
    pool: Arc<Pool>,
    permit: Option<OwnedSemaphorePermit>,
    /// How long nobody had used it, if it is not new.
    idle_for: Option<Duration>,
    /// Whether each statement commits by itself.
    commits: bool,
    in_transaction: bool,
    /// Whether a statement is under way, or was when its caller went away.
    is_busy: bool,
    patience: Duration,
}

impl Pool {
    /// A pool that so far holds `first`.
    pub(super) async fn new(
        options: MySqlConnectOptions,
        session: Session,
        size: u32,
        first: MySqlConnection,
    ) -> Result<Self> {
        let size = size.max(1);
        let idle = Idle {
            connection: counted(first).await.map_err(from_sqlx)?,
            since: Instant::now(),
            commits: true,
        };
        Ok(Self {
            options,
            session,
            size,
            permits: Arc::new(Semaphore::new(usize::try_from(size).unwrap_or(1))),
            idle: Mutex::new(vec![idle]),
            waiting: Queue::default(),
            statements: Statements::default(),
        })
    }

    /// Begins a transaction, on a connection that is replaced if the server has closed it since.
    pub(super) async fn begin(self: &Arc<Self>, begin: &'static str) -> Result<Pooled> {
        loop {
            let mut pooled = self.acquire().await?;
            match pooled.begin(begin).await {
                Ok(()) => return Ok(pooled),
                Err(error) if pooled.idle_for.is_some() && ends_connection(&error) => {
                    pooled.discard();
                }
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
        statement: Query<'_, MySql, MySqlArguments>,
    ) -> Result<u64> {
        let mut pooled = self.acquire_alive().await?;
        let done = pooled.execute(statement).await;
        pooled.give_back_after(done)
    }

    /// Runs one statement in a transaction of its own and returns its rows.
    pub(super) async fn fetch(
        self: &Arc<Self>,
        statement: Query<'_, MySql, MySqlArguments>,
    ) -> Result<Vec<MySqlRow>> {
        let mut pooled = self.acquire_alive().await?;
        let rows = pooled.fetch(statement).await;
        pooled.give_back_after(rows)
    }

    /// Runs `before`, then a statement that may take as long as it takes, and returns its rows.
    pub(super) async fn scan(
        self: &Arc<Self>,
        before: Query<'_, MySql, MySqlArguments>,
        statement: Query<'_, MySql, MySqlArguments>,
    ) -> Result<Vec<MySqlRow>> {
        let mut pooled = self.acquire_alive().await?;
        pooled.patience = Duration::MAX;
        pooled
            .run(UNHURRIED.into_sql_str())
            .await
            .map_err(from_sqlx)?;
        pooled.execute(before).await.map_err(from_sqlx)?;
        let rows = pooled.fetch(statement).await.map_err(from_sqlx)?;
        let session = AssertSqlSafe(self.session.statements.to_string());
        let restored = pooled.run(session.into_sql_str()).await;
        pooled.give_back_after(restored)?;
        Ok(rows)
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
        let (connection, idle_for, commits) = match idle {
            Some(idle) => (idle.connection, Some(idle.since.elapsed()), idle.commits),
            None => {
                let failed = |error: sqlx::Error| Error::Unavailable(error.to_string());
                let connection = connect(&self.options, &self.session).await;
                let connection = counted(connection.map_err(failed)?).await;
                (connection.map_err(failed)?, None, true)
            }
        };
        Ok(Pooled {
            connection: Some(connection),
            pool: Arc::clone(self),
            permit: Some(permit),
            idle_for,
            commits,
            in_transaction: false,
            is_busy: false,
            patience: self.session.patience,
        })
    }

    /// A connection for a statement that commits by itself and is not repeated, so that it had better
    /// not be dead.
    async fn acquire_alive(self: &Arc<Self>) -> Result<Pooled> {
        loop {
            let mut pooled = self.acquire().await?;
            let is_trusted = pooled.idle_for.is_none_or(|idle| idle <= TRUSTED);
            if pooled.commits && is_trusted {
                return Ok(pooled);
            }
            match pooled.run(COMMITS.into_sql_str()).await {
                Ok(()) => {
                    pooled.commits = true;
                    return Ok(pooled);
                }
                Err(_) => pooled.discard(),
            }
        }
    }

    fn idle(&self) -> MutexGuard<'_, Vec<Idle>> {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Each of the two servers reads only its own comment.
pub(super) const UNHURRIED: &str =
    "SET SESSION /*!80000 max_execution_time = 0 */ /*M! max_statement_time = 0 */";

const COMMITS: &str = "SET autocommit = 1";

impl Pooled {
    async fn begin(&mut self, statements: &'static str) -> Result<(), sqlx::Error> {
        self.commits = false;
        self.run(statements.into_sql_str()).await?;
        self.in_transaction = true;
        Ok(())
    }

    /// Ends the transaction with `end` and gives the connection back.
    pub(super) async fn end(mut self, end: &'static str) -> Result<()> {
        let ended = self.run(end.into_sql_str()).await;
        if let Err(error) = ended {
            // Closed, which rolls back whatever there still is.
            self.discard();
            return Err(from_sqlx(error));
        }
        self.in_transaction = false;
        self.give_back();
        Ok(())
    }

    /// Runs statements without parameters, one after the other.
    pub(super) async fn run(&mut self, statements: SqlStr) -> Result<(), sqlx::Error> {
        let patience = self.patience;
        self.is_busy = true;
        self.pool.statements.count(1);
        let done = waited(patience, (&mut **self).execute(statements)).await;
        self.note(done).map(drop)
    }

    /// Runs a statement and returns how many rows it wrote, or found as they should be.
    pub(super) async fn execute(
        &mut self,
        statement: Query<'_, MySql, MySqlArguments>,
    ) -> Result<u64, sqlx::Error> {
        let patience = self.patience;
        self.is_busy = true;
        self.pool.statements.count(1);
        let done = waited(patience, statement.execute(&mut **self)).await;
        self.note(done).map(|done| done.rows_affected())
    }

    /// Runs a statement and returns its rows.
    pub(super) async fn fetch(
        &mut self,
        statement: Query<'_, MySql, MySqlArguments>,
    ) -> Result<Vec<MySqlRow>, sqlx::Error> {
        let patience = self.patience;
        self.is_busy = true;
        self.pool.statements.count(1);
        let rows = waited(patience, statement.fetch_all(&mut **self)).await;
        self.note(rows)
    }

    /// A connection that is at its end stays busy: it is closed when it is dropped.
    fn note<T>(&mut self, result: Result<T, sqlx::Error>) -> Result<T, sqlx::Error> {
        self.is_busy = result.as_ref().is_err_and(ends_connection);
        result
    }

    fn give_back_after<T>(self, result: Result<T, sqlx::Error>) -> Result<T> {
        if self.is_busy {
            // The others are as old: the next caller shall not find them out one by one.
            self.pool.idle().clear();
            self.discard();
        } else {
            self.give_back();
        }
        result.map_err(from_sqlx)
    }

    fn give_back(mut self) {
        let commits = self.commits;
        if let Some(connection) = self.connection.take() {
            let since = Instant::now();
            self.pool.idle().push(Idle {
                connection,
                since,
                commits,
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
        if !self.in_transaction || self.is_busy {
            return;
        }
        let Some(connection) = self.connection.take() else {
            return;
        };
        let given_up = Self {
            connection: Some(connection),
            pool: Arc::clone(&self.pool),
            permit: self.permit.take(),
            idle_for: None,
            commits: self.commits,
            in_transaction: false,
            is_busy: false,
            patience: self.patience,
        };
        if let Ok(runtime) = Handle::try_current() {
            runtime.spawn(given_up.end("ROLLBACK"));
        }
    }
}

#[expect(
    clippy::expect_used,
    reason = "the connection is taken only by functions that own it"
)]
impl Deref for Pooled {
    type Target = MySqlConnection;

    fn deref(&self) -> &MySqlConnection {
        self.connection.as_ref().expect("a connection in use")
    }
}

#[expect(
    clippy::expect_used,
    reason = "the connection is taken only by functions that own it"
)]
impl DerefMut for Pooled {
    fn deref_mut(&mut self) -> &mut MySqlConnection {
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

/// A new connection, its session set up.
pub(super) async fn connect(
    options: &MySqlConnectOptions,
    session: &Session,
) -> Result<MySqlConnection, sqlx::Error> {
    let statements = AssertSqlSafe(session.statements.to_string());
    waited(CONNECT, async {
        let mut connection = MySqlConnection::connect_with(options).await?;
        #[cfg(target_os = "linux")]
        crate::store::nodelay::send_at_once(options.get_port());
        connection.execute(statements).await?;
        Ok(connection)
    })
    .await
}

/// Makes the driver, which counts transactions, count one for ever: what a handler begins is then a
/// savepoint of ours, and not a `BEGIN` that would commit it.
async fn counted(mut connection: MySqlConnection) -> Result<MySqlConnection, sqlx::Error> {
    let counting = async {
        std::mem::forget(connection.begin().await?);
        connection.execute("ROLLBACK").await
    };
    waited(CONNECT, counting).await?;
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
