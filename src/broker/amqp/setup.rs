//! Checks what is at the server, and declares what is missing.
//!
//! AMQP tells nothing about a queue but whether it is there. What it is like shows when it is
//! declared again: the server compares, and names the first argument that differs. A refusal closes
//! the channel, so each goes on with a new one.

use super::link::{ACCESS_REFUSED, Link, NOT_FOUND, PRECONDITION_FAILED, reply_code};
use super::topology::{Exchange, Layout, Queue};
use super::wire::short;
use crate::broker::{Error, Result, Setup};
use lapin::options::{
    ExchangeDeclareOptions, ExchangeDeleteOptions, QueueBindOptions, QueueDeclareOptions,
    QueueDeleteOptions,
};
use lapin::types::{AMQPValue, FieldTable, ShortString};
use lapin::{Channel, ErrorKind};
use std::collections::BTreeSet;

/// What a migration did.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Migration {
    /// Exchanges and queues that were not there before.
    pub created: Vec<String>,
    /// Whatever is there already and works, but not as well as what would have been created.
    pub warnings: Vec<String>,
}

/// Looks at the server over one connection.
pub(super) struct Inspector<'a> {
    link: &'a Link,
    layout: &'a Layout,
    channel: Option<Channel>,
}

/// How a queue compares with what it should be.
enum Queueing {
    AsExpected,
    /// A durable classic queue where a quorum queue should be.
    Classic,
    /// It could not be compared, because the user may not declare it.
    Unknown,
}

impl<'a> Inspector<'a> {
    pub(super) fn new(link: &'a Link, layout: &'a Layout) -> Self {
        Self {
            link,
            layout,
            channel: None,
        }
    }

    /// Checks that all is there and as it should be. Creates nothing. Returns warnings.
    pub(super) async fn check(&mut self) -> Result<Vec<String>> {
        let layout = self.layout;
        for exchange in layout.exchanges() {
            if !self.exchange_exists(exchange).await? {
                return Err(self.missing("exchange", exchange.name.as_str()));
            }
            self.declare_exchange(exchange, true).await?;
        }
        for queue in layout.queues() {
            if !self.queue_exists(queue).await? {
                return Err(self.missing("queue", queue.name.as_str()));
            }
        }
        self.compare_queues(true).await
    }

    /// Declares what is missing, and binds it.
    pub(super) async fn migrate(&mut self) -> Result<Migration> {
        let layout = self.layout;
        let mut created = Vec::new();
        for exchange in layout.exchanges() {
            if !self.exchange_exists(exchange).await? {
                created.push(format!("exchange {}", exchange.name));
            }
            self.declare_exchange(exchange, false).await?;
        }
        for queue in layout.queues() {
            if !self.queue_exists(queue).await? {
                created.push(format!("queue {}", queue.name));
            }
        }
        let warnings = self.compare_queues(false).await?;
        for (queue, exchange, key) in layout.bindings() {
            let channel = self.channel().await?;
            let options = QueueBindOptions::default();
            let none = FieldTable::default();
            let binding = channel.queue_bind(queue.clone(), exchange.clone(), key, options, none);
            if let Err(error) = binding.await {
                return Err(self.refused(&error));
            }
        }
        Ok(Migration { created, warnings })
    }

    /// Deletes all exchanges and queues, with what they hold.
    pub(super) async fn remove(&mut self) -> Result<()> {
        let layout = self.layout;
        for queue in layout.queues() {
            let channel = self.channel().await?;
            let options = QueueDeleteOptions::default();
            if let Err(error) = channel.queue_delete(queue.name.clone(), options).await {
                return Err(self.refused(&error));
            }
        }
        for exchange in layout.exchanges() {
            let channel = self.channel().await?;
            let options = ExchangeDeleteOptions::default();
            let deleted = channel.exchange_delete(exchange.name.clone(), options);
            if let Err(error) = deleted.await {
                return Err(self.refused(&error));
            }
        }
        Ok(())
    }

    /// Declares each queue, which creates it or compares it.
    async fn compare_queues(&mut self, may_be_unable: bool) -> Result<Vec<String>> {
        let layout = self.layout;
        let mut warnings = Vec::new();
        let mut one_of_ours = None;
        for queue in layout.queues() {
            let may_be_classic = layout
                .roles
                .values()
                .any(|role| std::ptr::eq(&role.queue, queue));
            match self.declare_queue(queue, may_be_classic, may_be_unable).await? {
                Queueing::AsExpected => one_of_ours = Some(queue),
                Queueing::Classic => warnings.push(format!(
                    "queue {} is a classic queue: a message that kills the process comes again for ever, one that \
                     the queue gives up may be lost, and the queue is lost with its server; delete it once it is \
                     empty and run `orderonce migrate` for a quorum queue",
                    queue.name
                )),
                Queueing::Unknown => warnings.push(format!(
                    "queue {} could not be checked, because the user may not declare queues",
                    queue.name
                )),
            }
        }
        if let Some(queue) = one_of_ours {
            self.check_server(queue).await?;
        }
        Ok(warnings)
    }

