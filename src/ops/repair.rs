//! `reconcile --repair`: puts right what needs no judgement, each with a row that says so.
//!
//! A fault is found first, without a lock, and then repaired in a transaction of its own under a
//! guard: who was first has it, and who comes second writes nothing. Nothing is deleted, nothing is
//! decided, and no figure is touched: what was missed is handed to those who decide, and what waits
//! for nothing waits no longer.

use super::reconcile::{self, reconcile};
use super::table::Table;
use crate::broker;
use crate::broker::embedded::{Embedded, Held};
use crate::domain::{Awaited, Key, RoleName, Timestamp, Token};
use crate::message::{Envelope, Limits};
use crate::store::{
    self, Connection, HeldLease, NewRepair, Postponed, Repair, Store, Subject, Tx, Unwoken,
};
use serde::Serialize;
use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

/// Faults of each kind that one run repairs at most; the next run goes on.
const LIMIT: u32 = 10_000;

/// Why nothing could be found out.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The database.
    #[error(transparent)]
    Store(#[from] store::Error),
    /// The queue.
    #[error(transparent)]
    Broker(#[from] broker::Error),
}

/// How to repair.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Options {
    /// What is reported afterwards, and how old a fault must be: what is younger than
    /// [`reconcile::Options::stuck_after`] may be on its way.
    pub reconcile: reconcile::Options,
    /// Only say what would be done.
    pub dry_run: bool,
    /// Who repairs.
    pub actor: String,
    /// The names of leases, and how long each lasts at most without being renewed.
    pub leases: Vec<(&'static str, Duration)>,
}

/// What was repaired, and what still differs.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Report {
    /// Each repair.
    pub repairs: Vec<Repaired>,
    /// What reconciliation found afterwards.
    #[serde(flatten)]
    pub remaining: reconcile::Report,
}

/// What became of one repair.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Repaired {
    /// What was to be done.
    pub what: Repair,
    /// What it is about, such as an order.
    pub subject: String,
    /// The role of the parked event, if it is one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub role: Option<RoleName>,
    /// The key of the parked event, if it is one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub key: Option<Key>,
    /// What was found.
    pub before: String,
    /// What it was to become.
    pub after: String,
    /// What became of it.
    pub end: End,
    /// Why it failed or was lost.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub problem: Option<String>,
}

/// How a repair ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, strum::Display)]
#[strum(serialize_all = "snake_case")]
#[serde(rename_all = "snake_case")]
pub enum End {
    /// It would be made; of a dry run.
    #[strum(serialize = "would be done")]
    WouldBeDone,
    /// It was made and recorded.
    Done,
    /// Somebody else was first: nothing was written.
    Lost,
    /// It could not be made: nothing was written.
    Failed,
}

/// Repairs what can be repaired, of the store and of the embedded queue in its file, and reconciles.
/// Workers may run meanwhile. Must not be cancelled.
///
/// # Errors
/// [`Error`] if the faults or the differences cannot be read. What was repaired until then is on
/// record.
pub async fn repair(
    store: &dyn Store,
    queue: Option<&Embedded>,
    options: &Options,
) -> Result<Report, Error> {
    let mut repairs = Vec::new();
    for fault in find(store, queue, options).await? {
        match options.dry_run {
            true => repairs.extend(fault.plans().into_iter().map(Plan::would_be)),
            false => repairs.extend(fault.repair(store, &options.actor).await),
        }
    }
    let remaining = reconcile(store, &options.reconcile, |_| {}).await?;
    Ok(Report { repairs, remaining })
}

/// Something that is wrong, and can be put right by what was found of it.
enum Fault {
    /// Events that wait for a token that is true.
    Missed(Token, Vec<Unwoken>),
    Postponed(Postponed),
    Lease(HeldLease),
    Delivery(Held),
}

/// All faults. Nothing is written.
async fn find(
    store: &dyn Store,
    queue: Option<&Embedded>,
    options: &Options,
) -> Result<Vec<Fault>, Error> {
    let stuck_after = options.reconcile.stuck_after;
    let mut faults = missed(store, stuck_after).await?;
    let postponed = store.postponed(stuck_after, LIMIT).await?;
    faults.extend(postponed.into_iter().map(Fault::Postponed));
    // A lease that would end soon by itself is not in the way.
    for (name, longest) in &options.leases {
        let longest = longest.saturating_add(stuck_after);
        let lease = store.lease_beyond(name, longest).await?;
        faults.extend(lease.map(Fault::Lease));
    }
    if let Some(queue) = queue {
        let held = queue.held_beyond(stuck_after, LIMIT).await?;
        faults.extend(held.into_iter().map(Fault::Delivery));
    }
    Ok(faults)
}

