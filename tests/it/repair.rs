//! `reconcile --repair` on a shop at work: what was missed, stuck or held by a clock that jumped goes
//! on, and nothing else is touched.

use crate::support::{LEASE, World, create, create_worth, of, paid};
use orderonce::broker::Broker;
use orderonce::domain::RoleName;
use orderonce::ops::explain::explain;
use orderonce::ops::reconcile;
use orderonce::ops::repair::{End, Options, Report, repair};
use orderonce::store::{CLAIMS, Outbox};
use orderonce::worker::relay::Relayed;
use serde_json::{Value, json};
use std::time::Duration;

const STUCK_AFTER: Duration = Duration::from_secs(300);

fn options(dry_run: bool, stuck_after: Duration) -> Options {
    Options {
        reconcile: reconcile::Options {
            stuck_after,
            ..reconcile::Options::default()
        },
        dry_run,
        actor: "ann".to_owned(),
        leases: vec![
            ("relay", Duration::from_secs(10)),
            (CLAIMS, Duration::from_mins(1)),
        ],
    }
}

async fn run(world: &World, dry_run: bool) -> Report {
    let options = options(dry_run, STUCK_AFTER);
    let report = repair(world.store.as_ref(), Some(&world.queue), &options).await;
    report.unwrap()
}

/// `what end` of each.
fn ends(report: &Report) -> Vec<String> {
    let repairs = report.repairs.iter();
    repairs.map(|r| format!("{} {}", r.what, r.end)).collect()
}

/// The names of the checks that found something.
fn remaining(report: &Report) -> Vec<&'static str> {
    let checks = report.remaining.checks.iter();
    let found = checks.filter(|check| !check.differences.is_empty());
    found.map(|check| check.name).collect()
}

/// A paid order whose shipment, parked before, was not woken.
async fn miss_a_wake(world: &World) {
    world.stock("S1", 10).await;
    world
        .publish("order.create", create("O1", &[("S1", 1)]))
        .await;
    world.drain().await;
    world.publish("order.ship", of("O1")).await;
    world.drain().await;
    world
        .publish("payment.succeeded", paid("O1", "T1", 1000))
        .await;
    assert_eq!(world.run_payments().await, ["applied"]);
    world
        .execute(
            "UPDATE parked_event SET woken_at = NULL;
             DELETE FROM outbox WHERE event_type = 'order.ship'",
        )
        .await;
    world.drain().await;
    assert_eq!(world.status("O1").await, "PAID");
}

/// An order whose creation waits in the outbox, refused, for a year.
async fn get_stuck(world: &World) {
    world.stock("S2", 10).await;
    world
        .publish("order.create", create("O2", &[("S2", 1)]))
        .await;
    assert_eq!(world.run_orders().await, ["applied"]);
    world
        .execute(
            "UPDATE outbox SET failures = 3, last_error = 'NO_ROUTE', retry_at = created_at + 31536000000",
        )
        .await;
}

/// A relay that died, and whose clock was a year ahead.
async fn hold_the_lease(world: &World) {
    let mut relay = world.new_relay("gone").await;
    assert_ne!(relay.run_once().await.unwrap(), Relayed::NotOurs);
    world
        .execute("UPDATE lease SET until = until + 31536000000")
        .await;
}

/// A delivery in the hands of a worker that died, and whose clock was a year ahead.
async fn hold_a_delivery(world: &World) {
    world
        .publish("order.create", create("O3", &[("S1", 1)]))
        .await;
    let mut consumer = world.queue.consumer(&RoleName::ORDER, 1).await.unwrap();
    let deliveries = consumer.receive(1).await.unwrap();
    assert_eq!(deliveries.len(), 1);
    world
        .execute("UPDATE queue_message SET visible_at = visible_at + 31536000000 WHERE leased = 1")
        .await;
    // Its end hands over what it has in hand, under its fence: so the row gets another.
    let fence = "UPDATE queue_message SET fence = fence + 1 WHERE leased = 1";
    world.execute(fence).await;
}

const TABLES: [&str; 19] = [
    "orders",
    "order_line",
    "order_transition",
    "payment",
    "refund",
    "stock",
    "reservation",
    "deduction_flow",
    "account",
    "account_flow",
    "idempotent_record",
    "parked_event",
    "outbox",
    "dead_letter",
    "callback",
    "lease",
    "retention",
    "queue_message",
    "repair",
];

/// Every row of every table.
async fn everything(world: &World) -> Vec<Vec<String>> {
    let mut tables = Vec::new();
    for table in TABLES {
        let columns = format!(
            "SELECT group_concat('quote(' || name || ')', ' || '' '' || ') FROM pragma_table_info('{table}')"
        );
        let columns = world.row(&columns).await;
        let rows = format!("SELECT {columns} AS row FROM {table} ORDER BY row");
        tables.push(world.rows(&rows).await);
    }
    tables
}

