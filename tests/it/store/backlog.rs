//! What waits, and connections.

use super::fixture::{Fresh, NOW, ROLE, key, token};
use crate::site::until;
use orderonce::domain::{DeadReason, Timestamp};
use orderonce::store::{
    Backlog, COUNTED, DeadStatus, NewDeadLetter, NewOutbox, NewParked, Waiting,
};
use std::collections::BTreeMap;

const LATER: Timestamp = Timestamp(NOW.0 + 1_000);

async fn backlog(fresh: &Fresh) -> Backlog {
    fresh.store.backlog().await.unwrap()
}

fn rows(number: u32) -> Vec<NewOutbox> {
    let row = |number| NewOutbox {
        aggregate: "A".into(),
        addressee: None,
        event_type: "order.paid".into(),
        message_id: format!("{number}"),
        headers: BTreeMap::new(),
        message: b"{}".to_vec(),
    };
    (0..number).map(row).collect()
}

pub(super) async fn nothing_waits_in_an_empty_store(fresh: &Fresh) {
    let before = fresh.store.now().await.unwrap();
    let backlog = backlog(fresh).await;
    assert_eq!(backlog.outbox, Waiting::default());
    assert_eq!(backlog.parked, Waiting::default());
    assert_eq!(backlog.dead, 0);
    assert!(backlog.now >= before);
}

pub(super) async fn what_waits_is_counted_and_the_oldest_dated(fresh: &Fresh) {
    let headers = BTreeMap::new();
    let mut tx = fresh.begin().await;
    for (name, parked_at, after) in [("young", LATER, 2_000), ("old", NOW, 1_000)] {
        let parked = NewParked {
            key: &key(name),
            awaits: &token("A"),
            message_id: "m-1",
            event_type: "order.ship",
            subject: "A",
            message: "{}",
            headers: &headers,
            deadline: Timestamp(NOW.0 + after),
        };
        tx.park(&ROLE, parked_at, &[parked]).await.unwrap();
    }
    let letters = ["{", "[", "("].map(|raw| NewDeadLetter {
        role: &ROLE,
        message_id: None,
        key: None,
        reason: DeadReason::Malformed,
        detail: "not JSON",
        raw: raw.as_bytes(),
        headers: &headers,
        deliveries: 1,
    });
    tx.bury(NOW, &letters).await.unwrap();
    tx.append(NOW, &rows(1)).await.unwrap();
    tx.append(LATER, &rows(COUNTED)).await.unwrap();
    tx.commit().await.unwrap();
    let id = fresh.number("SELECT max(id) FROM dead_letter").await;
    let mut tx = fresh.begin().await;
    tx.mark_dead_letter(id, DeadStatus::Dead, DeadStatus::Discarded, "ann", "a test")
        .await
        .unwrap();
    tx.commit().await.unwrap();

    let backlog = backlog(fresh).await;
    let waiting = |rows| Waiting {
        rows,
        oldest: Some(NOW),
    };
    assert_eq!(
        backlog.outbox,
        waiting(COUNTED.into()),
        "no more are counted"
    );
    assert_eq!(backlog.parked, waiting(2));
    assert_eq!(backlog.dead, 2, "one was discarded");
}

pub(super) async fn connections_are_counted_while_they_are_in_use(fresh: &Fresh) {
    until("nobody uses one", async || {
        fresh.store.occupancy().in_use == 0
    })
    .await;
    assert!(fresh.store.occupancy().idle > 0);
    let tx = fresh.begin().await;
    assert_eq!(fresh.store.occupancy().in_use, 1);
    assert_eq!(fresh.store.occupancy().waiting.unwrap_or(0), 0);
    tx.rollback().await.unwrap();
    until("it was given back", async || {
        fresh.store.occupancy().in_use == 0
    })
    .await;
}
