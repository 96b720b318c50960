//! A channel that publishes, in windows.
//!
//! The publications of a window are written back to back, and then all their confirms are awaited.
//! Only with the last confirm is it known which of them were returned: the library hands a returned
//! message to whichever confirm comes next.

#![expect(
    clippy::wildcard_enum_match_arm,
    reason = "the library's and JSON's kinds are many, and all others are alike here"
)]

use super::burst::{begin, end};
use super::link::{ACCESS_REFUSED, Link, NOT_FOUND, reply_code};
use super::wire::{self, Outgoing};
use crate::broker::{Error, Receipt, Result};
use lapin::options::{BasicPublishOptions, ConfirmSelectOptions};
use lapin::protocol::AMQPErrorKind;
use lapin::{Channel, Confirmation, ErrorKind};
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::timeout;

/// Publishes over a channel of its own. The channel must not be used by two tasks at once: then the
/// library mixes up their confirms.
#[derive(Debug)]
pub(super) struct Outlet {
    link: Arc<Link>,
    limits: Limits,
    channel: Option<Channel>,
}

/// How much an outlet publishes at a time, and how long it waits.
#[derive(Debug, Clone, Copy)]
pub(super) struct Limits {
    pub(super) window: usize,
    pub(super) confirm_timeout: Duration,
}

/// Whether to wait on while the server takes no messages.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Patience {
    Limited,
    WhileBlocked,
}

/// About as many bytes as one window should hold. A larger message has one to itself.
const WINDOW_BYTES: usize = 1 << 20;

/// What no RabbitMQ takes, whatever its limit is.
const LONGEST_MESSAGE: usize = 512 << 20;

impl Outlet {
    pub(super) fn new(link: Arc<Link>, limits: Limits) -> Self {
        Self {
            link,
            limits,
            channel: None,
        }
    }

    /// Connects if need be.
    pub(super) async fn open(&mut self) -> Result<()> {
        self.channel().await.map(drop)
    }

    /// Publishes in order and waits for what the server says of each.
    ///
    /// # Errors
    /// [`Error::Unavailable`]; some may have been published.
    pub(super) async fn publish(
        &mut self,
        messages: &[Outgoing],
        patience: Patience,
    ) -> Result<Vec<Receipt>> {
        let mut receipts = Vec::with_capacity(messages.len());
        let mut rest = messages;
        while !rest.is_empty() {
            let (window, others) = rest.split_at(self.next_window(rest));
            rest = others;
            receipts.extend(self.publish_window(window, patience).await?);
        }
        Ok(receipts)
    }

    /// How many messages the next window has.
    fn next_window(&self, messages: &[Outgoing]) -> usize {
        let mut bytes = 0;
        let fits = |message: &&Outgoing| {
            bytes += message.message.len();
            bytes <= WINDOW_BYTES
        };
        let fitting = messages.iter().take(self.limits.window).take_while(fits);
        fitting.count().max(1)
    }

    async fn publish_window(
        &mut self,
        window: &[Outgoing],
        patience: Patience,
    ) -> Result<Vec<Receipt>> {
        let mut receipts = match self.try_window(window, patience).await? {
            Tried::All(receipts) => return Ok(receipts),
            Tried::Some(receipts, error) if window.len() == 1 => {
                let blamed = Receipt::Refused(error.to_string());
                return Ok(receipts.into_iter().map(|_| blamed.clone()).collect());
            }
            Tried::Some(receipts, _) => receipts,
        };
        // Something in the window ended the channel. One by one, it takes no neighbour along.
        for (number, receipt) in receipts.iter_mut().enumerate() {
            if receipt.is_some() {
                continue;
            }
            let alone = &window[number..=number];
            *receipt = match self.try_window(alone, patience).await? {
                Tried::All(receipts) => receipts.into_iter().next(),
                Tried::Some(_, error) => Some(Receipt::Refused(error.to_string())),
            };
        }
        let gone = || Error::Unavailable("a publication got no answer".to_owned());
        receipts
            .into_iter()
            .map(|receipt| receipt.ok_or_else(gone))
            .collect()
    }

    async fn try_window(&mut self, window: &[Outgoing], patience: Patience) -> Result<Tried> {
        if let [alone] = window
            && alone.message.len() > LONGEST_MESSAGE
        {
            let size = alone.message.len();
            let refusal = format!("message of {size} bytes, expected at most {LONGEST_MESSAGE}");
            return Ok(Tried::All(vec![Receipt::Refused(refusal)]));
        }
        let limit = self.limits.confirm_timeout;
        if self.link.is_blocked() {
            let unblocked = self.link.unblocked();
            match patience {
                Patience::WhileBlocked => unblocked.await,
                // What is written now would only pile up.
                Patience::Limited => timeout(limit, unblocked)
                    .await
                    .map_err(|_| self.blocked())?,
            }
        }
        let channel = self.channel().await?.clone();
        let mut exchanging = pin!(exchange(&channel, window));
        let answers = loop {
            match timeout(limit, &mut exchanging).await {
                Ok(answers) => break answers,
                Err(_) if self.link.is_blocked() && patience == Patience::WhileBlocked => {}
                Err(_) => {
                    self.channel = None;
                    return Err(match self.link.is_blocked() {
                        true => self.blocked(),
                        false => Error::Unavailable(format!(
                            "{} confirmed nothing within {} s",
                            self.link.at(),
                            limit.as_secs_f64()
                        )),
                    });
                }
            }
        };
        let Some(error) = answers.error else {
            let receipts = answers.receipts.into_iter().flatten().collect();
            return Ok(Tried::All(receipts));
        };
        self.channel = None;
        match reply_code(&error) {
            Some(NOT_FOUND | ACCESS_REFUSED) | None => Err(self.link.unavailable(&error)),
            // The server goes away, for whatever reason of its own.
            Some(_) if !is_about_a_message(&error) => Err(self.link.unavailable(&error)),
            Some(_) => Ok(Tried::Some(answers.receipts, error)),
        }
    }