#[tokio::test]
async fn a_missed_event_is_woken_and_decided() {
    let world = World::new().await;
    miss_a_wake(&world).await;
    world.advance(2 * STUCK_AFTER);
    let report = run(&world, true).await;
    assert_eq!(remaining(&report), ["parked_and_possible"]);
    assert!(!report.is_clean());

    let report = run(&world, false).await;
    assert_eq!(ends(&report), ["wake done"]);
    assert!(report.is_clean(), "{report}");
    assert_eq!(world.drain().await, ["order: applied"]);
    assert_eq!(world.status("O1").await, "SHIPPED");
    world.adds_up().await;
}

#[tokio::test]
async fn a_stuck_row_is_tried_at_once() {
    let world = World::new().await;
    get_stuck(&world).await;
    world.advance(2 * STUCK_AFTER);
    world.drain().await;
    assert_eq!(world.outbox().await, ["order.created"]);
    let report = run(&world, false).await;
    assert_eq!(ends(&report), ["make_due done"]);
    assert_eq!(remaining(&report), ["outbox_stuck"], "until the relay runs");
    world.drain().await;
    assert_eq!(world.available("S2").await, 9);
    world.adds_up().await;
}

#[tokio::test]
async fn a_row_that_fails_again_says_what_is_wrong() {
    let world = World::new().await;
    world
        .publish("order.create", create_worth("O2", 1000))
        .await;
    world.run_orders().await;
    world
        .execute(
            "UPDATE outbox SET failures = 3, last_error = 'old', addressee = 'nobody',
             retry_at = created_at + 31536000000",
        )
        .await;
    assert_eq!(ends(&run(&world, false).await), ["make_due done"]);
    world.relay().await;
    let row = "SELECT failures, last_error <> 'old' FROM outbox";
    assert_eq!(world.row(row).await, "4 1");
}

#[tokio::test]
async fn a_lease_of_retention_that_a_clock_made_endless_is_free_again() {
    let world = World::new().await;
    let year = Duration::from_hours(24 * 365);
    world.store.lease(CLAIMS, "gone", year).await.unwrap();
    let next = || world.store.lease(CLAIMS, "next", Duration::from_mins(1));
    assert_eq!(next().await.unwrap(), None);
    assert_eq!(ends(&run(&world, false).await), ["end_lease done"]);
    assert!(next().await.unwrap().is_some());
    let ends = ends(&run(&world, false).await);
    assert_eq!(ends, [""; 0], "it is held as it should be");
}

#[tokio::test]
async fn a_lease_of_a_clock_that_jumped_is_free_again() {
    let world = World::new().await;
    hold_the_lease(&world).await;
    get_stuck(&world).await;
    let mut relay = world.new_relay("next").await;
    assert_eq!(relay.run_once().await.unwrap(), Relayed::NotOurs);
    let report = run(&world, false).await;
    assert_eq!(ends(&report), ["make_due done", "end_lease done"]);
    assert!(report.is_clean(), "{report}");
    let relayed = relay.run_once().await.unwrap();
    assert_eq!(
        relayed,
        Relayed::Rows {
            published: 1,
            refused: 0
        }
    );
    assert_eq!(world.row("SELECT holder, fence FROM lease").await, "next 2");
    relay.close().await.unwrap();
    world.drain().await;
    world.adds_up().await;
}

#[tokio::test]
async fn a_delivery_of_a_clock_that_jumped_is_delivered_again() {
    let world = World::new().await;
    world.stock("S1", 10).await;
    world.drain().await;
    hold_a_delivery(&world).await;
    world.advance(2 * (STUCK_AFTER + LEASE));
    assert_eq!(world.drain().await, [""; 0]);
    let report = run(&world, false).await;
    assert_eq!(ends(&report), ["end_delivery done"]);
    let seen = world.drain().await;
    assert_eq!(seen[0], "order: applied", "{seen:?}");
    assert_eq!(world.available("S1").await, 9);
    world.adds_up().await;
}

