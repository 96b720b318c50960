//! `idempotent_record`, as it grows old; `retention`.

use super::fixture::{Fresh, NOW, ROLE, key, print};
use orderonce::domain::{DeadReason, Key, RoleName, Timestamp};
use orderonce::store::{
    CLAIMS, Claimed, Conclusion, DeadStatus, Kept, NewClaim, NewDeadLetter, Swept, Tx,
};
use std::collections::BTreeMap;
use std::time::Duration;

const DAY: Duration = Duration::from_hours(24);
const START: Timestamp = Timestamp(0);

async fn claim_of(tx: &mut dyn Tx, role: &RoleName, key: &Key, at: Timestamp) -> Claimed {
    let claim = NewClaim {
        key,
        subject: "536365",
        fingerprint: print(1),
        message_id: "m-1",
        body: Some("{}"),
    };
    tx.claim(role, at, &[claim]).await.unwrap().remove(0)
}

async fn conclude(tx: &mut dyn Tx, at: Timestamp, key: &Key, from: &'static str, to: &'static str) {
    let conclusion = Conclusion {
        key,
        from,
        to,
        detail: None,
    };
    tx.conclude(&ROLE, at, &[conclusion]).await.unwrap();
}

/// Claims keys, each a second after the one before.
async fn claim_all(fresh: &Fresh, names: &[&str]) {
    let mut tx = fresh.begin().await;
    for (name, second) in names.iter().zip(0..) {
        let at = NOW.plus(Duration::from_secs(second));
        assert_eq!(
            claim_of(&mut *tx, &ROLE, &key(name), at).await,
            Claimed::Fresh
        );
    }
    tx.commit().await.unwrap();
}

async fn expire(fresh: &Fresh, life: Duration, from: Timestamp, limit: u32) -> Swept {
    fresh.store.expire_claims(life, from, limit).await.unwrap()
}

async fn remove(fresh: &Fresh, archive: Duration, from: Timestamp, limit: u32) -> Swept {
    fresh
        .store
        .remove_claims(archive, from, limit)
        .await
        .unwrap()
}

async fn counts(fresh: &Fresh) -> (u64, u64, u64) {
    let Kept {
        live,
        expired,
        removed,
        ..
    } = fresh.store.kept_claims().await.unwrap();
    (live, expired, removed)
}

pub(super) async fn a_claim_expires_once_it_is_older_than_its_life(fresh: &Fresh) {
    let mut tx = fresh.begin().await;
    let now = tx.now().await.unwrap();
    claim_of(&mut *tx, &ROLE, &key("young"), now).await;
    claim_of(&mut *tx, &ROLE, &key("old"), now.minus(2 * DAY)).await;
    claim_of(
        &mut *tx,
        &RoleName::ACCOUNT,
        &key("old"),
        now.minus(3 * DAY),
    )
    .await;
    tx.commit().await.unwrap();
    let swept = expire(fresh, DAY, START, 100).await;
    assert_eq!(swept.rows, 2);
    assert_eq!(swept.through, Some(now.minus(2 * DAY)));
    assert_eq!(counts(fresh).await, (1, 2, 0));
    let marked = "SELECT count(*) FROM idempotent_record
        WHERE expired_at IS NOT NULL AND request_body IS NULL AND fingerprint IS NOT NULL";
    assert_eq!(fresh.number(marked).await, 2);
    assert_eq!(expire(fresh, DAY, START, 100).await, Swept::default());
    (fresh.advance)(DAY);
    assert_eq!(expire(fresh, DAY, START, 100).await.rows, 1);
}

pub(super) async fn the_oldest_expire_first_and_the_next_step_goes_on_from_there(fresh: &Fresh) {
    claim_all(fresh, &["a", "b", "c", "d", "e"]).await;
    let first = expire(fresh, DAY, START, 2).await;
    let through = first.through.unwrap();
    assert_eq!((first.rows, through), (2, NOW.plus(Duration::from_secs(1))));
    assert_eq!(expire(fresh, DAY, through, 2).await.rows, 2);
    let later = NOW.plus(Duration::from_secs(5));
    assert_eq!(expire(fresh, DAY, later, 2).await, Swept::default());
    assert_eq!(expire(fresh, DAY, START, 2).await.rows, 1);
}

