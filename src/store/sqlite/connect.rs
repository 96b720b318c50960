//! Opens the file: one connection that writes, a few that read.

use super::error::{from_sqlx, on_open};
use crate::domain::Timestamp;
use crate::store::{Error, Result, Setup};
use sqlx::migrate::Migrator;
use sqlx::sqlite::{
    SqliteConnectOptions, SqliteJournalMode, SqlitePool, SqlitePoolOptions, SqliteSynchronous,
};
use sqlx::{Connection, Sqlite, Transaction};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

static MIGRATIONS: Migrator = sqlx::migrate!("migrations/sqlite");

/// How a file is opened.
#[derive(Debug, Clone)]
pub struct Options {
    /// The file.
    pub path: PathBuf,
    /// How long a transaction waits for another process that writes.
    pub busy_timeout: Duration,
    /// Connections that read.
    pub readers: u32,
}

/// An open SQLite file: WAL, `synchronous = FULL`, one writer. The store and the embedded queue of
/// a process share it, so that they queue for the writer instead of polling the file's lock.
#[derive(Debug, Clone)]
pub struct Database {
    path: Arc<PathBuf>,
    writer: SqlitePool,
    readers: SqlitePool,
    skew: Arc<AtomicI64>,
}

impl Database {
    /// Opens a file whose schema is of this program's version.
    ///
    /// # Errors
    /// [`Error::Setup`] if the file is not there, is no database, cannot be written or has another
    /// schema; [`Error::Unavailable`] if another process has locked it.
    pub async fn open(options: &Options) -> Result<Self> {
        check_path(&options.path)?;
        if !options.path.exists() {
            return Err(Setup::Missing(options.path.clone()).into());
        }
        let database = Self::connect(options, false).await?;
        database.check_schema().await?;
        Ok(database)
    }

    /// Opens a file, creates it if it is not there, and brings its schema up to date. Returns the
    /// migrations that were applied.
    ///
    /// # Errors
    /// As [`Self::open`], but for a file that is not there or has an older schema.
    pub async fn migrate(options: &Options) -> Result<(Self, Vec<i64>)> {
        check_path(&options.path)?;
        let database = Self::connect(options, true).await?;
        let before = database.applied().await?;
        if let Some(&found) = before.last()
            && found > newest()
        {
            return Err(database.newer(found));
        }
        MIGRATIONS
            .run(&database.writer)
            .await
            .map_err(|error| database.migrate_error(error))?;
        let after = database.applied().await?;
        let new = after.into_iter().filter(|v| !before.contains(v)).collect();
        Ok((database, new))
    }

    async fn connect(options: &Options, create: bool) -> Result<Self> {
        let base = SqliteConnectOptions::new()
            .filename(&options.path)
            .busy_timeout(options.busy_timeout)
            .foreign_keys(false)
            .statement_cache_capacity(256);
        let write = base
            .clone()
            .create_if_missing(create)
            .journal_mode(SqliteJournalMode::Wal)
            .synchronous(SqliteSynchronous::Full)
            .pragma("wal_autocheckpoint", "4000")
            .pragma("journal_size_limit", "67108864");
        let opened = |error| on_open(&options.path, error);
        // SQLite rolls back by itself when the disk is full, and the driver then believes for ever
        // that it is in a transaction: such a connection is replaced.
        let writer = pool(1)
            .before_acquire(|connection, _| {
                let is_idle = !connection.is_in_transaction();
                Box::pin(async move { Ok(is_idle) })
            })
            .connect_with(write)
            .await
            .map_err(opened)?;
        // A file that cannot be written shows it only when it is written to.
        let mut probe = writer.begin_with("BEGIN IMMEDIATE").await.map_err(opened)?;
        sqlx::query("CREATE TABLE orderonce_probe (x)")
            .execute(&mut *probe)
            .await
            .map_err(opened)?;
        probe.rollback().await.map_err(opened)?;
        let readers = pool(options.readers.max(1))
            .connect_with(base.read_only(true))
            .await
            .map_err(opened)?;
        Ok(Self {
            path: Arc::new(options.path.clone()),
            writer,
            readers,
            skew: Arc::default(),
        })
    }

