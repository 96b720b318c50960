//! Opens the database: a pool of connections whose sessions are all set up alike.

use super::error::{Place, on_open, problem_of};
use super::pool::{Pool, Pooled, Session, UNHURRIED, connect};
use super::set::Reader;
use crate::domain::Timestamp;
use crate::store::{Error, Occupancy, Result, Setup};
use sqlx::migrate::Migrator;
use sqlx::mysql::{MySqlArguments, MySqlConnectOptions, MySqlConnection, MySqlRow};
use sqlx::query::Query;
use sqlx::{ConnectOptions, Connection, Executor, MySql};
use std::fmt;
use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::time::Duration;
use url::Url;

static MIGRATIONS: Migrator = sqlx::migrate!("migrations/mysql");

/// The oldest servers that have `JSON_TABLE`, and what of it the statements use.
const NEEDED: &str = "MySQL 8.0.19 or MariaDB 10.6";

/// How long the server keeps a session that is silent: so long does a transaction outlive a host
/// that went away without a word.
const SILENT: Duration = Duration::from_secs(300);

/// Statements of this crate, with those of the reconciliation; each connection prepares each of them
/// once.
const STATEMENTS: usize = 512;

/// How a database is opened.
#[derive(Clone)]
pub struct Options {
    /// `mysql://USER:PASSWORD@HOST:PORT/DATABASE`, or `mariadb://`. TLS is asked for by
    /// `?ssl-mode=VERIFY_IDENTITY&ssl-ca=FILE`.
    pub url: String,
    /// How long a statement waits for a row that another transaction has locked, in whole seconds,
    /// at least 1.
    pub lock_timeout: Duration,
    /// How long a statement may run; zero for no limit. MySQL limits only those that read.
    pub statement_timeout: Duration,
    /// Connections, at most.
    pub connections: u32,
}

impl fmt::Debug for Options {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Options")
            .field("url", &masked(&self.url))
            .field("lock_timeout", &self.lock_timeout)
            .field("statement_timeout", &self.statement_timeout)
            .field("connections", &self.connections)
            .finish()
    }
}

/// An open database.
#[derive(Debug, Clone)]
pub struct Database {
    at: Arc<str>,
    pool: Arc<Pool>,
    skew: Arc<AtomicI64>,
    tokens: Arc<Tokens>,
    /// Bytes that the server takes in one statement.
    packet: u64,
}

impl Database {
    /// The database's clock, in milliseconds. Neither the session's time zone nor the year 2038
    /// matters to it.
    pub(super) const CLOCK: &str =
        "SELECT TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6)) DIV 1000";

    /// Opens a database whose schema is of this program's version.
    ///
    /// # Errors
    /// [`Error::Setup`] if the URL cannot be used, no server answers, it does not let the user in,
    /// the user lacks a right, or the database is not there or has another schema;
    /// [`Error::Unavailable`] if the server is in trouble.
    pub async fn open(options: &Options) -> Result<Self> {
        let target = Target::new(options)?;
        let mut connection = target.connect().await?;
        target.check_schema(&mut connection).await?;
        target.check_rights(&mut connection).await?;
        target.database(options, connection).await
    }

    /// Opens a database and brings its schema up to date. Returns the migrations that were applied.
    ///
    /// # Errors
    /// As [`Self::open`], but for a schema that is older or not there.
    pub async fn migrate(options: &Options) -> Result<(Self, Vec<i64>)> {
        let target = Target::new(options)?;
        let mut connection = target.connect().await?;
        let applied = target.migrate(&mut connection).await?;
        target.check_rights(&mut connection).await?;
        // Another connection for the store: this one has a lock and no timeout.
        drop(connection.close().await);
        let connection = target.connect().await?;
        let database = target.database(options, connection).await?;
        Ok((database, applied))
    }

    /// The URL, password masked.
    #[must_use]
    pub fn at(&self) -> &str {
        &self.at
    }

