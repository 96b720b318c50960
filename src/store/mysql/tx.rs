//! A transaction.

use super::error::spares_transaction;
use super::pool::Pooled;
use super::{Database, from_sqlx};
use crate::domain::Timestamp;
use crate::store::error::all_written;
use crate::store::{Connection, Error, Result, Tx};
use async_trait::async_trait;
use sqlx::mysql::{MySqlArguments, MySqlRow};
use sqlx::query::Query;
use sqlx::{AssertSqlSafe, MySql, SqlSafeStr};

/// A transaction. Each of its statements sees what was committed before the statement.
#[derive(Debug)]
pub struct MySqlTx {
    connection: Pooled,
    database: Database,
    /// Savepoints that are set. A second one of the same name would take the first away, so each has
    /// its number in its name.
    savepoints: u32,
    /// The server rolls back the whole transaction on a deadlock, and other errors leave it in doubt.
    /// What ran after that would run outside of it: so nothing runs any more.
    failed: Option<Error>,
}

impl MySqlTx {
    pub(super) async fn begin(database: &Database) -> Result<Self> {
        Ok(Self {
            connection: database.begin().await?,
            database: database.clone(),
            savepoints: 0,
            failed: None,
        })
    }

    /// Runs a statement and returns how many rows it wrote, or found as they should be.
    pub(super) async fn execute(
        &mut self,
        statement: Query<'_, MySql, MySqlArguments>,
    ) -> Result<u64> {
        self.check()?;
        let done = self.connection.execute(statement).await;
        self.note(done)
    }

    /// Runs a statement and returns its rows.
    pub(super) async fn fetch(
        &mut self,
        statement: Query<'_, MySql, MySqlArguments>,
    ) -> Result<Vec<MySqlRow>> {
        self.check()?;
        let rows = self.connection.fetch(statement).await;
        self.note(rows)
    }

    /// Inserts placeholders of a set of keys, and deletes exactly those.
    pub(super) async fn hold(
        &mut self,
        table: &str,
        insert: &'static str,
        delete: &'static str,
        set: String,
    ) -> Result<()> {
        let held = self.execute(sqlx::query(insert).bind(&set)).await?;
        let deleted = self.execute(sqlx::query(delete).bind(&set)).await?;
        let held = usize::try_from(held).unwrap_or(usize::MAX);
        all_written(table, deleted, held)
    }

    pub(super) fn database(&self) -> &Database {
        &self.database
    }

    /// Runs a statement about a savepoint. They cannot be prepared.
    async fn on_savepoint(&mut self, verb: &str, number: u32) -> Result<()> {
        self.check()?;
        let statement = AssertSqlSafe(format!("{verb} orderonce_{number}"));
        let done = self.connection.run(statement.into_sql_str()).await;
        self.note(done)
    }

    fn check(&self) -> Result<()> {
        match &self.failed {
            Some(error) => Err(error.clone()),
            None => Ok(()),
        }
    }

    fn note<T>(&mut self, result: Result<T, sqlx::Error>) -> Result<T> {
        result.map_err(|error| {
            let spared = spares_transaction(&error);
            let error = from_sqlx(error);
            if !spared {
                self.failed = Some(error.clone());
            }
            error
        })
    }
}

#[async_trait]
impl Tx for MySqlTx {
    async fn now(&mut self) -> Result<Timestamp> {
        let rows = self.fetch(sqlx::query(Database::CLOCK)).await?;
        self.database.moved(&rows)
    }

    // The savepoint of the beginning is gone if the transaction is: what a handler wrote after a
    // deadlock that it kept to itself belongs to another one, and goes with it.
    async fn commit(self: Box<Self>) -> Result<()> {
        self.check()?;
        self.connection
            .end("RELEASE SAVEPOINT orderonce_0; COMMIT")
            .await
    }

    async fn rollback(self: Box<Self>) -> Result<()> {
        if self.failed.is_some() {
            // Perhaps there is nothing left to roll back; dropping it finds out.
            return Ok(());
        }
        self.connection.end("ROLLBACK").await
    }

    async fn savepoint(&mut self) -> Result<()> {
        self.on_savepoint("SAVEPOINT", self.savepoints + 1).await?;
        self.savepoints += 1;
        Ok(())
    }

    // A rollback leaves the savepoint in place.
    async fn rollback_to_savepoint(&mut self) -> Result<()> {
        self.on_savepoint("ROLLBACK TO SAVEPOINT", self.savepoints)
            .await?;
        self.release_savepoint().await
    }

    async fn release_savepoint(&mut self) -> Result<()> {
        self.on_savepoint("RELEASE SAVEPOINT", self.savepoints)
            .await?;
        self.savepoints = self.savepoints.saturating_sub(1);
        Ok(())
    }

    fn connection(&mut self) -> Connection<'_> {
        Connection::MySql(&mut self.connection)
    }
}
