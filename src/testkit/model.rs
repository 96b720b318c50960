//! A simple, obviously right model of the whole system, in memory, at the level of messages.
//!
//! A test plays the same deliveries to the real system and, in the order in which that committed
//! them, to the model. Each [`Prediction`] must be what happened, and the [`Snapshot`]s must be
//! equal at the end.
//!
//! The model reads well-formed `data` in canonical form: what a field would say by default is left
//! out, so that equal content is equal JSON. It does not know gates, retries, or keys so long that
//! they are hashed.

mod accounts;
mod orders;
mod stock;
#[cfg(test)]
mod tests;

use accounts::Accounts;
use orders::Orders;
use serde::Serialize;
use serde_json::Value;
use std::collections::BTreeMap;
use stock::Stock;

/// The whole system: four roles, their keys and their rows.
#[derive(Debug, Clone)]
pub struct Model {
    orders: Orders,
    stock: Stock,
    accounts: Accounts,
    park_for_seconds: i64,
    claims: BTreeMap<ScopedKey, Claim>,
    parked: BTreeMap<ScopedKey, Parked>,
}

/// What the model says of deliveries that are decided in one transaction.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct BatchPrediction {
    /// Of each event, in order, without what it wakes.
    pub predictions: Vec<Prediction>,
    /// The parked messages that are handed back to their roles at the end of the transaction.
    pub wakes: Vec<ScopedKey>,
}

/// What the model says that becomes of a delivery.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Prediction {
    /// The key of the event in its role; empty if the data is not readable.
    pub key: String,
    /// `applied`, `duplicate`, `conflict`, `parked`, `stale`, `rejected`, or `dead` for what the
    /// role does not consume or cannot read.
    pub outcome: &'static str,
    /// Why the business says no, if it does.
    pub rejection: Option<&'static str>,
    /// What a parked event waits for.
    pub token: Option<String>,
    /// What is published, in this order.
    pub emits: Vec<Emitted>,
    /// The parked messages that are handed back to their roles.
    pub wakes: Vec<ScopedKey>,
}

/// An event that is published.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Emitted {
    /// Its type, such as `order.created`.
    pub event_type: &'static str,
    /// Its business content.
    pub data: Value,
}

/// A key with the role that it is scoped by.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct ScopedKey {
    /// The role.
    pub role: String,
    /// The key's text.
    pub key: String,
}

/// All that must agree with the tables of the real system.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Snapshot {
    /// By order.
    pub orders: BTreeMap<String, OrderState>,
    /// By SKU.
    pub stock: BTreeMap<String, StockState>,
    /// By order.
    pub reservations: BTreeMap<String, ReservationState>,
    /// By user, then by kind.
    pub accounts: BTreeMap<String, BTreeMap<String, AccountState>>,
    /// By role, then by key: the token that is awaited.
    pub parked: BTreeMap<String, BTreeMap<String, String>>,
    /// By role, then by key.
    pub claims: BTreeMap<String, BTreeMap<String, ClaimState>>,
}

/// A row of a claim.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct ClaimState {
    /// The outcome's name.
    pub outcome: String,
    /// The rejection, the token that is awaited, the layer that saw a duplicate, or why it is dead.
    pub detail: Option<String>,
}

/// A row of an order.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct OrderState {
    /// Such as `WAIT_PAY`.
    pub status: String,
    /// How many events have been applied to it.
    pub version: i64,
    /// Paid by the accepted payment, in minor units.
    pub paid_minor: i64,
    /// Refunded of it, in minor units.
    pub refunded_minor: i64,
}

/// A row of stock.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct StockState {
    /// Units that can be deducted.
    pub available: i64,
    /// How many flows it has.
    pub version: i64,
}

/// A row of a reservation.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct ReservationState {
    /// `DEDUCTED`, `REJECTED` or `RELEASED`.
    pub status: String,
}

/// A row of an account.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct AccountState {
    /// The sum of its flows.
    pub balance: i64,
}

/// Type and data: what has to be the same in every copy of a message.
type Content = (String, Value);

#[derive(Debug, Clone)]
struct Claim {
    content: Content,
    state: ClaimState,
}

/// What a transaction has decided so far.
#[derive(Debug, Default)]
struct Batch {
    decided: BTreeMap<ScopedKey, Content>,
    reached: Vec<String>,
}

#[derive(Debug, Clone)]
struct Parked {
    token: String,
    /// When it is given up: set when it is parked first.
    deadline_ms: i64,
    /// Handed back to its role, which has not seen it yet.
    woken: bool,
}

