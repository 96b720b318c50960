//! A fresh store for each test, and short forms for its rows.

use futures_util::future::BoxFuture;
use orderonce::domain::inventory::{Reservation, ReservationStatus, Stock};
use orderonce::domain::order::{Order, OrderStatus};
use orderonce::domain::{
    Currency, Fingerprint, Key, OrderId, RoleName, SkuId, Timestamp, Token, UserId,
};
use orderonce::store::{Claimed, Connection, Error, NewClaim, Store, Tx};
use std::any::Any;
use std::sync::Arc;
use std::time::Duration;

/// A store that nobody else uses.
pub(crate) struct Fresh {
    pub(crate) store: Arc<dyn Store>,
    /// Lets time pass for the store.
    pub(crate) advance: Box<dyn Fn(Duration) + Send + Sync>,
    /// Counts the transactions that wait for another; `None` if already their beginning waits.
    pub(crate) waiting: Option<&'static str>,
    /// Goes away with the test, such as its directory.
    pub(crate) _keep: Box<dyn Any + Send + Sync>,
    /// Removes what a test that has passed leaves behind, such as its database.
    pub(crate) remove: BoxFuture<'static, ()>,
}

impl Fresh {
    pub(crate) async fn begin(&self) -> Box<dyn Tx> {
        self.store.begin().await.unwrap()
    }

    /// The number that a query of one row and column gives.
    pub(crate) async fn number(&self, sql: &'static str) -> i64 {
        let mut tx = self.begin().await;
        let number = number(&mut *tx, sql).await;
        tx.rollback().await.unwrap();
        number
    }

    pub(crate) async fn finish(self) {
        self.store.close().await;
        self.remove.await;
    }
}

/// The number that a query of one row and column gives within a transaction.
pub(crate) async fn number(tx: &mut dyn Tx, sql: &'static str) -> i64 {
    match tx.connection() {
        Connection::Sqlite(connection) => {
            sqlx::query_scalar(sql).fetch_one(connection).await.unwrap()
        }
        Connection::Postgres(connection) => {
            sqlx::query_scalar(sql).fetch_one(connection).await.unwrap()
        }
        Connection::MySql(connection) => {
            sqlx::query_scalar(sql).fetch_one(connection).await.unwrap()
        }
        other => panic!("no way to ask {other:?}"),
    }
}

pub(crate) mod sqlite {
    use super::Fresh;
    use orderonce::store::sqlite::{Database, Options, SqliteStore};
    use std::path::Path;
    use std::sync::Arc;
    use std::time::Duration;

    pub(crate) fn options(path: &Path) -> Options {
        Options {
            path: path.to_owned(),
            busy_timeout: Duration::from_millis(100),
            readers: 2,
        }
    }

    pub(crate) async fn fresh() -> Fresh {
        let directory = tempfile::tempdir().unwrap();
        let options = options(&directory.path().join("orderonce.db"));
        let (database, _) = Database::migrate(&options).await.unwrap();
        let clock = database.clone();
        Fresh {
            store: Arc::new(SqliteStore::new(database)),
            advance: Box::new(move |by| clock.advance(by)),
            waiting: None,
            _keep: Box::new(directory),
            remove: Box::pin(async {}),
        }
    }
}

