//! `idempotent_record`.

use super::PostgresTx;
use super::set::{Reader, column};
use crate::domain::{Fingerprint, Key, RoleName, Timestamp, Token};
use crate::store::error::all_written;
use crate::store::{Claimed, Claims, Conclusion, Error, NewClaim, Prior, Result};
use async_trait::async_trait;
use sqlx::postgres::PgRow;
use std::collections::{HashMap, HashSet};

const TABLE: &str = "idempotent_record";

#[async_trait]
impl Claims for PostgresTx {
    // An insertion waits for a transaction that has inserted the same key: if that one commits, the
    // key is taken; if it rolls back, the key is ours.
    async fn claim(
        &mut self,
        role: &RoleName,
        now: Timestamp,
        claims: &[NewClaim<'_>],
    ) -> Result<Vec<Claimed>> {
        // The claims come sorted by key, and unnest leaves them so. ORDER BY would copy every message
        // once more.
        const CLAIM: &str = "
            INSERT INTO idempotent_record
                (role, key, subject, fingerprint, message_id, outcome, request_body, created_at, concluded_at)
            SELECT $1, new.key, new.subject, new.fingerprint, new.message_id, 'applied', new.body, $2, $2
            FROM unnest($3::text[], $4::text[], $5::bytea[], $6::text[], $7::text[])
                AS new (key, subject, fingerprint, message_id, body)
            ON CONFLICT (role, key) DO NOTHING
            RETURNING key";
        if claims.is_empty() {
            return Ok(Vec::new());
        }
        let insert = sqlx::query(CLAIM)
            .bind(role.as_str())
            .bind(now.0)
            .bind(column(claims, |claim| claim.key.as_str()))
            .bind(column(claims, |claim| claim.subject))
            .bind(column(claims, |claim| &claim.fingerprint.0[..]))
            .bind(column(claims, |claim| claim.message_id))
            .bind(column(claims, |claim| claim.body));
        let inserted = self.fetch(insert).await?;
        if inserted.len() == claims.len() {
            return Ok(vec![Claimed::Fresh; claims.len()]);
        }
        let fresh = inserted
            .iter()
            .map(|row| Reader::new(row, TABLE, 1).get(0))
            .collect::<Result<HashSet<&str>>>()?;
        let keys = claims.iter().map(|claim| claim.key.as_str());
        let keys: Vec<_> = keys.filter(|key| !fresh.contains(key)).collect();
        let mut taken = self.taken(role, &keys).await?;
        let answer = |claim: &NewClaim<'_>| {
            let key = claim.key.as_str();
            if fresh.contains(key) {
                return Ok(Claimed::Fresh);
            }
            // It was given back since: whoever asks again gets it.
            let gone = || {
                Error::lost(format!(
                    "{TABLE}: {role}:{key} was taken and is not any more"
                ))
            };
            taken.remove(key).ok_or_else(gone)
        };
        claims.iter().map(answer).collect()
    }

    async fn conclude(
        &mut self,
        role: &RoleName,
        now: Timestamp,
        conclusions: &[Conclusion<'_>],
    ) -> Result<()> {
        // MATERIALIZED, here and below: the role comes with each row. By a parameter the server would
        // go through all claims of the role, as long as it takes the table for a small one.
        const CONCLUDE: &str = "
            WITH new AS MATERIALIZED (
                SELECT $1::text AS role, key, was, outcome, detail
                FROM unnest($3::text[], $4::text[], $5::text[], $6::text[])
                    AS new (key, was, outcome, detail))
            UPDATE idempotent_record AS claim
            SET outcome = new.outcome, detail = new.detail, concluded_at = $2, expired_at = NULL
            FROM new
            WHERE claim.role = new.role AND claim.key = new.key AND claim.outcome = new.was";
        if conclusions.is_empty() {
            return Ok(());
        }
        let update = sqlx::query(CONCLUDE)
            .bind(role.as_str())
            .bind(now.0)
            .bind(column(conclusions, |new| new.key.as_str()))
            .bind(column(conclusions, |new| new.from))
            .bind(column(conclusions, |new| new.to))
            .bind(column(conclusions, |new| new.detail.as_deref()));
        let written = self.execute(update).await?;
        all_written(TABLE, written, conclusions.len())
    }

    async fn unclaim(&mut self, role: &RoleName, keys: &[&Key]) -> Result<()> {
        const UNCLAIM: &str = "
            WITH gone AS MATERIALIZED (
                SELECT $1::text AS role, key FROM unnest($2::text[]) AS gone (key))
            DELETE FROM idempotent_record
            WHERE (role, key) IN (SELECT role, key FROM gone)";
        if keys.is_empty() {
            return Ok(());
        }
        let delete = sqlx::query(UNCLAIM)
            .bind(role.as_str())
            .bind(column(keys.iter().copied(), Key::as_str));
        self.execute(delete).await.map(drop)
    }
}

/// What a claim says.
struct Said {
    key: String,
    outcome: String,
    fingerprint: Fingerprint,
    is_expired: bool,
}

impl Said {
    /// Whether a copy of the event may resume. What is settled stays so, and needs no lock.
    fn is_open(&self) -> bool {
        matches!(&*self.outcome, "parked" | "dead")
    }

