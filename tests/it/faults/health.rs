//! `orderonce health`, `/live` and `/ready`, and what is said of servers that cannot be used.

use super::site;
use crate::servers::Servers;
use crate::site::{Site, until};
use rustix::process::Signal;
use serde_json::Value;
use std::process::Output;

fn health(site: &Site, args: &[&str]) -> (Option<i32>, Value) {
    let args = [&["--report", "json", "health"], args].concat();
    let Output { status, stdout, .. } = site.run(&args);
    (
        status.code(),
        serde_json::from_slice(&stdout).unwrap_or_default(),
    )
}

/// State and reason of a dependency.
fn of<'h>(health: &'h Value, name: &str) -> (&'h str, &'h str) {
    let dependencies = health["dependencies"].as_array().unwrap();
    let dependency = dependencies.iter().find(|d| {
        let found = d["name"].as_str().unwrap();
        found.starts_with(name)
    });
    let dependency = dependency.unwrap_or_else(|| panic!("no {name} in {health:#}"));
    let text = |key: &str| dependency[key].as_str().unwrap_or_default();
    (text("state"), text("detail"))
}

#[tokio::test]
async fn health_follows_database_and_broker() {
    let Some(servers) = Servers::turn().await else {
        return;
    };
    let port = fastrand::u16(33_000..40_000);
    let more = format!("health.listen = \"127.0.0.1:{port}\"\nhealth.interval_seconds = 0.1");
    let site = site(&servers, "postgres", &more).await;
    let (code, said) = health(&site, &[]);
    assert_eq!(
        (code, &said["state"]),
        (Some(0), &"ready".into()),
        "{said:#}"
    );
    assert!(!said.to_string().contains("secret"), "{said:#}");
    let (code, _) = health(&site, &["--running"]);
    assert_eq!(code, Some(3), "nobody serves yet");

    let mut serving = site.serve(&[], &[]);
    serving.says("started").await;
    let is = async |state: &str| {
        until(&format!("health is {state}"), async || {
            health(&site, &["--running"]).1["state"] == state
        })
        .await;
    };
    is("ready").await;

    servers.stop("postgres");
    is("unavailable").await;
    let (code, said) = health(&site, &["--running"]);
    assert_eq!(code, Some(3));
    assert_eq!(of(&said, "database").0, "down");
    let (code, said) = health(&site, &[]);
    assert_eq!(code, Some(3));
    let (state, why) = of(&said, "database");
    assert_eq!(state, "down");
    assert!(
        why.contains("nothing answers at postgres://orderonce:***@"),
        "{why}"
    );
    assert!(why.contains("store.url"), "{why}");
    servers.start("postgres");
    is("ready").await;

    servers.stop("rabbitmq");
    is("unavailable").await;
    assert_eq!(of(&health(&site, &["--running"]).1, "broker").0, "down");
    let (_, said) = health(&site, &[]);
    let (state, why) = of(&said, "broker");
    assert_eq!(state, "down");
    assert!(why.contains("amqp://orderonce:***@"), "{why}");
    assert!(why.contains("broker.url"), "{why}");
    servers.start("rabbitmq");
    is("ready").await;
    serving.stops(Signal::TERM).await;
}

#[tokio::test]
async fn what_cannot_be_used_is_named_with_its_key_and_the_remedy() {
    let Some(servers) = Servers::turn().await else {
        return;
    };
    let site = site(&servers, "postgres", "").await;
    let config = &site.deployment().config;
    let (store, broker) = (config.store.url.as_str(), config.broker.url.as_str());
    let mariadb = servers.start("mariadb");
    let of_mariadb = format!("{mariadb}nowhere");
    let change = |url: &str, from: &str, to: &str| {
        assert!(url.contains(from), "{url}");
        url.replace(from, to)
    };
    let name = store.rsplit_once('/').unwrap().1;
    // The flag, the URL, the command, the exit code, and what is said.
    let table = [
        (
            "--store",
            change(store, "secret", "wrong"),
            "reconcile",
            3,
            ["store.url", "orderonce:***@", "password"],
        ),
        (
            "--store",
            change(store, name, "nowhere"),
            "reconcile",
            3,
            ["store.url", "nowhere", "create it"],
        ),
        (
            "--store",
            change(store, name, "postgres"),
            "reconcile",
            3,
            ["schema", "migration 0", "orderonce migrate"],
        ),
        (
            "--store",
            change(&format!("{mariadb}mysql"), "secret", "wrong"),
            "reconcile",
            3,
            ["store.url", "orderonce:***@", "password"],
        ),
        (
            "--store",
            of_mariadb,
            "reconcile",
            3,
            ["store.url", "nowhere", "create it"],
        ),
        (
            "--store",
            "postgres://orderonce:secret@127.0.0.1:1/x".to_owned(),
            "serve",
            3,
            ["store.url", "***", "start the server"],
        ),
        (
            "--store",
            "mysql://orderonce:secret@127.0.0.1:1/x".to_owned(),
            "serve",
            3,
            ["store.url", "***", "start the server"],
        ),
        (
            "--broker",
            change(broker, "secret", "wrong"),
            "serve",
            3,
            ["broker.url", "orderonce:***@", "password"],
        ),
        (
            "--broker",
            change(broker, "%2f", "nowhere"),
            "serve",
            3,
            ["broker.url", "nowhere", "vhost"],
        ),
        (
            "--broker",
            "amqp://orderonce:secret@127.0.0.1:1/%2f".to_owned(),
            "serve",
            3,
            ["broker.url", "***", "start"],
        ),
        (
            "--broker",
            "kafka://x".to_owned(),
            "serve",
            2,
            ["broker.url", "kafka://x", "amqp://"],
        ),
    ];
    for (flag, url, command, code, says) in table {
        let output = site.run(&[flag, &url, command]);
        let said = String::from_utf8(output.stderr).unwrap();
        let last = said.lines().last().unwrap_or_default();
        assert_eq!(output.status.code(), Some(code), "{url}: {said}");
        for text in says {
            assert!(last.contains(text), "{url}: {text:?} is not in {last:?}");
        }
        assert!(!said.contains("secret"), "{said}");
    }
}
