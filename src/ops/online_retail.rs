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

mod rows;
#[cfg(test)]
mod tests;

use crate::domain::event::{
    AccountChange, AccountEvent, Adjustment, InventoryEvent, OrderCreate, OrderEvent, OrderLine,
    OrderRef, PaymentSucceeded, StockAdjust,
};
use crate::domain::money::Decimal;
use crate::domain::{
    AccountKind, AdjustmentId, Currency, Event, IdError, Key, OrderId, Provider, SkuId, SourceId,
    SourceType, Timestamp, TradeNo, UserId,
};
use csv::ByteRecord;
use rows::{Broken, Row, Rows};
use serde::{Serialize, Serializer};
use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};
use std::io::{self, Read};

/// How many other invoices may begin between two lines of one invoice. In the data set one invoice
/// of 25,900 has lines of another between its own.
pub const WINDOW: usize = 32;

const CURRENCY: Currency = Currency::GBP;

const INVOICE: &str = "InvoiceNo";
const CODE: &str = "StockCode";
const QUANTITY: &str = "Quantity";
const DATE: &str = "InvoiceDate";
const PRICE: &str = "UnitPrice";
const CUSTOMER: &str = "CustomerID";
const COLUMNS: [&str; 6] = [INVOICE, CODE, QUANTITY, DATE, PRICE, CUSTOMER];

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

/// The units of each SKU that all orders of the file need. Write-offs and returned goods are not
/// in it.
///
/// # Errors
/// [`Error`] if the file as a whole cannot be imported.
pub fn demand(input: impl Read) -> Result<BTreeMap<SkuId, i64>, Error> {
    let mut units: BTreeMap<SkuId, i64> = BTreeMap::new();
    for invoice in Import::new(input, Options::default())? {
        for entry in invoice?.entries {
            let Event::Order(OrderEvent::Create(order)) = entry.event else {
                continue;
            };
            for line in order.lines.into_iter().filter(|line| !line.charge) {
                let sum = units.entry(line.sku_id).or_default();
                *sum = sum.saturating_add(line.qty);
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
        let mut report = self.mapper.report;
        report.skipped.sort_by_key(|skipped| skipped.line);
        report
    }
}

impl<R: Read> Iterator for Import<R> {
    type Item = Result<Invoice, Error>;

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            if self.at_end || self.mapper.open.len() > WINDOW + 1 {
                let open = self.mapper.open.pop_front()?;
                if let Some(invoice) = self.mapper.close(open) {
                    return Some(Ok(invoice));
                }
                continue;
            }
            match self.rows.read() {
                Ok(Some(row)) => self.mapper.take(&row, &self.columns),
                Ok(None) => self.at_end = true,
                Err(error) => {
                    self.at_end = true;
                    self.mapper.open.clear();
                    return Some(Err(error));
                }
            }
        }
    }
}

/// Where the columns stand.
#[derive(Debug)]
struct Columns {
    count: usize,
    invoice: usize,
    code: usize,
    quantity: usize,
    date: usize,
    price: usize,
    customer: usize,
}

impl Columns {
    fn find(names: Vec<String>) -> Result<Self, Error> {
        let position = |column| names.iter().position(|name| name == column);
        let [
            Some(invoice),
            Some(code),
            Some(quantity),
            Some(date),
            Some(price),
            Some(customer),
        ] = COLUMNS.map(position)
        else {
            let mut missing = COLUMNS.to_vec();
            missing.retain(|column| position(column).is_none());
            return Err(Error::MissingColumns {
                missing,
                found: names,
            });
        };
        Ok(Self {
            count: names.len(),
            invoice,
            code,
            quantity,
            date,
            price,
            customer,
        })
    }

