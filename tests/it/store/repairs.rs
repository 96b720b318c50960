//! `repair`, and the faults that are repaired.

use super::fixture::{Fresh, NOW, key, order, order_id, reservation};
use super::waiting::behind;
use orderonce::domain::account::{Account, AccountFlow, AccountId, Source};
use orderonce::domain::order::{Order, OrderStatus};
use orderonce::domain::{AccountKind, RoleName, SourceId, SourceType, Timestamp, Token, UserId};
use orderonce::ops::repair::{End, Options, Repaired, repair};
use orderonce::store::{Connection, HeldLease, NewOutbox, NewParked, Postponed, RepairRow, Tx};
use std::collections::BTreeMap;
use std::time::Duration;

const MINUTE: Duration = Duration::from_secs(60);
const DAY: Duration = Duration::from_secs(86_400);
const LEASE: Duration = Duration::from_secs(10);

fn options(dry_run: bool) -> Options {
    Options {
        reconcile: orderonce::ops::reconcile::Options {
            stuck_after: MINUTE,
            limit: 100,
        },
        dry_run,
        actor: "ann".to_owned(),
        leases: vec![("relay", LEASE)],
    }
}

async fn repairs(fresh: &Fresh) -> Vec<Repaired> {
    let report = repair(&*fresh.store, None, &options(false)).await;
    report.unwrap().repairs
}

/// What was done, as `what subject end`.
fn ends(repairs: &[Repaired]) -> Vec<String> {
    let end = |r: &Repaired| format!("{} {} {}", r.what, r.subject, r.end);
    repairs.iter().map(end).collect()
}

async fn recorded(fresh: &Fresh, subject: &str) -> Vec<RepairRow> {
    fresh.store.repairs_about(subject).await.unwrap()
}

/// Parks an event of a role about a subject, long ago.
async fn park(fresh: &Fresh, role: &RoleName, name: &str, subject: &str, awaits: &[&str]) {
    let (key, awaits) = (key(name), Token::new(awaits).unwrap());
    let parked = NewParked {
        key: &key,
        awaits: &awaits,
        message_id: name,
        event_type: "order.ship",
        subject,
        message: "{}",
        headers: &BTreeMap::new(),
        deadline: Timestamp(i64::MAX),
    };
    let mut tx = fresh.begin().await;
    tx.park(role, NOW, &[parked]).await.unwrap();
    tx.commit().await.unwrap();
}

async fn insert(fresh: &Fresh, id: &str, status: OrderStatus) {
    let order = Order {
        status,
        ..order(id)
    };
    let mut tx = fresh.begin().await;
    tx.insert_orders(NOW, &[&order]).await.unwrap();
    tx.commit().await.unwrap();
}

/// The message ids in the outbox that are due, each with its addressee.
async fn due(fresh: &Fresh) -> Vec<String> {
    let rows = fresh.store.outbox_head(1000).await.unwrap();
    let shown = rows.into_iter().map(|row| {
        let to = row
            .addressee
            .map_or("all".to_owned(), |role| role.to_string());
        format!("{} to {to}", row.message_id)
    });
    shown.collect()
}

async fn append(fresh: &Fresh, aggregate: &str) -> i64 {
    let row = NewOutbox {
        aggregate: aggregate.into(),
        addressee: None,
        event_type: "order.paid".into(),
        message_id: aggregate.into(),
        headers: BTreeMap::new(),
        message: b"{}".to_vec(),
    };
    let mut tx = fresh.begin().await;
    tx.append(NOW, &[row]).await.unwrap();
    tx.commit().await.unwrap();
    let rows = fresh.store.outbox_about(aggregate).await.unwrap();
    rows.last().unwrap().id
}