    async fn channel(&mut self) -> Result<&Channel> {
        if !self
            .channel
            .as_ref()
            .is_some_and(|channel| channel.status().connected())
        {
            let channel = self.link.channel().await?;
            let confirmed = channel.confirm_select(ConfirmSelectOptions::default());
            let confirmed = timeout(self.limits.confirm_timeout, confirmed).await;
            match confirmed {
                Ok(confirmed) => confirmed.map_err(|error| self.link.unavailable(&error))?,
                Err(_) => return Err(self.blocked()),
            }
            self.channel = Some(channel);
        }
        let gone = || Error::Unavailable("the channel is gone".to_owned());
        self.channel.as_ref().ok_or_else(gone)
    }

    fn blocked(&self) -> Error {
        let at = self.link.at();
        Error::Unavailable(format!("{at} takes no messages at the moment"))
    }
}

/// What became of a window.
enum Tried {
    All(Vec<Receipt>),
    /// The channel ended; those without a receipt may have been published or not.
    Some(Vec<Option<Receipt>>, lapin::Error),
}

struct Answers {
    receipts: Vec<Option<Receipt>>,
    error: Option<lapin::Error>,
}

/// Writes a window, awaits all that the server says, and matches what was returned.
async fn exchange(channel: &Channel, window: &[Outgoing]) -> Answers {
    let mut writing = Vec::with_capacity(window.len());
    for (number, message) in window.iter().enumerate() {
        let options = BasicPublishOptions {
            mandatory: message.mandatory,
            ..BasicPublishOptions::default()
        };
        let write = channel.basic_publish(
            message.exchange.clone(),
            message.routing_key.clone(),
            options,
            &message.message,
            message.numbered(number),
        );
        writing.push(begin(write).await);
    }
    let mut answers = Answers {
        receipts: Vec::with_capacity(window.len()),
        error: None,
    };
    let mut returned: Vec<Option<String>> = vec![None; window.len()];
    for write in writing {
        let confirmation = match end(write).await {
            Some(Ok(confirm)) => confirm.await,
            Some(Err(error)) => Err(error),
            None => Err(ErrorKind::FutureCompleted.into()),
        };
        let receipt = match confirmation {
            Ok(Confirmation::Ack(message)) => Ok((Receipt::Confirmed, message)),
            Ok(Confirmation::Nack(message)) => Ok((Receipt::Refused(NACKED.to_owned()), message)),
            Ok(Confirmation::NotRequested) => Err(ErrorKind::FutureCompleted.into()),
            Err(error) => Err(error),
        };
        match receipt {
            Ok((receipt, message)) => {
                answers.receipts.push(Some(receipt));
                if let Some(message) = message
                    && let Some(number) = wire::number(&message.properties)
                    && let Some(returned) = returned.get_mut(number)
                {
                    *returned = Some(format!("{} {}", message.reply_code, message.reply_text));
                }
            }
            Err(error) => {
                answers.receipts.push(None);
                answers.error.get_or_insert(error);
            }
        }
    }
    for ((receipt, returned), message) in answers.receipts.iter_mut().zip(returned).zip(window) {
        if let (Some(receipt), Some(reply)) = (receipt, returned) {
            let key = &message.routing_key;
            *receipt = Receipt::Refused(match message.exchange.as_str() {
                "" => format!("there is no queue {key} ({reply})"),
                exchange => format!("no queue is bound to {key} at exchange {exchange} ({reply})"),
            });
        }
    }
    answers
}

const NACKED: &str = "the broker did not take it, its queue is full or cannot store it";

/// Whether the server ended channel or connection because of what was published, and not for a
/// reason of its own.
fn is_about_a_message(error: &lapin::Error) -> bool {
    const CONNECTION_FORCED: u16 = 320;
    const INTERNAL_ERROR: u16 = 541;
    match error.kind() {
        ErrorKind::ProtocolError(error) => match error.kind() {
            AMQPErrorKind::Soft(_) => true,
            AMQPErrorKind::Hard(_) => {
                ![CONNECTION_FORCED, INTERNAL_ERROR].contains(&error.get_id())
            }
        },
        _ => false,
    }
}