#[tokio::test]
async fn a_delivery_that_was_settled_meanwhile_is_lost() {
    let world = World::new().await;
    hold_a_delivery(&world).await;
    let held = world.queue.held_beyond(STUCK_AFTER, 10).await.unwrap();
    assert_eq!(held.len(), 1);
    for meanwhile in ["fence = fence + 1", "visible_at = visible_at + 1"] {
        world
            .execute(&format!("UPDATE queue_message SET {meanwhile}"))
            .await;
        let mut tx = orderonce::store::Store::begin(&*world.store).await.unwrap();
        let now = tx.now().await.unwrap();
        let orderonce::store::Connection::Sqlite(connection) = tx.connection() else {
            panic!("not SQLite");
        };
        let ended = orderonce::broker::embedded::Embedded::end_lease(connection, &held[0], now);
        assert_eq!(ended.await, Ok(false), "{meanwhile}");
        tx.rollback().await.unwrap();
        world
            .execute(&format!(
                "UPDATE queue_message SET fence = {}, visible_at = {}",
                held[0].tag.fence, held[0].until.0
            ))
            .await;
    }
}

/// Every fault at once, and a figure that is wrong.
async fn break_all(world: &World) {
    miss_a_wake(world).await;
    hold_the_lease(world).await;
    get_stuck(world).await;
    hold_a_delivery(world).await;
    world.advance(2 * STUCK_AFTER);
}

const ALL: [&str; 4] = ["wake", "make_due", "end_lease", "end_delivery"];

#[tokio::test]
async fn a_dry_run_says_what_would_be_done_and_changes_nothing() {
    let world = World::new().await;
    break_all(&world).await;
    let before = everything(&world).await;
    let report = run(&world, true).await;
    let would = ALL.map(|what| format!("{what} would be done"));
    assert_eq!(ends(&report), would);
    assert_eq!(everything(&world).await, before);
    let text = report.to_string();
    for told in [
        "order:O1/order.ship parked since ",
        "refused 3 times, last: NO_ROUTE",
        "held by gone until ",
        "of queue order in hand until ",
        "would be done",
        "parked_and_possible: no event stays parked",
    ] {
        assert!(text.contains(told), "{told} in\n{text}");
    }
}

#[tokio::test]
async fn what_is_repaired_is_on_record_and_a_second_run_has_nothing_to_do() {
    let world = World::new().await;
    break_all(&world).await;
    assert_eq!(
        ends(&run(&world, false).await),
        ALL.map(|what| format!("{what} done"))
    );
    let recorded = "SELECT actor, what, subject, role, key FROM repair ORDER BY id";
    assert_eq!(
        world.rows(recorded).await,
        [
            "ann wake O1 order O1/order.ship",
            "ann make_due O2 - -",
            "ann end_lease lease relay - -",
            "ann end_delivery test - -"
        ]
    );
    let before = everything(&world).await;
    let report = run(&world, false).await;
    assert_eq!(report.repairs, []);
    assert!(report.to_string().starts_with("nothing to repair\n\n"));
    assert_eq!(everything(&world).await, before);
    world.drain().await;
    world.adds_up().await;
}

#[tokio::test]
async fn two_repairs_at_once_repair_once() {
    let world = World::new().await;
    break_all(&world).await;
    let (one, other) = tokio::join!(run(&world, false), run(&world, false));
    let all = [one.repairs, other.repairs].concat();
    let done = all.iter().filter(|repair| repair.end == End::Done).count();
    let lost = all.iter().filter(|repair| repair.end == End::Lost).count();
    assert_eq!((done, done + lost), (4, all.len()), "{all:#?}");
    assert_eq!(world.count("repair").await, 4);
    world.drain().await;
    world.adds_up().await;
}

#[tokio::test]
async fn workers_that_run_meanwhile_are_not_disturbed() {
    let world = World::new().await;
    world.stock("S1", 1000).await;
    let mut expected = 1;
    for number in 0..40 {
        let order = format!("O{number}");
        world.publish("order.ship", of(&order)).await;
        world
            .publish("payment.succeeded", paid(&order, &order, 1000))
            .await;
        world
            .publish("order.create", create(&order, &[("S1", 1)]))
            .await;
        expected += 3;
    }
    // As old as can be: what is young is no fault either.
    let options = options(false, Duration::ZERO);
    let repairing = async {
        let mut found = Vec::new();
        for _ in 0..50 {
            let report = repair(world.store.as_ref(), Some(&world.queue), &options).await;
            found.extend(report.unwrap().repairs);
        }
        found
    };
    let (seen, found) = tokio::join!(world.drain(), repairing);
    assert_eq!(found, [], "nothing is missed by a decision");
    let applied = seen.iter().filter(|seen| seen.ends_with("applied")).count();
    assert!(applied >= expected, "{seen:?}");
    for number in 0..40 {
        assert_eq!(world.status(&format!("O{number}")).await, "SHIPPED");
    }
    world.adds_up().await;
}

