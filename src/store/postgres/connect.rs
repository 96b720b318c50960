//! Opens a database on a server.

#![expect(
    clippy::wildcard_enum_match_arm,
    reason = "the driver's kinds of errors are many, and all others are alike here"
)]

use super::error::{from_sqlx, on_open};
use super::pool::{Pool, Pooled, connect};
use crate::domain::Timestamp;
use crate::store::{Error, Occupancy, Result, Setup};
use sqlx::migrate::Migrator;
use sqlx::postgres::{PgArguments, PgConnectOptions, PgConnection, PgRow};
use sqlx::query::Query;
use sqlx::{Connection, Postgres};
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;
use url::Url;

static MIGRATIONS: Migrator = sqlx::migrate!("migrations/postgres");

/// The oldest server that will do.
const NEEDED: &str = "PostgreSQL 13";
const NEEDED_NUMBER: u32 = 130_000;

/// How long a session may sit in a transaction without a statement, such as one of a process that
/// was stopped, before the server ends it.
const IDLE_IN_TRANSACTION: &str = "60s";

/// Statements of this crate, with those of the reconciliation; each connection prepares each of them
/// once.
const STATEMENTS: usize = 512;

/// How a database is opened.
#[derive(Clone)]
pub struct Options {
    /// `postgres://USER:PASSWORD@HOST:PORT/DATABASE`, with sqlx's parameters, such as `sslmode` and
    /// `sslrootcert`.
    pub url: String,
    /// How long a statement waits for a row that another transaction has locked.
    pub lock_timeout: Duration,
    /// How long a statement may take. The reconciliation and migrations may take longer.
    pub statement_timeout: Duration,
    /// Connections that are open at most.
    pub connections: u32,
}

/// Masks the password.
impl std::fmt::Debug for Options {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Options")
            .field("url", &masked(&self.url))
            .field("lock_timeout", &self.lock_timeout)
            .field("statement_timeout", &self.statement_timeout)
            .field("connections", &self.connections)
            .finish()
    }
}

/// A database on a server.
#[derive(Debug, Clone)]
pub struct Database {
    at: Arc<str>,
    pool: Arc<Pool>,
    skew: Arc<AtomicI64>,
}

impl Database {
    /// Opens a database whose schema is of this program's version.
    ///
    /// # Errors
    /// [`Error::Setup`] if the server does not answer, does not let the user in or is too old, or if
    /// the database is not there, has another schema or may not be written;
    /// [`Error::Unavailable`] if the server has no connection to spare, or only reads.
    pub async fn open(options: &Options) -> Result<Self> {
        let server = Server::of(options)?;
        let mut connection = server.connect().await?;
        server.check_schema(&mut connection).await?;
        server.check_rights(&mut connection).await?;
        Ok(server.database(options, connection))
    }

    /// Opens a database and brings its schema up to date. Returns the migrations that were applied.
    ///
    /// # Errors
    /// As [`Self::open`], but for an older schema.
    pub async fn migrate(options: &Options) -> Result<(Self, Vec<i64>)> {
        const UNHURRIED: &str = "SET statement_timeout = 0";
        let server = Server::of(options)?;
        let mut connection = server.connect().await?;
        let before = server.applied(&mut connection).await?;
        if let Some(&found) = before.last()
            && found > newest()
        {
            return Err(server.newer(found));
        }
        let unhurried = sqlx::raw_sql(UNHURRIED).execute(&mut connection).await;
        unhurried.map_err(from_sqlx)?;
        let migrated = MIGRATIONS.run(&mut connection).await;
        migrated.map_err(|error| server.migrate_error(error))?;
        let after = server.applied(&mut connection).await?;
        let new = after.into_iter().filter(|v| !before.contains(v)).collect();
        // Another connection for the store: this one has no timeout.
        connection.close().await.map_err(from_sqlx)?;
        let mut connection = server.connect().await?;
        server.check_rights(&mut connection).await?;
        Ok((server.database(options, connection), new))
    }

    /// Which database it is: its URL, with the password masked.
    #[must_use]
    pub fn at(&self) -> &str {
        &self.at
    }

    /// Moves this process's view of the clock, for tests that let time pass.
    pub fn advance(&self, by: Duration) {
        let by = i64::try_from(by.as_millis()).unwrap_or(i64::MAX);
        self.skew.fetch_add(by, Ordering::Relaxed);
    }

