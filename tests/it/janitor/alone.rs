//! One janitor at a time, by a lease with a fence.

use super::MOMENT;
use super::shop::{Crashes, event, janitor, janitor_at, processor, take_over};
use crate::store::fixture::Fresh;
use crate::support::{delivery, of, order_role, outcomes};
use orderonce::domain::RoleName;
use orderonce::worker::janitor::{Cleaned, Janitor};
use std::sync::Arc;
use std::time::Duration;

/// Longer than any test takes.
const LEASE: Duration = Duration::from_mins(10);
/// How long events stay parked.
const PARKED: Duration = Duration::from_hours(24);

const IDLE: Cleaned = Cleaned {
    expired: 0,
    reminded: 0,
    overdue: 0,
    crashed: 0,
    not_ours: false,
};
const NOT_OURS: Cleaned = Cleaned {
    not_ours: true,
    ..IDLE
};
const ONE_OVERDUE: Cleaned = Cleaned { overdue: 1, ..IDLE };
const ONE_CRASHED: Cleaned = Cleaned { crashed: 1, ..IDLE };

const PARKED_EVENTS: &str = "SELECT count(*) FROM parked_event";
const PARKED_CLAIMS: &str = "SELECT count(*) FROM idempotent_record WHERE outcome = 'parked'";
const DEAD_CLAIMS: &str = "SELECT count(*) FROM idempotent_record WHERE outcome = 'dead'";
const LETTERS: &str = "SELECT count(*) FROM dead_letter";

fn alone(fresh: &Fresh, holder: &str) -> Janitor {
    janitor(fresh, 10).alone(holder.to_owned(), LEASE)
}

async fn clean(janitor: &mut Janitor) -> Cleaned {
    janitor.run_once().await.unwrap()
}

/// An event that is parked, and overdue after `left`.
async fn park(fresh: &Fresh, left: Duration) {
    let early = event("m1", "order.ship", &of("O1"));
    let processed = processor(fresh, order_role()).process(&[early]).await;
    let outcomes = outcomes(&processed.settled);
    assert!(outcomes[0].starts_with("parked"), "{outcomes:?}");
    (fresh.advance)(PARKED - left);
}

async fn counts(fresh: &Fresh, expected: [i64; 4]) {
    let counts = [PARKED_EVENTS, PARKED_CLAIMS, DEAD_CLAIMS, LETTERS];
    for (count, expected) in counts.into_iter().zip(expected) {
        assert_eq!(fresh.number(count).await, expected, "{count}");
    }
}

/// Fails unless the event is still parked and nothing was given up.
async fn is_parked(fresh: &Fresh) {
    counts(fresh, [1, 1, 0, 0]).await;
}

/// Fails unless the event was given up, once.
async fn is_given_up(fresh: &Fresh) {
    counts(fresh, [0, 0, 1, 1]).await;
}

pub(super) async fn one_of_two_janitors_works_until_it_gives_its_lease_back(fresh: &Fresh) {
    let (mut a, mut b) = (alone(fresh, "a"), alone(fresh, "b"));
    park(fresh, MOMENT).await;
    assert_eq!(clean(&mut a).await, IDLE);
    (fresh.advance)(MOMENT);
    assert_eq!(clean(&mut b).await, NOT_OURS);
    assert!(!NOT_OURS.is_busy());
    is_parked(fresh).await;
    a.close().await.unwrap();
    assert_eq!(clean(&mut b).await, ONE_OVERDUE);
    is_given_up(fresh).await;
    let mut a = alone(fresh, "a");
    assert_eq!(clean(&mut a).await, NOT_OURS);
    assert_eq!(clean(&mut b).await, IDLE);
}

pub(super) async fn a_janitor_that_died_is_followed_at_the_end_of_its_lease(fresh: &Fresh) {
    let (mut a, mut b) = (alone(fresh, "a"), alone(fresh, "b"));
    park(fresh, LEASE).await;
    assert_eq!(clean(&mut a).await, IDLE);
    drop(a);
    (fresh.advance)(LEASE - MOMENT);
    assert_eq!(clean(&mut b).await, NOT_OURS);
    (fresh.advance)(MOMENT);
    assert_eq!(clean(&mut b).await, ONE_OVERDUE);
    is_given_up(fresh).await;
}

pub(super) async fn who_lost_its_lease_gives_up_nothing_that_is_parked(fresh: &Fresh) {
    let broker = Arc::new(Crashes::default());
    let mut a = janitor_at(fresh, Arc::clone(&broker), 10).alone("a".to_owned(), LEASE);
    park(fresh, MOMENT).await;
    assert_eq!(clean(&mut a).await, IDLE);
    (fresh.advance)(MOMENT);
    take_over(Arc::clone(&fresh.store)).await;
    assert_eq!(clean(&mut a).await, NOT_OURS);
    is_parked(fresh).await;
    assert_eq!(clean(&mut a).await, NOT_OURS, "it asks again");
    assert_eq!(clean(&mut alone(fresh, "b")).await, ONE_OVERDUE);
    is_given_up(fresh).await;
}

pub(super) async fn who_slept_past_its_lease_writes_nothing_even_if_nobody_took_it(fresh: &Fresh) {
    let mut a = alone(fresh, "a");
    park(fresh, LEASE).await;
    assert_eq!(clean(&mut a).await, IDLE);
    (fresh.advance)(LEASE);
    // By its own clock the lease has only begun.
    assert_eq!(clean(&mut a).await, NOT_OURS);
    is_parked(fresh).await;
    assert_eq!(clean(&mut a).await, ONE_OVERDUE, "it took the lease anew");
    is_given_up(fresh).await;
}

/// It has taken the message when the lease goes.
pub(super) async fn who_lost_its_lease_keeps_and_forgets_no_message(fresh: &Fresh) {
    let broker = Arc::new(Crashes::default());
    broker.left.lock().unwrap().push(delivery("{".to_owned()));
    let then = take_over(Arc::clone(&fresh.store));
    *broker.then.lock().unwrap() = Some(Box::pin(then));
    let mut a = janitor_at(fresh, Arc::clone(&broker), 10).alone("a".to_owned(), LEASE);
    assert_eq!(clean(&mut a).await, NOT_OURS);
    assert_eq!(fresh.number(LETTERS).await, 0);
    assert_eq!(broker.left.lock().unwrap().len(), 1, "it was forgotten");
    let put_back = *broker.put_back.lock().unwrap();
    assert_eq!(put_back, RoleName::BUILT_IN.len());

    let mut b = janitor_at(fresh, Arc::clone(&broker), 10).alone("b".to_owned(), LEASE);
    assert_eq!(clean(&mut b).await, ONE_CRASHED);
    assert_eq!(fresh.number(LETTERS).await, 1);
    assert!(broker.left.lock().unwrap().is_empty());
}
