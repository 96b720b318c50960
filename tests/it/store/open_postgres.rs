//! Opening a PostgreSQL database, what comes of one that cannot be used, and of a server that goes
//! away.

use super::fixture::postgres::{
    WAITING, drop_database, fresh, migrated, new_name, options, run, server, url_of,
};
use super::fixture::{Fresh, NOW, assert_conflict, key, order, order_id, stock};
use orderonce::store::postgres::{Database, PostgresStore, from_sqlx};
use orderonce::store::{Connection, Error, NewOutbox, Result, Setup, Store, Tx};
use sqlx::postgres::PgConnection;
use sqlx::{AssertSqlSafe, Connection as _};
use std::collections::BTreeMap;
use std::time::Duration;
use tokio::time::timeout;

/// What a URL says when its password is masked.
fn shown(url: &str) -> String {
    url.replace(":secret@", ":***@")
}

/// Opens and migrates; both must fail in the same way.
async fn refused(url: &str) -> Setup {
    let opened = Database::open(&options(url)).await.map(drop);
    let migrated = Database::migrate(&options(url)).await.map(drop);
    assert_eq!(opened, migrated);
    match opened {
        Err(Error::Setup(setup)) => setup,
        other => panic!("{url}: {other:?}"),
    }
}

/// Runs statements in a database of a test.
async fn run_in(name: &str, sql: &str) {
    let mut connection = PgConnection::connect(&url_of(name)).await.unwrap();
    let sql = AssertSqlSafe(sql.to_owned());
    sqlx::raw_sql(sql).execute(&mut connection).await.unwrap();
    connection.close().await.unwrap();
}

#[tokio::test]
async fn a_url_that_cannot_be_used_is_shown_without_its_password() {
    for (url, shown) in [
        ("mysql://app:secret@db/shop", "mysql://app:***@db/shop"),
        (
            "postgres://app:secret@db:port/shop",
            "postgres://***@db:port/shop",
        ),
        (
            "postgres://app:secret@db/shop?sslmode=maybe",
            "postgres://app:***@db/shop?sslmode=maybe",
        ),
        (
            "postgres://app:secret@db/shop?ssl_mode=require",
            "postgres://app:***@db/shop?ssl_mode=require",
        ),
    ] {
        let setup = refused(url).await;
        assert!(
            matches!(&setup, Setup::Url { at, .. } if at == shown),
            "{setup:?}"
        );
    }
}

#[tokio::test]
async fn a_server_that_does_not_answer_is_named() {
    let url = "postgres://orderonce:secret@127.0.0.1:1/shop";
    let setup = refused(url).await;
    let named = matches!(&setup, Setup::Unreachable { at, .. } if *at == shown(url));
    assert!(named, "{setup:?}");
    let sentence = setup.to_string();
    assert!(sentence.starts_with("nothing answers at postgres://orderonce:***@127.0.0.1:1/shop ("));
    assert!(!sentence.contains("secret"), "{sentence}");
}

#[tokio::test]
async fn a_wrong_password_is_told_with_the_user() {
    let url = server().replace(":secret@", ":wrong@");
    let setup = refused(&url).await;
    let told = matches!(&setup, Setup::Login { user, .. } if user == "orderonce");
    assert!(told, "{setup:?}");
    assert!(!setup.to_string().contains("wrong@"), "{setup}");
}

#[tokio::test]
async fn a_database_that_is_not_there_is_named() {
    let url = url_of("absent");
    let expected = Setup::NoDatabase {
        at: shown(&url),
        database: "absent".into(),
    };
    assert_eq!(refused(&url).await, expected);
}

#[tokio::test]
async fn a_database_of_another_encoding_is_refused() {
    let name = new_name();
    run(&format!(
        "CREATE DATABASE {name} TEMPLATE template0 ENCODING 'LATIN1' LOCALE 'C'"
    ))
    .await;
    let setup = refused(&url_of(&name)).await;
    let told = matches!(&setup, Setup::Url { problem, .. } if problem.contains("LATIN1"));
    assert!(told, "{setup:?}");
    drop_database(&name).await;
}

