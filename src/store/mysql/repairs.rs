//! `repair`, and the faults that are repaired.

use super::set::Reader;
use super::{MySqlStore, MySqlTx};
use crate::domain::{Key, RoleName, Timestamp, Token};
use crate::store::{Faults, HeldLease, NewRepair, Postponed, RepairRow, Repairs, Result, Unwoken};
use async_trait::async_trait;
use sqlx::mysql::MySqlRow;
use std::time::Duration;

#[async_trait]
impl Faults for MySqlStore {
    async fn unwoken(&self, role: &str, key: &str) -> Result<Option<Unwoken>> {
        const UNWOKEN: &str = "
            SELECT role, `key`, awaits, subject, parked_at
            FROM parked_event
            WHERE role = ? AND `key` = ? AND woken_at IS NULL";
        let select = sqlx::query(UNWOKEN)
            .bind(role.to_owned())
            .bind(key.to_owned());
        let rows = self.database.fetch(select).await?;
        rows.first().map(unwoken).transpose()
    }

    async fn postponed(&self, stuck_after: Duration, limit: u32) -> Result<Vec<Postponed>> {
        const POSTPONED: &str = "
            SELECT id, aggregate, event_type, retry_at, failures, last_error
            FROM outbox
            WHERE retry_at > ? AND (retry_at > ? OR created_at < ?)
            ORDER BY id
            LIMIT ?";
        let now = self.database.now().await?;
        let select = sqlx::query(POSTPONED)
            .bind(now.0)
            .bind(now.plus(stuck_after).0)
            .bind(now.minus(stuck_after).0)
            .bind(limit);
        let rows = self.database.fetch(select).await?;
        rows.iter().map(postponed).collect()
    }

    async fn lease_beyond(&self, name: &str, longest: Duration) -> Result<Option<HeldLease>> {
        const BEYOND: &str = "
            SELECT name, holder, fence, until FROM lease WHERE name = ? AND until > ?";
        let now = self.database.now().await?;
        let select = sqlx::query(BEYOND)
            .bind(name.to_owned())
            .bind(now.plus(longest).0);
        let rows = self.database.fetch(select).await?;
        rows.first().map(held).transpose()
    }
}

#[async_trait]
impl Repairs for MySqlTx {
    async fn unwoken_by(&mut self, token: &Token) -> Result<Vec<Unwoken>> {
        const UNWOKEN_BY: &str = "
            SELECT role, `key`, awaits, subject, parked_at
            FROM parked_event
            WHERE awaits = ? AND woken_at IS NULL
            ORDER BY role, `key`";
        let rows = self
            .fetch(sqlx::query(UNWOKEN_BY).bind(token.as_str()))
            .await?;
        rows.iter().map(unwoken).collect()
    }

    async fn make_due(&mut self, row: &Postponed) -> Result<bool> {
        const MAKE_DUE: &str = "
            UPDATE outbox SET retry_at = 0
            WHERE id = ? AND failures = ? AND retry_at = ?";
        let update = sqlx::query(MAKE_DUE)
            .bind(row.id)
            .bind(row.failures)
            .bind(row.retry_at.0);
        Ok(self.execute(update).await? > 0)
    }

    async fn end_lease(&mut self, lease: &HeldLease) -> Result<bool> {
        const END: &str = "
            UPDATE lease SET until = 0
            WHERE name = ? AND holder = ? AND fence = ? AND until = ?";
        let update = sqlx::query(END)
            .bind(lease.name.as_str())
            .bind(lease.holder.as_str())
            .bind(lease.fence)
            .bind(lease.until.0);
        Ok(self.execute(update).await? > 0)
    }

    async fn record_repair(&mut self, now: Timestamp, repair: &NewRepair<'_>) -> Result<()> {
        const RECORD: &str = "
            INSERT INTO repair (at, actor, what, subject, role, `key`, `before`, `after`)
            VALUES (?, ?, ?, ?, ?, ?, ?, ?)";
        let insert = sqlx::query(RECORD)
            .bind(now.0)
            .bind(repair.actor)
            .bind(<&str>::from(repair.what))
            .bind(repair.subject)
            .bind(repair.claim.map(|(role, _)| role.as_str()))
            .bind(repair.claim.map(|(_, key)| key.as_str()))
            .bind(repair.before)
            .bind(repair.after);
        self.execute(insert).await.map(drop)
    }
}

/// Reads `role, key, awaits, subject, parked_at`.
fn unwoken(row: &MySqlRow) -> Result<Unwoken> {
    let row = Reader::new(row, "parked_event", 2);
    Ok(Unwoken {
        role: RoleName::new(row.text(0)?.to_owned()),
        key: Key::stored(row.text(1)?),
        awaits: Token::stored(row.text(2)?),
        subject: row.text(3)?.to_owned(),
        parked_at: Timestamp(row.get(4)?),
    })
}

/// Reads `id, aggregate, event_type, retry_at, failures, last_error`.
fn postponed(row: &MySqlRow) -> Result<Postponed> {
    let row = Reader::new(row, "outbox", 1);
    Ok(Postponed {
        id: row.get(0)?,
        aggregate: row.text(1)?.to_owned(),
        event_type: row.text(2)?.to_owned(),
        retry_at: Timestamp(row.get(3)?),
        failures: row.get(4)?,
        last_error: row.optional_text(5)?.map(str::to_owned),
    })
}

/// Reads `name, holder, fence, until`.
fn held(row: &MySqlRow) -> Result<HeldLease> {
    let row = Reader::new(row, "lease", 1);
    Ok(HeldLease {
        name: row.text(0)?.to_owned(),
        holder: row.text(1)?.to_owned(),
        fence: row.get(2)?,
        until: Timestamp(row.get(3)?),
    })
}

/// Reads `id, at, actor, what, subject, role, key, before, after`.
pub(super) fn repair(row: &MySqlRow) -> Result<RepairRow> {
    let row = Reader::new(row, "repair", 1);
    Ok(RepairRow {
        id: row.get(0)?,
        at: Timestamp(row.get(1)?),
        actor: row.text(2)?.to_owned(),
        what: row.text(3)?.to_owned(),
        subject: row.text(4)?.to_owned(),
        role: row
            .optional_text(5)?
            .map(|role| RoleName::new(role.to_owned())),
        key: row.optional_text(6)?.map(Key::stored),
        before: row.text(7)?.to_owned(),
        after: row.text(8)?.to_owned(),
    })
}