pub(crate) mod postgres {
    use super::Fresh;
    use crate::servers;
    use orderonce::store::postgres::{Database, Options, PostgresStore};
    use sqlx::postgres::PgConnection;
    use sqlx::{AssertSqlSafe, Connection};
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU32, Ordering};
    use std::time::Duration;
    use tokio::sync::OnceCell;

    pub(crate) const WAITING: &str = "SELECT count(*) FROM pg_stat_activity
        WHERE datname = current_database() AND wait_event_type = 'Lock'";

    pub(crate) fn server() -> String {
        servers::shared("ORDERONCE_TEST_POSTGRES_URL")
    }

    pub(crate) fn options(url: &str) -> Options {
        Options {
            url: url.to_owned(),
            lock_timeout: Duration::from_secs(5),
            statement_timeout: Duration::from_secs(30),
            connections: 4,
        }
    }

    /// Runs a statement on the server, outside of every test's database.
    pub(crate) async fn run(sql: &str) {
        let mut connection = PgConnection::connect(&server()).await.unwrap();
        let sql = AssertSqlSafe(sql.to_owned());
        let done = sqlx::raw_sql(sql).execute(&mut connection).await;
        done.unwrap();
        connection.close().await.unwrap();
    }

    /// The URL of a database on the server.
    pub(crate) fn url_of(name: &str) -> String {
        let server = server();
        let (base, _) = server.rsplit_once('/').unwrap();
        format!("{base}/{name}")
    }

    pub(crate) fn new_name() -> String {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let (process, random) = (std::process::id(), fastrand::u16(..));
        format!("orderonce_{process}_{random}_{number}")
    }

    /// The name of a new database with the newest schema.
    pub(crate) async fn migrated() -> String {
        static TEMPLATE: OnceCell<String> = OnceCell::const_new();
        let make = || async {
            let name = new_name();
            run(&format!("CREATE DATABASE {name}")).await;
            let (database, _) = Database::migrate(&options(&url_of(&name))).await.unwrap();
            database.close().await;
            name
        };
        let template = TEMPLATE.get_or_init(make).await;
        let name = new_name();
        run(&format!("CREATE DATABASE {name} TEMPLATE {template}")).await;
        name
    }

    pub(crate) async fn drop_database(name: &str) {
        run(&format!("DROP DATABASE {name} WITH (FORCE)")).await;
    }

    pub(crate) async fn fresh() -> Fresh {
        let name = migrated().await;
        let database = Database::open(&options(&url_of(&name))).await.unwrap();
        let clock = database.clone();
        Fresh {
            store: Arc::new(PostgresStore::new(database)),
            advance: Box::new(move |by| clock.advance(by)),
            waiting: Some(WAITING),
            _keep: Box::new(()),
            remove: Box::pin(async move { drop_database(&name).await }),
        }
    }
}

pub(crate) mod mariadb {
    use super::Fresh;
    use crate::servers;
    use orderonce::store::mysql::{Database, MySqlStore, Options};
    use sqlx::mysql::MySqlConnection;
    use sqlx::{AssertSqlSafe, Connection};
    use std::sync::atomic::{AtomicU32, Ordering};
    use std::sync::{Arc, Mutex};
    use std::time::Duration;

    /// The tables, each emptied for the next test: that takes a tenth of the time of making them.
    const TABLES: [&str; 18] = [
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
        "repair",
    ];

    const WAITING: &str = "SELECT count(*) FROM information_schema.innodb_trx AS waiting
        JOIN information_schema.processlist AS session ON session.id = waiting.trx_mysql_thread_id
        WHERE waiting.trx_state = 'LOCK WAIT' AND session.db = database()";

    pub(crate) fn server() -> String {
        servers::shared("ORDERONCE_TEST_MARIADB_URL")
    }

    pub(crate) fn options(url: &str) -> Options {
        Options {
            url: url.to_owned(),
            lock_timeout: Duration::from_secs(5),
            statement_timeout: Duration::from_secs(30),
            connections: 4,
        }
    }

    /// Runs statements at a URL.
    pub(crate) async fn run(url: &str, sql: &str) {
        let mut connection = MySqlConnection::connect(url).await.unwrap();
        let statements = AssertSqlSafe(sql.to_owned());
        let done = sqlx::raw_sql(statements).execute(&mut connection).await;
        done.unwrap_or_else(|error| panic!("{sql}: {error}"));
        connection.close().await.unwrap();
    }

    /// The URL of a database on the server.
    pub(crate) fn url_of(name: &str) -> String {
        let server = server();
        let (base, _) = server.rsplit_once('/').unwrap();
        format!("{base}/{name}")
    }

    pub(crate) fn new_name() -> String {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let (process, random) = (std::process::id(), fastrand::u16(..));
        format!("orderonce_{process}_{random}_{number}")
    }

    static EMPTY: Mutex<Vec<String>> = Mutex::new(Vec::new());

