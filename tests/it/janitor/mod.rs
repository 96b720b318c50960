//! What runs by the clock.
//!
//! What is stamped below runs on every database; what any of them would show is here.

mod alone;
mod clock;
mod shop;

use crate::support::{
    DELIVERY_LIMIT, PAY_TIMEOUT, World, and, create, create_worth, envelope, of, outcomes, paid,
};
use async_trait::async_trait;
use orderonce::broker::{Broker, Headers};
use orderonce::domain::{Key, RoleName};
use orderonce::gate::{Gate, Known, Told};
use orderonce::worker::janitor::{Cleaned, Janitor};
use orderonce::worker::{Point, Points};
use serde_json::json;
use std::sync::Arc;
use std::sync::Mutex;
use std::time::Duration;

macro_rules! stamp {
    ($database:ident; $($subject:ident: $($test:ident)*;)*) => {
        mod $database {$(
            mod $subject {$(
                #[tokio::test]
                async fn $test() {
                    let fresh = crate::store::fixture::$database::fresh().await;
                    crate::janitor::$subject::$test(&fresh).await;
                    fresh.finish().await;
                }
            )*}
        )*}
    };
}

macro_rules! on_every_database {
    ($($tests:tt)*) => {
        stamp! { sqlite; $($tests)* }
        stamp! { postgres; $($tests)* }
        stamp! { mariadb; $($tests)* }
    };
}

on_every_database! {
    alone:
        one_of_two_janitors_works_until_it_gives_its_lease_back
        a_janitor_that_died_is_followed_at_the_end_of_its_lease
        who_lost_its_lease_gives_up_nothing_that_is_parked
        who_slept_past_its_lease_writes_nothing_even_if_nobody_took_it
        who_lost_its_lease_keeps_and_forgets_no_message;
    clock:
        two_janitors_remind_of_an_order_once
        a_reminder_that_comes_after_the_payment_or_the_end_is_stale
        a_payment_races_the_timeout_1000_times
        two_nodes_whose_clocks_are_180_seconds_apart_close_by_the_database_s_clock
        what_became_due_while_nobody_ran_is_closed_once_each;
}

const MOMENT: Duration = Duration::from_secs(5);

fn expired(expired: usize) -> Cleaned {
    Cleaned {
        expired,
        ..Cleaned::default()
    }
}

#[tokio::test]
async fn an_unpaid_order_closes_at_its_deadline_and_not_before() {
    let world = World::new().await;
    world.stock("A", 5).await;
    world
        .publish("order.create", create("O1", &[("A", 2)]))
        .await;
    let sooner = and(create("O2", &[("A", 1)]), json!({"pay_within_seconds": 60}));
    world.publish("order.create", sooner).await;
    world
        .publish("order.create", create("O3", &[("A", 1)]))
        .await;
    world.drain().await;
    world
        .publish("payment.succeeded", paid("O3", "T3", 1000))
        .await;
    world.drain().await;
    assert_eq!(world.available("A").await, 1);
    world.advance(Duration::from_secs(60) - MOMENT);
    assert_eq!(world.clean().await, expired(0));
    world.advance(MOMENT);
    assert_eq!(world.clean().await, expired(1));
    assert_eq!(world.status("O2").await, "CLOSED");
    world.advance(PAY_TIMEOUT - Duration::from_secs(60) - MOMENT);
    assert_eq!(world.clean().await, expired(0));
    assert_eq!(world.status("O1").await, "WAIT_PAY");
    world.advance(MOMENT);
    assert_eq!(world.clean().await, expired(1));
    world.drain().await;
    assert_eq!(world.status("O1").await, "CLOSED");
    assert_eq!(world.status("O3").await, "PAID");
    assert_eq!(world.available("A").await, 4);
    assert_eq!(world.clean().await, expired(0));
    world.adds_up().await;
}

