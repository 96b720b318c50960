//! Errors of a database, normalised over the drivers.

use std::path::PathBuf;

/// Shorthand for results of a store.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// What went wrong in the database. Adapters classify their driver's errors once, by SQLSTATE or
/// number, never by text.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// Another transaction was first: a guard failed, a key was taken, a deadlock. Roll back and
    /// decide again from fresh rows.
    #[error("lost a race for {0}")]
    Conflict(String),
    /// The database is away, full or locked. It costs time, never an attempt.
    #[error("the database is not available: {0}")]
    Unavailable(String),
    /// The statement failed because of the data it was given.
    #[error("the database refused the data: {0}")]
    Refused(String),
    /// A row that cannot be read back.
    #[error("a row of {table} cannot be read: {problem}")]
    Corrupt {
        /// The table.
        table: &'static str,
        /// What is wrong with it.
        problem: String,
    },
    /// The store cannot be used as it is configured.
    #[error(transparent)]
    Setup(#[from] Setup),
}

/// Why a store cannot be used: one sentence that names it and the remedy.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Setup {
    /// There is no file.
    #[error("there is no database at {0}, create it with `orderonce migrate`")]
    Missing(PathBuf),
    /// The path is a directory.
    #[error("{0} is a directory, store.url needs the path of a file in it")]
    Directory(PathBuf),
    /// The directory of the file is not there.
    #[error("the directory {0} does not exist, create it or change store.url")]
    NoDirectory(PathBuf),
    /// The file is not a SQLite database.
    #[error("{0} is not a SQLite database, move it away or change store.url")]
    NotADatabase(PathBuf),
    /// The file, or its directory, cannot be written.
    #[error("{0} cannot be written, give this user the right to write the file and its directory")]
    ReadOnly(PathBuf),
    /// The file is damaged.
    #[error("{0} is damaged, restore it from a backup")]
    Damaged(PathBuf),
    /// No server answers.
    #[error("nothing answers at {at} ({problem}), start the server or change store.url")]
    Unreachable {
        /// Which server, password masked.
        at: String,
        /// What the system says.
        problem: String,
    },
    /// The server does not let this user in.
    #[error(
        "the server at {at} does not let user {user} in ({problem}), correct user and password in store.url"
    )]
    Login {
        /// Which server, password masked.
        at: String,
        /// Who asked.
        user: String,
        /// What the server says.
        problem: String,
    },
    /// The server has no such database.
    #[error("there is no database {database} at {at}, create it or change store.url")]
    NoDatabase {
        /// Which server, password masked.
        at: String,
        /// The name that was asked for.
        database: String,
    },
    /// The user lacks a right.
    #[error("user {user} lacks a right at {at} ({problem}), grant it")]
    Permission {
        /// Which database, password masked.
        at: String,
        /// Who asked.
        user: String,
        /// What the server says.
        problem: String,
    },
    /// The server is older than what the statements need.
    #[error("the server at {at} is {found}, {needed} or newer is needed")]
    ServerTooOld {
        /// Which server, password masked.
        at: String,
        /// What it says it is.
        found: String,
        /// The oldest version that will do.
        needed: &'static str,
    },
    /// TLS to the server cannot be set up.
    #[error(
        "no TLS to the server at {at}: {problem}, correct the certificates or the TLS mode in store.url"
    )]
    Tls {
        /// Which server, password masked.
        at: String,
        /// What went wrong.
        problem: String,
    },
    /// The URL cannot be used.
    #[error("store.url is {at}: {problem}")]
    Url {
        /// The URL, password masked.
        at: String,
        /// What is wrong with it.
        problem: String,
    },
    /// The schema is older than this program.
    #[error(
        "the schema of {at} is at migration {found}, this program needs {needed}, run `orderonce migrate`"
    )]
    OlderSchema {
        /// Which database.
        at: String,
        /// Its newest migration; 0 if there is none.
        found: i64,
        /// The newest migration of this program.
        needed: i64,
    },
    /// The schema is newer than this program.
    #[error(
        "the schema of {at} is at migration {found}, this program knows only up to {known}, use a newer orderonce"
    )]
    NewerSchema {
        /// Which database.
        at: String,
        /// Its newest migration.
        found: i64,
        /// The newest migration of this program.
        known: i64,
    },
    /// A migration was changed after it had been applied.
    #[error(
        "migration {version} of {at} was applied with another text, use the orderonce that applied it or restore a backup"
    )]
    ChangedMigration {
        /// Which database.
        at: String,
        /// Which migration.
        version: i64,
    },
    /// A migration stopped half-way, in a database that cannot roll it back.
    #[error(
        "migration {version} of {at} was interrupted and is applied in part, restore a backup or, if it held nothing yet, drop and create the database, then run `orderonce migrate`"
    )]
    InterruptedMigration {
        /// Which database.
        at: String,
        /// Which migration.
        version: i64,
    },
}

impl Error {
    pub(crate) fn lost(what: impl Into<String>) -> Self {
        Self::Conflict(what.into())
    }
}

/// Compares the rows that a guarded statement wrote with those that it was asked to write.
pub(super) fn all_written(table: &str, written: u64, asked: usize) -> Result<()> {
    if u64::try_from(asked) == Ok(written) {
        return Ok(());
    }
    Err(Error::lost(format!(
        "{table}: {written} of {asked} rows were as they had been read"
    )))
}