#[tokio::test]
async fn a_right_that_is_missing_is_named() {
    let name = migrated().await;
    run(&format!("CREATE ROLE {name} LOGIN PASSWORD 'secret'")).await;
    let url = url_of(&name).replace("//orderonce:", &format!("//{name}:"));
    let missing = async || match Database::open(&options(&url)).await.map(drop) {
        Err(Error::Setup(Setup::Permission { user, problem, .. })) => {
            assert_eq!(user, name);
            problem
        }
        other => panic!("{other:?}"),
    };
    assert!(missing().await.contains("_sqlx_migrations"));
    run_in(
        &name,
        &format!(
            "GRANT SELECT ON _sqlx_migrations TO {name};
             GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA public TO {name};
             REVOKE UPDATE ON payment FROM {name}"
        ),
    )
    .await;
    assert_eq!(missing().await, "no UPDATE on table payment");
    run_in(&name, &format!("GRANT UPDATE ON payment TO {name}")).await;
    let database = Database::open(&options(&url)).await.unwrap();
    let store = PostgresStore::new(database);
    let mut tx = store.begin().await.unwrap();
    append(&mut *tx, "A").await;
    tx.insert_orders(NOW, &[&order("A")]).await.unwrap();
    tx.commit().await.unwrap();
    store.close().await;

    run_in(&name, "DROP TABLE lease; DELETE FROM _sqlx_migrations").await;
    let migrated = Database::migrate(&options(&url)).await.map(drop);
    let told = matches!(&migrated, Err(Error::Setup(Setup::Permission { .. })));
    assert!(told, "{migrated:?}");
    drop_database(&name).await;
    run(&format!("DROP ROLE {name}")).await;
}

#[tokio::test]
async fn tls_without_a_trusted_certificate_is_told() {
    let name = migrated().await;
    let strict = format!("{}?sslmode=verify-full", url_of(&name));
    let setup = refused(&strict).await;
    assert!(matches!(&setup, Setup::Tls { .. }), "{setup:?}");
    drop_database(&name).await;
}

#[tokio::test]
async fn an_empty_database_is_an_older_schema_until_it_is_migrated() {
    let name = new_name();
    run(&format!("CREATE DATABASE {name}")).await;
    let url = url_of(&name);
    let opened = Database::open(&options(&url)).await.map(drop);
    let older = matches!(
        &opened,
        Err(Error::Setup(Setup::OlderSchema { at, found: 0, .. })) if *at == shown(&url)
    );
    assert!(older, "{opened:?}");
    for is_first in [true, false] {
        let (database, applied) = Database::migrate(&options(&url)).await.unwrap();
        assert_eq!(applied.first() == Some(&1), is_first, "{applied:?}");
        assert_eq!(applied.last() >= Some(&4), is_first, "{applied:?}");
        database.close().await;
    }
    Database::open(&options(&url)).await.unwrap().close().await;
    drop_database(&name).await;
}

#[tokio::test]
async fn a_newer_schema_is_left_alone() {
    let name = migrated().await;
    let newer = "INSERT INTO _sqlx_migrations
        SELECT 9999, 'later', installed_on, success, checksum, execution_time
        FROM _sqlx_migrations LIMIT 1";
    run_in(&name, newer).await;
    let setup = refused(&url_of(&name)).await;
    let newer = matches!(setup, Setup::NewerSchema { found: 9999, .. });
    assert!(newer, "{setup:?}");
    drop_database(&name).await;
}

#[tokio::test]
async fn a_migration_that_was_changed_is_named() {
    let name = migrated().await;
    run_in(
        &name,
        "UPDATE _sqlx_migrations SET checksum = '' WHERE version = 1",
    )
    .await;
    let migrated = Database::migrate(&options(&url_of(&name))).await.map(drop);
    let changed = matches!(
        migrated,
        Err(Error::Setup(Setup::ChangedMigration { version: 1, .. }))
    );
    assert!(changed, "{migrated:?}");
    drop_database(&name).await;
}

/// Appends a row about `aggregate` to the outbox.
async fn append(tx: &mut dyn Tx, aggregate: &str) {
    let row = NewOutbox {
        aggregate: aggregate.into(),
        addressee: None,
        event_type: "order.paid".into(),
        message_id: aggregate.into(),
        headers: BTreeMap::new(),
        message: b"{}".to_vec(),
    };
    tx.append(NOW, &[row]).await.unwrap();
}

