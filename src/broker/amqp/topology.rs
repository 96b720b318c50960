//! Exchanges, queues and bindings, as data.
//!
//! ```text
//! orderonce.events (topic) --type--> orderonce.order
//!                                      | delivery limit
//!                                      v
//!                                    orderonce.order.crashed
//!
//! orderonce.delay.10s (fanout) --> orderonce.delay.10s (TTL 10 s)
//!                                      | expired, default exchange, its own routing key
//!                                      v
//!                                    orderonce.order
//! ```
//!
//! A retry is published to the exchange of its delay with the role's queue as its routing key, which
//! it keeps while it waits, so that it comes back to the role that failed and to no other. Each queue
//! that dead-letters does so at least once, which RabbitMQ grants only to quorum queues that reject
//! what they have no room for.

use super::Options;
use super::wire::short;
use crate::broker::{Setup, Topology};
use crate::domain::RoleName;
use lapin::ExchangeKind;
use lapin::types::{AMQPValue, FieldTable, ShortString};
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

/// What must be there at the server.
#[derive(Debug)]
pub(super) struct Layout {
    /// Where events are published.
    pub(super) events: Exchange,
    /// The queues of each role.
    pub(super) roles: BTreeMap<RoleName, RoleQueues>,
    /// The delays, shortest first.
    pub(super) levels: Vec<Level>,
    prefix: String,
}

/// An exchange.
#[derive(Debug)]
pub(super) struct Exchange {
    pub(super) name: ShortString,
    pub(super) kind: ExchangeKind,
}

/// A durable queue.
#[derive(Debug)]
pub(super) struct Queue {
    pub(super) name: ShortString,
    pub(super) arguments: FieldTable,
}

/// The queues of a role, and the types that the first of them is bound to.
#[derive(Debug)]
pub(super) struct RoleQueues {
    pub(super) queue: Queue,
    pub(super) crashed: Queue,
    pub(super) types: Vec<ShortString>,
}

/// A delay: an exchange, and the one queue behind it.
#[derive(Debug)]
pub(super) struct Level {
    pub(super) delay: Duration,
    pub(super) exchange: Exchange,
    pub(super) queue: Queue,
}

impl Layout {
    pub(super) fn new(options: &Options, topology: &Topology) -> Result<Self, Setup> {
        let prefix = options.prefix.clone();
        let mut levels: Vec<Level> = options
            .levels
            .iter()
            .map(|&delay| level(&prefix, delay))
            .collect();
        levels.sort_by_key(|level| level.delay);
        levels.dedup_by_key(|level| level.delay);
        let roles: BTreeMap<RoleName, RoleQueues> = topology
            .roles()
            .map(|role| {
                let types = topology.types(role).map(short).collect();
                let queues = role_queues(&prefix, role, options.delivery_limit, types);
                (role.clone(), queues)
            })
            .collect();
        let layout = Self {
            events: Exchange {
                name: short(&options.exchange),
                kind: ExchangeKind::Topic,
            },
            roles,
            levels,
            prefix,
        };
        let mut names = BTreeSet::new();
        for queue in layout.queues() {
            if !names.insert(&queue.name) {
                let name = queue.name.to_string();
                return Err(Setup::SameName { name });
            }
        }
        Ok(layout)
    }

    /// The name of a role's queue, whether or not it is one of the topology's.
    pub(super) fn queue_of(&self, role: &RoleName) -> ShortString {
        queue_name(&self.prefix, role)
    }

    /// The shortest level that is not shorter than `delay`, or else the longest; `None` for no delay.
    pub(super) fn level_for(&self, delay: Duration) -> Option<&Level> {
        if delay.is_zero() {
            return None;
        }
        let fitting = self.levels.iter().find(|level| level.delay >= delay);
        fitting.or(self.levels.last())
    }

    pub(super) fn queues(&self) -> impl Iterator<Item = &Queue> {
        let of_roles = self.roles.values();
        let of_roles = of_roles.flat_map(|role| [&role.crashed, &role.queue]);
        of_roles.chain(self.levels.iter().map(|level| &level.queue))
    }

    pub(super) fn exchanges(&self) -> impl Iterator<Item = &Exchange> {
        let of_levels = self.levels.iter().map(|level| &level.exchange);
        std::iter::once(&self.events).chain(of_levels)
    }

    /// Each queue with the exchange and routing key that it is bound to. Everything also goes to the
    /// default exchange by its name.
    pub(super) fn bindings(
        &self,
    ) -> impl Iterator<Item = (&ShortString, &ShortString, ShortString)> {
        let of_roles = self.roles.values().flat_map(|role| {
            let types = role.types.iter();
            types.map(|key| (&role.queue.name, &self.events.name, key.clone()))
        });
        let of_levels = self
            .levels
            .iter()
            .map(|level| (&level.queue.name, &level.exchange.name, short("")));
        of_roles.chain(of_levels)
    }
}

fn queue_name(prefix: &str, role: &RoleName) -> ShortString {
    short(&format!("{prefix}{role}"))
}

