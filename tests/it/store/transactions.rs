//! Transactions, savepoints, the clock.

use super::fixture::{Fresh, NOW, ROLE, assert_conflict, claim, key, number, order, print, stock};
use orderonce::store::{Claimed, NewOutbox, StockUpdate, Tx};
use std::collections::BTreeMap;
use std::time::Duration;

const ALL_ROWS: &str = "SELECT (SELECT count(*) FROM idempotent_record)
    + (SELECT count(*) FROM orders) + (SELECT count(*) FROM outbox)";

/// A claim with its effects.
async fn handle(tx: &mut dyn Tx, name: &str) {
    assert_eq!(claim(tx, &key(name)).await, Claimed::Fresh);
    tx.insert_orders(NOW, &[&order(name)]).await.unwrap();
    let row = NewOutbox {
        aggregate: name.into(),
        addressee: None,
        event_type: "order.created".into(),
        message_id: name.into(),
        headers: BTreeMap::new(),
        message: Vec::new(),
    };
    tx.append(NOW, &[row]).await.unwrap();
}

// I2
pub(super) async fn a_dropped_transaction_takes_claim_and_effects_along(fresh: &Fresh) {
    let mut tx = fresh.begin().await;
    handle(&mut *tx, "A").await;
    drop(tx);
    assert_eq!(fresh.number(ALL_ROWS).await, 0);
    let mut tx = fresh.begin().await;
    handle(&mut *tx, "A").await;
}

// I2
pub(super) async fn a_rolled_back_transaction_takes_claim_and_effects_along(fresh: &Fresh) {
    let mut tx = fresh.begin().await;
    handle(&mut *tx, "A").await;
    tx.rollback().await.unwrap();
    assert_eq!(fresh.number(ALL_ROWS).await, 0);
}

pub(super) async fn a_committed_transaction_is_seen_by_the_next(fresh: &Fresh) {
    let mut tx = fresh.begin().await;
    handle(&mut *tx, "A").await;
    tx.commit().await.unwrap();
    let mut tx = fresh.begin().await;
    assert_eq!(number(&mut *tx, ALL_ROWS).await, 3);
    let done = Claimed::Done {
        fingerprint: print(1),
        is_expired: false,
    };
    assert_eq!(claim(&mut *tx, &key("A")).await, done);
}

pub(super) async fn a_failed_guard_leaves_nothing_behind(fresh: &Fresh) {
    let mut tx = fresh.begin().await;
    handle(&mut *tx, "A").await;
    let new = stock("a", 1, 2);
    let update = StockUpdate {
        was_version: 1,
        stock: &new,
    };
    assert_conflict(tx.update_stock(NOW, &[update]).await);
    drop(tx);
    assert_eq!(fresh.number(ALL_ROWS).await, 0);
}

pub(super) async fn a_savepoint_takes_back_only_what_came_after_it(fresh: &Fresh) {
    let mut tx = fresh.begin().await;
    handle(&mut *tx, "A").await;
    tx.savepoint().await.unwrap();
    handle(&mut *tx, "B").await;
    assert_conflict(tx.insert_orders(NOW, &[&order("A")]).await);
    tx.rollback_to_savepoint().await.unwrap();
    handle(&mut *tx, "C").await;
    tx.commit().await.unwrap();
    assert_eq!(fresh.number(ALL_ROWS).await, 6);
    let mut tx = fresh.begin().await;
    handle(&mut *tx, "B").await;
}

pub(super) async fn a_released_savepoint_keeps_what_was_written(fresh: &Fresh) {
    let mut tx = fresh.begin().await;
    tx.savepoint().await.unwrap();
    handle(&mut *tx, "A").await;
    tx.release_savepoint().await.unwrap();
    tx.commit().await.unwrap();
    assert_eq!(fresh.number(ALL_ROWS).await, 3);
}

pub(super) async fn savepoints_nest(fresh: &Fresh) {
    let mut tx = fresh.begin().await;
    tx.savepoint().await.unwrap();
    handle(&mut *tx, "A").await;
    tx.savepoint().await.unwrap();
    handle(&mut *tx, "B").await;
    tx.rollback_to_savepoint().await.unwrap();
    assert_eq!(number(&mut *tx, ALL_ROWS).await, 3);
    tx.savepoint().await.unwrap();
    handle(&mut *tx, "C").await;
    tx.release_savepoint().await.unwrap();
    assert_eq!(number(&mut *tx, ALL_ROWS).await, 6);
    tx.rollback_to_savepoint().await.unwrap();
    assert_eq!(number(&mut *tx, ALL_ROWS).await, 0);
    tx.commit().await.unwrap();
}

