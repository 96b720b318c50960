//! `orderonce demo`: the report, what it keeps, what follows from the seed, and wrong values.

use crate::day;
use serde_json::Value;
use sqlx::Connection;
use sqlx::sqlite::{SqliteConnectOptions, SqliteConnection};
use std::path::Path;
use std::process::{Command, Output, Stdio};
use tempfile::TempDir;

/// The program, with a place of its own for temporary files.
fn orderonce(scratch: &TempDir, args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_orderonce"))
        .args(args)
        .env_clear()
        .env("TMPDIR", scratch.path())
        .current_dir(scratch.path())
        .stdin(Stdio::null())
        .output()
        .unwrap()
}

/// Runs a demo that must succeed, and returns its report.
fn report(scratch: &TempDir, args: &[&str]) -> Value {
    let output = orderonce(scratch, &[&["demo", "--report", "json"], args].concat());
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    serde_json::from_slice(&output.stdout).unwrap()
}

fn count(report: &Value, path: &str) -> u64 {
    let count = report.pointer(path).and_then(Value::as_u64);
    count.unwrap_or_else(|| panic!("{path} in {report:#}"))
}

/// The ids of all messages that create orders, in the order of their deliveries to the queue; they
/// never wait for anything, so nobody but the shop publishes them.
async fn created(directory: &Path) -> Vec<String> {
    const CREATED: &str = "
        SELECT message_id FROM queue_message WHERE message_id LIKE '%/order.create' ORDER BY id";
    let file = SqliteConnectOptions::new().filename(directory.join("orderonce.db"));
    let mut connection = SqliteConnection::connect_with(&file).await.unwrap();
    let ids = sqlx::query_scalar(CREATED).fetch_all(&mut connection).await;
    connection.close().await.unwrap();
    ids.unwrap()
}

fn left_behind(scratch: &TempDir) -> Vec<String> {
    let entries = std::fs::read_dir(scratch.path()).unwrap();
    let names = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap());
    names.collect()
}

#[tokio::test]
async fn the_day_happens_once_and_follows_from_its_seed() {
    let scratch = tempfile::tempdir().unwrap();
    let report = report(&scratch, &["--seed", "7", "--kills", "3", "--keep", "kept"]);
    assert_eq!(count(&report, "/differences"), 0);
    assert_eq!(count(&report, "/kills"), 3);
    assert_eq!(count(&report, "/orders"), 136);
    for at_least_one in [
        "/messages",
        "/deliveries",
        "/outcomes/applied",
        "/outcomes/duplicate",
        "/outcomes/parked",
        "/naive/units_oversold",
        "/naive/points_over_credited",
        "/naive/money_over_credited_minor",
    ] {
        assert!(count(&report, at_least_one) > 0, "{at_least_one}");
    }
    for none in ["conflict", "stale", "rejected", "retried", "dead"] {
        assert_eq!(count(&report, &format!("/outcomes/{none}")), 0, "{none}");
    }
    assert!(count(&report, "/deliveries") > count(&report, "/messages"));
    assert!(report["seconds"].as_f64().unwrap() > 0.0);

    let store = &["--store", "sqlite://kept/orderonce.db"][..];
    let explained = orderonce(&scratch, &[store, &["explain", "536365"]].concat());
    assert!(explained.status.success(), "{explained:?}");
    let told = String::from_utf8(explained.stdout).unwrap();
    assert!(told.contains("COMPLETED"), "{told}");
    let reconciled = orderonce(&scratch, &[store, &["reconcile"]].concat());
    assert_eq!(reconciled.status.code(), Some(0), "{reconciled:?}");

    let again = self::report(
        &scratch,
        &["--seed", "7", "--kills", "0", "--keep", "again"],
    );
    for same in ["/orders", "/lines", "/messages", "/shop_messages"] {
        assert_eq!(count(&again, same), count(&report, same), "{same}");
    }
    let (first, second) = (scratch.path().join("kept"), scratch.path().join("again"));
    let (first, second) = (created(&first).await, created(&second).await);
    assert!(
        first.len() > 136,
        "{} orders, none of them twice",
        first.len()
    );
    assert_eq!(first, second);
}

#[test]
fn a_day_without_duplicates_and_kills_has_none_and_leaves_nothing_behind() {
    let scratch = tempfile::tempdir().unwrap();
    let quiet = ["--duplicates", "0", "--kills", "0", "--shuffle=false"];
    let report = report(&scratch, &quiet);
    assert_eq!(count(&report, "/differences"), 0);
    assert_eq!(count(&report, "/kills"), 0);
    assert_eq!(count(&report, "/outcomes/duplicate"), 0);
    assert_eq!(count(&report, "/interrupted"), 0);
    for naive in report["naive"].as_object().unwrap().keys() {
        assert_eq!(count(&report, &format!("/naive/{naive}")), 0, "{naive}");
    }
    assert!(left_behind(&scratch).is_empty());
}

#[test]
fn a_wrong_value_is_one_clear_sentence_with_its_exit_code() {
    let scratch = tempfile::tempdir().unwrap();
    let write = |name: &str, text: &str| {
        std::fs::write(scratch.path().join(name), text).unwrap();
    };
    write(
        "no-price.csv",
        &day::FILE.replacen(",UnitPrice", ",Price", 1),
    );
    write("empty.csv", "");
    std::fs::create_dir(scratch.path().join("used")).unwrap();
    write("used/orderonce.db", "");
    let before = left_behind(&scratch).len();

    for (args, code, sentence) in [
        (
            ["--duplicates", "2"],
            2,
            "error: invalid value '2' for '--duplicates <P>': expected a number from 0 to 1",
        ),
        (
            ["--kills", "-1"],
            2,
            "error: unexpected argument '-1' found",
        ),
        (
            ["--data", "no-price.csv"],
            1,
            "orderonce: the data cannot be used: the header lacks UnitPrice, it has [\"InvoiceNo\", \
             \"StockCode\", \"Description\", \"Quantity\", \"InvoiceDate\", \"Price\", \"CustomerID\", \
             \"Country\"]",
        ),
        (
            ["--data", "empty.csv"],
            1,
            "orderonce: the data cannot be used: the file is empty, expected a header with the columns \
             InvoiceNo, StockCode, Quantity, InvoiceDate, UnitPrice, CustomerID",
        ),
        (
            ["--data", "missing.csv"],
            2,
            "orderonce: reading missing.csv: No such file or directory (os error 2)",
        ),
        (
            ["--data", "used"],
            2,
            "orderonce: reading used: Is a directory (os error 21)",
        ),
        (
            ["--keep", "used"],
            2,
            "orderonce: used holds a database already, --keep needs a new directory",
        ),
        (
            ["--keep", "empty.csv"],
            2,
            "orderonce: creating empty.csv: File exists (os error 17)",
        ),
    ] {
        let output = orderonce(&scratch, &[&["demo", "--seed", "7"], &args[..]].concat());
        let told = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(code), "{args:?}: {told}");
        assert!(output.stdout.is_empty());
        let lines: Vec<_> = told
            .lines()
            .filter(|line| !line.starts_with("demo "))
            .collect();
        assert_eq!(lines.first(), Some(&sentence), "{args:?}: {told}");
    }
    assert_eq!(left_behind(&scratch).len(), before);
}
