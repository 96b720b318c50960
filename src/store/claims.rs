//! `idempotent_record`: who has taken which key.

use super::Result;
use crate::domain::{Fingerprint, Key, RoleName, Timestamp, Token};
use async_trait::async_trait;
use std::borrow::Cow;

/// A claim to be made.
#[derive(Debug, Clone)]
pub struct NewClaim<'a> {
    /// The key.
    pub key: &'a Key,
    /// What the event is about.
    pub subject: &'a str,
    /// Of the event's content.
    pub fingerprint: Fingerprint,
    /// Of the delivery that claims.
    pub message_id: &'a str,
    /// The message, if it is to be kept with the claim.
    pub body: Option<&'a str>,
}

/// The answer to a claim.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Claimed {
    /// The key is ours. Its row says `applied`, which holds unless it is concluded otherwise.
    Fresh,
    /// The key was taken by an event that has not been decided for good; its copy may resume.
    Open {
        /// What the claim says now.
        prior: Prior,
        /// Of the content that took the key.
        fingerprint: Fingerprint,
    },
    /// The key was taken and its event is settled.
    Done {
        /// Of the content that took the key.
        fingerprint: Fingerprint,
        /// Whether the claim is marked as expired: the copy came later than copies should.
        is_expired: bool,
    },
}

/// What a claim says that may be concluded anew.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Prior {
    /// Claimed in this transaction.
    Fresh,
    /// Parked until the token, and whether it has been woken since.
    Parked {
        /// What the event awaits.
        awaits: Token,
        /// Whether it was handed back to its role.
        woken: bool,
    },
    /// Given up without any effect; a replay may still apply it.
    Dead,
}

impl Prior {
    /// The outcome that the claim row says.
    #[must_use]
    pub fn outcome(&self) -> &'static str {
        match self {
            Self::Fresh => "applied",
            Self::Parked { .. } => "parked",
            Self::Dead => "dead",
        }
    }
}

/// What became of a claimed key.
#[derive(Debug, Clone)]
pub struct Conclusion<'a> {
    /// The key.
    pub key: &'a Key,
    /// What the row says so far: the guard.
    pub from: &'static str,
    /// What it says from now on.
    pub to: &'static str,
    /// The detail of it, such as the code of a rejection.
    pub detail: Option<Cow<'static, str>>,
}

/// Claims, within the transaction of the effects.
#[async_trait]
pub trait Claims {
    /// Takes keys in one statement. `claims` are sorted by key and hold no key twice; the answers
    /// stand in the same order.
    ///
    /// # Errors
    /// [`super::Error::Unavailable`], or [`super::Error::Refused`] for data the database does not
    /// take.
    async fn claim(
        &mut self,
        role: &RoleName,
        now: Timestamp,
        claims: &[NewClaim<'_>],
    ) -> Result<Vec<Claimed>>;

    /// Concludes claims, guarded by what each says so far.
    ///
    /// # Errors
    /// [`super::Error::Conflict`] if a claim says something else by now.
    async fn conclude(
        &mut self,
        role: &RoleName,
        now: Timestamp,
        conclusions: &[Conclusion<'_>],
    ) -> Result<()>;

    /// Gives back keys that this transaction has claimed fresh, or found parked and unparks.
    ///
    /// # Errors
    /// [`super::Error::Unavailable`].
    async fn unclaim(&mut self, role: &RoleName, keys: &[&Key]) -> Result<()>;
}
