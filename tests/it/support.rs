//! What the tests of the worker share: a database with the embedded queue, the four roles at work,
//! and doubles for what they meet.

use async_trait::async_trait;
use orderonce::broker::embedded::{self, Embedded};
use orderonce::broker::{Broker, Delivery, Headers, Publication, Tag, Topology};
use orderonce::domain::account::PointsRule;
use orderonce::domain::{AccountKind, Fingerprint, Key, Outcome, RetryPolicy, RoleName, Timestamp};
use orderonce::gate::{Gate, Known, Told};
use orderonce::message::{Envelope, Malformed};
use orderonce::ops::reconcile::{Options as ReconcileOptions, reconcile};
use orderonce::store::sqlite::{Database, Options, SqliteStore};
use orderonce::store::{self, Connection, Tx};
use orderonce::worker::account::AccountRole;
use orderonce::worker::inventory::InventoryRole;
use orderonce::worker::janitor::{Cleaned, Janitor};
use orderonce::worker::order::OrderRole;
use orderonce::worker::payment::PaymentRole;
use orderonce::worker::relay::{self, Relay, Relayed};
use orderonce::worker::{Processor, Role, Ruling, Settings, Settled, Worker};
use serde_json::{Value, json};
use sqlx::sqlite::{SqliteConnectOptions, SqliteConnection};
use sqlx::{AssertSqlSafe, Connection as _, Row, ValueRef};
use std::collections::HashMap;
use std::path::Path;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tempfile::TempDir;

pub(crate) const PAY_TIMEOUT: Duration = Duration::from_secs(1800);
pub(crate) const LEASE: Duration = Duration::from_secs(30);
pub(crate) const DELIVERY_LIMIT: u32 = 3;
pub(crate) const RETRIES: u32 = 2;
const BATCH_MAX: usize = 256;

/// A database, its embedded queue, and the roles that work on them.
pub(crate) struct World {
    directory: TempDir,
    pub(crate) database: Database,
    pub(crate) store: Arc<SqliteStore>,
    pub(crate) queue: Embedded,
    pub(crate) settings: Settings,
    published: AtomicU32,
}

impl World {
    pub(crate) async fn new() -> Self {
        Self::with(Topology::default()).await
    }

    pub(crate) async fn with(topology: Topology) -> Self {
        let directory = TempDir::new().unwrap();
        let database = open(&directory.path().join("orderonce.db")).await;
        Self::of(directory, database.clone(), database, topology)
    }

    /// The queue lies in a file of its own, so that the database can go away without it.
    pub(crate) async fn with_queue_apart() -> Self {
        let directory = TempDir::new().unwrap();
        let database = open(&directory.path().join("orderonce.db")).await;
        let queue = open(&directory.path().join("queue.db")).await;
        Self::of(directory, database, queue, Topology::default())
    }

    fn of(directory: TempDir, database: Database, queue: Database, topology: Topology) -> Self {
        let options = embedded::Options {
            lease: LEASE,
            delivery_limit: DELIVERY_LIMIT,
            poll: Duration::from_millis(5),
            keep_acked: false,
        };
        Self {
            directory,
            store: Arc::new(SqliteStore::new(database.clone())),
            database,
            queue: Embedded::new(queue, topology, options),
            settings: Settings {
                retry: RetryPolicy::new(RETRIES, Duration::from_secs(1)).unwrap(),
                redecide: 2,
                ..Settings::default()
            },
            published: AtomicU32::new(0),
        }
    }

    /// Opens the database again after it was closed.
    pub(crate) async fn reopen(&mut self) {
        self.database = open(self.database.path()).await;
        self.store = Arc::new(SqliteStore::new(self.database.clone()));
    }

    // Sending.

    /// Publishes an event in a message with an id of its own, which is returned.
    pub(crate) async fn publish(&self, event_type: &str, data: Value) -> String {
        let number = self.published.fetch_add(1, Ordering::Relaxed) + 1;
        let id = format!("m{number}");
        self.publish_as(&id, event_type, data).await;
        id
    }

    pub(crate) async fn publish_as(&self, id: &str, event_type: &str, data: Value) {
        let message = envelope(id, event_type, &data);
        self.publish_raw(event_type, message.into_bytes(), Headers::new())
            .await;
    }

    pub(crate) async fn publish_raw(&self, event_type: &str, bytes: Vec<u8>, headers: Headers) {
        let publication = Publication {
            message_id: "test".into(),
            event_type: event_type.into(),
            addressee: None,
            message: bytes.into(),
            headers,
        };
        self.send(publication).await;
    }