pub(super) async fn empty_sets_write_nothing(fresh: &Fresh) {
    let mut tx = fresh.begin().await;
    assert_eq!(tx.claim(&ROLE, NOW, &[]).await, Ok(Vec::new()));
    tx.conclude(&ROLE, NOW, &[]).await.unwrap();
    tx.unclaim(&ROLE, &[]).await.unwrap();
    tx.park(&ROLE, NOW, &[]).await.unwrap();
    tx.unpark(&ROLE, &[]).await.unwrap();
    assert_eq!(tx.wake(NOW, &[]).await, Ok(0));
    tx.bury(NOW, &[]).await.unwrap();
    tx.append(NOW, &[]).await.unwrap();
    assert!(tx.load_orders(&[]).await.unwrap().is_empty());
    assert!(tx.load_payments(&[], &[]).await.unwrap().is_empty());
    assert!(tx.load_refunds(&[], &[]).await.unwrap().is_empty());
    tx.insert_orders(NOW, &[]).await.unwrap();
    tx.insert_order_lines(&[]).await.unwrap();
    tx.update_orders(NOW, &[]).await.unwrap();
    tx.insert_steps(NOW, &[]).await.unwrap();
    tx.insert_payments(NOW, &[]).await.unwrap();
    tx.insert_refunds(NOW, &[]).await.unwrap();
    tx.update_refunds(NOW, &[]).await.unwrap();
    assert!(tx.load_reservations(&[]).await.unwrap().is_empty());
    assert!(tx.load_stock(&[]).await.unwrap().is_empty());
    assert!(tx.load_flows(&[], &[]).await.unwrap().is_empty());
    tx.insert_reservations(NOW, &[]).await.unwrap();
    tx.update_reservations(NOW, &[]).await.unwrap();
    tx.insert_stock(NOW, &[]).await.unwrap();
    tx.update_stock(NOW, &[]).await.unwrap();
    tx.insert_flows(NOW, &[]).await.unwrap();
    assert!(tx.load_accounts(&[]).await.unwrap().is_empty());
    assert!(tx.load_account_flows(&[]).await.unwrap().is_empty());
    tx.insert_accounts(NOW, &[]).await.unwrap();
    tx.update_accounts(NOW, &[]).await.unwrap();
    tx.insert_account_flows(NOW, &[]).await.unwrap();
    assert_eq!(number(&mut *tx, ALL_ROWS).await, 0);
    tx.commit().await.unwrap();
}

pub(super) async fn a_team_can_use_the_connection(fresh: &Fresh) {
    let mut tx = fresh.begin().await;
    handle(&mut *tx, "A").await;
    assert_eq!(number(&mut *tx, ALL_ROWS).await, 3);
}

pub(super) async fn the_clock_moves_on(fresh: &Fresh) {
    let before = fresh.begin().await.now().await.unwrap();
    (fresh.advance)(Duration::from_secs(3600));
    let after = fresh.begin().await.now().await.unwrap();
    assert!(after.since(before) >= Duration::from_secs(3600));
}

pub(super) async fn a_store_that_is_open_answers(fresh: &Fresh) {
    fresh.store.ping().await.unwrap();
}

/// The statements of one transaction and of one read. A connection that was idle for a second is asked
/// whether it is alive, and MySQL's is told when transactions end, so that the least of a few counts.
pub(super) async fn statements_are_counted_with_begin_and_commit(fresh: &Fresh) {
    let store = fresh.store.as_ref();
    let mut least = [u64::MAX; 3];
    for _ in 0..3 {
        let start = store.statements();
        let mut tx = fresh.begin().await;
        tx.savepoint().await.unwrap();
        assert_eq!(tx.load_stock(&[&"A".parse().unwrap()]).await.unwrap(), []);
        tx.release_savepoint().await.unwrap();
        tx.commit().await.unwrap();
        let committed = store.statements();
        fresh.begin().await.rollback().await.unwrap();
        let rolled_back = store.statements();
        store.ping().await.unwrap();
        let asked = store.statements();
        assert_eq!(store.outbox_about("O1").await.unwrap(), []);
        let read = store.statements();
        let sent = [committed - start, rolled_back - committed, read - asked];
        least = std::array::from_fn(|part| least[part].min(sent[part]));
    }
    assert_eq!(least, [5, 2, 1]);
}