    /// An old server takes any argument and heeds those it knows. One that knows how to dead-letter
    /// at least once tells that another way differs.
    async fn check_server(&mut self, queue: &Queue) -> Result<()> {
        let mut other = queue.arguments.clone();
        let strategy = short("x-dead-letter-strategy");
        other.insert(strategy, AMQPValue::LongString("at-most-once".into()));
        let channel = self.channel().await?;
        let options = QueueDeclareOptions::durable();
        match channel
            .queue_declare(queue.name.clone(), options, other)
            .await
        {
            Err(error) if reply_code(&error) == Some(PRECONDITION_FAILED) => Ok(()),
            Err(error) => Err(self.refused(&error)),
            Ok(_) => Err(Setup::ServerTooOld {
                at: self.link.at(),
                problem: "it does not dead-letter at least once",
                needed: "3.10",
            }
            .into()),
        }
    }

    async fn exchange_exists(&mut self, exchange: &Exchange) -> Result<bool> {
        let channel = self.channel().await?;
        let options = ExchangeDeclareOptions {
            passive: true,
            ..ExchangeDeclareOptions::default()
        };
        let (name, kind) = (exchange.name.clone(), exchange.kind.clone());
        let none = FieldTable::default();
        match channel.exchange_declare(name, kind, options, none).await {
            Ok(()) => Ok(true),
            Err(error) if reply_code(&error) == Some(NOT_FOUND) => Ok(false),
            Err(error) => Err(self.refused(&error)),
        }
    }

    async fn declare_exchange(&mut self, exchange: &Exchange, may_be_unable: bool) -> Result<()> {
        let channel = self.channel().await?;
        let options = ExchangeDeclareOptions {
            durable: true,
            ..ExchangeDeclareOptions::default()
        };
        let (name, kind) = (exchange.name.clone(), exchange.kind.clone());
        let none = FieldTable::default();
        match channel.exchange_declare(name, kind, options, none).await {
            Ok(()) => Ok(()),
            Err(error) => match reply_code(&error) {
                Some(ACCESS_REFUSED) if may_be_unable => Ok(()),
                Some(PRECONDITION_FAILED) => {
                    Err(self.mismatch("exchange", exchange.name.as_str(), &error))
                }
                _ => Err(self.refused(&error)),
            },
        }
    }

    async fn queue_exists(&mut self, queue: &Queue) -> Result<bool> {
        let channel = self.channel().await?;
        match message_count(&channel, &queue.name).await {
            Ok(_) => Ok(true),
            Err(error) if reply_code(&error) == Some(NOT_FOUND) => Ok(false),
            Err(error) => Err(self.refused(&error)),
        }
    }

    async fn declare_queue(
        &mut self,
        queue: &Queue,
        may_be_classic: bool,
        may_be_unable: bool,
    ) -> Result<Queueing> {
        let channel = self.channel().await?;
        let (name, arguments) = (queue.name.clone(), queue.arguments.clone());
        let options = QueueDeclareOptions::durable();
        let Err(error) = channel.queue_declare(name, options, arguments).await else {
            return Ok(Queueing::AsExpected);
        };
        match reply_code(&error) {
            Some(ACCESS_REFUSED) if may_be_unable => Ok(Queueing::Unknown),
            Some(PRECONDITION_FAILED) => {
                let is_classic = may_be_classic && self.is_classic(queue, &error).await?;
                match is_classic {
                    true => Ok(Queueing::Classic),
                    false => Err(self.mismatch("queue", queue.name.as_str(), &error)),
                }
            }
            _ => Err(self.refused(&error)),
        }
    }

    /// Whether a queue that was made otherwise is a durable classic one. The server tells one
    /// difference at a time, so it is asked again with what it said, until it tells of the type.
    async fn is_classic(&mut self, queue: &Queue, error: &lapin::Error) -> Result<bool> {
        let mut arguments = queue.arguments.inner().clone();
        let mut asked = BTreeSet::new();
        let mut told = difference(error);
        while let Some(Difference {
            argument, found, ..
        }) = told
        {
            if argument == TYPE {
                return Ok(found != QUORUM && found != STREAM);
            }
            if !asked.insert(argument.clone()) {
                return Ok(false);
            }
            arguments.remove(argument.as_str());
            if found != NONE {
                let value = found.parse().map_or_else(
                    |_| AMQPValue::LongString(found.as_str().into()),
                    AMQPValue::LongLongInt,
                );
                arguments.insert(short(&argument), value);
            }
            let channel = self.channel().await?;
            let (name, table) = (queue.name.clone(), arguments.clone().into());
            let options = QueueDeclareOptions::durable();
            told = match channel.queue_declare(name, options, table).await {
                Ok(_) => None,
                Err(error) => difference(&error),
            };
        }
        Ok(false)
    }

