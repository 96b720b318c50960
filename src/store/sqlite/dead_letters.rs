//! `dead_letter`.

use super::SqliteTx;
use super::set::{Bytes, json};
use crate::domain::Timestamp;
use crate::store::error::all_written;
use crate::store::{DeadLetters, DeadStatus, NewDeadLetter, Result};
use async_trait::async_trait;
use sha2::{Digest, Sha256};

#[async_trait]
impl DeadLetters for SqliteTx {
    async fn bury(&mut self, now: Timestamp, letters: &[NewDeadLetter<'_>]) -> Result<()> {
        // An empty blob has no parts, not even an empty one: coalesce.
        const BURY: &str = "
            INSERT INTO dead_letter
                (role, message_id, key, reason, detail, headers, deliveries, digest, raw, died_at)
            SELECT value ->> 0, value ->> 1, value ->> 2, value ->> 3, value ->> 4, value -> 5, value ->> 6,
                substr(?3, value ->> 7, 32), coalesce(substr(?3, value ->> 8, value ->> 9), x''), ?1
            FROM json_each(?2)
            WHERE true
            ON CONFLICT (digest) DO UPDATE
            SET status = 'DEAD', deaths = deaths + 1, died_at = excluded.died_at
            WHERE status = 'REPLAYED'";
        if letters.is_empty() {
            return Ok(());
        }
        let mut bytes = Bytes::default();
        let set = json(letters.iter().map(|letter| {
            let reason: &str = letter.reason.into();
            let key = letter.key.map(|key| key.as_str());
            let (digest, _) = bytes.add(&digest(letter));
            let (start, length) = bytes.add(letter.raw);
            (
                letter.role.as_str(),
                letter.message_id,
                key,
                reason,
                letter.detail,
                letter.headers,
                letter.deliveries,
                digest,
                start,
                length,
            )
        }))?;
        let insert = sqlx::query(BURY)
            .bind(now.0)
            .bind(set)
            .bind(bytes.into_parameter());
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
            UPDATE dead_letter SET status = ?3, actor = ?4, actor_reason = ?5
            WHERE id = ?1 AND status = ?2";
        let update = sqlx::query(MARK)
            .bind(id)
            .bind(<&str>::from(from))
            .bind(<&str>::from(to))
            .bind(actor)
            .bind(reason);
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
