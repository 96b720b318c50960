//! `orderonce serve`: stopping, sharing, and what a database that is away or a message that kills
//! costs: time, and nothing else.

use crate::day::Day;
use crate::site::{Serving, Site, until};
use orderonce::broker::Settlement;
use orderonce::domain::RoleName;
use orderonce::store;
use orderonce::testkit::kill;
use orderonce::worker::order::OrderRole;
use orderonce::worker::{Error, Processor};
use rustix::process::Signal;
use sqlx::sqlite::SqliteConnection;
use std::fs::File;
use std::io::{ErrorKind, Write};
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;
use tempfile::TempDir;

const CLAIMS: &str =
    "SELECT count(*) FROM idempotent_record WHERE message_id NOT LIKE 'inventory:%'";

/// A site with some orders, and a process that has begun to work on them in small batches.
async fn at_work(day: &Day, more: &str) -> (Site, Serving) {
    let site = Site::new(&format!("batch.max = 4\n{more}")).await;
    day.stock_up(&site).await;
    site.publish(&day.messages()).await;
    let mut serving = site.serve(&[], &[]);
    until("some messages are handled", async || {
        serving.is_alive();
        site.number(CLAIMS).await > 20
    })
    .await;
    (site, serving)
}

async fn a_stop_leaves_nothing_half_done(signal: Signal) {
    let day = Day::first(60);
    let (site, mut serving) = at_work(&day, "").await;
    serving.stops(signal).await;

    for (what, count) in [
        (
            "leased",
            "SELECT count(*) FROM queue_message WHERE leased = 1 OR unsettled > 0",
        ),
        ("in the outbox", "SELECT count(*) FROM outbox"),
        (
            "leases of a relay or a janitor",
            "SELECT count(*) FROM lease WHERE until > 0 AND name IN ('relay', 'janitor')",
        ),
    ] {
        assert_eq!(site.number(count).await, 0, "{what}");
    }
    let left = site.number("SELECT count(*) FROM queue_message").await;
    assert!(left > 0, "it was stopped when everything was done");
    site.serve_to_the_end().await;
    day.happened_once(&site).await;
}

#[tokio::test]
async fn sigterm_finishes_what_is_in_hand_and_leaves_nothing_half_done() {
    a_stop_leaves_nothing_half_done(Signal::TERM).await;
}

#[tokio::test]
async fn sigint_finishes_what_is_in_hand_and_leaves_nothing_half_done() {
    a_stop_leaves_nothing_half_done(Signal::INT).await;
}

async fn lock(site: &Site) -> SqliteConnection {
    let mut stranger = site.stranger().await;
    sqlx::query("BEGIN EXCLUSIVE")
        .execute(&mut stranger)
        .await
        .unwrap();
    stranger
}

async fn unlock(mut stranger: SqliteConnection) {
    sqlx::query("ROLLBACK")
        .execute(&mut stranger)
        .await
        .unwrap();
}

/// What is in hand cannot be finished while the database is locked, so only an abort ends it.
async fn a_second_signal_aborts(signal: Signal, code: i32) {
    let day = Day::first(60);
    let (site, mut serving) = at_work(&day, "").await;
    let locked = lock(&site).await;
    serving.signal(signal);
    serving.says("a second signal aborts").await;
    serving.is_alive();
    serving.signal(signal);
    assert_eq!(serving.ends().await.code(), Some(code));
    unlock(locked).await;
    site.serve_to_the_end().await;
    day.happened_once(&site).await;
}

#[tokio::test]
async fn a_second_sigterm_aborts_at_once_and_a_restart_loses_nothing() {
    a_second_signal_aborts(Signal::TERM, 143).await;
}

#[tokio::test]
async fn a_second_sigint_aborts_at_once_and_a_restart_loses_nothing() {
    a_second_signal_aborts(Signal::INT, 130).await;
}

#[tokio::test]
async fn a_role_alone_touches_its_queue_only() {
    let site = Site::new("").await;
    let day = Day::first(20);
    day.stock_up(&site).await;
    site.publish(&day.messages()).await;
    let mut serving = site.serve(&["--role", "inventory"], &[]);
    until("the role's queue is empty", async || {
        serving.is_alive();
        let broker = site.broker();
        broker.depth(&RoleName::INVENTORY).await.unwrap().total() == 0
    })
    .await;
    serving.stops(Signal::TERM).await;

    const OTHERS: &str = "SELECT count(*) FROM queue_message WHERE deliveries > 0";
    const OTHER_CLAIMS: &str = "SELECT count(*) FROM idempotent_record WHERE role <> 'inventory'";
    assert_eq!(site.number(OTHERS).await, 0);
    assert_eq!(site.number(OTHER_CLAIMS).await, 0);
    site.serve_to_the_end().await;
    day.happened_once(&site).await;
}

