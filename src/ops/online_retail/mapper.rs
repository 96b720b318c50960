//! Gathers lines into invoices, and turns invoices into events.

use super::fields::{
    CODE, CUSTOMER, Columns, DATE, INVOICE, PRICE, QUANTITY, excerpt, id, parse_date, text,
};
use super::rows::{Broken, Row};
use super::{Entry, Invoice, Opening, Options, Reason, Report, Skipped, WINDOW, is_charge};
use crate::domain::event::{
    AccountChange, AccountEvent, Adjustment, InventoryEvent, MAX_AMOUNT, MAX_QTY, OrderCreate,
    OrderEvent, OrderLine, OrderRef, PaymentSucceeded, StockAdjust,
};
use crate::domain::money::Decimal;
use crate::domain::{
    AccountKind, AdjustmentId, Currency, Event, Key, OrderId, Provider, SkuId, SourceId,
    SourceType, Timestamp, TradeNo, UserId,
};
use std::collections::{HashMap, HashSet, VecDeque};

const CURRENCY: Currency = Currency::GBP;

/// Gathers lines into invoices, and invoices into events.
#[derive(Debug)]
pub(super) struct Mapper {
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
    pub(super) fn new(options: Options) -> Self {
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

    /// Whether so many invoices are open that the first has to be closed.
    pub(super) fn is_full(&self) -> bool {
        self.open.len() > WINDOW + 1
    }

    /// Closes the first open invoice, if there is one. It may come to nothing but reported lines.
    pub(super) fn close_first(&mut self) -> Option<Option<Invoice>> {
        let open = self.open.pop_front()?;
        Some(self.close(open))
    }

    /// Drops the open invoices.
    pub(super) fn forget(&mut self) {
        self.open.clear();
    }

    pub(super) fn into_report(self) -> Report {
        let mut report = self.report;
        report.skipped.sort_by_key(|skipped| skipped.line);
        report
    }

    /// Puts a row with its invoice, or reports it.
    pub(super) fn take(&mut self, row: &Row<'_>, columns: &Columns) {
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
        within(MAX_QTY, Some(qty))?;
        let (unit_price, _) = price.times(1, CURRENCY).ok_or(Reason::TooLarge)?;
        let (amount, rounded) = price.times(qty, CURRENCY).ok_or(Reason::TooLarge)?;
        within(MAX_AMOUNT, Some(unit_price.minor))?;
        within(MAX_AMOUNT, Some(amount.minor))?;

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
            within(MAX_AMOUNT, Some(total_minor))?;
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
            refund = within(MAX_AMOUNT, refund.checked_sub(line.amount_minor))?;
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
                *sum = within(MAX_QTY, added)?;
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

/// A number that an event may state.
fn within(limit: i64, number: Option<i64>) -> Result<i64, Reason> {
    let number = number.filter(|number| (-limit..=limit).contains(number));
    number.ok_or(Reason::TooLarge)
}

fn user_id(open: &Open, header: &Header) -> Result<UserId, Reason> {
    if header.customer.is_empty() {
        id(INVOICE, UserId::new(&format!("guest:{}", open.number)))
    } else {
        id(CUSTOMER, UserId::new(&header.customer))
    }
}
