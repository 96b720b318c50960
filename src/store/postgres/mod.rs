//! PostgreSQL, 13 or newer.
//!
//! What lives here: the connections, and one file per group of tables, as in the folders of the other
//! databases. What deliberately does not: decisions.
//!
//! A set goes in as one array per column, which `unnest` unfolds, so every statement is constant text.
//! Rows that are to be changed are locked in the order of their keys when they are loaded, and rows
//! are inserted in that order, so that two transactions over the same rows wait for each other in one
//! direction.

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
pub use tx::PostgresTx;

use super::{Result, Store, Tx};
use crate::domain::Timestamp;
use async_trait::async_trait;
use outbox::Head;
use std::sync::{Arc, Mutex};

/// The store in a PostgreSQL database.
#[derive(Debug, Clone)]
pub struct PostgresStore {
    database: Database,
    head: Arc<Mutex<Head>>,
}

impl PostgresStore {
    /// A store in an open database.
    #[must_use]
    pub fn new(database: Database) -> Self {
        Self {
            database,
            head: Arc::default(),
        }
    }

    /// The database.
    #[must_use]
    pub fn database(&self) -> &Database {
        &self.database
    }
}

#[async_trait]
impl Store for PostgresStore {
    async fn begin(&self) -> Result<Box<dyn Tx>> {
        Ok(Box::new(PostgresTx::begin(&self.database).await?))
    }

    async fn now(&self) -> Result<Timestamp> {
        self.database.now().await
    }

    async fn ping(&self) -> Result<()> {
        const PING: &str = "SELECT 1";
        self.database.execute(sqlx::query(PING)).await.map(drop)
    }

    fn statements(&self) -> u64 {
        self.database.statements()
    }

    async fn close(&self) {
        self.database.close().await;
    }
}
