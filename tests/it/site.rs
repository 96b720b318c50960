//! A place where the real binary runs: a configuration file, a database, and the processes on it.

use crate::sql;
use orderonce::broker::{Broker, Publication, Topology};
use orderonce::config::Config;
use orderonce::domain::RoleName;
use orderonce::ops::deployment::Deployment;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use sqlx::sqlite::SqliteConnection;
use std::cell::Cell;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Output, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// The longest that anything is waited for.
const PATIENCE: Duration = Duration::from_secs(180);

/// How often is looked whether what is waited for has happened.
const LOOK: Duration = Duration::from_millis(10);

/// Short leases, since whoever holds one may be killed, and a janitor that is quick.
const CONFIG: &str = r#"broker.lease_seconds = 0.3
broker.poll_seconds = 0.01
relay.lease_seconds = 0.3
relay.poll_seconds = 0.01
janitor.interval_seconds = 0.05
janitor.lease_seconds = 0.3
log.format = "json"
"#;

/// Waits until a condition holds; fails if that takes too long.
pub(crate) async fn until(what: &str, mut condition: impl AsyncFnMut() -> bool) {
    let started = Instant::now();
    while !condition().await {
        let waited = started.elapsed();
        assert!(waited < PATIENCE, "waited {waited:?} until {what}");
        tokio::time::sleep(LOOK).await;
    }
}

/// A database and a broker with the configuration that describes them.
pub(crate) struct Site {
    deployment: Deployment,
    broker: Arc<dyn Broker>,
    /// Where the tables are read past the program.
    tables: String,
    processes: Cell<u32>,
    /// Configuration and logs.
    scratch: TempDir,
}

impl Site {
    /// A fresh one; `more` goes before what it says of the same keys.
    pub(crate) async fn new(more: &str) -> Self {
        let scratch = tempfile::tempdir().unwrap();
        let database = scratch.path().join("orderonce.db");
        Self::at(database, scratch, more).await
    }

    /// A fresh one whose database is in a directory of somebody else's.
    pub(crate) async fn with_database_in(directory: &Path, more: &str) -> Self {
        let scratch = tempfile::tempdir().unwrap();
        Self::at(directory.join("orderonce.db"), scratch, more).await
    }

    async fn at(database: PathBuf, scratch: TempDir, more: &str) -> Self {
        Self::of(
            &format!("sqlite://{}", database.display()),
            "embedded:",
            scratch,
            more,
        )
        .await
    }

    /// One on servers: a fresh database on that of `store`, which is a URL without a database at its
    /// end, and fresh queues on that of `broker`.
    pub(crate) async fn on_servers(store: &str, broker: &str, more: &str) -> Self {
        Self::through(&str::to_owned, store, broker, more).await
    }

    /// One on servers whose database the program reaches by another URL than the test itself.
    pub(crate) async fn through(
        url: &dyn Fn(&str) -> String,
        store: &str,
        broker: &str,
        more: &str,
    ) -> Self {
        let scratch = tempfile::tempdir().unwrap();
        let name = format!("site{:08x}", fastrand::u32(..));
        let tables = sql::create_database(store, &name).await;
        let more = format!("broker.prefix = \"{name}\"\n{more}");
        let mut site = Self::of(&url(&tables), broker, scratch, &more).await;
        site.tables = tables;
        site
    }

    async fn of(store: &str, broker: &str, scratch: TempDir, more: &str) -> Self {
        let file = scratch.path().join("orderonce.toml");
        let key = |line: &'static str| line.split_once(" = ").map_or(line, |(key, _)| key);
        let kept = CONFIG.lines().filter(|line| !more.contains(key(line)));
        let kept = kept.collect::<Vec<_>>().join("\n");
        let (store, broker) = (Value::from(store), Value::from(broker));
        let text = format!("store.url = {store}\nbroker.url = {broker}\n{kept}\n{more}\n");
        std::fs::write(&file, text).unwrap();
        let none: [(String, String); 0] = [];
        let config = Config::load(Some(&file), none, &[]).unwrap().config;
        let (deployment, _) = Deployment::migrate(&config, Topology::default())
            .await
            .unwrap();
        let broker = deployment.broker(Topology::default()).await.unwrap();
        let tables = deployment.config.store.url.as_str().to_owned();
        Self {
            tables,
            deployment,
            broker,
            processes: Cell::new(0),
            scratch,
        }
    }

    pub(crate) fn deployment(&self) -> &Deployment {
        &self.deployment
    }

    pub(crate) fn broker(&self) -> &dyn Broker {
        self.broker.as_ref()
    }

    pub(crate) async fn publish(&self, messages: &[Publication]) {
        let mut publisher = self.broker.publisher().await.unwrap();
        publisher.publish(messages).await.unwrap();
    }

    /// Starts `orderonce serve`.
    pub(crate) fn serve(&self, args: &[&str], variables: &[(&str, &str)]) -> Serving {
        let number = self.processes.get() + 1;
        self.processes.set(number);
        let log = self.scratch.path().join(format!("serve-{number}.log"));
        let child = self
            .command(&["serve"])
            .args(args)
            .envs(variables.iter().copied())
            .stdout(Stdio::null())
            .stderr(File::create(&log).unwrap())
            .spawn()
            .unwrap();
        Serving { child, log }
    }

    /// Runs another command to its end.
    pub(crate) fn run(&self, args: &[&str]) -> Output {
        self.command(args).output().unwrap()
    }

