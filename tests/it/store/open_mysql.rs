//! Opening a database on a MySQL or MariaDB server, what comes of one that cannot be used, and what
//! becomes of connections and transactions that the server ends.

use super::fixture::mariadb::{
    drop_database, give_back, migrated, new_name, options, run, server, url_of,
};
use super::fixture::{NOW, number, order, order_id, stock};
use crate::servers::Servers;
use orderonce::store::mysql::{Database, MySqlStore, from_sqlx};
use orderonce::store::{Connection, Error, Setup, Store, Tx};
use sqlx::mysql::MySqlConnection;
use sqlx::{AssertSqlSafe, Connection as _};
use std::mem::discriminant;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::TcpListener;

async fn open(url: &str) -> Result<Database, Error> {
    Database::open(&options(url)).await
}

async fn migrate(url: &str) -> Result<Vec<i64>, Error> {
    let (database, applied) = Database::migrate(&options(url)).await?;
    database.close().await;
    Ok(applied)
}

/// The sentence for a URL that neither opens nor migrates.
async fn refused(url: &str) -> String {
    let error = open(url).await.map(drop).unwrap_err();
    let migrated = migrate(url).await.unwrap_err();
    assert_eq!(discriminant(&migrated), discriminant(&error), "{migrated}");
    let said = error.to_string();
    assert!(!said.contains("secret"), "{said}");
    said
}

/// The URL of a database with another user and password.
fn url_as(login: &str, name: &str) -> String {
    url_of(name).replacen("orderonce:secret@", &format!("{login}@"), 1)
}

/// A new user with a right on a database.
async fn user(name: &str, rights: &str, database: &str) {
    run(
        &server(),
        &format!(
            "CREATE USER {name} IDENTIFIED BY 'secret'; GRANT {rights} ON {database}.* TO {name}"
        ),
    )
    .await;
}

async fn drop_user(name: &str) {
    run(&server(), &format!("DROP USER {name}")).await;
}

#[tokio::test]
async fn a_url_that_cannot_be_used_says_why() {
    let table = [
        (
            "postgres://a:secret@h/d",
            "its scheme is postgres, expected mysql or mariadb",
        ),
        ("mysql://a:secret@h", "it names no database, append /NAME"),
        (
            "mysql://a:secret@h:port/d",
            "it cannot be read: invalid port number",
        ),
        (
            "mysql://a:secret@h/d?ssl-mode=maybe",
            "unknown value \"maybe\" for `ssl_mode`",
        ),
    ];
    for (url, problem) in table {
        let masked = url.replace("secret", "***");
        assert_eq!(
            refused(url).await,
            format!("store.url is {masked}: {problem}")
        );
    }
}

#[tokio::test]
async fn a_server_that_does_not_answer_is_named() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    drop(listener);
    let said = refused(&format!("mariadb://app:secret@127.0.0.1:{port}/shop")).await;
    let begins = format!("nothing answers at mariadb://app:***@127.0.0.1:{port}/shop (");
    assert!(said.starts_with(&begins), "{said}");
    assert!(
        said.ends_with("start the server or change store.url"),
        "{said}"
    );
}

#[tokio::test]
async fn a_wrong_password_is_named() {
    let said = refused(&url_as("orderonce:secret2", "mysql")).await;
    assert!(
        said.contains("does not let user orderonce in (Access denied"),
        "{said}"
    );
}

#[tokio::test]
async fn a_database_that_is_not_there_is_named() {
    let said = refused(&url_of("absent")).await;
    let at = url_of("absent").replace("secret", "***");
    assert_eq!(
        said,
        format!("there is no database absent at {at}, create it or change store.url")
    );
}

#[tokio::test]
async fn a_right_that_is_missing_is_named() {
    let (name, nobody, reader) = (migrated().await, new_name(), new_name());
    user(&nobody, "SELECT", "orderonce_elsewhere").await;
    let said = refused(&url_as(&format!("{nobody}:secret"), &name)).await;
    let denied = format!("user {nobody} lacks a right at ");
    assert!(said.starts_with(&denied), "{said}");
    assert!(said.contains(&format!("to database '{name}'")), "{said}");

    user(&reader, "SELECT", &name).await;
    let said = refused(&url_as(&format!("{reader}:secret"), &name)).await;
    assert!(
        said.starts_with(&format!("user {reader} lacks a right at ")),
        "{said}"
    );
    assert!(said.contains("INSERT command denied"), "{said}");
    for user in [nobody, reader] {
        drop_user(&user).await;
    }
    give_back(name).await;
}

