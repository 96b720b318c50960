//! Shows dead letters, hands them back to their roles, or closes them.

use super::deployment::Deployment;
use super::table::{Table, text_or_hex, visible};
use crate::broker::{Delivery, Headers, Tag};
use crate::domain::{Anew, DeadReason, RoleName};
use crate::store::{
    self, ClaimRow, DeadFilter, DeadLetter, DeadStatus, NewDeadLetter, NewOutbox, Store,
};
use crate::worker::account::AccountRole;
use crate::worker::batch::ANEW;
use crate::worker::inventory::InventoryRole;
use crate::worker::order::OrderRole;
use crate::worker::payment::PaymentRole;
use crate::worker::{self, Processor, Role};
use serde::Serialize;
use std::collections::BTreeSet;
use std::fmt;
use std::sync::Arc;

/// Why a command on dead letters failed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// There is no such dead letter.
    #[error("there is no dead letter {0}, `orderonce dead list` shows them")]
    NotFound(i64),
    /// It was replayed or discarded before.
    #[error("dead letter {id} is {status}, only one that is DEAD can be replayed or discarded")]
    NotDead {
        /// The dead letter.
        id: i64,
        /// Its status.
        status: DeadStatus,
    },
    /// The role is not one that this program runs.
    #[error("dead letter {id} is of role {role}, which is not built in")]
    ForeignRole {
        /// The dead letter.
        id: i64,
        /// Its role.
        role: RoleName,
    },
    /// There is no rejection with this key.
    #[error("role {role} has rejected no event with key {key}")]
    NotRejected {
        /// The role.
        role: RoleName,
        /// The key.
        key: String,
    },
    /// The claim does not hold the message.
    #[error(
        "the claim {role}:{key} does not hold its message (claims.keep_body was off, or it has expired), send the message again instead"
    )]
    NoBody {
        /// The role.
        role: RoleName,
        /// The key.
        key: String,
    },
    /// The database.
    #[error(transparent)]
    Store(#[from] store::Error),
    /// Trying it out.
    #[error(transparent)]
    Worker(#[from] worker::Error),
}

/// Dead letters, oldest first.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct List {
    /// The letters.
    pub dead_letters: Vec<DeadLetter>,
}

/// One dead letter with its bytes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Shown {
    /// The letter.
    #[serde(flatten)]
    pub letter: DeadLetter,
    /// Its bytes as text, if they are UTF-8.
    pub text: Option<String>,
    /// Its bytes in hexadecimal, if they are not.
    pub hex: Option<String>,
}

/// Lists up to `limit` dead letters.
///
/// # Errors
/// [`Error::Store`].
pub async fn list(store: &dyn Store, filter: &DeadFilter, limit: u32) -> Result<List, Error> {
    let dead_letters = store.dead_letters(filter, limit).await?;
    Ok(List { dead_letters })
}

/// Shows one dead letter.
///
/// # Errors
/// [`Error::NotFound`], [`Error::Store`].
pub async fn show(store: &dyn Store, id: i64) -> Result<Shown, Error> {
    let letter = store.dead_letter(id).await?.ok_or(Error::NotFound(id))?;
    let (text, hex) = text_or_hex(&letter.raw);
    Ok(Shown { letter, text, hex })
}

/// Who does something about a dead letter, and why.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Act {
    /// Who.
    pub actor: String,
    /// Why.
    pub reason: String,
}

/// How letters are replayed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Replay {
    /// Only say what would become of them.
    pub dry_run: bool,
    /// Decide them anew, whatever was decided of their keys before. Flows and statuses still stop
    /// what has been applied.
    pub as_new: bool,
}

/// What was done, or would be, about each dead letter.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Acted {
    /// What was done.
    pub act: &'static str,
    /// The letters.
    pub letters: Vec<ActedOn>,
}

/// What was done, or would be, about a dead letter.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct ActedOn {
    /// The letter; `None` for a rejection that is only tried out, which has none yet.
    pub id: Option<i64>,
    /// Its role.
    pub role: RoleName,
    /// Its key, if it could be read.
    pub key: Option<String>,
    /// What would become of it now, event by event; of a dry run.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub would_be: Option<Vec<String>>,
}

/// Hands dead letters back to their roles by the outbox, all or none.
///
/// # Errors
/// [`Error`].
pub async fn replay(
    deployment: &Deployment,
    ids: &[i64],
    replay: &Replay,
    act: &Act,
) -> Result<Acted, Error> {
    let letters = load(deployment.store.as_ref(), ids).await?;
    if replay.dry_run {
        return rehearse(deployment, &letters, replay).await;
    }
    let mut tx = deployment.store.begin().await?;
    let now = tx.now().await?;
    for letter in &letters {
        let row = NewOutbox {
            aggregate: letter.key.as_ref().map_or_else(
                || format!("dead-letter-{}", letter.id),
                |key| key.as_str().to_owned(),
            ),
            addressee: Some(letter.role.clone()),
            event_type: "replay".to_owned(),
            message_id: format!("dead-letter-{}-{}", letter.id, letter.deaths),
            headers: headers(letter, replay),
            message: letter.raw.clone(),
        };
        tx.append(now, &[row]).await?;
        let (actor, reason) = (&act.actor, &act.reason);
        let (from, to) = (DeadStatus::Dead, DeadStatus::Replayed);
        tx.mark_dead_letter(letter.id, from, to, actor, reason)
            .await?;
    }
    tx.commit().await?;
    Ok(acted("replayed", &letters))
}