pub(super) async fn an_event_that_was_missed_is_woken_once_and_that_is_recorded(fresh: &Fresh) {
    insert(fresh, "O1", OrderStatus::Paid).await;
    park(fresh, &RoleName::ORDER, "a", "O1", &["order", "O1", "PAID"]).await;
    park(
        fresh,
        &RoleName::PAYMENT,
        "b",
        "O1",
        &["order", "O1", "PAID"],
    )
    .await;
    park(
        fresh,
        &RoleName::ORDER,
        "c",
        "O1",
        &["order", "O1", "SHIPPED"],
    )
    .await;
    assert_eq!(
        ends(&repairs(fresh).await),
        ["wake O1 done", "wake O1 done"]
    );
    assert_eq!(due(fresh).await, ["a to order", "b to payment"]);
    assert_eq!(repairs(fresh).await, []);
    assert_eq!(due(fresh).await.len(), 2);

    let recorded = recorded(fresh, "O1").await;
    let [first, second] = &recorded[..] else {
        panic!("two were woken: {recorded:?}");
    };
    assert_eq!((first.actor.as_str(), first.what.as_str()), ("ann", "wake"));
    assert_eq!(first.role, Some(RoleName::ORDER));
    assert_eq!(first.key, Some(key("a")));
    assert!(first.before.contains("awaits order:O1:PAID"), "{first:?}");
    assert_eq!(first.after, "woken, handed back to order");
    assert!(first.at > NOW, "by the database's clock");
    assert_eq!(second.key, Some(key("b")));
}

pub(super) async fn what_awaits_a_reservation_or_a_flow_is_woken_too(fresh: &Fresh) {
    let account = Account {
        id: AccountId {
            user_id: UserId::new("U:1").unwrap(),
            kind: AccountKind::new("POINTS").unwrap(),
        },
        balance: 5,
        version: 1,
    };
    let flow = AccountFlow {
        account: account.id.clone(),
        source: Source {
            source_type: SourceType::new("ORDER").unwrap(),
            source_id: SourceId::new("O1").unwrap(),
        },
        reverses: None,
        amount: 5,
        balance_after: 5,
    };
    let mut tx = fresh.begin().await;
    tx.insert_accounts(NOW, &[&account]).await.unwrap();
    tx.insert_account_flows(NOW, &[flow]).await.unwrap();
    tx.insert_reservations(NOW, &[&reservation("O1")])
        .await
        .unwrap();
    tx.commit().await.unwrap();
    let awaits = ["stock", "O1", "DEDUCTED"];
    park(fresh, &RoleName::INVENTORY, "r", "O1", &awaits).await;
    let awaits = ["flow", "U:1", "POINTS", "ORDER", "O1"];
    park(fresh, &RoleName::ACCOUNT, "f", "U:1", &awaits).await;
    let awaits = ["flow", "U:1", "POINTS", "ORDER", "O2"];
    park(fresh, &RoleName::ACCOUNT, "g", "U:1", &awaits).await;
    let done = ends(&repairs(fresh).await);
    assert_eq!(done, ["wake U:1 done", "wake O1 done"]);
    assert_eq!(due(fresh).await, ["f to account", "r to inventory"]);
}

pub(super) async fn an_event_whose_order_has_not_come_so_far_stays_parked(fresh: &Fresh) {
    insert(fresh, "O1", OrderStatus::WaitPay).await;
    park(fresh, &RoleName::ORDER, "a", "O1", &["order", "O1", "PAID"]).await;
    park(
        fresh,
        &RoleName::ORDER,
        "b",
        "O2",
        &["order", "O2", "WAIT_PAY"],
    )
    .await;
    assert_eq!(repairs(fresh).await, []);
    assert_eq!(due(fresh).await, [""; 0]);
    assert_eq!(recorded(fresh, "O1").await, []);
}

