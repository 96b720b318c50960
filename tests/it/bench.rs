//! `orderonce bench`: what is measured, on what, and what is refused.

use crate::{servers, sql};
use redis::Client;
use serde_json::Value;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use tempfile::TempDir;

/// The names of a cell's figures; a program that reads reports relies on them.
const FIGURES: [&str; 13] = [
    "applied",
    "cpu_machine_microseconds_per_delivery",
    "cpu_process_microseconds_per_delivery",
    "deliveries_per_second",
    "deliveries_per_second_by_round",
    "duplicates",
    "duplicates_share",
    "filter",
    "redis",
    "redis_commands_per_delivery",
    "rounds_without_redis",
    "spread_percent",
    "statements_per_delivery",
];

/// The names of a report's other parts.
const PARTS: [&str; 10] = [
    "batch_max",
    "cells",
    "database",
    "deliveries",
    "filter_keys",
    "redis",
    "rounds",
    "seconds",
    "seed",
    "workers",
];

/// `bench layers`, with a place of its own for temporary files, and settings by variables.
fn command(scratch: &TempDir, settings: &[(&str, &str)], args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_orderonce"));
    command
        .args(["bench", "layers"])
        .args(args)
        .env_clear()
        .envs(settings.iter().copied())
        .env("TMPDIR", scratch.path())
        .current_dir(scratch.path())
        .stdin(Stdio::null());
    command
}

fn bench(scratch: &TempDir, settings: &[(&str, &str)], args: &[&str]) -> Output {
    command(scratch, settings, args).output().unwrap()
}

/// Runs a measurement that must succeed, and returns its report.
fn report(scratch: &TempDir, settings: &[(&str, &str)], args: &[&str]) -> Value {
    let output = bench(scratch, settings, &[&["--report", "json"], args].concat());
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    serde_json::from_slice(&output.stdout).unwrap()
}

/// The cell with this share of duplicates and these layers.
fn cell(report: &Value, share: f64, filter: bool, redis: bool) -> &Value {
    let is_it = |cell: &&Value| {
        cell["duplicates_share"] == share && cell["filter"] == filter && cell["redis"] == redis
    };
    let cells = report["cells"].as_array().unwrap();
    cells.iter().find(is_it).unwrap()
}

fn names(value: &Value) -> Vec<&str> {
    let mut names: Vec<_> = value
        .as_object()
        .unwrap()
        .keys()
        .map(String::as_str)
        .collect();
    names.sort_unstable();
    names
}

fn copies(cell: &Value) -> u64 {
    let by_layer = cell["duplicates"].as_object().unwrap();
    by_layer.values().map(|count| count.as_u64().unwrap()).sum()
}

fn is_empty(directory: &Path) -> bool {
    std::fs::read_dir(directory).unwrap().next().is_none()
}

#[test]
fn without_redis_the_database_and_the_filter_are_measured_in_a_file_that_goes() {
    let scratch = tempfile::tempdir().unwrap();
    let args = ["--deliveries", "100", "--rounds", "2"];
    let report = report(&scratch, &[], &args);
    assert_eq!(names(&report), PARTS);
    assert_eq!(report["redis"], Value::Null);
    let cells = report["cells"].as_array().unwrap();
    assert_eq!(cells.len(), 10, "five shares, two choices of layers");
    for (share, orders) in [(0.0, 100), (0.01, 99), (0.1, 90), (0.5, 50), (0.9, 10)] {
        for filter in [false, true] {
            let cell = cell(&report, share, filter, false);
            assert_eq!(names(cell), FIGURES);
            assert_eq!(cell["applied"], orders, "{cell:#}");
            assert_eq!(copies(cell), 100 - orders, "{cell:#}");
            assert_eq!(cell["duplicates"]["gate"], 0, "the filter never decides");
            let rounds = cell["deliveries_per_second_by_round"].as_array().unwrap();
            assert_eq!(rounds.len(), 2);
            for at_least_some in [
                "deliveries_per_second",
                "statements_per_delivery",
                "cpu_process_microseconds_per_delivery",
            ] {
                assert!(cell[at_least_some].as_f64().unwrap() > 0.0, "{cell:#}");
            }
            assert_eq!(cell["redis_commands_per_delivery"], Value::Null);
        }
        // What the filter knows spares the database nothing.
        let (without, with) = (
            cell(&report, share, false, false),
            cell(&report, share, true, false),
        );
        assert_eq!(
            without["statements_per_delivery"],
            with["statements_per_delivery"]
        );
    }
    assert!(is_empty(scratch.path()));

    let output = bench(&scratch, &[], &args);
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    let text = String::from_utf8(output.stdout).unwrap();
    for share in ["0%", "1%", "10%", "50%", "90%"] {
        for layers in ["database only", "+ filter"] {
            let rows = text.lines().filter(|line| {
                line.trim_start().starts_with(&format!("{share} ")) && line.contains(layers)
            });
            assert_eq!(rows.count(), 1, "{share}, {layers}: {text}");
        }
    }
    assert!(
        text.contains("Redis: left out; ORDERONCE__GATE__REDIS_URL="),
        "{text}"
    );
    assert!(text.contains("every run took each order once"), "{text}");
    assert!(is_empty(scratch.path()));
}