/// Runs a statement as a handler does.
async fn handle(tx: &mut dyn Tx, sql: &'static str) -> Result<()> {
    let Connection::Postgres(connection) = tx.connection() else {
        unreachable!("a PostgreSQL store");
    };
    let done = sqlx::query(sql).execute(connection).await;
    done.map(drop).map_err(from_sqlx)
}

/// Ends all sessions of a store, as a restart of the server does.
async fn end_sessions(fresh: &Fresh) {
    let mut tx = fresh.begin().await;
    let Connection::Postgres(connection) = tx.connection() else {
        unreachable!("a PostgreSQL store");
    };
    let name: String = sqlx::query_scalar("SELECT current_database()::text")
        .fetch_one(connection)
        .await
        .unwrap();
    tx.rollback().await.unwrap();
    run(&format!(
        "SELECT pg_terminate_backend(pid, 10000) FROM pg_stat_activity WHERE datname = '{name}'"
    ))
    .await;
}

const IN_TRANSACTION: &str = "SELECT count(*) FROM pg_stat_activity
    WHERE datname = current_database() AND pid <> pg_backend_pid() AND xact_start IS NOT NULL
        AND backend_type = 'client backend'";

#[tokio::test]
async fn a_connection_that_died_while_nobody_used_it_is_replaced() {
    let fresh = fresh().await;
    let all = [
        fresh.begin().await,
        fresh.begin().await,
        fresh.begin().await,
    ];
    for tx in all {
        tx.rollback().await.unwrap();
    }
    end_sessions(&fresh).await;
    let mut tx = fresh.begin().await;
    tx.insert_stock(NOW, &[&stock("a", 1, 1)]).await.unwrap();
    tx.commit().await.unwrap();
    fresh.finish().await;
}

#[tokio::test]
async fn a_lost_connection_is_not_available_and_loses_what_was_not_committed() {
    let fresh = fresh().await;
    let mut written = fresh.begin().await;
    written
        .insert_stock(NOW, &[&stock("a", 1, 1)])
        .await
        .unwrap();
    let mut idle = fresh.begin().await;
    end_sessions(&fresh).await;
    let lost = idle.load_stock(&[]).await;
    assert_eq!(lost, Ok(Vec::new()), "no statement, no error");
    let lost = idle.now().await;
    assert!(matches!(lost, Err(Error::Unavailable(_))), "{lost:?}");
    drop(idle);
    let lost = written.commit().await;
    assert!(matches!(lost, Err(Error::Unavailable(_))), "{lost:?}");
    assert_eq!(fresh.number("SELECT count(*) FROM stock").await, 0);
    fresh.finish().await;
}

#[tokio::test]
async fn a_begin_that_nobody_waits_for_leaves_no_transaction_behind() {
    let fresh = fresh().await;
    for microseconds in (0..2_000).step_by(100) {
        let begin = fresh.store.begin();
        let cancelled = timeout(Duration::from_micros(microseconds), begin).await;
        drop(cancelled);
    }
    let mut tx = fresh.begin().await;
    tx.insert_stock(NOW, &[&stock("a", 1, 1)]).await.unwrap();
    tx.commit().await.unwrap();
    while fresh.number(IN_TRANSACTION).await > 0 {
        tokio::task::yield_now().await;
    }
    assert_eq!(fresh.number("SELECT count(*) FROM stock").await, 1);
    fresh.finish().await;
}

#[tokio::test]
async fn a_statement_that_nobody_waits_for_writes_nothing_by_itself() {
    let fresh = fresh().await;
    let mut blocking = fresh.begin().await;
    blocking.insert_orders(NOW, &[&order("A")]).await.unwrap();
    for _ in 0..3 {
        let mut tx = fresh.begin().await;
        tx.insert_orders(NOW, &[&order("B")]).await.unwrap();
        let orders = [&order("A")];
        let waiting = tx.insert_orders(NOW, &orders);
        let cancelled = timeout(Duration::from_millis(20), waiting).await;
        assert!(cancelled.is_err());
        // Its rollback waits for the statement, and holds up nobody else.
        drop(tx);
    }
    blocking.rollback().await.unwrap();
    while fresh.number(IN_TRANSACTION).await > 0 {
        tokio::task::yield_now().await;
    }
    assert_eq!(fresh.number("SELECT count(*) FROM orders").await, 0);
    fresh.finish().await;
}

