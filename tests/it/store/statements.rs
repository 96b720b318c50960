//! Every statement of SQLite's folder, as it stands in the source.

use super::fixture::sqlite::options;
use orderonce::store::sqlite::Database;
use sqlx::sqlite::{SqliteConnectOptions, SqliteConnection};
use sqlx::{AssertSqlSafe, ConnectOptions, Row};
use std::fs;
use std::path::Path;

/// The statements on the path of a batch and of the relay: each finds its rows by an index. The
/// operator's questions and the reconciliation may scan.
const INDEXED: [&str; 7] = [
    "accounts.rs",
    "claims.rs",
    "dead_letters.rs",
    "inventory.rs",
    "orders.rs",
    "outbox.rs",
    "parking.rs",
];

/// Reads its first rows in the order of their numbers.
const HEAD: &str = "SCAN row";

/// Counts.
const DEPTH: &str = "SCAN outbox";

/// File, and text of the statement.
fn statements() -> Vec<(String, String)> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/store/sqlite");
    let mut found = Vec::new();
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let file = path.file_name().unwrap().to_str().unwrap().to_owned();
        let source = fs::read_to_string(&path).unwrap();
        for constant in source.split("const ").skip(1) {
            let Some((_, text)) = constant.split_once(": &str = \"") else {
                continue;
            };
            let text = text.split("\";").next().unwrap_or_default().trim();
            let verbs = ["SELECT", "INSERT", "UPDATE", "DELETE", "WITH"];
            if verbs.iter().any(|verb| text.starts_with(verb)) {
                found.push((file.clone(), text.to_owned()));
            }
        }
    }
    assert!(found.len() > 40, "{} statements", found.len());
    found
}

async fn connection(path: &Path) -> SqliteConnection {
    let (database, _) = Database::migrate(&options(path)).await.unwrap();
    database.close().await;
    let options = SqliteConnectOptions::new().filename(path);
    options.connect().await.unwrap()
}

/// The steps of a statement's plan.
async fn plan(connection: &mut SqliteConnection, file: &str, text: &str) -> Vec<String> {
    let explain = format!("EXPLAIN QUERY PLAN {text}");
    let rows = sqlx::query(AssertSqlSafe(explain))
        .fetch_all(connection)
        .await;
    let rows = rows.unwrap_or_else(|error| panic!("{file}: {text}\n{error}"));
    rows.iter().map(|row| row.get("detail")).collect()
}

#[tokio::test]
async fn every_statement_can_be_prepared() {
    let directory = tempfile::tempdir().unwrap();
    let mut connection = connection(&directory.path().join("orderonce.db")).await;
    for (file, text) in statements() {
        plan(&mut connection, &file, &text).await;
    }
}

#[tokio::test]
async fn no_statement_of_a_batch_scans_a_table() {
    let directory = tempfile::tempdir().unwrap();
    let mut connection = connection(&directory.path().join("orderonce.db")).await;
    for (file, text) in statements() {
        if !INDEXED.contains(&&*file) {
            continue;
        }
        for step in plan(&mut connection, &file, &text).await {
            let set = step.contains("json_each") || step.contains("VIRTUAL TABLE");
            let whole = step.starts_with("SCAN") && !set && step != "SCAN CONSTANT ROW";
            // By the role alone it would go through all that a role has ever claimed.
            let by_role_alone = step.ends_with("(role=?)");
            assert!(
                !whole && !by_role_alone || step == HEAD || step == DEPTH,
                "{file}: {text}\n{step}"
            );
        }
    }
}
