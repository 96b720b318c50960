//! The HTTP API, over real sockets to the real binary.

mod callbacks;
mod client;
mod described;
mod limits;
mod orders;
mod repeats;
mod stock;

use crate::site::{Serving, Site};
use client::Client;
use orderonce::http::auth::{Right, new_key};
use serde_json::Value;
use std::net::SocketAddr;
use strum::IntoEnumIterator;
use tempfile::TempDir;

/// A site whose processes answer HTTP, and the keys of two callers who may do everything and of one who may do
/// nothing.
struct Shop {
    site: Site,
    shop: String,
    till: String,
    nobody: String,
    _keys: TempDir,
}

impl Shop {
    /// In a file, with the embedded queue.
    async fn new(more: &str) -> Self {
        Self::on(more, async |more| Site::new(&more).await).await
    }

    /// On a server.
    async fn on_server(store: &str, broker: &str, more: &str) -> Self {
        Self::on(more, async |more| {
            Site::on_servers(store, broker, &more).await
        })
        .await
    }

    async fn on(more: &str, site: impl AsyncFnOnce(String) -> Site) -> Self {
        let rights: Vec<Right> = Right::iter().collect();
        let (shop, of_shop) = new_key("shop", &rights).unwrap();
        let (till, of_till) = new_key("till", &rights).unwrap();
        let (nobody, of_nobody) = new_key("nobody", &[]).unwrap();
        let keys = tempfile::tempdir().unwrap();
        let file = keys.path().join("keys.toml");
        std::fs::write(&file, [of_shop, of_till, of_nobody].join("\n")).unwrap();
        let rates = "http.rate_per_second = 1000000\nhttp.rate_burst = 1000000";
        let rates = if more.contains("http.rate") {
            ""
        } else {
            rates
        };
        let more = format!(
            "http.listen = \"127.0.0.1:0\"\nhttp.keys_file = '{}'\n{rates}\n{more}",
            file.display()
        );
        Self {
            site: site(more).await,
            shop,
            till,
            nobody,
            _keys: keys,
        }
    }

    /// Starts a process that answers HTTP and nothing else, and a caller of it.
    async fn open(&self) -> (Serving, Client) {
        self.open_with(&["--role", "api", "--no-relay", "--no-janitor"], &[])
            .await
    }

    /// Starts a process with everything.
    async fn open_all(&self) -> (Serving, Client) {
        self.open_with(&[], &[]).await
    }

    async fn open_with(&self, args: &[&str], variables: &[(&str, &str)]) -> (Serving, Client) {
        let mut serving = self.site.serve(args, variables);
        serving.says("answering /v1").await;
        let at = address(&serving.log());
        (serving, Client::new(at, &self.shop))
    }
}

/// Where a process answers, as its log says.
fn address(log: &str) -> SocketAddr {
    let mut lines = log
        .lines()
        .filter_map(|line| serde_json::from_str(line).ok());
    let line = lines.find(|line: &Value| line["message"] == "answering /v1");
    line.unwrap()["at"].as_str().unwrap().parse().unwrap()
}
