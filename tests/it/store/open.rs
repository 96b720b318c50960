//! Opening a SQLite file, and what comes of a file that cannot be used.

use super::fixture::sqlite::options;
use super::fixture::{NOW, order, order_id};
use orderonce::domain::OrderId;
use orderonce::domain::order::Order;
use orderonce::store::sqlite::{Database, SqliteStore};
use orderonce::store::{Connection, Error, Setup, Store};
use sqlx::ConnectOptions;
use sqlx::sqlite::{SqliteConnectOptions, SqliteConnection};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use tempfile::TempDir;

fn place() -> (TempDir, PathBuf) {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("orderonce.db");
    (directory, path)
}

/// A file with the newest schema that nobody has open.
async fn migrated() -> (TempDir, PathBuf) {
    let (directory, path) = place();
    let (database, _) = Database::migrate(&options(&path)).await.unwrap();
    database.close().await;
    (directory, path)
}

async fn open(path: &Path) -> Result<Database, Error> {
    Database::open(&options(path)).await
}

async fn migrate(path: &Path) -> Result<Vec<i64>, Error> {
    let (database, applied) = Database::migrate(&options(path)).await?;
    database.close().await;
    Ok(applied)
}

#[track_caller]
fn assert_setup<T>(result: Result<T, Error>, expected: Setup) {
    assert_eq!(result.map(drop), Err(Error::Setup(expected)));
}

/// A connection of another process.
async fn stranger(path: &Path) -> SqliteConnection {
    let options = SqliteConnectOptions::new().filename(path);
    options.connect().await.unwrap()
}

async fn run(connection: &mut SqliteConnection, sql: &'static str) {
    sqlx::query(sql).execute(connection).await.unwrap();
}

#[tokio::test]
async fn a_directory_is_named_as_one() {
    let (directory, _) = place();
    let path = directory.path();
    assert_setup(open(path).await, Setup::Directory(path.into()));
    assert_setup(migrate(path).await, Setup::Directory(path.into()));
}

#[tokio::test]
async fn a_missing_directory_is_named() {
    let (directory, _) = place();
    let parent = directory.path().join("absent");
    let path = parent.join("orderonce.db");
    assert_setup(open(&path).await, Setup::NoDirectory(parent.clone()));
    assert_setup(migrate(&path).await, Setup::NoDirectory(parent));
}

#[tokio::test]
async fn opening_creates_no_file() {
    let (_directory, path) = place();
    assert_setup(open(&path).await, Setup::Missing(path.clone()));
    assert!(!path.exists());
}

#[tokio::test]
async fn migrating_creates_the_file_and_a_second_time_applies_nothing() {
    let (_directory, path) = place();
    let applied = migrate(&path).await.unwrap();
    assert_eq!(applied.first(), Some(&1));
    assert!(applied.is_sorted());
    assert_eq!(migrate(&path).await, Ok(Vec::new()));
    open(&path).await.unwrap().close().await;
}

#[tokio::test]
async fn a_text_file_is_not_a_database() {
    for length in [5, 5_000] {
        let (_directory, path) = place();
        fs::write(&path, "order_id,".repeat(length)).unwrap();
        assert_setup(open(&path).await, Setup::NotADatabase(path.clone()));
        assert_setup(migrate(&path).await, Setup::NotADatabase(path.clone()));
        assert_eq!(fs::read_to_string(&path).unwrap().len(), 9 * length);
    }
}

#[tokio::test]
async fn an_empty_file_is_an_older_schema() {
    let (_directory, path) = place();
    fs::write(&path, "").unwrap();
    let error = open(&path).await.map(drop).unwrap_err();
    let older = matches!(error, Error::Setup(Setup::OlderSchema { found: 0, .. }));
    assert!(older, "{error:?}");
    assert!(error.to_string().contains("orderonce migrate"), "{error}");
}

#[tokio::test]
async fn a_truncated_file_is_damaged() {
    let (_directory, path) = migrated().await;
    let length = fs::metadata(&path).unwrap().len();
    let file = fs::File::options().write(true).open(&path).unwrap();
    file.set_len(length / 2).unwrap();
    assert_setup(open(&path).await, Setup::Damaged(path.clone()));
    assert_setup(migrate(&path).await, Setup::Damaged(path));
}

