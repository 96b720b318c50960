//! MySQL 8.0.19 or newer, and MariaDB 10.6 or newer.
//!
//! What lives here: the pool of connections, and one file per group of tables, as in the folders of
//! the other databases. What deliberately does not: decisions.
//!
//! A set goes in as one JSON parameter, an array that `JSON_TABLE` unfolds, so every statement is
//! constant text. Bytes go in as one blob for the whole set, of which `SUBSTRING` gives each row its
//! part; the derived table around it keeps the server from copying the blob for each row.
//!
//! `STRAIGHT_JOIN` and `FORCE INDEX` say the only plan that will do: the set in its order, and each
//! row by its key. Left to itself, the optimizer reads (and locks) the whole of a small table.
//!
//! Transactions are READ COMMITTED: each statement sees what was committed before it, and gaps are
//! not locked.

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
mod pool;
mod repairs;
mod retention;
mod set;
mod tx;
mod views;

pub use connect::{Database, Options};
pub use error::from_sqlx;
pub use tx::MySqlTx;

use super::{Result, Store, Tx};
use crate::domain::Timestamp;
use async_trait::async_trait;

/// The store in a database of a MySQL or MariaDB server.
#[derive(Debug, Clone)]
pub struct MySqlStore {
    database: Database,
}

impl MySqlStore {
    /// A store in an open database.
    #[must_use]
    pub fn new(database: Database) -> Self {
        Self { database }
    }

    /// The database.
    #[must_use]
    pub fn database(&self) -> &Database {
        &self.database
    }
}

#[async_trait]
impl Store for MySqlStore {
    async fn begin(&self) -> Result<Box<dyn Tx>> {
        Ok(Box::new(MySqlTx::begin(&self.database).await?))
    }

    async fn now(&self) -> Result<Timestamp> {
        self.database.now().await
    }

    async fn ping(&self) -> Result<()> {
        const PING: &str = "SELECT 1";
        self.database.fetch(sqlx::query(PING)).await.map(drop)
    }

    fn statements(&self) -> u64 {
        self.database.statements()
    }

    async fn close(&self) {
        self.database.close().await;
    }
}
