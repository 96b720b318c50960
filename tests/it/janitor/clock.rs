//! Who comes first: the clock, a payment, or the clock of another node.

use super::shop::{REMIND_BEFORE, apply, event, hand_on, janitor, orders, payments, sell};
use crate::store::fixture::{Fresh, order_id};
use crate::support::{PAY_TIMEOUT, create_worth, of, outcomes, paid};
use orderonce::broker::Delivery;
use orderonce::domain::event::{Event, OrderEvent, OrderExpire, OrderRemind};
use orderonce::domain::{Layer, Outcome, Rejection, Timestamp};
use orderonce::message::Outgoing;
use orderonce::ops::reconcile::{Options, reconcile};
use orderonce::store;
use orderonce::worker::janitor::{Cleaned, Janitor};
use orderonce::worker::order::OrderRole;
use orderonce::worker::payment::PaymentRole;
use orderonce::worker::{Error, Processor};
use std::time::Duration;

const CLOSINGS: &str = "SELECT count(*) FROM order_transition
    WHERE from_status = 'WAIT_PAY' AND to_status = 'CLOSED'";
const IN_TIME: &str =
    "SELECT count(*) FROM orders JOIN payment ON payment.order_id = orders.order_id
    WHERE orders.status = 'PAID' AND payment.status = 'ACCEPTED'";
const LATE: &str = "SELECT count(*) FROM orders JOIN payment ON payment.order_id = orders.order_id
    WHERE orders.status = 'CLOSED' AND payment.status = 'LATE'";
const REFUNDS: &str = "SELECT count(*) FROM refund";
const AVAILABLE: &str = "SELECT available FROM stock WHERE sku_id = 'A'";
const REMINDERS: &str = "SELECT count(*) FROM outbox WHERE event_type = 'payment.query_requested'";
const DEAD: &str = "SELECT count(*) FROM dead_letter";

fn expire(id: &str, seen_due: Option<Timestamp>) -> OrderEvent {
    OrderEvent::Expire(OrderExpire {
        order_id: order_id(id),
        seen_due,
    })
}

fn remind(id: &str, seen_due: Timestamp) -> OrderEvent {
    OrderEvent::Remind(OrderRemind {
        order_id: order_id(id),
        seen_due: Some(seen_due),
    })
}

/// What becomes of an event that a node decides whose clock shows `now`.
async fn decide(orders: &Processor<OrderRole>, now: Timestamp, event: OrderEvent) -> Outcome {
    let outgoing = Outgoing::from(&Event::Order(event.clone()));
    let mut outcomes = orders
        .process_events(now, vec![(event, outgoing)])
        .await
        .unwrap();
    assert_eq!(outcomes.len(), 1);
    outcomes.remove(0)
}

async fn create(fresh: &Fresh, ids: &[&str]) {
    let creates = ids.iter().map(|id| {
        let create = create_worth(id, 1000);
        event(id, "order.create", &create)
    });
    apply(&orders(fresh), &creates.collect::<Vec<_>>()).await;
}

fn payment(id: &str) -> Delivery {
    let paid = paid(id, &format!("T-{id}"), 1000);
    event(&format!("p-{id}"), "payment.succeeded", &paid)
}

async fn adds_up(fresh: &Fresh) {
    assert_eq!(fresh.number(DEAD).await, 0);
    hand_on(fresh).await;
    let report = reconcile(fresh.store.as_ref(), &Options::default(), |_| {}).await;
    let report = report.unwrap();
    assert!(report.is_clean(), "{report}");
}