    /// Publishes bytes to the queue of a role, whatever they say.
    pub(crate) async fn publish_to(&self, role: &RoleName, bytes: &[u8], headers: Headers) {
        let publication = Publication {
            message_id: "test".into(),
            event_type: "test".into(),
            addressee: Some(role.clone()),
            message: bytes.to_vec().into(),
            headers,
        };
        self.send(publication).await;
    }

    async fn send(&self, publication: Publication) {
        let mut publisher = self.queue.publisher().await.unwrap();
        let receipts = publisher.publish(&[publication]).await.unwrap();
        assert_eq!(receipts, [orderonce::broker::Receipt::Confirmed]);
    }

    /// Puts `available` units of a SKU into stock.
    pub(crate) async fn stock(&self, sku: &str, available: i64) {
        let data =
            json!({"adjustment_id": format!("open-{sku}"), "sku_id": sku, "change": available});
        self.publish("stock.adjust", data).await;
    }

    // Working.

    pub(crate) fn processor<R: Role>(&self, role: R) -> Processor<R> {
        let store = Arc::clone(&self.store);
        Processor::new(role, store, self.settings.clone())
    }

    pub(crate) fn orders(&self) -> Processor<OrderRole> {
        self.processor(order_role())
    }

    pub(crate) fn payments(&self) -> Processor<PaymentRole> {
        self.processor(payment_role())
    }

    pub(crate) fn inventory(&self) -> Processor<InventoryRole> {
        self.processor(InventoryRole)
    }

    pub(crate) fn accounts(&self) -> Processor<AccountRole> {
        self.processor(account_role())
    }

    pub(crate) async fn worker<R: Role>(&self, role: &RoleName, at: Processor<R>) -> Worker<R> {
        let consumer = self.queue.consumer(role, BATCH_MAX).await.unwrap();
        Worker::new(Arc::new(at), consumer, BATCH_MAX)
    }

    /// One batch of what has arrived.
    pub(crate) async fn run<R: Role>(&self, role: &RoleName, at: Processor<R>) -> Vec<Settled> {
        self.try_run(role, at).await.unwrap()
    }

    pub(crate) async fn try_run<R: Role>(
        &self,
        role: &RoleName,
        at: Processor<R>,
    ) -> orderonce::worker::Result<Vec<Settled>> {
        let mut worker = self.worker(role, at).await;
        let settled = worker.run_available().await;
        if settled.is_ok() {
            worker.close().await.unwrap();
        }
        settled
    }

    pub(crate) async fn run_orders(&self) -> Vec<String> {
        outcomes(&self.run(&RoleName::ORDER, self.orders()).await)
    }

    pub(crate) async fn run_payments(&self) -> Vec<String> {
        outcomes(&self.run(&RoleName::PAYMENT, self.payments()).await)
    }

    pub(crate) async fn run_inventory(&self) -> Vec<String> {
        outcomes(&self.run(&RoleName::INVENTORY, self.inventory()).await)
    }

    /// Empties the outbox, as far as the broker takes it.
    pub(crate) async fn relay(&self) {
        let mut relay = self.new_relay("relay of a test").await;
        while relay.run_once().await.unwrap().is_busy() {}
        relay.close().await.unwrap();
    }

    pub(crate) async fn new_relay(&self, holder: &str) -> Relay {
        let publisher = self.queue.publisher().await.unwrap();
        let settings = relay::Settings::default();
        Relay::new(self.store.clone(), publisher, holder.to_owned(), settings)
    }

    /// Runs the four roles and the relay until nothing moves. Returns each outcome as
    /// `role: outcome`, in the order of settling.
    pub(crate) async fn drain(&self) -> Vec<String> {
        let mut seen = Vec::new();
        let mut orders = self.worker(&RoleName::ORDER, self.orders()).await;
        let mut payments = self.worker(&RoleName::PAYMENT, self.payments()).await;
        let mut inventory = self.worker(&RoleName::INVENTORY, self.inventory()).await;
        let mut accounts = self.worker(&RoleName::ACCOUNT, self.accounts()).await;
        let mut relay = self.new_relay("relay of a test").await;
        loop {
            let before = seen.len();
            take(&mut seen, "order", &mut orders).await;
            take(&mut seen, "payment", &mut payments).await;
            take(&mut seen, "inventory", &mut inventory).await;
            take(&mut seen, "account", &mut accounts).await;
            let relayed = relay.run_once().await.unwrap();
            assert_ne!(relayed, Relayed::NotOurs);
            if seen.len() == before && !relayed.is_busy() {
                break;
            }
        }
        orders.close().await.unwrap();
        payments.close().await.unwrap();
        inventory.close().await.unwrap();
        accounts.close().await.unwrap();
        relay.close().await.unwrap();
        seen
    }