#[tokio::test]
async fn tls_is_checked_as_the_url_says() {
    let name = migrated().await;
    let url = url_of(&name);
    let said = refused(&format!("{url}?ssl-mode=VERIFY_CA")).await;
    assert!(said.starts_with("no TLS to the server at "), "{said}");
    if let Ok(file) = std::env::var("ORDERONCE_TEST_CA_FILE") {
        let trusted = format!("{url}?ssl-mode=VERIFY_IDENTITY&ssl-ca={file}");
        open(&trusted).await.unwrap().close().await;
    } else {
        eprintln!("skipped: the servers of these tests have no TLS");
    }
    give_back(name).await;
}

#[tokio::test]
async fn processes_that_start_together_all_open_it() {
    let name = migrated().await;
    let url = url_of(&name);
    for _ in 0..10 {
        let opened = futures_util::future::join_all((0..8).map(|_| open(&url))).await;
        for database in opened {
            database.unwrap().close().await;
        }
    }
    give_back(name).await;
}

#[tokio::test]
async fn migrating_makes_the_tables_and_a_second_time_applies_nothing() {
    let name = new_name();
    run(&server(), &format!("CREATE DATABASE {name}")).await;
    let url = url_of(&name);
    let error = open(&url).await.map(drop).unwrap_err();
    let older = matches!(error, Error::Setup(Setup::OlderSchema { found: 0, .. }));
    assert!(older, "{error:?}");
    assert!(
        error.to_string().contains("run `orderonce migrate`"),
        "{error}"
    );
    // At the same time, as two processes may.
    let (one, other) = tokio::join!(migrate(&url), migrate(&url));
    let mut applied = [one.unwrap(), other.unwrap()].concat();
    applied.sort_unstable();
    assert!(applied[0] == 1 && applied.ends_with(&[6]), "{applied:?}");
    assert!(applied.is_sorted_by(|a, b| a < b), "{applied:?}");
    assert_eq!(migrate(&url).await, Ok(Vec::new()));
    open(&url).await.unwrap().close().await;
    drop_database(&name).await;
}

#[tokio::test]
async fn a_schema_of_another_version_is_left_alone() {
    let name = migrated().await;
    let url = url_of(&name);
    let newer = "INSERT INTO _sqlx_migrations
        SELECT 9999, 'later', installed_on, success, checksum, execution_time
        FROM _sqlx_migrations LIMIT 1";
    run(&url, newer).await;
    let said = refused(&url).await;
    assert!(
        said.contains("is at migration 9999, this program knows only up to 6"),
        "{said}"
    );
    run(&url, "DELETE FROM _sqlx_migrations WHERE version = 9999").await;

    run(&url, "UPDATE _sqlx_migrations SET success = FALSE").await;
    let said = refused(&url).await;
    assert!(
        said.starts_with("migration 1 of mysql://orderonce:***@"),
        "{said}"
    );
    assert!(said.contains("was interrupted"), "{said}");
    run(
        &url,
        "UPDATE _sqlx_migrations SET success = TRUE, checksum = x'00'",
    )
    .await;
    let error = migrate(&url).await.unwrap_err();
    let changed = matches!(
        error,
        Error::Setup(Setup::ChangedMigration { version: 1, .. })
    );
    assert!(changed, "{error:?}");
    drop_database(&name).await;
}

/// A store, and the name of its database.
async fn store() -> (Arc<MySqlStore>, String) {
    let name = migrated().await;
    let database = open(&url_of(&name)).await.unwrap();
    (Arc::new(MySqlStore::new(database)), name)
}

async fn finish(store: Arc<MySqlStore>, name: String) {
    store.close().await;
    give_back(name).await;
}

fn connection(tx: &mut dyn Tx) -> &mut MySqlConnection {
    let Connection::MySql(connection) = tx.connection() else {
        panic!("a session of another database");
    };
    connection
}

