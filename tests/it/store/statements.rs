//! Every statement of the stores, as it stands in the source.

use super::fixture::sqlite::options;
use super::fixture::{mariadb, postgres};
use orderonce::store::sqlite::Database;
use orderonce::store::{Connection, Tx};
use serde_json::Value;
use sqlx::mysql::{MySqlConnection, MySqlRow};
use sqlx::postgres::PgConnection;
use sqlx::sqlite::{SqliteConnectOptions, SqliteConnection};
use sqlx::{AssertSqlSafe, ConnectOptions, Row};
use std::fs;
use std::path::Path;

/// The statements on the path of a batch and of the relay: each finds its rows by an index. The
/// operator's questions and the reconciliation may scan.
const INDEXED: [&str; 10] = [
    "accounts.rs",
    "callbacks.rs",
    "claims.rs",
    "dead_letters.rs",
    "inventory.rs",
    "orders.rs",
    "outbox.rs",
    "parking.rs",
    "retention.rs",
    "views.rs",
];

/// Reads its first rows in the order of their numbers.
const HEAD: &str = "SCAN row";

/// Counts.
const DEPTH: &str = "SCAN outbox";

/// What an operator asks for: counts of all claims, and the youngest callbacks.
fn is_of_an_operator(text: &str) -> bool {
    let lists = text.contains("FROM callback") && text.contains("ORDER BY id DESC");
    text.starts_with("SELECT live.number") || lists && !text.contains("subject = ")
}