pub(super) async fn two_janitors_remind_of_an_order_once(fresh: &Fresh) {
    create(fresh, &["O1", "O2", "O3"]).await;
    (fresh.advance)(PAY_TIMEOUT - REMIND_BEFORE);
    let (mut a, mut b) = (janitor(fresh, 10), janitor(fresh, 10));
    let (of_a, of_b) = tokio::join!(a.run_once(), b.run_once());
    assert_eq!(of_a.unwrap().reminded + of_b.unwrap().reminded, 3);
    assert_eq!(fresh.number(REMINDERS).await, 3);
    assert_eq!(a.run_once().await.unwrap(), Cleaned::default());

    // Both have seen that it is time before either reminds.
    let paid = ["O1", "O2", "O3"].map(payment);
    apply(&payments(fresh), &paid).await;
    create(fresh, &["O4"]).await;
    (fresh.advance)(PAY_TIMEOUT - REMIND_BEFORE);
    let (seen, due) = fresh.store.due_reminders(10).await.unwrap();
    assert_eq!(due, [order_id("O4")]);
    let (a, b) = (orders(fresh), orders(fresh));
    let (of_a, of_b) = tokio::join!(
        decide(&a, seen, remind("O4", seen)),
        decide(&b, seen, remind("O4", seen))
    );
    let of_both = [of_a, of_b];
    assert!(of_both.contains(&Outcome::Applied), "{of_both:?}");
    let twice = Outcome::Duplicate(Layer::Claim);
    assert!(of_both.contains(&twice), "{of_both:?}");
    assert_eq!(fresh.number(REMINDERS).await, 4);
    adds_up(fresh).await;
}

pub(super) async fn a_reminder_that_comes_after_the_payment_or_the_end_is_stale(fresh: &Fresh) {
    create(fresh, &["O1", "O2"]).await;
    (fresh.advance)(PAY_TIMEOUT - REMIND_BEFORE);
    let (seen, due) = fresh.store.due_reminders(10).await.unwrap();
    assert_eq!(due, [order_id("O1"), order_id("O2")]);
    apply(&payments(fresh), &[payment("O1")]).await;
    let orders = orders(fresh);
    apply(&orders, &[event("c", "order.cancel", &of("O2"))]).await;
    for id in ["O1", "O2"] {
        let outcome = decide(&orders, seen, remind(id, seen)).await;
        assert_eq!(outcome, Outcome::Stale, "{id}");
    }
    assert_eq!(
        janitor(fresh, 10).run_once().await.unwrap(),
        Cleaned::default()
    );
    assert_eq!(fresh.number(REMINDERS).await, 0);
    adds_up(fresh).await;
}

/// Payments that come in at a time, and orders that are closed at a time.
const AT_A_TIME: usize = 8;

/// The payments of orders that the janitor closes in this order. Those of each second batch come before those of the
/// batch before it: so the two meet again and again, and neither leaves all behind it to the other.
fn payments_of(ids: &[String]) -> Vec<Delivery> {
    let pairs = ids.chunks(2 * AT_A_TIME);
    let swapped = pairs.flat_map(|pair| pair.chunks(AT_A_TIME).rev());
    swapped.flatten().map(|id| payment(id)).collect()
}

/// Brings payments in one after another, as a broker does: what was not settled comes again.
async fn pay(payments: &Processor<PaymentRole>, deliveries: &[Delivery]) {
    for batch in deliveries.chunks(AT_A_TIME) {
        loop {
            let processed = payments.process(batch).await;
            let outcomes = outcomes(&processed.settled);
            let is_done = |outcome: &String| match outcome.as_str() {
                "applied" | "duplicate (claim)" => true,
                other => {
                    assert!(other.starts_with("retried"), "{other}");
                    false
                }
            };
            if outcomes.len() == batch.len() && outcomes.iter().all(is_done) {
                break;
            }
        }
    }
}

/// Closes what is due until nothing is; what was due in one run may be paid before the run comes to it.
async fn close(fresh: &Fresh, janitor: &mut Janitor) -> usize {
    let mut closed = 0;
    while !fresh.store.due_orders(1).await.unwrap().1.is_empty() {
        match janitor.run_once().await {
            Ok(cleaned) => closed += cleaned.expired,
            // The supervisor lets the next run do it.
            Err(Error::Store(store::Error::Conflict(_) | store::Error::Unavailable(_))) => {}
            Err(error) => panic!("{error}"),
        }
    }
    closed
}