/// Has a rejected event decided anew. The rejection stays on record; the message is kept as a dead
/// letter, with who replayed it and why.
///
/// # Errors
/// [`Error`].
pub async fn replay_rejected(
    deployment: &Deployment,
    role: &RoleName,
    key: &str,
    dry_run: bool,
    act: &Act,
) -> Result<Acted, Error> {
    let store = deployment.store.as_ref();
    let claims = store.claims_of(Some(role), key).await?;
    let claim = claims.into_iter().find(|claim| claim.outcome == "rejected");
    let claim = claim.ok_or_else(|| Error::NotRejected {
        role: role.clone(),
        key: key.to_owned(),
    })?;
    let body = claim.body.as_deref().ok_or_else(|| Error::NoBody {
        role: role.clone(),
        key: key.to_owned(),
    })?;
    let how = Replay {
        dry_run,
        as_new: true,
    };
    if dry_run {
        let letter = unburied(role, &claim, body);
        return rehearse(deployment, &[letter], &how).await;
    }
    let mut tx = store.begin().await?;
    let now = tx.now().await?;
    let letter = NewDeadLetter {
        role,
        message_id: Some(&claim.message_id),
        key: Some(&claim.key),
        reason: DeadReason::Rejected,
        detail: claim.detail.as_deref().unwrap_or_default(),
        raw: body.as_bytes(),
        headers: &Headers::new(),
        deliveries: 1,
    };
    tx.bury(now, &[letter]).await?;
    tx.commit().await?;

    // The same bytes are kept once, under the key that was rejected first.
    let filter = DeadFilter {
        role: Some(role.clone()),
        reason: Some(DeadReason::Rejected.to_string()),
        ..DeadFilter::default()
    };
    let mut kept = store.dead_letters(&filter, u32::MAX).await?;
    kept.retain(|letter| letter.raw == body.as_bytes());
    let ids: Vec<_> = kept.iter().map(|letter| letter.id).collect();
    replay(deployment, &ids, &how, act).await
}

/// The number of a dead letter that is not in the table; numbers there begin at 1.
const UNBURIED: i64 = 0;

/// The dead letter that a rejection would become.
fn unburied(role: &RoleName, claim: &ClaimRow, body: &str) -> DeadLetter {
    DeadLetter {
        id: UNBURIED,
        role: role.clone(),
        message_id: Some(claim.message_id.clone()),
        key: Some(claim.key.clone()),
        reason: DeadReason::Rejected.to_string(),
        detail: claim.detail.clone().unwrap_or_default(),
        raw: body.as_bytes().to_vec(),
        headers: Headers::new(),
        deliveries: 1,
        deaths: 1,
        status: DeadStatus::Dead,
        died_at: claim.concluded_at,
        actor: None,
        actor_reason: None,
    }
}

/// Closes dead letters that do not matter.
///
/// # Errors
/// [`Error`].
pub async fn discard(store: &dyn Store, ids: &[i64], act: &Act) -> Result<Acted, Error> {
    let letters = load(store, ids).await?;
    let mut tx = store.begin().await?;
    for letter in &letters {
        let (actor, reason) = (&act.actor, &act.reason);
        let (from, to) = (DeadStatus::Dead, DeadStatus::Discarded);
        tx.mark_dead_letter(letter.id, from, to, actor, reason)
            .await?;
    }
    tx.commit().await?;
    Ok(acted("discarded", &letters))
}

/// The letters of these numbers, each once however often its number stands there.
async fn load(store: &dyn Store, ids: &[i64]) -> Result<Vec<DeadLetter>, Error> {
    let ids: BTreeSet<_> = ids.iter().copied().collect();
    let mut letters = Vec::with_capacity(ids.len());
    for id in ids {
        let letter = store.dead_letter(id).await?.ok_or(Error::NotFound(id))?;
        if letter.status != DeadStatus::Dead {
            return Err(Error::NotDead {
                id,
                status: letter.status,
            });
        }
        letters.push(letter);
    }
    Ok(letters)
}

async fn rehearse(
    deployment: &Deployment,
    letters: &[DeadLetter],
    replay: &Replay,
) -> Result<Acted, Error> {
    let mut acted = acted("would be replayed", letters);
    for (letter, acted) in letters.iter().zip(&mut acted.letters) {
        let delivery = Delivery {
            tag: Tag { id: 0, fence: 0 },
            message: letter.raw.clone().into(),
            headers: headers(letter, replay),
            attempt: 0,
            deliveries: 1,
        };
        let outcomes = rehearse_one(deployment, letter, &delivery).await?;
        acted.would_be = Some(outcomes);
    }
    Ok(acted)
}

