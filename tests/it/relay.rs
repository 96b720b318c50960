//! The relay, on SQLite and the embedded queue.

use crate::support::{World, create, create_worth, of};
use async_trait::async_trait;
use orderonce::broker::{self, Broker, Headers, Publication, Publisher, Receipt};
use orderonce::domain::RoleName;
use orderonce::store::{NewOutbox, Outbox, Store};
use orderonce::worker::relay::{LEASE, LONGEST_WAIT, Relay, Relayed, Settings};
use orderonce::worker::{Error, Point, Points};
use std::collections::HashSet;
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// What a publisher was given, and how it takes it.
#[derive(Default)]
struct Mood {
    sent: Mutex<Vec<String>>,
    refuse: Mutex<HashSet<String>>,
    away: Mutex<bool>,
}

impl Mood {
    fn sent(&self) -> Vec<String> {
        std::mem::take(&mut *self.sent.lock().unwrap())
    }

    fn refuse(&self, ids: &[&str]) {
        *self.refuse.lock().unwrap() = ids.iter().map(|id| (*id).to_owned()).collect();
    }

    fn is_away(&self, away: bool) {
        *self.away.lock().unwrap() = away;
    }
}

struct Moody(Arc<Mood>);

#[async_trait]
impl Publisher for Moody {
    async fn publish(&mut self, messages: &[Publication]) -> broker::Result<Vec<Receipt>> {
        if *self.0.away.lock().unwrap() {
            return Err(broker::Error::Unavailable("gone fishing".to_owned()));
        }
        let refuse = self.0.refuse.lock().unwrap();
        let receipt = |message: &Publication| {
            let id = message.message_id.clone();
            let refused = refuse.contains(&id);
            self.0.sent.lock().unwrap().push(id);
            match refused {
                true => Receipt::Refused("no such queue".to_owned()),
                false => Receipt::Confirmed,
            }
        };
        Ok(messages.iter().map(receipt).collect())
    }
}

fn relay(world: &World, mood: &Arc<Mood>, holder: &str) -> Relay {
    let publisher = Box::new(Moody(Arc::clone(mood)));
    let settings = Settings {
        window: 4,
        ..Settings::default()
    };
    Relay::new(world.store.clone(), publisher, holder.to_owned(), settings)
}

/// Writes rows `aggregate/number` to the outbox, in one transaction.
async fn append(world: &World, rows: &[&str]) {
    let row = |id: &&str| NewOutbox {
        aggregate: id.split('/').next().unwrap().to_owned(),
        addressee: None,
        event_type: "order.created".to_owned(),
        message_id: (*id).to_owned(),
        headers: Headers::new(),
        message: id.as_bytes().to_vec(),
    };
    let rows: Vec<_> = rows.iter().map(row).collect();
    let mut tx = world.store.begin().await.unwrap();
    let now = tx.now().await.unwrap();
    tx.append(now, &rows).await.unwrap();
    tx.commit().await.unwrap();
}

async fn left(world: &World) -> Vec<String> {
    world
        .rows("SELECT message_id FROM outbox ORDER BY id")
        .await
}

fn rows(published: usize, refused: usize) -> Relayed {
    Relayed::Rows { published, refused }
}

#[tokio::test]
async fn rows_leave_in_order_a_window_at_a_time() {
    let world = World::new().await;
    let mood = Arc::new(Mood::default());
    append(&world, &["b/1", "a/1", "b/2"]).await;
    append(&world, &["a/2", "c/1", "a/3"]).await;
    let mut relay = relay(&world, &mood, "one");
    assert_eq!(relay.run_once().await.unwrap(), rows(4, 0));
    assert_eq!(left(&world).await, ["c/1", "a/3"]);
    assert_eq!(relay.run_once().await.unwrap(), rows(2, 0));
    assert_eq!(relay.run_once().await.unwrap(), rows(0, 0));
    assert_eq!(mood.sent(), ["b/1", "a/1", "b/2", "a/2", "c/1", "a/3"]);
}