pub(super) async fn an_event_that_was_woken_meanwhile_is_lost(fresh: &Fresh) {
    park(fresh, &RoleName::ORDER, "a", "O1", &["order", "O1", "PAID"]).await;
    let token = Token::new(&["order", "O1", "PAID"]).unwrap();
    assert!(fresh.store.unwoken("order", "a").await.unwrap().is_some());
    let mut tx = fresh.begin().await;
    assert_eq!(tx.unwoken_by(&token).await.unwrap().len(), 1);
    assert_eq!(tx.wake(NOW, std::slice::from_ref(&token)).await, Ok(1));
    assert_eq!(tx.unwoken_by(&token).await, Ok(Vec::new()));
    tx.commit().await.unwrap();
    assert_eq!(fresh.store.unwoken("order", "a").await, Ok(None));
    assert_eq!(fresh.store.unwoken("payment", "a").await, Ok(None));
}

pub(super) async fn a_row_that_waits_is_due_at_once_and_that_is_recorded(fresh: &Fresh) {
    let id = append(fresh, "A").await;
    append(fresh, "A").await;
    append(fresh, "B").await;
    let failed = [(id, "NO_ROUTE".to_owned())];
    fresh.store.postpone(&failed, 10 * MINUTE).await.unwrap();
    assert_eq!(due(fresh).await, ["B to all"]);
    assert_eq!(ends(&repairs(fresh).await), ["make_due A done"]);
    assert_eq!(due(fresh).await, ["A to all", "A to all", "B to all"]);
    assert_eq!(repairs(fresh).await, []);
    let rows = fresh.store.outbox_head(1).await.unwrap();
    assert_eq!(rows[0].failures, 1, "the next wait is no shorter");
    let recorded = recorded(fresh, "A").await;
    assert_eq!(recorded.len(), 1);
    let before = &recorded[0].before;
    assert!(before.contains(&format!("outbox row {id}")), "{before}");
    assert!(
        before.contains("refused 1 times, last: NO_ROUTE"),
        "{before}"
    );
}

pub(super) async fn a_row_that_failed_again_meanwhile_is_lost(fresh: &Fresh) {
    let id = append(fresh, "A").await;
    let failed = [(id, "NO_ROUTE".to_owned())];
    fresh.store.postpone(&failed, 10 * MINUTE).await.unwrap();
    let found = fresh.store.postponed(MINUTE, 10).await.unwrap();
    assert_eq!(found.len(), 1);
    fresh.store.postpone(&failed, 20 * MINUTE).await.unwrap();
    let mut tx = fresh.begin().await;
    assert_eq!(tx.make_due(&found[0]).await, Ok(false));
    let found = fresh.store.postponed(MINUTE, 10).await.unwrap();
    let older = Postponed {
        failures: 1,
        ..found[0].clone()
    };
    assert_eq!(tx.make_due(&older).await, Ok(false));
    assert_eq!(tx.make_due(&found[0]).await, Ok(true));
    assert_eq!(tx.make_due(&found[0]).await, Ok(false));
    tx.commit().await.unwrap();
}

pub(super) async fn a_row_that_waits_for_a_short_time_is_left_alone(fresh: &Fresh) {
    let mut tx = fresh.begin().await;
    let now = tx.now().await.unwrap();
    let row = NewOutbox {
        aggregate: "A".into(),
        addressee: None,
        event_type: "order.paid".into(),
        message_id: "m".into(),
        headers: BTreeMap::new(),
        message: Vec::new(),
    };
    tx.append(now, &[row]).await.unwrap();
    tx.commit().await.unwrap();
    let id = fresh.store.outbox_head(1).await.unwrap()[0].id;
    let failed = [(id, "NO_ROUTE".to_owned())];
    fresh.store.postpone(&failed, MINUTE / 2).await.unwrap();
    assert_eq!(repairs(fresh).await, []);
    // A clock that jumped.
    fresh.store.postpone(&failed, 365 * DAY).await.unwrap();
    assert_eq!(ends(&repairs(fresh).await), ["make_due A done"]);
}

async fn lease(fresh: &Fresh, holder: &str, duration: Duration) -> Option<i64> {
    let lease = fresh.store.lease("relay", holder, duration).await.unwrap();
    lease.map(|lease| lease.fence)
}

