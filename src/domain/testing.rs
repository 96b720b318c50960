//! For the tests of the state machines: short events, text tables, and rows in memory that are
//! written the way a store writes them.

use super::account::{
    self, Account, AccountFlow, AccountId, AccountState, AccountWrites, PointsRule, Source,
};
use super::event::{
    AccountEvent, InventoryEvent, OrderCancel, OrderClosed, OrderCreate, OrderCreated, OrderEvent,
    OrderExpire, OrderLine, OrderRef, OrderRefund, OrderRemind, PaymentFailed, PaymentSucceeded,
    RefundAmount, RefundFailed, RefundSucceeded, StockLine, StockRejected,
};
use super::inventory::{
    self, Flow, FlowAction, InventoryState, InventoryWrites, Reservation, Stock, adjust_flow_id,
};
use super::order::{self, Context, OrderState, OrderWrites, Step};
use super::{
    AccountKind, Currency, Decision, Event, EventType, IdError, Key, OrderId, SkuId, Timestamp,
    Token, UserId, Verdict,
};
use std::collections::HashMap;
use std::fmt::Debug;
use std::time::Duration;

/// A text as an identifier.
pub(crate) fn id<T: std::str::FromStr<Err = IdError>>(text: &str) -> T {
    text.parse().unwrap()
}

/// When orders are created. They are due half an hour later.
pub(crate) const EARLY: Context = Context {
    now: Timestamp(1_000_000),
    pay_timeout: Duration::from_secs(1800),
    remind_before: None,
    number_taken: false,
    noted: false,
};

/// Orders that are created now are reminded of five minutes before they are due.
pub(crate) const REMINDING: Context = Context {
    remind_before: Some(Duration::from_secs(300)),
    ..EARLY
};

/// The first moment at which they are due.
pub(crate) const DUE: Context = Context {
    now: Timestamp(2_800_000),
    ..EARLY
};

/// The number of the event is recorded for another order.
pub(crate) const TAKEN: Context = Context {
    number_taken: true,
    ..EARLY
};

pub(crate) fn create(order_id: &str, total_minor: i64, goods: &[(&str, i64)]) -> OrderEvent {
    let lines = goods.iter().map(|&(sku_id, qty)| OrderLine {
        sku_id: id(sku_id),
        qty,
        unit_price_minor: total_minor,
        amount_minor: total_minor,
        charge: false,
    });
    OrderEvent::Create(OrderCreate {
        order_id: id(order_id),
        user_id: id("U1"),
        currency: Currency::GBP,
        total_minor,
        lines: lines.collect(),
        pay_within_seconds: None,
    })
}

pub(crate) fn of(order_id: &str) -> OrderRef {
    OrderRef {
        order_id: id(order_id),
    }
}

pub(crate) fn cancel(order_id: &str) -> OrderEvent {
    OrderEvent::Cancel(OrderCancel {
        order_id: id(order_id),
        reason: None,
    })
}

pub(crate) fn expire(order_id: &str) -> OrderEvent {
    OrderEvent::Expire(OrderExpire {
        order_id: id(order_id),
        seen_due: None,
    })
}

pub(crate) fn ask_back(order_id: &str, refund_id: &str, amount_minor: Option<i64>) -> OrderEvent {
    OrderEvent::Refund(OrderRefund {
        order_id: id(order_id),
        refund_id: id(refund_id),
        amount_minor,
        reason: None,
    })
}

pub(crate) fn remind(order_id: &str) -> OrderEvent {
    OrderEvent::Remind(OrderRemind {
        order_id: id(order_id),
        seen_due: None,
    })
}

pub(crate) fn stock_rejected(order_id: &str) -> OrderEvent {
    OrderEvent::StockRejected(StockRejected {
        order_id: id(order_id),
        shortages: Vec::new(),
    })
}

pub(crate) fn pay(order_id: &str, trade_no: &str, amount_minor: i64) -> PaymentSucceeded {
    PaymentSucceeded {
        order_id: id(order_id),
        provider: id("alipay"),
        trade_no: id(trade_no),
        out_trade_no: None,
        trade_status: None,
        amount_minor,
        currency: Currency::GBP,
    }
}

pub(crate) fn pay_failed(order_id: &str, trade_no: &str) -> OrderEvent {
    OrderEvent::PaymentFailed(PaymentFailed {
        order_id: id(order_id),
        provider: id("alipay"),
        trade_no: id(trade_no),
        reason: None,
    })
}

pub(crate) fn refund(order_id: &str, refund_no: &str, amount: RefundAmount) -> RefundSucceeded {
    RefundSucceeded {
        order_id: id(order_id),
        provider: id("alipay"),
        refund_no: id(refund_no),
        trade_no: None,
        amount,
        currency: Currency::GBP,
    }
}

