//! `account`, `account_flow`.

use super::MySqlTx;
use super::set::{Reader, json_by, keys};
use crate::domain::Timestamp;
use crate::domain::account::{Account, AccountFlow, AccountId, Source};
use crate::domain::{SourceId, SourceType};
use crate::store::error::all_written;
use crate::store::{AccountUpdate, Accounts, CreditState, Result};
use async_trait::async_trait;
use sqlx::mysql::MySqlRow;

#[async_trait]
impl Accounts for MySqlTx {
    async fn load_accounts(&mut self, ids: &[&AccountId]) -> Result<Vec<Account>> {
        const LOAD: &str = "
            SELECT a.user_id, a.kind, a.balance, a.version
            FROM JSON_TABLE(?, '$[*]' COLUMNS (
                user_id VARBINARY(512) PATH '$[0]',
                kind VARBINARY(512) PATH '$[1]')) AS wanted
            STRAIGHT_JOIN account AS a FORCE INDEX (PRIMARY)
                ON a.user_id = wanted.user_id AND a.kind = wanted.kind
            FOR UPDATE";
        if ids.is_empty() {
            return Ok(Vec::new());
        }
        let set = keys(ids.iter().map(|id| (&id.user_id, &id.kind)))?;
        let rows = self.fetch(sqlx::query(LOAD).bind(set)).await?;
        rows.iter().map(account).collect()
    }

    async fn load_account_flows(
        &mut self,
        sources: &[(&AccountId, &Source)],
    ) -> Result<Vec<CreditState>> {
        const LOAD: &str = "
            SELECT flow.user_id, flow.kind, flow.source_type, flow.source_id, flow.reverses_source_type,
                flow.reverses_source_id, flow.amount, flow.balance_after,
                (SELECT CAST(COALESCE(-SUM(reversal.amount), 0) AS SIGNED)
                FROM account_flow AS reversal FORCE INDEX (account_flow_reverses)
                WHERE reversal.user_id = flow.user_id AND reversal.kind = flow.kind
                    AND reversal.reverses_source_type = flow.source_type
                    AND reversal.reverses_source_id = flow.source_id)
            FROM JSON_TABLE(?, '$[*]' COLUMNS (
                user_id VARBINARY(512) PATH '$[0]',
                kind VARBINARY(512) PATH '$[1]',
                source_type VARBINARY(512) PATH '$[2]',
                source_id VARBINARY(512) PATH '$[3]')) AS wanted
            STRAIGHT_JOIN account_flow AS flow FORCE INDEX (PRIMARY)
                ON flow.user_id = wanted.user_id AND flow.kind = wanted.kind
                    AND flow.source_type = wanted.source_type AND flow.source_id = wanted.source_id";
        if sources.is_empty() {
            return Ok(Vec::new());
        }
        let set = keys(sources.iter().map(|(account, source)| {
            let (user_id, kind) = (&account.user_id, &account.kind);
            (user_id, kind, &source.source_type, &source.source_id)
        }))?;
        let rows = self.fetch(sqlx::query(LOAD).bind(set)).await?;
        rows.iter().map(credit).collect()
    }

    async fn insert_accounts(&mut self, now: Timestamp, accounts: &[&Account]) -> Result<()> {
        const INSERT: &str = "
            INSERT INTO account (user_id, kind, balance, version, updated_at)
            SELECT new.user_id, new.kind, new.balance, new.version, ?
            FROM JSON_TABLE(?, '$[*]' COLUMNS (
                user_id VARBINARY(512) PATH '$[0]',
                kind VARBINARY(512) PATH '$[1]',
                balance BIGINT PATH '$[2]',
                version BIGINT PATH '$[3]')) AS new";
        if accounts.is_empty() {
            return Ok(());
        }
        let set = json_by(
            accounts.iter().map(|account| {
                let (user_id, kind) = (&account.id.user_id, &account.id.kind);
                (user_id, kind, account.balance, account.version)
            }),
            |a, b| (a.0, a.1).cmp(&(b.0, b.1)),
        )?;
        let insert = sqlx::query(INSERT).bind(now.0).bind(set);
        self.execute(insert).await.map(drop)
    }

