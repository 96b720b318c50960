//! `dead_letter`.

use super::fixture::{Fresh, NOW, assert_conflict, key, number};
use orderonce::domain::{DeadReason, RoleName, Timestamp};
use orderonce::store::{Connection, DeadStatus, NewDeadLetter, Tx};
use std::collections::BTreeMap;

const LATER: Timestamp = Timestamp(NOW.0 + 1_000);

async fn bury(tx: &mut dyn Tx, at: Timestamp, role: &RoleName, reason: DeadReason, raw: &[u8]) {
    let headers = BTreeMap::from([("x-\"quoted\"".to_owned(), "1\n\u{0}é".to_owned())]);
    let key = key("a");
    let letter = NewDeadLetter {
        role,
        message_id: Some("m-1"),
        key: Some(&key),
        reason,
        detail: "field 'qty': is \"-1\"",
        raw,
        headers: &headers,
        deliveries: 3,
    };
    tx.bury(at, &[letter]).await.unwrap();
}

async fn id(tx: &mut dyn Tx) -> i64 {
    number(tx, "SELECT max(id) FROM dead_letter").await
}

pub(super) async fn the_same_letter_is_kept_once(fresh: &Fresh) {
    let mut tx = fresh.begin().await;
    let headers = BTreeMap::new();
    let letter = NewDeadLetter {
        role: &RoleName::ORDER,
        message_id: None,
        key: None,
        reason: DeadReason::Malformed,
        detail: "not JSON",
        raw: b"{",
        headers: &headers,
        deliveries: 1,
    };
    tx.bury(NOW, &[letter.clone(), letter.clone()])
        .await
        .unwrap();
    tx.commit().await.unwrap();
    let mut tx = fresh.begin().await;
    tx.bury(LATER, &[letter]).await.unwrap();
    let unchanged = "SELECT count(*) FROM dead_letter WHERE deaths = 1 AND died_at = 1291191960000";
    assert_eq!(number(&mut *tx, unchanged).await, 1);
    assert_eq!(
        number(&mut *tx, "SELECT count(*) FROM dead_letter").await,
        1
    );
}

pub(super) async fn another_role_reason_or_byte_is_another_letter(fresh: &Fresh) {
    let mut tx = fresh.begin().await;
    let (order, malformed) = (RoleName::ORDER, DeadReason::Malformed);
    bury(&mut *tx, NOW, &order, malformed, b"a").await;
    bury(&mut *tx, NOW, &RoleName::PAYMENT, malformed, b"a").await;
    bury(&mut *tx, NOW, &order, DeadReason::CrashLoop, b"a").await;
    bury(&mut *tx, NOW, &order, malformed, b"a ").await;
    bury(&mut *tx, NOW, &order, malformed, b"").await;
    assert_eq!(
        number(&mut *tx, "SELECT count(*) FROM dead_letter").await,
        5
    );
}

pub(super) async fn a_replayed_letter_that_dies_again_is_dead_with_one_death_more(fresh: &Fresh) {
    let mut tx = fresh.begin().await;
    let (order, malformed) = (RoleName::ORDER, DeadReason::Malformed);
    bury(&mut *tx, NOW, &order, malformed, b"a").await;
    let id = id(&mut *tx).await;
    tx.mark_dead_letter(id, DeadStatus::Dead, DeadStatus::Replayed, "ann", "fixed")
        .await
        .unwrap();
    bury(&mut *tx, LATER, &order, malformed, b"a").await;
    let again = "SELECT count(*) FROM dead_letter
        WHERE status = 'DEAD' AND deaths = 2 AND died_at = 1291191961000 AND deliveries = 3";
    assert_eq!(number(&mut *tx, again).await, 1);
}

pub(super) async fn a_discarded_letter_stays_discarded(fresh: &Fresh) {
    let mut tx = fresh.begin().await;
    let (order, malformed) = (RoleName::ORDER, DeadReason::Malformed);
    bury(&mut *tx, NOW, &order, malformed, b"a").await;
    let id = id(&mut *tx).await;
    tx.mark_dead_letter(id, DeadStatus::Dead, DeadStatus::Discarded, "ann", "a test")
        .await
        .unwrap();
    bury(&mut *tx, LATER, &order, malformed, b"a").await;
    let discarded = "SELECT count(*) FROM dead_letter
        WHERE status = 'DISCARDED' AND deaths = 1 AND actor = 'ann' AND actor_reason = 'a test'";
    assert_eq!(number(&mut *tx, discarded).await, 1);
}

pub(super) async fn marking_from_another_status_is_a_conflict(fresh: &Fresh) {
    let mut tx = fresh.begin().await;
    bury(&mut *tx, NOW, &RoleName::ORDER, DeadReason::Malformed, b"a").await;
    let id = id(&mut *tx).await;
    let (dead, replayed) = (DeadStatus::Dead, DeadStatus::Replayed);
    assert_conflict(tx.mark_dead_letter(id, replayed, dead, "ann", "why").await);
    assert_conflict(
        tx.mark_dead_letter(id + 1, dead, replayed, "ann", "why")
            .await,
    );
    tx.mark_dead_letter(id, dead, replayed, "ann", "why")
        .await
        .unwrap();
    assert_conflict(tx.mark_dead_letter(id, dead, replayed, "bob", "why").await);
}

pub(super) async fn any_bytes_are_kept(fresh: &Fresh) {
    let mut tx = fresh.begin().await;
    let every: Vec<u8> = (0..=255).collect();
    bury(&mut *tx, NOW, &RoleName::ORDER, DeadReason::Malformed, b"").await;
    bury(
        &mut *tx,
        NOW,
        &RoleName::ORDER,
        DeadReason::Malformed,
        &every,
    )
    .await;
    let kept: Vec<Vec<u8>> = match tx.connection() {
        Connection::Sqlite(connection) => {
            sqlx::query_scalar("SELECT raw FROM dead_letter ORDER BY id")
                .fetch_all(connection)
                .await
                .unwrap()
        }
        Connection::Postgres(connection) => {
            sqlx::query_scalar("SELECT raw FROM dead_letter ORDER BY id")
                .fetch_all(connection)
                .await
                .unwrap()
        }
        Connection::MySql(connection) => {
            sqlx::query_scalar("SELECT raw FROM dead_letter ORDER BY id")
                .fetch_all(connection)
                .await
                .unwrap()
        }
        other => panic!("no way to ask {other:?}"),
    };
    assert_eq!(kept, [Vec::new(), every]);
}
