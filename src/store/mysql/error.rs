//! Errors of MySQL and MariaDB, by number.

use crate::store::{Error, Setup};
use sqlx::mysql::MySqlDatabaseError;

/// Error numbers, <https://dev.mysql.com/doc/mysql-errors/8.0/en/> and
/// <https://mariadb.com/kb/en/mariadb-error-codes/>. The two share those below 1900.
mod number {
    pub(super) const DISK_FULL: u16 = 1021;
    pub(super) const RECORD_CHANGED: u16 = 1020;
    pub(super) const OUT_OF_MEMORY: u16 = 1037;
    pub(super) const OUT_OF_SORT_MEMORY: u16 = 1038;
    pub(super) const TOO_MANY_CONNECTIONS: u16 = 1040;
    pub(super) const OUT_OF_RESOURCES: u16 = 1041;
    pub(super) const NO_RIGHT_TO_DATABASE: u16 = 1044;
    pub(super) const WRONG_LOGIN: u16 = 1045;
    pub(super) const NO_DATABASE: u16 = 1049;
    pub(super) const SERVER_SHUTDOWN: u16 = 1053;
    pub(super) const DUPLICATE: u16 = 1062;
    pub(super) const TABLE_FULL: u16 = 1114;
    pub(super) const HOST_BLOCKED: u16 = 1129;
    pub(super) const HOST_NOT_ALLOWED: u16 = 1130;
    pub(super) const NO_COLUMN: u16 = 1054;
    pub(super) const NO_TABLE: u16 = 1146;
    pub(super) const NO_RIGHT_TO_TABLE: u16 = 1142;
    pub(super) const NO_RIGHT_TO_COLUMN: u16 = 1143;
    pub(super) const PACKET_TOO_LARGE: u16 = 1153;
    pub(super) const NETWORK: std::ops::RangeInclusive<u16> = 1158..=1161;
    pub(super) const TOO_MANY_CONNECTIONS_OF_USER: u16 = 1203;
    pub(super) const LOCK_WAIT_TIMEOUT: u16 = 1205;
    pub(super) const LOCK_TABLE_FULL: u16 = 1206;
    pub(super) const DEADLOCK: u16 = 1213;
    pub(super) const USER_LIMIT: u16 = 1226;
    pub(super) const NO_RIGHT: u16 = 1227;
    pub(super) const READ_ONLY: u16 = 1290;
    pub(super) const QUERY_INTERRUPTED: u16 = 1317;
    pub(super) const NO_SAVEPOINT: u16 = 1305;
    pub(super) const NO_RIGHT_TO_ROUTINE: u16 = 1370;
    pub(super) const WRONG_LOGIN_NO_PASSWORD: u16 = 1698;
    pub(super) const IN_READ_ONLY_TRANSACTION: u16 = 1792;
    pub(super) const READ_ONLY_MODE: u16 = 1836;
    /// MariaDB.
    pub(super) const CONNECTION_KILLED: u16 = 1927;
    /// MariaDB's `max_statement_time`.
    pub(super) const STATEMENT_TIMEOUT: u16 = 1969;
    /// MySQL's `max_execution_time`.
    pub(super) const QUERY_TIMEOUT: u16 = 3024;
    /// MySQL.
    pub(super) const LOCK_NOWAIT: u16 = 3572;
    /// MySQL.
    pub(super) const IDLE_TOO_LONG: u16 = 4031;
    /// MariaDB's name for a user whose account is locked; MySQL's is 3118.
    pub(super) const ACCOUNT_LOCKED: [u16; 2] = [3118, 4151];
}

/// The number of a database error.
pub(super) fn error_number(error: &sqlx::Error) -> Option<u16> {
    let database = error.as_database_error()?;
    let mysql = database.try_downcast_ref::<MySqlDatabaseError>()?;
    Some(mysql.number())
}

/// Classifies an error of a statement, such as one of a handler of your own.
#[must_use]
pub fn from_sqlx(error: sqlx::Error) -> Error {
    let Some(number) = error_number(&error) else {
        if let sqlx::Error::ColumnDecode { index, source } = error {
            return Error::Corrupt {
                table: "a result",
                problem: format!("column {index}: {source}"),
            };
        }
        return Error::Unavailable(error.to_string());
    };
    let text = error.to_string();
    if is_lost_race(number) {
        Error::Conflict(text)
    } else if is_of_data(number) {
        Error::Refused(text)
    } else {
        Error::Unavailable(text)
    }
}

fn is_lost_race(number: u16) -> bool {
    matches!(
        number,
        number::DUPLICATE
            | number::RECORD_CHANGED
            | number::LOCK_WAIT_TIMEOUT
            | number::DEADLOCK
            // A transaction without its savepoint was rolled back by the server.
            | number::NO_SAVEPOINT
            | number::LOCK_NOWAIT
    )
}

