//! SIGKILL of the workers.

use super::{DATABASES, SMALL_BATCHES, site};
use crate::day::Day;
use crate::servers::Servers;
use crate::site::{Serving, Site};
use orderonce::testkit::kill;
use orderonce::worker::Point;
use rustix::process::Signal;
use std::os::unix::process::ExitStatusExt;
use std::time::Duration;
use strum::IntoEnumIterator;

/// Which passages of a boundary are the last of a process.
const PASSAGES: [u64; 3] = [1, 2, 5];

/// Waits for the end of a process, and expects that it was killed.
async fn dies(serving: &mut Serving, why: &str) {
    let status = serving.ends().await;
    let signal = status.signal();
    assert_eq!(signal, Some(9), "{why}: {status}: {}", serving.last_words());
}

#[tokio::test]
async fn every_effect_happens_once_whoever_dies_wherever() {
    let Some(servers) = Servers::turn().await else {
        return;
    };
    // No message is to blame for these kills, however many of them it meets.
    let more = format!("{SMALL_BATCHES}\nbroker.delivery_limit = 1000");
    for database in DATABASES {
        let site = site(&servers, database, &more).await;
        let day = Day::of_year(420);
        day.stock_up(&site).await;
        let points: Vec<_> = Point::iter().collect();
        let ends = points
            .iter()
            .flat_map(|point| PASSAGES.map(|passage| format!("{point}:{passage}")));
        let mut rng = fastrand::Rng::with_seed(7);
        let parts = day.parts(points.len() * PASSAGES.len(), &mut rng);
        for (at, part) in ends.zip(&parts) {
            site.publish(part).await;
            let mut serving = site.serve(&[], &[(kill::AT, &at)]);
            dies(&mut serving, &at).await;
        }
        site.serve_to_the_end().await;
        day.happened_once(&site).await;
    }
}

#[tokio::test]
async fn every_effect_happens_once_over_a_hundred_kills() {
    const KILLS: usize = 100;
    let Some(servers) = Servers::turn().await else {
        return;
    };
    let seed = fastrand::u64(..);
    println!("seed {seed}");
    let mut rng = fastrand::Rng::with_seed(seed);
    let more = "batch.max = 64\nbatch.workers = 2\nbroker.delivery_limit = 1000";
    let site = site(&servers, "postgres", more).await;
    let day = Day::of_year(2_900);
    day.stock_up(&site).await;
    let mut published = 0;
    for part in day.parts(KILLS, &mut rng) {
        site.publish(&part).await;
        published += part.len();
        let mut serving = site.serve(&[], &[]);
        serving.says("started").await;
        tokio::time::sleep(Duration::from_millis(rng.u64(..500))).await;
        serving.signal(Signal::KILL);
        dies(&mut serving, "a random moment").await;
    }
    site.serve_to_the_end().await;
    day.happened_once(&site).await;
    // What the shop published and what the roles sent each other, each delivered at least once.
    let claims = claims(&site).await;
    let deliveries = published + usize::try_from(claims).unwrap();
    assert!(deliveries >= 20_000, "{deliveries} deliveries");
}

/// Claims of messages between the roles: every one was a delivery.
async fn claims(site: &Site) -> i64 {
    const CLAIMS: &str = "SELECT count(*) FROM idempotent_record WHERE message_id LIKE '%>%'";
    site.number(CLAIMS).await
}

#[tokio::test]
async fn a_message_that_kills_its_worker_ends_as_a_dead_letter_and_its_neighbours_do_not() {
    const LIMIT: usize = 6;
    const KILLER: &str = "order:536370/order.complete";
    let Some(servers) = Servers::turn().await else {
        return;
    };
    let limit = format!("broker.delivery_limit = {LIMIT}");
    let site = site(&servers, "postgres", &limit).await;
    let day = Day::first(30);
    day.stock_up(&site).await;
    site.publish(&day.messages()).await;

    let mut deaths = 0;
    loop {
        let mut serving = site.serve(&[], &[(kill::ON, KILLER)]);
        crate::site::until("it has died, or has nothing left to do", async || {
            serving.has_ended().is_some() || site.is_settled().await
        })
        .await;
        // Another death may be under way.
        let died = serving.has_ended();
        if died.is_none() {
            serving.stops(Signal::TERM).await;
            if site.is_settled().await {
                break;
            }
            continue;
        }
        deaths += 1;
        assert!(deaths <= 3 * LIMIT, "it never stopped dying");
    }
    assert!(deaths >= LIMIT, "{deaths} deaths");

    let dead: Vec<(String, String, i64)> = site
        .rows("SELECT role, reason, deliveries FROM dead_letter")
        .await;
    let [(role, reason, deliveries)] = &dead[..] else {
        panic!("{} dead letters: {dead:#?}", dead.len());
    };
    assert_eq!((role.as_str(), reason.as_str()), ("order", "crash_loop"));
    assert!(*deliveries > 1, "{deliveries}");
    let shown = site.run(&["dead", "show", "1"]);
    let shown = String::from_utf8(shown.stdout).unwrap();
    assert!(shown.contains("536370/order.complete"), "{shown}");

    // Once the worker can bear it, it is handed back.
    let replayed = site.run(&["dead", "replay", "1"]);
    assert!(replayed.status.success(), "{replayed:?}");
    site.serve_to_the_end().await;
    day.happened_once(&site).await;
}