#[tokio::test]
async fn what_needs_judgement_is_reported_and_not_touched() {
    let world = World::new().await;
    miss_a_wake(&world).await;
    world
        .execute(
            "UPDATE stock SET available = available + 1;
             UPDATE orders SET paid_minor = 999;
             INSERT INTO outbox (aggregate, event_type, message_id, message, created_at)
             VALUES ('O9', 'order.paid', 'm', x'7b7d', 1)",
        )
        .await;
    world.advance(2 * STUCK_AFTER);
    let before = everything(&world).await;
    let report = run(&world, false).await;
    assert_eq!(ends(&report), ["wake done"]);
    let left = remaining(&report);
    for check in ["stock_available", "order_paid", "outbox_stuck"] {
        assert!(left.contains(&check), "{check} in {left:?}");
    }
    assert!(!report.is_clean());
    let after = everything(&world).await;
    let changed = TABLES.iter().zip(before.iter().zip(&after));
    let changed: Vec<_> = changed
        .filter(|(_, (before, after))| before != after)
        .map(|(table, _)| *table)
        .collect();
    assert_eq!(changed, ["parked_event", "outbox", "repair"]);
}

#[tokio::test]
async fn an_event_that_can_be_parked_only_is_left_to_its_deadline() {
    let world = World::new().await;
    world.publish("order.ship", of("O1")).await;
    world.drain().await;
    world.advance(2 * STUCK_AFTER);
    let report = run(&world, false).await;
    assert_eq!(report.repairs, []);
    assert!(report.is_clean(), "{report}");
}

#[tokio::test]
async fn a_repair_is_told_in_the_life_of_its_order_and_key() {
    let world = World::new().await;
    break_all(&world).await;
    run(&world, false).await;
    for asked in ["O1", "order:O1/order.ship"] {
        let life = explain(world.store.as_ref(), asked).await.unwrap();
        let entry = life.entries.iter().find(|entry| entry.table == "repair");
        let entry = entry.unwrap_or_else(|| panic!("no repair in\n{life}"));
        let told = "wake by ann: order:O1/order.ship parked since ";
        assert!(entry.what.starts_with(told), "{entry:?}");
        assert!(entry.what.ends_with(" -> woken, handed back to order"));
        assert_eq!(entry.asked, asked != "O1");
    }
    let life = explain(world.store.as_ref(), "O2")
        .await
        .unwrap()
        .to_string();
    assert!(life.contains("make_due by ann: outbox row "), "{life}");
    let lease = explain(world.store.as_ref(), "lease relay").await.unwrap();
    assert!(lease.to_string().contains("end_lease by ann: held by gone"));
}

#[tokio::test]
async fn a_repair_is_told_with_a_key_of_an_account_alone() {
    let world = World::new().await;
    let credit = json!({"user_id": "U1", "kind": "POINTS", "amount": 5,
        "source_type": "GIFT", "source_id": "G1"});
    let back = json!({"user_id": "U1", "kind": "POINTS", "source_type": "UNDO", "source_id": "X1",
        "of_source_type": "GIFT", "of_source_id": "G1"});
    world.publish("account.reverse", back).await;
    assert_eq!(
        world.drain().await,
        ["account: parked (until flow:U1:POINTS:GIFT:G1)"]
    );
    world.publish("account.credit", credit).await;
    world.run(&RoleName::ACCOUNT, world.accounts()).await;
    world
        .execute("UPDATE parked_event SET woken_at = NULL; DELETE FROM outbox")
        .await;
    world.advance(2 * STUCK_AFTER);
    assert_eq!(ends(&run(&world, false).await), ["wake done"]);
    let tables = |asked: &'static str| {
        let store = world.store.clone();
        async move {
            let life = explain(store.as_ref(), asked).await.unwrap();
            let tables = life.entries.iter().map(|entry| entry.table);
            tables.filter(|table| *table == "repair").count()
        }
    };
    assert_eq!(tables("U1/POINTS/UNDO/X1/reverse").await, 1);
    assert_eq!(tables("U1/POINTS/GIFT/G1/credit").await, 0);
    assert_eq!(world.drain().await, ["account: applied"]);
    world.adds_up().await;
}

#[tokio::test]
async fn a_report_is_json_with_the_usual_one_in_it() {
    let world = World::new().await;
    miss_a_wake(&world).await;
    world.advance(2 * STUCK_AFTER);
    let json = serde_json::to_value(run(&world, true).await).unwrap();
    let repair = &json["repairs"][0];
    assert_eq!(
        (&repair["what"], &repair["subject"], &repair["end"]),
        (&json!("wake"), &json!("O1"), &json!("would_be_done"))
    );
    assert_eq!(repair["role"], "order");
    assert_eq!(repair["key"], "O1/order.ship");
    assert_eq!(repair["problem"], Value::Null);
    assert_eq!(json["differences"], 1);
    assert!(json["checks"].is_array());
}
