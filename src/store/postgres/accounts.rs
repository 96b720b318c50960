//! `account`, `account_flow`.

use super::PostgresTx;
use super::set::{Reader, all_absent, column};
use crate::domain::Timestamp;
use crate::domain::account::{Account, AccountFlow, AccountId, Source};
use crate::domain::{SourceId, SourceType};
use crate::store::error::all_written;
use crate::store::{AccountUpdate, Accounts, CreditState, Result};
use async_trait::async_trait;
use sqlx::postgres::PgRow;

#[async_trait]
impl Accounts for PostgresTx {
    async fn load_accounts(&mut self, ids: &[&AccountId]) -> Result<Vec<Account>> {
        const LOAD: &str = "
            SELECT user_id, kind, balance, version
            FROM account
            WHERE (user_id, kind) IN (
                SELECT user_id, kind FROM unnest($1::text[], $2::text[]) AS wanted (user_id, kind))
            ORDER BY user_id, kind
            FOR UPDATE";
        if ids.is_empty() {
            return Ok(Vec::new());
        }
        let select = sqlx::query(LOAD)
            .bind(column(ids, |id| id.user_id.as_str()))
            .bind(column(ids, |id| id.kind.as_str()));
        let rows = self.fetch(select).await?;
        rows.iter().map(account).collect()
    }

    async fn load_account_flows(
        &mut self,
        sources: &[(&AccountId, &Source)],
    ) -> Result<Vec<CreditState>> {
        const LOAD: &str = "
            SELECT user_id, kind, source_type, source_id, reverses_source_type, reverses_source_id,
                amount, balance_after,
                (SELECT coalesce(-sum(reversal.amount), 0)
                FROM account_flow AS reversal
                WHERE reversal.user_id = flow.user_id AND reversal.kind = flow.kind
                    AND reversal.reverses_source_type = flow.source_type
                    AND reversal.reverses_source_id = flow.source_id)::bigint
            FROM account_flow AS flow
            WHERE (user_id, kind, source_type, source_id) IN (
                SELECT user_id, kind, source_type, source_id
                FROM unnest($1::text[], $2::text[], $3::text[], $4::text[])
                    AS wanted (user_id, kind, source_type, source_id))";
        if sources.is_empty() {
            return Ok(Vec::new());
        }
        let select = sqlx::query(LOAD)
            .bind(column(sources, |(account, _)| account.user_id.as_str()))
            .bind(column(sources, |(account, _)| account.kind.as_str()))
            .bind(column(sources, |(_, source)| source.source_type.as_str()))
            .bind(column(sources, |(_, source)| source.source_id.as_str()));
        let rows = self.fetch(select).await?;
        rows.iter().map(credit).collect()
    }

    async fn insert_accounts(&mut self, now: Timestamp, accounts: &[&Account]) -> Result<()> {
        const INSERT: &str = "
            INSERT INTO account (user_id, kind, balance, version, updated_at)
            SELECT user_id, kind, balance, version, $1
            FROM unnest($2::text[], $3::text[], $4::bigint[], $5::bigint[])
                AS new (user_id, kind, balance, version)
            ORDER BY user_id COLLATE \"C\", kind COLLATE \"C\"";
        if accounts.is_empty() {
            return Ok(());
        }
        let accounts = || accounts.iter().copied();
        let insert = sqlx::query(INSERT)
            .bind(now.0)
            .bind(column(accounts(), |account| account.id.user_id.as_str()))
            .bind(column(accounts(), |account| account.id.kind.as_str()))
            .bind(column(accounts(), |account| account.balance))
            .bind(column(accounts(), |account| account.version));
        self.execute(insert).await.map(drop)
    }

