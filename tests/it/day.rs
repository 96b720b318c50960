//! A real shop's day: its messages, and what must have become of it.
//!
//! The messages are those that `orderonce import` publishes. What must have become of them is
//! computed here from the file itself, with no code of the crate.

use crate::site::Site;
use liblzma::read::XzDecoder;
use orderonce::broker::Publication;
use orderonce::domain::{Event, Timestamp};
use orderonce::message::Outgoing;
use orderonce::ops::import::publications;
use orderonce::ops::online_retail::{Import, Opening, Options};
use orderonce::worker::Processor;
use orderonce::worker::inventory::InventoryRole;
use serde::Deserialize;
use std::collections::{BTreeMap, BTreeSet};
use std::io::Read;
use std::sync::{Arc, LazyLock};

pub(crate) const FILE: &str = include_str!("../data/online-retail-2010-12-01.csv");

/// Units of each SKU before the first sale: more than the day sells.
const OPENING: u32 = 100_000;

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Row {
    invoice_no: String,
    stock_code: String,
    quantity: i64,
    unit_price: String,
    #[serde(rename = "CustomerID")]
    customer: String,
}

impl Row {
    fn is_goods(&self) -> bool {
        let code = &self.stock_code;
        code.contains(|c: char| c.is_ascii_digit()) && code != "C2" && !code.starts_with("gift_")
    }

    fn pence(&self) -> i64 {
        let (pounds, pence) = self.unit_price.split_once('.').unwrap();
        let pence = format!("{pence:0<2}");
        assert_eq!(pence.len(), 2, "the day has whole pence only");
        self.quantity * (pounds.parse::<i64>().unwrap() * 100 + pence.parse::<i64>().unwrap())
    }

    fn user(&self) -> String {
        match self.customer.trim_end_matches(".0") {
            "" => format!("guest:{}", self.invoice_no),
            customer => customer.to_owned(),
        }
    }
}

/// What must have become of a day.
#[derive(Debug, Default, PartialEq, Eq)]
struct Books {
    /// Status and total, by order.
    orders: BTreeMap<String, (String, i64)>,
    /// Status, by order.
    reservations: BTreeMap<String, String>,
    /// Units that each order took, by order and SKU.
    taken: BTreeMap<(String, String), i64>,
    /// Units, by SKU.
    stock: BTreeMap<String, i64>,
    /// Balances, by user and kind.
    accounts: BTreeMap<(String, String), i64>,
    /// The shop's messages, each claimed once.
    claims: BTreeMap<String, i64>,
}

/// Some invoices of the day.
pub(crate) struct Day {
    opening: Vec<Event>,
    /// The messages of each invoice, in the order of business.
    invoices: Vec<Vec<Publication>>,
    books: Books,
}

impl Day {
    /// The first invoices of the day.
    pub(crate) fn first(count: usize) -> Self {
        Self::of(FILE, count)
    }

    /// The first invoices of the year, which are many days.
    pub(crate) fn of_year(count: usize) -> Self {
        static YEAR: LazyLock<String> = LazyLock::new(|| {
            let mut text = String::new();
            let file = &include_bytes!("../data/online-retail.csv.xz")[..];
            // As much as any test uses.
            let mut beginning = XzDecoder::new(file).take(6 << 20);
            beginning.read_to_string(&mut text).unwrap();
            let end = text.rfind('\n').unwrap();
            text.truncate(end + 1);
            text
        });
        Self::of(&YEAR, count)
    }

    fn of(file: &str, count: usize) -> Self {
        let options = Options {
            opening: Opening::Each(OPENING),
        };
        let import = Import::new(file.as_bytes(), options).unwrap();
        let mut day = Self {
            opening: Vec::new(),
            invoices: Vec::new(),
            books: Books::default(),
        };
        let mut numbers = BTreeSet::new();
        for invoice in import.take(count) {
            let mut invoice = invoice.unwrap();
            let (opening, entries) = invoice
                .entries
                .into_iter()
                .partition(|entry| entry.message_id.starts_with("opening/"));
            invoice.entries = entries;
            let opening: Vec<_> = opening;
            day.opening
                .extend(opening.into_iter().map(|entry| entry.event));
            day.invoices.push(publications(&invoice).collect());
            numbers.insert(invoice.number);
        }
        day.books = Books::of(file, |row| numbers.contains(&row.invoice_no));
        day
    }

