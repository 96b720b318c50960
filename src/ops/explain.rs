//! `explain`: the whole life of one order or key, on one timeline.

use crate::domain::{EventType, Key, Money, RoleName, Timestamp};
use crate::store::{
    self, CallbackRow, ClaimRow, DeadFilter, DeadLetter, History, KeptCallbacks, Moment,
    OrderSummary, OutboxRow, ParkedRow, RepairRow,
};
use serde::Serialize;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use strum::IntoEnumIterator;

/// Callbacks, parked events and dead letters of one key or subject to show at most.
const LIMIT: u32 = 1_000;

/// What went wrong.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Neither an order nor a key.
    #[error(
        "nothing is known of {0}: no order has this id, and no claim, callback, parked event, \
         outbox row, dead letter or repair has it as its subject, its key or its role:key"
    )]
    NotFound(String),
    /// The database.
    #[error(transparent)]
    Store(#[from] store::Error),
}

/// The life of an order, or of what a key is about.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Explanation {
    /// What was asked for.
    pub asked: String,
    /// What it is about: an order, a SKU or a user.
    pub subject: String,
    /// Where the order stands, if it is one that is here.
    pub order: Option<OrderSummary>,
    /// All that happened, oldest first.
    pub entries: Vec<Entry>,
}

/// One thing that happened.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Entry {
    /// When, by the database's clock.
    pub at: Timestamp,
    /// What happened, in words.
    pub what: String,
    /// The table that tells of it.
    pub table: &'static str,
    /// The role that did it, where that is known.
    pub role: Option<RoleName>,
    /// The key, where there is one.
    pub key: Option<Key>,
    /// The outcome of the claim.
    pub outcome: Option<String>,
    /// The message that caused it, where that is known.
    pub message_id: Option<String>,
    /// Whether it is of the key that was asked for.
    pub asked: bool,
}

/// Explains an order's id, a key, or a role and its key as `role:key`. A key of an order is shown
/// within the life of the order, a key of a SKU or a user alone.
///
/// # Errors
/// [`Error::NotFound`] if nothing is known of it, [`Error::Store`] if the database is away.
pub async fn explain<H>(store: &H, asked: &str) -> Result<Explanation, Error>
where
    H: History + KeptCallbacks + Sync + ?Sized,
{
    let life = gather(store, asked).await?;
    if !life.is_empty() {
        return Ok(life.explanation(asked, asked));
    }
    for (role, key) in readings(asked) {
        let claims = store.claims_of(role.as_ref(), key).await?;
        let letters = dead_letters(store, role.as_ref(), key).await?;
        let subject = claims.first().map(|claim| claim.subject.clone());
        let whole = match &subject {
            Some(subject) => gather(store, subject).await?,
            None => Life::default(),
        };
        // The subject of a SKU's or a user's key has had many other keys.
        let mut life = if whole.order.is_some() || !whole.moments.is_empty() {
            whole
        } else {
            Life {
                parked: whole
                    .parked
                    .into_iter()
                    .filter(|p| p.key.as_str() == key)
                    .collect(),
                repairs: whole
                    .repairs
                    .into_iter()
                    .filter(|repair| repair.key.as_ref().is_some_and(|k| k.as_str() == key))
                    .collect(),
                claims,
                ..Life::default()
            }
        };
        life.letters
            .extend(letters.into_iter().map(|letter| (letter.id, letter)));
        if life.is_empty() {
            continue;
        }
        let subject = subject.unwrap_or_else(|| key.to_owned());
        let mut explanation = life.explanation(asked, &subject);
        for entry in &mut explanation.entries {
            let same_role = entry.role.is_none() || role.is_none() || entry.role == role;
            let same_key = entry.key.as_ref().is_some_and(|k| k.as_str() == key);
            entry.asked = same_role && same_key;
        }
        return Ok(explanation);
    }
    Err(Error::NotFound(asked.to_owned()))
}

/// How a text may be meant: as `role:key`, or as a key of any role.
fn readings(asked: &str) -> impl Iterator<Item = (Option<RoleName>, &str)> {
    let with_role = asked.split_once(':').filter(|(role, _)| !role.is_empty());
    let with_role = with_role.map(|(role, key)| (Some(RoleName::new(role.to_owned())), key));
    with_role.into_iter().chain([(None, asked)])
}

