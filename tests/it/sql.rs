//! Reading a database past the program, whatever it is.

use sqlx::mysql::{MySqlConnection, MySqlRow};
use sqlx::postgres::{PgConnection, PgRow};
use sqlx::sqlite::{SqliteConnectOptions, SqliteConnection, SqliteRow};
use sqlx::{AssertSqlSafe, ColumnIndex, Connection, Database, Decode, Row as _, Type};
use std::fmt::Debug;
use std::str::FromStr;
use std::time::Duration;

/// The longest that a database file is waited for.
const PATIENCE: Duration = Duration::from_secs(60);

/// A row, of whose columns each is a text or a whole number.
pub(crate) trait Row: Sized {
    fn of(cells: Vec<String>) -> Self;
}

macro_rules! rows {
    ($(($($T:ident),+);)+) => {$(
        impl<$($T),+> Row for ($($T,)+)
        where
            $($T: FromStr, $T::Err: Debug,)+
        {
            fn of(cells: Vec<String>) -> Self {
                let mut cells = cells.into_iter();
                let row = ($(cells.next().unwrap().parse::<$T>().unwrap(),)+);
                assert_eq!(cells.next(), None);
                row
            }
        }
    )+};
}

rows! { (A); (A, B); (A, B, C); (A, B, C, D); (A, B, C, D, E); }

/// Reads rows from the database at a URL.
pub(crate) async fn rows<T: Row>(url: &str, select: &'static str) -> Vec<T> {
    let rows: Vec<Vec<String>> = if url.starts_with("sqlite:") {
        let mut connection = open_file(url).await;
        let rows = sqlx::query(select).fetch_all(&mut connection).await;
        connection.close().await.unwrap();
        rows.unwrap().iter().map(of_sqlite).collect()
    } else if url.starts_with("postgres") {
        let mut connection = PgConnection::connect(url).await.unwrap();
        let rows = sqlx::query(select).fetch_all(&mut connection).await;
        connection.close().await.unwrap();
        rows.unwrap().iter().map(of_postgres).collect()
    } else {
        let mut connection = MySqlConnection::connect(url).await.unwrap();
        let rows = sqlx::query(select).fetch_all(&mut connection).await;
        connection.close().await.unwrap();
        rows.unwrap().iter().map(of_mysql).collect()
    };
    rows.into_iter().map(T::of).collect()
}

/// Makes a database on the server at a URL, in place of the one that the URL names; returns its URL.
pub(crate) async fn create_database(server: &str, name: &str) -> String {
    let create = AssertSqlSafe(format!("CREATE DATABASE {name}"));
    if server.starts_with("postgres") {
        let mut connection = PgConnection::connect(server).await.unwrap();
        sqlx::raw_sql(create)
            .execute(&mut connection)
            .await
            .unwrap();
        connection.close().await.unwrap();
    } else {
        let mut connection = MySqlConnection::connect(server).await.unwrap();
        sqlx::raw_sql(create)
            .execute(&mut connection)
            .await
            .unwrap();
        connection.close().await.unwrap();
    }
    let (base, _) = server.rsplit_once('/').unwrap();
    format!("{base}/{name}")
}

/// Another program's connection to a database file.
pub(crate) async fn open_file(url: &str) -> SqliteConnection {
    let options = SqliteConnectOptions::new()
        .filename(url.strip_prefix("sqlite://").unwrap())
        .busy_timeout(PATIENCE);
    SqliteConnection::connect_with(&options).await.unwrap()
}

fn of_sqlite(row: &SqliteRow) -> Vec<String> {
    (0..row.len()).map(|at| cell(row, at)).collect()
}

fn of_postgres(row: &PgRow) -> Vec<String> {
    (0..row.len()).map(|at| cell(row, at)).collect()
}

fn of_mysql(row: &MySqlRow) -> Vec<String> {
    (0..row.len()).map(|at| cell(row, at)).collect()
}

fn cell<'r, R>(row: &'r R, at: usize) -> String
where
    R: sqlx::Row,
    usize: ColumnIndex<R>,
    String: Decode<'r, R::Database> + Type<R::Database>,
    i64: Decode<'r, R::Database> + Type<R::Database>,
    Vec<u8>: Decode<'r, R::Database> + Type<R::Database>,
    R::Database: Database,
{
    let text = row.try_get::<String, _>(at);
    let text = text.or_else(|_| row.try_get::<i64, _>(at).map(|number| number.to_string()));
    text.unwrap_or_else(|_| String::from_utf8(row.get::<Vec<u8>, _>(at)).unwrap())
}
