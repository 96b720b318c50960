//! `outbox`, `lease`.

use super::fixture::{Fresh, NOW};
use super::waiting::behind;
use orderonce::domain::RoleName;
use orderonce::store::{Lease, NewOutbox};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

const SECOND: Duration = Duration::from_secs(1);

fn new(aggregate: &str, message_id: &str) -> NewOutbox {
    NewOutbox {
        aggregate: aggregate.into(),
        addressee: None,
        event_type: "order.paid".into(),
        message_id: message_id.into(),
        headers: BTreeMap::new(),
        message: b"{}".to_vec(),
    }
}

/// Appends rows of the aggregates, with the message ids 0, 1, 2 and so on.
async fn append(fresh: &Fresh, aggregates: &[&str]) {
    let rows: Vec<_> = aggregates
        .iter()
        .enumerate()
        .map(|(i, aggregate)| new(aggregate, &i.to_string()))
        .collect();
    let mut tx = fresh.begin().await;
    tx.append(NOW, &rows).await.unwrap();
    tx.commit().await.unwrap();
}

/// The message ids and the numbers of the head.
async fn head(fresh: &Fresh) -> (String, Vec<i64>) {
    let rows = fresh.store.outbox_head(1000).await.unwrap();
    let names: Vec<_> = rows.iter().map(|row| row.message_id.as_str()).collect();
    (names.join(" "), rows.iter().map(|row| row.id).collect())
}

async fn lease(fresh: &Fresh, holder: &str) -> Option<Lease> {
    fresh
        .store
        .lease("relay", holder, 10 * SECOND)
        .await
        .unwrap()
}

pub(super) async fn rows_leave_in_the_order_in_which_they_were_written(fresh: &Fresh) {
    let rows: Vec<_> = (0..300).map(|i| new("A", &i.to_string())).collect();
    let mut tx = fresh.begin().await;
    tx.append(NOW, &rows).await.unwrap();
    tx.commit().await.unwrap();
    let expected: Vec<_> = (0..300).map(|i| i.to_string()).collect();
    assert_eq!(head(fresh).await.0, expected.join(" "));
}

pub(super) async fn the_head_is_no_longer_than_asked_for(fresh: &Fresh) {
    append(fresh, &["A", "B", "C"]).await;
    let rows = fresh.store.outbox_head(2).await.unwrap();
    assert_eq!(rows.len(), 2);
    assert!(fresh.store.outbox_head(0).await.unwrap().is_empty());
}

pub(super) async fn a_postponed_row_holds_back_the_younger_ones_of_its_aggregate_only(
    fresh: &Fresh,
) {
    append(fresh, &["A", "B", "A", "B", "A", "C"]).await;
    let (_, ids) = head(fresh).await;
    let failed = [(ids[2], "NO_ROUTE".to_owned())];
    fresh.store.postpone(&failed, 5 * SECOND).await.unwrap();
    assert_eq!(head(fresh).await.0, "0 1 3 5");
    (fresh.advance)(5 * SECOND);
    assert_eq!(head(fresh).await.0, "0 1 2 3 4 5");
}

pub(super) async fn a_postponed_row_comes_back_with_what_the_broker_said(fresh: &Fresh) {
    append(fresh, &["A"]).await;
    let (_, ids) = head(fresh).await;
    for said in ["NO_ROUTE", "blocked: \"memory\""] {
        let failed = [(ids[0], said.to_owned())];
        fresh.store.postpone(&failed, SECOND).await.unwrap();
    }
    fresh.store.postpone(&[], SECOND).await.unwrap();
    (fresh.advance)(SECOND);
    let rows = fresh.store.outbox_head(1).await.unwrap();
    assert_eq!(rows[0].failures, 2);
    assert_eq!(rows[0].last_error.as_deref(), Some("blocked: \"memory\""));
}

pub(super) async fn what_the_broker_says_is_cut_at_500_characters(fresh: &Fresh) {
    append(fresh, &["A"]).await;
    let (_, ids) = head(fresh).await;
    let failed = [(ids[0], "é".repeat(501))];
    fresh.store.postpone(&failed, SECOND).await.unwrap();
    (fresh.advance)(SECOND);
    let rows = fresh.store.outbox_head(1).await.unwrap();
    assert_eq!(rows[0].last_error, Some("é".repeat(500)));
}

pub(super) async fn a_number_is_not_used_again(fresh: &Fresh) {
    append(fresh, &["A", "A"]).await;
    let (_, first) = head(fresh).await;
    let held = lease(fresh, "a").await.unwrap();
    let removed = fresh.store.remove_published("relay", held, &first).await;
    assert_eq!(removed, Ok(2));
    append(fresh, &["A"]).await;
    let (_, second) = head(fresh).await;
    assert!(second[0] > first[1], "{first:?} {second:?}");
}

pub(super) async fn depth_counts_and_dates_the_oldest(fresh: &Fresh) {
    assert_eq!(fresh.store.outbox_depth().await, Ok((0, None)));
    append(fresh, &["A", "B"]).await;
    assert_eq!(fresh.store.outbox_depth().await, Ok((2, Some(NOW))));
}

