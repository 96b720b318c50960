//! `idempotent_record`.

use super::SqliteTx;
use super::set::{Bytes, Reader, json};
use crate::domain::{Fingerprint, Key, RoleName, Timestamp, Token};
use crate::store::error::all_written;
use crate::store::{Claimed, Claims, Conclusion, NewClaim, Prior, Result};
use async_trait::async_trait;
use std::collections::{HashMap, HashSet};

const TABLE: &str = "idempotent_record";

#[async_trait]
impl Claims for SqliteTx {
    async fn claim(
        &mut self,
        role: &RoleName,
        now: Timestamp,
        claims: &[NewClaim<'_>],
    ) -> Result<Vec<Claimed>> {
        // WHERE true: without it the parser takes ON CONFLICT for a join's ON.
        const CLAIM: &str = "
            INSERT INTO idempotent_record
                (role, key, subject, fingerprint, message_id, outcome, request_body, created_at, concluded_at)
            SELECT ?1, value ->> 0, value ->> 1, substr(?4, value ->> 2, 32), value ->> 3, 'applied', value ->> 4, ?2, ?2
            FROM json_each(?3)
            WHERE true
            ON CONFLICT (role, key) DO NOTHING
            RETURNING key";
        if claims.is_empty() {
            return Ok(Vec::new());
        }
        let mut fingerprints = Bytes::default();
        let set = json(claims.iter().map(|claim| {
            let (start, _) = fingerprints.add(&claim.fingerprint.0);
            let key = claim.key.as_str();
            (key, claim.subject, start, claim.message_id, claim.body)
        }))?;
        let insert = sqlx::query(CLAIM)
            .bind(role.as_str())
            .bind(now.0)
            .bind(set)
            .bind(fingerprints.into_parameter());
        let inserted = self.fetch(insert).await?;
        if inserted.len() == claims.len() {
            return Ok(vec![Claimed::Fresh; claims.len()]);
        }
        let fresh = inserted
            .iter()
            .map(|row| Reader::new(row, TABLE, 1).get(0))
            .collect::<Result<HashSet<&str>>>()?;
        let keys = claims.iter().map(|claim| claim.key.as_str());
        let mut taken = self
            .taken(role, keys.filter(|key| !fresh.contains(key)))
            .await?;
        let answer = |claim: &NewClaim<'_>| {
            let taken = taken.remove(claim.key.as_str());
            taken.unwrap_or(Claimed::Fresh)
        };
        Ok(claims.iter().map(answer).collect())
    }

    async fn conclude(
        &mut self,
        role: &RoleName,
        now: Timestamp,
        conclusions: &[Conclusion<'_>],
    ) -> Result<()> {
        // The role comes with each row: as a parameter it would make SQLite go through all claims
        // of the role.
        const CONCLUDE: &str = "
            UPDATE idempotent_record
            SET outcome = new.value ->> 3, detail = new.value ->> 4, concluded_at = ?1, expired_at = NULL
            FROM json_each(?2) AS new
            WHERE role = new.value ->> 0 AND idempotent_record.key = new.value ->> 1
                AND outcome = new.value ->> 2";
        if conclusions.is_empty() {
            return Ok(());
        }
        let set = json(conclusions.iter().map(|new| {
            let (key, detail) = (new.key.as_str(), new.detail.as_deref());
            (role.as_str(), key, new.from, new.to, detail)
        }))?;
        let update = sqlx::query(CONCLUDE).bind(now.0).bind(set);
        let written = self.execute(update).await?;
        all_written(TABLE, written, conclusions.len())
    }

    async fn unclaim(&mut self, role: &RoleName, keys: &[&Key]) -> Result<()> {
        const UNCLAIM: &str = "
            DELETE FROM idempotent_record
            WHERE role = ?1 AND key IN (SELECT value FROM json_each(?2))";
        if keys.is_empty() {
            return Ok(());
        }
        let set = json(keys.iter().map(|key| key.as_str()))?;
        let delete = sqlx::query(UNCLAIM).bind(role.as_str()).bind(set);
        self.execute(delete).await.map(drop)
    }
}

impl SqliteTx {
    /// What became of keys that are taken.
    async fn taken<'k>(
        &mut self,
        role: &RoleName,
        keys: impl Iterator<Item = &'k str>,
    ) -> Result<HashMap<String, Claimed>> {
        const TAKEN: &str = "
            SELECT claim.key, claim.outcome, claim.fingerprint, parked.awaits, parked.woken_at,
                claim.expired_at IS NOT NULL
            FROM idempotent_record AS claim
            LEFT JOIN parked_event AS parked ON parked.role = claim.role AND parked.key = claim.key
            WHERE claim.role = ?1 AND claim.key IN (SELECT value FROM json_each(?2))";
        let select = sqlx::query(TAKEN).bind(role.as_str()).bind(json(keys)?);
        let rows = self.fetch(select).await?;
        rows.iter()
            .map(|row| {
                let row = Reader::new(row, TABLE, 1);
                let fingerprint = Fingerprint::from_bytes(row.get(2)?)
                    .ok_or_else(|| row.corrupt("the fingerprint has not 32 bytes"))?;
                let prior = match row.get(1)? {
                    "parked" => Some(Prior::Parked {
                        // A parked claim always has its parked row. Were it lost, its copy would
                        // still be decided: it awaits its own key, and counts as woken.
                        awaits: Token::stored(match row.get::<Option<&str>>(3)? {
                            Some(awaits) => awaits,
                            None => row.get(0)?,
                        }),
                        woken: row.get::<Option<&str>>(3)?.is_none()
                            || row.get::<Option<i64>>(4)?.is_some(),
                    }),
                    "dead" => Some(Prior::Dead),
                    _ => None,
                };
                let claimed = match prior {
                    Some(prior) => Claimed::Open { prior, fingerprint },
                    None => Claimed::Done {
                        fingerprint,
                        is_expired: row.get(5)?,
                    },
                };
                Ok((row.get(0)?, claimed))
            })
            .collect()
    }
}
