//! What becomes of parked events when they are woken, copied, parked again or in conflict.

use async_trait::async_trait;
use orderonce::broker::embedded::{self, Embedded};
use orderonce::broker::{Broker, Headers, Publication, Topology};
use orderonce::domain::{Fingerprint, Key, Layer, Outcome, RoleName};
use orderonce::gate::{Gate, Known, Told};
use orderonce::store::sqlite::{Database, Options, SqliteStore};
use orderonce::store::{Connection, History, Store};
use orderonce::worker::order::OrderRole;
use orderonce::worker::payment::PaymentRole;
use orderonce::worker::relay::{self, Relay};
use orderonce::worker::{Processor, Role, Settings, Worker};
use serde_json::{Value, json};
use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tempfile::TempDir;

const PAY_TIMEOUT: Duration = Duration::from_secs(1_800);

/// A gate that forgets nothing.
#[derive(Default)]
struct Memory(Mutex<HashMap<Key, Fingerprint>>);

#[async_trait]
impl Gate for Memory {
    async fn ask(&self, _: &RoleName, keys: &[&Key]) -> Vec<Known> {
        let known = self.0.lock().unwrap();
        let answer = |key: &&Key| known.get(*key).copied().map_or(Known::Unknown, Known::Done);
        keys.iter().map(answer).collect()
    }

    async fn tell(&self, _: &RoleName, told: &[Told<'_>]) {
        let keys = told.iter().map(|told| (told.key.clone(), told.fingerprint));
        self.0.lock().unwrap().extend(keys);
    }
}

struct World {
    _folder: TempDir,
    store: Arc<SqliteStore>,
    broker: Embedded,
    orders: Worker<OrderRole>,
    payments: Worker<PaymentRole>,
}

impl World {
    async fn new() -> Self {
        let folder = TempDir::new().unwrap();
        let options = Options {
            path: folder.path().join("orderonce.db"),
            busy_timeout: Duration::from_secs(5),
            readers: 1,
        };
        let (database, _) = Database::migrate(&options).await.unwrap();
        let store = Arc::new(SqliteStore::new(database.clone()));
        let queue = embedded::Options::default();
        let broker = Embedded::new(database, Topology::default(), queue);
        let pay_timeout = PAY_TIMEOUT;
        Self {
            orders: worker(OrderRole::new(pay_timeout), &store, &broker).await,
            payments: worker(PaymentRole::new(pay_timeout), &store, &broker).await,
            _folder: folder,
            store,
            broker,
        }
    }

    async fn publish(&self, event_type: &str, data: Value) {
        let message = json!({
            "specversion": "1.0",
            "id": "m1",
            "source": "shop",
            "type": event_type,
            "subject": "O1",
            "data": data,
        });
        let publication = Publication {
            message_id: "m1".to_owned(),
            event_type: event_type.to_owned(),
            addressee: None,
            message: message.to_string().into(),
            headers: Headers::new(),
        };
        let mut publisher = self.broker.publisher().await.unwrap();
        publisher.publish(&[publication]).await.unwrap();
    }

    /// O1 over 10.00 CNY.
    async fn create(&mut self) {
        let order = json!({
            "order_id": "O1",
            "user_id": "U1",
            "currency": "CNY",
            "total_minor": 1000,
            "lines": [{ "sku_id": "A", "qty": 1, "unit_price_minor": 1000, "amount_minor": 1000 }],
        });
        self.publish("order.create", order).await;
        assert_eq!(outcomes(&mut self.orders).await, [Outcome::Applied]);
    }

    async fn pay(&self, trade_status: &str, amount_minor: i64) {
        let payment = json!({
            "order_id": "O1",
            "provider": "alipay",
            "trade_no": "T1",
            "trade_status": trade_status,
            "amount_minor": amount_minor,
            "currency": "CNY",
        });
        self.publish("payment.succeeded", payment).await;
    }

    async fn relay(&self) {
        let publisher = self.broker.publisher().await.unwrap();
        let settings = relay::Settings::default();
        let mut relay = Relay::new(self.store.clone(), publisher, "relay".to_owned(), settings);
        relay.run_once().await.unwrap();
    }

    /// Outcome and detail of a claim.
    async fn claim(&self, key: &str) -> Option<(String, Option<String>)> {
        let mut tx = self.store.begin().await.unwrap();
        let Connection::Sqlite(connection) = tx.connection() else {
            panic!("expected SQLite");
        };
        sqlx::query_as("SELECT outcome, detail FROM idempotent_record WHERE key = ?1")
            .bind(key)
            .fetch_optional(connection)
            .await
            .unwrap()
    }
}

async fn worker<R: Role>(role: R, store: &Arc<SqliteStore>, broker: &Embedded) -> Worker<R> {
    let consumer = broker.consumer(&role.name(), 100).await.unwrap();
    let processor = Processor::new(role, store.clone(), Settings::default())
        .with_gates(vec![Arc::new(Memory::default())]);
    Worker::new(Arc::new(processor), consumer, 100)
}

async fn outcomes<R: Role>(worker: &mut Worker<R>) -> Vec<Outcome> {
    let settled = worker.run_available().await.unwrap();
    let items = settled.into_iter().flat_map(|settled| settled.items);
    items.map(|item| item.outcome).collect()
}

fn parked(outcomes: &[Outcome]) -> bool {
    outcomes.iter().all(|it| matches!(it, Outcome::Parked(_))) && !outcomes.is_empty()
}

#[tokio::test]
async fn a_copy_of_a_parked_event_does_not_keep_it_from_being_decided() {
    let mut world = World::new().await;
    world.pay("TRADE_SUCCESS", 1000).await;
    assert!(parked(&outcomes(&mut world.payments).await));
    world.pay("TRADE_SUCCESS", 1000).await;
    assert_eq!(
        outcomes(&mut world.payments).await,
        [Outcome::Duplicate(Layer::Parked)]
    );
    world.create().await;
    world.relay().await;
    assert_eq!(outcomes(&mut world.payments).await, [Outcome::Applied]);
}

#[tokio::test]
async fn the_claim_of_an_event_that_is_parked_again_says_what_it_awaits_now() {
    let mut world = World::new().await;
    world
        .publish("order.ship", json!({ "order_id": "O1" }))
        .await;
    assert!(parked(&outcomes(&mut world.orders).await));
    world.create().await;
    world.relay().await;
    assert!(parked(&outcomes(&mut world.orders).await));
    assert_eq!(
        world.claim("O1/order.ship").await,
        Some(("parked".to_owned(), Some("order:O1:PAID".to_owned())))
    );
}

#[tokio::test]
async fn a_parked_event_that_ends_in_conflict_waits_no_longer() {
    let mut world = World::new().await;
    world.pay("TRADE_FINISHED", 1000).await;
    world.pay("TRADE_SUCCESS", 1001).await;
    assert!(parked(&outcomes(&mut world.payments).await));
    world.create().await;
    world.relay().await;
    assert_eq!(
        outcomes(&mut world.payments).await,
        [Outcome::Applied, Outcome::Conflict]
    );
    assert_eq!(world.store.parked(None, 10).await.unwrap(), []);
    let key = "alipay/O1/TRADE_SUCCESS/T1/payment.succeeded";
    assert_eq!(
        world.claim(key).await,
        Some(("dead".to_owned(), Some("conflict".to_owned())))
    );
}