async fn own(tx: &mut dyn Tx, sql: &'static str) -> Result<u64, sqlx::Error> {
    let done = sqlx::query(sql).execute(connection(tx)).await;
    done.map(|done| done.rows_affected())
}

async fn kill(id: i64) {
    run(&server(), &format!("KILL {id}")).await;
}

#[tokio::test]
async fn sessions_are_alike_whatever_the_server_says() {
    let (store, name) = store().await;
    let mut tx = store.begin().await.unwrap();
    let asked =
        "SELECT CONCAT_WS(' ', @@tx_isolation, @@sql_mode, @@time_zone, @@innodb_lock_wait_timeout,
        @@max_statement_time, @@character_set_client, @@character_set_results)";
    let session: String = sqlx::query_scalar(asked)
        .fetch_one(connection(&mut *tx))
        .await
        .unwrap();
    assert_eq!(
        session,
        "READ-COMMITTED PIPES_AS_CONCAT,STRICT_ALL_TABLES,ERROR_FOR_DIVISION_BY_ZERO,NO_ENGINE_SUBSTITUTION \
         +00:00 5 30.000000 utf8mb4 utf8mb4"
    );
    tx.commit().await.unwrap();
    finish(store, name).await;
}

#[tokio::test]
async fn connections_that_the_server_has_closed_are_replaced() {
    let (store, name) = store().await;
    const ID: &str = "SELECT CAST(CONNECTION_ID() AS SIGNED)";
    for _ in 0..2 {
        let (mut one, mut other) = (store.begin().await.unwrap(), store.begin().await.unwrap());
        let ids = [number(&mut *one, ID).await, number(&mut *other, ID).await];
        one.commit().await.unwrap();
        other.commit().await.unwrap();
        for id in ids {
            kill(id).await;
        }
        let mut tx = store.begin().await.unwrap();
        assert!(!ids.contains(&number(&mut *tx, ID).await));
        tx.commit().await.unwrap();
    }
    finish(store, name).await;
}

#[tokio::test]
async fn a_transaction_whose_connection_is_lost_is_not_available() {
    let (store, name) = store().await;
    let mut tx = store.begin().await.unwrap();
    tx.insert_orders(NOW, &[&order("A")]).await.unwrap();
    let id = number(&mut *tx, "SELECT CAST(CONNECTION_ID() AS SIGNED)").await;
    kill(id).await;
    let committed = tx.commit().await;
    assert!(
        matches!(committed, Err(Error::Unavailable(_))),
        "{committed:?}"
    );
    let mut tx = store.begin().await.unwrap();
    assert_eq!(tx.load_orders(&[&order_id("A")]).await, Ok(Vec::new()));
    tx.commit().await.unwrap();
    finish(store, name).await;
}

#[tokio::test]
async fn who_waits_for_a_row_too_long_has_lost_and_nothing_runs_in_its_transaction_any_more() {
    let (store, name) = store().await;
    let mut first = store.begin().await.unwrap();
    first.insert_orders(NOW, &[&order("A")]).await.unwrap();
    let mut second = store.begin().await.unwrap();
    own(&mut *second, "SET SESSION innodb_lock_wait_timeout = 1")
        .await
        .unwrap();
    second
        .insert_stock(NOW, &[&stock("S", 1, 1)])
        .await
        .unwrap();
    let waited = second.insert_orders(NOW, &[&order("A")]).await;
    assert!(matches!(waited, Err(Error::Conflict(_))), "{waited:?}");
    let after = [
        second.savepoint().await,
        second.insert_orders(NOW, &[&order("B")]).await,
        second.commit().await,
    ];
    for result in after {
        assert_eq!(result, waited);
    }
    first.rollback().await.unwrap();
    let mut tx = store.begin().await.unwrap();
    assert_eq!(number(&mut *tx, "SELECT COUNT(*) FROM stock").await, 0);
    tx.commit().await.unwrap();
    finish(store, name).await;
}

