//! Sets as parameters, rows as values.

use crate::store::{Error, Result};
use serde::de::DeserializeOwned;
use sqlx::error::BoxDynError;
use sqlx::postgres::{PgRow, PgTypeInfo, PgValueRef};
use sqlx::{Decode, Postgres, Row, Type};
use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;

/// One value of each row of a set: the array of a column, which `unnest` unfolds.
pub(super) fn column<'r, R, T>(
    rows: impl IntoIterator<Item = &'r R>,
    value: impl Fn(&'r R) -> T,
) -> Vec<T>
where
    R: 'r + ?Sized,
{
    rows.into_iter().map(value).collect()
}

/// Headers as JSON text. JSON escapes NUL.
pub(super) fn headers(headers: &BTreeMap<String, String>) -> Result<Cow<'static, str>> {
    if headers.is_empty() {
        return Ok("{}".into());
    }
    let text = serde_json::to_string(headers);
    text.map(Cow::Owned)
        .map_err(|error| Error::Refused(error.to_string()))
}

/// A text for people. NUL, which PostgreSQL's text refuses, becomes U+FFFD.
pub(super) fn readable(text: &str) -> Cow<'_, str> {
    if text.contains('\0') {
        text.replace('\0', "\u{FFFD}").into()
    } else {
        text.into()
    }
}

/// Compares the rows that were put in the place of absent ones with those that were to be held.
pub(super) fn all_absent(table: &str, held: u64, asked: usize) -> Result<()> {
    if u64::try_from(asked) == Ok(held) {
        return Ok(());
    }
    Err(Error::lost(format!(
        "{table}: {held} of {asked} rows are still absent"
    )))
}

/// Text that is kept as TEXT or as BYTEA.
pub(super) struct Text<'r>(&'r [u8]);

impl Text<'_> {
    /// The text. Bytes that are none are shown as U+FFFD.
    pub(super) fn into_string(self) -> String {
        String::from_utf8_lossy(self.0).into_owned()
    }
}

impl Type<Postgres> for Text<'_> {
    fn type_info() -> PgTypeInfo {
        <[u8] as Type<Postgres>>::type_info()
    }

    fn compatible(found: &PgTypeInfo) -> bool {
        <str as Type<Postgres>>::compatible(found) || <[u8] as Type<Postgres>>::compatible(found)
    }
}

impl<'r> Decode<'r, Postgres> for Text<'r> {
    fn decode(value: PgValueRef<'r>) -> Result<Self, BoxDynError> {
        value.as_bytes().map(Self)
    }
}

/// A row that is being read. Its first columns are its key.
pub(super) struct Reader<'r> {
    row: &'r PgRow,
    table: &'static str,
    key_columns: usize,
}

impl<'r> Reader<'r> {
    /// Reads a row of `table` whose first `key_columns` columns are its key.
    pub(super) fn new(row: &'r PgRow, table: &'static str, key_columns: usize) -> Self {
        Self {
            row,
            table,
            key_columns,
        }
    }

    /// The value of a column, by its place.
    pub(super) fn get<T: Decode<'r, Postgres> + Type<Postgres>>(&self, column: usize) -> Result<T> {
        let value = self.row.try_get(column);
        value.map_err(|error| self.corrupt(&error.to_string()))
    }

    /// A number that is never negative.
    pub(super) fn count<T: TryFrom<i64>>(&self, column: usize) -> Result<T> {
        let number: i64 = self.get(column)?;
        T::try_from(number).map_err(|_| self.corrupt(&format!("{number} is out of range")))
    }

    /// A text that is kept as bytes.
    pub(super) fn text(&self, column: usize) -> Result<String> {
        self.get::<Text<'_>>(column).map(Text::into_string)
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
