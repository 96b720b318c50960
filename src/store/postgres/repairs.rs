//! `repair`, and the faults that are repaired.

use super::set::{Reader, readable};
use super::{PostgresStore, PostgresTx};
use crate::domain::{Key, RoleName, Timestamp, Token};
use crate::store::{Faults, HeldLease, NewRepair, Postponed, RepairRow, Repairs, Result, Unwoken};
use async_trait::async_trait;
use sqlx::postgres::PgRow;
use std::time::Duration;

#[async_trait]
impl Faults for PostgresStore {
    async fn unwoken(&self, role: &str, key: &str) -> Result<Option<Unwoken>> {
        const UNWOKEN: &str = "
            SELECT role, key, awaits, subject, parked_at
            FROM parked_event
            WHERE role = $1 AND key = $2 AND woken_at IS NULL";
        let select = sqlx::query(UNWOKEN).bind(role).bind(key);
        let rows = self.database.fetch(select).await?;
        rows.first().map(unwoken).transpose()
    }

    async fn postponed(&self, stuck_after: Duration, limit: u32) -> Result<Vec<Postponed>> {
        const POSTPONED: &str = "
            SELECT id, aggregate, event_type, retry_at, failures, last_error
            FROM outbox
            WHERE retry_at > $1 AND (retry_at > $2 OR created_at < $3)
            ORDER BY id
            LIMIT $4";
        let now = self.database.now().await?;
        let select = sqlx::query(POSTPONED)
            .bind(now.0)
            .bind(now.plus(stuck_after).0)
            .bind(now.minus(stuck_after).0)
            .bind(i64::from(limit));
        let rows = self.database.fetch(select).await?;
        rows.iter().map(postponed).collect()
    }

    async fn lease_beyond(&self, name: &str, longest: Duration) -> Result<Option<HeldLease>> {
        const BEYOND: &str = "
            SELECT name, holder, fence, until FROM lease WHERE name = $1 AND until > $2";
        let now = self.database.now().await?;
        let select = sqlx::query(BEYOND).bind(name).bind(now.plus(longest).0);
        let rows = self.database.fetch(select).await?;
        rows.first().map(held).transpose()
    }
}

#[async_trait]
impl Repairs for PostgresTx {
    async fn unwoken_by(&mut self, token: &Token) -> Result<Vec<Unwoken>> {
        const UNWOKEN_BY: &str = "
            SELECT role, key, awaits, subject, parked_at
            FROM parked_event
            WHERE awaits = $1 AND woken_at IS NULL
            ORDER BY role, key";
        let rows = self
            .fetch(sqlx::query(UNWOKEN_BY).bind(token.as_str()))
            .await?;
        rows.iter().map(unwoken).collect()
    }

    async fn make_due(&mut self, row: &Postponed) -> Result<bool> {
        const MAKE_DUE: &str = "
            UPDATE outbox SET retry_at = 0
            WHERE id = $1 AND failures = $2 AND retry_at = $3";
        let update = sqlx::query(MAKE_DUE)
            .bind(row.id)
            .bind(i64::from(row.failures))
            .bind(row.retry_at.0);
        Ok(self.execute(update).await? > 0)
    }

    async fn end_lease(&mut self, lease: &HeldLease) -> Result<bool> {
        const END: &str = "
            UPDATE lease SET until = 0
            WHERE name = $1 AND holder = $2 AND fence = $3 AND until = $4";
        let update = sqlx::query(END)
            .bind(lease.name.as_str())
            .bind(lease.holder.as_str())
            .bind(lease.fence)
            .bind(lease.until.0);
        Ok(self.execute(update).await? > 0)
    }

    async fn record_repair(&mut self, now: Timestamp, repair: &NewRepair<'_>) -> Result<()> {
        const RECORD: &str = "
            INSERT INTO repair (at, actor, what, subject, role, key, before, after)
            VALUES ($1, $2, $3, $4, $5, $6, $7, $8)";
        let insert = sqlx::query(RECORD)
            .bind(now.0)
            .bind(readable(repair.actor))
            .bind(<&str>::from(repair.what))
            .bind(readable(repair.subject))
            .bind(repair.claim.map(|(role, _)| role.as_str()))
            .bind(repair.claim.map(|(_, key)| key.as_str()))
            .bind(readable(repair.before))
            .bind(readable(repair.after));
        self.execute(insert).await.map(drop)
    }
}

/// Reads `role, key, awaits, subject, parked_at`.
fn unwoken(row: &PgRow) -> Result<Unwoken> {
    let row = Reader::new(row, "parked_event", 2);
    Ok(Unwoken {
        role: RoleName::new(row.get::<String>(0)?),
        key: Key::stored(row.get(1)?),
        awaits: Token::stored(row.get(2)?),
        subject: row.get(3)?,
        parked_at: Timestamp(row.get(4)?),
    })
}

/// Reads `id, aggregate, event_type, retry_at, failures, last_error`.
fn postponed(row: &PgRow) -> Result<Postponed> {
    let row = Reader::new(row, "outbox", 1);
    Ok(Postponed {
        id: row.get(0)?,
        aggregate: row.text(1)?,
        event_type: row.text(2)?,
        retry_at: Timestamp(row.get(3)?),
        failures: row.count(4)?,
        last_error: row.get(5)?,
    })
}

/// Reads `name, holder, fence, until`.
fn held(row: &PgRow) -> Result<HeldLease> {
    let row = Reader::new(row, "lease", 1);
    Ok(HeldLease {
        name: row.get(0)?,
        holder: row.get(1)?,
        fence: row.get(2)?,
        until: Timestamp(row.get(3)?),
    })
}

/// Reads `id, at, actor, what, subject, role, key, before, after`.
pub(super) fn repair(row: &PgRow) -> Result<RepairRow> {
    let row = Reader::new(row, "repair", 1);
    Ok(RepairRow {
        id: row.get(0)?,
        at: Timestamp(row.get(1)?),
        actor: row.get(2)?,
        what: row.get(3)?,
        subject: row.get(4)?,
        role: row.get::<Option<String>>(5)?.map(RoleName::new),
        key: row.get::<Option<&str>>(6)?.map(Key::stored),
        before: row.get(7)?,
        after: row.get(8)?,
    })
}