pub(crate) fn refund_failed(order_id: &str, refund_no: &str) -> OrderEvent {
    OrderEvent::RefundFailed(RefundFailed {
        order_id: id(order_id),
        provider: id("alipay"),
        refund_no: id(refund_no),
        reason: None,
    })
}

/// The number of the refund that is asked for of a payment.
pub(crate) fn asked(trade_no: &str) -> String {
    order::refund_no(&id("alipay"), &id(trade_no)).to_string()
}

pub(crate) fn lines(lines: &[(&str, i64)]) -> Vec<StockLine> {
    let lines = lines.iter().map(|&(sku_id, qty)| StockLine {
        sku_id: id(sku_id),
        qty,
    });
    lines.collect()
}

pub(crate) fn created(order_id: &str, goods: &[(&str, i64)]) -> InventoryEvent {
    InventoryEvent::Created(OrderCreated {
        order_id: id(order_id),
        user_id: id("U1"),
        lines: lines(goods),
    })
}

pub(crate) fn closed(order_id: &str) -> InventoryEvent {
    InventoryEvent::Closed(OrderClosed {
        order_id: id(order_id),
        reason: "cancelled".to_owned(),
    })
}

/// One point for each whole pound.
pub(crate) fn points_rule() -> PointsRule {
    PointsRule {
        kind: AccountKind::literal("POINTS"),
        per_major_unit: 1,
    }
}

/// Compares a text table with what `actual` says of each row and column.
///
/// A line that is not indented names a row. The indented lines below it give, for one or more
/// columns, the result after a colon. Each row and each column has to be there once.
pub(crate) fn check_table(
    table: &str,
    rows: &[&str],
    columns: &[&str],
    actual: impl Fn(usize, usize) -> String,
) {
    let mut cells: HashMap<(&str, &str), Vec<&str>> = HashMap::new();
    let mut wrong = Vec::new();
    let mut row = "";
    for line in table.lines().filter(|line| !line.trim().is_empty()) {
        if !line.starts_with(' ') {
            row = line;
            if !rows.contains(&row) {
                wrong.push(format!("{row}: there is no such event"));
            }
            continue;
        }
        let (names, result) = line.split_once(": ").expect("columns: result");
        for column in names.split_whitespace() {
            if !columns.contains(&column) {
                wrong.push(format!("{row}: {column}: there is no such column"));
            }
            cells.entry((row, column)).or_default().push(result.trim());
        }
    }
    for (r, &row) in rows.iter().enumerate() {
        for (c, &column) in columns.iter().enumerate() {
            let expected = cells.get(&(row, column)).map_or(&[][..], Vec::as_slice);
            let actual = actual(r, c);
            if expected != [actual.as_str()] {
                wrong.push(format!("{row}\n    {column}: {actual}  <- {expected:?}"));
            }
        }
    }
    assert!(wrong.is_empty(), "code <- table\n{}", wrong.join("\n"));
}

/// What a decision says, without what it writes.
pub(crate) fn show_verdict(verdict: &Verdict, applied: String, token: &str) -> String {
    match verdict {
        Verdict::Applied => applied,
        Verdict::Duplicate => "duplicate".to_owned(),
        Verdict::Conflict => "conflict".to_owned(),
        Verdict::Stale => "stale".to_owned(),
        Verdict::Rejected(reason) => format!("rejected {reason}"),
        Verdict::Parked(awaited) => format!("park {}", cut(awaited, token)),
    }
}

/// The events that a decision emits, in their order, and the tokens that it reaches.
pub(crate) fn show_rest<W>(decision: &Decision<W>, token: &str) -> String {
    let mut text = String::new();
    for event in &decision.emits {
        text += &format!(" +{}", event.event_type());
    }
    let reached: Vec<&str> = decision.reached.iter().map(|t| cut(t, token)).collect();
    if !reached.is_empty() {
        text += &format!(" !{}", reached.join(","));
    }
    text
}

fn cut<'t>(token: &'t Token, prefix: &str) -> &'t str {
    let text = token.as_str();
    text.strip_prefix(prefix)
        .unwrap_or_else(|| panic!("{text} does not start with {prefix}"))
}

/// Only what is applied writes.
fn assert_quiet_unless_applied<W: Default + PartialEq + Debug>(decision: &Decision<W>) {
    if decision.verdict != Verdict::Applied {
        assert_eq!(decision.writes, W::default());
        assert_eq!(decision.reached, []);
    }
}

/// The rows of one order.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct OrderRows {
    pub(crate) state: OrderState,
    pub(crate) history: Vec<Step>,
    /// The keys of its notes.
    pub(crate) noted: Vec<Key>,
}

impl OrderRows {
    /// The rows after `events`, each of which has to be applied.
    pub(crate) fn after(events: &[(OrderEvent, Context)]) -> Self {
        let mut rows = Self::default();
        for (event, context) in events {
            let decision = rows.handle(event, context);
            assert_eq!(decision.verdict, Verdict::Applied, "{event:?}");
        }
        rows
    }