/// What one part of the model says of an event, having changed its rows if that is `Applied`.
#[derive(Debug)]
struct Said {
    verdict: Verdict,
    emits: Vec<Emitted>,
    /// Tokens that are true from now on.
    reached: Vec<String>,
}

#[derive(Debug)]
enum Verdict {
    Applied,
    Duplicate,
    Conflict,
    Parked(String),
    Stale,
    Rejected(&'static str),
}

impl Default for Model {
    /// Orders expire after half an hour unless they say otherwise.
    fn default() -> Self {
        Self::new(1800)
    }
}

impl Model {
    /// An empty system whose orders expire after so many seconds unless they say otherwise.
    #[must_use]
    pub fn new(pay_within_seconds: u32) -> Self {
        Self {
            orders: Orders::new(pay_within_seconds),
            stock: Stock::default(),
            accounts: Accounts::default(),
            park_for_seconds: 86_400,
            claims: BTreeMap::new(),
            parked: BTreeMap::new(),
        }
    }

    /// Gives parked events up after so many seconds, instead of a day.
    #[must_use]
    pub fn parking_for(mut self, seconds: u32) -> Self {
        self.park_for_seconds = seconds.into();
        self
    }

    /// A delivery of an event to a role, decided at `now_ms` by the database's clock.
    pub fn deliver(
        &mut self,
        role: &str,
        event_type: &str,
        data: &Value,
        now_ms: i64,
    ) -> Prediction {
        self.alone(role, event_type, data, now_ms, false)
    }

    /// Deliveries of events to a role that are decided in one transaction. A copy of what the
    /// transaction itself decides is a duplicate, also where a copy in a later one would be decided
    /// again because the first is parked and woken by then.
    pub fn deliver_batch(
        &mut self,
        role: &str,
        events: &[(&str, &Value)],
        now_ms: i64,
    ) -> BatchPrediction {
        let mut batch = Batch::default();
        let mut predictions = Vec::with_capacity(events.len());
        for (event_type, data) in events {
            predictions.push(self.process(&mut batch, role, event_type, data, now_ms, false));
        }
        BatchPrediction {
            predictions,
            wakes: self.wake(&batch.reached),
        }
    }

    /// The janitor has seen that an order is due and asks for it to be closed.
    pub fn deliver_clock_expire(&mut self, order_id: &str, now_ms: i64) -> Prediction {
        let data = serde_json::json!({ "order_id": order_id });
        self.alone("order", "order.expire", &data, now_ms, true)
    }

    /// The unpaid orders whose deadline has come.
    #[must_use]
    pub fn due_orders(&self, now_ms: i64) -> Vec<String> {
        self.orders.due(now_ms)
    }

    /// The janitor gives up what is parked past its deadline. A copy that comes later is decided.
    pub fn give_up_overdue(&mut self, now_ms: i64) -> Vec<ScopedKey> {
        let overdue = self.parked.extract_if(.., |_, it| it.deadline_ms <= now_ms);
        let overdue: Vec<_> = overdue.map(|(id, _)| id).collect();
        for id in &overdue {
            if let Some(claim) = self.claims.get_mut(id) {
                claim.state = ClaimState::new("dead", Some("parked_too_long"));
            }
        }
        overdue
    }

    /// What a parked event awaits.
    #[must_use]
    pub fn awaits(&self, id: &ScopedKey) -> Option<&str> {
        self.parked.get(id).map(|parked| parked.token.as_str())
    }

    /// Forgets the keys of all that is settled, as retention does; what is parked keeps its own.
    /// From here on a late copy meets only the state that the first one left.
    pub fn drop_claims(&mut self) {
        let parked = &self.parked;
        self.claims.retain(|key, _| parked.contains_key(key));
    }

    /// What the tables must hold.
    #[must_use]
    pub fn snapshot(&self) -> Snapshot {
        let mut snapshot = Snapshot {
            orders: self.orders.snapshot(),
            stock: self.stock.snapshot(),
            reservations: self.stock.reservations(),
            accounts: self.accounts.snapshot(),
            parked: BTreeMap::new(),
            claims: BTreeMap::new(),
        };
        for (id, parked) in &self.parked {
            let of_role = snapshot.parked.entry(id.role.clone()).or_default();
            of_role.insert(id.key.clone(), parked.token.clone());
        }
        for (id, claim) in &self.claims {
            let of_role = snapshot.claims.entry(id.role.clone()).or_default();
            of_role.insert(id.key.clone(), claim.state.clone());
        }
        snapshot
    }