/// All rows about one subject.
#[derive(Default)]
struct Life {
    order: Option<OrderSummary>,
    claims: Vec<ClaimRow>,
    callbacks: Vec<CallbackRow>,
    parked: Vec<ParkedRow>,
    moments: Vec<Moment>,
    outbox: Vec<OutboxRow>,
    repairs: Vec<RepairRow>,
    letters: BTreeMap<i64, DeadLetter>,
}

async fn gather<H>(store: &H, subject: &str) -> Result<Life, Error>
where
    H: History + KeptCallbacks + Sync + ?Sized,
{
    let claims = store.claims_about(subject).await?;
    let mut life = Life {
        order: store.order_summary(subject).await?,
        callbacks: store.callbacks(Some(subject), None, LIMIT).await?,
        parked: store.parked(Some(subject), LIMIT).await?,
        moments: store.timeline(subject).await?,
        outbox: store.outbox_about(subject).await?,
        repairs: store.repairs_about(subject).await?,
        letters: BTreeMap::new(),
        claims: Vec::new(),
    };
    let claimed = claims
        .iter()
        .map(|claim| (claim.role.clone(), claim.key.to_string()));
    let keys: BTreeSet<_> = claimed.chain(keys_of_order(subject)).collect();
    for (role, key) in &keys {
        let letters = dead_letters(store, Some(role), key).await?;
        life.letters
            .extend(letters.into_iter().map(|letter| (letter.id, letter)));
    }
    life.claims = claims;
    Ok(life)
}

async fn dead_letters<H>(
    store: &H,
    role: Option<&RoleName>,
    key: &str,
) -> Result<Vec<DeadLetter>, Error>
where
    H: History + KeptCallbacks + Sync + ?Sized,
{
    let filter = DeadFilter {
        role: role.cloned(),
        key: Some(key.to_owned()),
        ..DeadFilter::default()
    };
    Ok(store.dead_letters(&filter, LIMIT).await?)
}

/// The keys that an order's messages may have had without ever taking them. Those of payments and of requests for
/// refunds hold numbers that are not known beforehand.
fn keys_of_order(order_id: &str) -> impl Iterator<Item = (RoleName, String)> {
    let by_type = EventType::iter().filter_map(move |event_type| {
        let role = event_type
            .consumer()
            .filter(|role| *role == RoleName::ORDER && event_type != EventType::OrderRefund)?;
        Some((role, Key::new(&[order_id, event_type.name()]).ok()?))
    });
    let by_clock = |event_type: EventType| Key::new(&[order_id, event_type.name(), "clock"]);
    let others = [
        (RoleName::ORDER, by_clock(EventType::OrderExpire)),
        (RoleName::ORDER, by_clock(EventType::OrderRemind)),
        (RoleName::INVENTORY, Key::new(&[order_id, "deduct"])),
        (RoleName::INVENTORY, Key::new(&[order_id, "release"])),
    ];
    let others = others
        .into_iter()
        .filter_map(|(role, key)| Some((role, key.ok()?)));
    by_type
        .chain(others)
        .map(|(role, key)| (role, key.to_string()))
}

impl Life {
    fn is_empty(&self) -> bool {
        self.order.is_none()
            && self.claims.is_empty()
            && self.callbacks.is_empty()
            && self.parked.is_empty()
            && self.moments.is_empty()
            && self.outbox.is_empty()
            && self.repairs.is_empty()
            && self.letters.is_empty()
    }

    fn explanation(self, asked: &str, subject: &str) -> Explanation {
        let mut entries: Vec<Entry> = Vec::new();
        entries.extend(self.claims.into_iter().flat_map(of_claim));
        entries.extend(self.callbacks.into_iter().rev().map(of_callback));
        entries.extend(self.moments.into_iter().map(of_moment));
        entries.extend(self.parked.into_iter().flat_map(of_parked));
        entries.extend(self.outbox.into_iter().map(of_outbox));
        entries.extend(self.repairs.into_iter().map(of_repair));
        entries.extend(self.letters.into_values().map(of_letter));
        // A stable sort: at one moment, a claim stands before its effects and these before what
        // they publish.
        entries.sort_by_key(|entry| entry.at);
        Explanation {
            asked: asked.to_owned(),
            subject: subject.to_owned(),
            order: self.order,
            entries,
        }
    }
}