#[tokio::test]
async fn an_expiry_that_was_asked_for_too_early_does_not_stop_the_clock() {
    let world = World::new().await;
    world
        .publish("order.create", create_worth("O1", 1000))
        .await;
    world.publish("order.expire", of("O1")).await;
    assert_eq!(world.run_orders().await, ["applied", "rejected (not_due)"]);
    world.advance(PAY_TIMEOUT);
    world.publish("order.expire", of("O1")).await;
    assert_eq!(world.run_orders().await, ["duplicate (claim)"]);
    assert_eq!(world.clean().await, expired(1));
    assert_eq!(world.status("O1").await, "CLOSED");
    let claims = [
        "order O1/order.create applied",
        "order O1/order.expire rejected",
        "order O1/order.expire/clock applied",
    ];
    assert_eq!(world.claims("1").await, claims);
}

/// Lets another janitor do the same work after this one has read what is due.
struct Rival {
    janitor: Mutex<Option<Janitor>>,
    world: Arc<World>,
}

#[async_trait]
impl Gate for Rival {
    async fn ask(&self, _: &RoleName, keys: &[&Key]) -> Vec<Known> {
        let rival = self.janitor.lock().unwrap().take();
        if let Some(mut rival) = rival {
            // What the second one reads is of another time.
            self.world.advance(Duration::from_secs(1));
            assert_eq!(rival.run_once().await.unwrap(), expired(2));
        }
        vec![Known::Unknown; keys.len()]
    }

