//! Reading a database past the program, and making one.

pub(crate) use orderonce::testkit::sql::Row;

use orderonce::testkit::sql::Reader;
use sqlx::Connection;
use sqlx::sqlite::{SqliteConnectOptions, SqliteConnection};
use std::time::Duration;

/// The longest that a database file is waited for.
const PATIENCE: Duration = Duration::from_secs(60);

/// Reads rows from the database at a URL.
pub(crate) async fn rows<T: Row>(url: &str, select: &'static str) -> Vec<T> {
    let mut reader = Reader::open(url).await.unwrap();
    let rows = reader.rows(select).await;
    reader.close().await.unwrap();
    rows.unwrap()
}

/// Makes a database on the server at a URL, in place of the one that the URL names; returns its URL.
pub(crate) async fn create_database(server: &str, name: &str) -> String {
    let mut server_itself = Reader::open(server).await.unwrap();
    let create = server_itself.execute(format!("CREATE DATABASE {name}"));
    create.await.unwrap();
    server_itself.close().await.unwrap();
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
