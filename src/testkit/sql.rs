//! Reading a database past the program, whatever it is.

use sqlx::mysql::MySqlConnection;
use sqlx::postgres::PgConnection;
use sqlx::sqlite::{SqliteConnectOptions, SqliteConnection};
use sqlx::{AssertSqlSafe, ColumnIndex, Connection, Decode, Type};
use std::time::Duration;

/// A connection of one's own to a database.
#[derive(Debug)]
pub enum Reader {
    /// To a SQLite file.
    Sqlite(SqliteConnection),
    /// To PostgreSQL.
    Postgres(PgConnection),
    /// To MySQL or MariaDB.
    MySql(MySqlConnection),
}

/// How long a file is waited for that somebody else has locked.
const PATIENCE: Duration = Duration::from_secs(60);

impl Reader {
    /// Connects to the database at a URL as `store.url` has it.
    ///
    /// # Errors
    /// [`sqlx::Error`].
    pub async fn open(url: &str) -> sqlx::Result<Self> {
        if let Some(path) = url.strip_prefix("sqlite://") {
            let options = SqliteConnectOptions::new()
                .filename(path)
                .busy_timeout(PATIENCE);
            return Ok(Self::Sqlite(
                SqliteConnection::connect_with(&options).await?,
            ));
        }
        if url.starts_with("postgres") {
            return Ok(Self::Postgres(PgConnection::connect(url).await?));
        }
        let mut connection = MySqlConnection::connect(url).await?;
        // So that a name in double quotes is a name in all of them.
        sqlx::query("SET SESSION sql_mode = concat(@@sql_mode, ',ANSI_QUOTES')")
            .execute(&mut connection)
            .await?;
        Ok(Self::MySql(connection))
    }

    /// The rows of a query.
    ///
    /// # Errors
    /// [`sqlx::Error`], also for a row that is not of the type.
    pub async fn rows<T: Row>(&mut self, select: impl Into<String>) -> sqlx::Result<Vec<T>> {
        let select = AssertSqlSafe(select.into());
        match self {
            Self::Sqlite(connection) => {
                let rows = sqlx::query(select).fetch_all(connection).await?;
                rows.iter().map(read).collect()
            }
            Self::Postgres(connection) => {
                let rows = sqlx::query(select).fetch_all(connection).await?;
                rows.iter().map(read).collect()
            }
            Self::MySql(connection) => {
                let rows = sqlx::query(select).fetch_all(connection).await?;
                rows.iter().map(read).collect()
            }
        }
    }

    /// Runs a statement.
    ///
    /// # Errors
    /// [`sqlx::Error`].
    pub async fn execute(&mut self, statement: impl Into<String>) -> sqlx::Result<()> {
        let statement = sqlx::raw_sql(AssertSqlSafe(statement.into()));
        match self {
            Self::Sqlite(connection) => statement.execute(connection).await.map(drop),
            Self::Postgres(connection) => statement.execute(connection).await.map(drop),
            Self::MySql(connection) => statement.execute(connection).await.map(drop),
        }
    }

    /// Closes the connection.
    ///
    /// # Errors
    /// [`sqlx::Error`].
    pub async fn close(self) -> sqlx::Result<()> {
        match self {
            Self::Sqlite(connection) => connection.close().await,
            Self::Postgres(connection) => connection.close().await,
            Self::MySql(connection) => connection.close().await,
        }
    }
}

/// A row: a tuple of [`Cell`]s.
pub trait Row: Sized {
    /// Reads it from its cells.
    ///
    /// # Errors
    /// What is wrong with a cell.
    fn of(cells: Vec<Option<Vec<u8>>>) -> Result<Self, String>;
}

/// A value in a row.
pub trait Cell: Sized {
    /// Reads it from its bytes, or from what a null is.
    ///
    /// # Errors
    /// What is wrong with them.
    fn of(bytes: Option<Vec<u8>>) -> Result<Self, String>;
}

impl Cell for Vec<u8> {
    fn of(bytes: Option<Vec<u8>>) -> Result<Self, String> {
        bytes.ok_or_else(|| "a null".to_owned())
    }
}

impl Cell for String {
    fn of(bytes: Option<Vec<u8>>) -> Result<Self, String> {
        Self::from_utf8(Cell::of(bytes)?).map_err(|error| error.to_string())
    }
}

impl Cell for i64 {
    fn of(bytes: Option<Vec<u8>>) -> Result<Self, String> {
        let text = <String as Cell>::of(bytes)?;
        text.parse().map_err(|_| format!("{text:?} is no number"))
    }
}

impl<T: Cell> Cell for Option<T> {
    fn of(bytes: Option<Vec<u8>>) -> Result<Self, String> {
        bytes.map(|bytes| T::of(Some(bytes))).transpose()
    }
}

macro_rules! rows {
    ($(($($T:ident),+);)+) => {$(
        impl<$($T: Cell),+> Row for ($($T,)+) {
            fn of(cells: Vec<Option<Vec<u8>>>) -> Result<Self, String> {
                let mut cells = cells.into_iter();
                let row = ($($T::of(cells.next().ok_or("too few columns")?)?,)+);
                match cells.next() {
                    None => Ok(row),
                    Some(_) => Err("too many columns".to_owned()),
                }
            }
        }
    )+};
}

rows! { (A); (A, B); (A, B, C); (A, B, C, D); (A, B, C, D, E); (A, B, C, D, E, F); }

fn read<'r, R, T>(row: &'r R) -> sqlx::Result<T>
where
    R: sqlx::Row,
    T: Row,
    usize: ColumnIndex<R>,
    Option<String>: Decode<'r, R::Database> + Type<R::Database>,
    Option<i64>: Decode<'r, R::Database> + Type<R::Database>,
    Option<i32>: Decode<'r, R::Database> + Type<R::Database>,
    Option<Vec<u8>>: Decode<'r, R::Database> + Type<R::Database>,
{
    let cell = |at: usize| {
        if let Ok(text) = row.try_get::<Option<String>, _>(at) {
            return Ok(text.map(String::into_bytes));
        }
        if let Ok(number) = row.try_get::<Option<i64>, _>(at) {
            return Ok(number.map(|number| number.to_string().into_bytes()));
        }
        if let Ok(number) = row.try_get::<Option<i32>, _>(at) {
            return Ok(number.map(|number| number.to_string().into_bytes()));
        }
        row.try_get::<Option<Vec<u8>>, _>(at)
    };
    let cells: Vec<_> = (0..row.len()).map(cell).collect::<sqlx::Result<_>>()?;
    T::of(cells).map_err(|problem| sqlx::Error::Decode(problem.into()))
}