    /// The database's clock.
    ///
    /// # Errors
    /// [`Error::Unavailable`] if the server is away.
    pub async fn now(&self) -> Result<Timestamp> {
        let rows = self.fetch(sqlx::query(Self::CLOCK)).await?;
        self.moved(&rows)
    }

    /// What [`Self::CLOCK`] has given, moved as tests wish.
    pub(super) fn moved(&self, rows: &[MySqlRow]) -> Result<Timestamp> {
        let row = rows.first().ok_or_else(|| Error::Corrupt {
            table: "a result",
            problem: "the clock gave no row".into(),
        })?;
        let now: i64 = Reader::new(row, "a result", 0).get(0)?;
        Ok(Timestamp(
            now.saturating_add(self.skew.load(Ordering::Relaxed)),
        ))
    }

    /// Moves this process's view of the clock, for tests that let time pass.
    pub fn advance(&self, by: Duration) {
        let by = i64::try_from(by.as_millis()).unwrap_or(i64::MAX);
        self.skew.fetch_add(by, Ordering::Relaxed);
    }

    /// Begins a transaction.
    ///
    /// Without `autocommit` nothing is committed by itself, not even after the server has rolled the
    /// transaction back; the savepoint tells whether it did.
    pub(super) async fn begin(&self) -> Result<Pooled> {
        const BEGIN: &str = "SET autocommit = 0; START TRANSACTION; SAVEPOINT orderonce_0";
        self.pool.begin(BEGIN).await
    }

    /// Begins a transaction that only reads, all of it from one state of the database.
    pub(super) async fn snapshot(&self) -> Result<Pooled> {
        const SNAPSHOT: &str = "
            SET TRANSACTION ISOLATION LEVEL REPEATABLE READ;
            START TRANSACTION WITH CONSISTENT SNAPSHOT, READ ONLY";
        self.pool.begin(SNAPSHOT).await
    }

    /// Runs one statement and returns its rows.
    pub(super) async fn fetch(
        &self,
        statement: Query<'_, MySql, MySqlArguments>,
    ) -> Result<Vec<MySqlRow>> {
        self.pool.fetch(statement).await
    }

    /// Runs one statement as a transaction of its own; returns how many rows it wrote.
    pub(super) async fn execute(&self, statement: Query<'_, MySql, MySqlArguments>) -> Result<u64> {
        self.pool.execute(statement).await
    }

    /// Runs `before` and a statement that goes through whole tables, and returns its rows. It may take
    /// as long as it takes.
    pub(super) async fn scan(
        &self,
        before: Query<'_, MySql, MySqlArguments>,
        statement: Query<'_, MySql, MySqlArguments>,
    ) -> Result<Vec<MySqlRow>> {
        self.pool.scan(before, statement).await
    }

    /// Refuses a statement with so many bytes of parameters that the server would not take it. It would
    /// say so and close the connection, and a client that is still writing often hears only of the
    /// latter, which looks as if the server were away.
    pub(super) fn fits(&self, bytes: usize) -> Result<()> {
        /// What a statement has beside long parameters.
        const MARGIN: u64 = 4096;
        let packet = self.packet;
        let needed = u64::try_from(bytes)
            .unwrap_or(u64::MAX)
            .saturating_add(MARGIN);
        if needed <= packet {
            return Ok(());
        }
        Err(Error::Refused(format!(
            "{bytes} bytes are more than the server takes in one statement (max_allowed_packet is {packet})"
        )))
    }

    /// Bytes that no other claim has.
    pub(super) fn next_token(&self) -> [u8; 16] {
        self.tokens.next()
    }

    /// How many connections are open.
    pub(super) fn occupancy(&self) -> Occupancy {
        self.pool.occupancy()
    }

    /// How many statements were sent.
    pub(super) fn statements(&self) -> u64 {
        self.pool.statements()
    }

    /// Closes all connections.
    pub async fn close(&self) {
        self.pool.close().await;
    }
}

