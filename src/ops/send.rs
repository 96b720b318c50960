//! Publishes messages from a file, one JSON envelope a line.

use super::progress::Progress;
use crate::broker::{self, Broker, Headers, Publication, Receipt};
use crate::message::{Envelope, Limits};
use serde::Serialize;
use std::fmt;
use std::io::{self, BufRead};

/// How messages are sent.
#[derive(Debug, Clone, Default)]
pub struct Options {
    /// How often each message is sent, at least once.
    pub repeat: u32,
    /// Sends everything in an order that follows from this number.
    pub shuffle: Option<u64>,
}

/// What was sent.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Report {
    /// Lines that were read, without empty ones.
    pub lines: u64,
    /// Messages that are safe with the broker, copies counted.
    pub sent: u64,
    /// Lines that were not sent, and why.
    pub refused: Vec<Refused>,
}

/// A line that was not sent.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Refused {
    /// Its number in the file, from 1.
    pub line: u64,
    /// What is wrong with it.
    pub reason: String,
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "read {} lines, sent {} messages", self.lines, self.sent)?;
        for refused in &self.refused {
            writeln!(f, "line {} was not sent: {}", refused.line, refused.reason)?;
        }
        Ok(())
    }
}

/// Why sending stopped.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The input cannot be read.
    #[error("the messages cannot be read")]
    Read(#[from] io::Error),
    /// The broker.
    #[error(transparent)]
    Broker(#[from] broker::Error),
}

/// Messages that are published together.
const WINDOW: usize = 500;

/// Reads all lines and publishes them. A line that is no envelope, or whose type no queue is bound
/// to, is reported and the rest is sent.
///
/// # Errors
/// [`Error`] if the input cannot be read or the broker is away.
pub async fn send(
    input: impl BufRead,
    options: &Options,
    limits: &Limits,
    broker: &dyn Broker,
    progress: &dyn Progress,
) -> Result<Report, Error> {
    let mut report = Report::default();
    let mut messages = read(input, limits, &mut report)?;
    let once = messages.len();
    for _ in 1..options.repeat {
        messages.extend_from_within(..once);
    }
    if let Some(seed) = options.shuffle {
        fastrand::Rng::with_seed(seed).shuffle(&mut messages);
    }
    progress.stage("sending", u64::try_from(messages.len()).ok());
    let mut publisher = broker.publisher().await?;
    for window in messages.chunks(WINDOW) {
        let publications: Vec<_> = window.iter().map(|(_, message)| message.clone()).collect();
        let receipts = publisher.publish(&publications).await?;
        for ((line, _), receipt) in window.iter().zip(receipts) {
            match receipt {
                Receipt::Confirmed => report.sent += 1,
                Receipt::Refused(reason) => report.refuse(*line, reason),
            }
        }
        progress.at(report.sent);
    }
    report.refused.sort_by_key(|refused| refused.line);
    Ok(report)
}

impl Report {
    /// Keeps one reason for each line, however often the line is sent.
    fn refuse(&mut self, line: u64, reason: String) {
        if !self.refused.iter().any(|refused| refused.line == line) {
            self.refused.push(Refused { line, reason });
        }
    }
}

fn read(
    input: impl BufRead,
    limits: &Limits,
    report: &mut Report,
) -> Result<Vec<(u64, Publication)>, Error> {
    let mut messages = Vec::new();
    for (number, line) in (1..).zip(input.split(b'\n')) {
        let line = line?;
        let line = line.strip_suffix(b"\r").unwrap_or(&line);
        if line.trim_ascii().is_empty() {
            continue;
        }
        report.lines += 1;
        match Envelope::parse(line, limits) {
            Ok(envelope) => messages.push((
                number,
                Publication {
                    message_id: envelope.id.to_string(),
                    event_type: envelope.event_type.to_string(),
                    addressee: None,
                    message: line.to_vec().into(),
                    headers: Headers::new(),
                },
            )),
            Err(malformed) => report.refuse(number, malformed.to_string()),
        }
    }
    Ok(messages)
}
