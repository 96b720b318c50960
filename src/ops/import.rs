//! Publishes the events of a file of another system.

use super::online_retail::{self, Import, Invoice, Report};
use super::progress::Progress;
use crate::broker::{self, Broker, Headers, Publication, Receipt};
use crate::message::{self, Meta, Outgoing};
use std::fmt;
use std::io::Read;

/// Why an import stopped.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The file.
    #[error(transparent)]
    File(#[from] online_retail::Error),
    /// The broker.
    #[error(transparent)]
    Broker(#[from] broker::Error),
    /// The broker did not take a message.
    #[error("the broker refused message {message_id}: {problem}")]
    Refused {
        /// The message.
        message_id: String,
        /// What the broker said.
        problem: String,
    },
}

/// Messages that are published together, about.
const WINDOW: usize = 500;

/// Reads an Online Retail file and publishes its events in the order of business. A second import
/// of the same file publishes the same messages, which are then duplicates.
///
/// # Errors
/// [`Error`] if the file as a whole cannot be used or the broker is away. What was published before
/// stays published.
pub async fn online_retail(
    input: impl Read + Send,
    options: online_retail::Options,
    broker: &dyn Broker,
    progress: &dyn Progress,
) -> Result<Report, Error> {
    progress.stage("importing invoices", None);
    let mut publisher = broker.publisher().await?;
    let mut import = Import::new(input, options)?;
    let mut window = Vec::with_capacity(WINDOW);
    let mut invoices = 0;
    loop {
        let invoice = import.next().transpose()?;
        let is_last = invoice.is_none();
        if let Some(invoice) = invoice {
            invoices += 1;
            window.extend(publications(&invoice));
        }
        if window.len() >= WINDOW || is_last {
            let receipts = publisher.publish(&window).await?;
            for (publication, receipt) in window.drain(..).zip(receipts) {
                if let Receipt::Refused(problem) = receipt {
                    return Err(Error::Refused {
                        message_id: publication.message_id,
                        problem,
                    });
                }
            }
            progress.at(invoices);
        }
        if is_last {
            return Ok(import.into_report());
        }
    }
}

/// The messages of an invoice, in the order of business.
pub fn publications(invoice: &Invoice) -> impl Iterator<Item = Publication> {
    invoice.entries.iter().map(|entry| {
        let outgoing = Outgoing::from(&entry.event);
        let meta = Meta {
            id: &entry.message_id,
            source: "orderonce/import/online-retail",
            time: invoice.at,
            traceparent: None,
        };
        Publication {
            message_id: entry.message_id.clone(),
            message: message::encode(meta, &outgoing).into(),
            event_type: outgoing.event_type.into_owned(),
            addressee: None,
            headers: Headers::new(),
        }
    })
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "{} lines: {} of goods, {} of charges, {} left out",
            self.lines,
            self.goods_lines,
            self.charges,
            self.skipped.len()
        )?;
        writeln!(
            f,
            "{} invoices: {} orders, {} cancellations, {} write-offs; {} by guests; {} SKUs",
            self.invoices, self.orders, self.credit_notes, self.write_offs, self.guests, self.skus
        )?;
        writeln!(
            f,
            "{} lines were rounded to pence (half to even)",
            self.rounded_lines
        )?;
        for (event_type, count) in &self.messages {
            writeln!(f, "  {count:>9} {event_type}")?;
        }
        for skipped in &self.skipped {
            let invoice = skipped.invoice.as_deref().unwrap_or("?");
            writeln!(
                f,
                "line {} of invoice {invoice} was left out: {}",
                skipped.line, skipped.reason
            )?;
        }
        Ok(())
    }
}
