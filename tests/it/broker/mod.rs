//! One suite of claims, stamped for every broker. An adapter is a file with a function that makes a
//! fresh [`Adapter`], and `broker_suite!(that_function);`.

mod amqp;
mod embedded;
mod suite;

use async_trait::async_trait;
use bytes::Bytes;
use orderonce::broker::{
    Broker, Consumer, Delivery, Depth, Error, Headers, Publication, Receipt, Settlement, Tag,
    Topology,
};
use orderonce::domain::RoleName;
use std::future::{Future, poll_fn};
use std::pin::pin;
use std::task::Poll;
use std::time::Duration;

/// What the suite needs to be done to a broker from outside.
#[async_trait]
pub(crate) trait Adapter: Send + Sync {
    /// The broker, empty at first, with the queues of [`topology`] and a delivery limit of
    /// [`DELIVERY_LIMIT`].
    fn broker(&self) -> &dyn Broker;

    /// Lets time pass, by moving the broker's clock or by waiting.
    async fn advance(&self, by: Duration);

    /// Ends a consumer as a killed process ends, and waits until the broker has noticed.
    async fn kill(&self, consumer: Box<dyn Consumer>);

    /// Takes their deliveries from all consumers, which live on.
    async fn take_deliveries_away(&self);

    /// The same, once all that they said has arrived at the broker.
    async fn end_holds(&self) {
        self.take_deliveries_away().await;
    }
}

/// How many unsettled deliveries of a message the suite's brokers allow.
pub(crate) const DELIVERY_LIMIT: u32 = 3;

/// The built-in queues, and one of a team's own role that is bound to one type of another role.
pub(crate) fn topology() -> Topology {
    let mut topology = Topology::default();
    topology.bind(&audit(), "order.created");
    topology
}

pub(crate) fn audit() -> RoleName {
    RoleName::new("audit")
}

/// A message whose bytes are its id.
pub(crate) fn message(id: &str, event_type: &str) -> Publication {
    Publication {
        message_id: id.to_owned(),
        event_type: event_type.to_owned(),
        addressee: None,
        message: Bytes::from(id.to_owned()),
        headers: Headers::new(),
    }
}

/// Messages for the order role.
pub(crate) fn orders<const N: usize>(ids: [&str; N]) -> Vec<Publication> {
    ids.map(|id| message(id, "order.create")).into()
}

/// Many messages for the order role, and their ids.
pub(crate) fn numbered(count: usize) -> (Vec<Publication>, Vec<String>) {
    let ids: Vec<String> = (0..count).map(|n| format!("m{n:05}")).collect();
    let messages = ids.iter().map(|id| message(id, "order.create")).collect();
    (messages, ids)
}

/// Publishes, and expects that all is confirmed.
pub(crate) async fn publish(broker: &dyn Broker, messages: &[Publication]) {
    let mut publisher = broker.publisher().await.unwrap();
    let receipts = publisher.publish(messages).await.unwrap();
    assert_eq!(receipts, vec![Receipt::Confirmed; messages.len()]);
}

pub(crate) async fn consumer(broker: &dyn Broker, role: &RoleName) -> Box<dyn Consumer> {
    broker.consumer(role, 1_000).await.unwrap()
}

/// Receives until there are `count` deliveries.
pub(crate) async fn take(consumer: &mut Box<dyn Consumer>, count: usize) -> Vec<Delivery> {
    let mut taken = Vec::new();
    while taken.len() < count {
        let room = count - taken.len();
        let deliveries = in_time(consumer.receive(room)).await.unwrap();
        assert!((1..=room).contains(&deliveries.len()), "{deliveries:?}");
        taken.extend(deliveries);
    }
    taken
}

pub(crate) async fn take_one(consumer: &mut Box<dyn Consumer>) -> Delivery {
    take(consumer, 1).await.remove(0)
}

/// Settles all alike, and expects that none is stale.
pub(crate) async fn settle(
    consumer: &mut Box<dyn Consumer>,
    deliveries: &[Delivery],
    settlement: Settlement,
) {
    let settlements = all(deliveries, settlement);
    assert_eq!(consumer.settle(&settlements).await, Ok(0));
}

pub(crate) fn all(deliveries: &[Delivery], settlement: Settlement) -> Vec<(Tag, Settlement)> {
    let tags = deliveries.iter().map(|delivery| delivery.tag);
    tags.map(|tag| (tag, settlement)).collect()
}

/// The messages of deliveries as text.
pub(crate) fn texts(deliveries: &[Delivery]) -> Vec<String> {
    deliveries.iter().map(text).collect()
}

pub(crate) fn text(delivery: &Delivery) -> String {
    String::from_utf8_lossy(&delivery.message).into_owned()
}

/// Expects that nothing waits in a queue but what is published now: a marker, which is the next and
/// only delivery.
pub(crate) async fn nothing_waits(
    broker: &dyn Broker,
    role: &RoleName,
    consumer: &mut Box<dyn Consumer>,
) {
    let marker = Publication {
        addressee: Some(role.clone()),
        ..message("marker", "order.create")
    };
    publish(broker, &[marker]).await;
    let deliveries = in_time(consumer.receive(10)).await.unwrap();
    assert_eq!(texts(&deliveries), ["marker"]);
    settle(consumer, &deliveries, Settlement::Ack).await;
}

