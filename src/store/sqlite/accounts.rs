//! `account`, `account_flow`.

use super::SqliteTx;
use super::set::{Reader, json};
use crate::domain::Timestamp;
use crate::domain::account::{Account, AccountFlow, AccountId, Source};
use crate::domain::{SourceId, SourceType};
use crate::store::error::all_written;
use crate::store::{AccountUpdate, Accounts, CreditState, Result};
use async_trait::async_trait;
use sqlx::sqlite::SqliteRow;

#[async_trait]
impl Accounts for SqliteTx {
    async fn load_accounts(&mut self, ids: &[&AccountId]) -> Result<Vec<Account>> {
        const LOAD: &str = "
            SELECT user_id, kind, balance, version
            FROM account
            WHERE (user_id, kind) IN (SELECT value ->> 0, value ->> 1 FROM json_each(?1))";
        if ids.is_empty() {
            return Ok(Vec::new());
        }
        let set = json(ids.iter().map(|id| (&id.user_id, &id.kind)))?;
        let rows = self.fetch(sqlx::query(LOAD).bind(set)).await?;
        rows.iter().map(account).collect()
    }

    async fn load_account_flows(
        &mut self,
        sources: &[(&AccountId, &Source)],
    ) -> Result<Vec<CreditState>> {
        // INDEXED BY: SQLite would rather read all flows of the account.
        const LOAD: &str = "
            SELECT user_id, kind, source_type, source_id, reverses_source_type, reverses_source_id,
                amount, balance_after,
                (SELECT coalesce(-sum(reversal.amount), 0)
                FROM account_flow AS reversal INDEXED BY account_flow_reverses
                WHERE reversal.user_id = flow.user_id AND reversal.kind = flow.kind
                    AND reversal.reverses_source_type = flow.source_type
                    AND reversal.reverses_source_id = flow.source_id)
            FROM account_flow AS flow
            WHERE (user_id, kind, source_type, source_id) IN (
                SELECT value ->> 0, value ->> 1, value ->> 2, value ->> 3 FROM json_each(?1))";
        if sources.is_empty() {
            return Ok(Vec::new());
        }
        let set = json(sources.iter().map(|(account, source)| {
            let (user_id, kind) = (&account.user_id, &account.kind);
            (user_id, kind, &source.source_type, &source.source_id)
        }))?;
        let rows = self.fetch(sqlx::query(LOAD).bind(set)).await?;
        rows.iter().map(credit).collect()
    }

    async fn insert_accounts(&mut self, now: Timestamp, accounts: &[&Account]) -> Result<()> {
        const INSERT: &str = "
            INSERT INTO account (user_id, kind, balance, version, updated_at)
            SELECT value ->> 0, value ->> 1, value ->> 2, value ->> 3, ?1
            FROM json_each(?2)";
        if accounts.is_empty() {
            return Ok(());
        }
        let set = json(accounts.iter().map(|account| {
            let (user_id, kind) = (&account.id.user_id, &account.id.kind);
            (user_id, kind, account.balance, account.version)
        }))?;
        let insert = sqlx::query(INSERT).bind(now.0).bind(set);
        self.execute(insert).await.map(drop)
    }

    // A transaction has the write lock from the start: nobody else inserts anything.
    async fn hold_absent_accounts(&mut self, _ids: &[&AccountId]) -> Result<()> {
        Ok(())
    }

    async fn update_accounts(
        &mut self,
        now: Timestamp,
        updates: &[AccountUpdate<'_>],
    ) -> Result<()> {
        const UPDATE: &str = "
            UPDATE account
            SET balance = new.value ->> 3, version = new.value ->> 4, updated_at = ?1
            FROM json_each(?2) AS new
            WHERE user_id = new.value ->> 0 AND kind = new.value ->> 1 AND version = new.value ->> 2";
        if updates.is_empty() {
            return Ok(());
        }
        let set = json(updates.iter().map(|update| {
            let account = update.account;
            let (user_id, kind) = (&account.id.user_id, &account.id.kind);
            let (balance, version) = (account.balance, account.version);
            (user_id, kind, update.was_version, balance, version)
        }))?;
        let update = sqlx::query(UPDATE).bind(now.0).bind(set);
        let written = self.execute(update).await?;
        all_written("account", written, updates.len())
    }

    async fn insert_account_flows(&mut self, now: Timestamp, flows: &[AccountFlow]) -> Result<()> {
        const INSERT: &str = "
            INSERT INTO account_flow
                (user_id, kind, source_type, source_id, reverses_source_type, reverses_source_id,
                amount, balance_after, at)
            SELECT value ->> 0, value ->> 1, value ->> 2, value ->> 3, value ->> 4, value ->> 5,
                value ->> 6, value ->> 7, ?1
            FROM json_each(?2)";
        if flows.is_empty() {
            return Ok(());
        }
        let set = json(flows.iter().map(|flow| {
            let reverses = flow.reverses.as_ref();
            (
                &flow.account.user_id,
                &flow.account.kind,
                &flow.source.source_type,
                &flow.source.source_id,
                reverses.map(|source| &source.source_type),
                reverses.map(|source| &source.source_id),
                flow.amount,
                flow.balance_after,
            )
        }))?;
        let insert = sqlx::query(INSERT).bind(now.0).bind(set);
        self.execute(insert).await.map(drop)
    }
}

pub(super) fn account(row: &SqliteRow) -> Result<Account> {
    let row = Reader::new(row, "account", 2);
    Ok(Account {
        id: account_id(&row)?,
        balance: row.get(2)?,
        version: row.get(3)?,
    })
}

fn credit(row: &SqliteRow) -> Result<CreditState> {
    let row = Reader::new(row, "account_flow", 4);
    let source_type: Option<SourceType> = row.parse_optional(4)?;
    let source_id: Option<SourceId> = row.parse_optional(5)?;
    let reverses = source_type.zip(source_id);
    Ok(CreditState {
        credit: AccountFlow {
            account: account_id(&row)?,
            source: Source {
                source_type: row.parse(2)?,
                source_id: row.parse(3)?,
            },
            reverses: reverses.map(|(source_type, source_id)| Source {
                source_type,
                source_id,
            }),
            amount: row.get(6)?,
            balance_after: row.get(7)?,
        },
        reversed: row.get(8)?,
    })
}

/// The account of a row that begins with `user_id, kind`.
fn account_id(row: &Reader<'_>) -> Result<AccountId> {
    Ok(AccountId {
        user_id: row.parse(0)?,
        kind: row.parse(1)?,
    })
}
