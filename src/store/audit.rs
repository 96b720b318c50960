//! Reconciliation: everything recomputed from the flows and compared.

use super::Result;
use async_trait::async_trait;
use serde::Serialize;
use std::fmt;
use std::time::Duration;

/// What a difference is about.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case", tag = "kind", content = "id")]
pub enum Subject {
    /// An order.
    Order(String),
    /// A SKU.
    Sku(String),
    /// A user's account of a kind.
    Account(String, String),
    /// A claim: role and key.
    Claim(String, String),
    /// A row of the outbox.
    Outbox(i64),
}

impl fmt::Display for Subject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Order(id) => write!(f, "order {id}"),
            Self::Sku(id) => write!(f, "SKU {id}"),
            Self::Account(user, kind) => write!(f, "account {kind} of user {user}"),
            Self::Claim(role, key) => write!(f, "claim {role}:{key}"),
            Self::Outbox(id) => write!(f, "outbox row {id}"),
        }
    }
}

/// Two figures that should be equal and are not.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Difference {
    /// The name of the check, such as `stock_available`.
    pub check: &'static str,
    /// What it is about.
    pub subject: Subject,
    /// What it should be, recomputed.
    pub expected: String,
    /// What the row says.
    pub found: String,
    /// Where to look.
    pub look: String,
}

/// Reconciliation.
#[async_trait]
pub trait Audit {
    /// The names of all checks, in the order in which they run.
    fn checks(&self) -> Vec<&'static str>;

    /// Runs one check and returns its differences, at most `limit`. Rows of the outbox and woken
    /// events count as stuck once they are older than `stuck_after`.
    ///
    /// # Errors
    /// [`super::Error::Unavailable`].
    async fn check(
        &self,
        name: &'static str,
        stuck_after: Duration,
        limit: u32,
    ) -> Result<Vec<Difference>>;
}