fn of_claim(claim: ClaimRow) -> Vec<Entry> {
    let detail = claim
        .detail
        .map_or_else(String::new, |detail| format!(" ({detail})"));
    let concluded = Entry {
        at: claim.concluded_at,
        what: format!("{} {}: {}{detail}", claim.role, claim.key, claim.outcome),
        table: "idempotent_record",
        role: Some(claim.role),
        key: Some(claim.key),
        outcome: Some(claim.outcome),
        message_id: Some(claim.message_id),
        asked: false,
    };
    let name = match (&concluded.role, &concluded.key) {
        (Some(role), Some(key)) => format!("{role} {key}"),
        _ => String::new(),
    };
    let taken = (claim.created_at != claim.concluded_at).then(|| Entry {
        at: claim.created_at,
        what: format!("{name}: taken, decided later"),
        outcome: None,
        ..concluded.clone()
    });
    let expired = claim.expired_at.map(|at| Entry {
        at,
        what: format!("{name}: expired, its message was removed"),
        outcome: None,
        ..concluded.clone()
    });
    { taken.into_iter() }
        .chain([concluded])
        .chain(expired)
        .collect()
}

fn of_callback(callback: CallbackRow) -> Entry {
    let CallbackRow {
        id,
        provider,
        detail,
        ..
    } = callback;
    Entry {
        at: callback.received_at,
        what: format!("{provider} called: {detail} (callback {id})"),
        table: "callback",
        role: Some(RoleName::CALLBACK),
        key: Some(callback.key),
        outcome: None,
        message_id: None,
        asked: false,
    }
}

fn of_moment(moment: Moment) -> Entry {
    Entry {
        at: moment.at,
        what: moment.what,
        table: moment.table,
        role: None,
        key: moment.key,
        outcome: None,
        message_id: None,
        asked: false,
    }
}

fn of_parked(parked: ParkedRow) -> Vec<Entry> {
    let entry = |at, what| Entry {
        at,
        what,
        table: "parked_event",
        role: Some(parked.role.clone()),
        key: Some(parked.key.clone()),
        outcome: None,
        message_id: Some(parked.message_id.clone()),
        asked: false,
    };
    let (event_type, awaits, deadline) = (&parked.event_type, &parked.awaits, parked.deadline);
    let set_aside = format!("{event_type} set aside until {awaits}, given up at {deadline}");
    let woken = parked.woken_at.map(|at| {
        let what = format!("{event_type} woken, handed back to {}", parked.role);
        entry(at, what)
    });
    [entry(parked.parked_at, set_aside)]
        .into_iter()
        .chain(woken)
        .collect()
}

fn of_outbox(row: OutboxRow) -> Entry {
    let to = row
        .addressee
        .map_or_else(String::new, |role| format!(" to {role}"));
    let failures = match (row.failures, row.last_error) {
        (0, _) => String::new(),
        (n, None) => format!(", refused {n} times"),
        (n, Some(error)) => format!(", refused {n} times, last: {error}"),
    };
    Entry {
        at: row.created_at,
        what: format!("{} waits to be published{to}{failures}", row.event_type),
        table: "outbox",
        role: None,
        key: None,
        outcome: None,
        message_id: Some(row.message_id),
        asked: false,
    }
}

fn of_repair(repair: RepairRow) -> Entry {
    let RepairRow {
        what,
        actor,
        before,
        after,
        ..
    } = repair;
    Entry {
        at: repair.at,
        what: format!("{what} by {actor}: {before} -> {after}"),
        table: "repair",
        role: repair.role,
        key: repair.key,
        outcome: None,
        message_id: None,
        asked: false,
    }
}