#[tokio::test]
async fn a_file_with_a_broken_first_page_is_damaged() {
    let (_directory, path) = migrated().await;
    let mut bytes = fs::read(&path).unwrap();
    bytes[100..4096].fill(0xa5);
    fs::write(&path, bytes).unwrap();
    assert_setup(open(&path).await, Setup::Damaged(path.clone()));
    assert_setup(migrate(&path).await, Setup::Damaged(path));
}

/// Takes the right to write from this process while it lives. Root needs an attribute: permission
/// bits do not bind it.
struct WriteProtected(PathBuf);

impl WriteProtected {
    fn new(path: &Path) -> Option<Self> {
        let done = Command::new("chattr").arg("+i").arg(path).output();
        let protected = Self(path.to_owned());
        if done.is_ok_and(|output| output.status.success()) {
            return Some(protected);
        }
        let mut permissions = fs::metadata(path).unwrap().permissions();
        permissions.set_readonly(true);
        fs::set_permissions(path, permissions).unwrap();
        let binds = if path.is_dir() {
            fs::write(path.join("probe"), "").is_err()
        } else {
            fs::File::options().append(true).open(path).is_err()
        };
        if !binds {
            println!("skipped: root, and this file system has no immutable attribute");
        }
        binds.then_some(protected)
    }
}

impl Drop for WriteProtected {
    fn drop(&mut self) {
        let undone = Command::new("chattr").arg("-i").arg(&self.0).output();
        drop(undone);
        let mode = if self.0.is_dir() { "700" } else { "600" };
        let undone = Command::new("chmod").arg(mode).arg(&self.0).output();
        drop(undone);
    }
}

#[tokio::test]
async fn a_file_without_the_right_to_write_is_named() {
    let (_directory, path) = migrated().await;
    let Some(_protected) = WriteProtected::new(&path) else {
        return;
    };
    assert_setup(open(&path).await, Setup::ReadOnly(path.clone()));
    assert_setup(migrate(&path).await, Setup::ReadOnly(path.clone()));
}

#[tokio::test]
async fn a_directory_without_the_right_to_write_is_named() {
    let (directory, path) = migrated().await;
    let Some(_protected) = WriteProtected::new(directory.path()) else {
        return;
    };
    assert_setup(open(&path).await, Setup::ReadOnly(path.clone()));
    let new = directory.path().join("new.db");
    assert_setup(migrate(&new).await, Setup::ReadOnly(new));
}

#[tokio::test]
async fn a_file_locked_by_another_process_is_not_available() {
    for lock in [
        "BEGIN IMMEDIATE",
        "PRAGMA locking_mode = EXCLUSIVE; BEGIN EXCLUSIVE",
    ] {
        let (_directory, path) = migrated().await;
        let mut other = stranger(&path).await;
        run(&mut other, lock).await;
        let error = open(&path).await.map(drop).unwrap_err();
        let named = matches!(&error, Error::Unavailable(text) if text.contains("is locked"));
        assert!(named, "{lock}: {error:?}");
        drop(other);
    }
}

#[tokio::test]
async fn beginning_while_another_process_writes_for_too_long_is_not_available() {
    let (_directory, path) = migrated().await;
    let database = open(&path).await.unwrap();
    let store = SqliteStore::new(database);
    let mut other = stranger(&path).await;
    run(&mut other, "BEGIN IMMEDIATE").await;
    let begun = store.begin().await.map(drop);
    assert!(matches!(begun, Err(Error::Unavailable(_))), "{begun:?}");
    store.ping().await.unwrap();
    run(&mut other, "ROLLBACK").await;
    store.begin().await.unwrap().commit().await.unwrap();
    store.close().await;
}

#[tokio::test]
async fn a_newer_schema_is_left_alone() {
    let (_directory, path) = migrated().await;
    let mut other = stranger(&path).await;
    let newer = "INSERT INTO _sqlx_migrations
        SELECT 9999, 'later', installed_on, success, checksum, execution_time
        FROM _sqlx_migrations LIMIT 1";
    run(&mut other, newer).await;
    for result in [open(&path).await.map(drop), migrate(&path).await.map(drop)] {
        let error = result.unwrap_err();
        let newer = matches!(error, Error::Setup(Setup::NewerSchema { found: 9999, .. }));
        assert!(newer, "{error:?}");
    }
}