// B63
#[tokio::test]
async fn rows_stay_while_the_broker_is_away() {
    let world = World::new().await;
    let mood = Arc::new(Mood::default());
    mood.is_away(true);
    append(&world, &["a/1", "b/1"]).await;
    let mut relay = relay(&world, &mood, "one");
    for _ in 0..3 {
        let away = relay.run_once().await;
        assert!(matches!(away, Err(Error::Broker(_))));
    }
    assert_eq!(left(&world).await, ["a/1", "b/1"]);
    let failures = world
        .row("SELECT sum(failures), max(retry_at) FROM outbox")
        .await;
    assert_eq!(failures, "0 0");
    mood.is_away(false);
    assert_eq!(relay.run_once().await.unwrap(), rows(2, 0));
    assert_eq!(mood.sent(), ["a/1", "b/1"]);
}

// B63
#[tokio::test]
async fn a_row_that_no_queue_takes_stays_and_waits_with_what_the_broker_said() {
    let world = World::new().await;
    append(&world, &["a/1"]).await;
    world
        .execute("UPDATE outbox SET addressee = 'nobody'; INSERT INTO outbox (aggregate, event_type, message_id, headers, message, created_at) VALUES ('b', 'never.heard.of', 'b/1', '{}', x'', 0), ('c', 'order.created', 'c/1', '{}', x'', 0)")
        .await;
    let mut relay = world.new_relay("one").await;
    assert_eq!(relay.run_once().await.unwrap(), rows(1, 2));
    let waiting = "SELECT message_id, failures, last_error FROM outbox ORDER BY id";
    let expected = [
        "a/1 1 there is no queue for role nobody",
        "b/1 1 no queue is bound to type never.heard.of",
    ];
    assert_eq!(world.rows(waiting).await, expected);
    assert_eq!(relay.run_once().await.unwrap(), rows(0, 0));
}

#[tokio::test]
async fn a_refused_row_holds_up_its_own_aggregate_and_no_other() {
    let world = World::new().await;
    let mood = Arc::new(Mood::default());
    mood.refuse(&["a/1"]);
    append(&world, &["a/1", "b/1", "a/2", "b/2", "a/3"]).await;
    let mut relay = relay(&world, &mood, "one");
    assert_eq!(relay.run_once().await.unwrap(), rows(2, 1));
    assert_eq!(left(&world).await, ["a/1", "a/2", "a/3"]);
    mood.sent();
    assert_eq!(relay.run_once().await.unwrap(), rows(0, 0));
    append(&world, &["b/3"]).await;
    assert_eq!(relay.run_once().await.unwrap(), rows(1, 0));
    mood.refuse(&[]);
    world.advance(Duration::from_secs(1));
    assert_eq!(relay.run_once().await.unwrap(), rows(3, 0));
    assert_eq!(mood.sent(), ["b/3", "a/1", "a/2", "a/3"]);
}

#[tokio::test]
async fn a_row_that_is_refused_again_and_again_waits_longer_each_time_up_to_a_limit() {
    let world = World::new().await;
    let mood = Arc::new(Mood::default());
    mood.refuse(&["a/1"]);
    append(&world, &["a/1"]).await;
    let mut relay = relay(&world, &mood, "one");
    for wait in [1, 2, 4, 8, 16, 32, 60, 60] {
        assert_eq!(relay.run_once().await.unwrap(), rows(0, 1));
        // Time goes on while the test runs, so a moment before the end is left out.
        world.advance(Duration::from_secs(wait) - Duration::from_millis(600));
        assert_eq!(relay.run_once().await.unwrap(), rows(0, 0), "{wait}");
        world.advance(Duration::from_millis(600));
    }
    assert_eq!(LONGEST_WAIT, Duration::from_secs(60));
    mood.refuse(&[]);
    assert_eq!(relay.run_once().await.unwrap(), rows(1, 0));
}