pub(super) async fn a_payment_races_the_timeout_1000_times(fresh: &Fresh) {
    let (mut in_time, mut late) = (0, 0);
    let mut round = 0;
    // Either wins often, and once at least.
    while in_time == 0 || late == 0 {
        round += 1;
        assert!(round <= 10, "{in_time} in time, {late} late");
        let ids: Vec<_> = (0..1000).map(|n| format!("O{round}-{n:03}")).collect();
        sell(fresh, &ids).await;
        assert_eq!(fresh.number(AVAILABLE).await, late);
        (fresh.advance)(PAY_TIMEOUT);

        let deliveries = payments_of(&ids);
        let payments = payments(fresh);
        let mut janitor = janitor(fresh, u32::try_from(AT_A_TIME).unwrap());
        let ((), closed) = tokio::join!(pay(&payments, &deliveries), close(fresh, &mut janitor));
        let closed = i64::try_from(closed).unwrap();

        let emitted = hand_on(fresh).await;
        assert_eq!(emitted.len(), 1000);
        let mut refunds = 0;
        for (id, types) in emitted {
            let types: Vec<_> = types.iter().map(String::as_str).collect();
            match types[..] {
                ["order.paid"] => {}
                ["order.closed", "refund.requested"] => refunds += 1,
                _ => panic!("{id} emitted {types:?}"),
            }
        }
        assert_eq!(refunds, closed);
        in_time += 1000 - closed;
        late += closed;
    }
    for (count, expected) in [
        (IN_TIME, in_time),
        (LATE, late),
        (CLOSINGS, late),
        (REFUNDS, late),
        (AVAILABLE, late),
    ] {
        assert_eq!(fresh.number(count).await, expected, "{count}");
    }
    adds_up(fresh).await;
}

// B83
pub(super) async fn two_nodes_whose_clocks_are_180_seconds_apart_close_by_the_database_s_clock(
    fresh: &Fresh,
) {
    const APART: Duration = Duration::from_secs(90);
    const LEFT: Duration = Duration::from_secs(60);
    create(fresh, &["O1"]).await;
    (fresh.advance)(PAY_TIMEOUT - LEFT);
    let (fast, slow) = (orders(fresh), orders(fresh));
    let now = fresh.store.now().await.unwrap();
    let early = decide(&fast, now.plus(APART), expire("O1", None)).await;
    assert_eq!(early, Outcome::Rejected(Rejection::NotDue));
    let early = decide(&slow, now.minus(APART), expire("O1", None)).await;
    assert_eq!(early, Outcome::Duplicate(Layer::Claim));
    let cleaned = janitor(fresh, 10).run_once().await.unwrap();
    assert_eq!(cleaned.expired, 0);
    assert_eq!(fresh.number(CLOSINGS).await, 0);

    (fresh.advance)(LEFT);
    let (seen, due) = fresh.store.due_orders(10).await.unwrap();
    assert_eq!(due, [order_id("O1")]);
    let closed = decide(&slow, seen.minus(APART), expire("O1", Some(seen))).await;
    assert_eq!(closed, Outcome::Applied);
    let again = decide(&fast, seen.plus(APART), expire("O1", Some(seen))).await;
    assert_eq!(again, Outcome::Duplicate(Layer::Claim));
    assert_eq!(janitor(fresh, 10).run_once().await.unwrap().expired, 0);
    assert_eq!(fresh.number(CLOSINGS).await, 1);
    adds_up(fresh).await;
}

// B59
pub(super) async fn what_became_due_while_nobody_ran_is_closed_once_each(fresh: &Fresh) {
    let ids: Vec<_> = (0..50).map(|n| format!("O{n:02}")).collect();
    sell(fresh, &ids).await;
    (fresh.advance)(Duration::from_hours(24));
    let mut started = janitor(fresh, 8).alone("a".to_owned(), Duration::from_mins(10));
    assert_eq!(close(fresh, &mut started).await, 50);
    started.close().await.unwrap();
    let mut next = janitor(fresh, 8).alone("b".to_owned(), Duration::from_mins(10));
    assert_eq!(next.run_once().await.unwrap(), Cleaned::default());
    let emitted = hand_on(fresh).await;
    assert_eq!(emitted.len(), 50);
    assert!(emitted.values().all(|types| types == &["order.closed"]));
    assert_eq!(fresh.number(CLOSINGS).await, 50);
    assert_eq!(fresh.number(AVAILABLE).await, 50);
    adds_up(fresh).await;
}
