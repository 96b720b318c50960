//! The real binary, used as a person would use it: every command, its output in text and JSON, and
//! its exit code.

use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};
use sqlx::sqlite::{SqliteConnectOptions, SqliteConnection};
use sqlx::{AssertSqlSafe, Connection};
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};
use tempfile::TempDir;

const PROGRAM: &str = env!("CARGO_BIN_EXE_orderonce");
const FIRST_DAY: &str = concat!(
    env!("CARGO_MANIFEST_DIR"),
    "/tests/data/online-retail-2010-12-01.csv"
);
const HEADER: &str =
    "InvoiceNo,StockCode,Description,Quantity,InvoiceDate,UnitPrice,CustomerID,Country\n";

/// A working directory with nothing in it, and no variables but those that are needed.
struct Desk {
    dir: TempDir,
}

/// What a command said, and how it ended.
#[derive(Debug)]
struct Said {
    code: i32,
    out: String,
    err: String,
}

impl Desk {
    fn new() -> Self {
        Self {
            dir: TempDir::new().unwrap(),
        }
    }

    /// With a database, at the place where it is expected.
    fn with_database() -> Self {
        let desk = Self::new();
        desk.run("migrate").expect(0);
        desk
    }

    fn command(&self, args: &[&str]) -> Command {
        let mut command = Command::new(PROGRAM);
        command
            .args(args)
            .current_dir(self.dir.path())
            .env_clear()
            .env("USER", "ann")
            .env("ORDERONCE__BROKER__POLL_SECONDS", "0.01")
            .env("ORDERONCE__RELAY__POLL_SECONDS", "0.01")
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        command
    }

    /// Runs a command whose arguments hold no spaces.
    fn run(&self, args: &str) -> Said {
        let args: Vec<_> = args.split_whitespace().collect();
        self.run_args(&args)
    }

    fn run_args(&self, args: &[&str]) -> Said {
        Said::of(self.command(args).output().unwrap())
    }

    /// Runs a command that reads standard input.
    fn feed(&self, args: &str, input: &[u8]) -> Said {
        let args: Vec<_> = args.split_whitespace().collect();
        let mut child = self.command(&args).stdin(Stdio::piped()).spawn().unwrap();
        let mut stdin = child.stdin.take().unwrap();
        // A command that refuses its arguments reads nothing.
        let _ = stdin.write_all(input);
        drop(stdin);
        Said::of(child.wait_with_output().unwrap())
    }

    fn write(&self, name: &str, text: impl AsRef<[u8]>) -> PathBuf {
        let path = self.dir.path().join(name);
        std::fs::write(&path, text).unwrap();
        path
    }

    async fn connect(&self) -> SqliteConnection {
        let path = self.dir.path().join("orderonce.db");
        let options = SqliteConnectOptions::new().filename(path);
        SqliteConnection::connect_with(&options).await.unwrap()
    }

    async fn sql(&self, text: &str) {
        let mut connection = self.connect().await;
        let statement = sqlx::raw_sql(AssertSqlSafe(text.to_owned()));
        statement.execute(&mut connection).await.unwrap();
        connection.close().await.unwrap();
    }

    async fn count(&self, sql: &'static str) -> i64 {
        let mut connection = self.connect().await;
        let count = sqlx::query_scalar(sql).fetch_one(&mut connection).await;
        connection.close().await.unwrap();
        count.unwrap()
    }

    /// Serves until nothing is left in queues and outbox.
    async fn settle(&self) {
        // What is acknowledged has committed what follows from it, so both are empty only at the end.
        const LEFT: &str = "SELECT (SELECT count(*) FROM queue_message WHERE acked_at IS NULL)
            + (SELECT count(*) FROM outbox)";
        let log = std::fs::File::create(self.dir.path().join("serve.log")).unwrap();
        let serve = self.command(&["serve"]).stderr(log).spawn().unwrap();
        let mut workers = Workers(serve);
        let patience = Instant::now() + Duration::from_secs(60);
        while self.count(LEFT).await > 0 {
            assert!(Instant::now() < patience, "the queues never became empty");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        assert_eq!(workers.stop(), Some(0));
    }

    /// The messages that wait for a role, in order.
    async fn queued(&self, role: &str) -> Vec<String> {
        let mut connection = self.connect().await;
        let queued =
            sqlx::query_scalar("SELECT message_id FROM queue_message WHERE queue = ?1 ORDER BY id")
                .bind(role)
                .fetch_all(&mut connection)
                .await;
        connection.close().await.unwrap();
        queued.unwrap()
    }
}

/// A `serve` that is ended with the test.
struct Workers(Child);

impl Workers {
    fn stop(&mut self) -> Option<i32> {
        let pid = Pid::from_raw(self.0.id().try_into().unwrap()).unwrap();
        kill_process(pid, Signal::TERM).unwrap();
        self.0.wait().unwrap().code()
    }
}

impl Drop for Workers {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Said {
    fn of(output: Output) -> Self {
        let said = Self {
            code: output.status.code().expect("an exit code, not a signal"),
            out: String::from_utf8(output.stdout).unwrap(),
            err: String::from_utf8(output.stderr).unwrap(),
        };
        assert!(!said.err.contains("panicked"), "{said:?}");
        assert!(!said.out.contains("hunter2"), "{said:?}");
        assert!(!said.err.contains("hunter2"), "{said:?}");
        said
    }