    /// A transaction of one event.
    fn alone(
        &mut self,
        role: &str,
        event_type: &str,
        data: &Value,
        now_ms: i64,
        by_clock: bool,
    ) -> Prediction {
        let mut batch = Batch::default();
        let said = self.process(&mut batch, role, event_type, data, now_ms, by_clock);
        Prediction {
            wakes: self.wake(&batch.reached),
            ..said
        }
    }

    fn process(
        &mut self,
        batch: &mut Batch,
        role: &str,
        event_type: &str,
        data: &Value,
        now_ms: i64,
        by_clock: bool,
    ) -> Prediction {
        let key = key(event_type, data, by_clock).filter(|_| consumer(event_type) == Some(role));
        let Some(key) = key else {
            return Prediction::of("dead", "");
        };
        let id = ScopedKey {
            role: role.to_owned(),
            key: key.clone(),
        };
        let content = (event_type.to_owned(), data.clone());
        if let Some(first) = batch.decided.get(&id) {
            let outcome = if *first == content {
                "duplicate"
            } else {
                "conflict"
            };
            return Prediction::of(outcome, &key);
        }
        let claim = self.claims.get(&id);
        if let Some(claim) = claim {
            if claim.content != content {
                return Prediction::of("conflict", &key);
            }
            if claim.state.outcome != "parked" && claim.state.outcome != "dead" {
                return Prediction::of("duplicate", &key);
            }
        }
        let given_up = claim.is_some_and(|claim| claim.state.outcome == "dead");

        let said = match role {
            "order" | "payment" => self.orders.decide(event_type, data, now_ms, by_clock),
            "inventory" => self.stock.decide(event_type, data),
            _ => self.accounts.decide(event_type, data),
        };
        let Some(said) = said else {
            return Prediction::of("dead", "");
        };
        batch.decided.insert(id.clone(), content.clone());
        batch.reached.extend_from_slice(&said.reached);
        let before = self.parked.remove(&id);
        match said.verdict.claim() {
            Some(state) => {
                self.claims.insert(id.clone(), Claim { content, state });
            }
            // Nothing of it was done, so that its key is free; what had been given up stays so, and
            // what was parked is given up.
            None if given_up => {}
            None if before.is_some() => {
                let state = ClaimState::new("dead", Some("conflict"));
                self.claims.insert(id.clone(), Claim { content, state });
            }
            None => {
                self.claims.remove(&id);
            }
        }
        if let Verdict::Parked(token) = &said.verdict {
            let waits = before
                .as_ref()
                .is_some_and(|before| !before.woken && before.token == *token);
            let deadline_ms = now_ms + 1000 * self.park_for_seconds;
            let parked = Parked {
                token: token.clone(),
                deadline_ms: before.map_or(deadline_ms, |before| before.deadline_ms),
                woken: false,
            };
            self.parked.insert(id, parked);
            if waits {
                return Prediction::of("duplicate", &key);
            }
        }
        said.into_prediction(&key)
    }

    fn wake(&mut self, reached: &[String]) -> Vec<ScopedKey> {
        let mut wakes = Vec::new();
        for (id, parked) in &mut self.parked {
            if !parked.woken && reached.contains(&parked.token) {
                parked.woken = true;
                wakes.push(id.clone());
            }
        }
        wakes
    }
}

impl Prediction {
    fn of(outcome: &'static str, key: &str) -> Self {
        Self {
            key: key.to_owned(),
            outcome,
            rejection: None,
            token: None,
            emits: Vec::new(),
            wakes: Vec::new(),
        }
    }
}

impl Said {
    fn applied() -> Self {
        Verdict::Applied.into()
    }

    fn rejected(rejection: &'static str) -> Self {
        Verdict::Rejected(rejection).into()
    }

    fn parked(token: &[&str]) -> Self {
        Verdict::Parked(joined(token, ":")).into()
    }

    fn emit(mut self, event_type: &'static str, data: Value) -> Self {
        self.emits.push(Emitted { event_type, data });
        self
    }

    fn reach(mut self, token: &[&str]) -> Self {
        self.reached.push(joined(token, ":"));
        self
    }