/// Parked events that were missed, by what they await: one wake is for all of these.
async fn missed(store: &dyn Store, stuck_after: Duration) -> Result<Vec<Fault>, Error> {
    let mut by_token = BTreeMap::<Token, Vec<Unwoken>>::new();
    let differences = store.check("parked_and_possible", stuck_after, LIMIT);
    for difference in differences.await? {
        let Subject::Claim(role, key) = difference.subject else {
            continue;
        };
        if let Some(event) = store.unwoken(&role, &key).await? {
            by_token
                .entry(event.awaits.clone())
                .or_default()
                .push(event);
        }
    }
    let faults = by_token.into_iter();
    Ok(faults
        .map(|(token, events)| Fault::Missed(token, events))
        .collect())
}

impl Fault {
    /// What is to be done about it.
    fn plans(&self) -> Vec<Plan> {
        match self {
            Self::Missed(_, events) => events.iter().map(Plan::wake).collect(),
            Self::Postponed(row) => vec![Plan::make_due(row)],
            Self::Lease(lease) => vec![Plan::end_lease(lease)],
            Self::Delivery(held) => vec![Plan::end_delivery(held)],
        }
    }

    /// Repairs it, in one transaction.
    async fn repair(self, store: &dyn Store, actor: &str) -> Vec<Repaired> {
        let plans = self.plans();
        let done = match self.try_repair(store, actor).await {
            Ok(done) => done,
            // A deadlock, or a guard of the wake.
            Err(store::Error::Conflict(what)) => {
                let lost =
                    |plan: Plan| plan.ended(End::Lost, Some(format!("lost a race for {what}")));
                return plans.into_iter().map(lost).collect();
            }
            Err(error) => {
                let failed = |plan: Plan| plan.ended(End::Failed, Some(error.to_string()));
                return plans.into_iter().map(failed).collect();
            }
        };
        let lost = plans.into_iter().filter(|plan| !done.contains(plan));
        let first = "somebody else was first, or it is not so any more";
        let lost: Vec<_> = lost
            .map(|plan| plan.ended(End::Lost, Some(first.to_owned())))
            .collect();
        let done = done.into_iter().map(|plan| plan.ended(End::Done, None));
        done.chain(lost).collect()
    }

    /// Repairs it and records that. Returns what was done: nothing, if the guard matched nothing.
    async fn try_repair(self, store: &dyn Store, actor: &str) -> store::Result<Vec<Plan>> {
        let plans = self.plans();
        let mut tx = store.begin().await?;
        let now = tx.now().await?;
        let done = match self {
            Self::Missed(token, events) => {
                let subject = events.first().map(|event| event.subject.as_str());
                wake(&mut *tx, now, &token, subject.unwrap_or_default()).await?
            }
            Self::Postponed(row) => kept(plans, tx.make_due(&row).await?),
            Self::Lease(lease) => kept(plans, tx.end_lease(&lease).await?),
            Self::Delivery(held) => kept(plans, end_delivery(&mut *tx, now, &held).await?),
        };
        if done.is_empty() {
            tx.rollback().await?;
            return Ok(done);
        }
        for plan in &done {
            tx.record_repair(now, &plan.record(actor)).await?;
        }
        tx.commit().await?;
        Ok(done)
    }
}

fn kept(plans: Vec<Plan>, done: bool) -> Vec<Plan> {
    if done { plans } else { Vec::new() }
}

/// Wakes all that awaits a token, if it is true by rows that are locked as a decision locks them.
async fn wake(
    tx: &mut dyn Tx,
    now: Timestamp,
    token: &Token,
    subject: &str,
) -> store::Result<Vec<Plan>> {
    let Some(awaited) = Awaited::read(token, subject) else {
        return Ok(Vec::new());
    };
    if !is_true(tx, &awaited).await? {
        return Ok(Vec::new());
    }
    let events = tx.unwoken_by(token).await?;
    let woken = tx.wake(now, std::slice::from_ref(token)).await?;
    if usize::try_from(woken) != Ok(events.len()) {
        let found = events.len();
        let what = format!("parked_event: {woken} of {found} events were woken");
        return Err(store::Error::Conflict(what));
    }
    Ok(events.iter().map(Plan::wake).collect())
}

