//! Random schedules against the model.
//!
//! They are always the same, so that a change is to blame for what it breaks. `ORDERONCE_SCHEDULES`
//! says how many, `ORDERONCE_SEED` replays one, or starts there if both are set.

use crate::{servers, sql};
use orderonce::testkit::schedule::{Failure, Summary, replay, run_many, run_many_on};
use orderonce::worker::Point;
use std::time::Instant;
use strum::IntoEnumIterator;

const SCHEDULES: u64 = 2_000;
const FIRST_SEED: u64 = 1;

#[test]
fn whatever_goes_wrong_every_schedule_ends_as_the_model_says() {
    let seed = setting("ORDERONCE_SEED");
    let count = setting("ORDERONCE_SCHEDULES");
    let started = Instant::now();
    let ran = match (seed, count) {
        (Some(seed), None) => replay(seed),
        (Some(seed), Some(count)) => run_many(seed, count),
        (None, count) => run_many(FIRST_SEED, count.unwrap_or(SCHEDULES)),
    };
    let summary = ran.unwrap_or_else(|failure| panic!("{failure}"));
    println!("{summary}in {:.1} s", started.elapsed().as_secs_f64());
    if summary.schedules >= SCHEDULES {
        assert_covered(&summary);
    }
}

/// On servers a schedule takes longer; there are fewer, and others than in files.
const ON_SERVERS: u64 = 150;
const FIRST_SEED_ON_SERVERS: u64 = 100_001;

/// Schedules at a time.
const DATABASES: usize = 4;

async fn every_schedule_ends_as_the_model_says_on(server: &str) {
    let mut databases = Vec::new();
    for _ in 0..DATABASES {
        let name = format!("schedule{:08x}", fastrand::u32(..));
        databases.push(sql::create_database(server, &name).await);
    }
    let count = setting("ORDERONCE_SCHEDULES").map_or(ON_SERVERS, |count| count.min(ON_SERVERS));
    let first = setting("ORDERONCE_SEED").unwrap_or(FIRST_SEED_ON_SERVERS);
    let run = move || run_many_on(&databases, first, count);
    let ran = tokio::task::spawn_blocking(run).await.unwrap();
    let summary = ran.unwrap_or_else(|failure| panic!("{failure}"));
    assert_eq!(summary.schedules, count);
}

#[tokio::test]
async fn every_schedule_ends_as_the_model_says_on_postgresql() {
    let server = servers::shared("ORDERONCE_TEST_POSTGRES_URL");
    every_schedule_ends_as_the_model_says_on(&server).await;
}

#[tokio::test]
async fn every_schedule_ends_as_the_model_says_on_mariadb() {
    let server = servers::shared("ORDERONCE_TEST_MARIADB_URL");
    every_schedule_ends_as_the_model_says_on(&server).await;
}

/// Schedules that no longer do what they are there for prove nothing.
fn assert_covered(summary: &Summary) {
    let outcomes = [
        "applied",
        "duplicate",
        "conflict",
        "parked",
        "stale",
        "rejected",
        "dead",
    ];
    let done = [
        "copy published",
        "expired by the clock",
        "given up",
        "handled late",
        "relay without the lease",
        "start of a process",
    ];
    let crashes = Point::iter().map(|point| format!("crash at {point}"));
    let expected = outcomes.into_iter().chain(done).map(str::to_owned);
    for what in expected.chain(crashes) {
        assert!(summary.counts.contains_key(&what), "never: {what}");
    }
}

#[test]
fn a_failure_says_how_to_replay_it() {
    let failure = Failure {
        seed: 7,
        problem: "stock differs".to_owned(),
        steps: (1..=70).map(|step| format!("step {step}")).collect(),
    };
    let text = failure.to_string();
    assert!(text.starts_with("... 10 steps before\nstep 11\n"), "{text}");
    assert!(
        text.ends_with(
            "step 70\n\nschedule 7: stock differs\n\n\
             ORDERONCE_SEED=7 ./tests/run -- schedules"
        ),
        "{text}"
    );
}

fn setting(name: &str) -> Option<u64> {
    let text = std::env::var(name).ok()?;
    let number = text.parse();
    Some(number.unwrap_or_else(|_| panic!("{name} is {text}, expected a number")))
}