    // Rows in their place, until this transaction has ended: whoever inserts one of these keys waits
    // for that.
    async fn hold_absent_accounts(&mut self, ids: &[&AccountId]) -> Result<()> {
        const HOLD: &str = "
            INSERT INTO account (user_id, kind, balance, version, updated_at)
            SELECT absent.user_id, absent.kind, 0, 1, 0
            FROM unnest($1::text[], $2::text[]) AS absent (user_id, kind)
            ORDER BY absent.user_id COLLATE \"C\", absent.kind COLLATE \"C\"
            ON CONFLICT (user_id, kind) DO NOTHING";
        const LET_GO: &str = "
            DELETE FROM account
            WHERE (user_id, kind) IN (
                SELECT user_id, kind FROM unnest($1::text[], $2::text[]) AS held (user_id, kind))";
        if ids.is_empty() {
            return Ok(());
        }
        let users = column(ids, |id| id.user_id.as_str());
        let kinds = column(ids, |id| id.kind.as_str());
        let hold = sqlx::query(HOLD).bind(&users).bind(&kinds);
        let held = self.execute(hold).await?;
        all_absent("account", held, ids.len())?;
        let let_go = sqlx::query(LET_GO).bind(&users).bind(&kinds);
        self.execute(let_go).await.map(drop)
    }

    async fn update_accounts(
        &mut self,
        now: Timestamp,
        updates: &[AccountUpdate<'_>],
    ) -> Result<()> {
        const UPDATE: &str = "
            UPDATE account
            SET balance = new.balance, version = new.version, updated_at = $1
            FROM unnest($2::text[], $3::text[], $4::bigint[], $5::bigint[], $6::bigint[])
                AS new (user_id, kind, was_version, balance, version)
            WHERE account.user_id = new.user_id AND account.kind = new.kind
                AND account.version = new.was_version";
        if updates.is_empty() {
            return Ok(());
        }
        let update = sqlx::query(UPDATE)
            .bind(now.0)
            .bind(column(updates, |update| update.account.id.user_id.as_str()))
            .bind(column(updates, |update| update.account.id.kind.as_str()))
            .bind(column(updates, |update| update.was_version))
            .bind(column(updates, |update| update.account.balance))
            .bind(column(updates, |update| update.account.version));
        let written = self.execute(update).await?;
        all_written("account", written, updates.len())
    }

    async fn insert_account_flows(&mut self, now: Timestamp, flows: &[AccountFlow]) -> Result<()> {
        const INSERT: &str = "
            INSERT INTO account_flow
                (user_id, kind, source_type, source_id, reverses_source_type, reverses_source_id,
                amount, balance_after, at)
            SELECT user_id, kind, source_type, source_id, reverses_source_type, reverses_source_id,
                amount, balance_after, $1
            FROM unnest($2::text[], $3::text[], $4::text[], $5::text[], $6::text[], $7::text[],
                    $8::bigint[], $9::bigint[])
                AS new (user_id, kind, source_type, source_id, reverses_source_type,
                    reverses_source_id, amount, balance_after)
            ORDER BY user_id COLLATE \"C\", kind COLLATE \"C\", source_type COLLATE \"C\",
                source_id COLLATE \"C\"";
        if flows.is_empty() {
            return Ok(());
        }
        let insert = sqlx::query(INSERT)
            .bind(now.0)
            .bind(column(flows, |flow| flow.account.user_id.as_str()))
            .bind(column(flows, |flow| flow.account.kind.as_str()))
            .bind(column(flows, |flow| flow.source.source_type.as_str()))
            .bind(column(flows, |flow| flow.source.source_id.as_str()))
            .bind(column(flows, |flow| {
                reverses(flow).map(|source| source.source_type.as_str())
            }))
            .bind(column(flows, |flow| {
                reverses(flow).map(|source| source.source_id.as_str())
            }))
            .bind(column(flows, |flow| flow.amount))
            .bind(column(flows, |flow| flow.balance_after));
        self.execute(insert).await.map(drop)
    }
}

fn reverses(flow: &AccountFlow) -> Option<&Source> {
    flow.reverses.as_ref()
}

pub(super) fn account(row: &PgRow) -> Result<Account> {
    let row = Reader::new(row, "account", 2);
    Ok(Account {
        id: account_id(&row)?,
        balance: row.get(2)?,
        version: row.get(3)?,
    })
}

fn credit(row: &PgRow) -> Result<CreditState> {
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
