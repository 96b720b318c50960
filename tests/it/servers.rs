//! Servers that a test may kill, and those that it may not.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;
use tokio::sync::{Mutex, MutexGuard};

/// The URL of a server that all tests share.
pub(crate) fn shared(variable: &str) -> String {
    std::env::var(variable)
        .unwrap_or_else(|_| panic!("{variable} names no server, run the tests by ./tests/run"))
}

/// PostgreSQL, MariaDB and RabbitMQ for the tests that kill and restart them, one at a time.
pub(crate) struct Servers {
    directory: PathBuf,
    _turn: MutexGuard<'static, ()>,
}

impl Servers {
    /// Waits for this test's turn; `None` if this machine has no server programs of its own, which
    /// `./tests/run` says by a variable.
    pub(crate) async fn turn() -> Option<Self> {
        static TURN: Mutex<()> = Mutex::const_new(());
        static DIRECTORY: OnceLock<PathBuf> = OnceLock::new();
        if std::env::var_os("ORDERONCE_TEST_SERVERS").is_none() {
            eprintln!("skipped: it kills servers, and the tests have none of their own here");
            return None;
        }
        let turn = TURN.lock().await;
        let directory = DIRECTORY.get_or_init(|| {
            let prefix = tempfile::Builder::new().prefix("servers-").tempdir();
            prefix.unwrap().keep()
        });
        let servers = Self {
            directory: directory.clone(),
            _turn: turn,
        };
        Some(servers)
    }

    /// Starts a server, or starts it again with its data; returns its URL.
    pub(crate) fn start(&self, name: &str) -> String {
        self.run("start", &[name]);
        let env = std::fs::read_to_string(self.directory.join("env")).unwrap();
        let variable = match name {
            "rabbitmq" => "AMQP",
            other => &other.to_uppercase(),
        };
        let line = format!("export ORDERONCE_TEST_{variable}_URL=");
        let url = env.lines().find_map(|l| l.strip_prefix(&line));
        url.unwrap_or_else(|| panic!("no {name} in {env}"))
            .to_owned()
    }

    /// Ends a server as a crash does.
    pub(crate) fn kill(&self, name: &str) {
        self.run("kill", &[name]);
    }

    /// Stops a server in order and starts it again.
    pub(crate) fn restart(&self, name: &str) {
        self.run("restart", &[name]);
    }

    /// Stops a server in order.
    pub(crate) fn stop(&self, name: &str) {
        self.run("stop", &[name]);
    }

    /// What `rabbitmqctl` answers.
    pub(crate) fn rabbitmqctl(&self, args: &[&str]) -> String {
        self.run("ctl", args)
    }

    fn run(&self, verb: &str, args: &[&str]) -> String {
        run(verb, &self.directory, args)
    }
}

/// Runs the script that starts and stops servers.
pub(crate) fn run(verb: &str, directory: &Path, args: &[&str]) -> String {
    let output = Command::new(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/servers"))
        .arg(verb)
        .arg(directory)
        .args(args)
        .output()
        .unwrap();
    assert!(output.status.success(), "{verb} {args:?}: {output:?}");
    String::from_utf8(output.stdout).unwrap()
}
