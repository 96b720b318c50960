//! `idempotent_record`.

use super::fixture::{Fresh, NOW, ROLE, assert_conflict, claim, key, number, print, token};
use orderonce::domain::{Key, RoleName, Timestamp};
use orderonce::store::{Claimed, Conclusion, NewClaim, NewParked, Prior, Tx};
use std::collections::BTreeMap;

fn new(key: &Key, byte: u8) -> NewClaim<'_> {
    NewClaim {
        key,
        subject: "536365",
        fingerprint: print(byte),
        message_id: "m-1",
        body: Some("{\"type\":\"order.create\"}"),
    }
}

fn conclusion<'a>(key: &'a Key, from: &'static str, to: &'static str) -> Conclusion<'a> {
    Conclusion {
        key,
        from,
        to,
        detail: None,
    }
}

async fn park(tx: &mut dyn Tx, key: &Key) {
    let parked = NewParked {
        key,
        awaits: &token("536365"),
        message_id: "m-1",
        event_type: "order.ship",
        subject: "536365",
        message: "{}",
        headers: &BTreeMap::new(),
        deadline: NOW,
    };
    tx.park(&ROLE, NOW, &[parked]).await.unwrap();
    tx.conclude(&ROLE, NOW, &[conclusion(key, "applied", "parked")])
        .await
        .unwrap();
}

pub(super) async fn a_new_key_is_fresh(fresh: &Fresh) {
    let mut tx = fresh.begin().await;
    let keys = [key("a"), key("b"), key("c")];
    let claims: Vec<_> = keys.iter().map(|key| new(key, 1)).collect();
    let answers = tx.claim(&ROLE, NOW, &claims).await.unwrap();
    assert_eq!(answers, vec![Claimed::Fresh; 3]);
    tx.commit().await.unwrap();
    let kept = "SELECT count(*) FROM idempotent_record WHERE outcome = 'applied' AND request_body IS NOT NULL";
    assert_eq!(fresh.number(kept).await, 3);
}

pub(super) async fn a_key_is_fresh_once(fresh: &Fresh) {
    let mut tx = fresh.begin().await;
    assert_eq!(claim(&mut *tx, &key("a")).await, Claimed::Fresh);
    let done = Claimed::Done {
        fingerprint: print(1),
        is_expired: false,
    };
    assert_eq!(claim(&mut *tx, &key("a")).await, done);
    tx.commit().await.unwrap();
    let mut tx = fresh.begin().await;
    assert_eq!(claim(&mut *tx, &key("a")).await, done);
}

pub(super) async fn answers_stand_in_the_order_of_the_claims(fresh: &Fresh) {
    let keys: Vec<Key> = (0..300).map(|i| key(&format!("{i:03}"))).collect();
    let mut tx = fresh.begin().await;
    let thirds: Vec<_> = keys.iter().step_by(3).map(|key| new(key, 1)).collect();
    tx.claim(&ROLE, NOW, &thirds).await.unwrap();
    tx.commit().await.unwrap();

    let mut tx = fresh.begin().await;
    let all: Vec<_> = keys.iter().map(|key| new(key, 2)).collect();
    let answers = tx.claim(&ROLE, NOW, &all).await.unwrap();
    for (i, answer) in answers.iter().enumerate() {
        let expected = if i % 3 == 0 {
            Claimed::Done {
                fingerprint: print(1),
                is_expired: false,
            }
        } else {
            Claimed::Fresh
        };
        assert_eq!(*answer, expected, "claim {i}");
    }
}

pub(super) async fn a_role_does_not_see_the_keys_of_another(fresh: &Fresh) {
    let mut tx = fresh.begin().await;
    let key = key("a");
    for role in [RoleName::ORDER, RoleName::INVENTORY, RoleName::new("Order")] {
        let answers = tx.claim(&role, NOW, &[new(&key, 1)]).await.unwrap();
        assert_eq!(answers, [Claimed::Fresh], "{role}");
    }
}

pub(super) async fn a_parked_claim_is_open_and_says_what_it_awaits(fresh: &Fresh) {
    let mut tx = fresh.begin().await;
    claim(&mut *tx, &key("a")).await;
    park(&mut *tx, &key("a")).await;
    tx.commit().await.unwrap();
    let mut tx = fresh.begin().await;
    let open = Claimed::Open {
        prior: Prior::Parked {
            awaits: token("536365"),
            woken: false,
        },
        fingerprint: print(1),
    };
    assert_eq!(claim(&mut *tx, &key("a")).await, open);
}