#[tokio::test]
async fn two_processes_on_one_file_share_the_work() {
    let site = Site::new("batch.max = 4").await;
    let day = Day::first(60);
    day.stock_up(&site).await;
    let mut both = [site.serve(&[], &[]), site.serve(&[], &[])];
    for serving in &mut both {
        serving.says("started").await;
    }
    let mut rng = fastrand::Rng::with_seed(7);
    for part in day.parts(6, &mut rng) {
        site.publish(&part).await;
    }
    for serving in &mut both {
        serving.settles(&site).await;
    }
    for serving in &mut both {
        serving.stops(Signal::TERM).await;
        assert!(
            serving.log().contains("\"settled\""),
            "one did all the work"
        );
    }
    day.happened_once(&site).await;
}

#[tokio::test]
async fn a_relay_by_itself_stops_without_waiting_for_roles() {
    let site = Site::new("shutdown.deadline_seconds = 1").await;
    let mut relay = site.serve(&["--role", "relay"], &[]);
    relay.says("started").await;
    relay.stops(Signal::TERM).await;
    let log = relay.log();
    assert!(!log.contains("messages in the outbox"), "{log}");
}

/// Neither attempts nor dead letters.
async fn cost_time_only(site: &Site, serving: &Serving) {
    const ATTEMPTS: &str = "SELECT count(*) FROM queue_message WHERE attempt > 0";
    const DEAD: &str = "SELECT count(*) FROM dead_letter";
    assert_eq!(site.number(ATTEMPTS).await, 0);
    assert_eq!(site.number(DEAD).await, 0);
    let log = serving.log();
    let counted = log.lines().find(|line| line.contains("\"retried\""));
    assert_eq!(counted, None);
}

#[tokio::test]
async fn a_database_that_another_program_locks_costs_time_only() {
    let day = Day::first(60);
    let (site, mut serving) = at_work(&day, "store.busy_timeout_seconds = 0.02").await;
    let mut rng = fastrand::Rng::with_seed(7);
    // Locks that last, some of them, longer than all that waits for one.
    for _ in 0..8 {
        let locked = lock(&site).await;
        tokio::time::sleep(Duration::from_millis(rng.u64(100..400))).await;
        unlock(locked).await;
    }
    serving.settles(&site).await;
    cost_time_only(&site, &serving).await;
    serving.stops(Signal::TERM).await;
    assert!(serving.log().contains("waiting for it to come back"));
    day.happened_once(&site).await;
}

#[tokio::test]
async fn a_delivery_that_meets_a_locked_database_is_not_decided() {
    let site = Site::new("store.busy_timeout_seconds = 0.01").await;
    site.publish(&Day::first(1).messages()).await;
    let deployment = site.deployment();
    let order = OrderRole::new(deployment.config.order.pay_timeout);
    let store = Arc::clone(&deployment.store);
    let processor = Processor::new(order, store, deployment.settings());
    let broker = site.broker();
    let mut consumer = broker.consumer(&RoleName::ORDER, 10).await.unwrap();
    let deliveries = consumer.receive(1).await.unwrap();

    let locked = lock(&site).await;
    let processed = processor.process(&deliveries).await;
    unlock(locked).await;

    assert!(processed.settled.is_empty(), "{processed:?}");
    let stopped = processed.stopped;
    let waits = matches!(&stopped, Some(Error::Store(store::Error::Unavailable(_))));
    assert!(waits, "{stopped:?}");
    let released = (deliveries[0].tag, Settlement::Release);
    assert_eq!(consumer.settle(&[released]).await, Ok(0));
}

/// A disk that holds little.
struct SmallDisk(TempDir);

impl SmallDisk {
    /// `None` if this user may not mount one.
    fn mount() -> Option<Self> {
        let directory = tempfile::tempdir().unwrap();
        let mount = Command::new("mount")
            .args(["-t", "tmpfs", "-o", "size=48m", "tmpfs"])
            .arg(directory.path())
            .output();
        match mount {
            Ok(output) if output.status.success() => Some(Self(directory)),
            failed => {
                println!("skipped, since no tmpfs can be mounted: {failed:?}");
                None
            }
        }
    }

    fn path(&self) -> &Path {
        self.0.path()
    }

