//! The demo of the embedded path, on servers.

use super::DATABASES;
use crate::servers::Servers;
use crate::sql;
use serde_json::Value;
use std::process::{Command, Stdio};

#[tokio::test]
async fn the_day_happens_once_on_servers() {
    let Some(servers) = Servers::turn().await else {
        return;
    };
    for database in DATABASES {
        let store = servers.start(database);
        let name = format!("demo{:08x}", fastrand::u32(..));
        let store = sql::create_database(&store, &name).await;
        let broker = servers.start("rabbitmq");
        let scratch = tempfile::tempdir().unwrap();
        let demo = |seed: &str| {
            Command::new(env!("CARGO_BIN_EXE_orderonce"))
                .args(["--store", &store, "--broker", &broker, "--report", "json"])
                .args(["demo", "--kills", "3", "--seed", seed])
                .env_clear()
                .env("TMPDIR", scratch.path())
                .current_dir(scratch.path())
                .stdin(Stdio::null())
                .output()
                .unwrap()
        };
        let output = demo("7");
        assert_eq!(output.status.code(), Some(0), "{output:?}");
        let report: Value = serde_json::from_slice(&output.stdout).unwrap();
        assert_eq!(report["differences"], 0, "{report:#}");
        assert_eq!(report["orders"], 136, "{report:#}");
        assert_eq!(report["kills"], 3, "{report:#}");
        for at_least_one in ["applied", "duplicate", "parked"] {
            assert!(
                report["outcomes"][at_least_one].as_u64().unwrap() > 0,
                "{report:#}"
            );
        }

        // Its queues are gone, and a second day does not go on top of the first.
        let queues = servers.rabbitmqctl(&["--quiet", "list_queues", "name"]);
        assert!(!queues.contains("demo"), "{queues}");
        let again = demo("8");
        assert_eq!(again.status.code(), Some(2), "{again:?}");
        let said = String::from_utf8(again.stderr).unwrap();
        assert!(said.contains("the demo needs an empty one"), "{said}");
    }
}
