//! `dead_letter`.

use super::MySqlTx;
use super::set::{Bytes, json, text_of};
use crate::domain::Timestamp;
use crate::store::error::all_written;
use crate::store::{DeadLetters, DeadStatus, NewDeadLetter, Result};
use async_trait::async_trait;
use sha2::{Digest, Sha256};

#[async_trait]
impl DeadLetters for MySqlTx {
    async fn bury(&mut self, now: Timestamp, letters: &[NewDeadLetter<'_>]) -> Result<()> {
        // WHERE TRUE: without it the parser takes ON for the join's. The status is set last: each column
        // sees those before it as they are by then.
        const BURY: &str = "
            INSERT INTO dead_letter
                (role, message_id, `key`, reason, detail, headers, deliveries, digest, raw, died_at)
            SELECT new.role, new.message_id, new.`key`, new.reason, new.detail, new.headers, new.deliveries,
                SUBSTRING(parts.bytes, new.digest, 32), SUBSTRING(parts.bytes, new.start, new.length), ?
            FROM (SELECT CAST(? AS BINARY) AS bytes) AS parts
            STRAIGHT_JOIN JSON_TABLE(?, '$[*]' COLUMNS (
                role LONGBLOB PATH '$[0]',
                message_id LONGBLOB PATH '$[1]',
                `key` VARBINARY(191) PATH '$[2]',
                reason VARBINARY(64) PATH '$[3]',
                detail LONGBLOB PATH '$[4]',
                headers LONGTEXT PATH '$[5]',
                deliveries BIGINT PATH '$[6]',
                digest BIGINT PATH '$[7]',
                start BIGINT PATH '$[8]',
                length BIGINT PATH '$[9]')) AS new
            WHERE TRUE
            ON DUPLICATE KEY UPDATE
                deaths = dead_letter.deaths + (dead_letter.status = 'REPLAYED'),
                died_at = IF(dead_letter.status = 'REPLAYED', ?, dead_letter.died_at),
                status = IF(dead_letter.status = 'REPLAYED', 'DEAD', dead_letter.status)";
        if letters.is_empty() {
            return Ok(());
        }
        let mut bytes = Bytes::default();
        let rows = letters.iter().map(|letter| {
            let reason: &str = letter.reason.into();
            let key = letter.key.map(|key| key.as_str());
            let (digest, _) = bytes.add(&digest(letter));
            let (start, length) = bytes.add(letter.raw);
            let headers = text_of(letter.headers)?;
            Ok((
                letter.role.as_str(),
                letter.message_id,
                key,
                reason,
                letter.detail,
                headers,
                letter.deliveries,
                digest,
                start,
                length,
            ))
        });
        let set = json(rows.collect::<Result<Vec<_>>>()?)?;
        self.database().fits(bytes.len() + set.len())?;
        let insert = sqlx::query(BURY)
            .bind(now.0)
            .bind(bytes.into_parameter())
            .bind(set)
            .bind(now.0);
        self.execute(insert).await.map(drop)
    }

    async fn mark_dead_letter(
        &mut self,
        id: i64,
        from: DeadStatus,
        to: DeadStatus,
        actor: &str,
        reason: &str,
    ) -> Result<()> {
        const MARK: &str = "
            UPDATE dead_letter FORCE INDEX (PRIMARY) SET status = ?, actor = ?, actor_reason = ?
            WHERE id = ? AND status = ?";
        let update = sqlx::query(MARK)
            .bind(<&str>::from(to))
            .bind(actor)
            .bind(reason)
            .bind(id)
            .bind(<&str>::from(from));
        let written = self.execute(update).await?;
        all_written("dead_letter", written, 1)
    }
}

/// What makes a dead letter the same: its role, its reason and its bytes. Neither of the first two
/// holds a NUL.
fn digest(letter: &NewDeadLetter<'_>) -> [u8; 32] {
    let mut hash = Sha256::new();
    hash.update(letter.role.as_str());
    hash.update([0]);
    hash.update(<&str>::from(letter.reason));
    hash.update([0]);
    hash.update(letter.raw);
    hash.finalize().into()
}