/// The statements that set a session up. Each of the two servers reads only its own comment.
fn session(options: &Options) -> String {
    let seconds = |time: Duration| time.as_secs() + u64::from(time.subsec_nanos() > 0);
    let lock = seconds(options.lock_timeout).max(1);
    let statement = options.statement_timeout;
    let (millis, fraction) = (statement.as_millis(), statement.as_secs_f64());
    let silent = SILENT.as_secs();
    format!(
        "SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED;
        SET SESSION
            sql_mode = 'STRICT_ALL_TABLES,ERROR_FOR_DIVISION_BY_ZERO,NO_ENGINE_SUBSTITUTION,PIPES_AS_CONCAT',
            innodb_lock_wait_timeout = {lock},
            lock_wait_timeout = {lock},
            wait_timeout = {silent}
            /*!80000 , max_execution_time = {millis} */
            /*M! , max_statement_time = {fraction} */"
    )
}

/// What a URL leads to.
struct Target {
    place: Place,
    session: Session,
    options: MySqlConnectOptions,
}

impl Target {
    fn new(options: &Options) -> Result<Self> {
        let at = masked(&options.url);
        let wrong = |problem: String| {
            let at = at.clone();
            Error::Setup(Setup::Url { at, problem })
        };
        let url = Url::parse(&options.url)
            .map_err(|error| wrong(format!("it cannot be read: {error}")))?;
        if !matches!(url.scheme(), "mysql" | "mariadb") {
            return Err(wrong(format!(
                "its scheme is {}, expected mysql or mariadb",
                url.scheme()
            )));
        }
        let session = Session::new(&session(options), options.statement_timeout);
        let options = MySqlConnectOptions::from_url(&url)
            .map_err(|error| wrong(problem_of(&error)))?
            .charset("utf8mb4")
            .timezone(Some("+00:00".to_owned()))
            .pipes_as_concat(false)
            .no_engine_substitution(false)
            .statement_cache_capacity(STATEMENTS);
        let database = options
            .get_database()
            .ok_or_else(|| wrong("it names no database, append /NAME".to_owned()))?
            .to_owned();
        let place = Place {
            user: options.get_username().to_owned(),
            database,
            at,
        };
        Ok(Self {
            place,
            session,
            options,
        })
    }

    async fn connect(&self) -> Result<MySqlConnection> {
        let connection = connect(&self.options, &self.session).await;
        let mut connection = connection.map_err(|error| on_open(&self.place, error))?;
        self.check_version(&mut connection).await?;
        Ok(connection)
    }

    async fn database(self, options: &Options, mut first: MySqlConnection) -> Result<Database> {
        const PACKET: &str = "SELECT CAST(@@max_allowed_packet AS UNSIGNED)";
        let packet: u64 = sqlx::query_scalar(PACKET)
            .fetch_one(&mut first)
            .await
            .map_err(|error| on_open(&self.place, error))?;
        let pool = Pool::new(self.options, self.session, options.connections, first);
        Ok(Database {
            at: self.place.at.into(),
            pool: Arc::new(pool.await?),
            skew: Arc::default(),
            tokens: Arc::default(),
            packet,
        })
    }

    async fn check_version(&self, connection: &mut MySqlConnection) -> Result<()> {
        const VERSION: &str = "SELECT VERSION()";
        let found: String = sqlx::query_scalar(VERSION)
            .fetch_one(connection)
            .await
            .map_err(|error| on_open(&self.place, error))?;
        if is_new_enough(&found) {
            return Ok(());
        }
        let at = self.place.at.clone();
        let needed = NEEDED;
        Err(Setup::ServerTooOld { at, found, needed }.into())
    }