    pub(crate) fn command(&self, args: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_orderonce"));
        command
            .arg("--config")
            .arg(self.scratch.path().join("orderonce.toml"))
            .args(args)
            .env_clear()
            .stdin(Stdio::null());
        command
    }

    /// Whether queues, outbox and parked events are empty, all at one moment: between two looks a
    /// message may move from where one has yet to look to where one has looked.
    pub(crate) async fn is_settled(&self) -> bool {
        const LEFT: &str = "
            SELECT (SELECT count(*) FROM outbox) + (SELECT count(*) FROM parked_event)";
        const OF_ALL: &str = "
            SELECT (SELECT count(*) FROM queue_message)
                + (SELECT count(*) FROM outbox) + (SELECT count(*) FROM parked_event)";
        if self.is_embedded() {
            return self.number(OF_ALL).await == 0;
        }
        // Nothing leaves a queue before its effects are in the tables: if the tables hold nothing
        // before and after the queues were seen empty, all is settled.
        self.number(LEFT).await == 0 && self.queued().await == 0 && self.number(LEFT).await == 0
    }

    /// Messages in the queues of the roles.
    pub(crate) async fn queued(&self) -> u64 {
        let mut queued = 0;
        for role in &RoleName::BUILT_IN {
            let depth = self.broker.depth(role).await;
            // A broker that is away may hold anything.
            queued += depth
                .map_or(u64::MAX, |depth| depth.total())
                .min(u64::MAX / 8);
        }
        queued
    }

    pub(crate) fn is_embedded(&self) -> bool {
        self.deployment.queue().is_some()
    }

    /// Serves until all is settled, and stops.
    pub(crate) async fn serve_to_the_end(&self) {
        loop {
            let mut serving = self.serve(&[], &[]);
            serving.settles(self).await;
            serving.stops(Signal::TERM).await;
            // What RabbitMQ had delivered and a worker had in hand was not seen.
            if self.is_settled().await {
                return;
            }
        }
    }

    /// Reconciles, and expects that nothing differs.
    pub(crate) fn reconciles(&self) {
        let output = self.run(&["reconcile", "--report", "json"]);
        let said = String::from_utf8_lossy(&output.stderr);
        let report = String::from_utf8_lossy(&output.stdout);
        assert_eq!(output.status.code(), Some(0), "{report}{said}");
        let report: Value = serde_json::from_str(&report).unwrap();
        assert_eq!(report["differences"], 0, "{report:#}");
    }

    /// The URL of the tables past the program.
    pub(crate) fn tables(&self) -> &str {
        &self.tables
    }

    /// Reads rows past the program.
    pub(crate) async fn rows<T: sql::Row>(&self, select: &'static str) -> Vec<T> {
        sql::rows(&self.tables, select).await
    }

    /// Reads one number past the program.
    pub(crate) async fn number(&self, select: &'static str) -> i64 {
        let rows: Vec<(i64,)> = self.rows(select).await;
        rows[0].0
    }

    /// Another program's connection to the database file.
    pub(crate) async fn stranger(&self) -> SqliteConnection {
        sql::open_file(&self.tables).await
    }
}

/// A process that serves.
pub(crate) struct Serving {
    child: Child,
    log: PathBuf,
}

impl Serving {
    /// Waits until it has said something in its log.
    pub(crate) async fn says(&mut self, text: &str) {
        until(&format!("{text:?} is logged"), async || {
            self.is_alive();
            self.log().contains(text)
        })
        .await;
    }

    pub(crate) fn log(&self) -> String {
        String::from_utf8_lossy(&std::fs::read(&self.log).unwrap()).into_owned()
    }

    /// Waits until all is settled.
    pub(crate) async fn settles(&mut self, site: &Site) {
        until("all is settled", async || {
            self.is_alive();
            site.is_settled().await
        })
        .await;
    }

    /// Expects that it has not ended by itself.
    pub(crate) fn is_alive(&mut self) {
        if let Some(status) = self.has_ended() {
            panic!("ended with {status}: {}", self.last_words());
        }
    }

    /// Whether SIGSTOP has stopped it.
    pub(crate) fn is_stopped(&self) -> bool {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", self.child.id()));
        // The state follows the name, which is in parentheses.
        let stat = stat.unwrap_or_default();
        stat.rsplit_once(") ")
            .is_some_and(|(_, rest)| rest.starts_with('T'))
    }

    pub(crate) fn has_ended(&mut self) -> Option<ExitStatus> {
        self.child.try_wait().unwrap()
    }

    /// Waits for its end.
    pub(crate) async fn ends(&mut self) -> ExitStatus {
        let mut status = None;
        until("the process has ended", async || {
            status = self.has_ended();
            status.is_some()
        })
        .await;
        status.unwrap()
    }

    pub(crate) fn signal(&self, signal: Signal) {
        let pid = Pid::from_raw(self.child.id().try_into().unwrap()).unwrap();
        kill_process(pid, signal).unwrap();
    }

    /// Asks it to stop, and expects that it does so without complaint.
    pub(crate) async fn stops(&mut self, signal: Signal) {
        self.signal(signal);
        let status = self.ends().await;
        assert_eq!(status.code(), Some(0), "{status}: {}", self.last_words());
    }

    pub(crate) fn last_words(&self) -> String {
        let log = self.log();
        let lines: Vec<_> = log.lines().collect();
        lines[lines.len().saturating_sub(10)..].join("\n")
    }
}

/// A test that fails leaves no process behind.
impl Drop for Serving {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