pub(super) async fn any_bytes_are_kept(fresh: &Fresh) {
    let every: Vec<u8> = (0..=255).collect();
    let messages: [&[u8]; 4] = [b"", &every, "{\"é\":\"\u{1F4E6}\"}".as_bytes(), &[0xff]];
    let rows = messages.map(|message| NewOutbox {
        addressee: Some(RoleName::PAYMENT),
        message: message.to_vec(),
        ..new("A", "m")
    });
    let mut tx = fresh.begin().await;
    tx.append(NOW, &rows[..1]).await.unwrap();
    tx.append(NOW, &rows[1..]).await.unwrap();
    tx.commit().await.unwrap();
    let kept = fresh.store.outbox_head(10).await.unwrap();
    for (row, message) in kept.iter().zip(messages) {
        assert_eq!(row.message, message);
        assert_eq!(row.addressee, Some(RoleName::PAYMENT));
    }
    assert_eq!(kept.len(), 4);
}

pub(super) async fn a_lease_is_held_by_one(fresh: &Fresh) {
    let held = lease(fresh, "a").await.unwrap();
    assert_eq!(lease(fresh, "b").await, None);
    let other = fresh.store.lease("janitor", "b", SECOND).await.unwrap();
    assert!(other.is_some());
    append(fresh, &["A"]).await;
    let (_, ids) = head(fresh).await;
    let removed = fresh.store.remove_published("relay", held, &ids).await;
    assert_eq!(removed, Ok(1));
}

pub(super) async fn a_renewed_lease_keeps_its_fence(fresh: &Fresh) {
    let first = lease(fresh, "a").await.unwrap();
    (fresh.advance)(9 * SECOND);
    let renewed = lease(fresh, "a").await.unwrap();
    assert_eq!(renewed.fence, first.fence);
    assert!(renewed.until > first.until);
    (fresh.advance)(9 * SECOND);
    assert_eq!(lease(fresh, "b").await, None);
}

pub(super) async fn a_lease_that_ended_can_be_taken_and_fences_off_its_holder(fresh: &Fresh) {
    append(fresh, &["A", "A"]).await;
    let (_, ids) = head(fresh).await;
    let old = lease(fresh, "a").await.unwrap();
    (fresh.advance)(10 * SECOND);
    let new = lease(fresh, "b").await.unwrap();
    assert!(new.fence > old.fence);
    let removed = fresh.store.remove_published("relay", old, &ids).await;
    assert_eq!(removed, Ok(0));
    assert_eq!(lease(fresh, "a").await, None);
    let removed = fresh.store.remove_published("relay", new, &ids).await;
    assert_eq!(removed, Ok(2));
}

pub(super) async fn a_lease_given_back_can_be_taken_at_once(fresh: &Fresh) {
    let old = lease(fresh, "a").await.unwrap();
    fresh.store.give_back_lease("relay", old).await.unwrap();
    let new = lease(fresh, "b").await.unwrap();
    assert!(new.fence > old.fence);
}

pub(super) async fn a_lease_given_back_late_does_not_end_the_next_one(fresh: &Fresh) {
    let old = lease(fresh, "a").await.unwrap();
    (fresh.advance)(10 * SECOND);
    lease(fresh, "b").await.unwrap();
    fresh.store.give_back_lease("relay", old).await.unwrap();
    assert_eq!(lease(fresh, "a").await, None);
}

/// Whether a transaction of its own holds the lease `name`.
async fn holds(fresh: &Fresh, name: &str, lease: Lease) -> bool {
    let mut tx = fresh.begin().await;
    let now = tx.now().await.unwrap();
    let holds = tx.holds_lease(name, lease, now).await.unwrap();
    tx.rollback().await.unwrap();
    holds
}

pub(super) async fn a_transaction_knows_whether_it_holds_a_lease(fresh: &Fresh) {
    let held = lease(fresh, "a").await.unwrap();
    assert!(holds(fresh, "relay", held).await);
    assert!(!holds(fresh, "janitor", held).await, "another lease");
    let fence = held.fence + 1;
    assert!(!holds(fresh, "relay", Lease { fence, ..held }).await);
    (fresh.advance)(10 * SECOND);
    assert!(!holds(fresh, "relay", held).await, "it has ended");
    let renewed = lease(fresh, "a").await.unwrap();
    assert!(holds(fresh, "relay", renewed).await);
    fresh.store.give_back_lease("relay", renewed).await.unwrap();
    assert!(!holds(fresh, "relay", renewed).await, "it was given back");
    lease(fresh, "b").await.unwrap();
    assert!(!holds(fresh, "relay", renewed).await, "another has it");
}

pub(super) async fn a_lease_that_a_transaction_holds_is_taken_after_it(fresh: &Fresh) {
    let held = lease(fresh, "a").await.unwrap();
    let mut tx = fresh.begin().await;
    let now = tx.now().await.unwrap();
    assert!(tx.holds_lease("relay", held, now).await.unwrap());
    (fresh.advance)(10 * SECOND);
    let store = Arc::clone(&fresh.store);
    let taking = async move { store.lease("relay", "b", 10 * SECOND).await };
    let taken = behind(fresh, tx, taking).await.unwrap().unwrap();
    assert!(taken.fence > held.fence);
}