pub(super) async fn what_may_still_come_to_something_does_not_expire(fresh: &Fresh) {
    claim_all(fresh, &["parked", "dead", "conflict", "late", "replayed"]).await;
    let mut tx = fresh.begin().await;
    let now = tx.now().await.unwrap();
    conclude(&mut *tx, NOW, &key("parked"), "applied", "parked").await;
    conclude(&mut *tx, NOW, &key("dead"), "applied", "dead").await;
    conclude(&mut *tx, now, &key("late"), "applied", "rejected").await;
    let headers = BTreeMap::new();
    for name in ["dead", "conflict", "replayed"] {
        let letter = NewDeadLetter {
            role: &ROLE,
            message_id: None,
            key: Some(&key(name)),
            reason: DeadReason::Conflict,
            detail: "",
            raw: name.as_bytes(),
            headers: &headers,
            deliveries: 1,
        };
        tx.bury(NOW, &[letter]).await.unwrap();
    }
    tx.commit().await.unwrap();
    let replayed = "SELECT max(id) FROM dead_letter";
    let id = fresh.number(replayed).await;
    let mut tx = fresh.begin().await;
    tx.mark_dead_letter(id, DeadStatus::Dead, DeadStatus::Replayed, "ann", "mended")
        .await
        .unwrap();
    tx.commit().await.unwrap();
    assert_eq!(expire(fresh, DAY, START, 100).await.rows, 1);
    assert_eq!(counts(fresh).await, (4, 1, 0));
    let marked = "SELECT count(*) FROM idempotent_record
        WHERE expired_at IS NOT NULL AND outcome = 'applied'";
    assert_eq!(fresh.number(marked).await, 1);
}

pub(super) async fn an_expired_claim_still_stops_its_copies(fresh: &Fresh) {
    claim_all(fresh, &["a"]).await;
    assert_eq!(expire(fresh, DAY, START, 100).await.rows, 1);
    let mut tx = fresh.begin().await;
    let done = Claimed::Done {
        fingerprint: print(1),
        is_expired: true,
    };
    assert_eq!(claim_of(&mut *tx, &ROLE, &key("a"), NOW).await, done);
}

pub(super) async fn a_claim_that_is_concluded_anew_lives_anew(fresh: &Fresh) {
    claim_all(fresh, &["a"]).await;
    let mut tx = fresh.begin().await;
    conclude(&mut *tx, NOW, &key("a"), "applied", "dead").await;
    tx.commit().await.unwrap();
    assert_eq!(expire(fresh, DAY, START, 100).await.rows, 1);
    let mut tx = fresh.begin().await;
    let now = tx.now().await.unwrap();
    conclude(&mut *tx, now, &key("a"), "dead", "applied").await;
    tx.commit().await.unwrap();
    assert_eq!(counts(fresh).await, (1, 0, 0));
    assert_eq!(expire(fresh, DAY, START, 100).await, Swept::default());
}

pub(super) async fn an_expired_claim_goes_after_its_time_in_the_archive(fresh: &Fresh) {
    claim_all(fresh, &["a", "b", "c"]).await;
    assert_eq!(expire(fresh, DAY, START, 2).await.rows, 2);
    assert_eq!(remove(fresh, DAY, START, 100).await, Swept::default());
    (fresh.advance)(2 * DAY);
    assert_eq!(expire(fresh, DAY, START, 2).await.rows, 1);
    let removed = remove(fresh, DAY, START, 1).await;
    assert_eq!(removed.rows, 1);
    assert_eq!(
        remove(fresh, DAY, removed.through.unwrap(), 100).await.rows,
        1
    );
    assert_eq!(remove(fresh, DAY, START, 100).await, Swept::default());
    assert_eq!(counts(fresh).await, (0, 1, 2));
    let mut tx = fresh.begin().await;
    assert_eq!(
        claim_of(&mut *tx, &ROLE, &key("a"), NOW).await,
        Claimed::Fresh
    );
}