    pub(crate) fn handle(
        &mut self,
        event: &OrderEvent,
        context: &Context,
    ) -> Decision<OrderWrites> {
        let context = Context {
            noted: self.noted.contains(&event.key()),
            ..*context
        };
        let decision = order::decide(&self.state, event, &context);
        assert_quiet_unless_applied(&decision);
        let OrderWrites {
            order,
            step,
            payment,
            refund,
            ..
        } = decision.writes.clone();
        if let Some(order) = order {
            let step = step.expect("a step for each change of an order");
            let before = self.state.order.as_ref();
            assert_eq!(step.from, before.map(|order| order.status));
            assert_eq!(step.to, order.status);
            assert_eq!(order.version, before.map_or(0, |order| order.version) + 1);
            assert_eq!(step.version, order.version);
            self.state.order = Some(order);
            if step.from == Some(step.to) {
                self.noted.push(event.key());
            }
            self.history.push(step);
        }
        if let Some(new) = payment {
            let mut others = self.state.payments.iter();
            assert!(others.all(|p| (&p.provider, &p.trade_no) != (&new.provider, &new.trade_no)));
            self.state.payments.push(new);
        }
        if let Some(new) = refund {
            let no = (new.provider.clone(), new.refund_no.clone());
            let others = self.state.refunds.iter_mut();
            match { others }.find(|r| (&r.provider, &r.refund_no) == (&no.0, &no.1)) {
                Some(known) => *known = new,
                None => self.state.refunds.push(new),
            }
        }
        decision
    }
}

/// The rows of the inventory.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct StockRows {
    pub(crate) stock: HashMap<SkuId, Stock>,
    pub(crate) reservations: HashMap<OrderId, Reservation>,
    pub(crate) flows: Vec<Flow>,
}

impl StockRows {
    /// Rows with this much of each SKU, in one flow each.
    pub(crate) fn with(stock: &[(&str, i64)]) -> Self {
        let mut rows = Self::default();
        for &(sku_id, qty) in stock {
            rows.write_flow(Flow {
                flow_id: Key::of(&["opening", sku_id]),
                order_id: None,
                sku_id: id(sku_id),
                action: FlowAction::Adjust,
                qty,
                available_after: qty,
            });
        }
        rows
    }

    pub(crate) fn available(&self, sku_id: &str) -> i64 {
        self.stock.get(&id(sku_id)).map_or(0, |row| row.available)
    }

    pub(crate) fn decide(&self, event: &InventoryEvent) -> Decision<InventoryWrites> {
        let own = |flow: &&Flow| match event {
            InventoryEvent::Adjust(adjust) => flow.flow_id == adjust_flow_id(adjust),
            InventoryEvent::Created(_) | InventoryEvent::Closed(_) | InventoryEvent::Return(_) => {
                flow.order_id.as_ref() == event.order_id()
            }
        };
        let flows: Vec<Flow> = self.flows.iter().filter(own).cloned().collect();
        let state = InventoryState {
            reservation: event.order_id().and_then(|id| self.reservations.get(id)),
            stock: &self.stock,
            flows: &flows,
        };
        inventory::decide(state, event)
    }

    pub(crate) fn handle(&mut self, event: &InventoryEvent) -> Decision<InventoryWrites> {
        let decision = self.decide(event);
        assert_quiet_unless_applied(&decision);
        if let Some(new) = decision.writes.reservation.clone() {
            let before = self.reservations.get(&new.order_id);
            assert_eq!(new.version, before.map_or(0, |row| row.version) + 1);
            self.reservations.insert(new.order_id.clone(), new);
        }
        for flow in decision.writes.flows.clone() {
            self.write_flow(flow);
        }
        decision
    }

    fn write_flow(&mut self, flow: Flow) {
        assert!(self.flows.iter().all(|f| f.flow_id != flow.flow_id));
        let row = self.stock.entry(flow.sku_id.clone()).or_insert(Stock {
            sku_id: flow.sku_id.clone(),
            available: 0,
            version: 0,
        });
        row.available += flow.qty;
        row.version += 1;
        assert_eq!(row.available, flow.available_after);
        assert!(row.available >= 0, "{row:?}");
        self.flows.push(flow);
    }
}

/// The rows of the accounts.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct AccountRows {
    pub(crate) accounts: HashMap<AccountId, Account>,
    pub(crate) flows: Vec<AccountFlow>,
}

impl AccountRows {
    pub(crate) fn balance(&self, user_id: &str, kind: &str) -> i64 {
        let (user_id, kind) = (id::<UserId>(user_id), id(kind));
        let row = self.accounts.get(&AccountId { user_id, kind });
        row.map_or(0, |account| account.balance)
    }

