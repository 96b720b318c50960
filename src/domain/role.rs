//! Names of roles.

use serde::Serialize;
use std::borrow::Cow;
use std::fmt;

/// The name of a role: a worker with its own queue. Keys are scoped by it.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize)]
#[serde(transparent)]
pub struct RoleName(Cow<'static, str>);

impl RoleName {
    /// Consumes what is asked of an order and what became of its stock.
    pub const ORDER: Self = Self(Cow::Borrowed("order"));
    /// Consumes what payment providers report.
    pub const PAYMENT: Self = Self(Cow::Borrowed("payment"));
    /// Consumes what moves stock.
    pub const INVENTORY: Self = Self(Cow::Borrowed("inventory"));
    /// Consumes what moves points and balances.
    pub const ACCOUNT: Self = Self(Cow::Borrowed("account"));
    /// Takes the requests of HTTP clients; it has no queue.
    pub const API: Self = Self(Cow::Borrowed("api"));
    /// Keeps and passes on what payment providers say by HTTP; it has no queue.
    pub const CALLBACK: Self = Self(Cow::Borrowed("callback"));
    /// The four roles that are built in.
    pub const BUILT_IN: [Self; 4] = [Self::ORDER, Self::PAYMENT, Self::INVENTORY, Self::ACCOUNT];

    /// The name of a team's own role.
    #[must_use]
    pub fn new(name: impl Into<Cow<'static, str>>) -> Self {
        Self(name.into())
    }

    /// The name as text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for RoleName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for RoleName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}