#[tokio::test]
async fn an_older_schema_says_what_to_run() {
    let (_directory, path) = migrated().await;
    let mut other = stranger(&path).await;
    run(&mut other, "DELETE FROM _sqlx_migrations WHERE version > 1").await;
    let error = open(&path).await.map(drop).unwrap_err();
    let older =
        matches!(error, Error::Setup(Setup::OlderSchema { found: 1, needed, .. }) if needed > 1);
    assert!(older, "{error:?}");
    assert!(error.to_string().contains("orderonce migrate"), "{error}");
}

#[tokio::test]
async fn a_migration_that_was_changed_is_named() {
    let (_directory, path) = migrated().await;
    let mut other = stranger(&path).await;
    let change = "UPDATE _sqlx_migrations SET checksum = x'00' WHERE version = 1";
    run(&mut other, change).await;
    let error = migrate(&path).await.unwrap_err();
    let changed = matches!(
        error,
        Error::Setup(Setup::ChangedMigration { version: 1, .. })
    );
    assert!(changed, "{error:?}");
}

async fn limit_pages(store: &SqliteStore, limit: &'static str) {
    let mut tx = store.begin().await.unwrap();
    let Connection::Sqlite(connection) = tx.connection() else {
        unreachable!("a SQLite store");
    };
    run(connection, limit).await;
    tx.rollback().await.unwrap();
}

// A limit of pages answers SQLITE_FULL, as a full disk does.
#[tokio::test]
async fn a_full_disk_is_not_available_and_nothing_runs_in_its_transaction_any_more() {
    let (_directory, path) = migrated().await;
    let store = SqliteStore::new(open(&path).await.unwrap());
    limit_pages(&store, "PRAGMA max_page_count = 60").await;

    let orders: Vec<Order> = (0..5_000).map(|i| order(&i.to_string())).collect();
    let all: Vec<_> = orders.iter().collect();
    let mut tx = store.begin().await.unwrap();
    tx.insert_orders(NOW, &all[..1]).await.unwrap();
    let full = tx.insert_orders(NOW, &all[1..]).await;
    assert!(matches!(full, Err(Error::Unavailable(_))), "{full:?}");
    let after = [
        tx.savepoint().await,
        tx.insert_orders(NOW, &all[..1]).await,
        tx.commit().await,
    ];
    for result in after {
        assert!(matches!(result, Err(Error::Unavailable(_))), "{result:?}");
    }

    limit_pages(&store, "PRAGMA max_page_count = 100000").await;
    let mut tx = store.begin().await.unwrap();
    let ids: Vec<OrderId> = vec![order_id("0")];
    let kept = tx.load_orders(&ids.iter().collect::<Vec<_>>()).await;
    assert_eq!(kept, Ok(Vec::new()));
    tx.insert_orders(NOW, &all).await.unwrap();
    tx.commit().await.unwrap();
    store.close().await;
}

#[tokio::test]
async fn a_closed_store_is_not_available() {
    let (_directory, path) = migrated().await;
    let store = SqliteStore::new(open(&path).await.unwrap());
    store.close().await;
    let begun = store.begin().await.map(drop);
    assert!(matches!(begun, Err(Error::Unavailable(_))), "{begun:?}");
    let answer = store.ping().await;
    assert!(matches!(answer, Err(Error::Unavailable(_))), "{answer:?}");
}

#[tokio::test]
async fn a_row_that_cannot_be_read_is_named() {
    let (_directory, path) = migrated().await;
    let store = SqliteStore::new(open(&path).await.unwrap());
    let mut tx = store.begin().await.unwrap();
    tx.insert_orders(NOW, &[&order("536365")]).await.unwrap();
    tx.commit().await.unwrap();
    let mut other = stranger(&path).await;
    run(&mut other, "UPDATE orders SET currency = 'XXX'").await;
    let mut tx = store.begin().await.unwrap();
    let error = tx.load_orders(&[&order_id("536365")]).await.unwrap_err();
    let Error::Corrupt { table, problem } = &error else {
        panic!("{error:?}");
    };
    assert_eq!(*table, "orders");
    assert!(problem.starts_with("536365: \"XXX\""), "{problem}");
    drop(tx);
    store.close().await;
}