#[tokio::test]
async fn a_crash_between_publishing_and_removing_publishes_again_with_the_same_id() {
    let world = World::new().await;
    world
        .publish("order.create", create("O1", &[("A", 1)]))
        .await;
    world.stock("A", 5).await;
    world.run_inventory().await;
    world.run_orders().await;
    let mut relay = world
        .new_relay("one")
        .await
        .with_points(Points::stopping(|point| point == Point::RelayPublished));
    let crashed = relay.run_once().await;
    assert!(matches!(
        crashed,
        Err(Error::Stopped(Point::RelayPublished))
    ));
    let id = "order:O1/order.create>order.created";
    assert_eq!(left(&world).await, [id]);
    world.advance(Duration::from_secs(10));
    let mut other = world.new_relay("two").await;
    assert_eq!(other.run_once().await.unwrap(), rows(1, 0));
    let queued = "SELECT message_id FROM queue_message WHERE queue = 'inventory' ORDER BY id";
    assert_eq!(world.rows(queued).await, [id, id]);
    assert_eq!(
        world.run_inventory().await,
        ["applied", "duplicate (batch)"]
    );
    assert_eq!(world.available("A").await, 4);
    other.close().await.unwrap();
    world.drain().await;
    world.adds_up().await;
}

#[tokio::test]
async fn a_crash_before_publishing_or_after_removing_neither_loses_nor_repeats() {
    for (point, sent) in [(Point::RelayRead, 0), (Point::RelayRemoved, 1)] {
        let world = World::new().await;
        let mood = Arc::new(Mood::default());
        append(&world, &["a/1"]).await;
        let stopping = Points::stopping(move |at| at == point);
        let mut crashing = relay(&world, &mood, "one").with_points(stopping);
        assert!(crashing.run_once().await.is_err());
        assert_eq!(mood.sent().len(), sent);
        world.advance(Duration::from_secs(10));
        let mut other = relay(&world, &mood, "two");
        assert_eq!(other.run_once().await.unwrap(), rows(1 - sent, 0));
        assert_eq!(mood.sent().len(), 1 - sent);
    }
}

#[tokio::test]
async fn a_second_relay_has_nothing_to_do_until_the_lease_of_the_first_ends() {
    let world = World::new().await;
    let mood = Arc::new(Mood::default());
    append(&world, &["a/1"]).await;
    let (mut one, mut two) = (relay(&world, &mood, "one"), relay(&world, &mood, "two"));
    assert_eq!(one.run_once().await.unwrap(), rows(1, 0));
    append(&world, &["a/2"]).await;
    assert_eq!(two.run_once().await.unwrap(), Relayed::NotOurs);
    assert_eq!(left(&world).await, ["a/2"]);
    world.advance(Duration::from_secs(10));
    assert_eq!(two.run_once().await.unwrap(), rows(1, 0));
    assert_eq!(mood.sent(), ["a/1", "a/2"]);
}

#[tokio::test]
async fn a_relay_that_closes_need_not_be_waited_for() {
    let world = World::new().await;
    let mood = Arc::new(Mood::default());
    append(&world, &["a/1"]).await;
    let mut one = relay(&world, &mood, "one");
    one.run_once().await.unwrap();
    one.close().await.unwrap();
    append(&world, &["a/2"]).await;
    let mut two = relay(&world, &mood, "two");
    assert_eq!(two.run_once().await.unwrap(), rows(1, 0));
}

// B69
#[tokio::test]
async fn a_relay_that_was_killed_with_rows_in_hand_leaves_them_to_the_next_once_its_lease_ends() {
    let world = World::new().await;
    let mood = Arc::new(Mood::default());
    append(&world, &["a/1", "a/2"]).await;
    let stopping = Points::stopping(|at| at == Point::RelayRead);
    let mut killed = relay(&world, &mood, "one").with_points(stopping);
    assert!(killed.run_once().await.is_err());
    drop(killed);
    let mut next = relay(&world, &mood, "two");
    assert_eq!(next.run_once().await.unwrap(), Relayed::NotOurs);
    world.advance(Duration::from_secs(10));
    assert_eq!(next.run_once().await.unwrap(), rows(2, 0));
    assert_eq!(mood.sent(), ["a/1", "a/2"]);
}

/// A publisher that lets another relay take over while it publishes.
struct Slow {
    mood: Arc<Mood>,
    next: Option<Relay>,
    world: Arc<World>,
}