pub(super) async fn what_is_kept_is_counted_and_dated(fresh: &Fresh) {
    let none = fresh.store.kept_claims().await.unwrap();
    assert_eq!((none.live, none.expired, none.removed), (0, 0, 0));
    assert_eq!((none.oldest_live, none.oldest_expired), (None, None));
    assert_eq!((none.removed_through, none.next), (None, None));
    claim_all(fresh, &["a", "b", "c"]).await;
    expire(fresh, DAY, START, 2).await;
    (fresh.advance)(DAY);
    remove(fresh, DAY, START, 1).await;
    let lease = fresh.store.lease(CLAIMS, "somebody", DAY).await.unwrap();
    let kept = fresh.store.kept_claims().await.unwrap();
    assert_eq!((kept.live, kept.expired, kept.removed), (1, 1, 1));
    assert_eq!(kept.oldest_live, Some(NOW.plus(Duration::from_secs(2))));
    let marked = kept.oldest_expired.unwrap();
    assert!(kept.now.since(marked) >= DAY, "{kept:?}");
    let through = kept.removed_through.unwrap();
    assert!(through >= NOW && through <= NOW.plus(Duration::from_secs(1)));
    assert_eq!(kept.next, Some(lease.unwrap().until));
}

pub(super) async fn a_claim_that_somebody_holds_is_passed_by(fresh: &Fresh) {
    claim_all(fresh, &["held", "free"]).await;
    let mut tx = fresh.begin().await;
    conclude(&mut *tx, NOW, &key("held"), "applied", "dead").await;
    tx.commit().await.unwrap();
    let mut holder = fresh.begin().await;
    claim_of(&mut *holder, &ROLE, &key("held"), NOW).await;
    if fresh.waiting.is_some() {
        assert_eq!(expire(fresh, DAY, START, 100).await.rows, 1);
    }
    holder.rollback().await.unwrap();
    expire(fresh, DAY, START, 100).await;
    (fresh.advance)(DAY);
    let mut holder = fresh.begin().await;
    claim_of(&mut *holder, &ROLE, &key("held"), NOW).await;
    if fresh.waiting.is_some() {
        assert_eq!(remove(fresh, DAY, START, 100).await.rows, 1);
    }
    holder.rollback().await.unwrap();
    remove(fresh, DAY, START, 100).await;
    assert_eq!(counts(fresh).await, (0, 0, 2));
}

pub(super) async fn recent_keys_are_those_that_a_gate_was_told_of_youngest_first(fresh: &Fresh) {
    claim_all(fresh, &["a", "b", "c", "parked", "dead", "expired"]).await;
    let mut tx = fresh.begin().await;
    claim_of(&mut *tx, &RoleName::ACCOUNT, &key("other"), NOW).await;
    conclude(&mut *tx, NOW, &key("b"), "applied", "rejected").await;
    conclude(&mut *tx, NOW, &key("parked"), "applied", "parked").await;
    conclude(&mut *tx, NOW, &key("dead"), "applied", "dead").await;
    tx.commit().await.unwrap();
    let second = |n| NOW.plus(Duration::from_secs(n));
    expire(fresh, DAY, second(5), 1).await;
    let recent = fresh.store.recent_keys(&ROLE, START, second(9), 100).await;
    let expected = [("c", second(2)), ("b", second(1)), ("a", NOW)];
    let owned = |(name, at): (&str, Timestamp)| (name.to_owned(), at);
    assert_eq!(recent.unwrap(), expected.map(owned));
    let some = fresh
        .store
        .recent_keys(&ROLE, second(1), second(9), 1)
        .await;
    assert_eq!(some.unwrap(), [owned(("c", second(2)))]);
    let older = fresh
        .store
        .recent_keys(&ROLE, second(1), second(1), 9)
        .await;
    assert_eq!(older.unwrap(), [owned(("b", second(1)))]);
}