/// Two transactions of which one is chosen as the victim of a deadlock; returns it. Its last
/// statement was a handler's own.
async fn victim(store: &MySqlStore) -> Box<dyn Tx> {
    const TOUCH: [&str; 2] = [
        "UPDATE stock SET version = version + 1 WHERE sku_id = 'S'",
        "UPDATE stock SET version = version + 1 WHERE sku_id = 'T'",
    ];
    let mut tx = store.begin().await.unwrap();
    let rows = [stock("S", 1, 1), stock("T", 1, 1)];
    tx.insert_stock(NOW, &rows.each_ref()).await.unwrap();
    tx.commit().await.unwrap();
    let (mut one, mut other) = (store.begin().await.unwrap(), store.begin().await.unwrap());
    own(&mut *one, TOUCH[0]).await.unwrap();
    own(&mut *other, TOUCH[1]).await.unwrap();
    let ends = tokio::join!(own(&mut *one, TOUCH[1]), own(&mut *other, TOUCH[0]));
    let error = match ends {
        (Err(error), Ok(_)) => (error, one),
        (Ok(_), Err(error)) => (error, other),
        both => panic!("one of them loses: {both:?}"),
    };
    assert!(matches!(from_sqlx(error.0), Error::Conflict(_)));
    error.1
}

#[tokio::test]
async fn a_handler_that_hides_a_deadlock_commits_nothing() {
    let (store, name) = store().await;
    let mut tx = victim(&store).await;
    own(
        &mut *tx,
        "INSERT INTO lease (name, holder, fence, until) VALUES ('a', 'b', 1, 1)",
    )
    .await
    .unwrap();
    tx.insert_orders(NOW, &[&order("A")]).await.unwrap();
    let committed = tx.commit().await;
    assert!(
        matches!(committed, Err(Error::Conflict(_))),
        "{committed:?}"
    );
    let mut tx = store.begin().await.unwrap();
    let rows = "SELECT (SELECT COUNT(*) FROM lease) + (SELECT COUNT(*) FROM orders)";
    assert_eq!(number(&mut *tx, rows).await, 0);
    tx.commit().await.unwrap();
    finish(store, name).await;
}

#[tokio::test]
async fn a_transaction_that_a_handler_begins_is_a_savepoint() {
    let (store, name) = store().await;
    let mut tx = store.begin().await.unwrap();
    tx.insert_orders(NOW, &[&order("A")]).await.unwrap();
    let inner = connection(&mut *tx).begin().await.unwrap();
    inner.commit().await.unwrap();
    let inner = connection(&mut *tx).begin().await.unwrap();
    inner.rollback().await.unwrap();
    tx.rollback().await.unwrap();
    let mut tx = store.begin().await.unwrap();
    assert_eq!(tx.load_orders(&[&order_id("A")]).await, Ok(Vec::new()));
    tx.commit().await.unwrap();
    finish(store, name).await;
}

/// Calls are dropped at every moment of an exchange; what comes after sees neither their
/// transactions nor their answers.
#[tokio::test]
async fn callers_that_go_away_leave_nothing_behind() {
    let (store, name) = store().await;
    for micros in (0..6_000).step_by(150) {
        let moment = Duration::from_micros(micros);
        let begin = tokio::time::timeout(moment, store.begin()).await;
        if let Ok(begun) = begin {
            let mut tx = begun.unwrap();
            let insert = async { tx.insert_orders(NOW, &[&order("A")]).await };
            drop(tokio::time::timeout(moment, insert).await);
        }
        let head = async { store_head(&store).await };
        drop(tokio::time::timeout(moment, head).await);
        assert_eq!(store_head(&store).await, 0);
        let mut tx = store.begin().await.unwrap();
        assert_eq!(
            number(&mut *tx, "SELECT COUNT(*) + 41 FROM lease").await,
            41
        );
        tx.insert_stock(NOW, &[&stock(&micros.to_string(), 1, 1)])
            .await
            .unwrap();
        tx.commit().await.unwrap();
    }
    let mut tx = store.begin().await.unwrap();
    assert_eq!(number(&mut *tx, "SELECT COUNT(*) FROM orders").await, 0);
    assert_eq!(number(&mut *tx, "SELECT COUNT(*) FROM stock").await, 40);
    tx.commit().await.unwrap();
    finish(store, name).await;
}

async fn store_head(store: &MySqlStore) -> usize {
    use orderonce::store::Outbox;
    store.outbox_head(10).await.unwrap().len()
}

