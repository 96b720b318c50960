//! Faults of the production path: the real binary on RabbitMQ with PostgreSQL or MariaDB, which are
//! killed, restarted and cut off while it works on real orders of which many come twice.
//!
//! The servers are this module's own. Each test waits for its turn, and ends with a reconciliation
//! without a difference and with every message of the shop claimed exactly once.

mod broker;
mod competing;
mod cuts;
mod demo;
mod gates;
mod health;
mod kills;
mod restarts;
mod stops;

use crate::servers::Servers;
use crate::site::{Serving, Site};
use rustix::process::Signal;

/// The databases, by the names of their servers.
const DATABASES: [&str; 2] = ["postgres", "mariadb"];

/// Small batches, so that each boundary is passed many times.
const SMALL_BATCHES: &str = "batch.max = 4\nrelay.window = 4";

/// A site on servers that are running.
async fn site(servers: &Servers, database: &str, more: &str) -> Site {
    let (store, broker) = (servers.start(database), servers.start("rabbitmq"));
    Site::on_servers(&store, &broker, more).await
}

/// Waits until a process has stopped at its point.
async fn stands_still(serving: &mut Serving) {
    crate::site::until("the process has stopped", async || {
        serving.is_alive();
        serving.is_stopped()
    })
    .await;
}

/// Lets a process go on that has stopped.
fn go_on(serving: &Serving) {
    serving.signal(Signal::CONT);
}