    fn done(&self) -> Claimed {
        Claimed::Done {
            fingerprint: self.fingerprint,
            is_expired: self.is_expired,
        }
    }
}

impl PostgresTx {
    /// What became of keys that are taken. Those that are open are locked, so that of two copies one
    /// resumes.
    async fn taken(&mut self, role: &RoleName, keys: &[&str]) -> Result<HashMap<String, Claimed>> {
        const TAKEN: &str = "
            WITH wanted AS MATERIALIZED (
                SELECT $1::text AS role, key FROM unnest($2::text[]) AS wanted (key))
            SELECT key, outcome, fingerprint, expired_at IS NOT NULL
            FROM idempotent_record
            WHERE (role, key) IN (SELECT role, key FROM wanted)";
        const LOCK: &str = "
            WITH wanted AS MATERIALIZED (
                SELECT $1::text AS role, key FROM unnest($2::text[]) AS wanted (key))
            SELECT key, outcome, fingerprint, expired_at IS NOT NULL
            FROM idempotent_record
            WHERE (role, key) IN (SELECT role, key FROM wanted)
            ORDER BY key
            FOR UPDATE OF idempotent_record";
        let (mut open, mut taken) = (Vec::new(), HashMap::with_capacity(keys.len()));
        for said in self.said(TAKEN, role, keys).await? {
            if said.is_open() {
                open.push(said.key);
            } else {
                let done = said.done();
                taken.insert(said.key, done);
            }
        }
        if open.is_empty() {
            return Ok(taken);
        }
        let open: Vec<_> = open.iter().map(String::as_str).collect();
        let open = self.said(LOCK, role, &open).await?;
        // A statement of its own, after the lock: a join would see the parked events as they were
        // before the lock was waited for. They are not locked themselves: whoever wakes them has
        // locked the rows that these events are about to wait for.
        let parked = open.iter().filter(|said| said.outcome == "parked");
        let parked: Vec<_> = parked.map(|said| said.key.as_str()).collect();
        let mut awaited = self.awaited(role, &parked).await?;
        for said in open {
            let fingerprint = said.fingerprint;
            let prior = match &*said.outcome {
                // A parked claim always has its parked row. Were it lost, its copy would still be
                // decided: it awaits its own key, and counts as woken.
                "parked" => awaited.remove(&said.key).unwrap_or_else(|| Prior::Parked {
                    awaits: Token::stored(&said.key),
                    woken: true,
                }),
                "dead" => Prior::Dead,
                _ => {
                    let done = said.done();
                    taken.insert(said.key, done);
                    continue;
                }
            };
            taken.insert(said.key, Claimed::Open { prior, fingerprint });
        }
        Ok(taken)
    }

    async fn said(
        &mut self,
        statement: &'static str,
        role: &RoleName,
        keys: &[&str],
    ) -> Result<Vec<Said>> {
        let select = sqlx::query(statement).bind(role.as_str()).bind(keys);
        let rows = self.fetch(select).await?;
        rows.iter().map(said).collect()
    }

    async fn awaited(&mut self, role: &RoleName, keys: &[&str]) -> Result<HashMap<String, Prior>> {
        const AWAITED: &str = "
            WITH wanted AS MATERIALIZED (
                SELECT $1::text AS role, key FROM unnest($2::text[]) AS wanted (key))
            SELECT key, awaits, woken_at
            FROM parked_event
            WHERE (role, key) IN (SELECT role, key FROM wanted)";
        if keys.is_empty() {
            return Ok(HashMap::new());
        }
        let select = sqlx::query(AWAITED).bind(role.as_str()).bind(keys);
        let rows = self.fetch(select).await?;
        let prior = |row: &PgRow| {
            let row = Reader::new(row, "parked_event", 1);
            let prior = Prior::Parked {
                awaits: Token::stored(row.get(1)?),
                woken: row.get::<Option<i64>>(2)?.is_some(),
            };
            Ok((row.get(0)?, prior))
        };
        rows.iter().map(prior).collect()
    }
}

/// Reads `key, outcome, fingerprint`, and whether it has expired.
fn said(row: &PgRow) -> Result<Said> {
    let row = Reader::new(row, TABLE, 1);
    Ok(Said {
        key: row.get(0)?,
        outcome: row.get(1)?,
        fingerprint: Fingerprint::from_bytes(row.get(2)?)
            .ok_or_else(|| row.corrupt("the fingerprint has not 32 bytes"))?,
        is_expired: row.get(3)?,
    })
}
