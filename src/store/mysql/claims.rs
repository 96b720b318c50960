//! `idempotent_record`.

use super::set::{Bytes, Reader, json, json_by};
use super::{MySqlTx, set};
use crate::domain::{Fingerprint, Key, RoleName, Timestamp, Token};
use crate::store::error::all_written;
use crate::store::{Claimed, Claims, Conclusion, NewClaim, Prior, Result};
use async_trait::async_trait;
use std::collections::HashMap;

const TABLE: &str = "idempotent_record";

#[async_trait]
impl Claims for MySqlTx {
    // Differs from Postgres: nothing tells which rows were inserted. Each claim writes a token of its
    // own, and a key whose row has it was free, also if it had been taken by a transaction that was
    // waited for and then rolled back. The update changes nothing; it locks what was taken. Without
    // WHERE the parser takes its ON for the join's.
    async fn claim(
        &mut self,
        role: &RoleName,
        now: Timestamp,
        claims: &[NewClaim<'_>],
    ) -> Result<Vec<Claimed>> {
        const CLAIM: &str = "
            INSERT INTO idempotent_record
                (role, `key`, subject, fingerprint, message_id, outcome, request_body, created_at, concluded_at,
                claim_token)
            SELECT ?, new.`key`, new.subject, SUBSTRING(fingerprints.bytes, new.fingerprint, 32), new.message_id,
                'applied', new.body, ?, ?, ?
            FROM (SELECT CAST(? AS BINARY) AS bytes) AS fingerprints
            STRAIGHT_JOIN JSON_TABLE(?, '$[*]' COLUMNS (
                `key` VARBINARY(191) PATH '$[0]',
                subject LONGBLOB PATH '$[1]',
                fingerprint BIGINT PATH '$[2]',
                message_id LONGBLOB PATH '$[3]',
                body LONGBLOB PATH '$[4]')) AS new
            WHERE TRUE
            ON DUPLICATE KEY UPDATE role = idempotent_record.role";
        if claims.is_empty() {
            return Ok(Vec::new());
        }
        let mut fingerprints = Bytes::default();
        let set = json(claims.iter().map(|claim| {
            let (start, _) = fingerprints.add(&claim.fingerprint.0);
            let key = claim.key.as_str();
            (key, claim.subject, start, claim.message_id, claim.body)
        }))?;
        self.database().fits(fingerprints.len() + set.len())?;
        let token = self.database().next_token();
        let insert = sqlx::query(CLAIM)
            .bind(role.as_str())
            .bind(now.0)
            .bind(now.0)
            .bind(&token[..])
            .bind(fingerprints.into_parameter())
            .bind(set);
        self.execute(insert).await?;
        let mut taken = self.taken(role, claims, &token).await?;
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
        const CONCLUDE: &str = "
            UPDATE JSON_TABLE(?, '$[*]' COLUMNS (
                `key` VARBINARY(191) PATH '$[0]',
                was VARBINARY(16) PATH '$[1]',
                outcome VARBINARY(16) PATH '$[2]',
                detail LONGBLOB PATH '$[3]')) AS new
            STRAIGHT_JOIN idempotent_record AS claim FORCE INDEX (PRIMARY)
                ON claim.role = ? AND claim.`key` = new.`key`
            SET claim.outcome = new.outcome, claim.detail = new.detail, claim.concluded_at = ?,
                claim.expired_at = NULL
            WHERE claim.outcome = new.was";
        if conclusions.is_empty() {
            return Ok(());
        }
        let set = json_by(
            conclusions.iter().map(|new| {
                let (key, detail) = (new.key.as_str(), new.detail.as_deref());
                (key, new.from, new.to, detail)
            }),
            |a, b| a.0.cmp(b.0),
        )?;
        let update = sqlx::query(CONCLUDE)
            .bind(set)
            .bind(role.as_str())
            .bind(now.0);
        let written = self.execute(update).await?;
        all_written(TABLE, written, conclusions.len())
    }

    async fn unclaim(&mut self, role: &RoleName, keys: &[&Key]) -> Result<()> {
        const UNCLAIM: &str = "
            DELETE claim
            FROM JSON_TABLE(?, '$[*]' COLUMNS (`key` VARBINARY(191) PATH '$')) AS given_up
            STRAIGHT_JOIN idempotent_record AS claim FORCE INDEX (PRIMARY)
                ON claim.role = ? AND claim.`key` = given_up.`key`";
        if keys.is_empty() {
            return Ok(());
        }
        let set = set::keys(keys.iter().map(|key| key.as_str()))?;
        let delete = sqlx::query(UNCLAIM).bind(set).bind(role.as_str());
        self.execute(delete).await.map(drop)
    }
}

impl MySqlTx {
    /// What became of the keys that were taken before.
    async fn taken(
        &mut self,
        role: &RoleName,
        claims: &[NewClaim<'_>],
        token: &[u8],
    ) -> Result<HashMap<String, Claimed>> {
        // The claim has locked its rows already. What is parked is left unlocked: it changes under
        // the lock of what it awaits.
        const TAKEN: &str = "
            SELECT claim.`key`, claim.outcome, claim.fingerprint, parked.awaits, parked.woken_at,
                claim.expired_at IS NOT NULL
            FROM JSON_TABLE(?, '$[*]' COLUMNS (`key` VARBINARY(191) PATH '$')) AS asked
            STRAIGHT_JOIN idempotent_record AS claim FORCE INDEX (PRIMARY)
                ON claim.role = ? AND claim.`key` = asked.`key`
            LEFT JOIN parked_event AS parked FORCE INDEX (PRIMARY)
                ON parked.role = claim.role AND parked.`key` = claim.`key`
            WHERE claim.claim_token <> ?";
        let set = set::keys(claims.iter().map(|claim| claim.key.as_str()))?;
        let select = sqlx::query(TAKEN).bind(set).bind(role.as_str()).bind(token);
        let rows = self.fetch(select).await?;
        rows.iter()
            .map(|row| {
                let row = Reader::new(row, TABLE, 1);
                let fingerprint = Fingerprint::from_bytes(row.get(2)?)
                    .ok_or_else(|| row.corrupt("the fingerprint has not 32 bytes"))?;
                let awaits = row.optional_text(3)?;
                let prior = match row.text(1)? {
                    "parked" => Some(Prior::Parked {
                        // A parked claim always has its parked row. Were it lost, its copy would
                        // still be decided: it awaits its own key, and counts as woken.
                        awaits: Token::stored(match awaits {
                            Some(awaits) => awaits,
                            None => row.text(0)?,
                        }),
                        woken: awaits.is_none() || row.get::<Option<i64>>(4)?.is_some(),
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
                Ok((row.text(0)?.to_owned(), claimed))
            })
            .collect()
    }
}