    /// The same, if it ended with this code.
    #[track_caller]
    fn expect(self, code: i32) -> Self {
        assert_eq!(self.code, code, "{self:?}");
        self
    }

    /// The same, if this stands in one line on standard error, which is all that is there.
    #[track_caller]
    fn complains(self, code: i32, what: &str) -> Self {
        let said = self.expect(code);
        assert!(said.err.contains(what), "{said:?}");
        assert!(said.err.starts_with("orderonce: "), "{said:?}");
        assert_eq!(said.err.lines().count(), 1, "{said:?}");
        said
    }

    #[track_caller]
    fn tells(self, what: &str) -> Self {
        assert!(self.out.contains(what), "{what:?} is not in {}", self.out);
        self
    }

    #[track_caller]
    fn json(&self) -> Value {
        serde_json::from_str(&self.out).unwrap_or_else(|error| panic!("{error}: {self:?}"))
    }
}

fn event(id: &str, event_type: &str, data: &Value) -> String {
    let subject = data.get("order_id").or_else(|| data.get("sku_id"));
    json!({
        "specversion": "1.0", "id": id, "source": "shop", "type": event_type,
        "subject": subject.and_then(Value::as_str).unwrap_or("U1"), "data": data,
    })
    .to_string()
}

fn create(order_id: &str, qty: i64) -> String {
    let line = json!({"sku_id": "S1", "qty": qty, "unit_price_minor": 500});
    let data = json!({"order_id": order_id, "user_id": "U1", "currency": "GBP",
        "total_minor": 500 * qty, "lines": [line]});
    event(&format!("create-{order_id}"), "order.create", &data)
}

fn stock(units: i64) -> String {
    let data = json!({"adjustment_id": "J1", "sku_id": "S1", "change": units});
    event("stock-S1", "stock.adjust", &data)
}

fn pay(order_id: &str, trade_no: &str, amount_minor: i64) -> String {
    let data = json!({"order_id": order_id, "provider": "alipay", "trade_no": trade_no,
        "amount_minor": amount_minor, "currency": "GBP"});
    event(
        &format!("pay-{trade_no}-{amount_minor}"),
        "payment.succeeded",
        &data,
    )
}

fn lines(messages: &[String]) -> Vec<u8> {
    (messages.join("\n") + "\n").into_bytes()
}

// Help and usage.

#[test]
fn the_help_of_every_command_says_what_a_newcomer_needs() {
    let table = [
        (
            "",
            &["orderonce demo", "Exit codes: 0 fine", "reconcile"][..],
        ),
        ("demo", &["--duplicates", "--kills", "--seed", "--keep day"]),
        (
            "bench layers",
            &[
                "--duplicates",
                "must hold no claims before",
                "Deliveries come from memory",
                "only when database and Redis are on this machine and nothing else runs",
                "gate.redis_url",
            ],
        ),
        ("serve", &["SIGTERM", "orderonce migrate", "--role"]),
        ("migrate", &["sqlite:///var/lib/shop/orderonce.db migrate"]),
        ("config", &["check", "show", "example"]),
        ("config check", &["--config"]),
        ("config show", &["secrets are masked"]),
        ("config example", &["commented configuration file"]),
        (
            "import",
            &[
                "InvoiceNo, StockCode, Quantity, InvoiceDate, UnitPrice and CustomerID",
                "--opening-stock",
                "- for standard input",
            ],
        ),
        (
            "send",
            &["\"specversion\":\"1.0\"", "--shuffle", "--repeat"],
        ),
        (
            "reconcile",
            &[
                "exits with 1 if anything differs",
                "--report json reconcile",
            ],
        ),
        ("explain", &["explain order:536365/order.create"]),
        ("dead", &["list", "show", "replay", "discard"]),
        ("dead list", &["--status", "parked_too_long", "--limit"]),
        ("dead show", &["bytes and headers"]),
        (
            "dead replay",
            &["--dry-run", "--as-new", "--actor ann", "orderonce serve"],
        ),
        ("dead discard", &["--reason"]),
        ("parked", &["list"]),
        ("parked list", &["--about", "nearest deadline"]),
        ("retention", &["status"]),
        ("retention status", &["retention.life_seconds"]),
    ];
    let desk = Desk::new();
    for (command, needs) in table {
        let said = desk.run(&format!("{command} --help")).expect(0);
        for need in needs
            .iter()
            .chain(&["Usage: orderonce", "--store", "--report"])
        {
            // Help is wrapped.
            let words = said.out.split_whitespace().collect::<Vec<_>>().join(" ");
            assert!(
                words.contains(need),
                "{need:?} is not in {command} --help: {}",
                said.out
            );
        }
    }
    desk.run("--version").expect(0).tells("orderonce 0.");
}

#[test]
fn what_is_no_command_or_flag_is_wrong_usage() {
    let desk = Desk::with_database();
    for args in [
        "",
        "serv",
        "demo --duplicates 1.5",
        "demo --kills -1",
        "bench",
        "bench layers --duplicates 0,1.5",
        "bench layers --deliveries 0",
        "bench layers --rounds 0",
        "serve --role cashier",
        "import day.csv",
        "import --format excel day.csv",
        "send",
        "send --repeat 0 x",
        "reconcile --limit 0",
        "explain",
        "dead replay",
        "dead replay x",
        "dead replay 1 --as-new",
        "dead replay --rejected order:O1/x",
        "dead discard 1",
        "dead list --status lost",
        "retention",
        "retention statsu",
        "dead list --reason tired",
        "--report yaml reconcile",
    ] {
        let said = desk.run(args).expect(2);
        assert_eq!(said.out, "", "{args}");
        assert!(said.err.contains("--help"), "{args}: {}", said.err);
    }
    let said = desk.run("dead list --reason tired");
    assert!(said.err.contains("possible values: malformed"), "{said:?}");
    desk.run("dead replay --rejected nokey --as-new --actor ann --reason x")
        .complains(2, "--rejected is \"nokey\", expected ROLE:KEY");
    desk.run("send no-such-file.jsonl")
        .complains(2, "no-such-file.jsonl cannot be read: No such file");
    desk.run("send .")
        .complains(2, ". cannot be read: it is a directory");
}

// The store.

const COMMANDS_ON_A_STORE: [&str; 9] = [
    "serve",
    "send -",
    "import --format online-retail -",
    "reconcile",
    "explain O1",
    "dead list",
    "dead replay 1",
    "dead discard 1 --reason x",
    "parked list",
];

#[test]
fn without_a_database_every_command_says_how_to_create_it() {
    let desk = Desk::new();
    for command in COMMANDS_ON_A_STORE {
        desk.run(command).complains(
            2,
            "there is no database at orderonce.db, create it with `orderonce migrate`",
        );
    }
    let files = std::fs::read_dir(desk.dir.path()).unwrap().count();
    assert_eq!(files, 0, "nothing was created on the way");
}

#[test]
fn a_second_migration_changes_nothing() {
    let desk = Desk::new();
    let first = desk
        .run("migrate")
        .expect(0)
        .tells("applied migration 0001\n");
    assert!(
        first.out.ends_with("orderonce.db is up to date\n"),
        "{first:?}"
    );
    let second = desk.run("migrate").expect(0);
    assert_eq!(second.out, "orderonce.db is up to date\n");
    let json = desk.run("--report json migrate").expect(0).json();
    assert_eq!(json, json!({"database": "orderonce.db", "applied": []}));

    let elsewhere = desk.run("--report json --store sqlite://other.db migrate");
    let json = elsewhere.expect(0).json();
    assert_eq!(json["database"], "other.db");
    assert_eq!(json["applied"][0], 1);
    assert!(desk.dir.path().join("other.db").exists());
}

#[test]
fn a_store_that_cannot_be_used_is_named_with_the_remedy() {
    let desk = Desk::new();
    std::fs::create_dir(desk.dir.path().join("dir")).unwrap();
    desk.write(
        "text.db",
        "this is a text, and no database at all\n".repeat(100),
    );
    let table = [
        (
            "sqlite://dir",
            "dir is a directory, store.url needs the path of a file in it",
        ),
        (
            "sqlite://no/such/x.db",
            "the directory no/such does not exist, create it or change store.url",
        ),
        (
            "sqlite://text.db",
            "text.db is not a SQLite database, move it away or change store.url",
        ),
        (
            "text.db",
            "--store: store.url is `text.db`, expected a URL of the form sqlite://PATH",
        ),
        (
            "oracle://app:hunter2@db/o",
            "--store: store.url is `oracle://app:***@db/o`, expected a URL",
        ),
    ];
    let before = std::fs::read(desk.dir.path().join("text.db")).unwrap();
    for (store, complaint) in table {
        for command in ["migrate", "reconcile"] {
            desk.run(&format!("--store {store} {command}"))
                .complains(2, complaint);
        }
    }
    let after = std::fs::read(desk.dir.path().join("text.db")).unwrap();
    assert_eq!(after, before, "what is no database is left alone");
}

#[test]
fn a_store_that_cannot_be_written_is_named() {
    use std::os::unix::fs::PermissionsExt;
    use std::os::unix::process::CommandExt;

    let desk = Desk::with_database();
    let set = |path: &Path, mode| {
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap();
    };
    let file = desk.dir.path().join("orderonce.db");
    set(&file, 0o444);
    set(desk.dir.path(), 0o555);
    let is_root = rustix::process::geteuid().is_root();
    let run = |args: &[&str]| {
        let mut command = desk.command(args);
        if is_root {
            // The superuser may write anything.
            command.uid(65_534).gid(65_534);
        }
        command.output()
    };
    // The program itself may lie where only its owner can read.
    let can_run = run(&["--version"]).is_ok_and(|output| output.status.success());
    if can_run {
        for command in ["migrate", "reconcile"] {
            Said::of(run(&[command]).unwrap()).complains(
                2,
                "orderonce.db cannot be written, give this user the right to write the file and its directory",
            );
        }
    } else {
        eprintln!("skipped: another user cannot run {PROGRAM}");
    }
    set(desk.dir.path(), 0o755);
}

#[tokio::test]
async fn a_store_that_another_process_has_locked_is_unreachable() {
    let desk = Desk::with_database();
    let mut holder = desk.connect().await;
    let lock = sqlx::raw_sql("BEGIN IMMEDIATE").execute(&mut holder).await;
    lock.unwrap();
    for args in [&["reconcile"][..], &["migrate"], &["send", "-"]] {
        let mut command = desk.command(args);
        command.env("ORDERONCE__STORE__BUSY_TIMEOUT_SECONDS", "0.05");
        Said::of(command.output().unwrap()).complains(
            3,
            "orderonce.db is locked by another process, stop that process or try again later",
        );
    }
    holder.close().await.unwrap();
    desk.run("reconcile").expect(0);
}

#[tokio::test]
async fn a_store_of_a_newer_program_is_left_alone() {
    let desk = Desk::with_database();
    desk.sql(
        "INSERT INTO _sqlx_migrations (version, description, success, checksum, execution_time)
        VALUES (9999, 'of the future', 1, x'00', 0)",
    )
    .await;
    for command in ["reconcile", "migrate", "serve"] {
        desk.run(command).complains(
            3,
            "the schema of orderonce.db is at migration 9999, this program knows only up to ",
        );
    }
}

#[tokio::test]
async fn a_store_of_an_older_program_says_how_to_bring_it_up_to_date() {
    let desk = Desk::new();
    desk.write("orderonce.db", "");
    desk.run("reconcile")
        .complains(3, "is at migration 0, this program needs ")
        .complains(3, "run `orderonce migrate`");
    desk.run("migrate").expect(0);
    desk.run("reconcile").expect(0);
}

// The configuration.

#[test]
fn a_configuration_with_three_errors_lists_all_of_them() {
    let desk = Desk::new();
    desk.write("shop.toml", "[batch]\nmax = 0\n\n[stoer]\nurl = 'x'\n");
    let check = |report: &str| {
        let args = format!("--config shop.toml --report {report} config check");
        let args: Vec<_> = args.split(' ').collect();
        let mut command = desk.command(&args);
        command.env("ORDERONCE__LOG__FORMAT", "xml");
        Said::of(command.output().unwrap()).expect(2)
    };
    let text = check("text");
    assert_eq!(text.out, "");
    assert_eq!(
        text.err,
        "orderonce: shop.toml: unknown key stoer.url, did you mean store.url?\n\
         shop.toml: batch.max is `0`, expected an integer from 1 to 4096\n\
         ORDERONCE__LOG__FORMAT: log.format is `xml`, expected pretty or json\n"
    );
    let json = check("json").json();
    assert_eq!(json.as_array().unwrap().len(), 3);
    assert_eq!(json[1]["key"], "batch.max");
    assert_eq!(json[1]["value"], "0");
    assert_eq!(json[1]["expected"], "an integer from 1 to 4096");
    assert_eq!(json[1]["origin"], "shop.toml");
    // Every other command says the same and does nothing.
    let said = desk.run("--config shop.toml migrate").expect(2);
    assert!(said.err.contains("batch.max is `0`"), "{said:?}");
    assert!(!desk.dir.path().join("orderonce.db").exists());
    desk.run("--config none.toml config check")
        .complains(2, "none.toml: cannot be read: No such file");
}

#[test]
fn a_configuration_that_is_right_is_said_to_be() {
    let desk = Desk::new();
    let said = desk.run("config check").expect(0);
    assert!(
        said.out.starts_with("the configuration is valid ("),
        "{said:?}"
    );
    let json = desk.run("--report json config check").expect(0).json();
    assert!(json["keys"].as_u64().unwrap() > 20);
}

#[test]
fn every_value_is_shown_with_its_origin_and_no_password() {
    let desk = Desk::new();
    desk.write(
        "orderonce.toml",
        "batch.max = 7\nrelay.window = 9\n[store]\nurl = 'sqlite://app:hunter2@file.db'\n",
    );
    let show = |report: &str| {
        let mut command = desk.command(&["--report", report, "config", "show"]);
        command.env("ORDERONCE__RELAY__WINDOW", "10");
        Said::of(command.output().unwrap()).expect(0)
    };
    let text = show("text");
    let row = |key: &str| -> Vec<String> {
        let mut rows = text.out.lines();
        let row = rows.find(|line| line.starts_with(key)).unwrap();
        row.split_whitespace().take(3).map(str::to_owned).collect()
    };
    assert_eq!(
        row("store.url"),
        ["store.url", "sqlite://app:***@file.db", "orderonce.toml"]
    );
    assert_eq!(row("batch.max"), ["batch.max", "7", "orderonce.toml"]);
    assert_eq!(
        row("relay.window"),
        ["relay.window", "10", "ORDERONCE__RELAY__WINDOW"]
    );
    assert_eq!(row("janitor.batch"), ["janitor.batch", "256", "default"]);

    let json = show("json").json();
    let entry = |key: &str| {
        let mut entries = json.as_array().unwrap().iter();
        entries.find(|entry| entry["key"] == key).unwrap().clone()
    };
    assert_eq!(entry("store.url")["value"], "sqlite://app:***@file.db");
    assert_eq!(entry("relay.window")["origin"], "ORDERONCE__RELAY__WINDOW");
    let said = desk.run("--store sqlite://flag.db config show").expect(0);
    assert!(said.out.contains("--store"), "{said:?}");
}

#[test]
fn the_example_is_a_configuration_file_that_changes_nothing() {
    let desk = Desk::new();
    let example = desk.run("config example").expect(0).out;
    let file = concat!(env!("CARGO_MANIFEST_DIR"), "/src/orderonce.example.toml");
    assert_eq!(example, std::fs::read_to_string(file).unwrap());
    desk.write("orderonce.toml", &example);
    desk.run("config check").expect(0);
}

// Import and send.

#[tokio::test]
async fn a_day_of_a_shop_is_imported_and_a_second_time_to_no_effect() {
    let desk = Desk::with_database();
    let args =
        format!("--report json import --format online-retail {FIRST_DAY} --opening-stock 5000");
    let report = desk.run(&args).expect(0).json();
    assert_eq!(report["lines"], 3_108);
    assert_eq!(report["skipped"], json!([]));
    let published: u64 = { report["messages"].as_object().unwrap().values() }
        .map(|count| count.as_u64().unwrap())
        .sum();
    let queued = desk.count("SELECT count(*) FROM queue_message").await;
    assert_eq!(u64::try_from(queued), Ok(published));
    let again = desk.run(&args).expect(0).json();
    assert_eq!(again, report);
    desk.settle().await;
    let orders = desk
        .count("SELECT count(*) FROM orders WHERE status = 'COMPLETED'")
        .await;
    assert_eq!(
        u64::try_from(orders).unwrap(),
        report["orders"].as_u64().unwrap()
    );
    let said = desk.run("reconcile").expect(0);
    assert!(said.out.ends_with("differences: 0\n"), "{said:?}");
}

#[test]
fn a_row_that_is_broken_is_reported_and_the_rest_is_imported() {
    let desk = Desk::with_database();
    let csv = format!(
        "{HEADER}\
         1,A1,MUG,2,2010-12-01 08:26:00,2.55,17850,United Kingdom\n\
         2,A1,MUG,two,2010-12-01 08:27:00,2.55,17850,United Kingdom\n\
         3,A1,MUG,1,2010-12-01 08:28:00,2.55,17850\n"
    );
    desk.write("day.csv", &csv);
    let text = desk.run("import --format online-retail day.csv").expect(1);
    let text = text.tells("3 lines: 1 of goods, 0 of charges, 2 left out\n");
    let text = text.tells("1 order.create\n");
    text.tells(
        "line 3 of invoice 2 was left out: Quantity \"two\" is not a whole number other than 0\n",
    )
    .tells("line 4 of invoice 3 was left out: has 7 fields instead of 8\n");
    let json = desk.feed(
        "--report json import --format online-retail -",
        csv.as_bytes(),
    );
    let json = json.expect(1).json();
    assert_eq!(json["orders"], 1);
    assert_eq!(json["skipped"][0]["line"], 3);
    assert_eq!(json["skipped"][0]["invoice"], "2");
}

#[test]
fn a_file_that_cannot_be_imported_is_told_from_one_that_cannot_be_read() {
    let desk = Desk::with_database();
    desk.write("columns.csv", "InvoiceNo,StockCode,Price\n1,A1,2\n");
    desk.write("empty.csv", "");
    let import = |file: &str| desk.run(&format!("import --format online-retail {file}"));
    let complaint = "the header lacks Quantity, InvoiceDate, UnitPrice, CustomerID, it has";
    let said = import("columns.csv").expect(1);
    assert!(said.err.contains(complaint), "{said:?}");
    let said = import("empty.csv").expect(1);
    assert!(
        said.err.contains("the file is empty, expected a header"),
        "{said:?}"
    );
    import("none.csv").complains(2, "none.csv cannot be read: No such file");
    import(".").complains(2, ". cannot be read: it is a directory");
}

#[tokio::test]
async fn good_lines_are_sent_and_bad_ones_listed() {
    let desk = Desk::with_database();
    let notice = event("n-1", "order.paid", &json!({"order_id": "O1"}));
    let unknown = event("u-1", "order.teleport", &json!({"order_id": "O1"}));
    let text = format!(
        "{}\r\n\n{{\"id\": 5\n{unknown}\n{notice}\n   \n{}",
        create("O1", 1),
        create("O2", 1)
    );
    desk.write("messages.jsonl", &text);
    let said = desk.run("send messages.jsonl").expect(1);
    let said = said.tells("read 5 lines, sent 3 messages\n");
    said.tells("line 3 was not sent: message is not JSON: EOF")
        .tells("line 4 was not sent: no queue is bound to type order.teleport\n");
    assert_eq!(desk.queued("order").await, ["create-O1", "create-O2"]);

    let json = desk.feed("--report json send - --repeat 2", text.as_bytes());
    let json = json.expect(1).json();
    assert_eq!((&json["lines"], &json["sent"]), (&json!(5), &json!(6)));
    let refused: Vec<_> = { json["refused"].as_array().unwrap().iter() }
        .map(|refused| refused["line"].as_u64().unwrap())
        .collect();
    assert_eq!(refused, [3, 4]);
    let good = desk.feed("send -", create("O3", 1).as_bytes()).expect(0);
    assert_eq!(good.out, "read 1 lines, sent 1 messages\n");
}

#[tokio::test]
async fn shuffling_follows_from_its_number() {
    let order = async |seed: &str| {
        let desk = Desk::with_database();
        let messages: Vec<_> = (0..20).map(|n| create(&format!("O{n}"), 1)).collect();
        desk.feed(&format!("send - --repeat 2 {seed}"), &lines(&messages))
            .expect(0);
        desk.queued("order").await
    };
    let (plain, first) = (order("").await, order("--shuffle 7").await);
    assert_eq!(order("--shuffle 7").await, first);
    assert_ne!(order("--shuffle 8").await, first);
    assert_ne!(plain, first);
    let sorted = |mut ids: Vec<String>| {
        ids.sort();
        ids
    };
    assert_eq!(plain.len(), 40);
    assert_eq!(sorted(plain), sorted(first));
}

// After work was done.

#[tokio::test]
async fn a_difference_is_found_and_told_with_both_figures() {
    let desk = Desk::with_database();
    let messages = [stock(10), create("O1", 2), pay("O1", "T1", 1000)];
    desk.feed("send - --repeat 3", &lines(&messages)).expect(0);
    desk.settle().await;
    let clean = desk.run("reconcile").expect(0);
    assert!(clean.out.ends_with("checks, differences: 0\n"), "{clean:?}");
    assert_eq!(clean.out.lines().count(), 1);
    let json = desk.run("--report json reconcile").expect(0).json();
    assert_eq!(json["differences"], 0);

    desk.sql("UPDATE stock SET available = 9 WHERE sku_id = 'S1'")
        .await;
    let said = desk.run("reconcile").expect(1);
    let said = said.tells("stock_available: opening stock and all flows of a SKU add up");
    let row = said
        .out
        .lines()
        .find(|line| line.starts_with("  SKU S1"))
        .unwrap();
    let cells: Vec<_> = row.split_whitespace().collect();
    assert_eq!(cells[..4], ["SKU", "S1", "8", "9"]);
    assert!(row.contains("deduction_flow of SKU S1"), "{row}");
    let json = desk
        .run("--report json reconcile --limit 1")
        .expect(1)
        .json();
    assert!(json["differences"].as_u64().unwrap() > 0);
}

#[tokio::test]
async fn a_repair_is_tried_out_made_and_told() {
    let desk = Desk::with_database();
    desk.run("reconcile --repair")
        .expect(0)
        .tells("nothing to repair\n");
    desk.run("reconcile --dry-run").expect(2);
    let messages = [stock(10), create("O1", 2), pay("O1", "T1", 1000)];
    desk.feed("send -", &lines(&messages)).expect(0);
    desk.settle().await;
    desk.sql(
        "INSERT INTO outbox (aggregate, event_type, message_id, message, created_at, retry_at, failures)
         VALUES ('O1', 'order.paid', 'm', x'7b7d', 1, 99999999999999, 3)",
    )
    .await;
    // What waits is a difference, until it is published.
    let tried = desk.run("reconcile --repair --dry-run").expect(1);
    tried
        .tells("would be done")
        .tells("outbox_stuck: nothing waits long");
    let json = desk.run("--report json reconcile --repair --dry-run");
    let json = json.expect(1).json();
    assert_eq!(json["repairs"][0]["what"], "make_due");
    assert_eq!(json["repairs"][0]["end"], "would_be_done");
    assert_eq!(json["differences"], 1);
    let made = desk.run("reconcile --repair --actor ann").expect(1);
    made.tells("due at once").tells("done");
    let again = desk.run("reconcile --repair").expect(1);
    again.tells("nothing to repair\n");
    desk.run("explain O1")
        .expect(0)
        .tells("make_due by ann: outbox row ");
    desk.settle().await;
    desk.run("reconcile --repair").expect(0);
}

#[tokio::test]
async fn the_life_of_an_order_is_explained_by_its_id_and_by_its_keys() {
    let desk = Desk::with_database();
    let messages = [stock(10), create("O1", 2), pay("O1", "T1", 1000)];
    desk.feed("send -", &lines(&messages)).expect(0);
    desk.settle().await;
    let said = desk.run("explain O1").expect(0);
    assert!(said.out.ends_with('\n'));
    let said = said.tells("order O1 of user U1: PAID, version 3\n");
    let said = said.tells("total 10.00 GBP, paid 10.00 GBP, refunded 0.00 GBP, stock DEDUCTED");
    said.tells("payment alipay/O1/SUCCEEDED/T1/payment.succeeded: applied")
        .tells("[message create-O1]");
    for key in [
        "O1/order.create",
        "order:O1/order.create",
        "inventory:O1/deduct",
    ] {
        let said = desk.run(&format!("explain {key}")).expect(0);
        assert!(said.out.contains("\n* "), "{said:?}");
    }
    desk.run("explain J1/adjust")
        .expect(0)
        .tells("inventory J1/adjust: applied");
    let json = desk.run("--report json explain O1").expect(0).json();
    assert_eq!(json["order"]["status"], "PAID");
    assert!(json["entries"].as_array().unwrap().len() > 5);
    desk.run("explain O404")
        .complains(1, "nothing is known of O404: no order has this id");
    desk.run("explain order:O404/order.ship")
        .complains(1, "nothing is known of order:O404/");
}

#[tokio::test]
async fn what_waits_is_listed_with_what_it_waits_for() {
    let desk = Desk::with_database();
    desk.run("parked list")
        .expect(0)
        .tells("nothing is parked\n");
    desk.feed("send -", pay("O9", "T9", 500).as_bytes())
        .expect(0);
    desk.settle().await;
    let said = desk.run("parked list").expect(0);
    said.tells("alipay/O9/SUCCEEDED/T9/payment.succeeded")
        .tells("order:O9:WAIT_PAY");
    let json = desk
        .run("--report json parked list --about O9")
        .expect(0)
        .json();
    assert_eq!(json["parked"][0]["awaits"], "order:O9:WAIT_PAY");
    assert_eq!(json["parked"][0]["event_type"], "payment.succeeded");
    desk.run("parked list --about O8")
        .expect(0)
        .tells("nothing is parked\n");
    // The order comes, and the payment with it.
    let messages = [stock(1), create("O9", 1)];
    desk.feed("send -", &lines(&messages)).expect(0);
    desk.settle().await;
    desk.run("parked list")
        .expect(0)
        .tells("nothing is parked\n");
    desk.run("explain O9")
        .expect(0)
        .tells("order O9 of user U1: PAID");
}

// Dead letters.

/// A desk on which a malformed message (1) and a conflict (2) have died.
async fn desk_with_dead_letters() -> Desk {
    let desk = Desk::with_database();
    // Red on a terminal that obeys.
    let malformed = event("bad-1", "order.ship", &json!({"order_id": "O1"}));
    let malformed = malformed.replace("{\"order_id\":\"O1\"}", "{\"order_id\":\"\\u001b[31m\"}");
    let other = create("O1", 2).replace("create-O1", "other-O1");
    for message in [stock(10), create("O1", 1), malformed, other] {
        desk.feed("send -", message.as_bytes()).expect(0);
        desk.settle().await;
    }
    desk
}

#[tokio::test]
async fn dead_letters_are_listed_shown_and_discarded() {
    let desk = desk_with_dead_letters().await;
    let said = desk.run("dead list").expect(0);
    let said = said.tells("data.order_id holds the control character U+001B");
    let said = said
        .tells("O1/order.create")
        .tells("the key is taken by other content");
    assert!(
        !said.out.contains('\u{1b}'),
        "a terminal is not given orders"
    );
    let json = desk.run("--report json dead list").expect(0).json();
    let letters = json["dead_letters"].as_array().unwrap();
    let of =
        |field: &str| -> Vec<_> { letters.iter().map(|letter| letter[field].clone()).collect() };
    assert_eq!(of("reason"), ["malformed", "conflict"]);
    assert_eq!(of("status"), ["DEAD", "DEAD"]);
    let only = desk.run("--report json dead list --reason conflict --role order --status dead");
    assert_eq!(only.expect(0).json()["dead_letters"][0]["id"], 2);
    desk.run("dead list --role account")
        .expect(0)
        .tells("no dead letters\n");

    let said = desk.run("dead show 1").expect(0);
    let said = said
        .tells("dead letter 1 of role order, DEAD\n")
        .tells("reason      malformed: ");
    said.tells("message id  bad-1\n")
        .tells("\"type\":\"order.ship\"");
    let json = desk.run("--report json dead show 2").expect(0).json();
    assert_eq!(json["key"], "O1/order.create");
    assert!(json["text"].as_str().unwrap().contains("other-O1"));
    let unknown = "there is no dead letter 99, `orderonce dead list` shows them";
    desk.run("dead show 99").complains(1, unknown);
    desk.run("dead discard 1 99 --reason x")
        .complains(1, unknown);

    // The number stands there twice, the letter is discarded once.
    let said = desk.run_args(&["dead", "discard", "1", "1", "--reason", "a test message"]);
    assert_eq!(said.expect(0).out, "dead letter 1, order was discarded\n");
    let said = desk.run("dead show 1").expect(0).tells("DISCARDED\n");
    said.tells("acted on by ann: a test message\n");
    let again = "dead letter 1 is DISCARDED, only one that is DEAD can be replayed or discarded";
    desk.run("dead discard 1 --reason x").complains(1, again);
    desk.run("dead replay 1").complains(1, again);
}

#[tokio::test]
async fn a_replay_is_tried_out_first_and_done_once() {
    let desk = desk_with_dead_letters().await;
    let said = desk.run("dead replay 1 2 --dry-run").expect(0);
    assert_eq!(
        said.out,
        "dead letter 1, order would be dead (malformed)\n\
         dead letter 2, order:O1/order.create would be conflict\n"
    );
    let json = desk
        .run("--report json dead replay 2 --dry-run")
        .expect(0)
        .json();
    assert_eq!(json["letters"][0]["would_be"], json!(["conflict"]));
    assert_eq!(desk.count("SELECT count(*) FROM outbox").await, 0);
    let before = desk
        .count("SELECT count(*) FROM dead_letter WHERE status = 'DEAD'")
        .await;
    assert_eq!(before, 2);

    let said = desk.run_args(&["dead", "replay", "1", "2", "2", "--reason", "mended"]);
    assert_eq!(
        said.expect(0).out,
        "dead letter 1, order was replayed\ndead letter 2, order:O1/order.create was replayed\n"
    );
    desk.run("dead replay 2")
        .complains(1, "dead letter 2 is REPLAYED, only one that is DEAD can be");
    desk.run("dead replay 99")
        .complains(1, "there is no dead letter 99");
    // Nothing was mended, so both die again and can be replayed again.
    desk.settle().await;
    let again = desk.count("SELECT count(*) FROM dead_letter WHERE status = 'DEAD' AND deaths = 2");
    assert_eq!(again.await, 2);
    desk.run("dead replay 2").expect(0);
    desk.run("reconcile").expect(0);
}

const AS_NEW: [&str; 5] = ["--as-new", "--actor", "bob", "--reason", "counted again"];

#[tokio::test]
async fn a_conflict_is_decided_anew_by_a_person_with_a_reason() {
    let desk = desk_with_dead_letters().await;
    // An adjustment whose number was given twice.
    let other = json!({"adjustment_id": "J1", "sku_id": "S2", "change": 5});
    desk.feed("send -", event("again", "stock.adjust", &other).as_bytes())
        .expect(0);
    desk.settle().await;
    let args = [&["dead", "replay", "3"][..], &AS_NEW, &["--dry-run"]].concat();
    let said = desk.run_args(&args).expect(0);
    assert_eq!(
        said.out,
        "dead letter 3, inventory:J1/adjust would be applied\n"
    );
    let args = [&["dead", "replay", "3"][..], &AS_NEW].concat();
    desk.run_args(&args).expect(0);
    desk.settle().await;
    let units = "SELECT sum(available) FROM stock WHERE sku_id = 'S2'";
    assert_eq!(desk.count(units).await, 5);
    let said = desk.run("dead show 3").expect(0).tells("REPLAYED");
    said.tells("acted on by bob: counted again\n");
    desk.run("reconcile").expect(0);
}

#[tokio::test]
async fn a_rejection_is_decided_anew_as_often_as_a_person_asks_for_it() {
    let desk = Desk::with_database();
    let take = |id: &str, units: i64| {
        let data = json!({"adjustment_id": id, "sku_id": "S1", "change": units});
        event(id, "stock.adjust", &data)
    };
    let serve = async |message: &str| {
        desk.feed("send -", message.as_bytes()).expect(0);
        desk.settle().await;
    };
    serve(&take("take", -7)).await;
    let rejected = "inventory:take/adjust";
    let replay = |more: &[&str]| {
        let args = [
            &["dead", "replay", "--rejected", rejected][..],
            &AS_NEW,
            more,
        ]
        .concat();
        desk.run_args(&args)
    };
    let letters = "SELECT count(*) FROM dead_letter";
    let said = replay(&["--dry-run"]).expect(0);
    assert_eq!(
        said.out,
        "inventory:take/adjust would be rejected (insufficient_stock)\n"
    );
    assert_eq!(desk.count(letters).await, 0, "a dry run writes nothing");

    // There is nothing yet, the second time there is too little, the third time enough.
    for units in [0, 3, 4] {
        if units > 0 {
            serve(&take(&format!("bring-{units}"), units)).await;
        }
        replay(&[])
            .expect(0)
            .tells("inventory:take/adjust was replayed\n");
        desk.settle().await;
    }
    assert_eq!(desk.count("SELECT available FROM stock").await, 0);
    assert_eq!(
        desk.count(letters).await,
        1,
        "with who asked for it, and why"
    );
    let flows = "SELECT count(*) FROM deduction_flow WHERE qty = -7";
    assert_eq!(desk.count(flows).await, 1);
    // Once more finds the flow.
    let said = replay(&["--dry-run"]).expect(0);
    assert_eq!(
        said.out,
        "inventory:take/adjust would be duplicate (flow)\n"
    );
    desk.run("reconcile").expect(0);

    let none = [
        &["dead", "replay", "--rejected", "order:O404/x"][..],
        &AS_NEW,
    ]
    .concat();
    desk.run_args(&none)
        .complains(1, "role order has rejected no event with key O404/x");
}

// Pipes.

#[tokio::test]
async fn workers_go_on_when_nobody_reads_their_log() {
    let desk = Desk::with_database();
    desk.feed("send -", stock(1).as_bytes()).expect(0);
    let mut serve = desk.command(&["serve"]).spawn().unwrap();
    drop(serve.stderr.take());
    let mut workers = Workers(serve);
    let patience = Instant::now() + Duration::from_secs(60);
    while desk.count("SELECT count(*) FROM stock").await == 0 {
        assert!(Instant::now() < patience, "the workers have stopped");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    assert_eq!(workers.stop(), Some(0));
}

#[test]
fn nobody_reading_any_more_is_no_panic() {
    let desk = Desk::new();
    for args in [&["config", "example"][..], &["config", "show"], &["--help"]] {
        let mut child = desk.command(args).spawn().unwrap();
        drop(child.stdout.take());
        let mut err = String::new();
        child
            .stderr
            .take()
            .unwrap()
            .read_to_string(&mut err)
            .unwrap();
        assert_eq!(err, "", "{args:?}");
        assert_eq!(child.wait().unwrap().code(), Some(0), "{args:?}");
    }
    // Nor is that nobody reads what is wrong.
    let mut child = desk.command(&["reconcile"]).spawn().unwrap();
    drop(child.stderr.take());
    assert_eq!(child.wait().unwrap().code(), Some(2));
}

#[test]
fn a_full_disk_under_standard_output_is_said() {
    let full = std::fs::File::options().write(true).open("/dev/full");
    let Ok(full) = full else {
        eprintln!("skipped: there is no /dev/full here");
        return;
    };
    let desk = Desk::new();
    let mut command = desk.command(&["config", "example"]);
    let said = Said::of(command.stdout(full).output().unwrap());
    said.complains(2, "No space left on device");
}

/// A manifest that names a file which is not there cannot be built from.
#[test]
fn the_image_is_built_with_a_stand_in_for_each_benchmark() {
    let manifest: toml::Table = include_str!("../../Cargo.toml").parse().unwrap();
    let mut named: Vec<_> = { manifest["bench"].as_array().unwrap().iter() }
        .map(|bench| bench["name"].as_str().unwrap())
        .collect();
    let image = include_str!("../../docker/Dockerfile");
    let (_, list) = image.split_once("for bench in ").unwrap();
    let (list, _) = list.split_once(';').unwrap();
    let mut made: Vec<_> = list.split(' ').collect();
    named.sort_unstable();
    made.sort_unstable();
    assert_eq!(made, named);
}
