//! SIGKILL of the real binary, at every boundary between two steps and at random moments, while it
//! works on real orders of which many come twice.

use crate::day::Day;
use crate::site::{Serving, Site};
use orderonce::testkit::kill;
use orderonce::worker::Point;
use rustix::process::Signal;
use std::os::unix::process::ExitStatusExt;
use std::time::Duration;
use strum::IntoEnumIterator;

/// Small batches, so that each boundary is passed many times.
const SMALL_BATCHES: &str = "batch.max = 8\nrelay.window = 8\nbroker.delivery_limit = 1000";

/// Which passages of a boundary are the last of a process.
const PASSAGES: [u64; 3] = [1, 2, 5];

/// Waits for the end of a process, and expects that it was killed.
async fn dies(serving: &mut Serving, why: &str) {
    let status = serving.ends().await;
    let signal = status.signal();
    assert_eq!(signal, Some(9), "{why}: {status}: {}", serving.last_words());
}

/// For each point: three processes that die there, each with more orders to work on, then one that
/// lives, and the books are right.
async fn every_effect_happens_once_whoever_dies_at(points: impl Iterator<Item = Point>) {
    for point in points {
        let site = Site::new(SMALL_BATCHES).await;
        let day = Day::first(30);
        day.stock_up(&site).await;
        let mut rng = fastrand::Rng::with_seed(7);
        for (part, passage) in day.parts(PASSAGES.len(), &mut rng).iter().zip(PASSAGES) {
            site.publish(part).await;
            let at = format!("{point}:{passage}");
            let mut serving = site.serve(&[], &[(kill::AT, &at)]);
            dies(&mut serving, &at).await;
        }
        site.serve_to_the_end().await;
        day.happened_once(&site).await;
    }
}

fn is_before_the_commit(point: &Point) -> bool {
    match point {
        Point::Received
        | Point::Decoded
        | Point::Keyed
        | Point::Asked
        | Point::Begun
        | Point::Claimed
        | Point::Loaded
        | Point::Decided
        | Point::Written => true,
        Point::Committed
        | Point::Settled
        | Point::RelayRead
        | Point::RelayPublished
        | Point::RelayRemoved => false,
    }
}

#[tokio::test]
async fn every_effect_happens_once_whoever_dies_before_the_commit() {
    let points = Point::iter().filter(is_before_the_commit);
    every_effect_happens_once_whoever_dies_at(points).await;
}

#[tokio::test]
async fn every_effect_happens_once_whoever_dies_after_the_commit_or_in_the_relay() {
    let points = Point::iter().filter(|point| !is_before_the_commit(point));
    every_effect_happens_once_whoever_dies_at(points).await;
}

#[tokio::test]
async fn every_effect_happens_once_whoever_dies_at_random_moments() {
    const KILLS: usize = 15;
    let seed = fastrand::u64(..);
    println!("seed {seed}");
    let mut rng = fastrand::Rng::with_seed(seed);
    let site = Site::new("batch.max = 16\nbroker.delivery_limit = 1000").await;
    let day = Day::whole();
    day.stock_up(&site).await;
    for part in day.parts(KILLS, &mut rng) {
        site.publish(&part).await;
        let mut serving = site.serve(&[], &[]);
        serving.says("started").await;
        tokio::time::sleep(Duration::from_millis(rng.u64(..150))).await;
        serving.signal(Signal::KILL);
        dies(&mut serving, "a random moment").await;
    }
    site.serve_to_the_end().await;
    day.happened_once(&site).await;
}

#[tokio::test]
async fn an_unknown_kill_point_is_refused_with_the_points_there_are() {
    let site = Site::new("").await;
    let mut serving = site.serve(&[], &[(kill::AT, "lunch")]);
    let status = serving.ends().await;
    assert_eq!(status.code(), Some(2));
    let log = serving.log();
    assert!(log.contains("ORDERONCE_KILL_AT is \"lunch\""), "{log}");
    assert!(log.contains("relay_published"), "{log}");
}