    /// The invoice of a broken row, if it stands before what is broken.
    fn invoice_of_broken<'a>(&self, fields: &'a ByteRecord) -> Option<&'a str> {
        let mut before = fields.iter().take(self.invoice + 1);
        if before.any(|field| field.contains(&b'"')) {
            return None;
        }
        let invoice = text(fields, self.invoice, INVOICE).ok()?;
        OrderId::new(invoice).ok().map(|_| invoice)
    }
}

/// Gathers lines into invoices, and invoices into events.
#[derive(Debug)]
struct Mapper {
    opening: Opening,
    names: Names,
    codes: Vec<Code>,
    code_index: HashMap<Box<str>, usize>,
    last_date: (Vec<u8>, Timestamp),
    open: VecDeque<Open>,
    closed: HashSet<String>,
    report: Report,
}

/// Identifiers that do not depend on the file.
#[derive(Debug)]
struct Names {
    provider: Provider,
    balance: AccountKind,
    credit_note: SourceType,
}

/// A stock code of the file.
#[derive(Debug)]
struct Code {
    sku_id: SkuId,
    charge: bool,
    used: bool,
}

/// An invoice whose lines are being read.
#[derive(Debug)]
struct Open {
    number: String,
    first_line: u64,
    header: Option<Header>,
    lines: Vec<Line>,
    unusable: Option<u64>,
}

/// What all lines of an invoice share, from its first.
#[derive(Debug)]
struct Header {
    at: Timestamp,
    customer: String,
}

/// A line of an invoice, with its quantity as in the file: negative if goods come back.
#[derive(Debug, Clone, Copy)]
struct Line {
    number: u64,
    code: usize,
    qty: i64,
    unit_price_minor: i64,
    amount_minor: i64,
    rounded: bool,
}

impl Open {
    fn is_cancellation(&self) -> bool {
        self.number.starts_with('C')
    }

    fn is_bad_debt(&self) -> bool {
        self.number.starts_with('A')
    }

    fn message_id(&self, parts: &[&str]) -> String {
        let parts = [&[self.number.as_str()], parts].concat();
        Key::of(&parts).as_str().to_owned()
    }

    fn entry(&self, event: Event) -> Entry {
        Entry {
            message_id: self.message_id(&[event.event_type().name()]),
            event,
        }
    }
}

impl Mapper {
    fn new(options: Options) -> Self {
        Self {
            opening: options.opening,
            names: Names {
                provider: Provider::literal("card"),
                balance: AccountKind::literal("BALANCE"),
                credit_note: SourceType::literal("CREDIT_NOTE"),
            },
            codes: Vec::new(),
            code_index: HashMap::new(),
            last_date: (Vec::new(), Timestamp(0)),
            open: VecDeque::new(),
            closed: HashSet::new(),
            report: Report::default(),
        }
    }

    /// Puts a row with its invoice, or reports it.
    fn take(&mut self, row: &Row<'_>, columns: &Columns) {
        self.report.lines += 1;
        let invoice = match row.broken {
            Some(_) => columns.invoice_of_broken(row.fields).ok_or(None),
            None => text(row.fields, columns.invoice, INVOICE)
                .and_then(|invoice| id(INVOICE, OrderId::new(invoice)).map(|_| invoice))
                .map_err(Some),
        };
        let broken = row.broken.map(|broken| match broken {
            Broken::Fields(found) => Reason::Fields {
                found,
                expected: columns.count,
            },
            Broken::Quote => Reason::Quote,
            Broken::TooLong => Reason::TooLong,
        });
        let invoice = match invoice {
            Ok(invoice) => invoice,
            Err(reason) => {
                if let Some(reason) = broken.or(reason) {
                    self.skip(row.line, None, reason);
                }
                return;
            }
        };
        let Some(position) = self.position(invoice, row.line) else {
            let reason = broken.unwrap_or(Reason::Scattered);
            return self.skip(row.line, Some(invoice), reason);
        };
        let line = match broken {
            Some(reason) => Err(reason),
            None => self.line(row, columns, position),
        };
        let Some(open) = self.open.get_mut(position) else {
            return;
        };
        match line {
            Ok(line) => open.lines.push(line),
            Err(reason) => {
                open.unusable.get_or_insert(row.line);
                self.skip(row.line, Some(invoice), reason);
            }
        }
    }

