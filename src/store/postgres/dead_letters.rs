//! `dead_letter`.

use super::PostgresTx;
use super::set::{column, headers, readable};
use crate::domain::Timestamp;
use crate::store::error::all_written;
use crate::store::{DeadLetters, DeadStatus, NewDeadLetter, Result};
use async_trait::async_trait;
use sha2::{Digest, Sha256};

#[async_trait]
impl DeadLetters for PostgresTx {
    async fn bury(&mut self, now: Timestamp, letters: &[NewDeadLetter<'_>]) -> Result<()> {
        // DISTINCT: of two that are the same only the first is kept, as one statement may not insert a
        // row and then update it.
        const BURY: &str = "
            INSERT INTO dead_letter
                (digest, role, message_id, key, reason, detail, raw, headers, deliveries, died_at)
            SELECT DISTINCT ON (digest) digest, role, message_id, key, reason, detail, raw, headers, deliveries, $1
            FROM unnest($2::bytea[], $3::text[], $4::text[], $5::text[], $6::text[], $7::text[],
                    $8::bytea[], $9::text[], $10::bigint[])
                WITH ORDINALITY
                AS new (digest, role, message_id, key, reason, detail, raw, headers, deliveries, place)
            ORDER BY digest, place
            ON CONFLICT (digest) DO UPDATE
            SET status = 'DEAD', deaths = dead_letter.deaths + 1, died_at = excluded.died_at
            WHERE dead_letter.status = 'REPLAYED'";
        if letters.is_empty() {
            return Ok(());
        }
        let digests: Vec<_> = letters.iter().map(digest).collect();
        let texts = letters.iter().map(|letter| headers(letter.headers));
        let insert = sqlx::query(BURY)
            .bind(now.0)
            .bind(column(&digests, |digest| &digest[..]))
            .bind(column(letters, |letter| letter.role.as_str()))
            .bind(column(letters, |letter| letter.message_id.map(readable)))
            .bind(column(letters, |letter| {
                letter.key.map(|key| readable(key.as_str()))
            }))
            .bind(column(letters, |letter| <&str>::from(letter.reason)))
            .bind(column(letters, |letter| readable(letter.detail)))
            .bind(column(letters, |letter| letter.raw))
            .bind(texts.collect::<Result<Vec<_>>>()?)
            .bind(column(letters, |letter| i64::from(letter.deliveries)));
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
            UPDATE dead_letter SET status = $3, actor = $4, actor_reason = $5
            WHERE id = $1 AND status = $2";
        let update = sqlx::query(MARK)
            .bind(id)
            .bind(<&str>::from(from))
            .bind(<&str>::from(to))
            .bind(readable(actor))
            .bind(readable(reason));
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
