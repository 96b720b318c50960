//! The fields of a row: where they stand and what their text means.

use super::{Error, Reason};
use crate::domain::{IdError, OrderId, Timestamp};
use csv::ByteRecord;

pub(super) const INVOICE: &str = "InvoiceNo";
pub(super) const CODE: &str = "StockCode";
pub(super) const QUANTITY: &str = "Quantity";
pub(super) const DATE: &str = "InvoiceDate";
pub(super) const PRICE: &str = "UnitPrice";
pub(super) const CUSTOMER: &str = "CustomerID";
pub(super) const COLUMNS: [&str; 6] = [INVOICE, CODE, QUANTITY, DATE, PRICE, CUSTOMER];

/// Where the columns stand.
#[derive(Debug)]
pub(super) struct Columns {
    pub(super) count: usize,
    pub(super) invoice: usize,
    pub(super) code: usize,
    pub(super) quantity: usize,
    pub(super) date: usize,
    pub(super) price: usize,
    pub(super) customer: usize,
}

impl Columns {
    pub(super) fn find(names: Vec<String>) -> Result<Self, Error> {
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
    pub(super) fn invoice_of_broken<'a>(&self, fields: &'a ByteRecord) -> Option<&'a str> {
        let mut before = fields.iter().take(self.invoice + 1);
        if before.any(|field| field.contains(&b'"')) {
            return None;
        }
        let invoice = text(fields, self.invoice, INVOICE).ok()?;
        OrderId::new(invoice).ok().map(|_| invoice)
    }
}

pub(super) fn id<T>(column: &'static str, result: Result<T, IdError>) -> Result<T, Reason> {
    result.map_err(|error| Reason::Id(column, error))
}

pub(super) fn text<'a>(
    fields: &'a ByteRecord,
    position: usize,
    column: &'static str,
) -> Result<&'a str, Reason> {
    let bytes = fields.get(position).unwrap_or_default();
    std::str::from_utf8(bytes).map_err(|_| Reason::NotUtf8(column))
}

/// The beginning of a text, for a message.
pub(super) fn excerpt(text: &str) -> String {
    text.chars().take(40).collect()
}

/// Reads `2010-12-01 08:26:00`, or `12/1/2010 8:26` (month first) as spreadsheets write it. Seconds
/// may be left out.
pub(super) fn parse_date(written: &str) -> Option<Timestamp> {
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