#[tokio::test]
async fn a_statement_that_runs_too_long_is_not_available() {
    let (store, name) = store().await;
    let mut tx = store.begin().await.unwrap();
    own(&mut *tx, "SET SESSION max_statement_time = 0.05")
        .await
        .unwrap();
    let error = own(&mut *tx, "SELECT SLEEP(20)").await.unwrap_err();
    let class = from_sqlx(error);
    assert!(matches!(class, Error::Unavailable(_)), "{class:?}");
    drop(tx);
    finish(store, name).await;
}

#[tokio::test]
async fn a_server_that_only_reads_is_not_available() {
    let (store, name) = store().await;
    let login = new_name();
    user(&login, "ALL", &name).await;
    let url = url_as(&format!("{login}:secret"), &name);
    let mut connection = MySqlConnection::connect(&url).await.unwrap();
    let sql = AssertSqlSafe("START TRANSACTION READ ONLY; DELETE FROM lease".to_owned());
    let error = sqlx::raw_sql(sql)
        .execute(&mut connection)
        .await
        .unwrap_err();
    assert!(matches!(from_sqlx(error), Error::Unavailable(_)));
    connection.close().await.unwrap();
    drop_user(&login).await;
    finish(store, name).await;
}

#[tokio::test]
async fn a_row_that_cannot_be_read_is_named() {
    let (store, name) = store().await;
    let mut tx = store.begin().await.unwrap();
    tx.insert_orders(NOW, &[&order("536365")]).await.unwrap();
    own(&mut *tx, "UPDATE orders SET currency = 'XXX'")
        .await
        .unwrap();
    let error = tx.load_orders(&[&order_id("536365")]).await.unwrap_err();
    let Error::Corrupt { table, problem } = &error else {
        panic!("{error:?}");
    };
    assert_eq!(*table, "orders");
    assert!(problem.starts_with("536365: \"XXX\""), "{problem}");
    drop(tx);
    finish(store, name).await;
}

#[tokio::test]
async fn a_closed_store_is_not_available() {
    let (store, name) = store().await;
    store.close().await;
    let begun = store.begin().await.map(drop);
    assert!(matches!(begun, Err(Error::Unavailable(_))), "{begun:?}");
    let answer = store.ping().await;
    assert!(matches!(answer, Err(Error::Unavailable(_))), "{answer:?}");
    give_back(name).await;
}

#[tokio::test]
async fn a_store_is_used_on_after_its_server_was_restarted() {
    let Some(servers) = Servers::turn().await else {
        return;
    };
    let server = servers.start("mariadb");
    let (base, _) = server.rsplit_once('/').unwrap();
    let name = new_name();
    run(&server, &format!("CREATE DATABASE {name}")).await;
    let (database, _) = Database::migrate(&options(&format!("{base}/{name}")))
        .await
        .unwrap();
    let store = MySqlStore::new(database);
    store.ping().await.unwrap();
    servers.stop("mariadb");
    let begun = store.begin().await.map(drop);
    assert!(matches!(begun, Err(Error::Unavailable(_))), "{begun:?}");
    servers.start("mariadb");
    let mut tx = store.begin().await.unwrap();
    tx.insert_orders(NOW, &[&order("A")]).await.unwrap();
    tx.commit().await.unwrap();
    store.close().await;
    servers.stop("mariadb");
}

#[tokio::test]
async fn a_statement_that_is_too_large_is_refused_and_ends_nothing() {
    let (store, name) = store().await;
    let mut tx = store.begin().await.unwrap();
    let mut row = orderonce::store::NewOutbox {
        aggregate: "A".into(),
        addressee: None,
        event_type: "x".into(),
        message_id: "m".into(),
        headers: std::collections::BTreeMap::new(),
        message: vec![b'x'; 17 << 20],
    };
    let refused = tx.append(NOW, &[row.clone()]).await.unwrap_err();
    assert!(matches!(refused, Error::Refused(_)), "{refused:?}");
    assert!(
        refused.to_string().contains("max_allowed_packet"),
        "{refused}"
    );
    row.message.truncate(1 << 20);
    tx.append(NOW, &[row]).await.unwrap();
    tx.commit().await.unwrap();
    assert_eq!(store_head(&store).await, 1);
    finish(store, name).await;
}
