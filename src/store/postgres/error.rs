//! PostgreSQL's errors, by SQLSTATE.

#![expect(
    clippy::wildcard_enum_match_arm,
    reason = "the driver's kinds of errors are many, and all others are alike here"
)]

use crate::store::{Error, Setup};
use sqlx::postgres::PgConnectOptions;

/// SQLSTATEs, <https://www.postgresql.org/docs/current/errcodes-appendix.html>.
mod state {
    pub(super) const CACHED_PLAN_CHANGED: &str = "0A000";
    pub(super) const UNIQUE_VIOLATION: &str = "23505";
    pub(super) const READ_ONLY_TRANSACTION: &str = "25006";
    pub(super) const IDLE_IN_TRANSACTION: &str = "25P03";
    pub(super) const NO_SUCH_DATABASE: &str = "3D000";
    pub(super) const SERIALIZATION_FAILURE: &str = "40001";
    pub(super) const DEADLOCK: &str = "40P01";
    pub(super) const NO_PRIVILEGE: &str = "42501";
    pub(super) const NO_SUCH_TABLE: &str = "42P01";
    pub(super) const NO_SUCH_COLUMN: &str = "42703";
    pub(super) const LOCK_TIMEOUT: &str = "55P03";
    pub(super) const QUERY_CANCELED: &str = "57014";
    /// Classes.
    pub(super) const CONNECTION: &str = "08";
    pub(super) const AUTHORIZATION: &str = "28";
    pub(super) const RESOURCES: &str = "53";
    /// 57P01 to 57P05: the server shuts down, crashed, starts, or has dropped the database.
    pub(super) const SHUTDOWN: &str = "57P";
    pub(super) const SYSTEM: &str = "58";
    pub(super) const INTERNAL: &str = "XX";
}

fn sqlstate(error: &sqlx::Error) -> Option<String> {
    let state = error.as_database_error()?.code()?;
    Some(state.into_owned())
}

/// Classifies an error of a statement, such as one of a handler of your own.
#[must_use]
pub fn from_sqlx(error: sqlx::Error) -> Error {
    let text = error.to_string();
    let Some(state) = sqlstate(&error) else {
        return match error {
            sqlx::Error::ColumnDecode { index, source } => Error::Corrupt {
                table: "a result",
                problem: format!("column {index}: {source}"),
            },
            sqlx::Error::Encode(_) => Error::Refused(text),
            _ => Error::Unavailable(text),
        };
    };
    match &*state {
        state::UNIQUE_VIOLATION
        | state::SERIALIZATION_FAILURE
        | state::DEADLOCK
        | state::LOCK_TIMEOUT => Error::Conflict(text),
        _ if is_unavailable(&state) => Error::Unavailable(text),
        _ => Error::Refused(text),
    }
}

/// Whether an error says nothing of the data: the server is away or full, or the schema and the
/// rights are no longer what they were when the database was opened.
fn is_unavailable(state: &str) -> bool {
    const STATES: [&str; 8] = [
        state::CACHED_PLAN_CHANGED,
        state::READ_ONLY_TRANSACTION,
        state::IDLE_IN_TRANSACTION,
        state::NO_SUCH_DATABASE,
        state::NO_PRIVILEGE,
        state::NO_SUCH_TABLE,
        state::NO_SUCH_COLUMN,
        state::QUERY_CANCELED,
    ];
    const CLASSES: [&str; 6] = [
        state::CONNECTION,
        state::AUTHORIZATION,
        state::RESOURCES,
        state::SHUTDOWN,
        state::SYSTEM,
        state::INTERNAL,
    ];
    STATES.contains(&state) || CLASSES.iter().any(|class| state.starts_with(class))
}

/// Whether the connection is of no use any more: it is lost, the server only reads since a failover,
/// or the statements that are prepared on it are of an older schema.
pub(super) fn ends_connection(error: &sqlx::Error) -> bool {
    let Some(state) = sqlstate(error) else {
        return !matches!(
            error,
            sqlx::Error::ColumnDecode { .. } | sqlx::Error::Encode(_) | sqlx::Error::RowNotFound
        );
    };
    let states = [
        state::CACHED_PLAN_CHANGED,
        state::READ_ONLY_TRANSACTION,
        state::IDLE_IN_TRANSACTION,
    ];
    let classes = [state::CONNECTION, state::SHUTDOWN];
    states.contains(&&*state) || classes.iter().any(|class| state.starts_with(class))
}

/// Classifies an error of opening the database `at`, naming it and the remedy.
pub(super) fn on_open(at: &str, options: &PgConnectOptions, error: sqlx::Error) -> Error {
    let at = at.to_owned();
    let user = options.get_username().to_owned();
    let problem = match &error {
        sqlx::Error::Database(error) => error.message().to_owned(),
        sqlx::Error::Io(error) => error.to_string(),
        sqlx::Error::Tls(error) => error.to_string(),
        _ => error.to_string(),
    };
    match sqlstate(&error).as_deref() {
        Some(state::NO_SUCH_DATABASE) => Setup::NoDatabase {
            at,
            database: options.get_database().unwrap_or(&user).to_owned(),
        }
        .into(),
        Some(state::NO_PRIVILEGE) => Setup::Permission { at, user, problem }.into(),
        Some(state) if state.starts_with(state::AUTHORIZATION) => {
            Setup::Login { at, user, problem }.into()
        }
        Some(_) => match from_sqlx(error) {
            Error::Unavailable(_) => Error::Unavailable(format!("{at}: {problem}")),
            other => other,
        },
        None => match error {
            sqlx::Error::Tls(_) => Setup::Tls { at, problem }.into(),
            // rustls answers so to a certificate that it does not trust.
            sqlx::Error::Io(error) if error.kind() == std::io::ErrorKind::InvalidData => {
                Setup::Tls { at, problem }.into()
            }
            sqlx::Error::Configuration(_) => Setup::Url { at, problem }.into(),
            _ => Setup::Unreachable { at, problem }.into(),
        },
    }
}