/// Expects that no queue holds anything, delivered or not.
pub(crate) async fn all_is_settled(adapter: &dyn Adapter) {
    adapter.end_holds().await;
    nothing_is_left(adapter.broker()).await;
}

/// Expects that no queue holds anything, as far as the broker tells.
pub(crate) async fn nothing_is_left(broker: &dyn Broker) {
    for role in topology().roles() {
        let depth = broker.depth(role).await.unwrap();
        let known = Depth {
            unsettled: depth.unsettled.or(Some(0)),
            ..depth
        };
        assert_eq!(known, settled_queue(), "of queue {role}");
    }
}

/// A queue that holds nothing.
pub(crate) fn settled_queue() -> Depth {
    Depth {
        unsettled: Some(0),
        ..Depth::default()
    }
}

/// Waits until a message is set aside, and returns all that are. A broker that has just lost its connection
/// may notice only when it is asked.
pub(crate) async fn crashed(broker: &dyn Broker, role: &RoleName) -> Vec<Delivery> {
    loop {
        match broker.crashed(role, 10).await {
            Ok(crashed) if !crashed.is_empty() => return crashed,
            Ok(_) | Err(Error::Unavailable(_)) => {}
            Err(error) => panic!("{error}"),
        }
    }
}

/// Polls a future at most `polls` times and then drops it.
pub(crate) async fn cancelled_after<T>(polls: u32, future: impl Future<Output = T>) -> Option<T> {
    let mut future = pin!(future);
    let mut done = 0;
    poll_fn(|context| {
        done += 1;
        match future.as_mut().poll(context) {
            Poll::Ready(value) => Poll::Ready(Some(value)),
            Poll::Pending if done < polls => Poll::Pending,
            Poll::Pending => Poll::Ready(None),
        }
    })
    .await
}

/// Fails a test that hangs.
pub(crate) async fn in_time<T>(test: impl Future<Output = T>) -> T {
    let limit = Duration::from_secs(60);
    tokio::time::timeout(limit, test).await.unwrap()
}

/// Stamps every claim of the suite for the adapter that `$fresh` makes.
macro_rules! broker_suite {
    ($fresh:ident) => {
        $crate::broker::broker_suite! { @stamp $fresh:
            publishing {
                a_message_arrives_once_at_each_queue_bound_to_its_type
                bytes_and_headers_arrive_as_they_were_published
                an_addressed_message_arrives_at_its_addressee_alone
                an_unknown_addressee_is_refused
                a_type_that_must_find_a_queue_is_refused_without_one
                a_notice_that_nobody_is_bound_to_is_confirmed
                a_refused_message_takes_no_neighbour_along
                publishing_nothing_yields_no_receipts
                messages_of_one_publisher_arrive_in_order
                a_message_of_a_mebibyte_arrives_whole
                a_message_published_twice_arrives_twice
            }
            receiving {
                receive_waits_for_the_first_message
                receive_returns_at_most_max_and_the_oldest_first
                try_receive_returns_what_is_there_without_waiting
                a_role_without_a_queue_has_no_consumer_and_no_depth
                nothing_is_delivered_twice_while_it_is_held
                deliveries_of_a_killed_consumer_come_again_and_say_so
                deliveries_of_a_dropped_consumer_come_again
                deliveries_of_a_closed_consumer_come_again_at_once
                a_consumer_holds_no_more_than_its_prefetch
                two_consumers_share_a_queue_without_overlap
                a_cancelled_receive_loses_nothing
                thousands_of_messages_arrive_once_each
            }
            settling {
                an_acknowledged_message_is_gone
                a_retried_message_comes_back_after_its_delay_to_its_own_role_alone
                attempts_are_counted_over_many_retries
                a_retried_message_keeps_its_trace
                a_retry_without_delay_comes_back_at_once
                a_message_that_somebody_else_is_at_comes_back_later_with_nothing_counted
                a_released_message_comes_back_at_once_with_no_attempt_counted
                a_stale_settlement_is_counted_and_changes_nothing
                settling_again_is_stale
                one_call_settles_each_delivery_in_its_own_way
                settling_nothing_is_fine
                depth_tells_ready_from_unsettled_from_delayed
            }
            crashing {
                a_message_at_the_delivery_limit_is_set_aside_and_its_neighbours_are_not
                a_message_set_aside_stays_until_it_is_forgotten
                a_message_that_was_put_back_can_be_taken_again
                a_message_left_unsettled_again_and_again_comes_alone
                releases_and_retries_never_reach_the_delivery_limit
                how_often_a_message_was_delivered_says_nothing_of_whether_it_was_handled
            }
        }
    };
    (@stamp $fresh:ident: $($subject:ident { $($claim:ident)+ })+) => {
        $(
            mod $subject {
                $(
                    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
                    async fn $claim() {
                        let adapter = super::$fresh().await;
                        let test = $crate::broker::suite::$subject::$claim(&adapter);
                        $crate::broker::in_time(test).await;
                    }
                )+
            }
        )+
    };
}
use broker_suite;
