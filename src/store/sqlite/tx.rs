//! A transaction.

use super::{Database, from_sqlx};
use crate::domain::Timestamp;
use crate::store::statements::Statements;
use crate::store::{Connection, Error, Result, Tx};
use async_trait::async_trait;
use sqlx::query::Query;
use sqlx::sqlite::{SqliteArguments, SqliteRow};
use sqlx::{Sqlite, Transaction};

/// A transaction that has the write lock from the start, so that none of its statements meets a
/// row that somebody else is changing.
#[derive(Debug)]
pub struct SqliteTx {
    transaction: Transaction<'static, Sqlite>,
    database: Database,
    statements: Statements,
    /// SQLite may roll back the whole transaction on a failed statement (full disk, I/O error).
    /// What ran after that would run, and commit, outside of it: so nothing runs any more.
    failed: bool,
}

impl SqliteTx {
    pub(super) fn new(
        transaction: Transaction<'static, Sqlite>,
        database: Database,
        statements: Statements,
    ) -> Self {
        Self {
            transaction,
            database,
            statements,
            failed: false,
        }
    }

    /// Runs a statement and returns how many rows it wrote.
    pub(super) async fn execute(
        &mut self,
        statement: Query<'_, Sqlite, SqliteArguments>,
    ) -> Result<u64> {
        self.check()?;
        self.statements.count(1);
        let done = statement.execute(&mut *self.transaction).await;
        self.note(done).map(|done| done.rows_affected())
    }

    /// Runs a statement and returns its rows.
    pub(super) async fn fetch(
        &mut self,
        statement: Query<'_, Sqlite, SqliteArguments>,
    ) -> Result<Vec<SqliteRow>> {
        self.check()?;
        self.statements.count(1);
        let rows = statement.fetch_all(&mut *self.transaction).await;
        self.note(rows)
    }

    fn check(&self) -> Result<()> {
        if self.failed {
            return Err(Error::Unavailable(
                "an earlier statement of this transaction failed".into(),
            ));
        }
        Ok(())
    }

    fn note<T>(&mut self, result: Result<T, sqlx::Error>) -> Result<T> {
        result.map_err(|error| {
            let error = from_sqlx(error);
            self.failed |= matches!(error, Error::Unavailable(_));
            error
        })
    }
}

#[async_trait]
impl Tx for SqliteTx {
    async fn now(&mut self) -> Result<Timestamp> {
        Ok(self.database.now())
    }

    async fn commit(self: Box<Self>) -> Result<()> {
        self.check()?;
        self.statements.count(1);
        self.transaction.commit().await.map_err(from_sqlx)
    }

    async fn rollback(self: Box<Self>) -> Result<()> {
        if self.failed {
            // Perhaps there is nothing left to roll back; dropping it finds out.
            return Ok(());
        }
        self.statements.count(1);
        self.transaction.rollback().await.map_err(from_sqlx)
    }

    async fn savepoint(&mut self) -> Result<()> {
        const SAVEPOINT: &str = "SAVEPOINT orderonce";
        self.execute(sqlx::query(SAVEPOINT)).await.map(drop)
    }

    // A rollback leaves the savepoint in place; of several with one name the last is meant.
    async fn rollback_to_savepoint(&mut self) -> Result<()> {
        const ROLLBACK: &str = "ROLLBACK TO orderonce";
        self.execute(sqlx::query(ROLLBACK)).await?;
        self.release_savepoint().await
    }

    async fn release_savepoint(&mut self) -> Result<()> {
        const RELEASE: &str = "RELEASE orderonce";
        self.execute(sqlx::query(RELEASE)).await.map(drop)
    }

    fn connection(&mut self) -> Connection<'_> {
        Connection::Sqlite(&mut self.transaction)
    }
}
