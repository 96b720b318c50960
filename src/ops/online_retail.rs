//! Reads the UCI Online Retail data set, or a file like it, as events.
//!
//! The file has one line for each line of an invoice. An invoice becomes:
//!
//! | invoice | events, in this order |
//! | --- | --- |
//! | an order | `order.create`, `payment.succeeded` (not for a total of 0), `order.ship`, `order.complete` |
//! | a cancellation (`C...`) | `account.credit` of the customer's `BALANCE`, and a `stock.adjust` for each SKU |
//! | goods of negative quantity in any other | a `stock.adjust` for each SKU: a write-off |
//! | a bad-debt adjustment (`A...`) | none; its lines are reported |
//!
//! Money counts every line, stock only goods (see [`is_charge`]). Amounts are pounds sterling, a
//! line's amount is rounded half to even to pence, and times are taken as UTC. A SKU keeps its
//! letter case. The same input always gives the same events with the same message ids, so a file
//! can be imported twice to no further effect.
//!
//! Half an invoice would be a wrong order, so an invoice with a line that cannot be used is left
//! out whole and can be imported once the line is mended. Every line of the file is either counted
//! as goods or as a charge, or stands in [`Report::skipped`] with its number and the reason.
//!
//! Nothing here sends anything: [`Import`] is an iterator over invoices, in order of their first
//! lines, that holds only the last few ([`WINDOW`]) of them.

mod fields;
mod mapper;
mod rows;
#[cfg(test)]
mod tests;

use crate::domain::event::{Adjustment, InventoryEvent, OrderEvent, StockAdjust};
use crate::domain::{Event, IdError, SkuId, Timestamp};
use fields::{COLUMNS, Columns};
use mapper::Mapper;
use rows::Rows;
use serde::{Serialize, Serializer};
use std::collections::BTreeMap;
use std::io::{self, Read};

/// How many other invoices may begin between two lines of one invoice. In the data set one invoice
/// of 25,900 has lines of another between its own.
pub const WINDOW: usize = 32;

/// Why a file cannot be imported.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// It could not be read.
    #[error("cannot read line {line}")]
    Read {
        /// The line.
        line: u64,
        /// What the operating system or the decoder says.
        source: io::Error,
    },
    /// It has no header.
    #[error("the file is empty, expected a header with the columns {}", COLUMNS.join(", "))]
    Empty,
    /// Its header lacks columns.
    #[error("the header lacks {}, it has {found:?}", missing.join(", "))]
    MissingColumns {
        /// The columns that are needed.
        missing: Vec<&'static str>,
        /// The columns that are there.
        found: Vec<String>,
    },
}

/// What an import may choose.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Options {
    /// The stock with which SKUs begin.
    pub opening: Opening,
}

/// How the stock of a SKU is set before the SKU is first used, with the adjustment `opening/<sku>`.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum Opening {
    /// Not at all: the stock is what it is.
    #[default]
    Untouched,
    /// To this many units for each SKU.
    Each(u32),
    /// To the units of this table, such as [`demand`] gives; a SKU that is not in it is left alone.
    Exactly(BTreeMap<SkuId, i64>),
}

/// What an invoice becomes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Invoice {
    /// Its number.
    pub number: String,
    /// Its first line in the file; the header is line 1.
    pub line: u64,
    /// When it was written.
    pub at: Timestamp,
    /// Its events in business order, opening stock first.
    pub entries: Vec<Entry>,
}

/// An event that has not been sent yet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    /// The id of its message: the same whenever the file is read, such as `536365/order.create`.
    pub message_id: String,
    /// The event.
    pub event: Event,
}

/// What was found in the file. After the last invoice, `goods_lines + charges + skipped` are all
/// `lines`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Report {
    /// Rows after the header; those with nothing on them are none.
    pub lines: u64,
    /// Different invoice numbers.
    pub invoices: u64,
    /// Orders.
    pub orders: u64,
    /// Cancellations.
    pub credit_notes: u64,
    /// Lines that are goods: sold, given back or written off.
    pub goods_lines: u64,
    /// Lines that are charges.
    pub charges: u64,
    /// Lines of goods that were written off.
    pub write_offs: u64,
    /// Written-off lines with a price, which counts nowhere.
    pub priced_write_offs: u64,
    /// Lines whose amount was not whole pence.
    pub rounded_lines: u64,
    /// Orders and cancellations without a customer.
    pub guests: u64,
    /// Different SKUs of goods.
    pub skus: u64,
    /// Total of all orders, in pence.
    pub ordered_minor: i64,
    /// Total of all cancellations, in pence.
    pub credited_minor: i64,
    /// How many events there are of each type.
    pub messages: BTreeMap<&'static str, u64>,
    /// Lines that became no event, in order.
    pub skipped: Vec<Skipped>,
}

/// A line that became no event.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Skipped {
    /// Its number in the file; the header is line 1.
    pub line: u64,
    /// Its invoice, where it can be told.
    pub invoice: Option<String>,
    /// Why.
    #[serde(serialize_with = "as_text")]
    pub reason: Reason,
}