#[tokio::test]
async fn on_servers_redis_saves_statements_and_keeps_no_keys() {
    let url = servers::shared("ORDERONCE_TEST_REDIS_URL");
    for variable in ["ORDERONCE_TEST_POSTGRES_URL", "ORDERONCE_TEST_MARIADB_URL"] {
        let scratch = tempfile::tempdir().unwrap();
        let name = format!("bench{:08x}", fastrand::u32(..));
        let store = sql::create_database(&servers::shared(variable), &name).await;
        let settings = [
            ("ORDERONCE__STORE__URL", store.as_str()),
            ("ORDERONCE__GATE__REDIS_URL", &url),
            ("ORDERONCE__GATE__TIMEOUT_SECONDS", "5"),
            ("ORDERONCE__GATE__NAMESPACE", &name),
            ("ORDERONCE__BATCH__MAX", "2"),
            ("ORDERONCE__BATCH__WORKERS", "2"),
        ];
        let args = [
            "--deliveries",
            "100",
            "--rounds",
            "1",
            "--duplicates",
            "0,0.9",
        ];
        let report = report(&scratch, &settings, &args);
        assert_eq!(report["cells"].as_array().unwrap().len(), 8, "{report:#}");
        assert!(!report.to_string().contains("secret"), "{report:#}");
        for filter in [false, true] {
            let (without, with) = (
                cell(&report, 0.9, filter, false),
                cell(&report, 0.9, filter, true),
            );
            for cell in [without, with] {
                assert_eq!(
                    (&cell["applied"], copies(cell)),
                    (&10.into(), 90),
                    "{cell:#}"
                );
                assert_eq!(cell["rounds_without_redis"], 0, "{cell:#}");
            }
            assert_eq!(without["duplicates"]["gate"], 0);
            assert!(with["duplicates"]["gate"].as_u64() > Some(0), "{with:#}");
            let statements = |cell: &Value| cell["statements_per_delivery"].as_f64().unwrap();
            assert!(
                statements(with) < statements(without),
                "{with:#} {without:#}"
            );
            assert!(
                with["redis_commands_per_delivery"].as_f64() > Some(0.0),
                "{with:#}"
            );
        }

        let mut redis = Client::open(url.as_str())
            .unwrap()
            .get_multiplexed_async_connection()
            .await
            .unwrap();
        let kept: Vec<String> = redis::cmd("KEYS")
            .arg(format!("{name}*"))
            .query_async(&mut redis)
            .await
            .unwrap();
        assert!(kept.is_empty(), "{} keys, such as {}", kept.len(), kept[0]);

        // A second measurement does not go on top of the first.
        let again = bench(&scratch, &settings, &args);
        assert_eq!(again.status.code(), Some(2), "{again:?}");
        let said = String::from_utf8(again.stderr).unwrap();
        assert!(
            said.contains("holds claims already, a measurement needs an empty one: create one"),
            "{said}"
        );
        assert!(!said.contains("secret"), "{said}");
    }
}