    async fn tell(&self, _: &RoleName, _: &[Told<'_>]) {}
}

#[tokio::test]
async fn two_janitors_that_see_the_same_orders_close_each_once() {
    let world = Arc::new(World::new().await);
    world.stock("A", 5).await;
    world
        .publish("order.create", create("O1", &[("A", 1)]))
        .await;
    world
        .publish("order.create", create("O2", &[("A", 1)]))
        .await;
    world.drain().await;
    world.advance(PAY_TIMEOUT);
    let rival = Rival {
        janitor: Mutex::new(Some(world.janitor())),
        world: Arc::clone(&world),
    };
    let orders = world.orders().with_gates(vec![Arc::new(rival)]);
    let mut slower = world.janitor_with(orders);
    assert_eq!(slower.run_once().await.unwrap(), expired(0));
    world.drain().await;
    let steps = "SELECT count(*) FROM order_transition WHERE to_status = 'CLOSED'";
    assert_eq!(world.row(steps).await, "2");
    assert_eq!(world.available("A").await, 5);
    assert_eq!(world.dead().await, [""; 0]);
    world.adds_up().await;
}

#[tokio::test]
async fn a_payment_that_comes_before_the_timeout_is_carried_out_wins() {
    let world = World::new().await;
    world.stock("A", 5).await;
    world
        .publish("order.create", create("O1", &[("A", 1)]))
        .await;
    world.drain().await;
    world.advance(PAY_TIMEOUT);
    world
        .publish("payment.succeeded", paid("O1", "T1", 1000))
        .await;
    assert_eq!(world.run_payments().await, ["applied"]);
    assert_eq!(world.clean().await, expired(0));
    world.drain().await;
    assert_eq!(world.status("O1").await, "PAID");
    assert_eq!(world.available("A").await, 4);
    world.adds_up().await;
}

#[tokio::test]
async fn a_payment_that_comes_after_the_timeout_is_late_and_asked_back() {
    let world = World::new().await;
    world.stock("A", 5).await;
    world
        .publish("order.create", create("O1", &[("A", 1)]))
        .await;
    world.drain().await;
    world.advance(PAY_TIMEOUT);
    assert_eq!(world.clean().await, expired(1));
    world
        .publish("payment.succeeded", paid("O1", "T1", 1000))
        .await;
    assert_eq!(world.run_payments().await, ["applied"]);
    assert_eq!(world.outbox().await, ["order.closed", "refund.requested"]);
    world.drain().await;
    assert_eq!(world.status("O1").await, "CLOSED");
    assert_eq!(world.row("SELECT status FROM payment").await, "LATE");
    assert_eq!(world.available("A").await, 5);
    world.adds_up().await;
}

#[tokio::test]
async fn a_payment_that_lands_while_the_janitor_is_at_it_is_seen_by_the_janitor() {
    let world = Arc::new(World::new().await);
    world
        .publish("order.create", create_worth("O1", 1000))
        .await;
    world.drain().await;
    world.advance(PAY_TIMEOUT);
    struct Paying(Arc<World>);
    #[async_trait]
    impl Gate for Paying {
        async fn ask(&self, _: &RoleName, keys: &[&Key]) -> Vec<Known> {
            let message = envelope("m9", "payment.succeeded", &paid("O1", "T1", 1000));
            let delivery = crate::support::delivery(message);
            let paid = self.0.payments().process(&[delivery]).await;
            assert_eq!(outcomes(&paid.settled), ["applied"]);
            vec![Known::Unknown; keys.len()]
        }
        async fn tell(&self, _: &RoleName, _: &[Told<'_>]) {}
    }
    let gate = Arc::new(Paying(Arc::clone(&world)));
    let mut janitor = world.janitor_with(world.orders().with_gates(vec![gate]));
    assert_eq!(janitor.run_once().await.unwrap(), expired(0));
    assert_eq!(world.status("O1").await, "PAID");
    let claim = "SELECT outcome FROM idempotent_record WHERE key = 'O1/order.expire/clock'";
    assert_eq!(world.row(claim).await, "stale");
    world.drain().await;
    world.adds_up().await;
}

#[tokio::test]
async fn overdue_parked_events_of_all_roles_are_kept_and_nothing_else() {
    let world = World::new().await;
    world.publish("order.ship", of("O1")).await;
    world
        .publish("payment.succeeded", paid("O1", "T1", 1))
        .await;
    let back = json!({"return_id": "R1", "order_id": "O1", "lines": [{"sku_id": "A", "qty": 1}]});
    world.publish("stock.return", back).await;
    let reverse = json!({
        "user_id": "U1", "kind": "P", "source_type": "R", "source_id": "1",
        "of_source_type": "G", "of_source_id": "1",
    });
    world.publish("account.reverse", reverse).await;
    world.drain().await;
    world.advance(Duration::from_secs(3600));
    world.publish("order.ship", of("O2")).await;
    world.drain().await;
    world.advance(Duration::from_secs(86_400 - 3600));
    let cleaned = world.clean().await;
    assert_eq!((cleaned.overdue, cleaned.crashed), (4, 0));
    assert_eq!(world.dead().await, ["parked_too_long DEAD"; 4]);
    assert_eq!(
        world.claims("outcome = 'parked'").await,
        ["order O2/order.ship parked"]
    );
}

#[tokio::test]
async fn a_message_that_kills_its_process_again_and_again_is_kept_with_bytes_and_headers() {
    let world = World::new().await;
    let message = envelope("m1", "order.create", &create_worth("O1", 1));
    let headers = Headers::from([("x".to_owned(), "1".to_owned())]);
    world
        .publish_raw("order.create", message.clone().into_bytes(), headers)
        .await;
    for _ in 0..DELIVERY_LIMIT {
        assert_eq!(world.clean().await.crashed, 0);
        let dying = Points::stopping(|point| point == Point::Decided);
        let died = world
            .try_run(&RoleName::ORDER, world.orders().with_points(dying))
            .await;
        assert!(died.is_err());
        world.advance(crate::support::LEASE);
    }
    assert_eq!(world.run_orders().await, [""; 0]);
    assert_eq!(world.clean().await.crashed, 1);
    assert_eq!(world.clean().await.crashed, 0);
    let kept = "SELECT role, reason, deliveries, headers, raw FROM dead_letter";
    let expected = format!("order crash_loop {DELIVERY_LIMIT} {{\"x\":\"1\"}} {message}");
    assert_eq!(world.row(kept).await, expected);
    let depth = world.queue.depth(&RoleName::ORDER).await.unwrap();
    assert_eq!(depth.total(), 0);
}