    pub(crate) fn handle(&mut self, event: &AccountEvent) -> Decision<AccountWrites> {
        let rule = points_rule();
        let account = account::account_of(event, &rule);
        let find = |source: &Source| {
            let mut flows = self.flows.iter();
            flows.find(|flow| flow.account == account && flow.source == *source)
        };
        let reverses = account::reversed_by(event);
        let reversals = self.flows.iter().filter(|flow| {
            reverses.is_some() && flow.account == account && flow.reverses == reverses
        });
        let state = AccountState {
            account: self.accounts.get(&account),
            own: find(&account::source_of(event)),
            credit: reverses.as_ref().and_then(find),
            reversed: reversals.map(|flow| -flow.amount).sum(),
        };
        let decision = account::decide(state, event, &rule);
        assert_quiet_unless_applied(&decision);
        if let Some(flow) = decision.writes.flow.clone() {
            self.write(flow);
        }
        decision
    }

    pub(crate) fn write(&mut self, flow: AccountFlow) {
        let mut flows = self.flows.iter();
        assert!(flows.all(|f| (&f.account, &f.source) != (&flow.account, &flow.source)));
        let row = self.accounts.entry(flow.account.clone());
        let row = row.or_insert(Account {
            id: flow.account.clone(),
            balance: 0,
            version: 0,
        });
        row.balance += flow.amount;
        row.version += 1;
        assert_eq!(row.balance, flow.balance_after);
        assert!(row.balance >= 0, "{row:?}");
        self.flows.push(flow);
    }
}

/// All three machines: what one emits is handled by the one that consumes it, what is parked is
/// handled when its token is reached.
#[derive(Debug, Default)]
pub(crate) struct World {
    pub(crate) orders: HashMap<OrderId, OrderRows>,
    pub(crate) stock: StockRows,
    pub(crate) accounts: AccountRows,
    /// All that was emitted, in order.
    pub(crate) emitted: Vec<Event>,
    parked: Vec<(Token, Event)>,
}

impl World {
    pub(crate) fn with_stock(stock: &[(&str, i64)]) -> Self {
        Self {
            stock: StockRows::with(stock),
            ..Self::default()
        }
    }

    pub(crate) fn order(&self, order_id: &str) -> &OrderState {
        &self.orders[&id::<OrderId>(order_id)].state
    }

    /// How many events wait.
    pub(crate) fn parked(&self) -> usize {
        self.parked.len()
    }

    /// How often events of this type were emitted.
    pub(crate) fn count(&self, event_type: EventType) -> usize {
        let emitted = self.emitted.iter();
        emitted.filter(|e| e.event_type() == event_type).count()
    }

    /// Handles an event with all that follows from it.
    pub(crate) fn deliver(&mut self, event: impl Into<Event>) -> Verdict {
        self.deliver_in(&EARLY, event)
    }

    pub(crate) fn deliver_in(&mut self, context: &Context, event: impl Into<Event>) -> Verdict {
        let event = event.into();
        let (verdict, emits, reached) = self.decide(context, &event);
        if let Verdict::Parked(token) = &verdict {
            self.parked.push((token.clone(), event));
        }
        let parked = std::mem::take(&mut self.parked).into_iter();
        let (woken, parked) = parked.partition(|(token, _)| reached.contains(token));
        self.parked = parked;
        self.emitted.extend(emits.iter().cloned());
        let woken = Vec::into_iter(woken).map(|(_, event)| event);
        for event in emits.into_iter().chain(woken) {
            self.deliver_in(context, event);
        }
        verdict
    }

    fn decide(&mut self, context: &Context, event: &Event) -> (Verdict, Vec<Event>, Vec<Token>) {
        fn parts<W>(decision: Decision<W>) -> (Verdict, Vec<Event>, Vec<Token>) {
            (decision.verdict, decision.emits, decision.reached)
        }
        match event {
            Event::Order(event) => {
                let rows = self.orders.entry(event.order_id().clone()).or_default();
                parts(rows.handle(event, context))
            }
            Event::Inventory(event) => parts(self.stock.handle(event)),
            Event::Account(event) => parts(self.accounts.handle(event)),
            Event::Notice(_) => (Verdict::Applied, Vec::new(), Vec::new()),
        }
    }
}

macro_rules! into_event {
    ($($from:ty, $event:ident => $into:expr;)*) => {$(
        impl From<$from> for Event {
            fn from($event: $from) -> Self {
                $into
            }
        }
    )*};
}

into_event! {
    OrderEvent, event => Self::Order(event);
    PaymentSucceeded, event => Self::Order(OrderEvent::PaymentSucceeded(event));
    RefundSucceeded, event => Self::Order(OrderEvent::RefundSucceeded(event));
    InventoryEvent, event => Self::Inventory(event);
    AccountEvent, event => Self::Account(event);
}