/// Whether something is so, by rows that are locked until the transaction ends.
async fn is_true(tx: &mut dyn Tx, awaited: &Awaited) -> store::Result<bool> {
    Ok(match awaited {
        Awaited::Order(order_id, awaited) => {
            let orders = tx.load_orders(&[order_id]).await?;
            let mut statuses = orders.iter().map(|order| order.status);
            statuses.any(|status| status.has_come_to(*awaited))
        }
        Awaited::Reservation(order_id) => !tx.load_reservations(&[order_id]).await?.is_empty(),
        Awaited::Flow(account, source) => {
            tx.load_accounts(&[account]).await?;
            let flows = tx.load_account_flows(&[(account, source)]).await?;
            !flows.is_empty()
        }
    })
}

async fn end_delivery(tx: &mut dyn Tx, now: Timestamp, held: &Held) -> store::Result<bool> {
    match tx.connection() {
        Connection::Sqlite(connection) => Embedded::end_lease(connection, held, now).await,
        Connection::Postgres(_) | Connection::MySql(_) => Err(store::Error::Refused(
            "the embedded queue is a table in a SQLite file".to_owned(),
        )),
    }
}

/// One repair, in words.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Plan {
    what: Repair,
    subject: String,
    claim: Option<(RoleName, Key)>,
    before: String,
    after: String,
}

impl Plan {
    fn wake(event: &Unwoken) -> Self {
        let Unwoken {
            role,
            key,
            awaits,
            subject,
            parked_at,
        } = event;
        Self {
            what: Repair::Wake,
            subject: subject.clone(),
            before: format!("{role}:{key} parked since {parked_at}, awaits {awaits}"),
            after: format!("woken, handed back to {role}"),
            claim: Some((role.clone(), key.clone())),
        }
    }

    fn make_due(row: &Postponed) -> Self {
        let (id, event_type, retry_at) = (row.id, &row.event_type, row.retry_at);
        let said = row.last_error.as_ref();
        let said = said.map_or_else(String::new, |said| format!(", last: {said}"));
        Self {
            what: Repair::MakeDue,
            subject: row.aggregate.clone(),
            claim: None,
            before: format!(
                "outbox row {id}, {event_type}, waits until {retry_at}, refused {} times{said}",
                row.failures
            ),
            after: "due at once".to_owned(),
        }
    }

    fn end_lease(lease: &HeldLease) -> Self {
        let HeldLease {
            name,
            holder,
            fence,
            until,
        } = lease;
        Self {
            what: Repair::EndLease,
            subject: format!("lease {name}"),
            claim: None,
            before: format!("held by {holder} until {until}, fence {fence}"),
            after: "ended, free to be taken".to_owned(),
        }
    }

    fn end_delivery(held: &Held) -> Self {
        let Held {
            tag,
            queue,
            message_id,
            message,
            until,
        } = held;
        let envelope = Envelope::parse(message, &Limits::default());
        let subject =
            envelope.map_or_else(|_| message_id.clone(), |read| read.subject.into_owned());
        Self {
            what: Repair::EndDelivery,
            subject,
            claim: None,
            before: format!(
                "message {message_id} (row {}) of queue {queue} in hand until {until}, fence {}",
                tag.id, tag.fence
            ),
            after: "delivered again at once".to_owned(),
        }
    }

    fn record<'a>(&'a self, actor: &'a str) -> NewRepair<'a> {
        NewRepair {
            actor,
            what: self.what,
            subject: &self.subject,
            claim: self.claim.as_ref().map(|(role, key)| (role, key)),
            before: &self.before,
            after: &self.after,
        }
    }

    fn would_be(self) -> Repaired {
        self.ended(End::WouldBeDone, None)
    }

    fn ended(self, end: End, problem: Option<String>) -> Repaired {
        let (role, key) = self.claim.unzip();
        Repaired {
            what: self.what,
            subject: self.subject,
            role,
            key,
            before: self.before,
            after: self.after,
            end,
            problem,
        }
    }
}

impl Report {
    /// Whether nothing differs and no repair failed.
    #[must_use]
    pub fn is_clean(&self) -> bool {
        let failed = self.repairs.iter().any(|repair| repair.end == End::Failed);
        self.remaining.is_clean() && !failed
    }
}

/// The repairs, and what differs after them.
impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.repairs.is_empty() {
            writeln!(f, "nothing to repair")?;
        } else {
            let header = &["repair", "of", "before", "after", "result"];
            let mut table = Table::new(header, &[]);
            for repair in &self.repairs {
                let why = repair.problem.as_ref();
                let why = why.map_or_else(String::new, |why| format!(": {why}"));
                table.row([
                    repair.what.to_string(),
                    repair.subject.clone(),
                    repair.before.clone(),
                    repair.after.clone(),
                    format!("{}{why}", repair.end),
                ]);
            }
            write!(f, "{table}")?;
        }
        write!(f, "\n{}", self.remaining)
    }
}