    /// The name of an empty database with the newest schema.
    pub(crate) async fn migrated() -> String {
        let empty = EMPTY.lock().unwrap().pop();
        if let Some(name) = empty {
            return name;
        }
        let name = new_name();
        run(&server(), &format!("CREATE DATABASE {name}")).await;
        let (database, _) = Database::migrate(&options(&url_of(&name))).await.unwrap();
        database.close().await;
        name
    }

    /// Empties a database for the next test.
    pub(crate) async fn give_back(name: String) {
        let mut sql: String = TABLES.map(|table| format!("DELETE FROM {table};")).concat();
        sql.push_str(
            "ALTER TABLE outbox AUTO_INCREMENT = 1; ALTER TABLE dead_letter AUTO_INCREMENT = 1; \
             ALTER TABLE repair AUTO_INCREMENT = 1; ALTER TABLE callback AUTO_INCREMENT = 1",
        );
        run(&url_of(&name), &sql).await;
        EMPTY.lock().unwrap().push(name);
    }

    pub(crate) async fn drop_database(name: &str) {
        run(&server(), &format!("DROP DATABASE {name}")).await;
    }

    pub(crate) async fn fresh() -> Fresh {
        let name = migrated().await;
        let database = Database::open(&options(&url_of(&name))).await.unwrap();
        let clock = database.clone();
        Fresh {
            store: Arc::new(MySqlStore::new(database)),
            advance: Box::new(move |by| clock.advance(by)),
            waiting: Some(WAITING),
            _keep: Box::new(()),
            remove: Box::pin(give_back(name)),
        }
    }
}

pub(crate) const NOW: Timestamp = Timestamp(1_291_191_960_000);
pub(crate) const ROLE: RoleName = RoleName::ORDER;

pub(crate) fn key(text: &str) -> Key {
    Key::new(&[text]).unwrap()
}

pub(crate) fn token(text: &str) -> Token {
    Token::new(&["order", text, "PAID"]).unwrap()
}

pub(crate) fn order_id(text: &str) -> OrderId {
    OrderId::new(text).unwrap()
}

pub(crate) fn sku_id(text: &str) -> SkuId {
    SkuId::new(text).unwrap()
}

pub(crate) fn print(byte: u8) -> Fingerprint {
    Fingerprint([byte; 32])
}

pub(crate) fn order(id: &str) -> Order {
    Order {
        order_id: order_id(id),
        user_id: UserId::new("17850").unwrap(),
        status: OrderStatus::WaitPay,
        version: 1,
        currency: Currency::GBP,
        total_minor: 13_912,
        paid_minor: 0,
        refunded_minor: 0,
        pay_deadline: NOW.plus(Duration::from_secs(1800)),
        remind_at: None,
        fingerprint: print(9),
    }
}

pub(crate) fn stock(sku: &str, available: i64, version: i64) -> Stock {
    Stock {
        sku_id: sku_id(sku),
        available,
        version,
    }
}

pub(crate) fn reservation(id: &str) -> Reservation {
    Reservation {
        order_id: order_id(id),
        status: ReservationStatus::Deducted,
        version: 1,
    }
}

/// Claims one key with fingerprint 1.
pub(crate) async fn claim(tx: &mut dyn Tx, key: &Key) -> Claimed {
    let claim = NewClaim {
        key,
        subject: "536365",
        fingerprint: print(1),
        message_id: "m-1",
        body: None,
    };
    let answers = tx.claim(&ROLE, NOW, &[claim]).await.unwrap();
    let [answer] = &answers[..] else {
        panic!("one claim, one answer: {answers:?}");
    };
    answer.clone()
}

#[track_caller]
pub(crate) fn assert_conflict<T: std::fmt::Debug>(result: Result<T, Error>) {
    assert!(matches!(result, Err(Error::Conflict(_))), "{result:?}");
}

#[track_caller]
pub(crate) fn assert_refused<T: std::fmt::Debug>(result: Result<T, Error>) {
    assert!(matches!(result, Err(Error::Refused(_))), "{result:?}");
}
