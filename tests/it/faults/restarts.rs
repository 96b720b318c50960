//! Servers that are restarted and killed.

use super::{DATABASES, SMALL_BATCHES, go_on, site, stands_still};
use crate::day::Day;
use crate::servers::Servers;
use crate::site::{Serving, Site};
use orderonce::testkit::kill;
use rustix::process::Signal;

const CLAIMS: &str = "SELECT count(*) FROM idempotent_record";

/// What is done to a server.
#[derive(Debug, Clone, Copy)]
enum Fault {
    Restart,
    Kill,
}

const FAULTS: [Fault; 2] = [Fault::Restart, Fault::Kill];

impl Fault {
    fn strike(self, servers: &Servers, name: &str) {
        match self {
            Self::Restart => servers.restart(name),
            Self::Kill => {
                servers.kill(name);
                servers.start(name);
            }
        }
    }
}

/// Waits until a process has claimed something since `before`.
async fn works(serving: &mut Serving, site: &Site, before: i64) {
    crate::site::until("work goes on", async || {
        serving.is_alive();
        site.number(CLAIMS).await > before
    })
    .await;
}

#[tokio::test]
async fn rabbitmq_may_come_and_go_while_it_is_idle_or_busy() {
    let Some(servers) = Servers::turn().await else {
        return;
    };
    let site = site(&servers, "postgres", SMALL_BATCHES).await;
    let day = Day::of_year(300);
    day.stock_up(&site).await;
    let mut rng = fastrand::Rng::with_seed(11);
    let mut serving = site.serve(&[], &[]);
    serving.says("started").await;
    for (fault, parts) in FAULTS.iter().zip(day.parts(2, &mut rng)) {
        // Idle, then in the middle of consuming and publishing.
        fault.strike(&servers, "rabbitmq");
        let before = site.number(CLAIMS).await;
        site.publish(&parts).await;
        works(&mut serving, &site, before).await;
        fault.strike(&servers, "rabbitmq");
        serving.settles(&site).await;
    }
    serving.stops(Signal::TERM).await;
    site.serve_to_the_end().await;
    day.happened_once(&site).await;
    assert_eq!(site.number("SELECT count(*) FROM dead_letter").await, 0);
}

#[tokio::test]
async fn rabbitmq_may_come_and_go_in_the_middle_of_publishing() {
    let Some(servers) = Servers::turn().await else {
        return;
    };
    let site = site(&servers, "postgres", SMALL_BATCHES).await;
    let day = Day::of_year(120);
    day.stock_up(&site).await;
    let mut rng = fastrand::Rng::with_seed(12);
    let points = ["relay_read:3", "relay_published:3"];
    let faults = points.iter().flat_map(|at| FAULTS.map(|fault| (at, fault)));
    for ((at, fault), part) in faults.zip(day.parts(4, &mut rng)) {
        site.publish(&part).await;
        let mut serving = site.serve(&[], &[(kill::STOP_AT, at)]);
        stands_still(&mut serving).await;
        fault.strike(&servers, "rabbitmq");
        go_on(&serving);
        serving.settles(&site).await;
        serving.stops(Signal::TERM).await;
    }
    site.serve_to_the_end().await;
    day.happened_once(&site).await;
}

#[tokio::test]
async fn a_database_may_come_and_go_while_it_is_busy() {
    let Some(servers) = Servers::turn().await else {
        return;
    };
    for database in DATABASES {
        let site = site(&servers, database, SMALL_BATCHES).await;
        let day = Day::of_year(300);
        day.stock_up(&site).await;
        let mut rng = fastrand::Rng::with_seed(13);
        let mut serving = site.serve(&[], &[]);
        serving.says("started").await;
        for (fault, part) in FAULTS.iter().cycle().zip(day.parts(6, &mut rng)) {
            let before = site.number(CLAIMS).await;
            site.publish(&part).await;
            works(&mut serving, &site, before).await;
            fault.strike(&servers, database);
        }
        serving.settles(&site).await;
        serving.stops(Signal::TERM).await;
        site.serve_to_the_end().await;
        day.happened_once(&site).await;
        assert_eq!(site.number("SELECT count(*) FROM dead_letter").await, 0);
    }
}

#[tokio::test]
async fn a_database_that_is_away_costs_time_and_nothing_else() {
    let Some(servers) = Servers::turn().await else {
        return;
    };
    for database in DATABASES {
        // A limit that would be reached soon if a delivery that could not be decided counted.
        let site = site(&servers, database, "broker.delivery_limit = 3").await;
        let day = Day::first(40);
        day.stock_up(&site).await;
        let mut serving = site.serve(&[], &[]);
        serving.says("started").await;
        servers.stop(database);
        site.publish(&day.messages()).await;
        serving.says("waiting for it to come back").await;
        // Long enough for each role to have tried many times.
        tokio::time::sleep(std::time::Duration::from_secs(8)).await;
        serving.is_alive();
        servers.start(database);
        serving.says("it is back").await;
        serving.settles(&site).await;
        serving.stops(Signal::TERM).await;
        site.serve_to_the_end().await;
        day.happened_once(&site).await;
        assert_eq!(site.number("SELECT count(*) FROM dead_letter").await, 0);
    }
}
