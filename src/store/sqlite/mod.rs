//! SQLite: the embedded default.
//!
//! What lives here: opening the file, and one file per group of tables, as in the folders of the
//! other databases. What deliberately does not: decisions.
//!
//! A set goes in as one JSON parameter, an array of arrays that `json_each` unfolds, so every
//! statement is constant text. Bytes go in as one blob for the whole set, of which `substr` gives
//! each row its part.

mod accounts;
mod audit;
mod backlog;
mod callbacks;
mod claims;
mod connect;
mod dead_letters;
mod error;
mod history;
mod inventory;
mod orders;
mod outbox;
mod parking;
mod repairs;
mod retention;
mod set;
mod tx;
mod views;

pub use connect::{Database, Options};
pub use error::from_sqlx;
pub use tx::SqliteTx;

use super::statements::Statements;
use super::{Error, Result, Store, Tx};
use crate::domain::Timestamp;
use async_trait::async_trait;
use sqlx::{Sqlite, SqlitePool, Transaction};

/// The store in a SQLite file.
#[derive(Debug, Clone)]
pub struct SqliteStore {
    database: Database,
    statements: Statements,
}

impl SqliteStore {
    /// A store in an open file.
    #[must_use]
    pub fn new(database: Database) -> Self {
        Self {
            database,
            statements: Statements::default(),
        }
    }

    /// The file.
    #[must_use]
    pub fn database(&self) -> &Database {
        &self.database
    }

    /// Connections that only read, for one statement.
    fn readers(&self) -> &SqlitePool {
        self.statements.count(1);
        self.database.readers()
    }

    async fn begin_tx(&self) -> Result<SqliteTx> {
        let transaction = self.begin_write().await.map_err(as_locked)?;
        let (database, statements) = (self.database.clone(), self.statements.clone());
        Ok(SqliteTx::new(transaction, database, statements))
    }

    /// Begins a transaction of the store's own.
    async fn begin_write(&self) -> Result<Transaction<'static, Sqlite>> {
        self.statements.count(1);
        self.database.begin().await
    }
}

#[async_trait]
impl Store for SqliteStore {
    async fn begin(&self) -> Result<Box<dyn Tx>> {
        Ok(Box::new(self.begin_tx().await?))
    }

    async fn now(&self) -> Result<Timestamp> {
        Ok(self.database.now())
    }

    async fn ping(&self) -> Result<()> {
        const PING: &str = "SELECT 1";
        let answer = sqlx::query(PING).execute(self.readers()).await;
        answer.map(drop).map_err(from_sqlx)
    }

    fn statements(&self) -> u64 {
        self.statements.sent()
    }

    async fn close(&self) {
        self.database.close().await;
    }
}

/// A lock that was waited for in vain says nothing of the data that was to be written: it costs time
/// and no attempt, as if the database were away.
fn as_locked(error: Error) -> Error {
    if let Error::Conflict(busy) = error {
        Error::Unavailable(busy)
    } else {
        error
    }
}