    fn skip(&mut self, line: u64, invoice: Option<&str>, reason: Reason) {
        self.report.skipped.push(Skipped {
            line,
            invoice: invoice.map(str::to_owned),
            reason,
        });
    }

    /// Where the invoice is among the open ones, opening it if need be; `None` if it was closed.
    fn position(&mut self, invoice: &str, line: u64) -> Option<usize> {
        let open = self.open.iter().rposition(|open| open.number == invoice);
        if open.is_some() || self.closed.contains(invoice) {
            return open;
        }
        self.report.invoices += 1;
        self.open.push_back(Open {
            number: invoice.to_owned(),
            first_line: line,
            header: None,
            lines: Vec::new(),
            unusable: None,
        });
        Some(self.open.len() - 1)
    }

    /// Reads the fields of a row that is not broken.
    fn line(&mut self, row: &Row<'_>, columns: &Columns, open: usize) -> Result<Line, Reason> {
        let fields = row.fields;
        let code = self.code(text(fields, columns.code, CODE)?)?;
        let at = self.date(text(fields, columns.date, DATE)?)?;
        let customer = text(fields, columns.customer, CUSTOMER)?.trim();
        let customer = customer.strip_suffix(".0").unwrap_or(customer);
        let charge = self.codes.get(code).is_some_and(|code| code.charge);
        let Some(open) = self.open.get_mut(open) else {
            return Err(Reason::Scattered);
        };

        let written = text(fields, columns.quantity, QUANTITY)?.trim();
        let qty = written.parse().ok().filter(|&qty: &i64| qty != 0);
        let qty = qty.ok_or_else(|| Reason::Quantity(excerpt(written)))?;
        if qty > 0 && open.is_cancellation() {
            return Err(Reason::PositiveInCancellation(qty));
        }

        let written = text(fields, columns.price, PRICE)?.trim();
        let price = Decimal::parse(written).ok_or_else(|| Reason::Price(excerpt(written)))?;
        if price.is_negative() && !charge {
            return Err(Reason::NegativePrice(excerpt(written)));
        }
        let (unit_price, _) = price.times(1, CURRENCY).ok_or(Reason::TooLarge)?;
        let (amount, rounded) = price.times(qty, CURRENCY).ok_or(Reason::TooLarge)?;

        match &open.header {
            Some(header) if header.customer != customer => {
                return Err(Reason::OtherCustomer {
                    found: excerpt(customer),
                    first: excerpt(&header.customer),
                });
            }
            Some(_) => {}
            None => {
                if !customer.is_empty() {
                    id(CUSTOMER, UserId::new(customer))?;
                }
                open.header = Some(Header {
                    at,
                    customer: customer.to_owned(),
                });
            }
        }
        Ok(Line {
            number: row.line,
            code,
            qty,
            unit_price_minor: unit_price.minor,
            amount_minor: amount.minor,
            rounded,
        })
    }

    /// The number under which a stock code is known here.
    fn code(&mut self, code: &str) -> Result<usize, Reason> {
        if let Some(&index) = self.code_index.get(code) {
            return Ok(index);
        }
        self.codes.push(Code {
            sku_id: id(CODE, SkuId::new(code))?,
            charge: is_charge(code),
            used: false,
        });
        let index = self.codes.len() - 1;
        self.code_index.insert(code.into(), index);
        Ok(index)
    }

    /// Reads a date; lines of one invoice mostly have the same.
    fn date(&mut self, written: &str) -> Result<Timestamp, Reason> {
        let (last, at) = &mut self.last_date;
        if last != written.as_bytes() {
            *at = parse_date(written).ok_or_else(|| Reason::Date(excerpt(written)))?;
            last.clear();
            last.extend_from_slice(written.as_bytes());
        }
        Ok(*at)
    }