#[test]
fn what_a_file_was_filled_with_stays_and_a_second_measurement_is_refused() {
    let scratch = tempfile::tempdir().unwrap();
    let args = [
        "--store",
        "sqlite://kept.db",
        "--deliveries",
        "20",
        "--rounds",
        "1",
        "--duplicates",
        "0.5",
    ];
    report(&scratch, &[], &args);
    let kept = std::fs::read(scratch.path().join("kept.db")).unwrap();
    let again = bench(&scratch, &[], &args);
    assert_eq!(again.status.code(), Some(2), "{again:?}");
    let said = String::from_utf8(again.stderr).unwrap();
    assert_eq!(
        said,
        "orderonce: the database at sqlite://kept.db holds claims already, a measurement needs an empty \
         one: create one and name it with --store, or leave store.url unset for a temporary file\n"
    );
    assert!(again.stdout.is_empty());
    assert!(std::fs::read(scratch.path().join("kept.db")).unwrap() == kept);
}

#[test]
fn a_wrong_value_is_refused_and_named() {
    let scratch = tempfile::tempdir().unwrap();
    for (flag, value, expected) in [
        (
            "--duplicates",
            "1.5",
            "'1.5' for '--duplicates <P,...>': expected a number from 0 to 1",
        ),
        (
            "--duplicates",
            "0,x",
            "'x' for '--duplicates <P,...>': expected a number from 0 to 1",
        ),
        (
            "--deliveries",
            "0",
            "'0' for '--deliveries <N>': 0 is not in 1..=10000000",
        ),
        (
            "--rounds",
            "0",
            "'0' for '--rounds <N>': 0 is not in 1..=100",
        ),
    ] {
        let output = bench(&scratch, &[], &[flag, value]);
        let told = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(2), "{flag} {value}: {told}");
        let first = told.lines().next().unwrap_or_default();
        assert_eq!(first, format!("error: invalid value {expected}"));
    }
    assert!(is_empty(scratch.path()));
}

#[test]
fn a_redis_that_is_not_there_is_an_error_and_no_row() {
    let scratch = tempfile::tempdir().unwrap();
    let settings = [("ORDERONCE__GATE__REDIS_URL", "redis://:hunter2@127.0.0.1:1")];
    let output = bench(&scratch, &settings, &["--deliveries", "10"]);
    assert_eq!(output.status.code(), Some(3), "{output:?}");
    let told = String::from_utf8(output.stderr).unwrap();
    assert!(
        told.contains("Redis at redis://:***@127.0.0.1:1 cannot be used: "),
        "{told}"
    );
    assert!(
        told.contains("leave gate.redis_url empty to measure without it"),
        "{told}"
    );
    assert!(!told.contains("hunter2"), "{told}");
    assert!(output.stdout.is_empty());
    assert!(is_empty(scratch.path()));
}

/// Waits until the first run has begun.
fn begun(child: &mut Child) -> impl BufRead + use<> {
    let mut told = BufReader::new(child.stderr.take().unwrap());
    let mut line = String::new();
    while told.read_line(&mut line).unwrap() > 0 {
        if line.contains("measuring") {
            return told;
        }
    }
    panic!("it ended before it began: {line}");
}

#[test]
fn an_interrupted_measurement_leaves_nothing_behind() {
    let scratch = tempfile::tempdir().unwrap();
    let args = ["--deliveries", "5000", "--rounds", "100"];
    let mut command = command(&scratch, &[], &args);
    let mut child = command
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut told = begun(&mut child);
    let pid = rustix::process::Pid::from_child(&child);
    rustix::process::kill_process(pid, rustix::process::Signal::INT).unwrap();
    let mut rest = String::new();
    std::io::Read::read_to_string(&mut told, &mut rest).unwrap();
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(130), "{rest}");
    assert!(
        rest.contains("orderonce: stopped before the last run"),
        "{rest}"
    );
    assert!(output.stdout.is_empty());
    assert!(is_empty(scratch.path()));
}