fn of_letter(letter: DeadLetter) -> Entry {
    let key = letter
        .key
        .as_ref()
        .map_or_else(String::new, |key| format!(" {key}"));
    let by = letter
        .actor
        .map_or_else(String::new, |actor| format!(" by {actor}"));
    let because = letter
        .actor_reason
        .map_or_else(String::new, |why| format!(" ({why})"));
    Entry {
        at: letter.died_at,
        what: format!(
            "{}{key}: dead letter {}, {}: {}; {}{by}{because}",
            letter.role, letter.id, letter.reason, letter.detail, letter.status
        ),
        table: "dead_letter",
        role: Some(letter.role),
        key: letter.key,
        outcome: None,
        message_id: letter.message_id,
        asked: false,
    }
}

/// A header, then a line for each entry with its time and how long it was after the first. A `*`
/// marks what is of the key that was asked for.
impl fmt::Display for Explanation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.order {
            Some(order) => writeln!(f, "{}", Header(order))?,
            None => writeln!(f, "{}", self.subject)?,
        }
        let Some(first) = self.entries.first() else {
            return Ok(());
        };
        let table = self.entries.iter().map(|entry| entry.table.len()).max();
        let table = table.unwrap_or(0);
        for entry in &self.entries {
            let mark = if entry.asked { '*' } else { ' ' };
            let after = after(entry.at.0.saturating_sub(first.at.0));
            let at = entry.at.to_string();
            write!(
                f,
                "\n{mark} {at:<24} {after:>14}  {:<table$}  {}",
                entry.table, entry.what
            )?;
            if let Some(message_id) = &entry.message_id {
                write!(f, " [message {message_id}]")?;
            }
        }
        writeln!(f)
    }
}

struct Header<'a>(&'a OrderSummary);

impl fmt::Display for Header<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let order = self.0;
        let money = |minor| Money::new(minor, order.currency);
        writeln!(
            f,
            "order {} of user {}: {}, version {}",
            order.order_id, order.user_id, order.status, order.version
        )?;
        write!(
            f,
            "total {}, paid {}, refunded {}",
            money(order.total_minor),
            money(order.paid_minor),
            money(order.refunded_minor)
        )?;
        match order.reservation {
            Some(status) => write!(f, ", stock {status}")?,
            None => f.write_str(", no stock reserved")?,
        }
        for (kind, kept) in &order.earned {
            write!(f, ", earned {kept} {kind}")?;
        }
        Ok(())
    }
}

/// `+0.123 s`, `+4 min 05 s`, `+3 h 20 min` or `+2 d 03 h`.
fn after(milliseconds: i64) -> String {
    let seconds = milliseconds / 1_000;
    let (minutes, hours, days) = (seconds / 60, seconds / 3_600, seconds / 86_400);
    if minutes == 0 {
        format!("+{seconds}.{:03} s", milliseconds % 1_000)
    } else if hours == 0 {
        format!("+{minutes} min {:02} s", seconds % 60)
    } else if days == 0 {
        format!("+{hours} h {:02} min", minutes % 60)
    } else {
        format!("+{days} d {:02} h", hours % 24)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_short() {
        assert_eq!(after(0), "+0.000 s");
        assert_eq!(after(12_345), "+12.345 s");
        assert_eq!(after(245_000), "+4 min 05 s");
        assert_eq!(after(12_000_000), "+3 h 20 min");
        assert_eq!(after(2 * 86_400_000 + 11_000_000), "+2 d 03 h");
    }

    #[test]
    fn a_colon_may_belong_to_the_key() {
        let read = |asked| readings(asked).collect::<Vec<_>>();
        assert_eq!(
            read("order:O:1/order.ship"),
            [
                (Some(RoleName::ORDER), "O:1/order.ship"),
                (None, "order:O:1/order.ship")
            ]
        );
        assert_eq!(read("O1/order.ship"), [(None, "O1/order.ship")]);
    }

    #[test]
    fn an_order_may_have_twelve_keys_beside_those_with_numbers() {
        let keys: Vec<_> = keys_of_order("O/1")
            .map(|(role, key)| format!("{role}:{key}"))
            .collect();
        assert_eq!(keys.len(), 12);
        assert!(keys.contains(&"order:O%2F1/order.ship".to_owned()));
        assert!(keys.contains(&"inventory:O%2F1/deduct".to_owned()));
    }
}
