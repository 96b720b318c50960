//! Sets as parameters, rows as values.

use crate::store::{Error, Result};
use serde::Serialize;
use serde::de::DeserializeOwned;
use sqlx::error::BoxDynError;
use sqlx::mysql::{MySqlRow, MySqlTypeInfo, MySqlValueRef};
use sqlx::{Decode, MySql, Row, Type};
use std::cmp::Ordering;
use std::fmt;
use std::ops::Deref;
use std::str::FromStr;

/// A set as the JSON text of one parameter, in the order of its rows.
pub(super) fn json<T: Serialize>(rows: impl IntoIterator<Item = T>) -> Result<String> {
    let rows: Vec<T> = rows.into_iter().collect();
    serde_json::to_string(&rows).map_err(|error| Error::Refused(error.to_string()))
}

/// As [`json`], in an order: locks are taken in the order of the keys, so that two transactions
/// wait for each other and do not deadlock.
pub(super) fn json_by<T: Serialize>(
    rows: impl IntoIterator<Item = T>,
    order: impl Fn(&T, &T) -> Ordering,
) -> Result<String> {
    let mut rows: Vec<T> = rows.into_iter().collect();
    rows.sort_by(order);
    json(rows)
}

/// Keys as one parameter, sorted, each once.
pub(super) fn keys<T: Serialize + Ord>(keys: impl IntoIterator<Item = T>) -> Result<String> {
    let mut keys: Vec<T> = keys.into_iter().collect();
    keys.sort_unstable();
    keys.dedup();
    json(keys)
}

/// A value that is stored as JSON text, such as headers.
pub(super) fn text_of<T: Serialize>(value: &T) -> Result<String> {
    serde_json::to_string(value).map_err(|error| Error::Refused(error.to_string()))
}

/// The bytes of a set's rows, one after the other, as one parameter. Each row says where its own
/// begin (counted from 1, as `SUBSTRING` does) and how many they are.
#[derive(Debug, Default)]
pub(super) struct Bytes(Vec<u8>);

impl Bytes {
    /// Appends a row's bytes; returns where they begin and how many they are.
    pub(super) fn add(&mut self, bytes: &[u8]) -> (usize, usize) {
        let start = self.0.len() + 1;
        self.0.extend_from_slice(bytes);
        (start, bytes.len())
    }

    pub(super) fn len(&self) -> usize {
        self.0.len()
    }

    pub(super) fn into_parameter(self) -> Vec<u8> {
        self.0
    }
}

/// Text of a column of bytes, which the driver takes for bytes only.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Text(pub(super) String);

impl Deref for Text {
    type Target = str;

    fn deref(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for Text {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl Type<MySql> for Text {
    fn type_info() -> MySqlTypeInfo {
        <[u8] as Type<MySql>>::type_info()
    }

    fn compatible(column: &MySqlTypeInfo) -> bool {
        <[u8] as Type<MySql>>::compatible(column)
    }
}

impl Decode<'_, MySql> for Text {
    fn decode(value: MySqlValueRef<'_>) -> std::result::Result<Self, BoxDynError> {
        let bytes = <Vec<u8> as Decode<MySql>>::decode(value)?;
        Ok(Self(String::from_utf8(bytes)?))
    }
}

/// A row that is being read. Its first columns are its key.
pub(super) struct Reader<'r> {
    row: &'r MySqlRow,
    table: &'static str,
    key_columns: usize,
}

impl<'r> Reader<'r> {
    /// Reads a row of `table` whose first `key_columns` columns are its key.
    pub(super) fn new(row: &'r MySqlRow, table: &'static str, key_columns: usize) -> Self {
        Self {
            row,
            table,
            key_columns,
        }
    }

    /// The value of a column, by its place.
    pub(super) fn get<T: Decode<'r, MySql> + Type<MySql>>(&self, column: usize) -> Result<T> {
        let value = self.row.try_get(column);
        value.map_err(|error| self.corrupt(&error.to_string()))
    }

    /// A number that is never negative.
    pub(super) fn count<T: TryFrom<i64>>(&self, column: usize) -> Result<T> {
        let number: i64 = self.get(column)?;
        T::try_from(number).map_err(|_| self.corrupt(&format!("{number} is out of range")))
    }

    /// The text of a column.
    pub(super) fn text(&self, column: usize) -> Result<&'r str> {
        let bytes: &[u8] = self.get(column)?;
        self.utf8(bytes)
    }

    /// As [`Self::text`], for a column that may be NULL.
    pub(super) fn optional_text(&self, column: usize) -> Result<Option<&'r str>> {
        let bytes: Option<&[u8]> = self.get(column)?;
        bytes.map(|bytes| self.utf8(bytes)).transpose()
    }

    fn utf8(&self, bytes: &'r [u8]) -> Result<&'r str> {
        std::str::from_utf8(bytes).map_err(|error| self.corrupt(&error.to_string()))
    }

    /// A JSON text that stands for a value, such as headers.
    pub(super) fn json<T: DeserializeOwned>(&self, column: usize) -> Result<T> {
        let text = self.text(column)?;
        serde_json::from_str(text).map_err(|error| self.corrupt(&error.to_string()))
    }

    /// A text that stands for a value, such as an id or a status.
    pub(super) fn parse<T: FromStr<Err: fmt::Display>>(&self, column: usize) -> Result<T> {
        let text = self.text(column)?;
        text.parse()
            .map_err(|error| self.corrupt(&format!("{text:?}: {error}")))
    }

    /// As [`Self::parse`], for a column that may be NULL.
    pub(super) fn parse_optional<T: FromStr<Err: fmt::Display>>(
        &self,
        column: usize,
    ) -> Result<Option<T>> {
        match self.optional_text(column)? {
            Some(_) => self.parse(column).map(Some),
            None => Ok(None),
        }
    }

    /// The row cannot be read, and why.
    pub(super) fn corrupt(&self, problem: &str) -> Error {
        let key: Vec<String> = (0..self.key_columns)
            .map(|column| {
                let number = |_| self.row.try_get::<i64, _>(column).map(|id| id.to_string());
                let text = self.row.try_get::<Text, _>(column).map(|text| text.0);
                text.or_else(number).unwrap_or_else(|_| "?".into())
            })
            .collect();
        Error::Corrupt {
            table: self.table,
            problem: format!("{}: {problem}", key.join(" ")),
        }
    }
}