async fn rehearse_one(
    deployment: &Deployment,
    letter: &DeadLetter,
    delivery: &Delivery,
) -> Result<Vec<String>, Error> {
    let pay_timeout = deployment.config.order.pay_timeout;
    let points = deployment.points_rule();
    if letter.role == RoleName::ORDER {
        try_out(deployment, OrderRole::new(pay_timeout), delivery).await
    } else if letter.role == RoleName::PAYMENT {
        try_out(deployment, PaymentRole::new(pay_timeout), delivery).await
    } else if letter.role == RoleName::INVENTORY {
        try_out(deployment, InventoryRole, delivery).await
    } else if letter.role == RoleName::ACCOUNT {
        try_out(deployment, AccountRole { points }, delivery).await
    } else {
        Err(Error::ForeignRole {
            id: letter.id,
            role: letter.role.clone(),
        })
    }
}

async fn try_out<R: Role>(
    deployment: &Deployment,
    role: R,
    delivery: &Delivery,
) -> Result<Vec<String>, Error> {
    let store = Arc::clone(&deployment.store);
    let processor = Processor::new(role, store, deployment.settings());
    let settled = processor.rehearse(delivery).await?;
    let outcomes = settled.items.iter().map(|item| item.outcome.to_string());
    Ok(outcomes.collect())
}

fn headers(letter: &DeadLetter, replay: &Replay) -> Headers {
    let mut headers = letter.headers.clone();
    if replay.as_new {
        let anew = Anew {
            letter: letter.id.unsigned_abs(),
            deaths: letter.deaths,
        };
        headers.insert(ANEW.to_owned(), anew.to_string());
    }
    headers
}

fn acted(act: &'static str, letters: &[DeadLetter]) -> Acted {
    let letters = letters.iter().map(|letter| ActedOn {
        id: (letter.id != UNBURIED).then_some(letter.id),
        role: letter.role.clone(),
        key: letter.key.as_ref().map(ToString::to_string),
        would_be: None,
    });
    Acted {
        act,
        letters: letters.collect(),
    }
}

impl fmt::Display for List {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.dead_letters.is_empty() {
            return writeln!(f, "no dead letters");
        }
        let header = &[
            "id", "status", "role", "reason", "died at", "deaths", "key", "detail",
        ];
        let mut table = Table::new(header, &["id", "deaths"]);
        for letter in &self.dead_letters {
            let key = letter.key.as_ref();
            table.row([
                letter.id.to_string(),
                letter.status.to_string(),
                letter.role.to_string(),
                letter.reason.clone(),
                letter.died_at.to_string(),
                letter.deaths.to_string(),
                key.map_or(String::new(), ToString::to_string),
                letter.detail.clone(),
            ]);
        }
        write!(f, "{table}")
    }
}

impl fmt::Display for Shown {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let letter = &self.letter;
        writeln!(
            f,
            "dead letter {} of role {}, {}",
            letter.id, letter.role, letter.status
        )?;
        let detail = visible(&letter.detail);
        writeln!(f, "reason      {}: {detail}", letter.reason)?;
        writeln!(
            f,
            "died        {} ({} times)",
            letter.died_at, letter.deaths
        )?;
        writeln!(f, "deliveries  {}", letter.deliveries)?;
        if let Some(message_id) = &letter.message_id {
            writeln!(f, "message id  {}", visible(message_id))?;
        }
        if let Some(key) = &letter.key {
            writeln!(f, "key         {key}")?;
        }
        if let (Some(actor), Some(reason)) = (&letter.actor, &letter.actor_reason) {
            writeln!(f, "acted on by {}: {}", visible(actor), visible(reason))?;
        }
        for (name, value) in &letter.headers {
            writeln!(f, "header      {}: {}", visible(name), visible(value))?;
        }
        match (&self.text, &self.hex) {
            (Some(text), _) => writeln!(f, "message     {}", visible(text)),
            (None, Some(hex)) => writeln!(f, "bytes       {hex}"),
            (None, None) => Ok(()),
        }
    }
}

impl fmt::Display for Acted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.letters.is_empty() {
            return writeln!(f, "no dead letters were {}", self.act);
        }
        for letter in &self.letters {
            match letter.id {
                Some(id) => write!(f, "dead letter {id}, {}", letter.role)?,
                None => write!(f, "{}", letter.role)?,
            }
            if let Some(key) = &letter.key {
                write!(f, ":{key}")?;
            }
            match &letter.would_be {
                Some(would_be) => writeln!(f, " would be {}", would_be.join(", "))?,
                None => writeln!(f, " was {}", self.act)?,
            }
        }
        Ok(())
    }
}