    pub(crate) fn janitor(&self) -> Janitor {
        self.janitor_with(self.orders())
    }

    pub(crate) fn janitor_with(&self, orders: Processor<OrderRole>) -> Janitor {
        let roles = RoleName::BUILT_IN.to_vec();
        let broker = Arc::new(self.queue.clone());
        Janitor::new(self.store.clone(), broker, Arc::new(orders), roles, 100)
    }

    pub(crate) async fn clean(&self) -> Cleaned {
        self.janitor().run_once().await.unwrap()
    }

    pub(crate) fn advance(&self, by: Duration) {
        self.database.advance(by);
    }

    // Looking.

    async fn connect(&self) -> SqliteConnection {
        let options = SqliteConnectOptions::new()
            .filename(self.directory.path().join("orderonce.db"))
            .busy_timeout(Duration::from_secs(30));
        SqliteConnection::connect_with(&options).await.unwrap()
    }

    /// Another process on the same file, that holds the write lock until it is dropped.
    pub(crate) async fn lock(&self) -> SqliteConnection {
        let mut connection = self.connect().await;
        let begin = sqlx::raw_sql("BEGIN IMMEDIATE");
        begin.execute(&mut connection).await.unwrap();
        connection
    }

    /// Changes the database behind everybody's back.
    pub(crate) async fn execute(&self, sql: &str) {
        let mut connection = self.connect().await;
        let run = sqlx::raw_sql(AssertSqlSafe(sql.to_owned()));
        run.execute(&mut connection).await.unwrap();
        connection.close().await.unwrap();
    }

    /// The rows of a query, columns joined by a space, NULL as `-`.
    pub(crate) async fn rows(&self, sql: &str) -> Vec<String> {
        let mut connection = self.connect().await;
        let query = sqlx::raw_sql(AssertSqlSafe(sql.to_owned()));
        let rows = query.fetch_all(&mut connection).await.unwrap();
        connection.close().await.unwrap();
        let text = |row: &sqlx::sqlite::SqliteRow| {
            let columns = (0..row.len()).map(|column| {
                if row.try_get_raw(column).unwrap().is_null() {
                    return "-".to_owned();
                }
                row.try_get_unchecked::<String, _>(column).unwrap()
            });
            columns.collect::<Vec<_>>().join(" ")
        };
        rows.iter().map(text).collect()
    }

    /// The only row of a query.
    pub(crate) async fn row(&self, sql: &str) -> String {
        let mut rows = self.rows(sql).await;
        assert_eq!(rows.len(), 1, "{sql} gave {rows:?}");
        rows.remove(0)
    }

    pub(crate) async fn count(&self, table: &str) -> i64 {
        let count = self.row(&format!("SELECT count(*) FROM {table}")).await;
        count.parse().unwrap()
    }

    pub(crate) async fn status(&self, order_id: &str) -> String {
        let sql = format!("SELECT status FROM orders WHERE order_id = '{order_id}'");
        self.row(&sql).await
    }

    pub(crate) async fn available(&self, sku: &str) -> i64 {
        let sql = format!("SELECT available FROM stock WHERE sku_id = '{sku}'");
        self.row(&sql).await.parse().unwrap()
    }

    /// `role key outcome` of each claim that is about something.
    pub(crate) async fn claims(&self, condition: &str) -> Vec<String> {
        let sql = format!(
            "SELECT role, key, outcome FROM idempotent_record WHERE {condition} ORDER BY role, key"
        );
        self.rows(&sql).await
    }

    /// `reason status` of each dead letter, oldest first.
    pub(crate) async fn dead(&self) -> Vec<String> {
        let sql = "SELECT reason, status FROM dead_letter ORDER BY id";
        self.rows(sql).await
    }

    /// Types of what waits in the outbox, in order.
    pub(crate) async fn outbox(&self) -> Vec<String> {
        self.rows("SELECT event_type FROM outbox ORDER BY id").await
    }

    /// Fails unless all that was published is settled and everything adds up.
    pub(crate) async fn adds_up(&self) {
        assert_eq!(self.outbox().await, [""; 0], "unpublished");
        for role in RoleName::BUILT_IN {
            let depth = self.queue.depth(&role).await.unwrap();
            assert_eq!(depth.total(), 0, "left in the queue of {role}");
        }
        self.reconciles().await;
    }

