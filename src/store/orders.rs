//! `orders`, `order_line`, `order_transition`, `payment`, `refund`.

use super::Result;
use crate::domain::event::OrderLine;
use crate::domain::order::{Order, OrderStatus, Payment, Refund, RefundStatus, Step};
use crate::domain::{Key, OrderId, Provider, RefundNo, Timestamp, TradeNo};
use async_trait::async_trait;

/// An order's new row, guarded by what was read.
#[derive(Debug, Clone)]
pub struct OrderUpdate<'a> {
    /// The status that was read.
    pub was: OrderStatus,
    /// The version that was read.
    pub was_version: i64,
    /// The row from now on.
    pub order: &'a Order,
}

/// A refund's new row, guarded by what was read.
#[derive(Debug, Clone)]
pub struct RefundUpdate<'a> {
    /// The status that was read.
    pub was: RefundStatus,
    /// The row from now on.
    pub refund: &'a Refund,
}

/// A step of an order's history.
#[derive(Debug, Clone)]
pub struct StepRow {
    /// The order.
    pub order_id: OrderId,
    /// The step.
    pub step: Step,
    /// The key of the event that caused it.
    pub key: Key,
}

/// The tables of the order and payment roles, within a transaction.
#[async_trait]
pub trait Orders {
    /// The orders that are there, locked in the order of their ids where the database can.
    ///
    /// # Errors
    /// [`super::Error::Unavailable`], [`super::Error::Corrupt`].
    async fn load_orders(&mut self, ids: &[&OrderId]) -> Result<Vec<Order>>;

    /// All payments of the orders, and those with the given numbers whatever their order.
    ///
    /// # Errors
    /// [`super::Error::Unavailable`], [`super::Error::Corrupt`].
    async fn load_payments(
        &mut self,
        ids: &[&OrderId],
        numbers: &[(&Provider, &TradeNo)],
    ) -> Result<Vec<Payment>>;

    /// All refunds of the orders, and those with the given numbers whatever their order.
    ///
    /// # Errors
    /// [`super::Error::Unavailable`], [`super::Error::Corrupt`].
    async fn load_refunds(
        &mut self,
        ids: &[&OrderId],
        numbers: &[(&Provider, &RefundNo)],
    ) -> Result<Vec<Refund>>;

    /// The keys of the events that the orders' histories have a note of.
    ///
    /// # Errors
    /// [`super::Error::Unavailable`].
    async fn load_notes(&mut self, ids: &[&OrderId]) -> Result<Vec<Key>>;

    /// Inserts new orders.
    ///
    /// # Errors
    /// [`super::Error::Conflict`] if one is there by now.
    async fn insert_orders(&mut self, now: Timestamp, orders: &[&Order]) -> Result<()>;

    /// Keeps orders that are not there from appearing before this transaction ends. An event that is
    /// parked until an order is there needs it: whoever inserts an order then sees what was parked, or is seen.
    ///
    /// # Errors
    /// [`super::Error::Conflict`] if one is there by now.
    async fn hold_absent_orders(&mut self, ids: &[&OrderId]) -> Result<()>;

    /// Inserts the lines of new orders, numbered from 1 in each order.
    ///
    /// # Errors
    /// [`super::Error::Conflict`] if one is there by now.
    async fn insert_order_lines(&mut self, lines: &[(&OrderId, i64, &OrderLine)]) -> Result<()>;

    /// Updates orders, guarded by the status and version that were read.
    ///
    /// # Errors
    /// [`super::Error::Conflict`] if a guard fails.
    async fn update_orders(&mut self, now: Timestamp, updates: &[OrderUpdate<'_>]) -> Result<()>;

    /// Appends to the orders' histories.
    ///
    /// # Errors
    /// [`super::Error::Conflict`] if a version is there by now.
    async fn insert_steps(&mut self, now: Timestamp, steps: &[StepRow]) -> Result<()>;

    /// Inserts new payments.
    ///
    /// # Errors
    /// [`super::Error::Conflict`] if a number is there by now.
    async fn insert_payments(&mut self, now: Timestamp, payments: &[&Payment]) -> Result<()>;

    /// Inserts new refunds.
    ///
    /// # Errors
    /// [`super::Error::Conflict`] if a number is there by now.
    async fn insert_refunds(&mut self, now: Timestamp, refunds: &[&Refund]) -> Result<()>;

    /// Updates refunds, guarded by the status that was read.
    ///
    /// # Errors
    /// [`super::Error::Conflict`] if a guard fails.
    async fn update_refunds(&mut self, now: Timestamp, updates: &[RefundUpdate<'_>]) -> Result<()>;
}
