//! A transaction.

use super::Database;
use super::connect::{NOW, read_now};
use super::pool::Pooled;
use crate::domain::Timestamp;
use crate::store::{Connection, Result, Tx};
use async_trait::async_trait;
use sqlx::Postgres;
use sqlx::postgres::{PgArguments, PgRow};
use sqlx::query::Query;

/// Whatever the server's default is: a statement must see what was committed while it waited for a
/// row.
const BEGIN: &str = "BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE";

/// A transaction. Each of its statements sees what was committed before the statement.
#[derive(Debug)]
pub struct PostgresTx {
    connection: Pooled,
    database: Database,
}

impl PostgresTx {
    pub(super) async fn begin(database: &Database) -> Result<Self> {
        Ok(Self {
            connection: database.begin(BEGIN).await?,
            database: database.clone(),
        })
    }

    /// Runs a statement and returns how many rows it wrote.
    pub(super) async fn execute(
        &mut self,
        statement: Query<'_, Postgres, PgArguments>,
    ) -> Result<u64> {
        self.connection.execute(statement).await
    }

    /// Runs a statement and returns its rows.
    pub(super) async fn fetch(
        &mut self,
        statement: Query<'_, Postgres, PgArguments>,
    ) -> Result<Vec<PgRow>> {
        self.connection.fetch(statement).await
    }

    async fn run(&mut self, statements: &'static str) -> Result<()> {
        let done = self.connection.run(statements).await;
        done.map_err(super::from_sqlx)
    }
}

#[async_trait]
impl Tx for PostgresTx {
    async fn now(&mut self) -> Result<Timestamp> {
        let skew = self.database.skew();
        let rows = self.fetch(sqlx::query(NOW).bind(skew)).await?;
        read_now(&rows)
    }

    async fn commit(self: Box<Self>) -> Result<()> {
        // After a failed statement the server answers COMMIT with a rollback and calls it a success.
        // SELECT fails then, and COMMIT is not reached.
        const COMMIT: &str = "SELECT 1; COMMIT";
        self.connection.end(COMMIT).await
    }

    async fn rollback(self: Box<Self>) -> Result<()> {
        self.connection.end("ROLLBACK").await
    }

    async fn savepoint(&mut self) -> Result<()> {
        self.run("SAVEPOINT orderonce").await
    }

    // A rollback leaves the savepoint in place; of several with one name the last is meant.
    async fn rollback_to_savepoint(&mut self) -> Result<()> {
        self.run("ROLLBACK TO orderonce; RELEASE orderonce").await
    }

    async fn release_savepoint(&mut self) -> Result<()> {
        self.run("RELEASE orderonce").await
    }

    fn connection(&mut self) -> Connection<'_> {
        Connection::Postgres(&mut self.connection)
    }
}