pub(super) async fn a_woken_claim_is_open_and_says_so(fresh: &Fresh) {
    let mut tx = fresh.begin().await;
    claim(&mut *tx, &key("a")).await;
    park(&mut *tx, &key("a")).await;
    assert_eq!(tx.wake(NOW, &[token("536365")]).await, Ok(1));
    let answer = claim(&mut *tx, &key("a")).await;
    let Claimed::Open { prior, .. } = answer else {
        panic!("{answer:?}");
    };
    let woken = Prior::Parked {
        awaits: token("536365"),
        woken: true,
    };
    assert_eq!(prior, woken);
}

pub(super) async fn a_dead_claim_is_open(fresh: &Fresh) {
    let mut tx = fresh.begin().await;
    claim(&mut *tx, &key("a")).await;
    tx.conclude(&ROLE, NOW, &[conclusion(&key("a"), "applied", "dead")])
        .await
        .unwrap();
    let open = Claimed::Open {
        prior: Prior::Dead,
        fingerprint: print(1),
    };
    assert_eq!(claim(&mut *tx, &key("a")).await, open);
}

pub(super) async fn every_other_outcome_is_done(fresh: &Fresh) {
    let mut tx = fresh.begin().await;
    for outcome in ["applied", "stale", "rejected", "duplicate", "conflict"] {
        let key = key(outcome);
        claim(&mut *tx, &key).await;
        tx.conclude(&ROLE, NOW, &[conclusion(&key, "applied", outcome)])
            .await
            .unwrap();
        let done = Claimed::Done {
            fingerprint: print(1),
            is_expired: false,
        };
        assert_eq!(claim(&mut *tx, &key).await, done, "{outcome}");
    }
}

pub(super) async fn a_parked_claim_without_its_parked_event_is_open(fresh: &Fresh) {
    let mut tx = fresh.begin().await;
    claim(&mut *tx, &key("a")).await;
    tx.conclude(&ROLE, NOW, &[conclusion(&key("a"), "applied", "parked")])
        .await
        .unwrap();
    let answer = claim(&mut *tx, &key("a")).await;
    let resumes = matches!(
        answer,
        Claimed::Open {
            prior: Prior::Parked { woken: true, .. },
            ..
        }
    );
    assert!(resumes, "{answer:?}");
}

pub(super) async fn concluding_from_another_outcome_is_a_conflict(fresh: &Fresh) {
    let mut tx = fresh.begin().await;
    let (a, b) = (key("a"), key("b"));
    claim(&mut *tx, &a).await;
    let wrong = [conclusion(&a, "parked", "applied")];
    assert_conflict(tx.conclude(&ROLE, NOW, &wrong).await);
    let absent = [conclusion(&b, "applied", "stale")];
    assert_conflict(tx.conclude(&ROLE, NOW, &absent).await);
    let right = [conclusion(&a, "applied", "stale")];
    assert_conflict(tx.conclude(&RoleName::PAYMENT, NOW, &right).await);
    tx.conclude(&ROLE, NOW, &right).await.unwrap();
}

pub(super) async fn one_lost_guard_refuses_the_whole_set(fresh: &Fresh) {
    let mut tx = fresh.begin().await;
    let (a, b) = (key("a"), key("b"));
    claim(&mut *tx, &a).await;
    claim(&mut *tx, &b).await;
    let set = [
        conclusion(&a, "applied", "stale"),
        conclusion(&b, "dead", "stale"),
    ];
    assert_conflict(tx.conclude(&ROLE, NOW, &set).await);
}

pub(super) async fn an_unclaimed_key_is_fresh_again(fresh: &Fresh) {
    let mut tx = fresh.begin().await;
    claim(&mut *tx, &key("a")).await;
    claim(&mut *tx, &key("b")).await;
    tx.unclaim(&ROLE, &[&key("a")]).await.unwrap();
    assert_eq!(claim(&mut *tx, &key("a")).await, Claimed::Fresh);
    assert_ne!(claim(&mut *tx, &key("b")).await, Claimed::Fresh);
}

pub(super) async fn a_claim_keeps_the_time_of_its_transaction(fresh: &Fresh) {
    let mut tx = fresh.begin().await;
    let a = key("a");
    claim(&mut *tx, &a).await;
    let times = "SELECT concluded_at - created_at FROM idempotent_record";
    assert_eq!(number(&mut *tx, times).await, 0);
    let later = Timestamp(NOW.0 + 5_000);
    let set = [Conclusion {
        detail: Some("already_shipped".into()),
        ..conclusion(&a, "applied", "rejected")
    }];
    tx.conclude(&ROLE, later, &set).await.unwrap();
    assert_eq!(number(&mut *tx, times).await, 5_000);
    let detail = "SELECT count(*) FROM idempotent_record WHERE detail = 'already_shipped'";
    assert_eq!(number(&mut *tx, detail).await, 1);
}