/// File, and text of the statement, of a database's folder.
fn statements(database: &str) -> Vec<(String, String)> {
    let stores = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/store");
    let folder = stores.join(database);
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
            let text = text.replace("\\\"", "\"");
            let verbs = ["SELECT", "INSERT", "UPDATE", "DELETE", "WITH"];
            if verbs.iter().any(|verb| text.starts_with(verb)) {
                found.push((file.clone(), text));
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
async fn every_statement_of_sqlite_can_be_prepared() {
    let directory = tempfile::tempdir().unwrap();
    let mut connection = connection(&directory.path().join("orderonce.db")).await;
    for (file, text) in statements("sqlite") {
        plan(&mut connection, &file, &text).await;
    }
}

#[tokio::test]
async fn no_statement_of_a_batch_scans_a_table_of_sqlite() {
    let directory = tempfile::tempdir().unwrap();
    let mut connection = connection(&directory.path().join("orderonce.db")).await;
    for (file, text) in statements("sqlite") {
        if !INDEXED.contains(&&*file) || is_of_an_operator(&text) {
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

/// What waits is read in the order of an index, as far as a limit.
const BACKLOG: &str = "backlog.rs";

#[tokio::test]
async fn what_waits_is_read_by_indexes_of_sqlite() {
    let directory = tempfile::tempdir().unwrap();
    let mut connection = connection(&directory.path().join("orderonce.db")).await;
    let all = statements("sqlite");
    let (file, text) = all.into_iter().find(|(file, _)| file == BACKLOG).unwrap();
    assert_eq!(
        text.matches("LIMIT").count(),
        text.matches("FROM (SELECT").count() + 2
    );
    for step in plan(&mut connection, &file, &text).await {
        let whole = step.starts_with("SCAN") && !step.contains(" USING ");
        let by_number = ["SCAN outbox", "SCAN CONSTANT ROW"].contains(&&*step);
        let counts = step.starts_with("SCAN (subquery");
        assert!(!whole || by_number || counts, "{text}\n{step}");
        assert!(!step.contains("TEMP B-TREE"), "{text}\n{step}");
    }
}

#[tokio::test]
async fn what_waits_is_read_by_indexes_of_postgres() {
    let fresh = postgres::fresh().await;
    let mut tx = fresh.begin().await;
    let all = statements("postgres");
    let (file, text) = all.into_iter().find(|(file, _)| file == BACKLOG).unwrap();
    let plan = generic_plan(session(&mut *tx), &file, &text).await;
    let plan = plan.to_string();
    assert!(plan.contains("Index"), "{plan}");
    for costly in ["Seq Scan", "\"Sort\""] {
        assert!(!plan.contains(costly), "{costly}: {plan}");
    }
    tx.rollback().await.unwrap();
    fresh.finish().await;
}

#[tokio::test]
async fn what_waits_is_read_by_indexes_of_mysql() {
    let fresh = mariadb::fresh().await;
    let mut tx = fresh.begin().await;
    let all = statements("mysql");
    let (file, text) = all.into_iter().find(|(file, _)| file == BACKLOG).unwrap();
    for step in mysql_plan(mysql_session(&mut *tx), &file, &text).await {
        let cell = |name: &str| {
            let text = step.get_unchecked::<Option<String>, _>(name);
            text.unwrap_or_default()
        };
        let is_derived = cell("table").is_empty() || cell("table").starts_with('<');
        let what = format!("{} by {} {}", cell("table"), cell("type"), cell("key"));
        assert!(is_derived || cell("type") != "ALL", "{text}\n{what}");
        assert!(!cell("Extra").contains("filesort"), "{text}\n{what}");
    }
    tx.rollback().await.unwrap();
    fresh.finish().await;
}

/// Counts.
const POSTGRES_DEPTH: &str = "SELECT count(*), (SELECT created_at FROM outbox";

fn session(tx: &mut dyn Tx) -> &mut PgConnection {
    let Connection::Postgres(connection) = tx.connection() else {
        panic!("a session of another database");
    };
    connection
}

/// Prepares a statement and returns how many parameters it has.
async fn prepare(session: &mut PgConnection, file: &str, text: &str) -> i64 {
    let prepare = AssertSqlSafe(format!("DEALLOCATE ALL; PREPARE it AS {text}"));
    let prepared = sqlx::raw_sql(prepare).execute(&mut *session).await;
    prepared.unwrap_or_else(|error| panic!("{file}: {text}\n{error}"));
    let count =
        "SELECT coalesce(cardinality(parameter_types), 0)::bigint FROM pg_prepared_statements
        WHERE name = 'it'";
    let count = sqlx::query_scalar(count).persistent(false);
    count.fetch_one(session).await.unwrap()
}

/// The plan that is kept for a statement, whatever its parameters are.
async fn generic_plan(session: &mut PgConnection, file: &str, text: &str) -> Value {
    let parameters = prepare(session, file, text).await;
    let nulls: Vec<_> = (0..parameters).map(|_| "NULL").collect();
    let list = if nulls.is_empty() {
        String::new()
    } else {
        format!("({})", nulls.join(", "))
    };
    let explain = AssertSqlSafe(format!("EXPLAIN (FORMAT JSON) EXECUTE it{list}"));
    let rows = sqlx::raw_sql(explain).fetch_one(session).await.unwrap();
    let plan: String = rows.try_get_unchecked(0).unwrap();
    serde_json::from_str(&plan).unwrap()
}

/// The nodes that read more of a table than they need, with what they are.
fn scans(plan: &Value, found: &mut Vec<String>) {
    match plan {
        Value::Array(parts) => parts.iter().for_each(|part| scans(part, found)),
        Value::Object(node) => {
            let text = |name: &str| node.get(name).and_then(Value::as_str).unwrap_or_default();
            let kind = text("Node Type");
            let condition = text("Index Cond");
            // By the role alone it would go through all that a role has ever claimed.
            let is_whole = condition.is_empty()
                || condition.contains("(role = ") && !condition.contains(" AND ");
            if kind == "Seq Scan" || kind.contains("Index") && is_whole {
                found.push(format!("{kind} of {} {condition}", text("Relation Name")));
            }
            node.values().for_each(|part| scans(part, found));
        }
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
    }
}

#[tokio::test]
async fn every_statement_of_postgres_can_be_prepared() {
    let fresh = postgres::fresh().await;
    let mut tx = fresh.begin().await;
    for (file, text) in statements("postgres") {
        prepare(session(&mut *tx), &file, &text).await;
    }
    tx.rollback().await.unwrap();
    fresh.finish().await;
}

#[tokio::test]
async fn no_statement_of_a_batch_scans_a_table_of_postgres() {
    let fresh = postgres::fresh().await;
    let mut tx = fresh.begin().await;
    for (file, text) in statements("postgres") {
        let counts = text.starts_with(POSTGRES_DEPTH) || is_of_an_operator(&text);
        if !INDEXED.contains(&&*file) || counts {
            continue;
        }
        let plan = generic_plan(session(&mut *tx), &file, &text).await;
        let mut found = Vec::new();
        scans(&plan, &mut found);
        assert!(found.is_empty(), "{file}: {text}\n{found:?}\n{plan:#}");
    }
    tx.rollback().await.unwrap();
    fresh.finish().await;
}

/// Reads its first rows in the order of their numbers, or counts.
const MARIADB_WHOLE: [&str; 2] = [
    "SELECT id, aggregate, addressee, event_type, message_id, headers, message, created_at, failures, last_error
            FROM outbox AS head",
    "SELECT COUNT(*), (SELECT created_at FROM outbox",
];

fn mysql_session(tx: &mut dyn Tx) -> &mut MySqlConnection {
    let Connection::MySql(connection) = tx.connection() else {
        panic!("a session of another database");
    };
    connection
}

/// The steps of a statement's plan.
async fn mysql_plan(session: &mut MySqlConnection, file: &str, text: &str) -> Vec<MySqlRow> {
    let explain = format!("EXPLAIN {text}");
    let mut explain = sqlx::query(AssertSqlSafe(explain)).persistent(false);
    let parameters = text.matches('?').count();
    for before in text.split('?').take(parameters) {
        // A number compared with a text does not find its rows by an index.
        explain = if before.ends_with("WHERE id = ") {
            explain.bind(1)
        } else {
            explain.bind("1")
        };
    }
    let rows = explain.fetch_all(session).await;
    rows.unwrap_or_else(|error| panic!("{file}: {text}\n{error}"))
}

#[tokio::test]
async fn every_statement_of_mysql_can_be_prepared() {
    let fresh = mariadb::fresh().await;
    let mut tx = fresh.begin().await;
    for (file, text) in statements("mysql") {
        mysql_plan(mysql_session(&mut *tx), &file, &text).await;
    }
    tx.rollback().await.unwrap();
    fresh.finish().await;
}

#[tokio::test]
async fn no_statement_of_a_batch_scans_a_table_of_mysql() {
    let fresh = mariadb::fresh().await;
    let mut tx = fresh.begin().await;
    let mut steps = 0;
    for (file, text) in statements("mysql") {
        let is_whole = MARIADB_WHOLE.iter().any(|whole| text.starts_with(whole));
        let is_whole = is_whole || is_of_an_operator(&text);
        if !INDEXED.contains(&&*file) || is_whole {
            continue;
        }
        for step in mysql_plan(mysql_session(&mut *tx), &file, &text).await {
            let cell = |name: &str| {
                let text = step.get_unchecked::<Option<String>, _>(name);
                text.unwrap_or_default()
            };
            let (table, how, reference) = (cell("table"), cell("type"), cell("ref"));
            let is_set = cell("Extra").contains("Table function: json_table")
                || table.is_empty()
                || table.starts_with('<');
            // By the role alone it would go through all that a role has ever claimed.
            let by_role_alone = ["claim", "parked"].contains(&&*table)
                && cell("key") == "PRIMARY"
                && !reference.contains(',');
            let scans = ["ALL", "index"].contains(&&*how) && !is_set;
            assert!(
                !scans && !by_role_alone,
                "{file}: {text}\n{table} by {how} {} ({reference}) {}",
                cell("key"),
                cell("Extra")
            );
            steps += 1;
        }
    }
    assert!(steps > 80, "{steps} steps");
    tx.rollback().await.unwrap();
    fresh.finish().await;
}
