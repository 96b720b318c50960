//! Sets as parameters, rows as values.

use crate::store::{Error, Result};
use serde::Serialize;
use serde::de::DeserializeOwned;
use sqlx::sqlite::SqliteRow;
use sqlx::{Decode, Row, Sqlite, Type};
use std::fmt;
use std::str::FromStr;

/// A set as the JSON text of one parameter.
pub(super) fn json<T: Serialize>(rows: impl IntoIterator<Item = T>) -> Result<String> {
    let rows: Vec<T> = rows.into_iter().collect();
    serde_json::to_string(&rows).map_err(|error| Error::Refused(error.to_string()))
}

/// The bytes of a set's rows, one after the other, as one parameter. Each row says where its own
/// begin (counted from 1, as `substr` does) and how many they are.
#[derive(Debug, Default)]
pub(super) struct Bytes(Vec<u8>);

impl Bytes {
    /// Appends a row's bytes; returns where they begin and how many they are.
    pub(super) fn add(&mut self, bytes: &[u8]) -> (usize, usize) {
        let start = self.0.len() + 1;
        self.0.extend_from_slice(bytes);
        (start, bytes.len())
    }

    pub(super) fn into_parameter(self) -> Vec<u8> {
        self.0
    }
}

/// A row that is being read. Its first columns are its key.
pub(super) struct Reader<'r> {
    row: &'r SqliteRow,
    table: &'static str,
    key_columns: usize,
}

impl<'r> Reader<'r> {
    /// Reads a row of `table` whose first `key_columns` columns are its key.
    pub(super) fn new(row: &'r SqliteRow, table: &'static str, key_columns: usize) -> Self {
        Self {
            row,
            table,
            key_columns,
        }
    }

    /// The value of a column, by its place.
    pub(super) fn get<T: Decode<'r, Sqlite> + Type<Sqlite>>(&self, column: usize) -> Result<T> {
        let value = self.row.try_get(column);
        value.map_err(|error| self.corrupt(&error.to_string()))
    }

    /// A number that is never negative.
    pub(super) fn count<T: TryFrom<i64>>(&self, column: usize) -> Result<T> {
        let number: i64 = self.get(column)?;
        T::try_from(number).map_err(|_| self.corrupt(&format!("{number} is out of range")))
    }

    /// A JSON text that stands for a value, such as headers.
    pub(super) fn json<T: DeserializeOwned>(&self, column: usize) -> Result<T> {
        let text: &str = self.get(column)?;
        serde_json::from_str(text).map_err(|error| self.corrupt(&error.to_string()))
    }

    /// A text that stands for a value, such as an id or a status.
    pub(super) fn parse<T: FromStr<Err: fmt::Display>>(&self, column: usize) -> Result<T> {
        let text: &str = self.get(column)?;
        text.parse()
            .map_err(|error| self.corrupt(&format!("{text:?}: {error}")))
    }

    /// As [`Self::parse`], for a column that may be NULL.
    pub(super) fn parse_optional<T: FromStr<Err: fmt::Display>>(
        &self,
        column: usize,
    ) -> Result<Option<T>> {
        match self.get::<Option<&str>>(column)? {
            Some(_) => self.parse(column).map(Some),
            None => Ok(None),
        }
    }

    /// The row cannot be read, and why.
    pub(super) fn corrupt(&self, problem: &str) -> Error {
        let key: Vec<String> = (0..self.key_columns)
            .map(|column| {
                let number = |_| self.row.try_get::<i64, _>(column).map(|id| id.to_string());
                let text = self.row.try_get::<String, _>(column).or_else(number);
                text.unwrap_or_else(|_| "?".into())
            })
            .collect();
        Error::Corrupt {
            table: self.table,
            problem: format!("{}: {problem}", key.join(" ")),
        }
    }
}