    /// By how many milliseconds this process's view of the clock was moved.
    pub(super) fn skew(&self) -> i64 {
        self.skew.load(Ordering::Relaxed)
    }

    /// The server's clock.
    pub(super) async fn now(&self) -> Result<Timestamp> {
        let rows = self.fetch(sqlx::query(NOW).bind(self.skew())).await?;
        read_now(&rows)
    }

    /// Begins a transaction.
    pub(super) async fn begin(&self, begin: &'static str) -> Result<Pooled> {
        self.pool.begin(begin).await
    }

    /// Runs one statement and returns how many rows it wrote.
    pub(super) async fn execute(&self, statement: Query<'_, Postgres, PgArguments>) -> Result<u64> {
        self.pool.execute(statement).await
    }

    /// Runs one statement and returns its rows.
    pub(super) async fn fetch(
        &self,
        statement: Query<'_, Postgres, PgArguments>,
    ) -> Result<Vec<PgRow>> {
        self.pool.fetch(statement).await
    }

    /// Runs one statement that goes through whole tables, and returns its rows. It may take as long as
    /// it takes, and the server chooses the plan.
    pub(super) async fn scan(
        &self,
        statement: Query<'_, Postgres, PgArguments>,
    ) -> Result<Vec<PgRow>> {
        const BEGIN: &str = "
            BEGIN ISOLATION LEVEL READ COMMITTED READ ONLY;
            SET LOCAL statement_timeout = 0;
            SET LOCAL plan_cache_mode = force_custom_plan;
            SET LOCAL enable_seqscan = on;
            SET LOCAL enable_hashjoin = on;
            SET LOCAL enable_mergejoin = on";
        let mut tx = self.begin(BEGIN).await?;
        tx.be_patient();
        let rows = tx.fetch(statement).await?;
        tx.end("COMMIT").await?;
        Ok(rows)
    }

    /// How many connections are open.
    pub(super) fn occupancy(&self) -> Occupancy {
        self.pool.occupancy()
    }

    /// How many statements were sent.
    pub(super) fn statements(&self) -> u64 {
        self.pool.statements()
    }

    /// Waits for what is under way and closes all connections.
    pub async fn close(&self) {
        self.pool.close().await;
    }
}

/// Reads the server's clock, moved by `$1` milliseconds.
pub(super) const NOW: &str =
    "SELECT floor(extract(epoch FROM clock_timestamp()) * 1000)::bigint + $1";

pub(super) fn read_now(rows: &[PgRow]) -> Result<Timestamp> {
    let [row] = rows else {
        return Err(Error::Unavailable("the clock gave no time".into()));
    };
    super::set::Reader::new(row, "the clock", 0)
        .get(0)
        .map(Timestamp)
}

/// A server with a user and a database, and what is known before a connection is there.
struct Server {
    at: String,
    options: PgConnectOptions,
}

impl Server {
    fn of(options: &Options) -> Result<Self> {
        let at = masked(&options.url);
        let wrong = |problem: String| {
            let at = at.clone();
            Setup::Url { at, problem }
        };
        let known = ["postgres://", "postgresql://"];
        if !known.iter().any(|scheme| options.url.starts_with(scheme)) {
            return Err(wrong("it must begin with postgres://".into()).into());
        }
        let parsed: PgConnectOptions = options.url.parse().map_err(|error: sqlx::Error| {
            let problem = match error {
                sqlx::Error::Configuration(error) => error.to_string(),
                other => other.to_string(),
            };
            wrong(problem)
        })?;
        if let Some(name) = unknown_parameter(&options.url) {
            return Err(wrong(format!("there is no parameter {name}")).into());
        }
        let name = parsed.get_application_name().unwrap_or("orderonce");
        let name = name.to_owned();
        let connect = parsed
            .application_name(&name)
            .statement_cache_capacity(STATEMENTS)
            .options(session(options));
        Ok(Self {
            at,
            options: connect,
        })
    }