/// Whether the statement itself is at fault: its data, or its text if it is a handler's own. There
/// are hundreds of such numbers, so those of the server's troubles are named instead. Among them is
/// a schema, or a right, that is no longer what it was when the database was opened.
fn is_of_data(number: u16) -> bool {
    let is_trouble = matches!(
        number,
        number::DISK_FULL
            | number::OUT_OF_MEMORY
            | number::OUT_OF_SORT_MEMORY
            | number::TOO_MANY_CONNECTIONS
            | number::OUT_OF_RESOURCES
            | number::NO_RIGHT_TO_DATABASE
            | number::WRONG_LOGIN
            | number::NO_DATABASE
            | number::SERVER_SHUTDOWN
            | number::TABLE_FULL
            | number::HOST_BLOCKED
            | number::HOST_NOT_ALLOWED
            | number::NO_RIGHT_TO_TABLE
            | number::NO_RIGHT_TO_COLUMN
            | number::NO_COLUMN
            | number::NO_TABLE
            | number::TOO_MANY_CONNECTIONS_OF_USER
            | number::LOCK_TABLE_FULL
            | number::USER_LIMIT
            | number::NO_RIGHT
            | number::READ_ONLY
            | number::QUERY_INTERRUPTED
            | number::WRONG_LOGIN_NO_PASSWORD
            | number::IN_READ_ONLY_TRANSACTION
            | number::READ_ONLY_MODE
            | number::CONNECTION_KILLED
            | number::STATEMENT_TIMEOUT
            | number::QUERY_TIMEOUT
            | number::IDLE_TOO_LONG
    );
    let is_trouble =
        is_trouble || number::NETWORK.contains(&number) || number::ACCOUNT_LOCKED.contains(&number);
    !is_trouble && !is_lost_race(number)
}

/// Whether an error has undone its statement and nothing else. After any other, what was written
/// before may be gone, or the connection is: nothing may run in its transaction any more.
pub(super) fn spares_transaction(error: &sqlx::Error) -> bool {
    let Some(number) = error_number(error) else {
        return false;
    };
    number == number::DUPLICATE || is_of_data(number) && !ends_connection(error)
}

/// Whether the connection is of no use any more: it is lost, or the server only reads since a
/// failover.
pub(super) fn ends_connection(error: &sqlx::Error) -> bool {
    match error_number(error) {
        Some(number) => {
            matches!(
                number,
                number::SERVER_SHUTDOWN
                    | number::PACKET_TOO_LARGE
                    | number::CONNECTION_KILLED
                    | number::IDLE_TOO_LONG
                    | number::READ_ONLY
                    | number::READ_ONLY_MODE
            ) || number::NETWORK.contains(&number)
        }
        None => !matches!(
            error,
            sqlx::Error::ColumnDecode { .. } | sqlx::Error::Encode(_) | sqlx::Error::RowNotFound
        ),
    }
}

/// Where a database is, for messages.
#[derive(Debug, Clone)]
pub(super) struct Place {
    /// Its URL, password masked.
    pub(super) at: String,
    /// Who asks.
    pub(super) user: String,
    /// Its name.
    pub(super) database: String,
}

/// What is wrong, without the driver's words for the kind of error.
pub(super) fn problem_of(error: &sqlx::Error) -> String {
    if let sqlx::Error::Database(error) = error {
        return error.message().to_owned();
    }
    if let sqlx::Error::Io(error) = error {
        return error.to_string();
    }
    if let sqlx::Error::Tls(error) | sqlx::Error::Configuration(error) = error {
        let inner = error.downcast_ref().map(problem_of);
        return inner.unwrap_or_else(|| error.to_string());
    }
    error.to_string()
}

/// Classifies an error of opening the database, naming it and the remedy.
pub(super) fn on_open(place: &Place, error: sqlx::Error) -> Error {
    let (at, user) = (place.at.clone(), place.user.clone());
    let problem = problem_of(&error);
    let setup = match error_number(&error) {
        Some(number::WRONG_LOGIN | number::WRONG_LOGIN_NO_PASSWORD) => {
            Setup::Login { at, user, problem }
        }
        Some(number) if number::ACCOUNT_LOCKED.contains(&number) => {
            Setup::Login { at, user, problem }
        }
        Some(number::NO_DATABASE) => Setup::NoDatabase {
            at,
            database: place.database.clone(),
        },
        Some(
            number::NO_RIGHT_TO_DATABASE
            | number::NO_RIGHT_TO_TABLE
            | number::NO_RIGHT_TO_COLUMN
            | number::NO_RIGHT
            | number::NO_RIGHT_TO_ROUTINE
            | number::HOST_NOT_ALLOWED,
        ) => Setup::Permission { at, user, problem },
        Some(_) => return Error::Unavailable(format!("{at}: {problem}")),
        None if is_about_tls(&error) => Setup::Tls { at, problem },
        None if matches!(error, sqlx::Error::Configuration(_)) => Setup::Url { at, problem },
        None => Setup::Unreachable { at, problem },
    };
    Error::Setup(setup)
}

/// rustls answers with invalid data to a certificate that it does not trust.
fn is_about_tls(error: &sqlx::Error) -> bool {
    if let sqlx::Error::Io(error) = error {
        return error.kind() == std::io::ErrorKind::InvalidData;
    }
    matches!(error, sqlx::Error::Tls(_))
}