/// Why a line became no event.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Reason {
    /// The row has too many or too few fields.
    #[error("has {found} fields instead of {expected}")]
    Fields {
        /// Fields of the row.
        found: usize,
        /// Columns of the header.
        expected: usize,
    },
    /// The row has a quote without its counterpart.
    #[error("has a quote that is not closed, or that is followed by text")]
    Quote,
    /// The row is far longer than an invoice line can be.
    #[error("is longer than {} bytes", rows::MAX_BYTES)]
    TooLong,
    /// A field that is needed is not text.
    #[error("{0} is not UTF-8")]
    NotUtf8(&'static str),
    /// A field cannot identify anything.
    #[error("{0} {1}")]
    Id(&'static str, IdError),
    /// The quantity is not a number, or 0.
    #[error("Quantity {0:?} is not a whole number other than 0")]
    Quantity(String),
    /// The price is not a number.
    #[error("UnitPrice {0:?} is not a decimal number such as 2.55")]
    Price(String),
    /// The date is none.
    #[error("InvoiceDate {0:?} is not a time such as 2010-12-01 08:26:00 or 12/1/2010 8:26")]
    Date(String),
    /// Goods that cost less than nothing.
    #[error("UnitPrice {0} of goods is negative")]
    NegativePrice(String),
    /// A cancellation that sells.
    #[error("Quantity {0} is positive in a cancellation")]
    PositiveInCancellation(i64),
    /// Two customers on one invoice.
    #[error("CustomerID {found:?} differs from {first:?} on the first line of the invoice")]
    OtherCustomer {
        /// The customer of this line.
        found: String,
        /// The customer of the invoice.
        first: String,
    },
    /// A number that no amount can hold.
    #[error("the amount or the total is too large")]
    TooLarge,
    /// An order that gives money to its customer.
    #[error("the order's total of {0} pence is negative")]
    NegativeTotal(i64),
    /// A cancellation that takes money from its customer.
    #[error("the cancellation's refund of {0} pence is negative")]
    NegativeRefund(i64),
    /// A cancellation without goods or money.
    #[error("the cancellation refunds nothing and returns no goods")]
    NothingCancelled,
    /// An invoice `A...`.
    #[error("a bad-debt adjustment (A...) is neither an order nor a cancellation")]
    BadDebt,
    /// The line is fine, but another of its invoice is not.
    #[error("line {0} of the same invoice cannot be used, so the invoice is left out")]
    SameInvoice(u64),
    /// The invoice was finished long before.
    #[error("more than {WINDOW} other invoices stand between this line and its invoice")]
    Scattered,
}

fn as_text<S: Serializer>(reason: &Reason, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_str(reason)
}

/// Whether a stock code is a charge such as postage or a discount: it counts money and no stock.
///
/// These are codes without a digit (`POST` postage, `DOT` postage of the web shop, `D` discount, `M`
/// manual, `S` samples, `B` bad debt, `PADS`, `CRUK` a charity, `BANK CHARGES`, `AMAZONFEE`, ...),
/// `C2` (carriage) and gift vouchers (`gift_...`).
#[must_use]
pub fn is_charge(code: &str) -> bool {
    let has_digit = code.bytes().any(|byte| byte.is_ascii_digit());
    !has_digit || code == "C2" || code.starts_with("gift_")
}

/// The units of each SKU that the file takes: those that its orders need and those that it writes
/// off. Returned goods are not in it.
///
/// # Errors
/// [`Error`] if the file as a whole cannot be imported.
pub fn demand(input: impl Read) -> Result<BTreeMap<SkuId, i64>, Error> {
    let mut units: BTreeMap<SkuId, i64> = BTreeMap::new();
    for invoice in Import::new(input, Options::default())? {
        for entry in invoice?.entries {
            let mut take = |sku_id, qty| {
                let sum = units.entry(sku_id).or_default();
                *sum = sum.saturating_add(qty);
            };
            match entry.event {
                Event::Order(OrderEvent::Create(order)) => {
                    let goods = order.lines.into_iter().filter(|line| !line.charge);
                    goods.for_each(|line| take(line.sku_id, line.qty));
                }
                Event::Inventory(InventoryEvent::Adjust(StockAdjust {
                    sku_id,
                    adjustment: Adjustment::Change(change @ ..0),
                    ..
                })) => take(sku_id, change.saturating_neg()),
                Event::Order(_) | Event::Inventory(_) | Event::Account(_) | Event::Notice(_) => {}
            }
        }
    }
    Ok(units)
}

/// The invoices of a file, in order of their first lines. After an error there are no more.
#[derive(Debug)]
pub struct Import<R> {
    rows: Rows<R>,
    columns: Columns,
    mapper: Mapper,
    at_end: bool,
}

impl<R: Read> Import<R> {
    /// Begins to read, up to the header.
    ///
    /// # Errors
    /// [`Error`] if there is none, or it lacks a column.
    pub fn new(input: R, options: Options) -> Result<Self, Error> {
        let (rows, names) = Rows::new(input)?;
        Ok(Self {
            rows,
            columns: Columns::find(names)?,
            mapper: Mapper::new(options),
            at_end: false,
        })
    }

    /// What was found so far; lines of invoices that have not come out yet are not in it.
    #[must_use]
    pub fn into_report(self) -> Report {
        self.mapper.into_report()
    }
}

impl<R: Read> Iterator for Import<R> {
    type Item = Result<Invoice, Error>;

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            if self.at_end || self.mapper.is_full() {
                match self.mapper.close_first()? {
                    Some(invoice) => return Some(Ok(invoice)),
                    None => continue,
                }
            }
            match self.rows.read() {
                Ok(Some(row)) => self.mapper.take(&row, &self.columns),
                Ok(None) => self.at_end = true,
                Err(error) => {
                    self.at_end = true;
                    self.mapper.forget();
                    return Some(Err(error));
                }
            }
        }
    }
}
