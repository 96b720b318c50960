//! What clients read: orders, stock, accounts, and the answers to what they asked before.

use super::{OrderSummary, Result};
use crate::domain::account::Account;
use crate::domain::event::OrderLine;
use crate::domain::inventory::Stock;
use crate::domain::order::{Payment, Refund, Step};
use crate::domain::{Fingerprint, Key, OrderId, SkuId, Timestamp, UserId};
use async_trait::async_trait;

/// An order with all that belongs to it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OrderView {
    /// Where it stands.
    pub summary: OrderSummary,
    /// Its lines, in their order.
    pub lines: Vec<OrderLine>,
    /// Its payments, by provider and number.
    pub payments: Vec<Payment>,
    /// Its refunds, by provider and number.
    pub refunds: Vec<Refund>,
    /// Its history, from its first version on.
    pub history: Vec<PastStep>,
}

/// A step of an order's history.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PastStep {
    /// The step.
    pub step: Step,
    /// The key of the event that caused it.
    pub key: Key,
    /// When, by the database's clock.
    pub at: Timestamp,
}

/// The answer to a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Recorded {
    /// Which request it was.
    pub key: Key,
    /// Of all that it said.
    pub fingerprint: Fingerprint,
    /// What was answered; `None` if it was applied.
    pub detail: Option<String>,
}

/// Questions of clients. None of them writes or locks.
#[async_trait]
pub trait Views {
    /// An order with all that belongs to it, in one state; `None` if it is not there.
    ///
    /// # Errors
    /// [`super::Error::Unavailable`], [`super::Error::Corrupt`].
    async fn order_view(&self, order_id: &OrderId) -> Result<Option<OrderView>>;

    /// The stock of a SKU; `None` if it never had any.
    ///
    /// # Errors
    /// [`super::Error::Unavailable`], [`super::Error::Corrupt`].
    async fn stock_of(&self, sku_id: &SkuId) -> Result<Option<Stock>>;

    /// The accounts of a user, by kind.
    ///
    /// # Errors
    /// [`super::Error::Unavailable`], [`super::Error::Corrupt`].
    async fn accounts_of(&self, user_id: &UserId) -> Result<Vec<Account>>;

    /// The answers to those of these requests that were made.
    ///
    /// # Errors
    /// [`super::Error::Unavailable`], [`super::Error::Corrupt`].
    async fn answers(&self, requests: &[&Key]) -> Result<Vec<Recorded>>;
}