// The server calls it a success when it commits nothing.
#[tokio::test]
async fn a_failure_that_is_passed_over_is_not_committed_in_silence() {
    let fresh = fresh().await;
    let mut tx = fresh.begin().await;
    tx.insert_orders(NOW, &[&order("A")]).await.unwrap();
    assert_conflict(tx.insert_orders(NOW, &[&order("A")]).await);
    let committed = tx.commit().await;
    assert!(matches!(committed, Err(Error::Refused(_))), "{committed:?}");
    assert_eq!(fresh.number("SELECT count(*) FROM orders").await, 0);
    fresh.finish().await;
}

#[tokio::test]
async fn a_lock_that_is_waited_for_in_vain_is_a_lost_race() {
    let name = migrated().await;
    let hasty = orderonce::store::postgres::Options {
        lock_timeout: Duration::from_millis(50),
        ..options(&url_of(&name))
    };
    let store = PostgresStore::new(Database::open(&hasty).await.unwrap());
    let mut first = store.begin().await.unwrap();
    first.insert_orders(NOW, &[&order("A")]).await.unwrap();
    let mut second = store.begin().await.unwrap();
    assert_conflict(second.insert_orders(NOW, &[&order("A")]).await);
    drop((first, second));
    store.close().await;
    drop_database(&name).await;
}

#[tokio::test]
async fn a_statement_that_takes_too_long_is_not_available() {
    let name = migrated().await;
    let hasty = orderonce::store::postgres::Options {
        statement_timeout: Duration::from_millis(50),
        ..options(&url_of(&name))
    };
    let store = PostgresStore::new(Database::open(&hasty).await.unwrap());
    let mut tx = store.begin().await.unwrap();
    let late = handle(&mut *tx, "SELECT pg_sleep(60)").await;
    assert!(matches!(late, Err(Error::Unavailable(_))), "{late:?}");
    tx.rollback().await.unwrap();
    store.close().await;
    drop_database(&name).await;
}

#[tokio::test]
async fn what_a_statement_says_of_its_data_is_refused_and_of_the_server_not_available() {
    let fresh = fresh().await;
    let refused = [
        "SELECT 1 / 0",
        "SELECT 'x'::int",
        "INSERT INTO lease (name, holder, fence, until) VALUES (NULL, '', 1, 1)",
        "SELECT nonsense(1)",
    ];
    for sql in refused {
        let mut tx = fresh.begin().await;
        let error = handle(&mut *tx, sql).await;
        assert!(matches!(error, Err(Error::Refused(_))), "{sql}: {error:?}");
    }
    for sql in ["SELECT * FROM absent", "SELECT absent FROM orders"] {
        let mut tx = fresh.begin().await;
        let error = handle(&mut *tx, sql).await;
        assert!(
            matches!(error, Err(Error::Unavailable(_))),
            "{sql}: {error:?}"
        );
    }
    fresh.finish().await;
}

// The numbers are taken before the commit.
#[tokio::test]
async fn a_row_that_is_committed_late_is_not_passed_over() {
    let fresh = fresh().await;
    let mut late = fresh.begin().await;
    append(&mut *late, "late").await;
    let mut early = fresh.begin().await;
    append(&mut *early, "early").await;
    early.commit().await.unwrap();
    let heads = async || {
        let rows = fresh.store.outbox_head(10).await.unwrap();
        let ids = rows.into_iter().map(|row| row.message_id);
        ids.collect::<Vec<_>>()
    };
    assert_eq!(heads().await, ["early"]);
    late.commit().await.unwrap();
    assert_eq!(heads().await, ["late", "early"]);
    fresh.finish().await;
}