    /// A channel that works.
    async fn channel(&mut self) -> Result<Channel> {
        match &self.channel {
            Some(channel) if channel.status().connected() => Ok(channel.clone()),
            _ => Ok(self.channel.insert(self.link.channel().await?).clone()),
        }
    }

    fn missing(&self, what: &'static str, name: &str) -> Error {
        let (name, at) = (name.to_owned(), self.link.at());
        Setup::Missing { what, name, at }.into()
    }

    fn mismatch(&self, what: &'static str, name: &str, error: &lapin::Error) -> Error {
        let (name, at) = (name.to_owned(), self.link.at());
        let Some(difference) = difference(error) else {
            return self.refused(error);
        };
        let Difference {
            argument,
            found,
            expected,
        } = difference;
        if argument == "x-dead-letter-exchange" && found == NONE {
            return Setup::NoDeadLetters { name, at }.into();
        }
        Setup::Mismatch {
            what,
            name,
            at,
            argument,
            found,
            expected,
        }
        .into()
    }

    /// What the server refuses, as a matter of configuration.
    fn refused(&self, error: &lapin::Error) -> Error {
        let ErrorKind::ProtocolError(refusal) = error.kind() else {
            return self.link.unavailable(error);
        };
        let (at, problem) = (self.link.at(), refusal.get_message().to_string());
        match refusal.get_id() {
            ACCESS_REFUSED => Setup::Permission { at, problem },
            _ => Setup::Refused { at, problem },
        }
        .into()
    }
}

/// How many messages of a queue wait to be delivered. The queue must be there.
pub(super) async fn message_count(channel: &Channel, queue: &ShortString) -> lapin::Result<u64> {
    let options = QueueDeclareOptions {
        passive: true,
        ..QueueDeclareOptions::default()
    };
    let none = FieldTable::default();
    let declared = channel.queue_declare(queue.clone(), options, none);
    Ok(declared.await?.message_count().into())
}

const NONE: &str = "none";
const TYPE: &str = "x-queue-type";
const QUORUM: &str = "quorum";
const STREAM: &str = "stream";

#[derive(Debug, PartialEq, Eq)]
struct Difference {
    argument: String,
    found: String,
    expected: String,
}

/// What the server says differs. The reply holds 255 bytes, so that its end may be missing.
fn difference(error: &lapin::Error) -> Option<Difference> {
    let ErrorKind::ProtocolError(error) = error.kind() else {
        return None;
    };
    difference_in(error.get_message().as_str())
}

fn difference_in(reply: &str) -> Option<Difference> {
    let (_, rest) = reply.split_once("inequivalent arg '")?;
    let (argument, rest) = rest.split_once('\'')?;
    let value = |text: &str| {
        let quoted = text.split_once('\'');
        let quoted = quoted.and_then(|(before, rest)| {
            let is_first = !before.contains(NONE);
            is_first.then(|| rest.split('\'').next().unwrap_or(rest).to_owned())
        });
        quoted.unwrap_or_else(|| NONE.to_owned())
    };
    let (_, received) = rest.split_once("received ")?;
    let (expected, found) = match received.split_once("but current is ") {
        Some((expected, found)) => (value(expected), value(found)),
        None => (value(received), "another value".to_owned()),
    };
    Some(Difference {
        argument: argument.to_owned(),
        found,
        expected,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(reply: &str) -> (String, String, String) {
        let difference = difference_in(reply).unwrap();
        (difference.argument, difference.found, difference.expected)
    }

    #[test]
    fn what_differs_is_read_from_the_reply() {
        let of = |argument: &str, found: &str, expected: &str| {
            (argument.to_owned(), found.to_owned(), expected.to_owned())
        };
        assert_eq!(
            found(
                "PRECONDITION_FAILED - inequivalent arg 'x-delivery-limit' for queue 'q' in vhost '/': received the \
                 value '2' of type 'signedint' but current is the value '19' of type 'signedint'"
            ),
            of("x-delivery-limit", "19", "2")
        );
        assert_eq!(
            found(
                "PRECONDITION_FAILED - inequivalent arg 'x-dead-letter-exchange' for queue 'q' in vhost '/': received \
                 the value '' of type 'longstr' but current is none"
            ),
            of("x-dead-letter-exchange", "none", "")
        );
        assert_eq!(
            found(
                "PRECONDITION_FAILED - inequivalent arg 'x-message-ttl' for queue 'q' in vhost '/': received none but \
                 current is the value '10' of type 'long'"
            ),
            of("x-message-ttl", "10", "none")
        );
        assert_eq!(
            found(
                "PRECONDITION_FAILED - inequivalent arg 'durable' for queue 'q' in vhost '/': received 'true' but \
                 current is 'false'"
            ),
            of("durable", "false", "true")
        );
        assert_eq!(
            found(
                "PRECONDITION_FAILED - inequivalent arg 'x-overflow' for queue 'q': received the value 'reject"
            ),
            of("x-overflow", "another value", "reject")
        );
        assert_eq!(difference_in("PRECONDITION_FAILED - something else"), None);
    }
}