async fn held(fresh: &Fresh) -> Option<HeldLease> {
    fresh.store.lease_beyond("relay", DAY).await.unwrap()
}

pub(super) async fn a_lease_that_lasts_too_long_ends_and_is_taken_with_a_new_fence(fresh: &Fresh) {
    let fence = lease(fresh, "a", LEASE + MINUTE / 2).await.unwrap();
    assert_eq!(repairs(fresh).await, []);
    assert_eq!(lease(fresh, "a", 2 * DAY).await, Some(fence));
    assert_eq!(held(fresh).await.unwrap().holder, "a");
    assert_eq!(lease(fresh, "b", LEASE).await, None);
    assert_eq!(ends(&repairs(fresh).await), ["end_lease lease relay done"]);
    assert_eq!(repairs(fresh).await, []);
    assert_eq!(lease(fresh, "b", LEASE).await, Some(fence + 1));
    assert_eq!(lease(fresh, "a", LEASE).await, None);
    let recorded = recorded(fresh, "lease relay").await;
    assert_eq!(recorded.len(), 1);
    let before = &recorded[0].before;
    assert!(before.starts_with("held by a until 2"), "{before}");
}

pub(super) async fn a_lease_that_was_renewed_meanwhile_is_lost(fresh: &Fresh) {
    lease(fresh, "a", 2 * DAY).await.unwrap();
    let found = held(fresh).await.unwrap();
    lease(fresh, "a", LEASE).await.unwrap();
    let mut tx = fresh.begin().await;
    assert_eq!(tx.end_lease(&found).await, Ok(false));
    tx.rollback().await.unwrap();

    lease(fresh, "a", 2 * DAY).await.unwrap();
    let found = held(fresh).await.unwrap();
    let mut tx = fresh.begin().await;
    let by_another = HeldLease {
        holder: "b".into(),
        ..found.clone()
    };
    let older = HeldLease {
        fence: found.fence - 1,
        ..found.clone()
    };
    assert_eq!(tx.end_lease(&by_another).await, Ok(false));
    assert_eq!(tx.end_lease(&older).await, Ok(false));
    assert_eq!(tx.end_lease(&found).await, Ok(true));
    assert_eq!(tx.end_lease(&found).await, Ok(false));
    tx.commit().await.unwrap();
}

/// What a repair does that runs beside a transaction which has the order, and must wait for it.
async fn repaired_behind(fresh: &Fresh, first: Box<dyn Tx>) -> Vec<String> {
    let store = fresh.store.clone();
    let repairs = behind(fresh, first, async move {
        repair(&*store, None, &options(false)).await
    });
    ends(&repairs.await.unwrap().repairs)
}

/// A SQLite file is locked as a whole: there, a repair may find nothing any more.
fn assert_lost(fresh: &Fresh, ends: &[String]) {
    if fresh.waiting.is_some() || !ends.is_empty() {
        assert_eq!(ends, ["wake O1 lost"]);
    }
}

pub(super) async fn a_wake_waits_for_the_decision_that_has_the_order(fresh: &Fresh) {
    insert(fresh, "O1", OrderStatus::Paid).await;
    park(fresh, &RoleName::ORDER, "a", "O1", &["order", "O1", "PAID"]).await;
    let mut first = fresh.begin().await;
    first.load_orders(&[&order_id("O1")]).await.unwrap();
    let token = Token::new(&["order", "O1", "PAID"]).unwrap();
    assert_eq!(first.wake(NOW, &[token]).await, Ok(1));
    let ends = repaired_behind(fresh, first).await;
    assert_lost(fresh, &ends);
    assert_eq!(due(fresh).await, ["a to order"]);
    assert_eq!(recorded(fresh, "O1").await, []);
}