    /// Fills it, but for so many bytes.
    fn fill(&self, but_for: u64) {
        let mut filler = File::create(self.path().join("filler")).unwrap();
        let block = [1; 4096];
        let full = loop {
            if let Err(error) = filler.write_all(&block) {
                break error;
            }
        };
        assert_eq!(full.kind(), ErrorKind::StorageFull);
        let length = filler.metadata().unwrap().len();
        filler.set_len(length.saturating_sub(but_for)).unwrap();
    }

    fn empty(&self) {
        std::fs::remove_file(self.path().join("filler")).unwrap();
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(self.path()).output();
    }
}

#[tokio::test]
async fn a_full_disk_costs_time_only() {
    let Some(disk) = SmallDisk::mount() else {
        return;
    };
    let site = Site::with_database_in(disk.path(), "batch.max = 16").await;
    let day = Day::first(60);
    day.stock_up(&site).await;
    site.publish(&day.messages()).await;
    disk.fill(400_000);
    let mut serving = site.serve(&[], &[]);
    serving.says("waiting for it to come back").await;
    assert!(!site.is_settled().await);
    disk.empty();
    serving.settles(&site).await;
    cost_time_only(&site, &serving).await;
    serving.stops(Signal::TERM).await;
    day.happened_once(&site).await;
}

#[tokio::test]
async fn a_message_that_kills_the_process_is_kept_and_takes_no_neighbour_along() {
    const KILLER: &str = "order:536370/order.complete";
    const LIMIT: usize = 3;
    // A lease that a slow machine does not outlast: it would be counted, too.
    let config = format!("broker.delivery_limit = {LIMIT}\nbroker.lease_seconds = 8");
    let site = Site::new(&config).await;
    let day = Day::first(30);
    day.stock_up(&site).await;
    site.publish(&day.messages()).await;

    let mut deaths = 0;
    loop {
        let mut serving = site.serve(&["--role", "order", "--no-relay"], &[(kill::ON, KILLER)]);
        until("it has died, or has nothing left to do", async || {
            let broker = site.broker();
            serving.has_ended().is_some()
                || broker.depth(&RoleName::ORDER).await.unwrap().total() == 0
        })
        .await;
        let Some(status) = serving.has_ended() else {
            serving.stops(Signal::TERM).await;
            break;
        };
        assert_eq!(status.signal(), Some(9), "{}", serving.last_words());
        deaths += 1;
    }
    assert_eq!(deaths, LIMIT);

    const DEAD: &str = "SELECT role, reason, CAST(raw AS TEXT) FROM dead_letter";
    let dead: Vec<(String, String, String)> = site.rows(DEAD).await;
    let [(role, reason, message)] = &dead[..] else {
        panic!("{} dead letters: {dead:#?}", dead.len());
    };
    assert_eq!((role.as_str(), reason.as_str()), ("order", "crash_loop"));
    assert!(message.contains("\"536370/order.complete\""), "{message}");

    // Once the worker can bear it, it is handed back.
    site.serve_to_the_end().await;
    let replayed = site.run(&["dead", "replay", "1"]);
    assert!(replayed.status.success(), "{replayed:?}");
    site.serve_to_the_end().await;
    day.happened_once(&site).await;
}

#[tokio::test]
async fn claims_expire_and_go_while_it_serves_and_nothing_else_changes() {
    let day = Day::first(20);
    let site = Site::new(
        "retry.attempts = 1\nretry.first_delay_seconds = 1\n[retention]\nlife_seconds = 1\n\
         archive_seconds = 0\nprocessing_seconds = 0\ndead_letter_seconds = 0\noutbox_seconds = 0\n\
         replay_seconds = 0\nslack_seconds = 0\nbatch = 10\npause_seconds = 0\ninterval_seconds = 0.01\n",
    )
    .await;
    day.stock_up(&site).await;
    site.publish(&day.messages()).await;
    let mut serving = site.serve(&[], &[]);
    serving.settles(&site).await;
    until("all claims are gone", async || {
        serving.is_alive();
        site.number("SELECT count(*) FROM idempotent_record").await == 0
    })
    .await;
    let said = serving.log();
    assert!(said.contains("claims have outlived their time"), "{said}");
    serving.stops(Signal::TERM).await;
    assert!(site.number("SELECT removed FROM retention").await > 20);
    // Every message again, with no claim that knows it.
    site.publish(&day.messages()).await;
    site.serve_to_the_end().await;
    day.effects_happened_once(&site).await;
    let status = site.run(&["retention", "status"]);
    let said = String::from_utf8(status.stdout).unwrap();
    assert!(said.contains("\nremoved "), "{said}");
    assert!(said.ends_with(
        "a claim expires after 1 s (at least 1 s, see `orderonce config show`) and is removed 0 s later\n"
    ), "{said}");
}