    /// The migrations that were applied to their end.
    async fn applied(&self, connection: &mut MySqlConnection) -> Result<Vec<i64>> {
        const TABLE: &str = "
            SELECT COUNT(*) FROM information_schema.tables
            WHERE table_schema = DATABASE() AND table_name = '_sqlx_migrations'";
        const APPLIED: &str = "
            SELECT version, CAST(success AS SIGNED) FROM _sqlx_migrations ORDER BY version";
        let failed = |error| on_open(&self.place, error);
        let tables: i64 = sqlx::query_scalar(TABLE)
            .fetch_one(&mut *connection)
            .await
            .map_err(failed)?;
        if tables == 0 {
            return Ok(Vec::new());
        }
        let rows: Vec<(i64, i64)> = sqlx::query_as(APPLIED)
            .fetch_all(connection)
            .await
            .map_err(failed)?;
        if let Some(&(version, _)) = rows.iter().find(|(_, success)| *success == 0) {
            return Err(self.interrupted(version));
        }
        Ok(rows.into_iter().map(|(version, _)| version).collect())
    }

    async fn check_schema(&self, connection: &mut MySqlConnection) -> Result<()> {
        let applied = self.applied(connection).await?;
        let found = applied.last().copied().unwrap_or(0);
        let needed = newest();
        match found.cmp(&needed) {
            std::cmp::Ordering::Equal => Ok(()),
            std::cmp::Ordering::Greater => Err(self.newer(found)),
            std::cmp::Ordering::Less => {
                let at = self.place.at.clone();
                Err(Setup::OlderSchema { at, found, needed }.into())
            }
        }
    }

    /// A right to write that is missing shows only when something is written.
    async fn check_rights(&self, connection: &mut MySqlConnection) -> Result<()> {
        // A row of this connection's own: on a common one, processes that start together would wait
        // for each other, and end in a deadlock.
        const PROBE: [&str; 3] = [
            "INSERT INTO lease (name, holder, fence, until) VALUES (CONCAT('?', CONNECTION_ID()), '', 0, 0)",
            "UPDATE lease SET until = 1 WHERE name = CONCAT('?', CONNECTION_ID())",
            "DELETE FROM lease WHERE name = CONCAT('?', CONNECTION_ID())",
        ];
        let failed = |error| on_open(&self.place, error);
        let mut transaction = connection.begin().await.map_err(failed)?;
        for statement in PROBE {
            let done = transaction.execute(statement).await;
            done.map_err(failed)?;
        }
        transaction.rollback().await.map_err(failed)
    }

    async fn migrate(&self, connection: &mut MySqlConnection) -> Result<Vec<i64>> {
        // The driver takes a lock too, in a way that MariaDB does not know.
        const LOCK: &str = "SELECT GET_LOCK(CONCAT('orderonce ', MD5(DATABASE())), ?)";
        let failed = |error| on_open(&self.place, error);
        connection.execute(UNHURRIED).await.map_err(failed)?;
        let locked: Option<i64> = sqlx::query_scalar(LOCK)
            .bind(60)
            .fetch_one(&mut *connection)
            .await
            .map_err(failed)?;
        if locked != Some(1) {
            let at = &self.place.at;
            return Err(Error::Unavailable(format!(
                "another process is migrating {at}, try again when it is done"
            )));
        }
        let before = self.applied(connection).await?;
        if let Some(&found) = before.last()
            && found > newest()
        {
            return Err(self.newer(found));
        }
        let migrated = MIGRATIONS.run(&mut *connection).await;
        migrated.map_err(|error| self.migrate_error(error))?;
        let after = self.applied(connection).await?;
        Ok(after.into_iter().filter(|v| !before.contains(v)).collect())
    }

    fn newer(&self, found: i64) -> Error {
        let (at, known) = (self.place.at.clone(), newest());
        Error::Setup(Setup::NewerSchema { at, found, known })
    }

    fn interrupted(&self, version: i64) -> Error {
        let at = self.place.at.clone();
        Error::Setup(Setup::InterruptedMigration { at, version })
    }