    pub(crate) async fn reconciles(&self) {
        let options = ReconcileOptions::default();
        let report = reconcile(self.store.as_ref(), &options, |_| {}).await;
        let report = report.unwrap();
        assert!(report.is_clean(), "{report}");
    }
}

async fn open(path: &Path) -> Database {
    let options = Options {
        path: path.to_owned(),
        busy_timeout: Duration::from_millis(200),
        readers: 2,
    };
    Database::migrate(&options).await.unwrap().0
}

async fn take<R: Role>(seen: &mut Vec<String>, role: &str, worker: &mut Worker<R>) {
    let settled = worker.run_available().await.unwrap();
    let outcomes = outcomes(&settled).into_iter();
    seen.extend(outcomes.map(|outcome| format!("{role}: {outcome}")));
}

pub(crate) fn order_role() -> OrderRole {
    OrderRole::new(PAY_TIMEOUT)
}

pub(crate) fn payment_role() -> PaymentRole {
    PaymentRole::new(PAY_TIMEOUT)
}

pub(crate) fn account_role() -> AccountRole {
    AccountRole {
        points: PointsRule {
            kind: AccountKind::new("POINTS").unwrap(),
            per_major_unit: 1,
        },
    }
}

/// Waits for deliveries; fails if none come.
pub(crate) async fn received<R: Role>(worker: &mut Worker<R>) -> Vec<Delivery> {
    let deliveries = tokio::time::timeout(Duration::from_secs(60), worker.receive()).await;
    deliveries.unwrap().unwrap()
}

/// The outcomes of all events, in order.
pub(crate) fn outcomes(settled: &[Settled]) -> Vec<String> {
    let items = settled.iter().flat_map(|settled| &settled.items);
    items.map(|item| item.outcome.to_string()).collect()
}

pub(crate) fn envelope(id: &str, event_type: &str, data: &Value) -> String {
    json!({
        "specversion": "1.0",
        "id": id,
        "source": "test",
        "type": event_type,
        "subject": "test",
        "data": data,
    })
    .to_string()
}

/// A delivery that no broker has.
pub(crate) fn delivery(message: String) -> Delivery {
    Delivery {
        tag: Tag { id: 0, fence: 0 },
        message: message.into(),
        headers: Headers::new(),
        attempt: 0,
        deliveries: 1,
    }
}

// Events.

/// `order.create` of user `U-<order>` in CNY, one line per `(sku, quantity)` at 1000 each.
pub(crate) fn create(order_id: &str, lines: &[(&str, i64)]) -> Value {
    let total: i64 = lines.iter().map(|(_, qty)| qty * 1000).sum();
    let lines: Vec<Value> = lines
        .iter()
        .map(|(sku, qty)| json!({"sku_id": sku, "qty": qty, "unit_price_minor": 1000}))
        .collect();
    json!({
        "order_id": order_id,
        "user_id": format!("U-{order_id}"),
        "currency": "CNY",
        "total_minor": total,
        "lines": lines,
    })
}

/// `order.create` of charges alone, so that no stock is needed.
pub(crate) fn create_worth(order_id: &str, total_minor: i64) -> Value {
    json!({
        "order_id": order_id,
        "user_id": format!("U-{order_id}"),
        "currency": "CNY",
        "total_minor": total_minor,
        "lines": [{"sku_id": "FEE", "qty": 1, "unit_price_minor": total_minor, "charge": true}],
    })
}

pub(crate) fn of(order_id: &str) -> Value {
    json!({"order_id": order_id})
}

pub(crate) fn paid(order_id: &str, trade_no: &str, amount_minor: i64) -> Value {
    json!({
        "order_id": order_id,
        "provider": "ali",
        "trade_no": trade_no,
        "amount_minor": amount_minor,
        "currency": "CNY",
    })
}

pub(crate) fn refunded(order_id: &str, refund_no: &str, amount_minor: i64) -> Value {
    json!({
        "order_id": order_id,
        "provider": "ali",
        "refund_no": refund_no,
        "amount_minor": amount_minor,
        "currency": "CNY",
    })
}

/// `data` with `fields` added or replaced.
pub(crate) fn and(mut data: Value, fields: Value) -> Value {
    let Value::Object(fields) = fields else {
        panic!("{fields} is no object");
    };
    data.as_object_mut().unwrap().extend(fields);
    data
}

// Doubles.

/// A role that runs a statement in its transaction after it has loaded its rows, a few times: the
/// guards then meet rows that somebody else has changed. It may also fail to load what is about a
/// certain subject.
pub(crate) struct Meddled<R> {
    pub(crate) role: R,
    pub(crate) sql: &'static str,
    pub(crate) times: Arc<AtomicU32>,
    pub(crate) loads: Arc<AtomicU32>,
    pub(crate) fails: fn(&str) -> Option<store::Error>,
}