pub(super) async fn what_is_no_longer_true_is_not_woken(fresh: &Fresh) {
    insert(fresh, "O1", OrderStatus::Paid).await;
    park(fresh, &RoleName::ORDER, "a", "O1", &["order", "O1", "PAID"]).await;
    let mut first = fresh.begin().await;
    let gone = "DELETE FROM orders";
    match first.connection() {
        Connection::Sqlite(connection) => {
            sqlx::query(gone).execute(connection).await.unwrap();
        }
        Connection::Postgres(connection) => {
            sqlx::query(gone).execute(connection).await.unwrap();
        }
        Connection::MySql(connection) => {
            sqlx::query(gone).execute(connection).await.unwrap();
        }
        other => panic!("no way to change {other:?}"),
    }
    let ends = repaired_behind(fresh, first).await;
    assert_lost(fresh, &ends);
    assert_eq!(due(fresh).await, [""; 0]);
    assert!(fresh.store.unwoken("order", "a").await.unwrap().is_some());
    assert_eq!(recorded(fresh, "O1").await, []);
}

pub(super) async fn the_hash_of_another_order_wakes_nothing(fresh: &Fresh) {
    let (long, other) = ("x".repeat(300), "y".repeat(300));
    insert(fresh, &long, OrderStatus::Paid).await;
    let awaits = ["order", long.as_str(), "PAID"];
    park(fresh, &RoleName::ORDER, "a", &long, &awaits).await;
    let awaits = ["order", other.as_str(), "PAID"];
    park(fresh, &RoleName::ORDER, "b", &long, &awaits).await;
    let mut ends = ends(&repairs(fresh).await);
    ends.sort();
    let ends: Vec<_> = ends.iter().map(|end| end.replace(&long, "O1")).collect();
    assert_eq!(ends, ["wake O1 done", "wake O1 lost"]);
    assert_eq!(due(fresh).await, ["a to order"]);
}

/// One fault of each kind.
async fn break_all(fresh: &Fresh) {
    insert(fresh, "O1", OrderStatus::Shipped).await;
    park(fresh, &RoleName::ORDER, "a", "O1", &["order", "O1", "PAID"]).await;
    let id = append(fresh, "A").await;
    let failed = [(id, "NO_ROUTE".to_owned())];
    fresh.store.postpone(&failed, DAY).await.unwrap();
    lease(fresh, "gone", 2 * DAY).await.unwrap();
}

pub(super) async fn two_repairs_at_once_repair_once(fresh: &Fresh) {
    break_all(fresh).await;
    let (one, other) = tokio::join!(repairs(fresh), repairs(fresh));
    let all = [one, other].concat();
    let done: Vec<_> = all.iter().filter(|r| r.end == End::Done).collect();
    let lost = all.iter().filter(|r| r.end == End::Lost).count();
    assert_eq!((done.len(), lost), (3, all.len() - 3), "{all:#?}");
    for subject in ["O1", "A", "lease relay"] {
        assert_eq!(recorded(fresh, subject).await.len(), 1, "{subject}");
    }
    assert_eq!(due(fresh).await, ["A to all", "a to order"]);
}

pub(super) async fn a_dry_run_leaves_everything_as_it_was(fresh: &Fresh) {
    break_all(fresh).await;
    let report = repair(&*fresh.store, None, &options(true)).await.unwrap();
    let planned = ends(&report.repairs);
    assert_eq!(
        planned,
        [
            "wake O1 would be done",
            "make_due A would be done",
            "end_lease lease relay would be done"
        ]
    );
    assert_eq!(due(fresh).await, [""; 0]);
    assert_eq!(lease(fresh, "b", LEASE).await, None);
    assert!(fresh.store.unwoken("order", "a").await.unwrap().is_some());
    for subject in ["O1", "A", "lease relay"] {
        assert_eq!(recorded(fresh, subject).await, [], "{subject}");
    }
    let done = ends(&repairs(fresh).await);
    let planned: Vec<_> = planned
        .iter()
        .map(|plan| plan.replace("would be done", "done"))
        .collect();
    assert_eq!(done, planned);
}