    /// A connection to a server that can be used.
    async fn connect(&self) -> Result<PgConnection> {
        const STATE: &str = "SELECT current_setting('server_encoding'), pg_is_in_recovery()";
        let connection = connect(&self.options).await;
        let mut connection = connection.map_err(|error| self.on_open(error))?;
        let number = connection.server_version_num().unwrap_or(u32::MAX);
        if number < NEEDED_NUMBER {
            return Err(Error::Setup(Setup::ServerTooOld {
                at: self.at.clone(),
                found: format!("PostgreSQL {}.{}", number / 10_000, number % 10_000),
                needed: NEEDED,
            }));
        }
        let (encoding, reads_only): (String, bool) = sqlx::query_as(STATE)
            .fetch_one(&mut connection)
            .await
            .map_err(|error| self.on_open(error))?;
        if encoding != "UTF8" {
            let problem =
                format!("the database's encoding is {encoding}, create one with ENCODING 'UTF8'");
            let at = self.at.clone();
            return Err(Error::Setup(Setup::Url { at, problem }));
        }
        if reads_only {
            return Err(Error::Unavailable(format!(
                "the server at {} is a standby, which only reads",
                self.at
            )));
        }
        Ok(connection)
    }

    fn database(self, options: &Options, first: PgConnection) -> Database {
        let timeout = options.statement_timeout;
        let pool = Pool::new(self.options, options.connections, timeout, first);
        Database {
            at: self.at.into(),
            pool: Arc::new(pool),
            skew: Arc::default(),
        }
    }

    async fn applied(&self, connection: &mut PgConnection) -> Result<Vec<i64>> {
        const TABLE: &str = "SELECT to_regclass('_sqlx_migrations') IS NOT NULL";
        const APPLIED: &str = "SELECT version FROM _sqlx_migrations WHERE success ORDER BY version";
        let is_there: bool = sqlx::query_scalar(TABLE)
            .fetch_one(&mut *connection)
            .await
            .map_err(|error| self.on_open(error))?;
        if !is_there {
            return Ok(Vec::new());
        }
        sqlx::query_scalar(APPLIED)
            .fetch_all(connection)
            .await
            .map_err(|error| self.on_open(error))
    }

    async fn check_schema(&self, connection: &mut PgConnection) -> Result<()> {
        let found = self.applied(connection).await?.last().copied().unwrap_or(0);
        let needed = newest();
        match found.cmp(&needed) {
            std::cmp::Ordering::Equal => Ok(()),
            std::cmp::Ordering::Greater => Err(self.newer(found)),
            std::cmp::Ordering::Less => Err(Setup::OlderSchema {
                at: self.at.clone(),
                found,
                needed,
            }
            .into()),
        }
    }

    /// A right that is missing shows at the start, not at the first order that is cancelled.
    async fn check_rights(&self, connection: &mut PgConnection) -> Result<()> {
        const MISSING: &str = "
            SELECT wanted.privilege || ' on table ' || relation.relname
            FROM pg_class AS relation
            CROSS JOIN unnest(ARRAY['SELECT', 'INSERT', 'UPDATE', 'DELETE']) AS wanted (privilege)
            WHERE relation.oid IN (
                    to_regclass('orders'), to_regclass('order_line'), to_regclass('order_transition'),
                    to_regclass('payment'), to_regclass('refund'), to_regclass('stock'),
                    to_regclass('reservation'), to_regclass('deduction_flow'), to_regclass('account'),
                    to_regclass('account_flow'), to_regclass('idempotent_record'),
                    to_regclass('parked_event'), to_regclass('outbox'), to_regclass('dead_letter'), to_regclass('callback'),
                    to_regclass('lease'), to_regclass('retention'), to_regclass('repair'))
                AND NOT has_table_privilege(relation.oid, wanted.privilege)
            ORDER BY 1
            LIMIT 1";
        let missing: Option<String> = sqlx::query_scalar(MISSING)
            .fetch_optional(connection)
            .await
            .map_err(|error| self.on_open(error))?;
        match missing {
            None => Ok(()),
            Some(missing) => Err(Error::Setup(Setup::Permission {
                at: self.at.clone(),
                user: self.options.get_username().to_owned(),
                problem: format!("no {missing}"),
            })),
        }
    }

    fn newer(&self, found: i64) -> Error {
        Error::Setup(Setup::NewerSchema {
            at: self.at.clone(),
            found,
            known: newest(),
        })
    }

    fn on_open(&self, error: sqlx::Error) -> Error {
        on_open(&self.at, &self.options, error)
    }