    /// Turns an invoice into events, or reports its lines.
    fn close(&mut self, open: Open) -> Option<Invoice> {
        self.closed.insert(open.number.clone());
        let header = open.header.as_ref();
        let mapped = match (open.unusable, header) {
            (Some(line), _) => Err(Reason::SameInvoice(line)),
            (None, _) if open.is_bad_debt() => Err(Reason::BadDebt),
            (None, None) => return None,
            (None, Some(header)) if open.is_cancellation() => self.cancellation(&open, header),
            (None, Some(header)) => self.order(&open, header),
        };
        let (events, at) = match (mapped, header) {
            (Ok(events), Some(header)) => (events, header.at),
            (Ok(_), None) => return None,
            (Err(reason), _) => {
                for line in &open.lines {
                    self.skip(line.number, Some(&open.number), reason.clone());
                }
                return None;
            }
        };
        let mut entries = self.open_stock(&open.lines);
        entries.extend(events);
        self.count(&open, &entries);
        Some(Invoice {
            number: open.number,
            line: open.first_line,
            at,
            entries,
        })
    }

    /// Sets the stock of goods that have not been used before.
    fn open_stock(&mut self, lines: &[Line]) -> Vec<Entry> {
        let mut entries = Vec::new();
        for line in lines {
            let Some(code) = self.codes.get_mut(line.code) else {
                continue;
            };
            if code.used || code.charge {
                continue;
            }
            code.used = true;
            self.report.skus += 1;
            let units = match &self.opening {
                Opening::Untouched => None,
                Opening::Each(units) => Some(i64::from(*units)),
                Opening::Exactly(units) => units.get(&code.sku_id).copied(),
            };
            let Some(units) = units else {
                continue;
            };
            let id = Key::of(&["opening", code.sku_id.as_str()]);
            entries.push(Entry {
                message_id: id.as_str().to_owned(),
                event: Event::Inventory(InventoryEvent::Adjust(StockAdjust {
                    adjustment_id: AdjustmentId::literal(id.as_str()),
                    sku_id: code.sku_id.clone(),
                    adjustment: Adjustment::Set(units),
                    version: Some(0),
                    reason: Some("opening stock".to_owned()),
                })),
            });
        }
        entries
    }

    fn count(&mut self, open: &Open, entries: &[Entry]) {
        let report = &mut self.report;
        for line in &open.lines {
            let charge = self.codes.get(line.code).is_some_and(|code| code.charge);
            report.charges += u64::from(charge);
            report.goods_lines += u64::from(!charge);
            report.rounded_lines += u64::from(line.rounded);
            if !charge && line.qty < 0 && !open.is_cancellation() {
                report.write_offs += 1;
                report.priced_write_offs += u64::from(line.amount_minor != 0);
            }
        }
        let mut ordered = false;
        for entry in entries {
            *report
                .messages
                .entry(entry.event.event_type().name())
                .or_default() += 1;
            if let Event::Order(OrderEvent::Create(order)) = &entry.event {
                ordered = true;
                report.ordered_minor = report.ordered_minor.saturating_add(order.total_minor);
            }
            if let Event::Account(AccountEvent::Credit(credit)) = &entry.event {
                report.credited_minor = report.credited_minor.saturating_add(credit.amount);
            }
        }
        report.orders += u64::from(ordered);
        report.credit_notes += u64::from(open.is_cancellation());
        let guest = open.header.as_ref().is_some_and(|h| h.customer.is_empty());
        report.guests += u64::from(guest && (ordered || open.is_cancellation()));
    }