impl<R> Meddled<R> {
    pub(crate) fn failing(role: R, fails: fn(&str) -> Option<store::Error>) -> Self {
        Self {
            fails,
            ..Self::new(role, "", 0)
        }
    }

    pub(crate) fn new(role: R, sql: &'static str, times: u32) -> Self {
        Self {
            role,
            sql,
            times: Arc::new(AtomicU32::new(times)),
            loads: Arc::default(),
            fails: |_| None,
        }
    }
}

#[async_trait]
impl<R: Role> Role for Meddled<R> {
    type Event = R::Event;
    type Rows = R::Rows;

    fn name(&self) -> RoleName {
        self.role.name()
    }

    fn decode(&self, envelope: &Envelope<'_>) -> Result<Vec<R::Event>, Malformed> {
        self.role.decode(envelope)
    }

    fn key(&self, event: &R::Event) -> Key {
        self.role.key(event)
    }

    fn fingerprint(&self, event: &R::Event) -> Fingerprint {
        self.role.fingerprint(event)
    }

    fn subject<'e>(&self, event: &'e R::Event) -> &'e str {
        self.role.subject(event)
    }

    async fn load(&self, tx: &mut dyn Tx, events: &[&R::Event]) -> store::Result<R::Rows> {
        let rows = self.role.load(tx, events).await?;
        self.loads.fetch_add(1, Ordering::Relaxed);
        for event in events {
            if let Some(error) = (self.fails)(self.role.subject(event)) {
                return Err(error);
            }
        }
        let left = self.times.load(Ordering::Relaxed);
        if left > 0 {
            self.times.store(left - 1, Ordering::Relaxed);
            let Connection::Sqlite(connection) = tx.connection() else {
                panic!("not SQLite");
            };
            let run = sqlx::raw_sql(self.sql).execute(connection).await;
            run.unwrap();
        }
        Ok(rows)
    }

    fn decide(&self, rows: &mut R::Rows, event: &R::Event, key: &Key, now: Timestamp) -> Ruling {
        self.role.decide(rows, event, key, now)
    }

    async fn write(&self, tx: &mut dyn Tx, rows: R::Rows, now: Timestamp) -> store::Result<()> {
        self.role.write(tx, rows, now).await
    }
}

/// A gate that remembers what it is told, if it may, and writes down both sides of the talk.
#[derive(Default)]
pub(crate) struct Memory {
    pub(crate) forgetful: bool,
    pub(crate) known: Mutex<HashMap<(RoleName, Key), Fingerprint>>,
    pub(crate) asked: Mutex<Vec<String>>,
    pub(crate) told: Mutex<Vec<String>>,
}

impl Memory {
    pub(crate) fn gates(self: &Arc<Self>) -> Vec<Arc<dyn Gate>> {
        vec![Arc::clone(self) as Arc<dyn Gate>]
    }

    pub(crate) fn forget(&self) {
        self.known.lock().unwrap().clear();
    }

    pub(crate) fn told(&self) -> Vec<String> {
        std::mem::take(&mut *self.told.lock().unwrap())
    }
}

#[async_trait]
impl Gate for Memory {
    async fn ask(&self, role: &RoleName, keys: &[&Key]) -> Vec<Known> {
        let known = self.known.lock().unwrap();
        let mut asked = self.asked.lock().unwrap();
        asked.extend(keys.iter().map(|key| key.to_string()));
        let answer = |key: &&Key| match known.get(&(role.clone(), (*key).clone())) {
            Some(fingerprint) => Known::Done(*fingerprint),
            None => Known::Unknown,
        };
        keys.iter().map(answer).collect()
    }

    async fn tell(&self, role: &RoleName, told: &[Told<'_>]) {
        let mut known = self.known.lock().unwrap();
        for &Told {
            key, fingerprint, ..
        } in told
        {
            self.told.lock().unwrap().push(key.to_string());
            if !self.forgetful {
                known.insert((role.clone(), key.clone()), fingerprint);
            }
        }
    }
}

/// Whether an outcome is final for its key.
pub(crate) fn is_final(outcome: &Outcome) -> bool {
    match outcome {
        Outcome::Applied | Outcome::Stale | Outcome::Rejected(_) => true,
        Outcome::Duplicate(_)
        | Outcome::Conflict
        | Outcome::Parked(_)
        | Outcome::Retried { .. }
        | Outcome::Dead(_) => false,
    }
}