    pub(crate) fn whole() -> Self {
        Self::first(usize::MAX)
    }

    /// All messages, in the order of business.
    pub(crate) fn messages(&self) -> Vec<Publication> {
        self.invoices.concat()
    }

    /// All messages, about a third of them twice, in an order in which they overtake each other, in
    /// `count` parts.
    pub(crate) fn parts(&self, count: usize, rng: &mut fastrand::Rng) -> Vec<Vec<Publication>> {
        let size = self.invoices.len().div_ceil(count);
        let part = |invoices: &[Vec<Publication>]| {
            let mut messages = invoices.concat();
            for place in 0..messages.len() {
                if rng.u8(..3) == 0 {
                    messages.push(messages[place].clone());
                }
            }
            rng.shuffle(&mut messages);
            messages
        };
        self.invoices.chunks(size).map(part).collect()
    }

    /// Puts the opening stock on the shelves.
    pub(crate) async fn stock_up(&self, site: &Site) {
        let deployment = site.deployment();
        let store = Arc::clone(&deployment.store);
        let processor = Processor::new(InventoryRole, store, deployment.settings());
        let events = self.opening.iter().map(|event| {
            let Event::Inventory(adjust) = event else {
                panic!("{event:?} is no adjustment");
            };
            (adjust.clone(), Outgoing::from(event))
        });
        let now = Timestamp::parse_rfc3339("2010-12-01T00:00:00Z").unwrap();
        let outcomes = processor.process_events(now, events.collect()).await;
        assert_eq!(outcomes.unwrap().len(), self.opening.len());
    }

    /// Expects that every effect of the day happened once, and nothing else.
    pub(crate) async fn happened_once(&self, site: &Site) {
        self.effects_happened_once(site).await;
        assert_eq!(Books::found(site).await.claims, self.books.claims);
    }

    /// As [`Self::happened_once`], whatever became of the claims.
    pub(crate) async fn effects_happened_once(&self, site: &Site) {
        site.reconciles();
        let found = Books::found(site).await;
        assert_eq!(found.orders, self.books.orders);
        assert_eq!(found.reservations, self.books.reservations);
        assert_eq!(found.taken, self.books.taken);
        assert_eq!(found.stock, self.books.stock);
        assert_eq!(found.accounts, self.books.accounts);
        assert_eq!(site.queued().await, 0, "queued");
        for (what, count) in [
            ("in the outbox", "SELECT count(*) FROM outbox"),
            ("parked", "SELECT count(*) FROM parked_event"),
            (
                "dead",
                "SELECT count(*) FROM dead_letter WHERE status = 'DEAD'",
            ),
        ] {
            assert_eq!(site.number(count).await, 0, "{what}");
        }
    }
}

impl Books {
    fn of(file: &str, is_chosen: impl Fn(&Row) -> bool) -> Self {
        let mut invoices: BTreeMap<String, Vec<Row>> = BTreeMap::new();
        for row in csv::Reader::from_reader(file.as_bytes()).deserialize() {
            let row: Row = row.unwrap();
            if is_chosen(&row) {
                invoices
                    .entry(row.invoice_no.clone())
                    .or_default()
                    .push(row);
            }
        }
        let mut books = Self::default();
        for (number, rows) in &invoices {
            if number.starts_with('C') {
                books.cancellation(number, rows);
            } else {
                books.order(number, rows);
            }
        }
        books
    }