    fn migrate_error(&self, error: sqlx::migrate::MigrateError) -> Error {
        use sqlx::migrate::MigrateError as M;
        if let M::VersionMismatch(version) = error {
            let at = self.place.at.clone();
            return Error::Setup(Setup::ChangedMigration { at, version });
        }
        if let M::VersionMissing(found) = error {
            return self.newer(found);
        }
        if let M::Dirty(version) = error {
            return self.interrupted(version);
        }
        if let M::Execute(error) | M::ExecuteMigration(error, _) = error {
            return on_open(&self.place, error);
        }
        Error::Unavailable(format!("{}: {error}", self.place.at))
    }
}

/// The newest migration of this program.
fn newest() -> i64 {
    MIGRATIONS.iter().map(|m| m.version).max().unwrap_or(0)
}

/// Whether a server of this version, as it says itself, has all that the statements need.
fn is_new_enough(version: &str) -> bool {
    let numbers: Vec<u32> = version
        .split(|c: char| !c.is_ascii_digit())
        .map_while(|number| number.parse().ok())
        .take(3)
        .collect();
    let needed: &[u32] = if version.to_ascii_lowercase().contains("mariadb") {
        &[10, 6]
    } else {
        &[8, 0, 19]
    };
    numbers.as_slice() >= needed
}

/// The URL with `***` in place of its password, even if it is malformed.
fn masked(url: &str) -> String {
    let start = url.find("://").map_or(0, |at| at + "://".len());
    let (scheme, rest) = url.split_at(start);
    let login = rest.rsplit_once('@');
    match login.and_then(|(login, host)| Some((login.split_once(':')?.0, host))) {
        Some((user, host)) => format!("{scheme}{user}:***@{host}"),
        None => url.to_owned(),
    }
}

/// Numbers from a random beginning: those of two processes never meet.
#[derive(Debug)]
struct Tokens {
    process: u64,
    next: AtomicU64,
}

impl Default for Tokens {
    fn default() -> Self {
        let random = || RandomState::new().hash_one(0);
        Self {
            process: random(),
            next: AtomicU64::new(random()),
        }
    }
}

impl Tokens {
    fn next(&self) -> [u8; 16] {
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        let token = u128::from(self.process) << 64 | u128::from(number);
        token.to_be_bytes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_url_never_shows_its_password() {
        let table = [
            ("mysql://app:hunter2@db:3306/o", "mysql://app:***@db:3306/o"),
            ("mysql://app:hun/t@r2@db/o", "mysql://app:***@db/o"),
            ("mysql:app:hunter2@db", "mysql:***@db"),
            (
                "mariadb://app@db/o?ssl-ca=/a@b",
                "mariadb://app@db/o?ssl-ca=/a@b",
            ),
            ("mysql://db/o", "mysql://db/o"),
        ];
        for (url, shown) in table {
            assert_eq!(masked(url), shown);
            let options = Options {
                url: url.into(),
                lock_timeout: Duration::ZERO,
                statement_timeout: Duration::ZERO,
                connections: 1,
            };
            assert!(!format!("{options:?}").contains("hunter2"));
        }
    }

    #[test]
    fn servers_without_what_is_needed_are_told_by_their_version() {
        let table = [
            ("8.0.18", false),
            ("8.0.19-log", true),
            ("8.4.0", true),
            ("9.1.0", true),
            ("5.7.44", false),
            ("10.5.29-MariaDB", false),
            ("10.6.0-MariaDB-log", true),
            ("10.11.6-MariaDB-0+deb12u1", true),
            ("11.4.2-MariaDB", true),
            ("nonsense", false),
        ];
        for (version, expected) in table {
            assert_eq!(is_new_enough(version), expected, "{version}");
        }
    }

    #[test]
    fn no_two_tokens_are_the_same() {
        let (one, other) = (Tokens::default(), Tokens::default());
        let all = [one.next(), one.next(), other.next(), other.next()];
        for (i, token) in all.iter().enumerate() {
            assert!(!all[..i].contains(token));
        }
    }
}