    /// The path of the file.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The database's clock, which for a file is its host's.
    #[must_use]
    pub fn now(&self) -> Timestamp {
        let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
        let now = i64::try_from(since.unwrap_or_default().as_millis()).unwrap_or(i64::MAX);
        Timestamp(now.saturating_add(self.skew.load(Ordering::Relaxed)))
    }

    /// Moves this process's view of the clock, for tests that let time pass.
    pub fn advance(&self, by: Duration) {
        let by = i64::try_from(by.as_millis()).unwrap_or(i64::MAX);
        self.skew.fetch_add(by, Ordering::Relaxed);
    }

    /// Begins a transaction that has the write lock from the start.
    pub(crate) async fn begin(&self) -> Result<Transaction<'static, Sqlite>> {
        let begun = self.writer.begin_with("BEGIN IMMEDIATE").await;
        begun.map_err(from_sqlx)
    }

    /// The connection that writes.
    pub(super) fn writer(&self) -> &SqlitePool {
        &self.writer
    }

    /// Connections that only read.
    pub(crate) fn readers(&self) -> &SqlitePool {
        &self.readers
    }

    /// Closes all connections.
    pub async fn close(&self) {
        self.readers.close().await;
        self.writer.close().await;
    }

    async fn applied(&self) -> Result<Vec<i64>> {
        const TABLE: &str = "SELECT count(*) FROM sqlite_schema WHERE name = '_sqlx_migrations'";
        const APPLIED: &str = "SELECT version FROM _sqlx_migrations WHERE success ORDER BY version";
        let tables: i64 = sqlx::query_scalar(TABLE)
            .fetch_one(&self.writer)
            .await
            .map_err(from_sqlx)?;
        if tables == 0 {
            return Ok(Vec::new());
        }
        sqlx::query_scalar(APPLIED)
            .fetch_all(&self.writer)
            .await
            .map_err(from_sqlx)
    }

    async fn check_schema(&self) -> Result<()> {
        let found = self.applied().await?.last().copied().unwrap_or(0);
        let needed = newest();
        match found.cmp(&needed) {
            std::cmp::Ordering::Equal => Ok(()),
            std::cmp::Ordering::Greater => Err(self.newer(found)),
            std::cmp::Ordering::Less => Err(Setup::OlderSchema {
                at: self.path.display().to_string(),
                found,
                needed,
            }
            .into()),
        }
    }

    fn newer(&self, found: i64) -> Error {
        Error::Setup(Setup::NewerSchema {
            at: self.path.display().to_string(),
            found,
            known: newest(),
        })
    }

    fn migrate_error(&self, error: sqlx::migrate::MigrateError) -> Error {
        use sqlx::migrate::MigrateError as M;
        if let M::VersionMismatch(version) = error {
            return Error::Setup(Setup::ChangedMigration {
                at: self.path.display().to_string(),
                version,
            });
        }
        if let M::VersionMissing(found) = error {
            return self.newer(found);
        }
        if let M::Execute(error) | M::ExecuteMigration(error, _) = error {
            return on_open(&self.path, error);
        }
        Error::Unavailable(error.to_string())
    }
}

/// The newest migration of this program.
fn newest() -> i64 {
    MIGRATIONS.iter().map(|m| m.version).max().unwrap_or(0)
}

fn pool(connections: u32) -> SqlitePoolOptions {
    SqlitePoolOptions::new()
        .max_connections(connections)
        .min_connections(1)
        .acquire_timeout(Duration::from_secs(60))
        .idle_timeout(None)
        .max_lifetime(None)
        .test_before_acquire(false)
}

fn check_path(path: &Path) -> Result<(), Setup> {
    if path.is_dir() {
        return Err(Setup::Directory(path.to_owned()));
    }
    match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() && !parent.is_dir() => {
            Err(Setup::NoDirectory(parent.to_owned()))
        }
        _ => Ok(()),
    }
}
