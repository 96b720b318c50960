//! SQLite's errors, by result code.

use crate::store::{Error, Setup};
use std::path::Path;

/// Result codes, <https://www.sqlite.org/rescode.html>.
mod code {
    pub(super) const BUSY: i32 = 5;
    pub(super) const LOCKED: i32 = 6;
    pub(super) const READONLY: i32 = 8;
    pub(super) const IOERR: i32 = 10;
    pub(super) const CORRUPT: i32 = 11;
    pub(super) const FULL: i32 = 13;
    pub(super) const CANTOPEN: i32 = 14;
    pub(super) const PERM: i32 = 3;
    pub(super) const NOMEM: i32 = 7;
    pub(super) const PROTOCOL: i32 = 15;
    pub(super) const SCHEMA: i32 = 17;
    pub(super) const NOTADB: i32 = 26;
    /// Extended codes that mean that a row with this key is there.
    pub(super) const CONSTRAINT_PRIMARYKEY: i32 = 1555;
    pub(super) const CONSTRAINT_UNIQUE: i32 = 2067;
    pub(super) const CONSTRAINT_ROWID: i32 = 2579;
}

/// The extended result code of a database error.
fn result_code(error: &sqlx::Error) -> Option<i32> {
    error.as_database_error()?.code()?.parse().ok()
}

/// Classifies an error of a statement, such as one of a handler of your own.
#[must_use]
pub fn from_sqlx(error: sqlx::Error) -> Error {
    let Some(extended) = result_code(&error) else {
        if let sqlx::Error::ColumnDecode { index, source } = error {
            return Error::Corrupt {
                table: "a result",
                problem: format!("column {index}: {source}"),
            };
        }
        return Error::Unavailable(error.to_string());
    };
    let text = error.to_string();
    match extended & 0xff {
        code::BUSY | code::LOCKED | code::PROTOCOL | code::SCHEMA => Error::Conflict(text),
        code::READONLY
        | code::IOERR
        | code::FULL
        | code::CANTOPEN
        | code::PERM
        | code::NOMEM
        | code::CORRUPT
        | code::NOTADB => Error::Unavailable(text),
        _ => match extended {
            code::CONSTRAINT_PRIMARYKEY | code::CONSTRAINT_UNIQUE | code::CONSTRAINT_ROWID => {
                Error::Conflict(text)
            }
            _ => Error::Refused(text),
        },
    }
}

/// Classifies an error of opening the file, naming the file and the remedy.
pub(super) fn on_open(path: &Path, error: sqlx::Error) -> Error {
    let path = path.to_owned();
    match result_code(&error).map(|extended| extended & 0xff) {
        Some(code::NOTADB) => Setup::NotADatabase(path).into(),
        Some(code::CORRUPT) => Setup::Damaged(path).into(),
        Some(code::READONLY | code::CANTOPEN | code::PERM) => Setup::ReadOnly(path).into(),
        Some(code::BUSY | code::LOCKED) => Error::Unavailable(format!(
            "{} is locked by another process, stop that process or try again later",
            path.display()
        )),
        _ => Error::Unavailable(format!("{}: {error}", path.display())),
    }
}