#[async_trait]
impl Publisher for Slow {
    async fn publish(&mut self, messages: &[Publication]) -> broker::Result<Vec<Receipt>> {
        let receipts = Moody(Arc::clone(&self.mood)).publish(messages).await;
        if let Some(mut next) = self.next.take() {
            self.world.advance(Duration::from_secs(10));
            next.run_once().await.unwrap();
        }
        receipts
    }
}

#[tokio::test]
async fn a_relay_that_lost_its_lease_while_publishing_removes_nothing() {
    let world = Arc::new(World::new().await);
    let mood = Arc::new(Mood::default());
    append(&world, &["a/1"]).await;
    let later = Arc::new(Mood::default());
    later.refuse(&["a/1"]);
    let slow = Slow {
        mood: Arc::clone(&mood),
        next: Some(relay(&world, &later, "two")),
        world: Arc::clone(&world),
    };
    let settings = Settings::default();
    let mut fenced = Relay::new(world.store.clone(), Box::new(slow), "one".into(), settings);
    assert_eq!(fenced.run_once().await.unwrap(), Relayed::NotOurs);
    // The one that holds the lease was refused, so the row is not published for it.
    assert_eq!(left(&world).await, ["a/1"]);
    assert_eq!(fenced.run_once().await.unwrap(), Relayed::NotOurs);
}

#[tokio::test]
async fn a_lease_of_an_older_holder_removes_nothing() {
    let world = World::new().await;
    append(&world, &["a/1"]).await;
    let second = Duration::from_secs(1);
    let old = world
        .store
        .lease(LEASE, "one", second)
        .await
        .unwrap()
        .unwrap();
    world.advance(second);
    let new = world
        .store
        .lease(LEASE, "two", second)
        .await
        .unwrap()
        .unwrap();
    let ids: Vec<i64> = vec![1];
    let by = async |lease| {
        world
            .store
            .remove_published(LEASE, lease, &ids)
            .await
            .unwrap()
    };
    assert_eq!(by(old).await, 0);
    assert_eq!(by(new).await, 1);
}

#[tokio::test]
async fn notices_that_nobody_subscribed_to_leave_the_outbox() {
    let world = World::new().await;
    world.publish("order.create", create_worth("O1", 0)).await;
    world.publish("order.ship", of("O1")).await;
    world.run_orders().await;
    let expected = ["order.created", "order.paid", "order.shipped"];
    assert_eq!(world.outbox().await, expected);
    world.relay().await;
    assert_eq!(world.outbox().await, [""; 0]);
    let queued = "SELECT queue FROM queue_message";
    assert_eq!(world.rows(queued).await, ["inventory"]);
    let ready = world.queue.depth(&RoleName::INVENTORY).await.unwrap().ready;
    assert_eq!(ready, 1);
}

// B65: with one writer a lower id cannot be committed after a higher one; what can happen is that an
// id is never used, or that rows are written while the relay is at work.
#[tokio::test]
async fn no_row_is_skipped_whatever_ids_its_neighbours_have() {
    let world = World::new().await;
    let mood = Arc::new(Mood::default());
    let mut relay = relay(&world, &mood, "one");
    append(&world, &["a/1"]).await;
    assert_eq!(relay.run_once().await.unwrap(), rows(1, 0));
    world
        .execute("BEGIN; INSERT INTO outbox (aggregate, event_type, message_id, headers, message, created_at) VALUES ('z', 'order.created', 'z/1', '{}', x'', 0); ROLLBACK")
        .await;
    append(&world, &["a/2"]).await;
    world.execute("UPDATE outbox SET id = 900").await;
    assert_eq!(relay.run_once().await.unwrap(), rows(1, 0));
    // A row with an id below what was published before still leaves.
    append(&world, &["a/3"]).await;
    world.execute("UPDATE outbox SET id = 5").await;
    assert_eq!(relay.run_once().await.unwrap(), rows(1, 0));
    assert_eq!(mood.sent(), ["a/1", "a/2", "a/3"]);
    assert_eq!(left(&world).await, [""; 0]);
}