    fn into_prediction(self, key: &str) -> Prediction {
        let (outcome, rejection, token) = match self.verdict {
            Verdict::Applied => ("applied", None, None),
            Verdict::Duplicate => ("duplicate", None, None),
            Verdict::Conflict => ("conflict", None, None),
            Verdict::Parked(token) => ("parked", None, Some(token)),
            Verdict::Stale => ("stale", None, None),
            Verdict::Rejected(code) => ("rejected", Some(code), None),
        };
        Prediction {
            rejection,
            token,
            emits: self.emits,
            ..Prediction::of(outcome, key)
        }
    }
}

impl Verdict {
    /// What the claim says from then on; nothing if it is gone.
    fn claim(&self) -> Option<ClaimState> {
        Some(match self {
            Self::Conflict => return None,
            Self::Applied => ClaimState::new("applied", None),
            Self::Duplicate => ClaimState::new("duplicate", Some("flow")),
            Self::Parked(token) => ClaimState::new("parked", Some(token)),
            Self::Stale => ClaimState::new("stale", None),
            Self::Rejected(code) => ClaimState::new("rejected", Some(code)),
        })
    }
}

impl ClaimState {
    fn new(outcome: &str, detail: Option<&str>) -> Self {
        Self {
            outcome: outcome.to_owned(),
            detail: detail.map(str::to_owned),
        }
    }
}

impl From<Verdict> for Said {
    fn from(verdict: Verdict) -> Self {
        Self {
            verdict,
            emits: Vec::new(),
            reached: Vec::new(),
        }
    }
}

/// The number under which the system asks a provider to give a payment back.
#[must_use]
pub fn refund_no(provider: &str, trade_no: &str) -> String {
    orders::refund_no(provider, trade_no)
}

/// The role that consumes events of a type; `None` for a notice.
#[must_use]
pub fn consumer(event_type: &str) -> Option<&'static str> {
    match event_type {
        "order.create" | "order.cancel" | "order.expire" | "order.ship" | "order.complete"
        | "order.refund" | "order.remind" | "stock.deducted" | "stock.rejected" => Some("order"),
        "payment.succeeded" | "payment.failed" | "refund.succeeded" | "refund.failed" => {
            Some("payment")
        }
        "order.created" | "order.closed" | "stock.return" | "stock.adjust" => Some("inventory"),
        "order.completed" | "order.refunded" | "account.credit" | "account.debit"
        | "account.reverse" => Some("account"),
        _ => None,
    }
}

fn key(event_type: &str, data: &Value, by_clock: bool) -> Option<String> {
    let field = |name| text(data, name);
    let parts = match event_type {
        "order.expire" if by_clock => vec![field("order_id")?, event_type, "clock"],
        "order.refund" => vec![field("order_id")?, field("refund_id")?, event_type],
        "order.created" => vec![field("order_id")?, "deduct"],
        "order.closed" => vec![field("order_id")?, "release"],
        "stock.return" => vec![field("return_id")?, "return"],
        "stock.adjust" => vec![field("adjustment_id")?, "adjust"],
        "payment.succeeded" => vec![
            field("provider")?,
            field("out_trade_no").or(field("order_id"))?,
            field("trade_status").unwrap_or("SUCCEEDED"),
            field("trade_no")?,
            event_type,
        ],
        "payment.failed" => vec![
            field("provider")?,
            field("order_id")?,
            field("trade_no")?,
            event_type,
        ],
        "refund.succeeded" | "refund.failed" => vec![
            field("provider")?,
            field("order_id")?,
            field("refund_no")?,
            event_type,
        ],
        "order.completed" => vec![
            field("user_id")?,
            "POINTS",
            "ORDER",
            field("order_id")?,
            "credit",
        ],
        "order.refunded" => {
            let source = accounts::refund_source(data)?;
            let parts = [field("user_id")?, "POINTS", "REFUND", &source, "reverse"];
            return Some(joined(&parts, "/"));
        }
        "account.credit" | "account.debit" | "account.reverse" => vec![
            field("user_id")?,
            field("kind")?,
            field("source_type")?,
            field("source_id")?,
            event_type.strip_prefix("account.")?,
        ],
        _ => vec![field("order_id")?, event_type],
    };
    Some(joined(&parts, "/"))
}

/// Joins parts so that no two lists of parts give the same text.
fn joined(parts: &[&str], separator: &str) -> String {
    let escape = |part: &&str| {
        let part = part.replace('%', "%25").replace('~', "%7E");
        part.replace(separator, if separator == "/" { "%2F" } else { "%3A" })
    };
    parts.iter().map(escape).collect::<Vec<_>>().join(separator)
}

fn text<'a>(data: &'a Value, name: &str) -> Option<&'a str> {
    data.get(name)?.as_str()
}

fn int(data: &Value, name: &str) -> Option<i64> {
    data.get(name)?.as_i64()
}

/// Units per SKU, lines of the same SKU added up.
fn units(data: &Value) -> Option<BTreeMap<String, i64>> {
    let mut units = BTreeMap::new();
    for line in data.get("lines")?.as_array()? {
        *units.entry(text(line, "sku_id")?.to_owned()).or_default() += int(line, "qty")?;
    }
    Some(units)
}