    /// An order, its goods of negative quantity written off.
    fn order(&self, open: &Open, header: &Header) -> Result<Vec<Entry>, Reason> {
        let mut lines = Vec::new();
        let mut written_off = Vec::new();
        let mut total_minor: i64 = 0;
        let mut units: i64 = 0;
        for line in &open.lines {
            let Some(code) = self.codes.get(line.code) else {
                continue;
            };
            if line.qty < 0 && !code.charge {
                written_off.push(*line);
                continue;
            }
            let add = |sum: i64, more| sum.checked_add(more).ok_or(Reason::TooLarge);
            total_minor = add(total_minor, line.amount_minor)?;
            let qty = line.qty.checked_abs().ok_or(Reason::TooLarge)?;
            units = add(units, if code.charge { 0 } else { qty })?;
            // A charge that is taken off, such as a discount, has a negative price instead.
            let unit_price_minor = line.unit_price_minor.checked_mul(line.qty.signum());
            lines.push(OrderLine {
                sku_id: code.sku_id.clone(),
                qty,
                unit_price_minor: unit_price_minor.ok_or(Reason::TooLarge)?,
                amount_minor: line.amount_minor,
                charge: code.charge,
            });
        }
        let mut entries = Vec::new();
        if !lines.is_empty() {
            if total_minor < 0 {
                return Err(Reason::NegativeTotal(total_minor));
            }
            self.order_events(open, header, lines, total_minor, &mut entries)?;
        }
        self.adjust("write-off", open, &written_off, &mut entries)?;
        Ok(entries)
    }

    fn order_events(
        &self,
        open: &Open,
        header: &Header,
        lines: Vec<OrderLine>,
        total_minor: i64,
        entries: &mut Vec<Entry>,
    ) -> Result<(), Reason> {
        let order_id = id(INVOICE, OrderId::new(&open.number))?;
        let of_order = || OrderRef {
            order_id: order_id.clone(),
        };
        entries.push(open.entry(Event::Order(OrderEvent::Create(OrderCreate {
            order_id: order_id.clone(),
            user_id: user_id(open, header)?,
            currency: CURRENCY,
            total_minor,
            lines,
            pay_within_seconds: None,
        }))));
        if total_minor > 0 {
            let trade_no = format!("card-{}", open.number);
            entries.push(open.entry(Event::Order(OrderEvent::PaymentSucceeded(
                PaymentSucceeded {
                    order_id: order_id.clone(),
                    provider: self.names.provider.clone(),
                    trade_no: id(INVOICE, TradeNo::new(&trade_no))?,
                    out_trade_no: None,
                    trade_status: None,
                    amount_minor: total_minor,
                    currency: CURRENCY,
                },
            ))));
        }
        entries.push(open.entry(Event::Order(OrderEvent::Ship(of_order()))));
        entries.push(open.entry(Event::Order(OrderEvent::Complete(of_order()))));
        Ok(())
    }

    /// A cancellation: its money goes to the customer's balance, its goods back to the stock.
    fn cancellation(&self, open: &Open, header: &Header) -> Result<Vec<Entry>, Reason> {
        let mut refund: i64 = 0;
        for line in &open.lines {
            let sum = refund.checked_sub(line.amount_minor);
            refund = sum.ok_or(Reason::TooLarge)?;
        }
        if refund < 0 {
            return Err(Reason::NegativeRefund(refund));
        }
        let mut entries = Vec::new();
        if refund > 0 {
            entries.push(
                open.entry(Event::Account(AccountEvent::Credit(AccountChange {
                    user_id: user_id(open, header)?,
                    kind: self.names.balance.clone(),
                    source_type: self.names.credit_note.clone(),
                    source_id: id(INVOICE, SourceId::new(&open.number))?,
                    amount: refund,
                }))),
            );
        }
        self.adjust("credit-note", open, &open.lines, &mut entries)?;
        if entries.is_empty() {
            return Err(Reason::NothingCancelled);
        }
        Ok(entries)
    }

