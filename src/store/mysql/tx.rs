//! A transaction.

use super::error::spares_transaction;
use super::set::all_written;
use super::{Database, from_sqlx};
use crate::domain::Timestamp;
use crate::store::{Connection, Error, Result, Tx};
use async_trait::async_trait;
use sqlx::mysql::{MySqlArguments, MySqlRow};
use sqlx::query::Query;
use sqlx::{AssertSqlSafe, Executor, MySql, Transaction};

/// A transaction, READ COMMITTED.
#[derive(Debug)]
pub struct MySqlTx {
    transaction: Transaction<'static, MySql>,
    database: Database,
    /// Savepoints that are set. A second one of the same name would take the first away, so each has
    /// its number in its name.
    savepoints: u32,
    /// Whether somebody else has had the connection, whose statements may have failed unseen.
    lent: bool,
    /// The server rolls back the whole transaction on a deadlock, and other errors leave it in doubt.
    /// What ran after that would run outside of it: so nothing runs any more.
    failed: Option<Error>,
}

impl MySqlTx {
    pub(super) fn new(transaction: Transaction<'static, MySql>, database: Database) -> Self {
        Self {
            transaction,
            database,
            savepoints: 0,
            lent: false,
            failed: None,
        }
    }

    /// Runs a statement and returns how many rows it wrote, or found as they should be.
    pub(super) async fn execute(
        &mut self,
        statement: Query<'_, MySql, MySqlArguments>,
    ) -> Result<u64> {
        self.check()?;
        let done = statement.execute(&mut *self.transaction).await;
        self.note(done).map(|done| done.rows_affected())
    }

    /// Runs a statement and returns its rows.
    pub(super) async fn fetch(
        &mut self,
        statement: Query<'_, MySql, MySqlArguments>,
    ) -> Result<Vec<MySqlRow>> {
        self.check()?;
        let rows = statement.fetch_all(&mut *self.transaction).await;
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
        let done = self.transaction.execute(statement).await;
        self.note(done).map(drop)
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
    async fn commit(mut self: Box<Self>) -> Result<()> {
        if self.lent {
            self.on_savepoint("RELEASE SAVEPOINT", 0).await?;
        }
        self.check()?;
        self.transaction.commit().await.map_err(from_sqlx)
    }

    async fn rollback(self: Box<Self>) -> Result<()> {
        if self.failed.is_some() {
            // Perhaps there is nothing left to roll back; dropping it finds out.
            return Ok(());
        }
        self.transaction.rollback().await.map_err(from_sqlx)
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
        self.lent = true;
        Connection::MySql(&mut self.transaction)
    }
}