#[tokio::test]
async fn rows_are_locked_in_the_order_of_their_keys() {
    let fresh = fresh().await;
    let mut tx = fresh.begin().await;
    let rows = ["B", "a", "c"].map(order);
    tx.insert_orders(NOW, &rows.each_ref()).await.unwrap();
    tx.commit().await.unwrap();

    let mut first = fresh.begin().await;
    first.load_orders(&[&order_id("B")]).await.unwrap();
    let store = fresh.store.clone();
    let second = tokio::spawn(async move {
        let mut tx = store.begin().await.unwrap();
        let ids = ["c", "a", "B"].map(order_id);
        tx.load_orders(&ids.each_ref()).await.unwrap().len()
    });
    while fresh.number(WAITING).await == 0 {
        tokio::task::yield_now().await;
    }
    // The second waits for the lowest key, byte by byte, and has locked nothing above it.
    first
        .load_orders(&[&order_id("a"), &order_id("c")])
        .await
        .unwrap();
    first.commit().await.unwrap();
    assert_eq!(second.await.unwrap(), 3);
    fresh.finish().await;
}

#[tokio::test]
async fn rows_are_inserted_in_the_order_of_their_keys() {
    let fresh = fresh().await;
    let mut first = fresh.begin().await;
    first.insert_stock(NOW, &[&stock("B", 1, 1)]).await.unwrap();
    let store = fresh.store.clone();
    let second = tokio::spawn(async move {
        let mut tx = store.begin().await.unwrap();
        let rows = ["c", "a", "B"].map(|sku| stock(sku, 1, 1));
        tx.insert_stock(NOW, &rows.each_ref()).await
    });
    while fresh.number(WAITING).await == 0 {
        tokio::task::yield_now().await;
    }
    let rows = ["a", "c"].map(|sku| stock(sku, 1, 1));
    first.insert_stock(NOW, &rows.each_ref()).await.unwrap();
    first.commit().await.unwrap();
    let lost = second.await.unwrap();
    assert_conflict(lost.clone());
    assert!(!format!("{lost:?}").contains("deadlock"), "{lost:?}");
    fresh.finish().await;
}

#[tokio::test]
async fn a_store_waits_for_its_transactions_and_is_closed_then() {
    let fresh = fresh().await;
    let tx = fresh.begin().await;
    let store = fresh.store.clone();
    let mut closing = tokio::spawn(async move { store.close().await });
    let early = timeout(Duration::from_millis(50), &mut closing).await;
    assert!(early.is_err(), "a transaction is under way");
    tx.commit().await.unwrap();
    closing.await.unwrap();
    let begun = fresh.store.begin().await.map(drop);
    assert!(matches!(begun, Err(Error::Unavailable(_))), "{begun:?}");
    let answer = fresh.store.ping().await;
    assert!(matches!(answer, Err(Error::Unavailable(_))), "{answer:?}");
    fresh.remove.await;
}

#[tokio::test]
async fn a_row_that_cannot_be_read_is_named() {
    let fresh = fresh().await;
    let mut tx = fresh.begin().await;
    tx.insert_orders(NOW, &[&order("536365")]).await.unwrap();
    handle(&mut *tx, "UPDATE orders SET currency = 'XXX'")
        .await
        .unwrap();
    let error = tx.load_orders(&[&order_id("536365")]).await.unwrap_err();
    let Error::Corrupt { table, problem } = &error else {
        panic!("{error:?}");
    };
    assert_eq!(*table, "orders");
    assert!(problem.starts_with("536365: \"XXX\""), "{problem}");
    tx.rollback().await.unwrap();
    fresh.finish().await;
}

#[tokio::test]
async fn a_claim_that_was_given_back_while_it_was_asked_for_is_a_lost_race() {
    let fresh = fresh().await;
    let a = key("a");
    let mut tx = fresh.begin().await;
    super::fixture::claim(&mut *tx, &a).await;
    handle(
        &mut *tx,
        "CREATE FUNCTION give_back() RETURNS trigger LANGUAGE plpgsql AS
         'BEGIN DELETE FROM idempotent_record WHERE key = ''a''; RETURN NULL; END'",
    )
    .await
    .unwrap();
    handle(
        &mut *tx,
        "CREATE TRIGGER give_back AFTER INSERT ON idempotent_record
         FOR EACH STATEMENT EXECUTE FUNCTION give_back()",
    )
    .await
    .unwrap();
    let claim = orderonce::store::NewClaim {
        key: &a,
        subject: "A",
        fingerprint: super::fixture::print(1),
        message_id: "m-1",
        body: None,
    };
    assert_conflict(tx.claim(&super::fixture::ROLE, NOW, &[claim]).await);
    tx.rollback().await.unwrap();
    fresh.finish().await;
}
