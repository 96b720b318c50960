//! `parked_event`.

use super::fixture::{Fresh, NOW, ROLE, key, token};
use orderonce::domain::{Key, RoleName, Timestamp, Token};
use orderonce::store::{NewParked, Tx, WOKEN};
use std::collections::BTreeMap;
use std::time::Duration;

const DEADLINE: Timestamp = Timestamp(NOW.0 + 60_000);

fn headers() -> BTreeMap<String, String> {
    BTreeMap::from([("traceparent".to_owned(), "00-\"é\"-01".to_owned())])
}

async fn park(tx: &mut dyn Tx, at: Timestamp, key: &Key, awaits: &Token, deadline: Timestamp) {
    let parked = NewParked {
        key,
        awaits,
        message_id: key.as_str(),
        event_type: "order.ship",
        subject: "536365",
        message: "{\"id\":\"m-1\"}",
        headers: &headers(),
        deadline,
    };
    tx.park(&ROLE, at, &[parked]).await.unwrap();
}

/// The message ids in the outbox.
async fn outbox(fresh: &Fresh) -> Vec<String> {
    let rows = fresh.store.outbox_head(1000).await.unwrap();
    rows.into_iter().map(|row| row.message_id).collect()
}

pub(super) async fn a_token_wakes_what_awaits_it_and_nothing_else(fresh: &Fresh) {
    let mut tx = fresh.begin().await;
    park(&mut *tx, NOW, &key("a"), &token("1"), DEADLINE).await;
    park(&mut *tx, NOW, &key("b"), &token("2"), DEADLINE).await;
    assert_eq!(tx.wake(NOW, &[token("1"), token("3")]).await, Ok(1));
    tx.commit().await.unwrap();
    let rows = fresh.store.outbox_head(10).await.unwrap();
    let [row] = &rows[..] else {
        panic!("one is woken: {rows:?}");
    };
    assert_eq!(row.message_id, "a");
    assert_eq!(row.addressee, Some(RoleName::ORDER));
    assert_eq!(row.aggregate, "536365");
    assert_eq!(row.event_type, "order.ship");
    assert_eq!(row.message, b"{\"id\":\"m-1\"}");
    let mut woken = headers();
    woken.insert(WOKEN.to_owned(), "true".to_owned());
    assert_eq!(row.headers, woken);
    assert_eq!(row.created_at, NOW);
}

pub(super) async fn waking_goes_in_order_of_parking(fresh: &Fresh) {
    let mut tx = fresh.begin().await;
    let later = Timestamp(NOW.0 + 1);
    park(&mut *tx, later, &key("a"), &token("1"), DEADLINE).await;
    park(&mut *tx, NOW, &key("d"), &token("2"), DEADLINE).await;
    park(&mut *tx, NOW, &key("c"), &token("1"), DEADLINE).await;
    assert_eq!(tx.wake(NOW, &[token("1"), token("2")]).await, Ok(3));
    tx.commit().await.unwrap();
    assert_eq!(outbox(fresh).await, ["c", "d", "a"]);
}

pub(super) async fn a_woken_event_is_woken_once(fresh: &Fresh) {
    let mut tx = fresh.begin().await;
    park(&mut *tx, NOW, &key("a"), &token("1"), DEADLINE).await;
    assert_eq!(tx.wake(NOW, &[token("1")]).await, Ok(1));
    assert_eq!(tx.wake(NOW, &[token("1")]).await, Ok(0));
    tx.commit().await.unwrap();
    assert_eq!(outbox(fresh).await, ["a"]);
}

pub(super) async fn an_event_parked_again_awaits_the_new_token_and_keeps_its_deadline(
    fresh: &Fresh,
) {
    let mut tx = fresh.begin().await;
    park(&mut *tx, NOW, &key("a"), &token("1"), DEADLINE).await;
    let later = Timestamp(NOW.0 + 5);
    let far = Timestamp(DEADLINE.0 + 1_000_000);
    park(&mut *tx, later, &key("a"), &token("2"), far).await;
    assert_eq!(tx.wake(NOW, &[token("1")]).await, Ok(0));
    let taken = tx.take_overdue(DEADLINE, 10).await.unwrap();
    let [row] = &taken[..] else {
        panic!("its deadline has come: {taken:?}");
    };
    assert_eq!(row.awaits, token("2"));
    assert_eq!(row.parked_at, NOW);
    assert_eq!(row.deadline, DEADLINE);
}

pub(super) async fn an_event_parked_again_after_it_was_woken_can_be_woken_again(fresh: &Fresh) {
    let mut tx = fresh.begin().await;
    park(&mut *tx, NOW, &key("a"), &token("1"), DEADLINE).await;
    assert_eq!(tx.wake(NOW, &[token("1")]).await, Ok(1));
    park(&mut *tx, NOW, &key("a"), &token("2"), DEADLINE).await;
    assert_eq!(tx.wake(NOW, &[token("2")]).await, Ok(1));
}

pub(super) async fn an_unparked_event_is_not_woken(fresh: &Fresh) {
    let mut tx = fresh.begin().await;
    park(&mut *tx, NOW, &key("a"), &token("1"), DEADLINE).await;
    tx.unpark(&RoleName::PAYMENT, &[&key("a")]).await.unwrap();
    tx.unpark(&ROLE, &[&key("a"), &key("never parked")])
        .await
        .unwrap();
    assert_eq!(tx.wake(NOW, &[token("1")]).await, Ok(0));
}

pub(super) async fn overdue_events_are_taken_once_oldest_first(fresh: &Fresh) {
    let mut tx = fresh.begin().await;
    let second = |n: u64| NOW.plus(Duration::from_secs(n));
    for (name, deadline) in [("a", 4), ("b", 2), ("c", 3), ("d", 1), ("e", 9)] {
        park(&mut *tx, NOW, &key(name), &token("1"), second(deadline)).await;
    }
    let mut take = Vec::new();
    for limit in [3, 3, 3] {
        let taken = tx.take_overdue(second(4), limit).await.unwrap();
        let keys = taken.iter().map(|row| row.key.to_string());
        take.push(keys.collect::<Vec<_>>().join(" "));
    }
    assert_eq!(take, ["d b c", "a", ""]);
}

pub(super) async fn a_woken_event_that_never_arrived_is_overdue_too(fresh: &Fresh) {
    let mut tx = fresh.begin().await;
    park(&mut *tx, NOW, &key("a"), &token("1"), DEADLINE).await;
    tx.wake(NOW, &[token("1")]).await.unwrap();
    let taken = tx.take_overdue(DEADLINE, 10).await.unwrap();
    assert_eq!(taken.len(), 1);
    assert_eq!(taken[0].woken_at, Some(NOW));
    assert_eq!(taken[0].role, ROLE);
    assert_eq!(taken[0].message, "{\"id\":\"m-1\"}");
    assert_eq!(taken[0].headers, headers());
}