    // Differs from Postgres as hold_absent_orders does.
    async fn hold_absent_accounts(&mut self, ids: &[&AccountId]) -> Result<()> {
        const HOLD: &str = "
            INSERT INTO account (user_id, kind, balance, version, updated_at)
            SELECT absent.user_id, absent.kind, 0, 1, 0
            FROM JSON_TABLE(?, '$[*]' COLUMNS (
                user_id VARBINARY(512) PATH '$[0]',
                kind VARBINARY(512) PATH '$[1]')) AS absent";
        const LEAVE_ABSENT: &str = "
            DELETE a
            FROM JSON_TABLE(?, '$[*]' COLUMNS (
                user_id VARBINARY(512) PATH '$[0]',
                kind VARBINARY(512) PATH '$[1]')) AS absent
            STRAIGHT_JOIN account AS a FORCE INDEX (PRIMARY)
                ON a.user_id = absent.user_id AND a.kind = absent.kind";
        if ids.is_empty() {
            return Ok(());
        }
        let set = keys(ids.iter().map(|id| (&id.user_id, &id.kind)))?;
        self.hold("account", HOLD, LEAVE_ABSENT, set).await
    }

    async fn update_accounts(
        &mut self,
        now: Timestamp,
        updates: &[AccountUpdate<'_>],
    ) -> Result<()> {
        const UPDATE: &str = "
            UPDATE JSON_TABLE(?, '$[*]' COLUMNS (
                user_id VARBINARY(512) PATH '$[0]',
                kind VARBINARY(512) PATH '$[1]',
                was_version BIGINT PATH '$[2]',
                balance BIGINT PATH '$[3]',
                version BIGINT PATH '$[4]')) AS new
            STRAIGHT_JOIN account AS a FORCE INDEX (PRIMARY)
                ON a.user_id = new.user_id AND a.kind = new.kind
            SET a.balance = new.balance, a.version = new.version, a.updated_at = ?
            WHERE a.version = new.was_version";
        if updates.is_empty() {
            return Ok(());
        }
        let set = json_by(
            updates.iter().map(|update| {
                let account = update.account;
                let (user_id, kind) = (&account.id.user_id, &account.id.kind);
                let (balance, version) = (account.balance, account.version);
                (user_id, kind, update.was_version, balance, version)
            }),
            |a, b| (a.0, a.1).cmp(&(b.0, b.1)),
        )?;
        let update = sqlx::query(UPDATE).bind(set).bind(now.0);
        let written = self.execute(update).await?;
        all_written("account", written, updates.len())
    }

    async fn insert_account_flows(&mut self, now: Timestamp, flows: &[AccountFlow]) -> Result<()> {
        const INSERT: &str = "
            INSERT INTO account_flow
                (user_id, kind, source_type, source_id, reverses_source_type, reverses_source_id,
                amount, balance_after, at)
            SELECT new.user_id, new.kind, new.source_type, new.source_id, new.reverses_source_type,
                new.reverses_source_id, new.amount, new.balance_after, ?
            FROM JSON_TABLE(?, '$[*]' COLUMNS (
                user_id VARBINARY(512) PATH '$[0]',
                kind VARBINARY(512) PATH '$[1]',
                source_type VARBINARY(512) PATH '$[2]',
                source_id VARBINARY(512) PATH '$[3]',
                reverses_source_type VARBINARY(512) PATH '$[4]',
                reverses_source_id VARBINARY(512) PATH '$[5]',
                amount BIGINT PATH '$[6]',
                balance_after BIGINT PATH '$[7]')) AS new";
        if flows.is_empty() {
            return Ok(());
        }
        let set = json_by(
            flows.iter().map(|flow| {
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
            }),
            |a, b| (a.0, a.1, a.2, a.3).cmp(&(b.0, b.1, b.2, b.3)),
        )?;
        let insert = sqlx::query(INSERT).bind(now.0).bind(set);
        self.execute(insert).await.map(drop)
    }
}

pub(super) fn account(row: &MySqlRow) -> Result<Account> {
    let row = Reader::new(row, "account", 2);
    Ok(Account {
        id: account_id(&row)?,
        balance: row.get(2)?,
        version: row.get(3)?,
    })
}

fn credit(row: &MySqlRow) -> Result<CreditState> {
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