    fn order(&mut self, number: &str, rows: &[Row]) {
        let (written_off, sold): (Vec<_>, Vec<_>) = rows
            .iter()
            .partition(|row| row.is_goods() && row.quantity < 0);
        self.adjust(number, "stock.adjust", &written_off, 1);
        if sold.is_empty() {
            return;
        }
        let total: i64 = sold.iter().map(|row| row.pence()).sum();
        let of_order = |event: &str| format!("{number}/{event}");
        let status = "COMPLETED".to_owned();
        self.orders.insert(number.to_owned(), (status, total));
        self.reservations
            .insert(number.to_owned(), "DEDUCTED".to_owned());
        for row in sold.iter().filter(|row| row.is_goods()) {
            let sku = row.stock_code.clone();
            *self.stock.entry(sku.clone()).or_insert(OPENING.into()) -= row.quantity;
            *self.taken.entry((number.to_owned(), sku)).or_default() -= row.quantity;
        }
        if total >= 100 {
            let account = (sold[0].user(), "POINTS".to_owned());
            *self.accounts.entry(account).or_default() += total / 100;
        }
        if total > 0 {
            self.claims.insert(of_order("payment.succeeded"), 1);
        }
        for event in ["order.create", "order.ship", "order.complete"] {
            self.claims.insert(of_order(event), 1);
        }
    }

    fn cancellation(&mut self, number: &str, rows: &[Row]) {
        let refund: i64 = rows.iter().map(|row| -row.pence()).sum();
        let account = (rows[0].user(), "BALANCE".to_owned());
        *self.accounts.entry(account).or_default() += refund;
        self.claims.insert(format!("{number}/account.credit"), 1);
        let goods: Vec<_> = rows.iter().filter(|row| row.is_goods()).collect();
        self.adjust(number, "stock.adjust", &goods, -1);
    }

    fn adjust(&mut self, number: &str, event: &str, rows: &[&Row], sign: i64) {
        for row in rows {
            let sku = &row.stock_code;
            *self.stock.entry(sku.clone()).or_insert(OPENING.into()) += sign * row.quantity;
            self.claims.insert(format!("{number}/{event}/{sku}"), 1);
        }
    }

    /// What the database says.
    async fn found(site: &Site) -> Self {
        const ORDERS: &str = "SELECT order_id, status, total_minor FROM orders";
        const RESERVATIONS: &str = "SELECT order_id, status FROM reservation";
        const TAKEN: &str = "
            SELECT order_id, sku_id, qty FROM deduction_flow WHERE order_id IS NOT NULL";
        const STOCK: &str = "SELECT sku_id, available FROM stock";
        const ACCOUNTS: &str = "SELECT user_id, kind, balance FROM account WHERE balance <> 0";
        // Ids that hold > or : are those of messages between the roles, and of the opening stock.
        const CLAIMS: &str = "
            SELECT message_id, count(*) FROM idempotent_record
            WHERE message_id NOT LIKE '%>%' AND message_id NOT LIKE '%:%' GROUP BY message_id";
        let orders: Vec<(String, String, i64)> = site.rows(ORDERS).await;
        let reservations: Vec<(String, String)> = site.rows(RESERVATIONS).await;
        let taken: Vec<(String, String, i64)> = site.rows(TAKEN).await;
        let stock: Vec<(String, i64)> = site.rows(STOCK).await;
        let accounts: Vec<(String, String, i64)> = site.rows(ACCOUNTS).await;
        let claims: Vec<(String, i64)> = site.rows(CLAIMS).await;
        let mut by_order_and_sku = BTreeMap::new();
        for (order, sku, qty) in taken {
            let again = by_order_and_sku.insert((order, sku), qty);
            assert_eq!(again, None, "taken twice");
        }
        Self {
            orders: orders
                .into_iter()
                .map(|(order, status, total)| (order, (status, total)))
                .collect(),
            reservations: reservations.into_iter().collect(),
            taken: by_order_and_sku,
            stock: stock.into_iter().collect(),
            accounts: accounts
                .into_iter()
                .map(|(user, kind, balance)| ((user, kind), balance))
                .collect(),
            claims: claims.into_iter().collect(),
        }
    }
}