/// More returns than a message can have in its life. RabbitMQ 4 drops a message that was returned 20
/// times from a queue without a limit of its own, and no version takes a word for "never".
const NO_LIMIT: i32 = i32::MAX;

fn role_queues(
    prefix: &str,
    role: &RoleName,
    delivery_limit: u32,
    types: Vec<ShortString>,
) -> RoleQueues {
    let crashed = Queue {
        name: short(&format!("{prefix}{role}.crashed")),
        arguments: quorum([("x-delivery-limit", AMQPValue::LongInt(NO_LIMIT))]),
    };
    // The server counts returns and drops at one more than its limit; ours is of deliveries.
    let returns = i32::try_from(delivery_limit.saturating_sub(1)).unwrap_or(NO_LIMIT);
    let dead_letters_to = |queue: &ShortString| {
        [
            ("x-delivery-limit", AMQPValue::LongInt(returns)),
            ("x-dead-letter-exchange", text("")),
            ("x-dead-letter-routing-key", text(queue.as_str())),
            ("x-dead-letter-strategy", text(AT_LEAST_ONCE)),
            ("x-overflow", text("reject-publish")),
        ]
    };
    let queue = Queue {
        name: queue_name(prefix, role),
        arguments: quorum(dead_letters_to(&crashed.name)),
    };
    RoleQueues {
        queue,
        crashed,
        types,
    }
}

/// Dead-lettering that loses nothing.
const AT_LEAST_ONCE: &str = "at-least-once";

fn level(prefix: &str, delay: Duration) -> Level {
    let name = short(&format!("{prefix}delay.{}s", delay.as_secs_f64()));
    let milliseconds = i64::try_from(delay.as_millis()).unwrap_or(i64::MAX);
    Level {
        delay,
        exchange: Exchange {
            name: name.clone(),
            kind: ExchangeKind::Fanout,
        },
        queue: Queue {
            name,
            arguments: quorum([
                ("x-message-ttl", AMQPValue::LongLongInt(milliseconds)),
                ("x-dead-letter-exchange", text("")),
                ("x-dead-letter-strategy", text(AT_LEAST_ONCE)),
                ("x-overflow", text("reject-publish")),
            ]),
        },
    }
}

fn quorum<const N: usize>(arguments: [(&str, AMQPValue); N]) -> FieldTable {
    let quorum = [("x-queue-type", text("quorum"))];
    let arguments = quorum.into_iter().chain(arguments);
    let arguments = arguments.map(|(name, value)| (short(name), value));
    FieldTable::from(arguments.collect::<BTreeMap<_, _>>())
}

fn text(value: &str) -> AMQPValue {
    AMQPValue::LongString(value.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn layout(levels: &[u64]) -> Layout {
        let options = Options {
            levels: levels.iter().copied().map(Duration::from_secs).collect(),
            ..Options::new(Vec::new())
        };
        Layout::new(&options, &Topology::default()).unwrap()
    }

    #[test]
    fn a_delay_is_rounded_up_to_a_level_and_down_to_the_last() {
        let layout = layout(&[10, 1, 5]);
        let level = |millis| {
            let level = layout.level_for(Duration::from_millis(millis));
            level.map(|level| level.delay.as_secs())
        };
        assert_eq!(level(0), None);
        assert_eq!(level(1), Some(1));
        assert_eq!(level(1_000), Some(1));
        assert_eq!(level(1_001), Some(5));
        assert_eq!(level(99_000), Some(10));
    }

    #[test]
    fn names_are_those_of_the_design() {
        let layout = layout(&[10]);
        let names: Vec<_> = layout.queues().map(|queue| queue.name.as_str()).collect();
        assert_eq!(
            names,
            [
                "orderonce.account.crashed",
                "orderonce.account",
                "orderonce.inventory.crashed",
                "orderonce.inventory",
                "orderonce.order.crashed",
                "orderonce.order",
                "orderonce.payment.crashed",
                "orderonce.payment",
                "orderonce.delay.10s",
            ]
        );
        assert_eq!(layout.events.name.as_str(), "orderonce.events");
        assert!(layout.bindings().any(|(queue, exchange, key)| {
            (queue.as_str(), exchange.as_str(), key.as_str())
                == ("orderonce.order", "orderonce.events", "order.create")
        }));
    }

    #[test]
    fn two_queues_of_one_name_are_refused() {
        for role in ["order.crashed", "delay.10s"] {
            let mut topology = Topology::default();
            topology.bind(&RoleName::new(role), "order.create");
            let refused = Layout::new(&Options::new(Vec::new()), &topology).unwrap_err();
            let name = format!("orderonce.{role}");
            assert_eq!(refused, Setup::SameName { name });
        }
    }

    #[test]
    fn a_name_that_amqp_has_no_room_for_is_shortened_by_a_hash() {
        let mut topology = Topology::default();
        let (one, two) = ("r".repeat(300), "r".repeat(301));
        topology.bind(&RoleName::new(one), "order.create");
        topology.bind(&RoleName::new(two), "order.create");
        let layout = Layout::new(&Options::new(Vec::new()), &topology).unwrap();
        assert_eq!(layout.roles.len(), 6);
    }
}