    /// Changes the stock of each SKU by all its lines, in order of the SKUs' first lines.
    fn adjust(
        &self,
        what: &'static str,
        open: &Open,
        lines: &[Line],
        entries: &mut Vec<Entry>,
    ) -> Result<(), Reason> {
        let returned = open.is_cancellation();
        let mut sums: Vec<(&SkuId, i64)> = Vec::new();
        let mut position: HashMap<usize, usize> = HashMap::new();
        for line in lines {
            let Some(code) = self.codes.get(line.code).filter(|code| !code.charge) else {
                continue;
            };
            let index = *position.entry(line.code).or_insert(sums.len());
            if index == sums.len() {
                sums.push((&code.sku_id, 0));
            }
            let change = if returned {
                line.qty.checked_neg()
            } else {
                Some(line.qty)
            };
            if let Some((_, sum)) = sums.get_mut(index) {
                let added = change.and_then(|change| sum.checked_add(change));
                *sum = added.ok_or(Reason::TooLarge)?;
            }
        }
        for (sku_id, change) in sums {
            let id = Key::of(&[what, &open.number, sku_id.as_str()]);
            let event = InventoryEvent::Adjust(StockAdjust {
                adjustment_id: AdjustmentId::literal(id.as_str()),
                sku_id: sku_id.clone(),
                adjustment: Adjustment::Change(change),
                version: None,
                reason: Some(format!("{what} {}", open.number)),
            });
            entries.push(Entry {
                message_id: open.message_id(&[event.event_type().name(), sku_id.as_str()]),
                event: Event::Inventory(event),
            });
        }
        Ok(())
    }
}

fn user_id(open: &Open, header: &Header) -> Result<UserId, Reason> {
    if header.customer.is_empty() {
        id(INVOICE, UserId::new(&format!("guest:{}", open.number)))
    } else {
        id(CUSTOMER, UserId::new(&header.customer))
    }
}

fn id<T>(column: &'static str, result: Result<T, IdError>) -> Result<T, Reason> {
    result.map_err(|error| Reason::Id(column, error))
}

fn text<'a>(
    fields: &'a ByteRecord,
    position: usize,
    column: &'static str,
) -> Result<&'a str, Reason> {
    let bytes = fields.get(position).unwrap_or_default();
    std::str::from_utf8(bytes).map_err(|_| Reason::NotUtf8(column))
}

/// The beginning of a text, for a message.
fn excerpt(text: &str) -> String {
    text.chars().take(40).collect()
}

/// Reads `2010-12-01 08:26:00`, or `12/1/2010 8:26` (month first) as spreadsheets write it. Seconds
/// may be left out.
fn parse_date(written: &str) -> Option<Timestamp> {
    let (day, clock) = written.trim().split_once([' ', 'T'])?;
    let (year, month, day) = if day.contains('/') {
        let [month, day, year] = split(day, '/')?;
        (year, month, day)
    } else {
        let [year, month, day] = split(day, '-')?;
        (year, month, day)
    };
    let (hour, minute, second) = match split(clock, ':') {
        Some([hour, minute, second]) => (hour, minute, second),
        None => {
            let [hour, minute] = split(clock, ':')?;
            (hour, minute, "0")
        }
    };
    let year = (year.len() == 4).then(|| number(year))??;
    let small = |text| number(text).and_then(|n| u8::try_from(n).ok());
    let month = time::Month::try_from(small(month)?).ok()?;
    let date = time::Date::from_calendar_date(year, month, small(day)?).ok()?;
    let time = time::Time::from_hms(small(hour)?, small(minute)?, small(second)?).ok()?;
    let seconds = date.with_time(time).assume_utc().unix_timestamp();
    Some(Timestamp(seconds * 1000))
}

fn split<const N: usize>(text: &str, separator: char) -> Option<[&str; N]> {
    text.split(separator).collect::<Vec<_>>().try_into().ok()
}

fn number(text: &str) -> Option<i32> {
    let digits = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    digits.then(|| text.parse().ok())?
}