    fn migrate_error(&self, error: sqlx::migrate::MigrateError) -> Error {
        use sqlx::migrate::MigrateError as M;
        if let M::VersionMismatch(version) = error {
            return Error::Setup(Setup::ChangedMigration {
                at: self.at.clone(),
                version,
            });
        }
        if let M::VersionMissing(found) = error {
            return self.newer(found);
        }
        if let M::Execute(error) | M::ExecuteMigration(error, _) = error {
            return self.on_open(error);
        }
        Error::Unavailable(error.to_string())
    }
}

/// What every session is set to.
///
/// All statements of the workers find their rows by an index, however small a table still is: a plan
/// that reads the whole of a small table would be kept while the table grows.
fn session(options: &Options) -> [(&'static str, String); 7] {
    let milliseconds = |duration: Duration| {
        let number = i32::try_from(duration.as_millis()).unwrap_or(i32::MAX);
        // 0 would mean for ever.
        number.max(1).to_string()
    };
    [
        ("lock_timeout", milliseconds(options.lock_timeout)),
        ("statement_timeout", milliseconds(options.statement_timeout)),
        (
            "idle_in_transaction_session_timeout",
            IDLE_IN_TRANSACTION.into(),
        ),
        ("plan_cache_mode", "force_generic_plan".into()),
        ("enable_seqscan", "off".into()),
        ("enable_hashjoin", "off".into()),
        ("enable_mergejoin", "off".into()),
    ]
}

/// A parameter that sqlx would pass over. One that is misspelt may be the one that asks for TLS.
fn unknown_parameter(url: &str) -> Option<String> {
    const KNOWN: [&str; 18] = [
        "sslmode",
        "ssl-mode",
        "sslrootcert",
        "ssl-root-cert",
        "ssl-ca",
        "sslcert",
        "ssl-cert",
        "sslkey",
        "ssl-key",
        "statement-cache-capacity",
        "host",
        "hostaddr",
        "port",
        "dbname",
        "user",
        "password",
        "application_name",
        "options",
    ];
    let url = Url::parse(url).ok()?;
    let mut names = url.query_pairs().map(|(name, _)| name);
    names
        .find(|name| !KNOWN.contains(&&**name) && !name.starts_with("options["))
        .map(std::borrow::Cow::into_owned)
}

/// The newest migration of this program.
fn newest() -> i64 {
    MIGRATIONS.iter().map(|m| m.version).max().unwrap_or(0)
}

/// A URL with its password masked, wherever it stands in it.
fn masked(url: &str) -> String {
    const MASK: &str = "***";
    let Ok(mut parsed) = Url::parse(url) else {
        // What is no URL may hold a password anywhere before the host.
        let start = url.find("://").map_or(0, |at| at + "://".len());
        let (scheme, rest) = url.split_at(start);
        return match rest.rsplit_once('@') {
            Some((_, rest)) => format!("{scheme}{MASK}@{rest}"),
            None => url.to_owned(),
        };
    };
    if parsed.password().is_some() {
        // Refused only for a URL without a host, which has no password.
        let _ = parsed.set_password(Some(MASK));
    }
    if parsed.query_pairs().any(|(name, _)| name == "password") {
        let pairs = parsed.query_pairs().into_owned();
        let shown = pairs.map(|(name, value)| {
            let hides = name == "password";
            (name, if hides { MASK.to_owned() } else { value })
        });
        let shown: Vec<(String, String)> = shown.collect();
        parsed.query_pairs_mut().clear().extend_pairs(shown);
    }
    parsed.to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_password_is_shown() {
        for (url, shown) in [
            (
                "postgres://app:hunter2@db:5432/shop?sslmode=require",
                "postgres://app:***@db:5432/shop?sslmode=require",
            ),
            ("postgres://app@db/shop", "postgres://app@db/shop"),
            (
                "postgres://db/shop?user=app&password=hunter2",
                "postgres://db/shop?user=app&password=***",
            ),
            (
                "postgres://app:hun@ter2@db:x/shop",
                "postgres://***@db:x/shop",
            ),
            ("postgres:// app:hunter2@db", "postgres://%20app:***@db"),
        ] {
            assert_eq!(masked(url), shown);
            let options = Options {
                url: url.to_owned(),
                lock_timeout: Duration::ZERO,
                statement_timeout: Duration::ZERO,
                connections: 1,
            };
            assert!(!format!("{options:?}").contains("hunter2"));
        }
    }
}
